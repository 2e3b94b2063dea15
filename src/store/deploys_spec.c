/* What operators do: specs come, change and go. */
#include <assert.h>

#include "base/json.h"
#include "model/namespace.h"
#include "store/deploys_row.h"

enum { ROWS_MAX = DEPLOYS_PAGE_MAX };

/* In the history of what was deleted: copies of it may run on any node. */
#define WAS_DAEMON "daemon"

bool deploys_list(struct work *work)
{
/* clang-format off */
#define COPY_OF_OWNER(D, column)                                                                   \
    "(SELECT s." column " FROM berth_deployment_status s WHERE s.id = " D##_TEXT("deployment.id")  \
    " AND s.address = deployment.address)"
#define LIST(D)                                                                                    \
    "SELECT " DEPLOYS_COLUMNS(D) ", " COPY_OF_OWNER(D, "state") ", " COPY_OF_OWNER(D, "version")   \
    " FROM deployment WHERE " D##_ID " > $1"                                                       \
    " AND (CAST($2 AS TEXT) IS NULL OR type = $2)"                                                 \
    " AND (CAST($3 AS TEXT) IS NULL OR address = $3)"                                              \
    " AND (CAST($4 AS TEXT) IS NULL OR package_name = $4)"                                         \
    " AND (CAST($5 AS BIGINT) < 0 OR enabled = (CAST($5 AS BIGINT) = 1))"                          \
    " AND (CAST($7 AS TEXT) IS NULL OR (" D##_ID " > $7 AND " D##_ID " < $8))"                     \
    " AND (CAST($9 AS BIGINT) = 0 OR " D##_TEXT("id") " NOT LIKE '%/%')"                           \
    " ORDER BY " D##_ID " LIMIT CAST($6 AS BIGINT)"
    /* clang-format on */
    static const struct sql_text list = DEPLOYS_BOTH(LIST);
    struct deploys_op *op = work->op;
    size_t max = op->u.list.max;
    struct str namespace = op->u.list.namespace, from = STR_NONE, to = STR_NONE;
    bool bare = str_eq(namespace, NAMESPACE_DEFAULT);
    struct sql_rows rows;

    if (namespace.at && !bare) { /* what begins with "team/": '0' is what follows the slash */
        from = arena_fmt(op->arena, STR_FMT "/", STR_ARG(namespace));
        to = arena_fmt(op->arena, STR_FMT "0", STR_ARG(namespace));
    }
    assert(max > 0 && max <= ROWS_MAX);
    if (!WORK_RUN(work, &list, &rows, SQL_STR(op->u.list.after.at ? op->u.list.after : STR("")),
                  SQL_STR(op->u.list.type), SQL_STR(op->u.list.address),
                  SQL_STR(op->u.list.package_name), SQL_INT(op->u.list.enabled),
                  SQL_INT((int64_t)max + 1), SQL_STR(from), SQL_STR(to), SQL_INT(bare)))
        return false;
    op->u.list.more = rows.count > max;
    op->u.list.count = op->u.list.more ? max : rows.count;
    op->u.list.items = arena_array(op->arena, struct deploys_row, op->u.list.count + 1);
    for (size_t i = 0; i < op->u.list.count; i++) {
        deploys_row_read(&rows, i, &op->u.list.items[i]);
        op->u.list.items[i].state = sql_cell(&rows, i, DEPLOYS_COLUMN_COUNT);
        op->u.list.items[i].copy_version = sql_cell_int(&rows, i, DEPLOYS_COLUMN_COUNT + 1);
    }
    return deploys_meta(work);
}

/* The copies of a deployment: only its owner's, or a daemon's everywhere. */
static bool read_copies(struct work *work)
{
    static const struct sql_text copies = {
        {"SELECT address, generation, version, state, restarts, pid, since_ms, healthy, reason,"
         " limits, updated_ms FROM berth_deployment_status WHERE id = $1 ORDER BY address",
         "SELECT address, generation, version, state, restarts, pid, since_ms, healthy, reason,"
         " limits, updated_ms FROM berth_deployment_status WHERE id = $1 ORDER BY address COLLATE "
         "\"C\""}};
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &copies, &rows, SQL_STR(op->id)))
        return false;
    op->copies = arena_array(op->arena, struct deploys_copy, rows.count + 1);
    op->copy_count = rows.count;
    for (size_t i = 0; i < rows.count; i++)
        op->copies[i] = (struct deploys_copy){.id = op->id,
                                              .address = sql_cell(&rows, i, 0),
                                              .generation = sql_cell_int(&rows, i, 1),
                                              .version = sql_cell_int(&rows, i, 2),
                                              .state = sql_cell(&rows, i, 3),
                                              .restarts = sql_cell_int(&rows, i, 4),
                                              .pid = sql_cell_int(&rows, i, 5),
                                              .since_ms = sql_cell_int(&rows, i, 6),
                                              .healthy = sql_cell(&rows, i, 7),
                                              .reason = sql_cell(&rows, i, 8),
                                              .limits = sql_cell(&rows, i, 9),
                                              .updated_ms = sql_cell_int(&rows, i, 10)};
    return true;
}

bool deploys_get(struct work *work)
{
    if (!deploys_row_get(work, false))
        return false;
    if (!work->op->found) {
        work->op->err = ERR_NOT_FOUND;
        return true;
    }
    return read_copies(work) &&
           deploys_failures(work, work->op->id, work->op->arena, &work->op->failures,
                            &work->op->failure_count) &&
           deploys_meta(work);
}

/* The version the caller saw must be the one there is. */
static bool precondition(struct deploys_op *op)
{
    int64_t wanted = op->u.put.if_version;

    if (wanted == DEPLOYS_ANY || (wanted == DEPLOYS_EXISTING && op->found) ||
        (wanted == 0 && !op->found) || (wanted > 0 && op->found && op->row.version == wanted))
        return true;
    op->err = ERR_PRECONDITION;
    return false;
}

/* The same JSON, whatever a database makes of its spaces and the order of its members. */
static bool same_json(const struct json *a, const struct json *b)
{
    const struct json *left, *right;
    char name[256];

    if (json_type(a) != json_type(b) || (a && a->count != b->count))
        return false;
    if (json_type(a) == JSON_ARR) {
        left = json_first(a), right = json_first(b);
        for (uint32_t i = 0; i < a->count; i++, left = json_next(left), right = json_next(right))
            if (!same_json(left, right))
                return false;
        return true;
    }
    if (json_type(a) != JSON_OBJ)
        return str_eq(json_raw(a), json_raw(b));
    left = json_first(a);
    for (uint32_t i = 0; i < a->count; i++, left = json_next(left + 1))
        if (!str_copy((struct str){.at = left->at, .len = left->len}, name, sizeof name) ||
            !same_json(left + 1, json_get(b, name)))
            return false;
    return true;
}

static bool same_text(struct str a, struct str b, struct arena *arena)
{
    const struct json *left, *right;

    if (str_eq(a, b))
        return true;
    return !json_parse(a, arena, &left, NULL) && !json_parse(b, arena, &right, NULL) &&
           same_json(left, right);
}

static bool same_spec(const struct deploys_spec *a, const struct deploys_spec *b,
                      struct arena *arena)
{
    return a->type == b->type && a->enabled == b->enabled &&
           str_eq(a->package_name, b->package_name) &&
           str_eq(a->package_version, b->package_version) && str_eq(a->command, b->command) &&
           str_eq(a->selector, b->selector) && same_text(a->args, b->args, arena) &&
           same_text(a->env, b->env, arena) && same_text(a->options, b->options, arena);
}

/* Until then somebody may still run what was a daemon: every node could, and each has stopped it
 * when its lease ends, unless it is told in time. */
#define LAST_LEASE "COALESCE((SELECT MAX(until_ms) FROM berth_node_lease), 0)"

/* One that is made again after it was deleted goes on counting: its generations and versions must
 * not come twice. It also stays with the node that had it, as long as that one's lease is good:
 * nobody else could know whether the old copy has stopped. */
static bool insert(struct work *work)
{
#define LAST(D)                                                                                    \
    "SELECT h.generation, h.version, CASE WHEN h.what = 'deleted' AND l.until_ms >= " D##_NOW      \
        " THEN h.address ELSE '' END, CASE WHEN h.what = 'deleted' AND h.detail = '" WAS_DAEMON    \
        "' THEN " LAST_LEASE " ELSE 0 END FROM berth_deployment_history h"                         \
        " LEFT JOIN berth_node_lease l ON l.address = h.address"                                   \
        " WHERE h.id = $1 ORDER BY h.seq DESC LIMIT 1"
    static const struct sql_text last = DEPLOYS_BOTH(LAST);
#define INSERT(D)                                                                                  \
    "INSERT INTO deployment (id, type, package_name, package_version, command, args, env, "        \
    "selector, options, enabled, address, generation, spec_version, free_from_ms, created_at, "    \
    "updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, " D##_TIME   \
        ", " D##_TIME ")"
    static const struct sql_text text = DEPLOYS_BOTH(INSERT);
    const struct deploys_spec *spec = work->op->u.put.spec;
    struct sql_rows rows;
    int64_t generation = 0, version = 1, free_from_ms = 0;
    struct str address = STR("");

    if (!WORK_RUN(work, &last, &rows, SQL_STR(spec->id)))
        return false;
    if (rows.count > 0) {
        generation = sql_cell_int(&rows, 0, 0) + 1;
        version = sql_cell_int(&rows, 0, 1) + 1;
        if (spec->type == DEPLOY_DEPLOYMENT) {
            address = sql_cell(&rows, 0, 2);
            free_from_ms = sql_cell_int(&rows, 0, 3);
        }
    }
    assert(!work->op->found && generation >= 0 && version > 0 && address.at);
    work->op->u.put.created = true;
    return WORK_RUN(work, &text, NULL, SQL_STR(spec->id),
                    SQL_STR(str_of(deploy_type_name(spec->type))), SQL_STR(spec->package_name),
                    SQL_STR(spec->package_version), SQL_STR(spec->command), SQL_STR(spec->args),
                    SQL_STR(spec->env), SQL_STR(spec->selector), SQL_STR(spec->options),
                    SQL_INT(spec->enabled), SQL_STR(address), SQL_INT(generation), SQL_INT(version),
                    SQL_INT(free_from_ms));
}

/* One that becomes a daemon, or stops being one, has no owner. */
static bool replace(struct work *work)
{
/* clang-format off */
#define REPLACE(D)                                                                                 \
    "UPDATE deployment SET address = CASE WHEN type = $2 THEN address ELSE '' END,"                \
    " generation = CASE WHEN type = $2 THEN generation ELSE generation + 1 END,"                   \
    " free_from_ms = CASE WHEN type = $2 THEN free_from_ms WHEN type = 'daemon' THEN " LAST_LEASE  \
    " ELSE 0 END, type = $2,"                                                                      \
    " package_name = $3, package_version = $4, command = $5, args = $6, env = $7, selector = $8,"  \
    " options = $9, enabled = $10, ended = '', spec_version = spec_version + 1, updated_at = "     \
    D##_TIME " WHERE " D##_ID " = $1"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(REPLACE);
    const struct deploys_spec *spec = work->op->u.put.spec;

    return WORK_RUN(work, &text, NULL, SQL_STR(spec->id),
                    SQL_STR(str_of(deploy_type_name(spec->type))), SQL_STR(spec->package_name),
                    SQL_STR(spec->package_version), SQL_STR(spec->command), SQL_STR(spec->args),
                    SQL_STR(spec->env), SQL_STR(spec->selector), SQL_STR(spec->options),
                    SQL_INT(spec->enabled));
}

/* Somebody did something about it: it may run anywhere. */
static bool forget_failures(struct work *work)
{
    static const struct sql_text text = {{"DELETE FROM berth_deployment_failure WHERE id = $1",
                                          "DELETE FROM berth_deployment_failure WHERE id = $1"}};

    return WORK_RUN(work, &text, NULL, SQL_STR(work->op->id));
}

/* After a change: the row as it is now, a line in its history, a new version of the table. */
static bool changed(struct work *work, const char *what)
{
    work->op->u.put.changed = true;
    if (!deploys_row_get(work, false) || !forget_failures(work))
        return false;
    assert(work->op->found); /* it is locked */
    return deploys_note(work, &work->op->row, what, work->op->row.address, "") &&
           deploys_bump(work, true);
}

bool deploys_put(struct work *work)
{
    struct deploys_op *op = work->op;

    assert(op->u.put.spec && op->u.put.spec->type != DEPLOY_OTHER);
    assert(op->u.put.spec->args.at && op->u.put.spec->env.at && op->u.put.spec->options.at);
    op->id = op->u.put.spec->id;
    if (!deploys_row_get(work, true))
        return false;
    if (!precondition(op))
        return true;
    if (op->found && same_spec(&op->row.spec, op->u.put.spec, op->arena))
        return deploys_meta(work);
    if (op->found)
        return replace(work) && changed(work, "changed");
    return insert(work) && changed(work, "created");
}

/* False: there is nothing to be done, or the database failed (*ret_ok). */
static bool find_existing(struct work *work, bool *ret_ok)
{
    struct deploys_op *op = work->op;

    *ret_ok = deploys_row_get(work, true);
    if (!*ret_ok)
        return false;
    if (!op->found) {
        op->err = ERR_NOT_FOUND;
        return false;
    }
    return precondition(op);
}

static bool touch(struct work *work, bool enabled, const char *what)
{
#define TOUCH(D)                                                                                   \
    "UPDATE deployment SET enabled = $2, ended = '', spec_version = spec_version + 1,"             \
    " updated_at = " D##_TIME " WHERE " D##_ID " = $1"
    static const struct sql_text text = DEPLOYS_BOTH(TOUCH);

    return WORK_RUN(work, &text, NULL, SQL_STR(work->op->id), SQL_INT(enabled)) &&
           changed(work, what);
}

bool deploys_enable(struct work *work)
{
    struct deploys_op *op = work->op;
    bool ok;

    if (!find_existing(work, &ok))
        return ok;
    if (op->row.spec.enabled == op->u.put.enabled)
        return deploys_meta(work);
    return touch(work, op->u.put.enabled, op->u.put.enabled ? "enabled" : "disabled");
}

bool deploys_restart(struct work *work)
{
    bool ok;

    if (!find_existing(work, &ok))
        return ok;
    return touch(work, work->op->row.spec.enabled, "restarted");
}

bool deploys_delete(struct work *work)
{
#define DELETE(D) "DELETE FROM deployment WHERE " D##_ID " = $1"
    static const struct sql_text row = DEPLOYS_BOTH(DELETE);
    static const struct sql_text copies = {{"DELETE FROM berth_deployment_status WHERE id = $1",
                                            "DELETE FROM berth_deployment_status WHERE id = $1"}};
    struct deploys_op *op = work->op;
    bool ok, daemon;

    if (!find_existing(work, &ok))
        return ok;
    assert(op->found && op->row.version > 0);
    if (!deploys_meta(work))
        return false;
    daemon = op->row.spec.type == DEPLOY_DAEMON || op->row.free_from_ms >= op->now_ms;
    op->u.put.changed = true;
    return WORK_RUN(work, &row, NULL, SQL_STR(op->id)) &&
           WORK_RUN(work, &copies, NULL, SQL_STR(op->id)) && forget_failures(work) &&
           deploys_note(work, &op->row, "deleted", op->row.address, daemon ? WAS_DAEMON : "") &&
           deploys_bump(work, true);
}

bool deploys_history(struct work *work)
{
#define HISTORY(D)                                                                                 \
    "SELECT seq, at_ms, what, address, generation, version, detail FROM berth_deployment_history"  \
    " WHERE id = $1 AND (CAST($2 AS BIGINT) = 0 OR seq < $2) ORDER BY seq DESC"                    \
    " LIMIT CAST($3 AS BIGINT)"
    static const struct sql_text text = DEPLOYS_BOTH(HISTORY);
    struct deploys_op *op = work->op;
    size_t max = op->u.history.max;
    struct sql_rows rows;

    assert(max > 0 && max <= ROWS_MAX);
    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->id), SQL_INT(op->u.history.before),
                  SQL_INT((int64_t)max + 1)))
        return false;
    if (rows.count == 0 && op->u.history.before == 0)
        op->err = ERR_NOT_FOUND;
    op->u.history.more = rows.count > max;
    op->u.history.count = op->u.history.more ? max : rows.count;
    op->u.history.items = arena_array(op->arena, struct deploys_event, rows.count + 1);
    for (size_t i = 0; i < op->u.history.count; i++)
        op->u.history.items[i] = (struct deploys_event){.seq = sql_cell_int(&rows, i, 0),
                                                        .at_ms = sql_cell_int(&rows, i, 1),
                                                        .what = sql_cell(&rows, i, 2),
                                                        .address = sql_cell(&rows, i, 3),
                                                        .generation = sql_cell_int(&rows, i, 4),
                                                        .version = sql_cell_int(&rows, i, 5),
                                                        .detail = sql_cell(&rows, i, 6)};
    return true;
}
