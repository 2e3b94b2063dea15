/* The resource score. Which score wins is the claim policy's. */
#include "model/score.h"

#define MB_PER_GB 1024.0

const struct score_weights score_defaults = {.cpu = 0.5, .memory = 0.5};

double score_shares(double cpu, double memory, const struct score_weights *weights)
{
    double sum = weights->cpu + weights->memory;

    if (!(sum > 0)) { /* also when it is no number */
        weights = &score_defaults;
        sum = 1;
    }
    return cpu * (weights->cpu / sum) + memory * (weights->memory / sum);
}

double score_resource(const struct score_usage *usage, const struct score_weights *weights)
{
    if (!usage)
        return 0;
    return score_shares(usage->cpu_percent, usage->memory_mb / MB_PER_GB, weights);
}
