/* The tables of store.db, written: what the journal tells goes in here, in transactions that also
 * say how far the journal has been brought in; and what is too old goes out. Used by the flush
 * thread only.
 *
 * A failure is sticky: from then on nothing is written or found, and tables_commit says so. Whoever
 * opens them anew finds how far the last transaction that counts came. */
#ifndef STORE_TABLES_H
#define STORE_TABLES_H

#include "store/change.h"
#include "store/fault.h"
#include "store/storefile.h"

#include <sqlite3.h>

enum tables_sql {
    TABLES_BEGIN,
    TABLES_COMMIT,
    TABLES_JOB_ADD,
    TABLES_JOB_STEP,
    TABLES_JOB_RESULT,
    TABLES_JOB_FIRST_NODE,
    TABLES_JOB_DROP_KEY,
    TABLES_JOB_DEL,
    TABLES_JOB_OLDEST,
    TABLES_JOB_NEWEST,
    TABLES_BULK_ADD,
    TABLES_BULK_DEL,
    TABLES_NODE_PUT,
    TABLES_NODE_DEL,
    TABLES_BREAKER_PUT,
    TABLES_BREAKER_DEL,
    TABLES_SESSION_PUT,
    TABLES_SESSION_OLDEST,
    TABLES_SESSION_DEL,
    TABLES_LIMIT_PUT,
    TABLES_LIMIT_DEL,
    TABLES_LIMIT_KEY_PUT,
    TABLES_LIMIT_KEY_DEL,
    TABLES_META_GET,
    TABLES_META_PUT,
    TABLES_COUNT_SINCE,
    TABLES_SQL_COUNT
};

struct tables {
    sqlite3 *db; /* NULL: not open */
    sqlite3_stmt *sql[TABLES_SQL_COUNT];
    struct fault fault;
    bool writing;  /* a transaction is open */
    int wal_pages; /* in the WAL after the last commit; 0: it was copied since */
    int64_t added; /* jobs in this transaction */
    int64_t session_max;
    /* The meta row, written with every transaction. */
    struct change_meta meta;
    uint64_t seq; /* of the last batch that is in */
    uint64_t max_id;
    int64_t row_count;
};

struct tables_old { /* a job as retention sees it */
    uint64_t id;
    bool finished; /* final, without a lease and without a pending callback */
    bool bulky;
    int64_t created_ms;
    int64_t updated_ms;
};

bool tables_open(struct tables *tables, const struct storefile *file);
void tables_close(struct tables *tables);
bool tables_failed(const struct tables *tables);
/* The first write opens a transaction, so that having nothing to write costs no fsync. */
void tables_put(struct tables *tables, const struct change *change);
/* Everything up to batch `seq` is in. True: and on disk. */
bool tables_commit(struct tables *tables, uint64_t seq);
/* Copies the WAL into the main file as far as no reader needs it. */
bool tables_checkpoint(struct tables *tables);

/* The job with the smallest id larger than `after`. */
bool tables_job_oldest(struct tables *tables, uint64_t after, struct tables_old *ret_old);
void tables_job_del(struct tables *tables, const struct tables_old *old);
bool tables_session_oldest(struct tables *tables, int64_t *ret_seq, int64_t *ret_updated_ms);
void tables_session_del(struct tables *tables, int64_t seq);

#endif
