/* Tokens as read from a configuration or a token file, quotas as people write them, and the meter
 * of a rate. */
#include "model/token.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/yaml.h"
#include "model/node.h"

/* --- quotas --- */

static const int64_t RATE_MAX = 1000000, WAITING_MAX = 100000000, BYTES_MAX = INT64_C(1) << 40;
static const int64_t NS_OF_MS = 1000000;

static const struct {
    const char *name;
    int64_t ms;
} spans[] = {{"s", 1000}, {"m", 60000}, {"h", 3600000}};

/* Largest first: a size is shown in the largest unit that divides it. */
static const struct {
    const char *name;
    int64_t bytes;
} units[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}};

static bool read_number(struct str text, int64_t max, int64_t *ret_number)
{
    return str_int(text, ret_number) && *ret_number >= 1 && *ret_number <= max;
}

static bool read_rate(struct str text, struct quota *quota)
{
    struct str count = str_cut(&text, '/');

    for (size_t i = 0; i < COUNT_OF(spans); i++)
        if (str_is(text, spans[i].name))
            quota->rate_ms = spans[i].ms;
    return read_number(count, RATE_MAX, &quota->rate) && quota->rate_ms;
}

static bool read_waiting(struct str text, struct quota *quota)
{
    return read_number(text, WAITING_MAX, &quota->waiting);
}

static bool read_bytes(struct str text, struct quota *quota)
{
    size_t digits = 0;
    int64_t number;

    while (digits < text.len && text.at[digits] >= '0' && text.at[digits] <= '9')
        digits++;
    struct str unit = str_from(text, digits);
    if (!read_number((struct str){.at = text.at, .len = digits}, BYTES_MAX, &number))
        return false;
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (!str_is(unit, units[i].name) || number > BYTES_MAX / units[i].bytes)
            continue;
        quota->bytes = number * units[i].bytes;
        return true;
    }
    return false;
}

static const struct {
    const char *name;
    bool (*read)(struct str text, struct quota *quota);
} parts[] = {{"rate", read_rate}, {"waiting", read_waiting}, {"bytes", read_bytes}};

enum err quota_parse(struct str text, struct quota *ret_quota, struct problem *why)
{
    struct quota quota = {0};
    unsigned seen = 0;

    do {
        struct str value = str_cut(&text, ','), name = str_cut(&value, '=');
        size_t i = 0;

        while (i < COUNT_OF(parts) && !str_is(name, parts[i].name))
            i++;
        if (i == COUNT_OF(parts) || (seen & 1u << i) || !value.at || !parts[i].read(value, &quota))
            return problem_set(why, ERR_BAD_FIELD, "quota",
                               "quota must be like rate=10/s,waiting=1000,bytes=64MiB, each at "
                               "most once; a rate is by s, m or h.");
        seen |= 1u << i;
    } while (text.at);
    *ret_quota = quota;
    return ERR_OK;
}

void quota_text(const struct quota *quota, char to[QUOTA_TEXT_MAX + 1])
{
    size_t len = 0, size = QUOTA_TEXT_MAX + 1;

    to[0] = '\0';
    for (size_t i = 0; quota->rate && i < COUNT_OF(spans); i++)
        if (spans[i].ms == quota->rate_ms)
            len = (size_t)snprintf(to, size, "rate=%" PRId64 "/%s", quota->rate, spans[i].name);
    assert(!quota->rate || len > 0); /* a rate always has a span */
    if (quota->waiting)
        len += (size_t)snprintf(to + len, size - len, "%swaiting=%" PRId64, len ? "," : "",
                                quota->waiting);
    for (size_t i = 0; quota->bytes && i < COUNT_OF(units); i++) {
        if (quota->bytes % units[i].bytes)
            continue;
        len += (size_t)snprintf(to + len, size - len, "%sbytes=%" PRId64 "%s", len ? "," : "",
                                quota->bytes / units[i].bytes, units[i].name);
        break;
    }
    assert(len <= QUOTA_TEXT_MAX);
}

/* Every job advances the meter by its share of the span. A job that would move it more than a whole
 * span ahead of the clock has to wait: so one span's worth may come at once, and after that only as
 * fast as the clock advances. */
bool quota_take(const struct quota *quota, quota_meter *meter, int64_t now_ms, int64_t *ret_wait_ms)
{
    int64_t now_ns = now_ms * NS_OF_MS, span_ns = quota->rate_ms * NS_OF_MS;
    int64_t was = atomic_load_explicit(meter, memory_order_relaxed), next;

    assert(quota->rate > 0 && span_ns > 0);
    do {
        next = (was > now_ns ? was : now_ns) + span_ns / quota->rate;
        if (next - now_ns > span_ns) {
            *ret_wait_ms = (next - now_ns - span_ns + NS_OF_MS - 1) / NS_OF_MS;
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(meter, &was, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

/* --- tokens --- */

#define BIT(scope) (1u << (scope))

static const struct {
    const char *name;
    unsigned brings; /* what the scope permits, itself included */
} scopes[SCOPE_COUNT] = {
    [SCOPE_READ] = {"read", BIT(SCOPE_READ)},
    [SCOPE_SUBMIT] = {"submit", BIT(SCOPE_SUBMIT)},
    [SCOPE_NODE] = {"node", BIT(SCOPE_NODE)},
    [SCOPE_DEPLOY] = {"deploy", BIT(SCOPE_DEPLOY) | BIT(SCOPE_READ)},
    [SCOPE_OPERATE] = {"operate", BIT(SCOPE_OPERATE) | BIT(SCOPE_READ) | BIT(SCOPE_SUBMIT)},
    [SCOPE_ADMIN] = {"admin", BIT(SCOPE_ADMIN) | BIT(SCOPE_OPERATE) | BIT(SCOPE_READ) |
                                  BIT(SCOPE_SUBMIT) | BIT(SCOPE_NODE) | BIT(SCOPE_DEPLOY)}};

/* The format of a row. In the first one `operate` implied `deploy`, and rows had no format
 * number. */
enum { FORMAT_FIRST = 1, FORMAT_DEPLOY = 2, FORMAT_KNOWN = FORMAT_DEPLOY };

const char *token_scope_name(enum token_scope scope)
{
    assert(scope >= SCOPE_READ && scope < SCOPE_COUNT);
    return scopes[scope].name;
}

unsigned token_scopes_of(struct str name)
{
    for (int i = SCOPE_READ; i < SCOPE_COUNT; i++)
        if (str_is(name, scopes[i].name))
            return scopes[i].brings;
    return 0;
}

static enum err bad(struct problem *why, const char *what)
{
    return problem_set(why, ERR_BAD_CONFIG, "tokens", "tokens: %s", what);
}

static bool read_scopes(const struct json *list, struct arena *arena, unsigned *ret_scopes)
{
    const struct json *item = json_items(list);
    unsigned all = 0;

    if (!item)
        return false;
    for (; item; item = json_after(list, item)) {
        unsigned brings = json_type(item) == JSON_STR ? token_scopes_of(json_str(item, arena)) : 0;

        if (!brings)
            return false;
        all |= brings; /* naming a scope that another one implies is allowed */
    }
    *ret_scopes = all;
    return true;
}

/* An unknown name may be a binding that the operator relies on. */
static bool knows_all_keys(const struct json *item)
{
    static const char *const keys[] = {"name",       "sha256", "scopes", "node_id",  "created_ms",
                                       "expires_ms", "quota",  "format", "namespace"};

    for (const struct json *key = json_keys(item); key; key = json_after(item, key)) {
        bool known = false;

        for (size_t k = 0; k < COUNT_OF(keys); k++)
            known |= json_str_is(key, keys[k]);
        if (!known)
            return false;
    }
    return true;
}

static bool read_digest(struct str text, char out[TOKEN_DIGEST_HEX + 1])
{
    if (text.len != TOKEN_DIGEST_HEX)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        out[i] = c;
    }
    out[TOKEN_DIGEST_HEX] = 0;
    return true;
}

static bool read_time(const struct json *value, int64_t *ret_ms)
{
    return json_is_null(value) || (json_int(value, ret_ms) && *ret_ms > 0);
}

static enum err read_token(const struct json *item, struct arena *arena, struct token *token,
                           struct problem *why)
{
    const struct json *node = json_get(item, "node_id"), *quota = json_get(item, "quota");
    const struct json *space = json_get(item, "namespace"), *version = json_get(item, "format");
    struct str namespace = json_str(space, arena);
    struct problem what = {.detail = "quota must be a text."};
    int64_t format = FORMAT_FIRST;

    if (json_type(item) != JSON_OBJ)
        return bad(why, "each must be an object with name, sha256 and scopes.");
    token->name = json_str(json_get(item, "name"), arena);
    if (!token->name.len)
        return bad(why, "each must have a name.");
    if (token->name.len > TOKEN_NAME_MAX || !str_is_text(token->name))
        return bad(why, "a name has at most 64 characters, and no control characters.");
    if (!read_digest(json_str(json_get(item, "sha256"), arena), token->digest))
        return bad(why, "sha256 must be 64 lower-case hex digits (printf %s TOKEN | sha256sum).");
    if (!read_scopes(json_get(item, "scopes"), arena, &token->scopes))
        return bad(why, "scopes must list read, submit, node, deploy, operate or admin.");
    if (!knows_all_keys(item))
        return bad(why, "each has name, sha256, scopes, node_id, created_ms, expires_ms, "
                        "quota, namespace and format, and nothing else.");
    if (!json_is_null(version) &&
        (!json_int(version, &format) || format < FORMAT_FIRST || format > FORMAT_KNOWN))
        return bad(why, "format must be 1 or 2.");
    if (format < FORMAT_DEPLOY && (token->scopes & BIT(SCOPE_OPERATE)) &&
        !(token->scopes & BIT(SCOPE_DEPLOY))) {
        token->scopes |= scopes[SCOPE_DEPLOY].brings;
        token->old_operate = true;
    }
    if (!read_time(json_get(item, "created_ms"), &token->created_ms) ||
        !read_time(json_get(item, "expires_ms"), &token->expires_ms))
        return bad(why, "created_ms and expires_ms are times in milliseconds since 1970.");
    if (!json_is_null(quota) &&
        (json_type(quota) != JSON_STR || quota_parse(json_str(quota, arena), &token->quota, &what)))
        return bad(why, what.detail);
    /* If treated as no binding, a malformed value would put the token in the default namespace. */
    if (!json_is_null(space) && (json_type(space) != JSON_STR || !namespace_valid(namespace)))
        return bad(why, "namespace must be 1 to 16 letters, digits or ._:@-.");
    if (!json_is_null(space) && !token_scopes_fit(token->scopes, namespace))
        return bad(why, TOKEN_NAMESPACE_SCOPES);
    if (!json_is_null(space) && !str_eq(namespace, NAMESPACE_DEFAULT))
        token->namespace = namespace;
    if (json_is_null(node))
        return ERR_OK;
    /* If treated as no binding, a malformed value would let the token act for every node. */
    if (json_type(node) == JSON_STR)
        token->node_id = json_str(node, arena);
    if (!str_is_id(token->node_id, NODE_ID_MAX))
        return bad(why, "node_id must be the id of a node, as a text.");
    return ERR_OK;
}

enum err tokens_read(const struct json *list, struct arena *arena, struct tokens *ret_tokens,
                     struct problem *why)
{
    const struct json *item = json_first(list);
    struct tokens tokens = {0};

    if (json_is_null(list)) {
        *ret_tokens = tokens;
        return ERR_OK;
    }
    if (json_type(list) != JSON_ARR)
        return bad(why, "must be a list.");
    if (list->count > TOKENS_MAX)
        return bad(why, "there are too many (10000 at most).");
    tokens.at = arena_array(arena, struct token, list->count + 1);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        enum err err = read_token(item, arena, &tokens.at[i], why);

        if (err)
            return err;
    }
    tokens.count = list->count;
    *ret_tokens = tokens;
    return ERR_OK;
}

enum err tokens_parse(struct str yaml, struct arena *arena, struct tokens *ret_tokens,
                      struct problem *why)
{
    const struct json *list = NULL;
    struct str json;
    const int *lines;
    enum err err = yaml_read(yaml, arena, &json, &lines, why);

    if (!err)
        err = json_parse(json, arena, &list, why);
    return err ? err : tokens_read(list, arena, ret_tokens, why);
}

void token_members(struct jsonw *w, const struct token *token, bool whole)
{
    unsigned have = token->scopes;
    char quota[QUOTA_TEXT_MAX + 1];

    jsonw_kstr(w, "name", token->name);
    if (whole)
        jsonw_kstr(w, "sha256", str_of(token->digest));
    jsonw_key(w, "scopes"); /* only scopes that no other listed one implies */
    jsonw_arr(w);
    for (int i = SCOPE_READ; i < SCOPE_COUNT; i++) {
        bool brought = false;

        for (int other = SCOPE_READ; other < SCOPE_COUNT; other++)
            brought |= other != i && (have & BIT(other)) && (scopes[other].brings & BIT(i));
        if ((have & BIT(i)) && !brought)
            jsonw_str(w, str_of(scopes[i].name));
    }
    jsonw_end_arr(w);
    if (token->node_id.at || !whole)
        jsonw_kstr(w, "node_id", token->node_id);
    if (token->namespace.at || !whole)
        jsonw_kstr(w, "namespace", token_namespace(token));
    if (token->created_ms)
        jsonw_kint(w, "created_ms", token->created_ms);
    else if (!whole)
        jsonw_knull(w, "created_ms");
    if (token->expires_ms)
        jsonw_kint(w, "expires_ms", token->expires_ms);
    else if (!whole)
        jsonw_knull(w, "expires_ms");
    quota_text(&token->quota, quota);
    if (quota[0])
        jsonw_kstr(w, "quota", str_of(quota));
    else if (!whole)
        jsonw_knull(w, "quota");
    if (whole)
        jsonw_kint(w, "format", FORMAT_KNOWN);
}

void tokens_write(const struct tokens *tokens, struct buf *out)
{
    buf_str(out, STR("# Who may call this server: digests only, the tokens themselves are kept\n"
                     "# nowhere. Written by `berth token`; read again whenever it changes.\n"));
    for (size_t i = 0; i < tokens->count; i++) {
        struct jsonw w = jsonw_to(out);

        buf_str(out, STR("- "));
        jsonw_obj(&w);
        token_members(&w, &tokens->at[i], true);
        jsonw_end_obj(&w);
        buf_char(out, '\n');
    }
    if (tokens->count == 0)
        buf_str(out, STR("[]\n"));
}

const struct token *tokens_find(const struct tokens *tokens, struct str name)
{
    for (size_t i = 0; i < tokens->count; i++)
        if (str_eq(tokens->at[i].name, name))
            return &tokens->at[i];
    return NULL;
}

struct tokens tokens_join(const struct tokens *a, const struct tokens *b, struct arena *arena)
{
    struct tokens both = {.at = arena_array(arena, struct token, a->count + b->count + 1),
                          .count = a->count + b->count};

    for (size_t i = 0; i < both.count; i++) {
        const struct token *one = i < a->count ? &a->at[i] : &b->at[i - a->count];

        both.at[i] = *token_put(arena_alloc(arena, token_bytes(one)), one);
    }
    return both;
}

struct tokens tokens_with(const struct tokens *tokens, const struct token *one, struct arena *arena)
{
    struct tokens more = {.at = arena_array(arena, struct token, tokens->count + 1),
                          .count = tokens->count + 1};

    assert(one->name.len > 0 && one->scopes);
    if (tokens->count)
        memcpy(more.at, tokens->at, tokens->count * sizeof *more.at);
    more.at[tokens->count] = *one;
    return more;
}

struct tokens tokens_without(const struct tokens *tokens, struct str name, struct arena *arena)
{
    struct tokens left = {.at = arena_array(arena, struct token, tokens->count + 1)};

    for (size_t i = 0; i < tokens->count; i++)
        if (!str_eq(tokens->at[i].name, name))
            left.at[left.count++] = tokens->at[i];
    return left;
}

size_t tokens_having(const struct tokens *tokens, enum token_scope scope, int64_t now_ms)
{
    size_t count = 0;

    for (size_t i = 0; i < tokens->count; i++)
        count += (tokens->at[i].scopes & BIT(scope)) && !token_expired(&tokens->at[i], now_ms);
    return count;
}

bool token_expired(const struct token *token, int64_t now_ms)
{
    return token->expires_ms && now_ms >= token->expires_ms;
}

struct str token_namespace(const struct token *token)
{
    return token && token->namespace.at ? token->namespace : NAMESPACE_DEFAULT;
}

struct namespace_view token_view(const struct token *token)
{
    return (struct namespace_view){.namespace = token_namespace(token),
                                   .all = !token || token->scopes & BIT(SCOPE_ADMIN)};
}

bool token_scopes_fit(unsigned have, struct str namespace)
{
    return str_eq(namespace, NAMESPACE_DEFAULT) || !(have & (BIT(SCOPE_NODE) | BIT(SCOPE_ADMIN)));
}

size_t token_bytes(const struct token *token)
{
    return sizeof *token + token->name.len + token->node_id.len + token->namespace.len;
}

/* Returns where the next text goes. */
static char *put_text(char *to, struct str *text)
{
    if (!text->at)
        return to;
    memcpy(to, text->at, text->len);
    text->at = to;
    return to + text->len;
}

struct token *token_put(void *mem, const struct token *token)
{
    struct token *copy = mem;
    char *text = (char *)(copy + 1);

    *copy = *token;
    text = put_text(text, &copy->name);
    text = put_text(text, &copy->node_id);
    put_text(text, &copy->namespace);
    return copy;
}
