/* `berth top`: who is how full, what waits, how fast work is placed and why it is refused. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "cli/ask.h"
#include "cli/live.h"
#include "cli/panel.h"
#include "cli/scrape.h"
#include "cli/sheet.h"
#include "cli/show.h"

enum { TOP_MS = 1000 };

struct top {
    struct live live;
    struct scrape now, before;
};

/* Both readings: the older one moves aside. */
static int read_metrics(struct top *top)
{
    struct ask ask = {.method = "GET", .path = "/metrics", .text = true};
    struct scrape older = top->before;
    int code = ask_run(top->live.cli, &ask);

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

static void put_head(struct top *top, struct sheet *sheet, const struct json *status)
{
    struct cli *cli = top->live.cli;
    struct str word = show_member(cli, status, "cluster_status");
    const struct scrape_row *queue = scrape_find(&top->now, STR("berth_queue_depth"), STR(""));
    char iso[CLOCK_ISO_BYTES];

    clock_iso(clock_wall_ms(), iso);
    sheet_line(sheet);
    sheet_fmt(sheet, TABLE_BOLD, "berth top %.8s UTC", iso + 11);
    sheet_put(sheet, TABLE_PLAIN, STR("  cluster "));
    sheet_put(sheet, panel_status_colour(word), word);
    sheet_fmt(sheet, TABLE_PLAIN, ", %" PRId64 " of %" PRId64 " slots free",
              show_int(status, "available_slots", 0), show_int(status, "total_slots", 0));
    if (queue)
        sheet_fmt(sheet, queue->value > 0 ? TABLE_YELLOW : TABLE_PLAIN, ", %.0f waiting",
                  queue->value);
    sheet_line(sheet);
    sheet_put(sheet, TABLE_DIM, STR("nodes      "));
    for (size_t i = 0, shown = 0; i < top->now.count; i++) {
        const struct scrape_row *row = &top->now.rows[i];
        struct str health = scrape_label(row->labels, "health");

        if (!str_is(row->name, "berth_nodes") || row->value <= 0)
            continue;
        sheet_fmt(sheet, show_health_colour(health), "%s%.0f " STR_FMT, shown++ ? ", " : "",
                  row->value, STR_ARG(health));
    }
}

/* How full it is: the larger share of its slots and of its cores. */
static int64_t load_of(const struct json *server)
{
    int64_t cpu = panel_cpu_permille(server), slots = panel_slots_permille(server);

    return cpu > slots ? cpu : slots;
}

struct entry {
    const struct json *key; /* the id; the server stands behind it */
    int64_t load;
};

static int by_load(const void *a, const void *b)
{
    const struct entry *one = a, *two = b;

    if (one->load != two->load)
        return one->load < two->load ? 1 : -1;
    return one->key < two->key ? -1 : one->key > two->key; /* as the server sorted them */
}

static void percent_cell(struct cli *cli, struct table *table, int64_t permille)
{
    if (permille < 0)
        table_cell(table, STR("-"));
    else
        table_cell_colour(table, arena_fmt(&cli->arena, "%" PRId64 "%%", (permille + 5) / 10),
                          panel_share_colour(permille));
}

static void node_row(struct cli *cli, struct table *table, const struct json *key, int64_t now_ms)
{
    const struct json *server = key + 1, *tasks = json_get(server, "tasks");
    struct str level = show_member(cli, server, "level");
    struct str tripped = show_member(cli, server, "tripped");
    bool online = false;
    int64_t room = show_int(server, "slots_available", 0);

    json_bool(json_get(server, "online"), &online);
    table_cell(table, json_str(key, &cli->arena));
    table_cell(table, show_member(cli, server, "role"));
    if (online)
        table_cell_colour(table,
                          tripped.len ? arena_fmt(&cli->arena, STR_FMT " (" STR_FMT ")",
                                                  STR_ARG(level), STR_ARG(tripped))
                                      : level,
                          panel_level_colour(level));
    else
        table_cell_colour(table, STR("offline"), TABLE_RED);
    percent_cell(cli, table, panel_cpu_permille(server));
    percent_cell(cli, table, panel_mem_permille(server));
    table_cell(table,
               arena_fmt(&cli->arena, "%" PRId64 "/%" PRId64, show_int(server, "slots_in_use", 0),
                         show_int(server, "slots_max", 0)));
    table_cell_colour(table, arena_fmt(&cli->arena, "%" PRId64, room),
                      room > 0 ? TABLE_GREEN : TABLE_RED);
    table_int(table, json_type(tasks) == JSON_ARR ? tasks->count : 0);
    table_cell(table, show_age(cli, server, "last_seen_ms", now_ms));
}

static void print_nodes(struct cli *cli, const struct json *servers, FILE *to)
{
    static const char *const titles[] = {"NODE",   "ROLE",  "LEVEL",  ">CPU", ">MEM",
                                         ">SLOTS", ">ROOM", ">TASKS", ">SEEN"};
    uint32_t count = json_type(servers) == JSON_OBJ ? servers->count : 0;
    struct entry *entries = arena_array(&cli->arena, struct entry, count + 1);
    const struct json *key = json_first(servers);
    int64_t now_ms = clock_wall_ms();
    struct table table;

    for (uint32_t i = 0; i < count; i++, key = json_next(key + 1))
        entries[i] = (struct entry){.key = key, .load = load_of(key + 1)};
    qsort(entries, count, sizeof *entries, by_load);
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (uint32_t i = 0; i < count; i++)
        node_row(cli, &table, entries[i].key, now_ms);
    table_print(&table, to, cli->colour);
}

static int draw_top(struct live *live, FILE *to)
{
    struct top *top = container_of(live, struct top, live);
    struct cli *cli = live->cli;
    struct sheet_style style = {
        .width = live_columns(cli), .colour = cli->colour, .unicode = live_unicode(cli)};
    const struct json *status;
    struct sheet sheet;
    struct str reply;
    int code = read_both(top);

    if (code == CLI_OK)
        code = ask_get(cli, "/v1/cluster/status", &status, &reply);
    if (code != CLI_OK)
        return code;
    sheet_init(&sheet, &cli->arena, style);
    put_head(top, &sheet, status);
    for (size_t i = 0; i < COUNT_OF(rate_lines); i++)
        put_rates(top, &sheet, &rate_lines[i]);
    sheet_line(&sheet);
    sheet_print(&sheet, to, false);
    print_nodes(cli, json_get(status, "servers"), to);
    return CLI_OK;
}

static int cmd_top(struct cli *cli)
{
    struct top top = {
        .live = {
            .cli = cli, .interval_ms = TOP_MS, .once = cli_given(cli, "once"), .draw = draw_top}};
    int code;

    assert(cli->arg_count == 0);
    if (cli->json)
        return cli_misuse(cli, "top draws pictures; `berth status -o json` has the figures");
    code = live_run(&top.live);
    scrape_done(&top.now);
    scrape_done(&top.before);
    return code;
}

static const struct flag top_flags[] = {
    {.name = "once", .type = FLAG_SWITCH, .help = "one picture, with rates over one second"},
};

static const struct command rows[] = {
    {.noun = "top",
     .kind = COMMAND_API,
     .flags = FLAGS(top_flags),
     .help = "nodes by load, the queue, dispatches and refusals, live",
     .detail =
         "The fullest first: by the larger share of its slots and of its cores in use. q ends.",
     .examples = "berth top\n"
                 "berth top --once",
     .run = cmd_top},
};

const struct command_set commands_top = COMMANDS(rows);
