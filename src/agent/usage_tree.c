/* Our own processes: this one, the named ones (shims) and all their descendants. A walk through
 * /proc keeps every process's counters, so that a process that joins us late does not bring its
 * past usage with it. A process that ends between two walks, or during one, is skipped. */
#include "agent/usage_tree.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "agent/process_tree.h"
#include "base/mem.h"

enum {
    NOT_OURS = -1,
    NOT_LOOKED = -2,
    WALK_REST = 50, /* the pause after a walk, as a multiple of its duration: 2 % of a core */
};

struct proc {
    int pid, parent, session;
    int owner;       /* index of the tree it belongs to; NOT_OURS */
    uint64_t start;  /* clock ticks since boot: identifies the process together with its pid */
    int64_t ticks;   /* CPU it has used */
    int64_t waited;  /* CPU of the children it waited for */
    int64_t counted; /* the part of these that was counted while they lived */
    int64_t rss_kib;
    bool ended; /* a zombie, which uses nothing any more */
};

struct procs { /* sorted by pid */
    struct proc *at;
    size_t count, cap;
};

struct root { /* sorted by pid */
    int pid;
    int owner;
};

struct usage_trees {
    struct usage_tree *trees; /* the named ones; after them that of this process */
    int64_t *ticks;           /* of each, since the last look */
    int64_t *shared_kib;      /* of each, the largest share of its processes */
    struct root *roots;
    size_t count; /* without this process */
    struct procs now, before;
    int64_t walked_ms, next_ms;
    bool walked;
    int64_t own_cpu_permille, own_memory_kib; /* of the last walk */
    long hz;
};

struct usage_trees *usage_trees_new(void)
{
    struct usage_trees *trees = mem_new(struct usage_trees);

    trees->hz = sysconf(_SC_CLK_TCK);
    assert(trees->hz > 0);
    trees->own_cpu_permille = trees->own_memory_kib = USAGE_NONE;
    usage_trees_own(trees, NULL, 0);
    return trees;
}

void usage_trees_free(struct usage_trees *trees)
{
    if (!trees)
        return;
    free(trees->trees);
    free(trees->ticks);
    free(trees->shared_kib);
    free(trees->roots);
    free(trees->now.at);
    free(trees->before.at);
    free(trees);
}

static bool read_proc(int proc_fd, const char *name, struct proc *ret_proc)
{
    struct run_proc read;

    if (!process_tree_stat(proc_fd, name, &read))
        return false;
    *ret_proc = (struct proc){
        .pid = read.pid,
        .parent = read.parent,
        .session = read.session,
        .owner = NOT_LOOKED,
        .start = read.start,
        .ticks = read.ticks,
        .waited = read.waited,
        .rss_kib = read.rss_bytes / 1024,
        .ended = read.state == 'Z' || read.state == 'X',
    };
    return true;
}

/* struct proc and struct root both begin with their pid. */
static int by_pid(const void *a, const void *b)
{
    int left = *(const int *)a, right = *(const int *)b;

    return (left > right) - (left < right);
}

static struct proc *find_proc(const struct procs *procs, int pid)
{
    struct proc key = {.pid = pid};

    return procs->count ? bsearch(&key, procs->at, procs->count, sizeof key, by_pid) : NULL;
}

/* Reads all processes and our own pid among them; 0 if /proc does not say. */
static int walk(const struct usage_files *files, struct procs *procs)
{
    char path[USAGE_PATH_MAX + 8];
    struct proc self = {0};
    DIR *dir;

    procs->count = 0;
    snprintf(path, sizeof path, "%s/proc", files->root);
    dir = opendir(path);
    if (!dir)
        return 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct proc proc;

        if (!isdigit((unsigned char)entry->d_name[0]) ||
            !read_proc(dirfd(dir), entry->d_name, &proc))
            continue;
        if (procs->count == procs->cap) {
            procs->cap = procs->cap ? procs->cap * 2 : 256;
            procs->at = mem_resize(procs->at, procs->cap * sizeof *procs->at);
        }
        procs->at[procs->count++] = proc;
    }
    if (!read_proc(dirfd(dir), "self", &self))
        self.pid = 0;
    closedir(dir);
    if (procs->count > 0)
        qsort(procs->at, procs->count, sizeof *procs->at, by_pid);
    return self.pid;
}

static void index_roots(struct usage_trees *trees, int self)
{
    trees->trees[trees->count].pid = self;
    for (size_t i = 0; i < trees->count + 1; i++)
        trees->roots[i] = (struct root){.pid = trees->trees[i].pid, .owner = (int)i};
    qsort(trees->roots, trees->count + 1, sizeof *trees->roots, by_pid);
}

static int named(const struct usage_trees *trees, int pid)
{
    struct root key = {.pid = pid};
    struct root *root = bsearch(&key, trees->roots, trees->count + 1, sizeof key, by_pid);

    return root && pid > 0 ? root->owner : NOT_OURS;
}

/* Trees named before keep their figures, since not every look walks. */
void usage_trees_own(struct usage_trees *trees, const int *pids, size_t count)
{
    struct usage_tree *fresh = mem_array(struct usage_tree, count + 1);

    assert(pids || count == 0);
    for (size_t i = 0; i < count; i++) {
        int known = trees->roots ? named(trees, pids[i]) : NOT_OURS;

        fresh[i] = (struct usage_tree){
            .pid = pids[i],
            .cpu_permille = USAGE_NONE,
            .memory_kib = USAGE_NONE,
            .freed_kib = USAGE_NONE,
            .swap_kib = USAGE_NONE,
        };
        if (known != NOT_OURS && known < (int)trees->count)
            fresh[i] = trees->trees[known];
    }
    free(trees->trees);
    trees->trees = fresh;
    trees->ticks = mem_resize(trees->ticks, (count + 1) * sizeof *trees->ticks);
    trees->shared_kib = mem_resize(trees->shared_kib, (count + 1) * sizeof *trees->shared_kib);
    trees->roots = mem_resize(trees->roots, (count + 1) * sizeof *trees->roots);
    trees->count = count;
    index_roots(trees, 0);
}

/* A process belongs to its root, or to the root that leads its session: a run's processes stay in
 * their shim's session even when their parents are gone. Otherwise go up to the first ancestor with
 * a known owner, and store that for all on the way. */
static void find_owner(struct usage_trees *trees, struct proc *proc)
{
    struct proc *at = proc;
    int owner = NOT_OURS;
    size_t steps = 0; /* parents read at different moments might form a cycle */

    while (at && steps++ <= trees->now.count) {
        owner = at->owner != NOT_LOOKED ? at->owner : named(trees, at->pid);
        if (at->owner == NOT_LOOKED && owner == NOT_OURS)
            owner = named(trees, at->session);
        if (owner != NOT_OURS || at->owner == NOT_OURS)
            break;
        at = find_proc(&trees->now, at->parent);
    }
    for (struct proc *down = proc; down && down->owner == NOT_LOOKED;
         down = find_proc(&trees->now, down->parent)) {
        down->owner = owner;
        if (down == at)
            break;
    }
    assert(proc->owner != NOT_LOOKED);
}

static const struct proc *find_same(const struct procs *procs, const struct proc *proc)
{
    const struct proc *found = find_proc(procs, proc->pid);

    return found && found->start == proc->start ? found : NULL;
}

static int64_t not_negative(int64_t value)
{
    return value > 0 ? value : 0;
}

/* The private memory of this process, from its status; without one all resident memory counts. */
static void add_memory(struct usage_trees *trees, struct usage_files *files,
                       const struct proc *proc)
{
    int64_t own_kib = proc->rss_kib, shared_kib = 0, swap_kib = 0;
    const struct usage_row rows[] = {
        {"RssAnon:", &own_kib},
        {"RssShmem:", &shared_kib},
        {"VmSwap:", &swap_kib},
    };
    struct usage_tree *tree = &trees->trees[proc->owner];

    usage_fields(usage_file(files, "/proc/%d/status", proc->pid), rows, COUNT_OF(rows));
    tree->memory_kib += proc->rss_kib;
    tree->freed_kib += own_kib + swap_kib;
    tree->swap_kib += swap_kib;
    if (shared_kib > trees->shared_kib[proc->owner])
        trees->shared_kib[proc->owner] = shared_kib;
}

static int64_t share_permille(const struct usage_trees *trees, int64_t ticks, int64_t ms,
                              int64_t cores_milli)
{
    assert(ticks >= 0);
    if (!trees->walked || ms <= 0 || cores_milli <= 0)
        return USAGE_NONE;
    return ticks * 1000 * 1000 * 1000 / (trees->hz * ms * cores_milli);
}

static void look_again(struct usage_trees *trees, struct usage_files *files, int64_t mono_ms,
                       int64_t cores_milli)
{
    int64_t ms = mono_ms - trees->walked_ms, ticks = 0, memory_kib = 0;
    struct procs older = trees->before;
    bool seen = false; /* at least one process is ours */
    int self;

    trees->before = trees->now;
    trees->now = older;
    self = walk(files, &trees->now);
    index_roots(trees, self);
    for (size_t i = 0; i < trees->count + 1; i++) {
        struct usage_tree *tree = &trees->trees[i];

        tree->memory_kib = tree->freed_kib = tree->swap_kib = 0;
        trees->ticks[i] = trees->shared_kib[i] = 0;
    }
    /* A process that has ended and was reaped since is now included in its parent's figures, with
     * its whole life. */
    for (size_t i = 0; i < trees->before.count; i++) {
        const struct proc *before = &trees->before.at[i];
        struct proc *parent = find_proc(&trees->now, before->parent);

        if (parent && !find_same(&trees->now, before))
            parent->counted += before->ticks + before->waited;
    }
    for (size_t i = 0; i < trees->now.count; i++) {
        struct proc *proc = &trees->now.at[i];
        const struct proc *before;

        find_owner(trees, proc);
        assert(proc->owner >= NOT_OURS && proc->owner <= (int)trees->count);
        seen |= proc->owner != NOT_OURS;
        if (proc->owner == NOT_OURS)
            continue;
        if (!proc->ended)
            add_memory(trees, files, proc);
        before = find_same(&trees->before, proc);
        trees->ticks[proc->owner] +=
            before ? not_negative(proc->ticks - before->ticks) +
                         not_negative(proc->waited - before->waited - proc->counted)
                   : proc->ticks + proc->waited; /* it started since */
    }
    for (size_t i = 0; i < trees->count + 1; i++) {
        struct usage_tree *tree = &trees->trees[i];

        ticks += trees->ticks[i];
        memory_kib += tree->memory_kib;
        tree->freed_kib += trees->shared_kib[i];
        tree->cpu_permille = share_permille(trees, trees->ticks[i], ms, cores_milli);
        if (!seen) /* not our /proc: the usage of our runs is unknown, not zero */
            tree->memory_kib = tree->cpu_permille = tree->freed_kib = tree->swap_kib = USAGE_NONE;
    }
    trees->own_cpu_permille = self > 0 ? share_permille(trees, ticks, ms, cores_milli) : USAGE_NONE;
    trees->own_memory_kib = self > 0 ? memory_kib : USAGE_NONE;
    trees->walked = true;
    trees->walked_ms = mono_ms;
}

/* CPU time of this thread: time that others took is not a reason to rest. */
static int64_t spent_us(void)
{
    struct timespec spent;
    int failed = clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);

    assert(failed == 0);
    return spent.tv_sec * INT64_C(1000000) + spent.tv_nsec / 1000;
}

void usage_trees_read(struct usage_trees *trees, struct usage_files *files, int64_t mono_ms,
                      bool urgent, struct usage *usage)
{
    if (urgent || !trees->walked || mono_ms >= trees->next_ms) {
        int64_t began_us = spent_us();

        look_again(trees, files, mono_ms, usage->cores_milli);
        /* With ten thousand processes a walk every second is too expensive; and even a fast walk
         * must be followed by a pause, as there is no rate without time between two walks. */
        trees->next_ms = mono_ms + 1 + (spent_us() - began_us) * WALK_REST / 1000;
    }
    usage->own_cpu_permille = trees->own_cpu_permille;
    usage->own_memory_kib = trees->own_memory_kib;
    usage->trees = trees->trees;
    usage->tree_count = trees->count;
}

int usage_trees_find(const struct usage_trees *trees, int pid)
{
    const struct proc *proc = find_proc(&trees->now, pid);

    return proc && proc->owner >= 0 && proc->owner < (int)trees->count
               ? trees->trees[proc->owner].pid
               : 0;
}
