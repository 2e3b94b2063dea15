/* Encodes ops; their texts are borrowed, as an op stays until its batch is answered. Decodes the
 * function library's answers without trusting them: a library of another build, or a key written by
 * hand, must not lead to an index out of range. */
#include "store/redis_wire.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/breakers.h"
#include "store/ledger_jobs.h"
#include "store/redis_columns.h"
#include "store/redis_link.h"
#include "store/store.h"

/* --- ops --- */

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

/* Job 0 means no job and is sent as an empty text. */
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

/* As read by struct.unpack in lua/batch.lua: little-endian, packed. */
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

/* The head and the columns are complete now; ops that are not rows follow the texts of the rows. */
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

/* RENEW: how many of its runs are left to be sent separately. 0: send the list as it is. */
static size_t wire_renew_later(const struct store_op *op)
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
    add_word(wire, bounds->keys ? "1" : "0");
}

static void write_due(struct wire *wire, const struct store_op *op)
{
    add_int(wire, (int64_t)op->u.due.max);
}

static void write_node_put(struct wire *wire, const struct store_op *op)
{
    char *flags = arena_raw(&wire->arena, 5);
    struct resources resources;
    size_t len = 0;

    if (op->u.node_put.facts.at)
        flags[len++] = 'f';
    if (op->u.node_put.set_admin)
        flags[len++] = 'a';
    if (op->u.node_put.new_epoch)
        flags[len++] = 'e';
    if (op->u.node_put.keeps_runs)
        flags[len++] = 'k';
    if (op->u.node_put.resources.at)
        flags[len++] = 'r';
    add_text(wire, op->node);
    add(wire, flags, len);
    add_int(wire, op->u.node_put.own);
    add_int(wire, op->u.node_put.health);
    add_int(wire, op->u.node_put.max);
    add_int(wire, op->u.node_put.admin);
    add_int(wire, op->u.node_put.if_epoch);
    if (op->u.node_put.facts.at)
        add_text(wire, op->u.node_put.facts);
    if (op->u.node_put.resources.at)
        add_text(wire, resources_parse(op->u.node_put.resources, &resources)
                           ? op->u.node_put.resources
                           : STR(WIRE_UNREADABLE));
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

static void write_limit_set(struct wire *wire, const struct store_op *op)
{
    struct buf text = {0};

    limit_write(&op->u.limit.limit, &text);
    add_text(wire, op->u.limit.pattern);
    add_text(wire, arena_str(&wire->arena, buf_view(&text)));
    add_word(wire, op->u.limit.drop ? "1" : "0");
    buf_free(&text);
}

static void write_limit_hold(struct wire *wire, const struct store_op *op)
{
    add_text(wire, op->u.limit.pattern);
    add_int(wire, op->u.limit.hold_ms);
    add_text(wire, op->u.limit.reason.at ? op->u.limit.reason : STR(""));
}

static void write_limits(struct wire *wire, const struct store_op *op)
{
    add_text(wire, op->u.limits.prefix.at ? op->u.limits.prefix : STR(""));
    add_text(wire, op->u.limits.after.at ? op->u.limits.after : STR(""));
    add_int(wire, (int64_t)op->u.limits.max);
}

static void write_message(struct wire *wire, const struct store_op *op)
{
    char *to = arena_raw(&wire->arena, STORE_NAME_TEXT + 1);

    snprintf(to, STORE_NAME_TEXT + 1, "%08" PRIx32, op->u.message.to);
    add(wire, to, op->u.message.to ? STORE_NAME_TEXT : 0); /* to all: "" */
    add_text(wire, op->u.message.text);
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

/* Verbs that every job needs are rows of columns; the other verbs send each value as an argument.
 * Verbs missing here are reads, see redis_read.c. */
static const struct {
    const char *letter; /* as in lua/batch.lua; NULL: a row */
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
    [STORE_LIMIT_SET] = {.letter = "A", .write = write_limit_set},
    [STORE_LIMIT_HOLD] = {.letter = "H", .write = write_limit_hold},
    [STORE_LIMITS] = {.letter = "Q", .write = write_limits},
    [STORE_MESSAGE] = {.letter = "S", .write = write_message},
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

void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms)
{
    assert(op->verb < STORE_VERB_COUNT);
    if (!verbs[op->verb].letter) {
        struct column_texts texts = columns_add(&wire->columns, op, not_after_ms, &wire->arena);

        for (size_t i = 0; i < texts.count; i++)
            list_add(wire, &wire->args, texts.items[i].at, texts.items[i].len);
        wire->ops++;
        return;
    }
    begin_other(wire, verbs[op->verb].letter);
    verbs[op->verb].write(wire, op);
    add_int(wire, not_after_ms);
}

/* The store's own calls have no time bound: their last argument is 0. */
void wire_arrive(struct wire *wire, const char *version, int format,
                 const struct lease_terms *terms)
{
    begin_other(wire, "I");
    add_word(wire, version);
    add_int(wire, format);
    add_terms(wire, terms);
    add_int(wire, 0);
}

void wire_stay(struct wire *wire, const char *version, int format, unsigned number)
{
    begin_other(wire, "Y");
    add_word(wire, version);
    add_int(wire, format);
    add_int(wire, number);
    add_int(wire, 0);
}

void wire_tidy(struct wire *wire, bool whole, int64_t jobs_max)
{
    begin_other(wire, "T");
    add_word(wire, whole ? "1" : "0");
    add_int(wire, jobs_max > 0 ? jobs_max : 0);
    add_int(wire, 0);
}

void wire_leave(struct wire *wire, unsigned number, int64_t from)
{
    begin_other(wire, "L");
    add_int(wire, number);
    add_int(wire, from);
    add_int(wire, 0);
}

/* --- answers --- */

#define ERROR(name) ERR_##name,
static const enum err errors[WIRE_ERROR_COUNT] = {WIRE_ERRORS(ERROR)};

/* Integers as written by struct.pack, little-endian. */
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

/* A number used as an index: if out of range it becomes 0 and *ok false. */
static int small(int64_t value, int limit, bool *ok)
{
    if (value >= 0 && value < limit)
        return (int)value;
    *ok = false;
    return 0;
}

/* Reads "0,1" as one bit per id. */
static bool read_gpus(struct str text, uint64_t *ret_gpus)
{
    uint64_t gpus = 0;

    while (text.len) {
        int64_t id;

        if (!str_int(str_cut(&text, ','), &id) || id < 0 || id >= RESOURCES_GPU_IDS)
            return false;
        gpus |= UINT64_C(1) << id;
    }
    *ret_gpus = gpus;
    return true;
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
        !str_copy(record.texts[RECORD_JOB_reason], head.reason, sizeof head.reason) ||
        !read_gpus(record.texts[RECORD_JOB_gpus], &head.gpus) || !ok)
        return false;
    *ret_head = head;
    *ret_job = (struct wire_job){
        .result = record.rest.len ? record.rest : STR_NONE,
        .done_once = numbers[RECORD_JOB_told] == RECORD_TOLD_DONE,
        .has_key = numbers[RECORD_JOB_has_key],
        .demand = record.texts[RECORD_JOB_demand],
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

bool wire_key_read(struct str packed, struct wire_key *ret_key)
{
    enum { AUDIT_BYTES = 4 * 4 }; /* progress of the audit */
    struct bytes from = bytes_of(packed);
    struct wire_key key = {.in_flight = (int32_t)take(&from, 4),
                           .waiting = (int32_t)take(&from, 4)};

    key.hold_until_ms = (int64_t)take(&from, 6);
    key.starts = (int32_t)take(&from, 4);
    take(&from, 6); /* time of the first start */
    key.last_start_ms = (int64_t)take(&from, 6);
    take(&from, 4); /* how many at that time */
    take(&from, AUDIT_BYTES / 2);
    take(&from, AUDIT_BYTES / 2);
    take(&from, JOB_ID_TEXT * take(&from, 1)); /* some of its lease holders */
    if (from.short_of)
        return false;
    key.reason = (struct str){.at = (const char *)from.at, .len = from.left};
    *ret_key = key;
    return true;
}

/* "NAME=AMOUNT,...": held by leases; "#0" is memory of GPU 0, "!0" all of it. */
static bool use_all(struct resources *resources, struct str sums)
{
    while (sums.len) {
        struct str amount_text = str_cut(&sums, ','), name = str_cut(&amount_text, '=');
        int64_t amount, id = -1;

        if (!str_int(amount_text, &amount) || amount < 0 || amount > INT32_MAX)
            return false;
        if (name.len > 1 && (name.at[0] == '#' || name.at[0] == '!'))
            str_int((struct str){name.at + 1, name.len - 1}, &id);
        for (size_t i = 0; i < resources->gpu_count; i++) {
            if (resources->gpus[i].id != id)
                continue;
            if (name.at[0] == '#')
                resources->gpus[i].used_mb += (int32_t)amount;
            else
                resources->gpus[i].whole = true;
        }
        for (size_t i = 0; i < resources->count; i++)
            if (str_is(name, resources->items[i].name))
                resources->items[i].used += (int32_t)amount;
    }
    return true;
}

bool wire_resources_read(struct str packed, struct str *ret_declared,
                         struct resources_left *ret_left)
{
    struct str running = packed, declared = str_cut(&running, '\0'),
               reserved = str_cut(&running, '\0');
    struct resources resources;

    if (!declared.len || !resources_parse(declared, &resources) || !use_all(&resources, reserved) ||
        !use_all(&resources, running))
        return false;
    *ret_declared = declared;
    resources_left(&resources, ret_left);
    return true;
}

/* Reads a node's resources as written by lua/needs.lua; *ret_rest is what follows. */
static bool read_left(struct str packed, struct resources_left *ret_left, struct str *ret_rest)
{
    struct bytes from = bytes_of(packed);
    struct resources_left left = {.count = (uint8_t)take(&from, 1),
                                  .gpu_count = (uint8_t)take(&from, 1)};

    left.shared = (uint32_t)take(&from, 4);
    if (left.count > RESOURCES_MAX || left.gpu_count > RESOURCES_GPUS_MAX)
        return false;
    for (size_t i = 0; i < left.count; i++)
        left.left[i] = (int32_t)take(&from, 4);
    for (size_t i = 0; i < left.gpu_count; i++)
        left.gpu_left[i] = (int32_t)take(&from, 4);
    *ret_left = left;
    *ret_rest = (struct str){(const char *)from.at, from.left};
    return !from.short_of;
}

/* Reads the beginning of a node's record; *ret_rest is what follows. */
static bool read_counts(struct str packed, struct lease_node *ret_counts, struct str *ret_rest)
{
    struct record record;

    if (!record_read(&record_node, packed, "facts", &record) || !counts_of(&record, ret_counts))
        return false;
    *ret_rest = record.rest;
    return true;
}

/* Reads counters, followed by the node's free resources if it has any. */
static bool read_node_counts(struct store_op *op, struct str packed)
{
    return read_counts(packed, &op->counts, &packed) &&
           (!packed.len || read_left(packed, &op->left, &packed));
}

/* Reads a record that follows the id of its job. */
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

/* Answers of the verbs every job needs begin with one text: small numbers, counters if any, and the
 * head. */
static bool read_rest(struct store_op *op, struct bytes *from, int64_t offset_ms,
                      struct wire_job *ret_job)
{
    uint64_t mark = take(from, 1); /* '1': counters, '2': also free resources */
    struct str rest = {(const char *)from->at, from->left};

    if (from->short_of || (mark != '0' && !read_counts(rest, &op->counts, &rest)) ||
        (mark == '2' && !read_left(rest, &op->left, &rest)))
        return false;
    return rest.len == 0 || read_job(rest, offset_ms, &op->head, ret_job);
}

static struct limit_block take_block(struct bytes *from)
{
    struct limit_block block = {
        .why = (enum limit_why)take_small(from, LIMIT_WHY_COUNT),
        .key = take_small(from, DEMAND_KEYS_MAX),
    };

    block.limit = (int32_t)take(from, 4);
    block.used = (int32_t)take(from, 4);
    block.retry_ms = (int64_t)take(from, 6);
    return block;
}

static bool read_put(struct store_op *op, struct bytes *from, int64_t offset_ms)
{
    bool reserve = op->verb == STORE_RESERVE, probe;
    struct wire_job job;
    size_t tried;

    op->u.put.duplicate = take(from, 1);
    probe = take(from, 1);
    if (reserve)
        op->u.put.probe = probe;
    op->u.put.chosen = (int)take(from, 1) - 1;
    tried = (size_t)take(from, 1);
    op->u.put.block = (struct limit_block){0};
    if (reserve &&
        (tried > op->u.put.candidate_count || op->u.put.chosen >= (int)op->u.put.candidate_count))
        return false;
    for (size_t i = 0; reserve && i < op->u.put.candidate_count; i++) {
        uint64_t why = i < tried ? take(from, 1) - '0' : 0;

        if (why >= LEASE_REASON_COUNT)
            return false;
        op->u.put.candidates[i].tried = i < tried;
        if (i < tried)
            op->u.put.candidates[i].why = (enum lease_reason)why;
    }
    if (op->err == ERR_LIMITED)
        op->u.put.block = take_block(from);
    return read_rest(op, from, offset_ms, &job);
}

static void read_record(struct store_op *op, const redisReply *answer)
{
    struct str key, digits;
    char hex[2 * sizeof op->record.fingerprint + 1];

    if (!op->arena || !answer)
        return;
    op->record = (struct store_record){
        .head = op->head,
        .spec = store_kept(op->arena, redis_text(part(answer, 1))),
        .history = store_kept(op->arena, redis_text(part(answer, 2))),
        .result = store_kept(op->arena, redis_text(part(answer, 3))),
    };
    key = redis_text(part(answer, 4)); /* "FINGERPRINT KEY", the former in hexadecimal digits */
    digits = str_cut(&key, ' ');
    if (key.len && str_copy(digits, hex, sizeof hex)) {
        op->record.idem = arena_str(op->arena, key);
        op->record.fingerprint = strtoull(hex, NULL, 16);
    }
}

/* Reads the demand of the lease that ended. */
static void read_demand(struct store_op *op, const struct wire_job *job)
{
    bool has = op->u.settle.ended_lease && job->demand.len && op->arena;

    op->u.settle.demand = has ? arena_str(op->arena, job->demand) : STR_NONE;
}

static bool read_settle(struct store_op *op, struct bytes *from, int64_t offset_ms)
{
    bool duplicate = take(from, 1);
    uint64_t ended = take(from, 1); /* 1: a lease ended; 2: that of a job cancelled before */
    int event = take_small(from, BREAKER_RECOVERED + 1);
    int freed = take_small(from, DEMAND_KEYS_MAX + 1);
    struct wire_job job = {0};

    op->u.settle.freed_count = (uint8_t)freed;
    for (int i = 0; i < freed; i++) {
        size_t len = (size_t)take(from, 1);
        struct str key = {(const char *)from->at, len};

        if (from->left < len)
            return false;
        op->u.settle.freed[i] = str_hash(key);
        from->at += len;
        from->left -= len;
    }

    op->u.settle.duplicate = duplicate;
    op->u.settle.ended_lease = ended > 0;
    op->u.settle.stopped = ended > 1;
    op->u.settle.breaker = (enum breaker_event)event;
    if (op->verb == STORE_FINISH)
        op->record = (struct store_record){0};
    if (!read_rest(op, from, offset_ms, &job))
        return false;
    read_demand(op, &job);
    return true;
}

/* `list`: the whole answer, if there is more than the text. */
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

/* The answer is for the whole list, or for the first of the runs left for later. */
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

static bool read_message(struct store_op *op, const redisReply *answer)
{
    op->u.message.receivers = number(answer, 3);
    return true;
}

static bool read_breakers(struct store_op *op, const redisReply *answer)
{
    size_t count = answer->elements - 3;
    struct store_breaker *items = arena_array(op->arena, struct store_breaker, count);

    for (size_t i = 0; i < count; i++) {
        /* "state,failures,opened,probe until,node|type" */
        struct str text = redis_text(answer->element[i + 3]), node;
        int64_t values[4];

        for (size_t k = 0; k < COUNT_OF(values); k++)
            if (!str_int(str_cut(&text, ','), &values[k]))
                return false;
        node = str_cut(&text, '|');
        if (!text.at || values[0] < 0 || values[0] >= BREAKER_STATE_COUNT)
            return false;
        items[i] = (struct store_breaker){
            .node = arena_str(op->arena, node),
            .type = arena_str(op->arena, text),
            .breaker = {.state = (enum breaker_state)values[0],
                        .failures = (int32_t)values[1],
                        .opened_ms = values[2],
                        .probe_until_ms = time_of(values[3])},
        };
    }
    qsort(items, count, sizeof *items, breakers_order);
    op->u.breakers.items = items;
    op->u.breakers.count = count;
    return true;
}

static bool read_wait(struct store_op *op, const redisReply *answer)
{
    struct bytes from = bytes_of(redis_text(part(answer, 3)));

    op->u.wait.block = (struct limit_block){0};
    if (op->err == ERR_LIMITED)
        op->u.wait.block = take_block(&from);
    return !from.short_of;
}

static int by_pattern(const void *a, const void *b)
{
    const struct store_limit *left = a;
    const struct store_limit *right = b;

    return str_cmp(left->pattern, right->pattern);
}

static bool read_rules(struct store_op *op, const redisReply *list)
{
    size_t count = list->elements / 2;
    struct store_limit *rules = arena_array(op->arena, struct store_limit, count);

    for (size_t i = 0; i < count; i++) {
        rules[i].pattern = arena_str(op->arena, redis_text(list->element[2 * i]));
        if (!limit_parse(redis_text(list->element[2 * i + 1]), &rules[i].limit))
            return false;
    }
    qsort(rules, count, sizeof *rules, by_pattern);
    op->u.limits.rules = rules;
    op->u.limits.rule_count = count;
    return true;
}

static bool read_holders(struct str ids, struct store_limit_key *key)
{
    for (; ids.len >= JOB_ID_TEXT && key->holder_count < LIMIT_HOLDERS; key->holder_count++) {
        if (!job_id_parse((struct str){ids.at, JOB_ID_TEXT}, &key->holders[key->holder_count]))
            return false;
        ids.at += JOB_ID_TEXT;
        ids.len -= JOB_ID_TEXT;
    }
    return ids.len == 0;
}

/* For each key: key, pattern, leases, waiting jobs, starts, remaining hold and its reason,
 * concatenated ids of jobs with a lease. */
static bool read_limit_keys(struct store_op *op, const redisReply *list)
{
    struct store_limit_key *keys = arena_array(op->arena, struct store_limit_key, list->elements);

    for (size_t i = 0; i < list->elements; i++) {
        const redisReply *item = list->element[i];

        if (item->type != REDIS_REPLY_ARRAY || item->elements != 8)
            return false;
        keys[i] = (struct store_limit_key){
            .key = arena_str(op->arena, redis_text(part(item, 0))),
            .in_flight = (int32_t)number(item, 2),
            .waiting = (int32_t)number(item, 3),
            .started = (int32_t)number(item, 4),
            .hold_ms = number(item, 5),
            .hold_reason = arena_str(op->arena, redis_text(part(item, 6))),
        };
        if (redis_text(part(item, 1)).len)
            keys[i].pattern = arena_str(op->arena, redis_text(part(item, 1)));
        if (!read_holders(redis_text(part(item, 7)), &keys[i]))
            return false;
    }
    op->u.limits.keys = keys;
    op->u.limits.key_count = list->elements;
    return true;
}

static bool read_limits(struct store_op *op, const redisReply *answer)
{
    const redisReply *rules = part(answer, 4);
    const redisReply *keys = part(answer, 5);

    if (!keys || rules->type != REDIS_REPLY_ARRAY || keys->type != REDIS_REPLY_ARRAY)
        return false;
    op->u.limits.version = number(answer, 3);
    op->u.limits.more = number(answer, 6) > 0;
    return read_rules(op, rules) && read_limit_keys(op, keys);
}

/* Decoders for what a verb answers beyond its error, the head and the counters. */
static bool (*const readers[STORE_VERB_COUNT])(struct store_op *op, const redisReply *answer) = {
    [STORE_RENEW] = read_renew,       [STORE_DUE] = read_due,
    [STORE_NODE_PUT] = read_node_put, [STORE_BREAKERS] = read_breakers,
    [STORE_MESSAGE] = read_message,   [STORE_WAIT] = read_wait,
    [STORE_LIMITS] = read_limits,
};

static bool is_packed(enum store_verb verb)
{
    return verb == STORE_PUT || verb == STORE_RESERVE || verb == STORE_ACK || verb == STORE_FINISH;
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

/* Decodes the answer of a fast step of lua/columns.lua (the common case). */
static bool read_fast(struct store_op *op, struct str counts, struct str packed, int64_t offset_ms)
{
    struct wire_job job;

    op->err = ERR_OK;
    op->head.id = op->job;
    if (op->verb == STORE_RESERVE) {
        if (op->u.put.candidate_count == 0)
            return false;
        op->u.put.duplicate = op->u.put.probe = false;
        op->u.put.block = (struct limit_block){0};
        op->u.put.chosen = 0;
        for (size_t i = 0; i < op->u.put.candidate_count; i++)
            op->u.put.candidates[i].tried = i == 0;
        op->u.put.candidates[0].why = LEASE_OK;
    } else {
        op->u.settle.duplicate = op->u.settle.stopped = false;
        op->u.settle.ended_lease = op->verb == STORE_FINISH;
        op->u.settle.breaker = BREAKER_NO_EVENT;
        op->u.settle.freed_count = 0;
        if (op->verb == STORE_FINISH)
            op->record = (struct store_record){0};
    }
    if (!read_node_counts(op, counts) || !wire_job_read(packed, offset_ms, &op->head, &job))
        return false;
    if (op->verb == STORE_FINISH)
        read_demand(op, &job);
    return true;
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
        (counts.at && !read_node_counts(op, counts)))
        return false;
    if (op->err == ERR_TOO_LATE || !readers[op->verb])
        return true;
    return readers[op->verb](op, answer);
}

bool wire_answer(struct store_op *op, const redisReply *reply, size_t *at)
{
    const redisReply *answer = part(reply, (*at)++);
    int64_t offset_ms = number(reply, WIRE_ANSWERS - 1);
    struct str text = redis_text(answer);

    if (!answer)
        return false;
    op->left = (struct resources_left){0};
    if (answer->type == REDIS_REPLY_STRING) {
        if (!is_packed(op->verb))
            return false;
        /* A node's counters begin with their format, a verb's answer with a mark. */
        if (!text.len || (unsigned char)text.at[0] >= WIRE_ANSWER_MARK)
            return read_packed(op, text, NULL, offset_ms);
        return read_fast(op, text, redis_text(part(reply, (*at)++)), offset_ms);
    }
    if (answer->type != REDIS_REPLY_ARRAY || answer->elements < 3)
        return false;
    if (answer->element[0]->type == REDIS_REPLY_STRING)
        return is_packed(op->verb) &&
               read_packed(op, redis_text(answer->element[0]), answer, offset_ms);
    return read_list(op, answer, offset_ms);
}
