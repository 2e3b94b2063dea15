/* The kernel's clocks, and xoshiro256** seeded through splitmix64. */
#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/types.h>

static int64_t read_us(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t clock_wall_ms(void)
{
    return read_us(CLOCK_REALTIME) / 1000;
}

int64_t clock_mono_ms(void)
{
    return read_us(CLOCK_MONOTONIC) / 1000;
}

int64_t clock_mono_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

static clockid_t lease_clock = CLOCK_BOOTTIME;

int64_t clock_lease_ms(void)
{
    return read_us(lease_clock) / 1000;
}

void clock_leases_sleep(void)
{
    lease_clock = CLOCK_MONOTONIC;
}

clockid_t clock_lease_id(void)
{
    return lease_clock;
}

/* Repeats until no time passes between the two readings: a pause there would look as if somebody
 * had set the clock. */
int64_t clock_wall_ahead_ms(void)
{
    int64_t before_us, wall_ms;

    do {
        before_us = clock_mono_us();
        wall_ms = clock_wall_ms();
    } while (clock_mono_us() - before_us > 1000);
    return wall_ms - before_us / 1000;
}

/* Writes `count` decimal digits of `value`, then `after`; returns the end. */
static char *put_digits(char *to, int64_t value, int count, char after)
{
    for (int i = count; i > 0; i--, value /= 10)
        to[i - 1] = (char)('0' + value % 10);
    assert(value == 0);
    to[count] = after;
    return to + count + 1;
}

/* Years start in March here, so that the leap day is the last day of the year; every era of 400
 * years has the same number of days. */
void clock_iso(int64_t wall_ms, char text[CLOCK_ISO_BYTES])
{
    int64_t day = wall_ms / 86400000 + 719468; /* since 0000-03-01 */
    int64_t sec = wall_ms / 1000 % 86400;
    int64_t era = day / 146097;
    int64_t year;
    int64_t month;

    assert(wall_ms >= 0 && wall_ms < 253402300800000);
    day %= 146097;
    year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    month = (5 * day + 2) / 153; /* from March */
    day -= (153 * month + 2) / 5;
    text = put_digits(text, era * 400 + year + (month >= 10), 4, '-');
    text = put_digits(text, month >= 10 ? month - 9 : month + 3, 2, '-');
    text = put_digits(text, day + 1, 2, 'T');
    text = put_digits(text, sec / 3600, 2, ':');
    text = put_digits(text, sec / 60 % 60, 2, ':');
    text = put_digits(text, sec % 60, 2, '.');
    text = put_digits(text, wall_ms % 1000, 3, 'Z');
    *text = '\0';
}

void rnd_seed(struct rnd *rnd, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;

        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        rnd->s[i] = z ^ z >> 31;
    }
}

void rnd_seed_os(struct rnd *rnd)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        abort();
    rnd_seed(rnd, seed);
}

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

inline uint64_t rnd_next(struct rnd *rnd)
{
    uint64_t *s = rnd->s;
    uint64_t result = rotate(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    assert(s[0] | s[1] | s[2] | s[3]); /* rnd_seed was called */
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

uint32_t rnd_below(struct rnd *rnd, uint32_t bound)
{
    uint64_t product;
    uint32_t unfair;

    assert(bound > 0);
    product = (rnd_next(rnd) >> 32) * bound;
    if ((uint32_t)product >= bound)
        return (uint32_t)(product >> 32);
    /* The first 2^32 mod bound values would come up once more than the rest: draw again. */
    unfair = (0u - bound) % bound;
    while ((uint32_t)product < unfair)
        product = (rnd_next(rnd) >> 32) * bound;
    return (uint32_t)(product >> 32);
}
