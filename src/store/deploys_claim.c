/* What nodes do: keep their lease, look, claim, give up, tell. Every change of owner is one UPDATE
 * whose predicate holds all of its conditions; the lease it depends on is locked first, so that a
 * renewal is either seen or waits. */
#include <assert.h>

#include "model/claim.h"
#include "model/pool.h"
#include "store/deploys_private.h"

enum {
    TOGETHER_MS = 60000,   /* nodes whose leases ended so close to each other went together */
    FORGET_MS = 300000,    /* a lease nobody needs any more is kept so long */
    FORGIVE_MS = 86400000, /* and a failure */
    FORGET_MAX = 1000,     /* in one go */
    FAILED_MS = 600000,    /* so long others come first, twice as long each time it fails again */
    FAILED_DOUBLED_MAX = 7,
};

static const char *const refusals[DEPLOYS_REFUSAL_COUNT] = {
    [DEPLOYS_TAKEN] = "ok",
    [DEPLOYS_CONFLICT] = "claim_conflict",
    [DEPLOYS_LEASE_ALIVE] = "lease_alive",
    [DEPLOYS_OWNER_ONLINE] = "owner_online",
    [DEPLOYS_NO_LEASE] = "no_lease",
    [DEPLOYS_MASS_LOSS] = "mass_loss",
    [DEPLOYS_WAS_DAEMON] = "was_daemon",
    [DEPLOYS_SELECTOR] = "selector",
    [DEPLOYS_OTHER_INSTANCE] = "other_instance",
};

const char *deploys_refusal_name(enum deploys_refusal refusal)
{
    assert(refusal < DEPLOYS_REFUSAL_COUNT);
    return refusals[refusal];
}

struct lease {
    bool known;
    int64_t until_ms;
    int64_t left_ms; /* < 0: it has run out, or there is none */
    int64_t drain_deadline_ms;
    struct str instance;
};

static bool lock_lease(struct work *work, struct str address, struct lease *ret_lease)
{
#define LEASE(D)                                                                                   \
    "SELECT until_ms, until_ms - " D##_NOW                                                         \
        ", drain_deadline_ms, instance FROM berth_node_lease WHERE address = $1" D##_LOCK
    static const struct sql_text text = DEPLOYS_BOTH(LEASE);
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(address)))
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

/* Another agent's, and it is good. Whoever does not say who it is, is taken for the right one. */
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

bool deploys_check_instance(struct work *work)
{
#define WHOSE(D) "SELECT until_ms - " D##_NOW ", instance FROM berth_node_lease WHERE address = $1"
    static const struct sql_text text = DEPLOYS_BOTH(WHOSE);
    struct lease lease;
    struct sql_rows rows;

    if (!work->op->instance.len)
        return true;
    if (!WORK_RUN(work, &text, &rows, SQL_STR(work->op->node)))
        return false;
    if (rows.count == 0)
        return true;
    lease = (struct lease){.left_ms = sql_cell_int(&rows, 0, 0), .instance = sql_cell(&rows, 0, 1)};
    return !is_others(&lease, work->op->instance) || refuse_instance(work->op, lease.left_ms);
}

/* What a renewal writes; who does not say which agent it is leaves that as it is. */
#define RENEWED(D)                                                                                 \
    "until_ms = " D##_NOW " + CAST($2 AS BIGINT), renewed_ms = " D##_NOW                           \
        ", goodbye = 0, instance = CASE WHEN CAST($3 AS TEXT) = '' THEN berth_node_lease.instance" \
        " ELSE CAST($3 AS TEXT) END"
#define IS_ITS "(CAST($3 AS TEXT) = '' OR berth_node_lease.instance IN ('', CAST($3 AS TEXT)))"

/* As it nearly always is: the lease is good and the agent's own. One statement, no other table. */
static bool renew_good(struct work *work, bool *ret_done)
{
/* clang-format off */
#define KEEP(D)                                                                                    \
    "UPDATE berth_node_lease SET " RENEWED(D) " WHERE address = $1 AND until_ms >= " D##_NOW     \
    " AND " IS_ITS " RETURNING until_ms, drain_deadline_ms, renewed_ms, (SELECT value FROM"     \
    " berth_meta WHERE name = 'version')"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(KEEP);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->node), SQL_INT(op->u.renew.lease_ms),
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

/* Two agents of one name may come for the first time at once: the second finds the first's lease.
 */
static bool write_lease(struct work *work, bool *ret_done)
{
/* clang-format off */
#define RENEW(D)                                                                                   \
    "INSERT INTO berth_node_lease (address, until_ms, renewed_ms, instance) VALUES ($1, " D##_NOW  \
    " + CAST($2 AS BIGINT), " D##_NOW ", CAST($3 AS TEXT)) ON CONFLICT (address) DO UPDATE SET "   \
    RENEWED(D) " WHERE berth_node_lease.until_ms < " D##_NOW " OR " IS_ITS                    \
    " RETURNING until_ms"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(RENEW);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->node), SQL_INT(op->u.renew.lease_ms),
                  SQL_STR(instance_of(op))))
        return false;
    *ret_done = rows.count > 0;
    if (*ret_done)
        op->u.renew.until_ms = sql_cell_int(&rows, 0, 0);
    return true;
}

/* The lease had run out: what the node still owns is an assignment anew, so that a copy that slept
 * through the end of the lease is told apart from the one that is started now. */
static bool reassign_own(struct work *work)
{
#define OWN(D)                                                                                     \
    "UPDATE deployment SET generation = generation + 1 WHERE address = $1"                         \
    " AND type = 'deployment' RETURNING " DEPLOYS_COLUMNS(D)
    static const struct sql_text text = DEPLOYS_BOTH(OWN);
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(work->op->node)))
        return false;
    for (size_t i = 0; i < rows.count; i++) {
        struct deploys_row row;

        deploys_row_read(&rows, i, &row);
        if (!deploys_note(work, &row, "lapsed", row.address, "its node's lease had run out"))
            return false;
    }
    return rows.count == 0 || deploys_bump(work, false);
}

/* Leases that were renewed in the future: the database's clock was set back, or another server took
 * over whose clock is behind. Nobody has more than the whole of one left; else what a node had that
 * was lost then would belong to nobody for as long as the clock went back. They are those that end
 * last; who is not lost renews its own. By less than a second is no difference. */
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
    static const struct sql_text ahead = DEPLOYS_BOTH(AHEAD);
    static const struct sql_text cut = DEPLOYS_BOTH(CUT);
    struct sql_rows rows;

    if (!WORK_RUN(work, &ahead, &rows))
        return false;
    for (size_t i = 0; i < rows.count; i++)
        if (!WORK_RUN(work, &cut, NULL, SQL_STR(sql_cell(&rows, i, 0))))
            return false;
    return true;
}

/* Nodes come and go under new names. What they left is of no use when it owns nothing and did not
 * end together with one that does: those are counted when more than half went at once. */
bool deploys_forget(struct work *work, bool *ret_more)
{
/* clang-format off */
#define OWNS "CASE WHEN EXISTS (SELECT 1 FROM deployment d WHERE d.address = l.address)"           \
    " THEN 1 ELSE 0 END"
#define FORGET(D)                                                                                  \
    "DELETE FROM berth_node_lease WHERE until_ms < " D##_BEGUN " - CAST($1 AS BIGINT)"               \
    " AND address IN (SELECT address FROM (SELECT address, until_ms, drain_deadline_ms,"           \
    " SUM(owns) OVER (ORDER BY until_ms RANGE BETWEEN 60000 PRECEDING AND 60000 FOLLOWING) AS near"\
    " FROM (SELECT l.address, l.until_ms, l.drain_deadline_ms, " OWNS " AS owns"                   \
    " FROM berth_node_lease l WHERE l.until_ms < " D##_BEGUN                                         \
    " - CAST($1 AS BIGINT) + 60000) AS gone) AS together WHERE near = 0 AND until_ms < " D##_BEGUN   \
    " - CAST($1 AS BIGINT) AND drain_deadline_ms < " D##_BEGUN " LIMIT CAST($2 AS BIGINT))"          \
    " RETURNING address"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(FORGET);
    static const struct sql_text copies = {
        {"DELETE FROM berth_deployment_status WHERE address = $1",
         "DELETE FROM berth_deployment_status WHERE address = $1"}};
    struct sql_rows rows;

    _Static_assert(TOGETHER_MS == 60000, "it stands in the statement");
    if (!work_begin(work) || !cut_leases(work) ||
        !WORK_RUN(work, &text, &rows, SQL_INT(FORGET_MS), SQL_INT(FORGET_MAX)))
        return false;
    for (size_t i = 0; i < rows.count; i++)
        if (!WORK_RUN(work, &copies, NULL, SQL_STR(sql_cell(&rows, i, 0))))
            return false;
    *ret_more = rows.count == FORGET_MAX;
    return true;
}

static bool read_own(struct work *work)
{
/* clang-format off */
#define MUST_RUN(D)                                                                                \
    "SELECT " DEPLOYS_COLUMNS(D) ", COALESCE((SELECT s.state FROM berth_deployment_status s"       \
    " WHERE s.id = " D##_TEXT("deployment.id") " AND s.address = $1"                               \
    " AND s.version = deployment.spec_version AND s.state IN ('finished', 'failed')), ended)"      \
    " FROM deployment WHERE enabled AND type = 'daemon' UNION ALL SELECT " DEPLOYS_COLUMNS(D)      \
    ", ended FROM deployment WHERE enabled AND type = 'deployment' AND address = $1 ORDER BY 1"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(MUST_RUN);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->node)))
        return false;
    op->u.renew.count = rows.count;
    op->u.renew.items = arena_array(op->arena, struct deploys_row, rows.count + 1);
    for (size_t i = 0; i < rows.count; i++) {
        deploys_row_read(&rows, i, &op->u.renew.items[i]);
        op->u.renew.items[i].ended = sql_cell(&rows, i, DEPLOYS_COLUMN_COUNT);
    }
    return true;
}

/* It stops in peace. What it leaves may run on, so the lease stays as it is. */
static bool say_goodbye(struct work *work)
{
    static const struct sql_text text = {
        {"UPDATE berth_node_lease SET goodbye = 1 WHERE address = $1 RETURNING until_ms",
         "UPDATE berth_node_lease SET goodbye = 1 WHERE address = $1 RETURNING until_ms"}};
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!deploys_check_instance(work))
        return false;
    if (op->err)
        return true;
    if (!work_begin(work) || !WORK_RUN(work, &text, &rows, SQL_STR(op->node)))
        return false;
    op->u.renew.until_ms = rows.count > 0 ? sql_cell_int(&rows, 0, 0) : 0;
    op->u.renew.unchanged = true;
    return deploys_meta(work);
}

/* The lease has run out, or is another agent's, or there is none. An agent whose own clock says
 * that it never was without one is believed: then it was the database's clock that was put forward,
 * and what runs may run on, unless somebody took it. */
static bool renew_anew(struct work *work)
{
    struct deploys_op *op = work->op;
    struct lease lease;
    bool done;

    if (!work_begin(work) || !lock_lease(work, op->node, &lease))
        return false;
    if (is_others(&lease, instance_of(op)))
        return refuse_instance(op, lease.left_ms);
    if (!write_lease(work, &done))
        return false;
    if (!done)
        return refuse_instance(op, op->u.renew.lease_ms);
    op->u.renew.drain_deadline_ms = lease.drain_deadline_ms;
    op->u.renew.lapsed = lease.left_ms < 0 && !(op->u.renew.held && op->instance.len > 0 &&
                                                str_eq(op->instance, lease.instance));
    return (!op->u.renew.lapsed || reassign_own(work)) && deploys_meta(work);
}

static bool tell_own(struct work *work)
{
    struct deploys_op *op = work->op;

    assert(op->u.renew.until_ms > op->u.renew.lease_ms);
    op->u.renew.unchanged = !op->u.renew.lapsed && op->u.renew.if_version == op->version;
    return op->u.renew.unchanged || read_own(work);
}

bool deploys_renew_good(struct work *work, bool *ret_done)
{
    assert(work->op->u.renew.lease_ms > 0 && work->op->node.len > 0 && !work->op->u.renew.goodbye);
    return renew_good(work, ret_done) && (!*ret_done || tell_own(work));
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
    return op->err || tell_own(work);
}

/* --- claims --- */

/* May what a lost node has be claimed? Not if more nodes went together with it, without a goodbye,
 * than are left. Nobody else's lease is looked at, nor any deployment. */
static bool check_mass_loss(struct work *work, const struct lease *owner, bool *ret_lost)
{
#define GONE(D)                                                                                    \
    "SELECT COUNT(*), (SELECT value FROM berth_meta WHERE name = 'approved_until_ms') "            \
    "- " D##_BEGUN                                                                                 \
        " FROM berth_node_lease WHERE until_ms >= CAST($1 AS BIGINT) AND until_ms <= CAST($2 AS "  \
        "BIGINT) AND until_ms < " D##_BEGUN " AND goodbye = 0"
    static const struct sql_text gone = DEPLOYS_BOTH(GONE);
#define LEFT(D)                                                                                    \
    "SELECT COUNT(*) FROM (SELECT 1 FROM berth_node_lease WHERE until_ms >= " D##_BEGUN            \
        " LIMIT CAST($1 AS BIGINT)) AS left_over"
    static const struct sql_text left = DEPLOYS_BOTH(LEFT);
    struct sql_rows rows;
    int64_t lost;

    *ret_lost = false;
    if (!owner->known)
        return true;
    if (!WORK_RUN(work, &gone, &rows, SQL_INT(owner->until_ms - TOGETHER_MS),
                  SQL_INT(owner->until_ms + TOGETHER_MS)))
        return false;
    lost = sql_cell_int(&rows, 0, 0);
    if (sql_cell_int(&rows, 0, 1) >= 0 || !claim_mass_loss(0, (size_t)lost))
        return true;
    if (!WORK_RUN(work, &left, &rows, SQL_INT(lost)))
        return false;
    *ret_lost = claim_mass_loss((size_t)sql_cell_int(&rows, 0, 0), (size_t)lost);
    return true;
}

/* Of the owner and the claimer, in the order in which everybody locks several: by address. */
static bool lock_leases(struct work *work, struct lease *ret_owner, struct lease *ret_own)
{
    struct str owner = work->op->u.claim.observed, own = work->op->node;

    *ret_owner = (struct lease){.left_ms = -1};
    if (!owner.len)
        return lock_lease(work, own, ret_own);
    return str_cmp(owner, own) < 0
               ? lock_lease(work, owner, ret_owner) && lock_lease(work, own, ret_own)
               : lock_lease(work, own, ret_own) && lock_lease(work, owner, ret_owner);
}

/* Both leases locked; what stands against it, beside what the UPDATE itself finds. */
static bool check_leases(struct work *work, struct lease *ret_owner)
{
    struct deploys_op *op = work->op;
    struct lease own;

    assert(!op->u.claim.seed && op->refusal == DEPLOYS_TAKEN);
    if (!lock_leases(work, ret_owner, &own))
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

/* The first answer was lost: the row is as this very claim left it. */
static bool claimed_before(const struct deploys_op *op, struct str address)
{
    return op->found && str_eq(op->row.address, address) &&
           op->row.generation == op->u.claim.generation + 1;
}

static bool take(struct work *work, int64_t *ret_changed)
{
#define CLAIM(D)                                                                                   \
    "UPDATE deployment SET address = CAST($2 AS TEXT), generation = generation + 1"                \
    " WHERE " D##_ID                                                                               \
        " = $1 AND type = 'deployment' AND enabled AND ended = ''"                                 \
        " AND address = CAST($3 AS TEXT) AND generation = $4 AND (CAST($5 AS BIGINT) = 1 OR ("     \
        "free_from_ms < " D##_NOW                                                                  \
        " AND EXISTS (SELECT 1 FROM berth_node_lease WHERE address = CAST($2 AS TEXT)"             \
        " AND until_ms >= " D##_NOW                                                                \
        ") AND NOT EXISTS (SELECT 1 FROM berth_node_lease WHERE address = CAST($3 AS TEXT)"        \
        " AND until_ms >= " D##_NOW ")))"
    static const struct sql_text text = DEPLOYS_BOTH(CLAIM);
    const struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->id), SQL_STR(op->node),
                  SQL_STR(op->u.claim.observed), SQL_INT(op->u.claim.generation),
                  SQL_INT(op->u.claim.seed)))
        return false;
    assert(rows.changed <= 1);
    *ret_changed = rows.changed;
    return true;
}

/* Copies of former owners are no longer this deployment's. */
static bool forget_copies(struct work *work)
{
    static const struct sql_text text = {
        {"DELETE FROM berth_deployment_status WHERE id = $1 AND address <> $2",
         "DELETE FROM berth_deployment_status WHERE id = $1 AND address <> $2"}};

    return WORK_RUN(work, &text, NULL, SQL_STR(work->op->id), SQL_STR(work->op->node));
}

/* Is the row as the claimer saw it? Only then is it worth looking how many nodes went. */
static bool is_observed(const struct deploys_op *op)
{
    return op->found && op->row.spec.type == DEPLOY_DEPLOYMENT && op->row.spec.enabled &&
           op->row.ended.len == 0 && str_eq(op->row.address, op->u.claim.observed) &&
           op->row.generation == op->u.claim.generation;
}

static bool taken(struct work *work)
{
    struct deploys_op *op = work->op;
    const char *what = op->u.claim.observed.len ? "taken over" : "claimed";

    return deploys_row_get(work, false) && forget_copies(work) &&
           deploys_note(work, &op->row, what, op->node,
                        op->u.claim.observed.len ? arena_cstr(op->arena, op->u.claim.observed)
                                                 : "") &&
           deploys_bump(work, false);
}

static bool refuse_claim(struct work *work)
{
    struct deploys_op *op = work->op;

    if (!deploys_meta(work))
        return false;
    if (!op->found || !str_eq(op->row.address, op->u.claim.observed))
        op->refusal = DEPLOYS_CONFLICT;
    else if (op->refusal == DEPLOYS_TAKEN)
        op->refusal = is_observed(op) && op->row.free_from_ms >= op->now_ms ? DEPLOYS_WAS_DAEMON
                                                                            : DEPLOYS_CONFLICT;
    op->err = ERR_CONFLICT;
    return true;
}

bool deploys_claim(struct work *work)
{
    struct deploys_op *op = work->op;
    struct lease owner = {0};
    bool mass_loss = false;
    int64_t changed = 0;

    assert(op->node.len > 0 && op->u.claim.observed.at);
    op->refusal = DEPLOYS_TAKEN;
    if (!op->u.claim.seed && !check_leases(work, &owner))
        return false;
    if (op->err)
        return true;
    if (!deploys_row_get(work, true))
        return false;
    if (claimed_before(op, op->node) && op->refusal != DEPLOYS_NO_LEASE) {
        op->refusal = DEPLOYS_TAKEN;
        op->u.claim.duplicate = true;
        return deploys_meta(work);
    }
    if (op->refusal == DEPLOYS_TAKEN && is_observed(op) &&
        !selector_match(op->row.spec.selector, op->u.claim.labels))
        op->refusal = DEPLOYS_SELECTOR;
    if (op->refusal == DEPLOYS_TAKEN && is_observed(op) &&
        !check_mass_loss(work, &owner, &mass_loss))
        return false;
    if (mass_loss)
        op->refusal = DEPLOYS_MASS_LOSS;
    if (op->refusal == DEPLOYS_TAKEN && !take(work, &changed))
        return false;
    return changed == 1 ? taken(work) : refuse_claim(work);
}

/* It failed here: for a while others come first. */
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
    static const struct sql_text text = DEPLOYS_BOTH(FAILED);
#define FORGIVE(D)                                                                                 \
    "DELETE FROM berth_deployment_failure WHERE until_ms < " D##_NOW " - CAST($1 AS BIGINT)"
    static const struct sql_text forgive = DEPLOYS_BOTH(FORGIVE);
    const struct deploys_op *op = work->op;

    return WORK_RUN(work, &text, NULL, SQL_STR(op->id), SQL_STR(op->node), SQL_INT(FAILED_MS),
                    SQL_STR(op->u.claim.reason.at ? op->u.claim.reason : STR("")),
                    SQL_INT(FAILED_DOUBLED_MAX)) &&
           WORK_RUN(work, &forgive, NULL, SQL_INT(FORGIVE_MS));
}

bool deploys_yield(struct work *work)
{
#define YIELD(D)                                                                                   \
    "UPDATE deployment SET address = '', generation = generation + 1 WHERE " D##_ID                \
        " = $1 AND type = 'deployment' AND address = CAST($2 AS TEXT) AND generation = $3"
    static const struct sql_text text = DEPLOYS_BOTH(YIELD);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    assert(op->node.len > 0 && op->id.len > 0);
    op->refusal = DEPLOYS_TAKEN;
    if (!deploys_check_instance(work))
        return false;
    if (op->err)
        return true;
    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->id), SQL_STR(op->node),
                  SQL_INT(op->u.claim.generation)) ||
        !deploys_row_get(work, false))
        return false;
    if (rows.changed == 1)
        /* A spec that was changed since says nothing yet. */
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
