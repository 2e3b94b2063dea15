#include "fake_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "unit.h"

struct fake_run fake_runs[FAKE_RUNS_MAX];
int fake_run_count;
const char *fake_run_fail;

struct runs {
    void *user;
    char dir[256];
};

static struct runs *open_runs; /* one agent at a time */

void fake_run_reset(void)
{
    memset(fake_runs, 0, sizeof fake_runs);
    fake_run_count = 0;
    fake_run_fail = NULL;
}

struct fake_run *fake_run_find(const char *key)
{
    for (int i = 0; i < fake_run_count; i++)
        if (strcmp(fake_runs[i].key, key) == 0)
            return &fake_runs[i];
    return NULL;
}

void fake_run_begin(const char *key)
{
    struct fake_run *fake = fake_run_find(key);

    assert_true(fake && fake->there && fake->run.state == RUN_STARTING);
    fake->run.state = RUN_RUNNING;
    if (open_runs)
        fake->run.handler->started(&fake->run);
}

void fake_run_end(const char *key, const char *reason, int exit_code, int signal, const char *tail)
{
    struct fake_run *fake = fake_run_find(key);
    struct run_exit *exit;

    assert_true(fake && fake->there && fake->run.state != RUN_ENDED);
    exit = &fake->run.exit;
    *exit = (struct run_exit){.exit_code = exit_code,
                              .signal = signal,
                              .user_ms = 12,
                              .system_ms = 3,
                              .rss_kb_max = 2048,
                              .started_ms = 1000,
                              .ended_ms = 2000};
    snprintf(exit->reason, sizeof exit->reason, "%s", reason);
    snprintf(exit->detail, sizeof exit->detail, "Detail.");
    snprintf(fake->tail, sizeof fake->tail, "%s", tail);
    exit->tail = str_of(fake->tail);
    fake->run.state = RUN_ENDED;
    if (open_runs)
        fake->run.handler->ended(&fake->run);
}

int fake_run_alive(void)
{
    int count = 0;

    for (int i = 0; i < fake_run_count; i++)
        count += fake_runs[i].there && fake_runs[i].run.state != RUN_ENDED;
    return count;
}

/* --- run.h --- */

const char *runs_tmp_missing(const struct runs *runs)
{
    return NULL;
}

const char *runs_not_apart(const struct runs *runs)
{
    return "they run nothing";
}

enum err runs_new(struct loop *loop, const char *dir, const char *shim_path, const char *spawner,
                  void *user, struct runs **ret_runs, struct problem *why)
{
    assert_null(open_runs);
    open_runs = mem_new(struct runs);
    open_runs->user = user;
    snprintf(open_runs->dir, sizeof open_runs->dir, "%s", dir);
    mkdir(dir, 0700);
    *ret_runs = open_runs;
    return ERR_OK;
}

void *runs_user(const struct runs *runs)
{
    return runs->user;
}

const char *runs_dir(const struct runs *runs)
{
    return runs->dir;
}

void runs_adopt(struct runs *runs, void (*found)(struct run *run))
{
    for (int i = 0; i < fake_run_count; i++) {
        struct fake_run *fake = &fake_runs[i];

        if (!fake->there)
            continue;
        fake->run.runs = runs;
        fake->run.adopted = true;
        fake->run.user = NULL;
        found(&fake->run);
    }
}

static void join(char *to, size_t size, const struct str *words, size_t count)
{
    size_t len = 0;

    for (size_t i = 0; i < count; i++)
        len +=
            (size_t)snprintf(to + len, size - len, "%s" STR_FMT, i ? "|" : "", STR_ARG(words[i]));
    assert_true(len < size);
}

enum err runs_start(struct runs *runs, const struct run_spec *spec, void *user,
                    struct run **ret_run, struct problem *why)
{
    struct fake_run *fake;
    char path[512];

    if (fake_run_fail)
        return problem_set(why, ERR_IO, "", "%s", fake_run_fail);
    assert_true(fake_run_count < FAKE_RUNS_MAX && spec->argc > 0);
    fake = &fake_runs[fake_run_count++];
    *fake = (struct fake_run){
        .there = true, .starts = 1, .spec = *spec, .deadline_ms = spec->deadline_boot_ms};
    assert_true(str_copy(spec->key, fake->key, sizeof fake->key));
    assert_true(str_copy(spec->meta, fake->meta, sizeof fake->meta));
    str_copy(spec->cwd, fake->cwd, sizeof fake->cwd);
    assert_true(str_copy(spec->input, fake->input, sizeof fake->input) || !spec->input.at);
    join(fake->argv, sizeof fake->argv, spec->argv, spec->argc);
    join(fake->env, sizeof fake->env, spec->env, spec->env_count);
    join(fake->secrets, sizeof fake->secrets, spec->secrets, spec->secret_count);
    for (int i = 0; i + 1 < fake_run_count; i++)
        if (strcmp(fake_runs[i].key, fake->key) == 0)
            fail_msg("%s was started twice", fake->key);
    fake->run = (struct run){.runs = runs,
                             .key = str_of(fake->key),
                             .meta = str_of(fake->meta),
                             .cwd = str_of(fake->cwd),
                             .state = RUN_STARTING,
                             .started_ms = 1000,
                             .handler = spec->handler,
                             .user = user};
    snprintf(path, sizeof path, "%s/%s", runs->dir, fake->key);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/work", runs->dir, fake->key);
    mkdir(path, 0700);
    *ret_run = &fake->run;
    return ERR_OK;
}

struct run *runs_record(struct runs *runs, const struct run_spec *spec, void *user,
                        const struct run_exit *exit)
{
    static const struct str argv = STR("none");
    struct run_spec all = *spec;
    const char *fail = fake_run_fail;
    struct run *run;

    all.argv = &argv;
    all.argc = 1;
    fake_run_fail = NULL;
    assert_int_equal(runs_start(runs, &all, user, &run, NULL), ERR_OK);
    fake_run_fail = fail;
    run->exit = *exit;
    run->state = RUN_ENDED;
    run->unstarted = true;
    return run;
}

struct run *runs_next(struct runs *runs, struct run *run)
{
    int i = run ? (int)(container_of(run, struct fake_run, run) - fake_runs) + 1 : 0;

    while (i < fake_run_count && !fake_runs[i].there)
        i++;
    return i < fake_run_count ? &fake_runs[i].run : NULL;
}

bool runs_discard(struct runs *runs, int from_fd, const char *path)
{
    char command[600];

    snprintf(command, sizeof command, "rm -r '%s'", path);
    return system(command) == 0;
}

void run_stop(struct run *run, const char *reason, int64_t grace_ms)
{
    struct fake_run *fake = container_of(run, struct fake_run, run);

    assert_true(fake->there);
    if (run->state == RUN_ENDED || fake->stop[0])
        return;
    snprintf(fake->stop, sizeof fake->stop, "%s", reason);
    fake->stop_grace_ms = grace_ms;
    run->state = RUN_STOPPING;
}

void run_deadline(struct run *run, int64_t boot_ms)
{
    container_of(run, struct fake_run, run)->deadline_ms = boot_ms;
}

int64_t run_deadline_ms(const struct run *run)
{
    return container_of(run, struct fake_run, run)->deadline_ms;
}

int run_shim_pid(const struct run *run)
{
    return run->state == RUN_ENDED ? 0 : 4711;
}

enum err run_log(struct run *run, int64_t offset, size_t max, struct buf *out, int64_t *ret_offset,
                 int64_t *ret_total)
{
    buf_str(out, run->key); /* enough to recognise the run */
    *ret_offset = 0;
    *ret_total = (int64_t)run->key.len;
    return ERR_OK;
}

void run_forget(struct run *run)
{
    struct fake_run *fake = container_of(run, struct fake_run, run);

    assert_true(fake->there && run->state == RUN_ENDED);
    fake->there = false;
}

struct cgroup_place fake_run_offered;

const struct cgroup_place *runs_offered(const struct runs *runs)
{
    return &fake_run_offered;
}

void runs_free(struct runs *runs)
{
    if (!runs)
        return;
    assert_ptr_equal(runs, open_runs);
    open_runs = NULL;
    free(runs);
}
