/* Heads read from memory; the malformed ones are rows of test_http.c. */
#include "io/http_parse.h"

#include <stdlib.h>
#include <string.h>

#include "unit.h"

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
    assert_str(headers[0].value, "b.example:8"); /* the target's host beats it */
    assert_str(headers[4].value, "");
    assert_int_equal(head.content_length, 12);
    assert_true(head.keep_alive && head.upgrade && head.expect_continue && !head.chunked);

    assert_int_equal(read_head(STR("GET / HTTP/1.0\r\n\r\n"), false, &head), ERR_OK);
    assert_int_equal(head.content_length, -1);
    assert_int_equal(head.minor, 0);
    assert_false(head.keep_alive);
    assert_int_equal(read_head(STR("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"), false, &head),
                     ERR_OK);
    assert_false(head.expect_continue); /* HTTP/1.0 does not know it */
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

/* Each byte is looked at once, however the head arrives. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),  cmocka_unit_test(test_refusals_come_with_a_sentence),
        cmocka_unit_test(test_response), cmocka_unit_test(test_scan_in_pieces),
        cmocka_unit_test(test_percent),  cmocka_unit_test(test_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
