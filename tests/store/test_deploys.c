/* The table of deployments: specs, versions, history, migrations; each test runs on SQLite and on a
 * real PostgreSQL. */
#include "deploys_fixture.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

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
    assert_true(got.row.spec.enabled && got.row.owner.len == 0);
    assert_int_equal(got.row.version, 1);
    assert_true(got.row.updated_at.len >= 20 && got.row.updated_at.at[10] == 'T');
    assert_int_equal(deploys_rig_get(rig, "nope").err, ERR_NOT_FOUND);
}

/* Putting the same spec again is no change: nothing restarts, and the row keeps its place in the
 * order. */
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
                              .u.list = {.enabled = 0, .max = 10, .owner = STR("")}};
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

/* A list of a namespace has the names of that namespace only, page by page; a namespace whose name
 * is a prefix of another does not match it. */
static void test_list_of_a_namespace(void **state)
{
    static const char *const ids[] = {"maps",  "maps.x",    "maps/a", "maps/b", "maps/web",
                                      "maps0", "mapss/web", "ml/web", "web"};
    static const struct {
        const char *namespace, *found[5];
    } rows[] = {
        {"maps", {"maps/a", "maps/b", "maps/web"}},
        {"default", {"maps", "maps.x", "maps0", "web"}},
        {"ml", {"ml/web"}},
        {"m", {NULL}},
    };
    struct deploys_rig *rig = *state;

    for (size_t i = 0; i < COUNT_OF(ids); i++)
        deploys_rig_put(rig, ids[i], "run");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str after = STR_NONE;
        size_t seen = 0;

        for (bool more = true; more;) {
            struct deploys_op op = {.verb = DEPLOYS_LIST,
                                    .u.list = {.enabled = -1,
                                               .max = 2,
                                               .after = after,
                                               .namespace = str_of(rows[i].namespace)}};

            assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
            for (size_t k = 0; k < op.u.list.count; k++)
                assert_true(str_is(op.u.list.items[k].spec.id, rows[i].found[seen++]));
            more = op.u.list.more;
            after = more ? op.u.list.items[op.u.list.count - 1].spec.id : STR_NONE;
        }
        assert_null(rows[i].found[seen]);
    }
}

/* A deployment that is deleted and made again stays with the node where its old copy may still run,
 * and no generation is used twice. */
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
    assert_true(str_is(again.row.owner, "n1"));
    assert_int_equal(again.row.generation, 2);
    assert_int_equal(again.row.version, 2);
    assert_int_equal(deploys_rig_call(rig, &gone), ERR_OK);
    deploys_rig_lapse(rig, "n1");
    assert_int_equal(deploys_rig_put(rig, "web", "run").row.owner.len, 0);
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
    deploys_rig_open(&rig, url, "/nowhere"); /* the migration runs only once */
    got = deploys_rig_get(&rig, "00000000-0000-4000-8000-000000000001");
    assert_true(str_is(got.row.owner, "n1") && got.row.generation == 1);
    deploys_rig_close(&rig);
}

/* A database of the first version is migrated and keeps its data. */
static void test_an_older_database_goes_forward(void **state)
{
    static const char *const later[] = {
        "DROP INDEX berth_deployment_copy_of",
        "DROP INDEX berth_deployment_rolling",
        "ALTER TABLE deployment DROP COLUMN update_timeout_ms",
        "ALTER TABLE deployment DROP COLUMN tried_ms",
        "DROP TABLE berth_deployment_spec",
        "ALTER TABLE berth_deployment_status DROP COLUMN host",
        "ALTER TABLE berth_deployment_status DROP COLUMN port",
        "ALTER TABLE deployment DROP COLUMN replicas",
        "ALTER TABLE deployment DROP COLUMN max_unavailable",
        "ALTER TABLE deployment DROP COLUMN copy_of",
        "ALTER TABLE deployment DROP COLUMN copy_index",
        "ALTER TABLE deployment DROP COLUMN newest_version",
        "ALTER TABLE deployment DROP COLUMN good_version",
        "ALTER TABLE deployment DROP COLUMN rolling",
        "ALTER TABLE deployment DROP COLUMN rollout",
        "ALTER TABLE deployment DROP COLUMN rollout_reason",
    };
    const char *url = fresh_url();
    struct deploys_op back = {
        .verb = DEPLOYS_ROLLBACK, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};
    struct deploys_op scale = {
        .verb = DEPLOYS_SCALE, .id = STR("web"), .u.put = {.if_version = DEPLOYS_ANY, .count = 3}};
    struct deploys_rig rig;

    (void)state;
    deploys_rig_open(&rig, url, "/nowhere");
    deploys_rig_put(&rig, "web", "run");
    deploys_rig_close(&rig);
    for (size_t i = 0; i < COUNT_OF(later); i++)
        run_sql(url, later[i]);
    run_sql(url, "DROP INDEX berth_node_lease_goodbye");
    run_sql(url, "DROP INDEX berth_node_lease_until");
    run_sql(url, "ALTER TABLE berth_node_lease DROP COLUMN instance");
    run_sql(url, "ALTER TABLE deployment DROP COLUMN free_from_ms");
    run_sql(url, "DROP INDEX berth_deployment_address");
    run_sql(url, "ALTER TABLE deployment DROP COLUMN ended");
    run_sql(url, "ALTER TABLE berth_deployment_status DROP COLUMN limits");
    run_sql(url, "ALTER TABLE berth_node_lease DROP COLUMN goodbye");
    run_sql(url, "DROP TABLE berth_deployment_failure");
    run_sql(url, "UPDATE berth_meta SET value = 1 WHERE name = 'schema'");
    deploys_rig_open(&rig, url, "/nowhere");
    assert_int_equal(deploys_rig_get(&rig, "web").err, ERR_OK);
    deploys_rig_renew(&rig, "n1", LEASE_MS);
    /* An existing deployment has one copy, and can be rolled back to its version. */
    assert_int_equal(deploys_rig_get(&rig, "web").row.spec.count, 1);
    deploys_rig_put(&rig, "web", "run faster");
    assert_int_equal(deploys_rig_call(&rig, &back), ERR_OK);
    assert_true(back.row.version == 1 && str_is(back.row.spec.command, "run"));
    assert_int_equal(deploys_rig_call(&rig, &scale), ERR_OK);
    assert_int_equal(deploys_rig_get(&rig, "web").copy_count, 3);
    deploys_rig_close(&rig);
    run_sql(url, "DROP INDEX berth_deployment_address"); /* fails unless the index is there again */
    run_sql(url, "DROP INDEX berth_node_lease_until");
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
    run_sql(url, "UPDATE berth_meta SET value = 999 WHERE name IN ('schema', 'schema_oldest')");
    assert_int_equal(deploys_open(&config, &none, &why), ERR_IO);
    assert_non_null(strstr(why.detail, "newer"));
    assert_non_null(strstr(why.detail, "999"));
}

/* A later release added a column to every table and says that this release may use them. */
static void test_back_from_a_newer_release(void **state)
{
    static const char *const tables[] = {
        "deployment",       "berth_deployment_status",  "berth_deployment_history",
        "berth_node_lease", "berth_deployment_failure", "berth_meta"};
    const char *url = fresh_url();
    struct deploys_rig rig;
    char sql[128];

    (void)state;
    deploys_rig_open(&rig, url, "/nowhere");
    deploys_rig_put(&rig, "web", "run");
    deploys_rig_close(&rig);
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        snprintf(sql, sizeof sql, "ALTER TABLE %s ADD COLUMN more INTEGER", tables[i]);
        run_sql(url, sql);
    }
    run_sql(url, "UPDATE berth_meta SET value = 999 WHERE name = 'schema'");
    deploys_rig_open(&rig, url, "/nowhere");
    assert_int_equal(deploys_rig_get(&rig, "web").err, ERR_OK);
    deploys_rig_put(&rig, "db", "run");
    deploys_rig_renew(&rig, "n1", LEASE_MS);
    deploys_rig_close(&rig);
}

static struct deploys_op view_since(struct deploys_rig *rig, int64_t version)
{
    struct deploys_op op = {
        .verb = DEPLOYS_VIEW,
        .u.view = {.if_version = version, .if_facts = DEPLOYS_ANY, .delta = true}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return op;
}

/* An instance that has seen a version answers what changed since; one that has not answers
 * everything. */
static void test_view_of_what_changed(void **state)
{
    struct deploys_rig *rig = *state, other;
    struct deploys_op del = {
        .verb = DEPLOYS_DELETE, .id = STR("a"), .u.put.if_version = DEPLOYS_ANY};
    struct deploys_op first, op;

    deploys_rig_put(rig, "a", "run");
    deploys_rig_put(rig, "b", "run");
    deploys_rig_put(rig, "c", "run");
    first = view_since(rig, DEPLOYS_ANY);
    assert_true(!first.u.view.delta && first.u.view.count == 3 && !first.u.view.unchanged);
    op = view_since(rig, first.version);
    assert_true(!op.u.view.delta && op.u.view.unchanged);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "b", "", 0).err, ERR_OK);
    assert_int_equal(deploys_rig_call(rig, &del), ERR_OK);
    deploys_rig_put(rig, "d", "run");
    op = view_since(rig, first.version);
    assert_true(op.u.view.delta && op.u.view.count == 2 && op.u.view.gone_count == 1);
    assert_true(str_is(op.u.view.items[0].id, "b") && str_is(op.u.view.items[0].address, "n1"));
    assert_true(str_is(op.u.view.items[1].id, "d") && str_is(op.u.view.gone[0], "a"));
    deploys_rig_open(&other, rig->url, "/nowhere"); /* this instance has seen no version yet */
    op = view_since(&other, first.version);
    assert_true(!op.u.view.delta && op.u.view.count == 3 && op.u.view.gone_count == 0);
    deploys_rig_put(rig, "a", "run"); /* changed by one instance, read by the other */
    op = view_since(&other, op.version);
    assert_true(op.u.view.delta && op.u.view.count == 1 && op.u.view.gone_count == 0);
    op = view_since(rig, first.version); /* removed, and there again */
    assert_true(op.u.view.delta && op.u.view.count == 3 && op.u.view.gone_count == 1);
    assert_true(str_is(op.u.view.items[0].id, "a"));
    deploys_rig_close(&other);
}

/* Other calls are not affected: the database counts as up, and the next call works. */
static void assert_up(struct deploys_rig *rig)
{
    struct deploys_status status;

    deploys_status(rig->deploys, &status);
    assert_true(status.up);
    assert_int_equal(status.errors, 0);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(deploys_rig_get(rig, "nope").err, ERR_NOT_FOUND);
}

static void test_a_value_that_is_no_text_costs_its_own_call(void **state)
{
    static const struct str odd[] = {STR("\xff"), STR("a\0b"), STR("\xed\xa0\x80")};
    struct deploys_rig *rig = *state;

    for (size_t i = 0; i < COUNT_OF(odd); i++) {
        struct deploys_op list = {.verb = DEPLOYS_LIST,
                                  .u.list = {.after = odd[i], .enabled = -1, .max = 10}};
        struct deploys_op get = {.verb = DEPLOYS_GET, .id = odd[i]};
        struct deploys_op claim = {
            .verb = DEPLOYS_CLAIM, .id = odd[i], .node = STR("n1"), .u.claim.observed = STR("")};

        assert_int_equal(deploys_rig_call(rig, &list), ERR_BAD_REQUEST);
        assert_true(list.detail.len > 0);
        assert_up(rig);
        assert_int_equal(deploys_rig_call(rig, &get), ERR_BAD_REQUEST);
        assert_int_equal(deploys_rig_call(rig, &claim), ERR_BAD_REQUEST); /* inside a transaction */
        assert_up(rig);
    }
}

/* PostgreSQL refuses this alone: its JSON cannot have a NUL. */
static void test_json_the_database_does_not_take(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_spec spec = {.id = STR("web"),
                                .type = DEPLOY_DEPLOYMENT,
                                .package_name = STR(""),
                                .package_version = STR(""),
                                .command = STR("run"),
                                .args = STR("[\"\\u0000\"]"),
                                .env = STR("{}"),
                                .selector = STR(""),
                                .options = STR("{}")};
    struct deploys_op op = {.verb = DEPLOYS_PUT,
                            .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};

    assert_int_equal(deploys_rig_call(rig, &op), on_pg ? ERR_BAD_REQUEST : ERR_OK);
    assert_int_equal(deploys_rig_get(rig, "web").err, on_pg ? ERR_NOT_FOUND : ERR_OK);
    assert_up(rig);
}

static void sent(struct deploys_op *op)
{
    op->done = NULL;
}

/* Renewals that come together share one transaction: the others are renewed although one is
 * refused. */
static void test_one_refused_renewal_among_many(void **state)
{
    static const char *const nodes[] = {"n1", "n2", "\xff", "n3"};
    struct deploys_rig *rig = *state;
    struct deploys_op ops[COUNT_OF(nodes)];
    struct arena arenas[COUNT_OF(nodes)] = {0};
    size_t left = COUNT_OF(nodes);

    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        ops[i] = (struct deploys_op){.verb = DEPLOYS_RENEW,
                                     .node = str_of(nodes[i]),
                                     .arena = &arenas[i],
                                     .reply_to = &rig->work_queue.inbox,
                                     .done = sent,
                                     .u.renew = {.lease_ms = LEASE_MS, .if_version = DEPLOYS_ANY}};
        assert_int_equal(deploys_send(rig->deploys, &ops[i]), ERR_OK);
    }
    for (int64_t end_ms = clock_mono_ms() + 20000; left > 0;) {
        work_queue_wait(&rig->work_queue, 100);
        inbox_run(&rig->work_queue.inbox);
        left = 0;
        for (size_t i = 0; i < COUNT_OF(nodes); i++)
            left += ops[i].done != NULL;
        assert_true(clock_mono_ms() < end_ms);
    }
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        assert_int_equal(ops[i].err, str_is(ops[i].node, "\xff") ? ERR_BAD_REQUEST : ERR_OK);
        arena_free(&arenas[i]);
    }
    assert_up(rig);
}

/* By SQLSTATE: which error the caller gets, and whether the connection is dropped. */
static void test_what_the_database_says(void **state)
{
    static const struct {
        const char *state;
        enum err err;
    } rows[] = {
        {"22000", ERR_BAD_REQUEST}, {"54000", ERR_BAD_REQUEST}, {"40001", ERR_BUSY},
        {"53100", ERR_BUSY},        {"55P03", ERR_BUSY},        {"23514", ERR_INTERNAL},
        {"P0001", ERR_INTERNAL},    {"08006", ERR_STORE_DOWN},  {"57P01", ERR_STORE_DOWN},
        {"58030", ERR_STORE_DOWN},  {"25006", ERR_STORE_DOWN},  {"42P01", ERR_STORE_DOWN},
    };
    struct deploys_rig *rig = *state;
    char sql[400];

    if (!on_pg)
        return;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct deploys_op op = {
            .verb = DEPLOYS_RESTART, .id = STR("web"), .u.put = {.if_version = DEPLOYS_ANY}};
        int64_t end_ms = clock_mono_ms() + 20000;
        struct deploys_status before, after;

        deploys_rig_put(rig, "web", "run");
        snprintf(sql, sizeof sql,
                 "CREATE OR REPLACE FUNCTION says() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                 " RAISE EXCEPTION 'no' USING ERRCODE = '%s'; END $$;"
                 "CREATE TRIGGER says BEFORE UPDATE ON deployment EXECUTE FUNCTION says()",
                 rows[i].state);
        run_sql(rig->url, sql);
        deploys_status(rig->deploys, &before);
        assert_int_equal(deploys_rig_call(rig, &op), rows[i].err);
        deploys_status(rig->deploys, &after);
        assert_true(after.errors == before.errors || rows[i].err == ERR_STORE_DOWN);
        assert_true(after.errors > before.errors || rows[i].err != ERR_STORE_DOWN);
        run_sql(rig->url, "DROP TRIGGER says ON deployment");
        while (deploys_status(rig->deploys, &after), !after.up) { /* until it is reconnected */
            work_queue_wait(&rig->work_queue, 10);
            assert_true(clock_mono_ms() < end_ms);
        }
        assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    }
}

/* A database that takes over may lack the last change: the next change must not reuse its version,
 * which nodes know for something else. */
static void test_a_lost_version_is_not_given_again(void **state)
{
    struct deploys_rig *rig = *state;
    int64_t end_ms = clock_mono_ms() + 20000;
    struct deploys_op change = {
        .verb = DEPLOYS_RESTART, .id = STR("web"), .u.put = {.if_version = DEPLOYS_ANY}};

    if (!on_pg)
        return;
    deploys_rig_put(rig, "web", "run");
    deploys_rig_put(rig, "mail", "run");
    struct deploys_op known = deploys_rig_view(rig);
    run_sql(rig->url, "UPDATE berth_meta SET value = value - 1 WHERE name = 'version'");
    run_sql(rig->url, "DO $$ BEGIN PERFORM pg_terminate_backend(pid) FROM pg_stat_activity"
                      " WHERE application_name = 'berth'; END $$");
    while (deploys_rig_call(rig, &change))
        assert_true(clock_mono_ms() < end_ms);
    assert_true(change.version > known.version);
    struct deploys_op view = {.verb = DEPLOYS_VIEW,
                              .u.view = {.if_version = known.version, .delta = true}};
    while (deploys_rig_call(rig, &view)) /* the other connection reconnects on its own */
        assert_true(clock_mono_ms() < end_ms);
    assert_false(view.u.view.unchanged);
    assert_false(view.u.view.delta); /* the difference is unknown, so everything is answered */
    assert_int_equal(view.u.view.count, 2);
}

/* The first of two hosts accepts the connection and never answers. */
static void test_a_host_that_stands_still_is_passed_over(void **state)
{
    struct deploys_rig rig;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char url[160];

    (void)state;
    if (!on_pg)
        return;
    assert_int_equal(bind(silent, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(silent, 8), 0);
    assert_int_equal(getsockname(silent, (struct sockaddr *)&at, &size), 0);
    const char *database = strrchr(fresh_url(), '/');
    snprintf(url, sizeof url, "postgresql://berth@127.0.0.1:%d,127.0.0.1:%d%s", ntohs(at.sin_port),
             pg.port, database);
    deploys_rig_open(&rig, url, "/nowhere");
    assert_int_equal(deploys_rig_put(&rig, "web", "run").err, ERR_OK);
    deploys_rig_close(&rig);
    close(silent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEPLOYS_TEST(test_a_value_that_is_no_text_costs_its_own_call),
        DEPLOYS_TEST(test_json_the_database_does_not_take),
        DEPLOYS_TEST(test_one_refused_renewal_among_many),
        DEPLOYS_TEST(test_what_the_database_says),
        DEPLOYS_TEST(test_put_get),
        DEPLOYS_TEST(test_same_spec_changes_nothing),
        DEPLOYS_TEST(test_versions_are_checked),
        DEPLOYS_TEST(test_list_pages_and_filters),
        DEPLOYS_TEST(test_list_of_a_namespace),
        DEPLOYS_TEST(test_deleted_and_made_again),
        DEPLOYS_TEST(test_history),
        DEPLOYS_TEST(test_view_of_what_changed),
        DEPLOYS_TEST(test_a_lost_version_is_not_given_again),
        cmocka_unit_test(test_a_host_that_stands_still_is_passed_over),
        cmocka_unit_test(test_an_existing_table_of_the_seed),
        cmocka_unit_test(test_an_older_database_goes_forward),
        cmocka_unit_test(test_a_newer_database_is_left_alone),
        cmocka_unit_test(test_back_from_a_newer_release),
    };

    return deploys_main("deploys", tests, COUNT_OF(tests));
}
