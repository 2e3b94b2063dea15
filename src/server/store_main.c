/* `berth store dump`: what the store holds, as text for people or as JSON. Reads only. */
#include "server/server.h"

#include <stdio.h>
#include <string.h>

#include "server/settings.h"
#include "store/dump.h"

/* Removes `FLAG VALUE` from the arguments and returns VALUE; NULL: it is not among them. */
static const char *take_flag(int *argc, char **argv, const char *flag)
{
    for (int i = 0; i + 1 < *argc; i++) {
        const char *value = argv[i + 1];

        if (strcmp(argv[i], flag) != 0)
            continue;
        memmove(argv + i, argv + i + 2, sizeof *argv * (size_t)(*argc - i - 2));
        *argc -= 2;
        return value;
    }
    return NULL;
}

/* "  name=value name=value": texts as they are, the rest as JSON. */
static void print_object(const struct json *object, struct arena *arena)
{
    for (const struct json *key = json_keys(object); key; key = json_after(object, key)) {
        const struct json *value = key + 1;
        struct str name = json_str(key, arena);
        struct str text = json_str(value, arena);

        if (!json_is_null(value) && text.at)
            printf("  " STR_FMT "=" STR_FMT, STR_ARG(name), STR_ARG(text));
        else if (!json_is_null(value))
            printf("  " STR_FMT "=" STR_FMT, STR_ARG(name), STR_ARG(json_raw(value)));
    }
    printf("\n");
}

static void print_text(struct str dump)
{
    struct arena arena = {0};
    const struct json *root = NULL;

    if (json_parse(dump, &arena, &root, NULL)) {
        arena_free(&arena);
        return;
    }
    for (const struct json *key = json_keys(root); key; key = json_after(root, key)) {
        const struct json *list = key + 1;

        if (list->type == JSON_ARR)
            printf(STR_FMT " (%u)\n", STR_ARG(json_str(key, &arena)), (unsigned)list->count);
        for (const struct json *item = json_items(list); item; item = json_after(list, item))
            print_object(item, &arena);
    }
    if (json_type(json_get(root, "more")) == JSON_TRUE)
        printf("there is more: --limit N shows more of it\n");
    arena_free(&arena);
}

static int fail(int code, const char *detail)
{
    fprintf(stderr, "berth: %s\n", detail);
    return code;
}

int server_store_main(int argc, char **argv)
{
    struct settings_source source;
    struct problem why = {0};
    struct arena arena = {0};
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    int64_t max = DUMP_MAX_DEFAULT;

    if (argc < 1 || strcmp(argv[0], "dump") != 0)
        return fail(2, "store has the verb dump");
    const char *output = take_flag(&argc, argv, "-o");
    if (output && strcmp(output, "json") != 0 && strcmp(output, "text") != 0)
        return fail(2, "-o must be text or json");
    const char *limit = take_flag(&argc, argv, "--limit");
    if (limit && (!str_int(str_of(limit), &max) || max < 1 || max > DUMP_MAX))
        return fail(2, "--limit must be a number from 1 to 1000000");
    if (settings_load(&source, argc - 1, argv + 1, &why)) {
        settings_done(&source);
        return fail(2, why.detail);
    }
    enum err err = store_dump(arena_cstr(&arena, source.settings.store),
                              arena_cstr(&arena, source.settings.data_dir), (size_t)max, &w, &why);
    if (!err && output && strcmp(output, "json") == 0)
        printf(STR_FMT "\n", STR_ARG(buf_view(&buf)));
    else if (!err)
        print_text(buf_view(&buf));
    buf_free(&buf);
    arena_free(&arena);
    settings_done(&source);
    return err ? fail(err == ERR_BAD_CONFIG ? 2 : 1, why.detail) : 0;
}
