/* A stack that any thread pushes to and only its owner empties, all at once: without single pops
 * there is no ABA problem, and the owner reverses the batch to get the order of posting. */
#include "base/inbox.h"

#include <assert.h>
#include <stddef.h>

void mail_add(struct mail *mail, struct msg *msg)
{
    assert(msg->run);
    msg->next = mail->newest;
    mail->newest = msg;
    if (!mail->oldest)
        mail->oldest = msg;
}

void inbox_post_all(struct inbox *inbox, const struct mail *mail)
{
    struct msg *newest = mail->newest;
    struct msg *oldest = mail->oldest;
    struct msg *head = atomic_load_explicit(&inbox->head, memory_order_relaxed);

    assert(!newest == !oldest);
    if (!newest)
        return;
    do
        oldest->next = head;
    while (!atomic_compare_exchange_weak_explicit(&inbox->head, &head, newest, memory_order_release,
                                                  memory_order_relaxed));
    /* From here on the owner may have run and freed the messages. */
    if (!head && inbox->wake)
        inbox->wake(inbox);
}

void inbox_post(struct inbox *inbox, struct msg *msg)
{
    assert(msg->run);
    inbox_post_all(inbox, &(struct mail){.newest = msg, .oldest = msg});
}

struct msg *inbox_take(struct inbox *inbox)
{
    struct msg *newest = atomic_exchange_explicit(&inbox->head, NULL, memory_order_acquire);
    struct msg *oldest = NULL;

    while (newest) {
        struct msg *next = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

struct msg *inbox_next(struct inbox *inbox, struct msg **left)
{
    struct msg *msg = *left ? *left : inbox_take(inbox);

    *left = msg ? msg->next : NULL;
    return msg;
}

int inbox_run(struct inbox *inbox)
{
    struct msg *msg = inbox_take(inbox);
    int count = 0;

    while (msg) {
        struct msg *next = msg->next; /* run may free or re-post it */

        msg->run(msg);
        msg = next;
        count++;
    }
    return count;
}
