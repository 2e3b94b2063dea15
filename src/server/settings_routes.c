/* The setting `routes`: which servers a type of task may go to, in which order. */
#include "server/settings.h"

static enum err bad_routes(struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, "routes",
                       "routes must map task types to lists of servers, like talk: [hk, us].");
}

/* One type and its servers in order. */
static bool read_route(const struct json *key, struct arena *arena, struct routing_route *ret_route)
{
    const struct json *list = key + 1;

    if (json_type(list) != JSON_ARR)
        return false;
    *ret_route = (struct routing_route){
        .type = json_str(key, arena),
        .servers = {.at = arena_array(arena, struct str, list->count + 1), .count = list->count}};
    const struct json *item = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        if (json_type(item) != JSON_STR)
            return false;
        ret_route->servers.at[i] = json_str(item, arena);
    }
    return true;
}

enum err settings_read_routes(struct settings *settings, struct arena *arena, struct problem *why)
{
    const struct json *map = settings->routes;

    if (json_is_null(map))
        return ERR_OK;
    if (json_type(map) != JSON_OBJ)
        return bad_routes(why);
    struct routing_route *routes = arena_array(arena, struct routing_route, map->count + 1);
    const struct json *key = json_first(map);
    for (uint32_t i = 0; i < map->count; i++, key = json_next(key + 1))
        if (!read_route(key, arena, &routes[i]))
            return bad_routes(why);
    settings->sched.routing.routes = routes;
    settings->sched.routing.count = map->count;
    return ERR_OK;
}
