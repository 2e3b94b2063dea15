/* Requests that wait for a job: each is answered once, whatever comes first. */
#include "../unit.h"

#include "hand_server.h"

#include <stdlib.h>

enum { CALLS = 200 };

struct fixture {
    struct server *server;
    struct settings settings;
    struct http_request reqs[CALLS];
    struct call calls[CALLS];
};

static int answers[CALLS];
static struct call *first_call;

static void ready(struct call *call)
{
    answers[call - first_call]++;
}

static int setup(void **state)
{
    struct fixture *own = calloc(1, sizeof *own);

    own->server = hand_server_new(&own->settings);
    for (int i = 0; i < CALLS; i++) {
        own->calls[i] = (struct call){.req = &own->reqs[i]};
        answers[i] = 0;
    }
    first_call = own->calls;
    *state = own;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *own = *state;

    hand_server_free(own->server);
    free(own);
    return 0;
}

static struct waiter *wait_for(struct fixture *own, int call, int loop, uint64_t job, int64_t ms)
{
    struct worker *worker = &own->server->workers[loop];

    own->calls[call].worker = worker;
    return waiters_add(worker->waiters, &own->calls[call], job, ms, ready, ready);
}

static void run_all(struct fixture *own)
{
    for (int i = 0; i < HAND_SERVER_LOOPS; i++)
        hand_server_run(own->server, i);
}

static void all_who_wait_for_it_are_told_once(void **state)
{
    struct fixture *own = *state;

    wait_for(own, 0, 0, 7, 1000);
    wait_for(own, 1, 0, 7, 1000);
    wait_for(own, 2, 1, 7, 1000);
    wait_for(own, 3, 1, 8, 1000);
    waiters_wake(own->server, NULL, 7, NULL);
    waiters_wake(own->server, NULL, 7, NULL);
    run_all(own);
    assert_true(answers[0] == 1 && answers[1] == 1 && answers[2] == 1);
    assert_int_equal(answers[3], 0);
    hand_server_pass(own->server, 2000); /* past the end of their wait */
    assert_true(answers[0] == 1 && answers[1] == 1 && answers[2] == 1);
    assert_int_equal(answers[3], 1);
}

static void a_wait_has_an_end(void **state)
{
    struct fixture *own = *state;

    wait_for(own, 0, 0, 7, 1000);
    wait_for(own, 1, 0, 7, 5000);
    hand_server_pass(own->server, 999);
    assert_int_equal(answers[0], 0);
    hand_server_pass(own->server, 1);
    assert_int_equal(answers[0], 1);
    assert_int_equal(answers[1], 0);
    waiters_wake(own->server, NULL, 7, NULL);
    run_all(own);
    assert_true(answers[0] == 1 && answers[1] == 1);
}

static void who_left_need_not_wait(void **state)
{
    struct fixture *own = *state;

    wait_for(own, 0, 0, 7, 60000);
    own->reqs[0].gone = true;
    hand_server_pass(own->server, 100);
    assert_int_equal(answers[0], 1);
}

static void whose_token_ended_need_not_wait(void **state)
{
    static const struct route route = {.scope = SCOPE_READ};
    struct fixture *own = *state;
    struct worker *worker = &own->server->workers[0];
    struct token good = {.name = STR("a"), .digest = "a", .scopes = 1u << SCOPE_READ};
    struct token other = {.name = STR("b"), .digest = "b", .scopes = 1u << SCOPE_READ};

    for (int i = 0; i < 2; i++) {
        wait_for(own, i, 0, 7, 60000);
        own->calls[i].route = &route;
        own->calls[i].token = i ? &other : &good;
    }
    worker->auth->tokens = (struct tokens){.at = &good, .count = 1};
    waiters_recheck(worker->waiters);
    assert_true(answers[0] == 0 && answers[1] == 1);
    good.expires_ms = worker->loop.wall_ms - 1;
    waiters_recheck(worker->waiters);
    assert_true(answers[0] == 1 && answers[1] == 1);
}

static void one_that_was_taken_back_is_not_told(void **state)
{
    struct fixture *own = *state;
    struct waiter *waiters[3];

    for (int i = 0; i < 3; i++)
        waiters[i] = wait_for(own, i, 0, 7, 1000);
    /* The middle, then the last one; the first stays. */
    waiters_del(own->server->workers[0].waiters, waiters[1]);
    waiters_del(own->server->workers[0].waiters, waiters[0]);
    waiters_wake(own->server, NULL, 7, NULL);
    run_all(own);
    assert_true(answers[0] == 0 && answers[1] == 0 && answers[2] == 1);
    hand_server_pass(own->server, 2000);
    assert_int_equal(answers[2], 1);
}

/* With no waiter nothing is posted to any loop. */
static void telling_nobody_costs_nothing(void **state)
{
    struct fixture *own = *state;

    waiters_wake(own->server, NULL, 7, NULL);
    assert_int_equal(hand_server_run(own->server, 0) + hand_server_run(own->server, 1), 0);
    waiters_del(own->server->workers[0].waiters, wait_for(own, 0, 0, 7, 1000));
    waiters_wake(own->server, NULL, 7, NULL);
    assert_int_equal(hand_server_run(own->server, 0) + hand_server_run(own->server, 1), 0);
}

static void a_draining_server_answers_all(void **state)
{
    struct fixture *own = *state;

    for (int i = 0; i < CALLS; i++)
        wait_for(own, i, 0, (uint64_t)(i / 3 + 1), 60000);
    waiters_drain(own->server->workers[0].waiters);
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(answers[i], 1);
}

/* --- watches, which have no time limit --- */

struct watched {
    struct watch watch;
    int answers;
    struct buf result; /* of the job's end; "?": not included */
};

static void watch_ended(struct watch *watch, const struct store_record *end)
{
    struct watched *own = container_of(watch, struct watched, watch);

    own->answers++;
    buf_clear(&own->result);
    buf_str(&own->result, !end ? STR("?") : end->result.at ? end->result : STR("none"));
    assert_true(!end || end->head.id == watch->job);
}

static void watch_job(struct fixture *own, int loop, uint64_t job, struct watched *watched)
{
    watched->watch = (struct watch){.job = job, .ended = watch_ended};
    waiters_watch(own->server->workers[loop].waiters, &watched->watch);
}

static void who_watches_is_told_once_whenever_it_ends(void **state)
{
    struct fixture *own = *state;
    struct watched first = {0}, second = {0}, elsewhere = {0}, other = {0};

    watch_job(own, 0, 7, &first);
    watch_job(own, 0, 7, &second);
    watch_job(own, 1, 7, &elsewhere);
    watch_job(own, 1, 8, &other);
    wait_for(own, 0, 0, 7, 1000);
    hand_server_pass(own->server, 3600000); /* time ends a wait, but no watch */
    assert_int_equal(answers[0], 1);
    assert_true(first.answers == 0 && waiters_wait(own->server));
    waiters_wake(own->server, NULL, 7, NULL);
    waiters_wake(own->server, NULL, 7, NULL);
    run_all(own);
    assert_true(first.answers == 1 && second.answers == 1 && elsewhere.answers == 1 &&
                other.answers == 0);
    waiters_unwatch(own->server->workers[1].waiters, &other.watch);
    assert_false(waiters_wait(own->server));
    buf_free(&first.result);
    buf_free(&second.result);
    buf_free(&elsewhere.result);
}

/* An end may carry the whole record; a large result is not copied from loop to loop. */
static void an_end_is_told_with_its_result(void **state)
{
    struct fixture *own = *state;
    static char large[4097];
    const struct {
        struct str result;
        const char *want;
    } rows[] = {{STR("{}"), "{}"}, {STR_NONE, "none"}, {{.at = large, .len = sizeof large}, "?"}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct watched here = {0}, there = {0};
        struct buf text = {0};
        struct store_record end = {.head.id = 7};

        buf_str(&text, rows[i].result);
        end.result = rows[i].result.at ? buf_view(&text) : STR_NONE;
        watch_job(own, 0, 7, &here);
        watch_job(own, 1, 7, &there);
        waiters_wake(own->server, NULL, 7, &end);
        buf_free(&text); /* waiters have a copy */
        run_all(own);
        assert_str(buf_view(&here.result), rows[i].want);
        assert_str(buf_view(&there.result), rows[i].want);
        buf_free(&here.result);
        buf_free(&there.result);
    }
}

/* The loop on which the job ended knows at once, with any result; other loops get a message.
 */
static void an_end_on_the_same_loop_needs_no_message(void **state)
{
    struct fixture *own = *state;
    static char large[4097];
    struct watched here = {0}, there = {0};
    struct store_record end = {.head.id = 7, .result = {.at = large, .len = sizeof large}};

    watch_job(own, 0, 7, &here);
    watch_job(own, 1, 7, &there);
    wait_for(own, 0, 0, 7, 1000);
    waiters_wake(own->server, &own->server->workers[0], 7, &end);
    assert_int_equal(here.result.len, sizeof large);
    assert_int_equal(answers[0], 1);
    assert_int_equal(there.answers, 0);
    run_all(own);
    assert_true(here.answers == 1 && there.answers == 1 && answers[0] == 1);
    assert_false(waiters_wait(own->server));
    buf_free(&here.result);
    buf_free(&there.result);
}

static void who_watches_no_more_is_not_told(void **state)
{
    struct fixture *own = *state;
    struct waiters *waiters = own->server->workers[0].waiters;
    struct watched rows[3] = {0};

    for (int left = 0; left < 3; left++) { /* first, middle or last watch of the job */
        for (int i = 0; i < 3; i++) {
            rows[i].answers = 0;
            watch_job(own, 0, 7, &rows[i]);
        }
        waiters_unwatch(waiters, &rows[left].watch);
        waiters_wake(own->server, NULL, 7, NULL);
        run_all(own);
        for (int i = 0; i < 3; i++)
            assert_int_equal(rows[i].answers, i != left);
        assert_false(waiters_wait(own->server));
    }
    for (int i = 0; i < 3; i++)
        buf_free(&rows[i].result);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(all_who_wait_for_it_are_told_once),
        ROW(a_wait_has_an_end),
        ROW(who_left_need_not_wait),
        ROW(whose_token_ended_need_not_wait),
        ROW(one_that_was_taken_back_is_not_told),
        ROW(telling_nobody_costs_nothing),
        ROW(a_draining_server_answers_all),
        ROW(who_watches_is_told_once_whenever_it_ends),
        ROW(who_watches_no_more_is_not_told),
        ROW(an_end_is_told_with_its_result),
        ROW(an_end_on_the_same_loop_needs_no_message),
    };

    return cmocka_run_group_tests_name("server/api_job", tests, NULL, NULL);
}
