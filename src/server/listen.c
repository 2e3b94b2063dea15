/* Each loop opens its own listener, on its own thread; the main thread waits for the outcome. */
#include "server/listen.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/route.h"

enum { ADDR_MAX = 256 };

/* One errand on a loop, awaited by the main thread. */
struct errand {
    struct msg msg;
    struct worker *worker;
    const char *addr;
    struct net_tls *tls;
    enum err err;
    struct problem why;
    sem_t over;
};

static enum err run_errand(struct errand *errand, struct problem *why)
{
    sem_init(&errand->over, 0, 0);
    inbox_post(&errand->worker->loop.inbox, &errand->msg);
    while (sem_wait(&errand->over))
        ;
    sem_destroy(&errand->over);
    if (errand->err)
        *why = errand->why;
    return errand->err;
}

/* NULL without TLS. One for each listener: connections of a loop count on it without atomics. */
static enum err new_tls(const struct settings *settings, struct net_tls **ret_tls,
                        struct problem *why)
{
    struct arena arena = {0};
    enum err err;

    *ret_tls = NULL;
    if (!settings->tls_cert.len)
        return ERR_OK;
    err = net_tls_server(
        arena_cstr(&arena, settings->tls_cert), arena_cstr(&arena, settings->tls_key),
        settings->tls_client_ca.len ? arena_cstr(&arena, settings->tls_client_ca) : NULL, ret_tls,
        why);
    arena_free(&arena);
    return err;
}

static void serve_here(struct msg *msg)
{
    struct errand *errand = container_of(msg, struct errand, msg);
    struct worker *worker = errand->worker;

    assert(worker->serves && !worker->http.priv);
    worker->http = (struct http_server){.loop = &worker->loop,
                                        .limits = &worker->server->limits,
                                        .callbacks = &route_callbacks,
                                        .owner = worker};
    errand->err = http_serve(&worker->http, errand->addr, &errand->why);
    if (!errand->err && errand->tls)
        net_listener_tls(worker->http.listener, errand->tls);
    net_tls_free(errand->tls); /* the listener keeps it */
    sem_post(&errand->over);
}

static void change_tls_here(struct msg *msg)
{
    struct errand *errand = container_of(msg, struct errand, msg);

    assert(errand->tls && errand->worker->http.priv);
    net_listener_tls(errand->worker->http.listener, errand->tls);
    net_tls_free(errand->tls);
    sem_post(&errand->over);
}

static enum err serve_one(struct worker *worker, const char *addr, struct problem *why)
{
    struct errand errand = {.msg = {.run = serve_here}, .worker = worker, .addr = addr};
    enum err err = new_tls(worker->server->settings, &errand.tls, why);

    return err ? err : run_errand(&errand, why);
}

/* The first listener may take a free port; the others join it there. */
enum err listen_all(struct server *server, struct problem *why)
{
    const struct settings *settings = server->settings;
    char addr[ADDR_MAX];

    str_copy(settings->listen, addr, sizeof addr);
    for (int i = 0; i < server->loop_count; i++) {
        enum err err = serve_one(&server->workers[i], addr, why);

        if (err)
            return err;
        server->port = http_port(&server->workers[i].http);
        char *colon = strrchr(addr, ':');
        assert(colon);
        snprintf(colon, sizeof addr - (size_t)(colon - addr), ":%d", server->port);
    }
    log_event(LOG_INFO, "server.listening", KC("addr", addr), KC("version", BERTH_VERSION),
              KI("loops", server->loop_count), KI("pid", getpid()));
    return ERR_OK;
}

/* Files may change while we read them: all are read before the first listener gets its own. */
enum err listen_tls(struct server *server, const struct settings *settings, struct problem *why)
{
    struct errand errands[SERVER_LOOPS_MAX] = {0};
    enum err err = ERR_OK;

    assert(server->loop_count <= SERVER_LOOPS_MAX);
    if (!settings->tls_cert.len)
        return ERR_OK;
    for (int i = 0; !err && i < server->loop_count; i++)
        err = new_tls(settings, &errands[i].tls, why);
    for (int i = 0; err && i < server->loop_count; i++)
        net_tls_free(errands[i].tls);
    for (int i = 0; !err && i < server->loop_count; i++) {
        errands[i].msg.run = change_tls_here;
        errands[i].worker = &server->workers[i];
        err = run_errand(&errands[i], why);
        assert(!err);
    }
    return err;
}

enum err listen_check(const struct settings *settings, struct problem *why)
{
    char addr[ADDR_MAX];

    if (!str_copy(settings->listen, addr, sizeof addr) || !strrchr(addr, ':'))
        return problem_set(why, ERR_BAD_CONFIG, "listen",
                           "listen must be an address and a port, like 127.0.0.1:7420.");
    if (!net_addr_is_loopback(addr) && !settings->auth.count)
        return problem_set(why, ERR_BAD_CONFIG, "listen",
                           "%s is not a loopback address: without tokens the server is reachable "
                           "from this machine only.",
                           addr);
    return ERR_OK;
}
