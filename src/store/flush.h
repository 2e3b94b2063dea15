/* Flushing copies journal.log into store.db, many batches per transaction, so a job that began and
 * ended in between is written once, in its final state. Like a start after a crash, it reads only
 * the journal and depends on nothing in memory. Flush thread only. */
#ifndef STORE_FLUSH_H
#define STORE_FLUSH_H

#include "base/map.h"
#include "base/mem.h"
#include "store/logfile.h"
#include "store/tables.h"

/* Retention: finished jobs and sessions leave when they are too old or too many, a few with each
 * batch and a few when nothing happens, never many at once. */

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

struct flush {
    const struct storefile *file;
    struct tables tables; /* opened when they are needed, closed after a failure */
    struct logfile log;
    struct purge purge;
    struct fault fault; /* the last failure */
    /* One transaction's. */
    struct arena arena;
    struct idmap jobs;         /* id -> struct change in `arena`, as the newest batch left it */
    struct change **job_order; /* the one that changed first is first: it may free a key */
    size_t job_count;
    uint64_t seq;  /* of the last batch read */
    int64_t bytes; /* that they take in the journal */
};

void flush_init(struct flush *flush, const struct storefile *file, int64_t retention_ms,
                int64_t jobs_max);
void flush_close(struct flush *flush, bool after_fault);
/* Runs one transaction: the journal up to `upto`, or as much as fits, and expired rows. False: it
 * failed and nothing of it was applied. Retention does not count the `active` jobs. */
bool flush_step(struct flush *flush, uint64_t upto, size_t active, int64_t now_ms,
                int64_t purge_rows, bool *ret_purge_more);

#endif
