/* Process trees, read from /proc. */
#include "agent/process_tree.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/fd.h"
#include "base/mem.h"

enum { STOP_PASSES = 16 };

bool process_tree_stat(int proc_fd, const char *name, struct run_proc *ret_proc)
{
    /* Counted from the field after the name in brackets. */
    enum {
        STATE,
        PARENT,
        SESSION = 3,
        UTIME = 11,
        STIME,
        CUTIME,
        CSTIME,
        START = 19,
        RSS = 21,
        END
    };
    char path[64], text[1024];
    const char *bracket;
    int64_t field[END] = {0}, pid;
    struct str rest, head, state = STR_NONE;
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "%.40s/stat", name);
    fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof text);
    close(fd);
    bracket = got > 0 ? memrchr(text, ')', (size_t)got) : NULL;
    if (!bracket) /* the name may contain brackets: the last one ends it */
        return false;
    head = (struct str){.at = text, .len = (size_t)got};
    rest = str_from(head, (size_t)(bracket - text) + 1);
    str_cut(&rest, ' ');
    state = str_cut(&rest, ' ');
    if (!str_int(str_cut(&head, ' '), &pid) || state.len != 1)
        return false;
    for (int i = PARENT; i < END && rest.at; i++)
        if (!str_int(str_cut(&rest, ' '), &field[i]))
            field[i] = 0; /* some fields that we do not read overflow */
    *ret_proc = (struct run_proc){
        .pid = (int)pid,
        .parent = (int)field[PARENT],
        .session = (int)field[SESSION],
        .start = (uint64_t)field[START],
        .ticks = field[UTIME] + field[STIME],
        .waited = field[CUTIME] + field[CSTIME],
        .rss_bytes = field[RSS] * sysconf(_SC_PAGESIZE),
        .state = state.at[0],
    };
    return true;
}

bool process_tree_proc(int pid, struct run_proc *ret_proc)
{
    char name[24];

    snprintf(name, sizeof name, "/proc/%d", pid);
    return process_tree_stat(AT_FDCWD, name, ret_proc);
}

/* --- lists --- */

struct list {
    struct run_proc *procs;
    size_t count, cap;
};

static void list_add(struct list *list, const struct run_proc *proc)
{
    assert(list->count <= list->cap && proc->pid > 0);
    if (list->count == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 16;
        list->procs = mem_resize(list->procs, list->cap * sizeof *list->procs);
    }
    list->procs[list->count++] = *proc;
}

/* A child is listed with the thread that created it. */
static void add_children(int pid, struct list *list)
{
    char path[80];
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    tasks = opendir(path);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        struct buf text = {0};
        struct str rest = STR_NONE;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", pid, entry->d_name);
        if (cgroup_file_get(AT_FDCWD, path, &text) == 0)
            rest = buf_view(&text);
        while (rest.at) {
            struct run_proc proc;
            int64_t child;

            /* Check its parent: the pid may have been reused. */
            if (str_int(str_cut(&rest, ' '), &child) && process_tree_proc((int)child, &proc) &&
                proc.parent == pid)
                list_add(list, &proc);
        }
        buf_free(&text);
    }
    if (tasks)
        closedir(tasks);
}

/* For kernels without the children files: reads every process once and selects the descendants. */
static void list_by_parents(int root, struct list *list)
{
    struct list all = {0};
    size_t done = 0;
    int parent = root;
    DIR *dir = opendir("/proc");

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct run_proc proc;
        int64_t pid;

        if (str_int(str_of(entry->d_name), &pid) && process_tree_proc((int)pid, &proc))
            list_add(&all, &proc);
    }
    if (dir)
        closedir(dir);
    for (;;) {
        for (size_t i = 0; i < all.count; i++)
            if (all.procs[i].parent == parent)
                list_add(list, &all.procs[i]);
        if (done == list->count)
            break;
        parent = list->procs[done++].pid;
    }
    free(all.procs);
}

static bool has_children_files(void)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)syscall(SYS_gettid));
    return access(path, R_OK) == 0;
}

size_t process_tree_list(int root, struct run_proc **ret_procs)
{
    struct list list = {0};

    assert(root > 0);
    if (has_children_files()) {
        add_children(root, &list);
        for (size_t i = 0; i < list.count; i++)
            add_children(list.procs[i].pid, &list);
    } else
        list_by_parents(root, &list);
    *ret_procs = list.procs;
    return list.count;
}

/* --- signals --- */

bool process_tree_kill_one(int pid, uint64_t start, int signal)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct run_proc now;
    bool sent;

    assert(pid > 1);
    /* The descriptor refers to one process; check afterwards that it is the right one. */
    if (fd < 0 && errno != ENOSYS && errno != EPERM)
        return false;
    if (!process_tree_proc(pid, &now) || now.start != start)
        sent = false;
    else if (fd >= 0)
        sent = syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) == 0;
    else
        sent = kill(pid, signal) == 0;
    fd_close(fd);
    return sent;
}

void process_tree_signal(int root, int signal)
{
    struct run_proc *procs;
    size_t count = process_tree_list(root, &procs);

    for (size_t i = 0; i < count; i++)
        if (procs[i].state != 'Z')
            process_tree_kill_one(procs[i].pid, procs[i].start, signal);
    free(procs);
}

void process_tree_kill(int root)
{
    size_t before = 0;

    assert(root > 1);
    for (int i = 0; i < STOP_PASSES; i++) {
        struct run_proc *procs;
        size_t count = process_tree_list(root, &procs);

        for (size_t k = 0; k < count; k++)
            if (procs[k].state != 'T' && procs[k].state != 'Z')
                process_tree_kill_one(procs[k].pid, procs[k].start, SIGSTOP);
        free(procs);
        if (count == before)
            break; /* no new ones: all are stopped, or as good as */
        before = count;
    }
    process_tree_signal(root, SIGKILL);
}

static bool is_marked(const char *pid, struct str mark)
{
    char path[48];
    struct buf env = {0};
    struct str rest;
    bool found = false;

    snprintf(path, sizeof path, "/proc/%.16s/environ", pid);
    if (cgroup_file_get(AT_FDCWD, path, &env) == 0)
        for (rest = buf_view(&env); rest.at && !found;)
            found = str_eq(str_cut(&rest, '\0'), mark);
    buf_free(&env);
    return found;
}

size_t process_tree_kill_marked(struct str mark)
{
    DIR *all = opendir("/proc");
    size_t killed = 0;

    assert(mark.len > 0);
    for (struct dirent *entry; all && (entry = readdir(all));) {
        struct run_proc proc;
        int64_t pid;

        if (!str_int(str_of(entry->d_name), &pid) || pid == getpid() ||
            !process_tree_proc((int)pid, &proc) || proc.state == 'Z')
            continue;
        /* The environment is read after the start time: if the pid is reused in between, the start
         * time differs. */
        if (is_marked(entry->d_name, mark) && process_tree_kill_one((int)pid, proc.start, SIGKILL))
            killed++;
    }
    if (all)
        closedir(all);
    return killed;
}

/* The executable it runs; "" if it cannot be read. */
static void read_exe(int pid, char exe[PATH_MAX])
{
    char path[48];
    ssize_t len;

    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    len = readlink(path, exe, PATH_MAX - 1);
    exe[len > 0 ? len : 0] = '\0';
}

size_t process_tree_kill_orphans(int spawner)
{
    char shim[PATH_MAX], exe[PATH_MAX];
    struct list children = {0};
    struct run_proc proc;
    size_t killed = 0;

    /* The pid may have been reused. */
    if (spawner <= 1 || !process_tree_proc(spawner, &proc) || proc.parent != getpid())
        return 0;
    read_exe(spawner, shim);
    if (has_children_files())
        add_children(spawner, &children);
    else
        list_by_parents(spawner, &children);
    for (size_t i = 0; i < children.count; i++) {
        const struct run_proc *child = &children.procs[i];

        read_exe(child->pid, exe);
        if (child->parent != spawner || child->state == 'Z' || !exe[0] || strcmp(exe, shim) == 0)
            continue;
        process_tree_kill(child->pid);
        killed += process_tree_kill_one(child->pid, child->start, SIGKILL);
    }
    free(children.procs);
    return killed;
}
