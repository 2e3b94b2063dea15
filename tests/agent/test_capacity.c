/* What a node declares, what of it is free, and what its own work holds of what it was promised, on
 * a machine with 8 cores, 16 GB, and GPUs as each test adds them. */
#include "agent/capacity.h"

#include <stdlib.h>
#include <string.h>

#include "../unit.h"

enum { MB = 1024, TASKS_MAX = 8 };

struct scene {
    struct config config;
    struct capacity capacity;
    struct usage usage;
    struct usage_gpus gpus;
    struct usage_tree trees[TASKS_MAX];
    struct demand demands[TASKS_MAX];
    struct capacity_task tasks[TASKS_MAX];
    size_t count;
    int64_t now_ms;
    struct buf text;
    struct arena arena;
};

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);

    scene->config.resources.mem_reserve_gb = 2;
    scene->usage = (struct usage){.cores_milli = 8000,
                                  .busy_permille = 0,
                                  .mem_total_kib = 16 * MB * MB,
                                  .mem_free_kib = 14 * MB * MB};
    scene->now_ms = 1000;
    scene->capacity = (struct capacity){.config = &scene->config};
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    buf_free(&scene->text);
    arena_free(&scene->arena);
    free(scene);
    return 0;
}

/* Sets `resources` of the agent's file. */
static void declare(struct scene *scene, const char *json)
{
    const struct json *root;

    assert_int_equal(json_parse(str_of(json), &scene->arena, &root, NULL), ERR_OK);
    assert_int_equal(resources_read(root, &scene->arena, &scene->config.declared.resources, NULL),
                     ERR_OK);
    scene->config.declared.gpus = json_get(root, "gpus") != NULL;
}

static void tick(struct scene *scene)
{
    scene->now_ms += 1000;
    capacity_sample(&scene->capacity, scene->now_ms, &scene->usage, scene->tasks, scene->count);
}

static struct demand demand_of(struct scene *scene, const char *needs)
{
    struct demand demand = demand_plain;
    const struct json *root;

    assert_int_equal(json_parse(str_of(needs), &scene->arena, &root, NULL), ERR_OK);
    assert_int_equal(demand_read_needs(root, &scene->arena, &demand, NULL), ERR_OK);
    return demand;
}

/* Adds a job with these needs; its index + 1 is its pid. */
static struct usage_tree *add_task(struct scene *scene, const char *needs, uint64_t gpus)
{
    size_t at = scene->count++;

    scene->demands[at] = demand_of(scene, needs);
    scene->trees[at] = (struct usage_tree){.pid = (int)at + 1, .cpu_permille = 0};
    scene->tasks[at] = (struct capacity_task){
        .demand = &scene->demands[at], .gpus = gpus, .tree = &scene->trees[at]};
    return &scene->trees[at];
}

static struct usage_gpu_card *add_card(struct scene *scene, int id, int vram_mb, int free_mb)
{
    struct usage_gpu_card *card = &scene->gpus.cards[scene->gpus.count++];

    *card = (struct usage_gpu_card){.id = id, .vram_mb = vram_mb, .vram_free_mb = free_mb};
    scene->usage.gpus = &scene->gpus;
    return card;
}

static void add_process(struct scene *scene, size_t card, int tree, int vram_mb)
{
    scene->gpus.cards[card].listed = true;
    scene->gpus.cards[card].vram_free_mb -= vram_mb;
    scene->gpus.processes[scene->gpus.process_count++] = (struct usage_gpu_process){
        .card = card, .pid = 100 + tree, .tree = tree, .vram_mb = vram_mb};
}

static const char *written(struct scene *scene)
{
    struct jsonw w = jsonw_to(&scene->text);

    buf_clear(&scene->text);
    jsonw_obj(&w);
    capacity_write(&scene->capacity, &w);
    jsonw_end_obj(&w);
    buf_char(&scene->text, 0);
    return scene->text.at;
}

static void test_measured(void **state)
{
    struct scene *scene = *state;

    assert_string_equal(written(scene), "{}"); /* nothing measured yet */
    tick(scene);
    assert_string_equal(written(scene), "{\"resources\":{\"cpu\":8,\"mem_mb\":14336},"
                                        "\"free\":{\"cpu\":8,\"mem_mb\":12288},"
                                        "\"ours\":{\"cpu\":0,\"mem_mb\":0}}");
    add_card(scene, 1, 23034, 23000);
    strcpy(scene->gpus.cards[0].model, "L4");
    tick(scene);
    assert_non_null(
        strstr(written(scene), "\"gpus\":[{\"id\":1,\"model\":\"L4\",\"vram_mb\":23034}]"));
    assert_non_null(strstr(written(scene), "\"gpus\":[{\"id\":1,\"vram_mb\":23000}]"));
    scene->usage.mem_total_kib = 4 * MB * MB; /* the limit of the control group changes later */
    tick(scene);
    assert_non_null(strstr(written(scene), "\"mem_mb\":14336"));
}

/* Amounts in the file win over measured ones; 0 removes a resource. */
static void test_declared(void **state)
{
    struct scene *scene = *state;

    declare(scene, "{\"licences\":3,\"cpu\":4,\"mem_mb\":0,\"gpus\":[]}");
    add_card(scene, 0, 23034, 23000);
    tick(scene);
    assert_string_equal(written(scene), "{\"resources\":{\"cpu\":4,\"licences\":3},"
                                        "\"free\":{\"cpu\":4},\"ours\":{\"cpu\":0}}");
    declare(scene, "{\"cpu\":16,\"gpus\":[{\"id\":7,\"vram_mb\":5000}]}");
    scene->capacity.declared = false;
    tick(scene);
    assert_string_equal(written(scene), "{\"resources\":{\"cpu\":16,\"mem_mb\":14336,"
                                        "\"gpus\":[{\"id\":7,\"vram_mb\":5000}]},"
                                        "\"free\":{\"cpu\":16,\"mem_mb\":12288,\"gpus\":[]},"
                                        "\"ours\":{\"cpu\":0,\"mem_mb\":0,\"gpus\":[]}}");
    /* Not among the measured GPUs: all of its memory counts as usable. */
    assert_int_equal(scene->capacity.resources.gpus[0].usable_mb, 5000);
}

/* Free plus ours stays the same when a job takes what it was promised, and when it ends. */
static void test_what_is_ours(void **state)
{
    struct scene *scene = *state;
    struct usage_tree *tree = add_task(scene, "{\"mem_mb\":4000,\"cpu\":2}", 0);
    const struct resources *resources = &scene->capacity.resources;

    tick(scene);
    assert_int_equal(resources->items[0].usable, 8000);
    assert_int_equal(resources->items[1].usable, 12288);
    assert_int_equal(resources->items[1].used, 4000);
    tree->freed_kib = 3000 * MB;
    tree->cpu_permille = 125; /* one core */
    scene->usage.busy_permille = 130;
    scene->usage.mem_free_kib -= 3000 * MB;
    tick(scene);
    assert_non_null(strstr(written(scene), "\"free\":{\"cpu\":7,\"mem_mb\":9288},"
                                           "\"ours\":{\"cpu\":1,\"mem_mb\":3000}"));
    assert_int_equal(resources->items[1].usable, 12288);
    /* What a job uses beyond its need counts as used by others; swap does not count as memory. */
    tree->freed_kib = 7000 * MB;
    tree->swap_kib = 1000 * MB;
    scene->usage.mem_free_kib -= 3000 * MB;
    tick(scene);
    assert_int_equal(resources->items[1].usable, 12288 - 2000);
    capacity_take(&scene->capacity, &scene->demands[0], 0, -1);
    assert_int_equal(resources->items[1].used, 0);
    scene->count = 0;
    scene->usage.mem_free_kib = 14 * MB * MB;
    tick(scene);
    assert_int_equal(resources->items[1].usable, 12288);
    assert_int_equal(resources->items[0].usable, 8000);
}

/* CPU use of other processes counts as an average over seconds, and only above a tenth of the
 * machine. */
static void test_cpu_of_others(void **state)
{
    struct scene *scene = *state;
    const struct resource *cpu = &scene->capacity.resources.items[0];

    scene->usage.busy_permille = 90;
    for (int i = 0; i < 30; i++)
        tick(scene);
    assert_int_equal(cpu->usable, 8000);
    scene->usage.busy_permille = 500;
    tick(scene);
    assert_true(cpu->usable > 7000); /* after one second of it */
    for (int i = 0; i < 60; i++)
        tick(scene);
    assert_in_range(cpu->usable, 4800, 4900);
    scene->usage.busy_permille = 0;
    for (int i = 0; i < 60; i++)
        tick(scene);
    assert_int_equal(cpu->usable, 8000);
    /* The CPU time of our own job in the second in which it ended does not count as used by
     * others. */
    scene->usage.busy_permille = 1000;
    add_task(scene, "{\"cpu\":8}", 0)->cpu_permille = 1000;
    for (int i = 0; i < 10; i++)
        tick(scene);
    scene->count = 0;
    capacity_take(&scene->capacity, &scene->demands[0], 0, -1);
    tick(scene);
    assert_int_equal(cpu->usable, 8000);
}

static void test_vram(void **state)
{
    struct scene *scene = *state;
    const struct resource_gpu *gpu = scene->capacity.resources.gpus;

    add_card(scene, 0, 23034, 23034);
    add_card(scene, 1, 23034, 23034);
    add_task(scene, "{\"vram_mb\":7000}", 1);
    add_task(scene, "{\"vram_mb\":7000}", 1);
    add_task(scene, "{\"gpus\":1}", 2);
    tick(scene);
    assert_int_equal(gpu[0].used_mb, 14000);
    assert_true(gpu[1].whole);
    assert_int_equal(gpu[0].usable_mb, 23034);
    /* The owner of the memory is unknown: it counts as ours up to what was promised. */
    scene->gpus.cards[0].vram_free_mb -= 20000;
    tick(scene);
    assert_int_equal(gpu[0].usable_mb, 3034 + 14000);
    assert_int_equal(scene->capacity.short_total_mb, 0);
    /* The owners are known. */
    scene->gpus.cards[0].vram_free_mb = 23034;
    add_process(scene, 0, 1, 6000);
    add_process(scene, 0, 2, 9000);
    add_process(scene, 0, 0, 500);
    add_process(scene, 1, 3, 20000);
    tick(scene);
    assert_int_equal(gpu[0].usable_mb, 23034 - 500 - 2000);
    assert_int_equal(gpu[1].usable_mb, 23034);
    assert_int_equal(capacity_vram_kib(&scene->usage, 0, 2), 9000 * MB);
    assert_int_equal(capacity_vram_kib(&scene->usage, 1, 2), 0);
    assert_int_equal(capacity_vram_kib(&scene->usage, 9, 2), USAGE_NONE);
    assert_int_equal(scene->capacity.short_total_mb, 0); /* all promises can still be kept */
    /* A GPU disappears: nothing more is placed on it, and the jobs there still count. */
    scene->gpus.count = 1;
    scene->gpus.process_count = 3;
    tick(scene);
    assert_int_equal(scene->capacity.resources.gpu_count, 2);
    assert_int_equal(gpu[1].usable_mb, 0);
    assert_true(gpu[1].whole);
    scene->usage.gpus = NULL;
    tick(scene);
    assert_int_equal(gpu[0].usable_mb, 0);
    assert_int_equal(gpu[0].used_mb, 14000);
}

/* A GPU whose memory is all promised is not short. It is short when others, or jobs that took more
 * than they asked for, leave less than was promised. */
static void test_short_of_vram(void **state)
{
    static const struct {
        int first, second; /* MB used by the two jobs of 7000 */
        int others;        /* MB used by others */
        bool is_short;
    } rows[] = {
        {7000, 7000, 0, false},    {7000, 7000, 6000, false}, {6000, 7000, 6001, true},
        {0, 0, 6001, true},        {7000, 12000, 0, false},   {6000, 13001, 0, true},
        {6000, 10000, 3001, true}, {0, 0, 20000, true},
    };
    struct scene *scene = *state;

    add_card(scene, 4, 20000, 0);
    add_task(scene, "{\"vram_mb\":7000}", 1 << 4);
    add_task(scene, "{\"vram_mb\":7000}", 1 << 4);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        scene->gpus.process_count = 0;
        scene->gpus.cards[0].vram_free_mb = 20000;
        add_process(scene, 0, 1, rows[i].first);
        add_process(scene, 0, 2, rows[i].second);
        add_process(scene, 0, 0, rows[i].others);
        if (scene->gpus.cards[0].vram_free_mb < 0)
            scene->gpus.cards[0].vram_free_mb = 0;
        tick(scene);
        if ((scene->capacity.short_total_mb == 20000) != rows[i].is_short)
            fail_msg("row %zu: %d", i, scene->capacity.short_total_mb);
        assert_true(!rows[i].is_short || scene->capacity.short_gpu == 4);
    }
    scene->count = 0; /* nothing is promised, so others may have it all */
    tick(scene);
    assert_int_equal(scene->capacity.short_total_mb, 0);
}

static void test_what_fits(void **state)
{
    static const struct {
        const char *needs;
        uint64_t gpus;
        const char *why; /* NULL: the job fits */
    } rows[] = {
        {"{}", 0, NULL},
        {"{\"slots\":9}", 0, NULL}, /* slots are checked elsewhere */
        {"{\"mem_mb\":8000}", 0, NULL},
        {"{\"mem_mb\":9000}", 0, "mem_mb: 8288 of 14336 free, needs 9000"},
        {"{\"cpu\":5}", 0, NULL},
        {"{\"cpu\":5.5}", 0, "cpu: 5 of 8 free, needs 5.5"},
        {"{\"licences\":1}", 0, "it has no licences"},
        {"{\"vram_mb\":9000}", 1, NULL},
        {"{\"vram_mb\":9100}", 1, "GPU 0: 8.8 of 22.5 GB free, needs 8.9 GB"},
        {"{\"vram_mb\":9100}", 2, NULL},
        {"{\"gpus\":1}", 2, NULL},
        {"{\"gpus\":1}", 1, "gpus: 0 of 1 free, needs 1"},
        {"{\"vram_mb\":1}", 4, "it has no GPU"},
        {"{\"vram_mb\":1}", 0, "the GPUs that were named are not those it needs"},
        {"{\"gpus\":1}", 3, "the GPUs that were named are not those it needs"},
    };
    struct scene *scene = *state;

    add_card(scene, 0, 23034, 23034);
    add_card(scene, 1, 23034, 23034);
    add_task(scene, "{\"mem_mb\":4000,\"cpu\":3,\"vram_mb\":14034}", 1);
    tick(scene);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct demand demand = demand_of(scene, rows[i].needs);
        struct buf why = {0};
        bool fits = capacity_fits(&scene->capacity, &demand, rows[i].gpus, &why);

        buf_char(&why, 0);
        if (fits != !rows[i].why || strcmp(why.at, rows[i].why ? rows[i].why : "") != 0)
            fail_msg("%s: %d %s", rows[i].needs, fits, why.at);
        buf_free(&why);
    }
    /* Between two samples as well. */
    struct demand more = demand_of(scene, "{\"cpu\":5}");
    struct buf why = {0};
    capacity_take(&scene->capacity, &more, 0, 1);
    assert_false(capacity_fits(&scene->capacity, &more, 0, &why));
    capacity_take(&scene->capacity, &more, 0, -1);
    assert_true(capacity_fits(&scene->capacity, &more, 0, &why));
    buf_free(&why);
}

/* A fall by a 64th must be reported; a rise, or memory that our work takes as promised, must
 * not. */
static void test_falls(void **state)
{
    struct scene *scene = *state;
    struct usage_tree *tree = add_task(scene, "{\"mem_mb\":4000}", 0);

    tick(scene);
    assert_true(capacity_fell(&scene->capacity)); /* nothing was reported yet */
    written(scene);
    assert_false(capacity_fell(&scene->capacity));
    scene->usage.mem_free_kib -= 200 * MB;
    tick(scene);
    assert_false(capacity_fell(&scene->capacity));
    scene->usage.mem_free_kib -= 100 * MB;
    tick(scene);
    assert_true(capacity_fell(&scene->capacity));
    written(scene);
    assert_false(capacity_fell(&scene->capacity));
    scene->usage.mem_free_kib += 300 * MB;
    tick(scene);
    assert_false(capacity_fell(&scene->capacity));
    scene->usage.mem_free_kib -= 4000 * MB;
    tree->freed_kib = 4000 * MB;
    tick(scene);
    assert_false(capacity_fell(&scene->capacity));
    add_card(scene, 0, 23034, 23034);
    tick(scene);
    assert_true(capacity_fell(&scene->capacity)); /* a new GPU counts, too */
    written(scene);
    scene->gpus.cards[0].vram_free_mb = 3034;
    tick(scene);
    assert_true(capacity_fell(&scene->capacity));
}

#define ON_A_SCENE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

/* Room kept for a deployment is not offered to jobs until it is given back. For a copy that asks
 * for more, what it would give back counts as free. */
static void test_what_is_kept(void **state)
{
    struct scene *scene = *state;
    const struct resources *has = &scene->capacity.resources;
    struct demand three, five, nine;
    uint64_t gpus;

    declare(scene, "{\"licences\":8,\"gpus\":[{\"id\":0,\"vram_mb\":10000}]}");
    tick(scene);
    three = demand_of(scene, "{\"licences\":3,\"mem_mb\":6000,\"vram_mb\":4000}");
    five = demand_of(scene, "{\"licences\":5,\"mem_mb\":6000,\"vram_mb\":6000}");
    nine = demand_of(scene, "{\"licences\":8,\"mem_mb\":12000,\"gpus\":1}");
    assert_true(capacity_choose(&scene->capacity, &three, NULL, 0, &gpus, &scene->text));
    assert_int_equal(gpus, 1);
    capacity_keep(&scene->capacity, &three, gpus, 1);
    assert_int_equal(has->gpus[0].usable_mb, 6000);
    assert_false(capacity_fits(&scene->capacity, &nine, 1, &scene->text));
    /* The next sample, which has the copy as a standing task, gives the same. */
    add_task(scene, "{\"licences\":3,\"mem_mb\":6000,\"vram_mb\":4000}", 1);
    scene->tasks[0].standing = true;
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < has->count; k++)
            if (strcmp(has->items[k].name, "licences") == 0)
                assert_int_equal(has->items[k].usable, 5);
        assert_false(capacity_choose(&scene->capacity, &nine, NULL, 0, &gpus, &scene->text));
        assert_true(capacity_choose(&scene->capacity, &nine, &three, 1, &gpus, &scene->text));
        assert_true(capacity_choose(&scene->capacity, &five, NULL, 0, &gpus, &scene->text));
        tick(scene);
    }
    capacity_keep(&scene->capacity, &three, 1, -1);
    assert_true(capacity_choose(&scene->capacity, &nine, NULL, 0, &gpus, &scene->text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_SCENE(test_measured),      ON_A_SCENE(test_declared), ON_A_SCENE(test_what_is_ours),
        ON_A_SCENE(test_cpu_of_others), ON_A_SCENE(test_vram),     ON_A_SCENE(test_short_of_vram),
        ON_A_SCENE(test_what_fits),     ON_A_SCENE(test_falls),    ON_A_SCENE(test_what_is_kept),
    };

    return cmocka_run_group_tests_name("capacity", tests, NULL, NULL);
}
