/* Known sums, and that any flipped bit changes them. */
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_known_sums(void **state)
{
    char zeros[32] = "";

    assert_int_equal(crc32c(STR("")), 0);
    assert_int_equal(crc32c(STR("123456789")), 0xe3069283);
    assert_int_equal(crc32c((struct str){zeros, sizeof zeros}), 0x8a9136aa); /* RFC 3720 */
    memset(zeros, 0xff, sizeof zeros);
    assert_int_equal(crc32c((struct str){zeros, sizeof zeros}), 0x62a8ab43);
}

static void test_every_bit_counts(void **state)
{
    char bytes[61] = "some bytes, more than the eight that are taken at a time";
    uint32_t sum = crc32c((struct str){bytes, sizeof bytes});

    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        assert_int_not_equal(crc32c((struct str){bytes, sizeof bytes}), sum);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
}

/* The processor's instruction and plain code give the same sum, for any length at any address. */
static void test_the_same_without_the_chip(void **state)
{
    char bytes[300];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * i * 31 + i);
    for (size_t at = 0; at < 9; at++)
        for (size_t len = 0; at + len <= sizeof bytes; len++)
            assert_int_equal(crc32c((struct str){bytes + at, len}),
                             crc32c_plain((struct str){bytes + at, len}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_sums),
        cmocka_unit_test(test_every_bit_counts),
        cmocka_unit_test(test_the_same_without_the_chip),
    };

    return cmocka_run_group_tests_name("base/digest", tests, NULL, NULL);
}
