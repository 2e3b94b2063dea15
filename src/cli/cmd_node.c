/* `berth node ...`. A drained node gets no new work; its deployments move one by one, its jobs end:
 * `drain` prints what is left, and why. */
#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "cli/list.h"
#include "cli/request.h"

/* --- nodes --- */

/* Jobs that run on it or are reserved for it. */
static void put_load(struct list_view *view, const struct list_column *column,
                     const struct json *node)
{
    table_int(&view->table, show_int(node, "running", 0) + show_int(node, "reserved", 0));
}

static int cmd_node_wait(struct cli *cli)
{
    const char *goal = cli_text(cli, "for");

    return wait_node(cli, answer_path(cli, "/v1/nodes/{id}"), goal ? goal : "ready",
                     cli_num(cli, "timeout", WAIT_FOREVER));
}

static void put_list(struct cli *cli, struct jsonw *w, const char *key, const char *flag)
{
    struct str *items;
    size_t count = cli_list(cli, flag, &items);

    if (!cli_given(cli, flag))
        return;
    jsonw_karr(w, key);
    for (size_t i = 0; i < count; i++)
        jsonw_str(w, items[i]);
    jsonw_end_arr(w);
}

/* "en:zh,zh:en" -> [["en","zh"],["zh","en"]], "any" -> "any". False: an item is not a pair. */
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
    jsonw_karr(w, "nmt_pairs");
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
    jsonw_kobj(w, "labels");
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

static int cmd_node_register(struct cli *cli)
{
    struct jsonw w = body_begin(cli);
    const char *wrong = NULL;

    assert(cli->arg_count == 1);
    jsonw_kstr(&w, "node_id", str_of(cli->args[0]));
    jsonw_kstr(&w, "health", STR("ready"));
    jsonw_kint(&w, "max_concurrent_jobs", cli_num(cli, "max", 1));
    put_list(cli, &w, "semantic_langs", "semantic");
    put_list(cli, &w, "tts_langs", "tts");
    put_list(cli, &w, "allowed_types", "types");
    cli_put(cli, &w, "endpoint", "endpoint");
    if (!put_pairs(cli, &w))
        wrong = "--nmt takes pairs like en:zh,zh:en, or any";
    else if (!put_labels(cli, &w))
        wrong = "--label takes KEY=VALUE";
    if (wrong) {
        buf_free(w.buf);
        return cli_misuse(cli, "%s", wrong);
    }
    return answer_send(cli, "POST", "/v1/node/register", body_end(cli, &w), "%s registered",
                       cli->args[0]);
}

/* undrain, cordon: the verb is the route. */
static int cmd_node_admin(struct cli *cli)
{
    const char *path = arena_fmt(&cli->arena, "/v1/nodes/{id}/%s", cli->command->verb).at;
    struct jsonw w = body_begin(cli);

    cli_put(cli, &w, "reason", "reason");
    return answer_send(cli, "POST", answer_path(cli, path), body_end(cli, &w), "%s %sed",
                       cli->args[0], cli->command->verb);
}

static int cmd_node_rm(struct cli *cli)
{
    struct jsonw w = body_begin(cli);

    jsonw_kstr(&w, "node_id", str_of(cli->args[0]));
    return answer_send(cli, "POST", "/v1/node/deregister", body_end(cli, &w), "%s removed",
                       cli->args[0]);
}

/* Either part may contain anything but a slash: the server knows the services. */
static int cmd_node_rpc(struct cli *cli)
{
    struct str method = str_of(cli->args[1]), service = str_cut(&method, '/');
    struct str params = str_of(cli->arg_count > 2 ? cli->args[2] : "{}");
    struct request request = {.method = "POST", .body = params};
    const struct json *json;
    int code;

    if (!service.len || !method.len || memchr(method.at, '/', method.len))
        return cli_misuse(cli, "a method is SERVICE/METHOD, like NodeUnit/InspectResourceUsage");
    if (json_parse(params, &cli->arena, &json, NULL) || json_type(json) != JSON_OBJ)
        return cli_misuse(cli, "the parameters are a JSON object, not %s", cli->args[2]);
    request.path =
        arena_fmt(&cli->arena, "/v1/nodes/%s/rpc/%s/%s", request_escape(cli, str_of(cli->args[0])),
                  request_escape(cli, service), request_escape(cli, method))
            .at;
    code = request_run(cli, &request);
    if (code == CLI_OK)
        show_raw(cli, request.json);
    return code;
}

/* Why it takes no work: the reason of the operator who took it out of service, or else what the
 * server sees. */
static void put_reason(struct list_view *view, const struct list_column *column,
                       const struct json *node)
{
    struct str said = show_member(view->cli, node, "admin_reason");

    table_cell(&view->table,
               said.len ? said : show_member(view->cli, json_get(node, column->member), "reason"));
}

static const struct list_column node_columns[] = {
    {.title = "NODE ID", .member = "node_id"},
    {.title = "HEALTH", .member = "health", .put = list_put_colour},
    {.title = ">LOAD", .put = put_load},
    {.title = ">MAX", .member = "max"},
    {.title = ">SCORE", .member = "health_score"},
    {.title = ">SEEN", .member = "last_heartbeat_ms", .put = list_put_age},
    {.title = "LEVEL", .member = "level"},
    {.title = "SEMANTIC", .member = "semantic_langs"},
    {.title = "NMT", .member = "nmt_pairs"},
    {.title = "TYPES", .member = "allowed_types"},
    {.title = "TTS", .member = "tts_langs", .wide = true},
    {.title = "LABELS", .member = "labels", .wide = true},
    {.title = "ROLE", .member = "role", .wide = true},
    {.title = "AGENT", .member = "agent_version", .wide = true},
    {.title = "LOADED", .member = "loaded", .wide = true},
    {.title = "REASON", .member = "why_not", .put = put_reason, .wide = true},
};

static const struct flag node_ls_flags[] = {
    FLAG("selector", 'l', TERMS, "SELECTOR",
         "only what it matches: zone=eu, 'zone in (eu,us), !spot' (several: all of them)",
         .param = "selector"),
    FLAG("health", 0, TEXT, "HEALTH", "only ready, offline, ...", .param = "health",
         .values = "ready degraded draining offline"),
};

static const struct flag wait_flags[] = {
    FLAG("for", 0, TEXT, "WHAT",
         "ready (default), drained (nothing runs on it any more), offline or gone",
         .values = "ready drained offline gone"),
    FLAG("timeout", 0, MS, "DURATION", "give up after this long, exit 6 (default: never)"),
};

static const struct flag register_flags[] = {
    FLAG("semantic", 0, LIST, "LANG,...", "languages it understands"),
    FLAG("nmt", 0, LIST, "SRC:TGT,...|any", "pairs it translates, or any"),
    FLAG("tts", 0, LIST, "LANG,...", "languages it speaks"),
    FLAG("max", 0, INT, "N", "jobs at a time (default 1)", .min = 0, .max = INT32_MAX),
    FLAG("types", 0, LIST, "TYPE,...|*", "types of tasks it takes"),
    FLAG("endpoint", 0, TEXT, "URL", "where jobs are pushed to; without it the node polls"),
    FLAG("label", 0, LIST, "KEY=VALUE", "a label (several allowed)"),
};

static const struct flag reason_flags[] = {
    FLAG("reason", 0, TEXT, "TEXT", "shown with the node"),
};

/* --- drain --- */

enum { LOOK_MS = 500 };

struct rest {
    const struct json *deployments, *jobs; /* NULL: could not be fetched */
};

static const struct json *list_at(struct cli *cli, const char *path, const char *name)
{
    struct request request = {.method = "GET", .path = path};
    struct str said;

    return request_quietly(cli, &request, &said) == CLI_OK ? json_get(request.json, name) : NULL;
}

static struct rest look(struct cli *cli)
{
    const char *id = request_escape(cli, str_of(cli->args[0]));

    return (struct rest){
        .deployments = list_at(
            cli,
            arena_fmt(&cli->arena, "/v1/deployments?enabled=true&address=%s&limit=1000", id).at,
            "deployments"),
        .jobs = list_at(
            cli,
            arena_fmt(&cli->arena, "/v1/jobs?state=DISPATCHED,ACKED&node_id=%s&limit=1000", id).at,
            "jobs")};
}

static uint32_t count_of(const struct json *list)
{
    return json_type(list) == JSON_ARR ? list->count : 0;
}

/* Why it is still there: a deployment waits for its turn or for a node to move to, a job runs until
 * it ends. */
static void print_rest(struct cli *cli, const struct rest *rest)
{
    const struct json *first = json_items(rest->deployments), *item;

    for (item = first; item; item = json_after(rest->deployments, item))
        fprintf(cli->out, "  deployment " STR_FMT "  %s\n", STR_ARG(show_member(cli, item, "id")),
                item == first ? "is being moved: stopped here, then claimed elsewhere"
                              : "waits for its turn: they move one by one");
    for (item = json_items(rest->jobs); item; item = json_after(rest->jobs, item))
        fprintf(cli->out, "  job " STR_FMT "  " STR_FMT ": runs to its end\n",
                STR_ARG(show_member(cli, item, "job_id")),
                STR_ARG(show_member(cli, item, "state")));
}

static int wait_empty(struct cli *cli, int64_t timeout_ms)
{
    int64_t end_ms = timeout_ms < 0 ? INT64_MAX : clock_mono_ms() + timeout_ms;

    for (;;) {
        struct rest rest = look(cli);

        if (rest.jobs && count_of(rest.deployments) + count_of(rest.jobs) == 0) {
            fprintf(cli->out, "%s is empty\n", cli->args[0]);
            return CLI_OK;
        }
        if (clock_mono_ms() >= end_ms) {
            print_rest(cli, &rest);
            fprintf(cli->err, "berth: %s is not empty yet\n", cli->args[0]);
            return CLI_TIMEOUT;
        }
        poll(NULL, 0, LOOK_MS);
    }
}

static int cmd_node_drain(struct cli *cli)
{
    struct jsonw w = body_begin(cli);
    struct rest rest;
    uint32_t left;
    int code;

    assert(cli->arg_count == 1);
    cli_put(cli, &w, "reason", "reason");
    cli_put(cli, &w, "deadline_ms", "deadline");
    code = answer_send(cli, "POST", answer_path(cli, "/v1/nodes/{id}/drain"), body_end(cli, &w),
                       "%s drained", cli->args[0]);
    if (code != CLI_OK || cli->json)
        return code;
    if (cli_given(cli, "wait"))
        return wait_empty(cli, cli_num(cli, "timeout", -1));
    rest = look(cli);
    left = count_of(rest.deployments) + count_of(rest.jobs);
    fprintf(cli->out, left ? "still there: %" PRIu32 "\n" : "nothing is left on it\n", left);
    print_rest(cli, &rest);
    return CLI_OK;
}

static const struct flag drain_flags[] = {
    FLAG("reason", 0, TEXT, "TEXT", "shown with the node"),
    FLAG("deadline", 0, MS, "DURATION", "after this its deployments move all at once"),
    FLAG("wait", 0, SWITCH, NULL, "until nothing is left on it"),
    FLAG("timeout", 0, MS, "DURATION", "wait no longer than this, exit 6 (default: for ever)"),
};

static const struct command rows[] = {
    VERB("node", "ls", NULL, .flags = FLAGS(node_ls_flags),
         .list = LISTING("/v1/nodes", "nodes", "node_id", node_columns), .help = "all nodes",
         .examples = "berth node ls\n"
                     "berth node ls --selector zone=eu -o wide\n"
                     "berth node ls -l 'zone in (eu,us), cores >= 8, !spot'\n"
                     "berth node ls --health ready -o name\n"
                     "berth node ls -o json | jq -r '.nodes[].node_id'"),
    VERB("node", "show", "ID", .help = "one node, everything known of it",
         .examples = "berth node show node-1", .call = SHOW("/v1/nodes/{id}", "node_id")),
    VERB("node", "register", "ID", .flags = FLAGS(register_flags), .help = "make a node known",
         .detail = "For trying things out: a real node registers itself.",
         .examples =
             "berth node register node-1 --semantic en,zh --nmt en:zh,zh:en --tts en,zh --max 2\n"
             "berth node register worker-1 --types '*' --label zone=eu",
         .run = cmd_node_register),
    VERB("node", "undrain", "ID", .flags = FLAGS(reason_flags),
         .help = "take a drain or cordon back", .examples = "berth node undrain node-1",
         .run = cmd_node_admin),
    VERB("node", "cordon", "ID", .flags = FLAGS(reason_flags), .help = "no new work, for now",
         .examples = "berth node cordon node-1 --reason 'odd results'", .run = cmd_node_admin),
    VERB("node", "wait", "ID", .flags = FLAGS(wait_flags),
         .help = "until a node is ready, drained, offline or gone",
         .examples = "berth node wait node-1 --timeout 30s\n"
                     "berth node wait node-1 --for drained --timeout 10m",
         .run = cmd_node_wait),
    VERB("node", "rm", "ID", .help = "forget a node", .examples = "berth node rm node-1",
         .run = cmd_node_rm),
    VERB("node", "rpc", "NODE SERVICE/METHOD [JSON]", .help = "ask a connected node something",
         .detail = "Prints the answer as it came.",
         .examples =
             "berth node rpc us NodeUnit/InspectResourceUsage\n"
             "berth node rpc us Job/Logs '{\"job_id\":\"j0abcdefghijkl\",\"attempt_id\":1}'",
         .run = cmd_node_rpc),
    VERB("node", "drain", "ID", .flags = FLAGS(drain_flags),
         .help = "no new work; deployments move one by one, jobs end",
         .detail =
             "Durable: it holds over restarts of node and server, until `berth node undrain`.",
         .examples = "berth node drain node-1 --reason 'new kernel' --deadline 10m --wait",
         .run = cmd_node_drain),
};

const struct command_set commands_node = COMMANDS(rows);
