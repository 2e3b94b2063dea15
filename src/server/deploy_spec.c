/* The spec of a deployment between its body, as model/deploy.h reads it, and its columns in
 * the database; and how a row is shown. */
#include "model/deploy.h"

#include <assert.h>
#include <string.h>

#include "server/deploy.h"

/* In `options`: the command is a list of one word. Every other list is told by its args. */
#define OPTION_EXEC "exec"

static struct str text_of(struct buf *buf, struct arena *arena)
{
    struct str text = arena_str(arena, buf_view(buf));

    buf_free(buf);
    return text;
}

static struct str words_text(struct strs words, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_arr(&w);
    for (size_t i = 0; i < words.count; i++)
        jsonw_str(&w, words.at[i]);
    jsonw_end_arr(&w);
    return text_of(&buf, arena);
}

static void set_command(const struct deploy_spec *in, struct arena *arena,
                        struct deploys_spec *spec)
{
    struct strs args = in->args;

    spec->command = STR("");
    if (in->shell) {
        spec->command = in->command.at[in->command.count - 1];
    } else if (in->command.count > 0) {
        spec->command = in->command.at[0];
        args = (struct strs){.at = in->command.at + 1, .count = in->command.count - 1};
    }
    spec->args = words_text(args, arena);
}

static struct str env_text(struct strs env, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    for (size_t i = 0; i < env.count; i++) {
        struct str value = env.at[i], name = str_cut(&value, '=');

        jsonw_key_str(&w, name);
        jsonw_str(&w, value.at ? value : STR(""));
    }
    jsonw_end_obj(&w);
    return text_of(&buf, arena);
}

static struct str options_text(const struct deploy_spec *in, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    if (in->command.count == 1)
        jsonw_kbool(&w, OPTION_EXEC, true);
    deploy_spec_write_options(in, &w);
    jsonw_end_obj(&w);
    return text_of(&buf, arena);
}

static struct str or_empty(struct str text)
{
    return text.at ? text : STR("");
}

enum err deploy_body_read(const struct json *body, struct str id, struct arena *arena,
                          struct deploys_spec *ret_spec, struct problem *why)
{
    struct deploy_spec in;
    enum err err;

    if (!str_is_name(id, DEPLOY_ID_MAX))
        return problem_set(why, ERR_BAD_FIELD, "id",
                           "id must be 1 to %d letters, digits or ._:@-, not starting with a dot.",
                           DEPLOY_ID_MAX);
    err = deploy_spec_read(body, true, arena, &in, why);
    if (err)
        return err;
    if (in.id.at && !str_eq(in.id, id))
        return problem_set(why, ERR_BAD_FIELD, "id", "id must be the path's, " STR_FMT ".",
                           STR_ARG(id));
    *ret_spec = (struct deploys_spec){
        .id = id,
        .type = deploy_type_by_name(str_of(deploy_spec_types[in.type])),
        .package_name = or_empty(in.package_name),
        .package_version = or_empty(in.package_version),
        .env = env_text(in.env, arena),
        .selector = or_empty(in.selector),
        .options = options_text(&in, arena),
        .enabled = in.enabled,
    };
    set_command(&in, arena, ret_spec);
    assert(ret_spec->type != DEPLOY_OTHER && ret_spec->command.at && ret_spec->args.at);
    return ERR_OK;
}

/* A row that somebody else wrote may hold anything: what is no JSON is shown as null. */
static void kjson(struct jsonw *w, const char *name, struct str text, struct arena *arena)
{
    const struct json *value;

    if (json_parse(text, arena, &value, NULL))
        jsonw_knull(w, name);
    else
        jsonw_kraw(w, name, text);
}

static void command_write(struct jsonw *w, struct str command, const struct json *options)
{
    bool exec = false;

    json_bool(json_get(options, OPTION_EXEC), &exec);
    jsonw_key(w, "command");
    if (exec)
        jsonw_arr(w);
    jsonw_str(w, command);
    if (exec)
        jsonw_end_arr(w);
}

/* Its names alone. */
static void env_names_write(struct jsonw *w, struct str text, struct arena *arena)
{
    const struct json *env, *key;

    if (json_parse(text, arena, &env, NULL) || json_type(env) != JSON_OBJ) {
        jsonw_knull(w, "env");
        return;
    }
    jsonw_key(w, "env");
    jsonw_obj(w);
    key = json_first(env);
    for (uint32_t i = 0; i < env->count; i++, key = json_next(key + 1)) {
        jsonw_key_str(w, json_str(key, arena));
        jsonw_raw(w, STR("null"));
    }
    jsonw_end_obj(w);
}

void deploy_body_write(struct jsonw *w, const struct deploys_spec *spec, bool secrets,
                       struct arena *arena)
{
    const struct json *options = NULL;
    const struct json *key;

    if (json_parse(spec->options, arena, &options, NULL) || json_type(options) != JSON_OBJ)
        options = NULL;
    jsonw_kstr(w, "package_name", spec->package_name);
    jsonw_kstr(w, "package_version", spec->package_version);
    command_write(w, spec->command, options);
    kjson(w, "args", spec->args, arena);
    if (secrets)
        kjson(w, "env", spec->env, arena);
    else
        env_names_write(w, spec->env, arena);
    jsonw_kstr(w, "selector", spec->selector);
    key = json_first(options);
    for (uint32_t i = 0; options && i < options->count; i++, key = json_next(key + 1)) {
        if (json_str_is(key, OPTION_EXEC))
            continue;
        jsonw_key_str(w, json_str(key, arena));
        jsonw_raw(w, json_raw(key + 1));
    }
}

static void copy_write(struct jsonw *w, const struct deploys_copy *copy)
{
    jsonw_obj(w);
    jsonw_kstr(w, "address", copy->address);
    jsonw_kint(w, "generation", copy->generation);
    jsonw_kint(w, "version", copy->version);
    jsonw_kstr(w, "state", copy->state);
    jsonw_kint(w, "restarts", copy->restarts);
    if (copy->pid > 0)
        jsonw_kint(w, "pid", copy->pid);
    else
        jsonw_knull(w, "pid");
    jsonw_kint(w, "since_ms", copy->since_ms);
    jsonw_kraw(w, "healthy", copy->healthy);
    jsonw_kstr(w, "reason", copy->reason.len ? copy->reason : STR_NONE);
    jsonw_kstr(w, "limits", copy->limits.len ? copy->limits : STR_NONE);
    jsonw_kint(w, "updated_ms", copy->updated_ms);
    jsonw_end_obj(w);
}

static void failure_write(struct jsonw *w, const struct deploys_failure *failure)
{
    jsonw_obj(w);
    jsonw_kstr(w, "address", failure->address);
    jsonw_kint(w, "at_ms", failure->at_ms);
    jsonw_kint(w, "until_ms", failure->until_ms);
    jsonw_kstr(w, "reason", failure->reason.len ? failure->reason : STR_NONE);
    jsonw_end_obj(w);
}

void deploy_row_write(struct jsonw *w, const struct deploys_row *row, const struct deploys_op *op,
                      bool secrets, struct arena *arena)
{
    jsonw_obj(w);
    jsonw_kstr(w, "id", row->spec.id);
    jsonw_kstr(w, "type", str_of(deploy_type_name(row->spec.type)));
    deploy_body_write(w, &row->spec, secrets, arena);
    jsonw_kbool(w, "enabled", row->spec.enabled);
    jsonw_kstr(w, "address", row->address);
    jsonw_kint(w, "generation", row->generation);
    jsonw_kint(w, "version", row->version);
    jsonw_kstr(w, "ended", row->ended.len ? row->ended : STR_NONE);
    jsonw_kstr(w, "created_at", row->created_at);
    jsonw_kstr(w, "updated_at", row->updated_at);
    if (!op) {
        jsonw_kstr(w, "state", row->state);
        if (row->state.at)
            jsonw_kint(w, "copy_version", row->copy_version);
        else
            jsonw_knull(w, "copy_version");
    } else if (op->verb == DEPLOYS_GET) {
        jsonw_key(w, "copies");
        jsonw_arr(w);
        for (size_t i = 0; i < op->copy_count; i++)
            copy_write(w, &op->copies[i]);
        jsonw_end_arr(w);
        jsonw_key(w, "failed_on");
        jsonw_arr(w);
        for (size_t i = 0; i < op->failure_count; i++)
            failure_write(w, &op->failures[i]);
        jsonw_end_arr(w);
    } else {
        jsonw_kbool(w, "changed", op->u.put.changed);
    }
    jsonw_end_obj(w);
}
