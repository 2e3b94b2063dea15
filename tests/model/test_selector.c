/* The grammar of selectors: what matches, what is refused and at which column, one text for equal
 * selectors, and why a node does not match. */
#include "model/selector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "base/clock.h"

static struct arena arena;

static int tidy_up(void **state)
{
    arena_free(&arena);
    return 0;
}

/* A node with id n1 and these labels, such as {"zone":"eu"}; NULL: unknown. */
static struct selector_facts facts_of(const char *labels)
{
    struct selector_facts facts = {.id = STR("n1")};

    if (labels)
        assert_int_equal(json_parse(str_of(labels), &arena, &facts.labels, NULL), ERR_OK);
    return facts;
}

static struct selector must_read(const char *text)
{
    struct selector selector;
    struct problem why = {0};

    if (selector_read(str_of(text), "selector", &arena, &selector, &why))
        fail_msg("%s: %s", text, why.detail);
    return selector;
}

#define LABELS                                                                                     \
    "{\"zone\":\"eu\",\"cores\":\"16\",\"gpu.vram_mb\":\"23034.5\",\"spot\":\"yes\",\"t\":\"-3\"}"

static const struct {
    const char *text;
    bool match;
} matches[] = {
    {"", true},
    {"   ", true},
    {"zone", true},
    {"rack", false},
    {"!zone", false},
    {"!rack", true},
    {"! rack", true},
    {"zone=eu", true},
    {"zone==eu", true},
    {"zone = eu", true},
    {"zone == eu", true},
    {"zone=us", false},
    {"zone=EU", false},
    {"rack=eu", false},
    {"zone!=us", true},
    {"zone != eu", false},
    {"rack != eu", true}, /* missing */
    {"zone in (us,eu)", true},
    {"zone in ( us , eu )", true},
    {"zone in(eu)", true},
    {"zone in (us)", false},
    {"rack in (eu)", false},
    {"zone notin (us,asia)", true},
    {"zone notin (us,eu)", false},
    {"rack notin (eu)", true}, /* missing */
    {"cores > 15", true},
    {"cores > 16", false},
    {"cores >= 16", true},
    {"cores >= 16.01", false},
    {"cores < 17", true},
    {"cores < 16", false},
    {"cores <= 16", true},
    {"cores <= 9", false}, /* compared as numbers */
    {"cores>=9,cores<=20", true},
    {"cores >= 016.000", true},
    {"gpu.vram_mb >= 16000", true},
    {"gpu.vram_mb > 23034.49", true},
    {"gpu.vram_mb > 23034.5", false},
    {"t < -2", true},
    {"t < -3", false},
    {"t > -10", true},
    {"t < 0", true},
    {"t >= -3.0", true},
    {"zone > 1", false}, /* not a number */
    {"zone <= 1", false},
    {"rack > 1", false}, /* missing */
    {"rack < 1", false},
    {"zone=eu,spot=yes", true},
    {"zone=eu,spot=no", false},
    {"zone=us,spot=yes", false},
    {"zone in (eu,us), gpu.vram_mb >= 16000, !rack, name != x", true},
    {"zone in (eu,us), gpu.vram_mb >= 16000, !spot, name != x", false},
    {"name=n1", true},
    {"name in (n0,n1)", true},
    {"name != n1", false},
    {"name", true},
    {"in=x", false},
    {"!in", true},
    {"in in (in)", false},
};

static void test_what_matches(void **state)
{
    struct selector_facts facts = facts_of(LABELS);

    for (size_t i = 0; i < COUNT_OF(matches); i++) {
        struct selector selector = must_read(matches[i].text);

        if (selector_fits(&selector, &facts) != matches[i].match ||
            selector_match(str_of(matches[i].text), &facts) != matches[i].match)
            fail_msg("%s", matches[i].text);
    }
}

static void test_what_is_wrong_and_where(void **state)
{
    static const struct {
        const char *text;
        int column;
        const char *detail;
    } rows[] = {
        {",", 1, "expected a key, not \",\"."},
        {"zone=eu,", 9, "expected a key, but it ends there."},
        {"zone=eu,,spot", 9, "expected a key, not \",\"."},
        {"=eu", 1, "expected a key, not \"=\"."},
        {"!", 2, "expected a key, but it ends there."},
        {"!=x", 2, "expected a key, not \"=\"."},
        {"!zone=eu", 6, "expected \",\" or the end, not \"=\"."},
        {"zone=", 6, "expected a value, but it ends there."},
        {"zone= ,a", 7, "expected a value, not \",\"."},
        {"zone=eu=us", 8, "expected \",\" or the end, not \"=\"."},
        {"zone===eu", 7, "expected a value, not \"=\"."},
        {"zone=!eu", 6, "expected a value, not \"!\"."},
        {"zone eu", 6, "expected one of = != in notin > >= < <=, \",\" or the end, not \"e\"."},
        {"zone !eu", 6, "expected one of = != in notin > >= < <=, \",\" or the end, not \"!\"."},
        {"zone ini (eu)", 6,
         "expected one of = != in notin > >= < <=, \",\" or the end, not \"i\"."},
        {"zone in eu", 9, "expected \"(\", not \"e\"."},
        {"zone in", 8, "expected \"(\", but it ends there."},
        {"zone in ()", 10, "expected a value, not \")\"."},
        {"zone in (eu,)", 13, "expected a value, not \")\"."},
        {"zone in (eu us)", 13, "expected \",\" or \")\", not \"u\"."},
        {"zone in (eu,us, !spot", 17, "expected a value, not \"!\"."},
        {"zone in (eu", 12, "expected \",\" or \")\", but it ends there."},
        {"zone in (eu) us", 14, "expected \",\" or the end, not \"u\"."},
        {"cores > many", 9, "expected a number, not \"m\"."},
        {"cores > 1.", 9, "expected a number, not \"1\"."},
        {"cores > .5", 9, "expected a number, not \".\"."},
        {"cores > 1e3", 9, "expected a number, not \"1\"."},
        {"cores > --1", 9, "expected a number, not \"-\"."},
        {"cores >", 8, "expected a number, but it ends there."},
        {"cores => 5", 8, "expected a value, not \">\"."},
        {"zone=eu;spot", 8, "expected \",\" or the end, not \";\"."},
        {"zone=\xc3\xa4", 6,
         "expected a value, not \"\xc3\xa4\"."}, /* a whole character of two bytes */
        {"zone=eu\t", 8, "expected \",\" or the end, not a byte that is no text."},
        {"zone=eu\xff", 8, "expected \",\" or the end, not a byte that is no text."},
        {"k=a,k=b", 5, "expected another key: this one has a value already, not \"k\"."},
        {"k in (a,a),k=b", 12, "expected another key: this one has a value already, not \"k\"."},
        {"k=a, l=c, k==a", 11, "expected another key: this one has a value already, not \"k\"."},
    };
    struct selector_facts facts = facts_of("{}");

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct problem why = {0};
        struct selector selector = {0};
        char said[512];

        assert_int_equal(selector_read(str_of(rows[i].text), "requires", &arena, &selector, &why),
                         ERR_BAD_FIELD);
        snprintf(said, sizeof said, "requires, character %d: %s", rows[i].column, rows[i].detail);
        assert_string_equal(why.detail, said);
        assert_string_equal(why.field, "requires");
        assert_int_equal(why.column, rows[i].column);
        assert_int_equal(selector.count, 0); /* untouched */
        assert_false(selector_match(str_of(rows[i].text), &facts));
        assert_int_equal(selector_read(str_of(rows[i].text), "x", &arena, &selector, NULL),
                         ERR_BAD_FIELD);
    }
}

/* Accepts exactly what a release without operators accepted. */
static void test_equality(void **state)
{
    static const struct {
        const char *text;
        int column; /* 0: valid */
    } rows[] = {{"", 0},         {"zone=eu", 0},    {"zone=eu,spot=no", 0}, {"in=in,notin=5", 0},
                {" ", 1},        {"zone", 5},       {"!zone", 1},           {"zone==eu", 6},
                {"zone =eu", 5}, {"zone= eu", 6},   {"zone=eu ", 8},        {"zone=eu, a=b", 9},
                {"zone!=eu", 5}, {"zone>5", 5},     {"zone in (eu)", 5},    {"zone=eu,", 9},
                {"k=a=b", 4},    {"k=a,l=b,k=c", 9}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct problem why = {0};
        enum err err = selector_check(str_of(rows[i].text), SELECTOR_EQUALITY, "x", &why);

        if ((err == ERR_OK) != (rows[i].column == 0) || (err && why.column != rows[i].column))
            fail_msg("%s: %d", rows[i].text, why.column);
        if (!err)
            assert_int_equal(selector_check(str_of(rows[i].text), SELECTOR_FULL, "x", NULL),
                             ERR_OK);
    }
}

static void test_one_text_for_the_same(void **state)
{
    static const struct {
        const char *text, *canonical;
    } rows[] = {
        {"", ""},
        {"  ", ""},
        {"ca=a,c-=x,c=d,a=b", "a=b,c-=x,c=d,ca=a"},
        {" zone == eu ", "zone=eu"},
        {"zone in (eu)", "zone=eu"},
        {"zone in (eu,eu)", "zone=eu"},
        {"zone notin (eu)", "zone!=eu"},
        {"zone in (us, eu,us)", "zone in (eu,us)"},
        {"zone notin(us,eu)", "zone notin (eu,us)"},
        {"!spot, zone", "!spot,zone"},
        {"!spot,!spot", "!spot"},
        {"zone in (eu,us), zone=eu", "zone in (eu,us),zone=eu"},
        {"a > 05", "a>5"},
        {"a >= 5.00,a>=5", "a>=5"},
        {"a < -0", "a<0"},
        {"a <= -007.50", "a<=-7.5"},
        {"a > 0.0", "a>0"},
        {"a = 05", "a=05"}, /* compared as text */
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct selector selector = must_read(rows[i].text);
        struct buf text = {0};

        selector_canonical(&selector, &text);
        assert_str(buf_view(&text), rows[i].canonical);
        buf_free(&text);
    }
}

static void test_why_not(void **state)
{
    static const struct {
        const char *text, *why; /* NULL: matches */
    } rows[] = {
        {"zone in (asia,us)", "zone in (asia,us): zone is eu"},
        {"zone = eu , cores>20", "cores>20: cores is 16"},
        {"zone=eu,rack=7", "rack=7: it has no rack"},
        {"!spot", "!spot: spot is yes"},
        {"rack", "rack: it has no rack"},
        {"name != n1", "name != n1: name is n1"},
        {"zone > 5", "zone > 5: zone is eu"},
        {"zone=eu", NULL},
        {"", NULL},
    };
    struct selector_facts facts = facts_of(LABELS);

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct selector selector = must_read(rows[i].text);
        struct buf why = {0};

        assert_int_equal(selector_explain(&selector, &facts, &why), rows[i].why != NULL);
        assert_str(buf_view(&why), rows[i].why ? rows[i].why : "");
        buf_free(&why);
    }
}

/* The limit itself is accepted, one more is not. */
static void test_bounds(void **state)
{
    static const struct {
        const char *before, *each, *between, *after;
        size_t max;
        const char *expected;
    } rows[] = {
        {"", "k!=a", ",", "", SELECTOR_TERMS_MAX, "no more than 128 terms"},
        {"k in (", "a", ",", ")", SELECTOR_VALUES_MAX, "no more than 256 values"},
        {"k=", "a", "", "", SELECTOR_WORD_MAX, "a word of at most 64 characters to end"},
        {"", "a", "", "=k", SELECTOR_WORD_MAX, "a word of at most 64 characters to end"},
        {"k", " ", "", "", SELECTOR_BYTES_MAX - 1, "a selector of at most 4096 characters"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t more = 0; more < 2; more++) {
            struct buf text = {0};
            struct problem why = {0};

            buf_str(&text, str_of(rows[i].before));
            for (size_t j = 0; j < rows[i].max + more; j++)
                buf_fmt(&text, "%s%s", j ? rows[i].between : "", rows[i].each);
            buf_str(&text, str_of(rows[i].after));
            if ((selector_check(buf_view(&text), SELECTOR_FULL, "x", &why) != ERR_OK) != more)
                fail_msg("%zu of %s: %s", rows[i].max + more, rows[i].each, why.detail);
            assert_true(!more || strstr(why.detail, rows[i].expected));
            buf_free(&text);
        }
}

/* A label of an unknown node is neither present nor missing. */
static void test_an_unknown_node_matches_no_term(void **state)
{
    static const char *const rows[] = {"!spot", "zone != eu", "zone notin (eu)", "zone", "name=n1"};
    struct selector_facts unknown = facts_of(NULL), none = facts_of("{}");

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_false(selector_match(str_of(rows[i]), &unknown));
    assert_true(selector_match(STR(""), &unknown));
    assert_true(selector_match(STR("!spot,zone != eu,name=n1"), &none));
}

/* A node chooses its labels, so a label "name" is not its name. */
static void test_a_label_is_no_name(void **state)
{
    struct selector_facts facts = facts_of("{\"name\":\"n2\"}");

    assert_false(selector_match(STR("name=n2"), &facts));
    assert_true(selector_match(STR("name=n1"), &facts));
    facts.id = STR_NONE;
    assert_true(selector_match(STR("name=n2"), &facts));
}

/* A label that cannot be written in a selector is present, and equal to no value. */
static void test_labels_beyond_words(void **state)
{
    struct selector_facts facts =
        facts_of("{\"a\":\"x y\",\"b\":\"\",\"c\":\"\\u0031\",\"d\":\"1e3\",\"e\":\"+1\"}");

    assert_true(selector_match(STR("a,b,c,d,e"), &facts));
    assert_true(selector_match(STR("a!=x,b!=x,c notin (1)"), &facts));
    assert_false(selector_match(STR("c>0"), &facts));
    assert_false(selector_match(STR("d>0"), &facts));
    assert_false(selector_match(STR("e>0"), &facts));
    assert_false(selector_match(STR("b>-1"), &facts));
}

/* Decimals, compared with the machine's own numbers. */
static void test_numbers_compare_as_numbers(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 7);
    for (int i = 0; i < 20000; i++) {
        int64_t a = (int64_t)(rnd_next(&rnd) % 4001) - 2000,
                b = (int64_t)(rnd_next(&rnd) % 4001) - 2000;
        char labels[64], text[64];
        struct selector_facts facts;

        snprintf(labels, sizeof labels, "{\"k\":\"%.2f\"}", (double)a / 100);
        facts = facts_of(labels);
        snprintf(text, sizeof text, "k > %.3f", (double)b / 100);
        assert_int_equal(selector_match(str_of(text), &facts), a > b);
        snprintf(text, sizeof text, "k <= %.2f", (double)b / 100);
        assert_int_equal(selector_match(str_of(text), &facts), a <= b);
        arena_reset(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_matches),
        cmocka_unit_test(test_what_is_wrong_and_where),
        cmocka_unit_test(test_equality),
        cmocka_unit_test(test_one_text_for_the_same),
        cmocka_unit_test(test_why_not),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_an_unknown_node_matches_no_term),
        cmocka_unit_test(test_a_label_is_no_name),
        cmocka_unit_test(test_labels_beyond_words),
        cmocka_unit_test(test_numbers_compare_as_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, tidy_up);
}
