/* A reference model of the store: the same rules, written as plainly as possible, with arrays
 * instead of maps and counting instead of counters. */
#ifndef TESTS_STORE_MODEL_H
#define TESTS_STORE_MODEL_H

#include "store/store.h"

enum {
    MODEL_NODES = 6,
    MODEL_ENDED = 24,
    MODEL_RUN_MS = 45000,
    MODEL_TTL_MS = 5000,
    MODEL_DEMANDS = 10,
    MODEL_KEYS = 3,
    MODEL_STARTS = 256,
    MODEL_GPUS = 2,
};

/* What a job may take, and its text. */
struct model_demand {
    const char *text;
    int slots;
    int32_t cpu, mem_mb;
    int gpus;
    int32_t vram_mb;
    int keys[2]; /* indexes of the model's keys; -1: none */
};

extern const struct model_demand model_demands[MODEL_DEMANDS];
extern const char *const model_keys[MODEL_KEYS];

struct model_key {
    struct limit limit;
    int64_t hold_ms; /* when the hold ends */
    int64_t starts[MODEL_STARTS];
    int start_count;
};

struct model_job {
    uint64_t id; /* 0: no such job */
    enum job_state state;
    int attempt;
    int max_attempts;
    int node;             /* -1: none */
    enum lease_kind kind; /* the lease may have run out */
    uint32_t epoch;
    int64_t until_ms;
    int64_t reserved_ms; /* when it was reserved */
    /* The lease ran out and its slot is free again; the row does not show it yet. */
    bool lapsed;
    bool given_up; /* the row shows it, because a later job took a slot; not settled yet */
    int64_t timeout_ms;
    int64_t run_until_ms;
    int64_t run_until_written_ms; /* without later graces: what a restart reads */
    int64_t hold_ms;              /* when its hold or its time to wait in a lane ends */
    uint64_t lane;
    int priority;
    int demand;         /* index into model_demands */
    unsigned gpus;      /* one bit each */
    int64_t started_ms; /* as its keys count it: reserved_ms plus the pauses since */
    int ended_by;       /* the outcome that ended the job (enum store_outcome) */
    struct {
        int attempt;
        int node;
        enum job_event how;
    } ended[MODEL_ENDED];
    int ended_count;
};

struct model_node {
    int32_t max;
    uint32_t epoch;
    bool has_resources;
    int32_t cpu, mem_mb; /* usable */
    int32_t vram_mb[MODEL_GPUS];
};

struct model {
    struct model_job *jobs;
    size_t job_count;
    struct model_node nodes[MODEL_NODES];
    struct model_key keys[MODEL_KEYS];
    int64_t now_ms;
    int64_t grace_from_ms, grace_until_ms;
    int64_t since_ms; /* when the last pause ended */
};

struct model_wait {
    uint64_t lane; /* 0: none */
    int priority;
    int64_t until_ms;
    int64_t lane_max;
    int64_t all_max;
    bool keys; /* check the limits of its keys too */
};

struct model_answer {
    enum err err;
    bool duplicate;
    int chosen; /* node; -1: none */
    enum limit_why why;
    unsigned freed; /* one bit for each of the model's keys */
};

/* Each verb returns what the store must answer, and updates the model as the store must. */
/* The job is held, or goes into a lane as `lane` says. */
struct model_answer model_put(struct model *model, struct model_job *job, uint64_t id,
                              int64_t hold_ms, const struct model_wait *lane);
struct model_answer model_wait(struct model *model, struct model_job *job, int attempt,
                               const struct model_wait *lane);
struct model_answer model_reserve(struct model *model, struct model_job *job, uint64_t id,
                                  int attempt, const int *candidates, int count);
struct model_answer model_commit(struct model *model, struct model_job *job, int attempt, int node,
                                 int64_t stop_grace_ms);
struct model_answer model_finish(struct model *model, struct model_job *job,
                                 enum store_outcome outcome, int attempt, int node, bool left,
                                 int64_t hold_ms, int hold_key, int64_t hold_key_ms);
void model_renew(struct model *model, int node);
/* The node is lost and keeps its runs, or is back without them. */
void model_new_epoch(struct model *model, int node, bool keeps_runs);
/* Time passes. A step of more than five seconds is a pause of the store. */
void model_pass(struct model *model, int64_t ms);
/* Clears leases that have run out, as DUE does. */
void model_lapse(struct model *model);
/* The store is closed and opened again. */
void model_restart(struct model *model);
/* The first `max` jobs of a lane in order; returns how many wait in it. */
size_t model_lane(const struct model *model, uint64_t lane, size_t max,
                  const struct model_job **ret_jobs);
/* The next lane by number after this one; 0: none. */
uint64_t model_lane_after(const struct model *model, uint64_t lane);
/* How many leases of this kind count on the node now. */
int model_count(const struct model *model, int node, enum lease_kind kind);
/* What the leases leave of a node; INT32_MIN for a GPU that one lease has whole. */
int32_t model_cpu_left(const struct model *model, int node);
int32_t model_mem_left(const struct model *model, int node);
int32_t model_gpu_left(const struct model *model, int node, int gpu);
/* Leases with the key, jobs with it that wait, and starts within its window. */
int model_key_in_flight(const struct model *model, int key);
int model_key_waiting(const struct model *model, int key);
int model_key_started(const struct model *model, int key);
bool model_alive(const struct model *model, const struct model_job *job);

#endif
