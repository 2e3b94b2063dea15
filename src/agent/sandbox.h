/* What the processes between the agent and a job may do, and what a job may not. */
#ifndef AGENT_SANDBOX_H
#define AGENT_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

#define PRIVILEGE(capability) ((uint64_t)1 << (capability))

/* Becoming another user takes all capabilities of root away; the permitted ones stay when this was
 * called before. */
bool privileges_survive(void);
/* These capabilities and no others, of those that are permitted. */
bool privileges_keep(uint64_t capabilities);
/* No program that is started from here on can get any, whatever its file says. Needs CAP_SETPCAP.
 */
void privileges_bound(void);
/* In the new process: none at all, for good. Only system calls that are safe after a vfork. 0 or
 * errno. */
int privileges_give_up(void);

#endif
