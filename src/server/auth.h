/* Who is calling: bearer tokens, kept as SHA-256 digests, and client certificates. A set of tokens
 * never changes; a new one takes its place (see token_file.h). Without tokens everybody on this
 * machine may do everything, and the server binds to loopback only. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "io/http.h"
#include "model/token.h"

/* Shared by the loops; each holds on to the one it uses. */
struct auth {
    atomic_int owners;
    struct arena arena;
    struct tokens tokens; /* those of the configuration first */
    size_t fixed;         /* how many of them are in the configuration */
    quota_meter *meters;  /* one for each of them */
};

struct auth *auth_new(void); /* empty, with one owner */
struct auth *auth_ref(struct auth *auth);
void auth_free(struct auth *auth); /* one owner less; NULL is fine */

/* The token of a request, copied into its arena; NULL in *ret_token when there are no tokens at all
 * or the route is for everybody. ERR_UNAUTHORIZED: none or a wrong one was sent; ERR_FORBIDDEN: it
 * does not suffice, *ret_token tells whose it is. */
enum err auth_check(const struct auth *auth, struct http_request *req, enum token_scope needed,
                    int64_t now_ms, const struct token **ret_token, struct problem *why);
/* May this token speak for that node? */
bool auth_speaks_for(const struct token *token, struct str node_id);
/* Is it still good for this, after the tokens changed or time went by? NULL is, while there are no
 * tokens. */
bool auth_still(const struct auth *auth, const struct token *token, enum token_scope needed,
                int64_t now_ms);
/* What measures how fast it submits, as long as `auth` is there; NULL: it is none of these. */
quota_meter *auth_meter(const struct auth *auth, const struct token *token);
/* All tokens are in: their meters go on from those of `before`, which may be NULL. */
void auth_begin_meters(struct auth *auth, const struct auth *before);
/* What a request brought as its token; at == NULL: no bearer token. */
struct str auth_bearer(const struct http_request *req);

/* How often an address may send a wrong token. Each loop counts for itself, in a table of fixed
 * size. Of an address over its limit a wrong token is not even told to be wrong until some time has
 * passed; right ones are not asked about here: one bad client must not shut out the good ones
 * behind the same address. */

enum {
    LOGINS_SETS = 128, /* a power of two */
    LOGINS_WAYS = 8,   /* addresses that share a set */
};

struct login {
    uint64_t peer; /* 0: free */
    int64_t seen_ms;
    int64_t failures_milli; /* a thousand for each; falls with time */
    bool told;              /* that it is over its limit */
};

struct logins {
    struct login table[LOGINS_SETS][LOGINS_WAYS];
};

/* May this address send another wrong token? max_per_min 0: always. */
bool logins_may(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms);
/* It sent one. True when that reaches the limit, once until it has fallen again. */
bool logins_failed(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms);

#endif
