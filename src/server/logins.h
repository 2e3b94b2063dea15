/* How often an address may send a wrong token. Each loop counts for itself, in a table of fixed
 * size. An address over its limit is not listened to until some time has passed, but for tokens it
 * has used before: one bad client must not shut out the good ones behind the same address. */
#ifndef SERVER_LOGINS_H
#define SERVER_LOGINS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    LOGINS_SETS = 128, /* a power of two */
    LOGINS_WAYS = 8,   /* addresses that share a set */
    LOGINS_GOOD = 4,   /* tokens remembered for each */
};

struct login {
    uint64_t peer; /* 0: free */
    int64_t seen_ms;
    int64_t failures_milli; /* a thousand for each; falls with time */
    uint64_t good[LOGINS_GOOD];
    int next_good;
    bool told; /* that it is over its limit */
};

struct logins {
    struct login table[LOGINS_SETS][LOGINS_WAYS];
};

/* May this address try this token (a hash of it)? max_per_min 0: always. */
bool logins_may(struct logins *logins, uint64_t peer, uint64_t token, int64_t max_per_min,
                int64_t now_ms);
/* What came of it. A failure that reaches the limit returns true, once until it has fallen again.
 */
bool logins_failed(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms);
void logins_passed(struct logins *logins, uint64_t peer, uint64_t token, int64_t now_ms);

#endif
