/* Keeps rules, keys, and the demands that name them. Rules are a sorted array: a key's rule is
 * found by the key's prefixes and looked up again when rules have changed. Keys are in a map, and
 * in a tree by name for listing. Demands are stored by text, which is parsed for the first job that
 * has it. */
#include "store/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/demand.h"
#include "store/journal.h"

enum { TIDY_KEYS = 1024 }; /* looked at in one go */

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
    struct limits_key *key;

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

enum err limits_set(struct limits *limits, struct journal *journal, const struct store_op *op)
{
    struct str pattern = op->u.limit.pattern;
    size_t at;
    bool known = find_rule(limits, pattern, &at);

    if (!limit_is_pattern(pattern))
        return ERR_BAD_FIELD;
    if (op->u.limit.drop) {
        if (!known)
            return ERR_NOT_FOUND;
        journal_limit_del(journal, pattern);
        free((char *)limits->rules[at].pattern.at);
        limits->rule_count--;
        memmove(&limits->rules[at], &limits->rules[at + 1],
                (limits->rule_count - at) * sizeof *limits->rules);
        limits->version++;
        return ERR_OK;
    }
    if (!known && limits->rule_count == LIMIT_RULES_MAX)
        return ERR_CONFLICT;
    put_rule(limits, pattern, &op->u.limit.limit);
    journal_limit_put(journal, pattern, &op->u.limit.limit);
    return ERR_OK;
}

/* The rule that says most about it: of its own name, else the longest beginning. */
static void look_up(const struct limits *limits, struct limits_key *key)
{
    char pattern[DEMAND_FULL_KEY_MAX + 1];
    size_t at;
    bool found = find_rule(limits, key->name, &at);

    assert(key->name.len < sizeof pattern);
    memcpy(pattern, key->name.at, key->name.len);
    for (size_t len = key->name.len + 1; !found && len-- > 0;) {
        pattern[len] = '*';
        found = find_rule(limits, (struct str){.at = pattern, .len = len + 1}, &at);
    }
    key->rule = found ? (int32_t)at : -1;
    key->limit = found ? limits->rules[at].limit : limit_none;
    key->version = limits->version;
}

static const struct limit *limits_rule(const struct limits *limits, struct limits_key *key)
{
    if (key->version != limits->version)
        look_up(limits, key);
    return &key->limit;
}

/* --- keys --- */

struct limits_key *limits_use(struct limits *limits, struct str name)
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

void limits_unuse(struct limits *limits, struct limits_key *key)
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

enum err limits_hold_key(struct limits *limits, const struct store_op *op, int64_t steady_ms)
{
    int64_t hold_ms = op->u.limit.hold_ms;
    struct limits_key *key;

    if (!demand_is_key(op->u.limit.pattern) || hold_ms < 0 || hold_ms > LIMIT_HOLD_MS_MAX ||
        op->u.limit.reason.len > LIMIT_REASON_MAX)
        return ERR_BAD_FIELD;
    if (!hold_ms && !map_get(&limits->keys, op->u.limit.pattern))
        return ERR_OK;
    key = limits_use(limits, op->u.limit.pattern);
    limits_hold(limits, key, hold_ms ? steady_ms + hold_ms : 0, op->u.limit.reason);
    limits_unuse(limits, key);
    return ERR_OK;
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

void limits_list(struct limits *limits, struct store_op *op, int64_t steady_ms)
{
    struct str prefix = op->u.limits.prefix, after = op->u.limits.after;
    bool goes_on = after.at && str_cmp(after, prefix) >= 0;
    size_t max = op->u.limits.max < limits->keys.count ? op->u.limits.max : limits->keys.count;
    struct limits_key *key =
        next_in_use(limits, key_from(limits, goes_on ? after : prefix, goes_on), prefix, steady_ms);

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
    struct change_limit rule;
    struct change_limit_key row;

    while (journal_limit_next(journal, &rule))
        put_rule(limits, rule.pattern, &rule.limit);
    while (journal_limit_key_next(journal, &row)) {
        struct limits_key *key = limits_use(limits, row.key);

        key->written = true;
        key->state.hold_until_ms = row.hold_until_ms;
        buf_str(&key->reason, row.reason);
        /* What no berth wrote is passed over: nothing is kept from starting for it. */
        limit_window_parse(row.starts, &key->state.window);
        limits_unuse(limits, key);
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
            journal_limit_key_put(
                journal, &(struct change_limit_key){.key = key->name,
                                                    .hold_until_ms = key->state.hold_until_ms,
                                                    .reason = buf_view(&key->reason),
                                                    .starts = buf_view(&starts)});
            key->written = true;
        } else if (key->written) {
            journal_limit_key_del(journal, key->name);
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
                journal_limit_key_del(journal, key->name);
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
