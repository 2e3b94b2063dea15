/* Why a job went to its node, or to none. Every dispatch leaves a record of its choice with its
 * loop, in memory of a fixed size: the oldest record is dropped when a new one needs the room. Jobs
 * that were placed at once have a separate book, so that their number does not displace refused,
 * retried or waiting ones. What would happen now is computed by the same rules, without changing
 * anything. */
#ifndef SCHED_EXPLAIN_H
#define SCHED_EXPLAIN_H

#include "sched/dispatch.h"

enum { EXPLAIN_BYTES_MIN = 256 * 1024 }; /* the largest record takes less than half of it */

/* Why a node did not get the job: an enum dispatch_why, or one of these. */
enum explain_why {
    EXPLAIN_CHOSEN = WHY_COUNT,
    EXPLAIN_BEHIND,        /* it fits, but the policy ranks another first */
    EXPLAIN_NOT_ASKED,     /* it was on the list when the dispatch ended for another reason */
    EXPLAIN_NOT_SAMPLED,   /* a member of the pool that was not looked at */
    EXPLAIN_NOT_PREFERRED, /* likewise, because only the preferred node counted */
    EXPLAIN_NOT_CAPABLE,   /* not a member of the pool */
    EXPLAIN_COUNT
};
const char *explain_why_name(unsigned why);

/* A piece of a record's text. */
struct explain_part {
    uint32_t at, len;
};

/* One node as it was seen. */
struct explain_node {
    struct dispatch_look look; /* look.why may be an enum explain_why; look.node is not used */
    struct explain_part name;  /* its id; empty: only look.hash is known */
};

/* One choice, in a book or in an arena: `node_count` nodes and then the text follow. */
struct explain {
    uint32_t size; /* of the whole record, a multiple of 8 */
    uint32_t node_count;
    uint64_t job; /* 0: a gap in the book */
    int64_t at_ms;
    int64_t version; /* of the snapshot */
    int32_t attempt;
    int32_t err;      /* enum err: ERR_OK = placed */
    uint32_t nodes;   /* in the snapshot: the sum of `counts` */
    uint32_t members; /* members of the pool that fit the request */
    uint32_t counts[EXPLAIN_COUNT];
    uint8_t wants; /* POOL_WANT_* */
    bool f2f;
    bool waits;                   /* it found no room and waits for some */
    struct explain_part src, tgt; /* for a task: "type", NAME */
    struct explain_part type;     /* with its namespace; empty: of `default` */
    struct explain_part detail;
    uint32_t text_len;
    struct explain_node list[];
};

struct str explain_text(const struct explain *explain, struct explain_part part);

struct explain_book *explain_book_new(size_t bytes); /* `bytes` for each of its two parts */
void explain_book_free(struct explain_book *book);

/* On the dispatch's loop, when it ended. Allocates nothing. */
void explain_note(struct dispatch *dispatch);

/* Asks every loop for its records of a job; answers through done() on the asking loop. */
struct explain_ask {
    struct sched_loop *from;
    uint64_t job;
    void (*done)(struct explain_ask *ask);
    struct buf found; /* answer: records, one after the other; the asker frees it */
    struct msg msg;   /* private */
    int at;           /* private */
};
void explain_find(struct explain_ask *ask);
/* The first of `found`, then the next; NULL: no more. */
const struct explain *explain_next(const struct buf *found, size_t *at);
/* Removes records of other namespaces from `found`; at == NULL: all stay. */
void explain_keep(struct buf *found, struct str listed);

/* What would become of this job now: takes a dispatch that is filled in but never started. Looks at
 * every node, also where a dispatch would sample. The breakers are the store's current ones; at
 * most `max` nodes are listed, the best first. dispatch->block says whether a key blocks the job.
 * dispatch->err and ->why are what a client would get. */
const struct explain *explain_now(struct dispatch *dispatch, const struct store_breaker *breakers,
                                  size_t breaker_count, size_t max);

#endif
