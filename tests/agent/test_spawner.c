/* A spawner that serves agents: it or the agents may die and come back while work runs. */
#include "agent/spawner.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run_rig.h"

struct fixture {
    struct rig rig;
    char socket[96], group_file[96], config[96], given[96];
    char group[CGROUP_PATH_MAX]; /* the group it may use; "": none on this machine */
    pid_t pid;                   /* of the spawner; 0: not running */
};

static void spawner_up(struct fixture *fixture)
{
    fixture->pid = fork();
    if (fixture->pid == 0) {
        execl(rig_shim(), "shim_helper", "spawner", fixture->socket, fixture->group_file,
              fixture->config, NULL);
        _exit(127);
    }
    assert_true(fixture->pid > 0);
}

static void spawner_kill(struct fixture *fixture)
{
    kill(fixture->pid, SIGKILL);
    assert_int_equal(waitpid(fixture->pid, NULL, 0), fixture->pid);
    fixture->pid = 0;
}

/* Makes a group below ours, as the unit berth-runs has: processes in ours would be moved. */
static void make_group(struct fixture *fixture)
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
        snprintf(fixture->group, sizeof fixture->group, "%s/berth-test-%d", own, (int)getpid());
    if (fixture->group[0] && mkdir(fixture->group, 0755) != 0)
        fixture->group[0] = '\0';
    close(open(fixture->group_file, O_CREAT | O_WRONLY, 0600));
    if (text.len) {
        buf_char(&text, '\0');
        assert_int_equal(cgroup_file_put(AT_FDCWD, fixture->group_file, text.at), 0);
    }
    buf_free(&mounts);
    buf_free(&groups);
    buf_free(&text);
}

static void set_config(const struct fixture *fixture, const char *text)
{
    int fd = open(fixture->config, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct rig *rig = &fixture->rig;

    rig_make(rig);
    snprintf(fixture->socket, sizeof fixture->socket, "%s.socket", rig->dir);
    snprintf(fixture->group_file, sizeof fixture->group_file, "%s.group", rig->dir);
    snprintf(fixture->config, sizeof fixture->config, "%s.yaml", rig->dir);
    set_config(fixture, "job_user: root\nallow_root: true\n");
    make_group(fixture);
    rig->spawner = fixture->socket;
    spawner_up(fixture);
    rig_open(rig);
    /* So that only tests that shorten it run out. */
    rig->runs->spawner.patience_ms = RIG_PATIENCE_MS;
    rig_adopt(rig);
    rig_await(rig, rig->runs->spawner.fd >= 0 &&
                       (rig->runs->place.parent[0] != '\0') == (fixture->group[0] != '\0'));
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    char command[CGROUP_PATH_MAX + 128];

    rig->forget = false;
    for (struct run *run = NULL; (run = runs_next(rig->runs, run));)
        run_stop(run, "STOPPED", 0);
    rig_await(rig, runs_count(rig->runs) == 0);
    rig_close(rig);
    if (fixture->pid)
        spawner_kill(fixture);
    if (fixture->group[0]) { /* the last shims may take a moment to exit */
        snprintf(command, sizeof command, "find '%s' -depth -type d -exec rmdir {} + 2>/dev/null",
                 fixture->group);
        for (int64_t until_ms = clock_mono_ms() + RIG_PATIENCE_MS;
             system(command) != 0 && clock_mono_ms() < until_ms;)
            usleep(1000);
        assert_int_equal(access(fixture->group, F_OK), -1);
    }
    unlink(fixture->socket);
    unlink(fixture->group_file);
    unlink(fixture->config);
    rig_remove(rig);
    free(fixture);
    return 0;
}

static void test_words(void **state)
{
    struct cgroup_place place = {.parent = "/sys/fs/cgroup/x/berth-1",
                                 .limits = {[CGROUP_PIDS] = true},
                                 .missing = "memory: no; cpu: no"};
    struct cgroup_place heard;
    bool private_tmp;
    int64_t version;
    struct buf text = {0};

    spawner_tell(&place, true, &text);
    buf_fmt(&text, "tomorrow something new\n\n"); /* as a later release may send */
    spawner_hear(buf_view(&text), &heard, &version, &private_tmp);
    assert_true(private_tmp);
    assert_int_equal(version, SPAWNER_VERSION);
    assert_string_equal(heard.parent, place.parent);
    assert_string_equal(heard.missing, place.missing);
    assert_memory_equal(heard.limits, place.limits, sizeof place.limits);
    spawner_hear(STR(""), &heard, &version, &private_tmp);
    assert_false(private_tmp); /* an earlier release does not send it */
    assert_int_equal(version, 0);
    assert_string_equal(heard.parent, "");
    buf_free(&text);
}

static void test_runs(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct run *run = rig_sh(rig, "a.1", "echo $HOME; cat /proc/self/cgroup; exit 3", NULL);
    char *said;

    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 3, -1);
    said = rig_output(run);
    assert_int_equal(strncmp(said, getenv("HOME"), strlen(getenv("HOME"))), 0);
    if (fixture->group[0])
        assert_non_null(strstr(said, "/a.1\n")); /* in its group below the kept one */
    free(said);
}

/* The spawner is killed: runs go on, and runs ordered meanwhile start when it is back. */
static void test_killed(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct run *before = rig_sh(
        rig, "before.1", "until [ -p ../go ]; do sleep 0.01; done; read x < ../go; exit 4", NULL);
    struct run *while_away;
    int fifo;

    assert_int_equal(mkfifo(rig_path(rig, "before.1/go"), 0600), 0);
    rig_await(rig, before->state == RUN_RUNNING);
    spawner_kill(fixture);
    while_away = rig_sh(rig, "away.1", "exit 5", NULL);
    rig_await(rig, rig->runs->spawner.fd < 0);
    assert_int_equal(while_away->state, RUN_STARTING);
    spawner_up(fixture);
    rig_await_end(rig, while_away);
    assert_exit(while_away, "EXITED", 5, -1);
    assert_int_equal(before->state, RUN_RUNNING);
    fifo = open(rig_path(rig, "before.1/go"), O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fifo, "\n", 1), 1);
    rig_await_end(rig, before);
    assert_exit(before, "EXITED", 4, -1);
    close(fifo);
}

/* Orders that were lost with the spawner are sent to the next one. */
static void test_killed_with_orders(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct run *run[3];
    char key[16];

    kill(fixture->pid, SIGSTOP);
    for (size_t i = 0; i < COUNT_OF(run); i++) {
        snprintf(key, sizeof key, "order%zu.1", i);
        run[i] = rig_sh(rig, key, "exit 6", NULL);
        assert_true(run[i]->priv->order_number == rig->runs->spawner.number); /* was sent */
    }
    spawner_kill(fixture);
    spawner_up(fixture);
    for (size_t i = 0; i < COUNT_OF(run); i++) {
        rig_await_end(rig, run[i]);
        assert_exit(run[i], "EXITED", 6, -1);
    }
}

/* If the spawner stays away a run fails to start, instead of waiting for ever. */
static void test_away(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct run *run;

    rig->runs->spawner.patience_ms = 1;
    spawner_kill(fixture);
    run = rig_sh(rig, "away.1", "exit 0", NULL);
    rig_await_end(rig, run);
    assert_exit(run, "START_FAILED", -1, -1);
    assert_non_null(strstr(run->exit.detail, fixture->socket));
    spawner_up(fixture);
    rig_await(rig, rig->runs->spawner.fd >= 0);
    run = rig_sh(rig, "back.1", "exit 0", NULL);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
}

/* The agent stops and another one starts: their runs are children of neither. */
static void test_agent_goes(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct run *run = rig_sh(
        rig, "stays.1", "until [ -p ../go ]; do sleep 0.01; done; read x < ../go; exit 7", NULL);
    int fifo;

    assert_int_equal(mkfifo(rig_path(rig, "stays.1/go"), 0600), 0);
    rig_await(rig, run->state == RUN_RUNNING);
    rig_close(rig);
    rig_open(rig);
    rig_adopt(rig);
    run = rig_find(rig, STR("stays.1"));
    assert_non_null(run);
    fifo = open(rig_path(rig, "stays.1/go"), O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fifo, "\n", 1), 1);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 7, -1);
    close(fifo);
}

/* --- agents that are not root --- */

/* Runs as nobody in a child process, whose asserts do not reach the parent. */
static struct run *run_as_nobody(struct rig *rig, const char *script, const struct run_spec *more)
{
    const struct passwd *nobody = getpwnam("nobody");

    if (setgroups(0, NULL) != 0 || setgid(nobody->pw_gid) != 0 || setuid(nobody->pw_uid) != 0)
        _exit(1);
    prctl(PR_SET_DUMPABLE, 1);
    rig_open(rig);
    runs_set_rules(rig->runs, &(struct run_rules){.allow_root = false});
    rig_adopt(rig);
    return rig_sh(rig, "nobody.1", script, more);
}

/* The child's directory is removed by the parent, since what a run left there belongs to another
 * user and may not be removed yet. */
static int in_child(void **state, int (*try)(struct fixture *fixture, struct rig *rig))
{
    struct fixture *fixture = *state;
    const struct passwd *nobody;
    struct rig rig;
    int status;
    pid_t pid;

    if (geteuid() != 0 || !getpwnam("daemon") || !(nobody = getpwnam("nobody")))
        return -1;
    assert_int_equal(chown(fixture->socket, nobody->pw_uid, nobody->pw_gid), 0);
    rig_make(&rig);
    rig.spawner = fixture->socket;
    assert_int_equal(chown(rig.dir, nobody->pw_uid, nobody->pw_gid), 0);
    pid = fork();
    if (pid == 0)
        _exit(try(fixture, &rig));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    rig_remove(&rig);
    return WEXITSTATUS(status);
}

#define run_in_child(state, try)                                                                   \
    do {                                                                                           \
        int code_ = in_child(state, try);                                                          \
        if (code_ < 0)                                                                             \
            skip();                                                                                \
        assert_int_equal(code_, 0);                                                                \
    } while (0)

static bool said(struct run *run, const char *wanted)
{
    char *text = rig_output(run);
    bool same = strcmp(text, wanted) == 0;

    if (!same)
        fprintf(stderr, "%s%s\n", text, run->exit.detail);
    free(text);
    return same;
}

static bool is_empty(const char *dir)
{
    DIR *list = opendir(dir);
    bool empty = list != NULL;

    for (struct dirent *entry; list && (entry = readdir(list));)
        empty = empty && entry->d_name[0] == '.' &&
                (!entry->d_name[1] || strcmp(entry->d_name, "..") == 0);
    if (list)
        closedir(list);
    return empty;
}

/* The job runs as another user than its agent, without privileges or a way to get any; it can
 * access its own files, but not its agent's. */
static int try_apart(struct fixture *fixture, struct rig *rig)
{
    struct run *run = run_as_nobody(
        rig,
        "id -un; id -G | wc -w; grep -hE '^(Cap|NoNew)' /proc/self/status | tr '\n' ' '; echo; "
        "cat \"$BERTH_PAYLOAD_FILE\"; cat; echo; echo '{\"ok\":1}' > .result.json; "
        "mkdir -p a/b; touch a/b/c; chmod 0 a; chmod 0500 .; "
        "cat ../spec 2>/dev/null || echo no spec; ls .. 2>/dev/null || echo no list; "
        "kill -0 $PPID 2>/dev/null || echo no shim; "
        "cat /proc/$PPID/environ 2>/dev/null || echo no environment; "
        "(echo -1 > /proc/self/oom_score_adj) 2>/dev/null || echo not precious; "
        "[ \"$HOME\" = /usr/sbin ] && echo home; exit 3",
        &(struct run_spec){.input = STR("payload")});

    rig_await_end(rig, run);
    if (!said(run, "daemon\n1\n"
                   "CapInh:\t0000000000000000 CapPrm:\t0000000000000000 CapEff:\t0000000000000000 "
                   "CapBnd:\t0000000000000000 CapAmb:\t0000000000000000 NoNewPrivs:\t1 \n"
                   "payloadpayload\nno spec\nno list\nno shim\nno environment\nnot precious\n"
                   "home\n"))
        return 2;
    if (run->exit.exit_code != 3)
        return 3;
    if (access(rig_path(rig, "nobody.1/result"), R_OK) != 0)
        return 4;
    /* Removed, although only the job's user could. */
    rig_await(rig, rmdir(rig_path(rig, "nobody.1/work")) == 0);
    run_forget(run);
    rig_await(rig, is_empty(rig_path(rig, RUN_TRASH)));
    rig_close(rig);
    return 0;
}

static void test_job_is_another_user(void **state)
{
    set_config(*state, "job_user: daemon\n");
    run_in_child(state, try_apart);
}

/* A job can signal processes of its own user, but not the process that removes what was left
 * behind. It starts looking for that one when no other job is starting: a process about to become a
 * job is the spawner's child for a moment, too. */
static int try_cleaning(struct fixture *fixture, struct rig *rig)
{
    struct run *hostile = run_as_nobody(
        rig,
        "chmod 777 .; until read -r spawner < go; do sleep 0.01; done 2>/dev/null; touch ready; "
        "while :; do for p in /proc/[0-9]*; do read -r pid name state parent more < $p/stat; "
        "test \"$parent\" = $spawner && kill -STOP $pid && touch stopped; done; done "
        "2>/dev/null",
        NULL);
    struct run *left = rig_sh(rig, "left.1", "mkdir a && cd a && seq 2000 | xargs touch", NULL);
    bool stopped;
    int fd = -1;

    rig_await_end(rig, left);
    rig_await(rig, (fd = open(rig_path(rig, "nobody.1/work/go"), O_CREAT | O_WRONLY | O_CLOEXEC,
                              0644)) >= 0);
    dprintf(fd, "%d\n", (int)fixture->pid);
    close(fd);
    rig_await(rig, access(rig_path(rig, "nobody.1/work/ready"), F_OK) == 0);
    run_forget(left);
    rig_await(rig, access(rig_path(rig, "nobody.1/work/stopped"), F_OK) == 0 ||
                       is_empty(rig_path(rig, RUN_TRASH)));
    stopped = access(rig_path(rig, "nobody.1/work/stopped"), F_OK) == 0;
    run_stop(hostile, "CANCELLED", 0);
    rig_await_end(rig, hostile);
    rig_close(rig);
    return stopped ? 2 : 0;
}

static void test_nobody_stops_who_cleans_up(void **state)
{
    set_config(*state, "job_user: daemon\n");
    run_in_child(state, try_cleaning);
}

/* The whole tree ends with the run, including a process that left its session and cleared its
 * environment. */
static int try_end(struct fixture *fixture, struct rig *rig)
{
    struct run *run =
        run_as_nobody(rig,
                      "trap '' TERM; (exec setsid env -i sleep 1000) & echo $! > pid; "
                      "chmod 755 . pid; sleep 1000",
                      NULL);
    int64_t pid = 0;

    rig_await(rig, (pid = rig_read_pid(rig_path(rig, "nobody.1/work/pid"))) > 0);
    run_stop(run, "CANCELLED", 0);
    rig_await_end(rig, run);
    if (rig_alive(pid))
        return 2;
    rig_close(rig);
    return 0;
}

static void test_job_of_another_user_ends(void **state)
{
    set_config(*state, "job_user: daemon\n");
    run_in_child(state, try_end);
}

/* A directory given to a run must belong to its agent, so that nobody gets another user's directory
 * by its name. */
static int try_given(struct fixture *fixture, struct rig *rig)
{
    struct run *run = run_as_nobody(
        rig, "true", &(struct run_spec){.cwd = str_of(fixture->given), .cwd_given = 1});
    struct stat info;
    char own[128];

    rig_await_end(rig, run);
    if (strcmp(run->exit.reason, "START_FAILED") != 0 || !strstr(run->exit.detail, "handed over"))
        return 2;
    snprintf(own, sizeof own, "%s/own", rig->dir);
    if (mkdir(own, 0700) != 0)
        return 3;
    run = rig_sh(rig, "own.1", "test -O .", &(struct run_spec){.cwd = str_of(own), .cwd_given = 1});
    rig_await_end(rig, run);
    if (run->exit.exit_code != 0 || stat(own, &info) != 0 || info.st_uid == getuid() ||
        info.st_gid != getgid())
        return 4;
    rig_close(rig);
    return 0;
}

static void test_given_directories(void **state)
{
    struct fixture *fixture = *state;
    struct stat info;

    snprintf(fixture->given, sizeof fixture->given, "%s.given", fixture->rig.dir);
    assert_int_equal(mkdir(fixture->given, 0755), 0);
    set_config(fixture, "job_user: daemon\n");
    run_in_child(state, try_given);
    assert_int_equal(stat(fixture->given, &info), 0);
    assert_int_equal(info.st_uid, geteuid());
    rmdir(fixture->given);
}

/* Users that the settings file does not name cannot be used, whatever the agent asks for. */
static int try_others(struct fixture *fixture, struct rig *rig)
{
    static const struct {
        const char *user, *says; /* NULL: it runs */
    } rows[] = {
        {"root", "allow_root"},    {"bin", "neither job_user"},
        {"nobody", "berth's own"}, {"no-such", "no user"},
        {"daemon", NULL},
    };
    struct run *run = run_as_nobody(rig, "id -un", NULL);

    rig_await_end(rig, run);
    if (!said(run, "daemon\n"))
        return 2;
    runs_set_rules(rig->runs,
                   &(struct run_rules){.allow_root = true}); /* has no effect on the spawner */
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char key[16];

        snprintf(key, sizeof key, "other%zu.1", i);
        run = rig_sh(rig, key, "id -un", &(struct run_spec){.user = str_of(rows[i].user)});
        rig_await_end(rig, run);
        if (strcmp(run->exit.reason, rows[i].says ? "START_FAILED" : "EXITED") != 0 ||
            (rows[i].says && !strstr(run->exit.detail, rows[i].says))) {
            fprintf(stderr, "%s: %s\n", rows[i].user, run->exit.detail);
            return 3;
        }
    }
    rig_close(rig);
    return 0;
}

static void test_who_may_be_asked_for(void **state)
{
    set_config(*state, "job_user: daemon\n"
                       "executors:\n"
                       "  a: {command: a, user: root}\n"
                       "  b: {command: b, user: nobody}\n"
                       "  c: {command: c, user: no-such}\n");
    run_in_child(state, try_others);
}

/* A settings file that users other than root can write is not used. */
static int try_loose(struct fixture *fixture, struct rig *rig)
{
    struct run *run = run_as_nobody(rig, "id -un", NULL);

    rig_await_end(rig, run);
    if (strcmp(run->exit.reason, "START_FAILED") != 0 || !strstr(run->exit.detail, "root's"))
        return 2;
    rig_close(rig);
    return 0;
}

static void test_settings_of_others(void **state)
{
    struct fixture *fixture = *state;

    set_config(fixture, "job_user: daemon\n");
    assert_int_equal(chmod(fixture->config, 0666), 0);
    run_in_child(state, try_loose);
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
        cmocka_unit_test_setup_teardown(test_job_is_another_user, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_stops_who_cleans_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_job_of_another_user_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_given_directories, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_may_be_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_settings_of_others, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
