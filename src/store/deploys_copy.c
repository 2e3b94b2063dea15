/* What nodes say of their copies, and what operators take from nodes. */
#include <assert.h>
#include <string.h>

#include "base/map.h"
#include "store/deploys_private.h"

/* What the table holds of a copy, beside what its node says now. */
struct held {
    struct deploys_copy copy; /* state.at == NULL: nothing was said of it before */
    bool daemon;
    int64_t row_generation, row_version;
    struct str ended;
    bool told; /* its node has named it now */
};

/* All a node may have copies of: what it owns, and daemons. */
static bool read_held(struct work *work, struct map *held)
{
/* clang-format off */
#define HELD_BY(D)                                                                                 \
    "SELECT " D##_TEXT("d.id") ", d.type, d.generation, d.spec_version, d.ended,"                  \
    " s.generation, s.version, s.state, s.restarts, s.pid, s.since_ms, s.healthy, s.reason,"       \
    " s.limits FROM deployment d LEFT JOIN berth_deployment_status s"                              \
    " ON s.id = " D##_TEXT("d.id") " AND s.address = $1 WHERE d.type = "
#define HELD(D)                                                                                    \
    HELD_BY(D) "'daemon' UNION ALL " HELD_BY(D) "'deployment' AND d.address = $1"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(HELD);
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(work->op->node)))
        return false;
    for (size_t i = 0; i < rows.count; i++) {
        struct held *one = arena_new(work->op->arena, struct held);

        *one = (struct held){.daemon = deploy_type_by_name(sql_cell(&rows, i, 1)) == DEPLOY_DAEMON,
                             .row_generation = sql_cell_int(&rows, i, 2),
                             .row_version = sql_cell_int(&rows, i, 3),
                             .ended = sql_cell(&rows, i, 4),
                             .copy = {.id = sql_cell(&rows, i, 0),
                                      .generation = sql_cell_int(&rows, i, 5),
                                      .version = sql_cell_int(&rows, i, 6),
                                      .state = sql_cell(&rows, i, 7),
                                      .restarts = sql_cell_int(&rows, i, 8),
                                      .pid = sql_cell_int(&rows, i, 9),
                                      .since_ms = sql_cell_int(&rows, i, 10),
                                      .healthy = sql_cell(&rows, i, 11),
                                      .reason = sql_cell(&rows, i, 12),
                                      .limits = sql_cell(&rows, i, 13)}};
        map_put(held, one->copy.id, one);
    }
    return true;
}

static bool same_copy(const struct deploys_copy *a, const struct deploys_copy *b)
{
    return a->generation == b->generation && a->version == b->version &&
           str_eq(a->state, b->state) && a->restarts == b->restarts && a->pid == b->pid &&
           a->since_ms == b->since_ms && str_eq(a->healthy, b->healthy) &&
           str_eq(a->reason, b->reason) && str_eq(a->limits, b->limits);
}

static bool write_copy(struct work *work, const struct deploys_copy *copy)
{
#define COPY(D)                                                                                    \
    "INSERT INTO berth_deployment_status (id, address, generation, version, state, restarts, pid," \
    " since_ms, healthy, reason, limits, updated_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,"  \
    " $10, $11, " D##_NOW                                                                          \
        ") ON CONFLICT (id, address) DO UPDATE SET generation = excluded.generation, version"      \
        " = excluded.version, state = excluded.state, restarts = excluded.restarts, pid = "        \
        "excluded.pid"                                                                             \
        ", since_ms = excluded.since_ms, healthy = excluded.healthy, reason = excluded.reason,"    \
        " limits = excluded.limits, updated_ms = excluded.updated_ms"
    static const struct sql_text text = DEPLOYS_BOTH(COPY);

    return work_begin(work) &&
           WORK_RUN(work, &text, NULL, SQL_STR(copy->id), SQL_STR(work->op->node),
                    SQL_INT(copy->generation), SQL_INT(copy->version), SQL_STR(copy->state),
                    SQL_INT(copy->restarts), SQL_INT(copy->pid), SQL_INT(copy->since_ms),
                    SQL_STR(copy->healthy), SQL_STR(copy->reason), SQL_STR(copy->limits));
}

static bool forget_copy(struct work *work, struct str id)
{
    static const struct sql_text text = {
        {"DELETE FROM berth_deployment_status WHERE id = $1 AND address = $2",
         "DELETE FROM berth_deployment_status WHERE id = $1 AND address = $2"}};

    return work_begin(work) && WORK_RUN(work, &text, NULL, SQL_STR(id), SQL_STR(work->op->node));
}

/* A node still has a copy of what was a daemon: nobody claims it before that node's lease has
 * ended, unless it tells that it is gone. */
static bool wait_for_copy(struct work *work, struct str id)
{
#define WAIT(D)                                                                                    \
    "UPDATE deployment SET free_from_ms = (SELECT until_ms FROM berth_node_lease WHERE address = " \
    "$2) WHERE " D##_ID                                                                            \
        " = $1 AND type = 'deployment' AND address = '' AND free_from_ms >= " D##_NOW              \
        " AND free_from_ms < (SELECT until_ms FROM berth_node_lease WHERE address = $2)"
    static const struct sql_text text = DEPLOYS_BOTH(WAIT);

    return work_begin(work) && WORK_RUN(work, &text, NULL, SQL_STR(id), SQL_STR(work->op->node));
}

/* A state worth a line in the history: it will not get well by itself, or is over. */
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

/* It ran to its end: nobody claims this version any more, not even when its node is gone. */
static bool end_version(struct work *work, const struct deploys_copy *copy, bool *changed)
{
#define END(D)                                                                                     \
    "UPDATE deployment SET ended = $2 WHERE " D##_ID                                               \
        " = $1 AND spec_version = $3 AND generation = $4 AND type = 'deployment'"
    static const struct sql_text text = DEPLOYS_BOTH(END);
    struct sql_rows rows;

    if (!work_begin(work) || !WORK_RUN(work, &text, &rows, SQL_STR(copy->id), SQL_STR(copy->state),
                                       SQL_INT(copy->version), SQL_INT(copy->generation)))
        return false;
    *changed = *changed || rows.changed > 0;
    return true;
}

/* Of the first row: address, version, state, reason. */
static struct str why_not_yet(struct work *work, int64_t wants, const struct sql_rows *rows)
{
    static const char *const bad[] = {"unhealthy", "backoff", "crash_loop", "refused", "failed"};
    struct str address = sql_cell(rows, 0, 0), state = sql_cell(rows, 0, 2);

    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (str_is(state, bad[i]) && sql_cell_int(rows, 0, 1) == wants)
            return arena_fmt(work->op->arena,
                             "The update stopped: version %lld is not well on " STR_FMT " (" STR_FMT
                             "). " STR_FMT,
                             (long long)wants, STR_ARG(address), STR_ARG(state),
                             STR_ARG(sql_cell(rows, 0, 3)));
    return arena_fmt(work->op->arena, "The update waits for " STR_FMT " (" STR_FMT ").",
                     STR_ARG(address), STR_ARG(state));
}

/* A changed daemon goes from node to node in the order of their addresses, and stops at the first
 * on which the new version is not well. Nodes whose lease has run out do not count. */
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
    static const struct sql_text text = DEPLOYS_BOTH(BEFORE);
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(copy->id), SQL_STR(work->op->node),
                  SQL_INT(copy->wants)))
        return false;
    if (rows.count > 0)
        copy->waits = why_not_yet(work, copy->wants, &rows);
    return true;
}

static bool settle_copy(struct work *work, struct deploys_copy *copy, struct held *held,
                        bool *changed)
{
    bool over = str_is(copy->state, "finished") || str_is(copy->state, "failed");

    assert(copy->id.len > 0 && copy->state.len > 0 && copy->healthy.at && copy->reason.at &&
           copy->limits.at);
    copy->stale = !held || (!held->daemon && held->row_generation != copy->generation);
    if (copy->stale)
        return forget_copy(work, copy->id) && wait_for_copy(work, copy->id);
    held->told = true;
    if (copy->wants && held->daemon && !look_for_turn(work, copy))
        return false;
    if (over && !held->daemon && held->row_version == copy->version &&
        !str_eq(held->ended, copy->state) && !end_version(work, copy, changed))
        return false;
    if (held->copy.state.at && same_copy(copy, &held->copy))
        return true;
    return write_copy(work, copy) && note_state(work, copy, &held->copy);
}

/* A status names all copies of its node, unless it is partial: what it does not name is no longer
 * there. */
bool deploys_set_status(struct work *work)
{
    struct deploys_op *op = work->op;
    struct map held = {0};
    struct held *one;
    bool changed = false, ok;

    assert(op->u.status.count <= DEPLOYS_COPIES_MAX);
    if (!deploys_check_instance(work))
        return false;
    if (op->err)
        return true;
    ok = read_held(work, &held);
    for (size_t i = 0; ok && i < op->u.status.count; i++)
        ok = settle_copy(work, &op->u.status.copies[i], map_get(&held, op->u.status.copies[i].id),
                         &changed);
    for (size_t i = 0; ok && !op->u.status.partial && (one = map_next(&held, &i));)
        if (!one->told && one->copy.state.at)
            ok = forget_copy(work, one->copy.id);
    map_free(&held);
    return ok && (!changed || deploys_bump(work, false));
}

/* One deployment of a node whose lease has run out; the lease is locked, or its node could renew it
 * in between. */
static bool release_one(struct work *work, struct str id)
{
#define HOLDER(D)                                                                                  \
    "SELECT l.address, l.until_ms - " D##_NOW " FROM berth_node_lease l WHERE l.address = (SELECT" \
                                              " address FROM deployment WHERE " D##_ID             \
        " = $1)" D##_LOCK
    static const struct sql_text holder = DEPLOYS_BOTH(HOLDER);
#define RELEASE(D)                                                                                 \
    "UPDATE deployment SET address = '', generation = generation + 1 WHERE " D##_ID                \
        " = $1 AND type = 'deployment' AND address <> '' AND NOT EXISTS (SELECT 1 FROM"            \
        " berth_node_lease l WHERE l.address = deployment.address AND l.until_ms "                 \
        ">= " D##_NOW ")"
    static const struct sql_text release = DEPLOYS_BOTH(RELEASE);
    struct deploys_op *op = work->op;
    struct sql_rows rows, changed;

    op->id = id;
    if (!WORK_RUN(work, &holder, &rows, SQL_STR(id)) || !deploys_row_get(work, true) ||
        !WORK_RUN(work, &release, &changed, SQL_STR(id)))
        return false;
    if (changed.changed == 1) {
        struct str owner = op->row.address;

        op->row.generation++;
        op->u.release.released[op->u.release.released_count++] = id;
        return deploys_note(work, &op->row, "released", owner, "by an operator");
    }
    if (op->found && op->row.address.len && rows.count > 0)
        op->u.release.held[op->u.release.held_count++] = (struct deploys_held){
            .id = id, .address = op->row.address, .left_ms = sql_cell_int(&rows, 0, 1)};
    return true;
}

static bool ids_of_node(struct work *work, const struct str **ret_ids, size_t *ret_count)
{
#define OF_NODE(D)                                                                                 \
    "SELECT " D##_TEXT("id") " FROM deployment WHERE address = $1 AND type = 'deployment'"         \
                             " ORDER BY " D##_ID
    static const struct sql_text text = DEPLOYS_BOTH(OF_NODE);
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(work->op->u.release.address)))
        return false;
    *ret_ids = rows.cells; /* one column */
    *ret_count = rows.count;
    return true;
}

/* Mode seed: lost is lost, there are no leases. */
static bool release_seed(struct work *work)
{
#define SEED(D)                                                                                    \
    "UPDATE deployment SET address = '', generation = generation + 1 WHERE address = $1"           \
    " AND type = 'deployment' AND enabled RETURNING " DEPLOYS_COLUMNS(D)
    static const struct sql_text text = DEPLOYS_BOTH(SEED);
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!WORK_RUN(work, &text, &rows, SQL_STR(op->u.release.address)))
        return false;
    op->u.release.released = arena_array(op->arena, struct str, rows.count + 1);
    for (size_t i = 0; i < rows.count; i++) {
        struct deploys_row row;

        deploys_row_read(&rows, i, &row);
        op->u.release.released[op->u.release.released_count++] = row.spec.id;
        if (!deploys_note(work, &row, "released", op->u.release.address, "its node is lost"))
            return false;
    }
    return rows.count == 0 ? deploys_meta(work) : deploys_bump(work, true);
}

bool deploys_release(struct work *work)
{
    struct deploys_op *op = work->op;
    const struct str *ids = op->u.release.ids;
    size_t count = op->u.release.id_count;

    assert((op->u.release.address.at != NULL) != (ids != NULL));
    if (op->u.release.seed)
        return release_seed(work);
    if (op->u.release.address.at && !ids_of_node(work, &ids, &count))
        return false;
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
    static const struct sql_text text = DEPLOYS_BOTH(APPROVE);
    struct sql_rows rows;

    assert(work->op->u.until.for_ms >= 0);
    if (!WORK_RUN(work, &text, &rows, SQL_INT(work->op->u.until.for_ms)))
        return false;
    assert(rows.count == 1);
    work->op->u.until.until_ms = sql_cell_int(&rows, 0, 0);
    return deploys_bump(work, true);
}

/* A node nobody has heard of yet may be told to drain as well. */
bool deploys_drain(struct work *work)
{
#define DRAIN(D)                                                                                   \
    "INSERT INTO berth_node_lease (address, until_ms, renewed_ms, drain_deadline_ms) VALUES ($1, " \
    "0"                                                                                            \
    ", 0, CASE WHEN CAST($2 AS BIGINT) = 0 THEN 0 ELSE " D##_NOW                                   \
        " + CAST($2 AS BIGINT) END)"                                                               \
        " ON CONFLICT (address) DO UPDATE SET drain_deadline_ms = excluded.drain_deadline_ms"      \
        " RETURNING drain_deadline_ms"
    static const struct sql_text text = DEPLOYS_BOTH(DRAIN);
    struct sql_rows rows;

    assert(work->op->node.len > 0 && work->op->u.until.for_ms >= 0);
    if (!WORK_RUN(work, &text, &rows, SQL_STR(work->op->node), SQL_INT(work->op->u.until.for_ms)))
        return false;
    assert(rows.count == 1);
    work->op->u.until.until_ms = sql_cell_int(&rows, 0, 0);
    return deploys_bump(work, true);
}
