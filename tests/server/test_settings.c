/* The settings: defaults, rules between them, and values that are refused. */
#include "../unit.h"

#include "server/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct settings_source source;

static int teardown(void **state)
{
    settings_done(&source);
    return 0;
}

/* Loads with these flags, up to NULL. */
static enum err load(struct problem *why, ...)
{
    char *argv[16];
    int argc = 0;
    va_list args;

    va_start(args, why);
    while ((argv[argc] = va_arg(args, char *)))
        argc++;
    va_end(args);
    settings_done(&source);
    *why = (struct problem){0};
    return settings_load(&source, argc, argv, why);
}

/* Loads with a file of this text. */
static enum err load_file(const char *yaml, struct problem *why)
{
    char path[] = "/tmp/berth-settings-XXXXXX";
    int fd = mkstemp(path);
    enum err err;

    assert_true(fd >= 0 && write(fd, yaml, strlen(yaml)) == (ssize_t)strlen(yaml));
    close(fd);
    err = load(why, "--config", path, NULL);
    unlink(path);
    return err;
}

/* The defaults. */
static void defaults_are_the_seeds(void **state)
{
    struct problem why;

    assert_int_equal(load(&why, NULL), ERR_OK);
    const struct sched_config *sched = &source.settings.sched;
    assert_int_equal(sched->sample_k, 20);
    assert_int_equal(sched->reservation_ttl_ms, 5000);
    assert_int_equal(sched->max_attempts, 2);
    assert_true(sched->candidate_shuffle);
    assert_str(sched->health_filter, "ready");
    assert_int_equal(sched->heartbeat_stale_ms, 15000);
    assert_int_equal(sched->view_drop_ms + sched->lost_grace_ms, 45000);
    assert_int_equal(sched->leases.task_ms, 120000);
    assert_int_equal(sched->leases.f2f_ms, 45000);
    assert_int_equal(sched->forget_ms, 3600000);
    assert_string_equal(policy_name((size_t)sched->policy), "least_loaded");
    assert_str(source.settings.listen, "127.0.0.1:7420");
    assert_int_equal(source.settings.tokens.count, 0);
    assert_int_equal(source.settings.allow_urls.count, 0);
    assert_int_equal(source.settings.result_bytes_max, 65536);
    assert_int_equal(source.settings.batch_max, 1000);
}

static void flags_under_their_names(void **state)
{
    struct problem why;

    assert_int_equal(load(&why, "--sample-k", "7", "--max-retry=4", "--heartbeat-stale-ms", "off",
                          "--policy", "health", "--reservation-ttl-ms", "8s", NULL),
                     ERR_OK);
    assert_int_equal(source.settings.sched.sample_k, 7);
    assert_int_equal(source.settings.sched.max_attempts, 4);
    assert_int_equal(source.settings.sched.heartbeat_stale_ms, FIELD_OFF);
    assert_int_equal(source.settings.sched.reservation_ttl_ms, 8000);
    assert_string_equal(policy_name((size_t)source.settings.sched.policy), "health");
}

static void what_is_refused(void **state)
{
    static const struct {
        char *flag, *value;
        const char *says; /* part of the message */
    } rows[] = {
        {"--sample-k", "0", "sample-k"},
        {"--sample-k", "33", "sample-k"},
        {"--sample-k", "many", "sample-k"},
        {"--policy", "fair", "policy"},
        {"--health-filter", "any", "health_filter"},
        {"--heartbeat-stale-ms", "14000", "heartbeat_stale_ms"}, /* less than three heartbeats */
        {"--heartbeat-ms", "6000", "heartbeat_stale_ms"},
        {"--bodies-bytes-max", "8388607", "bodies_bytes_max"}, /* less than one batch needs */
        {"--write-queues-bytes-max", "8388607", "write_queues_bytes_max"},
        {"--heartbeat-ms", "10", "heartbeat-ms"},
        {"--tls-cert", "x.pem", "tls_key"},
        {"--tls-key", "x.key", "tls_cert"},
        {"--tls-client-ca", "ca.pem", "tls_client_ca"},
        {"--max-attempts", "10", "max-attempts"},
        {"--smaple-k", "3", "sample-k"}, /* suggests the nearest name */
        {"--tokens", "[]", "tokens"},    /* only in a file, since all users can see flags */
        {"--config", "/nowhere/berth.yaml", "/nowhere/berth.yaml"},
        {"surplus", NULL, "surplus"},
        {"--config", NULL, "--config"}, /* without a path */
        {"--sample-k", NULL, "sample"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct problem why;

        if (!load(&why, rows[i].flag, rows[i].value, NULL) || !strstr(why.detail, rows[i].says))
            fail_msg("%s %s: \"%s\"", rows[i].flag, rows[i].value, why.detail);
    }
}

static void the_file_may_say_more(void **state)
{
    struct problem why;

    assert_int_equal(load_file("sample_k: 5\n"
                               "routes:\n  talk: [hk, us]\n  dev: [us]\n"
                               "default_route: [us]\n"
                               "hosts: [berth.example]\n"
                               "trusted_proxies: [10.0.0.0/8, \"::1\"]\n"
                               "nodes:\n  gpu-*: {nmt_pairs: any, namespaces: [maps, ml]}\n"
                               "tokens:\n  - name: ops\n    scopes: [operate]\n    sha256: "
                               "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n",
                               &why),
                     ERR_OK);
    assert_int_equal(source.settings.sched.sample_k, 5);
    const struct routing *routing = &source.settings.sched.routing;
    assert_int_equal(routing->count, 2);
    assert_str(routing->routes[0].type, "talk");
    assert_str(routing->routes[0].servers.at[1], "us");
    assert_int_equal(routing->default_route.count, 1);
    assert_int_equal(source.settings.tokens.count, 1);
    assert_str(source.settings.hosts.at[0], "berth.example");
    assert_int_equal(source.settings.proxies.count, 2);
    assert_int_equal(source.settings.proxies.at[1].bits, 128);
    const struct node_rules *rules = &source.settings.sched.node_rules;
    assert_int_equal(rules->count, 1);
    assert_str(rules->rows[0].pattern, "gpu-*");
    assert_non_null(node_rules_get(rules, STR("gpu-1"), "tts_langs")); /* derived from the pairs */
    assert_null(node_rules_get(rules, STR("gpu-1"), "labels"));
    assert_true(rules->namespaces);
    assert_str(json_raw(node_rules_get(rules, STR("gpu-1"), "namespaces")), "[\"maps\",\"ml\"]");
    assert_null(node_rules_get(rules, STR("us"), "namespaces"));
}

static void a_wrong_file_is_told_with_its_line(void **state)
{
    static const struct {
        const char *yaml;
        const char *says;
    } rows[] = {
        {"sample_k: 5\nsampel_k: 6\n", "Line 2"},
        {"routes: [us]\n", "routes"},
        {"routes:\n  talk: us\n", "routes"},
        {"routes:\n  talk: [5]\n", "routes"},
        {"tokens:\n  - name: ops\n    scopes: [everything]\n    sha256: "
         "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n",
         "scopes"},
        {"listen: [1]\n", "listen"},
        {"nodes:\n  gpu-1: {labels: {zone: 5}}\n", "gpu-1"},
        {"nodes:\n  us: {namespaces: maps}\n", "namespaces must be"},
        {"nodes:\n  us: {namespaces: []}\n", "namespaces must be"},
        {"nodes:\n  us: {namespaces: [a/b]}\n", "namespaces must be"},
        {"nodes:\n  gpu-1: {label: {zone: eu}}\n", "allowed_types"},
        {"trusted_proxies: [10.0.0.0/8, 10.0.0.0/33]\n", "row 2, \"10.0.0.0/33\""},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct problem why;

        if (!load_file(rows[i].yaml, &why) || !strstr(why.detail, rows[i].says))
            fail_msg("%s: \"%s\"", rows[i].yaml, why.detail);
    }
}

/* Secrets are never shown. */
static void secrets_are_not_shown(void **state)
{
    struct problem why;
    struct buf buf = {0};

    assert_int_equal(load_file("tokens:\n  - name: ops\n    scopes: [read]\n    sha256: "
                               "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n",
                               &why),
                     ERR_OK);
    conf_show(&source.conf, &buf);
    buf_char(&buf, '\0');
    assert_null(strstr(buf.at, "2bb80d53"));
    assert_non_null(strstr(buf.at, "sample_k: 20"));
    buf_free(&buf);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_teardown(test, teardown)
    const struct CMUnitTest tests[] = {
        ROW(defaults_are_the_seeds), ROW(flags_under_their_names),
        ROW(what_is_refused),        ROW(the_file_may_say_more),
        ROW(secrets_are_not_shown),  ROW(a_wrong_file_is_told_with_its_line),
    };

    unsetenv("BERTH_CONFIG");
    return cmocka_run_group_tests_name("server/settings", tests, NULL, NULL);
}
