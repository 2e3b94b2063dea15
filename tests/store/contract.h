/* The contract that every store backend must keep, as tests that use only the store's interface. */
#ifndef TESTS_STORE_CONTRACT_H
#define TESTS_STORE_CONTRACT_H

#include "rig.h"

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* How a backend is created and destroyed for one test. `open` may be called again after `close`,
 * and then finds the data that was stored. */
struct contract_backend {
    const char *name;
    void (*init)(struct rig *rig);
    void (*open)(struct rig *rig);
    void (*close)(struct rig *rig);
    void (*done)(struct rig *rig);
    bool has_needs; /* supports demands, resources and limits; else those tests are left out */
};

/* Runs the whole contract and returns the number of failures. */
int contract_run(const struct contract_backend *backend);
/* The backend under test. */
extern const struct contract_backend *contract_backend;

/* A story is a table of steps (contract_stories.c). */
extern const size_t contract_story_count;
const char *contract_story_name(size_t at);
void contract_story(void **state);
/* Tests that do not fit into a table (contract_jobs.c, contract_keys.c, contract_lanes.c,
 * contract_nodes.c, contract_breaker.c, contract_needs.c, contract_limits.c). */
extern const struct CMUnitTest contract_jobs[];
extern const size_t contract_jobs_count;
extern const struct CMUnitTest contract_keys[];
extern const size_t contract_keys_count;
extern const struct CMUnitTest contract_lanes[];
extern const size_t contract_lanes_count;
extern const struct CMUnitTest contract_nodes[];
extern const size_t contract_nodes_count;
extern const struct CMUnitTest contract_breaker[];
extern const size_t contract_breaker_count;
extern const struct CMUnitTest contract_needs[];
extern const size_t contract_needs_count;
extern const struct CMUnitTest contract_limits[];
extern const size_t contract_limits_count;

/* Fixtures: a rig with nodes n1 and n2 (max 2, ready) and n3 (max 1, draining). */
int contract_setup(void **state);
int contract_teardown(void **state);
#define CONTRACT(name)                                                                             \
    {                                                                                              \
#name, name, contract_setup, contract_teardown, NULL                                       \
    }

void contract_reopen(struct rig *rig);                            /* closes and opens the store */
struct store_op contract_reserve(uint64_t job, const char *node); /* attempt 1 of a new job */

#endif
