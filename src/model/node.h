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

/* health_score (vectors health_score): 0..100, higher is better. Exact integer arithmetic. Values
 * outside 0..scale are clamped; without a target any latency is too long. */
struct node_figures {
    int64_t scale;               /* full use */
    int64_t cpu, gpu, mem, fail; /* gpu < 0: unknown, its weight is spread over the rest */
    int64_t p95, target;         /* a latency and its target, in the same unit */
};
int node_score(const struct node_figures *in);

/* Member table rule (vectors membership_events): newest connection wins, a replaced socket's close
 * never evicts the new one. */
bool node_close_evicts(uint64_t current_incarnation, uint64_t closing_incarnation);

/* What the configuration says about nodes, overriding what they report: rows of node ids and facts
 * (`nodes`). Pure, no allocation. */

enum { NODE_RULES_MAX = 1024 };

struct node_rule {
    struct str pattern;       /* of node ids; each * matches any text */
    const struct json *facts; /* an object with members of a registration, and `namespaces` */
};

struct node_rules {
    const struct node_rule *rows;
    size_t count;
    bool namespaces; /* some row restricts nodes to certain namespaces */
};

/* The facts of the first row whose pattern matches the id; NULL: there is none. */
const struct json *node_rules_find(const struct node_rules *rules, struct str node_id);
/* The configured value of this member; NULL: none. "namespaces" lists those whose work the node
 * takes (NULL: all), which the node cannot set itself. */
const struct json *node_rules_get(const struct node_rules *rules, struct str node_id,
                                  const char *member);

#endif
