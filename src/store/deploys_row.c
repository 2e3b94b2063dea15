/* Reads rows from cells and does what every change needs: the table's version and the history. */
#include "store/deploys_row.h"

#include <assert.h>

#include "store/deploys.h"
#include "store/sql.h"

bool work_run(struct work *work, const struct sql_text *text, const struct sql_param *params,
              size_t count, struct sql_rows *ret_rows)
{
    return sql_run(work->sql, text, params, count, work->op->arena, ret_rows);
}

bool work_begin(struct work *work)
{
    return work->sql->in_transaction || sql_begin(work->sql);
}

void deploys_row_read(const struct sql_rows *rows, size_t at, struct deploys_row *ret_row)
{
    assert(rows->columns >= DEPLOYS_COLUMN_COUNT);
    *ret_row = (struct deploys_row){
        .spec = {.id = sql_cell(rows, at, 0),
                 .type = deploy_type_by_name(sql_cell(rows, at, 1)),
                 .package_name = sql_cell(rows, at, 2),
                 .package_version = sql_cell(rows, at, 3),
                 .command = sql_cell(rows, at, 4),
                 .args = sql_cell(rows, at, 5),
                 .env = sql_cell(rows, at, 6),
                 .selector = sql_cell(rows, at, 7),
                 .options = sql_cell(rows, at, 8),
                 .enabled = sql_cell_bool(rows, at, 9),
                 .count = sql_cell_int(rows, at, 15),
                 .max_unavailable = sql_cell_int(rows, at, 16),
                 .update_timeout_ms = sql_cell_int(rows, at, 21)},
        .owner = sql_cell(rows, at, 10),
        .generation = sql_cell_int(rows, at, 11),
        .version = sql_cell_int(rows, at, 12),
        .ended = sql_cell(rows, at, 13),
        .free_from_ms = sql_cell_int(rows, at, 14),
        .newest_version = sql_cell_int(rows, at, 17),
        .good_version = sql_cell_int(rows, at, 18),
        .rollout = rollout_state_by_name(sql_cell(rows, at, 19)),
        .rollout_reason = sql_cell(rows, at, 20),
        .created_at = sql_cell(rows, at, 22),
        .updated_at = sql_cell(rows, at, 23),
    };
    if (ret_row->newest_version < ret_row->version) /* an older row without it */
        ret_row->newest_version = ret_row->version;
}

bool deploys_row_get(struct work *work, bool lock)
{
#define GET(D)  "SELECT " DEPLOYS_COLUMNS(D) " FROM deployment WHERE " D##_ID " = $1"
#define TAKE(D) GET(D) D##_LOCK
    static const struct sql_text texts[] = {DEPLOYS_BOTH(GET), DEPLOYS_BOTH(TAKE)};
    struct sql_rows rows;

    if (!WORK_RUN(work, &texts[lock], &rows, SQL_STR(work->op->id)))
        return false;
    work->op->found = rows.count > 0;
    if (work->op->found)
        deploys_row_read(&rows, 0, &work->op->row);
    return true;
}

bool deploys_bump(struct work *work, bool news)
{
#define BUMP(D)                                                                                    \
    "UPDATE berth_meta SET value = value + 1 WHERE name = 'version' OR (name = 'news' AND"         \
    " CAST($1 AS BIGINT) = 1)"
    return WORK_SQL(work, BUMP, NULL, SQL_INT(news)) && deploys_meta(work);
}

bool deploys_meta(struct work *work)
{
#define META(D)                                                                                    \
    "SELECT v.value, n.value, a.value, " D##_NOW                                                   \
        " FROM berth_meta v, berth_meta n, berth_meta a WHERE v.name = 'version'"                  \
        " AND n.name = 'news' AND a.name = 'approved_until_ms'"
    static const struct sql_text meta = DEPLOYS_BOTH(META);
    struct sql_rows rows;

    if (!sql_run(work->sql, &meta, NULL, 0, work->op->arena, &rows))
        return false;
    assert(rows.count == 1);
    work->op->version = sql_cell_int(&rows, 0, 0);
    work->op->news = sql_cell_int(&rows, 0, 1);
    work->approved_until_ms = sql_cell_int(&rows, 0, 2);
    work->op->now_ms = sql_cell_int(&rows, 0, 3);
    assert(work->op->version > 0 && work->op->now_ms > 0);
    return true;
}

bool deploys_failures(struct work *work, struct str id, struct arena *arena,
                      struct deploys_failure **ret_failures, size_t *ret_count)
{
#define FAILURES(D)                                                                                \
    "SELECT id, address, at_ms, until_ms, reason FROM berth_deployment_failure"                    \
    " WHERE until_ms >= " D##_STATEMENT_START
#define ALL_FAILURES(D) FAILURES(D) " ORDER BY " D##_BYTES("id") ", " D##_BYTES("address")
/* clang-format off */
#define ITS_FAILURES(D)                                                                            \
    FAILURES(D) " AND (id = $1 OR id IN (SELECT " D##_TEXT("id") " FROM deployment WHERE "         \
    COPY_OF("", "$1") ")) ORDER BY " D##_BYTES("id") ", " D##_BYTES("address")
    /* clang-format on */
    static const struct sql_text all = DEPLOYS_BOTH(ALL_FAILURES);
    static const struct sql_text its = DEPLOYS_BOTH(ITS_FAILURES);
    struct sql_param param = SQL_STR(id);
    struct sql_rows rows;

    if (!sql_run(work->sql, id.at ? &its : &all, &param, id.at ? 1 : 0, arena, &rows))
        return false;
    *ret_count = rows.count;
    *ret_failures = arena_array(arena, struct deploys_failure, rows.count + 1);
    for (size_t i = 0; i < rows.count; i++)
        (*ret_failures)[i] = (struct deploys_failure){.id = sql_cell(&rows, i, 0),
                                                      .address = sql_cell(&rows, i, 1),
                                                      .at_ms = sql_cell_int(&rows, i, 2),
                                                      .until_ms = sql_cell_int(&rows, i, 3),
                                                      .reason = sql_cell(&rows, i, 4)};
    return true;
}

/* Adds to a deployment's history, of which the last DEPLOYS_HISTORY_KEPT entries are kept. The
 * newest entry of a deleted deployment stays: its generation must never be reused. */
bool deploys_note(struct work *work, const struct deploys_row *row, const char *what,
                  struct str address, const char *detail)
{
#define NOTE(D)                                                                                    \
    "INSERT INTO berth_deployment_history (id, at_ms, what, address, generation, version, detail)" \
    " VALUES ($1, " D##_NOW ", $2, $3, $4, $5, $6)"
#define PRUNE(D)                                                                                   \
    "DELETE FROM berth_deployment_history WHERE id = $1 AND seq <= (SELECT seq FROM"               \
    " berth_deployment_history WHERE id = $1 ORDER BY seq DESC LIMIT 1 OFFSET CAST($2 AS BIGINT))"

    assert(what && *what && detail && row->spec.id.len > 0 && row->generation >= 0);
    return WORK_SQL(work, NOTE, NULL, SQL_STR(row->spec.id), SQL_STR(str_of(what)),
                    SQL_STR(address.at ? address : STR("")), SQL_INT(row->generation),
                    SQL_INT(row->version), SQL_STR(str_of(detail))) &&
           WORK_SQL(work, PRUNE, NULL, SQL_STR(row->spec.id), SQL_INT(DEPLOYS_HISTORY_KEPT));
}
