/* `berth job logs`, `berth deploy logs`: a job's or deployment's output, at once or as it is
 * written. */
#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "cli/list.h"
#include "cli/request.h"
#include "model/job.h"

enum {
    LOGS_BYTES = 256 * 1024, /* per request */
    PAUSE_MIN_MS = 100,
    PAUSE_MAX_MS = 2000,
    AWAY_MS = 60000,  /* how long to wait for a server that is down */
    LAST_BYTES = 256, /* of the printed output, kept to find it again in a tail */
};

struct logs {
    struct cli *cli;
    const char *things; /* "jobs" or "deployments" */
    const char *query;  /* further parameters; "" or "&..." */
    const char *id;     /* escaped */
    bool follow;
    int64_t offset;   /* next to read */
    int64_t attempt;  /* of the last output; 0: unknown */
    int64_t until;    /* where a read without --follow ends; < 0: unknown yet */
    int64_t pause_ms; /* before the next request */
    bool waited;      /* the wait was reported */
    int64_t heard_ms; /* last reply of the server; 0: never */
    char last[LAST_BYTES];
    size_t last_len;
};

/* A file or pipe gets every byte; control characters are not sent to a terminal. */
static void print(struct logs *logs, struct str text)
{
    struct cli *cli = logs->cli;
    size_t take, keep;

    if (text.len == 0)
        return;
    take = text.len < LAST_BYTES ? text.len : LAST_BYTES;
    keep = logs->last_len + take > LAST_BYTES ? LAST_BYTES - take : logs->last_len;
    memmove(logs->last, logs->last + logs->last_len - keep, keep);
    memcpy(logs->last + keep, text.at + text.len - take, take);
    logs->last_len = keep + take;
    assert(logs->last_len <= LAST_BYTES);
    if (cli->json)
        return;
    if (cli->terminal)
        text = table_harmless_lines(&cli->arena, text);
    fwrite(text.at, 1, text.len, cli->out);
    fflush(cli->out);
}

/* Only the last lines are left, without their offset: finds in them what was already printed. */
static void print_tail(struct logs *logs, struct str tail)
{
    const char *seen = NULL, *found = tail.at;

    while (logs->last_len > 0 && found &&
           (found = memmem(found, tail.len - (size_t)(found - tail.at), logs->last,
                           logs->last_len)) != NULL)
        seen = found++;
    if (seen) {
        seen += logs->last_len;
        tail = (struct str){.at = seen, .len = tail.len - (size_t)(seen - tail.at)};
    } else {
        fprintf(logs->cli->err, "berth: its node cannot be asked; these are the last lines that "
                                "came with the result\n");
    }
    print(logs, tail);
}

/* Has the job ended? Then there will be no more output. A deployment never ends. */
static bool job_ended(struct logs *logs)
{
    if (strcmp(logs->things, "jobs") != 0)
        return false;

    struct request request = {.method = "GET",
                              .path = arena_fmt(&logs->cli->arena, "/v1/jobs/%s", logs->id).at,
                              .any_status = true};
    enum job_state state;

    return request_run(logs->cli, &request) != CLI_OK ||
           !job_state_by_name(show_member(logs->cli, request.json, "state"), &state) ||
           job_state_final(state);
}

/* Handles one reply. True: there may be more to read. */
static bool take_answer(struct logs *logs, const struct json *json)
{
    struct str text = json_str(json_get(json, "text"), &logs->cli->arena);
    int64_t offset = show_int(json, "offset", logs->offset), total = show_int(json, "total", 0);
    int64_t attempt = show_int(json, "attempt_id", 0), next;
    bool ended = false, tail_only = false, again;

    json_bool(json_get(json, "ended"), &ended);
    json_bool(json_get(json, "tail_only"), &tail_only);
    offset = offset < 0 ? 0 : offset;
    if (tail_only) {
        print_tail(logs, text);
        return false;
    }
    if (logs->until < 0)
        logs->until = logs->follow ? INT64_MAX : total;
    /* Is this output from another run than what was printed so far? If the agent does not send the
     * attempt, shorter output means it is. */
    again = attempt && logs->attempt ? attempt != logs->attempt
                                     : logs->last_len > 0 && total < logs->offset;
    logs->attempt = attempt;
    if (logs->follow && again) {
        fprintf(logs->cli->err, "berth: the job began again, and so does its output\n");
        logs->offset = 0;
        logs->last_len = 0;
        logs->pause_ms = 0;
        return true;
    }
    if (offset > logs->offset)
        fprintf(logs->cli->err, "berth: %" PRId64 " bytes before byte %" PRId64 " are gone\n",
                offset - logs->offset, offset);
    print(logs, text);
    /* Bytes that are not text arrive altered, so the agent sends the offset to continue from; a
     * reply that would make us read the same bytes again is ignored. */
    next = show_int(json, "next", 0);
    logs->offset = next > offset ? next : offset + (int64_t)text.len;
    /* Poll sooner while there is output, later while there is none, at once while we lag behind. */
    if (text.len > 0)
        logs->pause_ms = logs->offset < total ? 0 : PAUSE_MIN_MS;
    else if (logs->pause_ms < PAUSE_MIN_MS)
        logs->pause_ms = PAUSE_MIN_MS;
    else
        logs->pause_ms = 2 * logs->pause_ms < PAUSE_MAX_MS ? 2 * logs->pause_ms : PAUSE_MAX_MS;
    if (ended && logs->offset >= total)
        return logs->follow && !job_ended(logs); /* another attempt may follow */
    return logs->offset < logs->until && (logs->follow || text.len > 0);
}

/* Reports the reason for waiting once. */
static void wait_on(struct logs *logs, struct str why)
{
    if (!logs->waited)
        fprintf(logs->cli->err, "berth: waiting for output: " STR_FMT "\n", STR_ARG(why));
    logs->waited = true;
    logs->pause_ms = PAUSE_MAX_MS / 4;
}

/* CLI_OK and *ret_more: send another request. */
static int request_once(struct logs *logs, bool *ret_more)
{
    struct cli *cli = logs->cli;
    struct request request = {.method = "GET", .any_status = true};
    struct str said;
    bool passes;
    int code;

    assert(logs->offset >= 0);
    request.path = arena_fmt(&cli->arena, "/v1/%s/%s/logs?offset=%" PRId64 "&max=%d%s",
                             logs->things, logs->id, logs->offset, LOGS_BYTES, logs->query)
                       .at;
    code = request_quietly(cli, &request, &said);
    *ret_more = true;
    /* No reply at all: a server that is being restarted comes back. */
    if (logs->follow && logs->heard_ms > 0 && (code == CLI_UNAVAILABLE || code == CLI_TIMEOUT) &&
        clock_mono_ms() - logs->heard_ms < AWAY_MS) {
        wait_on(logs, STR("the server does not answer"));
        return CLI_OK;
    }
    if (code != CLI_OK) {
        fprintf(cli->err, STR_FMT, STR_ARG(said));
        return code;
    }
    logs->heard_ms = clock_mono_ms();
    if (request.status == 200) {
        if (cli->json)
            show_raw(cli, request.json);
        logs->waited = false;
        *ret_more = take_answer(logs, request.json);
        return CLI_OK;
    }
    /* A refusal that may be temporary: the job waits for a slot, or its node is briefly offline. */
    passes = request.status == 409 || request.status == 503 || request.status == 504;
    if (!logs->follow || !passes || job_ended(logs))
        return request_refused(cli, &request);
    wait_on(logs, show_member(cli, request.json, "detail"));
    return CLI_OK;
}

static int run_logs(struct cli *cli, const char *things, const char *query)
{
    struct logs logs = {.cli = cli,
                        .things = things,
                        .query = query,
                        .id = request_escape(cli, str_of(cli->args[0])),
                        .follow = cli_given(cli, "follow"),
                        .offset = cli_num(cli, "offset", 0),
                        .until = -1,
                        .pause_ms = PAUSE_MIN_MS};
    struct arena kept = cli->arena;
    bool more = true;
    int code = CLI_OK;

    while (more && code == CLI_OK && !ferror(cli->out)) {
        cli->arena = (struct arena){0}; /* a log may be followed for days */
        code = request_once(&logs, &more);
        arena_free(&cli->arena);
        if (more && logs.follow && code == CLI_OK)
            poll(NULL, 0, (int)logs.pause_ms);
    }
    cli->arena = kept;
    return code;
}

static int cmd_job_logs(struct cli *cli)
{
    return run_logs(cli, "jobs", "");
}

/* A daemon has copies on many nodes: --node selects one. */
static int cmd_deploy_logs(struct cli *cli)
{
    const char *node = cli_text(cli, "node");

    return run_logs(
        cli, "deployments",
        node ? arena_fmt(&cli->arena, "&address=%s", request_escape(cli, str_of(node))).at : "");
}

static const struct flag logs_flags[] = {
    FLAG("follow", 'f', SWITCH, NULL, "go on until the job has ended and all was read"),
    FLAG("offset", 0, INT, "BYTES", "begin after so many bytes (default 0)", .max = INT64_MAX),
};

static const struct command rows[] = {
    VERB("job", "logs", "ID", .flags = FLAGS(logs_flags), .help = "what a job printed",
         .examples = "berth job logs j0abcdefghijkl\n"
                     "berth job logs -f j0abcdefghijkl",
         .run = cmd_job_logs),
};

const struct command_set commands_logs = COMMANDS(rows);

static const struct flag deploy_logs_flags[] = {
    FLAG("follow", 'f', SWITCH, NULL, "go on as more comes"),
    FLAG("offset", 0, INT, "BYTES", "begin after so many bytes (default 0)", .max = INT64_MAX),
    FLAG("node", 0, TEXT, "ID", "of the copy on this node"),
};

static const struct command deploy_rows[] = {
    VERB("deploy", "logs", "ID", .flags = FLAGS(deploy_logs_flags),
         .help = "what a deployment printed", .examples = "berth deploy logs web -f",
         .run = cmd_deploy_logs),
};

const struct command_set commands_deploy_logs = COMMANDS(deploy_rows);
