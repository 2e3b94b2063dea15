/* Wraps the methods of every file; see faultvfs.h. */
#include "faultvfs.h"
#include "wrapvfs.h"

#include <stdatomic.h>
#include <string.h>

struct file {
    struct wrapped wrapped;
    int is_wal;
    const char *name;
};

static _Atomic int failing[FAULT_KINDS]; /* calls still to fail; negative: all */
static _Atomic int good_first[FAULT_KINDS];
static _Atomic int hits;
static _Atomic int syncs;
static _Atomic(const char *) only = "";

static int is_meant(const char *name)
{
    return strstr(name ? name : "", atomic_load(&only)) != NULL;
}

/* Takes one off a count that two threads share; false if none is left. */
static int take_one(_Atomic int *count)
{
    int left = atomic_load(count);

    while (left > 0 && !atomic_compare_exchange_weak(count, &left, left - 1))
        ;
    return left != 0;
}

static int fails(enum faultvfs_kind kind, const char *name)
{
    if (atomic_load(&failing[kind]) == 0 || !is_meant(name) || take_one(&good_first[kind]) ||
        !take_one(&failing[kind]))
        return 0;
    atomic_fetch_add(&hits, 1);
    return 1;
}

static int vfs_write(sqlite3_file *file, const void *from, int len, sqlite3_int64 at)
{
    const struct file *ours = (struct file *)file;

    if (fails(FAULT_WRITE, ours->name) || (!ours->is_wal && fails(FAULT_COPY, ours->name)))
        return SQLITE_IOERR_WRITE;
    if (fails(FAULT_FULL, ours->name))
        return SQLITE_FULL;
    return wrapvfs_real(file)->pMethods->xWrite(wrapvfs_real(file), from, len, at);
}

static int vfs_sync(sqlite3_file *file, int flags)
{
    const struct file *ours = (struct file *)file;

    atomic_fetch_add(&syncs, ours->is_wal && is_meant(ours->name));
    if (fails(FAULT_SYNC, ((struct file *)file)->name))
        return SQLITE_IOERR_FSYNC;
    return wrapvfs_real(file)->pMethods->xSync(wrapvfs_real(file), flags);
}

static int vfs_open(sqlite3_vfs *real, const char *name, sqlite3_file *file, int flags,
                    int *ret_flags)
{
    struct file *ours = (struct file *)file;

    ours->name = name; /* SQLite keeps the name until the file is closed */
    ours->is_wal = (flags & SQLITE_OPEN_WAL) != 0;
    if (fails(FAULT_OPEN, name))
        return SQLITE_CANTOPEN;
    return real->xOpen(real, name, wrapvfs_real(file), flags, ret_flags);
}

void faultvfs_install(void)
{
    wrapvfs_install("fault", &(sqlite3_io_methods){.xWrite = vfs_write, .xSync = vfs_sync},
                    sizeof(struct file), vfs_open);
}

void faultvfs_set(enum faultvfs_kind kind, int times)
{
    atomic_store(&good_first[kind], 0);
    atomic_store(&failing[kind], times);
}

void faultvfs_after(enum faultvfs_kind kind, int good)
{
    atomic_store(&good_first[kind], good);
    atomic_store(&failing[kind], 1);
}

void faultvfs_clear(void)
{
    for (int i = 0; i < FAULT_KINDS; i++)
        faultvfs_set((enum faultvfs_kind)i, 0);
    atomic_store(&hits, 0);
}

void faultvfs_only(const char *part)
{
    atomic_store(&only, part);
}

int faultvfs_hits(void)
{
    return atomic_load(&hits);
}

int faultvfs_syncs(void)
{
    return atomic_load(&syncs);
}
