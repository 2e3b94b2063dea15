/* Runs with real processes. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run_rig.h"

/* --- how it ends --- */

static void test_ends(void **state)
{
    static const struct {
        const char *key, *script, *reason;
        int exit_code, signal;
        const char *tail;
    } rows[] = {
        {"e.0", "exit 0", "EXITED", 0, -1, ""},
        {"e.3", "echo out; echo err >&2; exit 3", "EXITED", 3, -1, "out\nerr\n"},
        {"e.255", "exit 255", "EXITED", 255, -1, ""},
        {"e.segv", "kill -SEGV $$", "SIGNALLED", -1, SIGSEGV, ""},
        {"e.kill", "printf half; kill -KILL $$", "SIGNALLED", -1, SIGKILL, "half"},
        {"e.utf8", "printf 'a\\377b\\303\\244'", "EXITED", 0, -1,
         "a\xEF\xBF\xBD"
         "b\xC3\xA4"},
    };
    struct rig *rig = *state;
    struct run *runs[COUNT_OF(rows)];

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        runs[i] = rig_sh(rig, rows[i].key, rows[i].script, NULL);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        rig_await_end(rig, runs[i]);
        assert_exit(runs[i], rows[i].reason, rows[i].exit_code, rows[i].signal);
        if (!str_is(runs[i]->exit.tail, rows[i].tail))
            fail_msg("%s: tail \"" STR_FMT "\"", rows[i].key, STR_ARG(runs[i]->exit.tail));
        assert_true(runs[i]->exit.started_ms > 0);
        assert_true(runs[i]->exit.ended_ms >= runs[i]->exit.started_ms);
        assert_true(runs[i]->exit.rss_kb_max > 0);
        run_forget(runs[i]);
    }
    assert_int_equal(rig->started, COUNT_OF(rows));
    assert_int_equal(rig->ended, COUNT_OF(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ends, rig_setup, rig_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
