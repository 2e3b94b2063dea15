/* Compares our JSON reader and writer with jansson's, for tests and the fuzzer. */
#ifndef TESTS_BASE_JSON_ORACLE_H
#define TESTS_BASE_JSON_ORACLE_H

#include "base/str.h"

enum verdict {
    BOTH_REFUSE,
    BOTH_ACCEPT, /* and all values are equal, also when written and read again */
    TOO_DEEP,    /* refused only for our depth limit, which it exceeds */
    NO_VERDICT,  /* jansson cannot represent it: a number too big, a NUL in a key */
    THEY_DIFFER,
};

/* Reads `text` with both. For THEY_DIFFER `ret_why` has the reason. */
enum verdict oracle_judge(struct str text, struct buf *ret_why);

#endif
