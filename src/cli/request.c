/* A blocking call on top of io/client.h, in a private loop that runs until the call is done; and
 * its common uses: show one thing, change one thing, or wait for one. Waiting is a series of long
 * polls: the server holds each until the job ends or the poll times out. */
#include "cli/request.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/list.h"
#include "cli/screen.h"
#include "io/client.h"
#include "io/http_parse.h"
#include "model/job.h"

enum { REQUEST_TIMEOUT_MS = 30000, REQUEST_REPLY_BYTES_MAX = 64 * 1024 * 1024 };

/* --- a call --- */

enum { REQUEST_PAGES_MAX = 10000 };

struct exchange {
    struct client_call client_call;
    struct request *request;
    struct loop *loop;
    bool ended; /* by the reader of a stream: not an error */
};

static void exchange_done(struct client_call *client_call)
{
    struct exchange *exchange = container_of(client_call, struct exchange, client_call);

    loop_stop(exchange->loop);
}

static bool exchange_piece(struct client_call *client_call, struct str bytes)
{
    struct exchange *exchange = container_of(client_call, struct exchange, client_call);

    assert(!exchange->ended);
    exchange->ended = !exchange->request->piece(exchange->request->user, bytes);
    return !exchange->ended;
}

static enum err run_loop(struct exchange *exchange)
{
    struct loop loop;
    struct client *client;
    enum err err = loop_init(&loop, 0);

    if (err)
        return err;
    exchange->loop = &loop;
    err = client_new(&loop, 1, &client);
    if (!err) {
        err = client_send(client, &exchange->client_call);
        if (!err) {
            loop_run(&loop);
            err = exchange->client_call.err;
        }
        client_free(client);
    }
    loop_done(&loop);
    return err;
}

/* The value that was sent for this field, in the body or the query. */
static struct str sent_text(struct cli *cli, const struct request *request, struct str field)
{
    struct str rest = str_of(strchr(request->path, '?'));
    const struct json *body;

    if (request->body.at && !json_parse(request->body, &cli->arena, &body, NULL))
        return json_str(json_get(body, arena_cstr(&cli->arena, field)), &cli->arena);
    if (rest.len > 0)
        rest = str_from(rest, 1);
    while (rest.len > 0) {
        struct str value = str_cut(&rest, '&'), name = str_cut(&value, '=');
        char *text = arena_alloc(&cli->arena, value.len + 1);
        size_t len;

        if (str_eq(name, field) && http_percent_decode(value, true, text, &len))
            return (struct str){.at = text, .len = len};
    }
    return STR_NONE;
}

/* application/problem+json has `error` and `detail`; anything else is not from berth. */
int request_refused(struct cli *cli, const struct request *request)
{
    struct str name = json_str(json_get(request->json, "error"), &cli->arena);
    struct str detail = json_str(json_get(request->json, "detail"), &cli->arena);
    int64_t column = show_int(request->json, "column", 0);
    struct str text;

    if (json_type(request->json) != JSON_OBJ || name.len == 0)
        return cli_fail(cli, err_exit(err_by_name("", request->status)),
                        "%s%s answered %d without a reason. Is it a berth server?", cli->addr,
                        request->path, request->status);
    if (request->status == 401 && !cli->token)
        return cli_fail(
            cli, err_exit(err_by_name(arena_cstr(&cli->arena, name), request->status)),
            "%s wants a token: put it into a file and name that (--token-file), or into "
            "BERTH_TOKEN (" STR_FMT ")",
            cli->addr, STR_ARG(name));
    cli_fail(cli, CLI_FAILED, STR_FMT " (" STR_FMT ")", STR_ARG(detail), STR_ARG(name));
    if (json_is_null(json_get(request->json, "column")))
        return err_exit(err_by_name(arena_cstr(&cli->arena, name), request->status));
    /* Shows the wrong text with a mark below the character; of a long text only the part around
     * it. */
    text = sent_text(cli, request, show_member(cli, request->json, "field"));
    if (column >= 1 && (uint64_t)column <= (uint64_t)text.len + 1) {
        enum { BEFORE = 40, SHOWN = 76 };
        size_t from = column > BEFORE ? (size_t)column - BEFORE : 0;

        text = str_from(text, from);
        text.len = text.len > SHOWN ? SHOWN : text.len;
        fprintf(cli->err, "  " STR_FMT "\n  %*s\n", STR_ARG(table_harmless(&cli->arena, text)),
                (int)((size_t)column - from), "^");
    }
    return err_exit(err_by_name(arena_cstr(&cli->arena, name), request->status));
}

static int judge(struct cli *cli, const struct request *request, enum err err)
{
    assert(request->method && request->path);
    if (err == ERR_TIMEOUT)
        return cli_fail(cli, CLI_TIMEOUT, "%s did not answer in time", cli->addr);
    if (err == ERR_TOO_LARGE)
        return cli_fail(cli, CLI_FAILED, "the answer of %s is too large", cli->addr);
    if (err == ERR_BAD_REQUEST || err == ERR_BAD_FIELD)
        return cli_fail(cli, CLI_USAGE, "%s is not an address that can be called", cli->addr);
    if (err && request->status == 200)
        return cli_fail(cli, CLI_UNAVAILABLE, "lost the connection to %s", cli->addr);
    if (err && strncmp(cli->addr, "https:", 6) == 0)
        return cli_fail(cli, CLI_UNAVAILABLE,
                        "cannot reach the server at %s, or its certificate is not trusted"
                        " (--ca-file)",
                        cli->addr);
    if (err)
        return cli_fail(cli, CLI_UNAVAILABLE,
                        "cannot reach the server. Is `berth dev` running? Tried %s"
                        " (https:// if it has a certificate)",
                        cli->addr);
    if ((request->status < 200 || request->status > 299) && !(request->any_status && request->json))
        return request_refused(cli, request);
    if (!request->json && !request->piece && !request->text)
        return cli_fail(cli, CLI_FAILED, "%s%s did not answer JSON. Is it a berth server?",
                        cli->addr, request->path);
    return CLI_OK;
}

int request_run(struct cli *cli, struct request *request)
{
    const char *headers[4] = {NULL};
    const struct {
        const char *name, *value;
    } all_headers[] = {{"Authorization: Bearer ", cli->token},
                       {"Idempotency-Key: ", request->idempotency_key},
                       {"Last-Event-ID: ", request->last_event_id}};
    size_t header_count = 0;
    struct exchange exchange = {
        .request = request,
        .client_call = {.method = request->method,
                        .url = arena_fmt(&cli->arena, "%s%s", cli->addr, request->path).at,
                        .body = request->body,
                        .content_type = request->body.at ? "application/json" : NULL,
                        .headers = headers,
                        .ca_file = cli->ca_file,
                        .cert_file = cli->cert_file,
                        .key_file = cli->key_file,
                        .timeout_ms =
                            request->timeout_ms ? request->timeout_ms : REQUEST_TIMEOUT_MS,
                        .reply_bytes_max = REQUEST_REPLY_BYTES_MAX,
                        .piece = request->piece ? exchange_piece : NULL,
                        .done = exchange_done}};
    enum err err;

    assert(request->path[0] == '/');
    for (size_t i = 0; i < COUNT_OF(all_headers); i++)
        if (all_headers[i].value)
            headers[header_count++] =
                arena_fmt(&cli->arena, "%s%s", all_headers[i].name, all_headers[i].value).at;
    assert(header_count < COUNT_OF(headers));
    if (request->piece)
        exchange.client_call.timeout_ms = 0;
    err = run_loop(&exchange);
    request->status = exchange.client_call.status;
    request->reply = arena_str(&cli->arena, buf_view(&exchange.client_call.reply));
    buf_free(&exchange.client_call.reply);
    if (json_parse(request->reply, &cli->arena, &request->json, NULL) != ERR_OK)
        request->json = NULL;
    return exchange.ended ? CLI_OK : judge(cli, request, err);
}

int request_quietly(struct cli *cli, struct request *request, struct str *ret_said)
{
    FILE *kept = cli->err;
    char *said = NULL;
    size_t len = 0;
    int code;

    cli->err = open_memstream(&said, &len);
    assert(cli->err != NULL);
    code = request_run(cli, request);
    fclose(cli->err);
    cli->err = kept;
    *ret_said = arena_str(&cli->arena, (struct str){.at = said, .len = len});
    free(said);
    return code;
}

int request_get(struct cli *cli, const char *path, const struct json **ret_json)
{
    struct request request = {.method = "GET", .path = path};
    int code = request_run(cli, &request);

    if (code == CLI_OK)
        *ret_json = request.json;
    return code;
}

int request_list(struct cli *cli, const char *path, const char *name, const struct json **ret_json)
{
    const char *page_path = path;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    int code = CLI_OK;

    jsonw_obj(&w);
    jsonw_karr(&w, name);
    for (int page = 0; page < REQUEST_PAGES_MAX && page_path; page++) {
        const struct json *json, *list, *item, *cursor;

        code = request_get(cli, page_path, &json);
        if (code != CLI_OK)
            break;
        list = json_get(json, name);
        for (item = json_items(list); item; item = json_after(list, item))
            jsonw_raw(&w, json_raw(item));
        cursor = json_get(json, "next_cursor");
        page_path = NULL;
        if (json_type(cursor) == JSON_STR)
            page_path = arena_fmt(&cli->arena, "%s%ccursor=%s", path, strchr(path, '?') ? '&' : '?',
                                  request_escape(cli, json_str(cursor, &cli->arena)))
                            .at;
    }
    jsonw_end_arr(&w);
    jsonw_knull(&w, "next_cursor");
    jsonw_end_obj(&w);
    if (code == CLI_OK) {
        code = json_parse(arena_str(&cli->arena, buf_view(&text)), &cli->arena, ret_json, NULL)
                   ? CLI_FAILED
                   : CLI_OK;
        assert(code == CLI_OK); /* we built it ourselves */
    }
    buf_free(&text);
    return code;
}

const char *request_escape(struct cli *cli, struct str text)
{
    static const char digits[] = "0123456789ABCDEF";
    char *escaped = arena_alloc(&cli->arena, text.len * 3 + 1), *to = escaped;

    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.at[i];

        if (isalnum(c) || (c && strchr("-._~:@", c))) {
            *to++ = (char)c;
            continue;
        }
        *to++ = '%';
        *to++ = digits[c >> 4];
        *to++ = digits[c & 15];
    }
    *to = 0;
    return escaped;
}

/* --- show one thing, do one thing --- */

const char *answer_path(struct cli *cli, const char *path)
{
    const char *hole = strstr(path, "{id}");

    if (!hole)
        return path;
    assert(cli->arg_count > 0);
    return arena_fmt(&cli->arena, "%.*s%s%s", (int)(hole - path), path,
                     request_escape(cli, str_of(cli->args[0])), hole + strlen("{id}"))
        .at;
}

int answer_call(struct cli *cli, const struct command_call *call)
{
    const char *path = answer_path(cli, call->path);

    if (call->id)
        return answer_show(cli, path, call->id, NULL);
    return answer_send(cli, call->method, path,
                       strcmp(call->method, "POST") == 0 ? STR("{}") : STR_NONE, "%s %s",
                       cli->args[0], call->said);
}

int answer_show(struct cli *cli, const char *path, const char *id,
                void (*show)(struct cli *cli, const struct json *json))
{
    const struct json *json;
    int code = request_get(cli, path, &json);

    if (code != CLI_OK)
        return code;
    if (cli->output == CLI_NAME)
        show_name(cli, show_member(cli, json, id), cli->out);
    else if (cli->json || json_type(json) != JSON_OBJ)
        show_raw(cli, json);
    else
        (show ? show : show_object)(cli, json);
    return CLI_OK;
}

int answer_send(struct cli *cli, const char *method, const char *path, struct str body,
                const char *fmt, ...)
{
    struct request request = {.method = method, .path = path, .body = body};
    int code = request_run(cli, &request);
    va_list args;

    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, request.json);
    } else if (cli->output == CLI_NAME && cli->arg_count > 0) {
        fprintf(cli->out, "%s\n", cli->args[0]);
    } else {
        va_start(args, fmt);
        vfprintf(cli->out, fmt, args);
        va_end(args);
        fputc('\n', cli->out);
    }
    return CLI_OK;
}

struct jsonw body_begin(struct cli *cli)
{
    struct jsonw w = jsonw_to(arena_new(&cli->arena, struct buf));

    jsonw_obj(&w);
    return w;
}

struct str body_end(struct cli *cli, struct jsonw *w)
{
    struct str text;

    jsonw_end_obj(w);
    text = arena_str(&cli->arena, buf_view(w->buf));
    buf_free(w->buf);
    return text;
}

/* --- waiting --- */

enum { POLL_MS = 20000, SEEN_POLL_MS = 1000, ANSWER_MS = 10000, NODE_POLL_MS = 250 };

static int report_end(struct cli *cli, const char *job_id, const struct json *job,
                      enum job_state state)
{
    struct str reason = show_member(cli, job, "reason");
    const struct json *list = json_get(job, "attempts"), *item, *attempt = NULL;

    assert(job_state_final(state));
    /* The last attempt with a reason of its own: that no node was left for a later one does not
     * explain why one was needed. */
    for (item = json_items(list); item; item = json_after(list, item)) {
        struct str own = show_member(cli, item, "reason");

        if (own.len)
            attempt = str_eq(own, reason) ? NULL : item;
    }
    if (cli->json)
        show_raw(cli, job);
    if (state == JOB_DONE)
        return CLI_OK;
    return cli_fail(
        cli, CLI_JOB_FAILED, "job %s failed: " STR_FMT "%s" STR_FMT, job_id,
        STR_ARG(reason.len ? table_harmless(&cli->arena, reason) : STR("no reason was given")),
        attempt ? "; " : "", STR_ARG(attempt ? show_attempt(cli, attempt) : STR("")));
}

int wait_job(struct cli *cli, const char *job_id, int64_t timeout_ms)
{
    int64_t begun_ms = clock_mono_ms();
    const char *id = request_escape(cli, str_of(job_id));

    for (;;) {
        int64_t passed_ms = clock_mono_ms() - begun_ms;
        int64_t poll_ms = progress_wanted(cli) ? SEEN_POLL_MS : POLL_MS;
        enum job_state state = JOB_NEW;
        struct str state_text;
        struct request request = {.method = "GET"};
        int code;

        if (timeout_ms != WAIT_FOREVER && timeout_ms - passed_ms < poll_ms)
            poll_ms = timeout_ms > passed_ms ? timeout_ms - passed_ms : 0;
        assert(poll_ms >= 0 && poll_ms <= POLL_MS);
        request.path = arena_fmt(&cli->arena, "/v1/jobs/%s?wait=%" PRId64 "ms", id, poll_ms).at;
        request.timeout_ms = poll_ms + ANSWER_MS;
        code = request_run(cli, &request);
        progress_clear(cli);
        if (code != CLI_OK)
            return code;
        state_text = show_member(cli, request.json, "state");
        if (!job_state_by_name(state_text, &state))
            return cli_fail(cli, CLI_FAILED, "job %s is in an unknown state \"" STR_FMT "\"",
                            job_id, STR_ARG(state_text));
        if (job_state_final(state))
            return report_end(cli, job_id, request.json, state);
        progress_tell(cli, "job %s: " STR_FMT "%s" STR_FMT ", %" PRId64 " s", job_id,
                      STR_ARG(state_text),
                      json_is_null(json_get(request.json, "node_id")) ? "" : " on ",
                      STR_ARG(show_member(cli, request.json, "node_id")),
                      (clock_mono_ms() - begun_ms) / 1000);
        if (timeout_ms != WAIT_FOREVER && clock_mono_ms() - begun_ms >= timeout_ms) {
            progress_clear(cli);
            if (cli->json)
                show_raw(cli, request.json);
            return cli_fail(cli, CLI_TIMEOUT, "job %s is still " STR_FMT " after %" PRId64 " ms",
                            job_id, STR_ARG(state_text), timeout_ms);
        }
    }
}

static const struct {
    const char *name;
    const char *health; /* NULL: no such node */
    bool empty;         /* nothing runs on it or is reserved for it */
} node_goals[] = {
    {"ready", "ready", false},
    {"drained", "draining", true},
    {"offline", "offline", false},
    {"gone", NULL, false},
};

/* CLI_OK: the node is in that state; CLI_TIMEOUT: not yet; otherwise why the request failed. */
static int look_at_node(struct cli *cli, const char *path, size_t goal, int64_t waited_ms)
{
    struct request request = {.method = "GET", .path = path, .any_status = true};
    int64_t running, reserved;
    int code = request_run(cli, &request);

    progress_clear(cli);
    if (code != CLI_OK)
        return code;
    if (request.status == 404 && !node_goals[goal].health)
        return CLI_OK;
    if (request.status != 200)
        return request_refused(cli, &request);
    running = show_int(request.json, "running", 0);
    reserved = show_int(request.json, "reserved", 0);
    if (node_goals[goal].health &&
        json_str_is(json_get(request.json, "health"), node_goals[goal].health) &&
        (!node_goals[goal].empty || running + reserved == 0))
        return CLI_OK;
    progress_tell(cli, "node %s: " STR_FMT ", %" PRId64 " running, %" PRId64 " s", cli->args[0],
                  STR_ARG(show_member(cli, request.json, "health")), running, waited_ms / 1000);
    return CLI_TIMEOUT;
}

int wait_node(struct cli *cli, const char *path, const char *goal_name, int64_t timeout_ms)
{
    int64_t begun_ms = clock_mono_ms();
    size_t goal = 0;

    while (goal < COUNT_OF(node_goals) && strcmp(node_goals[goal].name, goal_name) != 0)
        goal++;
    if (goal == COUNT_OF(node_goals))
        return cli_misuse(cli, "--for is ready, drained, offline or gone, not \"%s\"", goal_name);
    for (;;) {
        int64_t waited_ms = clock_mono_ms() - begun_ms;
        int code = look_at_node(cli, path, goal, waited_ms);

        if (code != CLI_TIMEOUT)
            return code;
        if (timeout_ms != WAIT_FOREVER && waited_ms >= timeout_ms) {
            progress_clear(cli);
            return cli_fail(cli, CLI_TIMEOUT, "node %s is not %s after %" PRId64 " ms",
                            cli->args[0], goal_name, timeout_ms);
        }
        poll(NULL, 0, NODE_POLL_MS);
    }
}
