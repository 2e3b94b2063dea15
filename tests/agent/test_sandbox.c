/* Private /tmp, shared memory and queues, with and without privileges; in child processes that
 * exit. */
#include "agent/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

static int ended(pid_t pid)
{
    int status = -1;

    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Becomes nobody, like an agent started by hand. */
static bool be_nobody(void)
{
    const struct passwd *nobody = getpwnam("nobody");

    return geteuid() != 0 || (nobody && setgid(nobody->pw_gid) == 0 &&
                              setuid(nobody->pw_uid) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
}

/* Shared by all users of the machine, so only a namespace can hide it. */
struct shared {
    int memory, queue, semaphore; /* System V */
    char name[32];                /* of a POSIX queue, and of a file in /dev/shm */
    char file[48];
};

static void share(struct shared *shared)
{
    int fd;

    shared->memory = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0666);
    shared->queue = msgget(IPC_PRIVATE, IPC_CREAT | 0666);
    shared->semaphore = semget(IPC_PRIVATE, 1, IPC_CREAT | 0666);
    assert_true(shared->memory >= 0 && shared->queue >= 0 && shared->semaphore >= 0);
    snprintf(shared->name, sizeof shared->name, "berth-test-%d", (int)getpid());
    fd = (int)syscall(SYS_mq_open, shared->name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666, NULL);
    assert_true(fd >= 0);
    close(fd);
    snprintf(shared->file, sizeof shared->file, "/dev/shm/%s", shared->name);
    fd = open(shared->file, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    close(fd);
}

/* How many of them are accessible here. */
static int found(const struct shared *shared)
{
    struct shmid_ds memory;
    struct msqid_ds queue;
    int fd = (int)syscall(SYS_mq_open, shared->name, O_RDONLY | O_CLOEXEC, 0, NULL);

    if (fd >= 0)
        close(fd);
    return (shmctl(shared->memory, IPC_STAT, &memory) == 0) +
           (msgctl(shared->queue, IPC_STAT, &queue) == 0) +
           (semctl(shared->semaphore, 0, GETVAL) >= 0) + (fd >= 0) +
           (access(shared->file, F_OK) == 0);
}

static void unshare_all(struct shared *shared)
{
    assert_int_equal(shmctl(shared->memory, IPC_RMID, NULL), 0);
    assert_int_equal(msgctl(shared->queue, IPC_RMID, NULL), 0);
    assert_int_equal(semctl(shared->semaphore, 0, IPC_RMID), 0);
    assert_int_equal(syscall(SYS_mq_unlink, shared->name), 0);
    assert_int_equal(unlink(shared->file), 0);
}

/* Runs in the directory that holds both. Returns 0 if everything is as it should be. */
static int look_around(bool user_namespace, const struct shared *shared)
{
    const char *const from[PRIVATE_TMP_DIRS] = {"first", "second"};
    uid_t uid = geteuid();

    if (found(shared) != 5)
        return 5;
    if (private_tmp_enter(from, user_namespace) != 0)
        return 2;
    if (found(shared) != 0)
        return 6;
    /* New ones can be made, also with a name that exists outside. */
    if (mkdir(shared->file, 0700) != 0 || shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) < 0 ||
        syscall(SYS_mq_open, shared->name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600, NULL) < 0)
        return 7;
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
    struct shared shared;
    int error;
    pid_t pid;

    pid = fork();
    if (pid == 0)
        _exit(!nobody || be_nobody() ? private_tmp_probe(nobody) : EPERM);
    error = ended(pid);
    /* Not permitted by the kernel or a container. */
    if (error == EPERM || error == EACCES || error == ENOSPC)
        skip();
    assert_int_equal(error, 0);
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command,
             "cd %s && mkdir first second && touch first/in-first second/in-second && "
             "chmod -R a+rwX . && cd ..",
             dir);
    assert_int_equal(system(command), 0);
    umask(0);
    share(&shared);
    pid = fork();
    if (pid == 0) {
        if (chdir(dir) != 0 || (nobody && !be_nobody()))
            _exit(1);
        _exit(look_around(nobody, &shared));
    }
    assert_int_equal(ended(pid), 0);
    assert_int_equal(found(&shared), 5);
    unshare_all(&shared);
    assert_int_equal(access("/tmp/in-first", F_OK), -1); /* visible only in that process */
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
    assert_string_equal(private_tmp_hides("/dev/shm/berth"), "/dev/shm");
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
