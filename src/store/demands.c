/* Demands by their text, which is read when the first job has it. */
#include "store/demands.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "store/limits.h"

/* False: the text cannot be read. */
bool demands_use(struct demands *demands, struct limits *limits, struct str text,
                 struct demands_entry **ret_entry)
{
    struct demands_entry *entry = text.len ? map_get(&demands->by_text, text) : NULL;

    if (text.len && !entry) {
        entry = mem_zeroed(1, sizeof *entry + text.len);
        memcpy(entry->bytes, text.at, text.len);
        entry->text = (struct str){.at = entry->bytes, .len = text.len};
        if (!demand_parse(entry->text, &entry->demand)) {
            free(entry);
            return false;
        }
        entry->has_needs =
            entry->demand.need_count > 0 || entry->demand.gpus || entry->demand.vram_mb;
        for (size_t i = 0; i < entry->demand.key_count; i++)
            entry->keys[i] = limits_use(limits, entry->demand.keys[i]);
        map_put(&demands->by_text, entry->text, entry);
    }
    if (entry)
        entry->refs++;
    *ret_entry = entry;
    return true;
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
