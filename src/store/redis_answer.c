/* Reads what the function library answers, and trusts none of it: a library of another build, or a
 * key somebody wrote by hand, must not become an index out of range. */
#include "store/attempts.h"
#include "store/redis_wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ERROR(name) ERR_##name,
static const enum err errors[WIRE_ERROR_COUNT] = {WIRE_ERRORS(ERROR)};

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

static int take_small(struct bytes *from, int limit)
{
    int value = (int)take(from, 1);

    if (value >= limit)
        from->short_of = true;
    return value < limit ? value : 0;
}

static struct bytes bytes_of(struct str text)
{
    return (struct bytes){.at = (const unsigned char *)text.at, .left = text.len};
}

static int64_t time_of(int64_t value)
{
    return value >= WIRE_FOREVER ? LEASE_FOREVER : value;
}

/* A number that becomes an index: out of range it is 0, and *ok false. */
static int small(int64_t value, int limit, bool *ok)
{
    if (value >= 0 && value < limit)
        return (int)value;
    *ok = false;
    return 0;
}

bool wire_job_read(struct str packed, int64_t offset_ms, struct store_head *ret_head,
                   struct wire_job *ret_job)
{
    struct store_head head = {.id = ret_head->id};
    struct record record;
    const int64_t *numbers = record.numbers;
    bool ok = true;

    if (!record_read(&record_job, packed, NULL, &record))
        return false;
    head.state = (enum job_state)small(numbers[RECORD_JOB_state], JOB_STATE_COUNT, &ok);
    head.lease = (enum lease_kind)small(numbers[RECORD_JOB_lease], LEASE_RUNNING + 1, &ok);
    head.attempt = small(numbers[RECORD_JOB_attempt], JOB_ATTEMPTS_MAX + 1, &ok);
    head.callback = small(numbers[RECORD_JOB_callback], CALLBACK_GIVEN_UP + 1, &ok);
    head.max_attempts = small(numbers[RECORD_JOB_max], JOB_ATTEMPTS_MAX + 1, &ok);
    head.due_ms = time_of(numbers[RECORD_JOB_due]);
    if (head.due_ms && head.due_ms != LEASE_FOREVER)
        head.due_ms += offset_ms;
    head.updated_ms = time_of(numbers[RECORD_JOB_updated]);
    head.ended_ms = time_of(numbers[RECORD_JOB_ended]);
    head.acked_ms = time_of(numbers[RECORD_JOB_acked]);
    head.created_ms = time_of(numbers[RECORD_JOB_created]);
    head.dispatched_ms = time_of(numbers[RECORD_JOB_dispatched]);
    head.timeout_ms = time_of(numbers[RECORD_JOB_timeout]);
    head.epoch = (uint32_t)numbers[RECORD_JOB_epoch];
    head.owner = (unsigned)numbers[RECORD_JOB_owner];
    head.lane = (uint64_t)numbers[RECORD_JOB_lane];
    head.priority = (int)numbers[RECORD_JOB_priority];
    if (!str_copy(record.texts[RECORD_JOB_node], head.node, sizeof head.node) ||
        !str_copy(record.texts[RECORD_JOB_type], head.type, sizeof head.type) ||
        !str_copy(record.texts[RECORD_JOB_reason], head.reason, sizeof head.reason) || !ok)
        return false;
    *ret_head = head;
    *ret_job = (struct wire_job){
        .result = record.rest.len ? record.rest : STR_NONE,
        .done_once = numbers[RECORD_JOB_told] == RECORD_TOLD_DONE,
        .has_key = numbers[RECORD_JOB_has_key],
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

bool wire_state_read(struct str state, struct wire_state *ret_state)
{
    struct record record;

    if (!record_read(&record_state, state, NULL, &record))
        return false;
    *ret_state = (struct wire_state){
        .now_ms = record.numbers[RECORD_STATE_now],
        .order = (uint64_t)record.numbers[RECORD_STATE_order],
        .version = record.numbers[RECORD_STATE_version],
        .offset_ms = record.numbers[RECORD_STATE_offset],
    };
    return true;
}

static bool counts_of(const struct record *record, struct lease_node *ret_counts)
{
    bool ok = true;
    struct lease_node counts = {
        .health =
            (enum node_health)small(record->numbers[RECORD_NODE_health], NODE_HEALTH_COUNT, &ok),
        .reserved = (int32_t)record->numbers[RECORD_NODE_reserved],
        .running = (int32_t)record->numbers[RECORD_NODE_running],
        .max = (int32_t)record->numbers[RECORD_NODE_max],
        .epoch = (uint32_t)record->numbers[RECORD_NODE_epoch],
    };

    if (ok)
        *ret_counts = counts;
    return ok;
}

bool wire_node_read(struct str packed, struct wire_node *ret_node)
{
    struct wire_node node = {0};
    struct record record;
    bool ok = true;

    if (!record_read(&record_node, packed, NULL, &record) || !counts_of(&record, &node.counts))
        return false;
    node.own = (enum node_health)small(record.numbers[RECORD_NODE_own], NODE_HEALTH_COUNT, &ok);
    node.admin =
        (enum node_admin)small(record.numbers[RECORD_NODE_admin], NODE_ADMIN_DRAINING + 1, &ok);
    node.known = record.numbers[RECORD_NODE_known];
    node.registered_ms = record.numbers[RECORD_NODE_registered];
    node.version = record.numbers[RECORD_NODE_version];
    if (ok)
        *ret_node = node;
    return ok;
}

/* The beginning of a node's record; *ret_rest is what stands behind it. */
static bool read_counts(struct str packed, struct lease_node *ret_counts, struct str *ret_rest)
{
    struct record record;

    if (!record_read(&record_node, packed, "facts", &record) || !counts_of(&record, ret_counts))
        return false;
    *ret_rest = record.rest;
    return true;
}

/* A record goes with the id of its job before it. */
static bool read_job(struct str text, int64_t offset_ms, struct store_head *ret_head,
                     struct wire_job *ret_job)
{
    if (text.len <= JOB_ID_TEXT || !job_id_parse((struct str){text.at, JOB_ID_TEXT}, &ret_head->id))
        return false;
    return wire_job_read((struct str){text.at + JOB_ID_TEXT, text.len - JOB_ID_TEXT}, offset_ms,
                         ret_head, ret_job);
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
static bool read_rest(struct store_op *op, struct bytes *from, int64_t offset_ms,
                      struct wire_job *ret_job)
{
    bool has_counts = take(from, 1) == '1';
    struct str rest = {(const char *)from->at, from->left};

    if (from->short_of || (has_counts && !read_counts(rest, &op->counts, &rest)))
        return false;
    return rest.len == 0 || read_job(rest, offset_ms, &op->head, ret_job);
}

static bool read_put(struct store_op *op, struct bytes *from, int64_t offset_ms)
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
        return read_rest(op, from, offset_ms, &job);
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
    return read_rest(op, from, offset_ms, &job);
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

static bool read_settle(struct store_op *op, struct bytes *from, int64_t offset_ms)
{
    bool duplicate = take(from, 1);
    uint64_t ended = take(from, 1); /* 1: a lease; 2: that of a job that was cancelled before */
    int event = take_small(from, BREAKER_RECOVERED + 1);
    struct wire_job job = {0};

    op->u.settle.duplicate = duplicate;
    op->u.settle.ended_lease = ended > 0;
    op->u.settle.stopped = ended > 1;
    op->u.settle.breaker = (enum breaker_event)event;
    if (op->verb == STORE_FINISH)
        op->record = (struct store_record){0};
    return read_rest(op, from, offset_ms, &job);
}

/* `list`: the answer, if it goes on behind its text. */
static bool read_packed(struct store_op *op, struct str text, const redisReply *list,
                        int64_t offset_ms)
{
    struct bytes from = bytes_of(text);
    uint64_t code = take(&from, 1) - WIRE_ANSWER_MARK;
    bool put = op->verb == STORE_PUT || op->verb == STORE_RESERVE;

    op->head.id = 0;
    if (from.short_of || code >= COUNT_OF(errors))
        return false;
    op->err = errors[code];
    if (!(put ? read_put(op, &from, offset_ms) : read_settle(op, &from, offset_ms)))
        return false;
    read_record(op, list);
    return true;
}

/* Of the whole list, or of those that were left for later, the first of them. */
static bool read_renew(struct store_op *op, const redisReply *answer)
{
    struct str unknown = redis_text(part(answer, 3));
    size_t count = op->u.renew.runs ? op->u.renew.count : 0;
    size_t later = wire_renew_later(op), at = 0;
    size_t sent = !later ? count : later < WIRE_RENEW_MAX ? later : WIRE_RENEW_MAX;

    if (unknown.len != sent)
        return false;
    for (size_t i = 0; at < sent; i++) {
        struct store_run *run = &op->u.renew.runs[i];

        if (later && !run->later)
            continue;
        run->unknown = unknown.at[at] != '0';
        run->later = unknown.at[at] == '2';
        at++;
    }
    op->u.renew.more = number(answer, 4) > 0 || wire_renew_later(op) > 0;
    return true;
}

static bool read_due(struct store_op *op, const redisReply *answer)
{
    size_t count = 0;

    for (size_t i = 3; i < answer->elements && count < op->u.due.max; i++) {
        struct str text = redis_text(answer->element[i]);
        struct store_due *due = &op->u.due.items[count++];
        struct bytes from;

        *due = (struct store_due){0};
        if (text.len < JOB_ID_TEXT || !job_id_parse((struct str){text.at, JOB_ID_TEXT}, &due->id))
            return false;
        from = bytes_of((struct str){text.at + JOB_ID_TEXT, text.len - JOB_ID_TEXT});
        due->attempt = (int)take(&from, 1);
        due->state = (enum job_state)take_small(&from, JOB_STATE_COUNT);
        due->lease = (enum lease_kind)take_small(&from, LEASE_RUNNING + 1);
        due->lane = take(&from, WIRE_LANE);
        if (from.short_of)
            return false;
        str_copy((struct str){(const char *)from.at, from.left}, due->node, sizeof due->node);
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
           verb == STORE_FINISH;
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
static bool read_fast(struct store_op *op, struct str counts, struct str packed, int64_t offset_ms)
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
    return read_counts(counts, &op->counts, &counts) &&
           wire_job_read(packed, offset_ms, &op->head, &job);
}

/* The counters of a node, which begin with their format, and not the answer of a verb. */
static bool is_counts(struct str text)
{
    return text.len && (unsigned char)text.at[0] < WIRE_ANSWER_MARK;
}

static bool read_list(struct store_op *op, const redisReply *answer, int64_t offset_ms)
{
    struct wire_job job;
    int64_t code = number(answer, 0);
    struct str head = redis_text(answer->element[1]);
    struct str counts = redis_text(answer->element[2]);

    if (code < 0 || code >= (int64_t)COUNT_OF(errors))
        return false;
    op->err = errors[code];
    op->head.id = 0;
    if ((head.at && !read_job(head, offset_ms, &op->head, &job)) ||
        (counts.at && !read_counts(counts, &op->counts, &counts)))
        return false;
    if (op->err == ERR_TOO_LATE || !readers[op->verb])
        return true;
    return readers[op->verb](op, answer);
}

bool wire_answer(struct store_op *op, const redisReply *reply, size_t *at)
{
    const redisReply *answer = part(reply, (*at)++);
    int64_t offset_ms = number(reply, WIRE_ANSWERS - 1);

    if (!answer)
        return false;
    if (answer->type == REDIS_REPLY_STRING) {
        if (!is_packed(op->verb))
            return false;
        if (!is_counts(redis_text(answer)))
            return read_packed(op, redis_text(answer), NULL, offset_ms);
        return read_fast(op, redis_text(answer), redis_text(part(reply, (*at)++)), offset_ms);
    }
    if (answer->type != REDIS_REPLY_ARRAY || answer->elements < 3)
        return false;
    if (answer->element[0]->type == REDIS_REPLY_STRING)
        return is_packed(op->verb) &&
               read_packed(op, redis_text(answer->element[0]), answer, offset_ms);
    return read_list(op, answer, offset_ms);
}
