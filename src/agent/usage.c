/* Builds one sample: the machine's figures from /proc/stat, loadavg, meminfo and pressure, limited
 * by the cgroups of this process, and rates computed from earlier looks; also the sample's form for
 * the rules and for output. */
#include "agent/usage.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "agent/cgroup.h"
#include "agent/usage_tree.h"
#include "base/mem.h"

struct usage_proc {
    int64_t cores; /* online */
    int64_t busy_ticks, total_ticks;
    int64_t load_1m_centi;
    int64_t mem_total_kib, mem_free_kib;
    int64_t swap_total_kib, swap_used_kib;
};

/* The group of this process in each relevant hierarchy; "" where there is none. */
enum usage_place {
    USAGE_UNIFIED,
    USAGE_MEMORY,
    USAGE_CPU,
    USAGE_CPUACCT,
    USAGE_CPUSET,
    USAGE_PLACES
};

struct usage_groups {
    struct usage_files *files;
    char dirs[USAGE_PLACES][USAGE_GROUP_MAX];
};

struct usage_cgroup {
    int64_t cpu_milli;         /* USAGE_NONE: no quota and no cpuset */
    int64_t cpu_used_us;       /* by all processes under that quota, since they started */
    int64_t mem_total_kib;     /* of the limit with the least room; USAGE_NONE: no limit */
    int64_t mem_free_kib;      /* that room */
    int64_t mem_used_permille; /* of the fullest of all limits */
    int64_t swap_total_kib;    /* USAGE_NONE: no limit below the machine's */
    int64_t swap_used_kib;
};

/* --- /proc --- */

struct str usage_file(struct usage_files *files, const char *fmt, ...)
{
    char path[USAGE_PATH_MAX * 2];
    size_t len = (size_t)snprintf(path, sizeof path, "%s", files->root);
    va_list args;
    int more;

    va_start(args, fmt);
    more = vsnprintf(path + len, sizeof path - len, fmt, args);
    va_end(args);
    assert(more > 0);
    buf_clear(&files->text);
    if ((size_t)more >= sizeof path - len || cgroup_file_get(AT_FDCWD, path, &files->text) != 0)
        return STR_NONE;
    buf_reserve(&files->text, 1); /* an empty file is still a text, not STR_NONE */
    return buf_view(&files->text);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

struct str usage_word(struct str *rest)
{
    struct str word;

    while (rest->len && is_blank(rest->at[0])) {
        *rest = str_from(*rest, 1);
    }
    word = (struct str){.at = rest->at, .len = 0};
    while (rest->len && !is_blank(rest->at[0])) {
        word.len++;
        *rest = str_from(*rest, 1);
    }
    return word;
}

bool usage_centi(struct str decimal, int64_t *ret_centi)
{
    struct str whole = str_cut(&decimal, '.');
    int64_t ones, parts = 0;

    if (!str_int(whole, &ones) || ones < 0 || ones > INT64_MAX / 1000)
        return false;
    for (size_t i = 0; i < 2; i++) {
        char digit = i < decimal.len ? decimal.at[i] : '0';

        if (digit < '0' || digit > '9')
            return false;
        parts = parts * 10 + (digit - '0');
    }
    *ret_centi = ones * 100 + parts;
    return true;
}

bool usage_below(int64_t free_kib, int64_t total_kib, int64_t centi)
{
    return free_kib != USAGE_NONE && total_kib != USAGE_NONE && total_kib > 0 &&
           free_kib * 10000 < total_kib * centi;
}

/* "cpu  user nice system idle iowait irq softirq steal ...": everything but idle and iowait is
 * busy; guest time is already in user. */
static void read_cpu_line(struct str line, struct usage_proc *proc)
{
    enum { IDLE = 3, IOWAIT = 4, COLUMNS = 8 };
    int64_t total = 0, idle = 0;

    for (int i = 0; i < COLUMNS; i++) {
        int64_t ticks;

        if (!str_int(usage_word(&line), &ticks) || ticks < 0) {
            if (i > IDLE) /* an old kernel has fewer */
                break;
            return;
        }
        total += ticks;
        if (i == IDLE || i == IOWAIT)
            idle += ticks;
    }
    assert(idle <= total);
    proc->total_ticks = total;
    proc->busy_ticks = total - idle;
}

void usage_fields(struct str text, const struct usage_row *rows, size_t count)
{
    while (text.len) {
        struct str line = str_cut(&text, '\n');
        struct str name = usage_word(&line);
        int64_t kib;

        for (size_t i = 0; i < count; i++)
            if (str_is(name, rows[i].name) && str_int(usage_word(&line), &kib) && kib >= 0)
                *rows[i].to = kib;
    }
}

static void read_memory(struct usage_files *files, struct usage_proc *proc)
{
    int64_t swap_free_kib = USAGE_NONE;
    const struct usage_row rows[] = {
        {"MemTotal:", &proc->mem_total_kib},
        {"MemAvailable:", &proc->mem_free_kib},
        {"SwapTotal:", &proc->swap_total_kib},
        {"SwapFree:", &swap_free_kib},
    };

    usage_fields(usage_file(files, "/proc/meminfo"), rows, COUNT_OF(rows));
    if (proc->swap_total_kib != USAGE_NONE && swap_free_kib != USAGE_NONE &&
        swap_free_kib <= proc->swap_total_kib)
        proc->swap_used_kib = proc->swap_total_kib - swap_free_kib;
    assert(proc->swap_used_kib == USAGE_NONE || proc->swap_used_kib >= 0);
}

static const struct usage_proc proc_nothing = {
    .cores = USAGE_NONE,
    .busy_ticks = USAGE_NONE,
    .total_ticks = USAGE_NONE,
    .load_1m_centi = USAGE_NONE,
    .mem_total_kib = USAGE_NONE,
    .mem_free_kib = USAGE_NONE,
    .swap_total_kib = USAGE_NONE,
    .swap_used_kib = USAGE_NONE,
};

static void usage_proc_read(struct usage_files *files, struct usage_proc *ret_proc)
{
    struct str text = usage_file(files, "/proc/stat");
    int64_t cores = 0, centi;

    *ret_proc = proc_nothing;
    while (text.len) {
        struct str line = str_cut(&text, '\n');
        struct str name = usage_word(&line);

        if (!str_starts(name, STR("cpu")))
            break; /* they come first; the rest may be long */
        if (name.len == 3)
            read_cpu_line(line, ret_proc);
        else
            cores++;
    }
    if (cores > 0)
        ret_proc->cores = cores;
    text = usage_file(files, "/proc/loadavg");
    if (usage_centi(usage_word(&text), &centi))
        ret_proc->load_1m_centi = centi;
    read_memory(files, ret_proc);
}

/* `dir` is a cgroup's directory ("" = the machine's own figures). */
static void usage_pressure_read(struct usage_files *files, const char *dir, struct usage *usage)
{
    const struct {
        const char *name;
        int64_t *some, *full;
    } rows[] = {
        {"cpu", &usage->psi_cpu_some_centi, NULL},
        {"memory", &usage->psi_mem_some_centi, &usage->psi_mem_full_centi},
        {"io", &usage->psi_io_some_centi, &usage->psi_io_full_centi},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str text = STR_NONE;

        if (dir[0])
            text = usage_file(files, "%s/%s.pressure", dir, rows[i].name);
        if (!text.at)
            text = usage_file(files, "/proc/pressure/%s", rows[i].name);
        while (text.len) { /* "some avg10=1.23 avg60=..." */
            struct str line = str_cut(&text, '\n');
            struct str kind = usage_word(&line), value = usage_word(&line);
            int64_t centi;

            if (!str_starts(value, STR("avg10=")))
                continue;
            str_cut(&value, '=');
            if (!usage_centi(value, &centi))
                continue;
            if (str_is(kind, "some"))
                *rows[i].some = centi;
            else if (rows[i].full && str_is(kind, "full"))
                *rows[i].full = centi;
        }
    }
}

/* --- cgroups --- */

/* The tightest limit from this group upwards counts, in v1 and v2 alike. A limit that is missing,
 * or above what the machine has, has no effect. */

enum { KIB = 1024 };

static const char *const controllers[USAGE_PLACES] = {
    [USAGE_UNIFIED] = NULL,      [USAGE_MEMORY] = "memory", [USAGE_CPU] = "cpu",
    [USAGE_CPUACCT] = "cpuacct", [USAGE_CPUSET] = "cpuset",
};

static void usage_cgroup_find(struct usage_files *files, struct usage_groups *ret_groups)
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

/* The same values in the two cgroup versions. */
struct memory_files {
    enum usage_place place;
    const char *limits[2];
    const char *used;
    const char *stat;
    const char *reclaimable[3]; /* lines of `stat`: file cache without shared memory */
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

/* Walks up from this process's group: false after the top. */
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

/* A single number in its file; none for "max" or a missing file. */
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
    struct str text = usage_file(files, "%s/%s", dir, names->stat);
    int64_t sum = 0;

    for (size_t i = 0; i < COUNT_OF(names->reclaimable) && names->reclaimable[i]; i++) {
        int64_t bytes = 0;

        usage_fields(text, &(struct usage_row){names->reclaimable[i], &bytes}, 1);
        sum += bytes;
    }
    return sum;
}

/* The limit with the least room counts, and both figures are taken from it: the room in a small
 * group is not a share of a big one. The usage of the fullest group is kept as well. */
static void read_group_memory(const struct usage_groups *groups, const struct memory_files *names,
                              struct usage_cgroup *cgroup)
{
    struct usage_files *files = groups->files;
    char dir[USAGE_GROUP_MAX];

    for (bool more = group_first(groups, names->place, dir); more; more = group_above(dir)) {
        int64_t limit = USAGE_NONE, used, room, used_permille;

        for (size_t i = 0; i < COUNT_OF(names->limits) && names->limits[i]; i++) {
            int64_t one = number_in(files, dir, names->limits[i]);

            if (one != USAGE_NONE && (limit == USAGE_NONE || one < limit))
                limit = one;
        }
        /* v1 reports "no limit" as an impossibly large number. */
        if (limit == USAGE_NONE || limit > INT64_MAX / 2)
            continue;
        used = number_in(files, dir, names->used);
        if (used == USAGE_NONE)
            continue;
        room = clamp(limit - used + reclaimable_bytes(files, dir, names), 0, limit) / KIB;
        limit /= KIB;
        used_permille = limit > 0 ? (limit - room) * 1000 / limit : 0;
        if (used_permille > cgroup->mem_used_permille)
            cgroup->mem_used_permille = used_permille;
        assert((cgroup->mem_total_kib == USAGE_NONE) == (cgroup->mem_free_kib == USAGE_NONE));
        if (cgroup->mem_free_kib == USAGE_NONE || room < cgroup->mem_free_kib) {
            cgroup->mem_total_kib = limit;
            cgroup->mem_free_kib = room;
        }
    }
}

/* Only v2 has a separate swap limit. */
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

static int64_t used_us_v2(struct usage_files *files, const char *dir)
{
    int64_t us = USAGE_NONE;

    usage_fields(usage_file(files, "%s/cpu.stat", dir), &(struct usage_row){"usage_usec", &us}, 1);
    return us;
}

static int64_t used_us_v1(struct usage_files *files, const char *dir)
{
    int64_t ns = number_in(files, dir, "cpuacct.usage");

    return ns == USAGE_NONE ? USAGE_NONE : ns / 1000;
}

/* CPU time used by this process's own groups. */
static int64_t own_used_us(const struct usage_groups *groups)
{
    int64_t us = USAGE_NONE;

    if (groups->dirs[USAGE_CPUACCT][0])
        us = used_us_v1(groups->files, groups->dirs[USAGE_CPUACCT]);
    if (us == USAGE_NONE && groups->dirs[USAGE_UNIFIED][0])
        us = used_us_v2(groups->files, groups->dirs[USAGE_UNIFIED]);
    return us;
}

/* The smallest quota, and the CPU used under it. */
static void read_quota(const struct usage_groups *groups, enum usage_place place,
                       struct usage_cgroup *cgroup)
{
    struct usage_files *files = groups->files;
    char dir[USAGE_GROUP_MAX];

    for (bool more = group_first(groups, place, dir); more; more = group_above(dir)) {
        int64_t quota_us, period_us, milli;

        if (place == USAGE_UNIFIED) { /* "QUOTA PERIOD", QUOTA may be "max" */
            struct str text = usage_file(files, "%s/cpu.max", dir);

            if (!str_int(usage_word(&text), &quota_us) || !str_int(usage_word(&text), &period_us))
                continue;
        } else {
            quota_us = number_in(files, dir, "cpu.cfs_quota_us");
            period_us = number_in(files, dir, "cpu.cfs_period_us");
        }
        if (quota_us <= 0 || period_us <= 0 || quota_us > INT64_MAX / 1000)
            continue;
        milli = quota_us * 1000 / period_us;
        if (cgroup->cpu_milli != USAGE_NONE && milli >= cgroup->cpu_milli)
            continue;
        cgroup->cpu_milli = milli;
        /* v1 counts in cpuacct, which is usually mounted together with cpu. */
        cgroup->cpu_used_us =
            place == USAGE_UNIFIED ? used_us_v2(files, dir) : used_us_v1(files, dir);
        if (cgroup->cpu_used_us == USAGE_NONE)
            cgroup->cpu_used_us = own_used_us(groups);
    }
}

/* The kernel reports the effective set, which includes the limits of the ancestors. */
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

static void usage_cgroup_read_memory(const struct usage_groups *groups,
                                     struct usage_cgroup *ret_cgroup)
{
    *ret_cgroup = cgroup_nothing;
    read_group_memory(groups, &memory_v2, ret_cgroup);
    read_group_memory(groups, &memory_v1, ret_cgroup);
}

/* --- a sample --- */

enum {
    BUSY_MS = 10000,
    BUSY_MS_MIN = 500, /* less is not significant */
    LOAD_MS = 60000,
    PAST_MAX = 64,
    PAST_STEP_MS = 950, /* so the ring covers a minute however often a look is taken */
};

/* The counters of an earlier look. */
struct past {
    int64_t mono_ms;
    int64_t busy_ticks, total_ticks;
    int64_t cpu_used_us; /* of the cgroup */
};

struct usage_meter {
    struct usage_files files;
    struct usage_groups groups; /* as of the last look */
    struct usage_trees *trees;
    char *disk_dir;             /* NULL: not measured */
    struct past past[PAST_MAX]; /* a ring, the newest at (count - 1) % PAST_MAX */
    size_t count;               /* since the start */
    int64_t cpu_milli;          /* the quota those counters belong to */
    int64_t alert_centi;        /* see usage_alert */
};

struct usage_meter *usage_meter_new(const char *host_root)
{
    struct usage_meter *meter = mem_new(struct usage_meter);
    size_t len = (size_t)snprintf(meter->files.root, sizeof meter->files.root, "%s",
                                  host_root ? host_root : "/");

    assert(len < sizeof meter->files.root);
    while (len > 0 && meter->files.root[len - 1] == '/')
        meter->files.root[--len] = '\0';
    meter->groups.files = &meter->files;
    meter->trees = usage_trees_new();
    meter->cpu_milli = USAGE_NONE;
    return meter;
}

void usage_meter_free(struct usage_meter *meter)
{
    if (!meter)
        return;
    usage_trees_free(meter->trees);
    buf_free(&meter->files.text);
    free(meter->disk_dir);
    free(meter);
}

void usage_alert(struct usage_meter *meter, int64_t mem_alert_centi)
{
    meter->alert_centi = mem_alert_centi;
}

void usage_own(struct usage_meter *meter, const int *pids, size_t count)
{
    usage_trees_own(meter->trees, pids, count);
}

int usage_tree_of(const struct usage_meter *meter, int pid)
{
    return usage_trees_find(meter->trees, pid);
}

void usage_disk(struct usage_meter *meter, const char *dir)
{
    free(meter->disk_dir);
    meter->disk_dir = mem_cstr(str_of(dir));
}

/* --- rates --- */

/* The latest look that is at least that old, otherwise the oldest; NULL at first. */
static const struct past *past_at(const struct usage_meter *meter, int64_t now_ms, int64_t age_ms)
{
    const struct past *found = NULL;

    for (size_t i = 0; i < PAST_MAX && i < meter->count; i++) {
        found = &meter->past[(meter->count - 1 - i) % PAST_MAX];
        assert(found->mono_ms <= now_ms); /* the clock is monotonic */
        if (now_ms - found->mono_ms >= age_ms)
            break;
    }
    return found;
}

/* From the machine's counters, which may not move, or may go back a little. */
static int64_t busy_of_machine(const struct past *then, const struct past *now)
{
    int64_t total;

    if (!then || then->total_ticks == USAGE_NONE || now->total_ticks == USAGE_NONE)
        return USAGE_NONE;
    total = now->total_ticks - then->total_ticks;
    if (total <= 0)
        return USAGE_NONE;
    return clamp((now->busy_ticks - then->busy_ticks) * 1000 / total, 0, 1000);
}

/* Cores in use under the quota, x 1000. */
static int64_t used_milli(const struct past *then, const struct past *now)
{
    int64_t ms;

    if (!then || then->cpu_used_us == USAGE_NONE || now->cpu_used_us == USAGE_NONE)
        return USAGE_NONE;
    ms = now->mono_ms - then->mono_ms;
    if (ms <= 0 || now->cpu_used_us < then->cpu_used_us)
        return USAGE_NONE;
    return (now->cpu_used_us - then->cpu_used_us) / ms;
}

/* --- one look --- */

static void put_cpu(const struct usage_meter *meter, const struct usage_proc *proc,
                    const struct usage_cgroup *cgroup, const struct past *now, struct usage *usage)
{
    const struct past *before = past_at(meter, now->mono_ms, BUSY_MS_MIN);
    const struct past *short_ago = past_at(meter, now->mono_ms, BUSY_MS);
    const struct past *long_ago = past_at(meter, now->mono_ms, LOAD_MS);
    int64_t milli = cgroup->cpu_milli;
    int64_t used;

    usage->busy_ms = short_ago ? now->mono_ms - short_ago->mono_ms : 0;
    if (proc->cores != USAGE_NONE)
        usage->cores_milli = proc->cores * 1000;
    if (milli == USAGE_NONE || milli <= 0 ||
        (usage->cores_milli != USAGE_NONE && milli >= usage->cores_milli)) {
        usage->load_1m_centi = proc->load_1m_centi;
        usage->busy_10s_permille = busy_of_machine(short_ago, now);
        usage->busy_permille = busy_of_machine(before, now);
        return;
    }
    usage->confined = true;
    usage->cores_milli = milli;
    used = used_milli(short_ago, now);
    if (used != USAGE_NONE)
        usage->busy_10s_permille = clamp(used * 1000 / milli, 0, 1000);
    used = used_milli(before, now);
    if (used != USAGE_NONE)
        usage->busy_permille = clamp(used * 1000 / milli, 0, 1000);
    used = used_milli(long_ago, now);
    if (used != USAGE_NONE)
        usage->load_1m_centi = used / 10;
}

static void put_memory(const struct usage_proc *proc, const struct usage_cgroup *cgroup,
                       struct usage *usage)
{
    int64_t limit = cgroup->mem_total_kib, room = cgroup->mem_free_kib, permille;

    assert((limit == USAGE_NONE) == (room == USAGE_NONE));
    usage->mem_total_kib = proc->mem_total_kib;
    usage->mem_free_kib = proc->mem_free_kib;
    if (limit <= 0 || /* or USAGE_NONE */
        (usage->mem_total_kib != USAGE_NONE && limit >= usage->mem_total_kib))
        return;
    usage->confined = true;
    usage->mem_used_permille = cgroup->mem_used_permille;
    /* A machine that is nearly full is in danger even if its free part is larger than our group's
     * limit. */
    if (proc->mem_total_kib > 0 && proc->mem_free_kib != USAGE_NONE) {
        permille = (proc->mem_total_kib - proc->mem_free_kib) * 1000 / proc->mem_total_kib;
        if (permille > usage->mem_used_permille)
            usage->mem_used_permille = permille;
    }
    /* Whichever runs out first: the group's limit or the machine's memory. */
    if (usage->mem_total_kib == USAGE_NONE || usage->mem_free_kib == USAGE_NONE ||
        room <= usage->mem_free_kib) {
        usage->mem_total_kib = limit;
        usage->mem_free_kib = room;
    }
    assert(usage->mem_total_kib > 0 && usage->mem_free_kib >= 0);
}

/* Like df: blocks reserved for root count neither as free nor as part of the total. */
static void put_disk(const char *dir, struct usage *usage)
{
    struct statvfs fs;
    int64_t unit;

    if (!dir || statvfs(dir, &fs) != 0 || fs.f_blocks == 0)
        return;
    unit = (int64_t)(fs.f_frsize ? fs.f_frsize : fs.f_bsize);
    usage->disk_free_kib = (int64_t)fs.f_bavail * unit / 1024;
    usage->disk_total_kib = (int64_t)(fs.f_blocks - fs.f_bfree + fs.f_bavail) * unit / 1024;
    usage->disk_inodes_free = (int64_t)fs.f_favail;
    usage->disk_inodes = (int64_t)(fs.f_files - fs.f_ffree + fs.f_favail);
}

static const struct usage usage_nothing = {
    .cores_milli = USAGE_NONE,
    .load_1m_centi = USAGE_NONE,
    .busy_10s_permille = USAGE_NONE,
    .busy_permille = USAGE_NONE,
    .mem_total_kib = USAGE_NONE,
    .mem_free_kib = USAGE_NONE,
    .swap_total_kib = USAGE_NONE,
    .swap_used_kib = USAGE_NONE,
    .psi_cpu_some_centi = USAGE_NONE,
    .psi_mem_some_centi = USAGE_NONE,
    .psi_mem_full_centi = USAGE_NONE,
    .psi_io_some_centi = USAGE_NONE,
    .psi_io_full_centi = USAGE_NONE,
    .gpu_permille = USAGE_NONE,
    .own_cpu_permille = USAGE_NONE,
    .own_memory_kib = USAGE_NONE,
};

enum err usage_measure(struct usage_meter *meter, int64_t mono_ms, int64_t wall_ms,
                       struct usage *ret_usage, struct problem *why)
{
    struct usage usage = usage_nothing;
    struct usage_cgroup cgroup;
    struct usage_proc proc;
    const struct past *last;
    struct past now;

    usage_proc_read(&meter->files, &proc);
    if (proc.cores == USAGE_NONE && proc.mem_total_kib == USAGE_NONE)
        return problem_set(why, ERR_IO, "host_root",
                           "Neither %s/proc/stat nor %s/proc/meminfo can be read.",
                           meter->files.root, meter->files.root);
    usage_cgroup_find(&meter->files, &meter->groups);
    usage_cgroup_read_memory(&meter->groups, &cgroup);
    read_swap(&meter->groups, &cgroup);
    read_quota(&meter->groups, USAGE_UNIFIED, &cgroup);
    read_quota(&meter->groups, USAGE_CPU, &cgroup);
    read_cpuset(&meter->groups, &cgroup);
    now = (struct past){.mono_ms = mono_ms,
                        .busy_ticks = proc.busy_ticks,
                        .total_ticks = proc.total_ticks,
                        .cpu_used_us = cgroup.cpu_used_us};
    if (meter->cpu_milli != cgroup.cpu_milli)
        meter->count = 0; /* another group's counter: do not compute rates across it */
    meter->cpu_milli = cgroup.cpu_milli;
    put_cpu(meter, &proc, &cgroup, &now, &usage);
    put_memory(&proc, &cgroup, &usage);
    usage.swap_total_kib = proc.swap_total_kib;
    usage.swap_used_kib = proc.swap_used_kib;
    if (cgroup.swap_total_kib != USAGE_NONE &&
        (proc.swap_total_kib == USAGE_NONE || cgroup.swap_total_kib < proc.swap_total_kib)) {
        usage.swap_total_kib = cgroup.swap_total_kib;
        usage.swap_used_kib = cgroup.swap_used_kib;
    }
    put_disk(meter->disk_dir, &usage);
    usage_pressure_read(&meter->files, usage.confined ? meter->groups.dirs[USAGE_UNIFIED] : "",
                        &usage);
    usage_trees_read(meter->trees, &meter->files, mono_ms,
                     usage_below(usage.mem_free_kib, usage.mem_total_kib, meter->alert_centi),
                     &usage);
    last = past_at(meter, mono_ms, 0);
    if (!last || mono_ms - last->mono_ms >= PAST_STEP_MS)
        meter->past[meter->count++ % PAST_MAX] = now;
    usage.at_ms = wall_ms;
    usage.mono_ms = mono_ms;
    *ret_usage = usage;
    return ERR_OK;
}

void usage_memory(struct usage_meter *meter, int64_t *ret_total_kib, int64_t *ret_free_kib)
{
    struct usage usage = usage_nothing;
    struct usage_cgroup cgroup;
    struct usage_proc proc = proc_nothing;

    read_memory(&meter->files, &proc);
    usage_cgroup_read_memory(&meter->groups, &cgroup);
    put_memory(&proc, &cgroup, &usage);
    *ret_total_kib = usage.mem_total_kib;
    *ret_free_kib = usage.mem_free_kib;
}

/* --- figures --- */

enum {
    PPM = 1000000,
    INODES_COUNTED_MAX = 1000000,
    KIB_PER_GIB = 1024 * 1024,
    KIB_PER_MIB = 1024,
};

/* part/whole in millionths, rounded towards worse; `up`: higher is worse. */
static int64_t share_ppm(int64_t part, int64_t whole, bool up)
{
    __extension__ __int128 scaled = (__int128)part * PPM;

    if (part == USAGE_NONE || whole == USAGE_NONE || whole <= 0)
        return USAGE_NONE;
    return (int64_t)((scaled + (up ? whole - 1 : 0)) / whole);
}

static int64_t cpu_ppm(const struct usage *usage)
{
    int64_t load = USAGE_NONE, busy = USAGE_NONE;

    if (usage->load_1m_centi != USAGE_NONE)
        load = share_ppm(usage->load_1m_centi * 10, usage->cores_milli, true);
    if (usage->busy_10s_permille != USAGE_NONE)
        busy = usage->busy_10s_permille * (PPM / 1000);
    if (load == USAGE_NONE || busy == USAGE_NONE)
        return load == USAGE_NONE ? busy : load;
    return load < busy ? load : busy;
}

static int64_t counted_ppm(int64_t part, int64_t whole, int64_t counted_max)
{
    if (whole > counted_max)
        whole = counted_max;
    return share_ppm(part < whole ? part : whole, whole, false);
}

int64_t usage_disk_ppm(const struct usage *usage, int64_t counted_kib_max)
{
    int64_t bytes_ppm = counted_ppm(usage->disk_free_kib, usage->disk_total_kib, counted_kib_max);
    int64_t inodes_ppm =
        counted_ppm(usage->disk_inodes_free, usage->disk_inodes, INODES_COUNTED_MAX);

    assert(USAGE_NONE == LEVEL_UNKNOWN && counted_kib_max > 0);
    return inodes_ppm != USAGE_NONE && inodes_ppm < bytes_ppm ? inodes_ppm : bytes_ppm;
}

void usage_figures(const struct usage *usage, struct level_figures *ret_figures)
{
    int64_t mem_ppm = share_ppm(usage->mem_free_kib, usage->mem_total_kib, false);
    int64_t fullest_ppm = PPM - usage->mem_used_permille * (PPM / 1000);

    *ret_figures = (struct level_figures){
        .ppm =
            {
                /* The free memory where least is left, or less if a share elsewhere is smaller. */
                [LEVEL_MEMORY] =
                    mem_ppm != USAGE_NONE && fullest_ppm < mem_ppm ? fullest_ppm : mem_ppm,
                [LEVEL_CPU] = cpu_ppm(usage),
                [LEVEL_SWAP] = usage->swap_total_kib == 0
                                   ? 0
                                   : share_ppm(usage->swap_used_kib, usage->swap_total_kib, true),
                [LEVEL_PRESSURE] = usage->psi_mem_full_centi == USAGE_NONE
                                       ? LEVEL_UNKNOWN
                                       : usage->psi_mem_full_centi * 100,
                [LEVEL_DISK] = LEVEL_UNKNOWN, /* the counted size is a rule: usage_disk_ppm() */
                [LEVEL_VRAM] = usage->vram_total_kib <= 0
                                   ? LEVEL_UNKNOWN
                                   : usage->vram_free_kib * PPM / usage->vram_total_kib,
            },
    };
}

int64_t usage_pct_centi(const struct usage *usage, enum level_signal signal)
{
    struct level_figures figures;

    usage_figures(usage, &figures);
    return figures.ppm[signal] == LEVEL_UNKNOWN ? USAGE_NONE : figures.ppm[signal] / 100;
}

/* --- output --- */

static int64_t scaled(int64_t value, int64_t times, int64_t by)
{
    return value == USAGE_NONE ? USAGE_NONE : value * times / by;
}

static int64_t disk_centi_gb(const struct usage *usage, int64_t kib)
{
    return scaled(usage->disk_total_kib > 0 ? kib : USAGE_NONE, 100, KIB_PER_GIB);
}

void usage_write(const struct usage *usage, struct jsonw *w)
{
    int64_t mem_free_centi = usage_pct_centi(usage, LEVEL_MEMORY);
    const struct {
        const char *name;
        int64_t centi;
    } rows[] = {
        {"cpu_cores", scaled(usage->cores_milli, 1, 10)},
        {"cpu_load", usage->load_1m_centi},
        {"cpu_percent", usage_pct_centi(usage, LEVEL_CPU)},
        {"mem_total_gb", scaled(usage->mem_total_kib, 100, KIB_PER_GIB)},
        {"mem_free_gb", scaled(usage->mem_free_kib, 100, KIB_PER_GIB)},
        {"mem_used_percent", mem_free_centi == USAGE_NONE ? USAGE_NONE : 10000 - mem_free_centi},
        {"swap_total_gb", scaled(usage->swap_total_kib, 100, KIB_PER_GIB)},
        {"swap_used_percent", usage_pct_centi(usage, LEVEL_SWAP)},
        {"disk_total_gb", disk_centi_gb(usage, usage->disk_total_kib)},
        {"disk_free_gb", disk_centi_gb(usage, usage->disk_free_kib)},
        {"gpu_percent", scaled(usage->gpu_permille, 10, 1)},
        {"psi_cpu_some", usage->psi_cpu_some_centi},
        {"psi_mem_some", usage->psi_mem_some_centi},
        {"psi_mem_full", usage->psi_mem_full_centi},
        {"psi_io_some", usage->psi_io_some_centi},
        {"psi_io_full", usage->psi_io_full_centi},
        {"own_cpu_percent", scaled(usage->own_cpu_permille, 10, 1)},
        {"own_memory_mb", scaled(usage->own_memory_kib, 100, KIB_PER_MIB)},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t centi = rows[i].centi;
        char text[32];
        int len;

        if (centi == USAGE_NONE) {
            jsonw_knull(w, rows[i].name);
            continue;
        }
        assert(centi >= 0);
        /* A decimal with no more digits than needed: 620 -> 6.2, 800 -> 8. */
        len = snprintf(text, sizeof text, "%" PRId64 ".%02d", centi / 100, (int)(centi % 100));
        while (text[len - 1] == '0')
            len--;
        if (text[len - 1] == '.')
            len--;
        jsonw_kraw(w, rows[i].name, (struct str){.at = text, .len = (size_t)len});
    }
    jsonw_kbool(w, "confined", usage->confined);
    jsonw_kint(w, "measured_ms", usage->at_ms);
}
