/* Requests that wait for a job to end (?wait=5s). Each loop keeps its own; the loop that settles a
 * job wakes those of all loops. */
#ifndef SERVER_API_JOB_H
#define SERVER_API_JOB_H

#include "server/route.h"

struct waiters;

struct waiters *waiters_new(struct worker *worker);
void waiters_free(struct waiters *waiters);
void waiters_tick(struct waiters *waiters);
void waiters_drain(struct waiters *waiters); /* the server stops: all are ready */
void waiters_recheck(
    struct waiters *waiters); /* the tokens changed: waiters of invalid ones are ready */
/* Calls ready(call) once on this loop: when the job has ended, after wait_ms, or when the token
 * became invalid: check guard_still() before answering. Add the waiter first, then read the job, so
 * that an end in between is not missed. In a shared store other instances may end the job and their
 * messages may get lost, so look(call) is called every second: read the job again. */
struct waiter;
struct waiter *waiters_add(struct waiters *waiters, struct call *call, uint64_t job,
                           int64_t wait_ms, void (*ready)(struct call *call),
                           void (*look)(struct call *call));
void waiters_del(struct waiters *waiters, struct waiter *waiter);
/* Waits for an end without a time limit. Lives in the caller's memory. */
struct watch {
    struct watch *next; /* of the same job */
    uint64_t job;
    /* Called once, on this loop; the job is no longer watched then. `end` has its head and result;
     * NULL: read the job. */
    void (*ended)(struct watch *watch, const struct store_record *end);
};
void waiters_watch(struct waiters *waiters, struct watch *watch);
void waiters_unwatch(struct waiters *waiters, struct watch *watch);
/* A job ended. `here`: the caller's, whose waiters are woken before it returns; NULL: it has none.
 * `end`: its head and result, NULL: not known here. */
void waiters_wake(struct server *server, const struct worker *here, uint64_t job,
                  const struct store_record *end);
bool waiters_wait(const struct server *server); /* is anything waiting, on any loop? */

#endif
