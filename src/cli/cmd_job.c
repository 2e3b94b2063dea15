/* `berth job ...`, all but submit. */
#include <assert.h>
#include <inttypes.h>

#include "base/clock.h"
#include "cli/ask.h"
#include "cli/show.h"
#include "cli/wait.h"

enum { JOB_LS_LIMIT = 50 };

static const char *job_path(struct cli *cli, const char *suffix)
{
    assert(cli->arg_count == 1);
    return arena_fmt(&cli->arena, "/v1/jobs/%s%s", ask_escape(cli, str_of(cli->args[0])), suffix)
        .at;
}

int cmd_job_show(struct cli *cli)
{
    const struct json *json;
    struct str reply;
    int code = ask_get(cli, job_path(cli, ""), &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, reply);
    else
        show_object(cli, json);
    return CLI_OK;
}

int cmd_job_wait(struct cli *cli)
{
    return wait_job(cli, cli->args[0], cli_num(cli, "timeout", WAIT_FOREVER));
}

int cmd_job_cancel(struct cli *cli)
{
    struct ask ask = {.method = "POST", .path = job_path(cli, "/cancel"), .body = STR("{}")};
    int code = ask_run(cli, &ask);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, ask.reply);
    else
        fprintf(cli->out, "%s cancelled\n", cli->args[0]);
    return CLI_OK;
}

int cmd_job_retry(struct cli *cli)
{
    struct ask ask = {.method = "POST", .path = job_path(cli, "/retry"), .body = STR("{}")};
    int code = ask_run(cli, &ask);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, ask.reply);
    else
        fprintf(cli->out, STR_FMT "\n", STR_ARG(show_member(cli, ask.json, "job_id")));
    return CLI_OK;
}

/* Flags that become query parameters. */
static const struct {
    const char *flag;
    const char *param;
} job_filters[] = {
    {"type", "type"},
    {"session", "session_id"},
    {"node", "node_id"},
    {"cursor", "cursor"},
};

static const char *job_ls_path(struct cli *cli)
{
    struct buf path = {0};
    struct str *states;
    size_t state_count = cli_list(cli, "state", &states);
    const char *text;

    assert(cli->arg_count == 0);
    buf_fmt(&path, "/v1/jobs?limit=%" PRId64, cli_num(cli, "limit", JOB_LS_LIMIT));
    for (size_t i = 0; i < state_count; i++)
        buf_fmt(&path, "%s%s", i ? "," : "&state=", ask_escape(cli, states[i]));
    for (size_t i = 0; i < COUNT_OF(job_filters); i++)
        if (cli_given(cli, job_filters[i].flag))
            buf_fmt(&path, "&%s=%s", job_filters[i].param,
                    ask_escape(cli, str_of(cli_text(cli, job_filters[i].flag))));
    text = arena_cstr(&cli->arena, buf_view(&path));
    buf_free(&path);
    return text;
}

static void job_row(struct cli *cli, struct table *table, const struct json *job, int64_t now_ms)
{
    struct str state = show_member(cli, job, "state"), title = show_member(cli, job, "title");

    table_cell(table, show_member(cli, job, "job_id"));
    table_cell_colour(table, state, show_state_colour(state));
    table_cell(table, show_member(cli, job, "type"));
    table_cell(table, show_member(cli, job, "node_id"));
    table_cell(table, show_member(cli, job, "attempt_id"));
    table_cell(table, show_member(cli, job, "priority"));
    table_cell(table, show_age(cli, job, "created_ms", now_ms));
    table_cell(table, title.len ? title : show_member(cli, job, "session_id"));
    table_cell(table, show_member(cli, job, "reason"));
}

int cmd_job_ls(struct cli *cli)
{
    static const char *const titles[] = {"JOB ID", "STATE", "TYPE",  "NODE",  ">TRY",
                                         ">PRIO",  ">AGE",  "TITLE", "REASON"};
    const struct json *json, *list, *job, *cursor;
    struct table table;
    struct str reply;
    int64_t now_ms = clock_wall_ms();
    int code = ask_get(cli, job_ls_path(cli), &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, reply);
        return CLI_OK;
    }
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    list = json_get(json, "jobs");
    job = json_first(list);
    for (uint32_t i = 0; list && i < list->count; i++, job = json_next(job))
        job_row(cli, &table, job, now_ms);
    table_print(&table, cli->out, cli->colour);
    cursor = json_get(json, "next_cursor");
    if (!json_is_null(cursor))
        fprintf(cli->err, "more: --cursor " STR_FMT "\n", STR_ARG(show_text(cli, cursor)));
    return CLI_OK;
}
