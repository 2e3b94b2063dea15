/* Tokens: what the configuration may say, and who may do what with them. */
#include "unit.h"

#include "server/auth.h"

#include <stdlib.h>
#include <string.h>

/* printf %s NAME | sha256sum */
#define SHA_SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct arena));
    return 0;
}

static int teardown(void **state)
{
    arena_free(*state);
    free(*state);
    return 0;
}

static enum err read_tokens(struct arena *arena, const char *json, struct auth *auth,
                            struct problem *why)
{
    const struct json *root;

    if (json_parse(str_of(json), arena, &root, why))
        fail_msg("%s: %s", json, why->detail);
    return auth_read(root, arena, auth, why);
}

#define TOKEN(rest) "[{\"name\":\"ops\",\"sha256\":\"" SHA_SECRET "\"," rest "}]"

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
        {TOKEN("\"scopes\":[\"admin\",\"submit\",\"read\"]"), true}, /* one within another */
        {TOKEN("\"scopes\":[\"operate\",\"operate\"]"), true},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"us\""), true},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":null"), true},
        {TOKEN("\"scopes\":[]"), false},
        {TOKEN("\"scopes\":\"read\""), false},
        {TOKEN("\"scopes\":[\"admin\",\"root\"]"), false},
        {TOKEN("\"scopes\":[5]"), false},
        /* each of these would leave the token unbound if it were let through */
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":5"), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"a b\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":[\"us\"]"), false},
        {TOKEN("\"scopes\":[\"node\"],\"nodeid\":\"us\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"node\":\"us\""), false},
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
        struct auth auth;
        struct problem why = {0};
        enum err err = read_tokens(*state, rows[i].json, &auth, &why);

        if (err != (rows[i].good ? ERR_OK : ERR_BAD_CONFIG))
            fail_msg("%s: %s \"%s\"", rows[i].json, err_name(err), why.detail);
        if (err && strstr(why.detail, "secret"))
            fail_msg("a token stands in \"%s\"", why.detail);
    }
}

static enum err check(const struct auth *auth, const char *header, enum auth_scope needed,
                      const struct auth_token **ret_token)
{
    const struct http_header headers[] = {{STR("authorization"), str_of(header)}};
    struct http_request req = {.headers = headers, .header_count = header ? 1 : 0};
    struct problem why = {0};
    enum err err = auth_check(auth, &req, needed, ret_token, &why);

    assert_true(!err || why.detail[0]);
    assert_null(strstr(why.detail, "secret")); /* never what was sent */
    return err;
}

static void who_is_let_in(void **state)
{
    static const struct {
        const char *header;
        enum err err;
    } rows[] = {
        {"Bearer secret", ERR_OK},
        {"bearer secret", ERR_OK},
        {"BEARER   secret  ", ERR_OK},
        {NULL, ERR_UNAUTHORIZED},
        {"", ERR_UNAUTHORIZED},
        {"Bearer", ERR_UNAUTHORIZED},
        {"Bearer ", ERR_UNAUTHORIZED},
        {"secret", ERR_UNAUTHORIZED},
        {"Basic secret", ERR_UNAUTHORIZED},
        {"Bearer secre", ERR_UNAUTHORIZED},
        {"Bearer secrets", ERR_UNAUTHORIZED},
        {"Bearer " SHA_SECRET, ERR_UNAUTHORIZED}, /* the digest is no token */
    };
    struct auth auth;
    struct problem why;
    const struct auth_token *token;

    assert_int_equal(read_tokens(*state, TOKEN("\"scopes\":[\"read\"]"), &auth, &why), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (check(&auth, rows[i].header, SCOPE_READ, &token) != rows[i].err)
            fail_msg("\"%s\"", rows[i].header);
        assert_int_equal(token != NULL, rows[i].err == ERR_OK);
    }
    assert_int_equal(check(&auth, NULL, SCOPE_NONE, &token), ERR_OK); /* for everybody */
}

static void what_a_scope_may_do(void **state)
{
    static const struct {
        const char *scope;
        const char *may; /* read submit node operate admin */
    } rows[] = {{"read", "r----"},
                {"submit", "-s---"},
                {"node", "--n--"},
                {"operate", "rs-o-"},
                {"admin", "rsnoa"}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct auth auth;
        struct problem why;
        struct str json = arena_fmt(*state, TOKEN("\"scopes\":[\"%s\"]"), rows[i].scope);

        assert_int_equal(read_tokens(*state, json.at, &auth, &why), ERR_OK);
        for (int s = SCOPE_READ; s < SCOPE_COUNT; s++) {
            const struct auth_token *token;
            enum err want = rows[i].may[s - SCOPE_READ] != '-' ? ERR_OK : ERR_FORBIDDEN;

            if (check(&auth, "Bearer secret", (enum auth_scope)s, &token) != want)
                fail_msg("%s, needed %d", rows[i].scope, s);
        }
    }
}

static void a_bound_token_speaks_for_one_node(void **state)
{
    struct auth auth;
    struct problem why;

    assert_int_equal(
        read_tokens(*state, TOKEN("\"scopes\":[\"node\"],\"node_id\":\"us\""), &auth, &why),
        ERR_OK);
    assert_true(auth_speaks_for(&auth.tokens[0], STR("us")));
    assert_false(auth_speaks_for(&auth.tokens[0], STR("hk")));
    assert_false(auth_speaks_for(&auth.tokens[0], STR("")));
    assert_int_equal(read_tokens(*state, TOKEN("\"scopes\":[\"node\"]"), &auth, &why), ERR_OK);
    assert_true(auth_speaks_for(&auth.tokens[0], STR("hk")));
    assert_true(auth_speaks_for(NULL, STR("hk"))); /* there are no tokens at all */
}

static void without_tokens_everybody_is_let_in(void **state)
{
    struct auth auth = {0};
    const struct auth_token *token;

    assert_int_equal(check(&auth, NULL, SCOPE_ADMIN, &token), ERR_OK);
    assert_null(token);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(what_a_token_may_say),
        ROW(who_is_let_in),
        ROW(what_a_scope_may_do),
        ROW(a_bound_token_speaks_for_one_node),
        ROW(without_tokens_everybody_is_let_in),
    };

    return cmocka_run_group_tests_name("server/auth", tests, NULL, NULL);
}
