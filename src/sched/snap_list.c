/* Lists in runs. */
#include "sched/snap_list.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The items of neighbouring runs in which something changed, until they are split into runs
 * again. */
struct group {
    const struct str **items;
    size_t count;
    size_t cap;
};

static int by_name(const void *a, const void *b)
{
    const struct snap_edit *left = a, *right = b;

    return str_cmp(*left->item, *right->item);
}

static void group_add(struct group *group, const struct str *item)
{
    if (group->count == group->cap) {
        group->cap = group->cap ? group->cap * 2 : 2 * SNAP_RUN;
        group->items = mem_resize(group->items, group->cap * sizeof *group->items);
    }
    group->items[group->count++] = item;
}

/* Makes as few runs as can hold them, evenly filled. */
static void group_end(struct group *group, struct snap_list *list, size_t *copied)
{
    size_t pieces = (group->count + SNAP_RUN - 1) / SNAP_RUN;
    size_t from = 0;

    for (size_t i = 0; i < pieces; i++) {
        size_t end = group->count * (i + 1) / pieces;
        struct snap_run *run = mem_new(struct snap_run);

        assert(end > from && end - from <= SNAP_RUN);
        run->refs = 1;
        run->count = (uint32_t)(end - from);
        memcpy(run->items, group->items + from, run->count * sizeof *run->items);
        for (size_t n = from; list->kind && n < end; n++)
            list->kind->hold(group->items[n]);
        list->runs[list->run_count++] = run;
        from = end;
    }
    *copied += group->count;
    group->count = 0;
}

/* Merges the items of a run (NULL: none) with the edits. */
static void merge(struct group *group, const struct snap_run *run, const struct snap_edit *edits,
                  size_t count)
{
    uint32_t items = run ? run->count : 0, at = 0;

    for (size_t i = 0; i < count; i++) {
        while (at < items && str_cmp(*run->items[at], *edits[i].item) < 0)
            group_add(group, run->items[at++]);
        if (at < items && str_eq(*run->items[at], *edits[i].item))
            at++;
        if (!edits[i].gone)
            group_add(group, edits[i].item);
    }
    while (at < items)
        group_add(group, run->items[at++]);
}

struct snap_list *snap_list_edit(const struct snap_list *list, const struct snap_kind *kind,
                                 struct snap_edit *edits, size_t count, size_t *copied)
{
    size_t runs = list ? list->run_count : 0, at = 0;
    size_t most = runs + 2 * count + 1; /* a changed run becomes at most two, and some are full */
    struct snap_list *made = mem_alloc(sizeof *made + most * sizeof *made->runs);
    struct group group = {0};

    *made = (struct snap_list){.refs = 1, .kind = kind};
    if (count)
        qsort(edits, count, sizeof *edits, by_name);
    for (size_t r = 0; r < runs || at < count; r++) {
        struct snap_run *run = r < runs ? list->runs[r] : NULL;
        size_t end = at;

        while (end < count &&
               (r + 1 >= runs || str_cmp(*edits[end].item, *list->runs[r + 1]->items[0]) < 0))
            end++;
        if (at == end) {
            group_end(&group, made, copied);
            run->refs++;
            made->runs[made->run_count++] = run;
        } else {
            merge(&group, run, edits + at, end - at);
        }
        at = end;
    }
    group_end(&group, made, copied);
    free(group.items);
    assert(made->run_count <= most);
    for (size_t r = 0; r < made->run_count; r++)
        made->count += made->runs[r]->count;
    *copied += made->run_count;
    return mem_resize(made, sizeof *made + made->run_count * sizeof *made->runs);
}

struct snap_list *snap_list_ref(struct snap_list *list)
{
    assert(list->refs > 0);
    list->refs++;
    return list;
}

void snap_list_unref(struct snap_list *list)
{
    if (!list || --list->refs > 0)
        return;
    for (size_t r = 0; r < list->run_count; r++) {
        struct snap_run *run = list->runs[r];

        if (--run->refs > 0)
            continue;
        for (uint32_t i = 0; list->kind && i < run->count; i++)
            list->kind->drop(run->items[i]);
        free(run);
    }
    free(list);
}

/* The first item whose name is not before this one; its position may be past the end of a run. */
static struct snap_at place_of(const struct snap_list *list, struct str name)
{
    struct snap_at at = {0};
    size_t high = list->run_count;
    uint32_t last;

    while (at.run + 1 < high) { /* the last run that does not begin after it */
        size_t middle = (at.run + high) / 2;

        if (str_cmp(*list->runs[middle]->items[0], name) <= 0)
            at.run = middle;
        else
            high = middle;
    }
    for (last = list->run_count ? list->runs[at.run]->count : 0; at.item < last;) {
        uint32_t middle = (at.item + last) / 2;

        if (str_cmp(*list->runs[at.run]->items[middle], name) < 0)
            at.item = middle + 1;
        else
            last = middle;
    }
    return at;
}

const struct str *snap_list_next(const struct snap_list *list, struct snap_at *at)
{
    if (at->run < list->run_count && at->item == list->runs[at->run]->count) {
        at->run++;
        at->item = 0;
    }
    return at->run < list->run_count ? list->runs[at->run]->items[at->item++] : NULL;
}

const struct str *snap_list_find(const struct snap_list *list, struct str name)
{
    struct snap_at at = place_of(list, name);
    const struct str *item = snap_list_next(list, &at);

    return item && str_eq(*item, name) ? item : NULL;
}

struct snap_at snap_list_after(const struct snap_list *list, struct str name)
{
    struct snap_at at = place_of(list, name), next = at;
    const struct str *item = snap_list_next(list, &next);

    return item && str_eq(*item, name) ? next : at;
}
