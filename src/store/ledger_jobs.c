/* How a job comes in and how an attempt starts: PUT and RESERVE. */
#include "store/ledger.h"

#include "store/journal.h"

#include <assert.h>

/* One event that must fit: the caller has looked at the state. */
static struct job_step walk(struct store_head *head, enum job_event event)
{
    struct job_facts facts = {
        .state = head->state, .attempt = head->attempt, .max_attempts = head->max_attempts};
    struct job_step step = job_step(&facts, &(struct job_input){.event = event});

    assert(step.accepted);
    head->state = step.state;
    head->attempt = step.attempt;
    return step;
}

/* The head a first answer had: what became of the job since is not part of it. */
static void as_first_answered(struct store_head *head, const char *first_node)
{
    head->state = *first_node ? JOB_DISPATCHED : JOB_NEW;
    head->attempt = 1;
    head->lease = LEASE_NONE;
    head->due_ms = 0;
    head->ended_ms = 0;
    head->lane = 0;
    head->priority = 0;
    head->reason[0] = '\0';
    str_copy(str_of(first_node), head->node, sizeof head->node);
}

/* The Idempotency-Key was used for another job: that one's first answer, or a refusal. With the
 * same job it is a further try of ours (next candidates, a replay) and the job's state decides. */
static bool answered_by_key(struct ledger *ledger, struct store_op *op)
{
    struct journal_key key;
    struct entry *entry;

    if (!op->u.put.idem.at || !journal_key_find(ledger->journal, op->u.put.idem, &key) ||
        key.job == op->job)
        return false;
    entry = ledger_find(ledger, key.job);
    if (!entry)
        return false; /* only when the journal failed meanwhile */
    ledger_answer(op, entry);
    if (key.fingerprint != op->u.put.fingerprint) {
        op->err = ERR_IDEMPOTENCY;
        return true;
    }
    as_first_answered(&op->head, key.first_node);
    op->u.put.duplicate = true;
    if (!entry->answered && !job_state_final(entry->head.state)) {
        entry->answered = true;
        journal_job_step(ledger->journal, entry);
    }
    return true;
}

static bool may_create(struct store_op *op)
{
    if (op->job == 0 || op->attempt > 1 || !op->u.put.spec.at) {
        op->err = ERR_NOT_FOUND;
        return false;
    }
    if (op->u.put.max_attempts < 1 || op->u.put.max_attempts > JOB_ATTEMPTS_MAX) {
        op->err = ERR_BAD_FIELD;
        return false;
    }
    if (op->u.put.type.len > POOL_LANG_MAX) {
        op->err = ERR_BAD_FIELD;
        return false;
    }
    return true;
}

static struct entry *create(struct ledger *ledger, const struct store_op *op, int64_t now_ms)
{
    struct entry *entry = ledger_add(ledger, op->job);

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
    struct entry *entry;

    op->u.put.chosen = -1;
    op->u.put.duplicate = false;
    if (answered_by_key(ledger, op))
        return;
    entry = ledger_find(ledger, op->job);
    if (entry) {
        op->u.put.duplicate = true;
        ledger_answer(op, entry);
        return;
    }
    if (!may_create(op))
        return;
    if (op->u.put.lane)
        op->err = ledger_refusal(ledger, 0, op->u.put.lane, &op->u.put.bounds);
    if (op->err)
        return;
    entry = create(ledger, op, now_ms);
    entry->head.due_ms =
        ledger_later(now_ms, op->u.put.lane ? op->u.put.wait_ms : op->u.put.hold_ms);
    if (op->u.put.lane)
        ledger_enter_lane(ledger, entry, op->u.put.lane, op->u.put.priority,
                          &op->u.put.bounds.account);
    ledger_place(ledger, entry);
    journal_job_add(ledger->journal, entry, op);
    note_session(ledger, op, now_ms);
    ledger_answer(op, entry);
}

bool ledger_may_start(const struct entry *entry, int attempt)
{
    struct job_facts facts = ledger_facts(entry);
    struct job_step step;

    if (entry->head.state == JOB_SELECTING)
        return attempt == entry->head.attempt;
    step = job_step(&facts, &(struct job_input){.event = JOB_EV_SELECT});
    return step.accepted && attempt == step.attempt;
}

/* The same reserve again: what it got the first time. */
static bool is_replay(const struct entry *entry, const struct store_op *op)
{
    return (entry->head.state == JOB_DISPATCHED || entry->head.state == JOB_ACKED) &&
           entry->head.attempt == op->attempt;
}

static void answer_replay(struct store_op *op, const struct entry *entry)
{
    ledger_answer(op, entry);
    op->u.put.duplicate = true;
    for (size_t i = 0; i < op->u.put.candidate_count; i++)
        if (str_is(op->u.put.candidates[i].node, entry->head.node))
            op->u.put.chosen = (int)i;
    if (entry->holder)
        op->counts = entry->holder->counts;
}

/* A slot of this node, as if it had `spare` fewer: those are for others. */
static enum lease_reason take_slot(struct holder *holder, struct lease *lease,
                                   const struct store_op *op, int32_t spare, int64_t now_ms)
{
    enum lease_reason why;

    assert(spare >= 0);
    holder->counts.max -= spare;
    why = lease_reserve(&holder->counts, lease, op->job, now_ms, op->u.put.ttl_ms);
    holder->counts.max += spare;
    return why == LEASE_NO_CAPACITY && holder->counts.max > 0 ? LEASE_FULL : why;
}

/* The first candidate with a free slot and a breaker that lets this type through. A breaker is
 * asked last: the yes of one that is half open is the only one there is. */
static struct holder *first_fit(struct ledger *ledger, struct store_op *op, struct str type,
                                struct lease *lease, struct gate **ret_probe, int64_t now_ms)
{
    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        struct store_candidate *candidate = &op->u.put.candidates[i];
        struct holder *holder = map_get_hashed(&ledger->nodes, candidate->node, candidate->hash);

        candidate->tried = true;
        candidate->why = LEASE_NOT_READY;
        if (holder && holder->known)
            candidate->why = take_slot(holder, lease, op, candidate->spare, now_ms);
        assert(candidate->why != LEASE_RESV_EXISTS);
        if (candidate->why == LEASE_OK && !breakers_allow(&ledger->breakers, candidate->node, type,
                                                          op->u.put.last, now_ms, ret_probe)) {
            lease_end(&holder->counts, lease);
            candidate->why = LEASE_BREAKER;
        }
        if (candidate->why != LEASE_OK)
            continue;
        assert(holder->counts.reserved + holder->counts.running <= holder->counts.max);
        op->u.put.chosen = (int)i;
        return holder;
    }
    return NULL;
}

/* Reserved and, as far as the record goes, sent: DISPATCHED is the intent, with node and deadline,
 * written before anything leaves. */
static void start(struct ledger *ledger, struct entry *entry, struct holder *holder,
                  const struct lease *lease, unsigned owner, int64_t now_ms)
{
    struct store_head *head = &entry->head;
    struct job_step step;

    ledger_leave_lane(ledger, entry);
    if (head->state != JOB_SELECTING)
        walk(head, JOB_EV_SELECT);
    step = walk(head, JOB_EV_RESERVED);
    assert(step.effect == JOB_EFFECT_RESERVE);
    walk(head, JOB_EV_SENT);
    str_copy(holder->id, head->node, sizeof head->node);
    head->reason[0] = '\0';
    head->owner = owner;
    head->epoch = lease->epoch;
    head->lease = lease->kind;
    head->dispatched_ms = now_ms;
    head->acked_ms = 0;
    head->updated_ms = now_ms;
    entry->run_until_ms = 0;
    entry->lease = *lease;
    ledger_bind(entry, holder);
    ledger_place(ledger, entry);
    assert(head->state == JOB_DISPATCHED && head->due_ms == lease->until_ms);
}

static bool may_reserve(const struct entry *entry, struct store_op *op)
{
    if (!entry)
        return may_create(op);
    if (is_replay(entry, op)) {
        answer_replay(op, entry);
        return false;
    }
    if (ledger_may_start(entry, op->attempt))
        return true;
    ledger_answer(op, entry);
    op->err = ERR_STALE;
    return false;
}

void ledger_reserve(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct lease lease = {0};
    struct gate *probe = NULL;
    struct holder *holder;
    struct entry *entry;
    bool created;

    assert(op->u.put.candidate_count <= STORE_CANDIDATES_MAX);
    op->u.put.chosen = -1;
    op->u.put.duplicate = op->u.put.probe = false;
    for (size_t i = 0; i < op->u.put.candidate_count; i++)
        op->u.put.candidates[i].tried = false;
    if (answered_by_key(ledger, op))
        return;
    entry = ledger_find(ledger, op->job);
    if (!may_reserve(entry, op))
        return;

    ledger_lapse(ledger, now_ms, LEDGER_CLEAR_MAX);
    holder = first_fit(ledger, op, entry ? str_of(entry->head.type) : op->u.put.type, &lease,
                       &probe, now_ms);
    if (!holder) {
        op->err = ERR_ALL_FULL;
        if (entry)
            ledger_answer(op, entry);
        return;
    }
    created = !entry;
    if (created) {
        entry = create(ledger, op, now_ms);
        entry->keyed = op->u.put.idem.at != NULL;
    }
    start(ledger, entry, holder, &lease, op->u.put.owner, now_ms);
    ledger_write_lapsed(ledger);
    if (created)
        journal_job_add(ledger->journal, entry, op);
    else
        journal_job_step(ledger->journal, entry);
    if (!created && entry->keyed && entry->head.attempt == 1)
        journal_job_first_node(ledger->journal, entry);
    if (probe)
        breakers_probe(&ledger->breakers, ledger->journal, probe, entry, now_ms);
    note_session(ledger, op, now_ms);
    op->u.put.probe = probe != NULL;
    op->counts = holder->counts;
    ledger_answer(op, entry);
}
