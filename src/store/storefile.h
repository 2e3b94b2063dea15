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

/* A connection to store.db for one thread. The writer's makes or migrates the tables. It also marks
 * the file as having a journal, so that a release without journal support refuses it. */
bool storefile_connect_writer(const struct storefile *file, sqlite3 **ret_db, struct fault *fault);
bool storefile_connect_reader(const char *path, sqlite3 **ret_db, struct fault *fault);
/* Copies the whole WAL into the main file, so that what is read afterwards is synced, whatever an
 * earlier fsync may have lost. Call before the first write of a connection. */
bool storefile_empty_wal(sqlite3 *db, struct fault *fault);
/* Marks store.db as complete, so that the previous release can use it again. */
bool storefile_mark_whole(sqlite3 *db, struct fault *fault);
/* The previous release kept its journal in a database: a connection to read it, and its removal
 * when ours has everything. */
bool storefile_has_old_journal(const struct storefile *file);
bool storefile_connect_old_journal(const struct storefile *file, sqlite3 **ret_db,
                                   struct fault *fault);
bool storefile_drop_old_journal(const struct storefile *file, struct fault *fault);
bool storefile_exec(sqlite3 *db, const char *sql, struct fault *fault);
bool storefile_prepare(sqlite3 *db, const char *const *texts, int count, sqlite3_stmt **ret_sql,
                       struct fault *fault);
/* Sets the fault from SQLite's last error; without an open connection, from `code`. Always returns
 * false. */
bool storefile_fault(struct fault *fault, const char *what, sqlite3 *db, int code);
/* True: a row was found; the caller reads it and resets the statement. The first failure is kept,
 * as it says most. */
bool storefile_row(sqlite3_stmt *stmt, const char *what, struct fault *fault);
void storefile_run(sqlite3_stmt *stmt, const char *what, struct fault *fault);
void storefile_finalize(sqlite3_stmt **sql, int count);
/* Closes without a checkpoint after a fault, so that nothing doubtful is copied. NULL is fine. */
void storefile_disconnect(sqlite3 *db, bool after_fault);

#endif
