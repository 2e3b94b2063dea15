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
#define REASON_EMERGENCY "EMERGENCY"

enum {
    CRASHES_MAX = 5,                   /* in a row: a crash loop */
    ASK_MS = 1000,                     /* so often a daemon asks whether it is its node's turn */
    HTTP_CONNECTIONS = 64,             /* for checks */
    KILLED_MIN_MS = 60 * 1000,         /* it was ended to save the machine: so long it rests, */
    KILLED_MAX_MS = 16 * 60 * 1000,    /* twice as long each time, */
    KILLED_FORGOTTEN_MS = 3600 * 1000, /* unless it ran for so long in between */
};

static void changed(const struct copy *copy)
{
    if (copy->copies->changed)
        copy->copies->changed(copy->copies);
}

static void set_state(struct copy *copy, enum copy_state state)
{
    assert(state < COPY_STATES);
    if (copy->state == state)
        return;
    copy->state = state;
    copy->since_ms = copy->copies->loop->mono_ms;
    changed(copy);
}

/* Why it is not as it should be; told when it is another than before. */
static void set_words(struct copy *copy, char words[COPY_WORDS_MAX], const char *text)
{
    char cut[COPY_WORDS_MAX];

    copy_words(str_of(text), cut);
    if (strcmp(words, cut) == 0)
        return;
    memcpy(words, cut, sizeof cut);
    changed(copy);
}

/* --- the end --- */

void copy_stop(struct copy *copy, const char *reason, int64_t grace_ms)
{
    assert(copy->run);
    if (!copy->stopping)
        copy_log(copy, LOG_INFO, "copy.stopping", reason);
    copy->stopping = true;
    copy->unhealthy = copy->unhealthy || strcmp(reason, COPY_UNHEALTHY) == 0;
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
    const struct deploy_restart *restart = &copy->spec.restart;
    int64_t min_ms = restart->min_ms ? restart->min_ms : copies->config->restart_min_ms;
    int64_t max_ms = restart->max_ms ? restart->max_ms : copies->config->restart_max_ms;
    int64_t pause_ms;

    assert(!copy->run);
    copy->failures++;
    set_words(copy, copy->ended, reason);
    pause_ms = backoff_ms(copy->failures, min_ms, max_ms > min_ms ? max_ms : min_ms, &copies->rnd);
    if (pause_ms < least_ms)
        pause_ms = least_ms;
    copy->next_ms = copies->loop->mono_ms + pause_ms;
    log_event(LOG_WARN, "copy.failed", KS("deployment_id", copy->id),
              KS("node_id", copies->node_id), KI("generation", copy->generation),
              KC("reason", reason), KI("failures", copy->failures), KI("retry_ms", pause_ms));
    if (copy->failures == CRASHES_MAX) {
        copy->looping = true;
        copy_log(copy, LOG_ERROR, "copy.crash_loop", reason);
    }
    set_state(copy, COPY_WAITING);
}

/* Did a run end by itself? What berth ended (a lost lease, a drain, an update, an emergency) is
 * started again whatever the policy says. */
static bool ended_by_itself(const struct run_exit *exit)
{
    static const char *const reasons[] = {"EXITED",       "SIGNALLED", "OOM",         "DISK_LIMIT",
                                          "START_FAILED", "SHIM_LOST", COPY_UNHEALTHY};

    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (strcmp(exit->reason, reasons[i]) == 0)
            return true;
    return false;
}

/* What the policy makes of an end. */
static enum copy_end judge_end(const struct deploy_spec *spec, const struct run_exit *exit)
{
    bool good = strcmp(exit->reason, "EXITED") == 0 && exit->exit_code == 0;

    if (spec->restart.policy == DEPLOY_ALWAYS || !ended_by_itself(exit))
        return COPY_NOT_OVER;
    if (good)
        return COPY_FINISHED;
    return spec->restart.policy == DEPLOY_NEVER ? COPY_FAILED : COPY_NOT_OVER;
}

enum copy_end copy_over(const struct copy *copy)
{
    return copy->over_version == copy->version ? copy->over : COPY_NOT_OVER;
}

static void set_over(struct copy *copy, enum copy_end over, int64_t version)
{
    assert(!copy->run && over != COPY_NOT_OVER);
    copy->over = over;
    copy->over_version = version;
    copy->failures = 0;
    copy->looping = false;
    set_state(copy, COPY_WAITING);
    changed(copy);
}

static void keep_last(struct copy *copy, struct run *run, int64_t version)
{
    if (copy->last)
        run_forget(copy->last);
    copy->last = run;
    copy->last_version = version;
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

bool copy_changed(const struct copy *copy)
{
    return copy->run &&
           (copy->run_generation != copy->generation || copy->run_version != copy->version);
}

static void on_ended(struct run *run)
{
    struct copy *copy = run->user;
    bool killed = copy->killed, asked = copy->stopping && !copy->unhealthy && !killed;
    bool replaced = copy_changed(copy);
    /* What its check said is of more use than that it was stopped for it. */
    const char *reason = killed            ? copy->killed_why
                         : copy->unhealthy ? copy->unwell
                                           : run->exit.detail;
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    enum copy_end over = spec ? judge_end(spec, &run->exit) : COPY_NOT_OVER;

    assert(copy->run == run && run->state == RUN_ENDED);
    copy_check_cancel(copy);
    copy_log(copy, LOG_INFO, "copy.ended", run->exit.detail);
    if (was_stable(copy) || replaced) /* a version is not to blame for the one before it */
        copy->failures = 0;
    copy->looping = copy->looping && !replaced;
    copy->run = NULL;
    if (!killed)
        copy->killed_why[0] = 0;
    copy->restarts += over == COPY_NOT_OVER;
    keep_last(copy, run, copy->run_version);
    arena_free(&copy->old_arena);
    copy->old_version = 0;
    /* A fence that closed says nothing about the work: it goes on as soon as there is a lease. */
    if (killed) {
        failed(copy, reason, killed_pause_ms(copy, &run->exit));
    } else if (asked || replaced || strcmp(run->exit.reason, "DEADLINE") == 0) {
        copy->next_ms = 0;
        set_words(copy, copy->ended, reason);
        set_state(copy, COPY_WAITING);
    } else if (over != COPY_NOT_OVER) {
        set_words(copy, copy->ended, reason);
        copy_log(copy, over == COPY_FINISHED ? LOG_INFO : LOG_WARN, "copy.over", reason);
        set_over(copy, over, copy->run_version);
    } else {
        failed(copy, reason, 0);
    }
    copy->stopping = copy->unhealthy = copy->killed = false;
    copy->unwell[0] = 0;
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
           copy_over(copy) == COPY_NOT_OVER && copies->loop->mono_ms >= copy->next_ms &&
           !(copies->danger && copy->killed_why[0]) &&
           (copy->daemon || clock_lease_ms() < copies->fence_ms);
}

/* Is all there that the version that is wanted now needs? */
static bool is_installed(struct copy *copy, const char **ret_dir)
{
    const struct deploy_spec *spec = &copy->spec;
    struct packages *packages = copy->copies->packages;
    enum package_state state =
        packages_need(packages, spec->package_name, spec->package_version, ret_dir);

    if (state != PACKAGE_READY)
        set_words(copy, copy->waits,
                  packages_reason(packages, spec->package_name, spec->package_version));
    return state == PACKAGE_READY;
}

static void begin(struct copy *copy)
{
    struct problem why = {0};
    const char *dir;

    assert(!copy->run && copy->known && !copy->held);
    if (!is_installed(copy, &dir)) {
        set_state(copy, COPY_INSTALLING);
        return;
    }
    if (copy_start(copy, dir, &why)) {
        failed(copy, why.detail, 0);
        return;
    }
    copy->waits[0] = 0;
    set_state(copy, COPY_STARTING);
}

/* --- replacing --- */

/* A daemon runs on many nodes, and a version that does not work should break only one: the server
 * says when this node's turn is. */
static bool is_its_turn(struct copy *copy)
{
    int64_t now_ms = copy->copies->loop->mono_ms;

    if (!copy->daemon || copy->turn_version == copy->version)
        return true;
    if (now_ms >= copy->ask_ms) {
        copy->ask_ms = now_ms + ASK_MS;
        copy->asks = true;
        changed(copy);
    }
    return false;
}

/* May what runs be stopped for what is wanted now? Not before that can be started: a version that
 * cannot be installed leaves the one before it running. */
static bool may_replace(struct copy *copy)
{
    struct problem why = {0};
    const char *dir;

    if (copy->run_generation != copy->generation)
        return true; /* what runs is of an assignment that is over */
    if (copy->wrong[0] || !is_installed(copy, &dir))
        return false;
    if (copy_startable(copy, dir, &why)) {
        set_words(copy, copy->waits, why.detail);
        return false;
    }
    return is_its_turn(copy);
}

/* --- every tick --- */

static void look_at_run(struct copy *copy)
{
    if (copy->stopping)
        return;
    if (copy->copies->ending || copy->held || (copy->copies->told && !copy->wanted))
        copy_stop(copy, REASON_STOPPED, -1);
    else if (copy_changed(copy) && may_replace(copy))
        copy_stop(copy, REASON_REPLACED, -1);
    else if (copy->state == COPY_RUNNING) {
        if (copy->failures > 0 && was_stable(copy)) {
            copy->failures = 0;
            copy->looping = false;
        }
        copy_check_tick(copy);
        if (copy->told_health != copy_health(copy)) {
            copy->told_health = copy_health(copy);
            changed(copy);
        }
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
    for (struct copy *copy = copies->first, *next; copy; copy = next) {
        next = copy->next;
        look_at(copy);
    }
}

static void on_tick(struct loop_part *part)
{
    struct copies *copies = container_of(part, struct copies, part);

    look_at_all(copies);
    packages_trim(copies->packages, copies->told && clock_lease_ms() < copies->fence_ms);
}

/* --- what it is told --- */

void copies_round(struct copies *copies)
{
    copies->round++;
}

static void set_wrong(struct copy *copy, const struct problem *why)
{
    char before[COPY_WORDS_MAX];

    memcpy(before, copy->wrong, sizeof before);
    set_words(copy, copy->wrong, why->detail);
    if (strcmp(before, copy->wrong) != 0)
        copy_log(copy, LOG_ERROR, "copy.bad_spec", copy->wrong);
}

/* The spec moves into the copy, with its arena. That of what runs is kept: its checks go on until
 * it is replaced. */
static void set_spec(struct copy *copy, const struct deploy_spec *spec, struct arena *arena)
{
    if (copy->run && copy->known && copy->spec_version == copy->run_version &&
        copy->spec_version != copy->version) {
        arena_free(&copy->old_arena);
        copy->old_arena = copy->arena;
        copy->old = copy->spec;
        copy->old_version = copy->spec_version;
    } else {
        arena_free(&copy->arena);
    }
    copy->arena = *arena;
    copy->spec = *spec;
    copy->spec_version = copy->version;
    copy->known = true;
    copy->wrong[0] = copy->waits[0] = 0;
    /* It may have come to its end while no agent looked. */
    if (!copy->run && copy->last && copy->last_version == copy->version &&
        judge_end(spec, &copy->last->exit) != COPY_NOT_OVER)
        set_over(copy, judge_end(spec, &copy->last->exit), copy->version);
}

/* What the server says of it. A row whose spec cannot be run has this all the same, so that the
 * refusal is told as that of this assignment. */
struct row {
    struct str id, type, ended;
    int64_t generation, version;
    const struct json *spec;
};

#define ROW_AT(member) offsetof(struct row, member)
static const struct field row_fields[] = {
    {.name = "id", .type = FIELD_STR, .offset = ROW_AT(id), .min = 1, .max = DEPLOY_ID_MAX},
    {.name = "type", .type = FIELD_STR, .offset = ROW_AT(type), .preset = "deployment"},
    {.name = "generation", .type = FIELD_INT, .offset = ROW_AT(generation)},
    {.name = "version", .type = FIELD_INT, .offset = ROW_AT(version)},
    {.name = "ended", .type = FIELD_STR, .offset = ROW_AT(ended)},
    {.name = "spec", .type = FIELD_JSON, .offset = ROW_AT(spec)},
};
static const struct schema row_schema = {
    .what = "the row", .fields = row_fields, .count = COUNT_OF(row_fields)};

/* False: nothing is new about it. */
static bool take_row(struct copy *copy, const struct row *row)
{
    copy->wanted = true;
    copy->round = copy->copies->round;
    if (copy->known && !copy->wrong[0] && row->version == copy->version &&
        row->generation == copy->generation)
        return false;
    copy->generation = row->generation;
    copy->version = row->version;
    copy->daemon = str_is(row->type, "daemon");
    if (copy->held == COPY_FAILING)
        copy->held = COPY_KEPT;
    if (!copy->run) { /* somebody did something about it: no need to wait */
        copy->next_ms = 0;
        copy->failures = 0;
        copy->looping = false;
        copy->kills = 0;
        copy->killed_why[0] = 0;
    }
    if (row->ended.len && !copy->run && copy_over(copy) == COPY_NOT_OVER)
        set_over(copy, str_is(row->ended, "finished") ? COPY_FINISHED : COPY_FAILED, row->version);
    return true;
}

void copies_want(struct copies *copies, const struct json *json)
{
    struct arena arena = {0};
    struct row row = {0};
    struct deploy_spec spec;
    struct problem why = {0};
    const struct json *own; /* a row of its own, that lives as long as the spec */
    enum err err = schema_presets(&row_schema, &row, &arena);
    struct copy *copy;

    if (!err)
        err = json_parse(arena_str(&arena, json_raw(json)), &arena, &own, &why);
    if (!err)
        err = schema_read(&row_schema, own, &row, &arena, &why);
    if (err || !row.id.len) {
        log_event(LOG_ERROR, "copy.bad_row", KS("node_id", copies->node_id),
                  KC("reason", err ? why.detail : "It has no id."));
        arena_free(&arena);
        return;
    }
    copy = copies_find(copies, row.id);
    if (!copy)
        copy = copies_enter(copies, row.id);
    if (!take_row(copy, &row)) {
        arena_free(&arena);
        return;
    }
    err = deploy_spec_read(row.spec, false, &arena, &spec, &why);
    if (!err && deploy_type_by_name(row.type) == DEPLOY_OTHER)
        err = problem_set(&why, ERR_BAD_FIELD, "type", "type must be deployment or daemon.");
    if (err) {
        set_wrong(copy, &why);
        arena_free(&arena);
    } else {
        deploy_spec_defaults(&spec, &arena);
        set_spec(copy, &spec, &arena);
    }
}

void copies_round_over(struct copies *copies)
{
    for (struct copy *copy = copies->first; copy; copy = copy->next)
        if (copy->round != copies->round)
            copy->wanted = false;
    copies->told = true;
    look_at_all(copies);
}

void copies_told(struct copies *copies, const struct json *reply)
{
    const struct json *waits = json_get(reply, "waits");
    struct arena arena = {0};

    for (struct copy *copy = copies->first; copy; copy = copy->next) {
        const struct json *item = json_first(waits);
        bool may = copy->asked_version == copy->version;

        for (uint32_t i = 0; json_type(waits) == JSON_ARR && i < waits->count;
             i++, item = json_next(item))
            if (str_eq(json_str(json_get(item, "id"), &arena), copy->id)) {
                struct str reason = json_str(json_get(item, "reason"), &arena);

                set_words(copy, copy->waits, arena_cstr(&arena, reason));
                may = false;
            }
        if (may)
            copy->turn_version = copy->version;
        copy->asked_version = 0;
    }
    arena_free(&arena);
}

/* What passed is not prolonged: who was frozen over its deadline cannot know who runs it now. */
static void fence_one(struct copy *copy)
{
    int64_t deadline_ms = run_deadline_ms(copy->run);

    assert(copy->wanted && !copy->daemon);
    if (deadline_ms && clock_lease_ms() >= deadline_ms)
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
        if (copy->run && copy->wanted && !copy->daemon && copy->run_generation == copy->generation)
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
        if (copy->last && copy->last->exit.ended_ms > run->exit.ended_ms) {
            run_forget(run);
            return;
        }
        keep_last(copy, run, meta->version);
        copy_words(str_of(run->exit.detail), copy->ended);
        return;
    }
    assert(!copy->run);
    copy->run = run;
    copy->run_generation = copy->generation = meta->generation;
    copy->run_version = copy->version = meta->version;
    copy->daemon = meta->daemon;
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
