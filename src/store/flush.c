/* Copies journal.log into store.db, with the statements that write it; and retention, which walks
 * the oldest rows. Ids are in order of time, so it stops at the first row created too late to be
 * expired. */
#include "store/flush.h"

#include <assert.h>
#include <stdlib.h>

#include "base/map.h"
#include "base/mem.h"
#include "store/change.h"
#include "store/sessions.h"
#include "store/tables.h"

/* --- retention --- */

static bool too_old(const struct purge *purge, int64_t at_ms, int64_t now_ms)
{
    return purge->retention_ms && now_ms - at_ms > purge->retention_ms;
}

static void end_round(struct purge *purge, int64_t look_ms)
{
    purge->at = 0;
    purge->look_ms = look_ms;
}

/* Both look at up to `budget` rows, inside the transaction of the tables, and return true when
 * there is more to do. `active` of the jobs' rows do not count. */
static bool purge_jobs(struct purge *purge, struct tables *tables, size_t active, int64_t now_ms,
                       int64_t budget)
{
    struct tables_old old;

    while (budget-- > 0) {
        bool crowded = purge->jobs_max && tables->row_count - (int64_t)active > purge->jobs_max;

        if (!crowded && (!purge->retention_ms || now_ms < purge->look_ms))
            return false;
        if (!tables_job_oldest(tables, purge->at, &old)) {
            /* All others are active or wait for a callback: look again later. */
            end_round(purge, now_ms + 1000);
            return false;
        }
        if (!crowded && !too_old(purge, old.created_ms, now_ms)) {
            end_round(purge, old.created_ms + purge->retention_ms + 1);
            return false;
        }
        if (old.finished && (crowded || too_old(purge, old.updated_ms, now_ms)))
            tables_job_del(tables, &old);
        purge->at = old.id;
    }
    return true;
}

static bool purge_sessions(struct purge *purge, struct tables *tables, int64_t now_ms,
                           int64_t budget)
{
    int64_t seq;
    int64_t updated_ms;

    while (budget-- > 0) {
        if (now_ms < purge->session_look_ms || !tables_session_oldest(tables, &seq, &updated_ms)) {
            purge->session_look_ms =
                now_ms < purge->session_look_ms ? purge->session_look_ms : now_ms + 1000;
            return false;
        }
        bool crowded = purge->jobs_max && tables->session_max - seq >= purge->sessions_max;
        if (!crowded && !too_old(purge, updated_ms, now_ms)) {
            purge->session_look_ms = now_ms + 1000;
            return false;
        }
        tables_session_del(tables, seq);
    }
    return true;
}

/* --- flushing --- */

enum { TABLES_WAL_PAGES = 4096 }; /* of 4 KiB: then the WAL of store.db is copied */

void flush_init(struct flush *flush, const struct storefile *file, int64_t retention_ms,
                int64_t jobs_max)
{
    *flush = (struct flush){
        .file = file,
        .purge = {.retention_ms = retention_ms > 0 ? retention_ms : 0,
                  .jobs_max = jobs_max > 0 ? jobs_max : 0,
                  /* Never so few that the ledger's sessions known as written are deleted. */
                  .sessions_max =
                      jobs_max > 2 * SESSIONS_KEPT_MAX ? jobs_max : 2 * SESSIONS_KEPT_MAX}};
}

static void forget(struct flush *flush)
{
    idmap_free(&flush->jobs);
    arena_reset(&flush->arena);
    flush->job_count = 0;
    flush->bytes = 0;
}

void flush_close(struct flush *flush, bool after_fault)
{
    logfile_close(&flush->log);
    if (after_fault && !tables_failed(&flush->tables))
        flush->tables.fault = flush->fault;
    tables_close(&flush->tables);
    forget(flush);
    arena_free(&flush->arena);
    free(flush->job_order);
    flush->job_order = NULL;
}

static void take_job(struct flush *flush, const struct change *change)
{
    struct change *known = idmap_get(&flush->jobs, change->u.job.head.id);

    if (known) {
        change_job_merge(&known->u.job, &change->u.job);
        return;
    }
    known = arena_raw(&flush->arena, sizeof *known);
    *known = *change;
    idmap_put(&flush->jobs, change->u.job.head.id, known);
    if (flush->job_count >= FLUSH_JOBS && !(flush->job_count & (flush->job_count - 1)))
        flush->job_order =
            mem_resize(flush->job_order, 2 * flush->job_count * sizeof *flush->job_order);
    flush->job_order[flush->job_count++] = known;
}

static bool read_batches(struct flush *flush, uint64_t upto)
{
    flush->seq = flush->tables.seq;
    while (flush->seq < upto && flush->bytes < FLUSH_BYTES && flush->job_count < FLUSH_JOBS) {
        struct batch batch = {.seq = flush->seq + 1};
        int64_t size;

        if (!logfile_read(&flush->log, batch.seq, &flush->arena, &batch.changes, &size)) {
            flush->fault = flush->log.fault;
            return false;
        }
        for (struct change change; batch.changes.len;) {
            if (!change_read(&batch.changes, &change)) {
                batch_damaged(&batch, &flush->fault);
                return false;
            }
            if (change.kind == CHANGE_JOB)
                take_job(flush, &change);
            else
                tables_put(&flush->tables, &change);
        }
        flush->seq = batch.seq;
        flush->bytes += size;
    }
    return true;
}

bool flush_step(struct flush *flush, uint64_t upto, size_t active, int64_t now_ms,
                int64_t purge_rows, bool *ret_purge_more)
{
    struct tables *tables = &flush->tables;
    int64_t budget;

    *ret_purge_more = false;
    forget(flush);
    if (!tables->db && !tables_open(tables, flush->file)) {
        flush->fault = tables->fault;
        goto fail;
    }
    if (!flush->log.file && !logfile_open(&flush->log, flush->file->journal, false)) {
        flush->fault = flush->log.fault;
        goto fail;
    }
    if (!flush->job_order)
        flush->job_order = mem_array(struct change *, FLUSH_JOBS);
    /* Before the transaction, not after it: whether the WAL can be copied says nothing about what
     * is in. */
    if (tables->wal_pages >= TABLES_WAL_PAGES && !tables_checkpoint(tables)) {
        flush->fault = tables->fault;
        goto fail;
    }
    if (!read_batches(flush, upto))
        goto fail;
    for (size_t i = 0; i < flush->job_count; i++)
        tables_put(tables, flush->job_order[i]);
    budget = purge_rows + 2 * tables->added;
    assert(budget > 0);
    *ret_purge_more = purge_jobs(&flush->purge, tables, active, now_ms, budget);
    *ret_purge_more |= purge_sessions(&flush->purge, tables, now_ms, budget);
    if (tables_commit(tables, flush->seq))
        return true;
    flush->fault = tables->fault;
fail:
    flush_close(flush, true);
    return false;
}
