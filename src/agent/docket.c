#include "agent/docket.h"

#include <assert.h>

#include "base/map.h"

void docket_init(struct docket *docket)
{
    *docket = (struct docket){.version = -1, .facts = -1};
}

void docket_forget(struct docket *docket)
{
    docket->version = docket->facts = -1;
}

void docket_done(struct docket *docket)
{
    arena_free(&docket->arena);
    arena_free(&docket->facts_arena);
    arena_free(&docket->marks_arena);
    docket_init(docket);
}

void docket_write(struct docket *docket, struct jsonw *w)
{
    docket->page = 0;
    if (docket->version >= 0) {
        jsonw_kint(w, "if_version", docket->version);
        jsonw_kbool(w, "delta", true);
    }
    if (docket->facts >= 0)
        jsonw_kint(w, "if_facts", docket->facts);
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

static const struct json *own_list(const struct json *given, struct arena *arena)
{
    const struct json *list;
    enum err err = json_parse(arena_str(arena, json_raw(given)), arena, &list, NULL);

    assert(!err); /* it was read before */
    return list;
}

static void read_rows(struct docket *docket, const struct json *given)
{
    struct arena *arena = &docket->arena;
    struct deploy_row *rows;
    const struct json *list, *row;

    if (docket->page == 1) {
        arena_reset(arena);
        docket->row_count = 0;
        docket->rows = NULL;
    }
    list = own_list(given, arena);
    rows = arena_array(arena, struct deploy_row, docket->row_count + list->count + 1);
    for (size_t i = 0; i < docket->row_count; i++)
        rows[i] = docket->rows[i];
    row = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, row = json_next(row))
        read_row(row, arena, &rows[docket->row_count + i]);
    docket->rows = rows;
    docket->row_count += list->count;
}

static struct deploy_row copy_row(const struct deploy_row *row, struct arena *arena)
{
    struct deploy_row copy = *row;

    copy.id = arena_str(arena, row->id);
    copy.address = arena_str(arena, row->address);
    copy.selector = arena_str(arena, row->selector);
    copy.updated_at = arena_str(arena, row->updated_at);
    copy.created_at = arena_str(arena, row->created_at);
    return copy;
}

/* Rows that changed or came, and the names of those that are gone: into the ones we have. What is
 * gone and came again is in both. */
static void merge_rows(struct docket *docket, const struct json *given, const struct json *gone)
{
    struct docket old = *docket;
    const struct json *row, *name = json_first(gone);
    size_t at = 0, gone_count = json_type(gone) == JSON_ARR ? gone->count : 0;
    struct map dropped = {0};
    struct arena arena = {0};

    docket->arena = (struct arena){0};
    docket->row_count = 0;
    row = json_first(own_list(given, &docket->arena)); /* its texts live as long as the rows */
    docket->rows = arena_array(&docket->arena, struct deploy_row, old.row_count + given->count + 1);
    for (size_t i = 0; i < gone_count; i++, name = json_next(name))
        map_put(&dropped, json_str(name, &arena), &arena);
    for (uint32_t i = 0; i <= given->count; i++, row = i < given->count ? json_next(row) : NULL) {
        struct deploy_row one;
        int order = -1;

        if (i < given->count)
            read_row(row, &docket->arena, &one);
        while (at < old.row_count &&
               (i == given->count || (order = str_cmp(old.rows[at].id, one.id)) < 0)) {
            if (!map_get(&dropped, old.rows[at].id))
                docket->rows[docket->row_count++] = copy_row(&old.rows[at], &docket->arena);
            at++;
        }
        if (i == given->count)
            break;
        at += at < old.row_count && order == 0;
        docket->rows[docket->row_count++] = one;
    }
    map_free(&dropped);
    arena_free(&arena);
    arena_free(&old.arena);
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
    int64_t facts = -1, until_ms = 0;

    docket->mode = json_str_is(json_get(reply, "mode"), deploy_mode_name(DEPLOY_SEED))
                       ? DEPLOY_SEED
                       : DEPLOY_HARDENED;
    json_int(json_get(reply, "now_ms"), &docket->now_ms);
    docket->approved =
        json_int(json_get(reply, "approved_until_ms"), &until_ms) && until_ms > docket->now_ms;
    json_int(json_get(reply, "facts"), &facts);
    if (facts >= 0 && facts == docket->facts)
        return; /* as they were */
    docket->facts = facts;
    docket->facts_ms = docket->now_ms;
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
    struct arena *arena = &docket->marks_arena;
    size_t count = docket->failures ? docket->failures->count : 0;
    struct str *addresses;
    const struct json *failure = json_first(docket->failures);

    arena_reset(arena);
    addresses = arena_array(arena, struct str, count + 1);
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
    bool delta = false;

    *ret_cursor = STR("");
    json_bool(json_get(reply, "delta"), &delta);
    if (++docket->page == 1)
        take_facts(docket, reply);
    if (json_type(rows) == JSON_ARR) { /* else they are as they were */
        if (delta)
            merge_rows(docket, rows, json_get(reply, "gone"));
        else
            read_rows(docket, rows);
        int64_t version = -1;

        json_int(json_get(reply, "version"), &version);
        if (docket->page == 1 || version < docket->oldest_page)
            docket->oldest_page = version;
        docket->version = -1;
        if (json_is_null(json_get(reply, "next_cursor")))
            docket->version = docket->oldest_page; /* what changed since is told with the next */
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

    if (json_int(json_get(find_lease(docket, address), "left_ms"), &left_ms))
        left_ms -= docket->now_ms - docket->facts_ms;
    return left_ms;
}

bool docket_goodbye(const struct docket *docket, struct str address)
{
    bool goodbye = false;

    json_bool(json_get(find_lease(docket, address), "goodbye"), &goodbye);
    return goodbye;
}
