/* The fixture of the store's tests: a store in a directory of its own, a clock that moves only on
 * request, and calls that wait for their answer. */
#ifndef TESTS_STORE_RIG_H
#define TESTS_STORE_RIG_H

#include "store/op_queue.h"
#include "store/store.h"

enum {
    RIG_START_MS = 1000000,
    RIG_TTL_MS = 5000,
    /* For tests on the machine's own clock, where no reservation may run out. */
    RIG_LONG_TTL_MS = 300000,
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
    int64_t ttl_ms;     /* the term of reservations */
    struct store_op op; /* of the last call made with a helper below */
    size_t story;       /* contract.c: index of the story */
};

/* A call without effect that answers ERR_NOT_FOUND: a heartbeat of an unknown node. */
#define RIG_NOTHING .verb = STORE_RENEW, .node = STR("nobody")

/* The clock that every rig uses. */
int64_t rig_now_ms(void);
void rig_clock_set(int64_t now_ms);
/* Lets time pass as in a live system: in steps, with a call in each. */
void rig_pass(struct rig *rig, int64_t ms);
/* Lets time pass without a call, as if the store had paused. */
void rig_jump(int64_t ms);

void rig_init(struct rig *rig); /* a fresh directory; the store is not open yet */
void rig_open(struct rig *rig);
void rig_close(struct rig *rig);
void rig_done(struct rig *rig); /* closes and removes the directory */
void rig_remove_dir(const char *dir);

/* Sends an op and waits for its answer. If store_send refuses the op, its error is the answer. */
enum err rig_call(struct rig *rig, struct store_op *op);
void rig_wait(struct rig *rig, const bool *done);

unsigned rig_owner(const struct rig *rig); /* the owner of jobs that are put and reserved below */
/* Each fills in an op with usual values, sends it and leaves the answer in rig->op. */
enum err rig_node(struct rig *rig, const char *node, int32_t max, enum node_health health);
enum err rig_put(struct rig *rig, uint64_t job);
enum err rig_put_lane(struct rig *rig, uint64_t job, uint64_t lane, int priority);
enum err rig_lane(struct rig *rig, uint64_t lane, size_t max); /* reads a lane */
enum err rig_reserve(struct rig *rig, uint64_t job, int attempt, const char *nodes);
enum err rig_commit(struct rig *rig, uint64_t job, int attempt, const char *node);
enum err rig_finish(struct rig *rig, enum store_outcome outcome, uint64_t job, int attempt,
                    const char *node, const char *reason);
enum err rig_get(struct rig *rig, uint64_t job);
size_t rig_due(struct rig *rig, struct store_due *items, size_t max);
/* Repairs since the store was opened. */
int64_t rig_repairs_of(struct rig *rig, enum store_rule rule);
int64_t rig_repairs(struct rig *rig); /* by all rules */
/* The health is NODE_HEALTH_NONE if there is no such node. */
struct lease_node rig_counts(struct rig *rig, const char *node);

#endif
