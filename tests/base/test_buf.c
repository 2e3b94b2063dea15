/* Bytes that grow. */
#include "base/str.h"
#include "unit.h"

#include <string.h>

static void test_everything_appends(void **state)
{
    struct buf buf = {0};

    buf_str(&buf, STR("a="));
    buf_int(&buf, -17);
    buf_char(&buf, ' ');
    buf_fmt(&buf, "%s/%03d", "x", 5);
    buf_add(&buf, NULL, 0);
    assert_str(buf_view(&buf), "a=-17 x/005");
    buf_drop(&buf, 6);
    assert_str(buf_view(&buf), "x/005");
    buf_drop(&buf, 5);
    assert_int_equal(buf.len, 0);
    buf_clear(&buf);
    assert_true(buf.cap > 0);
    buf_free(&buf);
    assert_null(buf.at);
    buf_free(&buf);
}

static void test_ints(void **state)
{
    static const struct {
        int64_t value;
        const char *text;
    } rows[] = {{0, "0"},
                {7, "7"},
                {-1, "-1"},
                {INT64_MAX, "9223372036854775807"},
                {INT64_MIN, "-9223372036854775808"}};
    struct buf buf = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        buf_clear(&buf);
        buf_int(&buf, rows[i].value);
        assert_str(buf_view(&buf), rows[i].text);
    }
    buf_free(&buf);
}

/* Text that does not fit at first must come out whole. */
static void test_format_longer_than_the_room(void **state)
{
    for (int len = 0; len < 700; len++) {
        struct buf buf = {0};

        buf_str(&buf, STR("ab"));
        buf_fmt(&buf, "%0*d", len, 0);
        assert_int_equal(buf.len, len ? 2 + len : 3);
        assert_memory_equal(buf.at, "ab0", 3);
        assert_int_equal(buf.at[buf.len - 1], '0');
        buf_free(&buf);
    }
}

static void test_grows_and_keeps(void **state)
{
    struct buf buf = {0};

    for (int i = 0; i < 100000; i++)
        buf_char(&buf, (char)('a' + i % 26));
    assert_int_equal(buf.len, 100000);
    for (int i = 0; i < 100000; i++)
        if (buf.at[i] != 'a' + i % 26)
            fail_msg("byte %d", i);
    buf_free(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_appends),
        cmocka_unit_test(test_ints),
        cmocka_unit_test(test_format_longer_than_the_room),
        cmocka_unit_test(test_grows_and_keeps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
