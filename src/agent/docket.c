#include "agent/docket.h"

#include <assert.h>

void docket_init(struct docket *docket)
{
    *docket = (struct docket){.version = -1};
}

void docket_done(struct docket *docket)
{
    arena_free(&docket->arena);
    arena_free(&docket->facts_arena);
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

static const struct json *keep(struct docket *docket, const struct json *list)
{
    struct arena *arena = &docket->facts_arena;
    const struct json *kept = NULL;

    if (json_type(list) != JSON_ARR ||
        json_parse(arena_str(arena, json_raw(list)), arena, &kept, NULL) != ERR_OK)
        return NULL;
    return kept;
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
    arena_reset(&docket->facts_arena);
    docket->leases = keep(docket, json_get(reply, "leases"));
    docket->failures = keep(docket, json_get(reply, "failures"));
}

static struct deploy_row *find_row(struct docket *docket, struct str id)
{
    size_t low = 0, high = docket->row_count;

    while (low < high) { /* they come by id */
        size_t middle = low + (high - low) / 2;
        int order = str_cmp(docket->rows[middle].id, id);

        if (order == 0)
            return &docket->rows[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The failures of a row come one behind the other. */
static void mark_failures(struct docket *docket)
{
    struct arena *arena = &docket->facts_arena;
    size_t count = docket->failures ? docket->failures->count : 0;
    struct str *addresses = arena_array(arena, struct str, count + 1);
    const struct json *failure = json_first(docket->failures);

    for (size_t i = 0; i < docket->row_count; i++)
        docket->rows[i].failed_count = 0;
    for (size_t i = 0; i < count; i++, failure = json_next(failure)) {
        struct deploy_row *row = find_row(docket, text_of(failure, "id", arena));

        addresses[i] = text_of(failure, "address", arena);
        if (!row)
            continue;
        if (row->failed_count == 0)
            row->failed_on = &addresses[i];
        row->failed_count++;
    }
}

void docket_take(struct docket *docket, const struct json *reply, struct arena *arena,
                 struct str *ret_cursor)
{
    const struct json *rows = json_get(reply, "rows");

    *ret_cursor = STR("");
    if (++docket->page == 1)
        take_facts(docket, reply);
    if (json_type(rows) == JSON_ARR) { /* else they are as they were */
        read_rows(docket, rows);
        docket->version = -1;
        if (json_is_null(json_get(reply, "next_cursor")))
            json_int(json_get(reply, "version"), &docket->version);
        else
            *ret_cursor = json_str(json_get(reply, "next_cursor"), arena);
    }
    if (!ret_cursor->len)
        mark_failures(docket);
}

static const struct json *find_lease(const struct docket *docket, struct str address)
{
    const struct json *lease = json_first(docket->leases), *found = NULL;
    struct arena arena = {0};

    for (uint32_t i = 0; !found && docket->leases && i < docket->leases->count;
         i++, lease = json_next(lease))
        if (str_eq(json_str(json_get(lease, "address"), &arena), address))
            found = lease;
    arena_free(&arena);
    return found;
}

int64_t docket_left_ms(const struct docket *docket, struct str address)
{
    int64_t left_ms = -1;

    json_int(json_get(find_lease(docket, address), "left_ms"), &left_ms);
    return left_ms;
}

bool docket_goodbye(const struct docket *docket, struct str address)
{
    bool goodbye = false;

    json_bool(json_get(find_lease(docket, address), "goodbye"), &goodbye);
    return goodbye;
}
