/* The no-op nodes: one process, a connection each. A job is acknowledged; once the server has
 * accepted that, it "starts", ends in the same moment and is reported done; once the store has
 * accepted that too, the submitter is told. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "load.h"

enum { STAGE_HANDSHAKE, STAGE_NODE };
enum { HEARTBEAT_NS = 2000000000, EVENTS_MAX = 64, ID_MAX = 40 };

struct run {
    char job_id[ID_MAX];
    int64_t attempt;
};

struct worker {
    struct bench_work work;
    struct run *runs;         /* by number of the job */
    int ended;                /* since the submitter was last told */
    int64_t heartbeat_ns;     /* when the next one is due, and whose it is: they do not */
    uint32_t heartbeat_index; /* all come at once, as they do not in a fleet */
    struct buf text;          /* a message being written */
    struct arena arena;
    struct bench_conn *conns; /* work.nodes */
    struct node *nodes;       /* likewise */
};

/* What a node has said, by the ids of its messages, which rise. */
struct node {
    struct buf said; /* int: twice the number of the job, one more for its DONE */
    int64_t told;    /* ids below it were accepted */
};

_Noreturn __attribute__((format(printf, 2, 3))) static void give_up(struct worker *worker,
                                                                    const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(worker->work.shared->trouble, sizeof worker->work.shared->trouble, fmt, args);
    va_end(args);
    _exit(1);
}

void bench_node_fields(struct buf *out, const char *prefix, uint32_t index, int slots,
                       const char *src, const char *tgt)
{
    assert(slots > 0 && src[0] && tgt[0]);
    buf_fmt(out,
            "\"node_id\":\"%s-%u\",\"health\":\"ready\",\"semantic_langs\":[\"%s\"],"
            "\"nmt_pairs\":[[\"%s\",\"%s\"]],\"tts_langs\":[],\"max_concurrent_jobs\":%d",
            prefix, index, src, src, tgt, slots);
}

static void send_text(struct worker *worker, struct bench_conn *conn)
{
    assert(worker->text.len > 0 && conn->stage == STAGE_NODE);
    bench_ws_put(&conn->out, BENCH_WS_TEXT, buf_view(&worker->text));
    buf_clear(&worker->text);
}

static int64_t next_id(struct worker *worker, const struct bench_conn *conn, int what)
{
    struct buf *said = &worker->nodes[conn->index].said;

    buf_add(said, &what, sizeof what);
    return (int64_t)(said->len / sizeof what) - 1;
}

static void send_ack(struct worker *worker, struct bench_conn *conn, int number)
{
    const struct run *run = &worker->runs[number];

    buf_fmt(&worker->text,
            "{\"msg\":\"ack\",\"id\":%" PRId64 ",\"job_id\":\"%s\",\"attempt_id\":%" PRId64 "}",
            next_id(worker, conn, number * 2), run->job_id, run->attempt);
    send_text(worker, conn);
}

static void send_done(struct worker *worker, struct bench_conn *conn, int number)
{
    const struct run *run = &worker->runs[number];

    assert(run->job_id[0] && worker->work.shared->slots[number].start_ns > 0);
    buf_fmt(&worker->text,
            "{\"msg\":\"done\",\"id\":%" PRId64 ",\"job_id\":\"%s\",\"attempt_id\":%" PRId64
            ",\"status\":\"ok\",\"result\":{\"start_us\":%" PRId64 "}}",
            next_id(worker, conn, number * 2 + 1), run->job_id, run->attempt,
            worker->work.shared->slots[number].start_ns / 1000);
    send_text(worker, conn);
}

static void take_job(struct worker *worker, struct bench_conn *conn, const struct json *msg)
{
    struct str ref = json_str(json_get(msg, "audio_ref"), &worker->arena);
    struct str id = json_str(json_get(msg, "job_id"), &worker->arena), rest = ref;
    struct run *run;
    int64_t number;

    str_cut(&rest, ':');
    if (!str_int(rest, &number) || number < 0 || number >= worker->work.jobs)
        give_up(worker, "a job came that is none of ours: audio_ref \"" STR_FMT "\"", STR_ARG(ref));
    run = &worker->runs[number];
    if (!str_copy(id, run->job_id, sizeof run->job_id) || !id.len ||
        !json_int(json_get(msg, "attempt_id"), &run->attempt))
        give_up(worker, "a job message without a usable job_id and attempt_id");
    send_ack(worker, conn, (int)number);
}

/* A message of the node was accepted. */
static void take_accepted(struct worker *worker, struct bench_conn *conn, int64_t id)
{
    int64_t now_ns = bench_now_ns();
    struct bench_slot *slot;
    int what;

    memcpy(&what, worker->nodes[conn->index].said.at + id * (int64_t)sizeof what, sizeof what);
    slot = &worker->work.shared->slots[what / 2];
    if (what % 2 == 0) {
        slot->start_ns = now_ns;
        send_done(worker, conn, what / 2);
    } else if (slot->done_ns == 0 && !worker->work.protocol->told_ends) {
        /* a second attempt does not count again */
        slot->done_ns = now_ns;
        atomic_store_explicit(&worker->work.shared->last_ns, now_ns, memory_order_relaxed);
        worker->ended++;
    }
}

static bool was_said(const struct worker *worker, const struct bench_conn *conn, int64_t id)
{
    return id >= 0 && id < (int64_t)(worker->nodes[conn->index].said.len / sizeof(int));
}

static void take_reply(struct worker *worker, struct bench_conn *conn, const struct json *msg)
{
    int64_t re;
    bool ok = false;

    if (!json_int(json_get(msg, "re"), &re) || !was_said(worker, conn, re))
        give_up(worker, "the server refused a node: " STR_FMT, STR_ARG(json_raw(msg)));
    if (!json_bool(json_get(msg, "ok"), &ok) || !ok) {
        if (atomic_fetch_add(&worker->work.shared->refused, 1) == 0)
            snprintf(worker->work.shared->trouble, sizeof worker->work.shared->trouble, STR_FMT,
                     STR_ARG(json_raw(msg)));
        return;
    }
    take_accepted(worker, conn, re);
}

/* All up to there; a run in which anything was refused does not count, so none of them was. */
static void take_upto(struct worker *worker, struct bench_conn *conn, const struct json *msg)
{
    struct node *node = &worker->nodes[conn->index];
    int64_t upto;

    if (!json_int(json_get(msg, "upto"), &upto) || !was_said(worker, conn, upto))
        give_up(worker, "the server accepted what was not said: " STR_FMT, STR_ARG(json_raw(msg)));
    for (; node->told <= upto; node->told++)
        take_accepted(worker, conn, node->told);
}

static void take_jobs(struct worker *worker, struct bench_conn *conn, const struct json *jobs)
{
    const struct json *job = json_first(jobs);

    for (uint32_t i = 0; i < jobs->count; i++, job = json_next(job))
        take_job(worker, conn, job);
}

static void take_message(struct worker *worker, struct bench_conn *conn, struct str text)
{
    const struct json *msg;
    struct problem why;

    arena_reset(&worker->arena);
    if (json_parse(text, &worker->arena, &msg, &why) != ERR_OK)
        give_up(worker, "the server sent no JSON: %s", why.detail);
    if (json_str_is(json_get(msg, "msg"), "reply"))
        take_reply(worker, conn, msg);
    else if (json_str_is(json_get(msg, "msg"), "accepted"))
        take_upto(worker, conn, msg);
    else if (json_str_is(json_get(msg, "msg"), "job"))
        take_job(worker, conn, msg);
    else if (json_str_is(json_get(msg, "msg"), "jobs"))
        take_jobs(worker, conn, json_get(msg, "jobs"));
    else if (json_str_is(json_get(msg, "msg"), "welcome"))
        atomic_fetch_add(&worker->work.shared->ready, 1);
}

/* The answer to the upgrade, then frames. */
static bool handshaken(struct worker *worker, struct bench_conn *conn)
{
    const char *end = memmem(conn->in.at, conn->in.len, "\r\n\r\n", 4);

    if (conn->stage == STAGE_NODE)
        return true;
    if (!end)
        return false;
    if (conn->in.len < 12 || memcmp(conn->in.at + 9, "101", 3) != 0)
        give_up(worker, "/v1/node/connect did not upgrade: %.60s", conn->in.at);
    buf_drop(&conn->in, (size_t)(end - conn->in.at) + 4);
    conn->stage = STAGE_NODE;
    buf_fmt(&worker->text, "{\"msg\":\"hello\",\"protocol\":1,%s",
            worker->work.protocol->together ? "\"takes_jobs\":true,\"takes_accepted\":true," : "");
    bench_node_fields(&worker->text, "bench", conn->index, BENCH_NODE_SLOTS, BENCH_SRC, BENCH_TGT);
    buf_char(&worker->text, '}');
    send_text(worker, conn);
    return true;
}

static void take_frames(struct worker *worker, struct bench_conn *conn)
{
    struct str payload;
    size_t at = 0;
    int opcode, got = 0;

    if (!handshaken(worker, conn))
        return;
    while ((got = bench_ws_next(buf_view(&conn->in), &at, &opcode, &payload)) > 0) {
        if (opcode == BENCH_WS_TEXT)
            take_message(worker, conn, payload);
        else if (opcode == BENCH_WS_PING)
            bench_ws_put(&conn->out, BENCH_WS_PONG, payload);
        else if (opcode == BENCH_WS_CLOSE)
            give_up(worker, "the server closed a node's connection: %.*s",
                    (int)(payload.len > 2 ? payload.len - 2 : 0), payload.at + 2);
    }
    if (got < 0)
        give_up(worker, "the server sent a frame that cannot be");
    buf_drop(&conn->in, at);
}

/* Nodes that fall silent are not given work: runs may be long. */
static void heartbeat(struct worker *worker, int64_t now_ns)
{
    int nodes = worker->work.nodes;

    for (; worker->heartbeat_ns <= now_ns; worker->heartbeat_ns += HEARTBEAT_NS / nodes) {
        uint32_t i = worker->heartbeat_index++ % (uint32_t)nodes;

        if (worker->conns[i].stage != STAGE_NODE)
            continue;
        buf_fmt(&worker->text, "{\"msg\":\"heartbeat\",");
        bench_node_fields(&worker->text, "bench", i, BENCH_NODE_SLOTS, BENCH_SRC, BENCH_TGT);
        buf_char(&worker->text, '}');
        send_text(worker, &worker->conns[i]);
        if (!bench_conn_flush(&worker->conns[i]))
            give_up(worker, "the server closed a node's connection");
    }
}

static void tell_submitter(struct worker *worker)
{
    uint64_t one = 1;

    if (worker->ended == 0)
        return;
    atomic_fetch_add(&worker->work.shared->done, worker->ended);
    worker->ended = 0;
    assert(atomic_load(&worker->work.shared->done) <= worker->work.jobs);
    if (write(worker->work.wake, &one, sizeof one) != sizeof one)
        give_up(worker, "the submitter cannot be told: %m");
}

static void connect_all(struct worker *worker, int epoll)
{
    const struct bench_target *target = worker->work.target;

    for (uint32_t i = 0; i < (uint32_t)worker->work.nodes; i++) {
        if (bench_conn_open(&worker->conns[i], target, epoll, i) != ERR_OK)
            give_up(worker, "cannot connect to %s: %m", target->host);
        bench_ws_hello(&worker->conns[i].out, target, "/v1/node/connect");
        bench_conn_flush(&worker->conns[i]);
    }
}

_Noreturn void bench_worker_main(const struct bench_work *work)
{
    static struct worker worker;
    struct epoll_event events[EVENTS_MAX];
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    assert(work->jobs > 0 && work->nodes > 0 && work->wake >= 0);
    worker = (struct worker){.work = *work};
    worker.runs = mem_array(struct run, (size_t)work->jobs);
    worker.conns = mem_array(struct bench_conn, (size_t)work->nodes);
    worker.nodes = mem_array(struct node, (size_t)work->nodes);
    worker.heartbeat_ns = bench_now_ns() + HEARTBEAT_NS;
    connect_all(&worker, epoll);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS_MAX, 1 + HEARTBEAT_NS / 1000000 / work->nodes);

        for (int i = 0; i < count; i++) {
            struct bench_conn *conn = &worker.conns[events[i].data.u32];

            if ((events[i].events & ~EPOLLOUT) && !bench_conn_read(conn))
                give_up(&worker, "the server closed a node's connection");
            take_frames(&worker, conn);
            if (!bench_conn_flush(conn))
                give_up(&worker, "the server closed a node's connection");
        }
        tell_submitter(&worker);
        heartbeat(&worker, bench_now_ns());
    }
}
