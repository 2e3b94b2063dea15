/* The nodes' verbs: renew the lease, claim, yield, report on copies; and releases by operators.
 * Every change of owner is one UPDATE whose predicate holds all of its conditions; the lease it
 * depends on is locked first, so a concurrent renewal is either seen or waits. */
#include "store/deploys_row.h"

#include <assert.h>
#include <stdlib.h>

#include "base/map.h"
#include "model/claim.h"
#include "model/namespace.h"
#include "model/selector.h"

/* --- leases and claims --- */

enum {
    TOGETHER_MS = 60000,   /* leases that ended this close together count as one loss */
    FORGET_MS = 300000,    /* how long an unneeded lease is kept */
    FORGIVE_MS = 86400000, /* how long a failure is kept */
    FORGET_MAX = 1000,     /* in one pass */
    FAILED_MS = 600000,    /* how long other nodes are preferred, doubled with each failure */
    FAILED_DOUBLED_MAX = 7,
};

static const char *const refusals[DEPLOYS_REFUSAL_COUNT] = {
    [DEPLOYS_NOT_REFUSED] = "ok",
    [DEPLOYS_CONFLICT] = "claim_conflict",
    [DEPLOYS_LEASE_ALIVE] = "lease_alive",
    [DEPLOYS_OWNER_ONLINE] = "owner_online",
    [DEPLOYS_NO_LEASE] = "no_lease",
    [DEPLOYS_MASS_LOSS] = "mass_loss",
    [DEPLOYS_WAS_DAEMON] = "was_daemon",
    [DEPLOYS_SELECTOR] = "selector",
    [DEPLOYS_OTHER_INSTANCE] = "other_instance",
    [DEPLOYS_NO_ROOM] = "no_room",
};

const char *deploys_refusal_name(enum deploys_refusal refusal)
{
    assert(refusal < DEPLOYS_REFUSAL_COUNT);
    return refusals[refusal];
}

struct lease {
    bool known;
    int64_t until_ms;
    int64_t left_ms; /* < 0: expired, or no lease */
    int64_t drain_deadline_ms;
    struct str instance;
};

static bool lock_lease(struct work *work, struct str node, struct lease *ret_lease)
{
#define LEASE(D)                                                                                   \
    "SELECT until_ms, until_ms - " D##_NOW                                                         \
        ", drain_deadline_ms, instance FROM berth_node_lease WHERE address = $1" D##_LOCK
    struct sql_rows rows;

    if (!WORK_SQL(work, LEASE, &rows, SQL_STR(node)))
        return false;
    *ret_lease = (struct lease){.left_ms = -1};
    if (rows.count > 0)
        *ret_lease = (struct lease){.known = true,
                                    .until_ms = sql_cell_int(&rows, 0, 0),
                                    .left_ms = sql_cell_int(&rows, 0, 1),
                                    .drain_deadline_ms = sql_cell_int(&rows, 0, 2),
                                    .instance = sql_cell(&rows, 0, 3)};
    return true;
}

static struct str instance_of(const struct deploys_op *op)
{
    return op->instance.at ? op->instance : STR("");
}

/* Is the lease valid and owned by another agent? A caller without an instance is not checked. */
static bool is_others(const struct lease *lease, struct str instance)
{
    return lease->left_ms >= 0 && lease->instance.len > 0 && instance.len > 0 &&
           !str_eq(lease->instance, instance);
}

static bool refuse_instance(struct deploys_op *op, int64_t left_ms)
{
    op->err = ERR_CONFLICT;
    op->refusal = DEPLOYS_OTHER_INSTANCE;
    op->left_ms = left_ms;
    return true;
}

/* Does this agent hold the node's lease? If not, op->err is set. */
static bool deploys_check_instance(struct work *work)
{
#define WHOSE(D) "SELECT until_ms - " D##_NOW ", instance FROM berth_node_lease WHERE address = $1"
    struct lease lease;
    struct sql_rows rows;

    if (!work->op->instance.len)
        return true;
    if (!WORK_SQL(work, WHOSE, &rows, SQL_STR(work->op->node)))
        return false;
    if (rows.count == 0)
        return true;
    lease = (struct lease){.left_ms = sql_cell_int(&rows, 0, 0), .instance = sql_cell(&rows, 0, 1)};
    return !is_others(&lease, work->op->instance) || refuse_instance(work->op, lease.left_ms);
}

/* What a renewal writes; without an instance the stored one is kept. */
#define RENEWED(D)                                                                                 \
    "until_ms = " D##_NOW " + CAST($2 AS BIGINT), renewed_ms = " D##_NOW                           \
        ", goodbye = 0, instance = CASE WHEN CAST($3 AS TEXT) = '' THEN berth_node_lease.instance" \
        " ELSE CAST($3 AS TEXT) END"
#define IS_ITS "(CAST($3 AS TEXT) = '' OR berth_node_lease.instance IN ('', CAST($3 AS TEXT)))"

/* The common case: the lease is valid and the agent's own. One statement, no other table. */
static bool renew_good(struct work *work, bool *ret_done)
{
/* clang-format off */
#define KEEP(D)                                                                                    \
    "UPDATE berth_node_lease SET " RENEWED(D) " WHERE address = $1 AND until_ms >= " D##_NOW     \
    " AND " IS_ITS " RETURNING until_ms, drain_deadline_ms, renewed_ms, (SELECT value FROM"     \
    " berth_meta WHERE name = 'version')"
    /* clang-format on */
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_SQL(work, KEEP, &rows, SQL_STR(op->node), SQL_INT(op->u.renew.lease_ms),
                  SQL_STR(instance_of(op))))
        return false;
    *ret_done = rows.count > 0;
    if (!*ret_done)
        return true;
    op->u.renew.until_ms = sql_cell_int(&rows, 0, 0);
    op->u.renew.drain_deadline_ms = sql_cell_int(&rows, 0, 1);
    op->now_ms = sql_cell_int(&rows, 0, 2);
    op->version = sql_cell_int(&rows, 0, 3);
    return true;
}

/* The lease had expired: what the node still owns gets a new generation, so that a copy that slept
 * through the end of the lease can be told from one started now. */
static bool reassign_own(struct work *work)
{
#define OWN(D)                                                                                     \
    "UPDATE deployment SET generation = generation + 1, tried_ms = " D##_NOW                       \
        " WHERE address = $1 AND type = 'deployment' RETURNING " DEPLOYS_COLUMNS(D)
    struct sql_rows rows;

    if (!WORK_SQL(work, OWN, &rows, SQL_STR(work->op->node)))
        return false;
    for (size_t i = 0; i < rows.count; i++) {
        struct deploys_row row;

        deploys_row_read(&rows, i, &row);
        if (!deploys_note(work, &row, "lapsed", row.owner, "its node's lease had run out"))
            return false;
    }
    return rows.count == 0 || deploys_bump(work, false);
}

/* Shortens leases renewed in the future: the database's clock was set back, or a server took over
 * whose clock is behind. No lease may have more than its full length left; otherwise what a node
 * owned when it was lost would be blocked for as long as the clock went back. Such leases end last;
 * nodes that are not lost renew their own. Differences below a second are ignored. */
static bool cut_leases(struct work *work)
{
/* clang-format off */
#define AHEAD(D)                                                                                   \
    "SELECT address FROM (SELECT address, renewed_ms FROM berth_node_lease ORDER BY until_ms DESC" \
    " LIMIT 100) AS last WHERE renewed_ms > " D##_NOW " + 1000 ORDER BY address"
#define CUT(D)                                                                                     \
    "UPDATE berth_node_lease SET until_ms = until_ms - renewed_ms + " D##_NOW                      \
    ", renewed_ms = " D##_NOW " WHERE address = $1 AND renewed_ms > " D##_NOW
    /* clang-format on */
    struct sql_rows rows;

    if (!WORK_SQL(work, AHEAD, &rows))
        return false;
    for (size_t i = 0; i < rows.count; i++)
        if (!WORK_SQL(work, CUT, NULL, SQL_STR(sql_cell(&rows, i, 0))))
            return false;
    return true;
}

/* Nodes come and go under new names. A dead lease is deleted when its node owns nothing and it did
 * not end together with one whose node does: those are still needed to detect that more than half
 * were lost at once. */
bool deploys_forget(struct work *work, bool *ret_more)
{
/* clang-format off */
/* A join, not a subquery per row, which would keep PostgreSQL from computing the window
 * incrementally. */
#define OWNS "CASE WHEN d.address IS NULL THEN 0 ELSE 1 END"
#define FORGET(D)                                                                                  \
    "DELETE FROM berth_node_lease WHERE until_ms < " D##_STATEMENT_START " - CAST($1 AS BIGINT)"   \
    " AND address IN (SELECT address FROM (SELECT address, until_ms, drain_deadline_ms,"           \
    " SUM(owns) OVER (ORDER BY until_ms RANGE BETWEEN 60000 PRECEDING AND 60000 FOLLOWING) AS near"\
    " FROM (SELECT l.address, l.until_ms, l.drain_deadline_ms, " OWNS " AS owns"                   \
    " FROM berth_node_lease l LEFT JOIN (SELECT DISTINCT address FROM deployment) d"               \
    " ON d.address = l.address WHERE l.until_ms < " D##_STATEMENT_START                            \
    " - CAST($1 AS BIGINT) + 60000) AS gone) AS together WHERE near = 0 AND until_ms < " D##_STATEMENT_START \
    " - CAST($1 AS BIGINT) AND drain_deadline_ms < " D##_STATEMENT_START " LIMIT CAST($2 AS BIGINT))" \
    " RETURNING address"
    /* clang-format on */
#define FORGET_STATUS(D) "DELETE FROM berth_deployment_status WHERE address = $1"
    struct sql_rows rows;

    _Static_assert(TOGETHER_MS == 60000, "the statement has it as a number");
    if (!work_begin(work) || !cut_leases(work) ||
        !WORK_SQL(work, FORGET, &rows, SQL_INT(FORGET_MS), SQL_INT(FORGET_MAX)))
        return false;
    for (size_t i = 0; i < rows.count; i++)
        if (!WORK_SQL(work, FORGET_STATUS, NULL, SQL_STR(sql_cell(&rows, i, 0))))
            return false;
    *ret_more = rows.count == FORGET_MAX;
    return true;
}

/* The node stops cleanly. Its deployments may still be running, so the lease stays as it is. */
static bool say_goodbye(struct work *work)
{
#define GOODBYE(D) "UPDATE berth_node_lease SET goodbye = 1 WHERE address = $1 RETURNING until_ms"
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!deploys_check_instance(work))
        return false;
    if (op->err)
        return true;
    if (!work_begin(work) || !WORK_SQL(work, GOODBYE, &rows, SQL_STR(op->node)))
        return false;
    op->u.renew.until_ms = rows.count > 0 ? sql_cell_int(&rows, 0, 0) : 0;
    op->u.renew.unchanged = true;
    return deploys_meta(work);
}

/* The lease expired, belongs to another agent, or does not exist. An agent whose own clock says it
 * never was without a lease is believed: then the database's clock was set forward, and its copies
 * may run on unless another node has claimed them. */
static bool renew_anew(struct work *work)
{
/* clang-format off */
#define RENEW(D)                                                                                   \
    "INSERT INTO berth_node_lease (address, until_ms, renewed_ms, instance) VALUES ($1, " D##_NOW  \
    " + CAST($2 AS BIGINT), " D##_NOW ", CAST($3 AS TEXT)) ON CONFLICT (address) DO UPDATE SET "   \
    RENEWED(D) " WHERE berth_node_lease.until_ms < " D##_NOW " OR " IS_ITS                    \
    " RETURNING until_ms"
    /* clang-format on */
    struct deploys_op *op = work->op;
    struct sql_rows rows;
    struct lease lease;

    if (!work_begin(work) || !lock_lease(work, op->node, &lease))
        return false;
    if (is_others(&lease, instance_of(op)))
        return refuse_instance(op, lease.left_ms);
    if (!WORK_SQL(work, RENEW, &rows, SQL_STR(op->node), SQL_INT(op->u.renew.lease_ms),
                  SQL_STR(instance_of(op))))
        return false;
    /* Two agents with the same name may register at the same time: the second finds the lease of
     * the first. */
    if (rows.count == 0)
        return refuse_instance(op, op->u.renew.lease_ms);
    op->u.renew.until_ms = sql_cell_int(&rows, 0, 0);
    op->u.renew.drain_deadline_ms = lease.drain_deadline_ms;
    op->u.renew.lapsed = lease.left_ms < 0 && !(op->u.renew.held && op->instance.len > 0 &&
                                                str_eq(op->instance, lease.instance));
    return (!op->u.renew.lapsed || reassign_own(work)) && deploys_meta(work);
}

/* Answers what the node must run, unless it has that version already. */
static bool answer_own(struct work *work)
{
/* clang-format off */
#define MUST_RUN(D)                                                                                \
    "SELECT " DEPLOYS_COLUMNS(D) ", COALESCE((SELECT s.state FROM berth_deployment_status s"       \
    " WHERE s.id = " D##_TEXT("deployment.id") " AND s.address = $1"                               \
    " AND s.version = deployment.spec_version AND s.state IN ('finished', 'failed')), ended)"      \
    " FROM deployment WHERE enabled AND type = 'daemon' UNION ALL SELECT " DEPLOYS_COLUMNS(D)      \
    ", ended FROM deployment WHERE enabled AND type = 'deployment' AND address = $1 ORDER BY 1"
    /* clang-format on */
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    assert(op->u.renew.until_ms > op->u.renew.lease_ms);
    op->u.renew.unchanged = !op->u.renew.lapsed && op->u.renew.if_version == op->version;
    if (op->u.renew.unchanged)
        return true;
    if (!WORK_SQL(work, MUST_RUN, &rows, SQL_STR(op->node)))
        return false;
    op->u.renew.count = rows.count;
    op->u.renew.items = arena_array(op->arena, struct deploys_row, rows.count + 1);
    for (size_t i = 0; i < rows.count; i++) {
        deploys_row_read(&rows, i, &op->u.renew.items[i]);
        op->u.renew.items[i].ended = sql_cell(&rows, i, DEPLOYS_COLUMN_COUNT);
    }
    return true;
}

bool deploys_renew_good(struct work *work, bool *ret_done)
{
    assert(work->op->u.renew.lease_ms > 0 && work->op->node.len > 0 && !work->op->u.renew.goodbye);
    return renew_good(work, ret_done) && (!*ret_done || answer_own(work));
}

bool deploys_renew(struct work *work)
{
    struct deploys_op *op = work->op;
    bool done;

    assert(op->u.renew.lease_ms > 0 && op->node.len > 0);
    if (op->u.renew.goodbye)
        return say_goodbye(work);
    if (!renew_good(work, &done) || (!done && !renew_anew(work)))
        return false;
    return op->err || answer_own(work);
}

/* --- claims --- */

/* May a lost node's deployments be claimed? Not if more nodes were lost together with it, without a
 * goodbye, than are left. Counts only leases that ended close to this one, and live ones up to that
 * number. */
static bool check_mass_loss(struct work *work, const struct lease *owner, bool *ret_lost)
{
#define GONE(D)                                                                                    \
    "SELECT COUNT(*), (SELECT value FROM berth_meta WHERE name = 'approved_until_ms') "            \
    "- " D##_STATEMENT_START                                                                       \
        " FROM berth_node_lease WHERE until_ms >= CAST($1 AS BIGINT) AND until_ms <= CAST($2 AS "  \
        "BIGINT) AND until_ms < " D##_STATEMENT_START " AND goodbye = 0"
#define LEFT(D)                                                                                    \
    "SELECT COUNT(*) FROM (SELECT 1 FROM berth_node_lease WHERE until_ms >= " D##_STATEMENT_START  \
        " LIMIT CAST($1 AS BIGINT)) AS left_over"
    struct sql_rows rows;
    int64_t lost;

    *ret_lost = false;
    if (!owner->known)
        return true;
    if (!WORK_SQL(work, GONE, &rows, SQL_INT(owner->until_ms - TOGETHER_MS),
                  SQL_INT(owner->until_ms + TOGETHER_MS)))
        return false;
    lost = sql_cell_int(&rows, 0, 0);
    if (sql_cell_int(&rows, 0, 1) >= 0 || !claim_mass_loss(0, (size_t)lost))
        return true;
    if (!WORK_SQL(work, LEFT, &rows, SQL_INT(lost)))
        return false;
    *ret_lost = claim_mass_loss((size_t)sql_cell_int(&rows, 0, 0), (size_t)lost);
    return true;
}

/* Locks both leases and checks what the UPDATE itself cannot. */
static bool check_leases(struct work *work, struct lease *ret_owner)
{
    struct deploys_op *op = work->op;
    struct str owner = op->u.claim.observed;
    bool owner_first =
        str_cmp(owner, op->node) < 0; /* everyone locks several leases in order of node */
    struct lease own;

    assert(!op->u.claim.seed && op->refusal == DEPLOYS_NOT_REFUSED);
    *ret_owner = (struct lease){.left_ms = -1};
    if ((owner.len && owner_first && !lock_lease(work, owner, ret_owner)) ||
        !lock_lease(work, op->node, &own) ||
        (owner.len && !owner_first && !lock_lease(work, owner, ret_owner)))
        return false;
    if (is_others(&own, instance_of(op)))
        return refuse_instance(op, own.left_ms);
    if (own.left_ms < 0)
        op->refusal = DEPLOYS_NO_LEASE;
    else if (ret_owner->left_ms >= 0)
        op->refusal = DEPLOYS_LEASE_ALIVE;
    else if (op->u.claim.owner_online && ret_owner->left_ms > -op->u.claim.lease_ms)
        op->refusal = DEPLOYS_OWNER_ONLINE;
    return true;
}

/* The first answer was lost: the row is as this same claim left it. */
static bool claimed_before(const struct deploys_op *op, struct str owner)
{
    return op->found && str_eq(op->row.owner, owner) &&
           op->row.generation == op->u.claim.generation + 1;
}

static bool take(struct work *work, int64_t *ret_changed)
{
#define CLAIM(D)                                                                                   \
    "UPDATE deployment SET address = CAST($2 AS TEXT), generation = generation + 1, tried_ms "     \
    "= " D##_NOW " WHERE " D##_ID                                                                  \
        " = $1 AND type = 'deployment' AND enabled AND ended = ''"                                 \
        " AND address = CAST($3 AS TEXT) AND generation = $4 AND (CAST($5 AS BIGINT) = 1 OR ("     \
        "free_from_ms < " D##_NOW                                                                  \
        " AND EXISTS (SELECT 1 FROM berth_node_lease WHERE address = CAST($2 AS TEXT)"             \
        " AND until_ms >= " D##_NOW                                                                \
        ") AND NOT EXISTS (SELECT 1 FROM berth_node_lease WHERE address = CAST($3 AS TEXT)"        \
        " AND until_ms >= " D##_NOW ")))"
    const struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_SQL(work, CLAIM, &rows, SQL_STR(op->id), SQL_STR(op->node),
                  SQL_STR(op->u.claim.observed), SQL_INT(op->u.claim.generation),
                  SQL_INT(op->u.claim.seed)))
        return false;
    assert(rows.changed <= 1);
    *ret_changed = rows.changed;
    return true;
}

/* Is the row as the claimer saw it? Only then is the mass-loss check worth doing. */
static bool is_observed(const struct deploys_op *op)
{
    return op->found && op->row.spec.type == DEPLOY_DEPLOYMENT && op->row.spec.enabled &&
           op->row.ended.len == 0 && str_eq(op->row.owner, op->u.claim.observed) &&
           op->row.generation == op->u.claim.generation;
}

static bool taken(struct work *work)
{
/* Drop the status of former owners' copies. */
#define FORGET_OTHERS(D) "DELETE FROM berth_deployment_status WHERE id = $1 AND address <> $2"
    struct deploys_op *op = work->op;
    bool was_owned = op->u.claim.observed.len > 0;

    return deploys_row_get(work, false) &&
           WORK_SQL(work, FORGET_OTHERS, NULL, SQL_STR(op->id), SQL_STR(op->node)) &&
           deploys_note(work, &op->row, was_owned ? "taken over" : "claimed", op->node,
                        was_owned ? arena_cstr(op->arena, op->u.claim.observed) : "") &&
           deploys_bump(work, false);
}

static bool refuse_claim(struct work *work)
{
    struct deploys_op *op = work->op;

    if (!deploys_meta(work))
        return false;
    if (!op->found || !str_eq(op->row.owner, op->u.claim.observed))
        op->refusal = DEPLOYS_CONFLICT;
    else if (op->refusal == DEPLOYS_NOT_REFUSED)
        op->refusal = is_observed(op) && op->row.free_from_ms >= op->now_ms ? DEPLOYS_WAS_DAEMON
                                                                            : DEPLOYS_CONFLICT;
    op->err = ERR_CONFLICT;
    return true;
}

/* Uses the server's current view of the node, including jobs reserved a moment ago. */
static bool has_room(struct deploys_op *op)
{
    const struct json *options;
    const struct demand *demand;
    struct resources_short lack;
    struct buf text = {0};
    bool fits;

    if (!op->u.claim.left || json_parse(op->row.spec.options, op->arena, &options, NULL))
        return true;
    demand = deploy_demand(json_raw(json_get(options, "needs")), op->arena);
    fits = !demand || resources_left_fit(op->u.claim.declared, op->u.claim.left, demand, &lack);
    if (!fits)
        resources_short_text(&lack, &text);
    op->u.claim.lack = arena_str(op->arena, buf_view(&text));
    buf_free(&text);
    return fits;
}

bool deploys_claim(struct work *work)
{
    struct deploys_op *op = work->op;
    struct selector_facts facts = {.id = op->node, .labels = op->u.claim.labels};
    struct lease owner = {0};
    bool mass_loss = false;
    int64_t changed = 0;

    assert(op->node.len > 0 && op->u.claim.observed.at);
    op->refusal = DEPLOYS_NOT_REFUSED;
    if (!op->u.claim.seed && !check_leases(work, &owner))
        return false;
    if (op->err)
        return true;
    if (!deploys_row_get(work, true))
        return false;
    if (claimed_before(op, op->node) && op->refusal != DEPLOYS_NO_LEASE) {
        op->refusal = DEPLOYS_NOT_REFUSED;
        op->u.claim.duplicate = true;
        return deploys_meta(work);
    }
    if (op->refusal == DEPLOYS_NOT_REFUSED && is_observed(op) &&
        !selector_match(op->row.spec.selector, &facts))
        op->refusal = DEPLOYS_SELECTOR;
    if (op->refusal == DEPLOYS_NOT_REFUSED && is_observed(op) && !has_room(op))
        op->refusal = DEPLOYS_NO_ROOM;
    if (op->refusal == DEPLOYS_NOT_REFUSED && is_observed(op) &&
        !check_mass_loss(work, &owner, &mass_loss))
        return false;
    if (mass_loss)
        op->refusal = DEPLOYS_MASS_LOSS;
    if (op->refusal == DEPLOYS_NOT_REFUSED && !take(work, &changed))
        return false;
    return changed == 1 ? taken(work) : refuse_claim(work);
}

/* It failed on this node: others are preferred for a while. */
static bool note_failure(struct work *work)
{
#define FAILED(D)                                                                                  \
    "INSERT INTO berth_deployment_failure (id, address, times, at_ms, until_ms, reason)"           \
    " VALUES ($1, $2, 1, " D##_NOW ", " D##_NOW                                                    \
        " + CAST($3 AS BIGINT), $4) ON CONFLICT (id, address) DO UPDATE SET"                       \
        " times = berth_deployment_failure.times + 1, at_ms = excluded.at_ms,"                     \
        " until_ms = excluded.at_ms + CAST($3 AS BIGINT) * (1 << CAST(CASE WHEN"                   \
        " berth_deployment_failure.times < CAST($5 AS BIGINT) THEN berth_deployment_failure.times" \
        " ELSE CAST($5 AS BIGINT) END AS INTEGER)), reason = excluded.reason"
#define FORGIVE(D)                                                                                 \
    "DELETE FROM berth_deployment_failure WHERE until_ms < " D##_NOW " - CAST($1 AS BIGINT)"
    const struct deploys_op *op = work->op;

    return WORK_SQL(work, FAILED, NULL, SQL_STR(op->id), SQL_STR(op->node), SQL_INT(FAILED_MS),
                    SQL_STR(op->u.claim.reason.at ? op->u.claim.reason : STR("")),
                    SQL_INT(FAILED_DOUBLED_MAX)) &&
           WORK_SQL(work, FORGIVE, NULL, SQL_INT(FORGIVE_MS));
}

bool deploys_yield(struct work *work)
{
#define YIELD(D)                                                                                   \
    "UPDATE deployment SET address = '', generation = generation + 1, tried_ms = " D##_NOW         \
        " WHERE " D##_ID                                                                           \
        " = $1 AND type = 'deployment' AND address = CAST($2 AS TEXT) AND generation = $3"
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    assert(op->node.len > 0 && op->id.len > 0);
    op->refusal = DEPLOYS_NOT_REFUSED;
    if (!deploys_check_instance(work))
        return false;
    if (op->err)
        return true;
    if (!WORK_SQL(work, YIELD, &rows, SQL_STR(op->id), SQL_STR(op->node),
                  SQL_INT(op->u.claim.generation)) ||
        !deploys_row_get(work, false))
        return false;
    if (rows.changed == 1)
        /* If the spec was changed since, the failure does not count. */
        return (!op->u.claim.failed || op->u.claim.version != op->row.version ||
                note_failure(work)) &&
               deploys_note(work, &op->row, "given up", op->node,
                            op->u.claim.reason.at ? arena_cstr(op->arena, op->u.claim.reason)
                                                  : "") &&
               deploys_bump(work, true);
    op->u.claim.duplicate = claimed_before(op, STR(""));
    if (!op->u.claim.duplicate) {
        op->refusal = DEPLOYS_CONFLICT;
        op->err = ERR_CONFLICT;
    }
    return deploys_meta(work);
}

/* --- copies --- */

/* A copy's state in the table, beside the node's new report. */
struct known_copy {
    struct deploys_copy copy; /* state.at == NULL: never reported before */
    bool daemon;
    int64_t row_generation, row_version;
    struct str ended;
    bool rolling; /* an update of its deployment is in progress */
    bool named;   /* named in this report */
};

/* Reads everything a node may have copies of: what it owns, and daemons. */
static bool read_known(struct work *work, struct map *known)
{
/* clang-format off */
#define HELD_BY(D)                                                                                 \
    "SELECT " D##_TEXT("d.id") ", d.type, d.generation, d.spec_version, d.ended,"                  \
    " s.generation, s.version, s.state, s.restarts, s.pid, s.since_ms, s.healthy, s.reason,"       \
    " s.limits, d.rolling, s.host, s.port FROM deployment d LEFT JOIN berth_deployment_status s"                              \
    " ON s.id = " D##_TEXT("d.id") " AND s.address = $1 WHERE d.type = "
#define HELD(D)                                                                                    \
    HELD_BY(D) "'daemon' UNION ALL " HELD_BY(D) "'deployment' AND d.address = $1"
    /* clang-format on */
    struct sql_rows rows;

    if (!WORK_SQL(work, HELD, &rows, SQL_STR(work->op->node)))
        return false;
    for (size_t i = 0; i < rows.count; i++) {
        struct known_copy *one = arena_new(work->op->arena, struct known_copy);

        *one = (struct known_copy){.daemon =
                                       deploy_type_by_name(sql_cell(&rows, i, 1)) == DEPLOY_DAEMON,
                                   .row_generation = sql_cell_int(&rows, i, 2),
                                   .row_version = sql_cell_int(&rows, i, 3),
                                   .ended = sql_cell(&rows, i, 4),
                                   .rolling = sql_cell_int(&rows, i, 14) != 0,
                                   .copy = {.id = sql_cell(&rows, i, 0),
                                            .generation = sql_cell_int(&rows, i, 5),
                                            .version = sql_cell_int(&rows, i, 6),
                                            .state = sql_cell(&rows, i, 7),
                                            .restarts = sql_cell_int(&rows, i, 8),
                                            .pid = sql_cell_int(&rows, i, 9),
                                            .since_ms = sql_cell_int(&rows, i, 10),
                                            .healthy = sql_cell(&rows, i, 11),
                                            .reason = sql_cell(&rows, i, 12),
                                            .limits = sql_cell(&rows, i, 13),
                                            .host = sql_cell(&rows, i, 15),
                                            .port = sql_cell_int(&rows, i, 16)}};
        map_put(known, one->copy.id, one);
    }
    return true;
}

static bool same_copy(const struct deploys_copy *a, const struct deploys_copy *b)
{
    return a->generation == b->generation && a->version == b->version &&
           str_eq(a->state, b->state) && a->restarts == b->restarts && a->pid == b->pid &&
           a->since_ms == b->since_ms && str_eq(a->healthy, b->healthy) &&
           str_eq(a->reason, b->reason) && str_eq(a->limits, b->limits) && a->port == b->port &&
           str_eq(a->host, b->host);
}

static bool write_copy(struct work *work, const struct deploys_copy *copy)
{
/* clang-format off */
#define COPY(D)                                                                                    \
    "INSERT INTO berth_deployment_status (id, address, generation, version, state, restarts, pid," \
    " since_ms, healthy, reason, limits, host, port, updated_ms) VALUES ($1, $2, $3, $4, $5, $6,"  \
    " $7, $8, $9, $10, $11, $12, $13, " D##_NOW ") ON CONFLICT (id, address) DO UPDATE SET"        \
    " generation = excluded.generation, version = excluded.version, state = excluded.state,"       \
    " restarts = excluded.restarts, pid = excluded.pid, since_ms = excluded.since_ms,"             \
    " healthy = excluded.healthy, reason = excluded.reason, limits = excluded.limits,"             \
    " host = excluded.host, port = excluded.port, updated_ms = excluded.updated_ms"
    /* clang-format on */

    return work_begin(work) &&
           WORK_SQL(work, COPY, NULL, SQL_STR(copy->id), SQL_STR(work->op->node),
                    SQL_INT(copy->generation), SQL_INT(copy->version), SQL_STR(copy->state),
                    SQL_INT(copy->restarts), SQL_INT(copy->pid), SQL_INT(copy->since_ms),
                    SQL_STR(copy->healthy), SQL_STR(copy->reason), SQL_STR(copy->limits),
                    SQL_STR(copy->host.at ? copy->host : STR("")), SQL_INT(copy->port));
}

static bool forget_copy(struct work *work, struct str id)
{
#define FORGET_COPY(D) "DELETE FROM berth_deployment_status WHERE id = $1 AND address = $2"
    return work_begin(work) &&
           WORK_SQL(work, FORGET_COPY, NULL, SQL_STR(id), SQL_STR(work->op->node));
}

/* A node still has a copy of a former daemon: it cannot be claimed until that node's lease has
 * ended or the node reports it gone. */
static bool wait_for_copy(struct work *work, struct str id)
{
#define WAIT(D)                                                                                    \
    "UPDATE deployment SET free_from_ms = (SELECT until_ms FROM berth_node_lease WHERE address = " \
    "$2) WHERE " D##_ID                                                                            \
        " = $1 AND type = 'deployment' AND address = '' AND free_from_ms >= " D##_NOW              \
        " AND free_from_ms < (SELECT until_ms FROM berth_node_lease WHERE address = $2)"

    return work_begin(work) && WORK_SQL(work, WAIT, NULL, SQL_STR(id), SQL_STR(work->op->node));
}

/* Adds a state to the history if it is final or will not recover by itself. */
static bool note_state(struct work *work, const struct deploys_copy *copy,
                       const struct deploys_copy *before)
{
    static const char *const states[] = {"crash_loop", "unhealthy", "refused", "finished",
                                         "failed"};
    struct deploys_row row = {
        .spec.id = copy->id, .generation = copy->generation, .version = copy->version};

    if (before->state.at && str_eq(copy->state, before->state))
        return true;
    for (size_t i = 0; i < COUNT_OF(states); i++)
        if (str_is(copy->state, states[i]))
            return deploys_note(work, &row, states[i], work->op->node,
                                arena_cstr(work->op->arena, copy->reason));
    return true;
}

/* The version ended: it is not claimed again, even when its node is gone. */
static bool end_version(struct work *work, const struct deploys_copy *copy, bool *changed)
{
#define END(D)                                                                                     \
    "UPDATE deployment SET ended = $2 WHERE " D##_ID                                               \
        " = $1 AND spec_version = $3 AND generation = $4 AND type = 'deployment'"
    struct sql_rows rows;

    if (!work_begin(work) || !WORK_SQL(work, END, &rows, SQL_STR(copy->id), SQL_STR(copy->state),
                                       SQL_INT(copy->version), SQL_INT(copy->generation)))
        return false;
    *changed = *changed || rows.changed > 0;
    return true;
}

/* A copy that was healthy with the new version and no longer is gets a new time-out. */
static bool try_anew(struct work *work, const struct deploys_copy *copy,
                     const struct known_copy *known)
{
#define TRY_ANEW(D) "UPDATE deployment SET tried_ms = " D##_NOW " WHERE " D##_ID " = $1"

    if (!known->rolling || !known->copy.state.at ||
        rollout_health(known->copy.state, known->copy.healthy) != ROLLOUT_WELL ||
        rollout_health(copy->state, copy->healthy) == ROLLOUT_WELL)
        return true;
    return work_begin(work) && WORK_SQL(work, TRY_ANEW, NULL, SQL_STR(copy->id));
}

/* A changed daemon is updated node by node in order of address and stops at the first node where
 * the new version is not healthy. Nodes with expired leases do not count. */
static bool look_for_turn(struct work *work, struct deploys_copy *copy)
{
/* clang-format off */
#define BEFORE(D)                                                                                  \
    "SELECT s.address, s.version, s.state, s.reason FROM berth_deployment_status s"                \
    " JOIN berth_node_lease l ON l.address = s.address WHERE s.id = $1"                            \
    " AND " D##_BYTES("s.address") " < $2 AND l.until_ms >= " D##_NOW                              \
    " AND NOT (s.version = $3 AND (s.state = 'finished' OR (s.state = 'running'"                   \
    " AND s.healthy = 'true'))) ORDER BY s.version DESC, " D##_BYTES("s.address") " LIMIT 1"
    /* clang-format on */
    static const char *const bad[] = {"unhealthy", "backoff", "crash_loop", "refused", "failed"};
    struct str node, state;
    bool stopped = false;
    struct sql_rows rows;

    if (!WORK_SQL(work, BEFORE, &rows, SQL_STR(copy->id), SQL_STR(work->op->node),
                  SQL_INT(copy->wants)))
        return false;
    if (rows.count == 0)
        return true;
    node = sql_cell(&rows, 0, 0);
    state = sql_cell(&rows, 0, 2);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        stopped |= str_is(state, bad[i]) && sql_cell_int(&rows, 0, 1) == copy->wants;
    copy->waits =
        stopped ? arena_fmt(work->op->arena,
                            "The update stopped: version %lld is not well on " STR_FMT " (" STR_FMT
                            "). " STR_FMT,
                            (long long)copy->wants, STR_ARG(node), STR_ARG(state),
                            STR_ARG(sql_cell(&rows, 0, 3)))
                : arena_fmt(work->op->arena, "The update waits for " STR_FMT " (" STR_FMT ").",
                            STR_ARG(node), STR_ARG(state));
    return true;
}

static bool settle_copy(struct work *work, struct deploys_copy *copy, struct known_copy *known,
                        bool *changed)
{
    bool over = str_is(copy->state, "finished") || str_is(copy->state, "failed");

    assert(copy->id.len > 0 && copy->state.len > 0 && copy->healthy.at && copy->reason.at &&
           copy->limits.at);
    copy->stale = !known || (!known->daemon && known->row_generation != copy->generation);
    if (copy->stale)
        return forget_copy(work, copy->id) && wait_for_copy(work, copy->id);
    known->named = true;
    if (copy->wants && known->daemon && !look_for_turn(work, copy))
        return false;
    if (over && !known->daemon && known->row_version == copy->version &&
        !str_eq(known->ended, copy->state) && !end_version(work, copy, changed))
        return false;
    if (known->copy.state.at && same_copy(copy, &known->copy))
        return true;
    return write_copy(work, copy) && note_state(work, copy, &known->copy) &&
           try_anew(work, copy, known);
}

static int by_name(const void *a, const void *b)
{
    return str_cmp(*(const struct str *)a, *(const struct str *)b);
}

/* Finds the updates this status may move on. Their deployment rows are locked before anything is
 * written, as any change of them does; several are locked in order of name, to avoid deadlocks. */
static bool lock_updates(struct work *work, const struct map *known, struct strs *ret_names)
{
    struct deploys_op *op = work->op;
    struct names names;

    names_init(&names, op->u.status.count, op->arena);
    for (size_t i = 0; i < op->u.status.count; i++) {
        const struct known_copy *one = map_get(known, op->u.status.copies[i].id);

        if (one && one->rolling)
            names_add(&names, deploy_name(one->copy.id));
    }
    *ret_names = (struct strs){.at = names.at, .count = names.count};
    if (names.count > 1)
        qsort(ret_names->at, ret_names->count, sizeof *ret_names->at, by_name);
    for (size_t i = 0; i < ret_names->count; i++) {
        op->id = ret_names->at[i];
        if (!work_begin(work) || !deploys_row_get(work, true))
            return false;
    }
    return true;
}

/* A status names all copies of its node, unless it is partial: copies it does not name are gone. */
bool deploys_set_status(struct work *work)
{
    struct deploys_op *op = work->op;
    struct map known = {0};
    struct strs updates;
    struct known_copy *one;
    bool changed = false, news = false, ok;

    assert(op->u.status.count <= DEPLOYS_COPIES_MAX);
    if (!deploys_check_instance(work))
        return false;
    if (op->err)
        return true;
    ok = read_known(work, &known) && lock_updates(work, &known, &updates);
    for (size_t i = 0; ok && i < op->u.status.count; i++)
        ok = settle_copy(work, &op->u.status.copies[i], map_get(&known, op->u.status.copies[i].id),
                         &changed);
    for (size_t i = 0; ok && !op->u.status.partial && (one = map_next(&known, &i));)
        if (!one->named && one->copy.state.at)
            ok = forget_copy(work, one->copy.id);
    map_free(&known);
    for (size_t i = 0; ok && i < updates.count; i++) {
        op->id = updates.at[i];
        ok = deploys_row_get(work, false) && deploys_roll_on(work, &news);
    }
    return ok && (!(changed || news) || deploys_bump(work, news));
}

/* Releases one deployment of a node with an expired lease; the lease is locked so that the node
 * cannot renew it in between. */
static bool release_one(struct work *work, struct str id)
{
#define HOLDER(D)                                                                                  \
    "SELECT l.address, l.until_ms - " D##_NOW " FROM berth_node_lease l WHERE l.address = (SELECT" \
                                              " address FROM deployment WHERE " D##_ID             \
        " = $1)" D##_LOCK
#define RELEASE(D)                                                                                 \
    "UPDATE deployment SET address = '', generation = generation + 1, tried_ms = " D##_NOW         \
        " WHERE " D##_ID                                                                           \
        " = $1 AND type = 'deployment' AND address <> '' AND NOT EXISTS (SELECT 1 FROM"            \
        " berth_node_lease l WHERE l.address = deployment.address AND l.until_ms "                 \
        ">= " D##_NOW ")"
    struct deploys_op *op = work->op;
    struct sql_rows rows, changed;

    op->id = id;
    if (!WORK_SQL(work, HOLDER, &rows, SQL_STR(id)) || !deploys_row_get(work, true) ||
        !WORK_SQL(work, RELEASE, &changed, SQL_STR(id)))
        return false;
    if (changed.changed == 1) {
        struct str owner = op->row.owner;

        op->row.generation++;
        op->u.release.released[op->u.release.released_count++] = id;
        return deploys_note(work, &op->row, "released", owner, "by an operator");
    }
    if (op->found && op->row.owner.len && rows.count > 0)
        op->u.release.held[op->u.release.held_count++] = (struct deploys_held){
            .id = id, .address = op->row.owner, .left_ms = sql_cell_int(&rows, 0, 1)};
    return true;
}

/* Seed mode: leases are ignored. */
static bool release_seed(struct work *work)
{
#define SEED(D)                                                                                    \
    "UPDATE deployment SET address = '', generation = generation + 1 WHERE address = $1"           \
    " AND type = 'deployment' AND enabled RETURNING " DEPLOYS_COLUMNS(D)
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_SQL(work, SEED, &rows, SQL_STR(op->u.release.node)))
        return false;
    op->u.release.released = arena_array(op->arena, struct str, rows.count + 1);
    for (size_t i = 0; i < rows.count; i++) {
        struct deploys_row row;

        deploys_row_read(&rows, i, &row);
        op->u.release.released[op->u.release.released_count++] = row.spec.id;
        if (!deploys_note(work, &row, "released", op->u.release.node, "its node is lost"))
            return false;
    }
    return rows.count == 0 ? deploys_meta(work) : deploys_bump(work, true);
}

bool deploys_release(struct work *work)
{
#define OF_NODE(D)                                                                                 \
    "SELECT " D##_TEXT("id") " FROM deployment WHERE address = $1 AND type = 'deployment'"         \
                             " ORDER BY " D##_ID
    struct deploys_op *op = work->op;
    const struct str *ids = op->u.release.ids;
    size_t count = op->u.release.id_count;
    struct sql_rows rows;

    assert((op->u.release.node.at != NULL) != (ids != NULL));
    if (op->u.release.seed)
        return release_seed(work);
    if (op->u.release.node.at) {
        if (!WORK_SQL(work, OF_NODE, &rows, SQL_STR(op->u.release.node)))
            return false;
        ids = rows.cells; /* one column */
        count = rows.count;
    }
    op->u.release.released = arena_array(op->arena, struct str, count + 1);
    op->u.release.held = arena_array(op->arena, struct deploys_held, count + 1);
    for (size_t i = 0; i < count; i++)
        if (namespace_lists(op->u.release.namespace, ids[i]) && !release_one(work, ids[i]))
            return false;
    return op->u.release.released_count == 0 ? deploys_meta(work) : deploys_bump(work, true);
}

bool deploys_approve(struct work *work)
{
#define APPROVE(D)                                                                                 \
    "UPDATE berth_meta SET value = CASE WHEN CAST($1 AS BIGINT) = 0 THEN 0 ELSE " D##_NOW          \
        " + CAST($1 AS BIGINT) END WHERE name = 'approved_until_ms' RETURNING value"
    struct sql_rows rows;

    assert(work->op->u.until.for_ms >= 0);
    if (!WORK_SQL(work, APPROVE, &rows, SQL_INT(work->op->u.until.for_ms)))
        return false;
    assert(rows.count == 1);
    work->op->u.until.until_ms = sql_cell_int(&rows, 0, 0);
    return deploys_bump(work, true);
}

/* An unknown node can be told to drain, too. */
bool deploys_drain(struct work *work)
{
#define DRAIN(D)                                                                                   \
    "INSERT INTO berth_node_lease (address, until_ms, renewed_ms, drain_deadline_ms) VALUES ($1, " \
    "0"                                                                                            \
    ", 0, CASE WHEN CAST($2 AS BIGINT) = 0 THEN 0 ELSE " D##_NOW                                   \
        " + CAST($2 AS BIGINT) END)"                                                               \
        " ON CONFLICT (address) DO UPDATE SET drain_deadline_ms = excluded.drain_deadline_ms"      \
        " RETURNING drain_deadline_ms"
    struct sql_rows rows;

    assert(work->op->node.len > 0 && work->op->u.until.for_ms >= 0);
    if (!WORK_SQL(work, DRAIN, &rows, SQL_STR(work->op->node), SQL_INT(work->op->u.until.for_ms)))
        return false;
    assert(rows.count == 1);
    work->op->u.until.until_ms = sql_cell_int(&rows, 0, 0);
    return deploys_bump(work, true);
}
