/* Writes ops. Texts of ops are borrowed: an op stays until its batch is answered. */
#include "store/redis_wire.h"

#include "base/json.h"
#include "base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct wire *wire, const char *at, size_t len)
{
    if (wire->count == wire->cap) {
        wire->cap = wire->cap ? wire->cap * 2 : 256;
        wire->texts = mem_resize(wire->texts, wire->cap * sizeof *wire->texts);
        wire->lens = mem_resize(wire->lens, wire->cap * sizeof *wire->lens);
    }
    wire->texts[wire->count] = len ? at : "";
    wire->lens[wire->count++] = len;
    wire->bytes += len;
}

static void add_text(struct wire *wire, struct str text)
{
    add(wire, text.at, text.len);
}

static void add_word(struct wire *wire, const char *word)
{
    add(wire, word, strlen(word));
}

static void add_int(struct wire *wire, int64_t value)
{
    char *digits = arena_raw(&wire->arena, 24);
    size_t at = 24;
    int64_t known = value > WIRE_FOREVER    ? WIRE_FOREVER
                    : value < -WIRE_FOREVER ? -WIRE_FOREVER
                                            : value;
    uint64_t left = (uint64_t)(known < 0 ? -known : known);

    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (known < 0)
        digits[--at] = '-';
    add(wire, digits + at, 24 - at);
}

/* Job 0 is no job: an empty text. */
static void add_job(struct wire *wire, uint64_t id)
{
    char *text;

    if (id == 0) {
        add(wire, "", 0);
        return;
    }
    text = arena_raw(&wire->arena, JOB_ID_TEXT + 1);
    job_id_text(id, text);
    add(wire, text, JOB_ID_TEXT);
}

/* Numbers packed as struct.unpack of lua/batch.lua reads them: little end first, nothing between.
 */
struct pack {
    char *at;
    size_t len;
};

enum { PACK_MAX = 1024 }; /* a reserve with four long names */

static_assert(PACK_MAX > 128 + STORE_CANDIDATES_MAX * (NODE_ID_MAX + 8) + POOL_LANG_MAX,
              "every op fits");

static void pack_number(struct pack *pack, int64_t value, size_t width)
{
    uint64_t bits = (uint64_t)(value > WIRE_FOREVER    ? WIRE_FOREVER
                               : value < -WIRE_FOREVER ? -WIRE_FOREVER
                                                       : value);

    assert(pack->len + width <= PACK_MAX);
    for (size_t i = 0; i < width; i++, bits >>= 8)
        pack->at[pack->len++] = (char)bits;
}

static void pack_bytes(struct pack *pack, const char *at, size_t len)
{
    assert(pack->len + len <= PACK_MAX);
    if (len)
        memcpy(pack->at + pack->len, at, len);
    pack->len += len;
}

static void pack_flags(struct pack *pack, const bool *set, size_t count)
{
    for (size_t i = 0; i < count; i++)
        pack_number(pack, set[i], 1);
}

/* A name with its length before it. Longer than any node's is nobody's name. */
static void pack_name(struct pack *pack, struct str name)
{
    size_t len = name.len <= NODE_ID_MAX ? name.len : 0;

    pack_number(pack, (int64_t)len, 1);
    pack_bytes(pack, name.at, len);
}

/* `mark`: 0 tells that lua/fast.lua need not try. */
static struct pack pack_begin(struct wire *wire, char letter, uint64_t job, int mark,
                              int64_t not_after_ms)
{
    struct pack pack = {.at = arena_raw(&wire->arena, PACK_MAX)};
    char id[JOB_ID_TEXT + 1];

    job_id_text(job, id);
    pack_bytes(&pack, &letter, 1);
    pack_bytes(&pack, id, JOB_ID_TEXT);
    pack_number(&pack, mark, 1);
    pack_number(&pack, not_after_ms, 8);
    return pack;
}

static void pack_end(struct wire *wire, const struct pack *pack)
{
    /* The last piece of the arena: it shrinks where it is. */
    add(wire, arena_resize(&wire->arena, pack->at, PACK_MAX, pack->len), pack->len);
}

void wire_begin(struct wire *wire, const struct wire_head *head)
{
    struct pack pack;

    arena_reset(&wire->arena);
    wire->count = wire->bytes = 0;
    wire->ops = 0;
    add_word(wire, "FCALL");
    add_word(wire, head->function);
    add_word(wire, "2");
    add_word(wire, REDIS_KEY "n");
    add_word(wire, REDIS_KEY "none");
    pack = (struct pack){.at = wire->head};
    pack_number(&pack, head->now_ms, 8);
    pack_number(&pack, head->late_ms, 8);
    pack_number(&pack, head->retention_ms > 0 ? head->retention_ms : 0, 8);
    pack_number(&pack, head->breaker_threshold, 8);
    pack_number(&pack, head->breaker_cooldown_ms, 8);
    pack_number(&pack, head->moved, 1);
    assert(pack.len + 4 == sizeof wire->head);
    add(wire, wire->head, sizeof wire->head);
    add_word(wire, head->instance);
    add_word(wire, head->generation);
    add_word(wire, head->known);
}

struct redis_args wire_args(struct wire *wire)
{
    struct pack pack = {.at = wire->head, .len = sizeof wire->head - 4};

    pack_number(&pack, wire->ops, 4);
    return (struct redis_args){.count = (int)wire->count, .texts = wire->texts, .lens = wire->lens};
}

void wire_free(struct wire *wire)
{
    arena_free(&wire->arena);
    free(wire->texts);
    free(wire->lens);
    *wire = (struct wire){0};
}

/* A new job with a candidate, as nearly all are: 1, with a session 2. */
static int put_mark(const struct store_op *op, size_t count)
{
    bool plain = op->verb == STORE_RESERVE && op->job && op->attempt == 1 && count > 0 &&
                 op->u.put.spec.at && !op->u.put.idem.at && op->u.put.max_attempts >= 1 &&
                 op->u.put.max_attempts <= JOB_ATTEMPTS_MAX &&
                 op->u.put.type.len <= POOL_LANG_MAX &&
                 op->u.put.candidates[0].node.len <= NODE_ID_MAX;

    return !plain ? 0 : op->u.put.session.at ? 2 : 1;
}

/* What stands in the record of a new job between its times and its texts. */
static void pack_tail(struct pack *pack, const struct store_op *op)
{
    pack_number(pack, op->u.put.timeout_ms, 6);
    pack_number(pack, op->u.put.owner, 4);
    pack_number(pack, op->u.put.max_attempts, 1);
    pack_number(pack, op->u.put.callback, 1);
    pack_number(pack, 0, 1); /* no Idempotency-Key */
    pack_number(pack, 0, 1); /* no result outside */
}

/* Its type too long is for the verb to refuse: one that is longer than any will do. */
static void pack_type(struct pack *pack, struct str type)
{
    if (type.len > POOL_LANG_MAX)
        type.len = POOL_LANG_MAX + 1;
    pack_number(pack, (int64_t)type.len + 3, 1);
    pack_number(pack, 0, 1);
    pack_bytes(pack, type.at, type.len);
    pack_number(pack, 0, 2);
}

static void write_put(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    const bool set[] = {op->u.put.spec.at, op->u.put.idem.at, op->u.put.session.at};
    const struct store_candidate *candidates = op->u.put.candidates;
    size_t count = op->verb == STORE_RESERVE ? op->u.put.candidate_count : 0;
    struct pack pack = pack_begin(wire, op->verb == STORE_RESERVE ? 'R' : 'P', op->job,
                                  put_mark(op, count), not_after_ms);

    assert(count <= STORE_CANDIDATES_MAX);
    pack_number(&pack, count ? candidates[0].spare : 0, 4);
    pack_number(&pack, op->u.put.ttl_ms, 8);
    pack_tail(&pack, op);
    pack_name(&pack, count ? candidates[0].node : STR_NONE);
    pack_type(&pack, op->u.put.type);
    pack_flags(&pack, set, COUNT_OF(set));
    pack_number(&pack, op->attempt, 4);
    pack_number(&pack, op->u.put.hold_ms, 8);
    pack_number(&pack, op->u.put.max_attempts, 4);
    pack_number(&pack, (int64_t)count, 1);
    for (size_t i = 1; i < count; i++) {
        pack_number(&pack, candidates[i].spare, 4);
        pack_name(&pack, candidates[i].node);
    }
    pack_end(wire, &pack);
    if (op->u.put.spec.at)
        add_text(wire, op->u.put.spec);
    if (op->u.put.session.at) {
        add_text(wire, op->u.put.session);
        add_text(wire, op->u.put.pool);
        add_text(wire, op->u.put.lang_pair);
    }
    if (op->u.put.idem.at) {
        add_text(wire, op->u.put.idem);
        add_text(wire, arena_fmt(&wire->arena, "%llx", (unsigned long long)op->u.put.fingerprint));
    }
}

/* From its node, about an attempt there can be. */
static bool is_plain(const struct store_op *op)
{
    return op->job && op->node.len && op->node.len <= NODE_ID_MAX && op->attempt >= 1 &&
           op->attempt <= JOB_ATTEMPTS_MAX;
}

static void pack_node(struct pack *pack, struct str node)
{
    pack_number(pack, node.at != NULL, 1);
    if (node.len <= NODE_ID_MAX)
        pack_bytes(pack, node.at, node.len);
}

static void write_commit(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    struct pack pack = pack_begin(wire, 'C', op->job, is_plain(op), not_after_ms);

    pack_number(&pack, op->attempt, 4);
    pack_number(&pack, op->u.settle.running_ttl_ms, 8);
    pack_number(&pack, op->u.settle.stop_grace_ms, 8);
    pack_node(&pack, op->node);
    pack_end(wire, &pack);
}

/* The reason also as JSON: the library writes the list of attempts, but knows no escapes. */
static void add_reason(struct wire *wire, struct str reason)
{
    struct buf quoted = {0};

    json_quote(&quoted, reason);
    add_text(wire, reason);
    add_text(wire, arena_str(&wire->arena, buf_view(&quoted)));
    buf_free(&quoted);
}

static void write_finish(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    struct str reason = op->u.settle.reason;
    bool done = op->u.settle.outcome == STORE_DONE;
    bool plain = done && is_plain(op) && op->u.settle.result.len <= WIRE_RESULT_MAX &&
                 !op->u.settle.want_record;
    struct pack pack = pack_begin(wire, 'F', op->job, plain, not_after_ms);

    assert(op->u.settle.outcome < STORE_OUTCOME_COUNT);
    if (reason.len > STORE_REASON_MAX)
        reason.len = STORE_REASON_MAX;
    if (done)
        reason.len = 0; /* the end of a good run has none */
    const bool set[] = {
        op->u.settle.result.at,
        reason.len,
        op->u.settle.candidates_left,
        op->u.settle.want_record,
        op->u.settle.outcome == STORE_FAIL && breaker_blames(reason.len ? reason : STR("FAILED")),
    };
    pack_number(&pack, op->attempt, 4);
    pack_number(&pack, op->u.settle.outcome, 1);
    pack_flags(&pack, set, COUNT_OF(set));
    pack_number(&pack, op->u.settle.owner, 4);
    pack_number(&pack, op->u.settle.hold_ms, 8);
    pack_node(&pack, op->node);
    pack_end(wire, &pack);
    if (op->u.settle.result.at)
        add_text(wire, op->u.settle.result);
    if (reason.len)
        add_reason(wire, reason);
}

static void write_renew(struct wire *wire, const struct store_op *op)
{
    const struct store_run *runs = op->u.renew.runs;
    size_t count = runs ? op->u.renew.count : 0;

    add_text(wire, op->node);
    add_int(wire, op->u.renew.ttl_ms);
    add_word(wire, runs ? "0" : "1");
    add_int(wire, (int64_t)count);
    for (size_t i = 0; i < count; i++) {
        add_job(wire, runs[i].id);
        add_int(wire, runs[i].attempt);
    }
}

static void write_hold(struct wire *wire, const struct store_op *op)
{
    add_int(wire, op->u.hold.owner);
    add_int(wire, op->u.hold.hold_ms);
    add_int(wire, (int64_t)op->u.hold.count);
    for (size_t i = 0; i < op->u.hold.count; i++)
        add_job(wire, op->u.hold.ids[i]);
}

static void write_adopt(struct wire *wire, const struct store_op *op)
{
    add_job(wire, op->job);
    add_int(wire, op->u.hold.owner);
    add_int(wire, op->u.hold.hold_ms);
}

static void write_due(struct wire *wire, const struct store_op *op)
{
    add_int(wire, (int64_t)op->u.due.max);
}

static void write_node_put(struct wire *wire, const struct store_op *op)
{
    char *flags = arena_raw(&wire->arena, 3);
    size_t len = 0;

    if (op->u.node_put.facts.at)
        flags[len++] = 'f';
    if (op->u.node_put.set_admin)
        flags[len++] = 'a';
    if (op->u.node_put.new_epoch)
        flags[len++] = 'e';
    add_text(wire, op->node);
    add(wire, flags, len);
    add_int(wire, op->u.node_put.own);
    add_int(wire, op->u.node_put.health);
    add_int(wire, op->u.node_put.max);
    add_int(wire, op->u.node_put.admin);
    add_int(wire, op->u.node_put.if_epoch);
    if (op->u.node_put.facts.at)
        add_text(wire, op->u.node_put.facts);
    if (op->u.node_put.set_admin)
        add_text(wire, op->u.node_put.admin_reason);
}

static void write_node(struct wire *wire, const struct store_op *op)
{
    add_text(wire, op->node);
}

static void write_callback(struct wire *wire, const struct store_op *op)
{
    add_job(wire, op->job);
    add_word(wire, op->u.callback.given_up ? "1" : "0");
}

static void write_nothing(struct wire *wire, const struct store_op *op)
{
}

static void write_reset(struct wire *wire, const struct store_op *op)
{
    add_text(wire, op->node);
    add_text(wire, op->u.breaker.type);
}

/* Nobody is "". */
static void add_name(struct wire *wire, uint32_t name)
{
    char *text = arena_raw(&wire->arena, STORE_NAME_TEXT + 1);

    snprintf(text, STORE_NAME_TEXT + 1, "%08" PRIx32, name);
    add(wire, text, name ? STORE_NAME_TEXT : 0);
}

static void write_tell(struct wire *wire, const struct store_op *op)
{
    add_name(wire, op->u.tell.to);
    add_text(wire, op->u.tell.text);
}

static void write_link(struct wire *wire, const struct store_op *op)
{
    add_text(wire, op->node);
    add_int(wire, op->u.link.kind);
    add_int(wire, (int64_t)op->u.link.incarnation);
}

static void write_seen(struct wire *wire, const struct store_op *op)
{
    add_text(wire, op->u.seen.text);
    add_int(wire, (int64_t)op->u.seen.count);
    for (size_t i = 0; i < op->u.seen.count; i++) {
        const struct store_seen *seen = &op->u.seen.items[i];

        add_text(wire, seen->node);
        add_text(wire, arena_fmt(&wire->arena, "%d %d %d %d", seen->level, seen->cpu_pm,
                                 seen->gpu_pm, seen->mem_pm));
    }
}

static void write_claim(struct wire *wire, const struct store_op *op)
{
    add_job(wire, op->job);
    add_int(wire, op->u.callback.hold_ms);
}

/* Those that come with every job are packed, letter and all; of the others each value is an
 * argument. The verbs that are missing here are reads, see redis_read.c. */
static const struct {
    const char *letter; /* of lua/batch.lua */
    void (*write)(struct wire *wire, const struct store_op *op);
    void (*write_packed)(struct wire *wire, const struct store_op *op, int64_t not_after_ms);
} verbs[STORE_VERB_COUNT] = {
    [STORE_PUT] = {.write_packed = write_put},
    [STORE_RESERVE] = {.write_packed = write_put},
    [STORE_COMMIT] = {.write_packed = write_commit},
    [STORE_FINISH] = {.write_packed = write_finish},
    [STORE_RENEW] = {.letter = "N", .write = write_renew},
    [STORE_HOLD] = {.letter = "H", .write = write_hold},
    [STORE_ADOPT] = {.letter = "A", .write = write_adopt},
    [STORE_DUE] = {.letter = "D", .write = write_due},
    [STORE_NODE_PUT] = {.letter = "M", .write = write_node_put},
    [STORE_NODE_DROP] = {.letter = "X", .write = write_node},
    [STORE_CALLBACK_DONE] = {.letter = "K", .write = write_callback},
    [STORE_BREAKERS] = {.letter = "B", .write = write_nothing},
    [STORE_BREAKER_RESET] = {.letter = "Z", .write = write_reset},
    [STORE_TELL] = {.letter = "S", .write = write_tell},
    [STORE_LINK] = {.letter = "U", .write = write_link},
    [STORE_SEEN] = {.letter = "E", .write = write_seen},
    [STORE_CLAIM] = {.letter = "V", .write = write_claim},
};

void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    assert(op->verb < STORE_VERB_COUNT);
    assert(verbs[op->verb].letter || verbs[op->verb].write_packed);
    wire->ops++;
    if (verbs[op->verb].write_packed) {
        verbs[op->verb].write_packed(wire, op, not_after_ms);
        return;
    }
    add_word(wire, verbs[op->verb].letter);
    verbs[op->verb].write(wire, op);
    add_int(wire, not_after_ms);
}

/* Our own have no bound. */
static void begin_own(struct wire *wire, const char *verb)
{
    add_word(wire, verb);
    wire->ops++;
}

static void end_own(struct wire *wire)
{
    add_int(wire, 0);
}

void wire_arrive(struct wire *wire, const char *version, int64_t running_ttl_ms)
{
    begin_own(wire, "I");
    add_word(wire, version);
    add_int(wire, running_ttl_ms);
    end_own(wire);
}

void wire_stay(struct wire *wire, const char *version)
{
    begin_own(wire, "Y");
    add_word(wire, version);
    end_own(wire);
}

void wire_tidy(struct wire *wire, int64_t jobs_max)
{
    begin_own(wire, "T");
    add_int(wire, jobs_max > 0 ? jobs_max : 0);
    end_own(wire);
}

void wire_leave(struct wire *wire, unsigned number)
{
    begin_own(wire, "L");
    add_int(wire, number);
    end_own(wire);
}
