/* A spawner that serves agents: it, or they, may go and come back under everything that runs. */
#include "agent/spawner.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run_rig.h"

struct bench {
    struct rig rig;
    char socket[96], group_file[96];
    char group[CGROUP_PATH_MAX]; /* that it may use; "": this machine gives none */
    pid_t pid;                   /* of the spawner; 0: none runs */
};

static void spawner_up(struct bench *bench)
{
    bench->pid = fork();
    if (bench->pid == 0) {
        execl(rig_shim(), "shim_helper", "spawner", bench->socket, bench->group_file, NULL);
        _exit(127);
    }
    assert_true(bench->pid > 0);
}

static void spawner_kill(struct bench *bench)
{
    kill(bench->pid, SIGKILL);
    assert_int_equal(waitpid(bench->pid, NULL, 0), bench->pid);
    bench->pid = 0;
}

/* A group of its own below ours, as the unit that keeps it would have: whoever were in it would be
 * moved. */
static void make_group(struct bench *bench)
{
    struct buf mounts = {0}, groups = {0}, text = {0};
    char own[CGROUP_PATH_MAX - 64];
    struct str rest;

    cgroup_file_get(AT_FDCWD, "/proc/self/mountinfo", &mounts);
    cgroup_file_get(AT_FDCWD, "/proc/self/cgroup", &groups);
    rest = buf_view(&groups);
    while (rest.at) {
        struct str line = str_cut(&rest, '\n');

        if (str_starts(line, STR("0::")))
            buf_fmt(&text, STR_FMT "/berth-test-%d\n", STR_ARG(line), (int)getpid());
    }
    if (cgroup_find(buf_view(&mounts), buf_view(&groups), NULL, own, sizeof own))
        snprintf(bench->group, sizeof bench->group, "%s/berth-test-%d", own, (int)getpid());
    if (bench->group[0] && mkdir(bench->group, 0755) != 0)
        bench->group[0] = '\0';
    close(open(bench->group_file, O_CREAT | O_WRONLY, 0600));
    if (text.len) {
        buf_char(&text, '\0');
        assert_int_equal(cgroup_file_put(AT_FDCWD, bench->group_file, text.at), 0);
    }
    buf_free(&mounts);
    buf_free(&groups);
    buf_free(&text);
}

static int setup(void **state)
{
    struct bench *bench = calloc(1, sizeof *bench);
    struct rig *rig = &bench->rig;

    rig_make(rig);
    snprintf(bench->socket, sizeof bench->socket, "%s.socket", rig->dir);
    snprintf(bench->group_file, sizeof bench->group_file, "%s.group", rig->dir);
    make_group(bench);
    rig->spawner = bench->socket;
    spawner_up(bench);
    rig_open(rig);
    rig_adopt(rig);
    rig_await(rig, rig->runs->spawner.fd >= 0 &&
                       (rig->runs->place.parent[0] != '\0') == (bench->group[0] != '\0'));
    *state = bench;
    return 0;
}

static int teardown(void **state)
{
    struct bench *bench = *state;
    struct rig *rig = &bench->rig;
    char command[CGROUP_PATH_MAX + 128];

    rig->forget = false;
    for (struct run *run = NULL; (run = runs_next(rig->runs, run));)
        run_stop(run, "STOPPED", 0);
    rig_await(rig, runs_count(rig->runs) == 0);
    rig_close(rig);
    if (bench->pid)
        spawner_kill(bench);
    if (bench->group[0]) { /* its shims may be a moment on their way out */
        snprintf(command, sizeof command, "find '%s' -depth -type d -exec rmdir {} + 2>/dev/null",
                 bench->group);
        for (int64_t until_ms = clock_mono_ms() + RIG_PATIENCE_MS;
             system(command) != 0 && clock_mono_ms() < until_ms;)
            usleep(1000);
        assert_int_equal(access(bench->group, F_OK), -1);
    }
    unlink(bench->socket);
    unlink(bench->group_file);
    rig_remove(rig);
    free(bench);
    return 0;
}

static void test_words(void **state)
{
    struct cgroup_place place = {.parent = "/sys/fs/cgroup/x/berth-1",
                                 .limits = {[CGROUP_PIDS] = true},
                                 .missing = "memory: no; cpu: no"};
    struct cgroup_place heard;
    struct buf text = {0};

    spawner_tell(&place, &text);
    buf_fmt(&text, "tomorrow something new\n\n"); /* of a later release */
    spawner_hear(buf_view(&text), &heard);
    assert_string_equal(heard.parent, place.parent);
    assert_string_equal(heard.missing, place.missing);
    assert_memory_equal(heard.limits, place.limits, sizeof place.limits);
    spawner_hear(STR(""), &heard);
    assert_string_equal(heard.parent, "");
    buf_free(&text);
}

static void test_runs(void **state)
{
    struct bench *bench = *state;
    struct rig *rig = &bench->rig;
    struct run *run = rig_sh(rig, "a.1", "echo $HOME; cat /proc/self/cgroup; exit 3", NULL);
    char *said;

    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 3, -1);
    said = rig_output(run);
    assert_int_equal(strncmp(said, getenv("HOME"), strlen(getenv("HOME"))), 0);
    if (bench->group[0])
        assert_non_null(strstr(said, "/a.1\n")); /* in its group, below the one that is kept */
    free(said);
}

/* The spawner is killed: what runs goes on, and what is asked for meanwhile starts when it is back.
 */
static void test_killed(void **state)
{
    struct bench *bench = *state;
    struct rig *rig = &bench->rig;
    struct run *before = rig_sh(
        rig, "before.1", "until [ -p ../go ]; do sleep 0.01; done; read x < ../go; exit 4", NULL);
    struct run *while_away;
    int fifo;

    assert_int_equal(mkfifo(rig_path(rig, "before.1/go"), 0600), 0);
    rig_await(rig, before->state == RUN_RUNNING);
    spawner_kill(bench);
    while_away = rig_sh(rig, "away.1", "exit 5", NULL);
    rig_await(rig, rig->runs->spawner.fd < 0);
    assert_int_equal(while_away->state, RUN_STARTING);
    spawner_up(bench);
    rig_await_end(rig, while_away);
    assert_exit(while_away, "EXITED", 5, -1);
    assert_int_equal(before->state, RUN_RUNNING);
    fifo = open(rig_path(rig, "before.1/go"), O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fifo, "\n", 1), 1);
    rig_await_end(rig, before);
    assert_exit(before, "EXITED", 4, -1);
    close(fifo);
}

/* Orders that it took along are sent to the next one. */
static void test_killed_with_orders(void **state)
{
    struct bench *bench = *state;
    struct rig *rig = &bench->rig;
    struct run *run[3];
    char key[16];

    kill(bench->pid, SIGSTOP);
    for (size_t i = 0; i < COUNT_OF(run); i++) {
        snprintf(key, sizeof key, "order%zu.1", i);
        run[i] = rig_sh(rig, key, "exit 6", NULL);
        assert_true(run[i]->priv->order_number == rig->runs->spawner.number); /* it was sent */
    }
    spawner_kill(bench);
    spawner_up(bench);
    for (size_t i = 0; i < COUNT_OF(run); i++) {
        rig_await_end(rig, run[i]);
        assert_exit(run[i], "EXITED", 6, -1);
    }
}

/* One that stays away is told, and nothing waits for ever. */
static void test_away(void **state)
{
    struct bench *bench = *state;
    struct rig *rig = &bench->rig;
    struct run *run;

    rig->runs->spawner.patience_ms = 1;
    spawner_kill(bench);
    run = rig_sh(rig, "away.1", "exit 0", NULL);
    rig_await_end(rig, run);
    assert_exit(run, "START_FAILED", -1, -1);
    assert_non_null(strstr(run->exit.detail, bench->socket));
    spawner_up(bench);
    rig_await(rig, rig->runs->spawner.fd >= 0);
    run = rig_sh(rig, "back.1", "exit 0", NULL);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
}

/* The agent goes, and another comes: its runs are no children of either. */
static void test_agent_goes(void **state)
{
    struct bench *bench = *state;
    struct rig *rig = &bench->rig;
    struct run *run = rig_sh(
        rig, "stays.1", "until [ -p ../go ]; do sleep 0.01; done; read x < ../go; exit 7", NULL);
    int fifo;

    assert_int_equal(mkfifo(rig_path(rig, "stays.1/go"), 0600), 0);
    rig_await(rig, run->state == RUN_RUNNING);
    rig_close(rig);
    rig_open(rig);
    rig_adopt(rig);
    run = runs_find(rig->runs, STR("stays.1"));
    assert_non_null(run);
    fifo = open(rig_path(rig, "stays.1/go"), O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fifo, "\n", 1), 1);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 7, -1);
    close(fifo);
}

/* In a process of its own, which is nobody: what it has started is nobody's too. */
static int try_as_nobody(const struct bench *bench, const struct passwd *nobody)
{
    struct rig rig;
    struct run *run;
    char *said, wanted[64];

    if (setgroups(0, NULL) != 0 || setgid(nobody->pw_gid) != 0 || setuid(nobody->pw_uid) != 0)
        return 1;
    rig_make(&rig);
    rig.spawner = bench->socket;
    rig_open(&rig);
    rig_adopt(&rig);
    run = rig_sh(&rig, "nobody.1", "id -u; id -g; id -G; grep CapEff /proc/self/status", NULL);
    rig_await_end(&rig, run);
    said = rig_output(run);
    snprintf(wanted, sizeof wanted, "%d\n%d\n%d\nCapEff:\t0000000000000000\n", (int)nobody->pw_uid,
             (int)nobody->pw_gid, (int)nobody->pw_gid);
    if (strcmp(said, wanted) != 0) {
        fprintf(stderr, "%s: %s\n", said, run->exit.detail);
        return 2;
    }
    free(said);
    rig_close(&rig);
    rig_remove(&rig);
    return 0;
}

static void test_as_who_asks(void **state)
{
    struct bench *bench = *state;
    const struct passwd *nobody = getpwnam("nobody");
    int status;
    pid_t pid;

    if (geteuid() != 0 || !nobody)
        skip();
    assert_int_equal(chown(bench->socket, nobody->pw_uid, nobody->pw_gid), 0);
    pid = fork();
    if (pid == 0)
        _exit(try_as_nobody(bench, nobody));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test_setup_teardown(test_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed_with_orders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_away, setup, teardown),
        cmocka_unit_test_setup_teardown(test_agent_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_as_who_asks, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
