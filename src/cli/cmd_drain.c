/* `berth node drain`: no new work; its deployments move one by one, its jobs end. Tells what is
 * still there, and why. */
#include <assert.h>
#include <inttypes.h>
#include <time.h>

#include "base/clock.h"
#include "cli/answer.h"
#include "cli/show.h"

enum { LOOK_MS = 500 };

struct rest {
    const struct json *deployments, *jobs; /* NULL: not to be had */
};

static const struct json *list_at(struct cli *cli, const char *path, const char *name)
{
    struct ask ask = {.method = "GET", .path = path};
    struct str said;

    return ask_quietly(cli, &ask, &said) == CLI_OK ? json_get(ask.json, name) : NULL;
}

static struct rest look(struct cli *cli)
{
    const char *id = ask_escape(cli, str_of(cli->args[0]));

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

/* Why it is still there: a deployment waits for its turn or for a node that takes it, a job runs to
 * its end. */
static void print_rest(struct cli *cli, const struct rest *rest)
{
    const struct json *item = json_first(rest->deployments);

    for (uint32_t i = 0; i < count_of(rest->deployments); i++, item = json_next(item))
        fprintf(cli->out, "  deployment " STR_FMT "  %s\n", STR_ARG(show_member(cli, item, "id")),
                i == 0 ? "is being moved: stopped here, then claimed elsewhere"
                       : "waits for its turn: they move one by one");
    item = json_first(rest->jobs);
    for (uint32_t i = 0; i < count_of(rest->jobs); i++, item = json_next(item))
        fprintf(cli->out, "  job " STR_FMT "  " STR_FMT ": runs to its end\n",
                STR_ARG(show_member(cli, item, "job_id")),
                STR_ARG(show_member(cli, item, "state")));
}

static int wait_empty(struct cli *cli, int64_t timeout_ms)
{
    int64_t end_ms = timeout_ms < 0 ? INT64_MAX : clock_mono_ms() + timeout_ms;

    for (;;) {
        struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
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
        nanosleep(&pause, NULL);
    }
}

static struct str drain_body(struct cli *cli)
{
    const char *reason = cli_text(cli, "reason");
    struct buf body = {0};
    struct jsonw w = jsonw_to(&body);

    jsonw_obj(&w);
    if (reason)
        jsonw_kstr(&w, "reason", str_of(reason));
    if (cli_given(cli, "deadline"))
        jsonw_kint(&w, "deadline_ms", cli_num(cli, "deadline", 0));
    jsonw_end_obj(&w);
    struct str text = arena_str(&cli->arena, buf_view(&body));
    buf_free(&body);
    return text;
}

static int cmd_node_drain(struct cli *cli)
{
    struct ask ask = {.method = "POST",
                      .path = answer_path(cli, "/v1/nodes/", "/drain"),
                      .body = drain_body(cli)};
    int code = answer_done(cli, &ask, "%s drained", cli->args[0]);

    assert(cli->arg_count == 1);
    if (code != CLI_OK || cli->json)
        return code;
    if (cli_given(cli, "wait"))
        return wait_empty(cli, cli_num(cli, "timeout", -1));
    struct rest rest = look(cli);
    uint32_t left = count_of(rest.deployments) + count_of(rest.jobs);
    fprintf(cli->out, left ? "still there: %" PRIu32 "\n" : "nothing is left on it\n", left);
    print_rest(cli, &rest);
    return CLI_OK;
}

static const struct flag drain_flags[] = {
    {.name = "reason", .type = FLAG_TEXT, .value = "TEXT", .help = "shown with the node"},
    {.name = "deadline",
     .type = FLAG_MS,
     .value = "DURATION",
     .help = "after this its deployments move all at once"},
    {.name = "wait", .type = FLAG_SWITCH, .help = "until nothing is left on it"},
    {.name = "timeout",
     .type = FLAG_MS,
     .value = "DURATION",
     .help = "wait no longer than this, exit 6 (default: for ever)"},
};

static const struct command rows[] = {
    {.noun = "node",
     .verb = "drain",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = FLAGS(drain_flags),
     .help = "no new work; deployments move one by one, jobs end",
     .detail = "Durable: it holds over restarts of node and server, until `berth node undrain`.",
     .examples = "berth node drain node-1 --reason 'new kernel' --deadline 10m --wait",
     .run = cmd_node_drain},
};

const struct command_set commands_drain = COMMANDS(rows);
