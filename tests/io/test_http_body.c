/* Bodies from memory: where they end, what belongs to them, and that cuts change nothing. */
#include "io/http_body.h"

#include <stdlib.h>
#include <string.h>

#include "unit.h"

static const struct {
    int64_t length; /* -1: chunked */
    const char *text;
    enum err err;
    bool done;
    const char *body; /* what belongs to it, so far */
    size_t rest;      /* bytes behind its end */
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
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_framing_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
