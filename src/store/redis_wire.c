/* Writes ops. Texts of ops are borrowed: an op stays until its batch is answered. */
#include "store/redis_wire.h"

#include "base/json.h"
#include "base/mem.h"

#include <assert.h>
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

static void add_flags(struct wire *wire, const char *letters, const bool *set)
{
    char *flags = arena_raw(&wire->arena, strlen(letters) + 1);
    size_t len = 0;

    for (size_t i = 0; letters[i]; i++)
        if (set[i])
            flags[len++] = letters[i];
    add(wire, flags, len);
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
    add_int(wire, head->instance);
    add_word(wire, head->generation);
    add_int(wire, head->retention_ms > 0 ? head->retention_ms : 0);
    add_int(wire, head->breaker_threshold);
    add_int(wire, head->breaker_cooldown_ms);
    add_word(wire, head->alive ? "1" : "0");
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

static void begin_op(struct wire *wire, const char *verb, int64_t not_after_ms)
{
    add_word(wire, verb);
    add_int(wire, not_after_ms);
    wire->ops++;
}

static void write_put(struct wire *wire, const struct store_op *op)
{
    const bool set[] = {op->u.put.spec.at, op->u.put.type.at, op->u.put.idem.at,
                        op->u.put.session.at, op->u.put.callback};

    add_job(wire, op->job);
    add_int(wire, op->attempt);
    add_flags(wire, "stiec", set);
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
    add_int(wire, op->u.put.max_attempts);
    add_int(wire, op->u.put.timeout_ms);
    add_int(wire, op->u.put.owner);
    add_int(wire, op->u.put.hold_ms);
    add_int(wire, op->u.put.ttl_ms);
    assert(op->u.put.candidate_count <= STORE_CANDIDATES_MAX);
    add_int(wire, op->verb == STORE_RESERVE ? (int64_t)op->u.put.candidate_count : 0);
    for (size_t i = 0; op->verb == STORE_RESERVE && i < op->u.put.candidate_count; i++) {
        add_text(wire, op->u.put.candidates[i].node);
        add_int(wire, op->u.put.candidates[i].spare);
    }
}

/* The names of lua/settle.lua. */
static const char *const outcomes[STORE_OUTCOME_COUNT] = {
    [STORE_DONE] = "done",
    [STORE_FAIL] = "fail",
    [STORE_REFUSED] = "refused",
    [STORE_SEND_FAILED] = "send_failed",
    [STORE_EXPIRE] = "expire",
    [STORE_CANCEL] = "cancel",
    [STORE_QUEUE_TIMEOUT] = "queue_timeout",
    [STORE_NO_CANDIDATE] = "no_candidate",
};

static void write_settle(struct wire *wire, const struct store_op *op, struct str reason)
{
    bool finish = op->verb == STORE_FINISH;
    struct str blamed = reason.len ? reason : STR("FAILED");
    const bool set[] = {
        op->node.at,
        finish && op->u.settle.result.at,
        finish && op->u.settle.candidates_left,
        finish && op->u.settle.want_record,
        finish && op->u.settle.outcome == STORE_FAIL && breaker_blames(blamed),
    };

    add_job(wire, op->job);
    add_int(wire, op->attempt);
    add_flags(wire, "nrlwb", set);
    if (op->node.at)
        add_text(wire, op->node);
    if (set[1])
        add_text(wire, op->u.settle.result);
}

static void write_commit(struct wire *wire, const struct store_op *op)
{
    write_settle(wire, op, STR_NONE);
    add_int(wire, op->u.settle.running_ttl_ms);
    add_int(wire, op->u.settle.stop_grace_ms);
}

/* The reason also as JSON: the library writes the list of attempts, but knows no escapes. */
static void write_finish(struct wire *wire, const struct store_op *op)
{
    struct str reason = op->u.settle.reason;
    struct buf quoted = {0};

    assert(op->u.settle.outcome < STORE_OUTCOME_COUNT);
    if (reason.len > STORE_REASON_MAX)
        reason.len = STORE_REASON_MAX;
    write_settle(wire, op, reason);
    json_quote(&quoted, reason);
    add_word(wire, outcomes[op->u.settle.outcome]);
    add_text(wire, reason);
    add_text(wire, arena_str(&wire->arena, buf_view(&quoted)));
    buf_free(&quoted);
    add_int(wire, op->u.settle.owner);
    add_int(wire, op->u.settle.hold_ms);
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
    const bool set[] = {op->u.node_put.facts.at, op->u.node_put.set_admin,
                        op->u.node_put.new_epoch};

    add_text(wire, op->node);
    add_flags(wire, "fae", set);
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

/* The other verbs are reads, see redis_read.c. */
static const struct {
    const char *letter; /* of lua/batch.lua */
    void (*write)(struct wire *wire, const struct store_op *op);
} verbs[STORE_VERB_COUNT] = {
    [STORE_PUT] = {"P", write_put},
    [STORE_RESERVE] = {"R", write_put},
    [STORE_COMMIT] = {"C", write_commit},
    [STORE_FINISH] = {"F", write_finish},
    [STORE_RENEW] = {"N", write_renew},
    [STORE_HOLD] = {"H", write_hold},
    [STORE_ADOPT] = {"A", write_adopt},
    [STORE_DUE] = {"D", write_due},
    [STORE_NODE_PUT] = {"M", write_node_put},
    [STORE_NODE_DROP] = {"X", write_node},
    [STORE_CALLBACK_DONE] = {"K", write_callback},
    [STORE_BREAKERS] = {"B", write_nothing},
    [STORE_BREAKER_RESET] = {"Z", write_reset},
};

void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    assert(op->verb < STORE_VERB_COUNT && verbs[op->verb].letter);
    begin_op(wire, verbs[op->verb].letter, not_after_ms);
    verbs[op->verb].write(wire, op);
}

void wire_arrive(struct wire *wire, unsigned instance, int64_t running_ttl_ms)
{
    begin_op(wire, "I", 0);
    add_int(wire, instance);
    add_int(wire, running_ttl_ms);
}

void wire_leave(struct wire *wire, unsigned instance)
{
    begin_op(wire, "L", 0);
    add_int(wire, instance);
}

void wire_tidy(struct wire *wire, int64_t jobs_max)
{
    begin_op(wire, "T", 0);
    add_int(wire, jobs_max > 0 ? jobs_max : 0);
}
