/* Where copies listen: those that are alive by what their node last said, while its lease is good.
 * One deployment is looked up as it is asked for. All of them are wanted by every node every few
 * seconds, and are nearly always as they were: the reading thread keeps them for a moment, under a
 * number. */
#include "base/clock.h"
#include "store/deploys_row.h"

enum {
    SERVICES_MS = 1000, /* so old may they be */
    PACE = 4,           /* reading them takes at most a part in so many of the thread's time */
};

/* A copy of a former owner or assignment is none of the deployment's. */
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
    for (size_t i = 0; i < text.len; i++)
        hash = (hash ^ (unsigned char)text.at[i]) * 0x100000001b3;
    return (hash ^ 0xff) * 0x100000001b3;
}

static bool refresh_alive(struct work *work)
{
    static const struct sql_text text = DEPLOYS_BOTH(ALIVE_ALL);
    struct deploys_alive *alive = work->alive;
    int64_t begun_ms = clock_mono_ms(), pause_ms = PACE * alive->took_ms;
    uint64_t hash = 0xcbf29ce484222325;
    struct sql_rows rows;

    if (alive->read_mono_ms &&
        begun_ms < alive->read_mono_ms + (pause_ms > SERVICES_MS ? pause_ms : SERVICES_MS))
        return true;
    alive->read_mono_ms = 0;
    alive->count = 0;
    arena_reset(&alive->arena);
    if (!sql_run(work->sql, &text, NULL, 0, &alive->arena, &rows))
        return false;
    read_services(&rows, &alive->arena, &alive->items);
    alive->count = rows.count;
    for (size_t i = 0; i < alive->count; i++) { /* without leases, which are renewed all the time */
        const struct deploys_service *one = &alive->items[i];

        hash = hash_str(hash, one->id);
        hash = hash_str(hash, one->node);
        hash = hash_str(hash, one->address);
        hash = hash_str(hash, one->healthy);
        hash = (hash ^ (uint64_t)(one->port ^ one->version << 16)) * 0x100000001b3;
    }
    alive->number = (int64_t)(hash >> 16); /* every reader of JSON can hold that */
    alive->read_mono_ms = clock_mono_ms();
    alive->took_ms = alive->read_mono_ms - begun_ms;
    return true;
}

static bool answer_all(struct work *work)
{
    struct deploys_op *op = work->op;
    const struct deploys_alive *alive = work->alive;

    if (!refresh_alive(work) || !deploys_meta(work))
        return false;
    op->u.services.number = alive->number;
    op->u.services.same = op->u.services.if_number == alive->number;
    if (!op->u.services.same)
        op->u.services.items = arena_array(op->arena, struct deploys_service, alive->count + 1);
    op->u.services.left_ms = INT64_MAX;
    for (size_t i = 0; i < alive->count; i++) {
        const struct deploys_service *one = &alive->items[i];
        struct deploys_service *to;

        if (one->until_ms < op->now_ms)
            continue; /* since they were read */
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
