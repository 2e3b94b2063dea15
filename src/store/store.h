/* The store: the single source of truth for jobs, leases, nodes and breakers. Every verb is atomic,
 * idempotent by (job, attempt, node), callable from any thread, and answers once through op->done
 * on the thread that sent it. Callers see the same behaviour from every backend (embedded, Redis).
 *
 * ERR_STORE_DOWN and ERR_BUSY: the op was never sent and nothing changed. ERR_UNKNOWN: it was sent
 * but not answered, so it may or may not have been applied; a caller must not report that it was
 * not until that is certain. Every verb can be replayed. An op that arrives after its
 * `not_after_ms` changes nothing and answers ERR_TOO_LATE.
 *
 * Leases are judged by the store's clock. Times in answers are also the store's: they are for
 * people, or must go through store_mono_ms() before they are compared with local time. */
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
    STORE_CANDIDATES_MAX = 4, /* tried by one reserve call */
    STORE_REASON_MAX = 96,
    STORE_HISTORY_MAX = 4096,  /* bytes of attempts JSON; the oldest entries are dropped first */
    STORE_NUMBERS = 512,       /* instance numbers: 0..511 */
    STORE_NAME_TEXT = 8,       /* an instance name as text: hexadecimal digits */
    STORE_LANE_ANNOUNCED = 64, /* a job that becomes one of the first 64 of a lane is announced */
};

enum store_verb {
    STORE_PUT,           /* stores a waiting NEW job; Idempotency-Key checked in the same step */
    STORE_RESERVE,       /* put (attempt 1) or next attempt + first fit over ranked candidates */
    STORE_ACK,           /* ACK */
    STORE_FINISH,        /* how an attempt or a job ends, see enum store_outcome */
    STORE_RENEW,         /* a node's heartbeat extends its running leases */
    STORE_WAIT,          /* moves a held job that found no free node into a lane */
    STORE_LANES,         /* the lanes in which jobs wait */
    STORE_LANE,          /* the first jobs of one lane, with their records */
    STORE_DUE,           /* leases, holds and queue timeouts that expired */
    STORE_NODE_PUT,      /* register, changed facts, operator's setting, new epoch */
    STORE_NODE_DROP,     /* deregistered or forgotten; its live leases expire on their own */
    STORE_NODES,         /* all nodes, with facts (cold start) */
    STORE_COUNTS,        /* all nodes' counters, perhaps in parts, see ledger_nodes() (reconcile) */
    STORE_JOB_GET,       /* one job */
    STORE_JOB_LIST,      /* newest first, filtered, with a cursor */
    STORE_SESSION_GET,   /* the pool and language pair it used last */
    STORE_CALLBACKS,     /* finished jobs whose callback is not delivered yet */
    STORE_CALLBACK_DONE, /* delivered (or given up) */
    STORE_BREAKERS,      /* all that are open or have counted a failure, by node and type */
    STORE_BREAKER_RESET, /* an operator closes it; the failure count restarts */
    STORE_LIMIT_SET,     /* an operator creates, changes or drops a rule for keys */
    STORE_LIMIT_HOLD,    /* pauses all starts for a key, or ends the pause */
    STORE_LIMITS,        /* the rules and the keys in use */
    /* Only for a store shared by several instances, see store_name(). */
    STORE_MESSAGE, /* sent to one instance or to all */
    STORE_LINK,    /* this instance gained or lost a node's connection */
    STORE_SEEN,    /* node heartbeats received by this instance */
    STORE_CLAIM,   /* the right to deliver a job's callback, for a limited time */
    STORE_PEERS,   /* the live instances */
    STORE_VERB_COUNT
};

enum store_outcome {
    STORE_DONE,    /* from its node; `result` is kept */
    STORE_FAIL,    /* from its node; retried while attempts are left */
    STORE_REFUSED, /* the node refused before its ACK: same attempt goes elsewhere */
    /* Like REFUSED, but detected by us. Without a node: cancels whatever the job's owner had
     * reserved for this attempt without knowing the result; ERR_STALE if there is no such
     * reservation or another instance owns the job by now. */
    STORE_SEND_FAILED,
    /* From the sweep. Acts only on what expired by store time or belongs to an ended epoch (ack or
     * run timeout); else ERR_STALE. If the instance that made a reservation was not present the
     * whole time since, it is unknown whether the job was sent: the last attempt is then retried
     * under the same number (SELECTING). */
    STORE_EXPIRE,
    STORE_CANCEL,        /* an operator; a running job keeps its lease until its node ends it */
    STORE_QUEUE_TIMEOUT, /* its queue timeout expired: it must be in a lane and due, else ERR_STALE
                          */
    STORE_NO_CANDIDATE,  /* a retry found no candidate */
    /* The request was refused: the job ends and its Idempotency-Key is free again. If another
     * request was meanwhile answered with this job through that key, the job goes on (ERR_STALE)
     * and, if it is waiting, its hold ends; a reservation its owner made but never sent is given
     * back (ERR_OK, with the record of a job that goes on in the same attempt). */
    STORE_ABANDON,
    STORE_OUTCOME_COUNT
};

/* The mutable part of a job. The immutable part is the JSON in its `spec`. */
struct store_head {
    uint64_t id;
    enum job_state state;
    int attempt; /* 1.. */
    int max_attempts;
    enum lease_kind lease; /* may outlive the job after a cancel */
    uint32_t epoch;
    unsigned owner;               /* the instance that holds it or last reserved it */
    uint64_t lane;                /* the lane it waits in; 0 = not waiting, or held */
    int priority;                 /* within its lane */
    char node[NODE_ID_MAX + 1];   /* of the current attempt; "" = none */
    char type[POOL_LANG_MAX + 1]; /* breakers are per node and type; "" = no breaker applies */
    char reason[STORE_REASON_MAX + 1];
    int64_t created_ms;
    int64_t updated_ms;
    int64_t dispatched_ms; /* of the current attempt; 0 = not dispatched */
    int64_t acked_ms;
    int64_t ended_ms;   /* of the job */
    int64_t due_ms;     /* end of its lease, hold or queue timeout; 0 = none */
    int64_t timeout_ms; /* after the ACK; 0 = none */
    int callback;       /* enum store_callback */
    /* Its GPUs, one bit per id: of the current attempt, kept after it ends; 0: none. */
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
    struct str spec;    /* JSON object; JOB_LIST looks at its `type` and `session_id`, a restart at
                           `submitted_by`: the account it is counted for while it waits */
    struct str result;  /* JSON; at == NULL: none */
    struct str history; /* JSON array of ended attempts: attempt_id, node_id, outcome, reason,
                           dispatched_ms, acked_ms, ended_ms */
    /* For a job that goes on: the key and fingerprint it was put with, so that it can be put again
     * if the store loses it. */
    struct str idem; /* at == NULL: none */
    uint64_t fingerprint;
};

/* Copies the text; STR_NONE stays STR_NONE. */
static inline struct str store_kept(struct arena *arena, struct str text)
{
    return text.at ? arena_str(arena, text) : STR_NONE;
}

/* The bytes of the parts limited only by the size of a request. */
static inline size_t store_record_bytes(const struct store_record *record)
{
    return record->spec.len + record->history.len + record->result.len;
}

/* How a node can be reached through the instance that has its connection; shared store only. */
enum store_link_kind {
    STORE_LINK_NONE,
    STORE_LINK_SOCKET, /* its WebSocket is connected to that instance */
    STORE_LINK_POLL,   /* it last polled that instance for jobs */
    STORE_LINK_LEFT,   /* its WebSocket to that instance closed */
};

/* Node state that instances share but that is not in the node's record. */
struct store_live {
    enum store_link_kind kind;
    uint32_t instance;    /* name of the instance; 0: never connected */
    uint64_t incarnation; /* of the connection */
    int64_t linked_ms;    /* age of this state */
    int64_t silent_ms;    /* since an instance last published its heartbeat; -1: never */
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
    int64_t silent_ms; /* since its last call; an instance calls every second */
    char version[STORE_VERSION_MAX + 1];
};

struct store_node {
    struct str id;
    struct lease_node counts; /* counts.health is what reserve checks */
    enum node_health own;     /* the health the node last reported */
    enum node_admin admin;
    struct str admin_reason;
    int64_t registered_ms;
    int64_t version;            /* of the record; +1 with every change */
    struct str facts;           /* JSON object as registered, normalised by the registry */
    struct str resources;       /* see resources_write(); COUNTS leaves it and facts empty */
    struct resources_left left; /* resources not held by leases */
    struct store_live live;     /* shared store only */
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
    int32_t withheld;      /* slots of its max that this job may not use */
    enum lease_reason why; /* answer: LEASE_OK for the chosen one; for those tried before it, why
                              they were rejected */
    bool tried;            /* answer */
};

struct store_due {
    uint64_t id;
    int attempt;
    enum job_state state;
    enum lease_kind lease; /* what expired. LEASE_NONE: a hold, or the queue timeout if it is in a
                              lane; in other states a lease that was cleared before a restart */
    uint64_t lane;
    char node[NODE_ID_MAX + 1];
};

/* Jobs with the same requirements: a node that fits one fits all, except for the nodes each was on
 * before. Higher priority goes first, then the smaller id. A lane is a nonzero number shared by its
 * jobs; the store attaches no other meaning to it. */
struct store_lane {
    uint64_t lane;
    int64_t count; /* of jobs */
    uint64_t first;
    int priority; /* of the first */
};

struct store_run {
    uint64_t id;
    int attempt;
    bool unknown; /* answer: this node has no such running lease and should drop the job */
    bool later;   /* store internal: not processed yet */
};

/* A rule for keys; and a key in use: one with leases, waiting jobs, a hold, or starts within its
 * window. */
struct store_limit {
    struct str pattern;
    struct limit limit;
};

struct store_limit_key {
    struct str key;
    struct str pattern; /* the rule that applies; at == NULL: none */
    int32_t in_flight;
    int32_t waiting;
    int32_t started; /* within the window of its rate */
    int64_t hold_ms; /* remaining hold; 0: not held */
    struct str hold_reason;
    /* Some of the jobs that have a lease, oldest first: only leases that began while the rule
     * limited their number and a place in this array was free. */
    uint8_t holder_count;
    uint64_t holders[LIMIT_HOLDERS];
};

/* The account a job belongs to; the waiting jobs of an account are counted together. */
struct store_account {
    struct str name; /* at == NULL: no account, not counted */
    int64_t bytes;   /* what this job adds */
    int64_t jobs_max;
    int64_t bytes_max;
};

/* Limits on waiting in a lane, 0 = none. The limit of a lane does not apply to a job already in it,
 * nor the other limits to a job already in any lane. */
struct store_bounds {
    int64_t lane_max;             /* jobs in that lane: ERR_QUEUE_FULL */
    int64_t all_max;              /* in all lanes: ERR_QUEUES_FULL */
    struct store_account account; /* ERR_QUOTA_WAITING, ERR_QUOTA_BYTES */
    /* Checked last, for a job in no lane: the limit on waiting jobs of each of its keys
     * (ERR_LIMITED). Not set for a job that was accepted before and comes back. */
    bool keys;
};

struct memread;
struct store_op;
typedef void store_done(struct store_op *op);

/* Inputs point to memory the sender keeps until `done`; while an op is in flight the sender must
 * not touch the op or `arena`. */
struct store_op {
    struct msg msg;         /* private: links it into queues */
    struct inbox *reply_to; /* the sender's inbox */
    store_done *done;
    enum store_verb verb;
    int64_t not_after_ms; /* clock_mono_ms; 0 = no bound */
    enum err err;         /* answer */
    uint64_t order; /* answer: of two answers with counts, the one with the larger order is newer */

    /* the job: PUT, RESERVE, ACK, FINISH, JOB_GET, CALLBACK_DONE */
    uint64_t job;
    int attempt;     /* RESERVE: the attempt to start */
    struct str node; /* ACK, FINISH from a node, RENEW, NODE_*, BREAKER_RESET; at == NULL: not
                        from a node */

    union {
        struct {             /* PUT, RESERVE */
            struct str spec; /* only for a job that does not exist yet; else STR_NONE */
            bool fresh; /* RESERVE: its id is new and no earlier op with it can have been applied,
                           so no lookup is needed */
            struct str type;   /* likewise; at == NULL: breakers ignore it */
            struct str demand; /* likewise, see demand_write(): slots, resources and keys. Empty:
                                  one slot, no keys */
            bool last; /* RESERVE: no other node of the pool takes such work, so an open breaker
                          lets one job through at a time */
            struct str idem;      /* Idempotency-Key with its scope; at == NULL: none */
            uint64_t fingerprint; /* of the request body, compared when the key is known */
            struct str session;   /* the session to update; at == NULL: none */
            struct str pool;      /* pool_id, becomes the session's preferred_pool */
            struct str lang_pair; /* "en->zh" */
            int max_attempts;
            int64_t timeout_ms;
            bool callback; /* wants one */
            unsigned owner;
            int64_t hold_ms; /* PUT */
            /* PUT: which lane and how long. If `bounds` refuses it, nothing is created. */
            uint64_t lane;
            int priority; /* 0..9 */
            int64_t wait_ms;
            struct store_bounds bounds;
            struct store_candidate candidates[STORE_CANDIDATES_MAX];
            size_t candidate_count;
            int64_t ttl_ms;
            /* answer */
            /* ERR_LIMITED: the key that blocks the start or (PUT) the waiting. Nothing is created
             * or moved then, and no rate is consumed. */
            struct limit_block block;
            int chosen; /* index; -1: none fits (err ERR_ALL_FULL) */
            bool probe; /* this job is the probe of a breaker */
            /* The key or the job existed already: `head` is the first result. By key: attempt 1
             * with its node and DISPATCHED, or NEW without a node if it was put; no lease, no due
             * time. The key is free again when nothing was placed (ERR_ALL_FULL, SEND_FAILED with
             * no candidates left, ABANDON). A final job answers ERR_STALE to a reserve. */
            bool duplicate;
        } put;
        struct {                      /* ACK, FINISH */
            struct lease_terms terms; /* ACK: how long it may run until the next renewal */
            /* ACK: the dispatched_ms of the message being acknowledged; 0: not given. A node may
             * be sent the same attempt twice: only the last send may begin, else ERR_STALE. */
            int64_t send_id;
            int64_t stop_grace_ms; /* ACK: run_until = now + timeout_ms + this, if it has a
                                      timeout */
            enum store_outcome outcome;
            struct str reason;
            struct str result; /* JSON */
            bool command; /* DONE, FAIL of a command that came with the job: it says nothing about
                             the node and moves no breaker */
            bool candidates_left; /* REFUSED, SEND_FAILED */
            /* FAIL: the job hit a limit of this key, which must be one of its own (nodes know it
             * without its namespace). The key is held for hold_key_ms from now and the attempt does
             * not count (max_attempts grows by one). Any other key: ERR_BAD_FIELD, nothing changes.
             * at == NULL: none. */
            struct str hold_key;
            int64_t hold_key_ms;
            struct str hold_reason; /* reason for the hold; empty: `reason` */
            unsigned owner;
            /* For a job that goes on (RETRYING, SELECTING): how long the caller holds it to find a
             * node or a lane (WAIT); after that any instance may take it. */
            int64_t hold_ms;
            bool want_record; /* fill `record` from `arena` also when it does not go on */
            /* answer */
            /* This message was accepted before: ERR_OK, nothing changed, and no record unless
             * want_record. An ACK counts as a duplicate only while its lease is alive. */
            bool duplicate;
            bool ended_lease; /* a lease ended with this call */
            bool stopped;     /* ended_lease of a job that had been cancelled before */
            /* FINISH that ended a lease: the demand the lease held, in `arena` if there is one, see
             * demand_write(); empty: one slot. */
            struct str demand;
            /* Keys of the job with waiting jobs of which one could start now: str_hash() of
             * each. */
            uint8_t freed_count;
            uint64_t freed[DEMAND_KEYS_MAX];
            enum breaker_event breaker; /* what happened to the breaker of head.node x head.type */
        } settle;
        struct {                    /* RENEW */
            struct store_run *runs; /* NULL: all of the node's */
            size_t count;
            struct lease_terms terms;
            bool more; /* store internal: another call is needed */
        } renew;
        /* WAIT: moves `job` to this lane for wait_ms, whatever lane it was in. `attempt` is the
         * next one to start; for a RETRYING job that is the next number, as for RESERVE. The job
         * must be NEW, SELECTING or RETRYING, else ERR_STALE. */
        struct {
            uint64_t lane;
            int priority;
            int64_t wait_ms;
            struct store_bounds bounds;
            struct limit_block block; /* answer, with ERR_LIMITED: as for PUT */
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
            size_t bytes_max;           /* total, but at least one is listed; 0: no limit */
            struct store_record *items; /* answer, in `arena`: the first ones */
            size_t count;
            int64_t waiting; /* answer: total jobs in the lane */
        } lane;
        struct { /* DUE */
            struct store_due *items;
            size_t max;
            size_t count; /* answer */
        } due;
        struct {                     /* NODE_PUT */
            enum node_health own;    /* as reported by the node; NODE_HEALTH_NONE: unchanged */
            enum node_health health; /* what reserve checks; the operator's setting is added here */
            int32_t max;             /* < 0: unchanged */
            struct str facts;        /* at == NULL: unchanged (ERR_NOT_FOUND if there is none) */
            struct str resources;    /* see resources_write(); at == NULL: unchanged */
            bool set_admin;
            enum node_admin admin;
            struct str admin_reason;
            /* The node is lost, or back without its runs. Its leases are due at once; until the
             * sweep takes one, a late message from the node can still end it, but moves no
             * counter. */
            bool new_epoch;
            /* The node is lost but its jobs may still be running. Running leases continue until
             * they expire or the node returns and renews them; only reservations are due. */
            bool keeps_runs;
            /* 0 = any. If the node's epoch has moved on, an update without facts changes nothing
             * and answers ERR_STALE; a registration (with facts) is applied without bumping the
             * epoch again. */
            uint32_t if_epoch;
            bool created;          /* answer */
            int64_t version;       /* answer */
            int64_t registered_ms; /* answer: when it was created, store time */
        } node_put;
        struct {                   /* NODES, COUNTS */
            const struct str *ids; /* NODES: only these; NULL: all */
            size_t id_count;
            struct store_node *items; /* answer, in `arena`; COUNTS leaves facts empty */
            size_t count;
            size_t from; /* COUNTS: where the next part begins, and in the answer the one after it;
                            0: the first one, or there is none */
            int64_t version; /* answer in a shared store: number of the last published change */
        } nodes;
        struct {                               /* JOB_LIST, CALLBACKS */
            unsigned states;                   /* bit per job_state; 0 = all */
            struct str type, session, node_id; /* at == NULL: any */
            struct str namespace;              /* namespace of its type, likewise */
            uint64_t before; /* cursor: ids smaller than this; 0 = from the newest */
            uint64_t after;  /* CALLBACKS: ids larger than this */
            size_t max;
            size_t bytes_max; /* JOB_LIST: the list ends with the record that reaches this; 0: no
                                 limit */
            struct store_record *items; /* answer, in `arena` */
            size_t count;
            size_t bytes; /* answer: of all items */
            /* Answer: the next `before`; 0 = no more. A page may be short or even empty when more
             * follow: one call looks at a bounded number of rows. */
            uint64_t next;
        } list;
        struct { /* SESSION_GET; the session id is `key` */
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
            int64_t receivers; /* answer: how many instances received it; 0: none present */
        } message;
        struct { /* LINK; its node is `node` */
            enum store_link_kind kind;
            uint64_t incarnation; /* of the connection; LEFT is ignored unless it matches the stored
                                     one */
        } link;
        struct { /* SEEN */
            const struct store_seen *items;
            size_t count;
            struct str text; /* sent to all instances; "" = nothing */
        } seen;
        struct {                      /* PEERS */
            struct store_peer *items; /* answer, in `arena`; includes this instance */
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
            bool drop;       /* SET: drop the rule; ERR_NOT_FOUND if there is none */
            int64_t hold_ms; /* HOLD: from now; 0: end the hold */
            struct str reason;
        } limit;
        struct {                       /* LIMITS */
            struct str prefix;         /* of keys; at == NULL: any */
            struct str after;          /* cursor: keys after this one; at == NULL: from the first */
            size_t max;                /* keys in one answer; 0: only the rules */
            struct store_limit *rules; /* answer, in `arena`: all rules, in order */
            size_t rule_count;
            struct store_limit_key *keys; /* answer, likewise, in order */
            size_t key_count;
            bool more;
            int64_t version; /* answer: +1 with every change of a rule */
        } limits;
    } u;

    struct memread
        *recent;         /* embedded store only: changes not yet in store.db that this read needs */
    struct arena *arena; /* memory for answers; required for reads and want_record */
    struct store_head head; /* answer of every verb about a job; id 0: no such job */
    struct store_record
        record; /* answer: JOB_GET, and FINISH when the job goes on or want_record */
    struct lease_node
        counts; /* answer: the node's counters after the op (RESERVE: the chosen node's) */
    struct resources_left
        left; /* answer: its free resources after the op; counts 0: it has no resources */
};

/* Invariants that hold after every call; the audits check them. */
enum store_rule {
    STORE_RULE_SLOTS,       /* a node's counters equal the sum of its leases */
    STORE_RULE_LEASES,      /* every lease listed for a node matches the job's record */
    STORE_RULE_LANES,       /* every job listed in a lane is waiting in it */
    STORE_RULE_RESOURCES,   /* a node's used resources equal what its leases hold */
    STORE_RULE_KEY_LEASES,  /* a key's in-flight count equals the leases with that key */
    STORE_RULE_KEY_WAITING, /* a key's waiting count equals the jobs in lanes with that key */
    STORE_RULES,
};
const char *store_rule_name(enum store_rule rule);

/* Health of the store. Any thread; never blocks. */
enum store_mode { STORE_NORMAL, STORE_L2_ONLY, STORE_LOCAL_ONLY };
struct store_status {
    enum store_mode mode;
    int64_t since_ms; /* in this mode, wall time */
    int64_t errors;   /* since the start */
    int64_t calls;
    int64_t batches;
    int64_t repairs[STORE_RULES]; /* violations of each rule found and repaired */
    char detail[160];             /* the last error, "" when none */
    const char *warning;          /* a possible problem found at startup; NULL: none */
    char generation[24]; /* of the data in a shared store: a new one means the store was emptied */
    /* How often another server took over. Afterwards `order` may restart from a smaller value, and
     * the last acknowledged writes may be lost. */
    unsigned moves;
    /* New jobs answer ERR_STORE_FULL: Redis is near its maxmemory (new nodes are refused, too), or
     * the embedded store's tables lag behind its journal. */
    bool full;
    bool deaf; /* shared store: no notices arrive now, so changes by others must be polled for */
};

/* Does the head match the filter of JOB_LIST or CALLBACKS, as far as that can be told without the
 * spec? For other verbs, always. */
bool store_head_fits(const struct store_head *head, const struct store_op *op);
/* Does the spec match the type and session filter of a list? Parsed only if the list has such a
 * filter. */
bool store_spec_fits(struct str spec, const struct store_op *op);
/* Is a JOB_LIST complete with `count` items? */
static inline bool store_list_full(const struct store_op *op, size_t count)
{
    return count >= op->u.list.max ||
           (op->u.list.bytes_max && op->u.list.bytes >= op->u.list.bytes_max);
}

struct store_config {
    const char *url; /* "embedded:", "redis://host:port/db", see redis_link.h */
    const char *data_dir;
    unsigned instance;   /* this instance's number; a shared store assigns it instead */
    const char *version; /* of this program, shown to other instances; NULL: unknown */
    int format; /* shared store: the newest format to write; 0 = what other instances can read */
    int64_t retention_ms;        /* of finished jobs and unused sessions; 0 = any age */
    int64_t retention_jobs_max;  /* of finished jobs; 0 = any number */
    int64_t journal_bytes_max;   /* embedded store: journal not yet in its tables; 0 = 256 MiB */
    int64_t flush_ms;            /* embedded store: how long its tables may lag; 0 = 500 */
    int64_t in_flight_max;       /* ops in flight; beyond that ERR_BUSY at once; 0 = 65536 */
    struct lease_terms terms;    /* given to running leases on recovery; 0 = the defaults */
    int64_t breaker_threshold;   /* consecutive failures that open a breaker; 0: no breakers */
    int64_t breaker_cooldown_ms; /* how long a breaker stays open before a probe */
    int64_t timeout_ms;          /* of one call to a store server; 0 = 80 ms */
    int64_t (*now_ms)(void); /* NULL: the store's own clock; a test's clock is also its callers' */
};

/* Notices from a shared store. They are hints: those sent while the connection was down are
 * lost. */
enum store_notice_kind {
    STORE_NOTICE_MESSAGE, /* a MESSAGE of another instance, or our own if it was sent to all */
    STORE_NOTICE_NODES,   /* `text`: ids of changed nodes, separated by spaces */
    STORE_NOTICE_LANE, /* `text`: LANE PRIORITY JOB, in hexadecimal digits: another instance put it
                          there among the first STORE_LANE_ANNOUNCED */
    STORE_NOTICE_KEY,  /* `text`: keys with waiting jobs of which one could start now, separated by
                          spaces */
    STORE_NOTICE_LIMITS, /* rules changed */
    STORE_NOTICE_GAP,    /* the subscription was made or made again: notices may have been missed */
};

struct store_notice {
    struct msg msg; /* private */
    struct store_listener *listener;
    enum store_notice_kind kind;
    int64_t seq;    /* NODES: +1 with each; a gap means that notices were missed */
    int64_t age_ms; /* NODES: age of the change */
    struct str text;
};

/* notify() is called on the thread of `inbox`; the notice is freed when it returns. */
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
                   struct store_listener *listener); /* NULL: the store is not shared */
    void (*stop)(struct store *store);               /* once, as store_stop */
    void (*free)(struct store *store);               /* after stop */
};
struct store {
    const struct store_backend *backend;
    bool stopped;
    uint32_t name;                   /* of this instance, new with every start; 0: not shared */
    _Atomic unsigned number;         /* of this instance */
    _Atomic int64_t number_until_ms; /* clock_mono_ms: the number is certainly ours until then */
    _Atomic int64_t ahead_ms;        /* the store's clock minus clock_mono_ms, as last read */
};

enum err store_open(const struct store_config *config, struct store **ret_store,
                    struct problem *why);
/* ERR_OK: done() will be called once, later, on reply_to's thread. ERR_BUSY, ERR_STORE_DOWN:
 * refused at once, done() is not called; never ERR_UNKNOWN. While the disk takes no writes, reads
 * are still answered from the file. The store must be called continuously (the sweep does): a gap
 * of more than 5 s of store time without a call does not count against any term, and running leases
 * then last at least another 15 s because they could not be renewed meanwhile. */
enum err store_send(struct store *store, struct store_op *op);
/* Sends several ops linked by msg.next, oldest first. Returns those refused at once, in order, with
 * `err` set. */
struct msg *store_send_all(struct store *store, struct msg *ops);
void store_status(struct store *store, struct store_status *ret_status);
/* Call once before the first MESSAGE, and with NULL before the listener's thread ends: after that
 * call returns, nothing more is posted to its inbox. */
void store_listen(struct store *store, struct store_listener *listener);
/* Answers the ops in flight and ends the store's threads; later ops are refused at once. Call when
 * no other thread sends any more. Once the senders' inboxes have been run after that, every op has
 * been returned to its owner. */
void store_stop(struct store *store);
void store_close(struct store *store);             /* stops it, then frees */
const char *store_mode_name(enum store_mode mode); /* "NORMAL" */

/* The store gave no definite answer; a later retry may succeed. */
static inline bool store_is_away(enum err err)
{
    return err == ERR_STORE_DOWN || err == ERR_UNKNOWN || err == ERR_TOO_LATE || err == ERR_BUSY ||
           err == ERR_STORE_FULL;
}

/* This instance's name among the instances; 0: the store is not shared. */
static inline uint32_t store_name(const struct store *store)
{
    return store->name;
}

/* The owner number of what this instance holds. Changes when this instance was silent so long that
 * its number was given to another. */
static inline unsigned store_number(const struct store *store)
{
    return atomic_load_explicit(&store->number, memory_order_relaxed);
}

/* Converts store time to clock_mono_ms(). Accurate to the duration of a store call. */
static inline int64_t store_mono_ms(const struct store *store, int64_t store_ms)
{
    return store_ms - atomic_load_explicit(&store->ahead_ms, memory_order_relaxed);
}

/* May we create ids with our number? False while another instance may already have it. */
bool store_number_is_ours(const struct store *store);

#endif
