/* selection_order, random_sample, dispatch_outcome. */
#include "vec.h"

#include "model/node.h"
#include "model/policy.h"
#include "model/warm.h"

enum { HEARTBEAT_MS = 5000, SAMPLE_N_MAX = 1 << 24, SAMPLE_ROUNDS = 50 };

/* How many of the names that the job prefers are loaded; -1: it prefers none. */
static int32_t warm_of(struct vec *vec, const struct json *value)
{
    struct strs prefers, loaded;
    int32_t warm = 0;

    if (!warm_names(json_get(vec->in, "prefers"), WARM_PREFERS_MAX, vec->arena, &prefers) ||
        !warm_names(json_get(value, "loaded"), WARM_LOADED_MAX, vec->arena, &loaded) ||
        !prefers.count)
        return -1;
    for (size_t i = 0; i < prefers.count; i++)
        for (size_t l = 0; l < loaded.count; l++)
            warm += str_eq(prefers.at[i], loaded.at[l]);
    return warm;
}

static struct policy_candidate read_candidate(struct vec *vec, const struct json *value)
{
    return (struct policy_candidate){
        .node = (void *)value,
        .health = node_health_by_name(vec_str(vec, value, "health")),
        .load = (int32_t)(vec_int(value, "running", 0) + vec_int(value, "reserved", 0)),
        .max = (int32_t)vec_int(value, "max", 0),
        .score = (int16_t)vec_int(value, "score", 0),
        .withheld = (int32_t)vec_int(value, "reserved_slots", 0),
        .route_position = (int32_t)vec_int(value, "rank", 0),
        .warm = warm_of(vec, value),
        .heartbeat_ms = vec_int(value, "last_heartbeat_ms", INT64_MIN),
    };
}

bool area_selection_order(struct vec *vec)
{
    const struct json *list = json_get(vec->in, "candidates");
    const struct json *prefers = json_get(vec->in, "prefers");
    struct str name = vec_str(vec, vec->in, "policy");
    const struct policy *policy;
    struct policy_rules rules = {
        .now_ms = vec_int(vec->in, "now_ms", 0),
        .stale_ms = vec_int(vec->in, "stale_ms", POLICY_STALE_OFF),
        .heartbeat_interval_ms =
            vec->seed ? 1 : vec_int(vec->in, "heartbeat_interval_ms", HEARTBEAT_MS),
    };
    struct policy_candidate *candidates;
    struct vec_at at = {0};
    size_t count = 0, index = 0;

    while ((policy = policy_at(index)) &&
           !str_is(name.at ? name : STR("least_loaded"), policy->name))
        index++;
    rules.prefers = json_type(prefers) == JSON_ARR && prefers->count > 0;
    if (!policy || json_type(list) != JSON_ARR || rules.heartbeat_interval_ms < 1)
        return false;
    candidates = arena_array(vec->arena, struct policy_candidate, list->count + 1);
    for (const struct json *value; (value = vec_each(list, &at));)
        candidates[count++] = read_candidate(vec, value);
    count = policy_rank(policy, candidates, count, &rules);
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "order");
    jsonw_arr(vec->w);
    for (size_t i = 0; i < count; i++)
        jsonw_str(vec->w, vec_str(vec, candidates[i].node, "id"));
    jsonw_end_arr(vec->w);
    jsonw_end_obj(vec->w);
    return true;
}

/* All are members, and none occurs twice. */
static bool sample_valid(const uint32_t *numbers, size_t count, uint32_t n, uint8_t *seen)
{
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] >= n || seen[numbers[i]])
            return false;
        seen[numbers[i]] = 1;
    }
    for (size_t i = 0; i < count; i++)
        seen[numbers[i]] = 0;
    return true;
}

bool area_random_sample(struct vec *vec)
{
    int64_t n = vec_int(vec->in, "n", -1);
    int64_t k = vec_int(vec->in, "k", -1);
    uint32_t *numbers;
    uint8_t *seen;
    size_t size = 0;
    bool valid = true;

    if (n < 0 || n > SAMPLE_N_MAX || k < 0 || k > UINT32_MAX)
        return false;
    numbers = arena_array(vec->arena, uint32_t, (size_t)(k < n ? k : n) + 1);
    seen = arena_array(vec->arena, uint8_t, (size_t)n + 1);
    for (uint64_t round = 0; round < SAMPLE_ROUNDS && valid; round++) {
        struct rnd rnd;

        rnd_seed(&rnd, round);
        size = policy_sample((uint32_t)n, (uint32_t)k, &rnd, numbers);
        valid = sample_valid(numbers, size, (uint32_t)n, seen);
    }
    jsonw_obj(vec->w);
    jsonw_kint(vec->w, "size", valid ? (int64_t)size : -1);
    jsonw_kbool(vec->w, "all_members", valid && size == (size_t)n);
    jsonw_end_obj(vec->w);
    return true;
}

struct dispatch {
    struct vec *vec;
    const struct json *nodes;
    struct outcome outcome;
    struct str placed_on;
    struct str *released;
    size_t released_count;
};

/* Reserves, then sends; a failed send gives the reservation back. An unknown node is not ready. */
static bool try_node(struct dispatch *dispatch, struct str id)
{
    const struct json *node = json_get(dispatch->nodes, arena_cstr(dispatch->vec->arena, id));

    if (!json_str_is(json_get(node, "reserve"), "OK"))
        return false;
    if (vec_bool(node, "send", false)) {
        dispatch->placed_on = id;
        outcome_placed(&dispatch->outcome);
        return true;
    }
    dispatch->released[dispatch->released_count++] = id;
    return false;
}

static void walk(struct dispatch *dispatch, const struct json *pool, struct str preferred)
{
    struct vec_at at = {0};

    for (const struct json *member; (member = vec_each(pool, &at));) {
        struct str id = json_str(member, dispatch->vec->arena);

        if (!str_eq(id, preferred) && try_node(dispatch, id))
            return;
    }
    outcome_exhausted(&dispatch->outcome);
}

static size_t count_members(struct vec *vec, const struct json *pool, struct str id)
{
    struct vec_at at = {0};
    size_t count = 0;

    for (const struct json *member; (member = vec_each(pool, &at));)
        count += str_eq(json_str(member, vec->arena), id);
    return count;
}

static void write_outcome(struct dispatch *dispatch)
{
    struct jsonw *w = dispatch->vec->w;
    enum err err = dispatch->outcome.err;

    jsonw_obj(w);
    jsonw_kstr(w, "node", dispatch->placed_on);
    jsonw_kstr(w, "error", err == ERR_OK ? STR_NONE : str_of(err_name(err)));
    jsonw_key(w, "released");
    jsonw_arr(w);
    for (size_t i = 0; i < dispatch->released_count; i++)
        jsonw_str(w, dispatch->released[i]);
    jsonw_end_arr(w);
    jsonw_end_obj(w);
}

bool area_dispatch_outcome(struct vec *vec)
{
    const struct json *pool = json_get(vec->in, "pool");
    struct str preferred = vec_str(vec, vec->in, "preferred");
    size_t size = json_type(pool) == JSON_ARR ? pool->count : 0;
    size_t own = preferred.at ? count_members(vec, pool, preferred) : 0;
    struct dispatch dispatch = {.vec = vec, .nodes = json_get(vec->in, "nodes")};
    struct outcome_start start = {
        .store_up = vec_bool(vec->in, "store_up", true),
        .preferred_given = preferred.at != NULL,
        .preferred_in_pool = own > 0,
        .strict = vec_bool(vec->in, "strict", false),
        .pool_count = size,
    };

    dispatch.released = arena_array(vec->arena, struct str, size + 1);
    outcome_begin(&dispatch.outcome, &start);
    if (dispatch.outcome.phase == OUTCOME_PREFERRED && !try_node(&dispatch, preferred))
        outcome_preferred_failed(&dispatch.outcome, size - own);
    if (dispatch.outcome.phase == OUTCOME_WALK)
        walk(&dispatch, pool, preferred);
    write_outcome(&dispatch);
    return true;
}
