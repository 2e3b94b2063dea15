/* What the parts of sched share: the configuration, the store, one context for each loop, and the
 * hooks provided by the server (how to send to a node, where events go). */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include "base/clock.h"
#include "base/schema.h"
#include "model/node.h"
#include "model/policy.h"
#include "model/pool.h"
#include "sched/snapshot.h"
#include "store/store.h"

struct sched_config {
    int64_t sample_k;
    int64_t reservation_ttl_ms;
    int64_t max_attempts; /* attempts in all; also called max_retry */
    bool candidate_shuffle;
    struct str health_filter; /* "ready" */
    int64_t heartbeat_ms;
    int64_t heartbeat_stale_ms; /* FIELD_OFF: no staleness filter */
    int64_t view_drop_ms;       /* after this silence: gone from the view */
    int64_t lost_grace_ms;      /* and lost after this much more */
    int64_t forget_ms;
    struct lease_terms leases; /* how long a node holds a running job after each renewal */
    int64_t stop_grace_ms;
    int64_t store_timeout_ms;
    int64_t queue_max;       /* jobs that wait in one lane, see spec_lane() */
    int64_t queue_total_max; /* in all lanes */
    int64_t nodes_max;
    int64_t latency_target_ms;    /* of health_score */
    int policy;                   /* of policy_at() */
    struct strs pools;            /* "en:zh": pools that exist for `any` nodes */
    struct node_rules node_rules; /* facts of nodes that override their reports */
    struct routing routing;       /* which servers a type of task may go to, and in which order */
    int64_t high_priority_min; /* the lowest priority that a machine at level warning still takes */
    int64_t explain_bytes;     /* kept by each loop for placed jobs, and as much for the others */
};

enum { SCHED_L1_MS = 5000, SCHED_L2_MS = 30000 }; /* how long a snapshot is fresh, and usable */
enum { SCHED_HOLD_MS = 15000, SCHED_TRIED_MAX = 64, SCHED_SAMPLE_MAX = 32, SCHED_SHUT = 1024 };

struct sched;
struct explain_book;
struct tally;
struct send_op;
struct settle_note;

/* One for each loop that dispatches, and one for the keeper. Used only on its own thread. */
struct sched_loop {
    struct sched *sched;
    struct inbox *inbox;
    const int64_t *wall_ms; /* the loop's clocks: for people, */
    const int64_t *mono_ms; /* and for intervals */
    int index;              /* the keeper's is sched->loop_count */
    const struct snapshot *snapshot;
    struct rnd rnd;
    struct store_op *out_first, *out_last; /* this turn's ops, not sent yet */
    uint64_t looked;                       /* pool members looked at so far */
    struct explain_book *book;             /* how its dispatches ended */
    struct tally *tally;                   /* outcomes of work, */
    _Atomic(struct tally *) tallied;       /* and those ready for the keeper to collect */
};

/* What sched needs from the layer above it. */
struct sched_hooks {
    /* Gets a job to a node. True: done, and send->ok is the result; false: send->done() comes
     * later, on the sender's loop. */
    bool (*send)(struct sched_loop *from, struct send_op *send);
    /* Something happened to a job (called once the store has it). Cheap when nobody listens. */
    void (*noted)(struct sched_loop *from, const struct settle_note *note);
    void (*node_changed)(struct sched_loop *from, struct str node_id, const char *what);
    /* The node should end this run: it is no longer wanted. */
    void (*stop)(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
                 const char *reason);
    /* A slot became free. Cheap when nothing waits for one. */
    void (*freed)(struct sched_loop *from, struct str node_id, const struct lease_node *counts,
                  uint64_t order);
    /* The store says that another instance has the node's connection (`away`), or records something
     * other than our state: release it, record ours again, or report that it is gone. */
    void (*linked)(struct sched_loop *from, struct node *node, const struct store_live *said,
                   bool away);
    void (*loaded)(struct sched *sched); /* once: the nodes are loaded, requests can be served */
};

struct sched {
    struct sched_config config;
    const struct policy *policy;
    struct store *store;
    struct sched_loop *loops; /* loop_count of them, then the keeper's */
    int loop_count;
    const struct sched_hooks *hooks;
    struct keeper *keeper;
    struct warm_index *warm; /* which nodes have which names loaded */
    /* Jobs of all instances that wait in the store, as far as the keeper knows (it looks every
     * second, and is notified of most sooner), plus those it has in hand. */
    _Atomic int64_t queue_depth;
    /* When it was last logged that the breakers of a whole pool are open; pools that share a slot
     * are logged together. */
    _Atomic int64_t shut_logged_ms[SCHED_SHUT];
    _Atomic bool ready; /* the nodes are loaded */
    /* Monotonic, end of the recovery period: the store was emptied or moved a moment ago. */
    _Atomic int64_t recovering_until_ms;
    _Atomic int64_t fresh_us;  /* monotonic: when the keeper last read the store */
    _Atomic int64_t paused_ms; /* how long this process was not running, as noticed by the keeper */
};

/* How a job got to its node, or did not. */
struct send_op {
    struct msg msg;
    struct inbox *reply_to;
    void (*done)(struct send_op *send);
    void *to;     /* set by the sender: the destination, */
    uint64_t via; /* and the connection; 0: none */
    struct node *node;
    struct str endpoint;    /* at == NULL: the node has none */
    struct str traceparent; /* likewise */
    struct str message;     /* the job message without the WebSocket envelope: a JSON object */
    uint64_t job;
    int attempt;
    int64_t deadline_ms; /* of its reservation, store time */
    bool forwarded;      /* by another instance: not forwarded again */
    bool ok;             /* answer */
    const char *reason;  /* answer when not ok: a literal for logs and records */
};

/* A change of a job, for events, waiters and callbacks. */
struct settle_note {
    const struct store_head *head;
    struct str result; /* of a job that ended, if `whole`; at == NULL: none */
    bool whole;        /* head and result are the job's, as stored: no need to read it */
    const char *event; /* "dispatched", "acked", "done", "failed", "retrying", "queued" */
};

enum err sched_init(struct sched *sched, const struct sched_config *config, struct store *store,
                    int loop_count, const struct sched_hooks *hooks, struct problem *why);
void sched_loop_init(struct sched *sched, int index, struct inbox *inbox, const int64_t *wall_ms,
                     const int64_t *mono_ms);
void sched_done(struct sched *sched);

static inline struct sched_loop *sched_keeper_loop(struct sched *sched)
{
    return &sched->loops[sched->loop_count];
}

/* Time during which this process was awake: used to measure silence and waiting. It is not affected
 * by a wall clock step, a machine that slept or a process that was stopped. Its values mean nothing
 * to other processes or people: send ages, or sched_wall_ms(). */
static inline int64_t sched_awake_ms(const struct sched_loop *loop)
{
    return *loop->mono_ms - atomic_load_explicit(&loop->sched->paused_ms, memory_order_relaxed);
}

/* Converts a moment of awake time to wall time. */
static inline int64_t sched_wall_ms(const struct sched_loop *loop, int64_t awake_ms)
{
    return *loop->wall_ms - (sched_awake_ms(loop) - awake_ms);
}

/* Converts a moment of the store's time to awake time. The only conversion between the two. */
int64_t sched_from_store_ms(const struct sched_loop *loop, int64_t store_ms);

/* Sends a store call at the end of this loop's turn, so that all calls of a turn travel as one
 * batch. done() is always called once, on this loop; a store that refuses at once answers ERR_BUSY
 * or ERR_STORE_DOWN in the same way. */
void sched_send(struct sched_loop *loop, struct store_op *op);
void sched_flush(struct sched_loop *loop); /* the end of a turn */

/* It is on no node, and none was asked to take it. */
static inline bool sched_is_waiting(enum job_state state)
{
    return state == JOB_NEW || state == JOB_SELECTING || state == JOB_RETRYING;
}

/* Counts a look at the snapshot, which is the L1 cache: fresh while the keeper compared it with the
 * store less than SCHED_L1_MS ago; after that it is L2, for answers that may be marked stale. */
void sched_count_cache(const struct sched *sched, int64_t now_us);
/* not_after for a call made now on this loop. */
int64_t sched_not_after(const struct sched_loop *loop);
/* Records a finished job of a node, for its health_score. */
void sched_ring_add(struct node *node, int64_t run_ms, bool failed);
int sched_score(const struct node *node, int64_t latency_target_ms);

/* A node's counters as the store last answered, in one integer: reserved (20 bits), running (20
 * bits) and the low bits of the answer's order (24). The store's answers reach several loops and
 * may be processed out of order: an older one must not win. */

enum { COUNTS_BITS = 20, COUNTS_ORDER_BITS = 24 };

struct counts {
    int32_t reserved;
    int32_t running;
};

/* Both from one moment: read separately, they could add up to more than the node ever had. */
static inline struct counts counts_of(const struct node *node)
{
    uint64_t word = atomic_load_explicit(&node->counts, memory_order_relaxed);
    uint64_t mask = (1u << COUNTS_BITS) - 1;

    return (struct counts){.reserved = (int32_t)(word & mask),
                           .running = (int32_t)(word >> COUNTS_BITS & mask)};
}

static inline int32_t counts_load(const struct node *node)
{
    struct counts now = counts_of(node);

    return now.reserved + now.running + atomic_load_explicit(&node->pending, memory_order_relaxed);
}

/* Takes over an answer's counters, and what is left of resources (NULL, or without any: not
 * reported), unless newer ones are known; a node's first ones (`first`) in any case. All counters
 * are read once a second, so 24 bits are always enough to tell which is newer. */
void counts_take(struct node *node, const struct lease_node *counts,
                 const struct resources_left *left, uint64_t order, bool first);
/* The same for a node that may have left. */
void counts_take_of(const struct snapshot *snapshot, struct str node_id, const struct store_op *op);
/* The store answered FULL: shows the node as full until the next answer. */
void counts_full(struct node *node);

/* What is left of a node's resources as far as is known; false: unknown. */
bool counts_left(const struct node *node, const struct resources *declared,
                 struct resources_left *ret_left);
/* Records which of them are usable, once the store has it; and returns what was recorded, or
 * `declared` if nothing was. */
void counts_usable_put(struct node *node, const struct resources *resources);
struct resources counts_usable(const struct node *node, const struct resources *declared);

#endif
