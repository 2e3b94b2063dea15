/* The journal: it collects the ledger's changes, and when the whole batch has been applied writes
 * them to journal.log as one record with one sync. Changes not yet in store.db are in the memtable,
 * so reads see everything noted before, even in the same batch. Used by the store thread only;
 * flush.c copies the journal into store.db.
 *
 * A failure is sticky: from then on nothing is written or found, and journal_commit says so; the
 * ledger and the memtable are discarded and rebuilt from the files. */
#ifndef STORE_JOURNAL_H
#define STORE_JOURNAL_H

#include "store/fault.h"
#include "store/ledger.h"
#include "store/logfile.h"
#include "store/memtable.h"
#include "store/storefile.h"

#include <sqlite3.h>

enum journal_lookup { /* of store.db */
                      LOOKUP_JOB,
                      LOOKUP_RECORD,
                      LOOKUP_KEY,
                      LOOKUP_ACTIVE,
                      LOOKUP_NODES,
                      LOOKUP_BREAKERS,
                      LOOKUP_SESSION,
                      LOOKUP_LIMITS,
                      LOOKUP_LIMIT_KEYS,
                      LOOKUP_META,
                      LOOKUP_COUNT
};

struct journal {
    struct logfile log; /* journal.log */
    sqlite3 *tables;    /* store.db, read-only here; NULL: not open */
    sqlite3_stmt *lookups[LOOKUP_COUNT];
    struct memtable rows;
    struct fault fault;
    bool writing; /* something was noted since the last commit */
    struct buf batch;
    size_t rows_at;       /* position of a walk over the memtable */
    uint64_t seq;         /* of the last batch on disk */
    uint64_t flushed_seq; /* store.db has everything up to this one */
    int64_t bytes;        /* of the batches not yet in store.db */
    uint64_t max_id;      /* of a job */
    uint64_t floor;       /* no active job has a smaller id */
    /* For a job in a lane, the row stores the end of its queue timeout less this: after a pause or
     * a clock step one write moves them all. */
    int64_t wait_shift_ms;
    bool meta_changed; /* floor or wait_shift_ms changed since they were last written */
};

struct journal_job { /* a job's state */
    struct store_head head;
    int64_t run_until_ms;
    bool keyed; /* its row has an Idempotency-Key and was made by a reserve */
    bool answered;
    struct buf attempts; /* owned by the caller, reused from call to call */
    struct str
        spec; /* spec and demand: only from journal_job_active(), valid until its next call */
    struct str demand;
};

struct journal_key { /* the job behind an Idempotency-Key */
    uint64_t job;
    uint64_t fingerprint;
    char first_node[NODE_ID_MAX + 1]; /* of attempt 1; "" if the job was put, not reserved */
};

/* Reads what store.db lacks into the memtable; after that reads are possible. Batches after `upto`
 * are skipped: this process has already reported them as failed. */
bool journal_open(struct journal *journal, const struct storefile *file, uint64_t upto);
/* Makes sure that what was read is on disk; after that commits are possible. */
bool journal_settle(struct journal *journal);
void journal_close(struct journal *journal);
/* ERR_OK: everything since the last commit is on disk (even if there was nothing). */
enum err journal_commit(struct journal *journal);
/* Tests the disk: writes and syncs a record that changes nothing. */
bool journal_probe(struct journal *journal);
bool journal_failed(const struct journal *journal);
/* store.db has everything up to `seq`; those batches took `bytes`. */
void journal_flushed(struct journal *journal, uint64_t seq, int64_t bytes);
/* Frees rows that store.db has; true: there are more. */
bool journal_release(struct journal *journal);
/* store.db has everything: empties journal.log, so that the previous release can use store.db. */
bool journal_retire(struct journal *journal);

void journal_job_add(struct journal *journal, const struct ledger_job *entry,
                     const struct store_op *op);
/* The job made a step; CHANGE_FIRST_NODE: with its first node, CHANGE_KEY_DROPPED: its key is free
 * again. */
void journal_job_step(struct journal *journal, const struct ledger_job *entry, unsigned parts);
/* An attempt or the job ended. Only a job that became final has a result. */
void journal_job_end(struct journal *journal, const struct ledger_job *entry, struct str result);
bool journal_job_find(struct journal *journal, uint64_t id, struct journal_job *ret_job);
bool journal_job_record(struct journal *journal, uint64_t id, struct arena *arena,
                        struct store_record *ret_record);
bool journal_key_find(struct journal *journal, struct str key, struct journal_key *ret_key);
/* Iterates over the active rows in no particular order; false at the end. */
bool journal_job_active(struct journal *journal, struct journal_job *ret_job);

/* Writes a row of any kind but a job. */
void journal_put(struct journal *journal, const struct change *change);
/* Iterates over the rows of nodes, breakers, rules or keys; false at the end. The texts are valid
 * until the next call. */
bool journal_next(struct journal *journal, enum change_kind kind, struct change *ret_change);
/* Copies version and time from the stored session; *ret_same: its pool and pair are the same. */
bool journal_session_find(struct journal *journal, struct change_session *session, bool *ret_same);

/* Moves every end of a queue timeout, hold and window of starts by `ms`. */
void journal_shift_waits(struct journal *journal, int64_t ms);
/* Sets the smallest id of an active job, as found by the audit. Written with the next batch. */
void journal_floor(struct journal *journal, uint64_t floor);

#endif
