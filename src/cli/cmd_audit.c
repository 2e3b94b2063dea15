/* `berth audit`: who did what. */
#include "cli/list.h"

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
    {.title = ">STATUS", .member = "status", .wide = true},
    {.title = "PEER", .member = "peer", .wide = true},
    {.title = "REQUEST", .member = "request_id", .wide = true},
};

static const struct list_filter audit_filters[] = {
    {"who", "who"}, {"action", "action"}, {"target", "target"}};

static const struct listing audit_list = {.path = "/v1/audit",
                                          .name = "audit",
                                          .id = "id",
                                          .limit = 50,
                                          .columns = audit_columns,
                                          .column_count = COUNT_OF(audit_columns),
                                          .filters = audit_filters,
                                          .filter_count = COUNT_OF(audit_filters)};

static const struct flag audit_flags[] = {
    {.name = "who", .type = FLAG_TEXT, .value = "NAME", .help = "only with this token"},
    {.name = "action", .type = FLAG_TEXT, .value = "ACTION", .help = "only this, like nodes.drain"},
    {.name = "target", .type = FLAG_TEXT, .value = "ID", .help = "only about this"},
};

static const struct command rows[] = {
    {.noun = "audit",
     .kind = COMMAND_API,
     .flags = FLAGS(audit_flags),
     .list = &audit_list,
     .help = "who did what: every change an operator asked for, newest first",
     .detail = "Allowed or refused. The server keeps the newest 4096 here, and all of them in\n"
               "audit.jsonl in its data directory and in its log (event=audit).",
     .examples = "berth audit\n"
                 "berth audit --action nodes.drain --target node-1\n"
                 "berth audit --who ops --limit 10 -o wide"},
};

const struct command_set commands_audit = COMMANDS(rows);
