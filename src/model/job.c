/* The job state machine as one table, and job ids. An effect names what a transition does to the
 * lease; the store applies both in one step. */
#include "model/job.h"

#include <assert.h>
#include <stdatomic.h>

static const struct {
    const char *state;
    const char *status;
} state_names[JOB_STATE_COUNT] = {
    [JOB_NEW] = {"NEW", "Created"},           [JOB_SELECTING] = {"SELECTING", "Created"},
    [JOB_RESERVED] = {"RESERVED", "Created"}, [JOB_DISPATCHED] = {"DISPATCHED", "Dispatched"},
    [JOB_ACKED] = {"ACKED", "Running"},       [JOB_RETRYING] = {"RETRYING", "Requeue"},
    [JOB_DONE] = {"DONE", "Finished"},        [JOB_FAILED] = {"FAILED", "Failed"},
};

const char *job_state_name(enum job_state state)
{
    assert(state >= JOB_NEW && state < JOB_STATE_COUNT);
    return state_names[state].state;
}

const char *job_status_name(enum job_state state)
{
    assert(state >= JOB_NEW && state < JOB_STATE_COUNT);
    return state_names[state].status;
}

bool job_state_by_name(struct str name, enum job_state *ret_state)
{
    for (int i = 0; i < JOB_STATE_COUNT; i++) {
        if (!str_is(name, state_names[i].state))
            continue;
        *ret_state = (enum job_state)i;
        return true;
    }
    return false;
}

bool job_state_final(enum job_state state)
{
    return state == JOB_DONE || state == JOB_FAILED;
}

/* Where an event comes from, which decides what it must name. */
enum voice {
    VOICE_SERVER, /* attempt and node may be omitted; if given, they must be the job's */
    VOICE_NODE,   /* both must be given and match the job's */
    VOICE_RESERVE /* names the node it chose, not the job's current one */
};

/* REFUSED may also be decided by the server itself (the node was gone before the frame was
 * sent). */
static const struct {
    const char *name;
    enum voice voice;
} events[JOB_EVENT_COUNT] = {
    [JOB_EV_SELECT] = {"select", VOICE_SERVER},
    [JOB_EV_RESERVED] = {"reserved", VOICE_RESERVE},
    [JOB_EV_NO_CANDIDATE] = {"no_candidate", VOICE_SERVER},
    [JOB_EV_SENT] = {"sent", VOICE_SERVER},
    [JOB_EV_SEND_FAILED] = {"send_failed", VOICE_SERVER},
    [JOB_EV_REFUSED] = {"refused", VOICE_SERVER},
    [JOB_EV_ACK] = {"ack", VOICE_NODE},
    [JOB_EV_ACK_TIMEOUT] = {"ack_timeout", VOICE_SERVER},
    [JOB_EV_DONE] = {"done", VOICE_NODE},
    [JOB_EV_FAIL] = {"fail", VOICE_NODE},
    [JOB_EV_RUN_TIMEOUT] = {"run_timeout", VOICE_SERVER},
    [JOB_EV_CANCEL] = {"cancel", VOICE_SERVER},
    [JOB_EV_QUEUE_TIMEOUT] = {"queue_timeout", VOICE_SERVER},
};

const char *job_event_name(enum job_event event)
{
    assert(event >= JOB_EV_SELECT && event < JOB_EVENT_COUNT);
    return events[event].name;
}

bool job_status_ok(struct str status)
{
    return !status.at || str_is(status, "ok");
}

static const char *const effect_names[JOB_EFFECT_COUNT] = {
    [JOB_EFFECT_NONE] = "none",
    [JOB_EFFECT_RESERVE] = "reserve",
    [JOB_EFFECT_RELEASE_RESERVED] = "release_reserved",
    [JOB_EFFECT_COMMIT] = "commit",
    [JOB_EFFECT_DEC_RUNNING] = "dec_running",
};

const char *job_effect_name(enum job_effect effect)
{
    assert(effect >= JOB_EFFECT_NONE && effect < JOB_EFFECT_COUNT);
    return effect_names[effect];
}

/* The condition for an edge to lead to `to`; if it does not hold, the edge leads to `otherwise`. */
enum need { ALWAYS, IF_ATTEMPTS, IF_CANDIDATES };

struct edge {
    enum job_state from;
    enum job_event event;
    enum job_state to;
    enum need need;
    enum job_state otherwise; /* the same as `from` means that the event is then not accepted */
    enum job_effect effect;
};

static const struct edge edges[] = {
    {JOB_NEW, JOB_EV_SELECT, JOB_SELECTING, ALWAYS, JOB_NEW, JOB_EFFECT_NONE},
    {JOB_NEW, JOB_EV_CANCEL, JOB_FAILED, ALWAYS, JOB_NEW, JOB_EFFECT_NONE},
    {JOB_NEW, JOB_EV_QUEUE_TIMEOUT, JOB_FAILED, ALWAYS, JOB_NEW, JOB_EFFECT_NONE},

    {JOB_SELECTING, JOB_EV_RESERVED, JOB_RESERVED, ALWAYS, JOB_SELECTING, JOB_EFFECT_RESERVE},
    {JOB_SELECTING, JOB_EV_NO_CANDIDATE, JOB_FAILED, ALWAYS, JOB_SELECTING, JOB_EFFECT_NONE},
    {JOB_SELECTING, JOB_EV_CANCEL, JOB_FAILED, ALWAYS, JOB_SELECTING, JOB_EFFECT_NONE},
    {JOB_SELECTING, JOB_EV_QUEUE_TIMEOUT, JOB_FAILED, ALWAYS, JOB_SELECTING, JOB_EFFECT_NONE},

    {JOB_RESERVED, JOB_EV_SENT, JOB_DISPATCHED, ALWAYS, JOB_RESERVED, JOB_EFFECT_NONE},
    {JOB_RESERVED, JOB_EV_SEND_FAILED, JOB_SELECTING, IF_CANDIDATES, JOB_FAILED,
     JOB_EFFECT_RELEASE_RESERVED},
    {JOB_RESERVED, JOB_EV_CANCEL, JOB_FAILED, ALWAYS, JOB_RESERVED, JOB_EFFECT_RELEASE_RESERVED},

    {JOB_DISPATCHED, JOB_EV_ACK, JOB_ACKED, ALWAYS, JOB_DISPATCHED, JOB_EFFECT_COMMIT},
    {JOB_DISPATCHED, JOB_EV_ACK_TIMEOUT, JOB_RETRYING, IF_ATTEMPTS, JOB_FAILED,
     JOB_EFFECT_RELEASE_RESERVED},
    {JOB_DISPATCHED, JOB_EV_REFUSED, JOB_SELECTING, IF_CANDIDATES, JOB_FAILED,
     JOB_EFFECT_RELEASE_RESERVED},
    /* The ACK was lost, but the work is done. */
    {JOB_DISPATCHED, JOB_EV_DONE, JOB_DONE, ALWAYS, JOB_DISPATCHED, JOB_EFFECT_RELEASE_RESERVED},
    {JOB_DISPATCHED, JOB_EV_FAIL, JOB_RETRYING, IF_ATTEMPTS, JOB_FAILED,
     JOB_EFFECT_RELEASE_RESERVED},
    {JOB_DISPATCHED, JOB_EV_CANCEL, JOB_FAILED, ALWAYS, JOB_DISPATCHED,
     JOB_EFFECT_RELEASE_RESERVED},

    {JOB_ACKED, JOB_EV_DONE, JOB_DONE, ALWAYS, JOB_ACKED, JOB_EFFECT_DEC_RUNNING},
    {JOB_ACKED, JOB_EV_FAIL, JOB_RETRYING, IF_ATTEMPTS, JOB_FAILED, JOB_EFFECT_DEC_RUNNING},
    {JOB_ACKED, JOB_EV_RUN_TIMEOUT, JOB_RETRYING, IF_ATTEMPTS, JOB_FAILED, JOB_EFFECT_DEC_RUNNING},
    /* Its process is still running: the slot stays taken until the node reports its end. */
    {JOB_ACKED, JOB_EV_CANCEL, JOB_FAILED, ALWAYS, JOB_ACKED, JOB_EFFECT_NONE},

    {JOB_RETRYING, JOB_EV_SELECT, JOB_SELECTING, IF_ATTEMPTS, JOB_RETRYING, JOB_EFFECT_NONE},
    {JOB_RETRYING, JOB_EV_CANCEL, JOB_FAILED, ALWAYS, JOB_RETRYING, JOB_EFFECT_NONE},
    {JOB_RETRYING, JOB_EV_QUEUE_TIMEOUT, JOB_FAILED, ALWAYS, JOB_RETRYING, JOB_EFFECT_NONE},
};

static const struct edge *edge_of(enum job_state from, enum job_event event)
{
    for (size_t i = 0; i < COUNT_OF(edges); i++)
        if (edges[i].from == from && edges[i].event == event)
            return &edges[i];
    return NULL;
}

/* Does the event refer to the job's current attempt and node? */
static bool concerns(const struct job_facts *job, const struct job_input *in)
{
    enum voice voice = events[in->event].voice;

    if (voice == VOICE_NODE && (in->attempt == 0 || !in->node.at || !job->node.at))
        return false;
    if (in->attempt != 0 && in->attempt != job->attempt)
        return false;
    return voice == VOICE_RESERVE || !in->node.at || !job->node.at || str_eq(in->node, job->node);
}

struct job_step job_step(const struct job_facts *job, const struct job_input *in)
{
    struct job_step step = {.state = job->state, .attempt = job->attempt};
    const struct edge *edge;
    bool onward;

    assert(job->state >= JOB_NEW && job->state < JOB_STATE_COUNT);
    assert(in->event >= JOB_EV_SELECT && in->event < JOB_EVENT_COUNT);
    edge = edge_of(job->state, in->event);
    if (!edge || !concerns(job, in))
        return step;
    onward = edge->need == IF_ATTEMPTS     ? job->attempt < job->max_attempts
             : edge->need == IF_CANDIDATES ? in->candidates_left
                                           : true;
    if (!onward && edge->otherwise == job->state)
        return step;

    assert(!job_state_final(job->state));
    step.accepted = true;
    step.state = onward ? edge->to : edge->otherwise;
    step.effect = edge->effect;
    if (job->state == JOB_RETRYING && step.state == JOB_SELECTING)
        step.attempt++;
    assert(step.attempt == job->attempt || step.attempt <= job->max_attempts);
    return step;
}

bool job_reason_is_refusal(struct str reason)
{
    static const char *const refusals[] = {"NODE_OVERLOADED", "TYPE_NOT_ALLOWED"};

    for (size_t i = 0; i < COUNT_OF(refusals); i++)
        if (str_is(reason, refusals[i]))
            return true;
    return false;
}

/* Ids. */

enum { ID_MS_BITS = 41, ID_SEQ_BITS = 13, ID_INSTANCE_BITS = 9 };

#define ID_EPOCH_MS   INT64_C(1704067200000) /* 2024-01-01 00:00 UTC */
#define ID_MS_MAX     ((INT64_C(1) << ID_MS_BITS) - 1)
#define ID_MAX        ((UINT64_C(1) << (ID_MS_BITS + ID_SEQ_BITS + ID_INSTANCE_BITS)) - 1)
#define ID_TEXT_FIRST 'j'

/* ms and sequence of the newest id of this process. When more than 8192 are created in one ms,
 * or the clock goes back, it runs ahead of the clock: order and uniqueness matter more than the
 * time. */
static _Atomic uint64_t newest;

static uint64_t ticks_of(int64_t wall_ms)
{
    int64_t ms = wall_ms > ID_EPOCH_MS ? wall_ms - ID_EPOCH_MS : 0;

    return (uint64_t)(ms < ID_MS_MAX ? ms : ID_MS_MAX) << ID_SEQ_BITS;
}

uint64_t job_id_next(int64_t wall_ms, unsigned instance)
{
    uint64_t want = ticks_of(wall_ms);
    uint64_t seen = atomic_load_explicit(&newest, memory_order_relaxed);
    uint64_t next;

    assert(instance < 1u << ID_INSTANCE_BITS);
    do {
        next = want > seen ? want : seen + 1;
    } while (!atomic_compare_exchange_weak_explicit(&newest, &seen, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    assert(next <= ID_MAX >> ID_INSTANCE_BITS);
    return next << ID_INSTANCE_BITS | instance;
}

void job_id_floor(uint64_t id)
{
    uint64_t floor = id >> ID_INSTANCE_BITS;
    uint64_t seen = atomic_load_explicit(&newest, memory_order_relaxed);

    while (seen < floor && !atomic_compare_exchange_weak_explicit(
                               &newest, &seen, floor, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Without i, l, o and u, which could be mistaken for other characters. In ASCII order, so that
 * texts sort as their ids do. */
static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz";

void job_id_text(uint64_t id, char out[JOB_ID_TEXT + 1])
{
    assert(id <= ID_MAX);
    out[JOB_ID_TEXT] = '\0';
    for (int i = JOB_ID_TEXT - 1; i > 0; i--, id >>= 5)
        out[i] = digits[id & 31];
    out[0] = ID_TEXT_FIRST;
    assert(id == 0);
}

bool job_id_parse(struct str text, uint64_t *ret_id)
{
    /* The digit's value plus 1; 0: not a digit. */
    static const uint8_t values[256] = {
        ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,
        ['7'] = 8,  ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14,
        ['e'] = 15, ['f'] = 16, ['g'] = 17, ['h'] = 18, ['j'] = 19, ['k'] = 20, ['m'] = 21,
        ['n'] = 22, ['p'] = 23, ['q'] = 24, ['r'] = 25, ['s'] = 26, ['t'] = 27, ['v'] = 28,
        ['w'] = 29, ['x'] = 30, ['y'] = 31, ['z'] = 32};
    uint64_t id = 0;

    if (text.len != JOB_ID_TEXT || text.at[0] != ID_TEXT_FIRST)
        return false;
    for (size_t i = 1; i < JOB_ID_TEXT; i++) {
        uint8_t value = values[(unsigned char)text.at[i]];

        if (!value || id > ID_MAX >> 5)
            return false;
        id = id << 5 | (value - 1u);
    }
    if (id == 0)
        return false;
    *ret_id = id;
    return true;
}
