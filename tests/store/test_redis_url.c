/* Store URLs that are valid; invalid ones are in test_redis_faults.c. */
#include "store/redis_link.h"

#include "../unit.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *url;
    enum redis_kind kind;
    size_t count;
    const char *host; /* of the last server */
    int port;
    const char *user, *password, *master;
    int db;
} rows[] = {
    {"redis://h", REDIS_SINGLE, 1, "h", 6379, "", "", "", 0},
    {"redis://h/", REDIS_SINGLE, 1, "h", 6379, "", "", "", 0},
    {"redis://10.0.0.7:7000/15", REDIS_SINGLE, 1, "10.0.0.7", 7000, "", "", "", 15},
    {"redis://[::1]:7000", REDIS_SINGLE, 1, "::1", 7000, "", "", "", 0},
    {"redis://[fe80::2]", REDIS_SINGLE, 1, "fe80::2", 6379, "", "", "", 0},
    {"redis://:pw@h:1", REDIS_SINGLE, 1, "h", 1, "", "pw", "", 0},
    {"redis://me:p@ss:word@h:1/2", REDIS_SINGLE, 1, "h", 1, "me", "p@ss:word", "", 2},
    {"redis://me:p%2Fw%25@h", REDIS_SINGLE, 1, "h", 6379, "me", "p/w%", "", 0},
    {"redis-sentinel://a:1,b/m", REDIS_SENTINEL, 2, "b", 26379, "", "", "m", 0},
    {"redis-sentinel://u:p@a:1/m/3", REDIS_SENTINEL, 1, "a", 1, "u", "p", "m", 3},
    {"redis-cluster://a:1,b:2,c:3", REDIS_CLUSTER, 3, "c", 3, "", "", "", 0},
    {"redis-cluster://a:1/0", REDIS_CLUSTER, 1, "a", 1, "", "", "", 0},
};

static void test_rows(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct redis_target target;
        struct problem why = {0};

        if (redis_url_parse(rows[i].url, &target, &why))
            fail_msg("%s: %s", rows[i].url, why.detail);
        assert_int_equal(target.kind, rows[i].kind);
        assert_int_equal(target.count, rows[i].count);
        assert_string_equal(target.addrs[target.count - 1].host, rows[i].host);
        assert_int_equal(target.addrs[target.count - 1].port, rows[i].port);
        assert_string_equal(target.user, rows[i].user);
        assert_string_equal(target.password, rows[i].password);
        assert_string_equal(target.master, rows[i].master);
        assert_int_equal(target.db, rows[i].db);
    }
}

/* A password in the URL wins. A password file that is missing is an error, not an empty password;
 * so is a user without a password, which would log in as nobody. */
static void test_password_from_elsewhere(void **state)
{
    struct redis_target target;
    struct problem why = {0};

    setenv("BERTH_STORE_PASSWORD", "given", 1);
    assert_int_equal(redis_url_parse("redis://h", &target, &why), ERR_OK);
    assert_string_equal(target.password, "given");
    assert_int_equal(redis_url_parse("redis://:own@h", &target, &why), ERR_OK);
    assert_string_equal(target.password, "own");
    assert_int_equal(redis_url_parse("redis://me@h:1/2", &target, &why), ERR_OK);
    assert_string_equal(target.user, "me");
    assert_string_equal(target.password, "given");
    unsetenv("BERTH_STORE_PASSWORD");
    assert_int_equal(redis_url_parse("redis://me@h", &target, &why), ERR_BAD_CONFIG);
    assert_int_equal(redis_url_parse("redis://me:@h", &target, &why), ERR_BAD_CONFIG);
    setenv("BERTH_STORE_PASSWORD_FILE", "/nowhere/at/all", 1);
    assert_int_equal(redis_url_parse("redis://h", &target, &why), ERR_BAD_CONFIG);
    unsetenv("BERTH_STORE_PASSWORD_FILE");
}

/* No message repeats a password, not even one that is too long. */
static void test_too_long(void **state)
{
    char url[2048] = "redis://u:";
    struct redis_target target;
    struct problem why = {0};

    memset(url + 10, 's', REDIS_PASSWORD_MAX + 1);
    strcpy(url + 10 + REDIS_PASSWORD_MAX + 1, "@h");
    assert_int_equal(redis_url_parse(url, &target, &why), ERR_BAD_CONFIG);
    assert_null(strstr(why.detail, "ssss"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_password_from_elsewhere),
        cmocka_unit_test(test_too_long),
    };

    return cmocka_run_group_tests_name("store/redis_url", tests, NULL, NULL);
}
