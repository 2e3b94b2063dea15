/* A ring of slots, one per tick. An item due later than the ring reaches waits in the furthest slot
 * and is inserted again when that slot comes up. */
#include "io/wheel.h"

#include <assert.h>

void wheel_init(struct wheel *wheel, int64_t now_ms, void (*expired)(struct wheel_item *item))
{
    assert(now_ms >= 0 && expired);
    for (int i = 0; i < WHEEL_SLOTS; i++)
        LIST_INIT(&wheel->slots[i]);
    wheel->tick = now_ms / WHEEL_TICK_MS + 1; /* so that tick 0 is never a real one */
    wheel->expired = expired;
}

static void put(struct wheel *wheel, struct wheel_item *item)
{
    int64_t tick = (item->due_ms + WHEEL_TICK_MS - 1) / WHEEL_TICK_MS + 1;

    if (tick <= wheel->tick)
        tick = wheel->tick + 1;
    if (tick >= wheel->tick + WHEEL_SLOTS)
        tick = wheel->tick + WHEEL_SLOTS - 1;
    item->tick = tick;
    LIST_INSERT_HEAD(&wheel->slots[tick % WHEEL_SLOTS], item, link);
}

void wheel_remove(struct wheel_item *item)
{
    if (item->tick)
        LIST_REMOVE(item, link);
    item->tick = 0;
    item->due_ms = 0;
}

void wheel_set(struct wheel *wheel, struct wheel_item *item, int64_t due_ms)
{
    assert(due_ms >= 0);
    item->due_ms = due_ms;
    if (due_ms == 0)
        return; /* dropped when its slot comes up */
    if (item->tick) {
        if ((due_ms + WHEEL_TICK_MS - 1) / WHEEL_TICK_MS + 1 >= item->tick)
            return; /* inserted again when its slot comes up */
        LIST_REMOVE(item, link);
    }
    put(wheel, item);
}

void wheel_run(struct wheel *wheel, int64_t now_ms)
{
    int64_t last = now_ms / WHEEL_TICK_MS + 1;
    struct wheel_list due = LIST_HEAD_INITIALIZER(due);
    struct wheel_item *item;

    /* After a long pause (a suspended machine) visits every slot once, not every tick. */
    if (last > wheel->tick + WHEEL_SLOTS)
        wheel->tick = last - WHEEL_SLOTS;
    while (wheel->tick < last) {
        wheel->tick++;
        /* Moved to a list first: an item that expires may set itself or others again. */
        while ((item = LIST_FIRST(&wheel->slots[wheel->tick % WHEEL_SLOTS]))) {
            LIST_REMOVE(item, link);
            LIST_INSERT_HEAD(&due, item, link);
        }
        while ((item = LIST_FIRST(&due))) {
            assert(item->tick % WHEEL_SLOTS == wheel->tick % WHEEL_SLOTS);
            LIST_REMOVE(item, link);
            item->tick = 0;
            if (item->due_ms > now_ms) {
                put(wheel, item);
            } else if (item->due_ms > 0) {
                item->due_ms = 0;
                wheel->expired(item);
            }
        }
    }
}
