/* The work that a call makes in the database does not grow with rows it has nothing to do with.
 * Measured in rows read (PostgreSQL's own count) or steps of SQLite's machine, not in time. */
#include "deploys_fixture.h"

#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

enum { FEW = 1000, MANY = 10000, LOST = 10, CALLS = 10, NODES_PER_ROW = 5 };

/* --- counting --- */

static _Atomic int64_t lite_steps;

static int count_steps(unsigned kind, void *context, void *stmt, void *time)
{
    (void)kind, (void)context, (void)time;
    lite_steps += sqlite3_stmt_status(stmt, SQLITE_STMTSTATUS_VM_STEP, 1);
    return 0;
}

static int watch(sqlite3 *db, const char **error, const struct sqlite3_api_routines *api)
{
    (void)error, (void)api;
    return sqlite3_trace_v2(db, SQLITE_TRACE_PROFILE, count_steps, NULL);
}

static int64_t ask_pg(const char *sql)
{
    PGconn *conn = PQconnectdb(pg.url);
    PGresult *result = PQexec(conn, sql);
    int64_t value;

    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s", PQerrorMessage(conn));
    value = atoll(PQgetvalue(result, 0, 0));
    PQclear(result);
    PQfinish(conn);
    return value;
}

/* A PostgreSQL connection reports its reads at the latest when it ends. */
static int64_t work_so_far(void)
{
    if (!on_pg)
        return lite_steps;
    while (ask_pg("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'berth'") > 0)
        continue;
    return ask_pg("SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables) +"
                  " (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)");
}

/* --- what is there --- */

/* Inserts rows 0 to `count` - 1. */
static void fill(const char *url, int count, const char *into, const char *values)
{
    char sql[1024];

    snprintf(sql, sizeof sql,
             on_pg
                 ? "INSERT INTO %1$s SELECT %2$s FROM (SELECT i, CAST(extract(epoch FROM"
                   " clock_timestamp()) * 1000 AS BIGINT) AS now FROM generate_series(0, %3$d) i) r"
                 : "INSERT INTO %1$s WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s"
                   " WHERE i < %3$d) SELECT %2$s FROM (SELECT i, CAST((julianday('now') -"
                   " 2440587.5) * 86400000 AS INTEGER) AS now FROM s) r",
             into, values, count - 1);
    run_sql(url, sql);
}

#define DEPLOYMENT "deployment (id, type, command, address, generation)"
#define LEASE      "berth_node_lease (address, until_ms, renewed_ms)"

static void fill_all(const char *url, int count)
{
    fill(url, count, DEPLOYMENT, "'d' || i, 'deployment', 'run', 'n' || (i / 5), 1");
    fill(url, LOST, DEPLOYMENT, "'lost' || i, 'deployment', 'run', 'gone' || i, 1");
    fill(url, 1,
         "deployment (id, type, command, address, generation, replicas, rollout, rolling,"
         " good_version)",
         "'many', 'deployment', 'run', 'n0', 1, 3, 'rolling', 1, 1");
    fill(url, 2, "deployment (id, type, command, copy_of, copy_index, rolling)",
         "'many#' || (i + 1), 'deployment', 'run', 'many', i + 1, 1");
    fill(url, 3, DEPLOYMENT, "'each' || i, 'daemon', 'run', '', 1");
    fill(url, count / NODES_PER_ROW, LEASE, "'n' || i, now + 600000, now");
    fill(url, LOST, LEASE, "'gone' || i, now - 5000, now - 50000");
    fill(url, count, LEASE, "'old' || i, now - 180000, now - 225000"); /* names of the last hour */
    fill(url, count,
         "berth_deployment_status (id, address, generation, version, state, restarts,"
         " pid, since_ms, healthy, reason, updated_ms)",
         "'d' || i, 'n' || (i / 5), 1, 1, 'running', 0, 1, 1, 'true', '', now");
    if (on_pg)
        run_sql(url, "ANALYZE");
}

/* --- what is called --- */

static void renew(struct deploys_rig *rig, int i, bool all)
{
    static int64_t version;
    char node[16];
    struct deploys_op op = {
        .verb = DEPLOYS_RENEW,
        .u.renew = {.lease_ms = LEASE_MS, .if_version = all ? DEPLOYS_ANY : version}};

    snprintf(node, sizeof node, "n%d", i);
    op.node = str_of(node);
    op.instance = str_of(node);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_false(op.u.renew.lapsed);
    if (all) /* n0 has one more copy */
        assert_int_equal(op.u.renew.count, NODES_PER_ROW + 3 + (i == 0));
    version = op.version;
}

static void renew_unchanged(struct deploys_rig *rig, int i)
{
    renew(rig, i, false);
}

static void renew_changed(struct deploys_rig *rig, int i)
{
    renew(rig, i, true);
}

static void report_status(struct deploys_rig *rig, int i)
{
    char node[16];
    struct deploys_op op = {.verb = DEPLOYS_STATUS, .u.status.partial = true};

    snprintf(node, sizeof node, "n%d", i);
    op.node = op.instance = str_of(node);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
}

static void look_unchanged(struct deploys_rig *rig, int i)
{
    static int64_t facts;
    int64_t version = deploys_rig_renew(rig, "n0", LEASE_MS).version;
    struct deploys_op op = {
        .verb = DEPLOYS_VIEW,
        .node = STR("n0"),
        .u.view = {.if_version = version, .if_facts = i ? facts : DEPLOYS_ANY, .within_ms = 1}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.view.unchanged && (i == 0 || op.u.view.same_facts));
    facts = op.u.view.facts;
}

static void read_page(struct deploys_rig *rig, int i)
{
    struct deploys_op op = {.verb = DEPLOYS_LIST, .u.list = {.enabled = -1, .max = 5}};

    (void)i;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.list.count, 5);
}

static void read_copies(struct deploys_rig *rig, int i)
{
    struct deploys_op op = {.verb = DEPLOYS_LIST,
                            .u.list = {.enabled = -1, .max = 5, .after = STR("lost9")}};

    (void)i;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.list.count, 1);
    assert_int_equal(deploys_rig_get(rig, "many").copy_count, 3);
}

static void take_over(struct deploys_rig *rig, int i)
{
    char id[16], owner[16];

    snprintf(id, sizeof id, "lost%d", i);
    snprintf(owner, sizeof owner, "gone%d", i);
    assert_int_equal(deploys_rig_claim(rig, "n0", id, owner, 1).err, ERR_OK);
}

static void come_too_late(struct deploys_rig *rig, int i)
{
    char id[16], owner[16];

    snprintf(id, sizeof id, "lost%d", i);
    snprintf(owner, sizeof owner, "gone%d", i);
    assert_int_equal(deploys_rig_claim(rig, "n1", id, owner, 1).refusal, DEPLOYS_CONFLICT);
}

static void find_service(struct deploys_rig *rig, int i)
{
    char id[16];
    struct deploys_op op = {.verb = DEPLOYS_SERVICES};

    snprintf(id, sizeof id, "d%d", i);
    op.id = str_of(id);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.services.count, 1);
}

/* A status that moves an update of several copies. */
static void report_update(struct deploys_rig *rig, int i)
{
    struct deploys_copy copy = {.id = STR("many"),
                                .generation = 1,
                                .version = 1,
                                .state = i % 2 ? STR("starting") : STR("running"),
                                .healthy = STR("null"),
                                .reason = STR(""),
                                .limits = STR("")};
    struct deploys_op op = {.verb = DEPLOYS_STATUS,
                            .node = STR("n0"),
                            .instance = STR("n0"),
                            .u.status = {.copies = &copy, .count = 1, .partial = true}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_false(copy.stale);
}

static const struct {
    const char *name;
    void (*call)(struct deploys_rig *rig, int i);
} calls[] = {
    {"a renewal when nothing changed", renew_unchanged},
    {"a renewal that answers what to run", renew_changed},
    {"a status", report_status},
    {"a view when nothing changed", look_unchanged},
    {"a short page of the list", read_page},
    {"a deployment of several copies", read_copies},
    {"a claim of what a lost node has", take_over},
    {"a claim that comes too late", come_too_late},
    {"where a deployment listens", find_service},
    {"a status while there is an update", report_update},
};

static void count_all(int count, int64_t work[COUNT_OF(calls)])
{
    const char *url = fresh_url();
    struct deploys_rig rig;

    deploys_rig_open(&rig, url, "/nowhere");
    deploys_rig_close(&rig);
    fill_all(url, count);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        int64_t before = work_so_far();

        deploys_rig_open(&rig, url, "/nowhere");
        for (int j = 0; j < CALLS; j++)
            calls[i].call(&rig, j);
        deploys_rig_close(&rig);
        work[i] = work_so_far() - before;
    }
}

static void test_work_does_not_grow(void **state)
{
    int64_t few[COUNT_OF(calls)], many[COUNT_OF(calls)];
    bool grew = false;

    (void)state;
    count_all(FEW, few);
    count_all(MANY, many);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        printf("%-36s %8lld, with %d times as much %8lld\n", calls[i].name, (long long)few[i],
               MANY / FEW, (long long)many[i]);
        grew = grew || many[i] > 2 * few[i] + 100;
    }
    assert_false(grew);
}

/* --- what is forgotten --- */

static int64_t leases_left(struct deploys_rig *rig)
{
    struct deploys_op op = deploys_rig_view(rig);

    return (int64_t)op.u.view.lease_count;
}

/* Leases of nodes that come and go are deleted after minutes. Kept are those of nodes that own
 * something, or that went together with one that does. All are goodbyes here, so that a view lists
 * them. */
static void test_who_is_gone_is_forgotten_in_minutes(void **state)
{
    struct deploys_rig *rig = *state;
    int64_t end_ms = clock_mono_ms() + 60000;

    deploys_rig_close(rig);
    fill(rig->url, 1, DEPLOYMENT, "'d' || i, 'deployment', 'run', 'owner', 1");
    fill(rig->url, 1, LEASE, "'owner', now - 3600000, now");
    fill(rig->url, 3, LEASE, "'with' || i, now - 3590000, now");
    fill(rig->url, 5000, LEASE, "'old' || i, now - 600000 - i, now");
    fill(rig->url, 7, LEASE, "'new' || i, now - 60000, now");
    fill(rig->url, 5000,
         "berth_deployment_status (id, address, generation, version, state,"
         " restarts, pid, since_ms, healthy, reason, updated_ms)",
         "'each', 'old' || i, 1, 1, 'running', 0, 1, 1, 'true', '', now");
    run_sql(rig->url, "UPDATE berth_node_lease SET goodbye = 1");
    deploys_rig_open(rig, rig->url, "/nowhere");
    while (leases_left(rig) > 11)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(leases_left(rig), 1 + 3 + 7);
    deploys_rig_put(rig, "each", "run");
    assert_int_equal(deploys_rig_get(rig, "each").copy_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_does_not_grow),
        DEPLOYS_TEST(test_who_is_gone_is_forgotten_in_minutes),
    };

    sqlite3_auto_extension((void (*)(void))watch);
    return deploys_main("deploys_work", tests, COUNT_OF(tests));
}
