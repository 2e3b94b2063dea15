/* The op queue of a store, the same for every backend: ops come in and answers go out. Senders post
 * to the store thread's work queue, or read-only ops to a reader's; the store's health can be read
 * from any thread. */
#ifndef STORE_OP_QUEUE_H
#define STORE_OP_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/inbox.h"
#include "store/store.h"

/* A work queue: one thread and the inbox it works from. Any thread may post; only the queue's own
 * thread waits. */

struct work_queue {
    struct inbox inbox;
    _Atomic uint32_t asleep; /* futex: 1 while the thread sleeps or is about to */
    pthread_t thread;
    struct msg stop;
    bool stopping; /* own thread only: it has been asked to stop */
};

void work_queue_init(struct work_queue *work_queue); /* messages may be posted from here on */
/* All signals are blocked on the new thread: the loops handle them. False: the thread could not be
 * created. */
bool work_queue_start(struct work_queue *work_queue, const char *name, void *(*work)(void *),
                      void *arg);
void work_queue_join(struct work_queue *work_queue);
void work_queue_stop(struct work_queue *work_queue); /* asks its thread to stop and joins it */
/* Own thread only: returns when the inbox has a message or the timeout has passed. */
void work_queue_wait(struct work_queue *work_queue, int64_t timeout_ms);

struct op_queue {
    struct work_queue work_queue; /* the store thread's */
    struct work_queue reader;     /* the reader's */
    struct work_queue lists;      /* of a second reader, for long reads */
    bool (*is_read)(enum store_verb verb);
    bool (*is_long)(enum store_verb verb); /* NULL: there is one reader */
    bool reads_while_down;
    bool reads_pass_store_thread; /* reads go through the store thread, which forwards them to the
                                     reader */
    int64_t in_flight_max;

    /* Any thread. */
    _Alignas(64) _Atomic int64_t in_flight;
    _Alignas(64) _Atomic bool up;
    _Atomic int mode; /* enum store_mode */
    _Atomic int64_t since_ms;
    _Atomic int64_t errors;
    _Atomic int64_t repairs[STORE_RULES];
    _Atomic int64_t calls;
    _Atomic int64_t batches;
};

void op_queue_init(struct op_queue *op_queue, bool (*is_read)(enum store_verb verb),
                   int64_t in_flight_max);

/* As store_send_all: any thread. */
struct msg *op_queue_send(struct op_queue *op_queue, struct msg *ops);

/* For the store's own threads. */

/* Takes the inbox: the ops in order, and separately the store's own messages. */
struct msg *op_queue_take(struct work_queue *work_queue, struct msg **ret_own);
void op_queue_run_own(struct msg *own);
/* Posts every op of a batch to its sender. With an error all of them failed, whatever their `err`
 * says: ERR_STORE_DOWN when nothing was applied, ERR_UNKNOWN when that is not certain. */
void op_queue_answer(struct op_queue *op_queue, struct msg *batch, enum err fate);
bool op_queue_only_looks(enum store_verb verb); /* the verb never changes anything */
void op_queue_set_mode(struct op_queue *op_queue, enum store_mode mode);
void op_queue_set_up(struct op_queue *op_queue, bool up);
bool op_queue_is_up(const struct op_queue *op_queue);
void op_queue_count_batch(struct op_queue *op_queue);
void op_queue_count_error(struct op_queue *op_queue);
/* An audit found and repaired this many violations of the rule. */
void op_queue_count_repairs(struct op_queue *op_queue, enum store_rule rule, int64_t repairs);

void op_queue_status(const struct op_queue *op_queue, struct store_status *ret_status);

/* A short text written by one thread and read by any thread without a lock. A concurrent reader may
 * get a mix of the old and the new text, so use it only where that is harmless. */

enum { STATUS_TEXT_WORDS = 20, STATUS_TEXT_SIZE = STATUS_TEXT_WORDS * 8 }; /* bytes, with the NUL */

struct status_text {
    _Atomic uint64_t words[STATUS_TEXT_WORDS];
};

void status_text_put(struct status_text *box, const char *text); /* truncated if it is longer */
void status_text_get(const struct status_text *box, char to[STATUS_TEXT_SIZE]);

#endif
