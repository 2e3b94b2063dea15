/* What a copy of a deployment is to run, out of the deployment's row. */
#ifndef AGENT_COPY_SPEC_H
#define AGENT_COPY_SPEC_H

#include "base/schema.h"

enum { COPY_ID_MAX = 128 };

/* Is it well? Asked with a command that must exit 0, or with a GET that must be answered 2xx. */
struct copy_health {
    const struct json *command_given;
    struct strs command; /* count 0: no command */
    struct str http;     /* a URL on this machine; at == NULL: none */
    int64_t interval_ms; /* between two checks, and before the first */
    int64_t timeout_ms;  /* of one */
    int64_t failures;    /* in a row, and it is restarted */
    int64_t start_ms;    /* so long after its start, until a check has passed, none counts */
};

struct copy_limits { /* 0: none */
    int64_t memory_mb, pids;
    double cpu_percent; /* of one core */
};

struct copy_restart { /* 0: the agent's own settings */
    int64_t min_ms, max_ms;
};

struct copy_spec {
    struct str id;
    int64_t generation; /* the fencing token of this assignment */
    int64_t version;    /* of the spec: another one means a restart */
    struct str type;
    bool daemon; /* one on every node that matches, owned by nobody: it has no lease */
    const struct json *given;
    struct str package_name, package_version; /* empty: nothing to install */
    const struct json *command_given, *args_given, *env_given;
    struct strs command; /* the program and its arguments; count 0: the package's own */
    struct strs args;    /* for the package's own */
    struct strs env;     /* "NAME=value" */
    struct str selector;
    struct copy_health health;
    struct copy_limits limits;
    struct copy_restart restart;
    int64_t stop_grace_ms;
};

/* `row` is {id, type, generation, version, spec}. Strings live in the arena (or in what `row` was
 * read from). */
enum err copy_spec_read(const struct json *row, struct arena *arena, struct copy_spec *ret_spec,
                        struct problem *why);
bool copy_spec_checked(const struct copy_spec *spec); /* it has a health check */

#endif
