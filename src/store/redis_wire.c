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

enum { PACK_MAX = 128 };

static struct pack pack_begin(struct wire *wire, uint64_t job)
{
    struct pack pack = {.at = arena_raw(&wire->arena, PACK_MAX)};

    job_id_text(job, pack.at);
    pack.len = JOB_ID_TEXT;
    return pack;
}

static void pack_number(struct pack *pack, int64_t value, size_t width)
{
    uint64_t bits = (uint64_t)(value > WIRE_FOREVER    ? WIRE_FOREVER
                               : value < -WIRE_FOREVER ? -WIRE_FOREVER
                                                       : value);

    assert(pack->len + width <= PACK_MAX);
    for (size_t i = 0; i < width; i++, bits >>= 8)
        pack->at[pack->len++] = (char)bits;
}

static void pack_flags(struct pack *pack, const bool *set, size_t count)
{
    for (size_t i = 0; i < count; i++)
        pack_number(pack, set[i], 1);
}

void wire_begin(struct wire *wire, const struct wire_head *head)
{
    arena_reset(&wire->arena);
    wire->count = wire->bytes = 0;
    wire->ops = 0;
    add_word(wire, "FCALL");
    add_word(wire, head->function);
    add_word(wire, "2");
    add_word(wire, REDIS_KEY "n");
    add_word(wire, REDIS_KEY "none");
    add_int(wire, head->now_ms);
    add_int(wire, head->late_ms);
    add_word(wire, head->instance);
    add_word(wire, head->generation);
    add_int(wire, head->retention_ms > 0 ? head->retention_ms : 0);
    add_int(wire, head->breaker_threshold);
    add_int(wire, head->breaker_cooldown_ms);
    wire->ops_at = wire->count;
    add_word(wire, "0");
}

struct redis_args wire_args(struct wire *wire)
{
    size_t end = wire->count;

    add_int(wire, wire->ops); /* written behind the others, then put in its place */
    wire->texts[wire->ops_at] = wire->texts[end];
    wire->lens[wire->ops_at] = wire->lens[end];
    wire->count = end;
    return (struct redis_args){.count = (int)wire->count, .texts = wire->texts, .lens = wire->lens};
}

void wire_free(struct wire *wire)
{
    arena_free(&wire->arena);
    free(wire->texts);
    free(wire->lens);
    *wire = (struct wire){0};
}

static void write_put(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    const bool set[] = {op->u.put.spec.at, op->u.put.type.at, op->u.put.idem.at,
                        op->u.put.session.at, op->u.put.callback};
    size_t count = op->verb == STORE_RESERVE ? op->u.put.candidate_count : 0;
    struct pack pack = pack_begin(wire, op->job);

    assert(count <= STORE_CANDIDATES_MAX);
    pack_flags(&pack, set, COUNT_OF(set));
    pack_number(&pack, not_after_ms, 8);
    pack_number(&pack, op->attempt, 4);
    pack_number(&pack, op->u.put.max_attempts, 4);
    pack_number(&pack, op->u.put.timeout_ms, 8);
    pack_number(&pack, op->u.put.owner, 8);
    pack_number(&pack, op->u.put.hold_ms, 8);
    pack_number(&pack, op->u.put.ttl_ms, 8);
    pack_number(&pack, (int64_t)count, 1);
    for (size_t i = 0; i < STORE_CANDIDATES_MAX; i++)
        pack_number(&pack, i < count ? op->u.put.candidates[i].spare : 0, 4);
    add(wire, pack.at, pack.len);
    if (op->u.put.spec.at)
        add_text(wire, op->u.put.spec);
    if (op->u.put.type.at)
        add_text(wire, op->u.put.type);
    if (op->u.put.idem.at) {
        struct str text =
            arena_fmt(&wire->arena, "%llx", (unsigned long long)op->u.put.fingerprint);

        add_text(wire, op->u.put.idem);
        add_text(wire, text);
    }
    if (op->u.put.session.at) {
        add_text(wire, op->u.put.session);
        add_text(wire, op->u.put.pool);
        add_text(wire, op->u.put.lang_pair);
    }
    for (size_t i = 0; i < count; i++)
        add_text(wire, op->u.put.candidates[i].node);
}

static void write_commit(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    struct pack pack = pack_begin(wire, op->job);

    pack_number(&pack, op->node.at != NULL, 1);
    pack_number(&pack, not_after_ms, 8);
    pack_number(&pack, op->attempt, 4);
    pack_number(&pack, op->u.settle.running_ttl_ms, 8);
    pack_number(&pack, op->u.settle.stop_grace_ms, 8);
    add(wire, pack.at, pack.len);
    if (op->node.at)
        add_text(wire, op->node);
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
    struct pack pack = pack_begin(wire, op->job);

    assert(op->u.settle.outcome < STORE_OUTCOME_COUNT);
    if (reason.len > STORE_REASON_MAX)
        reason.len = STORE_REASON_MAX;
    const bool set[] = {
        op->node.at,
        op->u.settle.result.at,
        reason.len,
        op->u.settle.candidates_left,
        op->u.settle.want_record,
        op->u.settle.outcome == STORE_FAIL && breaker_blames(reason.len ? reason : STR("FAILED")),
    };
    pack_flags(&pack, set, COUNT_OF(set));
    pack_number(&pack, op->u.settle.outcome, 1);
    pack_number(&pack, not_after_ms, 8);
    pack_number(&pack, op->attempt, 4);
    pack_number(&pack, op->u.settle.owner, 8);
    pack_number(&pack, op->u.settle.hold_ms, 8);
    add(wire, pack.at, pack.len);
    if (op->node.at)
        add_text(wire, op->node);
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

/* Those that come with every job are packed; of the others each value is an argument. The verbs
 * that are missing here are reads, see redis_read.c. */
static const struct {
    const char *letter; /* of lua/batch.lua */
    void (*write)(struct wire *wire, const struct store_op *op);
    void (*write_packed)(struct wire *wire, const struct store_op *op, int64_t not_after_ms);
} verbs[STORE_VERB_COUNT] = {
    [STORE_PUT] = {"P", NULL, write_put},
    [STORE_RESERVE] = {"R", NULL, write_put},
    [STORE_COMMIT] = {"C", NULL, write_commit},
    [STORE_FINISH] = {"F", NULL, write_finish},
    [STORE_RENEW] = {"N", write_renew, NULL},
    [STORE_HOLD] = {"H", write_hold, NULL},
    [STORE_ADOPT] = {"A", write_adopt, NULL},
    [STORE_DUE] = {"D", write_due, NULL},
    [STORE_NODE_PUT] = {"M", write_node_put, NULL},
    [STORE_NODE_DROP] = {"X", write_node, NULL},
    [STORE_CALLBACK_DONE] = {"K", write_callback, NULL},
    [STORE_BREAKERS] = {"B", write_nothing, NULL},
    [STORE_BREAKER_RESET] = {"Z", write_reset, NULL},
    [STORE_TELL] = {"S", write_tell, NULL},
    [STORE_LINK] = {"U", write_link, NULL},
    [STORE_SEEN] = {"E", write_seen, NULL},
    [STORE_CLAIM] = {"V", write_claim, NULL},
};

void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    assert(op->verb < STORE_VERB_COUNT && verbs[op->verb].letter);
    add_word(wire, verbs[op->verb].letter);
    wire->ops++;
    if (verbs[op->verb].write_packed) {
        verbs[op->verb].write_packed(wire, op, not_after_ms);
        return;
    }
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
