/* The main thread's work between two signals: token and certificate files that changed, and edits
 * of the token file. Loops post to its inbox and wake it with SIGUSR1. /v1/tokens: who may call.
 * Only digests are stored; a token is shown once, when it is created. */
#include "server/token_file.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "server/api.h"
#include "server/api_job.h"
#include "server/audit.h"
#include "server/events.h"
#include "server/guard.h"
#include "server/hub.h"
#include "server/listen.h"
#include "server/submit_socket.h"

/* From a loop: adds or removes a token in the file, durably; `done` is called on that loop when
 * every loop has the new tokens. Lives in the request's memory. */
struct token_edit {
    struct msg msg;
    struct worker *from;
    const struct token *add; /* NULL: remove */
    struct str name;
    enum err err;
    struct problem why;
    void (*done)(struct token_edit *edit);
};

/* --- the token file --- */

enum { WATCHED_MAX = 5, NAMED_MAX = 8 };

struct token_file {
    struct file_stamp stamps[WATCHED_MAX]; /* of the files as they were last read */
    int64_t looked_ms;                     /* monotonic */
    struct msg *left;                      /* of server->errands: taken but not run yet */
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

enum err token_file_read(const struct server *server, const struct settings *settings,
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

enum err token_file_check(const struct server *server, const struct settings *settings,
                          const struct auth *auth, struct problem *why)
{
    if (server->guarded && auth->tokens.count == 0)
        return problem_set(why, ERR_BAD_CONFIG, "tokens",
                           "No token would be left: without any, everybody may do everything. Stop "
                           "the server to take the last one away.");
    return listen_check(settings, auth->tokens.count > 0, why);
}

/* Rows from before the scope `deploy` existed grant more than they say. */
static void warn_old_operate(const struct auth *auth)
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

/* The files that are watched for changes, in the order of the stamps. */
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
    kill(getpid(), SIGUSR1); /* blocked in every thread: the main thread gets it, in sigtimedwait */
}

enum err token_file_open(struct server *server, struct problem *why)
{
    const struct settings *settings = server->settings;
    struct auth *auth;
    enum err err;

    server->token_file = mem_new(struct token_file);
    server->errands.wake = wake_main;
    server->notes.wake = wake_main;
    stamp_all(settings, server->token_file->stamps);
    err = token_file_read(server, settings, &auth, why);
    if (err)
        return err;
    server->auth = auth;
    err = token_file_check(server, settings, auth, why);
    if (err)
        return err;
    server->guarded = auth->tokens.count > 0;
    warn_old_operate(auth);
    return ERR_OK;
}

void token_file_free(struct server *server)
{
    audit_free(server->audit);
    for (int i = 0; server->workers && i <= server->loop_count; i++)
        auth_free(server->workers[i].auth);
    auth_free(server->auth);
    free(server->token_file);
}

/* --- to every loop --- */

struct handover {
    struct loop_call loop_call;
    struct auth *auth;
};

static void swap_here(struct loop_call *loop_call)
{
    struct handover *handover = container_of(loop_call, struct handover, loop_call);
    struct worker *worker = loop_call->worker;

    auth_free(worker->auth);
    worker->auth = auth_ref(handover->auth);
    worker->auth_number++;
    hub_recheck(worker->hub);
    events_recheck(worker->events);
    waiters_recheck(worker->waiters);
    submit_sockets_recheck(worker->submit_sockets);
}

void token_file_swap(struct server *server, struct auth *auth)
{
    struct auth *old = server->auth;

    assert(auth->owners >= 1);
    server->auth = auth;
    server->guarded = auth->tokens.count > 0;
    for (int i = 0; i < server->loop_count; i++) {
        struct handover handover = {.loop_call = {.run = swap_here, .worker = &server->workers[i]},
                                    .auth = auth};

        loop_call_run(&handover.loop_call);
    }
    warn_old_operate(auth);
    if (old != auth)
        auth_free(old);
}

/* --- files that changed --- */

static void reread_tokens(struct server *server)
{
    struct auth *auth = NULL;
    struct problem why;
    enum err err = token_file_read(server, server->settings, &auth, &why);

    if (!err)
        err = token_file_check(server, server->settings, auth, &why);
    if (err) {
        log_event(LOG_ERROR, "tokens.refused", KC("reason", why.detail));
        auth_free(auth);
    } else {
        token_file_swap(server, auth);
        log_event(LOG_INFO, "tokens.reloaded", KI("tokens", (int64_t)auth->tokens.count));
    }
    metric_add_label(METRIC_RELOADS, err ? "refused" : "ok", 1);
}

/* A connection outlives the request that authenticated it: when its token expires, it must close.
 */
static bool some_expired(const struct auth *auth, int64_t from_ms, int64_t to_ms)
{
    for (size_t i = 0; i < auth->tokens.count; i++)
        if (token_expired(&auth->tokens.at[i], to_ms) &&
            !token_expired(&auth->tokens.at[i], from_ms))
            return true;
    return false;
}

void token_file_look(struct server *server)
{
    struct token_file *token_file = server->token_file;
    struct file_stamp stamps[WATCHED_MAX];
    int64_t now_ms = clock_mono_ms();
    bool tls = false;

    if (now_ms - token_file->looked_ms < TOKEN_FILE_LOOK_MS)
        return;
    int64_t passed_ms = token_file->looked_ms ? now_ms - token_file->looked_ms : 0;
    token_file->looked_ms = now_ms;
    stamp_all(server->settings, stamps);
    for (int i = 1; i < WATCHED_MAX; i++)
        tls |= !file_stamp_same(&stamps[i], &token_file->stamps[i]);
    bool tokens = !file_stamp_same(&stamps[0], &token_file->stamps[0]);
    memcpy(token_file->stamps, stamps, sizeof stamps);
    if (tls) {
        const struct settings *settings = server->settings;
        struct problem why;
        enum err err = listen_tls(server, settings, &why);

        metric_add_label(METRIC_RELOADS, err ? "refused" : "ok", 1);
        if (err)
            log_event(LOG_ERROR, "tls.refused", KC("reason", why.detail));
        else
            log_event(LOG_INFO, "tls.reloaded", KS("cert", settings->tls_cert));
    }
    if (tokens)
        reread_tokens(server);
    else if (some_expired(server->auth, clock_wall_ms() - passed_ms - TOKEN_FILE_LOOK_MS,
                          clock_wall_ms()))
        token_file_swap(server, server->auth);
}

bool token_file_run(struct server *server)
{
    struct token_file *token_file = server->token_file;
    int64_t until_ms = clock_mono_ms() + TOKEN_FILE_SLICE_MS;
    bool late = false;
    struct msg *msg;

    while (!late && (msg = inbox_next(&server->errands, &token_file->left))) {
        msg->run(msg);
        late = clock_mono_ms() >= until_ms;
    }
    return audit_run(server) || late;
}

void token_file_end(struct server *server)
{
    if (!server->audit)
        return; /* never opened */
    server->token_file->stopping = true;
    for (int i = 0; i < server->loop_count; i++)
        refusals_flush(&server->workers[i]);
    while (token_file_run(server))
        ;
}

/* --- adding and removing tokens --- */

static void edit_over(struct msg *msg)
{
    struct token_edit *edit = container_of(msg, struct token_edit, msg);

    edit->done(edit);
}

/* The new contents of the file; `had`: the current tokens. */
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

static void edit_here(struct msg *msg)
{
    struct token_edit *edit = container_of(msg, struct token_edit, msg);
    struct server *server = edit->from->server;
    struct problem *why = &edit->why;
    struct arena arena = {0};
    const char *path = tokens_path(server->settings, &arena);
    struct tokens had, next;
    struct auth *auth = NULL;
    struct buf text = {0};
    enum err err = server->token_file->stopping
                       ? problem_set(why, ERR_BUSY, "", "The server is stopping.")
                       : read_file(path, false, &arena, &had, why);

    if (!err)
        err = changed(server, edit, &had, &arena, &next, why);
    if (!err) {
        tokens_write(&next, &text);
        err = file_replace(path, buf_view(&text), why);
    }
    if (!err)
        err = token_file_read(server, server->settings, &auth, why);
    if (!err) {
        server->token_file->stamps[0] = file_stamp(path);
        token_file_swap(server, auth);
    }
    buf_free(&text);
    arena_free(&arena);
    edit->err = err;
    edit->msg.run = edit_over;
    inbox_post(&edit->from->loop.inbox, &edit->msg);
}

static void token_file_edit(struct token_edit *edit)
{
    assert(edit->from && edit->done && edit->name.len);
    edit->msg.run = edit_here;
    inbox_post(&edit->from->server->errands, &edit->msg);
}

/* --- /v1/tokens --- */

static const int64_t EXPIRES_MS_MAX = INT64_C(100) * 365 * 86400 * 1000;

/* In order of creation; the cursor is a position in that order. */
void api_token_list(struct call *call)
{
    const struct auth *auth = call->worker->auth;
    int64_t limit = CALL_LIST_DEFAULT, from = 0;

    if (!call_query_int(call, "limit", 1, CALL_LIST_MAX, &limit) ||
        !call_query_int(call, "cursor", 0, TOKENS_MAX, &from))
        return;
    struct jsonw w = call_begin(call);
    jsonw_karr(&w, "tokens");
    size_t i = (size_t)from;
    for (; i < auth->tokens.count && (int64_t)i < from + limit; i++) {
        jsonw_obj(&w);
        token_members(&w, &auth->tokens.at[i], false);
        jsonw_kbool(&w, "expired", token_expired(&auth->tokens.at[i], call->worker->loop.wall_ms));
        jsonw_kstr(&w, "source", i < auth->fixed ? STR("configuration") : STR("file"));
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    jsonw_kstr(&w, "next_cursor",
               i < auth->tokens.count ? arena_fmt(call->arena, "%zu", i) : STR_NONE);
    call_end(call, 200, &w);
}

struct token_call {
    struct token_edit edit;
    struct call *call;
    struct token token;
    char secret[DIGEST_HEX + 1]; /* "": the caller has it already */
};

static void created(struct token_edit *edit)
{
    struct token_call *own = container_of(edit, struct token_call, edit);
    struct call *call = own->call;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    if (edit->err) {
        explicit_bzero(own->secret, sizeof own->secret);
        call_problem(call, &edit->why);
        return;
    }
    jsonw_obj(&w);
    token_members(&w, &own->token, false);
    if (own->secret[0])
        jsonw_kstr(&w, "token", str_of(own->secret));
    jsonw_end_obj(&w);
    explicit_bzero(own->secret, sizeof own->secret);
    call_body(call, 201, buf_view(&buf));
    explicit_bzero(buf.at, buf.len);
    buf_free(&buf);
}

/* Applies the rules of the file: the request is read as if it were a row of it. */
static enum err read_new(struct token_call *own, struct problem *why)
{
    struct call *call = own->call;
    struct buf line = {0};
    struct jsonw w = jsonw_to(&line);
    static const char *const optional[] = {"node_id", "quota", "namespace"};
    const struct json *digest = json_get(call->body, "sha256"), *list;
    struct tokens tokens;
    int64_t expires_in_ms = 0;
    enum err err;

    /* Earlier versions accepted any text as a name; files with such names can still be read. */
    if (!str_is_id(json_str(json_get(call->body, "name"), call->arena), TOKEN_NAME_MAX))
        return problem_set(why, ERR_BAD_FIELD, "name",
                           "name is required: 1 to %d letters, digits or ._:@-.", TOKEN_NAME_MAX);
    if (json_is_null(digest)) {
        if (!digest_secret(own->secret))
            return problem_set(why, ERR_INTERNAL, "", "There are no random bytes.");
        digest_sha256_hex(str_of(own->secret), own->token.digest);
    }
    jsonw_arr(&w);
    jsonw_obj(&w);
    jsonw_kraw(&w, "name", json_raw(json_get(call->body, "name")));
    if (json_is_null(digest))
        jsonw_kstr(&w, "sha256", str_of(own->token.digest));
    else
        jsonw_kraw(&w, "sha256", json_raw(digest));
    jsonw_kraw(&w, "scopes", json_raw(json_get(call->body, "scopes")));
    for (size_t i = 0; i < COUNT_OF(optional); i++)
        if (!json_is_null(json_get(call->body, optional[i])))
            jsonw_kraw(&w, optional[i], json_raw(json_get(call->body, optional[i])));
    jsonw_kint(&w, "format", 2); /* the row lists all scopes explicitly */
    jsonw_end_obj(&w);
    jsonw_end_arr(&w);
    struct str text = arena_str(call->arena, buf_view(&line));
    buf_free(&line);
    err = json_parse(text, call->arena, &list, why);
    if (!err)
        err = tokens_read(list, call->arena, &tokens, why);
    if (err)
        return problem_set(why, ERR_BAD_FIELD, "token", "%s", strdupa(why->detail));
    own->token = tokens.at[0];
    own->token.created_ms = call->worker->loop.wall_ms;
    const struct json *expires = json_get(call->body, "expires_in_ms");
    if (!json_is_null(expires) && (!json_int(expires, &expires_in_ms) || expires_in_ms <= 0 ||
                                   expires_in_ms > EXPIRES_MS_MAX))
        return problem_set(why, ERR_BAD_FIELD, "expires_in_ms",
                           "expires_in_ms must be a number of milliseconds from now.");
    if (expires_in_ms)
        own->token.expires_ms = own->token.created_ms + expires_in_ms;
    return ERR_OK;
}

void api_token_create(struct call *call)
{
    struct token_call *own = arena_new(call->arena, struct token_call);
    struct problem why;

    own->call = call;
    if (read_new(own, &why)) {
        call_problem(call, &why);
        return;
    }
    own->edit = (struct token_edit){
        .from = call->worker, .add = &own->token, .name = own->token.name, .done = created};
    token_file_edit(&own->edit);
}

static void revoked(struct token_edit *edit)
{
    struct token_call *own = container_of(edit, struct token_call, edit);

    if (edit->err)
        call_problem(own->call, &edit->why);
    else
        call_ok(own->call);
}

void api_token_delete(struct call *call)
{
    struct token_call *own = arena_new(call->arena, struct token_call);

    own->call = call;
    own->edit = (struct token_edit){.from = call->worker, .name = call->params[0], .done = revoked};
    token_file_edit(&own->edit);
}
