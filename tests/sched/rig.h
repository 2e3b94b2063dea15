/* The fixture of the scheduler's tests: a real embedded store in a directory of its own, loops that
 * the test runs on its own thread, a clock that moves only on request, and hooks that record their
 * calls. Between the scheduler and the store is a turnstile that can refuse calls or keep them
 * back. */
#ifndef TESTS_SCHED_RIG_H
#define TESTS_SCHED_RIG_H

#include "../unit.h"

#include "sched/dispatch.h"
#include "sched/keeper.h"
#include "sched/settle.h"
#include "store/op_queue.h"

#define RIG_START_MS INT64_C(1800000000000)

enum { RIG_LOOPS = 2, RIG_SENDS = 4096, RIG_NOTES = 8192, RIG_OPS = 4096 };

/* A job that was handed to the send hook, as it was then. */
struct rig_sent {
    struct send_op *op; /* NULL once answered */
    struct sched_loop *from;
    uint64_t job;
    int attempt;
    int64_t at_ms; /* wall time, like the store's */
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
    RIG_FAIL, /* no send arrives */
    RIG_KEEP, /* the test answers each with rig_answer() */
};

struct rig {
    struct store turnstile; /* first member: the store as the scheduler sees it */
    struct store *store;
    struct rig *peer; /* another instance on the same store; NULL: none */
    bool is_guest;    /* the store belongs to the peer */
    unsigned moves;   /* how often another server took over, as the store reports it */
    struct sched sched;
    struct inbox inboxes[RIG_LOOPS + 1];
    struct work_queue work_queue; /* where the store's answers arrive */
    int64_t wall_ms, mono_ms;     /* a test that sets the clock moves only wall_ms */
    char dir[64];
    struct arena arena; /* lives as long as the rig */
    struct sched_config config;

    enum rig_reach reach;
    struct str unreachable; /* sends to this node fail, whatever `reach` is */
    struct rig_sent sent[RIG_SENDS];
    size_t sent_count;
    struct rig_note notes[RIG_NOTES];
    size_t note_count;
    struct rig_stop stops[64];
    size_t stop_count;
    size_t changes; /* calls of the hook node_changed */
    int loads;      /* calls of the hook loaded */

    int held;                 /* this loop is busy: its inbox is not run; -1: none */
    uint32_t refuse_one_in;   /* one of so many store calls is refused at random; 0: none */
    struct rnd rnd;           /* for random refusals and losses */
    enum err refuse;          /* unless ERR_OK, all store calls are refused with this error */
    enum store_verb lose;     /* answers to this verb are lost; STORE_VERB_COUNT: none */
    uint32_t lose_one_in;     /* and one of so many answers to verbs that change a job; 0: none */
    enum store_verb keep;     /* calls of this verb are kept back; STORE_VERB_COUNT: none */
    struct store_op *kept[8]; /* oldest first */
    size_t kept_count;
    size_t calls[STORE_VERB_COUNT]; /* that reached the store */
    struct {
        struct store_op *op;
        struct inbox *reply_to;
    } ops[RIG_OPS]; /* under way */
    size_t op_count, answered;
};

/* For cmocka. rig_setup opens everything with RIG_LOOPS loops and publishes an empty snapshot; the
 * configuration has the product's defaults. */
int rig_setup(void **state);
int rig_teardown(void **state);
/* The same in steps, for tests that change the configuration first. */
struct rig *rig_new(void);
void rig_open(struct rig *rig);
void rig_restart(struct rig *rig); /* ends the process and starts it again on the same directory */
void rig_free(struct rig *rig);
/* Joins a second instance, made by rig_new(), to the store of the first. From then on their loops
 * run, and their clocks move, together. It must leave before the first is freed. */
void rig_join(struct rig *guest, struct rig *host);
void rig_leave(struct rig *guest);

/* Runs inboxes, turns and store calls until nothing is left to do. */
void rig_quiet(struct rig *rig);
void rig_tick(struct rig *rig, int64_t ms); /* time passes, the keeper ticks, then rig_quiet() */
void rig_pass(struct rig *rig, int64_t ms); /* lets time pass in steps, as in a live system */
void rig_let_go(struct rig *rig);           /* sends the calls that `keep` kept back */
void rig_answer(struct rig *rig, size_t sent, bool ok);

struct sched_loop *rig_loop(struct rig *rig, int index);
struct sched_loop *rig_keeper(struct rig *rig);
/* As loop 0 sees it; NULL: no such node. */
const struct node *rig_node(struct rig *rig, const char *id);

/* Registers a node with this body; ERR_OK when every loop has it. */
enum err rig_register(struct rig *rig, const char *json);
/* Starts a change of a node; rig_changed() tells whether it was answered. */
struct node_change *rig_begin_register(struct rig *rig, int loop, const char *json);
struct node_change *rig_begin(struct rig *rig, int loop, const struct node_change *change);
bool rig_changed(const struct node_change *change);
/* Registers a node for tasks of any type and for en:zh. */
void rig_worker(struct rig *rig, const char *id, int max);
/* Handles a heartbeat and returns what it amounts to; a change is sent and waited for. */
enum registry_beat rig_beat(struct rig *rig, const char *json);
enum err rig_admin(struct rig *rig, const char *id, enum node_admin word);
enum err rig_drop(struct rig *rig, const char *id);
void rig_drop_behind(struct rig *rig, const char *id); /* in the store, without the scheduler */

/* A new job, prepared but not started; the rig owns its memory. */
struct dispatch *rig_f2f(struct rig *rig, const char *json);
struct dispatch *rig_task(struct rig *rig, const char *json);
bool rig_over(const struct dispatch *dispatch); /* has it been answered? */
enum err rig_run(struct rig *rig, struct dispatch *dispatch);
/* The job must be placed; returns its id. */
uint64_t rig_place(struct rig *rig, const char *task_json);
/* Puts a task into the queue: it is in the store and known to the keeper, as after a request that
 * found no room. */
uint64_t rig_wait_in_queue(struct rig *rig, const char *task_json);
/* The same, but only in the store, as if another instance had put it. */
uint64_t rig_put_waiting(struct rig *rig, const char *task_json);
/* Puts `count` such tasks, in batches. */
void rig_put_many(struct rig *rig, const char *task_json, size_t count);
/* Sets a rule for keys, in the format of limit_write(), and a hold of a key (0 ends it). The
 * scheduler is not told. */
void rig_limit(struct rig *rig, const char *pattern, const char *limit);
void rig_hold(struct rig *rig, const char *key, int64_t hold_ms);
/* Like rig_put_waiting(), with a record that this release cannot read: in the lane of the task, or
 * with `hold_ms` held by an instance that has died. */
uint64_t rig_put_unreadable(struct rig *rig, const char *task_json, int64_t hold_ms);
/* Ends an attempt without the scheduler, as if the instance that got the answer had died. */
void rig_finish_behind(struct rig *rig, enum store_outcome outcome, uint64_t job, int attempt,
                       const char *node);
/* A heartbeat that renews all leases of the node. */
void rig_renew(struct rig *rig, const char *node);

enum err rig_settle(struct rig *rig, enum settle_kind kind, uint64_t job, int attempt,
                    const char *node, const char *reason);
struct store_head rig_job(struct rig *rig, uint64_t job); /* as the store has it */
struct str rig_history(struct rig *rig, uint64_t job);    /* ended attempts, as JSON */
struct lease_node rig_counts(struct rig *rig, const char *node);
size_t rig_lanes(struct rig *rig); /* number of lanes with jobs, as the store has it */
size_t rig_noted(const struct rig *rig, uint64_t job, const char *event);
/* The last send of this job; fails the test if there is none. */
const struct rig_sent *rig_last_sent(const struct rig *rig, uint64_t job);
size_t rig_sends_of(const struct rig *rig, uint64_t job);

#endif
