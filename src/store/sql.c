/* What both databases have in common. */
#include "store/sql.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *scheme;
    const struct sql_driver *driver;
} schemes[] = {
    {"sqlite:", &sql_lite},
    {"postgresql://", &sql_pg},
    {"postgres://", &sql_pg},
};

enum err sql_open(const struct sql_config *config, struct sql **ret_sql, struct problem *why)
{
    assert(config->url && config->timeout_ms > 0);
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        if (strncmp(config->url, schemes[i].scheme, strlen(schemes[i].scheme)) != 0)
            continue;
        *ret_sql = schemes[i].driver->make(config);
        (*ret_sql)->driver = schemes[i].driver;
        return ERR_OK;
    }
    return problem_set(why, ERR_BAD_CONFIG, "database",
                       "database must be sqlite:PATH or postgresql://[user[:password]@]host/name.");
}

void sql_free(struct sql *sql)
{
    if (!sql)
        return;
    sql->driver->disconnect(sql);
    sql->driver->free(sql);
}

/* libpq's messages end with a newline and may have several lines. */
void sql_failed(struct sql *sql, const char *what, const char *detail)
{
    snprintf(sql->detail, sizeof sql->detail, "%s: %s", what, detail ? detail : "");
    sql->detail[strcspn(sql->detail, "\n")] = '\0';
}

static void drop(struct sql *sql)
{
    sql->driver->disconnect(sql);
    sql->connected = false;
    sql->in_transaction = false;
}

bool sql_connect(struct sql *sql)
{
    if (sql->connected)
        return true;
    assert(!sql->in_transaction);
    sql->connected = sql->driver->connect(sql);
    if (!sql->connected) {
        sql->err = ERR_STORE_DOWN;
        sql->driver->disconnect(sql);
    }
    return sql->connected;
}

/* PostgreSQL refuses invalid UTF-8 and cuts a text at a NUL, SQLite keeps both: this makes them
 * behave alike. */
static bool all_texts(const struct sql_param *params, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct str text = params[i].is_number ? STR_NONE : params[i].text;

        if (text.len > 0 && (memchr(text.at, '\0', text.len) || !str_is_utf8(text)))
            return false;
    }
    return true;
}

bool sql_run(struct sql *sql, const struct sql_text *text, const struct sql_param *params,
             size_t count, struct arena *arena, struct sql_rows *ret_rows)
{
    struct sql_rows rows = {0};
    enum err err;

    assert(count <= SQL_PARAMS_MAX && text->of[sql->driver->dialect]);
    if (!sql_connect(sql))
        return false;
    if (all_texts(params, count)) {
        err = sql->driver->run(sql, text->of[sql->driver->dialect], params, count, arena, &rows);
    } else {
        sql_failed(sql, "run a statement", "a value is not a UTF-8 text without NUL");
        err = ERR_BAD_REQUEST;
    }
    if (err) {
        sql->err = err;
        if (err == ERR_STORE_DOWN)
            drop(sql);
        return false;
    }
    if (ret_rows)
        *ret_rows = rows;
    return true;
}

static bool run_word(struct sql *sql, const struct sql_text *word)
{
    struct arena arena = {0};
    bool ok = sql_run(sql, word, NULL, 0, &arena, NULL);

    arena_free(&arena);
    return ok;
}

bool sql_begin(struct sql *sql)
{
    static const struct sql_text begin = {{"BEGIN IMMEDIATE", "BEGIN"}};

    assert(!sql->in_transaction);
    sql->in_transaction = run_word(sql, &begin);
    return sql->in_transaction;
}

bool sql_commit(struct sql *sql)
{
    static const struct sql_text commit = {{"COMMIT", "COMMIT"}};

    assert(sql->in_transaction);
    if (!run_word(sql, &commit)) {
        sql_rollback(sql);
        return false;
    }
    sql->in_transaction = false;
    return true;
}

void sql_rollback(struct sql *sql)
{
    static const struct sql_text rollback = {{"ROLLBACK", "ROLLBACK"}};

    if (sql->in_transaction && !run_word(sql, &rollback))
        drop(sql); /* this also ends the transaction */
    sql->in_transaction = false;
}

struct str sql_cell(const struct sql_rows *rows, size_t row, size_t column)
{
    assert(row < rows->count && column < rows->columns);
    return rows->cells[row * rows->columns + column];
}

int64_t sql_cell_int(const struct sql_rows *rows, size_t row, size_t column)
{
    int64_t value = 0;

    str_int(sql_cell(rows, row, column), &value);
    return value;
}

bool sql_cell_bool(const struct sql_rows *rows, size_t row, size_t column)
{
    struct str cell = sql_cell(rows, row, column);

    return str_is(cell, "1") || str_is(cell, "t") || str_is(cell, "true");
}
