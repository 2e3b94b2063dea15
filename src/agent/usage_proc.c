/* /proc/stat, loadavg, meminfo and pressure, as texts. */
#include "agent/usage_private.h"

#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include "agent/cgroup.h"

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
    buf_reserve(&files->text, 1); /* an empty file is a text all the same */
    return buf_view(&files->text);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

struct str usage_word(struct str *rest)
{
    struct str word;

    while (rest->len && is_blank(rest->at[0])) {
        rest->at++;
        rest->len--;
    }
    word = (struct str){.at = rest->at, .len = 0};
    while (rest->len && !is_blank(rest->at[0])) {
        word.len++;
        rest->at++;
        rest->len--;
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

/* "cpu  user nice system idle iowait irq softirq steal ...": what is neither idle nor waiting for a
 * disk is busy; guests are in user already. */
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

static void read_stat(struct usage_files *files, struct usage_proc *proc)
{
    struct str rest = usage_file(files, "/proc/stat");
    int64_t cores = 0;

    while (rest.len) {
        struct str line = str_cut(&rest, '\n');
        struct str name = usage_word(&line);

        if (!str_starts(name, STR("cpu")))
            break; /* they come first; what follows may be long */
        if (name.len == 3)
            read_cpu_line(line, proc);
        else
            cores++;
    }
    if (cores > 0)
        proc->cores = cores;
}

static void read_load(struct usage_files *files, struct usage_proc *proc)
{
    struct str text = usage_file(files, "/proc/loadavg");
    int64_t centi;

    if (usage_centi(usage_word(&text), &centi))
        proc->load_1m_centi = centi;
}

void usage_kib(struct str text, const struct usage_row *rows, size_t count)
{
    while (text.len) {
        struct str line = str_cut(&text, '\n');
        struct str name = usage_word(&line);
        int64_t kib;

        for (size_t i = 0; i < count; i++)
            if (str_is(name, rows[i].name) && str_int(usage_word(&line), &kib) && kib >= 0)
                *rows[i].to_kib = kib;
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

    usage_kib(usage_file(files, "/proc/meminfo"), rows, COUNT_OF(rows));
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

void usage_proc_read(struct usage_files *files, struct usage_proc *ret_proc)
{
    *ret_proc = proc_nothing;
    read_stat(files, ret_proc);
    read_load(files, ret_proc);
    read_memory(files, ret_proc);
}

void usage_proc_read_memory(struct usage_files *files, struct usage_proc *ret_proc)
{
    *ret_proc = proc_nothing;
    read_memory(files, ret_proc);
}

/* "some avg10=1.23 avg60=..." */
static void read_pressure(struct str rest, int64_t *some_centi, int64_t *full_centi)
{
    while (rest.len) {
        struct str line = str_cut(&rest, '\n');
        struct str kind = usage_word(&line), value = usage_word(&line);
        int64_t centi;

        if (!str_starts(value, STR("avg10=")))
            continue;
        str_cut(&value, '=');
        if (!usage_centi(value, &centi))
            continue;
        if (str_is(kind, "some"))
            *some_centi = centi;
        else if (full_centi && str_is(kind, "full"))
            *full_centi = centi;
    }
}

void usage_pressure_read(struct usage_files *files, const char *dir, struct usage *usage)
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
        read_pressure(text, rows[i].some, rows[i].full);
    }
}
