/* Leases: the only thing that moves a node's counters. One per (job, attempt, node, epoch); the
 * counts `reserved` and `running` change only together with their lease. Pure: the caller keeps the
 * leases (a map in the store) and hands in the time. */
#ifndef MODEL_LEASE_H
#define MODEL_LEASE_H

#include "base/str.h"
#include "model/node.h"

enum lease_kind {
    LEASE_NONE,     /* never taken, or ended */
    LEASE_RESERVED, /* counts in node->reserved until `until_ms` */
    LEASE_RUNNING,  /* counts in node->running until `until_ms`; renewed by the node */
};

/* The outcome of a reserve, in the order of the checks. */
enum lease_reason {
    LEASE_OK,
    LEASE_RESV_EXISTS, /* the same reservation again: a replay, nothing changes */
    LEASE_NOT_READY,   /* health missing or not ready */
    LEASE_NO_CAPACITY, /* max <= 0 */
    LEASE_FULL,        /* running + reserved + its slots > max */
    LEASE_RESOURCES,   /* too little is left of something the job needs; reported by the store */
    LEASE_BREAKER,     /* its breaker for this type is open; likewise */
    LEASE_REASON_COUNT
};

const char *lease_reason_name(enum lease_reason reason); /* "OK", "RESV_EXISTS", ... */

/* How long a running lease lasts after each renewal. Face-to-face jobs are short and a person is
 * waiting, so their leases are shorter than those of tasks. */
struct lease_terms {
    int64_t task_ms;
    int64_t f2f_ms;
};

extern const struct lease_terms lease_terms_default; /* 120 s, 45 s */

int64_t lease_term_ms(const struct lease_terms *terms, struct str type);
/* How often a node must renew at least: a lease survives several lost renewals, and so does its
 * fence (at two thirds). */
int64_t lease_renew_every_ms(const struct lease_terms *terms);

/* The counters of one node. health is the effective one (includes an operator's drain). */
struct lease_node {
    enum node_health health; /* NODE_HEALTH_NONE: no record, so NOT_READY */
    int32_t max;
    int32_t reserved;
    int32_t running;
    uint32_t epoch; /* leases of an older epoch no longer count */
};

struct lease {
    enum lease_kind kind;
    int32_t slots;  /* the slots it takes, set before it is reserved; 0 counts as 1 */
    uint32_t epoch; /* the node's epoch when it was taken */
    uint64_t job;
    int64_t until_ms; /* expires when now >= until_ms */
};

#define LEASE_FOREVER INT64_MAX

/* Takes a slot. `lease` is the caller's record for this (job, attempt, node): kind NONE if new. The
 * caller has already ended the expired leases of this node. */
enum lease_reason lease_reserve(struct lease_node *node, struct lease *lease, uint64_t job,
                                int64_t now_ms, int64_t ttl_ms);
/* ACK: reserved -> running. False (nothing changes) when it ended, expired, or is another job's. */
bool lease_ack(struct lease_node *node, struct lease *lease, uint64_t job, int64_t now_ms,
               int64_t until_ms);
/* The send failed or the node refused. True only if it was reserved and had not expired. */
bool lease_release(struct lease_node *node, struct lease *lease);
/* The work ended. True only if it was committed and not yet finished. */
bool lease_finish(struct lease_node *node, struct lease *lease);
/* Ends a lease of any kind. Returns what it was; LEASE_NONE if a new epoch had already ended it.
 * Idempotent. */
enum lease_kind lease_end(struct lease_node *node, struct lease *lease);
/* Ends it if it has expired. */
bool lease_expire(struct lease_node *node, struct lease *lease, int64_t now_ms);
/* A heartbeat of the lease's own node; never shortens. False when it is not running. */
bool lease_renew(struct lease *lease, int64_t until_ms);
/* Leases of the old epoch stop counting: all of them when the node is back without its runs. When a
 * node is lost only the reservations end (keeps_runs): its runs may still be alive there, so the
 * caller moves each running lease to the new epoch with lease_keep(). */
void lease_new_epoch(struct lease_node *node, bool keeps_runs);
bool lease_keep(const struct lease_node *node, struct lease *lease); /* false: not running */
/* No count is negative. Staying within max is lease_reserve's job: counts may exceed max only
 * because max was lowered later, which cannot be checked here. */
bool lease_counts_ok(const struct lease_node *node);

/* Fencing (vectors ext_lease): an assignment is valid while its lease lasts, and only for the
 * holder and token it was given to. Each new assignment has a new token, so that a holder that
 * slept is not mistaken for the current one. */

enum fence_state { FENCE_NONE, FENCE_ASSIGNED, FENCE_RUNNING };

enum fence_state fence_state_by_name(struct str name); /* "Assigned", "Running"; else FENCE_NONE */

struct fence {
    enum fence_state state;
    struct str holder;
    int64_t token;     /* for a deployment, its generation */
    int64_t expire_ms; /* the last moment at which it is still valid */
};

bool fence_active(const struct fence *fence, int64_t now_ms);
/* The holder is alive. False: the fence expired, or belongs to another holder; nothing changes. */
bool fence_renew(struct fence *fence, struct str holder, int64_t token, int64_t now_ms,
                 int64_t ttl_ms);
/* A new holder takes over. False: the lease still lasts. */
bool fence_reassign(struct fence *fence, struct str holder, int64_t now_ms, int64_t ttl_ms);

/* When a holder must have begun to stop, by clock_lease_ms(), which keeps running while the machine
 * sleeps: two thirds of the lease after it *sent* the last renewal that was granted. */
int64_t fence_stop_ms(int64_t sent_lease_ms, int64_t lease_ms);
/* How long it then has for a graceful stop before the lease ends: at most 10 s, and a third of the
 * remaining time is kept for the kill. */
int64_t fence_grace_ms(int64_t lease_ms);

#endif
