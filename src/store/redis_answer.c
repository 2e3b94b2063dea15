/* Reads what the function library answers, and trusts none of it: a library of another build, or a
 * key somebody wrote by hand, must not become an index out of range. */
#include "store/attempts.h"
#include "store/redis_wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The errors of lua/reserve.lua. */
static const enum err errors[] = {
    ERR_OK,          ERR_NOT_FOUND, ERR_STALE,     ERR_ALL_FULL,
    ERR_IDEMPOTENCY, ERR_TOO_LATE,  ERR_BAD_FIELD, ERR_CONFLICT,
};

/* Of lua/unit.lua. */
enum { COUNTS_BYTES = 17, TOLD_DONE = 2, TIME_BYTES = 6, ANSWER_MARK = 64 };

/* Whole numbers, little end first, as struct.pack writes them. */
struct bytes {
    const unsigned char *at;
    size_t left;
    bool short_of; /* it ended too early */
};

static uint64_t take(struct bytes *from, size_t width)
{
    uint64_t value = 0;

    if (from->left < width) {
        from->short_of = true;
        return 0;
    }
    for (size_t i = width; i > 0; i--)
        value = value << 8 | from->at[i - 1];
    from->at += width;
    from->left -= width;
    return value;
}

static int64_t take_time(struct bytes *from)
{
    int64_t value = (int64_t)(take(from, TIME_BYTES) << 16) >> 16; /* with its sign */

    return value >= WIRE_FOREVER ? LEASE_FOREVER : value;
}

static int take_small(struct bytes *from, int limit)
{
    int value = (int)take(from, 1);

    if (value >= limit)
        from->short_of = true;
    return value < limit ? value : 0;
}

static void take_text(struct bytes *from, char *to, size_t size)
{
    const unsigned char *end = memchr(from->at, '\0', from->left);
    size_t len = end ? (size_t)(end - from->at) : 0;

    if (!end || !str_copy((struct str){(const char *)from->at, len}, to, size)) {
        from->short_of = true;
        return;
    }
    from->at += len + 1;
    from->left -= len + 1;
}

static struct bytes bytes_of(struct str text)
{
    return (struct bytes){.at = (const unsigned char *)text.at, .left = text.len};
}

/* lua/unit.lua says what stands where. */
bool wire_job_read(struct str packed, struct store_head *ret_head, struct wire_job *ret_job)
{
    struct bytes from = bytes_of(packed);
    struct store_head head = {.id = ret_head->id};
    int told;

    if (!packed.at)
        return false;
    head.state = (enum job_state)take_small(&from, JOB_STATE_COUNT);
    head.lease = (enum lease_kind)take_small(&from, LEASE_RUNNING + 1);
    head.attempt = take_small(&from, JOB_ATTEMPTS_MAX + 1);
    take(&from, 3); /* what ran out, probe, place: the library's own */
    told = take_small(&from, TOLD_DONE + 1);
    head.callback = take_small(&from, CALLBACK_GIVEN_UP + 1);
    take(&from, 1); /* has a time-out */
    head.due_ms = take_time(&from);
    head.updated_ms = take_time(&from);
    head.ended_ms = take_time(&from);
    head.acked_ms = take_time(&from);
    take_time(&from); /* run_until */
    take_time(&from); /* where on the wheel */
    head.created_ms = take_time(&from);
    head.dispatched_ms = take_time(&from);
    head.epoch = (uint32_t)take(&from, 4);
    head.timeout_ms = take_time(&from);
    head.owner = (unsigned)take(&from, 4);
    head.max_attempts = take_small(&from, JOB_ATTEMPTS_MAX + 1);
    take(&from, 2); /* keyed, result outside */
    take_text(&from, head.node, sizeof head.node);
    take_text(&from, head.type, sizeof head.type);
    take_text(&from, head.reason, sizeof head.reason);
    if (from.short_of)
        return false;
    *ret_head = head;
    *ret_job = (struct wire_job){
        .result = from.left ? (struct str){(const char *)from.at, from.left} : STR_NONE,
        .done_once = told == TOLD_DONE,
    };
    return true;
}

struct str wire_history(const struct store_head *head, struct arena *arena)
{
    struct buf attempts = {0};
    struct str text;

    attempts_add(&attempts, head, JOB_EV_DONE, STR_NONE, head->ended_ms);
    text = arena_str(arena, buf_view(&attempts));
    buf_free(&attempts);
    return text;
}

struct wire_state wire_state_read(struct str state)
{
    struct bytes from = bytes_of(state);
    struct wire_state read = {0};

    read.now_ms = (int64_t)take(&from, 8);
    read.order = take(&from, 8);
    take(&from, 8); /* of the sweep */
    read.version = (int64_t)take(&from, 8);
    return read;
}

static void take_counts(struct bytes *from, struct lease_node *counts)
{
    counts->health = (enum node_health)take_small(from, NODE_HEALTH_COUNT);
    counts->reserved = (int32_t)take(from, 4);
    counts->running = (int32_t)take(from, 4);
    counts->max = (int32_t)take(from, 4);
    counts->epoch = (uint32_t)take(from, 4);
}

bool wire_node_read(struct str packed, struct wire_node *ret_node)
{
    struct bytes from = bytes_of(packed);
    struct wire_node node = {0};

    if (!packed.at)
        return false;
    take_counts(&from, &node.counts);
    node.own = (enum node_health)take_small(&from, NODE_HEALTH_COUNT);
    node.admin = (enum node_admin)take_small(&from, NODE_ADMIN_DRAINING + 1);
    node.known = take_small(&from, 2);
    node.registered_ms = (int64_t)take(&from, 8);
    node.version = (int64_t)take(&from, 8);
    if (!from.short_of)
        *ret_node = node;
    return !from.short_of;
}

static bool read_counts(struct str packed, struct lease_node *ret_counts)
{
    struct bytes from = bytes_of(packed);
    struct lease_node counts = {0};

    take_counts(&from, &counts);
    if (!from.short_of)
        *ret_counts = counts;
    return !from.short_of;
}

/* A record goes with the id of its job before it. */
static bool read_job(struct str text, struct store_head *ret_head, struct wire_job *ret_job)
{
    if (text.len <= JOB_ID_TEXT || !job_id_parse((struct str){text.at, JOB_ID_TEXT}, &ret_head->id))
        return false;
    return wire_job_read((struct str){text.at + JOB_ID_TEXT, text.len - JOB_ID_TEXT}, ret_head,
                         ret_job);
}

static const redisReply *part(const redisReply *answer, size_t at)
{
    return at < answer->elements ? answer->element[at] : NULL;
}

static int64_t number(const redisReply *answer, size_t at)
{
    const redisReply *reply = part(answer, at);

    return reply && reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
}

/* What the verbs that come with every job begin with is one text: small numbers, counters if there
 * are any, and the head. */
static bool read_rest(struct store_op *op, struct bytes *from, struct wire_job *ret_job)
{
    struct str rest;

    if (take(from, 1) == '1') {
        if (from->left < COUNTS_BYTES ||
            !read_counts((struct str){(const char *)from->at, COUNTS_BYTES}, &op->counts))
            return false;
        take(from, 8);
        take(from, 8);
        take(from, 1);
    }
    rest = (struct str){(const char *)from->at, from->left};
    return !from->short_of && (rest.len == 0 || read_job(rest, &op->head, ret_job));
}

static bool read_put(struct store_op *op, struct bytes *from)
{
    struct wire_job job;
    size_t tried;

    op->u.put.duplicate = take(from, 1);
    if (op->verb == STORE_RESERVE)
        op->u.put.probe = take(from, 1);
    else
        take(from, 1);
    op->u.put.chosen = (int)take(from, 1) - 1;
    tried = (size_t)take(from, 1);
    if (op->verb != STORE_RESERVE)
        return read_rest(op, from, &job);
    if (tried > op->u.put.candidate_count || op->u.put.chosen >= (int)op->u.put.candidate_count)
        return false;
    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        uint64_t why = i < tried ? take(from, 1) - '0' : 0;

        if (why >= LEASE_REASON_COUNT)
            return false;
        op->u.put.candidates[i].tried = i < tried;
        if (i < tried)
            op->u.put.candidates[i].why = (enum lease_reason)why;
    }
    return read_rest(op, from, &job);
}

static struct str kept(struct arena *arena, struct str text)
{
    return text.at ? arena_str(arena, text) : STR_NONE;
}

/* "FINGERPRINT KEY", the former in hexadecimal digits. */
static void read_key(struct store_record *record, struct str text, struct arena *arena)
{
    struct str key = text, digits = str_cut(&key, ' ');
    char hex[2 * sizeof record->fingerprint + 1];

    if (!key.len || !str_copy(digits, hex, sizeof hex))
        return;
    record->idem = arena_str(arena, key);
    record->fingerprint = strtoull(hex, NULL, 16);
}

static void read_record(struct store_op *op, const redisReply *answer)
{
    if (!op->arena || !answer)
        return;
    op->record = (struct store_record){
        .head = op->head,
        .spec = kept(op->arena, redis_text(part(answer, 1))),
        .history = kept(op->arena, redis_text(part(answer, 2))),
        .result = kept(op->arena, redis_text(part(answer, 3))),
    };
    read_key(&op->record, redis_text(part(answer, 4)), op->arena);
}

static bool read_settle(struct store_op *op, struct bytes *from)
{
    bool duplicate = take(from, 1);
    uint64_t ended = take(from, 1); /* 1: a lease; 2: that of a job that was cancelled before */
    int event = take_small(from, BREAKER_RECOVERED + 1);
    struct wire_job job = {0};

    if (op->verb != STORE_ADOPT) {
        op->u.settle.duplicate = duplicate;
        op->u.settle.ended_lease = ended > 0;
        op->u.settle.stopped = ended > 1;
        op->u.settle.breaker = (enum breaker_event)event;
    }
    if (op->verb == STORE_FINISH)
        op->record = (struct store_record){0};
    return read_rest(op, from, &job);
}

/* `list`: the answer, if it goes on behind its text. */
static bool read_packed(struct store_op *op, struct str text, const redisReply *list)
{
    struct bytes from = bytes_of(text);
    uint64_t code = take(&from, 1) - ANSWER_MARK;
    bool put = op->verb == STORE_PUT || op->verb == STORE_RESERVE;

    op->head.id = 0;
    if (from.short_of || code >= COUNT_OF(errors))
        return false;
    op->err = errors[code];
    if (!(put ? read_put(op, &from) : read_settle(op, &from)))
        return false;
    read_record(op, list);
    return true;
}

static bool read_renew(struct store_op *op, const redisReply *answer)
{
    struct str unknown = redis_text(part(answer, 3));
    size_t count = op->u.renew.runs ? op->u.renew.count : 0;

    if (unknown.len != count)
        return false;
    for (size_t i = 0; i < count; i++)
        op->u.renew.runs[i].unknown = unknown.at[i] != '0';
    return true;
}

static bool read_due(struct store_op *op, const redisReply *answer)
{
    size_t count = 0;

    for (size_t i = 3; i < answer->elements && count < op->u.due.max; i++) {
        struct str text = redis_text(answer->element[i]);
        struct store_due *due = &op->u.due.items[count++];
        const unsigned char *small;

        *due = (struct store_due){0};
        if (text.len < JOB_ID_TEXT + 3 ||
            !job_id_parse((struct str){text.at, JOB_ID_TEXT}, &due->id))
            return false;
        small = (const unsigned char *)text.at + JOB_ID_TEXT;
        if (small[1] >= JOB_STATE_COUNT || small[2] > LEASE_RUNNING)
            return false;
        due->attempt = small[0];
        due->state = (enum job_state)small[1];
        due->lease = (enum lease_kind)small[2];
        str_copy((struct str){text.at + JOB_ID_TEXT + 3, text.len - JOB_ID_TEXT - 3}, due->node,
                 sizeof due->node);
    }
    op->u.due.count = count;
    return true;
}

static bool read_node_put(struct store_op *op, const redisReply *answer)
{
    op->u.node_put.created = number(answer, 3);
    op->u.node_put.version = number(answer, 4);
    op->u.node_put.registered_ms = number(answer, 5);
    return true;
}

static bool read_tell(struct store_op *op, const redisReply *answer)
{
    op->u.tell.heard = number(answer, 3);
    return true;
}

static int by_node_and_type(const void *a, const void *b)
{
    const struct store_breaker *left = a;
    const struct store_breaker *right = b;
    int order = str_cmp(left->node, right->node);

    return order ? order : str_cmp(left->type, right->type);
}

/* "state,failures,opened,probe until,node|type" */
static bool read_breaker(struct str text, struct arena *arena, struct store_breaker *ret_breaker)
{
    int64_t values[4];
    struct str node;

    for (size_t i = 0; i < COUNT_OF(values); i++)
        if (!str_int(str_cut(&text, ','), &values[i]))
            return false;
    node = str_cut(&text, '|');
    if (!text.at || values[0] < 0 || values[0] >= BREAKER_STATE_COUNT)
        return false;
    *ret_breaker = (struct store_breaker){
        .node = arena_str(arena, node),
        .type = arena_str(arena, text),
        .breaker = {.state = (enum breaker_state)values[0],
                    .failures = (int32_t)values[1],
                    .opened_ms = values[2],
                    .probe_until_ms = values[3] >= WIRE_FOREVER ? LEASE_FOREVER : values[3]},
    };
    return true;
}

static bool read_breakers(struct store_op *op, const redisReply *answer)
{
    size_t count = answer->elements - 3;
    struct store_breaker *items = arena_array(op->arena, struct store_breaker, count);

    for (size_t i = 0; i < count; i++)
        if (!read_breaker(redis_text(answer->element[i + 3]), op->arena, &items[i]))
            return false;
    qsort(items, count, sizeof *items, by_node_and_type);
    op->u.breakers.items = items;
    op->u.breakers.count = count;
    return true;
}

/* What a verb answers beyond its error, the head and the counters. */
static bool (*const readers[STORE_VERB_COUNT])(struct store_op *op, const redisReply *answer) = {
    [STORE_RENEW] = read_renew,       [STORE_DUE] = read_due,   [STORE_NODE_PUT] = read_node_put,
    [STORE_BREAKERS] = read_breakers, [STORE_TELL] = read_tell,
};

static bool is_packed(enum store_verb verb)
{
    return verb == STORE_PUT || verb == STORE_RESERVE || verb == STORE_COMMIT ||
           verb == STORE_FINISH || verb == STORE_ADOPT;
}

unsigned wire_number(const redisReply *answer)
{
    int64_t value = answer->type == REDIS_REPLY_ARRAY ? number(answer, 3) : 0;

    return value > 0 && value < STORE_NUMBERS ? (unsigned)value : 0;
}

int64_t wire_more(const redisReply *answer)
{
    return answer->type == REDIS_REPLY_ARRAY ? number(answer, 3) : 0;
}

/* What a step of lua/columns.lua answers: all went as it nearly always does. */
static bool read_fast(struct store_op *op, struct str counts, struct str packed)
{
    struct wire_job job;

    op->err = ERR_OK;
    op->head.id = op->job;
    if (op->verb == STORE_RESERVE) {
        if (op->u.put.candidate_count == 0)
            return false;
        op->u.put.duplicate = op->u.put.probe = false;
        op->u.put.chosen = 0;
        for (size_t i = 0; i < op->u.put.candidate_count; i++)
            op->u.put.candidates[i].tried = i == 0;
        op->u.put.candidates[0].why = LEASE_OK;
    } else {
        op->u.settle.duplicate = op->u.settle.stopped = false;
        op->u.settle.ended_lease = op->verb == STORE_FINISH;
        op->u.settle.breaker = BREAKER_NO_EVENT;
        if (op->verb == STORE_FINISH)
            op->record = (struct store_record){0};
    }
    return read_counts(counts, &op->counts) && wire_job_read(packed, &op->head, &job);
}

/* The counters of a node, which begin with a small number, and not the answer of a verb. */
static bool is_counts(struct str text)
{
    return text.len == COUNTS_BYTES && (unsigned char)text.at[0] < ANSWER_MARK;
}

static bool read_list(struct store_op *op, const redisReply *answer)
{
    struct wire_job job;
    int64_t code = number(answer, 0);
    struct str head = redis_text(answer->element[1]);
    struct str counts = redis_text(answer->element[2]);

    if (code < 0 || code >= (int64_t)COUNT_OF(errors))
        return false;
    op->err = errors[code];
    op->head.id = 0;
    if ((head.at && !read_job(head, &op->head, &job)) ||
        (counts.at && !read_counts(counts, &op->counts)))
        return false;
    if (op->err == ERR_TOO_LATE || !readers[op->verb])
        return true;
    return readers[op->verb](op, answer);
}

bool wire_answer(struct store_op *op, const redisReply *reply, size_t *at)
{
    const redisReply *answer = part(reply, (*at)++);

    if (!answer)
        return false;
    if (answer->type == REDIS_REPLY_STRING) {
        if (!is_packed(op->verb))
            return false;
        if (!is_counts(redis_text(answer)))
            return read_packed(op, redis_text(answer), NULL);
        return read_fast(op, redis_text(answer), redis_text(part(reply, (*at)++)));
    }
    if (answer->type != REDIS_REPLY_ARRAY || answer->elements < 3)
        return false;
    if (answer->element[0]->type == REDIS_REPLY_STRING)
        return is_packed(op->verb) && read_packed(op, redis_text(answer->element[0]), answer);
    return read_list(op, answer);
}
