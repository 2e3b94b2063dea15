/* The reading side: verbs that change nothing. It has a connection of its own to store.db and runs
 * on the helper thread. What store.db lacked when the read came, the store thread has put into
 * op->recent; the answer is made of both. */
#ifndef STORE_READER_H
#define STORE_READER_H

#include "store/fault.h"
#include "store/store.h"
#include "store/storefile.h"

#include <sqlite3.h>

enum reader_sql { READ_JOB, READ_JOBS, READ_FLOOR, READ_CALLBACKS, READ_SESSION, READER_SQL_COUNT };

enum {
    READER_SCAN_MAX = 20000, /* rows one JOB_LIST looks at; the next page goes on from there */
};

struct reader {
    const struct storefile *file;
    sqlite3 *db; /* opened when it is needed, closed after a failure */
    sqlite3_stmt *sql[READER_SQL_COUNT];
    struct fault fault; /* the last failure */
};

bool reader_answers(enum store_verb verb); /* else it is for the ledger */
void reader_init(struct reader *reader, const struct storefile *file);
void reader_close(struct reader *reader, bool after_fault);
void reader_run(struct reader *reader, struct store_op *op);

#endif
