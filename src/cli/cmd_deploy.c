/* `berth deploy ...`: processes that must always run somewhere. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/schema.h"
#include "cli/list.h"
#include "cli/request.h"
#include "model/deploy.h"

enum { FILE_BYTES_MAX = 16 * 1024 * 1024, READ_BYTES = 65536 };

/* The whole contents of a file, or of standard input for "-". */
static int read_text(struct cli *cli, const char *path, struct str *ret_text)
{
    bool own = strcmp(path, "-") != 0;
    FILE *file = own ? fopen(path, "re") : stdin;
    struct buf buf = {0};
    int code = CLI_OK;
    size_t got;

    if (!file)
        return cli_fail(cli, CLI_FAILED, "%s: %m", path);
    do {
        buf_reserve(&buf, READ_BYTES);
        got = fread(buf.at + buf.len, 1, READ_BYTES, file);
        buf.len += got;
    } while (got > 0 && buf.len <= FILE_BYTES_MAX);
    if (ferror(file))
        code = cli_fail(cli, CLI_FAILED, "%s: %m", path);
    else if (buf.len > FILE_BYTES_MAX)
        code = cli_fail(cli, CLI_FAILED, "%s: too large", path);
    *ret_text = arena_str(&cli->arena, buf_view(&buf));
    buf_free(&buf);
    if (own)
        fclose(file);
    return code;
}

static int apply_one(struct cli *cli, const struct json *spec)
{
    struct str id = show_member(cli, spec, "id");
    struct request request = {.method = "PUT", .body = json_raw(spec)};
    bool changed = false;
    int code;

    if (json_type(spec) != JSON_OBJ || !str_is_name(id, DEPLOY_ID_MAX))
        return cli_fail(cli, CLI_USAGE,
                        "a deployment needs an id: 1 to %d letters, digits or ._:@-",
                        DEPLOY_ID_MAX);
    request.path = arena_fmt(&cli->arena, "/v1/deployments/%s", request_escape(cli, id)).at;
    code = request_run(cli, &request);
    if (code != CLI_OK)
        return cli_fail(cli, code, "deployment " STR_FMT " was not applied", STR_ARG(id));
    json_bool(json_get(request.json, "changed"), &changed);
    if (cli->json)
        show_raw(cli, request.json);
    else
        fprintf(cli->out, STR_FMT " %s\n", STR_ARG(id),
                request.status == 201 ? "created"
                : changed             ? "changed"
                                      : "unchanged");
    return CLI_OK;
}

static int cmd_deploy_apply(struct cli *cli)
{
    const struct json *root, *list, *item;
    struct str text, json;
    struct problem why = {0};
    int code = read_text(cli, cli->args[0], &text);

    if (code != CLI_OK)
        return code;
    if (yaml_to_json(text, &cli->arena, &json, &why) || json_parse(json, &cli->arena, &root, &why))
        return cli_fail(cli, CLI_USAGE, "%s: %s", cli->args[0], why.detail);
    /* A file holds one deployment, a list of them, or a list under `deployments`. */
    list = json_get(root, "deployments");
    if (json_type(root) != JSON_OBJ || json_type(list) != JSON_ARR)
        list = root;
    if (json_type(list) != JSON_ARR)
        return apply_one(cli, list);
    for (item = json_items(list); item; item = json_after(list, item)) {
        int one = apply_one(cli, item);

        if (one != CLI_OK)
            code = one; /* the others are still applied */
    }
    return code;
}

/* For each node, why it runs no copy; with `all` also the nodes that run one. */
static void print_nodes(struct cli *cli, const struct json *nodes, bool all)
{
    const struct json *node;
    int width = 0;

    for (node = json_items(nodes); node; node = json_after(nodes, node)) {
        int len = (int)show_member(cli, node, "node_id").len;

        width = len > width ? len : width;
    }
    for (node = json_items(nodes); node; node = json_after(nodes, node))
        if (all || show_int(node, "copies", 0) == 0)
            fprintf(cli->out, "  %-*s  " STR_FMT "\n", width,
                    arena_cstr(&cli->arena, show_member(cli, node, "node_id")),
                    STR_ARG(show_member(cli, node, "reason")));
    if (nodes->count == 0)
        fprintf(cli->out, "  there are no nodes\n");
}

static int cmd_deploy_explain(struct cli *cli)
{
    const struct json *json;
    int code = request_list(cli, answer_path(cli, "/v1/deployments/{id}/explain"), "nodes", &json);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, json);
    else
        print_nodes(cli, json_get(json, "nodes"), true);
    return CLI_OK;
}

/* With several copies: how far an update is, and why it was rolled back. */
static void print_update(struct cli *cli, const struct json *deployment, const struct json *update)
{
    const struct json *copies = json_get(deployment, "copies"), *copy;
    bool back = json_str_is(json_get(update, "state"), "rolling_back");
    int64_t version =
        back ? show_int(update, "good_version", 0) : show_int(deployment, "version", 0);
    int64_t there = 0;

    for (copy = json_items(copies); copy; copy = json_after(copies, copy))
        there += show_int(copy, "version", 0) == version;
    fprintf(cli->out,
            "\nUpdate: " STR_FMT ", %" PRId64 " of %" PRIu32 " copies run version %" PRId64 ".",
            STR_ARG(show_member(cli, update, "state")), there, copies ? copies->count : 0, version);
    if (!json_is_null(json_get(update, "reason")))
        fprintf(cli->out, " " STR_FMT, STR_ARG(show_member(cli, update, "reason")));
    fprintf(cli->out, "\n");
}

/* If it does not run, or not completely: what prevents each node from running it. */
static void print_why(struct cli *cli, struct str selector)
{
    const struct json *json, *nodes, *node;
    uint32_t unmatched = 0;

    if (request_list(cli, answer_path(cli, "/v1/deployments/{id}/explain"), "nodes", &json) !=
        CLI_OK)
        return;
    nodes = json_get(json, "nodes");
    for (node = json_items(nodes); node; node = json_after(nodes, node))
        unmatched += json_str_is(json_get(node, "why"), "selector");
    if (unmatched > 0 && unmatched == nodes->count)
        fprintf(cli->out, "\nNo node matches " STR_FMT ".\n", STR_ARG(selector));
    else
        fprintf(cli->out, "\nNobody has claimed it, or not all of its copies:\n");
    print_nodes(cli, nodes, false);
}

static int cmd_deploy_show(struct cli *cli)
{
    const char *path = answer_path(cli, "/v1/deployments/{id}");
    const struct json *json, *failures, *failure, *copies, *copy;
    bool enabled = false, unclaimed;
    int64_t now_ms;
    int code = answer_show(cli, path, "id", NULL);

    if (code != CLI_OK || cli->output != CLI_TABLE || request_get(cli, path, &json) != CLI_OK)
        return code;
    if (!json_is_null(json_get(json, "update")))
        print_update(cli, json, json_get(json, "update"));
    now_ms = clock_wall_ms();
    failures = json_get(json, "failed_on");
    failure = json_items(failures);
    if (failure)
        fprintf(cli->out, "\nFailed on, so that other nodes come first:\n");
    for (; failure; failure = json_after(failures, failure))
        fprintf(cli->out, "  " STR_FMT "  " STR_FMT " ago, for " STR_FMT " more: " STR_FMT "\n",
                STR_ARG(show_member(cli, failure, "address")),
                STR_ARG(show_age(cli, failure, "at_ms", now_ms)),
                STR_ARG(show_until(cli, failure, "until_ms", now_ms)),
                STR_ARG(show_member(cli, failure, "reason")));
    unclaimed = json_str_is(json_get(json, "address"), "");
    copies = json_get(json, "copies");
    for (copy = json_items(copies); copy; copy = json_after(copies, copy))
        unclaimed |= json_str_is(json_get(copy, "state"), "unclaimed");
    json_bool(json_get(json, "enabled"), &enabled);
    if (enabled && json_str_is(json_get(json, "type"), "deployment") && unclaimed)
        print_why(cli, show_member(cli, json, "selector"));
    return CLI_OK;
}

/* enable, disable */
static int cmd_deploy_switch(struct cli *cli)
{
    bool on = strcmp(cli->command->verb, "enable") == 0;

    return answer_send(cli, "PATCH", answer_path(cli, "/v1/deployments/{id}"),
                       on ? STR("{\"enabled\":true}") : STR("{\"enabled\":false}"), "%s %sd",
                       cli->args[0], cli->command->verb);
}

static int cmd_deploy_scale(struct cli *cli)
{
    struct jsonw w;
    int64_t count;

    if (!str_int(str_of(cli->args[1]), &count) || count < 1 || count > DEPLOY_COUNT_MAX)
        return cli_fail(cli, CLI_USAGE,
                        "a deployment has 1 to %d copies (berth deploy disable stops it)",
                        DEPLOY_COUNT_MAX);
    w = body_begin(cli);
    jsonw_kint(&w, "count", count);
    return answer_send(cli, "POST", answer_path(cli, "/v1/deployments/{id}/scale"),
                       body_end(cli, &w), "%s has count %s", cli->args[0], cli->args[1]);
}

static int cmd_deploy_rollback(struct cli *cli)
{
    struct jsonw w = body_begin(cli);
    struct request request = {.method = "POST",
                              .path = answer_path(cli, "/v1/deployments/{id}/rollback")};
    int code;

    cli_put(cli, &w, "to_version", "to");
    request.body = body_end(cli, &w);
    code = request_run(cli, &request);
    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, request.json);
    else
        fprintf(cli->out, "%s goes back to version %" PRId64 "\n", cli->args[0],
                show_int(request.json, "version", 0));
    return CLI_OK;
}

static const struct list_column history_columns[] = {
    {.title = ">AGO", .member = "at_ms", .put = list_put_age},
    {.title = "WHAT", .member = "what"},
    {.title = "NODE", .member = "address"},
    {.title = ">GENERATION", .member = "generation"},
    {.title = ">VERSION", .member = "version"},
    {.title = "DETAIL", .member = "detail"},
};

static int cmd_deploy_release(struct cli *cli)
{
    struct jsonw w = body_begin(cli);
    struct request request = {.method = "POST", .path = "/v1/deployments/release"};
    const struct json *held, *item;
    int code;

    jsonw_kstr(&w, "address", str_of(cli->args[0]));
    request.body = body_end(cli, &w);
    code = request_run(cli, &request);
    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, request.json);
        return CLI_OK;
    }
    item = json_get(request.json, "released");
    fprintf(cli->out, "%" PRIu32 " released\n", item ? item->count : 0);
    held = json_get(request.json, "held");
    for (item = json_items(held); item; item = json_after(held, item))
        fprintf(cli->err,
                "berth: " STR_FMT " stays: the lease of its node lasts %" PRId64 " s more\n",
                STR_ARG(show_member(cli, item, "id")), show_int(item, "left_ms", 0) / 1000);
    return held && held->count > 0 ? CLI_CONFLICT : CLI_OK;
}

static int cmd_deploy_approve(struct cli *cli)
{
    struct jsonw w = body_begin(cli);

    cli_put(cli, &w, "for_ms", "for");
    return answer_send(cli, "POST", "/v1/deployments/approve", body_end(cli, &w),
                       "nodes may claim although others are gone");
}

static void put_state(struct list_view *view, const struct list_column *column,
                      const struct json *item)
{
    struct str state = show_member(view->cli, item, column->member);
    int64_t count = show_int(item, "count", 1), ready = show_int(item, "ready", 0);
    bool enabled = true;

    json_bool(json_get(item, "enabled"), &enabled);
    if (enabled && count > 1) {
        table_cell_colour(
            &view->table,
            arena_fmt(&view->cli->arena, "%" PRId64 " of %" PRId64 " ready", ready, count),
            ready == count ? TABLE_GREEN : TABLE_YELLOW);
        return;
    }
    if (!enabled)
        table_cell_colour(&view->table, STR("disabled"), TABLE_DIM);
    else
        table_cell_colour(&view->table, state,
                          str_is(state, "running") || str_is(state, "finished") ? TABLE_GREEN
                          : str_is(state, "crash_loop") || str_is(state, "failed") ||
                                  str_is(state, "refused")
                              ? TABLE_RED
                              : TABLE_YELLOW);
}

/* The running version, and the wanted one if that differs. */
static void put_version(struct list_view *view, const struct list_column *column,
                        const struct json *item)
{
    int64_t wanted = show_int(item, column->member, 0);
    int64_t there = show_int(item, "copy_version", wanted);

    table_cell(&view->table, there == wanted ? arena_fmt(&view->cli->arena, "%" PRId64, wanted)
                                             : arena_fmt(&view->cli->arena,
                                                         "%" PRId64 " -> %" PRId64, there, wanted));
}

/* For several copies `berth deploy show` lists the nodes. */
static void put_node(struct list_view *view, const struct list_column *column,
                     const struct json *item)
{
    int64_t count = show_int(item, "count", 1);

    table_cell(&view->table, count > 1 ? arena_fmt(&view->cli->arena, "%" PRId64 " copies", count)
                                       : show_member(view->cli, item, column->member));
}

static const struct list_column columns[] = {
    {.title = "ID", .member = "id"},
    {.title = "TYPE", .member = "type"},
    {.title = "STATE", .member = "state", .put = put_state},
    {.title = "NODE", .member = "address", .put = put_node},
    {.title = ">GENERATION", .member = "generation"},
    {.title = ">VERSION", .member = "version", .put = put_version},
    {.title = "COMMAND", .member = "command"},
    {.title = "PACKAGE", .member = "package_name", .wide = true},
    {.title = "PACKAGE VERSION", .member = "package_version", .wide = true},
    {.title = "SELECTOR", .member = "selector", .wide = true},
    {.title = "UPDATED", .member = "updated_at", .wide = true},
};

static const struct flag ls_flags[] = {
    FLAG("node", 0, TEXT, "ID", "only on this node", .param = "address"),
    FLAG("type", 0, TEXT, "TYPE", "deployment or daemon", .param = "type"),
    FLAG("package", 0, TEXT, "NAME", "only of this package", .param = "package_name"),
    FLAG("enabled", 0, TEXT, "BOOL", "true or false", .param = "enabled"),
};
static const struct flag rollback_flags[] = {
    FLAG("to", 0, INT, "VERSION", "to this one"),
};
static const struct flag approve_flags[] = {
    FLAG("for", 0, MS, "DURATION", "how long (default 10m)"),
};

static const struct command rows[] = {
    VERB("deploy", "apply", "FILE", .help = "create or change deployments, as a file says",
         .detail =
             "YAML or JSON: one deployment, a list of them, or a list under `deployments`; - is\n"
             "standard input. What is the same already is left alone.",
         .examples = "berth deploy apply examples/app.yaml\n"
                     "berth deploy apply - < examples/app.yaml",
         .run = cmd_deploy_apply),
    VERB("deploy", "ls", NULL, .flags = FLAGS(ls_flags),
         .list = LISTING("/v1/deployments", "deployments", "id", columns),
         .help = "all deployments, and where they run",
         .detail =
             "VERSION is the one that runs; \"1 -> 2\" when it is not yet the one that is wanted.",
         .examples = "berth deploy ls\n"
                     "berth deploy ls --node n1 -o wide"),
    VERB("deploy", "show", "ID", .help = "one deployment and its copies",
         .examples = "berth deploy show web\n"
                     "berth deploy show web -o json",
         .run = cmd_deploy_show),
    VERB(
        "deploy", "explain", "ID", .help = "why nodes have it, or do not",
        .detail =
            "A line for each node: what keeps it from claiming a copy, with figures. Nobody takes\n"
            "what fits nowhere.",
        .examples = "berth deploy explain web", .run = cmd_deploy_explain),
    VERB("deploy", "restart", "ID", .help = "restart it", .examples = "berth deploy restart web",
         .call = CALL("POST", "/v1/deployments/{id}/restart", "restarts")),
    VERB("deploy", "disable", "ID", .help = "stop it, but keep it",
         .examples = "berth deploy disable web", .run = cmd_deploy_switch),
    VERB("deploy", "enable", "ID", .help = "let it run again",
         .examples = "berth deploy enable web", .run = cmd_deploy_switch),
    VERB("deploy", "scale", "ID COUNT", .help = "as many copies of it",
         .detail =
             "Copies are spread over the nodes, and each has an index from 0 to COUNT - 1 that\n"
             "never exists twice. Those that are there go on; the highest indices go first.",
         .examples = "berth deploy scale web 3", .run = cmd_deploy_scale),
    VERB("deploy", "rollback", "ID", .flags = FLAGS(rollback_flags),
         .help = "back to a version of before",
         .detail =
             "Without --to it is the last version that was another spec. Several copies follow as\n"
             "with any update. `berth deploy history` lists the versions; the last 50 are kept.",
         .examples = "berth deploy rollback web\n"
                     "berth deploy rollback web --to 1",
         .run = cmd_deploy_rollback),
    VERB("deploy", "delete", "ID", .help = "stop it and forget it",
         .examples = "berth deploy delete web",
         .call = CALL("DELETE", "/v1/deployments/{id}", "deleted")),
    VERB("deploy", "history", "ID",
         .list = LISTING("/v1/deployments/{id}/history", "history", "seq", history_columns),
         .help = "what happened to it, newest first", .examples = "berth deploy history web"),
    VERB("deploy", "release", "NODE",
         .help = "take all deployments from a node that will not come back",
         .detail =
             "Only once its lease has run out: before, its copies may still run. A node that is\n"
             "there is drained instead (berth node drain). Exit 4 if some had to stay.",
         .examples = "berth deploy release n1", .run = cmd_deploy_release),
    VERB("deploy", "approve", NULL, .flags = FLAGS(approve_flags),
         .help = "let nodes claim although more than half of them are gone",
         .examples = "berth deploy approve --for 10m", .run = cmd_deploy_approve),
};

const struct command_set commands_deploy = COMMANDS(rows);
