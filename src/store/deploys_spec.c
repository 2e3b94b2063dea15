/* The operators' verbs: create, change and delete specs. */
#include <assert.h>

#include "base/json.h"
#include "model/namespace.h"
#include "store/deploys_row.h"

/* In the history of a deleted deployment: its copies may run on any node. */
#define WAS_DAEMON "daemon"

bool deploys_list(struct work *work)
{
/* clang-format off */
#define IS_READY "s.state IN ('running', 'finished') AND s.healthy = 'true'"
#define READY(D)                                                                                   \
    "CASE WHEN replicas > 1 THEN (SELECT COUNT(*) FROM berth_deployment_status s WHERE s.id = "    \
    D##_TEXT("deployment.id") " AND s.address = deployment.address AND " IS_READY                  \
    ") + (SELECT COUNT(*) FROM deployment d JOIN berth_deployment_status s ON s.id = "             \
    D##_TEXT("d.id") " AND s.address = d.address WHERE "                                           \
    COPY_OF("d.", D##_TEXT("deployment.id")) " AND " IS_READY ") ELSE 0 END"
#define COPY_OF_OWNER(D, column)                                                                   \
    "(SELECT s." column " FROM berth_deployment_status s WHERE s.id = " D##_TEXT("deployment.id")  \
    " AND s.address = deployment.address)"
#define LIST(D)                                                                                    \
    "SELECT " DEPLOYS_COLUMNS(D) ", " COPY_OF_OWNER(D, "state") ", " COPY_OF_OWNER(D, "version")   \
    ", " READY(D) " FROM deployment WHERE copy_of = '' AND " D##_ID " > $1"                                                       \
    " AND (CAST($2 AS TEXT) IS NULL OR type = $2)"                                                 \
    " AND (CAST($3 AS TEXT) IS NULL OR address = $3 OR (replicas > 1 AND EXISTS (SELECT 1 FROM"    \
    " deployment c WHERE " COPY_OF("c.", D##_TEXT("deployment.id")) " AND c.address = $3)))"       \
    " AND (CAST($4 AS TEXT) IS NULL OR package_name = $4)"                                         \
    " AND (CAST($5 AS BIGINT) < 0 OR enabled = (CAST($5 AS BIGINT) = 1))"                          \
    " AND (CAST($7 AS TEXT) IS NULL OR (" D##_ID " > $7 AND " D##_ID " < $8))"                     \
    " AND (CAST($9 AS BIGINT) = 0 OR " D##_TEXT("id") " NOT LIKE '%/%')"                           \
    " ORDER BY " D##_ID " LIMIT CAST($6 AS BIGINT)"
    /* clang-format on */
    struct deploys_op *op = work->op;
    size_t max = op->u.list.max;
    struct str namespace = op->u.list.namespace, from = STR_NONE, to = STR_NONE;
    bool bare = str_eq(namespace, NAMESPACE_DEFAULT);
    struct sql_rows rows;

    if (namespace.at && !bare) { /* ids that begin with "team/": '0' comes after '/' in ASCII */
        from = arena_fmt(op->arena, STR_FMT "/", STR_ARG(namespace));
        to = arena_fmt(op->arena, STR_FMT "0", STR_ARG(namespace));
    }
    assert(max > 0 && max <= DEPLOYS_PAGE_MAX);
    if (!WORK_SQL(work, LIST, &rows, SQL_STR(op->u.list.after.at ? op->u.list.after : STR("")),
                  SQL_STR(op->u.list.type), SQL_STR(op->u.list.owner),
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
        op->u.list.items[i].ready = sql_cell_int(&rows, i, DEPLOYS_COLUMN_COUNT + 2);
    }
    return deploys_meta(work);
}

/* Reads the copies of a deployment: only its owner's, or a daemon's on all nodes. With several
 * copies, every index is listed, even if unowned or never reported. */
static bool read_copies(struct work *work)
{
/* clang-format off */
#define COPY_COLUMNS "s.state, s.restarts, s.pid, s.since_ms, s.healthy, s.reason, s.limits, s.updated_ms, s.port"
#define ITS_COPIES(D)                                                                              \
    "SELECT s.address, s.generation, s.version, 0, s.id, " COPY_COLUMNS                            \
    " FROM berth_deployment_status s WHERE s.id = $1 ORDER BY " D##_BYTES("s.address")
#define ALL_COPIES(D)                                                                              \
    "SELECT d.address, d.generation, COALESCE(s.version, d.spec_version), d.copy_index, "          \
    D##_TEXT("d.id") ", " COPY_COLUMNS                                                             \
    " FROM deployment d LEFT JOIN berth_deployment_status s ON s.id = " D##_TEXT("d.id")           \
    " AND s.address = d.address WHERE " D##_BYTES("d.id") " = $1 OR "                             \
    COPY_OF("d.", "$1") " ORDER BY d.copy_index"
    /* clang-format on */
    static const struct sql_text texts[] = {DEPLOYS_BOTH(ITS_COPIES), DEPLOYS_BOTH(ALL_COPIES)};
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &texts[op->row.spec.count > 1], &rows, SQL_STR(op->id)))
        return false;
    op->copies = arena_array(op->arena, struct deploys_copy, rows.count + 1);
    op->copy_count = rows.count;
    for (size_t i = 0; i < rows.count; i++) {
        struct str address = sql_cell(&rows, i, 0), state = sql_cell(&rows, i, 5);
        bool told = state.at != NULL;

        op->copies[i] = (struct deploys_copy){.address = address.len ? address : STR_NONE,
                                              .generation = sql_cell_int(&rows, i, 1),
                                              .version = sql_cell_int(&rows, i, 2),
                                              .index = sql_cell_int(&rows, i, 3),
                                              .id = sql_cell(&rows, i, 4),
                                              .state = told          ? state
                                                       : address.len ? STR("claimed")
                                                                     : STR("unclaimed"),
                                              .restarts = sql_cell_int(&rows, i, 6),
                                              .pid = sql_cell_int(&rows, i, 7),
                                              .since_ms = sql_cell_int(&rows, i, 8),
                                              .healthy = told ? sql_cell(&rows, i, 9) : STR("null"),
                                              .reason = told ? sql_cell(&rows, i, 10) : STR(""),
                                              .limits = told ? sql_cell(&rows, i, 11) : STR(""),
                                              .updated_ms = sql_cell_int(&rows, i, 12),
                                              .port = sql_cell_int(&rows, i, 13)};
    }
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

/* The version the caller saw must be the current one. */
static bool precondition(struct deploys_op *op)
{
    int64_t wanted = op->u.put.if_version;

    if (wanted == DEPLOYS_ANY || (wanted == DEPLOYS_EXISTING && op->found) ||
        (wanted == 0 && !op->found) || (wanted > 0 && op->found && op->row.version == wanted))
        return true;
    op->err = ERR_PRECONDITION;
    return false;
}

/* Compares JSON regardless of whitespace and member order, which a database may change. */
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

/* Until then a former daemon may still be running: any node may have it, and each stops it when its
 * lease ends, unless told earlier. */
#define LAST_LEASE "COALESCE((SELECT MAX(until_ms) FROM berth_node_lease), 0)"

/* A deployment created again after deletion continues its numbering: generations and versions must
 * never repeat. It also stays with its former node while that node's lease is valid: no other node
 * could know whether the old copy has stopped. */
static bool insert(struct work *work)
{
#define LAST(D)                                                                                    \
    "SELECT h.generation, h.version, CASE WHEN h.what = 'deleted' AND l.until_ms >= " D##_NOW      \
        " THEN h.address ELSE '' END, CASE WHEN h.what = 'deleted' AND h.detail = '" WAS_DAEMON    \
        "' THEN " LAST_LEASE " ELSE 0 END FROM berth_deployment_history h"                         \
        " LEFT JOIN berth_node_lease l ON l.address = h.address"                                   \
        " WHERE h.id = $1 ORDER BY h.seq DESC LIMIT 1"
#define INSERT(D)                                                                                  \
    "INSERT INTO deployment (id, type, package_name, package_version, command, args, env, "        \
    "selector, options, enabled, address, generation, spec_version, free_from_ms, created_at, "    \
    "updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, " D##_TIME   \
        ", " D##_TIME ")"
    const struct deploys_spec *spec = work->op->u.put.spec;
    struct sql_rows rows;
    int64_t generation = 0, version = 1, free_from_ms = 0;
    struct str address = STR("");

    if (!WORK_SQL(work, LAST, &rows, SQL_STR(spec->id)))
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
    return WORK_SQL(work, INSERT, NULL, SQL_STR(spec->id),
                    SQL_STR(str_of(deploy_type_name(spec->type))), SQL_STR(spec->package_name),
                    SQL_STR(spec->package_version), SQL_STR(spec->command), SQL_STR(spec->args),
                    SQL_STR(spec->env), SQL_STR(spec->selector), SQL_STR(spec->options),
                    SQL_INT(spec->enabled), SQL_STR(address), SQL_INT(generation), SQL_INT(version),
                    SQL_INT(free_from_ms));
}

/* The next unused version, also after a rollback. */
#define NEXT_VERSION                                                                               \
    "(CASE WHEN newest_version > spec_version THEN newest_version ELSE spec_version END + 1)"

/* A deployment that becomes or stops being a daemon loses its owner. `version`: 0 means the next
 * one. */
static bool replace(struct work *work, const struct deploys_spec *spec, int64_t version)
{
/* clang-format off */
#define REPLACE(D)                                                                                 \
    "UPDATE deployment SET address = CASE WHEN type = $2 THEN address ELSE '' END,"                \
    " generation = CASE WHEN type = $2 THEN generation ELSE generation + 1 END,"                   \
    " free_from_ms = CASE WHEN type = $2 THEN free_from_ms WHEN type = 'daemon' THEN " LAST_LEASE  \
    " ELSE 0 END, type = $2,"                                                                      \
    " package_name = $3, package_version = $4, command = $5, args = $6, env = $7, selector = $8,"  \
    " options = $9, enabled = $10, ended = '', spec_version = CASE WHEN CAST($11 AS BIGINT) > 0"   \
    " THEN CAST($11 AS BIGINT) ELSE " NEXT_VERSION " END, newest_version = " NEXT_VERSION          \
    " - CASE WHEN CAST($11 AS BIGINT) > 0 THEN 1 ELSE 0 END, tried_ms = " D##_NOW                  \
    ", updated_at = " D##_TIME " WHERE " D##_ID " = $1"
    /* clang-format on */

    return WORK_SQL(work, REPLACE, NULL, SQL_STR(spec->id),
                    SQL_STR(str_of(deploy_type_name(spec->type))), SQL_STR(spec->package_name),
                    SQL_STR(spec->package_version), SQL_STR(spec->command), SQL_STR(spec->args),
                    SQL_STR(spec->env), SQL_STR(spec->selector), SQL_STR(spec->options),
                    SQL_INT(spec->enabled), SQL_INT(version));
}

/* An operator changed it: it may run anywhere again. */
static bool forget_failures(struct work *work)
{
#define FORGET(D) "DELETE FROM berth_deployment_failure WHERE id = $1"
#define FORGET_ALL(D)                                                                              \
    FORGET(D) " OR id IN (SELECT " D##_TEXT("id") " FROM deployment WHERE " COPY_OF("", "$1") ")"
    static const struct sql_text texts[] = {DEPLOYS_BOTH(FORGET), DEPLOYS_BOTH(FORGET_ALL)};

    return WORK_RUN(work, &texts[work->op->row.spec.count > 1], NULL, SQL_STR(work->op->id));
}

/* --- several copies --- */

/* New copies get the spec of the last existing one. As with a deployment created again, each stays
 * with its former node while that lease is valid and continues its generations. */
static bool add_copies(struct work *work, int64_t from, int64_t to)
{
/* clang-format off */
#define LAST_OF(D, column)                                                                         \
    "(SELECT " column " FROM berth_deployment_history h WHERE h.id = CAST($1 AS TEXT) || '#' ||"   \
    " CAST(i AS TEXT) ORDER BY h.seq DESC LIMIT 1)"
/* These are copies of a deployment, whatever type it was before. */
#define ADD_COPIES(D)                                                                              \
    "WITH RECURSIVE n(i) AS (SELECT CAST($2 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i + 1"  \
    " < CAST($3 AS BIGINT)) INSERT INTO deployment (id, type, package_name, package_version,"      \
    " command, args, env, selector, options, enabled, spec_version, rolling, copy_of, copy_index, address," \
    " generation, created_at, updated_at) SELECT CAST($1 AS TEXT) || '#' || CAST(i AS TEXT),"      \
    " 'deployment', d.package_name, d.package_version, d.command, d.args, d.env, d.selector, d.options," \
    " d.enabled, d.spec_version, d.rolling, CAST($1 AS TEXT), i, COALESCE("                                   \
    LAST_OF(D, "CASE WHEN h.what = 'deleted' AND EXISTS (SELECT 1 FROM berth_node_lease l WHERE"   \
            " l.address = h.address AND l.until_ms >= " D##_NOW ") THEN h.address ELSE '' END")    \
    ", ''), COALESCE(" LAST_OF(D, "h.generation + 1") ", 0), " D##_TIME ", " D##_TIME              \
    " FROM n, deployment d WHERE " D##_BYTES("d.id") " = $4"
#define NOTE_COPIES(D)                                                                             \
    "INSERT INTO berth_deployment_history (id, at_ms, what, address, generation, version, detail)" \
    " SELECT " D##_TEXT("id") ", " D##_NOW ", CAST($3 AS TEXT), address, generation, spec_version,"\
    " '' FROM deployment WHERE " COPY_OF("", "$1") " AND copy_index >= $2 ORDER BY copy_index"
    /* clang-format on */
    struct str id = work->op->id;
    struct str last =
        from == 1 ? id
                  : arena_fmt(work->op->arena, STR_FMT "#%lld", STR_ARG(id), (long long)from - 1);

    assert(from >= 1 && from < to && to <= DEPLOY_COUNT_MAX);
    return WORK_SQL(work, ADD_COPIES, NULL, SQL_STR(id), SQL_INT(from), SQL_INT(to),
                    SQL_STR(last)) &&
           WORK_SQL(work, NOTE_COPIES, NULL, SQL_STR(id), SQL_INT(from), SQL_STR(STR("created")));
}

/* Drops all copies from this index on. Their rows are locked first so that no claim comes between
 * the history entry and the deletion. */
static bool drop_copies(struct work *work, int64_t from)
{
/* clang-format off */
#define OF_COPIES COPY_OF("", "$1") " AND copy_index >= $2"
#define LOCK_COPIES(D) "SELECT 1 FROM deployment WHERE " OF_COPIES " ORDER BY copy_index" D##_LOCK
#define DROP_STATUS(D)                                                                             \
    "DELETE FROM berth_deployment_status WHERE id IN (SELECT " D##_TEXT("id")                      \
    " FROM deployment WHERE " OF_COPIES ")"
#define DROP_FAILURES(D)                                                                           \
    "DELETE FROM berth_deployment_failure WHERE id IN (SELECT " D##_TEXT("id")                     \
    " FROM deployment WHERE " OF_COPIES ")"
#define DROP_COPIES(D) "DELETE FROM deployment WHERE " OF_COPIES
    /* clang-format on */
    static const struct sql_text lock = DEPLOYS_BOTH(LOCK_COPIES), note = DEPLOYS_BOTH(NOTE_COPIES),
                                 drops[] = {DEPLOYS_BOTH(DROP_STATUS), DEPLOYS_BOTH(DROP_FAILURES),
                                            DEPLOYS_BOTH(DROP_COPIES)};
    struct sql_rows rows;

    assert(from >= 1);
    if (!WORK_RUN(work, &lock, &rows, SQL_STR(work->op->id), SQL_INT(from)) ||
        !WORK_RUN(work, &note, NULL, SQL_STR(work->op->id), SQL_INT(from), SQL_STR(STR("deleted"))))
        return false;
    for (size_t i = 0; i < COUNT_OF(drops); i++)
        if (!WORK_RUN(work, &drops[i], NULL, SQL_STR(work->op->id), SQL_INT(from)))
            return false;
    return true;
}

/* Copies added during an update start with the known good version and wait for their turn like the
 * others. */
static bool begin_with_good(struct work *work, int64_t from, int64_t to)
{
    struct deploys_op *op = work->op;
    struct deploys_spec spec;
    bool kept;

    if (!op->found || !deploys_is_rolling(&op->row) || op->row.rollout == ROLLOUT_STOPPED)
        return true;
    if (!deploys_kept_spec(work, op->row.good_version, &spec, &kept))
        return false;
    for (int64_t i = from; kept && i < to; i++)
        if (!deploys_set_spec(work,
                              arena_fmt(op->arena, STR_FMT "#%lld", STR_ARG(op->id), (long long)i),
                              &spec, op->row.good_version))
            return false;
    return true;
}

/* The number of copies and how they are updated. */
struct counts {
    int64_t count, max_unavailable, update_timeout_ms;
};

static bool set_counts(struct work *work, const struct counts *to)
{
/* clang-format off */
#define COUNTS(D)                                                                                  \
    "UPDATE deployment SET replicas = $2, max_unavailable = $3, update_timeout_ms = $4 WHERE "     \
    D##_ID " = $1"
    /* clang-format on */
    int64_t before = work->op->found ? work->op->row.spec.count : 1;

    assert(to->count >= 1 && to->count <= DEPLOY_COUNT_MAX && to->max_unavailable >= 1);
    return WORK_SQL(work, COUNTS, NULL, SQL_STR(work->op->id), SQL_INT(to->count),
                    SQL_INT(to->max_unavailable), SQL_INT(to->update_timeout_ms)) &&
           (to->count <= before ||
            (add_copies(work, before, to->count) && begin_with_good(work, before, to->count))) &&
           (to->count >= before || drop_copies(work, to->count));
}

/* The version in the first copy's row differs from `before`; the other copies follow, a few at a
 * time while they run. `same`: the spec is unchanged. */
static bool start_rollout(struct work *work, const struct deploys_row *before, bool same)
{
    const struct deploys_row *row = &work->op->row;
    int64_t good;

    if (!deploys_row_get(work, false) || !deploys_keep_spec(work) ||
        !deploys_find_good(work, before, &good))
        return false;
    if (before->spec.type != row->spec.type || row->spec.type != DEPLOY_DEPLOYMENT)
        return deploys_follow_first(work, 0);
    /* A restarted single copy has no version to roll back to. */
    if (before->spec.enabled && row->spec.enabled &&
        !(same && row->spec.count == 1 && !deploys_is_rolling(before)))
        return deploys_roll(work, before, good);
    return deploys_follow_first(work, same && good == before->version ? row->version : good);
}

/* After a change: reads the row again, adds a history entry, bumps the table's version. */
static bool record_change(struct work *work, const char *what)
{
    work->op->u.put.changed = true;
    if (!deploys_row_get(work, false) || !forget_failures(work))
        return false;
    assert(work->op->found); /* it is locked */
    return deploys_note(work, &work->op->row, what, work->op->row.owner, "") &&
           deploys_bump(work, true);
}

/* An update may have been waiting for a copy that is gone, or may now replace more at once. */
static bool record_scaling(struct work *work)
{
    struct str detail;
    bool moved = false;

    work->op->u.put.changed = true;
    if (!deploys_row_get(work, false) || !deploys_roll_on(work, &moved) ||
        (moved && !deploys_row_get(work, false)))
        return false;
    detail = arena_fmt(work->op->arena, "count %lld", (long long)work->op->row.spec.count);
    return deploys_note(work, &work->op->row, "scaled", work->op->row.owner, detail.at) &&
           deploys_bump(work, true);
}

bool deploys_put(struct work *work)
{
    struct deploys_op *op = work->op;
    const struct deploys_spec *spec = op->u.put.spec;
    struct deploys_row before;
    struct counts to;
    bool counts;

    assert(spec && spec->type != DEPLOY_OTHER);
    assert(spec->args.at && spec->env.at && spec->options.at);
    op->id = spec->id;
    if (!deploys_row_get(work, true))
        return false;
    if (!precondition(op))
        return true;
    to = (struct counts){.count = spec->type != DEPLOY_DEPLOYMENT ? 1
                                  : spec->count > 0               ? spec->count
                                  : op->found                     ? op->row.spec.count
                                                                  : 1,
                         .max_unavailable = spec->max_unavailable > 0 ? spec->max_unavailable : 1,
                         .update_timeout_ms = spec->update_timeout_ms > 0
                                                  ? spec->update_timeout_ms
                                                  : DEPLOY_UPDATE_TIMEOUT_MS};
    counts = !op->found || op->row.spec.count != to.count ||
             op->row.spec.max_unavailable != to.max_unavailable ||
             op->row.spec.update_timeout_ms != to.update_timeout_ms;
    if (op->found && same_spec(&op->row.spec, spec, op->arena))
        return counts ? set_counts(work, &to) && record_scaling(work) : deploys_meta(work);
    if (!op->found && !insert(work))
        return false;
    if (counts && !set_counts(work, &to))
        return false;
    if (!op->found)
        return deploys_keep_spec(work) && record_change(work, "created");
    before = op->row;
    return deploys_keep_spec(work) && replace(work, spec, 0) &&
           start_rollout(work, &before, false) && record_change(work, "changed");
}

/* False: nothing to do, or the database failed (*ret_ok). */
static bool find_existing(struct work *work, bool *ret_ok)
{
    struct deploys_op *op = work->op;

    *ret_ok = deploys_row_get(work, true);
    if (!*ret_ok)
        return false;
    if (!op->found || deploy_index(op->id) > 0) { /* a single copy cannot be changed by itself */
        op->err = ERR_NOT_FOUND;
        return false;
    }
    return precondition(op);
}

static bool touch(struct work *work, bool enabled, const char *what)
{
#define TOUCH(D)                                                                                   \
    "UPDATE deployment SET enabled = $2, ended = '', spec_version = " NEXT_VERSION                 \
    ", newest_version = " NEXT_VERSION ", tried_ms = " D##_NOW ", updated_at = " D##_TIME          \
        " WHERE " D##_ID " = $1"
    struct deploys_row before = work->op->row;

    return deploys_keep_spec(work) &&
           WORK_SQL(work, TOUCH, NULL, SQL_STR(work->op->id), SQL_INT(enabled)) &&
           start_rollout(work, &before, true) && record_change(work, what);
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

bool deploys_scale(struct work *work)
{
    struct deploys_op *op = work->op;
    bool ok;

    if (!find_existing(work, &ok))
        return ok;
    if (op->row.spec.type != DEPLOY_DEPLOYMENT) {
        op->err = ERR_CONFLICT;
        return true;
    }
    if (op->row.spec.count == op->u.put.count)
        return deploys_meta(work);
    return set_counts(work, &(struct counts){op->u.put.count, op->row.spec.max_unavailable,
                                             op->row.spec.update_timeout_ms}) &&
           record_scaling(work);
}

/* Finds the last earlier version with a different spec (a restart is also a version), skipping
 * versions that an update had to roll back from. */
static bool find_before(struct work *work, int64_t *ret_version)
{
/* clang-format off */
#define VERSIONS(D)                                                                                \
    "SELECT s.version FROM berth_deployment_spec s WHERE s.id = $1 AND s.version < $2 AND NOT"     \
    " EXISTS (SELECT 1 FROM berth_deployment_history h WHERE h.id = $1 AND h.version = s.version"  \
    " AND h.what IN ('rolling back', 'update stopped')) ORDER BY s.version DESC"
    /* clang-format on */
    struct deploys_op *op = work->op;
    struct deploys_spec spec;
    struct sql_rows rows;
    bool found;

    *ret_version = 0;
    if (!WORK_SQL(work, VERSIONS, &rows, SQL_STR(op->id), SQL_INT(op->row.version)))
        return false;
    for (size_t i = 0; i < rows.count && *ret_version == 0; i++) {
        int64_t version = sql_cell_int(&rows, i, 0);

        if (!deploys_kept_spec(work, version, &spec, &found))
            return false;
        spec.enabled = op->row.spec.enabled;
        if (found && !same_spec(&spec, &op->row.spec, op->arena))
            *ret_version = version;
    }
    return true;
}

/* A version number always means the same spec, so a rollback reuses the old number. */
bool deploys_rollback(struct work *work)
{
    struct deploys_op *op = work->op;
    struct deploys_row before;
    struct deploys_spec spec;
    bool ok, found = false;

    if (!find_existing(work, &ok))
        return ok;
    /* During an update, the previous version is the good one. */
    if (op->u.put.to_version == 0 && deploys_is_rolling(&op->row))
        op->u.put.to_version = op->row.good_version;
    if (!deploys_keep_spec(work) ||
        (op->u.put.to_version == 0 && !find_before(work, &op->u.put.to_version)))
        return false;
    if (op->u.put.to_version == op->row.version)
        return deploys_meta(work);
    if (!deploys_kept_spec(work, op->u.put.to_version, &spec, &found))
        return false;
    if (!found || (spec.type != DEPLOY_DEPLOYMENT && op->row.spec.count > 1)) {
        op->err = ERR_CONFLICT;
        return true;
    }
    before = op->row;
    spec.enabled = before.spec.enabled;
    return replace(work, &spec, op->u.put.to_version) && start_rollout(work, &before, false) &&
           record_change(work, "rolled back");
}

bool deploys_delete(struct work *work)
{
#define DELETE(D)        "DELETE FROM deployment WHERE " D##_ID " = $1"
#define DELETE_STATUS(D) "DELETE FROM berth_deployment_status WHERE id = $1"
    struct deploys_op *op = work->op;
    bool ok, daemon;

    if (!find_existing(work, &ok))
        return ok;
    assert(op->found && op->row.version > 0);
    if (!deploys_meta(work))
        return false;
    daemon = op->row.spec.type == DEPLOY_DAEMON || op->row.free_from_ms >= op->now_ms;
    op->u.put.changed = true;
    op->row.version =
        op->row.newest_version; /* a new deployment with this id continues from there */
    return forget_failures(work) && (op->row.spec.count <= 1 || drop_copies(work, 1)) &&
           WORK_SQL(work, DELETE, NULL, SQL_STR(op->id)) &&
           WORK_SQL(work, DELETE_STATUS, NULL, SQL_STR(op->id)) && deploys_forget_specs(work) &&
           deploys_note(work, &op->row, "deleted", op->row.owner, daemon ? WAS_DAEMON : "") &&
           deploys_bump(work, true);
}

bool deploys_history(struct work *work)
{
#define HISTORY(D)                                                                                 \
    "SELECT seq, at_ms, what, address, generation, version, detail FROM berth_deployment_history"  \
    " WHERE id = $1 AND (CAST($2 AS BIGINT) = 0 OR seq < $2) ORDER BY seq DESC"                    \
    " LIMIT CAST($3 AS BIGINT)"
    struct deploys_op *op = work->op;
    size_t max = op->u.history.max;
    struct sql_rows rows;

    assert(max > 0 && max <= DEPLOYS_PAGE_MAX);
    if (!WORK_SQL(work, HISTORY, &rows, SQL_STR(op->id), SQL_INT(op->u.history.before),
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
