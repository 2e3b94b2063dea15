/* Typed routing. Owns order and permission; where the table comes from is the configuration's. */
#include "model/routing.h"

#include <assert.h>
#include <string.h>

#include "model/selector.h"

static const struct strs *route_of(const struct routing *routing, struct str type)
{
    for (size_t i = 0; i < routing->count; i++)
        if (str_eq(routing->routes[i].type, type))
            return &routing->routes[i].servers;
    return routing->default_route.count ? &routing->default_route : NULL;
}

static bool names_server(struct str entry, const struct routing_server *server)
{
    if (str_is(entry, "*") || str_eq(entry, server->id))
        return true;
    return entry.len && memchr(entry.at, '=', entry.len) && selector_match(entry, server->labels);
}

bool routing_allows(const struct strs *types, struct str type)
{
    if (!types)
        return true;
    for (size_t i = 0; i < types->count; i++)
        if (str_is(types->at[i], "*") || str_eq(types->at[i], type))
            return true;
    return false;
}

int routing_rank(const struct routing *routing, struct str type,
                 const struct routing_server *server)
{
    const struct strs *route = route_of(routing, type);

    if (!routing_allows(server->types, type))
        return ROUTING_REFUSED;
    if (!route)
        return 0;
    for (size_t i = 0; i < route->count; i++)
        if (names_server(route->at[i], server))
            return (int)i;
    return ROUTING_REFUSED;
}

static int order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

int routing_order(const struct routing *routing, struct str type, const struct routing_server *a,
                  const struct routing_server *b)
{
    int left = routing_rank(routing, type, a), right = routing_rank(routing, type, b);

    assert(left != ROUTING_REFUSED && right != ROUTING_REFUSED);
    return left != right ? order(left, right) : order(a->priority, b->priority);
}

const struct routing_server *routing_pick(const struct routing *routing, struct str type,
                                          const struct routing_server *servers, size_t count)
{
    const struct routing_server *first = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct routing_server *server = &servers[i];

        if (!server->online || server->slots <= 0 ||
            routing_rank(routing, type, server) == ROUTING_REFUSED)
            continue;
        if (!first || routing_order(routing, type, server, first) < 0)
            first = server;
    }
    assert(!first || (first->online && first->slots > 0));
    return first;
}
