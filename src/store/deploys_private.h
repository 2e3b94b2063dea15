/* Between the files of deploys:
 *   deploys.c         the thread, its desk, the connection and the clock
 *   deploys_schema.c  tables and migrations
 *   deploys_row.c     rows out of cells, and what every change writes
 *   deploys_spec.c    what operators do
 *   deploys_claim.c   what nodes do */
#ifndef STORE_DEPLOYS_PRIVATE_H
#define STORE_DEPLOYS_PRIVATE_H

#include "store/deploys.h"
#include "store/sql.h"

/* The two dialects' words. Both end up as constants: no statement is put together at run time. */
#define LITE_NOW        "now_ms()"
#define PG_NOW          "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)"
#define LITE_TIME       "now_text()"
#define PG_TIME         "clock_timestamp()"
#define LITE_TEXT(col)  col
#define PG_TEXT(col)    "CAST(" col " AS TEXT)"
#define LITE_WHEN(col)  col
#define PG_WHEN(col)    "to_char(" col ", 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
#define LITE_BYTES(col) col
#define PG_BYTES(col)   "CAST(" col " AS TEXT) COLLATE \"C\""
#define LITE_LOCK       ""
#define PG_LOCK         " FOR UPDATE"

#define DEPLOYS_BOTH(statement)                                                                    \
    {                                                                                              \
        {                                                                                          \
            statement(LITE), statement(PG)                                                         \
        }                                                                                          \
    }

/* The columns of a row, in the order deploys_row_read() takes them. */
/* clang-format off */
#define DEPLOYS_COLUMNS(D)                                                                         \
    D##_TEXT("id") ", type, package_name, package_version, command, "                              \
    D##_TEXT("args") ", " D##_TEXT("env") ", selector, " D##_TEXT("options") ", enabled,"          \
    " address, generation, spec_version, ended, "                                                  \
    D##_WHEN("created_at") ", " D##_WHEN("updated_at")
/* clang-format on */
enum { DEPLOYS_COLUMN_COUNT = 16 };

/* One op on its way through the database. False from any of these: the database failed. */
struct work {
    struct sql *sql;
    struct deploys_op *op;
};

typedef bool deploys_verb(struct work *work);
deploys_verb deploys_list, deploys_get, deploys_put, deploys_enable, deploys_restart,
    deploys_delete, deploys_history, deploys_release, deploys_approve, deploys_drain, deploys_view,
    deploys_renew, deploys_claim, deploys_yield, deploys_set_status;

bool work_run(struct work *work, const struct sql_text *text, const struct sql_param *params,
              size_t count, struct sql_rows *ret_rows);
#define WORK_RUN(work, text, rows, ...)                                                            \
    work_run((work), (text), (const struct sql_param[]){__VA_ARGS__},                              \
             sizeof((const struct sql_param[]){__VA_ARGS__}) / sizeof(struct sql_param), (rows))

void deploys_row_read(const struct sql_rows *rows, size_t at, struct deploys_row *ret_row);
/* The row op->id into op->row, locked until the end of the transaction; op->found. */
bool deploys_row_get(struct work *work, bool lock);
/* +1 to the table's version, told in op->version. Once in a transaction that changed something;
 * `news`: nodes should look at once. */
bool deploys_bump(struct work *work, bool news);
bool deploys_meta(struct work *work); /* op->version, op->news and op->now_ms */
/* Into op->failures: those of op->id, or (at == NULL) all. */
bool deploys_failures(struct work *work);
bool deploys_note(struct work *work, const struct deploys_row *row, const char *what,
                  struct str address, const char *detail);

/* Makes the tables or adds what is missing. *ret_newer: a newer berth was here. */
bool deploys_migrate(struct sql *sql, bool *ret_newer);

#endif
