/* Small files: read within a limit, replaced as a whole. */
#include "../unit.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];
static char path[96];

static int setup(void **state)
{
    strcpy(dir, "/tmp/berth-file-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/it", dir);
    return 0;
}

static int teardown(void **state)
{
    unlink(path);
    rmdir(dir); /* fails, and so does the next test, if a file was left behind */
    assert_int_not_equal(access(dir, F_OK), 0);
    return 0;
}

static void written_and_read(void **state)
{
    struct arena arena = {0};
    struct problem why;
    struct stat st;
    struct str text;

    assert_int_equal(file_read(path, 10, &arena, &text, &why), ERR_NOT_FOUND);
    assert_int_equal(file_replace(path, STR("hello"), &why), ERR_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(file_read(path, 10, &arena, &text, &why), ERR_OK);
    assert_true(str_is(text, "hello"));
    assert_int_equal(file_read(path, 5, &arena, &text, &why), ERR_OK);
    assert_int_equal(file_read(path, 4, &arena, &text, &why), ERR_TOO_LARGE);
    assert_int_equal(file_read(dir, 4, &arena, &text, &why), ERR_IO);
    assert_int_equal(file_replace(path, STR(""), &why), ERR_OK);
    assert_int_equal(file_read(path, 4, &arena, &text, &why), ERR_OK);
    assert_int_equal(text.len, 0);
    arena_free(&arena);
}

/* Files of the kernel report a size of 0. */
static void longer_than_it_says(void **state)
{
    struct arena arena = {0};
    struct problem why;
    struct str text;

    assert_int_equal(file_read("/proc/self/smaps", 1 << 20, &arena, &text, &why), ERR_OK);
    assert_true(text.len > 8192);
    assert_int_equal(file_read("/proc/self/smaps", 5000, &arena, &text, &why), ERR_TOO_LARGE);
    arena_free(&arena);
}

static void what_cannot_be_replaced_stays(void **state)
{
    struct problem why = {0};
    char inside[128];

    assert_int_equal(file_replace(path, STR("old"), &why), ERR_OK);
    snprintf(inside, sizeof inside, "%s/x", path);
    assert_int_equal(file_replace(inside, STR("new"), &why), ERR_IO);
    assert_non_null(strstr(why.detail, "Cannot write"));
    assert_int_equal(file_replace(dir, STR("new"), &why), ERR_IO); /* a directory has that name */
    assert_int_equal(access(path, F_OK), 0);
}

static void changes_are_seen(void **state)
{
    struct file_stamp none = file_stamp(path), first, second;
    struct problem why;

    file_replace(path, STR("one"), &why);
    first = file_stamp(path);
    assert_false(file_stamp_same(&none, &first));
    second = file_stamp(path);
    assert_true(file_stamp_same(&first, &second));
    file_replace(path, STR("two"), &why); /* same length, perhaps the same moment */
    second = file_stamp(path);
    assert_false(file_stamp_same(&first, &second));
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(written_and_read),
        ROW(longer_than_it_says),
        ROW(what_cannot_be_replaced_stays),
        ROW(changes_are_seen),
    };

    return cmocka_run_group_tests_name("base/file", tests, NULL, NULL);
}
