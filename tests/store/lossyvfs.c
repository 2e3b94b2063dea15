/* Pending writes are listed by file name, because two connections have the same file open. A
 * write to SQLite's files may be torn at any byte. Of a write to the journal any sectors may be
 * missing, but each sector is written whole or not at all: disks promise that, and the journal
 * relies on it. */
#include "lossyvfs.h"
#include "wrapvfs.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILES = 4, SECTOR = 512 };

struct write {
    struct write *next;
    sqlite3_int64 at;
    int len;
    char bytes[];
};

struct shared { /* what all connections to the file see */
    char name[256];
    struct write *oldest;
    struct write **end;
    struct file *file; /* one connection to it; NULL: that one was closed */
    bool in_sectors;
};

struct file {
    struct wrapped wrapped;
    struct shared *shared;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared files[FILES];
static struct rnd rnd;
static int calls_left = -1; /* negative: not armed */

static int write_some_sectors(struct file *file, const struct write *write)
{
    uint32_t kept_of = 1 + rnd_below(&rnd, 8); /* from nearly none to nearly all sectors */
    int code = SQLITE_OK;

    for (int at = 0; at < write->len && code == SQLITE_OK; at += SECTOR)
        if (rnd_below(&rnd, 9) < kept_of)
            code = file->wrapped.real->pMethods->xWrite(file->wrapped.real, write->bytes + at,
                                                        SECTOR, write->at + at);
    return code;
}

static int flush(struct file *file, bool in_part)
{
    struct shared *shared = file->shared;
    int code = SQLITE_OK;

    for (struct write *next, *write = shared->oldest; write; write = next) {
        int len = write->len;

        next = write->next;
        if (in_part && shared->in_sectors && rnd_below(&rnd, 3)) {
            if (code == SQLITE_OK)
                code = write_some_sectors(file, write);
            free(write);
            continue;
        }
        if (in_part && !shared->in_sectors && rnd_below(&rnd, 3) == 0)
            len = (int)rnd_below(&rnd, (uint32_t)len + 1); /* torn */
        if ((!in_part || rnd_below(&rnd, 2)) && len && code == SQLITE_OK)
            code = file->wrapped.real->pMethods->xWrite(file->wrapped.real, write->bytes, len,
                                                        write->at);
        free(write);
    }
    shared->oldest = NULL;
    shared->end = &shared->oldest;
    return code;
}

/* Under the lock. Simulates the power cut: of every file's pending writes some reach the disk, the
 * others never do. */
static void maybe_die(void)
{
    if (calls_left < 0 || calls_left-- > 0)
        return;
    for (int i = 0; i < FILES; i++)
        if (files[i].file)
            flush(files[i].file, true);
    _exit(LOSSY_DIED);
}

static int lossy_close(sqlite3_file *base)
{
    struct file *file = (struct file *)base;
    int code;

    pthread_mutex_lock(&lock);
    if (file->shared)
        flush(file, false);
    if (file->shared && file->shared->file == file)
        file->shared->file = NULL;
    code = file->wrapped.real->pMethods->xClose(file->wrapped.real);
    pthread_mutex_unlock(&lock);
    return code;
}

static int lossy_size(sqlite3_file *base, sqlite3_int64 *ret_size)
{
    struct file *file = (struct file *)base;
    int code = file->wrapped.real->pMethods->xFileSize(file->wrapped.real, ret_size);

    pthread_mutex_lock(&lock);
    for (struct write *write = file->shared ? file->shared->oldest : NULL; write;
         write = write->next)
        if (write->at + write->len > *ret_size)
            *ret_size = write->at + write->len;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Reads the file with the pending writes over it, oldest first. */
static int lossy_read(sqlite3_file *base, void *to, int len, sqlite3_int64 at)
{
    struct file *file = (struct file *)base;
    int code = file->wrapped.real->pMethods->xRead(file->wrapped.real, to, len, at);
    sqlite3_int64 size;

    if (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ)
        return code;
    pthread_mutex_lock(&lock);
    for (struct write *write = file->shared ? file->shared->oldest : NULL; write;
         write = write->next) {
        sqlite3_int64 from = write->at > at ? write->at : at;
        sqlite3_int64 end = write->at + write->len < at + len ? write->at + write->len : at + len;

        if (from < end)
            memcpy((char *)to + (from - at), write->bytes + (from - write->at),
                   (size_t)(end - from));
    }
    pthread_mutex_unlock(&lock);
    lossy_size(base, &size);
    return size >= at + len ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int lossy_write(sqlite3_file *base, const void *from, int len, sqlite3_int64 at)
{
    struct file *file = (struct file *)base;
    struct write *write;

    if (!file->shared)
        return file->wrapped.real->pMethods->xWrite(file->wrapped.real, from, len, at);
    write = mem_alloc(sizeof *write + (size_t)len);
    *write = (struct write){.at = at, .len = len};
    memcpy(write->bytes, from, (size_t)len);
    pthread_mutex_lock(&lock);
    *file->shared->end = write;
    file->shared->end = &write->next;
    maybe_die();
    pthread_mutex_unlock(&lock);
    return SQLITE_OK;
}

static int lossy_sync(sqlite3_file *base, int flags)
{
    struct file *file = (struct file *)base;
    int code = SQLITE_OK;

    pthread_mutex_lock(&lock);
    if (file->shared) {
        maybe_die();
        code = flush(file, false);
    }
    pthread_mutex_unlock(&lock);
    return code == SQLITE_OK ? file->wrapped.real->pMethods->xSync(file->wrapped.real, flags)
                             : code;
}

static int lossy_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct file *file = (struct file *)base;
    int code;

    pthread_mutex_lock(&lock);
    if (file->shared) {
        maybe_die();
        flush(file, false);
    }
    code = file->wrapped.real->pMethods->xTruncate(file->wrapped.real, size);
    pthread_mutex_unlock(&lock);
    return code;
}

static struct shared *shared_of(const char *name)
{
    for (int i = 0; i < FILES; i++) {
        if (files[i].name[0] == '\0') {
            strncpy(files[i].name, name, sizeof files[i].name - 1);
            files[i].end = &files[i].oldest;
            files[i].in_sectors = strstr(name, "journal.log") != NULL;
        }
        if (strcmp(files[i].name, name) == 0)
            return &files[i];
    }
    abort();
}

static int lossy_open(sqlite3_vfs *real, const char *name, sqlite3_file *base, int flags,
                      int *ret_flags)
{
    struct file *file = (struct file *)base;
    int code = real->xOpen(real, name, file->wrapped.real, flags, ret_flags);

    pthread_mutex_lock(&lock);
    if (code == SQLITE_OK && flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL))
        (file->shared = shared_of(name))->file = file;
    pthread_mutex_unlock(&lock);
    return code;
}

void lossyvfs_install(uint64_t seed)
{
    rnd_seed(&rnd, seed);
    wrapvfs_install("lossy",
                    &(sqlite3_io_methods){.xClose = lossy_close,
                                          .xRead = lossy_read,
                                          .xWrite = lossy_write,
                                          .xTruncate = lossy_truncate,
                                          .xSync = lossy_sync,
                                          .xFileSize = lossy_size},
                    sizeof(struct file), lossy_open);
}

void lossyvfs_arm(int calls)
{
    pthread_mutex_lock(&lock);
    calls_left = calls;
    pthread_mutex_unlock(&lock);
}
