/* The way of a request to the database and back. */
#include "server/deploy.h"

#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "server/hub.h"

/* On the SQL thread. */
static void changed(void *user, int64_t news)
{
    struct server *server = user;

    assert(news > 0);
    atomic_store(&server->deploy_news, news);
}

enum err deploy_open(struct server *server, struct problem *why)
{
    const struct settings *settings = server->settings;
    struct arena arena = {0};
    struct deploys_config config = {.url = arena_cstr(&arena, settings->database),
                                    .data_dir = arena_cstr(&arena, settings->data_dir),
                                    .timeout_ms = settings->database_timeout_ms,
                                    .changed = changed,
                                    .user = server};
    enum err err = ERR_OK;

    if (!settings->database.len)
        config.url = "sqlite:";
    if (settings->database.len || str_starts(settings->store, STR("embedded:")))
        err = deploys_open(&config, &server->deploys, why);
    arena_free(&arena);
    return err;
}

void deploy_tick(struct worker *worker)
{
    int64_t news = atomic_load(&worker->server->deploy_news);

    if (news == worker->told_news)
        return;
    worker->told_news = news;
    hub_tell_all(worker->hub, STR("{\"msg\":\"deployments_changed\"}"));
}

void deploy_watch(struct server *server)
{
    struct deploys_status status;

    if (!server->deploys)
        return;
    deploys_status(server->deploys, &status);
    if (status.up != server->database_down)
        return; /* as it was told */
    server->database_down = !status.up;
    if (status.up)
        log_event(LOG_INFO, "database.up", KI("errors", status.errors));
    else
        log_event(LOG_WARN, "database.down", KC("reason", status.detail));
}

static void failed(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct call *call = own->call;
    struct str id = call->params[0].at ? call->params[0] : op->id; /* as the caller said it */

    if (op->err == ERR_NOT_FOUND)
        call_error(call, op->err, "id", "There is no deployment \"" STR_FMT "\".", STR_ARG(id));
    else if (op->err == ERR_PRECONDITION && op->found)
        call_error(call, op->err, "If-Match", "It is in version %lld now.",
                   (long long)op->row.version);
    else if (op->err == ERR_PRECONDITION)
        call_error(call, op->err, "If-Match", "There is no deployment \"" STR_FMT "\".",
                   STR_ARG(id));
    else if (op->err == ERR_BAD_REQUEST)
        call_error(call, op->err, "", "The database takes no such value (" STR_FMT ").",
                   STR_ARG(op->detail));
    else
        call_error(call, op->err, "", "%s.",
                   op->err == ERR_STORE_DOWN ? "The database cannot be reached"
                                             : err_title(op->err));
}

static void answered(struct deploys_op *op)
{
    struct deploy_call *own = container_of(op, struct deploy_call, op);

    assert(op->arena == own->call->arena);
    if (op->err == ERR_INTERNAL)
        log_event(LOG_ERROR, "database.refused", KC("route", own->call->route->path),
                  KS("reason", op->detail));
    if (op->err && op->err != ERR_CONFLICT)
        failed(own);
    else
        own->answer(own);
}

struct deploy_call *deploy_call(struct call *call, enum deploys_verb verb,
                                void (*answer)(struct deploy_call *own))
{
    struct deploy_call *own = arena_new(call->arena, struct deploy_call);

    assert(verb < DEPLOYS_VERB_COUNT && answer);
    own->call = call;
    own->answer = answer;
    own->op = (struct deploys_op){.verb = verb,
                                  .reply_to = &call->worker->loop.inbox,
                                  .done = answered,
                                  .arena = call->arena};
    return own;
}

void deploy_send(struct deploy_call *own)
{
    struct server *server = own->call->worker->server;
    const struct settings *settings = atomic_load(&server->settings);

    if (!server->deploys) {
        call_error(own->call, ERR_NO_DATABASE, "",
                   "Several instances may share this store, so deployments need a database they "
                   "share as well: --database postgresql://...");
        return;
    }
    own->op.until_mono_ms = own->call->worker->loop.mono_ms + settings->database_timeout_ms;
    enum err err = deploys_send(server->deploys, &own->op);
    if (err) { /* else the op is not ours before its answer */
        own->op.err = err;
        failed(own);
    }
}
