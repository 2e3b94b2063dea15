/* The records of an imaginary next release: a newer format in which each record has one more field,
 * in the middle, so that every field after it moves. See tests/meson.build. */
#ifndef TESTS_STORE_NEXT_RECORDS_H
#define TESTS_STORE_NEXT_RECORDS_H

enum { FORMAT_OLDEST = 3, FORMAT_NEWEST = 4 };

#define JOB_RECORD_NEXT(ROW)   ROW(weight, U32, head, 4, 1515870810)
#define NODE_RECORD_NEXT(ROW)  ROW(weight, TIME, counts, 4, 1515870810)
#define STATE_RECORD_NEXT(ROW) ROW(weight, I64, all, 4, 1515870810)

#endif
