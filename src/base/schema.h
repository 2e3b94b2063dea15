/* One mechanism for everything a person or program may set: request bodies, configuration files,
 * flags and environment. A table of fields says name, type, bounds and where the value goes. */
#ifndef BASE_SCHEMA_H
#define BASE_SCHEMA_H

#include "base/json.h"

enum field_type {
    FIELD_BOOL, /* bool */
    FIELD_INT,  /* int64_t; min..max */
    FIELD_MS,   /* int64_t ms; a number is ms, a string "250ms" "5s" "2m" "1h" "1d"; min..max */
    FIELD_STR,  /* struct str, valid UTF-8 without control characters; min..max bytes */
    FIELD_ID,   /* struct str, str_is_id(); 1..max */
    FIELD_NAME, /* struct str, str_is_name(); 1..max */
    FIELD_ENUM, /* int; index into .names */
    FIELD_STRS, /* struct strs; an array of strings, or one comma-separated string in flags and env;
                   each like FIELD_STR; min..max entries */
    FIELD_OBJ,  /* a struct inside; .fields describes it; absent leaves its defaults */
    FIELD_JSON, /* const struct json *; any value */
    FIELD_REAL, /* double; min..max as whole numbers */
    FIELD_RAW,  /* struct str, JSON text; only written */
};

struct strs {
    struct str *at;
    size_t count;
};

enum field_flag {
    FIELD_REQUIRED = 1, /* absent or null is an error */
    FIELD_NULLABLE = 2, /* FIELD_INT, FIELD_MS: null (or "off") stores FIELD_OFF */
    FIELD_SECRET = 4,   /* `config show` prints *** */
    FIELD_NO_FLAG = 8,  /* only from the file or a body, never a flag or env */
    FIELD_LIVE = 16,    /* a running process takes a new value (SIGHUP); others need a restart */
    FIELD_HIDDEN = 32,  /* read, but not documented */
    FIELD_SENDER = 64,  /* required over HTTP; on a node's own socket it is known already */
    FIELD_EMPTY = 128,  /* in an answer, a number below 1 or an empty text is written as null */
    FIELD_OPEN = 256,   /* FIELD_OBJ: other members are allowed; the caller reads them */
    FIELD_OWN = 512,    /* this and higher ones are for a table's own use */
};

#define FIELD_OFF INT64_MIN

struct field {
    const char *name;  /* snake_case; flag --snake-case and env BERTH_SNAKE_CASE follow from it */
    const char *alias; /* another accepted spelling, or NULL */
    enum field_type type;
    size_t offset;                        /* of the value in the struct */
    int64_t min, max;                     /* both 0: no bound; max below min: no upper bound */
    const char *const *names;             /* FIELD_ENUM: NULL-terminated */
    const char *(*name_at)(size_t index); /* instead of names: from a table; NULL after the last */
    const struct field *fields;           /* FIELD_OBJ */
    size_t field_count;
    const char *preset; /* the default as text, read like a flag; NULL leaves the struct as it is */
    const char *help;
    unsigned flags;      /* enum field_flag */
    const char *shape;   /* in documents, instead of what the type says: see server/messages.h */
    const char *example; /* JSON text, or NULL */
};

/* Settings in short form: key, type (or its names), place, default, flags, help; anything else
 * follows as designated initialisers. BOUND adds the lowest and highest value. */
#define FIELD_PLAIN(key, kind, at, value, marks, text, ...)                                        \
    {                                                                                              \
        .name = (key), .type = FIELD_##kind, .offset = (at), .preset = (value), .flags = (marks),  \
        .help = (text), __VA_ARGS__                                                                \
    }
#define FIELD_BOUND(key, kind, at, low, high, value, marks, text, ...)                             \
    FIELD_PLAIN(key, kind, at, value, marks, text, .min = (low), .max = (high), __VA_ARGS__)
#define FIELD_WORDS(key, at, words, value, marks, text, ...)                                       \
    FIELD_PLAIN(key, ENUM, at, value, marks, text, .names = (words), __VA_ARGS__)
/* A row in short form. `in` is the struct, `kind` one of the types without FIELD_; anything else
 * follows as designated initialisers. */
#define FIELD_ROW(in, member, kind, ...)                                                           \
    {                                                                                              \
        .name = #member, .type = FIELD_##kind, .offset = offsetof(struct in, member), __VA_ARGS__  \
    }

struct schema {
    const char *what; /* "the body", "the configuration": for messages */
    const struct field *fields;
    size_t count;
    bool strict; /* an unknown key is an error (configuration); else it is ignored (bodies) */
};

/* Reads a JSON object into the struct `out`. Strings live in `arena` (or in the text).
 * A wrong value names the field and what was expected: "priority must be a whole number from 0
 * to 9."; `out` is then partly filled. null = absent. The problem is ERR_BAD_FIELD. */
enum err schema_read(const struct schema *schema, const struct json *obj, void *out,
                     struct arena *arena, struct problem *why);
/* The struct as a JSON object, every field of it. */
void schema_write(const struct schema *schema, const void *from, struct jsonw *w);
/* Sets every field that has a preset, also inside FIELD_OBJ. Fails only for a wrong table. */
enum err schema_presets(const struct schema *schema, void *out, struct arena *arena);

/* Configuration: flag > env > file > default. */
enum conf_source { CONF_DEFAULT, CONF_FILE, CONF_ENV, CONF_FLAG };

struct conf {
    const struct schema *schema;
    void *out;
    struct arena *arena;
    enum conf_source *sources; /* one for each top-level field */
    int *lines;                /* of the file, where it came from one */
};

enum err conf_init(struct conf *conf, const struct schema *schema, void *out, struct arena *arena);
/* YAML (JSON is YAML): libyaml events -> JSON text -> schema_read. An unknown key is an error with
 * its line and the nearest name. Duplicate keys, anchors and aliases are refused. */
enum err conf_file(struct conf *conf, const char *path, struct problem *why);
enum err conf_yaml(struct conf *conf, struct str text, struct problem *why);
enum err conf_env(struct conf *conf, char *const *vars, struct problem *why); /* BERTH_* */
/* One flag, `--name value` or `--name=value`, or a bare `--name` for a bool. *at is the index in
 * argv and moves past what was used. ERR_NOT_FOUND when the name is not in the table. */
enum err conf_flag(struct conf *conf, int argc, char **argv, int *at, struct problem *why);
/* After the last source: is every FIELD_REQUIRED field set? */
enum err conf_check(const struct conf *conf, struct problem *why);
/* Reads all sources after conf_init: the file of --config or BERTH_CONFIG, the environment, the
 * flags. The error for an unknown flag suggests the nearest one. */
enum err conf_load(struct conf *conf, int argc, char **argv, struct problem *why);
/* Its parts, for callers that read more from the file. */
const char *conf_path(int argc, char **argv); /* of the file; NULL: none */
enum err conf_flags(struct conf *conf, int argc, char **argv, struct problem *why);
/* The flags, one a line, with their defaults. */
void conf_help(const struct schema *schema, struct buf *out);
/* Every value and where it came from, one a line: `sample_k: 20  # default`. */
void conf_show(const struct conf *conf, struct buf *ret_text);
void conf_show_json(const struct conf *conf, struct jsonw *w);
/* A reload: fields without FIELD_LIVE are set back to their value in `old`, of the same schema,
 * whose memory must stay. The names of fields whose value differs go into *ret_changed (live) and
 * *ret_waiting (set back), with commas. */
void conf_keep(struct conf *conf, const struct conf *old, struct buf *ret_changed,
               struct buf *ret_waiting);

/* YAML text to JSON text, which lives in the arena; "null" for an empty text. */
enum err yaml_to_json(struct str yaml, struct arena *arena, struct str *ret_json,
                      struct problem *why);

/* One field: reading it, saying what it expects, showing it. */

const char *field_word(const struct field *field, size_t index); /* FIELD_ENUM; NULL: no more */

/* A preset, a flag or an environment variable; strings point into `text`. */
bool field_from_text(const struct field *field, struct str text, void *out, struct arena *arena);

bool field_takes_null(const struct field *field);                   /* null is a value: off */
void field_expect(const struct field *field, struct buf *ret_text); /* "must be true or false" */
void field_show(const struct field *field, const void *out, struct jsonw *w);
/* Do both structs have the same value? Inside FIELD_OBJ all secrets compare equal. */
bool field_same(const struct field *field, const void *a, const void *b);
void field_copy(const struct field *field, const void *from, void *to);

/* Reading a tree whose tokens come from known lines of a file. */

struct schema_lines {
    const struct json *root;
    const int *lines; /* of each token from the root on */
};

/* schema_read() with "Line 7: " in its messages. With lines, a required field of the top level may
 * be absent: flags and the environment come later, and conf_check() last. */
enum err schema_read_lines(const struct schema *schema, const struct json *obj,
                           const struct schema_lines *lines, void *out, struct arena *arena,
                           struct problem *why);
/* By name or alias; NULL when the table has neither. */
const struct field *schema_find(const struct field *fields, size_t count, struct str name);
/* The name that `name` was probably meant to be, NULL when none is near. */
const char *schema_nearest(const struct field *fields, size_t count, struct str name);

#endif
