/* Reading a deployment's row by table, and what a table cannot say. */
#include "agent/copy_spec.h"

#include <assert.h>

#include "agent/words.h"
#include "io/client.h"

#define AT(member)         offsetof(struct copy_spec, member)
#define HEALTH_AT(member)  offsetof(struct copy_health, member)
#define LIMITS_AT(member)  offsetof(struct copy_limits, member)
#define RESTART_AT(member) offsetof(struct copy_restart, member)
#define DAY_MS             (24LL * 3600 * 1000)

static const struct field health_fields[] = {
    {.name = "command", .type = FIELD_JSON, .offset = HEALTH_AT(command_given)},
    {.name = "http", .type = FIELD_STR, .offset = HEALTH_AT(http), .min = 1, .max = 2048},
    {.name = "interval_ms",
     .type = FIELD_MS,
     .offset = HEALTH_AT(interval_ms),
     .min = 100,
     .max = DAY_MS,
     .preset = "10000"},
    {.name = "timeout_ms",
     .type = FIELD_MS,
     .offset = HEALTH_AT(timeout_ms),
     .min = 50,
     .max = DAY_MS,
     .preset = "5000"},
    {.name = "failures",
     .type = FIELD_INT,
     .offset = HEALTH_AT(failures),
     .min = 1,
     .max = 1000,
     .preset = "3"},
    {.name = "start_ms",
     .type = FIELD_MS,
     .offset = HEALTH_AT(start_ms),
     .min = 0,
     .max = DAY_MS,
     .preset = "0"},
};

static const struct field limit_fields[] = {
    {.name = "memory_mb",
     .type = FIELD_INT,
     .offset = LIMITS_AT(memory_mb),
     .min = 0,
     .max = 1LL << 30},
    {.name = "cpu_percent",
     .type = FIELD_REAL,
     .offset = LIMITS_AT(cpu_percent),
     .min = 0,
     .max = 1000000},
    {.name = "pids", .type = FIELD_INT, .offset = LIMITS_AT(pids), .min = 0, .max = 1LL << 30},
};

static const struct field restart_fields[] = {
    {.name = "min_ms", .type = FIELD_MS, .offset = RESTART_AT(min_ms), .min = 1, .max = DAY_MS},
    {.name = "max_ms", .type = FIELD_MS, .offset = RESTART_AT(max_ms), .min = 1, .max = DAY_MS},
};

/* What the server says of it. */
static const struct field row_fields[] = {
    {.name = "id",
     .type = FIELD_STR,
     .offset = AT(id),
     .min = 1,
     .max = COPY_ID_MAX,
     .flags = FIELD_REQUIRED},
    {.name = "generation", .type = FIELD_INT, .offset = AT(generation)},
    {.name = "version", .type = FIELD_INT, .offset = AT(version)},
    {.name = "type", .type = FIELD_STR, .offset = AT(type), .max = 64, .preset = "deployment"},
    {.name = "spec", .type = FIELD_JSON, .offset = AT(given)},
};

/* What a person said. */
static const struct field spec_fields[] = {
    {.name = "package_name", .type = FIELD_STR, .offset = AT(package_name), .max = 256},
    {.name = "package_version", .type = FIELD_STR, .offset = AT(package_version), .max = 256},
    {.name = "command", .type = FIELD_JSON, .offset = AT(command_given)},
    {.name = "args", .type = FIELD_JSON, .offset = AT(args_given)},
    {.name = "env", .type = FIELD_JSON, .offset = AT(env_given)},
    {.name = "selector", .type = FIELD_STR, .offset = AT(selector), .max = 4096},
    {.name = "health",
     .type = FIELD_OBJ,
     .offset = AT(health),
     .fields = health_fields,
     .field_count = COUNT_OF(health_fields)},
    {.name = "limits",
     .type = FIELD_OBJ,
     .offset = AT(limits),
     .fields = limit_fields,
     .field_count = COUNT_OF(limit_fields)},
    {.name = "restart",
     .type = FIELD_OBJ,
     .offset = AT(restart),
     .fields = restart_fields,
     .field_count = COUNT_OF(restart_fields)},
    {.name = "stop_grace_ms",
     .type = FIELD_MS,
     .offset = AT(stop_grace_ms),
     .min = 0,
     .max = DAY_MS,
     .preset = "10000"},
};

static const struct schema row_schema = {
    .what = "the row", .fields = row_fields, .count = COUNT_OF(row_fields)};
static const struct schema spec_schema = {
    .what = "the spec", .fields = spec_fields, .count = COUNT_OF(spec_fields)};

/* A text alone is for the shell; with `args` it is a program, which is how rows that were there
 * before berth have it. */
static bool read_command(struct copy_spec *spec, struct arena *arena)
{
    struct strs args, words;

    if (!words_list(spec->args_given, arena, &args))
        return false;
    spec->args = args;
    if (json_is_null(spec->command_given) || json_str_is(spec->command_given, ""))
        return spec->package_name.len > 0; /* the agent knows how to run a package */
    if (args.count == 0)
        return words_command(spec->command_given, arena, &spec->command);
    words.at = arena_array(arena, struct str, args.count + 1);
    if (json_type(spec->command_given) != JSON_STR)
        return false;
    words.at[0] = json_str(spec->command_given, arena);
    for (size_t i = 0; i < args.count; i++)
        words.at[i + 1] = args.at[i];
    words.count = args.count + 1;
    spec->command = words;
    return words.at[0].len > 0;
}

static enum err read_health(struct copy_health *health, struct arena *arena, struct problem *why)
{
    static const struct str here = {"loopback", 8};

    if (!json_is_null(health->command_given) &&
        !words_command(health->command_given, arena, &health->command))
        return problem_set(why, ERR_BAD_FIELD, "health.command",
                           "health.command must be a text for the shell or a list of texts.");
    if (health->http.at && !client_url_allowed(health->http, &here, 1))
        return problem_set(why, ERR_BAD_FIELD, "health.http",
                           "health.http must be a URL like http://127.0.0.1:8080/healthz.");
    return ERR_OK;
}

enum err copy_spec_read(const struct json *row, struct arena *arena, struct copy_spec *ret_spec,
                        struct problem *why)
{
    struct copy_spec spec = {0};
    enum err err = schema_presets(&row_schema, &spec, arena);

    if (!err)
        err = schema_presets(&spec_schema, &spec, arena);
    assert(!err);
    err = schema_read(&row_schema, row, &spec, arena, why);
    if (!err && json_type(spec.given) != JSON_OBJ)
        err = problem_set(why, ERR_BAD_FIELD, "spec", "There is no spec.");
    if (!err)
        err = schema_read(&spec_schema, spec.given, &spec, arena, why);
    if (err)
        return err;
    spec.daemon = str_is(spec.type, "daemon");
    if (!spec.daemon && !str_is(spec.type, "deployment"))
        return problem_set(why, ERR_BAD_FIELD, "type", "type must be deployment or daemon.");
    if (!read_command(&spec, arena))
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command must be a text for the shell, a list of texts, or a program "
                           "with its args.");
    if (!words_env(spec.env_given, arena, &spec.env))
        return problem_set(why, ERR_BAD_FIELD, "env", "env must be an object of NAME: text.");
    err = read_health(&spec.health, arena, why);
    if (!err)
        *ret_spec = spec;
    return err;
}

bool copy_spec_checked(const struct copy_spec *spec)
{
    return spec->health.command.count > 0 || spec->health.http.at;
}
