/* Nodes: NODE_PUT, NODE_DROP, NODES, COUNTS; and the audit of their counters. */
#include "store/ledger.h"

#include "store/journal.h"

#include <assert.h>

static bool same(const struct buf *kept, struct str text)
{
    return str_eq(buf_view(kept), text);
}

static void replace(struct buf *kept, struct str text)
{
    buf_clear(kept);
    buf_str(kept, text);
}

/* Takes over what is new in it; false when nothing is. Who changes one thing may have an old view
 * of the others: what it leaves out stays, and the operator's word is the one kept here. */
static bool take_facts(struct holder *holder, const struct store_op *op)
{
    enum node_admin admin = op->u.node_put.set_admin ? op->u.node_put.admin : holder->admin;
    enum node_health own =
        op->u.node_put.own != NODE_HEALTH_NONE ? op->u.node_put.own : holder->own;
    enum node_health health = node_effective(op->u.node_put.health, NODE_READY, admin);
    int32_t max = op->u.node_put.max >= 0 ? op->u.node_put.max : holder->counts.max;
    bool changed =
        holder->own != own || holder->counts.health != health || holder->counts.max != max;

    holder->own = own;
    holder->counts.health = health;
    holder->counts.max = max;
    if (op->u.node_put.facts.at && !same(&holder->facts, op->u.node_put.facts)) {
        replace(&holder->facts, op->u.node_put.facts);
        changed = true;
    }
    if (op->u.node_put.set_admin &&
        (holder->admin != admin || !same(&holder->admin_reason, op->u.node_put.admin_reason))) {
        holder->admin = admin;
        replace(&holder->admin_reason, op->u.node_put.admin_reason);
        changed = true;
    }
    return changed;
}

/* The node it is about, made if this is its registration. */
static struct holder *put_target(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct holder *holder = map_get(&ledger->nodes, op->node);

    if (holder && holder->known)
        return holder;
    if (op->node.len == 0 || op->node.len > NODE_ID_MAX) {
        op->err = ERR_BAD_FIELD;
        return NULL;
    }
    if (!op->u.node_put.facts.at) {
        op->err = ERR_NOT_FOUND;
        return NULL;
    }
    /* Dropped a moment ago and back: leases it still has go on counting. */
    if (!holder)
        holder = ledger_holder_add(ledger, op->node);
    holder->known = true;
    holder->version = 0;
    holder->registered_ms = now_ms;
    op->u.node_put.created = true;
    return holder;
}

/* The node is lost, or back without its runs. What ends with the epoch need not wait for its lease
 * to run out, the sweep may take it at once; until it does, a late word of the node still ends it.
 */
static void begin_epoch(struct ledger *ledger, struct holder *holder, bool keeps_runs)
{
    lease_new_epoch(&holder->counts, keeps_runs);
    for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next) {
        struct entry *entry = container_of(at, struct entry, in_holder);

        if (keeps_runs && lease_keep(&holder->counts, &entry->lease)) {
            entry->head.epoch = entry->lease.epoch;
            journal_job_step(ledger->journal, entry);
        } else {
            assert(ledger_orphaned(entry));
            ledger_place(ledger, entry);
        }
    }
}

void ledger_node_put(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct holder *holder;
    bool old_epoch;
    bool is_fresh; /* its first epoch has only begun */
    bool changed;

    op->u.node_put.created = false;
    holder = put_target(ledger, op, now_ms);
    if (!holder)
        return;
    is_fresh = op->u.node_put.created && chain_alone(&holder->leases);
    old_epoch = op->u.node_put.if_epoch && op->u.node_put.if_epoch != holder->counts.epoch;
    if (old_epoch && !op->u.node_put.facts.at) {
        /* Somebody's finding about an epoch that is over. The node's own word is taken all the
         * same. */
        op->err = ERR_STALE;
    } else {
        changed = take_facts(holder, op) || op->u.node_put.created;
        if (op->u.node_put.new_epoch && !old_epoch && !is_fresh) {
            begin_epoch(ledger, holder, op->u.node_put.keeps_runs);
            changed = true;
        }
        if (changed) {
            holder->version++;
            journal_node_put(ledger->journal, holder);
        }
    }
    op->u.node_put.version = holder->version;
    op->u.node_put.registered_ms = holder->registered_ms;
    op->counts = holder->counts;
}

void ledger_node_drop(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct holder *holder = map_get(&ledger->nodes, op->node);

    if (!holder || !holder->known) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    op->counts = holder->counts;
    journal_node_del(ledger->journal, op->node);
    ledger_holder_drop(ledger, holder);
}

static void list(struct ledger *ledger, struct store_op *op, bool with_facts)
{
    struct store_node *items = arena_array(op->arena, struct store_node, ledger->nodes.count);
    struct holder *holder;
    size_t count = 0;

    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));) {
        if (!holder->known)
            continue;
        items[count++] = (struct store_node){
            .id = arena_str(op->arena, holder->id),
            .counts = holder->counts,
            .own = holder->own,
            .admin = holder->admin,
            .admin_reason = arena_str(op->arena, buf_view(&holder->admin_reason)),
            .registered_ms = holder->registered_ms,
            .version = holder->version,
            .facts = with_facts ? arena_str(op->arena, buf_view(&holder->facts)) : STR_NONE,
        };
    }
    assert(count <= ledger->nodes.count);
    op->u.nodes.items = items;
    op->u.nodes.count = count;
}

void ledger_nodes(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    list(ledger, op, true);
}

void ledger_counts(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    list(ledger, op, false);
}

/* What the leases of a node add up to. */
static struct lease_node recount(const struct holder *holder)
{
    struct lease_node counts = holder->counts;

    counts.reserved = counts.running = 0;
    for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next) {
        const struct lease *lease = &container_of(at, struct entry, in_holder)->lease;

        assert(lease->kind != LEASE_NONE);
        if (lease->epoch == counts.epoch)
            ++*(lease->kind == LEASE_RUNNING ? &counts.running : &counts.reserved);
    }
    return counts;
}

int ledger_audit(struct ledger *ledger)
{
    uint64_t floor = ledger->journal->max_id + 1;
    struct holder *holder;
    struct entry *entry;
    int repairs = 0;

    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));) {
        struct lease_node counts = recount(holder);

        repairs += counts.reserved != holder->counts.reserved;
        repairs += counts.running != holder->counts.running;
        holder->counts = counts;
    }
    for (size_t at = 0; (entry = idmap_next(&ledger->jobs, &at));)
        if (!ledger_over(entry) && entry->head.id < floor)
            floor = entry->head.id;
    journal_floor(ledger->journal, floor);
    ledger->repairs += repairs;
    return repairs;
}

static void check_entry(const struct ledger *ledger, const struct entry *entry)
{
    int places = (entry->due.at != 0) + !chain_alone(&entry->in_list);

    assert(places == 1);
    assert(entry->lease.job == entry->head.id && entry->due.tie == entry->head.id);
    assert((entry->holder != NULL) == (entry->lease.kind != LEASE_NONE));
    assert((entry->holder != NULL) == !chain_alone(&entry->in_holder));
    assert(!entry->holder || ledger_orphaned(entry) == !entry->due.at);
    assert(!entry->holder || !entry->due.at || entry->due.key == entry->lease.until_ms);
    assert(entry->head.lease == entry->lease.kind);
    assert(!entry->unwritten || entry->ran_out != LEASE_NONE);
    assert(entry->ran_out == LEASE_NONE || (!entry->holder && !entry->due.at));
    assert(!entry->holder || str_is(entry->holder->id, entry->head.node));
    assert(!ledger_waiting(entry) || !entry->due.at || entry->due.key == entry->head.due_ms);
    assert((entry->head.lane != 0) == (entry->in_lane.at != 0));
    assert(!entry->head.lane || ledger_waiting(entry));
    if (entry->head.lane) {
        const struct lane *lane = lanes_find(&ledger->lanes, entry->head.lane);

        assert(lane && lane->jobs.nodes[entry->in_lane.at - 1] == &entry->in_lane);
        assert(entry->in_lane.key == -entry->head.priority && entry->in_lane.tie == entry->head.id);
    }
    assert(!entry->account || entry->head.lane);
    assert(entry->head.attempt >= 1 && entry->head.attempt <= entry->head.max_attempts);
    assert(!entry->probe || (entry->holder && entry->probe->probe == entry));
    assert(idmap_get(&ledger->jobs, entry->head.id) == entry);
}

static void check_accounts(const struct ledger *ledger)
{
    const struct account *account;
    struct entry *entry;

    for (size_t at = 0; (account = map_next(&ledger->accounts.by_name, &at));) {
        int64_t jobs = 0, bytes = 0;

        for (size_t i = 0; (entry = idmap_next(&ledger->jobs, &i));) {
            jobs += entry->account == account;
            bytes += entry->account == account ? entry->account_bytes : 0;
        }
        assert(jobs == account->jobs && bytes == account->bytes && jobs > 0);
    }
}

void ledger_check(const struct ledger *ledger)
{
    size_t active = 0;
    size_t unwritten = 0;
    size_t total = 0;
    size_t in_lanes = 0;
    struct holder *holder;
    struct entry *entry;

    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));) {
        struct lease_node counts = recount(holder);

        assert(counts.reserved == holder->counts.reserved);
        assert(counts.running == holder->counts.running);
        assert(holder->known || !chain_alone(&holder->leases));
    }
    for (size_t at = 0; (entry = idmap_next(&ledger->jobs, &at)); total++) {
        check_entry(ledger, entry);
        active += !ledger_over(entry);
        unwritten += entry->unwritten;
        in_lanes += entry->head.lane != 0;
    }
    assert(unwritten == ledger->unwritten_count);
    assert(active == ledger->active_count);
    assert(total == active + ledger->recent_count);
    assert(ledger->recent_count <= LEDGER_RECENT_MAX);
    assert(in_lanes == ledger->lanes.job_count);
    lanes_check(&ledger->lanes);
    check_accounts(ledger);
    breakers_check(&ledger->breakers);
}
