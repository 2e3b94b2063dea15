/* Updates of several copies: which are next, when it is over, when it has failed. */
#include "model/rollout.h"

#include <stdio.h>
#include <string.h>

#include "../unit.h"

enum { OLD = 1, NEW = 2, COPIES_MAX = 6 };

/* A letter for each copy: the version it should run, the one it runs, and its state. */
static struct rollout_copy copy_of(char letter)
{
    switch (letter) {
    case 'o': /* the old version, well */
        return (struct rollout_copy){OLD, OLD, ROLLOUT_WELL, true, false};
    case 'x': /* the old version, not well */
        return (struct rollout_copy){OLD, OLD, ROLLOUT_FAILED, true, false};
    case '-': /* the old version, unowned */
        return (struct rollout_copy){OLD, 0, ROLLOUT_UNKNOWN, false, false};
    case '>': /* should run the new version, still runs the old */
        return (struct rollout_copy){NEW, OLD, ROLLOUT_WELL, true, false};
    case '?': /* runs the new version, state unknown */
        return (struct rollout_copy){NEW, NEW, ROLLOUT_UNKNOWN, true, false};
    case 'N': /* the new version, well */
        return (struct rollout_copy){NEW, NEW, ROLLOUT_WELL, true, false};
    case 'F': /* the new version, failed */
        return (struct rollout_copy){NEW, NEW, ROLLOUT_FAILED, true, false};
    case 'L': /* runs the new version, not failed, time is over */
        return (struct rollout_copy){NEW, NEW, ROLLOUT_UNKNOWN, true, true};
    case 'l': /* the same, still runs the old version */
        return (struct rollout_copy){NEW, OLD, ROLLOUT_WELL, true, true};
    case '_': /* the same, unowned */
        return (struct rollout_copy){NEW, 0, ROLLOUT_UNKNOWN, false, true};
    case 'W': /* well for a long time */
        return (struct rollout_copy){NEW, NEW, ROLLOUT_WELL, true, true};
    default: /* ' ': the new version, unowned */
        return (struct rollout_copy){NEW, 0, ROLLOUT_UNKNOWN, false, false};
    }
}

static void test_plans(void **state)
{
    static const struct {
        const char *copies;
        int64_t max_unavailable;
        const char *next; /* indexes */
        bool done;
        int failed; /* -1: none */
    } rows[] = {
        /* one at a time */
        {"ooo", 1, "0", false, -1},
        {">oo", 1, "", false, -1},
        {"?oo", 1, "", false, -1},
        {"Noo", 1, "1", false, -1},
        {"NNo", 1, "2", false, -1},
        {"NN?", 1, "", false, -1},
        {"NNN", 1, "", true, -1},
        /* several at a time, and all at once */
        {"ooooo", 2, "01", false, -1},
        {">Nooo", 2, "2", false, -1},
        {"??ooo", 2, "", false, -1},
        {"ooo", 9, "012", false, -1},
        /* the first failure; nothing more is replaced */
        {"Foo", 1, "", false, 0},
        {"NFo", 1, "", false, 1},
        {"FFo", 2, "", false, 0},
        /* copies that are not well come first, and cost no availability */
        {"oox", 1, "2", false, -1},
        {"xxx", 1, "0", false, -1},
        {"xxo", 2, "01", false, -1},
        {"oxo", 2, "10", false, -1},
        {"Nxo", 1, "1", false, -1},
        {"N?x", 1, "", false, -1},
        /* unowned copies come last, and are not waited for */
        {"o-o", 1, "0", false, -1},
        {"> o", 1, "", false, -1},
        {"N-?", 1, "", false, -1},
        {"N-N", 1, "1", false, -1},
        {"N N", 1, "", true, -1},
        {"--", 1, "01", false, -1},
        {"  ", 1, "", false, -1}, /* nothing was tried yet */
        {" ", 1, "", false, -1},
        /* time over counts as failed, but a real failure comes first */
        {"Loo", 1, "", false, 0},
        {"Nlo", 1, "", false, 1},
        {"_oo", 1, "1", false, 0},
        {"LF", 2, "", false, 1},
        {"WW", 1, "", true, -1},
        /* going back: failed copies come first, and failures do not stop it */
        {"<o-o", 1, "10", false, -1},
        {"<Fo-", 1, "2", false, 0},
        {"<NFx", 2, "2", false, 1},
        {"<Fxxo", 1, "12", false, 0}, /* a copy that is not well anyway loses nothing */
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct rollout_copy copies[COPIES_MAX];
        bool back = rows[i].copies[0] == '<';
        const char *letters = rows[i].copies + back;
        size_t count = strlen(letters), next[COPIES_MAX];
        struct rollout_plan plan;
        char text[COPIES_MAX + 1] = "";

        for (size_t k = 0; k < count; k++)
            copies[k] = copy_of(letters[k]);
        rollout_plan(copies, count,
                     &(struct rollout_rules){.to_version = NEW,
                                             .max_unavailable = rows[i].max_unavailable,
                                             .back = back},
                     next, &plan);
        for (size_t k = 0; k < plan.count; k++)
            text[k] = (char)('0' + next[k]);
        assert_string_equal(text, rows[i].next);
        assert_int_equal(plan.done, rows[i].done);
        assert_int_equal((int)plan.failed, rows[i].failed);
        assert_int_equal(plan.late, rows[i].failed >= 0 && strchr("Ll_", letters[rows[i].failed]));
    }
}

static void test_health(void **state)
{
    static const struct {
        const char *state, *healthy;
        enum rollout_health health;
    } rows[] = {
        {"running", "true", ROLLOUT_WELL},        {"running", "null", ROLLOUT_UNKNOWN},
        {"running", "false", ROLLOUT_UNKNOWN},    {"unhealthy", "false", ROLLOUT_UNKNOWN},
        {"backoff", "false", ROLLOUT_FAILED},     {"crash_loop", "false", ROLLOUT_FAILED},
        {"refused", "false", ROLLOUT_FAILED},     {"failed", "false", ROLLOUT_FAILED},
        {"finished", "true", ROLLOUT_WELL},       {"updating", "true", ROLLOUT_UNKNOWN},
        {"installing", "false", ROLLOUT_UNKNOWN}, {"stopped", "false", ROLLOUT_UNKNOWN},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(rollout_health(str_of(rows[i].state), str_of(rows[i].healthy)),
                         rows[i].health);
}

static void test_names(void **state)
{
    for (enum rollout_state one = ROLLOUT_NONE; one < ROLLOUT_STATE_COUNT; one++)
        assert_int_equal(rollout_state_by_name(str_of(rollout_state_name(one))), one);
    assert_int_equal(rollout_state_by_name(STR("whatever")), ROLLOUT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_health),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests_name("rollout", tests, NULL, NULL);
}
