/* Names of routes in the audit, and that every route has what a guard needs. */
#include "../unit.h"

#include "base/metrics.h"
#include "server/auth.h"
#include "server/guard.h"

#include <string.h>

static void names_of_actions(void **state)
{
    static const struct {
        enum http_method method;
        const char *path, *action;
    } rows[] = {
        {HTTP_M_POST, "/v1/nodes/{id}/drain", "nodes.drain"},
        {HTTP_M_POST, "/v1/nodes/{id}/rpc/{service}/{method}", "nodes.rpc"},
        {HTTP_M_DELETE, "/v1/nodes/{id}", "nodes.delete"},
        {HTTP_M_POST, "/v1/breakers/reset", "breakers.reset"},
        {HTTP_M_POST, "/v1/tokens", "tokens.create"},
        {HTTP_M_PUT, "/v1/deployments/{id}", "deployments.put"},
        {HTTP_M_PATCH, "/v1/deployments/{id}", "deployments.change"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct route route = {.method = rows[i].method, .path = rows[i].path};
        char action[64];

        guard_action(&route, action, sizeof action);
        assert_string_equal(action, rows[i].action);
    }
}

/* Every route says who may call it, and whatever an operator can change has an audit action of its
 * own. */
static void every_route_is_guarded(void **state)
{
    const struct route *route, *other;

    for (size_t i = 0; (route = route_at(i)); i++) {
        char action[128], another[128];

        if (route->scope == SCOPE_UNSET)
            fail_msg("%s: who may call it?", route->path);
        if (route->socket && route->scope != SCOPE_NODE && route->scope != SCOPE_READ)
            fail_msg("%s: a socket is a node's: it reads, and speaks for itself", route->path);
        if (!guard_audited(route))
            continue;
        guard_action(route, action, sizeof action);
        assert_true(strlen(action) < sizeof action - 1);
        for (size_t j = 0; j < i && (other = route_at(j)); j++) {
            if (!guard_audited(other))
                continue;
            guard_action(other, another, sizeof another);
            if (strcmp(action, another) == 0)
                fail_msg("%s and %s are both %s", route->path, other->path, action);
        }
    }
}

/* A body may take a while to arrive: if the tokens changed meanwhile, the token that was found with
 * the head is checked again, and only then. */
static void tokens_change_while_a_body_comes(void **state)
{
    static const struct route submits = {.scope = SCOPE_SUBMIT}, open = {.scope = SCOPE_NONE};
    struct token token = {.name = STR("ci"), .scopes = 1u << SCOPE_SUBMIT, .digest = "d1"};
    struct token other = {.name = STR("ci"), .scopes = 1u << SCOPE_READ, .digest = "d1"};
    struct auth without = {.tokens = {0}}, with = {.tokens = {.at = &token, .count = 1}},
                less = {.tokens = {.at = &other, .count = 1}};
    struct {
        const struct route *route;
        const struct token *token; /* found with the head */
        struct auth *auth;         /* in force now */
        int64_t number;            /* its number, which was 1 at the head */
        enum err err;
    } rows[] = {
        {&submits, &token, &with, 1, ERR_OK},
        {&submits, &token, &with, 2, ERR_OK},
        {&submits, &token, &without, 2, ERR_UNAUTHORIZED},
        {&submits, &token, &less, 2, ERR_UNAUTHORIZED},
        {&submits, NULL, &with, 2, ERR_UNAUTHORIZED}, /* no tokens were configured then */
        {&submits, NULL, &without, 2, ERR_OK},
        {&open, NULL, &with, 2, ERR_OK},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct worker worker = {.auth = rows[i].auth, .auth_number = rows[i].number};
        struct call call = {
            .worker = &worker, .route = rows[i].route, .token = rows[i].token, .auth_number = 1};
        struct problem why;

        if (guard_still(&call, &why) != rows[i].err)
            fail_msg("row %zu", i);
    }
}

/* Failed logins are counted by their cause; a good login is not counted. */
static void failed_logins_are_counted(void **state)
{
    static const struct route route = {.scope = SCOPE_READ};
    static struct logins logins;
    struct token token = {.name = STR("ci"), .scopes = 1u << SCOPE_READ};
    struct auth auth = {.tokens = {.at = &token, .count = 1}};
    struct settings settings = {.login_failures_max = 2};
    struct server server = {.settings = &settings};
    struct worker worker = {.server = &server, .auth = &auth, .logins = &logins};
    static const struct {
        const char *header, *label;
        enum err err;
    } rows[] = {
        {NULL, "missing", ERR_UNAUTHORIZED},
        {"Bearer wrong", "refused", ERR_UNAUTHORIZED},
        {"Bearer wrong", "refused", ERR_UNAUTHORIZED},
        {"Bearer wrong", "limited", ERR_RATE_LIMIT},
        {NULL, "missing", ERR_UNAUTHORIZED},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct http_header header = {.name = STR("Authorization"), .value = str_of(rows[i].header)};
        struct http_request req = {
            .peer = "10.0.0.7", .headers = &header, .header_count = rows[i].header ? 1 : 0};
        struct call call = {.worker = &worker, .route = &route, .req = &req};
        int64_t all = metric_value(METRIC_LOGINS, NULL);
        int64_t alike = metric_value(METRIC_LOGINS, rows[i].label);
        struct problem why;

        assert_int_equal(guard_identify(&call, &why), rows[i].err);
        assert_int_equal(metric_value(METRIC_LOGINS, NULL), all + 1);
        assert_int_equal(metric_value(METRIC_LOGINS, rows[i].label), alike + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_actions),
        cmocka_unit_test(every_route_is_guarded),
        cmocka_unit_test(tokens_change_while_a_body_comes),
        cmocka_unit_test(failed_logins_are_counted),
    };

    return cmocka_run_group_tests_name("server/guard", tests, NULL, NULL);
}
