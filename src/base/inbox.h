/* How threads communicate: a message is posted to the inbox of the thread that owns its subject.
 * Posting is one atomic exchange, never a lock; the owner is woken once per batch. */
#ifndef BASE_INBOX_H
#define BASE_INBOX_H

#include <stdatomic.h>

/* Embedded in the struct it is about; `run` finds that struct with container_of. */
struct msg {
    struct msg *next;
    void (*run)(struct msg *msg); /* on the owner's thread; may free or re-post the message */
};

struct inbox {
    _Atomic(struct msg *) head;
    void (*wake)(struct inbox *inbox); /* from any thread, when the inbox was empty */
};

/* Messages posted together, in one exchange: the owner finds all of them or none. */
struct mail {
    struct msg *newest; /* linked by next, to the oldest */
    struct msg *oldest;
};

void inbox_post(struct inbox *inbox, struct msg *msg);
void mail_add(struct mail *mail, struct msg *msg);
void inbox_post_all(struct inbox *inbox, const struct mail *mail); /* no-op when `mail` is empty */
struct msg *inbox_take(struct inbox *inbox); /* owner: all of them, oldest first, linked by next */
/* Owner: one at a time, oldest first; NULL: none. Messages taken but not yet returned are in *left,
 * which belongs to the owner too. */
struct msg *inbox_next(struct inbox *inbox, struct msg **left);
int inbox_run(struct inbox *inbox); /* owner: takes and runs all; returns how many */

#endif
