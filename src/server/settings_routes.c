/* The setting `routes`: which servers a type of task may go to, in which order. */
#include "server/settings.h"

static enum err bad_routes(struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, "routes",
                       "routes must map task types to lists of servers, like talk: [hk, us].");
}

/* A list of texts. */
static bool read_list(const struct json *list, struct arena *arena, struct strs *ret_texts)
{
    const struct json *item = json_first(list);

    if (json_type(list) != JSON_ARR)
        return false;
    *ret_texts =
        (struct strs){.at = arena_array(arena, struct str, list->count + 1), .count = list->count};
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        if (json_type(item) != JSON_STR)
            return false;
        ret_texts->at[i] = json_str(item, arena);
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
    for (uint32_t i = 0; i < map->count; i++, key = json_next(key + 1)) {
        routes[i].type = json_str(key, arena);
        if (!read_list(key + 1, arena, &routes[i].servers))
            return bad_routes(why);
    }
    settings->sched.routing.routes = routes;
    settings->sched.routing.count = map->count;
    return ERR_OK;
}
