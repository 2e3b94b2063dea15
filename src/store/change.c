/* Changes as bytes: numbers are varints, seven bits per byte, least significant first; signed ones
 * are zigzag-encoded. Times of a job are written relative to its creation, so they are small. */
#include "store/change.h"

#include <assert.h>
#include <string.h>

#include "base/digest.h"

/* --- changes --- */

/* Writing. */

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

static void put_node(struct buf *to, const struct store_node *node)
{
    put_number(to, node->own);
    put_number(to, node->counts.health);
    put_signed(to, node->counts.max);
    put_number(to, node->counts.epoch);
    put_number(to, node->admin);
    put_text(to, node->admin_reason);
    put_signed(to, node->registered_ms);
    put_signed(to, node->version);
    put_text(to, node->facts);
    if (node->resources.len)
        put_text(to, node->resources);
}

static void put_limit(struct buf *to, const struct limit *limit)
{
    put_signed(to, limit->concurrency);
    put_signed(to, limit->rate);
    put_signed(to, limit->rate_ms);
    put_signed(to, limit->queue);
    put_signed(to, limit->weight);
}

void change_write(struct buf *to, const struct change *change)
{
    bool has_resources = change->kind == CHANGE_NODE && change->u.node.resources.len;

    buf_char(to, (char)(has_resources ? CHANGE_NODE_RESOURCES : change->kind));
    switch (change->kind) {
    case CHANGE_JOB:
        put_job(to, &change->u.job);
        break;
    case CHANGE_NODE:
    case CHANGE_NODE_RESOURCES:
        put_text(to, change->u.node.id);
        put_node(to, &change->u.node);
        break;
    case CHANGE_NODE_DEL:
        put_text(to, change->u.node.id);
        break;
    case CHANGE_BREAKER:
    case CHANGE_BREAKER_DEL:
        put_text(to, change->u.breaker.node);
        put_text(to, change->u.breaker.type);
        if (change->kind == CHANGE_BREAKER_DEL)
            break;
        put_number(to, change->u.breaker.breaker.state);
        put_number(to, (unsigned)change->u.breaker.breaker.failures);
        put_signed(to, change->u.breaker.breaker.opened_ms);
        put_number(to, change->u.breaker.probe_job);
        break;
    case CHANGE_SESSION:
        put_text(to, change->u.session.id);
        put_text(to, change->u.session.pool);
        put_text(to, change->u.session.lang_pair);
        put_signed(to, change->u.session.version);
        put_signed(to, change->u.session.updated_ms);
        break;
    case CHANGE_LIMIT:
        put_text(to, change->u.limit.pattern);
        put_limit(to, &change->u.limit.limit);
        break;
    case CHANGE_LIMIT_DEL:
        put_text(to, change->u.limit.pattern);
        break;
    case CHANGE_LIMIT_KEY:
        put_text(to, change->u.limit_key.key);
        put_signed(to, change->u.limit_key.hold_until_ms);
        put_text(to, change->u.limit_key.reason);
        put_text(to, change->u.limit_key.starts);
        break;
    case CHANGE_LIMIT_KEY_DEL:
        put_text(to, change->u.limit_key.key);
        break;
    case CHANGE_META:
        put_number(to, change->u.meta.floor);
        put_signed(to, change->u.meta.wait_shift_ms);
        break;
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

static void get_node(struct source *from, struct store_node *node)
{
    node->own = (enum node_health)get_small(from, NODE_HEALTH_COUNT);
    node->counts.health = (enum node_health)get_small(from, NODE_HEALTH_COUNT);
    node->counts.max = (int32_t)get_signed(from);
    node->counts.epoch = get_small(from, (uint64_t)UINT32_MAX + 1);
    node->admin = (enum node_admin)get_small(from, NODE_ADMIN_DRAINING + 1);
    node->admin_reason = get_text(from);
    node->registered_ms = get_signed(from);
    node->version = get_signed(from);
    node->facts = get_text(from);
}

/* As large as a text of it may say. */
static int32_t get_bound(struct source *from, int64_t min, int64_t max)
{
    int64_t value = get_signed(from);

    from->bad |= value < min || value > max;
    return from->bad ? 0 : (int32_t)value;
}

static void get_limit(struct source *from, struct limit *limit)
{
    limit->concurrency = get_bound(from, LIMIT_NONE, DEMAND_AMOUNT_MAX);
    limit->rate = get_bound(from, LIMIT_NONE, LIMIT_RATE_MAX);
    limit->rate_ms = get_bound(from, limit->rate != LIMIT_NONE, LIMIT_WINDOW_MS_MAX);
    limit->queue = get_bound(from, LIMIT_NONE, DEMAND_AMOUNT_MAX);
    limit->weight = get_bound(from, 1, LIMIT_WEIGHT_MAX);
    from->bad |= limit->rate == 0;
}

static struct str get_name(struct source *from, size_t max)
{
    struct str name = get_text(from);

    from->bad |= name.len == 0 || name.len > max;
    return name;
}

bool change_read(struct str *rest, struct change *ret_change)
{
    struct source from = {.rest = *rest};

    *ret_change = (struct change){.kind = (enum change_kind)get_number(&from)};
    switch (ret_change->kind) {
    case CHANGE_JOB:
        get_job(&from, &ret_change->u.job);
        break;
    case CHANGE_NODE:
    case CHANGE_NODE_RESOURCES:
        ret_change->u.node.id = get_name(&from, NODE_ID_MAX);
        get_node(&from, &ret_change->u.node);
        if (ret_change->kind == CHANGE_NODE_RESOURCES)
            ret_change->u.node.resources = get_name(&from, RESOURCES_TEXT_MAX);
        ret_change->kind = CHANGE_NODE;
        break;
    case CHANGE_NODE_DEL:
        ret_change->u.node.id = get_name(&from, NODE_ID_MAX);
        break;
    case CHANGE_BREAKER:
    case CHANGE_BREAKER_DEL:
        ret_change->u.breaker.node = get_name(&from, NODE_ID_MAX);
        ret_change->u.breaker.type = get_name(&from, POOL_LANG_MAX);
        if (ret_change->kind == CHANGE_BREAKER_DEL)
            break;
        ret_change->u.breaker.breaker.state =
            (enum breaker_state)get_small(&from, BREAKER_STATE_COUNT);
        ret_change->u.breaker.breaker.failures = (int32_t)get_small(&from, (uint64_t)INT32_MAX + 1);
        ret_change->u.breaker.breaker.opened_ms = get_signed(&from);
        ret_change->u.breaker.probe_job = get_number(&from);
        break;
    case CHANGE_SESSION:
        ret_change->u.session.id = get_text(&from);
        ret_change->u.session.pool = get_text(&from);
        ret_change->u.session.lang_pair = get_text(&from);
        ret_change->u.session.version = get_signed(&from);
        ret_change->u.session.updated_ms = get_signed(&from);
        from.bad |= !ret_change->u.session.id.at;
        break;
    case CHANGE_LIMIT:
        ret_change->u.limit.pattern = get_name(&from, DEMAND_FULL_KEY_MAX + 1);
        get_limit(&from, &ret_change->u.limit.limit);
        break;
    case CHANGE_LIMIT_DEL:
        ret_change->u.limit.pattern = get_name(&from, DEMAND_FULL_KEY_MAX + 1);
        break;
    case CHANGE_LIMIT_KEY:
        ret_change->u.limit_key.key = get_name(&from, DEMAND_FULL_KEY_MAX);
        ret_change->u.limit_key.hold_until_ms = get_signed(&from);
        ret_change->u.limit_key.reason = get_text(&from);
        ret_change->u.limit_key.starts = get_text(&from);
        break;
    case CHANGE_LIMIT_KEY_DEL:
        ret_change->u.limit_key.key = get_name(&from, DEMAND_FULL_KEY_MAX);
        break;
    case CHANGE_META:
        ret_change->u.meta.floor = get_number(&from);
        ret_change->u.meta.wait_shift_ms = get_signed(&from);
        break;
    default:
        from.bad = true;
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

/* --- batches --- */

void batch_damaged(const struct batch *batch, struct fault *fault)
{
    *fault =
        (struct fault){.what = "read the journal", .code = FAULT_DAMAGED, .sys = (int)batch->seq};
}

bool batch_read(sqlite3_stmt *stmt, uint64_t after, struct batch *ret_batch, struct fault *fault)
{
    int64_t sum = sqlite3_column_int64(stmt, 1);

    ret_batch->seq = (uint64_t)sqlite3_column_int64(stmt, 0);
    ret_batch->changes = (struct str){.at = sqlite3_column_blob(stmt, 2),
                                      .len = (size_t)sqlite3_column_bytes(stmt, 2)};
    if (ret_batch->seq != after + 1) {
        *fault = (struct fault){
            .what = "read the journal", .code = FAULT_GAP, .sys = (int)ret_batch->seq};
        return false;
    }
    if (!ret_batch->changes.at || crc32c(ret_batch->changes) != sum) {
        batch_damaged(ret_batch, fault);
        return false;
    }
    return true;
}
