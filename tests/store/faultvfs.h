/* An SQLite VFS that fails when told to. It is in front of the real one and becomes the
 * default, so that the store knows nothing of it. */
#ifndef TESTS_STORE_FAULTVFS_H
#define TESTS_STORE_FAULTVFS_H

enum faultvfs_kind {
    FAULT_WRITE, /* EIO on any write */
    FAULT_FULL,  /* no room left */
    FAULT_SYNC,  /* fsync fails; what was written is there, or not */
    FAULT_OPEN,  /* files cannot be opened */
    FAULT_COPY,  /* EIO on a write to the main file: its WAL cannot be copied */
    FAULT_KINDS
};

void faultvfs_install(void);
/* The next `times` calls of the kind fail; -1: until told otherwise. */
void faultvfs_set(enum faultvfs_kind kind, int times);
/* So many calls of the kind go well first, then one fails. */
void faultvfs_after(enum faultvfs_kind kind, int good);
void faultvfs_clear(void); /* nothing fails; which files are meant stays */
/* Only files whose name has this in it; "" = all. */
void faultvfs_only(const char *part);
int faultvfs_hits(void);  /* failures dealt out since the last clear */
int faultvfs_syncs(void); /* syncs of those files' WAL since the start, good or bad */

#endif
