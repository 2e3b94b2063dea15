/* Keeps rules, keys, and the demands that name them. Rules are a sorted array: a key's rule is
 * found by the key's prefixes and looked up again when rules have changed. Keys are in a map, and
 * in a tree by name for listing. Demands are stored by text, which is parsed for the first job that
 * has it. */
#include "store/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/journal.h"

enum { TIDY_KEYS = 1024 }; /* checked in one pass */

static int compare_names(const void *key, const struct tree_node *node)
{
    return str_cmp(*(const struct str *)key, container_of(node, struct limits_key, by_name)->name);
}

void limits_init(struct limits *limits)
{
    *limits = (struct limits){.version = 1, .by_name.compare = compare_names};
    chain_init(&limits->dirty);
    chain_init(&limits->idle);
}

/* The first key after `name`; unless `after` is set, `name` itself also counts. NULL: none. */
static struct limits_key *key_from(const struct limits *limits, struct str name, bool after)
{
    struct tree_node *node =
        after ? tree_after(&limits->by_name, &name) : tree_from(&limits->by_name, &name);

    return node ? container_of(node, struct limits_key, by_name) : NULL;
}

static void key_free(struct limits_key *key)
{
    limit_window_free(&key->state.window);
    buf_free(&key->reason);
    free(key);
}

static void drop(struct limits *limits, struct limits_key *key)
{
    assert(!key->refs && !key->state.in_flight && !key->state.waiting);
    tree_del(&limits->by_name, &key->by_name, &key->name);
    map_del(&limits->keys, key->name);
    chain_del(&key->dirty);
    chain_del(&key->idle);
    key_free(key);
}

void limits_free(struct limits *limits)
{
    struct limits_demand *demand;
    struct limits_key *key;

    for (size_t at = 0; (demand = map_next(&limits->demands, &at));)
        free(demand);
    map_free(&limits->demands);
    for (size_t at = 0; (key = map_next(&limits->keys, &at));)
        key_free(key);
    map_free(&limits->keys);
    for (size_t i = 0; i < limits->rule_count; i++)
        free((char *)limits->rules[i].pattern.at);
    free(limits->rules);
    limits_init(limits);
}

/* --- rules --- */

/* The pattern's index, or where it would be inserted. */
static bool find_rule(const struct limits *limits, struct str pattern, size_t *ret_at)
{
    size_t first = 0, end = limits->rule_count;

    while (first < end) {
        size_t middle = first + (end - first) / 2;

        if (str_cmp(limits->rules[middle].pattern, pattern) < 0)
            first = middle + 1;
        else
            end = middle;
    }
    *ret_at = first;
    return first < limits->rule_count && str_eq(limits->rules[first].pattern, pattern);
}

static void put_rule(struct limits *limits, struct str pattern, const struct limit *limit)
{
    char *text;
    size_t at;

    limits->version++;
    if (find_rule(limits, pattern, &at)) {
        limits->rules[at].limit = *limit;
        return;
    }
    limits->rules = mem_resize(limits->rules, (limits->rule_count + 1) * sizeof *limits->rules);
    memmove(&limits->rules[at + 1], &limits->rules[at],
            (limits->rule_count - at) * sizeof *limits->rules);
    limits->rule_count++;
    text = mem_alloc(pattern.len);
    memcpy(text, pattern.at, pattern.len);
    limits->rules[at] =
        (struct store_limit){.pattern = {.at = text, .len = pattern.len}, .limit = *limit};
}

void ledger_limit_set(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct limits *limits = &ledger->limits;
    struct str pattern = op->u.limit.pattern;
    struct change change = {.kind = CHANGE_LIMIT, .u.limit = {pattern, op->u.limit.limit}};
    size_t at;
    bool known = find_rule(limits, pattern, &at);

    if (!limit_is_pattern(pattern)) {
        op->err = ERR_BAD_FIELD;
    } else if (op->u.limit.drop && !known) {
        op->err = ERR_NOT_FOUND;
    } else if (op->u.limit.drop) {
        change.kind = CHANGE_LIMIT_DEL;
        journal_put(ledger->journal, &change);
        free((char *)limits->rules[at].pattern.at);
        limits->rule_count--;
        memmove(&limits->rules[at], &limits->rules[at + 1],
                (limits->rule_count - at) * sizeof *limits->rules);
        limits->version++;
    } else if (!known && limits->rule_count == LIMIT_RULES_MAX) {
        op->err = ERR_CONFLICT;
    } else {
        put_rule(limits, pattern, &op->u.limit.limit);
        journal_put(ledger->journal, &change);
    }
}

/* The most specific rule: one with the key's own name, else the longest prefix. */
static const struct limit *limits_rule(const struct limits *limits, struct limits_key *key)
{
    char pattern[DEMAND_FULL_KEY_MAX + 1];
    size_t at;
    bool found;

    if (key->version == limits->version)
        return &key->limit;
    assert(key->name.len < sizeof pattern);
    memcpy(pattern, key->name.at, key->name.len);
    found = find_rule(limits, key->name, &at);
    for (size_t len = key->name.len + 1; !found && len-- > 0;) {
        pattern[len] = '*';
        found = find_rule(limits, (struct str){.at = pattern, .len = len + 1}, &at);
    }
    key->rule = found ? (int32_t)at : -1;
    key->limit = found ? limits->rules[at].limit : limit_none;
    key->version = limits->version;
    return &key->limit;
}

/* --- keys --- */

/* Adds a reference to the key; creates it if needed. */
static struct limits_key *use(struct limits *limits, struct str name)
{
    struct limits_key *key = map_get(&limits->keys, name);

    if (!key) {
        key = mem_zeroed(1, sizeof *key + name.len);
        memcpy(key->text, name.at, name.len);
        key->name = (struct str){.at = key->text, .len = name.len};
        chain_init(&key->dirty);
        chain_init(&key->idle);
        map_put(&limits->keys, key->name, key);
        tree_add(&limits->by_name, &key->by_name, &key->name);
    }
    key->refs++;
    chain_del(&key->idle);
    return key;
}

static void unuse(struct limits *limits, struct limits_key *key)
{
    assert(key->refs > 0);
    if (--key->refs > 0)
        return;
    if (!key->written && chain_alone(&key->dirty))
        drop(limits, key);
    else
        chain_add_last(&limits->idle, &key->idle);
}

static void changed(struct limits *limits, struct limits_key *key)
{
    if (chain_alone(&key->dirty))
        chain_add_last(&limits->dirty, &key->dirty);
}

struct limit_block limits_check(struct limits *limits, struct limits_key *key, int64_t steady_ms)
{
    bool had_starts = key->state.window.count > 0;
    struct limit_block block = limit_check(&key->state, limits_rule(limits, key), steady_ms);

    /* Its rule no longer has a rate. */
    if (had_starts && key->limit.rate == LIMIT_NONE && !key->state.window.count)
        changed(limits, key);
    return block;
}

struct limit_block limits_check_queue(struct limits *limits, struct limits_key *key)
{
    return limit_check_queue(&key->state, limits_rule(limits, key));
}

void limits_start(struct limits *limits, struct limits_key *key, int64_t steady_ms)
{
    const struct limit *limit = limits_rule(limits, key);

    if (limit->rate == LIMIT_NONE)
        return;
    limit_window_add(&key->state.window, limit, steady_ms);
    changed(limits, key);
}

void limits_undo(struct limits *limits, struct limits_key *key, int64_t at_ms)
{
    const struct limit *limit = limits_rule(limits, key);

    if (limit->rate == LIMIT_NONE)
        return;
    limit_window_undo(&key->state.window, limit, at_ms);
    changed(limits, key);
}

void limits_take(struct limits *limits, struct limits_key *key, uint64_t job)
{
    key->state.in_flight++;
    if (key->holder_count < LIMIT_HOLDERS && limits_rule(limits, key)->concurrency != LIMIT_NONE)
        key->holders[key->holder_count++] = job;
}

void limits_give(struct limits_key *key, uint64_t job)
{
    key->state.in_flight--;
    assert(key->state.in_flight >= 0);
    for (size_t i = 0; i < key->holder_count; i++) {
        if (key->holders[i] != job)
            continue;
        key->holder_count--;
        memmove(&key->holders[i], &key->holders[i + 1],
                (key->holder_count - i) * sizeof key->holders[0]);
        break;
    }
}

void limits_hold(struct limits *limits, struct limits_key *key, int64_t until_ms, struct str reason)
{
    key->state.hold_until_ms = until_ms;
    buf_clear(&key->reason);
    if (until_ms)
        buf_str(&key->reason, reason);
    changed(limits, key);
}

void ledger_limit_hold(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct limits *limits = &ledger->limits;
    int64_t hold_ms = op->u.limit.hold_ms;
    struct limits_key *key;

    if (!demand_is_key(op->u.limit.pattern) || hold_ms < 0 || hold_ms > LIMIT_HOLD_MS_MAX ||
        op->u.limit.reason.len > LIMIT_REASON_MAX) {
        op->err = ERR_BAD_FIELD;
        return;
    }
    if (!hold_ms && !map_get(&limits->keys, op->u.limit.pattern))
        return;
    key = use(limits, op->u.limit.pattern);
    limits_hold(limits, key, hold_ms ? ledger_steady_ms(ledger, now_ms) + hold_ms : 0,
                op->u.limit.reason);
    unuse(limits, key);
}

/* --- demands --- */

bool limits_use_demand(struct limits *limits, struct str text, struct limits_demand **ret_demand)
{
    struct limits_demand *demand = text.len ? map_get(&limits->demands, text) : NULL;

    if (text.len && !demand) {
        demand = mem_zeroed(1, sizeof *demand + text.len);
        memcpy(demand->bytes, text.at, text.len);
        demand->text = (struct str){.at = demand->bytes, .len = text.len};
        if (!demand_parse(demand->text, &demand->demand)) {
            free(demand);
            return false;
        }
        demand->has_needs =
            demand->demand.need_count > 0 || demand->demand.gpus || demand->demand.vram_mb;
        for (size_t i = 0; i < demand->demand.key_count; i++)
            demand->keys[i] = use(limits, demand->demand.keys[i]);
        map_put(&limits->demands, demand->text, demand);
    }
    if (demand)
        demand->refs++;
    *ret_demand = demand;
    return true;
}

void limits_unuse_demand(struct limits *limits, struct limits_demand *demand)
{
    if (!demand)
        return;
    assert(demand->refs > 0);
    if (--demand->refs > 0)
        return;
    for (size_t i = 0; i < demand->demand.key_count; i++)
        unuse(limits, demand->keys[i]);
    map_del(&limits->demands, demand->text);
    free(demand);
}

/* --- the list --- */

static bool is_in_use(const struct limits_key *key, int64_t steady_ms)
{
    return key->state.in_flight || key->state.waiting || key->state.window.total > 0 ||
           key->state.hold_until_ms > steady_ms;
}

/* The next key in use; drops starts that have left its window. */
static struct limits_key *next_in_use(struct limits *limits, struct limits_key *key,
                                      struct str prefix, int64_t steady_ms)
{
    for (; key && str_starts(key->name, prefix); key = key_from(limits, key->name, true)) {
        limit_window_wait_ms(&key->state.window, limits_rule(limits, key), steady_ms);
        if (is_in_use(key, steady_ms))
            return key;
    }
    return NULL;
}

static struct store_limit_key shown(const struct limits *limits, const struct limits_key *key,
                                    struct arena *arena, int64_t steady_ms)
{
    bool held = key->state.hold_until_ms > steady_ms;
    struct store_limit_key shown = {
        .key = arena_str(arena, key->name),
        .pattern = key->rule >= 0 ? arena_str(arena, limits->rules[key->rule].pattern) : STR_NONE,
        .in_flight = key->state.in_flight,
        .waiting = key->state.waiting,
        .started = (int32_t)key->state.window.total,
        .hold_ms = held ? key->state.hold_until_ms - steady_ms : 0,
        .hold_reason = held ? arena_str(arena, buf_view(&key->reason)) : STR_NONE,
        .holder_count = key->holder_count,
    };

    memcpy(shown.holders, key->holders, key->holder_count * sizeof key->holders[0]);
    return shown;
}

void ledger_limits(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct limits *limits = &ledger->limits;
    int64_t steady_ms = ledger_steady_ms(ledger, now_ms);
    struct str prefix = op->u.limits.prefix, after = op->u.limits.after;
    bool goes_on = after.at && str_cmp(after, prefix) >= 0;
    size_t max = op->u.limits.max < limits->keys.count ? op->u.limits.max : limits->keys.count;
    struct limits_key *key =
        next_in_use(limits, key_from(limits, goes_on ? after : prefix, goes_on), prefix, steady_ms);

    assert(op->arena);
    op->u.limits.version = limits->version;
    op->u.limits.rule_count = limits->rule_count;
    op->u.limits.rules = arena_array(op->arena, struct store_limit, limits->rule_count);
    for (size_t i = 0; i < limits->rule_count; i++)
        op->u.limits.rules[i] =
            (struct store_limit){.pattern = arena_str(op->arena, limits->rules[i].pattern),
                                 .limit = limits->rules[i].limit};
    op->u.limits.keys = arena_array(op->arena, struct store_limit_key, max);
    op->u.limits.key_count = 0;
    while (key && op->u.limits.key_count < max) {
        op->u.limits.keys[op->u.limits.key_count++] = shown(limits, key, op->arena, steady_ms);
        key = next_in_use(limits, key_from(limits, key->name, true), prefix, steady_ms);
    }
    op->u.limits.more = key && op->u.limits.max > 0;
}

/* --- rows --- */

void limits_load(struct limits *limits, struct journal *journal)
{
    struct change row;

    while (journal_next(journal, CHANGE_LIMIT, &row))
        put_rule(limits, row.u.limit.pattern, &row.u.limit.limit);
    while (journal_next(journal, CHANGE_LIMIT_KEY, &row)) {
        struct limits_key *key = use(limits, row.u.limit_key.key);

        key->written = true;
        key->state.hold_until_ms = row.u.limit_key.hold_until_ms;
        buf_str(&key->reason, row.u.limit_key.reason);
        /* Invalid text is ignored: it does not block any start. */
        limit_window_parse(row.u.limit_key.starts, &key->state.window);
        unuse(limits, key);
    }
}

void limits_write(struct limits *limits, struct journal *journal)
{
    struct buf starts = {0};

    while (!chain_alone(&limits->dirty)) {
        struct limits_key *key = container_of(limits->dirty.next, struct limits_key, dirty);

        chain_del(&key->dirty);
        buf_clear(&starts);
        limit_window_write(&key->state.window, &starts);
        if (starts.len || key->state.hold_until_ms) {
            journal_put(journal, &(struct change){
                                     .kind = CHANGE_LIMIT_KEY,
                                     .u.limit_key = {key->name, key->state.hold_until_ms,
                                                     buf_view(&key->reason), buf_view(&starts)}});
            key->written = true;
        } else if (key->written) {
            journal_put(journal, &(struct change){.kind = CHANGE_LIMIT_KEY_DEL,
                                                  .u.limit_key.key = key->name});
            key->written = false;
        }
    }
    buf_free(&starts);
}

void limits_tidy(struct limits *limits, struct journal *journal, int64_t steady_ms)
{
    int budget = TIDY_KEYS;

    limits_write(limits, journal);
    for (struct chain *at = limits->idle.next, *last = limits->idle.prev;
         at != &limits->idle && budget-- > 0;) {
        struct limits_key *key = container_of(at, struct limits_key, idle);
        bool is_last = at == last;

        at = at->next;
        limit_window_wait_ms(&key->state.window, limits_rule(limits, key), steady_ms);
        if (is_in_use(key, steady_ms)) {
            chain_del(&key->idle);
            chain_add_last(&limits->idle, &key->idle);
        } else {
            if (key->written)
                journal_put(journal, &(struct change){.kind = CHANGE_LIMIT_KEY_DEL,
                                                      .u.limit_key.key = key->name});
            drop(limits, key);
        }
        if (is_last)
            break;
    }
}

void limits_verify(const struct limits *limits)
{
    const struct limits_key *key = key_from(limits, STR_NONE, false);
    size_t count = 0;

    tree_check(&limits->by_name);
    for (; key; key = key_from(limits, key->name, true), count++) {
        assert(map_get(&limits->keys, key->name) == key);
        assert((key->refs == 0) == !chain_alone(&key->idle));
        assert(key->refs || (!key->state.in_flight && !key->state.waiting));
        assert(key->holder_count <= key->state.in_flight);
        assert(key->written || !chain_alone(&key->dirty) ||
               (!key->state.window.count && !key->state.hold_until_ms));
    }
    assert(count == limits->keys.count);
    for (size_t i = 1; i < limits->rule_count; i++)
        assert(str_cmp(limits->rules[i - 1].pattern, limits->rules[i].pattern) < 0);
}
