/* Spec, exit record and deadline: what was written reads back, and an incomplete file does not. */
#include "agent/runfile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_rig.h"

struct site {
    struct rig rig; /* only for its directory */
    int dir_fd;
    struct arena arena;
};

static int setup(void **state)
{
    struct site *site = calloc(1, sizeof *site);

    rig_make(&site->rig);
    site->dir_fd = open(site->rig.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = site;
    return 0;
}

static int teardown(void **state)
{
    struct site *site = *state;

    arena_free(&site->arena);
    close(site->dir_fd);
    rig_remove(&site->rig);
    free(site);
    return 0;
}

static const struct str argv[] = {STR("sh"), STR("-c"), STR("echo \"\xC3\xA4\n\"")};
static const struct str env[] = {STR("A=1"), STR("B=\\\"")};

static struct runfile example(void)
{
    struct runfile file = {
        .spec = {.key = STR("j1.2"),
                 .meta = STR("{\"a\":[1,\"x\"]}"),
                 .argv = argv,
                 .argc = COUNT_OF(argv),
                 .env = env,
                 .env_count = COUNT_OF(env),
                 .cwd = STR("/tmp"),
                 .input = STR("bytes"),
                 .timeout_ms = 1,
                 .timeout_grace_ms = 7,
                 .stop_grace_ms = 2,
                 .deadline_boot_ms = 3,
                 .memory_bytes_max = INT64_MAX,
                 .pids_max = 5,
                 .log_bytes_max = 6},
        .dir = STR("/runs/j1.2"),
        .boot_id = STR("boot"),
        .mark = STR("BERTH_RUN=j1.2/00ff"),
        .created_ms = 1700000000000,
    };

    strcpy(file.place.parent, "/sys/fs/cgroup/berth");
    file.place.limits[CGROUP_PIDS] = true;
    return file;
}

static void test_spec(void **state)
{
    struct site *site = *state;
    struct runfile wrote = example(), read;
    struct stat info;

    assert_int_equal(runfile_put(site->dir_fd, &wrote, NULL), ERR_OK);
    assert_int_equal(runfile_get(site->dir_fd, &site->arena, &read, NULL), ERR_OK);
    assert_true(str_eq(read.spec.key, wrote.spec.key));
    assert_true(str_eq(read.spec.meta, wrote.spec.meta));
    assert_int_equal(read.spec.argc, 3);
    assert_int_equal(read.spec.env_count, 2);
    for (size_t i = 0; i < COUNT_OF(argv); i++)
        assert_true(str_eq(read.spec.argv[i], argv[i]));
    for (size_t i = 0; i < COUNT_OF(env); i++)
        assert_true(str_eq(read.spec.env[i], env[i]));
    assert_true(str_is(read.spec.cwd, "/tmp"));
    assert_null(read.spec.user.at);
    assert_non_null(read.spec.input.at);
    assert_int_equal(read.spec.timeout_ms, 1);
    assert_int_equal(read.spec.timeout_grace_ms, 7);
    assert_int_equal(read.spec.stop_grace_ms, 2);
    assert_int_equal(read.spec.deadline_boot_ms, 3);
    assert_true(read.spec.memory_bytes_max == INT64_MAX);
    assert_int_equal(read.spec.pids_max, 5);
    assert_int_equal(read.spec.log_bytes_max, 6);
    assert_true(str_eq(read.dir, wrote.dir) && str_eq(read.mark, wrote.mark));
    assert_true(str_eq(read.boot_id, wrote.boot_id) && read.created_ms == wrote.created_ms);
    assert_string_equal(read.place.parent, wrote.place.parent);
    assert_memory_equal(read.place.limits, wrote.place.limits, sizeof read.place.limits);
    assert_int_equal(fstatat(site->dir_fd, RUNFILE_SPEC, &info, 0), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

/* A spec cut off at any byte is invalid; so is one behind a symbolic link. */
static void test_half_a_spec(void **state)
{
    struct site *site = *state;
    struct runfile wrote = example(), read;
    struct stat info;

    assert_int_equal(runfile_get(site->dir_fd, &site->arena, &read, NULL), ERR_NOT_FOUND);
    assert_int_equal(runfile_put(site->dir_fd, &wrote, NULL), ERR_OK);
    fstatat(site->dir_fd, RUNFILE_SPEC, &info, 0);
    for (off_t size = info.st_size - 1; size >= 0; size--) {
        assert_int_equal(truncate(rig_path(&site->rig, RUNFILE_SPEC), size), 0);
        assert_int_not_equal(runfile_get(site->dir_fd, &site->arena, &read, NULL), ERR_OK);
    }
    assert_int_equal(runfile_put(site->dir_fd, &wrote, NULL), ERR_OK);
    assert_int_equal(renameat(site->dir_fd, RUNFILE_SPEC, site->dir_fd, "elsewhere"), 0);
    assert_int_equal(symlinkat("elsewhere", site->dir_fd, RUNFILE_SPEC), 0);
    assert_int_not_equal(runfile_get(site->dir_fd, &site->arena, &read, NULL), ERR_OK);
    assert_int_not_equal(runfile_put(site->dir_fd, &wrote, NULL), ERR_OK);
}

/* A spec of a later format is reported as such. */
static void test_a_spec_of_a_later_format(void **state)
{
    static const char first[] = "{\"format\":1,";
    struct site *site = *state;
    struct runfile wrote = example(), read;
    struct problem why = {0};
    int fd;

    assert_int_equal(runfile_put(site->dir_fd, &wrote, NULL), ERR_OK);
    fd = openat(site->dir_fd, RUNFILE_SPEC, O_RDWR | O_CLOEXEC);
    for (const char *with = "2"; with; with = *with == '2' ? "1" : NULL) {
        assert_int_equal(pwrite(fd, with, 1, sizeof first - 3), 1);
        assert_int_equal(runfile_get(site->dir_fd, &site->arena, &read, &why),
                         *with == '2' ? ERR_BAD_REQUEST : ERR_OK);
    }
    close(fd);
    assert_non_null(strstr(why.detail, "it has format 2, this one knows up to 1"));
}

static void test_exit(void **state)
{
    struct site *site = *state;
    struct run_exit wrote = {.exit_code = -1,
                             .signal = 9,
                             .reason = "OOM",
                             .detail = "It \"needed\" more.",
                             .started_ms = 1,
                             .ended_ms = 2,
                             .user_ms = 3,
                             .system_ms = 4,
                             .rss_kb_max = 5,
                             .tail = STR("last\nlines\t\x1b[0m\xE2\x82\xAC"),
                             .output_bytes = 7,
                             .output_dropped = 6},
                    read;
    struct str key, meta;

    assert_int_equal(runfile_get_exit(site->dir_fd, &site->arena, &read, &key, &meta),
                     ERR_NOT_FOUND);
    assert_int_equal(runfile_put_exit(site->dir_fd, &wrote, STR("j1.2"), STR("meta")), ERR_OK);
    assert_int_equal(faccessat(site->dir_fd, RUNFILE_EXIT ".new", F_OK, 0), -1);
    assert_int_equal(runfile_get_exit(site->dir_fd, &site->arena, &read, &key, &meta), ERR_OK);
    assert_true(str_is(key, "j1.2") && str_is(meta, "meta"));
    assert_true(str_eq(read.tail, wrote.tail));
    assert_string_equal(read.reason, wrote.reason);
    assert_string_equal(read.detail, wrote.detail);
    assert_int_equal(read.exit_code, -1);
    assert_int_equal(read.signal, 9);
    assert_int_equal(read.started_ms, 1);
    assert_int_equal(read.ended_ms, 2);
    assert_int_equal(read.user_ms, 3);
    assert_int_equal(read.system_ms, 4);
    assert_int_equal(read.rss_kb_max, 5);
    assert_int_equal(read.output_bytes, 7);
    assert_int_equal(read.output_dropped, 6);
    for (off_t size = 0; size < 60; size++) {
        assert_int_equal(truncate(rig_path(&site->rig, RUNFILE_EXIT), size), 0);
        assert_int_equal(runfile_get_exit(site->dir_fd, &site->arena, &read, &key, &meta),
                         ERR_NOT_FOUND);
    }
}

static void test_deadline(void **state)
{
    struct site *site = *state;
    int64_t at_ms = 1;

    assert_false(runfile_get_deadline(site->dir_fd, &at_ms));
    assert_int_equal(runfile_put_deadline(site->dir_fd, 123456789012), ERR_OK);
    assert_true(runfile_get_deadline(site->dir_fd, &at_ms));
    assert_true(at_ms == 123456789012);
    assert_int_equal(runfile_put_deadline(site->dir_fd, 0), ERR_OK);
    assert_true(runfile_get_deadline(site->dir_fd, &at_ms));
    assert_int_equal(at_ms, 0);
}

int main(void)
{
#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        FILE_TEST(test_spec), FILE_TEST(test_half_a_spec), FILE_TEST(test_a_spec_of_a_later_format),
        FILE_TEST(test_exit), FILE_TEST(test_deadline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
