/* An SQLite VFS for a process that will die: writes that are not synced are kept in memory, and
 * only some of them reach the file, in any order, as in a power cut. For one child process that
 * never returns. */
#ifndef TESTS_STORE_LOSSYVFS_H
#define TESTS_STORE_LOSSYVFS_H

#include <stdint.h>

/* The process exits with LOSSY_DIED at the `calls`-th write, sync or truncation after
 * lossyvfs_arm(). */
enum { LOSSY_DIED = 77 };
void lossyvfs_install(uint64_t seed);
void lossyvfs_arm(int calls);

#endif
