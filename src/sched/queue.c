/* Lanes, their windows, the jobs in hand. Level-triggered: freed capacity, a new snapshot, a notice
 * about a lane and the tick all lead to a kick, which looks at the current state.
 *
 * What is known of a lane may be stale: that another instance took a job shows when it is reserved
 * (ERR_STALE); a job that another instance put there is announced by the store, or seen at the next
 * look at all lanes. Nothing is decided by counts: one that is too high costs a look, one that is
 * too low is corrected by the next look.
 *
 * A lane whose best job found no room is blocked. It is not tried again before something may have
 * changed for it: a node that may have room is offered to the best blocked lane it fits, and in
 * every tick a few lanes look at all their nodes, longest-waiting lane first. */
#include "sched/queue.h"

#include <assert.h>
#include <stdlib.h>

#include "base/heap.h"
#include "base/log.h"
#include "base/mem.h"
#include "sched/candidates.h"
#include "sched/replay.h"
#include "sched/sched.h"
#include "sched/settle.h"
#include "sched/shares.h"
#include "sched/spec.h"
#include "store/chain.h"

enum {
    WINDOW = STORE_LANE_ANNOUNCED, /* jobs known of a lane; a kick looks this far past its first */
    WINDOW_BYTES = 256 << 10,      /* of records in a window; the first job is kept in any case */
    READ_MOST = 16 * WINDOW, /* jobs of a lane that are read if its first ones are unreadable */
    READS_MAX = 16,          /* windows being read at once */
    LANES_PAGE = 1024,
    LOOK_EVERY_MS = 1000,    /* between looks at all lanes */
    HAND_BATCH = 256,        /* jobs in hand tried in one tick */
    LOOK_LANES = 2,          /* blocked lanes that look at all their nodes in one tick */
    LOOK_LANE_MS = 1000,     /* between two such looks of one lane */
    OFFER_FIRST = 4,         /* types that a node taking any type is offered to first, */
    OFFER_TYPES = 1024,      /* and at most */
    OFFER_GROUPS = 16,       /* groups of one type it is offered to, */
    OFFER_LANES = 16,        /* and lanes of one group; the others find it when they look */
    LEAVE_EVERY_MS = 100,    /* between two times that a node is left to a better lane */
    KEY_LOOKS = 64,          /* keys that are due and wake a lane in one tick */
    KEY_LOOK_MS = 1000,      /* until a key is due, if the store gave no time, */
    KEY_LOOK_MOST_MS = 5000, /* and at most, whatever time it gave */
    LIMITS_EVERY_MS = 1000,  /* between reads of the rules while jobs with keys wait */
    MISSING_MS = 2000,   /* by then the keeper knows whether the store lost it, and put it again */
    LOOK_AGAIN_MS = 500, /* for an abandoned job that the store does not know yet */
    EXPLAIN_EVERY_MS = 10000,
    LEFT_MOST_MS = 24 * 3600 * 1000, /* that an unreadable job waits */
    STORE_AWAY_MS = 5000, /* that the store may be down before a job that may not wait ends */
};

/* Lanes of one type. */
struct kind {
    struct str type;
    struct heap groups;    /* of group.head: groups with blocked lanes */
    struct heap_node head; /* in queue->kinds, ordered by its best group */
    size_t lanes;          /* blocked or not */
};

/* Lanes of one type that fit the same nodes: they differ only in their keys. */
struct group {
    uint64_t fit; /* see spec_fit() */
    struct kind *kind;
    struct share_order blocked; /* of lane.place */
    struct heap_node head;      /* in kind->groups, ordered by its best lane */
    size_t lanes;               /* blocked or not */
};

/* Lanes whose best job is blocked by a key. They wait for the key, not for nodes: one of them is
 * woken when the key may have room, and wakes the next one in turn unless the key refused. */
struct key_wait {
    uint64_t key;             /* str_hash() of it */
    struct share_order lanes; /* of lane.place */
    size_t count;             /* of lanes, including those that have nothing to try now */
    struct heap_node due;     /* in queue->dues: when a lane is woken in any case, sched_awake_ms */
};

struct lane {
    struct queue *queue;
    uint64_t number;
    struct arena arena;
    struct spec spec;           /* of one of its jobs: a node that may take that one may take all */
    struct group *group;        /* NULL: no job was read yet */
    int64_t count;              /* of jobs that wait there, as far as is known */
    size_t jobs;                /* in the window, including those on their way to a node */
    size_t bytes;               /* of the jobs in the window */
    size_t busy;                /* jobs on their way to a node */
    struct chain window;        /* of waiting.in_lane */
    struct heap order;          /* jobs of the window that can be tried, best first */
    struct share *share;        /* of the jobs' first key; NULL: no job was read yet */
    struct share_place place;   /* in `within`, ordered by its best job */
    int priority;               /* of the best job, */
    uint64_t first;             /* and its id */
    struct share_order *within; /* queue->heads, group->blocked or limit->lanes; NULL: nothing to
                                   do */
    struct key_wait *limit;     /* the key that blocks it; NULL: none */
    uint64_t woken_by;          /* the key it was woken for, and no other lane was; 0: none */
    size_t pace;                /* jobs of it that may be on their way at once */
    struct heap_node look;      /* in queue->looks while it is blocked */
    bool stale;                 /* its first jobs must be read again */
    bool reading;
    bool rereading;    /* by the read under way, since it was stale */
    size_t read_max;   /* jobs to read next time */
    size_t whole;      /* jobs that fill a window, which may be full by bytes */
    size_t unreadable; /* unreadable jobs among its first, as far as is known; not in `count` */
    uint64_t unreadable_first; /* the first of them */
    bool dry;          /* the last read found nothing to try, and another one would not either */
    bool blocked;      /* its best job found no room, or none of it could be read */
    int64_t block_key; /* the priority that was blocked: a higher one may fit elsewhere */
    uint64_t misfit;   /* the last offer it did not take */
    int aside;         /* jobs passed over in this kick */
    unsigned round;    /* the last look at all lanes that found it, or during which it appeared */
    struct lane *next_gone;
};

/* A job in a window, or in hand. */
struct waiting {
    struct queue *queue;
    struct lane *lane; /* NULL: in hand */
    struct chain in_lane;
    struct arena arena;     /* the record */
    struct heap_node order; /* in its lane; -priority, then id */
    struct heap_node again; /* in hand: in queue->later, by when it is tried again */
    struct heap_node age;   /* in queue->ages, by when it began to wait, sched_awake_ms */
    uint64_t job;
    struct spec spec;
    struct str idem; /* its Idempotency-Key; at == NULL: none */
    uint64_t fingerprint;
    struct buf history;
    size_t bytes; /* of its record */
    int attempt;  /* the attempt to start */
    int max_attempts;
    int64_t until_ms;      /* when its time to wait ends, store time */
    int64_t give_up_ms;    /* in hand: the same, sched_awake_ms; may not wait: see STORE_AWAY_MS */
    uint64_t offers;       /* queue->offers when it was last tried */
    uint64_t arrived;      /* see queue->arrivals */
    uint64_t read;         /* the last read that contained it */
    bool unread;           /* in a window: only its position and id are known */
    bool busy;             /* a call or a dispatch is under way */
    bool gone;             /* forgotten meanwhile: freed once it is no longer busy */
    int64_t missing_ms;    /* monotonic: since when the store reports it missing; 0: it is there */
    int64_t explained_ms;  /* sched_awake_ms: when a failed try was last kept for explain */
    const char *unsettled; /* see struct dispatch */
    int64_t unsettled_until_ms;
    struct share_turn turn;    /* of its share, taken for the current try */
    bool abandon;              /* must end: its client was answered OUTCOME_UNKNOWN */
    int64_t abandon_until_ms;  /* monotonic: until then the store may still get to know it */
    struct waiting *successor; /* a newer record of the same job that arrived while it was busy */
    struct waiting *next_aside;
};

struct queue {
    struct sched *sched;
    struct replay *replay;
    struct idmap jobs;  /* -> struct waiting * */
    struct idmap lanes; /* -> struct lane * */
    struct shares shares;
    struct share_order heads; /* of lanes with something to try or to read */
    struct heap kinds;        /* with blocked lanes */
    struct map types;         /* -> struct kind * */
    struct idmap fits;        /* -> struct group * */
    struct idmap keys;        /* -> struct key_wait * */
    struct heap dues;         /* of the key_waits */
    size_t keyed;             /* lanes with keys */
    struct store_op limits_op;
    struct arena limits_arena;
    bool reading_limits;
    int64_t limits_version; /* of the rules as last read */
    int64_t next_limits_ms; /* sched_awake_ms */
    struct heap looks;      /* of blocked lanes, by when they look at all nodes: sched_awake_ms */
    struct node *first_offered, *last_offered;
    uint64_t offers;     /* so far, including the first of those in the list */
    uint64_t lane_looks; /* lane looks so far */
    struct heap later;   /* in hand, and not busy */
    struct heap ages;
    uint64_t arrivals;   /* +1 with each job that entered a window other than by a read */
    uint64_t unreadable; /* the newest job logged as unreadable */
    uint64_t reads;      /* begun so far, */
    int reading;         /* and under way */
    struct store_op look_op;
    struct arena look_arena;
    uint64_t look_after; /* lane after which the look at all lanes continues */
    bool looking;        /* a call of that look is under way */
    bool look_more;      /* the current round is not complete */
    unsigned round;
    int64_t next_look_ms; /* sched_awake_ms */
    bool kick_wanted;
    bool kicking;
    struct waiting *aside; /* jobs passed over in this kick */
};

/* One try to place a job. */
struct placing {
    struct waiting *waiting;
    struct node *offered; /* only this node; NULL: any */
    struct arena arena;
    struct dispatch dispatch;
};

/* One call about a job in hand. */
struct queue_call {
    struct waiting *waiting;
    struct arena arena;
    struct store_op op;
};

struct read {
    struct lane *lane;
    uint64_t number;
    uint64_t arrivals; /* queue->arrivals when it was sent */
    struct arena arena;
    struct store_op op;
};

static struct sched_loop *loop_of(const struct queue *queue)
{
    return sched_keeper_loop(queue->sched);
}

struct queue *queue_new(struct sched *sched)
{
    struct queue *queue = mem_new(struct queue);

    queue->sched = sched;
    queue->replay = replay_new(sched);
    queue->offers = 1;
    queue->limits_version = -1;
    shares_init(&queue->shares);
    return queue;
}

static void add_depth(struct queue *queue, int64_t count)
{
    atomic_fetch_add(&queue->sched->queue_depth, count);
}

/* --- jobs --- */

/* The attempt to start. */
static int next_attempt(const struct store_head *head)
{
    return head->attempt + (head->state == JOB_RETRYING);
}

/* A job waits from its creation; a job that is tried again, from the end of the previous attempt:
 * refusals in between give it no more time. Store time. */
static int64_t waits_since(const struct store_record *record, int attempt)
{
    const struct json *list = NULL;
    int64_t since_ms = record->head.created_ms;
    struct arena arena = {0};

    if (attempt > 1)
        json_parse(record->history, &arena, &list, NULL);
    for (const struct json *entry = json_items(list); entry; entry = json_after(list, entry)) {
        int64_t of = 0, ended_ms = 0;

        json_int(json_get(entry, "attempt_id"), &of);
        json_int(json_get(entry, "ended_ms"), &ended_ms);
        if (of < attempt && ended_ms > since_ms)
            since_ms = ended_ms;
    }
    arena_free(&arena);
    return since_ms;
}

/* Copies the record; NULL when we cannot have written it. */
static struct waiting *waiting_new(struct queue *queue, const struct store_record *record)
{
    const struct store_head *head = &record->head;
    struct waiting *waiting = mem_new(struct waiting);

    assert(head->id);
    struct str json = arena_str(&waiting->arena, record->spec);
    if (spec_stored(json, &waiting->arena, &waiting->spec, NULL)) {
        /* Another release wrote it. It stays where it is, for an instance that can read it, until
         * its time to wait is over. It is read every second and logged once. */
        if (head->id > queue->unreadable) {
            char id[JOB_ID_TEXT + 1];

            queue->unreadable = head->id;
            job_id_text(head->id, id);
            log_event(
                LOG_ERROR, "job.unreadable", KC("job_id", id), KC("type", head->type),
                KC("detail", "this release cannot read what it is about: it is left to others"));
        }
        arena_free(&waiting->arena);
        free(waiting);
        return NULL;
    }
    waiting->queue = queue;
    chain_init(&waiting->in_lane);
    waiting->job = head->id;
    waiting->attempt = next_attempt(head);
    waiting->max_attempts = head->max_attempts;
    waiting->idem = record->idem.at ? arena_str(&waiting->arena, record->idem) : STR_NONE;
    waiting->fingerprint = record->fingerprint;
    buf_str(&waiting->history, record->history);
    waiting->bytes = store_record_bytes(record);
    int64_t since_ms = waits_since(record, waiting->attempt);
    int64_t awake_ms = sched_from_store_ms(loop_of(queue), since_ms);
    waiting->until_ms = head->lane ? head->due_ms : since_ms + waiting->spec.queue_ms;
    /* The remaining time is counted while we are awake: a later pause of this process, or of the
     * store, does not reduce it. */
    waiting->give_up_ms =
        head->lane ? sched_from_store_ms(loop_of(queue), head->due_ms)
                   : awake_ms + (waiting->spec.queue_ms ? waiting->spec.queue_ms : STORE_AWAY_MS);
    waiting->order = (struct heap_node){.key = -waiting->spec.priority, .tie = head->id};
    waiting->again = (struct heap_node){.tie = head->id};
    waiting->age = (struct heap_node){.key = awake_ms, .tie = head->id};
    return waiting;
}

/* Frees a job that is in no list. */
static void waiting_free(struct waiting *waiting)
{
    assert(!waiting->lane && !waiting->order.at && !waiting->again.at && !waiting->age.at);
    if (waiting->successor)
        waiting_free(waiting->successor);
    buf_free(&waiting->history);
    arena_free(&waiting->arena);
    free(waiting);
}

/* --- lanes and windows --- */

static struct lane *lane_of(struct queue *queue, uint64_t number)
{
    struct lane *lane = idmap_get(&queue->lanes, number);

    assert(number);
    if (lane)
        return lane;
    lane = mem_new(struct lane);
    lane->queue = queue;
    lane->number = number;
    lane->round = queue->round;
    lane->read_max = lane->whole = lane->pace = WINDOW;
    chain_init(&lane->window);
    idmap_put(&queue->lanes, number, lane);
    return lane;
}

static void set_count(struct lane *lane, int64_t count)
{
    assert(count >= 0);
    add_depth(lane->queue, count - lane->count);
    lane->count = count;
}

static bool has_more(const struct lane *lane)
{
    return lane->count > (int64_t)lane->jobs;
}

static void heap_place(struct heap *heap, struct heap_node *head, const struct heap_node *best)
{
    heap_del(heap, head);
    if (!best)
        return;
    head->key = best->key;
    head->tie = best->tie;
    heap_add(heap, head);
}

static void lane_place(struct lane *lane, struct share_order *order)
{
    struct share_order *before = lane->within;
    struct group *group = lane->group;
    const struct heap_node *top = heap_top(&lane->order);

    share_order_del(&lane->place);
    lane->within = order;
    if (top) {
        lane->priority = (int)-top->key;
        lane->first = top->tie;
    }
    if (order)
        share_order_put(&lane->queue->shares, order, &lane->place, lane->share, lane->priority,
                        lane->first);
    if (!group || (before != &group->blocked && order != &group->blocked))
        return;
    /* The positions of a group and of a kind may predate the last turns: their keys are never too
     * large. */
    const struct share_place *first = share_order_first(&group->blocked);
    struct heap_node key = first ? share_place_key(first) : (struct heap_node){0};

    heap_place(&group->kind->groups, &group->head, first ? &key : NULL);
    heap_place(&lane->queue->kinds, &group->kind->head, heap_top(&group->kind->groups));
}

static void lane_block(struct lane *lane, int64_t key)
{
    struct queue *queue = lane->queue;

    lane->blocked = true;
    lane->block_key = key;
    heap_del(&queue->looks, &lane->look);
    lane->look = (struct heap_node){.key = sched_awake_ms(loop_of(queue)) + LOOK_LANE_MS,
                                    .tie = lane->number};
    heap_add(&queue->looks, &lane->look);
}

static void lane_unblock(struct lane *lane)
{
    lane->blocked = lane->dry = false;
    heap_del(&lane->queue->looks, &lane->look);
}

static void group_leave(struct queue *queue, struct group *group)
{
    struct kind *kind = group->kind;

    assert(group->lanes > 0);
    if (--group->lanes == 0) {
        idmap_del(&queue->fits, group->fit);
        share_order_done(&group->blocked);
        free(group);
    }
    assert(kind->lanes > 0);
    if (--kind->lanes == 0) {
        map_del(&queue->types, kind->type);
        heap_free(&kind->groups);
        free((void *)kind->type.at);
        free(kind);
    }
}

static void lane_unlimit(struct lane *lane)
{
    struct key_wait *wait = lane->limit;
    struct queue *queue = lane->queue;

    if (!wait)
        return;
    lane_place(lane, NULL);
    lane->limit = NULL;
    assert(wait->count > 0);
    if (--wait->count > 0)
        return;
    heap_del(&queue->dues, &wait->due);
    idmap_del(&queue->keys, wait->key);
    share_order_done(&wait->lanes);
    free(wait);
}

static void lane_free(struct lane *lane)
{
    struct queue *queue = lane->queue;

    assert(!lane->within && !lane->jobs);
    lane_unblock(lane);
    lane_unlimit(lane);
    set_count(lane, 0);
    if (lane->group)
        group_leave(queue, lane->group);
    if (lane->share)
        shares_leave(&queue->shares, lane->share);
    if (lane->spec.demand && lane->spec.demand->key_count)
        queue->keyed--;
    idmap_del(&queue->lanes, lane->number);
    heap_free(&lane->order);
    arena_free(&lane->arena);
    free(lane);
}

/* Finds or makes the group for one more lane. */
static struct group *group_of(struct queue *queue, const struct spec *spec)
{
    uint64_t fit = spec_fit(spec);
    struct group *group = idmap_get(&queue->fits, fit);

    if (!group) {
        struct str type = spec_node_type(spec);
        struct kind *kind = map_get(&queue->types, type);

        if (!kind) {
            kind = mem_new(struct kind);
            kind->type = mem_str(type);
            map_put(&queue->types, kind->type, kind);
        }
        group = mem_new(struct group);
        group->fit = fit;
        group->kind = kind;
        idmap_put(&queue->fits, fit, group);
    }
    group->lanes++;
    group->kind->lanes++;
    return group;
}

/* A job of the lane was read. */
static void lane_meet(struct lane *lane, const struct waiting *waiting)
{
    struct queue *queue = lane->queue;

    if (lane->group ||
        spec_stored(arena_str(&lane->arena, waiting->spec.json), &lane->arena, &lane->spec, NULL))
        return;
    const struct demand *demand = lane->spec.demand;
    bool keyed = demand && demand->key_count;

    lane_place(lane, NULL); /* its position depends on what follows */
    lane->group = group_of(queue, &lane->spec);
    lane->share = shares_enter(&queue->shares, keyed ? demand->keys[0] : STR_NONE);
    queue->keyed += keyed;
}

/* Reads more before the window is empty. */
static bool wants_read(const struct lane *lane)
{
    size_t known = lane->order.count + (size_t)lane->aside;
    size_t whole = lane->read_max < lane->whole ? lane->read_max : lane->whole;

    return !lane->reading && !lane->dry &&
           (lane->stale ||
            (has_more(lane) && lane->aside < WINDOW && (!known || known < whole / 2)));
}

/* After every change: puts the lane in its position among the others, or frees it, since clients
 * can create any number of lanes. */
static void lane_changed(struct lane *lane)
{
    bool top = lane->order.count > 0;
    bool needs_read = !top && (lane->reading || wants_read(lane));

    if (needs_read && !lane->reading && !lane->limit)
        lane->queue->kick_wanted = true;
    if (needs_read && lane->blocked) /* offers would pass it by during the read */
        lane_unblock(lane);
    if ((!top && !needs_read) || (top && lane->busy >= lane->pace))
        lane_place(lane, NULL);
    else if (lane->limit)
        lane_place(lane, &lane->limit->lanes);
    else if (needs_read || !lane->blocked)
        lane_place(lane, &lane->queue->heads);
    else
        lane_place(lane, lane->group ? &lane->group->blocked : NULL);
    if (!lane->reading && !lane->jobs && lane->count <= 0 && !lane->stale && !lane->unreadable)
        lane_free(lane);
}

static void window_add(struct lane *lane, struct waiting *waiting)
{
    assert(!waiting->lane && !waiting->busy);
    waiting->lane = lane;
    waiting->arrived = ++lane->queue->arrivals;
    chain_add_last(&lane->window, &waiting->in_lane);
    lane->jobs++;
    lane->bytes += waiting->bytes;
    heap_add(&lane->order, &waiting->order);
    if (!waiting->unread)
        lane_meet(lane, waiting);
    if (lane->blocked && waiting->order.key < lane->block_key)
        lane_unblock(lane);
}

/* The lane's count stays: the job may still be there. */
static void window_del(struct waiting *waiting)
{
    struct lane *lane = waiting->lane;

    heap_del(&lane->order, &waiting->order);
    chain_del(&waiting->in_lane);
    assert(lane->jobs > 0);
    lane->jobs--;
    lane->bytes -= waiting->bytes;
    if (waiting->busy)
        lane->busy--;
    waiting->lane = NULL;
}

static void known_add(struct waiting *waiting)
{
    struct queue *queue = waiting->queue;

    assert(!idmap_get(&queue->jobs, waiting->job));
    idmap_put(&queue->jobs, waiting->job, waiting);
    heap_add(&queue->ages, &waiting->age);
}

static void known_del(struct waiting *waiting)
{
    heap_del(&waiting->queue->ages, &waiting->age);
    idmap_del(&waiting->queue->jobs, waiting->job);
}

/* Drops a job from the window: it is in its lane, after the window, or has left the lane as
 * well. */
static void evict(struct waiting *waiting)
{
    assert(!waiting->busy && waiting->lane);
    window_del(waiting);
    known_del(waiting);
    waiting_free(waiting);
}

static struct waiting *last_of(const struct lane *lane)
{
    const struct heap_node *last = NULL;

    for (size_t i = 0; i < lane->order.count; i++)
        if (!last || heap_before(last, lane->order.nodes[i]))
            last = lane->order.nodes[i];
    return last ? container_of(last, struct waiting, order) : NULL;
}

/* Does it belong in the window? Not if jobs that are not known come before it. */
static bool belongs(const struct lane *lane, const struct heap_node *order)
{
    const struct waiting *last = last_of(lane);

    return lane->reading || lane->stale || lane->count - 1 <= (int64_t)lane->jobs ||
           (last && heap_before(order, &last->order));
}

static void shorten(struct lane *lane)
{
    while (lane->order.count > WINDOW || (lane->order.count > 1 && lane->bytes > WINDOW_BYTES))
        evict(last_of(lane));
}

/* A job that another call put into its lane. It is already counted in the depth. */
static void arrive(struct queue *queue, const struct store_record *record)
{
    const struct store_head *head = &record->head;
    struct heap_node order = {.key = -head->priority, .tie = head->id};
    struct lane *lane = lane_of(queue, head->lane);
    struct waiting *waiting = NULL;

    struct waiting *known = idmap_get(&queue->jobs, head->id);

    lane->round = queue->round;   /* a look under way may not have seen it */
    if (known && known->unread) { /* announced before the answer came: it is counted */
        evict(known);
        set_count(lane, lane->count > 0 ? lane->count - 1 : 0);
        known = NULL;
    }
    if (known) {
        add_depth(queue, -1);
        lane_changed(lane);
        return;
    }
    replay_add(queue->replay, record);
    lane->count++;
    if (belongs(lane, &order))
        waiting = waiting_new(queue, record);
    if (waiting) {
        known_add(waiting);
        window_add(lane, waiting);
        shorten(lane);
    }
    lane_changed(lane);
    queue->kick_wanted = true;
}

/* --- reading windows --- */

/* Takes a job that was read. False: it is not for the window. */
static bool take_record(struct lane *lane, const struct store_record *record, uint64_t number)
{
    struct queue *queue = lane->queue;
    struct waiting *known = idmap_get(&queue->jobs, record->head.id);
    struct waiting *waiting;

    if (known && known->lane != lane)
        return false; /* in hand: handled there */
    if (known && !known->busy && (known->unread || known->attempt != next_attempt(&record->head))) {
        evict(known); /* only its id was known, or it has been on a node since */
        known = NULL;
    }
    if (known) {
        known->read = number;
        return true;
    }
    waiting = waiting_new(queue, record);
    if (!waiting) {
        if (lane->unreadable++ == 0)
            lane->unreadable_first = record->head.id;
        return false;
    }
    waiting->read = number;
    known_add(waiting);
    window_add(lane, waiting);
    return true;
}

/* The window becomes what was read, plus jobs on their way to a node and jobs that arrived
 * since. */
static void take_window(struct lane *lane, const struct read *read)
{
    const struct store_op *op = &read->op;
    size_t count = op->u.lane.count;
    bool more = op->u.lane.waiting > (int64_t)count;
    bool is_cut = more && count < op->u.lane.max;
    struct heap_node last = {0};
    int64_t total = op->u.lane.waiting;
    struct chain *next;

    if (count) {
        const struct store_head *head = &op->u.lane.items[count - 1].head;

        last = (struct heap_node){.key = -head->priority, .tie = head->id};
    }
    lane->unreadable = 0;
    lane->unreadable_first = 0;
    for (size_t i = 0; i < count; i++)
        total -= !take_record(lane, &op->u.lane.items[i], read->number);
    for (struct chain *link = lane->window.next; link != &lane->window; link = next) {
        struct waiting *waiting = container_of(link, struct waiting, in_lane);
        bool since = waiting->arrived > read->arrivals;

        next = link->next;
        if (waiting->read == read->number)
            continue;
        /* A busy job may have left the lane before the read: it leaves the count later. */
        total += since || waiting->busy;
        if (!waiting->busy && (!since || (more && heap_before(&last, &waiting->order))))
            evict(waiting);
    }
    /* the count and the jobs may be from different moments */
    set_count(lane, total > 0 ? total : 0);
    lane->whole = !is_cut ? WINDOW : lane->jobs ? lane->jobs : 1;
}

static void window_read(struct store_op *op)
{
    struct read *read = container_of(op, struct read, op);
    struct lane *lane = read->lane;
    struct queue *queue = lane->queue;

    assert(lane->reading && queue->reading > 0);
    bool further = false;

    lane->reading = lane->rereading = false;
    queue->reading--;
    if (op->err) {
        lane->stale = true;
        lane->read_max = lane->read_max > 1 ? lane->read_max / 2 : 1; /* perhaps too much */
    } else {
        size_t max = lane->read_max;

        take_window(lane, read);
        /* The jobs after the unreadable ones are for us. */
        lane->read_max =
            lane->unreadable < READ_MOST - WINDOW ? WINDOW + lane->unreadable : READ_MOST;
        further = lane->unreadable && !lane->order.count && lane->read_max > max;
    }
    /* Jobs that found no room find none because more of them are known. */
    if (lane->block_key == INT64_MAX)
        lane_unblock(lane);
    /* The store is down, or the jobs there are busy already: do not read in a loop. */
    if (!further && (op->err || !lane->order.count)) {
        lane_block(lane, INT64_MAX);
        lane->dry = true;
    }
    queue->kick_wanted |= !lane->dry;
    arena_free(&read->arena);
    free(read);
    lane_changed(lane);
}

static void read_window(struct lane *lane)
{
    struct queue *queue = lane->queue;
    struct read *read = mem_new(struct read);

    assert(!lane->reading);
    read->lane = lane;
    read->number = ++queue->reads;
    read->arrivals = queue->arrivals;
    read->op = (struct store_op){.verb = STORE_LANE, .done = window_read, .arena = &read->arena};
    read->op.u.lane.lane = lane->number;
    read->op.u.lane.max = lane->read_max;
    read->op.u.lane.bytes_max =
        lane->read_max > WINDOW ? lane->read_max / WINDOW * WINDOW_BYTES : WINDOW_BYTES;
    lane->reading = true;
    lane->rereading = lane->stale;
    lane->stale = false; /* the answer may lack whatever is announced from now on */
    queue->reading++;
    lane_changed(lane);
    sched_send(loop_of(queue), &read->op);
}

/* --- which lanes there are --- */

/* Another instance put a job into a lane. */
static void notice_lane(struct lane *lane, int priority, uint64_t job)
{
    struct queue *queue = lane->queue;
    struct heap_node order = {.key = -(int64_t)priority, .tie = job};
    struct waiting *waiting;

    if (idmap_get(&queue->jobs, job) || !belongs(lane, &order))
        return;
    waiting = mem_new(struct waiting);
    waiting->queue = queue;
    waiting->unread = true;
    waiting->job = job;
    waiting->order = order;
    waiting->again = (struct heap_node){.tie = job};
    waiting->age = (struct heap_node){.key = sched_awake_ms(loop_of(queue)), .tie = job};
    chain_init(&waiting->in_lane);
    known_add(waiting);
    window_add(lane, waiting);
    shorten(lane);
    queue->kick_wanted = true;
}

/* Lanes that the round did not find are empty. */
static void end_round(struct queue *queue)
{
    struct lane *lane, *gone = NULL, *next_lane;
    struct chain *next;

    for (size_t i = 0; (lane = idmap_next(&queue->lanes, &i));)
        if (lane->round != queue->round && !lane->reading) {
            lane->next_gone = gone;
            gone = lane;
        }
    for (lane = gone; lane; lane = next_lane) {
        next_lane = lane->next_gone;
        for (struct chain *link = lane->window.next; link != &lane->window; link = next) {
            struct waiting *waiting = container_of(link, struct waiting, in_lane);

            next = link->next;
            if (!waiting->busy)
                evict(waiting);
        }
        lane->stale = false;
        lane->unreadable = 0;
        lane->unreadable_first = 0;
        set_count(lane, (int64_t)lane->busy);
        lane_changed(lane);
    }
}

static void looked(struct store_op *op)
{
    struct queue *queue = container_of(op, struct queue, look_op);

    assert(queue->looking);
    queue->looking = false;
    if (op->err) {
        queue->look_more = false;
        queue->next_look_ms = 0; /* with the next tick */
        arena_reset(&queue->look_arena);
        return;
    }
    for (size_t i = 0; i < op->u.lanes.count; i++) {
        const struct store_lane *item = &op->u.lanes.items[i];
        struct lane *lane = lane_of(queue, item->lane);
        /* Busy jobs may have left it already. */
        int64_t count = item->count + (int64_t)lane->busy - (int64_t)lane->unreadable;

        lane->round = queue->round;
        if (item->first != lane->unreadable_first)
            notice_lane(lane, item->priority, item->first);
        int64_t known = (int64_t)lane->jobs;
        set_count(lane, count > known ? count : known);
        /* Unknown jobs are among its first, or known jobs have left it. */
        if (!lane->reading &&
            ((has_more(lane) && lane->order.count < lane->whole) || count < known))
            lane->stale = queue->kick_wanted = true;
        lane_changed(lane);
    }
    queue->look_more = op->u.lanes.more && op->u.lanes.count > 0;
    if (queue->look_more)
        queue->look_after = op->u.lanes.items[op->u.lanes.count - 1].lane;
    else
        end_round(queue);
    arena_reset(&queue->look_arena);
}

/* One page per tick, so that very many lanes do not make a tick longer. */
static void look_at_lanes(struct queue *queue, int64_t now_ms)
{
    if (queue->looking || (!queue->look_more && now_ms < queue->next_look_ms))
        return;
    if (!queue->look_more) {
        queue->round++;
        queue->look_after = 0;
        queue->next_look_ms = now_ms + LOOK_EVERY_MS;
    }
    queue->look_op =
        (struct store_op){.verb = STORE_LANES, .done = looked, .arena = &queue->look_arena};
    queue->look_op.u.lanes.after = queue->look_after;
    queue->look_op.u.lanes.max = LANES_PAGE;
    queue->looking = true;
    sched_send(loop_of(queue), &queue->look_op);
}

void queue_look(struct queue *queue)
{
    queue->next_look_ms = 0;
}

static bool cut_hex(struct str *rest, uint64_t *ret_value)
{
    struct str digits = str_cut(rest, ' ');
    char text[17], *end;

    if (!digits.len || !str_copy(digits, text, sizeof text))
        return false;
    *ret_value = strtoull(text, &end, 16);
    return *end == 0;
}

void queue_notice(struct queue *queue, struct str text)
{
    uint64_t number, priority, job;
    struct lane *lane;

    if (!cut_hex(&text, &number) || !cut_hex(&text, &priority) || !cut_hex(&text, &job) ||
        !number || !job || priority > 9 || idmap_get(&queue->jobs, job))
        return;
    lane = lane_of(queue, number);
    lane->round = queue->round;
    set_count(lane, lane->count + 1);
    notice_lane(lane, (int)priority, job);
    lane_changed(lane);
}

/* --- in hand --- */

static void begin(struct waiting *waiting);
static void place_on(struct waiting *waiting, struct node *only);

/* The job no longer waits, here or at all; if there is a newer record of it, that is taken
 * up. */
static void drop(struct waiting *waiting)
{
    struct queue *queue = waiting->queue;
    struct lane *lane = waiting->lane;
    struct waiting *successor = waiting->gone || waiting->abandon ? NULL : waiting->successor;

    if (lane) {
        window_del(waiting);
        if (lane->count > 0)
            set_count(lane, lane->count - 1);
        lane_changed(lane);
    } else {
        heap_del(&queue->later, &waiting->again);
        add_depth(queue, -1);
    }
    known_del(waiting);
    if (successor) {
        waiting->successor = NULL;
        successor->unsettled = waiting->unsettled;
        successor->unsettled_until_ms = waiting->unsettled_until_ms;
    }
    waiting_free(waiting);
    if (successor)
        begin(successor);
}

static void take_in_hand(struct waiting *waiting)
{
    struct lane *lane = waiting->lane;

    if (!lane)
        return;
    window_del(waiting);
    if (lane->count > 0)
        set_count(lane, lane->count - 1);
    lane_changed(lane);
    add_depth(waiting->queue, 1);
}

static void begin(struct waiting *waiting)
{
    known_add(waiting);
    add_depth(waiting->queue, 1);
    place_on(waiting, NULL);
}

static bool is_superseded(const struct waiting *waiting)
{
    return waiting->gone || (waiting->successor && !waiting->abandon);
}

/* Not before the next tick. */
static void try_later(struct waiting *waiting, int64_t after_ms)
{
    assert(!waiting->lane && !waiting->busy);
    if (is_superseded(waiting)) {
        drop(waiting);
        return;
    }
    waiting->again.key = sched_awake_ms(loop_of(waiting->queue)) + after_ms;
    heap_add(&waiting->queue->later, &waiting->again);
}

static struct queue_call *call_new(struct waiting *waiting, enum store_verb verb, store_done *done)
{
    struct queue_call *call = mem_new(struct queue_call);

    assert(!waiting->busy && !waiting->lane);
    waiting->busy = true;
    call->waiting = waiting;
    call->op = (struct store_op){.verb = verb,
                                 .done = done,
                                 .job = waiting->job,
                                 .attempt = waiting->attempt,
                                 .arena = &call->arena};
    return call;
}

static void call_free(struct queue_call *call)
{
    assert(call->waiting->busy);
    call->waiting->busy = false;
    arena_free(&call->arena);
    free(call);
}

/* The store does not know the job: it may have been lost a moment ago. */
static bool is_missing(struct waiting *waiting, enum err err)
{
    int64_t now_ms = *loop_of(waiting->queue)->mono_ms;

    if (err != ERR_NOT_FOUND)
        waiting->missing_ms = 0;
    else if (!waiting->missing_ms)
        waiting->missing_ms = now_ms;
    return err == ERR_NOT_FOUND && now_ms - waiting->missing_ms < MISSING_MS;
}

static void ended(struct store_op *op)
{
    struct queue_call *call = container_of(op, struct queue_call, op);
    struct waiting *waiting = call->waiting;
    /* Not found may mean not there yet: the call that would create it may still be on its way. */
    bool early = waiting->abandon && op->err == ERR_NOT_FOUND &&
                 *loop_of(waiting->queue)->mono_ms < waiting->abandon_until_ms;
    bool away = store_is_away(op->err);

    if (!op->err && !op->u.settle.duplicate)
        settle_applied(loop_of(waiting->queue), op, NULL);
    call_free(call);
    if (early || away)
        try_later(waiting, early ? LOOK_AGAIN_MS : 1);
    else
        drop(waiting);
}

/* Ends a job that was abandoned, or that may not wait while the store was down for too long. */
static void end(struct waiting *waiting)
{
    struct queue_call *call = call_new(waiting, STORE_FINISH, ended);

    if (waiting->abandon)
        call->op.attempt = 0; /* whatever its state */
    call->op.not_after_ms = sched_not_after(loop_of(waiting->queue));
    call->op.u.settle.outcome = waiting->abandon ? STORE_ABANDON : STORE_NO_CANDIDATE;
    call->op.u.settle.reason = str_of(waiting->abandon ? err_name(ERR_UNKNOWN) : "QUEUE_TIMEOUT");
    call->op.u.settle.owner = store_number(waiting->queue->sched->store);
    call->op.u.settle.hold_ms = SCHED_HOLD_MS;
    sched_send(loop_of(waiting->queue), &call->op);
}

static void wait_answered(struct store_op *op)
{
    struct queue_call *call = container_of(op, struct queue_call, op);
    struct waiting *waiting = call->waiting;
    struct queue *queue = waiting->queue;
    enum err err = op->err;

    call_free(call);
    if (waiting->abandon) {
        end(waiting); /* abandoned meanwhile */
    } else if (is_missing(waiting, err) || store_is_away(err)) {
        try_later(waiting, 1);
    } else if (err || is_superseded(waiting)) {
        drop(waiting);
    } else {
        struct lane *lane = lane_of(queue, spec_lane(&waiting->spec));

        lane->round = queue->round;
        add_depth(queue, -1);
        set_count(lane, lane->count + 1);
        if (belongs(lane, &waiting->order)) {
            window_add(lane, waiting);
            shorten(lane);
        } else {
            known_del(waiting);
            waiting_free(waiting);
        }
        lane_changed(lane);
        queue->kick_wanted = true;
    }
}

/* It was accepted once: the number of jobs waiting there no longer matters. If its time to wait is
 * over the sweep ends it. */
static void wait_in_lane(struct waiting *waiting)
{
    struct queue_call *call = call_new(waiting, STORE_WAIT, wait_answered);

    call->op.u.wait.lane = spec_lane(&waiting->spec);
    call->op.u.wait.priority = (int)waiting->spec.priority;
    int64_t left_ms = waiting->give_up_ms - sched_awake_ms(loop_of(waiting->queue));

    call->op.u.wait.wait_ms = left_ms > 0 ? left_ms : 0;
    call->op.u.wait.bounds.account = spec_account(&waiting->spec);
    sched_send(loop_of(waiting->queue), &call->op);
}

static void try_in_hand(struct queue *queue, int64_t now_ms)
{
    struct heap_node *top;

    for (int i = 0; i < HAND_BATCH && (top = heap_top(&queue->later)) && top->key <= now_ms; i++) {
        struct waiting *waiting = container_of(top, struct waiting, again);

        heap_del(&queue->later, top);
        if (waiting->abandon)
            end(waiting);
        else if (waiting->unsettled || now_ms < waiting->give_up_ms)
            /* whatever was reserved for it is given back first, in any case */
            place_on(waiting, NULL);
        else if (waiting->spec.queue_ms > 0)
            wait_in_lane(waiting);
        else
            end(waiting);
    }
}

/* --- offers --- */

void queue_room(struct queue *queue, struct node *node)
{
    if (node->offered || !queue->lanes.count)
        return;
    node->offered = true;
    node->next_offered = NULL;
    if (queue->last_offered)
        queue->last_offered->next_offered = node;
    else
        queue->first_offered = node;
    queue->last_offered = node;
    queue->kick_wanted = true;
}

static struct lane *lane_at(struct share_place *place)
{
    return place ? container_of(place, struct lane, place) : NULL;
}

static bool is_better(const struct heap_node *key, const struct lane *than)
{
    struct heap_node other = share_place_key(&than->place);

    return heap_before(key, &other);
}

static struct lane *better(struct lane *a, struct lane *b)
{
    struct heap_node key = b ? share_place_key(&b->place) : (struct heap_node){0};

    return !a || (b && is_better(&key, a)) ? b : a;
}

/* The best lane of a group with a job for this node. */
static struct lane *fit_of_group(struct queue *queue, struct group *group,
                                 const struct snap_node *member)
{
    struct share_place *first[OFFER_LANES];
    size_t count = share_order_some(&group->blocked, OFFER_LANES, first);
    struct lane *best = NULL;

    for (size_t i = 0; i < count; i++) {
        struct lane *lane = lane_at(first[i]);

        queue->lane_looks++;
        if (lane->misfit == queue->offers)
            continue;
        /* A node that fits one lane of a group fits all. */
        if (!best && !candidates_has_room(loop_of(queue), &lane->spec, member))
            return NULL;
        best = better(best, lane);
    }
    return best;
}

/* The same for a type. */
static struct lane *fit_of_kind(struct queue *queue, const struct kind *kind,
                                const struct snap_node *member)
{
    struct heap_node *groups[OFFER_GROUPS];
    size_t count = kind ? heap_first(&kind->groups, OFFER_GROUPS, groups) : 0;
    struct lane *best = NULL;

    for (size_t i = 0; i < count && (!best || is_better(groups[i], best)); i++)
        best =
            better(best, fit_of_group(queue, container_of(groups[i], struct group, head), member));
    return best;
}

static struct lane *fit_of(struct queue *queue, const struct snap_node *member)
{
    const struct pool_facts *facts = &member->facts->pool;
    struct heap_node *kinds[OFFER_TYPES];
    struct lane *best = NULL;

    if (pool_type_member(facts, STR("*"))) /* one of the first few nearly always fits */
        for (size_t max = OFFER_FIRST, i = 0;; max = OFFER_TYPES) {
            size_t count = heap_first(&queue->kinds, max, kinds);

            for (; i < count && (!best || is_better(kinds[i], best)); i++)
                best = better(
                    best, fit_of_kind(queue, container_of(kinds[i], struct kind, head), member));
            if (best || count < max || max == OFFER_TYPES)
                return best;
        }
    for (size_t i = 0; i < facts->type_count; i++)
        best = better(best, fit_of_kind(queue, map_get(&queue->types, facts->types[i]), member));
    return best;
}

/* The best blocked lane for the first node of the list that fits any. */
static struct lane *offered_to(struct queue *queue)
{
    struct node *node;

    while ((node = queue->first_offered)) {
        const struct snap_node *member = snapshot_of(loop_of(queue)->snapshot, node);
        bool room = member && counts_load(member->node) <
                                  atomic_load_explicit(&member->node->max, memory_order_relaxed);
        struct lane *lane = room ? fit_of(queue, member) : NULL;

        if (lane)
            return lane;
        queue->first_offered = node->next_offered;
        if (!queue->first_offered)
            queue->last_offered = NULL;
        node->offered = false;
        queue->offers++;
    }
    return NULL;
}

/* Checks that a node has room before it is offered. A lane that looks at all nodes by itself leaves
 * the node to a blocked lane whose best job has a higher priority, and offers it there. Not again
 * at once: that lane may not take it, and the two would leave it to each other for ever. */
static bool is_spoken_for(struct dispatch *dispatch, const struct snap_node *member)
{
    const struct placing *placing = container_of(dispatch, struct placing, dispatch);
    struct queue *queue = placing->waiting->queue;
    int64_t now_ms = sched_awake_ms(loop_of(queue));
    const struct lane *lane;

    if (!queue->kinds.count || now_ms - member->node->passed_on_ms < LEAVE_EVERY_MS)
        return false;
    lane = fit_of(queue, member);
    if (!lane || lane->priority <= placing->waiting->spec.priority)
        return false;
    member->node->passed_on_ms = now_ms;
    queue_room(queue, member->node);
    return true;
}

/* --- keys --- */

/* Tries the first lane that waits for a key again. */
static void wake_one(struct queue *queue, struct key_wait *wait)
{
    struct lane *lane = lane_at(share_order_first(&wait->lanes));

    heap_move(&queue->dues, &wait->due, sched_awake_ms(loop_of(queue)) + KEY_LOOK_MS);
    if (!lane)
        return;
    lane->woken_by = wait->key;
    lane_unlimit(lane);
    lane_changed(lane);
    queue->kick_wanted = true;
}

void queue_key_freed(struct queue *queue, uint64_t key)
{
    struct key_wait *wait = idmap_get(&queue->keys, key);

    if (wait)
        wake_one(queue, wait);
}

static void wake_due(struct queue *queue, int64_t now_ms)
{
    struct heap_node *top;

    for (int i = 0; i < KEY_LOOKS && (top = heap_top(&queue->dues)) && top->key <= now_ms; i++)
        wake_one(queue, container_of(top, struct key_wait, due));
}

/* Any of the keys may have room now: all are looked at, some with every tick. */
static void all_due(struct queue *queue)
{
    struct key_wait *wait;

    for (size_t i = 0; (wait = idmap_next(&queue->keys, &i));)
        wait->due.key = 0;
    heap_reorder(&queue->dues);
}

static void limits_read(struct store_op *op)
{
    struct queue *queue = container_of(op, struct queue, limits_op);

    queue->reading_limits = false;
    if (!op->err && op->u.limits.version != queue->limits_version) {
        queue->limits_version = op->u.limits.version;
        shares_set_rules(&queue->shares, op->u.limits.rules, op->u.limits.rule_count);
        all_due(queue);
    }
    arena_reset(&queue->limits_arena);
}

static void look_at_limits(struct queue *queue, int64_t now_ms)
{
    if (queue->reading_limits || !queue->keyed || now_ms < queue->next_limits_ms)
        return;
    queue->next_limits_ms = now_ms + LIMITS_EVERY_MS;
    queue->limits_op =
        (struct store_op){.verb = STORE_LIMITS, .done = limits_read, .arena = &queue->limits_arena};
    queue->reading_limits = true;
    sched_send(loop_of(queue), &queue->limits_op);
}

void queue_limits_changed(struct queue *queue)
{
    queue->next_limits_ms = 0;
    all_due(queue);
    wake_due(queue, sched_awake_ms(loop_of(queue)));
}

/* --- placing --- */

/* It stays in its lane. In a kick, either the lane is blocked or only this job is passed over. */
static void stays(struct waiting *waiting, bool particular, const struct node *only)
{
    struct queue *queue = waiting->queue;
    struct lane *lane = waiting->lane;

    if (particular && !queue->kicking) {
        heap_add(&lane->order, &waiting->order);
        if (!lane->blocked) /* nothing is known of the others */
            lane_block(lane, INT64_MAX);
    } else if (particular && lane->aside < WINDOW) {
        lane->aside++;
        waiting->next_aside = queue->aside;
        queue->aside = waiting;
        if (only) /* other jobs may find room there */
            lane->block_key = INT64_MAX;
    } else {
        heap_add(&lane->order, &waiting->order);
        if (only)
            lane->misfit = waiting->offers;
        else if (waiting->offers == queue->offers)
            lane_block(lane, waiting->order.key);
        else
            queue->kick_wanted = true; /* a node has got room since it looked */
    }
    lane_changed(lane);
}

/* Gives the turn back if the try failed. A lane at the limit of a key is tried with one job at a
 * time, until a try succeeds. */
static void note_turn(struct waiting *waiting, const struct dispatch *dispatch, bool is_placed)
{
    struct lane *lane = waiting->lane;
    struct queue *queue = lane->queue;
    bool limited = dispatch->err == ERR_LIMITED;
    uint64_t woken_by = lane->woken_by;

    if (is_placed)
        shares_use_turn(&queue->shares, (int)waiting->spec.priority, waiting->turn);
    else if (lane->share)
        shares_give_back(lane->share, (int)waiting->spec.priority, waiting->turn);
    waiting->turn = (struct share_turn){0};
    if (limited)
        lane->pace = 1;
    else if (is_placed && lane->pace < WINDOW)
        lane->pace *= 2;
    lane->woken_by = 0;
    /* Woken for a key: the next lane that waits for the key is woken too, unless the key
     * refused. */
    if (woken_by && !(limited && str_hash(dispatch_limited_key(dispatch)) == woken_by))
        queue_key_freed(queue, woken_by);
}

/* The job stays in its lane, which waits for a key. */
static void stays_limited(struct waiting *waiting, uint64_t key, int64_t retry_ms)
{
    struct lane *lane = waiting->lane;
    struct queue *queue = lane->queue;

    heap_add(&lane->order, &waiting->order);
    lane_unblock(lane);
    lane_unlimit(lane);
    assert(!lane->limit);
    struct key_wait *wait = idmap_get(&queue->keys, key);
    if (!wait) {
        wait = mem_new(struct key_wait);
        wait->key = key;
        wait->due.tie = key;
        idmap_put(&queue->keys, key, wait);
    }
    wait->count++;
    lane->limit = wait;
    if (retry_ms <= 0) /* unknown */
        retry_ms = KEY_LOOK_MS;
    heap_move(&queue->dues, &wait->due,
              sched_awake_ms(loop_of(queue)) +
                  (retry_ms < KEY_LOOK_MOST_MS ? retry_ms : KEY_LOOK_MOST_MS));
    lane_changed(lane);
}

static void tried(struct dispatch *dispatch)
{
    struct placing *placing = container_of(dispatch, struct placing, dispatch);
    struct waiting *waiting = placing->waiting;
    enum err err = dispatch->err;
    bool missing = is_missing(waiting, err) && !waiting->lane;
    bool away = missing || store_is_away(err);
    bool over = !err || dispatch->ended || job_state_final(dispatch->head.state) ||
                (!away && (err == ERR_NOT_FOUND || !waiting->spec.queue_ms));
    bool held = dispatch->record.head.id; /* it was reserved and given back: in no lane */
    /* The reason is specific to this job (where it was before, which node it prefers): others of
     * its lane may find room where it did not. */
    bool particular = dispatch->whys[WHY_TRIED] > 0 || waiting->spec.options.preferred_node_id.at;
    bool is_placed = !err && dispatch->node;

    assert(waiting->busy && waiting->job == dispatch->job);
    waiting->busy = false;
    if (waiting->lane) {
        waiting->lane->busy--;
        /* Another instance took it meanwhile, and it waits there again for another attempt. */
        waiting->lane->stale |= !err && dispatch->head.lane == waiting->lane->number;
        note_turn(waiting, dispatch, is_placed);
    }
    waiting->unsettled = dispatch->unsettled;
    waiting->unsettled_until_ms = dispatch->unsettled_until_ms;
    if (held) {
        buf_clear(&waiting->history);
        buf_str(&waiting->history, dispatch->record.history);
    }
    struct node *offered = placing->offered;
    int64_t retry_ms = dispatch->block.retry_ms;
    uint64_t key = str_hash(dispatch_limited_key(dispatch));
    /* Offers the node to others: they may have found it taken meanwhile. */
    if (err == ERR_LIMITED && dispatch->expected)
        queue_room(waiting->queue, dispatch->expected);
    arena_free(&placing->arena);
    free(placing);
    if (over && !is_placed) { /* others of its lane may want the node it was tried on */
        waiting->queue->kick_wanted = true;
        if (offered)
            queue_room(waiting->queue, offered);
    }
    if (over && err != ERR_NOT_FOUND) /* if not found, the copy in replay may still be needed */
        replay_forget(waiting->queue->replay, waiting->job);
    if (waiting->abandon) { /* abandoned meanwhile */
        take_in_hand(waiting);
        end(waiting);
    } else if (over) {
        drop(waiting);
    } else if (waiting->lane && !held && !waiting->unsettled) {
        if (is_superseded(waiting))
            drop(waiting);
        else if (err == ERR_LIMITED)
            stays_limited(waiting, key, retry_ms);
        else
            stays(waiting, particular && !away, offered);
    } else {
        take_in_hand(waiting);
        if (away || is_superseded(waiting))
            try_later(waiting, 1);
        else
            wait_in_lane(waiting);
    }
}

/* On any node, or only on this one. */
static void place_on(struct waiting *waiting, struct node *only)
{
    struct placing *placing = mem_new(struct placing);
    struct queue *queue = waiting->queue;
    struct lane *lane = waiting->lane;
    int64_t now_ms = sched_awake_ms(loop_of(queue));
    /* It is tried ten times a second: what keeps it waiting is recorded only now and then. */
    bool quiet =
        only || (waiting->explained_ms && now_ms - waiting->explained_ms < EXPLAIN_EVERY_MS);

    assert(!waiting->busy && !waiting->again.at);
    if (!quiet)
        waiting->explained_ms = now_ms;
    waiting->busy = true;
    waiting->offers = queue->offers;
    waiting->turn = (struct share_turn){0};
    if (lane) {
        if (lane->share && queue->keyed) /* otherwise there are no other keys to take turns with */
            waiting->turn =
                shares_take_turn(&queue->shares, lane->share, (int)waiting->spec.priority);
        heap_del(&lane->order, &waiting->order);
        lane->busy++;
        lane_changed(lane);
    }
    placing->waiting = waiting;
    placing->offered = only;
    placing->dispatch = (struct dispatch){.loop = loop_of(queue),
                                          .arena = &placing->arena,
                                          .spec = waiting->spec,
                                          .job = waiting->job,
                                          .attempt = waiting->attempt,
                                          .max_attempts = waiting->max_attempts,
                                          .exists = true,
                                          .look_at_all = true,
                                          .only = only,
                                          .queued = true,
                                          .spoken_for = is_spoken_for,
                                          .unsettled = waiting->unsettled,
                                          .unsettled_until_ms = waiting->unsettled_until_ms,
                                          .quiet = quiet,
                                          .history = buf_view(&waiting->history),
                                          .done = tried};
    dispatch_start(&placing->dispatch);
}

/* Tries one job or reads one window; false: there is nothing to do now. */
static bool step(struct queue *queue)
{
    struct lane *open = lane_at(share_order_first(&queue->heads));
    struct lane *lane = better(open, offered_to(queue));
    const struct heap_node *top = lane ? heap_top(&lane->order) : NULL;
    struct waiting *waiting = top ? container_of(top, struct waiting, order) : NULL;

    if (!lane)
        return false;
    queue->lane_looks++;
    if ((wants_read(lane) || (waiting && waiting->unread && !lane->reading && !lane->dry)) &&
        queue->reading < READS_MAX)
        read_window(lane);
    if (waiting && !waiting->unread && (lane->dry || !(lane->stale || lane->rereading)))
        place_on(waiting, lane == open ? NULL : queue->first_offered);
    else if (lane != open && lane->dry)
        lane->misfit = queue->offers; /* not now */
    else
        return false; /* nothing may overtake what is being read; the answer kicks again */
    return true;
}

void queue_want_kick(struct queue *queue)
{
    queue->kick_wanted = true;
}

void queue_turn(struct queue *queue)
{
    struct waiting *waiting;

    if (!queue->kick_wanted)
        return;
    queue->kick_wanted = false;
    assert(!queue->aside && !queue->kicking);
    queue->kicking = true; /* a dispatch may fail or finish before dispatch_start returns */
    while (step(queue))
        ;
    queue->kicking = false;
    while ((waiting = queue->aside)) {
        queue->aside = waiting->next_aside;
        waiting->lane->aside = 0;
        heap_add(&waiting->lane->order, &waiting->order);
        if (!waiting->lane->blocked) /* nothing is known of the others */
            lane_block(waiting->lane, INT64_MAX);
        lane_changed(waiting->lane);
    }
}

void queue_tick(struct queue *queue, int64_t now_ms)
{
    struct heap_node *top;

    look_at_lanes(queue, now_ms);
    try_in_hand(queue, now_ms);
    replay_tick(queue->replay);
    for (int i = 0; i < LOOK_LANES && (top = heap_top(&queue->looks)) && top->key <= now_ms; i++) {
        struct lane *lane = container_of(top, struct lane, look);

        lane_unblock(lane);
        lane_changed(lane);
    }
    look_at_limits(queue, now_ms);
    wake_due(queue, now_ms);
    queue->kick_wanted = true;
}

/* --- what others report --- */

/* A call about a job that cannot be read. */
struct setting_aside {
    struct arena arena;
    struct store_op op;
};

static void set_aside(struct store_op *op)
{
    struct setting_aside *setting = container_of(op, struct setting_aside, op);

    arena_free(&setting->arena); /* if it failed, the sweep finds the job again */
    free(setting);
}

/* A job that no instance has in hand any more and that cannot be read here: it waits in a separate
 * lane until an instance that can read it takes it, or its time is over. Otherwise the sweep would
 * find it for ever, ahead of all others. */
static void leave_to_others(struct queue *queue, const struct store_record *record)
{
    struct setting_aside *setting = mem_new(struct setting_aside);
    const struct store_head *head = &record->head;
    int attempt = next_attempt(head);
    const struct json *spec = NULL;
    int64_t wait_ms = 0;

    if (!json_parse(record->spec, &setting->arena, &spec, NULL) && json_type(spec) == JSON_OBJ)
        json_int(json_get(spec, "queue_ms"), &wait_ms);
    if (wait_ms <= 0 || wait_ms > LEFT_MOST_MS)
        wait_ms = STORE_AWAY_MS;
    int64_t awake_ms = sched_from_store_ms(loop_of(queue), waits_since(record, attempt));
    int64_t left_ms = awake_ms + wait_ms - sched_awake_ms(loop_of(queue));
    setting->op = (struct store_op){.verb = STORE_WAIT,
                                    .done = set_aside,
                                    .job = head->id,
                                    .attempt = attempt,
                                    .arena = &setting->arena};
    setting->op.u.wait.lane = head->id;
    setting->op.u.wait.wait_ms = left_ms > 0 ? left_ms : 0;
    setting->op.u.wait.bounds.account =
        (struct store_account){.name = json_str(json_get(spec, "submitted_by"), &setting->arena),
                               .bytes = (int64_t)record->spec.len};
    sched_send(loop_of(queue), &setting->op);
}

void queue_continue(struct queue *queue, const struct store_record *record)
{
    assert(record->head.id && record->spec.at && !job_state_final(record->head.state));
    if (record->head.lane) {
        arrive(queue, record);
        return;
    }
    struct waiting *known = idmap_get(&queue->jobs, record->head.id);
    struct waiting *waiting = waiting_new(queue, record);

    if (!waiting) {
        leave_to_others(queue, record);
    } else if (known && known->busy && !known->abandon) { /* its newest record counts afterwards */
        if (known->successor)
            waiting_free(known->successor);
        known->successor = waiting;
    } else if (known && (known->abandon || (!known->lane && known->attempt >= waiting->attempt))) {
        waiting_free(waiting);
    } else {
        if (known)
            drop(known);
        begin(waiting);
    }
}

void queue_abandon(struct queue *queue, const struct store_record *record)
{
    struct waiting *waiting = idmap_get(&queue->jobs, record->head.id);

    if (!waiting) {
        waiting = waiting_new(queue, record);
        assert(waiting); /* it was read from a request a moment ago */
        idmap_put(&queue->jobs, waiting->job, waiting); /* it does not wait: no age */
        add_depth(queue, 1);
    }
    waiting->abandon = true;
    /* A call that was just sent is accepted until its time is over by the store's clock, which is
     * known except for the duration of a call. */
    waiting->abandon_until_ms =
        sched_not_after(loop_of(queue)) + queue->sched->config.store_timeout_ms;
    if (waiting->busy)
        return;
    take_in_hand(waiting);
    heap_del(&queue->later, &waiting->again);
    end(waiting);
}

void queue_forget(struct queue *queue, uint64_t job, uint64_t number)
{
    struct waiting *waiting = idmap_get(&queue->jobs, job);
    struct lane *lane = number ? idmap_get(&queue->lanes, number) : NULL;

    replay_forget(queue->replay, job);
    if (waiting && waiting->busy) {
        waiting->gone = true;
    } else if (waiting) {
        drop(waiting);
    } else if (lane && has_more(lane)) {
        set_count(lane, lane->count - 1);
        lane_changed(lane);
    }
}

void queue_put_again(struct queue *queue)
{
    const struct waiting *waiting;

    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));) {
        struct store_record record = {.head = {.id = waiting->job,
                                               .max_attempts = waiting->max_attempts,
                                               .due_ms = waiting->until_ms},
                                      .spec = waiting->spec.json,
                                      .idem = waiting->idem,
                                      .fingerprint = waiting->fingerprint};

        if (!waiting->spec.queue_ms)
            record.head.due_ms += STORE_AWAY_MS;
        if (!waiting->lane && !waiting->abandon)
            replay_add(queue->replay, &record);
    }
    replay_begin(queue->replay);
    queue_look(queue);
}

int64_t queue_oldest_ms(const struct queue *queue, int64_t now_ms)
{
    const struct heap_node *top = heap_top(&queue->ages);

    return top && top->key < now_ms ? now_ms - top->key : 0;
}

size_t queue_bytes(const struct queue *queue)
{
    const struct lane *lane;
    size_t bytes = 0;

    for (size_t i = 0; (lane = idmap_next(&queue->lanes, &i));)
        bytes += lane->bytes;
    return bytes;
}

uint64_t queue_lane_looks(const struct queue *queue)
{
    return queue->lane_looks;
}

bool queue_in_hand(const struct queue *queue, uint64_t job)
{
    const struct waiting *waiting = idmap_get(&queue->jobs, job);

    return waiting && !waiting->lane;
}

bool queue_is_unsettled(const struct queue *queue, uint64_t job)
{
    const struct waiting *waiting = idmap_get(&queue->jobs, job);

    return waiting && (waiting->unsettled || waiting->abandon);
}

void queue_free(struct queue *queue)
{
    struct waiting *waiting;
    struct lane *lane;
    struct key_wait *wait;
    struct group *group;
    struct kind *kind;

    if (!queue)
        return;
    for (size_t i = 0; (lane = idmap_next(&queue->lanes, &i));) {
        share_order_del(&lane->place);
        heap_free(&lane->order);
        arena_free(&lane->arena);
        free(lane);
    }
    for (size_t i = 0; (group = idmap_next(&queue->fits, &i));) {
        share_order_done(&group->blocked);
        free(group);
    }
    for (size_t i = 0; (kind = map_next(&queue->types, &i));) {
        heap_free(&kind->groups);
        free((void *)kind->type.at);
        free(kind);
    }
    for (size_t i = 0; (wait = idmap_next(&queue->keys, &i));) {
        share_order_done(&wait->lanes);
        free(wait);
    }
    share_order_done(&queue->heads);
    shares_done(&queue->shares);
    arena_free(&queue->limits_arena);
    idmap_free(&queue->fits);
    idmap_free(&queue->keys);
    heap_free(&queue->dues);
    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));) {
        waiting->lane = NULL;
        waiting->order.at = waiting->again.at = waiting->age.at = 0;
        waiting_free(waiting);
    }
    idmap_free(&queue->jobs);
    idmap_free(&queue->lanes);
    map_free(&queue->types);
    heap_free(&queue->kinds);
    heap_free(&queue->looks);
    heap_free(&queue->later);
    heap_free(&queue->ages);
    arena_free(&queue->look_arena);
    replay_free(queue->replay);
    free(queue);
}
