/* One connection to the Redis that has the store's keys, found anew whenever it moves: the only
 * server, the master the Sentinels name, or the cluster node that owns our slot. Every call has a
 * deadline (clock_mono_ms) within which redirections and short refusals are sat out. One thread. */
#ifndef STORE_REDIS_LINK_H
#define STORE_REDIS_LINK_H

#include <hiredis/hiredis.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"

/* Where a Redis is: one server, a master that Sentinels know, or a cluster. */

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
    char master[REDIS_NAME_MAX + 1]; /* what the Sentinels call it */
};

/* redis://[user[:password]@]host:port/db, redis-sentinel://h:p,h:p/master[/db],
 * redis-cluster://h:p,h:p. A password that is not in the URL is taken from BERTH_STORE_PASSWORD, or
 * from the file BERTH_STORE_PASSWORD_FILE names. No message repeats a password. */
enum err redis_url_parse(const char *url, struct redis_target *ret_target, struct problem *why);

#define REDIS_KEY "sched:{f}:" /* as lua/unit.lua has it */

enum { REDIS_WHY_MAX = 159, REDIS_HOPS_MAX = 5, REDIS_MASTER_MAX = 47 };

struct redis_link {
    const struct redis_target *target;
    redisContext *context; /* NULL: not connected */
    struct redis_addr at;  /* where it is, or is to be */
    bool moved;            /* `at` was told by a redirection: connect there, ask nobody */
    /* Which server answers: its run id, another one after every start. Where that is not told, its
     * address. `bound`: only this one is called, "" is any. */
    char master[REDIS_MASTER_MAX + 1];
    char bound[REDIS_MASTER_MAX + 1];
    /* The command of the last call that came to nothing had left as a whole: whether it was run is
     * unknown. A part of a command is not run. */
    bool left;
    struct rnd rnd;
    char why[REDIS_WHY_MAX + 1]; /* the last failure, a part of a sentence */
};

struct redis_args {
    int count;
    const char **texts;
    const size_t *lens;
};

void redis_link_init(struct redis_link *link, const struct redis_target *target);
void redis_link_close(struct redis_link *link);
/* Connects, logs in, selects the database and makes sure it is a master. True if it is so already.
 */
bool redis_link_open(struct redis_link *link, int64_t deadline_ms);
/* One command. NULL: nothing came in time or the connection is gone, and is closed then; or it
 * would have been another server's than the one that is bound, and was not sent. `left` tells
 * whether the command may have been run all the same. The reply may be an error; the caller frees
 * it. */
redisReply *redis_link_call(struct redis_link *link, const struct redis_args *args,
                            int64_t deadline_ms);
/* The same with the words of the command, up to a NULL. */
redisReply *redis_link_ask(struct redis_link *link, int64_t deadline_ms, ...)
    __attribute__((sentinel));
/* Several commands that only read, in one round trip. Each answer may take `timeout_ms` from the
 * one before it. False: not all came, and none is there. */
bool redis_link_call_all(struct redis_link *link, const struct redis_args *args, size_t count,
                         int64_t timeout_ms, redisReply **ret_replies);
bool redis_is_error(const redisReply *reply, const char *begins); /* NULL: any error */
struct str redis_text(const redisReply *reply); /* STR_NONE for nil and what is no text */

bool redis_link_fail(struct redis_link *link, const char *what, const char *detail);
/* The next reply of what was sent. */
redisReply *redis_receive(struct redis_link *link, redisContext *context, int64_t deadline_ms);

#endif
