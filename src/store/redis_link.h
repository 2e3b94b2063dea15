/* One connection to the Redis that has the store's keys, found again whenever it moves: the only
 * server, the master the Sentinels name, or the cluster node that owns our slot. Every call has a
 * deadline (clock_mono_ms) and retries redirections and temporary refusals until then. One thread
 * only. */
#ifndef STORE_REDIS_LINK_H
#define STORE_REDIS_LINK_H

#include <hiredis/hiredis.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"

/* Where Redis is: a single server, a master known to Sentinels, or a cluster. */

enum redis_kind { REDIS_SINGLE, REDIS_SENTINEL, REDIS_CLUSTER };

enum {
    REDIS_ADDRS_MAX = 16,
    REDIS_HOST_MAX = 255,
    REDIS_NAME_MAX = 127,
    REDIS_PASSWORD_MAX = 511,
};

struct redis_addr {
    char host[REDIS_HOST_MAX + 1];
    int port;
};

struct redis_target {
    enum redis_kind kind;
    struct redis_addr addrs[REDIS_ADDRS_MAX]; /* of servers, Sentinels or cluster nodes */
    size_t count;
    char user[REDIS_NAME_MAX + 1]; /* "": the default user */
    char password[REDIS_PASSWORD_MAX + 1];
    int db;
    char master[REDIS_NAME_MAX + 1]; /* the master's name in the Sentinels */
};

/* redis://[user[:password]@]host:port/db, redis-sentinel://h:p,h:p/master[/db],
 * redis-cluster://h:p,h:p. A password that is not in the URL is taken from BERTH_STORE_PASSWORD, or
 * from the file BERTH_STORE_PASSWORD_FILE names. Messages never contain a password. */
enum err redis_url_parse(const char *url, struct redis_target *ret_target, struct problem *why);

#define REDIS_KEY "sched:{f}:" /* same as in lua/unit.lua */

enum { REDIS_WHY_MAX = 159, REDIS_HOPS_MAX = 5, REDIS_MASTER_MAX = 47 };

struct redis_link {
    const struct redis_target *target;
    redisContext *context; /* NULL: not connected */
    struct redis_addr at;  /* the connected address, or the one to connect to */
    bool moved; /* `at` came from a redirection: connect to it without asking Sentinels or the
                   cluster */
    /* The server that answers: its run id, new with every start; its address if the id is not
     * given. `bound`: only this server is called, "" is any. */
    char master[REDIS_MASTER_MAX + 1];
    char bound[REDIS_MASTER_MAX + 1];
    /* The command of the last failed call had been sent completely: whether it was executed is
     * unknown. An incomplete command is never executed. */
    bool left;
    struct rnd rnd;
    char why[REDIS_WHY_MAX + 1]; /* the last failure, as part of a sentence */
};

struct redis_args {
    int count;
    const char **texts;
    const size_t *lens;
};

void redis_link_init(struct redis_link *link, const struct redis_target *target);
void redis_link_close(struct redis_link *link);
/* Connects, authenticates, selects the database and checks that the server is a master. True at
 * once if already done. */
bool redis_link_open(struct redis_link *link, int64_t deadline_ms);
/* Runs one command. NULL: no reply in time or the connection was lost (it is then closed); or
 * another server than the bound one would have answered, and nothing was sent. `left` tells whether
 * the command may have been executed anyway. The reply may be an error; the caller frees it. */
redisReply *redis_link_call(struct redis_link *link, const struct redis_args *args,
                            int64_t deadline_ms);
/* The same, with the words of the command as arguments, NULL-terminated. */
redisReply *redis_link_ask(struct redis_link *link, int64_t deadline_ms, ...)
    __attribute__((sentinel));
/* Runs several read-only commands in one round trip. Each answer may take `timeout_ms` after the
 * previous one. False: not all answers came, and none is returned. */
bool redis_link_call_all(struct redis_link *link, const struct redis_args *args, size_t count,
                         int64_t timeout_ms, redisReply **ret_replies);
bool redis_is_error(const redisReply *reply, const char *begins); /* NULL: any error */
struct str redis_text(const redisReply *reply); /* STR_NONE for nil and for anything but text */

bool redis_link_fail(struct redis_link *link, const char *what, const char *detail);
/* Receives the next reply. */
redisReply *redis_receive(struct redis_link *link, redisContext *context, int64_t deadline_ms);

#endif
