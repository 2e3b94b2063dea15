/* Agents that die, shims that die, and what the next agent makes of their runs. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/runfile.h"
#include "run_rig.h"

enum { KEYS = 20 };

/* Notes in a file that it ran, and ends when `go` exists. */
#define PATIENT                                                                                    \
    "echo x >> ../ran; echo begun; while [ ! -e ../../go ]; do sleep 0.02; done; echo done; exit " \
    "5"

/* --- an agent in a process of its own --- */

/* words: KEY, SCRIPT, ..., NULL. A byte can be read from *ret_fd once all of its runs are
 * running. */
static pid_t agent_launch(struct rig *rig, const char *deadline_ms, const char *const *words,
                          int *ret_fd)
{
    char *argv[4 + 2 * KEYS + 1] = {NULL, (char *)rig_shim(), rig->dir, (char *)deadline_ms};
    char path[512];
    posix_spawn_file_actions_t actions;
    int fds[2], count = 4;
    pid_t pid;

    strcpy(path, rig_shim());
    strcpy(strrchr(path, '/'), "/agent_helper");
    argv[0] = path;
    while (*words)
        argv[count++] = (char *)*words++;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    assert_int_equal(posix_spawn(&pid, path, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    *ret_fd = fds[0];
    return pid;
}

/* Returns when its runs are running. */
static pid_t agent_spawn(struct rig *rig, const char *deadline_ms, const char *const *words)
{
    char byte;
    int fd;
    pid_t pid = agent_launch(rig, deadline_ms, words, &fd);

    assert_int_equal(read(fd, &byte, 1), 1);
    close(fd);
    return pid;
}

static void agent_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Waits until no shim is left: each holds the lock as long as it lives. */
static void await_shim_end(struct rig *rig, const char *key)
{
    int fd = open(rig_path(rig, "%s", key), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(fd >= 0);
    alarm(RIG_PATIENCE_MS / 1000);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    alarm(0);
    close(fd);
}

static void touch(struct rig *rig, const char *name)
{
    int fd = open(rig_path(rig, "%s", name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    close(fd);
}

static int64_t size_of(struct rig *rig, const char *key, const char *name)
{
    struct stat info;

    return stat(rig_path(rig, "%s/%s", key, name), &info) == 0 ? info.st_size : -1;
}

static int make(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    rig_make(rig);
    *state = rig;
    return 0;
}

/* --- agents that die --- */

static void test_adopts_all(void **state)
{
    struct rig *rig = *state;
    const char *words[2 * KEYS + 1] = {NULL};
    char keys[KEYS][16];
    pid_t agent;

    for (int i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof keys[i], "job%d.1", i);
        words[2 * i] = keys[i];
        words[2 * i + 1] = PATIENT;
    }
    agent = agent_spawn(rig, "0", words);
    agent_kill(agent);
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(rig->found, KEYS);
    assert_int_equal(runs_count(rig->runs), KEYS);
    for (struct run *run = NULL; (run = runs_next(rig->runs, run));) {
        assert_int_equal(run->state, RUN_RUNNING);
        assert_true(str_is(run->meta, "{\"job\":1}"));
        rig_await(rig, run_shim_pid(run) > 1);
    }
    touch(rig, "go");
    rig_await(rig, rig->ended == KEYS);
    assert_int_equal(rig->started, 0);
    for (int i = 0; i < KEYS; i++) {
        struct run *run = rig_find(rig, str_of(keys[i]));

        assert_exit(run, "EXITED", 5, -1);
        assert_true(str_is(run->exit.tail, "begun\ndone\n"));
        assert_int_equal(size_of(rig, keys[i], "ran"), 2); /* it ran once */
    }
}

/* The agent is killed at any moment while it starts runs: each ran once, or is known not to have
 * started. */
static void check_killed_after(struct rig *rig, int64_t us)
{
    const char *words[2 * KEYS + 1] = {NULL};
    char keys[KEYS][24];
    int64_t until_us = clock_mono_us() + us;
    struct run *next;
    pid_t agent;
    int fd;

    for (int i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof keys[i], "t%d.%d", (int)us, i);
        words[2 * i] = keys[i];
        words[2 * i + 1] = "echo x >> ../ran; exit 5";
    }
    agent = agent_launch(rig, "0", words, &fd);
    while (clock_mono_us() < until_us)
        sched_yield();
    agent_kill(agent);
    close(fd);
    rig_open(rig);
    rig_adopt(rig);
    rig_await(rig, runs_count(rig->runs) == 0);
    for (struct run *run = runs_next(rig->runs, NULL); run; run = next) {
        bool ran = strcmp(run->exit.reason, "EXITED") == 0;

        next = runs_next(rig->runs, run);
        if (ran)
            assert_exit(run, "EXITED", 5, -1);
        else
            assert_exit(run, "START_FAILED", -1, -1);
        assert_int_equal(size_of(rig, run->key.at, "ran"), ran ? 2 : -1);
        run_forget(run);
    }
    rig_close(rig);
    rig->runs = NULL;
}

static void test_killed_at_any_moment(void **state)
{
    for (int64_t us = 2000; us < 60000; us += us / 3)
        check_killed_after(*state, us);
}

/* A run ends without an agent: its record waits for one. */
static void test_record_waits(void **state)
{
    struct rig *rig = *state;
    const char *const words[] = {"alone.1", PATIENT, NULL};
    struct run *run;

    agent_kill(agent_spawn(rig, "0", words));
    touch(rig, "go");
    await_shim_end(rig, "alone.1");
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(rig->found, 1);
    run = rig_find(rig, STR("alone.1"));
    assert_exit(run, "EXITED", 5, -1);
    assert_true(str_is(run->meta, "{\"job\":1}"));
    rig_close(rig); /* it waits until it is settled */
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(rig->found, 2);
    run_forget(rig_find(rig, STR("alone.1")));
    assert_int_equal(access(rig_path(rig, "alone.1"), F_OK), -1);
    assert_int_equal(rig->ended, 0);
}

/* A frozen agent moves no deadline, so the shim ends the run; the next agent finds its record. */
static void test_deadline_of_a_frozen_agent(void **state)
{
    struct rig *rig = *state;
    const char *const words[] = {"frozen.1", "exec sleep 600", NULL};
    pid_t agent = agent_spawn(rig, "400", words);
    struct run *run;

    kill(agent, SIGSTOP);
    await_shim_end(rig, "frozen.1");
    agent_kill(agent);
    rig_open(rig);
    rig_adopt(rig);
    run = rig_find(rig, STR("frozen.1"));
    assert_exit(run, "DEADLINE", -1, SIGTERM);
}

/* An adopted run can be stopped, and its deadline moved. */
static void test_adopted_obeys(void **state)
{
    struct rig *rig = *state;
    const char *const words[] = {"a.1", "exec sleep 600", "b.1", "exec sleep 600", NULL};
    struct run *a, *b;

    agent_kill(agent_spawn(rig, "3600000", words));
    rig_open(rig);
    rig_adopt(rig);
    a = rig_find(rig, STR("a.1"));
    b = rig_find(rig, STR("b.1"));
    run_stop(a, "CANCELLED", -1);
    run_deadline(b, clock_lease_ms());
    rig_await_end(rig, a);
    rig_await_end(rig, b);
    assert_exit(a, "CANCELLED", -1, SIGTERM);
    assert_exit(b, "DEADLINE", -1, SIGTERM);
}

static void test_one_agent_a_directory(void **state)
{
    struct rig *rig = *state;
    struct problem why = {0};
    struct runs *second = NULL;

    rig_open(rig);
    assert_int_equal(runs_new(&rig->loop, rig->dir, rig_shim(), NULL, NULL, &second, &why),
                     ERR_CONFLICT);
    assert_non_null(strstr(why.detail, "Another agent"));
    assert_null(second);
}

static void test_no_program_for_shims(void **state)
{
    struct rig *rig = *state;
    struct problem why = {0};
    struct runs *runs = NULL;

    assert_int_equal(loop_init(&rig->loop, 0), ERR_OK);
    assert_int_equal(runs_new(&rig->loop, rig->dir, "/no/such/berth", NULL, NULL, &runs, &why),
                     ERR_IO);
    assert_non_null(strstr(why.detail, "/no/such/berth"));
    loop_done(&rig->loop);
}

/* A run that was only recorded is found as an ended one. */
static void test_recorded(void **state)
{
    struct rig *rig = *state;
    struct run_exit exit = {
        .exit_code = -1, .signal = -1, .reason = "START_FAILED", .detail = "No.", .ended_ms = 7};
    struct run_spec spec = {.handler = &rig_handler, .key = STR("never.1"), .meta = STR("mine")};
    struct run *run;

    rig_open(rig);
    run = runs_record(rig->runs, &spec, rig, &exit);
    assert_true(run->unstarted && run->state == RUN_ENDED && runs_count(rig->runs) == 0);
    rig_close(rig);
    rig_open(rig);
    rig_adopt(rig);
    run = rig_find(rig, STR("never.1"));
    assert_non_null(run);
    assert_true(run->unstarted && run->state == RUN_ENDED && str_is(run->meta, "mine"));
    assert_exit(run, "START_FAILED", -1, -1);
    assert_string_equal(run->exit.detail, "No.");
    run_forget(run);
    assert_int_equal(access(rig_path(rig, "never.1"), F_OK), -1);
}

/* --- shims that die --- */

static void check_lost(struct rig *rig, const char *key)
{
    struct run *run =
        rig_sh(rig, key, "setsid sh -c '(echo $$ > ../pid; exec sleep 600) & wait' & wait", NULL);
    int64_t pid;

    rig_await(rig, rig_read_pid(rig_path(rig, "%s/pid", key)) > 0 && run_shim_pid(run) > 1);
    pid = rig_read_pid(rig_path(rig, "%s/pid", key));
    kill(run_shim_pid(run), SIGKILL);
    rig_await_end(rig, run);
    assert_exit(run, "SHIM_LOST", -1, -1);
    assert_false(rig_alive(pid));
}

static void test_shim_killed(void **state)
{
    struct rig *rig = *state;

    rig_open(rig);
    check_lost(rig, "lost.1");
}

static void test_shim_killed_without_cgroups(void **state)
{
    struct rig *rig = *state;
    struct cgroup_place place;

    rig_open(rig);
    place = rig->runs->place;
    rig->runs->place = (struct cgroup_place){0};
    check_lost(rig, "lost.2");
    rig->runs->place = place;
}

/* An orphan without group, session or mark in its environment: it is found where it was left, and
 * reaped. */
static void test_orphan_in_disguise(void **state)
{
    struct rig *rig = *state;
    struct cgroup_place place;
    struct run *run, *other;
    int64_t pid;

    rig_open(rig);
    place = rig->runs->place;
    rig->runs->place = (struct cgroup_place){0};
    other = rig_sh(rig, "other.1", "sleep 600", NULL);
    run = rig_sh(rig, "disguised.1",
                 "env -i setsid sh -c 'echo $$ > ../pid; (sleep 600; :) & exec sleep 600' & "
                 "sleep 600",
                 NULL);
    rig_await(rig, rig_read_pid(rig_path(rig, "disguised.1/pid")) > 0 && run_shim_pid(run) > 1 &&
                       other->state == RUN_RUNNING);
    pid = rig_read_pid(rig_path(rig, "disguised.1/pid"));
    kill(run_shim_pid(run), SIGKILL);
    rig_await_end(rig, run);
    assert_exit(run, "SHIM_LOST", -1, -1);
    assert_false(rig_alive(pid));
    rig_await(rig, kill((pid_t)pid, 0) != 0); /* not even a zombie is left */
    assert_int_equal(other->state, RUN_RUNNING);
    assert_true(rig_alive(other->pid));
    rig->runs->place = place;
}

/* Agent and shim are both dead when the next agent starts. */
static void test_both_killed(void **state)
{
    struct rig *rig = *state;
    const char *const words[] = {"both.1", "setsid sleep 600 & echo $PPID $! > ../../numbers; wait",
                                 NULL};
    struct run *run;
    int shim, pid;
    pid_t agent;
    FILE *numbers;

    assert_int_equal(mkfifo(rig_path(rig, "numbers"), 0600), 0);
    agent = agent_spawn(rig, "0", words);
    numbers = fopen(rig_path(rig, "numbers"), "re");
    assert_int_equal(fscanf(numbers, "%d %d", &shim, &pid), 2);
    fclose(numbers);
    assert_true(rig_alive(pid));
    agent_kill(agent);
    kill(shim, SIGKILL);
    await_shim_end(rig, "both.1");
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(rig->found, 1);
    run = rig_find(rig, STR("both.1"));
    assert_int_equal(run->state, RUN_STOPPING);
    rig_await_end(rig, run);
    assert_exit(run, "SHIM_LOST", -1, -1);
    assert_int_equal(rig->ended, 1);
    assert_false(rig_alive(pid));
}

/* A shim that hangs is killed together with its tree. */
static void test_shim_stuck(void **state)
{
    struct rig *rig = *state;
    struct run *run;
    int shim;

    rig_open(rig);
    rig->runs->patience_ms = 50;
    run = rig_sh(rig, "stuck.1", "exec sleep 600", NULL);
    rig_await(rig, run->state == RUN_RUNNING);
    shim = run_shim_pid(run);
    kill(shim, SIGSTOP);
    run_stop(run, "CANCELLED", -1);
    rig_await_end(rig, run);
    assert_exit(run, "SHIM_LOST", -1, -1);
    assert_false(rig_alive(shim));
}

/* A shim that works, with a tree that takes long to stop, is left alone. */
static void test_shim_busy(void **state)
{
    struct rig *rig = *state;
    struct run *run;

    rig_open(rig);
    rig->runs->patience_ms = 20;
    run = rig_sh(rig, "busy.1", "exec sleep 600",
                 &(struct run_spec){.stop_grace_ms = RIG_PATIENCE_MS});
    rig_await(rig, run->state == RUN_RUNNING);
    /* As if the kill were long due, though the shim does not think so. */
    run->priv->stop_kill_ms = 1;
    rig_await(rig, run->priv->patience_ms > 0);
    assert_int_equal(run->priv->pinged_ms, 0);
    assert_true(rig_alive(run_shim_pid(run)));
    run->priv->stop_kill_ms = 0;
    run_stop(run, "STOPPED", -1);
    rig_await_end(rig, run);
    assert_exit(run, "STOPPED", -1, SIGTERM);
}

/* The spawner dies: runs go on, and the next run gets a new spawner. */
static void test_spawner_killed(void **state)
{
    struct rig *rig = *state;
    struct run *before, *after;
    int pid;

    rig_open(rig);
    pid = rig->runs->spawner.pid;
    before = rig_sh(rig, "n.1", PATIENT, NULL);
    rig_await(rig, before->state == RUN_RUNNING);
    kill(pid, SIGKILL);
    after = rig_sh(rig, "n.2", "exit 6", NULL); /* its order may still go to the dead spawner */
    rig_await_end(rig, after);
    if (strcmp(after->exit.reason, "EXITED") != 0)
        assert_exit(after, "START_FAILED", -1, -1);
    rig_await(rig, rig->runs->spawner.pid != pid);
    after = rig_sh(rig, "n.3", "exit 6", NULL);
    rig_await_end(rig, after);
    assert_exit(after, "EXITED", 6, -1);
    touch(rig, "go");
    rig_await_end(rig, before);
    assert_exit(before, "EXITED", 5, -1);
    rig_await(rig, rig_zombies() == 0);
}

/* --- incomplete run directories --- */

static void make_run_dir(struct rig *rig, const char *key, int *ret_fd)
{
    assert_int_equal(mkdir(rig_path(rig, "%s", key), 0700), 0);
    *ret_fd = open(rig_path(rig, "%s", key), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(*ret_fd >= 0);
}

static void put_text(int dir_fd, const char *name, const char *text)
{
    int fd = openat(dir_fd, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void put_spec(int dir_fd, const char *key, const char *boot_id)
{
    static const struct str argv = {"true", 4};
    struct runfile file = {.spec = {.key = str_of(key), .meta = STR("m"), .argv = &argv, .argc = 1},
                           .dir = STR("/nowhere"),
                           .boot_id = str_of(boot_id),
                           .mark = STR("BERTH_RUN=test/0123"),
                           .created_ms = 77};

    assert_int_equal(runfile_put(dir_fd, &file, NULL), ERR_OK);
}

static void test_half_written(void **state)
{
    static const char *const garbage[] = {"empty", "torn", "other"};
    struct rig *rig = *state;
    int fd;

    make_run_dir(rig, "empty", &fd);
    close(fd);
    make_run_dir(rig, "torn", &fd);
    put_text(fd, "spec", "{\"key\":\"torn\",\"argv\":[\"tr");
    close(fd);
    make_run_dir(rig, "other", &fd); /* its spec belongs to another run */
    put_spec(fd, "torn", "b");
    close(fd);
    touch(rig, "file");
    assert_int_equal(symlink("/tmp", rig_path(rig, "link")), 0);
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(rig->found, 0);
    for (size_t i = 0; i < COUNT_OF(garbage); i++)
        assert_int_equal(access(rig_path(rig, "%s", garbage[i]), F_OK), -1);
    assert_int_equal(access(rig_path(rig, "link"), F_OK), 0); /* not a run: left alone */
    rig_await(rig, !rig->runs->trash_busy);
    assert_int_equal(rmdir(rig_path(rig, RUN_TRASH)), 0); /* it is empty */
}

/* What each kind of directory means without a shim. */
static void test_found_dead(void **state)
{
    static const struct {
        const char *key, *boot_id, *sock, *record;
        bool spec;
        enum run_state state;
        const char *reason, *says;
    } rows[] = {
        {"r.boot", "another-boot", "", NULL, true, RUN_STOPPING, "SHIM_LOST", "restarted"},
        {"r.never", NULL, NULL, NULL, true, RUN_STOPPING, "START_FAILED", "did not start"},
        {"r.lost", NULL, "", NULL, true, RUN_STOPPING, "SHIM_LOST", "died"},
        {"r.torn", NULL, "", "{\"reason\":\"EXI", true, RUN_STOPPING, "SHIM_LOST", "died"},
        {"r.done", "another-boot", "",
         "{\"key\":\"r.done\",\"meta\":\"m\",\"reason\":\"EXITED\",\"detail\":\"d\","
         "\"exit_code\":3,\"signal\":-1,\"tail\":\"t\"}",
         true, RUN_ENDED, "EXITED", "d"},
        {"r.bare", NULL, NULL,
         "{\"key\":\"r.bare\",\"meta\":\"m\",\"reason\":\"EXITED\",\"detail\":\"d\","
         "\"exit_code\":3,\"signal\":-1,\"tail\":\"t\"}",
         false, RUN_ENDED, "EXITED", "d"},
    };
    struct rig *rig = *state;
    struct arena arena = {0};
    struct str boot_id = runfile_boot_id(&arena);

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int fd;

        make_run_dir(rig, rows[i].key, &fd);
        if (rows[i].spec)
            put_spec(fd, rows[i].key, rows[i].boot_id ? rows[i].boot_id : boot_id.at);
        if (rows[i].sock)
            put_text(fd, RUNFILE_SOCK, rows[i].sock);
        if (rows[i].record)
            put_text(fd, RUNFILE_EXIT, rows[i].record);
        close(fd);
    }
    arena_free(&arena);
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(rig->found, COUNT_OF(rows));
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(rig_find(rig, str_of(rows[i].key))->state, rows[i].state);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct run *run = rig_find(rig, str_of(rows[i].key));

        rig_await_end(rig, run);
        assert_string_equal(run->exit.reason, rows[i].reason);
        if (!strstr(run->exit.detail, rows[i].says))
            fail_msg("%s: %s", rows[i].key, run->exit.detail);
        assert_true(str_is(run->meta, "m"));
    }
    assert_int_equal(rig->ended, 4);
}

/* --- removing directories --- */

static void test_forgets_everything(void **state)
{
    struct rig *rig = *state;
    struct run *run;

    rig_open(rig);
    run = rig_sh(rig, "deep.1",
                 "i=0; while [ $i -lt 60 ]; do mkdir d; touch f; ln -s / l; cd d || exit 1; "
                 "i=$((i+1)); done; chmod 0 .",
                 NULL);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
    run_forget(run);
    assert_null(rig_find(rig, STR("deep.1")));
    run = rig_sh(rig, "deep.1", "exit 0", NULL); /* the key can be used again at once */
    rig_await(rig, !rig->runs->trash_busy);
    assert_int_equal(rmdir(rig_path(rig, RUN_TRASH)), 0);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
}

static int teardown(void **state)
{
    struct rig *rig = *state;

    return rig->runs ? rig_teardown(state) : (rig_remove(rig), free(rig), 0);
}

int main(void)
{
#define ADOPT_TEST(name) cmocka_unit_test_setup_teardown(name, make, teardown)
    const struct CMUnitTest tests[] = {
        ADOPT_TEST(test_adopts_all),
        ADOPT_TEST(test_killed_at_any_moment),
        ADOPT_TEST(test_record_waits),
        ADOPT_TEST(test_deadline_of_a_frozen_agent),
        ADOPT_TEST(test_adopted_obeys),
        ADOPT_TEST(test_one_agent_a_directory),
        ADOPT_TEST(test_no_program_for_shims),
        ADOPT_TEST(test_shim_killed),
        ADOPT_TEST(test_shim_killed_without_cgroups),
        ADOPT_TEST(test_orphan_in_disguise),
        ADOPT_TEST(test_recorded),
        ADOPT_TEST(test_both_killed),
        ADOPT_TEST(test_shim_stuck),
        ADOPT_TEST(test_shim_busy),
        ADOPT_TEST(test_spawner_killed),
        ADOPT_TEST(test_half_written),
        ADOPT_TEST(test_found_dead),
        ADOPT_TEST(test_forgets_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
