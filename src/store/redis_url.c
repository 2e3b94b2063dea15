/* Reads store URLs. */
#include "store/redis_url.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct scheme {
    const char *name;
    enum redis_kind kind;
    int port; /* when none is given */
    const char *shape;
} schemes[] = {
    {"redis", REDIS_SINGLE, 6379, "redis://[user[:password]@]host:port/db"},
    {"redis-sentinel", REDIS_SENTINEL, 26379, "redis-sentinel://host:port,host:port/master"},
    {"redis-cluster", REDIS_CLUSTER, 6379, "redis-cluster://host:port,host:port"},
};

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Copies with %40 and the like undone; false when it does not fit or is no such text. */
static bool decode(struct str from, char *to, size_t size)
{
    size_t len = 0;

    for (size_t i = 0; i < from.len; i++) {
        char c = from.at[i];

        if (c == '%') {
            int high = i + 2 < from.len ? hex_value(from.at[i + 1]) : -1;
            int low = i + 2 < from.len ? hex_value(from.at[i + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (len + 1 >= size || c == '\0')
            return false;
        to[len++] = c;
    }
    to[len] = '\0';
    return true;
}

bool redis_addr_parse(struct str text, int port, struct redis_addr *ret_addr)
{
    struct str host = text;
    struct str rest = STR_NONE;
    int64_t value = port;

    if (text.len && text.at[0] == '[') {
        rest = (struct str){text.at + 1, text.len - 1};
        host = str_cut(&rest, ']');
        if (!rest.at || (rest.len && rest.at[0] != ':'))
            return false;
        rest = rest.len ? (struct str){rest.at + 1, rest.len - 1} : STR_NONE;
    } else {
        rest = text;
        host = str_cut(&rest, ':');
    }
    if (rest.at && (!str_int(rest, &value) || value < 1 || value > 65535))
        return false;
    ret_addr->port = (int)value;
    return host.len > 0 && str_copy(host, ret_addr->host, sizeof ret_addr->host);
}

static enum err fail(struct problem *why, const struct scheme *scheme, const char *what)
{
    return problem_set(why, ERR_BAD_CONFIG, "store", "%s; a store URL looks like %s.", what,
                       scheme->shape);
}

/* The last '@': a password may hold one. */
static bool cut_login(struct str *rest, struct str *ret_login)
{
    for (size_t i = rest->len; i > 0; i--)
        if (rest->at[i - 1] == '@') {
            *ret_login = (struct str){rest->at, i - 1};
            *rest = (struct str){rest->at + i, rest->len - i};
            return true;
        }
    return false;
}

static enum err read_login(struct str *rest, struct redis_target *target,
                           const struct scheme *scheme, struct problem *why)
{
    struct str login;
    struct str user;

    if (!cut_login(rest, &login))
        return ERR_OK;
    user = str_cut(&login, ':');
    if (!decode(user, target->user, sizeof target->user) ||
        !decode(login, target->password, sizeof target->password))
        return fail(why, scheme, "The user or the password of the store URL cannot be read");
    return ERR_OK;
}

static enum err read_addrs(struct str list, struct redis_target *target,
                           const struct scheme *scheme, struct problem *why)
{
    while (list.at) {
        struct str one = str_cut(&list, ',');

        if (target->count == REDIS_ADDRS_MAX)
            return fail(why, scheme, "The store URL names too many hosts");
        if (!redis_addr_parse(one, scheme->port, &target->addrs[target->count]))
            return fail(why, scheme, "The store URL names no host, or one with a wrong port");
        target->count++;
    }
    if (target->kind == REDIS_SINGLE && target->count > 1)
        return fail(why, scheme, "redis:// names one host");
    return ERR_OK;
}

/* What follows the hosts: a database number, or the master's name and perhaps a number. */
static enum err read_path(struct str path, struct redis_target *target, const struct scheme *scheme,
                          struct problem *why)
{
    int64_t db = 0;

    if (target->kind == REDIS_SENTINEL) {
        struct str name = path.at ? str_cut(&path, '/') : STR_NONE;

        if (name.len == 0 || !decode(name, target->master, sizeof target->master))
            return fail(why, scheme, "The store URL must name the master the Sentinels watch");
    }
    if (path.len && (!str_int(path, &db) || db < 0 || db > 65535))
        return fail(why, scheme, "The database of the store URL is no number");
    if (db && target->kind == REDIS_CLUSTER)
        return fail(why, scheme, "A Redis Cluster has no database but 0");
    target->db = (int)db;
    return ERR_OK;
}

static enum err read_password(struct redis_target *target, struct problem *why)
{
    const char *text = getenv("BERTH_STORE_PASSWORD");
    const char *path = getenv("BERTH_STORE_PASSWORD_FILE");
    FILE *file;
    bool ok;

    if (*target->password)
        return ERR_OK;
    if (text && !str_copy(str_of(text), target->password, sizeof target->password))
        return problem_set(why, ERR_BAD_CONFIG, "store", "BERTH_STORE_PASSWORD is too long.");
    if (text || !path)
        return ERR_OK;
    file = fopen(path, "re");
    ok = file && fgets(target->password, sizeof target->password, file);
    if (file)
        fclose(file);
    if (!ok)
        return problem_set(why, ERR_BAD_CONFIG, "store",
                           "The password of the store cannot be read from %s.", path);
    target->password[strcspn(target->password, "\r\n")] = '\0';
    return ERR_OK;
}

enum err redis_url_parse(const char *url, struct redis_target *ret_target, struct problem *why)
{
    struct str rest = str_of(url);
    struct str name = str_cut(&rest, ':');
    struct redis_target target = {0};
    const struct scheme *scheme = NULL;
    struct str hosts;
    enum err err;

    for (size_t i = 0; i < COUNT_OF(schemes); i++)
        if (str_is(name, schemes[i].name))
            scheme = &schemes[i];
    assert(scheme);
    target.kind = scheme->kind;
    if (!rest.at || !str_starts(rest, STR("//")))
        return fail(why, scheme, "The store URL is not complete");
    rest = (struct str){rest.at + 2, rest.len - 2};
    err = read_login(&rest, &target, scheme, why);
    if (!err) {
        hosts = str_cut(&rest, '/');
        err = read_addrs(hosts, &target, scheme, why);
    }
    if (!err)
        err = read_path(rest, &target, scheme, why);
    if (!err)
        err = read_password(&target, why);
    if (!err && *target.user && !*target.password)
        err = fail(why, scheme, "A user needs a password, here or in BERTH_STORE_PASSWORD");
    if (!err)
        *ret_target = target;
    return err;
}
