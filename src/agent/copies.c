/* How a copy goes from state to state. Level-triggered: every tick looks at what should be and what
 * is, so nothing is lost when a message, an agent or a process is. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/backoff.h"
#include "agent/copies_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define REASON_STOPPED   "STOPPED"
#define REASON_REPLACED  "REPLACED"
#define REASON_FENCED    "FENCED"
#define REASON_UNHEALTHY "UNHEALTHY"
#define REASON_EMERGENCY "EMERGENCY"

enum {
    CRASHES_MAX = 5,       /* in a row: a crash loop */
    SETTLE_MS = 1000,      /* a replaced copy runs for so long, then it is the next one's turn */
    ROLL_STEP_MS = 2000,   /* between two nodes that replace the same daemon */
    HTTP_CONNECTIONS = 64, /* for checks */
    KILLED_MIN_MS = 60 * 1000,         /* it was ended to save the machine: so long it rests, */
    KILLED_MAX_MS = 16 * 60 * 1000,    /* twice as long each time, */
    KILLED_FORGOTTEN_MS = 3600 * 1000, /* unless it ran for so long in between */
};

static void set_state(struct copy *copy, enum copy_state state)
{
    assert(state < COPY_STATES);
    if (copy->state == state)
        return;
    copy->state = state;
    copy->since_ms = copy->copies->loop->mono_ms;
    if (copy->copies->changed)
        copy->copies->changed(copy->copies);
}

/* --- the end --- */

void copy_stop(struct copy *copy, const char *reason, int64_t grace_ms)
{
    assert(copy->run);
    if (!copy->stopping)
        copy_log(copy, LOG_INFO, "copy.stopping", reason);
    copy->stopping = true;
    copy->unhealthy = copy->unhealthy || strcmp(reason, REASON_UNHEALTHY) == 0;
    set_state(copy, COPY_STOPPING);
    run_stop(copy->run, reason, grace_ms);
}

void copy_kill(struct copy *copy, struct str why, int64_t grace_ms)
{
    size_t len = why.len < sizeof copy->killed_why ? why.len : sizeof copy->killed_why - 1;

    assert(copy->run && !copy->stopping);
    copy->killed = true;
    memcpy(copy->killed_why, why.at, len);
    copy->killed_why[len] = 0;
    copy_stop(copy, REASON_EMERGENCY, grace_ms);
}

static int64_t killed_pause_ms(struct copy *copy, const struct run_exit *exit)
{
    if (exit->started_ms && exit->ended_ms - exit->started_ms >= KILLED_FORGOTTEN_MS)
        copy->kills = 0;
    return backoff_bound_ms(copy->kills++, KILLED_MIN_MS, KILLED_MAX_MS);
}

/* It is to run again, but not at once. */
static void failed(struct copy *copy, const char *reason, int64_t least_ms)
{
    struct copies *copies = copy->copies;
    const struct copy_restart *restart = &copy->spec.restart;
    int64_t min_ms = restart->min_ms ? restart->min_ms : copies->config->restart_min_ms;
    int64_t max_ms = restart->max_ms ? restart->max_ms : copies->config->restart_max_ms;
    int64_t pause_ms;

    assert(!copy->run);
    copy->failures++;
    pause_ms = backoff_ms(copy->failures, min_ms, max_ms > min_ms ? max_ms : min_ms, &copies->rnd);
    if (pause_ms < least_ms)
        pause_ms = least_ms;
    copy->next_ms = copies->loop->mono_ms + pause_ms;
    log_event(LOG_WARN, "copy.failed", KS("deployment_id", copy->id),
              KS("node_id", copies->node_id), KI("generation", copy->spec.generation),
              KC("reason", reason), KI("failures", copy->failures), KI("retry_ms", pause_ms));
    if (copy->failures == CRASHES_MAX) {
        copy->looping = true;
        copy_log(copy, LOG_ERROR, "copy.crash_loop", reason);
    }
    set_state(copy, COPY_WAITING);
}

static void keep_last(struct copy *copy, struct run *run)
{
    if (copy->last)
        run_forget(copy->last);
    copy->last = run;
}

static void on_started(struct run *run)
{
    struct copy *copy = run->user;

    assert(copy->run == run);
    copy_log(copy, LOG_INFO, "copy.started", "its process runs");
    if (copy->stopping)
        return;
    set_state(copy, COPY_RUNNING);
    copy_check_begin(copy);
}

static bool was_stable(const struct copy *copy)
{
    const struct copies *copies = copy->copies;

    return copy->state == COPY_RUNNING &&
           copies->loop->mono_ms - copy->since_ms >= copies->config->restart_stable_ms;
}

static void on_ended(struct run *run)
{
    struct copy *copy = run->user;
    bool killed = copy->killed, asked = copy->stopping && !copy->unhealthy && !killed;

    assert(copy->run == run && run->state == RUN_ENDED);
    copy_check_cancel(copy);
    copy_log(copy, LOG_INFO, "copy.ended", run->exit.detail);
    if (was_stable(copy))
        copy->failures = 0;
    copy->run = NULL;
    copy->stopping = copy->unhealthy = copy->killed = false;
    if (!killed)
        copy->killed_why[0] = 0;
    copy->restarts++;
    keep_last(copy, run);
    /* A fence that closed says nothing about the work: it goes on as soon as there is a lease. */
    if (asked || strcmp(run->exit.reason, "DEADLINE") == 0) {
        copy->next_ms = 0;
        set_state(copy, COPY_WAITING);
    } else if (killed) {
        failed(copy, copy->killed_why, killed_pause_ms(copy, &run->exit));
    } else {
        failed(copy, run->exit.detail, 0);
    }
}

const struct run_handler copies_run_handler = {.started = on_started, .ended = on_ended};

static void drop(struct copy *copy)
{
    assert(!copy->run);
    copy_check_cancel(copy);
    if (copy->last)
        run_forget(copy->last);
    copy->last = NULL;
    copy_log(copy, LOG_INFO, "copy.gone", "this node does not run it any more");
    copies_leave(copy);
}

/* --- the beginning --- */

static bool may_start(const struct copy *copy)
{
    const struct copies *copies = copy->copies;

    return copy->wanted && copy->known && !copy->wrong[0] && !copy->held && !copies->ending &&
           copies->loop->mono_ms >= copy->next_ms && !(copies->danger && copy->killed_why[0]) &&
           (copy->spec.daemon || clock_boot_ms() < copies->fence_ms);
}

static void begin(struct copy *copy)
{
    const struct copy_spec *spec = &copy->spec;
    struct problem why = {0};
    const char *dir;

    assert(!copy->run && copy->known && !copy->held);
    if (packages_need(copy->copies->packages, spec->package_name, spec->package_version, &dir) !=
        PACKAGE_READY) {
        set_state(copy, COPY_INSTALLING);
        return;
    }
    if (copy_start(copy, dir, &why)) {
        failed(copy, why.detail, 0);
        return;
    }
    copy->turn_ms = 0;
    set_state(copy, COPY_STARTING);
}

/* --- replacing --- */

static bool is_changed(const struct copy *copy)
{
    return copy->known && !copy->wrong[0] && copy->run &&
           (copy->run_generation != copy->spec.generation ||
            copy->run_version != copy->spec.version);
}

/* One after the other: the next is replaced when this one is well, or has shown that it is not. */
static void look_at_turning(struct copies *copies)
{
    struct copy *copy = copies->turning;
    int64_t age_ms;

    if (!copy)
        return;
    age_ms = copies->loop->mono_ms - copy->since_ms;
    if (copy->failures > 0 || !copy->wanted || copy->wrong[0] ||
        (!is_changed(copy) && copy_well(copy) && age_ms >= SETTLE_MS))
        copies->turning = NULL;
}

static bool is_its_turn(struct copy *copy)
{
    struct copies *copies = copy->copies;

    if (copy->run_generation != copy->spec.generation)
        return true; /* what runs is of an assignment that is over */
    if (!copy->turn_ms)
        copy->turn_ms =
            copies->loop->mono_ms + (copy->spec.daemon ? (int64_t)copies->rank * ROLL_STEP_MS : 0);
    if ((copies->turning && copies->turning != copy) || copies->loop->mono_ms < copy->turn_ms)
        return false;
    copies->turning = copy;
    return true;
}

/* --- every tick --- */

static void look_at_run(struct copy *copy)
{
    if (copy->stopping)
        return;
    if (copy->copies->ending || copy->held || (copy->copies->told && !copy->wanted))
        copy_stop(copy, REASON_STOPPED, -1);
    else if (is_changed(copy) && is_its_turn(copy))
        copy_stop(copy, REASON_REPLACED, -1);
    else if (copy->state == COPY_RUNNING) {
        if (copy->failures > 0 && was_stable(copy)) {
            copy->failures = 0;
            copy->looping = false;
        }
        copy_check_tick(copy);
    }
}

static void look_at(struct copy *copy)
{
    if (copy->run)
        look_at_run(copy);
    else if (copy->copies->told && !copy->wanted)
        drop(copy);
    else if (may_start(copy))
        begin(copy);
    else if (copy->state == COPY_INSTALLING)
        set_state(copy, COPY_WAITING);
}

static void look_at_all(struct copies *copies)
{
    look_at_turning(copies);
    for (struct copy *copy = copies->first, *next; copy; copy = next) {
        next = copy->next;
        look_at(copy);
    }
}

static void on_tick(struct loop_part *part)
{
    struct copies *copies = container_of(part, struct copies, part);

    look_at_all(copies);
    packages_trim(copies->packages, copies->told && clock_boot_ms() < copies->fence_ms);
}

/* --- what it is told --- */

void copies_round(struct copies *copies)
{
    copies->round++;
}

static void set_wrong(struct copy *copy, const struct problem *why)
{
    if (strcmp(copy->wrong, why->detail) == 0)
        return;
    snprintf(copy->wrong, sizeof copy->wrong, "%s", why->detail);
    copy_log(copy, LOG_ERROR, "copy.bad_spec", copy->wrong);
}

/* The spec moves into the copy, with its arena. */
static void set_spec(struct copy *copy, const struct copy_spec *spec, struct arena *arena)
{
    arena_free(&copy->arena);
    copy->arena = *arena;
    copy->spec = *spec;
    copy->known = true;
    copy->wrong[0] = 0;
    copy->turn_ms = 0;
    if (!copy->run) { /* somebody did something about it: no need to wait */
        copy->next_ms = 0;
        copy->failures = 0;
        copy->looping = false;
        copy->kills = 0;
        copy->killed_why[0] = 0;
    }
}

void copies_want(struct copies *copies, const struct json *row)
{
    struct arena arena = {0};
    struct copy_spec spec;
    struct problem why = {0};
    const struct json *own; /* a row of its own, that lives as long as the spec */
    enum err err = json_parse(arena_str(&arena, json_raw(row)), &arena, &own, &why);
    struct str id = err ? STR_NONE : json_str(json_get(own, "id"), &arena);
    struct copy *copy = NULL;

    if (!err)
        err = copy_spec_read(own, &arena, &spec, &why);
    if (id.len > 0 && id.len <= COPY_ID_MAX) {
        copy = copies_find(copies, id);
        if (!copy)
            copy = copies_enter(copies, id);
        copy->wanted = true;
        copy->round = copies->round;
    }
    if (err && copy)
        set_wrong(copy, &why);
    else if (copy && (!copy->known || copy->wrong[0] || spec.version != copy->spec.version ||
                      spec.generation != copy->spec.generation)) {
        set_spec(copy, &spec, &arena);
        return;
    }
    arena_free(&arena);
}

void copies_round_over(struct copies *copies)
{
    for (struct copy *copy = copies->first; copy; copy = copy->next)
        if (copy->round != copies->round)
            copy->wanted = false;
    copies->told = true;
    look_at_all(copies);
}

void copies_hold(struct copies *copies, struct str id)
{
    for (struct copy *copy = copies->first; copy; copy = copy->next)
        copy->held = id.at && str_eq(copy->id, id);
}

bool copies_held(const struct copies *copies, int64_t *ret_generation)
{
    for (const struct copy *copy = copies->first; copy; copy = copy->next)
        if (copy->held && !copy->run) {
            *ret_generation = copy->spec.generation;
            return true;
        }
    return false;
}

/* What passed is not prolonged: who was frozen over its deadline cannot know who runs it now. */
static void fence_one(struct copy *copy)
{
    int64_t deadline_ms = run_deadline_ms(copy->run);

    assert(copy->wanted && !copy->spec.daemon);
    if (deadline_ms && clock_boot_ms() >= deadline_ms)
        copy_stop(copy, REASON_FENCED, 0);
    else
        run_deadline(copy->run, copy->copies->fence_ms);
}

void copies_fence(struct copies *copies, int64_t until_boot_ms, int64_t grace_ms)
{
    assert(copies->told && until_boot_ms > 0 && grace_ms > 0);
    copies->fence_ms = until_boot_ms;
    copies->fence_grace_ms = grace_ms;
    for (struct copy *copy = copies->first; copy; copy = copy->next)
        if (copy->run && copy->wanted && !copy->spec.daemon &&
            copy->run_generation == copy->spec.generation)
            fence_one(copy);
    look_at_all(copies);
}

void copies_end(struct copies *copies)
{
    copies->ending = true;
    look_at_all(copies);
}

/* --- what was left --- */

static void adopt_copy(struct copies *copies, struct run *run, const struct copy_meta *meta)
{
    struct copy *copy = copies_find(copies, meta->id);

    if (!copy)
        copy = copies_enter(copies, meta->id);
    run->handler = &copies_run_handler;
    run->user = copy;
    if (run->state == RUN_ENDED) {
        keep_last(copy, run);
        return;
    }
    assert(!copy->run);
    copy->run = run;
    copy->run_generation = copy->spec.generation = meta->generation;
    copy->run_version = copy->spec.version = meta->version;
    copy->spec.daemon = meta->daemon;
    copy->stopping = run->state == RUN_STOPPING;
    copy->state = copy->stopping ? COPY_STOPPING : COPY_RUNNING;
    copy->since_ms = copies->loop->mono_ms;
    copy_log(copy, LOG_INFO, "copy.adopted", "it runs on");
    copy_check_begin(copy);
}

bool copies_adopt(struct copies *copies, struct run *run)
{
    struct arena arena = {0};
    struct copy_meta meta;
    bool ours = copy_meta_read(run->meta, &arena, &meta);
    struct copy *there = ours ? copies_find(copies, meta.id) : NULL;

    if (ours && str_is(meta.kind, "health"))
        copy_check_adopt(run);
    else if (ours && there && there->run && run->state != RUN_ENDED)
        ours = false; /* two that live: a thing that never happens is somebody else's to tell */
    else if (ours)
        adopt_copy(copies, run, &meta);
    arena_free(&arena);
    return ours || packages_adopt(copies->packages, run);
}

/* --- all of it --- */

static void part_gone(struct loop_part *part)
{
    assert(!"copies_free comes before loop_done");
}

enum err copies_new(struct loop *loop, const struct copies_config *config, void *user,
                    struct copies **ret_copies, struct problem *why)
{
    struct copies *copies = mem_new(struct copies);

    if (client_new(loop, HTTP_CONNECTIONS, &copies->client) != ERR_OK) {
        free(copies);
        return problem_set(why, ERR_IO, "", "No HTTP client can be made.");
    }
    copies->loop = loop;
    copies->config = config->config;
    copies->node_id = config->node_id;
    copies->data_dir = config->data_dir;
    copies->runs = config->runs;
    copies->changed = config->changed;
    copies->user = user;
    copies->packages = packages_new(loop, config->config, config->data_dir, config->runs);
    rnd_seed_os(&copies->rnd);
    copies->part = (struct loop_part){.tick = on_tick, .free = part_gone};
    loop_add_part(loop, &copies->part);
    *ret_copies = copies;
    return ERR_OK;
}

void copies_free(struct copies *copies)
{
    if (!copies)
        return;
    copies->freed = true;
    loop_remove_part(copies->loop, &copies->part);
    while (copies->first) {
        struct copy *copy = copies->first;

        copy_check_cancel(copy);
        copy->run = copy->last = NULL;
        copies_leave(copy);
    }
    client_free(copies->client);
    packages_free(copies->packages);
    map_free(&copies->by_id);
    free(copies);
}
