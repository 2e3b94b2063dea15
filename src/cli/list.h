/* Lists, such as `berth node ls`. A row says where the items are and which columns they have; -o,
 * --limit, --cursor, --watch and filters then work the same for all. */
#ifndef CLI_LIST_H
#define CLI_LIST_H

#include "base/json.h"
#include "cli/cli.h"
#include "cli/table.h"

/* The server's JSON as text for a person. */

/* A member as one cell: strings bare, lists joined with commas, null and absent empty. Safe for a
 * terminal (table_harmless): everything shown from a reply goes through here. */
struct str show_text(struct cli *cli, const struct json *value);
struct str show_member(struct cli *cli, const struct json *obj, const char *name);
int64_t show_int(const struct json *obj, const char *name, int64_t fallback);
/* Time since a wall time in ms: "3s", "5m", "2h", "9d"; "" for 0 or absent. */
struct str show_age(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms);
/* Time until a wall time in ms; "" for 0, absent or past. */
struct str show_until(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms);
/* One "name: value" per line, in the server's order; times also as an age. */
void show_object(struct cli *cli, const struct json *obj);
/* The outcome of one of a job's attempts: "attempt 1 on us: refuse, TYPE_NOT_ALLOWED". */
struct str show_attempt(struct cli *cli, const struct json *attempt);
/* {"FULL":3,"SEND_FAILED":1} as "FULL 3, SEND_FAILED 1". */
struct str show_counts(struct cli *cli, const struct json *map);
/* The output of -o name: one id per line. */
void show_name(struct cli *cli, struct str id, FILE *to);
/* The reply as received, with a newline. */
void show_raw(struct cli *cli, const struct json *json);
/* JSON as received, with a newline; in one line if `one_line`. Control characters can only be in
 * strings, and are escaped there: it is the same JSON. */
void show_json(struct cli *cli, struct str json, bool one_line, FILE *to);
enum table_colour show_colour(struct str word); /* a state, a health or a level */

/* The target of a column's cells. */
struct list_view {
    struct cli *cli;
    struct table table;
    int64_t now_ms;
};

struct list_column {
    const char *title;  /* a leading '>' right-aligns it */
    const char *member; /* of the item */
    /* Puts one cell; NULL: the member as text. */
    void (*put)(struct list_view *view, const struct list_column *column, const struct json *item);
    bool wide; /* only with -o wide */
};

struct listing {
    const char *path;    /* "/v1/nodes"; "{id}" in it is the command's first argument */
    const char *name;    /* "nodes": the member of the answer that holds the items */
    const char *id;      /* "node_id": what -o name prints */
    const char *id_rest; /* "type": a second member, where one is not unique; NULL: none */
    int64_t limit;       /* page size without --limit; 0: all, page after page */
    const struct list_column *columns;
    size_t column_count;
};

/* Shorthand for a list: path, name, id and columns; then the rest. */
#define LISTING(url, member, key, rows, ...)                                                       \
    (&(const struct listing){.path = (url),                                                        \
                             .name = (member),                                                     \
                             .id = (key),                                                          \
                             .columns = (rows),                                                    \
                             .column_count = COUNT_OF(rows),                                       \
                             __VA_ARGS__})
int list_run(struct cli *cli, const struct listing *listing);

/* Ways to put a cell. */
void list_put_age(struct list_view *view, const struct list_column *column,
                  const struct json *item); /* how long ago */
void list_put_until(struct list_view *view, const struct list_column *column,
                    const struct json *item); /* how long from now */
void list_put_colour(struct list_view *view, const struct list_column *column,
                     const struct json *item); /* see show_colour() */
void list_put_count(struct list_view *view, const struct list_column *column,
                    const struct json *item); /* a number, or the length of a list */

#endif
