/* From samples to level, slots and emergencies. Owns the conclusions from a sample; usage.c
 * measures, and the caller's `kill` ends a task. */
#include "agent/protect.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/pool.h"

enum { DISK_COUNTED_KIB = 100 * 1024 * 1024, GRACE_MS = 1000, PPM_PER_CENTI = 100, PPM = 1000000 };

struct protect_rules protect_defaults(void)
{
    return (struct protect_rules){
        .level = level_defaults,
        .slots = slots_defaults,
        .kill = kill_defaults,
        .disk_counted_kib = DISK_COUNTED_KIB,
        .high_priority_min = 7,
        .stale_ms = 10000,
    };
}

static enum err check_bounds(const char *name, const struct level_bounds *bounds, bool falls,
                             struct problem *why)
{
    int64_t first = falls ? bounds->critical_centi : bounds->warning_centi;
    int64_t last = falls ? bounds->warning_centi : bounds->critical_centi;

    if (first >= 0 && first <= bounds->danger_centi && bounds->danger_centi <= last &&
        (!falls || last <= 10000))
        return ERR_OK;
    return problem_set(why, ERR_BAD_CONFIG, name,
                       "%s_warning_pct, %s_danger_pct and %s_critical_pct must %s%s.", name, name,
                       name, falls ? "fall" : "rise", falls ? " and lie between 0 and 100" : "");
}

enum err protect_check(const struct protect_rules *rules, struct problem *why)
{
    const struct slots_rules *slots = &rules->slots;
    const struct level_bounds *disk = &rules->level.bounds[LEVEL_DISK];
    enum err err;

    if (slots->cpu_per_process_centi <= 0)
        return problem_set(why, ERR_BAD_CONFIG, "cpu_per_process",
                           "cpu_per_process must be at least 0.01.");
    if (slots->mem_per_process_centi_gb <= 0)
        return problem_set(why, ERR_BAD_CONFIG, "mem_per_process_gb",
                           "mem_per_process_gb must be at least 0.01.");
    if (slots->mem_reserve_centi_gb < 0)
        return problem_set(why, ERR_BAD_CONFIG, "mem_reserve_gb",
                           "mem_reserve_gb must not be negative.");
    err = check_bounds("load", &rules->level.bounds[LEVEL_CPU], false, why);
    if (!err)
        err = check_bounds("mem", &rules->level.bounds[LEVEL_MEMORY], true, why);
    if (!err)
        err = check_bounds("swap", &rules->level.bounds[LEVEL_SWAP], false, why);
    if (!err)
        err = check_bounds("vram", &rules->level.bounds[LEVEL_VRAM], true, why);
    if (err)
        return err;
    if (rules->disk_counted_kib <= 0)
        return problem_set(why, ERR_BAD_CONFIG, "disk_counted_gb",
                           "disk_counted_gb must be at least 0.01.");
    if (disk->warning_centi < disk->danger_centi || disk->warning_centi > 10000)
        return problem_set(why, ERR_BAD_CONFIG, "disk",
                           "disk_warning_pct and disk_danger_pct must fall and lie between 0 and "
                           "100.");
    return ERR_OK;
}

void protect_init(struct protect *protect, const struct protect_rules *rules,
                  void (*kill)(struct protect *protect, const struct protect_kill *kill),
                  void *user)
{
    assert(protect_check(rules, NULL) == ERR_OK);
    assert(rules->stale_ms > 0 && kill);
    *protect = (struct protect){.rules = *rules, .kill = kill, .user = user};
}

void protect_done(struct protect *protect)
{
    free(protect->doomed);
    free(protect->picked);
    *protect = (struct protect){.kill = NULL};
}

/* --- slots --- */

static void recount(struct protect *protect)
{
    const struct usage *usage = &protect->usage;
    struct slots_input input = {
        .cores_milli = usage->cores_milli,
        .load_1m_centi = usage->load_1m_centi,
        .mem_total_kib = usage->mem_total_kib,
        .mem_free_kib = usage->mem_free_kib,
        .in_use = protect->in_use,
        .pending = protect->pending,
        .level = level_gate(&protect->level),
    };

    assert(protect->pending >= 0 && protect->pending <= protect->in_use);
    if (protect->sampled)
        slots_compute(&protect->slots, &protect->rules.slots, &input);
}

/* Started since the last sample, so not in any figure yet. */
static bool is_pending(const struct protect *protect, int64_t started_ms)
{
    return protect->sampled && started_ms > protect->usage.mono_ms;
}

void protect_started(struct protect *protect, int64_t started_ms, int64_t slots)
{
    assert(slots > 0);
    protect->in_use += slots;
    protect->pending += is_pending(protect, started_ms) ? slots : 0;
    recount(protect);
}

static int64_t less(int64_t from, int64_t by)
{
    return from > by ? from - by : 0;
}

void protect_ended(struct protect *protect, int64_t started_ms, int64_t slots)
{
    /* A sample may have come between its end and this call. */
    protect->in_use = less(protect->in_use, slots);
    if (is_pending(protect, started_ms))
        protect->pending = less(protect->pending, slots);
    if (protect->pending > protect->in_use)
        protect->pending = protect->in_use;
    recount(protect);
}

/* --- emergencies --- */

static int64_t size_of(int64_t figure, int64_t times)
{
    return figure == USAGE_NONE ? KILL_UNKNOWN : figure * times;
}

static int64_t percent(int64_t ppm)
{
    return ppm == LEVEL_UNKNOWN ? -1 : ppm / 10000;
}

static int64_t known(int64_t figure)
{
    return figure == USAGE_NONE ? -1 : figure;
}

static void end_picked(struct protect *protect, int64_t now_ms, const struct kill_sample *sample,
                       const struct level_figures *figures, const struct protect_task *tasks,
                       size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct protect_task *task = &tasks[protect->picked[i] - protect->doomed];
        struct protect_kill kill = {
            .task = task,
            .level = sample->level,
            .by = sample->by,
            .figures = *figures,
            .mem_free_kib = protect->usage.mem_free_kib,
            .mem_total_kib = protect->usage.mem_total_kib,
            .missing_kib = sample->by == LEVEL_CPU ? 0 : sample->missing,
            .missing_cpu_permille = sample->by == LEVEL_CPU ? sample->missing / (PPM / 1000) : 0,
            .gpu = sample->by == LEVEL_VRAM ? protect->usage.vram_gpu : -1,
            .grace_ms = sample->by == LEVEL_MEMORY ? 0 : GRACE_MS,
            .score = protect->picked[i]->score,
            .age_ms = now_ms - task->started_ms,
            .number = i + 1,
            .count = count,
        };

        assert(!task->stopping);
        protect->kills++;
        log_event(
            LOG_WARN, "emergency.kill", KS(task->deployment ? "deployment_id" : "job_id", task->id),
            KS("type", task->type), KC("reason", KILL_REASON), KC("level", level_name(kill.level)),
            KC("by", level_signal_name(kill.by)), KI("score", kill.score),
            KI("priority", task->priority), KI("age_ms", kill.age_ms),
            KI("cpu_percent", percent(kill.figures.ppm[LEVEL_CPU])),
            KI("mem_free_percent", percent(kill.figures.ppm[LEVEL_MEMORY])),
            KI("swap_percent", percent(kill.figures.ppm[LEVEL_SWAP])),
            KI("missing_kib", kill.missing_kib), KI("gives_kib", known(task->memory_kib)),
            KI("gives_swap_kib", known(task->swap_kib)), KI("gpu", kill.gpu),
            KI("gives_vram_kib", known(task->vram_kib)),
            KI("gives_cpu_permille", known(task->cpu_permille)), KI("number", (int64_t)kill.number),
            KI("count", (int64_t)kill.count));
        protect->kill(protect, &kill);
    }
}

/* A share of `total`, in hundredths of a percent. */
static int64_t part_kib(int64_t total_kib, int64_t centi)
{
    return total_kib == USAGE_NONE ? 0 : total_kib * centi / 10000;
}

/* How much must be freed until the level is no longer critical, including `margin_centi`. */
static int64_t missing_of(const struct protect *protect, enum level_signal by,
                          const struct level_figures *figures, int64_t margin_centi)
{
    const struct usage *usage = &protect->usage;
    int64_t critical_centi = protect->rules.level.bounds[by].critical_centi, bound_centi;

    switch (by) {
    case LEVEL_MEMORY:
        bound_centi = critical_centi + margin_centi;
        return kill_missing_kib(usage->mem_total_kib, usage->mem_free_kib,
                                bound_centi < 10000 ? bound_centi : 10000);
    case LEVEL_PRESSURE: /* its figure does not say how much */
        return part_kib(usage->mem_total_kib, margin_centi);
    case LEVEL_SWAP:
        return less(usage->swap_used_kib,
                    part_kib(usage->swap_total_kib, critical_centi - margin_centi));
    case LEVEL_CPU: /* the load can exceed the total, what is freed cannot */
        return less(figures->ppm[by] < PPM ? figures->ppm[by] : PPM,
                    (critical_centi - margin_centi) * PPM_PER_CENTI);
    case LEVEL_VRAM:
        bound_centi = critical_centi + margin_centi;
        return kill_missing_kib(usage->vram_total_kib, usage->vram_free_kib,
                                bound_centi < 10000 ? bound_centi : 10000);
    case LEVEL_DISK:
    case LEVEL_SIGNAL_COUNT:
        break;
    }
    assert(!"nobody is ended because of it");
    return 0;
}

static void face_emergency(struct protect *protect, int64_t now_ms,
                           const struct level_figures *figures, const struct protect_task *tasks,
                           size_t count)
{
    /* The cause that freezes a machine soonest comes first; busy CPUs do not freeze it. */
    static const enum level_signal order[] = {LEVEL_MEMORY, LEVEL_PRESSURE, LEVEL_SWAP, LEVEL_VRAM,
                                              LEVEL_CPU};
    const struct level_verdict *now = &protect->level.now;
    bool unresolved = protect->emergency.unresolved;
    struct kill_sample sample = {
        .level = now->level,
        .by = now->by,
        .mem_free_kib = protect->usage.mem_free_kib,
        .now_ms = now_ms,
    };
    int64_t cores_milli = protect->usage.cores_milli;
    size_t some;

    for (size_t i = COUNT_OF(order); i-- > 0;)
        if (now->of[order[i]] == LEVEL_CRITICAL)
            sample.by = order[i];
    if (sample.level == LEVEL_CRITICAL) {
        sample.missing = missing_of(protect, sample.by, figures, 0);
        sample.wanted = missing_of(protect, sample.by, figures, protect->rules.level.margin_centi);
        /* With all CPUs busy, little may be missing; but a task that uses less than a tenth of this
         * (a quarter of a core) is not the cause. */
        if (sample.by == LEVEL_CPU && cores_milli > 0 &&
            sample.wanted < (int64_t)PPM * 2500 / cores_milli)
            sample.wanted = (int64_t)PPM * 2500 / cores_milli;
    }
    if (count > protect->room) {
        protect->room = count * 2;
        protect->doomed = mem_resize(protect->doomed, protect->room * sizeof *protect->doomed);
        protect->picked = mem_resize(protect->picked, protect->room * sizeof(struct kill_task *));
    }
    for (size_t i = 0; i < count; i++) {
        int64_t age_ms = now_ms - tasks[i].started_ms;

        protect->doomed[i] = (struct kill_task){
            .id = tasks[i].id,
            .type = tasks[i].type,
            .priority = tasks[i].priority,
            .deployment = tasks[i].deployment,
            .score = kill_score(tasks[i].priority, age_ms),
            .young = age_ms < protect->rules.kill.young_ms,
            .memory_kib = size_of(tasks[i].memory_kib, 1),
            .swap_kib = size_of(tasks[i].swap_kib, 1),
            .cpu_ppm = size_of(tasks[i].cpu_permille, PPM / 1000),
            .vram_kib = size_of(tasks[i].vram_kib, 1),
            .doomed = tasks[i].stopping,
        };
    }
    some = kill_step(&protect->emergency, &protect->rules.kill, &sample, protect->doomed, count,
                     protect->picked);
    end_picked(protect, now_ms, &sample, figures, tasks, some);
    if (protect->emergency.unresolved && !unresolved)
        log_event(LOG_ERROR, "emergency.unresolved", KC("level", level_name(now->level)),
                  KC("by", level_signal_name(sample.by)), KI("tasks", (int64_t)count),
                  KI("missing_kib", sample.by == LEVEL_CPU ? 0 : sample.missing));
}

bool protect_sample(struct protect *protect, int64_t now_ms, const struct usage *usage,
                    const struct protect_task *tasks, size_t count)
{
    enum level before = protect->level.level;
    struct level_figures figures;
    bool changed;

    assert(!protect->sampled || now_ms >= protect->sampled_ms);
    usage_figures(usage, &figures);
    figures.ppm[LEVEL_DISK] = usage_disk_ppm(usage, protect->rules.disk_counted_kib);
    protect->usage = *usage;
    protect->usage.trees = NULL; /* they belonged to the caller */
    protect->usage.tree_count = 0;
    protect->sampled = true;
    protect->sampled_ms = now_ms;
    changed = level_step(&protect->level, &protect->rules.level, &figures, now_ms);
    if (changed)
        log_event(LOG_INFO, "level.change", KC("from", level_name(before)),
                  KC("to", level_name(protect->level.level)),
                  KC("by", level_signal_name(protect->level.by)),
                  KI("cpu_percent", percent(figures.ppm[LEVEL_CPU])),
                  KI("mem_free_percent", percent(figures.ppm[LEVEL_MEMORY])),
                  KI("swap_percent", percent(figures.ppm[LEVEL_SWAP])),
                  KI("disk_free_percent", percent(figures.ppm[LEVEL_DISK])),
                  KI("vram_free_percent", percent(figures.ppm[LEVEL_VRAM])));
    protect->in_use = protect->pending = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t slots = tasks[i].deployment ? 0 : tasks[i].slots > 0 ? tasks[i].slots : 1;

        protect->in_use += slots;
        protect->pending += is_pending(protect, tasks[i].started_ms) ? slots : 0;
    }
    recount(protect);
    face_emergency(protect, now_ms, &figures, tasks, count);
    return changed;
}

/* --- new work --- */

const char *protect_code(enum protect_answer answer)
{
    assert(answer != PROTECT_ADMIT);
    return answer == PROTECT_TYPE ? "TYPE_NOT_ALLOWED" : "NODE_OVERLOADED";
}

enum protect_answer protect_admits(const struct protect *protect, int64_t now_ms, struct str type,
                                   int64_t priority, bool interactive, int64_t slots,
                                   struct buf *detail)
{
    const struct protect_rules *rules = &protect->rules;
    int64_t left =
        interactive ? protect->slots.additional : protect->slots.additional_noninteractive;
    enum protect_answer answer = PROTECT_ADMIT;

    if (rules->allowed_types.count > 0 && !routing_allows(&rules->allowed_types, type))
        answer = PROTECT_TYPE;
    else if (!protect->sampled || now_ms - protect->sampled_ms > rules->stale_ms)
        answer = PROTECT_STALE;
    else if (!level_admits(level_gate(&protect->level), priority, rules->high_priority_min))
        answer = PROTECT_LEVEL;
    else if (left < slots)
        answer = PROTECT_FULL;
    if (!detail || answer == PROTECT_ADMIT)
        return answer;
    if (answer == PROTECT_TYPE)
        buf_fmt(detail, "Work of type " STR_FMT " is not allowed here.", STR_ARG(type));
    else if (answer == PROTECT_STALE)
        buf_fmt(detail, "The machine was not measured lately.");
    else if (answer == PROTECT_LEVEL)
        buf_fmt(detail, "The machine is at level %s because of its %s.",
                level_name(level_gate(&protect->level)),
                level_signal_name(protect->level.now.level >= protect->level.level
                                      ? protect->level.now.by
                                      : protect->level.by));
    else if (left > 0)
        buf_fmt(detail, "It needs %" PRId64 " slots, %" PRId64 " %s free.", slots, left,
                left == 1 ? "is" : "are");
    else
        buf_fmt(detail, "No slot is free: %s.", slots_zero(&protect->slots)->reason);
    return answer;
}

/* --- output --- */

void protect_explain(const struct protect *protect, struct buf *out)
{
    const struct slots *slots = &protect->slots;

    assert(protect->sampled);
    for (size_t i = 0; i < slots->count; i++) {
        const struct slots_clamp *clamp = &slots->chain[i];

        if (clamp->bites || clamp->step == SLOTS_CPU || clamp->step == SLOTS_MEMORY ||
            clamp->step == SLOTS_FIXED || clamp->step == SLOTS_MIN)
            buf_fmt(out, "%s%s %" PRId64 ": %s", out->len ? "; " : "", slots_step_name(clamp->step),
                    clamp->value, clamp->reason);
    }
}

void protect_write(const struct protect *protect, int64_t now_ms, struct jsonw *w)
{
    const struct level_state *level = &protect->level;
    const struct slots_clamp *zero = slots_zero(&protect->slots);
    bool calm = level->level == LEVEL_NORMAL;

    if (!protect->sampled) {
        jsonw_knull(w, "level");
        return;
    }
    jsonw_kstr(w, "level", str_of(level_name(level->level)));
    jsonw_kstr(w, "level_by", calm ? STR_NONE : str_of(level_signal_name(level->by)));
    jsonw_kstr(w, "level_now", str_of(level_name(level->now.level)));
    jsonw_kint(w, "level_for_ms", now_ms - level->changed_ms);
    jsonw_kint(w, "measured_ago_ms", now_ms - protect->sampled_ms);
    jsonw_kbool(w, "unresolved", protect->emergency.unresolved);
    jsonw_kint(w, "emergency_kills", protect->kills);
    jsonw_kint(w, "slots_max", protect->slots.max);
    jsonw_kint(w, "slots_available", protect->slots.additional);
    jsonw_kint(w, "slots_available_noninteractive", protect->slots.additional_noninteractive);
    jsonw_kint(w, "slots_in_use", protect->in_use);
    jsonw_kstr(w, "slots_reason", zero ? str_of(zero->reason) : STR_NONE);
    jsonw_karr(w, "clamps");
    for (size_t i = 0; i < protect->slots.count; i++) {
        const struct slots_clamp *clamp = &protect->slots.chain[i];

        jsonw_obj(w);
        jsonw_kstr(w, "name", str_of(slots_step_name(clamp->step)));
        jsonw_kint(w, "value", clamp->value);
        jsonw_kbool(w, "bites", clamp->bites);
        jsonw_kstr(w, "reason", str_of(clamp->reason));
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
}

void protect_kill_write(const struct protect_kill *kill, struct jsonw *w)
{
    const struct {
        const char *name;
        int64_t figure;
    } gifts[] = {
        {"memory_kib", kill->task->memory_kib},
        {"swap_kib", kill->task->swap_kib},
        {"cpu_permille", kill->task->cpu_permille},
        {"vram_kib", kill->task->vram_kib},
    };
    const size_t count = COUNT_OF(gifts) - (kill->gpu < 0); /* the last one is for GPUs only */

    jsonw_obj(w);
    jsonw_kstr(w, "reason", STR(KILL_REASON));
    jsonw_kstr(w, "level", str_of(level_name(kill->level)));
    jsonw_kstr(w, "by", str_of(level_signal_name(kill->by)));
    jsonw_kint(w, "score", kill->score);
    jsonw_kint(w, "priority", kill->task->priority);
    jsonw_kint(w, "age_ms", kill->age_ms);
    for (int i = 0; i < LEVEL_SIGNAL_COUNT; i++) {
        static const char *const names[LEVEL_SIGNAL_COUNT] = {
            [LEVEL_MEMORY] = "mem_free_ppm", [LEVEL_CPU] = "cpu_ppm",
            [LEVEL_SWAP] = "swap_used_ppm",  [LEVEL_PRESSURE] = "pressure_ppm",
            [LEVEL_DISK] = "disk_free_ppm",  [LEVEL_VRAM] = "vram_free_ppm",
        };

        if (i == LEVEL_VRAM && kill->gpu < 0)
            continue;
        if (kill->figures.ppm[i] == LEVEL_UNKNOWN)
            jsonw_knull(w, names[i]);
        else
            jsonw_kint(w, names[i], kill->figures.ppm[i]);
    }
    jsonw_kint(w, "missing_kib", kill->missing_kib);
    jsonw_kint(w, "missing_cpu_permille", kill->missing_cpu_permille);
    if (kill->gpu >= 0)
        jsonw_kint(w, "gpu", kill->gpu);
    for (size_t i = 0; i < count; i++)
        if (gifts[i].figure == USAGE_NONE)
            jsonw_knull(w, gifts[i].name);
        else
            jsonw_kint(w, gifts[i].name, gifts[i].figure);
    jsonw_kint(w, "number", (int64_t)kill->number);
    jsonw_kint(w, "count", (int64_t)kill->count);
    jsonw_end_obj(w);
}
