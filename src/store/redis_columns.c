/* Writes them. Numbers inside of texts are packed as struct.unpack of Lua reads them: little end
 * first, nothing between. */
#include "store/redis_columns.h"

#include "base/json.h"
#include "store/redis_wire.h"

#include <assert.h>
#include <string.h>

enum { CODES, IDS, NODES, FIRSTS, SECONDS, THIRDS, RESTS };

/* A code, see lua/columns.lua: the verb, and what is true of the row. */
enum {
    CODE_PUT = 1,
    CODE_RESERVE = 2,
    CODE_COMMIT = 3,
    CODE_FINISH = 4,
    CODE_FAST = 8,          /* nothing about it is out of the ordinary */
    CODE_OTHER_BUCKET = 16, /* than the row before */
    CODE_MORE_TEXT = 32,    /* a session, a result */
};

enum { SCRATCH_MAX = 768 }; /* a reserve with three more long names */

static_assert(SCRATCH_MAX > 64 + STORE_CANDIDATES_MAX * (NODE_ID_MAX + 8) + POOL_LANG_MAX,
              "every text fits");

struct scratch {
    char at[SCRATCH_MAX];
    size_t len;
};

static void put_begin(struct scratch *to)
{
    to->len = 0;
}

static void put_number(struct scratch *to, int64_t value, size_t width)
{
    uint64_t bits = (uint64_t)wire_bounded(value);

    assert(to->len + width <= SCRATCH_MAX);
    for (size_t i = 0; i < width; i++, bits >>= 8)
        to->at[to->len++] = (char)bits;
}

static void put_bytes(struct scratch *to, struct str text)
{
    assert(to->len + text.len <= SCRATCH_MAX);
    if (text.len)
        memcpy(to->at + to->len, text.at, text.len);
    to->len += text.len;
}

/* A name with its length before it. */
static void put_name(struct scratch *to, struct str name)
{
    assert(name.len <= UINT8_MAX);
    put_number(to, (int64_t)name.len, 1);
    put_bytes(to, name);
}

/* Longer than any node's is nobody's name. */
static struct str node_name(struct str name)
{
    return name.len <= NODE_ID_MAX ? name : STR("");
}

/* MessagePack. */

static void add_text(struct buf *column, struct str text)
{
    unsigned char head[3] = {0xda, (unsigned char)(text.len >> 8), (unsigned char)text.len};

    assert(text.len <= UINT16_MAX);
    if (text.len < 32) {
        head[0] = (unsigned char)(0xa0 | text.len);
        buf_add(column, head, 1);
    } else {
        buf_add(column, head, sizeof head);
    }
    buf_add(column, text.at, text.len);
}

static void add_number(struct buf *column, int64_t value)
{
    unsigned char bytes[9] = {0xd3};

    if (value >= 0 && value < 128) {
        bytes[0] = (unsigned char)value;
        buf_add(column, bytes, 1);
        return;
    }
    for (size_t i = 0; i < 8; i++)
        bytes[8 - i] = (unsigned char)((uint64_t)value >> (8 * i));
    buf_add(column, bytes, sizeof bytes);
}

static void add_scratch(struct buf *column, const struct scratch *text)
{
    add_text(column, (struct str){text->at, text->len});
}

/* What every row begins with. */
static void add_row(struct columns *columns, int code, const struct store_op *op, struct str node,
                    int64_t not_after_ms)
{
    char id[JOB_ID_TEXT + 1];

    job_id_text(op->job, id);
    if (memcmp(columns->bucket, id, COLUMN_BUCKET) != 0)
        code |= CODE_OTHER_BUCKET;
    memcpy(columns->bucket, id, COLUMN_BUCKET);
    if ((code & CODE_FAST) && not_after_ms &&
        (!columns->early_ms || not_after_ms < columns->early_ms))
        columns->early_ms = not_after_ms;
    add_number(&columns->of[CODES], code);
    add_text(&columns->of[IDS], (struct str){id, JOB_ID_TEXT});
    add_text(&columns->of[NODES], node_name(node));
    columns->ops++;
    columns->rows++;
}

/* A new job with a candidate, as nearly all are. */
static bool put_is_plain(const struct store_op *op, size_t count)
{
    return op->verb == STORE_RESERVE && op->job && op->attempt == 1 && count > 0 &&
           op->u.put.spec.at && !op->u.put.idem.at && op->u.put.max_attempts >= 1 &&
           op->u.put.max_attempts <= JOB_ATTEMPTS_MAX && op->u.put.type.len <= POOL_LANG_MAX &&
           op->u.put.candidates[0].node.len <= NODE_ID_MAX;
}

/* How long it is reserved, and what of that is seen in the first bytes of a record. */
static void put_term(struct scratch *to, const struct store_op *op)
{
    put_begin(to);
    put_number(to, op->u.put.ttl_ms, 8);
    put_number(to, op->u.put.callback, 1);
    put_number(to, op->u.put.timeout_ms > 0, 1);
}

/* What the record of a new job has from its time-out to its reason. */
static void put_record(struct scratch *to, const struct store_op *op, struct str node,
                       struct str type)
{
    put_begin(to);
    put_number(to, op->u.put.timeout_ms, 6);
    put_number(to, op->u.put.owner, 4);
    put_number(to, op->u.put.max_attempts, 1);
    put_number(to, 0, 2); /* no Idempotency-Key, no result outside */
    put_bytes(to, node_name(node));
    put_number(to, 0, 1);
    put_bytes(to, type);
    put_number(to, 0, 2);
}

/* What only the verb reads. */
static void put_rest(struct scratch *to, const struct store_op *op, struct str type, size_t count,
                     int64_t not_after_ms)
{
    put_begin(to);
    put_number(to, op->u.put.spec.at != NULL, 1);
    put_number(to, op->u.put.session.at != NULL, 1);
    put_number(to, op->u.put.idem.at != NULL, 1);
    put_number(to, op->attempt, 4);
    put_number(to, op->u.put.hold_ms, 8);
    put_number(to, op->u.put.max_attempts, 4);
    put_number(to, not_after_ms, 8);
    put_name(to, type);
    put_number(to, (int64_t)count, 1);
    for (size_t i = 1; i < count; i++) {
        put_number(to, op->u.put.candidates[i].spare, 4);
        put_name(to, node_name(op->u.put.candidates[i].node));
    }
}

static struct column_texts put_texts(const struct store_op *op, struct arena *arena)
{
    struct column_texts texts = {.count = 0};

    if (op->u.put.spec.at)
        texts.items[texts.count++] = op->u.put.spec;
    if (op->u.put.session.at) {
        texts.items[texts.count++] = op->u.put.session;
        texts.items[texts.count++] = op->u.put.pool;
        texts.items[texts.count++] = op->u.put.lang_pair;
    }
    if (op->u.put.idem.at) {
        texts.items[texts.count++] = op->u.put.idem;
        texts.items[texts.count++] =
            arena_fmt(arena, "%llx", (unsigned long long)op->u.put.fingerprint);
    }
    return texts;
}

static struct column_texts add_put(struct columns *columns, const struct store_op *op,
                                   int64_t not_after_ms, struct arena *arena)
{
    bool reserve = op->verb == STORE_RESERVE;
    size_t count = reserve ? op->u.put.candidate_count : 0;
    struct str node = count ? op->u.put.candidates[0].node : STR("");
    struct str type = op->u.put.type;
    int code = (reserve ? CODE_RESERVE : CODE_PUT) | (put_is_plain(op, count) ? CODE_FAST : 0) |
               (op->u.put.session.at ? CODE_MORE_TEXT : 0);
    struct scratch text;

    assert(count <= STORE_CANDIDATES_MAX);
    if (type.len > POOL_LANG_MAX)
        type.len = POOL_LANG_MAX + 1; /* the verb refuses it: one that is longer than any will do */
    add_row(columns, code, op, node, not_after_ms);
    add_number(&columns->of[FIRSTS], count ? op->u.put.candidates[0].spare : 0);
    put_term(&text, op);
    add_scratch(&columns->of[SECONDS], &text);
    put_record(&text, op, node, type);
    add_scratch(&columns->of[THIRDS], &text);
    put_rest(&text, op, type, count, not_after_ms);
    add_scratch(&columns->of[RESTS], &text);
    return put_texts(op, arena);
}

/* From its node, about an attempt there can be. */
static bool is_plain(const struct store_op *op)
{
    return op->job && op->node.len && op->node.len <= NODE_ID_MAX && op->attempt >= 1 &&
           op->attempt <= JOB_ATTEMPTS_MAX;
}

/* Of one that may be fast all but this is known. */
static void add_bound(struct buf *column, int64_t not_after_ms)
{
    add_number(column, wire_bounded(not_after_ms));
}

static struct column_texts add_commit(struct columns *columns, const struct store_op *op,
                                      int64_t not_after_ms, struct arena *arena)
{
    struct scratch text;

    add_row(columns, CODE_COMMIT | (is_plain(op) ? CODE_FAST : 0), op, op->node, not_after_ms);
    add_number(&columns->of[FIRSTS], op->attempt);
    put_begin(&text);
    put_number(&text, op->u.settle.running_ttl_ms, 8);
    put_number(&text, op->u.settle.stop_grace_ms, 8);
    add_scratch(&columns->of[SECONDS], &text);
    add_number(&columns->of[THIRDS], 0);
    if (is_plain(op)) {
        add_bound(&columns->of[RESTS], not_after_ms);
        return (struct column_texts){.count = 0};
    }
    put_begin(&text);
    put_number(&text, op->node.at != NULL, 1);
    put_number(&text, not_after_ms, 8);
    add_scratch(&columns->of[RESTS], &text);
    return (struct column_texts){.count = 0};
}

static void finish_rest(struct scratch *to, const struct store_op *op, struct str reason,
                        int64_t not_after_ms)
{
    bool blames =
        op->u.settle.outcome == STORE_FAIL && breaker_blames(reason.len ? reason : STR("FAILED"));

    put_begin(to);
    put_number(to, op->node.at != NULL, 1);
    put_number(to, not_after_ms, 8);
    put_number(to, op->u.settle.outcome, 1);
    put_number(to, op->u.settle.result.at != NULL, 1);
    put_number(to, reason.len > 0, 1);
    put_number(to, op->u.settle.candidates_left, 1);
    put_number(to, op->u.settle.want_record, 1);
    put_number(to, blames, 1);
    put_number(to, op->u.settle.owner, 4);
    put_number(to, op->u.settle.hold_ms, 8);
}

/* The reason also as JSON: the library writes the list of attempts, but knows no escapes. */
static struct column_texts finish_texts(const struct store_op *op, struct str reason,
                                        struct arena *arena)
{
    struct column_texts texts = {.count = 0};
    struct buf quoted = {0};

    if (op->u.settle.result.at)
        texts.items[texts.count++] = op->u.settle.result;
    if (!reason.len)
        return texts;
    json_quote(&quoted, reason);
    texts.items[texts.count++] = reason;
    texts.items[texts.count++] = arena_str(arena, buf_view(&quoted));
    buf_free(&quoted);
    return texts;
}

static struct column_texts add_finish(struct columns *columns, const struct store_op *op,
                                      int64_t not_after_ms, struct arena *arena)
{
    struct str reason = op->u.settle.reason;
    bool done = op->u.settle.outcome == STORE_DONE;
    bool plain = done && is_plain(op) && op->u.settle.result.len <= WIRE_RESULT_MAX &&
                 !op->u.settle.want_record;
    struct scratch text;

    assert(op->u.settle.outcome < STORE_OUTCOME_COUNT);
    if (reason.len > STORE_REASON_MAX)
        reason.len = STORE_REASON_MAX;
    if (done)
        reason.len = 0; /* the end of a good run has none */
    add_row(columns,
            CODE_FINISH | (plain ? CODE_FAST : 0) | (op->u.settle.result.at ? CODE_MORE_TEXT : 0),
            op, op->node, not_after_ms);
    add_number(&columns->of[FIRSTS], op->attempt);
    add_number(&columns->of[SECONDS], 0);
    add_number(&columns->of[THIRDS], 0);
    if (plain) {
        add_bound(&columns->of[RESTS], not_after_ms);
    } else {
        finish_rest(&text, op, reason, not_after_ms);
        add_scratch(&columns->of[RESTS], &text);
    }
    return finish_texts(op, reason, arena);
}

typedef struct column_texts add_op(struct columns *columns, const struct store_op *op,
                                   int64_t not_after_ms, struct arena *arena);

struct column_texts columns_add(struct columns *columns, const struct store_op *op,
                                int64_t not_after_ms, struct arena *arena)
{
    static add_op *const verbs[STORE_VERB_COUNT] = {
        [STORE_PUT] = add_put,
        [STORE_RESERVE] = add_put,
        [STORE_COMMIT] = add_commit,
        [STORE_FINISH] = add_finish,
    };

    assert(op->verb < STORE_VERB_COUNT && verbs[op->verb]);
    return verbs[op->verb](columns, op, not_after_ms, arena);
}

void columns_skip(struct columns *columns)
{
    add_number(&columns->of[CODES], 0);
    columns->ops++;
}

void columns_begin(struct columns *columns)
{
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        columns->of[i].len = 0;
    columns->ops = columns->rows = 0;
    columns->early_ms = 0;
    memset(columns->bucket, 0, sizeof columns->bucket);
}

struct str columns_pack(struct columns *columns)
{
    assert(columns->rows <= columns->ops && columns->ops <= UINT16_MAX);
    columns->packed.len = 0;
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        size_t count = i == CODES ? columns->ops : columns->rows;
        unsigned char head[3] = {0xdc, (unsigned char)(count >> 8), (unsigned char)count};

        buf_add(&columns->packed, head, sizeof head);
        if (columns->of[i].len)
            buf_add(&columns->packed, columns->of[i].at, columns->of[i].len);
    }
    return buf_view(&columns->packed);
}

void columns_free(struct columns *columns)
{
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        buf_free(&columns->of[i]);
    buf_free(&columns->packed);
}
