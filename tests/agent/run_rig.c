/* See run_rig.h. */
#include "run_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/process_tree.h"

const char *rig_shim(void)
{
    static char path[512];

    if (getenv("BERTH_SHIM")) /* to measure the real program */
        return getenv("BERTH_SHIM");
    if (!path[0]) { /* read once: it may differ in a mount namespace of our own */
        ssize_t len = readlink("/proc/self/exe", path, sizeof path - 32);

        assert_true(len > 0);
        path[len] = '\0';
        strcpy(strrchr(path, '/'), "/shim_helper");
    }
    return path;
}

static void on_started(struct run *run)
{
    struct rig *rig = runs_user(run->runs);

    assert_int_equal(run->state, RUN_RUNNING);
    rig->started++;
}

static void on_ended(struct run *run)
{
    struct rig *rig = runs_user(run->runs);

    assert_int_equal(run->state, RUN_ENDED);
    rig->ended++;
    rig->last = run;
    if (rig->forget)
        run_forget(run);
}

const struct run_handler rig_handler = {.started = on_started, .ended = on_ended};

static void on_found(struct run *run)
{
    struct rig *rig = runs_user(run->runs);

    assert_true(run->adopted);
    run->handler = &rig_handler;
    rig->found++;
}

void rig_make(struct rig *rig)
{
    *rig = (struct rig){0};
    strcpy(rig->dir, "/tmp/berth-run-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
}

void rig_open(struct rig *rig)
{
    struct problem why = {0};

    assert_int_equal(loop_init(&rig->loop, 0), ERR_OK);
    if (runs_new(&rig->loop, rig->dir, rig_shim(), rig->spawner, rig, &rig->runs, &why))
        fail_msg("%s", why.detail);
    /* The tests run their own programs on their own files. */
    runs_set_rules(rig->runs,
                   &(struct run_rules){.job_user = geteuid() == 0 ? STR("root") : STR(""),
                                       .allow_root = true});
}

void rig_adopt(struct rig *rig)
{
    runs_adopt(rig->runs, on_found);
}

void rig_close(struct rig *rig)
{
    runs_free(rig->runs);
    rig->runs = NULL;
    loop_done(&rig->loop);
}

void rig_remove(struct rig *rig)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", rig->dir);
    assert_int_equal(system(command), 0);
}

int rig_setup(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    rig_make(rig);
    rig_open(rig);
    rig_adopt(rig);
    *state = rig;
    return 0;
}

int rig_teardown(void **state)
{
    struct rig *rig = *state;

    rig->forget = false;
    for (struct run *run = NULL; (run = runs_next(rig->runs, run));)
        run_stop(run, "STOPPED", 0);
    rig_await(rig, runs_count(rig->runs) == 0); /* a failed test leaves nothing running */
    rig_close(rig);
    rig_remove(rig);
    free(rig);
    return 0;
}

struct run *rig_sh(struct rig *rig, const char *key, const char *script,
                   const struct run_spec *more)
{
    struct str argv[] = {STR("sh"), STR("-c"), str_of(script)};
    struct run_spec spec = more ? *more : (struct run_spec){0};
    struct run *run = NULL;
    struct problem why = {0};

    spec.handler = &rig_handler;
    spec.key = str_of(key);
    spec.argv = argv;
    spec.argc = COUNT_OF(argv);
    if (!spec.stop_grace_ms)
        spec.stop_grace_ms = 200;
    if (runs_start(rig->runs, &spec, rig, &run, &why))
        fail_msg("%s", why.detail);
    return run;
}

void rig_await_end(struct rig *rig, struct run *run)
{
    rig_await(rig, run->state == RUN_ENDED);
}

char *rig_output(struct run *run)
{
    struct buf out = {0};
    int64_t offset = 0, total = 0, first;
    size_t before;

    do {
        before = out.len;
        assert_int_equal(run_log(run, offset, 1000, &out, &first, &total), ERR_OK);
        assert_true(first >= offset && first <= total);
        offset = first + (int64_t)(out.len - before);
    } while (out.len > before);
    buf_char(&out, '\0');
    return out.at;
}

void assert_exit(struct run *run, const char *reason, int exit_code, int signal)
{
    const struct run_exit *exit = &run->exit;

    assert_int_equal(run->state, RUN_ENDED);
    if (strcmp(exit->reason, reason) != 0 || exit->exit_code != exit_code || exit->signal != signal)
        fail_msg("%s: %s, code %d, signal %d (%s), not %s, %d, %d", run->key.at, exit->reason,
                 exit->exit_code, exit->signal, exit->detail, reason, exit_code, signal);
    assert_true(exit->detail[0]);
}

bool rig_alive(int64_t pid)
{
    struct run_proc proc;

    assert_true(pid > 1);
    return process_tree_proc((int)pid, &proc) && proc.state != 'Z' && proc.state != 'X';
}

int64_t rig_read_pid(const char *path)
{
    int64_t pid = 0;

    return cgroup_file_int(AT_FDCWD, path, NULL, &pid) ? pid : 0;
}

const char *rig_path(const struct rig *rig, const char *fmt, ...)
{
    static char path[512];
    int len = snprintf(path, sizeof path, "%s/", rig->dir);
    va_list args;

    va_start(args, fmt);
    vsnprintf(path + len, sizeof path - (size_t)len, fmt, args);
    va_end(args);
    return path;
}

struct run *rig_find(const struct rig *rig, struct str key)
{
    struct run_private *priv = map_get(&rig->runs->by_key, key);

    return priv ? &priv->run : NULL;
}

int rig_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

int rig_zombies(void)
{
    struct run_proc *procs;
    size_t count = process_tree_list(getpid(), &procs);
    int zombies = 0;

    for (size_t i = 0; i < count; i++)
        zombies += procs[i].state == 'Z';
    free(procs);
    return zombies;
}

int64_t rig_rss_kb(int pid)
{
    struct run_proc proc = {0};

    assert_true(process_tree_proc(pid, &proc));
    return proc.rss_bytes / 1024;
}
