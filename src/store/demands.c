/* Demands by their text. */
#include "store/demands.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "store/limits.h"

static struct demands_entry *add(struct demands *demands, struct limits *limits, struct str text)
{
    struct demands_entry *entry = mem_zeroed(1, sizeof *entry + text.len);
    struct demand *demand = &entry->demand;
    bool ok;

    memcpy(entry->bytes, text.at, text.len);
    entry->text = (struct str){.at = entry->bytes, .len = text.len};
    ok = demand_parse(entry->text, demand);
    assert(ok);
    (void)ok;
    entry->has_needs = demand->need_count > 0 || demand->gpus || demand->vram_mb;
    for (size_t i = 0; i < demand->key_count; i++)
        entry->keys[i] = limits_use(limits, demand->keys[i]);
    map_put(&demands->by_text, entry->text, entry);
    return entry;
}

struct demands_entry *demands_use(struct demands *demands, struct limits *limits, struct str text)
{
    struct demands_entry *entry;

    if (!text.len)
        return NULL;
    entry = map_get(&demands->by_text, text);
    if (!entry)
        entry = add(demands, limits, text);
    entry->refs++;
    return entry;
}

void demands_unuse(struct demands *demands, struct limits *limits, struct demands_entry *entry)
{
    if (!entry)
        return;
    assert(entry->refs > 0);
    if (--entry->refs > 0)
        return;
    for (size_t i = 0; i < entry->demand.key_count; i++)
        limits_unuse(limits, entry->keys[i]);
    map_del(&demands->by_text, entry->text);
    free(entry);
}

void demands_free(struct demands *demands)
{
    struct demands_entry *entry;

    for (size_t at = 0; (entry = map_next(&demands->by_text, &at));)
        free(entry);
    map_free(&demands->by_text);
}
