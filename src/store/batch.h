/* A batch as journal.db keeps it: the changes of one commit, under the number that follows on the
 * one before. */
#ifndef STORE_BATCH_H
#define STORE_BATCH_H

#include "base/str.h"
#include "store/fault.h"

#include <sqlite3.h>

#define BATCH_ADD   "INSERT INTO batch(seq, sum, changes) VALUES(?1, ?2, ?3)"
#define BATCH_AFTER "SELECT seq, sum, changes FROM batch WHERE seq > ?1 ORDER BY seq"

struct batch {
    uint64_t seq;
    struct str changes; /* borrowed until the statement moves on */
};

/* Binds a batch to BATCH_ADD; the changes must live until it was run. */
void batch_bind(sqlite3_stmt *stmt, const struct batch *batch);
/* BATCH_AFTER stands on a row, which must be the one that follows on `after` and unharmed. */
bool batch_read(sqlite3_stmt *stmt, uint64_t after, struct batch *ret_batch, struct fault *fault);
/* Its changes cannot be understood. */
void batch_damaged(const struct batch *batch, struct fault *fault);

#endif
