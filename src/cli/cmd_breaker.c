/* `berth breaker ...`: which node gets no work of which type, and taking that back. */
#include <assert.h>

#include "cli/answer.h"
#include "cli/list.h"

static void put_state(struct list_view *view, const struct list_column *column,
                      const struct json *breaker)
{
    struct str state = show_member(view->cli, breaker, column->member);

    table_cell_colour(&view->table, state,
                      str_is(state, "OPEN")     ? TABLE_RED
                      : str_is(state, "CLOSED") ? TABLE_GREEN
                                                : TABLE_YELLOW);
}

static const struct list_column breaker_columns[] = {
    {.title = "NODE", .member = "node_id"},
    {.title = "TYPE", .member = "type"},
    {.title = "STATE", .member = "state", .put = put_state},
    {.title = ">FAILURES", .member = "failures"},
    {.title = ">OPENED", .member = "opened_ms", .put = list_put_age},
    {.title = ">PROBE LEFT", .member = "probe_until_ms", .put = list_put_until},
};

static const struct listing breaker_list = {.path = "/v1/breakers",
                                            .name = "breakers",
                                            .id = "node_id",
                                            .id_rest = "type",
                                            .columns = breaker_columns,
                                            .column_count = COUNT_OF(breaker_columns)};

static int cmd_breaker_reset(struct cli *cli)
{
    struct buf body = {0};
    struct jsonw w = jsonw_to(&body);

    assert(cli->arg_count == 2);
    jsonw_obj(&w);
    jsonw_kstr(&w, "node_id", str_of(cli->args[0]));
    jsonw_kstr(&w, "type", str_of(cli->args[1]));
    jsonw_end_obj(&w);
    return answer_post(cli, "/v1/breakers/reset", &body, "%s takes %s again", cli->args[0],
                       cli->args[1]);
}

static const struct command rows[] = {
    {.noun = "breaker",
     .verb = "ls",
     .kind = COMMAND_API,
     .help = "which node gets no work of which type, because it kept failing",
     .list = &breaker_list,
     .examples = "berth breaker ls\n"
                 "berth breaker ls -o name | xargs -rL1 berth breaker reset"},
    {.noun = "breaker",
     .verb = "reset",
     .arg = "NODE TYPE",
     .kind = COMMAND_API,
     .help = "let a node have such work again at once",
     .examples = "berth breaker reset us dev",
     .run = cmd_breaker_reset},
};

const struct command_set commands_breaker = COMMANDS(rows);
