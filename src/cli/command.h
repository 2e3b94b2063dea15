/* The commands of `berth`: one row each, next to the code that runs it (cmd_*.c). Help, usage
 * errors, completions and manual pages are made from the rows. To add a noun, write a cmd_NOUN.c
 * that ends with its rows and a command_set, and add that set to command.c. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "cli/flag.h"

struct cli;
struct listing;

enum command_kind {
    COMMAND_API,   /* the default: sends requests to a server; takes --addr, --token-file, -o */
    COMMAND_LOCAL, /* works without a server */
    COMMAND_HOST,  /* runs a server or an agent: the other arguments are passed on unparsed, see
                    * struct cli_host */
};

/* A command that is one call: shows one thing, or changes it. */
struct command_call {
    const char *method, *path; /* "{id}" is the command's first argument */
    const char *id;            /* GET: the member that -o name prints */
    const char *said;          /* otherwise: the result for the argument: "cancelled" */
};

struct command {
    const char *noun;
    const char *verb; /* NULL: the noun alone */
    const char *arg;  /* its arguments as in the usage line, separated by blanks; those in [] are
                       * optional; NULL: none */
    const char *rest; /* what may follow `--`; NULL: arguments, as before it */
    enum command_kind kind;
    const struct flag_set *flags;    /* its own, besides the common ones: FLAGS(rows); NULL: none */
    const struct listing *list;      /* it prints this list, and takes the common list flags */
    const char *help;                /* one line */
    const char *detail;              /* a paragraph; NULL: none */
    const char *examples;            /* lines: "berth ..." or "# why" */
    const struct command_call *call; /* it makes this call */
    int (*run)(struct cli *cli);     /* NULL if there is a list or a call, or a host runs it */
};

/* Shorthand for a row of a noun with verbs: noun, verb, arguments; then the rest. */
#define VERB(noun_name, verb_name, arguments, ...)                                                 \
    {                                                                                              \
        .noun = (noun_name), .verb = (verb_name), .arg = (arguments), __VA_ARGS__                  \
    }

#define SHOW(url, member) (&(const struct command_call){.path = (url), .id = (member)})
#define CALL(verb, url, done)                                                                      \
    (&(const struct command_call){.method = (verb), .path = (url), .said = (done)})

/* The commands of one file. Commands of the same noun are adjacent. */
struct command_set {
    const struct command *rows;
    size_t count;
};

#define COMMANDS(array)                                                                            \
    {                                                                                              \
        .rows = (array), .count = COUNT_OF(array)                                                  \
    }
#define FLAGS(array) (&(const struct flag_set){.flags = (array), .count = COUNT_OF(array)})

enum { COMMAND_FLAG_SETS = 3 };

const struct command *command_at(size_t index); /* NULL after the last */
/* The command that argv starts with; *ret_used arguments name it. NULL: `why` is set. */
const struct command *command_find(int argc, char **argv, int *ret_used, struct problem *why);
/* All flags it takes: its own, those of lists, those common to its kind. Some sets may be empty. */
void command_flags(const struct command *command, struct flag_set to[COMMAND_FLAG_SETS]);
/* "node ls" */
void command_name(const struct command *command, char *to, size_t size);

/* Flags that many commands share; a command's own are next to it. */

enum { WATCH_MIN_MS = 100, WATCH_MAX_MS = 3600000 };

/* --watch, for a command's own flags. */
#define FLAG_WATCH                                                                                 \
    {                                                                                              \
        .name = "watch", .letter = 'w', .type = FLAG_MS_MAYBE, .value = "DURATION",                \
        .min = WATCH_MIN_MS, .max = WATCH_MAX_MS,                                                  \
        .help = "draw it again and again, until q (default every 2s)"                              \
    }

#endif
