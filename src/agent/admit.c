/* Measures, asks the rules an agent asks, and waits. Owns the words and the waiting; the rules are
 * protect's, the slots admit_slots'. One thread, and nothing is left behind but the slot. */
#include "agent/admit.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/admit_slots.h"
#include "agent/agent_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    FIRST_LOOK_MS = 250, /* between the first two looks: rates need two */
    WHY_BYTES = 320,
};

struct admit {
    const struct admit_request *request;
    FILE *err;
    struct config_source source;
    const struct config *config;
    struct protect protect;
    struct usage_meter *meter;
    struct admit_slots slots;
    int slot_fd;                /* ours; < 0: not yet */
    struct protect_task *tasks; /* room for ADMIT_SLOTS_MAX */
    int64_t begun_ms;
    char why[WHY_BYTES];  /* it may not start now */
    char told[WHY_BYTES]; /* the last that was said */
    bool never;           /* waiting cannot help */
};

/* The others are not ours to end: the rules below protect everybody. */
static void no_kill(struct protect *protect, const struct protect_kill *kill)
{
    assert(!"berth run ends nobody");
}

/* The settings of this machine's agent, but for its token: whoever may run a command need not be
 * able to read that. A token in the environment is the command's own business and stays there. */
static enum err load(struct admit *admit, struct problem *why)
{
    char *argv[] = {(char *)"--token-file=", (char *)"--config", (char *)admit->request->config};
    static struct str everybody = {.at = "*", .len = 1};
    struct protect_rules rules;
    enum err err = config_load(&admit->source, admit->request->config ? 3 : 1, argv, why);

    if (err)
        return err;
    admit->config = &admit->source.config;
    if (admit->config->token.at)
        setenv("BERTH_TOKEN", arena_cstr(&admit->source.arena, admit->config->token), 1);
    err = agent_rules(admit->config, &rules, why);
    if (err)
        return err;
    rules.kill.protected = (struct strs){.at = &everybody, .count = 1};
    protect_init(&admit->protect, &rules, no_kill, admit);
    admit->meter = usage_meter_new(arena_cstr(&admit->source.arena, admit->config->host_root));
    return ERR_OK;
}

static const char *reason_of(const struct slots *slots, enum slots_step step)
{
    for (size_t i = 0; i < slots->count; i++)
        if (slots->chain[i].step == step)
            return slots->chain[i].reason;
    return NULL;
}

/* What no waiting changes: there is no slot for it on this machine even when that is idle. */
static bool explain_never(struct admit *admit)
{
    const struct slots_rules *rules = &admit->protect.rules.slots;
    const struct slots *slots = &admit->protect.slots;
    const char *fixed = reason_of(slots, SLOTS_FIXED), *max = reason_of(slots, SLOTS_MAX);
    int64_t most = slots->max;

    if (rules->max_concurrent_jobs != SLOTS_NONE && rules->max_concurrent_jobs < most)
        most = rules->max_concurrent_jobs;
    if (most > (admit->request->interactive ? 0 : rules->reserved_slots))
        return false;
    admit->never = true;
    snprintf(admit->why, sizeof admit->why, "this machine never has a slot for it: %s",
             most > 0         ? "all are kept for interactive work (reserved_slots)"
             : slots->max > 0 ? "max_concurrent_jobs is 0"
             : fixed          ? fixed
                              : max);
    return true;
}

static void explain_full(struct admit *admit)
{
    const struct slots *slots = &admit->protect.slots;
    const struct slots_clamp *zero = slots_zero(slots);

    snprintf(admit->why, sizeof admit->why, "no slot is free: %s is 0, %s; level %s",
             zero ? slots_step_name(zero->step) : "room", zero ? zero->reason : "nothing is left",
             level_name(level_gate(&admit->protect.level)));
}

/* A level that was left falls only after a while of calm: the figure of now may look harmless. */
static void explain_level(struct admit *admit)
{
    const struct level_state *state = &admit->protect.level;
    bool held = state->now.level < state->level;
    enum level level = level_gate(state);
    enum level_signal by = held ? state->by : state->now.by;
    struct level_figures figures;
    int64_t ppm;

    usage_figures(&admit->protect.usage, &figures);
    ppm = figures.ppm[by] == LEVEL_UNKNOWN ? 0 : figures.ppm[by];
    snprintf(admit->why, sizeof admit->why, "this machine %s level %s by %s (%" PRId64 "%% %s%s)%s",
             held ? "still counts as at" : "is at", level_name(level), level_signal_name(by),
             ppm / 10000, by == LEVEL_MEMORY ? "free" : "in use", held ? " now" : "",
             level == LEVEL_WARNING ? ": only high priority starts" : "");
}

/* A task as the others see it. */
static struct protect_task as_task(const struct admit_request *request, int64_t now_ms)
{
    return (struct protect_task){.type = str_of(request->type),
                                 .priority = request->priority,
                                 .started_ms = now_ms,
                                 .memory_kib = USAGE_NONE,
                                 .swap_kib = USAGE_NONE,
                                 .cpu_permille = USAGE_NONE};
}

/* Under the gate's lock. True: the slot is ours. */
static bool decide(struct admit *admit, const struct usage *usage, struct problem *why)
{
    const struct admit_request *request = admit->request;
    int64_t now_ms = clock_mono_ms();
    struct protect_task own = as_task(request, now_ms);
    struct arena arena = {0};
    size_t count = admit_slots_list(&admit->slots, admit->tasks, ADMIT_SLOTS_MAX, &arena);
    enum protect_answer answer;
    bool taken = false;

    protect_sample(&admit->protect, now_ms, usage, admit->tasks, count);
    answer =
        protect_admits(&admit->protect, now_ms, own.type, own.priority, request->interactive, NULL);
    assert(answer != PROTECT_TYPE && answer != PROTECT_STALE);
    if (answer != PROTECT_ADMIT && explain_never(admit))
        taken = false;
    else if (answer == PROTECT_LEVEL)
        explain_level(admit);
    else if (answer == PROTECT_FULL)
        explain_full(admit);
    else if (admit_slots_take(&admit->slots, &own, &admit->slot_fd, why))
        snprintf(admit->why, sizeof admit->why, "%s", why->detail);
    else
        taken = true;
    arena_free(&arena);
    return taken;
}

/* True: go. False: admit->why tells what is in the way. */
static bool ask(struct admit *admit, const struct usage *usage)
{
    struct problem why = {0};
    bool taken;

    admit->never = false;
    if (admit_slots_lock(&admit->slots, &why)) {
        snprintf(admit->why, sizeof admit->why, "%s", why.detail);
        return false;
    }
    taken = decide(admit, usage, &why);
    admit_slots_unlock(&admit->slots);
    return taken;
}

/* Once for each reason; figures alone are no new reason. */
static void tell(struct admit *admit)
{
    size_t same = strcspn(admit->why, "(0123456789");

    if (strncmp(admit->why, admit->told, same + 1) == 0)
        return;
    fprintf(admit->err, "berth: waiting: %s\n", admit->why);
    fflush(admit->err);
    memcpy(admit->told, admit->why, sizeof admit->told);
}

static int become(struct admit *admit)
{
    char **argv = admit->request->argv;
    int64_t waited_ms = clock_mono_ms() - admit->begun_ms;

    if (admit->told[0])
        fprintf(admit->err, "berth: starts after %" PRId64 " s\n", (waited_ms + 500) / 1000);
    fflush(admit->err);
    execvp(argv[0], argv);
    fprintf(admit->err, "berth: cannot run %s: %s\n", argv[0], strerror(errno));
    return errno == ENOENT ? ADMIT_NO_SUCH : ADMIT_NO_START;
}

static int give_up(struct admit *admit, int code)
{
    fprintf(admit->err, "berth: %s%s\n", code == ADMIT_TIMEOUT ? "no longer waiting: " : "",
            admit->why);
    return code;
}

/* Looks again and again; the first look only knows what does not need a second one. */
static int wait_for_room(struct admit *admit, struct problem *why)
{
    const struct admit_request *request = admit->request;

    for (int looks = 1;; looks++) {
        int64_t now_ms = clock_mono_ms(), pause_ms = FIRST_LOOK_MS;
        struct usage usage;

        if (usage_measure(admit->meter, now_ms, clock_wall_ms(), &usage, why))
            return ADMIT_BAD;
        if (looks > 1) {
            if (ask(admit, &usage))
                return become(admit);
            if (request->wait_ms == 0 || admit->never)
                return give_up(admit, ADMIT_REFUSED);
            pause_ms = admit->config->monitor_interval_ms;
            if (request->wait_ms > 0) {
                int64_t left_ms = request->wait_ms - (clock_mono_ms() - admit->begun_ms);

                if (left_ms <= 0)
                    return give_up(admit, ADMIT_TIMEOUT);
                pause_ms = left_ms < pause_ms ? left_ms : pause_ms;
            }
            tell(admit);
        }
        poll(NULL, 0, (int)pause_ms);
    }
}

static int run(struct admit *admit, struct problem *why)
{
    const struct admit_request *request = admit->request;
    int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (null_fd >= 0) /* a person reads what we print: no events */
        log_setup(LOG_ERROR, LOG_LOGFMT, null_fd);
    if (load(admit, why) || admit_slots_open(&admit->slots, why))
        return ADMIT_BAD;
    if (!config_allows(admit->config, str_of(request->type))) {
        fprintf(admit->err, "berth: work of type %s is not allowed here (TYPE_NOT_ALLOWED)\n",
                request->type);
        return ADMIT_REFUSED;
    }
    return wait_for_room(admit, why);
}

int admit_run(const struct admit_request *request, FILE *err)
{
    struct admit admit = {.request = request,
                          .err = err,
                          .slots = {.dir_fd = -1, .gate_fd = -1},
                          .slot_fd = -1,
                          .tasks = mem_array(struct protect_task, ADMIT_SLOTS_MAX),
                          .begun_ms = clock_mono_ms()};
    struct problem why = {0};
    int code;

    assert(request->type && request->argv && request->argv[0]);
    code = run(&admit, &why);
    if (code == ADMIT_BAD)
        fprintf(err, "berth: %s\n", why.detail);
    usage_meter_free(admit.meter);
    if (admit.protect.kill)
        protect_done(&admit.protect);
    config_done(&admit.source);
    free(admit.tasks);
    if (admit.slot_fd >= 0)
        close(admit.slot_fd); /* it did not start after all */
    if (admit.slots.dir_fd >= 0)
        admit_slots_close(&admit.slots);
    return code;
}
