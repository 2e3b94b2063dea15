/* Disk use of a directory, measured in pieces: everything counts once, and nothing outside it. */
#include "agent/dir_tree.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit.h"

enum { FILE_BYTES = 1 << 20 };

static int setup(void **state)
{
    char *dir = strdup("/tmp/berth-walk-XXXXXX");

    *state = dir;
    return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    char command[64];

    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    free(*state);
    return chdir("/") == 0 && system(command) == 0 ? 0 : -1;
}

static void put(const char *path)
{
    static char text[FILE_BYTES];
    struct rnd rnd;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    rnd_seed_os(&rnd);
    for (size_t i = 0; i < sizeof text; i++) /* incompressible */
        text[i] = (char)rnd_next(&rnd);
    assert_true(fd >= 0 && write(fd, text, sizeof text) == sizeof text && fsync(fd) == 0);
    close(fd);
}

static int64_t measure(int entries, int *ret_steps)
{
    static struct disk_walk walk; /* can be used again after it ended */
    int dir_fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), steps = 1;

    assert_true(disk_walk_begin(&walk, dir_fd));
    close(dir_fd);
    while (disk_walk_step(&walk, entries))
        steps++;
    assert_int_equal(walk.depth, 0);
    if (ret_steps)
        *ret_steps = steps;
    return walk.bytes;
}

static void assert_files(int64_t bytes, int files)
{
    if (bytes < (int64_t)files * FILE_BYTES || bytes >= (int64_t)(files + 1) * FILE_BYTES)
        fail_msg("%lld bytes are not those of %d files", (long long)bytes, files);
}

static void test_everything_once(void **state)
{
    int steps;

    assert_files(measure(1000, &steps), 0);
    assert_int_equal(steps, 1);
    put("a");
    assert_int_equal(mkdir("d", 0700), 0);
    assert_int_equal(mkdir("d/e", 0700), 0);
    put("d/e/b");
    assert_files(measure(1000, NULL), 2);
    assert_int_equal(link("a", "d/again"), 0);
    assert_int_equal(symlink("/", "d/machine"), 0);
    assert_files(measure(1000, NULL), 2);
    assert_files(measure(1, &steps), 2);
    assert_true(steps > 10); /* in pieces, which may be small */
    assert_int_equal(truncate("sparse", 0), -1);
    close(open("sparse", O_CREAT | O_CLOEXEC, 0600));
    assert_int_equal(truncate("sparse", (off_t)1 << 40), 0);
    assert_files(measure(1000, NULL), 2); /* allocated, not apparent size */
}

/* In a very deep tree few directories are open at a time, and the walk ends. */
static void test_deep(void **state)
{
    char name[16];

    put("a");
    for (int i = 0; i < 3 * DISK_WALK_DEPTH_MAX; i++) {
        snprintf(name, sizeof name, "d%d", i);
        assert_int_equal(mkdir(name, 0700), 0);
        assert_int_equal(chdir(name), 0);
    }
    assert_int_equal(chdir(*state), 0);
    measure(1000, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_everything_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deep, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
