/* What time does: RENEW, HOLD, ADOPT and DUE, and a store that was not called for a while. */
#include "store/ledger.h"

#include <assert.h>

enum { BACK_MS = 1000 }; /* smaller steps back are left alone */

/* Frozen, asleep, or the clock was set forward: nobody could renew meanwhile. Leases that had not
 * run out by then get a grace, in this step, before anything is cleared (ruling 25). */
static void prolong(struct ledger *ledger, int64_t now_ms)
{
    struct entry *entry;

    for (size_t at = 0; (entry = idmap_next(&ledger->jobs, &at));) {
        int64_t until = entry->lease.until_ms > now_ms ? entry->lease.until_ms : now_ms;

        if (entry->lease.kind != LEASE_RUNNING || entry->lease.until_ms <= ledger->now_ms)
            continue;
        lease_renew(&entry->lease, ledger_later(until, LEDGER_AWAY_GRACE_MS));
        if (entry->run_until_ms && entry->run_until_ms < entry->lease.until_ms)
            entry->run_until_ms = entry->lease.until_ms;
        ledger_place(ledger, entry);
    }
}

/* The clock was set back: every term keeps the length it has left, or slots would be blocked for as
 * long as the step was. */
static void shift(struct ledger *ledger, int64_t back_ms)
{
    struct entry *entry;

    for (size_t at = 0; (entry = idmap_next(&ledger->jobs, &at));) {
        if (!entry->due.at && !ledger_orphaned(entry))
            continue;
        if (entry->holder && entry->lease.until_ms != LEASE_FOREVER)
            entry->lease.until_ms -= back_ms;
        entry->head.due_ms -= back_ms;
        if (entry->run_until_ms)
            entry->run_until_ms -= back_ms;
        ledger_place(ledger, entry);
    }
}

void ledger_begin(struct ledger *ledger, int64_t now_ms)
{
    int64_t away_ms = now_ms - ledger->now_ms;

    if (away_ms > LEDGER_AWAY_MS)
        prolong(ledger, now_ms);
    else if (away_ms < -BACK_MS)
        shift(ledger, -away_ms);
    ledger->now_ms = now_ms;
}

/* A heartbeat of its own node. Over is over: what ran out is not revived, what belongs to an older
 * epoch is not the node's any more. */
static bool renew_one(struct ledger *ledger, const struct holder *holder, struct entry *entry,
                      int64_t now_ms, const struct lease_terms *terms)
{
    int64_t until;

    if (!entry || entry->holder != holder || entry->lease.epoch != holder->counts.epoch ||
        entry->lease.until_ms <= now_ms)
        return false;
    until = ledger_later(now_ms, lease_term_ms(terms, str_of(entry->head.type)));
    if (entry->run_until_ms && until > entry->run_until_ms)
        until = entry->run_until_ms;
    if (!lease_renew(&entry->lease, until))
        return false;
    ledger_place(ledger, entry);
    return true;
}

void ledger_renew(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct holder *holder = map_get(&ledger->nodes, op->node);

    if (holder && !holder->known)
        holder = NULL; /* dropped: what it still has runs out by itself */
    for (size_t i = 0; i < op->u.renew.count && op->u.renew.runs; i++) {
        struct store_run *run = &op->u.renew.runs[i];
        struct entry *entry = idmap_get(&ledger->jobs, run->id);

        run->unknown = !holder || !entry || entry->head.attempt != run->attempt ||
                       !renew_one(ledger, holder, entry, now_ms, &op->u.renew.terms);
    }
    if (!holder) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    if (!op->u.renew.runs)
        for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next)
            renew_one(ledger, holder, container_of(at, struct entry, in_holder), now_ms,
                      &op->u.renew.terms);
    op->counts = holder->counts;
}

void ledger_hold(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    int64_t until = ledger_later(now_ms, op->u.hold.hold_ms);

    for (size_t i = 0; i < op->u.hold.count; i++) {
        struct entry *entry = idmap_get(&ledger->jobs, op->u.hold.ids[i]);

        if (!entry || !ledger_waiting(entry) || entry->head.owner != op->u.hold.owner)
            continue; /* it went on, or somebody adopted it */
        if (entry->head.due_ms < until)
            entry->head.due_ms = until;
        ledger_place(ledger, entry);
    }
}

void ledger_adopt(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct entry *entry = ledger_find(ledger, op->job);

    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    /* One's own hold may be taken again: that is a replay. */
    if (ledger_waiting(entry) &&
        (entry->head.due_ms <= now_ms || entry->head.owner == op->u.hold.owner)) {
        entry->head.owner = op->u.hold.owner;
        entry->head.due_ms = ledger_later(now_ms, op->u.hold.hold_ms);
        ledger_place(ledger, entry);
        ledger_answer_record(ledger, op, entry);
    } else {
        op->err = ERR_STALE;
    }
    ledger_answer(op, entry);
}

void ledger_due(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    size_t count = 0;

    ledger_lapse(ledger, now_ms, op->u.due.max);
    for (struct chain *at = ledger->lapsed.next; at != &ledger->lapsed && count < op->u.due.max;
         at = at->next) {
        const struct entry *entry = container_of(at, struct entry, in_list);
        struct store_due *due = &op->u.due.items[count++];

        assert(!entry->holder || ledger_orphaned(entry));
        *due = (struct store_due){.id = entry->head.id,
                                  .attempt = entry->head.attempt,
                                  .state = entry->head.state,
                                  .lease = entry->holder ? entry->head.lease : entry->ran_out};
        str_copy(str_of(entry->head.node), due->node, sizeof due->node);
    }
    op->u.due.count = count;
}
