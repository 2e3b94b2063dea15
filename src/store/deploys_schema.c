/* The tables. Migrations go forward only, one number each; the number stands in the database. The
 * table `deployment` may be there already with these columns (id, package_name, package_version,
 * command, args, env, address, enabled, created_at, updated_at): what is missing is added, what is
 * there stays as it is. */
#include <assert.h>
#include <string.h>

#include "store/deploys_private.h"

/* Ours. berth_meta: `schema`, and `schema_oldest`, see migrations; `version` of the table; `news`,
 * the same without mere claims, which nobody else need look at; `approved_until_ms`. */
static const struct sql_text tables[] = {
    {{"CREATE TABLE IF NOT EXISTS deployment (id TEXT PRIMARY KEY NOT NULL)",
      "CREATE TABLE IF NOT EXISTS deployment (id TEXT PRIMARY KEY)"}},
    {{"CREATE TABLE IF NOT EXISTS berth_deployment_status (id TEXT NOT NULL, address TEXT NOT NULL,"
      " generation INTEGER NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL,"
      " restarts INTEGER NOT NULL, pid INTEGER NOT NULL, since_ms INTEGER NOT NULL,"
      " healthy TEXT NOT NULL, reason TEXT NOT NULL, updated_ms INTEGER NOT NULL,"
      " PRIMARY KEY (id, address))",
      "CREATE TABLE IF NOT EXISTS berth_deployment_status (id TEXT NOT NULL, address TEXT NOT NULL,"
      " generation BIGINT NOT NULL, version BIGINT NOT NULL, state TEXT NOT NULL,"
      " restarts BIGINT NOT NULL, pid BIGINT NOT NULL, since_ms BIGINT NOT NULL,"
      " healthy TEXT NOT NULL, reason TEXT NOT NULL, updated_ms BIGINT NOT NULL,"
      " PRIMARY KEY (id, address))"}},
    {{"CREATE TABLE IF NOT EXISTS berth_deployment_history (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
      " id TEXT NOT NULL, at_ms INTEGER NOT NULL, what TEXT NOT NULL, address TEXT NOT NULL,"
      " generation INTEGER NOT NULL, version INTEGER NOT NULL, detail TEXT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS berth_deployment_history (seq BIGSERIAL PRIMARY KEY,"
      " id TEXT NOT NULL, at_ms BIGINT NOT NULL, what TEXT NOT NULL, address TEXT NOT NULL,"
      " generation BIGINT NOT NULL, version BIGINT NOT NULL, detail TEXT NOT NULL)"}},
    {{"CREATE INDEX IF NOT EXISTS berth_deployment_history_id"
      " ON berth_deployment_history (id, seq)",
      "CREATE INDEX IF NOT EXISTS berth_deployment_history_id"
      " ON berth_deployment_history (id, seq)"}},
    {{"CREATE TABLE IF NOT EXISTS berth_node_lease (address TEXT PRIMARY KEY NOT NULL,"
      " until_ms INTEGER NOT NULL, renewed_ms INTEGER NOT NULL,"
      " drain_deadline_ms INTEGER NOT NULL DEFAULT 0)",
      "CREATE TABLE IF NOT EXISTS berth_node_lease (address TEXT PRIMARY KEY,"
      " until_ms BIGINT NOT NULL, renewed_ms BIGINT NOT NULL,"
      " drain_deadline_ms BIGINT NOT NULL DEFAULT 0)"}},
};

/* The columns of `deployment`: those that may be there already, then ours. */
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

/* Number 1: everything. */
static bool make_tables(struct sql *sql, struct arena *arena)
{
    return run_all(sql, tables, COUNT_OF(tables), arena) && add_columns(sql, arena);
}

/* Number 2: what a node owns is looked up with every renewal and claim. */
static bool index_address(struct sql *sql, struct arena *arena)
{
    static const struct sql_text text = {
        {"CREATE INDEX IF NOT EXISTS berth_deployment_address ON deployment (address)",
         "CREATE INDEX IF NOT EXISTS berth_deployment_address ON deployment (address)"}};

    return sql_run(sql, &text, NULL, 0, arena, NULL);
}

/* Number 3: a version that ran to its end, and whether the limits of a copy are enforced. */
static bool add_ended(struct sql *sql, struct arena *arena)
{
    static const struct sql_text text = {
        {"ALTER TABLE berth_deployment_status ADD COLUMN limits TEXT NOT NULL DEFAULT ''",
         "ALTER TABLE berth_deployment_status ADD COLUMN IF NOT EXISTS limits TEXT NOT NULL"
         " DEFAULT ''"}};

    return add_columns(sql, arena) && sql_run(sql, &text, NULL, 0, arena, NULL);
}

/* Number 4: a node that said goodbye is no loss, and a deployment that failed on a node is tried on
 * others first. */
static bool remember_nodes(struct sql *sql, struct arena *arena)
{
    static const struct sql_text texts[] = {
        {{"ALTER TABLE berth_node_lease ADD COLUMN goodbye INTEGER NOT NULL DEFAULT 0",
          "ALTER TABLE berth_node_lease ADD COLUMN goodbye BIGINT NOT NULL DEFAULT 0"}},
        {{"CREATE TABLE IF NOT EXISTS berth_deployment_failure (id TEXT NOT NULL,"
          " address TEXT NOT NULL, times INTEGER NOT NULL, at_ms INTEGER NOT NULL,"
          " until_ms INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (id, address))",
          "CREATE TABLE IF NOT EXISTS berth_deployment_failure (id TEXT NOT NULL,"
          " address TEXT NOT NULL, times BIGINT NOT NULL, at_ms BIGINT NOT NULL,"
          " until_ms BIGINT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (id, address))"}},
    };

    return run_all(sql, texts, COUNT_OF(texts), arena);
}

/* Number 5: a lease is one agent's, and is found by its end; what a node runs is found without
 * looking at what others run. */
static bool add_instances(struct sql *sql, struct arena *arena)
{
#define INDEX(name, on) "CREATE INDEX IF NOT EXISTS " name " ON " on
#define SAME(text)                                                                                 \
    {                                                                                              \
        {                                                                                          \
            text, text                                                                             \
        }                                                                                          \
    }
    static const struct sql_text texts[] = {
        {{"ALTER TABLE berth_node_lease ADD COLUMN instance TEXT NOT NULL DEFAULT ''",
          "ALTER TABLE berth_node_lease ADD COLUMN IF NOT EXISTS instance TEXT NOT NULL"
          " DEFAULT ''"}},
        SAME(INDEX("berth_node_lease_until", "berth_node_lease (until_ms)")),
        SAME(INDEX("berth_node_lease_goodbye", "berth_node_lease (address) WHERE goodbye = 1")),
        SAME(INDEX("berth_deployment_daemon", "deployment (id) WHERE type = 'daemon'")),
        SAME(INDEX("berth_deployment_status_address", "berth_deployment_status (address)")),
        SAME(INDEX("berth_deployment_failure_until", "berth_deployment_failure (until_ms)")),
        /* Whatever type the column has, and whatever order the database is in. */
        {{"SELECT 1",
          INDEX("berth_deployment_id", "deployment ((CAST(id AS TEXT)) COLLATE \"C\")")}},
    };

    return add_columns(sql, arena) && run_all(sql, texts, COUNT_OF(texts), arena);
}

/* A row per version; the next one stands behind the last. `oldest` is the first version whose
 * program may go on after that: instances are replaced one by one, and one can go back a release. A
 * table or a column more is nothing to one that names what it wants. */
static const struct {
    bool (*run)(struct sql *sql, struct arena *arena);
    int64_t oldest;
} migrations[] = {
    {make_tables, 1}, {index_address, 2}, {add_ended, 3}, {remember_nodes, 4}, {add_instances, 4}};

static bool read_schema(struct sql *sql, struct arena *arena, struct deploys_schema *ret_schema)
{
    static const struct sql_text rows[] = {
        {{"INSERT INTO berth_meta (name, value) VALUES ('schema', 0), ('schema_oldest', 0),"
          " ('version', 1), ('approved_until_ms', 0), ('news', 1) ON CONFLICT (name) DO NOTHING",
          "INSERT INTO berth_meta (name, value) VALUES ('schema', 0), ('schema_oldest', 0),"
          " ('version', 1), ('approved_until_ms', 0), ('news', 1) ON CONFLICT (name) DO NOTHING"}},
    };
    static const struct sql_text read = {
        {"SELECT value FROM berth_meta WHERE name IN ('schema', 'schema_oldest') ORDER BY name",
         "SELECT value FROM berth_meta WHERE name IN ('schema', 'schema_oldest') ORDER BY name"}};
    struct sql_rows found;

    if (!run_all(sql, rows, COUNT_OF(rows), arena) || !sql_run(sql, &read, NULL, 0, arena, &found))
        return false;
    assert(found.count == 2);
    ret_schema->version = sql_cell_int(&found, 0, 0);
    ret_schema->oldest = sql_cell_int(&found, 1, 0);
    ret_schema->known = COUNT_OF(migrations);
    return true;
}

static bool write_schema(struct sql *sql, struct arena *arena)
{
    static const struct sql_text write = {
        {"UPDATE berth_meta SET value = CASE name WHEN 'schema' THEN $1 ELSE $2 END"
         " WHERE name IN ('schema', 'schema_oldest')",
         "UPDATE berth_meta SET value = CASE name WHEN 'schema' THEN $1::bigint ELSE $2::bigint END"
         " WHERE name IN ('schema', 'schema_oldest')"}};
    struct sql_param numbers[] = {SQL_INT(COUNT_OF(migrations)),
                                  SQL_INT(migrations[COUNT_OF(migrations) - 1].oldest)};

    return sql_run(sql, &write, numbers, COUNT_OF(numbers), arena, NULL);
}

/* Several instances may start at once: one migrates, the others wait for it and find it done. */
static bool migrate(struct sql *sql, struct arena *arena, struct deploys_schema *ret_schema)
{
    static const struct sql_text one_at_a_time = {
        {"SELECT 1", "SELECT pg_advisory_xact_lock(7420742074207420)"}};
    static const struct sql_text meta = {
        {"CREATE TABLE IF NOT EXISTS berth_meta (name TEXT PRIMARY KEY NOT NULL,"
         " value INTEGER NOT NULL)",
         "CREATE TABLE IF NOT EXISTS berth_meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)"}};

    if (!sql_run(sql, &one_at_a_time, NULL, 0, arena, NULL) ||
        !sql_run(sql, &meta, NULL, 0, arena, NULL) || !read_schema(sql, arena, ret_schema))
        return false;
    for (int64_t i = ret_schema->version; i < ret_schema->known; i++)
        if (!migrations[i].run(sql, arena))
            return false;
    return ret_schema->version >= ret_schema->known || write_schema(sql, arena);
}

bool deploys_schema_is_ours(const struct deploys_schema *schema)
{
    return schema->version <= schema->known ||
           (schema->oldest > 0 && schema->oldest <= schema->known);
}

bool deploys_migrate(struct sql *sql, struct deploys_schema *ret_schema)
{
    struct arena arena = {0};
    bool ok = sql_begin(sql) && migrate(sql, &arena, ret_schema) && sql_commit(sql);

    if (!ok)
        sql_rollback(sql);
    arena_free(&arena);
    return ok;
}
