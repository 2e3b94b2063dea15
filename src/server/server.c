/* Wiring: settings, store, scheduler, one thread per loop, signals, a clean shutdown; and calls
 * that the main thread runs on a loop. */
#include "server/server.h"

#include <assert.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "io/notify.h"
#include "sched/keeper.h"
#include "sched/tally.h"
#include "server/api.h"
#include "server/api_deploy.h"
#include "server/api_job.h"
#include "server/api_metrics.h"
#include "server/api_report.h"
#include "server/audit.h"
#include "server/callback.h"
#include "server/events.h"
#include "server/guard.h"
#include "server/hub.h"
#include "server/listen.h"
#include "server/members.h"
#include "server/peers.h"
#include "server/route.h"
#include "server/rpc.h"
#include "server/signals.h"
#include "server/submit_socket.h"
#include "server/token_file.h"

/* --- the server --- */

enum {
    LOOPS_BY_CORES = 8,
    DRAIN_MS = 3000,
    LOADED_LOOK_MS = 100,
    BODIES_PART_OF_MEMORY = 16, /* the rest: parsed as JSON, a body takes several times its size */
};

/* A job changed: sends events if anybody listens; at its end wakes waiters and starts callbacks. */
static void noted(struct sched_loop *from, const struct settle_note *note)
{
    struct server *server = container_of(from->sched, struct server, sched);

    assert(note->head->id && note->event);
    if (events_wanted(server))
        events_job(server, note->event, note->head);
    if (!job_state_final(note->head->state))
        return;
    if (waiters_wait(server)) {
        struct store_record end = {.head = *note->head, .result = note->result};

        waiters_wake(server, &server->workers[from->index], note->head->id,
                     note->whole ? &end : NULL);
    }
    if (peers_want(server, PEERS_ENDS))
        peers_ended(server, note->head->id);
    if (note->head->callback == CALLBACK_PENDING)
        callbacks_kick(server->callbacks);
}

static void node_changed(struct sched_loop *from, struct str node_id, const char *what)
{
    struct server *server = container_of(from->sched, struct server, sched);
    const struct snap_node *known = snapshot_node(from->snapshot, node_id);

    log_event(LOG_DEBUG, "node.change", KS("node_id", node_id), KC("what", what));
    if (known && strcmp(what, "left") == 0)
        hub_drop(server, known->node); /* also one that was forgotten */
    if (events_wanted(server))
        events_node(server, what, node_id);
}

static void freed(struct sched_loop *from, struct str node_id, const struct lease_node *counts,
                  uint64_t order)
{
    struct server *server = container_of(from->sched, struct server, sched);

    if (peers_want(server, PEERS_ROOM) && counts->health != NODE_HEALTH_NONE)
        peers_room(server, node_id, counts, order);
}

static void loaded(struct sched *sched)
{
    sem_post(&container_of(sched, struct server, sched)->loaded);
}

static const struct sched_hooks hooks = {.send = hub_send,
                                         .noted = noted,
                                         .node_changed = node_changed,
                                         .stop = hub_stop,
                                         .freed = freed,
                                         .linked = hub_linked,
                                         .loaded = loaded};

static void loop_tick(struct loop *loop)
{
    struct worker *worker = worker_of(loop);

    atomic_store(&worker->ticked_ms, loop->mono_ms);
    if (worker->http.priv)
        atomic_store(&worker->connections, http_connections(&worker->http));
    hub_tick(worker->hub);
    waiters_tick(worker->waiters);
    submit_sockets_tick(worker->submit_sockets);
    deploy_tick(worker);
    members_announce(worker);
    events_tick(worker->events);
    refusals_tick(worker);
    stats_tick(worker->stats, loop->wall_ms, atomic_load(&worker->server->sched.queue_depth));
    tally_tick(worker->sched);
}

static void keeper_tick_all(struct loop *loop)
{
    struct worker *worker = worker_of(loop);

    atomic_store(&worker->ticked_ms, loop->mono_ms);
    keeper_tick(worker->server->sched.keeper);
    callbacks_tick(worker->server->callbacks);
    members_tick(worker->server->members);
    deploy_watch(worker->server);
    events_keeper_tick(worker->server);
    tally_tick(worker->sched);
    archive_tick(worker->server->archive);
    peers_tick(worker->server->peers);
    keeper_turn(worker->server->sched.keeper);
}

static void loop_turned(struct loop *loop)
{
    hub_turn(worker_of(loop)->hub);
    sched_flush(worker_of(loop)->sched);
}

static void keeper_turned(struct loop *loop)
{
    keeper_turn(worker_of(loop)->server->sched.keeper);
    peers_turn(worker_of(loop)->server->peers);
    sched_flush(worker_of(loop)->sched);
}

/* The first message of each loop: names its thread and gives it its counters. */
static void name_thread(struct msg *msg)
{
    struct worker *worker = container_of(msg, struct worker, hello);
    char name[16];

    if (worker->serves)
        snprintf(name, sizeof name, "berth-loop-%d", worker->loop.index);
    else
        snprintf(name, sizeof name, "berth-keeper");
    pthread_setname_np(pthread_self(), name);
    metrics_thread();
    if (!worker->serves)
        keeper_start(worker->server->sched.keeper);
}

static enum err worker_init(struct server *server, int index, struct problem *why)
{
    struct worker *worker = &server->workers[index];
    enum err err = loop_init(&worker->loop, index);

    assert(index >= 0 && index <= server->loop_count);
    worker->server = server;
    worker->serves = index < server->loop_count;
    worker->loop.owner = worker;
    if (!err)
        err = client_new(&worker->loop, SERVER_PUSH_CONNECTIONS_MAX, &worker->client);
    if (err)
        return problem_set(why, err, "", "A loop cannot be made: %s.", err_title(err));
    worker->hub = hub_new(worker);
    worker->waiters = waiters_new(worker);
    worker->submit_sockets = submit_sockets_new(worker);
    worker->events = events_new(worker);
    worker->session_cache = session_cache_new();
    worker->stats = mem_new(struct stats);
    worker->auth = auth_ref(server->auth);
    worker->logins = mem_new(struct logins);
    worker->refusals = refusals_new();
    turns_init(&worker->turns, &worker->loop.inbox);
    worker->loop.on_tick = worker->serves ? loop_tick : keeper_tick_all;
    worker->loop.on_turn = worker->serves ? loop_turned : keeper_turned;
    worker->sched = &server->sched.loops[index];
    sched_loop_init(&server->sched, index, &worker->loop.inbox, &worker->loop.wall_ms,
                    &worker->loop.mono_ms);
    worker->hello.run = name_thread;
    inbox_post(&worker->loop.inbox, &worker->hello);
    return ERR_OK;
}

/* False: stopped by a signal. A store that cannot list its nodes must not block signals. */
static bool wait_loaded(struct server *server)
{
    sigset_t ends;

    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    for (;;) {
        struct timespec until, now = {0};

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOADED_LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (sem_timedwait(&server->loaded, &until) == 0)
            return true;
        if (sigtimedwait(&ends, NULL, &now) > 0)
            return false;
    }
}

static enum err open_store(struct server *server, struct problem *why)
{
    const struct settings *settings = server->settings;
    struct arena arena = {0};
    struct store_config config = {
        .url = arena_cstr(&arena, settings->store),
        .data_dir = arena_cstr(&arena, settings->data_dir),
        .version = BERTH_VERSION,
        .retention_ms = settings->retention_ms,
        .retention_jobs_max = settings->retention_jobs_max,
        .journal_bytes_max = settings->journal_bytes_max,
        .in_flight_max = settings->store_in_flight_max,
        .terms = settings->sched.leases,
        .breaker_threshold = settings->breaker_threshold,
        .breaker_cooldown_ms = settings->breaker_cooldown_ms,
        .timeout_ms = settings->store_call_ms,
        .format = (int)settings->store_format,
    };
    enum err err = store_open(&config, &server->store, why);
    struct store_status status = {0};

    if (!err)
        store_status(server->store, &status);
    if (status.warning)
        log_event(LOG_WARN, "store.unsure", KC("detail", status.warning));
    arena_free(&arena);
    return err;
}

static enum err server_init(struct server *server, struct settings_source *source, int argc,
                            char **argv, struct problem *why)
{
    struct settings *settings = &source->settings;

    server->source = source;
    server->settings = settings;
    server->argc = argc;
    server->argv = argv;
    server->started_ms = clock_wall_ms();
    sem_init(&server->loaded, 0, 0);
    server->limits = settings->http;
    server->limits.body_bytes_max *= ROUTE_LARGE; /* routes allow less, see route.c */
    if (settings->http.bodies_bytes_max == 0) { /* as settings_check(): at least the largest body */
        int64_t share = (int64_t)(uv_get_total_memory() / BODIES_PART_OF_MEMORY);

        if (share > http_limits_default.bodies_bytes_max)
            share = http_limits_default.bodies_bytes_max;
        server->limits.bodies_bytes_max =
            share > server->limits.body_bytes_max ? share : server->limits.body_bytes_max;
    }
    server->loop_count = (int)settings->loops;
    if (settings->loops <= 0) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);

        server->loop_count = cores < 1 ? 1 : cores > LOOPS_BY_CORES ? LOOPS_BY_CORES : (int)cores;
    }
    enum err err = listen_fit(server, why);
    if (!err)
        err = token_file_open(server, why);
    if (!err)
        err = open_store(server, why);
    if (!err)
        err = deploy_open(server, why);
    if (!err)
        err = sched_init(&server->sched, &settings->sched, server->store, server->loop_count,
                         &hooks, why);
    if (err)
        return err;
    server->workers = mem_array(struct worker, (size_t)server->loop_count + 1);
    for (int i = 0; !err && i <= server->loop_count; i++)
        err = worker_init(server, i, why);
    if (err)
        return err;
    server->callbacks = callbacks_new(server_keeper(server));
    server->archive = archive_new(server);
    server->audit = audit_open(settings->data_dir);
    server->members = members_new(server);
    server->peers = peers_new(server_keeper(server));
    return ERR_OK;
}

/* On its loop: accepts no new connections; answers waiting requests and ends event streams. */
static void drain_worker(struct msg *msg)
{
    struct worker *worker = container_of(msg, struct worker, drain);

    if (worker->http.priv) {
        http_drain(&worker->http);
        hub_drain(worker->hub);
        waiters_drain(worker->waiters);
        submit_sockets_drain(worker->submit_sockets);
        events_drain(worker->events);
        atomic_store(&worker->connections, http_connections(&worker->http));
    }
    atomic_store(&worker->drains, true);
}

/* Stops accepting, lets requests under way be answered, then stops the threads. */
static void server_stop(struct server *server)
{
    int64_t until_ms = clock_mono_ms() + DRAIN_MS;
    int64_t open = 1;

    atomic_store(&server->draining, true);
    for (int i = 0; i < server->loop_count; i++) {
        server->workers[i].drain.run = drain_worker;
        inbox_post(&server->workers[i].loop.inbox, &server->workers[i].drain);
    }
    while (open > 0 && clock_mono_ms() < until_ms) {
        if (!token_file_run(server)) /* requests under way may wait for it */
            usleep(5000);
        open = 0;
        for (int i = 0; i < server->loop_count; i++)
            open += !atomic_load(&server->workers[i].drains) +
                    atomic_load(&server->workers[i].connections);
    }
    peers_stop(server->peers);
    for (int i = 0; i <= server->loop_count; i++)
        loop_stop(&server->workers[i].loop);
    for (int i = 0; i <= server->loop_count; i++)
        loop_join(&server->workers[i].loop);
}

/* The threads have ended, but not all work between them. The stores answer every call they have and
 * refuse more; then the messages in each inbox run here, in place of the thread they were posted
 * to, until none is left. So each call and message ends the way its owner wrote, which frees it.
 * The keeper's turns continue as well: a change of a node waits for the snapshot that includes
 * it. */
static void server_done(struct server *server)
{
    int ran = 1;

    deploys_stop(server->deploys);
    store_stop(server->store);
    while (server->workers && ran > 0) {
        ran = 0;
        if (server->sched.keeper)
            keeper_turn(server->sched.keeper);
        token_file_end(server);
        peers_end_sends(server->peers);
        for (int i = 0; i <= server->loop_count; i++) {
            ran += inbox_run(&server->workers[i].loop.inbox);
            sched_flush(server->workers[i].sched);
        }
    }
    deploys_close(server->deploys);
    store_close(server->store);
    for (int i = 0; server->workers && i <= server->loop_count; i++)
        idmap_free(&server->workers[i].hub->rpcs); /* of requests of other loops, freed below */
    for (int i = 0; server->workers && i <= server->loop_count; i++) {
        struct worker *worker = &server->workers[i];

        client_free(worker->client);
        loop_done(&worker->loop);
        submit_sockets_free(worker->submit_sockets);
        waiters_free(worker->waiters);
        events_free(worker->events);
        session_cache_free(worker->session_cache);
        free(worker->stats);
        free(worker->logins);
        free(worker->refusals);
        hub_free(worker->hub);
        buf_free(&worker->answer);
    }
    token_file_free(server);
    callbacks_free(server->callbacks);
    archive_close(server->archive);
    members_free(server->members);
    peers_free(server->peers);
    sched_done(&server->sched);
    free(server->workers);
}

static int fail(const struct problem *why)
{
    fprintf(stderr, "berth: %s\n", why->detail);
    return why->err == ERR_BAD_CONFIG || why->err == ERR_BAD_REQUEST || why->err == ERR_BAD_FIELD ||
                   why->err == ERR_NOT_FOUND
               ? 2
               : 1;
}

static int serve_until_signal(struct server *server, bool dev)
{
    struct problem why = {0};
    struct dev agent = {0};
    enum err err = ERR_OK;

    peers_start(server->peers);
    for (int i = 0; !err && i <= server->loop_count; i++)
        if (loop_start(&server->workers[i].loop))
            err = problem_set(&why, ERR_IO, "", "A thread cannot be started.");
    /* Serve nobody before the nodes are loaded: a reader would miss them. */
    if (!err && !wait_loaded(server))
        err = problem_set(&why, ERR_CLOSED, "", "Stopped before the nodes were loaded.");
    if (!err)
        err = listen_all(server, &why);
    if (!err && dev)
        err = dev_start(&agent, server, &why);
    if (!err && dev) {
        char url[DEV_URL_BYTES];

        fprintf(stderr, "berth dev: %s  (stop with Ctrl-C)\n", dev_url(server, url));
    }
    if (!err) {
        notify_send("READY=1");
        int got = signals_wait(server, &agent);
        log_event(LOG_INFO, "server.stopping", KC("signal", strsignal(got)));
        notify_send("STOPPING=1");
    }
    dev_stop(&agent);
    server_stop(server);
    server_done(server);
    if (err)
        return fail(&why);
    log_event(LOG_INFO, "server.stopped", KI("pid", getpid()));
    return 0;
}

enum err server_open_log(const struct settings *settings, struct problem *why)
{
    struct arena arena = {0};
    enum err err = ERR_OK;

    if (settings->log_file.len)
        err = log_open(arena_cstr(&arena, settings->log_file), why);
    arena_free(&arena);
    return err;
}

static void sources_free(struct settings_source *source)
{
    while (source) {
        struct settings_source *before = source->before;

        settings_done(source);
        free(source);
        source = before;
    }
}

int server_main(int argc, char **argv, bool dev)
{
    static struct server server;
    struct settings_source *source = mem_new(struct settings_source);
    const struct settings *settings = &source->settings;
    struct problem why = {0};
    int code;

    /* Grow a thread's heap by whole megabytes, not by a page and a system call at a time. */
    mallopt(M_TOP_PAD, 1 << 20);
    umask(077); /* payloads and results are private */
    signals_block();
    notify_init();
    api_metrics_declare();
    log_keep();
    enum err err = settings_load(source, argc, argv, &why);
    if (!err) {
        log_setup((enum log_level)settings->log_level, (enum log_format)settings->log_format,
                  STDERR_FILENO);
        err = server_open_log(settings, &why);
    }
    if (err) {
        sources_free(source);
        return fail(&why);
    }
    for (int i = 0; i < argc; i++) {
        const char *host = strstr(argv[i], "://"), *at = host ? strrchr(host, '@') : NULL;

        if (at && memchr(host + 3, ':', (size_t)(at - host - 3)))
            log_event(LOG_WARN, "server.password_in_flags",
                      KC("reason", "everybody on this machine can read it in ps: put it into the "
                                   "configuration file or the environment (BERTH_STORE_PASSWORD, "
                                   "BERTH_DATABASE)"));
    }
    if (dev)
        dev_token(&server);
    if (server_init(&server, source, argc, argv, &why))
        code = fail(&why);
    else
        code = serve_until_signal(&server, dev);
    sources_free(server.source);
    return code;
}

int server_config_main(int argc, char **argv)
{
    struct settings_source source;
    struct problem why = {0};
    struct buf buf = {0};

    if (argc < 1 || strcmp(argv[0], "show") != 0) {
        fprintf(stderr, "berth: config has the verb show\n");
        return 2;
    }
    /* `-o json` is an option of the command, not a setting. */
    bool json = false;
    for (int i = 0; !json && i + 1 < argc; i++)
        if (strcmp(argv[i], "-o") == 0 && strcmp(argv[i + 1], "json") == 0) {
            memmove(argv + i, argv + i + 2, sizeof *argv * (size_t)(argc - i - 2));
            argc -= 2;
            json = true;
        }
    if (settings_load(&source, argc - 1, argv + 1, &why)) {
        settings_done(&source);
        return fail(&why);
    }
    if (json) {
        struct jsonw w = jsonw_to(&buf);

        conf_show_json(&source.conf, &w);
        buf_char(&buf, '\n');
    } else {
        conf_show(&source.conf, &buf);
    }
    fwrite(buf.at, 1, buf.len, stdout);
    buf_free(&buf);
    settings_done(&source);
    return 0;
}

/* --- calls on a loop --- */

static void run_here(struct msg *msg)
{
    struct loop_call *loop_call = container_of(msg, struct loop_call, msg);

    loop_call->run(loop_call);
    sem_post(&loop_call->over); /* from here on the main thread owns it again */
}

void loop_call_run(struct loop_call *loop_call)
{
    assert(loop_call->worker && loop_call->run);
    loop_call->msg = (struct msg){.run = run_here};
    sem_init(&loop_call->over, 0, 0);
    inbox_post(&loop_call->worker->loop.inbox, &loop_call->msg);
    while (sem_wait(&loop_call->over))
        ;
    sem_destroy(&loop_call->over);
}
