/* The file journal.log: records of bytes under numbers that follow on each other, each on disk
 * before the next one is written. Its blocks are used again and again: once store.db has a record,
 * its place is free, so a commit is one write into blocks that the file already has, and one sync.
 *
 * A disk writes a sector whole or not at all. Each of ours says which record it belongs to, how
 * many of it follow, and a sum; so what a power cut left of the last record (some of its sectors,
 * others as they were before) and what was changed since it was written can be told apart: the
 * former was never answered and is passed over, the latter is named, and nothing starts.
 *
 * It is read and written through SQLite's VFS, as store.db is. One opening is one thread's. */
#ifndef STORE_LOGFILE_H
#define STORE_LOGFILE_H

#include <sqlite3.h>

#include "base/mem.h"
#include "base/str.h"
#include "store/fault.h"

enum {
    LOG_SECTOR = 512,
    LOG_PAGE = 4096,      /* a record takes whole pages: none must be read to be written */
    LOG_REGION = 1 << 20, /* what becomes free together; the first record of one is at its start */
    LOG_HEADER = 24,
    LOG_ROOM = LOG_SECTOR - LOG_HEADER,
};

struct logfile {
    sqlite3_file *file; /* NULL: not open */
    struct fault fault; /* the last failure */
    /* Reading: where the next record is expected, and what was last read. */
    int64_t at;
    struct buf window;
    int64_t window_at;
    /* Writing. */
    uint32_t run;    /* of this opening: sectors of two never make one record */
    struct buf out;  /* a record as sectors */
    int64_t end;     /* of the last record; the end of a region: the next one begins another */
    uint64_t *lasts; /* of each region: the number of the last record in it; 0: none */
    int64_t regions;
    int64_t last_at; /* of the last record that logfile_end() found; negative: none */
    int64_t last_size;
    uint64_t refused; /* the record to refuse; 0: none */
    int64_t refused_at;
};

bool logfile_open(struct logfile *log, const char *path, bool create);
void logfile_close(struct logfile *log);

/* Finds out which record is the last one. There must be all behind `after`; those behind `upto`
 * are not taken, whatever the file has. Before the first write. */
bool logfile_end(struct logfile *log, uint64_t after, uint64_t upto, uint64_t *ret_last);
/* What was read is on disk, and what was not to be taken is gone. */
bool logfile_settle(struct logfile *log);
/* Record `number`, which must be there; `*ret_size` is what it takes in the file. */
bool logfile_read(struct logfile *log, uint64_t number, struct arena *arena, struct str *ret_bytes,
                  int64_t *ret_size);
/* Writes and syncs record `number`; nobody needs those up to `done` any more. *ret_written: it may
 * be found there, whatever became of the sync. */
bool logfile_append(struct logfile *log, uint64_t number, uint64_t done, struct str bytes,
                    int64_t *ret_size, bool *ret_written);
/* Writes and syncs something that says nothing, in so many bytes. */
bool logfile_probe(struct logfile *log, uint64_t done, int64_t size);
/* Nobody needs any of it. */
bool logfile_empty(struct logfile *log);

#endif
