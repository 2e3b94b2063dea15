/* Borrowed text. */
#include "base/str.h"

#include <string.h>

#include "../unit.h"

static void test_compare(void **state)
{
    static const struct {
        const char *a, *b;
        int sign;
    } rows[] = {{"", "", 0},    {"a", "", 1},     {"", "a", -1},      {"a", "b", -1},
                {"b", "a", 1},  {"ab", "a", 1},   {"abc", "abd", -1}, {"abc", "abc", 0},
                {"Z", "a", -1}, {"\xff", "a", 1}, {"n-2", "n-10", 1}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int diff = str_cmp(str_of(rows[i].a), str_of(rows[i].b));

        assert_int_equal((diff > 0) - (diff < 0), rows[i].sign);
        assert_int_equal(str_eq(str_of(rows[i].a), str_of(rows[i].b)), rows[i].sign == 0);
        assert_int_equal(str_is(str_of(rows[i].a), rows[i].b), rows[i].sign == 0);
    }
    assert_true(str_eq(STR_NONE, STR("")));
    assert_null(str_of(NULL).at);
    assert_false(str_is(STR("a\0b"), "a"));
    assert_true(str_eq_nocase(STR("Content-Type"), STR("content-TYPE")));
    assert_false(str_eq_nocase(STR("a"), STR("ab")));
    assert_false(str_eq_nocase(STR("["), STR("{"))); /* 0x20 apart, but not letters */
    assert_true(str_starts(STR("abc"), STR("ab")));
    assert_true(str_starts(STR("abc"), STR_NONE));
    assert_false(str_starts(STR("ab"), STR("abc")));
}

static void test_trim(void **state)
{
    assert_str(str_trim(STR(" \ta b\t ")), "a b");
    assert_str(str_trim(STR(" \t ")), "");
    assert_str(str_trim(STR("x")), "x");
    assert_str(str_trim(STR_NONE), "");
}

static void test_cut(void **state)
{
    struct str rest = STR("a,,b,");

    assert_str(str_cut(&rest, ','), "a");
    assert_str(str_cut(&rest, ','), "");
    assert_str(str_cut(&rest, ','), "b");
    assert_int_equal(rest.len, 0);
    assert_non_null(rest.at); /* after a comma there is one more, empty, piece */
    assert_str(str_cut(&rest, ','), "");
    assert_null(rest.at);
    assert_str(str_cut(&rest, ','), "");
}

static void test_int(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } rows[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"007", true, 7},
        {"-12", true, -12},
        {"9223372036854775807", true, INT64_MAX},
        {"9223372036854775808", false, 0},
        {"-9223372036854775808", true, INT64_MIN},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999999", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"--1", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"1.0", false, 0},
        {"0x10", false, 0},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t value = 42;

        if (str_int(str_of(rows[i].text), &value) != rows[i].ok)
            fail_msg("\"%s\"", rows[i].text);
        assert_int_equal(value, rows[i].ok ? rows[i].value : 42);
    }
}

static void test_duration(void **state)
{
    static const struct {
        const char *text;
        int64_t ms; /* -1: refused */
    } rows[] = {
        {"0", 0},
        {"250", 250},
        {"250ms", 250},
        {"5s", 5000},
        {"2m", 120000},
        {"1h", 3600000},
        {"1d", 86400000},
        {"", -1},
        {"s", -1},
        {"ms", -1},
        {"-5s", -1},
        {"-0", -1},
        {"1.5s", -1},
        {"5 s", -1},
        {"5S", -1},
        {"5w", -1},
        {"5mss", -1},
        {"106751991168d", -1},
        {"9223372036854775807", INT64_MAX},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t ms = -1;
        bool ok = str_duration_ms(str_of(rows[i].text), &ms);

        if (ok != (rows[i].ms >= 0) || (ok && ms != rows[i].ms))
            fail_msg("\"%s\" gave %d, %lld", rows[i].text, ok, (long long)ms);
    }
}

static void test_id(void **state)
{
    static const struct {
        const char *text;
        bool ok;
    } rows[] = {
        {"n7", true},       {"a.b_c:d@e-F9", true},
        {"-x", true},       {"_", true},
        {"12345678", true}, {"", false},
        {".", false},       {"..", false},
        {".hidden", false}, {"a/b", false},
        {"a b", false},     {"a\n", false},
        {"é", false},       {"a%2e", false},
        {"a\"b", false},    {"123456789012345", false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (str_is_id(str_of(rows[i].text), 14) != rows[i].ok)
            fail_msg("\"%s\"", rows[i].text);
    assert_false(str_is_id(STR("a\0b"), 14));
}

/* All limits of UTF-8, by the definition in RFC 3629. */
static const struct {
    const char *text;
    bool utf8;
    bool shown; /* str_is_text */
} utf8_rows[] = {
    {"", true, true},
    {"plain ascii, longer than eight", true, true},
    {"h\xc3\xa9llo", true, true},
    {"\xe4\xb8\xad\xe6\x96\x87", true, true},
    {"\xf0\x9f\x98\x80", true, true},
    {"\xf4\x8f\xbf\xbf", true, true},   /* U+10FFFF */
    {"\xf4\x90\x80\x80", false, false}, /* beyond it */
    {"\xed\x9f\xbf", true, true},       /* U+D7FF */
    {"\xed\xa0\x80", false, false},     /* a surrogate */
    {"\xee\x80\x80", true, true},       /* U+E000 */
    {"\xc0\xaf", false, false},         /* overlong '/' */
    {"\xc1\xbf", false, false},
    {"\xe0\x9f\xbf", false, false},
    {"\xe0\xa0\x80", true, true},
    {"\xf0\x8f\xbf\xbf", false, false},
    {"\xf0\x90\x80\x80", true, true},
    {"\xf5\x80\x80\x80", false, false},
    {"\x80", false, false},
    {"\xc3", false, false},
    {"\xe4\xb8", false, false},
    {"\xf0\x9f\x98", false, false},
    {"\xc3(", false, false},
    {"abcdefg\xff", false, false},
    {"abcdefgh\xff", false, false},
    {"a\tb", true, false},
    {"a\nb", true, false},
    {"\x1b[2J", true, false},
    {"\x7f", true, false},
    {"\xc2\x80", true, false}, /* first C1 control */
    {"\xc2\x9f", true, false}, /* last C1 control */
    {"\xc2\xa0", true, true},
};

static void test_utf8(void **state)
{
    for (size_t i = 0; i < COUNT_OF(utf8_rows); i++) {
        if (str_is_utf8(str_of(utf8_rows[i].text)) != utf8_rows[i].utf8)
            fail_msg("row %zu as UTF-8", i);
        if (str_is_text(str_of(utf8_rows[i].text)) != utf8_rows[i].shown)
            fail_msg("row %zu as text", i);
    }
    assert_true(str_is_utf8(STR("a\0b")));
    assert_false(str_is_text(STR("a\0b")));
    assert_int_equal(str_utf8_len(STR_NONE), 0);
    assert_int_equal(str_utf8_len(STR("\xe4\xb8\xad!")), 3);
}

static void test_copy(void **state)
{
    char to[4] = "xxx";

    assert_true(str_copy(STR("abc"), to, sizeof to));
    assert_string_equal(to, "abc");
    assert_false(str_copy(STR("abcd"), to, sizeof to));
    assert_string_equal(to, "");
    assert_true(str_copy(STR_NONE, to, sizeof to));
}

/* Equal texts have equal hashes; a flipped bit changes about half of all bits. */
static void test_hash(void **state)
{
    char text[80];
    size_t flipped[64] = {0};
    size_t trials = 0;

    for (size_t len = 1; len <= 64; len++)
        for (size_t bit = 0; bit < len * 8; bit += 3) {
            uint64_t before;
            uint64_t diff;

            memset(text, 'a', sizeof text);
            before = str_hash((struct str){text, len});
            memmove(text + 7, text, len);
            assert_int_equal(str_hash((struct str){text + 7, len}), before);
            text[7 + bit / 8] ^= (char)(1 << bit % 8);
            diff = before ^ str_hash((struct str){text + 7, len});
            assert_true(diff != 0);
            for (int i = 0; i < 64; i++)
                flipped[i] += diff >> i & 1;
            trials++;
        }
    for (int i = 0; i < 64; i++) /* about half the time each; 5 % is beyond five sigma here */
        assert_in_range(flipped[i], trials * 45 / 100, trials * 55 / 100);
    /* The order of blocks and the length change the hash, too. */
    assert_true(str_hash(STR("aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbc")) !=
                str_hash(STR("bbbbbbbbbbbbbbbbaaaaaaaaaaaaaaaac")));
    assert_true(str_hash(STR("ab")) != str_hash(STR("a")));
    assert_true(str_hash(STR("\0")) != str_hash(STR("\0\0")));
}

/* --- buf --- */

/* Growing buffers. */

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

/* Text that does not fit at first is still complete. */
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
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_int),
        cmocka_unit_test(test_duration),
        cmocka_unit_test(test_id),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_everything_appends),
        cmocka_unit_test(test_ints),
        cmocka_unit_test(test_format_longer_than_the_room),
        cmocka_unit_test(test_grows_and_keeps),
    };

    return cmocka_run_group_tests_name("str", tests, NULL, NULL);
}
