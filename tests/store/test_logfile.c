/* The file of the journal: records read as they were written, whatever was there before; a last
 * record torn by a power cut is passed over; later changes of the file are reported. */
#include "contract.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/logfile.h"

enum { KEEP = 20, BIG = 3 * LOG_REGION / 2, BIG_UPTO = 10000 };

struct fixture {
    char path[64];
    struct logfile log;
    struct arena arena;
};

static int setup(void **state)
{
    struct fixture *fixture = mem_new(struct fixture);
    int fd;

    snprintf(fixture->path, sizeof fixture->path, "/dev/shm/berth-XXXXXX.log");
    fd = mkstemps(fixture->path, 4);
    assert_true(fd >= 0);
    close(fd);
    assert_true(logfile_open(&fixture->log, fixture->path, true));
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    logfile_close(&fixture->log);
    arena_free(&fixture->arena);
    unlink(fixture->path);
    free(fixture);
    return 0;
}

/* The bytes of record `number`; the length depends on it, too. */
static struct str bytes_of(struct fixture *fixture, uint64_t number)
{
    static const size_t sizes[] = {1, 100, LOG_ROOM, LOG_ROOM + 1, 3000, 4096, 60000, 0, 9000};
    size_t len = number < BIG_UPTO && number % 50 == 7 ? BIG : sizes[number % COUNT_OF(sizes)];
    char *bytes = arena_raw(&fixture->arena, len + 1);
    struct rnd rnd;

    rnd_seed(&rnd, number);
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)rnd_next(&rnd);
    return (struct str){bytes, len};
}

static void append(struct fixture *fixture, uint64_t number, uint64_t done)
{
    bool written = false;
    int64_t size = 0;
    struct str bytes = bytes_of(fixture, number);

    assert_true(logfile_append(&fixture->log, number, done, bytes, &size, &written));
    assert_true(written && size % LOG_PAGE == 0 && size > (int64_t)bytes.len);
    arena_reset(&fixture->arena);
}

static void open_again(struct fixture *fixture)
{
    logfile_close(&fixture->log);
    assert_true(logfile_open(&fixture->log, fixture->path, true));
}

static void assert_there(struct fixture *fixture, struct logfile *log, uint64_t number)
{
    struct str bytes, want = bytes_of(fixture, number);
    int64_t size;

    assert_true(logfile_read(log, number, &fixture->arena, &bytes, &size));
    assert_int_equal(bytes.len, want.len);
    assert_memory_equal(bytes.at, want.at, want.len);
    arena_reset(&fixture->arena);
}

static int64_t file_size(struct fixture *fixture)
{
    struct stat info;

    assert_int_equal(stat(fixture->path, &info), 0);
    return (int64_t)info.st_size;
}

/* A reader follows the writer at a distance; both reopen the file now and then. The file does not
 * grow beyond what is still to be read. */
static void test_round_and_round(void **state)
{
    struct fixture *fixture = *state;
    struct logfile reader;
    uint64_t last;
    int64_t largest = 0;

    assert_true(logfile_open(&reader, fixture->path, false));
    for (uint64_t number = 1; number <= 1000; number++) {
        uint64_t done = number > KEEP ? number - KEEP : 0;

        append(fixture, number, done ? done - 1 : 0);
        if (done)
            assert_there(fixture, &reader, done);
        if (number % 70 == 0) {
            logfile_close(&reader);
            assert_true(logfile_open(&reader, fixture->path, false));
        }
        if (number % 90 == 0) {
            open_again(fixture);
            assert_true(logfile_end(&fixture->log, done, UINT64_MAX, &last));
            assert_int_equal(last, number);
            assert_true(logfile_settle(&fixture->log));
        }
        if (file_size(fixture) > largest)
            largest = file_size(fixture);
    }
    assert_true(largest <= 12 * LOG_REGION);
    logfile_close(&reader);
    assert_true(logfile_empty(&fixture->log));
    assert_int_equal(file_size(fixture), 0);
    append(fixture, 2000, 1999);
    open_again(fixture);
    assert_true(logfile_end(&fixture->log, 1999, UINT64_MAX, &last));
    assert_int_equal(last, 2000);
}

/* The whole file. */
static struct buf snapshot(struct fixture *fixture)
{
    struct buf bytes = {0};
    int64_t size = file_size(fixture);
    int fd = open(fixture->path, O_RDONLY);

    assert_true(fd >= 0);
    buf_reserve(&bytes, (size_t)size + 1);
    assert_int_equal(read(fd, bytes.at, (size_t)size), size);
    bytes.len = (size_t)size;
    close(fd);
    return bytes;
}

static void put_back(struct fixture *fixture, struct str bytes)
{
    int fd = open(fixture->path, O_WRONLY | O_TRUNC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes.at, bytes.len), bytes.len);
    close(fd);
}

/* Writes the file as `to`, but takes some sectors of this range from `from`. False if all of them,
 * or none, are as in `to`. */
static bool mix(struct fixture *fixture, struct str from, struct str to, int64_t at, int64_t size,
                struct rnd *rnd)
{
    struct buf bytes = {0};
    int64_t kept = 0;
    uint32_t share = rnd_below(rnd, 3);

    buf_str(&bytes, to);
    for (int64_t i = at; i < at + size; i += LOG_SECTOR) {
        if (share == 2 || rnd_below(rnd, 4) <= 2 * share) {
            kept++;
            continue;
        }
        if (i < (int64_t)from.len)
            memcpy(bytes.at + i, from.at + i, LOG_SECTOR);
        else
            memset(bytes.at + i, 0, LOG_SECTOR);
    }
    put_back(fixture, buf_view(&bytes));
    buf_free(&bytes);
    return kept > 0 && kept < size / LOG_SECTOR;
}

/* Only some sectors of the last record were written; the others have an older record, or nothing.
 * The record is passed over, and its number used again. */
static void test_a_torn_end(void **state)
{
    struct fixture *fixture = *state;
    struct rnd rnd;
    uint64_t last, number = BIG_UPTO;
    int torn = 0;

    rnd_seed(&rnd, 3);
    append(fixture, number, number - 1);
    for (int i = 0; i < 200; i++) {
        uint64_t done = number > BIG_UPTO + 4 ? number - 4 : BIG_UPTO - 1;
        struct buf before = snapshot(fixture), after;
        int64_t end = fixture->log.end, size;
        bool part;

        append(fixture, number + 1, done);
        after = snapshot(fixture);
        size = fixture->log.end - (fixture->log.end > end && end % LOG_REGION ? end : 0);
        size = fixture->log.end % LOG_REGION < size ? fixture->log.end % LOG_REGION : size;
        part =
            mix(fixture, buf_view(&before), buf_view(&after), fixture->log.end - size, size, &rnd);
        buf_free(&before);
        buf_free(&after);
        open_again(fixture);
        assert_true(logfile_end(&fixture->log, done, UINT64_MAX, &last));
        assert_true(last == number || last == number + 1);
        torn += part && last == number;
        number = last;
        assert_true(logfile_settle(&fixture->log));
        for (uint64_t one = done + 1; one <= last; one++)
            assert_there(fixture, &fixture->log, one);
    }
    assert_true(torn > 50);
}

static void assert_damaged(struct fixture *fixture, uint64_t after)
{
    uint64_t last;

    open_again(fixture);
    assert_false(logfile_end(&fixture->log, after, UINT64_MAX, &last));
    assert_int_equal(fixture->log.fault.code, FAULT_DAMAGED);
}

/* Any flipped bit of a record that is still needed is found, also in the last one; so are missing
 * sectors, in any record but the last. */
static void test_damage(void **state)
{
    struct fixture *fixture = *state;
    struct buf good;
    uint64_t last;
    int64_t from = 0;

    for (uint64_t number = 1; number <= 6; number++) {
        append(fixture, number, 0);
        from = number == 3 ? fixture->log.end : from;
    }
    good = snapshot(fixture);
    for (int64_t at = from; at < (int64_t)good.len; at += 53) {
        good.at[at] ^= (char)(1 << at % 8);
        put_back(fixture, buf_view(&good));
        assert_damaged(fixture, 3);
        good.at[at] ^= (char)(1 << at % 8);
    }
    for (int64_t at = from; at < (int64_t)good.len - LOG_PAGE; at += LOG_SECTOR) {
        char sector[LOG_SECTOR];

        memcpy(sector, good.at + at, LOG_SECTOR);
        memset(good.at + at, 0, LOG_SECTOR);
        put_back(fixture, buf_view(&good));
        open_again(fixture);
        if (logfile_end(&fixture->log, 3, UINT64_MAX, &last))
            /* It was the last record, which looks as if it had never been answered. */
            assert_int_equal(last, 5);
        else
            assert_int_equal(fixture->log.fault.code, FAULT_DAMAGED);
        memcpy(good.at + at, sector, LOG_SECTOR);
    }
    put_back(fixture, buf_view(&good));
    open_again(fixture);
    assert_true(logfile_end(&fixture->log, 3, UINT64_MAX, &last));
    assert_int_equal(last, 6);
    open_again(fixture); /* store.db is older than the first record in the file */
    put_back(fixture, (struct str){good.at + LOG_PAGE, good.len - LOG_PAGE});
    assert_false(logfile_end(&fixture->log, 0, UINT64_MAX, &last));
    assert_int_equal(fixture->log.fault.code, FAULT_GAP);
    buf_free(&good);
}

/* A record was torn, and so was the one written over it with the same number: the remains of both
 * never make a whole record. */
static void test_torn_twice(void **state)
{
    struct fixture *fixture = *state;
    char bytes[3000];
    struct buf before, tries[2];
    bool written;
    uint64_t last;
    int64_t size = 0;

    append(fixture, 1, 0);
    before = snapshot(fixture);
    for (int i = 0; i < 2; i++) {
        put_back(fixture, buf_view(&before));
        open_again(fixture);
        assert_true(logfile_end(&fixture->log, 0, UINT64_MAX, &last));
        memset(bytes, 'a' + i, sizeof bytes);
        assert_true(logfile_append(&fixture->log, 2, 0, (struct str){bytes, sizeof bytes}, &size,
                                   &written));
        tries[i] = snapshot(fixture);
    }
    assert_int_equal(tries[0].len, tries[1].len);
    assert_int_equal(tries[0].len, before.len + (size_t)size);
    for (size_t at = before.len + LOG_SECTOR; at < tries[0].len; at += LOG_SECTOR) {
        memcpy(tries[0].at + before.len, tries[1].at + before.len, at - before.len);
        put_back(fixture, buf_view(&tries[0]));
        open_again(fixture);
        assert_true(logfile_end(&fixture->log, 0, UINT64_MAX, &last));
        assert_int_equal(last, 1);
    }
    buf_free(&before);
    buf_free(&tries[0]);
    buf_free(&tries[1]);
}

/* A write was cut short because the disk was full; later records follow. */
static void test_a_cut_end(void **state)
{
    struct fixture *fixture = *state;
    int64_t end;
    uint64_t last;

    append(fixture, 1, 0);
    append(fixture, 2, 0);
    for (int64_t cut = 1; cut < 2 * LOG_SECTOR; cut += 170) {
        append(fixture, 3, 0);
        end = fixture->log.end - cut;
        logfile_close(&fixture->log);
        assert_int_equal(truncate(fixture->path, end), 0);
        open_again(fixture);
        assert_true(logfile_end(&fixture->log, 0, UINT64_MAX, &last));
        assert_int_equal(last, 2);
        assert_true(logfile_settle(&fixture->log));
        assert_int_equal(file_size(fixture), LOG_AHEAD);
    }
    for (uint64_t number = 3; number < 9; number++)
        append(fixture, number, 2);
    open_again(fixture);
    assert_true(logfile_end(&fixture->log, 2, UINT64_MAX, &last));
    assert_int_equal(last, 8);
}

/* The first records go into blocks which the file already has, from the first region on. */
static void test_blocks_ahead(void **state)
{
    struct fixture *fixture = *state;
    uint64_t last;

    assert_true(logfile_end(&fixture->log, 0, UINT64_MAX, &last));
    assert_true(logfile_settle(&fixture->log));
    assert_int_equal(file_size(fixture), LOG_AHEAD);
    for (uint64_t number = 1; number <= LOG_REGION / LOG_PAGE + 1; number++) {
        struct str bytes = {"x", 1};
        bool written;
        int64_t size;

        assert_true(logfile_append(&fixture->log, number, 0, bytes, &size, &written));
        assert_int_equal(fixture->log.end, (int64_t)number * LOG_PAGE);
    }
    assert_int_equal(file_size(fixture), LOG_AHEAD);
    open_again(fixture);
    assert_true(logfile_end(&fixture->log, 0, UINT64_MAX, &last));
    assert_int_equal(last, LOG_REGION / LOG_PAGE + 1);
}

/* A record that was refused stays out, and is gone once logfile_settle() has run. */
static void test_refused(void **state)
{
    struct fixture *fixture = *state;
    uint64_t last;

    append(fixture, 1, 0);
    append(fixture, 2, 0);
    open_again(fixture);
    assert_true(logfile_end(&fixture->log, 0, 1, &last));
    assert_int_equal(last, 1);
    assert_true(logfile_settle(&fixture->log));
    open_again(fixture);
    assert_true(logfile_end(&fixture->log, 0, UINT64_MAX, &last));
    assert_int_equal(last, 1);
    assert_true(logfile_settle(&fixture->log));
    append(fixture, 2, 0);
    assert_there(fixture, &fixture->log, 1);
    assert_there(fixture, &fixture->log, 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_round_and_round), TEST(test_a_torn_end), TEST(test_damage),
        TEST(test_torn_twice),      TEST(test_a_cut_end),  TEST(test_refused),
        TEST(test_blocks_ahead),
    };

    return cmocka_run_group_tests_name("store/logfile", tests, NULL, NULL);
}
