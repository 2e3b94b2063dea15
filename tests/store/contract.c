/* Collects the tests of the contract and runs them on one backend. */
#include "contract.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

const struct contract_backend *contract_backend;

int contract_setup(void **state)
{
    struct rig *rig = mem_new(struct rig);

    contract_backend->init(rig);
    contract_backend->open(rig);
    *state = rig;
    return rig_node(rig, "n1", 2, NODE_READY) || rig_node(rig, "n2", 2, NODE_READY) ||
           rig_node(rig, "n3", 1, NODE_DRAINING);
}

int contract_teardown(void **state)
{
    struct rig *rig = *state;

    contract_backend->done(rig);
    free(rig);
    return 0;
}

void contract_reopen(struct rig *rig)
{
    contract_backend->close(rig);
    contract_backend->open(rig);
}

struct store_op contract_reserve(uint64_t job, const char *node)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    op.u.put.spec = STR("{\"type\":\"f2f\",\"session_id\":\"s9\"}");
    op.u.put.max_attempts = 2;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0].node = str_of(node);
    op.u.put.candidates[0].hash = str_hash(str_of(node));
    return op;
}

/* A story's test gets the story's index as its initial state, before the rig exists. */
static int story_setup(void **state)
{
    size_t at = (size_t)(uintptr_t)*state;

    if (contract_setup(state))
        return 1;
    ((struct rig *)*state)->story = at;
    return 0;
}

static size_t add_all(struct CMUnitTest *to, const struct CMUnitTest *from, size_t count)
{
    memcpy(to, from, count * sizeof *from);
    return count;
}

int contract_run(const struct contract_backend *backend)
{
    size_t total = contract_story_count + contract_jobs_count + contract_keys_count +
                   contract_lanes_count + contract_nodes_count + contract_breaker_count +
                   contract_needs_count + contract_limits_count;
    struct CMUnitTest *tests = mem_array(struct CMUnitTest, total);
    size_t count = 0;
    int failed;

    contract_backend = backend;
    for (; count < contract_story_count; count++)
        tests[count] = (struct CMUnitTest){.name = contract_story_name(count),
                                           .test_func = contract_story,
                                           .setup_func = story_setup,
                                           .teardown_func = contract_teardown,
                                           .initial_state = (void *)(uintptr_t)count};
    count += add_all(tests + count, contract_jobs, contract_jobs_count);
    count += add_all(tests + count, contract_keys, contract_keys_count);
    count += add_all(tests + count, contract_lanes, contract_lanes_count);
    count += add_all(tests + count, contract_nodes, contract_nodes_count);
    count += add_all(tests + count, contract_breaker, contract_breaker_count);
    if (backend->has_needs) {
        count += add_all(tests + count, contract_needs, contract_needs_count);
        count += add_all(tests + count, contract_limits, contract_limits_count);
    }
    failed = _cmocka_run_group_tests(backend->name, tests, count, NULL, NULL);
    free(tests);
    return failed;
}
