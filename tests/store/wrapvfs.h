/* An SQLite VFS in front of the real one, installed as the default. Its user supplies the calls
 * that are not just passed on. */
#ifndef TESTS_STORE_WRAPVFS_H
#define TESTS_STORE_WRAPVFS_H

#include <stddef.h>

#include <sqlite3.h>

struct wrapped { /* the first member of a wrapped file */
    sqlite3_file base;
    sqlite3_file *real; /* follows the struct that this one begins */
};

typedef int wrapvfs_opener(sqlite3_vfs *real, const char *name, sqlite3_file *file, int flags,
                           int *ret_flags);

/* Methods that are NULL in `ours` are passed on. `open` opens a file of `size` bytes, all zero
 * except `real`. */
void wrapvfs_install(const char *name, const sqlite3_io_methods *ours, size_t size,
                     wrapvfs_opener *open);
sqlite3_file *wrapvfs_real(sqlite3_file *file);

#endif
