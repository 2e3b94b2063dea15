/* NODES and COUNTS, page by page: a HGETALL of ten thousand nodes would stop Redis for all. A node
 * is one field, so each is as it was at one moment; which moment is told by `order`, read before.
 */
#include "store/redis_read.h"

#include "base/map.h"
#include "base/mem.h"
#include "store/redis_wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_COUNT "256"

struct nodes {
    struct redis_read *read;
    struct map seen; /* a scan may tell one twice */
    struct store_node *items;
    size_t count;
    size_t cap;
};

static bool read_order(struct redis_read *read)
{
    redisReply *reply = redis_read_checked(
        read,
        redis_link_ask(read->link, read->deadline_ms, "HGET", REDIS_KEY "meta", "state", NULL),
        REDIS_REPLY_STRING, "read the order");

    if (!reply)
        return false;
    read->op->order = wire_order(redis_text(reply));
    freeReplyObject(reply);
    return true;
}

static void add_node(struct nodes *nodes, struct str id, struct str packed)
{
    struct arena *arena = nodes->read->op->arena;
    struct wire_node node;
    size_t cap = nodes->cap;

    if (map_get(&nodes->seen, id) || !wire_node_read(packed, &node) || !node.known)
        return;
    if (nodes->count == cap) {
        nodes->cap = cap ? cap * 2 : 64;
        nodes->items = cap ? arena_resize(arena, nodes->items, cap * sizeof *nodes->items,
                                          nodes->cap * sizeof *nodes->items)
                           : arena_array(arena, struct store_node, nodes->cap);
    }
    nodes->items[nodes->count] = (struct store_node){.id = arena_str(arena, id),
                                                     .counts = node.counts,
                                                     .own = node.own,
                                                     .admin = node.admin,
                                                     .admin_reason = STR(""),
                                                     .registered_ms = node.registered_ms,
                                                     .version = node.version};
    map_put(&nodes->seen, nodes->items[nodes->count].id, nodes->read);
    nodes->count++;
}

/* The texts of some nodes out of one hash. */
static bool read_texts(struct nodes *nodes, const char *key, size_t from, size_t offset)
{
    struct redis_read *read = nodes->read;
    size_t count = nodes->count - from;
    const char **words = mem_array(const char *, count + 2);
    redisReply *reply;

    words[0] = "HMGET";
    words[1] = key;
    for (size_t i = 0; i < count; i++)
        words[i + 2] = nodes->items[from + i].id.at; /* arena_str ends it with a NUL */
    reply = redis_read_list(read, (struct redis_args){.count = (int)count + 2, .texts = words},
                            "read the nodes");
    free(words);
    if (!reply)
        return false;
    for (size_t i = 0; i < count && i < reply->elements; i++) {
        struct str text = redis_text(reply->element[i]);
        struct str *field = (struct str *)((char *)&nodes->items[from + i] + offset);

        *field = text.at ? arena_str(read->op->arena, text) : STR("");
    }
    freeReplyObject(reply);
    return true;
}

/* One page; *cursor becomes "0" at the end. */
static bool scan(struct nodes *nodes, char cursor[32])
{
    struct redis_read *read = nodes->read;
    size_t from = nodes->count;
    redisReply *reply =
        redis_read_checked(read,
                           redis_link_ask(read->link, read->deadline_ms, "HSCAN", REDIS_KEY "n",
                                          cursor, "COUNT", SCAN_COUNT, NULL),
                           REDIS_REPLY_ARRAY, "read the nodes");
    const redisReply *list;

    if (!reply)
        return false;
    if (reply->elements != 2 || reply->element[1]->type != REDIS_REPLY_ARRAY ||
        !str_copy(redis_text(reply->element[0]), cursor, 32)) {
        freeReplyObject(reply);
        return redis_link_fail(read->link, "read the nodes", "not a page");
    }
    list = reply->element[1];
    for (size_t i = 0; i + 1 < list->elements; i += 2)
        add_node(nodes, redis_text(list->element[i]), redis_text(list->element[i + 1]));
    freeReplyObject(reply);
    if (nodes->count == from)
        return true;
    if (!read_texts(nodes, REDIS_KEY "admin", from, offsetof(struct store_node, admin_reason)))
        return false;
    return read->op->verb != STORE_NODES ||
           read_texts(nodes, REDIS_KEY "facts", from, offsetof(struct store_node, facts));
}

bool redis_read_nodes(struct redis_read *read)
{
    struct nodes nodes = {.read = read};
    char cursor[32] = "0";
    bool ok = read_order(read);

    while (ok) {
        ok = scan(&nodes, cursor);
        if (!ok || strcmp(cursor, "0") == 0)
            break;
    }
    map_free(&nodes.seen);
    read->op->u.nodes.items = nodes.items;
    read->op->u.nodes.count = ok ? nodes.count : 0;
    return ok;
}
