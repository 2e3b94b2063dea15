/* The claim loop: every few seconds, and whenever something changed, each node looks at who is
 * online and which deployments nobody runs, and claims its share of them. What keeps failing here
 * and could run elsewhere it gives up. There is no other scheduler for deployments; the server only
 * decides who was first. One loop. */
#ifndef AGENT_CLAIMER_H
#define AGENT_CLAIMER_H

#include "agent/node_lease.h"

struct claimer;

/* All must outlive it. */
struct claimer_config {
    const struct config *config;
    struct str node_id, instance;
    struct queries *queries;
    struct copies *copies;
    struct tenure *tenure;
};

struct claimer *claimer_new(struct loop *loop, const struct claimer_config *config);
void claimer_up(struct claimer *claimer); /* the link stands */
void claimer_down(struct claimer *claimer);
/* Something changed: it looks soon. */
void claimer_wake(struct claimer *claimer);
void claimer_danger(struct claimer *claimer, bool danger); /* the machine's level: claim nothing */
/* Would it claim at all, as far as this node alone can say? Others should not wait for it if not.
 */
bool claimer_takes(const struct claimer *claimer);
/* {cycles, claims, skips, last}: an object. */
void claimer_write(const struct claimer *claimer, struct jsonw *w);
void claimer_free(struct claimer *claimer);

#endif
