/* The two shapes most commands have: show one thing, do one thing. */
#include "cli/answer.h"

#include <assert.h>
#include <stdarg.h>

#include "cli/show.h"

const char *answer_path(struct cli *cli, const char *collection, const char *suffix)
{
    assert(cli->arg_count > 0 && collection[0] == '/');
    return arena_fmt(&cli->arena, "%s%s%s", collection, ask_escape(cli, str_of(cli->args[0])),
                     suffix)
        .at;
}

int answer_show(struct cli *cli, const char *path, const char *id)
{
    const struct json *json;
    struct str reply;
    int code = ask_get(cli, path, &json, &reply);

    if (code != CLI_OK)
        return code;
    if (cli->output == CLI_NAME)
        show_name(cli, show_member(cli, json, id), cli->out);
    else if (cli->json || json_type(json) != JSON_OBJ)
        show_raw(cli, reply);
    else
        show_object(cli, json);
    return CLI_OK;
}

static int done(struct cli *cli, struct ask *ask, const char *fmt, va_list args)
{
    int code = ask_run(cli, ask);

    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, ask->reply);
    } else if (cli->output == CLI_NAME && cli->arg_count > 0) {
        fprintf(cli->out, "%s\n", cli->args[0]);
    } else {
        vfprintf(cli->out, fmt, args);
        fputc('\n', cli->out);
    }
    return CLI_OK;
}

int answer_done(struct cli *cli, struct ask *ask, const char *fmt, ...)
{
    va_list args;
    int code;

    va_start(args, fmt);
    code = done(cli, ask, fmt, args);
    va_end(args);
    return code;
}

int answer_post(struct cli *cli, const char *path, struct buf *body, const char *fmt, ...)
{
    struct ask ask = {.method = "POST", .path = path, .body = body ? buf_view(body) : STR("{}")};
    va_list args;
    int code;

    va_start(args, fmt);
    code = done(cli, &ask, fmt, args);
    va_end(args);
    if (body)
        buf_free(body);
    return code;
}
