/* What the cgroups of this process leave it: the tightest limit on its way up counts, in v1 and v2
 * alike. A limit that is not there, or above what the machine has, confines nobody. */
#include "agent/usage_private.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "agent/cgroup.h"

enum { KIB = 1024 };

static const char *const controllers[USAGE_PLACES] = {
    [USAGE_UNIFIED] = NULL,      [USAGE_MEMORY] = "memory", [USAGE_CPU] = "cpu",
    [USAGE_CPUACCT] = "cpuacct", [USAGE_CPUSET] = "cpuset",
};

void usage_cgroup_find(struct usage_files *files, struct usage_groups *ret_groups)
{
    struct buf mounts = {0};
    struct str own;

    ret_groups->files = files;
    buf_str(&mounts, usage_file(files, "/proc/self/mountinfo"));
    own = usage_file(files, "/proc/self/cgroup");
    for (int i = 0; i < USAGE_PLACES; i++)
        if (!own.len || !cgroup_find(buf_view(&mounts), own, controllers[i], ret_groups->dirs[i],
                                     sizeof ret_groups->dirs[i]))
            ret_groups->dirs[i][0] = '\0';
    buf_free(&mounts);
}

/* Where the same thing stands in the two versions. */
struct memory_files {
    enum usage_place place;
    const char *limits[2];
    const char *used;
    const char *stat;
    const char *reclaimable[3]; /* words of `stat`: cache of files, without shared memory */
};

static const struct memory_files memory_v2 = {
    .place = USAGE_UNIFIED,
    .limits = {"memory.max", "memory.high"},
    .used = "memory.current",
    .stat = "memory.stat",
    .reclaimable = {"active_file", "inactive_file", "slab_reclaimable"},
};

static const struct memory_files memory_v1 = {
    .place = USAGE_MEMORY,
    .limits = {"memory.limit_in_bytes"},
    .used = "memory.usage_in_bytes",
    .stat = "memory.stat",
    .reclaimable = {"total_active_file", "total_inactive_file"},
};

/* The way up from where this process stands: false behind the top. */
static bool group_first(const struct usage_groups *groups, enum usage_place place,
                        char dir[USAGE_GROUP_MAX])
{
    memcpy(dir, groups->dirs[place], USAGE_GROUP_MAX);
    return dir[0] != '\0';
}

static bool group_above(char *dir)
{
    char *slash = strrchr(dir, '/');

    if (!slash || slash == dir)
        return false;
    *slash = '\0';
    return true;
}

/* A number alone in its file; "max" and a missing file are none. */
static int64_t number_in(struct usage_files *files, const char *dir, const char *name)
{
    struct str text = usage_file(files, "%s/%s", dir, name);
    int64_t value;

    return str_int(usage_word(&text), &value) && value >= 0 ? value : USAGE_NONE;
}

/* --- memory --- */

static int64_t reclaimable_bytes(struct usage_files *files, const char *dir,
                                 const struct memory_files *names)
{
    struct str rest = usage_file(files, "%s/%s", dir, names->stat);
    int64_t sum = 0;

    while (rest.len) {
        struct str line = str_cut(&rest, '\n');
        struct str word = usage_word(&line);
        int64_t bytes;

        for (size_t i = 0; i < COUNT_OF(names->reclaimable) && names->reclaimable[i]; i++)
            if (str_is(word, names->reclaimable[i]) && str_int(usage_word(&line), &bytes))
                sum += bytes;
    }
    return sum;
}

static int64_t limit_bytes(struct usage_files *files, const char *dir,
                           const struct memory_files *names)
{
    int64_t least = USAGE_NONE;

    for (size_t i = 0; i < COUNT_OF(names->limits) && names->limits[i]; i++) {
        int64_t limit = number_in(files, dir, names->limits[i]);

        if (limit != USAGE_NONE && (least == USAGE_NONE || limit < least))
            least = limit;
    }
    return least;
}

/* The limit with the least room below it is the one that counts, and both figures are its own: the
 * room of a small group is no share of a big one. How full the fullest is counts besides. */
static void weigh_memory(struct usage_cgroup *cgroup, int64_t limit_kib, int64_t room_kib)
{
    assert(room_kib >= 0 && room_kib <= limit_kib);
    assert((cgroup->mem_total_kib == USAGE_NONE) == (cgroup->mem_free_kib == USAGE_NONE));
    if (limit_kib > 0 && (limit_kib - room_kib) * 1000 / limit_kib > cgroup->mem_used_permille)
        cgroup->mem_used_permille = (limit_kib - room_kib) * 1000 / limit_kib;
    if (cgroup->mem_free_kib != USAGE_NONE && cgroup->mem_free_kib <= room_kib)
        return;
    cgroup->mem_total_kib = limit_kib;
    cgroup->mem_free_kib = room_kib;
}

static void read_memory(const struct usage_groups *groups, const struct memory_files *names,
                        struct usage_cgroup *cgroup)
{
    struct usage_files *files = groups->files;
    char dir[USAGE_GROUP_MAX];

    for (bool more = group_first(groups, names->place, dir); more; more = group_above(dir)) {
        int64_t limit = limit_bytes(files, dir, names);
        int64_t used, room;

        /* v1 says "no limit" with a number no machine has. */
        if (limit == USAGE_NONE || limit > INT64_MAX / 2)
            continue;
        used = number_in(files, dir, names->used);
        if (used == USAGE_NONE)
            continue;
        room = limit - used + reclaimable_bytes(files, dir, names);
        room = room < 0 ? 0 : room > limit ? limit : room;
        weigh_memory(cgroup, limit / KIB, room / KIB);
    }
}

/* Only v2 limits swap by itself. */
static void read_swap(const struct usage_groups *groups, struct usage_cgroup *cgroup)
{
    char dir[USAGE_GROUP_MAX];

    for (bool more = group_first(groups, USAGE_UNIFIED, dir); more; more = group_above(dir)) {
        int64_t limit = number_in(groups->files, dir, "memory.swap.max");
        int64_t used = number_in(groups->files, dir, "memory.swap.current");

        if (limit == USAGE_NONE || used == USAGE_NONE ||
            (cgroup->swap_total_kib != USAGE_NONE && limit / KIB >= cgroup->swap_total_kib))
            continue;
        cgroup->swap_total_kib = limit / KIB;
        cgroup->swap_used_kib = (used < limit ? used : limit) / KIB;
    }
}

/* --- CPU --- */

/* "0-3,8" -> 5 */
static int64_t count_cpus(struct str list)
{
    int64_t count = 0;

    list = usage_word(&list);
    while (list.len) {
        struct str range = str_cut(&list, ',');
        struct str first = str_cut(&range, '-');
        int64_t from, to;

        if (!str_int(first, &from))
            return USAGE_NONE;
        to = from;
        if (range.at && (!str_int(range, &to) || to < from))
            return USAGE_NONE;
        count += to - from + 1;
    }
    return count > 0 ? count : USAGE_NONE;
}

static int64_t quota_milli(int64_t quota_us, int64_t period_us)
{
    if (quota_us <= 0 || period_us <= 0 || quota_us > INT64_MAX / 1000)
        return USAGE_NONE;
    return quota_us * 1000 / period_us;
}

/* cpu.max: "QUOTA PERIOD", QUOTA may be "max" */
static int64_t quota_v2(struct usage_files *files, const char *dir)
{
    struct str text = usage_file(files, "%s/cpu.max", dir);
    int64_t quota, period;

    if (!str_int(usage_word(&text), &quota) || !str_int(usage_word(&text), &period))
        return USAGE_NONE;
    return quota_milli(quota, period);
}

static int64_t quota_v1(struct usage_files *files, const char *dir)
{
    return quota_milli(number_in(files, dir, "cpu.cfs_quota_us"),
                       number_in(files, dir, "cpu.cfs_period_us"));
}

static int64_t used_us_v2(struct usage_files *files, const char *dir)
{
    struct str rest = usage_file(files, "%s/cpu.stat", dir);

    while (rest.len) {
        struct str line = str_cut(&rest, '\n');
        int64_t us;

        if (str_is(usage_word(&line), "usage_usec") && str_int(usage_word(&line), &us))
            return us;
    }
    return USAGE_NONE;
}

static int64_t used_us_v1(struct usage_files *files, const char *dir)
{
    int64_t ns = number_in(files, dir, "cpuacct.usage");

    return ns == USAGE_NONE ? USAGE_NONE : ns / 1000;
}

/* What this process's own groups used. */
static int64_t own_used_us(const struct usage_groups *groups)
{
    int64_t us = USAGE_NONE;

    if (groups->dirs[USAGE_CPUACCT][0])
        us = used_us_v1(groups->files, groups->dirs[USAGE_CPUACCT]);
    if (us == USAGE_NONE && groups->dirs[USAGE_UNIFIED][0])
        us = used_us_v2(groups->files, groups->dirs[USAGE_UNIFIED]);
    return us;
}

/* The smallest quota, and what was used under it. */
static void read_quota(const struct usage_groups *groups, enum usage_place place,
                       struct usage_cgroup *cgroup)
{
    struct usage_files *files = groups->files;
    char dir[USAGE_GROUP_MAX];

    for (bool more = group_first(groups, place, dir); more; more = group_above(dir)) {
        int64_t milli = place == USAGE_UNIFIED ? quota_v2(files, dir) : quota_v1(files, dir);

        if (milli == USAGE_NONE || (cgroup->cpu_milli != USAGE_NONE && milli >= cgroup->cpu_milli))
            continue;
        cgroup->cpu_milli = milli;
        /* v1 counts in cpuacct, which is mounted together with cpu as a rule. */
        cgroup->cpu_used_us =
            place == USAGE_UNIFIED ? used_us_v2(files, dir) : used_us_v1(files, dir);
        if (cgroup->cpu_used_us == USAGE_NONE)
            cgroup->cpu_used_us = own_used_us(groups);
    }
}

/* The kernel gives the effective set of the group itself; what is above is in it. */
static void read_cpuset(const struct usage_groups *groups, struct usage_cgroup *cgroup)
{
    const char *v1 = groups->dirs[USAGE_CPUSET], *v2 = groups->dirs[USAGE_UNIFIED];
    int64_t cpus = USAGE_NONE;

    if (v1[0])
        cpus = count_cpus(usage_file(groups->files, "%s/cpuset.effective_cpus", v1));
    if (cpus == USAGE_NONE && v2[0])
        cpus = count_cpus(usage_file(groups->files, "%s/cpuset.cpus.effective", v2));
    if (cpus == USAGE_NONE || (cgroup->cpu_milli != USAGE_NONE && cpus * 1000 >= cgroup->cpu_milli))
        return;
    assert(cpus > 0);
    cgroup->cpu_milli = cpus * 1000;
    cgroup->cpu_used_us = own_used_us(groups);
}

static const struct usage_cgroup cgroup_nothing = {
    .cpu_milli = USAGE_NONE,
    .cpu_used_us = USAGE_NONE,
    .mem_total_kib = USAGE_NONE,
    .mem_free_kib = USAGE_NONE,
    .swap_total_kib = USAGE_NONE,
    .swap_used_kib = USAGE_NONE,
};

void usage_cgroup_read(const struct usage_groups *groups, struct usage_cgroup *ret_cgroup)
{
    usage_cgroup_read_memory(groups, ret_cgroup);
    read_swap(groups, ret_cgroup);
    read_quota(groups, USAGE_UNIFIED, ret_cgroup);
    read_quota(groups, USAGE_CPU, ret_cgroup);
    read_cpuset(groups, ret_cgroup);
}

void usage_cgroup_read_memory(const struct usage_groups *groups, struct usage_cgroup *ret_cgroup)
{
    *ret_cgroup = cgroup_nothing;
    read_memory(groups, &memory_v2, ret_cgroup);
    read_memory(groups, &memory_v1, ret_cgroup);
}
