/* See secret.h. */
#include "agent/secret.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fd.h"
#include "model/argv.h"
#include "model/namespace.h"

static const struct field fields[] = {
    FIELD_ROW(secret_rule, types, STRS, .help = "of jobs that may name it"),
    FIELD_ROW(secret_rule, commands, BOOL, .preset = "false",
              .help = "also those with a command of their own"),
    FIELD_ROW(secret_rule, deployments, STRS, .help = "ids of those that may name it"),
};

static const struct schema rule_schema = {
    .what = "a secret", .fields = fields, .count = COUNT_OF(fields), .strict = true};

/* --- rules --- */

enum err secret_rules_read(const struct json *given, const struct schema_lines *lines,
                           struct arena *arena, struct secret_rule **ret_rules, size_t *ret_count,
                           struct problem *why)
{
    const struct json *key = json_first(given);
    struct secret_rule *rules;

    if (json_is_null(given))
        return ERR_OK;
    if (json_type(given) != JSON_OBJ)
        return problem_set(why, ERR_BAD_CONFIG, "secrets",
                           "secrets must be an object: NAME: {types: [...]}.");
    rules = arena_array(arena, struct secret_rule, given->count + 1);
    for (uint32_t i = 0; i < given->count; i++, key = json_next(key + 1)) {
        struct str name = json_str(key, arena);
        int line = lines->lines[key - lines->root];
        enum err err;

        if (!str_is_id(name, ARGV_SECRET_NAME_MAX) || json_type(key + 1) != JSON_OBJ) {
            problem_set(why, ERR_BAD_CONFIG, "secrets",
                        "Line %d: secrets." STR_FMT " must be the name of a secret, and an object.",
                        line, STR_ARG(name));
            if (why)
                why->line = line;
            return ERR_BAD_CONFIG;
        }
        err = schema_presets(&rule_schema, &rules[i], arena);
        assert(!err);
        err = schema_read_lines(&rule_schema, key + 1, lines, &rules[i], arena, why);
        if (err)
            return ERR_BAD_CONFIG;
        rules[i].name = name;
    }
    *ret_rules = rules;
    *ret_count = given->count;
    return ERR_OK;
}

static const struct secret_rule *find(const struct config *config, struct str name)
{
    for (size_t i = 0; i < config->secret_rule_count; i++)
        if (str_eq(config->secret_rules[i].name, name))
            return &config->secret_rules[i];
    return NULL;
}

/* An entry may end in a star: everything in a namespace; a star alone matches everything. */
static bool lists(struct strs list, struct str full)
{
    for (size_t i = 0; i < list.count; i++) {
        struct str one = list.at[i];

        if (str_is(one, "*") || str_eq(one, full) ||
            (str_is(namespace_name(one), "*") && str_eq(namespace_of(one), namespace_of(full))))
            return true;
    }
    return false;
}

bool secret_for_job(const struct config *config, struct str name, struct str type, bool command)
{
    const struct secret_rule *rule = find(config, name);

    return rule && lists(rule->types, type) && (rule->commands || !command);
}

bool secret_for_deployment(const struct config *config, struct str name, struct str id)
{
    const struct secret_rule *rule = find(config, name);

    return rule && lists(rule->deployments, id);
}

/* --- references --- */

struct str secret_name(struct str word)
{
    struct str name = word, first = str_cut(&name, '=');

    return name.at ? name : first;
}

struct str secret_variable(struct str word)
{
    struct str name = word, variable = str_cut(&name, '=');

    return name.at ? variable : STR_NONE;
}

/* --- files --- */

enum err secret_open(struct str dir, struct str name, int *ret_fd, struct problem *why)
{
    char text[ARGV_SECRET_NAME_MAX + 1], path[PATH_MAX];
    int dir_fd, fd, error;
    struct stat info;
    enum err err = ERR_OK;

    assert(str_is_id(name, ARGV_SECRET_NAME_MAX));
    str_copy(name, text, sizeof text);
    if (dir.len == 0 || !str_copy(dir, path, sizeof path))
        return problem_set(why, ERR_NOT_FOUND, "secrets",
                           "The secret %s is not here: secrets_dir is not set.", text);
    dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd = dir_fd >= 0 ? openat(dir_fd, text, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    error = errno;
    fd_close(dir_fd);
    if (fd < 0)
        return problem_set(why, error == ENOENT ? ERR_NOT_FOUND : ERR_IO, "secrets",
                           "The secret %s cannot be read in %s: %s.", text, path, strerror(error));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        err = problem_set(why, ERR_IO, "secrets", "The secret %s in %s is no file.", text, path);
    else if (info.st_mode & S_IRWXO)
        err = problem_set(why, ERR_FORBIDDEN, "secrets",
                          "The secret %s in %s is open to everybody (mode %03o): chmod 600 it.",
                          text, path, (unsigned)info.st_mode & 0777);
    else if (info.st_size > SECRET_BYTES_MAX)
        err = problem_set(why, ERR_TOO_LARGE, "secrets",
                          "The secret %s in %s is larger than %d bytes.", text, path,
                          SECRET_BYTES_MAX);
    if (err) {
        close(fd);
        return err;
    }
    *ret_fd = fd;
    return ERR_OK;
}

/* Does not pass through our own memory, so that it cannot be found there. */
int secret_copy(int from_fd, int to_fd, const char *name)
{
    int fd = openat(to_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
    int error = fd < 0 ? errno : 0;
    off_t at = 0;

    while (error == 0 && at < SECRET_BYTES_MAX) {
        ssize_t sent = sendfile(fd, from_fd, &at, (size_t)(SECRET_BYTES_MAX - at));

        if (sent == 0)
            break;
        if (sent < 0 && errno != EINTR)
            error = errno;
    }
    fd_close(fd);
    return error == EEXIST ? 0 : error; /* one file for two variables */
}
