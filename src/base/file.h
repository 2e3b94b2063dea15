/* Small whole files: read up to a size limit, and replaced so that a crash leaves the old file or
 * the new one. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/err.h"
#include "base/mem.h"

/* Into the arena. ERR_NOT_FOUND: no such file; ERR_TOO_LARGE: more than `max` bytes; ERR_IO. */
enum err file_read(const char *path, size_t max, struct arena *arena, struct str *ret_text,
                   struct problem *why);
/* Durable on return, and readable only by the owner. ERR_IO: the old file is still in place. */
enum err file_replace(const char *path, struct str text, struct problem *why);

/* May everybody on this machine read it? For files that hold secrets. */
bool file_is_public(const char *path);

/* Changes when the file is changed or replaced. Zeroed: there is no file. */
struct file_stamp {
    uint64_t device, inode, size;
    int64_t changed_ns;
};

struct file_stamp file_stamp(const char *path);
bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b);

#endif
