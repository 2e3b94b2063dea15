/* A node's resources: reading and measuring them, what fits, and that everything taken comes
 * back. */
#include "model/resources.h"

#include <string.h>

#include "base/clock.h"
#include "json_fixture.h"

static struct resources of(const char *text)
{
    struct resources resources;

    assert_true(resources_parse(str_of(text), &resources));
    return resources;
}

static struct demand demand_of(const char *text)
{
    struct demand demand;

    assert_true(demand_parse(str_of(text), &demand));
    return demand;
}

static void assert_text(const struct resources *resources, const char *want)
{
    struct buf text = {0};

    resources_write(resources, &text);
    assert_str(buf_view(&text), want);
    buf_free(&text);
}

static const struct {
    const char *json, *text;
} reads[] = {
    {"null", ""},
    {"{}", ""},
    {"{\"mem_mb\":15000,\"cpu\":8}", "cpu=8000/8000,mem_mb=15000/15000 "},
    {"{\"licences\":0}", "licences=0/0 "},
    {"{\"gpus\":[]}", ""},
    {"{\"gpus\":[{\"id\":1,\"vram_mb\":8000},{\"id\":0,\"model\":\"L4\",\"vram_mb\":23034}]}",
     " 0=23034/23034,1=8000/8000"},
    {"{\"x\":1,\"gpus\":[{\"id\":63,\"vram_mb\":1}]}", "x=1/1 63=1/1"},
};

static const struct {
    const char *json, *says;
} refused[] = {
    {"[]", "resources must be an object"},
    {"{\"cpu\":\"8\"}", "resources.cpu must be a number"},
    {"{\"mem_mb\":-1}", "resources.mem_mb must be a number"},
    {"{\"slots\":1}", "A name in resources"},
    {"{\"vram_mb\":1}", "A name in resources"},
    {"{\"a:b\":1}", "A name in resources"},
    {"{\"gpus\":{}}", "resources.gpus must be a list"},
    {"{\"gpus\":[{\"id\":64,\"vram_mb\":1}]}", "resources.gpus must be a list"},
    {"{\"gpus\":[{\"id\":-1,\"vram_mb\":1}]}", "resources.gpus must be a list"},
    {"{\"gpus\":[{\"id\":0}]}", "resources.gpus must be a list"},
    {"{\"gpus\":[{\"id\":0,\"vram_mb\":1},{\"id\":0,\"vram_mb\":1}]}",
     "resources.gpus must be a list"},
    {"{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,\"k\":1,"
     "\"l\":1,\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"q\":1}",
     "at most 16"},
};

static void test_reads(void **state)
{
    for (size_t i = 0; i < COUNT_OF(reads); i++) {
        struct resources resources;

        assert_int_equal(resources_read(parse(reads[i].json), &arena, &resources, NULL), ERR_OK);
        assert_text(&resources, reads[i].text);
        assert_true(resources_parse(str_of(reads[i].text), &resources));
        assert_text(&resources, reads[i].text);
    }
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        struct problem why = {0};
        struct resources resources;

        assert_int_equal(resources_read(parse(refused[i].json), &arena, &resources, &why),
                         ERR_BAD_FIELD);
        if (!strstr(why.detail, refused[i].says))
            fail_msg("%s: \"%s\"", refused[i].says, why.detail);
    }
}

static const char *const no_texts[] = {
    " ",
    "cpu=1/1",
    "cpu=1/1, ",
    "cpu=1/2 ",
    "cpu=1 ",
    "cpu=-1/-1 ",
    "b=1/1,a=1/1 ",
    "a=1/1,a=1/1 ",
    "gpus=1/1 ",
    " 64=1/1",
    " 1=1/1,0=1/1",
    " 0=1/1,",
    "a=1000000001/1 ",
    "a=01/1 ",
    "a=1/1 0=1/1 ",
};

static void test_no_texts(void **state)
{
    struct resources resources;

    for (size_t i = 0; i < COUNT_OF(no_texts); i++)
        if (resources_parse(str_of(no_texts[i]), &resources))
            fail_msg("\"%s\" is read", no_texts[i]);
}

/* A heartbeat: usable is what is free plus what berth's own work uses, never more than declared. */
static const struct {
    const char *before, *free, *ours, *after;
} beats[] = {
    {"mem_mb=8000/3000 ", "null", "null", "mem_mb=8000/8000 "}, /* no longer reported */
    {"mem_mb=8000/8000 ", "{\"mem_mb\":5000}", "null", "mem_mb=8000/5000 "},
    {"mem_mb=8000/8000 ", "{\"mem_mb\":5000}", "{\"mem_mb\":2000}", "mem_mb=8000/7000 "},
    {"mem_mb=8000/8000 ", "{\"mem_mb\":5000}", "{\"mem_mb\":9000}", "mem_mb=8000/8000 "},
    {"mem_mb=8000/8000 ", "{\"mem_mb\":9000}", "null", "mem_mb=8000/8000 "},
    {"a=5/5,mem_mb=8000/1 ", "{\"other\":1,\"mem_mb\":2}", "{\"a\":3}", "a=5/5,mem_mb=8000/2 "},
    {"cpu=8000/8000 ", "{\"cpu\":3.5}", "{\"cpu\":0.5}", "cpu=8000/4000 "},
    {" 0=20000/20000,2=8000/8000",
     "{\"gpus\":[{\"id\":2,\"vram_mb\":100},{\"id\":7,\"vram_mb\":1}]}",
     "{\"gpus\":[{\"id\":2,\"vram_mb\":50}]}", " 0=20000/20000,2=8000/150"},
    {" 0=1000000000/1", "{\"gpus\":[{\"id\":0,\"vram_mb\":1000000000}]}",
     "{\"gpus\":[{\"id\":0,\"vram_mb\":1000000000},{\"id\":0,\"vram_mb\":1000000000}]}",
     " 0=1000000000/1000000000"}, /* a duplicate */
};

static void test_heartbeats(void **state)
{
    for (size_t i = 0; i < COUNT_OF(beats); i++) {
        struct resources resources = of(beats[i].before);

        assert_int_equal(resources_read_free(parse(beats[i].free), parse(beats[i].ours), &arena,
                                             &resources, NULL),
                         ERR_OK);
        assert_text(&resources, beats[i].after);
    }
    struct resources kept = of("a=5/4 ");
    assert_int_equal(resources_read_free(parse("{\"a\":-1}"), NULL, &arena, &kept, NULL),
                     ERR_BAD_FIELD);
    assert_int_equal(resources_read_free(parse("[]"), NULL, &arena, &kept, NULL), ERR_BAD_FIELD);
    assert_text(&kept, "a=5/4 ");
}

/* Rounded down to steps of a 64th: noise is no change, a fall always is. */
static void test_settle(void **state)
{
    static const struct {
        const char *before, *now, *after;
    } rows[] = {
        {"m=6400/6400 ", "m=6400/6399 ", "m=6400/6300 "},
        {"m=6400/6300 ", "m=6400/6399 ", "m=6400/6300 "},
        {"m=6400/6300 ", "m=6400/6400 ", "m=6400/6400 "},
        {"m=6400/3000 ", "m=6400/3100 ", "m=6400/3000 "},
        {"m=6400/3000 ", "m=6400/3101 ", "m=6400/3100 "},
        {"m=6400/3000 ", "m=6400/2999 ", "m=6400/2900 "},
        {"n=6400/3000 ", "m=6400/3099 ", "m=6400/3000 "}, /* another resource */
        {"m=3/3 ", "m=3/2 ", "m=3/2 "},
        {" 0=6400/3000", " 0=6400/2999", " 0=6400/2900"},
        {" 1=6400/3000", " 0=6400/3099", " 0=6400/3000"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct resources before = of(rows[i].before), now = of(rows[i].now);

        resources_settle(&now, &before);
        assert_text(&now, rows[i].after);
    }
}

#define NODE "cpu=4000/4000,licences=2/1,mem_mb=8000/8000 0=20000/20000,1=24000/24000,5=16000/9000"

/* What fits an empty node, on which GPUs, or the first thing that is short. */
static const struct {
    const char *demand;
    uint64_t gpus;
    const char *lack;
} fits[] = {
    {"", 0, NULL},
    {"99 0 0  a", 0, NULL}, /* slots are checked with the lease, keys with limits */
    {"1 0 0 cpu=4000,mem_mb=8000 ", 0, NULL},
    {"1 0 0 cpu=4001 ", 0, "cpu: 4 of 4 free, needs 4.001"},
    {"1 0 0 licences=2 ", 0, "licences: 1 of 2 free, needs 2"},
    {"1 0 0 fans=1 ", 0, "it has no fans"},
    {"1 0 0 aaa=1 ", 0, "it has no aaa"},
    {"1 0 0 zzz=1 ", 0, "it has no zzz"},
    {"1 0 5000  ", 1 << 5, NULL}, /* the GPU with the least left */
    {"1 0 9001  ", 1 << 0, NULL},
    {"1 0 20001  ", 1 << 1, NULL},
    {"1 0 24001  ", 0, "GPU 1: 23.4 of 23.4 GB free, needs 23.4 GB"},
    {"1 1 0  ", 1 << 0, NULL}, /* 5 is smaller, but partly used by others */
    {"1 1 9000  ", 1 << 5, NULL},
    {"1 2 0  ", 1 << 0 | 1 << 1, NULL},
    {"1 3 0  ", 0, "gpus: 2 of 3 free, needs 3"},
    {"1 3 9000  ", 1 << 0 | 1 << 1 | 1 << 5, NULL},
    {"1 1 24001  ", 0, "gpus: 0 of 3 free, needs 1"},
};

static void test_fits(void **state)
{
    struct resources node = of(NODE);
    struct resources_left left;

    resources_left(&node, &left);
    for (size_t i = 0; i < COUNT_OF(fits); i++) {
        struct demand demand = demand_of(fits[i].demand);
        struct resources_short lack = {0};
        struct buf text = {0};
        uint64_t gpus = 0;

        assert_int_equal(resources_fit(&node, &demand, &gpus, &lack), !fits[i].lack);
        assert_int_equal(resources_left_fit(&node, &left, &demand, NULL), !fits[i].lack);
        if (fits[i].lack) {
            resources_short_text(&lack, &text);
            assert_str(buf_view(&text), fits[i].lack);
            buf_free(&text);
        } else if (gpus != fits[i].gpus) {
            fail_msg("%s: GPUs %llx", fits[i].demand, (unsigned long long)gpus);
        }
    }
    struct resources none = {0};
    struct demand demand = demand_of("1 0 7000  ");
    struct resources_short lack;
    struct buf text = {0};
    uint64_t gpus;

    assert_false(resources_fit(&none, &demand, &gpus, &lack));
    resources_short_text(&lack, &text);
    assert_str(buf_view(&text), "it has no GPU");
    buf_free(&text);
}

/* A shared GPU cannot be had whole, and the other way round. */
static void test_whole_and_shared(void **state)
{
    struct resources node = of(" 0=8000/8000,1=8000/8000");
    struct demand share = demand_of("1 0 3000  "), whole = demand_of("1 1 0  ");
    uint64_t first, second, third;

    assert_true(resources_fit(&node, &share, &first, NULL));
    resources_take(&node, &share, first);
    assert_true(resources_fit(&node, &share, &second, NULL));
    assert_true(first == 1 && second == 1); /* both on one GPU */
    resources_take(&node, &share, second);
    assert_true(resources_fit(&node, &whole, &third, NULL));
    assert_true(third == 2);
    resources_take(&node, &whole, third);
    assert_false(resources_fit(&node, &share, &third, NULL));
    assert_false(resources_fit(&node, &whole, &third, NULL));
    resources_give(&node, &whole, 2);
    assert_true(resources_fit(&node, &share, &third, NULL));
    assert_true(third == 2);
    resources_give(&node, &share, first);
    resources_give(&node, &share, second);
    assert_true(resources_fit(&node, &whole, &third, NULL));
    assert_true(third == 1);
}

/* Used amounts stay when amounts change, and are counted again when names or GPUs change. */
static void test_update(void **state)
{
    struct resources node = of("a=10/10,b=5/5 0=100/100");
    struct resources now = of("a=20/7,b=5/5 0=100/60");
    struct resources other = of("a=20/7,c=5/5 0=100/60");
    struct resources larger = of("a=20/7,b=5/5 0=200/60");
    struct demand demand = demand_of("1 0 50 a=8 ");
    struct resources_left left;

    resources_take(&node, &demand, 1);
    assert_true(resources_update(&node, &now));
    resources_left(&node, &left);
    assert_int_equal(left.left[0], -1);
    assert_int_equal(left.gpu_left[0], 10);
    assert_int_equal(left.shared, 1);
    assert_false(resources_update(&node, &larger));
    assert_int_equal(node.items[0].used, 0);
    resources_take(&node, &demand, 1);
    assert_false(resources_update(&node, &other));
    assert_int_equal(node.items[0].used, 0);
    assert_int_equal(node.gpus[0].used_mb, 0);
}

/* After any takes and returns, what is used is what is taken, and never more than there is. */
static void test_taken_is_given_back(void **state)
{
    static const char *const demands[] = {"1 0 0 cpu=300 ",    "1 0 0 cpu=100,mem_mb=900 ",
                                          "1 0 2500  ",        "1 1 0  ",
                                          "1 2 0 licences=1 ", "1 1 12000 cpu=1 "};
    enum { OUT = 40, STEPS = 20000 };
    struct {
        struct demand demand;
        uint64_t gpus;
        bool out;
    } leases[OUT] = {0};
    struct resources node =
        of("cpu=2000/2000,licences=2/2,mem_mb=4000/4000 0=8000/8000,9=16000/16000");
    struct rnd rnd;
    int taken = 0;

    rnd_seed(&rnd, 3);
    for (int step = 0; step < STEPS; step++) {
        size_t at = rnd_below(&rnd, OUT);
        struct resources_left left;

        if (leases[at].out) {
            resources_give(&node, &leases[at].demand, leases[at].gpus);
            leases[at].out = false;
            continue;
        }
        leases[at].demand = demand_of(demands[rnd_below(&rnd, COUNT_OF(demands))]);
        leases[at].out = resources_fit(&node, &leases[at].demand, &leases[at].gpus, NULL);
        if (!leases[at].out)
            continue;
        resources_take(&node, &leases[at].demand, leases[at].gpus);
        taken++;
        resources_left(&node, &left);
        for (int i = 0; i < left.count; i++)
            assert_true(left.left[i] >= 0);
        for (int i = 0; i < left.gpu_count; i++)
            assert_true(left.gpu_left[i] >= 0 || left.gpu_left[i] == RESOURCES_LEFT_WHOLE);
    }
    assert_true(taken > STEPS / 20);
    for (size_t i = 0; i < OUT; i++)
        if (leases[i].out)
            resources_give(&node, &leases[i].demand, leases[i].gpus);
    for (size_t i = 0; i < node.count; i++)
        assert_int_equal(node.items[i].used, 0);
    for (size_t i = 0; i < node.gpu_count; i++)
        assert_true(node.gpus[i].used_mb == 0 && !node.gpus[i].whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),      cmocka_unit_test(test_no_texts),
        cmocka_unit_test(test_heartbeats), cmocka_unit_test(test_settle),
        cmocka_unit_test(test_fits),       cmocka_unit_test(test_whole_and_shared),
        cmocka_unit_test(test_update),     cmocka_unit_test(test_taken_is_given_back),
    };

    return cmocka_run_group_tests_name("model/resources", tests, NULL, tidy_up);
}
