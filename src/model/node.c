/* A node's health as text, as the server's watch sees it and as a reserve sees it; its score; and
 * the configuration's rows about nodes. The caller tracks heartbeats and their contents. */
#include "model/node.h"

#include <assert.h>

/* --- health and score --- */

static const char *const health_names[NODE_HEALTH_COUNT] = {
    [NODE_HEALTH_NONE] = "unknown", [NODE_REGISTERING] = "registering", [NODE_READY] = "ready",
    [NODE_DEGRADED] = "degraded",   [NODE_DRAINING] = "draining",       [NODE_OFFLINE] = "offline",
};

const char *node_health_name(enum node_health health)
{
    assert(health >= NODE_HEALTH_NONE && health < NODE_HEALTH_COUNT);
    return health_names[health];
}

enum node_health node_health_by_name(struct str name)
{
    for (int i = NODE_HEALTH_NONE + 1; i < NODE_HEALTH_COUNT; i++)
        if (str_is(name, health_names[i]))
            return (enum node_health)i;
    return NODE_HEALTH_NONE;
}

const struct node_watch_rules node_watch_defaults = {
    .health_check_count = 1,
    .bad_count_max = 3,
    .heartbeat_timeout_ms = 45000,
    .warmup_timeout_ms = 60000,
};

void node_watch_init(struct node_watch *watch, int64_t now_ms)
{
    *watch = (struct node_watch){
        .status = NODE_REGISTERING,
        .registered_ms = now_ms,
        .last_heartbeat_ms = now_ms,
    };
}

void node_watch_heartbeat(struct node_watch *watch, const struct node_watch_rules *rules, bool ok,
                          int64_t now_ms)
{
    assert(rules->health_check_count >= 1 && rules->bad_count_max >= 1);
    /* A failed check is still a sign of life. Two loops may report out of order. */
    if (now_ms > watch->last_heartbeat_ms)
        watch->last_heartbeat_ms = now_ms;
    if (ok) {
        watch->bad_count = 0;
        switch (watch->status) {
        case NODE_REGISTERING:
            if (++watch->ok_count >= rules->health_check_count)
                watch->status = NODE_READY;
            break;
        case NODE_DEGRADED:
            watch->status = NODE_READY;
            break;
        case NODE_OFFLINE:
            /* Back from silence: it registers again, and this is its first good check. */
            node_watch_init(watch, now_ms);
            watch->ok_count = 1;
            break;
        default: /* ready stays ready; draining ignores checks */
            break;
        }
    } else {
        watch->ok_count = 0;
        if (watch->status == NODE_READY && ++watch->bad_count >= rules->bad_count_max)
            watch->status = NODE_DEGRADED;
    }
}

void node_watch_scan(struct node_watch *watch, const struct node_watch_rules *rules, int64_t now_ms)
{
    if (now_ms - watch->last_heartbeat_ms > rules->heartbeat_timeout_ms) {
        watch->status = NODE_OFFLINE;
        watch->ok_count = 0;
        watch->bad_count = 0;
    } else if (watch->status == NODE_REGISTERING &&
               now_ms - watch->registered_ms > rules->warmup_timeout_ms) {
        watch->status = NODE_DEGRADED;
        watch->ok_count = 0;
    }
}

enum node_health node_effective(enum node_health own, enum node_health watch, enum node_admin admin)
{
    if (own == NODE_HEALTH_NONE)
        return NODE_HEALTH_NONE;
    if (own == NODE_OFFLINE || watch == NODE_OFFLINE)
        return NODE_OFFLINE;
    if (admin != NODE_ADMIN_NONE)
        return NODE_DRAINING;
    if (own == NODE_READY && watch == NODE_DEGRADED)
        return NODE_DEGRADED;
    return own;
}

/* Weights, of 100 in all. */
enum { WEIGHT_CPU = 25, WEIGHT_GPU = 15, WEIGHT_MEM = 20, WEIGHT_FAIL = 25, WEIGHT_LATENCY = 15 };

__extension__ typedef __int128 wide; /* products of three scaled figures do not fit 64 bits */

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* floor(100 - 100 * lost / weights), with everything over one common denominator: no rounding
 * before the floor, so 0.1 + 0.2 traps cannot move the result. */
int node_score(const struct node_figures *in)
{
    bool gpu_known = in->gpu >= 0;
    int64_t weights = gpu_known ? 100 : 100 - WEIGHT_GPU;
    int64_t target = in->target > 0 ? in->target : 1;
    int64_t p95 = in->target > 0 ? clamp(in->p95, 0, target) : in->p95 > 0;
    int64_t use = WEIGHT_CPU * clamp(in->cpu, 0, in->scale) +
                  WEIGHT_MEM * clamp(in->mem, 0, in->scale) +
                  WEIGHT_FAIL * clamp(in->fail, 0, in->scale);

    assert(in->scale > 0);
    if (gpu_known)
        use += WEIGHT_GPU * clamp(in->gpu, 0, in->scale);

    wide whole = (wide)weights * in->scale * target;
    wide lost = (wide)use * target + (wide)WEIGHT_LATENCY * p95 * in->scale;
    assert(lost >= 0 && lost <= whole);
    return (int)((whole - lost) * 100 / whole);
}

bool node_close_evicts(uint64_t current_incarnation, uint64_t closing_incarnation)
{
    return current_incarnation == closing_incarnation;
}

/* --- rows of the configuration --- */

/* On a mismatch the last * takes one more character. */
static bool fits(struct str text, struct str pattern)
{
    size_t at = 0, next = 0, star = SIZE_MAX, from = 0;

    while (at < text.len) {
        if (next < pattern.len && pattern.at[next] == '*') {
            star = next++;
            from = at;
        } else if (next < pattern.len && pattern.at[next] == text.at[at]) {
            next++;
            at++;
        } else if (star != SIZE_MAX) {
            next = star + 1;
            at = ++from;
        } else {
            return false;
        }
    }
    while (next < pattern.len && pattern.at[next] == '*')
        next++;
    return next == pattern.len;
}

const struct json *node_rules_find(const struct node_rules *rules, struct str node_id)
{
    for (size_t i = 0; i < rules->count; i++)
        if (fits(node_id, rules->rows[i].pattern))
            return rules->rows[i].facts;
    return NULL;
}

const struct json *node_rules_get(const struct node_rules *rules, struct str node_id,
                                  const char *member)
{
    return json_get(node_rules_find(rules, node_id), member);
}
