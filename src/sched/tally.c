/* Rows by key. A key is ids with blanks between, which no id holds. */
#include "sched/tally.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/node.h"

enum { KEY_MAX = 512 };

#define OTHER STR("other")

static const char *const count_names[TALLY_COUNTS] = {
    [TALLY_DONE] = "succeeded",      [TALLY_FAILED] = "failed",
    [TALLY_CANCELLED] = "cancelled", [TALLY_ATTEMPTS] = "attempts",
    [TALLY_RETRIED] = "retried",     [TALLY_FAILOVERS] = "failovers",
    [TALLY_KILLS] = "kills",         [TALLY_BREAKERS] = "breaker_opened"};

const char *tally_count_name(enum tally_count count)
{
    assert(count < TALLY_COUNTS);
    return count_names[count];
}

const char *tally_level_name(int level)
{
    assert(level >= 0 && level < TALLY_LEVELS);
    return level == TALLY_UNMEASURED ? "unmeasured"
           : level == TALLY_OFFLINE  ? "offline"
                                     : level_name((enum level)level);
}

/* The upper bound of a bucket: 1, 1.41, 2, 2.83, 4 ... ms. */
static double bound_ms(int bucket)
{
    return exp2(bucket / 2.0);
}

void tally_time(struct tally_times *times, int64_t ms)
{
    int bucket = 0;

    if (ms > 1)
        bucket = (int)ceil(2 * log2((double)ms) - 1e-9);
    if (bucket >= TALLY_BUCKETS)
        bucket = TALLY_BUCKETS - 1;
    assert(bucket >= 0);
    times->counts[bucket]++;
}

int64_t tally_percentile(const struct tally_times *times, int percent)
{
    uint64_t total = 0, seen = 0;

    assert(percent > 0 && percent <= 100);
    for (int i = 0; i < TALLY_BUCKETS; i++)
        total += times->counts[i];
    if (total == 0)
        return -1;
    uint64_t rank = (total * (uint64_t)percent + 99) / 100;
    for (int i = 0; i < TALLY_BUCKETS; i++) {
        if (seen + times->counts[i] >= rank) {
            double part = (double)(rank - seen) / times->counts[i];

            return i == 0 ? 1 : llround(bound_ms(i - 1) * exp2(part / 2));
        }
        seen += times->counts[i];
    }
    return -1;
}

struct tally *tally_new(void)
{
    return mem_new(struct tally);
}

void tally_free(struct tally *tally)
{
    if (!tally)
        return;
    map_free(&tally->works);
    map_free(&tally->machines);
    map_free(&tally->refusals);
    arena_free(&tally->arena);
    free(tally);
}

bool tally_is_empty(const struct tally *tally)
{
    return tally->works.count + tally->machines.count + tally->refusals.count == 0;
}

/* An id as it came from a record; one that is none of ours, or too long, has no row of its own. */
static struct str checked(struct str id)
{
    return id.len == 0 ? STR("-") : str_is_id(id, NODE_ID_MAX) ? id : OTHER;
}

/* A type may be a namespace's. */
static struct str checked_type(struct str type)
{
    return type.len == 0 ? STR("-") : str_is_name(type, NODE_ID_MAX) ? type : OTHER;
}

static struct str join(char key[KEY_MAX], struct str a, struct str b, struct str c)
{
    struct buf buf = {.at = key, .cap = KEY_MAX};

    assert(a.len + b.len + c.len + 2 < KEY_MAX);
    buf_str(&buf, a);
    buf_char(&buf, ' ');
    buf_str(&buf, b);
    buf_char(&buf, ' ');
    buf_str(&buf, c);
    assert(buf.at == key);
    return buf_view(&buf);
}

static struct str part(struct str *rest, struct arena *arena)
{
    return arena_str(arena, str_cut(rest, ' '));
}

struct tally_work *tally_work(struct tally *tally, struct str node, struct str type)
{
    char text[KEY_MAX];
    struct str key = join(text, checked(node), checked_type(type), STR(""));
    struct tally_work *work = map_get(&tally->works, key);

    if (work)
        return work;
    if (tally->works.count >= TALLY_WORKS_MAX - 1)
        key = join(text, OTHER, OTHER, STR(""));
    work = map_get(&tally->works, key);
    if (!work) {
        struct str own = arena_str(&tally->arena, key), rest = own;

        work = arena_new(&tally->arena, struct tally_work);
        work->node = part(&rest, &tally->arena);
        work->type = part(&rest, &tally->arena);
        map_put(&tally->works, own, work);
    }
    return work;
}

struct tally_machine *tally_machine(struct tally *tally, struct str node)
{
    struct str id = checked(node);
    struct tally_machine *machine = map_get(&tally->machines, id);

    if (!machine && tally->machines.count >= TALLY_MACHINES_MAX - 1) {
        id = OTHER;
        machine = map_get(&tally->machines, id);
    }
    if (!machine) {
        machine = arena_new(&tally->arena, struct tally_machine);
        machine->node = arena_str(&tally->arena, id);
        map_put(&tally->machines, machine->node, machine);
    }
    return machine;
}

void tally_refuse(struct tally *tally, struct str node, struct str type, struct str reason,
                  uint64_t count)
{
    char text[KEY_MAX];
    struct str key = join(text, checked(node), checked_type(type), checked(reason));
    struct tally_refusal *refusal = map_get(&tally->refusals, key);

    if (!refusal && tally->refusals.count >= TALLY_REFUSALS_MAX - 1) {
        key = join(text, OTHER, OTHER, OTHER);
        refusal = map_get(&tally->refusals, key);
    }
    if (!refusal) {
        struct str own = arena_str(&tally->arena, key), rest = own;

        refusal = arena_new(&tally->arena, struct tally_refusal);
        refusal->node = part(&rest, &tally->arena);
        refusal->type = part(&rest, &tally->arena);
        refusal->reason = part(&rest, &tally->arena);
        map_put(&tally->refusals, own, refusal);
    }
    refusal->count += count;
}

static void add_times(struct tally_times *to, const struct tally_times *from)
{
    for (int i = 0; i < TALLY_BUCKETS; i++)
        to->counts[i] += from->counts[i];
}

/* Works and refusals; machines are the caller's. */
static void merge_counts(struct tally *tally, const struct tally *more)
{
    const struct tally_work *work;
    const struct tally_refusal *refusal;

    assert(tally != more);
    for (size_t at = 0; (work = map_next(&more->works, &at));) {
        struct tally_work *to = tally_work(tally, work->node, work->type);

        for (int i = 0; i < TALLY_COUNTS; i++)
            to->counts[i] += work->counts[i];
        add_times(&to->wait, &work->wait);
        add_times(&to->run, &work->run);
    }
    for (size_t at = 0; (refusal = map_next(&more->refusals, &at));)
        tally_refuse(tally, refusal->node, refusal->type, refusal->reason, refusal->count);
}

void tally_merge(struct tally *tally, const struct tally *more)
{
    const struct tally_machine *machine;

    merge_counts(tally, more);
    for (size_t at = 0; (machine = map_next(&more->machines, &at));) {
        struct tally_machine *to = tally_machine(tally, machine->node);

        for (int i = 0; i < TALLY_LEVELS; i++)
            to->level_ms[i] += machine->level_ms[i];
        to->used_ms += machine->used_ms;
        to->max_ms += machine->max_ms;
    }
}

static int64_t looked_ms(const struct tally_machine *machine)
{
    int64_t sum_ms = 0;

    for (int i = 0; i < TALLY_LEVELS; i++)
        sum_ms += machine->level_ms[i];
    return sum_ms;
}

void tally_merge_other(struct tally *tally, const struct tally *other)
{
    const struct tally_machine *machine;

    merge_counts(tally, other);
    for (size_t at = 0; (machine = map_next(&other->machines, &at));) {
        struct tally_machine *to = tally_machine(tally, machine->node);
        struct str node = to->node;

        if (looked_ms(machine) <= looked_ms(to))
            continue;
        *to = *machine;
        to->node = node; /* in our arena */
    }
}
