/* One sample put together: the machine's figures, what a cgroup leaves of them, and rates from
 * earlier looks. */
#include "agent/usage.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "agent/usage_private.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    BUSY_MS = 10000,
    LOAD_MS = 60000,
    PAST_MAX = 64,
    PAST_STEP_MS = 950, /* so the past reaches a minute back however often one looks */
    READ_APART_MS = 250,
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
    char *disk_dir;             /* NULL: none */
    struct past past[PAST_MAX]; /* a ring, the newest at (count - 1) % PAST_MAX */
    size_t count;               /* ever */
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

void usage_disk(struct usage_meter *meter, const char *dir)
{
    free(meter->disk_dir);
    meter->disk_dir = strdup(dir);
}

/* --- rates --- */

/* The youngest look that is at least so old, else the oldest there is; NULL at first. */
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

static void keep(struct usage_meter *meter, const struct past *now)
{
    const struct past *last = past_at(meter, now->mono_ms, 0);

    if (!last || now->mono_ms - last->mono_ms >= PAST_STEP_MS)
        meter->past[meter->count++ % PAST_MAX] = *now;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Of the machine's own counters; they may stand still or go back a little. */
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
        return;
    }
    usage->confined = true;
    usage->cores_milli = milli;
    used = used_milli(short_ago, now);
    if (used != USAGE_NONE)
        usage->busy_10s_permille = clamp(used * 1000 / milli, 0, 1000);
    used = used_milli(long_ago, now);
    if (used != USAGE_NONE)
        usage->load_1m_centi = used / 10;
}

/* A machine nearly full is in danger even where its last bit is more than our group may have. */
static int64_t fullest_permille(const struct usage_proc *proc, const struct usage_cgroup *cgroup)
{
    int64_t total = proc->mem_total_kib, used;

    if (total == USAGE_NONE || total <= 0 || proc->mem_free_kib == USAGE_NONE)
        return cgroup->mem_used_permille;
    used = (total - proc->mem_free_kib) * 1000 / total;
    return used > cgroup->mem_used_permille ? used : cgroup->mem_used_permille;
}

static void put_memory(const struct usage_proc *proc, const struct usage_cgroup *cgroup,
                       struct usage *usage)
{
    int64_t limit = cgroup->mem_total_kib, room = cgroup->mem_free_kib;

    assert((limit == USAGE_NONE) == (room == USAGE_NONE));
    usage->mem_total_kib = proc->mem_total_kib;
    usage->mem_free_kib = proc->mem_free_kib;
    if (limit == USAGE_NONE || limit <= 0 ||
        (usage->mem_total_kib != USAGE_NONE && limit >= usage->mem_total_kib))
        return;
    usage->confined = true;
    usage->mem_used_permille = fullest_permille(proc, cgroup);
    /* Whichever runs out first: the group's limit or the machine itself. */
    if (usage->mem_total_kib == USAGE_NONE || usage->mem_free_kib == USAGE_NONE ||
        room <= usage->mem_free_kib) {
        usage->mem_total_kib = limit;
        usage->mem_free_kib = room;
    }
    assert(usage->mem_total_kib > 0 && usage->mem_free_kib >= 0);
}

static void put_swap(const struct usage_proc *proc, const struct usage_cgroup *cgroup,
                     struct usage *usage)
{
    usage->swap_total_kib = proc->swap_total_kib;
    usage->swap_used_kib = proc->swap_used_kib;
    if (cgroup->swap_total_kib == USAGE_NONE ||
        (proc->swap_total_kib != USAGE_NONE && cgroup->swap_total_kib >= proc->swap_total_kib))
        return;
    usage->swap_total_kib = cgroup->swap_total_kib;
    usage->swap_used_kib = cgroup->swap_used_kib;
}

/* As df has it: what is kept for root counts neither as free nor as part of the whole. */
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
    struct past now;

    usage_proc_read(&meter->files, &proc);
    if (proc.cores == USAGE_NONE && proc.mem_total_kib == USAGE_NONE)
        return problem_set(why, ERR_IO, "host_root",
                           "Neither %s/proc/stat nor %s/proc/meminfo can be read.",
                           meter->files.root, meter->files.root);
    usage_cgroup_find(&meter->files, &meter->groups);
    usage_cgroup_read(&meter->groups, &cgroup);
    now = (struct past){.mono_ms = mono_ms,
                        .busy_ticks = proc.busy_ticks,
                        .total_ticks = proc.total_ticks,
                        .cpu_used_us = cgroup.cpu_used_us};
    if (meter->cpu_milli != cgroup.cpu_milli)
        meter->count = 0; /* another group's counter: no rate goes across */
    meter->cpu_milli = cgroup.cpu_milli;
    put_cpu(meter, &proc, &cgroup, &now, &usage);
    put_memory(&proc, &cgroup, &usage);
    put_swap(&proc, &cgroup, &usage);
    put_disk(meter->disk_dir, &usage);
    usage_pressure_read(&meter->files, usage.confined ? meter->groups.dirs[USAGE_UNIFIED] : "",
                        &usage);
    usage_trees_read(meter->trees, &meter->files, mono_ms,
                     usage_below(usage.mem_free_kib, usage.mem_total_kib, meter->alert_centi),
                     &usage);
    keep(meter, &now);
    usage.at_ms = wall_ms;
    usage.mono_ms = mono_ms;
    *ret_usage = usage;
    return ERR_OK;
}

void usage_memory(struct usage_meter *meter, int64_t *ret_total_kib, int64_t *ret_free_kib)
{
    struct usage usage = usage_nothing;
    struct usage_cgroup cgroup;
    struct usage_proc proc;

    usage_proc_read_memory(&meter->files, &proc);
    usage_cgroup_read_memory(&meter->groups, &cgroup);
    put_memory(&proc, &cgroup, &usage);
    *ret_total_kib = usage.mem_total_kib;
    *ret_free_kib = usage.mem_free_kib;
}

enum err usage_read(const char *host_root, struct usage *ret_usage, struct problem *why)
{
    struct timespec apart = {.tv_nsec = READ_APART_MS * 1000000L};
    struct usage_meter *meter = usage_meter_new(host_root);
    struct usage usage;
    enum err err = usage_measure(meter, clock_mono_ms(), clock_wall_ms(), &usage, why);

    if (!err) {
        nanosleep(&apart, NULL);
        err = usage_measure(meter, clock_mono_ms(), clock_wall_ms(), &usage, why);
    }
    if (!err) {
        usage.trees = NULL; /* they go with the meter */
        usage.tree_count = 0;
        *ret_usage = usage;
    }
    usage_meter_free(meter);
    return err;
}
