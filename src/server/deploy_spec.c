/* The spec of a deployment: its fields, read strictly and kept in one form; and how it is shown. */
#include <assert.h>
#include <string.h>

#include "model/selector.h"
#include "server/deploy.h"

enum { TEXT_MAX = 4096, WORDS_MAX = 256, ENV_MAX = 256, DAY_MS = 86400000 };

struct health_fields {
    struct str command, http;
    int64_t interval_ms, timeout_ms, failures, start_ms;
};

struct spec_fields {
    struct str id;
    int type;
    struct str package_name, package_version, selector;
    const struct json *command, *args, *env;
    bool enabled;
    struct health_fields health;
    int64_t memory_mb, cpu_percent, pids;
    int64_t stop_grace_ms;
    int64_t restart_min_ms, restart_max_ms;
    const struct json *ignored;
};

#define AT(member) offsetof(struct spec_fields, member)
#define MS(n, m)                                                                                   \
    {                                                                                              \
        .name = n, .type = FIELD_MS, .offset = AT(m), .min = 1, .max = DAY_MS                      \
    }
#define COUNT(n, m)                                                                                \
    {                                                                                              \
        .name = n, .type = FIELD_INT, .offset = AT(m), .min = 1, .max = 1 << 30                    \
    }

static const char *const types[] = {"deployment", "daemon", NULL};

static const struct field health_fields[] = {
    {.name = "command", .type = FIELD_STR, .offset = AT(health.command), .min = 1, .max = TEXT_MAX},
    {.name = "http", .type = FIELD_STR, .offset = AT(health.http), .min = 1, .max = TEXT_MAX},
    MS("interval_ms", health.interval_ms),
    MS("timeout_ms", health.timeout_ms),
    COUNT("failures", health.failures),
    MS("start_ms", health.start_ms),
};
static const struct field limit_fields[] = {
    COUNT("memory_mb", memory_mb),
    COUNT("cpu_percent", cpu_percent),
    COUNT("pids", pids),
};
static const struct field restart_fields[] = {
    MS("min_ms", restart_min_ms),
    MS("max_ms", restart_max_ms),
};

static const struct field fields[] = {
    {.name = "id", .type = FIELD_ID, .offset = AT(id), .max = DEPLOY_ID_MAX},
    {.name = "type", .type = FIELD_ENUM, .offset = AT(type), .names = types},
    {.name = "package_name", .type = FIELD_STR, .offset = AT(package_name), .max = 256},
    {.name = "package_version", .type = FIELD_STR, .offset = AT(package_version), .max = 256},
    {.name = "selector", .type = FIELD_STR, .offset = AT(selector), .max = TEXT_MAX},
    {.name = "command", .type = FIELD_JSON, .offset = AT(command)},
    {.name = "args", .type = FIELD_JSON, .offset = AT(args)},
    {.name = "env", .type = FIELD_JSON, .offset = AT(env)},
    {.name = "enabled", .type = FIELD_BOOL, .offset = AT(enabled)},
    {.name = "health",
     .type = FIELD_OBJ,
     .fields = health_fields,
     .field_count = COUNT_OF(health_fields)},
    {.name = "limits",
     .type = FIELD_OBJ,
     .fields = limit_fields,
     .field_count = COUNT_OF(limit_fields)},
    {.name = "stop_grace_ms", .type = FIELD_MS, .offset = AT(stop_grace_ms), .max = DAY_MS},
    {.name = "restart",
     .type = FIELD_OBJ,
     .fields = restart_fields,
     .field_count = COUNT_OF(restart_fields)},
    /* What the server adds, so that what was read can be sent back. */
    {.name = "address", .type = FIELD_JSON, .offset = AT(ignored)},
    {.name = "generation", .type = FIELD_JSON, .offset = AT(ignored)},
    {.name = "version", .type = FIELD_JSON, .offset = AT(ignored)},
    {.name = "created_at", .type = FIELD_JSON, .offset = AT(ignored)},
    {.name = "updated_at", .type = FIELD_JSON, .offset = AT(ignored)},
    {.name = "copies", .type = FIELD_JSON, .offset = AT(ignored)},
    {.name = "state", .type = FIELD_JSON, .offset = AT(ignored)},
    {.name = "changed", .type = FIELD_JSON, .offset = AT(ignored)},
};
static const struct schema schema = {
    .what = "a deployment", .fields = fields, .count = COUNT_OF(fields), .strict = true};

/* A list of words behind those of `first`, as JSON. */
static enum err write_words(const struct json *list, const char *field, struct jsonw *w,
                            struct arena *arena, struct problem *why)
{
    const struct json *item = json_first(list);

    if (json_type(list) != JSON_ARR || list->count > WORDS_MAX)
        return problem_set(why, ERR_BAD_FIELD, field, "%s must be a list of at most %d texts.",
                           field, WORDS_MAX);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        struct str word = json_type(item) == JSON_STR ? json_str(item, arena) : STR_NONE;

        if (!word.at || memchr(word.at, '\0', word.len))
            return problem_set(why, ERR_BAD_FIELD, field, "%s must hold texts.", field);
        jsonw_str(w, word);
    }
    return ERR_OK;
}

/* A command that is a list is its program and the first of its arguments. */
static enum err read_command(const struct spec_fields *in, struct arena *arena,
                             struct deploys_spec *spec, struct problem *why)
{
    const struct json *command = in->command;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    enum err err = ERR_OK;

    spec->command = STR("");
    jsonw_arr(&w);
    if (json_type(command) == JSON_STR) {
        spec->command = json_str(command, arena);
    } else if (json_type(command) == JSON_ARR && command->count > 0 &&
               json_type(json_first(command)) == JSON_STR) {
        struct json rest = *command; /* without the first */

        spec->command = json_str(json_first(command), arena);
        const struct json *item = json_next(json_first(command));
        for (uint32_t i = 1; !err && i < rest.count; i++, item = json_next(item)) {
            if (json_type(item) != JSON_STR || rest.count > WORDS_MAX)
                err =
                    problem_set(why, ERR_BAD_FIELD, "command",
                                "command must be a text or a list of at most %d texts.", WORDS_MAX);
            else
                jsonw_str(&w, json_str(item, arena));
        }
    } else if (!json_is_null(command)) {
        err = problem_set(why, ERR_BAD_FIELD, "command",
                          "command must be a text or a list of at most %d texts.", WORDS_MAX);
    }
    if (!err && memchr(spec->command.at, '\0', spec->command.len))
        err = problem_set(why, ERR_BAD_FIELD, "command", "command must be text.");
    if (!err && !json_is_null(in->args))
        err = write_words(in->args, "args", &w, arena, why);
    if (!err) {
        jsonw_end_arr(&w);
        spec->args = arena_str(arena, buf_view(&buf));
    }
    buf_free(&buf);
    return err;
}

static enum err read_env(const struct json *env, struct arena *arena, struct deploys_spec *spec,
                         struct problem *why)
{
    const struct json *key = json_first(env);

    if (json_is_null(env)) {
        spec->env = STR("{}");
        return ERR_OK;
    }
    if (json_type(env) != JSON_OBJ || env->count > ENV_MAX)
        return problem_set(why, ERR_BAD_FIELD, "env", "env must be an object of at most %d texts.",
                           ENV_MAX);
    for (uint32_t i = 0; i < env->count; i++, key = json_next(key + 1)) {
        struct str name = json_str(key, arena);
        struct str value = json_type(key + 1) == JSON_STR ? json_str(key + 1, arena) : STR_NONE;

        if (!name.len || memchr(name.at, '=', name.len) || memchr(name.at, '\0', name.len))
            return problem_set(why, ERR_BAD_FIELD, "env",
                               "env: a name must be text without a \"=\".");
        if (!value.at || memchr(value.at, '\0', value.len))
            return problem_set(why, ERR_BAD_FIELD, "env",
                               "env: the value of " STR_FMT " must be a text, in quotes.",
                               STR_ARG(name));
    }
    spec->env = arena_str(arena, json_raw(env));
    return ERR_OK;
}

static void kint_if(struct jsonw *w, const char *name, int64_t value)
{
    if (value != FIELD_OFF)
        jsonw_kint(w, name, value);
}

static void kstr_if(struct jsonw *w, const char *name, struct str value)
{
    if (value.at)
        jsonw_kstr(w, name, value);
}

/* The rest, in one form: only what was said, objects only when they hold something. */
static void write_options(const struct spec_fields *in, struct arena *arena,
                          struct deploys_spec *spec)
{
    const struct health_fields *health = &in->health;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    if (health->command.at || health->http.at) {
        jsonw_key(&w, "health");
        jsonw_obj(&w);
        kstr_if(&w, "command", health->command);
        kstr_if(&w, "http", health->http);
        kint_if(&w, "interval_ms", health->interval_ms);
        kint_if(&w, "timeout_ms", health->timeout_ms);
        kint_if(&w, "failures", health->failures);
        kint_if(&w, "start_ms", health->start_ms);
        jsonw_end_obj(&w);
    }
    if (in->memory_mb != FIELD_OFF || in->cpu_percent != FIELD_OFF || in->pids != FIELD_OFF) {
        jsonw_key(&w, "limits");
        jsonw_obj(&w);
        kint_if(&w, "memory_mb", in->memory_mb);
        kint_if(&w, "cpu_percent", in->cpu_percent);
        kint_if(&w, "pids", in->pids);
        jsonw_end_obj(&w);
    }
    kint_if(&w, "stop_grace_ms", in->stop_grace_ms);
    if (in->restart_min_ms != FIELD_OFF || in->restart_max_ms != FIELD_OFF) {
        jsonw_key(&w, "restart");
        jsonw_obj(&w);
        kint_if(&w, "min_ms", in->restart_min_ms);
        kint_if(&w, "max_ms", in->restart_max_ms);
        jsonw_end_obj(&w);
    }
    jsonw_end_obj(&w);
    spec->options = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
}

static enum err check(const struct spec_fields *in, const struct deploys_spec *spec,
                      struct problem *why)
{
    if (in->id.at && !str_eq(in->id, spec->id))
        return problem_set(why, ERR_BAD_FIELD, "id", "id must be the path's, " STR_FMT ".",
                           STR_ARG(spec->id));
    if (!spec->command.len && !spec->package_name.len)
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command is required (or package_name, for a package that brings its "
                           "own).");
    if (!selector_valid(spec->selector))
        return problem_set(why, ERR_BAD_FIELD, "selector",
                           "selector must be labels like zone=eu,gpu=yes.");
    if (in->health.command.at && in->health.http.at)
        return problem_set(why, ERR_BAD_FIELD, "health",
                           "health has either a command or an http URL.");
    if (in->health.http.at && !str_starts(in->health.http, STR("http://")))
        return problem_set(why, ERR_BAD_FIELD, "health",
                           "health.http must be a URL like http://127.0.0.1:8080/healthz.");
    return ERR_OK;
}

static struct str or_empty(struct str text)
{
    return text.at ? text : STR("");
}

enum err deploy_spec_read(const struct json *body, struct str id, struct arena *arena,
                          struct deploys_spec *ret_spec, struct problem *why)
{
    struct spec_fields in = {.enabled = true,
                             .health = {.interval_ms = FIELD_OFF,
                                        .timeout_ms = FIELD_OFF,
                                        .failures = FIELD_OFF,
                                        .start_ms = FIELD_OFF},
                             .memory_mb = FIELD_OFF,
                             .cpu_percent = FIELD_OFF,
                             .pids = FIELD_OFF,
                             .stop_grace_ms = FIELD_OFF,
                             .restart_min_ms = FIELD_OFF,
                             .restart_max_ms = FIELD_OFF};
    struct deploys_spec spec = {.id = id};
    enum err err;

    if (!str_is_id(id, DEPLOY_ID_MAX))
        return problem_set(why, ERR_BAD_FIELD, "id",
                           "id must be 1 to %d letters, digits or ._:@-, not starting with a dot.",
                           DEPLOY_ID_MAX);
    err = schema_read(&schema, body, &in, arena, why);
    if (!err)
        err = read_command(&in, arena, &spec, why);
    if (!err)
        err = read_env(in.env, arena, &spec, why);
    if (err)
        return err;
    spec.type = in.type == 0 ? DEPLOY_DEPLOYMENT : DEPLOY_DAEMON;
    spec.package_name = or_empty(in.package_name);
    spec.package_version = or_empty(in.package_version);
    spec.selector = or_empty(in.selector);
    spec.enabled = in.enabled;
    write_options(&in, arena, &spec);
    assert(spec.command.at && spec.args.at && spec.env.at && spec.options.at);
    err = check(&in, &spec, why);
    if (!err)
        *ret_spec = spec;
    return err;
}

/* A row that somebody else wrote may hold anything: what is no JSON is shown as null. */
static void kjson(struct jsonw *w, const char *name, struct str text, struct arena *arena)
{
    const struct json *value;

    if (json_parse(text, arena, &value, NULL))
        jsonw_knull(w, name);
    else
        jsonw_kraw(w, name, text);
}

void deploy_spec_write(struct jsonw *w, const struct deploys_spec *spec, struct arena *arena)
{
    const struct json *options;
    const struct json *key;

    jsonw_kstr(w, "package_name", spec->package_name);
    jsonw_kstr(w, "package_version", spec->package_version);
    jsonw_kstr(w, "command", spec->command);
    kjson(w, "args", spec->args, arena);
    kjson(w, "env", spec->env, arena);
    jsonw_kstr(w, "selector", spec->selector);
    if (json_parse(spec->options, arena, &options, NULL) || json_type(options) != JSON_OBJ)
        return;
    key = json_first(options);
    for (uint32_t i = 0; i < options->count; i++, key = json_next(key + 1)) {
        jsonw_key_str(w, json_str(key, arena));
        jsonw_raw(w, json_raw(key + 1));
    }
}

static void copy_write(struct jsonw *w, const struct deploys_copy *copy)
{
    jsonw_obj(w);
    jsonw_kstr(w, "address", copy->address);
    jsonw_kint(w, "generation", copy->generation);
    jsonw_kint(w, "version", copy->version);
    jsonw_kstr(w, "state", copy->state);
    jsonw_kint(w, "restarts", copy->restarts);
    if (copy->pid > 0)
        jsonw_kint(w, "pid", copy->pid);
    else
        jsonw_knull(w, "pid");
    jsonw_kint(w, "since_ms", copy->since_ms);
    jsonw_kraw(w, "healthy", copy->healthy);
    jsonw_kstr(w, "reason", copy->reason.len ? copy->reason : STR_NONE);
    jsonw_kint(w, "updated_ms", copy->updated_ms);
    jsonw_end_obj(w);
}

void deploy_row_write(struct jsonw *w, const struct deploys_row *row, const struct deploys_op *op,
                      struct arena *arena)
{
    jsonw_obj(w);
    jsonw_kstr(w, "id", row->spec.id);
    jsonw_kstr(w, "type", str_of(deploy_type_name(row->spec.type)));
    deploy_spec_write(w, &row->spec, arena);
    jsonw_kbool(w, "enabled", row->spec.enabled);
    jsonw_kstr(w, "address", row->address);
    jsonw_kint(w, "generation", row->generation);
    jsonw_kint(w, "version", row->version);
    jsonw_kstr(w, "created_at", row->created_at);
    jsonw_kstr(w, "updated_at", row->updated_at);
    if (!op) {
        jsonw_kstr(w, "state", row->state);
    } else if (op->verb == DEPLOYS_GET) {
        jsonw_key(w, "copies");
        jsonw_arr(w);
        for (size_t i = 0; i < op->copy_count; i++)
            copy_write(w, &op->copies[i]);
        jsonw_end_arr(w);
    } else {
        jsonw_kbool(w, "changed", op->u.put.changed);
    }
    jsonw_end_obj(w);
}
