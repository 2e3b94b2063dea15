/* cmocka and what it wants included before itself. */
#ifndef TESTS_IO_UNIT_H
#define TESTS_IO_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/str.h"

/* The text of a str, with the difference shown when it fails. */
#define assert_str(actual, expected) assert_str_at((actual), (expected), __FILE__, __LINE__)

static inline void assert_str_at(struct str actual, const char *expected, const char *file,
                                 int line)
{
    if (str_is(actual, expected))
        return;
    print_error("\"" STR_FMT "\" is not \"%s\"\n", STR_ARG(actual), expected);
    _fail(file, line);
}

#endif
