/* Flushing copies journal.log into store.db, many batches per transaction, so a job that began and
 * ended in between is written once, in its final state. Like a start after a crash, it reads only
 * the journal and depends on nothing in memory. Flush thread only. */
#ifndef STORE_FLUSH_H
#define STORE_FLUSH_H

#include <sqlite3.h>

#include "base/map.h"
#include "base/mem.h"
#include "store/change.h"
#include "store/logfile.h"
#include "store/storefile.h"

/* Retention: finished jobs and sessions are deleted when they are too old or too many, a few with
 * each batch and a few while idle, never many at once. */

struct purge {
    int64_t retention_ms; /* 0 = any age */
    int64_t jobs_max;     /* 0 = any number */
    int64_t sessions_max;
    uint64_t at;     /* rows up to here were checked in this round */
    int64_t look_ms; /* store time before which no row gets too old */
    int64_t session_look_ms;
};

enum {
    /* Approximate limits of one transaction. */
    FLUSH_BYTES = 32 << 20,
    FLUSH_JOBS = 16384,
};

enum flush_sql {
    FLUSH_BEGIN,
    FLUSH_COMMIT,
    FLUSH_JOB_ADD,
    FLUSH_JOB_STEP,
    FLUSH_JOB_RESULT,
    FLUSH_JOB_FIRST_NODE,
    FLUSH_JOB_DROP_KEY,
    FLUSH_JOB_DEL,
    FLUSH_JOB_OLDEST,
    FLUSH_JOB_NEWEST,
    FLUSH_BULK_ADD,
    FLUSH_BULK_DEL,
    FLUSH_NODE_PUT,
    FLUSH_NODE_DEL,
    FLUSH_BREAKER_PUT,
    FLUSH_BREAKER_DEL,
    FLUSH_SESSION_PUT,
    FLUSH_SESSION_OLDEST,
    FLUSH_SESSION_DEL,
    FLUSH_LIMIT_PUT,
    FLUSH_LIMIT_DEL,
    FLUSH_LIMIT_KEY_PUT,
    FLUSH_LIMIT_KEY_DEL,
    FLUSH_META_GET,
    FLUSH_META_PUT,
    FLUSH_COUNT_SINCE,
    FLUSH_SQL_COUNT
};

struct flush {
    const struct storefile *file;
    /* The last failure: until store.db is reopened, nothing is written to it or found in it. */
    struct fault fault;
    sqlite3 *db; /* store.db, opened when it is needed, closed after a failure; NULL: not open */
    sqlite3_stmt *sql[FLUSH_SQL_COUNT];
    int wal_pages; /* in its WAL after the last commit; 0: checkpointed since */
    int64_t session_max;
    /* The meta row, written with every transaction. */
    struct change_meta meta;
    uint64_t flushed_seq; /* of the last batch that is in store.db */
    uint64_t max_id;
    int64_t row_count;
    struct logfile log;
    struct purge purge;
    /* State of one transaction. */
    bool writing;  /* a transaction is open */
    int64_t added; /* jobs inserted */
    struct arena arena;
    struct idmap jobs;         /* id -> struct change in `arena`, as the newest batch left it */
    struct change **job_order; /* in the order they changed: the first one may free a key */
    size_t job_count;
    uint64_t seq;  /* of the last batch read */
    int64_t bytes; /* of these batches in the journal */
};

void flush_init(struct flush *flush, const struct storefile *file, int64_t retention_ms,
                int64_t jobs_max);
void flush_close(struct flush *flush, bool after_fault);
/* Runs one transaction: the journal up to `upto`, or as much as fits, and expired rows. False: it
 * failed and nothing of it was applied. Retention does not count the `active` jobs. */
bool flush_step(struct flush *flush, uint64_t upto, size_t active, int64_t now_ms,
                int64_t purge_rows, bool *ret_purge_more);

#endif
