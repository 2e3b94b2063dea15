/* Breakers as verbs: BREAKERS and BREAKER_RESET, and those nobody will come back for. */
#include "store/ledger.h"

#include <assert.h>

void ledger_breakers(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    assert(op->arena);
    breakers_list(&ledger->breakers, op, now_ms);
}

void ledger_breaker_reset(struct ledger *ledger, struct store_op *op, int64_t now_ms)
{
    if (!breakers_reset(&ledger->breakers, ledger->journal, op->node, op->u.breaker.type, now_ms))
        op->err = ERR_NOT_FOUND;
}

void ledger_tidy(struct ledger *ledger, int64_t now_ms)
{
    breakers_tidy(&ledger->breakers, ledger->journal, &ledger->nodes, now_ms);
}
