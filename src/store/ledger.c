/* The ledger's maps, lists and heap, and how it is built from the file. The verbs are in
 * ledger_jobs.c, ledger_settle.c, ledger_lane.c, ledger_due.c, ledger_node.c and
 * ledger_breaker.c. */
#include "store/ledger.h"

#include "base/mem.h"
#include "store/journal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What a verb is done by; the others never reach the ledger (reader.c answers them). */
static ledger_verb *const verbs[STORE_VERB_COUNT] = {
    [STORE_PUT] = ledger_put,
    [STORE_RESERVE] = ledger_reserve,
    [STORE_COMMIT] = ledger_commit,
    [STORE_FINISH] = ledger_finish,
    [STORE_RENEW] = ledger_renew,
    [STORE_WAIT] = ledger_wait,
    [STORE_LANES] = ledger_lanes,
    [STORE_LANE] = ledger_lane,
    [STORE_DUE] = ledger_due,
    [STORE_NODE_PUT] = ledger_node_put,
    [STORE_NODE_DROP] = ledger_node_drop,
    [STORE_NODES] = ledger_nodes,
    [STORE_COUNTS] = ledger_counts,
    [STORE_CALLBACK_DONE] = ledger_callback_done,
    [STORE_BREAKERS] = ledger_breakers,
    [STORE_BREAKER_RESET] = ledger_breaker_reset,
};

void ledger_apply(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    assert(op->verb < STORE_VERB_COUNT && verbs[op->verb]);
    op->err = ERR_OK;
    op->head.id = 0;
    verbs[op->verb](ledger, op, now_ms);
}

/* Nodes. */

struct holder *ledger_holder_add(struct ledger *ledger, struct str id)
{
    struct holder *holder = mem_new(struct holder);

    str_copy(id, holder->text, sizeof holder->text);
    holder->id = str_of(holder->text);
    holder->counts.epoch = 1;
    chain_init(&holder->leases);
    map_put(&ledger->nodes, holder->id, holder);
    return holder;
}

void ledger_holder_drop(struct ledger *ledger, struct holder *holder)
{
    holder->known = false;
    holder->counts.health = NODE_HEALTH_NONE;
    holder->admin = NODE_ADMIN_NONE;
    buf_clear(&holder->admin_reason);
    buf_clear(&holder->facts);
    if (!chain_alone(&holder->leases))
        return;
    assert(holder->counts.reserved == 0 && holder->counts.running == 0);
    map_del(&ledger->nodes, holder->id);
    buf_free(&holder->admin_reason);
    buf_free(&holder->facts);
    free(holder);
}

void ledger_bind(struct entry *entry, struct holder *holder)
{
    assert(!entry->holder && entry->lease.kind != LEASE_NONE);
    assert(lease_counts_ok(&holder->counts));
    entry->holder = holder;
    chain_add_last(&holder->leases, &entry->in_holder);
}

void ledger_unbind(struct ledger *ledger, struct entry *entry)
{
    struct holder *holder = entry->holder;

    assert(holder && entry->lease.kind == LEASE_NONE);
    assert(lease_counts_ok(&holder->counts));
    entry->holder = NULL;
    chain_del(&entry->in_holder);
    if (!holder->known)
        ledger_holder_drop(ledger, holder);
}

/* Jobs. */

struct entry *ledger_add(struct ledger *ledger, uint64_t id)
{
    struct entry *entry = slab_new(&ledger->entries);

    assert(id != 0 && !idmap_get(&ledger->jobs, id));
    entry->head.id = id;
    entry->due.tie = id;
    entry->lease.job = id;
    chain_init(&entry->in_list);
    chain_init(&entry->in_holder);
    idmap_put(&ledger->jobs, id, entry);
    ledger->active_count++;
    return entry;
}

static void entry_free(struct ledger *ledger, struct entry *entry)
{
    assert(!entry->probe && !entry->in_lane.at);
    idmap_del(&ledger->jobs, entry->head.id);
    heap_del(&ledger->due, &entry->due);
    chain_del(&entry->in_list);
    chain_del(&entry->in_holder);
    buf_free(&entry->attempts);
    slab_drop(&ledger->entries, entry);
}

static void retire(struct ledger *ledger, struct entry *entry)
{
    chain_add_last(&ledger->recent, &entry->in_list);
    ledger->active_count--;
    if (++ledger->recent_count <= LEDGER_RECENT_MAX)
        return;
    entry = container_of(ledger->recent.next, struct entry, in_list);
    if (entry->head.id > ledger->evicted_max)
        ledger->evicted_max = entry->head.id;
    ledger->recent_count--;
    entry_free(ledger, entry);
}

struct entry *ledger_find(struct ledger *ledger, uint64_t id)
{
    struct entry *entry = idmap_get(&ledger->jobs, id);

    if (entry || id > ledger->evicted_max || id == 0)
        return entry;
    entry = ledger_add(ledger, id);
    if (!journal_job_find(ledger->journal, id, entry)) {
        ledger->active_count--;
        entry->head.id = id;
        entry_free(ledger, entry);
        return NULL;
    }
    /* What is active was never evicted. */
    assert(ledger_over(entry));
    retire(ledger, entry);
    return entry;
}

bool ledger_waiting(const struct entry *entry)
{
    enum job_state state = entry->head.state;

    return state == JOB_NEW || state == JOB_SELECTING || state == JOB_RETRYING;
}

bool ledger_over(const struct entry *entry)
{
    return job_state_final(entry->head.state) && entry->head.lease == LEASE_NONE &&
           entry->ran_out == LEASE_NONE;
}

bool ledger_orphaned(const struct entry *entry)
{
    return entry->holder && entry->lease.epoch != entry->holder->counts.epoch;
}

void ledger_place(struct ledger *ledger, struct entry *entry)
{
    chain_del(&entry->in_list);
    assert((entry->lease.kind != LEASE_NONE) == (entry->holder != NULL));
    if (entry->holder)
        entry->head.due_ms = entry->lease.until_ms;
    if (ledger_orphaned(entry)) {
        heap_del(&ledger->due, &entry->due);
        chain_add_last(&ledger->lapsed, &entry->in_list);
    } else if (entry->holder) {
        heap_move(&ledger->due, &entry->due, entry->lease.until_ms);
    } else if (ledger_waiting(entry)) {
        heap_move(&ledger->due, &entry->due, entry->head.due_ms);
    } else {
        heap_del(&ledger->due, &entry->due);
        if (ledger_over(entry))
            retire(ledger, entry);
        else
            chain_add_last(&ledger->lapsed, &entry->in_list);
    }
}

/* It ran out: a lease gives its slot back, and whatever it is now waits for the sweep. That alone
 * is not worth a write: until somebody takes the slot, the row may go on telling of the lease. */
static void lapse(struct ledger *ledger, struct entry *entry, int64_t now_ms)
{
    assert(entry->due.at && entry->due.key <= now_ms);
    heap_del(&ledger->due, &entry->due);
    if (entry->holder) {
        entry->ran_out = entry->lease.kind;
        breakers_release(entry);
        lease_expire(&entry->holder->counts, &entry->lease, now_ms);
        entry->head.lease = LEASE_NONE;
        entry->unwritten = true;
        ledger->unwritten_count++;
        ledger_unbind(ledger, entry);
    }
    assert(!entry->holder);
    chain_add_last(&ledger->lapsed, &entry->in_list);
}

size_t ledger_lapse(struct ledger *ledger, int64_t now_ms, size_t max)
{
    struct heap_node *top;
    size_t count = 0;

    for (; count < max && (top = heap_top(&ledger->due)) && top->key <= now_ms; count++)
        lapse(ledger, container_of(top, struct entry, due), now_ms);
    return count;
}

void ledger_lapse_one(struct ledger *ledger, struct entry *entry, int64_t now_ms)
{
    if (entry->due.at && entry->due.key <= now_ms)
        lapse(ledger, entry, now_ms);
}

void ledger_settled(struct ledger *ledger, struct entry *entry)
{
    assert(!entry->unwritten || ledger->unwritten_count > 0);
    ledger->unwritten_count -= entry->unwritten;
    entry->unwritten = false;
    entry->ran_out = LEASE_NONE;
}

/* From the end: what ran out since the last time stands there, and before it may be very many that
 * wait for a sweep that is behind. */
void ledger_write_lapsed(struct ledger *ledger)
{
    for (struct chain *at = ledger->lapsed.prev; ledger->unwritten_count && at != &ledger->lapsed;
         at = at->prev) {
        struct entry *entry = container_of(at, struct entry, in_list);

        if (!entry->unwritten)
            continue;
        entry->unwritten = false;
        ledger->unwritten_count--;
        journal_job_step(ledger->journal, entry);
    }
    assert(ledger->unwritten_count == 0);
}

/* Answers. */

struct job_facts ledger_facts(const struct entry *entry)
{
    return (struct job_facts){
        .state = entry->head.state,
        .attempt = entry->head.attempt,
        .max_attempts = entry->head.max_attempts,
        .node = *entry->head.node ? str_of(entry->head.node) : STR_NONE,
    };
}

void ledger_answer(struct store_op *op, const struct entry *entry)
{
    op->head = entry->head;
}

bool ledger_answer_record(struct ledger *ledger, struct store_op *op, const struct entry *entry)
{
    if (!op->arena || !journal_job_record(ledger->journal, entry->head.id, op->arena, &op->record))
        return false;
    ledger_answer(op, entry);
    op->record.head = op->head;
    return true;
}

/* From the file. */

static void load_node(struct ledger *ledger, const struct store_node *row)
{
    struct holder *holder = ledger_holder_add(ledger, row->id);

    holder->counts = row->counts;
    holder->own = row->own;
    holder->admin = row->admin;
    buf_str(&holder->admin_reason, row->admin_reason);
    buf_str(&holder->facts, row->facts);
    holder->registered_ms = row->registered_ms;
    holder->version = row->version;
    holder->known = true;
}

/* The file has no row of a node that was dropped: the newest epoch of its leases is its own. What
 * was read of older ones is over. */
static void raise_epoch(struct ledger *ledger, struct holder *holder, uint32_t epoch)
{
    holder->counts.epoch = epoch;
    holder->counts.reserved = holder->counts.running = 0;
    for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next)
        ledger_place(ledger, container_of(at, struct entry, in_holder));
}

/* A lease counts again as its row says. Time the store was away does not count: a running one gets
 * a full term, and even past its time-out a grace in which its node can still report; so does a
 * reserved one. Where the clock stood when they were made does not matter. */
static void load_lease(struct ledger *ledger, struct entry *entry, int64_t now_ms)
{
    struct str node = str_of(entry->head.node);
    struct holder *holder = map_get(&ledger->nodes, node);
    int64_t until = ledger_later(now_ms, lease_term_ms(&ledger->terms, str_of(entry->head.type)));
    int64_t reserved_ms = entry->head.due_ms - entry->head.dispatched_ms;

    if (!holder) /* dropped meanwhile: it stays until its last lease ended */
        holder = ledger_holder_add(ledger, node);
    if (!holder->known && entry->head.epoch > holder->counts.epoch)
        raise_epoch(ledger, holder, entry->head.epoch);
    if (entry->run_until_ms && entry->run_until_ms < now_ms + LEDGER_AWAY_GRACE_MS)
        entry->run_until_ms = now_ms + LEDGER_AWAY_GRACE_MS;
    if (entry->run_until_ms && until > entry->run_until_ms)
        until = entry->run_until_ms;
    if (entry->head.lease == LEASE_RESERVED && until - now_ms > reserved_ms)
        until = now_ms + reserved_ms;
    entry->lease = (struct lease){
        .kind = entry->head.lease,
        .epoch = entry->head.epoch,
        .job = entry->head.id,
        .until_ms = until,
    };
    if (entry->lease.epoch == holder->counts.epoch)
        ++*(entry->lease.kind == LEASE_RUNNING ? &holder->counts.running
                                               : &holder->counts.reserved);
    ledger_bind(entry, holder);
}

/* It counts for whom its spec says. */
static void load_lane(struct ledger *ledger, struct entry *entry, const struct store_head *row)
{
    struct arena arena = {0};
    struct store_account account = {.name = STR_NONE};

    journal_job_account(ledger->journal, row->id, &arena, &account);
    ledger_enter_lane(ledger, entry, row->lane, row->priority, &account);
    arena_free(&arena);
}

static bool load_jobs(struct ledger *ledger, int64_t now_ms)
{
    struct entry row = {0};

    while (journal_job_active(ledger->journal, &row)) {
        struct entry *entry = ledger_add(ledger, row.head.id);

        entry->head = row.head;
        entry->head.lane = 0;
        entry->head.priority = 0;
        entry->run_until_ms = row.run_until_ms;
        entry->keyed = row.keyed;
        entry->answered = row.answered;
        entry->attempts = row.attempts;
        row.attempts = (struct buf){0};
        if (entry->head.lease != LEASE_NONE)
            load_lease(ledger, entry, now_ms);
        else if (row.head.lane && ledger_waiting(entry)) /* until the same moment as before */
            load_lane(ledger, entry, &row.head);
        else
            entry->head.due_ms = now_ms; /* nobody holds it any more: the sweep takes it up */
        ledger_place(ledger, entry);
    }
    buf_free(&row.attempts);
    return !journal_failed(ledger->journal);
}

bool ledger_load(struct ledger *ledger, const struct ledger_config *config)
{
    struct store_node row;

    *ledger = (struct ledger){
        .journal = config->journal,
        .now_ms = config->now_ms,
        .since_ms = config->now_ms,
        .terms = config->terms,
        .retention_ms = config->retention_ms,
        .evicted_max = config->journal->max_id,
        .entries = {.size = sizeof(struct entry)},
    };
    chain_init(&ledger->lapsed);
    chain_init(&ledger->recent);
    sessions_init(&ledger->sessions);
    breakers_init(&ledger->breakers, &config->breaker);
    while (journal_node_next(ledger->journal, &row))
        load_node(ledger, &row);
    if (load_jobs(ledger, config->now_ms))
        breakers_load(&ledger->breakers, ledger->journal, &ledger->jobs, config->now_ms);
    if (journal_failed(ledger->journal)) {
        ledger_free(ledger);
        return false;
    }
    job_id_floor(ledger->evicted_max);
    return true;
}

void ledger_free(struct ledger *ledger)
{
    struct entry *entry;
    struct holder *holder;

    if (!ledger->journal)
        return; /* never loaded, or freed already */
    /* Before the jobs: they point to each other. */
    breakers_free(&ledger->breakers);
    for (size_t at = 0; (entry = idmap_next(&ledger->jobs, &at));)
        buf_free(&entry->attempts);
    slab_free(&ledger->entries);
    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));) {
        buf_free(&holder->admin_reason);
        buf_free(&holder->facts);
        free(holder);
    }
    lanes_free(&ledger->lanes);
    accounts_free(&ledger->accounts);
    idmap_free(&ledger->jobs);
    map_free(&ledger->nodes);
    heap_free(&ledger->due);
    sessions_free(&ledger->sessions);
    *ledger = (struct ledger){0};
}
