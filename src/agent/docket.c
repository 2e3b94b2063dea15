#include "agent/docket.h"

#include <assert.h>

void docket_init(struct docket *docket)
{
    *docket = (struct docket){.version = -1};
}

void docket_done(struct docket *docket)
{
    arena_free(&docket->arena);
    arena_free(&docket->leases_arena);
    docket_init(docket);
}

void docket_write(struct docket *docket, struct jsonw *w)
{
    docket->page = 0;
    if (docket->version >= 0)
        jsonw_kint(w, "if_version", docket->version);
}

static struct str text_of(const struct json *row, const char *name, struct arena *arena)
{
    struct str text = json_str(json_get(row, name), arena);

    return text.at ? text : STR("");
}

static void read_row(const struct json *row, struct arena *arena, struct deploy_row *to)
{
    *to = (struct deploy_row){.id = text_of(row, "id", arena),
                              .address = text_of(row, "address", arena),
                              .type = deploy_type_by_name(text_of(row, "type", arena)),
                              .selector = text_of(row, "selector", arena),
                              .updated_at = text_of(row, "updated_at", arena),
                              .created_at = text_of(row, "created_at", arena)};
    json_bool(json_get(row, "enabled"), &to->enabled);
    json_int(json_get(row, "generation"), &to->generation);
}

static void read_rows(struct docket *docket, const struct json *given)
{
    struct arena *arena = &docket->arena;
    struct deploy_row *rows;
    const struct json *list, *row;
    enum err err;

    if (docket->page == 1) {
        arena_reset(arena);
        docket->row_count = 0;
        docket->rows = NULL;
    }
    err = json_parse(arena_str(arena, json_raw(given)), arena, &list, NULL);
    assert(!err); /* it was read before */
    rows = arena_array(arena, struct deploy_row, docket->row_count + list->count + 1);
    for (size_t i = 0; i < docket->row_count; i++)
        rows[i] = docket->rows[i];
    row = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, row = json_next(row))
        read_row(row, arena, &rows[docket->row_count + i]);
    docket->rows = rows;
    docket->row_count += list->count;
}

static void take_leases(struct docket *docket, const struct json *leases)
{
    struct str text;

    arena_reset(&docket->leases_arena);
    docket->leases = NULL;
    if (json_type(leases) != JSON_ARR)
        return;
    text = arena_str(&docket->leases_arena, json_raw(leases));
    if (json_parse(text, &docket->leases_arena, &docket->leases, NULL) != ERR_OK)
        docket->leases = NULL;
}

static void take_facts(struct docket *docket, const struct json *reply)
{
    int64_t now_ms = 0, until_ms = 0;

    docket->mode = json_str_is(json_get(reply, "mode"), deploy_mode_name(DEPLOY_SEED))
                       ? DEPLOY_SEED
                       : DEPLOY_HARDENED;
    json_int(json_get(reply, "now_ms"), &now_ms);
    docket->approved =
        json_int(json_get(reply, "approved_until_ms"), &until_ms) && until_ms > now_ms;
    take_leases(docket, json_get(reply, "leases"));
}

void docket_take(struct docket *docket, const struct json *reply, struct arena *arena,
                 struct str *ret_cursor)
{
    const struct json *rows = json_get(reply, "rows");

    *ret_cursor = STR("");
    if (++docket->page == 1)
        take_facts(docket, reply);
    if (json_type(rows) != JSON_ARR)
        return; /* as it was */
    read_rows(docket, rows);
    docket->version = -1;
    if (json_is_null(json_get(reply, "next_cursor")))
        json_int(json_get(reply, "version"), &docket->version);
    else
        *ret_cursor = json_str(json_get(reply, "next_cursor"), arena);
}

bool docket_leased(const struct docket *docket, struct str address)
{
    const struct json *lease = json_first(docket->leases);
    struct arena arena = {0};
    int64_t left_ms = -1;

    for (uint32_t i = 0; docket->leases && i < docket->leases->count; i++, lease = json_next(lease))
        if (str_eq(json_str(json_get(lease, "address"), &arena), address)) {
            json_int(json_get(lease, "left_ms"), &left_ms);
            break;
        }
    arena_free(&arena);
    return left_ms >= 0;
}
