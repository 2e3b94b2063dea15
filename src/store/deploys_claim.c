/* What nodes do: keep their lease, look, claim, give up, tell. Every change of owner is one UPDATE
 * whose predicate holds all of its conditions; the lease it depends on is locked first, so that a
 * renewal is either seen or waits. */
#include <assert.h>

#include "model/claim.h"
#include "store/deploys_private.h"

enum {
    TOGETHER_MS = 60000,  /* nodes whose leases ended so close to each other went together */
    FORGET_MS = 86400000, /* a lease nobody needs any more is kept so long */
    FAILED_MS = 600000,   /* so long others come first, twice as long each time it fails again */
    FAILED_DOUBLED_MAX = 7,
};

static const char *const refusals[DEPLOYS_REFUSAL_COUNT] = {
    [DEPLOYS_TAKEN] = "ok",
    [DEPLOYS_CONFLICT] = "claim_conflict",
    [DEPLOYS_LEASE_ALIVE] = "lease_alive",
    [DEPLOYS_OWNER_ONLINE] = "owner_online",
    [DEPLOYS_NO_LEASE] = "no_lease",
    [DEPLOYS_MASS_LOSS] = "mass_loss",
};

const char *deploys_refusal_name(enum deploys_refusal refusal)
{
    assert(refusal < DEPLOYS_REFUSAL_COUNT);
    return refusals[refusal];
}

/* How long the lease of a node still lasts; false in *ret_known: it has none. */
static bool lock_lease(struct work *work, struct str address, bool *ret_known, int64_t *ret_left_ms,
                       int64_t *ret_drain_ms)
{
#define LEASE(D)                                                                                   \
    "SELECT until_ms - " D##_NOW                                                                   \
        ", drain_deadline_ms FROM berth_node_lease WHERE address = $1" D##_LOCK
    static const struct sql_text text = DEPLOYS_BOTH(LEASE);
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(address)))
        return false;
    *ret_known = rows.count > 0;
    *ret_left_ms = *ret_known ? sql_cell_int(&rows, 0, 0) : -1;
    *ret_drain_ms = *ret_known ? sql_cell_int(&rows, 0, 1) : 0;
    return true;
}

static bool write_lease(struct work *work)
{
#define RENEW(D)                                                                                   \
    "INSERT INTO berth_node_lease (address, until_ms, renewed_ms) VALUES ($1, " D##_NOW            \
        " + CAST($2 AS BIGINT), " D##_NOW                                                          \
        ") ON CONFLICT (address) DO UPDATE SET until_ms = excluded.until_ms,"                      \
        " renewed_ms = excluded.renewed_ms, goodbye = 0 RETURNING until_ms"
    static const struct sql_text text = DEPLOYS_BOTH(RENEW);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->node), SQL_INT(op->u.renew.lease_ms)))
        return false;
    assert(rows.count == 1);
    op->u.renew.until_ms = sql_cell_int(&rows, 0, 0);
    assert(op->u.renew.until_ms > op->u.renew.lease_ms);
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

/* Nodes come and go under new names: what they left is cleared whenever one comes. */
static bool forget_old(struct work *work)
{
#define FORGET(D)                                                                                  \
    "DELETE FROM berth_node_lease WHERE until_ms < " D##_NOW " - CAST($1 AS BIGINT)"               \
                                                             " AND drain_deadline_ms < " D##_NOW   \
        " AND NOT EXISTS (SELECT 1 FROM deployment d"                                              \
        " WHERE d.address = berth_node_lease.address)"
    static const struct sql_text text = DEPLOYS_BOTH(FORGET);

    return WORK_RUN(work, &text, NULL, SQL_INT(FORGET_MS));
}

static bool read_own(struct work *work)
{
/* clang-format off */
#define MUST_RUN(D)                                                                                \
    "SELECT " DEPLOYS_COLUMNS(D) ", COALESCE((SELECT s.state FROM berth_deployment_status s"       \
    " WHERE deployment.type = 'daemon' AND s.id = " D##_TEXT("deployment.id") " AND s.address = $1"\
    " AND s.version = deployment.spec_version AND s.state IN ('finished', 'failed')), ended)"      \
    " FROM deployment WHERE enabled AND (type = 'daemon' OR (type = 'deployment' AND address = $1" \
    ")) ORDER BY " D##_BYTES("id")
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

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->node)))
        return false;
    op->u.renew.until_ms = rows.count > 0 ? sql_cell_int(&rows, 0, 0) : 0;
    op->u.renew.unchanged = true;
    return deploys_meta(work);
}

bool deploys_renew(struct work *work)
{
    struct deploys_op *op = work->op;
    int64_t left_ms;
    bool known;

    assert(op->u.renew.lease_ms > 0 && op->node.len > 0);
    if (op->u.renew.goodbye)
        return say_goodbye(work);
    if (!lock_lease(work, op->node, &known, &left_ms, &op->u.renew.drain_deadline_ms))
        return false;
    op->u.renew.lapsed = !known || left_ms < 0;
    if (!write_lease(work) || (op->u.renew.lapsed && !(reassign_own(work) && forget_old(work))) ||
        !deploys_meta(work))
        return false;
    op->u.renew.unchanged = !op->u.renew.lapsed && op->u.renew.if_version == op->version;
    return op->u.renew.unchanged || read_own(work);
}

static bool read_leases(struct work *work)
{
#define LEASES(D)                                                                                  \
    "SELECT address, until_ms - " D##_NOW                                                          \
        ", drain_deadline_ms, goodbye FROM berth_node_lease ORDER BY " D##_BYTES("address")
    static const struct sql_text text = DEPLOYS_BOTH(LEASES);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!sql_run(work->sql, &text, NULL, 0, op->arena, &rows))
        return false;
    op->u.view.lease_count = rows.count;
    op->u.view.leases = arena_array(op->arena, struct deploys_lease, rows.count + 1);
    for (size_t i = 0; i < rows.count; i++)
        op->u.view.leases[i] =
            (struct deploys_lease){.address = sql_cell(&rows, i, 0),
                                   .left_ms = sql_cell_int(&rows, i, 1),
                                   .drain_deadline_ms = sql_cell_int(&rows, i, 2),
                                   .goodbye = sql_cell_int(&rows, i, 3) != 0};
    return true;
}

static bool read_view(struct work *work)
{
/* One that ran to its end is as good as disabled: nobody counts it, nobody claims it. */
/* clang-format off */
#define VIEW(D)                                                                                    \
    "SELECT " D##_TEXT("id") ", type, enabled AND ended = '', address, generation, selector, "     \
    D##_WHEN("created_at") ", " D##_WHEN("updated_at") " FROM deployment WHERE "                   \
    D##_BYTES("id") " > $1 ORDER BY " D##_BYTES("id") " LIMIT CAST($2 AS BIGINT)"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(VIEW);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->u.view.after.at ? op->u.view.after : STR("")),
                  SQL_INT(DEPLOYS_PAGE_MAX + 1)))
        return false;
    op->u.view.more = rows.count > DEPLOYS_PAGE_MAX;
    op->u.view.count = op->u.view.more ? DEPLOYS_PAGE_MAX : rows.count;
    op->u.view.items = arena_array(op->arena, struct deploy_row, rows.count + 1);
    for (size_t i = 0; i < op->u.view.count; i++)
        op->u.view.items[i] =
            (struct deploy_row){.id = sql_cell(&rows, i, 0),
                                .type = deploy_type_by_name(sql_cell(&rows, i, 1)),
                                .enabled = sql_cell_bool(&rows, i, 2),
                                .address = sql_cell(&rows, i, 3),
                                .generation = sql_cell_int(&rows, i, 4),
                                .selector = sql_cell(&rows, i, 5),
                                .created_at = sql_cell(&rows, i, 6),
                                .updated_at = sql_cell(&rows, i, 7)};
    return true;
}

static bool read_approved(struct work *work)
{
    static const struct sql_text text = {
        {"SELECT value FROM berth_meta WHERE name = 'approved_until_ms'",
         "SELECT value FROM berth_meta WHERE name = 'approved_until_ms'"}};
    struct sql_rows rows;

    if (!sql_run(work->sql, &text, NULL, 0, work->op->arena, &rows))
        return false;
    work->op->u.view.approved_until_ms = rows.count > 0 ? sql_cell_int(&rows, 0, 0) : 0;
    return true;
}

/* Leases change without a new version, and failures are forgotten without one: both are told also
 * when nothing else has changed. */
bool deploys_view(struct work *work)
{
    struct deploys_op *op = work->op;

    if (!deploys_meta(work) || !read_approved(work) ||
        (!op->u.view.after.len && !(read_leases(work) && deploys_failures(work))))
        return false;
    op->u.view.unchanged = op->u.view.if_version == op->version;
    return op->u.view.unchanged || read_view(work);
}

/* May anything of a lost node be claimed? The nodes whose lease is good against those that went:
 * owners, and with them whoever went at about the same time. A node that said goodbye is no loss,
 * nor one that owned nothing and left alone. */
static bool check_mass_loss(struct work *work, bool *ret_lost)
{
#define LOSS(D)                                                                                    \
    "SELECT COALESCE(SUM(CASE WHEN l.until_ms >= " D##_NOW                                         \
        " THEN 1 ELSE 0 END), 0),"                                                                 \
        " COALESCE(SUM(CASE WHEN l.goodbye = 0 AND l.until_ms < " D##_NOW                          \
        " AND EXISTS (SELECT 1 FROM berth_node_lease"                                              \
        " o JOIN deployment d ON d.address = o.address WHERE o.until_ms < " D##_NOW                \
        " AND o.goodbye = 0 AND o.until_ms >= l.until_ms - CAST($1 AS BIGINT)"                     \
        " AND o.until_ms <= l.until_ms + CAST($1 AS BIGINT)"                                       \
        " AND d.enabled AND d.type = 'deployment') THEN 1 ELSE 0 END), 0),"                        \
        " (SELECT value FROM berth_meta WHERE name = 'approved_until_ms') - " D##_NOW              \
        " FROM berth_node_lease l"
    static const struct sql_text text = DEPLOYS_BOTH(LOSS);
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_INT(TOGETHER_MS)))
        return false;
    assert(rows.count == 1);
    *ret_lost = sql_cell_int(&rows, 0, 2) < 0 && claim_mass_loss((size_t)sql_cell_int(&rows, 0, 0),
                                                                 (size_t)sql_cell_int(&rows, 0, 1));
    return true;
}

/* What stands against it, beside what the UPDATE itself finds. */
static bool check_leases(struct work *work)
{
    struct deploys_op *op = work->op;
    int64_t owner_ms = -1, own_ms, drain_ms;
    bool known, mass_loss = false;

    assert(!op->u.claim.seed && op->u.claim.refusal == DEPLOYS_TAKEN);
    if (op->u.claim.observed.len &&
        (!lock_lease(work, op->u.claim.observed, &known, &owner_ms, &drain_ms) ||
         !check_mass_loss(work, &mass_loss)))
        return false;
    if (!lock_lease(work, op->node, &known, &own_ms, &drain_ms))
        return false;
    if (own_ms < 0)
        op->u.claim.refusal = DEPLOYS_NO_LEASE;
    else if (owner_ms >= 0)
        op->u.claim.refusal = DEPLOYS_LEASE_ALIVE;
    else if (op->u.claim.owner_online && owner_ms > -op->u.claim.lease_ms)
        op->u.claim.refusal = DEPLOYS_OWNER_ONLINE;
    else if (mass_loss)
        op->u.claim.refusal = DEPLOYS_MASS_LOSS;
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
    " WHERE " D##_TEXT("id") " = $1 AND type = 'deployment' AND enabled AND ended = ''"            \
                             " AND address = CAST($3 AS TEXT) AND generation = $4 AND (CAST($5 "   \
                             "AS BIGINT) = 1 OR ("                                                 \
                             "EXISTS (SELECT 1 FROM berth_node_lease WHERE address = CAST($2 AS "  \
                             "TEXT) AND until_ms >= " D##_NOW                                      \
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

bool deploys_claim(struct work *work)
{
    struct deploys_op *op = work->op;
    const char *what = op->u.claim.observed.len ? "taken over" : "claimed";
    int64_t changed = 0;

    assert(op->node.len > 0 && op->u.claim.observed.at);
    op->u.claim.refusal = DEPLOYS_TAKEN;
    if ((!op->u.claim.seed && !check_leases(work)) || !deploys_row_get(work, true))
        return false;
    if (claimed_before(op, op->node) && op->u.claim.refusal != DEPLOYS_NO_LEASE) {
        op->u.claim.refusal = DEPLOYS_TAKEN;
        op->u.claim.duplicate = true;
        return deploys_meta(work);
    }
    if (op->u.claim.refusal == DEPLOYS_TAKEN && !take(work, &changed))
        return false;
    if (changed == 1)
        return deploys_row_get(work, false) && forget_copies(work) &&
               deploys_note(work, &op->row, what, op->node,
                            op->u.claim.observed.len ? arena_cstr(op->arena, op->u.claim.observed)
                                                     : "") &&
               deploys_bump(work, false);
    if (op->u.claim.refusal == DEPLOYS_TAKEN || !op->found ||
        !str_eq(op->row.address, op->u.claim.observed))
        op->u.claim.refusal = DEPLOYS_CONFLICT;
    assert(changed == 0 && op->u.claim.refusal != DEPLOYS_TAKEN);
    op->err = ERR_CONFLICT;
    return deploys_meta(work);
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
           WORK_RUN(work, &forgive, NULL, SQL_INT(FORGET_MS));
}

bool deploys_yield(struct work *work)
{
#define YIELD(D)                                                                                   \
    "UPDATE deployment SET address = '', generation = generation + 1 WHERE " D##_TEXT(             \
        "id") " = $1 AND type = 'deployment' AND address = CAST($2 AS TEXT) AND generation = $3"
    static const struct sql_text text = DEPLOYS_BOTH(YIELD);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    assert(op->node.len > 0 && op->id.len > 0);
    op->u.claim.refusal = DEPLOYS_TAKEN;
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
        op->u.claim.refusal = DEPLOYS_CONFLICT;
        op->err = ERR_CONFLICT;
    }
    return deploys_meta(work);
}
