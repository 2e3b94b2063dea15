/* The reading side: verbs that need no memory of ours and change nothing. It has a connection of
 * its own and runs on the helper thread; everything that was ever answered is committed, so it sees
 * it. */
#ifndef STORE_READER_H
#define STORE_READER_H

#include "store/fault.h"
#include "store/store.h"
#include "store/storefile.h"

#include <sqlite3.h>

enum reader_sql { READ_JOB, READ_JOBS, READ_FLOOR, READ_CALLBACKS, READ_SESSION, READER_SQL_COUNT };

enum {
    READER_SCAN_MAX = 20000, /* rows one JOB_LIST looks at; the next page goes on from there */
};

struct reader {
    const struct storefile *file;
    sqlite3 *db; /* opened when it is needed, closed after a failure */
    sqlite3_stmt *sql[READER_SQL_COUNT];
    struct fault fault; /* the last failure */
};

bool reader_answers(enum store_verb verb); /* else it is for the ledger */
void reader_init(struct reader *reader, const struct storefile *file);
void reader_close(struct reader *reader, bool after_fault);
void reader_run(struct reader *reader, struct store_op *op);
/* Copies as much of the WAL as nobody needs any more; how many pages it has and how many of them
 * were copied. */
bool reader_checkpoint(struct reader *reader, int *ret_pages, int *ret_copied);

#endif
