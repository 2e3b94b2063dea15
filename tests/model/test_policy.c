/* Samples are distinct, complete and even; ranking is stable and follows the policy. */
#include "base/clock.h"

#include <math.h>
#include <string.h>

#include "../unit.h"
#include "model/node.h"
#include "model/policy.h"

static void test_sample_sizes(void **state)
{
    static const struct {
        uint32_t n, k, size;
    } rows[] = {
        {0, 0, 0},       {0, 20, 0},       {1, 20, 1},           {5, 0, 0},    {2, 1, 1},
        {20, 20, 20},    {21, 20, 20},     {39, 20, 20},         {40, 20, 20}, {41, 20, 20},
        {127, 64, 64},   {128, 64, 64},    {129, 64, 64},        {63, 64, 63}, {200, 65, 65},
        {500, 900, 500}, {100000, 64, 64}, {UINT32_MAX, 64, 64},
    };
    uint32_t out[512];
    struct rnd rnd;

    rnd_seed(&rnd, 5);
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int round = 0; round < 100; round++) {
            size_t size = policy_sample(rows[i].n, rows[i].k, &rnd, out);

            assert_int_equal(size, rows[i].size);
            for (size_t a = 0; a < size; a++) {
                assert_true(out[a] < rows[i].n);
                for (size_t b = 0; b < a; b++)
                    assert_int_not_equal(out[a], out[b]);
            }
        }
}

static void test_sample_writes_no_further_than_asked(void **state)
{
    uint32_t out[65];
    struct rnd rnd;

    rnd_seed(&rnd, 6);
    for (uint32_t n = 0; n < 300; n++)
        for (uint32_t k = 0; k <= 64; k += 8) {
            memset(out, 0xee, sizeof out);
            size_t size = policy_sample(n, k, &rnd, out);
            assert_int_equal(out[size], 0xeeeeeeeeu);
        }
}

/* Squared deviations from the expected count, normalised: about 0 if draws are even. */
static double unevenness(const uint32_t *seen, uint32_t n, double expected, double variance)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (seen[i] - expected) * (seen[i] - expected) / variance;
    return (sum - n) / sqrt(2.0 * n);
}

/* Every number is equally often in a sample, and equally often first. */
static void test_sample_is_even(void **state)
{
    static const struct {
        uint32_t n, k;
    } rows[] = {{10, 3}, {50, 20}, {50, 25}, {50, 26}, {50, 49}, {50, 50}, {100, 20}, {700, 20}};
    enum { ROUNDS = 40000 };
    struct rnd rnd;

    rnd_seed(&rnd, 7);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t n = rows[i].n, k = rows[i].k;
        uint32_t seen[700] = {0}, first[700] = {0}, out[64];
        double part = (double)k / n;

        for (int round = 0; round < ROUNDS; round++) {
            policy_sample(n, k, &rnd, out);
            first[out[0]]++;
            for (uint32_t s = 0; s < k; s++)
                seen[out[s]]++;
        }
        if (k < n)
            assert_true(unevenness(seen, n, ROUNDS * part, ROUNDS * part * (1 - part)) < 4);
        assert_true(unevenness(first, n, (double)ROUNDS / n, (double)ROUNDS / n) < 4);
    }
}

static void test_same_seed_same_sample(void **state)
{
    uint32_t a[20], b[20];
    struct rnd one, two;

    rnd_seed(&one, 8);
    rnd_seed(&two, 8);
    policy_sample(1000, 20, &one, a);
    policy_sample(1000, 20, &two, b);
    assert_memory_equal(a, b, sizeof a);
}

static void test_filter_rows(void **state)
{
    static const struct {
        enum node_health health;
        int64_t heartbeat_ms, stale_ms;
        enum policy_skip skip;
    } rows[] = {
        {NODE_READY, 20000, 15000, POLICY_KEEP},
        {NODE_READY, 5000, 15000, POLICY_KEEP},
        {NODE_READY, 4999, 15000, POLICY_SKIP_STALE},
        {NODE_READY, 4999, POLICY_STALE_OFF, POLICY_KEEP},
        {NODE_READY, INT64_MIN, 15000, POLICY_SKIP_STALE},
        {NODE_READY, INT64_MIN, POLICY_STALE_OFF, POLICY_KEEP},
        {NODE_READY, INT64_MAX, 15000, POLICY_KEEP},
        {NODE_HEALTH_NONE, 20000, 15000, POLICY_SKIP_HEALTH},
        {NODE_REGISTERING, 20000, 15000, POLICY_SKIP_HEALTH},
        {NODE_DEGRADED, 20000, 15000, POLICY_SKIP_HEALTH},
        {NODE_DRAINING, 20000, 15000, POLICY_SKIP_HEALTH},
        {NODE_OFFLINE, 1, 15000, POLICY_SKIP_HEALTH},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct policy_candidate candidate = {.health = rows[i].health,
                                             .heartbeat_ms = rows[i].heartbeat_ms};
        struct policy_rules rules = {
            .now_ms = 20000, .stale_ms = rows[i].stale_ms, .heartbeat_interval_ms = 5000};

        assert_int_equal(policy_filter(&candidate, &rules), rows[i].skip);
    }
}

static void test_table(void **state)
{
    size_t count = 0;

    for (; policy_at(count); count++) {
        assert_string_equal(policy_name(count), policy_at(count)->name);
        assert_non_null(policy_at(count)->help);
        assert_non_null(policy_at(count)->key);
        for (size_t i = 0; i < count; i++)
            assert_string_not_equal(policy_at(i)->name, policy_at(count)->name);
    }
    assert_true(count > 0);
    assert_null(policy_name(count));
}

static const struct policy *policy_named(const char *name)
{
    size_t i = 0;

    while (strcmp(policy_at(i)->name, name) != 0)
        i++;
    return policy_at(i);
}

/* Pairs of candidates in their order. Every policy has a row; one that ranks has a row that it
 * swaps. */
static void test_order_rows(void **state)
{
    static const struct {
        const char *policy;
        int64_t interval_ms;
        struct policy_candidate first, second; /* passed in the opposite order */
        bool swapped;                          /* false: equal, so the order passed stays */
    } rows[] = {
        {"least_loaded", 1, {.load = 0}, {.load = 1}, true},
        {"least_loaded", 1, {.heartbeat_ms = 9}, {.heartbeat_ms = 8}, true},
        {"least_loaded", 5000, {.heartbeat_ms = 9}, {.heartbeat_ms = 8}, false},
        {"least_loaded", 5000, {.heartbeat_ms = 5001}, {.heartbeat_ms = 5000}, true},
        {"least_loaded",
         5000,
         {.heartbeat_ms = 10001},
         {.heartbeat_ms = 10000},
         false}, /* future */
        {"least_loaded", 1, {.heartbeat_ms = 10001}, {.heartbeat_ms = 10000}, true},
        {"least_loaded",
         5000,
         {.load = 0, .heartbeat_ms = 0},
         {.load = 1, .heartbeat_ms = 10000},
         true},
        {"least_loaded", 5000, {.score = 100}, {.score = 1}, false},
        {"health", 5000, {.score = 51}, {.score = 50}, true},
        {"health", 5000, {.score = 51, .load = 9}, {.score = 50}, true},
        {"health", 5000, {.score = 50, .load = 1}, {.score = 50, .load = 2}, true},
        {"health", 5000, {.heartbeat_ms = 10000}, {.heartbeat_ms = 1}, false},
        {"best_fit", 5000, {.left_over = 1}, {.left_over = 2}, true},
        {"best_fit", 5000, {.left_over = 1, .load = 9}, {.left_over = 2}, true},
        {"best_fit", 5000, {.left_over = 1, .load = 1}, {.left_over = 1, .load = 2}, true},
        {"best_fit", 5000, {.heartbeat_ms = 5001}, {.heartbeat_ms = 5000}, true},
        {"best_fit", 5000, {.score = 100}, {.score = 1}, false},
        {"random", 5000, {.load = 0, .score = 100}, {.load = 9, .score = 1}, false},
    };

    for (size_t p = 0; policy_at(p); p++) {
        bool there = false, swapped = false;

        for (size_t i = 0; i < COUNT_OF(rows); i++)
            if (strcmp(rows[i].policy, policy_at(p)->name) == 0) {
                there = true;
                swapped = swapped || rows[i].swapped;
            }
        if (!there || swapped != (policy_at(p)->compare != NULL))
            fail_msg("no row says how %s ranks", policy_at(p)->name);
    }
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct policy_rules rules = {.now_ms = 10000,
                                     .stale_ms = POLICY_STALE_OFF,
                                     .heartbeat_interval_ms = rows[i].interval_ms};
        struct policy_candidate pair[2] = {rows[i].second, rows[i].first};
        int marks[2];

        pair[0].health = pair[1].health = NODE_READY;
        pair[0].node = &marks[0];
        pair[1].node = &marks[1];
        assert_int_equal(policy_rank(policy_named(rows[i].policy), pair, 2, &rules), 2);
        assert_ptr_equal(pair[0].node, &marks[rows[i].swapped]);
        assert_ptr_equal(pair[1].node, &marks[!rows[i].swapped]);
    }
}

/* Random candidates: the result is exactly what the filter keeps, sorted, with equal ones in the
 * order given. */
static void test_rank_is_a_stable_sort_of_what_is_kept(void **state)
{
    enum { COUNT = 64, ROUNDS = 6000 };
    struct policy_rules rules = {.now_ms = 30000, .stale_ms = 15000, .heartbeat_interval_ms = 5000};
    static char places[COUNT];
    size_t policies = 0;
    struct rnd rnd;

    while (policy_at(policies))
        policies++;
    rnd_seed(&rnd, 9);
    for (size_t round = 0; round < ROUNDS; round++) {
        struct policy_candidate candidates[COUNT];
        size_t count = rnd_below(&rnd, COUNT + 1), kept = 0, left;
        const struct policy *policy = policy_at(round % policies);

        for (size_t i = 0; i < count; i++) {
            candidates[i] = (struct policy_candidate){
                .node = &places[i],
                .health = rnd_below(&rnd, 4) ? NODE_READY : NODE_DEGRADED,
                .load = (int32_t)rnd_below(&rnd, 3),
                .score = (int32_t)rnd_below(&rnd, 3),
                .left_over = (int32_t)rnd_below(&rnd, 3),
                .heartbeat_ms = 10000 + rnd_below(&rnd, 20000),
            };
            kept += policy_filter(&candidates[i], &rules) == POLICY_KEEP;
        }
        left = policy_rank(policy, candidates, count, &rules);
        assert_int_equal(left, kept);
        for (size_t i = 1; i < left; i++) {
            int order = policy->compare ? policy->compare(&candidates[i - 1], &candidates[i]) : 0;

            assert_true(order <= 0);
            if (order == 0)
                assert_true((char *)candidates[i - 1].node < (char *)candidates[i].node);
        }
    }
}

/* Sampled and ranked among idle nodes, each is first equally often. */
static void test_equal_idle_nodes_share_evenly(void **state)
{
    enum { NODES = 30, ROUNDS = 30000 };
    struct policy_rules rules = {.now_ms = 30000, .stale_ms = 15000, .heartbeat_interval_ms = 5000};
    static char nodes[NODES];
    uint32_t first[NODES] = {0}, sample[20];
    struct rnd rnd;

    rnd_seed(&rnd, 10);
    for (int round = 0; round < ROUNDS; round++) {
        struct policy_candidate candidates[20];
        size_t count = policy_sample(NODES, 20, &rnd, sample);

        for (size_t i = 0; i < count; i++)
            candidates[i] = (struct policy_candidate){.node = &nodes[sample[i]],
                                                      .health = NODE_READY,
                                                      .heartbeat_ms = 30000 - sample[i] * 100};
        assert_int_equal(policy_rank(policy_at(1), candidates, count, &rules), 20);
        first[(char *)candidates[0].node - nodes]++;
    }
    assert_true(unevenness(first, NODES, ROUNDS / (double)NODES, ROUNDS / (double)NODES) < 4);
}

/* For a job with a preference the order is: idle and warm, idle and cold, busy and warm, busy and
 * cold, full. A node is busy if it is more than half fuller than the others. */
static void test_warm_ones_first(void **state)
{
    static const struct {
        const char *policy;
        struct policy_candidate in[4];
        const char *order;
    } rows[] = {
        /* All idle: warm first, with more of the names first. */
        {"least_loaded", {{.max = 4}, {.max = 4, .warm = 1}, {.max = 4, .warm = 2}}, "cba"},
        {"random", {{.max = 4}, {.max = 4, .warm = 1}}, "ba"},
        {"health", {{.max = 4, .score = 100}, {.max = 4, .score = 1, .warm = 1}}, "ba"},
        /* The warm one runs a job, the others none. */
        {"random", {{.max = 4, .load = 1, .warm = 1}, {.max = 4}, {.max = 4}}, "bca"},
        /* Exactly half fuller than the others is not busy yet. */
        {"least_loaded",
         {{.max = 4, .load = 2}, {.max = 4, .load = 3, .warm = 1}, {.max = 4, .load = 2}},
         "bac"},
        {"least_loaded",
         {{.max = 9, .load = 2}, {.max = 9, .load = 4, .warm = 1}, {.max = 9, .load = 2}},
         "acb"},
        /* Slots are compared as shares: 4 of 16 are not fuller than 1 of 4. */
        {"least_loaded", {{.max = 4, .load = 1}, {.max = 16, .load = 4, .warm = 1}}, "ba"},
        /* Busy and warm before busy and cold; full ones are last, warm or not. */
        {"random",
         {{.max = 4, .load = 4, .warm = 1},
          {.max = 8, .load = 7},
          {.max = 8, .load = 7, .warm = 1},
          {.max = 8}},
         "dcba"},
        /* Full nodes do not count among the others. */
        {"random", {{.max = 4, .load = 4}, {.max = 4, .load = 2, .warm = 1}, {.max = 4}}, "cba"},
        /* Withheld slots do not count. */
        {"random", {{.max = 4, .load = 2, .withheld = 2, .warm = 1}, {.max = 4, .load = 2}}, "ba"},
        /* The position in a route comes first. */
        {"random",
         {{.max = 4, .route_position = 1, .warm = 1}, {.max = 4, .route_position = 0}},
         "ba"},
        {"random",
         {{.max = 4, .route_position = 1}, {.max = 4, .load = 1, .warm = 1}, {.max = 4, .load = 1}},
         "bca"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct policy_rules rules = {
            .stale_ms = POLICY_STALE_OFF, .heartbeat_interval_ms = 5000, .prefers = true};
        struct policy_candidate list[4];
        static char names[] = "abcd";
        size_t count = strlen(rows[i].order);

        memcpy(list, rows[i].in, sizeof list);
        for (size_t n = 0; n < count; n++) {
            list[n].node = &names[n];
            list[n].health = NODE_READY;
        }
        assert_int_equal(policy_rank(policy_named(rows[i].policy), list, count, &rules), count);
        for (size_t n = 0; n < count; n++)
            assert_int_equal(*(char *)list[n].node, rows[i].order[n]);
    }
}

/* --- outcome --- */

/* The order in which a dispatch decides its answer. */

static void test_first_phase(void **state)
{
    static const struct {
        struct outcome_start start;
        enum outcome_phase phase;
        enum err err;
    } rows[] = {
        /* store, preferred: given, in the pool; strict; members */
        {{true, false, false, false, 3}, OUTCOME_WALK, ERR_OK},
        {{true, false, false, true, 1}, OUTCOME_WALK, ERR_OK},
        {{true, true, true, false, 1}, OUTCOME_PREFERRED, ERR_OK},
        {{true, true, true, true, 5}, OUTCOME_PREFERRED, ERR_OK},
        {{true, false, false, false, 0}, OUTCOME_REFUSED, ERR_NO_CAPABLE_NODE},
        {{true, true, false, false, 3}, OUTCOME_REFUSED, ERR_PREFERRED_NOT_CAPABLE},
        {{true, true, false, true, 3}, OUTCOME_REFUSED, ERR_PREFERRED_NOT_CAPABLE},
        {{true, true, false, false, 0}, OUTCOME_REFUSED, ERR_PREFERRED_NOT_CAPABLE},
        {{false, false, false, false, 3}, OUTCOME_REFUSED, ERR_STORE_DOWN},
        {{false, true, false, true, 0}, OUTCOME_REFUSED, ERR_STORE_DOWN},
        {{false, true, true, false, 2}, OUTCOME_REFUSED, ERR_STORE_DOWN},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct outcome outcome;

        outcome_begin(&outcome, &rows[i].start);
        assert_int_equal(outcome.phase, rows[i].phase);
        assert_int_equal(outcome.err, rows[i].err);
    }
}

static void test_preferred_failed(void **state)
{
    static const struct {
        bool strict;
        size_t others;
        enum outcome_phase phase;
        enum err err;
    } rows[] = {
        {false, 1, OUTCOME_WALK, ERR_OK},
        {false, 0, OUTCOME_REFUSED, ERR_ALL_FULL},
        {true, 1, OUTCOME_REFUSED, ERR_PREFERRED_UNAVAILABLE},
        {true, 0, OUTCOME_REFUSED, ERR_PREFERRED_UNAVAILABLE},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct outcome_start start = {.store_up = true,
                                      .preferred_given = true,
                                      .preferred_in_pool = true,
                                      .strict = rows[i].strict,
                                      .pool_count = rows[i].others + 1};
        struct outcome outcome;

        outcome_begin(&outcome, &start);
        outcome_preferred_failed(&outcome, rows[i].others);
        assert_int_equal(outcome.phase, rows[i].phase);
        assert_int_equal(outcome.err, rows[i].err);
    }
}

static void test_ends(void **state)
{
    struct outcome_start start = {.store_up = true, .pool_count = 2};
    struct outcome outcome;

    outcome_begin(&outcome, &start);
    outcome_placed(&outcome);
    assert_int_equal(outcome.phase, OUTCOME_PLACED);
    assert_int_equal(outcome.err, ERR_OK);

    outcome_begin(&outcome, &start);
    outcome_exhausted(&outcome);
    assert_int_equal(outcome.phase, OUTCOME_REFUSED);
    assert_int_equal(outcome.err, ERR_ALL_FULL);

    start.preferred_given = start.preferred_in_pool = true;
    outcome_begin(&outcome, &start);
    outcome_placed(&outcome);
    assert_int_equal(outcome.phase, OUTCOME_PLACED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_sizes),
        cmocka_unit_test(test_sample_writes_no_further_than_asked),
        cmocka_unit_test(test_sample_is_even),
        cmocka_unit_test(test_same_seed_same_sample),
        cmocka_unit_test(test_filter_rows),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_order_rows),
        cmocka_unit_test(test_rank_is_a_stable_sort_of_what_is_kept),
        cmocka_unit_test(test_equal_idle_nodes_share_evenly),
        cmocka_unit_test(test_warm_ones_first),
        cmocka_unit_test(test_first_phase),
        cmocka_unit_test(test_preferred_failed),
        cmocka_unit_test(test_ends),
    };

    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
