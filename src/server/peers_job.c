/* Jobs, cancels and questions for nodes that are connected to another instance. The one that has
 * the connection says whether it got through; who hears nothing in time takes it for lost. A job
 * that arrived all the same is fenced: its reservation is gone, so its ACK is refused. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/archive.h"
#include "server/explain_peers.h"
#include "server/peers_private.h"

enum {
    ANSWER_MS = 1000, /* for an answer of the other instance, beside the way there and back */
    HOPS_MAX = 2,
};

/* A send on its way to another instance. */
struct handing {
    struct send_op *send;
    uint64_t seq;
    int64_t until_ms;
};

/* A question on its way. */
struct asking {
    struct msg msg;
    struct peers *peers;
    struct rpc *rpc;
    uint32_t holder;
    uint64_t seq;
    int64_t until_ms;
    char node_id[NODE_ID_MAX + 1];
};

/* How long the other instance may take. Each way leads through the store, where a call has its own
 * time. */
static int64_t answer_ms(const struct peers *peers)
{
    const struct settings *settings = atomic_load(&peers->keeper->server->settings);

    return ANSWER_MS + 2 * settings->store_call_ms;
}

/* --- jobs --- */

static void write_job(struct buf *frames, uint64_t seq, uint32_t from, struct str node_id,
                      int64_t deadline_ms, int64_t hops, struct str message)
{
    size_t begun = frame_begin(frames);

    buf_fmt(frames, "job %" PRIu64 " %08" PRIx32 " " STR_FMT " %" PRId64 " %" PRId64 "\n", seq,
            from, STR_ARG(node_id), deadline_ms, hops);
    buf_str(frames, message);
    frame_end(frames, begun);
}

void peers_write_job(struct buf *frames, uint64_t seq, uint32_t from, struct str node_id,
                     int64_t deadline_ms, struct str message)
{
    write_job(frames, seq, from, node_id, deadline_ms, 0, message);
}

/* On the keeper. */
static void send_arrived(struct msg *msg)
{
    struct send_op *send = container_of(msg, struct send_op, msg);
    struct peers *peers = send->to;
    uint32_t holder = (uint32_t)send->via;
    struct parcel *parcel = peers_parcel(peers, holder);
    struct handing *handing = mem_new(struct handing);
    uint64_t seq = ++peers->last_seq;

    assert(holder && holder != peers_name(peers) && send->message.len > 2);
    *handing = (struct handing){
        .send = send, .seq = seq, .until_ms = peers->keeper->loop.mono_ms + answer_ms(peers)};
    idmap_put(&peers->sends, seq, handing);
    buf_add(&parcel->seqs, &seq, sizeof seq);
    peers_write_job(&parcel->frames, seq, peers_name(peers), send->node->id, send->deadline_ms,
                    send->message);
}

void peers_send(struct server *server, struct send_op *send, uint32_t holder)
{
    assert(server->peers && holder && !send->handed);
    send->to = server->peers;
    send->via = holder;
    send->msg.run = send_arrived;
    inbox_post(&server_keeper(server)->loop.inbox, &send->msg);
}

static void handing_over(struct peers *peers, uint64_t seq, bool ok, const char *reason)
{
    struct handing *handing = idmap_del(&peers->sends, seq);

    if (!handing)
        return;
    hub_sent(handing->send, ok, reason);
    free(handing);
}

/* "SEQ REASON" */
void peers_hear_sent(struct peers *peers, struct str rest)
{
    static const char *const reasons[] = {"NOT_CONNECTED", "SLOW_OR_CLOSING", "UNKNOWN_NODE"};
    int64_t seq;

    if (!str_int(str_cut(&rest, ' '), &seq) || seq <= 0)
        return;
    if (str_is(rest, "ok")) {
        handing_over(peers, (uint64_t)seq, true, NULL);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (str_is(rest, reasons[i])) {
            handing_over(peers, (uint64_t)seq, false, reasons[i]);
            return;
        }
    handing_over(peers, (uint64_t)seq, false, "REFUSED_ELSEWHERE");
}

struct handed_head {
    int64_t deadline_ms;
    int64_t hops; /* how often it was passed on */
};

/* A job another instance handed to us. */
struct handed {
    struct send_op send;
    struct peers *peers;
    uint32_t from;
    int64_t seq; /* 0: nobody waits for an answer */
    char *message;
};

static void answer_sent(struct peers *peers, uint32_t to, int64_t seq, const char *reason)
{
    struct buf *frames = &peers_parcel(peers, to)->frames;
    size_t begun = frame_begin(frames);

    buf_fmt(frames, "sent %" PRId64 " %s", seq, reason);
    frame_end(frames, begun);
}

static void handed_over(struct send_op *send)
{
    struct handed *handed = container_of(send, struct handed, send);

    assert(send->ok || send->reason);
    if (handed->seq)
        answer_sent(handed->peers, handed->from, handed->seq, send->ok ? "ok" : send->reason);
    free(handed->message);
    free(handed);
}

/* The node has moved on a moment ago: so does the job, not for ever. Who gets it answers. */
static bool pass_on(struct peers *peers, const struct node *node, uint32_t from, int64_t seq,
                    struct handed_head head, struct str message)
{
    uint32_t holder = atomic_load(&node->holder);

    if (atomic_load(&node->link) || !holder || head.hops >= HOPS_MAX)
        return false;
    write_job(&peers_parcel(peers, holder)->frames, (uint64_t)seq, from, node->id, head.deadline_ms,
              head.hops + 1, message);
    return true;
}

/* "SEQ FROM NODE DEADLINE HOPS\nMESSAGE" */
void peers_hear_job(struct peers *peers, struct str rest)
{
    struct str words = str_cut(&rest, '\n');
    struct handed_head head = {0};
    struct handed *handed;
    uint32_t from;
    int64_t seq;

    if (!str_int(str_cut(&words, ' '), &seq) || seq < 0 ||
        !peers_name_read(str_cut(&words, ' '), &from))
        return;
    const struct snap_node *known =
        snapshot_node(peers->keeper->sched->snapshot, str_cut(&words, ' '));
    if (!known || !str_int(str_cut(&words, ' '), &head.deadline_ms) ||
        !str_int(str_cut(&words, ' '), &head.hops) || rest.len <= 2) {
        if (seq)
            answer_sent(peers, from, seq, "UNKNOWN_NODE");
        return;
    }
    if (pass_on(peers, known->node, from, seq, head, rest))
        return;
    handed = mem_new(struct handed);
    handed->peers = peers;
    handed->from = from;
    handed->seq = seq;
    handed->message = mem_zeroed(1, rest.len + 1);
    memcpy(handed->message, rest.at, rest.len);
    handed->send = (struct send_op){.reply_to = &peers->keeper->loop.inbox,
                                    .done = handed_over,
                                    .node = known->node,
                                    .message = {.at = handed->message, .len = rest.len},
                                    .deadline_ms = head.deadline_ms,
                                    .handed = true};
    hub_send(peers->keeper->sched, &handed->send);
}

/* "NODE JOB ATTEMPT REASON" */
void peers_hear_cancel(struct peers *peers, struct str rest)
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

static void ask_arrived(struct msg *msg)
{
    struct asking *asking = container_of(msg, struct asking, msg);
    struct peers *peers = asking->peers;
    struct parcel *parcel = peers_parcel(peers, asking->holder);
    struct rpc *rpc = asking->rpc;
    uint64_t seq = ++peers->last_seq;

    asking->seq = seq;
    asking->until_ms = peers->keeper->loop.mono_ms + answer_ms(peers) +
                       (rpc->timeout_ms > 0 ? rpc->timeout_ms : RPC_TIMEOUT_MS);
    idmap_put(&peers->asks, seq, asking);
    buf_add(&parcel->seqs, &seq, sizeof seq);
    size_t begun = frame_begin(&parcel->frames);
    buf_fmt(&parcel->frames, "ask %" PRIu64 " %08" PRIx32 " %s %s\n", seq, peers_name(peers),
            asking->node_id, rpc->method);
    buf_str(&parcel->frames, rpc->params);
    frame_end(&parcel->frames, begun);
}

void peers_ask(struct server *server, struct rpc *rpc, struct str node_id, uint32_t holder)
{
    struct asking *asking = mem_new(struct asking);

    assert(server->peers && holder);
    asking->msg.run = ask_arrived;
    asking->peers = server->peers;
    asking->rpc = rpc;
    asking->holder = holder;
    str_copy(node_id, asking->node_id, sizeof asking->node_id);
    inbox_post(&server_keeper(server)->loop.inbox, &asking->msg);
}

static void asking_over(struct peers *peers, uint64_t seq, enum err err, struct str text)
{
    struct asking *asking = idmap_del(&peers->asks, seq);

    if (!asking)
        return;
    assert(asking->seq == seq && asking->rpc->done);
    if (text.len)
        buf_str(&asking->rpc->answer, text);
    rpc_over(asking->rpc, err);
    free(asking);
}

/* "SEQ CODE\nTEXT" */
void peers_hear_answer(struct peers *peers, struct str rest)
{
    struct str head = str_cut(&rest, '\n');
    int64_t seq, code;

    if (str_int(str_cut(&head, ' '), &seq) && str_int(str_cut(&head, ' '), &code) && seq > 0 &&
        code >= 0 && code < (int64_t)COUNT_OF(answers))
        asking_over(peers, (uint64_t)seq, answers[code], rest);
}

/* A question another instance asks one of our nodes. */
struct asked {
    struct rpc rpc;
    struct peers *peers;
    uint32_t from;
    int64_t seq;
    char *params;
};

static void asked_over(struct rpc *rpc)
{
    struct asked *asked = container_of(rpc, struct asked, rpc);
    struct buf *frames = &peers_parcel(asked->peers, asked->from)->frames;
    size_t begun = frame_begin(frames);
    int code = 0;

    while (code + 1 < (int)COUNT_OF(answers) && answers[code] != rpc->err)
        code++;
    buf_fmt(frames, "answer %" PRId64 " %d\n", asked->seq, code);
    buf_str(frames, buf_view(&rpc->answer));
    frame_end(frames, begun);
    buf_free(&rpc->answer);
    free(asked->params);
    free(asked);
}

/* What an instance is asked itself. */
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
    rpc_over(rpc, ERR_BAD_REQUEST); /* another release may know more */
}

/* "SEQ FROM NODE METHOD\nPARAMS" */
void peers_hear_ask(struct peers *peers, struct str rest)
{
    struct str head = str_cut(&rest, '\n');
    struct asked *asked;
    uint32_t from;
    int64_t seq;

    if (!str_int(str_cut(&head, ' '), &seq) || !peers_name_read(str_cut(&head, ' '), &from))
        return;
    struct str node_id = str_cut(&head, ' ');
    const struct snap_node *known = snapshot_node(peers->keeper->sched->snapshot, node_id);
    asked = mem_new(struct asked);
    asked->peers = peers;
    asked->from = from;
    asked->seq = seq;
    asked->params = mem_zeroed(1, rest.len + 1);
    memcpy(asked->params, rest.len ? rest.at : "", rest.len);
    asked->rpc.from = peers->keeper;
    asked->rpc.params = (struct str){.at = asked->params, .len = rest.len};
    asked->rpc.done = asked_over;
    asked->rpc.handed = true;
    if (!str_copy(head, asked->rpc.method, sizeof asked->rpc.method))
        rpc_over(&asked->rpc, ERR_CONFLICT);
    else if (str_is(node_id, PEERS_ITSELF))
        answer_itself(&asked->rpc);
    else if (known)
        rpc_send(&asked->rpc, known->node);
    else
        rpc_over(&asked->rpc, ERR_CONFLICT);
}

/* --- what gets lost --- */

void peers_fail(struct peers *peers, uint64_t seq, const char *reason)
{
    handing_over(peers, seq, false, reason);
    asking_over(peers, seq, ERR_CONFLICT, STR_NONE);
}

void peers_jobs_tick(struct peers *peers)
{
    int64_t now_ms = peers->keeper->loop.mono_ms;
    struct buf late = {0}; /* found first, ended then: a map must not change while it is walked */
    struct handing *handing;
    struct asking *asking;

    for (size_t i = 0; (handing = idmap_next(&peers->sends, &i));)
        if (handing->until_ms <= now_ms)
            buf_add(&late, &handing->seq, sizeof handing->seq);
    for (size_t i = 0; (asking = idmap_next(&peers->asks, &i));)
        if (asking->until_ms <= now_ms)
            buf_add(&late, &asking->seq, sizeof asking->seq);
    for (size_t at = 0; at < late.len; at += sizeof(uint64_t)) {
        uint64_t seq;

        memcpy(&seq, late.at + at, sizeof seq);
        handing_over(peers, seq, false, "INSTANCE_SILENT");
        asking_over(peers, seq, ERR_TIMEOUT, STR_NONE);
    }
    buf_free(&late);
}

void peers_jobs_free(struct peers *peers)
{
    struct handing *handing;
    struct asking *asking;

    for (size_t i = 0; (handing = idmap_next(&peers->sends, &i));)
        free(handing); /* its send goes with its request */
    for (size_t i = 0; (asking = idmap_next(&peers->asks, &i));)
        free(asking);
    idmap_free(&peers->sends);
    idmap_free(&peers->asks);
}
