/* Any bytes on an HTTP connection. Each request gets one reply and nothing else is sent; it makes
 * no difference how the bytes are cut, or whether replies come at once or later; and http-parser
 * sees every request that reaches a handler, in the same order with the same headers and body (so
 * nothing was smuggled past one of the two).
 *
 * The first two bytes of an input choose where it is cut and which replies come later. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http_oracle.h"
#include "wire.h"

static const struct http_limits limits = {
    .net = {.connections_max = 10,
            .connections_unknown_percent = 100,
            .write_queue_bytes_max = 1 << 24,
            .header_timeout_ms = 1 << 30,
            .body_timeout_ms = 1 << 30,
            .idle_timeout_ms = 1 << 30},
    .header_bytes_max = 1024,
    .header_count_max = 12,
    .uri_bytes_max = 256,
    .body_bytes_max = 2048,
    .bodies_bytes_max = 1 << 20,
};

/* One run over the input. */
struct run {
    struct buf lines; /* the requests, as http_oracle writes them */
    int requests;
    int refusals;
    bool odd; /* http-parser reads this one wrongly: not compared from here on */
};

static struct wire wire;
static struct run run;
static unsigned char later; /* bit n: the n-th reply comes later, from the inbox */

struct pending {
    struct msg msg;
    struct http_request *req;
};

static void must(bool held, const char *what)
{
    if (held)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void answer(struct msg *msg)
{
    struct pending *pending = container_of(msg, struct pending, msg);

    http_reply(pending->req, &(struct http_reply){.status = 200, .body = STR("ok")});
}

static void look_for_odd(const struct http_request *req)
{
    if (req->method == HTTP_M_OTHER)
        run.odd = true; /* http-parser has a fixed list of methods */
    for (size_t i = 0; i < req->header_count; i++)
        if (req->headers[i].name.len > 17 &&
            strncasecmp(req->headers[i].name.at, "transfer-encoding", 17) == 0)
            run.odd = true; /* http-parser takes any name that begins so for this one */
}

static void record(struct http_request *req)
{
    static const char *const methods[] = {"GET",   "HEAD",   "POST",    "PUT",
                                          "PATCH", "DELETE", "OPTIONS", ""};

    look_for_odd(req);
    if (run.odd)
        return;
    http_oracle_line(&run.lines, methods[req->method], req->query);
    for (size_t i = 0; i < req->header_count; i++)
        http_oracle_header(&run.lines, req->headers[i].name, req->headers[i].value);
    http_oracle_body(&run.lines, req->body);
}

static void on_request(struct http_request *req)
{
    struct pending *pending;

    run.requests++;
    record(req);
    must(str_is_utf8(req->path) && req->path.len > 0, "a path is text");
    must(req->body.len <= (size_t)limits.body_bytes_max, "a body is within its limit");
    (void)http_query(req, "a");
    if (!(later >> (run.requests % 8) & 1)) {
        http_reply(req, &(struct http_reply){.status = 200, .body = STR("ok")});
        return;
    }
    pending = arena_new(&req->arena, struct pending);
    pending->msg.run = answer;
    pending->req = req;
    inbox_post(&req->loop->inbox, &pending->msg);
}

/* We leave out requests that were refused, so our lines must be a subsequence of theirs. */
static bool follows(struct str ours, struct str theirs)
{
    while (ours.len > 0) {
        struct str line = ours;
        const char *end = memmem(ours.at, ours.len, "\n", 1);
        const char *hit;

        line.len = (size_t)(end - ours.at) + 1;
        hit = theirs.len ? memmem(theirs.at, theirs.len, line.at, line.len) : NULL;
        if (!hit)
            return false;
        theirs.len -= (size_t)(hit - theirs.at) + line.len;
        theirs.at = hit + line.len;
        ours = (struct str){.at = ours.at + line.len, .len = ours.len - line.len};
    }
    return true;
}

static bool on_head(struct http_request *req, int64_t *ret_body_bytes_max)
{
    *ret_body_bytes_max = 1024;
    if (req->path.len <= 1 || req->path.at[1] != 'n')
        return true;
    run.refusals++;
    look_for_odd(req);
    http_reply(req, &(struct http_reply){.status = 404, .body = STR("no")});
    return false;
}

static void problem(struct http_request *req, const struct problem *why, struct buf *ret_body)
{
    run.refusals++;
    look_for_odd(req);
    must(err_http(why->err) >= 400 && why->detail[0], "a refusal has a status and a sentence");
    buf_str(ret_body, STR("no"));
}

static const struct http_callbacks callbacks = {
    .head = on_head, .request = on_request, .problem = problem};

/* Counts the replies in `sent`; aborts if anything else is between them. */
static int replies_in(struct str sent)
{
    int count = 0;

    while (sent.len > 0) {
        const char *end = memmem(sent.at, sent.len, "\r\n\r\n", 4);
        int status = 0;
        size_t len;

        must(end && sscanf(sent.at, "HTTP/1.1 %d ", &status) == 1, "only replies are sent");
        len = (size_t)(end - sent.at) + 4;
        if (status != 100) {
            const char *length = memmem(sent.at, len, "Content-Length: 2\r\n", 19);

            must(length, "a reply says how long it is");
            count++;
            if (sent.len >= len + 2 &&
                (memcmp(sent.at + len, "ok", 2) == 0 || memcmp(sent.at + len, "no", 2) == 0))
                len += 2; /* none for HEAD */
        }
        sent = (struct str){.at = sent.at + len, .len = sent.len - len};
    }
    return count;
}

static struct run run_over(struct str bytes, size_t cut)
{
    struct run result;
    int replies;

    run = (struct run){0};
    wire_connect(&wire);
    while (bytes.len > 0) {
        size_t len = cut > 0 && cut < bytes.len ? cut : bytes.len;

        wire_send(&wire, (struct str){.at = bytes.at, .len = len});
        bytes = (struct str){.at = bytes.at + len, .len = bytes.len - len};
    }
    /* Each delayed reply lets the next request in. */
    for (int before = -1; before != run.requests;) {
        before = run.requests;
        wire_turn(&wire);
    }
    buf_char(&wire.got, '\0'); /* for sscanf */
    wire.got.len--;
    replies = replies_in(buf_view(&wire.got));
    must(replies == run.requests + run.refusals, "one reply for each request");
    wire_hang_up(&wire);
    result = run;
    run = (struct run){0};
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str bytes = {.at = (const char *)data + 2, .len = size - 2};
    struct buf theirs = {0};
    struct run whole;
    struct run pieces;

    if (size < 3 || size > 8192)
        return 0;
    if (!wire.loop.read_buf)
        wire_init(&wire, &limits, &callbacks, NULL);
    later = 0;
    whole = run_over(bytes, 0);
    later = data[1];
    pieces = run_over(bytes, 1 + data[0] % 64);
    must(str_eq(buf_view(&whole.lines), buf_view(&pieces.lines)), "cuts change nothing");
    must(whole.requests == pieces.requests && whole.refusals == pieces.refusals,
         "cuts change no answer");
    if (!whole.odd && whole.lines.len > 0) {
        http_oracle(bytes, &theirs);
        must(follows(buf_view(&whole.lines), buf_view(&theirs)), "http-parser sees the same");
    }
    buf_free(&theirs);
    buf_free(&whole.lines);
    buf_free(&pieces.lines);
    return 0;
}
