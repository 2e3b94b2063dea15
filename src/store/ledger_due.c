/* What time does: RENEW and DUE, and a store that was not called for a while. */
#include "store/ledger.h"

#include "store/journal.h"

#include <assert.h>

/* Every term keeps the length it has left; that of jobs in lanes also after a restart. */
static void shift(struct ledger *ledger, int64_t step_ms)
{
    struct entry *entry;

    for (size_t at = 0; (entry = idmap_next(&ledger->jobs, &at));) {
        if (entry->holder && entry->lease.until_ms != LEASE_FOREVER)
            entry->lease.until_ms += step_ms;
        if (entry->head.due_ms && entry->head.due_ms != LEASE_FOREVER)
            entry->head.due_ms += step_ms;
        if (entry->run_until_ms && entry->run_until_ms != LEASE_FOREVER)
            entry->run_until_ms += step_ms;
        if (entry->due.at)
            ledger_place(ledger, entry);
    }
    if (ledger->lanes.job_count > 0)
        journal_shift_waits(ledger->journal, step_ms);
    ledger->now_ms += step_ms;
    ledger->grace_from_ms += step_ms;
    ledger->grace_until_ms += step_ms;
}

/* Else slots would be blocked for as long as the clock was set back, and all leases run out when it
 * was set forward. */
void ledger_clock_set(struct ledger *ledger, int64_t step_ms)
{
    shift(ledger, step_ms);
    if (ledger->since_ms > ledger->now_ms)
        ledger->since_ms = ledger->now_ms;
}

int64_t ledger_graced(const struct ledger *ledger, int64_t until_ms)
{
    return until_ms > ledger->grace_from_ms && until_ms < ledger->grace_until_ms
               ? ledger->grace_until_ms
               : until_ms;
}

/* Frozen: nobody could be called meanwhile, so that was nobody's time. What runs and had not run
 * out gets a grace, too, in this step, before anything is cleared. As long as a grace
 * goes on, what it keeps goes on with the next. */
static void prolong(struct ledger *ledger, int64_t now_ms)
{
    struct entry *entry;

    shift(ledger, now_ms - ledger->now_ms);
    if (now_ms >= ledger->grace_until_ms)
        ledger->grace_from_ms = now_ms;
    /* After a small step back of the clock the grace before may last longer. */
    if (ledger->grace_until_ms < now_ms + LEDGER_AWAY_GRACE_MS)
        ledger->grace_until_ms = now_ms + LEDGER_AWAY_GRACE_MS;
    for (size_t at = 0; (entry = idmap_next(&ledger->jobs, &at));)
        if (lease_renew(&entry->lease, ledger_graced(ledger, entry->lease.until_ms))) {
            entry->head.due_ms = entry->lease.until_ms;
            if (entry->due.at)
                ledger_place(ledger, entry);
        }
}

void ledger_begin(struct ledger *ledger, int64_t now_ms)
{
    int64_t away_ms = now_ms - ledger->now_ms;

    if (away_ms > LEDGER_AWAY_MS) {
        prolong(ledger, now_ms);
        ledger->since_ms = now_ms;
    } else if (away_ms < -LEDGER_BACK_MS) {
        ledger_clock_set(ledger, away_ms);
    }
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
    if (!lease_renew(&entry->lease, ledger_graced(ledger, until)))
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
                                  .lease = entry->holder ? entry->head.lease : entry->ran_out,
                                  .lane = entry->head.lane};
        str_copy(str_of(entry->head.node), due->node, sizeof due->node);
    }
    op->u.due.count = count;
}
