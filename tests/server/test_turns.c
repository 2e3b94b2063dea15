/* In which turn of the loop each request begins, and that no caller gets more than its share. */
#include "../unit.h"

#include "server/turns.h"

#include <string.h>

static struct turns turns;
static struct inbox inbox;
static char order[256]; /* a letter for each job begun, a bar for each turn of the loop */

struct job {
    struct turn turn;
    char name;
    bool at_once; /* ends as soon as it begins */
};

static void begun(struct turn *turn)
{
    struct job *job = container_of(turn, struct job, turn);

    strncat(order, &job->name, 1);
    if (job->at_once)
        turns_leave(&turns);
}

static int setup(void **state)
{
    inbox = (struct inbox){.wake = NULL};
    turns_init(&turns, &inbox);
    order[0] = 0;
    return 0;
}

static void enter(struct job *job, char name, bool at_once, uint64_t caller)
{
    *job = (struct job){.turn.run = begun, .name = name, .at_once = at_once};
    turns_enter(&turns, caller, &job->turn);
}

static void loop_turns(int count)
{
    while (count-- > 0) {
        strcat(order, "|");
        inbox_run(&inbox);
    }
}

static void one_in_a_turn_of_the_loop(void **state)
{
    struct job jobs[4];

    for (int i = 0; i < 4; i++)
        enter(&jobs[i], (char)('a' + i), true, 7);
    loop_turns(6);
    assert_string_equal(order, "a|b|c|d|||");
    enter(&jobs[0], 'e', true, 7);
    assert_string_equal(order, "a|b|c|d|||e");
}

static void a_few_under_way(void **state)
{
    struct job jobs[7];

    for (int i = 0; i < 7; i++)
        enter(&jobs[i], (char)('a' + i), false, 7);
    loop_turns(6);
    assert_string_equal(order, "a|b|c|d|||");
    turns_leave(&turns);
    turns_leave(&turns);
    loop_turns(3);
    assert_string_equal(order, "a|b|c|d||||e|f|");
    for (int i = 0; i < 4; i++)
        turns_leave(&turns);
    loop_turns(2);
    assert_string_equal(order, "a|b|c|d||||e|f||g|");
    turns_leave(&turns);
    assert_int_equal(turns.under_way, 0);
}

static void callers_come_round(void **state)
{
    struct job many[20], one, other;

    for (int i = 0; i < 20; i++)
        enter(&many[i], 'm', true, 1);
    enter(&one, 'x', true, 2);
    enter(&other, 'y', true, 3);
    loop_turns(4);
    assert_string_equal(order, "m|x|y|m|m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(one_in_a_turn_of_the_loop, setup),
        cmocka_unit_test_setup(a_few_under_way, setup),
        cmocka_unit_test_setup(callers_come_round, setup),
    };

    return cmocka_run_group_tests_name("server/turns", tests, NULL, NULL);
}
