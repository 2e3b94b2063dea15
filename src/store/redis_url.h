/* Where a Redis is: one server, a master that Sentinels know, or a cluster. */
#ifndef STORE_REDIS_URL_H
#define STORE_REDIS_URL_H

#include "base/err.h"
#include "base/str.h"

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
/* "host:port", "[::1]:6379"; without a port `port` is taken. */
bool redis_addr_parse(struct str text, int port, struct redis_addr *ret_addr);

#endif
