/* What an earlier agent left behind, and runs that lost their shim. */
#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "agent/process_tree.h"
#include "agent/shim_link.h"
#include "base/mem.h"

enum { LOST_WAIT_US = 2000 };

/* --- lost runs --- */

/* On a thread of the pool. What it reads of the run does not change any more. */
static void kill_lost(uv_work_t *work)
{
    struct run_private *priv = container_of(work, struct run_private, lost_work);
    int64_t until_ms = clock_mono_ms() + RUN_LOST_ROUND_MS;
    struct cgroup group;
    bool clean = false;
    int cleans = 0;

    assert(priv->lost);
    if (!priv->lost_kill)
        return;
    assert(priv->mark.len > 0);
    cgroup_open(&group, &priv->place, priv->run.key);
    /* Twice clean: who was about to fork when the first look came shows up at the second. */
    for (; cleans < 2 && clock_mono_ms() < until_ms; cleans = clean ? cleans + 1 : 0) {
        cgroup_kill(&group);
        clean = run_tree_kill_marked(priv->mark) + run_tree_kill_orphans(priv->lost_spawner) == 0 &&
                cgroup_empty(&group);
        if (!clean)
            usleep(LOST_WAIT_US);
    }
    priv->lost_kill = cleans < 2;
    if (priv->lost_kill)
        cgroup_close(&group);
    else
        cgroup_remove(&group);
}

/* It has not ended while a process of it lives, even one that waits for a disk and cannot be
 * killed: what is started in its place would run beside it. The tick comes back to it. */
static void lost_killed(uv_work_t *work, int status)
{
    struct run_private *priv = container_of(work, struct run_private, lost_work);
    struct run_exit exit = priv->run.exit;

    assert(priv->lost && priv->lost_busy && priv->run.state != RUN_ENDED);
    priv->lost_busy = false;
    exit.ended_ms = clock_wall_ms();
    if (!priv->run.runs->freed && !priv->lost_kill)
        run_set_ended(priv, &exit);
    run_unpin(priv);
}

void run_lost_kill(struct run_private *priv)
{
    struct runs *runs = priv->run.runs;

    assert(priv->lost);
    if (priv->lost_busy)
        return;
    priv->lost_busy = true;
    priv->lost_spawner = runs->spawner.pid;
    priv->pins++;
    runs->pins++;
    if (uv_queue_work(&runs->loop->uv, &priv->lost_work, kill_lost, lost_killed) != 0)
        abort(); /* only for a work without a function */
}

void run_lost(struct run_private *priv, const char *reason, const char *detail, bool kill)
{
    struct run_exit *exit = &priv->run.exit;

    assert(!priv->lost && priv->run.state != RUN_ENDED && priv->fd < 0);
    priv->lost = true;
    priv->lost_kill = kill;
    *exit = (struct run_exit){.exit_code = -1, .signal = -1};
    if (priv->run.state >= RUN_RUNNING)
        exit->started_ms = priv->run.started_ms;
    str_copy(str_of(reason), exit->reason, sizeof exit->reason);
    snprintf(exit->detail, sizeof exit->detail, "%s", detail);
    priv->run.state = RUN_STOPPING;
    run_lost_kill(priv);
}

/* --- adoption --- */

void run_take_file(struct run_private *priv, const struct runfile *file)
{
    assert(file->mark.len > 0 && !priv->mark.at);
    priv->timeout_ms = file->spec.timeout_ms;
    priv->grace_ms = file->spec.stop_grace_ms;
    priv->deadline_ms = file->spec.deadline_boot_ms;
    priv->deadline_grace_ms = file->spec.deadline_grace_ms;
    priv->place = file->place;
    if (!priv->user.at)
        priv->user = arena_str(&priv->arena, file->run_as);
    priv->mark = arena_str(&priv->arena, file->mark);
    if (file->spec.cwd.at)
        priv->run.cwd = arena_str(&priv->arena, file->spec.cwd);
    priv->boot_id = arena_str(&priv->arena, file->boot_id);
    priv->run.started_ms = file->created_ms;
}

/* False: there is neither a spec nor a record; nothing can have been started for it, because the
 * order goes out after the spec is written. */
static bool read_run(struct runs *runs, struct str name, int dir_fd, struct run_private **ret_priv)
{
    struct arena arena = {0};
    struct runfile file;
    struct run_exit exit;
    struct str key, meta;
    struct run_private *priv = NULL;

    if (runfile_get(dir_fd, &arena, &file, NULL) == ERR_OK && str_eq(file.spec.key, name)) {
        priv = run_new(runs, name, file.spec.meta);
        run_take_file(priv, &file);
    } else if (runfile_get_exit(dir_fd, &arena, &exit, &key, &meta) == ERR_OK && str_eq(key, name))
        /* It never began, or only its record survived a power failure. */
        (priv = run_new(runs, name, meta))->run.unstarted = true;
    arena_free(&arena);
    *ret_priv = priv;
    return priv != NULL;
}

static void adopt(struct runs *runs, const char *name, void (*found)(struct run *run))
{
    struct run_private *priv;
    int dir_fd = openat(runs->dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int64_t deadline_ms;

    if (dir_fd < 0)
        return; /* not a directory of ours */
    if (!read_run(runs, str_of(name), dir_fd, &priv)) {
        if (flock(dir_fd, LOCK_EX | LOCK_NB) == 0)
            run_trash(runs, str_of(name));
        close(dir_fd);
        return;
    }
    if (runfile_get_deadline(dir_fd, &deadline_ms))
        priv->deadline_ms = deadline_ms;
    close(dir_fd);
    priv->run.adopted = true;
    priv->run.state = RUN_RUNNING;
    priv->untold = true;
    run_link_seek(priv);
    priv->untold = false;
    found(&priv->run); /* which may forget it, or sets its handler */
}

void runs_adopt(struct runs *runs, void (*found)(struct run *run))
{
    int list_fd = openat(runs->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = list_fd >= 0 ? fdopendir(list_fd) : NULL;

    assert(!runs->first); /* before anything was started */
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (str_is_id(str_of(entry->d_name), RUN_KEY_MAX))
            adopt(runs, entry->d_name, found);
    if (list)
        closedir(list);
    else if (list_fd >= 0)
        close(list_fd);
    cgroup_sweep(&runs->place, &runs->by_key);
    run_trash_empty(runs);
}
