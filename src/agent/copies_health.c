/* Is a copy well? A command that exits 0, or an answer 2xx, says yes. A copy that failed its check
 * a few times in a row is restarted like one that crashed. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/copies_private.h"
#include "agent/runlog.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    REPLY_BYTES_MAX = 64 * 1024,
    CHECK_GRACE_MS = 500,
    SETTLE_MS = 2000, /* without a check it is well when it has run for so long */
};

/* Outlives its copy, if that goes while an answer is due. */
struct check_call {
    struct client_call call;
    struct copy *copy; /* NULL: nobody waits for the answer */
    char *url;
};

const struct deploy_spec *copy_spec_of_run(const struct copy *copy)
{
    return copy->known && copy->run_version == copy->spec_version        ? &copy->spec
           : copy->old_version && copy->run_version == copy->old_version ? &copy->old
                                                                         : NULL;
}

enum copy_health copy_health(const struct copy *copy)
{
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    int64_t age_ms = copy->copies->loop->mono_ms - copy->since_ms;

    if (copy_over(copy) == COPY_FINISHED)
        return COPY_WELL;
    if (copy->state != COPY_RUNNING || copy->check.failures > 0)
        return COPY_UNWELL;
    if (spec && deploy_spec_checked(spec))
        return copy->check.passed ? COPY_WELL : COPY_UNKNOWN;
    return copy->failures == 0 && age_ms >= SETTLE_MS ? COPY_WELL : COPY_UNKNOWN;
}

static void judged(struct copy *copy, bool well, const char *reason)
{
    struct copy_check *check = &copy->check;
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    const struct deploy_health *health = &spec->health;

    assert(spec && deploy_spec_checked(spec));
    check->next_ms = copy->copies->loop->mono_ms + health->interval_ms;
    if (well) {
        if (check->failures > 0)
            copy_log(copy, LOG_INFO, "copy.healthy", "its check passed again");
        check->failures = 0;
        check->passed = true;
        copy->unwell[0] = 0;
        return;
    }
    copy_words(str_of(reason), copy->unwell);
    if (!check->passed && copy->copies->loop->mono_ms < check->begun_ms + health->start_ms) {
        copy_log(copy, LOG_DEBUG, "copy.starting", reason);
        return;
    }
    check->failures++;
    copy_log(copy, LOG_WARN, "copy.unhealthy", reason);
    if (check->failures >= health->failures && !copy->stopping)
        copy_stop(copy, COPY_UNHEALTHY, -1);
}

/* --- by command --- */

static void on_command_ended(struct run *run)
{
    struct copy *copy = run->user;
    bool well = strcmp(run->exit.reason, "EXITED") == 0 && run->exit.exit_code == 0;
    char line[COPY_WORDS_MAX], words[2 * COPY_WORDS_MAX];

    runlog_last_line(run->exit.tail, line, sizeof line);
    snprintf(words, sizeof words, "Its check failed. %s%s%s", run->exit.detail, *line ? " " : "",
             line);
    if (copy) {
        assert(copy->check.run == run);
        copy->check.run = NULL;
        judged(copy, well, words);
    }
    run_forget(run);
}

static const struct run_handler command_handler = {.ended = on_command_ended};

static void ask_command(struct copy *copy)
{
    const struct deploy_spec *own = copy_spec_of_run(copy);
    const struct deploy_health *health = &own->health;
    const char *dir = packages_dir(copy->copies->packages, own->package_name, own->package_version);
    struct arena arena = {0};
    struct buf meta = {0};
    struct problem why = {0};
    char key[RUN_KEY_MAX + 1];
    struct run_spec spec = {.handler = &command_handler,
                            .argv = health->command.at,
                            .argc = health->command.count,
                            .cwd = str_of(dir),
                            .tmp_of = copy->run->key, /* it may look for what its copy left there */
                            .timeout_ms = health->timeout_ms,
                            .stop_grace_ms = CHECK_GRACE_MS,
                            .log_bytes_max = RUN_LOG_BYTES_MIN};

    copy_run_key(copy, "h", key);
    spec.key = str_of(key);
    copy_env(copy, own, copy->run_version, dir, &arena, &spec);
    copy_meta_write(copy, "health", &meta);
    spec.meta = buf_view(&meta);
    if (copy_secrets(copy, own, &spec, &why) ||
        runs_start(copy->copies->runs, &spec, copy, &copy->check.run, &why))
        judged(copy, false, why.detail);
    buf_free(&meta);
    arena_free(&arena);
}

void copy_check_adopt(struct run *run)
{
    run->handler = &command_handler;
    run->user = NULL;
    if (run->state == RUN_ENDED)
        run_forget(run);
    else
        run_stop(run, "STOPPED", 0);
}

/* --- by HTTP --- */

static void on_answer(struct client_call *call)
{
    struct check_call *own = container_of(call, struct check_call, call);
    struct copy *copy = own->copy;
    bool well = call->err == ERR_OK && call->status >= 200 && call->status <= 299;
    char words[COPY_WORDS_MAX];

    if (copy) {
        assert(copy->check.call == call);
        copy->check.call = NULL;
        if (call->err)
            snprintf(words, sizeof words, "Its check failed: %s.", err_title(call->err));
        else
            snprintf(words, sizeof words, "Its check was answered with %d.", call->status);
        judged(copy, well, words);
    }
    buf_free(&call->reply);
    free(own->url);
    free(own);
}

static void ask_http(struct copy *copy)
{
    const struct deploy_health *health = &copy_spec_of_run(copy)->health;
    struct check_call *own = mem_new(struct check_call);

    own->copy = copy;
    own->url = strndup(health->http.at, health->http.len);
    own->call = (struct client_call){.method = "GET",
                                     .url = own->url,
                                     .timeout_ms = health->timeout_ms,
                                     .reply_bytes_max = REPLY_BYTES_MAX,
                                     .done = on_answer};
    if (client_send(copy->copies->client, &own->call) != ERR_OK) {
        free(own->url);
        free(own);
        judged(copy, false, "Its check cannot be sent.");
        return;
    }
    copy->check.call = &own->call;
}

/* --- when --- */

void copy_check_begin(struct copy *copy)
{
    assert(!copy->check.run && !copy->check.call);
    copy->check = (struct copy_check){0};
}

void copy_check_tick(struct copy *copy)
{
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    const struct deploy_health *health;
    struct copy_check *check = &copy->check;
    int64_t now_ms = copy->copies->loop->mono_ms;

    if (!spec || !deploy_spec_checked(spec) || check->run || check->call)
        return;
    health = &spec->health;
    if (!check->begun_ms) {
        check->begun_ms = now_ms;
        check->next_ms = now_ms + health->interval_ms;
    }
    if (now_ms < check->next_ms)
        return;
    if (health->command.count > 0)
        ask_command(copy);
    else
        ask_http(copy);
}

void copy_check_cancel(struct copy *copy)
{
    struct copy_check *check = &copy->check;

    if (check->run) {
        check->run->user = NULL;
        if (!copy->copies->freed)
            run_stop(check->run, "STOPPED", 0);
    }
    if (check->call)
        container_of(check->call, struct check_call, call)->copy = NULL;
    *check = (struct copy_check){0};
}
