/* server_routing, cluster_status. */
#include "vec.h"

#include "model/fleet.h"
#include "model/pool.h"

/* The routes that the vectors assume; the product reads its own from the configuration. */
static struct str us_only[] = {{.at = "us", .len = 2}};
static struct str hk_first[] = {{.at = "hk", .len = 2}, {.at = "us", .len = 2}};
#define ROUTE(name, list)                                                                          \
    {                                                                                              \
        .type = {.at = (name), .len = sizeof(name) - 1}, .servers = {(list), COUNT_OF(list) }      \
    }
static const struct routing_route routes[] = {
    ROUTE("dev", us_only),   ROUTE("review", us_only),    ROUTE("automation", hk_first),
    ROUTE("talk", hk_first), ROUTE("research", hk_first),
};
static const struct routing seed_routing = {
    .routes = routes,
    .count = COUNT_OF(routes),
    .default_route = {us_only, COUNT_OF(us_only)},
};

static const char *member_name(struct vec *vec, const struct json *key)
{
    return arena_cstr(vec->arena, (struct str){.at = key->at, .len = key->len});
}

bool area_server_routing(struct vec *vec)
{
    const struct json *slots = json_get(vec->in, "slots");
    const struct json *online = json_get(vec->in, "online");
    struct str type = vec_str(vec, vec->in, "task_type"), picked = STR_NONE;
    int32_t least = INT32_MAX;
    struct vec_at at = {0};

    if (json_type(slots) != JSON_OBJ)
        return false;
    for (const struct json *key; (key = vec_each(slots, &at));) {
        const char *name = member_name(vec, key);
        struct routing_server server = {.id = str_of(name)};
        int32_t rank = routing_rank(&seed_routing, type, &server);

        if (rank == ROUTING_REFUSED || rank >= least || !vec_bool(online, name, true) ||
            vec_int(slots, name, 0) <= 0)
            continue;
        least = rank;
        picked = server.id;
    }
    jsonw_obj(vec->w);
    jsonw_kstr(vec->w, "server", picked);
    jsonw_end_obj(vec->w);
    return true;
}

bool area_cluster_status(struct vec *vec)
{
    const struct json *list = json_get(vec->in, "servers");
    struct fleet_server *servers;
    struct vec_at at = {0};
    struct fleet fleet;
    size_t count = 0;

    if (json_type(list) != JSON_OBJ)
        return false;
    servers = arena_array(vec->arena, struct fleet_server, list->count + 1);
    for (const struct json *key; (key = vec_each(list, &at)); count++)
        servers[count] = (struct fleet_server){
            .id = str_of(member_name(vec, key)),
            .online = vec_bool(key + 1, "online", true),
            .slots_max = vec_int(key + 1, "slots_max", 0),
            .slots_available = vec_int(key + 1, "slots_available", 0),
        };
    fleet = fleet_sum(servers, count);
    jsonw_obj(vec->w);
    jsonw_kstr(vec->w, "cluster_status", str_of(fleet_status_name(fleet.status)));
    jsonw_kint(vec->w, "total_slots", fleet.total_slots);
    jsonw_kint(vec->w, "available_slots", fleet.available_slots);
    jsonw_end_obj(vec->w);
    return true;
}
