/* One long poll after the other: the server holds each until the job ends or the poll's time is up.
 */
#include "cli/wait.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "cli/show.h"
#include "model/job.h"

enum { POLL_MS = 20000, SEEN_POLL_MS = 1000, ANSWER_MS = 10000, NODE_POLL_MS = 250 };

/* The last attempt that had a reason of its own: that no node was left for another one says little
 * about why one was needed. */
static const struct json *telling_attempt(struct cli *cli, const struct json *job,
                                          struct str reason)
{
    const struct json *list = json_get(job, "attempts"), *attempt = json_first(list);
    const struct json *found = NULL;

    for (uint32_t i = 0; json_type(list) == JSON_ARR && i < list->count; i++) {
        struct str own = show_member(cli, attempt, "reason");

        if (own.len)
            found = str_eq(own, reason) ? NULL : attempt;
        attempt = json_next(attempt);
    }
    return found;
}

static int tell_end(struct cli *cli, const char *job_id, const struct json *job, struct str reply,
                    enum job_state state)
{
    struct str reason = show_member(cli, job, "reason");
    const struct json *attempt = telling_attempt(cli, job, reason);

    assert(job_state_final(state));
    if (cli->json)
        show_raw(cli, reply);
    if (state == JOB_DONE)
        return CLI_OK;
    return cli_fail(
        cli, CLI_JOB_FAILED, "job %s failed: " STR_FMT "%s" STR_FMT, job_id,
        STR_ARG(reason.len ? table_harmless(&cli->arena, reason) : STR("no reason was given")),
        attempt ? "; " : "", STR_ARG(attempt ? show_attempt(cli, attempt) : STR("")));
}

int wait_job(struct cli *cli, const char *job_id, int64_t timeout_ms)
{
    int64_t begun_ms = clock_mono_ms();
    const char *id = ask_escape(cli, str_of(job_id));

    for (;;) {
        int64_t passed_ms = clock_mono_ms() - begun_ms;
        int64_t poll_ms = progress_wanted(cli) ? SEEN_POLL_MS : POLL_MS;
        enum job_state state = JOB_NEW;
        struct str state_text;
        struct ask ask = {.method = "GET"};
        int code;

        if (timeout_ms != WAIT_FOREVER && timeout_ms - passed_ms < poll_ms)
            poll_ms = timeout_ms > passed_ms ? timeout_ms - passed_ms : 0;
        assert(poll_ms >= 0 && poll_ms <= POLL_MS);
        ask.path = arena_fmt(&cli->arena, "/v1/jobs/%s?wait=%" PRId64 "ms", id, poll_ms).at;
        ask.timeout_ms = poll_ms + ANSWER_MS;
        code = ask_run(cli, &ask);
        progress_clear(cli);
        if (code != CLI_OK)
            return code;
        state_text = show_member(cli, ask.json, "state");
        if (!job_state_by_name(state_text, &state))
            return cli_fail(cli, CLI_FAILED, "job %s is in an unknown state \"" STR_FMT "\"",
                            job_id, STR_ARG(state_text));
        if (job_state_final(state))
            return tell_end(cli, job_id, ask.json, ask.reply, state);
        progress_tell(
            cli, "job %s: " STR_FMT "%s" STR_FMT ", %" PRId64 " s", job_id, STR_ARG(state_text),
            json_is_null(json_get(ask.json, "node_id")) ? "" : " on ",
            STR_ARG(show_member(cli, ask.json, "node_id")), (clock_mono_ms() - begun_ms) / 1000);
        if (timeout_ms != WAIT_FOREVER && clock_mono_ms() - begun_ms >= timeout_ms) {
            progress_clear(cli);
            if (cli->json)
                show_raw(cli, ask.reply);
            return cli_fail(cli, CLI_TIMEOUT, "job %s is still " STR_FMT " after %" PRId64 " ms",
                            job_id, STR_ARG(state_text), timeout_ms);
        }
    }
}

static bool is_ready(const struct json *node)
{
    return json_str_is(json_get(node, "health"), "ready");
}

static bool is_offline(const struct json *node)
{
    return json_str_is(json_get(node, "health"), "offline");
}

/* Nothing runs and nothing more comes: its health says so itself. */
static bool is_drained(const struct json *node)
{
    return json_str_is(json_get(node, "health"), "draining") &&
           show_int(node, "running", 0) + show_int(node, "reserved", 0) == 0;
}

static const struct {
    const char *name;
    bool (*holds)(const struct json *node); /* NULL: there is no such node */
} node_goals[] = {
    {"ready", is_ready}, {"drained", is_drained}, {"offline", is_offline}, {"gone", NULL}};

/* CLI_OK: it is so; CLI_TIMEOUT: not yet; else why it could not be asked. */
static int look_at_node(struct cli *cli, const char *path, size_t goal, int64_t waited_ms)
{
    struct ask ask = {.method = "GET", .path = path, .any_status = true};
    int code = ask_run(cli, &ask);

    progress_clear(cli);
    if (code != CLI_OK)
        return code;
    if (ask.status == 404 && !node_goals[goal].holds)
        return CLI_OK;
    if (ask.status != 200)
        return ask_refused(cli, &ask);
    if (node_goals[goal].holds && node_goals[goal].holds(ask.json))
        return CLI_OK;
    progress_tell(cli, "node %s: " STR_FMT ", %" PRId64 " running, %" PRId64 " s", cli->args[0],
                  STR_ARG(show_member(cli, ask.json, "health")), show_int(ask.json, "running", 0),
                  waited_ms / 1000);
    return CLI_TIMEOUT;
}

int wait_node(struct cli *cli, const char *path, const char *goal_name, int64_t timeout_ms)
{
    int64_t begun_ms = clock_mono_ms();
    size_t goal = 0;

    while (goal < COUNT_OF(node_goals) && strcmp(node_goals[goal].name, goal_name) != 0)
        goal++;
    if (goal == COUNT_OF(node_goals))
        return cli_misuse(cli, "--for is ready, drained, offline or gone, not \"%s\"", goal_name);
    for (;;) {
        struct timespec pause = {.tv_nsec = NODE_POLL_MS * 1000000L};
        int64_t waited_ms = clock_mono_ms() - begun_ms;
        int code = look_at_node(cli, path, goal, waited_ms);

        if (code != CLI_TIMEOUT)
            return code;
        if (timeout_ms != WAIT_FOREVER && waited_ms >= timeout_ms) {
            progress_clear(cli);
            return cli_fail(cli, CLI_TIMEOUT, "node %s is not %s after %" PRId64 " ms",
                            cli->args[0], goal_name, timeout_ms);
        }
        nanosleep(&pause, NULL);
    }
}
