/* What the scheduler's tests rest on: a real embedded store in a directory of its own, loops that
 * are turned by hand on the test's thread, a clock that only moves when told, and hooks that write
 * down what they were asked. Between scheduler and store is a turnstile that can refuse calls
 * or keep them back. */
#ifndef TESTS_SCHED_RIG_H
#define TESTS_SCHED_RIG_H

#include "../unit.h"

#include "sched/dispatch.h"
#include "sched/keeper.h"
#include "sched/settle.h"
#include "store/op_queue.h"

#define RIG_START_MS INT64_C(1800000000000)

enum { RIG_LOOPS = 2, RIG_SENDS = 4096, RIG_NOTES = 8192, RIG_OPS = 4096 };

/* A job that was handed to the hook, as it was. */
struct rig_sent {
    struct send_op *op; /* NULL once it was answered */
    struct sched_loop *from;
    uint64_t job;
    int attempt;
    int64_t at_ms; /* wall time, as the store's */
    char node[NODE_ID_MAX + 1];
    char message[512];
};

struct rig_note {
    char event[16];
    struct store_head head;
};

struct rig_stop {
    char node[NODE_ID_MAX + 1];
    uint64_t job;
    int attempt;
};

enum rig_reach {
    RIG_OK,   /* every send arrives at once */
    RIG_FAIL, /* none does */
    RIG_KEEP, /* the test answers, with rig_answer() */
};

struct rig {
    struct store turnstile; /* first: the store as the scheduler sees it */
    struct store *store;
    struct rig *peer; /* another instance on the same store; NULL: there is none */
    bool is_guest;    /* and the store is its */
    unsigned moves;   /* how often another server took over, as the store tells */
    struct sched sched;
    struct inbox inboxes[RIG_LOOPS + 1];
    struct work_queue work_queue; /* where the store's answers arrive */
    int64_t wall_ms, mono_ms;     /* a test that sets the clock moves the first alone */
    char dir[64];
    struct arena arena; /* lives as long as the rig */
    struct sched_config config;

    enum rig_reach reach;
    struct str unreachable; /* sends to this node fail, whatever reach says */
    struct rig_sent sent[RIG_SENDS];
    size_t sent_count;
    struct rig_note notes[RIG_NOTES];
    size_t note_count;
    struct rig_stop stops[64];
    size_t stop_count;
    size_t changes; /* calls of node_changed */
    int loads;      /* and of loaded */

    int held;                 /* this loop's thread is busy: its inbox is not run; -1: none is */
    uint32_t refuse_one_in;   /* of so many calls one is refused, by chance; 0: none is */
    struct rnd rnd;           /* that chance */
    enum err refuse;          /* != ERR_OK: store calls are refused with this */
    enum store_verb lose;     /* what the store answers to this verb is lost; or STORE_VERB_COUNT */
    uint32_t lose_one_in;     /* and one of so many of all that change a job; 0: none is */
    enum store_verb keep;     /* calls of this verb are kept back; STORE_VERB_COUNT: none */
    struct store_op *kept[8]; /* oldest first */
    size_t kept_count;
    size_t calls[STORE_VERB_COUNT]; /* that went through */
    struct {
        struct store_op *op;
        struct inbox *reply_to;
    } ops[RIG_OPS]; /* under way */
    size_t op_count, answered;
};

/* cmocka's. rig_setup opens everything with one loop_count of RIG_LOOPS and publishes an empty
 * snapshot; the configuration is the product's defaults. */
int rig_setup(void **state);
int rig_teardown(void **state);
/* The same by hand, for tests that change the configuration in between. */
struct rig *rig_new(void);
void rig_open(struct rig *rig);
void rig_restart(struct rig *rig); /* the process ends and begins: same directory */
void rig_free(struct rig *rig);
/* A second instance, of rig_new(), on the store of the first. From now on they turn, and time
 * passes, together. It leaves before the first is freed. */
void rig_join(struct rig *guest, struct rig *host);
void rig_leave(struct rig *guest);

/* Runs every inbox, turn and store call until nothing is left to do. */
void rig_quiet(struct rig *rig);
void rig_tick(struct rig *rig, int64_t ms); /* time passes, the keeper's tick, quiet */
void rig_pass(struct rig *rig, int64_t ms); /* in steps, as it does in a living system */
void rig_let_go(struct rig *rig);           /* what `keep` kept back goes on */
void rig_answer(struct rig *rig, size_t sent, bool ok);

struct sched_loop *rig_loop(struct rig *rig, int index);
struct sched_loop *rig_keeper(struct rig *rig);
const struct node *rig_node(struct rig *rig, const char *id); /* on loop 0; NULL: not there */

/* A registration with this body; ERR_OK when it is live. */
enum err rig_register(struct rig *rig, const char *json);
/* A change on its way; rig_changed() tells whether it was answered. */
struct node_change *rig_begin_register(struct rig *rig, int loop, const char *json);
struct node_change *rig_begin(struct rig *rig, int loop, const struct node_change *change);
bool rig_changed(const struct node_change *change);
/* A node for tasks of any type and for en:zh. */
void rig_worker(struct rig *rig, const char *id, int max);
/* What a heartbeat becomes; news is sent and waited for. */
enum registry_beat rig_beat(struct rig *rig, const char *json);
enum err rig_admin(struct rig *rig, const char *id, enum node_admin word);
enum err rig_drop(struct rig *rig, const char *id);
void rig_drop_behind(struct rig *rig, const char *id); /* in the store, past the scheduler */

/* A new job, prepared but not started; its memory is the rig's. */
struct dispatch *rig_f2f(struct rig *rig, const char *json);
struct dispatch *rig_task(struct rig *rig, const char *json);
bool rig_over(const struct dispatch *dispatch); /* it was answered */
enum err rig_run(struct rig *rig, struct dispatch *dispatch);
uint64_t rig_place(struct rig *rig, const char *task_json); /* must be placed; its id */
/* A task that waits: durable, and known to the keeper, as a request that found no room left it. */
uint64_t rig_wait_in_queue(struct rig *rig, const char *task_json);
/* The same, but in the store alone: another instance put it. */
uint64_t rig_put_waiting(struct rig *rig, const char *task_json);
/* So many of the same, in batches. */
void rig_put_many(struct rig *rig, const char *task_json, size_t count);
/* A rule for keys, as limit_write() has it; and nothing with a key starts for so long (0: again at
 * once). Past the scheduler, which is not told. */
void rig_limit(struct rig *rig, const char *pattern, const char *limit);
void rig_hold(struct rig *rig, const char *key, int64_t hold_ms);
/* The same, with a record that this release cannot read: in the lane of the task, or (`hold_ms`) in
 * the hands of somebody who dies. */
uint64_t rig_put_unreadable(struct rig *rig, const char *task_json, int64_t hold_ms);
/* Past the scheduler: whoever was told of it has died. */
void rig_finish_behind(struct rig *rig, enum store_outcome outcome, uint64_t job, int attempt,
                       const char *node);
void rig_renew(struct rig *rig, const char *node); /* a heartbeat that renews all its leases */

enum err rig_settle(struct rig *rig, enum settle_kind kind, uint64_t job, int attempt,
                    const char *node, const char *reason);
struct store_head rig_job(struct rig *rig, uint64_t job); /* as the store has it */
struct str rig_history(struct rig *rig, uint64_t job);    /* its ended attempts, JSON */
struct lease_node rig_counts(struct rig *rig, const char *node);
size_t rig_lanes(struct rig *rig); /* in which jobs wait, as the store has them */
size_t rig_noted(const struct rig *rig, uint64_t job, const char *event);
/* The last send of this job; fails the test when there is none. */
const struct rig_sent *rig_last_sent(const struct rig *rig, uint64_t job);
size_t rig_sends_of(const struct rig *rig, uint64_t job);

#endif
