/* What would become of a job now. The rules are those of a dispatch: candidates.c's judgement of a
 * member, the store's of its room and its breaker, the policy's order, the outcome's answer. */
#include <assert.h>
#include <string.h>

#include "sched/candidates.h"
#include "sched/explain.h"

/* All nodes, judged. The best are kept in order while the others pass by. */
struct survey {
    struct dispatch *dispatch;
    const struct store_breaker *breakers;
    size_t breaker_count;
    struct policy_rules rules;
    struct explain_node *nodes; /* of the snapshot, in its order */
    struct policy_candidate best[POLICY_SAMPLE_MAX];
    size_t best_count;
    bool again_ok;
    bool last; /* all of the pool are shut: one of them gets a probe at a time */
};

static bool is_shut(const struct survey *survey, struct str node)
{
    struct str type = survey->dispatch->spec.type;

    for (size_t i = 0; i < survey->breaker_count; i++) {
        const struct store_breaker *item = &survey->breakers[i];

        if (str_eq(item->node, node) && str_eq(item->type, type))
            return (item->breaker.state == BREAKER_OPEN && !survey->last) ||
                   (item->breaker.state == BREAKER_HALF_OPEN && item->breaker.probe_until_ms);
    }
    return false;
}

/* As the reserve in the store would: capacity, room, breaker. */
static enum dispatch_why ask(const struct survey *survey, const struct policy_candidate *candidate)
{
    const struct node *node = candidate->node;

    if (candidate->max <= 0)
        return WHY_NO_CAPACITY;
    if (candidate->load >= candidate->max - candidate->spare)
        return WHY_FULL;
    return is_shut(survey, node->id) ? WHY_BREAKER : WHY_COUNT;
}

/* Half of the room is for newcomers: when it is full, the better half stays. */
static void enter(struct survey *survey, const struct policy_candidate *candidate)
{
    survey->best[survey->best_count++] = *candidate;
    if (survey->best_count < COUNT_OF(survey->best))
        return;
    policy_rank(survey->dispatch->loop->sched->policy, survey->best, survey->best_count,
                &survey->rules);
    survey->best_count = COUNT_OF(survey->best) / 2;
}

static unsigned judge(struct survey *survey, const struct snap_node *member, bool is_member,
                      struct policy_candidate *ret_candidate)
{
    enum dispatch_why why =
        candidates_judge(survey->dispatch, member, &survey->rules, survey->again_ok, ret_candidate);

    if (!is_member)
        return EXPLAIN_NOT_CAPABLE;
    return why == WHY_COUNT ? ask(survey, ret_candidate) : why;
}

/* Who is left is ranked, and all but the first stand behind it. */
static struct node *decide(struct survey *survey)
{
    const struct policy *policy = survey->dispatch->loop->sched->policy;

    survey->best_count = policy_rank(policy, survey->best, survey->best_count, &survey->rules);
    return survey->best_count ? survey->best[0].node : NULL;
}

static bool is_member_of(const struct dispatch *dispatch, const struct snap_pool *pool,
                         const struct snap_node *node)
{
    return snapshot_is_member(dispatch->loop->snapshot, pool, node,
                              candidates_wants(&dispatch->spec));
}

/* Judges every node; the preferred one alone is a candidate as long as it may be. */
static struct node *look_around(struct survey *survey, const struct snap_pool *pool,
                                const struct snap_node *preferred)
{
    struct dispatch *dispatch = survey->dispatch;
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct snap_node *node;
    struct node *only = NULL;
    struct snap_at at = {0};

    for (size_t i = 0; (node = snapshot_next(snapshot, &at)); i++) {
        struct policy_candidate candidate;
        unsigned why = judge(survey, node, is_member_of(dispatch, pool, node), &candidate);

        survey->nodes[i] = (struct explain_node){
            .look = candidates_look(&candidate, WHY_FULL, survey->rules.now_ms),
            .hash = node->node->hash};
        survey->nodes[i].look.why = (uint8_t)why;
        if (why != WHY_COUNT)
            continue;
        survey->nodes[i].look.why = EXPLAIN_BEHIND;
        enter(survey, &candidate);
        if (node == preferred)
            only = node->node;
    }
    return only ? only : decide(survey);
}

/* The answer a client would get. */
static enum err answer(struct survey *survey, const struct snap_pool *pool,
                       const struct snap_node *preferred, const struct node *chosen)
{
    struct dispatch *dispatch = survey->dispatch;
    const struct spec *spec = &dispatch->spec;
    bool prefers = spec->options.preferred_node_id.at && dispatch->attempt == 1;
    struct outcome_start start = {.store_up = true,
                                  .preferred_given = prefers,
                                  .preferred_in_pool = prefers &&
                                                       is_member_of(dispatch, pool, preferred) &&
                                                       candidates_fits(dispatch, preferred),
                                  .strict = spec->options.strict,
                                  .pool_count = dispatch->members};

    outcome_begin(&dispatch->outcome, &start);
    if (dispatch->outcome.phase == OUTCOME_PREFERRED && chosen != preferred->node)
        outcome_preferred_failed(&dispatch->outcome, dispatch->members - 1);
    if (dispatch->outcome.phase == OUTCOME_REFUSED)
        return dispatch->outcome.err;
    if (chosen)
        return ERR_OK;
    return candidates_nobody_fits(dispatch) ? ERR_NO_CAPABLE_NODE : ERR_ALL_FULL;
}

/* Everybody's reason once it is known who gets it. */
static void settle(struct survey *survey, struct explain *explain, const struct node *chosen)
{
    struct dispatch *dispatch = survey->dispatch;
    enum err err = dispatch->err;
    bool preferred = dispatch->outcome.preferred_given &&
                     (err == ERR_PREFERRED_NOT_CAPABLE || err == ERR_PREFERRED_UNAVAILABLE ||
                      dispatch->outcome.phase == OUTCOME_PREFERRED);

    for (uint32_t i = 0; i < explain->nodes; i++) {
        struct dispatch_look *look = &survey->nodes[i].look;

        if (look->why == EXPLAIN_BEHIND && !err && look->node == chosen)
            look->why = EXPLAIN_CHOSEN;
        else if (look->why == EXPLAIN_BEHIND && preferred)
            look->why = EXPLAIN_NOT_PREFERRED;
        else if (look->why == EXPLAIN_BEHIND && err)
            look->why = EXPLAIN_NOT_ASKED;
        explain->counts[look->why]++;
    }
}

/* The chosen one, those behind it in their order, then reason by reason. */
static void list(struct survey *survey, struct explain *explain, size_t max)
{
    static const uint8_t order[] = {EXPLAIN_CHOSEN, EXPLAIN_BEHIND, EXPLAIN_NOT_PREFERRED,
                                    EXPLAIN_NOT_ASKED};
    const struct snapshot *snapshot = survey->dispatch->loop->snapshot;
    uint8_t reasons[EXPLAIN_COUNT];
    size_t count = sizeof order;

    memcpy(reasons, order, sizeof order);
    for (uint8_t i = 0; i < WHY_COUNT; i++)
        reasons[count++] = i;
    reasons[count++] = EXPLAIN_NOT_CAPABLE;
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < snapshot->count && explain->node_count < max; i++)
            if (survey->nodes[i].look.why == reasons[r])
                explain->list[explain->node_count++] = survey->nodes[i];
}

static void count_whys(struct dispatch *dispatch, const struct survey *survey)
{
    for (uint32_t i = 0; i < dispatch->nodes; i++)
        if (survey->nodes[i].look.why < WHY_COUNT)
            dispatch->whys[survey->nodes[i].look.why]++;
}

const struct explain *explain_now(struct dispatch *dispatch, const struct store_breaker *breakers,
                                  size_t breaker_count, size_t max)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct snap_pool *pool = candidates_pool(dispatch);
    struct survey *survey = arena_new(dispatch->arena, struct survey);
    const struct snap_node *preferred =
        snapshot_node(snapshot, dispatch->spec.options.preferred_node_id);

    assert(snapshot && !dispatch->done);
    max = max < snapshot->count ? max : snapshot->count;
    struct explain *explain =
        arena_alloc(dispatch->arena, sizeof *explain + max * sizeof *explain->list);
    *survey = (struct survey){
        .dispatch = dispatch,
        .breakers = breakers,
        .breaker_count = breaker_count,
        .rules = candidates_rules(dispatch),
        .nodes = arena_array(dispatch->arena, struct explain_node, snapshot->count + 1)};
    candidates_read_history(dispatch);
    survey->again_ok = candidates_again_ok(dispatch);
    dispatch->nodes = (uint32_t)snapshot->count;
    dispatch->members = pool ? pool->counts[candidates_wants(&dispatch->spec)] : 0;
    struct node *chosen = look_around(survey, pool, preferred);
    count_whys(dispatch, survey);
    if (!chosen && candidates_pool_shut(dispatch)) {
        survey->last = true;
        memset(dispatch->whys, 0, sizeof dispatch->whys);
        chosen = look_around(survey, pool, preferred);
        count_whys(dispatch, survey);
    }
    dispatch->err = answer(survey, pool, preferred, chosen);
    if (dispatch->err)
        dispatch_refuse(dispatch, dispatch->err);
    *explain = (struct explain){.size = sizeof *explain,
                                .job = dispatch->job,
                                .at_ms = *dispatch->loop->wall_ms,
                                .version = snapshot->version,
                                .attempt = dispatch->attempt,
                                .err = dispatch->err,
                                .nodes = dispatch->nodes,
                                .members = dispatch->members,
                                .wants = (uint8_t)candidates_wants(&dispatch->spec),
                                .f2f = dispatch->spec.f2f};
    settle(survey, explain, chosen);
    list(survey, explain, max);
    dispatch->node = dispatch->err ? NULL : chosen;
    return explain;
}
