/* Changes of a batch as bytes: they read as they were written. Bytes that are cut off or have a
 * flipped bit are refused or read as something else, but never out of bounds. */
#include "contract.h"

#include "base/clock.h"
#include "base/mem.h"
#include "store/change.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 20000, TEXT_MAX = 300 };

static struct str text(struct rnd *rnd, struct arena *arena, size_t max, bool may_be_none)
{
    size_t len = rnd_below(rnd, (uint32_t)max + 1);
    char *at = arena_alloc(arena, len + 1);

    if (may_be_none && rnd_below(rnd, 3) == 0)
        return STR_NONE;
    for (size_t i = 0; i < len; i++)
        at[i] = (char)(1 + rnd_below(rnd, 255));
    return (struct str){.at = at, .len = len};
}

/* Small, large and none at all, and the extremes of the type. */
static int64_t number(struct rnd *rnd)
{
    static const int64_t ends[] = {0, 1, -1, INT64_MAX, INT64_MIN, LEASE_FOREVER};

    if (rnd_below(rnd, 4) == 0)
        return ends[rnd_below(rnd, COUNT_OF(ends))];
    return (int64_t)((uint64_t)rnd_below(rnd, UINT32_MAX) << rnd_below(rnd, 32));
}

static void fill_job(struct rnd *rnd, struct arena *arena, struct change_job *job)
{
    struct store_head *head = &job->head;

    head->id = 1 + rnd_below(rnd, UINT32_MAX);
    head->state = (enum job_state)rnd_below(rnd, JOB_STATE_COUNT);
    head->lease = (enum lease_kind)rnd_below(rnd, LEASE_RUNNING + 1);
    head->callback = (int)rnd_below(rnd, CALLBACK_GIVEN_UP + 1);
    head->attempt = (int)rnd_below(rnd, JOB_ATTEMPTS_MAX + 1);
    head->max_attempts = (int)rnd_below(rnd, JOB_ATTEMPTS_MAX + 1);
    head->epoch = rnd_below(rnd, UINT32_MAX);
    head->owner = rnd_below(rnd, UINT32_MAX);
    head->lane = (uint64_t)number(rnd);
    head->priority = (int)rnd_below(rnd, 10);
    str_copy(text(rnd, arena, NODE_ID_MAX, false), head->node, sizeof head->node);
    str_copy(text(rnd, arena, POOL_LANG_MAX, false), head->type, sizeof head->type);
    str_copy(text(rnd, arena, STORE_REASON_MAX, false), head->reason, sizeof head->reason);
    head->created_ms = number(rnd);
    head->updated_ms = number(rnd);
    head->dispatched_ms = number(rnd);
    head->acked_ms = number(rnd);
    head->ended_ms = number(rnd);
    head->due_ms = number(rnd);
    head->timeout_ms = number(rnd);
    job->run_until_ms = number(rnd);
    job->answered = rnd_below(rnd, 2);
    job->parts = rnd_below(rnd, CHANGE_PARTS + 1);
    job->attempts = text(rnd, arena, TEXT_MAX, true);
    if (job->parts & CHANGE_NEW) {
        job->spec = text(rnd, arena, TEXT_MAX, false);
        job->idem = text(rnd, arena, TEXT_MAX, true);
        job->fingerprint = (uint64_t)number(rnd);
    }
    if (job->parts & CHANGE_RESULT)
        job->result = text(rnd, arena, TEXT_MAX, true);
    if (job->parts & CHANGE_FIRST_NODE)
        job->first_node = text(rnd, arena, NODE_ID_MAX, true);
    if (job->parts & CHANGE_GPUS)
        head->gpus = (uint64_t)number(rnd);
    if (job->parts & CHANGE_NEW && job->parts & CHANGE_DEMAND)
        job->demand = STR("2 1 0 cpu=1500,mem_mb=6000 tenant:acme,api");
}

static struct limit some_limit(struct rnd *rnd)
{
    struct limit limit = limit_none;

    limit.weight = 1 + (int32_t)rnd_below(rnd, LIMIT_WEIGHT_MAX);
    if (rnd_below(rnd, 2))
        limit.concurrency = (int32_t)rnd_below(rnd, 100);
    if (rnd_below(rnd, 2)) {
        limit.rate = 1 + (int32_t)rnd_below(rnd, LIMIT_RATE_MAX);
        limit.rate_ms = 1 + rnd_below(rnd, LIMIT_WINDOW_MS_MAX);
    }
    if (rnd_below(rnd, 2))
        limit.queue = (int32_t)rnd_below(rnd, 100000);
    return limit;
}

static struct str name(struct rnd *rnd, struct arena *arena, size_t max)
{
    struct str text_of = text(rnd, arena, max, false);

    return text_of.len ? text_of : STR("x");
}

static void fill(struct rnd *rnd, struct arena *arena, struct change *change)
{
    *change = (struct change){.kind = (enum change_kind)(1 + rnd_below(rnd, CHANGE_LIMIT_KEY_DEL))};
    if (change->kind == CHANGE_NODE_RESOURCES)
        change->kind = CHANGE_NODE;
    switch (change->kind) {
    case CHANGE_JOB:
        fill_job(rnd, arena, &change->u.job);
        break;
    case CHANGE_NODE:
    case CHANGE_NODE_RESOURCES:
        change->u.node = (struct store_node){
            .counts = {.health = (enum node_health)rnd_below(rnd, NODE_HEALTH_COUNT),
                       .max = (int32_t)rnd_below(rnd, 1000),
                       .epoch = rnd_below(rnd, UINT32_MAX)},
            .own = (enum node_health)rnd_below(rnd, NODE_HEALTH_COUNT),
            .admin = (enum node_admin)rnd_below(rnd, NODE_ADMIN_DRAINING + 1),
            .admin_reason = text(rnd, arena, TEXT_MAX, true),
            .registered_ms = number(rnd),
            .version = number(rnd),
            .facts = text(rnd, arena, TEXT_MAX, true),
        };
        change->u.node.id = name(rnd, arena, NODE_ID_MAX);
        if (rnd_below(rnd, 2))
            change->u.node.resources = STR("cpu=8000/7500,licences=3/3 0=23034/20000");
        break;
    case CHANGE_NODE_DEL:
        change->u.node.id = name(rnd, arena, NODE_ID_MAX);
        break;
    case CHANGE_BREAKER:
        change->u.breaker.breaker.state = (enum breaker_state)rnd_below(rnd, BREAKER_STATE_COUNT);
        change->u.breaker.breaker.failures = (int32_t)rnd_below(rnd, 1000);
        change->u.breaker.breaker.opened_ms = number(rnd);
        change->u.breaker.probe_job = (uint64_t)number(rnd);
        __attribute__((fallthrough));
    case CHANGE_BREAKER_DEL:
        change->u.breaker.node = name(rnd, arena, NODE_ID_MAX);
        change->u.breaker.type = name(rnd, arena, POOL_LANG_MAX);
        break;
    case CHANGE_SESSION:
        change->u.session = (struct change_session){.id = text(rnd, arena, TEXT_MAX, false),
                                                    .pool = text(rnd, arena, TEXT_MAX, true),
                                                    .lang_pair = text(rnd, arena, TEXT_MAX, true),
                                                    .version = number(rnd),
                                                    .updated_ms = number(rnd)};
        break;
    case CHANGE_LIMIT:
        change->u.limit.limit = some_limit(rnd);
        __attribute__((fallthrough));
    case CHANGE_LIMIT_DEL:
        change->u.limit.pattern = name(rnd, arena, DEMAND_FULL_KEY_MAX + 1);
        break;
    case CHANGE_LIMIT_KEY:
        change->u.limit_key.hold_until_ms = number(rnd);
        change->u.limit_key.reason = text(rnd, arena, LIMIT_REASON_MAX, true);
        change->u.limit_key.starts = text(rnd, arena, TEXT_MAX, true);
        __attribute__((fallthrough));
    case CHANGE_LIMIT_KEY_DEL:
        change->u.limit_key.key = name(rnd, arena, DEMAND_FULL_KEY_MAX);
        break;
    case CHANGE_META:
        change->u.meta = (struct change_meta){(uint64_t)number(rnd), number(rnd)};
        break;
    }
}

/* Writing a change that was read gives the same bytes: each change has one encoding. */
static void test_round_trip(void **state)
{
    struct arena arena = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 1);
    for (int i = 0; i < ROUNDS; i++) {
        struct buf bytes = {0}, again = {0};
        struct change change, read;
        struct str rest;
        size_t count = 1 + rnd_below(&rnd, 4);

        for (size_t k = 0; k < count; k++) {
            fill(&rnd, &arena, &change);
            change_write(&bytes, &change);
        }
        rest = buf_view(&bytes);
        while (rest.len) {
            assert_true(change_read(&rest, &read));
            change_write(&again, &read);
        }
        assert_true(str_eq(buf_view(&bytes), buf_view(&again)));
        assert_int_equal(read.kind, change.kind);
        if (change.kind == CHANGE_JOB)
            assert_memory_equal(&read.u.job.head, &change.u.job.head, sizeof change.u.job.head);
        if (change.kind == CHANGE_JOB)
            assert_true(str_eq(read.u.job.demand, change.u.job.demand));
        if (change.kind == CHANGE_NODE)
            assert_true(str_eq(read.u.node.resources, change.u.node.resources));
        if (change.kind == CHANGE_LIMIT)
            assert_memory_equal(&read.u.limit.limit, &change.u.limit.limit,
                                sizeof change.u.limit.limit);
        buf_free(&bytes);
        buf_free(&again);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

/* The bytes get a block of their own, so that a sanitiser catches any access beyond them. */
static void read_all(struct str bytes)
{
    char *copy = mem_alloc(bytes.len + 1);
    struct str rest = {.at = copy, .len = bytes.len};
    struct change change;

    memcpy(copy, bytes.at, bytes.len);
    copy = mem_resize(copy, bytes.len ? bytes.len : 1);
    rest.at = copy;
    while (rest.len && change_read(&rest, &change))
        if (change.kind == CHANGE_JOB)
            assert_true(change.u.job.head.id && change.u.job.head.state < JOB_STATE_COUNT &&
                        strlen(change.u.job.head.node) <= NODE_ID_MAX);
    free(copy);
}

static void test_damage(void **state)
{
    struct arena arena = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 2);
    for (int i = 0; i < ROUNDS; i++) {
        struct buf bytes = {0};
        struct change change;

        fill(&rnd, &arena, &change);
        change_write(&bytes, &change);
        for (uint32_t n = rnd_below(&rnd, 4); n > 0; n--)
            bytes.at[rnd_below(&rnd, (uint32_t)bytes.len)] ^= (char)(1 << rnd_below(&rnd, 8));
        read_all((struct str){.at = bytes.at, .len = rnd_below(&rnd, (uint32_t)bytes.len + 1)});
        read_all(buf_view(&bytes));
        buf_free(&bytes);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

/* The later of two changes wins, but what only the first one has is kept. */
static void test_merge(void **state)
{
    struct change_job first = {.head = {.id = 7, .state = JOB_NEW},
                               .parts = CHANGE_NEW | CHANGE_FIRST_NODE,
                               .spec = STR("{}"),
                               .demand = STR("2 0 0  "),
                               .idem = STR("key"),
                               .first_node = STR("n1"),
                               .fingerprint = 9};
    struct change_job end = {.head = {.id = 7, .state = JOB_DONE},
                             .parts = CHANGE_RESULT,
                             .attempts = STR("[1]"),
                             .result = STR("5")};
    struct change_job callback = {.head = {.id = 7, .state = JOB_DONE, .callback = CALLBACK_SENT},
                                  .parts = CHANGE_KEY_DROPPED,
                                  .attempts = STR("[1]")};

    change_job_merge(&first, &end);
    change_job_merge(&first, &callback);
    assert_int_equal(first.parts,
                     CHANGE_NEW | CHANGE_FIRST_NODE | CHANGE_RESULT | CHANGE_KEY_DROPPED);
    assert_int_equal(first.head.state, JOB_DONE);
    assert_int_equal(first.head.callback, CALLBACK_SENT);
    assert_true(str_is(first.demand, "2 0 0  "));
    assert_true(str_is(first.spec, "{}") && str_is(first.idem, "key"));
    assert_true(str_is(first.first_node, "n1") && str_is(first.result, "5"));
    assert_int_equal(first.fingerprint, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_merge),
    };

    return cmocka_run_group_tests_name("store/change", tests, NULL, NULL);
}
