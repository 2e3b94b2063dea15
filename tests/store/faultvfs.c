/* Wraps the methods of every file: see faultvfs.h. */
#include "faultvfs.h"

#include <assert.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <string.h>

struct file {
    sqlite3_file base;
    int is_wal;
    const char *name;
    sqlite3_file *real; /* behind this struct */
};

static sqlite3_vfs *real_vfs;
static sqlite3_vfs vfs;
static sqlite3_io_methods methods;
static _Atomic int failing[FAULT_KINDS]; /* calls to fail; negative: all */
static _Atomic int good_first[FAULT_KINDS];
static _Atomic int hits;
static _Atomic int syncs;
static _Atomic(const char *) only = "";

static int is_meant(const char *name)
{
    return strstr(name ? name : "", atomic_load(&only)) != NULL;
}

/* One of those that are left, which of two threads only one gets. */
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

static sqlite3_file *real_of(sqlite3_file *file)
{
    return ((struct file *)file)->real;
}

static int vfs_close(sqlite3_file *file)
{
    return real_of(file)->pMethods->xClose(real_of(file));
}

static int vfs_read(sqlite3_file *file, void *to, int len, sqlite3_int64 at)
{
    return real_of(file)->pMethods->xRead(real_of(file), to, len, at);
}

static int vfs_write(sqlite3_file *file, const void *from, int len, sqlite3_int64 at)
{
    const struct file *ours = (struct file *)file;

    if (fails(FAULT_WRITE, ours->name) || (!ours->is_wal && fails(FAULT_COPY, ours->name)))
        return SQLITE_IOERR_WRITE;
    if (fails(FAULT_FULL, ours->name))
        return SQLITE_FULL;
    return real_of(file)->pMethods->xWrite(real_of(file), from, len, at);
}

static int vfs_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    return real_of(file)->pMethods->xTruncate(real_of(file), size);
}

static int vfs_sync(sqlite3_file *file, int flags)
{
    const struct file *ours = (struct file *)file;

    atomic_fetch_add(&syncs, ours->is_wal && is_meant(ours->name));
    if (fails(FAULT_SYNC, ((struct file *)file)->name))
        return SQLITE_IOERR_FSYNC;
    return real_of(file)->pMethods->xSync(real_of(file), flags);
}

static int vfs_size(sqlite3_file *file, sqlite3_int64 *size)
{
    return real_of(file)->pMethods->xFileSize(real_of(file), size);
}

static int vfs_lock(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xLock(real_of(file), level);
}

static int vfs_unlock(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xUnlock(real_of(file), level);
}

static int vfs_check_lock(sqlite3_file *file, int *reserved)
{
    return real_of(file)->pMethods->xCheckReservedLock(real_of(file), reserved);
}

static int vfs_control(sqlite3_file *file, int op, void *arg)
{
    return real_of(file)->pMethods->xFileControl(real_of(file), op, arg);
}

static int vfs_sector(sqlite3_file *file)
{
    return real_of(file)->pMethods->xSectorSize(real_of(file));
}

static int vfs_device(sqlite3_file *file)
{
    return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}

static int vfs_shm_map(sqlite3_file *file, int page, int size, int extend, void volatile **ret)
{
    return real_of(file)->pMethods->xShmMap(real_of(file), page, size, extend, ret);
}

static int vfs_shm_lock(sqlite3_file *file, int at, int count, int flags)
{
    return real_of(file)->pMethods->xShmLock(real_of(file), at, count, flags);
}

static void vfs_shm_barrier(sqlite3_file *file)
{
    real_of(file)->pMethods->xShmBarrier(real_of(file));
}

static int vfs_shm_unmap(sqlite3_file *file, int del)
{
    return real_of(file)->pMethods->xShmUnmap(real_of(file), del);
}

static int vfs_open(sqlite3_vfs *self, const char *name, sqlite3_file *file, int flags,
                    int *ret_flags)
{
    struct file *ours = (struct file *)file;
    int code;

    memset(ours, 0, sizeof *ours);
    ours->real = (sqlite3_file *)(ours + 1);
    ours->name = name; /* SQLite keeps it as long as the file is open */
    ours->is_wal = (flags & SQLITE_OPEN_WAL) != 0;
    if (fails(FAULT_OPEN, name))
        return SQLITE_CANTOPEN;
    code = real_vfs->xOpen(real_vfs, name, ours->real, flags, ret_flags);
    if (ours->real->pMethods)
        ours->base.pMethods = &methods;
    return code;
}

void faultvfs_install(void)
{
    real_vfs = sqlite3_vfs_find(NULL);
    assert(real_vfs);
    methods = (sqlite3_io_methods){
        .iVersion = 2, /* without mmap: every byte passes here */
        .xClose = vfs_close,
        .xRead = vfs_read,
        .xWrite = vfs_write,
        .xTruncate = vfs_truncate,
        .xSync = vfs_sync,
        .xFileSize = vfs_size,
        .xLock = vfs_lock,
        .xUnlock = vfs_unlock,
        .xCheckReservedLock = vfs_check_lock,
        .xFileControl = vfs_control,
        .xSectorSize = vfs_sector,
        .xDeviceCharacteristics = vfs_device,
        .xShmMap = vfs_shm_map,
        .xShmLock = vfs_shm_lock,
        .xShmBarrier = vfs_shm_barrier,
        .xShmUnmap = vfs_shm_unmap,
    };
    vfs = *real_vfs;
    vfs.pNext = NULL;
    vfs.zName = "fault";
    vfs.szOsFile = (int)sizeof(struct file) + real_vfs->szOsFile;
    vfs.xOpen = vfs_open;
    sqlite3_vfs_register(&vfs, 1);
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
