/* Commands about the whole cluster: version, health, pools, sessions; and breakers, which keep work
 * of a type away from a node, and resetting them. */
#include <assert.h>

#include "cli/list.h"
#include "cli/request.h"

static int cmd_version(struct cli *cli)
{
    fprintf(cli->out, "berth %s\n", BERTH_VERSION);
    return CLI_OK;
}

/* A server that is running but not ready replies 503 with the reason. */
static int cmd_health(struct cli *cli)
{
    struct request request = {.method = "GET", .path = "/readyz", .any_status = true};
    int code;

    if (cli->output == CLI_NAME)
        return cli_misuse(cli, "health has no names; `berth health -o json` is for programs");
    code = request_run(cli, &request);
    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, request.json);
    else if (json_type(request.json) == JSON_OBJ)
        show_object(cli, request.json);
    if (request.status == 200)
        return CLI_OK;
    if (json_is_null(json_get(request.json, "reason")))
        return cli_fail(cli, CLI_UNAVAILABLE,
                        "the server is not ready; its reason needs a token with the scope read");
    return cli_fail(cli, CLI_UNAVAILABLE, "the server is not ready: " STR_FMT,
                    STR_ARG(show_member(cli, request.json, "reason")));
}

static const struct command rows[] = {
    {.noun = "version",
     .kind = COMMAND_LOCAL,
     .help = "the version of this program",
     .examples = "berth version",
     .run = cmd_version},
    {.noun = "health",
     .help = "is the server up and ready",
     .examples = "berth health\n"
                 "berth health -o json",
     .run = cmd_health},
};

const struct command_set commands_cluster = COMMANDS(rows);

static const struct list_column pool_columns[] = {
    {.title = "POOL ID", .member = "pool_id"},
    {.title = "SRC", .member = "src"},
    {.title = "TGT", .member = "tgt"},
    {.title = ">READY", .member = "ready", .put = list_put_count},
    {.title = ">MEMBERS", .member = "members", .put = list_put_count},
    {.title = ">VERSION", .member = "version"},
};

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

static int cmd_breaker_reset(struct cli *cli)
{
    struct jsonw w = body_begin(cli);

    assert(cli->arg_count == 2);
    jsonw_kstr(&w, "node_id", str_of(cli->args[0]));
    jsonw_kstr(&w, "type", str_of(cli->args[1]));
    return answer_send(cli, "POST", "/v1/breakers/reset", body_end(cli, &w), "%s takes %s again",
                       cli->args[0], cli->args[1]);
}

static const struct command pool_rows[] = {
    VERB("pool", "ls", NULL, .list = LISTING("/v1/pools", "pools", "pool_id", pool_columns),
         .help = "which work has which nodes",
         .examples = "berth pool ls\n"
                     "berth pool ls -o wide"),
    VERB("session", "show", "ID", .help = "what is kept of a session",
         .examples = "berth session show room-1", .call = SHOW("/v1/sessions/{id}", "session_id")),
    VERB("breaker", "ls", NULL,
         .help = "which node gets no work of which type, because it kept failing",
         .list = LISTING("/v1/breakers", "breakers", "node_id", breaker_columns, .id_rest = "type"),
         .examples = "berth breaker ls\n"
                     "berth breaker ls -o name | xargs -rL1 berth breaker reset"),
    VERB("breaker", "reset", "NODE TYPE", .help = "let a node have such work again at once",
         .examples = "berth breaker reset us dev", .run = cmd_breaker_reset),
};

const struct command_set commands_pool = COMMANDS(pool_rows);
