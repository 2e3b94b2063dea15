/* Each loop opens its own listener, on its own thread; the main thread waits for the result. */
#include "server/listen.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/route.h"

enum {
    ADDR_MAX = 256,
    FDS_PROCESS = 64, /* store, database, logs, tokens, certificates while they are read */
    FDS_LOOP = 16,    /* libuv's, and the listener */
    FDS_LOOP_ALSO = SERVER_PUSH_CONNECTIONS_MAX + NET_REFUSED_MAX, /* at most, and rarely needed */
};

struct opening {
    struct loop_call loop_call;
    const char *addr;
    struct net_tls *tls;
    enum err err;
    struct problem why;
};

/* NULL without TLS. One for each listener: a loop's connections count references to it without
 * atomics. */
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
    if (!err && settings->tls_client_crl.len)
        err = net_tls_revoked(*ret_tls, arena_cstr(&arena, settings->tls_client_crl), why);
    arena_free(&arena);
    if (err) {
        net_tls_free(*ret_tls);
        *ret_tls = NULL;
    }
    if (!err && settings->tls_client_auth == TLS_CLIENT_OPTIONAL && settings->tls_client_ca.len)
        net_tls_client_optional(*ret_tls);
    return err;
}

static void serve_here(struct loop_call *loop_call)
{
    struct opening *opening = container_of(loop_call, struct opening, loop_call);
    struct worker *worker = loop_call->worker;

    assert(worker->serves && !worker->http.priv);
    worker->http = (struct http_server){.loop = &worker->loop,
                                        .limits = &worker->server->limits,
                                        .callbacks = &route_callbacks,
                                        .owner = worker};
    opening->err = http_serve(&worker->http, opening->addr, &opening->why);
    if (!opening->err && opening->tls)
        net_listener_tls(worker->http.listener, opening->tls);
    net_tls_free(opening->tls); /* the listener has its own reference */
}

static void change_tls_here(struct loop_call *loop_call)
{
    struct opening *opening = container_of(loop_call, struct opening, loop_call);

    assert(opening->tls && loop_call->worker->http.priv);
    net_listener_tls(loop_call->worker->http.listener, opening->tls);
    net_tls_free(opening->tls);
    int64_t closed = net_listener_recheck(loop_call->worker->http.listener);
    if (closed)
        log_event(LOG_WARN, "tls.revoked", KI("connections", closed));
}

/* The first listener may pick a free port; the others use the same one. */
enum err listen_all(struct server *server, struct problem *why)
{
    const struct settings *settings = server->settings;
    char addr[ADDR_MAX];

    str_copy(settings->listen, addr, sizeof addr);
    if (net_addr_free(addr, why))
        return ERR_IO;
    for (int i = 0; i < server->loop_count; i++) {
        struct opening opening = {.loop_call = {.run = serve_here, .worker = &server->workers[i]},
                                  .addr = addr};
        enum err err = new_tls(settings, &opening.tls, why);

        if (err)
            return err;
        loop_call_run(&opening.loop_call);
        if (opening.err) {
            *why = opening.why;
            return opening.err;
        }
        server->port = http_port(&server->workers[i].http);
        char *colon = strrchr(addr, ':');
        assert(colon);
        snprintf(colon, sizeof addr - (size_t)(colon - addr), ":%d", server->port);
    }
    log_event(LOG_INFO, "server.listening", KC("addr", addr), KC("version", BERTH_VERSION),
              KI("loops", server->loop_count),
              KI("connections_max", server->limits.net.connections_max), KI("pid", getpid()));
    /* Behind a proxy it depends on how the client called the proxy: see route.h. */
    if (!settings->tls_cert.len && !net_addr_is_loopback(addr) && !settings->proxies.count) {
        atomic_store(&server->clear_warned, true);
        log_event(LOG_WARN, "server.in_the_clear", KC("addr", addr),
                  KC("reason",
                     "tokens and payloads cross the network unencrypted: set tls_cert and "
                     "tls_key, or trusted_proxies if something in front of it speaks TLS"));
    }
    return ERR_OK;
}

/* Files may change while we read them, so all are read before any listener is changed. */
enum err listen_tls(struct server *server, const struct settings *settings, struct problem *why)
{
    struct opening openings[SERVER_LOOPS_MAX] = {0};
    enum err err = ERR_OK;

    assert(server->loop_count <= SERVER_LOOPS_MAX);
    if (!settings->tls_cert.len)
        return ERR_OK;
    for (int i = 0; !err && i < server->loop_count; i++)
        err = new_tls(settings, &openings[i].tls, why);
    for (int i = 0; err && i < server->loop_count; i++)
        net_tls_free(openings[i].tls);
    for (int i = 0; !err && i < server->loop_count; i++) {
        openings[i].loop_call =
            (struct loop_call){.run = change_tls_here, .worker = &server->workers[i]};
        loop_call_run(&openings[i].loop_call);
    }
    return err;
}

/* Rarely needed descriptors get a quarter at most: when there are few, callers come first. */
int64_t listen_connections(int64_t descriptors, int loops, int64_t wanted)
{
    int64_t threads = loops + 1; /* and the keeper's */
    int64_t left = descriptors - FDS_PROCESS - threads * FDS_LOOP;
    int64_t also = threads * FDS_LOOP_ALSO;
    int64_t most = left <= 0 ? 0 : (left - (also < left / 4 ? also : left / 4)) / loops;

    assert(loops > 0 && wanted > 0);
    return most < wanted ? most : wanted;
}

enum err listen_fit(struct server *server, struct problem *why)
{
    int64_t wanted = server->settings->http.net.connections_max;
    struct rlimit *found = &server->descriptors, all;

    assert(server->loop_count > 0);
    if (getrlimit(RLIMIT_NOFILE, found) != 0)
        return problem_set(why, ERR_IO, "", "The limit of descriptors cannot be read.");
    all = *found;
    all.rlim_cur = all.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &all) != 0)
        all = *found;
    if (all.rlim_cur == RLIM_INFINITY || all.rlim_cur > INT32_MAX)
        all.rlim_cur = INT32_MAX;
    server->limits.net.connections_max =
        listen_connections((int64_t)all.rlim_cur, server->loop_count, wanted);
    if (server->limits.net.connections_max == 0)
        return problem_set(why, ERR_BAD_CONFIG, "loops",
                           "%lld descriptors are too few for %d loops: raise the limit (ulimit -n, "
                           "LimitNOFILE=) or set fewer loops.",
                           (long long)all.rlim_cur, server->loop_count);
    if (server->limits.net.connections_max < wanted)
        log_event(LOG_WARN, "server.connections_fewer", KI("connections_max", wanted),
                  KI("in_force", server->limits.net.connections_max),
                  KI("loops", server->loop_count), KI("descriptors", (int64_t)all.rlim_cur));
    return ERR_OK;
}

enum err listen_check(const struct settings *settings, bool guarded, struct problem *why)
{
    char addr[ADDR_MAX];

    if (!str_copy(settings->listen, addr, sizeof addr) || !strrchr(addr, ':'))
        return problem_set(why, ERR_BAD_CONFIG, "listen",
                           "listen must be an address and a port, like 127.0.0.1:7420.");
    if (!net_addr_is_loopback(addr) && !guarded)
        return problem_set(why, ERR_BAD_CONFIG, "listen",
                           "%s is not a loopback address: without tokens the server is reachable "
                           "from this machine only. Make one: berth token create ops --scope admin "
                           "--file TOKENS_FILE.",
                           addr);
    return ERR_OK;
}
