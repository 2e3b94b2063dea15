/* Loops on their threads, and the order in which a turn runs. */
#include "io/loop.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit.h"
#include "base/str.h"
#include "hand.h"

enum { POSTERS = 4, POSTS = 5000 };

struct token {
    struct msg msg;
    struct counter *counter;
};

struct counter {
    struct loop loop;
    int seen;
    int turns;
    int ticks;
    bool stop_when_all;
    struct token tokens[POSTERS][POSTS];
};

static void count(struct msg *msg)
{
    struct counter *counter = container_of(msg, struct token, msg)->counter;

    if (++counter->seen == POSTERS * POSTS && counter->stop_when_all)
        loop_stop(&counter->loop);
}

struct poster {
    uv_thread_t thread;
    struct counter *counter;
    int index;
};

static void post_all(void *arg)
{
    struct poster *poster = arg;

    for (int i = 0; i < POSTS; i++) {
        struct token *token = &poster->counter->tokens[poster->index][i];

        *token = (struct token){.msg.run = count, .counter = poster->counter};
        inbox_post(&poster->counter->loop.inbox, &token->msg);
    }
}

static void test_every_post_is_run(void **state)
{
    struct counter *counter = calloc(1, sizeof *counter);
    struct poster posters[POSTERS];

    assert_int_equal(loop_init(&counter->loop, 3), ERR_OK);
    counter->stop_when_all = true;
    assert_int_equal(loop_start(&counter->loop), ERR_OK);
    for (int i = 0; i < POSTERS; i++) {
        posters[i] = (struct poster){.counter = counter, .index = i};
        uv_thread_create(&posters[i].thread, post_all, &posters[i]);
    }
    for (int i = 0; i < POSTERS; i++)
        uv_thread_join(&posters[i].thread);
    loop_join(&counter->loop);
    assert_int_equal(counter->seen, POSTERS * POSTS);
    loop_stop(&counter->loop); /* a second call does nothing */
    loop_done(&counter->loop);
    free(counter);
}

static void test_stopped_before_it_ran(void **state)
{
    struct loop loop;

    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    loop_stop(&loop);
    loop_run(&loop);
    loop_done(&loop);
}

/* Posts itself a number of times and counts how often that woke the loop. */
struct again {
    struct msg msg;
    struct loop loop;
    int left;
    int wakes;
};

static void run_again(struct msg *msg)
{
    struct again *again = container_of(msg, struct again, msg);
    uint64_t count;

    again->wakes += read(again->loop.wake_fd, &count, sizeof count) > 0;
    if (again->left-- > 0)
        inbox_post(&again->loop.inbox, msg);
    else
        loop_stop(&again->loop);
}

static void test_who_is_awake_is_not_woken(void **state)
{
    static struct again again;

    again = (struct again){.msg = {.run = run_again}, .left = 100};
    assert_int_equal(loop_init(&again.loop, 0), ERR_OK);
    inbox_post(&again.loop.inbox, &again.msg); /* not running yet: it will look */
    loop_run(&again.loop);
    assert_int_equal(again.left, -1);
    /* A message posted in a batch before the poll ends the poll at most once; one posted during a
     * batch is found before the next poll. */
    assert_true(again.wakes <= 1);
    loop_done(&again.loop);
}

/* --- the order of a turn --- */

static struct buf order;

static void on_ready(struct loop_part *part)
{
    buf_char(&order, 'r');
}

static void on_part_turn(struct loop_part *part)
{
    buf_char(&order, 'f');
}

static void on_part_tick(struct loop_part *part)
{
    buf_char(&order, 'k');
}

static void on_close(struct loop_part *part)
{
    buf_char(&order, 'c');
}

static void on_free(struct loop_part *part)
{
    buf_char(&order, 'x');
}

static void on_turn(struct loop *loop)
{
    buf_char(&order, 't');
}

static int ran;

static void run_once(struct msg *msg)
{
    buf_char(&order, 'm');
    ran = 1;
}

static void test_the_order_of_a_turn(void **state)
{
    struct loop_part part = {.ready = on_ready,
                             .turn = on_part_turn,
                             .tick = on_part_tick,
                             .close = on_close,
                             .free = on_free};
    struct msg msg = {.run = run_once};
    struct loop loop;

    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    loop.on_turn = on_turn;
    loop_add_part(&loop, &part);
    inbox_post(&loop.inbox, &msg);
    hand_run(&loop, &ran);
    buf_char(&order, '\0');
    /* Before the poll, after the batch of messages, and after the poll. */
    assert_non_null(strstr(order.at, "rtfmrtfrtf"));
    buf_clear(&order);
    loop_done(&loop);
    buf_char(&order, '\0');
    assert_non_null(strchr(order.at, 'c'));
    assert_string_equal(order.at + strlen(order.at) - 1, "x");
    assert_null(strchr(order.at, 't')); /* its owner is not called any more */
    buf_free(&order);
}

static void test_the_clocks_move(void **state)
{
    struct loop loop;
    int64_t mono_ms;
    int64_t wall_ms;
    int done = 0;

    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    mono_ms = loop.mono_ms;
    wall_ms = loop.wall_ms;
    assert_true(wall_ms > 1600000000000);
    while (!done) { /* the tick wakes it */
        uv_run(&loop.uv, UV_RUN_ONCE);
        done = loop.mono_ms >= mono_ms + LOOP_TICK_MS && loop.wall_ms > wall_ms;
    }
    loop_done(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_post_is_run),
        cmocka_unit_test(test_who_is_awake_is_not_woken),
        cmocka_unit_test(test_stopped_before_it_ran),
        cmocka_unit_test(test_the_order_of_a_turn),
        cmocka_unit_test(test_the_clocks_move),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
