/* What a route is called in the audit, and that none is forgotten. */
#include "unit.h"

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

/* Every route has said who may call it; what an operator can change has an action of its own. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_actions),
        cmocka_unit_test(every_route_is_guarded),
    };

    return cmocka_run_group_tests_name("server/guard", tests, NULL, NULL);
}
