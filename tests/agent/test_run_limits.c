/* Very many runs and a full disk: nothing leaks, hangs or is lost. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "run_rig.h"

enum { MANY = 500, AT_ONCE = 25 };

static void test_many(void **state)
{
    struct rig *rig = *state;
    int started = 0, fds;
    char key[32];

    rig->forget = true;
    rig_sh(rig, "warm", "exit 0", NULL);
    rig_await(rig, rig->ended == 1 && !rig->runs->trash_busy);
    rig->ended = 0;
    fds = rig_fds();
    while (rig->ended < MANY) {
        while (started < MANY && started - rig->ended < AT_ONCE) {
            snprintf(key, sizeof key, "many%d.1", started++);
            rig_sh(rig, key, "echo $$; exit 0", NULL);
        }
        uv_run(&rig->loop.uv, UV_RUN_ONCE);
    }
    assert_int_equal(rig->started, MANY + 1);
    rig_await(rig, !rig->runs->trash_busy && rig_fds() == fds);
    rig_await(rig, rig_zombies() == 0);
    assert_int_equal(runs_count(rig->runs), 0);
    assert_null(runs_next(rig->runs, NULL));
    assert_int_equal(rmdir(rig_path(rig, RUN_TRASH)), 0);
    assert_int_equal(rmdir(rig->dir), 0); /* it is empty */
    assert_int_equal(mkdir(rig->dir, 0700), 0);
}

/* More orders than the spawner's socket holds: the rest waits. */
static void test_burst(void **state)
{
    struct rig *rig = *state;
    char key[32];

    kill(rig->runs->spawner.pid, SIGSTOP);
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "burst%d.1", i);
        rig_sh(rig, key, "exit 0", NULL);
    }
    assert_false(TAILQ_EMPTY(&rig->runs->spawner.unsent)); /* some are unsent */
    run_stop(&TAILQ_LAST(&rig->runs->spawner.unsent, run_unsent)->run, "CANCELLED", -1);
    rig->forget = true;
    kill(rig->runs->spawner.pid, SIGCONT);
    rig_await(rig, rig->ended == MANY);
}

/* The agent stops while orders wait: they are not started, and the next agent reports so. */
static void test_unsent(void **state)
{
    struct rig *rig = *state;
    char key[32];
    int failed = 0;

    kill(rig->runs->spawner.pid, SIGSTOP);
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "unsent%d.1", i);
        rig_sh(rig, key, "exit 0", NULL);
    }
    rig_close(rig); /* also kills the spawner with its unread orders */
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(rig->found, MANY);
    rig_await(rig, runs_count(rig->runs) == 0);
    for (struct run *run = NULL; (run = runs_next(rig->runs, run));)
        failed += strcmp(run->exit.reason, "START_FAILED") == 0;
    assert_int_equal(failed, MANY);
}

/* --- a disk that is full --- */

/* A small file system that only this process and its children see. */
static bool make_small_disk(const char *dir)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("small", dir, "tmpfs", 0, "size=128k,mode=0700") == 0;
}

static void fill(struct rig *rig)
{
    int fd = open(rig_path(rig, "filler"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    char block[4096] = {0};

    assert_true(fd >= 0);
    while (write(fd, block, sizeof block) > 0)
        ;
    close(fd);
}

static bool is_full(struct rig *rig)
{
    struct statvfs fs;

    assert_int_equal(statvfs(rig->dir, &fs), 0);
    return fs.f_bavail == 0;
}

static int setup_small(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    *state = rig;
    rig_make(rig);
    if (!make_small_disk(rig->dir)) {
        rig_remove(rig);
        rig->dir[0] = '\0';
        return 0;
    }
    rig_open(rig);
    return 0;
}

static int teardown_small(void **state)
{
    struct rig *rig = *state;
    char dir[sizeof rig->dir];

    if (!rig->dir[0]) {
        free(rig);
        return 0;
    }
    strcpy(dir, rig->dir);
    unlink(rig_path(rig, "filler"));
    rig->forget = false;
    for (struct run *run = NULL; (run = runs_next(rig->runs, run));)
        run_stop(run, "STOPPED", 0);
    rig_await(rig, runs_count(rig->runs) == 0);
    rig_close(rig);
    assert_int_equal(umount2(dir, MNT_DETACH), 0);
    rig_remove(rig);
    free(rig);
    return 0;
}

static void test_full_at_the_start(void **state)
{
    struct rig *rig = *state;
    struct str argv = STR("true");
    struct run_spec spec = {.handler = &rig_handler, .key = STR("full"), .argv = &argv, .argc = 1};
    struct problem why = {0};
    struct run *run;

    if (!rig->dir[0])
        skip();
    fill(rig);
    assert_int_equal(runs_start(rig->runs, &spec, NULL, &run, &why), ERR_IO);
    assert_non_null(strstr(why.detail, "No space left"));
    assert_int_equal(runs_count(rig->runs), 0);
    assert_int_equal(access(rig_path(rig, "full"), F_OK), -1);
    unlink(rig_path(rig, "filler"));
    assert_int_equal(runs_start(rig->runs, &spec, NULL, &run, &why), ERR_OK);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
}

/* The disk is full while it runs: its output is dropped, and its end is still recorded. */
static void test_full_at_the_end(void **state)
{
    struct rig *rig = *state;
    struct run *run;

    if (!rig->dir[0])
        skip();
    run = rig_sh(rig, "late",
                 "cat /dev/zero > ../filler 2>/dev/null; mv ../filler ../../filler; echo lost; "
                 "exit 3",
                 NULL);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 3, -1);
    assert_true(str_is(run->exit.tail, "lost\n"));
    assert_int_equal(run->exit.output_bytes, 5);
    assert_int_equal(run->exit.output_dropped, 5);
    /* The filler was not removed for it. */
    assert_int_equal(access(rig_path(rig, "filler"), F_OK), 0);
}

/* One run fills the disk while another ends, with a record of the largest size. */
static void test_full_while_others_end(void **state)
{
    struct rig *rig = *state;
    struct run *hog, *other;

    if (!rig->dir[0])
        skip();
    other = rig_sh(rig, "other",
                   "until test -e ../../go; do sleep 0.01; done; "
                   "head -c 5000 /dev/zero | tr '\\0' '\\1'; exit 4",
                   NULL);
    hog = rig_sh(rig, "hog",
                 "cat /dev/zero > scratch 2>/dev/null; mkdir ../../go 2>/dev/null; "
                 "touch full; until test -e stop; do sleep 0.01; done",
                 NULL);
    rig_await(rig, is_full(rig));
    rig_await_end(rig, other);
    assert_exit(other, "EXITED", 4, -1);
    assert_int_equal(other->exit.tail.len, RUN_TAIL_BYTES);
    run_stop(hog, "STOPPED", 0);
    rig_await_end(rig, hog);
    rig_await(rig, !is_full(rig)); /* its scratch files were removed with it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_burst, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_unsent, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_full_at_the_start, setup_small, teardown_small),
        cmocka_unit_test_setup_teardown(test_full_at_the_end, setup_small, teardown_small),
        cmocka_unit_test_setup_teardown(test_full_while_others_end, setup_small, teardown_small),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
