/* Fetches lists by their row and prints them in the requested format; turns members of the server's
 * replies into cells and lines. */
#include "cli/list.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "cli/request.h"
#include "cli/screen.h"

/* --- values --- */

#define YEAR_2020_MS INT64_C(1577836800000)

/* States of jobs, health of nodes, levels of machines: the names do not overlap. */
static const struct {
    const char *word;
    enum table_colour colour;
} colours[] = {
    {"DONE", TABLE_GREEN},      {"FAILED", TABLE_RED},  {"RETRYING", TABLE_YELLOW},
    {"NEW", TABLE_DIM},         {"ready", TABLE_GREEN}, {"degraded", TABLE_YELLOW},
    {"draining", TABLE_YELLOW}, {"offline", TABLE_RED}, {"normal", TABLE_GREEN},
    {"warning", TABLE_YELLOW},  {"danger", TABLE_RED},  {"critical", TABLE_RED},
};

enum table_colour show_colour(struct str word)
{
    for (size_t i = 0; i < COUNT_OF(colours); i++)
        if (str_is(word, colours[i].word))
            return colours[i].colour;
    return TABLE_PLAIN;
}

/* ["en","zh"] is "en,zh"; a pair inside a list is "en:zh". */
static struct str join(struct cli *cli, const struct json *list, char sep)
{
    const struct json *first = json_items(list);
    struct buf text = {0};
    struct str joined;

    assert(json_type(list) == JSON_ARR);
    for (const struct json *item = first; item; item = json_after(list, item)) {
        if (item != first)
            buf_char(&text, sep);
        if (json_type(item) == JSON_ARR && sep == ',')
            buf_str(&text, join(cli, item, ':'));
        else
            buf_str(&text,
                    json_type(item) == JSON_STR ? json_str(item, &cli->arena) : json_raw(item));
    }
    joined = arena_str(&cli->arena, buf_view(&text));
    buf_free(&text);
    return joined;
}

struct str show_text(struct cli *cli, const struct json *value)
{
    struct str text = json_raw(value);

    if (json_is_null(value) || (json_type(value) == JSON_ARR && value->count == 0))
        text = STR("");
    else if (json_type(value) == JSON_STR)
        text = json_str(value, &cli->arena);
    else if (json_type(value) == JSON_ARR && json_type(json_first(value)) != JSON_OBJ)
        text = join(cli, value, ',');
    return table_harmless(&cli->arena, text);
}

struct str show_member(struct cli *cli, const struct json *obj, const char *name)
{
    return show_text(cli, json_get(obj, name));
}

int64_t show_int(const struct json *obj, const char *name, int64_t fallback)
{
    int64_t value;

    return json_int(json_get(obj, name), &value) ? value : fallback;
}

static struct str age_text(struct cli *cli, int64_t ms)
{
    static const struct {
        int64_t ms;
        char unit;
    } units[] = {{86400000, 'd'}, {3600000, 'h'}, {60000, 'm'}, {1000, 's'}};

    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (ms >= 2 * units[i].ms || (units[i].unit == 's' && ms >= 1000))
            return arena_fmt(&cli->arena, "%" PRId64 "%c", ms / units[i].ms, units[i].unit);
    return arena_fmt(&cli->arena, "%" PRId64 "ms",
                     ms > 0 ? ms : 0); /* the clocks may differ slightly */
}

struct str show_age(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms)
{
    int64_t at_ms = show_int(obj, name, 0);

    return at_ms > 0 ? age_text(cli, now_ms - at_ms) : STR("");
}

struct str show_until(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms)
{
    int64_t at_ms = show_int(obj, name, 0);

    return at_ms > now_ms ? age_text(cli, at_ms - now_ms) : STR("");
}

void show_object(struct cli *cli, const struct json *obj)
{
    static const char *const titles[] = {"FIELD", "VALUE"};
    int64_t now_ms = clock_wall_ms(), value;
    struct table table;

    assert(json_type(obj) == JSON_OBJ);
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (const struct json *key = json_keys(obj); key; key = json_after(obj, key)) {
        struct str name = json_str(key, &cli->arena);

        table_cell(&table, name);
        /* "updated_ms" is a point in time, "timeout_ms" is not: a wall time is larger than any
         * duration. */
        if (json_int(key + 1, &value) && value > YEAR_2020_MS && name.len > 3 &&
            str_is(str_from(name, name.len - 3), "_ms"))
            table_cell(&table, arena_fmt(&cli->arena, "%" PRId64 " (" STR_FMT " ago)", value,
                                         STR_ARG(age_text(cli, now_ms - value))));
        else
            table_cell(&table, show_text(cli, key + 1));
    }
    table_print(&table, cli->out, cli->colour);
}

struct str show_attempt(struct cli *cli, const struct json *attempt)
{
    struct str node = show_member(cli, attempt, "node_id");
    struct str reason = show_member(cli, attempt, "reason");

    return arena_fmt(&cli->arena, "attempt " STR_FMT "%s" STR_FMT ": " STR_FMT "%s" STR_FMT,
                     STR_ARG(show_member(cli, attempt, "attempt_id")), node.len ? " on " : "",
                     STR_ARG(node), STR_ARG(show_member(cli, attempt, "outcome")),
                     reason.len ? ", " : "", STR_ARG(reason));
}

struct str show_counts(struct cli *cli, const struct json *map)
{
    struct str text = STR("");

    for (const struct json *key = json_keys(map); key; key = json_after(map, key))
        text = arena_fmt(&cli->arena, STR_FMT "%s" STR_FMT " " STR_FMT, STR_ARG(text),
                         text.len ? ", " : "", STR_ARG(show_text(cli, key)),
                         STR_ARG(show_text(cli, key + 1)));
    return text;
}

void show_name(struct cli *cli, struct str id, FILE *to)
{
    fprintf(to, STR_FMT "\n", STR_ARG(table_harmless(&cli->arena, id)));
}

void show_json(struct cli *cli, struct str json, bool one_line, FILE *to)
{
    struct buf text = {0};

    for (size_t i = 0; i < json.len; i++) {
        unsigned char c = (unsigned char)json.at[i];
        unsigned char next = i + 1 < json.len ? (unsigned char)json.at[i + 1] : 0;

        if (c == 0x7f)
            buf_str(&text, STR("\\u007f"));
        else if (c == 0xc2 && next >= 0x80 && next < 0xa0) { /* U+0080 to U+009F */
            buf_fmt(&text, "\\u%04x", next);
            i++;
        } else
            buf_char(&text, (char)c);
    }
    if (one_line)
        json_one_line(text.at, text.len);
    fprintf(to, STR_FMT "\n", STR_ARG(buf_view(&text)));
    buf_free(&text);
}

void show_raw(struct cli *cli, const struct json *json)
{
    show_json(cli, json_raw(json), false, cli->out);
}

/* --- lists --- */

struct list_live {
    struct screen live;
    const struct listing *listing;
};

/* The query without what request_list adds; limit is 0 to fetch all. */
static const char *list_path(struct cli *cli, const struct listing *listing, int64_t limit)
{
    const struct flag_set *flags = cli->command->flags;
    const char *cursor = cli_text(cli, "cursor");
    struct buf path = {0};
    const char *text;
    char *first;

    buf_str(&path, str_of(answer_path(cli, listing->path)));
    if (limit > 0)
        buf_fmt(&path, "&limit=%" PRId64, limit);
    for (size_t i = 0; flags && i < flags->count; i++) {
        const struct flag *flag = &flags->flags[i];
        struct str *values;
        size_t count;

        if (!flag->param || !cli_given(cli, flag->name))
            continue;
        count = cli_list(cli, flag->name, &values);
        buf_fmt(&path, "&%s=", flag->param);
        for (size_t v = 0; v < count; v++)
            buf_fmt(&path, "%s%s", v ? "," : "", request_escape(cli, values[v]));
    }
    if (cursor)
        buf_fmt(&path, "&cursor=%s", request_escape(cli, str_of(cursor)));
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
    for (const struct json *item = json_items(list); item; item = json_after(list, item))
        for (size_t c = 0; c < count; c++) {
            if (columns[c]->put)
                columns[c]->put(&view, columns[c], item);
            else
                table_cell(&view.table, show_member(cli, item, columns[c]->member));
        }
    table_print(&view.table, to, cli->colour);
}

static int draw(struct screen *live, FILE *to)
{
    const struct listing *listing = container_of(live, struct list_live, live)->listing;
    struct cli *cli = live->cli;
    int64_t limit = cli_num(cli, "limit", listing->limit);
    const char *path = list_path(cli, listing, limit);
    const struct json *json, *list, *item, *cursor;
    int code =
        limit > 0 ? request_get(cli, path, &json) : request_list(cli, path, listing->name, &json);

    if (code != CLI_OK)
        return code;
    list = json_get(json, listing->name);
    if (cli->output == CLI_JSON)
        show_json(cli, json_raw(json), false, to);
    else if (cli->output != CLI_JSONL && cli->output != CLI_NAME)
        print_table(cli, listing, list, to);
    else
        for (item = json_items(list); item; item = json_after(list, item)) {
            struct str id = show_member(cli, item, listing->id);

            if (listing->id_rest)
                id = arena_fmt(&cli->arena, STR_FMT " " STR_FMT, STR_ARG(id),
                               STR_ARG(show_member(cli, item, listing->id_rest)));
            if (cli->output == CLI_JSONL)
                show_json(cli, json_raw(item), true, to);
            else
                show_name(cli, id, to);
        }
    cursor = json_get(json, "next_cursor");
    if (cli->output != CLI_JSON && !json_is_null(cursor))
        fprintf(cli->err, "more: --cursor " STR_FMT "\n", STR_ARG(show_text(cli, cursor)));
    return CLI_OK;
}

int list_run(struct cli *cli, const struct listing *listing)
{
    int64_t watch_ms = cli_num(cli, "watch", -1);
    struct list_live list = {.live = {.cli = cli,
                                      .interval_ms = watch_ms < 0 ? SCREEN_WATCH_MS : watch_ms,
                                      .once = !cli_given(cli, "watch"),
                                      .draw = draw},
                             .listing = listing};

    assert(listing->column_count > 0 && listing->id && listing->name);
    return screen_run(&list.live);
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

void list_put_colour(struct list_view *view, const struct list_column *column,
                     const struct json *item)
{
    struct str word = show_member(view->cli, item, column->member);

    table_cell_colour(&view->table, word, show_colour(word));
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
