/* Updates of several copies: each copy's row has the spec it should run, and the new spec is
 * written row by row as model/rollout.h decides. The spec of every version is saved for rollbacks:
 * a version number always means the same spec. */
#include "store/deploys_row.h"

#include <assert.h>

#include "model/rollout.h"

enum { SPECS_KEPT = 50 }; /* versions of one deployment */

/* --- saved versions --- */

bool deploys_keep_spec(struct work *work)
{
/* clang-format off */
#define KEEP_SPEC(D)                                                                               \
    "INSERT INTO berth_deployment_spec (id, version, type, package_name, package_version, command,"\
    " args, env, selector, options) SELECT " D##_TEXT("id") ", spec_version, type, package_name,"  \
    " package_version, command, " D##_TEXT("args") ", " D##_TEXT("env") ", selector, "             \
    D##_TEXT("options") " FROM deployment WHERE " D##_ID " = $1 ON CONFLICT (id, version) DO NOTHING"
#define PRUNE_SPECS(D)                                                                             \
    "DELETE FROM berth_deployment_spec WHERE id = $1 AND version <= (SELECT version FROM"          \
    " berth_deployment_spec WHERE id = $1 ORDER BY version DESC LIMIT 1 OFFSET CAST($2 AS BIGINT))"\
    " AND version <> (SELECT good_version FROM deployment WHERE " D##_ID " = $1)"
    /* clang-format on */

    return WORK_SQL(work, KEEP_SPEC, NULL, SQL_STR(work->op->id)) &&
           WORK_SQL(work, PRUNE_SPECS, NULL, SQL_STR(work->op->id), SQL_INT(SPECS_KEPT));
}

bool deploys_forget_specs(struct work *work)
{
#define FORGET_SPECS(D) "DELETE FROM berth_deployment_spec WHERE id = $1"

    return WORK_SQL(work, FORGET_SPECS, NULL, SQL_STR(work->op->id));
}

bool deploys_kept_spec(struct work *work, int64_t version, struct deploys_spec *ret_spec,
                       bool *ret_found)
{
#define KEPT_SPEC(D)                                                                               \
    "SELECT type, package_name, package_version, command, args, env, selector, options"            \
    " FROM berth_deployment_spec WHERE id = $1 AND version = $2"
    struct sql_rows rows;

    if (!WORK_SQL(work, KEPT_SPEC, &rows, SQL_STR(work->op->id), SQL_INT(version)))
        return false;
    *ret_found = rows.count > 0;
    if (*ret_found)
        *ret_spec = (struct deploys_spec){.id = work->op->id,
                                          .type = deploy_type_by_name(sql_cell(&rows, 0, 0)),
                                          .package_name = sql_cell(&rows, 0, 1),
                                          .package_version = sql_cell(&rows, 0, 2),
                                          .command = sql_cell(&rows, 0, 3),
                                          .args = sql_cell(&rows, 0, 4),
                                          .env = sql_cell(&rows, 0, 5),
                                          .selector = sql_cell(&rows, 0, 6),
                                          .options = sql_cell(&rows, 0, 7)};
    return true;
}

/* --- from row to row --- */

/* Ends an update, if there is one: all copies get the spec of the first. */
static bool copy_spec_to_all(struct work *work, int64_t good)
{
/* clang-format off */
#define COPY_SPEC(D)                                                                               \
    "UPDATE deployment SET package_name = h.package_name, package_version = h.package_version,"    \
    " command = h.command, args = h.args, env = h.env, selector = h.selector,"                     \
    " options = h.options, enabled = h.enabled, ended = '', spec_version = h.spec_version,"        \
    " updated_at = h.updated_at, tried_ms = " D##_NOW                                              \
    ", rolling = 0 FROM (SELECT * FROM deployment WHERE " D##_ID                                   \
    " = $1) AS h WHERE " COPY_OF("deployment.", "$1")
#define CLEAR_ROLLOUT(D)                                                                           \
    "UPDATE deployment SET rollout = '', rollout_reason = '', rolling = 0, good_version = $2"      \
    " WHERE " D##_ID " = $1"
    /* clang-format on */

    work->op->row.good_version = good;
    return WORK_SQL(work, CLEAR_ROLLOUT, NULL, SQL_STR(work->op->id), SQL_INT(good)) &&
           (work->op->row.spec.count <= 1 ||
            WORK_SQL(work, COPY_SPEC, NULL, SQL_STR(work->op->id)));
}

/* The first copy's row also has the state of the update; every row has `rolling` while there is
 * one. */
static bool set_rollout(struct work *work, enum rollout_state state, int64_t good, bool rolling,
                        struct str reason)
{
#define SET_ROLLOUT(D)                                                                             \
    "UPDATE deployment SET rollout = $2, good_version = $3, rolling = $4, rollout_reason = $5"     \
    " WHERE " D##_ID " = $1"
#define SET_ROLLING(D) "UPDATE deployment SET rolling = $2 WHERE " COPY_OF("", "$1")
    struct deploys_op *op = work->op;

    op->row.rollout = state;
    op->row.good_version = good;
    op->row.rollout_reason = reason;
    return WORK_SQL(work, SET_ROLLOUT, NULL, SQL_STR(op->id),
                    SQL_STR(str_of(rollout_state_name(state))), SQL_INT(good), SQL_INT(rolling),
                    SQL_STR(reason)) &&
           WORK_SQL(work, SET_ROLLING, NULL, SQL_STR(op->id), SQL_INT(rolling));
}

struct group {
    struct rollout_copy *copies;
    struct sql_rows rows; /* id, wants, address, runs, state, healthy, reason, lease, ... */
};

static bool read_group(struct work *work, struct group *ret_group)
{
/* clang-format off */
#define GROUP(D)                                                                                   \
    "SELECT " D##_TEXT("d.id") ", d.spec_version, d.address, s.version, s.state, s.healthy,"       \
    " s.reason, COALESCE(l.until_ms, 0) - " D##_NOW ", CASE WHEN d.tried_ms = 0 THEN 0 ELSE "      \
    D##_NOW " - d.tried_ms END, CASE WHEN EXISTS (SELECT 1 FROM berth_node_lease n WHERE"          \
    " n.until_ms >= " D##_NOW ") THEN 1 ELSE 0 END FROM deployment d"                              \
    " LEFT JOIN berth_deployment_status s ON s.id = " D##_TEXT("d.id") " AND s.address = d.address"\
    " AND s.generation = d.generation LEFT JOIN berth_node_lease l ON l.address = d.address"       \
    " WHERE " D##_BYTES("d.id") " = $1 OR " COPY_OF("d.", "$1")                                    \
    " ORDER BY d.copy_index"
    /* clang-format on */
    struct sql_rows *rows = &ret_group->rows;

    if (!WORK_SQL(work, GROUP, rows, SQL_STR(work->op->id)))
        return false;
    ret_group->copies = arena_array(work->op->arena, struct rollout_copy, rows->count + 1);
    for (size_t i = 0; i < rows->count; i++) {
        bool alive = sql_cell_int(rows, i, 7) >= 0, owned = sql_cell(rows, i, 2).len > 0;
        bool over = sql_cell_int(rows, i, 8) > work->op->row.spec.update_timeout_ms;

        ret_group->copies[i] = (struct rollout_copy){
            .wants = sql_cell_int(rows, i, 1),
            .runs = sql_cell_int(rows, i, 3),
            .health = alive ? rollout_health(sql_cell(rows, i, 4), sql_cell(rows, i, 5))
                            : ROLLOUT_UNKNOWN,
            .owned = owned,
            /* Without a live node nothing can be said about a version. */
            .late = over && (owned ? alive : sql_cell_int(rows, i, 9) != 0)};
    }
    return true;
}

bool deploys_set_spec(struct work *work, struct str id, const struct deploys_spec *spec,
                      int64_t version)
{
/* clang-format off */
#define SET_SPEC(D)                                                                                \
    "UPDATE deployment SET package_name = $2, package_version = $3, command = $4, args = $5,"      \
    " env = $6, selector = $7, options = $8, spec_version = $9, ended = '', tried_ms = " D##_NOW   \
    ", updated_at = " D##_TIME " WHERE " D##_ID " = $1"
#define FORGIVE_COPY(D) "DELETE FROM berth_deployment_failure WHERE id = $1"
    /* clang-format on */

    return WORK_SQL(work, SET_SPEC, NULL, SQL_STR(id), SQL_STR(spec->package_name),
                    SQL_STR(spec->package_version), SQL_STR(spec->command), SQL_STR(spec->args),
                    SQL_STR(spec->env), SQL_STR(spec->selector), SQL_STR(spec->options),
                    SQL_INT(version)) &&
           WORK_SQL(work, FORGIVE_COPY, NULL, SQL_STR(id));
}

/* "Version 2 is not well: index 0 on n1 (backoff). Exit code 3." */
static struct str failure_text(const struct deploys_op *op, const struct group *group,
                               const struct rollout_plan *plan)
{
    const struct sql_rows *rows = &group->rows;
    struct str id = sql_cell(rows, plan->failed, 0), address = sql_cell(rows, plan->failed, 2);
    struct str state = sql_cell(rows, plan->failed, 4), reason = sql_cell(rows, plan->failed, 6);
    struct buf text = {0};
    struct str kept;

    buf_fmt(&text, "Version %lld ", (long long)op->row.version);
    if (plan->late)
        buf_fmt(&text, "did not get well in %lld s",
                (long long)op->row.spec.update_timeout_ms / 1000);
    else
        buf_str(&text, STR("is not well"));
    buf_fmt(&text, ": index %lld", (long long)deploy_index(id));
    if (address.len)
        buf_fmt(&text, " on " STR_FMT " (" STR_FMT ").", STR_ARG(address),
                STR_ARG(state.at ? state : STR("claimed")));
    else
        buf_str(&text, STR(" is claimed by no node."));
    if (reason.len)
        buf_fmt(&text, " " STR_FMT, STR_ARG(reason));
    kept = arena_str(op->arena, buf_view(&text));
    buf_free(&text);
    return kept;
}

/* Rolls back to the previous good version; if there was none or its spec is gone, the update
 * stops. */
static bool go_back(struct work *work, const struct group *group, const struct rollout_plan *plan)
{
    struct deploys_op *op = work->op;
    struct str reason = failure_text(op, group, plan);
    struct deploys_spec spec;
    bool kept;

    if (!deploys_kept_spec(work, op->row.good_version, &spec, &kept))
        return false;
    kept = kept && op->row.good_version != op->row.version;
    if (!kept)
        reason = arena_fmt(op->arena, STR_FMT " %s", STR_ARG(reason),
                           op->row.good_version ? "The version before it is not kept any more."
                                                : "None before it was well.");
    return set_rollout(work, kept ? ROLLOUT_BACK : ROLLOUT_STOPPED, op->row.good_version, kept,
                       reason) &&
           deploys_note(work, &op->row, kept ? "rolling back" : "update stopped", op->row.owner,
                        arena_cstr(op->arena, reason));
}

/* One step of an update, by the state of all copies now. *ret_again false: nothing more to do now.
 */
static bool rollout_step(struct work *work, bool *ret_again, bool *ret_changed)
{
    struct deploys_op *op = work->op;
    bool back = op->row.rollout == ROLLOUT_BACK, kept;
    int64_t to = back ? op->row.good_version : op->row.version;
    struct rollout_rules rules = {
        .to_version = to, .max_unavailable = op->row.spec.max_unavailable, .back = back};
    struct rollout_plan plan;
    struct deploys_spec spec;
    struct group group;

    *ret_again = false;
    if (!read_group(work, &group))
        return false;
    rollout_plan(group.copies, group.rows.count, &rules,
                 arena_array(op->arena, size_t, group.rows.count + 1), &plan);
    *ret_changed =
        *ret_changed || plan.done || plan.count > 0 || (plan.failed != ROLLOUT_NOBODY && !back);
    if (plan.failed != ROLLOUT_NOBODY && !back) {
        *ret_again = true;
        return go_back(work, &group, &plan);
    }
    if (plan.done)
        return set_rollout(work, back ? ROLLOUT_ROLLED_BACK : ROLLOUT_NONE, to, false,
                           back ? op->row.rollout_reason : STR("")) &&
               deploys_row_get(work, false) &&
               deploys_note(work, &op->row, back ? "rolled back" : "updated", op->row.owner,
                            back ? arena_cstr(op->arena, op->row.rollout_reason) : "");
    if (plan.count == 0)
        return true;
    if (!deploys_kept_spec(work, to, &spec, &kept))
        return false;
    if (!kept)
        return set_rollout(
            work, ROLLOUT_STOPPED, op->row.good_version, false,
            arena_fmt(op->arena, "Version %lld is not kept any more.", (long long)to));
    for (size_t i = 0; i < plan.count; i++)
        if (!deploys_set_spec(work, sql_cell(&group.rows, plan.next[i], 0), &spec, to))
            return false;
    return true;
}

bool deploys_roll_on(struct work *work, bool *ret_changed)
{
    struct deploys_op *op = work->op;
    bool again = true;

    while (again && op->found &&
           (op->row.rollout == ROLLOUT_ROLLING || op->row.rollout == ROLLOUT_BACK))
        if (!rollout_step(work, &again, ret_changed))
            return false;
    return true;
}

bool deploys_is_rolling(const struct deploys_row *row)
{
    return row->rollout == ROLLOUT_ROLLING || row->rollout == ROLLOUT_BACK ||
           row->rollout == ROLLOUT_STOPPED;
}

bool deploys_find_good(struct work *work, const struct deploys_row *before, int64_t *ret_good)
{
    struct group group;

    *ret_good = before->good_version;
    if (deploys_is_rolling(before))
        return true;
    if (!read_group(work, &group))
        return false;
    for (size_t i = 0; i < group.rows.count; i++)
        if (group.copies[i].owned && group.copies[i].runs == before->version &&
            group.copies[i].health == ROLLOUT_WELL)
            *ret_good = before->version;
    return true;
}

bool deploys_roll(struct work *work, const struct deploys_row *before, int64_t good)
{
    bool back = work->op->row.version == good, changed = false;
    struct str reason = !back                             ? STR("")
                        : before->rollout == ROLLOUT_BACK ? before->rollout_reason
                                                          : STR("An operator took it back.");

    assert(work->op->found && good >= 0);
    return set_rollout(work, back ? ROLLOUT_BACK : ROLLOUT_ROLLING, good, true, reason) &&
           deploys_row_get(work, false) && deploys_roll_on(work, &changed);
}

bool deploys_follow_first(struct work *work, int64_t good)
{
    const struct deploys_row *row = &work->op->row;

    if (!copy_spec_to_all(work, good))
        return false;
    if (good == 0 || good == row->version || !row->spec.enabled ||
        row->spec.type != DEPLOY_DEPLOYMENT)
        return true;
    return set_rollout(work, ROLLOUT_ROLLING, good, true, STR(""));
}
