/* Types to servers, in the order of the table. */
#include "model/routing.h"

#include "../base/unit.h"

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

static void test_pick(void **state)
{
    static const struct {
        const struct routing *routing;
        const char *type;
        int64_t us, hk;
        bool us_online, hk_online;
        const char *picked;
    } rows[] = {
        {&seed, "dev", 1, 1, true, true, "us"},
        {&seed, "dev", 0, 1, true, true, NULL}, /* never on hk */
        {&seed, "talk", 5, 1, true, true, "hk"},
        {&seed, "talk", 5, 0, true, true, "us"},
        {&seed, "talk", 5, 2, true, false, "us"},
        {&seed, "talk", 5, 2, false, false, NULL},
        {&seed, "talk", -1, -1, true, true, NULL},
        {&seed, "other", 1, 2, true, true, "us"},
        {&seed, "", 0, 2, true, true, NULL},
        {&open, "other", 0, 2, true, true, "hk"}, /* no route, no default: anywhere */
        {&none, "dev", 1, 1, true, true, "us"},   /* by priority */
        {&none, "dev", 0, 1, true, true, "hk"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct routing_server servers[] = {
            {.id = S("hk"), .priority = 2, .slots = rows[i].hk, .online = rows[i].hk_online},
            {.id = S("us"), .priority = 1, .slots = rows[i].us, .online = rows[i].us_online},
        };
        const struct routing_server *picked =
            routing_pick(rows[i].routing, str_of(rows[i].type), servers, COUNT_OF(servers));

        assert_int_equal(picked != NULL, rows[i].picked != NULL);
        if (picked)
            assert_str(picked->id, rows[i].picked);
    }
}

static void test_labels_and_any(void **state)
{
    struct arena arena = {0};
    struct routing_server servers[] = {
        {.id = S("a"), .priority = 1, .slots = 1, .online = true},
        {.id = S("b"), .priority = 9, .slots = 1, .online = true},
        {.id = S("c"), .priority = 5, .slots = 1, .online = true},
    };
    const struct routing_server *picked;

    servers[1].labels = labels(&arena, "{\"zone\":\"near\"}");
    servers[2].labels = labels(&arena, "{\"zone\":\"near\",\"disk\":\"ssd\"}");
    assert_int_equal(routing_rank(&seed, STR("batch"), &servers[0]), 1);
    assert_int_equal(routing_rank(&seed, STR("batch"), &servers[1]), 0);
    picked = routing_pick(&seed, STR("batch"), servers, 3);
    assert_str(picked->id, "c"); /* the label first, then the priority */
    servers[2].slots = 0;
    assert_str(routing_pick(&seed, STR("batch"), servers, 3)->id, "b");
    servers[1].slots = 0;
    assert_str(routing_pick(&seed, STR("batch"), servers, 3)->id, "a");
    assert_true(routing_order(&seed, STR("batch"), &servers[0], &servers[1]) > 0);
    assert_true(routing_order(&seed, STR("batch"), &servers[2], &servers[1]) < 0);
    assert_int_equal(routing_order(&seed, STR("batch"), &servers[1], &servers[1]), 0);
    arena_free(&arena);
}

static void test_a_server_gets_only_what_it_allows(void **state)
{
    static struct str light[] = {S("talk"), S("research")};
    static struct str any[] = {S("*")};
    const struct strs lists[] = {{light, 2}, {any, 1}, {NULL, 0}};
    struct routing_server server = {.id = S("us"), .slots = 9, .online = true, .types = &lists[0]};

    assert_null(routing_pick(&seed, STR("dev"), &server, 1));
    assert_int_equal(routing_rank(&seed, STR("dev"), &server), ROUTING_REFUSED);
    assert_non_null(routing_pick(&seed, STR("talk"), &server, 1));
    server.types = &lists[1];
    assert_non_null(routing_pick(&seed, STR("dev"), &server, 1));
    server.types = &lists[2]; /* an empty list allows nothing */
    assert_null(routing_pick(&seed, STR("dev"), &server, 1));
    assert_true(routing_allows(NULL, STR("dev")));
}

static void test_equal_servers_keep_their_order(void **state)
{
    struct routing_server servers[] = {
        {.id = S("b"), .priority = 1, .slots = 1, .online = true},
        {.id = S("a"), .priority = 1, .slots = 9, .online = true},
    };

    assert_str(routing_pick(&none, STR("dev"), servers, 2)->id, "b");
}

static void test_no_server(void **state)
{
    assert_null(routing_pick(&seed, STR("dev"), NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pick),
        cmocka_unit_test(test_labels_and_any),
        cmocka_unit_test(test_a_server_gets_only_what_it_allows),
        cmocka_unit_test(test_equal_servers_keep_their_order),
        cmocka_unit_test(test_no_server),
    };

    return cmocka_run_group_tests_name("routing", tests, NULL, NULL);
}
