/* Tokens: what a configuration or a file may contain, and adding and removing them. */
#include "model/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../arena.h"

/* printf %s secret | sha256sum */
#define SHA_SECRET  "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
#define TOKEN(rest) "[{\"name\":\"ops\",\"sha256\":\"" SHA_SECRET "\"," rest "}]"
#define LINE(n, s)  "- {name: " n ", sha256: " SHA_SECRET ", scopes: [" s "]}\n"

static void what_a_token_may_say(void **state)
{
    static const struct {
        const char *json;
        bool good;
    } rows[] = {
        {"null", true},
        {"[]", true},
        {"{}", false},
        {"[5]", false},
        {TOKEN("\"scopes\":[\"read\"]"), true},
        {TOKEN("\"scopes\":[\"admin\",\"submit\",\"read\"]"), true}, /* one includes another */
        {TOKEN("\"scopes\":[\"operate\",\"operate\"]"), true},
        {TOKEN("\"scopes\":[\"deploy\"]"), true},
        {TOKEN("\"scopes\":[\"read\"],\"format\":1"), true},
        {TOKEN("\"scopes\":[\"read\"],\"format\":2"), true},
        {TOKEN("\"scopes\":[\"read\"],\"format\":3"), false},
        {TOKEN("\"scopes\":[\"read\"],\"format\":\"2\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"us\""), true},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":null"), true},
        {TOKEN("\"scopes\":[]"), false},
        {TOKEN("\"scopes\":\"read\""), false},
        {TOKEN("\"scopes\":[\"admin\",\"root\"]"), false},
        {TOKEN("\"scopes\":[5]"), false},
        /* if accepted, each of these would leave the token unbound */
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":5"), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"a b\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":[\"us\"]"), false},
        {TOKEN("\"scopes\":[\"node\"],\"nodeid\":\"us\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"node\":\"us\""), false},
        {TOKEN("\"scopes\":[\"read\",\"submit\",\"deploy\"],\"namespace\":\"maps\""), true},
        {TOKEN("\"scopes\":[\"read\"],\"namespace\":null"), true},
        {TOKEN("\"scopes\":[\"admin\"],\"namespace\":\"default\""), true},
        /* shared things do not belong to a namespace */
        {TOKEN("\"scopes\":[\"node\"],\"namespace\":\"maps\""), false},
        {TOKEN("\"scopes\":[\"operate\"],\"namespace\":\"maps\",\"format\":2"), true},
        {TOKEN("\"scopes\":[\"read\",\"admin\"],\"namespace\":\"maps\""), false},
        {TOKEN("\"scopes\":[\"read\"],\"namespace\":\"\""), false},
        {TOKEN("\"scopes\":[\"read\"],\"namespace\":5"), false},
        {TOKEN("\"scopes\":[\"read\"],\"namespace\":\"a/b\""), false},
        {TOKEN("\"scopes\":[\"read\"],\"namespace\":\"0123456789abcdefg\""), false},
        {TOKEN("\"scopes\":[\"read\"],\"created_ms\":5,\"expires_ms\":7"), true},
        {TOKEN("\"scopes\":[\"read\"],\"expires_ms\":\"soon\""), false},
        {TOKEN("\"scopes\":[\"read\"],\"expires_ms\":0"), false},
        {TOKEN("\"scopes\":[\"read\"],\"expires_ms\":-1"), false},
        {"[{\"name\":\"ops\",\"sha256\":\"abc\",\"scopes\":[\"read\"]}]", false},
        {"[{\"name\":\"\",\"sha256\":\"" SHA_SECRET "\",\"scopes\":[\"read\"]}]", false},
        {"[{\"sha256\":\"" SHA_SECRET "\",\"scopes\":[\"read\"]}]", false},
        {"[{\"name\":\"ops\",\"token\":\"secret\",\"scopes\":[\"read\"]}]", false},
        {"[{\"name\":\"ops\",\"sha256\":\""
         "2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B"
         "\",\"scopes\":[\"read\"]}]",
         false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct tokens tokens;
        struct problem why = {0};
        const struct json *root;
        enum err err = json_parse(str_of(rows[i].json), *state, &root, &why);

        assert_int_equal(err, ERR_OK);
        err = tokens_read(root, *state, &tokens, &why);
        if (err != (rows[i].good ? ERR_OK : ERR_BAD_CONFIG))
            fail_msg("%s: %s \"%s\"", rows[i].json, err_name(err), why.detail);
        if (err && strstr(why.detail, "secret"))
            fail_msg("a token stands in \"%s\"", why.detail);
    }
}

static struct tokens parse(struct arena *arena, const char *yaml)
{
    struct tokens tokens;
    struct problem why = {0};

    if (tokens_parse(str_of(yaml), arena, &tokens, &why))
        fail_msg("%s: %s", yaml, why.detail);
    return tokens;
}

/* `operate` includes `deploy` in rows from before `deploy` existed, and in no others. */
static void rows_from_before(void **state)
{
    static const struct {
        const char *yaml;
        bool deploys, old_operate;
    } rows[] = {
        {LINE("a", "operate"), true, true},
        {LINE("a", "operate, deploy"), true, false},
        {LINE("a", "admin"), true, false},
        {LINE("a", "submit, read"), false, false},
        {"- {name: a, sha256: " SHA_SECRET ", scopes: [operate], format: 1}\n", true, true},
        {"- {name: a, sha256: " SHA_SECRET ", scopes: [operate], format: 2}\n", false, false},
        {"- {name: a, sha256: " SHA_SECRET ", scopes: [deploy], format: 2}\n", true, false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct tokens tokens = parse(*state, rows[i].yaml);

        assert_int_equal(tokens.at[0].scopes >> SCOPE_DEPLOY & 1, rows[i].deploys);
        assert_int_equal(tokens.at[0].old_operate, rows[i].old_operate);
    }
}

/* A file that was written reads back the same, including texts that need quotes. */
static void a_file_reads_back(void **state)
{
    static const char *const files[] = {
        "[]",
        LINE("ops", "admin"),
        LINE("ops", "operate") LINE("ci", "submit, read"),
        "- {name: \"a: b # c\", sha256: " SHA_SECRET ", scopes: [node], node_id: us.1,"
        " created_ms: 5, expires_ms: 7}\n",
        "- {name: q, sha256: " SHA_SECRET ", scopes: [submit], quota: \"rate=5/m,bytes=1MiB\"}\n",
        "- {name: m, sha256: " SHA_SECRET ", scopes: [submit], namespace: maps}\n",
        "- {name: \"\\\"\\u00e9\", sha256: " SHA_SECRET ", scopes: [node, read]}\n",
    };

    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct tokens first = parse(*state, files[i]), second;
        struct buf text = {0};

        tokens_write(&first, &text);
        buf_char(&text, 0);
        second = parse(*state, arena_cstr(*state, str_of(text.at)));
        buf_free(&text);
        assert_int_equal(first.count, second.count);
        for (size_t t = 0; t < first.count; t++) {
            assert_true(str_eq(first.at[t].name, second.at[t].name));
            assert_true(str_eq(first.at[t].node_id, second.at[t].node_id));
            assert_true(str_eq(first.at[t].namespace, second.at[t].namespace));
            assert_string_equal(first.at[t].digest, second.at[t].digest);
            assert_int_equal(first.at[t].scopes, second.at[t].scopes);
            assert_int_equal(first.at[t].created_ms, second.at[t].created_ms);
            assert_int_equal(first.at[t].expires_ms, second.at[t].expires_ms);
            assert_memory_equal(&first.at[t].quota, &second.at[t].quota, sizeof first.at[t].quota);
        }
    }
}

static void adding_and_taking_away(void **state)
{
    struct tokens tokens = parse(*state, LINE("ops", "admin") LINE("ci", "submit"));
    struct token one = tokens.at[1];
    struct tokens more, less;

    one.name = STR("extra");
    more = tokens_with(&tokens, &one, *state);
    assert_int_equal(more.count, 3);
    assert_int_equal(tokens.count, 2);
    assert_non_null(tokens_find(&more, STR("extra")));
    assert_null(tokens_find(&tokens, STR("extra")));
    less = tokens_without(&more, STR("ops"), *state);
    assert_int_equal(less.count, 2);
    assert_null(tokens_find(&less, STR("ops")));
    less = tokens_without(&less, STR("nobody"), *state);
    assert_int_equal(less.count, 2);
    more = tokens_join(&tokens, &less, *state);
    assert_int_equal(more.count, 4);
    assert_true(str_is(more.at[2].name, "ci"));
    assert_ptr_not_equal(more.at[0].name.at, tokens.at[0].name.at); /* a copy of the texts */
}

static void who_is_left(void **state)
{
    struct tokens tokens = parse(*state, LINE("a", "admin") LINE("b", "operate") LINE("c", "node"));

    assert_int_equal(tokens_having(&tokens, SCOPE_ADMIN, 10), 1);
    assert_int_equal(tokens_having(&tokens, SCOPE_READ, 10), 2);
    assert_int_equal(tokens_having(&tokens, SCOPE_NODE, 10), 2);
    tokens.at[0].expires_ms = 10;
    assert_int_equal(tokens_having(&tokens, SCOPE_ADMIN, 9), 1);
    assert_int_equal(tokens_having(&tokens, SCOPE_ADMIN, 10), 0);
}

static void a_copy_stands_alone(void **state)
{
    struct tokens tokens =
        parse(*state, "- {name: n, sha256: " SHA_SECRET ", scopes: [node], node_id: us}\n");
    struct token *copy = token_put(malloc(token_bytes(&tokens.at[0])), &tokens.at[0]);

    tokens.at[0].name = STR("x");
    assert_true(str_is(copy->name, "n") && str_is(copy->node_id, "us"));
    free(copy);
    tokens.at[0].node_id = STR_NONE;
    copy = token_put(malloc(token_bytes(&tokens.at[0])), &tokens.at[0]);
    assert_null(copy->node_id.at); /* not bound, instead of bound to an empty name */
    assert_null(copy->namespace.at);
    assert_true(str_is(token_namespace(copy), "default"));
    free(copy);
    tokens.at[0].namespace = STR("maps");
    copy = token_put(malloc(token_bytes(&tokens.at[0])), &tokens.at[0]);
    tokens.at[0].namespace = STR("x");
    assert_true(str_is(copy->namespace, "maps") && !token_view(copy).all);
    free(copy);
    assert_true(token_view(NULL).all);
}

static void files_that_are_none(void **state)
{
    static const char *const files[] = {"name: ops", "- ops",      "- {name: ops}",
                                        "\t",        "- {name: [", "tokens:\n  - {name: ops}"};

    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct tokens tokens;
        struct problem why = {0};

        assert_int_not_equal(tokens_parse(str_of(files[i]), *state, &tokens, &why), ERR_OK);
        assert_true(why.detail[0] != 0);
    }
}

/* --- quota --- */

/* Quotas: which texts are valid, how they are shown, and what a rate lets through. */

static void texts(void **state)
{
    static const struct {
        const char *text;
        const char *shown; /* NULL: refused */
    } table[] = {
        {"rate=10/s,waiting=1000,bytes=64MiB", "rate=10/s,waiting=1000,bytes=64MiB"},
        {"bytes=65536,rate=600/m", "rate=600/m,bytes=64KiB"},
        {"waiting=1", "waiting=1"},
        {"rate=1000000/h", "rate=1000000/h"},
        {"bytes=1000", "bytes=1000"},
        {"bytes=1024GiB", "bytes=1024GiB"},
        {"bytes=1025GiB", NULL},
        {"bytes=9223372036854775807GiB", NULL},
        {"bytes=64MB", NULL},
        {"bytes=MiB", NULL},
        {"bytes=", NULL},
        {"bytes", NULL},
        {"", NULL},
        {",", NULL},
        {"waiting=0", NULL},
        {"waiting=-1", NULL},
        {"waiting=1,", NULL},
        {"waiting=1,waiting=2", NULL},
        {"waiting=100000001", NULL},
        {"rate=10", NULL},
        {"rate=10/", NULL},
        {"rate=10/d", NULL},
        {"rate=/s", NULL},
        {"rate=0/s", NULL},
        {"rate=1000001/s", NULL},
        {"jobs=5", NULL},
    };

    for (size_t i = 0; i < COUNT_OF(table); i++) {
        struct quota quota = {.waiting = 7}, again;
        char text[QUOTA_TEXT_MAX + 1];
        struct problem why = {0};
        enum err err = quota_parse(str_of(table[i].text), &quota, &why);

        if (!table[i].shown) {
            if (err != ERR_BAD_FIELD || quota.waiting != 7)
                fail_msg("\"%s\" is taken for a quota", table[i].text);
            continue;
        }
        if (err)
            fail_msg("%s: %s", table[i].text, why.detail);
        quota_text(&quota, text);
        assert_string_equal(text, table[i].shown);
        assert_int_equal(quota_parse(str_of(text), &again, &why), ERR_OK);
        assert_memory_equal(&again, &quota, sizeof quota);
    }
}

/* At first as many at once as in a whole period, then one at a time; never more than twice the rate
 * in any period. */
static void a_rate(void **state)
{
    struct quota quota = {.rate = 10, .rate_ms = 1000};
    quota_meter meter = 0;
    int64_t now_ms = 5000000, wait_ms = 0;

    for (int i = 0; i < 10; i++)
        assert_true(quota_take(&quota, &meter, now_ms, &wait_ms));
    assert_false(quota_take(&quota, &meter, now_ms, &wait_ms));
    assert_int_equal(wait_ms, 100);
    assert_false(quota_take(&quota, &meter, now_ms + 99, &wait_ms)); /* a refusal is not counted */
    assert_int_equal(wait_ms, 1);
    assert_true(quota_take(&quota, &meter, now_ms + 100, &wait_ms));
    assert_false(quota_take(&quota, &meter, now_ms + 100, &wait_ms));
    for (int ms = 101, taken = 0; ms <= 10100; ms++) {
        taken += quota_take(&quota, &meter, now_ms + ms, &wait_ms);
        assert_in_range(taken, ms / 100 - 1, ms / 100);
    }
    now_ms += 3600000; /* unused calls are not saved up */
    for (int i = 0; i < 10; i++)
        assert_true(quota_take(&quota, &meter, now_ms, &wait_ms));
    assert_false(quota_take(&quota, &meter, now_ms, &wait_ms));
}

/* The slowest and the fastest rate. */
static void rates_at_their_bounds(void **state)
{
    struct quota slow = {.rate = 1, .rate_ms = 3600000}, fast = {.rate = 1000000, .rate_ms = 1000};
    quota_meter meter = 0, other = 0;
    int64_t wait_ms;
    int taken = 0;

    assert_true(quota_take(&slow, &meter, 1, &wait_ms));
    assert_false(quota_take(&slow, &meter, 2, &wait_ms));
    assert_int_equal(wait_ms, 3599999);
    assert_true(quota_take(&slow, &meter, 3600001, &wait_ms));
    while (quota_take(&fast, &other, 1, &wait_ms))
        taken++;
    assert_int_equal(taken, 1000000);
    assert_int_equal(wait_ms, 1);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, arena_setup, arena_teardown)

    const struct CMUnitTest tests[] = {
        ROW(what_a_token_may_say),
        ROW(rows_from_before),
        ROW(adding_and_taking_away),
        ROW(what_a_token_may_say),
        ROW(a_file_reads_back),
        ROW(adding_and_taking_away),
        ROW(who_is_left),
        ROW(a_copy_stands_alone),
        ROW(files_that_are_none),
        cmocka_unit_test(texts),
        cmocka_unit_test(a_rate),
        cmocka_unit_test(rates_at_their_bounds),
    };

    return cmocka_run_group_tests_name("token", tests, NULL, NULL);
}
