/* Directories that go. A job may leave any number of files behind, so a directory is only renamed
 * on the loop and emptied on a thread of libuv's pool; the key is free at once. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/dir_tree.h"
#include "agent/shim_link.h"

enum {
    NAME_SIZE = 32,
    CLEANED_MAX = 64,     /* directories that others are asked to empty, at a time */
    AGAIN_MIN_MS = 1000,  /* what could not be removed is tried again after this, */
    AGAIN_MAX_MS = 60000, /* ever more slowly */
};

/* A directory of a job that was another user: only that user can empty it. */
static void clean(struct runs *runs, int dir_fd, const char *name)
{
    struct stat info;

    if (fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode) &&
        info.st_uid != geteuid())
        run_spawner_clean(runs,
                          openat(dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

/* What is left there are such directories, and those of runs with one in it. */
static void clean_trash(struct runs *runs)
{
    int list_fd = openat(runs->trash_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
    DIR *list = list_fd >= 0 ? fdopendir(list_fd) : NULL;
    char own[2 * NAME_SIZE];

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
    else if (list_fd >= 0)
        close(list_fd);
}

/* Who was asked may take a while, and what is mounted there goes when somebody unmounts it. */
static void try_again(struct runs *runs)
{
    runs->trash_pause_ms = runs->trash_pause_ms ? runs->trash_pause_ms * 2 : AGAIN_MIN_MS;
    if (runs->trash_pause_ms > AGAIN_MAX_MS)
        runs->trash_pause_ms = AGAIN_MAX_MS;
    runs->trash_next_ms = clock_mono_ms() + runs->trash_pause_ms;
}

void run_trash_tick(struct runs *runs, int64_t now_ms)
{
    if (!runs->trash_next_ms || now_ms < runs->trash_next_ms)
        return;
    runs->trash_next_ms = 0;
    run_trash_empty(runs);
}

/* On a thread of the pool: only the directory is touched, nothing of `runs` that changes. */
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
        clean_trash(runs);
        try_again(runs);
    }
    close(runs->trash_fd);
    if (runs->trash_again && !runs->freed)
        run_trash_empty(runs);
    runs_unpin(runs);
}

void run_trash_empty(struct runs *runs)
{
    runs->trash_again = runs->trash_busy;
    if (runs->trash_busy)
        return;
    runs->trash_fd = openat(runs->dir_fd, RUN_TRASH, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (runs->trash_fd < 0)
        return; /* nothing was ever put there */
    runs->trash_busy = true;
    runs->pins++;
    if (uv_queue_work(&runs->loop->uv, &runs->trash_work, empty_trash, trash_emptied) != 0)
        abort(); /* only for a work without a function */
}

static bool throw_away(struct runs *runs, int from_fd, const char *name)
{
    char gone[sizeof RUN_TRASH + NAME_SIZE];
    bool done;

    snprintf(gone, sizeof gone, RUN_TRASH "/%" PRId64, runs->trash_number++);
    done = renameat(from_fd, name, runs->dir_fd, gone) == 0;

    /* It was removed by hand; or a job took our right to move it. */
    if (!done && ((errno == ENOENT && mkdirat(runs->dir_fd, RUN_TRASH, 0700) == 0) ||
                  (errno == EACCES && fchmodat(from_fd, name, 0700, 0) == 0)))
        done = renameat(from_fd, name, runs->dir_fd, gone) == 0;
    run_trash_empty(runs);
    return done;
}

bool runs_discard(struct runs *runs, const char *path)
{
    return throw_away(runs, AT_FDCWD, path);
}

void run_trash(struct runs *runs, struct str key)
{
    char name[RUN_KEY_MAX + 1];

    str_copy(key, name, sizeof name);
    throw_away(runs, runs->dir_fd, name);
}

void run_trash_work(struct runs *runs, struct str key)
{
    int dir_fd = run_open_dir(runs, key);

    if (dir_fd < 0)
        return;
    runfile_keep_result(dir_fd, runfile_open_result(dir_fd)); /* a shim that died did not */
    unlinkat(dir_fd, RUNFILE_INPUT, 0);
    for (size_t i = 0; i < RUNFILE_DIRS; i++)
        /* Most jobs leave nothing there. */
        if (unlinkat(dir_fd, runfile_dirs[i], AT_REMOVEDIR) != 0 && errno != ENOENT) {
            clean(runs, dir_fd, runfile_dirs[i]);
            throw_away(runs, dir_fd, runfile_dirs[i]);
        }
    close(dir_fd);
}
