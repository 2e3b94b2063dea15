/* Lanes in order of their turns. An order has a line for each key and priority, and each line holds
 * its lanes: when a key was served only its lines move, and those only when they are looked at. */
#include "sched/shares.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "store/chain.h"

/* A turn of weight 1, divisible by all weights up to 16, so that turns come out even. The priority
 * outweighs any number of turns. */
#define TURN     INT64_C(720720)
#define PRIORITY (INT64_C(1) << 58)

/* A share that could not be served for a long time gets at most this many turns to catch up. */
#define BEHIND_MOST (4 * TURN)

struct share {
    struct str key; /* our memory; at == NULL: none */
    uint64_t hash;
    size_t lanes;
    int32_t weight;
    uint64_t rules_read; /* shares->rules_read when the weight was looked up */
    int64_t had[SHARES_PRIORITIES];
    size_t waiting[SHARES_PRIORITIES]; /* lanes in some order */
    struct chain lines;                /* of share_line.in_share */
};

struct share_line {
    struct share_order *order;
    struct share *share;
    int priority;
    uint64_t number;       /* in order->by_key */
    struct heap lanes;     /* of share_place.node, by job */
    struct heap_node head; /* in order->lines; its key may predate the last turns */
    struct chain in_share;
};

static struct share *share_new(struct str key)
{
    struct share *share = mem_new(struct share);

    share->weight = 1;
    chain_init(&share->lines);
    if (key.at) {
        share->key = mem_str(key);
        share->hash = str_hash(key);
    }
    return share;
}

static void line_free(struct share_line *line)
{
    assert(!line->lanes.count);
    heap_del(&line->order->lines, &line->head);
    idmap_del(&line->order->by_key, line->number);
    chain_del(&line->in_share);
    heap_free(&line->lanes);
    free(line);
}

static void share_free(struct share *share)
{
    while (share->lines.next != &share->lines)
        line_free(container_of(share->lines.next, struct share_line, in_share));
    free((void *)share->key.at);
    free(share);
}

void shares_init(struct shares *shares)
{
    *shares = (struct shares){.plain = share_new(STR_NONE)};
}

void shares_done(struct shares *shares)
{
    struct share *share;

    for (size_t i = 0; (share = idmap_next(&shares->by_key, &i));)
        share_free(share);
    share_free(shares->plain);
    idmap_free(&shares->by_key);
    arena_free(&shares->arena);
}

/* Keys with equal hashes share their turns. */
struct share *shares_enter(struct shares *shares, struct str key)
{
    uint64_t hash = key.at ? str_hash(key) : 0;
    struct share *share = hash ? idmap_get(&shares->by_key, hash) : shares->plain;

    if (!share) {
        share = share_new(key);
        idmap_put(&shares->by_key, hash, share);
    }
    share->lanes++;
    return share;
}

void shares_leave(struct shares *shares, struct share *share)
{
    assert(share->lanes > 0);
    if (--share->lanes > 0 || share == shares->plain)
        return;
    idmap_del(&shares->by_key, share->hash);
    share_free(share);
}

void shares_set_rules(struct shares *shares, const struct store_limit *rules, size_t count)
{
    arena_reset(&shares->arena);
    struct store_limit *copy = arena_array(&shares->arena, struct store_limit, count + 1);

    for (size_t i = 0; i < count; i++)
        copy[i] = (struct store_limit){.pattern = arena_str(&shares->arena, rules[i].pattern),
                                       .limit = rules[i].limit};
    shares->rules = copy;
    shares->rule_count = count;
    shares->rules_read++;
}

static void find_weight(const struct shares *shares, struct share *share)
{
    const struct store_limit *best = NULL;

    if (share->rules_read == shares->rules_read)
        return;
    for (size_t i = 0; share->key.at && i < shares->rule_count; i++) {
        const struct store_limit *rule = &shares->rules[i];

        if (limit_matches(rule->pattern, share->key) &&
            (!best || limit_is_closer(rule->pattern, best->pattern)))
            best = rule;
    }
    share->weight = best && best->limit.weight > 0 ? best->limit.weight : 1;
    share->rules_read = shares->rules_read;
}

struct share_turn shares_take_turn(struct shares *shares, struct share *share, int priority)
{
    int64_t before = share->had[priority], now = shares->now[priority];
    int64_t from = before < now - BEHIND_MOST ? now - BEHIND_MOST : before;

    find_weight(shares, share);
    share->had[priority] = from + TURN / share->weight;
    return (struct share_turn){.from = from, .size = share->had[priority] - before};
}

void shares_use_turn(struct shares *shares, int priority, struct share_turn turn)
{
    if (turn.size && turn.from > shares->now[priority])
        shares->now[priority] = turn.from;
}

void shares_give_back(struct share *share, int priority, struct share_turn turn)
{
    share->had[priority] -= turn.size;
}

/* --- orders --- */

static int64_t key_of(const struct share_line *line)
{
    return -line->priority * PRIORITY + line->share->had[line->priority];
}

void share_order_done(struct share_order *order)
{
    struct share_line *line;

    assert(!order->count);
    for (size_t i = 0; order->by_key.count && (line = idmap_next(&order->by_key, &i)); i = 0)
        line_free(line);
    heap_free(&order->lines);
    idmap_free(&order->by_key);
}

/* Puts the line in its position among others, by its first lane. */
static void line_changed(struct share_line *line)
{
    const struct heap_node *top = heap_top(&line->lanes);

    heap_del(&line->order->lines, &line->head);
    if (!top)
        return;
    line->head.key = key_of(line);
    line->head.tie = top->tie;
    heap_add(&line->order->lines, &line->head);
}

void share_order_put(struct shares *shares, struct share_order *order, struct share_place *place,
                     struct share *share, int priority, uint64_t job)
{
    assert(!place->line && priority >= 0 && priority < SHARES_PRIORITIES);
    share = share ? share : shares->plain;
    /* Unique for each share and priority, since shares have different addresses. */
    uint64_t number = (uint64_t)(uintptr_t)share * 16 + (uint64_t)priority + 1;
    struct share_line *line = idmap_get(&order->by_key, number);
    if (!line) {
        line = mem_new(struct share_line);
        line->order = order;
        line->share = share;
        line->priority = priority;
        line->number = number;
        chain_init(&line->in_share);
        chain_add_last(&share->lines, &line->in_share);
        idmap_put(&order->by_key, number, line);
    }
    if (share->waiting[priority]++ == 0 && share->had[priority] < shares->now[priority])
        share->had[priority] = shares->now[priority];
    place->line = line;
    place->node = (struct heap_node){.tie = job};
    heap_add(&line->lanes, &place->node);
    order->count++;
    line_changed(line);
}

void share_order_del(struct share_place *place)
{
    struct share_line *line = place->line;

    if (!line)
        return;
    heap_del(&line->lanes, &place->node);
    place->line = NULL;
    assert(line->order->count > 0 && line->share->waiting[line->priority] > 0);
    line->order->count--;
    line->share->waiting[line->priority]--;
    line_changed(line);
}

static struct share_line *line_at(struct heap_node *head)
{
    return container_of(head, struct share_line, head);
}

struct share_place *share_order_first(struct share_order *order)
{
    struct heap_node *top;

    while ((top = heap_top(&order->lines)) && top->key != key_of(line_at(top)))
        heap_move(&order->lines, top, key_of(line_at(top))); /* it was served since */
    return top ? container_of(heap_top(&line_at(top)->lanes), struct share_place, node) : NULL;
}

size_t share_order_some(struct share_order *order, size_t max, struct share_place **ret_places)
{
    enum { MOST = 64, OF_ONE = 4 };
    struct heap_node *lines[MOST], *lanes[MOST];
    size_t count = 0, line_count;

    assert(max <= MOST);
    if (!share_order_first(order))
        return 0;
    line_count = heap_first(&order->lines, max, lines);
    for (size_t i = 0; i < line_count && count < max; i++) {
        size_t most = max - count < OF_ONE ? max - count : OF_ONE;
        size_t lane_count = heap_first(&line_at(lines[i])->lanes, most, lanes);

        for (size_t n = 0; n < lane_count; n++)
            ret_places[count++] = container_of(lanes[n], struct share_place, node);
    }
    return count;
}

struct heap_node share_place_key(const struct share_place *place)
{
    assert(place->line);
    return (struct heap_node){.key = key_of(place->line), .tie = place->node.tie};
}
