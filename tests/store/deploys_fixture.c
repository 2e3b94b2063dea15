/* See deploys_fixture.h. */
#include "deploys_fixture.h"

#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pg_server pg;
bool on_pg;
static char lite_dir[64];

/* Runs SQL on the test's database. */
void run_sql(const char *url, const char *sql)
{
    if (strncmp(url, "sqlite:", 7) == 0) {
        sqlite3 *db;

        assert_int_equal(sqlite3_open(url + 7, &db), SQLITE_OK);
        sqlite3_busy_timeout(db, 5000);
        if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
            fail_msg("%s", sqlite3_errmsg(db));
        sqlite3_close(db);
        return;
    }
    PGconn *conn = PQconnectdb(url);
    PQclear(PQexec(conn, "SET client_min_messages = warning"));
    PGresult *result = PQexec(conn, sql);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        fail_msg("%s", PQerrorMessage(conn));
    PQclear(result);
    PQfinish(conn);
}

const char *fresh_url(void)
{
    static char url[128];

    if (on_pg) {
        run_sql(pg.url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public");
        return pg.url;
    }
    if (*lite_dir)
        snprintf(url, sizeof url, "rm -rf %s", lite_dir);
    if (*lite_dir && system(url))
        abort();
    snprintf(lite_dir, sizeof lite_dir, "/dev/shm/berth-deploys-XXXXXX");
    assert_non_null(mkdtemp(lite_dir));
    snprintf(url, sizeof url, "sqlite:%s/berth.db", lite_dir);
    return url;
}

int deploys_setup(void **state)
{
    struct deploys_rig *rig = calloc(1, sizeof *rig);

    deploys_rig_open(rig, fresh_url(), "/nowhere");
    *state = rig;
    return 0;
}

int deploys_teardown(void **state)
{
    deploys_rig_close(*state);
    free(*state);
    return 0;
}

static void remove_dir(void)
{
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", lite_dir);
    if (*lite_dir && system(command))
        abort();
}

int deploys_main(const char *name, const struct CMUnitTest *tests, size_t count)
{
    int failed = _cmocka_run_group_tests(name, tests, count, NULL, NULL);

    remove_dir();
    if (!pg_available()) {
        fprintf(stderr, "there is no PostgreSQL to be tested with\n");
        return 1;
    }
    on_pg = true;
    pg_server_start(&pg);
    failed += _cmocka_run_group_tests(name, tests, count, NULL, NULL);
    pg_server_remove(&pg);
    return failed;
}
