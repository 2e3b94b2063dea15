/* Many connected nodes in one process. They say hello and heartbeat; jobs are read and left alone.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "load.h"

enum { STAGE_HANDSHAKE, STAGE_HELLO, STAGE_READY };
enum {
    OPENING_MAX = 128, /* connections between connect and welcome at a time */
    EVENTS_MAX = 512,
    TICK_NS = 1000000,
    BURST_MAX = 2000, /* heartbeats of one tick: a generator that fell behind catches up slowly */
    TAG_STDIN = UINT32_MAX,
};

struct idle {
    const struct bench_target *target;
    struct bench_conn *conns;
    uint32_t count;
    uint32_t opened;
    uint32_t ready;
    uint32_t lost;
    int epoll;
    char src[24], tgt[24];
    int slots;
    int64_t rate;      /* heartbeats a second */
    int64_t sent;      /* heartbeats */
    int64_t rate_sent; /* of them since the rate was set */
    int64_t jobs;      /* that were given to these nodes */
    uint32_t next;     /* whose heartbeat is next */
    int64_t beat_ns;   /* when the rate was set */
    bool ended;        /* standard input did */
    struct buf text;
};

static void send_text(struct idle *idle, struct bench_conn *conn, const char *msg)
{
    assert(idle->text.len == 0 && conn->index < idle->count);
    buf_fmt(&idle->text, "{\"msg\":\"%s\",", msg);
    if (strcmp(msg, "hello") == 0)
        buf_fmt(&idle->text, "\"protocol\":1,");
    bench_node_fields(&idle->text, "idle", conn->index, idle->slots, idle->src, idle->tgt);
    buf_fmt(&idle->text, ",\"current_load\":{\"cpu\":0.%u,\"gpu\":0}}",
            (unsigned)(idle->sent % 10));
    bench_ws_put(&conn->out, BENCH_WS_TEXT, buf_view(&idle->text));
    buf_clear(&idle->text);
}

static bool take_frames(struct idle *idle, struct bench_conn *conn)
{
    struct str payload;
    size_t at = 0;
    int opcode, got;

    while ((got = bench_ws_next(buf_view(&conn->in), &at, &opcode, &payload)) > 0) {
        if (opcode == BENCH_WS_CLOSE)
            return false;
        if (opcode == BENCH_WS_PING)
            bench_ws_put(&conn->out, BENCH_WS_PONG, payload);
        if (opcode != BENCH_WS_TEXT)
            continue;
        if (conn->stage == STAGE_HELLO && memmem(payload.at, payload.len, "\"welcome\"", 9)) {
            conn->stage = STAGE_READY;
            idle->ready++;
        }
        idle->jobs += memmem(payload.at, payload.len, "\"msg\":\"job\"", 11) != NULL;
    }
    buf_drop(&conn->in, at);
    if (conn->in.len == 0) /* thousands of connections: hold no memory that is not used */
        buf_free(&conn->in);
    return got == 0;
}

static bool take_input(struct idle *idle, struct bench_conn *conn)
{
    const char *end;

    assert(conn->fd >= 0 && conn->stage <= STAGE_READY);
    if (!bench_conn_read(conn))
        return false;
    if (conn->stage == STAGE_HANDSHAKE) {
        end = memmem(conn->in.at, conn->in.len, "\r\n\r\n", 4);
        if (!end)
            return true;
        if (memcmp(conn->in.at + 9, "101", 3) != 0)
            return false;
        buf_drop(&conn->in, (size_t)(end - conn->in.at) + 4);
        conn->stage = STAGE_HELLO;
        send_text(idle, conn, "hello");
    }
    return take_frames(idle, conn);
}

static void flush_or_drop(struct idle *idle, struct bench_conn *conn, bool alive)
{
    if (alive && bench_conn_flush(conn)) {
        if (conn->out.len == 0)
            buf_free(&conn->out);
        return;
    }
    assert(idle->ready <= idle->opened && idle->lost < idle->count);
    idle->ready -= conn->stage == STAGE_READY;
    idle->lost++;
    bench_conn_close(conn);
}

/* Standard input: a number is a new rate, its end is ours. */
static void take_word(struct idle *idle)
{
    char text[64];
    ssize_t got = read(STDIN_FILENO, text, sizeof text);
    int64_t rate;

    if (got <= 0) {
        idle->ended = true;
        return;
    }
    while (got > 0 && text[got - 1] == '\n')
        got--;
    if (str_int((struct str){.at = text, .len = (size_t)got}, &rate) && rate >= 0) {
        idle->rate = rate;
        idle->beat_ns = bench_now_ns();
        idle->rate_sent = 0;
    }
}

/* One turn: what came within `wait_ns`. */
static void turn(struct idle *idle, int64_t wait_ns)
{
    struct timespec timeout = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_pwait2(idle->epoll, events, EVENTS_MAX, &timeout, NULL);

    for (int i = 0; i < count; i++) {
        struct bench_conn *conn;

        if (events[i].data.u32 == TAG_STDIN) {
            take_word(idle);
            continue;
        }
        assert(events[i].data.u32 < idle->opened);
        conn = &idle->conns[events[i].data.u32];
        if (conn->fd >= 0)
            flush_or_drop(idle, conn, !(events[i].events & ~EPOLLOUT) || take_input(idle, conn));
    }
}

static enum err open_all(struct idle *idle)
{
    int64_t moved_ns = bench_now_ns();
    uint32_t seen = 0;

    while (idle->ready < idle->count && idle->lost == 0) {
        while (idle->opened < idle->count && idle->opened - idle->ready < OPENING_MAX) {
            struct bench_conn *conn = &idle->conns[idle->opened];

            if (bench_conn_open(conn, idle->target, idle->epoll, idle->opened) != ERR_OK)
                return ERR_IO;
            idle->opened++;
            bench_ws_hello(&conn->out, idle->target, "/v1/node/connect");
            flush_or_drop(idle, conn, true);
        }
        turn(idle, 100000000);
        if (idle->ready != seen)
            moved_ns = bench_now_ns();
        else if (bench_now_ns() - moved_ns > BENCH_STALL_MS * INT64_C(1000000))
            return ERR_TIMEOUT;
        seen = idle->ready;
    }
    return idle->lost ? ERR_CLOSED : ERR_OK;
}

/* As many heartbeats as are due by now, one node after the other. */
static void beat(struct idle *idle)
{
    double passed_s = (double)(bench_now_ns() - idle->beat_ns) / 1e9;
    int64_t due = (int64_t)(passed_s * (double)idle->rate) - idle->rate_sent;

    for (int64_t i = 0; i < due && i < BURST_MAX && idle->ready > 0; i++) {
        struct bench_conn *conn = &idle->conns[idle->next];

        assert(idle->next < idle->count && idle->rate > 0);
        idle->next = (idle->next + 1) % idle->count;
        idle->sent++;
        idle->rate_sent++;
        if (conn->fd < 0)
            continue;
        send_text(idle, conn, "heartbeat");
        flush_or_drop(idle, conn, true);
    }
}

static int serve(struct idle *idle, double secs)
{
    struct epoll_event input = {.events = EPOLLIN, .data.u32 = TAG_STDIN};
    int64_t begun_ns = bench_now_ns(), until_ns = begun_ns + (int64_t)(secs * 1e9);

    if (secs <= 0 && epoll_ctl(idle->epoll, EPOLL_CTL_ADD, STDIN_FILENO, &input) != 0)
        return bench_misuse("standard input cannot be watched; give --secs");
    assert(idle->ready == idle->count);
    idle->beat_ns = begun_ns;
    while (!idle->ended && idle->lost == 0 && (secs <= 0 || bench_now_ns() < until_ns)) {
        turn(idle, idle->rate ? TICK_NS : 100000000);
        beat(idle);
    }
    printf("{\"conns\":%u,\"lost\":%u,\"heartbeats\":%" PRId64 ",\"jobs\":%" PRId64
           ",\"secs\":%.3f}\n",
           idle->count, idle->lost, idle->sent, idle->jobs,
           (double)(bench_now_ns() - begun_ns) / 1e9);
    if (idle->lost)
        return bench_fail("the server closed a node's connection");
    return 0;
}

static bool read_pair(struct idle *idle, const char *text)
{
    struct str tgt = str_of(text), src = str_cut(&tgt, ':');

    return src.len && tgt.len && str_is_id(src, sizeof idle->src - 1) &&
           str_is_id(tgt, sizeof idle->tgt - 1) && str_copy(src, idle->src, sizeof idle->src) &&
           str_copy(tgt, idle->tgt, sizeof idle->tgt);
}

static void raise_fd_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int bench_idle_run(const struct bench_idle *options, const struct bench_target *target)
{
    struct idle idle = {.target = target,
                        .count = (uint32_t)options->count,
                        .rate = options->rate,
                        .slots = options->slots,
                        .epoll = epoll_create1(EPOLL_CLOEXEC)};
    int64_t begun_ns = bench_now_ns();
    enum err err;
    int code;

    if (!read_pair(&idle, options->pair))
        return bench_misuse("--pair takes two languages like en:zh");
    assert(idle.count > 0 && idle.slots > 0 && idle.rate >= 0);
    raise_fd_limit();
    idle.conns = mem_array(struct bench_conn, idle.count);
    err = open_all(&idle);
    if (err) {
        code = bench_fail("%s after %u of %u nodes were welcomed",
                          err == ERR_IO        ? strerror(errno)
                          : err == ERR_TIMEOUT ? "nothing moved any more"
                                               : "the server closed a connection",
                          idle.ready, idle.count);
    } else {
        printf("{\"conns\":%u,\"open_s\":%.3f}\n", idle.count,
               (double)(bench_now_ns() - begun_ns) / 1e9);
        fflush(stdout);
        code = serve(&idle, options->secs);
    }
    for (uint32_t i = 0; i < idle.opened; i++)
        bench_conn_close(&idle.conns[i]);
    free(idle.conns);
    buf_free(&idle.text);
    close(idle.epoll);
    return code;
}
