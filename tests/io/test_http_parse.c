/* Heads and bodies of HTTP messages: what is accepted, and what two readers could understand
 * differently is refused. */
#include "io/http_parse.h"

#include <stdlib.h>
#include <string.h>

#include "../unit.h"

static struct http_header headers[8];

static enum err read_head(struct str text, bool response, struct http_head *ret_head)
{
    struct http_scan scan = {0};
    size_t len;

    *ret_head = (struct http_head){.headers = headers, .header_max = COUNT_OF(headers)};
    assert_int_equal(http_scan(&scan, text, &len), HTTP_SCAN_WHOLE);
    assert_int_equal(len, text.len);
    return response ? http_head_response(ret_head, text) : http_head_request(ret_head, text);
}

static void test_request(void **state)
{
    struct http_head head;

    assert_int_equal(read_head(STR("POST http://b.example:8/x/y?q=1?2 HTTP/1.1\r\nHost: a\r\n"
                                   "Content-Length: 12 \r\nConnection: keep-alive, Upgrade\r\n"
                                   "Expect: 100-Continue\r\nX-Empty:\r\n\r\n"),
                               false, &head),
                     ERR_OK);
    assert_int_equal(head.method, HTTP_M_POST);
    assert_str(head.path, "/x/y");
    assert_str(head.query, "q=1?2");
    assert_str(head.authority, "b.example:8");
    assert_int_equal(head.header_count, 5);
    assert_str(headers[0].name, "Host");
    assert_str(headers[0].value, "b.example:8"); /* the host in the target overrides it */
    assert_str(headers[4].value, "");
    assert_int_equal(head.content_length, 12);
    assert_true(head.keep_alive && head.upgrade && head.expect_continue && !head.chunked);

    assert_int_equal(read_head(STR("GET / HTTP/1.0\r\n\r\n"), false, &head), ERR_OK);
    assert_int_equal(head.content_length, -1);
    assert_int_equal(head.minor, 0);
    assert_false(head.keep_alive);
    assert_int_equal(read_head(STR("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"), false, &head),
                     ERR_OK);
    assert_false(head.expect_continue); /* HTTP/1.0 has no 100-continue */
}

static void test_refusals_come_with_a_sentence(void **state)
{
    static const struct {
        const char *text;
        enum err err;
    } rows[] = {
        {"GET / HTTP/1.1\r\n\r\n", ERR_BAD_REQUEST},
        {"GET / HTTP/9.9\r\n\r\n", ERR_HTTP_VERSION},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: br\r\n\r\n", ERR_NOT_BUILT},
        {"GET / HTTP/1.1\r\nHost: a\r\nExpect: gold\r\n\r\n", ERR_EXPECTATION},
        {"GET / HTTP/1.1\r\nHost: a\r\nA: \r\nB: \r\nC: \r\nD: \r\nE: \r\nF: \r\nG: \r\nH: "
         "\r\n\r\n",
         ERR_HEADERS},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct http_head head;

        assert_int_equal(read_head(str_of(rows[i].text), false, &head), rows[i].err);
        assert_non_null(head.detail);
        assert_int_equal(head.detail[strlen(head.detail) - 1], '.');
    }
}

static void test_response(void **state)
{
    struct http_head head;

    assert_int_equal(
        read_head(STR("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), true, &head),
        ERR_OK);
    assert_int_equal(head.status, 101);
    assert_int_equal(read_head(STR("HTTP/1.0 204\r\n\r\n"), true, &head), ERR_OK);
    assert_int_equal(head.status, 204);
    assert_int_not_equal(read_head(STR("HTTP/1.1 99 x\r\n\r\n"), true, &head), ERR_OK);
    assert_int_not_equal(read_head(STR("HTTP/1.1 -12 x\r\n\r\n"), true, &head), ERR_OK);
    assert_int_not_equal(read_head(STR("HTTP/1.1 200 \x01\r\n\r\n"), true, &head), ERR_OK);
    assert_int_not_equal(read_head(STR("HTTP 200 OK\r\n\r\n"), true, &head), ERR_OK);
}

/* Each byte is scanned once, however the head arrives. */
static void test_scan_in_pieces(void **state)
{
    struct str text = STR("GET / HTTP/1.1\r\nHost: a\r\n\r\nrest");
    struct http_scan scan = {0};
    size_t len = 0;
    size_t at;

    for (at = 1; at <= text.len; at++)
        if (http_scan(&scan, (struct str){.at = text.at, .len = at}, &len) != HTTP_SCAN_MORE)
            break;
    assert_int_equal(at, text.len - 4);
    assert_int_equal(len, text.len - 4);
    assert_int_equal(scan.first, 16);
}

static void test_percent(void **state)
{
    static const struct {
        const char *text;
        bool plus, ok;
        const char *decoded;
    } rows[] = {
        {"", false, true, ""},
        {"abc", false, true, "abc"},
        {"%41%4a%4A", false, true, "AJJ"},
        {"a+b", false, true, "a+b"},
        {"a+b", true, true, "a b"},
        {"%2B", true, true, "+"},
        {"%", false, false, NULL},
        {"%4", false, false, NULL},
        {"%4g", false, false, NULL},
        {"%%41", false, false, NULL},
        {"x%2", false, false, NULL},
        {"%c3%a4", false, true, "\xc3\xa4"},
    };
    char decoded[16];
    size_t len;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool ok = http_percent_decode(str_of(rows[i].text), rows[i].plus, decoded, &len);

        assert_int_equal(ok, rows[i].ok);
        if (ok)
            assert_str(((struct str){.at = decoded, .len = len}), rows[i].decoded);
    }
}

static void test_lists(void **state)
{
    assert_true(http_list_has(STR("a, Upgrade ,b"), STR("upgrade")));
    assert_true(http_list_has(STR("upgrade"), STR("upgrade")));
    assert_false(http_list_has(STR("upgrades, xupgrade"), STR("upgrade")));
    assert_false(http_list_has(STR(""), STR("upgrade")));
    assert_false(http_list_has(STR_NONE, STR("upgrade")));
}

/* --- http body --- */

/* Bodies from memory: where they end, what they contain, and that cuts make no difference. */

static const struct {
    int64_t length; /* -1: chunked */
    const char *text;
    enum err err;
    bool done;
    const char *body; /* what was read of it so far */
    size_t rest;      /* bytes after its end */
} rows[] = {
    {0, "next", ERR_OK, true, "", 4},
    {5, "hello", ERR_OK, true, "hello", 0},
    {5, "hello, world", ERR_OK, true, "hello", 7},
    {5, "hel", ERR_OK, false, "hel", 0},
    {-1, "0\r\n\r\nnext", ERR_OK, true, "", 4},
    {-1, "5\r\nhello\r\n0\r\n\r\n", ERR_OK, true, "hello", 0},
    {-1, "5\r\nhello\r\nA\r\n, and more\r\n000\r\n\r\nx", ERR_OK, true, "hello, and more", 1},
    {-1, "5;ext=\"a b\"\r\nhello\r\n0;x\r\nT: v\r\nU:\r\n\r\n", ERR_OK, true, "hello", 0},
    {-1, "5\r\nhel", ERR_OK, false, "hel", 0},
    {-1, "5\r\nhello\r\n0\r\n", ERR_OK, false, "hello", 0},
    {-1, "00000005\r\nhello\r\n0\r\n\r\n", ERR_OK, true, "hello", 0},
    {-1, "000000005\r\nhello", ERR_BAD_REQUEST, false, "", 0},
    {-1, "g\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "-5\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, " 5\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "5 \r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, ";x\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "5\r\rhello", ERR_BAD_REQUEST, false, "", 0},
    {-1, "5\r\nhello\n0\r\n", ERR_BAD_REQUEST, false, "hello", 0},
    {-1, "5\r\nhello\r0\r\n", ERR_BAD_REQUEST, false, "hello", 0},
    {-1, "0\r\nA b: c\r\n\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "0\r\nContent-Lengths: c\r\nHos: x\r\n\r\n", ERR_OK, true, "", 0},
    {-1, "0\r\nT: v\r\nContent-Length: 5\r\n\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "0\r\ntransfer-encoding: chunked\r\n\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "0\r\nhost:x\r\n\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "0\r\n: c\r\n\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "0\r\nA: b\x01\r\n\r\n", ERR_BAD_REQUEST, false, "", 0},
    {-1, "0\r\n\rX", ERR_BAD_REQUEST, false, "", 0},
};

static void check(size_t row, size_t cut)
{
    struct str left = str_of(rows[row].text);
    enum err err = ERR_OK;
    struct http_body body;
    struct buf got = {0};

    if (rows[row].length < 0)
        http_body_chunked(&body);
    else
        http_body_sized(&body, (uint64_t)rows[row].length);
    while (!err && left.len > 0 && !http_body_done(&body)) {
        struct str part = {.at = left.at, .len = cut < left.len ? cut : left.len};
        struct str piece;
        size_t used = 0;

        err = http_body_read(&body, part, &used, &piece);
        if (err)
            break;
        assert_true(used > 0 && used <= part.len);
        buf_str(&got, piece);
        left = (struct str){.at = left.at + used, .len = left.len - used};
    }
    if (err != rows[row].err || http_body_done(&body) != rows[row].done)
        fail_msg("row %zu cut %zu: %s", row, cut, err_name(err));
    assert_str(buf_view(&got), rows[row].body);
    if (!err)
        assert_int_equal(left.len, rows[row].rest);
    buf_free(&got);
}

static void test_rows(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t cut = 1; cut < 40; cut++)
            check(i, cut);
}

static void test_framing_has_a_limit(void **state)
{
    static const char *const starts[] = {"5;", "0\r\nT: "};
    static char filler[HTTP_BODY_OVERHEAD_MAX + 1];

    memset(filler, 'x', sizeof filler);
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        struct http_body body;
        struct str piece;
        size_t used;

        http_body_chunked(&body);
        assert_int_equal(http_body_read(&body, str_of(starts[i]), &used, &piece), ERR_OK);
        assert_int_equal(
            http_body_read(&body, (struct str){.at = filler, .len = sizeof filler}, &used, &piece),
            ERR_HEADERS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),  cmocka_unit_test(test_refusals_come_with_a_sentence),
        cmocka_unit_test(test_response), cmocka_unit_test(test_scan_in_pieces),
        cmocka_unit_test(test_percent),  cmocka_unit_test(test_lists),
        cmocka_unit_test(test_rows),     cmocka_unit_test(test_framing_has_a_limit),
    };

    return cmocka_run_group_tests_name("http_parse", tests, NULL, NULL);
}
