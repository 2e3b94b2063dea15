/* How many connections the descriptor limit allows. */
#include "../unit.h"

#include "server/listen.h"

static void connections_fit_into_descriptors(void **state)
{
    static const struct {
        int64_t descriptors;
        int loops;
        int64_t wanted, most;
    } rows[] = {
        {1 << 20, 8, 20000, 20000}, /* enough for all */
        {65536, 8, 20000, 7806},    /* minus those of loops, store and outgoing connections */
        {1024, 2, 20000, 342},      /* few: these get at most a quarter */
        {300, 2, 20000, 70},        {300, 2, 10, 10},   /* fewer were wanted */
        {115, 2, 20000, 1},         {112, 2, 20000, 0}, /* none is left for callers */
        {0, 64, 20000, 0},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(listen_connections(rows[i].descriptors, rows[i].loops, rows[i].wanted),
                         rows[i].most);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_fit_into_descriptors),
    };

    return cmocka_run_group_tests_name("server/listen", tests, NULL, NULL);
}
