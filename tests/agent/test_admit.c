/* `berth run` on machines that are directory trees: which commands start, which wait for what, and
 * that a slot is free again however its holder ended. Each `berth run` is a process of its own. */
#include "agent/admit.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "machine.h"
#include "unit.h"

enum { TEXT_MAX = 2048, ARGS_MAX = 8, RUNS = 8 };

struct gated {
    pid_t pid;
    int in_fd;  /* the command's standard input; closing it ends `cat` */
    int out_fd; /* what the command prints */
    int err_fd; /* messages of `berth run` */
};

static struct machine machine;
static char config_path[128];

/* An idle machine like "us" of examples/; `more` follows the common settings. */
static void put_config(const char *more)
{
    machine_put(&machine, "agent.yaml", "host_root: %s\nmonitor_interval_ms: 100\n%s", machine.root,
                more);
    snprintf(config_path, sizeof config_path, "%s/agent.yaml", machine.root);
}

static int set_up(void **state)
{
    char path[128];

    machine_init(&machine);
    machine_put_us(&machine);
    machine_put_load(&machine, 8, "0.10");
    snprintf(path, sizeof path, "%s/run", machine.root);
    assert_int_equal(mkdir(path, 0700), 0);
    setenv("XDG_RUNTIME_DIR", path, 1);
    put_config("");
    return 0;
}

static int tear_down(void **state)
{
    machine_done(&machine);
    return 0;
}

static struct gated start(const struct admit_request *request)
{
    struct admit_request own = *request;
    struct gated gated;
    int in[2], out[2], err[2];

    assert_int_equal(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC) | pipe2(err, O_CLOEXEC), 0);
    own.config = own.config ? own.config : config_path;
    gated.pid = fork();
    assert_true(gated.pid >= 0);
    if (gated.pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        close_range(STDERR_FILENO + 1, ~0U, 0); /* closes the pipes of the other runs */
        _exit(admit_run(&own, stderr));
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    gated.in_fd = in[1];
    gated.out_fd = out[0];
    gated.err_fd = err[0];
    return gated;
}

/* A `berth run` of `sh -c SCRIPT`. */
static struct gated start_script(const char *script, int64_t priority, int64_t wait_ms)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};

    return start(&(struct admit_request){
        .type = "dev", .priority = priority, .wait_ms = wait_ms, .argv = argv});
}

/* Reads until `text` contains `part`, or the end. */
static void read_until(int fd, char text[TEXT_MAX], const char *part)
{
    size_t len = strlen(text);
    ssize_t got;

    while ((!part || !strstr(text, part)) && len < TEXT_MAX - 1 &&
           (got = read(fd, text + len, TEXT_MAX - 1 - len)) > 0) {
        len += (size_t)got;
        text[len] = 0;
    }
}

static bool is_up(struct gated *gated)
{
    char text[TEXT_MAX] = "";

    read_until(gated->out_fd, text, "up\n");
    return strstr(text, "up\n") != NULL;
}

/* The exit code, or 128 + the signal; the messages are left in `said`. */
static int finish(struct gated *gated, char said[TEXT_MAX])
{
    int status;

    close(gated->in_fd);
    assert_int_equal(waitpid(gated->pid, &status, 0), gated->pid);
    said[0] = 0;
    read_until(gated->err_fd, said, NULL);
    close(gated->out_fd);
    close(gated->err_fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define GIB INT64_C(1048576) /* in KiB */

/* Defaults of a row: an idle machine, type dev, priority 5, no waiting, and `true`, which exits
 * 0. */
static const struct {
    const char *load;
    int64_t free_gib; /* of 15 */
    const char *config;
    const char *type;
    int64_t priority;
    bool interactive;
    int64_t wait_ms;
    const char *argv[ARGS_MAX];
    int code;
    const char *said; /* part of the message; NULL: no message */
} rows[] = {
    {.code = 0},
    {.argv = {"sh", "-c", "exit 7"}, .code = 7},
    {.argv = {"sh", "-c", "kill -9 $$"}, .code = 128 + 9},
    {.argv = {"/no/such/program"}, .code = 127, .said = "cannot run /no/such/program: No such"},
    {.argv = {"/"}, .code = 126, .said = "cannot run /: Permission denied"},
    /* the level and its cause */
    {.load = "6.00",
     .code = ADMIT_REFUSED,
     .said = "berth: this machine is at level warning by cpu (75% in use): only high priority"},
    {.load = "7.00",
     .priority = 9,
     .code = ADMIT_REFUSED,
     .said = "is at level danger by cpu (87% in use)\n"},
    {.free_gib = 1,
     .priority = 9,
     .code = ADMIT_REFUSED,
     .said = "is at level critical by memory (6% free)\n"},
    /* the clamp that left no slot */
    {.load = "6.00",
     .priority = 9,
     .code = ADMIT_REFUSED,
     .said = "berth: no slot is free: safety_buffer is 0, less 1 (safety_buffer); level warning\n"},
    {.load = "6.00", .priority = 9, .config = "safety_buffer: 0\n", .code = 0},
    {.load = "6.90", /* the formula leaves no slot, but nothing runs */
     .config = "resources: {load_warning_pct: 94, load_danger_pct: 95, load_critical_pct: 99}\n",
     .code = 0},
    {.load = "6.90",
     .config = "resources: {load_warning_pct: 94, load_danger_pct: 95, load_critical_pct: 99}\n"
               "slots_min: 0\n",
     .code = ADMIT_REFUSED,
     .said = "cpu is 0, (8.00 cores - load 6.90) / 1.20; level normal"},
    {.load = "6.90",
     .config = "resources: {load_warning_pct: 94, load_danger_pct: 95, load_critical_pct: 99}\n"
               "slots_fixed: 2\n",
     .code = 0},
    {.load = "6.00",
     .priority = 9,
     .wait_ms = 300,
     .code = ADMIT_TIMEOUT,
     .said = "berth: no longer waiting: no slot is free"},
    /* refused at once, as waiting cannot help */
    {.config = "allowed_types: [talk, research]\n",
     .wait_ms = -1,
     .code = ADMIT_REFUSED,
     .said = "work of type dev is not allowed here (TYPE_NOT_ALLOWED)"},
    {.config = "allowed_types: [talk, research]\n", .type = "talk", .wait_ms = -1, .code = 0},
    {.config = "slots_fixed: 0\n",
     .wait_ms = -1,
     .code = ADMIT_REFUSED,
     .said = "never has a slot for it: 0 in all, whatever the formula says (slots_fixed)"},
    {.config = "max_slots: 1\nreserved_slots: 1\n",
     .wait_ms = -1,
     .code = ADMIT_REFUSED,
     .said = "all are kept for interactive work (reserved_slots)"},
    {.config = "max_slots: 1\nreserved_slots: 1\n", .interactive = true, .wait_ms = -1, .code = 0},
    {.config = "max_concurrent_jobs: 0\n",
     .wait_ms = -1,
     .code = ADMIT_REFUSED,
     .said = "never has a slot for it: max_concurrent_jobs is 0"},
    {.load = "7.00", /* even at level danger, which would pass */
     .config = "resources: {mem_reserve_gb: 14}\nslots_min: 0\n",
     .wait_ms = -1,
     .code = ADMIT_REFUSED,
     .said = "never has a slot for it: at most 0, what this machine carries when idle"},
    /* invalid settings */
    {.config = "max_slot: 3\n", .code = ADMIT_BAD, .said = "max_slots"},
    {.config = "resources: {cpu_per_process: 0}\n", .code = ADMIT_BAD, .said = "cpu_per_process"},
    /* a token file that only the agent may read is not opened */
    {.config = "token_file: /no/such/token\n", .code = 0},
};

static void who_may_start(void **state)
{
    char *nothing[] = {(char *)"true", NULL};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct gated gated;
        char said[TEXT_MAX];
        int code;

        machine_put_load(&machine, 8, rows[i].load ? rows[i].load : "0.10");
        machine_put_memory(&machine, 15 * GIB, (rows[i].free_gib ? rows[i].free_gib : 11) * GIB, 0,
                           0);
        put_config(rows[i].config ? rows[i].config : "");
        gated = start(
            &(struct admit_request){.type = rows[i].type ? rows[i].type : "dev",
                                    .priority = rows[i].priority ? rows[i].priority : 5,
                                    .interactive = rows[i].interactive,
                                    .wait_ms = rows[i].wait_ms,
                                    .argv = rows[i].argv[0] ? (char **)rows[i].argv : nothing});
        code = finish(&gated, said);
        if (code != rows[i].code)
            fail_msg("row %zu: exit %d, wanted %d: %s", i, code, rows[i].code, said);
        if (rows[i].said)
            assert_has(str_of(said), rows[i].said);
        else
            assert_string_equal(said, "");
    }
}

static void a_machine_that_cannot_be_read_starts_nothing(void **state)
{
    struct gated gated;
    char said[TEXT_MAX];

    machine_drop(&machine, "proc/stat");
    machine_drop(&machine, "proc/meminfo");
    gated = start_script("exit 0", 9, -1);
    assert_int_equal(finish(&gated, said), ADMIT_BAD);
    assert_has(str_of(said), "proc/stat");
}

/* An agent removes its token from the environment; `berth run` must not, since its command may need
 * it. */
static void the_environment_stays(void **state)
{
    struct gated gated;
    char said[TEXT_MAX];

    setenv("BERTH_TOKEN", "abc", 1);
    gated = start_script("test \"$BERTH_TOKEN\" = abc", 5, 0);
    unsetenv("BERTH_TOKEN");
    assert_int_equal(finish(&gated, said), 0);
}

/* It reports once what it waits for, however long that takes, and then that it starts. */
static void it_waits_and_starts(void **state)
{
    char said[TEXT_MAX] = "";
    struct gated gated;

    machine_put_load(&machine, 8, "6.00");
    gated = start_script("echo up; exit 3", 9, -1);
    read_until(gated.err_fd, said, "\n");
    assert_string_equal(said, "berth: waiting: no slot is free: safety_buffer is 0, less 1 "
                              "(safety_buffer); level warning\n");
    machine_put_load(&machine, 8, "0.10");
    assert_true(is_up(&gated));
    assert_int_equal(finish(&gated, said), 3);
    assert_true(str_starts(str_of(said), STR("berth: starts after ")));
}

static void runs_count_each_other(void **state)
{
    struct gated first, second;
    char said[TEXT_MAX];

    put_config("slots_fixed: 1\n");
    first = start_script("echo up; exec cat", 5, 0);
    assert_true(is_up(&first));
    second = start_script("echo up", 5, 0);
    assert_int_equal(finish(&second, said), ADMIT_REFUSED);
    assert_has(str_of(said), "in_use is 0, 1 of 1 in use");
    second = start_script("echo up", 5, -1);
    said[0] = 0;
    read_until(second.err_fd, said, "\n");
    assert_has(str_of(said), "waiting: no slot is free");
    assert_int_equal(finish(&first, said), 0);
    assert_true(is_up(&second));
    assert_int_equal(finish(&second, said), 0);
}

/* The holder is killed with SIGKILL. */
static void a_killed_holder_frees_its_slot(void **state)
{
    struct gated first, second;
    char said[TEXT_MAX];

    put_config("slots_fixed: 1\n");
    for (int i = 0; i < 3; i++) {
        first = start_script("echo up; exec cat", 5, 0);
        assert_true(is_up(&first));
        kill(first.pid, SIGKILL);
        assert_int_equal(finish(&first, said), 128 + SIGKILL);
    }
    second = start_script("exit 4", 5, 0);
    assert_int_equal(finish(&second, said), 4);
}

/* The command has ended but left a process behind, which still uses the machine. Scripts use low
 * descriptors themselves, which must not free the slot. */
static void what_was_left_running_keeps_the_slot(void **state)
{
    struct gated first, second;
    char said[TEXT_MAX];
    int in_fd;

    put_config("slots_fixed: 1\n");
    first = start_script("for i in 3 5 6 7 8 9; do eval \"exec $i>/dev/null\"; done; exec 4<&0; "
                         "cat <&4 >/dev/null 2>&1 & echo up",
                         5, 0);
    assert_true(is_up(&first));
    in_fd = dup(first.in_fd);
    assert_int_equal(finish(&first, said), 0);
    second = start_script("exit 4", 5, 0);
    assert_int_equal(finish(&second, said), ADMIT_REFUSED);
    close(in_fd);
    second = start_script("exit 4", 5, -1);
    assert_int_equal(finish(&second, said), 4);
}

/* Only an agent ends runs in an emergency: `berth run` ends none, whatever its type. */
static void nobody_is_ended(void **state)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)"echo up; exec cat", NULL};
    struct gated first = start(&(struct admit_request){.type = "talk", .argv = argv}), second;
    char said[TEXT_MAX];

    assert_true(is_up(&first));
    machine_put_memory(&machine, 15 * GIB, GIB / 4, 0, 0);
    second = start_script("exit 0", 9, 500);
    assert_int_equal(finish(&second, said), ADMIT_TIMEOUT);
    assert_has(str_of(said), "level critical by memory");
    assert_int_equal(finish(&first, said), 0);
}

/* Only one process may decide at a time, or two would take the last slot. */
static void nobody_decides_beside_another(void **state)
{
    struct gated gated = start_script("exit 0", 5, 0);
    char said[TEXT_MAX] = "", path[128];
    int gate_fd;

    assert_int_equal(finish(&gated, said), 0);
    snprintf(path, sizeof path, "%s/run/berth-run/gate", machine.root);
    gate_fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(gate_fd, LOCK_EX | LOCK_NB), 0);
    gated = start_script("echo up", 5, -1);
    said[0] = 0;
    read_until(gated.err_fd, said, "\n");
    assert_string_equal(said, "berth: waiting: Another `berth run` has been deciding for long.\n");
    close(gate_fd);
    assert_true(is_up(&gated));
    assert_int_equal(finish(&gated, said), 0);
}

/* All start at once: never more run than there are slots. */
static void the_last_slot_is_taken_once(void **state)
{
    struct gated all[RUNS];
    char said[TEXT_MAX];
    int up = 0, refused = 0;

    put_config("slots_fixed: 3\n");
    for (int i = 0; i < RUNS; i++)
        all[i] = start_script("echo up; exec cat", 5, 0);
    for (int i = 0; i < RUNS; i++)
        up += is_up(&all[i]);
    assert_int_equal(up, 3);
    for (int i = 0; i < RUNS; i++)
        refused += finish(&all[i], said) == ADMIT_REFUSED;
    assert_int_equal(refused, RUNS - 3);
}

/* A load from before a burst lets in more than there is room for, but never more than an idle
 * machine carries. */
static void a_burst_has_an_end(void **state)
{
    struct gated all[RUNS];
    char said[TEXT_MAX];
    int up = 0;

    machine_put_load(&machine, 8, "3.00");
    for (int i = 0; i < RUNS; i++)
        all[i] = start_script("echo up; exec cat", 5, 0);
    for (int i = 0; i < RUNS; i++)
        up += is_up(&all[i]);
    assert_in_range(up, 1, 5); /* 8 / 1.2 = 6, less the safety buffer */
    for (int i = 0; i < RUNS; i++)
        finish(&all[i], said);
}

/* A slot directory that others can write to would let them block everybody. */
static void a_foreign_directory_is_refused(void **state)
{
    char said[TEXT_MAX], path[128];
    struct gated gated;

    snprintf(path, sizeof path, "%s/run/berth-run", machine.root);
    assert_int_equal(symlink(machine.root, path), 0);
    gated = start_script("exit 0", 5, 0);
    assert_int_equal(finish(&gated, said), ADMIT_BAD);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, 0777), 0);
    gated = start_script("exit 0", 5, 0);
    assert_int_equal(finish(&gated, said), ADMIT_BAD);
    assert_has(str_of(said), "belongs to somebody else");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_may_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_machine_that_cannot_be_read_starts_nothing, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_environment_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_waits_and_starts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(runs_count_each_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_killed_holder_frees_its_slot, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_left_running_keeps_the_slot, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nobody_is_ended, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nobody_decides_beside_another, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_last_slot_is_taken_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_burst_has_an_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_foreign_directory_is_refused, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
