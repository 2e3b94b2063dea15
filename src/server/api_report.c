/* GET /v1/report, and /v1/report/usage as JSON and as CSV. Four steps, each on a thread that can
 * afford it: the other instances are asked for their part, the keeper adds up our hours, a pool
 * thread merges the parts and writes the answer, the request's loop sends it. For the files of
 * hours, the keeper's thread writes the text to memory and a pool thread saves it, so a slow disk
 * blocks nobody. */
#include "server/api_report.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "sched/keeper.h"
#include "sched/tally.h"
#include "server/api.h"
#include "server/peers.h"

/* --- the route --- */

#define SINCE_DEFAULT_MS (24LL * HOUR_MS)

struct report_call;

/* What each row of a usage report stands for. */
enum usage_by { BY_NODE, BY_TYPE, BY_KEY, BY_COUNT };
static const char *const by_names[BY_COUNT] = {
    [BY_NODE] = "node", [BY_TYPE] = "type", [BY_KEY] = "key"};

struct report_form {
    void (*write)(struct report_call *own);
    const char *media;
};

struct report_query {
    const struct report_form *form;
    enum usage_by by;
    int64_t since_ms, until_ms;
};

struct report_call {
    struct report_query query;
    struct msg msg;
    struct loop_job job;
    struct arena arena; /* separate: a stopping server may free the request during the write */
    struct call *call;
    struct loop *loop;
    struct hours *hours;   /* the keeper's */
    struct str node, type; /* empty: all */
    struct namespace_view view;
    struct str *parts; /* from other instances: lines of a tally */
    size_t part_count, asked, answered;
    struct tally *sum;
    struct buf text;
    /* while writing: the rows, sorted by node, type and reason */
    const struct tally_work **works;
    const struct tally_refusal **refusals;
    size_t refusal_at; /* the earlier ones are written */
    struct tally_work total;
    int64_t used_ms, max_ms;
};

static void write_times(struct jsonw *w, const char *name, const struct tally_times *times)
{
    static const struct {
        int percent;
        const char *name;
    } rows[] = {{50, "p50"}, {95, "p95"}};

    jsonw_kobj(w, name);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t ms = tally_percentile(times, rows[i].percent);

        write_int_or_null(w, rows[i].name, ms >= 0, ms);
    }
    jsonw_end_obj(w);
}

/* A share of the whole, to four digits; null if the whole is 0. */
static void write_share(struct jsonw *w, const char *name, int64_t part, int64_t whole)
{
    if (whole <= 0)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, (double)(part * 10000 / whole) / 10000.0);
}

static void write_counts(struct jsonw *w, const struct tally_work *work)
{
    int64_t done = work->counts[TALLY_DONE], failed = work->counts[TALLY_FAILED];

    jsonw_kint(w, "jobs", done + failed + work->counts[TALLY_CANCELLED]);
    for (int i = 0; i < TALLY_COUNTS; i++)
        jsonw_kint(w, tally_count_name((enum tally_count)i), work->counts[i]);
    write_share(w, "success_rate", done, done + failed);
    write_times(w, "wait_ms", &work->wait);
    write_times(w, "run_ms", &work->run);
}

static void add_work(struct tally_work *total, const struct tally_work *work)
{
    for (int i = 0; i < TALLY_COUNTS; i++)
        total->counts[i] += work->counts[i];
    for (int i = 0; i < TALLY_BUCKETS; i++) {
        total->wait.counts[i] += work->wait.counts[i];
        total->run.counts[i] += work->run.counts[i];
    }
}

/* One server: totals of all its work, its machine, then its types. */
static void write_server(struct jsonw *w, struct report_call *own, struct str node,
                         const struct tally_work **works, size_t count)
{
    static const struct tally_machine none;
    const struct tally_machine *found = map_get(&own->sum->machines, node);
    const struct tally_machine *machine = found ? found : &none;
    struct tally_work all = {.node = node};
    size_t refusals = own->sum->refusals.count;

    for (size_t i = 0; i < count; i++)
        add_work(&all, works[i]);
    add_work(&own->total, &all);
    own->used_ms += machine->used_ms;
    own->max_ms += machine->max_ms;
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", node);
    write_counts(w, &all);
    write_share(w, "slot_use", machine->used_ms, machine->max_ms);
    jsonw_kobj(w, "level_minutes");
    for (int i = 0; i < TALLY_LEVELS; i++)
        jsonw_kdouble(w, tally_level_name(i), (double)(machine->level_ms[i] / 600) / 100);
    jsonw_end_obj(w);
    jsonw_karr(w, "types");
    for (size_t i = 0; i < count; i++) {
        jsonw_obj(w);
        jsonw_kstr(w, "type", namespace_shown(&own->view, works[i]->type));
        write_counts(w, works[i]);
        /* Both lists are in the same order: the refusals of this row are next. */
        jsonw_kobj(w, "refusals");
        for (; own->refusal_at < refusals; own->refusal_at++) {
            const struct tally_refusal *refusal = own->refusals[own->refusal_at];
            int order = str_cmp(refusal->node, works[i]->node);

            order = order ? order : str_cmp(refusal->type, works[i]->type);
            if (order > 0)
                break;
            if (order < 0)
                continue; /* of a type that was not requested */
            jsonw_key_str(w, refusal->reason);
            jsonw_int(w, (int64_t)refusal->count);
        }
        jsonw_end_obj(w);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    jsonw_end_obj(w);
}

static int by_work(const void *a, const void *b)
{
    const struct tally_work *left = *(struct tally_work *const *)a;
    const struct tally_work *right = *(struct tally_work *const *)b;
    int order = str_cmp(left->node, right->node);

    return order ? order : str_cmp(left->type, right->type);
}

static int by_refusal(const void *a, const void *b)
{
    const struct tally_refusal *left = *(struct tally_refusal *const *)a;
    const struct tally_refusal *right = *(struct tally_refusal *const *)b;
    int order = str_cmp(left->node, right->node);

    order = order ? order : str_cmp(left->type, right->type);
    return order ? order : str_cmp(left->reason, right->reason);
}

static void *sorted(const struct map *map, int (*order)(const void *, const void *),
                    struct arena *arena)
{
    void **rows = arena_array(arena, void *, map->count + 1);
    size_t count = 0;

    for (size_t at = 0; count < map->count;)
        rows[count++] = map_next(map, &at);
    qsort(rows, count, sizeof *rows, order);
    return rows;
}

static bool is_asked(const struct report_call *own, struct str type)
{
    return namespace_sees(&own->view, type) && (!own->type.len || str_eq(own->type, type));
}

/* Is this a row of the requested type? A blank row without a type exists only for its node. */
static bool is_wanted(const struct report_call *own, const struct tally_work *work)
{
    bool blank = str_is(work->type, "-");

    for (int i = 0; blank && i < TALLY_COUNTS; i++)
        blank = work->counts[i] == 0;
    return !blank && is_asked(own, work->type);
}

/* Jobs that never reached a node count only in the total. */
static void write_servers(struct jsonw *w, struct report_call *own)
{
    size_t count = own->sum->works.count, next;

    jsonw_karr(w, "servers");
    for (size_t at = 0; at < count; at = next) {
        struct str node = own->works[at]->node;
        size_t kept = 0;

        for (next = at; next < count && str_eq(own->works[next]->node, node); next++)
            if (is_wanted(own, own->works[next]))
                own->works[at + kept++] = own->works[next];
        if (own->node.len && !str_eq(own->node, node))
            continue;
        if (str_is(node, "-"))
            for (size_t i = 0; i < kept; i++)
                add_work(&own->total, own->works[at + i]);
        else if (kept > 0 || !own->type.len)
            write_server(w, own, node, own->works + at, kept);
    }
    jsonw_end_arr(w);
}

static void write_scope(struct jsonw *w, struct report_call *own)
{
    struct str scope = STR("what this instance saw, by whole hours");

    if (own->asked > 0)
        scope = arena_fmt(&own->arena, "what %zu of %zu instances saw, by whole hours",
                          own->answered + 1, own->asked + 1);
    jsonw_kstr(w, "scope", scope);
}

static void write_report(struct report_call *own)
{
    struct jsonw w = jsonw_to(&own->text);
    const struct tally_machine *machine;
    const struct tally_refusal *refusal;

    /* Give every node with any figure a row of work, if only of zeros, so that one list has all
     * nodes. */
    for (size_t at = 0; (refusal = map_next(&own->sum->refusals, &at));)
        tally_work(own->sum, refusal->node, refusal->type);
    for (size_t at = 0; (machine = map_next(&own->sum->machines, &at));)
        tally_work(own->sum, machine->node, STR("-"));
    own->works = sorted(&own->sum->works, by_work, &own->arena);
    own->refusals = sorted(&own->sum->refusals, by_refusal, &own->arena);
    jsonw_obj(&w);
    jsonw_kint(&w, "since_ms", own->query.since_ms);
    jsonw_kint(&w, "until_ms", own->query.until_ms);
    write_scope(&w, own);
    write_servers(&w, own);
    /* Requests that were refused before any node was considered. */
    jsonw_karr(&w, "refused");
    for (size_t i = 0; i < own->sum->refusals.count; i++) {
        refusal = own->refusals[i];
        if (!str_is(refusal->node, "-") || !is_asked(own, refusal->type))
            continue;
        jsonw_obj(&w);
        jsonw_kstr(&w, "type", namespace_shown(&own->view, refusal->type));
        jsonw_kstr(&w, "reason", refusal->reason);
        jsonw_kint(&w, "count", (int64_t)refusal->count);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    jsonw_kobj(&w, "total");
    write_counts(&w, &own->total);
    write_share(&w, "slot_use", own->used_ms, own->max_ms);
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
}

/* --- usage --- */

/* How an amount x milliseconds is shown: dividing by this gives units x seconds. */
static const struct {
    const char *name;
    double divide;
} usage_columns[TALLY_AMOUNTS] = {
    [TALLY_RUN_MS] = {"run_seconds", 1000},
    [TALLY_SLOTS] = {"slot_seconds", 1000},
    [TALLY_CPU] = {"core_seconds", 1000.0 * DEMAND_CPU_MILLI},
    [TALLY_MEM_MB] = {"gb_seconds", 1000.0 * 1024},
    [TALLY_GPUS] = {"gpu_seconds", 1000},
    [TALLY_VRAM_MB] = {"vram_gb_seconds", 1000.0 * 1024},
};

struct usage_row {
    struct str name; /* at == NULL: jobs without keys */
    struct tally_usage usage;
};

struct usage {
    struct map map;
    struct usage_row **rows; /* by name */
    size_t count;
    struct tally_usage total;
};

static void usage_add(struct usage *usage, struct str name, const struct tally_usage *more,
                      struct arena *arena)
{
    struct usage_row *row = map_get(&usage->map, name);

    if (!more->runs)
        return;
    if (!row) {
        row = arena_new(arena, struct usage_row);
        row->name = name;
        map_put(&usage->map, name, row);
    }
    tally_usage_add(&row->usage, more, arena);
}

static int by_name(const void *a, const void *b)
{
    return str_cmp((*(struct usage_row *const *)a)->name, (*(struct usage_row *const *)b)->name);
}

/* An attempt belongs to one node and one type, and to each of its keys, or to none. The total
 * counts it once. */
static struct usage usage_of(struct report_call *own)
{
    struct usage usage = {0};
    const struct tally_work *work;
    const struct tally_key *key;

    for (size_t at = 0; (work = map_next(&own->sum->works, &at));) {
        struct str name = own->query.by == BY_NODE ? work->node : work->type;

        if (!is_asked(own, work->type) || (own->node.len && !str_eq(own->node, work->node)))
            continue;
        if (own->query.by == BY_TYPE)
            name = namespace_shown(&own->view, name);
        tally_usage_add(&usage.total, &work->keyless, &own->arena);
        tally_usage_add(&usage.total, &work->keyed, &own->arena);
        usage_add(&usage, own->query.by == BY_KEY ? STR_NONE : name, &work->keyless, &own->arena);
        if (own->query.by != BY_KEY)
            usage_add(&usage, name, &work->keyed, &own->arena);
    }
    for (size_t at = 0; own->query.by == BY_KEY && (key = map_next(&own->sum->keys, &at));)
        if (is_asked(own, key->type))
            usage_add(&usage, namespace_shown(&own->view, key->key), &key->usage, &own->arena);
    usage.count = usage.map.count;
    usage.rows = sorted(&usage.map, by_name, &own->arena);
    map_free(&usage.map);
    return usage;
}

static void usage_write(struct jsonw *w, const struct tally_usage *usage)
{
    jsonw_kint(w, "runs", usage->runs);
    for (int i = 0; i < TALLY_AMOUNTS; i++)
        jsonw_kdouble(w, usage_columns[i].name,
                      (double)usage->amount_ms[i] / usage_columns[i].divide);
    jsonw_kobj(w, "other_seconds");
    for (const struct tally_other *other = usage->others; other; other = other->next) {
        jsonw_key_str(w, other->name);
        jsonw_double(w, (double)other->amount_ms / 1000);
    }
    jsonw_end_obj(w);
}

static void write_usage(struct report_call *own)
{
    struct usage usage = usage_of(own);
    struct jsonw w = jsonw_to(&own->text);

    jsonw_obj(&w);
    jsonw_kint(&w, "since_ms", own->query.since_ms);
    jsonw_kint(&w, "until_ms", own->query.until_ms);
    write_scope(&w, own);
    jsonw_kstr(&w, "by", str_of(by_names[own->query.by]));
    jsonw_karr(&w, "rows");
    for (size_t i = 0; i < usage.count; i++) {
        jsonw_obj(&w);
        jsonw_kstr(&w, "name", usage.rows[i]->name);
        usage_write(&w, &usage.rows[i]->usage);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    jsonw_kobj(&w, "total");
    usage_write(&w, &usage.total);
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
}

/* A field of RFC 4180. What a spreadsheet would take for a formula is marked as text. */
static void csv_text(struct buf *to, struct str text)
{
    bool formula = text.len && strchr("=+-@\t\r", text.at[0]);

    buf_char(to, '"');
    if (formula)
        buf_char(to, '\'');
    for (size_t i = 0; i < text.len; i++) {
        if (text.at[i] == '"')
            buf_char(to, '"');
        buf_char(to, text.at[i]);
    }
    buf_char(to, '"');
}

static void csv_time(struct buf *to, int64_t ms)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    char text[32];

    gmtime_r(&seconds, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    buf_fmt(to, "%s,", text);
}

static int by_text(const void *a, const void *b)
{
    return str_cmp(*(const struct str *)a, *(const struct str *)b);
}

static int64_t other_of(const struct tally_usage *usage, struct str name)
{
    for (const struct tally_other *other = usage->others; other; other = other->next)
        if (str_eq(other->name, name))
            return other->amount_ms;
    return 0;
}

/* The hours that were added up, from the start of the first; no line of totals, which would be
 * summed with the rest. */
static void write_csv(struct report_call *own)
{
    struct usage usage = usage_of(own);
    struct buf *to = &own->text;
    struct str others[TALLY_OTHERS_MAX];
    size_t other_count = 0;

    /* Every resource named in any row gets a column. */
    for (const struct tally_other *other = usage.total.others; other; other = other->next)
        others[other_count++] = other->name;
    qsort(others, other_count, sizeof *others, by_text);
    buf_fmt(to, "from,until,%s,runs", by_names[own->query.by]);
    for (int i = 0; i < TALLY_AMOUNTS; i++)
        buf_fmt(to, ",%s", usage_columns[i].name);
    for (size_t i = 0; i < other_count; i++)
        buf_fmt(to, ",other_seconds." STR_FMT, STR_ARG(others[i])); /* a name needs no quotes */
    buf_str(to, STR("\r\n"));
    for (size_t i = 0; i < usage.count; i++) {
        const struct usage_row *row = usage.rows[i];

        csv_time(to, own->query.since_ms - own->query.since_ms % HOUR_MS);
        csv_time(to, own->query.until_ms + 1);
        csv_text(to, row->name);
        buf_fmt(to, ",%lld", (long long)row->usage.runs);
        for (int k = 0; k < TALLY_AMOUNTS; k++)
            buf_fmt(to, ",%.3f", (double)row->usage.amount_ms[k] / usage_columns[k].divide);
        for (size_t k = 0; k < other_count; k++)
            buf_fmt(to, ",%.3f", (double)other_of(&row->usage, others[k]) / 1000);
        buf_str(to, STR("\r\n"));
    }
}

/* On a thread of the pool. */
static void put_together(struct loop_job *job)
{
    struct report_call *own = container_of(job, struct report_call, job);

    for (size_t i = 0; i < own->part_count; i++) {
        struct tally *other = tally_new();
        struct str lines = own->parts[i];

        while (lines.len > 0) /* another release may write lines we do not know: left out */
            tally_load(other, str_cut(&lines, '\n'));
        tally_merge_other(own->sum, other);
        tally_free(other);
    }
    own->query.form->write(own);
}

static void written(struct loop_job *job)
{
    struct report_call *own = container_of(job, struct report_call, job);
    struct http_reply reply = {
        .status = 200, .content_type = own->query.form->media, .body = buf_view(&own->text)};

    if (!atomic_load(&own->loop->stopping))
        call_reply(own->call, &reply);
    tally_free(own->sum);
    buf_free(&own->text);
    arena_free(&own->arena);
    free(own);
}

static void summed(struct msg *msg)
{
    struct report_call *own = container_of(msg, struct report_call, msg);

    own->job.run = put_together;
    own->job.done = written;
    loop_work(own->loop, &own->job);
}

/* On the keeper's thread. */
static void add_up(struct msg *msg)
{
    struct report_call *own = container_of(msg, struct report_call, msg);

    own->sum = hours_sum(own->hours, own->query.since_ms, own->query.until_ms);
    own->msg.run = summed;
    inbox_post(&own->loop->inbox, &own->msg);
}

/* The question, kept in the request's memory until the others have answered. */
struct report_ask {
    struct peers_round round;
    struct call *call;
    struct report_query query;
};

static void parts_came(struct peers_round *round)
{
    struct report_ask *ask = container_of(round, struct report_ask, round);
    struct worker *worker = round->worker;
    struct report_call *own = mem_new(struct report_call);

    own->call = ask->call;
    own->query = ask->query;
    own->loop = &worker->loop;
    own->hours = keeper_hours(worker->server->sched.keeper);
    own->node = arena_str(&own->arena, http_query(ask->call->req, "node_id"));
    own->view = call_view(ask->call);
    own->view.namespace = arena_str(&own->arena, own->view.namespace);
    own->type = namespace_wanted(
        &own->view, arena_str(&own->arena, http_query(ask->call->req, "type")), &own->arena);
    own->parts = arena_array(&own->arena, struct str, round->count + 1);
    for (; own->part_count < round->count; own->part_count++)
        own->parts[own->part_count] = arena_str(&own->arena, round->texts[own->part_count]);
    own->asked = round->asked;
    own->answered = round->answered;
    own->msg.run = add_up;
    inbox_post(&server_keeper(worker->server)->loop.inbox, &own->msg);
}

static void ask_all(struct call *call, struct report_query query)
{
    struct report_ask *ask = arena_new(call->arena, struct report_ask);

    assert(query.since_ms <= query.until_ms);
    ask->call = call;
    ask->query = query;
    ask->round = (struct peers_round){.worker = call->worker,
                                      .arena = call->arena,
                                      .method = "Instance/Report",
                                      .params = arena_fmt(call->arena, "%lld %lld",
                                                          (long long)query.since_ms,
                                                          (long long)query.until_ms),
                                      .done = parts_came};
    peers_round_start(&ask->round);
}

void api_report(struct call *call)
{
    static const struct report_form form = {write_report, "application/json"};
    int64_t since_ms = SINCE_DEFAULT_MS, now_ms = call->worker->loop.wall_ms;

    if (call_query_ms(call, "since", (int64_t)HOURS_MAX * HOUR_MS, &since_ms))
        ask_all(call, (struct report_query){&form, BY_NODE, now_ms - since_ms, now_ms});
}

/* Reads `day`, like 2026-11-18: its 24 hours in UTC. False: not a valid day. */
static bool read_day(struct str text, int64_t *ret_since_ms)
{
    struct tm tm = {0};
    char day[16];
    const char *end;

    if (text.len != strlen("2026-11-18") || !str_copy(text, day, sizeof day))
        return false;
    end = strptime(day, "%Y-%m-%d", &tm);
    if (!end || *end || tm.tm_year < 70)
        return false;
    int said = tm.tm_mday;
    *ret_since_ms = (int64_t)timegm(&tm) * 1000;
    return tm.tm_mday == said; /* February has no 31st: timegm made March of it */
}

static void ask_usage(struct call *call, const struct report_form *form)
{
    int64_t since_ms = SINCE_DEFAULT_MS, now_ms = call->worker->loop.wall_ms, day_ms = 0;
    struct str day = call_query(call, "day"), name = call_query(call, "by");
    enum usage_by by = BY_NODE;

    while (name.at && by < BY_COUNT && !str_is(name, by_names[by]))
        by++;
    if (by == BY_COUNT) {
        call_error(call, ERR_BAD_FIELD, "by", "by must be key, type or node.");
        return;
    }
    if (by == BY_KEY && call_query(call, "node_id").len) {
        call_error(call, ERR_BAD_FIELD, "node_id", "What keys used is not kept by node.");
        return;
    }
    if (!call_query_ms(call, "since", (int64_t)HOURS_MAX * HOUR_MS, &since_ms))
        return;
    if (!day.at)
        ask_all(call, (struct report_query){form, by, now_ms - since_ms, now_ms});
    else if (call_query(call, "since").at || !read_day(day, &day_ms))
        call_error(call, ERR_BAD_FIELD, "day",
                   "day must be like 2026-11-18, which is 24 hours by UTC, and without since.");
    else if (day_ms + 24LL * HOUR_MS <= now_ms - (int64_t)HOURS_MAX * HOUR_MS || day_ms > now_ms)
        call_error(call, ERR_BAD_FIELD, "day",
                   "day must be one of the last %d days: what was used before is not kept.",
                   HOURS_MAX / 24);
    else
        ask_all(call, (struct report_query){form, by, day_ms, day_ms + 24LL * HOUR_MS - 1});
}

void api_usage(struct call *call)
{
    static const struct report_form form = {write_usage, "application/json"};

    ask_usage(call, &form);
}

void api_usage_csv(struct call *call)
{
    static const struct report_form form = {write_csv, "text/csv; charset=utf-8; header=present"};

    ask_usage(call, &form);
}

/* --- files of hours --- */

enum { SAVE_MS = 10000, PATH_BYTES = 4096, NAME_BYTES = 64, FILE_BYTES_MAX = 64 * 1024 * 1024 };

struct archive {
    struct server *server;
    struct loop_job job;
    char path[PATH_BYTES - NAME_BYTES]; /* of the directory; "" = memory only */
    int lock; /* held: another server on the same directory must not write there */
    bool busy;
    int64_t saved_ms; /* monotonic */
    /* of the current job */
    int64_t hour;
    struct buf text;
    bool failed;
    struct problem why;
    bool failure_logged;
};

static struct hours *hours_of(struct archive *archive)
{
    return keeper_hours(archive->server->sched.keeper);
}

static void file_path(const struct archive *archive, char path[PATH_BYTES], int64_t hour)
{
    int len = snprintf(path, PATH_BYTES, "%s/%lld.jsonl", archive->path, (long long)hour);

    assert(len > 0 && len < PATH_BYTES); /* archive_new() checked it */
    (void)len;
}

/* On any thread. */
static void save_hour(struct archive *archive)
{
    char path[PATH_BYTES];

    file_path(archive, path, archive->hour);
    archive->failed = file_replace(path, buf_view(&archive->text), &archive->why) != ERR_OK;
}

static void save_run(struct loop_job *job)
{
    save_hour(container_of(job, struct archive, job));
}

/* Logs only the first of several failures in a row. */
static void log_failure(struct archive *archive)
{
    if (archive->failed && !archive->failure_logged)
        log_event(LOG_WARN, "report.not_saved", KC("reason", archive->why.detail));
    archive->failure_logged = archive->failed;
}

static void save_done(struct loop_job *job)
{
    struct archive *archive = container_of(job, struct archive, job);

    assert(archive->busy);
    archive->busy = false;
    buf_free(&archive->text);
    log_failure(archive);
}

/* The next hour that changed since it was saved; false: none did. */
static bool take_unsaved(struct archive *archive)
{
    struct hours *hours = hours_of(archive);

    for (size_t i = 0; i < HOURS_MAX; i++) {
        struct hour *hour = &hours->ring[i];

        if (!hour->tally || !hour->unsaved)
            continue;
        hour->unsaved = false;
        archive->hour = hour->number;
        archive->text = (struct buf){0};
        tally_save(hour->tally, &archive->text);
        return true;
    }
    return false;
}

void archive_tick(struct archive *archive)
{
    struct loop *loop = &server_keeper(archive->server)->loop;

    if (!archive->path[0] || archive->busy || loop->mono_ms - archive->saved_ms < SAVE_MS)
        return;
    archive->saved_ms = loop->mono_ms;
    if (!take_unsaved(archive))
        return;
    archive->busy = true;
    archive->job.run = save_run;
    archive->job.done = save_done;
    loop_work(loop, &archive->job);
}

/* Loads what can be read from a file that is incomplete or written by a later release. */
static void load_file(struct archive *archive, int64_t hour)
{
    struct arena arena = {0};
    struct problem why = {0};
    char path[PATH_BYTES];
    struct str rest = STR_NONE;
    int bad = 0;

    file_path(archive, path, hour);
    enum err err = file_read(path, FILE_BYTES_MAX, &arena, &rest, &why);
    struct tally *tally = rest.len ? hours_at(hours_of(archive), hour * HOUR_MS) : NULL;
    while (tally && rest.len > 0)
        bad += tally_load(tally, str_cut(&rest, '\n')) != ERR_OK;
    if (bad || (err && err != ERR_NOT_FOUND))
        log_event(LOG_WARN, "report.unreadable", KC("file", path), KI("lines", bad),
                  KC("reason", why.detail));
    arena_free(&arena);
}

static bool open_dir(struct archive *archive)
{
    struct arena arena = {0};
    struct str dir = ((struct settings *)archive->server->settings)->data_dir;
    struct str path = arena_fmt(&arena, STR_FMT "/report", STR_ARG(dir));

    errno = ENAMETOOLONG;
    if (str_copy(path, archive->path, sizeof archive->path)) {
        mkdir(arena_cstr(&arena, dir), 0700); /* with Redis nothing else uses it */
        mkdir(path.at, 0700);
        archive->lock =
            open(arena_fmt(&arena, "%s/lock", path.at).at, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    bool ok = archive->lock >= 0 && flock(archive->lock, LOCK_EX | LOCK_NB) == 0;
    if (!ok) {
        log_event(LOG_WARN, "report.memory_only", KS("dir", path), KC("reason", strerror(errno)));
        archive->path[0] = 0;
    }
    arena_free(&arena);
    return ok;
}

struct archive *archive_new(struct server *server)
{
    struct archive *archive = mem_new(struct archive);
    int64_t now_ms = clock_wall_ms(), last = now_ms / HOUR_MS;
    struct dirent *entry;

    *archive = (struct archive){.server = server, .lock = -1};
    if (!open_dir(archive))
        return archive;
    struct hours *hours = hours_of(archive);
    for (int64_t hour = last - HOURS_MAX + 1; hour <= last; hour++)
        load_file(archive, hour);
    for (size_t i = 0; i < HOURS_MAX; i++)
        hours->ring[i].unsaved = false;
    hours_tidy(hours, now_ms);
    /* Remove hours that are no longer kept, and half-written files. */
    DIR *listing = opendir(archive->path);
    while (listing && (entry = readdir(listing))) {
        struct str rest = str_of(entry->d_name);
        int64_t hour;

        if (str_int(str_cut(&rest, '.'), &hour) &&
            (!str_is(rest, "jsonl") || hour + HOURS_MAX <= last))
            unlinkat(dirfd(listing), entry->d_name, 0);
    }
    if (listing)
        closedir(listing);
    return archive;
}

void archive_answer(struct rpc *rpc)
{
    const struct hours *hours = keeper_hours(rpc->from->server->sched.keeper);
    struct str rest = rpc->params;
    int64_t since_ms, until_ms;

    if (!str_int(str_cut(&rest, ' '), &since_ms) || !str_int(rest, &until_ms)) {
        rpc_over(rpc, ERR_BAD_REQUEST);
        return;
    }
    struct tally *sum = hours_sum(hours, since_ms, until_ms);
    tally_save(sum, &rpc->answer);
    tally_free(sum);
    rpc_over(rpc, ERR_OK);
}

void archive_close(struct archive *archive)
{
    struct tally *now;

    if (!archive)
        return;
    assert(!archive->busy); /* loop_done waited for it */
    now = hours_at(hours_of(archive), clock_wall_ms());
    tally_collect(&archive->server->sched, now);
    for (int i = 0; now && i <= archive->server->loop_count; i++)
        tally_merge(now, archive->server->sched.loops[i].tally);
    while (archive->path[0] && take_unsaved(archive)) {
        save_hour(archive);
        buf_free(&archive->text);
        log_failure(archive);
    }
    if (archive->lock >= 0)
        close(archive->lock);
    free(archive);
}
