/* /v1/tokens: who may call. Only digests are kept; a token is told once, when it is made. */
#include <assert.h>
#include <string.h>

#include "server/api.h"
#include "server/token_file.h"

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

static const int64_t EXPIRES_MS_MAX = INT64_C(100) * 365 * 86400 * 1000;

static void write_token(struct jsonw *w, const struct auth *auth, size_t i, int64_t now_ms)
{
    jsonw_obj(w);
    token_members(w, &auth->tokens.at[i], false);
    jsonw_kbool(w, "expired", token_expired(&auth->tokens.at[i], now_ms));
    jsonw_kstr(w, "source", i < auth->fixed ? STR("configuration") : STR("file"));
    jsonw_end_obj(w);
}

/* In the order they were made; the cursor is a place in it. */
void api_token_list(struct call *call)
{
    const struct auth *auth = call->worker->auth;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    int64_t limit = LIST_DEFAULT, from = 0;

    if (!call_query_int(call, "limit", 1, LIST_MAX, &limit) ||
        !call_query_int(call, "cursor", 0, TOKENS_MAX, &from))
        return;
    jsonw_obj(&w);
    jsonw_key(&w, "tokens");
    jsonw_arr(&w);
    size_t i = (size_t)from;
    for (; i < auth->tokens.count && (int64_t)i < from + limit; i++)
        write_token(&w, auth, i, call->worker->loop.wall_ms);
    jsonw_end_arr(&w);
    jsonw_key(&w, "next_cursor");
    if (i < auth->tokens.count)
        jsonw_str(&w, arena_fmt(call->arena, "%zu", i));
    else
        jsonw_null(&w);
    jsonw_end_obj(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
}

struct token_call {
    struct token_edit edit;
    struct call *call;
    struct token token;
    char secret[DIGEST_HEX + 1]; /* "": the caller has it already */
};

static void created(struct token_edit *edit)
{
    struct token_call *own = container_of(edit, struct token_call, edit);
    struct call *call = own->call;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    if (edit->err) {
        explicit_bzero(own->secret, sizeof own->secret);
        call_problem(call, &edit->why);
        return;
    }
    jsonw_obj(&w);
    token_members(&w, &own->token, false);
    if (own->secret[0])
        jsonw_kstr(&w, "token", str_of(own->secret));
    jsonw_end_obj(&w);
    explicit_bzero(own->secret, sizeof own->secret);
    call_json(call, 201, &buf);
    explicit_bzero(buf.at, buf.len);
    buf_free(&buf);
}

/* The same rules as for the file: what was asked for is read as one of its lines. */
static enum err read_new(struct token_call *own, struct problem *why)
{
    struct call *call = own->call;
    struct buf line = {0};
    struct jsonw w = jsonw_to(&line);
    const struct json *digest = json_get(call->body, "sha256"), *node, *list;
    const struct json *quota = json_get(call->body, "quota");
    const struct json *namespace = json_get(call->body, "namespace");
    struct tokens tokens;
    int64_t expires_in_ms = 0;
    enum err err;

    /* Names of before may be any text; a file that has them is still read. */
    if (!str_is_id(json_str(json_get(call->body, "name"), call->arena), TOKEN_NAME_MAX))
        return problem_set(why, ERR_BAD_FIELD, "name",
                           "name is required: 1 to %d letters, digits or ._:@-.", TOKEN_NAME_MAX);
    if (json_is_null(digest)) {
        if (!digest_secret(own->secret))
            return problem_set(why, ERR_INTERNAL, "", "There are no random bytes.");
        digest_sha256_hex(str_of(own->secret), own->token.digest);
    }
    jsonw_arr(&w);
    jsonw_obj(&w);
    jsonw_kraw(&w, "name", json_raw(json_get(call->body, "name")));
    if (json_is_null(digest))
        jsonw_kstr(&w, "sha256", str_of(own->token.digest));
    else
        jsonw_kraw(&w, "sha256", json_raw(digest));
    jsonw_kraw(&w, "scopes", json_raw(json_get(call->body, "scopes")));
    node = json_get(call->body, "node_id");
    if (!json_is_null(node))
        jsonw_kraw(&w, "node_id", json_raw(node));
    if (!json_is_null(quota))
        jsonw_kraw(&w, "quota", json_raw(quota));
    if (!json_is_null(namespace))
        jsonw_kraw(&w, "namespace", json_raw(namespace));
    jsonw_kint(&w, "format", 2); /* it says all it may do */
    jsonw_end_obj(&w);
    jsonw_end_arr(&w);
    struct str text = arena_str(call->arena, buf_view(&line));
    buf_free(&line);
    err = json_parse(text, call->arena, &list, why);
    if (!err)
        err = tokens_read(list, call->arena, &tokens, why);
    if (err)
        return problem_set(why, ERR_BAD_FIELD, "token", "%s", strdupa(why->detail));
    own->token = tokens.at[0];
    own->token.created_ms = call->worker->loop.wall_ms;
    const struct json *expires = json_get(call->body, "expires_in_ms");
    if (!json_is_null(expires) && (!json_int(expires, &expires_in_ms) || expires_in_ms <= 0 ||
                                   expires_in_ms > EXPIRES_MS_MAX))
        return problem_set(why, ERR_BAD_FIELD, "expires_in_ms",
                           "expires_in_ms must be a number of milliseconds from now.");
    if (expires_in_ms)
        own->token.expires_ms = own->token.created_ms + expires_in_ms;
    return ERR_OK;
}

void api_token_create(struct call *call)
{
    struct token_call *own = arena_new(call->arena, struct token_call);
    struct problem why;

    own->call = call;
    if (read_new(own, &why)) {
        call_problem(call, &why);
        return;
    }
    own->edit = (struct token_edit){
        .from = call->worker, .add = &own->token, .name = own->token.name, .done = created};
    warden_edit(&own->edit);
}

static void revoked(struct token_edit *edit)
{
    struct token_call *own = container_of(edit, struct token_call, edit);

    if (edit->err)
        call_problem(own->call, &edit->why);
    else
        call_ok(own->call);
}

void api_token_delete(struct call *call)
{
    struct token_call *own = arena_new(call->arena, struct token_call);

    own->call = call;
    own->edit = (struct token_edit){.from = call->worker, .name = call->params[0], .done = revoked};
    warden_edit(&own->edit);
}
