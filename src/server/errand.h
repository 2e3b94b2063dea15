/* Something the main thread has done on a loop, and waits for: a listener opened, tokens handed
 * over. Only while the loops run. */
#ifndef SERVER_ERRAND_H
#define SERVER_ERRAND_H

#include <semaphore.h>

#include "server/server.h"

struct errand {
    struct worker *worker;
    void (*run)(struct errand *errand); /* on the worker's loop */
    /* errand.c's */
    struct msg msg;
    sem_t over;
};

void errand_run(struct errand *errand);

#endif
