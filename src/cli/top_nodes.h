/* The nodes of `berth top`, a line each: bars for CPU and memory, slots, what runs, breakers. */
#ifndef CLI_TOP_NODES_H
#define CLI_TOP_NODES_H

#include "base/json.h"
#include "cli/cli.h"
#include "cli/sheet.h"

/* By what they are sorted: a flag's value and a key. */
struct top_sort {
    const char *name;
    char key;
    const char *help;
};

const struct top_sort *top_sort_at(size_t index); /* NULL behind the last */

struct top_view {
    const struct json *servers;  /* of /v1/cluster/status */
    const struct json *breakers; /* of /v1/breakers; may be missing */
    size_t sort;                 /* of top_sort_at */
    bool reverse;
    size_t lines; /* that there are for them, the title included; 0: as many as it takes */
    int64_t now_ms;
};

void top_nodes(struct cli *cli, struct sheet *sheet, const struct top_view *view);

#endif
