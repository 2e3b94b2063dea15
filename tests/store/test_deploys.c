/* The table of deployments: the same contract on SQLite and on a real PostgreSQL. */
#include "deploys_rig.h"
#include "pg_rig.h"

#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { LEASE_MS = 60000 };

static struct pg_server pg;
static bool on_pg;
static char lite_dir[64];

/* Each test has an empty database. */
static void run_sql(const char *url, const char *sql)
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

static const char *fresh_url(void)
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

static int setup(void **state)
{
    struct deploys_rig *rig = calloc(1, sizeof *rig);

    deploys_rig_open(rig, fresh_url(), "/nowhere");
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    deploys_rig_close(*state);
    free(*state);
    return 0;
}

static void test_put_get(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op put = deploys_rig_put(rig, "web", "run");
    struct deploys_op got = deploys_rig_get(rig, "web");

    assert_true(put.u.put.created && put.u.put.changed);
    assert_int_equal(got.err, ERR_OK);
    assert_true(str_is(got.row.spec.command, "run"));
    assert_true(str_is(got.row.spec.package_name, "pkg"));
    assert_true(str_is(got.row.spec.args, "[\"-v\", \"x\"]"));
    assert_true(got.row.spec.enabled && got.row.address.len == 0);
    assert_int_equal(got.row.version, 1);
    assert_true(got.row.updated_at.len >= 20 && got.row.updated_at.at[10] == 'T');
    assert_int_equal(deploys_rig_get(rig, "nope").err, ERR_NOT_FOUND);
}

/* The same again is no change: nothing restarts, nothing goes to the end of the line. */
static void test_same_spec_changes_nothing(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op first = deploys_rig_put(rig, "web", "run");
    struct deploys_op again = deploys_rig_put(rig, "web", "run");
    struct deploys_op other = deploys_rig_put(rig, "web", "run faster");

    assert_false(again.u.put.created || again.u.put.changed);
    assert_int_equal(again.row.version, 1);
    assert_int_equal(again.version, first.version);
    assert_true(str_eq(again.row.updated_at, first.row.updated_at));
    assert_true(other.u.put.changed && !other.u.put.created);
    assert_int_equal(other.row.version, 2);
    assert_true(str_eq(other.row.created_at, first.row.created_at));
    assert_true(str_cmp(other.row.updated_at, first.row.updated_at) >= 0);
    assert_int_equal(other.version, first.version + 1);
}

static void test_versions_are_checked(void **state)
{
    static const struct {
        enum deploys_verb verb;
        int64_t if_version;
        enum err err;
    } rows[] = {
        {DEPLOYS_ENABLE, 1, ERR_OK},
        {DEPLOYS_ENABLE, 1, ERR_PRECONDITION},
        {DEPLOYS_RESTART, 1, ERR_PRECONDITION},
        {DEPLOYS_RESTART, 2, ERR_OK},
        {DEPLOYS_DELETE, 2, ERR_PRECONDITION},
        {DEPLOYS_DELETE, 3, ERR_OK},
        {DEPLOYS_DELETE, DEPLOYS_ANY, ERR_NOT_FOUND},
        {DEPLOYS_RESTART, DEPLOYS_ANY, ERR_NOT_FOUND},
    };
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "web", "run");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct deploys_op op = {
            .verb = rows[i].verb, .id = STR("web"), .u.put = {.if_version = rows[i].if_version}};

        assert_int_equal(deploys_rig_call(rig, &op), rows[i].err);
    }
}

static void test_list_pages_and_filters(void **state)
{
    struct deploys_rig *rig = *state;
    char id[8];
    size_t seen = 0;
    struct str after = STR_NONE;

    for (int i = 0; i < 25; i++) {
        snprintf(id, sizeof id, "d%02d", i);
        deploys_rig_put(rig, id, "run");
    }
    for (bool more = true; more;) {
        struct deploys_op op = {.verb = DEPLOYS_LIST,
                                .u.list = {.enabled = -1, .max = 10, .after = after}};

        assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
        for (size_t i = 0; i < op.u.list.count; i++, seen++) {
            snprintf(id, sizeof id, "d%02zu", seen);
            assert_true(str_is(op.u.list.items[i].spec.id, id));
        }
        more = op.u.list.more;
        after = op.u.list.items[op.u.list.count - 1].spec.id;
    }
    assert_int_equal(seen, 25);
    struct deploys_op none = {.verb = DEPLOYS_LIST,
                              .u.list = {.enabled = 0, .max = 10, .address = STR("")}};
    assert_int_equal(deploys_rig_call(rig, &none), ERR_OK);
    assert_int_equal(none.u.list.count, 0);
    none.u.list.enabled = 1;
    none.u.list.package_name = STR("pkg");
    assert_int_equal(deploys_rig_call(rig, &none), ERR_OK);
    assert_int_equal(none.u.list.count, 10);
    none.u.list.type = STR("daemon");
    assert_int_equal(deploys_rig_call(rig, &none), ERR_OK);
    assert_int_equal(none.u.list.count, 0);
}

static void test_claim_and_what_stands_against_it(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    deploys_rig_put(rig, "web", "run");
    op = deploys_rig_claim(rig, "n1", "web", "", 0);
    assert_int_equal(op.err, ERR_CONFLICT);
    assert_int_equal(op.u.claim.refusal, DEPLOYS_NO_LEASE);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    op = deploys_rig_claim(rig, "n1", "web", "", 7);
    assert_int_equal(op.u.claim.refusal, DEPLOYS_CONFLICT); /* not that generation */
    op = deploys_rig_claim(rig, "n1", "web", "", 0);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(op.row.generation, 1);
    assert_true(str_is(op.row.address, "n1"));
    op = deploys_rig_claim(rig, "n1", "web", "", 0); /* the answer was lost */
    assert_true(op.err == ERR_OK && op.u.claim.duplicate);
    op = deploys_rig_claim(rig, "n2", "web", "", 0);
    assert_int_equal(op.u.claim.refusal, DEPLOYS_CONFLICT);
    assert_true(op.found && str_is(op.row.address, "n1"));
    op = deploys_rig_claim(rig, "n2", "web", "n1", 1);
    assert_int_equal(op.u.claim.refusal, DEPLOYS_LEASE_ALIVE);
    op = deploys_rig_claim(rig, "n2", "nope", "", 0);
    assert_int_equal(op.u.claim.refusal, DEPLOYS_CONFLICT);
    assert_false(op.found);
    assert_true(str_is(deploys_rig_get(rig, "web").row.address, "n1"));
}

static void test_disabled_and_daemons_are_never_claimed(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op off = {.verb = DEPLOYS_ENABLE,
                             .id = STR("off"),
                             .u.put = {.if_version = DEPLOYS_ANY, .enabled = false}};
    struct deploys_spec spec = {.id = STR("each"),
                                .type = DEPLOY_DAEMON,
                                .package_name = STR(""),
                                .package_version = STR(""),
                                .command = STR("run"),
                                .args = STR("[]"),
                                .env = STR("{}"),
                                .selector = STR("a=b"),
                                .options = STR("{}"),
                                .enabled = true};
    struct deploys_op daemon = {.verb = DEPLOYS_PUT,
                                .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};

    deploys_rig_put(rig, "off", "run");
    assert_int_equal(deploys_rig_call(rig, &off), ERR_OK);
    assert_int_equal(deploys_rig_call(rig, &daemon), ERR_OK);
    struct deploys_op renew = deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "off", "", 0).err, ERR_CONFLICT);
    assert_int_equal(deploys_rig_claim(rig, "n1", "each", "", 0).err, ERR_CONFLICT);
    assert_int_equal(renew.u.renew.count, 1); /* the daemon is to be run, by whom it matches */
    assert_true(str_is(renew.u.renew.items[0].spec.selector, "a=b"));
}

/* R000-13, ruling 27: taken from a node only when its lease has run out, and then with a new
 * generation; the node that comes back has lost it. */
static void test_takeover_needs_a_lease_that_ran_out(void **state)
{
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 0).err, ERR_OK);
    deploys_rig_lapse(rig, "n1");
    struct deploys_op taken = deploys_rig_claim(rig, "n2", "web", "n1", 1);
    assert_int_equal(taken.err, ERR_OK);
    assert_int_equal(taken.row.generation, 2);
    struct deploys_op back = deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_true(back.u.renew.lapsed);
    assert_int_equal(back.u.renew.count, 0);
}

/* A node that comes back late, before anybody took over: what it owns is assigned anew, and whoever
 * saw the old generation is too late. */
static void test_a_late_renewal_is_a_new_assignment(void **state)
{
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    deploys_rig_lapse(rig, "n1");
    struct deploys_op back = deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_true(back.u.renew.lapsed);
    assert_int_equal(back.u.renew.count, 1);
    assert_int_equal(back.u.renew.items[0].generation, 2);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web", "n1", 1).u.claim.refusal,
                     DEPLOYS_LEASE_ALIVE);
    assert_true(str_is(deploys_rig_get(rig, "web").row.address, "n1"));
}

static void test_renew_tells_only_what_changed(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = deploys_rig_renew(rig, "n1", LEASE_MS);
    struct deploys_op again = {.verb = DEPLOYS_RENEW,
                               .node = STR("n1"),
                               .u.renew = {.lease_ms = LEASE_MS, .if_version = op.version}};

    assert_int_equal(deploys_rig_call(rig, &again), ERR_OK);
    assert_true(again.u.renew.unchanged && !again.u.renew.lapsed);
    assert_true(again.u.renew.until_ms > again.now_ms);
    deploys_rig_put(rig, "web", "run");
    again.u.renew.if_version = op.version;
    assert_int_equal(deploys_rig_call(rig, &again), ERR_OK);
    assert_false(again.u.renew.unchanged);
}

static void test_yield(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {
        .verb = DEPLOYS_YIELD, .id = STR("web"), .node = STR("n2"), .u.claim.generation = 1};

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_CONFLICT); /* not its own */
    op.node = STR("n1");
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.row.address.len == 0 && op.row.generation == 2);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK); /* again */
    assert_true(op.u.claim.duplicate && op.row.generation == 2);
}

/* A status is no change of the spec, and one of another generation is no status. */
static void test_status(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_copy copies[] = {
        {.id = STR("web"),
         .generation = 1,
         .version = 1,
         .state = STR("running"),
         .pid = 42,
         .healthy = STR("null"),
         .reason = STR("")},
        {.id = STR("gone"),
         .generation = 1,
         .state = STR("running"),
         .healthy = STR("null"),
         .reason = STR("")},
    };
    struct deploys_op op = {
        .verb = DEPLOYS_STATUS, .node = STR("n1"), .u.status = {.copies = copies, .count = 2}};

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    struct deploys_op before = deploys_rig_get(rig, "web");
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(!copies[0].stale && copies[1].stale);
    struct deploys_op after = deploys_rig_get(rig, "web");
    assert_int_equal(after.copy_count, 1);
    assert_int_equal(after.copies[0].pid, 42);
    assert_true(str_is(after.copies[0].address, "n1"));
    assert_true(str_eq(before.row.updated_at, after.row.updated_at));
    assert_int_equal(before.version, after.version);
    assert_int_equal(before.row.version, after.row.version);
    copies[0].generation = 0;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(copies[0].stale);
}

static void test_release_only_of_nodes_that_are_gone(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {.verb = DEPLOYS_RELEASE, .u.release.address = STR("n1")};

    for (int i = 0; i < 3; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%d", i);
        deploys_rig_put(rig, id, "run");
        deploys_rig_renew(rig, "n1", LEASE_MS);
        deploys_rig_claim(rig, "n1", id, "", 0);
    }
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.release.released_count == 0 && op.u.release.held_count == 3);
    assert_true(op.u.release.held[0].left_ms > 0);
    deploys_rig_lapse(rig, "n1");
    op = (struct deploys_op){.verb = DEPLOYS_RELEASE, .u.release.address = STR("n1")};
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.release.released_count == 3 && op.u.release.held_count == 0);
    assert_int_equal(deploys_rig_get(rig, "d0").row.address.len, 0);
}

/* Ruling 10: more than half of the nodes gone, nothing is claimed until an operator says so. */
static void test_mass_loss_waits_for_an_operator(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op approve = {.verb = DEPLOYS_APPROVE, .u.until.for_ms = 60000};

    deploys_rig_put(rig, "a", "run");
    deploys_rig_put(rig, "b", "run");
    for (int i = 1; i <= 3; i++) {
        char node[4];

        snprintf(node, sizeof node, "n%d", i);
        deploys_rig_renew(rig, node, LEASE_MS);
    }
    assert_int_equal(deploys_rig_claim(rig, "n1", "a", "", 0).err, ERR_OK);
    deploys_rig_lapse(rig, "n1");
    assert_int_equal(deploys_rig_claim(rig, "n3", "b", "", 0).err, ERR_OK); /* one of three */
    deploys_rig_lapse(rig, "n2");
    struct deploys_op op = deploys_rig_claim(rig, "n3", "a", "n1", 1);
    assert_int_equal(op.u.claim.refusal, DEPLOYS_MASS_LOSS);
    assert_int_equal(deploys_rig_call(rig, &approve), ERR_OK);
    assert_true(approve.u.until.until_ms > 0);
    assert_int_equal(deploys_rig_claim(rig, "n3", "a", "n1", 1).err, ERR_OK);
}

/* Made again after it was deleted, it stays where its copy may still run, and no generation comes
 * twice. */
static void test_deleted_and_made_again(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op gone = {
        .verb = DEPLOYS_DELETE, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    assert_int_equal(deploys_rig_call(rig, &gone), ERR_OK);
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.count, 0);
    struct deploys_op again = deploys_rig_put(rig, "web", "run");
    assert_true(str_is(again.row.address, "n1"));
    assert_int_equal(again.row.generation, 2);
    assert_int_equal(again.row.version, 2);
    assert_int_equal(deploys_rig_call(rig, &gone), ERR_OK);
    deploys_rig_lapse(rig, "n1");
    assert_int_equal(deploys_rig_put(rig, "web", "run").row.address.len, 0);
}

static void test_history(void **state)
{
    static const char *const told[] = {"disabled", "claimed", "changed", "created"};
    struct deploys_rig *rig = *state;
    struct deploys_op off = {.verb = DEPLOYS_ENABLE,
                             .id = STR("web"),
                             .u.put = {.if_version = DEPLOYS_ANY, .enabled = false}};
    struct deploys_op op = {.verb = DEPLOYS_HISTORY, .id = STR("web"), .u.history.max = 10};

    deploys_rig_put(rig, "web", "run");
    deploys_rig_put(rig, "web", "walk");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    deploys_rig_call(rig, &off);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.history.count, COUNT_OF(told));
    for (size_t i = 0; i < COUNT_OF(told); i++)
        assert_true(str_is(op.u.history.items[i].what, told[i]));
    assert_true(str_is(op.u.history.items[1].address, "n1"));
    for (int i = 0; i < DEPLOYS_HISTORY_KEPT + 20; i++) {
        off.u.put.enabled = !off.u.put.enabled;
        deploys_rig_call(rig, &off);
    }
    op.u.history.max = DEPLOYS_PAGE_MAX;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.history.count, DEPLOYS_HISTORY_KEPT);
}

static void test_drain_deadline(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {.verb = DEPLOYS_DRAIN, .node = STR("n1"), .u.until.for_ms = 60000};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.until.until_ms > op.now_ms);
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.drain_deadline_ms,
                     op.u.until.until_ms);
    op.u.until.for_ms = 0;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.drain_deadline_ms, 0);
}

/* What another instance did is noticed, too. */
static void test_an_existing_table_of_the_seed(void **state)
{
    const char *url = fresh_url();
    struct deploys_rig rig;

    (void)state;
    run_sql(url,
            on_pg ? "CREATE TABLE deployment (id UUID PRIMARY KEY, package_name TEXT NOT NULL,"
                    " package_version TEXT NOT NULL, command TEXT NOT NULL DEFAULT '',"
                    " args JSONB NOT NULL DEFAULT '[]', env JSONB NOT NULL DEFAULT '{}',"
                    " address VARCHAR(200) NOT NULL DEFAULT '', enabled BOOLEAN NOT NULL,"
                    " created_at TIMESTAMPTZ NOT NULL DEFAULT now(),"
                    " updated_at TIMESTAMPTZ NOT NULL DEFAULT now());"
                    " INSERT INTO deployment (id, package_name, package_version, env, enabled)"
                    " VALUES ('00000000-0000-4000-8000-000000000001', 'p', '2', '{\"K\":\"v\"}',"
                    " true)"
                  : "CREATE TABLE deployment (id TEXT PRIMARY KEY, package_name TEXT,"
                    " package_version TEXT, command TEXT NOT NULL DEFAULT '', args TEXT NOT NULL"
                    " DEFAULT '[]', env TEXT NOT NULL DEFAULT '{}', address TEXT NOT NULL DEFAULT"
                    " '', enabled INTEGER NOT NULL, created_at TEXT NOT NULL,"
                    " updated_at TEXT NOT NULL);"
                    " INSERT INTO deployment VALUES ('00000000-0000-4000-8000-000000000001', 'p',"
                    " '2', '', '[]', '{\"K\":\"v\"}', '', 1, '2025-01-01', '2025-01-01')");
    deploys_rig_open(&rig, url, "/nowhere");
    struct deploys_op got = deploys_rig_get(&rig, "00000000-0000-4000-8000-000000000001");
    assert_int_equal(got.err, ERR_OK);
    assert_true(str_is(got.row.spec.package_version, "2"));
    assert_int_equal(got.row.spec.type, DEPLOY_DEPLOYMENT);
    deploys_rig_renew(&rig, "n1", LEASE_MS);
    assert_int_equal(
        deploys_rig_claim(&rig, "n1", "00000000-0000-4000-8000-000000000001", "", 0).err, ERR_OK);
    struct deploys_op renew = deploys_rig_renew(&rig, "n1", LEASE_MS);
    assert_int_equal(renew.u.renew.count, 1);
    deploys_rig_close(&rig);
    deploys_rig_open(&rig, url, "/nowhere"); /* the migration is done once */
    got = deploys_rig_get(&rig, "00000000-0000-4000-8000-000000000001");
    assert_true(str_is(got.row.address, "n1") && got.row.generation == 1);
    deploys_rig_close(&rig);
}

static void test_a_newer_database_is_left_alone(void **state)
{
    const char *url = fresh_url();
    struct deploys_config config = {.url = url, .data_dir = "/nowhere", .timeout_ms = 2000};
    struct problem why;
    struct deploys_rig rig;
    struct deploys *none;

    (void)state;
    deploys_rig_open(&rig, url, "/nowhere");
    deploys_rig_close(&rig);
    run_sql(url, "UPDATE berth_meta SET value = 999 WHERE name = 'schema'");
    assert_int_equal(deploys_open(&config, &none, &why), ERR_IO);
    assert_non_null(strstr(why.detail, "newer"));
}

/* R000-12/14: two claimers on two connections, the same rows: each row is won exactly once. */
struct racer {
    struct deploys_rig rig;
    const char *node;
    int won;
};

enum { RACE_ROWS = 60 };

static void *race(void *arg)
{
    struct racer *racer = arg;

    for (int i = 0; i < RACE_ROWS; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%02d", i);
        struct deploys_op op = deploys_rig_claim(&racer->rig, racer->node, id, "", 0);
        assert_true(op.err == ERR_OK || op.u.claim.refusal == DEPLOYS_CONFLICT);
        racer->won += op.err == ERR_OK;
    }
    return NULL;
}

static void test_two_claimers_race(void **state)
{
    struct deploys_rig *rig = *state;
    struct racer racers[2] = {{.node = "n1"}, {.node = "n2"}};
    pthread_t threads[2];
    int owned[2] = {0};

    for (int i = 0; i < RACE_ROWS; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%02d", i);
        deploys_rig_put(rig, id, "run");
    }
    for (int i = 0; i < 2; i++) {
        deploys_rig_open(&racers[i].rig, rig->url, "/nowhere");
        deploys_rig_renew(&racers[i].rig, racers[i].node, LEASE_MS);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < RACE_ROWS; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%02d", i);
        struct deploys_op got = deploys_rig_get(rig, id);
        assert_int_equal(got.row.generation, 1); /* changed hands once */
        owned[str_is(got.row.address, "n2")]++;
    }
    assert_int_equal(racers[0].won + racers[1].won, RACE_ROWS);
    assert_int_equal(owned[0], racers[0].won);
    for (int i = 0; i < 2; i++)
        deploys_rig_close(&racers[i].rig);
}

/* PostgreSQL goes and comes back: calls fail at once meanwhile, and everything is there again. */
static void test_the_server_is_killed_and_comes_back(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {.verb = DEPLOYS_GET, .id = STR("web")};
    int64_t end_ms;

    if (!on_pg)
        skip();
    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    pg_server_kill(&pg);
    end_ms = clock_mono_ms() + 10000;
    while (deploys_rig_call(rig, &op) != ERR_STORE_DOWN)
        assert_true(clock_mono_ms() < end_ms);
    int64_t before_ms = clock_mono_ms();
    assert_int_equal(deploys_rig_call(rig, &op), ERR_STORE_DOWN);
    assert_true(clock_mono_ms() - before_ms < 1000);
    pg_server_start(&pg);
    end_ms = clock_mono_ms() + 20000;
    while (deploys_rig_call(rig, &op) != ERR_OK) {
        assert_true(clock_mono_ms() < end_ms);
        poll(NULL, 0, 20);
    }
    assert_true(str_is(op.row.address, "n1") && op.row.generation == 1);
    assert_false(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.lapsed);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int run_all(const char *name)
{
    const struct CMUnitTest tests[] = {
        TEST(test_put_get),
        TEST(test_same_spec_changes_nothing),
        TEST(test_versions_are_checked),
        TEST(test_list_pages_and_filters),
        TEST(test_claim_and_what_stands_against_it),
        TEST(test_disabled_and_daemons_are_never_claimed),
        TEST(test_takeover_needs_a_lease_that_ran_out),
        TEST(test_a_late_renewal_is_a_new_assignment),
        TEST(test_renew_tells_only_what_changed),
        TEST(test_yield),
        TEST(test_status),
        TEST(test_release_only_of_nodes_that_are_gone),
        TEST(test_mass_loss_waits_for_an_operator),
        TEST(test_deleted_and_made_again),
        TEST(test_history),
        TEST(test_drain_deadline),
        cmocka_unit_test(test_an_existing_table_of_the_seed),
        cmocka_unit_test(test_a_newer_database_is_left_alone),
        TEST(test_two_claimers_race),
        TEST(test_the_server_is_killed_and_comes_back),
    };

    return _cmocka_run_group_tests(name, tests, COUNT_OF(tests), NULL, NULL);
}

int main(void)
{
    char command[96];
    int failed = run_all("deploys_sqlite");

    snprintf(command, sizeof command, "rm -rf %s", lite_dir);
    if (*lite_dir && system(command))
        failed++;
    if (!pg_available()) {
        fprintf(stderr, "there is no PostgreSQL to be tested with\n");
        return 1;
    }
    on_pg = true;
    pg_server_start(&pg);
    failed += run_all("deploys_postgresql");
    pg_server_remove(&pg);
    return failed;
}
