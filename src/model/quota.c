/* Quotas as people write them, and the meter of a rate. */
#include "model/quota.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const int64_t RATE_MAX = 1000000, WAITING_MAX = 100000000, BYTES_MAX = INT64_C(1) << 40;
static const int64_t NS_OF_MS = 1000000;

static const struct {
    const char *name;
    int64_t ms;
} spans[] = {{"s", 1000}, {"m", 60000}, {"h", 3600000}};

/* The largest first: a size is shown in the largest that divides it. */
static const struct {
    const char *name;
    int64_t bytes;
} units[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}};

static bool read_number(struct str text, int64_t max, int64_t *ret_number)
{
    return str_int(text, ret_number) && *ret_number >= 1 && *ret_number <= max;
}

static bool read_rate(struct str text, struct quota *quota)
{
    struct str count = str_cut(&text, '/');

    for (size_t i = 0; i < COUNT_OF(spans); i++)
        if (str_is(text, spans[i].name))
            quota->rate_ms = spans[i].ms;
    return read_number(count, RATE_MAX, &quota->rate) && quota->rate_ms;
}

static bool read_waiting(struct str text, struct quota *quota)
{
    return read_number(text, WAITING_MAX, &quota->waiting);
}

static bool read_bytes(struct str text, struct quota *quota)
{
    size_t digits = 0;
    int64_t number;

    while (digits < text.len && text.at[digits] >= '0' && text.at[digits] <= '9')
        digits++;
    struct str unit = {.at = text.at + digits, .len = text.len - digits};
    if (!read_number((struct str){.at = text.at, .len = digits}, BYTES_MAX, &number))
        return false;
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (!str_is(unit, units[i].name) || number > BYTES_MAX / units[i].bytes)
            continue;
        quota->bytes = number * units[i].bytes;
        return true;
    }
    return false;
}

static const struct {
    const char *name;
    bool (*read)(struct str text, struct quota *quota);
} parts[] = {{"rate", read_rate}, {"waiting", read_waiting}, {"bytes", read_bytes}};

enum err quota_parse(struct str text, struct quota *ret_quota, struct problem *why)
{
    struct quota quota = {0};
    unsigned seen = 0;

    do {
        struct str value = str_cut(&text, ','), name = str_cut(&value, '=');
        size_t i = 0;

        while (i < COUNT_OF(parts) && !str_is(name, parts[i].name))
            i++;
        if (i == COUNT_OF(parts) || (seen & 1u << i) || !value.at || !parts[i].read(value, &quota))
            return problem_set(why, ERR_BAD_FIELD, "quota",
                               "quota must be like rate=10/s,waiting=1000,bytes=64MiB, each at "
                               "most once; a rate is by s, m or h.");
        seen |= 1u << i;
    } while (text.at);
    *ret_quota = quota;
    return ERR_OK;
}

static const char *span_name(int64_t ms)
{
    for (size_t i = 0; i < COUNT_OF(spans); i++)
        if (spans[i].ms == ms)
            return spans[i].name;
    assert(!"a rate has one of the spans");
    return "";
}

void quota_text(const struct quota *quota, char to[QUOTA_TEXT_MAX + 1])
{
    size_t len = 0, size = QUOTA_TEXT_MAX + 1;

    to[0] = '\0';
    if (quota->rate)
        len += (size_t)snprintf(to, size, "rate=%" PRId64 "/%s", quota->rate,
                                span_name(quota->rate_ms));
    if (quota->waiting)
        len += (size_t)snprintf(to + len, size - len, "%swaiting=%" PRId64, len ? "," : "",
                                quota->waiting);
    for (size_t i = 0; quota->bytes && i < COUNT_OF(units); i++) {
        if (quota->bytes % units[i].bytes)
            continue;
        len += (size_t)snprintf(to + len, size - len, "%sbytes=%" PRId64 "%s", len ? "," : "",
                                quota->bytes / units[i].bytes, units[i].name);
        break;
    }
    assert(len <= QUOTA_TEXT_MAX);
}

/* Every job moves the meter on by its share of the span. One that would move it more than a whole
 * span ahead of the clock has to wait: so a span's worth may come at once, and no more than that
 * beside what the clock makes room for. */
bool quota_take(const struct quota *quota, quota_meter *meter, int64_t now_ms, int64_t *ret_wait_ms)
{
    int64_t now_ns = now_ms * NS_OF_MS, span_ns = quota->rate_ms * NS_OF_MS;
    int64_t was = atomic_load_explicit(meter, memory_order_relaxed), next;

    assert(quota->rate > 0 && span_ns > 0);
    do {
        next = (was > now_ns ? was : now_ns) + span_ns / quota->rate;
        if (next - now_ns > span_ns) {
            *ret_wait_ms = (next - now_ns - span_ns + NS_OF_MS - 1) / NS_OF_MS;
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(meter, &was, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}
