/* Runs with real processes: what they get, how they end, and how they are stopped. */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process_tree.h"
#include "agent/runfile.h"
#include "agent/sandbox.h"
#include "base/json.h"
#include "run_rig.h"

/* --- how it ends --- */

static void test_ends(void **state)
{
    static const struct {
        const char *key, *script, *reason;
        int exit_code, signal;
        const char *tail;
    } rows[] = {
        {"e.0", "exit 0", "EXITED", 0, -1, ""},
        {"e.3", "echo out; echo err >&2; exit 3", "EXITED", 3, -1, "out\nerr\n"},
        {"e.255", "exit 255", "EXITED", 255, -1, ""},
        {"e.segv", "kill -SEGV $$", "SIGNALLED", -1, SIGSEGV, ""},
        {"e.kill", "printf half; kill -KILL $$", "SIGNALLED", -1, SIGKILL, "half"},
        {"e.utf8", "printf 'a\\377\\000b\\303\\244'", "EXITED", 0, -1,
         "a\xEF\xBF\xBD\xEF\xBF\xBD"
         "b\xC3\xA4"},
    };
    struct rig *rig = *state;
    struct run *runs[COUNT_OF(rows)];

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        runs[i] = rig_sh(rig, rows[i].key, rows[i].script, NULL);
    assert_int_equal(runs_count(rig->runs), COUNT_OF(rows));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        rig_await_end(rig, runs[i]);
        assert_exit(runs[i], rows[i].reason, rows[i].exit_code, rows[i].signal);
        if (!str_is(runs[i]->exit.tail, rows[i].tail))
            fail_msg("%s: tail \"" STR_FMT "\"", rows[i].key, STR_ARG(runs[i]->exit.tail));
        assert_true(runs[i]->exit.started_ms > 0);
        assert_true(runs[i]->exit.ended_ms >= runs[i]->exit.started_ms);
        assert_true(runs[i]->exit.rss_kb_max > 0);
        run_forget(runs[i]);
    }
    assert_int_equal(rig->started, COUNT_OF(rows));
    assert_int_equal(rig->ended, COUNT_OF(rows));
    assert_int_equal(runs_count(rig->runs), 0);
}

static void test_cannot_start(void **state)
{
    struct rig *rig = *state;
    const struct {
        const char *key, *program, *cwd, *user, *says;
    } rows[] = {
        {"s.none", "no-such-program", NULL, NULL, "No such file or directory"},
        {"s.path", "/no/such/program", NULL, NULL, "/no/such/program"},
        {"s.dir", "/tmp", NULL, NULL, "Permission denied"},
        {"s.cwd", "true", "/no/such/place", NULL, "/no/such/place"},
        {"s.user", "true", NULL, "no-such-user", "no-such-user"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str argv = str_of(rows[i].program), path = STR("PATH=/bin:/usr/bin");
        struct run_spec spec = {.handler = &rig_handler,
                                .key = str_of(rows[i].key),
                                .argv = &argv,
                                .argc = 1,
                                .env = &path,
                                .env_count = 1,
                                .cwd = str_of(rows[i].cwd),
                                .user = str_of(rows[i].user)};
        struct run *run;
        enum err err;

        err = runs_start(rig->runs, &spec, NULL, &run, NULL);
        if (rows[i].user && geteuid() != 0) {
            assert_int_equal(err, ERR_FORBIDDEN);
            continue;
        }
        assert_int_equal(err, ERR_OK);
        rig_await_end(rig, run);
        assert_exit(run, "START_FAILED", -1, -1);
        if (!strstr(run->exit.detail, rows[i].says))
            fail_msg("%s: %s", rows[i].key, run->exit.detail);
        assert_int_equal(run->exit.started_ms, 0);
        run_forget(run);
    }
    assert_int_equal(rig->started, 0);
}

static void test_refused(void **state)
{
    static const struct str word = {"true", 4}, empty = {"", 0}, nul = {"a\0b", 3},
                            bad = {"\xff", 1}, no_equals = {"NAME", 4}, no_name = {"=x", 2};
    const struct {
        struct run_spec spec;
        enum err err;
        const char *field;
    } rows[] = {
        {{.key = STR("../x"), .argv = &word, .argc = 1}, ERR_BAD_FIELD, "key"},
        {{.key = STR(".gone"), .argv = &word, .argc = 1}, ERR_BAD_FIELD, "key"},
        {{.key = STR("a/b"), .argv = &word, .argc = 1}, ERR_BAD_FIELD, "key"},
        {{.key = STR(""), .argv = &word, .argc = 1}, ERR_BAD_FIELD, "key"},
        {{.key = STR("twice"), .argv = &word, .argc = 1}, ERR_CONFLICT, "key"},
        {{.key = STR("k"), .argc = 0}, ERR_BAD_FIELD, "command"},
        {{.key = STR("k"), .argv = &empty, .argc = 1}, ERR_BAD_FIELD, "command"},
        {{.key = STR("k"), .argv = &nul, .argc = 1}, ERR_BAD_FIELD, "command"},
        {{.key = STR("k"), .argv = &bad, .argc = 1}, ERR_BAD_FIELD, "command"},
        {{.key = STR("k"), .argv = &word, .argc = 1, .env = &no_equals, .env_count = 1},
         ERR_BAD_FIELD,
         "env"},
        {{.key = STR("k"), .argv = &word, .argc = 1, .env = &no_name, .env_count = 1},
         ERR_BAD_FIELD,
         "env"},
        {{.key = STR("k"), .argv = &word, .argc = 1, .cwd = STR("tmp")}, ERR_BAD_FIELD, "cwd"},
        {{.key = STR("k"), .argv = &word, .argc = 1, .user = STR("a b")}, ERR_BAD_FIELD, "user"},
        {{.key = STR("k"), .argv = &word, .argc = 1, .timeout_ms = -1}, ERR_BAD_FIELD, "limits"},
    };
    struct rig *rig = *state;
    struct run *twice = rig_sh(rig, "twice", "exec sleep 60", NULL);

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct problem why = {0};
        struct run *run = NULL;

        assert_int_equal(runs_start(rig->runs, &rows[i].spec, NULL, &run, &why), rows[i].err);
        assert_string_equal(why.field, rows[i].field);
        assert_true(why.detail[0] && !run);
    }
    assert_int_equal(runs_count(rig->runs), 1);
    assert_ptr_equal(rig_find(rig, STR("twice")), twice);
    assert_null(rig_find(rig, STR("k")));
}

/* --- what a run gets --- */

static void test_environment(void **state)
{
    static const struct str env[] = {STR("COLOUR=blue"), STR("LANG=de_DE"), STR("EMPTY=")};
    struct rig *rig = *state;
    struct run_spec spec = {.env = env, .env_count = COUNT_OF(env), .input = STR("pay\0load\n")};
    struct run *run;
    char *out;

    setenv("TERM", "xterm", 1);
    setenv("SECRET_OF_THE_AGENT", "1", 1);
    rig_close(rig); /* starts a spawner with these variables */
    rig_open(rig);
    run = rig_sh(rig, "env", "env | sort | grep -v ^_=", &spec);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
    out = rig_output(run);
    assert_non_null(strstr(out, "COLOUR=blue\n"));
    assert_non_null(strstr(out, "EMPTY=\n"));
    assert_non_null(strstr(out, "LANG=de_DE\n"));
    assert_non_null(strstr(out, "\nPATH=/"));
    assert_non_null(strstr(out, "\nHOME=/"));
    assert_non_null(strstr(out, "BERTH_PAYLOAD_FILE=/"));
    assert_null(strstr(out, "TERM="));
    assert_null(strstr(out, "SECRET"));
    free(out);
}

static void test_input(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.input = STR("line one\nline two\n")};
    struct run *both = rig_sh(rig, "in.both", "cat; cat \"$BERTH_PAYLOAD_FILE\"; pwd", &spec);
    struct run *none = rig_sh(rig, "in.none", "cat; echo \"<$BERTH_PAYLOAD_FILE>\"", NULL);
    struct str work;

    rig_await_end(rig, both);
    rig_await_end(rig, none);
    work = both->exit.tail;
    assert_true(str_starts(work, STR("line one\nline two\nline one\nline two\n/")));
    assert_memory_equal(work.at + work.len - 14, "/in.both/work\n", 14);
    assert_true(str_is(none->exit.tail, "<>\n"));
}

static void test_cwd_and_umask(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.cwd = STR("/usr")};
    struct run *run = rig_sh(rig, "cwd", "pwd; umask; kill -s PIPE $$; echo alive", &spec);
    char expected[64];
    mode_t mask = umask(022);

    umask(mask);
    rig_await_end(rig, run);
    /* SIGPIPE is not ignored, though the agent ignores it. */
    assert_exit(run, "SIGNALLED", -1, SIGPIPE);
    snprintf(expected, sizeof expected, "/usr\n%04o\n", mask);
    assert_true(str_is(run->exit.tail, expected));
}

/* A job of another user has its own directory and input, and nothing of the agent's. */
static void test_user(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.user = STR("nobody"), .input = STR("for nobody")};
    struct stat info;
    struct run *run;

    if (geteuid() != 0)
        skip();
    run = rig_sh(rig, "user",
                 "id -un; cat \"$BERTH_PAYLOAD_FILE\"; echo; touch mine && echo wrote; "
                 "cat ../spec 2>/dev/null || echo hidden; ls .. 2>/dev/null || echo closed; "
                 "echo $USER; id -G | tr ' ' '\\n' | grep -qx 0 || echo no group of root",
                 &spec);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
    assert_true(str_is(run->exit.tail, "nobody\nfor nobody\nwrote\nhidden\nclosed\nnobody\n"
                                       "no group of root\n"));
    rig_close(rig); /* the next agent must keep access open for running work */
    rig_open(rig);
    rig_adopt(rig);
    assert_int_equal(stat(rig->dir, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0711);
}

/* Without a user in the spec or the rules, a run of root's agent is not root. */
static void test_never_root(void **state)
{
    struct rig *rig = *state;
    const char *name = getpwnam("berth-job") ? "berth-job\n" : "nobody\n";
    struct run *run;

    if (geteuid() != 0)
        skip();
    runs_set_rules(rig->runs, &(struct run_rules){.allow_root = false});
    assert_null(runs_not_apart(rig->runs));
    run = rig_sh(rig, "default", "id -un", NULL);
    rig_await_end(rig, run);
    assert_true(str_is(run->exit.tail, name));
    run = rig_sh(rig, "root", "id -un", &(struct run_spec){.user = STR("root")});
    rig_await_end(rig, run);
    assert_exit(run, "START_FAILED", -1, -1);
    assert_non_null(strstr(run->exit.detail, "allow_root"));
    runs_set_rules(rig->runs,
                   /* Root is allowed, but not the default. */
                   &(struct run_rules){.allow_root = true});
    run = rig_sh(rig, "allowed", "id -un", NULL);
    rig_await_end(rig, run);
    assert_true(str_is(run->exit.tail, name));
}

/* System calls that work does not need are refused and all others work, unless the rules say
 * otherwise. */
static void test_syscalls(void **state)
{
    static const char script[] =
        "grep -h '^Seccomp:' /proc/self/status; unshare --user true 2>&1; echo $?; "
        "unshare --fork --pid true 2>&1; mount -t tmpfs none . 2>/dev/null; echo $?; "
        "python3 -c 'import threading; t = threading.Thread(target=print, args=(\"thread\",)); "
        "t.start(); t.join()'; (sleep 0 & wait) | cat; setsid true; echo fine";
    struct rig *rig = *state;
    struct run_spec spec = {.user = geteuid() == 0 ? STR("nobody") : STR_NONE};
    struct run *run = rig_sh(rig, "filtered", script, &spec);
    char *said;

    rig_await_end(rig, run);
    said = rig_output(run);
    assert_string_equal(said, "Seccomp:\t2\n"
                              "unshare: unshare failed: Operation not permitted\n1\n"
                              "unshare: unshare failed: Operation not permitted\n32\n"
                              "thread\nfine\n");
    free(said);
    runs_set_rules(rig->runs, &(struct run_rules){.unfiltered = true});
    run = rig_sh(rig, "unfiltered", "grep -h '^Seccomp:' /proc/self/status", &spec);
    rig_await_end(rig, run);
    assert_true(str_is(run->exit.tail, "Seccomp:\t0\n"));
}

/* --- secrets --- */

static void put_secret(const struct rig *rig, const char *name, const char *text, mode_t mode)
{
    int fd = open(rig_path(rig, ".keys/%s", name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void open_keys(struct rig *rig)
{
    static char dir[128];
    struct run_rules rules = rig->runs->rules;

    mkdir(rig_path(rig, ".keys"), 0700);
    snprintf(dir, sizeof dir, "%s", rig_path(rig, ".keys"));
    rules.secrets_dir = str_of(dir);
    runs_set_rules(rig->runs, &rules);
}

static bool holds(const char *path, const char *text)
{
    struct buf found = {0};
    bool has;

    assert_int_equal(cgroup_file_get(AT_FDCWD, path, &found), 0);
    buf_char(&found, '\0');
    has = strstr(found.at, text) != NULL;
    buf_free(&found);
    return has;
}

/* Secrets as files and variables, readable by the job's user only, and in no record. */
static void test_secrets(void **state)
{
    static const char script[] =
        "printf '%s ' \"$KEY\"; cat \"$BERTH_SECRETS_DIR/api-key\" \"$BERTH_SECRETS_DIR/plain\"; "
        "stat -c %a:%U \"$BERTH_SECRETS_DIR/plain\"; touch \"$BERTH_SECRETS_DIR/x\" || echo "
        "closed; "
        "echo $PATH | grep -c sesam[e]; touch own; until test -e go; do sleep 0.01; done";
    struct rig *rig = *state;
    struct str words[] = {STR("KEY=api-key"), STR("plain"), STR("AGAIN=api-key"),
                          STR("PATH=api-key")};
    struct run_spec spec = {.user = geteuid() == 0 ? STR("nobody") : STR_NONE,
                            .secrets = words,
                            .secret_count = COUNT_OF(words)};
    struct run *run;
    struct stat info;
    char *said;

    open_keys(rig);
    put_secret(rig, "api-key", "open sesame\n", 0600);
    put_secret(rig, "plain", "second\n", 0400);
    run = rig_sh(rig, "keys", script, &spec);
    rig_await(rig, access(rig_path(rig, "keys/work/own"), F_OK) == 0);
    assert_false(holds(rig_path(rig, "keys/spec"), "sesame"));
    assert_true(holds(rig_path(rig, "keys/spec"), "api-key"));
    assert_int_equal(stat(rig_path(rig, "keys/secrets/api-key"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0400);
    close(open(rig_path(rig, "keys/work/go"), O_CREAT | O_CLOEXEC, 0600));
    rig_await_end(rig, run);
    said = rig_output(run);
    assert_non_null(strstr(said, "open sesame open sesame\nsecond\n400:"));
    if (geteuid() == 0)
        assert_non_null(strstr(said, "400:nobody\n"));
    assert_true(geteuid() != 0 || strstr(said, "closed\n"));
    assert_non_null(strstr(said, "\n0\n")); /* variables set by the agent win */
    free(said);
    assert_int_equal(access(rig_path(rig, "keys/secrets"), F_OK), -1);
}

static enum err start_with_secret(struct rig *rig, const char *name, struct problem *why)
{
    struct str word = str_of(name), argv = STR("true");
    struct run_spec spec = {.handler = &rig_handler,
                            .key = word,
                            .argv = &argv,
                            .argc = 1,
                            .secrets = &word,
                            .secret_count = 1};
    struct run *run;

    return runs_start(rig->runs, &spec, rig, &run, why);
}

/* A missing secret fails the start with its name. */
static void test_secrets_missing(void **state)
{
    static const struct {
        const char *name, *text;
        mode_t mode;
        const char *detail;
    } rows[] = {
        {"none", NULL, 0, "The secret none cannot be read in "},
        {"open", "x", 0644, "The secret open in "},
    };
    struct rig *rig = *state;
    struct problem why = {0};

    open_keys(rig);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (rows[i].text)
            put_secret(rig, rows[i].name, rows[i].text, rows[i].mode);
        if (!start_with_secret(rig, rows[i].name, &why) || !strstr(why.detail, rows[i].detail))
            fail_msg("%s: %s", rows[i].name, why.detail);
        assert_int_equal(access(rig_path(rig, "none"), F_OK), -1);
    }
    runs_set_rules(rig->runs, &(struct run_rules){.allow_root = true});
    assert_int_equal(start_with_secret(rig, "api-key", &why), ERR_NOT_FOUND);
    assert_non_null(strstr(why.detail, "The secret api-key is not here"));
}

/* The secrets are removed with the run, also without an agent, when the shim was killed, and when
 * the start failed. */
static void test_secrets_go(void **state)
{
    struct rig *rig = *state;
    struct str word = STR("KEY=api-key");
    struct run_spec spec = {.secrets = &word, .secret_count = 1};
    struct run_spec nowhere = spec;
    struct run *run;

    open_keys(rig);
    put_secret(rig, "api-key", "open sesame", 0600);
    run = rig_sh(rig, "lost", "touch own; sleep 1000", &spec);
    rig_await(rig, access(rig_path(rig, "lost/work/own"), F_OK) == 0 && run_shim_pid(run) > 0);
    assert_int_equal(access(rig_path(rig, "lost/secrets/api-key"), F_OK), 0);
    kill(run_shim_pid(run), SIGKILL);
    rig_await_end(rig, run);
    assert_int_equal(access(rig_path(rig, "lost/secrets"), F_OK), -1);
    nowhere.cwd = STR("/no/such/directory");
    run = rig_sh(rig, "unstarted", "true", &nowhere);
    rig_await_end(rig, run);
    assert_exit(run, "START_FAILED", -1, -1);
    assert_int_equal(access(rig_path(rig, "unstarted/secrets"), F_OK), -1);
    rig_sh(rig, "alone", "touch own; until test -e go; do sleep 0.01; done", &spec);
    rig_await(rig, access(rig_path(rig, "alone/work/own"), F_OK) == 0);
    rig_close(rig);
    close(open(rig_path(rig, "alone/work/go"), O_CREAT | O_CLOEXEC, 0600));
    for (int64_t until_ms = clock_mono_ms() + RIG_PATIENCE_MS;
         access(rig_path(rig, "alone/secrets"), F_OK) == 0 && clock_mono_ms() < until_ms;)
        usleep(1000);
    assert_int_equal(access(rig_path(rig, "alone/secrets"), F_OK), -1);
    rig_open(rig);
    rig_adopt(rig);
    rig_await(rig, runs_count(rig->runs) == 0);
}

/* --- limits --- */

/* The directory of a run is measured as its user, and always has a limit. */
static void test_disk_limit(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.user = geteuid() == 0 ? STR("nobody") : STR_NONE,
                            .disk_bytes_max = 1 << 20};
    struct run *small, *big;

    small = rig_sh(rig, "small",
                   "head -c 100000 /dev/zero > a; until test -e go; do sleep 0.01; done", &spec);
    big = rig_sh(rig, "big",
                 "umask 77; mkdir -p a/b; head -c 3000000 /dev/urandom > a/b/big; sync a/b/big; "
                 "sleep 1000",
                 &spec);
    rig_await_end(rig, big);
    assert_string_equal(big->exit.reason, "DISK_LIMIT");
    assert_non_null(strstr(big->exit.detail, "1048576 bytes"));
    assert_int_equal(access(rig_path(rig, "big/work"), F_OK), -1);
    rig_await(rig, access(rig_path(rig, "small/work/a"), F_OK) == 0); /* it may start later */
    close(open(rig_path(rig, "small/work/go"), O_CREAT | O_CLOEXEC, 0600));
    rig_await_end(rig, small);
    assert_exit(small, "EXITED", 0, -1);
}

static int64_t spec_int(const struct rig *rig, const char *key, const char *name)
{
    struct arena arena = {0};
    struct buf text = {0};
    const struct json *root;
    int64_t value = -1;

    assert_int_equal(cgroup_file_get(AT_FDCWD, rig_path(rig, "%s/spec", key), &text), 0);
    assert_int_equal(json_parse(buf_view(&text), &arena, &root, NULL), ERR_OK);
    json_int(json_get(root, name), &value);
    buf_free(&text);
    arena_free(&arena);
    return value;
}

/* Default limits: half of the free disk, and memory as the rules say. */
static void test_bounds_that_nobody_set(void **state)
{
    struct rig *rig = *state;
    struct run_rules rules = rig->runs->rules;
    int64_t memory = sysconf(_SC_PHYS_PAGES) / 100 * 90 * sysconf(_SC_PAGESIZE);
    bool groups = rig->runs->place.limits[CGROUP_MEMORY];

    rules.memory_percent_max = 90;
    runs_set_rules(rig->runs, &rules);
    rig_await_end(rig, rig_sh(rig, "none", "true", NULL));
    assert_true(spec_int(rig, "none", "disk_bytes_max") >= 64 << 20);
    assert_int_equal(spec_int(rig, "none", "memory_bytes_spare"), groups ? memory : 0);
    rules.memory_percent_max = 100;
    rules.disk_bytes_max = 5 << 20;
    runs_set_rules(rig->runs, &rules);
    rig_await_end(rig, rig_sh(rig, "set", "true", NULL));
    assert_int_equal(spec_int(rig, "set", "disk_bytes_max"), 5 << 20);
    assert_int_equal(spec_int(rig, "set", "memory_bytes_spare"), 0);
    rig_await_end(rig, rig_sh(rig, "own", "true", &(struct run_spec){.disk_bytes_max = 7 << 20}));
    assert_int_equal(spec_int(rig, "own", "disk_bytes_max"), 7 << 20);
}

/* --- its own /tmp --- */

/* A rig outside of /tmp, which private directories would hide; NULL: not possible on this
 * machine. */
static struct rig *rig_elsewhere(void)
{
    struct rig *rig = calloc(1, sizeof *rig);

    rig_make(rig);
    assert_int_equal(rmdir(rig->dir), 0);
    strcpy(rig->dir, "run-XXXXXX"); /* in the current directory, which is the build directory */
    assert_non_null(mkdtemp(rig->dir));
    rig_open(rig);
    rig_adopt(rig);
    if (!runs_tmp_missing(rig->runs))
        return rig;
    print_message("%s\n", runs_tmp_missing(rig->runs));
    rig_teardown((void **)&rig);
    return NULL;
}

/* A run does not see the machine's /tmp by any path; what it leaves in its own is removed with
 * it. */
static void test_private_tmp(void **state)
{
    struct rig *usual = *state, *rig = private_tmp_hides(getcwd((char[512]){0}, 512)) == NULL
                                           ? rig_elsewhere()
                                           : NULL;
    struct run_spec spec = {.user = geteuid() == 0 ? STR("nobody") : STR_NONE};
    char script[1024], mark[64] = "/tmp/berth-mark-XXXXXX";
    struct run *run, *beside;
    int fd;

    assert_non_null(strstr(runs_tmp_missing(usual->runs), "is in /tmp"));
    if (!rig)
        skip();
    fd = mkstemp(mark);
    assert_true(fd >= 0 && fchmod(fd, 0644) == 0);
    close(fd);
    snprintf(script, sizeof script,
             "cat %s ../../../../../../../../../../../..%s && echo seen; ls -A /tmp /var/tmp; "
             "echo mine > /tmp/x; echo mine > /var/tmp/y; touch own; "
             "until test -e /tmp/go; do sleep 0.01; done; grep -c . /tmp/x /var/tmp/y",
             mark, mark);
    run = rig_sh(rig, "private", script, &spec);
    rig_await(rig, access(rig_path(rig, "private/work/own"), F_OK) == 0);
    assert_int_equal(access(rig_path(rig, "private/tmp/x"), F_OK), 0);
    assert_int_equal(access(rig_path(rig, "private/var-tmp/y"), F_OK), 0);

    /* A health check shares /tmp with its deployment; other runs do not. */
    spec.tmp_of = STR("private");
    beside = rig_sh(rig, "beside", "cat /tmp/x /var/tmp/y; touch /tmp/go", &spec);
    rig_await_end(rig, beside);
    assert_true(str_is(beside->exit.tail, "mine\nmine\n"));
    spec.tmp_of = STR_NONE;
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
    {
        char *said = rig_output(run);

        assert_null(strstr(said, "seen"));
        assert_non_null(strstr(said, "/tmp:\n\n/var/tmp:\n/tmp/x:1\n/var/tmp/y:1\n"));
        free(said);
    }
    assert_int_equal(access(rig_path(rig, "private/tmp"), F_OK), -1);
    assert_int_equal(access(rig_path(rig, "private/var-tmp"), F_OK), -1);

    runs_set_rules(rig->runs, &(struct run_rules){.shared_tmp = true});
    snprintf(script, sizeof script, "cat %s && echo seen", mark);
    run = rig_sh(rig, "shared", script, &spec);
    rig_await_end(rig, run);
    assert_true(str_is(run->exit.tail, "seen\n"));
    unlink(mark);
    rig_teardown((void **)&rig);
}

/* Where a run has mounts of its own, its secrets are in a memory file system: its user reads them,
 * nobody else sees even their names, and none is on disk. */
static void test_secrets_in_memory(void **state)
{
    static const char script[] =
        "cat \"$BERTH_SECRETS_DIR/api-key\"; echo \"$KEY\" | tr a-z A-Z; "
        "stat -c %a:%U \"$BERTH_SECRETS_DIR/api-key\"; "
        "stat -f -c %T \"$BERTH_SECRETS_DIR\"; chmod 600 \"$BERTH_SECRETS_DIR/api-key\" || "
        "echo x > \"$BERTH_SECRETS_DIR/x\" || echo closed; touch own; "
        "until test -e go; do sleep 0.01; done";
    struct rig *rig =
        private_tmp_hides(getcwd((char[512]){0}, 512)) == NULL ? rig_elsewhere() : NULL;
    struct str words[] = {STR("KEY=api-key"), STR("AGAIN=api-key")};
    struct run_spec spec = {.user = geteuid() == 0 ? STR("nobody") : STR_NONE,
                            .secrets = words,
                            .secret_count = COUNT_OF(words)};
    struct run *run;
    char *said;

    if (!rig)
        skip();
    open_keys(rig);
    put_secret(rig, "api-key", "open sesame\n", 0600);
    run = rig_sh(rig, "keys", script, &spec);
    rig_await(rig, run->state == RUN_ENDED || access(rig_path(rig, "keys/work/own"), F_OK) == 0);
    assert_int_equal(access(rig_path(rig, "keys/secrets"), F_OK), 0);
    assert_int_equal(access(rig_path(rig, "keys/secrets/api-key"), F_OK), -1);
    close(open(rig_path(rig, "keys/work/go"), O_CREAT | O_CLOEXEC, 0600));
    rig_await_end(rig, run);
    said = rig_output(run);
    assert_non_null(strstr(said, "open sesame\nOPEN SESAME\n400:"));
    assert_non_null(strstr(said, "\nramfs\n"));
    assert_non_null(strstr(said, "closed\n"));
    if (geteuid() == 0)
        assert_non_null(strstr(said, "400:nobody\n"));
    free(said);
    assert_int_equal(access(rig_path(rig, "keys/secrets"), F_OK), -1);
    unlink(rig_path(rig, ".keys/api-key"));
    rmdir(rig_path(rig, ".keys"));
    rig_teardown((void **)&rig);
}

/* Runs in a child process as nobody. */
static int try_as_nobody(const struct passwd *nobody)
{
    static const struct run_handler handler = {.ended = run_forget};
    struct str argv = STR("true");
    struct run_spec spec = {
        .handler = &handler, .key = STR("k"), .argv = &argv, .argc = 1, .user = STR("root")};
    char dir[] = "/tmp/berth-nobody-XXXXXX", trash[64];
    const struct cgroup_place *offered;
    struct problem why = {0};
    struct run *run;
    struct runs *runs;
    struct loop loop;

    if (setgid(nobody->pw_gid) != 0 || setuid(nobody->pw_uid) != 0 || !mkdtemp(dir))
        return 1;
    if (loop_init(&loop, 0) || runs_new(&loop, dir, "/bin/true", NULL, NULL, &runs, &why))
        return 2;
    if (runs_start(runs, &spec, NULL, &run, &why) != ERR_FORBIDDEN || !strstr(why.detail, "root"))
        return 3;
    if (!runs_not_apart(runs) || !strstr(runs_not_apart(runs), "runs as its user"))
        return 6;
    /* Root's groups are not offered to nobody, and the reason says so. */
    offered = runs_offered(runs);
    if (offered->parent[0] || offered->limits[CGROUP_MEMORY] || offered->limits[CGROUP_PIDS] ||
        !strstr(offered->missing, "memory"))
        return 5;
    runs_free(runs);
    loop_done(&loop);
    snprintf(trash, sizeof trash, "%s/" RUN_TRASH, dir);
    return rmdir(trash) == 0 && rmdir(dir) == 0 ? 0 : 4;
}

static void test_user_needs_root(void **state)
{
    const struct passwd *nobody = getpwnam("nobody");
    int status;
    pid_t pid;

    if (geteuid() != 0 || !nobody)
        skip();
    pid = fork();
    if (pid == 0)
        _exit(try_as_nobody(nobody));
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* --- what is left behind --- */

static bool trash_is_empty(const struct rig *rig)
{
    return rmdir(rig_path(rig, RUN_TRASH)) == 0 && mkdir(rig_path(rig, RUN_TRASH), 0700) == 0;
}

/* The work directory is removed when the run has ended; record, output and result stay. */
static void test_work_goes(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(rig, "scratch",
                             "mkdir -p a/b/c && head -c 200000 /dev/zero > a/b/c/big; "
                             "echo '{}' > .result.json; chmod 0 a .; echo told",
                             &(struct run_spec){.input = STR("payload")});
    char *output;

    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
    assert_int_equal(access(rig_path(rig, "scratch/work"), F_OK), -1);
    assert_int_equal(access(rig_path(rig, "scratch/input"), F_OK), -1);
    assert_int_equal(access(rig_path(rig, "scratch/result"), F_OK), 0);
    assert_int_equal(access(rig_path(rig, "scratch/exit"), F_OK), 0);
    output = rig_output(run);
    assert_string_equal(output, "told\n");
    free(output);
    rig_await(rig, trash_is_empty(rig));
}

/* The same if it ended without an agent, or by the death of its shim. */
static void test_work_goes_later(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(rig, "lost", "echo 1 > .result.json; touch x; sleep 1000", NULL);
    int zombies = rig_zombies();

    rig_await(rig, access(rig_path(rig, "lost/work/x"), F_OK) == 0 && run_shim_pid(run) > 0);
    kill(run_shim_pid(run), SIGKILL);
    rig_await_end(rig, run);
    assert_exit(run, "SHIM_LOST", -1, -1);
    assert_int_equal(access(rig_path(rig, "lost/work"), F_OK), -1);
    assert_int_equal(access(rig_path(rig, "lost/result"), F_OK), 0);
    rig_sh(rig, "alone", "echo 1 > .result.json; until test -e ../go; do sleep 0.01; done", NULL);
    rig_await(rig, access(rig_path(rig, "alone/work/.result.json"), F_OK) == 0);
    rig_close(rig);
    assert_int_equal(mkdir(rig_path(rig, "alone/go"), 0700), 0);
    for (int64_t until_ms = clock_mono_ms() + RIG_PATIENCE_MS;
         access(rig_path(rig, "alone/result"), F_OK) != 0 && clock_mono_ms() < until_ms;)
        usleep(1000);
    rig_open(rig);
    rig_adopt(rig);
    rig_await(rig, runs_count(rig->runs) == 0);
    assert_int_equal(access(rig_path(rig, "alone/result"), F_OK), 0);
    assert_int_equal(access(rig_path(rig, "alone/work"), F_OK), -1);
    assert_int_equal(rig_zombies(), zombies);
}

/* An invalid result leaves a marker, not its content. */
static void test_results_that_are_none(void **state)
{
    struct rig *rig = *state;
    struct run *large = rig_sh(rig, "large", "head -c 9000000 /dev/zero > .result.json", NULL);
    struct run *dir = rig_sh(rig, "dir", "mkdir .result.json; touch .result.json/x", NULL);
    struct stat info;

    rig_await_end(rig, large);
    rig_await_end(rig, dir);
    assert_int_equal(stat(rig_path(rig, "large/result"), &info), 0);
    assert_int_equal(info.st_size, RUNFILE_RESULT_MAX + 1);
    assert_int_equal(info.st_blocks, 0);
    assert_int_equal(stat(rig_path(rig, "dir/result"), &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    assert_int_equal(access(rig_path(rig, "dir/result/x"), F_OK), -1);
}

/* What a job mounted in its directory is not emptied. */
static void test_mounted_there(void **state)
{
    struct rig *rig = *state;
    struct run *run;

    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        skip();
    assert_int_equal(mkdir(rig_path(rig, "precious"), 0700), 0);
    assert_int_equal(mkdir(rig_path(rig, "precious/file"), 0700), 0);
    run = rig_sh(rig, "mounts", "mkdir there; touch own; until test -e go; do sleep 0.01; done",
                 NULL);
    rig_await(rig, access(rig_path(rig, "mounts/work/own"), F_OK) == 0);
    {
        char from[128];

        snprintf(from, sizeof from, "%s", rig_path(rig, "precious"));
        assert_int_equal(mount(from, rig_path(rig, "mounts/work/there"), NULL, MS_BIND, NULL), 0);
    }
    assert_int_equal(mkdir(rig_path(rig, "mounts/work/go"), 0700), 0);
    rig_await_end(rig, run);
    run_forget(run);
    rig_await(rig, !rig->runs->trash_busy);
    assert_int_equal(access(rig_path(rig, "precious/file"), F_OK), 0);
    rmdir(rig_path(rig, "precious/file"));
    rmdir(rig_path(rig, "precious"));
}

/* Everything below a running agent is removed: the next run can still start. */
static void test_directory_removed(void **state)
{
    struct rig *rig = *state;
    struct run *before = rig_sh(rig, "before", "sleep 1000", NULL), *after;
    char command[128];

    rig_await(rig, before->state == RUN_RUNNING);
    snprintf(command, sizeof command, "rm -rf %s", rig->dir);
    assert_int_equal(system(command), 0);
    after = rig_sh(rig, "after", "touch x; exit 5", NULL);
    rig_await_end(rig, after);
    assert_exit(after, "EXITED", 5, -1);
    run_forget(after);
    rig_await(rig, trash_is_empty(rig));
    run_stop(before, "STOPPED", 0);
    rig_await_end(rig, before);
    assert_string_equal(before->exit.reason, "SHIM_LOST"); /* its record was removed, too */
    assert_int_equal(flock(open(rig->dir, O_RDONLY | O_CLOEXEC), LOCK_EX | LOCK_NB), -1);
}

/* --- output --- */

static void test_order_and_rotation(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.log_bytes_max = 4096};
    struct run *run = rig_sh(rig, "rot",
                             "i=0; while [ $i -lt 3000 ]; do echo line $i; "
                             "i=$((i+1)); done; echo the end >&2",
                             &spec);
    struct buf out = {0};
    int64_t first, total, number;
    struct str rest;

    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
    assert_int_equal(run_log(run, 0, 1 << 20, &out, &first, &total), ERR_OK);
    assert_int_equal(total, run->exit.output_bytes);
    assert_int_equal(first, run->exit.output_dropped);
    assert_int_equal(total - first, out.len);
    assert_true(out.len >= 4096 && out.len <= 2 * 4096);
    rest = buf_view(&out);
    str_cut(&rest, '\n');
    str_cut(&rest, ' ');
    assert_true(str_int(str_cut(&rest, '\n'), &number));
    for (int64_t next; ++number < 3000;) { /* every line once and in order */
        str_cut(&rest, ' ');
        assert_true(str_int(str_cut(&rest, '\n'), &next));
        assert_int_equal(next, number);
    }
    assert_true(str_is(rest, "the end\n"));
    assert_true(str_starts(run->exit.tail, STR("line ")));
    assert_true(run->exit.tail.len <= RUN_TAIL_BYTES);
    assert_int_equal(run_log(run, total + 5, 10, &out, &first, &number), ERR_OK);
    assert_int_equal(number, total);
    buf_free(&out);
}

/* Output can be read while the run writes it. */
static void test_follow(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(
        rig, "follow",
        "echo one; until [ -p ../go ]; do sleep 0.01; done; read line < ../go; echo two $line",
        NULL);
    struct buf out = {0};
    int64_t first, total;
    int fifo;

    assert_int_equal(mkfifo(rig_path(rig, "follow/go"), 0600), 0);
    rig_await(rig, run_log(run, 0, 100, &out, &first, &total) == ERR_OK && out.len > 0);
    assert_true(str_is(buf_view(&out), "one\n"));
    rig_await(rig, run->state == RUN_RUNNING); /* reported perhaps after its first output */
    fifo = open(rig_path(rig, "follow/go"), O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fifo, "hey\n", 4), 4);
    rig_await_end(rig, run);
    close(fifo);
    assert_int_equal(run_log(run, 4, 100, &out, &first, &total), ERR_OK);
    assert_int_equal(first, 4);
    assert_true(str_is(buf_view(&out), "one\ntwo hey\n"));
    buf_free(&out);
}

/* A flood of output neither fills the disk nor prevents a stop. */
static void test_flood(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {
        .log_bytes_max = 65536, .timeout_ms = 700, .stop_grace_ms = RIG_PATIENCE_MS};
    struct run *run = rig_sh(rig, "flood", "yes & yes & yes", &spec);
    struct buf out = {0};
    int64_t first, total;

    rig_await_end(rig, run);
    assert_exit(run, "TIMEOUT", -1, SIGTERM);
    assert_true(run->exit.output_bytes > 1 << 20);
    assert_int_equal(run_log(run, 0, 1 << 24, &out, &first, &total), ERR_OK);
    assert_true(out.len <= 2 * 65536);
    assert_int_equal(run->exit.output_bytes - run->exit.output_dropped, out.len);
    buf_free(&out);
}

/* A log file that is a symbolic link is not read. */
static void test_no_links(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(rig, "link", "ln -s /etc/passwd ../log.0", NULL);
    struct buf out = {0};
    int64_t first, total;

    rig_await_end(rig, run);
    assert_int_equal(run_log(run, 0, 1000, &out, &first, &total), ERR_OK);
    assert_int_equal(out.len, 0);
}

/* --- stopping --- */

static void test_stops(void **state)
{
    static const struct {
        const char *key, *script, *reason;
        int64_t timeout_ms, grace_ms;
        int exit_code, signal;
    } rows[] = {
        {"t.term", "echo up; exec sleep 60", "CANCELLED", 0, RIG_PATIENCE_MS, -1, SIGTERM},
        {"t.nice", "trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done", "STOPPED", 0,
         RIG_PATIENCE_MS, 7, -1},
        {"t.deaf", "trap '' TERM; echo up; while :; do sleep 60; done", "EMERGENCY", 0, 200, -1,
         SIGKILL},
        {"t.frozen", "trap '' TERM; echo up; while :; do kill -STOP $$; done", "STOPPED", 0, 200,
         -1, SIGKILL},
        {"t.time", "echo up; exec sleep 60", "TIMEOUT", 100, RIG_PATIENCE_MS, -1, SIGTERM},
    };
    struct rig *rig = *state;
    struct run *runs[COUNT_OF(rows)];

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        runs[i] = rig_sh(rig, rows[i].key, rows[i].script,
                         &(struct run_spec){.timeout_ms = rows[i].timeout_ms,
                                            .stop_grace_ms = rows[i].grace_ms});
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buf out = {0};
        int64_t first, total;

        rig_await(rig, run_log(runs[i], 0, 9, &out, &first, &total) == ERR_OK && out.len > 0);
        buf_free(&out);
        if (rows[i].timeout_ms == 0)
            run_stop(runs[i], rows[i].reason, -1);
    }
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        rig_await_end(rig, runs[i]);
        assert_exit(runs[i], rows[i].reason, rows[i].exit_code, rows[i].signal);
    }
}

/* A second stop keeps the first reason and the earlier end, and neither is sent twice. */
static void test_stop_again(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.stop_grace_ms = 3600 * 1000};
    struct run *run =
        rig_sh(rig, "again", "trap '' TERM; echo up; while :; do sleep 60; done", &spec);
    int64_t begun_ms = clock_mono_ms(), first, total;
    struct buf out = {0};

    rig_await(rig, run_log(run, 0, 9, &out, &first, &total) == ERR_OK && out.len > 0);
    buf_free(&out);
    run_stop(run, "CANCELLED", -1);
    assert_int_equal(run->state, RUN_STOPPING);
    run_stop(run, "EMERGENCY", 7200 * 1000);
    run_stop(run, "STOPPED", 50);
    run_stop(run, "STOPPED", 100000);
    rig_await_end(rig, run);
    assert_true(clock_mono_ms() - begun_ms < RIG_PATIENCE_MS);
    assert_int_equal(run->exit.signal, SIGKILL);
    assert_string_equal(run->exit.reason, "CANCELLED");
    run_stop(run, "STOPPED", 0);
    assert_int_equal(rig->ended, 1);
}

/* A run over its timeout gets no more than timeout_grace_ms, whatever stop grace it asked for. */
static void test_timeout_grace(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {
        .timeout_ms = 200, .stop_grace_ms = 3600 * 1000, .timeout_grace_ms = 100};
    struct run *run = rig_sh(rig, "late", "trap '' TERM; while :; do sleep 60; done", &spec);

    rig_await_end(rig, run);
    assert_exit(run, "TIMEOUT", -1, SIGKILL);
}

/* Stopped before its shim exists. */
static void test_stop_early(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(rig, "early", "exec sleep 60", NULL);

    run_stop(run, "CANCELLED",
             RIG_PATIENCE_MS); /* the run's own 200 ms may be too short on a slow machine */
    assert_int_equal(run->state, RUN_STARTING);
    rig_await_end(rig, run);
    assert_exit(run, "CANCELLED", -1, SIGTERM);
}

static void test_deadline(void **state)
{
    struct rig *rig = *state;
    int64_t now_ms = clock_lease_ms();
    struct run_spec spec = {.deadline_boot_ms = now_ms + 3600 * 1000,
                            .stop_grace_ms = RIG_PATIENCE_MS};
    struct run *early = rig_sh(rig, "d.early", "exec sleep 60", &spec);
    struct run *later = rig_sh(rig, "d.later", "exec sleep 60", NULL);

    run_deadline(early, now_ms + 3500 * 1000);
    run_deadline(later, now_ms + 100);
    run_deadline(later, now_ms + 3600 * 1000);
    run_deadline(early, now_ms + 200);
    rig_await_end(rig, early);
    assert_exit(early, "DEADLINE", -1, SIGTERM);
    assert_int_not_equal(later->state, RUN_ENDED);
    run_deadline(later, 0);
    run_deadline(later, 1); /* long past, with its grace */
    rig_await_end(rig, later);
    assert_exit(later, "DEADLINE", -1, SIGKILL);
}

/* A shim that starts after the deadline, because the machine was frozen, starts nothing. */
static void test_deadline_before_it_began(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.deadline_boot_ms = 1};
    struct run *run = rig_sh(rig, "d.late", "echo began", &spec);

    rig_await_end(rig, run);
    assert_string_equal(run->exit.reason, "DEADLINE");
    assert_int_equal(run->exit.started_ms, 0);
    assert_int_equal(run->exit.output_bytes, 0);
    assert_int_equal(rig->started, 0);
}

/* Shim and job are frozen past the deadline and its grace: there is no time for a TERM. */
static void test_deadline_of_a_frozen_tree(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.stop_grace_ms = 60000, .deadline_grace_ms = 50};
    struct run *run =
        rig_sh(rig, "d.frozen",
               "trap 'echo goodbye; exit 0' TERM; echo up; while :; do sleep 0.01; done", &spec);
    int64_t deadline_ms = clock_lease_ms() + 100, offset, total = 0;
    struct buf text = {0};
    int shim;

    rig_await(rig, run->state == RUN_RUNNING && run_shim_pid(run) > 0 &&
                       run_log(run, 0, 100, &text, &offset, &total) == ERR_OK && total > 0);
    shim = run_shim_pid(run);
    process_tree_signal(shim, SIGSTOP);
    kill(shim, SIGSTOP);
    run_deadline(run, deadline_ms);
    rig_await(rig, clock_lease_ms() > deadline_ms + 50);
    process_tree_signal(shim, SIGCONT);
    kill(shim, SIGCONT);
    rig_await_end(rig, run);
    assert_exit(run, "DEADLINE", -1, SIGKILL);
    assert_true(str_is(run->exit.tail, "up\n"));
    buf_free(&text);
}

/* --- the whole tree --- */

/* A daemon outside of session and parent that ignores TERM; it writes its pid to ../pid. */
#define DAEMON "setsid sh -c 'trap \"\" TERM HUP; (echo $$ > $0; exec sleep 600) & wait' ../pid & "

static int64_t await_pid(struct rig *rig, const char *key)
{
    rig_await(rig, rig_read_pid(rig_path(rig, "%s/pid", key)) > 0);
    return rig_read_pid(rig_path(rig, "%s/pid", key));
}

static void check_tree(struct rig *rig, const char *key)
{
    struct run *run = rig_sh(rig, key, DAEMON "wait", NULL);
    int64_t pid = await_pid(rig, key);

    assert_true(rig_alive(pid));
    rig_await(rig, run_shim_pid(run) > 1);
    run_stop(run, "STOPPED", -1);
    rig_await_end(rig, run);
    assert_false(rig_alive(pid));
}

static void test_tree(void **state)
{
    check_tree(*state, "tree");
}

static void test_tree_without_cgroups(void **state)
{
    struct rig *rig = *state;
    struct cgroup_place place = rig->runs->place;

    rig->runs->place = (struct cgroup_place){0};
    check_tree(rig, "tree.proc");
    rig->runs->place = place;
}

/* The main process ends by itself: what it left behind is killed before the end is reported. */
static void test_left_behind(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(rig, "left", DAEMON "while [ ! -s ../pid ]; do :; done; exit 4", NULL);
    int64_t pid = await_pid(rig, "left");

    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 4, -1);
    assert_false(rig_alive(pid));
}

/* A process outside the tree holds the pipe open: the end does not wait for it. */
static void test_pipe_held_open(void **state)
{
    struct rig *rig = *state;
    struct run *run = rig_sh(
        rig, "held",
        "echo $$ > ../pid; echo said; until [ -p ../go ]; do sleep 0.01; done; read x < ../go",
        NULL);
    char path[64];
    int held, fifo;

    assert_int_equal(mkfifo(rig_path(rig, "held/go"), 0600), 0);
    snprintf(path, sizeof path, "/proc/%d/fd/1", (int)await_pid(rig, "held"));
    held = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(held >= 0);
    fifo = open(rig_path(rig, "held/go"), O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fifo, "\n", 1), 1);
    rig_await_end(rig, run);
    assert_exit(run, "EXITED", 0, -1);
    assert_true(str_is(run->exit.tail, "said\n"));
    close(held);
    close(fifo);
}

/* A fork bomb is killed like any other run. */
static void test_fork_bomb(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.pids_max = 64, .timeout_ms = 300};
    const struct cgroup_place *offered;
    struct run *run;

    offered = runs_offered(rig->runs);
    if (!offered->limits[CGROUP_PIDS])
        rig_skip_groups(); /* without the limit this would take down the machine */
    run = rig_sh(rig, "bomb", "trap '' TERM; f() { f | f & }; f 2>/dev/null; sleep 60", &spec);
    rig_await_end(rig, run);
    assert_string_equal(run->exit.reason, "TIMEOUT");
}

static void test_memory_limit(void **state)
{
    struct rig *rig = *state;
    struct run_spec spec = {.memory_bytes_max = 16 << 20, .timeout_ms = 20000};
    struct str argv = STR("true");
    struct run_spec refused = {.handler = &rig_handler,
                               .key = STR("refused"),
                               .argv = &argv,
                               .argc = 1,
                               .memory_bytes_max = 16 << 20};
    const struct cgroup_place *offered;
    struct problem why = {0};
    struct run *run;

    offered = runs_offered(rig->runs);
    if (!offered->limits[CGROUP_MEMORY]) {
        assert_non_null(strstr(offered->missing, "memory"));
        assert_int_equal(runs_start(rig->runs, &refused, NULL, &run, &why), ERR_PRECONDITION);
        assert_non_null(strstr(why.detail, offered->missing));
        rig_skip_groups();
    }
    run = rig_sh(rig, "oom", "exec tail /dev/zero", &spec);
    rig_await_end(rig, run);
    assert_exit(run, "OOM", -1, SIGKILL);
    assert_non_null(strstr(run->exit.detail, "16777216"));
}

int main(void)
{
#define RUN_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        RUN_TEST(test_ends),
        RUN_TEST(test_cannot_start),
        RUN_TEST(test_refused),
        RUN_TEST(test_environment),
        RUN_TEST(test_input),
        RUN_TEST(test_cwd_and_umask),
        RUN_TEST(test_user),
        cmocka_unit_test_setup_teardown(test_never_root, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_syscalls, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_private_tmp, rig_setup, rig_teardown),
        cmocka_unit_test(test_secrets_in_memory),
        cmocka_unit_test_setup_teardown(test_disk_limit, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_bounds_that_nobody_set, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_secrets, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_secrets_missing, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_secrets_go, rig_setup, rig_teardown),
        cmocka_unit_test(test_user_needs_root),
        RUN_TEST(test_work_goes),
        RUN_TEST(test_work_goes_later),
        RUN_TEST(test_results_that_are_none),
        RUN_TEST(test_mounted_there),
        RUN_TEST(test_directory_removed),
        RUN_TEST(test_order_and_rotation),
        RUN_TEST(test_follow),
        RUN_TEST(test_flood),
        RUN_TEST(test_no_links),
        RUN_TEST(test_stops),
        RUN_TEST(test_stop_again),
        RUN_TEST(test_timeout_grace),
        RUN_TEST(test_stop_early),
        RUN_TEST(test_deadline),
        RUN_TEST(test_deadline_before_it_began),
        RUN_TEST(test_deadline_of_a_frozen_tree),
        RUN_TEST(test_tree),
        RUN_TEST(test_tree_without_cgroups),
        RUN_TEST(test_left_behind),
        RUN_TEST(test_pipe_held_open),
        RUN_TEST(test_fork_bomb),
        RUN_TEST(test_memory_limit),
    };

    /* In the virtual machine only tests that need groups run: it is slow, and the others ran
     * before. */
    const struct CMUnitTest groups[] = {
        RUN_TEST(test_tree),
        RUN_TEST(test_fork_bomb),
        RUN_TEST(test_memory_limit),
    };

    return getenv("BERTH_TEST_GROUPS") ? cmocka_run_group_tests(groups, NULL, NULL)
                                       : cmocka_run_group_tests(tests, NULL, NULL);
}
