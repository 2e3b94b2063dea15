/* A test vector: its input, where the answer goes, and the table of areas. An adapter reads `in`,
 * calls the product's functions and writes their results; it has no rules of its own. */
#ifndef TESTS_VECTORS_VEC_H
#define TESTS_VECTORS_VEC_H

#include "base/json.h"

struct vec {
    const struct json *in;
    bool seed;                 /* profile seed: claim_mode seed; everything else is hardened */
    struct arena *arena;       /* freed after each vector */
    struct jsonw *w;           /* the answer: one object */
    struct str wrong_expected; /* of the first step with a wrong answer; at == NULL: none */
    struct str wrong_got;
};

/* Returns false if the input is invalid, which fails the vector. */
typedef bool vec_run(struct vec *vec);

struct vec_area {
    const char *name;
    vec_run *run;
};

vec_run area_pool_membership, area_pool_delta;
vec_run area_reservation;
vec_run area_job_fsm, area_job_state_map;
vec_run area_selection_order, area_random_sample, area_dispatch_outcome;
vec_run area_node_health_fsm, area_membership_events, area_health_score;
vec_run area_snapshot;
vec_run area_slot_formula, area_danger_level, area_emergency_kill, area_resource_score;
vec_run area_circuit_breaker, area_breaker_attribution;
vec_run area_server_routing, area_cluster_status;
vec_run area_store_degradation, area_cache_layers, area_cache_jitter;
vec_run area_active_nodes, area_lost_addresses, area_deployment_counts, area_eligibility;
vec_run area_resource_eligibility, area_candidate_order, area_claim_cas, area_claim_cycle;
vec_run area_claim_config, area_lost_grace, area_ext_selector, area_selector, area_ext_lease;
vec_run area_demand, area_turns, area_resources, area_limits;

/* From now on areas that need a store use one in a Redis of their own instead of the embedded
 * one. */
void vec_use_redis(void);
void vec_done_redis(void);

/* A member by name. If it is absent, null or of a wrong type, the result is the fallback. */
/* Fallback STR_NONE. */
struct str vec_str(struct vec *vec, const struct json *obj, const char *name);
int64_t vec_int(const struct json *obj, const char *name, int64_t fallback);
bool vec_bool(const struct json *obj, const char *name, bool fallback);
double vec_double(const struct json *obj, const char *name, double fallback);

/* `for (const struct json *e = vec_each(arr, &i); e; e = vec_each(arr, &i))`, with i starting at 0.
 * For an object it returns keys; the value is key + 1. */
struct vec_at {
    const struct json *value;
    uint32_t seen;
};
const struct json *vec_each(const struct json *parent, struct vec_at *at);

/* Compares a step's `expect`, if it has one, with the product's result; both are JSON. */
void vec_check(struct vec *vec, const struct json *step, struct str got);

/* Equal as the format defines: integers exactly, other numbers to 1e-9, null = absent. */
bool vec_same(const struct json *a, const struct json *b);
/* Without spaces, for reports. */
struct str vec_compact(const struct json *value, struct arena *arena);

#endif
