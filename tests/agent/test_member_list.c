/* The list of members: changes apply in order, a gap makes the agent ask for everything, and
 * absence counts only from a complete view after the warm-up. */
#include "agent/claimer.h"

#include <string.h>

#include "unit.h"

#define UNIT(id)                                                                                   \
    "{\"terminal_id\":\"" id "\",\"tags\":{\"node_unit\":\"true\",\"node_unit_address\":\"" id     \
    "\"},\"takes\":true}"

struct site {
    struct member_list member_list;
    struct arena arena;
};

static bool take(struct site *site, const char *reply, int64_t now_ms)
{
    const struct json *json;

    assert_int_equal(json_parse(str_of(reply), &site->arena, &json, NULL), ERR_OK);
    return member_list_take(&site->member_list, json, now_ms);
}

/* The addresses online, separated by commas; one that takes no deployments is followed by a
 * minus. */
static const char *online(struct site *site, struct names *ret_names)
{
    struct claim_node *nodes;
    size_t count = member_list_nodes(&site->member_list, &site->arena, &nodes);
    struct buf text = {0};
    const char *copy;

    names_init(ret_names, count, &site->arena);
    for (size_t i = 0; i < count; i++) {
        buf_fmt(&text, "%s" STR_FMT "%s", i ? "," : "", STR_ARG(nodes[i].id),
                nodes[i].takes ? "" : "-");
        names_add(ret_names, nodes[i].id);
    }
    copy = arena_cstr(&site->arena, buf_view(&text));
    buf_free(&text);
    return copy;
}

static void test_changes(void **state)
{
    struct site site = {0};
    struct names names;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    member_list_init(&site.member_list);
    assert_true(take(&site,
                     "{\"source\":\"s1\",\"seq\":7,\"full\":true,\"terminals\":[" UNIT(
                         "b") "," UNIT("a") ",{\"terminal_id\":\"x\"}]}",
                     5));
    assert_string_equal(online(&site, &names), "a,b");
    jsonw_obj(&w);
    member_list_write(&site.member_list, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text), "{\"source\":\"s1\",\"seq\":7}");
    assert_true(take(&site, "{\"source\":\"s1\",\"seq\":7,\"full\":false,\"changes\":[]}", 6));
    assert_true(take(&site,
                     "{\"source\":\"s1\",\"seq\":9,\"changes\":["
                     "{\"change\":\"JOIN\",\"payload\":{\"new\":" UNIT(
                         "c") "}},"
                              "{\"change\":\"LEAVE\",\"payload\":{\"old\":" UNIT("a") "}}]}",
                     7));
    assert_string_equal(online(&site, &names), "b,c");
    assert_true(
        take(&site,
             "{\"source\":\"s1\",\"seq\":10,\"changes\":[{\"change\":\"UPDATE\",\"payload\":{"
             "\"old\":" UNIT("c") ",\"new\":{\"terminal_id\":\"c\",\"takes\":true,\"tags\":{"
                                  "\"node_unit\":\"true\",\"node_unit_address\":\"c\",\"node_unit_"
                                  "takes\":\"false\"}}}}]}",
             7));
    assert_string_equal(online(&site, &names), "b,c-");
    /* A gap in the numbers. */
    assert_false(take(&site, "{\"source\":\"s1\",\"seq\":13,\"changes\":[]}", 8));
    buf_clear(&text);
    w = jsonw_to(&text);
    jsonw_obj(&w);
    member_list_write(&site.member_list, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text), "{}"); /* asks for everything */
    assert_true(take(&site, "{\"source\":\"s1\",\"seq\":13,\"terminals\":[]}", 9));
    assert_string_equal(online(&site, &names), "");
    buf_free(&text);
    member_list_done(&site.member_list);
    arena_free(&site.arena);
}

static bool lost(struct site *site, const char *address, int64_t now_ms)
{
    int64_t lost_at_ms =
        member_list_lost_at_ms(&site->member_list, str_of(address), &member_defaults);

    return lost_at_ms != MEMBER_NEVER && now_ms >= lost_at_ms;
}

static size_t absent(struct site *site)
{
    struct names names;

    member_list_absent(&site->member_list, &site->arena, &names);
    return names.count;
}

static void test_lost(void **state)
{
    struct site site = {0};
    struct names names, owners;

    member_list_init(&site.member_list);
    names_init(&owners, 2, &site.arena);
    names_add(&owners, STR("gone"));
    assert_true(take(
        &site, "{\"source\":\"s1\",\"seq\":1,\"terminals\":[" UNIT("a") "," UNIT("b") "]}", 0));
    online(&site, &names);
    member_list_note(&site.member_list, &names, &owners, 0);
    assert_false(lost(&site, "gone", 29999)); /* before the warm-up is over */
    assert_true(lost(&site, "gone", 30000));
    assert_false(lost(&site, "b", 30000));
    assert_false(lost(&site, "never heard of", 99999));
    assert_int_equal(absent(&site), 1);
    assert_true(take(
        &site, "{\"source\":\"s1\",\"seq\":2,\"changes\":[{\"payload\":{\"old\":" UNIT("b") "}}]}",
        40000));
    online(&site, &names);
    member_list_note(&site.member_list, &names, &owners, 40000);
    assert_false(lost(&site, "b", 54999));
    assert_true(lost(&site, "b", 55000));
    assert_int_equal(absent(&site), 2);
    member_list_note(&site.member_list, &names, &owners, 40000 + 5 * 60 * 1000 + 1);
    assert_int_equal(absent(&site), 1); /* owns nothing: dropped after five minutes */
    /* The server restarted: all nodes have to reconnect to it first. */
    assert_true(take(&site, "{\"source\":\"s2\",\"seq\":1,\"terminals\":[" UNIT("a") "]}", 500000));
    assert_false(lost(&site, "gone", 529999));
    assert_true(lost(&site, "gone", 530000));
    member_list_done(&site.member_list);
    member_list_init(&site.member_list);
    assert_false(lost(&site, "gone", 999999));
    member_list_done(&site.member_list);
    arena_free(&site.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changes), cmocka_unit_test(test_lost)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
