/* The sampling thread. A report is one struct that is passed back and forth: the thread fills it
 * and posts it to the loop's inbox, the loop reads it and hands it back. While the loop has it no
 * new one is made, so a slow loop gets fewer samples, never a backlog of old ones. */
#include "agent/sampler.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/fd.h"
#include "agent/usage_gpu.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    WATCH_MS = 100,
    WATCH_MS_MIN = 10,
    ALERT_CENTI = 1000,
    FIRST_MS = 250,
    BUSY_MS = 10000,
    GPU_STEPS = 64, /* a drop by this fraction of a GPU's memory matters */
};

struct sampler {
    struct loop *loop;
    struct loop_part part; /* only to be freed if the loop ends with a report in its inbox */
    struct msg report;
    atomic_bool reported;   /* the loop has the report */
    struct usage usage;     /* the reported sample, */
    struct usage_gpus gpus; /* and the GPUs it points to */
    void (*sampled)(struct sampler *sampler, const struct usage *usage);
    void *user;
    bool freed; /* waits for its report to be handed back */

    pthread_t thread;
    int wake_fd; /* its only message is to stop */
    int64_t interval_ms;
    int64_t alert_centi;
    struct usage_meter *meter; /* used by the thread, like all fields down to the next empty line */
    struct usage_gpu gpu;
    uint32_t gpu_looks;                       /* looks already compared with the last sample */
    int32_t vram_free_mb[RESOURCES_GPUS_MAX]; /* of each GPU in that sample */
    char *gpu_command;
    int64_t next_ms;                     /* when a sample is due */
    int64_t watch_ms;                    /* when memory alone is read next */
    int64_t watched_ms, watched_kib;     /* when it last was, and how much was free then */
    int64_t mem_total_kib, mem_free_kib; /* at the last sample */

    pthread_mutex_t lock; /* for the fields below; held only while copying */
    int *pids;
    size_t pid_count;
    bool pids_new;
};

static void destroy(struct sampler *sampler)
{
    usage_meter_free(sampler->meter);
    usage_gpu_done(&sampler->gpu);
    pthread_mutex_destroy(&sampler->lock);
    fd_close(sampler->wake_fd);
    free(sampler->gpu_command);
    free(sampler->pids);
    free(sampler);
}

/* --- on the loop --- */

static void on_report(struct msg *msg)
{
    struct sampler *sampler = container_of(msg, struct sampler, report);

    if (sampler->freed) {
        loop_remove_part(sampler->loop, &sampler->part);
        destroy(sampler);
        return;
    }
    assert(atomic_load(&sampler->reported)); /* so the thread does not touch it */
    sampler->sampled(sampler, &sampler->usage);
    atomic_store_explicit(&sampler->reported, false, memory_order_release);
}

static void on_loop_done(struct loop_part *part)
{
    struct sampler *sampler = container_of(part, struct sampler, part);

    assert(sampler->freed); /* sampler_free comes before loop_done */
    destroy(sampler);
}

/* --- on the thread --- */

/* Assigns GPU memory to our trees, as they were in this sample. */
static void put_gpus(struct sampler *sampler, int64_t now_ms)
{
    const struct usage_gpus *seen = usage_gpu_seen(&sampler->gpu, now_ms);
    struct usage *usage = &sampler->usage;

    usage->gpu_permille = sampler->gpu.permille;
    usage->gpus_new = usage_gpu_is_new(&sampler->gpu);
    usage->gpus = seen ? &sampler->gpus : NULL;
    for (size_t i = 0; i < RESOURCES_GPUS_MAX; i++)
        sampler->vram_free_mb[i] = seen && i < seen->count ? seen->cards[i].vram_free_mb : 0;
    if (!seen)
        return;
    sampler->gpus = *seen;
    for (size_t i = 0; i < sampler->gpus.process_count; i++)
        sampler->gpus.processes[i].tree =
            usage_tree_of(sampler->meter, sampler->gpus.processes[i].pid);
}

static void sample(struct sampler *sampler, int64_t now_ms)
{
    struct usage *usage = &sampler->usage;

    sampler->next_ms += sampler->interval_ms;
    if (sampler->next_ms <= now_ms) /* slept for long: no burst of samples */
        sampler->next_ms = now_ms + sampler->interval_ms;
    if (atomic_load_explicit(&sampler->reported, memory_order_acquire))
        return;
    pthread_mutex_lock(&sampler->lock);
    if (sampler->pids_new)
        usage_own(sampler->meter, sampler->pids, sampler->pid_count);
    sampler->pids_new = false;
    pthread_mutex_unlock(&sampler->lock);
    if (usage_measure(sampler->meter, now_ms, clock_wall_ms(), usage, NULL) != ERR_OK)
        return; /* it worked at the start; readers see that the last sample is old */
    /* A quarter of a second at the start says nothing about ten seconds: time that was not watched
     * counts as idle, so that a compiler which has just ended, or our own start, does not look like
     * a busy machine. */
    if (usage->busy_10s_permille != USAGE_NONE && usage->busy_ms < BUSY_MS)
        usage->busy_10s_permille = usage->busy_10s_permille * usage->busy_ms / BUSY_MS;
    put_gpus(sampler, now_ms);
    sampler->mem_total_kib = usage->mem_total_kib;
    sampler->mem_free_kib = usage->mem_free_kib;
    atomic_store_explicit(&sampler->reported, true, memory_order_release);
    inbox_post(&sampler->loop->inbox, &sampler->report);
}

/* Half the time until memory falls to the alert, or once below it until none is left, at the rate
 * since the last look: one process can take gigabytes a second. */
static int64_t watch_again_ms(const struct sampler *sampler, int64_t now_ms, int64_t total_kib,
                              int64_t free_kib)
{
    int64_t alert_kib, left_kib, pause_ms;

    if (total_kib == USAGE_NONE || free_kib == USAGE_NONE || sampler->watched_kib <= free_kib)
        return WATCH_MS;
    alert_kib = total_kib * sampler->alert_centi / 10000;
    left_kib = free_kib > alert_kib ? free_kib - alert_kib : free_kib;
    pause_ms = left_kib * (now_ms - sampler->watched_ms) / (sampler->watched_kib - free_kib) / 2;
    return pause_ms < WATCH_MS_MIN ? WATCH_MS_MIN : pause_ms < WATCH_MS ? pause_ms : WATCH_MS;
}

/* One second is a long time when memory runs out. */
static void watch_memory(struct sampler *sampler, int64_t now_ms)
{
    int64_t total_kib, free_kib;

    usage_memory(sampler->meter, &total_kib, &free_kib);
    sampler->watch_ms = now_ms + watch_again_ms(sampler, now_ms, total_kib, free_kib);
    sampler->watched_ms = now_ms;
    sampler->watched_kib = free_kib;
    if (!usage_below(free_kib, total_kib, sampler->alert_centi))
        return;
    if (!usage_below(sampler->mem_free_kib, sampler->mem_total_kib, sampler->alert_centi) ||
        free_kib < sampler->mem_free_kib - sampler->mem_free_kib / 4)
        sampler->next_ms = now_ms;
}

/* The server may meanwhile hand out GPU memory that others have taken. */
static void watch_gpus(struct sampler *sampler, int64_t now_ms)
{
    const struct usage_gpus *seen = usage_gpu_seen(&sampler->gpu, now_ms);

    for (size_t i = 0; i < RESOURCES_GPUS_MAX; i++) {
        const struct usage_gpu_card *card = seen && i < seen->count ? &seen->cards[i] : NULL;
        int32_t step = card ? card->vram_mb / GPU_STEPS : 0;

        if (sampler->vram_free_mb[i] - (card ? card->vram_free_mb : 0) > step)
            sampler->next_ms = now_ms;
    }
    if (sampler->gpu_looks == 0) /* the first look: work that waits for it should not wait longer */
        sampler->next_ms = now_ms;
    sampler->gpu_looks = sampler->gpu.looks;
}

static void *thread_main(void *arg)
{
    struct sampler *sampler = arg;

    for (;;) {
        int64_t now_ms = clock_mono_ms(), until_ms, gpu_ms;
        struct pollfd fds[2] = {{.fd = sampler->wake_fd, .events = POLLIN}};

        if (now_ms >= sampler->watch_ms)
            watch_memory(sampler, now_ms);
        if (now_ms >= sampler->next_ms)
            sample(sampler, now_ms);
        gpu_ms = usage_gpu_step(&sampler->gpu, now_ms);
        if (sampler->gpu.looks != sampler->gpu_looks)
            watch_gpus(sampler, now_ms);
        fds[1] = (struct pollfd){.fd = sampler->gpu.fd, .events = POLLIN};
        until_ms = sampler->next_ms < sampler->watch_ms ? sampler->next_ms : sampler->watch_ms;
        until_ms = gpu_ms < until_ms ? gpu_ms : until_ms;
        poll(fds, 2, until_ms <= now_ms ? 0 : (int)(until_ms - now_ms));
        if (fds[0].revents)
            return NULL;
        if (fds[1].revents)
            usage_gpu_readable(&sampler->gpu, clock_mono_ms());
    }
}

/* --- lifetime --- */

/* A first look, so that the first sample has rates: without the CPU's busy figure, an old load
 * average alone would look like danger. */
static enum err take_first(struct sampler *sampler, struct problem *why)
{
    int64_t now_ms = clock_mono_ms();
    enum err err = usage_measure(sampler->meter, now_ms, clock_wall_ms(), &sampler->usage, why);

    sampler->mem_total_kib = sampler->usage.mem_total_kib;
    sampler->mem_free_kib = sampler->usage.mem_free_kib;
    sampler->next_ms = now_ms + (sampler->interval_ms < FIRST_MS ? sampler->interval_ms : FIRST_MS);
    sampler->watch_ms = now_ms + WATCH_MS;
    sampler->watched_ms = now_ms;
    sampler->watched_kib = sampler->mem_free_kib;
    return err;
}

enum err sampler_new(struct loop *loop, const struct usage_config *config,
                     void (*sampled)(struct sampler *sampler, const struct usage *usage),
                     void *user, struct sampler **ret_sampler, struct problem *why)
{
    struct sampler *sampler = mem_new(struct sampler);
    sigset_t all, before;
    enum err err;

    assert(config->interval_ms > 0 && config->interval_ms <= INT32_MAX && sampled);
    sampler->loop = loop;
    sampler->part.free = on_loop_done;
    sampler->report.run = on_report;
    sampler->sampled = sampled;
    sampler->user = user;
    sampler->interval_ms = config->interval_ms;
    sampler->alert_centi = config->mem_alert_centi ? config->mem_alert_centi : ALERT_CENTI;
    sampler->meter = usage_meter_new(config->host_root);
    if (config->disk_dir)
        usage_disk(sampler->meter, config->disk_dir);
    usage_alert(sampler->meter, sampler->alert_centi);
    if (config->gpu_command)
        sampler->gpu_command = mem_cstr(str_of(config->gpu_command));
    usage_gpu_init(&sampler->gpu, sampler->gpu_command);
    pthread_mutex_init(&sampler->lock, NULL);
    sampler->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sampler->wake_fd < 0)
        err = problem_set(why, ERR_IO, "", "Cannot make an eventfd: %s.", strerror(errno));
    else
        err = take_first(sampler, why);
    sigfillset(&all); /* the loop handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!err && pthread_create(&sampler->thread, NULL, thread_main, sampler) != 0)
        err = problem_set(why, ERR_IO, "", "Cannot start a thread.");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err) {
        destroy(sampler);
        return err;
    }
    loop_add_part(loop, &sampler->part);
    *ret_sampler = sampler;
    return ERR_OK;
}

void *sampler_user(const struct sampler *sampler)
{
    return sampler->user;
}

void sampler_own(struct sampler *sampler, const int *pids, size_t count)
{
    int *copy = mem_array(int, count + 1);
    int *old;

    assert(!sampler->freed && (pids || count == 0));
    if (count > 0)
        memcpy(copy, pids, count * sizeof *pids);
    pthread_mutex_lock(&sampler->lock);
    old = sampler->pids;
    sampler->pids = copy;
    sampler->pid_count = count;
    sampler->pids_new = true;
    pthread_mutex_unlock(&sampler->lock);
    free(old);
}

void sampler_free(struct sampler *sampler)
{
    uint64_t one = 1;
    ssize_t put;

    if (!sampler)
        return;
    assert(!sampler->freed);
    put = write(sampler->wake_fd, &one, sizeof one);
    assert(put == sizeof one);
    pthread_join(sampler->thread, NULL);
    if (atomic_load(&sampler->reported)) { /* its report is still in the inbox */
        sampler->freed = true;
        return;
    }
    loop_remove_part(sampler->loop, &sampler->part);
    destroy(sampler);
}
