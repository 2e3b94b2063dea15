/* The store: the only truth about jobs, leases, nodes and breakers. A verb is atomic, idempotent by
 * (job, attempt, node), safe from any thread, and answers once through op->done on the thread that
 * sent it. Everything above is the same for every backend (embedded, Redis).
 *
 * ERR_STORE_DOWN and ERR_BUSY: it never left, nothing was changed. ERR_UNKNOWN: it left and was not
 * answered, so it may have been made true or not; nobody is told that it was not before that is
 * certain, and every verb can be replayed. Each carries `not_after_ms`: arriving later it changes
 * nothing and answers ERR_TOO_LATE.
 *
 * Time that judges leases is the store's. Moments in answers are its too: they are for people, or
 * go through store_mono_ms() before they are compared with anything here. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "base/err.h"
#include "base/inbox.h"
#include "base/mem.h"
#include "model/breaker.h"
#include "model/job.h"
#include "model/lease.h"
#include "model/limit.h"
#include "model/pool.h"
#include "model/resources.h"

enum {
    STORE_CANDIDATES_MAX = 4, /* one reserve call tries so many */
    STORE_REASON_MAX = 96,
    STORE_HISTORY_MAX = 4096,  /* bytes of attempts JSON; older entries go first */
    STORE_NUMBERS = 512,       /* of instances: 0..511 */
    STORE_NAME_TEXT = 8,       /* the name of an instance as text: hexadecimal digits */
    STORE_LANE_ANNOUNCED = 64, /* jobs that come to be among so many of a lane are announced */
};

enum store_verb {
    STORE_PUT,         /* a durable NEW job that waits; Idempotency-Key checked in the same step */
    STORE_RESERVE,     /* put (attempt 1) or next attempt + first fit over ranked candidates */
    STORE_COMMIT,      /* ACK */
    STORE_FINISH,      /* how an attempt or a job ends, see enum store_outcome */
    STORE_RENEW,       /* a node's heartbeat prolongs its running leases */
    STORE_WAIT,        /* a job that is held, and found no room, waits in a lane */
    STORE_LANES,       /* the lanes in which jobs wait */
    STORE_LANE,        /* the first jobs of one lane, with their records */
    STORE_DUE,         /* leases, holds and times to wait that ran out */
    STORE_NODE_PUT,    /* register, changed facts, operator's setting, new epoch */
    STORE_NODE_DROP,   /* deregistered or forgotten; its live leases run out by themselves */
    STORE_NODES,       /* all nodes, with facts (cold start) */
    STORE_COUNTS,      /* all nodes' counters (reconcile, audit) */
    STORE_JOB_GET,     /* one job */
    STORE_JOB_LIST,    /* newest first, filtered, with a cursor */
    STORE_SESSION_GET, /* what it used last */
    STORE_CALLBACKS,   /* finished jobs whose callback is not delivered yet */
    STORE_CALLBACK_DONE, /* delivered (or given up) */
    STORE_BREAKERS,      /* all that are open or count a failure, by node and type */
    STORE_BREAKER_RESET, /* an operator's order: closed, and the count starts over */
    STORE_LIMIT_SET,     /* an operator's rule for keys: made, changed, or dropped */
    STORE_LIMIT_HOLD,    /* nothing with this key starts for a while; or again, at once */
    STORE_LIMITS,        /* the rules, and the keys that are in use */
    /* Only of a store that several instances share, see store_name(). */
    STORE_MESSAGE, /* to another instance, or to all */
    STORE_LINK,    /* this instance has a node's connection, or has lost it */
    STORE_SEEN,    /* heartbeats of nodes that this instance got */
    STORE_CLAIM,   /* the right to deliver a job's callback, for some time */
    STORE_PEERS,   /* the instances that are there */
    STORE_VERB_COUNT
};

enum store_outcome {
    STORE_DONE,    /* from its node; `result` is kept */
    STORE_FAIL,    /* from its node; retried while attempts are left */
    STORE_REFUSED, /* the node said no before its ACK: same attempt goes elsewhere */
    /* As REFUSED, noticed by us. Without a node: whatever the owner of the job had reserved for
     * this attempt, which it was not told; ERR_STALE if nothing is, or somebody else owns it by
     * now. */
    STORE_SEND_FAILED,
    /* The sweep: acts only on what ran out by store time, or whose node began a new epoch: ack or
     * run timeout; else ERR_STALE. Of a reservation whose maker was not there all the time since,
     * nobody knows whether it was sent: the last attempt goes on as the same (SELECTING). */
    STORE_EXPIRE,
    STORE_CANCEL,        /* an operator; a running job keeps its lease until its node ends it */
    STORE_QUEUE_TIMEOUT, /* it waited long enough: it is in a lane and is due, else ERR_STALE */
    STORE_NO_CANDIDATE,  /* a retry found nobody */
    /* Who asked for it was refused: it ends, and its Idempotency-Key is free again. Not so when
     * somebody was answered with it meanwhile, by that key: then it goes on (ERR_STALE), and if it
     * waits its hold is over; what its owner reserved and never sent is given back (ERR_OK, with
     * the record of a job that goes on in the same attempt). */
    STORE_ABANDON,
    STORE_OUTCOME_COUNT
};

/* The mutable part of a job. What it is about is in its `spec`, JSON that never changes. */
struct store_head {
    uint64_t id;
    enum job_state state;
    int attempt; /* 1.. */
    int max_attempts;
    enum lease_kind lease; /* may outlive the job after a cancel */
    uint32_t epoch;
    unsigned owner;               /* instance that holds it, or reserved last */
    uint64_t lane;                /* in which it waits; 0 = it does not, or is held */
    int priority;                 /* in its lane */
    char node[NODE_ID_MAX + 1];   /* of the current attempt; "" = none */
    char type[POOL_LANG_MAX + 1]; /* what breakers tell apart; "" = none is asked */
    char reason[STORE_REASON_MAX + 1];
    int64_t created_ms;
    int64_t updated_ms;
    int64_t dispatched_ms; /* of the current attempt; 0 = not */
    int64_t acked_ms;
    int64_t ended_ms;   /* of the job */
    int64_t due_ms;     /* end of its lease, of the hold, or of its time to wait; 0 = none */
    int64_t timeout_ms; /* after the ACK; 0 = none */
    int callback;       /* enum store_callback */
    /* The GPUs it has, a bit for each id: of the current attempt, also after its end; 0: none. */
    uint64_t gpus;
};

enum store_callback {
    CALLBACK_NONE,
    CALLBACK_WANTED,
    CALLBACK_PENDING,
    CALLBACK_SENT,
    CALLBACK_GIVEN_UP
};

struct store_record {
    struct store_head head;
    struct str spec;    /* JSON object; JOB_LIST looks at its `type` and `session_id`,
                           a restart at `submitted_by`: the account for which it waits */
    struct str result;  /* JSON; at == NULL: none */
    struct str history; /* JSON array of ended attempts: attempt_id, node_id, outcome, reason,
                           dispatched_ms, acked_ms, ended_ms */
    /* Of a job that goes on: what it was put with, so that it can be put again should the store
     * lose it. */
    struct str idem; /* at == NULL: none */
    uint64_t fingerprint;
};

/* A copy; of STR_NONE, which is no text, STR_NONE. */
static inline struct str store_kept(struct arena *arena, struct str text)
{
    return text.at ? arena_str(arena, text) : STR_NONE;
}

/* What of it has no bound but that of a request. */
static inline size_t store_record_bytes(const struct store_record *record)
{
    return record->spec.len + record->history.len + record->result.len;
}

/* How a node can be reached, in a shared store: the instance that has its connection. */
enum store_link_kind {
    STORE_LINK_NONE,
    STORE_LINK_SOCKET, /* its WebSocket is there */
    STORE_LINK_POLL,   /* it last asked for jobs there */
    STORE_LINK_LEFT,   /* its WebSocket closed there */
};

/* What instances tell each other of a node that is not in its record. */
struct store_live {
    enum store_link_kind kind;
    uint32_t holder;      /* name of the instance; 0: none ever */
    uint64_t incarnation; /* of the connection */
    int64_t linked_ms;    /* ago: since when that is so */
    int64_t silent_ms;    /* since an instance last published a heartbeat of it; -1: never */
    int32_t level, cpu_pm, gpu_pm, mem_pm; /* as last received; -1: not sent */
};

struct store_seen {
    struct str node;
    int32_t level, cpu_pm, gpu_pm, mem_pm;
};

enum { STORE_VERSION_MAX = 31 };

struct store_peer {
    uint32_t name;
    unsigned number;
    int64_t silent_ms; /* since it last called; it does so every second */
    char version[STORE_VERSION_MAX + 1];
};

struct store_node {
    struct str id;
    struct lease_node counts; /* counts.health is what reserve checks */
    enum node_health own;     /* what the node last said of itself */
    enum node_admin admin;
    struct str admin_reason;
    int64_t registered_ms;
    int64_t version;      /* of the record, +1 with every change of it */
    struct str facts;     /* JSON object as registered, normalised by the registry */
    struct str resources; /* see resources_write(); COUNTS leaves it empty, as it does facts */
    struct resources_left left; /* of them, by the leases */
    struct store_live live;     /* a shared store's */
};

/* As of now, see model/breaker.h. probe_until_ms is the end of the probe's lease. */
struct store_breaker {
    struct str node;
    struct str type;
    struct breaker breaker;
};

struct store_candidate {
    struct str node;
    uint64_t hash;         /* str_hash(node), computed once */
    int32_t spare;         /* of its max, so many slots are not for this job */
    enum lease_reason why; /* answer: LEASE_OK for the one chosen; what was tried before it */
    bool tried;            /* answer */
};

struct store_due {
    uint64_t id;
    int attempt;
    enum job_state state;
    enum lease_kind lease; /* what ran out. LEASE_NONE: a hold, or its time to wait if it is in
                              a lane; of other states a lease that was cleared before a restart */
    uint64_t lane;
    char node[NODE_ID_MAX + 1];
};

/* Jobs that wait for the same: a node that fits one of them fits all, but for where each was
 * before. The higher priority is first, within one the smaller id. A lane is a number its jobs
 * share, never 0; the store knows no more of it. */
struct store_lane {
    uint64_t lane;
    int64_t count; /* of jobs */
    uint64_t first;
    int priority; /* of the first */
};

struct store_run {
    uint64_t id;
    int attempt;
    bool unknown; /* answer: no such running lease of this node; the node should drop it */
    bool later;   /* the store's own: it has not come to this one yet */
};

/* A rule for keys, and one key that has a lease, waits, is held, or has started something within
 * its window. */
struct store_limit {
    struct str pattern;
    struct limit limit;
};

struct store_limit_key {
    struct str key;
    struct str pattern; /* the rule that counts for it; at == NULL: none */
    int32_t in_flight;
    int32_t waiting;
    int32_t started; /* within the window of its rate */
    int64_t hold_ms; /* so long it is held yet; 0: it is not */
    struct str hold_reason;
    /* Some of those that have a lease, oldest first: of leases that began while its rule bounded
     * how many there may be, those that found one of these places free. */
    uint8_t holder_count;
    uint64_t holders[LIMIT_HOLDERS];
};

/* Whose job it is: what they have waiting is counted together. */
struct store_account {
    struct str name; /* at == NULL: nobody's, and it is not counted */
    int64_t bytes;   /* what this job counts for */
    int64_t jobs_max;
    int64_t bytes_max;
};

/* What keeps a job from waiting in a lane, 0 = nothing. How many wait there does not matter to one
 * that is there already, nor the others to one that is in any lane. */
struct store_bounds {
    int64_t lane_max;             /* jobs in that lane: ERR_QUEUE_FULL */
    int64_t all_max;              /* in all lanes: ERR_QUEUES_FULL */
    struct store_account account; /* ERR_QUOTA_WAITING, ERR_QUOTA_BYTES */
    /* Asked last, of one that is in no lane: how many may wait with each of its keys (ERR_LIMITED).
     * Not set for a job that was accepted once and comes back. */
    bool keys;
};

struct memread;
struct store_op;
typedef void store_done(struct store_op *op);

/* Inputs point to memory the sender keeps until `done`; while an op is under way the sender touches
 * neither the op nor `arena`. */
struct store_op {
    struct msg msg;         /* private: how it travels */
    struct inbox *reply_to; /* the sender's inbox */
    store_done *done;
    enum store_verb verb;
    int64_t not_after_ms; /* clock_mono_ms; 0 = no bound */
    enum err err;         /* answer */
    uint64_t order;       /* answer: of two answers with counts the larger is the newer */

    /* the job it is about: PUT, RESERVE, COMMIT, FINISH, JOB_GET, CALLBACK_DONE */
    uint64_t job;
    int attempt;     /* RESERVE: the attempt to start */
    struct str node; /* COMMIT, FINISH from a node, RENEW, NODE_*, BREAKER_RESET; at == NULL: not
                        from a node */

    union {
        struct {                  /* PUT, RESERVE */
            struct str spec;      /* only for a job that does not exist yet; else STR_NONE */
            bool fresh;           /* RESERVE: its id was just made, nothing was ever sent of it that
                                     may have been taken: nobody need look whether it exists */
            struct str type;      /* likewise; at == NULL: it takes no part in breakers */
            struct str demand;    /* likewise, see demand_write(): what it takes, and its keys.
                                     Empty: one slot, no keys */
            bool last;            /* RESERVE: nobody else of the pool gets such work, so an open
                                     breaker lets one through at a time */
            struct str idem;      /* Idempotency-Key with its scope; at == NULL: none */
            uint64_t fingerprint; /* of the request body, compared when the key is known */
            struct str session;   /* what it used is kept for it; at == NULL: none */
            struct str pool;      /* pool_id, becomes the session's preferred_pool */
            struct str lang_pair; /* "en->zh" */
            int max_attempts;
            int64_t timeout_ms;
            bool callback; /* wants one */
            unsigned owner;
            int64_t hold_ms; /* PUT */
            /* PUT: where it waits, and how long. Nothing is made when its bounds refuse it. */
            uint64_t lane;
            int priority; /* 0..9 */
            int64_t wait_ms;
            struct store_bounds bounds;
            struct store_candidate candidates[STORE_CANDIDATES_MAX];
            size_t candidate_count;
            int64_t ttl_ms;
            /* answer */
            /* ERR_LIMITED: the key that keeps it from starting, or (PUT) from waiting. Nothing is
             * made or moved then, and no rate is used up. */
            struct limit_block block;
            int chosen; /* index; -1: none fits (err ERR_ALL_FULL) */
            bool probe; /* it is the one that decides whether a breaker closes */
            /* The key or the job was known: `head` is what it got the first time. By key: attempt 1
             * with its node and DISPATCHED, or NEW without one if it was put; no lease, no due. The
             * key is free again when nothing was placed (ERR_ALL_FULL, SEND_FAILED with nobody
             * left, ABANDON). A job that is final answers ERR_STALE to a reserve. */
            bool duplicate;
        } put;
        struct {                      /* COMMIT, FINISH */
            struct lease_terms terms; /* COMMIT: how long it may run until the next renewal */
            /* COMMIT: the dispatched_ms its message carried; 0: the node does not say. A node may
             * be sent the same attempt twice: only the last of them may begin, else ERR_STALE. */
            int64_t send_id;
            int64_t stop_grace_ms; /* COMMIT: run_until = now + timeout_ms + this, if it has a
                                      timeout */
            enum store_outcome outcome;
            struct str reason;
            struct str result; /* JSON */
            bool command; /* DONE, FAIL of a command that came with the job: it tells nothing of
                             its node, and moves no breaker */
            bool candidates_left; /* REFUSED, SEND_FAILED */
            /* FAIL: the job ran into a bound of this key, one of its own (nodes know it without its
             * namespace), which is held from now on for that long; the attempt does not count
             * (max_attempts grows by one). Another key: ERR_BAD_FIELD, nothing changes.
             * at == NULL: none. */
            struct str hold_key;
            int64_t hold_key_ms;
            struct str hold_reason; /* what is said of the hold; empty: `reason` */
            unsigned owner;
            /* Of a job that goes on (RETRYING, SELECTING): so long the caller has it to find a
             * place for it, or a lane (WAIT); then it is due for anybody. */
            int64_t hold_ms;
            bool want_record; /* fill `record` from `arena` also when it does not go on */
            /* answer */
            /* The same message was accepted before: ERR_OK, nothing moved, and no record unless
             * want_record. An ACK counts as repeated only while its lease is alive. */
            bool duplicate;
            bool ended_lease; /* a lease ended with this call */
            bool stopped;     /* only that: its job had been cancelled before */
            /* FINISH that ended a lease: what that had taken, in `arena` if there is one, see
             * demand_write(); empty: one slot. */
            struct str demand;
            /* Keys of the job for which others wait and one could start now: str_hash() of each. */
            uint8_t freed_count;
            uint64_t freed[DEMAND_KEYS_MAX];
            enum breaker_event breaker; /* what that did to the breaker of head.node x head.type */
        } settle;
        struct {                    /* RENEW */
            struct store_run *runs; /* NULL: all of the node's */
            size_t count;
            struct lease_terms terms;
            bool more; /* the store's own: one call was not enough */
        } renew;
        /* WAIT, of `job` in `attempt`, which is to start. It is NEW, SELECTING or RETRYING, else
         * ERR_STALE; in whatever lane it was, it is in this one now, for that long.
         * The attempt of one that is RETRYING is the next one, as for RESERVE. */
        struct {
            uint64_t lane;
            int priority;
            int64_t wait_ms;
            struct store_bounds bounds;
            struct limit_block block; /* answer: of ERR_LIMITED, as for PUT */
        } wait;
        struct {                      /* LANES, in the order of their numbers */
            uint64_t after;           /* cursor: lanes larger than this */
            size_t max;               /* in one answer */
            struct store_lane *items; /* answer, in `arena` */
            size_t count;
            bool more; /* answer: there are lanes after the last one */
        } lanes;
        struct { /* LANE */
            uint64_t lane;
            size_t max;
            size_t bytes_max;           /* in all, but one is listed in any case; 0: any */
            struct store_record *items; /* answer, in `arena`: the first ones */
            size_t count;
            int64_t waiting; /* answer: how many are there in all */
        } lane;
        struct { /* DUE */
            struct store_due *items;
            size_t max;
            size_t count; /* answer */
        } due;
        struct {                     /* NODE_PUT */
            enum node_health own;    /* what the node says of itself; NODE_HEALTH_NONE: unchanged */
            enum node_health health; /* what reserve checks; the operator's setting is added here */
            int32_t max;             /* < 0: unchanged */
            struct str facts;        /* at == NULL: unchanged (ERR_NOT_FOUND if there is none) */
            struct str resources;    /* see resources_write(); at == NULL: unchanged */
            bool set_admin;
            enum node_admin admin;
            struct str admin_reason;
            /* Lost, or back without its runs. What counted there is due at once; until the sweep
             * takes it, a late word of the node still ends it, but moves no counter. */
            bool new_epoch;
            /* Lost: what it runs may still run there. Running leases go on as they are, until they
             * run out or the node is back and renews them; only reservations are due. */
            bool keeps_runs;
            /* 0 = any. If it is no longer the node's epoch, a finding (no facts) changes nothing
             * and answers ERR_STALE; a registration (facts) is taken without a further bump. */
            uint32_t if_epoch;
            bool created;          /* answer */
            int64_t version;       /* answer */
            int64_t registered_ms; /* answer: when it was created, store time */
        } node_put;
        struct {                   /* NODES, COUNTS */
            const struct str *ids; /* NODES of a shared store: only these; NULL: all */
            size_t id_count;
            struct store_node *items; /* answer, in `arena`; COUNTS leaves facts empty */
            size_t count;
            int64_t version; /* answer of a shared store: number of the last change published */
        } nodes;
        struct {                               /* JOB_LIST, CALLBACKS */
            unsigned states;                   /* bit per job_state; 0 = all */
            struct str type, session, node_id; /* at == NULL: any */
            struct str namespace;              /* of its type, likewise */
            uint64_t before; /* cursor: ids smaller than this; 0 = from the newest */
            uint64_t after;  /* CALLBACKS: ids larger than this */
            size_t max;
            size_t bytes_max; /* JOB_LIST: the record that reaches it is the last; 0: any */
            struct store_record *items; /* answer, in `arena` */
            size_t count;
            size_t bytes; /* answer: of all items */
            /* Answer: the next `before`; 0 = no more. A page may be short, even empty, with more
             * behind it: one call looks at a bounded number of rows. */
            uint64_t next;
        } list;
        struct { /* SESSION_GET, id in `node`'s place: `key` */
            struct str key;
            struct str preferred_pool; /* answers, in `arena` */
            struct str lang_pair;
            int64_t version;
            int64_t updated_ms;
        } session;
        struct {             /* CALLBACK_DONE, CLAIM */
            bool given_up;   /* DONE */
            int64_t hold_ms; /* CLAIM; ERR_CONFLICT: another instance has it */
        } callback;
        struct {
            uint32_t to; /* MESSAGE: the name of an instance; 0: all */
            struct str text;
            int64_t receivers; /* answer: how many took it; 0: nobody is there */
        } message;
        struct { /* LINK, of `node` */
            enum store_link_kind kind;
            uint64_t incarnation; /* of the connection; LEFT counts only for the one that is kept */
        } link;
        struct { /* SEEN */
            const struct store_seen *items;
            size_t count;
            struct str text; /* sent to all instances; "" = nothing */
        } seen;
        struct {                      /* PEERS */
            struct store_peer *items; /* answer, in `arena`; ourselves too */
            size_t count;
        } peers;
        struct {                         /* BREAKERS */
            struct store_breaker *items; /* answer, in `arena` */
            size_t count;
        } breakers;
        struct { /* BREAKER_RESET; its node is `node` */
            struct str type;
        } breaker;
        struct {                /* LIMIT_SET, LIMIT_HOLD */
            struct str pattern; /* HOLD: a key */
            struct limit limit;
            bool drop;       /* SET: the rule goes; ERR_NOT_FOUND when there is none */
            int64_t hold_ms; /* HOLD: from now; 0: let go */
            struct str reason;
        } limit;
        struct {               /* LIMITS */
            struct str prefix; /* of keys; at == NULL: any. */
            struct str after;  /* cursor: keys behind this one; at == NULL: from the first */
            size_t max;        /* keys in one answer; 0: only the rules */
            struct store_limit *rules; /* answer, in `arena`: all of them, in order */
            size_t rule_count;
            struct store_limit_key *keys; /* answer, likewise, in order */
            size_t key_count;
            bool more;
            int64_t version; /* answer: +1 with every change of a rule */
        } limits;
    } u;

    struct memread *recent; /* the embedded store's own: what its file lacks for this read */
    struct arena *arena;    /* where answers that need memory go; required for reads, want_record */
    struct store_head head; /* answer of every verb about a job; id 0 when there is no such job */
    struct store_record
        record; /* answer: JOB_GET, and FINISH when the job goes on or want_record */
    struct lease_node
        counts; /* answer: the node's counters afterwards (RESERVE: of the chosen one) */
    struct resources_left left; /* answer: of its resources, likewise; counts 0: it has none */
};

/* What holds after every call, and what the audits look after. */
enum store_rule {
    STORE_RULE_SLOTS,       /* the counters of a node are what its leases add up to */
    STORE_RULE_LEASES,      /* what is listed as a lease of a node is what the job's record says */
    STORE_RULE_LANES,       /* the jobs that a lane has wait in it */
    STORE_RULE_RESOURCES,   /* what is used of a node is what its leases hold of it */
    STORE_RULE_KEY_LEASES,  /* a key has as many leases in flight as there are with it */
    STORE_RULE_KEY_WAITING, /* and as many jobs waiting as lanes have with it */
    STORE_RULES,
};
const char *store_rule_name(enum store_rule rule);

/* How well the store is. Any thread; never blocks. */
enum store_mode { STORE_NORMAL, STORE_L2_ONLY, STORE_LOCAL_ONLY };
struct store_status {
    enum store_mode mode;
    int64_t since_ms; /* in this mode, wall time */
    int64_t errors;   /* since the start */
    int64_t calls;
    int64_t batches;
    int64_t repairs[STORE_RULES]; /* how often each was found broken, and set right */
    char detail[160];             /* the last error, "" when none */
    const char *warning; /* what could be wrong with it, as seen at the start; NULL: nothing */
    char generation[24]; /* of what a shared store holds: another one means that it was emptied */
    /* How often another server took over. What it answers begins anew: orders may be smaller, and
     * what was acknowledged last may be gone. */
    unsigned moves;
    /* New jobs answer ERR_STORE_FULL: Redis is near its maxmemory (nodes, too), or the embedded
     * store's tables do not follow its journal. */
    bool full;
    bool deaf; /* a shared store: no notices arrive now, what others change has to be looked for */
};

/* Does a spec have the type and the session a list asks for? It is parsed only if it asks. */
bool store_spec_fits(struct str spec, const struct store_op *op);
/* Has a JOB_LIST as much as it may have with `count` items? */
static inline bool store_list_full(const struct store_op *op, size_t count)
{
    return count >= op->u.list.max ||
           (op->u.list.bytes_max && op->u.list.bytes >= op->u.list.bytes_max);
}

struct store_config {
    const char *url; /* "embedded:", "redis://host:port/db", see redis_link.h */
    const char *data_dir;
    unsigned instance;           /* the number of the only one; a shared store gives numbers */
    const char *version;         /* of this program, for others to see; NULL: unknown */
    int format;                  /* a shared store: the newest to write; 0 = as others can read */
    int64_t retention_ms;        /* finished jobs, and sessions nobody uses; 0 = any age */
    int64_t retention_jobs_max;  /* and no more of them than this; 0 = any number */
    int64_t journal_bytes_max;   /* the embedded store: of what its tables lack; 0 = 256 MiB */
    int64_t flush_ms;            /* and how long at most they are behind it; 0 = 500 */
    int64_t in_flight_max;       /* ops under way; more answer ERR_BUSY at once; 0 = 65536 */
    struct lease_terms terms;    /* recovery gives running leases this much; 0 = the defaults */
    int64_t breaker_threshold;   /* failures in a row that open one; 0: no breakers */
    int64_t breaker_cooldown_ms; /* how long it stays open before a probe */
    int64_t timeout_ms;          /* of one call, where the store is a server; 0 = 80 ms */
    int64_t (*now_ms)(void);     /* NULL: the store's own; a test's is also that of its callers */
};

/* Notices of a shared store. A hint: those of while the connection was away are lost. */
enum store_notice_kind {
    STORE_NOTICE_MESSAGE, /* another instance's MESSAGE; perhaps our own, if it was to all */
    STORE_NOTICE_NODES,   /* `text`: ids of nodes that changed, a space between two */
    STORE_NOTICE_LANE, /* `text`: LANE PRIORITY JOB, in hexadecimal digits: another instance put it
                        there, and it is  among the first STORE_LANE_ANNOUNCED */
    STORE_NOTICE_KEY,  /* `text`: keys for which jobs wait, and one could start now; a space
                          between two */
    STORE_NOTICE_LIMITS, /* rules changed */
    STORE_NOTICE_GAP,    /* listening begins, or began anew */
};

struct store_notice {
    struct msg msg; /* private */
    struct store_listener *listener;
    enum store_notice_kind kind;
    int64_t seq;    /* NODES: +1 with each; another step means that something was missed */
    int64_t age_ms; /* NODES: since it became true */
    struct str text;
};

/* notify() is called on `inbox`' thread; the notice is gone when it returns. */
struct store_listener {
    struct inbox *inbox;
    void (*notify)(struct store_listener *listener, const struct store_notice *notice);
};

struct store;
struct store_backend { /* a row per kind of store */
    const char *scheme;
    enum err (*open)(const struct store_config *config, struct store **ret_store,
                     struct problem *why);
    struct msg *(*send)(struct store *store, struct msg *ops); /* as store_send_all */
    void (*status)(struct store *store, struct store_status *ret_status);
    void (*listen)(struct store *store,
                   struct store_listener *listener); /* NULL: nobody shares it */
    void (*stop)(struct store *store);               /* once, as store_stop */
    void (*free)(struct store *store);               /* of one that is stopped */
};
struct store {
    const struct store_backend *backend;
    bool stopped;
    uint32_t name;           /* of this instance, another one after every start; 0: not shared */
    _Atomic unsigned number; /* of this instance */
    _Atomic int64_t number_until_ms; /* clock_mono_ms: until then it is surely ours alone */
    _Atomic int64_t ahead_ms;        /* of clock_mono_ms is the store's clock, as last read */
};

enum err store_open(const struct store_config *config, struct store **ret_store,
                    struct problem *why);
/* ERR_OK: done() will be called once, later, on reply_to's thread. ERR_BUSY, ERR_STORE_DOWN:
 * refused at once, done() is not called; never ERR_UNKNOWN. While the disk takes no writes, reads
 * are still answered from the file. The store counts on being called all the time (the sweep does):
 * more than 5 s of store time without a call are nobody's, every term keeps what it has left; and
 * a running lease has 15 s at least, because nobody could renew it meanwhile. */
enum err store_send(struct store *store, struct store_op *op);
/* Many at once, linked by their msg.next, oldest first. Returns those that were refused at once, in
 * their order, with `err` set. */
struct msg *store_send_all(struct store *store, struct msg *ops);
void store_status(struct store *store, struct store_status *ret_status);
/* Once, before the first MESSAGE, and with NULL before the listener's thread ends: nothing is
 * posted to its inbox any more when that returns. */
void store_listen(struct store *store, struct store_listener *listener);
/* Answers what is under way and ends its threads; every op after that is refused at once. When
 * nobody sends from another thread any more. Whoever then runs what is in the senders' inboxes
 * has had every op come back to its owner. */
void store_stop(struct store *store);
void store_close(struct store *store);             /* stops it, then frees */
const char *store_mode_name(enum store_mode mode); /* "NORMAL" */

/* The store gave no answer that counts; asked again later it may. */
static inline bool store_is_away(enum err err)
{
    return err == ERR_STORE_DOWN || err == ERR_UNKNOWN || err == ERR_TOO_LATE || err == ERR_BUSY ||
           err == ERR_STORE_FULL;
}

/* Who we are to other instances; 0 when the store is ours alone. */
static inline uint32_t store_name(const struct store *store)
{
    return store->name;
}

/* Owner of what we hold. It changes when this instance was silent for so long that another one got
 * its number. */
static inline unsigned store_number(const struct store *store)
{
    return atomic_load_explicit(&store->number, memory_order_relaxed);
}

/* When is, or was, that moment of the store's clock by clock_mono_ms()? As exact as a call takes.
 */
static inline int64_t store_mono_ms(const struct store *store, int64_t store_ms)
{
    return store_ms - atomic_load_explicit(&store->ahead_ms, memory_order_relaxed);
}

/* May ids with our number be made? Not while it may be another's already. */
bool store_number_is_ours(const struct store *store);

#endif
