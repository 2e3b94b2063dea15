/* Which nodes may claim, and which rows: the metrics, the policies over them, and one cycle of the
 * claim loop. To add a metric or a policy, add a row. Pure. */
#ifndef MODEL_CLAIM_H
#define MODEL_CLAIM_H

#include "base/json.h"
#include "base/str.h"
#include "model/deploy.h"
#include "model/resources.h"

/* The resource score of the claim policy resource_usage: smaller is better. Pure. */

/* One node's usage as reported by NodeUnit/InspectResourceUsage. */
struct score_usage {
    double cpu_percent; /* of the node's total capacity; above 100 is legal */
    double memory_mb;
};

struct score_weights {
    double cpu;
    double memory;
};

extern const struct score_weights score_defaults; /* 0.5, 0.5 */

/* Weighted sum of cpu_percent and GB. The weights are divided by their sum; if that is not
 * positive, the defaults are used. */
double score_resource(const struct score_usage *usage, const struct score_weights *weights);

/* An online node, as one cycle sees it. */
struct claim_node {
    struct str id;
    const struct json *labels;     /* for selectors; NULL: not known */
    const struct json *namespaces; /* it takes only deployments of these; NULL: of all */
    bool indexed; /* it supports copies with an index; agents without that support get none */
    bool takes;   /* below danger, neither draining nor full: it would claim */
    bool usage_known;
    struct score_usage usage;
    double memory_total_mb; /* 0: unknown */
    int64_t deployments;    /* enabled deployments it owns, from deploy_counts */
    /* What can still be assigned there, as far as is known: usable resources less those promised.
     * NULL: unknown, and nothing that needs resources fits. */
    const struct resources *room;
};

struct claim_snapshot { /* ClaimMetricSnapshot; smaller is better */
    double value;
    bool known;
};

struct claim_context { /* ClaimMetricContext, beyond the nodes' own fields */
    struct score_weights weights;
    /* An unknown metric counts as 0, so an unreachable node is preferred. Otherwise a node with an
     * unknown metric is not eligible while any node's is known. */
    bool unknown_zero;
};

struct claim_policy {
    const char *name;
    const char *help;
    /* The metric of a node; false: unknown. NULL: no node is eligible and nothing is claimed. */
    bool (*evaluate)(const struct claim_node *node, const struct claim_context *context,
                     double *ret_value);
    double step;      /* what one more deployment adds to it; 0: cannot be predicted */
    bool wants_usage; /* the nodes' usage must be requested */
};

const struct claim_policy *claim_policy_by_name(struct str name); /* NULL when unknown */
const struct claim_policy *claim_policy_at(size_t index);         /* NULL after the last */
const char *claim_policy_name(size_t index); /* likewise: the values of a setting */

/* buildSnapshots: one for each node. */
void claim_snapshots(const struct claim_policy *policy, const struct claim_node *nodes,
                     size_t count, const struct claim_context *context,
                     struct claim_snapshot *ret_snapshots);
/* pickEligible: the nodes with the lowest value. ret_eligible has room for `count`; returns how
 * many. */
size_t claim_eligible(const struct claim_snapshot *snapshots, size_t count, bool unknown_zero,
                      bool *ret_eligible);

/* If more than half of all nodes disappear at once without a goodbye, a broken network or host is
 * likelier than that many broken machines: their rows are not claimed until an operator confirms it
 * or they return. Unowned rows are not affected. */
bool claim_mass_loss(size_t online, size_t lost);

enum claim_skip {
    CLAIM_GO,
    CLAIM_NO_ACTIVE_NODES,
    CLAIM_POLICY_DISABLED,
    CLAIM_NOT_ELIGIBLE,
    CLAIM_NO_CANDIDATE,
    CLAIM_CONFLICT,    /* another node claimed it first; reported by the server */
    CLAIM_NOT_READY,   /* no full list yet, or still warming up; set by the loop */
    CLAIM_MASS_LOSS,   /* see claim_mass_loss */
    CLAIM_LEVEL,       /* the machine is in danger */
    CLAIM_DRAINING,    /* an operator's order */
    CLAIM_FULL,        /* deployments_max */
    CLAIM_NOT_ALLOWED, /* allow_deployments */
    CLAIM_NO_ROOM,     /* the available rows need more than this node has left */
    CLAIM_SKIP_COUNT
};

const char *claim_skip_name(enum claim_skip skip); /* "no_active_nodes"; CLAIM_GO is "claim" */

struct claim_view {
    struct str me;
    const struct claim_policy *policy;
    struct claim_context context;
    enum deploy_mode mode;
    const struct claim_node *nodes; /* online, in list order; each id once */
    size_t node_count;
    const struct deploy_row *rows;
    size_t row_count;
    const struct names *lost; /* whose rows may be taken */
};

/* The plan for this cycle: claim nothing, with the reason, or claim these rows in this order. */
struct claim_plan {
    enum claim_skip skip;
    const struct deploy_row **order;
    size_t count;
};

/* One by one: a node among the least loaded may take any row, one at a time, until its budget is
 * used up. A row with a selector is compared across the nodes it matches: the least loaded of
 * *those* takes it. Ignored are nodes that would not claim (`takes` false), since otherwise the
 * rows they leave would stay unclaimed; nodes without room for what the row needs; nodes on which
 * it failed lately, while there are others; and nodes with more copies of the same deployment than
 * others. */
void claim_plan(const struct claim_view *view, struct arena *arena, struct claim_plan *ret_plan);
/* This node's share, all at once: the result that one by one would reach if every node took its
 * turn. All nodes with the same view compute the same deal, so they do not conflict. With a metric
 * that cannot be predicted, the least loaded get their part of the rows; then it must be measured
 * again. */
void claim_share(const struct claim_view *view, struct arena *arena, struct claim_plan *ret_plan);
/* Is there another node that would take the row, has room for it, and on which it did not fail
 * lately? */
bool claim_elsewhere(const struct claim_view *view, const struct deploy_row *row);

/* Environment variables; absent, empty or invalid ones give the default. */
struct claim_env {
    struct str policy;        /* NODE_UNIT_CLAIM_POLICY */
    struct str interval_ms;   /* NODE_UNIT_SCHEDULER_INTERVAL_MS */
    struct str cpu_weight;    /* NODE_UNIT_CPU_WEIGHT */
    struct str memory_weight; /* NODE_UNIT_MEMORY_WEIGHT */
};

struct claim_config {
    const struct claim_policy *policy;
    double interval_ms;
    struct score_weights weights;
};

void claim_config_read(const struct claim_env *env, struct claim_config *ret_config);

#endif
