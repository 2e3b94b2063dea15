/* A dump of the embedded store: from its file, which a server may be writing meanwhile. */
#include "store/dump.h"
#include "store/jobrow.h"
#include "store/store.h"

#include "base/mem.h"

#include <assert.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

struct dump {
    sqlite3 *db;
    struct jsonw *w;
    int64_t max;
};

typedef void write_row(struct dump *dump, sqlite3_stmt *row);

/* One section: a row of the answer is one object. ?1 is how many. */
static bool section(struct dump *dump, const char *name, const char *sql, write_row *write)
{
    sqlite3_stmt *stmt = NULL;
    int code = sqlite3_prepare_v2(dump->db, sql, -1, &stmt, NULL);

    if (code == SQLITE_OK && sqlite3_bind_parameter_count(stmt) > 0)
        code = sqlite3_bind_int64(stmt, 1, dump->max);
    jsonw_key(dump->w, name);
    jsonw_arr(dump->w);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(stmt);
        if (code == SQLITE_ROW)
            write(dump, stmt);
    }
    jsonw_end_arr(dump->w);
    sqlite3_finalize(stmt);
    return code == SQLITE_DONE;
}

static void node_row(struct dump *dump, sqlite3_stmt *row)
{
    struct store_node node = {
        .id = jobrow_text(row, 0),
        .counts = {.health = (enum node_health)sqlite3_column_int(row, 1),
                   .max = sqlite3_column_int(row, 2),
                   .epoch = (uint32_t)sqlite3_column_int64(row, 3),
                   .reserved = sqlite3_column_int(row, 4),
                   .running = sqlite3_column_int(row, 5)},
        .version = sqlite3_column_int64(row, 6),
        .registered_ms = sqlite3_column_int64(row, 7),
        .admin_reason = jobrow_text(row, 8),
        .facts = jobrow_text(row, 9),
    };

    dump_node(dump->w, &node);
}

static void lease_row(struct dump *dump, sqlite3_stmt *row)
{
    struct store_head head;
    int64_t run_until_ms;

    if (jobrow_head(row, &head, &run_until_ms))
        dump_lease(dump->w, &head);
}

static void job_row(struct dump *dump, sqlite3_stmt *row)
{
    struct store_head head;
    int64_t run_until_ms;

    if (jobrow_head(row, &head, &run_until_ms))
        dump_job(dump->w, &head);
}

static void session_row(struct dump *dump, sqlite3_stmt *row)
{
    jsonw_obj(dump->w);
    jsonw_kstr(dump->w, "session_id", jobrow_text(row, 0));
    jsonw_kstr(dump->w, "preferred_pool", jobrow_text(row, 1));
    jsonw_kstr(dump->w, "lang_pair", jobrow_text(row, 2));
    jsonw_kint(dump->w, "version", sqlite3_column_int64(row, 3));
    jsonw_kint(dump->w, "updated_ms", sqlite3_column_int64(row, 4));
    jsonw_end_obj(dump->w);
}

static void breaker_row(struct dump *dump, sqlite3_stmt *row)
{
    int state = sqlite3_column_int(row, 2);
    struct store_breaker breaker = {
        .node = jobrow_text(row, 0),
        .type = jobrow_text(row, 1),
        .breaker = {.failures = sqlite3_column_int(row, 3),
                    .opened_ms = sqlite3_column_int64(row, 4)},
    };

    if (state < 0 || state >= BREAKER_STATE_COUNT)
        return;
    breaker.breaker.state = (enum breaker_state)state;
    dump_breaker(dump->w, &breaker);
}

static bool sections(struct dump *dump)
{
    return section(
               dump, "nodes",
               "SELECT id, health, max, epoch,"
               " (SELECT count(*) FROM job WHERE node = n.id AND lease = 1 AND epoch = n.epoch),"
               " (SELECT count(*) FROM job WHERE node = n.id AND lease = 2 AND epoch = n.epoch),"
               " version, registered_ms, admin_reason, facts FROM node n ORDER BY id",
               node_row) &&
           section(dump, "leases",
                   "SELECT " JOBROW_HEAD " FROM job WHERE lease > 0 ORDER BY id DESC LIMIT ?1",
                   lease_row) &&
           section(dump, "jobs", "SELECT " JOBROW_HEAD " FROM job ORDER BY id DESC LIMIT ?1",
                   job_row) &&
           section(dump, "sessions",
                   "SELECT id, preferred_pool, lang_pair, version, updated_ms FROM session"
                   " ORDER BY seq DESC LIMIT ?1",
                   session_row) &&
           section(dump, "breakers", "SELECT node, type, state, failures, opened_ms FROM breaker",
                   breaker_row);
}

static bool has_more(struct dump *dump)
{
    sqlite3_stmt *stmt = NULL;
    bool more = false;

    if (sqlite3_prepare_v2(dump->db,
                           "SELECT (SELECT count(*) FROM job) > ?1"
                           " OR (SELECT count(*) FROM session) > ?1",
                           -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_bind_int64(stmt, 1, dump->max) == SQLITE_OK && sqlite3_step(stmt) == SQLITE_ROW)
        more = sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    return more;
}

enum err dump_embedded(const char *data_dir, size_t max, struct jsonw *w, struct problem *why)
{
    struct dump dump = {.w = w, .max = (int64_t)max};
    struct buf path = {0};
    enum err err = ERR_OK;

    buf_fmt(&path, "%s/store.db", data_dir);
    jsonw_obj(w);
    if (sqlite3_open_v2(path.at, &dump.db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK ||
        !sections(&dump))
        err = problem_set(why, ERR_IO, "data_dir", "%s cannot be read: %s.", path.at,
                          dump.db ? sqlite3_errmsg(dump.db) : "no memory");
    if (!err) {
        jsonw_key(w, "instances");
        jsonw_arr(w);
        jsonw_end_arr(w);
        jsonw_kbool(w, "more", has_more(&dump));
        jsonw_end_obj(w);
    }
    sqlite3_close(dump.db);
    buf_free(&path);
    return err;
}
