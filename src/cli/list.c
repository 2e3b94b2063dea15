/* Fetches a list by its row and prints it in the form that was asked for. */
#include "cli/list.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "cli/request.h"
#include "cli/screen.h"

struct list_live {
    struct live live;
    const struct listing *listing;
};

static void put_filters(struct cli *cli, const struct listing *listing, struct buf *path)
{
    for (size_t i = 0; i < listing->filter_count; i++) {
        const struct list_filter *filter = &listing->filters[i];
        struct str *values;
        size_t count = cli_list(cli, filter->flag, &values);

        if (!cli_given(cli, filter->flag))
            continue;
        buf_fmt(path, "&%s=", filter->param);
        for (size_t v = 0; v < count; v++)
            buf_fmt(path, "%s%s", v ? "," : "", ask_escape(cli, values[v]));
    }
}

static void put_path(struct cli *cli, const char *pattern, struct buf *path)
{
    const char *hole = strstr(pattern, "{id}");

    if (!hole) {
        buf_str(path, str_of(pattern));
        return;
    }
    assert(cli->arg_count > 0);
    buf_add(path, pattern, (size_t)(hole - pattern));
    buf_str(path, str_of(ask_escape(cli, str_of(cli->args[0]))));
    buf_str(path, str_of(hole + strlen("{id}")));
}

/* The query without what ask_list adds; the limit is 0 where all are wanted. */
static const char *list_path(struct cli *cli, const struct listing *listing, int64_t limit)
{
    const char *cursor = cli_text(cli, "cursor");
    struct buf path = {0};
    const char *text;
    char *first;

    put_path(cli, listing->path, &path);
    if (limit > 0)
        buf_fmt(&path, "&limit=%" PRId64, limit);
    put_filters(cli, listing, &path);
    if (cursor)
        buf_fmt(&path, "&cursor=%s", ask_escape(cli, str_of(cursor)));
    first = memchr(path.at, '&', path.len);
    if (first && !memchr(path.at, '?', path.len))
        *first = '?';
    text = arena_cstr(&cli->arena, buf_view(&path));
    buf_free(&path);
    return text;
}

static void print_table(struct cli *cli, const struct listing *listing, const struct json *list,
                        FILE *to)
{
    const struct list_column *columns[TABLE_COLUMNS_MAX];
    const char *titles[TABLE_COLUMNS_MAX];
    const struct json *item = json_first(list);
    struct list_view view = {.cli = cli, .now_ms = clock_wall_ms()};
    size_t count = 0;

    for (size_t i = 0; i < listing->column_count; i++) {
        if (listing->columns[i].wide && cli->output != CLI_WIDE)
            continue;
        assert(count < TABLE_COLUMNS_MAX);
        columns[count] = &listing->columns[i];
        titles[count++] = listing->columns[i].title;
    }
    table_init(&view.table, &cli->arena, titles, count);
    for (uint32_t i = 0; list && i < list->count; i++, item = json_next(item))
        for (size_t c = 0; c < count; c++) {
            if (columns[c]->put)
                columns[c]->put(&view, columns[c], item);
            else
                table_cell(&view.table, show_member(cli, item, columns[c]->member));
        }
    table_print(&view.table, to, cli->colour);
}

/* A line for each: the item as it came, or its id. */
static void print_lines(struct cli *cli, const struct listing *listing, const struct json *list,
                        FILE *to)
{
    const struct json *item = json_first(list);

    for (uint32_t i = 0; list && i < list->count; i++, item = json_next(item)) {
        struct str id = show_member(cli, item, listing->id);

        if (cli->output == CLI_JSONL)
            show_json(cli, json_raw(item), true, to);
        else if (listing->id_rest)
            show_name(cli,
                      arena_fmt(&cli->arena, STR_FMT " " STR_FMT, STR_ARG(id),
                                STR_ARG(show_member(cli, item, listing->id_rest))),
                      to);
        else
            show_name(cli, id, to);
    }
}

static int draw(struct live *live, FILE *to)
{
    const struct listing *listing = container_of(live, struct list_live, live)->listing;
    struct cli *cli = live->cli;
    int64_t limit = cli_num(cli, "limit", listing->limit);
    const char *path = list_path(cli, listing, limit);
    const struct json *json, *list, *cursor;
    struct str reply;
    int code = limit > 0 ? ask_get(cli, path, &json, &reply)
                         : ask_list(cli, path, listing->name, &json, &reply);

    if (code != CLI_OK)
        return code;
    list = json_get(json, listing->name);
    if (cli->output == CLI_JSON)
        show_json(cli, str_trim(reply), false, to);
    else if (cli->output == CLI_JSONL || cli->output == CLI_NAME)
        print_lines(cli, listing, list, to);
    else
        print_table(cli, listing, list, to);
    cursor = json_get(json, "next_cursor");
    if (cli->output != CLI_JSON && !json_is_null(cursor))
        fprintf(cli->err, "more: --cursor " STR_FMT "\n", STR_ARG(show_text(cli, cursor)));
    return CLI_OK;
}

int list_run(struct cli *cli, const struct listing *listing)
{
    int64_t watch_ms = cli_num(cli, "watch", -1);
    struct list_live list = {.live = {.cli = cli,
                                      .interval_ms = watch_ms < 0 ? LIVE_WATCH_MS : watch_ms,
                                      .once = !cli_given(cli, "watch"),
                                      .draw = draw},
                             .listing = listing};

    assert(listing->column_count > 0 && listing->id && listing->name);
    return live_run(&list.live);
}

void list_put_age(struct list_view *view, const struct list_column *column, const struct json *item)
{
    table_cell(&view->table, show_age(view->cli, item, column->member, view->now_ms));
}

void list_put_until(struct list_view *view, const struct list_column *column,
                    const struct json *item)
{
    table_cell(&view->table, show_until(view->cli, item, column->member, view->now_ms));
}

void list_put_state(struct list_view *view, const struct list_column *column,
                    const struct json *item)
{
    struct str state = show_member(view->cli, item, column->member);

    table_cell_colour(&view->table, state, show_state_colour(state));
}

void list_put_health(struct list_view *view, const struct list_column *column,
                     const struct json *item)
{
    struct str health = show_member(view->cli, item, column->member);

    table_cell_colour(&view->table, health, show_health_colour(health));
}

void list_put_count(struct list_view *view, const struct list_column *column,
                    const struct json *item)
{
    const struct json *value = json_get(item, column->member);

    if (json_type(value) == JSON_ARR)
        table_int(&view->table, value->count);
    else
        table_cell(&view->table, show_text(view->cli, value));
}
