/* The main thread's work between two signals. Loops post to its inbox and wake it with SIGUSR1. */
#include "server/token_file.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "server/audit.h"
#include "server/errand.h"
#include "server/events.h"
#include "server/hub.h"
#include "server/listen.h"
#include "server/refusals.h"
#include "server/submit_socket.h"
#include "server/waiters.h"

enum { WATCHED_MAX = 5, NAMED_MAX = 8 };

struct warden {
    struct file_stamp stamps[WATCHED_MAX]; /* of the files as they were last read */
    int64_t looked_ms;                     /* monotonic */
    struct msg *left;                      /* of the errands: taken, and not run yet */
    bool stopping;                         /* the loops have ended */
};

/* tokens_file, else tokens.yaml in the data directory. */
static const char *tokens_path(const struct settings *settings, struct arena *arena)
{
    if (settings->tokens_file.len)
        return arena_cstr(arena, settings->tokens_file);
    return arena_fmt(arena, STR_FMT "/tokens.yaml", STR_ARG(settings->data_dir)).at;
}

static enum err read_file(const char *path, bool must, struct arena *arena,
                          struct tokens *ret_tokens, struct problem *why)
{
    struct problem what;
    struct str text;
    enum err err = file_read(path, TOKENS_FILE_BYTES_MAX, arena, &text, &what);

    *ret_tokens = (struct tokens){0};
    if (err == ERR_NOT_FOUND && !must)
        return ERR_OK;
    if (!err)
        err = tokens_parse(text, arena, ret_tokens, &what);
    if (err)
        return problem_set(why, ERR_BAD_CONFIG, "tokens_file", "%s: %.200s", path, what.detail);
    return ERR_OK;
}

enum err warden_read(const struct server *server, const struct settings *settings,
                     struct auth **ret_auth, struct problem *why)
{
    struct auth *auth = auth_new();
    struct arena arena = {0};
    struct tokens own;
    bool named = settings->tokens_file.len > 0;
    enum err err =
        read_file(tokens_path(settings, &arena), named && server->guarded, &auth->arena, &own, why);

    arena_free(&arena);
    if (err) {
        auth_free(auth);
        return err;
    }
    auth->tokens = tokens_join(&settings->tokens, &own, &auth->arena);
    auth->fixed = settings->tokens.count;
    if (auth->tokens.count > 0 && server->dev_token.name.len)
        auth->tokens = tokens_with(&auth->tokens, &server->dev_token, &auth->arena);
    auth_begin_meters(auth, server->auth);
    *ret_auth = auth;
    return ERR_OK;
}

enum err warden_check(const struct server *server, const struct settings *settings,
                      const struct auth *auth, struct problem *why)
{
    if (server->guarded && auth->tokens.count == 0)
        return problem_set(why, ERR_BAD_CONFIG, "tokens",
                           "No token would be left: without any, everybody may do everything. Stop "
                           "the server to take the last one away.");
    return listen_check(settings, auth->tokens.count > 0, why);
}

/* Rows that are older than the scope `deploy` say less than their tokens may do. */
static void tell_old_operate(const struct auth *auth)
{
    struct buf names = {0};
    size_t count = 0;

    for (size_t i = 0; i < auth->tokens.count; i++)
        if (auth->tokens.at[i].old_operate && count++ < NAMED_MAX)
            buf_fmt(&names, "%s" STR_FMT, names.len ? ", " : "", STR_ARG(auth->tokens.at[i].name));
    if (count > 0)
        log_event(LOG_WARN, "tokens.operate_deploys", KI("tokens", (int64_t)count),
                  KS("names", buf_view(&names)),
                  KC("reason",
                     "their rows are from before `deploy` was a scope of its own, so that "
                     "`operate` brings it along: say what they may do, with format: 2"));
    buf_free(&names);
}

/* Files whose change is noticed, in the order of the stamps. */
static void stamp_all(const struct settings *settings, struct file_stamp to[WATCHED_MAX])
{
    const struct str tls[] = {settings->tls_cert, settings->tls_key, settings->tls_client_ca,
                              settings->tls_client_crl};
    struct arena arena = {0};

    to[0] = file_stamp(tokens_path(settings, &arena));
    for (size_t i = 0; i < COUNT_OF(tls); i++)
        to[i + 1] = tls[i].len ? file_stamp(arena_cstr(&arena, tls[i])) : (struct file_stamp){0};
    _Static_assert(COUNT_OF(tls) + 1 == WATCHED_MAX, "a stamp for each");
    arena_free(&arena);
}

static void wake_main(struct inbox *inbox)
{
    kill(getpid(), SIGUSR1); /* blocked in every thread: the one that waits for signals gets it */
}

enum err warden_open(struct server *server, struct problem *why)
{
    const struct settings *settings = server->settings;
    struct auth *auth;
    enum err err;

    server->warden = mem_new(struct warden);
    server->errands.wake = wake_main;
    server->notes.wake = wake_main;
    stamp_all(settings, server->warden->stamps);
    err = warden_read(server, settings, &auth, why);
    if (err)
        return err;
    server->auth = auth;
    err = warden_check(server, settings, auth, why);
    if (err)
        return err;
    server->guarded = auth->tokens.count > 0;
    tell_old_operate(auth);
    return ERR_OK;
}

void warden_free(struct server *server)
{
    audit_free(server->audit);
    for (int i = 0; server->workers && i <= server->loop_count; i++)
        auth_free(server->workers[i].auth);
    auth_free(server->auth);
    free(server->warden);
}

/* --- to every loop --- */

struct handover {
    struct errand errand;
    struct auth *auth;
};

static void swap_here(struct errand *errand)
{
    struct handover *handover = container_of(errand, struct handover, errand);
    struct worker *worker = errand->worker;

    auth_free(worker->auth);
    worker->auth = auth_ref(handover->auth);
    worker->auth_number++;
    hub_recheck(worker->hub);
    events_recheck(worker->events);
    waiters_recheck(worker->waiters);
    submit_sockets_recheck(worker->submit_sockets);
}

void warden_swap(struct server *server, struct auth *auth)
{
    struct auth *old = server->auth;

    assert(auth->owners >= 1);
    server->auth = auth;
    server->guarded = auth->tokens.count > 0;
    for (int i = 0; i < server->loop_count; i++) {
        struct handover handover = {.errand = {.run = swap_here, .worker = &server->workers[i]},
                                    .auth = auth};

        errand_run(&handover.errand);
    }
    tell_old_operate(auth);
    if (old != auth)
        auth_free(old);
}

/* --- files that changed --- */

static void reread_tokens(struct server *server)
{
    struct problem why;
    struct auth *auth;

    if (warden_read(server, server->settings, &auth, &why)) {
        log_event(LOG_ERROR, "tokens.refused", KC("reason", why.detail));
        metric_add_label(METRIC_RELOADS, "refused", 1);
        return;
    }
    if (warden_check(server, server->settings, auth, &why)) {
        log_event(LOG_ERROR, "tokens.refused", KC("reason", why.detail));
        metric_add_label(METRIC_RELOADS, "refused", 1);
        auth_free(auth);
        return;
    }
    warden_swap(server, auth);
    log_event(LOG_INFO, "tokens.reloaded", KI("tokens", (int64_t)auth->tokens.count));
    metric_add_label(METRIC_RELOADS, "ok", 1);
}

static void reread_tls(struct server *server)
{
    const struct settings *settings = server->settings;
    struct problem why;
    enum err err = listen_tls(server, settings, &why);

    metric_add_label(METRIC_RELOADS, err ? "refused" : "ok", 1);
    if (err)
        log_event(LOG_ERROR, "tls.refused", KC("reason", why.detail));
    else
        log_event(LOG_INFO, "tls.reloaded", KS("cert", settings->tls_cert));
}

/* A connection outlives the request that let it in: when a token ends, so do they. */
static bool some_expired(const struct auth *auth, int64_t from_ms, int64_t to_ms)
{
    for (size_t i = 0; i < auth->tokens.count; i++)
        if (token_expired(&auth->tokens.at[i], to_ms) &&
            !token_expired(&auth->tokens.at[i], from_ms))
            return true;
    return false;
}

void warden_look(struct server *server)
{
    struct warden *warden = server->warden;
    struct file_stamp stamps[WATCHED_MAX];
    int64_t now_ms = clock_mono_ms();
    bool tls = false;

    if (now_ms - warden->looked_ms < WARDEN_LOOK_MS)
        return;
    int64_t passed_ms = warden->looked_ms ? now_ms - warden->looked_ms : 0;
    warden->looked_ms = now_ms;
    stamp_all(server->settings, stamps);
    for (int i = 1; i < WATCHED_MAX; i++)
        tls |= !file_stamp_same(&stamps[i], &warden->stamps[i]);
    bool tokens = !file_stamp_same(&stamps[0], &warden->stamps[0]);
    memcpy(warden->stamps, stamps, sizeof stamps);
    if (tls)
        reread_tls(server);
    if (tokens)
        reread_tokens(server);
    else if (some_expired(server->auth, clock_wall_ms() - passed_ms - WARDEN_LOOK_MS,
                          clock_wall_ms()))
        warden_swap(server, server->auth);
}

bool warden_run(struct server *server)
{
    struct warden *warden = server->warden;
    int64_t until_ms = clock_mono_ms() + WARDEN_SLICE_MS;
    bool late = false;
    struct msg *msg;

    while (!late && (msg = inbox_next(&server->errands, &warden->left))) {
        msg->run(msg);
        late = clock_mono_ms() >= until_ms;
    }
    return audit_run(server) || late;
}

void warden_end(struct server *server)
{
    if (!server->audit)
        return; /* they never began */
    server->warden->stopping = true;
    for (int i = 0; i < server->loop_count; i++)
        refusals_tell(&server->workers[i]);
    while (warden_run(server))
        ;
}

/* --- tokens that come and go --- */

static void edit_over(struct msg *msg)
{
    struct token_edit *edit = container_of(msg, struct token_edit, msg);

    edit->done(edit);
}

/* What the file shall hold; `had` is what it holds. */
static enum err changed(const struct server *server, const struct token_edit *edit,
                        const struct tokens *had, struct arena *arena, struct tokens *ret_tokens,
                        struct problem *why)
{
    const struct tokens *all = &server->auth->tokens;
    int64_t now_ms = clock_wall_ms();

    if (edit->add && tokens_find(all, edit->name))
        return problem_set(why, ERR_CONFLICT, "name",
                           "There is a token " STR_FMT " already; revoke it first, or take another "
                           "name.",
                           STR_ARG(edit->name));
    if (edit->add && all->count == 0 && !(edit->add->scopes & 1u << SCOPE_ADMIN))
        return problem_set(why, ERR_CONFLICT, "scopes",
                           "The first token must have the scope admin: with it the others are "
                           "made.");
    if (edit->add) {
        *ret_tokens = tokens_with(had, edit->add, arena);
        return ERR_OK;
    }
    if (!tokens_find(had, edit->name))
        return tokens_find(all, edit->name)
                   ? problem_set(why, ERR_CONFLICT, "name",
                                 "The token " STR_FMT " stands in the configuration: take it out "
                                 "there and send SIGHUP.",
                                 STR_ARG(edit->name))
                   : problem_set(why, ERR_NOT_FOUND, "name", "There is no token " STR_FMT ".",
                                 STR_ARG(edit->name));
    struct tokens left = tokens_without(all, edit->name, arena);
    if (tokens_having(all, SCOPE_ADMIN, now_ms) > 0 && !tokens_having(&left, SCOPE_ADMIN, now_ms))
        return problem_set(why, ERR_CONFLICT, "name",
                           "The token " STR_FMT " is the last one with the scope admin: make "
                           "another first.",
                           STR_ARG(edit->name));
    *ret_tokens = tokens_without(had, edit->name, arena);
    return ERR_OK;
}

static enum err apply(struct server *server, struct token_edit *edit, struct problem *why)
{
    struct arena arena = {0};
    const char *path = tokens_path(server->settings, &arena);
    struct tokens had, next;
    struct auth *auth = NULL;
    struct buf text = {0};
    enum err err = read_file(path, false, &arena, &had, why);

    if (!err)
        err = changed(server, edit, &had, &arena, &next, why);
    if (!err) {
        tokens_write(&next, &text);
        err = file_replace(path, buf_view(&text), why);
    }
    if (!err)
        err = warden_read(server, server->settings, &auth, why);
    if (!err) {
        server->warden->stamps[0] = file_stamp(path);
        warden_swap(server, auth);
    }
    buf_free(&text);
    arena_free(&arena);
    return err;
}

static void edit_here(struct msg *msg)
{
    struct token_edit *edit = container_of(msg, struct token_edit, msg);
    struct server *server = edit->from->server;

    edit->err = server->warden->stopping
                    ? problem_set(&edit->why, ERR_BUSY, "", "The server is stopping.")
                    : apply(server, edit, &edit->why);
    edit->msg.run = edit_over;
    inbox_post(&edit->from->loop.inbox, &edit->msg);
}

void warden_edit(struct token_edit *edit)
{
    assert(edit->from && edit->done && edit->name.len);
    edit->msg.run = edit_here;
    inbox_post(&edit->from->server->errands, &edit->msg);
}
