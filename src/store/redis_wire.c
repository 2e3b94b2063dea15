/* Writes ops. Texts of ops are borrowed: an op stays until its batch is answered. */
#include "store/redis_wire.h"

#include "base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t wire_bounded(int64_t value)
{
    return value > WIRE_FOREVER ? WIRE_FOREVER : value < -WIRE_FOREVER ? -WIRE_FOREVER : value;
}

void wire_lane(uint64_t lane, char *ret_bytes)
{
    for (size_t i = 0; i < WIRE_LANE; i++, lane >>= 8)
        ret_bytes[i] = (char)lane;
}

static void list_add(struct wire *wire, struct wire_list *list, const char *at, size_t len)
{
    if (list->count == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 256;
        list->texts = mem_resize(list->texts, list->cap * sizeof *list->texts);
        list->lens = mem_resize(list->lens, list->cap * sizeof *list->lens);
    }
    list->texts[list->count] = len ? at : "";
    list->lens[list->count++] = len;
    wire->bytes += len;
}

static void list_free(struct wire_list *list)
{
    free(list->texts);
    free(list->lens);
}

static void add(struct wire *wire, const char *at, size_t len)
{
    list_add(wire, &wire->others, at, len);
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
    int64_t known = wire_bounded(value);
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

/* As struct.unpack of lua/batch.lua reads it: little end first, nothing between. */
static char *put_number(char *to, int64_t value, size_t width)
{
    uint64_t bits = (uint64_t)wire_bounded(value);

    for (size_t i = 0; i < width; i++, bits >>= 8)
        *to++ = (char)bits;
    return to;
}

static void head_word(struct wire *wire, const char *word)
{
    list_add(wire, &wire->args, word, strlen(word));
}

void wire_begin(struct wire *wire, const struct wire_head *head)
{
    char *to = wire->head;

    arena_reset(&wire->arena);
    columns_begin(&wire->columns);
    wire->args.count = wire->others.count = wire->bytes = 0;
    wire->ops = 0;
    wire->runs = 0;
    head_word(wire, "FCALL");
    head_word(wire, head->function);
    head_word(wire, "2");
    head_word(wire, REDIS_KEY "n");
    head_word(wire, REDIS_KEY "none");
    to = put_number(to, head->now_ms, 8);
    to = put_number(to, head->late_ms, 8);
    to = put_number(to, head->retention_ms > 0 ? head->retention_ms : 0, 8);
    to = put_number(to, head->breaker_threshold, 8);
    to = put_number(to, head->breaker_cooldown_ms, 8);
    to = put_number(to, head->moved, 1);
    to = put_number(to, head->number, 2);
    assert(to == wire->head + WIRE_HEAD_KNOWN);
    list_add(wire, &wire->args, wire->head, sizeof wire->head);
    list_add(wire, &wire->args, "", 0); /* the columns */
    list_add(wire, &wire->args, "", 0); /* their rests */
    head_word(wire, head->instance);
    head_word(wire, head->generation);
    head_word(wire, head->known);
    wire->begun = wire->args.count;
}

/* The head and the columns are known now; what is no row comes after the texts of the rows. */
struct redis_args wire_args(struct wire *wire)
{
    char *to = wire->head + WIRE_HEAD_KNOWN;
    struct str packed = columns_pack(&wire->columns);
    struct str rests = buf_view(&wire->columns.rests);

    to = put_number(to, wire->columns.early_ms, 8);
    to = put_number(to, wire->ops, 4);
    to = put_number(to, (int64_t)wire->columns.rows, 4);
    to = put_number(to, (int64_t)wire->columns.terms, 4);
    to = put_number(to, (int64_t)(wire->args.count - wire->begun), 4);
    assert(to == wire->head + sizeof wire->head);
    assert(wire->columns.ops == (size_t)wire->ops);
    wire->args.texts[WIRE_COLUMNS] = packed.at;
    wire->args.lens[WIRE_COLUMNS] = packed.len;
    wire->args.texts[WIRE_COLUMNS + 1] = rests.len ? rests.at : "";
    wire->args.lens[WIRE_COLUMNS + 1] = rests.len;
    for (size_t i = 0; i < wire->others.count; i++)
        list_add(wire, &wire->args, wire->others.texts[i], wire->others.lens[i]);
    return (struct redis_args){
        .count = (int)wire->args.count, .texts = wire->args.texts, .lens = wire->args.lens};
}

void wire_free(struct wire *wire)
{
    arena_free(&wire->arena);
    columns_free(&wire->columns);
    list_free(&wire->args);
    list_free(&wire->others);
    *wire = (struct wire){0};
}

static void add_terms(struct wire *wire, const struct lease_terms *terms)
{
    add_int(wire, terms->task_ms);
    add_int(wire, terms->f2f_ms);
}

size_t wire_renew_later(const struct store_op *op)
{
    size_t later = 0;

    for (size_t i = 0; op->u.renew.runs && i < op->u.renew.count; i++)
        later += op->u.renew.runs[i].later;
    return later;
}

static void write_renew(struct wire *wire, const struct store_op *op)
{
    const struct store_run *runs = op->u.renew.runs;
    size_t later = wire_renew_later(op);
    size_t left = later ? later : runs ? op->u.renew.count : 0;

    if (later > WIRE_RENEW_MAX)
        left = WIRE_RENEW_MAX;
    add_text(wire, op->node);
    add_terms(wire, &op->u.renew.terms);
    add_word(wire, !runs ? "a" : !later ? "" : left < later ? "l" : "le");
    add_int(wire, (int64_t)left);
    wire->runs += left;
    for (size_t i = 0; left > 0; i++) {
        if (later && !runs[i].later)
            continue;
        add_job(wire, runs[i].id);
        add_int(wire, runs[i].attempt);
        left--;
    }
}

static void write_wait(struct wire *wire, const struct store_op *op)
{
    const struct store_bounds *bounds = &op->u.wait.bounds;
    char *lane = arena_raw(&wire->arena, WIRE_LANE);

    wire_lane(op->u.wait.lane, lane);
    add_job(wire, op->job);
    add_int(wire, op->attempt);
    add(wire, lane, WIRE_LANE);
    add_int(wire, op->u.wait.priority);
    add_int(wire, op->u.wait.wait_ms);
    add_int(wire, bounds->lane_max);
    add_int(wire, bounds->all_max);
    add_int(wire, bounds->account.bytes);
    add_int(wire, bounds->account.jobs_max);
    add_int(wire, bounds->account.bytes_max);
    add_text(wire, bounds->account.name.at ? bounds->account.name : STR(""));
}

static void write_due(struct wire *wire, const struct store_op *op)
{
    add_int(wire, (int64_t)op->u.due.max);
}

static void write_node_put(struct wire *wire, const struct store_op *op)
{
    char *flags = arena_raw(&wire->arena, 4);
    size_t len = 0;

    if (op->u.node_put.facts.at)
        flags[len++] = 'f';
    if (op->u.node_put.set_admin)
        flags[len++] = 'a';
    if (op->u.node_put.new_epoch)
        flags[len++] = 'e';
    if (op->u.node_put.keeps_runs)
        flags[len++] = 'k';
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

/* Those that come with every job are rows of columns; of the others each value is an argument. The
 * verbs that are missing here are reads, see redis_read.c. */
static const struct {
    const char *letter; /* of lua/batch.lua; NULL: a row */
    void (*write)(struct wire *wire, const struct store_op *op);
} verbs[STORE_VERB_COUNT] = {
    [STORE_RENEW] = {.letter = "N", .write = write_renew},
    [STORE_WAIT] = {.letter = "W", .write = write_wait},
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

static void begin_other(struct wire *wire, const char *letter)
{
    columns_skip(&wire->columns);
    add_word(wire, letter);
    wire->ops++;
}

static void write_row(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    struct column_texts texts = columns_add(&wire->columns, op, not_after_ms, &wire->arena);

    for (size_t i = 0; i < texts.count; i++)
        list_add(wire, &wire->args, texts.items[i].at, texts.items[i].len);
    wire->ops++;
}

void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    assert(op->verb < STORE_VERB_COUNT);
    if (!verbs[op->verb].letter) {
        write_row(wire, op, not_after_ms);
        return;
    }
    begin_other(wire, verbs[op->verb].letter);
    verbs[op->verb].write(wire, op);
    add_int(wire, not_after_ms);
}

/* Our own have no bound. */
static void end_own(struct wire *wire)
{
    add_int(wire, 0);
}

void wire_arrive(struct wire *wire, const char *version, int format,
                 const struct lease_terms *terms)
{
    begin_other(wire, "I");
    add_word(wire, version);
    add_int(wire, format);
    add_terms(wire, terms);
    end_own(wire);
}

void wire_stay(struct wire *wire, const char *version, int format, unsigned number)
{
    begin_other(wire, "Y");
    add_word(wire, version);
    add_int(wire, format);
    add_int(wire, number);
    end_own(wire);
}

void wire_tidy(struct wire *wire, bool whole, int64_t jobs_max)
{
    begin_other(wire, "T");
    add_word(wire, whole ? "1" : "0");
    add_int(wire, jobs_max > 0 ? jobs_max : 0);
    end_own(wire);
}

void wire_leave(struct wire *wire, unsigned number, int64_t from)
{
    begin_other(wire, "L");
    add_int(wire, number);
    add_int(wire, from);
    end_own(wire);
}
