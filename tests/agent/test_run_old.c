/* Runs on an old kernel, or in a container whose filter lacks newer system calls: they are refused
 * to this process and its children. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "run_rig.h"

static bool refuse_new_calls(void)
{
    static struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    static const struct sock_fprog program = {.len = COUNT_OF(rules), .filter = rules};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void test_ends(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(rig, "old.1", "echo here; exit 4", NULL);

    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 4, -1);
    assert_true(str_is(run->exit.tail, "here\n"));
    run = rig_sh(rig, "old.2", "exit 0", &(struct run_spec){.cwd = STR("/no/such/place")});
    rig_await_end(rig, run);
    assert_exit(run, "START_FAILED", -1, -1);
}

static void check_stop(struct rig *rig, const char *key)
{
    struct run *run =
        rig_sh(rig, key, "trap '' TERM; setsid sleep 600 & echo $! > ../pid; wait; wait", NULL);
    int64_t pid;

    rig_await(rig, rig_read_pid(rig_path(rig, "%s/pid", key)) > 0);
    pid = rig_read_pid(rig_path(rig, "%s/pid", key));
    assert_true(rig_alive(pid));
    run_stop(run, "STOPPED", 100);
    rig_await_end(rig, run);
    assert_string_equal(run->exit.reason, "STOPPED");
    assert_false(rig_alive(pid));
}

static void test_stop(void **state)
{
    check_stop(*state, "old.stop");
}

static void test_stop_without_cgroups(void **state)
{
    struct rig *rig = *state;
    struct cgroup_place place = rig->runs->place;

    rig->runs->place = (struct cgroup_place){0};
    check_stop(rig, "old.proc");
    rig->runs->place = place;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ends, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_stop, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_stop_without_cgroups, rig_setup, rig_teardown),
    };

    if (!refuse_new_calls())
        return 77; /* skipped: filters are not permitted here */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
