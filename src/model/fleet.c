/* The fleet's sums and summary sentence. */
#include "model/fleet.h"

#include <assert.h>

static const char *const status_names[FLEET_STATUS_COUNT] = {
    [FLEET_HEALTHY] = "healthy",
    [FLEET_PARTIAL] = "partial",
    [FLEET_DEGRADED] = "degraded",
};

const char *fleet_status_name(enum fleet_status status)
{
    assert(status >= FLEET_HEALTHY && status < FLEET_STATUS_COUNT);
    return status_names[status];
}

static bool has_room(const struct fleet_server *server)
{
    return server->online && server->slots_available > 0;
}

enum group { WITH_ROOM, FULL, OFFLINE };

static enum group group_of(const struct fleet_server *server)
{
    return !server->online ? OFFLINE : has_room(server) ? WITH_ROOM : FULL;
}

struct fleet fleet_sum(const struct fleet_server *servers, size_t count)
{
    struct fleet fleet = {.status = FLEET_DEGRADED};
    size_t roomy = 0;

    for (size_t i = 0; i < count; i++) {
        fleet.total_slots += servers[i].slots_max;
        if (has_room(&servers[i]))
            fleet.available_slots += servers[i].slots_available;
        roomy += has_room(&servers[i]);
    }
    if (roomy > 0)
        fleet.status = roomy == count ? FLEET_HEALTHY : FLEET_PARTIAL;
    assert((fleet.available_slots > 0) == (roomy > 0));
    return fleet;
}

/* Appends the names of a group, followed by `suffix`; returns how many there were. */
static size_t add_names(const struct fleet_server *servers, size_t count, enum group group,
                        const char *suffix, struct buf *text)
{
    size_t named = 0;

    for (size_t i = 0; i < count; i++) {
        if (group_of(&servers[i]) != group)
            continue;
        if (named++ > 0)
            buf_str(text, STR(", "));
        buf_str(text, servers[i].name.len ? servers[i].name : servers[i].id);
    }
    if (named > 0)
        buf_str(text, str_of(suffix));
    return named;
}

/* The type was already listed by a server with room before this position. */
static bool seen_before(const struct fleet_server *servers, size_t server, size_t at)
{
    struct str type = servers[server].available_for.at[at];

    for (size_t i = 0; i <= server; i++) {
        size_t end = i < server ? servers[i].available_for.count : at;

        for (size_t j = 0; has_room(&servers[i]) && j < end; j++)
            if (str_eq(servers[i].available_for.at[j], type))
                return true;
    }
    return false;
}

static size_t add_types(const struct fleet_server *servers, size_t count, struct buf *text)
{
    size_t named = 0;

    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; has_room(&servers[i]) && j < servers[i].available_for.count; j++)
            if (str_is(servers[i].available_for.at[j], "*")) {
                buf_str(text, STR("all types"));
                return 1;
            }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; has_room(&servers[i]) && j < servers[i].available_for.count; j++) {
            if (seen_before(servers, i, j))
                continue;
            if (named++ > 0)
                buf_str(text, STR(", "));
            buf_str(text, servers[i].available_for.at[j]);
        }
    }
    return named;
}

void fleet_recommend(const struct fleet_server *servers, size_t count, struct buf *ret_text)
{
    enum fleet_status status = fleet_sum(servers, count).status;
    size_t online = 0, before = ret_text->len, ahead;

    for (size_t i = 0; i < count; i++)
        online += servers[i].online;
    if (status != FLEET_PARTIAL) {
        buf_str(ret_text, status == FLEET_HEALTHY ? STR("All servers have room")
                          : online                ? STR("No server has room; work waits")
                                                  : STR("No server is online"));
        return;
    }
    add_names(servers, count, FULL, " full", ret_text);
    ahead = ret_text->len;
    if (ahead > before)
        buf_str(ret_text, STR(", "));
    if (add_names(servers, count, OFFLINE, " offline", ret_text) == 0)
        ret_text->len = ahead;
    ahead = ret_text->len;
    assert(ahead > before); /* else it would be healthy */
    buf_str(ret_text, STR("; "));
    if (add_types(servers, count, ret_text) == 0) { /* a slot, but no type may use it now */
        ret_text->len = ahead;
        return;
    }
    buf_str(ret_text, STR(" can go to "));
    add_names(servers, count, WITH_ROOM, "", ret_text);
}
