/* `berth report`: statistics of recent work by server and type; and its resource usage by key, type
 * or node. */
#include <ctype.h>

#include "cli/list.h"
#include "cli/request.h"

enum { SINCE_MAX_MS = 7 * 24 * 3600 * 1000 };

static const struct flag report_flags[] = {
    FLAG("since", 0, MS, "DURATION", "how far back, at most 7d (default 24h); whole hours count",
         .min = 1000, .max = SINCE_MAX_MS),
    FLAG("node", 0, TEXT, "ID", "only this server"),
    FLAG("type", 0, TEXT, "TYPE", "only this type of work"),
    FLAG("by", 0, TEXT, "key|type|node",
         "what was used, by this: slots, cores, GB, GPUs x seconds"),
    FLAG("day", 0, TEXT, "DATE", "with --by: the 24 hours of this day by UTC, like 2026-11-18"),
    FLAG("csv", 0, SWITCH, NULL, "what was used as a table for a spreadsheet (default: by node)"),
};

/* 0.9731 as "97.3%"; "" for null. */
static struct str percent(struct cli *cli, const struct json *obj, const char *name)
{
    double share;

    if (!json_double(json_get(obj, name), &share))
        return STR("");
    return arena_fmt(&cli->arena, "%.1f%%", share * 100);
}

/* {"p50":3,"p95":1200} as "3ms 1.2s" */
static struct str times(struct cli *cli, const struct json *obj, const char *name)
{
    static const char *const members[] = {"p50", "p95"};
    const struct json *pair = json_get(obj, name);
    struct str texts[2];

    for (int i = 0; i < 2; i++) {
        int64_t ms = show_int(pair, members[i], -1);

        if (ms < 0)
            return STR("");
        texts[i] = ms < 1000    ? arena_fmt(&cli->arena, "%lldms", (long long)ms)
                   : ms < 60000 ? arena_fmt(&cli->arena, "%.1fs", (double)ms / 1000)
                                : arena_fmt(&cli->arena, "%.1fm", (double)ms / 60000);
    }
    return arena_fmt(&cli->arena, STR_FMT " " STR_FMT, STR_ARG(texts[0]), STR_ARG(texts[1]));
}

static void put_row(struct cli *cli, struct table *table, struct str name, const struct json *row)
{
    table_cell(table, name);
    table_cell(table, show_member(cli, row, "jobs"));
    table_cell(table, percent(cli, row, "success_rate"));
    table_cell(table, show_member(cli, row, "attempts"));
    table_cell(table, show_member(cli, row, "retried"));
    table_cell(table, times(cli, row, "wait_ms"));
    table_cell(table, times(cli, row, "run_ms"));
    table_cell(table, percent(cli, row, "slot_use"));
}

/* One server, its types below it, and a total at the end: this fits a terminal of 80 columns. */
static void show_work(struct cli *cli, const struct json *json)
{
    static const char *const titles[] = {"SERVER",   ">JOBS",         ">OK",          ">ATTEMPTS",
                                         ">RETRIED", ">WAIT p50 p95", ">RUN p50 p95", ">SLOTS"};
    const struct json *servers = json_get(json, "servers"), *server, *types, *type;
    struct table table;

    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (server = json_items(servers); server; server = json_after(servers, server)) {
        put_row(cli, &table, show_member(cli, server, "node_id"), server);
        types = json_get(server, "types");
        for (type = json_items(types); type; type = json_after(types, type)) {
            struct str name = show_member(cli, type, "type");

            put_row(cli, &table, arena_fmt(&cli->arena, "  " STR_FMT, STR_ARG(name)), type);
        }
    }
    put_row(cli, &table, STR("all"), json_get(json, "total"));
    table_print(&table, cli->out, cli->colour);
}

/* One row per type that a server had failures with. */
static void show_trouble(struct cli *cli, const struct json *json)
{
    static const char *const titles[] = {"SERVER", "TYPE",      ">FAILOVERS",
                                         ">KILLS", ">BREAKERS", "REFUSALS"};
    static const char *const counts[] = {"failovers", "kills", "breaker_opened"};
    const struct json *servers = json_get(json, "servers"), *server, *types, *type;
    struct table table;

    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (server = json_items(servers); server; server = json_after(servers, server)) {
        types = json_get(server, "types");
        for (type = json_items(types); type; type = json_after(types, type)) {
            const struct json *refusals = json_get(type, "refusals");
            int64_t sum = json_keys(refusals) != NULL;

            for (size_t i = 0; i < COUNT_OF(counts); i++)
                sum += show_int(type, counts[i], 0);
            if (sum == 0)
                continue;
            table_cell(&table, show_member(cli, server, "node_id"));
            table_cell(&table, show_member(cli, type, "type"));
            for (size_t i = 0; i < COUNT_OF(counts); i++)
                table_cell(&table, show_member(cli, type, counts[i]));
            table_cell(&table, show_counts(cli, refusals));
        }
    }
    if (table.rows == 0)
        return;
    fprintf(cli->out, "\nTrouble\n");
    table_print(&table, cli->out, cli->colour);
}

static void show_levels(struct cli *cli, const struct json *json)
{
    static const char *const names[] = {"normal",   "warning",    "danger",
                                        "critical", "unmeasured", "offline"};
    static const char *const titles[] = {"SERVER",    ">normal",     ">warning", ">danger",
                                         ">critical", ">unmeasured", ">offline"};
    const struct json *servers = json_get(json, "servers"), *server;
    struct table table;

    _Static_assert(COUNT_OF(titles) == COUNT_OF(names) + 1, "a column for each");
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (server = json_items(servers); server; server = json_after(servers, server)) {
        const struct json *minutes = json_get(server, "level_minutes");

        table_cell(&table, show_member(cli, server, "node_id"));
        for (size_t k = 0; k < COUNT_OF(names); k++)
            table_cell(&table, show_member(cli, minutes, names[k]));
    }
    fprintf(cli->out, "\nMinutes at each level\n");
    table_print(&table, cli->out, cli->colour);
}

static void show_refused(struct cli *cli, const struct json *json)
{
    static const char *const titles[] = {"TYPE", "REASON", ">COUNT"};
    const struct json *list = json_get(json, "refused"), *row = json_items(list);
    struct table table;

    if (!row)
        return;
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (; row; row = json_after(list, row)) {
        table_cell(&table, show_member(cli, row, "type"));
        table_cell(&table, show_member(cli, row, "reason"));
        table_cell(&table, show_member(cli, row, "count"));
    }
    fprintf(cli->out, "\nRequests that were refused\n");
    table_print(&table, cli->out, cli->colour);
}

static void put_usage(struct cli *cli, struct table *table, struct str name, const struct json *row)
{
    static const char *const amounts[] = {"run_seconds", "slot_seconds", "core_seconds",
                                          "gb_seconds",  "gpu_seconds",  "vram_gb_seconds"};
    const struct json *others = json_get(row, "other_seconds"), *other;
    struct buf text = {0}; /* "licences 12.0, seats 3.0" */

    table_cell(table, name);
    table_cell(table, show_member(cli, row, "runs"));
    for (size_t i = 0; i < COUNT_OF(amounts); i++) {
        double amount = 0;

        json_double(json_get(row, amounts[i]), &amount);
        table_cell(table, arena_fmt(&cli->arena, "%.1f", amount));
    }
    for (other = json_keys(others); other; other = json_after(others, other)) {
        double amount = 0;

        json_double(other + 1, &amount);
        buf_fmt(&text, "%s" STR_FMT " %.1f", text.len ? ", " : "", STR_ARG(show_text(cli, other)),
                amount);
    }
    table_cell(table, buf_view(&text)); /* the cell has its own copy */
    buf_free(&text);
}

static void show_usage(struct cli *cli, const struct json *json)
{
    const struct json *list = json_get(json, "rows"), *row;
    struct str by = show_member(cli, json, "by");
    char title[16] = "";
    const char *titles[] = {title,   ">RUNS",  ">RUN s",     ">SLOT s", ">CORE s",
                            ">GB s", ">GPU s", ">VRAM GB s", "OTHER s"};
    struct table table;

    for (size_t i = 0; i < by.len && i + 1 < sizeof title; i++)
        title[i] = (char)toupper((unsigned char)by.at[i]);
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (row = json_items(list); row; row = json_after(list, row)) {
        bool keyless = json_is_null(json_get(row, "name"));

        put_usage(cli, &table, keyless ? STR("(no key)") : show_member(cli, row, "name"), row);
    }
    put_usage(cli, &table, STR("all"), json_get(json, "total"));
    table_print(&table, cli->out, cli->colour);
    fprintf(cli->out, "\nThis is " STR_FMT ".\n", STR_ARG(show_member(cli, json, "scope")));
}

static int report_usage(struct cli *cli)
{
    static const char *const params[][2] = {
        {"by", "by"}, {"day", "day"}, {"node", "node_id"}, {"type", "type"}};
    struct request request = {.method = "GET", .text = cli_given(cli, "csv")};
    struct buf path = {0};
    char next = '?';

    buf_fmt(&path, "/v1/report/usage%s", request.text ? ".csv" : "");
    for (size_t i = 0; i < COUNT_OF(params); i++) {
        const char *value = cli_text(cli, params[i][0]);

        if (value)
            buf_fmt(&path, "%c%s=%s", next, params[i][1], request_escape(cli, str_of(value)));
        next = value ? '&' : next;
    }
    if (cli_given(cli, "since"))
        buf_fmt(&path, "%csince=%lldms", next, (long long)cli_num(cli, "since", 0));
    request.path = arena_cstr(&cli->arena, buf_view(&path));
    buf_free(&path);
    int code = request_run(cli, &request);

    if (code != CLI_OK)
        return code;
    if (request.text) {
        fwrite(request.reply.at, 1, request.reply.len, cli->out);
    } else if (cli->json) {
        show_raw(cli, request.json);
    } else if (cli->output == CLI_NAME) {
        const struct json *list = json_get(request.json, "rows"), *row;

        for (row = json_items(list); row; row = json_after(list, row))
            if (!json_is_null(json_get(row, "name")))
                show_name(cli, show_member(cli, row, "name"), cli->out);
    } else {
        show_usage(cli, request.json);
    }
    return CLI_OK;
}

static int cmd_report(struct cli *cli)
{
    const struct json *json;
    const char *node = cli_text(cli, "node"), *type = cli_text(cli, "type");
    int64_t since_ms = cli_num(cli, "since", 24 * 3600 * 1000);

    if (cli_given(cli, "by") || cli_given(cli, "csv") || cli_given(cli, "day"))
        return report_usage(cli);
    struct str path =
        arena_fmt(&cli->arena, "/v1/report?since=%lldms%s%s%s%s", (long long)since_ms,
                  node ? "&node_id=" : "", node ? request_escape(cli, str_of(node)) : "",
                  type ? "&type=" : "", type ? request_escape(cli, str_of(type)) : "");
    int code = request_get(cli, path.at, &json);

    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, json);
        return CLI_OK;
    }
    if (cli->output == CLI_NAME) {
        const struct json *servers = json_get(json, "servers"), *server;

        for (server = json_items(servers); server; server = json_after(servers, server))
            show_name(cli, show_member(cli, server, "node_id"), cli->out);
        return CLI_OK;
    }
    show_work(cli, json);
    show_trouble(cli, json);
    show_levels(cli, json);
    show_refused(cli, json);
    fprintf(cli->out, "\nThis is " STR_FMT ".\n", STR_ARG(show_member(cli, json, "scope")));
    return CLI_OK;
}

static const struct command rows[] = {
    {.noun = "report",
     .flags = FLAGS(report_flags),
     .help = "how work went, by server and type",
     .detail =
         "Jobs that ended and how many of them succeeded, each counted once, where it ended; the\n"
         "attempts they took and those that were retried; how long jobs waited and attempts ran;\n"
         "use of slots, failovers, kills, breakers that opened, refusals by reason, minutes at "
         "each\n"
         "level. Each server keeps what it saw by the hour for a week, across restarts; of "
         "several\n"
         "instances the one that is asked adds up what all that are there saw.\n"
         "--by tells what was used instead: of every attempt that ended, what it needs x the\n"
         "seconds it ran, counted in the hour in which it ended.",
     .examples = "berth report\n"
                 "berth report --since 2h --type dev\n"
                 "berth report --since 7d -o json | jq .total\n"
                 "berth report --by key\n"
                 "berth report --by key --day 2026-11-18 --csv",
     .run = cmd_report},
};

const struct command_set commands_report = COMMANDS(rows);
