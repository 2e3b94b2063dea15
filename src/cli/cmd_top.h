/* The nodes of `berth top`, one line each: bars for CPU and memory, slots, running work,
 * breakers. */
#ifndef CLI_CMD_TOP_H
#define CLI_CMD_TOP_H

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"

extern const size_t top_sort_count; /* ways to sort nodes */

struct top_view {
    const struct json *servers;  /* of /v1/cluster/status */
    const struct json *breakers; /* of /v1/breakers; may be missing */
    size_t sort;                 /* below top_sort_count */
    bool reverse;
    size_t lines; /* lines available for them, including the title; 0: no limit */
    int64_t now_ms;
};

void top_nodes(struct cli *cli, struct sheet *sheet, const struct top_view *view);

/* One reading of /metrics, and the differences between two of them. */

struct scrape_row {
    struct str name;   /* "berth_dispatch_total" */
    struct str labels; /* the text in the braces; empty: none */
    double value;
};

/* Zero-initialised means no reading yet. Has its own memory: it outlives the picture. */
struct scrape {
    struct arena arena;
    struct scrape_row *rows;
    size_t count;
    int64_t at_us; /* CLOCK_MONOTONIC */
};

/* Skips lines that cannot be parsed: the server may be newer than we are. */
void scrape_read(struct scrape *scrape, struct str text, int64_t now_us);
void scrape_done(struct scrape *scrape);

const struct scrape_row *scrape_find(const struct scrape *scrape, struct str name,
                                     struct str labels); /* NULL: none */
/* The value of a label in `outcome="PLACED",x="y"`; empty if missing. */
struct str scrape_label(struct str labels, const char *name);
/* A counter's rate per second. False: there is no earlier reading, or the counter was reset. A new
 * row counts from 0. */
bool scrape_rate(const struct scrape *now, const struct scrape *before,
                 const struct scrape_row *row, double *ret_per_s);

#endif
