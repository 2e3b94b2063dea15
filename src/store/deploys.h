/* Deployments in the database: their specs, owners, node leases, the copies' states as nodes report
 * them, and history. One SQL thread writes, another reads; like a store op, an op answers once
 * through op->done on the thread that sent it.
 *
 * An owner changes only by a conditional update whose predicate holds every invariant (type,
 * enabled, observed owner, generation, leases), with the database's clock. A lost answer means
 * "unknown": every verb can be replayed. ERR_STORE_DOWN: nothing changed, or it is unknown whether
 * anything did. ERR_BAD_REQUEST, ERR_BUSY, ERR_INTERNAL: the database refused a statement of this
 * op, and nothing changed. */
#ifndef STORE_DEPLOYS_H
#define STORE_DEPLOYS_H

#include "base/inbox.h"
#include "base/json.h"
#include "model/deploy.h"
#include "model/resources.h"
#include "model/rollout.h"

enum {
    DEPLOYS_PAGE_MAX = 1000,
    DEPLOYS_COPIES_MAX = 1024,  /* copies in one status */
    DEPLOYS_HISTORY_KEPT = 200, /* history entries per deployment */
};

enum deploys_verb {
    DEPLOYS_LIST,     /* by id, filtered, with a cursor */
    DEPLOYS_GET,      /* one, with its copies */
    DEPLOYS_PUT,      /* creates or replaces */
    DEPLOYS_ENABLE,   /* on or off */
    DEPLOYS_RESTART,  /* a new version of the same spec */
    DEPLOYS_SCALE,    /* sets the number of copies */
    DEPLOYS_ROLLBACK, /* to an earlier version */
    DEPLOYS_DELETE,
    DEPLOYS_HISTORY,  /* newest first */
    DEPLOYS_RELEASE,  /* an operator takes deployments from nodes with expired leases */
    DEPLOYS_APPROVE,  /* allows claims although many nodes are gone */
    DEPLOYS_DRAIN,    /* sets the deadline of a draining node */
    DEPLOYS_SERVICES, /* where copies listen */
    DEPLOYS_VIEW,     /* the table as a claimer needs it */
    DEPLOYS_RENEW,    /* renews a node's lease */
    DEPLOYS_CLAIM,
    DEPLOYS_YIELD,  /* the owner gives a deployment up */
    DEPLOYS_STATUS, /* a node's report on its copies */
    DEPLOYS_VERB_COUNT
};

/* A deployment as it is stored. All JSON texts are valid and normalised by the sender. */
struct deploys_spec {
    struct str id;
    enum deploy_type type;
    struct str package_name, package_version;
    struct str command;
    struct str args; /* JSON array of texts */
    struct str env;  /* JSON object of texts */
    struct str selector;
    struct str options; /* JSON object: the other fields, as the server writes them */
    bool enabled;
    int64_t count;             /* copies; PUT, 0: keep the current number, or 1 */
    int64_t max_unavailable;   /* PUT, 0: 1 */
    int64_t update_timeout_ms; /* PUT, 0: DEPLOY_UPDATE_TIMEOUT_MS */
};

struct deploys_row {
    struct deploys_spec spec;
    struct str owner;
    int64_t generation;
    int64_t version;
    int64_t newest_version; /* the highest ever; `version` may have been rolled back */
    int64_t good_version;   /* the last known to be healthy; 0: none */
    enum rollout_state rollout;
    struct str rollout_reason; /* why it was rolled back or stopped */
    struct str created_at, updated_at;
    /* "finished" or "failed": this version ended and is not started again; "" = it has not
     * ended. */
    struct str ended;
    /* It was a daemon: until then (by the database's clock) some node may still run it as one. */
    int64_t free_from_ms;
    struct str state; /* LIST: of its owner's copy, as last reported; at == NULL: never reported */
    int64_t copy_version; /* LIST: likewise */
    int64_t ready;        /* LIST, with several copies: how many run and are healthy */
};

/* A copy as reported by its node. */
struct deploys_copy {
    struct str id;
    int64_t index; /* answer of GET, when there are several copies */
    struct str address;
    int64_t generation;
    int64_t version;
    struct str state;
    int64_t restarts;
    int64_t pid;
    int64_t since_ms;
    struct str healthy; /* JSON: true, false or null */
    struct str reason;
    struct str limits;  /* whether its limits are enforced; "" = it has no limits */
    struct str host;    /* STATUS: where others reach it; "" = not given */
    int64_t port;       /* assigned to it; 0: none */
    int64_t wants;      /* STATUS: a daemon asks to move to this version; 0: it does not */
    int64_t updated_ms; /* answer: by the database's clock */
    bool stale;         /* answer of STATUS: the node does not own it in that generation */
    struct str waits;   /* answer of STATUS: why `wants` must wait; at == NULL: it may proceed */
};

struct deploys_event {
    int64_t seq;
    int64_t at_ms;
    struct str what; /* "created", "changed", "claimed", ... */
    struct str address;
    int64_t generation;
    int64_t version;
    struct str detail;
};

struct deploys_lease {
    struct str node;
    int64_t until_ms; /* of the database's clock */
    bool goodbye;     /* the node shut down cleanly; its deployments may run until the lease ends */
};

/* A node gave a deployment up because it failed there: other nodes are preferred until
 * `until_ms`. */
struct deploys_failure {
    struct str id;
    struct str address;
    int64_t at_ms, until_ms; /* of the database's clock */
    struct str reason;
};

/* A live copy: its node reported it and holds its lease. */
struct deploys_service {
    struct str id; /* the copy's id, "web#1" */
    struct str node;
    struct str address; /* where others reach it; "" = not given */
    int64_t port;       /* 0: it has none */
    struct str healthy; /* JSON: true, false or null */
    int64_t version;
    int64_t until_ms; /* of its node's lease, by the database's clock */
};

struct deploys_held { /* a deployment an operator could not release */
    struct str id;
    struct str address;
    int64_t left_ms;
};

/* Why a node's call changed nothing, if it was refused. */
enum deploys_refusal {
    DEPLOYS_NOT_REFUSED,
    DEPLOYS_CONFLICT,
    DEPLOYS_LEASE_ALIVE,
    DEPLOYS_OWNER_ONLINE, /* its lease just expired, but it is connected and will renew */
    DEPLOYS_NO_LEASE,
    DEPLOYS_MASS_LOSS,
    DEPLOYS_WAS_DAEMON,     /* nodes may still run it as one */
    DEPLOYS_SELECTOR,       /* the node's labels do not match */
    DEPLOYS_OTHER_INSTANCE, /* another agent holds the node's lease */
    DEPLOYS_NO_ROOM,        /* the node lacks resources */
    DEPLOYS_REFUSAL_COUNT
};
const char *deploys_refusal_name(enum deploys_refusal refusal); /* "claim_conflict" */

#define DEPLOYS_ANY      (-1) /* any version, or none */
#define DEPLOYS_EXISTING (-2) /* any version, but it must exist */

struct deploys;
struct deploys_op;
typedef void deploys_done(struct deploys_op *op);

/* Inputs point to memory the sender keeps until `done`; while an op is in flight the sender must
 * not touch the op or `arena`. */
struct deploys_op {
    struct msg msg; /* private: links it into queues */
    struct deploys *owner;
    struct inbox *reply_to;
    deploys_done *done;
    enum deploys_verb verb;
    int64_t until_mono_ms; /* started later than this, it does nothing; 0 = no bound */
    struct arena *arena;   /* answers go there */
    enum err err;      /* answer; ERR_CONFLICT, ERR_NOT_FOUND, ERR_PRECONDITION give the reason */
    struct str detail; /* the database's message when a statement failed */
    struct str id;     /* GET, ENABLE, RESTART, SCALE, ROLLBACK, DELETE, HISTORY, CLAIM, YIELD */
    struct str node;   /* VIEW, RENEW, CLAIM, YIELD, STATUS, DRAIN */
    /* RENEW, CLAIM, YIELD, STATUS: the agent acting for the node; at == NULL: not given, identified
     * by the node's name alone. Of two agents with the same node name, the first one owns the
     * lease. */
    struct str instance;

    union {
        struct { /* LIST; texts at == NULL: any */
            struct str type, owner, package_name;
            struct str namespace; /* of its id, see model/namespace.h */
            int enabled;          /* -1: any */
            struct str after;
            size_t max;
            struct deploys_row *items; /* answer */
            size_t count;
            bool more;
        } list;
        struct {                             /* PUT, ENABLE, RESTART, SCALE, ROLLBACK, DELETE */
            const struct deploys_spec *spec; /* PUT */
            bool enabled;                    /* ENABLE */
            int64_t count;                   /* SCALE */
            int64_t to_version;              /* ROLLBACK; 0: the previous one */
            int64_t if_version;              /* DEPLOYS_ANY; 0: only if it does not exist */
            bool created, changed;           /* answer */
        } put;
        struct {            /* HISTORY */
            int64_t before; /* 0: from the newest */
            size_t max;
            struct deploys_event *items; /* answer */
            size_t count;
            bool more;
        } history;
        struct { /* RELEASE: those of a node, or the listed ones */
            struct str node;
            bool seed; /* for a node: ignore its lease, but release only what is enabled */
            const struct str *ids;
            size_t id_count;
            struct str namespace; /* only in this namespace; at == NULL: any */
            struct str *released; /* answer */
            size_t released_count;
            struct deploys_held *held;
            size_t held_count;
        } release;
        struct { /* APPROVE, DRAIN; 0 = cancel */
            int64_t for_ms;
            int64_t until_ms; /* answer */
        } until;
        struct {                /* VIEW */
            int64_t if_version; /* DEPLOYS_ANY */
            int64_t if_facts;   /* DEPLOYS_ANY; otherwise leases and failures only if their number
                                   differs */
            int64_t within_ms;  /* only leases that end within this time, and goodbyes */
            bool indexed;       /* also copies with an index */
            bool
                delta; /* changes since if_version are enough; answer: these are only the changes */
            struct str after;
            struct deploy_row *items; /* answer; user is unused */
            size_t count;
            bool more;
            struct str *gone; /* answer, with a delta: rows deleted since then */
            size_t gone_count;
            int64_t facts;   /* answer, with the first page: the number of leases and failures */
            bool same_facts; /* they are not repeated */
            struct deploys_lease *leases; /* answer, as are op->failures */
            size_t lease_count;
            int64_t approved_until_ms;
            bool unchanged;
        } view;
        struct {               /* SERVICES: those of op->id; at == NULL: all */
            int64_t if_number; /* DEPLOYS_ANY; otherwise, for all: only if the number differs */
            struct deploys_service *items; /* answer, by index or id and by node */
            size_t count;
            int64_t number;
            bool same;
            int64_t left_ms; /* for all: time until the first lease ends */
        } services;
        struct {          /* RENEW */
            bool goodbye; /* the node stops: the lease is not extended and nothing else is returned
                           */
            bool held;    /* by the agent's own clock its lease never expired */
            int64_t lease_ms;
            int64_t if_version;        /* DEPLOYS_ANY */
            struct deploys_row *items; /* answer: what it must run */
            size_t count;
            int64_t until_ms;
            int64_t drain_deadline_ms; /* 0: none */
            bool lapsed;
            bool unchanged;
        } renew;
        struct { /* CLAIM, YIELD */
            struct str observed;
            int64_t generation;
            bool owner_online; /* the server has the owner's connection; this protects it for one
                                  more lease_ms */
            int64_t lease_ms;
            bool seed;                 /* ignore leases */
            const struct json *labels; /* CLAIM: the node's labels; NULL: unknown */
            /* CLAIM: the node's declared and free resources; NULL: unknown */
            const struct resources *declared;
            const struct resources_left *left;
            struct str lack;   /* answer, with NO_ROOM: what is short */
            bool failed;       /* YIELD: it cannot run on this node; `reason` says why */
            int64_t version;   /* YIELD: of the spec that failed */
            struct str reason; /* YIELD; at == NULL: none */
            bool duplicate;    /* answer */
        } claim;
        struct { /* STATUS */
            struct deploys_copy *copies;
            size_t count;
            bool partial; /* the node also has other copies */
        } status;
    } u;

    /* answers */
    enum deploys_refusal refusal; /* RENEW, CLAIM, YIELD, STATUS: the cause of ERR_CONFLICT */
    int64_t left_ms;              /* OTHER_INSTANCE: remaining time of that lease */
    struct deploys_row
        row;    /* GET, PUT, ENABLE, RESTART, SCALE, ROLLBACK, CLAIM, YIELD; the current row */
    bool found; /* `row` is set */
    struct deploys_copy *copies; /* GET */
    size_t copy_count;
    struct deploys_failure *failures; /* GET, VIEW: those still in effect */
    size_t failure_count;
    int64_t version; /* of the table: +1 with every change except leases and statuses */
    int64_t news;    /* like `version`, but claims do not count */
    int64_t now_ms;  /* the database's clock */
};

struct deploys_config {
    const char *url; /* see sql.h */
    const char *data_dir;
    int64_t timeout_ms;
    int64_t in_flight_max;
    int64_t (*now_ms)(void); /* a test's clock for SQLite; NULL: the machine's */
    /* Called on the SQL thread when something changed that nodes should look at, whoever changed
     * it. May be NULL. */
    void (*changed)(void *user, int64_t news);
    void *user;
};

/* Fails for an invalid URL or a database of a newer berth. An unreachable database is retried. */
enum err deploys_open(const struct deploys_config *config, struct deploys **ret_deploys,
                      struct problem *why);
/* ERR_OK: done() will be called once, later, on reply_to's thread. ERR_BUSY, ERR_STORE_DOWN:
 * refused at once, done() is not called. */
enum err deploys_send(struct deploys *deploys, struct deploys_op *op);
void deploys_stop(struct deploys *deploys);  /* answers ops in flight; later ones are refused */
void deploys_close(struct deploys *deploys); /* stops it, then frees */

struct deploys_status {
    bool up;
    bool may_forget; /* its replicas are asynchronous: after a failover claims may be missing */
    int64_t errors;
    char detail[200]; /* of the last failure, "" when none */
};
void deploys_status(struct deploys *deploys, struct deploys_status *ret_status);

#endif
