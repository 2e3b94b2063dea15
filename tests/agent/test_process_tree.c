/* Trees of processes: listed and killed. */
#include "agent/process_tree.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run_rig.h"

/* Each process of the tree writes its pid as a line. */
static pid_t spawn(const char *script, const char *mark, FILE **ret_lines)
{
    int fds[2];
    pid_t pid;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        char *env[] = {(char *)mark, "PATH=/usr/bin:/bin", NULL};

        dup2(fds[1], STDOUT_FILENO);
        execle("/bin/sh", "sh", "-c", script, NULL, mark ? env : env + 1);
        _exit(127);
    }
    close(fds[1]);
    *ret_lines = fdopen(fds[0], "r");
    return pid;
}

static int number(FILE *lines)
{
    int value = 0;

    assert_int_equal(fscanf(lines, "%d", &value), 1);
    return value;
}

static void reap(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void test_proc(void **state)
{
    struct run_proc self, other;

    prctl(PR_SET_NAME, "a) R 1 (b"); /* a name that looks like the fields after it */
    assert_true(process_tree_proc(getpid(), &self));
    prctl(PR_SET_NAME, "test_run_tree");
    assert_int_equal(self.pid, getpid());
    assert_int_equal(self.parent, getppid());
    assert_true(self.start > 0 && self.rss_bytes > 0 && self.ticks >= 0);
    assert_true(self.state == 'R' || self.state == 'S');
    assert_true(process_tree_proc(getppid(), &other) && other.start <= self.start);
    assert_false(process_tree_proc(0x3fffffff, &self));
}

static void test_list_and_kill(void **state)
{
    struct run_proc *procs;
    FILE *lines;
    pid_t pid =
        spawn("sh -c 'sleep 600 & sleep 600 & echo $$; wait' & sleep 600 & wait", NULL, &lines);
    size_t count;

    number(lines);
    for (;;) { /* until the last sleep is running */
        count = process_tree_list(pid, &procs);
        assert_true(count <= 4);
        if (count == 4)
            break;
        free(procs);
        sched_yield();
    }
    assert_int_equal(procs[0].parent, pid); /* parents come first */
    for (size_t i = 0; i < count; i++)
        assert_true(rig_alive(procs[i].pid));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    process_tree_kill(pid);
    reap(pid); /* `wait` returned */
    for (size_t i = 0; i < count; i++)
        while (rig_alive(procs[i].pid))
            sched_yield();
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    free(procs);
    fclose(lines);
}

/* A pid that belongs to another process by now is never signalled. */
static void test_kill_one(void **state)
{
    struct run_proc proc;
    FILE *lines;
    pid_t pid = spawn("echo $$; exec sleep 600", NULL, &lines);

    number(lines);
    assert_true(process_tree_proc(pid, &proc));
    assert_false(process_tree_kill_one(pid, proc.start + 1, SIGKILL));
    assert_true(rig_alive(pid));
    assert_true(process_tree_kill_one(pid, proc.start, SIGKILL));
    reap(pid);
    assert_false(process_tree_kill_one(pid, proc.start, SIGKILL));
    fclose(lines);
}

static void test_kill_marked(void **state)
{
    FILE *lines, *others;
    pid_t pid = spawn("sleep 600 & echo $!; wait", "BERTH_RUN=t/1", &lines);
    pid_t other = spawn("echo $$; exec sleep 600", "BERTH_RUN=t/12", &others);
    int child = number(lines);

    number(others);
    /* Repeated, as the shell may be seen before its child has the environment. */
    while (rig_alive(pid) || rig_alive(child))
        process_tree_kill_marked(STR("BERTH_RUN=t/1"));
    reap(pid);
    assert_true(rig_alive(other)); /* its mark is another one with the same beginning */
    assert_int_equal(process_tree_kill_marked(STR("BERTH_RUN=t/1")), 0);
    kill(other, SIGKILL);
    reap(other);
    fclose(lines);
    fclose(others);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proc),
        cmocka_unit_test(test_list_and_kill),
        cmocka_unit_test(test_kill_one),
        cmocka_unit_test(test_kill_marked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
