/* Checks tokens and client certificates against what a route needs. Wrong tokens are limited by a
 * leaky bucket per address: it holds max_per_min and drains at that rate per minute. */
#include "server/auth.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/digest.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/node.h"

/* --- tokens --- */

#define BEARER STR("Bearer ") /* the scheme's case does not matter */

_Static_assert((int)TOKEN_DIGEST_HEX == (int)DIGEST_HEX, "tokens are compared by this digest");

struct auth *auth_new(void)
{
    struct auth *auth = mem_new(struct auth);

    auth->owners = 1;
    return auth;
}

struct auth *auth_ref(struct auth *auth)
{
    int before = atomic_fetch_add(&auth->owners, 1);

    assert(before > 0);
    return auth;
}

void auth_free(struct auth *auth)
{
    if (!auth || atomic_fetch_sub(&auth->owners, 1) > 1)
        return;
    arena_free(&auth->arena);
    free(auth);
}

/* Compares with every token, so that the time taken does not reveal which one nearly matched. */
static const struct token *find(const struct auth *auth, const char *digest)
{
    const struct token *found = NULL;

    for (size_t i = 0; i < auth->tokens.count; i++)
        if (digest_equal(digest, auth->tokens.at[i].digest))
            found = &auth->tokens.at[i];
    return found;
}

struct str auth_bearer(const struct http_request *req)
{
    struct str header = http_header_get(req, "Authorization");

    if (header.len < BEARER.len ||
        !str_eq_nocase((struct str){.at = header.at, .len = BEARER.len}, BEARER))
        return STR_NONE;
    return str_trim((struct str){.at = header.at + BEARER.len, .len = header.len - BEARER.len});
}

/* The node named by the peer's certificate; at == NULL: no certificate, or it names no node. */
static struct str certified(const struct http_request *req)
{
    struct str name = str_of(req->peer_name);

    return str_is_id(name, NODE_ID_MAX) ? name : STR_NONE;
}

/* A certificate without a token authenticates a node, and only the one it names. */
static enum err by_certificate(struct http_request *req, struct str node_id,
                               enum token_scope needed, const struct token **ret_token,
                               struct problem *why)
{
    struct token token = {.name = node_id, .node_id = node_id};

    if (needed != SCOPE_NODE)
        return problem_set(why, ERR_UNAUTHORIZED, "Authorization",
                           "A certificate is for nodes; send a token: Authorization: Bearer "
                           "TOKEN.");
    token.scopes = token_scopes_of(STR("node"));
    *ret_token = token_put(arena_alloc(&req->arena, token_bytes(&token)), &token);
    return ERR_OK;
}

static enum err by_token(const struct auth *auth, struct http_request *req, enum token_scope needed,
                         int64_t now_ms, const struct token **ret_token, struct problem *why)
{
    struct str secret = auth_bearer(req), node_id = certified(req);
    char digest[DIGEST_HEX + 1];
    const struct token *token;

    if (!secret.at)
        return problem_set(why, ERR_UNAUTHORIZED, "Authorization",
                           "Send a token: Authorization: Bearer TOKEN.");
    digest_sha256_hex(secret, digest);
    token = find(auth, digest);
    if (!token)
        return problem_set(why, ERR_UNAUTHORIZED, "Authorization", "The token is not known.");
    if (token_expired(token, now_ms))
        return problem_set(why, ERR_UNAUTHORIZED, "Authorization",
                           "The token " STR_FMT " has expired.", STR_ARG(token->name));
    struct token *own = token_put(arena_alloc(&req->arena, token_bytes(token)), token);
    if (node_id.at && !token->node_id.at && !(token->scopes & 1u << SCOPE_ADMIN))
        own->node_id = arena_str(&req->arena, node_id);
    *ret_token = own;
    if (!(token->scopes & 1u << needed))
        return problem_set(why, ERR_FORBIDDEN, "Authorization",
                           "The token " STR_FMT " lacks the scope %s.", STR_ARG(token->name),
                           token_scope_name(needed));
    if (needed == SCOPE_NODE && token->node_id.at && node_id.at && !str_eq(token->node_id, node_id))
        return problem_set(why, ERR_FORBIDDEN, "Authorization",
                           "The token is for the node " STR_FMT ", the certificate for " STR_FMT
                           ".",
                           STR_ARG(token->node_id), STR_ARG(node_id));
    return ERR_OK;
}

enum err auth_check(const struct auth *auth, struct http_request *req, enum token_scope needed,
                    int64_t now_ms, const struct token **ret_token, struct problem *why)
{
    struct str node_id = certified(req);

    assert(needed > SCOPE_UNSET && needed < SCOPE_COUNT);
    *ret_token = NULL;
    if (!auth->tokens.count || needed == SCOPE_NONE)
        return ERR_OK;
    if (!http_header_get(req, "Authorization").at && node_id.at)
        return by_certificate(req, node_id, needed, ret_token, why);
    return by_token(auth, req, needed, now_ms, ret_token, why);
}

struct token *auth_copy(const struct token *token)
{
    return token ? token_put(mem_alloc(token_bytes(token)), token) : NULL;
}

quota_meter *auth_meter(const struct auth *auth, const struct token *token)
{
    const struct token *now = find(auth, token->digest);

    return now ? &auth->meters[now - auth->tokens.at] : NULL;
}

void auth_begin_meters(struct auth *auth, const struct auth *before)
{
    struct map known = {0};

    auth->meters = arena_array(&auth->arena, quota_meter, auth->tokens.count + 1);
    for (size_t i = 0; before && i < before->tokens.count; i++)
        map_put(&known, str_of(before->tokens.at[i].digest), &before->meters[i]);
    for (size_t i = 0; i < auth->tokens.count; i++) {
        const quota_meter *meter = map_get(&known, str_of(auth->tokens.at[i].digest));

        if (meter)
            auth->meters[i] = *meter;
    }
    map_free(&known);
}

bool auth_speaks_for(const struct token *token, struct str node_id)
{
    assert(node_id.at || !node_id.len);
    return !token || !token->node_id.at || str_eq(token->node_id, node_id);
}

bool auth_still(const struct auth *auth, const struct token *token, enum token_scope needed,
                int64_t now_ms)
{
    const struct token *now;

    if (!token)
        return !auth->tokens.count;
    if (!token->digest[0])
        return true; /* by its certificate, which TLS has verified */
    now = find(auth, token->digest);
    return now && !token_expired(now, now_ms) && (now->scopes & 1u << needed) &&
           (!now->node_id.at || auth_speaks_for(token, now->node_id)) &&
           str_eq(token_namespace(now), token_namespace(token));
}

/* --- wrong tokens --- */

enum { MILLI = 1000, MINUTE_MS = 60000 };

static struct login *set_of(struct logins *logins, uint64_t peer)
{
    assert(peer != 0);
    return logins->table[(peer * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (LOGINS_SETS - 1)];
}

static struct login *find_login(struct logins *logins, uint64_t peer)
{
    struct login *set = set_of(logins, peer);

    for (int i = 0; i < LOGINS_WAYS; i++)
        if (set[i].peer == peer)
            return &set[i];
    return NULL;
}

static void leak(struct login *login, int64_t max_per_min, int64_t now_ms)
{
    int64_t passed_ms = now_ms > login->seen_ms ? now_ms - login->seen_ms : 0;
    int64_t less = passed_ms >= MINUTE_MS ? login->failures_milli
                                          : passed_ms * max_per_min * MILLI / MINUTE_MS;

    assert(login->failures_milli >= 0 && less >= 0);
    login->failures_milli = less < login->failures_milli ? login->failures_milli - less : 0;
    /* Time too short to count is kept for the next call. */
    login->seen_ms = login->failures_milli == 0
                         ? now_ms
                         : login->seen_ms + less * MINUTE_MS / (max_per_min * MILLI);
    if (login->failures_milli == 0)
        login->limit_logged = false;
}

bool logins_may(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms)
{
    struct login *login = find_login(logins, peer);

    if (!login || max_per_min == 0)
        return true;
    leak(login, max_per_min, now_ms);
    return login->failures_milli + MILLI <= max_per_min * MILLI;
}

bool logins_failed(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms)
{
    struct login *set = set_of(logins, peer), *login = find_login(logins, peer);

    if (max_per_min == 0)
        return false;
    if (!login) {
        /* Replace the least valuable entry of the set: one without failures if there is one, then
         * the oldest. */
        login = &set[0];
        for (int i = 1; i < LOGINS_WAYS; i++) {
            bool clean = set[i].failures_milli == 0, login_clean = login->failures_milli == 0;

            if (clean != login_clean ? clean : set[i].seen_ms < login->seen_ms)
                login = &set[i];
        }
        *login = (struct login){.peer = peer, .seen_ms = now_ms};
    }
    leak(login, max_per_min, now_ms);
    login->failures_milli += MILLI;
    bool reached = !login->limit_logged && login->failures_milli + MILLI > max_per_min * MILLI;
    login->limit_logged |= reached;
    return reached;
}
