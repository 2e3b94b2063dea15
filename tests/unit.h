/* Included by every unit test: cmocka with the headers it needs, and a comparison of texts. */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/str.h"

/* `got` equals the C string `want`; shows both if not. */
#define assert_str(got, want)                                                                      \
    do {                                                                                           \
        struct str got_ = (got);                                                                   \
        if (!str_is(got_, (want)))                                                                 \
            fail_msg("got \"" STR_FMT "\", wanted \"%s\"", STR_ARG(got_), (want));                 \
    } while (0)

#endif
