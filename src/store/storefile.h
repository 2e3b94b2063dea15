/* The files store.db and journal.db: their directory and its lock, connections to them, and the
 * versions of their tables. */
#ifndef STORE_STOREFILE_H
#define STORE_STOREFILE_H

#include "base/err.h"
#include "store/fault.h"

#include <sqlite3.h>
#include <stdbool.h>

struct storefile {
    char *path;    /* DIR/store.db */
    char *journal; /* DIR/journal.db */
    int lock;      /* DIR/lock, flock'ed while we live */
    sqlite3 *anchor;
};

/* Makes the directory if needed (0700) and locks it: a second server on it is refused with our pid.
 */
enum err storefile_claim(struct storefile *file, const char *data_dir, struct problem *why);
void storefile_release(struct storefile *file);

/* A connection to store.db for one thread. The writer's makes or migrates the tables. From then on
 * the file says that a journal belongs to it, and a release that knows of none refuses it. */
bool storefile_connect_writer(const struct storefile *file, sqlite3 **ret_db, struct fault *fault);
bool storefile_connect_reader(const struct storefile *file, sqlite3 **ret_db, struct fault *fault);
/* All of the WAL goes into the main file: what is then read is synced, whatever an earlier fsync
 * may have lost. Before the first write of a connection. */
bool storefile_empty_wal(sqlite3 *db, struct fault *fault);
/* Everything is in store.db: the release before may use it again. */
bool storefile_mark_whole(sqlite3 *db, struct fault *fault);
/* The same for journal.db. */
bool storefile_connect_journal(const struct storefile *file, sqlite3 **ret_db, struct fault *fault);
bool storefile_connect_journal_reader(const struct storefile *file, sqlite3 **ret_db,
                                      struct fault *fault);
/* A connection that does nothing but hold the index of the journal's WAL while the others are
 * closed after a failure. Without it SQLite would read the WAL anew, and a transaction whose fsync
 * failed, and which was refused for that, would be there after all. Made anew with every good
 * start. */
bool storefile_anchor(struct storefile *file, struct fault *fault);
void storefile_lift_anchor(struct storefile *file); /* the file itself is in doubt */
bool storefile_exec(sqlite3 *db, const char *sql, struct fault *fault);
bool storefile_prepare(sqlite3 *db, const char *const *texts, int count, sqlite3_stmt **ret_sql,
                       struct fault *fault);
/* Closes without a checkpoint after a fault, so that nothing unsure is copied. NULL is fine. */
void storefile_disconnect(sqlite3 *db, bool after_fault);

#endif
