/* NODES and COUNTS, page by page: a HGETALL of ten thousand nodes would stop Redis for all. A node
 * is one field, so each is as it was at one moment; which moment is told by `order`, read before.
 *
 * A round trip reads the records of one page and what stands beside those of the page before it, so
 * that a Redis some milliseconds away takes one trip per page, and one more.
 */
#include "store/redis_read.h"

#include "base/map.h"
#include "base/mem.h"
#include "store/format.h"
#include "store/redis_wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_COUNT "512"

enum {
    PAGE = 512,
    BESIDE_MAX = 2 * PAGE, /* nodes of one round trip: a scan may tell some more than asked for */
    FIELDS_MAX = 256,      /* of one command */
    ASKS_MAX = 1 + PAGE / FIELDS_MAX + BESIDE_MAX / FIELDS_MAX * 4,
};

/* What stands beside the records, a command each. COUNTS leaves out the last, which is long. */
enum { BESIDE_ADMIN, BESIDE_LINKS, BESIDE_LIVE, BESIDE_FACTS, BESIDE_COUNT };
static const char *const beside_keys[BESIDE_COUNT] = {REDIS_KEY "admin", REDIS_KEY "links",
                                                      REDIS_KEY "live", REDIS_KEY "facts"};

struct nodes {
    struct redis_read *read;
    struct wire_state state; /* before the first of them was read */
    struct map seen;         /* a scan may tell one twice */
    struct store_node *items;
    size_t count;
    size_t cap;
    size_t complete; /* so many have what stands beside them */
    size_t named;    /* of those asked for by name, so many were read */
    char cursor[32]; /* of the scan */
    bool told;       /* no record is left to be read */
};

/* Takes the replies from one command on: `count` nodes were asked about. */
typedef bool take_replies(struct nodes *nodes, redisReply *const *replies, size_t count);

/* One round trip. */
struct round {
    struct arena arena; /* of the commands */
    struct redis_args args[ASKS_MAX];
    redisReply *replies[ASKS_MAX];
    take_replies *takes[ASKS_MAX]; /* NULL: taken with those before */
    size_t counts[ASKS_MAX];
    size_t asked;
};

const char *redis_state_words[4] = {"HMGET", REDIS_KEY "meta", "state", "format"};

bool redis_read_state(struct redis_read *read, const redisReply *reply,
                      struct wire_state *ret_state)
{
    struct str state, format;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        return redis_link_fail(read->link, "read the state",
                               reply->type == REDIS_REPLY_ERROR ? reply->str : NULL);
    state = redis_text(reply->element[0]);
    format = redis_text(reply->element[1]);
    *ret_state = (struct wire_state){0};
    if (!state.at || (format_is_readable(format) && wire_state_read(state, ret_state)))
        return true;
    format_explain(format, read->link->why, sizeof read->link->why);
    return false;
}

static bool add_node(struct nodes *nodes, struct str id, struct str packed)
{
    struct arena *arena = nodes->read->op->arena;
    struct wire_node node;
    size_t cap = nodes->cap;

    if (!redis_read_known(nodes->read, packed))
        return false;
    if (map_get(&nodes->seen, id) || !wire_node_read(packed, &node) || !node.known)
        return true;
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
    return true;
}

static size_t at_most(size_t count, size_t max)
{
    return count < max ? count : max;
}

static size_t beside_count(const struct nodes *nodes)
{
    return nodes->read->op->verb == STORE_NODES ? BESIDE_COUNT : BESIDE_FACTS;
}

/* --- taking --- */

static bool is_broken(struct nodes *nodes, const redisReply *reply, const char *why)
{
    redis_link_fail(nodes->read->link, "read the nodes",
                    reply->type == REDIS_REPLY_ERROR ? reply->str : why);
    return false;
}

static bool take_state(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    return redis_read_state(nodes->read, replies[0], &nodes->state);
}

static bool are_fields(struct nodes *nodes, const redisReply *reply, size_t count)
{
    return (reply->type == REDIS_REPLY_ARRAY && reply->elements == count) ||
           is_broken(nodes, reply, "not as many as were asked for");
}

static bool take_named(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    const struct store_op *op = nodes->read->op;

    if (!are_fields(nodes, replies[0], count))
        return false;
    for (size_t i = 0; i < count; i++, nodes->named++)
        if (!add_node(nodes, op->u.nodes.ids[nodes->named], redis_text(replies[0]->element[i])))
            return false;
    nodes->told = nodes->named == op->u.nodes.id_count;
    return true;
}

/* The cursor becomes "0" at the end. */
static bool take_scan(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    const redisReply *reply = replies[0];
    const redisReply *list;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[1]->type != REDIS_REPLY_ARRAY ||
        !str_copy(redis_text(reply->element[0]), nodes->cursor, sizeof nodes->cursor))
        return is_broken(nodes, reply, "not a page");
    list = reply->element[1];
    for (size_t i = 0; i + 1 < list->elements; i += 2)
        if (!add_node(nodes, redis_text(list->element[i]), redis_text(list->element[i + 1])))
            return false;
    nodes->told = strcmp(nodes->cursor, "0") == 0;
    return true;
}

static struct str kept(struct nodes *nodes, const redisReply *reply)
{
    struct str text = redis_text(reply);

    return text.at ? arena_str(nodes->read->op->arena, text) : STR("");
}

static bool take_beside(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    for (size_t kind = 0; kind < beside_count(nodes); kind++)
        if (!are_fields(nodes, replies[kind], count))
            return false;
    for (size_t i = 0; i < count; i++) {
        struct store_node *node = &nodes->items[nodes->complete++];

        node->admin_reason = kept(nodes, replies[BESIDE_ADMIN]->element[i]);
        wire_live_read(redis_text(replies[BESIDE_LINKS]->element[i]),
                       redis_text(replies[BESIDE_LIVE]->element[i]), nodes->state.now_ms,
                       &node->live);
        if (beside_count(nodes) == BESIDE_COUNT)
            node->facts = kept(nodes, replies[BESIDE_FACTS]->element[i]);
    }
    return true;
}

/* --- asking --- */

static void ask(struct round *round, struct redis_args args, take_replies *take, size_t count)
{
    assert(round->asked < ASKS_MAX);
    round->args[round->asked] = args;
    round->takes[round->asked] = take;
    round->counts[round->asked++] = count;
}

static void ask_fields(struct round *round, const char *key, const struct str *ids, size_t count,
                       take_replies *take)
{
    const char **words = arena_array(&round->arena, const char *, count + 2);
    size_t *lens = arena_array(&round->arena, size_t, count + 2);

    assert(count > 0 && count <= FIELDS_MAX);
    words[0] = "HMGET";
    words[1] = key;
    lens[0] = strlen(words[0]);
    lens[1] = strlen(key);
    for (size_t i = 0; i < count; i++) {
        words[i + 2] = ids[i].at;
        lens[i + 2] = ids[i].len;
    }
    ask(round, (struct redis_args){.count = (int)count + 2, .texts = words, .lens = lens}, take,
        count);
}

static void ask_named(struct nodes *nodes, struct round *round)
{
    const struct store_op *op = nodes->read->op;
    size_t end = at_most(op->u.nodes.id_count, nodes->named + PAGE);

    for (size_t at = nodes->named; at < end; at += FIELDS_MAX)
        ask_fields(round, REDIS_KEY "n", op->u.nodes.ids + at, at_most(end - at, FIELDS_MAX),
                   take_named);
}

static void ask_scan(struct nodes *nodes, struct round *round)
{
    static const char *const words[] = {"HSCAN", REDIS_KEY "n", "", "COUNT", SCAN_COUNT};
    const char **texts = arena_array(&round->arena, const char *, COUNT_OF(words));

    memcpy(texts, words, sizeof words);
    texts[2] = nodes->cursor;
    ask(round, (struct redis_args){.count = COUNT_OF(words), .texts = texts}, take_scan, 0);
}

static void ask_beside(struct nodes *nodes, struct round *round)
{
    size_t end = at_most(nodes->count, nodes->complete + BESIDE_MAX);

    for (size_t at = nodes->complete; at < end; at += FIELDS_MAX) {
        size_t count = at_most(end - at, FIELDS_MAX);
        struct str *ids = arena_array(&round->arena, struct str, count);

        for (size_t i = 0; i < count; i++)
            ids[i] = nodes->items[at + i].id;
        for (size_t kind = 0; kind < beside_count(nodes); kind++)
            ask_fields(round, beside_keys[kind], ids, count, kind == 0 ? take_beside : NULL);
    }
}

static bool run_round(struct nodes *nodes, struct round *round)
{
    struct redis_read *read = nodes->read;
    bool ok = true;

    if (!redis_link_call_all(read->link, round->args, round->asked, read->timeout_ms,
                             round->replies))
        return false;
    for (size_t i = 0; ok && i < round->asked; i++)
        if (round->takes[i])
            ok = round->takes[i](nodes, &round->replies[i], round->counts[i]);
    for (size_t i = 0; i < round->asked; i++)
        freeReplyObject(round->replies[i]);
    arena_reset(&round->arena);
    round->asked = 0;
    return ok;
}

bool redis_read_nodes(struct redis_read *read)
{
    struct store_op *op = read->op;
    struct nodes nodes = {.read = read, .cursor = "0"};
    struct round *round = mem_new(struct round);
    bool named = op->verb == STORE_NODES && op->u.nodes.ids;
    bool ok = true;

    ask(round,
        (struct redis_args){.count = COUNT_OF(redis_state_words), .texts = redis_state_words},
        take_state, 0);
    nodes.told = named && op->u.nodes.id_count == 0;
    do {
        if (!nodes.told && named)
            ask_named(&nodes, round);
        else if (!nodes.told)
            ask_scan(&nodes, round);
        ask_beside(&nodes, round);
        ok = run_round(&nodes, round);
    } while (ok && (!nodes.told || nodes.complete < nodes.count));
    arena_free(&round->arena);
    free(round);
    map_free(&nodes.seen);
    op->order = nodes.state.order;
    op->u.nodes.version = nodes.state.version;
    op->u.nodes.items = nodes.items;
    op->u.nodes.count = ok ? nodes.count : 0;
    return ok;
}
