/* beanstalkd: put, reserve, delete in its text protocol. It has no way to tell a submitter about
 * the end of a job. Done: it has said DELETED to the worker. */
#include <string.h>

#include "peer.h"

enum { TTR_S = 60, BODY_BYTES_MAX = 16 };

/* Bytes of the line at the front of `in`; 0: not whole yet. */
static size_t next_line(struct str in, struct str *ret_line)
{
    const char *end = memmem(in.at, in.len, "\r\n", 2);

    if (!end)
        return 0;
    *ret_line = (struct str){.at = in.at, .len = (size_t)(end - in.at)};
    return ret_line->len + 2;
}

static void submit(struct bench_conn *conn, int number)
{
    char text[BODY_BYTES_MAX];
    int len = snprintf(text, sizeof text, "%d", number);

    buf_fmt(&conn->out, "put 0 0 %d %d\r\n%s\r\n", TTR_S, len, text);
}

static enum err submit_take(struct peer *peer, struct bench_conn *conn, struct str in,
                            size_t *ret_used)
{
    struct str line;

    (void)peer, (void)conn;
    *ret_used = next_line(in, &line);
    return *ret_used && !str_starts(line, STR("INSERTED ")) ? ERR_BAD_REQUEST : ERR_OK;
}

/* `watch` changes nothing; its answer says that we are heard. */
static void work_greet(struct bench_conn *conn)
{
    buf_str(&conn->out, STR("watch default\r\nreserve\r\n"));
}

/* "RESERVED <id> <bytes>" and the payload, which must be here as well. */
static enum err take_job(struct peer *peer, struct bench_conn *conn, struct str line, struct str in,
                         size_t *ret_used)
{
    struct str rest = line, id, body;
    int64_t len;

    str_cut(&rest, ' ');
    id = str_cut(&rest, ' ');
    if (!str_int(rest, &len) || len < 1 || len > BODY_BYTES_MAX)
        return ERR_BAD_REQUEST;
    body = (struct str){.at = in.at + *ret_used, .len = (size_t)len};
    if (in.len - *ret_used < body.len + 2) {
        *ret_used = 0;
        return ERR_OK;
    }
    *ret_used += body.len + 2;
    if (peer_number(peer, body, &conn->stage) != ERR_OK) /* whose DELETED comes next */
        return ERR_BAD_REQUEST;
    peer_started(peer, conn->stage);
    buf_fmt(&conn->out, "delete " STR_FMT "\r\nreserve\r\n", STR_ARG(id));
    return ERR_OK;
}

static enum err work_take(struct peer *peer, struct bench_conn *conn, struct str in,
                          size_t *ret_used)
{
    struct str line;

    *ret_used = next_line(in, &line);
    if (!*ret_used)
        return ERR_OK;
    if (str_starts(line, STR("RESERVED ")))
        return take_job(peer, conn, line, in, ret_used);
    if (str_is(line, "DELETED"))
        peer_done(peer, conn->stage);
    else if (str_starts(line, STR("WATCHING ")))
        peer_welcomed(peer);
    else
        return ERR_BAD_REQUEST;
    return ERR_OK;
}

const struct bench_protocol beanstalkd_protocol = {.name = "beanstalkd",
                                                   .submit_all = peer_submit_all,
                                                   .work = peer_work,
                                                   .submit_conns = 1, /* it has one thread */
                                                   .submit = submit,
                                                   .submit_take = submit_take,
                                                   .work_greet = work_greet,
                                                   .work_take = work_take};
