/* The queue: how jobs enter and leave lanes, and the verbs WAIT, LANES and LANE. */
#include "store/lanes.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/map.h"
#include "base/mem.h"
#include "store/journal.h"
#include "store/ledger.h"

/* --- lanes --- */

static struct lane *lane_at(struct tree_node *node)
{
    return node ? container_of(node, struct lane, by_number) : NULL;
}

static int compare_numbers(const void *key, const struct tree_node *node)
{
    uint64_t number = *(const uint64_t *)key;
    uint64_t other = container_of(node, struct lane, by_number)->number;

    return number < other ? -1 : number > other;
}

void lanes_init(struct lanes *lanes)
{
    *lanes = (struct lanes){.by_number.compare = compare_numbers};
}

struct lane *lanes_find(const struct lanes *lanes, uint64_t number)
{
    return lane_at(tree_find(&lanes->by_number, &number));
}

struct lane *lanes_after(const struct lanes *lanes, uint64_t number)
{
    return lane_at(tree_after(&lanes->by_number, &number));
}

static void drop(struct lanes *lanes, struct lane *lane)
{
    tree_del(&lanes->by_number, &lane->by_number, &lane->number);
    lanes->count--;
    heap_free(&lane->jobs);
    free(lane);
}

void lanes_enter(struct lanes *lanes, uint64_t number, struct heap_node *job)
{
    struct lane *lane = lanes_find(lanes, number);

    assert(number != 0);
    if (!lane) {
        lane = mem_new(struct lane);
        lane->number = number;
        tree_add(&lanes->by_number, &lane->by_number, &number);
        lanes->count++;
    }
    heap_add(&lane->jobs, job);
    lanes->job_count++;
}

void lanes_leave(struct lanes *lanes, uint64_t number, struct heap_node *job)
{
    struct lane *lane = lanes_find(lanes, number);

    assert(lane && job->at);
    heap_del(&lane->jobs, job);
    lanes->job_count--;
    if (lane->jobs.count == 0)
        drop(lanes, lane);
}

void lanes_free(struct lanes *lanes)
{
    while (lanes->by_number.root)
        drop(lanes, lane_at(lanes->by_number.root));
    lanes_init(lanes);
}

void lanes_check(const struct lanes *lanes)
{
    size_t count = 0;
    size_t job_count = 0;
    struct lane *lane;

    tree_check(&lanes->by_number);
    for (uint64_t after = 0; (lane = lanes_after(lanes, after)); after = lane->number) {
        assert(lanes_find(lanes, lane->number) == lane);
        assert(lane->jobs.count > 0);
        for (size_t i = 1; i < lane->jobs.count; i++) {
            const struct heap_node *above = lane->jobs.nodes[(i - 1) / 2];
            const struct heap_node *job = lane->jobs.nodes[i];

            assert(above->key < job->key || (above->key == job->key && above->tie < job->tie));
        }
        count++;
        job_count += lane->jobs.count;
    }
    assert(count == lanes->count && job_count == lanes->job_count);
}

/* --- accounts --- */

void accounts_free(struct accounts *accounts)
{
    struct account *account;

    for (size_t at = 0; (account = map_next(&accounts->by_name, &at));)
        free(account);
    map_free(&accounts->by_name);
}

/* --- verbs --- */

/* Updates the waiting count of each of its keys; the audit's recount, too, if it has passed this
 * job. */
static void count_waiting(const struct ledger *ledger, const struct ledger_job *entry, int32_t more)
{
    const struct limits_demand *demand = entry->demand;

    for (size_t i = 0; demand && i < demand->demand.key_count; i++) {
        demand->keys[i]->state.waiting += more;
        assert(demand->keys[i]->state.waiting >= 0);
        if (idshards_shard(entry->head.id) < ledger->walk_shard)
            demand->keys[i]->lane_recount += more;
    }
}

void ledger_enter_lane(struct ledger *ledger, struct ledger_job *entry, uint64_t lane, int priority,
                       const struct store_account *account)
{
    assert(lane != 0 && ledger_waiting(entry));
    ledger_leave_lane(ledger, entry);
    entry->head.lane = lane;
    entry->head.priority = priority;
    entry->in_lane = (struct heap_node){.key = -(int64_t)priority, .tie = entry->head.id};
    lanes_enter(&ledger->lanes, lane, &entry->in_lane);
    count_waiting(ledger, entry, 1);
    if (!account->name.len)
        return;
    /* No request is that large. */
    entry->account_bytes = account->bytes < UINT32_MAX ? (uint32_t)account->bytes : UINT32_MAX;
    entry->account = map_get(&ledger->accounts.by_name, account->name);
    if (!entry->account) {
        entry->account = mem_alloc(sizeof *entry->account + account->name.len);
        *entry->account =
            (struct account){.name = {.at = entry->account->text, .len = account->name.len}};
        memcpy(entry->account->text, account->name.at, account->name.len);
        map_put(&ledger->accounts.by_name, entry->account->name, entry->account);
    }
    entry->account->jobs++;
    entry->account->bytes += entry->account_bytes;
}

void ledger_leave_lane(struct ledger *ledger, struct ledger_job *entry)
{
    struct account *account = entry->account;

    if (!entry->head.lane)
        return;
    lanes_leave(&ledger->lanes, entry->head.lane, &entry->in_lane);
    count_waiting(ledger, entry, -1);
    if (account) {
        assert(account->jobs > 0 && account->bytes >= entry->account_bytes);
        account->jobs--;
        account->bytes -= entry->account_bytes;
        if (account->jobs == 0) {
            assert(account->bytes == 0);
            map_del(&ledger->accounts.by_name, account->name);
            free(account);
        }
    }
    entry->account = NULL;
    entry->head.lane = 0;
    entry->head.priority = 0;
}

static bool is_over(int64_t have, int64_t max)
{
    return max > 0 && have > max;
}

static bool keys_are_full(struct ledger *ledger, const struct limits_demand *demand,
                          struct limit_block *ret_block)
{
    for (size_t i = 0; demand && i < demand->demand.key_count; i++) {
        *ret_block = limits_check_queue(&ledger->limits, demand->keys[i]);
        ret_block->key = (int32_t)i;
        if (ret_block->why != LIMIT_OK)
            return true;
    }
    return false;
}

enum err ledger_refusal(struct ledger *ledger, const struct limits_demand *demand, uint64_t from,
                        uint64_t to, const struct store_bounds *bounds,
                        struct limit_block *ret_block)
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
    if (account->name.len) {
        known = map_get(&ledger->accounts.by_name, account->name);
        if (is_over((known ? known->jobs : 0) + 1, account->jobs_max))
            return ERR_QUOTA_WAITING;
        if (is_over((known ? known->bytes : 0) + account->bytes, account->bytes_max))
            return ERR_QUOTA_BYTES;
    }
    return bounds->keys && keys_are_full(ledger, demand, ret_block) ? ERR_LIMITED : ERR_OK;
}

void ledger_wait(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct ledger_job *entry = ledger_find(ledger, op->job);
    uint64_t lane = op->u.wait.lane;

    op->u.wait.block = (struct limit_block){0};
    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    op->err = ledger_may_start(entry, op->attempt)
                  ? ledger_refusal(ledger, entry->demand, entry->head.lane, lane,
                                   &op->u.wait.bounds, &op->u.wait.block)
                  : ERR_STALE;
    if (!op->err) {
        ledger_enter_lane(ledger, entry, lane, op->u.wait.priority, &op->u.wait.bounds.account);
        entry->head.due_ms = ledger_later(now_ms, op->u.wait.wait_ms);
        entry->head.updated_ms = now_ms;
        ledger_place(ledger, entry);
        journal_job_step(ledger->journal, entry, 0);
    }
    op->head = ledger_head(entry);
}

static struct ledger_job *entry_of(struct heap_node *in_lane)
{
    return container_of(in_lane, struct ledger_job, in_lane);
}

void ledger_lanes(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    size_t max = op->u.lanes.max < ledger->lanes.count ? op->u.lanes.max : ledger->lanes.count;
    struct store_lane *items = arena_array(op->arena, struct store_lane, max);
    struct lane *lane = lanes_after(&ledger->lanes, op->u.lanes.after);
    size_t count = 0;

    for (; lane && count < max; lane = lanes_after(&ledger->lanes, lane->number)) {
        const struct ledger_job *first = entry_of(heap_top(&lane->jobs));

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
        const struct ledger_job *entry = entry_of(first[i]);
        struct store_record *record = &op->u.lane.items[i];

        if (!journal_job_record(ledger->journal, entry->head.id, op->arena, record)) {
            op->u.lane.count =
                i; /* the journal failed, and this batch with it; or a row is damaged */
            break;
        }
        record->head = ledger_head(entry);
        bytes += store_record_bytes(record);
        if (op->u.lane.bytes_max && i > 0 && bytes > op->u.lane.bytes_max)
            op->u.lane.count = i;
    }
}
