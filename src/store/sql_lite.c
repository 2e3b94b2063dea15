/* SQLite. A separate file from the embedded store's; WAL, every commit synced before it is
 * answered. Other processes may use the file: waits for locks up to the time-out. */
#include "store/sql.h"

#include <assert.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/storefile.h"

enum { PATH_BYTES_MAX = 4096 };

struct lite {
    struct sql sql;
    sqlite3 *db;
    struct {
        const char *text;
        sqlite3_stmt *stmt;
    } prepared[SQL_PREPARED_MAX];
    size_t prepared_count;
    char path[PATH_BYTES_MAX];
    char *data_dir; /* directory to create for the default path; NULL: the path was given */
    int64_t timeout_ms;
    int64_t (*test_clock)(void); /* NULL: use sql.ahead_ms */
};

static struct lite *of(struct sql *sql)
{
    return container_of(sql, struct lite, sql);
}

/* "sqlite:" alone is berth.db in the data directory. */
static struct sql *lite_make(const struct sql_config *config)
{
    struct lite *lite = mem_new(struct lite);
    const char *path = config->url + strlen("sqlite:");
    int len = *path ? snprintf(lite->path, sizeof lite->path, "%s", path)
                    : snprintf(lite->path, sizeof lite->path, "%s/berth.db", config->data_dir);

    if (len >= (int)sizeof lite->path)
        lite->path[0] = '\0'; /* makes the open fail with an error */
    if (!*path)
        lite->data_dir = mem_cstr(str_of(config->data_dir));
    lite->timeout_ms = config->timeout_ms;
    lite->test_clock = config->now_ms;
    lite->sql.on_wall_clock = !config->now_ms;
    return &lite->sql;
}

/* now_ms() and now_text() in statements: the one clock that judges leases. */
static int64_t lite_now(const struct lite *lite)
{
    return lite->test_clock     ? lite->test_clock()
           : lite->sql.ahead_ms ? clock_mono_ms() + lite->sql.ahead_ms
                                : clock_wall_ms(); /* while its tables are created */
}

static void now_ms(sqlite3_context *context, int argc, sqlite3_value **argv)
{
    const struct lite *lite = sqlite3_user_data(context);

    (void)argc, (void)argv;
    sqlite3_result_int64(context, lite_now(lite));
}

static void now_text(sqlite3_context *context, int argc, sqlite3_value **argv)
{
    const struct lite *lite = sqlite3_user_data(context);
    char text[CLOCK_ISO_BYTES];

    (void)argc, (void)argv;
    clock_iso(lite_now(lite), text);
    sqlite3_result_text(context, text, -1, SQLITE_TRANSIENT);
}

static bool failed(struct lite *lite, const char *what)
{
    sql_failed(&lite->sql, what, lite->db ? sqlite3_errmsg(lite->db) : "no memory");
    return false;
}

static bool lite_connect(struct sql *sql)
{
    struct lite *lite = of(sql);
    struct fault fault = {0};
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;

    assert(!lite->db);
    if (lite->data_dir)
        mkdir(lite->data_dir, 0700); /* mostly there already */
    if (sqlite3_open_v2(lite->path, &lite->db, flags, NULL) != SQLITE_OK)
        return failed(lite, "open the database");
    sqlite3_busy_timeout(lite->db, (int)lite->timeout_ms);
    if (!storefile_exec(lite->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;", &fault))
        return failed(lite, "prepare the database");
    sqlite3_create_function(lite->db, "now_ms", 0, SQLITE_UTF8, lite, now_ms, NULL, NULL);
    sqlite3_create_function(lite->db, "now_text", 0, SQLITE_UTF8, lite, now_text, NULL, NULL);
    return true;
}

static void lite_disconnect(struct sql *sql)
{
    struct lite *lite = of(sql);

    for (size_t i = 0; i < lite->prepared_count; i++)
        sqlite3_finalize(lite->prepared[i].stmt);
    lite->prepared_count = 0;
    sqlite3_close_v2(lite->db);
    lite->db = NULL;
}

/* Prepared once, kept until we disconnect. NULL: invalid statement. */
static sqlite3_stmt *prepare(struct lite *lite, const char *text)
{
    sqlite3_stmt *stmt;

    for (size_t i = 0; i < lite->prepared_count; i++)
        if (lite->prepared[i].text == text)
            return lite->prepared[i].stmt;
    assert(lite->prepared_count < SQL_PREPARED_MAX);
    if (sqlite3_prepare_v3(lite->db, text, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) != SQLITE_OK)
        return NULL;
    lite->prepared[lite->prepared_count].text = text;
    lite->prepared[lite->prepared_count++].stmt = stmt;
    return stmt;
}

static void bind(sqlite3_stmt *stmt, const struct sql_param *params, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char name[24];
        int at;

        snprintf(name, sizeof name, "$%zu", i + 1);
        at = sqlite3_bind_parameter_index(stmt, name);
        if (at == 0)
            continue; /* only the other dialect needs it */
        if (params[i].is_number)
            sqlite3_bind_int64(stmt, at, params[i].number);
        else if (params[i].text.at)
            sqlite3_bind_text(stmt, at, params[i].text.at, (int)params[i].text.len, SQLITE_STATIC);
    }
}

/* Doubles the capacity when full: the number of rows is not known beforehand. */
static void add_row(sqlite3_stmt *stmt, struct arena *arena, struct sql_rows *rows, size_t *room)
{
    if (rows->count == *room) {
        size_t old = *room * rows->columns * sizeof *rows->cells;

        *room = *room ? 2 * *room : 16;
        rows->cells = old ? arena_resize(arena, rows->cells, old, 2 * old)
                          : arena_array(arena, struct str, *room * rows->columns);
    }
    for (size_t i = 0; i < rows->columns; i++) {
        const char *text = (const char *)sqlite3_column_text(stmt, (int)i);
        size_t len = (size_t)sqlite3_column_bytes(stmt, (int)i);

        rows->cells[rows->count * rows->columns + i] =
            text ? arena_str(arena, (struct str){.at = text, .len = len}) : STR_NONE;
    }
    rows->count++;
}

/* Errors a value can cause; all others are the fault of the file or of whoever locks it. */
static enum err fault_of(int code)
{
    static const struct {
        int code;
        enum err err;
    } faults[] = {
        {SQLITE_TOOBIG, ERR_BAD_REQUEST},
        {SQLITE_MISMATCH, ERR_INTERNAL},
        {SQLITE_CONSTRAINT, ERR_INTERNAL},
    };

    for (size_t i = 0; i < COUNT_OF(faults); i++)
        if ((code & 0xff) == faults[i].code) /* the low byte is the primary code */
            return faults[i].err;
    return ERR_STORE_DOWN;
}

static enum err lite_run(struct sql *sql, const char *text, const struct sql_param *params,
                         size_t count, struct arena *arena, struct sql_rows *ret_rows)
{
    struct lite *lite = of(sql);
    sqlite3_stmt *stmt;
    size_t room = 0;
    int code;

    assert(lite->db);
    stmt = prepare(lite, text);
    if (!stmt) {
        failed(lite, "prepare a statement");
        return ERR_STORE_DOWN;
    }
    bind(stmt, params, count);
    ret_rows->columns = (size_t)sqlite3_column_count(stmt);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW)
        add_row(stmt, arena, ret_rows, &room);
    if (code != SQLITE_DONE)
        failed(lite, "run a statement");
    assert(ret_rows->count <= room);
    ret_rows->changed = sqlite3_changes64(lite->db);
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return code == SQLITE_DONE ? ERR_OK : fault_of(code);
}

static void lite_free(struct sql *sql)
{
    free(of(sql)->data_dir);
    free(of(sql));
}

const struct sql_driver sql_lite = {
    .dialect = SQL_LITE,
    .make = lite_make,
    .connect = lite_connect,
    .disconnect = lite_disconnect,
    .run = lite_run,
    .free = lite_free,
};
