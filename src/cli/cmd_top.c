/* `berth top`: who is how full, what waits, how fast work is placed and why it is refused. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cli/panel.h"
#include "cli/request.h"
#include "cli/scrape.h"
#include "cli/screen.h"
#include "cli/sheet.h"
#include "cli/show.h"
#include "cli/top_nodes.h"

enum { TOP_MS = 1000, SLOTS_BAR = 20 };

struct top {
    struct live live;
    struct scrape now, before;
    struct top_view view; /* sorting is what keys change */
};

/* Both readings: the older one moves aside. */
static int read_metrics(struct top *top)
{
    struct ask ask = {.method = "GET", .path = "/metrics", .text = true};
    struct scrape older = top->before;
    int code;

    if (top->before.at_us && clock_mono_us() - top->now.at_us < TOP_MS * 1000 / 2)
        return CLI_OK; /* a key was pressed: rates of a moment tell nothing */
    code = ask_run(top->live.cli, &ask);
    if (code != CLI_OK)
        return code;
    top->before = top->now;
    top->now = older;
    scrape_read(&top->now, ask.reply, clock_mono_us());
    return CLI_OK;
}

/* A single picture needs two readings as well. */
static int read_both(struct top *top)
{
    struct timespec apart = {.tv_sec = TOP_MS / 1000};
    int code = read_metrics(top);

    if (code == CLI_OK && top->live.once) {
        nanosleep(&apart, NULL);
        code = read_metrics(top);
    }
    return code;
}

static void put_rate(struct top *top, struct sheet *sheet, const struct scrape_row *row)
{
    double per_s;

    if (scrape_rate(&top->now, &top->before, row, &per_s))
        sheet_fmt(sheet, TABLE_PLAIN, " %.1f/s", per_s);
    else
        sheet_put(sheet, TABLE_PLAIN, STR(" -"));
}

/* What one line shows: the rates of a counter by its label, but for the answers that are no news.
 */
struct rates {
    const char *title;
    const char *metric;
    const char *label;
    const char *only;     /* this one alone; NULL: all, */
    const char *other[2]; /* but these */
    enum table_colour colour;
};

static const struct rates rate_lines[] = {
    {"dispatched", "berth_dispatch_total", "outcome", "PLACED", {NULL}, TABLE_GREEN},
    {"refused", "berth_dispatch_total", "outcome", NULL, {"PLACED", "WAITS"}, TABLE_YELLOW},
    {"nodes said", "berth_reserve_total", "result", NULL, {"OK", "RESV_EXISTS"}, TABLE_YELLOW},
    {"ended", "berth_jobs_total", "state", NULL, {NULL}, TABLE_PLAIN},
};

static bool wanted(const struct rates *rates, struct str label)
{
    if (rates->only)
        return str_is(label, rates->only);
    for (size_t i = 0; i < COUNT_OF(rates->other); i++)
        if (rates->other[i] && str_is(label, rates->other[i]))
            return false;
    return true;
}

/* Reasons that did not come up between the two readings are left out, or nobody could read it. */
static void put_rates(struct top *top, struct sheet *sheet, const struct rates *rates)
{
    size_t shown = 0;

    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_DIM, "%-11s", rates->title);
    for (size_t i = 0; i < top->now.count; i++) {
        const struct scrape_row *row = &top->now.rows[i];
        struct str label = scrape_label(row->labels, rates->label);
        double per_s = 0;

        if (!str_is(row->name, rates->metric) || !wanted(rates, label))
            continue;
        if (!rates->only && scrape_rate(&top->now, &top->before, row, &per_s) && per_s <= 0)
            continue;
        if (shown++ > 0)
            sheet_put(sheet, TABLE_PLAIN, STR(", "));
        sheet_put(sheet, rates->colour, label);
        put_rate(top, sheet, row);
    }
    if (shown == 0)
        sheet_put(sheet, TABLE_DIM, STR("none"));
}

static void put_nodes(struct top *top, struct sheet *sheet)
{
    for (size_t i = 0, shown = 0; i < top->now.count; i++) {
        const struct scrape_row *row = &top->now.rows[i];
        struct str health = scrape_label(row->labels, "health");

        if (!str_is(row->name, "berth_nodes") || row->value <= 0)
            continue;
        sheet_fmt(sheet, show_health_colour(health), "%s%.0f " STR_FMT, shown++ ? ", " : "",
                  row->value, STR_ARG(health));
    }
}

/* A gauge of the server's; 0 when it has none. */
static double gauge(const struct top *top, const char *name)
{
    const struct scrape_row *row = scrape_find(&top->now, str_of(name), STR(""));

    return row ? row->value : 0;
}

static void put_head(struct top *top, struct sheet *sheet, const struct json *status)
{
    struct str word = show_member(top->live.cli, status, "cluster_status");
    int64_t all = show_int(status, "total_slots", 0);
    int64_t room = show_int(status, "available_slots", 0);
    double waiting = gauge(top, "berth_queue_depth"), open = gauge(top, "berth_breakers_open");
    char iso[CLOCK_ISO_BYTES];

    clock_iso(clock_wall_ms(), iso);
    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_BOLD, "berth top %.8s UTC", iso + 11);
    sheet_put(sheet, TABLE_PLAIN, STR("  cluster "));
    sheet_put(sheet, panel_status_colour(word), word);
    sheet_put(sheet, TABLE_PLAIN, STR("  nodes "));
    put_nodes(top, sheet);
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

/* The last line: what keys there are. Only where somebody can press them. */
static void put_keys(const struct top *top, struct sheet *sheet)
{
    const struct top_sort *sort;

    sheet_line(sheet);
    sheet_put(sheet, TABLE_DIM, STR("q quit  r reverse  sort:"));
    for (size_t i = 0; (sort = top_sort_at(i)) != NULL; i++)
        sheet_fmt(sheet, i == top->view.sort ? TABLE_BOLD : TABLE_DIM, " %c %s", sort->key,
                  sort->name);
}

static bool on_key(struct live *live, char key)
{
    struct top *top = container_of(live, struct top, live);
    const struct top_sort *sort;

    for (size_t i = 0; (sort = top_sort_at(i)) != NULL; i++)
        if (sort->key == key) {
            top->view.sort = i;
            return true;
        }
    top->view.reverse ^= key == 'r';
    return key == 'r';
}

static int read_view(struct top *top, const struct json **ret_status)
{
    struct cli *cli = top->live.cli;
    struct ask breakers = {.method = "GET", .path = "/v1/breakers?limit=1000"};
    struct str reply;
    int code = read_both(top);

    if (code == CLI_OK)
        code = ask_get(cli, "/v1/cluster/status?brief=1", ret_status, &reply);
    if (code == CLI_OK)
        code = ask_run(cli, &breakers);
    if (code != CLI_OK)
        return code;
    top->view.servers = json_get(*ret_status, "servers");
    top->view.breakers = json_get(breakers.json, "breakers");
    top->view.now_ms = clock_wall_ms();
    return CLI_OK;
}

static int draw_top(struct live *live, FILE *to)
{
    struct top *top = container_of(live, struct top, live);
    struct cli *cli = live->cli;
    struct sheet_style style = {
        .width = live_columns(cli), .colour = cli->colour, .unicode = live_unicode(cli)};
    const struct json *status;
    struct sheet sheet;
    int code = read_view(top, &status);

    if (code != CLI_OK)
        return code;
    sheet_init(&sheet, &cli->arena, style);
    put_head(top, &sheet, status);
    for (size_t i = 0; i < COUNT_OF(rate_lines); i++)
        put_rates(top, &sheet, &rate_lines[i]);
    top->view.lines = 0;
    if (live->on_screen && live_rows(cli) > sheet.count + 4)
        top->view.lines = live_rows(cli) - sheet.count - 2; /* for the keys, and for trouble */
    top_nodes(cli, &sheet, &top->view);
    if (live->on_screen)
        put_keys(top, &sheet);
    sheet_print(&sheet, to, false);
    return CLI_OK;
}

static int read_sort(struct cli *cli, size_t *ret_sort)
{
    const char *name = cli_text(cli, "sort");
    const struct top_sort *sort;

    *ret_sort = 0;
    for (size_t i = 0; name && (sort = top_sort_at(i)) != NULL; i++)
        if (strcmp(sort->name, name) == 0) {
            *ret_sort = i;
            return CLI_OK;
        }
    return name ? cli_misuse(cli, "--sort is load, cpu, memory, slots or name, not \"%s\"", name)
                : CLI_OK;
}

/* Where nobody can press a key one picture is enough. */
static int cmd_top(struct cli *cli)
{
    struct top top = {.live = {.cli = cli,
                               .interval_ms = TOP_MS,
                               .once = cli_given(cli, "once") || !live_is_screen(cli),
                               .draw = draw_top,
                               .key = on_key},
                      .view = {.reverse = cli_given(cli, "reverse")}};
    int code = read_sort(cli, &top.view.sort);

    assert(cli->arg_count == 0);
    if (code != CLI_OK)
        return code;
    if (cli->json)
        return cli_misuse(cli, "top draws pictures; `berth status -o json` has the figures");
    code = live_run(&top.live);
    scrape_done(&top.now);
    scrape_done(&top.before);
    return code;
}

static const struct flag top_flags[] = {
    {.name = "once", .type = FLAG_SWITCH, .help = "one picture, with rates over one second"},
    {.name = "sort",
     .type = FLAG_TEXT,
     .value = "BY",
     .help = "load (default: the larger share of cores and slots), cpu, memory, slots, name"},
    {.name = "reverse", .letter = 'r', .type = FLAG_SWITCH, .help = "the other way round"},
};

static const struct command rows[] = {
    {.noun = "top",
     .kind = COMMAND_API,
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
