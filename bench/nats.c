/* NATS in its text protocol, two ways.
 *
 * Requests: the workers are a queue group; a reply goes to the submitter's inbox. Done: it came
 * there. JetStream: the stream and its consumer are made by bench/run; workers are the consumer's
 * queue group and acknowledge with a reply of their own, whose last token is the job's number.
 * Done: the server has said that it took the acknowledgement. */
#include <string.h>

#include "peer.h"

enum { PAYLOAD_BYTES_MAX = 4096 };

/* One message of the server; of MSG what it says, of others only what they are. */
struct nats_msg {
    enum { NATS_OTHER, NATS_MSG, NATS_PONG } kind;
    struct str subject, reply, payload;
};

/* "MSG <subject> <sid> [reply] <bytes>" and the payload. */
static enum err next_payload(struct str line, struct str in, struct nats_msg *ret_msg,
                             size_t *ret_used)
{
    struct str rest = line, words[4] = {0};
    int count = 0;
    int64_t len;

    str_cut(&rest, ' ');
    while (rest.at && count < 4)
        words[count++] = str_cut(&rest, ' ');
    if (rest.at || count < 3 || !str_int(words[count - 1], &len) || len < 0 ||
        len > PAYLOAD_BYTES_MAX)
        return ERR_BAD_REQUEST;
    *ret_msg = (struct nats_msg){.kind = NATS_MSG,
                                 .subject = words[0],
                                 .reply = count == 4 ? words[2] : STR_NONE,
                                 .payload = {.at = in.at + line.len + 2, .len = (size_t)len}};
    if (in.len - line.len - 2 >= ret_msg->payload.len + 2)
        *ret_used = line.len + 2 + ret_msg->payload.len + 2;
    return ERR_OK;
}

static enum err next_message(struct bench_conn *conn, struct str in, struct nats_msg *ret_msg,
                             size_t *ret_used)
{
    const char *end = memmem(in.at, in.len, "\r\n", 2);
    struct str line = {.at = in.at, .len = end ? (size_t)(end - in.at) : 0};

    if (!end)
        return ERR_OK;
    if (str_starts(line, STR("MSG ")))
        return next_payload(line, in, ret_msg, ret_used);
    *ret_msg = (struct nats_msg){.kind = str_is(line, "PONG") ? NATS_PONG : NATS_OTHER};
    *ret_used = line.len + 2;
    if (str_is(line, "PING"))
        buf_str(&conn->out, STR("PONG\r\n"));
    return str_starts(line, STR("-ERR")) ? ERR_BAD_REQUEST : ERR_OK;
}

static void greet(struct bench_conn *conn)
{
    buf_str(&conn->out, STR("CONNECT {\"verbose\":false,\"pedantic\":false}\r\n"));
}

static void submit_greet(struct bench_conn *conn)
{
    greet(conn);
    buf_fmt(&conn->out, "SUB _INBOX.s%u 1\r\n", conn->index);
}

static void publish(struct bench_conn *conn, const char *subject, int number)
{
    char text[16];
    int len = snprintf(text, sizeof text, "%d", number);

    buf_fmt(&conn->out, "PUB %s _INBOX.s%u %d\r\n%s\r\n", subject, conn->index, len, text);
}

/* ---- requests */

static void submit(struct bench_conn *conn, int number)
{
    publish(conn, "noop", number);
}

static enum err submit_take(struct peer *peer, struct bench_conn *conn, struct str in,
                            size_t *ret_used)
{
    struct nats_msg msg = {0};
    int number;
    enum err err = next_message(conn, in, &msg, ret_used);

    if (err || !*ret_used || msg.kind != NATS_MSG)
        return err;
    err = peer_number(peer, msg.payload, &number);
    if (!err)
        peer_done(peer, number);
    return err;
}

/* The answer to the PING says that the subscription is known. */
static void work_greet(struct bench_conn *conn)
{
    greet(conn);
    buf_str(&conn->out, STR("SUB noop workers 1\r\nPING\r\n"));
}

/* The next message to a worker; of any other kind than NATS_MSG there is nothing more to do. */
static enum err next_job(struct peer *peer, struct bench_conn *conn, struct str in,
                         struct nats_msg *ret_msg, size_t *ret_used)
{
    enum err err = next_message(conn, in, ret_msg, ret_used);

    if (!err && *ret_used && ret_msg->kind == NATS_PONG)
        peer_welcomed(peer);
    return err;
}

static enum err work_take(struct peer *peer, struct bench_conn *conn, struct str in,
                          size_t *ret_used)
{
    struct nats_msg msg = {0};
    int number;
    enum err err = next_job(peer, conn, in, &msg, ret_used);

    if (err || !*ret_used || msg.kind != NATS_MSG)
        return err;
    if (peer_number(peer, msg.payload, &number) != ERR_OK)
        return ERR_BAD_REQUEST;
    peer_started(peer, number);
    buf_fmt(&conn->out, "PUB " STR_FMT " %zu\r\n" STR_FMT "\r\n", STR_ARG(msg.reply),
            msg.payload.len, STR_ARG(msg.payload));
    return ERR_OK;
}

const struct bench_protocol nats_protocol = {.name = "nats",
                                             .submit_all = peer_submit_all,
                                             .work = peer_work,
                                             .submit_conns = 4,
                                             .submit_greet = submit_greet,
                                             .submit = submit,
                                             .submit_take = submit_take,
                                             .work_greet = work_greet,
                                             .work_take = work_take};

/* ---- JetStream */

static void stream_submit(struct bench_conn *conn, int number)
{
    publish(conn, "jobs.noop", number);
}

/* What the stream says about each job it took. */
static enum err stream_submit_take(struct peer *peer, struct bench_conn *conn, struct str in,
                                   size_t *ret_used)
{
    struct nats_msg msg = {0};
    enum err err = next_message(conn, in, &msg, ret_used);

    (void)peer;
    if (!err && *ret_used && msg.kind == NATS_MSG &&
        memmem(msg.payload.at, msg.payload.len, "\"error\"", 7))
        err = ERR_BAD_REQUEST;
    return err;
}

static void stream_work_greet(struct bench_conn *conn)
{
    greet(conn);
    buf_fmt(&conn->out, "SUB _INBOX.w%u.* 1\r\nSUB deliver.noop workers 2\r\nPING\r\n",
            conn->index);
}

static enum err stream_work_take(struct peer *peer, struct bench_conn *conn, struct str in,
                                 size_t *ret_used)
{
    struct nats_msg msg = {0};
    bool taken;
    int number;
    enum err err = next_job(peer, conn, in, &msg, ret_used);

    if (err || !*ret_used || msg.kind != NATS_MSG)
        return err;
    taken = str_starts(msg.subject, STR("_INBOX."));
    str_cut(&msg.subject, '.');
    str_cut(&msg.subject, '.');
    if (peer_number(peer, taken ? msg.subject : msg.payload, &number) != ERR_OK)
        return ERR_BAD_REQUEST;
    if (taken) {
        peer_done(peer, number);
        return ERR_OK;
    }
    peer_started(peer, number);
    buf_fmt(&conn->out, "PUB " STR_FMT " _INBOX.w%u." STR_FMT " 4\r\n+ACK\r\n", STR_ARG(msg.reply),
            conn->index, STR_ARG(msg.payload));
    return ERR_OK;
}

const struct bench_protocol jetstream_protocol = {.name = "jetstream",
                                                  .submit_all = peer_submit_all,
                                                  .work = peer_work,
                                                  .submit_conns = 4,
                                                  .submit_greet = submit_greet,
                                                  .submit = stream_submit,
                                                  .submit_take = stream_submit_take,
                                                  .work_greet = stream_work_greet,
                                                  .work_take = stream_work_take};
