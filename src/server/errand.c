/* Errands of the main thread. */
#include "server/errand.h"

#include <assert.h>

static void run_here(struct msg *msg)
{
    struct errand *errand = container_of(msg, struct errand, msg);

    errand->run(errand);
    sem_post(&errand->over); /* from here on it is the main thread's again */
}

void errand_run(struct errand *errand)
{
    assert(errand->worker && errand->run);
    errand->msg = (struct msg){.run = run_here};
    sem_init(&errand->over, 0, 0);
    inbox_post(&errand->worker->loop.inbox, &errand->msg);
    while (sem_wait(&errand->over))
        ;
    sem_destroy(&errand->over);
}
