/* The resource score of the claim policy resource_usage: smaller is better. Pure. */
#ifndef MODEL_SCORE_H
#define MODEL_SCORE_H

#include "base/str.h"

/* One node's usage as NodeUnit/InspectResourceUsage answers it. */
struct score_usage {
    double cpu_percent; /* of the node's total capacity; above 100 is legal */
    double memory_mb;
};

struct score_weights {
    double cpu;
    double memory;
};

extern const struct score_weights score_defaults; /* 0.5, 0.5 */

/* cpu_percent and GB, weighed; the weights are divided by their sum, a sum that is not positive
 * gives the defaults. No usage (NULL): 0; who does not want the unknown to be
 * the favourite does not ask. */
double score_resource(const struct score_usage *usage, const struct score_weights *weights);
/* Two figures, weighed in the same way. */
double score_shares(double cpu, double memory, const struct score_weights *weights);

#endif
