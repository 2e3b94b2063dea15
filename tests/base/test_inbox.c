/* Messages between threads: none lost or repeated, each sender's in order, one wake per batch. */
#include "../unit.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "base/inbox.h"
#include "base/str.h"

enum { SENDERS = 4, MESSAGES = 20000 };

struct letter {
    struct msg msg;
    int sender;
    int number;
};

struct office {
    struct inbox inbox;
    sem_t woken;
    _Atomic int wakes;
};

static struct office office;
static int next_number[SENDERS]; /* owner's thread only */
static int out_of_order;

static void wake(struct inbox *inbox)
{
    struct office *its = container_of(inbox, struct office, inbox);

    atomic_fetch_add(&its->wakes, 1);
    sem_post(&its->woken);
}

static void read_letter(struct msg *msg)
{
    struct letter *letter = container_of(msg, struct letter, msg);

    out_of_order += letter->number != next_number[letter->sender];
    next_number[letter->sender]++;
    free(letter);
}

/* One message at a time, in order; a message posted meanwhile comes after those taken before. */
static void test_one_at_a_time(void **state)
{
    struct letter letters[4] = {{.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}};
    struct inbox inbox = {.wake = NULL};
    struct msg *left = NULL;

    for (int i = 0; i < 4; i++)
        letters[i].msg.run = read_letter;
    assert_null(inbox_next(&inbox, &left));
    inbox_post(&inbox, &letters[0].msg);
    inbox_post(&inbox, &letters[1].msg);
    assert_ptr_equal(inbox_next(&inbox, &left), &letters[0].msg);
    inbox_post(&inbox, &letters[2].msg);
    inbox_post(&inbox, &letters[3].msg);
    for (int i = 1; i < 4; i++)
        assert_ptr_equal(inbox_next(&inbox, &left), &letters[i].msg);
    assert_null(inbox_next(&inbox, &left));
}

/* Odd senders post up to seven letters together, even ones each letter by itself. */
static void *send_letters(void *arg)
{
    int sender = *(int *)arg;
    struct mail mail = {0};

    for (int i = 0; i < MESSAGES; i++) {
        struct letter *letter = malloc(sizeof *letter);

        *letter = (struct letter){.msg = {.run = read_letter}, .sender = sender, .number = i};
        mail_add(&mail, &letter->msg);
        if (sender % 2 && i % 7 && i < MESSAGES - 1)
            continue;
        inbox_post_all(&office.inbox, &mail);
        mail = (struct mail){0};
    }
    inbox_post_all(&office.inbox, &mail); /* an empty post does nothing */
    return NULL;
}

/* The owner sleeps until it is woken, as a loop does: after a lost wake it would sleep for ever. */
static void test_many_senders(void **state)
{
    pthread_t threads[SENDERS];
    int senders[SENDERS];
    int got = 0;
    int batches = 0;

    office.inbox.wake = wake;
    sem_init(&office.woken, 0, 0);
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, send_letters, &senders[i]), 0);
    }
    while (got < SENDERS * MESSAGES) {
        int count;

        while (sem_wait(&office.woken) != 0)
            ;
        count = inbox_run(&office.inbox);
        got += count;
        batches += count > 0;
    }
    for (int i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(out_of_order, 0);
    assert_int_equal(got, SENDERS * MESSAGES);
    assert_int_equal(inbox_run(&office.inbox), 0);
    assert_int_equal(atomic_load(&office.wakes), batches); /* once for each time it was empty */
    sem_destroy(&office.woken);
}

static struct inbox echo_box;
static int echoes;

static void echo(struct msg *msg)
{
    if (++echoes < 3)
        inbox_post(&echo_box, msg); /* posts itself again */
}

static void test_a_message_may_post_itself_again(void **state)
{
    struct msg msg = {.run = echo};

    inbox_post(&echo_box, &msg);
    assert_int_equal(inbox_run(&echo_box), 1); /* it runs in the next batch */
    assert_int_equal(inbox_run(&echo_box), 1);
    assert_int_equal(inbox_run(&echo_box), 1);
    assert_int_equal(inbox_run(&echo_box), 0);
    assert_int_equal(echoes, 3);
}

static void test_take_is_oldest_first(void **state)
{
    struct inbox inbox = {.wake = NULL};
    struct msg msgs[5];
    struct mail mail = {0};
    struct msg *msg;

    assert_null(inbox_take(&inbox));
    for (int i = 0; i < 5; i++)
        msgs[i].run = echo;
    inbox_post(&inbox, &msgs[0]);
    for (int i = 1; i < 4; i++)
        mail_add(&mail, &msgs[i]);
    inbox_post_all(&inbox, &mail);
    inbox_post(&inbox, &msgs[4]);
    msg = inbox_take(&inbox);
    for (int i = 0; i < 5; i++, msg = msg->next)
        assert_ptr_equal(msg, &msgs[i]);
    assert_null(msg);
    assert_null(inbox_take(&inbox));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_senders),
        cmocka_unit_test(test_a_message_may_post_itself_again),
        cmocka_unit_test(test_take_is_oldest_first),
        cmocka_unit_test(test_one_at_a_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
