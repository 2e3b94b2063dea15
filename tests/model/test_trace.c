/* traceparent: valid headers, and those that are ignored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/trace.h"

#define ID   "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

static void rows(void **state)
{
    static const struct {
        const char *text;
        bool valid;
    } table[] = {
        {"00-" ID "-" SPAN "-01", true},
        {"00-" ID "-" SPAN "-00", true},
        {"cc-" ID "-" SPAN "-01", true},
        {"cc-" ID "-" SPAN "-01-more", true},
        {"cc-" ID "-" SPAN "-01more", false},
        {"00-" ID "-" SPAN "-01-more", false},
        {"ff-" ID "-" SPAN "-01", false},
        {"00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01", false},
        {"00-00000000000000000000000000000000-" SPAN "-01", false},
        {"00-" ID "-0000000000000000-01", false},
        {"00-" ID "-" SPAN "-0", false},
        {"00-" ID "-" SPAN "-0x", false},
        {"00_" ID "-" SPAN "-01", false},
        {"00-" ID "_" SPAN "-01", false},
        {"00-" ID "-" SPAN "_01", false},
        {"", false},
    };

    for (size_t i = 0; i < COUNT_OF(table); i++) {
        struct str text = str_of(table[i].text), known = trace_parent(text);

        if (trace_valid(text) != table[i].valid)
            fail_msg("%s", table[i].text);
        assert_int_equal(known.len, table[i].valid ? TRACE_PARENT_LEN : 0);
        assert_true(!table[i].valid || str_is(trace_id(known), ID));
    }
    assert_int_equal(trace_id(STR_NONE).len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows)};

    return cmocka_run_group_tests_name("model/trace", tests, NULL, NULL);
}
