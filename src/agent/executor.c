/* Rows of the table of executors, each read and checked like any other part of the file. */
#include "agent/executor.h"

#include <assert.h>

#include "model/argv.h"

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
    {.name = "secrets",
     .type = FIELD_JSON,
     .offset = AT(secrets_given),
     .help = "[NAME], or {VARIABLE: NAME}"},
    {.name = "cwd", .type = FIELD_STR, .offset = AT(cwd), .max = 4096, .help = "absolute"},
    {.name = "user",
     .type = FIELD_ID,
     .offset = AT(user),
     .max = 64,
     .help = "to run as; default: job_user"},
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
    {.name = "disk_mb_max",
     .type = FIELD_INT,
     .offset = AT(disk_mb_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .help = "0 = job_disk_mb_max"},
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
    if (!argv_list(executor->args_given, arena, &executor->args))
        return wrong(why, lines, key, type, "must have a list of texts as args");
    if (!argv_env(executor->env_given, arena, &executor->env))
        return wrong(why, lines, key, type, "must have an env of NAME: text");
    if (!argv_secrets(executor->secrets_given, arena, &executor->secrets))
        return wrong(why, lines, key, type,
                     "must have a list of names as secrets, or VARIABLE: name");
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
