/* `berth status`: the cluster on one page. */
#include <assert.h>

#include "base/clock.h"
#include "cli/ask.h"
#include "cli/live.h"
#include "cli/panel.h"
#include "cli/show.h"

enum { WATCH_MS = 2000 };

static int draw_status(struct live *live, FILE *to)
{
    struct cli *cli = live->cli;
    struct panel_style style = {.columns = live_columns(cli),
                                .unicode = live_unicode(cli),
                                .wide = cli_given(cli, "wide"),
                                .now_ms = clock_wall_ms()};
    const struct json *json;
    struct str reply;
    int code = ask_get(cli, "/v1/cluster/status", &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        fprintf(to, STR_FMT "\n", STR_ARG(str_trim(reply)));
    else
        panel_print(cli, json, &style, to);
    return CLI_OK;
}

int cmd_status(struct cli *cli)
{
    int64_t watch_ms = cli_num(cli, "watch", WATCH_MS);
    struct live live = {.cli = cli,
                        .interval_ms = watch_ms < 0 ? WATCH_MS : watch_ms,
                        .once = !cli_given(cli, "watch"),
                        .draw = draw_status};

    assert(cli->arg_count == 0);
    return live_run(&live);
}
