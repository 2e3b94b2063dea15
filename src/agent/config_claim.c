/* How deployments are claimed. */
#include <stdlib.h>

#include "agent/config_private.h"
#include "model/claim.h"

enum { INTERVAL_MS_MIN = 50, INTERVAL_MS_MAX = 3600 * 1000 };

static struct str env(const char *name)
{
    return str_of(getenv(name));
}

void config_seed_env(struct config *config)
{
    struct claim_env given = {.policy = env("NODE_UNIT_CLAIM_POLICY"),
                              .interval_ms = env("NODE_UNIT_SCHEDULER_INTERVAL_MS"),
                              .cpu_weight = env("NODE_UNIT_CPU_WEIGHT"),
                              .memory_weight = env("NODE_UNIT_MEMORY_WEIGHT")};
    struct claim_config read;

    claim_config_read(&given, &read);
    if (given.policy.len)
        config->claim_policy_name = str_of(read.policy->name);
    if (given.interval_ms.len)
        config->claim_interval_ms = read.interval_ms < INTERVAL_MS_MIN ? INTERVAL_MS_MIN
                                    : read.interval_ms > INTERVAL_MS_MAX
                                        ? INTERVAL_MS_MAX
                                        : (int64_t)read.interval_ms;
    if (given.cpu_weight.len)
        config->claim_weights.cpu = read.weights.cpu;
    if (given.memory_weight.len)
        config->claim_weights.memory = read.weights.memory;
}

enum err config_read_claim(struct config *config, struct problem *why)
{
    config->claim_policy = claim_policy_by_name(config->claim_policy_name);
    if (!config->claim_policy)
        return problem_set(why, ERR_BAD_CONFIG, "claim_policy",
                           "claim_policy must be deployment_count, resource_usage, "
                           "resource_fraction or none, not \"" STR_FMT "\".",
                           STR_ARG(config->claim_policy_name));
    return ERR_OK;
}
