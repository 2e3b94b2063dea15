/* The output of a run in files: offsets, rotation, tails, gaps and unexpected file names. */
#include "agent/runlog.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_rig.h"

struct site {
    struct rig rig; /* only for its directory */
    int dir_fd;
    struct runlog log;
};

static int setup(void **state)
{
    struct site *site = calloc(1, sizeof *site);

    rig_make(&site->rig);
    site->dir_fd = open(site->rig.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    runlog_init(&site->log, site->dir_fd, RUN_LOG_BYTES_MIN);
    *state = site;
    return 0;
}

static int teardown(void **state)
{
    struct site *site = *state;

    runlog_done(&site->log);
    close(site->dir_fd);
    rig_remove(&site->rig);
    free(site);
    return 0;
}

static void put(struct site *site, const char *text)
{
    runlog_write(&site->log, str_of(text), 1);
}

static void assert_read(struct site *site, int64_t offset, size_t max, const char *expected,
                        int64_t first, int64_t total)
{
    struct buf out = {0};
    int64_t got_first, got_total;

    assert_int_equal(runlog_read(site->dir_fd, offset, max, &out, &got_first, &got_total), ERR_OK);
    if (!str_is(buf_view(&out), expected))
        fail_msg("\"" STR_FMT "\" is not \"%s\"", STR_ARG(buf_view(&out)), expected);
    assert_int_equal(got_first, first);
    assert_int_equal(got_total, total);
    buf_free(&out);
}

static void assert_tail(struct site *site, const char *expected)
{
    struct buf out = {0};

    runlog_tail(&site->log, &out);
    assert_true(out.len <= RUN_TAIL_BYTES);
    assert_true(str_is_utf8(buf_view(&out)));
    if (!str_is(buf_view(&out), expected))
        fail_msg("\"" STR_FMT "\" is not \"%s\"", STR_ARG(buf_view(&out)), expected);
    buf_free(&out);
}

static void test_offsets(void **state)
{
    struct site *site = *state;

    assert_read(site, 0, 100, "", 0, 0);
    put(site, "hello ");
    put(site, "world");
    assert_read(site, 0, 100, "hello world", 0, 11);
    assert_read(site, 6, 3, "wor", 6, 11);
    assert_read(site, 11, 100, "", 11, 11);
    assert_read(site, 50, 100, "", 50, 11);
    assert_read(site, 0, 0, "", 0, 11);
    assert_tail(site, "hello world");
}

static void test_rotation(void **state)
{
    struct site *site = *state;
    char block[1001];

    memset(block, 'x', 1000);
    block[999] = '\n';
    block[1000] = '\0';
    for (int i = 0; i < 20; i++) {
        block[0] = (char)('a' + i);
        put(site, block);
    }
    assert_int_equal(site->log.total, 20000);
    assert_int_equal(site->log.dropped, 3 * RUN_LOG_BYTES_MIN); /* 20000 = 4 * 4096 + 3616 */
    assert_read(site, 0, 3, "xxx", 3 * RUN_LOG_BYTES_MIN, 20000);
    assert_read(site, 19000, 3, "txx", 19000, 20000);
    assert_read(site, 13000, 2, "nx", 13000, 20000);
}

/* A read continues across the border of two files. */
static void test_over_the_border(void **state)
{
    struct site *site = *state;
    char block[RUN_LOG_BYTES_MIN];

    memset(block, '.', sizeof block);
    memcpy(block + sizeof block - 4, "left", 4);
    runlog_write(&site->log, (struct str){block, sizeof block}, 1);
    put(site, "right");
    assert_read(site, RUN_LOG_BYTES_MIN - 4, 100, "leftright", RUN_LOG_BYTES_MIN - 4,
                RUN_LOG_BYTES_MIN + 5);
}

static void test_tail_is_whole_lines(void **state)
{
    struct site *site = *state;
    struct buf expected = {0};

    for (int i = 0; i < 2000; i++) {
        char line[32];

        snprintf(line, sizeof line, "line %04d\n", i);
        put(site, line);
    }
    for (int i = 2000 - RUN_TAIL_BYTES / 10; i < 2000; i++)
        buf_fmt(&expected, "line %04d\n", i);
    buf_char(&expected, '\0');
    assert_tail(site, expected.at);
    buf_free(&expected);
}

static void test_tail_without_lines(void **state)
{
    struct site *site = *state;
    char block[3 * RUN_TAIL_BYTES + 1];

    memset(block, 'y', sizeof block - 1);
    block[sizeof block - 1] = '\0';
    put(site, block);
    block[RUN_TAIL_BYTES] = '\0';
    assert_tail(site, block);
}

/* Each invalid byte becomes three bytes: the tail still fits, and no character is cut. */
static void test_tail_of_garbage(void **state)
{
    struct site *site = *state;
    char block[RUN_TAIL_BYTES];
    struct buf out = {0};

    memset(block, 0xFF, sizeof block);
    runlog_write(&site->log, (struct str){block, sizeof block}, 1);
    runlog_tail(&site->log, &out);
    assert_true(out.len <= RUN_TAIL_BYTES && out.len > RUN_TAIL_BYTES - 3);
    assert_true(str_is_utf8(buf_view(&out)));
    buf_free(&out);
}

/* While the disk is full only the output of that time is lost. */
static void test_gap(void **state)
{
    struct site *site = *state;

    put(site, "before");
    close(site->log.fd);
    site->log.fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(site->log.fd >= 0);
    runlog_write(&site->log, STR("lost1"), 1000);
    runlog_write(&site->log, STR("lost2"), 1000 + RUNLOG_RETRY_MS - 1); /* not tried again yet */
    runlog_write(&site->log, STR("after"), 1000 + RUNLOG_RETRY_MS);
    assert_int_equal(site->log.total, 21);
    assert_int_equal(site->log.dropped, 10);
    assert_read(site, 0, 100, "before", 0, 21);
    assert_read(site, 6, 100, "after", 16, 21);
    assert_tail(site, "beforelost1lost2after");
}

static void test_shrink(void **state)
{
    struct site *site = *state;
    char block[RUN_LOG_BYTES_MIN + 10];

    memset(block, 'z', sizeof block);
    runlog_write(&site->log, (struct str){block, sizeof block}, 1);
    runlog_shrink(&site->log);
    assert_int_equal(site->log.dropped, RUN_LOG_BYTES_MIN);
    assert_read(site, 0, 3, "zzz", RUN_LOG_BYTES_MIN, RUN_LOG_BYTES_MIN + 10);
}

/* Only regular files with valid names are read. */
static void test_unfriendly_names(void **state)
{
    struct site *site = *state;

    put(site, "ours");
    assert_int_equal(symlinkat("/etc/passwd", site->dir_fd, "log.4"), 0);
    assert_int_equal(mkdirat(site->dir_fd, "log.5", 0700), 0);
    assert_int_equal(mkfifoat(site->dir_fd, "log.6", 0600), 0);
    close(openat(site->dir_fd, "log.-1", O_CREAT | O_WRONLY, 0600));
    close(openat(site->dir_fd, "log.4x", O_CREAT | O_WRONLY, 0600));
    assert_read(site, 0, 100, "ours", 0, 4);
}

int main(void)
{
#define LOG_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        LOG_TEST(test_offsets),
        LOG_TEST(test_rotation),
        LOG_TEST(test_over_the_border),
        LOG_TEST(test_tail_is_whole_lines),
        LOG_TEST(test_tail_without_lines),
        LOG_TEST(test_tail_of_garbage),
        LOG_TEST(test_gap),
        LOG_TEST(test_shrink),
        LOG_TEST(test_unfriendly_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
