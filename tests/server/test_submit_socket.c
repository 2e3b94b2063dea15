/* How much credit a client gets. The conversation itself is shown end to end. */
#include "unit.h"

#include "server/submit_socket.h"

static void all_answers_that_credit_allows_have_room(void **state)
{
    static const struct {
        int64_t queue_bytes_max, credit;
    } rows[] = {{1, 1},
                {4095, 1},
                {65536, 16}, /* the least that can be set */
                {1 << 20, 256},
                {(int64_t)8 << 20, SUBMIT_CREDIT_MAX},
                {INT64_MAX, SUBMIT_CREDIT_MAX}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(submit_socket_credit(rows[i].queue_bytes_max), rows[i].credit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_answers_that_credit_allows_have_room),
    };

    return cmocka_run_group_tests_name("server/submit_socket", tests, NULL, NULL);
}
