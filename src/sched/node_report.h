/* What a node reports about itself: a registration, or a heartbeat that may leave fields out. Reads
 * the body, decides cheaply whether it contains anything new, and builds the immutable facts from
 * it. */
#ifndef SCHED_NODE_REPORT_H
#define SCHED_NODE_REPORT_H

#include "base/schema.h"
#include "model/node.h"
#include "sched/snapshot.h"

enum {
    NODE_REPORT_LANGS_MAX = 256,
    NODE_REPORT_PAIRS_MAX = 4096,
    NODE_REPORT_TYPES_MAX = 64,
    NODE_REPORT_RUNS_MAX = 4096,
    NODE_REPORT_SLOTS_MAX = 1000000, /* of one node: sums of all nodes fit */
};

struct node_report {
    struct str node_id;
    int health; /* enum node_health; NODE_HEALTH_NONE: not sent */
    const struct json *semantic_langs;
    const struct json *nmt_pairs;
    const struct json *tts_langs;
    const struct json *capability_by_type;
    const struct json *allowed_types;
    const struct json *labels;
    const struct json *tags;                        /* only changes; null removes a tag */
    int64_t max_concurrent_jobs;                    /* FIELD_OFF: not sent */
    struct str endpoint, agent_version, name, role; /* at == NULL: not sent */
    int64_t reserved_slots, priority;               /* FIELD_OFF: not sent */
    int64_t max; /* what it would run right now; FIELD_OFF: max_concurrent_jobs */
    int level;   /* enum level; -1: not sent */
    const struct json *usage;
    const struct json *claim;
    const struct json *loaded;
    struct strs loaded_names; /* the same, parsed */
    const struct json *current_load;
    const struct json *running_jobs;
    const struct json *resources; /* what it has; */
    const struct json *free;      /* and of that: what is free now, and what its jobs use */
    const struct json *ours;
    int64_t taking; /* jobs it has received and not started: their ACK may be on its way */
    bool registers; /* it contains enough to register an unknown node, apart from the rules */
    const struct json *namespaces; /* whose work it takes, by the rules; NULL: all */
};

struct node_report_load {
    int32_t cpu_pm, gpu_pm, mem_pm; /* 1/1000 of full use; -1: not sent */
};

extern const struct schema node_report_schema;
/* who: the node, if the connection identifies it; at == NULL: the body must name it. Whatever
 * `rules` fix for the node is put into every report as if the node had sent it; NULL: no rules. */
enum err node_report_read(const struct json *body, struct str who, const struct node_rules *rules,
                          struct arena *arena, struct node_report *ret_report, struct problem *why);
/* True when a field that was sent differs from what was last stored for the node. */
bool node_report_is_news(const struct node_report *report, const struct node *node);
void node_report_remember(const struct node_report *report, struct node *node);
/* Builds the facts: fields that were sent, and the others from `before` (NULL: the defaults). */
enum err node_report_facts(const struct node_report *report, const struct facts *before,
                           struct facts **ret_facts, struct problem *why);
/* Turns a stored record back into facts; fails only on a record we did not write. The rules may be
 * newer than the record. */
enum err node_report_stored(struct str facts_json, const struct node_rules *rules,
                            struct facts **ret_facts, struct problem *why);
enum err node_report_load(const struct node_report *report, struct node_report_load *ret_load,
                          struct problem *why);
struct store_run;
/* The list of running jobs; count 0 and runs NULL when it was not sent. */
enum err node_report_runs(const struct node_report *report, struct arena *arena,
                          struct store_run **ret_runs, size_t *ret_count, struct problem *why);

#endif
