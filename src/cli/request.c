/* A blocking call on top of io/client.h: a private loop that runs until the one call is done. */
#include "cli/request.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "io/client.h"

enum { ASK_PAGES_MAX = 10000 };

struct exchange {
    struct client_call client_call;
    struct ask *ask;
    struct loop *loop;
    bool ended; /* by the reader of a stream: not a failure */
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
    exchange->ended = !exchange->ask->piece(exchange->ask->user, bytes);
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

static void add_header(struct cli *cli, const char **headers, size_t *count, const char *name,
                       const char *value)
{
    if (value)
        headers[(*count)++] = arena_fmt(&cli->arena, "%s: %s", name, value).at;
}

static const char *bearer(struct cli *cli)
{
    return cli->token ? arena_fmt(&cli->arena, "Bearer %s", cli->token).at : NULL;
}

/* application/problem+json carries `error` and `detail`; anything else did not come from berth. */
int ask_refused(struct cli *cli, const struct ask *ask)
{
    struct str name = json_str(json_get(ask->json, "error"), &cli->arena);
    struct str detail = json_str(json_get(ask->json, "detail"), &cli->arena);

    if (json_type(ask->json) != JSON_OBJ || name.len == 0)
        return cli_fail(cli, err_exit(err_by_name("", ask->status)),
                        "%s%s answered %d without a reason. Is it a berth server?", cli->addr,
                        ask->path, ask->status);
    if (ask->status == 401 && !cli->token)
        return cli_fail(
            cli, err_exit(err_by_name(arena_cstr(&cli->arena, name), ask->status)),
            "%s wants a token: put it into a file and name that (--token-file), or into "
            "BERTH_TOKEN (" STR_FMT ")",
            cli->addr, STR_ARG(name));
    return cli_fail(cli, err_exit(err_by_name(arena_cstr(&cli->arena, name), ask->status)),
                    STR_FMT " (" STR_FMT ")", STR_ARG(detail), STR_ARG(name));
}

static int judge(struct cli *cli, const struct ask *ask, enum err err)
{
    assert(ask->method && ask->path);
    if (err == ERR_TIMEOUT)
        return cli_fail(cli, CLI_TIMEOUT, "%s did not answer in time", cli->addr);
    if (err == ERR_TOO_LARGE)
        return cli_fail(cli, CLI_FAILED, "the answer of %s is too large", cli->addr);
    if (err == ERR_BAD_REQUEST || err == ERR_BAD_FIELD)
        return cli_fail(cli, CLI_USAGE, "%s is not an address that can be called", cli->addr);
    if (err && ask->status == 200)
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
    if ((ask->status < 200 || ask->status > 299) && !(ask->any_status && ask->json))
        return ask_refused(cli, ask);
    if (!ask->json && !ask->piece && !ask->text)
        return cli_fail(cli, CLI_FAILED, "%s%s did not answer JSON. Is it a berth server?",
                        cli->addr, ask->path);
    return CLI_OK;
}

int ask_run(struct cli *cli, struct ask *ask)
{
    const char *headers[4] = {NULL};
    size_t header_count = 0;
    struct exchange exchange = {
        .ask = ask,
        .client_call = {.method = ask->method,
                        .url = arena_fmt(&cli->arena, "%s%s", cli->addr, ask->path).at,
                        .body = ask->body,
                        .content_type = ask->body.at ? "application/json" : NULL,
                        .headers = headers,
                        .ca_file = cli->ca_file,
                        .cert_file = cli->cert_file,
                        .key_file = cli->key_file,
                        .timeout_ms = ask->timeout_ms ? ask->timeout_ms : ASK_TIMEOUT_MS,
                        .reply_bytes_max = ASK_REPLY_BYTES_MAX,
                        .piece = ask->piece ? exchange_piece : NULL,
                        .done = exchange_done}};
    enum err err;

    assert(ask->path[0] == '/');
    add_header(cli, headers, &header_count, "Authorization", bearer(cli));
    add_header(cli, headers, &header_count, "Idempotency-Key", ask->idempotency_key);
    add_header(cli, headers, &header_count, "Last-Event-ID", ask->last_event_id);
    assert(header_count < COUNT_OF(headers));
    if (ask->piece)
        exchange.client_call.timeout_ms = 0;
    err = run_loop(&exchange);
    ask->status = exchange.client_call.status;
    ask->reply = arena_str(&cli->arena, buf_view(&exchange.client_call.reply));
    buf_free(&exchange.client_call.reply);
    if (json_parse(ask->reply, &cli->arena, &ask->json, NULL) != ERR_OK)
        ask->json = NULL;
    return exchange.ended ? CLI_OK : judge(cli, ask, err);
}

int ask_quietly(struct cli *cli, struct ask *ask, struct str *ret_said)
{
    FILE *kept = cli->err;
    char *said = NULL;
    size_t len = 0;
    int code;

    cli->err = open_memstream(&said, &len);
    assert(cli->err != NULL);
    code = ask_run(cli, ask);
    fclose(cli->err);
    cli->err = kept;
    *ret_said = arena_str(&cli->arena, (struct str){.at = said, .len = len});
    free(said);
    return code;
}

int ask_get(struct cli *cli, const char *path, const struct json **ret_json, struct str *ret_reply)
{
    struct ask ask = {.method = "GET", .path = path};
    int code = ask_run(cli, &ask);

    if (code == CLI_OK) {
        *ret_json = ask.json;
        *ret_reply = ask.reply;
    }
    return code;
}

int ask_list(struct cli *cli, const char *path, const char *name, const struct json **ret_json,
             struct str *ret_reply)
{
    const char *page_path = path;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    int code = CLI_OK;

    jsonw_obj(&w);
    jsonw_key(&w, name);
    jsonw_arr(&w);
    for (int page = 0; page < ASK_PAGES_MAX && page_path; page++) {
        const struct json *json, *list, *item, *cursor;
        struct str reply;

        code = ask_get(cli, page_path, &json, &reply);
        if (code != CLI_OK)
            break;
        list = json_get(json, name);
        item = json_first(list);
        for (uint32_t i = 0; list && i < list->count; i++, item = json_next(item))
            jsonw_raw(&w, json_raw(item));
        cursor = json_get(json, "next_cursor");
        page_path = NULL;
        if (json_type(cursor) == JSON_STR)
            page_path = arena_fmt(&cli->arena, "%s%ccursor=%s", path, strchr(path, '?') ? '&' : '?',
                                  ask_escape(cli, json_str(cursor, &cli->arena)))
                            .at;
    }
    jsonw_end_arr(&w);
    jsonw_knull(&w, "next_cursor");
    jsonw_end_obj(&w);
    if (code == CLI_OK) {
        *ret_reply = arena_str(&cli->arena, buf_view(&text));
        code = json_parse(*ret_reply, &cli->arena, ret_json, NULL) ? CLI_FAILED : CLI_OK;
        assert(code == CLI_OK); /* we wrote it */
    }
    buf_free(&text);
    return code;
}

const char *ask_escape(struct cli *cli, struct str text)
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
