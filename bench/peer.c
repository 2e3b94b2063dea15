/* The submitter and the worker process of queue servers: `conc` jobs outstanding or one each
 * period, and workers that are done with a job in the moment they have it. */
#include "peer.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum { TAG_WAKE = BENCH_CONNS_MAX, TAG_LIFE, EVENTS_MAX = 128, TROUBLE_SHOWN = 100 };

/* ---- what the protocols tell */

enum err peer_number(const struct peer *peer, struct str text, int *ret_number)
{
    int64_t value;

    if (!str_int(text, &value) || value < 0 || value >= peer->jobs)
        return ERR_BAD_REQUEST;
    *ret_number = (int)value;
    return ERR_OK;
}

void peer_started(struct peer *peer, int number)
{
    assert(number >= 0 && number < peer->jobs);
    peer->shared->slots[number].start_ns = bench_now_ns();
}

void peer_done(struct peer *peer, int number)
{
    struct bench_slot *slot = &peer->shared->slots[number];

    assert(number >= 0 && number < peer->jobs);
    if (slot->done_ns) /* one that comes twice does not count again */
        return;
    slot->done_ns = bench_now_ns();
    atomic_store_explicit(&peer->shared->last_ns, slot->done_ns, memory_order_relaxed);
    peer->ended++;
}

void peer_welcomed(struct peer *peer)
{
    atomic_fetch_add(&peer->shared->ready, 1);
}

/* What nobody expected, as far as it can be printed. */
static void note_trouble(struct peer *peer, struct str in)
{
    char text[TROUBLE_SHOWN + 1] = "";

    for (size_t i = 0; i < in.len && i < TROUBLE_SHOWN; i++)
        text[i] = in.at[i] >= ' ' && in.at[i] < 0x7f ? in.at[i] : '.';
    if (!peer->shared->trouble[0])
        snprintf(peer->shared->trouble, sizeof peer->shared->trouble, "%s said \"%s\"",
                 peer->protocol->name, text);
}

enum err peer_take_all(struct peer *peer, struct bench_conn *conn, peer_take *take)
{
    size_t at = 0, used = 0;
    enum err err;

    do {
        struct str rest = {.at = at ? conn->in.at + at : conn->in.at, .len = conn->in.len - at};

        used = 0;
        err = rest.len ? take(peer, conn, rest, &used) : ERR_OK;
        if (err)
            note_trouble(peer, rest);
        at += used;
    } while (!err && used);
    buf_drop(&conn->in, at);
    return err;
}

/* What came on a connection, and the answers to it. */
static enum err serve(struct peer *peer, struct bench_conn *conn, uint32_t events, peer_take *take)
{
    enum err err;

    if ((events & ~EPOLLOUT) && !bench_conn_read(conn))
        return ERR_CLOSED;
    err = peer_take_all(peer, conn, take);
    if (!err && !bench_conn_flush(conn))
        err = ERR_CLOSED;
    return err;
}

/* ---- the worker process */

_Noreturn __attribute__((format(printf, 2, 3))) static void give_up(struct bench_shared *shared,
                                                                    const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (!shared->trouble[0])
        vsnprintf(shared->trouble, sizeof shared->trouble, fmt, args);
    va_end(args);
    _exit(1);
}

static void tell_submitter(struct peer *peer, int wake)
{
    uint64_t one = 1;

    if (peer->ended == 0)
        return;
    atomic_fetch_add(&peer->shared->done, peer->ended);
    peer->ended = 0;
    if (write(wake, &one, sizeof one) != sizeof one)
        give_up(peer->shared, "the submitter cannot be told: %m");
}

_Noreturn void peer_work(const struct bench_work *work)
{
    struct peer peer = {.protocol = work->protocol, .shared = work->shared, .jobs = work->jobs};
    struct bench_conn *conns = mem_array(struct bench_conn, (size_t)work->nodes);
    struct epoll_event events[EVENTS_MAX];
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    for (int i = 0; i < work->nodes; i++) {
        if (bench_conn_open(&conns[i], work->target, epoll, (uint32_t)i) != ERR_OK)
            give_up(work->shared, "cannot connect to %s: %m", work->target->host);
        work->protocol->work_greet(&conns[i]);
        bench_conn_flush(&conns[i]);
    }
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS_MAX, -1);

        for (int i = 0; i < count; i++)
            if (serve(&peer, &conns[events[i].data.u32], events[i].events,
                      work->protocol->work_take) != ERR_OK)
                give_up(work->shared, "the server closed a worker's connection");
        tell_submitter(&peer, work->wake);
    }
}

/* ---- the submitter */

struct submitter {
    struct bench_load *load;
    struct peer peer;
    struct bench_conn conns[BENCH_CONNS_MAX];
    int conn_count;
    int epoll;
    int submitted;
    int done;
    int64_t moved_ns; /* when something last happened */
};

static int64_t due_ns(const struct submitter *s)
{
    return s->load->begun_ns + s->submitted * s->load->period_ns;
}

/* Every job that is due and may be outstanding: on all connections in turn, then sent at once. */
static enum err submit_due(struct submitter *s)
{
    const struct bench_load *load = s->load;

    while (s->submitted < load->jobs && s->submitted - s->done < load->conc &&
           (load->period_ns == 0 || bench_now_ns() >= due_ns(s))) {
        load->submit_ns[s->submitted] = bench_now_ns();
        load->protocol->submit(&s->conns[s->submitted % s->conn_count], s->submitted);
        s->submitted++;
    }
    for (int i = 0; i < s->conn_count; i++)
        if (!bench_conn_flush(&s->conns[i]))
            return ERR_CLOSED;
    return ERR_OK;
}

/* Until the next submit is due, or something came, or it is time to look for a stall. */
static int wait_events(struct submitter *s, struct epoll_event *events)
{
    int64_t wait_ns = INT64_C(500000000);
    struct timespec timeout;

    if (s->load->period_ns && s->submitted < s->load->jobs) {
        wait_ns = due_ns(s) - bench_now_ns();
        wait_ns = wait_ns > 0 ? wait_ns : 0;
    }
    timeout = (struct timespec){.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    return epoll_pwait2(s->epoll, events, EVENTS_MAX, &timeout, NULL);
}

static enum err take_event(struct submitter *s, const struct epoll_event *event)
{
    uint64_t wakes;

    if (event->data.u32 == TAG_LIFE)
        return ERR_CLOSED;
    if (event->data.u32 == TAG_WAKE)
        return read(s->load->wake, &wakes, sizeof wakes) < 0 && errno != EAGAIN ? ERR_IO : ERR_OK;
    return serve(&s->peer, &s->conns[event->data.u32], event->events,
                 s->load->protocol->submit_take);
}

static enum err run(struct submitter *s)
{
    struct epoll_event events[EVENTS_MAX];

    s->load->begun_ns = s->moved_ns = bench_now_ns();
    while (s->done < s->load->jobs) {
        enum err err = submit_due(s);
        int count = err ? 0 : wait_events(s, events);

        for (int i = 0; i < count && !err; i++)
            err = take_event(s, &events[i]);
        if (err)
            return err;
        /* Ends that we were told here and ends that the worker was told are counted in one place.
         */
        s->done = atomic_fetch_add(&s->load->shared->done, s->peer.ended) + s->peer.ended;
        s->peer.ended = 0;
        if (count > 0)
            s->moved_ns = bench_now_ns();
        else if (bench_now_ns() - s->moved_ns > BENCH_STALL_MS * INT64_C(1000000))
            return ERR_TIMEOUT;
    }
    return ERR_OK;
}

static enum err connect_all(struct submitter *s)
{
    const struct bench_protocol *protocol = s->load->protocol;
    struct epoll_event wake = {.events = EPOLLIN, .data.u32 = TAG_WAKE};
    struct epoll_event life = {.events = EPOLLIN, .data.u32 = TAG_LIFE};

    assert(protocol->submit_conns > 0 && protocol->submit_conns <= BENCH_CONNS_MAX);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->load->wake, &wake) != 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->load->worker_life, &life) != 0)
        return ERR_IO;
    for (; s->conn_count < protocol->submit_conns; s->conn_count++) {
        struct bench_conn *conn = &s->conns[s->conn_count];

        if (bench_conn_open(conn, s->load->target, s->epoll, (uint32_t)s->conn_count) != ERR_OK)
            return ERR_IO;
        if (protocol->submit_greet)
            protocol->submit_greet(conn);
    }
    return ERR_OK;
}

enum err peer_submit_all(struct bench_load *load)
{
    struct submitter *s = mem_new(struct submitter);
    enum err err;

    assert(load->jobs > 0 && load->conc > 0 && load->submit_ns && load->shared);
    s->load = load;
    s->peer = (struct peer){.protocol = load->protocol, .shared = load->shared, .jobs = load->jobs};
    err = connect_all(s);
    if (err)
        bench_fail("cannot connect to %s: %m", load->target->host);
    else if ((err = run(s)) != ERR_OK)
        bench_fail("%s after %d of %d jobs submitted, %d done%s%s",
                   err == ERR_TIMEOUT ? "nothing moved any more" : "a connection was lost",
                   s->submitted, load->jobs, s->done, load->shared->trouble[0] ? ": " : "",
                   load->shared->trouble);
    for (int i = 0; i < s->conn_count; i++)
        bench_conn_close(&s->conns[i]);
    if (s->epoll >= 0)
        close(s->epoll);
    free(s);
    return err;
}
