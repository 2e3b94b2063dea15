/* Our reader and jansson must agree, on chosen texts and on many mutations of valid ones. */
#include "../unit.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "json_oracle.h"

static const struct {
    struct str text;
    enum verdict want;
} rows[] = {
    /* Valid JSON. */
    {STR("0"), BOTH_ACCEPT},
    {STR("-0"), BOTH_ACCEPT},
    {STR("-0.0"), BOTH_ACCEPT},
    {STR("true"), BOTH_ACCEPT},
    {STR("\"\""), BOTH_ACCEPT},
    {STR("[]"), BOTH_ACCEPT},
    {STR("{}"), BOTH_ACCEPT},
    {STR(" \t\r\n[ \t\r\n] \t\r\n"), BOTH_ACCEPT},
    {STR("[1,2,[3,[4,{\"a\":[]}]],{}]"), BOTH_ACCEPT},
    {STR("{\"a\":{\"a\":{\"a\":1}},\"b\":[{\"a\":1},{\"a\":2}]}"), BOTH_ACCEPT},
    {STR("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u4e2d\\ud83d\\uDE00\""), BOTH_ACCEPT},
    {STR("\"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\x7f\""), BOTH_ACCEPT},
    {STR("\"a\\u0000b\""), BOTH_ACCEPT},
    {STR("\"\\ufffe\\uffff\""), BOTH_ACCEPT},
    {STR("9223372036854775807"), BOTH_ACCEPT},
    {STR("-9223372036854775808"), BOTH_ACCEPT},
    {STR("[1.5,-1.5e3,1E+2,1e-2,0.1,123456789012345678e0]"), BOTH_ACCEPT},
    {STR("[1.0,1e3,10e-1,100.00,0e5,0.0e99,-0e0]"), BOTH_ACCEPT},
    {STR("[4.9406564584124654e-324,1.7976931348623157e308,2.2250738585072014e-308]"), BOTH_ACCEPT},
    {STR("1e-400"), BOTH_ACCEPT}, /* zero */
    {STR("{\"\":1,\" \":2}"), BOTH_ACCEPT},
    {STR("{\"ab\":1,\"a\":2,\"b\":3,\"ba\":4}"), BOTH_ACCEPT},
    /* Valid, but beyond jansson; their values are in test_json.c. */
    {STR("9223372036854775808"), NO_VERDICT},
    {STR("1e999"), NO_VERDICT},
    {STR("{\"a\\u0000b\":1}"), NO_VERDICT},
    /* Invalid JSON. */
    {STR(""), BOTH_REFUSE},
    {STR(" "), BOTH_REFUSE},
    {STR("\0"), BOTH_REFUSE},
    {STR("0\0"), BOTH_REFUSE},
    {STR("\xef\xbb\xbf{}"), BOTH_REFUSE}, /* byte order mark */
    {STR("01"), BOTH_REFUSE},
    {STR("-01"), BOTH_REFUSE},
    {STR("00"), BOTH_REFUSE},
    {STR("+1"), BOTH_REFUSE},
    {STR("-"), BOTH_REFUSE},
    {STR("1."), BOTH_REFUSE},
    {STR(".5"), BOTH_REFUSE},
    {STR("1e"), BOTH_REFUSE},
    {STR("1e+"), BOTH_REFUSE},
    {STR("1.e5"), BOTH_REFUSE},
    {STR("0x10"), BOTH_REFUSE},
    {STR("1_000"), BOTH_REFUSE},
    {STR("NaN"), BOTH_REFUSE},
    {STR("Infinity"), BOTH_REFUSE},
    {STR("-Infinity"), BOTH_REFUSE},
    {STR("nul"), BOTH_REFUSE},
    {STR("nulll"), BOTH_REFUSE},
    {STR("True"), BOTH_REFUSE},
    {STR("'a'"), BOTH_REFUSE},
    {STR("\"a"), BOTH_REFUSE},
    {STR("\"a\nb\""), BOTH_REFUSE},
    {STR("\"a\tb\""), BOTH_REFUSE},
    {STR("\"a\0b\""), BOTH_REFUSE},
    {STR("\"\\x41\""), BOTH_REFUSE},
    {STR("\"\\\""), BOTH_REFUSE},
    {STR("\"\\"), BOTH_REFUSE},
    {STR("\"\\\0\""), BOTH_REFUSE},
    {STR("\"\\u12\""), BOTH_REFUSE},
    {STR("\"\\u12g4\""), BOTH_REFUSE},
    {STR("\"\\u+123\""), BOTH_REFUSE},
    {STR("\"\\ud800\""), BOTH_REFUSE},
    {STR("\"\\udc00\""), BOTH_REFUSE},
    {STR("\"\\ud800\\u0041\""), BOTH_REFUSE},
    {STR("\"\\ud800\\ud800\""), BOTH_REFUSE},
    {STR("\"\\ud800x\\udc00\""), BOTH_REFUSE},
    {STR("\"\\udc00\\ud800\""), BOTH_REFUSE},
    {STR("\"\xff\""), BOTH_REFUSE},
    {STR("\"\xc0\xaf\""), BOTH_REFUSE},
    {STR("\"\xed\xa0\x80\""), BOTH_REFUSE},
    {STR("\"\xf4\x90\x80\x80\""), BOTH_REFUSE},
    {STR("\"\xe4\xb8\""), BOTH_REFUSE},
    {STR("[1,]"), BOTH_REFUSE},
    {STR("[,1]"), BOTH_REFUSE},
    {STR("[1 2]"), BOTH_REFUSE},
    {STR("[1}"), BOTH_REFUSE},
    {STR("[1"), BOTH_REFUSE},
    {STR("["), BOTH_REFUSE},
    {STR("]"), BOTH_REFUSE},
    {STR("{\"a\":1,}"), BOTH_REFUSE},
    {STR("{,}"), BOTH_REFUSE},
    {STR("{\"a\"}"), BOTH_REFUSE},
    {STR("{\"a\":}"), BOTH_REFUSE},
    {STR("{\"a\":1]"), BOTH_REFUSE},
    {STR("{\"a\" 1}"), BOTH_REFUSE},
    {STR("{\"a\":1 \"b\":2}"), BOTH_REFUSE},
    {STR("{a:1}"), BOTH_REFUSE},
    {STR("{1:1}"), BOTH_REFUSE},
    {STR("{\"a\":1"), BOTH_REFUSE},
    {STR("{"), BOTH_REFUSE},
    {STR("{} {}"), BOTH_REFUSE},
    {STR("1 2"), BOTH_REFUSE},
    {STR("// no\n1"), BOTH_REFUSE},
    {STR("{\"a\":1,\"a\":2}"), BOTH_REFUSE},
    {STR("{\"a\":1,\"b\":2,\"\\u0061\":3}"), BOTH_REFUSE},
    {STR("{\"\\ud83d\\ude00\":1,\"\xf0\x9f\x98\x80\":2}"), BOTH_REFUSE},
    {STR("{\"\":1,\"\":2}"), BOTH_REFUSE},
    {STR("[{\"x\":{\"a\":1,\"a\":2}}]"), BOTH_REFUSE},
    /* The depth limit. */
    {STR("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"),
     BOTH_ACCEPT},
    {STR("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"),
     TOO_DEEP},
};

static void expect(struct str text, enum verdict want)
{
    struct buf why = {0};
    enum verdict got = oracle_judge(text, &why);

    if (got != want)
        fail_msg("\"" STR_FMT "\" is %d, not %d: " STR_FMT, STR_ARG(text), got, want,
                 STR_ARG(buf_view(&why)));
    buf_free(&why);
}

static void test_rows(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        expect(rows[i].text, rows[i].want);
}

/* Object sizes below, at and above the one where keys are hashed instead of compared. */
static void test_duplicates_in_objects_of_any_size(void **state)
{
    struct buf text = {0};

    for (int count = 1; count <= 40; count++)
        for (int twice = -1; twice < count; twice += 3)
            for (int spelling = 0; spelling < 2; spelling++) {
                buf_clear(&text);
                buf_char(&text, '{');
                for (int i = 0; i < count; i++)
                    buf_fmt(&text, "\"k%d\":{\"k%d\":[]},", i, i);
                buf_char(&text, '"');
                buf_fmt(&text, spelling ? "\\u006b%d" : "k%d", twice < 0 ? count : twice);
                buf_str(&text, STR("\":null}"));
                expect(buf_view(&text), twice < 0 ? BOTH_ACCEPT : BOTH_REFUSE);
            }
    buf_free(&text);
}

/* Any byte at any place of a string longer than the words in which it is scanned. */
static void test_every_byte_at_every_place(void **state)
{
    char text[] = "\"abcdefghijklmnopqrstuvwx\"";
    struct buf why = {0};

    for (size_t at = 1; at < sizeof text - 2; at++) {
        char before = text[at];

        for (int byte = 0; byte < 256; byte++) {
            text[at] = (char)byte;
            if (oracle_judge(str_of(text), &why) == THEY_DIFFER)
                fail_msg("byte 0x%02x at %zu: " STR_FMT, byte, at, STR_ARG(buf_view(&why)));
        }
        text[at] = before;
    }
}

static const char *const good[] = {
    "{\"session_id\":\"s-1\",\"src\":\"zh\",\"tgt\":\"en\",\"audio_ref\":\"s3://a/b.wav\","
    "\"options\":{\"require_tts\":true,\"preferred_node_id\":null}}",
    "{\"node_id\":\"n7\",\"semantic_langs\":[\"zh\",\"en\"],\"nmt_pairs\":[{\"src\":\"zh\",\"tgt\":"
    "\"en\"}],\"max_concurrent_jobs\":4,\"load\":{\"cpu\":0.25,\"mem\":1e-3}}",
    "[0,-1,9223372036854775807,1.5e300,true,false,null,\"\\u00e9\\ud83d\\ude00\",[[[[]]]],{}]",
    "{\"\\u0061\":\"\xe4\xb8\xad\xe6\x96\x87\",\"b\":\"\\\"\\\\\\n\",\"c\":[{\"d\":[{\"e\":{}}]}]}",
    " [ 1 , 2 ] ",
};

static const char *const pieces[] = {
    "{",       "}",       "[",  "]",      ",",   ":", "\"",      "\\",       "\\u",
    "\\ud800", "\\udc00", "0",  "-",      "1e9", ".", "true",    "null",     "\xc3",
    "\xa9",    "\xff",    "\n", "\"a\":", "e",   " ", "\\u0061", "[[[[[[[[", "{\"a\":"};

static void change(struct rnd *rnd, struct buf *text)
{
    size_t at = rnd_below(rnd, (uint32_t)text->len + 1);
    size_t left = text->len - at;
    size_t len = left ? rnd_below(rnd, (uint32_t)(left < 8 ? left : 8) + 1) : 0;
    struct buf old = *text;

    *text = (struct buf){0};
    buf_add(text, old.at, at);
    switch (rnd_below(rnd, 5)) {
    case 0: /* removes some bytes */
        break;
    case 1: /* repeats them */
        buf_add(text, old.at + at, len);
        buf_add(text, old.at + at, len);
        break;
    case 2: /* flips one bit */
        buf_add(text, old.at + at, len);
        if (len)
            text->at[at] ^= (char)(1 << rnd_below(rnd, 8));
        break;
    case 3: /* inserts a piece */
        buf_str(text, str_of(pieces[rnd_below(rnd, COUNT_OF(pieces))]));
        buf_add(text, old.at + at, len);
        break;
    default: /* replaces one byte by a piece */
        buf_str(text, str_of(pieces[rnd_below(rnd, COUNT_OF(pieces))]));
        len = left > 0;
        break;
    }
    buf_add(text, old.at + at + len, left - len);
    buf_free(&old);
}

static void test_mutations(void **state)
{
    size_t verdicts[THEY_DIFFER + 1] = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 20240229);
    for (int i = 0; i < 60000; i++) {
        struct buf text = {0};
        struct buf why = {0};
        enum verdict verdict;

        buf_str(&text, str_of(good[rnd_below(&rnd, COUNT_OF(good))]));
        for (uint32_t changes = 1 + rnd_below(&rnd, 3); changes > 0 && text.len > 0; changes--)
            change(&rnd, &text);
        verdict = oracle_judge(buf_view(&text), &why);
        if (verdict == THEY_DIFFER)
            fail_msg("mutation %d: " STR_FMT "\n" STR_FMT, i, STR_ARG(buf_view(&text)),
                     STR_ARG(buf_view(&why)));
        verdicts[verdict]++;
        buf_free(&text);
        buf_free(&why);
    }
    /* The mutations prove something only if both verdicts are frequent. */
    assert_true(verdicts[BOTH_ACCEPT] > 5000);
    assert_true(verdicts[BOTH_REFUSE] > 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_duplicates_in_objects_of_any_size),
        cmocka_unit_test(test_every_byte_at_every_place),
        cmocka_unit_test(test_mutations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
