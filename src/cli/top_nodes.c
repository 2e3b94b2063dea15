/* Lines that fit the width there is: what 80 columns leave over goes to names and bars. */
#include "cli/top_nodes.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/panel.h"
#include "cli/show.h"

enum {
    NAME_MIN = 12,
    NAME_MAX = 40,
    BAR_MIN = 8,
    BAR_MAX = 30,
    LEVEL_COLUMNS = 8,
    /* Besides the name and the two bars: level, two percents, slots, running, breakers, seen, and
     * the gaps between them. */
    FIXED_COLUMNS = 1 + LEVEL_COLUMNS + 1 + 5 + 1 + 5 + 1 + 7 + 1 + 4 + 1 + 3 + 1 + 5,
};

struct node {
    const struct json *key; /* the id; the server stands behind it */
    struct str name;
    int64_t cpu, mem, slots; /* in 1/1000; -1: not known */
    int64_t open;            /* breakers that are not closed */
    bool online;
};

static int64_t most(const struct node *node)
{
    return node->cpu > node->slots ? node->cpu : node->slots;
}

static int64_t by_load(const struct node *a, const struct node *b)
{
    return most(b) - most(a);
}

static int64_t by_cpu(const struct node *a, const struct node *b)
{
    return b->cpu - a->cpu;
}

static int64_t by_memory(const struct node *a, const struct node *b)
{
    return b->mem - a->mem;
}

static int64_t by_slots(const struct node *a, const struct node *b)
{
    return b->slots - a->slots;
}

static int64_t by_name(const struct node *a, const struct node *b)
{
    return str_cmp(a->name, b->name);
}

static const struct {
    struct top_sort sort;
    int64_t (*compare)(const struct node *a, const struct node *b);
} sorts[] = {
    {{"load", 'l', "the larger share of cores and slots"}, by_load},
    {{"cpu", 'c', "CPU"}, by_cpu},
    {{"memory", 'm', "memory"}, by_memory},
    {{"slots", 's', "slots"}, by_slots},
    {{"name", 'n', "name"}, by_name},
};

const struct top_sort *top_sort_at(size_t index)
{
    return index < COUNT_OF(sorts) ? &sorts[index].sort : NULL;
}

static int compare(const void *a, const void *b, void *user)
{
    const struct top_view *view = user;
    const struct node *one = a, *two = b;
    int64_t order = sorts[view->sort].compare(one, two);

    if (order == 0)
        return by_name(one, two) < 0 ? -1 : 1;
    return (order < 0) != view->reverse ? -1 : 1;
}

static int64_t open_breakers(struct cli *cli, const struct json *list, struct str node_id)
{
    const struct json *breaker = json_first(list);
    int64_t count = 0;

    for (uint32_t i = 0; list && i < list->count; i++, breaker = json_next(breaker))
        count += str_eq(show_member(cli, breaker, "node_id"), node_id) &&
                 !json_str_is(json_get(breaker, "state"), "CLOSED");
    return count;
}

static struct node *read_nodes(struct cli *cli, const struct top_view *view, uint32_t count)
{
    struct node *nodes = arena_array(&cli->arena, struct node, count + 1);
    const struct json *key = json_first(view->servers);

    for (uint32_t i = 0; i < count; i++, key = json_next(key + 1)) {
        nodes[i] = (struct node){.key = key,
                                 .name = json_str(key, &cli->arena),
                                 .cpu = panel_cpu_permille(key + 1),
                                 .mem = panel_mem_permille(key + 1),
                                 .slots = panel_slots_permille(key + 1)};
        nodes[i].open = open_breakers(cli, view->breakers, nodes[i].name);
        json_bool(json_get(key + 1, "online"), &nodes[i].online);
    }
    qsort_r(nodes, count, sizeof *nodes, compare, (void *)view);
    return nodes;
}

/* What 80 columns leave over: half to the two bars, the rest to the name. */
static void measure(size_t width, size_t *ret_name, size_t *ret_bar)
{
    size_t left = width > FIXED_COLUMNS ? width - FIXED_COLUMNS : 0;
    size_t bar =
        left > NAME_MIN + 2 * BAR_MIN ? BAR_MIN + (left - NAME_MIN - 2 * BAR_MIN) / 4 : BAR_MIN;
    size_t name;

    bar = bar > BAR_MAX ? BAR_MAX : bar;
    name = left > 2 * bar + NAME_MIN ? left - 2 * bar : NAME_MIN;
    *ret_name = name > NAME_MAX ? NAME_MAX : name;
    *ret_bar = bar;
}

/* Cut or filled up to so many columns; a cut can be seen. */
static void put_padded(struct sheet *sheet, enum table_colour colour, struct str text,
                       size_t columns)
{
    struct str safe = table_harmless(sheet->arena, text);
    size_t width = table_width(safe);

    while (width > columns) {
        size_t cut = 1;

        while (cut < safe.len && (safe.at[safe.len - cut] & 0xc0) == 0x80)
            cut++; /* a character has up to four bytes */
        safe.len -= cut;
        width = table_width(safe) + 1;
        if (width <= columns)
            safe = arena_fmt(sheet->arena, STR_FMT "~", STR_ARG(safe));
    }
    sheet_put(sheet, colour, safe);
    sheet_fmt(sheet, TABLE_PLAIN, "%*s", (int)(columns - table_width(safe)), "");
}

static void put_share(struct sheet *sheet, int64_t permille, bool online, size_t bar)
{
    enum table_colour colour = online ? panel_share_colour(permille) : TABLE_DIM;

    sheet_put(sheet, TABLE_PLAIN, STR(" "));
    if (permille < 0) {
        sheet_fmt(sheet, TABLE_DIM, "%*s", (int)bar + 5, "-");
        return;
    }
    sheet_bar(sheet, colour, sheet->style.unicode ? bar : bar - 2, permille); /* [ and ] */
    sheet_fmt(sheet, colour, "%4" PRId64 "%%", (permille + 5) / 10);
}

static void put_node(struct cli *cli, struct sheet *sheet, const struct node *node, size_t name,
                     size_t bar, int64_t now_ms)
{
    const struct json *server = node->key + 1, *tasks = json_get(server, "tasks");
    struct str level = show_member(cli, server, "level");
    int64_t room = show_int(server, "slots_available", 0);
    struct str seen = show_age(cli, server, "last_seen_ms", now_ms);
    struct str slots =
        arena_fmt(&cli->arena, "%" PRId64 "/%" PRId64, show_int(server, "slots_in_use", 0),
                  show_int(server, "slots_max", 0));

    sheet_line(sheet);
    put_padded(sheet, node->online ? TABLE_PLAIN : TABLE_DIM, node->name, name);
    sheet_put(sheet, TABLE_PLAIN, STR(" "));
    put_padded(sheet, node->online ? panel_level_colour(level) : TABLE_RED,
               node->online ? (level.len ? level : STR("-")) : STR("offline"), LEVEL_COLUMNS);
    put_share(sheet, node->cpu, node->online, bar);
    put_share(sheet, node->mem, node->online, bar);
    sheet_fmt(sheet, room > 0 ? TABLE_GREEN : TABLE_RED, " %7s", slots.at);
    sheet_fmt(sheet, TABLE_PLAIN, " %4u", json_type(tasks) == JSON_ARR ? tasks->count : 0);
    sheet_fmt(sheet, node->open ? TABLE_RED : TABLE_DIM, " %3" PRId64, node->open);
    sheet_fmt(sheet, TABLE_DIM, " %5s", seen.len ? seen.at : "-");
}

static void put_title(struct sheet *sheet, size_t name, size_t bar)
{
    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_BOLD, "%-*s %-*s %-*s %-*s %7s %4s %3s %5s", (int)name, "NODE",
              LEVEL_COLUMNS, "LEVEL", (int)bar + 5, "CPU", (int)bar + 5, "MEMORY", "SLOTS", "RUN",
              "BRK", "SEEN");
}

void top_nodes(struct cli *cli, struct sheet *sheet, const struct top_view *view)
{
    uint32_t count = json_type(view->servers) == JSON_OBJ ? view->servers->count : 0;
    struct node *nodes = read_nodes(cli, view, count);
    uint32_t shown = count;
    size_t name, bar;

    assert(view->sort < COUNT_OF(sorts));
    if (view->lines > 0 && shown + 1 > view->lines)
        shown = view->lines > 2 ? (uint32_t)view->lines - 2 : 1;
    measure(sheet->style.width, &name, &bar);
    put_title(sheet, name, bar);
    for (uint32_t i = 0; i < shown && i < count; i++)
        put_node(cli, sheet, &nodes[i], name, bar, view->now_ms);
    if (shown < count) {
        sheet_line(sheet);
        sheet_fmt(sheet, TABLE_DIM, "and %u more", count - shown);
    }
}
