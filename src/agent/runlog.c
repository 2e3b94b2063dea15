/* Writing and reading a run's output: see runlog.h. */
#include "agent/runlog.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/dir_tree.h"
#include "agent/fd.h"

#define PREFIX "log."

enum { NAME_SIZE = 32, FILES_MAX = 4, READ_TRIES = 4 };

static const struct runlog_file no_file = {.base = -1};

static void file_name(int64_t base, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, PREFIX "%" PRId64, base);
}

/* --- writing --- */

void runlog_init(struct runlog *log, int dir_fd, int64_t file_bytes_max)
{
    assert(dir_fd >= 0 && file_bytes_max >= RUN_LOG_BYTES_MIN);
    *log = (struct runlog){.dir_fd = dir_fd,
                           .fd = -1,
                           .file_bytes_max = file_bytes_max,
                           .newest = no_file,
                           .older = no_file};
}

static void drop_file(struct runlog *log, struct runlog_file *file)
{
    char name[NAME_SIZE];

    if (file->base < 0)
        return;
    assert(file != &log->newest || log->fd < 0); /* not while it is being written */
    file_name(file->base, name);
    unlinkat(log->dir_fd, name, 0);
    log->dropped += file->size;
    *file = no_file;
}

/* The newest file is complete, or a gap follows it. An empty one is removed. */
static void end_file(struct runlog *log)
{
    if (log->fd < 0)
        return;
    close(log->fd);
    log->fd = -1;
    if (log->newest.size == 0)
        drop_file(log, &log->newest);
    else {
        drop_file(log, &log->older);
        log->older = log->newest;
        log->newest = no_file;
    }
}

static void keep_tail(struct runlog *log, struct str bytes)
{
    if (bytes.len > RUN_TAIL_BYTES) {
        bytes.at += bytes.len - RUN_TAIL_BYTES;
        bytes.len = RUN_TAIL_BYTES;
    }
    while (bytes.len > 0) {
        size_t room = RUN_TAIL_BYTES - log->tail_at;
        size_t part = bytes.len < room ? bytes.len : room;

        memcpy(log->tail + log->tail_at, bytes.at, part);
        log->tail_at = (log->tail_at + part) % RUN_TAIL_BYTES;
        bytes = str_from(bytes, part);
    }
}

/* Returns how many bytes went into the newest file; 0 if the disk takes none. */
static size_t store_some(struct runlog *log, struct str bytes)
{
    char name[NAME_SIZE];
    int64_t room;
    ssize_t done;

    if (log->fd >= 0 && log->newest.size >= log->file_bytes_max)
        end_file(log);
    if (log->fd < 0) {
        assert(log->newest.base < 0);
        file_name(log->total, name);
        log->fd =
            openat(log->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (log->fd < 0)
            return 0;
        log->newest = (struct runlog_file){.base = log->total};
    }
    room = log->file_bytes_max - log->newest.size;
    assert(room > 0 && log->newest.base + log->newest.size == log->total);
    do
        done = write(log->fd, bytes.at, (int64_t)bytes.len < room ? bytes.len : (size_t)room);
    while (done < 0 && errno == EINTR);
    if (done <= 0)
        return 0;
    log->newest.size += done;
    log->total += done;
    return (size_t)done;
}

void runlog_write(struct runlog *log, struct str bytes, int64_t now_mono_ms)
{
    keep_tail(log, bytes);
    while (bytes.len > 0 && now_mono_ms >= log->retry_ms) {
        size_t done = store_some(log, bytes);

        bytes = str_from(bytes, done);
        if (done > 0)
            continue;
        if (log->older.base >= 0)
            drop_file(log, &log->older); /* the newer output is worth more; then try once more */
        else
            log->retry_ms = now_mono_ms + RUNLOG_RETRY_MS;
    }
    if (bytes.len == 0)
        return;
    end_file(log); /* what comes after the gap starts at another offset */
    log->total += (int64_t)bytes.len;
    log->dropped += (int64_t)bytes.len;
    assert(log->dropped <= log->total);
}

void runlog_last_line(struct str tail, char *line, size_t size)
{
    struct str last = STR(""), rest = tail;

    while (rest.len > 0) {
        struct str one = str_trim(str_cut(&rest, '\n'));

        if (one.len > 0)
            last = one;
    }
    while (last.len >= size)
        last.len--; /* this may cut a character: the caller cleans that up */
    memcpy(line, last.at, last.len);
    line[last.len] = 0;
}

void runlog_shrink(struct runlog *log)
{
    drop_file(log, &log->older);
}

void runlog_done(struct runlog *log)
{
    fd_close(log->fd);
    log->fd = -1;
}

void runlog_tail(const struct runlog *log, struct buf *out)
{
    bool cut = log->total > RUN_TAIL_BYTES;
    size_t len = cut ? RUN_TAIL_BYTES : (size_t)log->total, start = cut ? log->tail_at : 0;
    struct buf raw = {0}, clean = {0};
    struct str rest;
    size_t skip;
    const char *line;

    for (size_t i = 0; i < len; i++)
        buf_char(&raw, log->tail[(start + i) % RUN_TAIL_BYTES]);
    for (rest = buf_view(&raw); rest.len > 0;) {
        size_t one = str_utf8_len(rest), step = one == 0 ? 1 : one;

        if (one == 0 || rest.at[0] == '\0')
            buf_str(&clean, STR("\xEF\xBF\xBD")); /* U+FFFD: valid for any reader */
        else
            buf_add(&clean, rest.at, one);
        rest = str_from(rest, step);
    }
    skip = clean.len > RUN_TAIL_BYTES ? clean.len - RUN_TAIL_BYTES : 0;
    while (skip < clean.len && ((unsigned char)clean.at[skip] & 0xC0) == 0x80)
        skip++; /* not inside a character */
    line = cut || skip > 0 ? memchr(clean.at + skip, '\n', clean.len - skip) : NULL;
    if (line && (size_t)(line - clean.at) + 1 < clean.len)
        skip = (size_t)(line - clean.at) + 1; /* begin with a whole line unless it is the only */
    assert(clean.len - skip <= RUN_TAIL_BYTES);
    if (clean.len > skip)
        buf_add(out, clean.at + skip, clean.len - skip);
    buf_free(&raw);
    buf_free(&clean);
}

/* --- reading --- */

/* The existing files, lowest offset first. A fourth can only be one that is being removed. */
static size_t list_files(int dir_fd, int64_t bases[FILES_MAX])
{
    DIR *dir = dir_tree_list(dir_fd);
    size_t count = 0;

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct str name = str_of(entry->d_name);
        int64_t base;
        size_t at;

        if (!str_starts(name, STR(PREFIX)) || count == FILES_MAX)
            continue;
        name = str_from(name, sizeof PREFIX - 1);
        if (!str_int(name, &base) || base < 0)
            continue;
        for (at = count++; at > 0 && bases[at - 1] > base; at--)
            bases[at] = bases[at - 1];
        bases[at] = base;
    }
    if (dir)
        closedir(dir);
    return count;
}

struct reading {
    int64_t offset; /* next to read */
    int64_t first;  /* where the bytes read so far begin; -1 before the first */
    int64_t total;
    size_t left; /* bytes still to read */
};

/* Adds what this file has from reading->offset on. False: it was removed in the meantime. */
static bool read_file(int dir_fd, int64_t base, struct reading *reading, struct buf *out)
{
    char name[NAME_SIZE];
    struct stat info;
    int fd;

    file_name(base, name);
    fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ELOOP; /* a link is not ours: treated as missing */
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return true;
    }
    reading->total = base + info.st_size;
    if (reading->offset < base && reading->first < 0)
        reading->offset = base; /* older output is gone */
    while (reading->left > 0 && reading->offset >= base && reading->offset < reading->total) {
        int64_t there = reading->total - reading->offset;
        size_t want = there < (int64_t)reading->left ? (size_t)there : reading->left;
        ssize_t got;

        buf_reserve(out, want);
        got = pread(fd, out->at + out->len, want, reading->offset - base);
        if (got <= 0)
            break;
        if (reading->first < 0)
            reading->first = reading->offset;
        out->len += (size_t)got;
        reading->offset += got;
        reading->left -= (size_t)got;
    }
    close(fd);
    return true;
}

enum err runlog_read(int dir_fd, int64_t offset, size_t max, struct buf *out, int64_t *ret_offset,
                     int64_t *ret_total)
{
    int64_t bases[FILES_MAX];
    size_t had = out->len, count, i;

    assert(offset >= 0);
    for (int tries = 0; tries < READ_TRIES; tries++) { /* files change while the run writes */
        struct reading reading = {.offset = offset, .first = -1, .left = max};

        out->len = had;
        count = list_files(dir_fd, bases);
        for (i = 0; i < count; i++)
            if (!read_file(dir_fd, bases[i], &reading, out))
                break;
        if (i < count)
            continue;
        /* Nothing was read: continue at the end, or at the requested offset if that is beyond the
         * end. */
        *ret_offset = reading.first >= 0 ? reading.first : reading.offset;
        *ret_total = reading.total;
        assert(out->len - had <= max);
        return ERR_OK;
    }
    out->len = had;
    return ERR_BUSY;
}
