/* From samples to level, slots, admissions and kills, on the test's own clock. */
#include "agent/protect.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../unit.h"
#include "base/log.h"

#define GIB INT64_C(1048576) /* in KiB */
#define MIB INT64_C(1024)

enum { TASKS_MAX = 16 };

/* A machine with 8 cores and 16 GiB, whose memory is used by its tasks and others. */
struct scene {
    struct protect protect;
    struct usage usage;
    struct protect_task tasks[TASKS_MAX];
    size_t count;
    int64_t now_ms;
    char killed[TASKS_MAX * 2][16];
    size_t kills;
    struct protect_kill last;
    bool frees; /* a killed task frees its memory */
};

static void on_kill(struct protect *protect, const struct protect_kill *kill)
{
    struct scene *scene = protect->user;
    struct protect_task *task = &scene->tasks[kill->task - scene->tasks];

    assert_true(str_copy(task->id, scene->killed[scene->kills++], sizeof scene->killed[0]));
    scene->last = *kill;
    task->stopping = true;
    if (scene->frees)
        scene->usage.mem_free_kib += task->memory_kib;
}

static void scene_init(struct scene *scene, const struct protect_rules *rules)
{
    struct protect_rules defaults = protect_defaults();

    memset(scene, 0, sizeof *scene);
    scene->now_ms = 1000000;
    scene->usage = (struct usage){.cores_milli = 8000,
                                  .load_1m_centi = 0,
                                  .busy_10s_permille = USAGE_NONE,
                                  .mem_total_kib = 16 * GIB,
                                  .mem_free_kib = 14 * GIB,
                                  .psi_mem_full_centi = USAGE_NONE,
                                  .gpu_permille = USAGE_NONE};
    protect_init(&scene->protect, rules ? rules : &defaults, on_kill, scene);
}

static bool sample(struct scene *scene)
{
    bool changed;

    scene->usage.mono_ms = scene->now_ms;
    changed =
        protect_sample(&scene->protect, scene->now_ms, &scene->usage, scene->tasks, scene->count);
    return changed;
}

/* One second passes, then a sample. */
static bool tick(struct scene *scene)
{
    scene->now_ms += 1000;
    return sample(scene);
}

static struct protect_task *add_task(struct scene *scene, const char *id, const char *type,
                                     int priority, int64_t age_ms, int64_t memory_kib)
{
    struct protect_task *task = &scene->tasks[scene->count++];

    *task = (struct protect_task){.id = str_of(id),
                                  .type = str_of(type),
                                  .priority = priority,
                                  .started_ms = scene->now_ms - age_ms,
                                  .memory_kib = memory_kib,
                                  .swap_kib = USAGE_NONE,
                                  .cpu_permille = USAGE_NONE};
    return task;
}

static enum protect_answer ask(struct scene *scene, const char *type, int priority,
                               bool interactive)
{
    return protect_admits(&scene->protect, scene->now_ms, str_of(type), priority, interactive, 1,
                          NULL);
}

static enum level level_of_scene(const struct scene *scene)
{
    return scene->protect.level.level;
}

static void test_nothing_starts_before_the_first_sample(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    assert_int_equal(ask(&scene, "dev", 9, true), PROTECT_STALE);
    sample(&scene);
    assert_int_equal(ask(&scene, "dev", 0, false), PROTECT_ADMIT);
    protect_done(&scene.protect);
}

static void test_nothing_starts_on_old_figures(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    sample(&scene);
    scene.now_ms += 10000;
    assert_int_equal(ask(&scene, "dev", 9, true), PROTECT_ADMIT);
    scene.now_ms += 1;
    assert_int_equal(ask(&scene, "dev", 9, true), PROTECT_STALE);
    sample(&scene);
    assert_int_equal(ask(&scene, "dev", 9, true), PROTECT_ADMIT);
    protect_done(&scene.protect);
}

static void test_who_may_start_at_which_level(void **state)
{
    static const struct {
        int64_t load_centi;
        enum level level;
        enum protect_answer low, high;
    } rows[] = {
        {100, LEVEL_NORMAL, PROTECT_ADMIT, PROTECT_ADMIT},
        {500, LEVEL_WARNING, PROTECT_LEVEL, PROTECT_ADMIT},
        {700, LEVEL_DANGER, PROTECT_LEVEL, PROTECT_LEVEL},
        {790, LEVEL_CRITICAL, PROTECT_LEVEL, PROTECT_LEVEL},
    };
    struct protect_rules rules = protect_defaults();

    rules.slots.slots_fixed = 4; /* so that only the level decides */
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct scene scene;

        scene_init(&scene, &rules);
        scene.usage.load_1m_centi = rows[i].load_centi;
        for (int at = 0; at < 3; at++)
            tick(&scene);
        assert_int_equal(level_of_scene(&scene), rows[i].level);
        assert_int_equal(ask(&scene, "dev", 6, true), rows[i].low);
        assert_int_equal(ask(&scene, "dev", 7, true), rows[i].high);
        protect_done(&scene.protect);
    }
}

static void test_types_and_slots(void **state)
{
    static struct str light[] = {{.at = "talk", .len = 4}, {.at = "research", .len = 8}};
    struct protect_rules rules = protect_defaults();
    struct scene scene;
    struct buf why = {0};

    rules.allowed_types = (struct strs){.at = light, .count = 2};
    rules.slots.max_slots = 2;
    rules.slots.reserved_slots = 1;
    scene_init(&scene, &rules);
    sample(&scene);
    assert_int_equal(ask(&scene, "dev", 9, true), PROTECT_TYPE);
    assert_string_equal(protect_code(PROTECT_TYPE), "TYPE_NOT_ALLOWED");
    assert_int_equal(ask(&scene, "talk", 5, false), PROTECT_ADMIT);
    protect_started(&scene.protect, scene.now_ms, 1);
    assert_int_equal(ask(&scene, "talk", 5, false), PROTECT_FULL); /* the last slot is reserved */
    assert_int_equal(ask(&scene, "talk", 5, true), PROTECT_ADMIT);
    protect_started(&scene.protect, scene.now_ms, 1);
    assert_int_equal(protect_admits(&scene.protect, scene.now_ms, STR("talk"), 9, true, 1, &why),
                     PROTECT_FULL);
    assert_str(buf_view(&why), "No slot is free: 2 of 2 in use.");
    assert_string_equal(protect_code(PROTECT_FULL), "NODE_OVERLOADED");
    protect_ended(&scene.protect, scene.now_ms, 1);
    assert_int_equal(ask(&scene, "talk", 5, true), PROTECT_ADMIT);
    buf_free(&why);
    protect_done(&scene.protect);
}

/* A burst between two samples gets what the sample promised, once. */
static void test_a_burst_is_not_let_in_twice(void **state)
{
    struct protect_rules rules = protect_defaults();
    struct scene scene;
    int started = 0;

    rules.slots.max_slots = 100;
    scene_init(&scene, &rules);
    scene.usage.load_1m_centi = 350; /* 4.5 cores free: three slots, less the buffer */
    sample(&scene);
    scene.now_ms += 10;
    while (ask(&scene, "dev", 5, false) == PROTECT_ADMIT) {
        protect_started(&scene.protect, scene.now_ms, 1);
        started++;
    }
    assert_int_equal(started, 2);
    /* A short task makes room at once when it ends. */
    protect_ended(&scene.protect, scene.now_ms, 1);
    assert_int_equal(ask(&scene, "dev", 5, false), PROTECT_ADMIT);
    assert_int_equal(scene.protect.slots.max_to_send, 2);
    protect_done(&scene.protect);
}

/* A task that began before the sample is in its figures: its end frees no room until the next
 * sample. */
static void test_an_old_one_ends(void **state)
{
    struct protect_rules rules = protect_defaults();
    struct scene scene;

    rules.slots.max_slots = 100;
    scene_init(&scene, &rules);
    scene.usage.load_1m_centi = 350;
    add_task(&scene, "old", "dev", 5, 5000, 0);
    sample(&scene);
    protect_started(&scene.protect, scene.now_ms + 1, 1);
    protect_started(&scene.protect, scene.now_ms + 1, 1);
    assert_int_equal(ask(&scene, "dev", 5, false), PROTECT_FULL);
    protect_ended(&scene.protect, scene.tasks[0].started_ms, 1);
    assert_int_equal(ask(&scene, "dev", 5, false), PROTECT_FULL);
    assert_int_equal(scene.protect.in_use, 2);
    for (int i = 0; i < 4; i++) /* more ends than starts, since a sample came between */
        protect_ended(&scene.protect, scene.now_ms + 1, 1);
    assert_int_equal(scene.protect.in_use, 0);
    assert_int_equal(ask(&scene, "dev", 5, false), PROTECT_ADMIT);
    protect_done(&scene.protect);
}

static void test_refusals_say_why(void **state)
{
    struct scene scene;
    struct buf why = {0};

    scene_init(&scene, NULL);
    protect_admits(&scene.protect, scene.now_ms, STR("dev"), 5, false, 1, &why);
    assert_str(buf_view(&why), "The machine was not measured lately.");
    buf_clear(&why);
    scene.usage.mem_free_kib = 2 * GIB;
    sample(&scene);
    protect_admits(&scene.protect, scene.now_ms, STR("dev"), 5, false, 1, &why);
    assert_str(buf_view(&why), "The machine is at level danger because of its memory.");
    buf_clear(&why);
    scene.usage.mem_free_kib = 14 * GIB;
    scene.usage.load_1m_centi = 500; /* CPU is at warning again, but danger has not passed yet */
    tick(&scene);
    protect_admits(&scene.protect, scene.now_ms, STR("dev"), 9, false, 1, &why);
    assert_str(buf_view(&why), "The machine is at level danger because of its memory.");
    buf_free(&why);
    protect_done(&scene.protect);
}

/* --- emergencies --- */

static void test_memory_ramp(void **state)
{
    struct scene scene;
    int64_t critical_ms = 0;

    scene_init(&scene, NULL);
    scene.frees = true;
    add_task(&scene, "dev1", "dev", 5, 600000, 4 * GIB);
    add_task(&scene, "talk1", "talk", 5, 600000, 200 * MIB);
    add_task(&scene, "research1", "research", 3, 600000, 900 * MIB);
    add_task(&scene, "young", "talk", 0, 10000, 100 * MIB);
    for (int i = 0; i < 40 && scene.kills == 0; i++) {
        scene.usage.mem_free_kib -= 700 * MIB;
        if (scene.usage.mem_free_kib * 10 < scene.usage.mem_total_kib && !critical_ms)
            critical_ms = scene.now_ms + 1000;
        tick(&scene);
    }
    assert_int_equal(scene.now_ms, critical_ms); /* at the first critical sample */
    assert_int_equal(level_of_scene(&scene), LEVEL_CRITICAL);
    assert_string_equal(scene.killed[0], "research1");
    assert_int_equal(scene.last.by, LEVEL_MEMORY);
    assert_int_equal(scene.last.score, 3 * 1000 + 600 + (scene.now_ms - 1000000) / 1000);
    assert_true(scene.last.missing_kib > 0);
    assert_true(scene.last.missing_kib + scene.last.mem_free_kib >= 16 * GIB / 10);
    protect_done(&scene.protect);
}

static void test_ends_as_many_as_are_missing_then_waits(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    add_task(&scene, "a", "talk", 1, 100000, 400 * MIB);
    add_task(&scene, "b", "talk", 2, 100000, 400 * MIB);
    add_task(&scene, "c", "talk", 3, 100000, 400 * MIB);
    add_task(&scene, "d", "talk", 4, 100000, 400 * MIB);
    scene.usage.mem_free_kib = GIB; /* 614 MiB short of 10 % of 16 GiB */
    sample(&scene);
    assert_int_equal(scene.kills, 2);
    assert_string_equal(scene.killed[0], "a");
    assert_string_equal(scene.killed[1], "b");
    assert_int_equal(scene.last.number, 2);
    assert_int_equal(scene.last.count, 2);
    for (int i = 0; i < 4; i++) {
        tick(&scene);
        assert_int_equal(scene.kills, 2);
    }
    tick(&scene); /* after five seconds without improvement */
    assert_int_equal(scene.kills, 4);
    for (int i = 0; i < 5; i++)
        tick(&scene);
    assert_true(scene.protect.emergency.unresolved);
    assert_int_equal(scene.kills, 4);
    protect_done(&scene.protect);
}

static void test_cpu_takes_three_samples(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    add_task(&scene, "b", "talk", 5, 100000, USAGE_NONE);
    add_task(&scene, "a", "research", 5, 200000, USAGE_NONE);
    add_task(&scene, "f2f", "f2f", 0, 100000, USAGE_NONE);
    scene.usage.load_1m_centi = 1600;
    sample(&scene);
    tick(&scene);
    assert_int_equal(scene.kills, 0);
    tick(&scene);
    assert_int_equal(scene.kills, 1);
    assert_string_equal(scene.killed[0], "b"); /* the younger of two with equal priority */
    assert_int_equal(scene.last.missing_kib, 0);
    for (int i = 0; i < 4; i++)
        tick(&scene);
    assert_int_equal(scene.kills, 1);
    tick(&scene);
    assert_int_equal(scene.kills, 2);
    protect_done(&scene.protect);
}

/* A GPU is short of promised memory: of the tasks that use it the largest is ended. */
static void test_vram_ends_one(void **state)
{
    struct buf evidence = {0};
    struct jsonw w = jsonw_to(&evidence);
    struct scene scene;

    scene_init(&scene, NULL);
    add_task(&scene, "elsewhere", "task", 0, 100000, 6 * GIB)->vram_kib = 0;
    add_task(&scene, "small", "task", 5, 100000, 2 * GIB)->vram_kib = 3 * GIB;
    add_task(&scene, "large", "task", 5, 100000, 1 * GIB)->vram_kib = 9 * GIB;
    scene.usage.vram_gpu = 1;
    scene.usage.vram_total_kib = 20 * GIB;
    scene.usage.vram_free_kib = 1 * GIB;
    sample(&scene);
    tick(&scene);
    assert_int_equal(scene.kills, 0);
    tick(&scene);
    assert_int_equal(scene.kills, 1);
    assert_string_equal(scene.killed[0], "large");
    assert_int_equal(scene.last.by, LEVEL_VRAM);
    assert_int_equal(scene.last.gpu, 1);
    assert_int_equal(scene.last.missing_kib, 1 * GIB);
    assert_true(scene.last.grace_ms > 0);
    protect_kill_write(&scene.last, &w);
    buf_char(&evidence, 0);
    assert_non_null(strstr(evidence.at, "\"vram_free_ppm\":50000"));
    assert_non_null(strstr(evidence.at, "\"gpu\":1,"));
    assert_non_null(strstr(evidence.at, "\"vram_kib\":9437184"));
    buf_free(&evidence);
    scene.usage.vram_total_kib = 0; /* no longer short */
    for (int i = 0; i < 100; i++)
        tick(&scene);
    assert_int_equal(scene.kills, 1);
    assert_int_equal(scene.protect.level.level, LEVEL_NORMAL);
    protect_done(&scene.protect);
}

/* A job with several slots holds that many from its start to its end. */
static void test_several_slots(void **state)
{
    struct protect_rules rules = protect_defaults();
    struct buf why = {0};
    struct scene scene;

    rules.slots.slots_fixed = 4;
    scene_init(&scene, &rules);
    sample(&scene);
    protect_started(&scene.protect, scene.now_ms, 3);
    assert_int_equal(scene.protect.slots.additional, 1);
    assert_int_equal(protect_admits(&scene.protect, scene.now_ms, STR("t"), 5, false, 1, NULL),
                     PROTECT_ADMIT);
    assert_int_equal(protect_admits(&scene.protect, scene.now_ms, STR("t"), 5, false, 2, &why),
                     PROTECT_FULL);
    assert_true(str_is(buf_view(&why), "It needs 2 slots, 1 is free."));
    add_task(&scene, "a", "t", 5, 0, USAGE_NONE)->slots = 3;
    tick(&scene);
    assert_int_equal(scene.protect.in_use, 3);
    assert_int_equal(scene.protect.slots.max_to_send, 4);
    protect_ended(&scene.protect, scene.tasks[0].started_ms, 3);
    assert_int_equal(scene.protect.slots.additional, 4);
    buf_free(&why);
    protect_done(&scene.protect);
}

/* Memory pressure is full although some memory seems free: the largest task is ended, with a grace
 * period. */
static void test_pressure_ends_one(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    add_task(&scene, "small", "task", 0, 100000, 2 * MIB);
    add_task(&scene, "large", "task", 5, 100000, 6 * GIB);
    add_task(&scene, "copy", "deployment", 5, 100000, 7 * GIB)->deployment = true;
    scene.usage.psi_mem_full_centi = 6000;
    sample(&scene);
    tick(&scene);
    assert_int_equal(scene.kills, 0);
    tick(&scene);
    assert_int_equal(scene.kills, 1);
    assert_string_equal(scene.killed[0], "large");
    assert_int_equal(scene.last.by, LEVEL_PRESSURE);
    assert_true(scene.last.grace_ms > 0);
    for (int i = 0; i < 14; i++) /* an average over ten seconds falls slowly */
        tick(&scene);
    assert_int_equal(scene.kills, 1);
    tick(&scene);
    assert_string_equal(scene.killed[1], "copy");
    protect_done(&scene.protect);
}

static void test_cpu_ends_who_uses_it(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    add_task(&scene, "idle", "task", 0, 100000, 8 * GIB)->cpu_permille = 0;
    add_task(&scene, "starts", "task", 0, 100000, MIB)->cpu_permille = 20;
    add_task(&scene, "busy", "task", 5, 100000, MIB)->cpu_permille = 500;
    add_task(&scene, "f2f", "f2f", 0, 100000, MIB)->cpu_permille = 400;
    scene.usage.load_1m_centi = 1600;
    for (int i = 0; i < 30; i++)
        tick(&scene);
    assert_int_equal(scene.kills, 1);
    assert_string_equal(scene.killed[0], "busy");
    assert_int_equal(scene.last.missing_cpu_permille, 100);
    assert_true(scene.protect.emergency.unresolved);
    protect_done(&scene.protect);
}

static void test_a_deployment_takes_no_slot(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    sample(&scene);
    assert_int_equal(scene.protect.in_use, 0);
    /* Started after the last sample. */
    add_task(&scene, "copy", "deployment", 5, -500, MIB)->deployment = true;
    add_task(&scene, "job", "task", 5, 1000, MIB);
    tick(&scene);
    assert_int_equal(scene.protect.in_use, 1);
    assert_int_equal(scene.protect.pending, 0);
    protect_done(&scene.protect);
}

static void test_unresolved_and_back_by_itself(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    add_task(&scene, "f2f", "f2f", 0, 100000, 8 * GIB);
    scene.usage.mem_free_kib = GIB / 2;
    sample(&scene);
    assert_int_equal(scene.kills, 0);
    assert_true(scene.protect.emergency.unresolved);
    scene.usage.mem_free_kib = 12 * GIB;
    tick(&scene);
    assert_false(scene.protect.emergency.unresolved);
    assert_int_equal(ask(&scene, "dev", 9, true), PROTECT_LEVEL); /* not at once */
    for (int i = 0; i < 60; i++)
        tick(&scene);
    assert_int_equal(level_of_scene(&scene), LEVEL_NORMAL);
    assert_int_equal(ask(&scene, "dev", 0, false), PROTECT_ADMIT);
    protect_done(&scene.protect);
}

static void test_what_is_stopping_is_not_ended_again(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    add_task(&scene, "a", "talk", 0, 100000, 100 * MIB)->stopping = true;
    add_task(&scene, "b", "talk", 9, 100000, 300 * MIB);
    scene.usage.mem_free_kib = 0;
    sample(&scene);
    assert_int_equal(scene.kills, 1);
    assert_string_equal(scene.killed[0], "b");
    protect_done(&scene.protect);
}

/* Neither fewer slots nor any level below critical ends a task. */
static void test_nobody_is_ended_below_critical(void **state)
{
    struct scene scene;

    scene_init(&scene, NULL);
    for (int i = 0; i < 10; i++)
        add_task(&scene, "t", "talk", 0, 100000, GIB);
    scene.usage.load_1m_centi = 715; /* 89.4 % */
    scene.usage.mem_free_kib = 16 * GIB / 10 + 1;
    for (int i = 0; i < 300; i++)
        tick(&scene);
    assert_int_equal(level_of_scene(&scene), LEVEL_DANGER);
    assert_int_equal(scene.kills, 0);
    assert_int_equal(scene.protect.slots.max_to_send, 10); /* running tasks may go on */
    protect_done(&scene.protect);
}

/* Load around a threshold for ten minutes: the level changes at most twice a minute. */
static void test_calm_at_a_border(void **state)
{
    struct scene scene;
    int64_t changes[4] = {-100000, -100000, -100000, -100000};
    int at = 0;

    scene_init(&scene, NULL);
    sample(&scene);
    for (int i = 0; i < 600; i++) {
        scene.usage.load_1m_centi = i / 7 % 2 ? 655 : 620; /* 81.9 % and 77.5 % */
        if (!tick(&scene))
            continue;
        assert_true(scene.now_ms - changes[(at + 2) % 4] >= 60000);
        changes[at++ % 4] = scene.now_ms;
    }
    assert_true(at >= 1);
    protect_done(&scene.protect);
}

/* --- the rules themselves --- */

/* A full disk refuses new work with that reason, and ends none. */
static void test_full_disk(void **state)
{
    struct scene scene;
    struct buf detail = {0};

    scene_init(&scene, NULL);
    add_task(&scene, "a", "research", 0, 100000, GIB);
    scene.usage.disk_total_kib = 2000 * GIB;
    scene.usage.disk_free_kib = 40 * GIB; /* 2 % of a large disk is enough */
    sample(&scene);
    assert_int_equal(scene.protect.level.level, LEVEL_NORMAL);
    scene.usage.disk_free_kib = GIB;
    for (int i = 0; i < 20; i++)
        tick(&scene);
    assert_int_equal(scene.protect.level.level, LEVEL_DANGER);
    assert_int_equal(scene.protect.level.by, LEVEL_DISK);
    assert_int_equal(protect_admits(&scene.protect, scene.now_ms, STR("task"), 9, true, 1, &detail),
                     PROTECT_LEVEL);
    assert_str(buf_view(&detail), "The machine is at level danger because of its disk.");
    assert_int_equal(scene.protect.kills, 0);
    buf_free(&detail);
    protect_done(&scene.protect);
}

static void test_check(void **state)
{
    struct protect_rules rules = protect_defaults();
    struct problem why = {0};

    assert_int_equal(protect_check(&rules, &why), ERR_OK);
    rules.level.bounds[LEVEL_CPU].danger_centi = 9500;
    assert_int_equal(protect_check(&rules, &why), ERR_BAD_CONFIG);
    assert_string_equal(why.detail,
                        "load_warning_pct, load_danger_pct and load_critical_pct must rise.");
    rules = protect_defaults();
    rules.level.bounds[LEVEL_MEMORY].warning_centi = 1500;
    assert_int_equal(protect_check(&rules, &why), ERR_BAD_CONFIG);
    assert_string_equal(why.field, "mem");
    rules = protect_defaults();
    rules.level.bounds[LEVEL_MEMORY].warning_centi = 10001;
    assert_int_equal(protect_check(&rules, &why), ERR_BAD_CONFIG);
    rules = protect_defaults();
    rules.level.bounds[LEVEL_SWAP].warning_centi = -1;
    assert_int_equal(protect_check(&rules, &why), ERR_BAD_CONFIG);
    rules = protect_defaults();
    rules.slots.cpu_per_process_centi = 0;
    assert_int_equal(protect_check(&rules, &why), ERR_BAD_CONFIG);
    rules = protect_defaults();
    rules.slots.mem_per_process_centi_gb = 0;
    assert_int_equal(protect_check(&rules, &why), ERR_BAD_CONFIG);
    rules = protect_defaults();
    rules.slots.mem_reserve_centi_gb = -1;
    assert_int_equal(protect_check(&rules, &why), ERR_BAD_CONFIG);
}

static void test_written(void **state)
{
    struct scene scene;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    struct arena arena = {0};
    const struct json *json, *clamps;

    scene_init(&scene, NULL);
    jsonw_obj(&w);
    protect_write(&scene.protect, scene.now_ms, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text), "{\"level\":null}");
    buf_clear(&text);
    w = jsonw_to(&text);
    add_task(&scene, "a", "talk", 1, 100000, USAGE_NONE);
    scene.usage.mem_free_kib = GIB;
    sample(&scene);
    jsonw_obj(&w);
    protect_write(&scene.protect, scene.now_ms + 500, &w);
    jsonw_end_obj(&w);
    assert_int_equal(json_parse(buf_view(&text), &arena, &json, NULL), ERR_OK);
    assert_true(json_str_is(json_get(json, "level"), "critical"));
    assert_true(json_str_is(json_get(json, "level_by"), "memory"));
    assert_str(json_raw(json_get(json, "measured_ago_ms")), "500");
    assert_str(json_raw(json_get(json, "level_for_ms")), "500");
    assert_str(json_raw(json_get(json, "emergency_kills")), "1");
    assert_str(json_raw(json_get(json, "slots_available")), "0");
    clamps = json_get(json, "clamps");
    assert_int_equal(clamps->count, scene.protect.slots.count);
    assert_true(json_str_is(json_get(json_first(clamps), "name"), "cpu"));
    buf_clear(&text);
    w = jsonw_to(&text);
    protect_kill_write(&scene.last, &w);
    assert_str(buf_view(&text),
               "{\"reason\":\"emergency_degradation\",\"level\":\"critical\",\"by\":\"memory\","
               "\"score\":1100,\"priority\":1,\"age_ms\":100000,\"mem_free_ppm\":62500,"
               "\"cpu_ppm\":0,\"swap_used_ppm\":0,\"pressure_ppm\":null,"
               "\"disk_free_ppm\":null,\"missing_kib\":629146,\"missing_cpu_permille\":0,"
               "\"memory_kib\":null,\"swap_kib\":null,\"cpu_permille\":null,\"number\":1,"
               "\"count\":1}");
    buf_free(&text);
    arena_free(&arena);
    protect_done(&scene.protect);
}

/* The log lines needed after an emergency; each event is logged once. */
static void test_logged(void **state)
{
    struct scene scene;
    char text[4096] = {0};
    int ends[2];
    ssize_t got;

    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    log_setup(LOG_INFO, LOG_LOGFMT, ends[1]);
    scene_init(&scene, NULL);
    add_task(&scene, "j41", "talk", 2, 90000, 200 * MIB);
    scene.usage.mem_free_kib = GIB;
    for (int i = 0; i < 30; i++)
        tick(&scene);
    got = read(ends[0], text, sizeof text - 1);
    assert_true(got > 0);
    log_setup(LOG_ERROR, LOG_LOGFMT, ends[1]);
    assert_non_null(strstr(text, "event=level.change from=normal to=critical by=memory "
                                 "cpu_percent=0 mem_free_percent=6"));
    assert_non_null(strstr(text, "event=emergency.kill job_id=j41 type=talk "
                                 "reason=emergency_degradation level=critical by=memory "
                                 "score=2091 priority=2"));
    assert_non_null(strstr(text, "event=emergency.unresolved level=critical by=memory tasks=1"));
    assert_null(strstr(strstr(text, "level.change") + 1, "level.change"));
    assert_null(strstr(strstr(text, "emergency.unresolved") + 1, "emergency.unresolved"));
    assert_null(strstr(strstr(text, "emergency.kill") + 1, "emergency.kill"));
    protect_done(&scene.protect);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_starts_before_the_first_sample),
        cmocka_unit_test(test_nothing_starts_on_old_figures),
        cmocka_unit_test(test_who_may_start_at_which_level),
        cmocka_unit_test(test_types_and_slots),
        cmocka_unit_test(test_a_burst_is_not_let_in_twice),
        cmocka_unit_test(test_an_old_one_ends),
        cmocka_unit_test(test_refusals_say_why),
        cmocka_unit_test(test_memory_ramp),
        cmocka_unit_test(test_ends_as_many_as_are_missing_then_waits),
        cmocka_unit_test(test_cpu_takes_three_samples),
        cmocka_unit_test(test_pressure_ends_one),
        cmocka_unit_test(test_vram_ends_one),
        cmocka_unit_test(test_several_slots),
        cmocka_unit_test(test_cpu_ends_who_uses_it),
        cmocka_unit_test(test_a_deployment_takes_no_slot),
        cmocka_unit_test(test_unresolved_and_back_by_itself),
        cmocka_unit_test(test_what_is_stopping_is_not_ended_again),
        cmocka_unit_test(test_nobody_is_ended_below_critical),
        cmocka_unit_test(test_calm_at_a_border),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_logged),
    };
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

    log_setup(LOG_WARN, LOG_LOGFMT, nowhere);
    return cmocka_run_group_tests_name("protect", tests, NULL, NULL);
}
