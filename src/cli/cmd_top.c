/* `berth top`: how full each node is, what waits, how fast jobs are placed and why they are
 * refused. Reads the server's Prometheus metrics. Lines fit the terminal width; columns beyond 80
 * go to names and bars. */
#include "cli/cmd_top.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/cmd_status.h"
#include "cli/list.h"
#include "cli/request.h"
#include "cli/screen.h"

/* --- nodes, one line each --- */

enum {
    NAME_MIN = 12,
    NAME_MAX = 40,
    BAR_MIN = 8,
    BAR_MAX = 30,
    LEVEL_COLUMNS = 8,
    /* Everything but the name and the two bars: level, two percentages, slots, running, breakers,
     * seen, and the gaps. */
    FIXED_COLUMNS = 1 + LEVEL_COLUMNS + 1 + 5 + 1 + 5 + 1 + 7 + 1 + 4 + 1 + 3 + 1 + 5,
};

struct node {
    const struct json *key; /* the id as key; the server object follows it */
    struct str name;
    int64_t cpu, mem, slots; /* in 1/1000; -1: unknown */
    int64_t load;            /* the larger share of cores and slots */
    int64_t open;            /* breakers that are not closed */
    bool online;
};

static const struct {
    const char *name; /* of --sort */
    char key;
    size_t offset; /* in struct node, sorted in descending order; 0: only by name */
} sorts[] = {
    {"load", 'l', offsetof(struct node, load)},
    {"cpu", 'c', offsetof(struct node, cpu)},
    {"memory", 'm', offsetof(struct node, mem)},
    {"slots", 's', offsetof(struct node, slots)},
    {"name", 'n', 0},
};

const size_t top_sort_count = COUNT_OF(sorts);

static int compare(const void *a, const void *b, void *user)
{
    const struct top_view *view = user;
    const struct node *one = a, *two = b;
    size_t offset = sorts[view->sort].offset;
    int order = str_cmp(one->name, two->name);

    if (offset) {
        int64_t left = *(const int64_t *)((const char *)a + offset);
        int64_t right = *(const int64_t *)((const char *)b + offset);

        if (left == right)
            return order < 0 ? -1 : 1;
        order = left > right ? -1 : 1;
    }
    return (order < 0) != view->reverse ? -1 : 1;
}

static struct node *read_nodes(struct cli *cli, const struct top_view *view, uint32_t count)
{
    struct node *nodes = arena_array(&cli->arena, struct node, count + 1);
    const struct json *key = json_first(view->servers), *breaker;

    for (uint32_t i = 0; i < count; i++, key = json_next(key + 1)) {
        nodes[i] = (struct node){.key = key,
                                 .name = json_str(key, &cli->arena),
                                 .cpu = panel_cpu_permille(key + 1),
                                 .mem = panel_mem_permille(key + 1),
                                 .slots = panel_slots_permille(key + 1)};
        nodes[i].load = nodes[i].cpu > nodes[i].slots ? nodes[i].cpu : nodes[i].slots;
        for (breaker = json_items(view->breakers); breaker;
             breaker = json_after(view->breakers, breaker))
            nodes[i].open += str_eq(show_member(cli, breaker, "node_id"), nodes[i].name) &&
                             !json_str_is(json_get(breaker, "state"), "CLOSED");
        json_bool(json_get(key + 1, "online"), &nodes[i].online);
    }
    qsort_r(nodes, count, sizeof *nodes, compare, (void *)view);
    return nodes;
}

/* Cut or padded to this many columns; a cut ends in ~. */
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
    put_padded(sheet, node->online ? show_colour(level) : TABLE_RED,
               node->online ? (level.len ? level : STR("-")) : STR("offline"), LEVEL_COLUMNS);
    put_share(sheet, node->cpu, node->online, bar);
    put_share(sheet, node->mem, node->online, bar);
    sheet_fmt(sheet, room > 0 ? TABLE_GREEN : TABLE_RED, " %7s", slots.at);
    sheet_fmt(sheet, TABLE_PLAIN, " %4u", json_type(tasks) == JSON_ARR ? tasks->count : 0);
    sheet_fmt(sheet, node->open ? TABLE_RED : TABLE_DIM, " %3" PRId64, node->open);
    sheet_fmt(sheet, TABLE_DIM, " %5s", seen.len ? seen.at : "-");
}

void top_nodes(struct cli *cli, struct sheet *sheet, const struct top_view *view)
{
    uint32_t count = json_type(view->servers) == JSON_OBJ ? view->servers->count : 0;
    struct node *nodes = read_nodes(cli, view, count);
    uint32_t shown = count;
    size_t left = sheet->style.width > FIXED_COLUMNS ? sheet->style.width - FIXED_COLUMNS : 0;
    size_t over = left > NAME_MIN + 2 * BAR_MIN ? left - NAME_MIN - 2 * BAR_MIN : 0;
    size_t name, bar;

    assert(view->sort < COUNT_OF(sorts));
    if (view->lines > 0 && shown + 1 > view->lines)
        shown = view->lines > 2 ? (uint32_t)view->lines - 2 : 1;
    /* Columns beyond 80: half for the two bars, the rest for the name. */
    bar = BAR_MIN + over / 4 > BAR_MAX ? BAR_MAX : BAR_MIN + over / 4;
    name = left > 2 * bar + NAME_MIN ? left - 2 * bar : NAME_MIN;
    name = name > NAME_MAX ? NAME_MAX : name;
    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_BOLD, "%-*s %-*s %-*s %-*s %7s %4s %3s %5s", (int)name, "NODE",
              LEVEL_COLUMNS, "LEVEL", (int)bar + 5, "CPU", (int)bar + 5, "MEMORY", "SLOTS", "RUN",
              "BRK", "SEEN");
    for (uint32_t i = 0; i < shown && i < count; i++)
        put_node(cli, sheet, &nodes[i], name, bar, view->now_ms);
    if (shown < count) {
        sheet_line(sheet);
        sheet_fmt(sheet, TABLE_DIM, "and %u more", count - shown);
    }
}

/* --- readings of /metrics --- */

/* `name{labels} value`; nothing may follow the value. */
static bool read_row(struct arena *arena, struct str line, struct scrape_row *ret_row)
{
    const char *end;
    char *rest;
    struct str value = line;
    const char *open = line.len ? memchr(line.at, '{', line.len) : NULL;
    struct scrape_row row = {.labels = STR("")};

    if (line.len == 0 || line.at[0] == '#')
        return false;
    if (open) {
        end = memrchr(line.at, '}', line.len);
        if (!end || end < open)
            return false;
        row.name = (struct str){.at = line.at, .len = (size_t)(open - line.at)};
        row.labels = (struct str){.at = open + 1, .len = (size_t)(end - open - 1)};
        value = (struct str){.at = end + 1, .len = line.len - (size_t)(end + 1 - line.at)};
    } else {
        row.name = str_cut(&value, ' ');
    }
    value = str_trim(value);
    if (row.name.len == 0 || value.len == 0)
        return false;
    end = arena_cstr(arena, value);
    row.value = strtod(end, &rest);
    if (*rest)
        return false;
    *ret_row = row;
    return true;
}

void scrape_read(struct scrape *scrape, struct str text, int64_t now_us)
{
    struct str rest;
    size_t lines = 1;

    arena_reset(&scrape->arena);
    for (size_t i = 0; i < text.len; i++)
        lines += text.at[i] == '\n';
    rest = arena_str(&scrape->arena, text);
    scrape->rows = arena_array(&scrape->arena, struct scrape_row, lines);
    scrape->count = 0;
    scrape->at_us = now_us;
    while (rest.at)
        scrape->count +=
            read_row(&scrape->arena, str_cut(&rest, '\n'), &scrape->rows[scrape->count]);
    assert(scrape->count <= lines);
}

void scrape_done(struct scrape *scrape)
{
    arena_free(&scrape->arena);
    *scrape = (struct scrape){0};
}

const struct scrape_row *scrape_find(const struct scrape *scrape, struct str name,
                                     struct str labels)
{
    for (size_t i = 0; i < scrape->count; i++)
        if (str_eq(scrape->rows[i].name, name) && str_eq(scrape->rows[i].labels, labels))
            return &scrape->rows[i];
    return NULL;
}

struct str scrape_label(struct str labels, const char *name)
{
    while (labels.at && labels.len > 0) {
        struct str value = str_cut(&labels, ','), key = str_cut(&value, '=');

        if (str_is(key, name) && value.len >= 2)
            return (struct str){.at = value.at + 1, .len = value.len - 2};
    }
    return STR("");
}

bool scrape_rate(const struct scrape *now, const struct scrape *before,
                 const struct scrape_row *row, double *ret_per_s)
{
    const struct scrape_row *then = scrape_find(before, row->name, row->labels);
    double earlier = then ? then->value : 0;

    if (before->count == 0 || now->at_us <= before->at_us || row->value < earlier)
        return false;
    *ret_per_s = (row->value - earlier) * 1e6 / (double)(now->at_us - before->at_us);
    return true;
}

/* --- the command --- */

enum { TOP_MS = 1000, SLOTS_BAR = 20 };

struct top {
    struct screen live;
    struct scrape now, before;
    struct top_view view; /* keys change its sort order */
};

/* Reads the metrics; keeps the previous reading for the rates. */
static int read_metrics(struct top *top)
{
    struct request request = {.method = "GET", .path = "/metrics", .text = true};
    struct scrape older = top->before;
    int code;

    if (top->before.at_us && clock_mono_us() - top->now.at_us < TOP_MS * 1000 / 2)
        return CLI_OK; /* a key was pressed: rates over such a short time mean nothing */
    code = request_run(top->live.cli, &request);
    if (code != CLI_OK)
        return code;
    top->before = top->now;
    top->now = older;
    scrape_read(&top->now, request.reply, clock_mono_us());
    return CLI_OK;
}

/* The rates on one line: a counter's, by label, without the unremarkable values. */
struct rates {
    const char *title;
    const char *metric;
    const char *label;
    const char *only;      /* only this value; NULL: all */
    const char *except[2]; /* except these; unused with `only` */
    enum table_colour colour;
};

static const struct rates rate_lines[] = {
    {"dispatched", "berth_dispatch_total", "outcome", "PLACED", {NULL}, TABLE_GREEN},
    {"refused", "berth_dispatch_total", "outcome", NULL, {"PLACED", "WAITS"}, TABLE_YELLOW},
    {"nodes said", "berth_reserve_total", "result", NULL, {"OK", "RESV_EXISTS"}, TABLE_YELLOW},
    {"ended", "berth_jobs_total", "state", NULL, {NULL}, TABLE_PLAIN},
};

/* Leaves out reasons that did not occur between the two readings, to keep the line short. */
static void put_rates(struct top *top, struct sheet *sheet, const struct rates *rates)
{
    size_t shown = 0;

    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_DIM, "%-11s", rates->title);
    for (size_t i = 0; i < top->now.count; i++) {
        const struct scrape_row *row = &top->now.rows[i];
        struct str label = scrape_label(row->labels, rates->label);
        bool wanted = !rates->only || str_is(label, rates->only);
        double per_s = 0;

        for (size_t k = 0; k < COUNT_OF(rates->except); k++)
            wanted = wanted && !(rates->except[k] && str_is(label, rates->except[k]));
        if (!str_is(row->name, rates->metric) || !wanted)
            continue;
        if (!rates->only && scrape_rate(&top->now, &top->before, row, &per_s) && per_s <= 0)
            continue;
        if (shown++ > 0)
            sheet_put(sheet, TABLE_PLAIN, STR(", "));
        sheet_put(sheet, rates->colour, label);
        if (scrape_rate(&top->now, &top->before, row, &per_s))
            sheet_fmt(sheet, TABLE_PLAIN, " %.1f/s", per_s);
        else
            sheet_put(sheet, TABLE_PLAIN, STR(" -"));
    }
    if (shown == 0)
        sheet_put(sheet, TABLE_DIM, STR("none"));
}

/* One of the server's gauges; 0 if missing. */
static double gauge(const struct top *top, const char *name)
{
    const struct scrape_row *row = scrape_find(&top->now, str_of(name), STR(""));

    return row ? row->value : 0;
}

static void put_head(struct top *top, struct sheet *sheet, const struct json *status)
{
    struct str overall = show_member(top->live.cli, status, "cluster_status");
    int64_t all = show_int(status, "total_slots", 0);
    int64_t room = show_int(status, "available_slots", 0);
    double waiting = gauge(top, "berth_queue_depth"), open = gauge(top, "berth_breakers_open");
    char iso[CLOCK_ISO_BYTES];

    clock_iso(clock_wall_ms(), iso);
    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_BOLD, "berth top %.8s UTC", iso + 11);
    sheet_put(sheet, TABLE_PLAIN, STR("  cluster "));
    sheet_put(sheet, panel_status_colour(overall), overall);
    sheet_put(sheet, TABLE_PLAIN, STR("  nodes "));
    for (size_t i = 0, shown = 0; i < top->now.count; i++) {
        const struct scrape_row *row = &top->now.rows[i];
        struct str health = scrape_label(row->labels, "health");

        if (str_is(row->name, "berth_nodes") && row->value > 0)
            sheet_fmt(sheet, show_colour(health), "%s%.0f " STR_FMT, shown++ ? ", " : "",
                      row->value, STR_ARG(health));
    }
    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_DIM, "%-11s", "slots");
    sheet_bar(sheet, room > 0 ? TABLE_GREEN : TABLE_RED, SLOTS_BAR,
              all > 0 ? (all - room) * 1000 / all : 0);
    sheet_fmt(sheet, room > 0 ? TABLE_PLAIN : TABLE_RED, " %" PRId64 " of %" PRId64 " free", room,
              all);
    sheet_fmt(sheet, waiting > 0 ? TABLE_YELLOW : TABLE_PLAIN, "   %.0f waiting", waiting);
    if (waiting > 0)
        sheet_fmt(sheet, TABLE_DIM, " (oldest %.0fs)", gauge(top, "berth_queue_oldest_seconds"));
    sheet_fmt(sheet, open > 0 ? TABLE_RED : TABLE_PLAIN, "   %.0f breakers open", open);
}

static bool on_key(struct screen *live, char key)
{
    struct top *top = container_of(live, struct top, live);

    for (size_t i = 0; i < COUNT_OF(sorts); i++)
        if (sorts[i].key == key) {
            top->view.sort = i;
            return true;
        }
    top->view.reverse ^= key == 'r';
    return key == 'r';
}

static int draw_top(struct screen *live, FILE *to)
{
    struct top *top = container_of(live, struct top, live);
    struct cli *cli = live->cli;
    struct sheet_style style = {
        .width = screen_columns(cli), .colour = cli->colour, .unicode = screen_unicode(cli)};
    struct request breakers = {.method = "GET", .path = "/v1/breakers?limit=1000"};
    const struct json *status;
    struct sheet sheet;
    int code = read_metrics(top);

    if (code == CLI_OK && live->once) { /* a single picture also needs two readings */
        poll(NULL, 0, TOP_MS);
        code = read_metrics(top);
    }
    if (code == CLI_OK)
        code = request_get(cli, "/v1/cluster/status?brief=1", &status);
    if (code == CLI_OK)
        code = request_run(cli, &breakers);
    if (code != CLI_OK)
        return code;
    top->view.servers = json_get(status, "servers");
    top->view.breakers = json_get(breakers.json, "breakers");
    top->view.now_ms = clock_wall_ms();
    sheet_init(&sheet, &cli->arena, style);
    put_head(top, &sheet, status);
    for (size_t i = 0; i < COUNT_OF(rate_lines); i++)
        put_rates(top, &sheet, &rate_lines[i]);
    top->view.lines = 0;
    if (live->on_screen && screen_rows(cli) > sheet.count + 4)
        top->view.lines = screen_rows(cli) - sheet.count - 2; /* two for keys and errors */
    top_nodes(cli, &sheet, &top->view);
    if (live->on_screen) { /* keys can be pressed */
        sheet_line(&sheet);
        sheet_put(&sheet, TABLE_DIM, STR("q quit  r reverse  sort:"));
        for (size_t i = 0; i < COUNT_OF(sorts); i++)
            sheet_fmt(&sheet, i == top->view.sort ? TABLE_BOLD : TABLE_DIM, " %c %s", sorts[i].key,
                      sorts[i].name);
    }
    sheet_print(&sheet, to, false);
    return CLI_OK;
}

/* Where no key can be pressed one picture is enough. */
static int cmd_top(struct cli *cli)
{
    struct top top = {.live = {.cli = cli,
                               .interval_ms = TOP_MS,
                               .once = cli_given(cli, "once") || !screen_is_terminal(cli),
                               .draw = draw_top,
                               .key = on_key},
                      .view = {.reverse = cli_given(cli, "reverse")}};
    const char *name = cli_text(cli, "sort");
    int code;

    assert(cli->arg_count == 0);
    while (name && top.view.sort < COUNT_OF(sorts) && strcmp(sorts[top.view.sort].name, name) != 0)
        top.view.sort++;
    if (top.view.sort == COUNT_OF(sorts))
        return cli_misuse(cli, "--sort is load, cpu, memory, slots or name, not \"%s\"", name);
    if (cli->json)
        return cli_misuse(cli, "top draws pictures; `berth status -o json` has the figures");
    code = screen_run(&top.live);
    scrape_done(&top.now);
    scrape_done(&top.before);
    return code;
}

static const struct flag top_flags[] = {
    FLAG("once", 0, SWITCH, NULL, "one picture, with rates over one second"),
    FLAG("sort", 0, TEXT, "BY",
         "load (default: the larger share of cores and slots), cpu, memory, slots, name",
         .values = "load cpu memory slots name"),
    FLAG("reverse", 'r', SWITCH, NULL, "the other way round"),
};

static const struct command rows[] = {
    {.noun = "top",
     .flags = FLAGS(top_flags),
     .help = "nodes by load, the queue, dispatches and refusals, live",
     .detail =
         "A line for each node: its level, CPU and memory, slots in use, running tasks, open\n"
         "breakers, when it was last heard of. Keys: l c m s n sort, r turns that round, q ends.\n"
         "Without a terminal it draws one picture.",
     .examples = "berth top\n"
                 "berth top --once --sort memory",
     .run = cmd_top},
};

const struct command_set commands_top = COMMANDS(rows);
