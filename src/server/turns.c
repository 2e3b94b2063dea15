/* A ring of lanes, one for each caller. */
#include "server/turns.h"

#include <assert.h>

#include "base/str.h"

static void post(struct turns *turns)
{
    if (turns->posted)
        return;
    turns->posted = true;
    inbox_post(turns->inbox, &turns->msg);
}

/* Runs the first turn of the next lane that has one. */
static void begin(struct turns *turns)
{
    struct turn *turn = NULL;

    if (turns->under_way >= TURNS_UNDER_WAY_MAX)
        return;
    for (size_t i = 1; i <= TURNS_LANES; i++) {
        size_t lane = (turns->lane + i) % TURNS_LANES;

        turn = turns->first[lane];
        if (turn) {
            turns->lane = lane;
            turns->first[lane] = turn->next;
            break;
        }
    }
    if (!turn)
        return;
    turns->under_way++;
    turn->under_way = true;
    post(turns);
    turn->run(turn); /* may have finished, and be freed, when this returns */
}

static void next_turn(struct msg *msg)
{
    struct turns *turns = container_of(msg, struct turns, msg);

    turns->posted = false;
    begin(turns);
}

void turns_init(struct turns *turns, struct inbox *inbox)
{
    *turns = (struct turns){.inbox = inbox, .msg = {.run = next_turn}};
}

void turns_enter(struct turns *turns, uint64_t caller, struct turn *turn)
{
    size_t lane = caller % TURNS_LANES;

    assert(turn->run && !turn->under_way);
    turn->next = NULL;
    if (turns->first[lane])
        turns->last[lane]->next = turn;
    else
        turns->first[lane] = turn;
    turns->last[lane] = turn;
    if (!turns->posted)
        begin(turns);
}

void turns_leave(struct turns *turns)
{
    assert(turns->under_way > 0);
    turns->under_way--;
    post(turns);
}
