/* Needs and keys: what is read and refused, defaults, and that equal demands have equal texts. */
#include "model/demand.h"

#include <string.h>

#include "json_fixture.h"

/* Reads `needs` and then `keys` into one demand; NULL: absent. */
static enum err read_both(const char *needs, const char *keys, struct demand *ret_demand,
                          struct problem *why)
{
    enum err err;

    *ret_demand = demand_plain;
    err = demand_read_needs(needs ? parse(needs) : NULL, &arena, ret_demand, why);
    return err ? err : demand_read_keys(keys ? parse(keys) : NULL, &arena, ret_demand, why);
}

static const struct {
    const char *needs, *keys, *text;
} reads[] = {
    {NULL, NULL, ""},
    {"null", "null", ""},
    {"{}", "[]", ""},
    {"{\"slots\":1,\"cpu\":0,\"gpus\":0}", NULL, ""},
    {"{\"slots\":2}", NULL, "2 0 0  "},
    {"{\"cpu\":1.5}", NULL, "1 0 0 cpu=1500 "},
    {"{\"cpu\":0.0001}", NULL, "1 0 0 cpu=1 "}, /* rounded up */
    {"{\"cpu\":0.1}", NULL, "1 0 0 cpu=100 "},  /* not 101 */
    {"{\"mem_mb\":6000,\"cpu\":2}", NULL, "1 0 0 cpu=2000,mem_mb=6000 "},
    {"{\"gpus\":1,\"vram_mb\":20000}", NULL, "1 1 20000  "},
    {"{\"vram_mb\":7000}", NULL, "1 0 7000  "},
    {"{\"a\":1000000000}", NULL, "1 0 0 a=1000000000 "},
    {NULL, "[\"tenant:acme\"]", "1 0 0  tenant:acme"},
    {NULL, "[\"b\",\"a\"]", "1 0 0  b,a"}, /* in the order given */
    {"{\"slots\":3,\"licences\":1}", "[\"a\",\"b\",\"c\",\"d\"]", "3 0 0 licences=1 a,b,c,d"},
    {"{\"h\":1,\"g\":1,\"f\":1,\"e\":1,\"d\":1,\"c\":1,\"b\":1,\"a\":1}", NULL,
     "1 0 0 a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1 "},
};

static void test_reads(void **state)
{
    for (size_t i = 0; i < COUNT_OF(reads); i++) {
        struct demand demand, again;
        struct buf text = {0}, twice = {0};

        assert_int_equal(read_both(reads[i].needs, reads[i].keys, &demand, NULL), ERR_OK);
        demand_write(&demand, &text);
        assert_str(buf_view(&text), reads[i].text);
        assert_int_equal(demand_is_plain(&demand), text.len == 0);
        assert_true(text.len <= DEMAND_TEXT_MAX);
        assert_true(demand_parse(buf_view(&text), &again));
        demand_write(&again, &twice);
        assert_str(buf_view(&twice), reads[i].text);
        buf_free(&text);
        buf_free(&twice);
    }
}

static const struct {
    const char *needs, *keys, *says;
} refused[] = {
    {"5", NULL, "needs must be an object"},
    {"[]", NULL, "needs must be an object"},
    {"{\"cpu\":-1}", NULL, "needs.cpu must be a number from 0 to 1000000"},
    {"{\"cpu\":1000001}", NULL, "needs.cpu must be a number"},
    {"{\"cpu\":\"2\"}", NULL, "needs.cpu must be a number"},
    {"{\"mem_mb\":1.5}", NULL, "needs.mem_mb must be a whole number"},
    {"{\"mem_mb\":1e300}", NULL, "needs.mem_mb must be a whole number"},
    {"{\"mem_mb\":1000000001}", NULL, "needs.mem_mb must be a whole number"},
    {"{\"slots\":0}", NULL, "needs.slots must be 1 to 1000000, not 0"},
    {"{\"gpus\":17}", NULL, "needs.gpus must be 0 to 16, not 17"},
    {"{\"a:b\":1}", NULL, "A name in needs"},
    {"{\"a=b\":1}", NULL, "A name in needs"},
    {"{\"a,b\":1}", NULL, "A name in needs"},
    {"{\"\":1}", NULL, "A name in needs"},
    {"{\"abcdefghijklmnopqrstuvwxyz0123456\":1}", NULL, "A name in needs"}, /* 33 */
    {"{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1}", NULL,
     "at most 8"},
    {NULL, "\"a\"", "keys must be a list"},
    {NULL, "[\"a\",\"b\",\"c\",\"d\",\"e\"]", "keys must be a list of at most 4"},
    {NULL, "[1]", "A key must be"},
    {NULL, "[\"\"]", "A key must be"},
    {NULL, "[\"a b\"]", "A key must be"},
    {NULL, "[\"a,b\"]", "A key must be"},
    {NULL, "[\"a*\"]", "A key must be"},
    {NULL, "[\"a\",\"b\",\"a\"]", "keys names \"a\" twice"},
};

static void test_refused(void **state)
{
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        struct problem why = {0};
        struct demand demand;

        assert_int_equal(read_both(refused[i].needs, refused[i].keys, &demand, &why),
                         ERR_BAD_FIELD);
        if (!strstr(why.detail, refused[i].says))
            fail_msg("%s: \"%s\"", refused[i].says, why.detail);
    }
}

/* A type's defaults come first; the job's own needs add to, change or remove them. */
static void test_over_defaults(void **state)
{
    struct demand demand = demand_plain;
    struct buf text = {0};

    assert_int_equal(
        demand_read_needs(parse("{\"cpu\":2,\"mem_mb\":4000,\"gpus\":1}"), &arena, &demand, NULL),
        ERR_OK);
    assert_int_equal(demand_read_needs(parse("{\"cpu\":1,\"gpus\":0,\"mem_mb\":0,\"x\":5}"), &arena,
                                       &demand, NULL),
                     ERR_OK);
    demand_write(&demand, &text);
    assert_str(buf_view(&text), "1 0 0 cpu=1000,x=5 ");
    /* Refused needs change nothing. */
    assert_int_equal(demand_read_needs(parse("{\"cpu\":7,\"mem_mb\":-1}"), &arena, &demand, NULL),
                     ERR_BAD_FIELD);
    buf_clear(&text);
    demand_write(&demand, &text);
    assert_str(buf_view(&text), "1 0 0 cpu=1000,x=5 ");
    buf_free(&text);
}

/* Only texts as demand_write writes them are read, so that different texts are different
 * demands. */
static const char *const no_texts[] = {
    " ",
    "1",
    "1 0 0",
    "1 0 0 ",
    "1 0 0  ", /* written as "" */
    "0 0 0  a",
    "01 0 0  a",
    "+1 0 0  a",
    "1 17 0  a",
    "1 -0 0  a",
    "1000001 0 0  a",
    "1 0 1000000001  a",
    "1 0 0 cpu a",
    "1 0 0 cpu= a",
    "1 0 0 cpu=0 a",
    "1 0 0 cpu=01 a",
    "1 0 0 cpu=1, a",
    "1 0 0 ,cpu=1 a",
    "1 0 0 cpu=1,cpu=1 a",
    "1 0 0 mem=1,cpu=1 a",
    "1 0 0 slots=1 a",
    "1 0 0 gpus=1 a",
    "1 0 0 vram_mb=1 a",
    "1 0 0 cpu=1000000001 a",
    "1 0 0 a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1 ",
    "1 0 0  a,",
    "1 0 0  ,a",
    "1 0 0  a,a",
    "1 0 0  a,b,c,d,e",
    "1 0 0  a b",
    "1 0 0  a*",
};

static void test_no_texts(void **state)
{
    struct demand demand;

    for (size_t i = 0; i < COUNT_OF(no_texts); i++)
        if (demand_parse(str_of(no_texts[i]), &demand))
            fail_msg("\"%s\" is read", no_texts[i]);
        else
            assert_true(demand_is_plain(&demand));
}

static void test_needs_as_json(void **state)
{
    static const struct {
        const char *text, *json;
    } rows[] = {{"", "{}"},
                {"1 0 0  a", "{}"},
                {"2 1 500 cpu=1500,mem_mb=6000 ",
                 "{\"slots\":2,\"gpus\":1,\"vram_mb\":500,\"cpu\":1.5,\"mem_mb\":6000}"},
                {"1 0 0 cpu=2000 ", "{\"cpu\":2}"},
                {"1 0 0 cpu=1 ", "{\"cpu\":0.001}"},
                {"1 0 0 cpu=120 ", "{\"cpu\":0.12}"}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buf text = {0}, again = {0};
        struct jsonw w = jsonw_to(&text);
        struct demand demand, read = demand_plain;

        assert_true(demand_parse(str_of(rows[i].text), &demand));
        demand_write_needs(&demand, &w);
        assert_str(buf_view(&text), rows[i].json);
        buf_char(&text, '\0');
        assert_int_equal(demand_read_needs(parse(text.at), &arena, &read, NULL), ERR_OK);
        read.key_count = demand.key_count;
        memcpy(read.keys, demand.keys, sizeof read.keys);
        demand_write(&read, &again);
        assert_str(buf_view(&again), rows[i].text);
        buf_free(&text);
        buf_free(&again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_over_defaults), cmocka_unit_test(test_no_texts),
        cmocka_unit_test(test_needs_as_json),
    };

    return cmocka_run_group_tests_name("model/demand", tests, NULL, tidy_up);
}
