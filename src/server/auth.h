/* Who is calling: bearer tokens from the configuration, kept as SHA-256 digests, each with scopes
 * and, for nodes, the one node it may speak for. Without tokens everybody on this machine may do
 * everything, and the server binds to loopback only. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include "base/json.h"
#include "io/digest.h"
#include "io/http.h"

enum auth_scope {
    SCOPE_NONE,
    SCOPE_READ,
    SCOPE_SUBMIT,
    SCOPE_NODE,
    SCOPE_OPERATE,
    SCOPE_ADMIN,
    SCOPE_COUNT
};

struct auth_token {
    struct str name;
    char digest[DIGEST_HEX + 1];
    unsigned scopes;    /* bit per auth_scope */
    struct str node_id; /* at == NULL: not bound to one */
};

struct auth {
    struct auth_token *tokens;
    size_t count; /* 0: there are no tokens */
};

/* [{"name": "ops", "sha256": "9f86d0…", "scopes": ["operate"], "node_id": "us"}] */
enum err auth_read(const struct json *list, struct arena *arena, struct auth *ret_auth,
                   struct problem *why);
/* The token of a request; NULL in *ret_token when there are no tokens at all. ERR_UNAUTHORIZED:
 * none or a wrong one was sent; ERR_FORBIDDEN: its scopes do not suffice. */
enum err auth_check(const struct auth *auth, const struct http_request *req, enum auth_scope needed,
                    const struct auth_token **ret_token, struct problem *why);
/* May this token speak for that node? (ruling 35) */
bool auth_speaks_for(const struct auth_token *token, struct str node_id);

#endif
