/* A new job on its way in: placed on a node, put into its lane (a task with queue_ms), or refused,
 * and then it never runs. */
#ifndef SCHED_SUBMIT_H
#define SCHED_SUBMIT_H

#include "model/token.h"
#include "sched/dispatch.h"

struct submit {
    struct dispatch *dispatch;
    void (*done)(struct submit *submit);
    void *user;
    struct quota quota; /* of its submitter */
    bool queued;        /* answer: it waits */
    enum err err;       /* answer */
    struct problem why; /* answer */
};

/* A new job under a new id; all of it is in the arena, which must be fresh for each job. `quota`:
 * NULL when there is none. */
struct submit *submit_new(struct sched_loop *loop, struct arena *arena, const struct spec *spec,
                          const struct quota *quota);
/* Set `done` first; it is called once, now or later. */
void submit_start(struct submit *submit);

#endif
