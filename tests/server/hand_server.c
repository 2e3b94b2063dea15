/* See hand_server.h. */
#include "hand_server.h"

#include <assert.h>
#include <stdlib.h>

#include "sched/explain.h"
#include "sched/tally.h"

/* only its clock is used, which is the loops' */
static struct store desk_store;

struct server *hand_server_new(struct settings *settings)
{
    struct server *server = calloc(1, sizeof *server);

    assert(server);
    server->settings = settings;
    server->loop_count = HAND_SERVER_LOOPS;
    server->workers = calloc(HAND_SERVER_LOOPS + 1, sizeof *server->workers);
    server->sched.loops = calloc(HAND_SERVER_LOOPS + 1, sizeof *server->sched.loops);
    server->sched.loop_count = HAND_SERVER_LOOPS;
    server->sched.store = &desk_store;
    assert(server->workers && server->sched.loops);
    for (int i = 0; i <= HAND_SERVER_LOOPS; i++) {
        struct worker *worker = &server->workers[i];

        worker->server = server;
        worker->serves = i < HAND_SERVER_LOOPS;
        worker->loop.index = i;
        worker->loop.wall_ms = worker->loop.mono_ms = HAND_SERVER_START_MS;
        worker->sched = &server->sched.loops[i];
        sched_loop_init(&server->sched, i, &worker->loop.inbox, &worker->loop.wall_ms,
                        &worker->loop.mono_ms);
        worker->auth = auth_new();
        worker->hub = hub_new(worker);
        worker->waiters = waiters_new(worker);
    }
    return server;
}

void hand_server_free(struct server *server)
{
    for (int i = 0; i <= HAND_SERVER_LOOPS; i++) {
        hub_free(server->workers[i].hub);
        waiters_free(server->workers[i].waiters);
        auth_free(server->workers[i].auth);
    }
    for (int i = 0; i <= HAND_SERVER_LOOPS; i++) {
        explain_book_free(server->sched.loops[i].book);
        tally_free(server->sched.loops[i].tally);
    }
    free(server->sched.loops);
    free(server->workers);
    free(server);
}

void hand_server_pass(struct server *server, int64_t ms)
{
    for (int i = 0; i <= HAND_SERVER_LOOPS; i++) {
        server->workers[i].loop.wall_ms += ms;
        server->workers[i].loop.mono_ms += ms;
        hub_tick(server->workers[i].hub);
        waiters_tick(server->workers[i].waiters);
    }
}

int hand_server_run(struct server *server, int loop)
{
    return inbox_run(&server->workers[loop].loop.inbox);
}
