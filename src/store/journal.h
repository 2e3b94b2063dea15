/* The writer's side of store.db: what the ledger decides is written here at once, inside one
 * transaction that is committed when the whole batch was applied. Reads see what was written before
 * in the same batch. Used by the store thread only.
 *
 * A failure is sticky: from then on nothing is written or found, and journal_commit says so; the
 * ledger is thrown away and built anew from the file. */
#ifndef STORE_JOURNAL_H
#define STORE_JOURNAL_H

#include "store/fault.h"
#include "store/ledger.h"
#include "store/storefile.h"

#include <sqlite3.h>

enum journal_sql {
    SQL_BEGIN,
    SQL_COMMIT,
    SQL_JOB_ADD,
    SQL_JOB_STEP,
    SQL_JOB_END,
    SQL_JOB_CALLBACK,
    SQL_JOB_FIRST_NODE,
    SQL_JOB_ANSWERED,
    SQL_JOB_DROP_KEY,
    SQL_JOB_DEL,
    SQL_JOB_FIND,
    SQL_JOB_RECORD,
    SQL_JOB_KEY,
    SQL_JOB_ACTIVE,
    SQL_JOB_OLDEST,
    SQL_JOB_NEWEST,
    SQL_BULK_ADD,
    SQL_BULK_DEL,
    SQL_NODE_PUT,
    SQL_NODE_DEL,
    SQL_NODE_ALL,
    SQL_BREAKER_PUT,
    SQL_BREAKER_DEL,
    SQL_BREAKER_ALL,
    SQL_SESSION_PUT,
    SQL_SESSION_FIND,
    SQL_SESSION_OLDEST,
    SQL_SESSION_DEL,
    SQL_META_GET,
    SQL_META_PUT,
    SQL_COUNT_SINCE,
    JOURNAL_SQL_COUNT
};

struct journal {
    sqlite3 *db; /* NULL: not open */
    sqlite3_stmt *sql[JOURNAL_SQL_COUNT];
    struct fault fault;
    bool writing;  /* a transaction is open */
    int wal_pages; /* in the WAL after the last commit */
    /* Kept in the meta row, which is written now and then: after a crash the rows behind max_id are
     * counted again. */
    uint64_t floor; /* no active job has a smaller id */
    uint64_t max_id;
    int64_t row_count;
    int64_t added;         /* rows in this batch */
    int64_t added_unsaved; /* since the meta row was written */
    int64_t session_max;   /* the newest seq */
    /* Of a job in a lane the row tells the end of its time to wait less this: a pause, or a clock
     * that was set, moves all of them with one write. */
    int64_t wait_shift_ms;
};

struct journal_key { /* what an Idempotency-Key led to */
    uint64_t job;
    uint64_t fingerprint;
    char first_node[NODE_ID_MAX + 1]; /* of attempt 1; "" when it was put, not reserved */
};

struct journal_old { /* a row as retention sees it */
    uint64_t id;
    bool finished; /* final, without a lease and without a pending callback */
    bool bulky;
    int64_t created_ms;
    int64_t updated_ms;
};

bool journal_open(struct journal *journal, const struct storefile *file);
void journal_close(struct journal *journal);
/* True: everything since the last one is on disk (also when there was nothing). */
enum err journal_commit(struct journal *journal);
/* Writes and syncs something that changes nothing. */
bool journal_probe(struct journal *journal);
bool journal_failed(const struct journal *journal);

void journal_job_add(struct journal *journal, const struct entry *entry, const struct store_op *op);
void journal_job_step(struct journal *journal, const struct entry *entry); /* it went on */
/* An attempt ended, or the job. Only one that became final has a result. */
void journal_job_end(struct journal *journal, const struct entry *entry, struct str result);
void journal_job_callback(struct journal *journal, const struct entry *entry);
void journal_job_first_node(struct journal *journal, const struct entry *entry);
void journal_job_answered(struct journal *journal, uint64_t id);
void journal_job_drop_key(struct journal *journal, uint64_t id);
void journal_job_del(struct journal *journal, const struct journal_old *old);
bool journal_job_find(struct journal *journal, uint64_t id, struct entry *entry);
bool journal_job_record(struct journal *journal, uint64_t id, struct arena *arena,
                        struct store_record *ret_record);
bool journal_key_find(struct journal *journal, struct str key, struct journal_key *ret_key);
/* One active row after the other, with no order to rely on; false at the end. */
bool journal_job_active(struct journal *journal, struct entry *entry);
/* The row with the smallest id larger than `after`. */
bool journal_job_oldest(struct journal *journal, uint64_t after, struct journal_old *ret_old);

void journal_node_put(struct journal *journal, const struct holder *holder);
void journal_node_del(struct journal *journal, struct str id);
/* One after the other; false at the end. The texts live until the next call. */
bool journal_node_next(struct journal *journal, struct store_node *ret_node);

struct journal_breaker {
    struct str node; /* borrowed, both */
    struct str type;
    struct breaker breaker;
    uint64_t probe_job; /* whose lease is the probe; 0: none was out */
};
void journal_breaker_put(struct journal *journal, const struct gate *gate);
void journal_breaker_del(struct journal *journal, const struct gate *gate);
/* One after the other; false at the end. The texts live until the next call. */
bool journal_breaker_next(struct journal *journal, struct journal_breaker *ret_breaker);

struct journal_session {
    struct str id; /* borrowed, all three */
    struct str pool;
    struct str lang_pair;
    int64_t version;
    int64_t updated_ms;
};
void journal_session_put(struct journal *journal, const struct journal_session *session);
/* Takes over version and time of the stored one; *ret_same: its pool and pair are these. */
bool journal_session_find(struct journal *journal, struct journal_session *session, bool *ret_same);
bool journal_session_oldest(struct journal *journal, int64_t *ret_seq, int64_t *ret_updated_ms);
void journal_session_del(struct journal *journal, int64_t seq);

/* Every end of a time to wait is so much later. */
void journal_shift_waits(struct journal *journal, int64_t ms);
/* The smallest id of an active job, found by the audit. Written when it is worth a row. */
void journal_floor(struct journal *journal, uint64_t floor);
/* Copies what is left of the WAL into the main file, without waiting for anybody: with nobody
 * reading, the next write starts the WAL from its beginning. */
bool journal_checkpoint(struct journal *journal);

#endif
