/* The counter of a store: where ops come in and answers go out, the same for every backend. Senders
 * post to the store thread's desk, or to a reader's for what only reads; how well the store is can
 * be seen from any thread. */
#ifndef STORE_OP_QUEUE_H
#define STORE_OP_QUEUE_H

#include "store/desk.h"
#include "store/store.h"

struct front {
    struct desk desk;   /* the store thread's */
    struct desk helper; /* the reader's */
    struct desk lists;  /* of another reader, for reads that take long */
    bool (*is_read)(enum store_verb verb);
    bool (*is_long)(enum store_verb verb); /* NULL: there is one reader */
    bool reads_while_down;
    bool reads_at_desk; /* reads pass the store thread, which hands them on: front_hand_on() */
    int64_t in_flight_max;

    /* Any thread. */
    _Alignas(64) _Atomic int64_t in_flight;
    _Alignas(64) _Atomic bool up;
    _Atomic int mode; /* enum store_mode */
    _Atomic int64_t since_ms;
    _Atomic int64_t errors;
    _Atomic int64_t repairs;
    _Atomic int64_t calls;
    _Atomic int64_t batches;
};

void front_init(struct front *front, bool (*is_read)(enum store_verb verb), int64_t in_flight_max);

/* As store_send_all: any thread. */
struct msg *front_send(struct front *front, struct msg *ops);

/* The store's own threads. */

/* What came in: the ops in their order, and apart from them the store's own messages. */
struct msg *front_take(struct desk *desk, struct msg **ret_own);
void front_run_own(struct msg *own);
/* From the store thread to the reader. */
void front_hand_on(struct front *front, const struct mail *reads);
/* Posts every op of a batch to its sender. With an error they failed, whatever they hold:
 * ERR_STORE_DOWN when nothing of it was done, ERR_UNKNOWN when that cannot be said. */
void front_answer(struct front *front, struct msg *batch, enum err fate);
bool front_only_looks(enum store_verb verb); /* it changes nothing in any case */
void front_set_mode(struct front *front, enum store_mode mode);
void front_set_up(struct front *front, bool up);
bool front_is_up(const struct front *front);
void front_count_batch(struct front *front);
void front_count_error(struct front *front);
/* An audit found so many counts that were not those of the leases: they can only move together. */
void front_count_repairs(struct front *front, int64_t repairs);

void front_status(const struct front *front, struct store_status *ret_status);
void front_stop_desk(struct desk *desk, struct msg *stop);

#endif
