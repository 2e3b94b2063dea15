/* Two threads, each with its own connection: one writes, so that a lease renewal never waits for a
 * reader of the whole table; the other reads. Each takes ops in order of arrival and answers them.
 * While the database is unreachable, ops fail at once and the thread keeps reconnecting. */
#include "store/deploys.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/inbox.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "store/deploys_row.h"
#include "store/op_queue.h"

enum { THREAD_WRITE, THREAD_READ, THREAD_COUNT };

enum {
    LOOK_MS = 1000,    /* how often the version is checked: another instance may have changed it */
    RETRY_MS = 500,    /* between attempts to connect */
    FORGET_MS = 5000,  /* between cleanups of rows left by lost nodes */
    UPDATES_MAX = 100, /* updates checked in one pass */
    IN_FLIGHT_DEFAULT = 4096,
    RENEWALS_MAX = 256, /* in one transaction */
    OTHERS_MS = 20,     /* for all other ops before newly arrived renewals take their turn */
};

struct sql_thread {
    struct deploys *deploys;
    struct work_queue work_queue;
    struct sql *sql;
    int64_t next_look_ms;
    struct deploys_op *renewals[RENEWALS_MAX]; /* that came together */
    size_t renewal_count;
    struct msg *first, *last; /* of the other ops, linked by next */
    _Atomic bool up;
};

struct deploys {
    struct sql_thread threads[THREAD_COUNT];
    struct deploys_config config;
    int64_t announced;                      /* the writing thread's */
    char updates_after[DEPLOY_ID_MAX + 1];  /* likewise: the last one that was checked */
    struct deploys_leases_cache leases;     /* the reading thread's */
    struct deploys_table table;             /* likewise */
    struct deploys_services_cache services; /* likewise */
    _Atomic bool leases_stale;              /* something was written since `leases` was read */
    _Atomic int64_t known_version;          /* of the table: the highest answered */
    _Atomic bool may_forget;                /* see struct deploys_status */
    _Atomic int64_t in_flight;
    _Atomic int64_t errors;
    pthread_mutex_t detail_lock; /* never on a request's path: only people read the status */
    char detail[SQL_DETAIL_MAX];
    bool stopped;
};

/* --- SQLite's clock --- */

/* SQLite uses this machine's clock. When that is set, or the machine slept, no lease may become
 * shorter or longer: all terms are shifted in one transaction, which also records the offset of the
 * wall clock from the monotonic clock. With the record it happens only once, whichever process
 * notices it, and also when the clock was set while no process ran. PostgreSQL has its own clock,
 * which ours cannot be compared with: see renew_anew() and cut_leases(). */

enum { SET_MS = 1000 }; /* smaller differences are measurement error */

/* The monotonic clock restarts with every boot. Returns some digits of the kernel's boot id. */
static int64_t boot_of_machine(void)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file && !fgets(text, sizeof text, file))
        text[0] = '\0';
    if (file)
        fclose(file);
    return strtoll(text, NULL, 16); /* up to the first dash */
}

static bool is_step(int64_t ms)
{
    return ms > SET_MS || ms < -SET_MS;
}

static bool run(struct sql *sql, const char *text, int64_t value, struct arena *arena)
{
    struct sql_text statement = {.of = {[SQL_LITE] = text}};
    struct sql_param param = SQL_INT(value);

    return sql_run(sql, &statement, &param, 1, arena, NULL);
}

static bool write_note(struct sql *sql, struct arena *arena, int64_t boot, int64_t ahead_ms)
{
    static const char keep_boot[] = "INSERT INTO berth_meta (name, value) VALUES ('clock_boot', $1)"
                                    " ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    static const char keep_ahead[] =
        "INSERT INTO berth_meta (name, value) VALUES ('clock_ahead_ms', $1)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value";

    return run(sql, keep_boot, boot, arena) && run(sql, keep_ahead, ahead_ms, arena);
}

static bool shift_terms(struct sql *sql, struct arena *arena, int64_t step_ms)
{
    static const char *const terms[] = {
        "UPDATE berth_node_lease SET until_ms = until_ms + $1, renewed_ms = renewed_ms + $1",
        ("UPDATE berth_node_lease SET drain_deadline_ms = drain_deadline_ms + $1"
         " WHERE drain_deadline_ms <> 0"),
        "UPDATE deployment SET free_from_ms = free_from_ms + $1 WHERE free_from_ms <> 0",
        "UPDATE deployment SET tried_ms = tried_ms + $1 WHERE rolling = 1 AND tried_ms <> 0",
        "UPDATE berth_deployment_failure SET at_ms = at_ms + $1, until_ms = until_ms + $1",
        "UPDATE berth_meta SET value = value + $1 WHERE name = 'approved_until_ms' AND value <> 0",
    };

    for (size_t i = 0; i < COUNT_OF(terms); i++)
        if (!run(sql, terms[i], step_ms, arena))
            return false;
    return true;
}

/* After a reboot it is unknown by how much the clock was set. So no lease, nor anything waiting for
 * its end, may last longer than its original length. */
static bool cut_terms(struct sql *sql, struct arena *arena, int64_t now_ms)
{
    static const char waits[] =
        "UPDATE deployment SET free_from_ms = MIN(free_from_ms, $1 + COALESCE((SELECT"
        " MAX(until_ms - renewed_ms) FROM berth_node_lease), 0)) WHERE free_from_ms > $1";
    static const char tries[] = "UPDATE deployment SET tried_ms = $1 WHERE rolling = 1";
    static const char leases[] =
        "UPDATE berth_node_lease SET until_ms = until_ms - renewed_ms + $1,"
        " renewed_ms = $1 WHERE renewed_ms > $1";

    return run(sql, waits, now_ms, arena) && run(sql, tries, now_ms, arena) &&
           run(sql, leases, now_ms, arena);
}

static bool follow(struct sql *sql, struct arena *arena)
{
    static const struct sql_text read = {
        {"SELECT (SELECT value FROM berth_meta WHERE name = 'clock_boot'),"
         " (SELECT value FROM berth_meta WHERE name = 'clock_ahead_ms')",
         NULL}};
    int64_t boot = boot_of_machine(), known_boot, known_ms;
    int64_t ahead_ms = clock_wall_ahead_ms();
    struct sql_rows rows;
    bool ok;

    if (!sql_run(sql, &read, NULL, 0, arena, &rows))
        return false;
    known_boot = sql_cell_int(&rows, 0, 0);
    known_ms = sql_cell_int(&rows, 0, 1);
    if (known_boot != boot || !known_ms || (!boot && !sql->ahead_ms))
        ok = cut_terms(sql, arena, clock_mono_ms() + ahead_ms) &&
             write_note(sql, arena, boot, ahead_ms);
    else if (is_step(ahead_ms - known_ms))
        ok = shift_terms(sql, arena, ahead_ms - known_ms) && write_note(sql, arena, boot, ahead_ms);
    else
        ok = true, ahead_ms = known_ms; /* another process was first, or nothing happened */
    if (ok)
        sql->ahead_ms = ahead_ms;
    return ok;
}

/* Called before anything that judges a lease. */
static bool deploys_follow_clock(struct sql *sql)
{
    struct arena arena = {0};
    bool ok;

    if (!sql->on_wall_clock || (sql->ahead_ms && !is_step(clock_wall_ahead_ms() - sql->ahead_ms)))
        return true;
    ok = sql_begin(sql) && follow(sql, &arena) && sql_commit(sql);
    if (!ok)
        sql_rollback(sql);
    arena_free(&arena);
    return ok;
}

/* --- tables --- */

/* The tables. Migrations are numbered and go forward only; the number is in the database. The table
 * `deployment` may already exist with these columns (id, package_name, package_version, command,
 * args, env, address, enabled, created_at, updated_at): missing columns are added, existing ones
 * stay as they are. */

/* The columns of `deployment`: those that may already exist, then ours. */
static const struct {
    const char *name;
    struct sql_text add;
} columns[] = {
#define COLUMN(name, lite, pg)                                                                     \
    {                                                                                              \
        name,                                                                                      \
        {                                                                                          \
            {                                                                                      \
                "ALTER TABLE deployment ADD COLUMN " name " " lite,                                \
                    "ALTER TABLE deployment ADD COLUMN IF NOT EXISTS " name " " pg                 \
            }                                                                                      \
        }                                                                                          \
    }
    COLUMN("package_name", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("package_version", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("command", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("args", "TEXT NOT NULL DEFAULT '[]'", "JSONB NOT NULL DEFAULT '[]'"),
    COLUMN("env", "TEXT NOT NULL DEFAULT '{}'", "JSONB NOT NULL DEFAULT '{}'"),
    COLUMN("address", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("enabled", "BOOLEAN NOT NULL DEFAULT TRUE", "BOOLEAN NOT NULL DEFAULT TRUE"),
    COLUMN("created_at", "TEXT NOT NULL DEFAULT '1970-01-01T00:00:00.000Z'",
           "TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP"),
    COLUMN("updated_at", "TEXT NOT NULL DEFAULT '1970-01-01T00:00:00.000Z'",
           "TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP"),
    COLUMN("type", "TEXT NOT NULL DEFAULT 'deployment'", "TEXT NOT NULL DEFAULT 'deployment'"),
    COLUMN("selector", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("options", "TEXT NOT NULL DEFAULT '{}'", "JSONB NOT NULL DEFAULT '{}'"),
    COLUMN("generation", "INTEGER NOT NULL DEFAULT 0", "BIGINT NOT NULL DEFAULT 0"),
    COLUMN("spec_version", "INTEGER NOT NULL DEFAULT 1", "BIGINT NOT NULL DEFAULT 1"),
    COLUMN("ended", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("free_from_ms", "INTEGER NOT NULL DEFAULT 0", "BIGINT NOT NULL DEFAULT 0"),
    COLUMN("replicas", "INTEGER NOT NULL DEFAULT 1", "BIGINT NOT NULL DEFAULT 1"),
    COLUMN("max_unavailable", "INTEGER NOT NULL DEFAULT 1", "BIGINT NOT NULL DEFAULT 1"),
    COLUMN("copy_of", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("copy_index", "INTEGER NOT NULL DEFAULT 0", "BIGINT NOT NULL DEFAULT 0"),
    COLUMN("newest_version", "INTEGER NOT NULL DEFAULT 0", "BIGINT NOT NULL DEFAULT 0"),
    COLUMN("good_version", "INTEGER NOT NULL DEFAULT 0", "BIGINT NOT NULL DEFAULT 0"),
    COLUMN("rolling", "INTEGER NOT NULL DEFAULT 0", "BIGINT NOT NULL DEFAULT 0"),
    COLUMN("rollout", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("rollout_reason", "TEXT NOT NULL DEFAULT ''", "TEXT NOT NULL DEFAULT ''"),
    COLUMN("update_timeout_ms", "INTEGER NOT NULL DEFAULT 600000",
           "BIGINT NOT NULL DEFAULT 600000"),
    COLUMN("tried_ms", "INTEGER NOT NULL DEFAULT 0", "BIGINT NOT NULL DEFAULT 0"),
#undef COLUMN
};

static bool run_all(struct sql *sql, const struct sql_text *texts, size_t count,
                    struct arena *arena)
{
    for (size_t i = 0; i < count; i++)
        if (!sql_run(sql, &texts[i], NULL, 0, arena, NULL))
            return false;
    return true;
}

static bool has_column(const struct sql_rows *rows, const char *name)
{
    for (size_t i = 0; i < rows->count; i++)
        if (str_is(sql_cell(rows, i, 0), name))
            return true;
    return false;
}

static bool add_columns(struct sql *sql, struct arena *arena)
{
    static const struct sql_text present = {
        {"SELECT name FROM pragma_table_info('deployment')",
         "SELECT column_name FROM information_schema.columns WHERE table_name = 'deployment' AND "
         "table_schema = ANY(current_schemas(false))"}};
    struct sql_rows rows;

    if (!sql_run(sql, &present, NULL, 0, arena, &rows))
        return false;
    for (size_t i = 0; i < COUNT_OF(columns); i++)
        if (!has_column(&rows, columns[i].name) &&
            !sql_run(sql, &columns[i].add, NULL, 0, arena, NULL))
            return false;
    return true;
}

/* SQL fragments that differ between the dialects here. */
#define LITE_INT "INTEGER"
#define PG_INT   "BIGINT"
#define LITE_ADD " ADD COLUMN "
#define PG_ADD   " ADD COLUMN IF NOT EXISTS "

#define INDEX(name, on) "CREATE INDEX IF NOT EXISTS " name " ON " on
#define SAME(text)                                                                                 \
    {                                                                                              \
        {                                                                                          \
            text, text                                                                             \
        }                                                                                          \
    }

/* Number 1: everything. berth_meta: `schema`, and `schema_oldest`, see migrations; `version` of the
 * table; `news`, the same without claims, which no other node needs to see; `approved_until_ms`. */
#define STATUS_TABLE(D)                                                                            \
    "CREATE TABLE IF NOT EXISTS berth_deployment_status (id TEXT NOT NULL, address TEXT NOT NULL," \
    " generation " D##_INT " NOT NULL, version " D##_INT " NOT NULL, state TEXT NOT NULL,"         \
                                                         " restarts " D##_INT                      \
        " NOT NULL, pid " D##_INT " NOT NULL, since_ms " D##_INT                                   \
        " NOT NULL,"                                                                               \
        " healthy TEXT NOT NULL, reason TEXT NOT NULL, updated_ms " D##_INT                        \
        " NOT NULL,"                                                                               \
        " PRIMARY KEY (id, address))"
static const struct sql_text tables[] = {
    {{"CREATE TABLE IF NOT EXISTS deployment (id TEXT PRIMARY KEY NOT NULL)",
      "CREATE TABLE IF NOT EXISTS deployment (id TEXT PRIMARY KEY)"}},
    DEPLOYS_BOTH(STATUS_TABLE),
    {{"CREATE TABLE IF NOT EXISTS berth_deployment_history (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
      " id TEXT NOT NULL, at_ms INTEGER NOT NULL, what TEXT NOT NULL, address TEXT NOT NULL,"
      " generation INTEGER NOT NULL, version INTEGER NOT NULL, detail TEXT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS berth_deployment_history (seq BIGSERIAL PRIMARY KEY,"
      " id TEXT NOT NULL, at_ms BIGINT NOT NULL, what TEXT NOT NULL, address TEXT NOT NULL,"
      " generation BIGINT NOT NULL, version BIGINT NOT NULL, detail TEXT NOT NULL)"}},
    SAME(INDEX("berth_deployment_history_id", "berth_deployment_history (id, seq)")),
    {{"CREATE TABLE IF NOT EXISTS berth_node_lease (address TEXT PRIMARY KEY NOT NULL,"
      " until_ms INTEGER NOT NULL, renewed_ms INTEGER NOT NULL,"
      " drain_deadline_ms INTEGER NOT NULL DEFAULT 0)",
      "CREATE TABLE IF NOT EXISTS berth_node_lease (address TEXT PRIMARY KEY,"
      " until_ms BIGINT NOT NULL, renewed_ms BIGINT NOT NULL,"
      " drain_deadline_ms BIGINT NOT NULL DEFAULT 0)"}},
};

/* Number 2: every renewal and claim looks up what a node owns. */
static const struct sql_text owner_index[] = {
    SAME(INDEX("berth_deployment_address", "deployment (address)")),
};

/* Number 3: the end of a version, and whether the limits of a copy are enforced. */
#define ADD_LIMITS(D)                                                                              \
    "ALTER TABLE berth_deployment_status" D##_ADD "limits TEXT NOT NULL DEFAULT ''"
static const struct sql_text ended[] = {DEPLOYS_BOTH(ADD_LIMITS)};

/* Number 4: a node that said goodbye is not counted as lost, and a deployment that failed on a node
 * is tried on others first. */
#define ADD_GOODBYE(D)                                                                             \
    "ALTER TABLE berth_node_lease ADD COLUMN goodbye " D##_INT " NOT NULL DEFAULT 0"
#define FAILURE_TABLE(D)                                                                           \
    "CREATE TABLE IF NOT EXISTS berth_deployment_failure (id TEXT NOT NULL,"                       \
    " address TEXT NOT NULL, times " D##_INT " NOT NULL, at_ms " D##_INT " NOT NULL,"              \
                                                                         " until_ms " D##_INT      \
        " NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (id, address))"
static const struct sql_text losses[] = {DEPLOYS_BOTH(ADD_GOODBYE), DEPLOYS_BOTH(FAILURE_TABLE)};

/* Number 5: a lease belongs to one agent and is indexed by its end; a node's copies are found
 * without scanning those of others. */
#define ADD_INSTANCE(D) "ALTER TABLE berth_node_lease" D##_ADD "instance TEXT NOT NULL DEFAULT ''"
static const struct sql_text instances[] = {
    DEPLOYS_BOTH(ADD_INSTANCE),
    SAME(INDEX("berth_node_lease_until", "berth_node_lease (until_ms)")),
    SAME(INDEX("berth_node_lease_goodbye", "berth_node_lease (address) WHERE goodbye = 1")),
    SAME(INDEX("berth_deployment_daemon", "deployment (id) WHERE type = 'daemon'")),
    SAME(INDEX("berth_deployment_status_address", "berth_deployment_status (address)")),
    SAME(INDEX("berth_deployment_failure_until", "berth_deployment_failure (until_ms)")),
    /* Independent of the column's type and of the database's collation. */
    {{"SELECT 1", INDEX("berth_deployment_id", "deployment ((CAST(id AS TEXT)) COLLATE \"C\")")}},
};

/* Number 6: several copies of a deployment. Each but the first has its own row; `copy_of` has the
 * deployment's id. */
static const struct sql_text copies[] = {SAME(
    INDEX("berth_deployment_copy_of", "deployment (copy_of, copy_index) WHERE copy_of <> ''"))};

/* Number 7: the spec of each version, and the progress of an update of several copies. */
#define SPEC_TABLE(D)                                                                              \
    "CREATE TABLE IF NOT EXISTS berth_deployment_spec (id TEXT NOT NULL, version " D##_INT         \
        " NOT NULL, type TEXT NOT NULL, package_name TEXT NOT NULL, package_version TEXT NOT "     \
        "NULL,"                                                                                    \
        " command TEXT NOT NULL, args TEXT NOT NULL, env TEXT NOT NULL, selector TEXT NOT NULL,"   \
        " options TEXT NOT NULL, PRIMARY KEY (id, version))"
static const struct sql_text specs[] = {DEPLOYS_BOTH(SPEC_TABLE)};

/* Number 8: where copies listen. */
#define ADD_HOST(D) "ALTER TABLE berth_deployment_status" D##_ADD "host TEXT NOT NULL DEFAULT ''"
#define ADD_PORT(D)                                                                                \
    "ALTER TABLE berth_deployment_status" D##_ADD "port " D##_INT " NOT NULL DEFAULT 0"
static const struct sql_text ports[] = {DEPLOYS_BOTH(ADD_HOST), DEPLOYS_BOTH(ADD_PORT)};

/* Number 9: since when a copy should run its version and how long that may take. Updates in
 * progress are checked periodically. */
static const struct sql_text update_times[] = {
    SAME(INDEX("berth_deployment_rolling", "deployment (copy_of) WHERE rolling = 1")),
};

/* One row per version; append new ones. `oldest` is the first version whose program can still use
 * the tables after that: instances are replaced one by one and a release may be rolled back. An
 * added table or column does not disturb a program that names its columns. */
#define MIGRATION(texts, oldest, columns)                                                          \
    {                                                                                              \
        texts, COUNT_OF(texts), oldest, columns                                                    \
    }
static const struct {
    const struct sql_text *texts;
    size_t count;
    int64_t oldest;
    enum { COLUMNS_NONE, COLUMNS_FIRST, COLUMNS_LAST } columns; /* which missing columns to add */
} migrations[] = {
    MIGRATION(tables, 1, COLUMNS_LAST),        MIGRATION(owner_index, 2, COLUMNS_NONE),
    MIGRATION(ended, 3, COLUMNS_FIRST),        MIGRATION(losses, 4, COLUMNS_NONE),
    MIGRATION(instances, 4, COLUMNS_FIRST),    MIGRATION(copies, 4, COLUMNS_FIRST),
    MIGRATION(specs, 4, COLUMNS_FIRST),        MIGRATION(ports, 4, COLUMNS_NONE),
    MIGRATION(update_times, 4, COLUMNS_FIRST),
};
enum { FORMAT = COUNT_OF(migrations) }; /* the version of this program */

/* The format of the tables found in the database. */
struct format {
    int64_t version; /* 0: no tables yet */
    int64_t oldest;  /* the first version whose program may use them; 0: unknown */
};

/* Several instances may start at once: one migrates, the others wait for it and find it done. */
static bool migrate(struct sql *sql, struct arena *arena, struct format *ret_format)
{
    static const struct sql_text before[] = {
        {{"SELECT 1", "SELECT pg_advisory_xact_lock(7420742074207420)"}}, /* one at a time */
        {{"CREATE TABLE IF NOT EXISTS berth_meta (name TEXT PRIMARY KEY NOT NULL,"
          " value INTEGER NOT NULL)",
          "CREATE TABLE IF NOT EXISTS berth_meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)"}},
        SAME("INSERT INTO berth_meta (name, value) VALUES ('schema', 0), ('schema_oldest', 0),"
             " ('version', 1), ('approved_until_ms', 0), ('news', 1)"
             " ON CONFLICT (name) DO NOTHING"),
    };
    static const struct sql_text read = SAME(
        "SELECT value FROM berth_meta WHERE name IN ('schema', 'schema_oldest') ORDER BY name");
    static const struct sql_text write = {
        {"UPDATE berth_meta SET value = CASE name WHEN 'schema' THEN $1 ELSE $2 END"
         " WHERE name IN ('schema', 'schema_oldest')",
         "UPDATE berth_meta SET value = CASE name WHEN 'schema' THEN $1::bigint ELSE $2::bigint END"
         " WHERE name IN ('schema', 'schema_oldest')"}};
    struct sql_param numbers[] = {SQL_INT(FORMAT), SQL_INT(migrations[FORMAT - 1].oldest)};
    struct sql_rows found;

    if (!run_all(sql, before, COUNT_OF(before), arena) ||
        !sql_run(sql, &read, NULL, 0, arena, &found))
        return false;
    assert(found.count == 2);
    ret_format->version = sql_cell_int(&found, 0, 0);
    ret_format->oldest = sql_cell_int(&found, 1, 0);
    for (int64_t i = ret_format->version; i < FORMAT; i++)
        if ((migrations[i].columns == COLUMNS_FIRST && !add_columns(sql, arena)) ||
            !run_all(sql, migrations[i].texts, migrations[i].count, arena) ||
            (migrations[i].columns == COLUMNS_LAST && !add_columns(sql, arena)))
            return false;
    return ret_format->version >= FORMAT ||
           sql_run(sql, &write, numbers, COUNT_OF(numbers), arena, NULL);
}

/* Creates the tables or adds what is missing; leaves those of a newer berth alone. */
static bool migrate_all(struct sql *sql, struct format *ret_format)
{
    struct arena arena = {0};
    bool ok = sql_begin(sql) && migrate(sql, &arena, ret_format) && sql_commit(sql);

    if (!ok)
        sql_rollback(sql);
    arena_free(&arena);
    return ok;
}

/* --- threads --- */

/* WRITES: in a transaction from the start; LAZY: from its first write on. */
enum transaction_mode { READS, LAZY, WRITES };

static const struct {
    deploys_verb *run;
    enum transaction_mode mode;
} verbs[DEPLOYS_VERB_COUNT] = {
    [DEPLOYS_LIST] = {deploys_list, READS},        [DEPLOYS_GET] = {deploys_get, READS},
    [DEPLOYS_PUT] = {deploys_put, WRITES},         [DEPLOYS_ENABLE] = {deploys_enable, WRITES},
    [DEPLOYS_RESTART] = {deploys_restart, WRITES}, [DEPLOYS_DELETE] = {deploys_delete, WRITES},
    [DEPLOYS_SCALE] = {deploys_scale, WRITES},     [DEPLOYS_ROLLBACK] = {deploys_rollback, WRITES},
    [DEPLOYS_HISTORY] = {deploys_history, READS},  [DEPLOYS_RELEASE] = {deploys_release, WRITES},
    [DEPLOYS_APPROVE] = {deploys_approve, WRITES}, [DEPLOYS_DRAIN] = {deploys_drain, WRITES},
    [DEPLOYS_VIEW] = {deploys_view, READS},        [DEPLOYS_RENEW] = {deploys_renew, LAZY},
    [DEPLOYS_CLAIM] = {deploys_claim, WRITES},     [DEPLOYS_YIELD] = {deploys_yield, WRITES},
    [DEPLOYS_STATUS] = {deploys_set_status, LAZY}, [DEPLOYS_SERVICES] = {deploys_services, READS},
};

static struct sql_thread *thread_of(struct deploys *deploys, enum deploys_verb verb)
{
    return &deploys->threads[verbs[verb].mode == READS ? THREAD_READ : THREAD_WRITE];
}

/* Counts every failed attempt, including our own reconnects: while the database is down, callers
 * are refused earlier, and a counter that does not grow would look like a healthy database. */
static void went_down(struct sql_thread *thread)
{
    metric_add_label(METRIC_SQL, "error", 1);
    atomic_store(&thread->up, false);
    atomic_fetch_add(&thread->deploys->errors, 1);
    pthread_mutex_lock(&thread->deploys->detail_lock);
    snprintf(thread->deploys->detail, sizeof thread->deploys->detail, "%s", thread->sql->detail);
    pthread_mutex_unlock(&thread->deploys->detail_lock);
}

/* A statement failed. If the connection is good, only this caller is affected: its transaction is
 * rolled back. */
static enum err statement_failed(struct sql_thread *thread)
{
    if (thread->sql->connected) {
        metric_add_label(METRIC_SQL, "refused", 1);
        return thread->sql->err;
    }
    went_down(thread);
    return ERR_STORE_DOWN;
}

/* A database that took over without the last writes, or was restored, would reuse version numbers
 * that nodes already know with other contents, and they would not notice the changes. */
static bool pass_known_version(struct sql_thread *thread, struct arena *arena)
{
#define PASS(D)                                                                                    \
    "UPDATE berth_meta SET value = CASE name WHEN 'version' THEN CAST($1 AS BIGINT) ELSE value"    \
    " END + 1 WHERE name IN ('version', 'news')"                                                   \
    " AND (SELECT value FROM berth_meta WHERE name = 'version') < CAST($1 AS BIGINT)"
    static const struct sql_text pass = DEPLOYS_BOTH(PASS);
    struct sql_param known = SQL_INT(atomic_load(&thread->deploys->known_version));

    return sql_run(thread->sql, &pass, &known, 1, arena, NULL);
}

static bool look_at_replicas(struct sql_thread *thread, struct arena *arena)
{
    static const struct sql_text text = {
        {"SELECT 0", "SELECT COUNT(*) FROM pg_stat_replication"
                     " WHERE current_setting('synchronous_standby_names') = ''"}};
    struct sql_rows rows;

    if (!sql_run(thread->sql, &text, NULL, 0, arena, &rows))
        return false;
    atomic_store(&thread->deploys->may_forget, sql_cell_int(&rows, 0, 0) > 0);
    return true;
}

/* Connects and checks the tables. *ret_newer: they were written by a newer berth and cannot be
 * interpreted. */
static bool bring_up(struct sql_thread *thread, bool *ret_newer)
{
    struct arena arena = {0};
    struct format format;
    char why[160];
    bool ok;

    *ret_newer = false;
    if (!sql_connect(thread->sql) || !migrate_all(thread->sql, &format))
        goto down;
    *ret_newer = format.version > FORMAT && (format.oldest <= 0 || format.oldest > FORMAT);
    if (*ret_newer) {
        snprintf(why, sizeof why,
                 "it was written by a newer berth (its tables have format %" PRId64
                 ", this one knows up to %" PRId64 "): use that release",
                 format.version, (int64_t)FORMAT);
        sql_failed(thread->sql, "use the database", why);
        goto down;
    }
    ok = deploys_follow_clock(thread->sql) && pass_known_version(thread, &arena) &&
         look_at_replicas(thread, &arena);
    arena_free(&arena);
    if (!ok)
        goto down;
    if (thread == &thread->deploys->threads[THREAD_READ]) /* it may be another database */
        deploys_table_done(&thread->deploys->table);
    atomic_store(&thread->up, true);
    return true;
down:
    went_down(thread);
    return false;
}

static void announce(struct deploys *deploys, int64_t news)
{
    if (news == 0 || news == deploys->announced) /* `announced` belongs to the writing thread */
        return;
    deploys->announced = news;
    if (deploys->config.changed)
        deploys->config.changed(deploys->config.user, news);
}

/* Ends the transaction, if there is one. */
static bool finish(struct work *work, bool ok)
{
    if (!work->sql->in_transaction)
        return ok;
    if (ok && !work->op->err) {
        ok = sql_commit(work->sql);
        atomic_store(&work->op->owner->leases_stale, true); /* a plain renewal does not get here */
        return ok;
    }
    sql_rollback(work->sql);
    return ok;
}

static bool follow_clock(struct sql_thread *thread)
{
    int64_t before_ms = thread->sql->ahead_ms;

    if (!deploys_follow_clock(thread->sql))
        return false;
    if (thread->sql->ahead_ms != before_ms)
        atomic_store(&thread->deploys->leases_stale, true);
    return true;
}

/* A refused op has read and perhaps locked rows, but changed nothing. */
static bool run_verb(struct sql_thread *thread, struct deploys_op *op)
{
    struct deploys *deploys = thread->deploys;
    struct work work = {.sql = thread->sql,
                        .op = op,
                        .leases = &deploys->leases,
                        .table = &deploys->table,
                        .services = &deploys->services};

    if (!follow_clock(thread))
        return false;
    if (op->verb == DEPLOYS_VIEW && !op->u.view.after.len) /* other pages have no leases */
        work.leases_stale = atomic_exchange(&deploys->leases_stale, false);
    bool ok = finish(&work, (verbs[op->verb].mode != WRITES || work_begin(&work)) &&
                                verbs[op->verb].run(&work));
    if (!ok && work.leases_stale)
        atomic_store(&deploys->leases_stale, true); /* still needed */
    return ok;
}

static void answered(struct msg *msg)
{
    struct deploys_op *op = container_of(msg, struct deploys_op, msg);

    op->done(op);
}

static void answer(struct sql_thread *thread, struct deploys_op *op)
{
    int64_t before = atomic_fetch_sub(&thread->deploys->in_flight, 1);

    assert(before > 0 && !thread->sql->in_transaction);
    int64_t known = atomic_load(&thread->deploys->known_version);
    while (!op->err && op->version > known &&
           !atomic_compare_exchange_weak(&thread->deploys->known_version, &known, op->version))
        ;
    op->msg.run = answered;
    inbox_post(op->reply_to, &op->msg);
}

/* Refuses an op that is too late or has no database. */
static bool is_refused(struct sql_thread *thread, struct deploys_op *op)
{
    if (atomic_load(&thread->up) && (!op->until_mono_ms || clock_mono_ms() <= op->until_mono_ms))
        return false;
    op->err = ERR_STORE_DOWN;
    metric_add_label(METRIC_SQL, "error", 1);
    return true;
}

static void run_op(struct sql_thread *thread, struct deploys_op *op)
{
    int64_t news;

    op->err = ERR_OK;
    op->news = 0;
    if (is_refused(thread, op)) {
        answer(thread, op);
        return;
    }
    if (!run_verb(thread, op)) {
        op->err = statement_failed(thread);
        op->detail = arena_str(op->arena, str_of(thread->sql->detail));
    } else {
        metric_add_label(METRIC_SQL, "ok", 1);
    }
    news = op->err || verbs[op->verb].mode == READS ? 0 : op->news;
    answer(thread, op);
    announce(thread->deploys, news);
}

static int by_node(const void *a, const void *b)
{
    return str_cmp((*(struct deploys_op *const *)a)->node, (*(struct deploys_op *const *)b)->node);
}

/* Renewals that arrived together are one transaction: at 10 ms of disk time each, separate ones
 * would limit us to a hundred nodes. Renewals that need more than extending a good lease run one by
 * one afterwards; so do all of them if the database refused one, which rolls back the whole
 * batch. */
static void run_renewals(struct sql_thread *thread)
{
    bool done[RENEWALS_MAX] = {0}, ok;
    size_t count = 0;

    for (size_t i = 0; i < thread->renewal_count; i++) {
        struct deploys_op *op = thread->renewals[i];

        op->err = ERR_OK;
        op->news = 0;
        if (is_refused(thread, op))
            answer(thread, op);
        else
            thread->renewals[count++] = op;
    }
    thread->renewal_count = 0;
    if (count == 0)
        return;
    /* Everyone who locks several leases does so in this order. */
    qsort(thread->renewals, count, sizeof *thread->renewals, by_node);
    ok = follow_clock(thread) && sql_begin(thread->sql);
    for (size_t i = 0; ok && i < count; i++)
        ok = deploys_renew_good(&(struct work){.sql = thread->sql, .op = thread->renewals[i]},
                                &done[i]);
    ok = ok && sql_commit(thread->sql);
    if (!ok) {
        sql_rollback(thread->sql);
        statement_failed(thread);
    }
    for (size_t i = 0; i < count; i++) {
        struct deploys_op *op = thread->renewals[i];

        if (ok ? !done[i] : thread->sql->connected) {
            run_op(thread, op);
            continue;
        }
        op->err = ok ? ERR_OK : ERR_STORE_DOWN;
        metric_add_label(METRIC_SQL, ok ? "ok" : "error", 1);
        answer(thread, op);
    }
}

static void take_op(struct msg *msg)
{
    struct deploys_op *op = container_of(msg, struct deploys_op, msg);
    struct sql_thread *thread = thread_of(op->owner, op->verb);

    if (op->verb == DEPLOYS_RENEW && !op->u.renew.goodbye) {
        if (thread->renewal_count == RENEWALS_MAX)
            run_renewals(thread);
        thread->renewals[thread->renewal_count++] = op;
        return;
    }
    msg->next = NULL;
    *(thread->first ? &thread->last->next : &thread->first) = msg;
    thread->last = msg;
}

/* Runs all queued ops. Renewals do not wait long for other ops, however many there are. */
static void run_ops(struct sql_thread *thread)
{
    do {
        inbox_run(&thread->work_queue.inbox);
        run_renewals(thread);
        for (int64_t until_ms = clock_mono_ms() + OTHERS_MS;
             thread->first && clock_mono_ms() < until_ms;) {
            struct deploys_op *op = container_of(thread->first, struct deploys_op, msg);

            thread->first = thread->first->next;
            run_op(thread, op);
        }
    } while (thread->first);
}

/* Moves one update on when no status would, for instance when its time is over. */
static bool move_update(struct sql_thread *thread, struct str id)
{
    struct arena arena = {0};
    struct deploys_op op = {.arena = &arena, .owner = thread->deploys, .id = id};
    struct work work = {.sql = thread->sql, .op = &op};
    bool changed = false;
    bool ok = finish(&work, work_begin(&work) && deploys_row_get(&work, true) &&
                                deploys_roll_on(&work, &changed) &&
                                (!changed || deploys_bump(&work, true)));

    if (ok)
        announce(thread->deploys, op.news);
    arena_free(&arena);
    return ok;
}

static bool move_updates(struct sql_thread *thread, struct arena *arena)
{
#define UPDATES(D)                                                                                 \
    "SELECT " D##_TEXT("id") " FROM deployment WHERE rolling = 1 AND copy_of = '' AND " D##_ID     \
        " > $1 ORDER BY " D##_ID " LIMIT CAST($2 AS BIGINT)"
    static const struct sql_text text = DEPLOYS_BOTH(UPDATES);
    struct deploys *deploys = thread->deploys;
    struct sql_param params[] = {SQL_STR(str_of(deploys->updates_after)), SQL_INT(UPDATES_MAX)};
    struct sql_rows rows;

    if (!sql_run(thread->sql, &text, params, COUNT_OF(params), arena, &rows))
        return false;
    deploys->updates_after[0] = 0; /* after the last, start over */
    for (size_t i = 0; i < rows.count; i++)
        if (!move_update(thread, sql_cell(&rows, i, 0)))
            return false;
    if (rows.count == UPDATES_MAX)
        str_copy(sql_cell(&rows, rows.count - 1, 0), deploys->updates_after,
                 sizeof deploys->updates_after);
    return true;
}

/* Writing thread: checks for changes made by others and moves updates on. */
static void check_for_changes(struct sql_thread *thread)
{
    struct arena arena = {0};
    struct deploys_op op = {.arena = &arena};
    struct work work = {.sql = thread->sql, .op = &op};

    thread->next_look_ms = clock_mono_ms() + LOOK_MS;
    if (follow_clock(thread) && deploys_meta(&work) && move_updates(thread, &arena))
        announce(thread->deploys, op.news);
    else
        statement_failed(thread);
    arena_free(&arena);
}

/* Runs on the reading thread, which has time for it. */
static void forget(struct sql_thread *thread)
{
    struct arena arena = {0};
    struct deploys_op op = {.arena = &arena, .owner = thread->deploys};
    struct work work = {.sql = thread->sql, .op = &op};
    bool more = false;

    if (!follow_clock(thread) || !finish(&work, deploys_forget(&work, &more)))
        statement_failed(thread);
    thread->next_look_ms = clock_mono_ms() + (more ? 0 : FORGET_MS);
    arena_free(&arena);
}

static void *sql_thread(void *arg)
{
    struct sql_thread *thread = arg;
    void (*now_and_then)(struct sql_thread *) =
        thread == &thread->deploys->threads[THREAD_WRITE] ? check_for_changes : forget;
    bool newer;

    metrics_thread();
    while (!thread->work_queue.stopping) {
        int64_t left_ms = thread->next_look_ms - clock_mono_ms();

        work_queue_wait(&thread->work_queue, !atomic_load(&thread->up) ? RETRY_MS
                                             : left_ms > 0             ? left_ms
                                                                       : 0);
        run_ops(thread);
        if (!atomic_load(&thread->up)) {
            if (bring_up(thread, &newer))
                now_and_then(thread);
            run_ops(thread); /* ops that came while we tried */
        } else if (clock_mono_ms() >= thread->next_look_ms) {
            now_and_then(thread);
        }
    }
    run_ops(thread);
    return NULL;
}

static enum err start(struct sql_thread *thread, struct problem *why)
{
    bool newer;

    if (!bring_up(thread, &newer) &&
        (newer || thread->sql->driver->dialect == SQL_LITE)) /* a file will not recover by itself */
        return problem_set(why, ERR_IO, "database", "The database cannot be used: %s.",
                           thread->sql->detail);
    if (!work_queue_start(&thread->work_queue, "berth-sql", sql_thread, thread))
        return problem_set(why, ERR_IO, "", "No thread for the database can be started.");
    return ERR_OK;
}

static void free_all(struct deploys *deploys)
{
    for (size_t i = 0; i < THREAD_COUNT; i++)
        sql_free(deploys->threads[i].sql);
    arena_free(&deploys->leases.arena);
    arena_free(&deploys->services.arena);
    deploys_table_done(&deploys->table);
    pthread_mutex_destroy(&deploys->detail_lock);
    free(deploys);
}

static void end_thread(struct sql_thread *thread)
{
    work_queue_stop(&thread->work_queue);
    assert(thread->work_queue.stopping);
    atomic_store(&thread->up, false);
}

enum err deploys_open(const struct deploys_config *config, struct deploys **ret_deploys,
                      struct problem *why)
{
    struct deploys *deploys = mem_aligned(_Alignof(struct deploys), sizeof *deploys);
    struct sql_config sql = {.url = config->url,
                             .data_dir = config->data_dir,
                             .timeout_ms = config->timeout_ms,
                             .now_ms = config->now_ms};
    size_t started = 0;
    enum err err = ERR_OK;

    deploys->config = *config;
    if (deploys->config.in_flight_max <= 0)
        deploys->config.in_flight_max = IN_FLIGHT_DEFAULT;
    pthread_mutex_init(&deploys->detail_lock, NULL);
    for (size_t i = 0; i < THREAD_COUNT; i++) {
        deploys->threads[i].deploys = deploys;
        work_queue_init(&deploys->threads[i].work_queue);
    }
    for (; !err && started < THREAD_COUNT; started += !err) {
        err = sql_open(&sql, &deploys->threads[started].sql, why);
        if (!err)
            err = start(&deploys->threads[started], why);
    }
    if (err) {
        for (size_t i = 0; i < started; i++)
            end_thread(&deploys->threads[i]);
        free_all(deploys);
        return err;
    }
    *ret_deploys = deploys;
    return ERR_OK;
}

enum err deploys_send(struct deploys *deploys, struct deploys_op *op)
{
    struct sql_thread *thread;

    assert(op->done && op->reply_to && op->arena && op->verb < DEPLOYS_VERB_COUNT &&
           verbs[op->verb].run);
    thread = thread_of(deploys, op->verb);
    if (!atomic_load(&thread->up))
        return ERR_STORE_DOWN;
    if (atomic_fetch_add(&deploys->in_flight, 1) >= deploys->config.in_flight_max) {
        atomic_fetch_sub(&deploys->in_flight, 1);
        return ERR_BUSY;
    }
    op->owner = deploys;
    op->msg.run = take_op;
    inbox_post(&thread->work_queue.inbox, &op->msg);
    return ERR_OK;
}

void deploys_status(struct deploys *deploys, struct deploys_status *ret_status)
{
    *ret_status = (struct deploys_status){.up = true,
                                          .may_forget = atomic_load(&deploys->may_forget),
                                          .errors = atomic_load(&deploys->errors)};
    for (size_t i = 0; i < THREAD_COUNT; i++)
        ret_status->up = ret_status->up && atomic_load(&deploys->threads[i].up);
    pthread_mutex_lock(&deploys->detail_lock);
    snprintf(ret_status->detail, sizeof ret_status->detail, "%s", deploys->detail);
    pthread_mutex_unlock(&deploys->detail_lock);
}

void deploys_stop(struct deploys *deploys)
{
    if (!deploys || deploys->stopped)
        return;
    deploys->stopped = true;
    for (size_t i = 0; i < THREAD_COUNT; i++)
        end_thread(&deploys->threads[i]);
    assert(atomic_load(&deploys->in_flight) == 0);
}

void deploys_close(struct deploys *deploys)
{
    deploys_stop(deploys);
    if (deploys)
        free_all(deploys);
}
