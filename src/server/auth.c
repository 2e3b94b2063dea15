/* Tokens and scopes. */
#include "server/auth.h"

#include <assert.h>
#include <string.h>

#include "model/node.h"

#define BEARER STR("Bearer ") /* the scheme's case does not matter */

static const char *const scope_names[SCOPE_COUNT] = {[SCOPE_READ] = "read",
                                                     [SCOPE_SUBMIT] = "submit",
                                                     [SCOPE_NODE] = "node",
                                                     [SCOPE_OPERATE] = "operate",
                                                     [SCOPE_ADMIN] = "admin"};

/* What else a scope may do. */
static const unsigned implied[SCOPE_COUNT] = {
    [SCOPE_READ] = 1u << SCOPE_READ,
    [SCOPE_SUBMIT] = 1u << SCOPE_SUBMIT,
    [SCOPE_NODE] = 1u << SCOPE_NODE,
    [SCOPE_OPERATE] = 1u << SCOPE_OPERATE | 1u << SCOPE_READ | 1u << SCOPE_SUBMIT,
    [SCOPE_ADMIN] = (1u << SCOPE_COUNT) - 1};

static enum err bad(struct problem *why, const char *what)
{
    return problem_set(why, ERR_BAD_CONFIG, "tokens", "tokens: %s", what);
}

static bool read_scopes(const struct json *list, struct arena *arena, unsigned *ret_scopes)
{
    const struct json *item = json_first(list);

    if (json_type(list) != JSON_ARR || !list->count)
        return false;
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        int scope = SCOPE_READ;

        while (scope < SCOPE_COUNT && !json_str_is(item, scope_names[scope]))
            scope++;
        if (scope == SCOPE_COUNT)
            return false;
        *ret_scopes |= implied[scope]; /* one that another brings along may be named too */
    }
    return true;
}

/* A name that is not known may be a binding that somebody relies on. */
static bool knows_all_keys(const struct json *item)
{
    static const char *const keys[] = {"name", "sha256", "scopes", "node_id"};
    const struct json *key = json_first(item);

    for (uint32_t i = 0; i < item->count; i++, key = json_next(key + 1)) {
        bool known = false;

        for (size_t k = 0; k < COUNT_OF(keys); k++)
            known |= json_str_is(key, keys[k]);
        if (!known)
            return false;
    }
    return true;
}

static bool read_digest(struct str text, char out[DIGEST_HEX + 1])
{
    if (text.len != DIGEST_HEX)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        out[i] = c;
    }
    out[DIGEST_HEX] = 0;
    return true;
}

static enum err read_token(const struct json *item, struct arena *arena, struct auth_token *token,
                           struct problem *why)
{
    if (json_type(item) != JSON_OBJ)
        return bad(why, "each must be an object with name, sha256 and scopes.");
    token->name = json_str(json_get(item, "name"), arena);
    if (!token->name.len)
        return bad(why, "each must have a name.");
    if (!read_digest(json_str(json_get(item, "sha256"), arena), token->digest))
        return bad(why, "sha256 must be 64 lower-case hex digits (printf %s TOKEN | sha256sum).");
    if (!read_scopes(json_get(item, "scopes"), arena, &token->scopes))
        return bad(why, "scopes must list read, submit, node, operate or admin.");
    if (!knows_all_keys(item))
        return bad(why, "each has name, sha256, scopes and node_id, and nothing else.");
    const struct json *node = json_get(item, "node_id");
    if (json_is_null(node))
        return ERR_OK;
    /* Taken for no binding, anything else would speak for every node. */
    if (json_type(node) == JSON_STR)
        token->node_id = json_str(node, arena);
    if (!str_is_id(token->node_id, NODE_ID_MAX))
        return bad(why, "node_id must be the id of a node, as a text.");
    return ERR_OK;
}

enum err auth_read(const struct json *list, struct arena *arena, struct auth *ret_auth,
                   struct problem *why)
{
    struct auth auth = {0};

    if (json_is_null(list)) {
        *ret_auth = auth;
        return ERR_OK;
    }
    if (json_type(list) != JSON_ARR)
        return bad(why, "must be a list.");
    auth.tokens = arena_array(arena, struct auth_token, list->count + 1);
    const struct json *item = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        enum err err = read_token(item, arena, &auth.tokens[i], why);

        if (err)
            return err;
    }
    auth.count = list->count;
    *ret_auth = auth;
    return ERR_OK;
}

/* Every token is compared, so that the time tells nothing of which one it nearly was. */
static const struct auth_token *find(const struct auth *auth, struct str secret)
{
    const struct auth_token *found = NULL;
    char digest[DIGEST_HEX + 1];

    digest_sha256_hex(secret, digest);
    for (size_t i = 0; i < auth->count; i++)
        if (digest_equal(digest, auth->tokens[i].digest))
            found = &auth->tokens[i];
    return found;
}

enum err auth_check(const struct auth *auth, const struct http_request *req, enum auth_scope needed,
                    const struct auth_token **ret_token, struct problem *why)
{
    struct str header = http_header_get(req, "Authorization");
    const struct auth_token *token;

    *ret_token = NULL;
    if (!auth->count || needed == SCOPE_NONE)
        return ERR_OK;
    if (header.len < BEARER.len ||
        !str_eq_nocase((struct str){.at = header.at, .len = BEARER.len}, BEARER))
        return problem_set(why, ERR_UNAUTHORIZED, "Authorization",
                           "Send a token: Authorization: Bearer TOKEN.");
    token = find(
        auth, str_trim((struct str){.at = header.at + BEARER.len, .len = header.len - BEARER.len}));
    if (!token)
        return problem_set(why, ERR_UNAUTHORIZED, "Authorization", "The token is not known.");
    if (!(token->scopes & 1u << needed))
        return problem_set(why, ERR_FORBIDDEN, "Authorization",
                           "The token " STR_FMT " lacks the scope %s.", STR_ARG(token->name),
                           scope_names[needed]);
    *ret_token = token;
    return ERR_OK;
}

bool auth_speaks_for(const struct auth_token *token, struct str node_id)
{
    assert(node_id.at || !node_id.len);
    return !token || !token->node_id.at || str_eq(token->node_id, node_id);
}
