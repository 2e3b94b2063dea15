/* `berth status`: the cluster on one page, drawn as a panel. */
#include "cli/cmd_status.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/list.h"
#include "cli/request.h"
#include "cli/screen.h"

/* --- the panel --- */

enum {
    COLUMN_MIN = 46, /* a narrower block is unreadable */
    COLUMN_MAX = 66,
    COLUMN_GAP = 3,
    BAR_COLUMNS = 20,
    LABEL_COLUMNS = 6,
    TASKS_SHOWN = 8,
};

static const struct {
    const char *level;
    const char *means; /* what the level means for new work */
} levels[] = {
    {"warning", "only high priority starts"},
    {"danger", "nothing starts"},
    {"critical", "nothing starts, the least important is ended"},
};

enum table_colour panel_status_colour(struct str status)
{
    return str_is(status, "healthy")    ? TABLE_GREEN
           : str_is(status, "partial")  ? TABLE_YELLOW
           : str_is(status, "degraded") ? TABLE_RED
                                        : TABLE_PLAIN;
}

enum table_colour panel_share_colour(int64_t permille)
{
    return permille < 600 ? TABLE_GREEN : permille < 800 ? TABLE_YELLOW : TABLE_RED;
}

/* used / all; -1 if one of them is missing or invalid. */
static int64_t share(const struct json *server, const char *used_name, const char *all_name,
                     bool is_free)
{
    double used, all;

    if (!json_double(json_get(server, used_name), &used) ||
        !json_double(json_get(server, all_name), &all) || !(all > 0) || !(used >= 0))
        return -1;
    if (is_free)
        used = used < all ? all - used : 0;
    return (int64_t)lround(fmin(used / all, 1000.0) * 1000);
}

int64_t panel_cpu_permille(const struct json *server)
{
    return share(server, "cpu_load", "cpu_cores", false);
}

int64_t panel_mem_permille(const struct json *server)
{
    return share(server, "mem_free_gb", "mem_total_gb", true);
}

int64_t panel_slots_permille(const struct json *server)
{
    return share(server, "slots_in_use", "slots_max", false);
}

/* The data for one block. */
struct block {
    struct cli *cli;
    const struct json *server;
    const struct panel_style *style;
    struct sheet sheet;
    bool online;
};

static struct str member(const struct block *block, const char *name)
{
    return show_member(block->cli, block->server, name);
}

static double figure(const struct block *block, const char *name)
{
    double value = 0;

    json_double(json_get(block->server, name), &value);
    return value;
}

static void label(struct block *block, const char *text)
{
    assert(strlen(text) < LABEL_COLUMNS);
    sheet_line(&block->sheet);
    sheet_fmt(&block->sheet, TABLE_DIM, "%-*s", LABEL_COLUMNS, text);
}

/* For a figure that was not sent. */
static void unknown(struct block *block)
{
    struct str reason = member(block, "figures_reason");

    sheet_put(&block->sheet, TABLE_PLAIN, STR("-  "));
    sheet_wrap(&block->sheet, TABLE_DIM, LABEL_COLUMNS + 3,
               reason.len ? reason : STR("its agent did not send this figure"));
}

/* A line with a bar. False: the share is unknown (-1), and the line says so. */
static bool draw_bar(struct block *block, const char *title, int64_t permille)
{
    label(block, title);
    if (permille < 0) {
        unknown(block);
        return false;
    }
    sheet_bar(&block->sheet, block->online ? panel_share_colour(permille) : TABLE_DIM, BAR_COLUMNS,
              permille);
    sheet_put(&block->sheet, TABLE_PLAIN, STR(" "));
    return true;
}

/* Left out if there is nothing to show: many machines have neither a GPU nor swap. */
static void draw_percent(struct block *block, const char *title, const char *name)
{
    double percent;
    bool known = json_double(json_get(block->server, name), &percent) && percent >= 0;

    if ((!known || percent <= 0) && !block->style->wide)
        return;
    if (draw_bar(block, title, known ? (int64_t)lround(fmin(percent, 1000) * 10) : -1))
        sheet_fmt(&block->sheet, TABLE_PLAIN, "%.0f%%", percent);
}

static void draw_figures(struct block *block)
{
    const struct json *server = block->server;
    int64_t memory = panel_mem_permille(server);
    int64_t disk = share(server, "disk_free_gb", "disk_total_gb", true);
    double total = figure(block, "mem_total_gb");

    if (draw_bar(block, "CPU", panel_cpu_permille(server)))
        sheet_fmt(&block->sheet, TABLE_PLAIN, "%.2f/%.4g cores", figure(block, "cpu_load"),
                  figure(block, "cpu_cores"));
    if (draw_bar(block, "MEM", memory))
        sheet_fmt(&block->sheet, TABLE_PLAIN, "%" PRId64 "%% of %.*f GB used", (memory + 5) / 10,
                  fabs(total - round(total)) < 0.05 ? 0 : 1, total);
    draw_percent(block, "Swap", "swap_used_pct");
    /* The file system with runs and packages; only in the wide view. A full disk is named as the
     * reason of the level anyway. */
    if (disk >= 0 && block->style->wide && draw_bar(block, "Disk", disk))
        sheet_fmt(&block->sheet, TABLE_PLAIN, "%.1f of %.1f GB free", figure(block, "disk_free_gb"),
                  figure(block, "disk_total_gb"));
    draw_percent(block, "GPU", "gpu_pct");
}

/* The clamp that reduced the slots to zero: the first from which on none are left. NULL: there are
 * slots, or no clamps were sent. */
static const struct json *zero_clamp(const struct json *clamps)
{
    const struct json *clamp, *earliest = NULL, *first = NULL;

    for (clamp = json_items(clamps); clamp; clamp = json_after(clamps, clamp)) {
        bool zero = show_int(clamp, "value", -1) == 0;

        if (zero && !earliest)
            earliest = clamp;
        if (zero && json_str_is(json_get(clamp, "name"), "slots_min"))
            first = clamp; /* a zero in the formula made no difference */
        else
            first = zero ? first ? first : clamp : NULL;
    }
    /* `raw` only repeats one of the two clamps before it */
    return first && json_str_is(json_get(first, "name"), "raw") ? earliest : first;
}

/* Red if full, yellow if there is less room than the slots allow. */
static void draw_slots(struct block *block)
{
    int64_t in_use = show_int(block->server, "slots_in_use", 0);
    int64_t most = show_int(block->server, "slots_max", 0);
    int64_t room = show_int(block->server, "slots_available", 0);
    const struct json *zero = zero_clamp(json_get(block->server, "clamps"));
    enum table_colour colour = room == 0              ? TABLE_RED
                               : room < most - in_use ? TABLE_YELLOW
                                                      : TABLE_GREEN;

    label(block, "Slots");
    sheet_fmt(&block->sheet, colour, "%" PRId64 "/%" PRId64 "%s", in_use, most,
              block->style->unicode ? " ●" : "");
    if (room > 0) {
        sheet_fmt(&block->sheet, TABLE_PLAIN, " room for %" PRId64, room);
    } else if (!block->online) {
        sheet_put(&block->sheet, TABLE_PLAIN, STR(" no room: offline"));
    } else if (!zero) {
        sheet_put(&block->sheet, TABLE_PLAIN, STR(" no room"));
    } else { /* "cpu: (8.00 cores - load 6.00) / 1.20"; the reason may already contain the name */
        struct str name = show_member(block->cli, zero, "name");
        struct str reason = show_member(block->cli, zero, "reason");

        if (name.len == 0 || !memmem(reason.at, reason.len, name.at, name.len))
            reason =
                arena_fmt(&block->cli->arena, STR_FMT ": " STR_FMT, STR_ARG(name), STR_ARG(reason));
        sheet_put(&block->sheet, TABLE_PLAIN, STR(" no room:"));
        sheet_wrap(&block->sheet, TABLE_DIM, LABEL_COLUMNS, reason);
    }
}

/* "cpu 1.5 of 8 promised, 6.5 free". Resources without promises are only in the wide view. */
static void put_resource(struct block *block, struct str name, const struct json *of)
{
    struct cli *cli = block->cli;
    double promised = 0;

    json_double(json_get(of, "promised"), &promised);
    if (!(promised > 0) && !block->style->wide)
        return;
    label(block, "Needs");
    sheet_fmt(&block->sheet, TABLE_PLAIN, STR_FMT " %g of " STR_FMT " promised, " STR_FMT " free",
              STR_ARG(name), promised, STR_ARG(show_member(cli, of, "capacity")),
              STR_ARG(show_member(cli, of, "left")));
}

/* What is promised to jobs that declare needs, and what is free for more. */
static void draw_resources(struct block *block)
{
    const struct json *resources = json_get(block->server, "resources");
    const struct json *gpus = json_get(resources, "gpus"), *gpu, *key;

    for (key = json_keys(resources); key; key = json_after(resources, key))
        if (json_type(key + 1) == JSON_OBJ)
            put_resource(block, show_text(block->cli, key), key + 1);
    for (gpu = json_items(gpus); gpu; gpu = json_after(gpus, gpu)) {
        struct str name = arena_fmt(&block->cli->arena, "GPU " STR_FMT " MB",
                                    STR_ARG(show_member(block->cli, gpu, "id")));

        put_resource(block, name, json_get(gpu, "vram_mb"));
    }
}

static void draw_level(struct block *block)
{
    struct str level = member(block, "level"), tripped = member(block, "tripped");
    const char *means = "";

    label(block, "Level");
    if (level.len == 0) {
        sheet_put(&block->sheet, TABLE_PLAIN, STR("-  "));
        sheet_put(&block->sheet, TABLE_DIM, STR("no agent: taken as normal"));
        return;
    }
    for (size_t i = 0; i < COUNT_OF(levels); i++)
        if (str_is(level, levels[i].level))
            means = levels[i].means;
    sheet_put(&block->sheet, show_colour(level), level);
    if (tripped.len)
        sheet_fmt(&block->sheet, TABLE_PLAIN, " by " STR_FMT, STR_ARG(tripped));
    if (*means)
        sheet_wrap(&block->sheet, TABLE_DIM, LABEL_COLUMNS,
                   arena_fmt(&block->cli->arena, "(%s)", means));
}

static void draw_head(struct block *block, struct str id)
{
    struct str name = member(block, "name"), role = member(block, "role");
    struct str health = member(block, "health");
    struct str seen = show_age(block->cli, block->server, "last_seen_ms", block->style->now_ms);

    sheet_line(&block->sheet);
    sheet_put(&block->sheet, TABLE_BOLD, name.len ? name : id);
    if (role.len)
        sheet_fmt(&block->sheet, TABLE_PLAIN, " (" STR_FMT ")", STR_ARG(role));
    if (name.len && !str_eq(name, id))
        sheet_fmt(&block->sheet, TABLE_DIM, "  " STR_FMT, STR_ARG(id));
    if (block->online && health.len && !str_is(health, "ready"))
        sheet_fmt(&block->sheet, show_colour(health), "  " STR_FMT, STR_ARG(health));
    if (block->online)
        return;
    label(block, "");
    sheet_put(&block->sheet, TABLE_RED, STR("offline:"));
    sheet_wrap(&block->sheet, TABLE_PLAIN, LABEL_COLUMNS,
               arena_fmt(&block->cli->arena, STR_FMT ", %s" STR_FMT "%s",
                         STR_ARG(member(block, "offline_reason")), seen.len ? "last seen " : "",
                         STR_ARG(seen.len ? seen : STR("never seen")), seen.len ? " ago" : ""));
}

static void draw_tasks(struct block *block)
{
    const struct json *tasks = json_get(block->server, "tasks");
    const struct json *task = json_first(tasks);
    uint32_t count = json_type(tasks) == JSON_ARR ? tasks->count : 0;
    uint32_t shown = count > TASKS_SHOWN && !block->style->wide ? TASKS_SHOWN : count;

    sheet_line(&block->sheet);
    sheet_put(&block->sheet, TABLE_DIM, count ? STR("Running:") : STR("Running: nothing"));
    for (uint32_t i = 0; i < shown; i++, task = json_next(task)) {
        struct str title = show_member(block->cli, task, "title");
        struct str type = show_member(block->cli, task, "type");

        sheet_line(&block->sheet);
        sheet_put(&block->sheet, TABLE_PLAIN, STR("- "));
        if (type.len)
            sheet_fmt(&block->sheet, TABLE_PLAIN, STR_FMT ": ", STR_ARG(type));
        sheet_put(&block->sheet, TABLE_PLAIN,
                  title.len ? title : show_member(block->cli, task, "job_id"));
    }
    if (shown < count) {
        sheet_line(&block->sheet);
        sheet_fmt(&block->sheet, TABLE_DIM, "  and %u more (--wide shows them)", count - shown);
    }
}

static void draw_available(struct block *block)
{
    const struct json *types = json_get(block->server, "available_for");
    const struct json *first = json_items(types);
    struct buf list = {0};

    for (const struct json *type = first; type; type = json_after(types, type)) {
        struct str name = show_text(block->cli, type);

        buf_fmt(&list, "%s" STR_FMT, type == first ? "" : ", ",
                STR_ARG(str_is(name, "*") ? STR("any type") : name));
    }
    sheet_line(&block->sheet);
    sheet_put(&block->sheet, TABLE_DIM, STR("Available for:"));
    sheet_wrap(&block->sheet, first ? TABLE_PLAIN : TABLE_DIM, 2,
               first ? arena_str(&block->cli->arena, buf_view(&list)) : STR("nothing now"));
    buf_free(&list);
}

/* Every step from the samples to the slots, in the order of application. */
static void draw_clamps(struct block *block)
{
    const struct json *clamps = json_get(block->server, "clamps");
    const struct json *clamp = json_items(clamps);

    sheet_line(&block->sheet);
    sheet_put(&block->sheet, TABLE_DIM, STR("How its slots come about:"));
    if (!clamp) {
        sheet_line(&block->sheet);
        sheet_put(&block->sheet, TABLE_PLAIN, STR("  "));
        unknown(block);
    }
    for (; clamp; clamp = json_after(clamps, clamp)) {
        int64_t value = show_int(clamp, "value", 0);

        sheet_line(&block->sheet);
        sheet_fmt(&block->sheet, value == 0 ? TABLE_RED : TABLE_PLAIN, "  %4" PRId64 "  %.40s",
                  value, arena_cstr(&block->cli->arena, show_member(block->cli, clamp, "name")));
        sheet_put(&block->sheet, TABLE_PLAIN, STR(":"));
        sheet_wrap(&block->sheet, TABLE_DIM, 2 + 4 + 2, show_member(block->cli, clamp, "reason"));
    }
}

static void draw_block(struct block *block, struct str id)
{
    json_bool(json_get(block->server, "online"), &block->online);
    draw_head(block, id);
    draw_figures(block);
    draw_slots(block);
    draw_resources(block);
    draw_level(block);
    draw_tasks(block);
    draw_available(block);
    if (block->style->wide)
        draw_clamps(block);
}

static void draw_top(struct cli *cli, struct sheet *sheet, const struct json *status)
{
    struct str overall = show_member(cli, status, "cluster_status");
    bool stale = false;

    json_bool(json_get(status, "stale"), &stale);
    sheet_line(sheet);
    sheet_put(sheet, TABLE_BOLD, STR("Cluster status: "));
    if (sheet->style.unicode)
        sheet_put(sheet, panel_status_colour(overall), STR("● "));
    sheet_put(sheet, panel_status_colour(overall), overall);
    sheet_fmt(sheet, TABLE_PLAIN, ", %" PRId64 " of %" PRId64 " slots free",
              show_int(status, "available_slots", 0), show_int(status, "total_slots", 0));
    sheet_line(sheet);
    sheet_wrap(sheet, TABLE_PLAIN, 0, show_member(cli, status, "recommendation"));
    if (stale) {
        sheet_line(sheet);
        sheet_wrap(sheet, TABLE_YELLOW, 0,
                   STR("The store does not answer: running tasks are not shown."));
    }
}

void panel_print(struct cli *cli, const struct json *status, const struct panel_style *style,
                 FILE *to)
{
    const struct json *servers = json_get(status, "servers");
    const struct json *key = json_first(servers);
    uint32_t count = json_type(servers) == JSON_OBJ ? servers->count : 0;
    size_t frame = style->unicode ? SHEET_FRAME_COLUMNS : 0;
    size_t inside = style->columns > frame + COLUMN_MIN ? style->columns - frame : COLUMN_MIN;
    size_t across = count > 1 && inside >= 2 * COLUMN_MIN + COLUMN_GAP ? 2 : 1;
    size_t column = (inside - (across - 1) * COLUMN_GAP) / across;
    struct sheet_style sheet_style = {.colour = cli->colour, .unicode = style->unicode};
    struct sheet all;

    column = column > COLUMN_MAX ? COLUMN_MAX : column;
    assert(column >= COLUMN_MIN && across >= 1 && across <= 2);
    sheet_style.width = across * column + (across - 1) * COLUMN_GAP;
    sheet_init(&all, &cli->arena, sheet_style);
    draw_top(cli, &all, status);
    sheet_style.width = column;
    for (uint32_t i = 0; i < count;) {
        struct block blocks[2];
        size_t used = 0;

        for (; used < across && i < count; used++, i++, key = json_next(key + 1)) {
            blocks[used] = (struct block){.cli = cli, .server = key + 1, .style = style};
            sheet_init(&blocks[used].sheet, &cli->arena, sheet_style);
            draw_block(&blocks[used], json_str(key, &cli->arena));
        }
        sheet_line(&all);
        if (used == 2)
            sheet_beside(&all, &blocks[0].sheet, &blocks[1].sheet, COLUMN_GAP);
        else
            sheet_append(&all, &blocks[0].sheet);
    }
    assert(all.count > 0);
    sheet_print(&all, to, style->unicode);
}

/* --- the command --- */

static int draw_status(struct screen *live, FILE *to)
{
    struct cli *cli = live->cli;
    struct panel_style style = {.columns = screen_columns(cli),
                                .unicode = screen_unicode(cli),
                                .wide = cli->output == CLI_WIDE || cli_given(cli, "wide"),
                                .now_ms = clock_wall_ms()};
    const struct json *json;
    int code = request_get(cli, "/v1/cluster/status", &json);

    if (code != CLI_OK)
        return code;
    if (cli->output == CLI_NAME) {
        const struct json *servers = json_get(json, "servers"), *key;

        for (key = json_keys(servers); key; key = json_after(servers, key))
            show_name(cli, show_text(cli, key), to);
    } else if (cli->json) {
        show_json(cli, json_raw(json), false, to);
    } else {
        panel_print(cli, json, &style, to);
    }
    return CLI_OK;
}

static int cmd_status(struct cli *cli)
{
    int64_t watch_ms = cli_num(cli, "watch", SCREEN_WATCH_MS);
    struct screen live = {.cli = cli,
                          .interval_ms = watch_ms < 0 ? SCREEN_WATCH_MS : watch_ms,
                          .once = !cli_given(cli, "watch"),
                          .draw = draw_status};

    assert(cli->arg_count == 0);
    return screen_run(&live);
}

static const struct flag status_flags[] = {
    FLAG_WATCH,
    FLAG("wide", 0, SWITCH, NULL,
         "every figure and task, and how the slots come about (as -o wide)"),
};

static const struct command rows[] = {
    {.noun = "status",
     .flags = FLAGS(status_flags),
     .help = "every server: load, slots, tasks, what it is available for",
     .examples = "berth status\n"
                 "berth status --watch=5s --wide\n"
                 "berth status -o json | jq .cluster_status",
     .run = cmd_status},
};

const struct command_set commands_status = COMMANDS(rows);
