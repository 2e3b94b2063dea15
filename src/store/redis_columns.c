/* Encodes ops as columns. */
#include "store/redis_columns.h"

#include "base/json.h"
#include "store/redis_wire.h"

#include <assert.h>
#include <string.h>

enum { CODES, FIRSTS, KINDS, IDS, NODES, TERMS }; /* in the order they are sent */

enum {
    SCRATCH_MAX = 768,     /* a reserve with three more long names */
    DEMAND_TERM_MAX = 192, /* bytes of a demand that is part of a term */
};

static_assert(22 + POOL_LANG_MAX + 1 + DEMAND_TERM_MAX <= UINT8_MAX, "a term fits");
static_assert(SCRATCH_MAX > 96 + STORE_CANDIDATES_MAX * (NODE_ID_MAX + 8) + POOL_LANG_MAX,
              "every text fits");

struct scratch {
    char at[SCRATCH_MAX];
    size_t len;
};

static void put_numbers(struct scratch *to, const char *format, const int64_t *values, size_t count)
{
    for (const char *at = format + 1; *at; at++) {
        size_t width = *at == 'B' ? 1 : (size_t)(*++at - '0');
        uint64_t bits = (uint64_t)wire_bounded(*values++);

        assert(count > 0 && to->len + width <= SCRATCH_MAX);
        count--;
        for (size_t i = 0; i < width; i++, bits >>= 8)
            to->at[to->len++] = (char)bits;
    }
    assert(count == 0);
}

#define PUT(to, format, ...)                                                                       \
    put_numbers(to, format, (const int64_t[]){__VA_ARGS__},                                        \
                sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void put_bytes(struct scratch *to, struct str text)
{
    assert(to->len + text.len <= SCRATCH_MAX);
    if (text.len)
        memcpy(to->at + to->len, text.at, text.len);
    to->len += text.len;
}

/* A length-prefixed name. */
static void put_name(struct scratch *to, struct str name)
{
    assert(name.len <= UINT8_MAX);
    PUT(to, "<B", (int64_t)name.len);
    put_bytes(to, name);
}

/* A name longer than any node's is sent as empty. */
static struct str node_name(struct str name)
{
    return name.len <= NODE_ID_MAX ? name : STR("");
}

/* The rest of a row that may be fast is known. */
static void put_bound(struct scratch *to, int64_t not_after_ms)
{
    to->len = 0;
    PUT(to, COLUMN_BOUND, not_after_ms);
}

static void add_byte(struct buf *column, int value)
{
    char byte = (char)value;

    assert(value >= 0 && value <= UINT8_MAX);
    buf_add(column, &byte, 1);
}

static void add_rest(struct columns *columns, const struct scratch *rest)
{
    char len[2] = {(char)rest->len, (char)(rest->len >> 8)};

    buf_add(&columns->rests, len, sizeof len);
    buf_add(&columns->rests, rest->at, rest->len);
}

/* Index of the term, from 1; 0: there are too many. */
static int term_kind(struct columns *columns, const struct scratch *term)
{
    struct buf *terms = &columns->of[TERMS];
    size_t at = 0;

    assert(term->len <= UINT8_MAX);
    for (size_t i = 1; i <= columns->terms; i++) {
        size_t len = (unsigned char)terms->at[at];

        if (len == term->len && memcmp(terms->at + at + 1, term->at, len) == 0)
            return (int)i;
        at += 1 + len;
    }
    if (columns->terms == COLUMN_TERMS_MAX)
        return 0;
    add_byte(terms, (int)term->len);
    buf_add(terms, term->at, term->len);
    return (int)++columns->terms;
}

/* `first` and `kind` are for the fast steps; a row without them is not fast. */
static void add_row(struct columns *columns, int code, const struct store_op *op, struct str node,
                    int64_t not_after_ms, int first, int kind)
{
    char id[JOB_ID_TEXT + 1];

    job_id_text(op->job, id);
    if (memcmp(columns->bucket, id, RECORD_BUCKET) != 0)
        code |= COLUMN_OTHER_BUCKET;
    memcpy(columns->bucket, id, RECORD_BUCKET);
    if ((code & COLUMN_FAST) && not_after_ms &&
        (!columns->early_ms || not_after_ms < columns->early_ms))
        columns->early_ms = not_after_ms;
    add_byte(&columns->of[CODES], code);
    add_byte(&columns->of[FIRSTS], first);
    add_byte(&columns->of[KINDS], kind);
    buf_add(&columns->of[IDS], id, JOB_ID_TEXT);
    buf_str(&columns->of[NODES], node_name(node));
    add_byte(&columns->of[NODES], 0);
    columns->ops++;
    columns->rows++;
}

/* The common case: a new job with a candidate. */
static bool put_is_plain(const struct store_op *op, size_t count)
{
    struct str demand = op->u.put.demand;
    struct demand read;

    return op->verb == STORE_RESERVE && !op->u.put.last && op->job && op->attempt == 1 &&
           count > 0 && op->u.put.spec.at && !op->u.put.idem.at &&
           /* The demand can be part of a term. */
           (!demand.len || (demand.len <= DEMAND_TERM_MAX && demand_parse(demand, &read))) &&
           op->u.put.max_attempts >= 1 && op->u.put.max_attempts <= JOB_ATTEMPTS_MAX &&
           op->u.put.type.len <= POOL_LANG_MAX && op->u.put.candidates[0].node.len <= NODE_ID_MAX &&
           op->u.put.candidates[0].withheld >= 0 && op->u.put.candidates[0].withheld <= UINT8_MAX;
}

/* The name of the first candidate is in the column of nodes. */
static void put_candidates(struct scratch *to, const struct store_op *op, size_t count)
{
    PUT(to, COLUMN_COUNT_REST, count ? op->u.put.candidates[0].withheld : 0, (int64_t)count);
    for (size_t i = 1; i < count; i++) {
        PUT(to, COLUMN_NODE_REST, op->u.put.candidates[i].withheld);
        put_name(to, node_name(op->u.put.candidates[i].node));
    }
}

/* The values only the verb reads; a plain row has them in its term. */
static void put_rest_long(struct scratch *to, const struct store_op *op, size_t count,
                          int64_t not_after_ms)
{
    const struct store_bounds *bounds = &op->u.put.bounds;
    struct str type = op->u.put.type;
    char lane[WIRE_LANE];

    if (type.len > POOL_LANG_MAX)
        type.len = POOL_LANG_MAX + 1; /* truncated but still too long, so the verb refuses it */
    to->len = 0;
    PUT(to, COLUMN_PUT_REST, op->u.put.last, op->u.put.spec.at != NULL, op->u.put.idem.at != NULL,
        op->u.put.demand.len > 0, op->attempt, op->u.put.hold_ms, op->u.put.ttl_ms,
        op->u.put.callback, op->u.put.timeout_ms, op->u.put.owner, op->u.put.max_attempts,
        not_after_ms);
    put_name(to, type);
    put_candidates(to, op, count);
    if (op->verb != STORE_PUT)
        return;
    wire_lane(op->u.put.lane, lane); /* 64 bits do not fit the library's numbers */
    put_bytes(to, (struct str){lane, sizeof lane});
    PUT(to, COLUMN_WAIT_REST, op->u.put.priority, op->u.put.wait_ms, bounds->lane_max,
        bounds->all_max, bounds->account.bytes, bounds->account.jobs_max, bounds->account.bytes_max,
        bounds->keys);
    put_name(to, bounds->account.name);
}

/* `in_term`: the demand is in the term. */
static struct column_texts put_texts(const struct store_op *op, bool in_term, struct arena *arena)
{
    struct column_texts texts = {.count = 0};
    struct demand demand;

    if (op->u.put.demand.len && !in_term)
        texts.items[texts.count++] =
            demand_parse(op->u.put.demand, &demand) ? op->u.put.demand : STR(WIRE_UNREADABLE);
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
    int code =
        (reserve ? COLUMN_RESERVE : COLUMN_PUT) | (op->u.put.session.at ? COLUMN_MORE_TEXT : 0);
    int kind = 0;
    struct scratch text;

    assert(count <= STORE_CANDIDATES_MAX);
    if (put_is_plain(op, count)) {
        text.len = 0; /* the values many jobs share */
        PUT(&text, COLUMN_PUT_TERM, op->u.put.ttl_ms, op->u.put.callback, op->u.put.timeout_ms,
            op->u.put.owner, op->u.put.max_attempts);
        put_bytes(&text, op->u.put.type);
        if (op->u.put.demand.len) {
            put_bytes(&text, (struct str){"", 1});
            put_bytes(&text, op->u.put.demand);
        }
        kind = term_kind(columns, &text);
    }
    if (kind) {
        put_bound(&text, not_after_ms);
        put_candidates(&text, op, count);
        code |= COLUMN_FAST | (op->u.put.fresh ? COLUMN_FRESH : 0);
        add_row(columns, code, op, node, not_after_ms, op->u.put.candidates[0].withheld, kind);
    } else {
        put_rest_long(&text, op, count, not_after_ms);
        add_row(columns, code, op, node, not_after_ms, 0, 0);
    }
    add_rest(columns, &text);
    return put_texts(op, kind != 0, arena);
}

/* From a node, about a possible attempt. */
static bool is_plain(const struct store_op *op)
{
    return op->job && op->node.len && op->node.len <= NODE_ID_MAX && op->attempt >= 1 &&
           op->attempt <= JOB_ATTEMPTS_MAX;
}

static struct column_texts add_commit(struct columns *columns, const struct store_op *op,
                                      int64_t not_after_ms, struct arena *arena)
{
    int more = op->u.settle.send_id ? COLUMN_MORE_TEXT : 0;
    int kind = 0;
    struct column_texts texts = {.count = 0};
    struct scratch text;

    if (is_plain(op)) {
        text.len = 0;
        PUT(&text, COLUMN_ACK_TERM, op->u.settle.terms.task_ms, op->u.settle.terms.f2f_ms,
            op->u.settle.stop_grace_ms);
        kind = term_kind(columns, &text);
    }
    if (kind) {
        put_bound(&text, not_after_ms);
        add_row(columns, COLUMN_ACK | COLUMN_FAST | more, op, op->node, not_after_ms, op->attempt,
                kind);
    } else {
        text.len = 0;
        PUT(&text, COLUMN_ACK_REST, op->node.at != NULL, op->attempt, not_after_ms,
            op->u.settle.terms.task_ms, op->u.settle.terms.f2f_ms, op->u.settle.stop_grace_ms);
        add_row(columns, COLUMN_ACK | more, op, op->node, not_after_ms, 0, 0);
    }
    add_rest(columns, &text);
    if (op->u.settle.send_id) { /* in the record's encoding */
        text.len = 0;
        PUT(&text, COLUMN_SEND, op->u.settle.send_id);
        texts.items[texts.count++] = arena_str(arena, (struct str){text.at, text.len});
    }
    return texts;
}

/* Only a FAIL holds a key. */
static bool holds_key(const struct store_op *op)
{
    return op->u.settle.outcome == STORE_FAIL && op->u.settle.hold_key.at;
}

static void finish_rest(struct scratch *to, const struct store_op *op, struct str reason,
                        int64_t not_after_ms)
{
    bool fail = op->u.settle.outcome == STORE_FAIL;
    bool speaks = !op->u.settle.command && /* about the node */
                  (op->u.settle.outcome == STORE_DONE ||
                   (fail && breaker_blames(reason.len ? reason : STR("FAILED"))));

    to->len = 0;
    PUT(to, COLUMN_FINISH_REST, op->node.at != NULL, op->attempt, not_after_ms,
        op->u.settle.outcome, reason.len > 0, op->u.settle.candidates_left,
        op->u.settle.want_record, speaks, op->u.settle.owner, op->u.settle.hold_ms, holds_key(op),
        op->u.settle.hold_key_ms);
}

/* The reason also as JSON: the library writes the list of attempts but cannot escape strings. */
static struct column_texts finish_texts(const struct store_op *op, struct str reason,
                                        struct arena *arena)
{
    struct column_texts texts = {.count = 0};
    struct buf quoted = {0};

    if (op->u.settle.result.at)
        texts.items[texts.count++] = op->u.settle.result;
    if (reason.len) {
        json_quote(&quoted, reason);
        texts.items[texts.count++] = reason;
        texts.items[texts.count++] = arena_str(arena, buf_view(&quoted));
        buf_free(&quoted);
    }
    if (holds_key(op)) {
        texts.items[texts.count++] = op->u.settle.hold_key;
        texts.items[texts.count++] =
            op->u.settle.hold_reason.len ? op->u.settle.hold_reason : reason;
    }
    return texts;
}

static struct column_texts add_finish(struct columns *columns, const struct store_op *op,
                                      int64_t not_after_ms, struct arena *arena)
{
    struct str reason = op->u.settle.reason;
    bool done = op->u.settle.outcome == STORE_DONE;
    bool plain = done && is_plain(op) && op->u.settle.result.len <= WIRE_RESULT_MAX &&
                 !op->u.settle.want_record && !op->u.settle.command;
    struct scratch text;

    assert(op->u.settle.outcome < STORE_OUTCOME_COUNT);
    if (reason.len > STORE_REASON_MAX)
        reason.len = STORE_REASON_MAX;
    if (done)
        reason.len = 0; /* a success has none */
    add_row(columns,
            COLUMN_FINISH | (plain ? COLUMN_FAST : 0) |
                (op->u.settle.result.at ? COLUMN_MORE_TEXT : 0),
            op, op->node, not_after_ms, plain ? op->attempt : 0, 0);
    if (plain)
        put_bound(&text, not_after_ms);
    else
        finish_rest(&text, op, reason, not_after_ms);
    add_rest(columns, &text);
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
        [STORE_ACK] = add_commit,
        [STORE_FINISH] = add_finish,
    };

    assert(op->verb < STORE_VERB_COUNT && verbs[op->verb]);
    return verbs[op->verb](columns, op, not_after_ms, arena);
}

void columns_skip(struct columns *columns)
{
    add_byte(&columns->of[CODES], 0);
    columns->ops++;
}

void columns_begin(struct columns *columns)
{
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        columns->of[i].len = 0;
    columns->rests.len = 0;
    columns->ops = columns->rows = columns->terms = 0;
    columns->early_ms = 0;
    memset(columns->bucket, 0, sizeof columns->bucket);
}

struct str columns_pack(struct columns *columns)
{
    assert(columns->rows <= columns->ops && columns->terms <= COLUMN_TERMS_MAX);
    columns->packed.len = 0;
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        if (columns->of[i].len)
            buf_add(&columns->packed, columns->of[i].at, columns->of[i].len);
    return buf_view(&columns->packed);
}

void columns_free(struct columns *columns)
{
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        buf_free(&columns->of[i]);
    buf_free(&columns->rests);
    buf_free(&columns->packed);
}
