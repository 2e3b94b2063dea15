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
    LEASE_RUNNING,  /* counts in node->running until `until_ms`, renewed by the node */
};

/* Why a reserve was answered as it was, in the order of the checks. */
enum lease_reason {
    LEASE_OK,
    LEASE_RESV_EXISTS, /* the same reservation again: a replay, nothing changes */
    LEASE_NOT_READY,   /* health missing or not ready */
    LEASE_NO_CAPACITY, /* max <= 0 */
    LEASE_FULL,        /* running + reserved + its slots > max */
    LEASE_RESOURCES,   /* too little is left of something the job needs; reported by the store */
    LEASE_BREAKER,     /* it keeps failing work of this type; likewise */
    LEASE_REASON_COUNT
};

const char *lease_reason_name(enum lease_reason reason); /* "OK", "RESV_EXISTS", ... */

/* How long a running lease lasts after each renewal. Face-to-face jobs are short and somebody waits
 * for them, so theirs is shorter than that of a task. */
struct lease_terms {
    int64_t task_ms;
    int64_t f2f_ms;
};

extern const struct lease_terms lease_terms_default; /* 120 s, 45 s */

int64_t lease_term_ms(const struct lease_terms *terms, struct str type);
/* How often a node must renew at least: a lease outlives several lost renewals, and its fence (at
 * two thirds) several too. */
int64_t lease_renew_every_ms(const struct lease_terms *terms);

/* The counters of one node. health is the effective one (an operator's drain included). */
struct lease_node {
    enum node_health health; /* NODE_HEALTH_NONE: no record, so NOT_READY */
    int32_t max;
    int32_t reserved;
    int32_t running;
    uint32_t epoch; /* leases of an older epoch no longer count */
};

struct lease {
    enum lease_kind kind;
    int32_t slots;  /* it takes, set before it is reserved; 0 counts as 1 */
    uint32_t epoch; /* the node's when it was taken */
    uint64_t job;
    int64_t until_ms; /* ends when now >= until_ms */
};

#define LEASE_FOREVER INT64_MAX

/* Takes a slot. `lease` is the caller's record for this (job, attempt, node): kind NONE if new. The
 * caller has expired the run-out leases of this node first. */
enum lease_reason lease_reserve(struct lease_node *node, struct lease *lease, uint64_t job,
                                int64_t now_ms, int64_t ttl_ms);
/* ACK: reserved -> running. False (nothing moves) when it ended, ran out, or is another job's. */
bool lease_commit(struct lease_node *node, struct lease *lease, uint64_t job, int64_t now_ms,
                  int64_t until_ms);
/* The send failed or the node refused. True only if it was reserved and had not run out. */
bool lease_release(struct lease_node *node, struct lease *lease);
/* The work ended. True only if it was committed and not yet finished. */
bool lease_finish(struct lease_node *node, struct lease *lease);
/* Ends it whatever it is; what it was, LEASE_NONE if its epoch had ended it before. Idempotent. */
enum lease_kind lease_end(struct lease_node *node, struct lease *lease);
/* Ends it if it ran out. */
bool lease_expire(struct lease_node *node, struct lease *lease, int64_t now_ms);
/* A heartbeat of its own node; never shortens. False when it is not running. */
bool lease_renew(struct lease *lease, int64_t until_ms);
/* Leases of the old epoch stop counting: all of them when the node is back without its runs. Of one
 * that is lost only the reservations (keeps_runs): what it runs may still run there, so the caller
 * takes each running lease along with lease_keep(). */
void lease_new_epoch(struct lease_node *node, bool keeps_runs);
bool lease_keep(const struct lease_node *node, struct lease *lease); /* false: not running */
/* No count is negative. That they stay within max is lease_reserve's to keep: above it they may be
 * only because max was lowered later, and that cannot be seen here. */
bool lease_counts_ok(const struct lease_node *node);

/* Fencing (vectors ext_lease): an assignment is good while its lease lasts, and only for the holder
 * and the token it was given to. Each new assignment has a new token, so that a holder that slept
 * is not taken for the one that has it now. */

enum fence_state { FENCE_NONE, FENCE_ASSIGNED, FENCE_RUNNING };

enum fence_state fence_state_by_name(struct str name); /* "Assigned", "Running"; else FENCE_NONE */

struct fence {
    enum fence_state state;
    struct str holder;
    int64_t token;     /* what a deployment calls its generation */
    int64_t expire_ms; /* the last moment at which it is still good */
};

bool fence_active(const struct fence *fence, int64_t now_ms);
/* The holder lives. False: the fence ran out, or is somebody else's; nothing changes. */
bool fence_renew(struct fence *fence, struct str holder, int64_t token, int64_t now_ms,
                 int64_t ttl_ms);
/* Somebody takes over. False: the lease still lasts. */
bool fence_reassign(struct fence *fence, struct str holder, int64_t now_ms, int64_t ttl_ms);

/* When a holder must have begun to stop, by clock_lease_ms(), which goes on while the machine
 * sleeps: two thirds of the lease after the moment at which it *sent* the last renewal that was
 * granted. */
int64_t fence_stop_ms(int64_t sent_lease_ms, int64_t lease_ms);
/* How long it then has for a gentle stop before the lease ends: at most 10 s, and a third of what
 * is left stays for the kill. */
int64_t fence_grace_ms(int64_t lease_ms);

#endif
