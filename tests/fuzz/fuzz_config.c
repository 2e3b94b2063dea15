/* Any bytes as a configuration file, as variables and as flags: no crash, an error always has a
 * message, and the output of `config show` reads back to the same settings. */
#include "base/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/yaml.h"
#include "fuzz.h"

struct inner {
    struct str text;
    int64_t num;
};

struct settings {
    bool flag;
    int64_t num;
    int64_t ms;
    struct str text;
    struct str id;
    int word;
    struct strs list;
    struct inner inner;
    const struct json *any;
    double real;
};

#define AT(member) .offset = offsetof(struct settings, member)

static const char *const words[] = {"one", "two", NULL};

static const struct field inner_fields[] = {
    {.name = "text", .type = FIELD_STR, .offset = offsetof(struct inner, text), .max = 9},
    {.name = "num", .type = FIELD_INT, .offset = offsetof(struct inner, num), .preset = "3"},
};

static const struct field fields[] = {
    {.name = "flag", .type = FIELD_BOOL, AT(flag)},
    {.name = "num", .alias = "n", .type = FIELD_INT, AT(num), .flags = FIELD_NULLABLE},
    {.name = "ms", .type = FIELD_MS, AT(ms), .min = 1, .max = 100000, .preset = "5s"},
    {.name = "text", .type = FIELD_STR, AT(text)},
    {.name = "id", .type = FIELD_ID, AT(id), .max = 12},
    {.name = "word", .type = FIELD_ENUM, AT(word), .names = words},
    {.name = "list", .type = FIELD_STRS, AT(list), .max = 4},
    {.name = "inner", .type = FIELD_OBJ, AT(inner), .fields = inner_fields, .field_count = 2},
    {.name = "any", .type = FIELD_JSON, AT(any)},
    {.name = "real", .type = FIELD_REAL, AT(real), .min = -5, .max = 5},
};

static const struct schema schema = {"the configuration", fields, COUNT_OF(fields), true};

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void must_be_told(enum err err, const struct problem *why, size_t size)
{
    size_t len = strlen(why->detail);

    must(err == why->err, "the problem is another one");
    must(len > 0 && len < sizeof why->detail, "no sentence");
    must(why->line >= 0 && (size_t)why->line <= size + 1, "no such line");
}

/* The settings without the comments that say where a value came from. */
static void show(const struct conf *conf, struct buf *text)
{
    struct jsonw w = jsonw_to(text);
    struct buf shown = {0};
    struct str rest;

    conf_show_json(conf, &w);
    buf_clear(text);
    conf_show(conf, &shown);
    rest = buf_view(&shown);
    while (rest.len > 0) {
        struct str line = str_cut(&rest, '\n');
        const char *comment = line.at + line.len - 4;

        while (comment > line.at && memcmp(comment, "  # ", 4) != 0)
            comment--;
        buf_add(text, line.at, (size_t)(comment - line.at));
        buf_char(text, '\n');
    }
    buf_free(&shown);
}

/* YAML treats some characters beyond ASCII as line breaks, refuses others, and refuses keys of more
 * than 1024 bytes; those cannot be shown unchanged. */
static bool can_be_read_back(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.at[i] >= 0x80)
            return false;
    return text.len < 1024;
}

static void read_back(struct str shown)
{
    struct arena arena = {0};
    struct settings set = {0};
    struct problem why = {0};
    struct buf again = {0};
    struct conf conf;

    must(conf_init(&conf, &schema, &set, &arena) == ERR_OK, "presets");
    if (conf_yaml(&conf, shown, &why) != ERR_OK) {
        fprintf(stderr, STR_FMT "\n", STR_ARG(shown));
        must(false, why.detail);
    }
    show(&conf, &again);
    must(str_eq(buf_view(&again), shown), "shown differently the second time");
    buf_free(&again);
    arena_free(&arena);
}

static void try_file(struct str text)
{
    struct arena arena = {0};
    struct settings set = {0};
    struct problem why = {0};
    struct buf shown = {0};
    struct conf conf;
    enum err err;

    must(conf_init(&conf, &schema, &set, &arena) == ERR_OK, "presets");
    err = conf_yaml(&conf, text, &why);
    if (err) {
        must_be_told(err, &why, text.len);
    } else {
        show(&conf, &shown);
        if (can_be_read_back(buf_view(&shown)))
            read_back(buf_view(&shown));
    }
    buf_free(&shown);
    arena_free(&arena);
}

/* Each line is used as a variable, then as a word of a command line. */
static void try_words(struct str text)
{
    struct arena arena = {0};
    struct settings set = {0};
    struct problem why = {0};
    char *argv[16] = {NULL};
    struct conf conf;
    int argc = 0;
    int at = 0;
    enum err err;

    must(conf_init(&conf, &schema, &set, &arena) == ERR_OK, "presets");
    while (text.len > 0 && argc < 15)
        argv[argc++] = arena_cstr(&arena, str_cut(&text, '\n'));
    err = conf_env(&conf, argv, &why);
    if (err)
        must_be_told(err, &why, 0);
    while (at < argc) {
        int before = at;

        err = conf_flag(&conf, argc, argv, &at, &why);
        must(err ? at == before : at > before, "the place in argv");
        at = before + 1;
    }
    arena_free(&arena);
}

/* Each token of the JSON has a line number. */
static void try_yaml(struct str text)
{
    struct arena arena = {0};
    struct problem why = {0};
    const struct json *root;
    const int *lines;
    struct str json;

    if (yaml_read(text, &arena, &json, &lines, &why) == ERR_OK) {
        must(json_parse(json, &arena, &root, &why) == ERR_OK, why.detail);
        for (uint32_t i = 0; i < root->span; i++)
            must(lines[i] >= 1 && (size_t)lines[i] <= text.len + 1, "the line of a token");
    }
    arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};

    try_yaml(text);
    try_file(text);
    try_words(text);
    return 0;
}
