/* How often an address may send a wrong token. Each loop counts for itself, in a table of fixed
 * size. Of an address over its limit a wrong token is not even told to be wrong until some time has
 * passed; right ones are not asked about here: one bad client must not shut out the good ones
 * behind the same address. */
#ifndef SERVER_LOGINS_H
#define SERVER_LOGINS_H

#include <stdbool.h>
#include <stdint.h>

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
