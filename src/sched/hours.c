/* A ring by the number of the hour. */
#include "sched/hours.h"

#include <assert.h>

static void drop(struct hour *hour)
{
    tally_free(hour->tally);
    *hour = (struct hour){0};
}

void hours_free(struct hours *hours)
{
    for (size_t i = 0; i < HOURS_MAX; i++)
        drop(&hours->ring[i]);
}

struct tally *hours_at(struct hours *hours, int64_t ms)
{
    int64_t number = ms / HOUR_MS;
    struct hour *hour = &hours->ring[number % HOURS_MAX];

    assert(ms >= 0);
    if (hour->tally && hour->number > number)
        return NULL;
    if (hour->tally && hour->number < number)
        drop(hour);
    if (!hour->tally)
        *hour = (struct hour){.number = number, .tally = tally_new()};
    hour->unsaved = true;
    return hour->tally;
}

struct tally *hours_sum(const struct hours *hours, int64_t since_ms, int64_t until_ms)
{
    struct tally *sum = tally_new();

    for (size_t i = 0; i < HOURS_MAX; i++) {
        const struct hour *hour = &hours->ring[i];

        if (hour->tally && (hour->number + 1) * HOUR_MS > since_ms &&
            hour->number * HOUR_MS <= until_ms)
            tally_merge(sum, hour->tally);
    }
    return sum;
}

static struct hour *oldest(struct hours *hours)
{
    struct hour *found = NULL;

    for (size_t i = 0; i < HOURS_MAX; i++)
        if (hours->ring[i].tally && (!found || hours->ring[i].number < found->number))
            found = &hours->ring[i];
    return found;
}

void hours_tidy(struct hours *hours, int64_t now_ms)
{
    hours->works = 0;
    for (size_t i = 0; i < HOURS_MAX; i++) {
        struct hour *hour = &hours->ring[i];

        if (hour->tally && hour->number + HOURS_MAX <= now_ms / HOUR_MS)
            drop(hour);
        hours->works += hour->tally ? hour->tally->works.count : 0;
    }
    while (hours->works > HOURS_WORKS_MAX) {
        struct hour *hour = oldest(hours);

        assert(hour);
        hours->works -= hour->tally->works.count;
        drop(hour);
    }
}
