/* A child works and dies, by a kill or a power cut; every answer it got must hold when the parent
 * opens the same files. Also a full disk that gets room again. */
#include "contract.h"

#include "base/clock.h"
#include "base/mem.h"
#include "lossyvfs.h"
#include "store/embedded.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    JOBS = 1 << 16,
    FLIGHT = 24,
    KILLS = 40,
    POWER_CUTS = 100, /* at each of the first calls, then at random later ones */
    POWER_CUTS_NEAR = 80,
    POWER_CUTS_A_DIR = 20, /* then with fresh files */
    ANSWERS_A_LIFE = 60,   /* then the store is closed and opened, which is cut off too */
    MAX = 1000000,
    LANES = 3,
};

/* The answers the child got, in memory shared with its parent. */
static struct answers {
    _Atomic uint64_t next;       /* the next job's id */
    _Atomic int32_t started;     /* number of RESERVEs answered with a node */
    _Atomic uint8_t state[JOBS]; /* enum job_state + 1; 0: no OK yet */
} * answers;

struct worker {
    struct store_op op;
    struct rig *rig;
    uint64_t job;
    size_t step;
};

static int answers_to_close = -1; /* then the child closes the store and opens it again */
static int answers_left = -1;     /* then the child kills itself, during one of the next batches */

static int under_way;

static void go_on(struct worker *worker);

static void heard(struct store_op *op)
{
    struct worker *worker = container_of(op, struct worker, op);

    if (op->err)
        _exit(1);
    atomic_store(&answers->state[op->job], (uint8_t)(op->head.state + 1));
    if (op->verb == STORE_RESERVE)
        atomic_fetch_add(&answers->started, 1);
    if (answers_left > 0 && --answers_left == 0)
        raise(SIGKILL);
    worker->step++;
    if (answers_to_close > 0)
        answers_to_close--;
    go_on(worker);
}

static uint64_t lane_of(uint64_t job)
{
    return UINT64_MAX - job % LANES;
}

static int priority_of(uint64_t job)
{
    return (int)(job / LANES % 10);
}

/* Each worker takes one job after the other through its life. Every fourth job is left running and
 * another fourth waiting; odd jobs are reserved without waiting first. */
static void go_on(struct worker *worker)
{
    static const enum store_verb steps[] = {STORE_PUT, STORE_RESERVE, STORE_ACK, STORE_FINISH};
    static const size_t ends[] = {3, COUNT_OF(steps), 1, COUNT_OF(steps)}; /* by job % 4 */
    struct store_op *op = &worker->op;

    if (answers_to_close == 0) {
        under_way--;
        return;
    }
    if (!worker->job || worker->step == ends[worker->job % 4]) {
        worker->job = atomic_fetch_add(&answers->next, 1);
        worker->step = worker->job % 2;
        if (worker->job >= JOBS)
            _exit(2);
    }
    *op = (struct store_op){.reply_to = &worker->rig->work_queue.inbox,
                            .done = heard,
                            .job = worker->job,
                            .attempt = 1,
                            .node = STR("n1")};
    op->verb = steps[worker->step];
    if (op->verb == STORE_PUT || op->verb == STORE_RESERVE) {
        op->u.put.spec = STR("{\"text\":\"some words that take a little room in the file\"}");
        op->u.put.demand = STR("1 0 0 cpu=10 tenant:acme");
        op->u.put.max_attempts = 2;
        op->u.put.ttl_ms = RIG_TTL_MS;
        op->u.put.candidate_count = 1;
        op->u.put.candidates[0] =
            (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    }
    if (op->verb == STORE_PUT) {
        op->u.put.lane = lane_of(worker->job);
        op->u.put.priority = priority_of(worker->job);
        op->u.put.wait_ms = RIG_WAIT_MS;
    }
    if (op->verb == STORE_ACK || op->verb == STORE_FINISH) {
        op->u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
        op->u.settle.outcome = STORE_DONE;
    }
    if (store_send(worker->rig->store, op))
        _exit(3);
}

/* Registers the node with its resources, and a rule that counts the starts of all jobs. */
static void set_up(struct rig *rig)
{
    struct store_op node = {.verb = STORE_NODE_PUT, .node = STR("n1")};
    struct store_op limit = {.verb = STORE_LIMIT_SET};

    node.u.node_put.own = node.u.node_put.health = NODE_READY;
    node.u.node_put.max = MAX;
    node.u.node_put.facts = STR("{}");
    node.u.node_put.resources = STR("cpu=1000000000/1000000000 ");
    limit.u.limit.pattern = STR("tenant:*");
    limit.u.limit.limit = limit_none;
    limit.u.limit.limit.rate = LIMIT_RATE_MAX;
    limit.u.limit.limit.rate_ms = LIMIT_WINDOW_MS_MAX;
    if (rig_call(rig, &node) || rig_call(rig, &limit))
        _exit(4);
}

static void work_until_death(struct rig *rig, int calls)
{
    static struct worker workers[FLIGHT];

    rig_open(rig);
    set_up(rig);
    lossyvfs_arm(calls);
    for (int i = 0; i < FLIGHT; i++)
        workers[i] = (struct worker){.rig = rig};
    for (;;) {
        under_way = FLIGHT;
        for (int i = 0; i < FLIGHT; i++)
            go_on(&workers[i]);
        while (under_way > 0) {
            work_queue_wait(&rig->work_queue, 1000);
            inbox_run(&rig->work_queue.inbox);
        }
        rig_close(rig);
        rig_open(rig);
        answers_to_close = ANSWERS_A_LIFE;
    }
}

/* How many jobs are in this state, by the list in the file. */
static int listed(struct rig *rig, enum job_state state)
{
    struct store_op op = {.verb = STORE_JOB_LIST};
    int count = 0;

    op.u.list.states = 1u << state;
    op.u.list.max = JOBS;
    do {
        op.u.list.before = op.u.list.next;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        count += (int)op.u.list.count;
    } while (op.u.list.next);
    return count;
}

/* Each job that waits by the file is in its lane, in order, with the same time to wait as
 * before. */
static void check_lanes(struct rig *rig)
{
    int count = 0;

    for (uint64_t lane = UINT64_MAX; lane > UINT64_MAX - LANES; lane--) {
        const struct store_record *items;

        assert_int_equal(rig_lane(rig, lane, JOBS), ERR_OK);
        assert_int_equal(rig->op.u.lane.waiting, rig->op.u.lane.count);
        items = rig->op.u.lane.items;
        for (size_t i = 0; i < rig->op.u.lane.count; i++, count++) {
            const struct store_head *head = &items[i].head;

            assert_true(lane_of(head->id) == lane && head->lane == lane);
            assert_int_equal(head->priority, priority_of(head->id));
            assert_int_equal(head->due_ms, RIG_START_MS + RIG_WAIT_MS);
            assert_true(
                i == 0 || items[i - 1].head.priority > head->priority ||
                (items[i - 1].head.priority == head->priority && items[i - 1].head.id < head->id));
        }
    }
    assert_int_equal(count, listed(rig, JOB_NEW));
}

/* Each lease takes its share of the node, and each start that was answered is in the window of its
 * key. */
static void check_limits(struct rig *rig)
{
    int leases = listed(rig, JOB_DISPATCHED) + listed(rig, JOB_ACKED);
    struct store_op nodes = {.verb = STORE_COUNTS};
    struct store_op limits = {.verb = STORE_LIMITS};
    const struct store_limit_key *key;

    limits.u.limits.max = 9;
    assert_int_equal(rig_call(rig, &nodes), ERR_OK);
    assert_int_equal(rig_call(rig, &limits), ERR_OK);
    assert_int_equal(nodes.u.nodes.items[0].left.left[0], 1000000000 - 10 * leases);
    assert_int_equal(limits.u.limits.rule_count, 1);
    key = limits.u.limits.keys;
    if (limits.u.limits.key_count == 0) {
        assert_int_equal(atomic_load(&answers->started), 0);
        return;
    }
    assert_int_equal(limits.u.limits.key_count, 1);
    assert_int_equal(key->in_flight, leases);
    assert_int_equal(key->waiting, listed(rig, JOB_NEW));
    assert_true(key->started >= atomic_load(&answers->started));
}

/* Each answer the child got since job `from` holds, or the job went on from there; and the counters
 * match the jobs. */
static void check_answers(struct rig *rig, uint64_t from)
{
    uint64_t end = atomic_load(&answers->next);

    rig_open(rig);
    embedded_check_always(rig->store);
    for (uint64_t job = from; job < end; job++) {
        int was = atomic_load(&answers->state[job]) - 1;
        enum err err = was >= 0 ? rig_get(rig, job) : ERR_OK;

        if (err && was >= JOB_DONE && rig->config.retention_jobs_max)
            continue; /* removed by retention */
        if (err)
            fail_msg("job %llu was answered %s and is gone", (unsigned long long)job,
                     job_state_name((enum job_state)was));
        if (was >= 0 && (int)rig->op.record.head.state < was)
            fail_msg("job %llu was answered %s and is %s", (unsigned long long)job,
                     job_state_name((enum job_state)was),
                     job_state_name(rig->op.record.head.state));
    }
    assert_int_equal(rig_counts(rig, "n1").reserved, listed(rig, JOB_DISPATCHED));
    assert_int_equal(rig_counts(rig, "n1").running, listed(rig, JOB_ACKED));
    check_lanes(rig);
    check_limits(rig);
    arena_reset(&rig->arena);
    rig_close(rig);
}

static void share_answers(void)
{
    answers =
        mmap(NULL, sizeof *answers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(answers != MAP_FAILED);
    atomic_store(&answers->next, 1);
}

static void test_killed_at_any_moment(void **state)
{
    struct rig rig;
    struct rnd rnd;

    rig_init(&rig);
    rnd_seed(&rnd, 7);
    share_answers();
    for (int i = 0; i < KILLS; i++) {
        uint64_t before = atomic_load(&answers->next);
        pid_t child;
        int status;

        answers_left = 1 + (int)rnd_below(&rnd, 500);
        child = fork();
        if (child == 0)
            work_until_death(&rig, -1);
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        check_answers(&rig, before);
    }
    check_answers(&rig, 1);
    answers_left = -1;
    assert_true(atomic_load(&answers->next) > KILLS * FLIGHT);
    munmap(answers, sizeof *answers);
    rig_done(&rig);
}

/* The power goes at the n-th write, sync or truncation of either file, for many n; of what was not
 * synced some is lost. Everything is flushed at once, so both files are always in use. */
static void test_power_cut_at_any_call(void **state)
{
    struct rig rig;
    struct rnd rnd;
    uint64_t jobs = 0;

    rnd_seed(&rnd, 5);
    for (int i = 0; i < POWER_CUTS; i++) {
        uint64_t before;
        pid_t child;
        int status;
        int calls = i < POWER_CUTS_NEAR ? i : (int)rnd_below(&rnd, 1500);

        if (i % POWER_CUTS_A_DIR == 0) {
            rig_init(&rig);
            rig.config.flush_ms = 1;
            rig.config.retention_jobs_max = 20;
            share_answers();
        }
        before = atomic_load(&answers->next);
        child = fork();
        if (child == 0) {
            lossyvfs_install((uint64_t)i + 1);
            answers_to_close = ANSWERS_A_LIFE;
            work_until_death(&rig, calls);
        }
        waitpid(child, &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), LOSSY_DIED);
        check_answers(&rig, before);
        if ((i + 1) % POWER_CUTS_A_DIR == 0) {
            jobs += atomic_load(&answers->next);
            munmap(answers, sizeof *answers);
            rig_open(&rig);
            rig_done(&rig);
        }
    }
    assert_true(jobs > POWER_CUTS);
}

/* Ways to limit a disk's room, and to give it more. */

static void limit_file_size(const char *dir, bool enough)
{
    struct rlimit limit;

    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = enough ? limit.rlim_max : (1 << 20) + 300; /* ends in the middle of a sector */
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void mount_small(const char *dir, bool enough)
{
    if (mount("none", dir, "tmpfs", enough ? MS_REMOUNT : 0, enough ? "size=64m" : "size=2m"))
        _exit(LOSSY_DIED);
}

static enum store_mode mode(struct rig *rig)
{
    struct store_status status;

    store_status(rig->store, &status);
    return status.mode;
}

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* Runs in a child: fills the disk, checks that calls are refused at once, makes room, and checks
 * that the store recovers. */
static void fill_up(struct rig *rig, void (*disk)(const char *dir, bool enough))
{
    static char spec[4000];
    uint64_t job = 1;
    int64_t start_us;
    enum err err;

    memset(spec, ' ', sizeof spec);
    disk(rig->dir, false);
    rig_open(rig);
    embedded_check_always(rig->store);
    CHECK(rig_node(rig, "n1", MAX, NODE_READY) == ERR_OK);
    /* A smaller write may still fit after a larger one was refused: the disk is full when even the
     * smallest is refused. */
    for (int tries = 0;; tries++) {
        struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

        op.u.put.spec = (struct str){spec, sizeof spec};
        op.u.put.max_attempts = 1;
        op.u.put.hold_ms = 15000;
        err = rig_call(rig, &op);
        CHECK(tries < 20000);
        CHECK(err == ERR_OK || err == ERR_STORE_DOWN);
        if (!err)
            job++;
        else if (mode(rig) != STORE_NORMAL && rig_put(rig, job) == ERR_STORE_DOWN)
            break;
    }
    disk(rig->dir, true);
    start_us = clock_mono_us();
    while (mode(rig) != STORE_NORMAL)
        CHECK(clock_mono_us() - start_us < 20000000);
    for (uint64_t id = 1; id < job; id++)
        CHECK(rig_get(rig, id) == ERR_OK);
    CHECK(rig_put(rig, job + 1) == ERR_OK);
    rig_close(rig);
    arena_free(&rig->arena);
    _exit(0);
}

static void run_full(void (*disk)(const char *dir, bool enough), bool private_mounts)
{
    struct rig rig;
    int status;
    pid_t child;

    rig_init(&rig);
    child = fork();
    if (child == 0) {
        if (private_mounts &&
            (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)))
            _exit(LOSSY_DIED);
        fill_up(&rig, disk);
    }
    waitpid(child, &status, 0);
    rig_remove_dir(rig.dir);
    assert_true(WIFEXITED(status));
    if (private_mounts && WEXITSTATUS(status) == LOSSY_DIED)
        skip(); /* mounting is not permitted here */
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_no_room_by_limit(void **state)
{
    run_full(limit_file_size, false);
}

static void test_no_room_on_tmpfs(void **state)
{
    run_full(mount_small, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_power_cut_at_any_call),
        cmocka_unit_test(test_no_room_by_limit),
        cmocka_unit_test(test_no_room_on_tmpfs),
    };

    return cmocka_run_group_tests_name("store/crash", tests, NULL, NULL);
}
