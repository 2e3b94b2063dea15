/* Signals are waited for, never handled: no code of ours runs inside a handler. SIGHUP validates
 * the settings, then swaps them. Old settings stay in memory until the process ends: a request or a
 * connection may still use a token or a limit in them. */
#include "server/signals.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "io/notify.h"
#include "server/listen.h"
#include "server/server.h"
#include "server/token_file.h"

/* --- SIGHUP --- */

static enum err reload(struct server *server, struct buf *changed, struct buf *waiting,
                       struct problem *why)
{
    struct settings_source *next = mem_new(struct settings_source);
    struct auth *auth = NULL;
    enum err err = settings_load(next, server->argc, server->argv, why);

    if (!err) {
        settings_keep(next, server->source, changed, waiting);
        err = token_file_read(server, &next->settings, &auth, why);
    }
    if (!err && !next->settings.tls_cert.len != !server->settings->tls_cert.len)
        err = problem_set(why, ERR_BAD_CONFIG, "tls_cert",
                          "tls_cert: TLS is turned on or off only by a restart.");
    if (!err)
        err = token_file_check(server, &next->settings, auth, why);
    if (!err)
        err = listen_tls(server, &next->settings, why);
    if (!err)
        err = server_open_log(&next->settings, why);
    if (err) {
        auth_free(auth);
        settings_done(next);
        free(next);
        return err;
    }
    if (changed->len > 0) {
        next->before = server->source;
        server->source = next;
        server->settings = &next->settings;
        log_tune((enum log_level)next->settings.log_level,
                 (enum log_format)next->settings.log_format);
    } else {
        settings_done(next);
        free(next);
    }
    token_file_swap(server, auth);
    return ERR_OK;
}

/* On the main thread; logs the result. */
static void reload_run(struct server *server)
{
    struct buf changed = {0}, waiting = {0};
    struct problem why = {0};
    char text[64];

    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)clock_mono_us());
    notify_send(text);
    enum err err = reload(server, &changed, &waiting, &why);
    metric_add_label(METRIC_RELOADS, err ? "refused" : "ok", 1);
    if (err)
        log_event(LOG_ERROR, "server.reload_refused", KC("reason", why.detail));
    else
        log_event(LOG_INFO, "server.reloaded", KS("changed", buf_view(&changed)));
    if (!err && waiting.len)
        log_event(LOG_WARN, "server.restart_needed", KS("settings", buf_view(&waiting)));
    notify_send(err ? "READY=1\nSTATUS=the last reload was refused, see the log" : "READY=1");
    buf_free(&changed);
    buf_free(&waiting);
}

/* --- waiting --- */

/* The signals the main thread waits for; they are blocked in all threads. */
static void own_signals(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGTERM);
    sigaddset(ret_set, SIGINT);
    sigaddset(ret_set, SIGHUP);
    sigaddset(ret_set, SIGCHLD);
    sigaddset(ret_set, SIGUSR1); /* a loop has posted a request, see token_file.h */
}

void signals_block(void)
{
    sigset_t set;

    own_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* A loop ticks ten times a second; one that did not within patience_ms is stuck. */
static bool all_alive(struct server *server, int64_t patience_ms)
{
    int64_t now_ms = clock_mono_ms();

    for (int i = 0; i <= server->loop_count; i++)
        if (now_ms - atomic_load(&server->workers[i].ticked_ms) > patience_ms)
            return false;
    return true;
}

static int wait_for(const sigset_t *set, int64_t most_ms)
{
    struct timespec most = {.tv_sec = most_ms / 1000, .tv_nsec = most_ms % 1000 * 1000000};
    int got = sigtimedwait(set, NULL, &most);

    assert(got > 0 || errno == EAGAIN || errno == EINTR);
    return got > 0 ? got : 0;
}

int signals_wait(struct server *server, struct dev *agent)
{
    int64_t watchdog_ms = notify_watchdog_ms();
    int64_t every_ms = watchdog_ms > 0 && watchdog_ms / 3 < TOKEN_FILE_LOOK_MS ? watchdog_ms / 3
                                                                               : TOKEN_FILE_LOOK_MS;
    bool more = false; /* requests of the loops are still waiting */
    sigset_t set, others;

    own_signals(&set);
    others = set;
    sigdelset(&others, SIGUSR1);
    for (;;) {
        /* Of several pending signals the kernel returns the one with the lowest number, and busy
         * loops send SIGUSR1 all the time: signals from users and children are checked first. */
        int got = wait_for(&others, 0);

        if (!got)
            got = wait_for(&set, more ? 0 : every_ms);

        if (got == SIGTERM || got == SIGINT)
            return got;
        if (got == SIGCHLD)
            dev_revive(agent, server);
        if (got == SIGHUP)
            reload_run(server);
        more = token_file_run(server);
        token_file_look(server);
        if (watchdog_ms > 0 && all_alive(server, watchdog_ms / 2))
            notify_send("WATCHDOG=1");
    }
}
