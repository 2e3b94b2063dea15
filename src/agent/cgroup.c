/* Control groups: see cgroup.h. */
#include "agent/cgroup.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fd.h"
#include "base/clock.h"

enum {
    READ_STEP = 4096,
    FILE_BYTES_MAX = 4 << 20,
    FREEZE_MS = 100,
    QUOTA_PERIOD_US = 100000,
    QUOTA_US_MIN = 1000, /* the kernel's minimum */
    MAKE_TRIES = 4,
    EMPTY_TRIES = 50,
    REMOVE_TRIES = 20,
    WAIT_US = 500
};

/* Our own processes move here when they prevent enabling controllers in their group. */
#define LEAF "berth-self"

/* memory comes first: the kernel refuses it while processes are in the group, whereas the others
 * would be accepted and make the group threaded. */
const char *const cgroup_limit_names[CGROUP_LIMITS] = {
    [CGROUP_MEMORY] = "memory", [CGROUP_PIDS] = "pids", [CGROUP_CPU] = "cpu"};

/* --- files --- */

int cgroup_file_put(int dir_fd, const char *name, const char *text)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);
    size_t len = strlen(text);
    ssize_t done;
    int error = 0;

    assert(len > 0); /* an empty write would do nothing */
    if (fd < 0)
        return errno;
    do
        done = write(fd, text, len);
    while (done < 0 && errno == EINTR);
    if (done != (ssize_t)len)
        error = done < 0 ? errno : EIO;
    close(fd);
    return error;
}

int cgroup_file_get(int dir_fd, const char *name, struct buf *ret_text)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC), error;
    ssize_t got;

    if (fd < 0)
        return errno;
    do {
        buf_reserve(ret_text, READ_STEP);
        got = read(fd, ret_text->at + ret_text->len, READ_STEP);
        if (got > 0)
            ret_text->len += (size_t)got;
    } while ((got > 0 && ret_text->len < FILE_BYTES_MAX) || (got < 0 && errno == EINTR));
    error = got < 0 ? errno : 0;
    close(fd);
    return error;
}

bool cgroup_file_int(int dir_fd, const char *name, const char *field, int64_t *ret_value)
{
    struct buf text = {0};
    struct str rest;
    bool found = false;

    if (cgroup_file_get(dir_fd, name, &text) != 0) {
        buf_free(&text);
        return false;
    }
    rest = buf_view(&text);
    while (rest.at && !found) {
        struct str line = str_cut(&rest, '\n');

        if (field && !str_is(str_cut(&line, ' '), field))
            continue;
        found = line.at && str_int(str_trim(line), ret_value);
        if (!field)
            break;
    }
    buf_free(&text);
    return found;
}

static int open_group(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Independent of our umask: programs read their own limits there. */
static int make_dir(const char *path)
{
    if (mkdir(path, 0755) == 0)
        return chmod(path, 0755) == 0 ? 0 : errno;
    return errno == EEXIST ? 0 : errno;
}

/* --- where this process is --- */

static bool list_has(struct str list, char separator, const char *name)
{
    while (list.at)
        if (str_is(str_cut(&list, separator), name))
            return true;
    return false;
}

/* Parses "36 25 0:31 ROOT MOUNTPOINT rw … - FSTYPE SOURCE OPTIONS"; true if it is the requested
 * mount. */
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

bool cgroup_find(struct str mounts, struct str groups, const char *controller, char *path,
                 size_t size)
{
    struct str own = STR_NONE, root, point;

    assert(size > 0);
    while (groups.at && !own.at) { /* "4:memory:/path", "0::/path" */
        struct str line = str_cut(&groups, '\n');
        struct str number = str_cut(&line, ':'), names = str_cut(&line, ':');

        if (controller ? list_has(names, ',', controller) : str_is(number, "0"))
            own = line;
    }
    if (!own.at)
        return false;
    while (mounts.at) {
        struct str line = str_cut(&mounts, '\n');
        int len;

        if (!mount_is(line, controller, &root, &point))
            continue;
        /* In a container the mount may show only part of the hierarchy: its root is then our own
         * group. */
        if (!str_is(root, "/") && str_starts(own, root)) {
            own = str_from(own, root.len);
        }
        if (str_is(own, "/"))
            own.len = 0;
        len = snprintf(path, size, STR_FMT STR_FMT, STR_ARG(point), STR_ARG(own));
        return len > 0 && (size_t)len < size;
    }
    return false;
}

/* --- enabling controllers --- */

struct probe {
    char base[CGROUP_PATH_MAX]; /* the parent group is created below it */
    int base_fd;
    bool kept; /* the base belongs to us alone: any process in it may be moved */
    struct cgroup_place *place;
};

/* Only groups of type "domain" can have limits; the root group has no type. */
static bool is_domain(int group_fd)
{
    struct buf type = {0};
    int error = cgroup_file_get(group_fd, "cgroup.type", &type);
    struct str text = buf_view(&type);
    bool is = error == ENOENT || (error == 0 && str_is(str_cut(&text, '\n'), "domain"));

    buf_free(&type);
    return is;
}

/* This process, or its parent if that is the same program: `berth dev`. */
static bool is_ours(int64_t pid)
{
    struct stat own, other;
    char path[48];

    if (pid == getpid())
        return true;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/exe", pid);
    return pid == getppid() && stat("/proc/self/exe", &own) == 0 && stat(path, &other) == 0 &&
           own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

/* Moves the processes of the base one level down, if all of them may be moved. Returns 0 or an
 * errno; EAGAIN: some were moved, try again. */
static int make_room(const struct probe *probe)
{
    struct buf procs = {0};
    struct str rest;
    int error = cgroup_file_get(probe->base_fd, "cgroup.procs", &procs);

    for (rest = buf_view(&procs); rest.at && error == 0 && !probe->kept;) {
        int64_t pid;

        if (str_int(str_cut(&rest, '\n'), &pid) && !is_ours(pid))
            error = EBUSY;
    }
    if (error == 0 && procs.len > 0)
        error = mkdirat(probe->base_fd, LEAF, 0755) == 0 || errno == EEXIST ? 0 : errno;
    for (rest = buf_view(&procs); rest.at && error == 0;) {
        char pid[24];
        struct str line = str_cut(&rest, '\n');

        if (line.len == 0 || !str_copy(line, pid, sizeof pid))
            continue;
        error = cgroup_file_put(probe->base_fd, LEAF "/cgroup.procs", pid);
        if (error == ESRCH)
            error = 0; /* it has ended in the meantime */
    }
    if (error == 0 && procs.len > 0)
        error = EAGAIN;
    buf_free(&procs);
    return error;
}

static bool file_has(int group_fd, const char *file, const char *name)
{
    struct buf text = {0};
    bool has;

    has = cgroup_file_get(group_fd, file, &text) == 0 &&
          list_has(str_trim(str_cut(&(struct str){text.at, text.len}, '\n')), ' ', name);
    buf_free(&text);
    return has;
}

static int pass_on(int group_fd, const char *controller)
{
    char change[32];

    if (file_has(group_fd, "cgroup.subtree_control", controller))
        return 0;
    snprintf(change, sizeof change, "+%s", controller);
    return cgroup_file_put(group_fd, "cgroup.subtree_control", change);
}

__attribute__((format(printf, 2, 3))) static void add_missing(struct cgroup_place *place,
                                                              const char *fmt, ...)
{
    size_t used = strlen(place->missing);
    va_list args;

    if (used > 0)
        used += (size_t)snprintf(place->missing + used, sizeof place->missing - used, "; ");
    if (used >= sizeof place->missing)
        return;
    va_start(args, fmt);
    vsnprintf(place->missing + used, sizeof place->missing - used, fmt, args);
    va_end(args);
}

static void offer_limits(const struct probe *probe, int parent_fd)
{
    struct cgroup_place *place = probe->place;
    /* The root group may have both processes and enabled controllers. */
    int error = faccessat(probe->base_fd, "cgroup.type", F_OK, 0) == 0 ? EAGAIN : 0;

    for (int i = 0; i < EMPTY_TRIES && error == EAGAIN; i++)
        error = make_room(probe);
    if (error == EAGAIN)
        error = EBUSY;
    if (error != 0) {
        add_missing(place, "memory, pids, cpu: %s %s",
                    error == EBUSY ? "other processes are in" : strerror(error), probe->base);
        return;
    }
    for (int i = 0; i < CGROUP_LIMITS; i++) {
        const char *controller = cgroup_limit_names[i];

        if (!file_has(probe->base_fd, "cgroup.controllers", controller)) {
            add_missing(place, "%s: no such controller in %s", controller, probe->base);
            continue;
        }
        error = pass_on(probe->base_fd, controller);
        if (error == 0)
            error = pass_on(parent_fd, controller);
        if (error == 0 && !is_domain(parent_fd))
            error = EOPNOTSUPP;
        place->limits[i] = error == 0;
        if (error != 0)
            add_missing(place, "%s: %s", controller, strerror(error));
    }
}

/* Creates the parent group even if no controller can be enabled: groups alone suffice to kill
 * process trees and to count, wherever they can be created. */
static void offer(struct probe *probe, const char *name, uid_t uid, gid_t gid)
{
    static const char *const given[] = {".", "cgroup.procs", "cgroup.threads",
                                        "cgroup.subtree_control"};
    struct cgroup_place *place = probe->place;
    int error = 0, parent_fd = -1, len;

    assert(str_is_id(str_of(name), 64));
    probe->base_fd = open_group(probe->base);
    if (probe->base_fd < 0) {
        add_missing(place, "memory, pids, cpu: %s: %s", probe->base, strerror(errno));
        return;
    }
    len = snprintf(place->parent, sizeof place->parent, "%s/%s", probe->base, name);
    if (len >= (int)sizeof place->parent)
        error = ENAMETOOLONG;
    else if (!is_domain(probe->base_fd))
        error = EOPNOTSUPP;
    else
        error = make_dir(place->parent);
    if (error == 0 && (parent_fd = open_group(place->parent)) < 0)
        error = errno;
    if (error == 0 && uid != (uid_t)-1)
        for (size_t i = 0; i < COUNT_OF(given) && error == 0; i++)
            error = fchownat(parent_fd, given[i], uid, gid, 0) == 0 ? 0 : errno;
    if (error == 0)
        offer_limits(probe, parent_fd);
    if (error == 0 && !is_domain(parent_fd))
        error = EOPNOTSUPP; /* no process could enter a group created there */
    fd_close(parent_fd);
    close(probe->base_fd);
    if (error == 0)
        return;
    if (parent_fd >= 0)
        rmdir(place->parent);
    *place = (struct cgroup_place){0};
    add_missing(place, "memory, pids, cpu: no group can be made in %s: %s", probe->base,
                strerror(error));
}

void cgroup_probe_at(const char *base, const char *name, uid_t uid, gid_t gid,
                     struct cgroup_place *ret_place)
{
    struct probe probe = {.kept = true, .place = ret_place};

    *ret_place = (struct cgroup_place){0};
    snprintf(probe.base, sizeof probe.base, "%s", base);
    offer(&probe, name, uid, gid);
}

void cgroup_probe(const char *name, struct cgroup_place *ret_place)
{
    struct probe probe = {.place = ret_place};
    struct buf mounts = {0}, groups = {0};
    bool found;
    char *last;

    *ret_place = (struct cgroup_place){0};
    cgroup_file_get(AT_FDCWD, "/proc/self/mountinfo", &mounts);
    cgroup_file_get(AT_FDCWD, "/proc/self/cgroup", &groups);
    found = cgroup_find(buf_view(&mounts), buf_view(&groups), NULL, probe.base, sizeof probe.base);
    buf_free(&mounts);
    buf_free(&groups);
    if (!found) {
        add_missing(ret_place, "memory, pids, cpu: no cgroup v2 is mounted");
        return;
    }
    last = strrchr(probe.base, '/');
    if (last && strcmp(last, "/" LEAF) == 0)
        *last = '\0'; /* we, or our parent process, have already moved one level down */
    offer(&probe, name, (uid_t)-1, (gid_t)-1);
}

void cgroup_unprobe(const struct cgroup_place *place)
{
    if (place->parent[0])
        rmdir(place->parent);
}

void cgroup_sweep(const struct cgroup_place *place, const struct map *runs)
{
    DIR *dir = place->parent[0] ? opendir(place->parent) : NULL;

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct str name = str_of(entry->d_name);

        if (entry->d_type == DT_DIR && name.at[0] != '.' && !map_get(runs, name))
            unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR); /* fails while a process is in it */
    }
    if (dir)
        closedir(dir);
}

/* --- the group of one run --- */

static void set_path(struct cgroup *group, const struct cgroup_place *place, struct str key)
{
    int len = snprintf(group->path, sizeof group->path, "%s/" STR_FMT, place->parent, STR_ARG(key));

    assert(place->parent[0] && len > 0 && (size_t)len < sizeof group->path);
}

static int set_limits(const struct cgroup *group, const struct cgroup_limits *wanted)
{
    char number[24], quota[48];
    int error = 0;

    if (wanted->memory_bytes_max > 0) {
        snprintf(number, sizeof number, "%" PRId64, wanted->memory_bytes_max);
        error = cgroup_file_put(group->fd, "memory.max", number);
        /* Where the machine has swap, the limit covers memory and swap together. */
        cgroup_file_put(group->fd, "memory.swap.max", "0");
        cgroup_file_put(group->fd, "memory.oom.group", "1");
    } else if (wanted->memory_bytes_default > 0) {
        snprintf(number, sizeof number, "%" PRId64, wanted->memory_bytes_default);
        cgroup_file_put(group->fd, "memory.max", number);
    }
    if (error == 0 && wanted->pids_max > 0) {
        snprintf(number, sizeof number, "%" PRId64, wanted->pids_max);
        error = cgroup_file_put(group->fd, "pids.max", number);
    }
    if (error == 0 && wanted->cpu_permille_max > 0) {
        int64_t quota_us = wanted->cpu_permille_max * (QUOTA_PERIOD_US / 1000);

        snprintf(quota, sizeof quota, "%" PRId64 " %d",
                 quota_us < QUOTA_US_MIN ? QUOTA_US_MIN : quota_us, QUOTA_PERIOD_US);
        error = cgroup_file_put(group->fd, "cpu.max", quota);
    }
    return error;
}

static int make(struct cgroup *group, const struct cgroup_place *place, struct str key)
{
    int error = ENOENT;

    if (!place->parent[0])
        return ENOENT;
    set_path(group, place, key);
    /* Another run may have just removed the parent as its last group. */
    for (int i = 0; i < MAKE_TRIES && error == ENOENT; i++) {
        error = make_dir(group->path);
        if (error == ENOENT && make_dir(place->parent) != 0)
            break;
    }
    if (error != 0)
        return error;
    group->fd = open_group(group->path);
    if (group->fd < 0)
        return errno;
    group->procs_fd = openat(group->fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    return group->procs_fd < 0 ? errno : 0;
}

enum err cgroup_make(struct cgroup *group, const struct cgroup_place *place, struct str key,
                     const struct cgroup_limits *wanted, struct problem *why)
{
    bool limited = wanted->memory_bytes_max || wanted->pids_max || wanted->cpu_permille_max;
    char weight[24];
    int error;

    assert(wanted->memory_bytes_max >= 0 && wanted->pids_max >= 0 && wanted->cpu_permille_max >= 0);
    *group = CGROUP_NONE;
    if (!((!wanted->memory_bytes_max || place->limits[CGROUP_MEMORY]) &&
          (!wanted->pids_max || place->limits[CGROUP_PIDS]) &&
          (!wanted->cpu_permille_max || place->limits[CGROUP_CPU])))
        return problem_set(why, ERR_IO, "", "Its limits cannot be enforced here (%s).",
                           place->missing[0] ? place->missing : "no control groups");
    error = make(group, place, key);
    if (error == 0 && wanted->cpu_weight > 0 && place->limits[CGROUP_CPU]) {
        snprintf(weight, sizeof weight, "%" PRId64, wanted->cpu_weight);
        cgroup_file_put(group->fd, "cpu.weight", weight);
    }
    if (error == 0 && limited)
        error = set_limits(group, wanted);
    if (error == 0)
        return ERR_OK;
    cgroup_remove(group);
    if (!limited)
        return ERR_OK; /* its process tree is found by other means */
    return problem_set(why, ERR_IO, "", "Its control group cannot be set up: %s.", strerror(error));
}

void cgroup_open(struct cgroup *group, const struct cgroup_place *place, struct str key)
{
    *group = CGROUP_NONE;
    if (!place->parent[0])
        return;
    set_path(group, place, key);
    group->fd = open_group(group->path);
}

int cgroup_enter(const struct cgroup *group)
{
    if (group->fd < 0)
        return 0;
    assert(group->procs_fd >= 0); /* created by us, not only opened */
    return write(group->procs_fd, "0", 1) == 1 ? 0 : errno;
}

/* --- ending --- */

/* Kernels before 5.14 have no cgroup.kill. */
static bool freeze_and_kill(const struct cgroup *group)
{
    int64_t until_ms = clock_mono_ms() + FREEZE_MS, frozen = 0, pid;
    struct buf procs = {0};
    struct str rest;

    if (cgroup_file_put(group->fd, "cgroup.freeze", "1") != 0)
        return false;
    while ((!cgroup_file_int(group->fd, "cgroup.events", "frozen", &frozen) || frozen != 1) &&
           clock_mono_ms() < until_ms)
        usleep(WAIT_US);
    if (cgroup_file_get(group->fd, "cgroup.procs", &procs) == 0)
        for (rest = buf_view(&procs); rest.at;)
            /* They are frozen: none can exit and free its pid for another process. */
            if (str_int(str_cut(&rest, '\n'), &pid) && pid > 1)
                kill((pid_t)pid, SIGKILL);
    buf_free(&procs);
    cgroup_file_put(group->fd, "cgroup.freeze", "0");
    return frozen == 1;
}

bool cgroup_kill(const struct cgroup *group)
{
    return group->fd >= 0 &&
           (cgroup_file_put(group->fd, "cgroup.kill", "1") == 0 || freeze_and_kill(group));
}

bool cgroup_empty(const struct cgroup *group)
{
    int64_t populated = 0;

    return group->fd < 0 || !cgroup_file_int(group->fd, "cgroup.events", "populated", &populated) ||
           populated == 0;
}

void cgroup_close(struct cgroup *group)
{
    fd_close(group->fd);
    fd_close(group->procs_fd);
    *group = CGROUP_NONE;
}

void cgroup_remove(struct cgroup *group)
{
    if (group->fd >= 0) /* the last process may still be exiting */
        for (int tries = 0; rmdir(group->path) != 0 && errno == EBUSY && tries < REMOVE_TRIES;
             tries++)
            usleep(WAIT_US);
    cgroup_close(group);
}

/* --- figures --- */

int64_t cgroup_oom_kills(const struct cgroup *group)
{
    int64_t count = 0;

    return group->fd >= 0 && cgroup_file_int(group->fd, "memory.events", "oom_kill", &count) ? count
                                                                                             : 0;
}
