/* Counters, gauges and histograms in Prometheus text. One table; each thread counts in its own
 * memory (no shared cache line on the dispatch path), and a scrape adds up all threads. */
#ifndef BASE_METRICS_H
#define BASE_METRICS_H

#include "base/str.h"

/* id, type, name, label, help. A label like "layer,result" means two labels, whose values are also
 * given in one text: "l1,hit" is counted under layer="l1",result="hit". Histograms come first. A
 * GAUGE_MS is set in milliseconds and shown in seconds. A PARTED counter must not be shown to every
 * caller as a whole: metrics_render() skips it, and metrics_render_part() shows a selection. */
#define METRIC_ROWS(ROW)                                                                           \
    ROW(METRIC_DISPATCH_SECONDS, HISTOGRAM, "berth_dispatch_seconds", "outcome",                   \
        "Time from the request to its answer, by outcome")                                         \
    ROW(METRIC_CACHE_AGE, HISTOGRAM, "berth_cache_age_seconds", NULL,                              \
        "How old an answer about a session was")                                                   \
    ROW(METRIC_POOL_DELAY, HISTOGRAM, "berth_pool_consistency_delay_seconds", NULL,                \
        "From a membership change to its snapshot being live")                                     \
    ROW(METRIC_COMMIT_SECONDS, HISTOGRAM, "berth_store_commit_seconds", NULL,                      \
        "Writing a batch to the journal and making it durable (embedded store)")                   \
    ROW(METRIC_RESERVE, COUNTER, "berth_reserve_total", "result",                                  \
        "Candidates asked for a slot, by answer")                                                  \
    ROW(METRIC_DISPATCH, COUNTER, "berth_dispatch_total", "outcome",                               \
        "Dispatch requests, by outcome")                                                           \
    ROW(METRIC_DISPATCH_WARM, COUNTER, "berth_dispatch_warm_total", "result",                      \
        "Jobs that prefer something, placed where it is loaded or not")                            \
    ROW(METRIC_LIMITED, COUNTER, "berth_limited_total", "why",                                     \
        "Times a key kept a job from starting or from waiting, by bound")                          \
    ROW(METRIC_POOL_EMPTY, COUNTER, "berth_pool_empty_total", NULL,                                \
        "Dispatches that found no capable node")                                                   \
    ROW(METRIC_ACK_TIMEOUT, COUNTER, "berth_ack_timeout_total", NULL,                              \
        "Reservations that ran out before an ACK")                                                 \
    ROW(METRIC_ACK_LATE, COUNTER, "berth_ack_late_total", NULL, "ACKs that came too late")         \
    ROW(METRIC_NODE_OVERLOAD, COUNTER, "berth_node_overload_total", NULL,                          \
        "Jobs a node refused because it was full")                                                 \
    ROW(METRIC_LEASES, GAUGE, "berth_leases", "kind", "Leases that live, by kind")                 \
    ROW(METRIC_LEASE_EXPIRED, COUNTER, "berth_lease_expired_total", "kind",                        \
        "Leases that ran out, by kind")                                                            \
    ROW(METRIC_LEASE_LOST, COUNTER, "berth_lease_lost_total", NULL, "Running leases that ran out") \
    ROW(METRIC_LOST_LEASES, COUNTER, "berth_lost_lease_total", NULL,                               \
        "Leases a failover or an emptied store had lost, taken back from their nodes")             \
    ROW(METRIC_JOBS, COUNTER, "berth_jobs_total", "state", "Jobs that reached an end state")       \
    ROW(METRIC_NAMESPACE_JOBS, PARTED, "berth_namespace_jobs_total", "namespace,state",            \
        "Jobs that reached an end state, by namespace")                                            \
    ROW(METRIC_RETRIES, COUNTER, "berth_retries_total", NULL, "Second and later attempts")         \
    ROW(METRIC_KILLS, COUNTER, "berth_kills_total", "reason",                                      \
        "Runs that were ended from outside: emergency, timeout, oom")                              \
    ROW(METRIC_HEARTBEATS, COUNTER, "berth_heartbeats_total", NULL, "Heartbeats taken")            \
    ROW(METRIC_STORE_CALLS, COUNTER, "berth_store_calls_total", "result",                          \
        "Store calls, by result")                                                                  \
    ROW(METRIC_STORE_BATCHES, COUNTER, "berth_store_batches_total", NULL, "Batches the store ran") \
    ROW(METRIC_STORE_MODE, GAUGE, "berth_store_mode", NULL, "0 NORMAL, 1 L2_ONLY, 2 LOCAL_ONLY")   \
    ROW(METRIC_CACHE, COUNTER, "berth_cache_requests_total", "layer,result",                       \
        "Reads by layer: dispatches of the snapshot, and sessions")                                \
    ROW(METRIC_SNAPSHOT_AGE, GAUGE_MS, "berth_snapshot_age_seconds", NULL,                         \
        "Since the snapshot was last compared with the store")                                     \
    ROW(METRIC_VERSION_LAG, GAUGE, "berth_instance_version_lag", NULL,                             \
        "Snapshot versions this instance is behind")                                               \
    ROW(METRIC_INSTANCE_VERSION, GAUGE, "berth_instance_version", NULL,                            \
        "Number of the last change of nodes in a shared store that this instance knows")           \
    ROW(METRIC_AUDIT_REPAIRS, COUNTER, "berth_audit_repairs_total", NULL,                          \
        "Differences an audit found and repaired")                                                 \
    ROW(METRIC_INVARIANT, COUNTER, "berth_invariant_violations_total", "rule",                     \
        "Things that must never happen")                                                           \
    ROW(METRIC_BREAKERS_OPEN, GAUGE, "berth_breakers_open", NULL,                                  \
        "Breakers (node x type) that are open or half open")                                       \
    ROW(METRIC_BREAKER_EVENTS, COUNTER, "berth_breaker_events_total", "event",                     \
        "Breakers that opened, sent a probe, closed or were reset")                                \
    ROW(METRIC_SQL, COUNTER, "berth_sql_calls_total", "result",                                    \
        "Calls to the database, by result")                                                        \
    ROW(METRIC_CLAIMS, COUNTER, "berth_claims_total", "result",                                    \
        "Deployments nodes asked for, by answer")                                                  \
    ROW(METRIC_LEASES_LAPSED, COUNTER, "berth_node_leases_lapsed_total", NULL,                     \
        "Node leases that had run out when they were renewed")                                     \
    ROW(METRIC_QUEUE_DEPTH, GAUGE, "berth_queue_depth", NULL, "Jobs that wait for a slot")         \
    ROW(METRIC_QUEUE_OLDEST, GAUGE_MS, "berth_queue_oldest_seconds", NULL,                         \
        "How long the oldest of them has waited")                                                  \
    ROW(METRIC_NODES, GAUGE, "berth_nodes", "health", "Registered nodes, by health")               \
    ROW(METRIC_NODE_LEVELS, GAUGE, "berth_nodes_at_level", "level",                                \
        "Nodes that are not offline, by how loaded their machine is")                              \
    ROW(METRIC_SLOTS, GAUGE, "berth_slots", "state",                                               \
        "Slots of nodes that are ready: max, used, free")                                          \
    ROW(METRIC_SNAPSHOT_VERSION, GAUGE, "berth_snapshot_version", NULL,                            \
        "Version of the live snapshot")                                                            \
    ROW(METRIC_CONNECTIONS, GAUGE, "berth_connections", NULL, "Open connections")                  \
    ROW(METRIC_BODIES, GAUGE, "berth_bodies_bytes", NULL,                                          \
        "Bodies of requests that count against bodies_bytes_max")                                  \
    ROW(METRIC_CONNECTIONS_DROPPED, COUNTER, "berth_connections_dropped_total", "reason",          \
        "Connections given up for a newer one before they showed a token, or refused")             \
    ROW(METRIC_RELOADS, COUNTER, "berth_reloads_total", "result", "Settings read again (SIGHUP)")  \
    ROW(METRIC_HTTP, COUNTER, "berth_http_requests_total", "status",                               \
        "HTTP answers, by status class")                                                           \
    ROW(METRIC_LOGINS, COUNTER, "berth_logins_failed_total", "reason",                             \
        "Requests without a token, with a wrong one, or after too many of those")                  \
    ROW(METRIC_PUSH, COUNTER, "berth_push_total", "result", "Jobs pushed to an endpoint")          \
    ROW(METRIC_CALLBACK, COUNTER, "berth_callback_total", "result", "Callbacks tried")             \
    ROW(METRIC_EVENTS_DROPPED, COUNTER, "berth_events_dropped_total", NULL,                        \
        "Events a slow reader did not get")

#define METRIC_ENUM_ROW(id, type, name, label, help) id,
enum metric { METRIC_ROWS(METRIC_ENUM_ROW) METRIC_COUNT };
#undef METRIC_ENUM_ROW

/* Labels are a small fixed set per metric, given as texts that live as long as the process (their
 * address is kept); up to METRIC_LABELS_MAX different texts are counted separately, the rest as
 * "other". */
enum { METRIC_LABELS_MAX = 32 };

/* Call once on each long-lived thread that counts: its memory is never freed. Threads that do not
 * call it share one slower slot. */
void metrics_thread(void);
void metric_add(enum metric metric, int64_t n); /* a gauge may be moved by a negative n */
void metric_add_label(enum metric metric, const char *label, int64_t n);
/* The same for a label that users chose: the text is copied when it is new. */
void metric_add_text(enum metric metric, const char *label, int64_t n);
void metric_set(enum metric metric, int64_t value);
void metric_set_label(enum metric metric, const char *label, int64_t value);
void metric_observe_us(enum metric metric, int64_t us);
void metric_observe_label_us(enum metric metric, const char *label, int64_t us);
/* Shows the metric as 0 until it is counted: a counter that first appears with its first event
 * shows no increase to an alerting rule. */
void metric_declare(enum metric metric, const char *label);
/* For tests and the report; label NULL: all. */
int64_t metric_value(enum metric metric, const char *label);
/* A counter's labels with their values, sorted by label; returns how many. */
struct metric_cell {
    const char *label;
    int64_t value;
};
size_t metric_cells(enum metric metric, struct metric_cell ret_cells[METRIC_LABELS_MAX + 1]);
/* A histogram's counts so far, over all its labels; and the quantile (in thousandths) of the
 * samples between two such readings, -1 when there were none. */
enum { METRIC_BUCKETS = 24 };
void metric_buckets(enum metric metric, int64_t ret_counts[METRIC_BUCKETS]);
int64_t metric_quantile_us(const int64_t before[METRIC_BUCKETS], const int64_t now[METRIC_BUCKETS],
                           int share_pm);
/* For code that adds its own metrics to the text: the lines before the samples; a quoted value. */
void metrics_head(struct buf *text, const char *name, const char *type, const char *help);
/* All but the PARTED ones. */
void metrics_render(struct buf *text);
/* The cells of a PARTED metric whose label text `shows` accepts. */
void metrics_render_part(struct buf *text, enum metric metric,
                         bool (*shows)(const char *label, const void *user), const void *user);
void metrics_render_version(struct buf *text, const char *version); /* berth_build_info */

#endif
