/* The output of one run: at most two files in its directory, each named after the offset of its
 * first byte (`log.0`, `log.4194304`), so that a name is never reused for other bytes and a reader
 * needs no lock. The shim writes, the agent reads. */
#ifndef AGENT_RUNLOG_H
#define AGENT_RUNLOG_H

#include "agent/run.h"

enum { RUNLOG_RETRY_MS = 1000 }; /* a full disk is tried again at this interval */

struct runlog_file {
    int64_t base; /* offset of its first byte; -1: no such file */
    int64_t size;
};

struct runlog {
    int dir_fd; /* borrowed */
    int fd;     /* of `newest`; -1: the next byte opens a file */
    int64_t file_bytes_max;
    struct runlog_file newest, older;
    int64_t total;             /* bytes received in total */
    int64_t dropped;           /* of these, bytes that are in no file any more */
    int64_t retry_ms;          /* the disk was full: no new attempt before this moment */
    size_t tail_at;            /* where the next byte goes */
    char tail[RUN_TAIL_BYTES]; /* a ring */
};

void runlog_init(struct runlog *log, int dir_fd, int64_t file_bytes_max);
/* Never fails: what cannot be stored is counted as dropped. */
void runlog_write(struct runlog *log, struct str bytes, int64_t now_mono_ms);
/* The last lines that fit, whole, as valid UTF-8 without NUL, at most RUN_TAIL_BYTES. */
void runlog_tail(const struct runlog *log, struct buf *out);
/* The last line of a tail that is not empty; "" if there is none. */
void runlog_last_line(struct str tail, char *line, size_t size);
/* Frees room on a full disk for what matters more: removes the older file. */
void runlog_shrink(struct runlog *log);
void runlog_done(struct runlog *log);

/* See run_log(). dir_fd is the run's directory; links are not followed. */
enum err runlog_read(int dir_fd, int64_t offset, size_t max, struct buf *out, int64_t *ret_offset,
                     int64_t *ret_total);

#endif
