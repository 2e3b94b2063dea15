/* Files of hours. The keeper's thread makes the text, a thread of the pool writes it: a slow disk
 * holds up nobody. A file is written beside its place and renamed, so a kill leaves the old or the
 * new one. Not synced: a power cut may cost the last seconds of statistics. */
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

#include "base/mem.h"
#include "sched/tally_note.h"

enum { SAVE_MS = 10000, NAME_MAX_BYTES = 40, FILE_BYTES_MAX = 64 * 1024 * 1024 };

struct archive {
    struct server *server;
    struct loop_job job;
    int dir;  /* -1: memory only */
    int lock; /* held: another server on the same directory must not write there */
    bool busy;
    int64_t saved_ms; /* monotonic */
    /* of the job under way */
    int64_t hour;
    struct buf text;
    int failed; /* errno */
    bool told;  /* that it fails */
};

static struct hours *hours_of(struct archive *archive)
{
    return keeper_hours(archive->server->sched.keeper);
}

static void file_name(char name[NAME_MAX_BYTES], int64_t hour, const char *suffix)
{
    snprintf(name, NAME_MAX_BYTES, "%lld.jsonl%s", (long long)hour, suffix);
}

/* On any thread. */
static int write_file(int dir, int64_t hour, struct str text)
{
    char name[NAME_MAX_BYTES], fresh[NAME_MAX_BYTES];
    size_t done = 0;
    int fd, failed = 0;

    file_name(name, hour, "");
    file_name(fresh, hour, ".new");
    fd = openat(dir, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    while (!failed && done < text.len) {
        ssize_t wrote = write(fd, text.at + done, text.len - done);

        if (wrote >= 0)
            done += (size_t)wrote;
        else if (errno != EINTR)
            failed = errno;
    }
    close(fd);
    if (!failed && renameat(dir, fresh, dir, name) != 0)
        failed = errno;
    if (failed)
        unlinkat(dir, fresh, 0);
    return failed;
}

static void save_run(struct loop_job *job)
{
    struct archive *archive = container_of(job, struct archive, job);

    archive->failed = write_file(archive->dir, archive->hour, buf_view(&archive->text));
}

static void tell(struct archive *archive)
{
    if (archive->failed && !archive->told)
        log_event(LOG_WARN, "report.not_saved", KC("reason", strerror(archive->failed)));
    archive->told = archive->failed != 0;
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
static void remove_old(struct archive *archive, int64_t now_ms)
{
    int fd = dup(archive->dir);
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;

    if (!listing) {
        if (fd >= 0)
            close(fd);
        return;
    }
    rewinddir(listing);
    while ((entry = readdir(listing))) {
        struct str rest = str_of(entry->d_name);
        int64_t hour;

        if (str_int(str_cut(&rest, '.'), &hour) &&
            (!str_is(rest, "jsonl") || hour + HOURS_MAX <= now_ms / HOUR_MS))
            unlinkat(archive->dir, entry->d_name, 0);
    }
    closedir(listing);
}

void archive_tick(struct archive *archive)
{
    struct loop *loop = &server_keeper(archive->server)->loop;

    if (archive->dir < 0 || archive->busy || loop->mono_ms - archive->saved_ms < SAVE_MS)
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
    struct tally *tally = hours_at(hours_of(archive), hour * HOUR_MS);
    char name[NAME_MAX_BYTES];
    struct stat info;
    struct buf text = {0};
    ssize_t got = 1;
    int fd, bad = 0;

    file_name(name, hour, "");
    fd = openat(archive->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= FILE_BYTES_MAX)
        while (got > 0) {
            buf_reserve(&text, 65536);
            got = read(fd, text.at + text.len, 65536);
            text.len += got > 0 ? (size_t)got : 0;
        }
    if (fd >= 0)
        close(fd);
    struct str rest = buf_view(&text);
    while (tally && rest.len > 0)
        bad += tally_load(tally, str_cut(&rest, '\n')) != ERR_OK;
    if (bad || got < 0)
        log_event(LOG_WARN, "report.unreadable", KC("file", name), KI("lines", bad));
    buf_free(&text);
}

static void load(struct archive *archive, int64_t now_ms)
{
    int64_t last = now_ms / HOUR_MS;
    char name[NAME_MAX_BYTES];

    for (int64_t hour = last - HOURS_MAX + 1; hour <= last; hour++) {
        file_name(name, hour, "");
        if (faccessat(archive->dir, name, R_OK, 0) == 0)
            load_file(archive, hour);
    }
    for (size_t i = 0; i < HOURS_MAX; i++)
        hours_of(archive)->ring[i].unsaved = false;
    hours_tidy(hours_of(archive), now_ms);
}

static bool open_dir(struct archive *archive)
{
    struct arena arena = {0};
    const struct settings *settings = archive->server->settings;
    const char *path = arena_fmt(&arena, STR_FMT "/report", STR_ARG(settings->data_dir)).at;

    mkdir(arena_cstr(&arena, settings->data_dir), 0700); /* with Redis nobody else needs it */
    mkdir(path, 0700);
    archive->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (archive->dir >= 0)
        archive->lock = openat(archive->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bool ok = archive->lock >= 0 && flock(archive->lock, LOCK_EX | LOCK_NB) == 0;
    if (!ok) {
        log_event(LOG_WARN, "report.memory_only", KC("dir", path), KC("reason", strerror(errno)));
        if (archive->dir >= 0)
            close(archive->dir);
        archive->dir = -1;
    }
    arena_free(&arena);
    return ok;
}

struct archive *archive_new(struct server *server)
{
    struct archive *archive = mem_new(struct archive);

    *archive = (struct archive){.server = server, .dir = -1, .lock = -1};
    if (open_dir(archive)) {
        load(archive, clock_wall_ms());
        remove_old(archive, clock_wall_ms());
    }
    return archive;
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
    while (archive->dir >= 0 && take_unsaved(archive)) {
        archive->failed = write_file(archive->dir, archive->hour, buf_view(&archive->text));
        buf_free(&archive->text);
        tell(archive);
    }
    if (archive->dir >= 0)
        close(archive->dir);
    if (archive->lock >= 0)
        close(archive->lock);
    free(archive);
}
