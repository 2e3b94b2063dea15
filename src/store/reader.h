/* The read-only verbs. The reader has its own connection to store.db and runs on the reader thread.
 * The store thread puts what store.db lacks at that time into op->recent; the answer combines
 * both. */
#ifndef STORE_READER_H
#define STORE_READER_H

#include <sqlite3.h>

#include "store/change.h"
#include "store/fault.h"
#include "store/store.h"
#include "store/storefile.h"

enum reader_sql { READ_JOB, READ_JOBS, READ_FLOOR, READ_CALLBACKS, READ_SESSION, READER_SQL_COUNT };

struct reader {
    const struct storefile *file;
    sqlite3 *db; /* opened when it is needed, closed after a failure */
    sqlite3_stmt *sql[READER_SQL_COUNT];
    struct fault fault; /* the last failure */
};

bool reader_answers(enum store_verb verb); /* false: the ledger answers it */
void reader_init(struct reader *reader, const struct storefile *file);
void reader_close(struct reader *reader, bool after_fault);
void reader_run(struct reader *reader, struct store_op *op);

/* Reading a row of the job table, shared by the writer's and the reader's connection. */

/* The columns of a head, in the order jobrow_head() reads them. */
#define JOBROW_COLUMNS(due_ms)                                                                     \
    "id, state, lease, callback, attempt, max_attempts, epoch, owner, node, reason, created_ms, "  \
    "updated_ms, dispatched_ms, acked_ms, ended_ms, " due_ms                                       \
    ", timeout_ms, run_until_ms, type, lane, priority, gpus"
#define JOBROW_WRITTEN JOBROW_COLUMNS("due_ms")
/* For reading: the ends of queue timeouts are shifted by wait_shift_ms, not row by row. The value
 * in the meta row matches the rows; the journal may have a newer one. */
#define JOBROW_HEAD    JOBROW_COLUMNS("due_ms + (lane <> 0) * (SELECT wait_shift_ms FROM meta)")
#define JOBROW_SHIFTED JOBROW_COLUMNS("due_ms + (lane <> 0) * ?9")
/* Long specs are in a row of the table bulk. */
#define JOBROW_SPEC_TEXT "coalesce(spec, (SELECT bulk.spec FROM bulk WHERE bulk.id = job.id))"
/* Columns of a whole record. */
#define JOBROW_RECORD JOBROW_SHIFTED ", attempts, result, " JOBROW_SPEC_TEXT

enum { JOBROW_NODE = 8, JOBROW_TYPE = 18, JOBROW_AFTER_HEAD = 22, JOBROW_SPEC = 24 };
enum { JOBROW_SHIFT = 9 }; /* the parameter */

/* False: the row has invalid values. `ret_run_until_ms` may be NULL. */
bool jobrow_head(sqlite3_stmt *stmt, struct store_head *ret_head, int64_t *ret_run_until_ms);
/* Reads the first columns of any row into the fields of a change of its kind. False: likewise. */
bool row_read(sqlite3_stmt *stmt, int count, struct change *change);
/* Borrowed until the statement moves on; at == NULL for NULL. */
struct str jobrow_text(sqlite3_stmt *stmt, int column);
bool jobrow_record(sqlite3_stmt *stmt, struct arena *arena, struct store_record *ret_record);

#endif
