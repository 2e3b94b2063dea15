/* One libuv loop on one thread, with an inbox. Whatever a loop owns (sockets, requests, timers) is
 * touched only on its thread; others post a message. */
#ifndef IO_LOOP_H
#define IO_LOOP_H

#include <uv.h>

#include "base/err.h"
#include "base/inbox.h"

struct loop {
    uv_loop_t uv;
    struct inbox inbox; /* post from any thread: inbox_post(&loop->inbox, msg) */
    uv_async_t wake;
    uv_timer_t tick; /* every LOOP_TICK_MS: refreshes now_ms, calls on_tick */
    uv_thread_t thread;
    int index;
    int64_t wall_ms; /* fresh at every wake-up: read it instead of asking the kernel */
    int64_t mono_ms;
    void (*on_tick)(struct loop *loop); /* may be NULL */
    /* Runs after each batch of inbox messages and of reads: flush what was coalesced. */
    void (*on_turn)(struct loop *loop); /* may be NULL */
    void *owner;      /* what this loop serves; set once before it runs */
    char *read_buf;   /* LOOP_READ_BYTES, shared by all its sockets */
    bool stopping;
};

enum { LOOP_TICK_MS = 100, LOOP_READ_BYTES = 65536 };

enum err loop_init(struct loop *loop, int index);
void loop_run(struct loop *loop);         /* on the calling thread, until loop_stop */
enum err loop_start(struct loop *loop);   /* on a thread of its own */
void loop_stop(struct loop *loop);        /* any thread; idempotent */
void loop_join(struct loop *loop);
void loop_done(struct loop *loop);        /* closes what libuv still holds; after join */
void loop_refresh(struct loop *loop);     /* re-reads the clocks */

#endif
