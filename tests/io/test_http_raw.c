/* How the HTTP server handles raw bytes: each row is sent in one piece and byte by byte. */
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "peer.h"
#include "site.h"

#define H "Host: a\r\n"

static struct peer_reply reply; /* too large for the stack */

/* `want`: the expected statuses, then "close" if the connection must end; otherwise it must stay
 * usable. */
struct row {
    struct str raw;
    const char *want;
};

#define ROW(text, expected)                                                                        \
    {                                                                                              \
        .raw = {.at = (text), .len = sizeof(text) - 1}, .want = (expected)                         \
    }

static const struct row rows[] = {
    /* well-formed */
    ROW("GET /echo HTTP/1.1\r\n" H "\r\n", "200"),
    ROW("GET /echo?a=b HTTP/1.1\r\nHost: a\r\nX: \xc3\xa4\r\n\r\n", "200"),
    ROW("POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", "200"),
    ROW("POST /echo HTTP/1.1\r\n" H "content-length:5\r\n\r\nhello", "200"),
    ROW("POST /echo HTTP/1.1\r\n" H "Content-Length: \t5 \r\n\r\nhello", "200"),
    ROW("POST /echo HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "200"),
    ROW("POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "200"),
    ROW("POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\n\r\n"
        "5;a=b\r\nhello\r\n006\r\n world\r\n0\r\nTrailer: x\r\n\r\n",
        "200"),
    ROW("GET /echo HTTP/1.1\r\n" H "\r\nGET /echo HTTP/1.1\r\n" H "\r\n", "200 200"),
    ROW("\r\nGET /echo HTTP/1.1\r\n" H "\r\n", "200"),
    ROW("GET /echo HTTP/1.1\r\n" H "\r\n\r\nGET /echo HTTP/1.1\r\n" H "\r\n", "200 200"),
    ROW("GET http://other/echo HTTP/1.1\r\n" H "\r\n", "200"),
    ROW("OPTIONS * HTTP/1.1\r\n" H "\r\n", "200"),
    ROW("OPTIONS /echo HTTP/1.1\r\n" H "\r\n", "200"),
    ROW("BREW /echo HTTP/1.1\r\n" H "\r\n", "200"), /* refused by the handler, not the parser */
    ROW("GET /echo HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "200"),
    ROW("GET /echo HTTP/1.1\r\nHost:\r\n\r\n", "200"),
    ROW("GET /echo HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "200 close"),
    ROW("GET /echo HTTP/1.1\r\n" H "Connection: foo, Close\r\n\r\n", "200 close"),
    ROW("GET /echo HTTP/1.0\r\n\r\n", "200 close"),
    ROW("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200"),
    ROW("POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", "200 close"),
    ROW("GET /%E4%B8%AD HTTP/1.1\r\n" H "\r\n", "200"),
    ROW("GET /echo HTTP/1.1\r\n" H "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "200"),
    /* framing that two readers could see differently */
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: 5, 5\r\n\r\nhello", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\nhello", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: -5\r\n\r\nhello", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: 0x5\r\n\r\nhello", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: 5 5\r\n\r\nhello", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length:\r\n\r\n", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Content-Length: 99999999999999999999\r\n\r\n", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n", "501 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n", "501 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n", "501 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding : chunked\r\n\r\n", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\rXhello\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5;\nx\r\nhello\r\n0\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nfffffffff\r\n", "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n folded\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nT: a\nb\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nno colon\r\n\r\n",
        "400 close"),
    ROW("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nT : x\r\n\r\n",
        "400 close"),
    /* lines */
    ROW("GET / HTTP/1.1\n" H "\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\nHost: a\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "\n", "400 close"),
    ROW("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "X : a\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "X\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H ": a\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "X: a\0b\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "X: a\x01\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "X: a\x7f\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H "X(: a\r\n\r\n", "400 close"),
    ROW("\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("\nGET / HTTP/1.1\r\n" H "\r\n", "400 close"),
    /* request line and Host */
    ROW("GET / HTTP/1.1\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\n" H H "\r\n", "400 close"),
    ROW("GET / HTTP/1.0\r\n" H "Host: b\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "400 close"),
    ROW("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400 close"),
    ROW("GET  / HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET /  HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET / HTTP/1.1 \r\n" H "\r\n", "400 close"),
    ROW("GET /\r\n" H "\r\n", "400 close"),
    ROW("GET / \r\n" H "\r\n", "400 close"),
    ROW("GET / HTTP/1.1x\r\n" H "\r\n", "400 close"),
    ROW("GET / http/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET / HTTP/2.0\r\n" H "\r\n", "505 close"),
    ROW("GET / HTTP/1.2\r\n" H "\r\n", "505 close"),
    ROW("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 close"),
    ROW("G\x80T / HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW(" GET / HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET /\x80 HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET /#x HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET * HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET echo HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET ftp://a/echo HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET http:///echo HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("GET http://u@a/echo HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("CONNECT a:443 HTTP/1.1\r\n" H "\r\n", "400 close"),
    ROW("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", "400 close"), /* TLS on a plain port */
    ROW("GET /%00 HTTP/1.1\r\n" H "\r\n", "400"),
    ROW("GET /%ff HTTP/1.1\r\n" H "\r\n", "400"),
    ROW("GET /%4 HTTP/1.1\r\n" H "\r\n", "400"),
    ROW("GET /%zz HTTP/1.1\r\n" H "\r\n", "400"),
    /* expectations and unwanted bodies */
    ROW("POST /echo HTTP/1.1\r\n" H "Expect: 200-ok\r\nContent-Length: 2\r\n\r\nhi", "417 close"),
    ROW("POST /none HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhi", "404"),
    ROW("POST /none HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        "404"),
    ROW("POST /none HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhiGET /echo HTTP/1.1\r\n" H "\r\n",
        "404 200"),
    ROW("POST /none HTTP/1.1\r\n" H "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        "404 close"),
    ROW("POST /none HTTP/1.1\r\n" H "Content-Length: 200000\r\n\r\n", "404 close"),
    ROW("POST /small HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\n0123456789", "200"),
    ROW("POST /small HTTP/1.1\r\n" H "Content-Length: 11\r\n\r\n0123456789a", "413"),
    ROW("POST /small HTTP/1.1\r\n" H "Content-Length: 900000\r\n\r\n", "413 close"),
    ROW("POST /small HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
        "6\r\n012345\r\n6\r\n678901\r\n0\r\n\r\n",
        "413 close"),
};

/* The statuses in `want` must come in this order, and nothing else. */
static void check(struct site *site, const struct row *row, bool bytewise)
{
    struct str want = str_of(row->want);
    bool close = false;
    struct peer peer;

    peer_dial(&peer, site_port(site));
    if (bytewise)
        peer_send_bytewise(&peer, row->raw);
    else
        peer_send(&peer, row->raw);
    while (want.len > 0) {
        struct str word = str_cut(&want, ' ');
        int64_t status;

        if (str_is(word, "close")) {
            close = true;
            continue;
        }
        assert_true(str_int(word, &status));
        if (!peer_reply(&peer, &reply, false) || reply.status != status)
            fail_msg("\"" STR_FMT "\" got %d, not %d (bytewise %d)", STR_ARG(row->raw),
                     reply.status, (int)status, bytewise);
    }
    if (!close) {
        peer_send(&peer, STR("GET /echo?end HTTP/1.1\r\n" H "\r\n"));
        if (!peer_reply(&peer, &reply, false) || strcmp(reply.body, "GET /echo end ") != 0)
            fail_msg("\"" STR_FMT "\" left the connection unusable", STR_ARG(row->raw));
    } else if (!peer_ended(&peer)) {
        fail_msg("\"" STR_FMT "\" is answered twice or stays open", STR_ARG(row->raw));
    }
    peer_close(&peer);
}

static void test_raw(void **state)
{
    static struct site site;

    site = (struct site){0};
    site_start(&site);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check(&site, &rows[i], false);
        check(&site, &rows[i], true);
    }
    site_stop(&site);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raw),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
