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

enum { NAMED_MAX = 256 }; /* of one call */

struct nodes {
    struct redis_read *read;
    struct wire_state state; /* before the first of them was read */
    struct str *ids;         /* scratch: of the page */
    struct map seen;         /* a scan may tell one twice */
    struct store_node *items;
    size_t count;
    size_t cap;
};

bool redis_read_state(struct redis_read *read, struct wire_state *ret_state)
{
    redisReply *reply = redis_read_checked(
        read,
        redis_link_ask(read->link, read->deadline_ms, "HGET", REDIS_KEY "meta", "state", NULL),
        REDIS_REPLY_STRING, "read the order");

    if (!reply)
        return false;
    *ret_state = wire_state_read(redis_text(reply));
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

/* The texts of some nodes out of one hash; NULL: it cannot be read. */
static redisReply *get_texts(struct nodes *nodes, const char *key, const struct str *ids,
                             size_t count)
{
    const char **words = mem_array(const char *, count + 2);
    size_t *lens = mem_array(size_t, count + 2);
    redisReply *reply;

    words[0] = "HMGET";
    words[1] = key;
    lens[0] = strlen(words[0]);
    lens[1] = strlen(key);
    for (size_t i = 0; i < count; i++) {
        words[i + 2] = ids[i].at;
        lens[i + 2] = ids[i].len;
    }
    reply = redis_read_list(
        nodes->read, (struct redis_args){.count = (int)count + 2, .texts = words, .lens = lens},
        "read the nodes");
    free(words);
    free(lens);
    if (reply && reply->elements != count) {
        freeReplyObject(reply);
        redis_link_fail(nodes->read->link, "read the nodes", "not as many as were asked for");
        return NULL;
    }
    return reply;
}

static void take_reason(struct nodes *nodes, struct store_node *node, struct str text)
{
    node->admin_reason = text.at ? arena_str(nodes->read->op->arena, text) : STR("");
}

static void take_facts(struct nodes *nodes, struct store_node *node, struct str text)
{
    node->facts = text.at ? arena_str(nodes->read->op->arena, text) : STR("");
}

typedef void take_text(struct nodes *nodes, struct store_node *node, struct str text);

static bool read_texts(struct nodes *nodes, const char *key, size_t from, take_text *take)
{
    size_t count = nodes->count - from;
    redisReply *reply = get_texts(nodes, key, nodes->ids, count);

    if (!reply)
        return false;
    for (size_t i = 0; i < count; i++)
        take(nodes, &nodes->items[from + i], redis_text(reply->element[i]));
    freeReplyObject(reply);
    return true;
}

/* Where they are and when they were heard of. */
static bool read_live(struct nodes *nodes, size_t from)
{
    size_t count = nodes->count - from;
    redisReply *links = get_texts(nodes, REDIS_KEY "links", nodes->ids, count);
    redisReply *lives = links ? get_texts(nodes, REDIS_KEY "live", nodes->ids, count) : NULL;

    for (size_t i = 0; lives && i < count; i++)
        wire_live_read(redis_text(links->element[i]), redis_text(lives->element[i]),
                       nodes->state.now_ms, &nodes->items[from + i].live);
    if (lives)
        freeReplyObject(lives);
    if (links)
        freeReplyObject(links);
    return lives != NULL;
}

/* What stands beside the records of those added since `from`. */
static bool read_beside(struct nodes *nodes, size_t from)
{
    size_t count = nodes->count - from;

    if (count == 0)
        return true;
    nodes->ids = mem_resize(nodes->ids, count * sizeof *nodes->ids);
    for (size_t i = 0; i < count; i++)
        nodes->ids[i] = nodes->items[from + i].id;
    return read_texts(nodes, REDIS_KEY "admin", from, take_reason) && read_live(nodes, from) &&
           (nodes->read->op->verb != STORE_NODES ||
            read_texts(nodes, REDIS_KEY "facts", from, take_facts));
}

/* Those that were asked for by name, a page at a time. */
static bool read_named(struct nodes *nodes)
{
    const struct store_op *op = nodes->read->op;

    for (size_t at = 0; at < op->u.nodes.id_count; at += NAMED_MAX) {
        const struct str *ids = op->u.nodes.ids + at;
        size_t left = op->u.nodes.id_count - at;
        size_t count = left < NAMED_MAX ? left : NAMED_MAX;
        size_t from = nodes->count;
        redisReply *reply = get_texts(nodes, REDIS_KEY "n", ids, count);

        if (!reply)
            return false;
        for (size_t i = 0; i < count; i++)
            add_node(nodes, ids[i], redis_text(reply->element[i]));
        freeReplyObject(reply);
        if (!read_beside(nodes, from))
            return false;
    }
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
    return read_beside(nodes, from);
}

bool redis_read_nodes(struct redis_read *read)
{
    struct nodes nodes = {.read = read};
    char cursor[32] = "0";
    bool ok = redis_read_state(read, &nodes.state);
    bool named = read->op->verb == STORE_NODES && read->op->u.nodes.ids;

    read->op->order = nodes.state.order;
    read->op->u.nodes.version = nodes.state.version;
    if (ok && named)
        ok = read_named(&nodes);
    while (ok && !named) {
        ok = scan(&nodes, cursor);
        if (!ok || strcmp(cursor, "0") == 0)
            break;
    }
    map_free(&nodes.seen);
    free(nodes.ids);
    read->op->u.nodes.items = nodes.items;
    read->op->u.nodes.count = ok ? nodes.count : 0;
    return ok;
}
