/* Metrics, policies and the claim cycle. What is online, what it uses and which rows there are is
 * handed in. */
#include "model/claim.h"

#include <assert.h>
#include <math.h>

#include "model/selector.h"

static bool count_metric(const struct claim_node *node, const struct claim_context *context,
                         double *ret_value)
{
    (void)context;
    *ret_value = (double)node->deployments;
    return true;
}

static bool usage_metric(const struct claim_node *node, const struct claim_context *context,
                         double *ret_value)
{
    if (!node->usage_known)
        return false;
    *ret_value = score_resource(&node->usage, &context->weights);
    return isfinite(*ret_value);
}

/* Both as shares of what the machine has, so that 1 GB weighs more on a small one. */
static bool fraction_metric(const struct claim_node *node, const struct claim_context *context,
                            double *ret_value)
{
    if (!node->usage_known || !(node->memory_total_mb > 0))
        return false;
    *ret_value = score_shares(node->usage.cpu_percent / 100,
                              node->usage.memory_mb / node->memory_total_mb, &context->weights);
    return isfinite(*ret_value);
}

static const struct claim_provider by_count = {.key = "deployment_count", .evaluate = count_metric};
static const struct claim_provider by_usage = {.key = "resource_usage", .evaluate = usage_metric};
static const struct claim_provider by_fraction = {.key = "resource_fraction",
                                                  .evaluate = fraction_metric};

static const struct claim_policy policies[] = {
    {.name = "deployment_count",
     .help = "the node with the fewest deployments",
     .provider = &by_count},
    {.name = "resource_usage",
     .help = "the lowest weighted CPU percent and memory in GB",
     .provider = &by_usage,
     .wants_usage = true},
    {.name = "resource_fraction",
     .help = "the lowest weighted shares of its CPU and memory",
     .provider = &by_fraction,
     .wants_usage = true},
    {.name = "none", .help = "nothing is claimed here"},
};

const struct claim_policy *const claim_policy_default = &policies[0];

const struct claim_policy *claim_policy_by_name(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(policies); i++)
        if (str_is(name, policies[i].name))
            return &policies[i];
    return NULL;
}

const struct claim_policy *claim_policy_at(size_t index)
{
    return index < COUNT_OF(policies) ? &policies[index] : NULL;
}

static const char *const skip_names[CLAIM_SKIP_COUNT] = {
    [CLAIM_GO] = "claim",
    [CLAIM_NO_ACTIVE_NODES] = "no_active_nodes",
    [CLAIM_POLICY_DISABLED] = "policy_disabled",
    [CLAIM_NOT_ELIGIBLE] = "not_eligible",
    [CLAIM_NO_CANDIDATE] = "no_candidate",
    [CLAIM_CONFLICT] = "claim_conflict",
    [CLAIM_NOT_READY] = "view_not_ready",
    [CLAIM_MASS_LOSS] = "mass_loss",
    [CLAIM_LEVEL] = "level",
    [CLAIM_DRAINING] = "draining",
    [CLAIM_FULL] = "full",
};

const char *claim_skip_name(enum claim_skip skip)
{
    assert(skip < CLAIM_SKIP_COUNT);
    return skip_names[skip];
}

void claim_snapshots(const struct claim_policy *policy, const struct claim_node *nodes,
                     size_t count, const struct claim_context *context,
                     struct claim_snapshot *ret_snapshots)
{
    const struct claim_provider *provider = policy->provider;

    assert(provider);
    for (size_t i = 0; i < count; i++) {
        struct claim_snapshot *snapshot = &ret_snapshots[i];

        *snapshot = (struct claim_snapshot){.key = provider->key};
        snapshot->known = provider->evaluate(&nodes[i], context, &snapshot->value);
        if (!snapshot->known)
            snapshot->value = 0;
    }
}

size_t claim_eligible(const struct claim_snapshot *snapshots, size_t count, bool unknown_zero,
                      bool *ret_eligible)
{
    double least = INFINITY;
    bool any_known = false;
    size_t eligible = 0;

    for (size_t i = 0; i < count; i++) {
        if (!snapshots[i].known && !unknown_zero)
            continue;
        any_known = true;
        least = fmin(least, snapshots[i].known ? snapshots[i].value : 0);
    }
    for (size_t i = 0; i < count; i++) {
        double value = snapshots[i].known ? snapshots[i].value : 0;

        ret_eligible[i] = any_known ? (snapshots[i].known || unknown_zero) && value == least : true;
        eligible += ret_eligible[i];
    }
    assert(count == 0 || eligible > 0);
    return eligible;
}

bool claim_mass_loss(size_t online, size_t lost)
{
    return lost > online;
}

/* Is `me` among the least loaded of the nodes that `selector` matches and that would claim? */
static bool eligible_for(const struct claim_view *view, struct str selector, struct arena *arena)
{
    struct claim_node *nodes = arena_array(arena, struct claim_node, view->node_count + 1);
    struct claim_snapshot *snapshots =
        arena_array(arena, struct claim_snapshot, view->node_count + 1);
    bool *eligible = arena_array(arena, bool, view->node_count + 1);
    size_t count = 0, me = SIZE_MAX;

    for (size_t i = 0; i < view->node_count; i++) {
        const struct claim_node *node = &view->nodes[i];

        if (!node->takes || (selector.len && !selector_match(selector, node->labels)))
            continue;
        if (str_eq(node->address, view->me))
            me = count;
        nodes[count++] = *node;
    }
    if (me == SIZE_MAX)
        return false;
    claim_snapshots(view->policy, nodes, count, &view->context, snapshots);
    claim_eligible(snapshots, count, view->context.unknown_zero, eligible);
    return eligible[me];
}

/* The rows whose selector this node matches. */
static size_t rows_for_me(const struct claim_view *view, struct deploy_row *ret_rows)
{
    const struct json *labels = NULL;
    size_t count = 0;

    for (size_t i = 0; i < view->node_count; i++)
        if (str_eq(view->nodes[i].address, view->me))
            labels = view->nodes[i].labels;
    for (size_t i = 0; i < view->row_count; i++)
        if (!view->rows[i].selector.len || selector_match(view->rows[i].selector, labels))
            ret_rows[count++] = view->rows[i];
    return count;
}

/* Selectors repeat, so the last answer is kept. */
static size_t keep_eligible(const struct claim_view *view, bool everywhere,
                            const struct deploy_row **order, size_t count, struct arena *arena)
{
    struct str selector = STR("");
    bool eligible = everywhere;
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (!str_eq(order[i]->selector, selector)) {
            selector = order[i]->selector;
            eligible = selector.len ? eligible_for(view, selector, arena) : everywhere;
        }
        if (eligible)
            order[kept++] = order[i];
    }
    return kept;
}

void claim_plan(const struct claim_view *view, struct arena *arena, struct claim_plan *ret_plan)
{
    struct claim_plan plan = {.skip = CLAIM_GO};

    if (view->node_count == 0) {
        plan.skip = CLAIM_NO_ACTIVE_NODES;
    } else if (!view->policy->provider) {
        plan.skip = CLAIM_POLICY_DISABLED;
    } else {
        struct deploy_row *rows = arena_array(arena, struct deploy_row, view->row_count + 1);
        size_t row_count = rows_for_me(view, rows);
        bool everywhere = eligible_for(view, STR(""), arena);

        plan.order = arena_array(arena, const struct deploy_row *, row_count + 1);
        size_t count = deploy_candidates(rows, row_count, view->lost, view->mode, plan.order);
        plan.count = keep_eligible(view, everywhere, plan.order, count, arena);
        if (plan.count == 0)
            plan.skip = count > 0 || !everywhere ? CLAIM_NOT_ELIGIBLE : CLAIM_NO_CANDIDATE;
    }
    assert((plan.skip == CLAIM_GO) == (plan.count > 0));
    *ret_plan = plan;
}
