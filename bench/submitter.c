/* The submitter: keep-alive HTTP without pipelining, `conc` jobs outstanding or one each period; or
 * sessions, which do not wait for each other. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "load.h"

enum { CONNS_MAX = BENCH_SESSIONS_MAX > BENCH_CONNS_MAX ? BENCH_SESSIONS_MAX : BENCH_CONNS_MAX };
enum { TAG_WAKE = CONNS_MAX, TAG_LIFE, EVENTS_MAX = 128, REFUSALS_MAX = 1000 };

/* A session's jobs go over its own connection, in order. */
struct lane {
    int next;    /* its next job */
    int waiting; /* of its jobs, those whose time has come */
    bool busy;   /* a request of it is under way */
};

struct submitter {
    struct bench_load *load;
    struct bench_conn conns[CONNS_MAX];
    int conn_count;
    int idle[CONNS_MAX]; /* connections without a request, a stack; not used by sessions */
    int idle_count;
    struct lane lanes[BENCH_SESSIONS_MAX];
    int offered; /* jobs whose time has come; only sessions */
    int epoll;
    int submitted;
    int answered;
    int done;         /* as far as we were told */
    int64_t moved_ns; /* when something last happened */
    struct buf body;
};

static int outstanding(const struct submitter *s)
{
    return s->submitted - s->done - s->load->refused;
}

static bool finished(const struct submitter *s)
{
    return s->answered == s->load->jobs && outstanding(s) <= 0;
}

static int64_t due_ns_of(const struct submitter *s, int number)
{
    assert(s->load->period_ns > 0 && s->load->begun_ns > 0);
    return s->load->begun_ns + (int64_t)number * s->load->period_ns;
}

/* When the next job is due. */
static int64_t due_ns(const struct submitter *s)
{
    return due_ns_of(s, s->load->sessions ? s->offered : s->submitted);
}

static bool may_submit(const struct submitter *s)
{
    assert(s->answered <= s->submitted && s->submitted <= s->load->jobs);
    if (s->submitted == s->load->jobs || s->idle_count == 0 || outstanding(s) >= s->load->conc)
        return false;
    return s->load->period_ns == 0 || bench_now_ns() >= due_ns(s);
}

/* Beside a name a session has a node of its own. */
static void write_body(struct submitter *s, int number)
{
    int session = number % (s->load->sessions ? s->load->sessions : BENCH_NAMES);

    buf_clear(&s->body);
    buf_fmt(&s->body,
            "{\"session_id\":\"bench-%d\",\"src_lang\":\"" BENCH_SRC "\",\"tgt_lang\":\"" BENCH_TGT
            "\",\"audio_ref\":\"bench:%d\",\"options\":{\"require_tts\":false",
            session, number);
    if (s->load->sessions)
        buf_fmt(&s->body, ",\"preferred_node_id\":\"bench-%d\",\"strict\":true", session);
    buf_fmt(&s->body, "}}");
}

static enum err submit(struct submitter *s, struct bench_conn *conn, int number)
{
    assert(conn->out.len == 0 && number < s->load->jobs && s->submitted < s->load->jobs);
    s->submitted++;
    write_body(s, number);
    buf_fmt(&conn->out,
            "POST /v1/dispatch/f2f HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
            "Content-Length: %zu\r\n\r\n",
            s->load->target->host, s->body.len);
    buf_str(&conn->out, buf_view(&s->body));
    /* A session that still waits for its last answer sends late. What it waited counts, or one
     * session would look better than many whenever everything stands still for a moment. */
    s->load->submit_ns[number] = s->load->sessions ? due_ns_of(s, number) : bench_now_ns();
    return bench_conn_flush(conn) ? ERR_OK : ERR_CLOSED;
}

static enum err submit_lane(struct submitter *s, int session)
{
    struct lane *lane = &s->lanes[session];
    int number = lane->next;

    if (lane->busy || lane->waiting == 0)
        return ERR_OK;
    lane->busy = true;
    lane->waiting--;
    lane->next += s->load->sessions;
    return submit(s, &s->conns[session], number);
}

/* Everything that is due and has somebody free to send it. */
static enum err submit_due(struct submitter *s)
{
    enum err err = ERR_OK;

    while (!err && !s->load->sessions && may_submit(s))
        err = submit(s, &s->conns[s->idle[--s->idle_count]], s->submitted);
    while (!err && s->load->sessions && s->offered < s->load->jobs && bench_now_ns() >= due_ns(s)) {
        int session = s->offered++ % s->load->sessions;

        s->lanes[session].waiting++;
        err = submit_lane(s, session);
    }
    return err;
}

/* A connection has its answer. */
static enum err set_free(struct submitter *s, int index)
{
    assert(index < s->conn_count);
    if (s->load->sessions) {
        s->lanes[index].busy = false;
        return submit_lane(s, index);
    }
    assert(s->idle_count < s->conn_count);
    s->idle[s->idle_count++] = index;
    return ERR_OK;
}

/* The first refusal is kept for the person; many of them end the run. */
static enum err note_refusal(struct submitter *s, struct str answer)
{
    const char *body = memmem(answer.at, answer.len, "\r\n\r\n", 4);

    assert(body != NULL);
    if (s->load->refused++ == 0)
        snprintf(s->load->refusal, sizeof s->load->refusal, "%.3s %.*s", answer.at + 9,
                 (int)(answer.at + answer.len - body - 4), body + 4);
    return s->load->refused > REFUSALS_MAX ? ERR_ALL_FULL : ERR_OK;
}

static enum err take_answer(struct submitter *s, struct bench_conn *conn)
{
    struct str in;
    size_t len;
    int status;
    enum err err = ERR_OK;

    if (!bench_conn_read(conn))
        return ERR_CLOSED;
    in = buf_view(&conn->in);
    status = bench_http_answer(in, &len);
    if (status == 0)
        return ERR_OK;
    if (status < 0)
        return ERR_BAD_REQUEST;
    if (status != 200 && status != 202)
        err = note_refusal(s, (struct str){.at = in.at, .len = len});
    buf_drop(&conn->in, len);
    s->answered++;
    return err ? err : set_free(s, (int)conn->index);
}

static enum err take_event(struct submitter *s, const struct epoll_event *event)
{
    uint64_t wakes;

    assert(event->data.u32 <= TAG_LIFE);
    if (event->data.u32 == TAG_LIFE)
        return ERR_CLOSED;
    if (event->data.u32 != TAG_WAKE)
        return take_answer(s, &s->conns[event->data.u32]);
    if (read(s->load->wake, &wakes, sizeof wakes) < 0 && errno != EAGAIN)
        return ERR_IO;
    s->done = atomic_load(&s->load->shared->done);
    assert(s->done <= s->submitted);
    return ERR_OK;
}

/* Until the next submit is due, or something came, or it is time to look for a stall. */
static int wait_events(struct submitter *s, struct epoll_event *events)
{
    int64_t wait_ns = INT64_C(500000000), now_ns = bench_now_ns();
    struct timespec timeout;

    if (s->load->sessions ? s->offered < s->load->jobs
                          : s->load->period_ns && s->submitted < s->load->jobs && s->idle_count > 0)
        wait_ns = due_ns(s) > now_ns ? due_ns(s) - now_ns : 0;
    timeout = (struct timespec){.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    return epoll_pwait2(s->epoll, events, EVENTS_MAX, &timeout, NULL);
}

static enum err run(struct submitter *s)
{
    struct epoll_event events[EVENTS_MAX];
    enum err err = ERR_OK;

    s->load->begun_ns = s->moved_ns = bench_now_ns();
    while (!finished(s)) {
        int count;

        err = submit_due(s);
        count = err ? 0 : wait_events(s, events);
        for (int i = 0; i < count && !err; i++)
            err = take_event(s, &events[i]);
        if (err)
            return err;
        if (count > 0)
            s->moved_ns = bench_now_ns();
        else if (bench_now_ns() - s->moved_ns > BENCH_STALL_MS * INT64_C(1000000))
            return ERR_TIMEOUT;
    }
    return ERR_OK;
}

static enum err connect_all(struct submitter *s)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.u32 = TAG_WAKE};
    struct epoll_event life = {.events = EPOLLIN, .data.u32 = TAG_LIFE};
    int wanted = s->load->conc < BENCH_CONNS_MAX ? s->load->conc : BENCH_CONNS_MAX;

    if (s->load->sessions)
        wanted = s->load->sessions;
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->load->wake, &wake) != 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->load->worker_life, &life) != 0)
        return ERR_IO;
    for (; s->conn_count < wanted; s->conn_count++) {
        uint32_t index = (uint32_t)s->conn_count;

        if (bench_conn_open(&s->conns[index], s->load->target, s->epoll, index) != ERR_OK)
            return ERR_IO;
        s->lanes[index].next = (int)index;
        s->idle[s->idle_count++] = s->conn_count;
    }
    return ERR_OK;
}

static void explain(const struct submitter *s, enum err err)
{
    struct bench_load *load = s->load;

    if (load->shared->trouble[0])
        bench_fail("%s", load->shared->trouble);
    if (load->refused)
        bench_fail("refused: %s", load->refusal);
    bench_fail("%s after %d of %d jobs submitted, %d done, %d refused by the server",
               err == ERR_TIMEOUT    ? "nothing moved any more"
               : err == ERR_CLOSED   ? "a connection was lost"
               : err == ERR_ALL_FULL ? "gave up"
                                     : "something broke",
               s->submitted, load->jobs, s->done, load->refused);
}

enum err bench_load_run(struct bench_load *load)
{
    struct submitter *s = mem_new(struct submitter);
    enum err err;

    assert(load->jobs > 0 && load->conc > 0 && load->submit_ns && load->shared);
    assert(load->sessions <= BENCH_SESSIONS_MAX && (!load->sessions || load->period_ns > 0));
    s->load = load;
    err = connect_all(s);
    if (err)
        bench_fail("cannot connect to %s: %m", load->target->host);
    if (!err) {
        err = run(s);
        if (err)
            explain(s, err);
    }
    for (int i = 0; i < s->conn_count; i++)
        bench_conn_close(&s->conns[i]);
    if (s->epoll >= 0)
        close(s->epoll);
    buf_free(&s->body);
    free(s);
    return err;
}
