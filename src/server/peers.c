/* Messages between instances. Jobs, cancels and questions for nodes connected to another instance:
 * that instance reports whether the node got them; without a report in time they count as lost. A
 * job that arrived nevertheless is fenced: its reservation is gone, so its ACK is refused.
 * Questions to all instances are sent like those to their nodes, and answered on the other side's
 * keeper loop. */
#include "server/peers.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/frame.h"
#include "sched/keeper.h"
#include "sched/node_sync.h"
#include "sched/sched.h"
#include "server/api.h"
#include "server/api_job.h"
#include "server/api_report.h"
#include "server/events.h"
#include "server/hub.h"

#define PEERS_ITSELF "*" /* instead of a node: a question to the instance itself */

/* All messages of one turn for one instance. */
struct batch {
    struct store_op op;
    struct peers *peers;
    struct batch *next;
    struct buf frames;
    struct buf seqs; /* uint64_t each: sends and queries that fail if it is not delivered */
};

static uint32_t peers_name(const struct peers *peers)
{
    return store_name(peers->keeper->server->store);
}

static bool peers_name_read(struct str text, uint32_t *ret_name)
{
    char digits[PEERS_NAME_TEXT + 1];
    char *end;

    if (text.len != PEERS_NAME_TEXT || !str_copy(text, digits, sizeof digits))
        return false;
    *ret_name = (uint32_t)strtoul(digits, &end, 16);
    return *end == '\0' && *ret_name;
}

static void batch_free(struct batch *batch)
{
    buf_free(&batch->frames);
    buf_free(&batch->seqs);
    free(batch);
}

/* The open batch for an instance; 0: for all instances. */
static struct batch *peers_batch(struct peers *peers, uint32_t to)
{
    struct batch *batch = peers->open;

    while (batch && batch->op.u.message.to != to)
        batch = batch->next;
    if (batch)
        return batch;
    batch = mem_new(struct batch);
    batch->peers = peers;
    batch->op.u.message.to = to;
    batch->next = peers->open;
    peers->open = batch;
    return batch;
}

/* --- jobs and questions --- */

enum {
    ANSWER_MS = 1000, /* for an answer of the other instance, plus the way there and back */
    HOPS_MAX = 2,
};

/* A job sent to the instance its node is connected to, until that instance answers. */
struct forward {
    struct send_op *send;
    uint64_t seq;
    int64_t until_ms;
};

/* A question waiting for its answer. */
struct query {
    struct msg msg;
    struct peers *peers;
    struct rpc *rpc;
    uint32_t instance;
    uint64_t seq;
    int64_t until_ms;
    char node_id[NODE_ID_MAX + 1];
};

/* How long the other instance may take. Both directions use the store, whose calls have a time
 * limit of their own. */
static int64_t answer_ms(const struct peers *peers)
{
    const struct settings *settings = atomic_load(&peers->keeper->server->settings);

    return ANSWER_MS + 2 * settings->store_call_ms;
}

/* --- jobs --- */

void peers_write_job(struct buf *frames, uint64_t seq, uint32_t from, struct str node_id,
                     int64_t deadline_ms, int64_t hops, struct str message)
{
    size_t begun = frame_begin(frames);

    buf_fmt(frames, "job %" PRIu64 " %08" PRIx32 " " STR_FMT " %" PRId64 " %" PRId64 "\n", seq,
            from, STR_ARG(node_id), deadline_ms, hops);
    buf_str(frames, message);
    frame_end(frames, begun);
}

/* On the keeper. */
static void send_posted(struct msg *msg)
{
    struct send_op *send = container_of(msg, struct send_op, msg);
    struct peers *peers = send->to;
    uint32_t instance = (uint32_t)send->via;
    struct batch *batch = peers_batch(peers, instance);
    struct forward *forward = mem_new(struct forward);
    uint64_t seq = ++peers->last_seq;

    assert(instance && instance != peers_name(peers) && send->message.len > 2);
    *forward = (struct forward){
        .send = send, .seq = seq, .until_ms = peers->keeper->loop.mono_ms + answer_ms(peers)};
    idmap_put(&peers->sends, seq, forward);
    buf_add(&batch->seqs, &seq, sizeof seq);
    peers_write_job(&batch->frames, seq, peers_name(peers), send->node->id, send->deadline_ms, 0,
                    send->message);
}

void peers_send(struct server *server, struct send_op *send, uint32_t instance)
{
    assert(server->peers && instance && !send->forwarded);
    send->to = server->peers;
    send->via = instance;
    send->msg.run = send_posted;
    inbox_post(&server_keeper(server)->loop.inbox, &send->msg);
}

static void forward_done(struct peers *peers, uint64_t seq, bool ok, const char *reason)
{
    struct forward *forward = idmap_del(&peers->sends, seq);

    if (!forward)
        return;
    hub_sent(forward->send, ok, reason);
    free(forward);
}

/* "SEQ REASON" */
static void receive_sent(struct peers *peers, struct str rest)
{
    static const char *const reasons[] = {"NOT_CONNECTED", "SLOW_OR_CLOSING", "UNKNOWN_NODE"};
    int64_t seq;

    if (!str_int(str_cut(&rest, ' '), &seq) || seq <= 0)
        return;
    if (str_is(rest, "ok")) {
        forward_done(peers, (uint64_t)seq, true, NULL);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (str_is(rest, reasons[i])) {
            forward_done(peers, (uint64_t)seq, false, reasons[i]);
            return;
        }
    forward_done(peers, (uint64_t)seq, false, "REFUSED_ELSEWHERE");
}

/* A job another instance forwarded to us. */
struct forwarded {
    struct send_op send;
    struct peers *peers;
    uint32_t from;
    int64_t seq; /* 0: no answer is expected */
    char *message;
};

static void answer_sent(struct peers *peers, uint32_t to, int64_t seq, const char *reason)
{
    struct buf *frames = &peers_batch(peers, to)->frames;
    size_t begun = frame_begin(frames);

    buf_fmt(frames, "sent %" PRId64 " %s", seq, reason);
    frame_end(frames, begun);
}

static void forwarded_done(struct send_op *send)
{
    struct forwarded *forwarded = container_of(send, struct forwarded, send);

    assert(send->ok || send->reason);
    if (forwarded->seq)
        answer_sent(forwarded->peers, forwarded->from, forwarded->seq,
                    send->ok ? "ok" : send->reason);
    free(forwarded->message);
    free(forwarded);
}

/* A job message without its name: "SEQ FROM NODE DEADLINE HOPS\nMESSAGE" */
static void receive_job(struct peers *peers, struct str rest)
{
    struct str fields = str_cut(&rest, '\n');
    struct forwarded *forwarded;
    int64_t seq, deadline_ms, hops; /* how often it was forwarded */
    uint32_t from;

    if (!str_int(str_cut(&fields, ' '), &seq) || seq < 0 ||
        !peers_name_read(str_cut(&fields, ' '), &from))
        return;
    const struct snap_node *known =
        snapshot_node(peers->keeper->sched->snapshot, str_cut(&fields, ' '));
    if (!known || !str_int(str_cut(&fields, ' '), &deadline_ms) ||
        !str_int(str_cut(&fields, ' '), &hops) || rest.len <= 2) {
        if (seq)
            answer_sent(peers, from, seq, "UNKNOWN_NODE");
        return;
    }
    /* The node has just connected to another instance: forward the job there, HOPS_MAX times at
     * most. The instance that delivers it answers. */
    uint32_t instance = atomic_load(&known->node->instance);
    if (!atomic_load(&known->node->link) && instance && hops < HOPS_MAX) {
        peers_write_job(&peers_batch(peers, instance)->frames, (uint64_t)seq, from, known->node->id,
                        deadline_ms, hops + 1, rest);
        return;
    }
    forwarded = mem_new(struct forwarded);
    forwarded->peers = peers;
    forwarded->from = from;
    forwarded->seq = seq;
    forwarded->message = mem_zeroed(1, rest.len + 1);
    memcpy(forwarded->message, rest.at, rest.len);
    forwarded->send = (struct send_op){.reply_to = &peers->keeper->loop.inbox,
                                       .done = forwarded_done,
                                       .node = known->node,
                                       .message = {.at = forwarded->message, .len = rest.len},
                                       .deadline_ms = deadline_ms,
                                       .forwarded = true};
    if (hub_send(peers->keeper->sched, &forwarded->send))
        forwarded_done(&forwarded->send);
}

/* "NODE JOB ATTEMPT REASON" */
static void receive_cancel(struct peers *peers, struct str rest)
{
    struct str node_id = str_cut(&rest, ' ');
    struct str id = str_cut(&rest, ' ');
    char reason[STORE_REASON_MAX + 1];
    uint64_t job;
    int64_t attempt;

    if (job_id_parse(id, &job) && str_int(str_cut(&rest, ' '), &attempt) &&
        str_copy(rest, reason, sizeof reason))
        hub_stop_here(peers->keeper->sched, node_id, job, (int)attempt, reason);
}

/* --- questions --- */

static const enum err answers[] = {ERR_OK, ERR_TIMEOUT, ERR_CONFLICT, ERR_BAD_REQUEST};

static void query_posted(struct msg *msg)
{
    struct query *query = container_of(msg, struct query, msg);
    struct peers *peers = query->peers;
    struct batch *batch = peers_batch(peers, query->instance);
    struct rpc *rpc = query->rpc;
    uint64_t seq = ++peers->last_seq;

    query->seq = seq;
    query->until_ms = peers->keeper->loop.mono_ms + answer_ms(peers) +
                      (rpc->timeout_ms > 0 ? rpc->timeout_ms : RPC_TIMEOUT_MS);
    idmap_put(&peers->queries, seq, query);
    buf_add(&batch->seqs, &seq, sizeof seq);
    size_t begun = frame_begin(&batch->frames);
    buf_fmt(&batch->frames, "ask %" PRIu64 " %08" PRIx32 " %s %s\n", seq, peers_name(peers),
            query->node_id, rpc->method);
    buf_str(&batch->frames, rpc->params);
    frame_end(&batch->frames, begun);
}

void peers_query(struct server *server, struct rpc *rpc, struct str node_id, uint32_t instance)
{
    struct query *query = mem_new(struct query);

    assert(server->peers && instance);
    query->msg.run = query_posted;
    query->peers = server->peers;
    query->rpc = rpc;
    query->instance = instance;
    str_copy(node_id, query->node_id, sizeof query->node_id);
    inbox_post(&server_keeper(server)->loop.inbox, &query->msg);
}

static void query_done(struct peers *peers, uint64_t seq, enum err err, struct str text)
{
    struct query *query = idmap_del(&peers->queries, seq);

    if (!query)
        return;
    assert(query->seq == seq && query->rpc->done);
    if (text.len)
        buf_str(&query->rpc->answer, text);
    rpc_over(query->rpc, err);
    free(query);
}

/* "SEQ CODE\nTEXT" */
static void receive_answer(struct peers *peers, struct str rest)
{
    struct str head = str_cut(&rest, '\n');
    int64_t seq, code;

    if (str_int(str_cut(&head, ' '), &seq) && str_int(str_cut(&head, ' '), &code) && seq > 0 &&
        code >= 0 && code < (int64_t)COUNT_OF(answers))
        query_done(peers, (uint64_t)seq, answers[code], rest);
}

/* A question from another instance to one of our nodes. */
struct incoming {
    struct rpc rpc;
    struct peers *peers;
    uint32_t from;
    int64_t seq;
    char *params;
};

static void incoming_done(struct rpc *rpc)
{
    struct incoming *incoming = container_of(rpc, struct incoming, rpc);
    struct buf *frames = &peers_batch(incoming->peers, incoming->from)->frames;
    size_t begun = frame_begin(frames);
    int code = 0;

    while (code + 1 < (int)COUNT_OF(answers) && answers[code] != rpc->err)
        code++;
    buf_fmt(frames, "answer %" PRId64 " %d\n", incoming->seq, code);
    buf_str(frames, buf_view(&rpc->answer));
    frame_end(frames, begun);
    buf_free(&rpc->answer);
    free(incoming->params);
    free(incoming);
}

/* Answers a question to the instance itself. */
static void answer_itself(struct rpc *rpc)
{
    static const struct {
        const char *method;
        void (*answer)(struct rpc *rpc);
    } rows[] = {{"Instance/Explain", explain_peers_answer}, {"Instance/Report", archive_answer}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (str_is(str_of(rpc->method), rows[i].method)) {
            rows[i].answer(rpc);
            return;
        }
    rpc_over(rpc, ERR_BAD_REQUEST); /* another release may know other methods */
}

/* "SEQ FROM NODE METHOD\nPARAMS" */
static void receive_query(struct peers *peers, struct str rest)
{
    struct str head = str_cut(&rest, '\n');
    struct incoming *incoming;
    uint32_t from;
    int64_t seq;

    if (!str_int(str_cut(&head, ' '), &seq) || !peers_name_read(str_cut(&head, ' '), &from))
        return;
    struct str node_id = str_cut(&head, ' ');
    const struct snap_node *known = snapshot_node(peers->keeper->sched->snapshot, node_id);
    incoming = mem_new(struct incoming);
    incoming->peers = peers;
    incoming->from = from;
    incoming->seq = seq;
    incoming->params = mem_zeroed(1, rest.len + 1);
    memcpy(incoming->params, rest.len ? rest.at : "", rest.len);
    incoming->rpc.from = peers->keeper;
    incoming->rpc.params = (struct str){.at = incoming->params, .len = rest.len};
    incoming->rpc.done = incoming_done;
    incoming->rpc.forwarded = true;
    if (!str_copy(head, incoming->rpc.method, sizeof incoming->rpc.method))
        rpc_over(&incoming->rpc, ERR_CONFLICT);
    else if (str_is(node_id, PEERS_ITSELF))
        answer_itself(&incoming->rpc);
    else if (known)
        rpc_send(&incoming->rpc, known->node);
    else
        rpc_over(&incoming->rpc, ERR_CONFLICT);
}

/* --- batches, interests, and incoming messages --- */

enum {
    INTEREST_EVERY_MS = 2000, /* repeated for instances that started meanwhile */
    INTEREST_OVER_MS = 6000,  /* an interest not repeated for this long has ended */
    INTEREST_STAYS_MS = 10000 /* kept this long, so as not to change with each job */
};

bool peers_shared(const struct server *server)
{
    return server->peers != NULL;
}

/* --- outgoing messages --- */

static void delivered(struct store_op *op)
{
    struct batch *batch = container_of(op, struct batch, op);
    /* ERR_UNKNOWN means it may have been delivered: wait for the answers as if it was. */
    bool ok = op->err == ERR_UNKNOWN || (!op->err && op->u.message.receivers > 0);

    assert(batch->seqs.len % sizeof(uint64_t) == 0);
    for (size_t at = 0; !ok && at < batch->seqs.len; at += sizeof(uint64_t)) {
        uint64_t seq;

        memcpy(&seq, batch->seqs.at + at, sizeof seq);
        forward_done(batch->peers, seq, false, op->err ? "STORE_DOWN" : "INSTANCE_GONE");
        query_done(batch->peers, seq, ERR_CONFLICT, STR_NONE);
    }
    batch_free(batch);
}

void peers_turn(struct peers *peers)
{
    struct batch *batch;

    while (peers && (batch = peers->open)) {
        uint32_t to = batch->op.u.message.to;

        assert(batch->frames.len > 0 && batch->peers == peers);
        peers->open = batch->next;
        batch->op = (struct store_op){
            .verb = STORE_MESSAGE, .reply_to = &peers->keeper->loop.inbox, .done = delivered};
        batch->op.u.message.to = to;
        batch->op.u.message.text = buf_view(&batch->frames);
        sched_send(peers->keeper->sched, &batch->op);
    }
}

/* A short message on its way from any loop to the keeper's batch. */
struct outgoing {
    struct msg msg;
    struct peers *peers;
    uint32_t to;
    size_t len;
    char text[];
};

static void outgoing_posted(struct msg *msg)
{
    struct outgoing *out = container_of(msg, struct outgoing, msg);

    buf_add(&peers_batch(out->peers, out->to)->frames, out->text, out->len);
    free(out);
}

void peers_pass(struct server *server, uint32_t instance, struct str frames)
{
    struct outgoing *out = mem_zeroed(1, sizeof *out + frames.len);

    assert(server->peers && frames.len);
    *out = (struct outgoing){
        .msg = {.run = outgoing_posted}, .peers = server->peers, .to = instance, .len = frames.len};
    memcpy(out->text, frames.at, frames.len);
    inbox_post(&server_keeper(server)->loop.inbox, &out->msg);
}

__attribute__((format(printf, 3, 4))) static void send_text(struct server *server, uint32_t to,
                                                            const char *fmt, ...)
{
    struct buf buf = {0};
    size_t begun = frame_begin(&buf);
    char text[512];
    va_list list;

    va_start(list, fmt);
    int len = vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    assert(len > 0 && len < (int)sizeof text);
    buf_add(&buf, text, (size_t)len);
    frame_end(&buf, begun);
    peers_pass(server, to, buf_view(&buf));
    buf_free(&buf);
}

bool peers_want(const struct server *server, unsigned what)
{
    return server->peers &&
           (atomic_load_explicit(&server->peers->wanted, memory_order_relaxed) & what);
}

void peers_ended(struct server *server, uint64_t job)
{
    char id[JOB_ID_TEXT + 1];

    assert(job);
    job_id_text(job, id);
    send_text(server, 0, "ended %s", id);
}

void peers_room(struct server *server, struct str node_id, const struct lease_node *counts,
                uint64_t order)
{
    assert(node_id.len <= NODE_ID_MAX && lease_counts_ok(counts));
    send_text(server, 0, "room " STR_FMT " %d %d %d %d %" PRIu32 " %" PRIu64, STR_ARG(node_id),
              (int)counts->health, counts->max, counts->reserved, counts->running, counts->epoch,
              order);
}

void peers_cancel(struct server *server, uint32_t instance, struct str node_id, uint64_t job,
                  int attempt, const char *reason)
{
    char id[JOB_ID_TEXT + 1];

    assert(instance && node_id.len <= NODE_ID_MAX);
    job_id_text(job, id);
    send_text(server, instance, "cancel " STR_FMT " %s %d %.*s", STR_ARG(node_id), id, attempt,
              STORE_REASON_MAX, reason);
}

void peers_event(struct server *server, uint64_t job, struct str namespace, struct str text)
{
    char id[JOB_ID_TEXT + 1];
    struct buf *frames = &peers_batch(server->peers, 0)->frames;
    size_t begun = frame_begin(frames);

    job_id_text(job, id);
    /* An instance of an earlier release does not know namespaces, and would show the event to
     * everybody. */
    if (str_eq(namespace, NAMESPACE_DEFAULT))
        buf_fmt(frames, "event %08" PRIx32 " %s ", peers_name(server->peers), id);
    else
        buf_fmt(frames, "event_of %08" PRIx32 " %s " STR_FMT " ", peers_name(server->peers), id,
                STR_ARG(namespace));
    buf_str(frames, text);
    frame_end(frames, begun);
}

/* --- interests: what each instance wants to be sent --- */

static void send_interest(struct peers *peers, bool again)
{
    const struct server *server = peers->keeper->server;
    int64_t now_ms = peers->keeper->loop.mono_ms;
    unsigned needed = 0, bits = 0;

    if (events_has_readers(server))
        needed |= PEERS_EVENTS;
    if (waiters_wait(server))
        needed |= PEERS_ENDS;
    if (atomic_load_explicit(&server->sched.queue_depth, memory_order_relaxed) > 0)
        needed |= PEERS_ROOM;
    for (unsigned i = 0; i < COUNT_OF(peers->needed_ms); i++) {
        if (needed & 1u << i)
            peers->needed_ms[i] = now_ms;
        if (peers->needed_ms[i] && now_ms - peers->needed_ms[i] < INTEREST_STAYS_MS)
            bits |= 1u << i;
    }
    if (bits == peers->sent_bits && !again &&
        (!bits || now_ms - peers->sent_ms < INTEREST_EVERY_MS))
        return;
    peers->sent_bits = bits;
    peers->sent_ms = now_ms;
    struct buf *frames = &peers_batch(peers, 0)->frames;
    size_t begun = frame_begin(frames);
    buf_fmt(frames, "wish %08" PRIx32 " %u", peers_name(peers), bits);
    frame_end(frames, begun);
}

static void interest_posted(struct msg *msg)
{
    struct peers *peers = container_of(msg, struct peers, interest_msg);

    atomic_store(&peers->interest_posted, false);
    send_interest(peers, false);
}

void peers_send_interest(struct server *server)
{
    struct peers *peers = server->peers;

    if (peers && !atomic_exchange(&peers->interest_posted, true))
        inbox_post(&peers->keeper->loop.inbox, &peers->interest_msg);
}

static void sum_interests(struct peers *peers)
{
    int64_t now_ms = peers->keeper->loop.mono_ms;
    unsigned wanted = 0;

    for (size_t i = 0; i < PEERS_MAX; i++) {
        if (peers->interests[i].name && now_ms - peers->interests[i].heard_ms > INTEREST_OVER_MS)
            peers->interests[i] = (struct interest){0};
        wanted |= peers->interests[i].bits;
    }
    atomic_store_explicit(&peers->wanted, wanted, memory_order_relaxed);
}

/* "NAME BITS" */
static void receive_interest(struct peers *peers, struct str rest)
{
    struct interest *free_slot = NULL, *slot = NULL;
    uint32_t name;
    int64_t bits;

    _Static_assert(COUNT_OF(peers->needed_ms) == 3 && PEERS_ROOM == 1 << 2, "a time for each bit");
    if (!peers_name_read(str_cut(&rest, ' '), &name) || name == peers_name(peers) ||
        !str_int(str_cut(&rest, ' '), &bits))
        return;
    for (size_t i = 0; i < PEERS_MAX; i++) {
        if (peers->interests[i].name == name)
            slot = &peers->interests[i];
        else if (!peers->interests[i].name)
            free_slot = &peers->interests[i];
    }
    slot = slot ? slot : free_slot;
    if (slot)
        *slot = (struct interest){.name = name,
                                  .bits = (unsigned)bits & (PEERS_ENDS | PEERS_EVENTS | PEERS_ROOM),
                                  .heard_ms = peers->keeper->loop.mono_ms};
    sum_interests(peers);
}

/* --- incoming messages --- */

static void receive_hello(struct peers *peers, struct str rest)
{
    uint32_t name;

    if (peers_name_read(str_cut(&rest, ' '), &name) && name != peers_name(peers) &&
        peers->sent_bits)
        send_interest(peers, true);
}

static void receive_ended(struct peers *peers, struct str rest)
{
    uint64_t job;

    if (job_id_parse(str_cut(&rest, ' '), &job))
        waiters_wake(peers->keeper->server, NULL, job, NULL);
}

/* "NAME JOB {...}" */
static void receive_event(struct peers *peers, struct str rest)
{
    uint32_t name;
    uint64_t job;

    if (peers_name_read(str_cut(&rest, ' '), &name) && name != peers_name(peers) &&
        job_id_parse(str_cut(&rest, ' '), &job) && rest.len > 2)
        events_elsewhere(peers->keeper->server, job, NAMESPACE_DEFAULT, rest);
}

/* "NAME JOB NAMESPACE TEXT" */
static void receive_event_of(struct peers *peers, struct str rest)
{
    struct str namespace;
    uint32_t name;
    uint64_t job;

    if (!peers_name_read(str_cut(&rest, ' '), &name) || name == peers_name(peers) ||
        !job_id_parse(str_cut(&rest, ' '), &job))
        return;
    namespace = str_cut(&rest, ' ');
    if (namespace_valid(namespace) && rest.len > 2)
        events_elsewhere(peers->keeper->server, job, namespace, rest);
}

/* "NODE HEALTH MAX RESERVED RUNNING EPOCH ORDER": a slot became free elsewhere. */
static void receive_room(struct peers *peers, struct str rest)
{
    const struct snap_node *known =
        snapshot_node(peers->keeper->sched->snapshot, str_cut(&rest, ' '));
    int64_t values[6];

    for (size_t i = 0; i < COUNT_OF(values); i++)
        if (!str_int(str_cut(&rest, ' '), &values[i]) || values[i] < 0)
            return;
    struct lease_node counts = {.health = (enum node_health)values[0],
                                .max = (int32_t)values[1],
                                .reserved = (int32_t)values[2],
                                .running = (int32_t)values[3],
                                .epoch = (uint32_t)values[4]};
    if (!known || values[0] >= NODE_HEALTH_COUNT || !lease_counts_ok(&counts))
        return;
    counts_take(known->node, &counts, NULL, (uint64_t)values[5], false);
    keeper_freed(peers->keeper->server->sched.keeper, known->node);
}

/* "seen\nNODE ..." */
static void receive_seen(struct peers *peers, struct str rest)
{
    node_sync_seen(keeper_view(peers->keeper->server->sched.keeper), rest);
}

/* Messages not listed here, from later releases, are ignored. */
static const struct {
    const char *name;
    char after; /* the character that ends the name */
    void (*receive)(struct peers *peers, struct str rest);
} messages[] = {
    {"job", ' ', receive_job},           {"sent", ' ', receive_sent},
    {"cancel", ' ', receive_cancel},     {"ask", ' ', receive_query},
    {"answer", ' ', receive_answer},     {"wish", ' ', receive_interest},
    {"hello", ' ', receive_hello},       {"ended", ' ', receive_ended},
    {"event", ' ', receive_event},       {"room", ' ', receive_room},
    {"event_of", ' ', receive_event_of}, {"seen", '\n', receive_seen},
};

static void receive(struct store_listener *listener, const struct store_notice *notice)
{
    struct peers *peers = container_of(listener, struct peers, listener);
    struct str rest = notice->text, frame;

    if (notice->kind != STORE_NOTICE_MESSAGE)
        keeper_notice(peers->keeper->server->sched.keeper, notice);
    while (notice->kind == STORE_NOTICE_MESSAGE && frame_next(&rest, &frame))
        for (size_t i = 0; i < COUNT_OF(messages); i++) {
            size_t len = strlen(messages[i].name);

            if (frame.len > len && memcmp(frame.at, messages[i].name, len) == 0 &&
                frame.at[len] == messages[i].after) {
                messages[i].receive(
                    peers, (struct str){.at = frame.at + len + 1, .len = frame.len - len - 1});
                break;
            }
        }
    if (notice->kind == STORE_NOTICE_GAP)
        send_text(peers->keeper->server, 0, "hello %08" PRIx32, peers_name(peers));
}

/* --- start and stop --- */

struct peers *peers_new(struct worker *keeper)
{
    struct peers *peers;

    if (!store_name(keeper->server->store))
        return NULL;
    peers = mem_new(struct peers);
    peers->keeper = keeper;
    peers->listener = (struct store_listener){.inbox = &keeper->loop.inbox, .notify = receive};
    peers->interest_msg.run = interest_posted;
    return peers;
}

void peers_start(struct peers *peers)
{
    if (peers)
        store_listen(peers->keeper->server->store, &peers->listener);
}

void peers_stop(struct peers *peers)
{
    if (peers)
        store_listen(peers->keeper->server->store, NULL);
}

void peers_end_sends(struct peers *peers)
{
    struct forward *forward;
    size_t first = 0;

    while (peers && (forward = idmap_next(&peers->sends, &first))) {
        forward_done(peers, forward->seq, false, "INSTANCE_STOPS");
        first = 0; /* the map has changed */
    }
}

void peers_free(struct peers *peers)
{
    struct batch *batch;
    struct query *query;

    if (!peers)
        return;
    while ((batch = peers->open)) {
        peers->open = batch->next;
        batch_free(batch);
    }
    assert(peers->sends.count == 0);
    for (size_t i = 0; (query = idmap_next(&peers->queries, &i));)
        free(query);
    idmap_free(&peers->sends);
    idmap_free(&peers->queries);
    free(peers);
}

void peers_tick(struct peers *peers)
{
    struct buf late = {0}; /* collected first: a map must not change while it is walked */
    struct forward *forward;
    struct query *query;

    if (!peers)
        return;
    sum_interests(peers);
    send_interest(peers, false);
    /* Calls that were not answered in time. */
    int64_t now_ms = peers->keeper->loop.mono_ms;
    for (size_t i = 0; (forward = idmap_next(&peers->sends, &i));)
        if (forward->until_ms <= now_ms)
            buf_add(&late, &forward->seq, sizeof forward->seq);
    for (size_t i = 0; (query = idmap_next(&peers->queries, &i));)
        if (query->until_ms <= now_ms)
            buf_add(&late, &query->seq, sizeof query->seq);
    for (size_t at = 0; at < late.len; at += sizeof(uint64_t)) {
        uint64_t seq;

        memcpy(&seq, late.at + at, sizeof seq);
        forward_done(peers, seq, false, "INSTANCE_SILENT");
        query_done(peers, seq, ERR_TIMEOUT, STR_NONE);
    }
    buf_free(&late);
}

/* --- questions to all --- */

enum {
    SILENT_MS = 3000, /* skip an instance that did not call the store for longer */
    WAIT_MS = 1,      /* plus the time of both directions: it is answered from memory */
};

struct peers_question {
    struct rpc rpc;
    struct peers_round *round;
};

static void answered(struct rpc *rpc)
{
    struct peers_question *question = container_of(rpc, struct peers_question, rpc);
    struct peers_round *round = question->round;

    assert(round->open > 0);
    round->answered += !rpc->err;
    if (!rpc->err && rpc->answer.len)
        round->texts[round->count++] = arena_str(round->arena, buf_view(&rpc->answer));
    buf_free(&rpc->answer);
    if (--round->open == 0)
        round->done(round);
}

static void listed(struct store_op *op)
{
    struct peers_round *round = container_of(op, struct peers_round, op);
    struct server *server = round->worker->server;
    size_t count = op->err ? 0 : op->u.peers.count;

    round->texts = arena_array(round->arena, struct str, count + 1);
    round->questions = arena_array(round->arena, struct peers_question, count + 1);
    round->open = 1; /* our own, until all have been asked */
    for (size_t i = 0; i < count; i++) {
        uint32_t name = op->u.peers.items[i].name;
        struct peers_question *question = &round->questions[round->asked];

        if (name == store_name(server->store) || op->u.peers.items[i].silent_ms > SILENT_MS)
            continue;
        round->asked++;
        round->open++;
        question->round = round;
        question->rpc = (struct rpc){.from = round->worker,
                                     .timeout_ms = WAIT_MS,
                                     .params = round->params,
                                     .done = answered};
        snprintf(question->rpc.method, sizeof question->rpc.method, "%s", round->method);
        peers_query(server, &question->rpc, STR(PEERS_ITSELF), name);
    }
    if (--round->open == 0)
        round->done(round);
}

void peers_round_start(struct peers_round *round)
{
    assert(round->done && round->method && !round->asked);
    if (!peers_shared(round->worker->server)) {
        round->done(round);
        return;
    }
    round->op = (struct store_op){.verb = STORE_PEERS,
                                  .reply_to = &round->worker->loop.inbox,
                                  .done = listed,
                                  .not_after_ms = sched_not_after(round->worker->sched),
                                  .arena = round->arena};
    sched_send(round->worker->sched, &round->op);
}
