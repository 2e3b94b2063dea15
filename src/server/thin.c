/* The last event of each job, found by an open hash that is never more than a quarter full. */
#include "server/thin.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Ids differ in their low bits and in the middle: both must matter. */
static size_t place_of(uint64_t job)
{
    return (size_t)((job * 0x9e3779b97f4a7c15u) >> 40) & (THIN_PLACES - 1);
}

/* The place of a job, or the free one where it belongs. */
static uint16_t *find(struct thin *thin, uint64_t job)
{
    size_t at = place_of(job);

    while (thin->places[at] && thin->frames[thin->places[at] - 1]->job != job)
        at = (at + 1) & (THIN_PLACES - 1);
    return &thin->places[at];
}

void thin_add(struct thin *thin, struct frame *frame)
{
    uint16_t *place = frame->job ? find(thin, frame->job) : NULL;

    assert(thin->count <= THIN_FRAMES);
    if (place && *place) {
        struct frame **old = &thin->frames[*place - 1];

        assert((*old)->seq < frame->seq);
        frame_unref(*old);
        *old = frame;
    } else if (thin->count < THIN_FRAMES) {
        thin->frames[thin->count++] = frame;
        if (place)
            *place = (uint16_t)thin->count;
    } else {
        thin->skipped++;
        return;
    }
    atomic_fetch_add(&frame->refs, 1);
}

static int by_seq(const void *a, const void *b)
{
    const struct frame *const *left = a, *const *right = b;

    return ((*left)->seq > (*right)->seq) - ((*left)->seq < (*right)->seq);
}

void thin_sort(struct thin *thin)
{
    qsort(thin->frames, thin->count, sizeof thin->frames[0], by_seq);
}

void thin_clear(struct thin *thin)
{
    for (size_t i = 0; i < thin->count; i++)
        frame_unref(thin->frames[i]);
    thin->count = 0;
    thin->skipped = 0;
    memset(thin->places, 0, sizeof thin->places);
}
