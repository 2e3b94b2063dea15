/* How an attempt or a job ends: COMMIT, FINISH and CALLBACK_DONE. Which event fits which state is
 * job_step's to say; what is still alive is the lease's. */
#include "store/ledger.h"

#include "store/attempts.h"
#include "store/ending.h"
#include "store/journal.h"

#include <assert.h>
#include <string.h>

static bool alive(const struct entry *entry, int64_t now_ms)
{
    return entry->lease.kind != LEASE_NONE && now_ms < entry->lease.until_ms;
}

static bool from_here(const struct entry *entry, const struct store_op *op)
{
    return op->attempt == entry->head.attempt && op->node.at && str_is(op->node, entry->head.node);
}

void ledger_commit(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct entry *entry = ledger_find(ledger, op->job);
    int64_t until, run_until = 0;
    struct job_facts facts;
    struct job_step step;
    bool is_last;

    op->u.settle.duplicate = op->u.settle.ended_lease = op->u.settle.stopped = false;
    op->u.settle.breaker = BREAKER_NO_EVENT;
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
    is_last = !op->u.settle.send_id || op->u.settle.send_id == entry->head.dispatched_ms;
    /* An orphan is not asked: the rule would end it here if it ran out, behind our back. */
    if (is_last && step.accepted && entry->holder && !ledger_orphaned(entry) &&
        lease_commit(&entry->holder->counts, &entry->lease, op->job, now_ms, until)) {
        assert(step.effect == JOB_EFFECT_COMMIT);
        entry->head.state = step.state;
        entry->head.lease = entry->lease.kind;
        entry->head.acked_ms = now_ms;
        entry->head.updated_ms = now_ms;
        entry->run_until_ms = run_until;
        ledger_place(ledger, entry);
        journal_job_step(ledger->journal, entry);
    } else if (is_last && entry->head.state == JOB_ACKED && alive(entry, now_ms) &&
               !ledger_orphaned(entry) && from_here(entry, op)) {
        op->u.settle.duplicate = true; /* a node that is told so may start: not without a slot */
    } else {
        op->err = ERR_STALE;
    }
    if (entry->holder)
        op->counts = entry->holder->counts;
    ledger_answer(op, entry);
}

/* What FINISH is about to do to a job. */
struct verdict {
    enum job_event event;
    struct str reason;
    bool of_attempt;
    bool
        in_time; /* the lease is as the outcome needs it: run out for EXPIRE, alive for a message */
    bool unsent; /* nobody can say that the node was ever told: the attempt is not used up */
    bool frees_key; /* should it end the job: who asked for that was, or is, answered with an error
                     */
};

/* Whatever its owner had reserved. */
static bool takes_back(const struct store_op *op)
{
    return op->u.settle.outcome == STORE_SEND_FAILED && !op->node.at;
}

/* A reservation without an ACK may never have been sent: who made it says so and gives it up, or
 * was not there all the time since. Then the last attempt is not lost with it; of any other the
 * next one is begun. */
static bool is_unsent(const struct ledger *ledger, const struct entry *entry,
                      const struct store_op *op)
{
    if (entry->head.state != JOB_DISPATCHED)
        return false;
    if (op->u.settle.outcome == STORE_ABANDON)
        return entry->answered && op->u.settle.owner == entry->head.owner;
    return op->u.settle.outcome == STORE_EXPIRE &&
           entry->head.attempt >= entry->head.max_attempts &&
           entry->head.dispatched_ms < ledger->since_ms;
}

static struct verdict verdict_of(const struct ledger *ledger, const struct entry *entry,
                                 const struct store_op *op, int64_t now_ms)
{
    const struct ending *ending = &endings[op->u.settle.outcome];
    bool running = entry->head.state == JOB_ACKED || entry->lease.kind == LEASE_RUNNING ||
                   entry->ran_out == LEASE_RUNNING;
    bool timed_out = entry->run_until_ms && now_ms >= entry->run_until_ms;
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
    if (op->u.settle.outcome == STORE_SEND_FAILED) /* a dispatch that never left */
        verdict.frees_key = entry->keyed && entry->head.attempt == 1;
    /* Who takes back what it was never told of may come when that has run out. */
    if (!verdict.of_attempt || takes_back(op))
        verdict.in_time = true;
    /* By now it may have been reserved, and be held since, or wait anew. */
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

/* Asks the job machine. The record says DISPATCHED before the send, so a failed send is judged as
 * RESERVED; a job that waits is looked at as SELECTING when nobody can take it. */
static struct job_step ask(const struct entry *entry, const struct store_op *op,
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
    if (verdict->event == JOB_EV_SEND_FAILED && facts.state == JOB_DISPATCHED)
        facts.state = JOB_RESERVED;
    if (verdict->of_attempt)
        return job_step(&facts, &in);

    /* Who speaks of a retry may name the attempt that ended or the one that would start. */
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

static void end_lease(struct ledger *ledger, struct store_op *op, struct entry *entry,
                      enum job_effect effect)
{
    struct holder *holder = entry->holder;

    /* Of an older epoch it moves no counter, but it ends all the same. */
    if (effect == JOB_EFFECT_RELEASE_RESERVED)
        lease_release(&holder->counts, &entry->lease);
    else
        lease_finish(&holder->counts, &entry->lease);
    assert(entry->lease.kind == LEASE_NONE);
    op->counts = holder->counts;
    op->u.settle.ended_lease = true;
    ledger_unbind(ledger, entry);
}

/* What the end of this attempt tells of its executor. Of a job that was cancelled while it ran only
 * a good end does: the other may be what the cancel made of it. */
static enum breakers_word word_of(const struct entry *entry, const struct store_op *op,
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

/* The attempt is over: into the list it goes, and its lease with it. */
static void end_attempt(struct ledger *ledger, struct store_op *op, struct entry *entry,
                        const struct verdict *verdict, enum job_effect effect, int64_t now_ms)
{
    if (entry->holder)
        end_lease(ledger, op, entry, effect);
    else if (entry->ran_out != LEASE_NONE)
        op->u.settle.ended_lease = true; /* it was cleared before; now that is settled */
    op->u.settle.breaker = breakers_settle(&ledger->breakers, ledger->journal, entry,
                                           word_of(entry, op, verdict), now_ms);
    ledger_settled(ledger, entry);
    attempts_add(&entry->attempts, &entry->head, verdict->event, verdict->reason, now_ms);
    entry->head.lease = LEASE_NONE;
}

static void become_final(struct ledger *ledger, struct entry *entry, const struct verdict *verdict,
                         int64_t now_ms)
{
    struct store_head *head = &entry->head;

    head->ended_ms = now_ms;
    if (head->lease == LEASE_NONE)
        head->due_ms = 0;
    if (head->callback == CALLBACK_WANTED)
        head->callback = CALLBACK_PENDING;
    if (verdict->frees_key)
        journal_job_drop_key(ledger->journal, entry);
}

static void become_waiting(struct store_op *op, struct entry *entry, int64_t now_ms)
{
    struct store_head *head = &entry->head;

    head->owner = op->u.settle.owner;
    head->due_ms = ledger_later(now_ms, op->u.settle.hold_ms);
    if (head->state != JOB_SELECTING)
        return;
    head->node[0] = '\0'; /* the same attempt, but on none */
    head->dispatched_ms = 0;
    head->acked_ms = 0;
}

static void take(struct ledger *ledger, struct store_op *op, struct entry *entry,
                 const struct verdict *verdict, const struct job_step *step, int64_t now_ms)
{
    struct store_head *head = &entry->head;
    bool ran_out = !ledger_waiting(entry) && !alive(entry, now_ms);
    struct str result = STR_NONE;

    assert(!job_state_final(head->state));
    ledger_leave_lane(ledger, entry);
    if (step->effect != JOB_EFFECT_NONE || ran_out)
        end_attempt(ledger, op, entry, verdict, step->effect, now_ms);
    head->state = step->state;
    head->attempt = step->attempt;
    head->updated_ms = now_ms;
    str_copy(verdict->reason, head->reason, sizeof head->reason);
    if (job_state_final(step->state))
        become_final(ledger, entry, verdict, now_ms);
    else
        become_waiting(op, entry, now_ms);
    if (job_state_final(step->state) &&
        (verdict->event == JOB_EV_DONE || verdict->event == JOB_EV_FAIL))
        result = op->u.settle.result;
    assert(entry->holder || head->lease == LEASE_NONE);
    ledger_place(ledger, entry);
    journal_job_end(ledger->journal, entry, result);
}

/* The job was cancelled while it ran: this is the node's word that it stopped, or the end of its
 * lease. The job stays as the cancel left it. */
static bool ends_cancelled(const struct entry *entry, const struct store_op *op,
                           const struct verdict *verdict)
{
    if (!job_state_final(entry->head.state) || ledger_over(entry) || !verdict->in_time)
        return false;
    if (op->u.settle.outcome == STORE_EXPIRE)
        return op->attempt == 0 || op->attempt == entry->head.attempt;
    return (op->u.settle.outcome == STORE_DONE || op->u.settle.outcome == STORE_FAIL) &&
           from_here(entry, op);
}

static void end_cancelled(struct ledger *ledger, struct store_op *op, struct entry *entry,
                          const struct verdict *verdict, int64_t now_ms)
{
    end_attempt(ledger, op, entry, verdict, JOB_EFFECT_DEC_RUNNING, now_ms);
    op->u.settle.stopped = true;
    entry->head.due_ms = 0;
    entry->head.updated_ms = now_ms;
    ledger_place(ledger, entry);
    journal_job_end(ledger->journal, entry, op->u.settle.result); /* none when its lease ran out */
}

/* Was this accepted before? Ends of attempts are in their list; what ends a whole job leaves only
 * its reason. */
static bool is_repeated(const struct entry *entry, const struct store_op *op,
                        const struct verdict *verdict)
{
    const struct buf *attempts = &entry->attempts;

    if (!verdict->of_attempt)
        return entry->head.state == JOB_FAILED &&
               str_eq(verdict->reason, str_of(entry->head.reason));
    if (op->u.settle.outcome == STORE_EXPIRE)
        return attempts_has(attempts, op->attempt, op->node, JOB_EV_ACK_TIMEOUT) ||
               attempts_has(attempts, op->attempt, op->node, JOB_EV_RUN_TIMEOUT);
    return attempts_has(attempts, op->attempt, op->node, verdict->event);
}

/* The counters of the node it was on: also when its slot was given back by a reserve before. */
static void answer_counts(const struct ledger *ledger, struct store_op *op, struct str node)
{
    const struct holder *holder = node.len ? map_get(&ledger->nodes, node) : NULL;

    if (holder)
        op->counts = holder->counts;
}

/* Refused to who asked first, but another has been told of it: it goes on, with whoever finds it.
 * In a lane it is found. */
static bool goes_on(struct ledger *ledger, const struct store_op *op, struct entry *entry,
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
    struct entry *entry = ledger_find(ledger, op->job);
    struct verdict verdict;
    struct job_step step;
    char node[NODE_ID_MAX + 1];

    assert(op->u.settle.outcome < STORE_OUTCOME_COUNT);
    op->u.settle.duplicate = op->u.settle.ended_lease = op->u.settle.stopped = false;
    op->u.settle.breaker = BREAKER_NO_EVENT;
    op->record = (struct store_record){0};
    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    memcpy(node, entry->head.node, sizeof node);
    ledger_lapse_one(ledger, entry, now_ms);
    verdict = verdict_of(ledger, entry, op, now_ms);
    step = ask(entry, op, &verdict);
    if (step.accepted && !verdict.unsent && goes_on(ledger, op, entry, now_ms))
        op->err = ERR_STALE;
    else if (step.accepted && verdict.in_time)
        take(ledger, op, entry, &verdict, &step, now_ms);
    else if (ends_cancelled(entry, op, &verdict))
        end_cancelled(ledger, op, entry, &verdict, now_ms);
    else if (is_repeated(entry, op, &verdict))
        op->u.settle.duplicate = true;
    else
        op->err = ERR_STALE;
    ledger_answer(op, entry);
    answer_counts(ledger, op, str_of(node));
    if (op->err)
        return;
    if (op->u.settle.want_record || (ledger_waiting(entry) && !op->u.settle.duplicate))
        ledger_answer_record(ledger, op, entry);
}

void ledger_callback_done(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    struct entry *entry = ledger_find(ledger, op->job);

    if (!entry) {
        op->err = ERR_NOT_FOUND;
        return;
    }
    if (entry->head.callback == CALLBACK_PENDING) {
        entry->head.callback = op->u.callback.given_up ? CALLBACK_GIVEN_UP : CALLBACK_SENT;
        entry->head.updated_ms = now_ms;
        journal_job_step(ledger->journal, entry);
    } else if (entry->head.callback < CALLBACK_PENDING) {
        op->err = ERR_CONFLICT; /* none was asked for, or the job still runs */
    }
    ledger_answer(op, entry);
}
