/* `berth limit ...`: how many jobs with a key may run, start and wait, and putting a key on
 * hold. */
#include <inttypes.h>
#include <time.h>

#include "base/clock.h"
#include "cli/list.h"
#include "cli/request.h"

static int cmd_limit_set(struct cli *cli)
{
    static const char *const flags[] = {"concurrency", "queue", "weight", "rate"};
    struct jsonw w = body_begin(cli);
    struct str body;
    bool some = false;

    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        cli_put(cli, &w, flags[i], flags[i]);
        some |= cli_given(cli, flags[i]);
    }
    body = body_end(cli, &w);
    if (!some)
        return cli_misuse(cli, "what is limited: --concurrency, --rate, --queue or --weight");
    return answer_send(cli, "PUT", answer_path(cli, "/v1/limits/{id}"), body, "%s is limited",
                       cli->args[0]);
}

/* "18:00" today, or tomorrow if that is past; "2026-11-18T18:00". Local time. */
static bool read_time(const char *text, int64_t now_ms, int64_t *ret_ms)
{
    static const char *const dated[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"};
    time_t now = (time_t)(now_ms / 1000), at;
    struct tm local = *localtime(&now);
    const char *end = strptime(text, "%H:%M", &local);

    local.tm_sec = 0;
    local.tm_isdst = -1;
    if (end && !*end) {
        at = mktime(&local);
        if (at <= now) {
            local.tm_mday++;
            local.tm_isdst = -1;
            at = mktime(&local);
        }
        *ret_ms = (int64_t)at * 1000;
        return true;
    }
    for (size_t i = 0; i < COUNT_OF(dated); i++) {
        struct tm day = {.tm_isdst = -1};

        end = strptime(text, dated[i], &day);
        if (end && !*end) {
            *ret_ms = (int64_t)mktime(&day) * 1000;
            return true;
        }
    }
    return false;
}

static int cmd_limit_hold(struct cli *cli)
{
    const char *until = cli_text(cli, "until");
    int64_t now_ms = clock_wall_ms(), until_ms = 0;
    struct jsonw w;

    if (!until == !cli_given(cli, "for"))
        return cli_misuse(cli, "how long: either --until 18:00 or --for 10m");
    if (until && !read_time(until, now_ms, &until_ms))
        return cli_misuse(cli, "--until is like 18:00 or 2026-11-18T18:00, not \"%s\"", until);
    if (until && until_ms <= now_ms)
        return cli_misuse(cli, "--until %s is past", until);
    w = body_begin(cli);
    /* Sent as a duration: the two clocks may differ. */
    jsonw_kint(&w, "for_ms", until ? until_ms - now_ms : cli_num(cli, "for", 0));
    cli_put(cli, &w, "reason", "reason");
    return answer_send(cli, "POST", answer_path(cli, "/v1/limits/{id}/hold"), body_end(cli, &w),
                       "%s is held", cli->args[0]);
}

/* "3/3" in red if no more may start; "-/3" for a rule that covers many keys, each counted
 * separately. */
static void put_use(struct list_view *view, const struct list_column *column,
                    const struct json *limit)
{
    int64_t used = show_int(limit, "in_flight", -1), bound = show_int(limit, "concurrency", -1);
    struct arena *arena = &view->cli->arena;
    struct str text = used < 0 ? STR("-") : arena_fmt(arena, "%" PRId64, used);

    if (bound >= 0)
        text = arena_fmt(arena, STR_FMT "/%" PRId64, STR_ARG(text), bound);
    table_cell_colour(&view->table, text, bound >= 0 && used >= bound ? TABLE_RED : TABLE_PLAIN);
}

static void put_held(struct list_view *view, const struct list_column *column,
                     const struct json *limit)
{
    static const struct {
        int64_t ms;
        const char *unit;
    } units[] = {{24 * 3600 * 1000, "d"}, {3600 * 1000, "h"}, {60 * 1000, "m"}, {1000, "s"}};
    int64_t held_ms = show_int(limit, column->member, 0);
    size_t i = 0;

    if (held_ms <= 0) {
        table_cell(&view->table, STR_NONE);
        return;
    }
    while (i + 1 < COUNT_OF(units) && held_ms < 2 * units[i].ms)
        i++;
    table_cell_colour(&view->table,
                      arena_fmt(&view->cli->arena, "%" PRId64 "%s",
                                (held_ms + units[i].ms - 1) / units[i].ms, units[i].unit),
                      TABLE_YELLOW);
}

static const struct list_column columns[] = {
    {.title = "KEY", .member = "key"},
    {.title = ">IN FLIGHT", .member = "in_flight", .put = put_use},
    {.title = "RATE", .member = "rate"},
    {.title = ">STARTED", .member = "started"},
    {.title = ">WAITING", .member = "waiting"},
    {.title = ">QUEUE", .member = "queue"},
    {.title = ">WEIGHT", .member = "weight"},
    {.title = ">HELD", .member = "held_ms", .put = put_held},
    {.title = "REASON", .member = "hold_reason"},
    {.title = "RULE", .member = "rule", .wide = true},
    {.title = ">CONCURRENCY", .member = "concurrency", .wide = true},
    {.title = "HELD BY", .member = "held_by", .wide = true},
};

enum { NUMBER_MAX = 1000000000, WEIGHT_MAX = 1000 };

static const struct flag set_flags[] = {
    FLAG("concurrency", 0, INT, "N", "jobs with the key that may have a lease at once", .min = 0,
         .max = NUMBER_MAX),
    FLAG("rate", 0, TEXT, "N/DURATION", "starts in a sliding window, like 60/1m"),
    FLAG("queue", 0, INT, "N", "jobs that may wait", .min = 0, .max = NUMBER_MAX),
    FLAG("weight", 0, INT, "N", "turns of the queue beside others' one (default 1)", .min = 1,
         .max = WEIGHT_MAX),
};

static const struct flag ls_flags[] = {
    FLAG("prefix", 0, TEXT, "TEXT", "only keys that begin so", .param = "prefix"),
};

static const struct flag hold_flags[] = {
    FLAG("until", 0, TEXT, "TIME", "18:00 (today or tomorrow), or 2026-11-18T18:00"),
    FLAG("for", 0, MS, "DURATION", "from now, like 10m", .min = 1, .max = 30LL * 24 * 3600 * 1000),
    FLAG("reason", 0, TEXT, "TEXT", "why, for whoever looks later"),
};

static const struct command rows[] = {
    VERB("limit", "set", "KEY", .flags = FLAGS(set_flags),
         .help = "bound what jobs with a key may have",
         .detail =
             "Jobs carry up to four keys. With a * at the end the limit is for all keys that\n"
             "begin so, each on its own; the limit that says most about a key is its only one.\n"
             "What is not named is not limited: `limit set` replaces the whole limit.",
         .examples = "berth limit set account:api-1 --concurrency 3 --rate 60/1m\n"
                     "berth limit set 'tenant:*' --concurrency 50 --queue 10000\n"
                     "berth limit set tenant:acme --weight 3",
         .run = cmd_limit_set),
    VERB("limit", "ls", NULL, .flags = FLAGS(ls_flags),
         .list = LISTING("/v1/limits", "limits", "key", columns),
         .help = "limits, and the keys in use with how much of them is used",
         .examples = "berth limit ls\n"
                     "berth limit ls --prefix tenant: -o wide"),
    VERB("limit", "show", "KEY", .help = "one key: its limit, what is in use, whether it is held",
         .examples = "berth limit show account:api-1", .call = SHOW("/v1/limits/{id}", "key")),
    VERB("limit", "rm", "KEY", .help = "take a limit away", .examples = "berth limit rm 'tenant:*'",
         .call = CALL("DELETE", "/v1/limits/{id}", "is limited no more")),
    VERB("limit", "hold", "KEY", .flags = FLAGS(hold_flags),
         .help = "let nothing with this key start for a while",
         .detail =
             "What runs goes on. The hold ends by itself; a node can do the same with a FAIL\n"
             "that names the key, for an account that ran into its quota.",
         .examples = "berth limit hold account:api-1 --until 18:00 --reason 'quota used up'\n"
                     "berth limit hold tenant:acme --for 10m",
         .run = cmd_limit_hold),
    VERB("limit", "release", "KEY", .help = "end a hold at once",
         .examples = "berth limit release account:api-1",
         .call = CALL("POST", "/v1/limits/{id}/release", "may start again")),
};

const struct command_set commands_limit = COMMANDS(rows);
