/* What a person says a deployment is to run. The rules stand here once: the server refuses by them
 * what a node could not run, and a node reads by them what it was given. */
#ifndef MODEL_DEPLOY_SPEC_H
#define MODEL_DEPLOY_SPEC_H

#include "base/schema.h"
#include "model/deploy.h"

/* In all of these, what was not said is FIELD_OFF (texts: at == NULL) until deploy_spec_defaults.
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
    int policy;             /* enum deploy_policy; -1: not said */
    int64_t min_ms, max_ms; /* the pauses before it; 0: the node's own settings */
};

struct deploy_spec {
    struct str id;
    int type; /* of deploy_spec_types */
    bool enabled;
    struct str package_name, package_version; /* empty: nothing to install */
    struct str selector;
    const struct json *command_given, *args_given, *env_given, *secrets_given;
    struct strs command; /* the program and its arguments; count 0: the package's own */
    bool shell;          /* `command` is /bin/sh -c and a text */
    struct strs args;    /* for the package's own */
    struct strs env;     /* "NAME=value" */
    struct strs secrets; /* see words_secrets() */
    struct deploy_health health;
    struct deploy_limits limits;
    struct deploy_restart restart;
    int64_t stop_grace_ms;
    const struct json *ignored;
};

extern const char *const deploy_spec_types[]; /* "deployment", "daemon" */

/* `strict`: an unknown member is an error, as a misspelt limit would be none. A node ignores what a
 * newer server may say. Strings live in the arena, or in what `body` was read from. */
enum err deploy_spec_read(const struct json *body, bool strict, struct arena *arena,
                          struct deploy_spec *ret_spec, struct problem *why);
void deploy_spec_defaults(struct deploy_spec *spec, struct arena *arena);
bool deploy_spec_checked(const struct deploy_spec *spec); /* it has a health check */
/* health, limits, restart, stop_grace_ms, secrets as members of an open object: only what was said.
 */
void deploy_spec_write_options(const struct deploy_spec *spec, struct jsonw *w);

#endif
