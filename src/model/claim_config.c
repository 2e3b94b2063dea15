/* What the environment variables NODE_UNIT_* mean (vectors claim_config). */
#include "model/claim.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

enum { NUMBER_MAX = 64, NAME_MAX_BYTES = 32 };

/* The whole text, spaces around it allowed. NAN: it is no number. */
static double number(struct str text)
{
    char copy[NUMBER_MAX];
    char *end;
    double value;

    text = str_trim(text);
    if (!text.len || !str_copy(text, copy, sizeof copy))
        return NAN;
    value = strtod(copy, &end);
    return *end ? NAN : value;
}

static double weight(struct str text, double fallback)
{
    double value = number(text);

    return isfinite(value) && value >= 0 ? value : fallback;
}

static const struct claim_policy *policy(struct str text)
{
    char name[NAME_MAX_BYTES];
    const struct claim_policy *found = NULL;

    if (str_copy(text, name, sizeof name)) {
        for (char *c = name; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        found = claim_policy_by_name(str_of(name));
    }
    return found ? found : claim_policy_default;
}

void claim_config_read(const struct claim_env *env, struct claim_config *ret_config)
{
    double interval_ms = number(env->interval_ms);

    *ret_config = (struct claim_config){
        .policy = policy(env->policy),
        .interval_ms = isfinite(interval_ms) && interval_ms > 0 ? interval_ms : CLAIM_INTERVAL_MS,
        .weights = {.cpu = weight(env->cpu_weight, score_defaults.cpu),
                    .memory = weight(env->memory_weight, score_defaults.memory)},
    };
}
