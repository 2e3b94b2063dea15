/* Timer wheel: setting a deadline is O(1) and usually a single store, because one that only moves
 * later stays in its slot until the slot comes up. An item expires on the first wheel_run at or
 * after its time. One thread. */
#ifndef IO_WHEEL_H
#define IO_WHEEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

enum { WHEEL_SLOTS = 512, WHEEL_TICK_MS = 100 };

struct wheel_item {
    LIST_ENTRY(wheel_item) link;
    int64_t due_ms; /* 0: none */
    int64_t tick;   /* when its slot comes up; 0: in no slot */
};

LIST_HEAD(wheel_list, wheel_item);

struct wheel {
    struct wheel_list slots[WHEEL_SLOTS];
    int64_t tick;                             /* the last one that was run */
    void (*expired)(struct wheel_item *item); /* out of the wheel; may be set again from here */
};

void wheel_init(struct wheel *wheel, int64_t now_ms, void (*expired)(struct wheel_item *item));
void wheel_set(struct wheel *wheel, struct wheel_item *item, int64_t due_ms); /* 0 clears */
void wheel_remove(struct wheel_item *item); /* before its memory is freed; no-op if not set */
void wheel_run(struct wheel *wheel, int64_t now_ms);

#endif
