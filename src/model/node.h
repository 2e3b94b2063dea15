/* A node: its health, the server's watch on its heartbeats, its score. */
#ifndef MODEL_NODE_H
#define MODEL_NODE_H

#include "base/json.h"
#include "base/str.h"

enum { NODE_ID_MAX = 128 };

enum node_health {
    NODE_HEALTH_NONE, /* unknown value or no record: never selectable */
    NODE_REGISTERING,
    NODE_READY,
    NODE_DEGRADED,
    NODE_DRAINING,
    NODE_OFFLINE,
    NODE_HEALTH_COUNT
};

const char *node_health_name(enum node_health health); /* "ready"; NONE is "unknown" */
enum node_health node_health_by_name(struct str name); /* NODE_HEALTH_NONE when unknown */

/* The server's own view of a node's liveness (contract: vectors node_health_fsm). */
struct node_watch {
    enum node_health status;
    int ok_count;  /* consecutive, while registering */
    int bad_count; /* consecutive, while ready */
    int64_t registered_ms;
    int64_t last_heartbeat_ms;
};

struct node_watch_rules {
    int health_check_count;       /* default 1: a registration counts */
    int bad_count_max;            /* 3 */
    int64_t heartbeat_timeout_ms; /* 45000 */
    int64_t warmup_timeout_ms;    /* 60000 */
};

extern const struct node_watch_rules node_watch_defaults;

/* A registration: init, then node_watch_heartbeat(ok), since with the default rules it counts. A
 * failed check (ok false) is also a sign of life. */
void node_watch_init(struct node_watch *watch, int64_t now_ms);
void node_watch_heartbeat(struct node_watch *watch, const struct node_watch_rules *rules, bool ok,
                          int64_t now_ms);
void node_watch_scan(struct node_watch *watch, const struct node_watch_rules *rules,
                     int64_t now_ms);

/* What a reserve sees: the node's own health, the watch and the operator's decision combined.
 * Offline, from either side, comes first; an operator's cordon or drain shows as draining; a watch
 * that says degraded overrides a node that says ready; otherwise the node's own health counts at
 * once. */
enum node_admin { NODE_ADMIN_NONE, NODE_ADMIN_CORDONED, NODE_ADMIN_DRAINING };
enum node_health node_effective(enum node_health own, enum node_health watch,
                                enum node_admin admin);

/* health_score (vectors health_score): 0..100, higher is better. Inputs in 1/1000 of
 * full use; gpu < 0 = unknown (its weight is spread over the rest). Integer arithmetic. */
struct node_figures {
    int64_t cpu_pm;
    int64_t gpu_pm;
    int64_t mem_pm;
    int64_t fail_pm;
    int64_t p95_ms;
    int64_t target_ms;
};
int node_score(const struct node_figures *figures);
/* The same from the fractions 0..1 a heartbeat carries; gpu NAN = unknown. Exact for figures of up
 * to 15 decimals; what lies outside 0..1 is clamped. Without a target any latency is too long. */
int node_score_real(double cpu, double gpu, double mem, double fail_rate, double p95_ms,
                    double target_ms);

/* Member table rule (vectors membership_events): newest connection wins, a replaced socket's close
 * never evicts the new one; a gap in the sequence asks for the full list. */
bool node_close_evicts(uint64_t current_incarnation, uint64_t closing_incarnation);
bool node_seq_gap(uint64_t last_seq, uint64_t seq);

/* What the configuration says of nodes, whatever they say of themselves: rows of node ids and facts
 * (`nodes`). Pure, no allocation. */

enum { NODE_RULES_MAX = 1024 };

struct node_rule {
    struct str pattern;       /* of node ids; each * matches any text */
    const struct json *facts; /* an object with members of a registration, and `namespaces` */
};

struct node_rules {
    const struct node_rule *rows;
    size_t count;
    bool namespaces; /* some row keeps nodes for some of them */
};

/* The facts of the first row whose pattern the id fits; NULL: there is none. */
const struct json *node_rules_find(const struct node_rules *rules, struct str node_id);
/* Is this member of its registration fixed by the configuration? */
bool node_rules_fix(const struct node_rules *rules, struct str node_id, const char *member);
/* The namespaces whose work it takes, a list; NULL: all. A node cannot set this itself. */
const struct json *node_rules_namespaces(const struct node_rules *rules, struct str node_id);

#endif
