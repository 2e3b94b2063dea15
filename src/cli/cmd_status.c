/* `berth status`: the cluster on one page. */
#include <assert.h>

#include "base/clock.h"
#include "cli/command_flags.h"
#include "cli/panel.h"
#include "cli/request.h"
#include "cli/screen.h"
#include "cli/show.h"

static void print_names(struct cli *cli, const struct json *servers, FILE *to)
{
    const struct json *key = json_first(servers);

    for (uint32_t i = 0; json_type(servers) == JSON_OBJ && i < servers->count; i++) {
        show_name(cli, show_text(cli, key), to);
        key = json_next(key + 1);
    }
}

static int draw_status(struct live *live, FILE *to)
{
    struct cli *cli = live->cli;
    struct panel_style style = {.columns = live_columns(cli),
                                .unicode = live_unicode(cli),
                                .wide = cli->output == CLI_WIDE || cli_given(cli, "wide"),
                                .now_ms = clock_wall_ms()};
    const struct json *json;
    struct str reply;
    int code = ask_get(cli, "/v1/cluster/status", &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->output == CLI_NAME)
        print_names(cli, json_get(json, "servers"), to);
    else if (cli->json)
        show_json(cli, str_trim(reply), false, to);
    else
        panel_print(cli, json, &style, to);
    return CLI_OK;
}

static int cmd_status(struct cli *cli)
{
    int64_t watch_ms = cli_num(cli, "watch", LIVE_WATCH_MS);
    struct live live = {.cli = cli,
                        .interval_ms = watch_ms < 0 ? LIVE_WATCH_MS : watch_ms,
                        .once = !cli_given(cli, "watch"),
                        .draw = draw_status};

    assert(cli->arg_count == 0);
    return live_run(&live);
}

static const struct flag status_flags[] = {
    FLAG_WATCH,
    {.name = "wide",
     .type = FLAG_SWITCH,
     .help = "every figure and task, and how the slots come about (as -o wide)"},
};

static const struct command rows[] = {
    {.noun = "status",
     .kind = COMMAND_API,
     .flags = FLAGS(status_flags),
     .help = "every server: load, slots, tasks, what it is available for",
     .examples = "berth status\n"
                 "berth status --watch=5s --wide\n"
                 "berth status -o json | jq .cluster_status",
     .run = cmd_status},
};

const struct command_set commands_status = COMMANDS(rows);
