/* Checks that two stores that got the same calls answer the same, in every field. */
#ifndef TESTS_STORE_SAME_H
#define TESTS_STORE_SAME_H

#include "contract.h"

/* `a` is the op that the first store answered. */
#define SAME(left, right, what)                                                                    \
    do {                                                                                           \
        if ((left) != (right))                                                                     \
            fail_msg("verb %d outcome %d job %llu: %s is %lld, in Redis %lld", a->verb,            \
                     a->verb == STORE_FINISH ? (int)a->u.settle.outcome : -1,                      \
                     (unsigned long long)a->job, what, (long long)(left), (long long)(right));     \
    } while (0)

#define SAME_TEXT(left, right, what)                                                               \
    do {                                                                                           \
        if (!str_eq((left), (right)) || !(left).at != !(right).at)                                 \
            fail_msg("verb %d job %llu: %s is " STR_FMT ", in Redis " STR_FMT, a->verb,            \
                     (unsigned long long)a->job, what, STR_ARG(left), STR_ARG(right));             \
    } while (0)

/* `from_row`: read from a row of the file, which may be out of date; then due time, owner and
 * lapsed leases are not compared. */
void same_head(const struct store_op *a, const struct store_head *left,
               const struct store_head *right, bool from_row);
void same_record(const struct store_op *a, const struct store_record *left,
                 const struct store_record *right, bool from_row);
void same_counts(const struct store_op *a, const struct lease_node *left,
                 const struct lease_node *right);
/* The whole answer of a verb that changes something. */
void same_answer(const struct store_op *a, const struct store_op *b);
/* Some lanes, and the first jobs of one, while no call is under way. */
void same_lanes(struct rig *left, struct rig *right, uint64_t after, size_t max);
void same_lane(struct rig *left, struct rig *right, uint64_t lane, size_t max);
/* All nodes, while no call is under way. */
void same_nodes(struct rig *left, struct rig *right);

#endif
