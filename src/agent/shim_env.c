/* The environment of a job. What the agent was started with is none of the job's business, so only
 * a few names are taken over. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/shim.h"

enum { OWN_MAX = 8 };

const char *shim_env_get(char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (; env && *env; env++)
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env + len + 1;
    return NULL;
}

/* A later entry of the same name replaces the earlier. */
static void put(char **env, size_t *count, char *entry)
{
    size_t name = strcspn(entry, "=") + 1;

    assert(name > 1 && entry[name - 1] == '=');
    for (size_t i = 0; i < *count; i++)
        if (strncmp(env[i], entry, name) == 0) {
            env[i] = entry;
            return;
        }
    env[(*count)++] = entry;
}

static void put_pair(struct arena *arena, char **env, size_t *count, const char *name,
                     const char *value)
{
    if (value)
        put(env, count, (char *)arena_fmt(arena, "%s=%s", name, value).at);
}

static const char *or_else(const char *value, const char *otherwise)
{
    return value && *value ? value : otherwise;
}

char **shim_env(struct arena *arena, const struct runfile *file, char *const *base,
                const char *home, const char *user)
{
    const struct run_spec *spec = &file->spec;
    char **env = arena_array(arena, char *, spec->env_count + OWN_MAX + 1);
    size_t count = 0;

    put_pair(arena, env, &count, "PATH",
             or_else(shim_env_get(base, "PATH"),
                     "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
    put_pair(arena, env, &count, "HOME", home ? home : or_else(shim_env_get(base, "HOME"), "/"));
    put_pair(arena, env, &count, "LANG", or_else(shim_env_get(base, "LANG"), "C.UTF-8"));
    put_pair(arena, env, &count, "USER", user);
    put_pair(arena, env, &count, "LOGNAME", user);
    for (size_t i = 0; i < spec->env_count; i++)
        put(env, &count, arena_cstr(arena, spec->env[i]));
    if (spec->input.at)
        put(env, &count,
            (char *)arena_fmt(arena, "BERTH_PAYLOAD_FILE=" STR_FMT "/" RUNFILE_INPUT,
                              STR_ARG(file->dir))
                .at);
    put(env, &count, arena_cstr(arena, file->mark)); /* by which the tree is found again */
    assert(count <= spec->env_count + OWN_MAX);
    env[count] = NULL;
    return env;
}
