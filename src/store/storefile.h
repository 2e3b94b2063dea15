/* The files store.db and journal.log: their directory and its lock, connections to them, and the
 * versions of their tables. */
#ifndef STORE_STOREFILE_H
#define STORE_STOREFILE_H

#include "base/err.h"
#include "store/fault.h"

#include <sqlite3.h>
#include <stdbool.h>

struct storefile {
    char *path;        /* DIR/store.db */
    char *journal;     /* DIR/journal.log, see logfile.h */
    char *old_journal; /* DIR/journal.db, of the release before */
    int lock;          /* DIR/lock, flock'ed as long as the process runs */
};

/* Makes the directory if needed (0700) and locks it: a second server gets an error that names our
 * pid. */
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
/* A journal of the release before, which had a database for it: a connection that reads it, and how
 * it goes when all of it is in ours. */
bool storefile_has_old_journal(const struct storefile *file);
bool storefile_connect_old_journal(const struct storefile *file, sqlite3 **ret_db,
                                   struct fault *fault);
bool storefile_drop_old_journal(const struct storefile *file, struct fault *fault);
bool storefile_exec(sqlite3 *db, const char *sql, struct fault *fault);
bool storefile_prepare(sqlite3 *db, const char *const *texts, int count, sqlite3_stmt **ret_sql,
                       struct fault *fault);
/* Closes without a checkpoint after a fault, so that nothing unsure is copied. NULL is fine. */
void storefile_disconnect(sqlite3 *db, bool after_fault);

#endif
