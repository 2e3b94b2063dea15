/* cmocka with the headers it needs first, comparison of texts, and running a loop by hand. */
#ifndef TESTS_AGENT_UNIT_H
#define TESTS_AGENT_UNIT_H

#include "../unit.h"

#include "base/clock.h"

enum { UNIT_PATIENCE_MS = 20000 };

/* Runs the loop until `condition` holds; fails the test if that takes too long. */
#define await(loop, condition)                                                                     \
    do {                                                                                           \
        int64_t until_ = clock_mono_ms() + UNIT_PATIENCE_MS;                                       \
        while (!(condition)) {                                                                     \
            if (clock_mono_ms() > until_)                                                          \
                fail_msg("waited in vain for %s", #condition);                                     \
            uv_run(&(loop)->uv, UV_RUN_ONCE); /* the tick ends it if nothing else does */          \
        }                                                                                          \
    } while (0)

/* `whole` contains `part`. */
#define assert_has(whole, part)                                                                    \
    do {                                                                                           \
        struct str whole_ = (whole);                                                               \
        if (!memmem(whole_.at, whole_.len, (part), strlen(part)))                                  \
            fail_msg("no %s in " STR_FMT, (part), STR_ARG(whole_));                                \
    } while (0)

#endif
