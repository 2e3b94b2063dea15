/* What the store's tests rest on: a store in a directory of its own, a clock that only moves when
 * told, and calls that wait for their answer. */
#ifndef TESTS_STORE_RIG_H
#define TESTS_STORE_RIG_H

#include "store/op_queue.h"
#include "store/store.h"

enum {
    RIG_START_MS = 1000000,
    RIG_TTL_MS = 5000,
    RIG_LONG_TTL_MS = 300000, /* where time is the machine's own, and nothing is to run out */
    RIG_RUN_MS = 45000,
    RIG_F2F_MS = 15000,
    RIG_WAIT_MS = 60000,
};

struct rig {
    struct store *store;
    struct work_queue work_queue; /* the test's own inbox */
    struct arena arena;
    char dir[64];
    struct store_config config;
    int64_t ttl_ms;     /* of reservations */
    struct store_op op; /* of the last call made with a helper below */
    size_t story;       /* contract.c: which story is told */
};

/* A call about nothing, which answers ERR_NOT_FOUND: a heartbeat of a node that nobody knows. */
#define RIG_NOTHING .verb = STORE_RENEW, .node = STR("nobody")

/* The clock every rig uses. */
int64_t rig_now_ms(void);
void rig_clock_set(int64_t now_ms);
/* Lets time pass as it does in a living system: in steps, with a call in each. */
void rig_pass(struct rig *rig, int64_t ms);
/* Nobody calls meanwhile. */
void rig_jump(int64_t ms);

void rig_init(struct rig *rig); /* a fresh directory; not open yet */
void rig_open(struct rig *rig);
void rig_close(struct rig *rig);
void rig_done(struct rig *rig); /* closes and removes the directory */
void rig_remove_dir(const char *dir);

/* Sends and waits. What store_send refuses is the answer too. */
enum err rig_call(struct rig *rig, struct store_op *op);
void rig_wait(struct rig *rig, const bool *done);

unsigned rig_owner(const struct rig *rig); /* of what is held and reserved with these */
/* One op each, filled in the usual way, sent, and left in rig->op. */
enum err rig_node(struct rig *rig, const char *node, int32_t max, enum node_health health);
enum err rig_put(struct rig *rig, uint64_t job);
enum err rig_put_lane(struct rig *rig, uint64_t job, uint64_t lane, int priority);
enum err rig_lane(struct rig *rig, uint64_t lane, size_t max); /* what is there */
enum err rig_reserve(struct rig *rig, uint64_t job, int attempt, const char *nodes);
enum err rig_commit(struct rig *rig, uint64_t job, int attempt, const char *node);
enum err rig_finish(struct rig *rig, enum store_outcome outcome, uint64_t job, int attempt,
                    const char *node, const char *reason);
enum err rig_get(struct rig *rig, uint64_t job);
size_t rig_due(struct rig *rig, struct store_due *items, size_t max);
int64_t rig_repairs_of(struct rig *rig, enum store_rule rule);   /* found since it was opened */
int64_t rig_repairs(struct rig *rig);                            /* all of them */
struct lease_node rig_counts(struct rig *rig, const char *node); /* health NONE: no such node */

#endif
