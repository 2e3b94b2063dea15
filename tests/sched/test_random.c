/* Random events: nodes fail, refuse, fall silent, drain, leave and come back; messages come twice,
 * sends do not arrive, the store is away or its answers are lost, the process ends. The invariants
 * hold after every step, and when everything has calmed down, every job has ended. */
#include "rig.h"

#include "sched/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Replaces the C library's: the order of maps depends on a secret of the process. A fixed one makes
 * a seed repeat the same run. */
ssize_t getrandom(void *to, size_t len, unsigned flags)
{
    memset(to, 1, len);
    return (ssize_t)len;
}

enum { NODES = 5, JOBS = 400, RUNS = 2000, STEPS = 500, SEEDS = 6 };

struct run {
    uint64_t job;
    int attempt;
    int node;
    bool acked, over;
};

struct job {
    uint64_t id;
    int max_attempts;
    int last_attempt;
    struct dispatch *dispatch; /* NULL: put into the queue */
    bool refused;
    size_t sends_when_refused;
};

/* A time at which the process ended. */
struct end {
    int64_t at_ms;
    int64_t heard_ms; /* the last tick before it in which the store answered every call */
};

struct world {
    struct rig *rig;
    struct rnd rnd;
    struct job jobs[JOBS];
    size_t job_count;
    struct run runs[RUNS];
    size_t run_count;
    size_t seen_sends;
    bool there[NODES], drained[NODES], silent[NODES];
    bool drained_before[NODES];
    struct end ends[STEPS];
    size_t end_count;
    int64_t heard_ms;
};

static uint32_t below(struct world *world, uint32_t bound)
{
    return rnd_below(&world->rnd, bound);
}

static const char *name(int node)
{
    static const char *const names[NODES] = {"n0", "n1", "n2", "n3", "n4"};

    return names[node];
}

/* --- events --- */

static void come(struct world *world, int node)
{
    if (rig_register(world->rig,
                     arena_fmt(&world->rig->arena,
                               "{\"node_id\":\"%s\",\"max_concurrent_jobs\":%u,"
                               "\"allowed_types\":[\"a\",\"b\"],"
                               "\"semantic_langs\":[\"en\"],"
                               "\"nmt_pairs\":[[\"en\",\"zh\"]],"
                               "\"reserved_slots\":%u,\"labels\":{\"even\":\"%d\"}}",
                               name(node), 1 + below(world, 4), below(world, 2), node % 2)
                         .at) == ERR_OK)
        world->there[node] = true;
}

static void go(struct world *world, int node)
{
    if (rig_drop(world->rig, name(node)) == ERR_OK) {
        world->there[node] = false;
        world->drained[node] = false;
    }
}

static void drain(struct world *world, int node)
{
    bool to = !world->drained[node];

    if (world->there[node] &&
        rig_admin(world->rig, name(node), to ? NODE_ADMIN_DRAINING : NODE_ADMIN_NONE) == ERR_OK)
        world->drained[node] = to;
}

static struct job *job_add(struct world *world, uint64_t id, int max_attempts)
{
    struct job *job = &world->jobs[world->job_count++];

    assert_true(world->job_count <= JOBS);
    *job = (struct job){.id = id, .max_attempts = max_attempts};
    return job;
}

static void beat_all(struct world *world)
{
    for (int i = 0; i < NODES; i++)
        if (world->there[i] && !world->silent[i] && !world->rig->refuse &&
            !world->rig->refuse_one_in)
            rig_beat(world->rig, arena_fmt(&world->rig->arena, "{\"node_id\":\"%s\"}", name(i)).at);
}

static void tick(struct world *world, int64_t ms)
{
    struct rig *rig = world->rig;

    rig_tick(rig, ms);
    if (!rig->refuse && !rig->refuse_one_in && !rig->lose_one_in)
        world->heard_ms = rig->wall_ms;
    beat_all(world);
}

static void submit(struct world *world)
{
    static const char *const bodies[] = {
        "{\"type\":\"a\"}",
        "{\"type\":\"b\",\"requires\":\"even=0\",\"max_attempts\":3}",
        "{\"type\":\"a\",\"options\":{\"preferred_node_id\":\"n1\"}}",
        "{\"type\":\"a\",\"options\":{\"preferred_node_id\":\"n2\",\"strict\":true}}",
        "{\"type\":\"b\",\"interactive\":true,\"timeout_ms\":3000}",
        "{\"type\":\"a\",\"max_attempts\":1}",
    };
    bool f2f = below(world, 3) == 0;
    struct dispatch *dispatch =
        f2f ? rig_f2f(world->rig, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\"}")
            : rig_task(world->rig, bodies[below(world, COUNT_OF(bodies))]);

    if (world->job_count == JOBS)
        return;
    dispatch->loop = rig_loop(world->rig, (int)below(world, RIG_LOOPS));
    job_add(world, dispatch->job, dispatch->max_attempts)->dispatch = dispatch;
    dispatch_start(dispatch);
}

static void queue_up(struct world *world)
{
    char json[128];
    int max_attempts = 1 + (int)below(world, 2);

    if (world->job_count == JOBS)
        return;
    snprintf(json, sizeof json,
             "{\"type\":\"%s\",\"queue_ms\":%u,\"priority\":%u,\"interactive\":%s,"
             "\"max_attempts\":%d}",
             below(world, 2) ? "a" : "b", 1000 + below(world, 60000), below(world, 10),
             below(world, 2) ? "true" : "false", max_attempts);
    job_add(world, rig_wait_in_queue(world->rig, json), max_attempts);
}

/* A node reports about one of its runs: the right message, an old one, or a repeat. */
static void speak(struct world *world)
{
    static const char *const reasons[] = {"BROKEN", "NODE_OVERLOADED", "TYPE_NOT_ALLOWED"};
    struct run *run = &world->runs[world->run_count ? below(world, (uint32_t)world->run_count) : 0];
    uint32_t what = below(world, 10);

    if (!world->run_count)
        return;
    if (what < 5) {
        if (rig_settle(world->rig, SETTLE_ACK, run->job, run->attempt, name(run->node), NULL) ==
            ERR_OK)
            run->acked = true;
    } else if (what < 8) {
        rig_settle(world->rig, SETTLE_DONE, run->job, run->attempt, name(run->node), NULL);
    } else {
        rig_settle(world->rig, SETTLE_FAIL, run->job, run->attempt, name(run->node),
                   reasons[below(world, COUNT_OF(reasons))]);
    }
}

/* One of the sends under way arrives or fails. False: there was none. */
static bool answer_one(struct world *world, bool ok)
{
    struct rig *rig = world->rig;
    size_t open[64], count = 0;

    for (size_t i = rig->sent_count; i-- > 0 && count < COUNT_OF(open);)
        if (rig->sent[i].op)
            open[count++] = i;
    if (!count)
        return false;
    rig_answer(rig, open[below(world, (uint32_t)count)], ok);
    rig_quiet(rig);
    return true;
}

static void answer_all(struct world *world, bool ok)
{
    world->rig->reach = RIG_OK;
    while (answer_one(world, ok))
        ;
}

/* A process that has ended cannot abandon a job any more: its client was told OUTCOME_UNKNOWN, and
 * the job may still run if the store has it and it has not ended. */
static void forgive(struct world *world)
{
    for (size_t i = 0; i < world->job_count; i++) {
        struct job *job = &world->jobs[i];

        if (!job->dispatch || !rig_over(job->dispatch) || job->dispatch->err != ERR_UNKNOWN)
            continue;
        struct store_head head = rig_job(world->rig, job->id);
        if (!head.id || job_state_final(head.state))
            continue;
        job->dispatch = NULL;
        job->refused = false;
    }
}

static void restart(struct world *world)
{
    if (world->rig->refuse)
        return;
    answer_all(world, below(world, 2));
    world->rig->refuse_one_in = world->rig->lose_one_in = 0;
    forgive(world);
    world->rig->wall_ms++; /* no call has the same time as the end */
    world->ends[world->end_count++] =
        (struct end){.at_ms = world->rig->wall_ms, .heard_ms = world->heard_ms};
    rig_restart(world->rig);
}

static void step(struct world *world)
{
    struct rig *rig = world->rig;
    int node = (int)below(world, NODES);
    uint32_t what = below(world, 100);

    if (what < 25)
        submit(world);
    else if (what < 35)
        queue_up(world);
    else if (what < 70)
        speak(world);
    else if (what < 82) {
        tick(world, 100 + below(world, 1500));
    } else if (what < 85)
        drain(world, node);
    else if (what < 88)
        rig->unreachable = below(world, 2) ? str_of(name(node)) : STR_NONE;
    else if (what < 91)
        rig->refuse = below(world, 2) ? ERR_STORE_DOWN : ERR_OK;
    else if (what < 93)
        world->silent[node] = !world->silent[node];
    else if (what < 95 && world->job_count)
        rig_settle(rig, SETTLE_CANCEL, world->jobs[below(world, (uint32_t)world->job_count)].id, 0,
                   NULL, "CANCELLED");
    else if (what < 97)
        go(world, node);
    else if (what < 99)
        come(world, node);
    else
        restart(world);
    rig_quiet(rig);
    what = below(world, 20);
    if (what < 4)
        answer_one(world, below(world, 3));
    else if (what < 6)
        rig->reach = below(world, 2) ? RIG_KEEP : RIG_OK;
    else if (what == 6)
        rig->refuse_one_in = below(world, 2) ? 0 : 2 + below(world, 8);
    else if (what == 7)
        rig->lose_one_in = below(world, 2) ? 0 : 2 + below(world, 8);
    rig_quiet(rig);
}

/* --- invariants --- */

static struct job *find(struct world *world, uint64_t id)
{
    for (size_t i = 0; i < world->job_count; i++)
        if (world->jobs[i].id == id)
            return &world->jobs[i];
    fail_msg("a job nobody submitted was sent");
    return NULL;
}

static void look_at_send(struct world *world, const struct rig_sent *sent)
{
    struct job *job = find(world, sent->job);
    int node = sent->node[1] - '0';

    if (world->drained[node] && world->drained_before[node])
        fail_msg("%s drains and was sent a job", sent->node);
    if (job->refused)
        fail_msg("a job was sent although its client was refused");
    assert_true(sent->attempt >= job->last_attempt && sent->attempt <= job->max_attempts);
    job->last_attempt = sent->attempt;
    if (world->run_count < RUNS)
        world->runs[world->run_count++] =
            (struct run){.job = sent->job, .attempt = sent->attempt, .node = node};
}

static void look(struct world *world)
{
    struct rig *rig = world->rig;

    for (; world->seen_sends < rig->sent_count; world->seen_sends++)
        look_at_send(world, &rig->sent[world->seen_sends]);
    for (size_t i = 0; i < world->job_count; i++) {
        struct job *job = &world->jobs[i];

        if (!job->dispatch || !rig_over(job->dispatch))
            continue;
        job->refused = job->dispatch->err != ERR_OK;
    }
    for (int i = 0; i < NODES; i++) {
        const struct node *node = rig_node(rig, name(i));

        if (node)
            assert_int_equal(atomic_load(&node->pending), 0);
        world->drained_before[i] = world->drained[i];
    }
    assert_true(atomic_load(&rig->sched.queue_depth) >= 0);
}

/* --- when everything has calmed down --- */

/* An ended attempt in the history of its job. */
struct past {
    int64_t attempt, dispatched_ms, ended_ms;
    struct str node;
};

static bool was_sent(const struct world *world, uint64_t job, const struct past *past)
{
    for (size_t i = 0; i < world->rig->sent_count; i++) {
        const struct rig_sent *sent = &world->rig->sent[i];

        if (sent->job == job && sent->attempt == past->attempt &&
            sent->at_ms == past->dispatched_ms && str_is(past->node, sent->node))
            return true;
    }
    return false;
}

/* The process that reserved got no answer, and ended before a tick in which it could have taken the
 * reservation back. The next process uses up the attempt, because the job may have been sent, but
 * never the last one. */
static bool was_orphaned(const struct world *world, int max_attempts, const struct past *past)
{
    for (size_t i = 0; i < world->end_count; i++) {
        const struct end *end = &world->ends[i];

        if (past->dispatched_ms < end->at_ms)
            return past->dispatched_ms >= end->heard_ms && past->ended_ms >= end->at_ms &&
                   past->attempt < max_attempts;
    }
    return false;
}

/* An attempt that ended with ACK_TIMEOUT was sent, or orphaned by the end of a process. */
static void look_back(struct world *world, const struct job *job)
{
    struct arena *arena = &world->rig->arena;
    struct str history = rig_history(world->rig, job->id);
    const struct json *list;

    if (!history.len)
        return;
    assert_int_equal(json_parse(history, arena, &list, NULL), ERR_OK);
    const struct json *entry = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, entry = json_next(entry)) {
        struct past past = {.node = json_str(json_get(entry, "node_id"), arena)};

        if (!json_str_is(json_get(entry, "reason"), "ACK_TIMEOUT"))
            continue;
        assert_true(json_int(json_get(entry, "attempt_id"), &past.attempt) &&
                    json_int(json_get(entry, "dispatched_ms"), &past.dispatched_ms) &&
                    json_int(json_get(entry, "ended_ms"), &past.ended_ms));
        if (!was_sent(world, job->id, &past) && !was_orphaned(world, job->max_attempts, &past))
            fail_msg("job %llx was never sent in attempt %d of %d, which ended without an ACK",
                     (unsigned long long)job->id, (int)past.attempt, job->max_attempts);
    }
}

static bool all_over(struct world *world)
{
    for (size_t i = 0; i < world->job_count; i++) {
        struct store_head head = rig_job(world->rig, world->jobs[i].id);

        if (head.id && !job_state_final(head.state))
            return false;
        if (!head.id && world->jobs[i].dispatch)
            assert_true(world->jobs[i].refused); /* an accepted job is never lost */
    }
    return true;
}

static void calm_down(struct world *world)
{
    struct rig *rig = world->rig;

    rig->refuse = ERR_OK;
    rig->refuse_one_in = rig->lose_one_in = 0;
    rig->unreachable = STR_NONE;
    answer_all(world, below(world, 2));
    look(world);
    for (size_t i = 0; i < world->job_count; i++)
        assert_true(!world->jobs[i].dispatch || rig_over(world->jobs[i].dispatch));
    for (int i = 0; i < NODES; i++) {
        world->silent[i] = false;
        come(world, i);
        if (world->drained[i])
            drain(world, i);
    }
    for (int second = 0; second < 120 && !all_over(world); second++) {
        tick(world, 1000);
        look(world);
        for (size_t i = 0; i < world->run_count; i++) {
            struct run *run = &world->runs[i];

            if (run->over)
                continue;
            run->over = rig_settle(rig, SETTLE_ACK, run->job, run->attempt, name(run->node),
                                   NULL) != ERR_OK ||
                        rig_settle(rig, SETTLE_DONE, run->job, run->attempt, name(run->node),
                                   NULL) == ERR_OK;
        }
    }
    assert_true(all_over(world));
    for (size_t i = 0; i < world->job_count; i++)
        look_back(world, &world->jobs[i]);
}

static void nothing_is_left(struct world *world)
{
    struct rig *rig = world->rig;

    for (int i = 0; i < 50; i++) { /* until leases of jobs cancelled while running have ended */
        tick(world, 1000);
    }
    for (int i = 0; i < NODES; i++) {
        struct lease_node counts = rig_counts(rig, name(i));

        if (counts.reserved || counts.running || counts_load(rig_node(rig, name(i))))
            fail_msg("%s has %d reserved, %d running, %d shown", name(i), counts.reserved,
                     counts.running, counts_load(rig_node(rig, name(i))));
    }
    assert_int_equal(atomic_load(&rig->sched.queue_depth), 0);
    assert_int_equal(rig_lanes(rig), 0);
}

static void run_seed(uint64_t seed)
{
    struct world *world = calloc(1, sizeof *world);

    world->rig = rig_new();
    rig_open(world->rig);
    rnd_seed(&world->rnd, seed);
    for (int i = 0; i < NODES; i++)
        come(world, i);
    for (int i = 0; i < STEPS; i++) {
        step(world);
        look(world);
    }
    calm_down(world);
    nothing_is_left(world);
    rig_free(world->rig);
    free(world);
}

static void whatever_happens(void **state)
{
    const char *only = getenv("BERTH_TEST_SEED"); /* to repeat one seed */

    if (only) {
        run_seed(strtoull(only, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        run_seed(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whatever_happens)};

    return cmocka_run_group_tests_name("sched/random", tests, NULL, NULL);
}
