/* Lists, such as `berth node ls`. A row describes where the items are and which columns they
 * have; -o, --limit, --cursor, --watch and filters then work the same for each. */
#ifndef CLI_LIST_H
#define CLI_LIST_H

#include "base/json.h"
#include "cli/cli.h"
#include "cli/table.h"

/* JSON of the server as text for a person. */

/* A member as one cell: strings bare, lists joined with commas, null and absent empty. Harmless to
 * a terminal (table_harmless): whatever is shown of an answer goes through here. */
struct str show_text(struct cli *cli, const struct json *value);
struct str show_member(struct cli *cli, const struct json *obj, const char *name);
int64_t show_int(const struct json *obj, const char *name, int64_t fallback);
/* How long ago a wall time in ms was: "3s", "5m", "2h", "9d"; "" for 0 or absent. */
struct str show_age(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms);
/* How long until then; "" for 0, absent or past. */
struct str show_until(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms);
/* One "name: value" a line, in the order the server sent them; times also as an age. */
void show_object(struct cli *cli, const struct json *obj);
/* What became of one of a job's attempts: "attempt 1 on us: refuse, TYPE_NOT_ALLOWED". */
struct str show_attempt(struct cli *cli, const struct json *attempt);
/* {"FULL":3,"SEND_FAILED":1} as "FULL 3, SEND_FAILED 1". */
struct str show_counts(struct cli *cli, const struct json *map);
/* What -o name prints: one id a line. */
void show_name(struct cli *cli, struct str id, FILE *to);
/* The answer as it came, with a newline. */
void show_raw(struct cli *cli, struct str reply);
/* JSON as it came, with a newline; in one line if `one_line`. What a terminal might obey can only
 * be in strings, and is escaped there: it is the same JSON. */
void show_json(struct cli *cli, struct str json, bool one_line, FILE *to);
enum table_colour show_health_colour(struct str health); /* of a node */

/* What a column is drawn into. */
struct list_view {
    struct cli *cli;
    struct table table;
    int64_t now_ms;
};

struct list_column {
    const char *title;  /* a leading '>' aligns it to the right */
    const char *member; /* of the item */
    /* Puts one cell; NULL: the member as text. */
    void (*put)(struct list_view *view, const struct list_column *column, const struct json *item);
    bool wide; /* only with -o wide */
};

/* A flag of the command that becomes a parameter of the query; lists are joined with commas. */
struct list_filter {
    const char *flag;
    const char *param;
};

struct listing {
    const char *path;    /* "/v1/nodes"; "{id}" in it is the command's first argument */
    const char *name;    /* "nodes": the member of the answer that holds the items */
    const char *id;      /* "node_id": what -o name prints */
    const char *id_rest; /* "type": follows it, where one alone names nothing; NULL: only that */
    int64_t limit;       /* page size without --limit; 0: all, page after page */
    const struct list_column *columns;
    size_t column_count;
    const struct list_filter *filters; /* NULL: none */
    size_t filter_count;
};

/* A list in short: path, name, id and columns; then the rest. */
#define LISTING(url, member, key, rows, ...)                                                       \
    (&(const struct listing){.path = (url),                                                        \
                             .name = (member),                                                     \
                             .id = (key),                                                          \
                             .columns = (rows),                                                    \
                             .column_count = COUNT_OF(rows),                                       \
                             __VA_ARGS__})
#define LIST_FILTERS(array) .filters = (array), .filter_count = COUNT_OF(array)

int list_run(struct cli *cli, const struct listing *listing);

/* Ways to put a cell. */
void list_put_age(struct list_view *view, const struct list_column *column,
                  const struct json *item); /* how long ago */
void list_put_until(struct list_view *view, const struct list_column *column,
                    const struct json *item); /* how long from now */
void list_put_state(struct list_view *view, const struct list_column *column,
                    const struct json *item); /* in the colour of a job's state */
void list_put_health(struct list_view *view, const struct list_column *column,
                     const struct json *item); /* in the colour of a node's health */
void list_put_count(struct list_view *view, const struct list_column *column,
                    const struct json *item); /* a number, or how many a list has */

#endif
