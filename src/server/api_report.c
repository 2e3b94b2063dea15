/* GET /v1/report. Four steps, each where it disturbs nobody: other instances are asked for their
 * part, the keeper adds up the hours of ours, a thread of the pool puts it together and writes the
 * answer, the loop that asked sends it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/keeper.h"
#include "sched/tally.h"
#include "server/api.h"
#include "server/peers_round.h"

#define SINCE_DEFAULT_MS (24LL * HOUR_MS)

struct report_call {
    struct msg msg;
    struct loop_job job;
    struct arena
        arena; /* its own: the server may end, and the request with it, while it is written */
    struct call *call;
    struct loop *loop;
    struct hours *hours; /* the keeper's */
    int64_t since_ms, until_ms;
    struct str node, type; /* empty: all */
    struct namespace_view view;
    struct str *parts; /* of other instances: lines of a tally */
    size_t part_count, asked, answered;
    struct tally *sum;
    struct buf text;
    /* while writing: the rows, sorted by node, type and reason */
    const struct tally_work **works;
    const struct tally_refusal **refusals;
    size_t refusal_at; /* those before it are written */
    struct tally_work total;
    int64_t used_ms, max_ms;
};

static void write_times(struct jsonw *w, const char *name, const struct tally_times *times)
{
    static const struct {
        int percent;
        const char *name;
    } rows[] = {{50, "p50"}, {95, "p95"}};

    jsonw_key(w, name);
    jsonw_obj(w);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t ms = tally_percentile(times, rows[i].percent);

        if (ms < 0)
            jsonw_knull(w, rows[i].name);
        else
            jsonw_kint(w, rows[i].name, ms);
    }
    jsonw_end_obj(w);
}

/* Of a whole, to four digits; null of nothing. */
static void write_share(struct jsonw *w, const char *name, int64_t part, int64_t whole)
{
    if (whole <= 0)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, (double)(part * 10000 / whole) / 10000.0);
}

static void write_counts(struct jsonw *w, const struct tally_work *work)
{
    int64_t done = work->counts[TALLY_DONE], failed = work->counts[TALLY_FAILED];

    jsonw_kint(w, "jobs", done + failed + work->counts[TALLY_CANCELLED]);
    for (int i = 0; i < TALLY_COUNTS; i++)
        jsonw_kint(w, tally_count_name((enum tally_count)i), work->counts[i]);
    write_share(w, "success_rate", done, done + failed);
    write_times(w, "wait_ms", &work->wait);
    write_times(w, "run_ms", &work->run);
}

static void write_machine(struct jsonw *w, const struct tally_machine *machine)
{
    static const struct tally_machine none;

    machine = machine ? machine : &none;
    write_share(w, "slot_use", machine->used_ms, machine->max_ms);
    jsonw_key(w, "level_minutes");
    jsonw_obj(w);
    for (int i = 0; i < TALLY_LEVELS; i++)
        jsonw_kdouble(w, tally_level_name(i), (double)(machine->level_ms[i] / 600) / 100);
    jsonw_end_obj(w);
}

/* Where a refusal stands to a row: < 0 before it, 0 it is of it. */
static int refusal_order(const struct tally_refusal *refusal, const struct tally_work *work)
{
    int order = str_cmp(refusal->node, work->node);

    return order ? order : str_cmp(refusal->type, work->type);
}

/* Those of this row, which stand next: both lists are in the same order. */
static void write_refusals(struct jsonw *w, struct report_call *own, const struct tally_work *work)
{
    size_t count = own->sum->refusals.count;

    jsonw_key(w, "refusals");
    jsonw_obj(w);
    while (own->refusal_at < count && refusal_order(own->refusals[own->refusal_at], work) < 0)
        own->refusal_at++; /* of a type that was not asked for */
    while (own->refusal_at < count && refusal_order(own->refusals[own->refusal_at], work) == 0) {
        const struct tally_refusal *refusal = own->refusals[own->refusal_at++];

        jsonw_key_str(w, refusal->reason);
        jsonw_int(w, (int64_t)refusal->count);
    }
    jsonw_end_obj(w);
}

static void add_work(struct tally_work *total, const struct tally_work *work)
{
    for (int i = 0; i < TALLY_COUNTS; i++)
        total->counts[i] += work->counts[i];
    for (int i = 0; i < TALLY_BUCKETS; i++) {
        total->wait.counts[i] += work->wait.counts[i];
        total->run.counts[i] += work->run.counts[i];
    }
}

/* One server: all its work together, its machine, then its types. */
static void write_server(struct jsonw *w, struct report_call *own, struct str node,
                         const struct tally_work **works, size_t count)
{
    const struct tally_machine *machine = map_get(&own->sum->machines, node);
    struct tally_work all = {.node = node};

    for (size_t i = 0; i < count; i++)
        add_work(&all, works[i]);
    add_work(&own->total, &all);
    own->used_ms += machine ? machine->used_ms : 0;
    own->max_ms += machine ? machine->max_ms : 0;
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", node);
    write_counts(w, &all);
    write_machine(w, machine);
    jsonw_key(w, "types");
    jsonw_arr(w);
    for (size_t i = 0; i < count; i++) {
        jsonw_obj(w);
        jsonw_kstr(w, "type", namespace_shown(&own->view, works[i]->type));
        write_counts(w, works[i]);
        write_refusals(w, own, works[i]);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    jsonw_end_obj(w);
}

static int by_work(const void *a, const void *b)
{
    const struct tally_work *left = *(struct tally_work *const *)a;
    const struct tally_work *right = *(struct tally_work *const *)b;
    int order = str_cmp(left->node, right->node);

    return order ? order : str_cmp(left->type, right->type);
}

static int by_refusal(const void *a, const void *b)
{
    const struct tally_refusal *left = *(struct tally_refusal *const *)a;
    const struct tally_refusal *right = *(struct tally_refusal *const *)b;
    int order = str_cmp(left->node, right->node);

    order = order ? order : str_cmp(left->type, right->type);
    return order ? order : str_cmp(left->reason, right->reason);
}

static void *sorted(const struct map *map, int (*order)(const void *, const void *),
                    struct arena *arena)
{
    void **rows = arena_array(arena, void *, map->count + 1);
    size_t count = 0;

    for (size_t at = 0; count < map->count;)
        rows[count++] = map_next(map, &at);
    qsort(rows, count, sizeof *rows, order);
    return rows;
}

/* Every node that has any figure gets a row of work, be it of zeros: then one list has them all. */
static void complete(struct tally *sum)
{
    const struct tally_machine *machine;
    const struct tally_refusal *refusal;

    for (size_t at = 0; (refusal = map_next(&sum->refusals, &at));)
        tally_work(sum, refusal->node, refusal->type);
    for (size_t at = 0; (machine = map_next(&sum->machines, &at));)
        tally_work(sum, machine->node, STR("-"));
}

static bool is_asked(const struct report_call *own, struct str type)
{
    return namespace_sees(&own->view, type) && (!own->type.len || str_eq(own->type, type));
}

/* A row of the type that was asked for. A blank one of no type is there for its node only. */
static bool is_wanted(const struct report_call *own, const struct tally_work *work)
{
    bool blank = str_is(work->type, "-");

    for (int i = 0; blank && i < TALLY_COUNTS; i++)
        blank = work->counts[i] == 0;
    return !blank && is_asked(own, work->type);
}

/* Jobs that never were on a node count in the total alone. */
static void write_servers(struct jsonw *w, struct report_call *own)
{
    size_t count = own->sum->works.count, next;

    jsonw_key(w, "servers");
    jsonw_arr(w);
    for (size_t at = 0; at < count; at = next) {
        struct str node = own->works[at]->node;
        size_t kept = 0;

        for (next = at; next < count && str_eq(own->works[next]->node, node); next++)
            if (is_wanted(own, own->works[next]))
                own->works[at + kept++] = own->works[next];
        if (own->node.len && !str_eq(own->node, node))
            continue;
        if (str_is(node, "-"))
            for (size_t i = 0; i < kept; i++)
                add_work(&own->total, own->works[at + i]);
        else if (kept > 0 || !own->type.len)
            write_server(w, own, node, own->works + at, kept);
    }
    jsonw_end_arr(w);
}

/* Requests that were refused: no node came into question. */
static void write_refused(struct jsonw *w, const struct report_call *own)
{
    jsonw_key(w, "refused");
    jsonw_arr(w);
    for (size_t i = 0; i < own->sum->refusals.count; i++) {
        const struct tally_refusal *refusal = own->refusals[i];

        if (!str_is(refusal->node, "-") || !is_asked(own, refusal->type))
            continue;
        jsonw_obj(w);
        jsonw_kstr(w, "type", namespace_shown(&own->view, refusal->type));
        jsonw_kstr(w, "reason", refusal->reason);
        jsonw_kint(w, "count", (int64_t)refusal->count);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
}

/* A line another release wrote may be one we do not know: it is left out. */
static void add_part(struct tally *sum, struct str lines)
{
    struct tally *other = tally_new();

    while (lines.len > 0)
        tally_load(other, str_cut(&lines, '\n'));
    tally_merge_other(sum, other);
    tally_free(other);
}

static void write_scope(struct jsonw *w, struct report_call *own)
{
    struct str scope = STR("what this instance saw, by whole hours");

    if (own->asked > 0)
        scope = arena_fmt(&own->arena, "what %zu of %zu instances saw, by whole hours",
                          own->answered + 1, own->asked + 1);
    jsonw_kstr(w, "scope", scope);
}

/* On a thread of the pool. */
static void write_report(struct loop_job *job)
{
    struct report_call *own = container_of(job, struct report_call, job);
    struct jsonw w = jsonw_to(&own->text);

    for (size_t i = 0; i < own->part_count; i++)
        add_part(own->sum, own->parts[i]);
    complete(own->sum);
    own->works = sorted(&own->sum->works, by_work, &own->arena);
    own->refusals = sorted(&own->sum->refusals, by_refusal, &own->arena);
    jsonw_obj(&w);
    jsonw_kint(&w, "since_ms", own->since_ms);
    jsonw_kint(&w, "until_ms", own->until_ms);
    write_scope(&w, own);
    write_servers(&w, own);
    write_refused(&w, own);
    jsonw_key(&w, "total");
    jsonw_obj(&w);
    write_counts(&w, &own->total);
    write_share(&w, "slot_use", own->used_ms, own->max_ms);
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
}

static void report_call_free(struct report_call *own)
{
    tally_free(own->sum);
    buf_free(&own->text);
    arena_free(&own->arena);
    free(own);
}

static void written(struct loop_job *job)
{
    struct report_call *own = container_of(job, struct report_call, job);

    if (!atomic_load(&own->loop->stopping))
        call_json(own->call, 200, &own->text);
    report_call_free(own);
}

static void summed(struct msg *msg)
{
    struct report_call *own = container_of(msg, struct report_call, msg);

    own->job.run = write_report;
    own->job.done = written;
    loop_work(own->loop, &own->job);
}

/* On the keeper's thread. */
static void add_up(struct msg *msg)
{
    struct report_call *own = container_of(msg, struct report_call, msg);

    own->sum = hours_sum(own->hours, own->since_ms, own->until_ms);
    own->msg.run = summed;
    inbox_post(&own->loop->inbox, &own->msg);
}

/* What is asked, until the others have answered: the request's own memory will do. */
struct report_ask {
    struct peers_round round;
    struct call *call;
    int64_t since_ms, until_ms;
};

static void parts_came(struct peers_round *round)
{
    struct report_ask *ask = container_of(round, struct report_ask, round);
    struct worker *worker = round->worker;
    struct report_call *own = mem_new(struct report_call);

    own->call = ask->call;
    own->loop = &worker->loop;
    own->hours = keeper_hours(worker->server->sched.keeper);
    own->until_ms = ask->until_ms;
    own->since_ms = ask->since_ms;
    own->node = arena_str(&own->arena, http_query(ask->call->req, "node_id"));
    own->view = call_view(ask->call);
    own->view.namespace = arena_str(&own->arena, own->view.namespace);
    own->type = namespace_wanted(
        &own->view, arena_str(&own->arena, http_query(ask->call->req, "type")), &own->arena);
    own->parts = arena_array(&own->arena, struct str, round->count + 1);
    for (; own->part_count < round->count; own->part_count++)
        own->parts[own->part_count] = arena_str(&own->arena, round->texts[own->part_count]);
    own->asked = round->asked;
    own->answered = round->answered;
    own->msg.run = add_up;
    inbox_post(&server_keeper(worker->server)->loop.inbox, &own->msg);
}

void api_report(struct call *call)
{
    int64_t since_ms = SINCE_DEFAULT_MS;
    struct report_ask *ask = arena_new(call->arena, struct report_ask);

    if (!call_query_ms(call, "since", (int64_t)HOURS_MAX * HOUR_MS, &since_ms))
        return;
    ask->call = call;
    ask->until_ms = call->worker->loop.wall_ms;
    ask->since_ms = ask->until_ms - since_ms;
    assert(ask->since_ms <= ask->until_ms);
    ask->round =
        (struct peers_round){.worker = call->worker,
                             .arena = call->arena,
                             .method = "Instance/Report",
                             .params = arena_fmt(call->arena, "%lld %lld", (long long)ask->since_ms,
                                                 (long long)ask->until_ms),
                             .done = parts_came};
    peers_round_start(&ask->round);
}
