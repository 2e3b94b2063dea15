/* Commands about the server as a whole: version, health, events. */
#include <assert.h>
#include <string.h>

#include "cli/ask.h"
#include "cli/show.h"

static int cmd_version(struct cli *cli)
{
    fprintf(cli->out, "berth %s\n", BERTH_VERSION);
    return CLI_OK;
}

/* A server that is up but not ready says so with 503 and the reason. */
static int cmd_health(struct cli *cli)
{
    struct ask ask = {.method = "GET", .path = "/readyz", .any_status = true};
    int code = ask_run(cli, &ask);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, ask.reply);
    else if (json_type(ask.json) == JSON_OBJ)
        show_object(cli, ask.json);
    if (ask.status == 200)
        return CLI_OK;
    return cli_fail(cli, CLI_UNAVAILABLE, "the server is not ready: " STR_FMT,
                    STR_ARG(show_member(cli, ask.json, "reason")));
}

/* Server-sent events: "event: NAME" and "data: JSON" lines, an empty line ends one. */
struct event_reader {
    struct cli *cli;
    struct buf line; /* what came of a line so far */
    struct buf name;
    struct buf data;
    int64_t left; /* events still to print; < 0: no bound */
};

static void print_event(struct event_reader *reader)
{
    FILE *out = reader->cli->out;

    assert(reader->left != 0);
    if (reader->data.len > 0) {
        if (!reader->cli->json)
            fprintf(out, "%-16.*s ", STR_ARG(buf_view(&reader->name)));
        fprintf(out, STR_FMT "\n", STR_ARG(buf_view(&reader->data)));
        fflush(out);
        reader->left -= reader->left > 0;
    }
    buf_clear(&reader->name);
    buf_clear(&reader->data);
}

static void take_line(struct event_reader *reader, struct str line)
{
    struct str value = line, field;

    if (line.len == 0) {
        print_event(reader);
        return;
    }
    field = str_cut(&value, ':'); /* a comment has an empty field */
    if (value.at && value.len > 0 && value.at[0] == ' ')
        value = (struct str){.at = value.at + 1, .len = value.len - 1};
    if (!value.at)
        return;
    if (str_is(field, "event"))
        buf_str(&reader->name, value);
    if (str_is(field, "data")) {
        if (reader->data.len > 0)
            buf_char(&reader->data, ' ');
        buf_str(&reader->data, value);
    }
}

static bool take_piece(void *user, struct str bytes)
{
    struct event_reader *reader = user;

    assert(reader->cli != NULL);
    for (size_t i = 0; i < bytes.len && reader->left != 0; i++) {
        if (bytes.at[i] != '\n') {
            if (bytes.at[i] != '\r')
                buf_char(&reader->line, bytes.at[i]);
            continue;
        }
        take_line(reader, buf_view(&reader->line));
        buf_clear(&reader->line);
    }
    return reader->left != 0 && !ferror(reader->cli->out); /* `berth events | head` ends it */
}

static int cmd_events(struct cli *cli)
{
    struct event_reader reader = {.cli = cli, .left = cli_num(cli, "count", -1)};
    struct ask ask = {.method = "GET", .path = "/v1/events", .piece = take_piece, .user = &reader};
    int code = ask_run(cli, &ask);

    if (code == CLI_OK && reader.left != 0 && !ferror(cli->out))
        code = cli_fail(cli, CLI_UNAVAILABLE, "the server ended the stream");
    buf_free(&reader.line);
    buf_free(&reader.name);
    buf_free(&reader.data);
    return code;
}

static const struct flag events_flags[] = {
    {.name = "count",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = INT32_MAX,
     .help = "stop after so many events"},
};

static const struct command rows[] = {
    {.noun = "version",
     .kind = COMMAND_LOCAL,
     .help = "the version of this program",
     .examples = "berth version",
     .run = cmd_version},
    {.noun = "health",
     .kind = COMMAND_API,
     .help = "is the server up and ready",
     .examples = "berth health\n"
                 "berth health -o json",
     .run = cmd_health},
    {.noun = "events",
     .kind = COMMAND_API,
     .flags = FLAGS(events_flags),
     .help = "follow what happens, until interrupted",
     .examples = "berth events\n"
                 "berth events --count 10 -o json",
     .run = cmd_events},
};

const struct command_set commands_cluster = COMMANDS(rows);
