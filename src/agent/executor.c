/* Rows of the table of executors, each read and checked like any other part of the file. */
#include "agent/executor.h"

#include <assert.h>
#include <string.h>

#define AT(member) offsetof(struct executor, member)
#define DAY_MS     (24LL * 3600 * 1000)

static const struct field fields[] = {
    {.name = "command",
     .type = FIELD_STR,
     .offset = AT(command),
     .min = 1,
     .max = 4096,
     .flags = FIELD_REQUIRED,
     .help = "program to start"},
    {.name = "args", .type = FIELD_JSON, .offset = AT(args_given), .help = "its arguments"},
    {.name = "env", .type = FIELD_JSON, .offset = AT(env_given), .help = "{NAME: value}"},
    {.name = "cwd", .type = FIELD_STR, .offset = AT(cwd), .max = 4096, .help = "absolute"},
    {.name = "user", .type = FIELD_ID, .offset = AT(user), .max = 64, .help = "to run as"},
    {.name = "timeout_ms",
     .type = FIELD_MS,
     .offset = AT(timeout_ms),
     .min = 0,
     .max = 30 * DAY_MS,
     .preset = "0",
     .help = "longest run; 0 = the job's own only"},
    {.name = "stop_grace_ms",
     .type = FIELD_MS,
     .offset = AT(stop_grace_ms),
     .min = 0,
     .max = DAY_MS,
     .preset = "5000",
     .help = "between TERM and KILL"},
    {.name = "memory_mb_max",
     .type = FIELD_INT,
     .offset = AT(memory_mb_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .help = "0 = no limit"},
    {.name = "pids_max",
     .type = FIELD_INT,
     .offset = AT(pids_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .help = "0 = no limit"},
};

static const struct schema executor_schema = {
    .what = "an executor", .fields = fields, .count = COUNT_OF(fields), .strict = true};

/* "Line 7: " in front, as the table's own messages have. */
static enum err wrong(struct problem *why, const struct schema_lines *lines,
                      const struct json *token, struct str type, const char *what)
{
    int line = lines->lines[token - lines->root];
    enum err err = problem_set(why, ERR_BAD_CONFIG, "executors",
                               "Line %d: executors." STR_FMT " %s.", line, STR_ARG(type), what);

    if (why)
        why->line = line;
    return err;
}

static bool is_env_name(struct str name)
{
    for (size_t i = 0; i < name.len; i++) {
        char c = name.at[i];
        bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';

        if (!letter && !(i > 0 && c >= '0' && c <= '9'))
            return false;
    }
    return name.len > 0;
}

static bool read_env(struct executor *executor, struct arena *arena)
{
    const struct json *obj = executor->env_given;
    const struct json *key = json_first(obj);

    if (json_is_null(obj))
        return true;
    if (json_type(obj) != JSON_OBJ)
        return false;
    executor->env.at = arena_array(arena, struct str, obj->count + 1);
    for (uint32_t i = 0; i < obj->count; i++, key = json_next(key + 1)) {
        struct str name = json_str(key, arena);
        struct str value =
            json_type(key + 1) == JSON_STR ? json_str(key + 1, arena) : json_raw(key + 1);

        if (!is_env_name(name) || json_type(key + 1) >= JSON_ARR || json_is_null(key + 1) ||
            memchr(value.at, 0, value.len))
            return false;
        executor->env.at[executor->env.count++] =
            arena_fmt(arena, STR_FMT "=" STR_FMT, STR_ARG(name), STR_ARG(value));
    }
    return true;
}

/* Any text without a NUL: a script may have several lines. */
static bool read_args(struct executor *executor, struct arena *arena)
{
    const struct json *list = executor->args_given;
    const struct json *item = json_first(list);

    if (json_is_null(list))
        return true;
    if (json_type(list) != JSON_ARR)
        return false;
    executor->args.at = arena_array(arena, struct str, list->count + 1);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        struct str arg = json_type(item) == JSON_NUM ? json_raw(item) : json_str(item, arena);

        if ((json_type(item) != JSON_NUM && json_type(item) != JSON_STR) ||
            memchr(arg.at, 0, arg.len))
            return false;
        executor->args.at[executor->args.count++] = arg;
    }
    return true;
}

static enum err read_one(const struct json *key, const struct schema_lines *lines,
                         struct arena *arena, struct executor *executor, struct problem *why)
{
    struct str type = json_str(key, arena);
    enum err err;

    assert(key >= lines->root && key < lines->root + lines->root->span);
    if (!str_is(type, "*") && !str_is_id(type, CONFIG_TYPE_MAX))
        return wrong(why, lines, key, STR("*"), "and the others must be named by task types");
    if (json_type(key + 1) != JSON_OBJ)
        return wrong(why, lines, key, type, "must be an object with at least `command`");
    err = schema_presets(&executor_schema, executor, arena);
    assert(!err);
    err = schema_read_lines(&executor_schema, key + 1, lines, executor, arena, why);
    if (err)
        return ERR_BAD_CONFIG;
    executor->type = type;
    if (!executor->command.at)
        return wrong(why, lines, key, type, "needs a command");
    if (executor->cwd.at && (!executor->cwd.len || executor->cwd.at[0] != '/'))
        return wrong(why, lines, key, type, "must have an absolute path as cwd");
    if (!read_args(executor, arena))
        return wrong(why, lines, key, type, "must have a list of texts as args");
    if (!read_env(executor, arena))
        return wrong(why, lines, key, type, "must have an env of NAME: text");
    return ERR_OK;
}

enum err executors_read(const struct json *given, const struct schema_lines *lines,
                        struct arena *arena, struct executor **ret_executors, size_t *ret_count,
                        struct problem *why)
{
    const struct json *key = json_first(given);
    struct executor *executors;

    if (json_is_null(given))
        return ERR_OK;
    if (json_type(given) != JSON_OBJ)
        return problem_set(why, ERR_BAD_CONFIG, "executors",
                           "executors must be an object: TYPE: {command: ...}.");
    executors = arena_array(arena, struct executor, given->count + 1);
    for (uint32_t i = 0; i < given->count; i++, key = json_next(key + 1)) {
        enum err err = read_one(key, lines, arena, &executors[i], why);

        if (err)
            return err;
    }
    *ret_executors = executors;
    *ret_count = given->count;
    return ERR_OK;
}
