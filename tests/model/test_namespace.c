/* Namespaces: full names, and how names are translated on the way in and out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../arena.h"
#include "model/namespace.h"

static const struct namespace_view all = {.namespace = {"default", 7}, .all = true},
                                   plain = {.namespace = {"default", 7}},
                                   maps = {.namespace = {"maps", 4}};

static void check(struct str got, const char *want)
{
    if (!str_is(got, want))
        fail_msg("\"" STR_FMT "\", not \"%s\"", STR_ARG(got), want);
}

static void split_and_joined(void **state)
{
    static const struct {
        const char *full, *namespace, *name;
    } rows[] = {
        {"web", "default", "web"},
        {"maps/web", "maps", "web"},
        {"a/b", "a", "b"},
        {"", "default", ""},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str full = str_of(rows[i].full);

        check(namespace_of(full), rows[i].namespace);
        check(namespace_name(full), rows[i].name);
        check(namespace_join(namespace_of(full), namespace_name(full), *state), rows[i].full);
    }
    check(namespace_join(STR("default"), STR("web"), *state), "web");
    assert_true(namespace_valid(STR("0123456789abcdef")));
    assert_false(namespace_valid(STR("0123456789abcdefg")));
    assert_false(namespace_valid(STR("")));
    assert_false(namespace_valid(STR("a/b")));
    assert_false(namespace_valid(STR("a b")));
}

static void what_callers_say(void **state)
{
    static const struct {
        const struct namespace_view *view;
        const char *name, *full; /* NULL: refused */
        const char *wanted;      /* when only searched for */
    } rows[] = {
        {&plain, "web", "web", "web"},
        {&maps, "web", "maps/web", "maps/web"},
        {&all, "web", "web", "web"},
        {&all, "maps/web", "maps/web", "maps/web"},
        {&all, "default/web", "web", "web"},
        /* no full name reaches another namespace, nor the caller's own */
        {&plain, "maps/web", NULL, "default/maps/web"},
        {&maps, "maps/web", NULL, "maps/maps/web"},
        {&maps, "other/web", NULL, "maps/other/web"},
        {&maps, "/web", NULL, "maps//web"},
        {&all, "a/b/c", NULL, "a/b/c"},
        {&all, "/web", NULL, "/web"},
        {&all, "maps/", NULL, "maps/"},
        {&all, "0123456789abcdefg/w", NULL, "0123456789abcdefg/w"},
        {&plain, "a b", NULL, "a b"},
        {&plain, ".a", NULL, ".a"},
        {&plain, "0123456789012345678", "0123456789012345678", "0123456789012345678"},
        {&plain, "01234567890123456789", "01234567890123456789", "01234567890123456789"},
        {&plain, "012345678901234567890", NULL, "012345678901234567890"},
        {&maps, "012345678901234", "maps/012345678901234", "maps/012345678901234"},
        {&maps, "0123456789012345", NULL,
         "maps/0123456789012345"}, /* too long with its namespace */
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str full, name = str_of(rows[i].name);
        struct problem why = {0};
        enum err err = namespace_enter(rows[i].view, "type", name, 20, *state, &full, &why);

        if (err != (rows[i].full ? ERR_OK : ERR_BAD_FIELD))
            fail_msg("%s: %s %s", rows[i].name, err_name(err), why.detail);
        if (err)
            assert_string_equal(why.field, "type");
        else
            check(full, rows[i].full);
        check(namespace_wanted(rows[i].view, name, *state), rows[i].wanted);
    }
    assert_null(namespace_wanted(&maps, STR_NONE, *state).at);
}

static void what_callers_see(void **state)
{
    static const struct {
        const char *full;
        const struct namespace_view *view;
        const char *shown; /* NULL: not visible */
    } rows[] = {
        {"web", &plain, "web"},     {"web", &maps, NULL},       {"web", &all, "web"},
        {"maps/web", &plain, NULL}, {"maps/web", &maps, "web"}, {"maps/web", &all, "maps/web"},
        {"map/web", &maps, NULL},   {"mapss/web", &maps, NULL}, {"", &plain, ""},
        {"maps/f2f", &maps, "f2f"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str full = str_of(rows[i].full);

        assert_int_equal(namespace_sees(rows[i].view, full), rows[i].shown != NULL);
        assert_int_equal(namespace_lists(namespace_listed(rows[i].view), full),
                         rows[i].shown != NULL);
        if (rows[i].shown)
            check(namespace_shown(rows[i].view, full), rows[i].shown);
    }
    assert_true(namespace_sees_sums(&all) && namespace_sees_sums(&plain));
    assert_false(namespace_sees_sums(&maps));
}

/* Equal sessions and keys of two namespaces are different. */
static void keys_are_apart(void **state)
{
    static const char *const texts[] = {"s",    "maps/s", "/maps/s", "maps s",
                                        "maps", "a/b",    "/",       " "};
    static const char *const spaces[] = {"default", "maps", "a"};
    struct str keys[2][COUNT_OF(texts) * COUNT_OF(spaces)];
    size_t count = 0;

    for (size_t s = 0; s < COUNT_OF(spaces); s++)
        for (size_t t = 0; t < COUNT_OF(texts); t++, count++) {
            struct namespace_view view = {.namespace = str_of(spaces[s])};
            struct str text = str_of(texts[t]);

            keys[0][count] = namespace_session(view.namespace, text, *state);
            assert_true(str_eq(namespace_enter_session(&view, text, *state), keys[0][count]));
            /* a caller that sees all namespaces can reach each */
            assert_true(
                str_eq(namespace_enter_session(&all, keys[0][count], *state), keys[0][count]));
            keys[1][count] = namespace_key(view.namespace, text, *state);
        }
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++) {
            assert_false(str_eq(keys[0][i], keys[0][j]));
            /* a key has no space */
            if (!strchr(texts[i % COUNT_OF(texts)], ' ') &&
                !strchr(texts[j % COUNT_OF(texts)], ' '))
                assert_false(str_eq(keys[1][i], keys[1][j]));
        }
    /* Unchanged in the default namespace. */
    check(namespace_session(STR("default"), STR("s"), *state), "s");
    check(namespace_key(STR("default"), STR("a/b"), *state), "a/b");
    check(namespace_enter_session(&all, STR("maps/s"), *state), "maps/s");
    check(namespace_enter_session(&all, STR("default/s"), *state), "s");
}

static void lists_of_namespaces(void **state)
{
    static const struct {
        const char *list;
        bool maps, plain, ml;
    } rows[] = {
        {"[\"maps\"]", true, false, false},
        {"[\"maps\",\"default\",\"ml\"]", true, true, true},
        {"[\"default\",\"ml\"]", false, true, true},
        {"null", true, true, true},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct json *list;

        assert_int_equal(json_parse(str_of(rows[i].list), *state, &list, NULL), ERR_OK);
        assert_int_equal(namespace_in(list, STR("maps/web")), rows[i].maps);
        assert_int_equal(namespace_in(list, STR("web")), rows[i].plain);
        assert_int_equal(namespace_in(list, STR("ml/web")), rows[i].ml);
    }
    assert_true(namespace_in(NULL, STR("maps/web"))); /* the server did not send any */
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, arena_setup, arena_teardown)
    const struct CMUnitTest tests[] = {
        ROW(split_and_joined), ROW(what_callers_say),    ROW(what_callers_see),
        ROW(keys_are_apart),   ROW(lists_of_namespaces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
