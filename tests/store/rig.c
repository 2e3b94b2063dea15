/* See rig.h. */
#include "rig.h"

#include "base/mem.h"

#include <assert.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static _Atomic int64_t clock_ms = RIG_START_MS;

int64_t rig_now_ms(void)
{
    return atomic_load(&clock_ms);
}

void rig_clock_set(int64_t now_ms)
{
    atomic_store(&clock_ms, now_ms);
}

void rig_jump(int64_t ms)
{
    atomic_fetch_add(&clock_ms, ms);
}

void rig_pass(struct rig *rig, int64_t ms)
{
    enum { STEP_MS = 4000 };

    while (ms > 0) {
        int64_t step = ms < STEP_MS ? ms : STEP_MS;
        struct store_op op = {RIG_NOTHING};

        rig_jump(step);
        rig_call(rig, &op);
        ms -= step;
    }
}

/* In memory if there is room: the tests simulate lost writes themselves, and a real disk would only
 * slow them down. */
static const char *base_dir(void)
{
    enum { ROOM_MIN_MB = 1024 };
    const char *tmp = getenv("TMPDIR");
    struct statvfs info;

    if (tmp)
        return tmp;
    if (statvfs("/dev/shm", &info) == 0 && access("/dev/shm", W_OK) == 0 &&
        (info.f_bavail >> 10) * (info.f_frsize >> 10) >= ROOM_MIN_MB)
        return "/dev/shm";
    return "/tmp";
}

void rig_init(struct rig *rig)
{
    *rig = (struct rig){.ttl_ms = RIG_TTL_MS,
                        .config = {.url = "embedded:",
                                   .instance = 1,
                                   .in_flight_max = 10000,
                                   .terms = {RIG_RUN_MS, RIG_F2F_MS},
                                   .now_ms = rig_now_ms}};
    snprintf(rig->dir, sizeof rig->dir, "%s/berth-store-XXXXXX", base_dir());
    if (!mkdtemp(rig->dir))
        abort();
    rig->config.data_dir = rig->dir;
    work_queue_init(&rig->work_queue);
    rig_clock_set(RIG_START_MS);
}

void rig_open(struct rig *rig)
{
    struct problem why = {0};

    if (!store_open(&rig->config, &rig->store, &why))
        return;
    fprintf(stderr, "%s\n", why.detail);
    abort();
}

void rig_close(struct rig *rig)
{
    store_close(rig->store);
    rig->store = NULL;
}

void rig_remove_dir(const char *dir)
{
    DIR *list = opendir(dir);

    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[512];

        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (list)
        closedir(list);
    rmdir(dir);
}

void rig_done(struct rig *rig)
{
    rig_close(rig);
    arena_free(&rig->arena);
    rig_remove_dir(rig->dir);
}

struct waiting {
    struct store_op op;
    bool done;
};

static void arrived(struct store_op *op)
{
    container_of(op, struct waiting, op)->done = true;
}

void rig_wait(struct rig *rig, const bool *done)
{
    while (!*done) {
        work_queue_wait(&rig->work_queue, 1000);
        inbox_run(&rig->work_queue.inbox);
    }
}

enum err rig_call(struct rig *rig, struct store_op *op)
{
    struct waiting waiting = {.op = *op};
    enum err err;

    waiting.op.reply_to = &rig->work_queue.inbox;
    waiting.op.done = arrived;
    if (!waiting.op.arena)
        waiting.op.arena = &rig->arena;
    err = store_send(rig->store, &waiting.op);
    if (err)
        waiting.op.err = err;
    else
        rig_wait(rig, &waiting.done);
    *op = waiting.op;
    return op->err;
}

static enum err send(struct rig *rig, struct store_op op)
{
    rig->op = op;
    return rig_call(rig, &rig->op);
}

enum err rig_node(struct rig *rig, const char *node, int32_t max, enum node_health health)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = str_of(node)};

    op.u.node_put.own = op.u.node_put.health = health;
    op.u.node_put.max = max;
    op.u.node_put.facts = STR("{\"v\":1}");
    return send(rig, op);
}

/* The number of the instance that calls. The embedded store has none. */
unsigned rig_owner(const struct rig *rig)
{
    unsigned number = rig->store ? store_number(rig->store) : 0;

    return number ? number : 1;
}

static void fill_put(const struct rig *rig, struct store_op *op)
{
    op->u.put.spec = STR("{\"type\":\"talk\",\"session_id\":\"s1\"}");
    op->u.put.max_attempts = 2;
    op->u.put.owner = rig_owner(rig);
    op->u.put.hold_ms = 15000;
    op->u.put.ttl_ms = rig->ttl_ms;
}

enum err rig_put(struct rig *rig, uint64_t job)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    fill_put(rig, &op);
    return send(rig, op);
}

enum err rig_put_lane(struct rig *rig, uint64_t job, uint64_t lane, int priority)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    fill_put(rig, &op);
    op.u.put.lane = lane;
    op.u.put.priority = priority;
    op.u.put.wait_ms = RIG_WAIT_MS;
    return send(rig, op);
}

enum err rig_lane(struct rig *rig, uint64_t lane, size_t max)
{
    struct store_op op = {.verb = STORE_LANE};

    op.u.lane.lane = lane;
    op.u.lane.max = max;
    return send(rig, op);
}

enum err rig_reserve(struct rig *rig, uint64_t job, int attempt, const char *nodes)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = attempt};
    struct str rest = str_of(nodes);

    fill_put(rig, &op);
    while (rest.len) {
        struct str node = str_cut(&rest, ' ');

        assert(op.u.put.candidate_count < STORE_CANDIDATES_MAX);
        op.u.put.candidates[op.u.put.candidate_count++] =
            (struct store_candidate){.node = node, .hash = str_hash(node)};
    }
    return send(rig, op);
}

enum err rig_commit(struct rig *rig, uint64_t job, int attempt, const char *node)
{
    struct store_op op = {.verb = STORE_ACK, .job = job, .attempt = attempt, .node = str_of(node)};

    op.u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    op.u.settle.stop_grace_ms = 1000;
    return send(rig, op);
}

enum err rig_finish(struct rig *rig, enum store_outcome outcome, uint64_t job, int attempt,
                    const char *node, const char *reason)
{
    struct store_op op = {
        .verb = STORE_FINISH, .job = job, .attempt = attempt, .node = str_of(node)};

    op.u.settle.outcome = outcome;
    op.u.settle.reason = str_of(reason);
    op.u.settle.owner = rig_owner(rig);
    op.u.settle.hold_ms = 15000;
    op.u.settle.candidates_left = true;
    op.u.settle.result = outcome == STORE_DONE ? STR("{\"ok\":1}") : STR_NONE;
    return send(rig, op);
}

enum err rig_get(struct rig *rig, uint64_t job)
{
    return send(rig, (struct store_op){.verb = STORE_JOB_GET, .job = job});
}

size_t rig_due(struct rig *rig, struct store_due *items, size_t max)
{
    struct store_op op = {.verb = STORE_DUE};

    op.u.due.items = items;
    op.u.due.max = max;
    send(rig, op);
    return rig->op.err ? 0 : rig->op.u.due.count;
}

int64_t rig_repairs_of(struct rig *rig, enum store_rule rule)
{
    struct store_status status;

    store_status(rig->store, &status);
    return status.repairs[rule];
}

int64_t rig_repairs(struct rig *rig)
{
    int64_t repairs = 0;

    for (int i = 0; i < STORE_RULES; i++)
        repairs += rig_repairs_of(rig, (enum store_rule)i);
    return repairs;
}

struct lease_node rig_counts(struct rig *rig, const char *node)
{
    struct store_op op = {.verb = STORE_COUNTS};

    if (rig_call(rig, &op))
        abort();
    for (size_t i = 0; i < op.u.nodes.count; i++)
        if (str_is(op.u.nodes.items[i].id, node))
            return op.u.nodes.items[i].counts;
    return (struct lease_node){0};
}
