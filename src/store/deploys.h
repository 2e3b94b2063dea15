/* Deployments in the database: their specs, who owns them, the nodes' leases, what nodes say of
 * their copies, and what happened. One SQL thread writes, another reads; an op answers once through
 * op->done on the thread that sent it, like an op of the store.
 *
 * An owner changes only by a conditional update whose predicate holds every invariant (type,
 * enabled, observed owner, generation, leases), with the database's clock. A lost answer means
 * "unknown": every verb can be sent again. ERR_STORE_DOWN: nothing was changed, or it is unknown
 * whether it was. ERR_BAD_REQUEST, ERR_BUSY, ERR_INTERNAL: the database refused a statement of this
 * op, and nothing was changed. */
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
    DEPLOYS_HISTORY_KEPT = 200, /* entries of one deployment */
};

enum deploys_verb {
    DEPLOYS_LIST,     /* by id, filtered, with a cursor */
    DEPLOYS_GET,      /* one, with its copies */
    DEPLOYS_PUT,      /* creates or replaces */
    DEPLOYS_ENABLE,   /* on or off */
    DEPLOYS_RESTART,  /* a new version of the same spec */
    DEPLOYS_SCALE,    /* as many copies */
    DEPLOYS_ROLLBACK, /* to a version of before */
    DEPLOYS_DELETE,
    DEPLOYS_HISTORY,  /* newest first */
    DEPLOYS_RELEASE,  /* an operator takes them from nodes whose lease has run out */
    DEPLOYS_APPROVE,  /* claims although many nodes are gone */
    DEPLOYS_DRAIN,    /* until when a node that drains may take its time */
    DEPLOYS_SERVICES, /* where copies listen */
    DEPLOYS_VIEW,     /* the table as a claimer needs it */
    DEPLOYS_RENEW,    /* a node lives */
    DEPLOYS_CLAIM,
    DEPLOYS_YIELD,  /* its owner gives one up */
    DEPLOYS_STATUS, /* what a node says of its copies */
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
    struct str options; /* JSON object: the rest, as the server puts it */
    bool enabled;
    int64_t count;             /* copies; PUT, 0: as many as there are, or 1 */
    int64_t max_unavailable;   /* PUT, 0: 1 */
    int64_t update_timeout_ms; /* PUT, 0: DEPLOY_UPDATE_TIMEOUT_MS */
};

struct deploys_row {
    struct deploys_spec spec;
    struct str address;
    int64_t generation;
    int64_t version;
    int64_t newest_version; /* the highest there ever was: `version` may have gone back */
    int64_t good_version;   /* the last that was well, as far as is known; 0: none was */
    enum rollout_state rollout;
    struct str rollout_reason; /* why it went back or stopped */
    struct str created_at, updated_at;
    /* "finished" or "failed": this version ran to its end and is not started again; "" = it is. */
    struct str ended;
    /* It was a daemon: until then (of the database's clock) some node may still run it as one. */
    int64_t free_from_ms;
    struct str state; /* LIST: of its owner's copy, as it last told; at == NULL: nothing was told */
    int64_t copy_version; /* LIST: likewise */
    int64_t ready;        /* LIST, of several copies: how many run and are well */
};

/* A copy as its node tells it. */
struct deploys_copy {
    struct str id;
    int64_t index; /* answer of GET, of one of several */
    struct str address;
    int64_t generation;
    int64_t version;
    struct str state;
    int64_t restarts;
    int64_t pid;
    int64_t since_ms;
    struct str healthy; /* JSON: true, false or null */
    struct str reason;
    struct str limits;  /* are they enforced? "" = it has none */
    struct str host;    /* STATUS: where others reach it; "" = not told */
    int64_t port;       /* that it was given; 0: none */
    int64_t wants;      /* STATUS: a daemon asks to go on to this version; 0: it does not */
    int64_t updated_ms; /* answer: of the database's clock */
    bool stale;         /* answer of STATUS: not the node's in that generation */
    struct str waits;   /* answer of STATUS: why it may not; at == NULL: it may */
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
    struct str address;
    int64_t until_ms; /* of the database's clock */
    bool goodbye;     /* the node stopped in peace; what it left runs until the lease ends */
};

/* A node gave a deployment up because it failed there: others come first until then. */
struct deploys_failure {
    struct str id;
    struct str address;
    int64_t at_ms, until_ms; /* of the database's clock */
    struct str reason;
};

/* A copy that is alive: its node said so, and has its lease. */
struct deploys_service {
    struct str id; /* of the copy, "web#1" */
    struct str node;
    struct str address; /* where others reach it; "" = not told */
    int64_t port;       /* 0: it has none */
    struct str healthy; /* JSON: true, false or null */
    int64_t version;
    int64_t until_ms; /* of its node's lease, by the database's clock */
};

struct deploys_held { /* what an operator could not take */
    struct str id;
    struct str address;
    int64_t left_ms;
};

/* Why a node's call changed nothing. */
enum deploys_refusal {
    DEPLOYS_TAKEN,
    DEPLOYS_CONFLICT,
    DEPLOYS_LEASE_ALIVE,
    DEPLOYS_OWNER_ONLINE, /* its lease ran out just now, but it is connected: it will renew */
    DEPLOYS_NO_LEASE,
    DEPLOYS_MASS_LOSS,
    DEPLOYS_WAS_DAEMON,     /* nodes may still run it as one */
    DEPLOYS_SELECTOR,       /* the node's labels do not match */
    DEPLOYS_OTHER_INSTANCE, /* the node's lease is another agent's */
    DEPLOYS_NO_ROOM,        /* the node has less than it needs */
    DEPLOYS_REFUSAL_COUNT
};
const char *deploys_refusal_name(enum deploys_refusal refusal); /* "claim_conflict" */

#define DEPLOYS_ANY      (-1) /* whatever version there is, or none */
#define DEPLOYS_EXISTING (-2) /* whatever version there is, but one */

struct deploys;
struct deploys_op;
typedef void deploys_done(struct deploys_op *op);

/* Inputs point to memory the sender keeps until `done`; while an op is under way the sender touches
 * neither the op nor `arena`. */
struct deploys_op {
    struct msg msg; /* private: how it travels */
    struct deploys *owner;
    struct inbox *reply_to;
    deploys_done *done;
    enum deploys_verb verb;
    int64_t until_mono_ms; /* taken up later it does nothing; 0 = no bound */
    struct arena *arena;   /* answers go there */
    enum err err;          /* answer; ERR_CONFLICT, ERR_NOT_FOUND, ERR_PRECONDITION say why */
    struct str detail;     /* what the database said when a statement failed */
    struct str id;   /* GET, ENABLE, RESTART, SCALE, ROLLBACK, DELETE, HISTORY, CLAIM, YIELD */
    struct str node; /* VIEW, RENEW, CLAIM, YIELD, STATUS, DRAIN */
    /* RENEW, CLAIM, YIELD, STATUS: which agent speaks for the node; at == NULL: not told, and the
     * node's name must do. Two agents with one name are two: the lease is the first one's. */
    struct str instance;

    union {
        struct { /* LIST; texts at == NULL: any */
            struct str type, address, package_name;
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
            int64_t to_version;              /* ROLLBACK; 0: the last that was another */
            int64_t if_version;              /* DEPLOYS_ANY; 0: only if there is none */
            bool created, changed;           /* answer */
        } put;
        struct {            /* HISTORY */
            int64_t before; /* 0: from the newest */
            size_t max;
            struct deploys_event *items; /* answer */
            size_t count;
            bool more;
        } history;
        struct { /* RELEASE: of a node, or these */
            struct str address;
            bool seed; /* of a node: whatever its lease says, but only what is enabled */
            const struct str *ids;
            size_t id_count;
            struct str namespace; /* only of this one; at == NULL: any */
            struct str *released; /* answer */
            size_t released_count;
            struct deploys_held *held;
            size_t held_count;
        } release;
        struct { /* APPROVE, DRAIN: 0 = no more */
            int64_t for_ms;
            int64_t until_ms; /* answer */
        } until;
        struct {                /* VIEW */
            int64_t if_version; /* DEPLOYS_ANY */
            int64_t if_facts;   /* DEPLOYS_ANY; leases and failures of another number only */
            int64_t within_ms;  /* of leases: those that end in this time; and goodbyes */
            bool indexed;       /* copies with an index as well */
            bool delta; /* what changed since if_version will do; answer: that is what it is */
            struct str after;
            struct deploy_row *items; /* answer; user is unused */
            size_t count;
            bool more;
            struct str *gone; /* answer, of a delta: what there was then and is no more */
            size_t gone_count;
            int64_t facts;   /* answer, with the first page: the number of leases and failures */
            bool same_facts; /* they are not told again */
            struct deploys_lease *leases; /* as are op->failures */
            size_t lease_count;
            int64_t approved_until_ms;
            bool unchanged;
        } view;
        struct {                           /* SERVICES: of op->id; at == NULL: all */
            int64_t if_number;             /* DEPLOYS_ANY; all of another number only */
            struct deploys_service *items; /* answer, by index or id and by node */
            size_t count;
            int64_t number;
            bool same;
            int64_t left_ms; /* of all: of the lease that ends first */
        } services;
        struct {          /* RENEW */
            bool goodbye; /* the node stops: the lease is not prolonged, and nothing else told */
            bool held;    /* by the agent's own clock its lease never ran out */
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
            bool owner_online; /* the server sees the owner; counts for one more lease_ms */
            int64_t lease_ms;
            bool seed;                 /* leases do not count */
            const struct json *labels; /* CLAIM: the node's; NULL: not known */
            /* CLAIM: what the node declares and what is left of it; NULL: not known */
            const struct resources *declared;
            const struct resources_left *left;
            struct str lack;   /* answer: of NO_ROOM, what is short */
            bool failed;       /* YIELD: it cannot run here; `reason` says why */
            int64_t version;   /* YIELD: of the spec that failed */
            struct str reason; /* YIELD; at == NULL: none */
            bool duplicate;    /* answer */
        } claim;
        struct { /* STATUS */
            struct deploys_copy *copies;
            size_t count;
            bool partial; /* the node has others as well */
        } status;
    } u;

    /* answers */
    enum deploys_refusal refusal; /* RENEW, CLAIM, YIELD, STATUS: why it is ERR_CONFLICT */
    int64_t left_ms;              /* OTHER_INSTANCE: of its lease */
    struct deploys_row
        row;    /* GET, PUT, ENABLE, RESTART, SCALE, ROLLBACK, CLAIM, YIELD; the one there is now */
    bool found; /* `row` is one */
    struct deploys_copy *copies; /* GET */
    size_t copy_count;
    struct deploys_failure *failures; /* GET, VIEW: those that still count */
    size_t failure_count;
    int64_t version; /* of the table: +1 with every change but leases and statuses */
    int64_t news;    /* the same without claims */
    int64_t now_ms;  /* the database's clock */
};

struct deploys_config {
    const char *url; /* see sql.h */
    const char *data_dir;
    int64_t timeout_ms;
    int64_t in_flight_max;
    int64_t (*now_ms)(void); /* a test's clock for SQLite; NULL: the machine's */
    /* There is something nodes should look at, by whoever's doing; on the SQL thread. May be NULL.
     */
    void (*changed)(void *user, int64_t news);
    void *user;
};

/* Fails for a URL that makes no sense, or a database of a newer berth; one that cannot be reached
 * now is tried again and again. */
enum err deploys_open(const struct deploys_config *config, struct deploys **ret_deploys,
                      struct problem *why);
/* ERR_OK: done() will be called once, later, on reply_to's thread. ERR_BUSY, ERR_STORE_DOWN:
 * refused at once, done() is not called. */
enum err deploys_send(struct deploys *deploys, struct deploys_op *op);
void deploys_stop(struct deploys *deploys);  /* answers what is under way; refuses from then on */
void deploys_close(struct deploys *deploys); /* stops it, then frees */

struct deploys_status {
    bool up;
    bool may_forget; /* it has replicas and waits for none: one that takes over may lack claims */
    int64_t errors;
    char detail[200]; /* of the last failure, "" when none */
};
void deploys_status(struct deploys *deploys, struct deploys_status *ret_status);

#endif
