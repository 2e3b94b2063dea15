/* One long poll after the other: the server holds each until the job ends or the poll's time is up.
 */
#include "cli/wait.h"

#include <assert.h>
#include <inttypes.h>

#include "base/clock.h"
#include "cli/ask.h"
#include "cli/show.h"
#include "model/job.h"

enum { POLL_MS = 20000, ANSWER_MS = 10000 };

static int tell_end(struct cli *cli, const char *job_id, const struct json *job, struct str reply,
                    enum job_state state)
{
    struct str reason = show_member(cli, job, "reason");

    assert(job_state_final(state));
    if (cli->json)
        show_raw(cli, reply);
    if (state == JOB_DONE)
        return CLI_OK;
    return cli_fail(cli, CLI_JOB_FAILED, "job %s failed: " STR_FMT, job_id,
                    STR_ARG(reason.len ? reason : STR("no reason was given")));
}

int wait_job(struct cli *cli, const char *job_id, int64_t timeout_ms)
{
    int64_t begun_ms = clock_mono_ms();
    const char *id = ask_escape(cli, str_of(job_id));

    for (;;) {
        int64_t passed_ms = clock_mono_ms() - begun_ms, poll_ms = POLL_MS;
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
        if (code != CLI_OK)
            return code;
        state_text = show_member(cli, ask.json, "state");
        if (!job_state_by_name(state_text, &state))
            return cli_fail(cli, CLI_FAILED, "job %s is in an unknown state \"" STR_FMT "\"",
                            job_id, STR_ARG(state_text));
        if (job_state_final(state))
            return tell_end(cli, job_id, ask.json, ask.reply, state);
        if (timeout_ms != WAIT_FOREVER && clock_mono_ms() - begun_ms >= timeout_ms) {
            if (cli->json)
                show_raw(cli, ask.reply);
            return cli_fail(cli, CLI_TIMEOUT, "job %s is still " STR_FMT " after %" PRId64 " ms",
                            job_id, STR_ARG(state_text), timeout_ms);
        }
    }
}
