/* An SQLite VFS for a process that is going to die: what was written but not synced is kept apart
 * and reaches the file only in part, in any order, as after a power cut. One per process, and only
 * in a child that never returns. */
#ifndef TESTS_STORE_LOSSYVFS_H
#define TESTS_STORE_LOSSYVFS_H

#include <stdint.h>

/* Dies (exit code LOSSY_DIED) at the `calls`-th write, sync or truncation after lossyvfs_arm(). */
enum { LOSSY_DIED = 77 };
void lossyvfs_install(uint64_t seed);
void lossyvfs_arm(int calls);

#endif
