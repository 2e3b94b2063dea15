/* Walks the oldest rows. Ids are in the order of time, so it ends at the first row that was created
 * too late to be too old. */
#include "store/purge.h"

#include "store/sessions.h"

#include <assert.h>

void purge_init(struct purge *purge, int64_t retention_ms, int64_t jobs_max)
{
    *purge = (struct purge){.retention_ms = retention_ms > 0 ? retention_ms : 0,
                            .jobs_max = jobs_max > 0 ? jobs_max : 0};
    /* Never so few that one the ledger remembers as written is gone. */
    purge->sessions_max = jobs_max > 2 * SESSIONS_KEPT_MAX ? jobs_max : 2 * SESSIONS_KEPT_MAX;
}

static bool too_many(const struct purge *purge, const struct tables *tables, size_t active)
{
    return purge->jobs_max && tables->row_count - (int64_t)active > purge->jobs_max;
}

static bool too_old(const struct purge *purge, int64_t at_ms, int64_t now_ms)
{
    return purge->retention_ms && now_ms - at_ms > purge->retention_ms;
}

static void end_round(struct purge *purge, int64_t look_ms)
{
    purge->at = 0;
    purge->look_ms = look_ms;
}

static bool purge_jobs(struct purge *purge, struct tables *tables, size_t active, int64_t now_ms,
                       int64_t budget)
{
    struct tables_old old;

    while (budget-- > 0) {
        bool crowded = too_many(purge, tables, active);

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

bool purge_step(struct purge *purge, struct tables *tables, size_t active, int64_t now_ms,
                int64_t budget)
{
    bool more = purge_jobs(purge, tables, active, now_ms, budget);

    assert(budget > 0);
    return purge_sessions(purge, tables, now_ms, budget) || more;
}
