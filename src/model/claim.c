/* Metrics, policies and the claim cycle; the resource score; and the meaning of the environment
 * variables NODE_UNIT_* (vectors claim_config). Which nodes are online, their usage and the
 * existing rows are passed in. */
#include "model/claim.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "base/str.h"
#include "model/deploy.h"
#include "model/namespace.h"
#include "model/selector.h"

enum {
    CLAIM_INTERVAL_MS = 5000,
    CLAIM_DEAL_MAX = 2000, /* rows dealt in one cycle; the rest wait for the next one */
};

/* --- the resource score --- */

#define MB_PER_GB 1024.0

const struct score_weights score_defaults = {.cpu = 0.5, .memory = 0.5};

/* A weighted sum of two figures. */
static double score_shares(double cpu, double memory, const struct score_weights *weights)
{
    double sum = weights->cpu + weights->memory;

    if (!(sum > 0)) { /* also when it is NaN */
        weights = &score_defaults;
        sum = 1;
    }
    return cpu * (weights->cpu / sum) + memory * (weights->memory / sum);
}

double score_resource(const struct score_usage *usage, const struct score_weights *weights)
{
    return score_shares(usage->cpu_percent, usage->memory_mb / MB_PER_GB, weights);
}

/* --- the claim cycle --- */

static bool count_metric(const struct claim_node *node, const struct claim_context *context,
                         double *ret_value)
{
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

/* Both as shares of the machine's capacity, so that 1 GB weighs more on a small machine. */
static bool fraction_metric(const struct claim_node *node, const struct claim_context *context,
                            double *ret_value)
{
    if (!node->usage_known || !(node->memory_total_mb > 0))
        return false;
    *ret_value = score_shares(node->usage.cpu_percent / 100,
                              node->usage.memory_mb / node->memory_total_mb, &context->weights);
    return isfinite(*ret_value);
}

static const struct claim_policy policies[] = {
    {.name = "deployment_count",
     .help = "the node with the fewest deployments",
     .evaluate = count_metric,
     .step = 1},
    {.name = "resource_usage",
     .help = "the lowest weighted CPU percent and memory in GB",
     .evaluate = usage_metric,
     .wants_usage = true},
    {.name = "resource_fraction",
     .help = "the lowest weighted shares of its CPU and memory",
     .evaluate = fraction_metric,
     .wants_usage = true},
    {.name = "none", .help = "nothing is claimed here"},
};

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

const char *claim_policy_name(size_t index)
{
    return index < COUNT_OF(policies) ? policies[index].name : NULL;
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
    [CLAIM_NOT_ALLOWED] = "not_allowed",
    [CLAIM_NO_ROOM] = "no_room",
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
    assert(policy->evaluate);
    for (size_t i = 0; i < count; i++) {
        struct claim_snapshot *snapshot = &ret_snapshots[i];

        snapshot->known = policy->evaluate(&nodes[i], context, &snapshot->value);
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

/* --- which nodes may take a row --- */

static bool matches(const struct claim_node *node, const struct deploy_row *row)
{
    struct selector_facts facts = {.id = node->id, .labels = node->labels};

    return (!row->selector.len || selector_match(row->selector, &facts)) &&
           namespace_in(node->namespaces, row->id) && (node->indexed || deploy_index(row->id) == 0);
}

/* Do both match the same nodes? */
static bool match_alike(const struct deploy_row *a, const struct deploy_row *b)
{
    return str_eq(a->selector, b->selector) && str_eq(namespace_of(a->id), namespace_of(b->id)) &&
           (deploy_index(a->id) > 0) == (deploy_index(b->id) > 0);
}

static bool has_room(const struct resources *room, const struct deploy_row *row)
{
    uint64_t gpus;

    return !row->demand || (room && resources_fit(room, row->demand, &gpus, NULL));
}

bool claim_elsewhere(const struct claim_view *view, const struct deploy_row *row)
{
    for (size_t i = 0; i < view->node_count; i++) {
        const struct claim_node *node = &view->nodes[i];

        if (node->takes && !str_eq(node->id, view->me) && matches(node, row) &&
            !str_in(node->id, row->failed_on, row->failed_count) && has_room(node->room, row))
            return true;
    }
    return false;
}

/* How many copies of each multi-copy deployment every node has, including those dealt to it in this
 * cycle. */
struct spread {
    struct names names; /* of the deployments */
    int *counts;        /* for each deployment, one count per node of the view */
    size_t node_count;
};

/* How many copies of a row's deployment each node has; NULL: the deployment has one copy. */
static int *spread_counts(const struct spread *spread, const struct deploy_row *row)
{
    size_t name = spread->counts ? names_find(&spread->names, deploy_name(row->id)) : NAMES_NONE;

    return name == NAMES_NONE ? NULL : &spread->counts[name * spread->node_count];
}

/* Which nodes a row may go to, by their index in the view: those with room for it. Nodes on which
 * it failed count only when there are no others: it must run somewhere. Of the rest, those with the
 * fewest copies of its deployment: a node gets a second copy only when all have one. Selectors
 * repeat, so the last answer is kept. */
struct takers {
    const struct claim_view *view;
    struct spread spread;
    int *have; /* copies of the last row's deployment on each node; NULL: it has one */
    const struct deploy_row *last; /* the row this answer is for; NULL: none */
    bool *fit;                     /* they would claim, and it matches them, */
    bool *can;                     /* and there is room for it, */
    bool *chosen;                  /* and it did not fail there, if any such nodes exist */
    struct resources *room; /* of each node, less what was dealt; NULL: no row needed any yet */
    size_t count;           /* of the chosen */
};

static struct takers takers_of(const struct claim_view *view, struct arena *arena)
{
    struct takers takers = {.view = view,
                            .spread = {.node_count = view->node_count},
                            .fit = arena_array(arena, bool, view->node_count + 1),
                            .can = arena_array(arena, bool, view->node_count + 1),
                            .chosen = arena_array(arena, bool, view->node_count + 1)};
    struct spread *spread = &takers.spread;
    struct names nodes;
    size_t indexed = 0;

    for (size_t i = 0; i < view->row_count; i++)
        indexed += deploy_index(view->rows[i].id) > 0;
    names_init(&spread->names, indexed, arena);
    if (indexed == 0)
        return takers;
    for (size_t i = 0; i < view->row_count; i++)
        if (deploy_index(view->rows[i].id) > 0)
            names_add(&spread->names, deploy_name(view->rows[i].id));
    names_init(&nodes, view->node_count, arena);
    for (size_t i = 0; i < view->node_count; i++)
        names_add(&nodes, view->nodes[i].id);
    spread->counts = arena_array(arena, int, spread->names.count * view->node_count + 1);
    for (size_t i = 0; i < view->row_count; i++) {
        const struct deploy_row *row = &view->rows[i];
        size_t name = names_find(&spread->names, deploy_name(row->id));
        size_t node = row->address.len ? names_find(&nodes, row->address) : NAMES_NONE;

        if (name != NAMES_NONE && node != NAMES_NONE && row->enabled)
            spread->counts[name * view->node_count + node]++;
    }
    return takers;
}

static void take_room(struct takers *takers, size_t node, const struct deploy_row *row)
{
    uint64_t gpus;

    if (row->demand && resources_fit(&takers->room[node], row->demand, &gpus, NULL))
        resources_take(&takers->room[node], row->demand, gpus);
}

static void takers_find(struct takers *takers, const struct deploy_row *row, struct arena *arena)
{
    const struct claim_view *view = takers->view;
    size_t fresh = 0, fit = 0;
    int fewest = INT_MAX;

    if (row->demand && !takers->room) { /* most rows need nothing: allocated on first need */
        takers->room = arena_array(arena, struct resources, view->node_count + 1);
        for (size_t i = 0; i < view->node_count; i++)
            if (view->nodes[i].room)
                takers->room[i] = *view->nodes[i].room;
    }
    if (!takers->last || !match_alike(row, takers->last))
        for (size_t i = 0; i < view->node_count; i++)
            takers->fit[i] = view->nodes[i].takes && matches(&view->nodes[i], row);
    takers->last = row;
    for (size_t i = 0; i < view->node_count; i++) {
        takers->can[i] = takers->fit[i] && (!row->demand || has_room(&takers->room[i], row));
        takers->chosen[i] =
            takers->can[i] && !str_in(view->nodes[i].id, row->failed_on, row->failed_count);
        fresh += takers->chosen[i];
        fit += takers->can[i];
    }
    for (size_t i = 0; fresh == 0 && i < view->node_count; i++)
        takers->chosen[i] = takers->can[i];
    takers->count = fresh > 0 ? fresh : fit;
    takers->have = spread_counts(&takers->spread, row);
    for (size_t i = 0; takers->have && i < view->node_count; i++)
        if (takers->chosen[i] && takers->have[i] < fewest)
            fewest = takers->have[i];
    for (size_t i = 0; takers->have && i < view->node_count; i++)
        if (takers->chosen[i] && takers->have[i] > fewest) {
            takers->chosen[i] = false;
            takers->count--;
        }
}

static size_t place_of_me(const struct claim_view *view)
{
    for (size_t i = 0; i < view->node_count; i++)
        if (str_eq(view->nodes[i].id, view->me))
            return i;
    return NAMES_NONE;
}

/* --- one by one --- */

/* Is `me` among the least loaded of the nodes a row may go to? */
static bool am_least(const struct takers *takers, struct arena *arena)
{
    const struct claim_view *view = takers->view;
    struct claim_node *nodes = arena_array(arena, struct claim_node, view->node_count + 1);
    struct claim_snapshot *snapshots =
        arena_array(arena, struct claim_snapshot, view->node_count + 1);
    bool *eligible = arena_array(arena, bool, view->node_count + 1);
    size_t count = 0, me = place_of_me(view), own = 0;

    if (me == NAMES_NONE || !takers->chosen[me])
        return false;
    for (size_t i = 0; i < view->node_count; i++)
        if (takers->chosen[i]) {
            own = i == me ? count : own;
            nodes[count++] = view->nodes[i];
        }
    claim_snapshots(view->policy, nodes, count, &view->context, snapshots);
    claim_eligible(snapshots, count, view->context.unknown_zero, eligible);
    return eligible[own];
}

/* The rows whose selector this node matches and for which it has room: rows it cannot take must not
 * come before those it can. *ret_short: some were left out for lack of room. */
static size_t rows_for_me(const struct claim_view *view, struct deploy_row *ret_rows,
                          bool *ret_short)
{
    size_t me = place_of_me(view), count = 0;
    const struct claim_node nobody = {0}, *node = me == NAMES_NONE ? &nobody : &view->nodes[me];

    *ret_short = false;
    for (size_t i = 0; i < view->row_count; i++) {
        const struct deploy_row *row = &view->rows[i];

        if (!matches(node, row))
            continue;
        if (str_eq(row->address, view->me) || has_room(node->room, row))
            ret_rows[count++] = *row;
        else if (row->type == DEPLOY_DEPLOYMENT &&
                 row->enabled && /* unowned, or owned by a lost node */
                 (!row->address.len || names_find(view->lost, row->address) != NAMES_NONE))
            *ret_short = true;
    }
    return count;
}

/* Rows that match the same nodes get the same answer; most have no selector, failures or needs. */
static size_t keep_eligible(const struct claim_view *view, const struct deploy_row **order,
                            size_t count, struct arena *arena)
{
    struct takers takers = takers_of(view, arena);
    const struct deploy_row *before = NULL;
    size_t me = place_of_me(view), kept = 0;
    bool eligible = false;

    for (size_t i = 0; i < count; i++) {
        if (!before || before->failed_count || order[i]->failed_count || takers.have ||
            before->demand || order[i]->demand || spread_counts(&takers.spread, order[i]) ||
            !match_alike(order[i], before)) {
            takers_find(&takers, order[i], arena);
            eligible = am_least(&takers, arena);
        }
        before = order[i];
        if (!eligible)
            continue;
        order[kept++] = order[i];
        take_room(&takers, me, before);
        if (takers.have)
            takers.have[me]++;
    }
    return kept;
}

/* Reasons to claim nothing, whatever the rows are. */
static enum claim_skip idle(const struct claim_view *view)
{
    return view->node_count == 0     ? CLAIM_NO_ACTIVE_NODES
           : !view->policy->evaluate ? CLAIM_POLICY_DISABLED
                                     : CLAIM_GO;
}

void claim_plan(const struct claim_view *view, struct arena *arena, struct claim_plan *ret_plan)
{
    struct claim_plan plan = {.skip = idle(view)};

    if (plan.skip == CLAIM_GO) {
        struct deploy_row *rows = arena_array(arena, struct deploy_row, view->row_count + 1);
        bool lacks;
        size_t row_count = rows_for_me(view, rows, &lacks), count;

        plan.order = arena_array(arena, const struct deploy_row *, row_count + 1);
        count = deploy_candidates(rows, row_count, view->lost, view->mode, plan.order);
        plan.count = keep_eligible(view, plan.order, count, arena);
        if (plan.count == 0 && lacks) {
            plan.skip = CLAIM_NO_ROOM;
        } else if (plan.count == 0 && count > 0) {
            plan.skip = CLAIM_NOT_ELIGIBLE;
        } else if (plan.count == 0) { /* no rows: would one be ours if it existed? */
            struct takers takers = takers_of(view, arena);

            takers_find(&takers, &(struct deploy_row){.selector = STR("")}, arena);
            plan.skip = am_least(&takers, arena) ? CLAIM_NO_CANDIDATE : CLAIM_NOT_ELIGIBLE;
        }
    }
    assert((plan.skip == CLAIM_GO) == (plan.count > 0));
    *ret_plan = plan;
}

/* --- a share --- */

/* Gives each row to the least loaded node that may take it, and counts it there. */
static void deal(const struct claim_view *view, struct arena *arena, struct claim_plan *plan)
{
    struct takers takers = takers_of(view, arena);
    struct claim_snapshot *loads = arena_array(arena, struct claim_snapshot, view->node_count);
    size_t me = place_of_me(view), count;
    struct names nobody;
    bool lacks = false;

    /* Rows of lost nodes come first, then unowned ones. */
    count = deploy_candidates(view->rows, view->row_count, view->lost, view->mode, plan->order);
    if (count > 0 && plan->order[0]->address.len) {
        names_init(&nobody, 0, arena);
        count += deploy_candidates(view->rows, view->row_count, &nobody, view->mode,
                                   plan->order + count);
    }
    claim_snapshots(view->policy, view->nodes, view->node_count, &view->context, loads);
    plan->count = 0;
    for (size_t i = 0; i < count && i < CLAIM_DEAL_MAX; i++) {
        size_t least = NAMES_NONE;

        takers_find(&takers, plan->order[i], arena);
        lacks = lacks || (me != NAMES_NONE && takers.fit[me] && !takers.can[me]);
        for (size_t n = 0; n < view->node_count; n++)
            if (takers.chosen[n] && (least == NAMES_NONE || loads[n].value < loads[least].value ||
                                     (loads[n].value == loads[least].value &&
                                      str_cmp(view->nodes[n].id, view->nodes[least].id) < 0)))
                least = n;
        if (least == NAMES_NONE)
            continue;
        loads[least].value += view->policy->step;
        take_room(&takers, least, plan->order[i]);
        if (takers.have)
            takers.have[least]++;
        if (least == me)
            plan->order[plan->count++] = plan->order[i];
    }
    plan->skip = plan->count > 0 ? CLAIM_GO
                 : lacks         ? CLAIM_NO_ROOM
                 : count > 0     ? CLAIM_NOT_ELIGIBLE
                                 : CLAIM_NO_CANDIDATE;
}

void claim_share(const struct claim_view *view, struct arena *arena, struct claim_plan *ret_plan)
{
    struct claim_plan plan = {.skip = idle(view)};
    size_t takers = 0;

    if (plan.skip == CLAIM_GO && view->policy->step > 0) {
        plan.order = arena_array(arena, const struct deploy_row *, view->row_count + 1);
        deal(view, arena, &plan);
    } else if (plan.skip == CLAIM_GO) {
        claim_plan(view, arena, &plan);
        for (size_t i = 0; i < view->node_count; i++)
            takers += view->nodes[i].takes;
        if (plan.count > 0)
            plan.count = (plan.count + takers - 1) / takers;
    }
    assert((plan.skip == CLAIM_GO) == (plan.count > 0));
    *ret_plan = plan;
}

/* --- configuration --- */

enum { NUMBER_MAX = 64, NAME_MAX_BYTES = 32 };

/* Reads the whole text; surrounding spaces are allowed. NAN: not a number. */
static double number(struct str text)
{
    char copy[NUMBER_MAX];
    char *end;
    double value;

    text = str_trim(text);
    if (!text.len || !str_copy(text, copy, sizeof copy))
        return NAN;
    value = strtod(copy, &end);
    return *end ? NAN : value;
}

static double weight(struct str text, double fallback)
{
    double value = number(text);

    return isfinite(value) && value >= 0 ? value : fallback;
}

static const struct claim_policy *policy(struct str text)
{
    char name[NAME_MAX_BYTES];
    const struct claim_policy *found = NULL;

    if (str_copy(text, name, sizeof name)) {
        for (char *c = name; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        found = claim_policy_by_name(str_of(name));
    }
    return found ? found : &policies[0];
}

void claim_config_read(const struct claim_env *env, struct claim_config *ret_config)
{
    double interval_ms = number(env->interval_ms);

    *ret_config = (struct claim_config){
        .policy = policy(env->policy),
        .interval_ms = isfinite(interval_ms) && interval_ms > 0 ? interval_ms : CLAIM_INTERVAL_MS,
        .weights = {.cpu = weight(env->cpu_weight, score_defaults.cpu),
                    .memory = weight(env->memory_weight, score_defaults.memory)},
    };
}
