/* Who waits for which job, per loop. */
#include "server/waiters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "server/peers.h"

enum {
    LOOK_EVERY_MS = 1000,
    RESULT_TOLD_MAX = 4096, /* a larger one is read by who wants it */
};

struct waiter {
    struct waiter *next;      /* of the same job */
    struct waiter *next_over; /* of those whose time is over, while they are ended */
    struct call *call;
    uint64_t job;
    int64_t until_ms;
    int64_t look_ms;
    void (*ready)(struct call *call);
    void (*look)(struct call *call);
};

struct waiters {
    struct worker *worker;
    struct idmap by_job;   /* -> struct waiter *, linked */
    struct idmap watches;  /* -> struct watch *, linked; these have no time, and are not walked */
    _Atomic int64_t count; /* of both */
};

struct word {
    struct msg msg;
    struct waiters *waiters;
    uint64_t job;
    bool has_end;
    struct store_record end;
    char result[]; /* of it */
};

struct waiters *waiters_new(struct worker *worker)
{
    struct waiters *waiters = calloc(1, sizeof *waiters);

    assert(waiters);
    waiters->worker = worker;
    return waiters;
}

void waiters_free(struct waiters *waiters)
{
    struct waiter *waiter;

    if (!waiters)
        return;
    for (size_t i = 0; (waiter = idmap_next(&waiters->by_job, &i));)
        while (waiter) {
            struct waiter *next = waiter->next;

            free(waiter);
            waiter = next;
        }
    idmap_free(&waiters->by_job);
    idmap_free(&waiters->watches);
    free(waiters);
}

static void one_more(struct waiters *waiters)
{
    if (atomic_fetch_add(&waiters->count, 1) == 0)
        peers_wish(waiters->worker->server);
}

struct waiter *waiters_add(struct waiters *waiters, struct call *call, uint64_t job,
                           int64_t wait_ms, void (*ready)(struct call *call),
                           void (*look)(struct call *call))
{
    struct waiter *waiter = calloc(1, sizeof *waiter);

    assert(waiter && ready);
    *waiter = (struct waiter){.next = idmap_get(&waiters->by_job, job),
                              .call = call,
                              .job = job,
                              .until_ms = waiters->worker->loop.mono_ms + wait_ms,
                              .look_ms = waiters->worker->loop.mono_ms + LOOK_EVERY_MS,
                              .ready = ready,
                              .look = look};
    idmap_put(&waiters->by_job, job, waiter);
    one_more(waiters);
    return waiter;
}

void waiters_del(struct waiters *waiters, struct waiter *waiter)
{
    struct waiter *first = idmap_get(&waiters->by_job, waiter->job);
    struct waiter **at = &first;

    while (*at && *at != waiter)
        at = &(*at)->next;
    assert(*at);
    *at = waiter->next;
    if (first)
        idmap_put(&waiters->by_job, waiter->job, first);
    else
        idmap_del(&waiters->by_job, waiter->job);
    atomic_fetch_sub(&waiters->count, 1);
    free(waiter);
}

void waiters_watch(struct waiters *waiters, struct watch *watch)
{
    assert(watch->job && watch->ended);
    watch->next = idmap_get(&waiters->watches, watch->job);
    idmap_put(&waiters->watches, watch->job, watch);
    one_more(waiters);
}

void waiters_unwatch(struct waiters *waiters, struct watch *watch)
{
    struct watch *first = idmap_get(&waiters->watches, watch->job);
    struct watch **at = &first;

    while (*at && *at != watch)
        at = &(*at)->next;
    assert(*at);
    *at = watch->next;
    if (first)
        idmap_put(&waiters->watches, watch->job, first);
    else
        idmap_del(&waiters->watches, watch->job);
    atomic_fetch_sub(&waiters->count, 1);
}

static void wake(struct waiters *waiters, uint64_t job, const struct store_record *end)
{
    struct waiter *waiter = idmap_del(&waiters->by_job, job);
    struct watch *watch = idmap_del(&waiters->watches, job);

    assert(job);
    while (watch) {
        struct watch *next = watch->next;

        atomic_fetch_sub(&waiters->count, 1);
        watch->ended(watch, end);
        watch = next;
    }
    while (waiter) {
        struct waiter *next = waiter->next;

        atomic_fetch_sub(&waiters->count, 1);
        waiter->ready(waiter->call);
        free(waiter);
        waiter = next;
    }
}

static void told(struct msg *msg)
{
    struct word *word = container_of(msg, struct word, msg);

    assert(word->job);
    wake(word->waiters, word->job, word->has_end ? &word->end : NULL);
    free(word);
}

static struct word *word_new(struct waiters *waiters, uint64_t job, const struct store_record *end)
{
    bool whole = end && end->result.len <= RESULT_TOLD_MAX;
    struct word *word = mem_alloc(sizeof *word + (whole ? end->result.len : 0));

    *word = (struct word){.msg = {.run = told}, .waiters = waiters, .job = job, .has_end = whole};
    if (!whole)
        return word;
    word->end = *end;
    if (end->result.at) {
        memcpy(word->result, end->result.at, end->result.len);
        word->end.result.at = word->result;
    }
    return word;
}

void waiters_tell(struct server *server, uint64_t job, const struct store_record *end)
{
    assert(job);
    for (int i = 0; i < server->loop_count; i++) {
        struct waiters *waiters = server->workers[i].waiters;

        if (atomic_load(&waiters->count) == 0)
            continue;
        inbox_post(&server->workers[i].loop.inbox, &word_new(waiters, job, end)->msg);
    }
}

static bool still_good(const struct waiters *waiters, const struct call *call)
{
    const struct worker *worker = waiters->worker;

    return auth_still(worker->auth, call->token, call->route->scope, worker->loop.wall_ms);
}

static void end_waits(struct waiters *waiters, int64_t now_ms, bool recheck)
{
    struct waiter *waiter, *over = NULL;

    /* Found first, ended then: the map must not change while it is walked. */
    for (size_t i = 0; (waiter = idmap_next(&waiters->by_job, &i));)
        for (; waiter; waiter = waiter->next)
            if (waiter->until_ms <= now_ms || waiter->call->req->gone ||
                (recheck && !still_good(waiters, waiter->call))) {
                waiter->next_over = over;
                over = waiter;
            }
    while ((waiter = over)) {
        struct call *call = waiter->call;
        void (*ready)(struct call *) = waiter->ready;

        over = waiter->next_over;
        waiters_del(waiters, waiter);
        ready(call);
    }
}

/* What other instances tell may get lost. */
static void look_again(struct waiters *waiters)
{
    int64_t now_ms = waiters->worker->loop.mono_ms;
    struct waiter *waiter;

    if (!peers_shared(waiters->worker->server))
        return;
    for (size_t i = 0; (waiter = idmap_next(&waiters->by_job, &i));)
        for (; waiter; waiter = waiter->next)
            if (waiter->look_ms <= now_ms) {
                waiter->look_ms = now_ms + LOOK_EVERY_MS;
                waiter->look(waiter->call); /* answers later: the map stays */
            }
}

bool waiters_wait(const struct server *server)
{
    for (int i = 0; i < server->loop_count; i++)
        if (atomic_load_explicit(&server->workers[i].waiters->count, memory_order_relaxed) > 0)
            return true;
    return false;
}

void waiters_tick(struct waiters *waiters)
{
    look_again(waiters);
    end_waits(waiters, waiters->worker->loop.mono_ms, false);
}

void waiters_recheck(struct waiters *waiters)
{
    end_waits(waiters, waiters->worker->loop.mono_ms, true);
}

void waiters_drain(struct waiters *waiters)
{
    end_waits(waiters, INT64_MAX, false);
}
