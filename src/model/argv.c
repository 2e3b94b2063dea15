/* Reads arguments, environments and names of secrets from JSON. */
#include "model/argv.h"

#include <assert.h>
#include <string.h>

/* Linux passes a program no argument longer than this (MAX_ARG_STRLEN, with its NUL). */
static bool is_word(struct str text)
{
    return text.len <= ARGV_BYTES_EACH && (text.len == 0 || !memchr(text.at, 0, text.len));
}

bool argv_list(const struct json *list, struct arena *arena, struct strs *ret_words)
{
    struct strs words = {0};

    if (!json_is_null(list)) {
        if (json_type(list) != JSON_ARR)
            return false;
        words.at = arena_array(arena, struct str, list->count + 1);
        for (const struct json *item = json_items(list); item; item = json_after(list, item)) {
            bool number = json_type(item) == JSON_NUM;
            struct str word = number ? json_raw(item) : json_str(item, arena);

            if ((!number && json_type(item) != JSON_STR) || !is_word(word))
                return false;
            words.at[words.count++] = word;
        }
    }
    *ret_words = words;
    return true;
}

bool argv_env(const struct json *obj, struct arena *arena, struct strs *ret_words)
{
    struct strs words = {0};

    if (!json_is_null(obj)) {
        if (json_type(obj) != JSON_OBJ)
            return false;
        words.at = arena_array(arena, struct str, obj->count + 1);
        for (const struct json *key = json_keys(obj); key; key = json_after(obj, key)) {
            struct str name = json_str(key, arena);
            struct str value =
                json_type(key + 1) == JSON_STR ? json_str(key + 1, arena) : json_raw(key + 1);

            /* A name as execve sees it: `spring.datasource.url` and `MY-VAR` are names, though no
             * shell can use them. */
            if (!name.len || memchr(name.at, '=', name.len) || memchr(name.at, 0, name.len) ||
                json_type(key + 1) >= JSON_ARR || json_is_null(key + 1) || !is_word(value) ||
                name.len + 1 + value.len > ARGV_BYTES_EACH)
                return false;
            words.at[words.count++] =
                arena_fmt(arena, STR_FMT "=" STR_FMT, STR_ARG(name), STR_ARG(value));
        }
    }
    *ret_words = words;
    return true;
}

bool argv_command(const struct json *command, struct arena *arena, struct strs *ret_words)
{
    struct strs words = {0};

    for (const struct json *item = json_items(command); item; item = json_after(command, item))
        if (json_type(item) != JSON_STR)
            return false;
    if (json_type(command) == JSON_STR) {
        struct str text = json_str(command, arena);

        if (text.len == 0 || !is_word(text))
            return false;
        words.at = arena_array(arena, struct str, 3);
        words.at[words.count++] = STR("/bin/sh");
        words.at[words.count++] = STR("-c");
        words.at[words.count++] = text;
    } else if (!argv_list(command, arena, &words) || words.count == 0 || words.at[0].len == 0) {
        return false;
    }
    assert(words.count > 0);
    *ret_words = words;
    return true;
}

static bool is_variable(struct str name)
{
    if (name.len == 0 || name.len > ARGV_SECRET_NAME_MAX || str_starts(name, STR("BERTH_")))
        return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.at[i];

        if (!(c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
              (i > 0 && c >= '0' && c <= '9')))
            return false;
    }
    return true;
}

bool argv_secrets(const struct json *given, struct arena *arena, struct strs *ret_words)
{
    const struct json *item = json_first(given);
    bool named = json_type(given) == JSON_OBJ;
    struct strs words = {0};

    if (!json_is_null(given)) {
        if ((!named && json_type(given) != JSON_ARR) || given->count > ARGV_SECRETS_MAX)
            return false;
        words.at = arena_array(arena, struct str, given->count + 1);
        for (; item; item = json_after(given, item)) {
            const struct json *value = named ? item + 1 : item;
            struct str variable = named ? json_str(item, arena) : STR_NONE, name;

            if (json_type(value) != JSON_STR)
                return false;
            name = json_str(value, arena);
            if (!str_is_id(name, ARGV_SECRET_NAME_MAX) || (named && !is_variable(variable)))
                return false;
            words.at[words.count++] =
                named ? arena_fmt(arena, STR_FMT "=" STR_FMT, STR_ARG(variable), STR_ARG(name))
                      : name;
        }
    }
    *ret_words = words;
    return true;
}
