/* How jobs are created and attempts started (PUT and RESERVE), and how attempts and jobs end
 * (ACK, FINISH and CALLBACK_DONE). job_step() decides which event fits which state; the lease
 * decides what is still alive. */
#include "store/ledger_jobs.h"

#include <assert.h>
#include <string.h>

#include "base/json.h"
#include "model/namespace.h"
#include "store/ending.h"
#include "store/journal.h"
#include "store/ledger.h"
#include "store/store.h"

/* --- creation and placement --- */

/* Applies an event that must fit: the caller has checked the state. */
static struct job_step apply_event(struct ledger_head *head, enum job_event event)
{
    struct job_facts facts = {
        .state = head->state, .attempt = head->attempt, .max_attempts = head->max_attempts};
    struct job_step step = job_step(&facts, &(struct job_input){.event = event});

    assert(step.accepted);
    head->state = step.state;
    head->attempt = step.attempt;
    return step;
}

/* Restores the head of the first answer, without what happened to the job since. */
static void as_first_answered(struct store_head *head, const char *first_node)
{
    head->state = *first_node ? JOB_DISPATCHED : JOB_NEW;
    head->attempt = 1;
    head->lease = LEASE_NONE;
    head->due_ms = 0;
    head->ended_ms = 0;
    head->lane = 0;
    head->priority = 0;
    head->gpus = 0;
    head->reason[0] = '\0';
    str_copy(str_of(first_node), head->node, sizeof head->node);
}

/* If the Idempotency-Key was used for another job, answers that job's first answer or a refusal.
 * With the same job this is another try by the same sender (next candidates, a replay), and the
 * job's state decides. */
static bool answered_by_key(struct ledger *ledger, struct store_op *op)
{
    struct journal_key key;
    struct ledger_job *entry;

    if (!op->u.put.idem.at || !journal_key_find(ledger->journal, op->u.put.idem, &key) ||
        key.job == op->job)
        return false;
    entry = ledger_find(ledger, key.job);
    if (!entry)
        return false; /* only if the journal has failed */
    op->head = ledger_head(entry);
    if (key.fingerprint != op->u.put.fingerprint) {
        op->err = ERR_IDEMPOTENCY;
        return true;
    }
    as_first_answered(&op->head, key.first_node);
    op->u.put.duplicate = true;
    if (!entry->answered && !job_state_final(entry->head.state)) {
        entry->answered = true;
        journal_job_step(ledger->journal, entry, 0);
    }
    return true;
}

static bool may_create(struct store_op *op)
{
    if (op->job == 0 || op->attempt > 1 || !op->u.put.spec.at) {
        op->err = ERR_NOT_FOUND;
        return false;
    }
    if (op->u.put.max_attempts < 1 || op->u.put.max_attempts > JOB_ATTEMPTS_MAX ||
        op->u.put.type.len > POOL_LANG_MAX) {
        op->err = ERR_BAD_FIELD;
        return false;
    }
    return true;
}

static struct ledger_job *create(struct ledger *ledger, const struct store_op *op,
                                 struct limits_demand *demand, int64_t now_ms)
{
    struct ledger_job *entry = ledger_add(ledger, op->job);

    if (op->job < ledger->floor)
        ledger->floor = op->job; /* the walk may already have passed its place */
    entry->demand = demand;
    entry->head.state = JOB_NEW;
    entry->head.attempt = 1;
    entry->head.max_attempts = op->u.put.max_attempts;
    entry->head.owner = op->u.put.owner;
    entry->head.created_ms = now_ms;
    entry->head.updated_ms = now_ms;
    entry->head.timeout_ms = op->u.put.timeout_ms;
    entry->head.callback = op->u.put.callback ? CALLBACK_WANTED : CALLBACK_NONE;
    str_copy(op->u.put.type, entry->head.type, sizeof entry->head.type);
    return entry;
}

static void note_session(struct ledger *ledger, const struct store_op *op, int64_t now_ms)
{
    if (op->u.put.session.at)
        sessions_note(&ledger->sessions, ledger->journal, op->u.put.session, op->u.put.pool,
                      op->u.put.lang_pair, now_ms, ledger->retention_ms / 2);
}

void ledger_put(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct limits_demand *demand;
    struct ledger_job *entry;

    op->u.put.chosen = -1;
    op->u.put.duplicate = false;
    op->u.put.block = (struct limit_block){0};
    if (answered_by_key(ledger, op))
        return;
    entry = ledger_find(ledger, op->job);
    if (entry) {
        op->u.put.duplicate = true;
        op->head = ledger_head(entry);
        return;
    }
    if (!may_create(op))
        return;
    if (!limits_use_demand(&ledger->limits, op->u.put.demand, &demand)) {
        op->err = ERR_BAD_FIELD;
        return;
    }
    if (op->u.put.lane)
        op->err =
            ledger_refusal(ledger, demand, 0, op->u.put.lane, &op->u.put.bounds, &op->u.put.block);
    if (op->err) {
        limits_unuse_demand(&ledger->limits, demand);
        return;
    }
    entry = create(ledger, op, demand, now_ms);
    entry->head.due_ms =
        ledger_later(now_ms, op->u.put.lane ? op->u.put.wait_ms : op->u.put.hold_ms);
    if (op->u.put.lane)
        ledger_enter_lane(ledger, entry, op->u.put.lane, op->u.put.priority,
                          &op->u.put.bounds.account);
    ledger_place(ledger, entry);
    journal_job_add(ledger->journal, entry, op);
    note_session(ledger, op, now_ms);
    op->head = ledger_head(entry);
}

bool ledger_may_start(const struct ledger_job *entry, int attempt)
{
    struct job_facts facts = ledger_facts(entry);
    struct job_step step;

    if (entry->head.state == JOB_SELECTING)
        return attempt == entry->head.attempt;
    step = job_step(&facts, &(struct job_input){.event = JOB_EV_SELECT});
    return step.accepted && attempt == step.attempt;
}

/* Do its keys allow one more start? If not, op->u.put.block has the key. */
static bool keys_allow(struct ledger *ledger, struct store_op *op,
                       const struct limits_demand *demand, int64_t now_ms)
{
    for (size_t i = 0; demand && i < demand->demand.key_count; i++) {
        struct limit_block block =
            limits_check(&ledger->limits, demand->keys[i], ledger_steady_ms(ledger, now_ms));

        if (block.why == LIMIT_OK)
            continue;
        block.key = (int32_t)i;
        op->u.put.block = block;
        return false;
    }
    return true;
}

/* What a reserve needs, and what it found. */
struct place {
    struct str type;
    const struct limits_demand *demand;
    struct lease lease;
    uint64_t gpus;
    struct breaker_entry *probe;
};

/* The first candidate with free slots, enough of everything else, and a breaker that admits this
 * type. The breaker is asked last: a half-open one admits only one job. */
static struct ledger_node *first_fit(struct ledger *ledger, struct store_op *op,
                                     struct place *place, int64_t now_ms)
{
    struct lease *lease = &place->lease;
    const struct limits_demand *demand = place->demand;

    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        struct store_candidate *candidate = &op->u.put.candidates[i];
        struct ledger_node *holder =
            map_get_hashed(&ledger->nodes, candidate->node, candidate->hash);

        candidate->tried = true;
        candidate->why = LEASE_NOT_READY;
        if (holder && holder->known) {
            assert(candidate->withheld >= 0);
            holder->counts.max -= candidate->withheld; /* those slots are reserved for others */
            candidate->why =
                lease_reserve(&holder->counts, lease, op->job, now_ms, op->u.put.ttl_ms);
            holder->counts.max += candidate->withheld;
            if (candidate->why == LEASE_NO_CAPACITY && holder->counts.max > 0)
                candidate->why = LEASE_FULL;
        }
        assert(candidate->why != LEASE_RESV_EXISTS);
        if (candidate->why != LEASE_OK)
            continue;
        place->gpus = 0;
        if (demand && demand->has_needs &&
            (!holder->resources ||
             !resources_fit(holder->resources, &demand->demand, &place->gpus, NULL)))
            candidate->why = LEASE_RESOURCES;
        else if (!breakers_allow(&ledger->breakers, candidate->node, place->type, op->u.put.last,
                                 now_ms, &place->probe))
            candidate->why = LEASE_BREAKER;
        if (candidate->why != LEASE_OK) {
            lease_end(&holder->counts, lease);
            continue;
        }
        assert(holder->counts.reserved + holder->counts.running <= holder->counts.max);
        op->u.put.chosen = (int)i;
        return holder;
    }
    return NULL;
}

/* Reserved and, in the record, already sent: DISPATCHED is the intent, with node and deadline,
 * written before anything is sent. */
static void start(struct ledger *ledger, struct ledger_job *entry, struct ledger_node *holder,
                  const struct place *place, unsigned owner, int64_t now_ms)
{
    const struct lease *lease = &place->lease;
    struct ledger_head *head = &entry->head;
    struct ledger_run *run = ledger_own_run(ledger, entry);
    struct job_step step;

    ledger_leave_lane(ledger, entry);
    if (head->state != JOB_SELECTING)
        apply_event(head, JOB_EV_SELECT);
    step = apply_event(head, JOB_EV_RESERVED);
    assert(step.effect == JOB_EFFECT_RESERVE);
    apply_event(head, JOB_EV_SENT);
    str_copy(holder->id, run->node, sizeof run->node);
    run->reason[0] = '\0';
    run->epoch = lease->epoch;
    run->dispatched_ms = now_ms;
    run->pause = ledger->pause;
    run->acked_ms = 0;
    run->run_until_ms = 0;
    run->started_ms = ledger_steady_ms(ledger, now_ms);
    run->gpus = place->gpus;
    run->lease = *lease;
    head->owner = owner;
    head->lease = lease->kind;
    head->updated_ms = now_ms;
    ledger_bind(ledger, entry, holder);
    for (size_t i = 0; entry->demand && i < entry->demand->demand.key_count; i++)
        limits_start(&ledger->limits, entry->demand->keys[i], run->started_ms);
    ledger_place(ledger, entry);
    assert(head->state == JOB_DISPATCHED && head->due_ms == lease->until_ms);
}

static bool may_reserve(const struct ledger_job *entry, struct store_op *op)
{
    if (!entry)
        return may_create(op);
    /* The same reserve again: answer as the first time. */
    if ((entry->head.state == JOB_DISPATCHED || entry->head.state == JOB_ACKED) &&
        entry->head.attempt == op->attempt) {
        op->head = ledger_head(entry);
        op->u.put.duplicate = true;
        for (size_t i = 0; i < op->u.put.candidate_count; i++)
            if (str_is(op->u.put.candidates[i].node, entry->run->node))
                op->u.put.chosen = (int)i;
        if (entry->run->holder)
            ledger_answer_node(op, entry->run->holder);
        return false;
    }
    if (ledger_may_start(entry, op->attempt))
        return true;
    op->head = ledger_head(entry);
    op->err = ERR_STALE;
    return false;
}

void ledger_reserve(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct place place = {0};
    struct limits_demand *demand;
    struct ledger_node *holder;
    struct ledger_job *entry;
    bool created;

    assert(op->u.put.candidate_count <= STORE_CANDIDATES_MAX);
    op->u.put.chosen = -1;
    op->u.put.duplicate = op->u.put.probe = false;
    op->u.put.block = (struct limit_block){0};
    for (size_t i = 0; i < op->u.put.candidate_count; i++)
        op->u.put.candidates[i].tried = false;
    if (answered_by_key(ledger, op))
        return;
    entry = ledger_find(ledger, op->job);
    if (!may_reserve(entry, op))
        return;

    created = !entry;
    if (!created) {
        demand = entry->demand;
    } else if (!limits_use_demand(&ledger->limits, op->u.put.demand, &demand)) {
        op->err = ERR_BAD_FIELD;
        return;
    }
    ledger_lapse(ledger, now_ms);
    place.type = created ? op->u.put.type : str_of(entry->head.type);
    place.demand = demand;
    place.lease.slots = demand ? demand->demand.slots : 0;
    holder = NULL;
    if (!keys_allow(ledger, op, demand, now_ms))
        op->err = ERR_LIMITED;
    else if (!(holder = first_fit(ledger, op, &place, now_ms)))
        op->err = ERR_ALL_FULL;
    if (!holder) {
        if (created)
            limits_unuse_demand(&ledger->limits, demand);
        else
            op->head = ledger_head(entry);
        return;
    }
    if (created) {
        entry = create(ledger, op, demand, now_ms);
        entry->keyed = op->u.put.idem.at != NULL;
    }
    start(ledger, entry, holder, &place, op->u.put.owner, now_ms);
    ledger_write_lapsed(ledger);
    if (created)
        journal_job_add(ledger->journal, entry, op);
    else
        journal_job_step(ledger->journal, entry, 0);
    if (!created && entry->keyed && entry->head.attempt == 1)
        journal_job_step(ledger->journal, entry, CHANGE_FIRST_NODE);
    if (place.probe)
        breakers_probe(&ledger->breakers, ledger->journal, place.probe, entry, now_ms);
    note_session(ledger, op, now_ms);
    op->u.put.probe = place.probe != NULL;
    ledger_answer_node(op, holder);
    op->head = ledger_head(entry);
}

/* --- ended attempts --- */

/* Drops the oldest entry of the array. Our own arrays are always valid; an invalid one is replaced
 * by an empty one. */
static void drop_oldest(struct buf *attempts)
{
    struct arena arena = {0};
    const struct json *root;
    struct str second = STR_NONE;

    if (!json_parse(buf_view(attempts), &arena, &root, NULL) && root->count > 1)
        second = json_raw(json_next(json_first(root)));
    if (second.at) {
        size_t cut = (size_t)(second.at - attempts->at) - 1;

        assert(cut > 0 && cut < attempts->len);
        memmove(attempts->at + 1, second.at, attempts->len - cut - 1);
        attempts->len -= cut;
    } else {
        buf_clear(attempts);
    }
    arena_free(&arena);
}

void attempts_add(struct buf *attempts, const struct store_head *head, enum job_event outcome,
                  struct str reason, int64_t now_ms)
{
    struct jsonw w;

    buf_reserve(attempts, 256); /* room for one entry at once */
    if (attempts->len == 0) {
        buf_char(attempts, '[');
    } else {
        assert(attempts->at[attempts->len - 1] == ']');
        attempts->at[attempts->len - 1] = ',';
    }
    w = jsonw_to(attempts);
    jsonw_obj(&w);
    jsonw_kint(&w, "attempt_id", head->attempt);
    jsonw_kstr(&w, "node_id", str_of(head->node));
    jsonw_kstr(&w, "outcome", str_of(job_event_name(outcome)));
    jsonw_kstr(&w, "reason", reason.len ? reason : STR_NONE);
    jsonw_kint(&w, "dispatched_ms", head->dispatched_ms);
    if (head->acked_ms)
        jsonw_kint(&w, "acked_ms", head->acked_ms);
    else
        jsonw_knull(&w, "acked_ms");
    jsonw_kint(&w, "ended_ms", now_ms);
    jsonw_end_obj(&w);
    buf_char(attempts, ']');
    while (attempts->len > STORE_HISTORY_MAX)
        drop_oldest(attempts);
}

/* Did this attempt end with this outcome? node.at == NULL: on any node. */
static bool attempts_has(const struct buf *attempts, int attempt, struct str node,
                         enum job_event outcome)
{
    struct arena arena = {0};
    const struct json *root;
    bool found = false;

    if (attempts->len == 0 || json_parse(buf_view(attempts), &arena, &root, NULL)) {
        arena_free(&arena);
        return false;
    }
    const struct json *entry = json_first(root);
    for (uint32_t i = 0; i < root->count && !found; i++, entry = json_next(entry)) {
        int64_t attempt_id;

        found = json_int(json_get(entry, "attempt_id"), &attempt_id) && attempt_id == attempt &&
                json_str_is(json_get(entry, "outcome"), job_event_name(outcome)) &&
                (!node.at || str_eq(json_str(json_get(entry, "node_id"), &arena), node));
    }
    arena_free(&arena);
    return found;
}

/* --- endings --- */

static bool alive(const struct ledger_job *entry, int64_t now_ms)
{
    return entry->run->lease.kind != LEASE_NONE && now_ms < entry->run->lease.until_ms;
}

static bool from_here(const struct ledger_job *entry, const struct store_op *op)
{
    return op->attempt == entry->head.attempt && op->node.at && str_is(op->node, entry->run->node);
}

void ledger_ack(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct ledger_job *entry = ledger_find(ledger, op->job);
    int64_t until, run_until = 0;
    struct job_facts facts;
    struct job_step step;
    bool is_last;

    op->u.settle.duplicate = op->u.settle.ended_lease = op->u.settle.stopped = false;
    op->u.settle.breaker = BREAKER_NO_EVENT;
    op->u.settle.freed_count = 0;
    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    ledger_lapse_one(ledger, entry, now_ms);
    facts = ledger_facts(entry);
    step = job_step(
        &facts, &(struct job_input){.event = JOB_EV_ACK, .attempt = op->attempt, .node = op->node});
    if (entry->head.timeout_ms > 0) {
        run_until = ledger_later(now_ms, entry->head.timeout_ms);
        run_until = ledger_later(run_until, op->u.settle.stop_grace_ms);
    }
    until = ledger_later(now_ms, lease_term_ms(&op->u.settle.terms, str_of(entry->head.type)));
    if (run_until && until > run_until)
        until = run_until;
    until = ledger_graced(ledger, until);
    is_last = !op->u.settle.send_id || op->u.settle.send_id == entry->run->dispatched_ms;
    /* Leases of an old epoch are left out: lease_ack() would expire one without unbinding it. */
    if (is_last && step.accepted && entry->run->holder && !ledger_orphaned(entry) &&
        lease_ack(&entry->run->holder->counts, &entry->run->lease, op->job, now_ms, until)) {
        assert(step.effect == JOB_EFFECT_COMMIT);
        entry->head.state = step.state;
        entry->head.lease = entry->run->lease.kind;
        entry->run->acked_ms = now_ms;
        entry->head.updated_ms = now_ms;
        entry->run->run_until_ms = run_until;
        ledger_place(ledger, entry);
        journal_job_step(ledger->journal, entry, 0);
    } else if (is_last && entry->head.state == JOB_ACKED && alive(entry, now_ms) &&
               !ledger_orphaned(entry) && from_here(entry, op)) {
        op->u.settle.duplicate = true; /* a node that gets this may start, so it must have a slot */
    } else {
        op->err = ERR_STALE;
    }
    if (entry->run->holder)
        ledger_answer_node(op, entry->run->holder);
    op->head = ledger_head(entry);
}

/* What FINISH is about to do to a job. */
struct verdict {
    enum job_event event;
    struct str reason;
    bool of_attempt;
    bool in_time;   /* the lease has the state the outcome needs: expired for EXPIRE, alive for a
                       message */
    bool unsent;    /* the node may never have got it: the attempt is not used up */
    bool frees_key; /* if this ends the job, its requester was or will be answered with an error */
};

/* Does the owner take back a reservation it got no answer for, on whatever node it is? */
static bool takes_back(const struct store_op *op)
{
    return op->u.settle.outcome == STORE_SEND_FAILED && !op->node.at;
}

/* A reservation without an ACK may never have been sent: its maker says so and gives it up, or was
 * not present the whole time since. Then a last attempt is not used up; any other attempt is
 * followed by the next one. */
static bool is_unsent(const struct ledger *ledger, const struct ledger_job *entry,
                      const struct store_op *op)
{
    if (entry->head.state != JOB_DISPATCHED)
        return false;
    if (op->u.settle.outcome == STORE_ABANDON)
        return entry->answered && op->u.settle.owner == entry->head.owner;
    return op->u.settle.outcome == STORE_EXPIRE &&
           entry->head.attempt >= entry->head.max_attempts && entry->run->pause != ledger->pause;
}

static struct verdict verdict_of(const struct ledger *ledger, const struct ledger_job *entry,
                                 const struct store_op *op, int64_t now_ms)
{
    const struct ending *ending = &endings[op->u.settle.outcome];
    bool running = entry->head.state == JOB_ACKED || entry->run->lease.kind == LEASE_RUNNING ||
                   entry->ran_out == LEASE_RUNNING;
    bool timed_out = entry->run->run_until_ms && now_ms >= entry->run->run_until_ms;
    struct verdict verdict = {.event = ending->event,
                              .reason = op->u.settle.reason,
                              .of_attempt = ending->of_attempt,
                              .in_time = alive(entry, now_ms),
                              .frees_key = op->u.settle.outcome == STORE_ABANDON};

    if (verdict.reason.len == 0 || op->u.settle.outcome == STORE_DONE)
        verdict.reason = str_of(ending->reason);
    if (op->u.settle.outcome == STORE_EXPIRE) {
        verdict.in_time = !verdict.in_time || ledger_orphaned(entry);
        verdict.reason = str_of(ending->reason);
        if (running) {
            verdict.event = JOB_EV_RUN_TIMEOUT;
            verdict.reason = timed_out ? STR(ENDING_RUN_TIMEOUT) : STR(ENDING_NODE_LOST);
        }
    }
    if (op->u.settle.outcome == STORE_SEND_FAILED) /* a dispatch that was never sent */
        verdict.frees_key = entry->keyed && entry->head.attempt == 1;
    /* A reservation may be taken back this way even after it has expired. */
    if (!verdict.of_attempt || takes_back(op))
        verdict.in_time = true;
    /* By now it may have been reserved and be held since, or be waiting again. */
    if (op->u.settle.outcome == STORE_QUEUE_TIMEOUT)
        verdict.in_time = entry->head.lane != 0 && entry->head.due_ms <= now_ms;
    if (is_unsent(ledger, entry, op)) {
        verdict.event = JOB_EV_SEND_FAILED;
        verdict.reason = str_of(err_name(ERR_UNKNOWN));
        verdict.unsent = true;
        verdict.frees_key = false;
    }
    if (verdict.reason.len > STORE_REASON_MAX)
        verdict.reason.len = STORE_REASON_MAX;
    return verdict;
}

/* The job's key that hit its limit and will be held; NULL: not one of the job's keys. */
static struct limits_key *key_to_hold(const struct ledger_job *entry, const struct store_op *op)
{
    const struct limits_demand *demand = entry->demand;

    if (op->u.settle.outcome != STORE_FAIL)
        return NULL;
    for (size_t i = 0; demand && i < demand->demand.key_count; i++)
        if (str_eq(demand->demand.keys[i], op->u.settle.hold_key) ||
            str_eq(namespace_name(demand->demand.keys[i]), op->u.settle.hold_key))
            return demand->keys[i];
    return NULL;
}

/* The job is not at fault: the attempt does not count. */
static bool gets_another(const struct ledger_job *entry, const struct store_op *op)
{
    return op->u.settle.hold_key.at && key_to_hold(entry, op) &&
           entry->head.max_attempts < JOB_ATTEMPTS_MAX;
}

/* Asks the job state machine. The record says DISPATCHED before the send, so a failed send is
 * judged as RESERVED; a waiting job without a candidate is judged as SELECTING. */
static struct job_step judge(const struct ledger_job *entry, const struct store_op *op,
                             const struct verdict *verdict)
{
    struct job_facts facts = ledger_facts(entry);
    struct job_input in = {.event = verdict->event,
                           .attempt = op->attempt,
                           .node = op->node,
                           .candidates_left = op->u.settle.candidates_left || verdict->unsent};
    struct job_step step;

    if (takes_back(op) && op->u.settle.owner != entry->head.owner)
        return (struct job_step){.accepted = false};
    facts.max_attempts += gets_another(entry, op);
    if (verdict->event == JOB_EV_SEND_FAILED && facts.state == JOB_DISPATCHED)
        facts.state = JOB_RESERVED;
    if (verdict->of_attempt)
        return job_step(&facts, &in);

    /* For a retry, the sender may name the attempt that ended or the next one. */
    if (facts.state == JOB_RETRYING && in.attempt == facts.attempt + 1)
        in.attempt = facts.attempt;
    if (in.attempt && in.attempt != facts.attempt)
        return (struct job_step){.accepted = false};
    in.attempt = 0;
    in.node = STR_NONE;
    if (verdict->event == JOB_EV_NO_CANDIDATE && facts.state != JOB_SELECTING) {
        step = job_step(&facts, &(struct job_input){.event = JOB_EV_SELECT});
        facts.state = step.state;
        facts.attempt = step.attempt;
    }
    return job_step(&facts, &in);
}

/* What the end of this attempt says about the node. For a job cancelled while running only a
 * success counts: a failure may be caused by the cancel. */
static enum breakers_verdict breaker_verdict(const struct ledger_job *entry,
                                             const struct store_op *op,
                                             const struct verdict *verdict)
{
    bool of_work = verdict->event == JOB_EV_FAIL || verdict->event == JOB_EV_RUN_TIMEOUT;

    if (op->u.settle.command && verdict->event != JOB_EV_RUN_TIMEOUT)
        return BREAKERS_NOTHING;
    if (verdict->event == JOB_EV_DONE)
        return BREAKERS_GOOD;
    if (!of_work || job_state_final(entry->head.state))
        return BREAKERS_NOTHING;
    return breaker_blames(verdict->reason) ? BREAKERS_BAD : BREAKERS_NOTHING;
}

/* Updates the keys at the end of an attempt, then reports the keys for which other jobs may
 * start. */
static void settle_keys(struct ledger *ledger, struct store_op *op, const struct ledger_job *entry,
                        int64_t now_ms)
{
    const struct limits_demand *demand = entry->demand;
    int64_t steady_ms = ledger_steady_ms(ledger, now_ms);
    struct limits_key *held = key_to_hold(entry, op);
    int64_t hold_ms = op->u.settle.hold_key_ms;
    enum store_outcome outcome = op->u.settle.outcome;
    /* Then the rate is not consumed. */
    bool never_began =
        entry->head.state == JOB_DISPATCHED &&
        (outcome == STORE_REFUSED || outcome == STORE_SEND_FAILED || outcome == STORE_ABANDON);

    if (hold_ms > LIMIT_HOLD_MS_MAX)
        hold_ms = LIMIT_HOLD_MS_MAX;
    if (held && hold_ms > 0 && steady_ms + hold_ms > held->state.hold_until_ms)
        limits_hold(&ledger->limits, held, steady_ms + hold_ms,
                    op->u.settle.hold_reason.len ? op->u.settle.hold_reason : op->u.settle.reason);
    for (size_t i = 0; i < demand->demand.key_count; i++) {
        struct limits_key *key = demand->keys[i];

        if (never_began)
            limits_undo(&ledger->limits, key, entry->run->started_ms);
        if (key->state.waiting > 0 && limits_check(&ledger->limits, key, steady_ms).why == LIMIT_OK)
            op->u.settle.freed[op->u.settle.freed_count++] = str_hash(key->name);
    }
}

/* Ends the attempt: adds it to the list and ends its lease. */
static void end_attempt(struct ledger *ledger, struct store_op *op, struct ledger_job *entry,
                        const struct verdict *verdict, enum job_effect effect, int64_t now_ms)
{
    if (entry->run->holder) {
        struct ledger_node *holder = entry->run->holder;

        /* A lease of an older epoch moves no counter but still ends. */
        if (effect == JOB_EFFECT_RELEASE_RESERVED)
            lease_release(&holder->counts, &entry->run->lease);
        else
            lease_finish(&holder->counts, &entry->run->lease);
        assert(entry->run->lease.kind == LEASE_NONE);
        op->counts = holder->counts;
        op->u.settle.ended_lease = true;
        ledger_unbind(ledger, entry);
    } else if (entry->ran_out != LEASE_NONE) {
        op->u.settle.ended_lease = true; /* it was cleared earlier and is settled now */
    }
    op->u.settle.breaker = breakers_settle(&ledger->breakers, ledger->journal, entry,
                                           breaker_verdict(entry, op, verdict), now_ms);
    ledger_settled(ledger, entry);
    if (entry->demand)
        settle_keys(ledger, op, entry, now_ms);
    if (entry->demand && op->arena && op->u.settle.ended_lease)
        op->u.settle.demand = arena_str(op->arena, entry->demand->text);
    struct store_head head = ledger_head(entry);
    attempts_add(&entry->run->attempts, &head, verdict->event, verdict->reason, now_ms);
    entry->head.lease = LEASE_NONE;
}

static void apply_outcome(struct ledger *ledger, struct store_op *op, struct ledger_job *entry,
                          const struct verdict *verdict, const struct job_step *step,
                          int64_t now_ms)
{
    struct ledger_head *head = &entry->head;
    struct ledger_run *run = ledger_own_run(ledger, entry);
    bool ran_out = !ledger_waiting(entry) && !alive(entry, now_ms);
    struct str result = STR_NONE;

    assert(!job_state_final(head->state));
    ledger_leave_lane(ledger, entry);
    if (step->effect != JOB_EFFECT_NONE || ran_out)
        end_attempt(ledger, op, entry, verdict, step->effect, now_ms);
    head->max_attempts += gets_another(entry, op);
    head->state = step->state;
    head->attempt = step->attempt;
    head->updated_ms = now_ms;
    str_copy(verdict->reason, run->reason, sizeof run->reason);
    if (job_state_final(step->state)) {
        run->ended_ms = now_ms;
        if (head->lease == LEASE_NONE)
            head->due_ms = 0;
        if (head->callback == CALLBACK_WANTED)
            head->callback = CALLBACK_PENDING;
        if (verdict->frees_key)
            journal_job_step(ledger->journal, entry, CHANGE_KEY_DROPPED);
        if (verdict->event == JOB_EV_DONE || verdict->event == JOB_EV_FAIL)
            result = op->u.settle.result;
    } else {
        head->owner = op->u.settle.owner;
        head->due_ms = ledger_later(now_ms, op->u.settle.hold_ms);
        if (head->state == JOB_SELECTING) {
            run->node[0] = '\0'; /* same attempt, but on no node */
            run->dispatched_ms = run->acked_ms = 0;
            run->gpus = 0;
        }
    }
    assert(run->holder || head->lease == LEASE_NONE);
    ledger_place(ledger, entry);
    journal_job_end(ledger->journal, entry, result);
}

/* The job was cancelled while it ran: this is the node's report that it stopped, or the end of its
 * lease. The job keeps the state the cancel gave it. */
static bool ends_cancelled(const struct ledger_job *entry, const struct store_op *op,
                           const struct verdict *verdict)
{
    if (!job_state_final(entry->head.state) || ledger_over(entry) || !verdict->in_time)
        return false;
    if (op->u.settle.outcome == STORE_EXPIRE)
        return op->attempt == 0 || op->attempt == entry->head.attempt;
    return (op->u.settle.outcome == STORE_DONE || op->u.settle.outcome == STORE_FAIL) &&
           from_here(entry, op);
}

/* Was this message accepted before? Ended attempts are in the list; for the end of a whole job only
 * its reason is stored. */
static bool is_repeated(const struct ledger_job *entry, const struct store_op *op,
                        const struct verdict *verdict)
{
    const struct buf *attempts = &entry->run->attempts;

    if (!verdict->of_attempt)
        return entry->head.state == JOB_FAILED &&
               str_eq(verdict->reason, str_of(entry->run->reason));
    if (op->u.settle.outcome == STORE_EXPIRE)
        return attempts_has(attempts, op->attempt, op->node, JOB_EV_ACK_TIMEOUT) ||
               attempts_has(attempts, op->attempt, op->node, JOB_EV_RUN_TIMEOUT);
    return attempts_has(attempts, op->attempt, op->node, verdict->event);
}

/* The first requester was refused, but another request was answered with this job: it goes on, and
 * any instance may take it. In a lane it will be found. */
static bool goes_on(struct ledger *ledger, const struct store_op *op, struct ledger_job *entry,
                    int64_t now_ms)
{
    if (op->u.settle.outcome != STORE_ABANDON || !entry->answered)
        return false;
    if (ledger_waiting(entry) && !entry->head.lane) {
        entry->head.due_ms = now_ms;
        ledger_place(ledger, entry);
    }
    return true;
}

void ledger_finish(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct ledger_job *entry = ledger_find(ledger, op->job);
    const struct ledger_node *holder;
    struct verdict verdict;
    struct job_step step;
    char node[NODE_ID_MAX + 1];

    assert(op->u.settle.outcome < STORE_OUTCOME_COUNT);
    op->u.settle.duplicate = op->u.settle.ended_lease = op->u.settle.stopped = false;
    op->u.settle.breaker = BREAKER_NO_EVENT;
    op->u.settle.freed_count = 0;
    op->u.settle.demand = STR_NONE;
    op->record = (struct store_record){0};
    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    memcpy(node, entry->run->node, sizeof node);
    ledger_lapse_one(ledger, entry, now_ms);
    verdict = verdict_of(ledger, entry, op, now_ms);
    step = judge(entry, op, &verdict);
    if (step.accepted && !verdict.unsent && goes_on(ledger, op, entry, now_ms)) {
        op->err = ERR_STALE;
    } else if (((step.accepted && verdict.in_time) || ends_cancelled(entry, op, &verdict)) &&
               op->u.settle.outcome == STORE_FAIL && op->u.settle.hold_key.at &&
               !key_to_hold(entry, op)) {
        op->err = ERR_BAD_FIELD;
    } else if (step.accepted && verdict.in_time) {
        apply_outcome(ledger, op, entry, &verdict, &step, now_ms);
    } else if (ends_cancelled(entry, op, &verdict)) {
        end_attempt(ledger, op, entry, &verdict, JOB_EFFECT_DEC_RUNNING, now_ms);
        op->u.settle.stopped = true;
        entry->head.due_ms = 0;
        entry->head.updated_ms = now_ms;
        ledger_place(ledger, entry);
        /* There is no result when its lease expired. */
        journal_job_end(ledger->journal, entry, op->u.settle.result);
    } else if (is_repeated(entry, op, &verdict)) {
        op->u.settle.duplicate = true;
    } else {
        op->err = ERR_STALE;
    }
    op->head = ledger_head(entry);
    /* Answer its node's counters, even if a reserve already freed its slot. */
    holder = *node ? map_get(&ledger->nodes, str_of(node)) : NULL;
    if (holder)
        ledger_answer_node(op, holder);
    if (op->err)
        return;
    if ((op->u.settle.want_record || (ledger_waiting(entry) && !op->u.settle.duplicate)) &&
        op->arena && journal_job_record(ledger->journal, entry->head.id, op->arena, &op->record))
        op->record.head = op->head;
}

void ledger_callback_done(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct ledger_job *entry = ledger_find(ledger, op->job);

    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    if (entry->head.callback == CALLBACK_PENDING) {
        entry->head.callback = op->u.callback.given_up ? CALLBACK_GIVEN_UP : CALLBACK_SENT;
        entry->head.updated_ms = now_ms;
        journal_job_step(ledger->journal, entry, 0);
    } else if (entry->head.callback < CALLBACK_PENDING) {
        op->err = ERR_CONFLICT; /* no callback was requested, or the job is still running */
    }
    op->head = ledger_head(entry);
}
