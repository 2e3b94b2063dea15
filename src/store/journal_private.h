/* What journal.c and journal_side.c share. */
#ifndef STORE_JOURNAL_PRIVATE_H
#define STORE_JOURNAL_PRIVATE_H

#include "store/journal.h"

/* The statement, or NULL after a failure. */
sqlite3_stmt *journal_read(struct journal *journal, enum journal_sql which);
sqlite3_stmt *journal_write(struct journal *journal, enum journal_sql which);
/* Steps to a row; false (and reset) at the end or after a failure. */
bool journal_row(struct journal *journal, sqlite3_stmt *stmt, const char *what);
void journal_run(struct journal *journal, sqlite3_stmt *stmt, const char *what);
void journal_fail(struct journal *journal, const char *what);
void journal_bind(sqlite3_stmt *stmt, int at, struct str text);

/* The meta row: loaded at the start, told of every new job, written when it is worth it. */
void journal_meta_load(struct journal *journal);
void journal_meta_added(struct journal *journal, uint64_t id);
void journal_meta_due(struct journal *journal);

#endif
