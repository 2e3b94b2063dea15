/* Requests that wait for a job to end (?wait=5s). Each loop keeps its own; the loop that settles a
 * job tells the loops that have any. */
#ifndef SERVER_API_JOB_H
#define SERVER_API_JOB_H

#include "server/route.h"

struct waiters;

struct waiters *waiters_new(struct worker *worker);
void waiters_free(struct waiters *waiters);
void waiters_tick(struct waiters *waiters);
void waiters_drain(struct waiters *waiters);   /* the server goes: nobody waits any longer */
void waiters_recheck(struct waiters *waiters); /* the tokens changed: whose is not good, is ready */
/* Calls ready(call) once on this loop: when the job ended, or wait_ms later, or when its token
 * did: ask guard_still before telling. Register first, then
 * read the job: an end in between is not missed. Where other instances may end it too, and what
 * they tell may get lost, look(call) is called every second: read the job again. */
struct waiter;
struct waiter *waiters_add(struct waiters *waiters, struct call *call, uint64_t job,
                           int64_t wait_ms, void (*ready)(struct call *call),
                           void (*look)(struct call *call));
void waiters_del(struct waiters *waiters, struct waiter *waiter);
/* Who is told of an end whenever it comes, and has no time to wait: is in the memory of whoever
 * wants to know. */
struct watch {
    struct watch *next; /* of the same job */
    uint64_t job;
    /* Once, on this loop; it is not watched any more then. `end` has its head and result; NULL:
     * read it. */
    void (*ended)(struct watch *watch, const struct store_record *end);
};
void waiters_watch(struct waiters *waiters, struct watch *watch);
void waiters_unwatch(struct waiters *waiters, struct watch *watch);
/* A job ended: any loop. `end`: its head and result, NULL: not known here. */
void waiters_wake(struct server *server, uint64_t job, const struct store_record *end);
bool waiters_wait(const struct server *server); /* does anybody, on any loop? */

#endif
