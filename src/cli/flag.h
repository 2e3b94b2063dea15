/* Flags of a command: a row each gives name, type and help; parsing and usage errors follow. */
#ifndef CLI_FLAG_H
#define CLI_FLAG_H

#include "base/err.h"
#include "base/mem.h"

enum flag_type {
    FLAG_SWITCH,   /* no value */
    FLAG_TEXT,     /* any text */
    FLAG_INT,      /* min..max */
    FLAG_MS,       /* "30s", "250ms", or plain ms */
    FLAG_MS_MAYBE, /* the same, but the value may be left out */
    FLAG_LIST,     /* text, may come several times, and have commas that cut it */
    FLAG_TERMS,    /* the same, but its commas are its own: a selector */
};

struct flag {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    enum flag_type type;
    const char *value; /* how help shows the value: "DURATION" */
    const char *help;
    const char *group; /* a heading of its own in help, and what it may not be mixed with */
    int64_t min, max;  /* FLAG_INT, FLAG_MS; both 0: no bound */
};

/* A row in short: name, letter, type without FLAG_, how the value is shown, help; then the rest. */
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

/* What was typed, sorted out. Arrays are in the arena and point into argv. */
struct flag_line {
    struct flag_given *given;
    size_t given_count;
    char **args;
    int arg_count;
    char **rest; /* after `--`; NULL when there was none */
    int rest_count;
};

/* Flags and arguments may be mixed; `--` ends the flags. ERR_BAD_REQUEST with a sentence in `why`.
 */
enum err flag_parse(const struct flag_set *sets, size_t set_count, int argc, char **argv,
                    struct arena *arena, struct flag_line *ret_line, struct problem *why);

/* The name out of `names` a person most likely meant by `typed`, NULL when none is near. */
const char *flag_nearest(const char *typed, const char *const *names, size_t count);

#endif
