/* `berth events`: prints events as they happen. If the server goes away, it reconnects and requests
 * what was missed. */
#include <assert.h>
#include <poll.h>

#include "cli/list.h"
#include "cli/request.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 2000 }; /* between two attempts to reconnect */

/* Server-sent events: lines "id: ID", "event: NAME" and "data: JSON"; an empty line ends an
 * event. */
struct event_reader {
    struct cli *cli;
    FILE *err;       /* for messages: the output of a failing call is captured separately */
    struct buf line; /* the part of a line received so far */
    struct buf name;
    struct buf data;
    struct buf id;    /* of the last complete event */
    struct buf fresh; /* of the event being read */
    int64_t left;     /* events still to print; < 0: no limit */
    bool heard;       /* a server has replied at least once */
    bool away;        /* and was then lost, which was reported */
};

static void take_line(struct event_reader *reader, struct str line)
{
    struct str value = line, field;
    FILE *out = reader->cli->out;

    if (line.len == 0) { /* the event is complete */
        assert(reader->left != 0);
        if (reader->data.len > 0) {
            if (!reader->cli->json)
                fprintf(out, "%-16.*s ", STR_ARG(buf_view(&reader->name)));
            show_json(reader->cli, buf_view(&reader->data), true, out);
            fflush(out);
            reader->left -= reader->left > 0;
        }
        if (reader->fresh.len > 0) {
            buf_clear(&reader->id);
            buf_str(&reader->id, buf_view(&reader->fresh));
        }
        buf_clear(&reader->fresh);
        buf_clear(&reader->name);
        buf_clear(&reader->data);
        return;
    }
    field = str_cut(&value, ':'); /* a comment has an empty field */
    if (value.at && value.len > 0 && value.at[0] == ' ')
        value = str_from(value, 1);
    if (!value.at)
        return;
    if (str_is(field, "event"))
        buf_str(&reader->name, value);
    if (str_is(field, "id"))
        buf_str(&reader->fresh, value);
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
    if (reader->away)
        fprintf(reader->err, "berth: connected again\n");
    reader->away = false;
    reader->heard = true;
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

/* One connection, until it ends. CLI_OK and *ret_again: connect again and continue there. */
static int follow(struct event_reader *reader, bool *ret_again)
{
    struct cli *cli = reader->cli;
    struct request request = {
        .method = "GET", .path = "/v1/events", .piece = take_piece, .user = reader};
    struct str said;
    int code;

    if (reader->id.len > 0)
        request.last_event_id = arena_cstr(&cli->arena, buf_view(&reader->id));
    code = request_quietly(cli, &request, &said);
    *ret_again = false;
    if (reader->left == 0 || ferror(cli->out))
        return CLI_OK;
    /* Ended cleanly, cut off, or not back yet. A refusal for another reason is final. */
    if (reader->heard && (code == CLI_OK || code == CLI_UNAVAILABLE || code == CLI_TIMEOUT)) {
        *ret_again = true;
        return CLI_OK;
    }
    fprintf(cli->err, STR_FMT, STR_ARG(said));
    return code != CLI_OK ? code : cli_fail(cli, CLI_UNAVAILABLE, "the server ended the stream");
}

static int cmd_events(struct cli *cli)
{
    struct event_reader reader = {.cli = cli, .err = cli->err, .left = cli_num(cli, "count", -1)};
    struct arena kept = cli->arena;
    int64_t pause_ms = PAUSE_MIN_MS;
    bool again = true;
    int code = CLI_OK;

    while (again && code == CLI_OK) {
        cli->arena = (struct arena){0}; /* events may be followed for days */
        code = follow(&reader, &again);
        arena_free(&cli->arena);
        if (!again)
            break;
        if (!reader.away) { /* reported once; each failed attempt waits longer */
            fprintf(reader.err, "berth: lost %s; trying again until it is back\n", cli->addr);
            pause_ms = PAUSE_MIN_MS;
        }
        reader.away = true;
        /* A partly read event is sent again. */
        buf_clear(&reader.line);
        buf_clear(&reader.name);
        buf_clear(&reader.data);
        buf_clear(&reader.fresh);
        poll(NULL, 0, (int)pause_ms);
        pause_ms = pause_ms * 2 < PAUSE_MAX_MS ? pause_ms * 2 : PAUSE_MAX_MS;
    }
    cli->arena = kept;
    buf_free(&reader.line);
    buf_free(&reader.name);
    buf_free(&reader.data);
    buf_free(&reader.id);
    buf_free(&reader.fresh);
    return code;
}

static const struct flag events_flags[] = {
    FLAG("count", 0, INT, "N", "stop after so many events", .min = 1, .max = INT32_MAX),
};

static const struct command rows[] = {
    {.noun = "events",
     .flags = FLAGS(events_flags),
     .help = "follow what happens, until interrupted",
     .detail = "A server that goes away is waited for. What was missed meanwhile comes\n"
               "after, or a gap is reported.",
     .examples = "berth events\n"
                 "berth events --count 10 -o json",
     .run = cmd_events},
};

const struct command_set commands_events = COMMANDS(rows);
