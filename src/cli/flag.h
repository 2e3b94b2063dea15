/* Flags of a command: one row each has name, type and help; parsing and usage errors follow from
 * it. */
#ifndef CLI_FLAG_H
#define CLI_FLAG_H

#include "base/err.h"
#include "base/mem.h"

enum flag_type {
    FLAG_SWITCH,   /* no value */
    FLAG_TEXT,     /* any text */
    FLAG_INT,      /* min..max */
    FLAG_MS,       /* "30s", "250ms", or plain ms */
    FLAG_MS_MAYBE, /* the same, but the value is optional */
    FLAG_LIST,     /* text, repeatable, split at commas */
    FLAG_TERMS,    /* the same, but not split: a selector */
};

struct flag {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    enum flag_type type;
    const char *value; /* how help names the value: "DURATION" */
    const char *help;
    const char *group;  /* its own heading in help; flags of different groups cannot be mixed */
    int64_t min, max;   /* FLAG_INT, FLAG_MS; both 0: no bounds */
    const char *param;  /* of a list: the query parameter it becomes; NULL: none */
    const char *values; /* known values, separated by blanks, for completion; NULL: none */
};

/* Shorthand for a row: name, letter, type without FLAG_, value as shown, help; then the rest. */
#define FLAG(flag_name, short_name, kind, shown, text, ...)                                        \
    {                                                                                              \
        .name = (flag_name), .letter = (short_name), .type = FLAG_##kind, .value = (shown),        \
        .help = (text), __VA_ARGS__                                                                \
    }

struct flag_set {
    const struct flag *flags;
    size_t count;
};

struct flag_given {
    const struct flag *flag;
    const char *text; /* NULL: without a value */
    int64_t num;      /* FLAG_INT, FLAG_MS; -1 for FLAG_MS_MAYBE without a value */
};

/* The parsed command line. Arrays are in the arena and point into argv. */
struct flag_line {
    struct flag_given *given;
    size_t given_count;
    char **args;
    int arg_count;
    char **rest; /* after `--`; NULL if there is none */
    int rest_count;
};

/* Flags and arguments may be mixed; `--` ends the flags. ERR_BAD_REQUEST with a sentence in `why`.
 */
enum err flag_parse(const struct flag_set *sets, size_t set_count, int argc, char **argv,
                    struct arena *arena, struct flag_line *ret_line, struct problem *why);

/* The name in `names` that is most likely meant by `typed`; NULL if none is close. */
const char *flag_nearest(const char *typed, const char *const *names, size_t count);

#endif
