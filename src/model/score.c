/* The resource score. Which score wins is the claim policy's. */
#include "model/score.h"

#define MB_PER_GB 1024.0

const struct score_weights score_defaults = {.cpu = 0.5, .memory = 0.5};

double score_resource(const struct score_usage *usage, const struct score_weights *weights)
{
    double sum = weights->cpu + weights->memory;

    if (!usage)
        return 0;
    if (!(sum > 0)) { /* also when it is no number */
        weights = &score_defaults;
        sum = 1;
    }
    return usage->cpu_percent * (weights->cpu / sum) +
           usage->memory_mb / MB_PER_GB * (weights->memory / sum);
}
