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

void copy_words(struct str text, char words[COPY_WORDS_MAX])
{
    size_t len = 0;

    while (text.len > 0) {
        size_t one = str_utf8_len(text);
        bool ok = one > 0 && str_is_text((struct str){.at = text.at, .len = one});

        if (len + (ok ? one : 1) >= COPY_WORDS_MAX)
            break;
        if (ok)
            memcpy(words + len, text.at, one);
        else
            words[len] = ' ';
        len += ok ? one : 1;
        one = one > 0 ? one : 1;
        text.at += one;
        text.len -= one;
    }
    words[len] = 0;
}

void copy_log(const struct copy *copy, enum log_level level, const char *event, const char *reason)
{
    log_event(level, event, KS("deployment_id", copy->id), KS("node_id", copy->copies->node_id),
              KI("generation", copy->run ? copy->run_generation : copy->generation),
              KI("version", copy->run ? copy->run_version : copy->version), KC("reason", reason));
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
    arena_free(&copy->old_arena);
    arena_free(&copy->id_arena);
    free(copy);
}

void *copies_user(const struct copies *copies)
{
    return copies->user;
}

size_t copies_count(const struct copies *copies)
{
    size_t count = 0;

    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        count += !copy->daemon && copy_over(copy) == COPY_NOT_OVER;
    return count;
}

struct str copies_first_owned(const struct copies *copies)
{
    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        if (!copy->daemon && copy->wanted && !copy->held)
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
                                         .daemon = next->daemon,
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
        return "refused"; /* its reason says more */
    if (copy_over(copy) != COPY_NOT_OVER && !copy->run)
        return copy_over(copy) == COPY_FINISHED ? "finished" : "failed";
    if (copy->looping && copy->state != COPY_STOPPING)
        return "crash_loop"; /* also while it runs once more: until it is stable */
    if (copy->state == COPY_WAITING && copy->failures > 0)
        return "backoff";
    if (copy->state == COPY_RUNNING && copy->check.failures > 0)
        return "unhealthy";
    if (copy_changed(copy) && copy->state != COPY_STOPPING)
        return "updating"; /* the version before the one that is wanted */
    return copy->state == COPY_WAITING ? "stopped" : copy_state_name(copy->state);
}

static void write_health(const struct copy *copy, struct jsonw *w)
{
    if (copy_health(copy) == COPY_UNKNOWN)
        jsonw_knull(w, "healthy");
    else
        jsonw_kbool(w, "healthy", copy_health(copy) == COPY_WELL);
}

/* Why it is as it is; of one that runs and is as it should be, why the one before it ended. */
static struct str told_reason(const struct copy *copy)
{
    const char *words = copy->wrong[0]                                         ? copy->wrong
                        : copy->killed                                         ? copy->killed_why
                        : copy->run && copy->check.failures > 0                ? copy->unwell
                        : copy_changed(copy) || copy->state == COPY_INSTALLING ? copy->waits
                                                                               : copy->ended;

    return *words ? str_of(words) : STR_NONE;
}

/* Limits that nobody keeps to are worse than none, so it is told which those are. */
static void write_limits(const struct copy *copy, struct jsonw *w)
{
    const struct deploy_spec *spec = copy->run ? copy_spec_of_run(copy) : &copy->spec;
    struct run_limits_offered offered;
    struct buf text = {0};
    char words[COPY_WORDS_MAX];

    if (!spec || !(spec->limits.memory_mb || spec->limits.cpu_percent || spec->limits.pids ||
                   spec->limits.disk_mb))
        return;
    runs_offered(copy->copies->runs, &offered);
    if (spec->limits.memory_mb && !offered.memory)
        buf_str(&text, STR(", memory_mb"));
    if (spec->limits.cpu_percent && !offered.cpu)
        buf_str(&text, STR(", cpu_percent"));
    if (spec->limits.pids && !offered.pids)
        buf_str(&text, STR(", pids"));
    if (text.len > 0) {
        struct buf all = {0};

        buf_fmt(&all, "not enforced: %.*s (%s)", (int)text.len - 2, text.at + 2, offered.missing);
        copy_words(buf_view(&all), words);
        buf_free(&all);
    }
    jsonw_kstr(w, "limits", text.len > 0 ? str_of(words) : STR("enforced"));
    buf_free(&text);
}

static void write_copy(struct copy *copy, int64_t now_ms, struct jsonw *w)
{
    const struct copies *copies = copy->copies;
    const struct run_exit *exit = copy->last ? &copy->last->exit : NULL;

    jsonw_obj(w);
    jsonw_kstr(w, "id", copy->id);
    jsonw_kint(w, "generation", copy->run ? copy->run_generation : copy->generation);
    jsonw_kint(w, "version", copy->run ? copy->run_version : copy->version);
    /* Only an answer to this very status counts: that to one before it may have been lost. */
    copy->asked_version = copy->asks ? copy->version : 0;
    if (copy->asks)
        jsonw_kint(w, "wants", copy->version);
    copy->asks = false;
    jsonw_kstr(w, "state", str_of(told_state(copy)));
    write_health(copy, w);
    if (copy->run && copy->run->pid)
        jsonw_kint(w, "pid", copy->run->pid);
    jsonw_kint(w, "restarts", copy->restarts);
    jsonw_kint(w, "since_ms", copies->loop->wall_ms - (now_ms - copy->since_ms));
    if (copy->state == COPY_WAITING && copy->next_ms > now_ms)
        jsonw_kint(w, "retry_ms", copy->next_ms - now_ms);
    jsonw_kstr(w, "reason", told_reason(copy));
    write_limits(copy, w);
    if (exit && exit->exit_code >= 0)
        jsonw_kint(w, "exit_code", exit->exit_code);
    if (exit && exit->signal >= 0)
        jsonw_kint(w, "signal", exit->signal);
    jsonw_end_obj(w);
}

size_t copies_write(struct copies *copies, size_t from, size_t max, struct jsonw *w)
{
    struct copy *copy = copies->first;
    size_t place = 0;

    for (; copy && place < from; copy = copy->next)
        place++;
    jsonw_arr(w);
    for (; copy && place < from + max; copy = copy->next, place++)
        write_copy(copy, copies->loop->mono_ms, w);
    jsonw_end_arr(w);
    return copy ? place : 0;
}

/* --- giving up --- */

void copies_hold(struct copies *copies, struct str id, enum copy_hold hold)
{
    static const char *const words[] = {
        [COPY_DRAINED] = "the node is drained",
        [COPY_UNMATCHED] = "its selector or its namespace does not match this node",
        [COPY_FAILING] = "it keeps failing here",
        [COPY_REFUSED] = "allow_deployments is false here"};
    struct copy *copy = copies_find(copies, id);

    assert(hold > COPY_KEPT && hold < COUNT_OF(words));
    if (!copy || copy->held == hold)
        return;
    copy->held = hold;
    str_copy(told_reason(copy), copy->failed, sizeof copy->failed); /* the end to come is ours */
    copy_log(copy, LOG_INFO, "copy.given_up", words[hold]);
}

void copies_keep(struct copies *copies, struct str id, enum copy_hold hold)
{
    for (struct copy *copy = copies->first; copy; copy = copy->next)
        if (copy->held == hold && (!id.at || str_eq(copy->id, id)))
            copy->held = COPY_KEPT;
}

bool copies_next_held(const struct copies *copies, struct copy_held *ret_held)
{
    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        if (copy->held && copy->wanted && !copy->run) {
            *ret_held = (struct copy_held){.id = copy->id,
                                           .generation = copy->generation,
                                           .version = copy->version,
                                           .hold = copy->held,
                                           .reason = str_of(copy->failed)};
            return true;
        }
    return false;
}

void copies_gave(struct copies *copies, struct str id)
{
    struct copy *copy = copies_find(copies, id);

    if (copy)
        copy->wanted = false;
}

size_t copies_holding(const struct copies *copies, enum copy_hold hold)
{
    size_t count = 0;

    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        count += copy->held == hold;
    return count;
}

int64_t copies_failures(const struct copies *copies, struct str id)
{
    const struct copy *copy = copies_find(copies, id);
    int64_t failures;

    if (!copy || !copy->wanted)
        return 0;
    if (copy->wrong[0] && !copy->run)
        return INT64_MAX; /* trying does not help */
    if (copy_changed(copy))
        return 0; /* what failed was another version */
    failures = copy->run || copy->state != COPY_INSTALLING
                   ? 0
                   : packages_failures(copies->packages, copy->spec.package_name,
                                       copy->spec.package_version);
    return failures > copy->failures ? failures : copy->failures;
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
