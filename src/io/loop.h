/* One libuv loop on one thread, with an inbox. Everything a loop owns (sockets, requests, timers)
 * is touched only on its thread; other threads post a message. */
#ifndef IO_LOOP_H
#define IO_LOOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "base/inbox.h"

struct loop;

/* Embedded in the struct that holds a layer's per-loop state (connections, requests, calls). Parts
 * are called in the order in which they were added, on the loop's thread. */
struct loop_part {
    struct loop_part *next;
    void (*ready)(struct loop_part *part); /* before loop->on_turn: deliver what was set aside */
    void (*turn)(struct loop_part *part);  /* after it: flush; both may be NULL */
    void (*tick)(struct loop_part *part);  /* every LOOP_TICK_MS; may be NULL */
    void (*close)(struct loop_part *part); /* loop_done: begin closing handles; may be NULL */
    void (*free)(struct loop_part *part);  /* loop_done: every handle is closed */
};

struct loop {
    uv_loop_t uv;
    struct inbox inbox; /* post from any thread: inbox_post(&loop->inbox, msg) */
    uv_poll_t wake;
    int wake_fd;
    atomic_bool asleep; /* polling, or about to: a thread that posts must end the poll */
    uv_timer_t tick;    /* every LOOP_TICK_MS: refreshes now_ms, calls on_tick */
    uv_prepare_t before_poll;
    uv_check_t after_poll;
    uv_thread_t thread;
    bool started; /* has its own thread, which must be joined */
    int index;
    int64_t wall_ms; /* updated at every wake-up: read it instead of the clock */
    int64_t mono_ms;
    uint64_t uv_ms;                     /* libuv's time when the two were read */
    void (*on_tick)(struct loop *loop); /* may be NULL */
    /* Runs after each batch of inbox messages and of reads: flush what was coalesced. */
    void (*on_turn)(struct loop *loop); /* may be NULL */
    void *owner;                        /* set once, before the loop runs */
    char *read_buf;                     /* LOOP_READ_BYTES, shared by all its sockets */
    atomic_bool stopping;
    struct loop_part *parts;
    struct net_loop *net; /* net.c's part, NULL until its first use on this loop */
    struct ws_loop *ws;   /* ws.c's part, likewise */
};

enum { LOOP_TICK_MS = 100, LOOP_READ_BYTES = 65536 };

/* Ignores SIGPIPE in the process: a peer that left must fail one write, not kill us. */
enum err loop_init(struct loop *loop, int index);
void loop_run(struct loop *loop);       /* on the calling thread, until loop_stop */
enum err loop_start(struct loop *loop); /* on a new thread */
void loop_stop(struct loop *loop);      /* any thread; idempotent */
void loop_join(struct loop *loop);
/* Closes all remaining handles; call after the join, on the thread that joined. Connections get
 * their `closed` call here; a request that was not answered yet is freed and must not be touched
 * again. */
void loop_done(struct loop *loop);
void loop_refresh(struct loop *loop); /* re-reads the clocks */

/* Work that may block (files): runs on a thread pool, then calls `done` on the loop. */
struct loop_job {
    void (*run)(struct loop_job *job);  /* on another thread */
    void (*done)(struct loop_job *job); /* on the loop's; may free the job */
    uv_work_t work;                     /* private */
};
void loop_work(struct loop *loop, struct loop_job *job); /* on the loop's thread */

/* For the other files of io: re-reads the clocks only if libuv's has moved, so that every callback
 * can afford the call. */
void loop_enter(struct loop *loop);
void loop_add_part(struct loop *loop, struct loop_part *part);
/* No-op if it is not in the loop. */
void loop_remove_part(struct loop *loop, struct loop_part *part);

#endif
