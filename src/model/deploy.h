/* A deployment as the claim rules see it: who owns it, who may take it, in which order. The same
 * rules run on every agent and are, as predicates, in the server's SQL. */
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
    DEPLOY_TIME_MAX = 32, /* created_at, updated_at: text whose byte order is the order of time */
};

enum deploy_type {
    DEPLOY_OTHER,      /* a type nobody knows: never counted, never claimed, never run */
    DEPLOY_DEPLOYMENT, /* runs once, on the node that claimed it */
    DEPLOY_DAEMON,     /* runs on every node its selector matches; has no owner */
    DEPLOY_TYPE_COUNT
};

const char *deploy_type_name(enum deploy_type type);
enum deploy_type deploy_type_by_name(struct str name); /* DEPLOY_OTHER when unknown */

/* A deployment of several copies has a row for each, which is claimed, leased and fenced by itself.
 * The copy with index 0 has the deployment's own id, "web", the others are "web#1", "web#2": no id
 * that a person may give has a '#'. */
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
    struct str needs;            /* JSON: what it takes of its node; empty: nothing */
    const struct demand *demand; /* the same, for who deals it out; NULL: nothing */
    struct str updated_at;       /* of the spec, never of the status */
    struct str created_at;
    const struct str *failed_on; /* nodes that gave it up lately because it failed there */
    size_t failed_count;
    void *user; /* the caller's */
};

/* Addresses that own enabled deployments and are not online, first seen first. */
void deploy_lost(const struct deploy_row *rows, size_t count, const struct names *online,
                 struct arena *arena, struct names *ret_lost);
/* For each online address, at its place in `online`, how many enabled deployments it owns. */
void deploy_counts(const struct deploy_row *rows, size_t count, const struct names *online,
                   int64_t *ret_counts);

/* What may be claimed. Seed: what nobody owns. Hardened: what a lost node owns, and only if there
 * is none of that what nobody owns. */
enum deploy_mode { DEPLOY_HARDENED, DEPLOY_SEED };

const char *deploy_mode_name(enum deploy_mode mode); /* "hardened", "seed" */

/* The rows that may be claimed, in order: updated_at, created_at, id. `ret_order` has
 * room for `count`; returns how many. */
size_t deploy_candidates(const struct deploy_row *rows, size_t count, const struct names *lost,
                         enum deploy_mode mode, const struct deploy_row **ret_order);

/* A conditional update: what the claimer saw must still be so. */
struct deploy_claim {
    struct str by;
    struct str observed; /* the owner it saw; empty: none */
    int64_t generation;  /* the generation it saw */
    bool owner_lost;     /* `observed` is lost (and its lease ran out) */
};
/* True: the row changed hands and has a new generation. False: nothing changed. */
bool deploy_claim(struct deploy_row *row, const struct deploy_claim *claim);
/* In mode seed what a lost node owned is nobody's; it is an operator's command, too. True: it
 * changed. */
bool deploy_release(struct deploy_row *row, const struct names *lost);

/* What a deployment is to run. The rules are here once: the server refuses by them
 * what a node could not run, and a node reads by them what it was given. */

/* In all of these, what was not given is FIELD_OFF (texts: at == NULL) until deploy_spec_defaults.
 */

/* Is it well? Asked with a command that must exit 0, or with a GET that must be answered 2xx. */
struct deploy_health {
    const struct json *command_given;
    struct strs command; /* count 0: no command */
    struct str http;     /* a URL of the machine it runs on; at == NULL: none */
    int64_t interval_ms; /* between two checks, and before the first */
    int64_t timeout_ms;  /* of one */
    int64_t failures;    /* in a row, and it is restarted */
    int64_t start_ms;    /* so long after its start, until a check has passed, none counts */
};

struct deploy_limits { /* 0: none */
    int64_t memory_mb, cpu_percent, pids, disk_mb;
};

/* When one that ended by itself is started again. */
enum deploy_policy { DEPLOY_ALWAYS, DEPLOY_ON_FAILURE, DEPLOY_NEVER };

struct deploy_restart {
    int policy;             /* enum deploy_policy; -1: not given */
    int64_t min_ms, max_ms; /* the pauses before it; 0: the node's own settings */
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
    struct strs args;     /* for the package's own */
    struct strs env;      /* "NAME=value" */
    struct strs secrets;  /* see argv_secrets() */
    struct demand demand; /* what each copy needs of its node; demand_plain: none given */
    struct deploy_health health;
    struct deploy_limits limits;
    struct deploy_restart restart;
    int64_t stop_grace_ms;
    int64_t count;             /* copies; not given: as many as exist, or 1 */
    int64_t max_unavailable;   /* copies that an update may replace at once */
    int64_t update_timeout_ms; /* so long a copy may take to get well with a new version */
    const struct json *ignored;
};

extern const char *const deploy_spec_types[];  /* "deployment", "daemon" */
extern const struct schema deploy_spec_schema; /* a request; and the objects in it */
extern const struct schema deploy_health_schema, deploy_limits_schema, deploy_restart_schema;

/* `strict`: an unknown member is an error, as a misspelt limit would be none. A node ignores what a
 * newer server may say. Strings live in the arena, or in what `body` was read from. */
enum err deploy_spec_read(const struct json *body, bool strict, struct arena *arena,
                          struct deploy_spec *ret_spec, struct problem *why);
void deploy_spec_defaults(struct deploy_spec *spec, struct arena *arena);
/* What a spec of which only `needs` is known takes of its node; NULL: nothing, or it cannot be
 * read.
 */
const struct demand *deploy_demand(struct str needs, struct arena *arena);
/* A text with the port of a copy in the place of $BERTH_PORT; in the arena if there is one. */
#define DEPLOY_PORT_MARK "$BERTH_PORT"
struct str deploy_with_port(struct str text, int64_t port, struct arena *arena);
bool deploy_spec_checked(const struct deploy_spec *spec); /* it has a health check */
/* health, limits, restart, stop_grace_ms, secrets as members of an open object: only what was
 * given.
 */
void deploy_spec_write_options(const struct deploy_spec *spec, struct jsonw *w);

#endif
