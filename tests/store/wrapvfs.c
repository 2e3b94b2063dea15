/* The methods that only pass a call on. */
#include "wrapvfs.h"

#include <assert.h>
#include <string.h>

static sqlite3_vfs *real_vfs;
static sqlite3_vfs vfs;
static sqlite3_io_methods methods;
static size_t file_size;
static wrapvfs_opener *open_file;

sqlite3_file *wrapvfs_real(sqlite3_file *file)
{
    return ((struct wrapped *)file)->real;
}

#define PASS(file, call, ...) wrapvfs_real(file)->pMethods->call(wrapvfs_real(file), ##__VA_ARGS__)

static int pass_close(sqlite3_file *file)
{
    return PASS(file, xClose);
}

static int pass_read(sqlite3_file *file, void *to, int len, sqlite3_int64 at)
{
    return PASS(file, xRead, to, len, at);
}

static int pass_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    return PASS(file, xTruncate, size);
}

static int pass_size(sqlite3_file *file, sqlite3_int64 *size)
{
    return PASS(file, xFileSize, size);
}

static int pass_lock(sqlite3_file *file, int level)
{
    return PASS(file, xLock, level);
}

static int pass_unlock(sqlite3_file *file, int level)
{
    return PASS(file, xUnlock, level);
}

static int pass_check_lock(sqlite3_file *file, int *reserved)
{
    return PASS(file, xCheckReservedLock, reserved);
}

static int pass_control(sqlite3_file *file, int op, void *arg)
{
    return PASS(file, xFileControl, op, arg);
}

static int pass_sector(sqlite3_file *file)
{
    return PASS(file, xSectorSize);
}

static int pass_device(sqlite3_file *file)
{
    return PASS(file, xDeviceCharacteristics);
}

static int pass_shm_map(sqlite3_file *file, int page, int size, int extend, void volatile **ret)
{
    return PASS(file, xShmMap, page, size, extend, ret);
}

static int pass_shm_lock(sqlite3_file *file, int at, int count, int flags)
{
    return PASS(file, xShmLock, at, count, flags);
}

static void pass_shm_barrier(sqlite3_file *file)
{
    PASS(file, xShmBarrier);
}

static int pass_shm_unmap(sqlite3_file *file, int del)
{
    return PASS(file, xShmUnmap, del);
}

static int vfs_open(sqlite3_vfs *self, const char *name, sqlite3_file *file, int flags,
                    int *ret_flags)
{
    struct wrapped *ours = (struct wrapped *)file;
    int code;

    memset(ours, 0, file_size);
    ours->real = (sqlite3_file *)((char *)ours + file_size);
    code = open_file(real_vfs, name, file, flags, ret_flags);
    if (ours->real->pMethods)
        ours->base.pMethods = &methods;
    return code;
}

void wrapvfs_install(const char *name, const sqlite3_io_methods *ours, size_t size,
                     wrapvfs_opener *open)
{
    real_vfs = sqlite3_vfs_find(NULL);
    assert(real_vfs);
    file_size = size;
    open_file = open;
    methods = (sqlite3_io_methods){
        .iVersion = 2, /* no mmap, so every byte passes here */
        .xClose = ours->xClose ? ours->xClose : pass_close,
        .xRead = ours->xRead ? ours->xRead : pass_read,
        .xWrite = ours->xWrite,
        .xTruncate = ours->xTruncate ? ours->xTruncate : pass_truncate,
        .xSync = ours->xSync,
        .xFileSize = ours->xFileSize ? ours->xFileSize : pass_size,
        .xLock = pass_lock,
        .xUnlock = pass_unlock,
        .xCheckReservedLock = pass_check_lock,
        .xFileControl = pass_control,
        .xSectorSize = pass_sector,
        .xDeviceCharacteristics = pass_device,
        .xShmMap = pass_shm_map,
        .xShmLock = pass_shm_lock,
        .xShmBarrier = pass_shm_barrier,
        .xShmUnmap = pass_shm_unmap,
    };
    assert(methods.xWrite && methods.xSync);
    vfs = *real_vfs;
    vfs.pNext = NULL;
    vfs.zName = name;
    vfs.szOsFile = (int)size + real_vfs->szOsFile;
    vfs.xOpen = vfs_open;
    sqlite3_vfs_register(&vfs, 1);
}
