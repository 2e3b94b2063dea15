/* The rules inside a shim, and `berth shim DIR` started by hand. */
#include "agent/shim.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run_rig.h"

#define EXIT(code)  ((code) << 8)
#define SIGNAL(num) (num)

static void test_judge(void **state)
{
    static const struct {
        int status;
        const char *stop_reason;
        bool killed;
        int64_t oom_kills;
        const char *reason;
        int exit_code, signal;
        const char *says;
    } rows[] = {
        {EXIT(0), "", false, 0, "EXITED", 0, -1, "code 0"},
        {EXIT(137), "", false, 0, "EXITED", 137, -1, "code 137"},
        {SIGNAL(SIGKILL), "", false, 0, "SIGNALLED", -1, SIGKILL, "Killed"},
        {SIGNAL(SIGSEGV | 0x80), "", false, 0, "SIGNALLED", -1, SIGSEGV, "Segmentation"},
        {SIGNAL(SIGKILL), "", false, 1, "OOM", -1, SIGKILL, "1000000"},
        /* A shell whose child was killed. */
        {EXIT(137), "", false, 2, "OOM", 137, -1, "1000000"},
        {EXIT(0), "", false, 1, "EXITED", 0, -1, "lack of memory"}, /* a shell that ignored it */
        {SIGNAL(SIGTERM), "TIMEOUT", false, 0, "TIMEOUT", -1, SIGTERM, "2500 ms"},
        {SIGNAL(SIGKILL), "TIMEOUT", true, 1, "TIMEOUT", -1, SIGKILL, "2500 ms"},
        {EXIT(0), "DEADLINE", false, 0, "DEADLINE", 0, -1, "lease"},
        {EXIT(1), "CANCELLED", false, 0, "CANCELLED", 1, -1, "TERM"},
        {SIGNAL(SIGKILL), "EMERGENCY", true, 0, "EMERGENCY", -1, SIGKILL, "KILL"},
    };
    static const struct run_spec spec = {.timeout_ms = 2500, .memory_bytes_max = 1000000};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct run_exit exit = {0};

        shim_end_judge(&(struct shim_end){.status = rows[i].status,
                                          .stop_reason = rows[i].stop_reason,
                                          .killed = rows[i].killed,
                                          .oom_kills = rows[i].oom_kills,
                                          .spec = &spec},
                       &exit);
        assert_string_equal(exit.reason, rows[i].reason);
        assert_int_equal(exit.exit_code, rows[i].exit_code);
        assert_int_equal(exit.signal, rows[i].signal);
        if (!strstr(exit.detail, rows[i].says))
            fail_msg("row %zu: %s", i, exit.detail);
    }
}

static void test_environment(void **state)
{
    static const struct str env[] = {STR("PATH=/opt"), STR("X=1"), STR("X=2"), STR("BERTH_RUN=no")};
    static char *const base[] = {"HOME=/root", "PATH=/bin", "TERM=xterm", "SSH_AUTH_SOCK=/s", NULL};
    struct runfile file = {.spec = {.env = env, .env_count = COUNT_OF(env), .input = STR("")},
                           .dir = STR("/tmp/k"),
                           .mark = STR("BERTH_RUN=k/1")};
    static const struct {
        const char *name, *value;
    } rows[] = {
        {"PATH", "/opt"},
        {"HOME", "/home/ann"},
        {"LANG", "C.UTF-8"},
        {"USER", "ann"},
        {"LOGNAME", "ann"},
        {"X", "2"},
        {"BERTH_PAYLOAD_FILE", "/tmp/k/input"},
        {"BERTH_RUN", "k/1"}, /* cannot be overridden */
    };
    struct job_user ann = {.uid = 12345, .gid = 12345, .name = "ann", .home = "/home/ann"};
    struct arena arena = {0};
    char **got = shim_env(&arena, &file, (struct strs){0}, base, &ann);
    size_t count = 0;

    while (got[count])
        count++;
    assert_int_equal(count, COUNT_OF(rows)); /* no other variables */
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_string_equal(shim_env_get(got, rows[i].name), rows[i].value);
    assert_null(shim_env_get(got, "TERM"));
    assert_null(shim_env_get(got, "BERTH"));
    file.spec = (struct run_spec){0};
    got = shim_env(&arena, &file, (struct strs){0}, NULL, NULL);
    assert_non_null(strstr(shim_env_get(got, "PATH"), "/usr/bin"));
    assert_string_equal(shim_env_get(got, "HOME"), "/");
    assert_null(shim_env_get(got, "USER"));
    assert_null(shim_env_get(got, "BERTH_PAYLOAD_FILE"));
    arena_free(&arena);
}

/* A user who cannot pass the directories above the run gets relative paths from its work directory,
 * which is also its home if it has none. */
static void test_way_to_its_files(void **state)
{
    static const struct str env[] = {STR("BERTH_RESULT_FILE=/anywhere")};
    struct job_user ann = {.uid = 12345, .gid = 12345, .name = "ann"};
    char dir[] = "/tmp/berth-way-XXXXXX", run[64];
    struct runfile file = {.spec = {.env = env, .env_count = COUNT_OF(env), .input = STR("")},
                           .mark = STR("BERTH_RUN=k/1")};
    struct arena arena = {0};
    const struct {
        mode_t mode;
        const char *cwd, *payload, *result, *home;
    } rows[] = {
        {0711, NULL, "%s/k/input", "/anywhere", "%s/k/work"},
        {0700, NULL, "../input", ".result.json", "/"},
        {0710, NULL, "../input", ".result.json", "/"}, /* not in its group either */
        {0700, "/usr", NULL, "", "/"},
        {0711, "/usr", "%s/k/input", "/anywhere", "%s/k/work"},
    };

    assert_non_null(mkdtemp(dir));
    snprintf(run, sizeof run, "%s/k", dir);
    file.dir = str_of(run);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char payload[64], home[64], **got;

        assert_int_equal(chmod(dir, rows[i].mode), 0);
        file.spec.cwd = str_of(rows[i].cwd);
        got = shim_env(&arena, &file, (struct strs){0}, NULL, &ann);
        snprintf(home, sizeof home, rows[i].home, dir);
        assert_string_equal(shim_env_get(got, "HOME"), home);
        assert_string_equal(shim_env_get(got, "BERTH_RESULT_FILE"), rows[i].result);
        if (!rows[i].payload) {
            assert_null(shim_env_get(got, "BERTH_PAYLOAD_FILE"));
            continue;
        }
        snprintf(payload, sizeof payload, rows[i].payload, dir);
        assert_string_equal(shim_env_get(got, "BERTH_PAYLOAD_FILE"), payload);
    }
    rmdir(dir);
    arena_free(&arena);
}

/* Users of the pool are recognised by their names alone. */
static void test_users_beside(void **state)
{
    char text[JOB_USER_NAME_MAX + 1], longest[JOB_USER_BASE_MAX + 1];

    assert_true(str_is(job_user_beside(STR(""), 1, text), "berth-job-1"));
    assert_true(str_is(job_user_beside(STR("render"), JOB_USER_POOL_MAX, text), "render-64"));
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(job_user_beside(str_of(longest), JOB_USER_POOL_MAX, text).len,
                     JOB_USER_BASE_MAX + 3);
    assert_int_equal(job_user_number(STR(""), STR("berth-job-16")), 16);
    assert_int_equal(job_user_number(STR("render"), STR("render-2")), 2);
    assert_int_equal(job_user_number(STR("render"), STR("render-02")), 0);
    assert_int_equal(job_user_number(STR("render"), STR("render-65")), 0);
    assert_int_equal(job_user_number(STR("render"), STR("render")), 0);
    assert_int_equal(job_user_number(STR("render"), STR("render-2x")), 0);
    assert_int_equal(job_user_number(STR("render"), STR_NONE), 0);
    assert_int_equal(job_user_pool(STR("no-such-user")), 0);
}

/* --- started by hand --- */

static int shim_by_hand(const char *word)
{
    const char *path = rig_shim();
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        if (word)
            execl(path, path, "shim", word, NULL);
        else
            execl(path, path, "shim", NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_by_hand(void **state)
{
    static const struct str argv[] = {STR("sh"), STR("-c"), STR("echo by hand; exit 9")};
    struct runfile file = {.spec = {.key = STR("hand"), .argv = argv, .argc = COUNT_OF(argv)},
                           .mark = STR("BERTH_RUN=hand/1"),
                           .created_ms = 1};
    struct arena arena = {0};
    struct run_exit exit;
    struct str key, meta;
    struct rig rig;
    int fd;

    rig_make(&rig);
    file.dir = str_of(rig.dir);
    fd = open(rig.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(runfile_put(fd, &file, NULL), ERR_OK);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(shim_by_hand(rig.dir), 1); /* locked by another process */
    flock(fd, LOCK_UN);
    assert_int_equal(shim_by_hand(rig.dir), 0);
    assert_int_equal(runfile_get_exit(fd, &arena, &exit, &key, &meta), ERR_OK);
    assert_string_equal(exit.reason, "EXITED");
    assert_int_equal(exit.exit_code, 9);
    assert_true(str_is(exit.tail, "by hand\n"));
    assert_int_equal(shim_by_hand(rig.dir), 1); /* not a second time */
    assert_int_equal(shim_by_hand("/no/such/place"), 1);
    assert_int_equal(shim_by_hand(NULL), 2);
    arena_free(&arena);
    close(fd);
    rig_remove(&rig);
}

/* Without a spec the exit record is still written. */
static void test_no_spec(void **state)
{
    struct arena arena = {0};
    struct run_exit exit;
    struct str key, meta;
    struct rig rig;
    int fd;

    rig_make(&rig);
    fd = open(rig.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(shim_by_hand(rig.dir), 0);
    assert_int_equal(runfile_get_exit(fd, &arena, &exit, &key, &meta), ERR_OK);
    assert_string_equal(exit.reason, "START_FAILED");
    arena_free(&arena);
    close(fd);
    rig_remove(&rig);
}

/* A shim whose directory was removed still ends: nothing will ask for its outcome. */
static void test_directory_removed(void **state)
{
    char script[PATH_MAX + 16];
    struct str argv[] = {STR("sh"), STR("-c"), STR_NONE};
    struct runfile file = {.spec = {.key = STR("gone"), .argv = argv, .argc = COUNT_OF(argv)},
                           .mark = STR("BERTH_RUN=gone/1"),
                           .created_ms = 1};
    struct rig rig;
    int fd;

    rig_make(&rig);
    snprintf(script, sizeof script, "rm -rf '%s'", rig.dir);
    argv[2] = str_of(script);
    file.dir = str_of(rig.dir);
    fd = open(rig.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(runfile_put(fd, &file, NULL), ERR_OK);
    close(fd);
    assert_int_equal(shim_by_hand(rig.dir), 0);
    assert_int_equal(access(rig.dir, F_OK), -1);
    rig_remove(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judge),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_way_to_its_files),
        cmocka_unit_test(test_users_beside),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_no_spec),
        cmocka_unit_test(test_directory_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
