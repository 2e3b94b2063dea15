/* A server for a load generator: every POST is answered with 60 bytes in a later event of the same
 * loop, like a reply of the store. One loop on one thread. Prints its port. Paths with `ws` echo
 * WebSocket messages. Also used to measure memory per connection. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/ws.h"

struct pending {
    struct msg msg;
    struct http_request *req;
};

static const char reply_body[] =
    "{\"job_id\":\"j-0123456789abcdef\",\"state\":\"DISPATCHED\",\"n\":12345}";

static void answer(struct msg *msg)
{
    struct pending *pending = container_of(msg, struct pending, msg);

    http_reply(pending->req, &(struct http_reply){.status = 200, .body = STR(reply_body)});
}

static void on_message(struct ws *ws, struct str text)
{
    ws_send(ws, text);
}

static void on_closed(struct ws *ws, int code)
{
}

static const struct ws_handler echo = {.message = on_message, .closed = on_closed};

static void on_request(struct http_request *req)
{
    struct pending *pending;

    if (ws_wanted(req)) {
        ws_accept(req, &echo, &ws_limits_default, NULL);
        return;
    }
    pending = arena_new(&req->arena, struct pending);
    pending->msg.run = answer;
    pending->req = req;
    inbox_post(&req->loop->inbox, &pending->msg);
}

static const struct http_callbacks callbacks = {.request = on_request};
static struct loop loop;

static void on_signal(int number)
{
    loop_stop(&loop); /* safe in a signal handler: an atomic store and a write to an eventfd */
}

int main(int argc, char **argv)
{
    struct http_server server = {.loop = &loop, .limits = &http_limits_default};
    struct problem why;

    server.callbacks = &callbacks;
    if (loop_init(&loop, 0) || http_serve(&server, argc > 1 ? argv[1] : "127.0.0.1:0", &why)) {
        fprintf(stderr, "%s\n", why.detail);
        return 1;
    }
    if (argc > 3) {
        struct net_tls *tls;

        if (net_tls_server(argv[2], argv[3], NULL, &tls, &why)) {
            fprintf(stderr, "%s\n", why.detail);
            return 1;
        }
        net_listener_tls(server.listener, tls);
        net_tls_free(tls);
    }
    printf("%d\n", http_port(&server));
    fflush(stdout);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    loop_run(&loop);
    loop_done(&loop);
    return 0;
}
