/* What this machine offers: where the hierarchies are mounted, where in them this process stands,
 * and what can be made there. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/cgroup_file.h"

struct part {
    const char *name;
    const char *v1_controller, *v1_file;
    const char *v2_controller; /* NULL: every v2 group has it */
    const char *v2_file;
    bool lasting; /* its v1 parent is there while the agent is; others come and go with a limit */
};

static const struct part parts[CGROUP_PARTS] = {
    [CGROUP_KILL] = {"kill", "freezer", "freezer.state", NULL, "cgroup.freeze", true},
    [CGROUP_CPU] = {"cpu", "cpuacct", "cpuacct.usage", NULL, "cpu.stat", true},
    [CGROUP_MEMORY] = {"memory", "memory", "memory.limit_in_bytes", "memory", "memory.max", false},
    [CGROUP_PIDS] = {"pids", "pids", "pids.max", "pids", "pids.max", false},
    [CGROUP_QUOTA] = {"quota", "cpu", "cpu.cfs_quota_us", "cpu", "cpu.max", false},
};

const char *cgroup_part_name(enum cgroup_part part)
{
    assert(part < CGROUP_PARTS);
    return parts[part].name;
}

/* --- where this process stands --- */

static bool list_has(struct str list, char separator, const char *word)
{
    while (list.at)
        if (str_is(str_cut(&list, separator), word))
            return true;
    return false;
}

/* "36 25 0:31 ROOT MOUNTPOINT rw … - FSTYPE SOURCE OPTIONS" is the mount that was asked for. */
static bool mount_is(struct str line, const char *controller, struct str *ret_root,
                     struct str *ret_point)
{
    struct str kind;

    for (int i = 0; i < 3; i++)
        str_cut(&line, ' ');
    *ret_root = str_cut(&line, ' ');
    *ret_point = str_cut(&line, ' ');
    while (line.at && !str_is(str_cut(&line, ' '), "-"))
        ;
    if (!line.at || !ret_point->at)
        return false;
    kind = str_cut(&line, ' ');
    str_cut(&line, ' ');
    if (!controller)
        return str_is(kind, "cgroup2");
    return str_is(kind, "cgroup") && list_has(line, ',', controller);
}

/* "4:memory:/path", "0::/path" */
static bool own_path(struct str groups, const char *controller, struct str *ret_path)
{
    while (groups.at) {
        struct str line = str_cut(&groups, '\n');
        struct str number = str_cut(&line, ':'), names = str_cut(&line, ':');

        if (!line.at)
            continue;
        if (controller ? !list_has(names, ',', controller) : !str_is(number, "0"))
            continue;
        *ret_path = line;
        return true;
    }
    return false;
}

bool cgroup_find(struct str mounts, struct str groups, const char *controller, char *path,
                 size_t size)
{
    struct str own, root, point;

    assert(size > 0);
    if (!own_path(groups, controller, &own))
        return false;
    while (mounts.at) {
        struct str line = str_cut(&mounts, '\n');
        int len;

        if (!mount_is(line, controller, &root, &point))
            continue;
        /* In a container the mount may show only a part of the hierarchy: its root is ours. */
        if (!str_is(root, "/") && str_starts(own, root)) {
            own.at += root.len;
            own.len -= root.len;
        }
        if (str_is(own, "/"))
            own.len = 0;
        len = snprintf(path, size, STR_FMT STR_FMT, STR_ARG(point), STR_ARG(own));
        return len > 0 && (size_t)len < size;
    }
    return false;
}

/* --- trying --- */

struct probe {
    struct buf mounts, groups;
    const char *name;
    char own[CGROUP_PATH_MAX]; /* of the hierarchy that is being tried */
};

static int make_dir(const char *path)
{
    return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : errno;
}

static int parent_path(const struct probe *probe, char parent[CGROUP_PATH_MAX])
{
    int len = snprintf(parent, CGROUP_PATH_MAX, "%s/%s", probe->own, probe->name);

    return len < CGROUP_PATH_MAX ? 0 : ENAMETOOLONG;
}

static int put_in(const char *dir, const char *file, const char *text)
{
    char path[CGROUP_PATH_MAX + 128];
    int len = snprintf(path, sizeof path, "%s/%s", dir, file);

    return len < (int)sizeof path ? cgroup_file_put(AT_FDCWD, path, text) : ENAMETOOLONG;
}

/* A v2 group that holds processes cannot pass controllers on. When we are alone in ours, we make
 * room by going one level down. */
static int step_aside(const struct probe *probe)
{
    char path[CGROUP_PATH_MAX + 64], pid[16];
    struct buf procs = {0};
    int error;

    snprintf(path, sizeof path, "%s/cgroup.procs", probe->own);
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    error = cgroup_file_get(AT_FDCWD, path, &procs);
    if (error == 0 && !str_is(buf_view(&procs), pid))
        error = EBUSY;
    buf_free(&procs);
    if (error != 0)
        return error;
    snprintf(path, sizeof path, "%s/%s.agent", probe->own, probe->name);
    error = make_dir(path);
    return error ? error : put_in(path, "cgroup.procs", pid);
}

static int pass_on(const struct probe *probe, const char *parent, const char *controller)
{
    char word[32];
    int error;

    snprintf(word, sizeof word, "+%s", controller);
    error = put_in(probe->own, "cgroup.subtree_control", word);
    if (error == EBUSY && step_aside(probe) == 0)
        error = put_in(probe->own, "cgroup.subtree_control", word);
    return error ? error : put_in(parent, "cgroup.subtree_control", word);
}

static bool has_file(const char *dir, const char *file)
{
    char path[CGROUP_PATH_MAX + 64];

    snprintf(path, sizeof path, "%s/%s", dir, file);
    return access(path, F_OK) == 0;
}

/* 0, or why not: ENOENT stands for "not mounted or without this controller". */
static int try_v2(struct probe *probe, const struct part *part, struct cgroup_place *place)
{
    struct buf controllers = {0};
    char path[CGROUP_PATH_MAX + 64];
    int error;

    if (!cgroup_find(buf_view(&probe->mounts), buf_view(&probe->groups), NULL, probe->own,
                     sizeof probe->own))
        return ENOENT;
    if (part->v2_controller) {
        snprintf(path, sizeof path, "%s/cgroup.controllers", probe->own);
        error = cgroup_file_get(AT_FDCWD, path, &controllers);
        if (error == 0 &&
            !list_has(str_trim(str_cut(&(struct str){controllers.at, controllers.len}, '\n')), ' ',
                      part->v2_controller))
            error = ENOENT;
        buf_free(&controllers);
        if (error != 0)
            return error;
    }
    error = parent_path(probe, place->parent);
    if (error == 0)
        error = make_dir(place->parent);
    if (error == 0 && part->v2_controller)
        error = pass_on(probe, place->parent, part->v2_controller);
    if (error != 0)
        return error;
    /* The root group lacks some files, a parent has them all; limits are set in its children. */
    if (!has_file(place->parent, part->v2_file))
        return ENOENT;
    place->version = 2;
    return 0;
}

static int try_v1(struct probe *probe, const struct part *part, struct cgroup_place *place)
{
    bool there;
    int error;

    if (!cgroup_find(buf_view(&probe->mounts), buf_view(&probe->groups), part->v1_controller,
                     probe->own, sizeof probe->own))
        return ENOENT;
    error = parent_path(probe, place->parent);
    if (error == 0)
        error = make_dir(place->parent);
    if (error != 0)
        return error;
    there = has_file(place->parent, part->v1_file);
    if (!there || !part->lasting)
        rmdir(place->parent);
    place->version = there ? 1 : 0;
    return there ? 0 : ENOENT;
}

static void add_missing(struct cgroup_places *places, const struct part *part, int error)
{
    size_t used = strlen(places->missing);

    snprintf(places->missing + used, sizeof places->missing - used, "%s%s: %s", used ? "; " : "",
             part->name, error == ENOENT ? "no such cgroup controller" : strerror(error));
}

void cgroup_probe(const char *name, struct cgroup_places *ret_places)
{
    struct probe probe = {.name = name};

    assert(str_is_id(str_of(name), 64));
    *ret_places = (struct cgroup_places){0};
    cgroup_file_get(AT_FDCWD, "/proc/self/mountinfo", &probe.mounts);
    cgroup_file_get(AT_FDCWD, "/proc/self/cgroup", &probe.groups);
    for (int i = 0; i < CGROUP_PARTS; i++) {
        struct cgroup_place *place = &ret_places->part[i];
        int v2_error = try_v2(&probe, &parts[i], place);
        int v1_error = v2_error ? try_v1(&probe, &parts[i], place) : 0;

        assert((place->version != 0) == (v2_error == 0 || v1_error == 0));
        if (place->version == 0)
            add_missing(ret_places, &parts[i], v1_error != ENOENT ? v1_error : v2_error);
    }
    buf_free(&probe.mounts);
    buf_free(&probe.groups);
}

void cgroup_unprobe(const struct cgroup_places *places)
{
    for (int i = 0; i < CGROUP_PARTS; i++)
        if (places->part[i].version != 0)
            rmdir(places->part[i].parent);
}

/* --- what was left behind --- */

static void sweep_parent(const char *parent, const struct map *runs)
{
    DIR *dir = opendir(parent);

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct str name = str_of(entry->d_name);

        if (entry->d_type == DT_DIR && name.at[0] != '.' && !map_get(runs, name))
            unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR); /* fails while somebody is in it */
    }
    if (dir)
        closedir(dir);
}

void cgroup_sweep(const struct cgroup_places *places, const struct map *runs)
{
    for (int i = 0; i < CGROUP_PARTS; i++)
        if (places->part[i].version != 0)
            sweep_parent(places->part[i].parent, runs);
}
