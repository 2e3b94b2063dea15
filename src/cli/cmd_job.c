/* `berth job ...`, all but submit. */
#include "cli/answer.h"
#include "cli/list.h"
#include "cli/wait.h"

enum { JOB_LS_LIMIT = 50 };

static int cmd_job_show(struct cli *cli)
{
    return answer_show(cli, answer_path(cli, "/v1/jobs/", ""), "job_id");
}

static int cmd_job_wait(struct cli *cli)
{
    return wait_job(cli, cli->args[0], cli_num(cli, "timeout", WAIT_FOREVER));
}

static int cmd_job_cancel(struct cli *cli)
{
    return answer_post(cli, answer_path(cli, "/v1/jobs/", "/cancel"), NULL, "%s cancelled",
                       cli->args[0]);
}

static int cmd_job_retry(struct cli *cli)
{
    struct ask ask = {
        .method = "POST", .path = answer_path(cli, "/v1/jobs/", "/retry"), .body = STR("{}")};
    int code = ask_run(cli, &ask);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, ask.reply);
    else
        fprintf(cli->out, STR_FMT "\n", STR_ARG(show_member(cli, ask.json, "job_id")));
    return CLI_OK;
}

/* What it is called: its title, else the room it belongs to. */
static void put_title(struct list_view *view, const struct list_column *column,
                      const struct json *job)
{
    struct str title = show_member(view->cli, job, "title");

    table_cell(&view->table, title.len ? title : show_member(view->cli, job, "session_id"));
}

static const struct list_column job_columns[] = {
    {.title = "JOB ID", .member = "job_id"},
    {.title = "STATE", .member = "state", .put = list_put_state},
    {.title = "TYPE", .member = "type"},
    {.title = "NODE", .member = "node_id"},
    {.title = ">TRY", .member = "attempt_id"},
    {.title = ">PRIO", .member = "priority"},
    {.title = ">AGE", .member = "created_ms", .put = list_put_age},
    {.title = "TITLE", .put = put_title},
    {.title = "REASON", .member = "reason"},
    {.title = ">CHANGED", .member = "updated_ms", .put = list_put_age, .wide = true},
    {.title = "SRC", .member = "src", .wide = true},
    {.title = "TGT", .member = "tgt", .wide = true},
    {.title = "SESSION", .member = "session_id", .wide = true},
};

static const struct list_filter job_filters[] = {
    {"state", "state"},
    {"type", "type"},
    {"session", "session_id"},
    {"node", "node_id"},
};

static const struct listing job_list = {.path = "/v1/jobs",
                                        .name = "jobs",
                                        .id = "job_id",
                                        .limit = JOB_LS_LIMIT,
                                        .columns = job_columns,
                                        .column_count = COUNT_OF(job_columns),
                                        .filters = job_filters,
                                        .filter_count = COUNT_OF(job_filters)};

static const struct flag job_ls_flags[] = {
    {.name = "state", .type = FLAG_LIST, .value = "STATE,...", .help = "DONE, FAILED, ACKED, ..."},
    {.name = "type", .type = FLAG_TEXT, .value = "TYPE", .help = "only this type"},
    {.name = "session", .type = FLAG_TEXT, .value = "ID", .help = "only this session"},
    {.name = "node", .type = FLAG_TEXT, .value = "ID", .help = "only on this node"},
};

static const struct flag wait_flags[] = {
    {.name = "timeout",
     .type = FLAG_MS,
     .value = "DURATION",
     .help = "give up after this long, exit 6 (default: never)"},
};

static const struct command rows[] = {
    {.noun = "job",
     .verb = "ls",
     .kind = COMMAND_API,
     .flags = FLAGS(job_ls_flags),
     .list = &job_list,
     .help = "jobs, newest first, 50 at a time",
     .examples = "berth job ls --state FAILED --limit 20\n"
                 "berth job ls --node node-1 -o jsonl\n"
                 "berth job ls --state NEW,DISPATCHED,ACKED --watch"},
    {.noun = "job",
     .verb = "show",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "one job, everything known of it",
     .examples = "berth job show j0abcdefghijkl",
     .run = cmd_job_show},
    {.noun = "job",
     .verb = "wait",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = FLAGS(wait_flags),
     .help = "wait for a job's end; exit 7 if it failed",
     .examples = "berth job wait j0abcdefghijkl --timeout 30s",
     .run = cmd_job_wait},
    {.noun = "job",
     .verb = "cancel",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "stop a job",
     .examples = "berth job cancel j0abcdefghijkl",
     .run = cmd_job_cancel},
    {.noun = "job",
     .verb = "retry",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "the same work again, as a new job",
     .examples = "berth job retry j0abcdefghijkl",
     .run = cmd_job_retry},
};

const struct command_set commands_job = COMMANDS(rows);
