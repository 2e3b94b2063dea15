/* The settings of a program, read from presets, the --config file, the environment and flags, in
 * that order. Later sources win; the source of each value is kept for `config show`. Every command
 * with settings uses this. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/schema.h"
#include "base/yaml.h"

/* --- values and where they came from --- */

enum { CONF_NAME_MAX = 64 };

static const char *const source_names[] = {
    [CONF_DEFAULT] = "default",
    [CONF_FILE] = "file",
    [CONF_ENV] = "env",
    [CONF_FLAG] = "flag",
};

enum err conf_init(struct conf *conf, const struct schema *schema, void *out, struct arena *arena)
{
    assert(schema->count > 0);
    *conf = (struct conf){.schema = schema, .out = out, .arena = arena};
    conf->sources = arena_array(arena, enum conf_source, schema->count);
    conf->lines = arena_array(arena, int, schema->count);
    return schema_presets(schema, out, arena);
}

static void note_source(struct conf *conf, const struct field *field, enum conf_source source,
                        int line)
{
    size_t at = (size_t)(field - conf->schema->fields);

    assert(at < conf->schema->count);
    conf->sources[at] = source;
    conf->lines[at] = line;
}

enum err conf_yaml(struct conf *conf, struct str text, struct problem *why)
{
    struct schema_lines lines;
    const struct json *key;
    struct str json;
    enum err err;

    err = yaml_read(text, conf->arena, &json, &lines.lines, why);
    if (err)
        return err;
    err = json_parse(json, conf->arena, &lines.root, why);
    assert(err == ERR_OK); /* yaml_read has the same limits */
    if (json_is_null(lines.root))
        return ERR_OK;
    err = schema_read_lines(conf->schema, lines.root, &lines, conf->out, conf->arena, why);
    if (err) {
        if (why)
            why->err = ERR_BAD_CONFIG;
        return ERR_BAD_CONFIG;
    }
    for (key = json_keys(lines.root); key; key = json_after(lines.root, key)) {
        const struct field *field =
            schema_find(conf->schema->fields, conf->schema->count, json_str(key, conf->arena));

        if (field && (!json_is_null(key + 1) || field_takes_null(field)))
            note_source(conf, field, CONF_FILE, lines.lines[key - lines.root]);
    }
    return ERR_OK;
}

enum err conf_file(struct conf *conf, const char *path, struct problem *why)
{
    struct arena arena = {0};
    struct str text;
    enum err err = file_read(path, YAML_BYTES_MAX, &arena, &text, why);

    if (!err) {
        err = conf_yaml(conf, text, why);
    } else if (err == ERR_TOO_LARGE) {
        err = yaml_too_large(why);
    } else {
        err = ERR_BAD_CONFIG;
        if (why)
            why->err = err;
    }
    arena_free(&arena);
    return err;
}

/* A flag or a variable: `shown` is its name as the user wrote it. */
static enum err set_text(struct conf *conf, const struct field *field, struct str text,
                         enum conf_source source, const char *shown, struct problem *why)
{
    struct buf expected = {0};
    enum err err = ERR_BAD_CONFIG;

    if (field_from_text(field, arena_str(conf->arena, text), conf->out, conf->arena)) {
        note_source(conf, field, source, 0);
        return ERR_OK;
    }
    field_expect(field, &expected);
    problem_set(why, err, field->name, "%s " STR_FMT ".", shown, STR_ARG(buf_view(&expected)));
    buf_free(&expected);
    return err;
}

/* Finds the field for SNAKE_CASE or snake-case; NULL when it may not be set this way. */
static const struct field *find_shown(const struct conf *conf, struct str shown)
{
    char name[CONF_NAME_MAX];
    const struct field *field;

    if (shown.len >= sizeof name)
        return NULL;
    for (size_t i = 0; i < shown.len; i++) {
        char c = shown.at[i];

        name[i] = (char)(c == '-' ? '_' : c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    }
    field = schema_find(conf->schema->fields, conf->schema->count,
                        (struct str){.at = name, .len = shown.len});
    if (!field || field->type == FIELD_OBJ || (field->flags & FIELD_NO_FLAG))
        return NULL;
    return field;
}

enum err conf_env(struct conf *conf, char *const *vars, struct problem *why)
{
    const struct str prefix = STR("BERTH_");

    for (; *vars; vars++) {
        struct str value = str_of(*vars);
        struct str name = str_cut(&value, '=');
        char shown[CONF_NAME_MAX + 8];
        const struct field *field;
        enum err err;

        /* An empty variable counts as unset: scripts and compose files pass those on. */
        if (!str_starts(name, prefix) || value.len == 0 || !str_copy(name, shown, sizeof shown))
            continue;
        field = find_shown(conf, str_of(shown + prefix.len));
        if (!field)
            continue;
        err = set_text(conf, field, value, CONF_ENV, shown, why);
        if (err)
            return err;
    }
    return ERR_OK;
}

enum err conf_flag(struct conf *conf, int argc, char **argv, int *at, struct problem *why)
{
    struct str value = str_of(argv[*at]);
    struct str name = str_cut(&value, '=');
    bool has_value = value.at != NULL;
    char shown[CONF_NAME_MAX + 8];
    const struct field *field = NULL;
    int used = 1;
    enum err err;

    assert(*at < argc);
    if (str_starts(name, STR("--")) && str_copy(name, shown, sizeof shown))
        field = find_shown(conf, str_of(shown + 2));
    if (!field)
        return ERR_NOT_FOUND;
    if (!has_value && *at + 1 < argc) {
        const char *next = argv[*at + 1];

        if (field->type == FIELD_BOOL ? strcmp(next, "true") == 0 || strcmp(next, "false") == 0
                                      : strncmp(next, "--", 2) != 0) {
            value = str_of(next);
            has_value = true;
            used = 2;
        }
    }
    if (!has_value && field->type == FIELD_BOOL)
        value = STR("true");
    else if (!has_value)
        return problem_set(why, ERR_BAD_CONFIG, field->name, "%s needs a value.", shown);
    err = set_text(conf, field, value, CONF_FLAG, shown, why);
    if (!err)
        *at += used;
    return err;
}

enum err conf_check(const struct conf *conf, struct problem *why)
{
    for (size_t i = 0; i < conf->schema->count; i++) {
        const struct field *field = &conf->schema->fields[i];

        if ((field->flags & FIELD_REQUIRED) && !field->preset && conf->sources[i] == CONF_DEFAULT)
            return problem_set(why, ERR_BAD_CONFIG, field->name, "%s is required.", field->name);
    }
    return ERR_OK;
}

void conf_show(const struct conf *conf, struct buf *ret_text)
{
    for (size_t i = 0; i < conf->schema->count; i++) {
        const struct field *field = &conf->schema->fields[i];
        struct jsonw w = jsonw_to(ret_text);
        size_t start;

        buf_fmt(ret_text, "%s: ", field->name);
        start = ret_text->len;
        field_show(field, conf->out, &w);
        json_one_line(ret_text->at + start, ret_text->len - start); /* FIELD_JSON is as given */
        buf_fmt(ret_text, "  # %s", source_names[conf->sources[i]]);
        if (conf->lines[i] > 0)
            buf_fmt(ret_text, ", line %d", conf->lines[i]);
        buf_char(ret_text, '\n');
    }
}

void conf_show_json(const struct conf *conf, struct jsonw *w)
{
    jsonw_obj(w);
    for (size_t i = 0; i < conf->schema->count; i++) {
        const struct field *field = &conf->schema->fields[i];

        jsonw_kobj(w, field->name);
        jsonw_key(w, "value");
        field_show(field, conf->out, w);
        jsonw_kstr(w, "source", str_of(source_names[conf->sources[i]]));
        if (conf->lines[i] > 0)
            jsonw_kint(w, "line", conf->lines[i]);
        jsonw_end_obj(w);
    }
    jsonw_end_obj(w);
}

void conf_keep(struct conf *conf, const struct conf *old, struct buf *ret_changed,
               struct buf *ret_waiting)
{
    assert(conf->schema == old->schema && conf->out != old->out);
    for (size_t i = 0; i < conf->schema->count; i++) {
        const struct field *field = &conf->schema->fields[i];
        bool live = field->flags & FIELD_LIVE;
        struct buf *list = live ? ret_changed : ret_waiting;

        if (!field_same(field, conf->out, old->out))
            buf_fmt(list, "%s%s", list->len ? "," : "", field->name);
        if (!live)
            field_copy(field, old->out, conf->out);
    }
}

/* --- loading, and help --- */

/* Looks for --config before the other flags are read: they override the file it names. */
const char *conf_path(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            return argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            return argv[i + 1];
    }
    return getenv("BERTH_CONFIG");
}

/* snake_case to kebab-case and back, up to a NUL or an '='. */
static void swap_case(const char *from, char what, char with, char to[CONF_NAME_MAX])
{
    size_t i = 0;

    for (; from[i] && from[i] != '=' && i + 1 < CONF_NAME_MAX; i++)
        to[i] = from[i] == what ? with : from[i];
    to[i] = 0;
}

enum err conf_flags(struct conf *conf, int argc, char **argv, struct problem *why)
{
    char name[CONF_NAME_MAX];
    const char *near;

    for (int i = 0; i < argc;) {
        if (strncmp(argv[i], "--config=", 9) == 0) {
            i++;
            continue;
        }
        if (strcmp(argv[i], "--config") == 0) {
            if (i + 1 == argc)
                return problem_set(why, ERR_BAD_REQUEST, "", "--config needs a value.");
            i += 2;
            continue;
        }
        if (strncmp(argv[i], "--", 2) != 0)
            return problem_set(why, ERR_BAD_REQUEST, "", "Unexpected argument \"%s\".", argv[i]);
        enum err err = conf_flag(conf, argc, argv, &i, why);
        if (err == ERR_NOT_FOUND) {
            swap_case(argv[i] + 2, '-', '_', name);
            near = schema_nearest(conf->schema->fields, conf->schema->count, str_of(name));
            if (!near)
                return problem_set(why, ERR_BAD_REQUEST, "", "Unknown flag %s; --help lists them.",
                                   argv[i]);
            swap_case(near, '_', '-', name);
            return problem_set(why, ERR_BAD_REQUEST, "", "Unknown flag %s; did you mean --%s?",
                               argv[i], name);
        }
        if (err)
            return err;
    }
    return ERR_OK;
}

enum err conf_load(struct conf *conf, int argc, char **argv, struct problem *why)
{
    const char *path = conf_path(argc, argv);
    enum err err = path ? conf_file(conf, path, why) : ERR_OK;

    if (!err)
        err = conf_env(conf, environ, why);
    if (!err)
        err = conf_flags(conf, argc, argv, why);
    return err;
}

void conf_help(const struct schema *schema, struct buf *out)
{
    buf_fmt(out, "  --%-25s %s\n", "config FILE", "YAML file with any of the settings below");
    for (size_t i = 0; i < schema->count; i++) {
        const struct field *field = &schema->fields[i];
        bool flag = field->type != FIELD_OBJ && !(field->flags & FIELD_NO_FLAG);
        char name[CONF_NAME_MAX];

        swap_case(field->name, '_', flag ? '-' : '_', name);
        buf_fmt(out, "  %s%-25s %s", flag ? "--" : "  ", name, field->help);
        for (size_t word = 0; field->name_at && field->name_at(word); word++)
            buf_fmt(out, "%s%s", word ? ", " : ": ", field->name_at(word));
        if (!flag)
            buf_str(out, STR(" (only in the file)"));
        else if (field->preset)
            buf_fmt(out, " (default %s)", field->preset);
        buf_char(out, '\n');
    }
}
