#include "machine.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../unit.h"

void machine_init(struct machine *machine)
{
    snprintf(machine->root, sizeof machine->root, "/tmp/berth-machine-XXXXXX");
    assert_non_null(mkdtemp(machine->root));
}

static int drop_one(const char *path, const struct stat *unused, int kind, struct FTW *place)
{
    return remove(path);
}

void machine_done(struct machine *machine)
{
    assert_int_equal(nftw(machine->root, drop_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void make_dirs(char *path, size_t from)
{
    for (char *slash = path + from; (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
}

void machine_put(struct machine *machine, const char *path, const char *fmt, ...)
{
    char full[512], fresh[600];
    va_list args;
    FILE *file;

    snprintf(full, sizeof full, "%s/%s", machine->root, path);
    snprintf(fresh, sizeof fresh, "%s.new", full);
    make_dirs(full, strlen(machine->root));
    file = fopen(fresh, "we");
    assert_non_null(file);
    va_start(args, fmt);
    vfprintf(file, fmt, args);
    va_end(args);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(fresh, full), 0); /* no reader sees half a file */
}

void machine_drop(struct machine *machine, const char *path)
{
    char full[512];

    snprintf(full, sizeof full, "%s/%s", machine->root, path);
    assert_int_equal(remove(full), 0);
}

void machine_put_load(struct machine *machine, int cores, const char *load)
{
    char cpus[4096];
    size_t len = 0;

    for (int i = 0; i < cores; i++)
        len += (size_t)snprintf(cpus + len, sizeof cpus - len, "cpu%d 1 0 1 100 0 0 0 0 0 0\n", i);
    assert_true(len < sizeof cpus);
    machine_put(machine, "proc/stat",
                "cpu  1000 10 500 90000 400 20 30 40 0 0\n%sintr 1 2 3\nctxt 99\n",
                cores ? cpus : "");
    machine_put(machine, "proc/loadavg", "%s 0.50 0.40 2/345 6789\n", load);
}

void machine_put_memory(struct machine *machine, int64_t total, int64_t free, int64_t swap_total,
                        int64_t swap_free)
{
    machine_put(machine, "proc/meminfo",
                "MemTotal:       %" PRId64
                " kB\nMemFree:          123456 kB\nMemAvailable:   %" PRId64
                " kB\nBuffers:            5684 kB\nSwapTotal:      %" PRId64
                " kB\nSwapFree:       %" PRId64 " kB\n",
                total, free, swap_total, swap_free);
}

void machine_put_us(struct machine *machine)
{
    machine_put_load(machine, 8, "6.00");
    machine_put_memory(machine, 15 << 20, 11 << 20, 0, 0);
}

static void put_stat(struct machine *machine, const char *path, const struct machine_proc *proc)
{
    machine_put(machine, path,
                "%d (%s) %s %d %d %d 0 -1 4194560 11 22 33 44 %" PRId64 " %" PRId64 " %" PRId64
                " 0 20 0 1 0 %" PRId64 " 123456789 %" PRId64
                " 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n",
                proc->pid, proc->name ? proc->name : "job", proc->state ? proc->state : "S",
                proc->parent, proc->pid, proc->session, proc->ticks / 2,
                proc->ticks - proc->ticks / 2, proc->waited, proc->start, proc->rss_pages);
}

void machine_put_proc(struct machine *machine, const struct machine_proc *proc)
{
    char path[64];

    snprintf(path, sizeof path, "proc/%d/stat", proc->pid);
    put_stat(machine, path, proc);
}

void machine_put_self(struct machine *machine, const struct machine_proc *proc)
{
    machine_put_proc(machine, proc);
    put_stat(machine, "proc/self/stat", proc);
}
