/* slot_formula, danger_level, emergency_kill, resource_score. */
#include "vec.h"

#include <math.h>

#include "model/claim.h"
#include "model/kill.h"
#include "model/level.h"
#include "model/slots.h"

#define NANO INT64_C(1000000000)

__extension__ typedef __int128 wide;

/* A decimal of the vector, text or number, in units of 1e-9; at most 9 digits before and after the
 * point. */
static bool read_nano(struct vec *vec, const char *name, wide *ret_nano)
{
    const struct json *value = json_get(vec->in, name);
    struct str fraction =
        json_type(value) == JSON_NUM ? json_raw(value) : json_str(value, vec->arena);
    struct str whole = str_cut(&fraction, '.');
    int64_t ones, parts = 0;

    if (!str_int(whole, &ones) || ones < 0 || fraction.len > 9 || whole.len > 9)
        return false;
    if (fraction.at && (!str_int(fraction, &parts) || fraction.at[0] == '-'))
        return false;
    for (size_t i = fraction.len; i < 9; i++)
        parts *= 10;
    *ret_nano = (wide)ones * NANO + parts;
    return true;
}

/* Two servers are known; any other is as small as hk. */
static int64_t hard_max(const struct json *server)
{
    return json_str_is(server, "us") ? 5 : 2;
}

bool area_slot_formula(struct vec *vec)
{
    struct slots_rules rules = slots_defaults;
    struct slots_input input = {.mem_total_kib = SLOTS_UNKNOWN, .level = LEVEL_NORMAL};
    struct slots slots;
    wide load, free;

    if (!read_nano(vec, "load_1m", &load) || !read_nano(vec, "mem_free_gb", &free))
        return false;
    rules.max_slots = hard_max(json_get(vec->in, "server"));
    input.cores_milli = vec_int(vec->in, "cpu_cores", 0) * 1000;
    /* Limits are whole hundredths and whole KiB, so rounding to the worse side moves none. */
    input.load_1m_centi = (int64_t)((load + NANO / 100 - 1) / (NANO / 100));
    input.mem_free_kib = (int64_t)(free * (1024 * 1024) / NANO);
    slots_compute(&slots, &rules, &input);
    jsonw_obj(vec->w);
    jsonw_kint(vec->w, "cpu_allowed", slots.cpu_allowed);
    jsonw_kint(vec->w, "mem_allowed", slots.mem_allowed);
    jsonw_kint(vec->w, "raw", slots.raw);
    jsonw_kint(vec->w, "safe", slots.safe);
    jsonw_kint(vec->w, "slots", slots.formula);
    jsonw_end_obj(vec->w);
    return true;
}

static int64_t read_ppm(const struct json *in, const char *name, int64_t fallback)
{
    double pct = vec_double(in, name, NAN);

    return isnan(pct) ? fallback : llround(pct * 10000);
}

/* What the product admits at this level. */
static const char *admitted(enum level level)
{
    bool low = level_admits(level, 0, 1), high = level_admits(level, 1, 1);

    return low ? "all" : high ? "high_priority_only" : "none";
}

bool area_danger_level(struct vec *vec)
{
    struct level_figures figures = {
        .ppm =
            {
                [LEVEL_CPU] = read_ppm(vec->in, "cpu_pct", LEVEL_UNKNOWN),
                [LEVEL_MEMORY] = read_ppm(vec->in, "mem_free_pct", LEVEL_UNKNOWN),
                [LEVEL_SWAP] = read_ppm(vec->in, "swap_used_pct", 0),
                [LEVEL_PRESSURE] = LEVEL_UNKNOWN,
                [LEVEL_DISK] = LEVEL_UNKNOWN,
                [LEVEL_VRAM] = LEVEL_UNKNOWN,
            },
    };
    enum level level = level_of(&figures, &level_defaults).level;

    jsonw_obj(vec->w);
    jsonw_kstr(vec->w, "level", str_of(level_name(level)));
    jsonw_kstr(vec->w, "dispatch", str_of(admitted(level)));
    jsonw_kbool(vec->w, "kill_low_priority", level == LEVEL_CRITICAL);
    jsonw_end_obj(vec->w);
    return true;
}

static bool read_tasks(struct vec *vec, struct kill_task **ret_tasks, size_t *ret_count)
{
    const struct json *list = json_get(vec->in, "tasks");
    struct vec_at at = {0};
    struct kill_task *tasks;
    size_t count = 0;

    if (json_type(list) != JSON_ARR)
        return false;
    tasks = arena_array(vec->arena, struct kill_task, list->count + 1);
    for (const struct json *task; (task = vec_each(list, &at)); count++)
        tasks[count] = (struct kill_task){
            .id = vec_str(vec, task, "id"),
            .type = vec_str(vec, task, "task_type"),
            .score = vec_int(task, "score", 0),
            .memory_kib = KILL_UNKNOWN,
            .swap_kib = KILL_UNKNOWN,
            .cpu_ppm = KILL_UNKNOWN,
        };
    *ret_tasks = tasks;
    *ret_count = count;
    return true;
}

static bool read_level(struct str name, enum level *ret_level)
{
    for (int i = 0; i < LEVEL_COUNT; i++)
        if (str_is(name, level_name((enum level)i))) {
            *ret_level = (enum level)i;
            return true;
        }
    return false;
}

/* The level after each kill; it stays when the list ends. */
static bool next_level(struct vec *vec, struct vec_at *at, enum level *level)
{
    const struct json *name = vec_each(json_get(vec->in, "levels_after_kill"), at);

    return !name || read_level(json_str(name, vec->arena), level);
}

/* The vectors need one sample instead of three before a kill, and have two types; otherwise the
 * product's own timing. */
bool area_emergency_kill(struct vec *vec)
{
    struct str types[] = {STR("research"), STR("talk")};
    struct kill_rules rules = kill_defaults;
    struct kill_sample sample = {.by = LEVEL_CPU};
    struct kill_state state = {0};
    struct vec_at at = {0};
    struct kill_task *tasks, **picked;
    size_t count;

    rules.samples = 1;
    rules.types = (struct strs){.at = types, .count = COUNT_OF(types)};
    if (!read_level(vec_str(vec, vec->in, "level"), &sample.level) ||
        !read_tasks(vec, &tasks, &count))
        return false;
    picked = arena_array(vec->arena, struct kill_task *, count + 1);
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "killed");
    jsonw_arr(vec->w);
    while (kill_step(&state, &rules, &sample, tasks, count, picked) > 0) {
        jsonw_str(vec->w, picked[0]->id);
        sample.now_ms += rules.settle_ms;
        if (!next_level(vec, &at, &sample.level))
            return false;
    }
    jsonw_end_arr(vec->w);
    jsonw_end_obj(vec->w);
    return true;
}

bool area_resource_score(struct vec *vec)
{
    const struct json *usage = json_get(vec->in, "usage");
    struct score_usage read = {
        .cpu_percent = vec_double(usage, "cpu_percent", 0),
        .memory_mb = vec_double(usage, "memory_mb", 0),
    };
    struct score_weights weights = {
        .cpu = vec_double(vec->in, "cpu_weight", score_defaults.cpu),
        .memory = vec_double(vec->in, "memory_weight", score_defaults.memory),
    };

    jsonw_obj(vec->w);
    jsonw_kdouble(vec->w, "score",
                  json_type(usage) == JSON_OBJ ? score_resource(&read, &weights) : 0);
    jsonw_end_obj(vec->w);
    return true;
}
