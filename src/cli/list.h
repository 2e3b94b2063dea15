/* Lists: `berth node ls` and all its kin. A row says where the items are and which columns they
 * have; -o, --limit, --cursor, --watch and filters then work the same for each. */
#ifndef CLI_LIST_H
#define CLI_LIST_H

#include "cli/cli.h"
#include "cli/show.h"

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
    const char *id_rest; /* "type": and behind it, where one alone names nothing; NULL: only that */
    int64_t limit;       /* without --limit one page of so many; 0: all, page after page */
    const struct list_column *columns;
    size_t column_count;
    const struct list_filter *filters; /* NULL: none */
    size_t filter_count;
};

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
