/* The file journal.log: records of bytes with consecutive numbers, each on disk before the next is
 * written. Its blocks are reused: once store.db has a record, its space is free, so a commit is one
 * write into already allocated blocks and one sync.
 *
 * A disk writes a sector completely or not at all. Each of our sectors holds its record's number,
 * how many sectors of the record follow, and a checksum. That distinguishes a last record torn by a
 * power cut (a mix of new and old sectors) from later damage: the torn record was never answered
 * and is skipped; damage is reported and the store does not start.
 *
 * It is read and written through SQLite's VFS, as store.db is. Each opening belongs to one
 * thread. */
#ifndef STORE_LOGFILE_H
#define STORE_LOGFILE_H

#include <sqlite3.h>

#include "base/mem.h"
#include "base/str.h"
#include "store/fault.h"

enum {
    LOG_SECTOR = 512,
    LOG_PAGE = 4096,            /* a record takes whole pages, so writing never needs to read one */
    LOG_REGION = 1 << 20,       /* unit of reuse; its first record is at its start */
    LOG_AHEAD = 2 * LOG_REGION, /* present from the start: enough for low rates */
    LOG_HEADER = 24,
    LOG_ROOM = LOG_SECTOR - LOG_HEADER,
};

struct logfile {
    sqlite3_file *file; /* NULL: not open */
    struct fault fault; /* the last failure */
    /* Reading: where the next record is expected, and the last data read. */
    int64_t at;
    struct buf window;
    int64_t window_at;
    /* Writing. */
    uint32_t run;   /* identifies this opening: sectors of two openings never form one record */
    struct buf out; /* a record encoded as sectors */
    int64_t end; /* of the last record; at the end of a region the next record begins another one */
    uint64_t *lasts; /* number of the last record in each region; 0: none */
    int64_t regions;
    int64_t last_at; /* of the last record that logfile_end() found; negative: none */
    int64_t last_size;
    uint64_t refused; /* the record to refuse; 0: none */
    int64_t refused_at;
};

bool logfile_open(struct logfile *log, const char *path, bool create);
void logfile_close(struct logfile *log);

/* Finds the last record. All records after `after` must exist; those after `upto` are ignored,
 * whatever the file has. Call before the first write. */
bool logfile_end(struct logfile *log, uint64_t after, uint64_t upto, uint64_t *ret_last);
/* Makes sure that what was read is on disk and that the ignored records are gone. Allocates the
 * first blocks, if it can. */
bool logfile_settle(struct logfile *log);
/* Reads record `number`, which must exist; `*ret_size` is its size in the file. */
bool logfile_read(struct logfile *log, uint64_t number, struct arena *arena, struct str *ret_bytes,
                  int64_t *ret_size);
/* Writes and syncs record `number`; records up to `done` are no longer needed. *ret_written: it may
 * be in the file, even if the sync failed. */
bool logfile_append(struct logfile *log, uint64_t number, uint64_t done, struct str bytes,
                    int64_t *ret_size, bool *ret_written);
/* Writes and syncs a meaningless record of `size` bytes. */
bool logfile_probe(struct logfile *log, uint64_t done, int64_t size);
/* Empties the file: no record is needed any more. */
bool logfile_empty(struct logfile *log);

#endif
