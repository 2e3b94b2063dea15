/* Tokens: identify callers by the SHA-256 of a secret that only its owner keeps. Pure: files and
 * digests are handled elsewhere. */
#ifndef MODEL_TOKEN_H
#define MODEL_TOKEN_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "model/namespace.h"

/* What a token may use: how fast it submits jobs, how many may wait, and how large those are in
 * total. Written "rate=10/s,waiting=1000,bytes=64MiB": any of the three, shown in this order. */

enum { QUOTA_TEXT_MAX = 96 };

struct quota {
    int64_t rate;    /* jobs per `rate_ms`, also all at once; 0: unlimited */
    int64_t rate_ms; /* a second, a minute or an hour */
    int64_t waiting; /* jobs that wait; 0: unlimited */
    int64_t bytes;   /* total size of those; 0: unlimited */
};

/* How far a token's submits are ahead of the clock, in nanoseconds. Shared by threads. */
typedef _Atomic int64_t quota_meter;

/* ERR_BAD_FIELD: not a valid quota. */
enum err quota_parse(struct str text, struct quota *ret_quota, struct problem *why);
/* As quota_parse() reads it; "": no quota. */
void quota_text(const struct quota *quota, char to[QUOTA_TEXT_MAX + 1]);
/* May one more job be submitted now? If so it is counted; if not, *ret_wait_ms is how long to
 * wait. */
bool quota_take(const struct quota *quota, quota_meter *meter, int64_t now_ms,
                int64_t *ret_wait_ms);

/* The reason when token_scopes_fit() is false. */
#define TOKEN_NAMESPACE_SCOPES                                                                     \
    "a token of a namespace has read, submit, deploy and operate only: node and admin are for "    \
    "what all namespaces share."

/* What a route needs, and what a token has. */
enum token_scope {
    SCOPE_UNSET, /* a row that forgot to set it: access is denied to all */
    SCOPE_NONE,  /* open to all */
    SCOPE_READ,
    SCOPE_SUBMIT,
    SCOPE_NODE,
    SCOPE_DEPLOY,
    SCOPE_OPERATE,
    SCOPE_ADMIN,
    SCOPE_COUNT
};

enum {
    TOKEN_DIGEST_HEX = 64,
    TOKEN_NAME_MAX = 64,
    TOKENS_MAX = 10000,
    TOKENS_FILE_BYTES_MAX = 4 * 1024 * 1024,
};

struct token {
    struct str name;
    char digest[TOKEN_DIGEST_HEX + 1];
    unsigned scopes;      /* one bit per scope, including implied ones */
    bool old_operate;     /* its row predates `deploy`, which `operate` implied then */
    struct str node_id;   /* at == NULL: not bound to one */
    struct str namespace; /* at == NULL: `default` */
    int64_t created_ms;   /* 0: not known */
    int64_t expires_ms;   /* 0: never */
    struct quota quota;
};

struct tokens {
    struct token *at;
    size_t count;
};

const char *token_scope_name(enum token_scope scope);
/* A scope by its name, with those it implies; 0: there is no such scope. */
unsigned token_scopes_of(struct str name);

/* [{"name": "ops", "sha256": "9f86d0…", "scopes": ["operate"], "node_id": "us", "quota":
 * "rate=10/s", "namespace": "team", "format": 2}], null = none. A row without a format predates
 * formats. Strings are in the arena or in the JSON. */
enum err tokens_read(const struct json *list, struct arena *arena, struct tokens *ret_tokens,
                     struct problem *why);
/* The same from a YAML file's text. */
enum err tokens_parse(struct str yaml, struct arena *arena, struct tokens *ret_tokens,
                      struct problem *why);
/* Writes a file that tokens_parse reads: one line per token. */
void tokens_write(const struct tokens *tokens, struct buf *out);
/* Writes one token as members of an open object; with its digest only if `whole`. */
void token_members(struct jsonw *w, const struct token *token, bool whole);

const struct token *tokens_find(const struct tokens *tokens, struct str name); /* NULL: none */
/* The tokens of both, with their own copies of the texts in the arena. */
struct tokens tokens_join(const struct tokens *a, const struct tokens *b, struct arena *arena);
/* A copy with one more token at its end, or without the tokens of that name. */
struct tokens tokens_with(const struct tokens *tokens, const struct token *one,
                          struct arena *arena);
struct tokens tokens_without(const struct tokens *tokens, struct str name, struct arena *arena);
/* How many of them have this scope and have not expired. */
size_t tokens_having(const struct tokens *tokens, enum token_scope scope, int64_t now_ms);
bool token_expired(const struct token *token, int64_t now_ms);
struct str token_namespace(const struct token *token);
/* What the token's caller may see; NULL: no tokens are configured, and all callers see
 * everything. */
struct namespace_view token_view(const struct token *token);
/* May a token of this namespace have these scopes? Nodes and the server's operation are shared by
 * all namespaces. */
bool token_scopes_fit(unsigned scopes, struct str namespace);

/* A self-contained copy in `mem`, which has token_bytes(). */
size_t token_bytes(const struct token *token);
struct token *token_put(void *mem, const struct token *token);

#endif
