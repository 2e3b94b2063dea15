/* The table of runs and the functions of run.h; runs that an earlier agent left or that lost their
 * shim; and the removal of directories. A job may leave any number of files, so its directory is
 * only renamed on the loop and emptied on a thread of libuv's pool; the key is free at once. */
#include "agent/run.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/dir_tree.h"
#include "agent/fd.h"
#include "agent/job_user.h"
#include "agent/process_tree.h"
#include "agent/runfile.h"
#include "agent/runlog.h"
#include "agent/sandbox.h"
#include "agent/secret.h"
#include "agent/shim_link.h"
#include "agent/spawner.h"
#include "base/mem.h"
#include "model/argv.h"

static void run_trash_empty(struct runs *runs);
static void run_lost_kill(struct run_private *priv);

/* --- removing directories --- */

enum {
    NAME_SIZE = 32,
    CLEANED_MAX = 64,     /* directories waiting to be emptied by other users at a time */
    AGAIN_MIN_MS = 1000,  /* pause before a failed removal is tried again, */
    AGAIN_MAX_MS = 60000, /* growing up to this */
};

/* A directory of a job that ran as another user: only that user can empty it. */
static void clean(struct runs *runs, int dir_fd, const char *name)
{
    struct stat info;

    if (fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode) &&
        info.st_uid != geteuid())
        run_spawner_clean(runs,
                          openat(dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

/* On a pool thread: touches only the directory and fields of `runs` that never change. */
static void empty_trash(uv_work_t *work)
{
    struct runs *runs = container_of(work, struct runs, trash_work);

    runs->trash_left = !dir_tree_empty(runs->trash_fd);
}

static void trash_emptied(uv_work_t *work, int status)
{
    struct runs *runs = container_of(work, struct runs, trash_work);

    assert(runs->trash_busy);
    runs->trash_busy = false;
    if (!runs->trash_left) {
        runs->trash_pause_ms = 0;
    } else if (!runs->freed) {
        /* What is left are directories of other users, and run directories that contain one. */
        DIR *list = dir_tree_list(runs->trash_fd);
        char own[2 * NAME_SIZE];
        int count = 0;

        for (struct dirent *entry; list && count < CLEANED_MAX && (entry = readdir(list));) {
            if (entry->d_name[0] == '.' || strlen(entry->d_name) >= NAME_SIZE)
                continue;
            clean(runs, runs->trash_fd, entry->d_name);
            for (size_t i = 0; i < RUNFILE_DIRS; i++) {
                snprintf(own, sizeof own, "%.31s/%.31s", entry->d_name, runfile_dirs[i]);
                clean(runs, runs->trash_fd, own);
            }
            count++;
        }
        if (list)
            closedir(list);
        /* The cleaners may take a while, and a mount remains until it is unmounted. */
        runs->trash_pause_ms = runs->trash_pause_ms ? runs->trash_pause_ms * 2 : AGAIN_MIN_MS;
        if (runs->trash_pause_ms > AGAIN_MAX_MS)
            runs->trash_pause_ms = AGAIN_MAX_MS;
        runs->trash_next_ms = clock_mono_ms() + runs->trash_pause_ms;
    }
    close(runs->trash_fd);
    if (runs->trash_again && !runs->freed)
        run_trash_empty(runs);
    runs_unpin(runs);
}

static void run_trash_empty(struct runs *runs)
{
    runs->trash_again = runs->trash_busy;
    if (runs->trash_busy)
        return;
    runs->trash_fd = openat(runs->dir_fd, RUN_TRASH, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (runs->trash_fd < 0)
        return; /* there is no trash directory */
    runs->trash_busy = true;
    runs->pins++;
    if (uv_queue_work(&runs->loop->uv, &runs->trash_work, empty_trash, trash_emptied) != 0)
        abort(); /* fails only for work without a function */
}

bool runs_discard(struct runs *runs, int from_fd, const char *name)
{
    char gone[sizeof RUN_TRASH + NAME_SIZE];
    bool done;

    snprintf(gone, sizeof gone, RUN_TRASH "/%" PRId64, runs->trash_number++);
    done = renameat(from_fd, name, runs->dir_fd, gone) == 0;

    /* The trash was removed by hand, or a job took away our permission to move the directory. */
    if (!done && ((errno == ENOENT && mkdirat(runs->dir_fd, RUN_TRASH, 0700) == 0) ||
                  (errno == EACCES && fchmodat(from_fd, name, 0700, 0) == 0)))
        done = renameat(from_fd, name, runs->dir_fd, gone) == 0;
    run_trash_empty(runs);
    return done;
}

/* Removes the directory of a run in the background. */
static void run_trash(struct runs *runs, struct str key)
{
    char name[RUN_KEY_MAX + 1];

    str_copy(key, name, sizeof name);
    runs_discard(runs, runs->dir_fd, name);
}

/* --- one run --- */

enum {
    LOCK_WAIT_MS = 1000,
    LOCK_STEP_US = 5000,
    DISK_BYTES_MIN = 64 << 20 /* minimum for the default limit on a nearly full disk */
};

static struct run_private *run_new(struct runs *runs, struct str key, struct str meta)
{
    struct run_private *priv = mem_new(struct run_private);

    assert(!runs->freed && str_is_id(key, RUN_KEY_MAX) && !map_get(&runs->by_key, key));
    priv->order_dir_fd = priv->order_fd = priv->fd = -1;
    priv->run = (struct run){.runs = runs,
                             .key = arena_str(&priv->arena, key),
                             .meta = arena_str(&priv->arena, meta),
                             .priv = priv};
    TAILQ_INSERT_TAIL(&runs->all, priv, entry);
    runs->alive++;
    map_put(&runs->by_key, priv->run.key, priv);
    return priv;
}

static void run_take_file(struct run_private *priv, const struct runfile *file)
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

static void free_run(struct run_private *priv)
{
    assert(priv->pins == 0 && priv->fd < 0 && priv->order_dir_fd < 0);
    arena_free(&priv->arena);
    free(priv);
}

/* Removes it from the table; freed with the last pin. */
static void run_drop(struct run_private *priv)
{
    struct runs *runs = priv->run.runs;

    assert(!priv->gone);
    TAILQ_REMOVE(&runs->all, priv, entry);
    if (priv->run.state != RUN_ENDED) {
        assert(runs->alive > 0);
        runs->alive--;
    }
    map_del(&runs->by_key, priv->run.key);
    run_spawner_cancel(priv);
    run_link_close(priv);
    priv->gone = true;
    if (priv->pins == 0)
        free_run(priv);
}

void run_unpin(struct run_private *priv)
{
    struct runs *runs = priv->run.runs;

    assert(priv->pins > 0);
    if (--priv->pins == 0 && priv->gone)
        free_run(priv);
    runs_unpin(runs);
}

void run_set_ended(struct run_private *priv, const struct run_exit *exit)
{
    struct run *run = &priv->run;
    struct runs *runs = run->runs;
    int dir_fd;

    assert(run->state != RUN_ENDED && priv->fd < 0 && exit->reason[0]);
    run->exit = *exit;
    if (exit->started_ms)
        run->started_ms = exit->started_ms;
    run->state = RUN_ENDED;
    /* Remove what only a live run needs: its working directories, input and secrets. Its record,
     * output and result stay. */
    dir_fd = run_open_dir(runs, run->key);
    if (dir_fd >= 0) {
        runfile_keep_result(dir_fd, runfile_open_result(dir_fd)); /* a dead shim did not do it */
        unlinkat(dir_fd, RUNFILE_INPUT, 0);
        for (size_t i = 0; i < RUNFILE_DIRS; i++)
            /* Most jobs leave nothing there. */
            if (unlinkat(dir_fd, runfile_dirs[i], AT_REMOVEDIR) != 0 && errno != ENOENT) {
                clean(runs, dir_fd, runfile_dirs[i]);
                runs_discard(runs, dir_fd, runfile_dirs[i]);
            }
        close(dir_fd);
    }
    assert(runs->alive > 0);
    runs->alive--;
    if (!priv->unpublished)
        run->handler->ended(run);
}

int run_open_dir(const struct runs *runs, struct str key)
{
    char name[RUN_KEY_MAX + 1];

    assert(str_is_id(key, RUN_KEY_MAX));
    str_copy(key, name, sizeof name);
    return openat(runs->dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* --- all runs --- */

static bool has_private_tmp(const struct runs *runs)
{
    return !runs->tmp_missing[0] &&
           (!runs->spawner.path || !runs->spawner.version || runs->spawner.private_tmp);
}

const char *runs_tmp_missing(const struct runs *runs)
{
    if (has_private_tmp(runs))
        return NULL;
    return runs->tmp_missing[0] ? runs->tmp_missing
                                : "berth-spawner may not make mount namespaces, or is of an older "
                                  "release: restart it";
}

/* The next run without a connection that this tick has not handled yet. */
static struct run_private *next_unlinked(const struct runs *runs)
{
    for (struct run_private *priv = TAILQ_FIRST(&runs->all); priv; priv = TAILQ_NEXT(priv, entry))
        if (priv->run.state != RUN_ENDED && !priv->lost && priv->fd < 0 && priv->pins == 0 &&
            priv->sought_tick != runs->ticks)
            return priv;
    return NULL;
}

static void on_tick(uv_timer_t *timer)
{
    struct runs *runs = timer->data;
    struct run_private *priv;
    int64_t now_ms = clock_mono_ms();

    runs->ticks++;
    run_spawner_tick(runs);
    if (runs->trash_next_ms && now_ms >= runs->trash_next_ms) {
        runs->trash_next_ms = 0;
        run_trash_empty(runs);
    }
    for (priv = TAILQ_FIRST(&runs->all); priv; priv = TAILQ_NEXT(priv, entry))
        if (priv->fd >= 0)
            run_link_watch(priv, now_ms);
        else if (priv->lost && priv->run.state != RUN_ENDED)
            run_lost_kill(priv);
    /* From the start each time: an `ended` callback may drop any of them, or free all. */
    while (!runs->freed && (priv = next_unlinked(runs))) {
        priv->sought_tick = runs->ticks;
        run_link_seek(priv);
    }
}

/* Also creates missing parent directories. */
static bool make_dir(const char *dir)
{
    char path[PATH_MAX];

    if (mkdir(dir, 0700) == 0 || errno == EEXIST)
        return true;
    if (errno != ENOENT || !str_copy(str_of(dir), path, sizeof path))
        return false;
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    return mkdir(dir, 0700) == 0;
}

static enum err take_dir(struct runs *runs, const char *dir, struct problem *why)
{
    int64_t until_ms = clock_mono_ms() + LOCK_WAIT_MS;
    int fd = make_dir(dir) ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    char path[PATH_MAX];
    struct stat info;

    /* Other users may not list it. If they may pass through it, that stays: jobs of an earlier
     * agent may need to reach their files. */
    if (fd >= 0 && fstat(fd, &info) == 0)
        fchmod(fd, 0700 | (info.st_mode & 0011));
    if (fd < 0 || !realpath(dir, path)) {
        problem_set(why, ERR_IO, "", "The directory %s for runs cannot be used: %s.", dir,
                    strerror(errno));
        fd_close(fd);
        return ERR_IO;
    }
    /* If a predecessor was killed while starting its spawner, that process holds the lock for a
     * moment, until its exec. */
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (clock_mono_ms() >= until_ms) {
            close(fd);
            return problem_set(why, ERR_CONFLICT, "", "Another agent uses the directory %s.", path);
        }
        usleep(LOCK_STEP_US);
    }
    fd_close(runs->dir_fd);
    runs->dir_fd = fd;
    runs->opened_to_users = false;
    mkdirat(fd, RUN_TRASH, 0700); /* created now: on a full disk it would fail later */
    if (!runs->dir)
        runs->dir = arena_cstr(&runs->arena, str_of(path));
    return ERR_OK;
}

static void free_runs(struct runs *runs)
{
    fd_close(runs->dir_fd);
    map_free(&runs->by_key);
    arena_free(&runs->arena);
    free(runs);
}

void runs_unpin(struct runs *runs)
{
    assert(runs->pins > 0);
    if (--runs->pins == 0) {
        assert(runs->freed);
        free_runs(runs);
    }
}

enum err runs_new(struct loop *loop, const char *dir, const char *shim_path, const char *spawner,
                  void *user, struct runs **ret_runs, struct problem *why)
{
    struct runs *runs = mem_new(struct runs);
    enum err err;

    assert(dir && shim_path);
    *runs = (struct runs){.loop = loop, .user = user, .dir_fd = -1};
    TAILQ_INIT(&runs->all);
    TAILQ_INIT(&runs->spawner.unsent);
    runs->spawner.fd = -1;
    runs->patience_ms = RUN_PATIENCE_MS;
    runs->shim_path = arena_cstr(&runs->arena, str_of(shim_path));
    runs->boot_id = runfile_boot_id(&runs->arena);
    rnd_seed_os(&runs->rnd);
    runs->trash_number = (int64_t)(rnd_next(&runs->rnd) >> 8);
    err = take_dir(runs, dir, why);
    if (!err) {
        const char *hides;
        int error;

        snprintf(runs->group_name, sizeof runs->group_name, "berth-%08" PRIx32,
                 runs_hash(str_of(runs->dir), RUNS_HASH));
        if (!spawner)
            cgroup_probe(runs->group_name, &runs->place); /* before we fork: it may move us */
        hides = private_tmp_hides(runs->dir);
        error = hides || spawner ? 0 : private_tmp_probe(geteuid() != 0);
        if (hides)
            snprintf(runs->tmp_missing, sizeof runs->tmp_missing,
                     "data_dir is in %s, where runs would not find it", hides);
        else if (error != 0)
            snprintf(runs->tmp_missing, sizeof runs->tmp_missing,
                     "this agent may not make mount namespaces: %s", strerror(error));
        err = run_spawner_start(runs, spawner, why);
        if (err)
            cgroup_unprobe(&runs->place);
    }
    if (err) {
        assert(runs->pins == 0);
        free_runs(runs);
        return err;
    }
    uv_timer_init(&loop->uv, &runs->tick);
    runs->tick.data = runs;
    runs->pins++;
    uv_timer_start(&runs->tick, on_tick, RUN_TICK_MS, RUN_TICK_MS);
    *ret_runs = runs;
    return ERR_OK;
}

static void tick_closed(uv_handle_t *handle)
{
    runs_unpin(handle->data);
}

void runs_free(struct runs *runs)
{
    if (!runs)
        return;
    assert(!runs->freed);
    runs->freed = true;
    while (!TAILQ_EMPTY(&runs->all))
        run_drop(TAILQ_FIRST(&runs->all));
    run_spawner_close(runs);
    cgroup_unprobe(&runs->place); /* stays while a process is in it */
    flock(runs->dir_fd, LOCK_UN); /* so that the next agent need not wait for our loop */
    uv_close((uv_handle_t *)&runs->tick, tick_closed);
}

void *runs_user(const struct runs *runs)
{
    return runs->user;
}

const char *runs_dir(const struct runs *runs)
{
    return runs->dir;
}

size_t runs_count(const struct runs *runs)
{
    return runs->alive;
}

struct run *runs_next(struct runs *runs, struct run *run)
{
    struct run_private *next = run ? TAILQ_NEXT(run->priv, entry) : TAILQ_FIRST(&runs->all);

    assert(!run || run->runs == runs);
    return next ? &next->run : NULL;
}

const struct cgroup_place *runs_offered(const struct runs *runs)
{
    return &runs->place;
}

/* --- starting --- */

static bool is_clean(struct str text)
{
    return str_is_utf8(text) && (text.len == 0 || !memchr(text.at, '\0', text.len));
}

/* The process that starts shims is root. */
static bool has_users(const struct runs *runs)
{
    if (!runs->spawner.path)
        return geteuid() == 0;
    return !runs->spawner.version || runs->spawner.version >= SPAWNER_USERS;
}

const char *runs_not_apart(const struct runs *runs)
{
    if (has_users(runs))
        return NULL;
    return runs->spawner.path
               ? "berth-spawner is of an older release and starts work as this agent's user: "
                 "restart it"
               : "this agent is not root and has no berth-spawner: work runs as its user and can "
                 "do what it can, read its token, end other work and leave its limits";
}

void runs_set_rules(struct runs *runs, const struct run_rules *rules)
{
    runs->rules = *rules;
    runs->pool = has_users(runs) ? job_user_pool(rules->job_user) : 0;
}

static struct str user_of(const struct runs *runs, const struct run_spec *spec)
{
    return spec->user.at ? spec->user : runs->rules.job_user;
}

/* The user with the fewest runs, none if there are enough users; not the last one used, of which
 * something may be left for a moment. */
static struct str pick_alone(struct runs *runs, struct arena *arena)
{
    size_t used[JOB_USER_POOL_MAX + 1] = {0}, best = 0;
    char text[JOB_USER_NAME_MAX + 1];

    for (const struct run_private *priv = TAILQ_FIRST(&runs->all); priv;
         priv = TAILQ_NEXT(priv, entry))
        if (priv->run.state != RUN_ENDED)
            used[job_user_number(runs->rules.job_user, priv->user)]++;
    for (size_t i = 0; i < runs->pool; i++) {
        size_t number = (runs->pool_last + i) % runs->pool + 1;

        if (best == 0 || used[number] < used[best])
            best = number;
    }
    runs->pool_last = best;
    return arena_str(arena, job_user_beside(runs->rules.job_user, best, text));
}

static enum err check_spec(const struct runs *runs, const struct run_spec *spec,
                           struct problem *why)
{
    const int64_t wanted[CGROUP_LIMITS] = {[CGROUP_MEMORY] = spec->memory_bytes_max,
                                           [CGROUP_PIDS] = spec->pids_max,
                                           [CGROUP_CPU] = spec->cpu_permille_max};
    const struct run_spawner *spawner = &runs->spawner;
    struct str user = user_of(runs, spec);
    struct passwd *own;

    if (!str_is_id(spec->key, RUN_KEY_MAX))
        return problem_set(why, ERR_BAD_FIELD, "key", "The key of a run must be an id.");
    if (map_get(&runs->by_key, spec->key))
        return problem_set(why, ERR_CONFLICT, "key", "There is a run " STR_FMT " already.",
                           STR_ARG(spec->key));
    if (spec->argc == 0 || spec->argv[0].len == 0)
        return problem_set(why, ERR_BAD_FIELD, "command", "There is no program to run.");
    for (size_t i = 0; i < spec->argc; i++)
        if (!is_clean(spec->argv[i]))
            return problem_set(why, ERR_BAD_FIELD, "command",
                               "Word %zu of the command is not text.", i + 1);
    for (size_t i = 0; i < spec->env_count; i++) {
        struct str rest = spec->env[i], name = str_cut(&rest, '=');

        if (!is_clean(spec->env[i]) || name.len == 0 || !rest.at)
            return problem_set(why, ERR_BAD_FIELD, "env",
                               "Entry %zu of the environment is not NAME=value.", i + 1);
    }
    if (spec->cwd.at && (!is_clean(spec->cwd) || !str_starts(spec->cwd, STR("/"))))
        return problem_set(why, ERR_BAD_FIELD, "cwd",
                           "The working directory must be an absolute path.");
    if (spec->user.at && !str_is_id(spec->user, 64))
        return problem_set(why, ERR_BAD_FIELD, "user", "That is no name of a user.");
    if (spec->timeout_ms < 0 || spec->timeout_grace_ms < 0 || spec->stop_grace_ms < 0 ||
        spec->deadline_boot_ms < 0 || spec->deadline_grace_ms < 0 || spec->memory_bytes_max < 0 ||
        spec->pids_max < 0 || spec->cpu_permille_max < 0 || spec->log_bytes_max < 0 ||
        spec->disk_bytes_max < 0)
        return problem_set(why, ERR_BAD_FIELD, "limits", "A limit of a run is negative.");
    /* A requested limit is relied on: work that would run without it is not started. */
    for (int i = 0; i < CGROUP_LIMITS; i++)
        if (wanted[i] > 0 && !runs->place.limits[i])
            return problem_set(why, ERR_PRECONDITION, "limits",
                               "Its limit of %s cannot be enforced by this agent: %s.",
                               cgroup_limit_names[i], runs->place.missing);
    /* A shim of an older release would start it without its secrets. */
    if (spec->secret_count > 0 && spawner->path && spawner->version &&
        spawner->version < SPAWNER_SECRETS)
        return problem_set(
            why, ERR_PRECONDITION, "secrets",
            "berth-spawner is of an older release and hands over no secrets: restart "
            "it.");
    if (user.len == 0 || has_users(runs))
        return ERR_OK;
    own = getpwuid(geteuid());
    if (own && str_is(user, own->pw_name))
        return ERR_OK;
    return problem_set(why, ERR_FORBIDDEN, "user",
                       "Only an agent that is root or has berth-spawner can run work as " STR_FMT
                       ".",
                       STR_ARG(user));
}

/* Created and locked. */
static enum err make_run_dir(struct runs *runs, struct str key, int *ret_dir_fd,
                             struct problem *why)
{
    char name[RUN_KEY_MAX + 1];
    struct stat info;
    int dir_fd = -1;

    str_copy(key, name, sizeof name);
    /* The directory of all runs may have been removed with everything in it. */
    if (fstat(runs->dir_fd, &info) == 0 && info.st_nlink == 0 && take_dir(runs, runs->dir, why))
        return ERR_IO;
    if (mkdirat(runs->dir_fd, name, 0700) == 0 && (dir_fd = run_open_dir(runs, key)) >= 0 &&
        flock(dir_fd, LOCK_EX | LOCK_NB) == 0) {
        *ret_dir_fd = dir_fd;
        return ERR_OK;
    }
    problem_set(why, ERR_IO, "", "The run's directory cannot be made: %s.", strerror(errno));
    if (dir_fd >= 0) {
        run_trash(runs, key);
        close(dir_fd);
    }
    return ERR_IO;
}

/* A single run must not fill the disk for all others. */
static int64_t disk_bytes_max(const struct runs *runs, const struct run_spec *spec)
{
    struct statvfs disk;
    int64_t half;

    if (spec->disk_bytes_max > 0 || runs->rules.disk_bytes_max > 0)
        return spec->disk_bytes_max > 0 ? spec->disk_bytes_max : runs->rules.disk_bytes_max;
    if (fstatvfs(runs->dir_fd, &disk) != 0)
        return 0;
    half = (int64_t)(disk.f_bavail / 2 * disk.f_frsize);
    return half > DISK_BYTES_MIN ? half : DISK_BYTES_MIN;
}

/* No single run may take all of the machine's memory. A requested limit takes precedence. */
static int64_t memory_bytes_default(const struct runs *runs, const struct run_spec *spec)
{
    int64_t percent = runs->rules.memory_percent_max;

    if (spec->memory_bytes_max > 0 || percent <= 0 || percent >= 100 ||
        !runs->place.limits[CGROUP_MEMORY])
        return 0;
    return sysconf(_SC_PHYS_PAGES) / 100 * percent * sysconf(_SC_PAGESIZE);
}

/* The directory from which its shim reads them itself; at == NULL: the agent must put them into the
 * run's directory. */
static struct str secrets_dir(const struct runs *runs, const struct run_spec *spec,
                              struct arena *arena)
{
    bool able = !runs->spawner.path || runs->spawner.version >= SPAWNER_MEMORY;
    char real[PATH_MAX]; /* the shim's working directory differs from ours */

    if (spec->secret_count == 0 || !spec->private_tmp || !able || runs->rules.secrets_dir.len == 0)
        return STR_NONE;
    return realpath(arena_cstr(arena, runs->rules.secrets_dir), real)
               ? arena_str(arena, str_of(real))
               : runs->rules.secrets_dir; /* its errors are reported for each secret */
}

/* Owned by us until the shim gives them to the job's user. A missing one is reported now, even if
 * the shim reads them itself. */
static enum err put_secrets(const struct runs *runs, const struct run_spec *spec, int dir_fd,
                            struct problem *why)
{
    char name[ARGV_SECRET_NAME_MAX + 1];
    enum err err = ERR_OK;
    int secrets_fd, fd, error;

    if (spec->secret_count == 0)
        return ERR_OK;
    if (mkdirat(dir_fd, RUNFILE_SECRETS, 0700) != 0 ||
        (secrets_fd =
             openat(dir_fd, RUNFILE_SECRETS, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        return problem_set(why, ERR_IO, "", "The directory of its secrets cannot be made: %s.",
                           strerror(errno));
    for (size_t i = 0; i < spec->secret_count && !err; i++) {
        err = secret_open(runs->rules.secrets_dir, secret_name(spec->secrets[i]), &fd, why);
        if (err)
            break;
        str_copy(secret_name(spec->secrets[i]), name, sizeof name);
        error = spec->secrets_dir.at ? 0 : secret_copy(fd, secrets_fd, name);
        close(fd);
        if (error != 0)
            err = problem_set(why, ERR_IO, "secrets", "The secret %s cannot be handed over: %s.",
                              name, strerror(error));
    }
    close(secrets_fd);
    return err;
}

/* Creates the run's directory with everything the shim needs, locked. */
static enum err write_run(struct runs *runs, struct run_private *priv, const struct run_spec *spec,
                          int *ret_dir_fd, struct problem *why)
{
    struct arena arena = {0};
    struct runfile file = {.spec = *spec,
                           .dir = arena_fmt(&arena, "%s/" STR_FMT, runs->dir, STR_ARG(spec->key)),
                           .boot_id = runs->boot_id,
                           .mark = arena_fmt(&arena, "BERTH_RUN=" STR_FMT "/%016" PRIx64,
                                             STR_ARG(spec->key), rnd_next(&runs->rnd)),
                           .created_ms = clock_wall_ms(),
                           .place = runs->place,
                           .run_as = priv->user};
    int dir_fd = -1;
    enum err err = ERR_OK;

    file.spec.deadline_sleeps = clock_lease_id() == CLOCK_MONOTONIC;
    file.spec.unfiltered = runs->rules.unfiltered;
    file.spec.disk_bytes_max = disk_bytes_max(runs, spec);
    file.spec.memory_bytes_default = memory_bytes_default(runs, spec);
    /* A run gets its own /tmp, unless that is not possible or the rules forbid it, or another
     * run's. */
    if (spec->tmp_of.at) {
        struct str tmp = arena_fmt(&arena, STR_FMT "/" RUNFILE_TMP, STR_ARG(spec->tmp_of));

        file.spec.private_tmp = faccessat(runs->dir_fd, tmp.at, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    } else {
        file.spec.private_tmp = !runs->rules.shared_tmp && has_private_tmp(runs);
    }
    file.spec.secrets_dir = secrets_dir(runs, &file.spec, &arena);
    err = make_run_dir(runs, spec->key, &dir_fd, why);
    if (!err)
        err = runfile_reserve_exit(dir_fd, spec->key, spec->meta, why);
    if (!err)
        err = runfile_put(dir_fd, &file, why);
    if (!err && spec->input.at)
        err = runfile_put_input(dir_fd, spec->input, why);
    if (!err)
        err = put_secrets(runs, &file.spec, dir_fd, why);
    run_take_file(priv, &file);
    arena_free(&arena);
    if (err && dir_fd >= 0) {
        run_trash(runs, spec->key);
        close(dir_fd);
    }
    *ret_dir_fd = dir_fd;
    return err;
}

enum err runs_start(struct runs *runs, const struct run_spec *spec, void *user,
                    struct run **ret_run, struct problem *why)
{
    struct run_private *priv;
    int dir_fd, fds[2];
    enum err err = check_spec(runs, spec, why);

    assert(!runs->freed);
    if (err)
        return err;
    assert(spec->handler && spec->handler->ended);
    /* A job of another user must be able to reach its files by path. */
    if (has_users(runs) && !runs->opened_to_users)
        runs->opened_to_users = fchmod(runs->dir_fd, 0711) == 0;
    priv = run_new(runs, spec->key, spec->meta);
    priv->run.user = user;
    priv->run.handler = spec->handler;
    priv->user = spec->alone && !spec->user.at && runs->pool > 0
                     ? pick_alone(runs, &priv->arena)
                     : arena_str(&priv->arena, user_of(runs, spec));
    priv->created_mono_ms = clock_mono_ms();
    err = write_run(runs, priv, spec, &dir_fd, why);
    if (!err && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
        err = problem_set(why, ERR_IO, "", "No socket can be had for a run: %s.", strerror(errno));
        run_trash(runs, spec->key);
        close(dir_fd);
    } else if (!err) {
        run_link_open(priv, fds[0]);
        err = run_spawner_order(priv, dir_fd, fds[1], why);
        if (err)
            run_trash(runs, spec->key);
    }
    if (err) {
        run_drop(priv);
        return err;
    }
    *ret_run = &priv->run;
    return ERR_OK;
}

struct run *runs_record(struct runs *runs, const struct run_spec *spec, void *user,
                        const struct run_exit *exit)
{
    struct run_private *priv = run_new(runs, spec->key, spec->meta);
    int dir_fd;

    assert(!runs->freed && exit->reason[0] && !exit->tail.at);
    priv->run.user = user;
    priv->run.handler = spec->handler;
    priv->run.unstarted = true;
    priv->run.exit = *exit;
    priv->run.state = RUN_ENDED;
    runs->alive--;
    if (!make_run_dir(runs, spec->key, &dir_fd, NULL)) {
        runfile_leave_exit(dir_fd, exit, spec->key, spec->meta);
        close(dir_fd);
    }
    return &priv->run;
}

/* --- public functions on one run --- */

void run_stop(struct run *run, const char *reason, int64_t grace_ms)
{
    struct run_private *priv = run->priv;
    int64_t kill_ms = clock_mono_ms() + (grace_ms < 0 ? priv->grace_ms : grace_ms);

    assert(str_is_id(str_of(reason), sizeof priv->stop_reason - 1));
    if (run->state == RUN_ENDED || (priv->stop_kill_ms && priv->stop_kill_ms <= kill_ms))
        return;
    if (!priv->stop_kill_ms)
        str_copy(str_of(reason), priv->stop_reason, sizeof priv->stop_reason);
    priv->stop_kill_ms = kill_ms;
    if (run->state != RUN_STARTING) /* otherwise its shim reports it */
        run->state = RUN_STOPPING;
    priv->todo |= RUN_TODO_STOP;
    run_link_flush(priv);
}

void run_deadline(struct run *run, int64_t boot_ms)
{
    struct run_private *priv = run->priv;
    int dir_fd;

    assert(boot_ms >= 0);
    if (run->state == RUN_ENDED || priv->deadline_ms == boot_ms)
        return;
    priv->deadline_ms = boot_ms;
    dir_fd = run_open_dir(run->runs, run->key);
    if (dir_fd >= 0) {
        runfile_put_deadline(dir_fd, boot_ms); /* if the disk is full, the message is enough */
        close(dir_fd);
    }
    priv->todo |= RUN_TODO_DEADLINE;
    run_link_flush(priv);
}

int64_t run_deadline_ms(const struct run *run)
{
    return run->priv->deadline_ms;
}

void run_forget(struct run *run)
{
    struct runs *runs = run->runs;

    assert(run->state == RUN_ENDED);
    run_trash(runs, run->key);
    run_drop(run->priv);
}

enum err run_log(struct run *run, int64_t offset, size_t max, struct buf *out, int64_t *ret_offset,
                 int64_t *ret_total)
{
    int dir_fd = run_open_dir(run->runs, run->key);
    enum err err;

    if (dir_fd < 0)
        return ERR_IO;
    err = runlog_read(dir_fd, offset < 0 ? 0 : offset, max, out, ret_offset, ret_total);
    close(dir_fd);
    if (!err && run->state == RUN_ENDED && *ret_total < run->exit.output_bytes)
        *ret_total = run->exit.output_bytes; /* its last bytes did not fit */
    return err;
}

int run_shim_pid(const struct run *run)
{
    return run->state == RUN_ENDED ? 0 : run->priv->shim_pid;
}

/* --- runs of an earlier agent, and runs that lost their shim --- */

enum { LOST_WAIT_US = 2000 };

/* On a pool thread. The fields of the run that it reads no longer change. */
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
    /* Two empty passes: a process that was about to fork during the first shows up in the
     * second. */
    for (; cleans < 2 && clock_mono_ms() < until_ms; cleans = clean ? cleans + 1 : 0) {
        cgroup_kill(&group);
        clean =
            process_tree_kill_marked(priv->mark) + process_tree_kill_orphans(priv->lost_spawner) ==
                0 &&
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

/* A run has not ended while one of its processes lives, even one that waits for a disk and cannot
 * be killed: a replacement would run beside it. The tick tries again. */
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

/* Again, while something is left. */
static void run_lost_kill(struct run_private *priv)
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
        abort(); /* fails only for work without a function */
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

static void adopt(struct runs *runs, const char *name, void (*found)(struct run *run))
{
    int dir_fd = openat(runs->dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct run_private *priv = NULL;
    struct arena arena = {0};
    struct runfile file;
    struct run_exit exit;
    struct str key, meta;
    int64_t deadline_ms;

    if (dir_fd < 0)
        return; /* not one of our directories */
    if (runfile_get(dir_fd, &arena, &file, NULL) == ERR_OK && str_is(file.spec.key, name)) {
        priv = run_new(runs, str_of(name), file.spec.meta);
        run_take_file(priv, &file);
    } else if (runfile_get_exit(dir_fd, &arena, &exit, &key, &meta) == ERR_OK &&
               str_is(key, name)) {
        /* It never started, or only its record survived a power failure. */
        priv = run_new(runs, str_of(name), meta);
        priv->run.unstarted = true;
    }
    arena_free(&arena);
    /* With neither a spec nor a record nothing can have been started for it, because the order is
     * sent after the spec is written. */
    if (!priv) {
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
    priv->unpublished = true;
    run_link_seek(priv);
    priv->unpublished = false;
    found(&priv->run); /* which may drop it, or sets its handler */
}

void runs_adopt(struct runs *runs, void (*found)(struct run *run))
{
    DIR *list = dir_tree_list(runs->dir_fd);

    assert(TAILQ_EMPTY(&runs->all)); /* before anything was started */
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (str_is_id(str_of(entry->d_name), RUN_KEY_MAX))
            adopt(runs, entry->d_name, found);
    if (list)
        closedir(list);
    cgroup_sweep(&runs->place, &runs->by_key);
    run_trash_empty(runs);
}
