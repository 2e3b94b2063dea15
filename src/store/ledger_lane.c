/* The queue: how a job comes into a lane and leaves it, and WAIT, LANES and LANE. */
#include "store/ledger.h"

#include "store/journal.h"

#include <assert.h>

void ledger_enter_lane(struct ledger *ledger, struct entry *entry, uint64_t lane, int priority,
                       const struct store_account *account)
{
    assert(lane != 0 && ledger_waiting(entry));
    ledger_leave_lane(ledger, entry);
    entry->head.lane = lane;
    entry->head.priority = priority;
    entry->in_lane = (struct heap_node){.key = -(int64_t)priority, .tie = entry->head.id};
    lanes_enter(&ledger->lanes, lane, &entry->in_lane);
    if (!account->name.len)
        return;
    entry->account = accounts_enter(&ledger->accounts, account->name, account->bytes);
    entry->account_bytes = account->bytes;
}

void ledger_leave_lane(struct ledger *ledger, struct entry *entry)
{
    if (!entry->head.lane)
        return;
    lanes_leave(&ledger->lanes, entry->head.lane, &entry->in_lane);
    if (entry->account)
        accounts_leave(&ledger->accounts, entry->account, entry->account_bytes);
    entry->account = NULL;
    entry->head.lane = 0;
    entry->head.priority = 0;
}

static bool is_over(int64_t have, int64_t max)
{
    return max > 0 && have > max;
}

enum err ledger_refusal(const struct ledger *ledger, uint64_t from, uint64_t to,
                        const struct store_bounds *bounds)
{
    const struct store_account *account = &bounds->account;
    const struct lane *lane = lanes_find(&ledger->lanes, to);
    const struct account *known;

    if (from != to && is_over(lane ? (int64_t)lane->jobs.count + 1 : 1, bounds->lane_max))
        return ERR_QUEUE_FULL;
    if (from)
        return ERR_OK;
    if (is_over((int64_t)ledger->lanes.job_count + 1, bounds->all_max))
        return ERR_QUEUES_FULL;
    if (!account->name.len)
        return ERR_OK;
    known = map_get(&ledger->accounts.by_name, account->name);
    if (is_over((known ? known->jobs : 0) + 1, account->jobs_max))
        return ERR_QUOTA_WAITING;
    if (is_over((known ? known->bytes : 0) + account->bytes, account->bytes_max))
        return ERR_QUOTA_BYTES;
    return ERR_OK;
}

void ledger_wait(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct entry *entry = ledger_find(ledger, op->job);
    uint64_t lane = op->u.wait.lane;

    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    op->err = ledger_may_start(entry, op->attempt)
                  ? ledger_refusal(ledger, entry->head.lane, lane, &op->u.wait.bounds)
                  : ERR_STALE;
    if (!op->err) {
        ledger_enter_lane(ledger, entry, lane, op->u.wait.priority, &op->u.wait.bounds.account);
        entry->head.due_ms = ledger_later(now_ms, op->u.wait.wait_ms);
        entry->head.updated_ms = now_ms;
        ledger_place(ledger, entry);
        journal_job_step(ledger->journal, entry);
    }
    ledger_answer(op, entry);
}

static struct entry *entry_of(struct heap_node *in_lane)
{
    return container_of(in_lane, struct entry, in_lane);
}

void ledger_lanes(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    size_t max = op->u.lanes.max < ledger->lanes.count ? op->u.lanes.max : ledger->lanes.count;
    struct store_lane *items = arena_array(op->arena, struct store_lane, max);
    struct lane *lane = lanes_after(&ledger->lanes, op->u.lanes.after);
    size_t count = 0;

    for (; lane && count < max; lane = lanes_after(&ledger->lanes, lane->number)) {
        const struct entry *first = entry_of(heap_top(&lane->jobs));

        items[count++] = (struct store_lane){.lane = lane->number,
                                             .count = (int64_t)lane->jobs.count,
                                             .first = first->head.id,
                                             .priority = first->head.priority};
    }
    op->u.lanes.items = items;
    op->u.lanes.count = count;
    op->u.lanes.more = lane != NULL;
}

void ledger_lane(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct lane *lane = lanes_find(&ledger->lanes, op->u.lane.lane);
    size_t max = !lane ? 0 : op->u.lane.max < lane->jobs.count ? op->u.lane.max : lane->jobs.count;
    struct heap_node **first = arena_array(op->arena, struct heap_node *, max);

    op->u.lane.items = arena_array(op->arena, struct store_record, max);
    op->u.lane.count = lane ? heap_first(&lane->jobs, max, first) : 0;
    op->u.lane.waiting = lane ? (int64_t)lane->jobs.count : 0;
    for (size_t i = 0, bytes = 0; i < op->u.lane.count; i++) {
        const struct entry *entry = entry_of(first[i]);
        struct store_record *record = &op->u.lane.items[i];

        if (!journal_job_record(ledger->journal, entry->head.id, op->arena, record)) {
            op->u.lane.count =
                i; /* the journal failed, and this batch with it; or a row is damaged */
            break;
        }
        record->head = entry->head;
        bytes += store_record_bytes(record);
        if (op->u.lane.bytes_max && i > 0 && bytes > op->u.lane.bytes_max)
            op->u.lane.count = i;
    }
}
