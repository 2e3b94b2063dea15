/* How nodes come, change and leave: a change is stored first, then live on every loop, then
 * answered. */
#include "rig.h"

#include "sched/sched.h"
#include "sched/shared_text.h"

#include <string.h>

#define N1 "{\"node_id\":\"n1\",\"allowed_types\":[\"*\"],\"max_concurrent_jobs\":4"
#define RESOURCES                                                                                  \
    "{\"cpu\":8,\"mem_mb\":16000,\"gpus\":[{\"id\":1,\"model\":\"L4\",\"vram_mb\":24000}]}"
#define LABELS ",\"labels\":{\"gpu\":\"yes\"}"

static void an_answer_comes_when_every_loop_knows(void **state)
{
    struct rig *rig = *state;

    rig->held = 1;
    struct node_change *change = rig_begin_register(rig, 0, N1 "}");
    rig_quiet(rig);
    assert_non_null(snapshot_node(rig_loop(rig, 0)->snapshot, STR("n1")));
    assert_null(snapshot_node(rig_loop(rig, 1)->snapshot, STR("n1")));
    assert_false(rig_changed(change)); /* loop 1 does not have the node yet */
    rig->held = -1;
    rig_quiet(rig);
    assert_true(rig_changed(change));
    assert_int_equal(change->err, ERR_OK);
    assert_non_null(snapshot_node(rig_loop(rig, 1)->snapshot, STR("n1")));
    assert_ptr_equal(change->node, rig_node(rig, "n1"));
}

static void heartbeats_cost_what_they_tell(void **state)
{
    static const struct {
        const char *json;
        enum registry_beat beat;
    } rows[] = {
        {"{\"node_id\":\"n2\"}", BEAT_UNKNOWN},
        {"{\"node_id\":\"n1\"}", BEAT_TAKEN},
        {N1 "}", BEAT_TAKEN},
        {N1 ",\"max\":4}", BEAT_TAKEN},
        {N1 ",\"max\":2}", BEAT_FIGURES},
        {N1 ",\"max\":2}", BEAT_TAKEN},
        {N1 "}", BEAT_TAKEN},
        {N1 ",\"max\":4}", BEAT_FIGURES},
        {N1 LABELS "}", BEAT_NEWS},
        {N1 LABELS "}", BEAT_TAKEN},
        {"{\"node_id\":\"n1\",\"health\":\"draining\"}", BEAT_NEWS},
        {"{\"node_id\":\"n1\",\"health\":\"draining\"}", BEAT_TAKEN},
        {"{\"node_id\":\"n1\",\"health\":\"ready\"}", BEAT_NEWS},
        {"{\"node_id\":\"n1\",\"current_load\":{\"cpu\":0.25},\"level\":\"warning\"}", BEAT_TAKEN},
    };
    struct rig *rig = *state;

    assert_int_equal(rig_register(rig, N1 "}"), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t calls = rig->calls[STORE_NODE_PUT];
        enum registry_beat beat = rig_beat(rig, rows[i].json);
        bool free = beat == BEAT_TAKEN || beat == BEAT_UNKNOWN;

        if (beat != rows[i].beat || (rig->calls[STORE_NODE_PUT] == calls) != free)
            fail_msg("row %zu, %s: %d", i, rows[i].json, beat);
    }
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->cpu_pm), 250);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->level), 1);
}

/* A node never gets more than it registered, whatever `max` its heartbeats have. */
static void max_is_never_above_what_was_registered(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 4);
    for (int i = 0; i < 3; i++) {
        enum registry_beat beat = rig_beat(rig, "{\"node_id\":\"n1\",\"max\":100}");

        assert_int_equal(beat, BEAT_TAKEN); /* capped to 4 as before: no change */
        assert_int_equal(atomic_load(&rig_node(rig, "n1")->max), 4);
        assert_int_equal(rig_counts(rig, "n1").max, 4);
    }
    assert_int_equal(rig_beat(rig, "{\"node_id\":\"n1\",\"max\":1}"), BEAT_FIGURES);
    assert_int_equal(rig_counts(rig, "n1").max, 1);
    assert_int_equal(rig_beat(rig, "{\"node_id\":\"n1\",\"max\":50}"), BEAT_FIGURES);
    assert_int_equal(rig_counts(rig, "n1").max, 4);
    for (int i = 0; i < 4; i++)
        rig_place(rig, "{\"type\":\"t\"}");
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_ALL_FULL);
    /* Lowered below what it runs: no job is taken from it, and no more are given. */
    assert_int_equal(rig_beat(rig, "{\"node_id\":\"n1\",\"max\":2}"), BEAT_FIGURES);
    assert_int_equal(counts_load(rig_node(rig, "n1")), 4);
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_ALL_FULL);
}

static struct node_change *begin_admin(struct rig *rig, int loop, enum node_admin word)
{
    return rig_begin(
        rig, loop,
        &(struct node_change){.kind = NODE_CHANGE_ADMIN, .node_id = STR("n1"), .admin = word});
}

/* A heartbeat was sent before the operator's drain and is stored after it. */
static void a_late_heartbeat_does_not_end_a_drain(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 4);
    rig->keep = STORE_NODE_PUT;
    rig_begin_register(rig, 1, N1 LABELS "}");
    rig->keep = STORE_VERB_COUNT;
    struct node_change *drain = begin_admin(rig, 0, NODE_ADMIN_DRAINING);
    rig_quiet(rig);
    assert_true(rig_changed(drain));
    rig_let_go(rig);
    rig_quiet(rig);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_DRAINING);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_DRAINING);
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_ALL_FULL);
    /* The other way round: a heartbeat that saw the drain does not drain the node again. */
    rig->keep = STORE_NODE_PUT;
    rig_begin_register(rig, 1, N1 ",\"labels\":{}}");
    rig->keep = STORE_VERB_COUNT;
    begin_admin(rig, 0, NODE_ADMIN_NONE);
    rig_quiet(rig);
    rig_let_go(rig);
    rig_quiet(rig);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_READY);
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_OK);
}

/* Loop 0 is slow to pass on the store's answer to the first change. */
static void changes_that_overtake_each_other_end_in_the_stores_order(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 4);
    struct node_change *first = rig_begin_register(rig, 0, N1 ",\"labels\":{\"v\":\"1\"}}");
    rig->held = 0;
    rig_quiet(rig);
    struct node_change *second =
        rig_begin_register(rig, 1, N1 ",\"labels\":{\"v\":\"2\"},\"max\":3}");
    rig_quiet(rig);
    rig->held = -1;
    rig_quiet(rig);
    assert_true(rig_changed(first) && rig_changed(second));
    assert_str(snapshot_node(rig_loop(rig, 0)->snapshot, STR("n1"))->facts->labels,
               "{\"v\":\"2\"}");
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->max), 3);
    /* The second change is remembered, so its values are no change. */
    assert_int_equal(rig_beat(rig, N1 ",\"labels\":{\"v\":\"2\"},\"max\":3}"), BEAT_TAKEN);
}

static void a_node_that_came_back_is_not_taken_for_the_one_that_left(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 4);
    for (int i = 0; i < 3; i++) /* raises the version of its record */
        rig_beat(rig, i % 2 ? N1 LABELS "}" : N1 ",\"labels\":{}}");
    struct node_change *left =
        rig_begin(rig, 0, &(struct node_change){.kind = NODE_CHANGE_DROP, .node_id = STR("n1")});
    rig->held = 0;
    rig_quiet(rig);
    struct node_change *back = rig_begin_register(rig, 1, N1 ",\"role\":\"x\"}");
    rig_quiet(rig);
    rig->held = -1;
    rig_quiet(rig);
    assert_true(rig_changed(left) && rig_changed(back));
    assert_non_null(rig_node(rig, "n1")); /* as the store has it */
    assert_str(snapshot_node(rig_loop(rig, 0)->snapshot, STR("n1"))->facts->role, "x");
}

/* A node that left and registers again has none of its former values. */
static void a_node_that_left_is_forgotten(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(rig_register(rig, N1 LABELS ",\"level\":\"critical\",\"usage\":{\"a\":1}}"),
                     ERR_OK);
    rig_beat(rig, "{\"node_id\":\"n1\",\"level\":\"critical\",\"current_load\":{\"cpu\":1},"
                  "\"usage\":{\"a\":1}}");
    assert_int_equal(rig_drop(rig, "n1"), ERR_OK);
    assert_null(rig_node(rig, "n1"));
    assert_int_equal(rig_drop(rig, "n1"), ERR_NOT_FOUND);
    assert_int_equal(rig_admin(rig, "n1", NODE_ADMIN_DRAINING), ERR_NOT_FOUND);
    assert_int_equal(rig_beat(rig, "{\"node_id\":\"n1\"}"), BEAT_UNKNOWN);
    assert_int_equal(rig_register(rig, N1 "}"), ERR_OK);
    const struct node *node = rig_node(rig, "n1");
    assert_int_equal(atomic_load(&node->level), -1); /* no heartbeat of an agent yet */
    assert_int_equal(atomic_load(&node->cpu_pm), -1);
    struct buf buf = {0};
    shared_text_read(atomic_load(&node->usage), &buf);
    assert_int_equal(buf.len, 0);
    buf_free(&buf);
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_OK);
    assert_int_equal(rig_beat(rig, N1 LABELS "}"), BEAT_NEWS);
    assert_str(snapshot_node(rig_loop(rig, 0)->snapshot, STR("n1"))->facts->labels,
               "{\"gpu\":\"yes\"}");
}

static void a_dropped_drain_is_over(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    assert_int_equal(rig_admin(rig, "n1", NODE_ADMIN_CORDONED), ERR_OK);
    assert_int_equal(rig_drop(rig, "n1"), ERR_OK);
    rig_worker(rig, "n1", 1);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_READY);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->admin), NODE_ADMIN_NONE);
}

static void the_fleet_has_a_bound(void **state)
{
    struct rig *rig = *state;

    rig->sched.config.nodes_max = 2;
    rig_worker(rig, "n1", 1);
    rig_worker(rig, "n2", 1);
    assert_int_equal(rig_register(rig, "{\"node_id\":\"n3\"}"), ERR_BUSY);
    assert_int_equal(rig_register(rig, N1 LABELS "}"), ERR_OK); /* a known node may still change */
    assert_int_equal(rig_drop(rig, "n2"), ERR_OK);
    assert_int_equal(rig_register(rig, "{\"node_id\":\"n3\"}"), ERR_OK);
}

static void a_store_that_is_away_changes_nothing(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 4);
    rig->refuse = ERR_STORE_DOWN;
    assert_int_equal(rig_register(rig, "{\"node_id\":\"n2\"}"), ERR_STORE_DOWN);
    assert_int_equal(rig_register(rig, N1 LABELS "}"), ERR_STORE_DOWN);
    assert_int_equal(rig_admin(rig, "n1", NODE_ADMIN_DRAINING), ERR_STORE_DOWN);
    assert_int_equal(rig_drop(rig, "n1"), ERR_STORE_DOWN);
    rig->refuse = ERR_OK;
    assert_null(rig_node(rig, "n2"));
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_READY);
    assert_int_equal(rig_beat(rig, N1 LABELS "}"), BEAT_NEWS); /* it is still a change */
}

/* A change that reaches the store too late has no effect, and is answered as such. */
static void a_late_change_is_refused(void **state)
{
    struct rig *rig = *state;

    rig->keep = STORE_NODE_PUT;
    struct node_change *change = rig_begin_register(rig, 0, N1 "}");
    rig_tick(rig, rig->config.store_timeout_ms + 1);
    rig_let_go(rig);
    rig_quiet(rig);
    assert_true(rig_changed(change));
    assert_int_equal(change->err, ERR_STORE_DOWN);
    assert_null(rig_node(rig, "n1"));
}

static void signs_of_life_are_written_sparingly(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    struct node *node = (struct node *)rig_node(rig, "n1");
    int64_t first_ms = atomic_load(&node->heartbeat_ms);
    rig->mono_ms += 999;
    registry_alive(rig_loop(rig, 0), node);
    assert_int_equal(atomic_load(&node->heartbeat_ms), first_ms);
    rig->mono_ms += 1;
    registry_alive(rig_loop(rig, 0), node);
    assert_int_equal(atomic_load(&node->heartbeat_ms), rig->mono_ms);
    /* A pause is noticed only now: without a new write, the time noted before would look fresh for
     * a minute. */
    atomic_fetch_add(&rig->sched.paused_ms, 60000);
    registry_alive(rig_loop(rig, 0), node);
    assert_int_equal(atomic_load(&node->heartbeat_ms), rig->mono_ms - 60000);
}

/* A node with a raised max is offered waiting jobs at once. */
static void a_raised_max_is_room(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_place(rig, "{\"type\":\"t\"}");
    rig_beat(rig, "{\"node_id\":\"n1\",\"max\":1}");
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":60000}");
    rig_quiet(rig);
    assert_int_equal(rig_sends_of(rig, job), 0);
    rig_beat(rig, "{\"node_id\":\"n1\",\"max\":2}");
    rig_quiet(rig); /* without a tick */
    assert_int_equal(rig_sends_of(rig, job), 1);
}

/* A node that lists no runs has lost those it had, and its leases are void, unless it reports that
 * it is just taking a job whose ACK may be under way. */
static void who_comes_back_without_its_runs_is_told_from_who_begins_one(void **state)
{
    static const struct {
        const char *json;
        bool empty;
    } rows[] = {
        {"{\"node_id\":\"n1\",\"running_jobs\":[]}", true},
        {"{\"node_id\":\"n1\",\"running_jobs\":[],\"taking\":0}", true},
        {"{\"node_id\":\"n1\",\"running_jobs\":[],\"taking\":1}", false},
        {"{\"node_id\":\"n1\",\"running_jobs\":[{\"job_id\":\"j1\",\"attempt_id\":1}]}", false},
        {"{\"node_id\":\"n1\"}", false}, /* no list at all */
        {"{\"node_id\":\"n2\",\"running_jobs\":[]}", false},
        {"{\"node_id\":\"idle\",\"running_jobs\":[]}", false},
    };
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\"}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    rig_worker(rig, "idle", 2);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct json *json;
        struct node_report report;

        assert_int_equal(json_parse(str_of(rows[i].json), &rig->arena, &json, NULL), ERR_OK);
        assert_int_equal(node_report_read(json, STR_NONE, NULL, &rig->arena, &report, NULL),
                         ERR_OK);
        if (registry_came_back_empty(rig_loop(rig, 0), &report) != rows[i].empty)
            fail_msg("%s", rows[i].json);
    }
}

/* Usable resources are put into the store when they fell or rose enough, and only then. */
static void a_measured_fall_is_put_and_noise_is_not(void **state)
{
    static const struct {
        const char *json;
        enum registry_beat beat;
        int32_t mem_mb, vram_mb; /* usable, afterwards */
    } rows[] = {
        {N1 "}", BEAT_TAKEN, 16000, 24000},
        {N1 ",\"free\":{\"mem_mb\":16000}}", BEAT_TAKEN, 16000, 24000},
        {N1 ",\"free\":{\"mem_mb\":8000,\"gpus\":[{\"id\":1,\"vram_mb\":3000}]}}", BEAT_FIGURES,
         8000, 3000},
        {N1 ",\"free\":{\"mem_mb\":8100,\"gpus\":[{\"id\":1,\"vram_mb\":3001}]}}", BEAT_TAKEN, 8000,
         3000},
        {N1 "}", BEAT_TAKEN, 8000, 3000},
        /* What berth's own jobs use counts as usable. */
        {N1 ",\"free\":{\"mem_mb\":2000,\"gpus\":[{\"id\":1,\"vram_mb\":3000}]},"
            "\"ours\":{\"mem_mb\":6000}}",
         BEAT_TAKEN, 8000, 3000},
        {N1 ",\"free\":{\"mem_mb\":20000,\"gpus\":[{\"id\":1,\"vram_mb\":3000}]},\"max\":1}",
         BEAT_FIGURES, 16000, 3000},
        {N1 ",\"resources\":" RESOURCES "}", BEAT_TAKEN, 16000, 3000},
        {N1 ",\"labels\":{\"a\":\"b\"}}", BEAT_NEWS, 16000, 3000}, /* keeps the measured values */
    };
    struct rig *rig = *state;

    assert_int_equal(rig_register(rig, N1 ","
                                          "\"resources\":" RESOURCES "}"),
                     ERR_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t puts = rig->calls[STORE_NODE_PUT];
        enum registry_beat beat = rig_beat(rig, rows[i].json);
        const struct snap_node *n1 = snapshot_node(rig_loop(rig, 0)->snapshot, STR("n1"));
        struct resources now = counts_usable(n1->node, n1->facts->resources);

        if (beat != rows[i].beat || now.items[1].usable != rows[i].mem_mb ||
            now.gpus[0].usable_mb != rows[i].vram_mb)
            fail_msg("%s: beat %d, mem_mb %d, vram_mb %d", rows[i].json, beat, now.items[1].usable,
                     now.gpus[0].usable_mb);
        assert_int_equal(rig->calls[STORE_NODE_PUT] - puts, beat != BEAT_TAKEN);
        if (beat == BEAT_FIGURES) /* resources do not change the max */
            assert_int_equal(atomic_load(&n1->node->max), i == 6 ? 1 : 4);
    }
}

static void figures_that_are_none_are_refused(void **state)
{
    static const char *const bodies[] = {
        N1 ",\"free\":[]}", N1 ",\"free\":{\"mem_mb\":\"much\"}}", N1 ",\"free\":{\"mem_mb\":-1}}",
        N1 ",\"free\":{},\"ours\":{\"gpus\":[{\"id\":\"a\"}]}}", N1 ",\"free\":{\"gpus\":{}}}"};
    struct rig *rig = *state;

    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        const struct json *json;
        struct node_report report;
        struct problem why = {0};

        assert_int_equal(json_parse(str_of(bodies[i]), &rig->arena, &json, NULL), ERR_OK);
        if (node_report_read(json, STR_NONE, NULL, &rig->arena, &report, &why) != ERR_BAD_FIELD)
            fail_msg("%s", bodies[i]);
    }
    assert_int_equal(rig_register(rig, N1 ",\"resources\":{\"cpu\":\"8\"}}"), ERR_BAD_FIELD);
    assert_int_equal(rig_register(rig, N1 ",\"resources\":{\"gpus\":[{\"id\":64,\"vram_mb\":1}]}}"),
                     ERR_BAD_FIELD);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        ROW(an_answer_comes_when_every_loop_knows),
        ROW(heartbeats_cost_what_they_tell),
        ROW(max_is_never_above_what_was_registered),
        ROW(a_raised_max_is_room),
        ROW(a_late_heartbeat_does_not_end_a_drain),
        ROW(changes_that_overtake_each_other_end_in_the_stores_order),
        ROW(a_node_that_came_back_is_not_taken_for_the_one_that_left),
        ROW(a_node_that_left_is_forgotten),
        ROW(a_dropped_drain_is_over),
        ROW(the_fleet_has_a_bound),
        ROW(a_store_that_is_away_changes_nothing),
        ROW(a_late_change_is_refused),
        ROW(signs_of_life_are_written_sparingly),
        ROW(who_comes_back_without_its_runs_is_told_from_who_begins_one),
        ROW(a_measured_fall_is_put_and_noise_is_not),
        ROW(figures_that_are_none_are_refused),
    };

    return cmocka_run_group_tests_name("sched/registry", tests, NULL, NULL);
}
