/* Keeps breakers and their probes. The caller decides which attempt outcomes count. */
#include "store/breakers.h"

#include "base/mem.h"
#include "store/journal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void breakers_init(struct breakers *breakers, const struct breaker_rules *rules)
{
    assert(rules->threshold >= 0 && rules->cooldown_ms >= 0 && rules->probe_ms > 0);
    *breakers = (struct breakers){.rules = *rules};
    chain_init(&breakers->order);
}

/* Ids contain no '|', so two pairs never share a key. */
static struct str write_key(char to[BREAKERS_KEY_MAX + 1], struct str node, struct str type)
{
    assert(node.len <= NODE_ID_MAX && type.len <= POOL_LANG_MAX);
    memcpy(to, node.at, node.len);
    to[node.len] = '|';
    memcpy(to + node.len + 1, type.at, type.len);
    to[node.len + 1 + type.len] = '\0';
    return (struct str){.at = to, .len = node.len + 1 + type.len};
}

static struct breaker_entry *find(const struct breakers *breakers, struct str node, struct str type)
{
    char text[BREAKERS_KEY_MAX + 1];

    /* Common case, no breakers: a dispatch costs nothing. */
    if (breakers->gates.count == 0 || type.len == 0 || type.len > POOL_LANG_MAX ||
        node.len > NODE_ID_MAX)
        return NULL;
    return map_get(&breakers->gates, write_key(text, node, type));
}

/* Removes it from memory; the caller handles its row. */
static void drop(struct breakers *breakers, struct breaker_entry *gate)
{
    if (gate->probe)
        breakers_release(gate->probe);
    breakers->open_count -= gate->counted;
    map_del(&breakers->gates, gate->key);
    chain_del(&gate->order);
    free(gate);
}

static void forget(struct breakers *breakers, struct journal *journal, struct breaker_entry *gate)
{
    journal_put(journal, &(struct change){.kind = CHANGE_BREAKER_DEL,
                                          .u.breaker = {.node = gate->node, .type = gate->type}});
    drop(breakers, gate);
}

static struct breaker_entry *add(struct breakers *breakers, struct journal *journal,
                                 struct str node, struct str type)
{
    struct breaker_entry *gate = mem_new(struct breaker_entry);

    if (breakers->gates.count >= BREAKERS_MAX)
        forget(breakers, journal, container_of(breakers->order.next, struct breaker_entry, order));
    gate->key = write_key(gate->text, node, type);
    gate->node = (struct str){.at = gate->text, .len = node.len};
    gate->type = (struct str){.at = gate->text + node.len + 1, .len = type.len};
    chain_init(&gate->order);
    map_put(&breakers->gates, gate->key, gate);
    assert(breakers->gates.count <= BREAKERS_MAX);
    return gate;
}

void breakers_free(struct breakers *breakers)
{
    while (!chain_alone(&breakers->order))
        drop(breakers, container_of(breakers->order.next, struct breaker_entry, order));
    assert(breakers->gates.count == 0 && breakers->open_count == 0);
    map_free(&breakers->gates);
}

static void note(struct breakers *breakers, struct breaker_entry *gate, int64_t now_ms)
{
    bool open = gate->breaker.state != BREAKER_CLOSED;

    breakers->open_count += open - gate->counted;
    gate->counted = open;
    gate->changed_ms = now_ms;
    chain_del(&gate->order);
    chain_add_last(&breakers->order, &gate->order);
}

static void changed(struct breakers *breakers, struct journal *journal, struct breaker_entry *gate,
                    int64_t now_ms)
{
    note(breakers, gate, now_ms);
    if (gate->breaker.state == BREAKER_CLOSED && gate->breaker.failures == 0)
        forget(breakers, journal, gate);
    else
        journal_put(
            journal,
            &(struct change){.kind = CHANGE_BREAKER,
                             .u.breaker = {.node = gate->node,
                                           .type = gate->type,
                                           .breaker = gate->breaker,
                                           .probe_job = gate->probe ? gate->probe->head.id : 0}});
}

void breakers_load(struct breakers *breakers, struct journal *journal, const struct idshards *jobs,
                   int64_t now_ms)
{
    struct change change;

    while (breakers->rules.threshold && journal_next(journal, CHANGE_BREAKER, &change)) {
        const struct change_breaker *row = &change.u.breaker;
        struct ledger_job *entry = row->probe_job ? idshards_get(jobs, row->probe_job) : NULL;
        struct breaker_entry *gate;

        if (breakers->gates.count == BREAKERS_MAX)
            continue; /* nothing is written here */
        gate = add(breakers, journal, row->node, row->type);
        gate->breaker = row->breaker;
        /* The job still has the probe's lease: when a probe ends, its row is updated. */
        if (entry && entry->run->holder && str_eq(entry->run->holder->id, row->node) &&
            gate->breaker.state == BREAKER_HALF_OPEN) {
            gate->probe = entry;
            entry->run->probe = gate;
        }
        note(breakers, gate, now_ms);
    }
}

bool breakers_allow(struct breakers *breakers, struct str node, struct str type, bool last,
                    int64_t now_ms, struct breaker_entry **ret_probe)
{
    struct breaker_entry *gate = find(breakers, node, type);

    *ret_probe = NULL;
    if (!gate)
        return true;
    if (gate->probe)
        return false;
    if (last)
        breaker_try(&gate->breaker);
    if (!breaker_allowed(&gate->breaker, &breakers->rules, now_ms))
        return false;
    if (gate->breaker.state == BREAKER_HALF_OPEN)
        *ret_probe = gate;
    return true;
}

void breakers_probe(struct breakers *breakers, struct journal *journal, struct breaker_entry *gate,
                    struct ledger_job *entry, int64_t now_ms)
{
    assert(!gate->probe && !entry->run->probe && entry->run->holder);
    assert(gate->breaker.state == BREAKER_HALF_OPEN);
    gate->probe = entry;
    entry->run->probe = gate;
    changed(breakers, journal, gate, now_ms);
}

void breakers_release(struct ledger_job *entry)
{
    struct breaker_entry *gate = entry->run->probe;

    if (!gate)
        return;
    assert(gate->probe == entry);
    breaker_probe_ended(&gate->breaker);
    gate->probe = NULL;
    entry->run->probe = NULL;
}

/* In the half-open state only the probe decides, not attempts that began before the breaker opened.
 * A probe whose lease has since expired still counts if there is no other probe. */
static bool may_speak(const struct breakers *breakers, struct breaker_entry *gate,
                      const struct ledger_job *entry, bool was_probe, int64_t now_ms)
{
    if (was_probe || breaker_state(&gate->breaker, &breakers->rules, now_ms) != BREAKER_HALF_OPEN)
        return true;
    return !gate->probe && entry->run->dispatched_ms >= gate->breaker.opened_ms;
}

enum breaker_event breakers_settle(struct breakers *breakers, struct journal *journal,
                                   struct ledger_job *entry, enum breakers_verdict verdict,
                                   int64_t now_ms)
{
    struct str node = str_of(entry->run->node);
    struct str type = str_of(entry->head.type);
    struct breaker_entry *gate = find(breakers, node, type);
    bool was_probe = entry->run->probe != NULL;
    enum breaker_event event = BREAKER_NO_EVENT;

    assert(!was_probe || entry->run->probe == gate);
    breakers_release(entry);
    if (!gate && verdict == BREAKERS_BAD && breakers->rules.threshold && type.len)
        gate = add(breakers, journal, node, type);
    if (!gate || !may_speak(breakers, gate, entry, was_probe, now_ms))
        return BREAKER_NO_EVENT;
    if (verdict == BREAKERS_GOOD)
        event = breaker_ok(&gate->breaker, &breakers->rules, now_ms);
    else if (verdict == BREAKERS_BAD)
        event = breaker_fail(&gate->breaker, &breakers->rules, now_ms);
    /* A success that began before it opened leaves it open; nothing to write. */
    if (was_probe || event != BREAKER_NO_EVENT || verdict == BREAKERS_BAD ||
        gate->breaker.failures == 0)
        changed(breakers, journal, gate, now_ms);
    return event;
}

void ledger_breaker_reset(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct breaker_entry *gate = find(&ledger->breakers, op->node, op->u.breaker.type);

    if (!gate) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    if (gate->probe)
        breakers_release(gate->probe);
    breaker_reset(&gate->breaker);
    changed(&ledger->breakers, ledger->journal, gate, now_ms);
}

int breakers_order(const void *a, const void *b)
{
    const struct store_breaker *left = a;
    const struct store_breaker *right = b;
    int order = str_cmp(left->node, right->node);

    return order ? order : str_cmp(left->type, right->type);
}

void ledger_breakers(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    const struct breakers *breakers = &ledger->breakers;
    struct store_breaker *items;
    struct breaker_entry *gate;
    size_t count = 0;

    assert(op->arena);
    items = arena_array(op->arena, struct store_breaker, breakers->gates.count);
    for (size_t at = 0; (gate = map_next(&breakers->gates, &at)); count++) {
        items[count] = (struct store_breaker){.node = arena_str(op->arena, gate->node),
                                              .type = arena_str(op->arena, gate->type),
                                              .breaker = gate->breaker};
        breaker_state(&items[count].breaker, &breakers->rules, now_ms);
        items[count].breaker.probe_until_ms = gate->probe ? gate->probe->run->lease.until_ms : 0;
    }
    qsort(items, count, sizeof *items, breakers_order);
    op->u.breakers.items = items;
    op->u.breakers.count = count;
}

void breakers_tidy(struct breakers *breakers, struct journal *journal, const struct map *nodes,
                   int64_t now_ms)
{
    for (struct chain *at = breakers->order.next, *next; at != &breakers->order; at = next) {
        struct breaker_entry *gate = container_of(at, struct breaker_entry, order);
        const struct ledger_node *holder = map_get(nodes, gate->node);

        next = at->next;
        if (now_ms - gate->changed_ms < breakers->rules.cooldown_ms)
            return; /* all following ones are newer */
        if ((!holder || !holder->known) && !gate->probe)
            forget(breakers, journal, gate);
    }
}

void breakers_check(const struct breakers *breakers)
{
    int64_t open_count = 0;
    size_t count = 0;

    for (struct chain *at = breakers->order.next; at != &breakers->order; at = at->next, count++) {
        const struct breaker_entry *gate = container_of(at, struct breaker_entry, order);
        const struct breaker *breaker = &gate->breaker;

        assert(map_get(&breakers->gates, gate->key) == gate);
        assert(breaker->state != BREAKER_CLOSED || breaker->failures > 0);
        assert(gate->counted == (breaker->state != BREAKER_CLOSED));
        assert(!gate->probe || breaker->state == BREAKER_HALF_OPEN);
        assert(!gate->probe || gate->probe->run->probe == gate);
        assert(gate->probe || breaker->probe_until_ms == 0);
        open_count += gate->counted;
    }
    assert(count == breakers->gates.count);
    assert(open_count == breakers->open_count);
}
