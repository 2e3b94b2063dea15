/* gearmand: foreground jobs in its binary protocol. A packet is a magic, a type and the length of
 * what follows, 4 bytes each, in network order; arguments end with a NUL, the last one with the
 * packet. Done: the submitter is told (WORK_COMPLETE). */
#include <arpa/inet.h>
#include <string.h>

#include "peer.h"

enum {
    CAN_DO = 1,
    PRE_SLEEP = 4,
    NOOP = 6,
    SUBMIT_JOB = 7,
    JOB_CREATED = 8,
    GRAB_JOB = 9,
    NO_JOB = 10,
    JOB_ASSIGN = 11,
    WORK_COMPLETE = 13,
    HEAD_BYTES = 12,
    BODY_BYTES_MAX = 4096 /* longer is nothing we asked for */
};

#define FUNCTION "noop"

/* The body is a piece of text and a payload behind it. */
static void put(struct buf *out, uint32_t type, struct str text, struct str payload)
{
    uint32_t head[3] = {0, htonl(type), htonl((uint32_t)(text.len + payload.len))};

    memcpy(head, "\0REQ", 4);
    buf_add(out, head, sizeof head);
    buf_str(out, text);
    buf_str(out, payload);
}

static enum err next_packet(struct str in, uint32_t *ret_type, struct str *ret_body,
                            size_t *ret_used)
{
    uint32_t head[3];

    if (in.len < HEAD_BYTES)
        return ERR_OK;
    memcpy(head, in.at, sizeof head);
    if (memcmp(head, "\0RES", 4) != 0 || ntohl(head[2]) > BODY_BYTES_MAX)
        return ERR_BAD_REQUEST;
    *ret_body = (struct str){.at = in.at + HEAD_BYTES, .len = ntohl(head[2])};
    *ret_type = ntohl(head[1]);
    if (in.len - HEAD_BYTES >= ret_body->len)
        *ret_used = HEAD_BYTES + ret_body->len;
    return ERR_OK;
}

static void submit(struct bench_conn *conn, int number)
{
    char text[16];
    int len = snprintf(text, sizeof text, "%d", number);

    /* no id of ours: each job is alone */
    put(&conn->out, SUBMIT_JOB, STR(FUNCTION "\0\0"), (struct str){.at = text, .len = (size_t)len});
}

static enum err submit_take(struct peer *peer, struct bench_conn *conn, struct str in,
                            size_t *ret_used)
{
    struct str body = STR_NONE;
    uint32_t type = 0;
    int number;
    enum err err = next_packet(in, &type, &body, ret_used);

    (void)conn;
    if (err || !*ret_used || type == JOB_CREATED)
        return err;
    if (type != WORK_COMPLETE)
        return ERR_BAD_REQUEST;
    str_cut(&body, '\0'); /* its handle */
    err = peer_number(peer, body, &number);
    if (!err)
        peer_done(peer, number);
    return err;
}

static void work_greet(struct bench_conn *conn)
{
    put(&conn->out, CAN_DO, STR(FUNCTION), STR_NONE);
    put(&conn->out, GRAB_JOB, STR_NONE, STR_NONE);
}

static enum err take_job(struct peer *peer, struct bench_conn *conn, struct str body)
{
    struct str rest = body, handle = str_cut(&rest, '\0');
    int number;

    str_cut(&rest, '\0'); /* the function */
    if (peer_number(peer, rest, &number) != ERR_OK)
        return ERR_BAD_REQUEST;
    peer_started(peer, number);
    handle.len++; /* with its NUL */
    put(&conn->out, WORK_COMPLETE, handle, rest);
    put(&conn->out, GRAB_JOB, STR_NONE, STR_NONE);
    return ERR_OK;
}

static enum err work_take(struct peer *peer, struct bench_conn *conn, struct str in,
                          size_t *ret_used)
{
    struct str body = STR_NONE;
    uint32_t type = 0;
    enum err err = next_packet(in, &type, &body, ret_used);

    if (err || !*ret_used)
        return err;
    if (type == JOB_ASSIGN)
        return take_job(peer, conn, body);
    if (type != NO_JOB && type != NOOP)
        return ERR_BAD_REQUEST;
    if (type == NO_JOB && !conn->stage) {
        conn->stage = 1;
        peer_welcomed(peer);
    }
    put(&conn->out, type == NO_JOB ? PRE_SLEEP : GRAB_JOB, STR_NONE, STR_NONE);
    return ERR_OK;
}

const struct bench_protocol gearman_protocol = {.name = "gearman",
                                                .submit_all = peer_submit_all,
                                                .work = peer_work,
                                                .submit_conns = 4, /* as many as it has threads */
                                                .submit = submit,
                                                .submit_take = submit_take,
                                                .work_greet = work_greet,
                                                .work_take = work_take};
