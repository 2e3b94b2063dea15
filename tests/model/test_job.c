/* The whole job machine, and job ids. */
#include "model/job.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "base/clock.h"

#define N1 STR("n1")

/* All edges; any other must be refused. In attempt 1 of 2, with candidates left. */
static const struct row {
    enum job_state from;
    enum job_event event;
    enum job_state to;
    enum job_effect effect;
    enum job_state last; /* the next state in attempt 2 of 2 without candidates */
} rows[] = {
    {JOB_NEW, JOB_EV_SELECT, JOB_SELECTING, JOB_EFFECT_NONE, JOB_SELECTING},
    {JOB_NEW, JOB_EV_CANCEL, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
    {JOB_NEW, JOB_EV_QUEUE_TIMEOUT, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
    {JOB_SELECTING, JOB_EV_RESERVED, JOB_RESERVED, JOB_EFFECT_RESERVE, JOB_RESERVED},
    {JOB_SELECTING, JOB_EV_NO_CANDIDATE, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
    {JOB_SELECTING, JOB_EV_CANCEL, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
    {JOB_SELECTING, JOB_EV_QUEUE_TIMEOUT, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
    {JOB_RESERVED, JOB_EV_SENT, JOB_DISPATCHED, JOB_EFFECT_NONE, JOB_DISPATCHED},
    {JOB_RESERVED, JOB_EV_SEND_FAILED, JOB_SELECTING, JOB_EFFECT_RELEASE_RESERVED, JOB_FAILED},
    {JOB_RESERVED, JOB_EV_CANCEL, JOB_FAILED, JOB_EFFECT_RELEASE_RESERVED, JOB_FAILED},
    {JOB_DISPATCHED, JOB_EV_ACK, JOB_ACKED, JOB_EFFECT_COMMIT, JOB_ACKED},
    {JOB_DISPATCHED, JOB_EV_ACK_TIMEOUT, JOB_RETRYING, JOB_EFFECT_RELEASE_RESERVED, JOB_FAILED},
    {JOB_DISPATCHED, JOB_EV_REFUSED, JOB_SELECTING, JOB_EFFECT_RELEASE_RESERVED, JOB_FAILED},
    {JOB_DISPATCHED, JOB_EV_DONE, JOB_DONE, JOB_EFFECT_RELEASE_RESERVED, JOB_DONE},
    {JOB_DISPATCHED, JOB_EV_FAIL, JOB_RETRYING, JOB_EFFECT_RELEASE_RESERVED, JOB_FAILED},
    {JOB_DISPATCHED, JOB_EV_CANCEL, JOB_FAILED, JOB_EFFECT_RELEASE_RESERVED, JOB_FAILED},
    {JOB_ACKED, JOB_EV_DONE, JOB_DONE, JOB_EFFECT_DEC_RUNNING, JOB_DONE},
    {JOB_ACKED, JOB_EV_FAIL, JOB_RETRYING, JOB_EFFECT_DEC_RUNNING, JOB_FAILED},
    {JOB_ACKED, JOB_EV_RUN_TIMEOUT, JOB_RETRYING, JOB_EFFECT_DEC_RUNNING, JOB_FAILED},
    {JOB_ACKED, JOB_EV_CANCEL, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
    /* Refused without another attempt. */
    {JOB_RETRYING, JOB_EV_SELECT, JOB_SELECTING, JOB_EFFECT_NONE, JOB_RETRYING},
    {JOB_RETRYING, JOB_EV_CANCEL, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
    {JOB_RETRYING, JOB_EV_QUEUE_TIMEOUT, JOB_FAILED, JOB_EFFECT_NONE, JOB_FAILED},
};

static const struct row *row_of(enum job_state from, enum job_event event)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (rows[i].from == from && rows[i].event == event)
            return &rows[i];
    return NULL;
}

static bool from_node(enum job_event event)
{
    return event == JOB_EV_ACK || event == JOB_EV_DONE || event == JOB_EV_FAIL ||
           event == JOB_EV_REFUSED;
}

static struct job_step try_event(enum job_state from, enum job_event event, int attempt, bool left)
{
    struct job_facts job = {.state = from, .attempt = attempt, .max_attempts = 2, .node = N1};
    struct job_input in = {.event = event, .candidates_left = left};

    if (from_node(event)) {
        in.attempt = attempt;
        in.node = N1;
    }
    return job_step(&job, &in);
}

static void assert_refused(struct job_step step, enum job_state from, int attempt)
{
    assert_false(step.accepted);
    assert_int_equal(step.state, from);
    assert_int_equal(step.attempt, attempt);
    assert_int_equal(step.effect, JOB_EFFECT_NONE);
}

static void test_all_states_and_events(void **state)
{
    for (int from = 0; from < JOB_STATE_COUNT; from++)
        for (int event = 0; event < JOB_EVENT_COUNT; event++) {
            const struct row *row = row_of((enum job_state)from, (enum job_event)event);
            struct job_step step = try_event((enum job_state)from, (enum job_event)event, 1, true);

            if (!row) {
                assert_refused(step, (enum job_state)from, 1);
                continue;
            }
            assert_true(step.accepted);
            assert_int_equal(step.state, row->to);
            assert_int_equal(step.effect, row->effect);
            assert_int_equal(step.attempt, from == JOB_RETRYING && event == JOB_EV_SELECT ? 2 : 1);
        }
}

static void test_last_attempt_without_candidates(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct job_step step = try_event(rows[i].from, rows[i].event, 2, false);

        if (rows[i].last == rows[i].from) {
            assert_refused(step, rows[i].from, 2);
            continue;
        }
        assert_true(step.accepted);
        assert_int_equal(step.state, rows[i].last);
        assert_int_equal(step.effect, rows[i].effect);
        assert_int_equal(step.attempt, 2);
    }
}

static void test_final_stays_final(void **state)
{
    for (int event = 0; event < JOB_EVENT_COUNT; event++)
        for (int attempt = 1; attempt <= 2; attempt++)
            for (int left = 0; left < 2; left++) {
                assert_refused(try_event(JOB_DONE, (enum job_event)event, attempt, left), JOB_DONE,
                               attempt);
                assert_refused(try_event(JOB_FAILED, (enum job_event)event, attempt, left),
                               JOB_FAILED, attempt);
            }
}

/* A message of another attempt or node changes nothing in any state. */
static void test_strangers_are_ignored(void **state)
{
    static const struct {
        int attempt;
        struct str node;
    } strangers[] = {{1, STR("n1")}, {3, STR("n1")},  {-2, STR("n1")}, {2, STR("n2")},
                     {2, STR("n")},  {2, STR("n11")}, {2, STR("")}};

    for (int from = 0; from < JOB_STATE_COUNT; from++)
        for (int event = 0; event < JOB_EVENT_COUNT; event++)
            for (size_t i = 0; from_node((enum job_event)event) && i < COUNT_OF(strangers); i++) {
                struct job_facts job = {
                    .state = (enum job_state)from, .attempt = 2, .max_attempts = 3, .node = N1};
                struct job_input in = {.event = (enum job_event)event,
                                       .attempt = strangers[i].attempt,
                                       .node = strangers[i].node,
                                       .candidates_left = true};

                assert_refused(job_step(&job, &in), (enum job_state)from, 2);
            }
}

static void test_a_node_must_say_who_and_which(void **state)
{
    static const enum job_event said[] = {JOB_EV_ACK, JOB_EV_DONE, JOB_EV_FAIL};
    struct job_facts job = {.state = JOB_DISPATCHED, .attempt = 1, .max_attempts = 2, .node = N1};

    for (size_t i = 0; i < COUNT_OF(said); i++) {
        assert_refused(job_step(&job, &(struct job_input){.event = said[i], .attempt = 1}),
                       JOB_DISPATCHED, 1);
        assert_refused(job_step(&job, &(struct job_input){.event = said[i], .node = N1}),
                       JOB_DISPATCHED, 1);
    }
    job.node = STR_NONE; /* the job must have a node, too */
    for (size_t i = 0; i < COUNT_OF(said); i++)
        assert_refused(
            job_step(&job, &(struct job_input){.event = said[i], .attempt = 1, .node = N1}),
            JOB_DISPATCHED, 1);
}

/* A sweep that read the job before its retry must not end the retry. */
static void test_a_late_sweep_is_ignored(void **state)
{
    struct job_facts job = {.state = JOB_DISPATCHED, .attempt = 2, .max_attempts = 3, .node = N1};
    struct job_input in = {.event = JOB_EV_ACK_TIMEOUT, .attempt = 1};

    assert_refused(job_step(&job, &in), JOB_DISPATCHED, 2);
    in.attempt = 2;
    in.node = STR("n2");
    assert_refused(job_step(&job, &in), JOB_DISPATCHED, 2);
    in.node = N1;
    assert_true(job_step(&job, &in).accepted);
}

/* A slot as moved by effects; its counts must balance. */
struct slot {
    int reserved, running;
    int reserves, releases, commits, ends;
};

static void move_slot(struct slot *slot, enum job_effect effect)
{
    static const int moves[JOB_EFFECT_COUNT][2] = {
        [JOB_EFFECT_RESERVE] = {+1, 0},
        [JOB_EFFECT_RELEASE_RESERVED] = {-1, 0},
        [JOB_EFFECT_COMMIT] = {-1, +1},
        [JOB_EFFECT_DEC_RUNNING] = {0, -1},
    };

    slot->reserved += moves[effect][0];
    slot->running += moves[effect][1];
    slot->reserves += effect == JOB_EFFECT_RESERVE;
    slot->releases += effect == JOB_EFFECT_RELEASE_RESERVED;
    slot->commits += effect == JOB_EFFECT_COMMIT;
    slot->ends += effect == JOB_EFFECT_DEC_RUNNING;
    assert_in_range(slot->reserved, 0, 1);
    assert_in_range(slot->running, 0, 1);
    assert_true(slot->reserved + slot->running <= 1);
}

/* In which states a slot is held; in FAILED a running one only after a running job was
 * cancelled. */
static void assert_slot(const struct slot *slot, enum job_state at, bool cancelled_running)
{
    assert_int_equal(slot->reserved, at == JOB_RESERVED || at == JOB_DISPATCHED);
    assert_int_equal(slot->running, at == JOB_ACKED || (at == JOB_FAILED && cancelled_running));
    assert_int_equal(slot->reserves, slot->releases + slot->commits + slot->reserved);
    assert_int_equal(slot->commits, slot->ends + slot->running);
}

static void test_effects_balance_on_any_path(void **state)
{
    enum { PATHS = 20000, STEPS = 120 };
    int ended[JOB_STATE_COUNT] = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 11);
    for (int path = 0; path < PATHS; path++) {
        struct job_facts job = {.state = JOB_NEW, .attempt = 1, .node = N1};
        struct slot slot = {0};
        bool cancelled_running = false;

        job.max_attempts = 1 + (int)rnd_below(&rnd, JOB_ATTEMPTS_MAX);
        for (int i = 0; i < STEPS; i++) {
            enum job_event event = (enum job_event)rnd_below(&rnd, JOB_EVENT_COUNT);
            struct job_input in = {.event = event, .candidates_left = rnd_below(&rnd, 2)};
            struct job_step step;

            if (event == JOB_EV_CANCEL && rnd_below(&rnd, 8) != 0)
                continue;
            if (from_node(event)) {
                in.attempt = job.attempt - (rnd_below(&rnd, 4) == 0);
                in.node = rnd_below(&rnd, 4) == 0 ? STR("n2") : N1;
            }
            step = job_step(&job, &in);
            if (!step.accepted)
                continue;
            assert_false(job_state_final(job.state));
            assert_in_range(step.attempt, job.attempt, job.max_attempts);
            cancelled_running = job.state == JOB_ACKED && event == JOB_EV_CANCEL;
            move_slot(&slot, step.effect);
            assert_slot(&slot, step.state, cancelled_running);
            job.state = step.state;
            job.attempt = step.attempt;
        }
        ended[job.state]++;
    }
    assert_true(ended[JOB_DONE] > 100 && ended[JOB_FAILED] > 100); /* both ends were reached */
}

static void test_names(void **state)
{
    static const char *const status[JOB_STATE_COUNT] = {
        [JOB_NEW] = "Created",           [JOB_SELECTING] = "Created", [JOB_RESERVED] = "Created",
        [JOB_DISPATCHED] = "Dispatched", [JOB_ACKED] = "Running",     [JOB_RETRYING] = "Requeue",
        [JOB_DONE] = "Finished",         [JOB_FAILED] = "Failed",
    };

    for (int i = 0; i < JOB_STATE_COUNT; i++) {
        enum job_state found;

        assert_true(job_state_by_name(str_of(job_state_name((enum job_state)i)), &found));
        assert_int_equal(found, i);
        assert_string_equal(job_status_name((enum job_state)i), status[i]);
        assert_int_equal(job_state_final((enum job_state)i), i == JOB_DONE || i == JOB_FAILED);
    }
    for (int i = 0; i < JOB_EVENT_COUNT; i++)
        assert_non_null(job_event_name((enum job_event)i));
    for (int i = 0; i < JOB_EFFECT_COUNT; i++)
        assert_non_null(job_effect_name((enum job_effect)i));
    assert_false(job_state_by_name(STR("DONE "), &(enum job_state){0}));
}

static void test_last_words(void **state)
{
    assert_true(job_status_ok(STR("ok")));
    assert_true(job_status_ok(STR_NONE));
    assert_false(job_status_ok(STR("error")));
    assert_false(job_status_ok(STR("OK")));
    assert_false(job_status_ok(STR("")));
    assert_true(job_reason_is_refusal(STR("NODE_OVERLOADED")));
    assert_true(job_reason_is_refusal(STR("TYPE_NOT_ALLOWED")));
    assert_false(job_reason_is_refusal(STR("MODEL_LOAD_FAILED")));
    assert_false(job_reason_is_refusal(STR_NONE));
}

/* Ids. Each test uses a later hour, since the ids of a process only grow. */
#define HOUR_MS(n) (INT64_C(1750000000000) + (n)*INT64_C(3600000))

/* The smallest id of this millisecond: 13 bits of sequence and 9 of instance follow. */
static uint64_t first_id(int64_t wall_ms)
{
    return (uint64_t)(wall_ms - INT64_C(1704067200000)) << 22;
}

static void test_id_parts(void **state)
{
    uint64_t id = job_id_next(HOUR_MS(1), 300);

    assert_int_equal(id & 511, 300);
    assert_in_range(id, first_id(HOUR_MS(1)) + 300, first_id(HOUR_MS(1) + 1) - 1);
}

static void test_ids_grow_when_the_clock_does_not(void **state)
{
    uint64_t last = job_id_next(HOUR_MS(2), 0);

    for (int i = 0; i < 20000; i++) { /* more than fit into one ms */
        uint64_t id = job_id_next(HOUR_MS(2), (unsigned)i % 512);

        assert_true(id >> 9 > last >> 9);
        last = id;
    }
    assert_in_range(last, first_id(HOUR_MS(2) + 2), first_id(HOUR_MS(2) + 4) - 1);
    assert_true(job_id_next(HOUR_MS(1), 0) > last); /* the clock was set back */
    assert_true(job_id_next(0, 0) > last);
    assert_true(job_id_next(INT64_MIN, 0) > last);
}

static void test_floor(void **state)
{
    uint64_t known = first_id(HOUR_MS(4)) | 511;
    uint64_t id;

    job_id_floor(known);
    id = job_id_next(HOUR_MS(3), 0);
    assert_true(id > known);
    job_id_floor(first_id(HOUR_MS(3))); /* lower than the last id: no effect */
    assert_true(job_id_next(HOUR_MS(3), 0) > id);
}

static void test_text_round_trip_and_order(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 12);
    for (int i = 0; i < 100000; i++) {
        uint64_t a = rnd_next(&rnd) >> 1 >> rnd_below(&rnd, 63) | 1;
        uint64_t b = rnd_below(&rnd, 4) == 0 ? a + 1 : rnd_next(&rnd) >> 1 | 1;
        char a_text[JOB_ID_TEXT + 1], b_text[JOB_ID_TEXT + 1];
        uint64_t back;

        b &= INT64_MAX;
        job_id_text(a, a_text);
        job_id_text(b, b_text);
        assert_int_equal(strlen(a_text), JOB_ID_TEXT);
        assert_true(job_id_parse(str_of(a_text), &back));
        assert_true(back == a);
        assert_true((a < b) == (strcmp(a_text, b_text) < 0));
        assert_true(str_is_id(str_of(a_text), 64));
    }
}

static void test_texts_that_are_no_ids(void **state)
{
    static const char *const wrong[] = {
        "",
        "j",
        "j000000000000",   /* too short */
        "j00000000000010", /* too long */
        "k0000000000001",  /* another kind */
        "J0000000000001",  /* capitals are not an alias */
        "j000000000000A",  /* nor here */
        "j000000000000i",  /* not in the alphabet */
        "j000000000000l",
        "j000000000000o",
        "j000000000000u",
        "j000000000000-",
        "j8000000000000", /* 64 bits */
        "jzzzzzzzzzzzzz", /* 65 bits */
        "j0000000000000", /* 0 is never an id */
    };
    uint64_t id = 77;

    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_false(job_id_parse(str_of(wrong[i]), &id));
    assert_false(job_id_parse((struct str){.at = "j000000000000\0", .len = 14}, &id));
    assert_true(id == 77);
    assert_true(job_id_parse(STR("j7zzzzzzzzzzzz"), &id));
    assert_true(id == INT64_MAX);
    assert_true(job_id_parse(STR("j0000000000001"), &id));
    assert_true(id == 1);
}

enum { THREADS = 4, IDS = 20000 };

static void *make_ids(void *arg)
{
    uint64_t *ids = arg;

    for (int i = 0; i < IDS; i++)
        ids[i] = job_id_next(HOUR_MS(5) + i / 1000, 7);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void test_threads_never_share_an_id(void **state)
{
    static uint64_t ids[THREADS * IDS];
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_ids, ids + i * IDS), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 1; i < THREADS * IDS; i++)
        if (i % IDS != 0)
            assert_true(ids[i - 1] < ids[i]); /* each thread's ids grow */
    qsort(ids, THREADS * IDS, sizeof ids[0], by_value);
    for (int i = 1; i < THREADS * IDS; i++)
        assert_true(ids[i - 1] < ids[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_states_and_events),
        cmocka_unit_test(test_last_attempt_without_candidates),
        cmocka_unit_test(test_final_stays_final),
        cmocka_unit_test(test_strangers_are_ignored),
        cmocka_unit_test(test_a_node_must_say_who_and_which),
        cmocka_unit_test(test_a_late_sweep_is_ignored),
        cmocka_unit_test(test_effects_balance_on_any_path),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_id_parts),
        cmocka_unit_test(test_ids_grow_when_the_clock_does_not),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_text_round_trip_and_order),
        cmocka_unit_test(test_texts_that_are_no_ids),
        cmocka_unit_test(test_threads_never_share_an_id),
    };

    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
