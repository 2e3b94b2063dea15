/* Is a copy well? A command that exits 0, or an answer 2xx, says yes. A copy that failed its check
 * a few times in a row is restarted like one that crashed. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/copies_private.h"
#include "base/log.h"
#include "base/mem.h"

enum { REPLY_BYTES_MAX = 64 * 1024, CHECK_GRACE_MS = 500 };

/* Outlives its copy, if that goes while an answer is due. */
struct check_call {
    struct client_call call;
    struct copy *copy; /* NULL: nobody waits for the answer */
    char *url;
};

bool copy_well(const struct copy *copy)
{
    return copy->state == COPY_RUNNING && copy->check.failures == 0 &&
           (copy->check.passed || !copy_spec_checked(&copy->spec));
}

static void judged(struct copy *copy, bool well, const char *reason)
{
    struct copy_check *check = &copy->check;
    const struct copy_health *health = &copy->spec.health;

    check->next_ms = copy->copies->loop->mono_ms + health->interval_ms;
    if (well) {
        if (check->failures > 0)
            copy_log(copy, LOG_INFO, "copy.healthy", "its check passed again");
        check->failures = 0;
        check->passed = true;
        return;
    }
    if (!check->passed && copy->copies->loop->mono_ms < check->begun_ms + health->start_ms) {
        copy_log(copy, LOG_DEBUG, "copy.starting", reason);
        return;
    }
    check->failures++;
    copy_log(copy, LOG_WARN, "copy.unhealthy", reason);
    if (check->failures >= health->failures && !copy->stopping)
        copy_stop(copy, "UNHEALTHY", -1);
}

/* --- by command --- */

static void on_command_ended(struct run *run)
{
    struct copy *copy = run->user;
    bool well = strcmp(run->exit.reason, "EXITED") == 0 && run->exit.exit_code == 0;

    if (copy) {
        assert(copy->check.run == run);
        copy->check.run = NULL;
        judged(copy, well, run->exit.detail);
    }
    run_forget(run);
}

static const struct run_handler command_handler = {.ended = on_command_ended};

static void ask_command(struct copy *copy)
{
    const struct copy_health *health = &copy->spec.health;
    struct arena arena = {0};
    struct buf meta = {0};
    struct problem why = {0};
    char key[RUN_KEY_MAX + 1];
    struct run_spec spec = {.handler = &command_handler,
                            .argv = health->command.at,
                            .argc = health->command.count,
                            .timeout_ms = health->timeout_ms,
                            .stop_grace_ms = CHECK_GRACE_MS,
                            .log_bytes_max = RUN_LOG_BYTES_MIN};

    copy_run_key(copy, "h", key);
    spec.key = str_of(key);
    copy_env(copy, NULL, &arena, &spec);
    copy_meta_write(copy, "health", &meta);
    spec.meta = buf_view(&meta);
    if (runs_start(copy->copies->runs, &spec, copy, &copy->check.run, &why))
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

    if (copy) {
        assert(copy->check.call == call);
        copy->check.call = NULL;
        judged(copy, well, call->err ? err_title(call->err) : "the answer was not 2xx");
    }
    buf_free(&call->reply);
    free(own->url);
    free(own);
}

static void ask_http(struct copy *copy)
{
    const struct copy_health *health = &copy->spec.health;
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
        judged(copy, false, "it cannot be asked");
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
    const struct copy_health *health = &copy->spec.health;
    struct copy_check *check = &copy->check;
    int64_t now_ms = copy->copies->loop->mono_ms;

    /* Of an older version, the checks of the new one say nothing. */
    if (!copy->known || !copy_spec_checked(&copy->spec) || check->run || check->call ||
        copy->run_version != copy->spec.version)
        return;
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
