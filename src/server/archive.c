/* Files of hours. The keeper's thread makes the text, a thread of the pool writes it: a slow disk
 * holds up nobody. */
#include "server/archive.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "sched/tally.h"

enum { SAVE_MS = 10000, PATH_BYTES = 4096, NAME_BYTES = 64, FILE_BYTES_MAX = 64 * 1024 * 1024 };

struct archive {
    struct server *server;
    struct loop_job job;
    char path[PATH_BYTES - NAME_BYTES]; /* of the directory; "" = memory only */
    int lock; /* held: another server on the same directory must not write there */
    bool busy;
    int64_t saved_ms; /* monotonic */
    /* of the job under way */
    int64_t hour;
    struct buf text;
    bool failed;
    struct problem why;
    bool told; /* that it fails */
};

static struct hours *hours_of(struct archive *archive)
{
    return keeper_hours(archive->server->sched.keeper);
}

static void file_path(const struct archive *archive, char path[PATH_BYTES], int64_t hour)
{
    int len = snprintf(path, PATH_BYTES, "%s/%lld.jsonl", archive->path, (long long)hour);

    assert(len > 0 && len < PATH_BYTES); /* archive_new saw to it */
    (void)len;
}

/* On any thread. */
static void save_hour(struct archive *archive)
{
    char path[PATH_BYTES];

    file_path(archive, path, archive->hour);
    archive->failed = file_replace(path, buf_view(&archive->text), &archive->why) != ERR_OK;
}

static void save_run(struct loop_job *job)
{
    struct archive *archive = container_of(job, struct archive, job);

    save_hour(archive);
}

static void tell(struct archive *archive)
{
    if (archive->failed && !archive->told)
        log_event(LOG_WARN, "report.not_saved", KC("reason", archive->why.detail));
    archive->told = archive->failed;
}

static void save_done(struct loop_job *job)
{
    struct archive *archive = container_of(job, struct archive, job);

    assert(archive->busy);
    archive->busy = false;
    buf_free(&archive->text);
    tell(archive);
}

/* The next hour that has news; false: none has. */
static bool take_unsaved(struct archive *archive)
{
    struct hours *hours = hours_of(archive);

    for (size_t i = 0; i < HOURS_MAX; i++) {
        struct hour *hour = &hours->ring[i];

        if (!hour->tally || !hour->unsaved)
            continue;
        hour->unsaved = false;
        archive->hour = hour->number;
        archive->text = (struct buf){0};
        tally_save(hour->tally, &archive->text);
        return true;
    }
    return false;
}

/* Hours that are not kept any more, and halves of files. */
static void remove_old(const struct archive *archive, int64_t now_ms)
{
    DIR *listing = opendir(archive->path);
    struct dirent *entry;

    while (listing && (entry = readdir(listing))) {
        struct str rest = str_of(entry->d_name);
        int64_t hour;

        if (str_int(str_cut(&rest, '.'), &hour) &&
            (!str_is(rest, "jsonl") || hour + HOURS_MAX <= now_ms / HOUR_MS))
            unlinkat(dirfd(listing), entry->d_name, 0);
    }
    if (listing)
        closedir(listing);
}

void archive_tick(struct archive *archive)
{
    struct loop *loop = &server_keeper(archive->server)->loop;

    if (!archive->path[0] || archive->busy || loop->mono_ms - archive->saved_ms < SAVE_MS)
        return;
    archive->saved_ms = loop->mono_ms;
    if (!take_unsaved(archive))
        return;
    archive->busy = true;
    archive->job.run = save_run;
    archive->job.done = save_done;
    loop_work(loop, &archive->job);
}

/* A file that is not whole, or of a later release, gives what can be read of it. */
static void load_file(struct archive *archive, int64_t hour)
{
    struct arena arena = {0};
    struct problem why = {0};
    char path[PATH_BYTES];
    struct str rest = STR_NONE;
    int bad = 0;

    file_path(archive, path, hour);
    enum err err = file_read(path, FILE_BYTES_MAX, &arena, &rest, &why);
    struct tally *tally = rest.len ? hours_at(hours_of(archive), hour * HOUR_MS) : NULL;
    while (tally && rest.len > 0)
        bad += tally_load(tally, str_cut(&rest, '\n')) != ERR_OK;
    if (bad || (err && err != ERR_NOT_FOUND))
        log_event(LOG_WARN, "report.unreadable", KC("file", path), KI("lines", bad),
                  KC("reason", why.detail));
    arena_free(&arena);
}

static void load(struct archive *archive, int64_t now_ms)
{
    int64_t last = now_ms / HOUR_MS;

    for (int64_t hour = last - HOURS_MAX + 1; hour <= last; hour++)
        load_file(archive, hour);
    for (size_t i = 0; i < HOURS_MAX; i++)
        hours_of(archive)->ring[i].unsaved = false;
    hours_tidy(hours_of(archive), now_ms);
}

static bool open_dir(struct archive *archive)
{
    struct arena arena = {0};
    struct str dir = ((struct settings *)archive->server->settings)->data_dir;
    struct str path = arena_fmt(&arena, STR_FMT "/report", STR_ARG(dir));

    errno = ENAMETOOLONG;
    if (str_copy(path, archive->path, sizeof archive->path)) {
        mkdir(arena_cstr(&arena, dir), 0700); /* with Redis nobody else needs it */
        mkdir(path.at, 0700);
        archive->lock =
            open(arena_fmt(&arena, "%s/lock", path.at).at, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    bool ok = archive->lock >= 0 && flock(archive->lock, LOCK_EX | LOCK_NB) == 0;
    if (!ok) {
        log_event(LOG_WARN, "report.memory_only", KS("dir", path), KC("reason", strerror(errno)));
        archive->path[0] = 0;
    }
    arena_free(&arena);
    return ok;
}

struct archive *archive_new(struct server *server)
{
    struct archive *archive = mem_new(struct archive);

    *archive = (struct archive){.server = server, .lock = -1};
    if (open_dir(archive)) {
        load(archive, clock_wall_ms());
        remove_old(archive, clock_wall_ms());
    }
    return archive;
}

void archive_answer(struct rpc *rpc)
{
    const struct hours *hours = keeper_hours(rpc->from->server->sched.keeper);
    struct str rest = rpc->params;
    int64_t since_ms, until_ms;

    if (!str_int(str_cut(&rest, ' '), &since_ms) || !str_int(rest, &until_ms)) {
        rpc_over(rpc, ERR_BAD_REQUEST);
        return;
    }
    struct tally *sum = hours_sum(hours, since_ms, until_ms);
    tally_save(sum, &rpc->answer);
    tally_free(sum);
    rpc_over(rpc, ERR_OK);
}

void archive_close(struct archive *archive)
{
    struct tally *now;

    if (!archive)
        return;
    assert(!archive->busy); /* loop_done waited for it */
    now = hours_at(hours_of(archive), clock_wall_ms());
    tally_collect(&archive->server->sched, now);
    for (int i = 0; now && i <= archive->server->loop_count; i++)
        tally_merge(now, archive->server->sched.loops[i].tally);
    while (archive->path[0] && take_unsaved(archive)) {
        save_hour(archive);
        buf_free(&archive->text);
        tell(archive);
    }
    if (archive->lock >= 0)
        close(archive->lock);
    free(archive);
}
