/* The rules of an update, copy by copy. */
#include "model/rollout.h"

#include <assert.h>

static const char *const names[ROLLOUT_STATE_COUNT] = {
    [ROLLOUT_NONE] = "",
    [ROLLOUT_ROLLING] = "rolling",
    [ROLLOUT_BACK] = "rolling_back",
    [ROLLOUT_ROLLED_BACK] = "rolled_back",
    [ROLLOUT_STOPPED] = "stopped",
};

const char *rollout_state_name(enum rollout_state state)
{
    assert(state < ROLLOUT_STATE_COUNT);
    return names[state];
}

enum rollout_state rollout_state_by_name(struct str name)
{
    for (enum rollout_state state = ROLLOUT_NONE; state < ROLLOUT_STATE_COUNT; state++)
        if (str_is(name, names[state]))
            return state;
    return ROLLOUT_NONE;
}

/* A copy that fails a check is not lost yet: after a few failures it is restarted, and that counts
 * as failed. */
enum rollout_health rollout_health(struct str state, struct str healthy)
{
    static const char *const bad[] = {"backoff", "crash_loop", "refused", "failed"};

    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (str_is(state, bad[i]))
            return ROLLOUT_FAILED;
    return str_is(state, "finished") || (str_is(state, "running") && str_is(healthy, "true"))
               ? ROLLOUT_WELL
               : ROLLOUT_UNKNOWN;
}

/* It runs the wanted version and is healthy. */
static bool is_available(const struct rollout_copy *copy)
{
    return copy->owned && copy->runs == copy->wants && copy->health == ROLLOUT_WELL;
}

/* The first copy that failed with the new version; if none did, the first that is late with it. */
static void find_failed(const struct rollout_copy *copies, size_t count, int64_t to_version,
                        struct rollout_plan *plan)
{
    for (size_t i = 0; i < count; i++) {
        const struct rollout_copy *copy = &copies[i];

        if (copy->wants != to_version || is_available(copy))
            continue;
        if (copy->owned && copy->runs == to_version && copy->health == ROLLOUT_FAILED) {
            plan->failed = i;
            plan->late = false;
            return;
        }
        if (copy->late && plan->failed == ROLLOUT_NOBODY) {
            plan->failed = i;
            plan->late = true;
        }
    }
}

void rollout_plan(const struct rollout_copy *copies, size_t count,
                  const struct rollout_rules *rules, size_t *next, struct rollout_plan *ret_plan)
{
    struct rollout_plan plan = {.done = true, .failed = ROLLOUT_NOBODY, .next = next};
    int64_t to = rules->to_version, most = rules->max_unavailable;
    int64_t replaced = 0, unavailable = 0, available = 0; /* of the copies that nodes own */
    bool nobodys = false;                                 /* some unowned copies are left */

    assert(most >= 1 && to > 0);
    find_failed(copies, count, to, &plan);
    for (size_t i = 0; i < count; i++) {
        const struct rollout_copy *copy = &copies[i];
        bool has = copy->wants == to;

        nobodys = nobodys || (!copy->owned && !has);
        plan.done = plan.done && (!copy->owned || (has && is_available(copy)));
        available += is_available(copy);
        if (!copy->owned || is_available(copy))
            continue;
        unavailable++;
        replaced += has;
    }
    for (size_t i = 0; nobodys && (plan.done || rules->back) && i < count; i++)
        if (!copies[i].owned && copies[i].wants != to)
            plan.next[plan.count++] = i;
    plan.done = plan.done && !nobodys && available > 0;
    for (size_t i = 0; i < count && (replaced < most || rules->back); i++)
        if (copies[i].owned && copies[i].wants != to && !is_available(&copies[i])) {
            plan.next[plan.count++] = i;
            replaced++;
        }
    for (size_t i = 0; i < count && replaced < most && unavailable < most; i++)
        if (copies[i].wants != to && is_available(&copies[i])) {
            plan.next[plan.count++] = i;
            replaced++;
            unavailable++;
        }
    assert(plan.count <= count && !(plan.done && plan.count > 0));
    *ret_plan = plan;
}
