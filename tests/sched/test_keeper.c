/* The keeper: editions of the snapshot, loading at the start, and nodes that fall silent. */
#include "rig.h"

#include "base/metrics.h"
#include "sched/sched.h"
#include "sched/tally.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEAT_MS = 5000 };

static void ready_comes_once_the_nodes_are_there(void **state)
{
    struct rig *rig = rig_new();

    rig->refuse = ERR_OK;
    rig_open(rig);
    assert_int_equal(rig->loads, 1);
    rig_worker(rig, "n1", 2);
    rig_tick(rig, 1000);
    assert_int_equal(rig->loads, 1); /* not again with every edition */
    rig_free(rig);
}

/* A restart loads nodes, leases and the operator's drains before any request is served. */
static void a_restart_finds_everything(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    rig_admin(rig, "n2", NODE_ADMIN_DRAINING);
    uint64_t job = rig_place(rig, "{\"type\":\"t\"}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    rig_restart(rig);
    const struct node *n1 = rig_node(rig, "n1"), *n2 = rig_node(rig, "n2");
    assert_int_equal(atomic_load(&n1->health), NODE_READY);
    assert_int_equal(counts_of(n1).running, 1);
    assert_int_equal(atomic_load(&n1->max), 2);
    assert_int_equal(atomic_load(&n2->admin), NODE_ADMIN_DRAINING);
    assert_int_equal(atomic_load(&n2->health), NODE_DRAINING);
    /* Silence is counted from here. */
    assert_int_equal(atomic_load(&n1->heartbeat_ms), rig->wall_ms);
    assert_int_equal(rig_settle(rig, SETTLE_DONE, job, 1, "n1", NULL), ERR_OK);
}

/* --- editions --- */

static void one_edition_is_under_way_at_a_time(void **state)
{
    struct rig *rig = *state;
    struct node_change *changes[5];
    char json[64];

    rig_worker(rig, "n0", 1);
    int64_t before = rig_loop(rig, 1)->snapshot->version;
    rig->held = 1;
    for (int i = 0; i < 5; i++) {
        snprintf(json, sizeof json, "{\"node_id\":\"x%d\",\"max_concurrent_jobs\":1}", i);
        changes[i] = rig_begin_register(rig, 0, json);
        rig_quiet(rig);
    }
    assert_int_equal(rig_loop(rig, 0)->snapshot->version, before + 1);
    for (int i = 0; i < 5; i++)
        assert_false(rig_changed(changes[i]));
    rig->held = -1;
    rig_quiet(rig);
    for (int i = 0; i < 5; i++)
        assert_true(rig_changed(changes[i]));
    /* The last four shared one edition. */
    assert_int_equal(rig_loop(rig, 1)->snapshot->version, before + 2);
    assert_ptr_equal(rig_loop(rig, 0)->snapshot, rig_keeper(rig)->snapshot);
}

/* The address sanitiser would report it if a snapshot that loop 1 still reads were freed. */
static void what_a_loop_reads_is_not_freed(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    const struct snapshot *old = rig_loop(rig, 1)->snapshot;
    int64_t version = old->version;
    rig->held = 1;
    for (int i = 0; i < 4; i++) {
        rig_begin_register(rig, 0,
                           i % 2 ? "{\"node_id\":\"n1\",\"name\":\"a\"}"
                                 : "{\"node_id\":\"n1\",\"name\":\"b\"}");
        rig_quiet(rig);
        assert_ptr_equal(rig_loop(rig, 1)->snapshot, old);
        assert_non_null(snapshot_node(old, STR("n1"))->facts->json.at);
        assert_int_equal(snapshot_type_pool(old, STR("t"))->counts[0], 1);
    }
    rig->held = -1;
    rig_quiet(rig);
    assert_true(rig_loop(rig, 1)->snapshot->version > version);
}

/* --- silence --- */

static void beat(struct rig *rig, const char *id)
{
    char json[64];

    snprintf(json, sizeof json, "{\"node_id\":\"%s\"}", id);
    rig_beat(rig, json);
}

/* n2 sends heartbeats, n1 does not. */
static void pass_without_n1(struct rig *rig, int64_t ms)
{
    for (; ms > 0; ms -= BEAT_MS) {
        rig_pass(rig, ms < BEAT_MS ? ms : BEAT_MS);
        beat(rig, "n2");
    }
}

static void silence_has_three_ends(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    uint32_t epoch = rig_counts(rig, "n1").epoch;
    pass_without_n1(rig, 20000); /* stale after 15 s: it gets no work, but is not lost */
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    for (int i = 0; i < 2; i++)
        assert_str(str_of(rig_last_sent(rig, rig_place(rig, "{\"type\":\"t\"}"))->node), "n2");
    pass_without_n1(rig, 20000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    pass_without_n1(rig, 7000); /* lost after 45 s */
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
    assert_int_equal(rig_counts(rig, "n1").epoch, epoch + 1);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_OFFLINE);
    pass_without_n1(rig, 10000);
    assert_int_equal(rig_counts(rig, "n1").epoch, epoch + 1); /* raised once */
    beat(rig, "n1");                                          /* n1 comes back */
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    rig_pass(rig, 2000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_READY);
}

/* The process stands still for an hour, with heartbeats of all nodes in its sockets: they are
 * handled before any node is judged, and a node that really is silent is still found. */
static void a_pause_of_ours_is_nobodys_silence(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1,\"queue_ms\":9000}");
    const char *node = rig_last_sent(rig, job)->node;
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, node, NULL), ERR_OK);
    pass_without_n1(rig, 40000);
    beat(rig, "n2");
    rig_tick(rig, 3600000);
    rig_pass(rig, 4000);
    beat(rig, "n2");
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    assert_int_equal(rig_counts(rig, "n2").health, NODE_READY);
    assert_int_equal(rig_job(rig, job).state, JOB_ACKED);
    pass_without_n1(rig, 10000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
    assert_int_equal(rig_counts(rig, "n2").health, NODE_READY);
    /* A loop noted a heartbeat before the keeper noticed the pause. */
    rig->mono_ms += 3600000;
    rig->wall_ms += 3600000;
    beat(rig, "n2");
    rig_tick(rig, 0);
    rig_pass(rig, 50000);
    assert_int_equal(rig_counts(rig, "n2").health, NODE_OFFLINE);
}

static void a_clock_that_is_set_loses_nobody(void **state)
{
    static const int64_t steps[] = {3600000, -7200000, 60000};
    struct rig *rig = *state;

    rig->sched.config.forget_ms = 60000;
    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        rig->wall_ms += steps[i];
        rig_pass(rig, 3000);
        assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
        assert_int_equal(rig_counts(rig, "n2").health, NODE_READY);
    }
    pass_without_n1(rig, 46000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
}

/* If many nodes fall silent at once, a switch may have died or this process be at fault: one in
 * twenty is found lost each second, but at least a few. */
static void not_all_are_lost_at_once(void **state)
{
    enum { NODES = 200 };
    struct rig *rig = *state;
    size_t before = 0, steps = 0;

    for (int i = 0; i < NODES; i++) {
        char id[16];

        snprintf(id, sizeof id, "n%d", i);
        rig_worker(rig, id, 1);
    }
    for (int i = 0; i < 46 + NODES && before < NODES; i++) {
        size_t lost = 0;

        rig_pass(rig, 1000);
        for (uint32_t j = 0; j < NODES; j++)
            lost += atomic_load(&snapshot_numbered(rig_keeper(rig)->snapshot, j)->node->health) ==
                    NODE_OFFLINE;
        assert_true(lost - before <= NODES / 20);
        steps += lost > before;
        before = lost;
    }
    assert_int_equal(before, NODES);
    assert_true(steps >= 20);
}

static void after_an_hour_it_is_forgotten(void **state)
{
    struct rig *rig = *state;

    rig->sched.config.forget_ms = 60000;
    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    pass_without_n1(rig, 70000);
    assert_null(rig_node(rig, "n1"));
    assert_int_equal(rig_counts(rig, "n1").health, NODE_HEALTH_NONE);
    assert_non_null(rig_node(rig, "n2"));
}

/* A silent node that the store no longer has is forgotten too. */
static void who_is_in_no_store_is_forgotten_too(void **state)
{
    struct rig *rig = *state;

    rig->sched.config.forget_ms = 60000;
    rig_worker(rig, "n1", 2);
    rig_drop_behind(rig, "n1");
    assert_non_null(rig_node(rig, "n1"));
    rig_pass(rig, 65000);
    assert_null(rig_node(rig, "n1"));
}

/* Of a large fleet the counters are compared in parts: a node that the store no longer has is
 * missed all the same, and the others are not. */
static void one_of_many_that_the_store_lacks_is_forgotten(void **state)
{
    enum { NODES = 1200 };
    struct rig *rig = *state;
    char id[16];

    for (int i = 1; i <= NODES; i++) {
        snprintf(id, sizeof id, "n%d", i);
        rig_worker(rig, id, 2);
    }
    rig_tick(rig, 1000);
    assert_int_equal(rig_loop(rig, 0)->snapshot->count, NODES);
    rig_drop_behind(rig, "n700");
    rig_tick(rig, 1000);
    rig_tick(rig, 1000);
    assert_null(rig_node(rig, "n700"));
    assert_int_equal(rig_loop(rig, 0)->snapshot->count, NODES - 1);
}

static void a_lost_nodes_jobs_move_on_at_once(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\"}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    rig_worker(rig, "n2", 2);
    pass_without_n1(rig, 48000);
    assert_int_equal(rig_job(rig, job).attempt, 2);
    assert_string_equal(rig_job(rig, job).node, "n2");
    assert_int_equal(rig_counts(rig, "n1").running, 0);
}

/* A node falls silent while the store is away: the store gets it as soon as it is back. */
static void who_is_lost_while_the_store_is_away_is_lost_afterwards(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    pass_without_n1(rig, 40000);
    rig->refuse = ERR_STORE_DOWN;
    rig_pass(rig, 8000);
    rig->refuse = ERR_OK;
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY); /* not known to the store yet */
    rig_pass(rig, 3000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_OFFLINE);
}

/* Ending a drain says nothing about whether the node is alive. */
static void to_undrain_a_lost_node_does_not_make_it_ready(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    rig_admin(rig, "n1", NODE_ADMIN_DRAINING);
    pass_without_n1(rig, 48000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
    rig_admin(rig, "n1", NODE_ADMIN_NONE);
    pass_without_n1(rig, 2000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
    beat(rig, "n1");
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
}

static void a_node_that_sends_rubbish_is_degraded(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    struct node *node = (struct node *)rig_node(rig, "n1");
    for (int i = 0; i < 3; i++)
        atomic_fetch_add(&node->bad_heartbeats, 1);
    rig_pass(rig, 2000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_DEGRADED);
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_ALL_FULL);
    beat(rig, "n1"); /* a valid heartbeat */
    rig_pass(rig, 2000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
}

/* A node's connection closes: the grace period begins at once, and nothing is sent to the node
 * meanwhile. Its run may go on there, so no other node starts the job before the lease has
 * ended. */
static void who_hangs_up_is_lost_after_the_grace(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\"}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    registry_left(rig_loop(rig, 0), (struct node *)rig_node(rig, "n1"), false);
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_ALL_FULL);
    rig_pass(rig, 14000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    rig_pass(rig, 4000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
    rig_pass(rig, 26000);
    assert_int_equal(rig_job(rig, job).state, JOB_ACKED);
    assert_int_equal(rig_counts(rig, "n1").running, 1);
    rig_pass(rig, 2000);
    assert_int_not_equal(rig_job(rig, job).state, JOB_ACKED);
    assert_int_equal(rig_counts(rig, "n1").running, 0);
}

/* A node that says goodbye and runs nothing is lost at once; one with a run gets the grace
 * period. */
static void who_says_goodbye_is_gone(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\"}");
    const char *busy = strcmp(rig_job(rig, job).node, "n1") == 0 ? "n1" : "n2";
    const char *idle = strcmp(busy, "n1") == 0 ? "n2" : "n1";
    rig_settle(rig, SETTLE_ACK, job, 1, busy, NULL);
    registry_left(rig_loop(rig, 0), (struct node *)rig_node(rig, busy), true);
    registry_left(rig_loop(rig, 0), (struct node *)rig_node(rig, idle), true);
    rig_pass(rig, 2000);
    assert_int_equal(rig_counts(rig, idle).health, NODE_OFFLINE);
    assert_int_equal(rig_counts(rig, busy).health, NODE_READY);
    rig_pass(rig, 16000);
    assert_int_equal(rig_counts(rig, busy).health, NODE_OFFLINE);
    assert_int_equal(rig_job(rig, job).state, JOB_ACKED);
    beat(rig, idle); /* it comes back at once */
    rig_pass(rig, 2000);
    assert_int_equal(rig_counts(rig, idle).health, NODE_READY);
}

static void who_comes_back_in_time_has_lost_nothing(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint32_t epoch = rig_counts(rig, "n1").epoch;
    registry_left(rig_loop(rig, 0), (struct node *)rig_node(rig, "n1"), false);
    rig_pass(rig, 10000);
    beat(rig, "n1");
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_OK);
    rig_pass(rig, 10000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
    assert_int_equal(rig_counts(rig, "n1").epoch, epoch);
}

/* A restart does not count as a sign of life of a node that was lost before. */
static void who_was_lost_stays_lost_after_a_restart(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    pass_without_n1(rig, 48000);
    rig_restart(rig);
    pass_without_n1(rig, 3000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_OFFLINE);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->health), NODE_OFFLINE);
    beat(rig, "n1");
    rig_pass(rig, 2000);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);
}

/* Failures lower a node's score, and a node with a low score gets no jobs to improve it: after a
 * minute without jobs its record is cleared. */
static void what_a_node_did_long_ago_is_forgotten(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n2", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n2", NULL);
    rig_settle(rig, SETTLE_FAIL, job, 1, "n2", "BROKEN");
    const struct node *node = rig_node(rig, "n2");
    int well = sched_score(node, rig->sched.config.latency_target_ms);
    pass_without_n1(rig, 55000);
    assert_int_equal(sched_score(node, rig->sched.config.latency_target_ms), well);
    job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n2", NULL);
    rig_settle(rig, SETTLE_FAIL, job, 1, "n2", "BROKEN");
    pass_without_n1(rig, 55000); /* the minute started again with that job */
    assert_int_equal(atomic_load(&node->ring_at), 2);
    pass_without_n1(rig, 10000);
    assert_int_equal(atomic_load(&node->ring_at), 0);
    assert_true(sched_score(node, rig->sched.config.latency_target_ms) > well);
}

/* How long a machine was observed, over all hours. */
static int64_t looked_at_ms(struct rig *rig, const char *node)
{
    const struct hours *hours = keeper_hours(rig->sched.keeper);
    int64_t sum_ms = 0;

    for (int i = 0; i < HOURS_MAX; i++)
        for (int level = 0; hours->ring[i].tally && level < TALLY_LEVELS; level++)
            sum_ms += tally_machine(hours->ring[i].tally, str_of(node))->level_ms[level];
    return sum_ms;
}

/* The report says how long a machine was at each level; a pause of this process is not counted,
 * since nothing was observed. */
static void what_nobody_saw_is_no_time_of_a_machine(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n2", 2);
    pass_without_n1(rig, 20000);
    int64_t seen_ms = looked_at_ms(rig, "n2");
    assert_in_range(seen_ms, 10000, 20000);
    rig->wall_ms += HOUR_MS;
    rig->mono_ms += HOUR_MS;
    rig_tick(rig, 100);
    assert_int_equal(looked_at_ms(rig, "n2"), seen_ms);
    pass_without_n1(rig, 20000);
    assert_in_range(looked_at_ms(rig, "n2"), seen_ms + 10000, seen_ms + 20000);
}

/* --- counters --- */

static void counters_are_read_once_a_second(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 3);
    const struct node *node = rig_node(rig, "n1");
    counts_full((struct node *)node);
    assert_int_equal(counts_load(node), 3);
    rig_tick(rig, 1000);
    assert_int_equal(counts_load(node), 0); /* as the store has it */
}

/* A node that runs more than its lowered max has no free slot, but does not reduce the sum over all
 * nodes either. */
static void slots_beyond_a_lowered_max_are_not_counted(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 3);
    for (int i = 0; i < 3; i++)
        rig_place(rig, "{\"type\":\"t\"}");
    rig_worker(rig, "n2", 4);
    rig_beat(rig, "{\"node_id\":\"n1\",\"max_concurrent_jobs\":1}");
    rig_tick(rig, 1000);
    assert_int_equal(metric_value(METRIC_SLOTS, "max"), 5);
    assert_int_equal(metric_value(METRIC_SLOTS, "used"), 1);
    assert_int_equal(metric_value(METRIC_SLOTS, "free"), 4);
    assert_int_equal(metric_value(METRIC_LEASES, "reserved"), 3);
}

/* --- threads --- */

enum { THREAD_NODES = 40, THREAD_LOOPS = 2, EDITIONS = 300 };

/* Two loops read their snapshots all the time while a third thread publishes: the thread sanitiser
 * checks for races, the address sanitiser for freed memory. */
struct crowd {
    struct sched sched;
    struct work_queue work_queues[THREAD_LOOPS + 1];
    int64_t wall_ms;
    pthread_t threads[THREAD_LOOPS + 1];
    _Atomic bool over;
    _Atomic int answered;
    _Atomic uint64_t order;
};

static struct crowd *crowd;

/* A store that answers OK at once, on the caller's thread. */
static void say_yes(struct store_op *op)
{
    op->err = ERR_OK;
    op->order = atomic_fetch_add(&crowd->order, 1) + 1;
    op->counts = (struct lease_node){.health = op->u.node_put.health, .max = 4, .epoch = 1};
    if (op->verb == STORE_NODES || op->verb == STORE_COUNTS)
        op->u.nodes.count = 0;
    else if (op->verb == STORE_DUE)
        op->u.due.count = 0;
    else
        op->u.node_put.version = (int64_t)op->order;
    op->done(op);
}

static struct msg *yes(struct store *store, struct msg *ops)
{
    for (struct msg *next; ops; ops = next) {
        next = ops->next;
        say_yes(container_of(ops, struct store_op, msg));
    }
    return NULL;
}

static void fine(struct store *store, struct store_status *status)
{
    *status = (struct store_status){.mode = STORE_NORMAL};
}

static void count_answer(struct node_change *change)
{
    assert_int_equal(change->err, ERR_OK);
    atomic_fetch_add(&crowd->answered, 1);
    free(change);
}

static void change_some(struct sched_loop *loop, int number, struct arena *arena)
{
    struct node_change *change = calloc(1, sizeof *change);
    const struct json *root;
    struct node_report report;
    struct problem why;
    struct str json =
        arena_fmt(arena, "{\"node_id\":\"n%d\",\"name\":\"v%d\",\"allowed_types\":[\"t%d\"]}",
                  number % THREAD_NODES, number, number % 7);

    assert_int_equal(json_parse(json, arena, &root, &why), ERR_OK);
    assert_int_equal(node_report_read(root, STR_NONE, NULL, arena, &report, &why), ERR_OK);
    assert_int_equal(registry_prepare(loop, &report, change, &why), ERR_OK);
    change->done = count_answer;
    registry_send(loop, change);
}

/* Touches everything in a snapshot, so that reading a freed one is noticed. */
static size_t read_all(const struct snapshot *snapshot)
{
    const struct snap_node *node;
    const struct snap_pool *pool;
    size_t sum = 0;

    for (struct snap_at at = {0}; (node = snapshot_next(snapshot, &at));)
        sum += node->facts->json.len + (size_t)counts_load(node->node);
    for (struct snap_at at = {0}; (pool = snapshot_next_pool(snapshot, &at));)
        for (uint32_t m = 0; m < pool->counts[0]; m++)
            sum += snapshot_numbered(snapshot, pool->members[0][m])->node->id.len;
    return sum;
}

static void *run_loop(void *arg)
{
    struct sched_loop *loop = arg;
    struct work_queue *work_queue = &crowd->work_queues[loop->index];
    struct arena arena = {0}; /* of all its changes; their texts are read until they are answered */
    int sent = 0;

    while (!atomic_load(&crowd->over)) {
        inbox_run(&work_queue->inbox);
        if (sent < EDITIONS && loop->snapshot)
            change_some(loop, sent++ * 2 + loop->index, &arena);
        sched_flush(loop);
        read_all(loop->snapshot);
    }
    arena_free(&arena);
    return NULL;
}

static void *run_keeper(void *arg)
{
    struct sched *sched = arg;
    struct work_queue *work_queue = &crowd->work_queues[THREAD_LOOPS];

    keeper_start(sched->keeper);
    while (!atomic_load(&crowd->over)) {
        sched_flush(sched_keeper_loop(sched));
        inbox_run(&work_queue->inbox);
        keeper_turn(sched->keeper);
        if (atomic_load(&crowd->answered) == THREAD_LOOPS * EDITIONS)
            atomic_store(&crowd->over, true);
    }
    return NULL;
}

static void no_hook(struct sched_loop *from, struct str node_id, const char *what)
{
}

static void no_note(struct sched_loop *from, const struct settle_note *note)
{
}

static void no_load(struct sched *sched)
{
}

static void many_editions_while_loops_read(void **state)
{
    static const struct store_backend backend = {.send = yes, .status = fine};
    static const struct sched_hooks hooks = {
        .noted = no_note, .node_changed = no_hook, .loaded = no_load};
    struct sched_config config = {.nodes_max = 1000,
                                  .store_timeout_ms = 2000,
                                  .view_drop_ms = 30000,
                                  .lost_grace_ms = 15000,
                                  .forget_ms = 3600000};
    struct store store = {.backend = &backend};
    struct problem why;

    crowd = calloc(1, sizeof *crowd);
    crowd->wall_ms = RIG_START_MS;
    assert_int_equal(sched_init(&crowd->sched, &config, &store, THREAD_LOOPS, &hooks, &why),
                     ERR_OK);
    for (int i = 0; i <= THREAD_LOOPS; i++) {
        work_queue_init(&crowd->work_queues[i]);
        sched_loop_init(&crowd->sched, i, &crowd->work_queues[i].inbox, &crowd->wall_ms,
                        &crowd->wall_ms);
    }
    for (int i = 0; i < THREAD_LOOPS; i++)
        pthread_create(&crowd->threads[i], NULL, run_loop, &crowd->sched.loops[i]);
    pthread_create(&crowd->threads[THREAD_LOOPS], NULL, run_keeper, &crowd->sched);
    for (int i = 0; i <= THREAD_LOOPS; i++)
        pthread_join(crowd->threads[i], NULL);
    assert_int_equal(atomic_load(&crowd->answered), THREAD_LOOPS * EDITIONS);
    assert_int_equal(crowd->sched.loops[THREAD_LOOPS].snapshot->count, THREAD_NODES);
    sched_done(&crowd->sched);
    free(crowd);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_comes_once_the_nodes_are_there),
        ROW(a_restart_finds_everything),
        ROW(one_edition_is_under_way_at_a_time),
        ROW(what_a_loop_reads_is_not_freed),
        ROW(silence_has_three_ends),
        ROW(after_an_hour_it_is_forgotten),
        ROW(who_is_in_no_store_is_forgotten_too),
        ROW(a_pause_of_ours_is_nobodys_silence),
        ROW(a_clock_that_is_set_loses_nobody),
        ROW(not_all_are_lost_at_once),
        ROW(one_of_many_that_the_store_lacks_is_forgotten),
        ROW(a_lost_nodes_jobs_move_on_at_once),
        ROW(who_is_lost_while_the_store_is_away_is_lost_afterwards),
        ROW(to_undrain_a_lost_node_does_not_make_it_ready),
        ROW(a_node_that_sends_rubbish_is_degraded),
        ROW(who_hangs_up_is_lost_after_the_grace),
        ROW(who_says_goodbye_is_gone),
        ROW(who_comes_back_in_time_has_lost_nothing),
        ROW(who_was_lost_stays_lost_after_a_restart),
        ROW(what_a_node_did_long_ago_is_forgotten),
        ROW(what_nobody_saw_is_no_time_of_a_machine),
        ROW(counters_are_read_once_a_second),
        ROW(slots_beyond_a_lowered_max_are_not_counted),
        cmocka_unit_test(many_editions_while_loops_read),
    };

    return cmocka_run_group_tests_name("sched/keeper", tests, NULL, NULL);
}
