/* `berth node ...` */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "cli/ask.h"
#include "cli/show.h"

int cmd_node_ls(struct cli *cli)
{
    static const char *const titles[] = {"NODE ID", "HEALTH", ">LOAD",    ">MAX", ">SCORE",
                                         ">SEEN",   "LEVEL",  "SEMANTIC", "NMT",  "TYPES"};
    const struct json *json, *list, *node;
    struct table table;
    struct str reply;
    int64_t now_ms = clock_wall_ms();
    int code = ask_list(cli, "/v1/nodes", "nodes", &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, reply);
        return CLI_OK;
    }
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    list = json_get(json, "nodes");
    node = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, node = json_next(node)) {
        struct str health = show_member(cli, node, "health");

        table_cell(&table, show_member(cli, node, "node_id"));
        table_cell_colour(&table, health, show_health_colour(health));
        table_int(&table, show_int(node, "running", 0) + show_int(node, "reserved", 0));
        table_cell(&table, show_member(cli, node, "max"));
        table_cell(&table, show_member(cli, node, "health_score"));
        table_cell(&table, show_age(cli, node, "last_heartbeat_ms", now_ms));
        table_cell(&table, show_member(cli, node, "level"));
        table_cell(&table, show_member(cli, node, "semantic_langs"));
        table_cell(&table, show_member(cli, node, "nmt_pairs"));
        table_cell(&table, show_member(cli, node, "allowed_types"));
    }
    table_print(&table, cli->out, cli->colour);
    return CLI_OK;
}

/* "/v1/nodes/ID" and what follows. */
static const char *node_path(struct cli *cli, const char *suffix)
{
    assert(cli->arg_count == 1);
    return arena_fmt(&cli->arena, "/v1/nodes/%s%s", ask_escape(cli, str_of(cli->args[0])), suffix)
        .at;
}

int cmd_node_show(struct cli *cli)
{
    const struct json *json;
    struct str reply;
    int code = ask_get(cli, node_path(cli, ""), &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, reply);
    else
        show_object(cli, json);
    return CLI_OK;
}

/* Sends a body that was written with jsonw, and prints a word for a person. */
static int post(struct cli *cli, const char *path, struct buf *body, const char *word)
{
    struct ask ask = {.method = "POST", .path = path, .body = buf_view(body)};
    int code = ask_run(cli, &ask);

    buf_free(body);
    if (code == CLI_OK && cli->json)
        show_raw(cli, ask.reply);
    else if (code == CLI_OK)
        fprintf(cli->out, "%s %s\n", cli->args[0], word);
    return code;
}

static void put_list(struct cli *cli, struct jsonw *w, const char *key, const char *flag)
{
    struct str *items;
    size_t count = cli_list(cli, flag, &items);

    if (!cli_given(cli, flag))
        return;
    jsonw_key(w, key);
    jsonw_arr(w);
    for (size_t i = 0; i < count; i++)
        jsonw_str(w, items[i]);
    jsonw_end_arr(w);
}

/* "en:zh,zh:en" -> [["en","zh"],["zh","en"]], "any" -> "any". False: some item is not a pair. */
static bool put_pairs(struct cli *cli, struct jsonw *w)
{
    struct str *items;
    size_t count = cli_list(cli, "nmt", &items);

    if (count == 0)
        return true;
    if (count == 1 && str_is(items[0], "any")) {
        jsonw_kstr(w, "nmt_pairs", items[0]);
        return true;
    }
    jsonw_key(w, "nmt_pairs");
    jsonw_arr(w);
    for (size_t i = 0; i < count; i++) {
        struct str tgt = items[i], src = str_cut(&tgt, ':');

        if (!src.len || !tgt.len)
            return false;
        jsonw_arr(w);
        jsonw_str(w, src);
        jsonw_str(w, tgt);
        jsonw_end_arr(w);
    }
    jsonw_end_arr(w);
    return true;
}

static bool put_labels(struct cli *cli, struct jsonw *w)
{
    struct str *items;
    size_t count = cli_list(cli, "label", &items);

    if (count == 0)
        return true;
    jsonw_key(w, "labels");
    jsonw_obj(w);
    for (size_t i = 0; i < count; i++) {
        struct str value = items[i], key = str_cut(&value, '=');

        if (!key.len || !value.at)
            return false;
        jsonw_key_str(w, key);
        jsonw_str(w, value);
    }
    jsonw_end_obj(w);
    return true;
}

/* The body from the flags; NULL, or what is wrong with them (then the body is left half written).
 */
static const char *put_registration(struct cli *cli, struct jsonw *w)
{
    const char *endpoint = cli_text(cli, "endpoint");

    assert(cli->arg_count == 1);
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", str_of(cli->args[0]));
    jsonw_kstr(w, "health", STR("ready"));
    jsonw_kint(w, "max_concurrent_jobs", cli_num(cli, "max", 1));
    put_list(cli, w, "semantic_langs", "semantic");
    put_list(cli, w, "tts_langs", "tts");
    put_list(cli, w, "allowed_types", "types");
    if (endpoint)
        jsonw_kstr(w, "endpoint", str_of(endpoint));
    if (!put_pairs(cli, w))
        return "--nmt takes pairs like en:zh,zh:en, or any";
    if (!put_labels(cli, w))
        return "--label takes KEY=VALUE";
    jsonw_end_obj(w);
    return NULL;
}

int cmd_node_register(struct cli *cli)
{
    struct buf body = {0};
    struct jsonw w = jsonw_to(&body);
    const char *wrong = put_registration(cli, &w);

    if (wrong) {
        buf_free(&body);
        return cli_misuse(cli, "%s", wrong);
    }
    return post(cli, "/v1/node/register", &body, "registered");
}

int cmd_node_admin(struct cli *cli)
{
    const char *path = arena_fmt(&cli->arena, "%s/%s", node_path(cli, ""), cli->command->verb).at;
    const char *reason = cli_text(cli, "reason");
    const char *word = arena_fmt(&cli->arena, "%sed", cli->command->verb).at;
    struct buf body = {0};
    struct jsonw w = jsonw_to(&body);

    jsonw_obj(&w);
    if (reason)
        jsonw_kstr(&w, "reason", str_of(reason));
    jsonw_end_obj(&w);
    return post(cli, path, &body, word);
}

int cmd_node_rm(struct cli *cli)
{
    struct buf body = {0};
    struct jsonw w = jsonw_to(&body);

    jsonw_obj(&w);
    jsonw_kstr(&w, "node_id", str_of(cli->args[0]));
    jsonw_end_obj(&w);
    return post(cli, "/v1/node/deregister", &body, "removed");
}

/* Any word but a slash may stand in each part: the server knows what there is. */
int cmd_node_rpc(struct cli *cli)
{
    struct str method = str_of(cli->args[1]), service = str_cut(&method, '/');
    struct str params = str_of(cli->arg_count > 2 ? cli->args[2] : "{}");
    struct ask ask = {.method = "POST", .body = params};
    const struct json *json;
    int code;

    if (!service.len || !method.len || memchr(method.at, '/', method.len))
        return cli_misuse(cli, "a method is SERVICE/METHOD, like NodeUnit/InspectResourceUsage");
    if (json_parse(params, &cli->arena, &json, NULL) || json_type(json) != JSON_OBJ)
        return cli_misuse(cli, "the parameters are a JSON object, not %s", cli->args[2]);
    ask.path =
        arena_fmt(&cli->arena, "/v1/nodes/%s/rpc/%s/%s", ask_escape(cli, str_of(cli->args[0])),
                  ask_escape(cli, service), ask_escape(cli, method))
            .at;
    code = ask_run(cli, &ask);
    if (code == CLI_OK)
        show_raw(cli, ask.reply);
    return code;
}
