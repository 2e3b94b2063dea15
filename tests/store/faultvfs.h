/* An SQLite VFS that fails on request. It wraps the real one and becomes the default, so the store
 * is unaware of it. */
#ifndef TESTS_STORE_FAULTVFS_H
#define TESTS_STORE_FAULTVFS_H

enum faultvfs_kind {
    FAULT_WRITE, /* EIO on any write */
    FAULT_FULL,  /* the disk is full */
    FAULT_SYNC,  /* fsync fails; the data may or may not be written */
    FAULT_OPEN,  /* files cannot be opened */
    FAULT_COPY,  /* EIO on a write to the main file, so the WAL cannot be copied into it */
    FAULT_KINDS
};

void faultvfs_install(void);
/* Makes the next `times` calls of this kind fail; -1: all until the next faultvfs_set(). */
void faultvfs_set(enum faultvfs_kind kind, int times);
/* Lets the next `good` calls of this kind succeed, then makes one fail. */
void faultvfs_after(enum faultvfs_kind kind, int good);
void faultvfs_clear(void); /* nothing fails any more; faultvfs_only() stays in force */
/* Only files whose name contains `part` fail; "" is all. */
void faultvfs_only(const char *part);
int faultvfs_hits(void);  /* failures since the last clear */
int faultvfs_syncs(void); /* syncs of those files' WAL since the start, failed or not */

#endif
