/* Tokens: what the configuration may contain, and what each token allows. */
#include "../unit.h"

#include "server/auth.h"

#include <stdlib.h>
#include <string.h>

/* printf %s NAME | sha256sum */
#define SHA_SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

/* One request at a time; what a check returns lives until the next one. */
static struct http_request req;

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct arena));
    return 0;
}

static int teardown(void **state)
{
    arena_free(*state);
    arena_free(&req.arena);
    req = (struct http_request){0};
    free(*state);
    return 0;
}

static enum err read_tokens(struct arena *arena, const char *json, struct auth *auth,
                            struct problem *why)
{
    const struct json *root;

    if (json_parse(str_of(json), arena, &root, why))
        fail_msg("%s: %s", json, why->detail);
    return tokens_read(root, arena, &auth->tokens, why);
}

#define TOKEN(rest) "[{\"name\":\"ops\",\"sha256\":\"" SHA_SECRET "\"," rest "}]"

enum { NOW_MS = 1000000 };

static enum err check(const struct auth *auth, const char *header, enum token_scope needed,
                      const struct token **ret_token)
{
    const struct http_header headers[] = {{STR("authorization"), str_of(header)}};
    struct problem why = {0};
    enum err err;

    arena_reset(&req.arena);
    req.headers = headers;
    req.header_count = header ? 1 : 0;
    err = auth_check(auth, &req, needed, NOW_MS, ret_token, &why);

    assert_true(!err || why.detail[0]);
    assert_null(strstr(why.detail, "secret")); /* never repeats the token that was sent */
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
        {"Bearer " SHA_SECRET, ERR_UNAUTHORIZED}, /* the digest is not a token */
    };
    struct auth auth;
    struct problem why;
    const struct token *token;

    assert_int_equal(read_tokens(*state, TOKEN("\"scopes\":[\"read\"]"), &auth, &why), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (check(&auth, rows[i].header, SCOPE_READ, &token) != rows[i].err)
            fail_msg("\"%s\"", rows[i].header);
        assert_int_equal(token != NULL, rows[i].err == ERR_OK);
    }
    assert_int_equal(check(&auth, NULL, SCOPE_NONE, &token), ERR_OK); /* open to all */
}

static void what_a_scope_may_do(void **state)
{
    static const struct {
        const char *scope;
        int format;
        const char *may; /* read submit node deploy operate admin */
    } rows[] = {{"read", 2, "r-----"},   {"submit", 2, "-s----"},  {"node", 2, "--n---"},
                {"deploy", 2, "r--d--"}, {"operate", 2, "rs--o-"}, {"admin", 2, "rsndoa"},
                {"operate", 1, "rs-do-"}}; /* `operate` included `deploy` in format 1 */

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct auth auth;
        struct problem why;
        struct str json = arena_fmt(*state, TOKEN("\"scopes\":[\"%s\"],\"format\":%d"),
                                    rows[i].scope, rows[i].format);

        assert_int_equal(read_tokens(*state, json.at, &auth, &why), ERR_OK);
        for (int s = SCOPE_READ; s < SCOPE_COUNT; s++) {
            const struct token *token;
            enum err want = rows[i].may[s - SCOPE_READ] != '-' ? ERR_OK : ERR_FORBIDDEN;

            if (check(&auth, "Bearer secret", (enum token_scope)s, &token) != want)
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
    assert_true(auth_speaks_for(&auth.tokens.at[0], STR("us")));
    assert_false(auth_speaks_for(&auth.tokens.at[0], STR("hk")));
    assert_false(auth_speaks_for(&auth.tokens.at[0], STR("")));
    assert_int_equal(read_tokens(*state, TOKEN("\"scopes\":[\"node\"]"), &auth, &why), ERR_OK);
    assert_true(auth_speaks_for(&auth.tokens.at[0], STR("hk")));
    assert_true(auth_speaks_for(NULL, STR("hk"))); /* no tokens are configured */
}

static void without_tokens_everybody_is_let_in(void **state)
{
    struct auth auth = {0};
    const struct token *token;

    assert_int_equal(check(&auth, NULL, SCOPE_ADMIN, &token), ERR_OK);
    assert_null(token);
}

static void an_expired_token_is_no_token(void **state)
{
    static const struct {
        const char *expires;
        enum err err;
    } rows[] = {{"999999", ERR_UNAUTHORIZED},
                {"1000000", ERR_UNAUTHORIZED},
                {"1000001", ERR_OK},
                {"null", ERR_OK}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct auth auth = {0};
        struct problem why;
        const struct token *token;
        struct str json =
            arena_fmt(*state, TOKEN("\"scopes\":[\"read\"],\"expires_ms\":%s"), rows[i].expires);

        assert_int_equal(read_tokens(*state, json.at, &auth, &why), ERR_OK);
        if (check(&auth, "Bearer secret", SCOPE_READ, &token) != rows[i].err)
            fail_msg("%s", rows[i].expires);
    }
}

/* What a node's certificate allows, alone and together with a token. */
static void certificates(void **state)
{
    static const struct {
        const char *name; /* in the certificate; NULL: none shown */
        const char *header;
        const char *token_rest;
        enum token_scope needed;
        enum err err;
        const char *node; /* the node it may then speak for; NULL: any */
    } rows[] = {
        {"us", NULL, "\"scopes\":[\"admin\"]", SCOPE_NODE, ERR_OK, "us"},
        {"us", NULL, "\"scopes\":[\"admin\"]", SCOPE_READ, ERR_UNAUTHORIZED, NULL},
        {"us", NULL, "\"scopes\":[\"admin\"]", SCOPE_ADMIN, ERR_UNAUTHORIZED, NULL},
        {"not an id", NULL, "\"scopes\":[\"admin\"]", SCOPE_NODE, ERR_UNAUTHORIZED, NULL},
        {NULL, NULL, "\"scopes\":[\"admin\"]", SCOPE_NODE, ERR_UNAUTHORIZED, NULL},
        /* a token that was sent decides, even with a certificate */
        {"us", "Bearer wrong", "\"scopes\":[\"admin\"]", SCOPE_NODE, ERR_UNAUTHORIZED, NULL},
        {"us", "Bearer secret", "\"scopes\":[\"read\"]", SCOPE_NODE, ERR_FORBIDDEN, NULL},
        {"us", "Bearer secret", "\"scopes\":[\"node\"]", SCOPE_NODE, ERR_OK, "us"},
        {"us", "Bearer secret", "\"scopes\":[\"node\"],\"node_id\":\"us\"", SCOPE_NODE, ERR_OK,
         "us"},
        {"hk", "Bearer secret", "\"scopes\":[\"node\"],\"node_id\":\"us\"", SCOPE_NODE,
         ERR_FORBIDDEN, NULL},
        {"alice", "Bearer secret", "\"scopes\":[\"admin\"]", SCOPE_NODE, ERR_OK, NULL},
        {"alice", "Bearer secret", "\"scopes\":[\"read\"]", SCOPE_READ, ERR_OK, "alice"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct auth auth = {0};
        struct problem why;
        const struct token *token;
        struct str json = arena_fmt(*state, TOKEN("%s"), rows[i].token_rest);

        assert_int_equal(read_tokens(*state, json.at, &auth, &why), ERR_OK);
        req.peer_name = rows[i].name;
        if (check(&auth, rows[i].header, rows[i].needed, &token) != rows[i].err)
            fail_msg("row %zu", i);
        if (rows[i].err)
            continue;
        assert_true(auth_speaks_for(token, str_of(rows[i].node ? rows[i].node : "anybody")));
        assert_int_equal(auth_speaks_for(token, STR("another")), rows[i].node == NULL);
    }
}

/* A connection stays open only while the token that let it in is still valid. */
static void after_the_tokens_changed(void **state)
{
    static const struct {
        const char *now;
        bool good;
    } rows[] = {
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"us\""), true},
        {TOKEN("\"scopes\":[\"admin\"]"), true},
        {TOKEN("\"scopes\":[\"read\"]"), false},
        {TOKEN("\"scopes\":[\"node\"],\"node_id\":\"hk\""), false},
        {TOKEN("\"scopes\":[\"node\"],\"expires_ms\":1000"), false},
        {"[]", false},
    };
    struct auth auth = {0};
    struct problem why;
    const struct token *token;

    assert_int_equal(
        read_tokens(*state, TOKEN("\"scopes\":[\"node\"],\"node_id\":\"us\""), &auth, &why),
        ERR_OK);
    assert_int_equal(check(&auth, "Bearer secret", SCOPE_NODE, &token), ERR_OK);
    assert_false(auth_still(&auth, NULL, SCOPE_NODE, NOW_MS)); /* it came in without a token */
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct auth next = {0};

        assert_int_equal(read_tokens(*state, rows[i].now, &next, &why), ERR_OK);
        if (auth_still(&next, token, SCOPE_NODE, NOW_MS) != rows[i].good)
            fail_msg("%s", rows[i].now);
    }
    auth = (struct auth){0};
    assert_true(auth_still(&auth, NULL, SCOPE_NODE, NOW_MS));
}

/* The meter of a token keeps its state when other tokens change. */
static void a_meter_goes_on(void **state)
{
    struct auth *before = auth_new(), *after = auth_new();
    struct problem why;

    assert_int_equal(read_tokens(&before->arena, TOKEN("\"scopes\":[\"submit\"]"), before, &why),
                     ERR_OK);
    auth_begin_meters(before, NULL);
    struct token token = before->tokens.at[0], other = token;
    other.name = STR("other");
    other.digest[0] = other.digest[0] == '0' ? '1' : '0';
    assert_int_equal(*auth_meter(before, &token), 0);
    assert_null(auth_meter(before, &other));
    *auth_meter(before, &token) = 77;
    after->tokens = tokens_with(&(struct tokens){0}, &other, &after->arena);
    after->tokens = tokens_with(&after->tokens, &token, &after->arena);
    auth_begin_meters(after, before);
    assert_int_equal(*auth_meter(after, &token), 77);
    assert_int_equal(*auth_meter(after, &other), 0);
    auth_free(before);
    auth_free(after);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(who_is_let_in),
        ROW(what_a_scope_may_do),
        ROW(a_bound_token_speaks_for_one_node),
        ROW(without_tokens_everybody_is_let_in),
        ROW(an_expired_token_is_no_token),
        ROW(certificates),
        ROW(after_the_tokens_changed),
        ROW(a_meter_goes_on),
    };

    return cmocka_run_group_tests_name("server/auth", tests, NULL, NULL);
}
