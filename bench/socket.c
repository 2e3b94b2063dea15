/* Our own jobs over one connection of a client, instead of a request each: as many as it has credit
 * for, and its answers. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "peer.h"

enum { STAGE_HANDSHAKE, STAGE_OPEN };

/* Of the only connection there is. */
static struct {
    int64_t credit;
    int next, last; /* jobs that wait for credit: from next up to last, without it */
    struct buf text;
    struct arena arena;
} client;

static void greet(struct bench_conn *conn)
{
    bench_ws_hello(&conn->out, conn->target, "/v1/submit/connect");
}

static void send_held(struct bench_conn *conn, bool follow)
{
    for (; client.credit > 0 && client.next < client.last; client.next++, client.credit--) {
        buf_clear(&client.text);
        buf_fmt(&client.text,
                "{\"msg\":\"submit\",\"id\":%d,\"follow\":%s,\"job\":{\"session_id\":\"bench-%d\","
                "\"src_lang\":\"" BENCH_SRC "\",\"tgt_lang\":\"" BENCH_TGT
                "\",\"audio_ref\":\"bench:%d\",\"options\":{\"require_tts\":false}}}",
                client.next, follow ? "true" : "false", client.next % BENCH_NAMES, client.next);
        bench_ws_put(&conn->out, BENCH_WS_TEXT, buf_view(&client.text));
    }
}

static void submit(struct bench_conn *conn, int number)
{
    assert(number == client.last);
    client.last++;
    send_held(conn, false);
}

static void submit_followed(struct bench_conn *conn, int number)
{
    assert(number == client.last);
    client.last++;
    send_held(conn, true);
}

static enum err take_message(struct peer *peer, struct str text)
{
    const struct json *msg;
    int64_t number = 0, credit = 1;

    arena_reset(&client.arena);
    if (json_parse(text, &client.arena, &msg, NULL) != ERR_OK)
        return ERR_BAD_REQUEST;
    const struct json *word = json_get(msg, "msg");
    if (json_str_is(word, "ended")) {
        if (!json_int(json_get(msg, "id"), &number) || number < 0 || number >= client.next ||
            !json_str_is(json_get(msg, "state"), "DONE"))
            return ERR_BAD_REQUEST;
        peer_done(peer, (int)number);
        return ERR_OK;
    }
    if (json_str_is(word, "credit"))
        json_int(json_get(msg, "n"), &credit);
    else if (json_str_is(word, "placed") || json_str_is(word, "welcome"))
        json_int(json_get(msg, "credit"), &credit);
    else
        return ERR_BAD_REQUEST;
    client.credit += credit;
    return ERR_OK;
}

static enum err take(struct peer *peer, struct bench_conn *conn, struct str in, size_t *ret_used)
{
    const char *end = conn->stage == STAGE_HANDSHAKE ? memmem(in.at, in.len, "\r\n\r\n", 4) : NULL;
    struct str payload;
    enum err err = ERR_OK;
    int opcode, got;

    if (conn->stage == STAGE_HANDSHAKE) {
        if (end && memcmp(in.at + 9, "101", 3) != 0)
            return ERR_BAD_REQUEST;
        conn->stage = end ? STAGE_OPEN : STAGE_HANDSHAKE;
        *ret_used = end ? (size_t)(end - in.at) + 4 : 0;
        return ERR_OK;
    }
    got = bench_ws_next(in, ret_used, &opcode, &payload);
    if (got <= 0)
        return got < 0 ? ERR_BAD_REQUEST : ERR_OK;
    if (opcode == BENCH_WS_TEXT)
        err = take_message(peer, payload);
    else if (opcode == BENCH_WS_PING)
        bench_ws_put(&conn->out, BENCH_WS_PONG, payload);
    else
        err = ERR_CLOSED;
    if (!err)
        send_held(conn, peer->protocol->told_ends);
    return err;
}

const struct bench_protocol socket_protocol = {.name = "socket",
                                               .submit_all = peer_submit_all,
                                               .work = bench_worker_main,
                                               .forget = bench_forget_nodes,
                                               .submit_conns = 1,
                                               .submit_greet = greet,
                                               .submit = submit,
                                               .submit_take = take};

const struct bench_protocol socket_ends_protocol = {.name = "socket-ends",
                                                    .submit_all = peer_submit_all,
                                                    .work = bench_worker_main,
                                                    .forget = bench_forget_nodes,
                                                    .told_ends = true,
                                                    .submit_conns = 1,
                                                    .submit_greet = greet,
                                                    .submit = submit_followed,
                                                    .submit_take = take};

const struct bench_protocol socket_together_protocol = {.name = "socket-together",
                                                        .submit_all = peer_submit_all,
                                                        .work = bench_worker_main,
                                                        .forget = bench_forget_nodes,
                                                        .together = true,
                                                        .told_ends = true,
                                                        .submit_conns = 1,
                                                        .submit_greet = greet,
                                                        .submit = submit_followed,
                                                        .submit_take = take};
