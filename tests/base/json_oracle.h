/* Our JSON reader and writer beside jansson's, for tests and for the fuzzer. */
#ifndef TESTS_BASE_JSON_ORACLE_H
#define TESTS_BASE_JSON_ORACLE_H

#include "base/str.h"

enum verdict {
    BOTH_REFUSE,
    BOTH_ACCEPT, /* and every value is the same, also when written and read again */
    TOO_DEEP,    /* only our limit refuses it, and it is beyond that limit */
    NO_VERDICT,  /* jansson cannot hold it: a number too big, a NUL in a key */
    THEY_DIFFER,
};

/* Reads `text` with both. For THEY_DIFFER `ret_why` says how. */
enum verdict oracle_judge(struct str text, struct buf *ret_why);

#endif
