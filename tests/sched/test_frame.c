/* Several messages in one text: each reads as it was written, and reading stops at anything that is
 * not a frame. */
#include "rig.h"

#include "sched/frame.h"

#include <string.h>

static void words_come_out_as_they_went_in(void **state)
{
    static const char *const words[] = {"", "a", "job 1\n{\"x\":1}", "with\0nul"};
    struct buf buf = {0};
    struct str rest, frame;

    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t begun = frame_begin(&buf);

        buf_add(&buf, words[i], i == 3 ? 8 : strlen(words[i]));
        frame_end(&buf, begun);
    }
    rest = buf_view(&buf);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        assert_true(frame_next(&rest, &frame));
        assert_int_equal(frame.len, i == 3 ? 8 : strlen(words[i]));
        assert_memory_equal(frame.at, words[i], frame.len);
    }
    assert_int_equal(rest.len, 0);
    assert_false(frame_next(&rest, &frame));
    buf_free(&buf);
}

/* Foreign or truncated text. */
static void what_is_no_frame_is_not_read(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
    } rows[] = {{"", 0},
                {"\1\0\0", 3},
                {"\2\0\0\0a", 5},
                {"\xff\xff\xff\xff", 4},
                {"\xff\xff\xff\x7f"
                 "abc",
                 7}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str rest = {.at = rows[i].bytes, .len = rows[i].len}, frame = STR("untouched");

        assert_false(frame_next(&rest, &frame));
        assert_true(str_is(frame, "untouched"));
        assert_int_equal(rest.len, rows[i].len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_come_out_as_they_went_in),
        cmocka_unit_test(what_is_no_frame_is_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
