/* Reading registrations and heartbeats. The store keeps the facts JSON written here, and
 * node_report_stored() reads it back after a restart. */
#include "sched/node_report.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/schema.h"
#include "model/level.h"
#include "model/node.h"
#include "model/warm.h"
#include "sched/shared_text.h"
#include "sched/snapshot.h"
#include "store/store.h"

#define NODE_REPORT_FIGURE_MAX INT64_C(1000000000000000) /* any other figure */

enum { MAX_JOBS_DEFAULT = 4, PRIORITY_DEFAULT = 100, TEXTS_MAX = 64, RESOURCES_BYTES_MAX = 8192 };

static const char *const health_names[] = {"unknown",  "registering", "ready", "degraded",
                                           "draining", "offline",     NULL};
_Static_assert(COUNT_OF(health_names) == NODE_HEALTH_COUNT + 1, "names follow enum node_health");

static const char *const level_names[] = {"normal", "warning", "danger", "critical", NULL};
_Static_assert(COUNT_OF(level_names) == LEVEL_COUNT + 1, "names follow enum level");

#define ROW(member, kind, ...) FIELD_ROW(node_report, member, kind, __VA_ARGS__)
static const struct field fields[] = {
    ROW(node_id, ID, .max = NODE_ID_MAX, .flags = FIELD_SENDER),
    ROW(health, ENUM, .names = health_names, .shape = "=ready|=degraded|=draining|=offline"),
    ROW(semantic_langs, JSON, .shape = "[string]"),
    ROW(nmt_pairs, JSON, .shape = "[[string]]|=any"),
    ROW(tts_langs, JSON, .shape = "[string]"),
    ROW(capability_by_type, JSON, .shape = "{boolean|null}"),
    ROW(allowed_types, JSON, .shape = "[string]", .help = "task types; \"*\" is every type"),
    ROW(labels, JSON, .shape = "{string}"),
    ROW(tags, JSON, .shape = "{string|null}", .help = "of a member, see PROTOCOL.md"),
    ROW(max_concurrent_jobs, INT, .max = NODE_REPORT_SLOTS_MAX),
    ROW(endpoint, STR, .max = 2048),
    ROW(agent_version, STR, .max = 64),
    ROW(name, STR, .max = 128),
    ROW(role, STR, .max = 128),
    ROW(reserved_slots, INT, .max = NODE_REPORT_SLOTS_MAX),
    ROW(priority, INT, .max = 1000),
    ROW(resources, JSON, .shape = "{number|[{any}]}",
        .help = "what it has: {cpu: 8, mem_mb: 15000, gpus: [{id, model, vram_mb}]}"),
    ROW(free, JSON, .shape = "{number|[{any}]}", .help = "how much of that is free now"),
    ROW(ours, JSON, .shape = "{number|[{any}]}",
        .help = "how much of it its jobs have, each at most what it needs"),
    ROW(max, INT, .max = NODE_REPORT_SLOTS_MAX),
    ROW(level, ENUM, .names = level_names),
    ROW(usage, JSON, .shape = "{any}"),
    ROW(claim, JSON, .shape = "{any}", .help = "how its claims of deployments went"),
    ROW(loaded, JSON, .shape = "[string]",
        .help = "names of what it holds ready, for jobs that prefer it"),
    ROW(current_load, JSON, .shape = "{number|null}"),
    ROW(running_jobs, JSON, .shape = "[Run]"),
    ROW(taking, INT, .help = "jobs it has received and not begun"),
};

const struct schema node_report_schema = {
    .what = "the report", .fields = fields, .count = COUNT_OF(fields)};

/* The parts of `usage` shown to others: the web page and the terminal compute with them, and they
 * are summed. Anything else in it is kept unchanged. */
struct usage {
    double figure;
    int64_t slots;
    struct str text;
    const struct json *clamps;
};

#define FIGURE(key)                                                                                \
    {                                                                                              \
        .name = key, .type = FIELD_REAL, .offset = offsetof(struct usage, figure),                 \
        .max = NODE_REPORT_FIGURE_MAX                                                              \
    }
#define SLOTS(key)                                                                                 \
    {                                                                                              \
        .name = key, .type = FIELD_INT, .offset = offsetof(struct usage, slots),                   \
        .max = NODE_REPORT_SLOTS_MAX                                                               \
    }
#define TEXT(key)                                                                                  \
    {                                                                                              \
        .name = key, .type = FIELD_STR, .offset = offsetof(struct usage, text)                     \
    }

static const struct field usage_fields[] = {
    FIGURE("cpu_cores"),
    FIGURE("cpu_load"),
    FIGURE("cpu_pct"),
    FIGURE("mem_total_gb"),
    FIGURE("mem_free_gb"),
    FIGURE("swap_used_pct"),
    FIGURE("disk_total_gb"),
    FIGURE("disk_free_gb"),
    FIGURE("gpu_pct"),
    SLOTS("slots_max"),
    SLOTS("slots_available"),
    SLOTS("slots_in_use"),
    TEXT("tripped"),
    TEXT("slots_reason"),
    {.name = "clamps", .type = FIELD_JSON, .offset = offsetof(struct usage, clamps)},
};
static const struct schema usage_schema = {
    .what = "usage", .fields = usage_fields, .count = COUNT_OF(usage_fields)};

static const struct field clamp_fields[] = {
    TEXT("name"),
    TEXT("reason"),
    {.name = "value",
     .type = FIELD_REAL,
     .offset = offsetof(struct usage, figure),
     .min = -NODE_REPORT_FIGURE_MAX,
     .max = NODE_REPORT_FIGURE_MAX},
};
static const struct schema clamp_schema = {
    .what = "a clamp", .fields = clamp_fields, .count = COUNT_OF(clamp_fields)};

static enum err check_usage(const struct json *value, struct arena *arena, struct problem *why)
{
    struct usage usage = {0};
    enum err err =
        json_is_null(value) ? ERR_OK : schema_read(&usage_schema, value, &usage, arena, why);
    const struct json *list = usage.clamps;

    if (err || json_is_null(list))
        return err;
    if (json_type(list) != JSON_ARR)
        return problem_set(why, ERR_BAD_FIELD, "clamps", "clamps must be a list.");
    for (const struct json *clamp = json_items(list); !err && clamp;
         clamp = json_after(list, clamp))
        err = json_type(clamp) == JSON_OBJ
                  ? schema_read(&clamp_schema, clamp, &usage, arena, why)
                  : problem_set(why, ERR_BAD_FIELD, "clamps", "clamps must be a list of objects.");
    return err;
}

static bool fits_board(const struct json *value, const char *field, struct problem *why)
{
    if (json_is_null(value) ||
        (json_type(value) == JSON_OBJ && value->len <= SHARED_TEXT_BYTES_MAX))
        return true;
    problem_set(why, ERR_BAD_FIELD, field, "%s must be an object of at most %d bytes.", field,
                SHARED_TEXT_BYTES_MAX);
    return false;
}

enum err node_report_read(const struct json *body, struct str who, const struct node_rules *rules,
                          struct arena *arena, struct node_report *ret_report, struct problem *why)
{
    struct node_report report = {.node_id = who,
                                 .health = NODE_HEALTH_NONE,
                                 .max_concurrent_jobs = FIELD_OFF,
                                 .reserved_slots = FIELD_OFF,
                                 .priority = FIELD_OFF,
                                 .max = FIELD_OFF,
                                 .level = -1};
    const struct json *fixed;
    enum err err = schema_read(&node_report_schema, body, &report, arena, why);

    if (err)
        return err;
    if (!report.node_id.at)
        return problem_set(why, ERR_BAD_FIELD, "node_id", "node_id is required.");
    if (who.at && !str_eq(who, report.node_id))
        return problem_set(why, ERR_FORBIDDEN, "node_id", "This connection is " STR_FMT "'s.",
                           STR_ARG(who));
    /* The other values are the server's judgement of a node, not for the node to report. */
    if (!json_is_null(json_get(body, "health")) && report.health < NODE_READY)
        return problem_set(why, ERR_BAD_FIELD, "health",
                           "health must be ready, degraded, draining or offline.");
    if (!fits_board(report.usage, "usage", why) || !fits_board(report.claim, "claim", why))
        return ERR_BAD_FIELD;
    if (!warm_names(report.loaded, WARM_LOADED_MAX, arena, &report.loaded_names) ||
        (report.loaded && json_raw(report.loaded).len > WARM_LIST_BYTES_MAX))
        return problem_set(why, ERR_BAD_FIELD, "loaded",
                           "loaded must be a list of at most %d " WARM_NAME_RULE
                           "; together at most %d bytes.",
                           WARM_LOADED_MAX, WARM_LIST_BYTES_MAX);
    err = check_usage(report.usage, arena, why);
    if (!err && (!json_is_null(report.free) || !json_is_null(report.ours))) {
        struct resources any = {
            0}; /* what the node declares is not known here: only the form is checked */

        err = resources_read_free(report.free, report.ours, arena, &any, why);
    }
    if (err)
        return err;
    report.registers = report.max_concurrent_jobs != FIELD_OFF ||
                       !json_is_null(report.semantic_langs) || !json_is_null(report.allowed_types);
    fixed = rules ? node_rules_find(rules, report.node_id) : NULL;
    if (fixed) /* overrides what the node itself sent */
        err = schema_read(&node_report_schema, fixed, &report, arena, why);
    report.namespaces = json_get(fixed, "namespaces");
    *ret_report = report;
    return err;
}

enum { MARK_SEMANTIC, MARK_NMT, MARK_TTS, MARK_CAPS }; /* the first ones; the rest have no names */

/* The fingerprint of one field as it was sent; 0 = not sent. */
static uint32_t mark_str(struct str text)
{
    uint32_t mark = text.at ? (uint32_t)str_hash(text) : 0;

    return mark || !text.at ? mark : 1;
}

static uint32_t mark_int(int64_t value)
{
    return value == FIELD_OFF ? 0 : (uint32_t)value + 1;
}

static uint32_t mark_json(const struct json *value)
{
    return json_is_null(value) ? 0 : mark_str(json_raw(value));
}

static void marks_of(const struct node_report *report, uint32_t marks[NODE_MARKS])
{
    const uint32_t all[] = {[MARK_SEMANTIC] = mark_json(report->semantic_langs),
                            [MARK_NMT] = mark_json(report->nmt_pairs),
                            [MARK_TTS] = mark_json(report->tts_langs),
                            [MARK_CAPS] = mark_json(report->capability_by_type),
                            mark_json(report->allowed_types),
                            mark_json(report->labels),
                            mark_json(report->tags),
                            mark_int(report->max_concurrent_jobs),
                            mark_str(report->endpoint),
                            mark_str(report->agent_version),
                            mark_str(report->name),
                            mark_str(report->role),
                            mark_int(report->reserved_slots),
                            mark_int(report->priority),
                            mark_json(report->resources)};

    _Static_assert(COUNT_OF(all) == NODE_MARKS, "one mark for each fact");
    memcpy(marks, all, sizeof all);
}

bool node_report_is_news(const struct node_report *report, const struct node *node)
{
    uint32_t marks[NODE_MARKS];

    if (report->health != NODE_HEALTH_NONE &&
        report->health != atomic_load_explicit(&node->own, memory_order_relaxed))
        return true;
    marks_of(report, marks);
    for (int i = 0; i < NODE_MARKS; i++)
        if (marks[i] && marks[i] != atomic_load_explicit(&node->marks[i], memory_order_relaxed))
            return true;
    return false;
}

void node_report_remember(const struct node_report *report, struct node *node)
{
    uint32_t marks[NODE_MARKS];

    marks_of(report, marks);
    /* Lists without capabilities derive them anew: earlier values no longer hold. */
    if (!marks[MARK_CAPS] && (marks[MARK_SEMANTIC] || marks[MARK_NMT] || marks[MARK_TTS]))
        atomic_store_explicit(&node->marks[MARK_CAPS], 0, memory_order_relaxed);
    for (int i = 0; i < NODE_MARKS; i++)
        if (marks[i])
            atomic_store_explicit(&node->marks[i], marks[i], memory_order_relaxed);
}

static enum err read_langs(const struct json *list, const char *field, struct facts *facts,
                           struct str **ret_langs, size_t *ret_count, struct problem *why)
{
    if (json_type(list) != JSON_ARR || list->count > NODE_REPORT_LANGS_MAX)
        return problem_set(why, ERR_BAD_FIELD, field,
                           "%s must be a list of at most %d language codes.", field,
                           NODE_REPORT_LANGS_MAX);
    struct str *langs = arena_array(&facts->arena, struct str, list->count + 1), *lang = langs;
    for (const struct json *item = json_items(list); item; item = json_after(list, item))
        if (!pool_lang_normalise(json_str(item, &facts->arena), &facts->arena, lang++))
            return problem_set(why, ERR_BAD_FIELD, field,
                               "%s must hold language codes like \"en\" or \"zh-tw\".", field);
    *ret_langs = langs;
    *ret_count = list->count;
    return ERR_OK;
}

static enum err read_pairs(const struct json *list, struct facts *facts, struct problem *why)
{
    struct pool_facts *pool = &facts->pool;

    pool->nmt_any = json_str_is(list, "any");
    pool->nmt_count = 0;
    if (pool->nmt_any)
        return ERR_OK;
    if (json_type(list) != JSON_ARR || list->count > NODE_REPORT_PAIRS_MAX)
        return problem_set(why, ERR_BAD_FIELD, "nmt_pairs",
                           "nmt_pairs must be \"any\" or a list of at most %d pairs like "
                           "[\"en\",\"zh\"].",
                           NODE_REPORT_PAIRS_MAX);
    pool->nmt_pairs = arena_array(&facts->arena, struct pool_pair, list->count + 1);
    for (const struct json *item = json_items(list); item; item = json_after(list, item)) {
        const struct json *src = item->count == 2 ? json_items(item) : NULL;
        struct pool_pair *pair = &pool->nmt_pairs[pool->nmt_count++];

        if (!src || !pool_lang_normalise(json_str(src, &facts->arena), &facts->arena, &pair->src) ||
            !pool_lang_normalise(json_str(json_next(src), &facts->arena), &facts->arena,
                                 &pair->tgt))
            return problem_set(why, ERR_BAD_FIELD, "nmt_pairs",
                               "nmt_pairs must hold pairs of language codes like [\"en\",\"zh\"].");
    }
    return ERR_OK;
}

static enum err read_types(const struct json *list, struct facts *facts, struct problem *why)
{
    if (json_type(list) != JSON_ARR || list->count > NODE_REPORT_TYPES_MAX)
        return problem_set(why, ERR_BAD_FIELD, "allowed_types",
                           "allowed_types must be a list of at most %d task types.",
                           NODE_REPORT_TYPES_MAX);
    struct str *types = arena_array(&facts->arena, struct str, list->count + 1);
    size_t count = 0;
    for (const struct json *item = json_items(list); item; item = json_after(list, item)) {
        struct str type = json_str(item, &facts->arena);

        if (!str_is(type, "*") && !str_is_id(type, POOL_LANG_MAX))
            return problem_set(why, ERR_BAD_FIELD, "allowed_types",
                               "allowed_types must hold task types of 1 to %d letters, digits or "
                               "._:@-, or \"*\".",
                               POOL_LANG_MAX);
        if (!str_in(type, types, count)) /* a type sent twice would be in the pool twice */
            types[count++] = arena_str(&facts->arena, type);
    }
    facts->pool.types = types;
    facts->pool.type_count = count;
    return ERR_OK;
}

/* A capability that was not sent follows from the lists. */
static enum err read_capabilities(const struct json *obj, struct facts *facts, struct problem *why)
{
    struct pool_facts *pool = &facts->pool;
    const struct {
        const char *name;
        bool *value;
    } rows[] = {{"asr", &pool->asr},
                {"nmt", &pool->nmt},
                {"tts", &pool->tts},
                {"tone", &pool->tone},
                {"semantic", &pool->semantic}};

    pool_derive(pool);
    if (!json_is_null(obj) && json_type(obj) != JSON_OBJ)
        return problem_set(why, ERR_BAD_FIELD, "capability_by_type",
                           "capability_by_type must be an object of true and false.");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct json *value = json_get(obj, rows[i].name);

        if (!json_is_null(value) && !json_bool(value, rows[i].value))
            return problem_set(why, ERR_BAD_FIELD, "capability_by_type",
                               "capability_by_type.%s must be true or false.", rows[i].name);
    }
    return ERR_OK;
}

static enum err check_texts(const struct json *obj, const char *field, bool null_ok,
                            struct problem *why)
{
    if (json_type(obj) != JSON_OBJ || obj->count > TEXTS_MAX)
        return problem_set(why, ERR_BAD_FIELD, field, "%s must be an object of at most %d texts.",
                           field, TEXTS_MAX);
    for (const struct json *key = json_keys(obj); key; key = json_after(obj, key))
        if ((json_type(key + 1) != JSON_STR && !(null_ok && json_is_null(key + 1))) ||
            key[1].len > 256 || key->len > 128)
            return problem_set(why, ERR_BAD_FIELD, field,
                               "%s must hold texts of at most 256 bytes%s.", field,
                               null_ok ? ", or null" : "");
    return ERR_OK;
}

/* Tags are sent one by one, by the node or by an operator: those not mentioned stay. */
static void write_tags(const struct json *tags, const struct json *unless, struct jsonw *w,
                       struct arena *arena)
{
    for (const struct json *key = json_keys(tags); key; key = json_after(tags, key)) {
        struct str name = json_str(key, arena);

        if (json_is_null(key + 1) ||
            (unless && json_get(unless, arena_cstr(arena, name)))) /* sent again, or removed */
            continue;
        jsonw_key_str(w, name);
        jsonw_raw(w, json_raw(key + 1));
    }
}

static enum err merge_tags(const struct json *sent, const struct json *old, struct facts *facts,
                           struct problem *why)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    enum err err = json_is_null(sent) ? ERR_OK : check_texts(sent, "tags", true, why);

    if (err)
        return err;
    jsonw_obj(&w);
    write_tags(old, sent, &w, &facts->arena);
    write_tags(sent, NULL, &w, &facts->arena);
    jsonw_end_obj(&w);
    facts->tags = arena_str(&facts->arena, buf_view(&buf));
    buf_free(&buf);
    return ERR_OK;
}

static enum err take_resources(const struct json *value, struct facts *facts, struct problem *why)
{
    struct resources *resources;
    enum err err;

    if (json_is_null(value))
        return ERR_OK;
    if (json_raw(value).len > RESOURCES_BYTES_MAX)
        return problem_set(why, ERR_BAD_FIELD, "resources", "resources must be at most %d bytes.",
                           RESOURCES_BYTES_MAX);
    resources = arena_new(&facts->arena, struct resources);
    err = resources_read(value, &facts->arena, resources, why);
    if (err || (!resources->count && !resources->gpu_count))
        return err;
    facts->resources = resources;
    facts->resources_json = arena_str(&facts->arena, json_raw(value));
    err = json_parse(facts->resources_json, &facts->arena, &value, why);
    if (!err && resources->gpu_count)
        facts->gpus = json_get(value, "gpus");
    return err;
}

/* Fields that a heartbeat left out come from the previous record's JSON: one code path for both. */
static const struct json *or_before(const struct json *sent, const struct json *before,
                                    const char *name)
{
    return json_is_null(sent) ? json_get(before, name) : sent;
}

/* Its resources can be matched like labels; a label of the same name takes precedence. */
static void write_figures(const struct facts *facts, const struct json *labels, struct jsonw *w)
{
    const struct resources *resources = facts->resources;
    struct buf text = {0};
    int32_t vram_mb = 0, first = 0;

    for (size_t i = 0; i < resources->count; i++) {
        struct str name = str_of(resources->items[i].name);

        if (json_get(labels, resources->items[i].name))
            continue;
        buf_clear(&text);
        demand_write_amount(name, resources->items[i].capacity, &text);
        jsonw_key_str(w, name);
        jsonw_str(w, buf_view(&text));
    }
    for (size_t i = 0; i < resources->gpu_count; i++)
        if (resources->gpus[i].vram_mb > vram_mb) {
            vram_mb = resources->gpus[i].vram_mb;
            first = resources->gpus[i].id;
        }
    buf_clear(&text);
    buf_int(&text, (int64_t)resources->gpu_count);
    if (!json_get(labels, "gpu.count"))
        jsonw_kstr(w, "gpu.count", buf_view(&text));
    buf_clear(&text);
    buf_int(&text, vram_mb);
    if (resources->gpu_count && !json_get(labels, "gpu.vram_mb"))
        jsonw_kstr(w, "gpu.vram_mb", buf_view(&text));
    const struct json *model = resources->gpu_count ? facts_gpu_model(facts, first) : NULL;
    if (model && !json_get(labels, "gpu.model"))
        jsonw_kraw(w, "gpu.model", json_raw(model));
    buf_free(&text);
}

/* The values that selectors match. */
static enum err read_label_values(struct facts *facts, struct problem *why)
{
    const struct json *labels;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    enum err err = json_parse(facts->labels, &facts->arena, &labels, why);

    if (err || !facts->resources) {
        facts->label_values = labels;
        return err;
    }
    jsonw_obj(&w);
    for (const struct json *key = json_keys(labels); key; key = json_after(labels, key)) {
        jsonw_key_str(&w, json_str(key, &facts->arena));
        jsonw_raw(&w, json_raw(key + 1));
    }
    write_figures(facts, labels, &w);
    jsonw_end_obj(&w);
    err = json_parse(arena_str(&facts->arena, buf_view(&buf)), &facts->arena, &facts->label_values,
                     why);
    buf_free(&buf);
    return err;
}

/* The sent value, else the previous one; empty: none. */
static struct str text_or(struct str sent, struct str before, struct arena *arena)
{
    struct str text = sent.at ? sent : before;

    return text.len ? arena_str(arena, text) : STR_NONE;
}

static enum err fill_facts(const struct node_report *report, const struct facts *before,
                           const struct json *old, struct facts *facts, struct problem *why)
{
    static const struct facts defaults = {.max_concurrent_jobs = MAX_JOBS_DEFAULT,
                                          .priority = PRIORITY_DEFAULT};
    const struct json *semantic = or_before(report->semantic_langs, old, "semantic_langs");
    const struct json *nmt = or_before(report->nmt_pairs, old, "nmt_pairs");
    const struct json *tts = or_before(report->tts_langs, old, "tts_langs");
    const struct json *types = or_before(report->allowed_types, old, "allowed_types");
    const struct json *labels = or_before(report->labels, old, "labels");
    const struct json *caps = report->capability_by_type;
    enum err err = ERR_OK;

    if (!before)
        before = &defaults;
    /* New lists without capabilities derive them anew; without new lists the old ones stay. */
    if (json_is_null(caps) && json_is_null(report->semantic_langs) &&
        json_is_null(report->nmt_pairs) && json_is_null(report->tts_langs))
        caps = json_get(old, "capability_by_type");
    if (!json_is_null(semantic))
        err = read_langs(semantic, "semantic_langs", facts, &facts->pool.semantic_langs,
                         &facts->pool.semantic_count, why);
    if (!err && !json_is_null(nmt))
        err = read_pairs(nmt, facts, why);
    if (!err && !json_is_null(tts))
        err = read_langs(tts, "tts_langs", facts, &facts->pool.tts_langs, &facts->pool.tts_count,
                         why);
    if (!err && !json_is_null(types))
        err = read_types(types, facts, why);
    if (!err && !json_is_null(labels))
        err = check_texts(labels, "labels", false, why);
    if (!err)
        err = take_resources(or_before(report->resources, old, "resources"), facts, why);
    if (!err)
        err = merge_tags(report->tags, json_get(old, "tags"), facts, why);
    if (!err)
        err = read_capabilities(caps, facts, why);
    if (err)
        return err;
    facts->labels = json_is_null(labels) ? STR("{}") : arena_str(&facts->arena, json_raw(labels));
    facts->max_concurrent_jobs = report->max_concurrent_jobs != FIELD_OFF
                                     ? (int32_t)report->max_concurrent_jobs
                                     : before->max_concurrent_jobs;
    facts->reserved_slots = report->reserved_slots != FIELD_OFF ? (int32_t)report->reserved_slots
                                                                : before->reserved_slots;
    facts->priority = report->priority != FIELD_OFF ? report->priority : before->priority;
    facts->endpoint = text_or(report->endpoint, before->endpoint, &facts->arena);
    facts->agent_version = text_or(report->agent_version, before->agent_version, &facts->arena);
    facts->name = text_or(report->name, before->name, &facts->arena);
    facts->role = text_or(report->role, before->role, &facts->arena);
    return read_label_values(facts, why);
}

enum err node_report_facts(const struct node_report *report, const struct facts *before,
                           struct facts **ret_facts, struct problem *why)
{
    struct arena scratch = {0};
    const struct json *old = NULL;
    struct facts *facts = facts_new();
    enum err err = before ? json_parse(before->json, &scratch, &old, why) : ERR_OK;

    if (!err)
        err = fill_facts(report, before, old, facts, why);
    arena_free(&scratch);
    if (err) {
        facts_unref(facts);
        return err;
    }
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    jsonw_obj(&w);
    jsonw_kstr(&w, "node_id", report->node_id);
    pool_facts_write(&w, &facts->pool, "capability_by_type");
    jsonw_kraw(&w, "labels", facts->labels);
    jsonw_kraw(&w, "tags", facts->tags);
    jsonw_kint(&w, "max_concurrent_jobs", facts->max_concurrent_jobs);
    jsonw_kint(&w, "reserved_slots", facts->reserved_slots);
    jsonw_kint(&w, "priority", facts->priority);
    jsonw_kstr(&w, "endpoint", facts->endpoint);
    jsonw_kstr(&w, "agent_version", facts->agent_version);
    jsonw_kstr(&w, "name", facts->name);
    jsonw_kstr(&w, "role", facts->role);
    if (facts->resources)
        jsonw_kraw(&w, "resources", facts->resources_json);
    jsonw_end_obj(&w);
    assert(w.depth == 0 && report->node_id.len > 0);
    facts->json = arena_str(&facts->arena, buf_view(&buf));
    buf_free(&buf);
    facts->namespaces = report->namespaces;
    assert(facts->max_concurrent_jobs >= 0 && facts->label_values);
    *ret_facts = facts;
    return ERR_OK;
}

enum err node_report_stored(struct str facts_json, const struct node_rules *rules,
                            struct facts **ret_facts, struct problem *why)
{
    struct arena arena = {0};
    const struct json *root;
    struct node_report report;
    enum err err = json_parse(facts_json, &arena, &root, why);

    if (!err)
        err = node_report_read(root, STR_NONE, rules, &arena, &report, why);
    if (!err)
        err = node_report_facts(&report, NULL, ret_facts, why);
    arena_free(&arena);
    return err;
}

static bool read_share(const struct json *load, const char *name, int32_t *ret_pm)
{
    const struct json *value = json_get(load, name);
    double share;

    if (json_is_null(value))
        return true;
    if (!json_double(value, &share) || !(share >= 0) || share > 1000)
        return false;
    *ret_pm = share >= 1 ? 1000 : (int32_t)lround(share * 1000);
    assert(*ret_pm >= 0 && *ret_pm <= 1000);
    return true;
}

enum err node_report_load(const struct node_report *report, struct node_report_load *ret_load,
                          struct problem *why)
{
    *ret_load = (struct node_report_load){.cpu_pm = -1, .gpu_pm = -1, .mem_pm = -1};
    if (json_is_null(report->current_load))
        return ERR_OK;
    if (json_type(report->current_load) != JSON_OBJ ||
        !read_share(report->current_load, "cpu", &ret_load->cpu_pm) ||
        !read_share(report->current_load, "gpu", &ret_load->gpu_pm) ||
        !read_share(report->current_load, "mem", &ret_load->mem_pm))
        return problem_set(why, ERR_BAD_FIELD, "current_load",
                           "current_load must hold cpu, gpu and mem as shares from 0 to 1.");
    return ERR_OK;
}

enum err node_report_runs(const struct node_report *report, struct arena *arena,
                          struct store_run **ret_runs, size_t *ret_count, struct problem *why)
{
    const struct json *list = report->running_jobs;

    *ret_runs = NULL;
    *ret_count = 0;
    if (json_is_null(list))
        return ERR_OK;
    if (json_type(list) != JSON_ARR || list->count > NODE_REPORT_RUNS_MAX)
        return problem_set(why, ERR_BAD_FIELD, "running_jobs",
                           "running_jobs must be a list of at most %d jobs.", NODE_REPORT_RUNS_MAX);
    struct store_run *runs = arena_array(arena, struct store_run, list->count + 1), *run = runs;
    for (const struct json *item = json_items(list); item; item = json_after(list, item), run++) {
        int64_t attempt;

        if (!job_id_parse(json_str(json_get(item, "job_id"), arena), &run->id) ||
            !json_int(json_get(item, "attempt_id"), &attempt) || attempt < 1 ||
            attempt > JOB_ATTEMPTS_MAX)
            return problem_set(why, ERR_BAD_FIELD, "running_jobs",
                               "running_jobs must hold objects with job_id and attempt_id.");
        run->attempt = (int)attempt;
    }
    *ret_runs = runs;
    *ret_count = list->count;
    return ERR_OK;
}
