/* One connection to a database, SQLite or PostgreSQL, behind one interface. Blocks, within a
 * time-out; belongs to one thread. Results are read completely, as text, into an arena: with only
 * tens of calls a second that is cheap, and both databases look the same. */
#ifndef STORE_SQL_H
#define STORE_SQL_H

#include "base/err.h"
#include "base/mem.h"

enum sql_dialect { SQL_LITE, SQL_PG, SQL_DIALECTS };

enum {
    SQL_PARAMS_MAX = 24,
    SQL_DETAIL_MAX = 200,
    SQL_PREPARED_MAX = 160, /* more than the number of statements */
};

/* The same statement for both; parameters are $1, $2, ... The texts are constants: each is prepared
 * once per connection and then identified by its address. */
struct sql_text {
    const char *of[SQL_DIALECTS];
};

struct sql_param {
    struct str text; /* at == NULL: SQL NULL, unless is_number */
    int64_t number;
    bool is_number;
};

#define SQL_STR(value) ((struct sql_param){.text = (value)})
#define SQL_INT(value) ((struct sql_param){.number = (value), .is_number = true})

struct sql_rows {
    struct str *cells; /* row by row; at == NULL: SQL NULL; NUL-terminated */
    size_t count;      /* rows */
    size_t columns;
    int64_t changed; /* rows an INSERT, UPDATE or DELETE changed */
};

struct str sql_cell(const struct sql_rows *rows, size_t row, size_t column);
int64_t sql_cell_int(const struct sql_rows *rows, size_t row, size_t column); /* NULL is 0 */
bool sql_cell_bool(const struct sql_rows *rows, size_t row, size_t column);

struct sql_config {
    const char *url; /* "sqlite:PATH", "postgresql://...", "postgres://..." */
    const char *data_dir;
    int64_t timeout_ms;      /* of one statement, and of connecting */
    int64_t (*now_ms)(void); /* a test's clock for SQLite; PostgreSQL has its own */
};

struct sql;
struct sql_driver { /* a row per kind of database */
    enum sql_dialect dialect;
    struct sql *(*make)(const struct sql_config *config);
    bool (*connect)(struct sql *sql);
    void (*disconnect)(struct sql *sql);
    /* ERR_STORE_DOWN: the connection failed, or the cause is unknown. Any other error is the
     * statement's own; the connection is still good. */
    enum err (*run)(struct sql *sql, const char *text, const struct sql_param *params, size_t count,
                    struct arena *arena, struct sql_rows *ret_rows);
    void (*free)(struct sql *sql);
};

struct sql {
    const struct sql_driver *driver;
    bool connected;
    bool in_transaction;
    bool on_wall_clock;          /* of this machine, see deploys_follow_clock: database time is */
    int64_t ahead_ms;            /* clock_mono_ms() plus this; 0: not known yet */
    enum err err;                /* of the last failure */
    char detail[SQL_DETAIL_MAX]; /* likewise; never a password */
};

/* ERR_BAD_CONFIG: unknown kind of URL. Does not connect yet. */
enum err sql_open(const struct sql_config *config, struct sql **ret_sql, struct problem *why);
void sql_free(struct sql *sql);

/* All of these: false = it failed, see sql->err. If sql->connected is still set, the statement
 * itself failed, mostly because of its parameters: the caller that began a transaction rolls it
 * back, and others are not affected. Otherwise everything since sql_begin is undone or, after
 * sql_commit, possibly not. */
bool sql_connect(struct sql *sql); /* no effect when already connected */
bool sql_begin(struct sql *sql);   /* for writing; SQLite then locks out every other writer */
bool sql_commit(struct sql *sql);
void sql_rollback(struct sql *sql);
bool sql_run(struct sql *sql, const struct sql_text *text, const struct sql_param *params,
             size_t count, struct arena *arena, struct sql_rows *ret_rows);

extern const struct sql_driver sql_lite, sql_pg;
void sql_failed(struct sql *sql, const char *what, const char *detail); /* for the drivers */

#endif
