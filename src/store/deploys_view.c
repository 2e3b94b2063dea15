/* What every node polls every few seconds: the claimers' view (the table, leases ending soon,
 * failures by node) and where copies listen. The answer rarely changes, so the reading thread
 * caches it: one query serves all nodes, and a node that has an earlier version gets only the
 * changes. */
#include "store/deploys_row.h"

#include "base/clock.h"

enum {
    LEASES_MS = 1000,   /* max age of leases and failures */
    TABLE_MS = 5000,    /* max age of rows, which others may change without a new version */
    SERVICES_MS = 1000, /* max age of services */
    PACE = 4,           /* each read may take at most 1/PACE of the thread's time */
    GONE_MAX = 10000,   /* remembered deletions */
};

/* --- leases and failures --- */

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * 0x100000001b3;
    return hash;
}

static int64_t number_leases(const struct deploys_leases_cache *cache)
{
    uint64_t hash = 0xcbf29ce484222325;

    for (size_t i = 0; i < cache->lease_count; i++) {
        const struct deploys_lease *lease = &cache->leases[i];

        hash = hash_bytes(hash, lease->node.at, lease->node.len + 1);
        hash = hash_bytes(hash, &lease->until_ms, sizeof lease->until_ms);
        hash = hash_bytes(hash, &lease->goodbye, sizeof lease->goodbye);
    }
    for (size_t i = 0; i < cache->failure_count; i++) {
        hash = hash_bytes(hash, cache->failures[i].id.at, cache->failures[i].id.len + 1);
        hash = hash_bytes(hash, cache->failures[i].address.at, cache->failures[i].address.len + 1);
    }
    return (int64_t)(hash >> 16); /* 48 bits: exact in every JSON reader */
}

/* All nodes poll every few seconds; the database is queried once. */
static bool refresh_leases(struct work *work)
{
/* clang-format off */
#define LEASES(D)                                                                                  \
    "SELECT address, until_ms, goodbye FROM berth_node_lease WHERE until_ms >= " D##_STATEMENT_START \
    " AND until_ms < " D##_STATEMENT_START " + CAST($1 AS BIGINT) AND goodbye = 0 UNION ALL"       \
    " SELECT address, until_ms, goodbye FROM berth_node_lease WHERE goodbye = 1 ORDER BY 1"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(LEASES);
    struct deploys_leases_cache *cache = work->leases;
    int64_t within_ms = work->op->u.view.within_ms, now_ms = clock_mono_ms();
    struct sql_param within = SQL_INT(within_ms);
    struct sql_rows rows;

    if (!work->leases_stale && cache->read_mono_ms && cache->within_ms == within_ms &&
        now_ms < cache->read_mono_ms + LEASES_MS)
        return true;
    cache->read_mono_ms = 0;
    cache->within_ms = within_ms;
    arena_reset(&cache->arena);
    /* A lease not listed has expired or is good for a while; the claim checks it. */
    if (!sql_run(work->sql, &text, &within, 1, &cache->arena, &rows))
        return false;
    cache->lease_count = rows.count;
    cache->leases = arena_array(&cache->arena, struct deploys_lease, rows.count + 1);
    for (size_t i = 0; i < rows.count; i++)
        cache->leases[i] = (struct deploys_lease){.node = sql_cell(&rows, i, 0),
                                                  .until_ms = sql_cell_int(&rows, i, 1),
                                                  .goodbye = sql_cell_int(&rows, i, 2) != 0};
    if (!deploys_failures(work, STR_NONE, &cache->arena, &cache->failures, &cache->failure_count))
        return false;
    cache->number = number_leases(cache);
    cache->read_mono_ms = now_ms;
    return true;
}

static void answer_leases(struct work *work)
{
    const struct deploys_leases_cache *cache = work->leases;
    struct deploys_op *op = work->op;

    op->u.view.facts = cache->number;
    op->u.view.same_facts = op->u.view.if_facts == cache->number;
    if (op->u.view.same_facts)
        return;
    op->u.view.lease_count = cache->lease_count;
    op->u.view.leases = arena_array(op->arena, struct deploys_lease, cache->lease_count + 1);
    for (size_t i = 0; i < cache->lease_count; i++) {
        op->u.view.leases[i] = cache->leases[i];
        op->u.view.leases[i].node = arena_str(op->arena, cache->leases[i].node);
    }
    op->failure_count = cache->failure_count;
    op->failures = arena_array(op->arena, struct deploys_failure, cache->failure_count + 1);
    for (size_t i = 0; i < cache->failure_count; i++) {
        op->failures[i] = cache->failures[i];
        op->failures[i].id = arena_str(op->arena, cache->failures[i].id);
        op->failures[i].address = arena_str(op->arena, cache->failures[i].address);
        op->failures[i].reason = arena_str(op->arena, cache->failures[i].reason);
    }
}

/* --- the table --- */

struct deploys_gone {
    struct str id;
    int64_t at; /* the first version without it */
};

void deploys_table_done(struct deploys_table *table)
{
    arena_free(&table->arena);
    arena_free(&table->gone_arena);
    *table = (struct deploys_table){0};
}

static bool read_page(struct work *work, struct deploys_table *table, size_t *room)
{
/* An ended deployment is shown as disabled: it is not counted and not claimed. */
/* clang-format off */
#define VIEW(D)                                                                                    \
    "SELECT " D##_TEXT("id") ", type, enabled AND ended = '', address, generation, selector, "     \
    D##_WHEN("created_at") ", " D##_WHEN("updated_at") ", " D##_NEEDS " FROM deployment WHERE "    \
    D##_ID " > $1 ORDER BY " D##_ID " LIMIT CAST($2 AS BIGINT)"
    /* clang-format on */
    static const struct sql_text text = DEPLOYS_BOTH(VIEW);
    struct sql_param params[] = {
        SQL_STR(table->count ? table->rows[table->count - 1].row.id : STR("")),
        SQL_INT(DEPLOYS_PAGE_MAX)};
    struct sql_rows rows;

    if (!sql_run(work->sql, &text, params, COUNT_OF(params), &table->arena, &rows))
        return false;
    if (*room < table->count + rows.count) {
        size_t old = *room * sizeof *table->rows;

        *room = 2 * (table->count + rows.count);
        table->rows =
            old ? arena_resize(&table->arena, table->rows, old, *room * sizeof *table->rows)
                : arena_array(&table->arena, struct deploys_cached_row, *room);
    }
    for (size_t i = 0; i < rows.count; i++)
        table->rows[table->count++].row =
            (struct deploy_row){.id = sql_cell(&rows, i, 0),
                                .type = deploy_type_by_name(sql_cell(&rows, i, 1)),
                                .enabled = sql_cell_bool(&rows, i, 2),
                                .address = sql_cell(&rows, i, 3),
                                .generation = sql_cell_int(&rows, i, 4),
                                .selector = sql_cell(&rows, i, 5),
                                .created_at = sql_cell(&rows, i, 6),
                                .updated_at = sql_cell(&rows, i, 7),
                                .needs = sql_cell(&rows, i, 8)};
    table->whole = rows.count < DEPLOYS_PAGE_MAX;
    return true;
}

static void note_gone(struct deploys_table *table, struct str id, int64_t at)
{
    if (table->gone_count == GONE_MAX) { /* claimers with an older version get the whole table */
        arena_reset(&table->gone_arena);
        table->gone_count = 0;
        table->gone = NULL;
        table->since = at;
    }
    if (!table->gone)
        table->gone = arena_array(&table->gone_arena, struct deploys_gone, GONE_MAX);
    table->gone[table->gone_count++] =
        (struct deploys_gone){.id = arena_str(&table->gone_arena, id), .at = at};
}

/* Sets in each row the version in which its current state was first seen. Both tables are ordered
 * by id. */
static void compare(struct deploys_table *table, const struct deploys_table *old, int64_t version)
{
    size_t at = 0;

    for (size_t i = 0; i < table->count; i++) {
        struct deploys_cached_row *cached = &table->rows[i];
        int order = -1;

        while (at < old->count && (order = str_cmp(old->rows[at].row.id, cached->row.id)) < 0)
            note_gone(table, old->rows[at++].row.id, version);
        cached->changed = version;
        if (at < old->count && order == 0) {
            const struct deploy_row *now = &cached->row, *was = &old->rows[at].row;

            if (now->type == was->type && now->enabled == was->enabled &&
                now->generation == was->generation && str_eq(now->address, was->address) &&
                str_eq(now->selector, was->selector) && str_eq(now->created_at, was->created_at) &&
                str_eq(now->updated_at, was->updated_at) && str_eq(now->needs, was->needs))
                cached->changed = old->rows[at].changed;
            at++;
        }
    }
    while (at < old->count)
        note_gone(table, old->rows[at++].row.id, version);
}

/* The rows are of `version` or later: rows changed during the read belong to a later version. */
static bool read_table(struct work *work, int64_t version)
{
    struct deploys_table *table = work->table, fresh = {0};
    int64_t begun_ms = clock_mono_ms();
    size_t room = 0;
    bool ok;

    do {
        ok = read_page(work, &fresh, &room);
    } while (ok && !fresh.whole);
    if (!ok || !deploys_meta(work)) {
        arena_free(&fresh.arena);
        return false;
    }
    fresh.gone = table->gone;
    fresh.gone_count = table->gone_count;
    fresh.gone_arena = table->gone_arena;
    fresh.since = table->version ? table->since : work->op->version;
    /* Rows changed without a new version get the next number, so that claimers with the current
     * version see them. */
    compare(&fresh, table, work->op->version + (work->op->version == table->version));
    fresh.version = version;
    fresh.read_mono_ms = clock_mono_ms();
    fresh.took_ms = fresh.read_mono_ms - begun_ms;
    arena_free(&table->arena);
    *table = fresh;
    return true;
}

/* Sets op->version to that of the cached rows: the current one, or a recent one if the table is
 * large. */
static bool refresh_table(struct work *work)
{
    struct deploys_table *table = work->table;
    struct deploys_op *op = work->op;
    int64_t age_ms = clock_mono_ms() - table->read_mono_ms;
    int64_t pause_ms = table->count > DEPLOYS_PAGE_MAX ? PACE * table->took_ms : 0;

    if (op->u.view.if_version == op->version)
        return true; /* no rows are needed */
    if ((!table->version || age_ms >= TABLE_MS ||
         (table->version != op->version && age_ms >= pause_ms)) &&
        !read_table(work, op->version))
        return false;
    op->version = table->version;
    return true;
}

static void answer_row(struct deploys_op *op, const struct deploy_row *row)
{
    struct deploy_row *to = &op->u.view.items[op->u.view.count++];

    *to = *row;
    to->id = arena_str(op->arena, row->id);
    to->address = arena_str(op->arena, row->address);
    to->selector = arena_str(op->arena, row->selector);
    to->created_at = arena_str(op->arena, row->created_at);
    to->updated_at = arena_str(op->arena, row->updated_at);
    to->needs = arena_str(op->arena, row->needs);
}

/* A claimer that does not support copies with an index would run them without it. */
static bool is_for(const struct deploys_op *op, struct str id)
{
    return op->u.view.indexed || deploy_index(id) == 0;
}

/* Answers the changes since the claimer's version. False: too many, or unknown. */
static bool answer_changes(struct work *work)
{
    const struct deploys_table *table = work->table;
    struct deploys_op *op = work->op;
    int64_t since = op->u.view.if_version;
    size_t changed = 0, gone = 0;

    /* A version higher than ours means that the database was restored. */
    if (!op->u.view.delta || since < table->since || since > table->version)
        return false;
    for (size_t i = 0; i < table->count; i++)
        changed += table->rows[i].changed > since;
    for (size_t i = 0; i < table->gone_count; i++)
        gone += table->gone[i].at > since;
    if (changed + gone > DEPLOYS_PAGE_MAX)
        return false;
    op->u.view.items = arena_array(op->arena, struct deploy_row, changed + 1);
    op->u.view.gone = arena_array(op->arena, struct str, gone + 1);
    for (size_t i = 0; i < table->count; i++)
        if (table->rows[i].changed > since && is_for(op, table->rows[i].row.id))
            answer_row(op, &table->rows[i].row);
    for (size_t i = 0; i < table->gone_count; i++)
        if (table->gone[i].at > since)
            op->u.view.gone[op->u.view.gone_count++] = arena_str(op->arena, table->gone[i].id);
    return true;
}

static void answer_page(struct work *work)
{
    const struct deploys_table *table = work->table;
    struct deploys_op *op = work->op;
    struct str after = op->u.view.after.at ? op->u.view.after : STR("");
    size_t low = 0, high = table->count;

    while (low < high) { /* binary search for the first row after it */
        size_t middle = low + (high - low) / 2;

        if (str_cmp(table->rows[middle].row.id, after) > 0)
            high = middle;
        else
            low = middle + 1;
    }
    op->u.view.delta = false;
    op->u.view.items = arena_array(op->arena, struct deploy_row, DEPLOYS_PAGE_MAX + 1);
    for (; low < table->count && op->u.view.count < DEPLOYS_PAGE_MAX; low++)
        if (is_for(op, table->rows[low].row.id))
            answer_row(op, &table->rows[low].row);
    op->u.view.more = low < table->count;
}

/* Leases end and failures expire without a new version, so they have their own number. */
bool deploys_view(struct work *work)
{
    struct deploys_op *op = work->op;
    bool first = op->u.view.after.len == 0;

    if (!deploys_meta(work) || !refresh_table(work) || (first && !refresh_leases(work)))
        return false;
    if (first)
        answer_leases(work);
    op->u.view.approved_until_ms = work->approved_until_ms;
    op->u.view.unchanged = op->u.view.if_version == op->version;
    if (op->u.view.unchanged)
        op->u.view.delta = false;
    else if (!first || !answer_changes(work))
        answer_page(work);
    return true;
}

/* --- services --- */

/* Live copies, by their node's last report while its lease is valid. A single deployment is queried
 * on request; the list of all is cached under a number. */

/* Copies of a former owner or generation do not count. */
/* clang-format off */
#define ALIVE(D, rows)                                                                             \
    "SELECT d.id, s.address, s.host, s.port, s.healthy, s.version, l.until_ms FROM (" rows ") AS d"\
    " JOIN berth_deployment_status s ON s.id = d.id JOIN berth_node_lease l"                       \
    " ON l.address = s.address WHERE s.state IN ('running', 'unhealthy', 'updating') AND d.enabled"\
    " AND (d.type = 'daemon' OR (d.address = s.address AND d.generation = s.generation))"          \
    " AND l.until_ms >= " D##_NOW " ORDER BY d.copy_index, " D##_BYTES("d.id") ", "                \
    D##_BYTES("s.address")
#define ROWS_WHERE(D, which)                                                                       \
    "SELECT " D##_TEXT("id") " AS id, type, enabled, address, generation, copy_index"              \
    " FROM deployment WHERE " which
#define ALIVE_OF(D)                                                                                \
    ALIVE(D, ROWS_WHERE(D, D##_ID " = $1") " UNION ALL "                                           \
             ROWS_WHERE(D, COPY_OF("", "$1")))
#define ALIVE_ALL(D) ALIVE(D, ROWS_WHERE(D, "enabled"))
/* clang-format on */

static void read_services(const struct sql_rows *rows, struct arena *arena,
                          struct deploys_service **ret_items)
{
    *ret_items = arena_array(arena, struct deploys_service, rows->count + 1);
    for (size_t i = 0; i < rows->count; i++)
        (*ret_items)[i] = (struct deploys_service){.id = sql_cell(rows, i, 0),
                                                   .node = sql_cell(rows, i, 1),
                                                   .address = sql_cell(rows, i, 2),
                                                   .port = sql_cell_int(rows, i, 3),
                                                   .healthy = sql_cell(rows, i, 4),
                                                   .version = sql_cell_int(rows, i, 5),
                                                   .until_ms = sql_cell_int(rows, i, 6)};
}

static uint64_t hash_str(uint64_t hash, struct str text)
{
    return hash_bytes(hash_bytes(hash, text.at, text.len), "\xff", 1);
}

static bool refresh_services(struct work *work)
{
    static const struct sql_text text = DEPLOYS_BOTH(ALIVE_ALL);
    struct deploys_services_cache *cache = work->services;
    int64_t begun_ms = clock_mono_ms(), pause_ms = PACE * cache->took_ms;
    uint64_t hash = 0xcbf29ce484222325;
    struct sql_rows rows;

    if (cache->read_mono_ms &&
        begun_ms < cache->read_mono_ms + (pause_ms > SERVICES_MS ? pause_ms : SERVICES_MS))
        return true;
    cache->read_mono_ms = 0;
    cache->count = 0;
    arena_reset(&cache->arena);
    if (!sql_run(work->sql, &text, NULL, 0, &cache->arena, &rows))
        return false;
    read_services(&rows, &cache->arena, &cache->items);
    cache->count = rows.count;
    for (size_t i = 0; i < cache->count;
         i++) { /* leases are left out: they are renewed all the time */
        const struct deploys_service *one = &cache->items[i];

        hash = hash_str(hash, one->id);
        hash = hash_str(hash, one->node);
        hash = hash_str(hash, one->address);
        hash = hash_str(hash, one->healthy);
        hash = (hash ^ (uint64_t)(one->port ^ one->version << 16)) * 0x100000001b3;
    }
    cache->number = (int64_t)(hash >> 16); /* 48 bits: exact in every JSON reader */
    cache->read_mono_ms = clock_mono_ms();
    cache->took_ms = cache->read_mono_ms - begun_ms;
    return true;
}

static bool answer_all(struct work *work)
{
    struct deploys_op *op = work->op;
    const struct deploys_services_cache *cache = work->services;

    if (!refresh_services(work) || !deploys_meta(work))
        return false;
    op->u.services.number = cache->number;
    op->u.services.same = op->u.services.if_number == cache->number;
    if (!op->u.services.same)
        op->u.services.items = arena_array(op->arena, struct deploys_service, cache->count + 1);
    op->u.services.left_ms = INT64_MAX;
    for (size_t i = 0; i < cache->count; i++) {
        const struct deploys_service *one = &cache->items[i];
        struct deploys_service *to;

        if (one->until_ms < op->now_ms)
            continue; /* expired since they were read */
        if (one->until_ms - op->now_ms < op->u.services.left_ms)
            op->u.services.left_ms = one->until_ms - op->now_ms;
        if (op->u.services.same)
            continue;
        to = &op->u.services.items[op->u.services.count];
        *to = *one;
        to->id = arena_str(op->arena, one->id);
        to->node = arena_str(op->arena, one->node);
        to->address = arena_str(op->arena, one->address);
        to->healthy = arena_str(op->arena, one->healthy);
        op->u.services.count++;
    }
    return true;
}

bool deploys_services(struct work *work)
{
    struct deploys_op *op = work->op;
    struct sql_rows rows;

    if (!op->id.at)
        return answer_all(work);
    if (!deploys_row_get(work, false))
        return false;
    if (!op->found || deploy_index(op->id) > 0) {
        op->err = ERR_NOT_FOUND;
        return true;
    }
    if (!WORK_SQL(work, ALIVE_OF, &rows, SQL_STR(op->id)))
        return false;
    read_services(&rows, op->arena, &op->u.services.items);
    op->u.services.count = rows.count;
    return deploys_meta(work);
}
