/* `berth audit`: who did what. */
#include "cli/list.h"
#include "cli/request.h"

static void put_result(struct list_view *view, const struct list_column *column,
                       const struct json *entry)
{
    struct str result = show_member(view->cli, entry, column->member);

    table_cell_colour(&view->table, result, str_is(result, "ok") ? TABLE_GREEN : TABLE_RED);
}

static const struct list_column audit_columns[] = {
    {.title = ">AGO", .member = "at_ms", .put = list_put_age},
    {.title = "WHO", .member = "who"},
    {.title = "ACTION", .member = "action"},
    {.title = "TARGET", .member = "target"},
    {.title = "RESULT", .member = "result", .put = put_result},
    {.title = ">CALLS", .member = "count"},
    {.title = ">STATUS", .member = "status", .wide = true},
    {.title = "KIND", .member = "kind", .wide = true},
    {.title = "PEER", .member = "peer", .wide = true},
    {.title = "REQUEST", .member = "request_id", .wide = true},
    {.title = "BODY SHA256", .member = "body_sha256", .wide = true},
};

static const struct flag audit_flags[] = {
    FLAG("who", 0, TEXT, "NAME", "only with this token", .param = "who"),
    FLAG("action", 0, TEXT, "ACTION", "only this, like nodes.drain", .param = "action"),
    FLAG("target", 0, TEXT, "ID", "only about this", .param = "target"),
    FLAG("kind", 0, TEXT, "KIND", "only change (it did something, or may have) or refused",
         .param = "kind"),
};

static int cmd_audit_verify(struct cli *cli)
{
    const struct json *json, *chain;
    int code = request_get(cli, "/v1/audit?verify=1&limit=1", &json);

    if (code != CLI_OK)
        return code;
    chain = json_get(json, "chain");
    if (json_is_null(chain))
        return cli_fail(cli, CLI_FAILED, "the server's audit is not signed: its log says why");
    if (cli->json)
        show_json(cli, json_raw(chain), cli->output == CLI_JSONL, cli->out);
    if (!json_is_null(json_get(chain, "broken_id")))
        return cli_fail(cli, CLI_FAILED, "entry " STR_FMT " does not fit: " STR_FMT,
                        STR_ARG(show_member(cli, chain, "broken_id")),
                        STR_ARG(show_member(cli, chain, "broken_reason")));
    if (cli->output == CLI_NAME)
        show_name(cli, show_member(cli, chain, "newest_mac"), cli->out);
    else if (!cli->json)
        fprintf(cli->out,
                STR_FMT " changes fit together; the newest is entry " STR_FMT ", MAC " STR_FMT "\n",
                STR_ARG(show_member(cli, chain, "entries")),
                STR_ARG(show_member(cli, chain, "newest_id")),
                STR_ARG(show_member(cli, chain, "newest_mac")));
    return CLI_OK;
}

static const struct command rows[] = {
    VERB("audit", "verify", NULL, .help = "was a change altered in the audit, or taken out of it?",
         .detail =
             "Every change in audit.jsonl is signed together with the one before. Exit 1 and the\n"
             "first that does not fit, if there is one. Keep the newest MAC somewhere else: a\n"
             "later check of all files together cannot tell that an older copy was put back.",
         .examples = "berth audit verify\n"
                     "berth audit verify -o json | jq .newest_mac",
         .run = cmd_audit_verify),
    {.noun = "audit",
     .flags = FLAGS(audit_flags),
     .list = LISTING("/v1/audit", "audit", "id", audit_columns, .limit = 50),
     .help = "who did what: every change an operator asked for, newest first",
     .detail = "Allowed or refused, and wrong tokens. Of a caller that is refused often one line\n"
               "says how many more there were (CALLS). The server keeps the newest 4096 of each\n"
               "kind here, and more in audit.jsonl and audit-refused.jsonl in its data directory\n"
               "and in its log (event=audit).",
     .examples = "berth audit\n"
                 "berth audit --action nodes.drain --target node-1\n"
                 "berth audit --kind change\n"
                 "berth audit --who ops --limit 10 -o wide"},
};

const struct command_set commands_audit = COMMANDS(rows);
