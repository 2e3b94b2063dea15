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

/* How the job reaches the directory of its run: by its path, or from where it begins if its user
 * cannot pass through all that is above; at == NULL: not at all. */
static struct str way_to(const struct runfile *file, const struct job_user *user)
{
    if (!user || job_user_reaches(user, file->dir))
        return file->dir;
    return file->spec.cwd.at ? STR_NONE : STR("..");
}

static const char *home_of(struct arena *arena, const struct job_user *user, char *const *base,
                           struct str way)
{
    if (!user)
        return or_else(shim_env_get(base, "HOME"), "/");
    if (user->home[0] || way.len == 0 || way.at[0] != '/')
        return or_else(user->home, "/");
    return arena_fmt(arena, STR_FMT "/" RUNFILE_WORK, STR_ARG(way)).at;
}

char **shim_env(struct arena *arena, const struct runfile *file, struct strs secrets,
                char *const *base, const struct job_user *user)
{
    const struct run_spec *spec = &file->spec;
    struct str way = way_to(file, user);
    char **env = arena_array(arena, char *, secrets.count + spec->env_count + OWN_MAX + 1);
    size_t count = 0;

    for (size_t i = 0; i < secrets.count; i++)
        put(env, &count, (char *)secrets.at[i].at);

    put_pair(arena, env, &count, "PATH",
             or_else(shim_env_get(base, "PATH"),
                     "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
    put_pair(arena, env, &count, "HOME", home_of(arena, user, base, way));
    put_pair(arena, env, &count, "LANG", or_else(shim_env_get(base, "LANG"), "C.UTF-8"));
    put_pair(arena, env, &count, "USER", user ? user->name : NULL);
    put_pair(arena, env, &count, "LOGNAME", user ? user->name : NULL);
    for (size_t i = 0; i < spec->env_count; i++)
        put(env, &count, arena_cstr(arena, spec->env[i]));
    if (spec->input.at && way.at)
        put_pair(arena, env, &count, "BERTH_PAYLOAD_FILE",
                 arena_fmt(arena, STR_FMT "/" RUNFILE_INPUT, STR_ARG(way)).at);
    if (spec->secret_count > 0 && way.at)
        put_pair(arena, env, &count, "BERTH_SECRETS_DIR",
                 arena_fmt(arena, STR_FMT "/" RUNFILE_SECRETS, STR_ARG(way)).at);
    put(env, &count, arena_cstr(arena, file->mark)); /* by which the tree is found again */
    assert(count <= secrets.count + spec->env_count + OWN_MAX);
    env[count] = NULL;
    if (way.at != file->dir.at && shim_env_get(env, "BERTH_RESULT_FILE")) /* the agent's path */
        put_pair(arena, env, &count, "BERTH_RESULT_FILE", way.at ? RUNFILE_RESULT_LEFT : "");
    return env;
}
