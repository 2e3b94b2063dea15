/* The order of a dispatch's answers. Owns which error a dispatch ends with; who the candidates are
 * and how they are asked is the dispatcher's. */
#include "model/outcome.h"

#include <assert.h>

static void refuse(struct outcome *outcome, enum err err)
{
    assert(err != ERR_OK);
    outcome->phase = OUTCOME_REFUSED;
    outcome->err = err;
}

static bool open_phase(const struct outcome *outcome)
{
    return outcome->phase == OUTCOME_PREFERRED || outcome->phase == OUTCOME_WALK;
}

void outcome_begin(struct outcome *outcome, const struct outcome_start *start)
{
    *outcome = (struct outcome){
        .phase = start->preferred_given ? OUTCOME_PREFERRED : OUTCOME_WALK,
        .err = ERR_OK,
        .strict = start->strict,
        .preferred_given = start->preferred_given,
    };
    if (!start->store_up)
        refuse(outcome, ERR_STORE_DOWN);
    else if (start->preferred_given && !start->preferred_in_pool)
        refuse(outcome, ERR_PREFERRED_NOT_CAPABLE);
    else if (start->pool_count == 0)
        refuse(outcome, ERR_NO_CAPABLE_NODE);
    assert(outcome->phase != OUTCOME_PREFERRED || start->pool_count > 0);
}

void outcome_preferred_failed(struct outcome *outcome, size_t others)
{
    assert(outcome->phase == OUTCOME_PREFERRED && outcome->preferred_given);
    outcome->phase = OUTCOME_WALK;
    if (outcome->strict)
        refuse(outcome, ERR_PREFERRED_UNAVAILABLE);
    else if (others == 0)
        refuse(outcome, ERR_ALL_FULL); /* a capable node exists, it only had no room */
}

void outcome_placed(struct outcome *outcome)
{
    assert(open_phase(outcome));
    outcome->phase = OUTCOME_PLACED;
    outcome->err = ERR_OK;
}

void outcome_exhausted(struct outcome *outcome)
{
    assert(outcome->phase == OUTCOME_WALK);
    refuse(outcome, ERR_ALL_FULL);
}

void outcome_store_failed(struct outcome *outcome)
{
    assert(open_phase(outcome));
    refuse(outcome, ERR_STORE_DOWN);
}
