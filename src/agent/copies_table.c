/* The table of copies: coming, going, and looking. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/copies_private.h"
#include "base/log.h"
#include "base/mem.h"

static const char *const state_names[COPY_STATES] = {[COPY_WAITING] = "waiting",
                                                     [COPY_INSTALLING] = "installing",
                                                     [COPY_STARTING] = "starting",
                                                     [COPY_RUNNING] = "running",
                                                     [COPY_STOPPING] = "stopping"};

const char *copy_state_name(enum copy_state state)
{
    assert(state < COPY_STATES);
    return state_names[state];
}

void copy_log(const struct copy *copy, enum log_level level, const char *event, const char *reason)
{
    log_event(level, event, KS("deployment_id", copy->id), KS("node_id", copy->copies->node_id),
              KI("generation", copy->run ? copy->run_generation : copy->spec.generation),
              KI("version", copy->run ? copy->run_version : copy->spec.version),
              KC("reason", reason));
}

struct copy *copies_find(const struct copies *copies, struct str id)
{
    return map_get(&copies->by_id, id);
}

struct copy *copies_enter(struct copies *copies, struct str id)
{
    struct copy *copy = mem_new(struct copy);

    assert(id.len > 0 && !copies_find(copies, id));
    copy->copies = copies;
    copy->id = arena_str(&copy->id_arena, id);
    copy->prev = copies->last;
    if (copies->last)
        copies->last->next = copy;
    else
        copies->first = copy;
    copies->last = copy;
    map_put(&copies->by_id, copy->id, copy);
    return copy;
}

void copies_leave(struct copy *copy)
{
    struct copies *copies = copy->copies;

    assert(!copy->run && !copy->last && !copy->check.run && !copy->check.call);
    if (copies->turning == copy)
        copies->turning = NULL;
    if (copy->prev)
        copy->prev->next = copy->next;
    else
        copies->first = copy->next;
    if (copy->next)
        copy->next->prev = copy->prev;
    else
        copies->last = copy->prev;
    map_del(&copies->by_id, copy->id);
    arena_free(&copy->arena);
    arena_free(&copy->id_arena);
    free(copy);
}

void *copies_user(const struct copies *copies)
{
    return copies->user;
}

void copies_rank(struct copies *copies, size_t rank)
{
    copies->rank = rank;
}

size_t copies_count(const struct copies *copies)
{
    size_t count = 0;

    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        count += !copy->spec.daemon;
    return count;
}

bool copies_has(const struct copies *copies, struct str id)
{
    return copies_find(copies, id) != NULL;
}

struct str copies_first_owned(const struct copies *copies)
{
    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        if (!copy->spec.daemon && copy->wanted)
            return copy->id;
    return STR_NONE;
}

size_t copies_alive(const struct copies *copies)
{
    size_t count = 0;

    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        count += copy->run != NULL;
    return count;
}

struct copy *copies_next(const struct copies *copies, const struct copy *copy,
                         struct copy_alive *ret_alive)
{
    struct copy *next = copy ? copy->next : copies->first;

    while (next && !next->run)
        next = next->next;
    if (next)
        *ret_alive = (struct copy_alive){.id = next->id,
                                         .daemon = next->spec.daemon,
                                         .shim_pid = run_shim_pid(next->run),
                                         .since_ms = next->since_ms,
                                         .stopping = next->stopping};
    return next;
}

void copies_danger(struct copies *copies, bool danger)
{
    copies->danger = danger;
}

/* --- what others may know --- */

/* The words of PROTOCOL.md, which say more and less than ours. */
static const char *told_state(const struct copy *copy)
{
    if (copy->wrong[0] && !copy->run)
        return "stopped"; /* its reason says more */
    if (copy->looping && copy->state != COPY_STOPPING)
        return "crash_loop"; /* also while it runs once more: until it is stable */
    if (copy->state == COPY_WAITING && copy->failures > 0)
        return "backoff";
    if (copy->state == COPY_RUNNING && copy->check.failures > 0)
        return "unhealthy";
    return copy->state == COPY_WAITING ? "stopped" : copy_state_name(copy->state);
}

/* null: it has a check, and that has not said anything yet. */
static void write_health(const struct copy *copy, struct jsonw *w)
{
    bool silent = copy->known && copy_spec_checked(&copy->spec) && !copy->check.passed &&
                  copy->check.failures == 0;

    if (copy->state == COPY_RUNNING && silent)
        jsonw_knull(w, "healthy");
    else
        jsonw_kbool(w, "healthy", copy_well(copy));
}

static void write_last(const struct copy *copy, struct jsonw *w)
{
    const struct run_exit *exit = copy->last ? &copy->last->exit : NULL;

    jsonw_kstr(w, "reason",
               copy->wrong[0]        ? str_of(copy->wrong)
               : copy->killed_why[0] ? str_of(copy->killed_why)
               : exit                ? str_of(exit->detail)
                                     : STR_NONE);
    if (exit && exit->exit_code >= 0)
        jsonw_kint(w, "exit_code", exit->exit_code);
    if (exit && exit->signal >= 0)
        jsonw_kint(w, "signal", exit->signal);
}

void copies_write(const struct copies *copies, struct jsonw *w)
{
    int64_t now_ms = copies->loop->mono_ms;

    jsonw_arr(w);
    for (const struct copy *copy = copies->first; copy; copy = copy->next) {
        jsonw_obj(w);
        jsonw_kstr(w, "id", copy->id);
        jsonw_kint(w, "generation", copy->run ? copy->run_generation : copy->spec.generation);
        jsonw_kint(w, "version", copy->run ? copy->run_version : copy->spec.version);
        jsonw_kstr(w, "state", str_of(told_state(copy)));
        write_health(copy, w);
        if (copy->run && copy->run->pid)
            jsonw_kint(w, "pid", copy->run->pid);
        jsonw_kint(w, "restarts", copy->restarts);
        jsonw_kint(w, "since_ms", copies->loop->wall_ms - (now_ms - copy->since_ms));
        if (copy->state == COPY_WAITING && copy->next_ms > now_ms)
            jsonw_kint(w, "retry_ms", copy->next_ms - now_ms);
        write_last(copy, w);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
}

enum err copies_log(const struct copies *copies, struct str id, bool previous, int64_t offset,
                    size_t max, struct buf *out, int64_t *ret_offset, int64_t *ret_total,
                    bool *ret_ended)
{
    struct copy *copy = copies_find(copies, id);
    struct run *run = !copy ? NULL : previous || !copy->run ? copy->last : copy->run;

    /* Nothing ever ran: then what it waits for is of interest. */
    if (copy && !run && !previous && copy->known)
        run = packages_run(copies->packages, copy->spec.package_name, copy->spec.package_version);
    if (!run)
        return ERR_NOT_FOUND;
    *ret_ended = run->state == RUN_ENDED;
    return run_log(run, offset, max, out, ret_offset, ret_total);
}
