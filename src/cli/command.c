/* All commands in the order help shows them, finding the one that was typed, and the flags that
 * many commands share. */
#include "cli/command.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { LIST_MAX = 1000 };

static const struct flag api_flags[] = {
    FLAG("addr", 0, TEXT, "URL",
         "the server (BERTH_ADDR, else the context's, else http://127.0.0.1:7420)"),
    FLAG("token-file", 0, TEXT, "FILE", "a file that holds the token (or BERTH_TOKEN holds it)"),
    FLAG("ca-file", 0, TEXT, "FILE",
         "certificates to trust for https (BERTH_CA_FILE, default the system's)"),
    FLAG("cert-file", 0, TEXT, "FILE",
         "a certificate to show to a server that asks for one (BERTH_CERT_FILE)"),
    FLAG("key-file", 0, TEXT, "FILE", "its key (BERTH_KEY_FILE)"),
    FLAG("context", 0, TEXT, "NAME",
         "a server by its name (BERTH_CONTEXT), see `berth context --help`"),
    FLAG("output", 'o', TEXT, "FORMAT",
         "table, wide, json, jsonl (one line for each item) or name (ids only)",
         .values = "table wide json jsonl name"),
    FLAG("help", 'h', SWITCH, NULL, "this text"),
};

static const struct flag local_flags[] = {
    FLAG("help", 'h', SWITCH, NULL, "this text"),
};

static const struct flag list_flags[] = {
    FLAG("limit", 0, INT, "N", "one page of at most so many; prints the cursor of the next",
         .min = 1, .max = LIST_MAX),
    FLAG("cursor", 0, TEXT, "CURSOR", "go on where a page ended"),
    FLAG_WATCH,
};

enum { NAMES_MAX = 128 };

/* One row per file of commands. */
#define COMMAND_SETS(row)                                                                          \
    row(host)            /* cmd_host.c: dev, server, agent, run, config show */                    \
        row(cluster)     /* cmd_cluster.c: version, health */                                      \
        row(status)      /* cmd_status.c */                                                        \
        row(top)         /* cmd_top.c */                                                           \
        row(events)      /* cmd_events.c */                                                        \
        row(node)        /* cmd_node.c */                                                          \
        row(job)         /* cmd_job.c */                                                           \
        row(logs)        /* cmd_logs.c: job logs */                                                \
        row(explain)     /* cmd_explain.c: job explain, explain */                                 \
        row(deploy)      /* cmd_deploy.c */                                                        \
        row(deploy_logs) /* cmd_logs.c: deploy logs */                                             \
        row(pool)        /* cmd_cluster.c: pool, session, breaker */                               \
        row(limit)       /* cmd_limit.c */                                                         \
        row(report)      /* cmd_report.c */                                                        \
        row(debug)       /* cmd_debug.c */                                                         \
        row(token)       /* cmd_token.c */                                                         \
        row(audit)       /* cmd_audit.c */                                                         \
        row(context)     /* context.c */                                                           \
        row(completion)  /* complete.c */                                                          \
        row(man)         /* help.c */

#define COMMAND_SET_EXTERN(name) extern const struct command_set commands_##name;
#define COMMAND_SET_ROW(name)    &commands_##name,

COMMAND_SETS(COMMAND_SET_EXTERN)

static const struct command_set *const sets[] = {COMMAND_SETS(COMMAND_SET_ROW)};

const struct command *command_at(size_t index)
{
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        if (index < sets[i]->count)
            return &sets[i]->rows[index];
        index -= sets[i]->count;
    }
    return NULL;
}

void command_flags(const struct command *command, struct flag_set to[COMMAND_FLAG_SETS])
{
    static const struct flag_set none;

    to[0] = command->flags ? *command->flags : none;
    to[1] = command->list ? *FLAGS(list_flags) : none;
    to[2] = command->kind == COMMAND_API ? *FLAGS(api_flags) : *FLAGS(local_flags);
}

void command_name(const struct command *command, char *to, size_t size)
{
    snprintf(to, size, "%s%s%s", command->noun, command->verb ? " " : "",
             command->verb ? command->verb : "");
}

static void set_unknown(const char *noun, const char *typed, struct problem *why)
{
    const struct command *command;
    const char *names[NAMES_MAX]; /* nouns, or the verbs of the noun, each once */
    size_t count = 0, used = 0;
    const char *near;
    char list[256] = "";

    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        const char *name = noun ? command->verb : command->noun;

        if (noun && strcmp(command->noun, noun) != 0)
            continue;
        if (name && (count == 0 || strcmp(names[count - 1], name) != 0))
            names[count++] = name;
        assert(count < NAMES_MAX);
    }
    assert(count > 0);
    near = typed ? flag_nearest(typed, names, count) : NULL;
    for (size_t i = 0; noun && i < count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    if (near)
        problem_set(why, ERR_BAD_REQUEST, "command",
                    "unknown command \"%s%s%s\"; did you mean \"%s%s%s\"?", noun ? noun : "",
                    noun ? " " : "", typed, noun ? noun : "", noun ? " " : "", near);
    else if (!noun)
        problem_set(why, ERR_BAD_REQUEST, "command",
                    "unknown command \"%s\"; `berth help` lists what there is", typed);
    else if (typed)
        problem_set(why, ERR_BAD_REQUEST, "command", "unknown command \"%s %s\"; there is: %s",
                    noun, typed, list);
    else
        problem_set(why, ERR_BAD_REQUEST, "command", "`berth %s` needs one of: %s", noun, list);
}

const struct command *command_find(int argc, char **argv, int *ret_used, struct problem *why)
{
    const struct command *command;
    bool noun_known = false;

    assert(argc > 0);
    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        if (strcmp(command->noun, argv[0]) != 0)
            continue;
        noun_known = true;
        if (command->verb && (argc < 2 || strcmp(command->verb, argv[1]) != 0))
            continue;
        *ret_used = command->verb ? 2 : 1;
        return command;
    }
    if (noun_known) {
        bool typed = argc > 1 && argv[1][0] != '-';

        set_unknown(argv[0], typed ? argv[1] : NULL, why);
    } else {
        set_unknown(NULL, argv[0], why);
    }
    return NULL;
}
