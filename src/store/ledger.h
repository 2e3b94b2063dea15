/* The ledger: memory is authoritative for active jobs (not final, or still with a lease), leases,
 * breakers and node counters. Every verb is applied here and written through to the journal; jobs
 * that became final leave memory after a while and are then read from the journal.
 *
 * Store thread only. After a failed commit the ledger is discarded, not repaired. */
#ifndef STORE_LEDGER_H
#define STORE_LEDGER_H

#include "base/heap.h"
#include "base/map.h"
#include "base/mem.h"
#include "store/breakers.h"
#include "store/chain.h"
#include "store/lanes.h"
#include "store/limits.h"
#include "store/sessions.h"
#include "store/store.h"

struct journal;

enum {
    LEDGER_CLEAR_MAX = 16,    /* expired leases cleared by one reserve */
    LEDGER_RECENT_MAX = 4096, /* finished jobs kept, for messages that come twice */
    LEDGER_AWAY_MS = 5000, /* no call for this long: the process was frozen or the machine slept */
    LEDGER_AWAY_GRACE_MS = 15000,
    LEDGER_BACK_MS = 1000, /* smaller backward steps of the clock are ignored */
};

/* A node and the leases counted on it. */
struct ledger_node {
    /* What a reserve reads, in as few cache lines as possible. */
    bool known; /* false: dropped, kept only until its last lease ends */
    struct lease_node counts;
    struct chain leases;         /* of entry.in_holder */
    struct resources *resources; /* NULL: none */
    enum node_health own;
    enum node_admin admin;
    char text[NODE_ID_MAX + 1];
    struct str id; /* points into `text` */
    struct buf admin_reason;
    struct buf facts;
    struct buf resources_text; /* as put; empty: none */
    int64_t registered_ms;
    int64_t version;
};

/* The part of a job that only exists if it was on a node or has a stored reason why not. Most
 * waiting jobs have none, and very many may wait: they share one empty, read-only struct. */
struct ledger_run {
    struct ledger_job *job;
    char node[NODE_ID_MAX + 1]; /* these fields are as in struct store_head */
    char reason[STORE_REASON_MAX + 1];
    uint32_t epoch;
    uint32_t pause; /* the ledger's `pause` when it was reserved; 0: before the start */
    int64_t dispatched_ms;
    int64_t acked_ms;
    int64_t ended_ms;
    int64_t run_until_ms; /* a running lease is not renewed beyond this; 0 = no bound */
    int64_t started_ms;   /* dispatched_ms on the steady clock of limits.h: the start to undo on a
                             refusal */
    uint64_t gpus;
    struct lease lease;
    struct ledger_node *holder;  /* NULL: it has no lease */
    struct breaker_entry *probe; /* the breaker this lease is a probe for; NULL: none */
    struct chain in_holder;
    struct buf attempts; /* JSON array of ended attempts; empty: none yet */
};

/* The other fields of its row, see struct store_head; due_ms and owner may be newer than the
 * row. */
struct ledger_head {
    uint64_t id;
    uint64_t lane;
    int64_t created_ms;
    int64_t updated_ms;
    int64_t due_ms;
    int64_t timeout_ms;
    unsigned owner;
    enum job_state state : 8;
    enum lease_kind lease : 8;
    int attempt : 8;
    int max_attempts : 8;
    int callback : 8;
    int priority : 16;
    char type[POOL_LANG_MAX + 1];
};

/* A job in memory. It is in exactly one of: a heap of things that will expire, a list of expired
 * things waiting for the sweep, or the list of finished jobs. It may also be in a lane, see
 * head.lane. */
struct ledger_job {
    struct ledger_head head;
    enum lease_kind ran_out : 8; /* its lease that expired and was not yet settled by the sweep */
    bool unwritten : 1;          /* its row still has the expired lease */
    bool keyed : 1;              /* its row has an Idempotency-Key and was made by a reserve */
    bool answered : 1;           /* a request was answered with it by that key */
    bool due_waits : 1;          /* `due` is in the heap of waiting jobs */
    uint32_t account_bytes;
    struct account *account;      /* the account it is counted for while in a lane; NULL: none */
    struct limits_demand *demand; /* NULL: demand_plain, or the job is over */
    struct ledger_run *run;       /* to modify it, use ledger_own_run() */
    struct heap_node due;
    struct heap_node in_lane;
    struct chain in_list;
};

struct ledger {
    struct journal *journal;
    struct idshards jobs; /* allocated from `entries` */
    struct slab entries;
    struct slab runs;
    struct slab holders; /* struct ledger_node */
    struct map nodes;
    struct heap due;       /* leases */
    struct heap due_waits; /* waiting jobs: holds and queue timeouts */
    struct lanes lanes;    /* of entry.in_lane */
    struct accounts accounts;
    struct chain lapsed;       /* leases that expired or whose epoch ended; oldest first */
    struct chain lapsed_waits; /* holds and queue timeouts, likewise; there may be very many */
    struct chain recent;       /* oldest first */
    size_t recent_count;
    size_t active_count;
    size_t unwritten_count;
    uint64_t evicted_max; /* an id above this that is not in memory is new */
    size_t walk_shard;    /* position of the audit walk, see ledger_walk(); IDSHARDS: not walking */
    uint64_t floor; /* the smallest active id the walk has seen or that was added since it began */
    int64_t now_ms; /* store time of the last batch */
    uint32_t pause; /* number of pauses in which the store was not called; a start is the first */
    /* A running lease that had not expired by grace_from_ms lasts until grace_until_ms. */
    int64_t grace_from_ms, grace_until_ms;
    struct lease_terms terms;
    int64_t retention_ms; /* decides when an unchanged session is refreshed */
    struct sessions sessions;
    struct breakers breakers;
    struct limits limits;
    int64_t repairs[STORE_RULES]; /* repairs by the audits since these were last reset */
};

struct ledger_config {
    struct journal *journal;
    int64_t now_ms;
    struct lease_terms terms;
    int64_t retention_ms;
    struct breaker_rules breaker; /* threshold 0: no breakers */
};

/* Builds memory from the active rows. False: the journal failed. */
bool ledger_load(struct ledger *ledger, const struct ledger_config *config);
void ledger_free(struct ledger *ledger);

/* The clock behind `now_ms` was stepped by step_ms: every term keeps its remaining length. */
void ledger_clock_set(struct ledger *ledger, int64_t step_ms);
/* Once per batch, before its ops: applies changes due to time alone. */
void ledger_begin(struct ledger *ledger, int64_t now_ms);
void ledger_apply(struct ledger *ledger, struct store_op *op, int64_t now_ms);
/* Once per batch, after its ops and before the journal is committed. */
void ledger_end(struct ledger *ledger);

/* The audit: recounts every node and the leases of every key, repairs differences, and starts the
 * walk through all jobs. */
void ledger_audit(struct ledger *ledger);
/* Continues the walk through some of the jobs. At its end each key's number of waiting jobs is
 * repaired and the journal gets the smallest active id. True: there is more to walk. */
bool ledger_walk(struct ledger *ledger);
/* Deletes the state of nodes that are gone for good. */
void ledger_tidy(struct ledger *ledger, int64_t now_ms);
/* For tests: aborts if any list, map, heap or count contradicts another. */
void ledger_check(const struct ledger *ledger);

/* For the verbs (ledger_*.c) only. */
typedef void ledger_verb(struct ledger *ledger, struct store_op *op, int64_t now_ms);
ledger_verb ledger_put, ledger_reserve, ledger_ack, ledger_finish, ledger_renew, ledger_wait,
    ledger_lanes, ledger_lane, ledger_due, ledger_node_put, ledger_node_drop, ledger_nodes,
    ledger_callback_done, ledger_breakers, ledger_breaker_reset, ledger_limit_set,
    ledger_limit_hold, ledger_limits;

struct ledger_job *ledger_find(struct ledger *ledger, uint64_t id); /* NULL: there is no such job */
struct ledger_job *ledger_add(struct ledger *ledger, uint64_t id);
/* The job's own run part, created if it has none. */
struct ledger_run *ledger_own_run(struct ledger *ledger, struct ledger_job *entry);
struct store_head ledger_head(const struct ledger_job *entry);
/* Starts or stops counting the lease in entry->run->lease on its node and for its keys. */
void ledger_bind(struct ledger *ledger, struct ledger_job *entry, struct ledger_node *holder);
void ledger_unbind(struct ledger *ledger, struct ledger_job *entry);
/* Puts the job into the heap or list that matches its state and lease. */
void ledger_place(struct ledger *ledger, struct ledger_job *entry);
/* Moves the job to this lane; the caller sets due_ms and calls ledger_place(). */
void ledger_enter_lane(struct ledger *ledger, struct ledger_job *entry, uint64_t lane, int priority,
                       const struct store_account *account);
void ledger_leave_lane(struct ledger *ledger,
                       struct ledger_job *entry); /* no effect if it is in none */
/* The error that keeps a job in lane `from` (0 = none) from waiting in lane `to`, if any. */
enum err ledger_refusal(struct ledger *ledger, const struct limits_demand *demand, uint64_t from,
                        uint64_t to, const struct store_bounds *bounds,
                        struct limit_block *ret_block);
/* Is this the attempt that may start now? */
bool ledger_may_start(const struct ledger_job *entry, int attempt);
/* Clears some expired leases: their slots are free again and the jobs wait for the sweep. */
void ledger_lapse(struct ledger *ledger, int64_t now_ms);
void ledger_lapse_one(struct ledger *ledger, struct ledger_job *entry, int64_t now_ms);
/* Writes the jobs ledger_lapse() left to the sweep. A caller that takes a freed slot must do this
 * in the same commit, or a restart would give the slot to both jobs. */
void ledger_write_lapsed(struct ledger *ledger);
void ledger_settled(struct ledger *ledger, struct ledger_job *entry); /* its row is being written */
/* The end of a running lease that would end at until_ms, with any grace applied. */
int64_t ledger_graced(const struct ledger *ledger, int64_t until_ms);
bool ledger_waiting(const struct ledger_job *entry); /* NEW, SELECTING, RETRYING */
bool ledger_over(const struct ledger_job *entry);    /* nothing will happen to it any more */
/* Its lease belongs to an ended epoch: it counts nowhere and is due for the sweep, but until it
 * expires its node may still report how it ended. */
bool ledger_orphaned(const struct ledger_job *entry);
struct job_facts ledger_facts(const struct ledger_job *entry);
/* now_ms on the steady clock of limits.h. */
int64_t ledger_steady_ms(const struct ledger *ledger, int64_t now_ms);
/* Fills in the node's counters and free resources after the op. */
void ledger_answer_node(struct store_op *op, const struct ledger_node *holder);

static inline int64_t ledger_later(int64_t now_ms, int64_t ms)
{
    int64_t sum;

    return __builtin_add_overflow(now_ms, ms, &sum) ? LEASE_FOREVER : sum;
}

#endif
