/* Limits by key: rules, the sliding window of starts, and what a key admits. */
#include "model/limit.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "model/demand.h"

const struct limit limit_none = {
    .concurrency = LIMIT_NONE, .rate = LIMIT_NONE, .queue = LIMIT_NONE, .weight = 1};

/* --- rules --- */

static bool is_open(struct str pattern)
{
    return pattern.len && pattern.at[pattern.len - 1] == '*';
}

bool limit_is_pattern(struct str pattern)
{
    if (!is_open(pattern))
        return demand_is_key(pattern);
    pattern.len--;
    if (!pattern.len)
        return true;
    if (pattern.at[pattern.len - 1] != '/')
        return demand_is_key(pattern);
    pattern.len--; /* all keys of a namespace */
    return str_is_id(pattern, DEMAND_KEY_MAX);
}

bool limit_matches(struct str pattern, struct str key)
{
    if (!is_open(pattern))
        return str_eq(pattern, key);
    pattern.len--;
    return str_starts(key, pattern);
}

bool limit_is_closer(struct str a, struct str b)
{
    return is_open(a) != is_open(b) ? is_open(b) : a.len > b.len;
}

bool limit_rate_parse(struct str text, struct limit *limit)
{
    struct str window = text;
    struct str number = str_cut(&window, '/');
    int64_t rate, rate_ms;

    if (!str_int(number, &rate) || rate < 1 || rate > LIMIT_RATE_MAX || !window.len)
        return false;
    /* "60/m" is 60/1m */
    if (window.len <= 2 && (window.at[0] < '0' || window.at[0] > '9')) {
        char one[4] = {'1', window.at[0], window.len > 1 ? window.at[1] : 0, 0};

        if (!str_duration_ms(str_of(one), &rate_ms))
            return false;
    } else if (!str_duration_ms(window, &rate_ms)) {
        return false;
    }
    if (rate_ms < 1 || rate_ms > LIMIT_WINDOW_MS_MAX)
        return false;
    limit->rate = (int32_t)rate;
    limit->rate_ms = rate_ms;
    return true;
}

void limit_rate_text(const struct limit *limit, struct buf *to)
{
    static const struct {
        int64_t ms;
        const char *unit;
    } units[] = {{24 * 3600 * 1000, "d"}, {3600 * 1000, "h"}, {60 * 1000, "m"}, {1000, "s"}};

    buf_int(to, limit->rate);
    buf_char(to, '/');
    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (limit->rate_ms % units[i].ms == 0) {
            buf_fmt(to, "%d%s", (int)(limit->rate_ms / units[i].ms), units[i].unit);
            return;
        }
    buf_fmt(to, "%dms", (int)limit->rate_ms);
}

static void write_bound(struct jsonw *w, const char *name, int32_t bound)
{
    if (bound == LIMIT_NONE)
        jsonw_knull(w, name);
    else
        jsonw_kint(w, name, bound);
}

void limit_write_members(const struct limit *limit, struct jsonw *w)
{
    struct buf rate = {0};

    if (limit->rate != LIMIT_NONE)
        limit_rate_text(limit, &rate);
    write_bound(w, "concurrency", limit->concurrency);
    jsonw_kstr(w, "rate", limit->rate != LIMIT_NONE ? buf_view(&rate) : STR_NONE);
    write_bound(w, "queue", limit->queue);
    jsonw_kint(w, "weight", limit->weight);
    buf_free(&rate);
}

void limit_write(const struct limit *limit, struct buf *to)
{
    buf_fmt(to, "%d %d %lld %d %d", limit->concurrency, limit->rate, (long long)limit->rate_ms,
            limit->queue, limit->weight);
}

bool limit_parse(struct str text, struct limit *ret_limit)
{
    int64_t numbers[5];

    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (!str_int(str_cut(&text, ' '), &numbers[i]))
            return false;
    if (text.at || numbers[0] < LIMIT_NONE || numbers[0] > DEMAND_AMOUNT_MAX ||
        numbers[1] < LIMIT_NONE || numbers[1] > LIMIT_RATE_MAX || numbers[1] == 0 ||
        numbers[2] < (numbers[1] != LIMIT_NONE) || numbers[2] > LIMIT_WINDOW_MS_MAX ||
        numbers[3] < LIMIT_NONE || numbers[3] > DEMAND_AMOUNT_MAX || numbers[4] < 1 ||
        numbers[4] > LIMIT_WEIGHT_MAX)
        return false;
    *ret_limit = (struct limit){.concurrency = (int32_t)numbers[0],
                                .rate = (int32_t)numbers[1],
                                .rate_ms = numbers[2],
                                .queue = (int32_t)numbers[3],
                                .weight = (int32_t)numbers[4]};
    return true;
}

/* --- the window --- */

static struct limit_start *start_at(const struct limit_window *window, uint32_t index)
{
    assert(index < window->count);
    return &window->starts[(window->first + index) % window->cap];
}

void limit_window_free(struct limit_window *window)
{
    free(window->starts);
    *window = (struct limit_window){0};
}

int64_t limit_window_wait_ms(struct limit_window *window, const struct limit *limit, int64_t now_ms)
{
    int64_t over, wait_ms = 0;

    if (limit->rate == LIMIT_NONE) {
        limit_window_free(window);
        return 0;
    }
    /* After the clock was set back, starts may lie in the future: they count as old as they can
     * be. */
    while (window->count && (now_ms - start_at(window, 0)->at_ms >= limit->rate_ms ||
                             start_at(window, 0)->at_ms - now_ms > limit->rate_ms)) {
        window->total -= start_at(window, 0)->count;
        window->first = (window->first + 1) % window->cap;
        window->count--;
        assert(window->total >= 0);
    }
    over = window->total - limit->rate + 1; /* starts that must leave the window first */
    for (uint32_t i = 0; over > 0; i++) {
        over -= start_at(window, i)->count;
        wait_ms = start_at(window, i)->at_ms + limit->rate_ms - now_ms;
    }
    return wait_ms > 0 ? wait_ms : 0;
}

/* The end of the step that contains a moment. */
static int64_t step_end(const struct limit *limit, int64_t at_ms)
{
    int64_t step_ms = limit->rate > LIMIT_STEPS ? limit->rate_ms / LIMIT_STEPS : 1;

    if (step_ms <= 1)
        return at_ms;
    return (at_ms + step_ms - 1) / step_ms * step_ms;
}

static void push(struct limit_window *window, int64_t at_ms, int32_t count)
{
    if (window->count == window->cap) {
        uint32_t cap = window->cap ? 2 * window->cap : 4;
        struct limit_start *starts = mem_alloc(cap * sizeof *starts);

        for (uint32_t i = 0; i < window->count; i++)
            starts[i] = *start_at(window, i);
        free(window->starts);
        window->starts = starts;
        window->first = 0;
        window->cap = cap;
    }
    window->count++;
    *start_at(window, window->count - 1) = (struct limit_start){.at_ms = at_ms, .count = count};
    window->total += count;
}

void limit_window_add(struct limit_window *window, const struct limit *limit, int64_t now_ms)
{
    int64_t at_ms = step_end(limit, now_ms);

    if (limit->rate == LIMIT_NONE)
        return;
    if (window->count && start_at(window, window->count - 1)->at_ms >= at_ms) {
        start_at(window, window->count - 1)->count++;
        window->total++;
    } else {
        push(window, at_ms, 1);
    }
}

void limit_window_undo(struct limit_window *window, const struct limit *limit, int64_t at_ms)
{
    at_ms = step_end(limit, at_ms);
    for (uint32_t i = window->count; i-- > 0;) {
        struct limit_start *start = start_at(window, i);

        if (start->at_ms < at_ms)
            return;
        if (start->at_ms > at_ms)
            continue;
        window->total--;
        /* No empty entry is left: a node that keeps refusing would fill the window with them. */
        if (--start->count == 0) {
            for (; i + 1 < window->count; i++)
                *start_at(window, i) = *start_at(window, i + 1);
            window->count--;
        }
        return;
    }
}

void limit_window_write(const struct limit_window *window, struct buf *to)
{
    int64_t before = 0;

    for (uint32_t i = 0; i < window->count; i++) {
        const struct limit_start *start = start_at(window, i);

        if (i)
            buf_char(to, ' ');
        buf_int(to, start->at_ms - before);
        buf_char(to, ' ');
        buf_int(to, start->count);
        before = start->at_ms;
    }
}

bool limit_window_parse(struct str text, struct limit_window *ret_window)
{
    struct limit_window window = {0};
    int64_t before = 0;

    while (text.len) {
        int64_t at_ms, count;

        if (!str_int(str_cut(&text, ' '), &at_ms) || !str_int(str_cut(&text, ' '), &count) ||
            count < 1 || count > INT32_MAX || (window.count && at_ms < 0) ||
            __builtin_add_overflow(before, at_ms, &before)) {
            limit_window_free(&window);
            return false;
        }
        push(&window, before, (int32_t)count);
    }
    *ret_window = window;
    return true;
}

/* --- a key --- */

const char *limit_why_name(enum limit_why why)
{
    static const char *const names[LIMIT_WHY_COUNT] = {[LIMIT_OK] = "ok",
                                                       [LIMIT_HELD] = "hold",
                                                       [LIMIT_CONCURRENCY] = "concurrency",
                                                       [LIMIT_RATE] = "rate",
                                                       [LIMIT_QUEUE] = "queue"};

    assert(why < LIMIT_WHY_COUNT);
    return names[why];
}

struct limit_block limit_check(struct limit_key *key, const struct limit *limit, int64_t now_ms)
{
    int64_t wait_ms;

    if (key->hold_until_ms > now_ms)
        return (struct limit_block){.why = LIMIT_HELD, .retry_ms = key->hold_until_ms - now_ms};
    if (limit->concurrency != LIMIT_NONE && key->in_flight >= limit->concurrency)
        return (struct limit_block){
            .why = LIMIT_CONCURRENCY, .limit = limit->concurrency, .used = key->in_flight};
    wait_ms = limit_window_wait_ms(&key->window, limit, now_ms);
    if (wait_ms > 0)
        return (struct limit_block){.why = LIMIT_RATE,
                                    .limit = limit->rate,
                                    .used = (int32_t)key->window.total,
                                    .retry_ms = wait_ms};
    return (struct limit_block){.why = LIMIT_OK};
}

struct limit_block limit_check_queue(const struct limit_key *key, const struct limit *limit)
{
    if (limit->queue == LIMIT_NONE || key->waiting < limit->queue)
        return (struct limit_block){.why = LIMIT_OK};
    return (struct limit_block){.why = LIMIT_QUEUE, .limit = limit->queue, .used = key->waiting};
}
