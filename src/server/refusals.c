/* A table that is emptied at the end of each window: nothing in it ages by itself. */
#include "server/refusals.h"

#include <assert.h>

#include "base/mem.h"

struct refusal {
    uint64_t caller; /* 0: several */
    int64_t noted;
    struct audit_entry more; /* the first that was only counted; its `count` is of all of them */
};

struct refusals {
    int64_t since_ms; /* monotonic: when the window began */
    size_t count;
    struct refusal callers[REFUSALS_CALLERS_MAX];
};

struct refusals *refusals_new(void)
{
    return mem_new(struct refusals);
}

static struct refusal *find_or_add(struct refusals *refusals, uint64_t caller)
{
    for (size_t i = 0; i < refusals->count; i++)
        if (refusals->callers[i].caller == caller)
            return &refusals->callers[i];
    if (refusals->count == REFUSALS_CALLERS_MAX) {
        refusals->callers[REFUSALS_CALLERS_MAX - 1].caller = 0;
        return &refusals->callers[REFUSALS_CALLERS_MAX - 1];
    }
    refusals->callers[refusals->count] = (struct refusal){.caller = caller};
    return &refusals->callers[refusals->count++];
}

void refusals_note(struct worker *worker, uint64_t caller, int64_t max,
                   const struct audit_entry *entry)
{
    struct refusals *refusals = worker->refusals;
    struct refusal *refusal;

    assert(caller != 0 && entry->kind == AUDIT_REFUSED && entry->count == 1);
    if (!refusals->count)
        refusals->since_ms = worker->loop.mono_ms;
    refusal = find_or_add(refusals, caller);
    if (refusal->noted < max) {
        refusal->noted++;
        audit_note(worker, entry);
    } else if (refusal->more.count++ == 0) {
        refusal->more = *entry;
    }
}

void refusals_tell(struct worker *worker)
{
    struct refusals *refusals = worker->refusals;

    for (size_t i = 0; i < refusals->count; i++) {
        struct refusal *refusal = &refusals->callers[i];

        if (refusal->caller == 0)
            refusal->more.who[0] = refusal->more.peer[0] = 0;
        if (refusal->more.count > 0)
            audit_note(worker, &refusal->more);
    }
    refusals->count = 0;
}

void refusals_tick(struct worker *worker)
{
    if (worker->loop.mono_ms - worker->refusals->since_ms >= REFUSALS_WINDOW_MS)
        refusals_tell(worker);
}
