/* The loop's life cycle. One turn of libuv is: timers, prepare, poll (where the reads run), check,
 * closing. The inbox runs in prepare, or in the poll that it ended. Coalesced writes are flushed at
 * the end of the inbox batch and in prepare and check, so nothing that a timer or a read queued
 * waits through a poll. */
#include "io/loop.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/inbox.h"
#include "base/mem.h"
#include "base/str.h"

void loop_refresh(struct loop *loop)
{
    loop->uv_ms = uv_now(&loop->uv);
    loop->wall_ms = clock_wall_ms();
    loop->mono_ms = clock_mono_ms();
}

void loop_enter(struct loop *loop)
{
    atomic_store_explicit(&loop->asleep, false, memory_order_relaxed);
    if (loop->uv_ms != uv_now(&loop->uv))
        loop_refresh(loop);
}

/* Runs on_turn and the callbacks of all parts. */
static void loop_turn(struct loop *loop)
{
    for (struct loop_part *part = loop->parts; part; part = part->next)
        if (part->ready)
            part->ready(part);
    if (loop->on_turn)
        loop->on_turn(loop);
    for (struct loop_part *part = loop->parts; part; part = part->next)
        if (part->turn)
            part->turn(part);
}

void loop_add_part(struct loop *loop, struct loop_part *part)
{
    struct loop_part **last = &loop->parts;

    assert(part->free && !part->next);
    while (*last)
        last = &(*last)->next;
    *last = part;
}

void loop_remove_part(struct loop *loop, struct loop_part *part)
{
    struct loop_part **at = &loop->parts;

    while (*at && *at != part)
        at = &(*at)->next;
    if (*at)
        *at = part->next;
}

/* An eventfd of our own: libuv's makes the loop busy-wait until the thread that wakes it is back
 * from the kernel, which may take as long as we run. */
static void end_poll(struct loop *loop)
{
    uint64_t one = 1;
    ssize_t done = write(loop->wake_fd, &one, sizeof one);

    assert(done == sizeof one || errno == EAGAIN || errno == EINTR);
}

/* A loop that is not polling checks its inbox before its next poll and needs no wake-up. That is
 * common: a loop posts to itself all the time and is busy while the store answers. */
static void wake_from_any_thread(struct inbox *inbox)
{
    struct loop *loop = container_of(inbox, struct loop, inbox);

    if (atomic_exchange(&loop->asleep, false))
        end_poll(loop);
}

static void run_inbox(struct loop *loop)
{
    loop_enter(loop);
    inbox_run(&loop->inbox);
    loop_turn(loop);
}

static void on_wake(uv_poll_t *wake, int status, int events)
{
    struct loop *loop = wake->data;
    uint64_t count;
    ssize_t got = read(loop->wake_fd, &count, sizeof count);

    (void)got; /* the value does not matter */
    run_inbox(loop);
    if (loop->stopping)
        uv_stop(&loop->uv);
}

static void on_tick(uv_timer_t *tick)
{
    struct loop *loop = tick->data;

    loop_refresh(loop);
    for (struct loop_part *part = loop->parts; part; part = part->next)
        if (part->tick)
            part->tick(part);
    if (loop->on_tick)
        loop->on_tick(loop);
}

/* A message posted before `asleep` is set is found by the check after it; one posted later ends the
 * poll. Only one batch runs, so that sockets get their turn however much it posts. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct loop *loop = prepare->data;

    loop_turn(loop);
    if (atomic_load(&loop->inbox.head))
        run_inbox(loop);
    atomic_exchange(&loop->asleep, true);
    if (atomic_load(&loop->inbox.head) && atomic_exchange(&loop->asleep, false))
        end_poll(loop);
}

static void on_check(uv_check_t *check)
{
    loop_enter(check->data);
    loop_turn(check->data);
}

enum err loop_init(struct loop *loop, int index)
{
    assert(index >= 0);
    *loop = (struct loop){.index = index};
    signal(SIGPIPE, SIG_IGN);
    if (uv_loop_init(&loop->uv) != 0)
        return ERR_IO;
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd < 0 || uv_poll_init(&loop->uv, &loop->wake, loop->wake_fd) != 0) {
        if (loop->wake_fd >= 0)
            close(loop->wake_fd);
        uv_loop_close(&loop->uv);
        return ERR_IO;
    }
    /* These cannot fail: they only link themselves into the loop. */
    uv_poll_start(&loop->wake, UV_READABLE, on_wake);
    uv_timer_init(&loop->uv, &loop->tick);
    uv_prepare_init(&loop->uv, &loop->before_poll);
    uv_check_init(&loop->uv, &loop->after_poll);
    loop->wake.data = loop->tick.data = loop->before_poll.data = loop->after_poll.data = loop;
    uv_timer_start(&loop->tick, on_tick, LOOP_TICK_MS, LOOP_TICK_MS);
    uv_prepare_start(&loop->before_poll, on_prepare);
    uv_check_start(&loop->after_poll, on_check);
    loop->inbox.wake = wake_from_any_thread;
    loop->read_buf = mem_alloc(LOOP_READ_BYTES);
    loop_refresh(loop);
    return ERR_OK;
}

void loop_run(struct loop *loop)
{
    uv_update_time(&loop->uv);
    loop_refresh(loop);
    if (!loop->stopping)
        uv_run(&loop->uv, UV_RUN_DEFAULT);
}

static void thread_main(void *arg)
{
    loop_run(arg);
}

enum err loop_start(struct loop *loop)
{
    assert(!loop->started);
    if (uv_thread_create(&loop->thread, thread_main, loop) != 0)
        return ERR_IO;
    loop->started = true;
    return ERR_OK;
}

void loop_stop(struct loop *loop)
{
    loop->stopping = true;
    end_poll(loop);
}

void loop_join(struct loop *loop)
{
    if (!loop->started)
        return;
    uv_thread_join(&loop->thread);
    loop->started = false;
}

static void job_run(uv_work_t *work)
{
    struct loop_job *job = container_of(work, struct loop_job, work);

    job->run(job);
}

static void job_done(uv_work_t *work, int status)
{
    struct loop_job *job = container_of(work, struct loop_job, work);

    assert(status == 0); /* work is never cancelled: loop_done waits for it */
    job->done(job);
}

void loop_work(struct loop *loop, struct loop_job *job)
{
    int err = uv_queue_work(&loop->uv, &job->work, job_run, job_done);

    assert(err == 0 && job->run && job->done);
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void loop_done(struct loop *loop)
{
    int err;

    assert(!loop->started);
    loop->stopping = true; /* no handle is opened from here on */
    loop->on_tick = NULL;
    loop->on_turn = NULL;
    for (struct loop_part *part = loop->parts; part; part = part->next)
        if (part->close)
            part->close(part);
    uv_walk(&loop->uv, close_handle, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    for (struct loop_part *part = loop->parts, *next; part; part = next) {
        next = part->next;
        part->free(part);
    }
    err = uv_loop_close(&loop->uv);
    assert(err == 0); /* a handle that was opened while closing */
    close(loop->wake_fd);
    free(loop->read_buf);
    loop->read_buf = NULL;
    loop->parts = NULL;
}
