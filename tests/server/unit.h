/* What every test of the server includes: cmocka with the headers it wants, comparing texts. */
#ifndef TESTS_SERVER_UNIT_H
#define TESTS_SERVER_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/str.h"

#ifndef assert_str
#define assert_str(got, want)                                                                      \
    do {                                                                                           \
        struct str got_ = (got);                                                                   \
        if (!str_is(got_, (want)))                                                                 \
            fail_msg("got \"" STR_FMT "\", wanted \"%s\"", STR_ARG(got_), (want));                 \
    } while (0)
#endif

#endif
