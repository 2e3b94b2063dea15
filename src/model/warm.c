/* Names of what is loaded. */
#include "model/warm.h"

bool warm_is_name(struct str name)
{
    if (!name.len || name.len > WARM_NAME_MAX)
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (name.at[i] <= ' ' || name.at[i] > '~' || name.at[i] == '"' || name.at[i] == '\\')
            return false;
    return true;
}

bool warm_names(const struct json *list, size_t max, struct arena *arena, struct strs *ret_names)
{
    struct strs names = {0};

    if (!json_is_null(list)) {
        if (json_type(list) != JSON_ARR || list->count > max)
            return false;
        names.at = arena_array(arena, struct str, list->count + 1);
        for (const struct json *item = json_items(list); item; item = json_after(list, item)) {
            struct str name = json_type(item) == JSON_STR ? json_str(item, arena) : STR_NONE;

            if (!warm_is_name(name))
                return false;
            if (!str_in(name, names.at, names.count))
                names.at[names.count++] = name;
        }
    }
    *ret_names = names;
    return true;
}

uint32_t warm_mark(struct str name)
{
    uint32_t mark = (uint32_t)str_hash(name);

    return mark ? mark : 1;
}
