/* The ledger's maps, lists and heap, and how it is built from the file. The verbs about nodes
 * (NODE_PUT, NODE_DROP, NODES, COUNTS, the audit of their counters) and about time (RENEW and DUE,
 * and gaps in which the store was not called). Those about jobs are in ledger_jobs.c; those about
 * lanes, breakers and limits in files of those names. */
#include "store/ledger.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "store/breakers.h"
#include "store/chain.h"
#include "store/journal.h"
#include "store/lanes.h"
#include "store/sessions.h"
#include "store/store.h"

#define ACCOUNT_FIELD "submitted_by" /* of a spec */

void ledger_tidy(struct ledger *ledger, int64_t now_ms)
{
    /* The time of the last batch: only the next batch will know whether there was a pause since. */
    limits_tidy(&ledger->limits, ledger->journal, ledger_steady_ms(ledger, ledger->now_ms));
    breakers_tidy(&ledger->breakers, ledger->journal, &ledger->nodes, now_ms);
}

int64_t ledger_steady_ms(const struct ledger *ledger, int64_t now_ms)
{
    return now_ms - ledger->journal->wait_shift_ms;
}

void ledger_end(struct ledger *ledger)
{
    limits_write(&ledger->limits, ledger->journal);
}

/* The function of each verb; the others never reach the ledger (reader.c answers them). */
static ledger_verb *const verbs[STORE_VERB_COUNT] = {
    [STORE_PUT] = ledger_put,
    [STORE_RESERVE] = ledger_reserve,
    [STORE_ACK] = ledger_ack,
    [STORE_FINISH] = ledger_finish,
    [STORE_RENEW] = ledger_renew,
    [STORE_WAIT] = ledger_wait,
    [STORE_LANES] = ledger_lanes,
    [STORE_LANE] = ledger_lane,
    [STORE_DUE] = ledger_due,
    [STORE_NODE_PUT] = ledger_node_put,
    [STORE_NODE_DROP] = ledger_node_drop,
    [STORE_NODES] = ledger_nodes,
    [STORE_COUNTS] = ledger_nodes,
    [STORE_CALLBACK_DONE] = ledger_callback_done,
    [STORE_BREAKERS] = ledger_breakers,
    [STORE_BREAKER_RESET] = ledger_breaker_reset,
    [STORE_LIMIT_SET] = ledger_limit_set,
    [STORE_LIMIT_HOLD] = ledger_limit_hold,
    [STORE_LIMITS] = ledger_limits,
};

void ledger_apply(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    assert(op->verb < STORE_VERB_COUNT && verbs[op->verb]);
    op->err = ERR_OK;
    op->head.id = 0;
    op->left.count = op->left.gpu_count = 0;
    verbs[op->verb](ledger, op, now_ms);
}

/* Nodes. */

static struct ledger_node *ledger_holder_add(struct ledger *ledger, struct str id)
{
    struct ledger_node *holder = slab_new(&ledger->holders);

    str_copy(id, holder->text, sizeof holder->text);
    holder->id = str_of(holder->text);
    holder->counts.epoch = 1;
    chain_init(&holder->leases);
    map_put(&ledger->nodes, holder->id, holder);
    return holder;
}

static void holder_free(struct ledger *ledger, struct ledger_node *holder)
{
    buf_free(&holder->admin_reason);
    buf_free(&holder->facts);
    buf_free(&holder->resources_text);
    free(holder->resources);
    slab_drop(&ledger->holders, holder);
}

/* Frees it once it has no leases. */
static void ledger_holder_drop(struct ledger *ledger, struct ledger_node *holder)
{
    holder->known = false;
    holder->counts.health = NODE_HEALTH_NONE;
    holder->admin = NODE_ADMIN_NONE;
    buf_clear(&holder->admin_reason);
    buf_clear(&holder->facts);
    buf_clear(&holder->resources_text);
    free(holder->resources);
    holder->resources = NULL;
    if (!chain_alone(&holder->leases))
        return;
    assert(holder->counts.reserved == 0 && holder->counts.running == 0);
    map_del(&ledger->nodes, holder->id);
    holder_free(ledger, holder);
}

/* Does the lease count on its node? Not if its epoch has ended. */
static bool takes(const struct ledger_node *holder, const struct ledger_run *run)
{
    const struct limits_demand *demand = run->job->demand;

    return holder->resources && demand && demand->has_needs &&
           run->lease.epoch == holder->counts.epoch;
}

void ledger_bind(struct ledger *ledger, struct ledger_job *entry, struct ledger_node *holder)
{
    struct ledger_run *run = entry->run;
    const struct limits_demand *demand = entry->demand;

    assert(!run->holder && run->lease.kind != LEASE_NONE);
    assert(lease_counts_ok(&holder->counts));
    run->holder = holder;
    chain_add_last(&holder->leases, &run->in_holder);
    if (!demand)
        return;
    if (takes(holder, run))
        resources_take(holder->resources, &demand->demand, run->gpus);
    for (size_t i = 0; i < demand->demand.key_count; i++)
        limits_take(&ledger->limits, demand->keys[i], entry->head.id);
}

void ledger_unbind(struct ledger *ledger, struct ledger_job *entry)
{
    struct ledger_node *holder = entry->run->holder;

    assert(holder && entry->run->lease.kind == LEASE_NONE);
    assert(lease_counts_ok(&holder->counts));
    if (entry->demand) {
        const struct limits_demand *demand = entry->demand;

        if (takes(holder, entry->run))
            resources_give(holder->resources, &demand->demand, entry->run->gpus);
        for (size_t i = 0; i < demand->demand.key_count; i++)
            limits_give(demand->keys[i], entry->head.id);
    }
    entry->run->holder = NULL;
    chain_del(&entry->run->in_holder);
    if (!holder->known)
        ledger_holder_drop(ledger, holder);
}

/* Jobs. */

static const struct ledger_run never_ran;

struct ledger_job *ledger_add(struct ledger *ledger, uint64_t id)
{
    struct ledger_job *entry = slab_new(&ledger->entries);

    assert(id != 0 && !idshards_get(&ledger->jobs, id));
    entry->head.id = id;
    entry->due.tie = id;
    entry->run = (struct ledger_run *)&never_ran;
    chain_init(&entry->in_list);
    idshards_put(&ledger->jobs, id, entry);
    ledger->active_count++;
    return entry;
}

struct ledger_run *ledger_own_run(struct ledger *ledger, struct ledger_job *entry)
{
    struct ledger_run *run = entry->run;

    if (run != &never_ran)
        return run;
    run = entry->run = slab_new(&ledger->runs);
    run->job = entry;
    run->lease.job = entry->head.id;
    chain_init(&run->in_holder);
    return run;
}

static void due_del(struct ledger *ledger, struct ledger_job *entry)
{
    heap_del(entry->due_waits ? &ledger->due_waits : &ledger->due, &entry->due);
}

static void due_move(struct ledger *ledger, struct ledger_job *entry, bool waits, int64_t due_ms)
{
    if (entry->due_waits != waits)
        due_del(ledger, entry);
    entry->due_waits = waits;
    heap_move(waits ? &ledger->due_waits : &ledger->due, &entry->due, due_ms);
}

/* Adds it to the recent jobs and evicts the oldest of those. */
static void retire(struct ledger *ledger, struct ledger_job *entry)
{
    struct ledger_run *run;

    limits_unuse_demand(&ledger->limits, entry->demand);
    entry->demand = NULL;
    chain_add_last(&ledger->recent, &entry->in_list);
    ledger->active_count--;
    if (++ledger->recent_count <= LEDGER_RECENT_MAX)
        return;
    entry = container_of(ledger->recent.next, struct ledger_job, in_list);
    if (entry->head.id > ledger->evicted_max)
        ledger->evicted_max = entry->head.id;
    ledger->recent_count--;
    run = entry->run;
    assert(!run->probe && !entry->in_lane.at && !entry->demand);
    idshards_del(&ledger->jobs, entry->head.id);
    due_del(ledger, entry);
    chain_del(&entry->in_list);
    if (run != &never_ran) {
        chain_del(&run->in_holder);
        buf_free(&run->attempts);
        slab_drop(&ledger->runs, run);
    }
    slab_drop(&ledger->entries, entry);
}

/* Loads the journal's row into memory and takes the attempts out of `row`. */
static struct ledger_job *take_row(struct ledger *ledger, struct journal_job *row)
{
    const struct store_head *from = &row->head;
    struct ledger_job *entry = ledger_add(ledger, from->id);
    struct ledger_head *head = &entry->head;

    head->lane = from->lane;
    head->created_ms = from->created_ms;
    head->updated_ms = from->updated_ms;
    head->due_ms = from->due_ms;
    head->timeout_ms = from->timeout_ms;
    head->owner = from->owner;
    head->state = from->state;
    head->lease = from->lease;
    head->attempt = from->attempt;
    head->max_attempts = from->max_attempts;
    head->callback = from->callback;
    head->priority = from->priority;
    memcpy(head->type, from->type, sizeof head->type);
    entry->keyed = row->keyed;
    entry->answered = row->answered;
    if (*from->node || *from->reason || from->epoch || from->dispatched_ms || from->acked_ms ||
        from->ended_ms || from->gpus || row->run_until_ms || row->attempts.len ||
        from->lease != LEASE_NONE) {
        struct ledger_run *run = ledger_own_run(ledger, entry);

        memcpy(run->node, from->node, sizeof run->node);
        memcpy(run->reason, from->reason, sizeof run->reason);
        run->epoch = from->epoch;
        run->dispatched_ms = from->dispatched_ms;
        run->acked_ms = from->acked_ms;
        run->ended_ms = from->ended_ms;
        run->run_until_ms = row->run_until_ms;
        run->started_ms = ledger_steady_ms(ledger, from->dispatched_ms);
        run->gpus = from->gpus;
        run->attempts = row->attempts;
        row->attempts = (struct buf){0};
    }
    return entry;
}

struct store_head ledger_head(const struct ledger_job *entry)
{
    const struct ledger_head *from = &entry->head;
    const struct ledger_run *run = entry->run;
    struct store_head head = {
        .id = from->id,
        .state = from->state,
        .attempt = from->attempt,
        .max_attempts = from->max_attempts,
        .lease = from->lease,
        .epoch = run->epoch,
        .owner = from->owner,
        .lane = from->lane,
        .priority = from->priority,
        .created_ms = from->created_ms,
        .updated_ms = from->updated_ms,
        .dispatched_ms = run->dispatched_ms,
        .acked_ms = run->acked_ms,
        .ended_ms = run->ended_ms,
        .due_ms = from->due_ms,
        .timeout_ms = from->timeout_ms,
        .callback = from->callback,
        .gpus = run->gpus,
    };

    memcpy(head.node, run->node, sizeof head.node);
    memcpy(head.type, from->type, sizeof head.type);
    memcpy(head.reason, run->reason, sizeof head.reason);
    return head;
}

struct ledger_job *ledger_find(struct ledger *ledger, uint64_t id)
{
    struct ledger_job *entry = idshards_get(&ledger->jobs, id);
    struct journal_job row = {0};

    if (entry || id > ledger->evicted_max || id == 0)
        return entry;
    if (journal_job_find(ledger->journal, id, &row)) {
        entry = take_row(ledger, &row);
        assert(entry->head.id == id && ledger_over(entry)); /* active jobs are never evicted */
        retire(ledger, entry);
    }
    buf_free(&row.attempts);
    return entry;
}

bool ledger_waiting(const struct ledger_job *entry)
{
    enum job_state state = entry->head.state;

    return state == JOB_NEW || state == JOB_SELECTING || state == JOB_RETRYING;
}

bool ledger_over(const struct ledger_job *entry)
{
    return job_state_final(entry->head.state) && entry->head.lease == LEASE_NONE &&
           entry->ran_out == LEASE_NONE;
}

bool ledger_orphaned(const struct ledger_job *entry)
{
    return entry->run->holder && entry->run->lease.epoch != entry->run->holder->counts.epoch;
}

/* Leases have their own list, so that they never wait behind the others. */
static void add_lapsed(struct ledger *ledger, struct ledger_job *entry)
{
    bool is_lease = entry->run->holder || entry->ran_out != LEASE_NONE;

    due_del(ledger, entry);
    chain_add_last(is_lease ? &ledger->lapsed : &ledger->lapsed_waits, &entry->in_list);
}

void ledger_place(struct ledger *ledger, struct ledger_job *entry)
{
    chain_del(&entry->in_list);
    assert((entry->run->lease.kind != LEASE_NONE) == (entry->run->holder != NULL));
    if (entry->run->holder)
        entry->head.due_ms = entry->run->lease.until_ms;
    if (ledger_orphaned(entry)) {
        add_lapsed(ledger, entry);
    } else if (entry->run->holder) {
        due_move(ledger, entry, false, entry->run->lease.until_ms);
    } else if (ledger_waiting(entry)) {
        due_move(ledger, entry, true, entry->head.due_ms);
    } else if (ledger_over(entry)) {
        due_del(ledger, entry);
        retire(ledger, entry);
    } else {
        add_lapsed(ledger, entry);
    }
}

/* It expired: a lease frees its slot, and the job waits for the sweep. This is not written by
 * itself: until the slot is taken again, the row may still have the lease. */
static void lapse(struct ledger *ledger, struct ledger_job *entry, int64_t now_ms)
{
    assert(entry->due.at && entry->due.key <= now_ms);
    if (entry->run->holder) {
        entry->ran_out = entry->run->lease.kind;
        breakers_release(entry);
        lease_expire(&entry->run->holder->counts, &entry->run->lease, now_ms);
        entry->head.lease = LEASE_NONE;
        entry->unwritten = true;
        ledger->unwritten_count++;
        ledger_unbind(ledger, entry);
    }
    assert(!entry->run->holder);
    add_lapsed(ledger, entry);
}

static size_t lapse_from(struct ledger *ledger, struct heap *heap, int64_t now_ms, size_t max)
{
    struct heap_node *top;
    size_t count = 0;

    for (; count < max && (top = heap_top(heap)) && top->key <= now_ms; count++)
        lapse(ledger, container_of(top, struct ledger_job, due), now_ms);
    return count;
}

void ledger_lapse(struct ledger *ledger, int64_t now_ms)
{
    lapse_from(ledger, &ledger->due, now_ms, LEDGER_CLEAR_MAX);
}

void ledger_lapse_one(struct ledger *ledger, struct ledger_job *entry, int64_t now_ms)
{
    if (entry->due.at && entry->due.key <= now_ms)
        lapse(ledger, entry, now_ms);
}

void ledger_settled(struct ledger *ledger, struct ledger_job *entry)
{
    assert(!entry->unwritten || ledger->unwritten_count > 0);
    ledger->unwritten_count -= entry->unwritten;
    entry->unwritten = false;
    entry->ran_out = LEASE_NONE;
}

/* From the end, where the newly expired ones are; before them there may be very many waiting for a
 * slow sweep. */
void ledger_write_lapsed(struct ledger *ledger)
{
    for (struct chain *at = ledger->lapsed.prev; ledger->unwritten_count && at != &ledger->lapsed;
         at = at->prev) {
        struct ledger_job *entry = container_of(at, struct ledger_job, in_list);

        if (!entry->unwritten)
            continue;
        entry->unwritten = false;
        ledger->unwritten_count--;
        journal_job_step(ledger->journal, entry, 0);
    }
    assert(ledger->unwritten_count == 0);
}

/* Answers. */

struct job_facts ledger_facts(const struct ledger_job *entry)
{
    return (struct job_facts){
        .state = entry->head.state,
        .attempt = entry->head.attempt,
        .max_attempts = entry->head.max_attempts,
        .node = *entry->run->node ? str_of(entry->run->node) : STR_NONE,
    };
}

void ledger_answer_node(struct store_op *op, const struct ledger_node *holder)
{
    op->counts = holder->counts;
    if (holder->resources)
        resources_left(holder->resources, &op->left);
}

/* From the file. */

static void load_node(struct ledger *ledger, const struct store_node *row)
{
    struct ledger_node *holder = ledger_holder_add(ledger, row->id);
    struct resources resources;

    holder->counts = row->counts;
    holder->own = row->own;
    holder->admin = row->admin;
    buf_str(&holder->admin_reason, row->admin_reason);
    buf_str(&holder->facts, row->facts);
    /* Invalid text counts as none: the node gets no work that needs resources. */
    if (row->resources.len && resources_parse(row->resources, &resources)) {
        buf_str(&holder->resources_text, row->resources);
        holder->resources = mem_new(struct resources);
        *holder->resources = resources;
    }
    holder->registered_ms = row->registered_ms;
    holder->version = row->version;
    holder->known = true;
}

static int32_t slots_of(const struct lease *lease)
{
    return lease->slots > 0 ? lease->slots : 1;
}

/* Restores a lease from its row. Time the store was down does not count: a running lease gets a
 * full term and, even past its time-out, a grace in which its node can still report; so does a
 * reserved one. What the clock showed when they were made does not matter. */
static void load_lease(struct ledger *ledger, struct ledger_job *entry, int64_t now_ms)
{
    struct str node = str_of(entry->run->node);
    struct ledger_node *holder = map_get(&ledger->nodes, node);
    int64_t until = ledger_later(now_ms, lease_term_ms(&ledger->terms, str_of(entry->head.type)));
    int64_t reserved_ms = entry->head.due_ms - entry->run->dispatched_ms;

    if (!holder) /* dropped: kept until its last lease ends */
        holder = ledger_holder_add(ledger, node);
    if (!holder->known && entry->run->epoch > holder->counts.epoch) {
        /* A dropped node has no row in the file: its epoch is the newest of its leases. Leases of
         * older epochs no longer count. */
        holder->counts.epoch = entry->run->epoch;
        holder->counts.reserved = holder->counts.running = 0;
        for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next)
            ledger_place(ledger, container_of(at, struct ledger_run, in_holder)->job);
    }
    if (entry->run->run_until_ms && entry->run->run_until_ms < now_ms + LEDGER_AWAY_GRACE_MS)
        entry->run->run_until_ms = now_ms + LEDGER_AWAY_GRACE_MS;
    if (entry->run->run_until_ms && until > entry->run->run_until_ms)
        until = entry->run->run_until_ms;
    if (entry->head.lease == LEASE_RESERVED && until - now_ms > reserved_ms)
        until = now_ms + reserved_ms;
    entry->run->lease = (struct lease){
        .kind = entry->head.lease,
        .slots = entry->demand ? entry->demand->demand.slots : 0,
        .epoch = entry->run->epoch,
        .job = entry->head.id,
        .until_ms = until,
    };
    if (entry->run->lease.epoch == holder->counts.epoch)
        *(entry->run->lease.kind == LEASE_RUNNING ? &holder->counts.running
                                                  : &holder->counts.reserved) +=
            slots_of(&entry->run->lease);
    ledger_bind(ledger, entry, holder);
}

static bool load_jobs(struct ledger *ledger, int64_t now_ms)
{
    struct journal_job row = {0};
    struct arena arena = {0};

    while (journal_job_active(ledger->journal, &row)) {
        struct ledger_job *entry = take_row(ledger, &row);

        limits_use_demand(&ledger->limits, row.demand, &entry->demand);
        entry->head.lane = 0;
        entry->head.priority = 0;
        if (entry->head.lease != LEASE_NONE) {
            load_lease(ledger, entry, now_ms);
        } else if (row.head.lane && ledger_waiting(entry)) { /* its due time is unchanged */
            struct store_account account = {.name = STR_NONE, .bytes = (int64_t)row.spec.len};
            const struct json *spec;

            /* Without tokens no spec names an account, and searching for the name is faster than
             * parsing the JSON. */
            if (row.spec.at &&
                memmem(row.spec.at, row.spec.len, ACCOUNT_FIELD, strlen(ACCOUNT_FIELD)) &&
                !json_parse(row.spec, &arena, &spec, NULL))
                account.name = json_str(json_get(spec, ACCOUNT_FIELD), &arena);
            ledger_enter_lane(ledger, entry, row.head.lane, row.head.priority, &account);
            arena_reset(&arena);
        } else {
            entry->head.due_ms = now_ms; /* no instance holds it any more: the sweep takes it */
        }
        ledger_place(ledger, entry);
    }
    arena_free(&arena);
    buf_free(&row.attempts);
    return !journal_failed(ledger->journal);
}

bool ledger_load(struct ledger *ledger, const struct ledger_config *config)
{
    struct change row;

    *ledger = (struct ledger){
        .journal = config->journal,
        .now_ms = config->now_ms,
        .pause = 1,
        .terms = config->terms,
        .retention_ms = config->retention_ms,
        .evicted_max = config->journal->max_id,
        .walk_shard = IDSHARDS,
        .entries = {.size = sizeof(struct ledger_job)},
        .runs = {.size = sizeof(struct ledger_run)},
        .holders = {.size = sizeof(struct ledger_node), .is_random = true},
    };
    chain_init(&ledger->lapsed);
    chain_init(&ledger->lapsed_waits);
    chain_init(&ledger->recent);
    sessions_init(&ledger->sessions);
    breakers_init(&ledger->breakers, &config->breaker);
    lanes_init(&ledger->lanes);
    limits_init(&ledger->limits);
    limits_load(&ledger->limits, ledger->journal);
    while (journal_next(ledger->journal, CHANGE_NODE, &row))
        load_node(ledger, &row.u.node);
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
    struct ledger_job *entry;
    struct ledger_node *holder;

    if (!ledger->journal)
        return; /* never loaded or already freed */
    /* Before the jobs: they point to each other. */
    breakers_free(&ledger->breakers);
    for (size_t at = 0; (entry = idshards_next(&ledger->jobs, &at));)
        if (entry->run != &never_ran)
            buf_free(&entry->run->attempts);
    slab_free(&ledger->entries);
    slab_free(&ledger->runs);
    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));)
        holder_free(ledger, holder);
    slab_free(&ledger->holders);
    limits_free(&ledger->limits);
    lanes_free(&ledger->lanes);
    accounts_free(&ledger->accounts);
    idshards_free(&ledger->jobs);
    map_free(&ledger->nodes);
    heap_free(&ledger->due);
    heap_free(&ledger->due_waits);
    sessions_free(&ledger->sessions);
    *ledger = (struct ledger){0};
}

/* --- nodes --- */

static bool same(const struct buf *kept, struct str text)
{
    return str_eq(buf_view(kept), text);
}

static void replace(struct buf *kept, struct str text)
{
    buf_clear(kept);
    buf_str(kept, text);
}

/* Applies the changed fields; false if none changed. A sender may have an old view of the fields it
 * is not changing: fields it leaves out stay, and the operator's setting stored here is kept. */
static bool take_facts(struct ledger_node *holder, const struct store_op *op)
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

/* Recomputes used resources from the leases that count. */
static void recount_resources(const struct ledger_node *holder, struct resources *resources)
{
    resources_none_used(resources);
    for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next) {
        const struct ledger_run *run = container_of(at, struct ledger_run, in_holder);

        if (takes(holder, run))
            resources_take(resources, &run->job->demand->demand, run->gpus);
    }
}

/* False: nothing changed. */
static bool take_resources(struct ledger_node *holder, struct str text,
                           const struct resources *resources)
{
    if (!text.at || same(&holder->resources_text, text))
        return false;
    replace(&holder->resources_text, text);
    if (!text.len) {
        free(holder->resources);
        holder->resources = NULL;
        return true;
    }
    if (!holder->resources)
        holder->resources = mem_new(struct resources);
    if (!resources_update(holder->resources, resources))
        recount_resources(holder, holder->resources);
    return true;
}

/* The node is lost, or back without its runs. Leases that end with the epoch are due for the sweep
 * at once instead of at their expiry; until the sweep takes one, a late message from the node can
 * still end it. */
static void begin_epoch(struct ledger *ledger, struct ledger_node *holder, bool keeps_runs)
{
    lease_new_epoch(&holder->counts, keeps_runs);
    if (holder->resources)
        resources_none_used(holder->resources);
    for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next) {
        struct ledger_job *entry = container_of(at, struct ledger_run, in_holder)->job;

        if (keeps_runs && lease_keep(&holder->counts, &entry->run->lease)) {
            entry->run->epoch = entry->run->lease.epoch;
            if (takes(holder, entry->run))
                resources_take(holder->resources, &entry->demand->demand, entry->run->gpus);
            journal_job_step(ledger->journal, entry, 0);
        } else {
            assert(ledger_orphaned(entry));
            ledger_place(ledger, entry);
        }
    }
}

void ledger_node_put(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct ledger_node *holder = map_get(&ledger->nodes, op->node);
    bool old_epoch;
    bool is_fresh; /* it is just beginning its first epoch */
    bool changed;
    struct resources resources;

    op->u.node_put.created = false;
    if (op->u.node_put.resources.at && !resources_parse(op->u.node_put.resources, &resources)) {
        op->err = ERR_BAD_FIELD;
        return;
    }
    if (!holder || !holder->known) { /* then this must be a registration */
        op->err = op->node.len == 0 || op->node.len > NODE_ID_MAX ? ERR_BAD_FIELD
                  : !op->u.node_put.facts.at                      ? ERR_NOT_FOUND
                                                                  : ERR_OK;
        if (op->err)
            return;
        /* Dropped recently and back: its remaining leases still count. */
        if (!holder)
            holder = ledger_holder_add(ledger, op->node);
        holder->known = true;
        holder->version = 0;
        holder->registered_ms = now_ms;
        op->u.node_put.created = true;
    }
    is_fresh = op->u.node_put.created && chain_alone(&holder->leases);
    old_epoch = op->u.node_put.if_epoch && op->u.node_put.if_epoch != holder->counts.epoch;
    if (old_epoch && !op->u.node_put.facts.at) {
        /* A finding about an ended epoch. The node's own health report is still applied. */
        op->err = ERR_STALE;
    } else {
        changed = take_facts(holder, op) || op->u.node_put.created;
        if (op->u.node_put.new_epoch && !old_epoch && !is_fresh) {
            begin_epoch(ledger, holder, op->u.node_put.keeps_runs);
            changed = true;
        }
        changed |= take_resources(holder, op->u.node_put.resources, &resources);
        if (changed) {
            holder->version++;
            journal_put(
                ledger->journal,
                &(struct change){.kind = CHANGE_NODE,
                                 .u.node = {.id = holder->id,
                                            .counts = holder->counts,
                                            .own = holder->own,
                                            .admin = holder->admin,
                                            .admin_reason = buf_view(&holder->admin_reason),
                                            .registered_ms = holder->registered_ms,
                                            .version = holder->version,
                                            .facts = buf_view(&holder->facts),
                                            .resources = buf_view(&holder->resources_text)}});
        }
    }
    op->u.node_put.version = holder->version;
    op->u.node_put.registered_ms = holder->registered_ms;
    ledger_answer_node(op, holder);
}

void ledger_node_drop(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct ledger_node *holder = map_get(&ledger->nodes, op->node);

    if (!holder || !holder->known) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    ledger_answer_node(op, holder);
    journal_put(ledger->journal, &(struct change){.kind = CHANGE_NODE_DEL, .u.node.id = op->node});
    ledger_holder_drop(ledger, holder);
}

enum { COUNTS_PART = 512 };

static void list_node(struct store_op *op, const struct ledger_node *holder)
{
    struct store_node *item = &op->u.nodes.items[op->u.nodes.count];

    if (!holder || !holder->known)
        return;
    *item = (struct store_node){
        .id = arena_str(op->arena, holder->id),
        .counts = holder->counts,
        .own = holder->own,
        .admin = holder->admin,
        .admin_reason = arena_str(op->arena, buf_view(&holder->admin_reason)),
        .registered_ms = holder->registered_ms,
        .version = holder->version,
    };
    if (op->verb == STORE_NODES) {
        item->facts = arena_str(op->arena, buf_view(&holder->facts));
        item->resources = arena_str(op->arena, buf_view(&holder->resources_text));
    }
    if (holder->resources)
        resources_left(holder->resources, &item->left);
    op->u.nodes.count++;
}

/* NODES and COUNTS. Counts are asked for all the time, and in a large fleet other ops must not wait
 * for all of them. If nodes join or leave between two parts, another one may be in none, or in two:
 * who misses a node asks for it by name. */
void ledger_nodes(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    bool in_parts = op->verb == STORE_COUNTS && ledger->nodes.count > COUNTS_PART;
    size_t max = op->u.nodes.ids ? op->u.nodes.id_count : ledger->nodes.count;
    size_t at = in_parts ? op->u.nodes.from : 0;
    const struct ledger_node *holder;

    assert(!in_parts || !op->u.nodes.ids);
    if (in_parts)
        max = COUNTS_PART;
    op->u.nodes.items = arena_array(op->arena, struct store_node, max);
    op->u.nodes.count = 0;
    op->u.nodes.from = 0;
    for (size_t i = 0; op->u.nodes.ids && i < max; i++)
        list_node(op, map_get(&ledger->nodes, op->u.nodes.ids[i]));
    while (!op->u.nodes.ids && (holder = map_next(&ledger->nodes, &at))) {
        list_node(op, holder);
        if (in_parts && op->u.nodes.count == max) {
            op->u.nodes.from = at;
            break;
        }
    }
}

/* The sum of a node's leases. */
static struct lease_node recount(const struct ledger_node *holder)
{
    struct lease_node counts = holder->counts;

    counts.reserved = counts.running = 0;
    for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next) {
        const struct lease *lease = &container_of(at, struct ledger_run, in_holder)->lease;

        assert(lease->kind != LEASE_NONE);
        if (lease->epoch == counts.epoch)
            *(lease->kind == LEASE_RUNNING ? &counts.running : &counts.reserved) += slots_of(lease);
    }
    return counts;
}

/* The number of used amounts that differ from the sum of the leases, which goes into
 * *ret_counted. */
static int wrong_resources(const struct ledger_node *holder, struct resources *ret_counted)
{
    const struct resources *now = holder->resources;
    int wrong = 0;

    *ret_counted = *now;
    recount_resources(holder, ret_counted);
    for (size_t i = 0; i < now->count; i++)
        wrong += now->items[i].used != ret_counted->items[i].used;
    for (size_t i = 0; i < now->gpu_count; i++)
        wrong += now->gpus[i].used_mb != ret_counted->gpus[i].used_mb ||
                 now->gpus[i].whole != ret_counted->gpus[i].whole;
    return wrong;
}

/* Counts each key's leases into key->recount. */
static void recount_keys(const struct ledger *ledger)
{
    struct limits_key *key;
    struct ledger_node *holder;

    for (size_t at = 0; (key = map_next(&ledger->limits.keys, &at));)
        key->recount = 0;
    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));)
        for (struct chain *link = holder->leases.next; link != &holder->leases; link = link->next) {
            const struct limits_demand *demand =
                container_of(link, struct ledger_run, in_holder)->job->demand;

            for (size_t i = 0; demand && i < demand->demand.key_count; i++)
                demand->keys[i]->recount++;
        }
}

static bool put_right(int32_t *count, int32_t right)
{
    bool wrong = *count != right;

    *count = right;
    return wrong;
}

void ledger_audit(struct ledger *ledger)
{
    int64_t *repairs = ledger->repairs;
    struct ledger_node *holder;
    struct limits_key *key;
    struct resources counted;

    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));) {
        struct lease_node counts = recount(holder);

        repairs[STORE_RULE_SLOTS] += put_right(&holder->counts.reserved, counts.reserved);
        repairs[STORE_RULE_SLOTS] += put_right(&holder->counts.running, counts.running);
        if (holder->resources) {
            repairs[STORE_RULE_RESOURCES] += wrong_resources(holder, &counted);
            *holder->resources = counted;
        }
    }
    recount_keys(ledger);
    for (size_t at = 0; (key = map_next(&ledger->limits.keys, &at));) {
        repairs[STORE_RULE_KEY_LEASES] += put_right(&key->state.in_flight, key->recount);
        key->lane_recount = 0;
    }
    ledger->floor = ledger->journal->max_id + 1;
    ledger->walk_shard = 0;
}

bool ledger_walk(struct ledger *ledger)
{
    struct ledger_job *entry;
    struct limits_key *key;

    if (ledger->walk_shard == IDSHARDS)
        return false;
    for (size_t at = 0; (entry = idmap_next(&ledger->jobs.shards[ledger->walk_shard], &at));) {
        if (!ledger_over(entry) && entry->head.id < ledger->floor)
            ledger->floor = entry->head.id;
        for (size_t i = 0; entry->head.lane && entry->demand && i < entry->demand->demand.key_count;
             i++)
            entry->demand->keys[i]->lane_recount++;
    }
    if (++ledger->walk_shard < IDSHARDS)
        return true;
    for (size_t at = 0; (key = map_next(&ledger->limits.keys, &at));)
        ledger->repairs[STORE_RULE_KEY_WAITING] +=
            put_right(&key->state.waiting, key->lane_recount);
    journal_floor(ledger->journal, ledger->floor);
    return false;
}

static void check_limits(const struct ledger *ledger)
{
    struct limits_demand *demand;
    struct ledger_job *entry;
    struct limits_key *key;

    recount_keys(ledger);
    for (size_t at = 0; (key = map_next(&ledger->limits.keys, &at));) {
        assert(key->state.in_flight == key->recount);
        key->recount = 0;
    }
    for (size_t at = 0; (entry = idshards_next(&ledger->jobs, &at));)
        for (size_t i = 0; entry->head.lane && entry->demand && i < entry->demand->demand.key_count;
             i++)
            entry->demand->keys[i]->recount++;
    for (size_t at = 0; (key = map_next(&ledger->limits.keys, &at));) {
        assert(key->state.waiting == key->recount);
        key->recount = 0;
    }
    for (size_t at = 0; (demand = map_next(&ledger->limits.demands, &at));)
        for (size_t i = 0; i < demand->demand.key_count; i++)
            demand->keys[i]->recount++;
    for (size_t at = 0; (key = map_next(&ledger->limits.keys, &at));)
        assert((uint32_t)key->recount == key->refs);
    limits_verify(&ledger->limits);
}

static void check_demands(const struct ledger *ledger)
{
    const struct limits_demand *demand;
    struct ledger_job *entry;
    uint64_t refs = 0;

    for (size_t at = 0; (demand = map_next(&ledger->limits.demands, &at));) {
        assert(demand->refs > 0);
        refs += demand->refs;
    }
    for (size_t at = 0; (entry = idshards_next(&ledger->jobs, &at));) {
        assert(!entry->demand || !ledger_over(entry));
        refs -= entry->demand != NULL;
    }
    assert(refs == 0);
}

static void check_entry(const struct ledger *ledger, const struct ledger_job *entry)
{
    int places = (entry->due.at != 0) + !chain_alone(&entry->in_list);
    const struct ledger_run *run = entry->run;

    assert(places == 1);
    assert(entry->due.tie == entry->head.id);
    assert(run == &never_ran || (run->job == entry && run->lease.job == entry->head.id &&
                                 (run->holder != NULL) == !chain_alone(&run->in_holder)));
    assert((run->holder != NULL) == (run->lease.kind != LEASE_NONE));
    assert(!run->holder || ledger_orphaned(entry) == !entry->due.at);
    assert(!run->holder || !entry->due.at || entry->due.key == run->lease.until_ms);
    assert(entry->head.lease == run->lease.kind);
    assert(!entry->unwritten || entry->ran_out != LEASE_NONE);
    assert(entry->ran_out == LEASE_NONE || (!run->holder && !entry->due.at));
    assert(!run->holder || str_is(run->holder->id, run->node));
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
    assert(!run->probe || (run->holder && run->probe->probe == entry));
    assert(idshards_get(&ledger->jobs, entry->head.id) == entry);
}

static void check_accounts(const struct ledger *ledger)
{
    const struct account *account;
    struct ledger_job *entry;

    for (size_t at = 0; (account = map_next(&ledger->accounts.by_name, &at));) {
        int64_t jobs = 0, bytes = 0;

        for (size_t i = 0; (entry = idshards_next(&ledger->jobs, &i));) {
            jobs += entry->account == account;
            bytes += entry->account == account ? entry->account_bytes : 0;
        }
        assert(jobs == account->jobs && bytes == account->bytes && jobs > 0);
    }
}

void ledger_check(const struct ledger *ledger)
{
    size_t active = 0, unwritten = 0, total = 0, in_lanes = 0;
    struct ledger_node *holder;
    struct ledger_job *entry;
    struct resources resources;

    for (size_t at = 0; (holder = map_next(&ledger->nodes, &at));) {
        struct lease_node counts = recount(holder);

        assert(counts.reserved == holder->counts.reserved);
        assert(counts.running == holder->counts.running);
        assert(holder->known || !chain_alone(&holder->leases));
        assert((holder->resources != NULL) == (holder->resources_text.len > 0));
        assert(!holder->resources || !wrong_resources(holder, &resources));
    }
    for (size_t at = 0; (entry = idshards_next(&ledger->jobs, &at)); total++) {
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
    check_demands(ledger);
    check_limits(ledger);
}

/* --- time --- */

/* Every term keeps its remaining length; for jobs in lanes also across a restart. Otherwise a clock
 * set back would block slots for that long, and a clock set forward would expire all leases. */
void ledger_clock_set(struct ledger *ledger, int64_t step_ms)
{
    struct ledger_job *entry;

    for (size_t at = 0; (entry = idshards_next(&ledger->jobs, &at));) {
        if (entry->run->holder && entry->run->lease.until_ms != LEASE_FOREVER)
            entry->run->lease.until_ms += step_ms;
        if (entry->head.due_ms && entry->head.due_ms != LEASE_FOREVER)
            entry->head.due_ms += step_ms;
        if (entry->run->run_until_ms && entry->run->run_until_ms != LEASE_FOREVER)
            entry->run->run_until_ms += step_ms;
        if (entry->due.at)
            entry->due.key = entry->run->holder ? entry->run->lease.until_ms : entry->head.due_ms;
    }
    heap_reorder(&ledger->due);
    heap_reorder(&ledger->due_waits);
    if (ledger->lanes.job_count > 0 || ledger->limits.keys.count > 0)
        journal_shift_waits(ledger->journal, step_ms);
    ledger->now_ms += step_ms;
    ledger->grace_from_ms += step_ms;
    ledger->grace_until_ms += step_ms;
}

int64_t ledger_graced(const struct ledger *ledger, int64_t until_ms)
{
    return until_ms > ledger->grace_from_ms && until_ms < ledger->grace_until_ms
               ? ledger->grace_until_ms
               : until_ms;
}

void ledger_begin(struct ledger *ledger, int64_t now_ms)
{
    int64_t away_ms = now_ms - ledger->now_ms;
    struct ledger_job *entry;

    if (away_ms > LEDGER_AWAY_MS) {
        /* The process was frozen and could not be called, so no term may run down. Running leases
         * that had not expired also get a grace, here, before anything is cleared. A new grace
         * during an earlier one keeps what that one kept. */
        ledger_clock_set(ledger, away_ms);
        if (now_ms >= ledger->grace_until_ms)
            ledger->grace_from_ms = now_ms;
        /* After a small backward step of the clock the earlier grace may last longer. */
        if (ledger->grace_until_ms < now_ms + LEDGER_AWAY_GRACE_MS)
            ledger->grace_until_ms = now_ms + LEDGER_AWAY_GRACE_MS;
        for (size_t at = 0; (entry = idshards_next(&ledger->jobs, &at));)
            if (entry->run->holder &&
                lease_renew(&entry->run->lease,
                            ledger_graced(ledger, entry->run->lease.until_ms))) {
                entry->head.due_ms = entry->run->lease.until_ms;
                if (entry->due.at)
                    ledger_place(ledger, entry);
            }
        ledger->pause++;
    } else if (away_ms < -LEDGER_BACK_MS) {
        ledger_clock_set(ledger, away_ms);
    }
    ledger->now_ms = now_ms;
}

/* A heartbeat of the job's own node. An expired lease is not revived, and a lease of an older epoch
 * no longer belongs to the node. */
static bool renew_one(struct ledger *ledger, const struct ledger_node *holder,
                      struct ledger_job *entry, int64_t now_ms, const struct lease_terms *terms)
{
    int64_t until;

    if (!entry || entry->run->holder != holder || entry->run->lease.epoch != holder->counts.epoch ||
        entry->run->lease.until_ms <= now_ms)
        return false;
    until = ledger_later(now_ms, lease_term_ms(terms, str_of(entry->head.type)));
    if (entry->run->run_until_ms && until > entry->run->run_until_ms)
        until = entry->run->run_until_ms;
    if (!lease_renew(&entry->run->lease, ledger_graced(ledger, until)))
        return false;
    ledger_place(ledger, entry);
    return true;
}

void ledger_renew(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct ledger_node *holder = map_get(&ledger->nodes, op->node);

    if (holder && !holder->known)
        holder = NULL; /* dropped: its remaining leases expire on their own */
    for (size_t i = 0; i < op->u.renew.count && op->u.renew.runs; i++) {
        struct store_run *run = &op->u.renew.runs[i];
        struct ledger_job *entry = idshards_get(&ledger->jobs, run->id);

        run->unknown = !holder || !entry || entry->head.attempt != run->attempt ||
                       !renew_one(ledger, holder, entry, now_ms, &op->u.renew.terms);
    }
    if (!holder) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    if (!op->u.renew.runs)
        for (struct chain *at = holder->leases.next; at != &holder->leases; at = at->next)
            renew_one(ledger, holder, container_of(at, struct ledger_run, in_holder)->job, now_ms,
                      &op->u.renew.terms);
    ledger_answer_node(op, holder);
}

static void due_list(struct store_op *op, const struct chain *lapsed)
{
    for (const struct chain *at = lapsed->next; at != lapsed && op->u.due.count < op->u.due.max;
         at = at->next) {
        const struct ledger_job *entry = container_of(at, struct ledger_job, in_list);
        struct store_due *due = &op->u.due.items[op->u.due.count++];

        assert(!entry->run->holder || ledger_orphaned(entry));
        *due = (struct store_due){.id = entry->head.id,
                                  .attempt = entry->head.attempt,
                                  .state = entry->head.state,
                                  .lease = entry->run->holder ? entry->head.lease : entry->ran_out,
                                  .lane = entry->head.lane};
        str_copy(str_of(entry->run->node), due->node, sizeof due->node);
    }
}

/* Leases first: nodes and jobs depend on them, and there may be very many expired waiting jobs. */
void ledger_due(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    size_t leases = lapse_from(ledger, &ledger->due, now_ms, op->u.due.max);

    lapse_from(ledger, &ledger->due_waits, now_ms, op->u.due.max - leases);
    op->u.due.count = 0;
    due_list(op, &ledger->lapsed);
    due_list(op, &ledger->lapsed_waits);
}
