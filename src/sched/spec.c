/* Job specifications. One table of fields serves requests and stored records alike; the stored form
 * uses the names with which a job is shown (`src`), requests use longer ones (`src_lang`). */
#include "sched/spec.h"

#include <assert.h>
#include <stdlib.h>

#include "base/digest.h"
#include "base/spare.h"
#include "model/argv.h"
#include "model/pool.h"
#include "model/trace.h"

enum {
    HEAD_MAX = 160 + 3 * RESOURCES_GPUS_MAX,
    TEXT_MAX = 256,
    REF_MAX = 4096,
    DAY_MS = 24 * 3600 * 1000
};

static const struct field option_fields[] = {
    FIELD_ROW(spec_options, require_tts, BOOL),
    FIELD_ROW(spec_options, require_asr, BOOL),
    FIELD_ROW(spec_options, strict, BOOL),
    FIELD_ROW(spec_options, preferred_node_id, ID, .max = NODE_ID_MAX),
};

/* A field of a job is one row here and one member of struct spec. The row controls how the field is
 * read, stored, sent to the node, shown and described. Rows are in stored order. */
#define ROW(member, kind, marks, sample, ...)                                                      \
    FIELD_ROW(spec, member, kind, .flags = (marks), .example = (sample), __VA_ARGS__)
#define BOTH (SPEC_F2F | SPEC_TASK)

static const struct field fields[] = {
    ROW(type, NAME, SPEC_TASK | SPEC_NEEDED | SPEC_KEPT, "\"dev\"", .max = POOL_LANG_MAX),
    ROW(traceparent, STR, BOTH | SPEC_SHOWN_SET,
        "\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\"", .max = TRACE_PARENT_LEN,
        .help = "W3C trace context; the header of that name counts too"),
    ROW(session_id, STR, BOTH | SPEC_SHOWN, "\"room-1\"", .min = 1, .max = TEXT_MAX),
    ROW(src, STR, SPEC_F2F | SPEC_TALK | SPEC_NEEDED | SPEC_LONG_NAME | SPEC_SHOWN, "\"en\"",
        .alias = "src_lang", .max = POOL_LANG_MAX),
    ROW(tgt, STR, SPEC_F2F | SPEC_TALK | SPEC_NEEDED | SPEC_LONG_NAME | SPEC_SHOWN, "\"zh\"",
        .alias = "tgt_lang", .max = POOL_LANG_MAX),
    ROW(audio_ref, STR, SPEC_F2F | SPEC_TALK | SPEC_SHOWN, "\"blob://1\"", .max = REF_MAX,
        .shape = "string|null"),
    ROW(options, OBJ, SPEC_F2F | SPEC_SHOWN_SET, "{\"require_tts\":true}", .fields = option_fields,
        .field_count = COUNT_OF(option_fields)),
    ROW(title, STR, SPEC_TASK | SPEC_SHOWN, "\"build\"", .max = TEXT_MAX),
    ROW(priority, INT, SPEC_TASK | SPEC_KEPT | SPEC_SHOWN, "3", .max = 9,
        .help = "higher first, default 5"),
    ROW(payload, JSON, BOTH | SPEC_SHOWN_SET, "{\"branch\":\"main\"}",
        .help = "any JSON; the node gets it as it is"),
    ROW(command, JSON, SPEC_TASK | SPEC_SHOWN_SET, "[\"make\",\"test\"]",
        .shape = "string|[string]", .help = "a text for the shell, or a program and its arguments"),
    ROW(secrets, JSON, SPEC_TASK | SPEC_SHOWN_SET, "[\"key\"]", .shape = "[string]|{string}",
        .help = "names of secrets of its node, or {VARIABLE: name}"),
    ROW(requires, STR, SPEC_TASK | SPEC_SHOWN_SET, "\"zone=eu\"", .max = 1024,
        .help = "a selector, what its node must be like: zone in (eu,us), !spot"),
    ROW(prefers, JSON, BOTH | SPEC_SHOWN_SET, "[\"whisper-v3\"]", .shape = "[string]",
        .help = "names of what had better be loaded on its node; a wish, no condition"),
    ROW(needs, JSON, BOTH | SPEC_SHOWN_SET, "{\"slots\":2}", .shape = "{number}",
        .help = "how much of which resources of its node it takes: {cpu: 1.5, mem_mb: 6000}"),
    ROW(keys, JSON, BOTH | SPEC_SHOWN_SET, "[\"tenant:acme\"]", .shape = "[string]",
        .help = "whose limits it counts against; the queue takes turns by the first"),
    ROW(interactive, BOOL, SPEC_TASK | SPEC_SHOWN_SET, "true"),
    ROW(queue_ms, MS, SPEC_TASK | SPEC_SHOWN_SET, "30000", .max = DAY_MS,
        .help = "how long it may wait for a slot"),
    ROW(timeout_ms, MS, BOTH | SPEC_SHOWN_SET, "60000", .max = 30LL * DAY_MS,
        .help = "how long it may run, from its ACK"),
    ROW(max_attempts, INT, BOTH, "2", .alias = "max_retry", .min = 1, .max = JOB_ATTEMPTS_MAX),
    ROW(callback_url, STR, BOTH | SPEC_NOT_NODE, "\"http://127.0.0.1:9/\"", .max = 2048,
        .help = "gets the job POSTed when it ended"),
    ROW(retried_from, ID, SPEC_SHOWN_SET, "\"j0000000000001\"", .max = JOB_ID_TEXT),
    ROW(submitted_by, STR, SPEC_SHOWN_SET, "\"ci\"", .max = TEXT_MAX,
        .help = "the name of the token that submitted it; absent when there were no tokens"),
};

const struct schema spec_schema = {.what = "the job", .fields = fields, .count = COUNT_OF(fields)};

static bool is_given(const struct field *field, const struct spec *spec)
{
    const void *at = (const char *)spec + field->offset;

    switch (field->type) {
    case FIELD_BOOL:
        return *(const bool *)at;
    case FIELD_INT:
    case FIELD_MS:
        return *(const int64_t *)at != 0 && *(const int64_t *)at != FIELD_OFF;
    case FIELD_JSON:
        return !json_is_null(*(const struct json *const *)at);
    case FIELD_OBJ:
        return spec->options_raw != NULL;
    default:
        assert(field->type == FIELD_STR || field->type == FIELD_ID || field->type == FIELD_NAME);
        return ((const struct str *)at)->at != NULL;
    }
}

/* Leaves out rows with a mark of `except`. `namespace`: set for a node; at == NULL: it is part of
 * the type. */
static void write_spec(struct spec *spec, unsigned except, struct str namespace,
                       struct arena *arena)
{
    struct buf buf = spare_take();
    struct jsonw w = jsonw_to(&buf);

    buf_reserve(&buf, 512);
    jsonw_obj(&w);
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const struct field *field = &fields[i];
        bool always = field->flags & SPEC_KEPT;

        if (field->flags & except ||
            (field->flags & SPEC_TALK ? !spec->f2f : !always && !is_given(field, spec)))
            continue;
        jsonw_key(&w, field->name);
        if (field->type == FIELD_OBJ) /* including members unknown to us */
            jsonw_raw(&w, json_raw(spec->options_raw));
        else
            field_show(field, spec, &w);
    }
    if (namespace.at)
        jsonw_kstr(&w, "namespace", namespace);
    jsonw_end_obj(&w);
    assert(w.depth == 0 && spec->type.at);
    spec->json = arena_str(arena, buf_view(&buf));
    spare_give(&buf);
}

struct str spec_node_type(const struct spec *spec)
{
    return namespace_name(spec->type);
}

struct str spec_session(const struct spec *spec, struct arena *arena)
{
    return spec->f2f && spec->session_id.at
               ? namespace_session(namespace_of(spec->type), spec->session_id, arena)
               : STR_NONE;
}

/* For stored specs, and for requests once the type is the full name and defaults are filled in. */
static enum err read_demand(struct spec *spec, struct arena *arena, struct problem *why)
{
    struct demand demand, *own;
    enum err err;

    if (json_is_null(spec->needs) && json_is_null(spec->keys))
        return ERR_OK;
    demand = demand_plain;
    err = demand_read_needs(spec->needs, arena, &demand, why);
    if (!err)
        err = demand_read_keys(spec->keys, arena, &demand, why);
    if (err || demand_is_plain(&demand))
        return err;
    for (size_t i = 0; i < demand.key_count; i++)
        demand.keys[i] = namespace_join(namespace_of(spec->type), demand.keys[i], arena);
    struct buf text = spare_take();
    demand_write(&demand, &text);
    own = arena_new(arena, struct demand);
    *own = demand;
    spec->demand = own;
    spec->demand_text = arena_str(arena, buf_view(&text));
    spare_give(&text);
    return ERR_OK;
}

static const struct spec_type *find_type(const struct spec_types *types, struct str type)
{
    size_t low = 0, high = types ? types->count : 0;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = str_cmp(types->rows[middle].type, type);

        if (order == 0)
            return &types->rows[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The needs of its type, overridden by its own: stored with the job, so that a waiting job does not
 * change with the configuration. */
static enum err take_defaults(struct spec *spec, const struct spec_types *types,
                              struct arena *arena, struct problem *why)
{
    const struct spec_type *row = find_type(types, spec_node_type(spec));
    struct demand demand;
    enum err err;

    if (!row)
        return read_demand(spec, arena, why);
    demand = demand_plain;
    if (json_is_null(spec->keys))
        spec->keys = row->keys;
    err = demand_read_needs(row->needs, arena, &demand, why);
    if (!err)
        err = demand_read_needs(spec->needs, arena, &demand, why);
    if (!err) {
        struct buf text = spare_take();
        struct jsonw w = jsonw_to(&text);

        demand_write_needs(&demand, &w);
        err = json_parse(arena_str(arena, buf_view(&text)), arena, &spec->needs, why);
        spare_give(&text);
        if (!err && spec->needs->count == 0)
            spec->needs = NULL;
    }
    return err ? err : read_demand(spec, arena, why);
}

static enum err read_fields(const struct json *body, struct arena *arena, struct spec *spec,
                            struct problem *why)
{
    struct strs words;
    enum err err = schema_read(&spec_schema, body, spec, arena, why);

    if (err)
        return err;
    const struct json *options = json_get(body, "options");
    spec->options_raw = json_is_null(options) ? NULL : options;
    err = selector_read(spec->requires, "requires", arena, &spec->selector, why);
    if (err)
        return err;
    if (spec->traceparent.at && !trace_valid(spec->traceparent))
        return problem_set(why, ERR_BAD_FIELD, "traceparent",
                           "traceparent must be like "
                           "\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\".");
    if (!json_is_null(spec->command) && !argv_command(spec->command, arena, &words))
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command must be a text, or a list of texts whose first is not empty; "
                           "of at most %d bytes each.",
                           ARGV_BYTES_EACH);
    if (!argv_secrets(spec->secrets, arena, &words))
        return problem_set(why, ERR_BAD_FIELD, "secrets", ARGV_SECRETS_RULE);
    if (!warm_names(spec->prefers, WARM_PREFERS_MAX, arena, &words))
        return problem_set(why, ERR_BAD_FIELD, "prefers",
                           "prefers must be a list of at most %d " WARM_NAME_RULE ".",
                           WARM_PREFERS_MAX);
    for (size_t i = 0; i < words.count; i++)
        spec->prefer_marks[i] = warm_mark(words.at[i]);
    spec->prefer_count = (uint32_t)words.count;
    return ERR_OK;
}

static enum err missing(struct problem *why, const char *name)
{
    return problem_set(why, ERR_BAD_FIELD, name, "%s is required.", name);
}

/* `mark`: the kind of request. */
static enum err check_needed(const struct spec *spec, unsigned mark, struct problem *why)
{
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const struct field *field = &fields[i];

        if ((field->flags & SPEC_NEEDED) && (field->flags & mark) && !is_given(field, spec))
            return missing(why, field->flags & SPEC_LONG_NAME ? field->alias : field->name);
    }
    return ERR_OK;
}

static enum err bad_lang(struct problem *why, const char *name)
{
    return problem_set(why, ERR_BAD_FIELD, name,
                       "%s must be a language code like \"en\" or \"zh-tw\".", name);
}

enum err spec_read(bool f2f, const struct json *body, const struct spec_author *author,
                   struct arena *arena, struct spec *ret_spec, struct problem *why)
{
    struct spec spec = {.f2f = f2f,
                        .priority = f2f ? SPEC_PRIORITY_F2F : SPEC_PRIORITY_TASK,
                        .max_attempts = FIELD_OFF};
    enum err err = read_fields(body, arena, &spec, why);

    if (!err)
        err = check_needed(&spec, f2f ? SPEC_F2F : SPEC_TASK, why);
    if (!err && f2f) {
        if (!pool_lang_normalise(spec.src, arena, &spec.src))
            return bad_lang(why, "src_lang");
        if (!pool_lang_normalise(spec.tgt, arena, &spec.tgt))
            return bad_lang(why, "tgt_lang");
        spec.type = namespace_join(author->view.namespace, STR("f2f"), arena);
        spec.queue_ms = 0; /* face-to-face is refused at once when all are full */
    } else if (!err) {
        err = namespace_enter(&author->view, "type", spec.type, POOL_LANG_MAX, arena, &spec.type,
                              why);
        if (!err && str_is(spec_node_type(&spec), "f2f"))
            return problem_set(why, ERR_BAD_FIELD, "type",
                               "type f2f goes to /v1/dispatch/f2f, with src_lang and tgt_lang.");
    }
    spec.retried_from = STR_NONE; /* only set by spec_again() */
    spec.submitted_by = author->name;
    if (!err)
        err = take_defaults(&spec, author->types, arena, why);
    if (err)
        return err;
    assert(!f2f || (spec.src.len && spec.tgt.len));
    write_spec(&spec, 0, STR_NONE, arena);
    *ret_spec = spec;
    return ERR_OK;
}

void spec_set_trace(struct spec *spec, struct str header, struct arena *arena)
{
    struct str known = trace_parent(str_trim(header));

    if (!known.len || spec->traceparent.at)
        return;
    spec->traceparent = known;
    write_spec(spec, 0, STR_NONE, arena);
}

enum err spec_stored(struct str json, struct arena *arena, struct spec *ret_spec,
                     struct problem *why)
{
    struct spec spec = {.max_attempts = FIELD_OFF};
    const struct json *root;
    enum err err = json_parse(json, arena, &root, why);

    if (!err)
        err = read_fields(root, arena, &spec, why);
    if (err)
        return err;
    if (!spec.type.at)
        return missing(why, "type"); /* we did not write that */
    spec.f2f = str_is(spec_node_type(&spec), "f2f");
    spec.json = json;
    err = read_demand(&spec, arena, why);
    if (err)
        return err;
    *ret_spec = spec;
    return ERR_OK;
}

enum err spec_again(struct str json, uint64_t retried_from, struct str submitted_by,
                    struct arena *arena, struct spec *ret_spec, struct problem *why)
{
    char id[JOB_ID_TEXT + 1];
    enum err err = spec_stored(json, arena, ret_spec, why);

    if (err)
        return err;
    job_id_text(retried_from, id);
    ret_spec->retried_from = arena_str(arena, str_of(id));
    ret_spec->submitted_by = submitted_by;
    write_spec(ret_spec, 0, STR_NONE, arena);
    return ERR_OK;
}

struct store_account spec_account(const struct spec *spec)
{
    return (struct store_account){.name = spec->submitted_by, .bytes = (int64_t)spec->json.len};
}

static uint64_t lane_of(const struct spec *spec, struct str demand)
{
    enum { DIGITS = 16 };
    struct buf text = spare_take();
    char digest[DIGEST_HEX + 1];
    uint64_t lane;

    /* Neither a type nor its namespace is "needs", and the length of the demand comes first. */
    if (demand.len)
        buf_fmt(&text, "needs %zu " STR_FMT " ", demand.len, STR_ARG(demand));
    /* No language or type contains a space, and what may contain one is last. */
    if (spec->f2f)
        buf_fmt(&text, STR_FMT " " STR_FMT " " STR_FMT " %d %d", STR_ARG(spec->type),
                STR_ARG(spec->src), STR_ARG(spec->tgt), spec->options.require_tts,
                spec->options.require_asr);
    else
        buf_fmt(&text, "task " STR_FMT " %d ", STR_ARG(spec->type), spec->interactive);
    if (!spec->f2f)
        selector_canonical(&spec->selector, &text);
    /* A number practically unique to this text; never 0. */
    digest_sha256_hex(buf_view(&text), digest);
    digest[DIGITS] = 0;
    lane = strtoull(digest, NULL, 16);
    spare_give(&text);
    return lane ? lane : 1;
}

uint64_t spec_lane(const struct spec *spec)
{
    return lane_of(spec, spec->demand_text);
}

uint64_t spec_fit(const struct spec *spec)
{
    struct demand keyless;
    struct buf text = {0};
    uint64_t fit;

    if (!spec->demand || !spec->demand->key_count)
        return spec_lane(spec);
    keyless = *spec->demand;
    keyless.key_count = 0;
    demand_write(&keyless, &text);
    fit = lane_of(spec, buf_view(&text));
    buf_free(&text);
    return fit;
}

bool spec_has_needs(const struct spec *spec)
{
    const struct demand *demand = spec->demand;

    return demand && (demand->need_count || demand->gpus || demand->vram_mb);
}

void spec_gpus_write(uint64_t gpus, struct buf *to)
{
    char mark = '[';

    for (int id = 0; id < RESOURCES_GPU_IDS; id++)
        if (gpus >> id & 1) {
            buf_char(to, mark);
            buf_int(to, id);
            mark = ',';
        }
    if (mark == '[')
        buf_char(to, mark);
    buf_char(to, ']');
}

/* Has it a field that its node is not sent? */
static bool hides_some(const struct spec *spec)
{
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (fields[i].flags & SPEC_NOT_NODE && is_given(&fields[i], spec))
            return true;
    return false;
}

struct str spec_message(const struct spec *spec, const struct store_head *head, struct arena *arena)
{
    struct str rest = spec->json, type = spec_node_type(spec);
    struct buf buf = {0}; /* over arena memory: it never grows */
    char id[JOB_ID_TEXT + 1];

    assert(spec->json.len > 2 && spec->json.at[0] == '{' && head->attempt > 0);
    if (type.len != spec->type.len || hides_some(spec)) { /* as its node may see it */
        struct spec shown = *spec;

        shown.type = type;
        write_spec(&shown, SPEC_NOT_NODE,
                   type.len == spec->type.len ? STR_NONE : namespace_of(spec->type), arena);
        rest = shown.json;
    }
    job_id_text(head->id, id);
    buf.cap = HEAD_MAX + rest.len;
    buf.at = arena_raw(arena, buf.cap);
    buf_str(&buf, STR("{\"job_id\":\""));
    buf_str(&buf, str_of(id));
    buf_str(&buf, STR("\",\"attempt_id\":"));
    buf_int(&buf, head->attempt);
    buf_str(&buf, STR(",\"send_id\":"));
    buf_int(&buf, head->dispatched_ms);
    buf_str(&buf, STR(",\"deadline_ms\":"));
    buf_int(&buf, head->due_ms);
    if (head->gpus) {
        buf_str(&buf, STR(",\"gpus\":"));
        spec_gpus_write(head->gpus, &buf);
    }
    buf_char(&buf, ',');
    assert(buf.len < HEAD_MAX);
    buf_add(&buf, rest.at + 1, rest.len - 1); /* after its brace */
    return buf_view(&buf);
}
