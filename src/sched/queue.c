/* The queue and the jobs that go on. Level-triggered: freed capacity, a new snapshot and the tick
 * all lead to queue_kick, which looks at what is true now. */
#include "sched/queue_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sched/dispatch.h"
#include "sched/settle.h"

enum {
    MISSING_MS =
        2000, /* by then the keeper knows whether the store lost it, and has put it again */
    EXPLAIN_EVERY_MS = 10000,
    ASIDE_MAX = 64, /* jobs of one lane passed over in a kick: each costs a look at its pool */
    STORE_AWAY_MS =
        5000, /* a job that may not wait still outlives a store that is away for so long */
};

/* One try to place a waiting job. */
struct
try {
    struct waiting *waiting;
    struct arena arena;
    struct dispatch dispatch;
};

struct end {
    struct waiting *waiting;
    struct arena arena;
    struct settle settle;
};

struct queue *queue_new(struct sched *sched)
{
    struct queue *queue = calloc(1, sizeof *queue);

    assert(queue);
    queue->sched = sched;
    return queue;
}

static void lane_leave(struct queue *queue, struct lane *lane)
{
    assert(lane->jobs > 0);
    if (--lane->jobs > 0)
        return;
    map_del(&queue->lanes, lane->key);
    heap_free(&lane->order);
    free((void *)lane->key.at);
    free(lane);
}

/* Takes it out of the instance's counts and of its lane. */
static void waiting_free(struct waiting *waiting)
{
    struct queue *queue = waiting->queue;

    if (waiting->successor)
        waiting_free(waiting->successor);
    sched_queue_leave(queue->sched, waiting->spec.type);
    lane_leave(queue, waiting->lane);
    buf_free(&waiting->history);
    arena_free(&waiting->arena);
    free(waiting);
}

void queue_free(struct queue *queue)
{
    struct waiting *waiting;

    if (!queue)
        return;
    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));)
        waiting_free(waiting);
    assert(queue->lanes.count == 0);
    idmap_free(&queue->jobs);
    map_free(&queue->lanes);
    heap_free(&queue->deadlines);
    free(queue);
}

static struct lane *lane_join(struct queue *queue, const struct spec *spec, struct arena *arena)
{
    struct str key =
        spec->f2f ? arena_fmt(arena, STR_FMT ":" STR_FMT, STR_ARG(spec->src), STR_ARG(spec->tgt))
                  : arena_fmt(arena, "type:" STR_FMT "|" STR_FMT "|%d", STR_ARG(spec->type),
                              STR_ARG(spec->requires), spec->interactive);
    struct lane *lane = map_get(&queue->lanes, key);

    if (!lane) {
        lane = calloc(1, sizeof *lane);
        char *text = malloc(key.len + 1);
        assert(lane && text);
        memcpy(text, key.at, key.len);
        lane->key = (struct str){.at = text, .len = key.len};
        map_put(&queue->lanes, lane->key, lane);
    }
    lane->jobs++;
    return lane;
}

static void leave_heaps(struct waiting *waiting)
{
    assert(waiting->lane && waiting->lane->jobs > 0);
    heap_del(&waiting->lane->order, &waiting->order);
    heap_del(&waiting->queue->deadlines, &waiting->deadline);
}

static void begin(struct waiting *waiting);

static void drop(struct waiting *waiting)
{
    struct queue *queue = waiting->queue;
    struct waiting *successor = waiting->gone || waiting->abandon ? NULL : waiting->successor;

    assert(idmap_get(&queue->jobs, waiting->job) == waiting);
    leave_heaps(waiting);
    idmap_del(&queue->jobs, waiting->job);
    if (successor)
        waiting->successor = NULL;
    waiting_free(waiting);
    if (successor)
        begin(successor);
}

static void time_out(struct waiting *waiting);

/* Not busy any more: what came meanwhile counts, else it waits on. */
static void wait_on(struct waiting *waiting)
{
    assert(!waiting->order.at && !waiting->deadline.at);
    waiting->busy = false;
    if (waiting->gone || (waiting->successor && !waiting->abandon)) {
        drop(waiting);
        return;
    }
    heap_add(&waiting->queue->deadlines, &waiting->deadline);
    if (!waiting->abandon) /* never to be placed */
        heap_add(&waiting->lane->order, &waiting->order);
}

static void ended(struct settle *settle)
{
    struct end *end = container_of(settle, struct end, settle);
    struct waiting *waiting = end->waiting;
    bool retry = settle->err == ERR_STORE_DOWN || settle->err == ERR_BUSY;

    assert(waiting->busy && waiting->job == settle->job);
    arena_free(&end->arena);
    free(end);
    if (retry) {
        wait_on(waiting); /* the next tick tries again */
        return;
    }
    drop(waiting);
}

static void time_out(struct waiting *waiting)
{
    struct end *end = calloc(1, sizeof *end);

    assert(end);
    leave_heaps(waiting);
    if (waiting->abandon)
        waiting->deadline.key = 0; /* should the store be away: with every tick */
    waiting->busy = true;
    end->waiting = waiting;
    end->settle =
        (struct settle){.loop = sched_keeper_loop(waiting->queue->sched),
                        .arena = &end->arena,
                        .kind = waiting->abandon ? SETTLE_ABANDON : SETTLE_QUEUE_TIMEOUT,
                        .job = waiting->job,
                        .reason = str_of(waiting->abandon ? waiting->abandon : "QUEUE_TIMEOUT"),
                        .done = ended};
    settle_start(&end->settle);
}

/* What kept it from a node is its own (where it was before, whom it prefers): others of its lane
 * may find room where it did not. */
static bool is_particular(const struct waiting *waiting, const struct dispatch *dispatch)
{
    return dispatch->whys[WHY_TRIED] > 0 || waiting->spec.options.preferred_node_id.at;
}

/* It found no room. In a kick either its lane is blocked, or it alone is passed over. */
static void no_room(struct waiting *waiting, bool particular)
{
    struct queue *queue = waiting->queue;

    if (queue->kicking && particular && waiting->lane->aside++ < ASIDE_MAX) {
        waiting->next = queue->aside;
        queue->aside = waiting; /* still busy: the kick's end lets it wait on */
        return;
    }
    waiting->lane->blocked = true;
    wait_on(waiting);
}

/* The store does not know it: it may have been lost a moment ago. */
static bool is_missing(struct waiting *waiting, enum err err)
{
    int64_t now_ms = clock_mono_ms();

    if (err != ERR_NOT_FOUND)
        waiting->missing_ms = 0;
    else if (!waiting->missing_ms)
        waiting->missing_ms = now_ms;
    return err == ERR_NOT_FOUND && now_ms - waiting->missing_ms < MISSING_MS;
}

/* Placed, or waits on, or has ended in the dispatch itself. */
static void tried(struct dispatch *dispatch)
{
    struct try *try = container_of(dispatch, struct try, dispatch);
    struct waiting *waiting = try->waiting;
    enum err err = dispatch->err;
    bool away = is_missing(waiting, err) || err == ERR_STORE_DOWN || err == ERR_BUSY;
    bool waits = away || (err && waiting->spec.queue_ms > 0 && err != ERR_NOT_FOUND &&
                          !job_state_final(dispatch->head.state));
    bool particular = is_particular(waiting, dispatch);

    assert(waiting->busy && waiting->job == dispatch->job);
    if (waits && dispatch->record.history.at) {
        buf_clear(&waiting->history);
        buf_str(&waiting->history, dispatch->record.history);
    }
    arena_free(&try->arena);
    free(try);
    if (waiting->abandon)
        time_out(waiting); /* asked for meanwhile */
    else if (waits)
        no_room(waiting, particular && !away);
    else
        drop(waiting);
}

/* It is tried ten times a second: what keeps it waiting is written down now and then. */
static bool explained_lately(struct waiting *waiting)
{
    int64_t now_ms = *sched_keeper_loop(waiting->queue->sched)->wall_ms;
    int64_t apart_ms = now_ms - waiting->explained_ms;

    if (apart_ms >= 0 && apart_ms < EXPLAIN_EVERY_MS)
        return true;
    waiting->explained_ms = now_ms;
    return false;
}

static void place(struct waiting *waiting)
{
    struct try *try = calloc(1, sizeof *try);
    struct queue *queue = waiting->queue;

    assert(try && !waiting->busy);
    leave_heaps(waiting);
    waiting->busy = true;
    try->waiting = waiting;
    try->dispatch = (struct dispatch){.loop = sched_keeper_loop(queue->sched),
                                      .arena = &try->arena,
                                      .spec = waiting->spec,
                                      .job = waiting->job,
                                      .attempt = waiting->attempt,
                                      .max_attempts = waiting->max_attempts,
                                      .exists = true,
                                      .scan = true,
                                      .queued = true,
                                      .quiet = explained_lately(waiting),
                                      .history = buf_view(&waiting->history),
                                      .done = tried};
    dispatch_start(&try->dispatch);
}

/* A job waits from its creation, one that is tried again from the end of the attempt before: being
 * refused in between gives it no more time. */
static int64_t waits_since(const struct store_record *record, int attempt)
{
    const struct json *list = NULL;
    int64_t since_ms = record->head.created_ms;
    struct arena arena = {0};

    if (attempt > 1 && json_parse(record->history, &arena, &list, NULL))
        list = NULL;
    const struct json *entry = json_first(list);
    for (uint32_t i = 0; json_type(list) == JSON_ARR && i < list->count; i++) {
        int64_t of = 0, ended_ms = 0;

        json_int(json_get(entry, "attempt_id"), &of);
        json_int(json_get(entry, "ended_ms"), &ended_ms);
        if (of < attempt && ended_ms > since_ms)
            since_ms = ended_ms;
        entry = json_next(entry);
    }
    arena_free(&arena);
    return since_ms;
}

/* Copies the record; NULL when we cannot have written it. */
static struct waiting *waiting_new(struct queue *queue, const struct store_record *record)
{
    const struct store_head *head = &record->head;
    struct waiting *waiting = calloc(1, sizeof *waiting);

    assert(waiting && head->id);
    struct str json = arena_str(&waiting->arena, record->spec);
    if (spec_stored(json, &waiting->arena, &waiting->spec, NULL)) {
        arena_free(&waiting->arena);
        free(waiting);
        return NULL;
    }
    waiting->queue = queue;
    waiting->put = queue->puts;
    waiting->job = head->id;
    waiting->state = head->state;
    waiting->attempt = head->state == JOB_RETRYING ? head->attempt + 1 : head->attempt;
    waiting->max_attempts = head->max_attempts;
    waiting->idem = record->idem.at ? arena_str(&waiting->arena, record->idem) : STR_NONE;
    waiting->fingerprint = record->fingerprint;
    buf_str(&waiting->history, record->history);
    waiting->lane = lane_join(queue, &waiting->spec, &waiting->arena);
    waiting->order = (struct heap_node){.key = -waiting->spec.priority, .tie = head->id};
    int64_t may_wait_ms = waiting->spec.queue_ms ? waiting->spec.queue_ms : STORE_AWAY_MS;
    waiting->since_ms = waits_since(record, waiting->attempt);
    waiting->deadline = (struct heap_node){.key = waiting->since_ms + may_wait_ms, .tie = head->id};
    return waiting;
}

static void begin(struct waiting *waiting)
{
    assert(!idmap_get(&waiting->queue->jobs, waiting->job) && !waiting->busy);
    idmap_put(&waiting->queue->jobs, waiting->job, waiting);
    if (waiting->state == JOB_NEW)
        wait_on(waiting);
    else
        place(waiting);
}

void queue_continue(struct queue *queue, const struct store_record *record, bool counted)
{
    struct waiting *known = idmap_get(&queue->jobs, record->head.id);
    struct waiting *waiting = waiting_new(queue, record);

    assert(!known || known->job == record->head.id);
    assert(waiting || !counted);
    if (!waiting)
        return;
    if (!counted)
        sched_queue_enter(queue->sched, waiting->spec.type);
    if (!known && !job_state_final(record->head.state)) {
        begin(waiting);
    } else if (known && known->busy && !known->abandon && !job_state_final(record->head.state)) {
        if (known->successor)
            waiting_free(known->successor);
        known->successor = waiting;
    } else {
        waiting_free(waiting);
    }
}

void queue_abandon(struct queue *queue, const struct store_record *record, const char *reason)
{
    struct waiting *waiting = idmap_get(&queue->jobs, record->head.id);

    assert(reason);
    if (!waiting) {
        waiting = waiting_new(queue, record);
        assert(waiting); /* it was read from a request a moment ago */
        sched_queue_enter(queue->sched, waiting->spec.type);
        idmap_put(&queue->jobs, waiting->job, waiting);
    }
    waiting->abandon = reason;
    if (!waiting->busy)
        time_out(waiting);
}

/* The best head among the lanes that are not blocked: priority, then age. */
static struct waiting *best_head(struct queue *queue)
{
    struct lane *lane;
    struct heap_node *best = NULL;

    for (size_t i = 0; (lane = map_next(&queue->lanes, &i));) {
        struct heap_node *top = lane->blocked ? NULL : heap_top(&lane->order);

        if (top &&
            (!best || top->key < best->key || (top->key == best->key && top->tie < best->tie)))
            best = top;
    }
    return best ? container_of(best, struct waiting, order) : NULL;
}

void queue_kick(struct queue *queue)
{
    struct waiting *waiting;
    struct lane *lane;

    if (queue->kicking || !queue->jobs.count)
        return;
    assert(!queue->aside);
    queue->kicking = true; /* a dispatch may fail, or finish, before dispatch_start returns */
    for (size_t i = 0; (lane = map_next(&queue->lanes, &i));) {
        lane->blocked = false;
        lane->aside = 0;
    }
    while ((waiting = best_head(queue)))
        place(waiting);
    queue->kicking = false;
    while ((waiting = queue->aside)) {
        queue->aside = waiting->next;
        wait_on(waiting);
    }
}

void queue_tick(struct queue *queue, int64_t now_ms)
{
    struct heap_node *top;

    while ((top = heap_top(&queue->deadlines)) && top->key <= now_ms)
        time_out(container_of(top, struct waiting, deadline));
    queue_hold(queue, now_ms);
    queue_kick(queue);
}

void queue_forget(struct queue *queue, uint64_t job)
{
    struct waiting *waiting = idmap_get(&queue->jobs, job);

    if (!waiting)
        return;
    waiting->gone = true;
    if (!waiting->busy)
        drop(waiting);
}

int64_t queue_oldest_ms(const struct queue *queue, int64_t now_ms)
{
    const struct waiting *waiting;
    int64_t oldest_ms = now_ms;

    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));)
        if (waiting->since_ms < oldest_ms)
            oldest_ms = waiting->since_ms;
    return now_ms - oldest_ms;
}

bool queue_holds(const struct queue *queue, uint64_t job)
{
    return idmap_get(&queue->jobs, job) != NULL;
}
