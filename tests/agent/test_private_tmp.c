/* A /tmp of one's own, as whoever may and as anybody else: in processes of their own, which do not
 * come back. */
#include "agent/private_tmp.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

static int ended(pid_t pid)
{
    int status = -1;

    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* As an agent that somebody has started by hand. */
static bool be_nobody(void)
{
    const struct passwd *nobody = getpwnam("nobody");

    return geteuid() != 0 || (nobody && setgid(nobody->pw_gid) == 0 &&
                              setuid(nobody->pw_uid) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
}

/* Where it was begun is the directory with both, 0 if all is as it should be. */
static int look_around(bool user_namespace)
{
    const char *const from[PRIVATE_TMP_DIRS] = {"first", "second"};
    uid_t uid = geteuid();

    if (private_tmp_enter(from, user_namespace) != 0)
        return 2;
    if (geteuid() != uid || access("/tmp/in-first", F_OK) != 0 ||
        (access("/var/tmp", F_OK) == 0 && access("/var/tmp/in-second", F_OK) != 0))
        return 3;
    if (mkdir("/tmp/new", 0700) != 0 || access("first/new", F_OK) != 0)
        return 4;
    return 0;
}

static void in_both_ways(bool nobody)
{
    char dir[] = "private-XXXXXX", command[160];
    int error;
    pid_t pid;

    pid = fork();
    if (pid == 0)
        _exit(!nobody || be_nobody() ? private_tmp_probe(nobody) : EPERM);
    error = ended(pid);
    if (error == EPERM || error == EACCES || error == ENOSPC) /* the kernel, or a container */
        skip();
    assert_int_equal(error, 0);
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command,
             "cd %s && mkdir first second && touch first/in-first second/in-second && "
             "chmod -R a+rwX . && cd ..",
             dir);
    assert_int_equal(system(command), 0);
    pid = fork();
    if (pid == 0) {
        if (chdir(dir) != 0 || (nobody && !be_nobody()))
            _exit(1);
        _exit(look_around(nobody));
    }
    assert_int_equal(ended(pid), 0);
    assert_int_equal(access("/tmp/in-first", F_OK), -1); /* for nobody but that process */
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void test_as_we_are(void **state)
{
    if (geteuid() != 0)
        skip();
    in_both_ways(false);
}

static void test_as_anybody(void **state)
{
    in_both_ways(true);
}

static void test_hides(void **state)
{
    assert_string_equal(private_tmp_hides("/tmp/berth/runs"), "/tmp");
    assert_string_equal(private_tmp_hides("/tmp"), "/tmp");
    assert_null(private_tmp_hides("/tmpfs/berth"));
    assert_null(private_tmp_hides("/var/lib/berth-agent/runs"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_we_are),
        cmocka_unit_test(test_as_anybody),
        cmocka_unit_test(test_hides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
