/* From a copy's spec to a run. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/copies_private.h"
#include "agent/secret.h"

enum { OWN_ENV = 8, ID_IN_KEY_MAX = 72 };

/* The deployment's id where it can be part of a file's name, else a hash of it. */
void copy_run_key(struct copy *copy, const char *prefix, char key[RUN_KEY_MAX + 1])
{
    struct copies *copies = copy->copies;
    char name[ID_IN_KEY_MAX + 1];
    int len;

    if (str_is_id(copy->id, ID_IN_KEY_MAX))
        str_copy(copy->id, name, sizeof name);
    else
        snprintf(name, sizeof name, "x%016" PRIx64, str_hash(copy->id));
    /* The time tells lives of the agent apart, the number starts within one millisecond. */
    len = snprintf(key, RUN_KEY_MAX + 1, "%s.%s.%" PRId64 ".%" PRIx64 "-%" PRId64, prefix, name,
                   copy->generation, copies->loop->wall_ms, ++copies->number);
    assert(len > 0 && len <= RUN_KEY_MAX);
}

void copy_env(const struct copy *copy, const struct deploy_spec *own, int64_t version,
              const char *dir, struct arena *arena, struct run_spec *spec)
{
    struct str *env = arena_array(arena, struct str, own->env.count + OWN_ENV);
    size_t count = 0;

    for (; count < own->env.count; count++)
        env[count] = own->env.at[count];
    env[count++] = arena_fmt(arena, "BERTH_DEPLOYMENT_ID=" STR_FMT, STR_ARG(copy->id));
    env[count++] = arena_fmt(arena, "BERTH_GENERATION=%" PRId64, copy->generation);
    env[count++] = arena_fmt(arena, "BERTH_VERSION=%" PRId64, version);
    env[count++] = arena_fmt(arena, "BERTH_NODE_ID=" STR_FMT, STR_ARG(copy->copies->node_id));
    if (own->package_name.len)
        env[count++] = arena_fmt(arena, "BERTH_PACKAGE_NAME=" STR_FMT, STR_ARG(own->package_name));
    if (own->package_version.len)
        env[count++] =
            arena_fmt(arena, "BERTH_PACKAGE_VERSION=" STR_FMT, STR_ARG(own->package_version));
    if (dir)
        env[count++] = arena_fmt(arena, "BERTH_PACKAGE_DIR=%s", dir);
    assert(count <= own->env.count + OWN_ENV);
    spec->env = env;
    spec->env_count = count;
}

enum err copy_secrets(const struct copy *copy, const struct deploy_spec *own, struct run_spec *spec,
                      struct problem *why)
{
    for (size_t i = 0; i < own->secrets.count; i++) {
        struct str name = secret_name(own->secrets.at[i]);

        if (!secret_for_deployment(copy->copies->config, name, copy->id))
            return problem_set(why, ERR_FORBIDDEN, "secrets",
                               "No rule of this agent gives the secret " STR_FMT
                               " to the deployment " STR_FMT ".",
                               STR_ARG(name), STR_ARG(copy->id));
    }
    spec->secrets = own->secrets.at;
    spec->secret_count = own->secrets.count;
    return ERR_OK;
}

void copy_meta_write(const struct copy *copy, const char *kind, struct buf *out)
{
    struct jsonw w = jsonw_to(out);

    jsonw_obj(&w);
    jsonw_kstr(&w, "kind", str_of(kind));
    jsonw_kstr(&w, "deployment_id", copy->id);
    jsonw_kint(&w, "generation", copy->generation);
    jsonw_kint(&w, "version", copy->version);
    jsonw_kbool(&w, "daemon", copy->daemon);
    jsonw_end_obj(&w);
}

bool copy_meta_read(struct str meta, struct arena *arena, struct copy_meta *ret_meta)
{
    struct copy_meta read = {0};
    const struct json *root;

    if (!meta.at || json_parse(meta, arena, &root, NULL) != ERR_OK)
        return false;
    read.kind = json_str(json_get(root, "kind"), arena);
    read.id = json_str(json_get(root, "deployment_id"), arena);
    if (!read.kind.at || read.id.len == 0 || read.id.len > DEPLOY_ID_MAX ||
        !json_int(json_get(root, "generation"), &read.generation) ||
        !json_int(json_get(root, "version"), &read.version) ||
        !json_bool(json_get(root, "daemon"), &read.daemon))
        return false;
    *ret_meta = read;
    return true;
}

/* Its own command, or the agent's for packages with its arguments behind. */
static enum err find_words(const struct copy *copy, const char *dir, struct arena *arena,
                           struct strs *ret_words, struct problem *why)
{
    const struct deploy_spec *own = &copy->spec;
    struct strs run, words = own->command;

    if (!words.count) {
        if (!packages_words(copy->copies->config->run_command, own->package_name,
                            own->package_version.at ? own->package_version : STR(""), dir, arena,
                            &run))
            return problem_set(why, ERR_NOT_FOUND, "command",
                               "It has no command, and run_command is not set here.");
        words.at = arena_array(arena, struct str, run.count + own->args.count);
        for (size_t i = 0; i < run.count; i++)
            words.at[words.count++] = run.at[i];
        for (size_t i = 0; i < own->args.count; i++)
            words.at[words.count++] = own->args.at[i];
    }
    *ret_words = words;
    return ERR_OK;
}

enum err copy_startable(const struct copy *copy, const char *dir, struct problem *why)
{
    struct arena arena = {0};
    struct strs words;
    enum err err = find_words(copy, dir, &arena, &words, why);
    struct str program = err ? STR("") : words.at[0];

    /* A name without a slash is looked up in a PATH that only the shim knows. */
    if (dir && memchr(program.at, '/', program.len) && program.at[0] != '/')
        program = arena_fmt(&arena, "%s/" STR_FMT, dir, STR_ARG(program));
    if (str_starts(program, STR("/")) && access(arena_cstr(&arena, program), X_OK) != 0)
        err = problem_set(why, ERR_NOT_FOUND, "command",
                          "The program " STR_FMT " cannot be started: %s.", STR_ARG(program),
                          strerror(errno));
    arena_free(&arena);
    return err;
}

/* A deployment must run somewhere: where a limit cannot be enforced its copy runs without it, and
 * says so in its status. */
static void set_limits(const struct copy *copy, struct run_spec *spec)
{
    const struct deploy_limits *own = &copy->spec.limits;
    struct run_limits_offered offered;

    runs_offered(copy->copies->runs, &offered);
    spec->memory_bytes_max = offered.memory ? own->memory_mb << 20 : 0;
    spec->pids_max = offered.pids ? own->pids : 0;
    spec->cpu_permille_max = offered.cpu ? own->cpu_percent * 10 : 0;
    spec->disk_bytes_max = own->disk_mb << 20; /* its shim looks; that needs no group */
}

enum err copy_start(struct copy *copy, const char *dir, struct problem *why)
{
    struct copies *copies = copy->copies;
    const struct deploy_spec *own = &copy->spec;
    struct arena arena = {0};
    struct buf meta = {0};
    struct strs words;
    char key[RUN_KEY_MAX + 1];
    struct run_spec spec = {.handler = &copies_run_handler,
                            .cwd = str_of(dir),
                            .stop_grace_ms = own->stop_grace_ms,
                            .log_bytes_max = copies->config->log_bytes_max};
    enum err err;

    assert(!copy->run && copy->known && copy->wanted);
    if (!copy->daemon) {
        spec.deadline_boot_ms = copies->fence_ms;
        spec.deadline_grace_ms = copies->fence_grace_ms;
        assert(spec.deadline_boot_ms > 0);
    }
    err = find_words(copy, dir, &arena, &words, why);
    if (!err)
        err = copy_secrets(copy, own, &spec, why);
    if (err) {
        arena_free(&arena);
        return err;
    }
    spec.argv = words.at;
    spec.argc = words.count;
    set_limits(copy, &spec);
    copy_run_key(copy, "d", key);
    spec.key = str_of(key);
    copy_env(copy, own, copy->version, dir, &arena, &spec);
    copy_meta_write(copy, "copy", &meta);
    spec.meta = buf_view(&meta);
    err = runs_start(copies->runs, &spec, copy, &copy->run, why);
    if (!err) {
        copy->run_generation = copy->generation;
        copy->run_version = copy->version;
    }
    buf_free(&meta);
    arena_free(&arena);
    return err;
}
