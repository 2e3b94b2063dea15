/* Where settings come from, in their order: the file of --config, the environment, the flags; and
 * how a table of them is shown as help. One way for every command that has settings. */
#include <stdlib.h>
#include <string.h>

#include "base/schema.h"
#include "base/schema_lines.h"

enum { NAME_MAX_BYTES = 64 };

/* --config is looked for first: flags win over the file it names. */
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
static void swap_case(const char *from, char what, char with, char to[NAME_MAX_BYTES])
{
    size_t i = 0;

    for (; from[i] && from[i] != '=' && i + 1 < NAME_MAX_BYTES; i++)
        to[i] = from[i] == what ? with : from[i];
    to[i] = 0;
}

static enum err unknown_flag(const struct conf *conf, const char *flag, struct problem *why)
{
    char name[NAME_MAX_BYTES], guess[NAME_MAX_BYTES];

    swap_case(flag + 2, '-', '_', name);
    const char *nearest = schema_nearest(conf->schema->fields, conf->schema->count, str_of(name));
    if (!nearest)
        return problem_set(why, ERR_BAD_REQUEST, "", "Unknown flag %s; --help lists them.", flag);
    swap_case(nearest, '_', '-', guess);
    return problem_set(why, ERR_BAD_REQUEST, "", "Unknown flag %s; did you mean --%s?", flag,
                       guess);
}

enum err conf_flags(struct conf *conf, int argc, char **argv, struct problem *why)
{
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
        if (err == ERR_NOT_FOUND)
            return unknown_flag(conf, argv[i], why);
        if (err)
            return err;
    }
    return ERR_OK;
}

enum err conf_load(struct conf *conf, int argc, char **argv, struct problem *why)
{
    extern char **environ;
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
        char name[NAME_MAX_BYTES];

        swap_case(field->name, '_', flag ? '-' : '_', name);
        buf_fmt(out, "  %s%-25s %s", flag ? "--" : "  ", name, field->help);
        if (!flag)
            buf_str(out, STR(" (only in the file)"));
        else if (field->preset)
            buf_fmt(out, " (default %s)", field->preset);
        buf_char(out, '\n');
    }
}
