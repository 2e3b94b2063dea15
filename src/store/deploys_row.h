/* State and helpers shared by all deployment verbs while they run in the database: rows from cells,
 * the bookkeeping of every change, and the SQL fragments of both dialects. */
#ifndef STORE_DEPLOYS_ROW_H
#define STORE_DEPLOYS_ROW_H

#include "store/deploys.h"
#include "store/sql.h"

/* SQL fragments of the two dialects. Statements are constants: none is built at run time. */
#define LITE_NOW "now_ms()"
#define PG_NOW   "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)"
/* The time when the statement began: a search by it can use an index, but it does not include time
 * spent waiting for a lock. */
#define LITE_STATEMENT_START LITE_NOW
#define PG_STATEMENT_START                                                                         \
    "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000)"                                 \
    " AS BIGINT)"
#define LITE_TIME      "now_text()"
#define PG_TIME        "clock_timestamp()"
#define LITE_TEXT(col) col
#define PG_TEXT(col)   "CAST(" col " AS TEXT)"
/* A row written by another program may hold anything. */
#define LITE_NEEDS      "CASE WHEN json_valid(options) THEN json_extract(options, '$.needs') END"
#define PG_NEEDS        "CAST(CAST(options AS JSONB) -> 'needs' AS TEXT)"
#define LITE_WHEN(col)  col
#define PG_WHEN(col)    "to_char(" col ", 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
#define LITE_BYTES(col) col
#define PG_BYTES(col)   "CAST(" col " AS TEXT) COLLATE \"C\""
#define LITE_ID         "id"
#define PG_ID           PG_BYTES("id")
#define LITE_LOCK       ""
#define PG_LOCK         " FOR UPDATE"

#define DEPLOYS_BOTH(statement)                                                                    \
    {                                                                                              \
        {                                                                                          \
            statement(LITE), statement(PG)                                                         \
        }                                                                                          \
    }

/* The copies of a deployment other than the first, each with its own row. Their partial index is
 * used only when the query has this condition. */
#define COPY_OF(row, id) "(" row "copy_of = " id " AND " row "copy_of <> '')"

/* The columns of a row, in the order deploys_row_read() takes them. */
/* clang-format off */
#define DEPLOYS_COLUMNS(D)                                                                         \
    D##_TEXT("id") ", type, package_name, package_version, command, "                              \
    D##_TEXT("args") ", " D##_TEXT("env") ", selector, " D##_TEXT("options") ", enabled,"          \
    " address, generation, spec_version, ended, free_from_ms, replicas, max_unavailable,"          \
    " newest_version, good_version, rollout, rollout_reason, update_timeout_ms, "                      \
    D##_WHEN("created_at") ", " D##_WHEN("updated_at")
/* clang-format on */
enum { DEPLOYS_COLUMN_COUNT = 24 };

/* What claimers need besides the rows ("facts" in the protocol), recently cached: leases ending
 * soon, goodbyes, and failures by node. It changes without a new version of the table. */
struct deploys_leases_cache {
    struct arena arena;
    struct deploys_lease *leases;
    size_t lease_count;
    struct deploys_failure *failures;
    size_t failure_count;
    int64_t within_ms; /* covers leases that end within this time */
    int64_t number;    /* equal contents have the same number for every reader */
    int64_t read_mono_ms;
};

/* A row of the table as claimers see it, recently cached. */
struct deploys_cached_row {
    struct deploy_row row;
    int64_t changed; /* the version in which this state was first seen */
};

/* All live copies, recently cached. */
struct deploys_services_cache {
    struct arena arena;
    struct deploys_service *items;
    size_t count;
    int64_t number; /* equal sets of copies have the same number for every reader */
    int64_t read_mono_ms, took_ms;
};

struct deploys_gone;
struct deploys_table {
    struct arena arena;
    struct deploys_cached_row *rows; /* by id */
    size_t count;
    bool whole;
    int64_t version;           /* 0: not loaded yet */
    int64_t since;             /* changes are known from this version on */
    struct deploys_gone *gone; /* rows deleted since then */
    size_t gone_count;
    struct arena gone_arena;
    int64_t read_mono_ms, took_ms;
};

/* One op being run in the database. False from any of these functions: a statement failed, see
 * sql.h. */
struct work {
    struct sql *sql;
    struct deploys_op *op;
    struct deploys_leases_cache *leases;     /* VIEW */
    struct deploys_table *table;             /* VIEW */
    struct deploys_services_cache *services; /* SERVICES */
    bool leases_stale;                       /* VIEW: `leases` must be read again */
    int64_t approved_until_ms;               /* from deploys_meta() */
};

typedef bool deploys_verb(struct work *work);
deploys_verb deploys_list, deploys_get, deploys_put, deploys_enable, deploys_restart, deploys_scale,
    deploys_rollback, deploys_delete, deploys_history, deploys_release, deploys_approve,
    deploys_drain, deploys_view, deploys_renew, deploys_claim, deploys_yield, deploys_set_status,
    deploys_services;

bool work_run(struct work *work, const struct sql_text *text, const struct sql_param *params,
              size_t count, struct sql_rows *ret_rows);
#define WORK_RUN(work, text, rows, ...)                                                            \
    work_run((work), (text), (const struct sql_param[]){__VA_ARGS__},                              \
             sizeof((const struct sql_param[]){__VA_ARGS__}) / sizeof(struct sql_param), (rows))
/* `statement(D)` is the statement in dialect D. */
#define WORK_SQL(work, statement, rows, ...)                                                       \
    ({                                                                                             \
        static const struct sql_text work_text = DEPLOYS_BOTH(statement);                          \
        WORK_RUN((work), &work_text, (rows), ##__VA_ARGS__);                                       \
    })

/* Begins a transaction unless one is open; the caller of the verb ends it. */
bool work_begin(struct work *work);

void deploys_row_read(const struct sql_rows *rows, size_t at, struct deploys_row *ret_row);
/* Reads the row op->id into op->row and sets op->found; with `lock`, locked until the transaction
 * ends. */
bool deploys_row_get(struct work *work, bool lock);
/* Adds 1 to the table's version, returned in op->version. Called once in a transaction that changed
 * something; `news`: nodes should look at once. */
bool deploys_bump(struct work *work, bool news);
/* Reads op->version, op->news, op->now_ms and work->approved_until_ms. */
bool deploys_meta(struct work *work);
/* The failures of `id` still in effect; at == NULL: of all deployments. */
bool deploys_failures(struct work *work, struct str id, struct arena *arena,
                      struct deploys_failure **ret_failures, size_t *ret_count);
bool deploys_note(struct work *work, const struct deploys_row *row, const char *what,
                  struct str address, const char *detail);

/* Claims (deploys_claim.c). */

/* The common case of a renewal; *ret_done is false when the full path is needed. */
bool deploys_renew_good(struct work *work, bool *ret_done);
/* Deletes a part of what permanently lost nodes left behind. */
bool deploys_forget(struct work *work, bool *ret_more);

/* What claimers see (deploys_view.c). */

void deploys_table_done(struct deploys_table *table);

/* Updates of several copies, and the versions they roll back to (deploys_rollout.c). */

/* Saves the current spec of op->id under its version. */
bool deploys_keep_spec(struct work *work);
bool deploys_forget_specs(struct work *work);
/* Reads a saved version of op->id, except `enabled`; sets *ret_found. */
bool deploys_kept_spec(struct work *work, int64_t version, struct deploys_spec *ret_spec,
                       bool *ret_found);
/* Writes the spec of a saved version into a copy's row. */
bool deploys_set_spec(struct work *work, struct str id, const struct deploys_spec *spec,
                      int64_t version);
/* Finds the version to roll back to if the next one fails, from the row `before` the change: the
 * healthy version now, or the last one. 0: none is known. */
bool deploys_find_good(struct work *work, const struct deploys_row *before, int64_t *ret_good);
/* Is an update in progress or stopped half-way? */
bool deploys_is_rolling(const struct deploys_row *row);
/* The first copy has a new version: update the others a few at a time. */
bool deploys_roll(struct work *work, const struct deploys_row *before, int64_t good);
/* Updates the other copies at once, because nothing runs or nothing changes. A version that is
 * going to run and was never healthy is watched like any update. */
bool deploys_follow_first(struct work *work, int64_t good);
/* Called with new information about the copies of op->id, whose row is locked: update the next
 * ones, roll all back, or finish. *ret_changed: nodes should look. */
bool deploys_roll_on(struct work *work, bool *ret_changed);

#endif
