/* Buffers come back empty but with their memory; some of moderate size are kept, and freed when
 * their thread ends (else the sanitiser reports them). */
#include "../unit.h"

#include <pthread.h>

#include "base/spare.h"

static void test_memory_is_used_again(void **state)
{
    struct buf buf = spare_take();
    const char *memory;

    buf_str(&buf, STR("words"));
    memory = buf.at;
    spare_give(&buf);
    assert_null(buf.at);
    buf = spare_take();
    assert_ptr_equal(buf.at, memory);
    assert_int_equal(buf.len, 0);
    buf_str(&buf, STR("other words"));
    assert_str(buf_view(&buf), "other words");
    spare_give(&buf);
}

static void test_no_more_than_some(void **state)
{
    struct buf bufs[80];
    int kept = 0;

    for (size_t i = 0; i < COUNT_OF(bufs); i++) {
        bufs[i] = spare_take();
        buf_reserve(&bufs[i], i == 79 ? 1 << 20 : 100);
    }
    spare_give(&bufs[79]); /* too large to keep */
    assert_null(bufs[79].at);
    assert_null((bufs[79] = spare_take()).at);
    for (size_t i = 0; i < COUNT_OF(bufs); i++)
        spare_give(&bufs[i]);
    for (size_t i = 0; i < COUNT_OF(bufs); i++) {
        bufs[i] = spare_take();
        kept += bufs[i].at != NULL;
    }
    assert_int_equal(kept, 64);
    for (size_t i = 0; i < COUNT_OF(bufs); i++)
        spare_give(&bufs[i]);
}

static void *use_some(void *arg)
{
    struct buf bufs[3];

    for (size_t i = 0; i < COUNT_OF(bufs); i++) {
        bufs[i] = spare_take();
        buf_char(&bufs[i], 'x');
    }
    for (size_t i = 0; i < COUNT_OF(bufs); i++)
        spare_give(&bufs[i]);
    return NULL;
}

static void test_a_thread_ends(void **state)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, use_some, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_used_again),
        cmocka_unit_test(test_no_more_than_some),
        cmocka_unit_test(test_a_thread_ends),
    };

    return cmocka_run_group_tests_name("base/spare", tests, NULL, NULL);
}
