/* The thread that samples the machine. */
#ifndef AGENT_SAMPLER_H
#define AGENT_SAMPLER_H

#include "agent/usage.h"
#include "io/loop.h"

struct sampler;
/* `sampled` is called on the loop after each sample. Fails if nothing can be read below
 * host_root. */
enum err sampler_new(struct loop *loop, const struct usage_config *config,
                     void (*sampled)(struct sampler *sampler, const struct usage *usage),
                     void *user, struct sampler **ret_sampler, struct problem *why);
void *sampler_user(const struct sampler *sampler);
void sampler_own(struct sampler *sampler, const int *pids, size_t count); /* see usage_own */
/* On the loop's thread, or after that was joined; before loop_done. Not inside `sampled`. */
void sampler_free(struct sampler *sampler);

#endif
