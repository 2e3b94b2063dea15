/* The outbox on disk: lines are appended in batches, one sync a batch, on a thread of libuv's pool:
 * what queues up meanwhile is the next batch. A write that failed makes the file suspect; then all
 * that is live is written anew. */
#ifndef AGENT_OUTBOX_FILE_H
#define AGENT_OUTBOX_FILE_H

#include "base/err.h"
#include "base/str.h"
#include "io/loop.h"

struct outbox_file {
    char *path;
    int fd;
    int64_t size;       /* bytes of whole lines in it */
    struct buf pending; /* lines for the next batch */
    bool dirty;         /* a write failed: the next batch must be a rewrite */
    bool busy;
    /* The batch under way; the thread's while busy. */
    struct buf batch;
    bool rewrite;
    int error; /* errno, 0 = it is on disk */
    uv_work_t work;
    void (*written)(struct outbox_file *file); /* on the loop, after each batch */
};

/* Makes it if it is not there. *ret_text gets what it holds, whole lines only. */
enum err outbox_file_open(struct outbox_file *file, const char *path, size_t max,
                          struct buf *ret_text, struct problem *why);
/* Starts a batch of what is pending, unless one is under way or there is nothing. */
void outbox_file_flush(struct outbox_file *file, struct loop *loop);
/* Starts one that replaces the file by `text`. Not while busy. */
void outbox_file_rewrite(struct outbox_file *file, struct loop *loop, struct str text);
/* What is pending is written here and now; not while busy. Closes. */
void outbox_file_close(struct outbox_file *file);

#endif
