/* Pool membership, all pools of a node, differences, and texts. */
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "model/pool.h"

/* Facts from "en,zh" and "en>zh,zh>en" (or "any"), with derived capabilities. */
static struct pool_facts facts_of(struct arena *arena, const char *semantic, const char *nmt,
                                  const char *tts)
{
    struct pool_facts facts = {0};
    struct str rest = str_of(semantic);

    facts.semantic_langs = arena_array(arena, struct str, 32);
    facts.nmt_pairs = arena_array(arena, struct pool_pair, 32);
    facts.tts_langs = arena_array(arena, struct str, 32);
    while (rest.len > 0)
        facts.semantic_langs[facts.semantic_count++] = str_cut(&rest, ',');
    rest = str_of(tts);
    while (rest.len > 0)
        facts.tts_langs[facts.tts_count++] = str_cut(&rest, ',');
    facts.nmt_any = strcmp(nmt, "any") == 0;
    rest = facts.nmt_any ? STR_NONE : str_of(nmt);
    while (rest.len > 0) {
        struct str pair = str_cut(&rest, ',');
        struct str src = str_cut(&pair, '>');

        facts.nmt_pairs[facts.nmt_count++] = (struct pool_pair){.src = src, .tgt = pair};
    }
    pool_derive(&facts);
    return facts;
}

static void test_member_rows(void **state)
{
    static const struct {
        const char *semantic, *nmt, *tts, *src, *tgt;
        unsigned wants;
        bool member;
    } rows[] = {
        {"en,zh", "en>zh,zh>en", "en,zh", "en", "zh", 0, true},
        {"en,zh", "en>zh,zh>en", "en,zh", "zh", "en", 0, true},
        {"en", "en>zh", "", "zh", "en", 0, false},
        {"zh", "en>zh", "", "en", "zh", 0, false},
        {"en", "en>zh", "", "en", "zh", POOL_WANT_TTS, false},
        {"en", "en>zh", "en", "en", "zh", POOL_WANT_TTS, false},
        {"en", "en>zh", "zh", "en", "zh", POOL_WANT_TTS, true},
        {"en", "any", "", "en", "xx", 0, true},
        {"en", "any", "", "xx", "en", 0, false},
        {"en", "", "", "en", "zh", 0, false},
        {"en", "en>zh", "zh", "en", "zh", POOL_WANT_ASR, false}, /* asr is never derived */
        {"en", "en>zh", "zh", "EN", "zh", 0, false},
        {"en", "en>zh", "zh", "", "", 0, false},
    };
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct pool_facts facts = facts_of(&arena, rows[i].semantic, rows[i].nmt, rows[i].tts);

        assert_int_equal(
            pool_member(&facts, str_of(rows[i].src), str_of(rows[i].tgt), rows[i].wants),
            rows[i].member);
    }
    arena_free(&arena);
}

static void test_a_capability_switched_off_excludes(void **state)
{
    struct arena arena = {0};
    struct pool_facts all = facts_of(&arena, "en", "any", "zh");
    struct pool_facts facts;

    all.asr = true;
    assert_true(pool_member(&all, STR("en"), STR("zh"), POOL_WANT_TTS | POOL_WANT_ASR));
    facts = all;
    facts.semantic = false;
    assert_false(pool_member(&facts, STR("en"), STR("zh"), 0));
    facts = all;
    facts.nmt = false;
    assert_false(pool_member(&facts, STR("en"), STR("zh"), 0));
    facts = all;
    facts.tts = false;
    assert_true(pool_member(&facts, STR("en"), STR("zh"), 0));
    assert_false(pool_member(&facts, STR("en"), STR("zh"), POOL_WANT_TTS));
    facts = all;
    facts.asr = false;
    assert_true(pool_member(&facts, STR("en"), STR("zh"), POOL_WANT_TTS));
    assert_false(pool_member(&facts, STR("en"), STR("zh"), POOL_WANT_ASR));
    facts = all;
    facts.tone = false; /* nothing requires it */
    assert_true(pool_member(&facts, STR("en"), STR("zh"), POOL_WANT_TTS | POOL_WANT_ASR));
    arena_free(&arena);
}

static void test_derived_capabilities(void **state)
{
    struct arena arena = {0};
    struct pool_facts facts = facts_of(&arena, "en", "", "");

    assert_true(facts.semantic);
    assert_false(facts.nmt || facts.tts || facts.asr || facts.tone);
    facts = facts_of(&arena, "", "any", "zh");
    assert_true(facts.nmt && facts.tts);
    assert_false(facts.semantic);
    arena_free(&arena);
}

static void test_types(void **state)
{
    struct str some[] = {STR("dev"), STR("review")};
    struct str every[] = {STR("*")};
    struct pool_facts facts = {0};

    assert_false(pool_type_member(&facts, STR("dev"))); /* no types: in no task pool */
    facts.types = some;
    facts.type_count = 2;
    assert_true(pool_type_member(&facts, STR("review")));
    assert_false(pool_type_member(&facts, STR("rev")));
    assert_false(pool_type_member(&facts, STR("*")));
    facts.types = every;
    facts.type_count = 1;
    assert_true(pool_type_member(&facts, STR("dev")));
    assert_true(pool_type_member(&facts, STR("anything")));
}

static void assert_pairs(const struct pool_pair *pairs, size_t count, const char *expected)
{
    char text[512] = "";
    size_t len = 0;

    for (size_t i = 0; i < count; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s" STR_FMT ":" STR_FMT,
                                i ? " " : "", STR_ARG(pairs[i].src), STR_ARG(pairs[i].tgt));
    assert_string_equal(text, expected);
}

static void test_pairs_sorted_and_once(void **state)
{
    struct arena arena = {0};
    struct pool_pair out[32];
    struct pool_facts facts = facts_of(&arena, "en,en-us,eng", "eng>a,en>z,en-us>z,en>a,en>z", "");

    assert_pairs(out, pool_pairs(&facts, out), "en-us:z en:a en:z eng:a");
    facts = facts_of(&arena, "en,zh", "fr>en,zh>en,en>zh,en>zh", "");
    assert_pairs(out, pool_pairs(&facts, out), "en:zh zh:en");
    facts.nmt = false;
    assert_pairs(out, pool_pairs(&facts, out), "");
    facts = facts_of(&arena, "en,zh", "any", "zh");
    assert_pairs(out, pool_pairs(&facts, out), "");
    arena_free(&arena);
}

/* Many pairs are sorted like their ids, which the index relies on. */
static void test_order_is_that_of_the_ids(void **state)
{
    enum { COUNT = 3000 };
    struct arena arena = {0};
    struct pool_pair *pairs = arena_array(&arena, struct pool_pair, COUNT);
    struct pool_facts facts = {.nmt_pairs = pairs, .nmt_count = COUNT};
    struct pool_pair *out = arena_array(&arena, struct pool_pair, COUNT);
    struct rnd rnd;
    size_t count;

    rnd_seed(&rnd, 4);
    for (size_t i = 0; i < COUNT; i++) {
        static const char letters[] = "az09-";
        char src[4], tgt[4];

        for (int c = 0; c < 4; c++) {
            src[c] = letters[rnd_below(&rnd, 5)];
            tgt[c] = letters[rnd_below(&rnd, 5)];
        }
        pairs[i].src = arena_str(&arena, (struct str){src, 1 + rnd_below(&rnd, 4)});
        pairs[i].tgt = arena_str(&arena, (struct str){tgt, 1 + rnd_below(&rnd, 4)});
    }
    facts.semantic_langs = arena_array(&arena, struct str, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        facts.semantic_langs[facts.semantic_count++] = pairs[i].src;
    pool_derive(&facts);
    count = pool_pairs(&facts, out);
    assert_true(count > 1000);
    for (size_t i = 1; i < count; i++) {
        char before[POOL_ID_MAX], after[POOL_ID_MAX];

        pool_id(out[i - 1].src, out[i - 1].tgt, before);
        pool_id(out[i].src, out[i].tgt, after);
        assert_true(strcmp(before, after) < 0);
    }
    arena_free(&arena);
}

static void test_refusal_sentences(void **state)
{
    struct arena arena = {0};

    assert_str(pool_refusal(STR("en"), STR("zh"), 0, &arena),
               "No node supports semantic(en) + nmt(en->zh).");
    assert_str(pool_refusal(STR("en"), STR("zh"), POOL_WANT_TTS, &arena),
               "No node supports semantic(en) + nmt(en->zh) + tts(zh).");
    assert_str(pool_refusal(STR("en"), STR("zh"), POOL_WANT_TTS | POOL_WANT_ASR, &arena),
               "No node supports semantic(en) + nmt(en->zh) + tts(zh) + asr(en).");
    arena_free(&arena);
}

static void test_languages(void **state)
{
    static const struct {
        const char *in, *out; /* NULL: not a language */
    } rows[] = {
        {"en", "en"},
        {" ZH-Hans\t", "zh-hans"},
        {"es-419", "es-419"},
        {"x", "x"},
        {"abcdefghijklmnopqrstuvwxyz-01234", "abcdefghijklmnopqrstuvwxyz-01234"},
        {"abcdefghijklmnopqrstuvwxyz-012345", NULL},
        {"", NULL},
        {"   ", NULL},
        {"zh_CN", NULL},
        {"en zh", NULL},
        {"en:zh", NULL},
        {"\xc3\xa9", NULL},
    };
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str lang = STR("untouched");
        bool ok = pool_lang_normalise(str_of(rows[i].in), &arena, &lang);

        assert_int_equal(ok, rows[i].out != NULL);
        assert_true(str_is(lang, ok ? rows[i].out : "untouched"));
    }
    arena_free(&arena);
}

static void test_longest_id(void **state)
{
    struct str lang = STR("abcdefghijklmnopqrstuvwxyz-01234");
    char id[POOL_ID_MAX];

    pool_id(STR("en"), STR("zh"), id);
    assert_string_equal(id, "en:zh");
    pool_id(lang, lang, id);
    assert_int_equal(strlen(id), 2 * POOL_LANG_MAX + 1);
}

/* --- routing --- */

/* Types to servers, in the order of the table. */

#define S(text)                                                                                    \
    {                                                                                              \
        .at = (text), .len = sizeof(text) - 1                                                      \
    }

static struct str us_only[] = {S("us")};
static struct str hk_first[] = {S("hk"), S("us")};
static struct str near_first[] = {S("zone=near"), S("*")};
static const struct routing_route routes[] = {
    {.type = S("dev"), .servers = {us_only, 1}},
    {.type = S("talk"), .servers = {hk_first, 2}},
    {.type = S("batch"), .servers = {near_first, 2}},
};
static const struct routing seed = {.routes = routes, .count = 3, .default_route = {us_only, 1}};
static const struct routing open = {.routes = routes, .count = 3};
static const struct routing none = {.routes = NULL};

static const struct json *labels(struct arena *arena, const char *text)
{
    const struct json *json;

    assert_int_equal(json_parse(str_of(text), arena, &json, NULL), ERR_OK);
    return json;
}

static void test_rank_rows(void **state)
{
    static const struct {
        const struct routing *routing;
        const char *type;
        int us, hk; /* position in the route; -1: refused */
    } rows[] = {
        {&seed, "dev", 0, -1}, {&seed, "talk", 1, 0}, {&seed, "other", 0, -1},
        {&seed, "", 0, -1},    {&open, "dev", 0, -1}, {&open, "other", 0, 0}, /* anywhere */
        {&none, "dev", 0, 0},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct routing_server hk = {.id = S("hk"), .priority = 2};
        struct routing_server us = {.id = S("us"), .priority = 1};
        int32_t by_us = routing_rank(rows[i].routing, str_of(rows[i].type), &us);
        int32_t by_hk = routing_rank(rows[i].routing, str_of(rows[i].type), &hk);

        assert_int_equal(by_us, rows[i].us < 0 ? ROUTING_REFUSED : rows[i].us * 1024 + 1);
        assert_int_equal(by_hk, rows[i].hk < 0 ? ROUTING_REFUSED : rows[i].hk * 1024 + 2);
    }
}

static void test_labels_and_any(void **state)
{
    struct arena arena = {0};
    struct routing_server servers[] = {
        {.id = S("a"), .priority = 1},
        {.id = S("b"), .priority = 9},
        {.id = S("c"), .priority = 5},
    };
    int32_t ranks[3];

    servers[1].labels = labels(&arena, "{\"zone\":\"near\"}");
    servers[2].labels = labels(&arena, "{\"zone\":\"near\",\"disk\":\"ssd\"}");
    for (int i = 0; i < 3; i++)
        ranks[i] = routing_rank(&seed, STR("batch"), &servers[i]);
    assert_true(ranks[2] < ranks[1]); /* by label first, then by priority */
    assert_true(ranks[1] < ranks[0]);
    servers[2].priority = 9;
    assert_int_equal(routing_rank(&seed, STR("batch"), &servers[2]), ranks[1]);
    arena_free(&arena);
}

static void test_a_server_gets_only_what_it_allows(void **state)
{
    static struct str light[] = {S("talk"), S("research")};
    static struct str any[] = {S("*")};
    const struct strs lists[] = {{light, 2}, {any, 1}, {NULL, 0}};
    struct routing_server server = {.id = S("us"), .types = &lists[0]};

    assert_int_equal(routing_rank(&seed, STR("dev"), &server), ROUTING_REFUSED);
    assert_int_not_equal(routing_rank(&seed, STR("talk"), &server), ROUTING_REFUSED);
    server.types = &lists[1];
    assert_int_not_equal(routing_rank(&seed, STR("dev"), &server), ROUTING_REFUSED);
    server.types = &lists[2]; /* an empty list allows no type */
    assert_int_equal(routing_rank(&seed, STR("dev"), &server), ROUTING_REFUSED);
    assert_true(routing_allows(NULL, STR("dev")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member_rows),
        cmocka_unit_test(test_a_capability_switched_off_excludes),
        cmocka_unit_test(test_derived_capabilities),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_pairs_sorted_and_once),
        cmocka_unit_test(test_order_is_that_of_the_ids),
        cmocka_unit_test(test_refusal_sentences),
        cmocka_unit_test(test_languages),
        cmocka_unit_test(test_longest_id),
        cmocka_unit_test(test_rank_rows),
        cmocka_unit_test(test_labels_and_any),
        cmocka_unit_test(test_a_server_gets_only_what_it_allows),
    };

    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
