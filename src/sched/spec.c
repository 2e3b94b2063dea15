/* Job specifications. One table of fields serves requests and stored records alike; the stored form
 * uses the names a job shows (`src`), the requests longer ones (`src_lang`). */
#include "sched/spec.h"

#include <assert.h>
#include <stdlib.h>

#include "base/digest.h"
#include "model/argv.h"
#include "model/pool.h"
#include "model/trace.h"

enum { HEAD_MAX = 128, TEXT_MAX = 256, REF_MAX = 4096, DAY_MS = 24 * 3600 * 1000 };

static const struct field option_fields[] = {
    {.name = "require_tts",
     .type = FIELD_BOOL,
     .offset = offsetof(struct spec_options, require_tts)},
    {.name = "require_asr",
     .type = FIELD_BOOL,
     .offset = offsetof(struct spec_options, require_asr)},
    {.name = "strict", .type = FIELD_BOOL, .offset = offsetof(struct spec_options, strict)},
    {.name = "preferred_node_id",
     .type = FIELD_ID,
     .offset = offsetof(struct spec_options, preferred_node_id),
     .max = NODE_ID_MAX},
};

#define SPEC_AT(member) offsetof(struct spec, member)

static const struct field fields[] = {
    {.name = "session_id",
     .type = FIELD_STR,
     .offset = SPEC_AT(session_id),
     .min = 1,
     .max = TEXT_MAX},
    {.name = "src",
     .alias = "src_lang",
     .type = FIELD_STR,
     .offset = SPEC_AT(src),
     .max = POOL_LANG_MAX},
    {.name = "tgt",
     .alias = "tgt_lang",
     .type = FIELD_STR,
     .offset = SPEC_AT(tgt),
     .max = POOL_LANG_MAX},
    {.name = "audio_ref", .type = FIELD_STR, .offset = SPEC_AT(audio_ref), .max = REF_MAX},
    {.name = "options",
     .type = FIELD_OBJ,
     .offset = SPEC_AT(options),
     .fields = option_fields,
     .field_count = COUNT_OF(option_fields)},
    {.name = "type", .type = FIELD_NAME, .offset = SPEC_AT(type), .max = POOL_LANG_MAX},
    {.name = "title", .type = FIELD_STR, .offset = SPEC_AT(title), .max = TEXT_MAX},
    {.name = "priority", .type = FIELD_INT, .offset = SPEC_AT(priority), .min = 0, .max = 9},
    {.name = "payload", .type = FIELD_JSON, .offset = SPEC_AT(payload)},
    {.name = "command", .type = FIELD_JSON, .offset = SPEC_AT(command)},
    {.name = "secrets", .type = FIELD_JSON, .offset = SPEC_AT(secrets)},
    {.name = "requires", .type = FIELD_STR, .offset = SPEC_AT(requires), .max = 1024},
    {.name = "interactive", .type = FIELD_BOOL, .offset = SPEC_AT(interactive)},
    {.name = "queue_ms", .type = FIELD_MS, .offset = SPEC_AT(queue_ms), .min = 0, .max = DAY_MS},
    {.name = "timeout_ms",
     .type = FIELD_MS,
     .offset = SPEC_AT(timeout_ms),
     .min = 0,
     .max = 30LL * DAY_MS},
    {.name = "max_attempts",
     .alias = "max_retry",
     .type = FIELD_INT,
     .offset = SPEC_AT(max_attempts),
     .min = 1,
     .max = JOB_ATTEMPTS_MAX},
    {.name = "callback_url", .type = FIELD_STR, .offset = SPEC_AT(callback_url), .max = 2048},
    {.name = "traceparent",
     .type = FIELD_STR,
     .offset = SPEC_AT(traceparent),
     .max = TRACE_PARENT_LEN},
    {.name = "retried_from", .type = FIELD_ID, .offset = SPEC_AT(retried_from), .max = JOB_ID_TEXT},
    {.name = "submitted_by", .type = FIELD_STR, .offset = SPEC_AT(submitted_by), .max = TEXT_MAX},
};

static const struct schema spec_schema = {
    .what = "the job", .fields = fields, .count = COUNT_OF(fields)};

/* `namespace`: for a node; at == NULL: it is in the type. */
static void write_spec_in(struct spec *spec, struct str namespace, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    buf_reserve(&buf, 512);
    jsonw_obj(&w);
    jsonw_kstr(&w, "type", spec->type);
    if (spec->traceparent.at)
        jsonw_kstr(&w, "traceparent", spec->traceparent);
    if (namespace.at)
        jsonw_kstr(&w, "namespace", namespace);
    if (spec->session_id.at)
        jsonw_kstr(&w, "session_id", spec->session_id);
    if (spec->f2f) {
        jsonw_kstr(&w, "src", spec->src);
        jsonw_kstr(&w, "tgt", spec->tgt);
        jsonw_kstr(&w, "audio_ref", spec->audio_ref);
    }
    if (spec->options_raw)
        jsonw_kraw(&w, "options", json_raw(spec->options_raw));
    if (spec->title.at)
        jsonw_kstr(&w, "title", spec->title);
    jsonw_kint(&w, "priority", spec->priority);
    if (!json_is_null(spec->payload))
        jsonw_kraw(&w, "payload", json_raw(spec->payload));
    if (!json_is_null(spec->command))
        jsonw_kraw(&w, "command", json_raw(spec->command));
    if (!json_is_null(spec->secrets))
        jsonw_kraw(&w, "secrets", json_raw(spec->secrets));
    if (spec->requires.at)
        jsonw_kstr(&w, "requires", spec->requires);
    if (spec->interactive)
        jsonw_kbool(&w, "interactive", true);
    if (spec->queue_ms)
        jsonw_kint(&w, "queue_ms", spec->queue_ms);
    if (spec->timeout_ms)
        jsonw_kint(&w, "timeout_ms", spec->timeout_ms);
    if (spec->max_attempts != FIELD_OFF)
        jsonw_kint(&w, "max_attempts", spec->max_attempts);
    if (spec->callback_url.at)
        jsonw_kstr(&w, "callback_url", spec->callback_url);
    if (spec->retried_from.at)
        jsonw_kstr(&w, "retried_from", spec->retried_from);
    if (spec->submitted_by.at)
        jsonw_kstr(&w, "submitted_by", spec->submitted_by);
    jsonw_end_obj(&w);
    assert(w.depth == 0 && spec->type.at);
    spec->json = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
}

static void write_spec(struct spec *spec, struct arena *arena)
{
    write_spec_in(spec, STR_NONE, arena);
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

static enum err read_fields(const struct json *body, struct arena *arena, struct spec *spec,
                            struct problem *why)
{
    struct strs words;
    enum err err = schema_read(&spec_schema, body, spec, arena, why);

    if (err)
        return err;
    const struct json *options = json_get(body, "options");
    spec->options_raw = json_is_null(options) ? NULL : options;
    if (spec->requires.at && !selector_valid(spec->requires))
        return problem_set(why, ERR_BAD_FIELD, "requires",
                           "requires must be a selector like \"region=cn,gpu=yes\".");
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
    return ERR_OK;
}

static enum err missing(struct problem *why, const char *name)
{
    return problem_set(why, ERR_BAD_FIELD, name, "%s is required.", name);
}

static enum err bad_lang(struct problem *why, const char *name)
{
    return problem_set(why, ERR_BAD_FIELD, name,
                       "%s must be a language code like \"en\" or \"zh-tw\".", name);
}

enum err spec_read_f2f(const struct json *body, const struct spec_author *author,
                       struct arena *arena, struct spec *ret_spec, struct problem *why)
{
    struct spec spec = {.f2f = true, .priority = SPEC_PRIORITY_F2F, .max_attempts = FIELD_OFF};
    enum err err = read_fields(body, arena, &spec, why);

    if (err)
        return err;
    if (!spec.src.at)
        return missing(why, "src_lang");
    if (!spec.tgt.at)
        return missing(why, "tgt_lang");
    if (!pool_lang_normalise(spec.src, arena, &spec.src))
        return bad_lang(why, "src_lang");
    if (!pool_lang_normalise(spec.tgt, arena, &spec.tgt))
        return bad_lang(why, "tgt_lang");
    spec.type = namespace_join(author->view.namespace, STR("f2f"), arena);
    spec.retried_from = STR_NONE; /* only spec_again() says so */
    spec.submitted_by = author->name;
    assert(spec.src.len && spec.tgt.len);
    spec.queue_ms = 0; /* face to face is refused at once when all are full */
    write_spec(&spec, arena);
    *ret_spec = spec;
    return ERR_OK;
}

enum err spec_read_task(const struct json *body, const struct spec_author *author,
                        struct arena *arena, struct spec *ret_spec, struct problem *why)
{
    struct spec spec = {.priority = SPEC_PRIORITY_TASK, .max_attempts = FIELD_OFF};
    enum err err = read_fields(body, arena, &spec, why);

    if (err)
        return err;
    if (!spec.type.at)
        return missing(why, "type");
    err = namespace_enter(&author->view, "type", spec.type, POOL_LANG_MAX, arena, &spec.type, why);
    if (err)
        return err;
    if (str_is(spec_node_type(&spec), "f2f"))
        return problem_set(why, ERR_BAD_FIELD, "type",
                           "type f2f goes to /v1/dispatch/f2f, with src_lang and tgt_lang.");
    spec.retried_from = STR_NONE;
    spec.submitted_by = author->name;
    write_spec(&spec, arena);
    *ret_spec = spec;
    return ERR_OK;
}

void spec_set_trace(struct spec *spec, struct str header, struct arena *arena)
{
    struct str known = trace_parent(str_trim(header));

    if (!known.len || spec->traceparent.at)
        return;
    spec->traceparent = known;
    write_spec(spec, arena);
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
    *ret_spec = spec;
    return ERR_OK;
}

static struct str json_for_node(const struct spec *spec, struct arena *arena)
{
    struct spec shown = *spec;
    struct str type = spec_node_type(spec);

    if (!spec->callback_url.at && type.len == spec->type.len)
        return spec->json;
    shown.callback_url = STR_NONE;
    shown.type = type;
    write_spec_in(&shown, type.len == spec->type.len ? STR_NONE : namespace_of(spec->type), arena);
    return shown.json;
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
    write_spec(ret_spec, arena);
    return ERR_OK;
}

struct store_account spec_account(const struct spec *spec)
{
    return (struct store_account){.name = spec->submitted_by, .bytes = (int64_t)spec->json.len};
}

uint64_t spec_lane(const struct spec *spec)
{
    enum { DIGITS = 16 };
    struct buf text = {0};
    char digest[DIGEST_HEX + 1];
    uint64_t lane;

    /* No language and no type has a space in it, and what may have one is last. */
    if (spec->f2f)
        buf_fmt(&text, STR_FMT " " STR_FMT " " STR_FMT " %d %d", STR_ARG(spec->type),
                STR_ARG(spec->src), STR_ARG(spec->tgt), spec->options.require_tts,
                spec->options.require_asr);
    else
        buf_fmt(&text, "task " STR_FMT " %d ", STR_ARG(spec->type), spec->interactive);
    if (!spec->f2f && spec->requires.at)
        selector_sorted(spec->requires, &text);
    digest_sha256_hex(buf_view(&text), digest);
    buf_free(&text);
    digest[DIGITS] = 0;
    lane = strtoull(digest, NULL, 16);
    return lane ? lane : 1;
}

struct str spec_message(const struct spec *spec, const struct store_head *head, struct arena *arena)
{
    struct str rest = json_for_node(spec, arena);
    struct buf buf = {0}; /* over memory of the arena: it never grows */
    char id[JOB_ID_TEXT + 1];

    assert(spec->json.len > 2 && spec->json.at[0] == '{' && head->attempt > 0);
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
    buf_char(&buf, ',');
    assert(buf.len < HEAD_MAX);
    buf_add(&buf, rest.at + 1, rest.len - 1); /* behind its brace */
    return buf_view(&buf);
}
