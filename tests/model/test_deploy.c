/* Deployments: getLostAddresses, buildDeploymentCounts, pickCandidateDeployment, claimDeployment
 * with examples. */
#include "model/deploy.h"

#include "../base/unit.h"

static struct arena arena;

static int teardown(void **state)
{
    arena_free(&arena);
    return 0;
}

static struct names names_of(const char *const *list)
{
    struct names names;

    names_init(&names, 16, &arena);
    for (; *list; list++)
        names_add(&names, str_of(*list));
    return names;
}
#define NAMES(...) names_of((const char *const[]){__VA_ARGS__, NULL})

static struct deploy_row row(const char *id, const char *address)
{
    return (struct deploy_row){.id = str_of(id),
                               .address = str_of(address),
                               .type = DEPLOY_DEPLOYMENT,
                               .enabled = true,
                               .updated_at = STR("2025-01-01"),
                               .created_at = STR("2025-01-01")};
}

static void test_identifies_lost_addresses_when_a_node_unit_disappears(void **state)
{
    struct deploy_row rows[] = {row("d1", "addr1"), row("d2", "addr2"), row("d3", "addr3")};
    struct names online = NAMES("addr1", "addr3"), lost;

    deploy_lost(rows, COUNT_OF(rows), &online, &arena, &lost);
    assert_int_equal(lost.count, 1);
    assert_true(str_is(lost.at[0], "addr2"));
}

static void test_counts_deployments_per_address_and_ignores_empty_ones(void **state)
{
    struct deploy_row rows[] = {row("d1", "addr1"), row("d2", "addr1"), row("d3", "addr2"),
                                row("d4", ""), row("d5", "elsewhere")};
    struct names online = NAMES("addr1", "addr2", "addr3");
    int64_t counts[3];

    deploy_counts(rows, COUNT_OF(rows), &online, counts);
    assert_int_equal(counts[0], 2);
    assert_int_equal(counts[1], 1);
    assert_int_equal(counts[2], 0);
}

static void test_candidates_by_updated_at_created_at_id(void **state)
{
    static const struct {
        const char *id, *updated, *created;
    } given[] = {{"d5", "2025-01-02", "2025-01-01"},
                 {"d4", "2025-01-01", "2025-01-02"},
                 {"d2", "2025-01-01", "2025-01-01"},
                 {"d1", "2025-01-01", "2025-01-01"}};
    static const char *const wanted[] = {"d1", "d2", "d4", "d5"};
    struct deploy_row rows[4];
    const struct deploy_row *order[4];
    struct names none = NAMES("nobody");

    for (size_t i = 0; i < 4; i++) {
        rows[i] = row(given[i].id, "");
        rows[i].updated_at = str_of(given[i].updated);
        rows[i].created_at = str_of(given[i].created);
    }
    assert_int_equal(deploy_candidates(rows, 4, &none, DEPLOY_SEED, order), 4);
    for (size_t i = 0; i < 4; i++)
        assert_true(str_is(order[i]->id, wanted[i]));
}

/* What a lost node owns goes first; what an online one owns is never touched. */
static void test_lost_first_then_unassigned_and_nobody_is_robbed(void **state)
{
    struct deploy_row rows[] = {row("free", ""), row("lost", "x"), row("busy", "n1")};
    struct names lost = NAMES("x"), none = NAMES("y");
    const struct deploy_row *order[3];

    assert_int_equal(deploy_candidates(rows, 3, &lost, DEPLOY_HARDENED, order), 1);
    assert_true(str_is(order[0]->id, "lost"));
    assert_int_equal(deploy_candidates(rows, 3, &none, DEPLOY_HARDENED, order), 1);
    assert_true(str_is(order[0]->id, "free"));
    assert_int_equal(deploy_candidates(rows, 3, &lost, DEPLOY_SEED, order), 1);
    assert_true(str_is(order[0]->id, "free"));
}

static void test_claim_is_a_compare_and_set(void **state)
{
    static const struct {
        const char *address, *observed;
        int64_t generation;
        bool lost, enabled;
        enum deploy_type type;
        bool claimed;
    } rows[] = {
        {"", "", 3, false, true, DEPLOY_DEPLOYMENT, true},
        {"", "", 2, false, true, DEPLOY_DEPLOYMENT, false}, /* an old generation */
        {"", "x", 3, true, true, DEPLOY_DEPLOYMENT, false}, /* not its owner any more */
        {"x", "", 3, false, true, DEPLOY_DEPLOYMENT, false},
        {"x", "x", 3, true, true, DEPLOY_DEPLOYMENT, true},
        {"x", "x", 3, false, true, DEPLOY_DEPLOYMENT, false}, /* it is online */
        {"", "", 3, false, false, DEPLOY_DEPLOYMENT, false},
        {"", "", 3, false, true, DEPLOY_DAEMON, false},
        {"", "", 3, false, true, DEPLOY_OTHER, false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct deploy_row one = row("d", rows[i].address);
        struct deploy_claim claim = {.by = STR("me"),
                                     .observed = str_of(rows[i].observed),
                                     .generation = rows[i].generation,
                                     .owner_lost = rows[i].lost};

        one.generation = 3;
        one.enabled = rows[i].enabled;
        one.type = rows[i].type;
        assert_int_equal(deploy_claim(&one, &claim), rows[i].claimed);
        assert_int_equal(one.generation, rows[i].claimed ? 4 : 3);
        assert_true(str_is(one.address, rows[i].claimed ? "me" : rows[i].address));
    }
}

/* The second of two who saw the same is too late. */
static void test_one_claim_and_only_one(void **state)
{
    struct deploy_row one = row("d", "");
    struct deploy_claim a = {.by = STR("a"), .observed = STR("")};
    struct deploy_claim b = {.by = STR("b"), .observed = STR("")};

    assert_true(deploy_claim(&one, &a));
    assert_false(deploy_claim(&one, &b));
    assert_false(deploy_claim(&one, &a));
    assert_true(str_is(one.address, "a"));
}

static void test_release_is_idempotent(void **state)
{
    struct deploy_row one = row("d", "x");
    struct names lost = NAMES("x");

    assert_true(deploy_release(&one, &lost));
    assert_false(deploy_release(&one, &lost));
    assert_int_equal(one.address.len, 0);
    assert_int_equal(one.generation, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identifies_lost_addresses_when_a_node_unit_disappears),
        cmocka_unit_test(test_counts_deployments_per_address_and_ignores_empty_ones),
        cmocka_unit_test(test_candidates_by_updated_at_created_at_id),
        cmocka_unit_test(test_lost_first_then_unassigned_and_nobody_is_robbed),
        cmocka_unit_test(test_claim_is_a_compare_and_set),
        cmocka_unit_test(test_one_claim_and_only_one),
        cmocka_unit_test(test_release_is_idempotent),
    };

    return cmocka_run_group_tests_name("deploy", tests, NULL, teardown);
}
