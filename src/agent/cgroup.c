/* The groups of one run: see cgroup.h. */
#include "agent/cgroup.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cgroup_file.h"
#include "base/clock.h"

enum {
    FREEZE_MS = 100,
    QUOTA_PERIOD_US = 100000,
    QUOTA_US_MIN = 1000, /* what the kernel takes */
    MAKE_TRIES = 4,
    REMOVE_TRIES = 20,
    REMOVE_WAIT_US = 500
};

static const unsigned always = 1u << CGROUP_KILL | 1u << CGROUP_CPU;

static const struct cgroup_dir *dir_of(const struct cgroup *group, enum cgroup_part part)
{
    assert(part < CGROUP_PARTS && group->count <= CGROUP_PARTS);
    for (size_t i = 0; i < group->count; i++)
        if (group->dirs[i].parts & 1u << part)
            return &group->dirs[i];
    return NULL;
}

/* The same directory serves several parts on v2. */
static struct cgroup_dir *add_dir(struct cgroup *group, const struct cgroup_place *place,
                                  enum cgroup_part part, struct str key)
{
    struct cgroup_dir *dir = &group->dirs[group->count];
    int len;

    assert(group->count < CGROUP_PARTS && (place->version == 1 || place->version == 2));
    *dir = (struct cgroup_dir){.fd = -1, .procs_fd = -1, .version = place->version};
    len = snprintf(dir->path, sizeof dir->path, "%s/" STR_FMT, place->parent, STR_ARG(key));
    assert(len > 0 && (size_t)len < sizeof dir->path);
    for (size_t i = 0; i < group->count; i++)
        if (strcmp(group->dirs[i].path, dir->path) == 0) {
            group->dirs[i].parts |= 1u << part;
            return &group->dirs[i];
        }
    dir->parts = 1u << part;
    group->count++;
    return dir;
}

/* Another run may have just removed the parent, as its last. */
static int make_dir(const struct cgroup_dir *dir, const char *parent)
{
    int error = 0;

    for (int i = 0; i < MAKE_TRIES; i++) {
        if (mkdir(dir->path, 0755) == 0 || errno == EEXIST)
            return 0;
        error = errno;
        if (error != ENOENT || (mkdir(parent, 0755) != 0 && errno != EEXIST))
            break;
    }
    return error;
}

static int make_part(struct cgroup *group, const struct cgroup_place *place, enum cgroup_part part,
                     struct str key)
{
    struct cgroup_dir *dir = add_dir(group, place, part, key);
    int error;

    if (dir->fd >= 0)
        return 0;
    error = make_dir(dir, place->parent);
    if (error != 0)
        return error;
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0)
        return errno;
    dir->procs_fd = openat(dir->fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    return dir->procs_fd < 0 ? errno : 0;
}

static int set_quota(const struct cgroup_dir *dir, int64_t permille)
{
    int64_t quota_us = permille * (QUOTA_PERIOD_US / 1000);
    char text[48];

    if (quota_us < QUOTA_US_MIN)
        quota_us = QUOTA_US_MIN;
    if (dir->version == 2)
        snprintf(text, sizeof text, "%" PRId64 " %d", quota_us, QUOTA_PERIOD_US);
    else
        snprintf(text, sizeof text, "%" PRId64, quota_us); /* its period is that by default */
    return cgroup_file_put(dir->fd, dir->version == 2 ? "cpu.max" : "cpu.cfs_quota_us", text);
}

static int set_limits(const struct cgroup *group, const struct cgroup_limits *limits)
{
    const struct cgroup_dir *memory = dir_of(group, CGROUP_MEMORY);
    const struct cgroup_dir *pids = dir_of(group, CGROUP_PIDS);
    const struct cgroup_dir *quota = dir_of(group, CGROUP_QUOTA);
    char number[24];
    int error = 0;

    if (memory && limits->memory_bytes_max > 0) {
        bool v2 = memory->version == 2;

        snprintf(number, sizeof number, "%" PRId64, limits->memory_bytes_max);
        error = cgroup_file_put(memory->fd, v2 ? "memory.max" : "memory.limit_in_bytes", number);
        /* Where the machine swaps, the limit means memory and swap together. */
        cgroup_file_put(memory->fd, v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes",
                        v2 ? "0" : number);
        if (v2)
            cgroup_file_put(memory->fd, "memory.oom.group", "1");
    }
    if (error == 0 && pids && limits->pids_max > 0) {
        snprintf(number, sizeof number, "%" PRId64, limits->pids_max);
        error = cgroup_file_put(pids->fd, "pids.max", number);
    }
    if (error == 0 && quota && limits->cpu_permille_max > 0)
        error = set_quota(quota, limits->cpu_permille_max);
    return error;
}

enum err cgroup_make(struct cgroup *group, const struct cgroup_places *places, struct str key,
                     const struct cgroup_limits *limits, struct problem *why)
{
    unsigned wanted = always;
    int error = 0;

    assert(limits->memory_bytes_max >= 0 && limits->pids_max >= 0);
    *group = (struct cgroup){0};
    if (limits->memory_bytes_max > 0)
        wanted |= 1u << CGROUP_MEMORY;
    if (limits->pids_max > 0)
        wanted |= 1u << CGROUP_PIDS;
    if (limits->cpu_permille_max > 0)
        wanted |= 1u << CGROUP_QUOTA;
    for (int i = 0; i < CGROUP_PARTS && error == 0; i++)
        if (wanted & 1u << i && places->part[i].version != 0)
            error = make_part(group, &places->part[i], (enum cgroup_part)i, key);
    if (error == 0)
        error = set_limits(group, limits);
    if (error == 0)
        return ERR_OK;
    cgroup_remove(group);
    return problem_set(why, ERR_IO, "", "Its control group cannot be set up: %s.", strerror(error));
}

void cgroup_open(struct cgroup *group, const struct cgroup_places *places, struct str key)
{
    *group = (struct cgroup){0};
    for (int i = 0; i < CGROUP_PARTS; i++) {
        struct cgroup_dir *dir;

        if (places->part[i].version == 0)
            continue;
        dir = add_dir(group, &places->part[i], (enum cgroup_part)i, key);
        if (dir->fd >= 0)
            continue;
        dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir->fd < 0)
            group->count--;
    }
}

int cgroup_clone_fd(const struct cgroup *group)
{
    for (size_t i = 0; i < group->count; i++)
        if (group->dirs[i].version == 2)
            return group->dirs[i].fd;
    return -1;
}

int cgroup_enter(const struct cgroup *group, bool cloned_into)
{
    for (size_t i = 0; i < group->count; i++) {
        const struct cgroup_dir *dir = &group->dirs[i];

        if (dir->version == 2 && cloned_into)
            continue;
        assert(dir->procs_fd >= 0); /* it was made, not only opened */
        if (write(dir->procs_fd, "0", 1) != 1)
            return errno;
    }
    return 0;
}

/* --- ending --- */

static void kill_listed(const struct cgroup_dir *dir)
{
    struct buf procs = {0};
    struct str rest;

    if (cgroup_file_get(dir->fd, "cgroup.procs", &procs) == 0)
        for (rest = buf_view(&procs); rest.at;) {
            int64_t pid;

            /* They are frozen: nobody among them can end and give a number away. */
            if (str_int(str_cut(&rest, '\n'), &pid) && pid > 1)
                kill((pid_t)pid, SIGKILL);
        }
    buf_free(&procs);
}

static bool is_frozen(const struct cgroup_dir *dir)
{
    struct buf state = {0};
    int64_t frozen = 0;
    bool is;

    if (dir->version == 2)
        return cgroup_file_int(dir->fd, "cgroup.events", "frozen", &frozen) && frozen == 1;
    is = cgroup_file_get(dir->fd, "freezer.state", &state) == 0 &&
         str_is(str_trim(str_cut(&(struct str){state.at, state.len}, '\n')), "FROZEN");
    buf_free(&state);
    return is;
}

static bool freeze_and_kill(const struct cgroup_dir *dir)
{
    const char *file = dir->version == 2 ? "cgroup.freeze" : "freezer.state";
    int64_t until_ms = clock_mono_ms() + FREEZE_MS;
    bool frozen;

    assert(dir->parts & 1u << CGROUP_KILL);
    if (cgroup_file_put(dir->fd, file, dir->version == 2 ? "1" : "FROZEN") != 0)
        return false;
    while (!(frozen = is_frozen(dir)) && clock_mono_ms() < until_ms)
        usleep(REMOVE_WAIT_US);
    kill_listed(dir);
    cgroup_file_put(dir->fd, file, dir->version == 2 ? "0" : "THAWED");
    return frozen;
}

bool cgroup_kill(const struct cgroup *group)
{
    const struct cgroup_dir *dir = dir_of(group, CGROUP_KILL);

    if (!dir)
        return false;
    if (dir->version == 2 && cgroup_file_put(dir->fd, "cgroup.kill", "1") == 0)
        return true;
    return freeze_and_kill(dir);
}

bool cgroup_empty(const struct cgroup *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct buf procs = {0};
        int error = cgroup_file_get(group->dirs[i].fd, "cgroup.procs", &procs);
        bool some = error == 0 && procs.len > 0;

        buf_free(&procs);
        if (some)
            return false;
    }
    return true;
}

void cgroup_close(struct cgroup *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (group->dirs[i].fd >= 0)
            close(group->dirs[i].fd);
        if (group->dirs[i].procs_fd >= 0)
            close(group->dirs[i].procs_fd);
    }
    *group = (struct cgroup){0};
}

/* A parent that is only there for limits goes with its last run. */
static void remove_parent(const struct cgroup_dir *dir)
{
    char parent[sizeof dir->path];
    char *slash;

    memcpy(parent, dir->path, sizeof parent);
    slash = strrchr(parent, '/');
    assert(slash && slash != parent);
    *slash = '\0';
    rmdir(parent);
}

void cgroup_remove(struct cgroup *group)
{
    for (size_t i = 0; i < group->count; i++) {
        const struct cgroup_dir *dir = &group->dirs[i];

        /* v1 lets go of its last process a moment after that was reaped. */
        for (int tries = 0; rmdir(dir->path) != 0 && errno == EBUSY && tries < REMOVE_TRIES;
             tries++)
            usleep(REMOVE_WAIT_US);
        if (!(dir->parts & always))
            remove_parent(dir);
    }
    cgroup_close(group);
}

/* --- figures --- */

int64_t cgroup_oom_kills(const struct cgroup *group)
{
    const struct cgroup_dir *dir = dir_of(group, CGROUP_MEMORY);
    int64_t count = 0;

    if (!dir ||
        !cgroup_file_int(dir->fd, dir->version == 2 ? "memory.events" : "memory.oom_control",
                         "oom_kill", &count))
        return 0;
    return count;
}

bool cgroup_cpu_ms(const struct cgroup *group, int64_t *ret_ms)
{
    const struct cgroup_dir *dir = dir_of(group, CGROUP_CPU);
    int64_t value;

    if (!dir)
        return false;
    if (dir->version == 2) {
        if (!cgroup_file_int(dir->fd, "cpu.stat", "usage_usec", &value))
            return false;
        *ret_ms = value / 1000;
        return true;
    }
    if (!cgroup_file_int(dir->fd, "cpuacct.usage", NULL, &value))
        return false;
    *ret_ms = value / 1000000;
    return true;
}

bool cgroup_memory_bytes(const struct cgroup *group, int64_t *ret_bytes)
{
    const struct cgroup_dir *dir = dir_of(group, CGROUP_MEMORY);

    return dir &&
           cgroup_file_int(dir->fd, dir->version == 2 ? "memory.current" : "memory.usage_in_bytes",
                           NULL, ret_bytes);
}
