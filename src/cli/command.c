/* All commands in the order help shows them, and finding the one that was meant. */
#include "cli/command.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "cli/command_flags.h"

enum { NAMES_MAX = 128 };

/* A row for each file of commands. */
#define COMMAND_SETS(row)                                                                          \
    row(host)            /* cmd_host.c: dev, server, agent */                                      \
        row(run)         /* cmd_run.c */                                                           \
        row(config)      /* cmd_host.c: config show */                                             \
        row(cluster)     /* cmd_cluster.c: version, health */                                      \
        row(status)      /* cmd_status.c */                                                        \
        row(top)         /* cmd_top.c */                                                           \
        row(events)      /* cmd_events.c */                                                        \
        row(node)        /* cmd_node.c */                                                          \
        row(drain)       /* cmd_drain.c: node drain */                                             \
        row(submit)      /* cmd_submit.c: job submit */                                            \
        row(job)         /* cmd_job.c */                                                           \
        row(logs)        /* cmd_logs.c: job logs */                                                \
        row(explain)     /* cmd_explain.c: job explain, explain */                                 \
        row(deploy)      /* cmd_deploy.c */                                                        \
        row(deploy_logs) /* cmd_logs.c: deploy logs */                                             \
        row(pool)        /* cmd_pool.c */                                                          \
        row(session)     /* cmd_pool.c */                                                          \
        row(breaker)     /* cmd_breaker.c */                                                       \
        row(report)      /* cmd_report.c */                                                        \
        row(debug)       /* cmd_debug.c */                                                         \
        row(token)       /* cmd_token.c */                                                         \
        row(audit)       /* cmd_audit.c */                                                         \
        row(context)     /* cmd_context.c */                                                       \
        row(completion)  /* cmd_completion.c */                                                    \
        row(man)         /* man.c */

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
    to[1] = command->list ? flags_list : none;
    to[2] = command->kind == COMMAND_API ? flags_api : flags_local;
}

void command_name(const struct command *command, char *to, size_t size)
{
    snprintf(to, size, "%s%s%s", command->noun, command->verb ? " " : "",
             command->verb ? command->verb : "");
}

/* Nouns (noun NULL) or the verbs of a noun, without repeats. */
static size_t names_of(const char *noun, const char **names)
{
    const struct command *command;
    size_t count = 0;

    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        const char *name = noun ? command->verb : command->noun;

        if (noun && strcmp(command->noun, noun) != 0)
            continue;
        if (name && (count == 0 || strcmp(names[count - 1], name) != 0))
            names[count++] = name;
        assert(count < NAMES_MAX);
    }
    assert(count > 0);
    return count;
}

static void say_unknown(const char *noun, const char *typed, struct problem *why)
{
    const char *names[NAMES_MAX];
    size_t count = names_of(noun, names), used = 0;
    const char *near = typed ? flag_nearest(typed, names, count) : NULL;
    char list[256] = "";

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

        say_unknown(argv[0], typed ? argv[1] : NULL, why);
    } else {
        say_unknown(NULL, argv[0], why);
    }
    return NULL;
}
