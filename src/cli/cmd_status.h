/* The cluster as a text panel: the reply of /v1/cluster/status, one block per server. Shows only
 * what was sent; an unknown figure is `-` with the reason. */
#ifndef CLI_CMD_STATUS_H
#define CLI_CMD_STATUS_H

#include "base/json.h"
#include "cli/cli.h"
#include "cli/table.h"

struct panel_style {
    size_t columns; /* of the terminal */
    bool unicode;   /* for bars and frames; false: ASCII */
    bool wide;      /* all figures, all tasks, and the clamps of the slots */
    int64_t now_ms;
};

/* Two columns if both are wide enough to read, otherwise one. */
void panel_print(struct cli *cli, const struct json *status, const struct panel_style *style,
                 FILE *to);

/* How full a server is, in 1/1000; -1: unknown. */
int64_t panel_cpu_permille(const struct json *server); /* load of its cores; may exceed 1000 */
int64_t panel_mem_permille(const struct json *server); /* used, not free */
int64_t panel_slots_permille(const struct json *server);
/* The colour of a used share, and of a cluster's status. */
enum table_colour panel_share_colour(int64_t permille);
enum table_colour panel_status_colour(struct str status);

#endif
