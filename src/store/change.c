/* Changes as bytes: numbers are varints, seven bits per byte, least significant first; signed ones
 * are zigzag-encoded. Times of a job are written relative to its creation, so they are small. */
#include "store/change.h"

#include <assert.h>
#include <string.h>

/* --- writing --- */

static void put_number(struct buf *to, uint64_t value)
{
    buf_reserve(to, 10);
    for (; value >= 128; value >>= 7)
        to->at[to->len++] = (char)(value | 128);
    to->at[to->len++] = (char)value;
}

static void put_signed(struct buf *to, int64_t value)
{
    put_number(to, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

static void put_text(struct buf *to, struct str text)
{
    put_number(to, text.at ? text.len + 1 : 0);
    if (text.len)
        buf_add(to, text.at, text.len);
}

/* The times of a head that are often 0 and otherwise close to its creation. */
enum { TIMES = 6 };

static void times_of(struct change_job *job, int64_t *ret_times[TIMES])
{
    ret_times[0] = &job->head.updated_ms;
    ret_times[1] = &job->head.dispatched_ms;
    ret_times[2] = &job->head.acked_ms;
    ret_times[3] = &job->head.ended_ms;
    ret_times[4] = &job->head.due_ms;
    ret_times[5] = &job->run_until_ms;
}

static void put_job(struct buf *to, const struct change_job *job)
{
    const struct store_head *head = &job->head;
    unsigned parts = job->parts & ~(unsigned)(CHANGE_GPUS | CHANGE_DEMAND);
    int64_t *times[TIMES];
    unsigned set = 0;

    if (head->gpus)
        parts |= CHANGE_GPUS;
    if (job->demand.len && parts & CHANGE_NEW)
        parts |= CHANGE_DEMAND;
    put_number(to, head->id);
    put_number(to, parts);
    put_number(to, job->answered);
    put_number(to, head->state);
    put_number(to, head->lease);
    put_number(to, (unsigned)head->callback);
    put_number(to, (unsigned)head->attempt);
    put_number(to, (unsigned)head->max_attempts);
    put_number(to, head->epoch);
    put_number(to, head->owner);
    put_number(to, head->lane);
    put_signed(to, head->priority);
    put_text(to, str_of(head->node));
    put_text(to, str_of(head->type));
    put_text(to, str_of(head->reason));
    put_signed(to, head->created_ms);
    put_signed(to, head->timeout_ms);
    times_of((struct change_job *)job, times);
    for (unsigned i = 0; i < TIMES; i++)
        set |= (unsigned)(*times[i] != 0) << i;
    put_number(to, set);
    for (unsigned i = 0; i < TIMES; i++)
        if (set >> i & 1)
            put_signed(to, (int64_t)((uint64_t)*times[i] - (uint64_t)head->created_ms));
    put_text(to, job->attempts);
    if (parts & CHANGE_NEW) {
        put_text(to, job->spec);
        put_text(to, job->idem);
        put_number(to, job->fingerprint);
    }
    if (parts & CHANGE_RESULT)
        put_text(to, job->result);
    if (parts & CHANGE_FIRST_NODE)
        put_text(to, job->first_node);
    if (parts & CHANGE_GPUS)
        put_number(to, head->gpus);
    if (parts & CHANGE_DEMAND)
        put_text(to, job->demand);
}

/* --- fields --- */

#define FIELD(type, member, ...)                                                                   \
    {                                                                                              \
        .kind = CHANGE_##type, .size = sizeof(((struct change *)0)->u.member),                     \
        .offset = offsetof(struct change, u.member), ##__VA_ARGS__                                 \
    }
#define MAX(last)            .max = (int64_t)(last)
#define BETWEEN(first, last) .min = (first), .max = (last)
#define ANY                  BETWEEN(INT64_MIN, INT64_MAX)

/* Further columns of store.db are handled by each statement. */
static const struct change_field job_fields[] = {
    FIELD(NUMBER, job.head.id, MAX(UINT64_MAX)),
    FIELD(NUMBER, job.head.state, MAX(JOB_STATE_COUNT - 1)),
    FIELD(NUMBER, job.head.lease, MAX(LEASE_RUNNING)),
    FIELD(NUMBER, job.head.callback, MAX(CALLBACK_GIVEN_UP)),
    FIELD(NUMBER, job.head.attempt, MAX(JOB_ATTEMPTS_MAX)),
    FIELD(NUMBER, job.head.max_attempts, MAX(JOB_ATTEMPTS_MAX)),
    FIELD(NUMBER, job.head.epoch, MAX(UINT64_MAX)),
    FIELD(NUMBER, job.head.owner, MAX(UINT64_MAX)),
    FIELD(CHARS, job.head.node, .empty_is_null = true),
    FIELD(CHARS, job.head.reason, .empty_is_null = true),
    FIELD(SIGNED, job.head.created_ms, ANY),
    FIELD(SIGNED, job.head.updated_ms, ANY),
    FIELD(SIGNED, job.head.dispatched_ms, ANY),
    FIELD(SIGNED, job.head.acked_ms, ANY),
    FIELD(SIGNED, job.head.ended_ms, ANY),
    FIELD(SIGNED, job.head.due_ms, ANY),
    FIELD(SIGNED, job.head.timeout_ms, ANY),
    FIELD(SIGNED, job.run_until_ms, ANY),
    FIELD(CHARS, job.head.type, .empty_is_null = true),
    FIELD(NUMBER, job.head.lane, MAX(UINT64_MAX)),
    FIELD(SIGNED, job.head.priority, ANY),
    FIELD(NUMBER, job.head.gpus, MAX(UINT64_MAX)),
};
static const struct change_field node_fields[] = {
    FIELD(NAME, node.id, BETWEEN(1, NODE_ID_MAX)),
    FIELD(NUMBER, node.own, MAX(NODE_HEALTH_COUNT - 1)),
    FIELD(NUMBER, node.counts.health, MAX(NODE_HEALTH_COUNT - 1)),
    FIELD(SIGNED, node.counts.max, ANY),
    FIELD(NUMBER, node.counts.epoch, MAX(UINT32_MAX)),
    FIELD(NUMBER, node.admin, MAX(NODE_ADMIN_DRAINING)),
    FIELD(TEXT, node.admin_reason),
    FIELD(SIGNED, node.registered_ms, ANY),
    FIELD(SIGNED, node.version, ANY),
    FIELD(TEXT, node.facts),
    FIELD(NAME, node.resources, BETWEEN(1, RESOURCES_TEXT_MAX)), /* of CHANGE_NODE_RESOURCES */
};
static const struct change_field breaker_fields[] = {
    FIELD(NAME, breaker.node, BETWEEN(1, NODE_ID_MAX)),
    FIELD(NAME, breaker.type, BETWEEN(1, POOL_LANG_MAX)),
    FIELD(NUMBER, breaker.breaker.state, MAX(BREAKER_STATE_COUNT - 1)),
    FIELD(NUMBER, breaker.breaker.failures, MAX(INT32_MAX)),
    FIELD(SIGNED, breaker.breaker.opened_ms, ANY),
    FIELD(NUMBER, breaker.probe_job, MAX(UINT64_MAX)),
};
static const struct change_field session_fields[] = {
    FIELD(NAME, session.id, BETWEEN(0, INT64_MAX)),
    FIELD(TEXT, session.pool),
    FIELD(TEXT, session.lang_pair),
    FIELD(SIGNED, session.version, ANY),
    FIELD(SIGNED, session.updated_ms, ANY),
};
static const struct change_field limit_fields[] = {
    FIELD(NAME, limit.pattern, BETWEEN(1, DEMAND_FULL_KEY_MAX + 1)),
    FIELD(SIGNED, limit.limit.concurrency, BETWEEN(LIMIT_NONE, DEMAND_AMOUNT_MAX)),
    FIELD(SIGNED, limit.limit.rate, BETWEEN(LIMIT_NONE, LIMIT_RATE_MAX)),
    FIELD(SIGNED, limit.limit.rate_ms, BETWEEN(0, LIMIT_WINDOW_MS_MAX)),
    FIELD(SIGNED, limit.limit.queue, BETWEEN(LIMIT_NONE, DEMAND_AMOUNT_MAX)),
    FIELD(SIGNED, limit.limit.weight, BETWEEN(1, LIMIT_WEIGHT_MAX)),
};
static const struct change_field limit_key_fields[] = {
    FIELD(NAME, limit_key.key, BETWEEN(1, DEMAND_FULL_KEY_MAX)),
    FIELD(SIGNED, limit_key.hold_until_ms, ANY),
    FIELD(TEXT, limit_key.reason, .empty_is_null = true),
    FIELD(TEXT, limit_key.starts, .empty_is_null = true),
};
static const struct change_field meta_fields[] = {
    FIELD(NUMBER, meta.floor, MAX(UINT64_MAX)),
    FIELD(SIGNED, meta.wait_shift_ms, ANY),
};

/* A deletion only has the key fields. */
const struct change_row change_rows[CHANGE_KINDS] = {
    [CHANGE_JOB] = {job_fields, COUNT_OF(job_fields), 1, CHANGE_JOB},
    [CHANGE_NODE] = {node_fields, COUNT_OF(node_fields) - 1, 1, CHANGE_NODE},
    [CHANGE_NODE_RESOURCES] = {node_fields, COUNT_OF(node_fields), 1, CHANGE_NODE},
    [CHANGE_NODE_DEL] = {node_fields, 1, 1, CHANGE_NODE},
    [CHANGE_BREAKER] = {breaker_fields, COUNT_OF(breaker_fields), 2, CHANGE_BREAKER},
    [CHANGE_BREAKER_DEL] = {breaker_fields, 2, 2, CHANGE_BREAKER},
    [CHANGE_SESSION] = {session_fields, COUNT_OF(session_fields), 1, CHANGE_SESSION},
    [CHANGE_LIMIT] = {limit_fields, COUNT_OF(limit_fields), 1, CHANGE_LIMIT},
    [CHANGE_LIMIT_DEL] = {limit_fields, 1, 1, CHANGE_LIMIT},
    [CHANGE_LIMIT_KEY] = {limit_key_fields, COUNT_OF(limit_key_fields), 1, CHANGE_LIMIT_KEY},
    [CHANGE_LIMIT_KEY_DEL] = {limit_key_fields, 1, 1, CHANGE_LIMIT_KEY},
    [CHANGE_META] = {meta_fields, COUNT_OF(meta_fields), 0, CHANGE_META},
};

struct str change_text(const struct change *change, const struct change_field *field)
{
    const void *at = (const char *)change + field->offset;

    return field->kind == CHANGE_CHARS ? str_of(at) : *(const struct str *)at;
}

int64_t change_number(const struct change *change, const struct change_field *field)
{
    const char *at = (const char *)change + field->offset;
    int64_t number;
    int32_t small;

    if (field->size == sizeof number) {
        memcpy(&number, at, sizeof number);
        return number;
    }
    assert(field->size == sizeof small);
    memcpy(&small, at, sizeof small);
    return field->kind == CHANGE_SIGNED ? small : (int64_t)(uint32_t)small;
}

bool change_set_number(struct change *change, const struct change_field *field, int64_t number)
{
    bool ok = field->kind == CHANGE_SIGNED ? number >= field->min && number <= field->max
                                           : (uint64_t)number <= (uint64_t)field->max;
    int32_t small = ok ? (int32_t)number : 0;

    if (!ok)
        number = 0;
    memcpy((char *)change + field->offset, field->size == sizeof number ? (void *)&number : &small,
           field->size);
    return ok;
}

bool change_set_text(struct change *change, const struct change_field *field, struct str text)
{
    void *at = (char *)change + field->offset;

    if (field->kind == CHANGE_CHARS) {
        str_copy(text, at, field->size);
        return true;
    }
    *(struct str *)at = text;
    return field->kind == CHANGE_TEXT ||
           (text.at && text.len >= (size_t)field->min && text.len <= (size_t)field->max);
}

void change_write(struct buf *to, const struct change *change)
{
    bool has_resources = change->kind == CHANGE_NODE && change->u.node.resources.len;
    enum change_kind kind = has_resources ? CHANGE_NODE_RESOURCES : change->kind;

    buf_char(to, (char)kind);
    if (kind == CHANGE_JOB) {
        put_job(to, &change->u.job);
        return;
    }
    for (size_t i = 0; i < change_rows[kind].count; i++) {
        const struct change_field *field = &change_rows[kind].fields[i];

        if (field->kind == CHANGE_NUMBER)
            put_number(to, (uint64_t)change_number(change, field));
        else if (field->kind == CHANGE_SIGNED)
            put_signed(to, change_number(change, field));
        else
            put_text(to, change_text(change, field));
    }
}

/* --- reading --- */

/* Input is not trusted: invalid data sets `bad`, and everything after it reads as empty. */

struct source {
    struct str rest;
    bool bad;
};

static uint64_t get_long_number(struct source *from)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64 && !from->bad; shift += 7) {
        unsigned char byte;

        if (from->rest.len == 0)
            break;
        byte = (unsigned char)*from->rest.at++;
        from->rest.len--;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    from->bad = true;
    return 0;
}

/* Fast path: nearly all numbers are one byte. */
static inline uint64_t get_number(struct source *from)
{
    if (from->bad || from->rest.len == 0 || (unsigned char)*from->rest.at >= 128)
        return get_long_number(from);
    from->rest.len--;
    return (unsigned char)*from->rest.at++;
}

static int64_t get_signed(struct source *from)
{
    uint64_t value = get_number(from);

    return (int64_t)(value >> 1 ^ (~(value & 1) + 1));
}

/* A number below `limit`. */
static unsigned get_small(struct source *from, uint64_t limit)
{
    uint64_t value = get_number(from);

    from->bad |= value >= limit;
    return from->bad ? 0 : (unsigned)value;
}

static struct str get_text(struct source *from)
{
    uint64_t len = get_number(from);
    struct str text = {.at = from->rest.at, .len = (size_t)len - 1};

    if (from->bad || len == 0)
        return STR_NONE;
    if (text.len > from->rest.len) {
        from->bad = true;
        return STR_NONE;
    }
    from->rest.at += text.len;
    from->rest.len -= text.len;
    return text;
}

static void get_copy(struct source *from, char *to, size_t size)
{
    struct str text = get_text(from);

    from->bad |= !text.at || !str_copy(text, to, size) || memchr(to, '\0', size) != to + text.len;
}

static void get_job(struct source *from, struct change_job *job)
{
    struct store_head *head = &job->head;
    int64_t *times[TIMES];
    unsigned set;

    head->id = get_number(from);
    job->parts = get_small(from, CHANGE_PARTS + 1);
    job->answered = get_small(from, 2);
    head->state = (enum job_state)get_small(from, JOB_STATE_COUNT);
    head->lease = (enum lease_kind)get_small(from, LEASE_RUNNING + 1);
    head->callback = (int)get_small(from, CALLBACK_GIVEN_UP + 1);
    head->attempt = (int)get_small(from, JOB_ATTEMPTS_MAX + 1);
    head->max_attempts = (int)get_small(from, JOB_ATTEMPTS_MAX + 1);
    head->epoch = get_small(from, (uint64_t)UINT32_MAX + 1);
    head->owner = get_small(from, (uint64_t)UINT32_MAX + 1);
    head->lane = get_number(from);
    head->priority = (int)get_signed(from);
    get_copy(from, head->node, sizeof head->node);
    get_copy(from, head->type, sizeof head->type);
    get_copy(from, head->reason, sizeof head->reason);
    head->created_ms = get_signed(from);
    head->timeout_ms = get_signed(from);
    set = get_small(from, 1u << TIMES);
    times_of(job, times);
    for (unsigned i = 0; i < TIMES; i++)
        if (set >> i & 1)
            *times[i] = (int64_t)((uint64_t)get_signed(from) + (uint64_t)head->created_ms);
    job->attempts = get_text(from);
    if (job->parts & CHANGE_NEW) {
        job->spec = get_text(from);
        job->idem = get_text(from);
        job->fingerprint = get_number(from);
        from->bad |= !job->spec.at;
    }
    if (job->parts & CHANGE_RESULT)
        job->result = get_text(from);
    if (job->parts & CHANGE_FIRST_NODE) {
        job->first_node = get_text(from);
        from->bad |= job->first_node.len > NODE_ID_MAX;
    }
    if (job->parts & CHANGE_GPUS)
        head->gpus = get_number(from);
    if (job->parts & CHANGE_DEMAND) {
        job->demand = get_text(from);
        from->bad |= !(job->parts & CHANGE_NEW) || !job->demand.len;
    }
    from->bad |= head->id == 0 || head->id > INT64_MAX;
}

static void get_field(struct source *from, const struct change_field *field, struct change *change)
{
    if (field->kind == CHANGE_NUMBER)
        from->bad |= !change_set_number(change, field, (int64_t)get_number(from));
    else if (field->kind == CHANGE_SIGNED)
        from->bad |= !change_set_number(change, field, get_signed(from));
    else
        from->bad |= !change_set_text(change, field, get_text(from));
}

bool change_read(struct str *rest, struct change *ret_change)
{
    struct source from = {.rest = *rest};
    enum change_kind kind = (enum change_kind)get_number(&from);

    *ret_change = (struct change){.kind = kind};
    if (kind == CHANGE_JOB)
        get_job(&from, &ret_change->u.job);
    else if (kind >= COUNT_OF(change_rows) || !change_rows[kind].fields)
        from.bad = true;
    else
        for (size_t i = 0; i < change_rows[kind].count; i++)
            get_field(&from, &change_rows[kind].fields[i], ret_change);
    if (kind == CHANGE_NODE_RESOURCES)
        ret_change->kind = CHANGE_NODE;
    if (kind == CHANGE_LIMIT) {
        const struct limit *limit = &ret_change->u.limit.limit;

        from.bad |= limit->rate == 0 || (limit->rate != LIMIT_NONE && limit->rate_ms == 0);
    }
    *rest = from.rest;
    return !from.bad;
}

void change_job_merge(struct change_job *into, const struct change_job *later)
{
    struct change_job both = *later;

    assert(into->head.id == later->head.id);
    both.parts |= into->parts;
    if (!(later->parts & CHANGE_NEW)) {
        both.spec = into->spec;
        both.demand = into->demand;
        both.idem = into->idem;
        both.fingerprint = into->fingerprint;
    }
    if (!(later->parts & CHANGE_RESULT))
        both.result = into->result;
    if (!(later->parts & CHANGE_FIRST_NODE))
        both.first_node = into->first_node;
    *into = both;
}

void change_damaged(uint64_t seq, struct fault *fault)
{
    *fault = (struct fault){.what = "read the journal", .code = FAULT_DAMAGED, .sys = (int)seq};
}
