/* `berth breaker ...`: which node gets no work of which type, and taking that back. */
#include <assert.h>

#include "base/clock.h"
#include "cli/ask.h"
#include "cli/show.h"

static enum table_colour state_colour(struct str state)
{
    return str_is(state, "OPEN") ? TABLE_RED : str_is(state, "CLOSED") ? TABLE_GREEN : TABLE_YELLOW;
}

int cmd_breaker_ls(struct cli *cli)
{
    static const char *const titles[] = {"NODE",      "TYPE",    "STATE",
                                         ">FAILURES", ">OPENED", ">PROBE LEFT"};
    const struct json *json, *list, *breaker;
    struct table table;
    struct str reply;
    int64_t now_ms = clock_wall_ms();
    int code = ask_list(cli, "/v1/breakers", "breakers", &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, reply);
        return CLI_OK;
    }
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    list = json_get(json, "breakers");
    breaker = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, breaker = json_next(breaker)) {
        struct str state = show_member(cli, breaker, "state");

        table_cell(&table, show_member(cli, breaker, "node_id"));
        table_cell(&table, show_member(cli, breaker, "type"));
        table_cell_colour(&table, state, state_colour(state));
        table_cell(&table, show_member(cli, breaker, "failures"));
        table_cell(&table, show_age(cli, breaker, "opened_ms", now_ms));
        table_cell(&table, show_until(cli, breaker, "probe_until_ms", now_ms));
    }
    table_print(&table, cli->out, cli->colour);
    return CLI_OK;
}

int cmd_breaker_reset(struct cli *cli)
{
    struct buf body = {0};
    struct jsonw w = jsonw_to(&body);
    struct ask ask = {.method = "POST", .path = "/v1/breakers/reset"};
    int code;

    assert(cli->arg_count == 2);
    jsonw_obj(&w);
    jsonw_kstr(&w, "node_id", str_of(cli->args[0]));
    jsonw_kstr(&w, "type", str_of(cli->args[1]));
    jsonw_end_obj(&w);
    ask.body = buf_view(&body);
    code = ask_run(cli, &ask);
    buf_free(&body);
    if (code == CLI_OK && cli->json)
        show_raw(cli, ask.reply);
    else if (code == CLI_OK)
        fprintf(cli->out, "%s takes %s again\n", cli->args[0], cli->args[1]);
    return code;
}
