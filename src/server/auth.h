/* Authentication: bearer tokens, stored as SHA-256 digests, and client certificates. A set of
 * tokens is immutable; a new set replaces it (see token_file.h). Without tokens everybody on this
 * machine may do everything, and the server binds only to loopback. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "io/http.h"
#include "model/token.h"

/* Shared by the loops; each holds a reference to the one it uses. */
struct auth {
    atomic_int owners;
    struct arena arena;
    struct tokens tokens; /* those from the configuration first */
    size_t fixed;         /* how many of them are in the configuration */
    quota_meter *meters;  /* one for each of them */
};

struct auth *auth_new(void); /* empty, with one reference */
struct auth *auth_ref(struct auth *auth);
void auth_free(struct auth *auth); /* drops a reference; NULL is fine */

/* The token of a request, copied into its arena; NULL in *ret_token when there are no tokens at all
 * or the route is open to everybody. ERR_UNAUTHORIZED: no token or a wrong one was sent;
 * ERR_FORBIDDEN: its scope does not suffice, and *ret_token is set all the same. */
enum err auth_check(const struct auth *auth, struct http_request *req, enum token_scope needed,
                    int64_t now_ms, const struct token **ret_token, struct problem *why);
/* On the heap, for what outlives its request; NULL of NULL. */
struct token *auth_copy(const struct token *token);
/* May this token act for that node? */
bool auth_speaks_for(const struct token *token, struct str node_id);
/* Is the token still valid for this, after the tokens changed or time passed? NULL is valid while
 * there are no tokens. */
bool auth_still(const struct auth *auth, const struct token *token, enum token_scope needed,
                int64_t now_ms);
/* The token's rate meter, which lives as long as `auth`; NULL: the token is not in `auth`. */
quota_meter *auth_meter(const struct auth *auth, const struct token *token);
/* Call when all tokens are in: their meters continue those of `before`, which may be NULL. */
void auth_begin_meters(struct auth *auth, const struct auth *before);
/* The bearer token of a request; at == NULL: it has none. */
struct str auth_bearer(const struct http_request *req);

/* Limits how often an address may send a wrong token. Each loop counts for itself, in a table of
 * fixed size. For a while, an address over its limit does not even learn that a token is wrong.
 * Valid tokens are not limited: one bad client must not lock out good ones that share its address.
 */

enum {
    LOGINS_SETS = 128, /* a power of two */
    LOGINS_WAYS = 8,   /* addresses that share a set */
};

struct login {
    uint64_t peer; /* 0: free */
    int64_t seen_ms;
    int64_t failures_milli; /* a thousand for each; decreases with time */
    bool limit_logged;      /* logins_failed() has reported that it reached its limit */
};

struct logins {
    struct login table[LOGINS_SETS][LOGINS_WAYS];
};

/* May this address send another wrong token? max_per_min 0: always. */
bool logins_may(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms);
/* Counts a wrong token. True when that reaches the limit; once, until the count is below it again.
 */
bool logins_failed(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms);

#endif
