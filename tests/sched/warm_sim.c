/* See warm_sim.h. */
#include "warm_sim.h"

#include "base/mem.h"
#include "rig.h"
#include "sched/candidates.h"
#include "sched/warm_index.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 64, MODELS_MAX = 64, ROOM_MAX = 8, NAME_MAX_BYTES = 16 };

struct job {
    int model;
    double at;
};

struct ending {
    double at;
    int node;
};

struct world {
    const struct warm_sim *sim;
    struct rig *rig;
    struct rnd rnd;
    struct arena arena; /* of one choice */
    struct node *nodes[NODES_MAX];
    int running[NODES_MAX];
    int models[NODES_MAX][ROOM_MAX]; /* loaded, most recently used first; -1: none */
    char names[MODELS_MAX][NAME_MAX_BYTES];
    double sums[MODELS_MAX]; /* cumulative shares of the models */
    double now;
    struct job *waiting;
    int first_waiting, waiting_count; /* both only grow */
    struct ending *endings;           /* a heap */
    int ending_count;
    uint64_t order; /* of the last counters given to the scheduler */
    double *waits, *starts;
    int placed;
    double work; /* slot time handed out */
    struct warm_sim_result result;
};

static double chance(struct rnd *rnd)
{
    return (double)(rnd_next(rnd) >> 11) / 9007199254740992.0; /* 2^53 */
}

static double exponential(struct rnd *rnd)
{
    return -log(1 - chance(rnd));
}

static void push(struct world *world, struct ending ending)
{
    int at = world->ending_count++;

    for (; at > 0 && world->endings[(at - 1) / 2].at > ending.at; at = (at - 1) / 2)
        world->endings[at] = world->endings[(at - 1) / 2];
    world->endings[at] = ending;
}

static struct ending pop(struct world *world)
{
    struct ending first = world->endings[0], last = world->endings[--world->ending_count];
    int at = 0;

    for (int next; (next = 2 * at + 1) < world->ending_count; at = next) {
        if (next + 1 < world->ending_count && world->endings[next + 1].at < world->endings[next].at)
            next++;
        if (world->endings[next].at >= last.at)
            break;
        world->endings[at] = world->endings[next];
    }
    world->endings[at] = last;
    return first;
}

static void give_counts(struct world *world, int node)
{
    struct lease_node counts = {
        .health = NODE_READY, .max = world->sim->slots, .running = world->running[node]};

    counts_take(world->nodes[node], &counts, NULL, ++world->order, false);
}

static void give_loaded(struct world *world, int node)
{
    struct str names[ROOM_MAX];
    struct strs list = {.at = names};

    for (int i = 0; i < world->sim->room && world->models[node][i] >= 0; i++)
        names[list.count++] = str_of(world->names[world->models[node][i]]);
    warm_index_put(world->rig->sched.warm, world->nodes[node], &list);
}

/* Marks the model as used last; false: it had to be loaded, in place of the least recently used
 * one. */
static bool use_model(struct world *world, int node, int model)
{
    int *models = world->models[node], at = 0;

    while (at < world->sim->room - 1 && models[at] != model)
        at++;
    bool warm = models[at] == model;
    memmove(models + 1, models, (size_t)at * sizeof *models);
    models[0] = model;
    give_loaded(world, node);
    return warm;
}

static bool is_fuller(const struct world *world, int node)
{
    int others = 0;

    for (int i = 0; i < world->sim->nodes; i++)
        others += i == node ? 0 : world->running[i];
    return 2 * world->running[node] * (world->sim->nodes - 1) > 3 * others;
}

/* Chooses a node as a dispatch does; -1: none has room. */
static int choose(struct world *world, int model)
{
    struct dispatch *dispatch = dispatch_new(&world->arena);
    int node = -1;

    dispatch->loop = rig_loop(world->rig, 0);
    dispatch->attempt = 1;
    dispatch->spec.type = STR("dev");
    if (world->sim->prefers) {
        dispatch->spec.prefer_marks[0] = warm_mark(str_of(world->names[model]));
        dispatch->spec.prefer_count = 1;
    }
    candidates_choose(dispatch, candidates_pool(dispatch));
    for (size_t i = 0; i < dispatch->count && node < 0; i++)
        if (dispatch->list[i].load < dispatch->list[i].max)
            node = (int)((struct node *)dispatch->list[i].node)->number;
    arena_reset(&world->arena);
    return node;
}

static bool place(struct world *world, const struct job *job)
{
    int node = choose(world, job->model);
    double cost, service;

    if (node < 0)
        return false;
    world->result.fuller += is_fuller(world, node);
    bool warm = use_model(world, node, job->model);
    cost = warm ? 0 : world->sim->load_cost;
    service = exponential(&world->rnd) + (world->sim->loads_aside ? 0 : cost);
    world->result.cold += !warm;
    world->running[node]++;
    assert_true(world->running[node] <= world->sim->slots);
    give_counts(world, node);
    world->work += service;
    world->waits[world->placed] = world->now - job->at;
    world->starts[world->placed++] = world->now - job->at + cost;
    push(world, (struct ending){.at = world->now + service, .node = node});
    return true;
}

static void arrive(struct world *world)
{
    double at = chance(&world->rnd) * world->sums[world->sim->models - 1];
    struct job job = {.at = world->now};

    while (world->sums[job.model] <= at)
        job.model++;
    if (world->first_waiting < world->waiting_count || !place(world, &job))
        world->waiting[world->waiting_count++] = job;
}

static void end_one(struct world *world)
{
    struct ending ending = pop(world);

    world->now = ending.at;
    world->running[ending.node]--;
    give_counts(world, ending.node);
    while (world->first_waiting < world->waiting_count &&
           place(world, &world->waiting[world->first_waiting]))
        world->first_waiting++;
}

static void set_up(struct world *world)
{
    const struct warm_sim *sim = world->sim;
    char text[160];

    rnd_seed(&world->rnd, sim->seed);
    world->rig = rig_new();
    rig_open(world->rig);
    rnd_seed(&rig_loop(world->rig, 0)->rnd, sim->seed + 1000);
    for (int i = 0; i < sim->models; i++) {
        snprintf(world->names[i], NAME_MAX_BYTES, "model-%d", i);
        world->sums[i] = (i ? world->sums[i - 1] : 0) + 1.0 / (i + 1);
    }
    for (int i = 0; i < sim->nodes; i++) {
        snprintf(text, sizeof text,
                 "{\"node_id\":\"n%d\",\"max_concurrent_jobs\":%d,\"allowed_types\":[\"*\"]}", i,
                 sim->slots);
        assert_int_equal(rig_register(world->rig, text), ERR_OK);
        snprintf(text, sizeof text, "n%d", i);
        const struct node *node = rig_node(world->rig, text);
        assert_int_equal(node->number, i);
        world->nodes[i] = (struct node *)node;
        for (int r = 0; r < sim->room; r++)
            world->models[i][r] = -1;
    }
    world->order = 1u << 20; /* newer than the store's answers */
    world->waiting = mem_array(struct job, (size_t)sim->jobs);
    world->waits = mem_array(double, (size_t)sim->jobs);
    world->starts = mem_array(double, (size_t)sim->jobs);
    world->endings = mem_array(struct ending, (size_t)(sim->nodes * sim->slots + 1));
}

static void tear_down(struct world *world)
{
    rig_free(world->rig);
    arena_free(&world->arena);
    free(world->waiting);
    free(world->waits);
    free(world->starts);
    free(world->endings);
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* `gap` is the mean time between two jobs. */
static struct warm_sim_result run(const struct warm_sim *sim, double gap, double *ret_work)
{
    struct world world = {.sim = sim};
    double next;

    set_up(&world);
    next = exponential(&world.rnd) * gap;
    for (int come = 0; come < sim->jobs || world.ending_count > 0;) {
        if (come == sim->jobs || (world.ending_count && world.endings[0].at <= next)) {
            end_one(&world);
            continue;
        }
        world.now = next;
        next += exponential(&world.rnd) * gap;
        come++;
        arrive(&world);
    }
    assert_int_equal(world.placed, sim->jobs);
    qsort(world.waits, (size_t)sim->jobs, sizeof *world.waits, by_value);
    qsort(world.starts, (size_t)sim->jobs, sizeof *world.starts, by_value);
    world.result.wait_p99 = world.waits[(size_t)sim->jobs * 99 / 100];
    world.result.start_p99 = world.starts[(size_t)sim->jobs * 99 / 100];
    world.result.use = world.work / (world.now * sim->nodes * sim->slots);
    *ret_work = world.work / sim->jobs;
    tear_down(&world);
    return world.result;
}

struct warm_sim_result warm_sim_run(const struct warm_sim *sim)
{
    struct warm_sim pilot = *sim;
    double slots = (double)sim->nodes * sim->slots, work;

    /* The slot time per job without preferences hardly depends on how many jobs come. */
    pilot.prefers = false;
    pilot.jobs = sim->jobs / 10;
    run(&pilot, (1 + sim->load_cost) / (slots * sim->load), &work);
    return run(sim, work / (slots * sim->load), &work);
}
