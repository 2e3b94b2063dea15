/* The queue and the jobs that go on. Level-triggered: freed capacity, a new snapshot and the tick
 * all lead to queue_kick, which looks at what is true now. */
#include "sched/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/log.h"
#include "sched/dispatch.h"
#include "sched/settle.h"

enum {
    HOLD_EVERY_MS = 5000,
    HOLD_BATCH = 512,
    STORE_AWAY_MS =
        5000, /* a job that may not wait still outlives a store that is away for so long */
};

/* The waiting jobs that can go to the same nodes. Kept once made: there are few. */
struct lane {
    struct str key;
    struct heap order;
    bool blocked; /* in this kick: its best job found no room */
};

struct waiting {
    struct queue *queue;
    struct lane *lane;
    struct arena arena;        /* the record */
    struct heap_node order;    /* in its lane; -priority, then id */
    struct heap_node deadline; /* in queue->deadlines */
    uint64_t job;
    struct spec spec;
    struct str history;
    int attempt; /* the one to start */
    int max_attempts;
    bool busy; /* a dispatch or a settle is under way: it stands in no heap */
    bool gone; /* forgotten meanwhile: goes when it is not busy any more */
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

struct hold {
    struct store_op op;
    uint64_t ids[HOLD_BATCH];
};

struct queue {
    struct sched *sched;
    struct idmap jobs; /* -> struct waiting * */
    struct map lanes;  /* -> struct lane * */
    struct heap deadlines;
    int64_t next_hold_ms;
    bool kicking;
};

struct queue *queue_new(struct sched *sched)
{
    struct queue *queue = calloc(1, sizeof *queue);

    assert(queue);
    queue->sched = sched;
    return queue;
}

static void waiting_free(struct waiting *waiting)
{
    arena_free(&waiting->arena);
    free(waiting);
}

void queue_free(struct queue *queue)
{
    struct waiting *waiting;
    struct lane *lane;

    if (!queue)
        return;
    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));)
        waiting_free(waiting);
    for (size_t i = 0; (lane = map_next(&queue->lanes, &i));) {
        heap_free(&lane->order);
        free((void *)lane->key.at);
        free(lane);
    }
    idmap_free(&queue->jobs);
    map_free(&queue->lanes);
    heap_free(&queue->deadlines);
    free(queue);
}

/* Interactive jobs may use slots that others may not, and a job with a history may not go where it
 * was: what one of them finds says nothing of the others. */
static struct lane *lane_of(struct queue *queue, const struct waiting *waiting, struct arena *arena)
{
    const struct spec *spec = &waiting->spec;
    const char *again = waiting->history.len ? "|again" : "";
    struct str key = spec->f2f ? arena_fmt(arena, STR_FMT ":" STR_FMT "%s", STR_ARG(spec->src),
                                           STR_ARG(spec->tgt), again)
                               : arena_fmt(arena, "type:" STR_FMT "|" STR_FMT "%s%s",
                                           STR_ARG(spec->type), STR_ARG(spec->requires),
                                           spec->interactive ? "|interactive" : "", again);
    struct lane *lane = map_get(&queue->lanes, key);

    if (lane)
        return lane;
    lane = calloc(1, sizeof *lane);
    char *text = malloc(key.len + 1);
    assert(lane && text);
    memcpy(text, key.at, key.len);
    lane->key = (struct str){.at = text, .len = key.len};
    map_put(&queue->lanes, lane->key, lane);
    return lane;
}

static void leave_heaps(struct waiting *waiting)
{
    heap_del(&waiting->lane->order, &waiting->order);
    heap_del(&waiting->queue->deadlines, &waiting->deadline);
}

static void drop(struct waiting *waiting)
{
    struct queue *queue = waiting->queue;

    leave_heaps(waiting);
    if (idmap_del(&queue->jobs, waiting->job))
        sched_queue_leave(queue->sched, waiting->spec.type);
    waiting_free(waiting);
}

static void wait_on(struct waiting *waiting)
{
    waiting->busy = false;
    if (waiting->gone) {
        drop(waiting);
        return;
    }
    heap_add(&waiting->lane->order, &waiting->order);
    heap_add(&waiting->queue->deadlines, &waiting->deadline);
}

static void ended(struct settle *settle)
{
    struct end *end = container_of(settle, struct end, settle);
    struct waiting *waiting = end->waiting;
    bool retry = settle->err == ERR_STORE_DOWN || settle->err == ERR_BUSY;

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
    waiting->busy = true;
    end->waiting = waiting;
    end->settle = (struct settle){.loop = sched_keeper_loop(waiting->queue->sched),
                                  .arena = &end->arena,
                                  .kind = SETTLE_QUEUE_TIMEOUT,
                                  .job = waiting->job,
                                  .reason = STR("QUEUE_TIMEOUT"),
                                  .done = ended};
    settle_start(&end->settle);
}

/* Placed, or waits on, or has ended in the dispatch itself. */
static void tried(struct dispatch *dispatch)
{
    struct try *try = container_of(dispatch, struct try, dispatch);
    struct waiting *waiting = try->waiting;
    enum err err = dispatch->err;
    bool waits = err && waiting->spec.queue_ms > 0 && err != ERR_STALE && err != ERR_NOT_FOUND;

    if (err == ERR_STORE_DOWN || err == ERR_BUSY)
        waits = true;
    if (waits && dispatch->record.history.at)
        waiting->history = arena_str(&waiting->arena, dispatch->record.history);
    if (waits)
        waiting->lane->blocked = true;
    arena_free(&try->arena);
    free(try);
    if (waits)
        wait_on(waiting);
    else
        drop(waiting);
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
                                      .history = waiting->history,
                                      .done = tried};
    dispatch_start(&try->dispatch);
}

/* A job waits from its creation, one that is tried again from the end of the attempt before: being
 * refused in between gives it no more time. */
static int64_t waits_since(struct waiting *waiting, const struct store_head *head)
{
    const struct json *list = NULL, *entry;
    int64_t since_ms = head->created_ms;

    if (waiting->attempt == 1 || json_parse(waiting->history, &waiting->arena, &list, NULL) ||
        json_type(list) != JSON_ARR)
        return since_ms;
    entry = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, entry = json_next(entry)) {
        int64_t attempt, ended_ms;

        if (json_int(json_get(entry, "attempt_id"), &attempt) && attempt < waiting->attempt &&
            json_int(json_get(entry, "ended_ms"), &ended_ms) && ended_ms > since_ms)
            since_ms = ended_ms;
    }
    return since_ms;
}

void queue_continue(struct queue *queue, const struct store_record *record, bool counted)
{
    const struct store_head *head = &record->head;
    struct waiting *waiting = calloc(1, sizeof *waiting);

    assert(waiting && head->id);
    struct str json = arena_str(&waiting->arena, record->spec);
    if (job_state_final(head->state) || idmap_get(&queue->jobs, head->id) ||
        spec_stored(json, &waiting->arena, &waiting->spec, NULL)) {
        if (counted)
            sched_queue_leave(queue->sched, waiting->spec.type);
        waiting_free(waiting);
        return;
    }
    waiting->queue = queue;
    if (!counted)
        sched_queue_enter(queue->sched, waiting->spec.type);
    waiting->job = head->id;
    waiting->attempt = head->state == JOB_RETRYING ? head->attempt + 1 : head->attempt;
    waiting->max_attempts = head->max_attempts;
    waiting->history = arena_str(&waiting->arena, record->history);
    waiting->lane = lane_of(queue, waiting, &waiting->arena);
    waiting->order = (struct heap_node){.key = -waiting->spec.priority, .tie = head->id};
    int64_t may_wait_ms = waiting->spec.queue_ms ? waiting->spec.queue_ms : STORE_AWAY_MS;
    waiting->deadline =
        (struct heap_node){.key = waits_since(waiting, head) + may_wait_ms, .tie = head->id};
    idmap_put(&queue->jobs, waiting->job, waiting);
    if (head->state == JOB_NEW)
        wait_on(waiting);
    else
        place(waiting);
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
    queue->kicking = true; /* a dispatch may fail, or finish, before dispatch_start returns */
    for (size_t i = 0; (lane = map_next(&queue->lanes, &i));)
        lane->blocked = false;
    while ((waiting = best_head(queue)))
        place(waiting);
    queue->kicking = false;
}

static void held(struct store_op *op)
{
    free(container_of(op, struct hold, op));
}

static void send_hold(struct queue *queue, struct hold *hold, size_t count)
{
    hold->op = (struct store_op){
        .verb = STORE_HOLD, .reply_to = sched_keeper_loop(queue->sched)->inbox, .done = held};
    hold->op.u.hold.ids = hold->ids;
    hold->op.u.hold.count = count;
    hold->op.u.hold.owner = queue->sched->config.instance;
    hold->op.u.hold.hold_ms = SCHED_HOLD_MS;
    sched_send(sched_keeper_loop(queue->sched), &hold->op);
}

static void hold_all(struct queue *queue)
{
    struct waiting *waiting;
    struct hold *hold = NULL;
    size_t count = 0;

    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));) {
        if (!hold) {
            hold = calloc(1, sizeof *hold);
            assert(hold);
        }
        hold->ids[count++] = waiting->job;
        if (count == HOLD_BATCH) {
            send_hold(queue, hold, count);
            hold = NULL;
            count = 0;
        }
    }
    if (hold)
        send_hold(queue, hold, count);
}

void queue_tick(struct queue *queue, int64_t now_ms)
{
    struct heap_node *top;

    while ((top = heap_top(&queue->deadlines)) && top->key <= now_ms)
        time_out(container_of(top, struct waiting, deadline));
    if (now_ms >= queue->next_hold_ms) {
        queue->next_hold_ms = now_ms + HOLD_EVERY_MS;
        hold_all(queue);
    }
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

bool queue_holds(const struct queue *queue, uint64_t job)
{
    return idmap_get(&queue->jobs, job) != NULL;
}
