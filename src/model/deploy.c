/* The rules of deployments. Owns no row: the table is the database's. */
#include "model/deploy.h"

#include <assert.h>
#include <stdlib.h>

static const char *const type_names[DEPLOY_TYPE_COUNT] = {
    [DEPLOY_OTHER] = "other",
    [DEPLOY_DEPLOYMENT] = "deployment",
    [DEPLOY_DAEMON] = "daemon",
};

const char *deploy_type_name(enum deploy_type type)
{
    assert(type < DEPLOY_TYPE_COUNT);
    return type_names[type];
}

enum deploy_type deploy_type_by_name(struct str name)
{
    for (enum deploy_type type = DEPLOY_DEPLOYMENT; type < DEPLOY_TYPE_COUNT; type++)
        if (str_is(name, type_names[type]))
            return type;
    return DEPLOY_OTHER;
}

const char *deploy_mode_name(enum deploy_mode mode)
{
    return mode == DEPLOY_SEED ? "seed" : "hardened";
}

/* Disabled rows, daemons and rows of a type nobody knows are no part of claiming. */
static bool claimable(const struct deploy_row *row)
{
    return row->enabled && row->type == DEPLOY_DEPLOYMENT;
}

void deploy_lost(const struct deploy_row *rows, size_t count, const struct names *online,
                 struct arena *arena, struct names *ret_lost)
{
    names_init(ret_lost, count, arena);
    for (size_t i = 0; i < count; i++)
        if (claimable(&rows[i]) && rows[i].address.len &&
            names_find(online, rows[i].address) == NAMES_NONE)
            names_add(ret_lost, rows[i].address);
    assert(ret_lost->count <= count);
}

void deploy_counts(const struct deploy_row *rows, size_t count, const struct names *online,
                   int64_t *ret_counts)
{
    for (size_t i = 0; i < online->count; i++)
        ret_counts[i] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t place;

        if (!claimable(&rows[i]) || !rows[i].address.len)
            continue;
        place = names_find(online, rows[i].address);
        if (place != NAMES_NONE)
            ret_counts[place]++;
    }
}

static int by_age(const void *left, const void *right)
{
    const struct deploy_row *a = *(const struct deploy_row *const *)left;
    const struct deploy_row *b = *(const struct deploy_row *const *)right;
    int order = str_cmp(a->updated_at, b->updated_at);

    if (order == 0)
        order = str_cmp(a->created_at, b->created_at);
    return order != 0 ? order : str_cmp(a->id, b->id);
}

static size_t pick_lost(const struct deploy_row *rows, size_t count, const struct names *lost,
                        const struct deploy_row **ret_order)
{
    size_t picked = 0;

    for (size_t i = 0; i < count; i++)
        if (claimable(&rows[i]) && rows[i].address.len &&
            names_find(lost, rows[i].address) != NAMES_NONE)
            ret_order[picked++] = &rows[i];
    return picked;
}

static size_t pick_unassigned(const struct deploy_row *rows, size_t count,
                              const struct deploy_row **ret_order)
{
    size_t picked = 0;

    for (size_t i = 0; i < count; i++)
        if (claimable(&rows[i]) && !rows[i].address.len)
            ret_order[picked++] = &rows[i];
    return picked;
}

size_t deploy_candidates(const struct deploy_row *rows, size_t count, const struct names *lost,
                         enum deploy_mode mode, const struct deploy_row **ret_order)
{
    size_t picked = 0;

    if (mode == DEPLOY_HARDENED)
        picked = pick_lost(rows, count, lost, ret_order);
    if (picked == 0)
        picked = pick_unassigned(rows, count, ret_order);
    if (picked > 1)
        qsort(ret_order, picked, sizeof *ret_order, by_age);
    assert(picked <= count);
    return picked;
}

bool deploy_claim(struct deploy_row *row, const struct deploy_claim *claim)
{
    assert(claim->by.len > 0);
    if (!claimable(row) || !str_eq(row->address, claim->observed) ||
        row->generation != claim->generation)
        return false;
    if (claim->observed.len && !claim->owner_lost)
        return false;
    row->address = claim->by;
    row->generation++;
    return true;
}

bool deploy_release(struct deploy_row *row, const struct names *lost)
{
    if (!row->enabled || !row->address.len || names_find(lost, row->address) == NAMES_NONE)
        return false;
    row->address = STR("");
    row->generation++;
    return true;
}
