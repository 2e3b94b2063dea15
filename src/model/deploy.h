/* A deployment as the claim rules see it: its owner, which nodes may take it, and in which order.
 * The same rules run on every agent and, as predicates, in the server's SQL. */
#ifndef MODEL_DEPLOY_H
#define MODEL_DEPLOY_H

#include "base/schema.h"
#include "model/demand.h"
#include "model/member.h"

enum {
    DEPLOY_ID_MAX = 128,
    DEPLOY_COUNT_MAX = 1000,                /* copies of one deployment */
    DEPLOY_COPY_ID_MAX = DEPLOY_ID_MAX + 4, /* "#999" */
    DEPLOY_INSTANCE_MAX = 64,               /* of an agent */
    DEPLOY_REASON_MAX = 256,                /* of a copy, or of a node that gives one up */
    DEPLOY_UPDATE_TIMEOUT_MS = 600000,      /* unless the spec sets another */
};

enum deploy_type {
    DEPLOY_OTHER,      /* an unknown type: never counted, claimed or run */
    DEPLOY_DEPLOYMENT, /* runs once, on the node that claimed it */
    DEPLOY_DAEMON,     /* runs on every node its selector matches; has no owner */
    DEPLOY_TYPE_COUNT
};

const char *deploy_type_name(enum deploy_type type);
enum deploy_type deploy_type_by_name(struct str name); /* DEPLOY_OTHER when unknown */

/* A deployment of several copies has a row for each, which is claimed, leased and fenced
 * separately. The copy with index 0 has the deployment's own id, "web", the others are "web#1",
 * "web#2": an id that a person chooses cannot contain '#'. */
struct str deploy_name(struct str id); /* of the deployment: without the index */
int64_t deploy_index(struct str id);
bool deploy_id_valid(struct str id); /* of a deployment or one of its copies */

struct deploy_row {
    struct str id;
    struct str address; /* the owner; empty: unassigned */
    enum deploy_type type;
    bool enabled;
    int64_t generation; /* the fencing token: +1 with every change of owner */
    struct str selector;
    struct str needs;            /* JSON: the resources it takes from its node; empty: none */
    const struct demand *demand; /* the same, parsed for assigning it; NULL: none */
    struct str updated_at;       /* when the spec changed, not the status */
    struct str created_at;
    const struct str *failed_on; /* nodes that gave it up lately because it failed there */
    size_t failed_count;
    void *user; /* the caller's */
};

/* Addresses that own enabled deployments and are not online, in order of first appearance. */
void deploy_absent_owners(const struct deploy_row *rows, size_t count, const struct names *online,
                          struct arena *arena, struct names *ret_lost);
/* For each online address, at its index in `online`: how many enabled deployments it owns. */
void deploy_counts(const struct deploy_row *rows, size_t count, const struct names *online,
                   int64_t *ret_counts);

/* What may be claimed. Seed: unowned rows. Hardened: rows of lost nodes, and unowned rows only if
 * there are none of those. */
enum deploy_mode { DEPLOY_HARDENED, DEPLOY_SEED };

const char *deploy_mode_name(enum deploy_mode mode); /* "hardened", "seed" */

/* The rows that may be claimed, in order: updated_at, created_at, id. `ret_order` has
 * room for `count`; returns how many. */
size_t deploy_candidates(const struct deploy_row *rows, size_t count, const struct names *lost,
                         enum deploy_mode mode, const struct deploy_row **ret_order);

/* A conditional update: it succeeds only if the row is still as the claimer saw it. */
struct deploy_claim {
    struct str by;
    struct str observed; /* the owner it saw; empty: none */
    int64_t generation;  /* the generation it saw */
    bool owner_lost;     /* `observed` is lost (and its lease ran out) */
};
/* True: the row has a new owner and a new generation. False: nothing changed. */
bool deploy_claim(struct deploy_row *row, const struct deploy_claim *claim);
/* In mode seed a lost node's rows become unowned; also used for an operator's command. True: it
 * changed. */
bool deploy_release(struct deploy_row *row, const struct names *lost);

/* What a deployment runs. The rules exist once, here: with them the server refuses what a node
 * could not run, and a node reads its assignment. */

/* In all of these, a value that was not given is FIELD_OFF (texts: at == NULL) until
 * deploy_spec_defaults. */

/* The health check: a command that must exit 0, or a GET that must be answered 2xx. */
struct deploy_health {
    const struct json *command_given;
    struct strs command; /* count 0: no command */
    struct str http;     /* a URL on the machine it runs on; at == NULL: none */
    int64_t interval_ms; /* between two checks, and before the first */
    int64_t timeout_ms;  /* of one check */
    int64_t failures;    /* in a row before it is restarted */
    int64_t start_ms;    /* after a start, failures within this time do not count until a check has
                            passed */
};

struct deploy_limits { /* 0: none */
    int64_t memory_mb, cpu_percent, pids, disk_mb;
};

/* When a process that ended by itself is started again. */
enum deploy_policy { DEPLOY_ALWAYS, DEPLOY_ON_FAILURE, DEPLOY_NEVER };

struct deploy_restart {
    int policy;             /* enum deploy_policy; -1: not given */
    int64_t min_ms, max_ms; /* the pauses before a restart; 0: the node's own settings */
};

struct deploy_spec {
    struct str id;
    int type; /* of deploy_spec_types */
    bool enabled;
    struct str package_name, package_version; /* empty: nothing to install */
    struct str selector;
    const struct json *command_given, *args_given, *env_given, *secrets_given, *needs_given;
    struct strs command;  /* the program and its arguments; count 0: the package's own */
    bool shell;           /* `command` is /bin/sh -c and a text */
    struct strs args;     /* for the package's own command */
    struct strs env;      /* "NAME=value" */
    struct strs secrets;  /* see argv_secrets() */
    struct demand demand; /* what each copy needs from its node; demand_plain: none given */
    struct deploy_health health;
    struct deploy_limits limits;
    struct deploy_restart restart;
    int64_t stop_grace_ms;
    int64_t count;             /* copies; not given: as many as exist, or 1 */
    int64_t max_unavailable;   /* copies that an update may replace at once */
    int64_t update_timeout_ms; /* how long a copy may take to become healthy with a new version */
    const struct json *ignored;
};

extern const char *const deploy_spec_types[];  /* "deployment", "daemon" */
extern const struct schema deploy_spec_schema; /* a request; and the objects in it */
extern const struct schema deploy_health_schema, deploy_limits_schema, deploy_restart_schema;

/* `strict`: an unknown member is an error, because a misspelt limit would silently be no limit.
 * Nodes are not strict: a newer server may send more. Strings live in the arena, or in what `body`
 * was read from. */
enum err deploy_spec_read(const struct json *body, bool strict, struct arena *arena,
                          struct deploy_spec *ret_spec, struct problem *why);
void deploy_spec_defaults(struct deploy_spec *spec, struct arena *arena);
/* The demand of a spec of which only `needs` is known; NULL: none, or unreadable. */
const struct demand *deploy_demand(struct str needs, struct arena *arena);
/* Replaces $BERTH_PORT in the text with a copy's port; the result is in the arena if it was
 * replaced. */
#define DEPLOY_PORT_MARK "$BERTH_PORT"
struct str deploy_with_port(struct str text, int64_t port, struct arena *arena);
bool deploy_spec_checked(const struct deploy_spec *spec); /* it has a health check */
/* health, limits, restart, stop_grace_ms, secrets as members of an open object; only those
 * given. */
void deploy_spec_write_options(const struct deploy_spec *spec, struct jsonw *w);

#endif
