/* Validate, then swap. Settings that were live before stay in memory until the end of the process:
 * a request or a connection may hold its token or a limit of theirs. */
#include "server/reload.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "io/notify.h"
#include "server/listen.h"
#include "server/token_file.h"

/* What is wrong only because of what runs now. */
static enum err check_running(const struct server *server, const struct settings *next,
                              const struct auth *auth, struct problem *why)
{
    const struct settings *now = server->settings;

    if (!next->tls_cert.len != !now->tls_cert.len)
        return problem_set(why, ERR_BAD_CONFIG, "tls_cert",
                           "tls_cert: TLS is turned on or off only by a restart.");
    return warden_check(server, next, auth, why);
}

static enum err reopen_log(const struct settings *settings, struct problem *why)
{
    struct arena arena = {0};
    enum err err = ERR_OK;

    if (settings->log_file.len)
        err = log_open(arena_cstr(&arena, settings->log_file), why);
    arena_free(&arena);
    return err;
}

/* Makes `next` the settings; or frees it, when it says nothing new. */
static void take_over(struct server *server, struct settings_source *next, bool changed)
{
    if (!changed) {
        settings_done(next);
        free(next);
        return;
    }
    next->before = server->source;
    server->source = next;
    server->settings = &next->settings;
    log_tune((enum log_level)next->settings.log_level, (enum log_format)next->settings.log_format);
}

static enum err reload(struct server *server, struct buf *changed, struct buf *waiting,
                       struct problem *why)
{
    struct settings_source *next = mem_new(struct settings_source);
    struct auth *auth = NULL;
    enum err err = settings_load(next, server->argc, server->argv, why);

    if (!err) {
        settings_keep(next, server->source, changed, waiting);
        err = warden_read(server, &next->settings, &auth, why);
    }
    if (!err)
        err = check_running(server, &next->settings, auth, why);
    if (!err)
        err = listen_tls(server, &next->settings, why);
    if (!err)
        err = reopen_log(&next->settings, why);
    if (err) {
        auth_free(auth);
        settings_done(next);
        free(next);
        return err;
    }
    take_over(server, next, changed->len > 0);
    warden_swap(server, auth);
    return ERR_OK;
}

static void tell_manager(void)
{
    char text[64];

    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)clock_mono_us());
    notify_send(text);
}

void reload_run(struct server *server)
{
    struct buf changed = {0}, waiting = {0};
    struct problem why = {0};

    tell_manager();
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
