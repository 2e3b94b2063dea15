/* Settings from presets, file, environment and flags: which source wins, and messages for
 * mistakes. */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/schema.h"

struct tls {
    struct str cert;
    struct str key;
};

struct quota {
    int64_t max;
};

struct settings {
    struct str listen;
    int64_t sample_k;
    int64_t heartbeat_ms;
    int64_t stale_ms;
    bool verbose;
    double weight;
    int mode;
    struct strs servers;
    struct tls tls;
    struct quota quota;
    struct str password;
    const struct json *routes;
    struct str node_id;
    int64_t inner;
};

static const char *const modes[] = {"normal", "seed", NULL};

static const struct field tls_fields[] = {
    {.name = "cert", .type = FIELD_STR, .offset = offsetof(struct tls, cert), .preset = "none"},
    {.name = "key", .type = FIELD_STR, .offset = offsetof(struct tls, key), .flags = FIELD_SECRET},
};

static const struct field quota_fields[] = {
    {.name = "max", .type = FIELD_INT, .flags = FIELD_REQUIRED},
};

static const struct field fields[] = {
    {.name = "listen",
     .type = FIELD_STR,
     .offset = offsetof(struct settings, listen),
     .preset = "127.0.0.1:7420"},
    {.name = "sample_k",
     .type = FIELD_INT,
     .offset = offsetof(struct settings, sample_k),
     .min = 1,
     .max = 64,
     .preset = "20"},
    {.name = "heartbeat_ms",
     .alias = "interval_ms",
     .type = FIELD_MS,
     .offset = offsetof(struct settings, heartbeat_ms),
     .preset = "5s"},
    {.name = "stale_ms",
     .type = FIELD_MS,
     .offset = offsetof(struct settings, stale_ms),
     .preset = "15s",
     .flags = FIELD_NULLABLE},
    {.name = "verbose", .type = FIELD_BOOL, .offset = offsetof(struct settings, verbose)},
    {.name = "weight",
     .type = FIELD_REAL,
     .offset = offsetof(struct settings, weight),
     .preset = "0.5"},
    {.name = "mode", .type = FIELD_ENUM, .offset = offsetof(struct settings, mode), .names = modes},
    {.name = "servers", .type = FIELD_STRS, .offset = offsetof(struct settings, servers)},
    {.name = "tls",
     .type = FIELD_OBJ,
     .offset = offsetof(struct settings, tls),
     .fields = tls_fields,
     .field_count = COUNT_OF(tls_fields)},
    {.name = "quota",
     .type = FIELD_OBJ,
     .offset = offsetof(struct settings, quota),
     .fields = quota_fields,
     .field_count = COUNT_OF(quota_fields)},
    {.name = "password",
     .type = FIELD_STR,
     .offset = offsetof(struct settings, password),
     .flags = FIELD_SECRET},
    {.name = "routes", .type = FIELD_JSON, .offset = offsetof(struct settings, routes)},
    {.name = "node_id",
     .type = FIELD_ID,
     .offset = offsetof(struct settings, node_id),
     .flags = FIELD_REQUIRED},
    {.name = "inner",
     .type = FIELD_INT,
     .offset = offsetof(struct settings, inner),
     .flags = FIELD_NO_FLAG},
};

static const struct schema schema = {"the configuration", fields, COUNT_OF(fields), true};

static struct arena arena;
static struct settings set;
static struct conf conf;
static struct problem why;

static int start(void **state)
{
    memset(&set, 0, sizeof set);
    memset(&why, 0, sizeof why);
    return conf_init(&conf, &schema, &set, &arena);
}

static int end(void **state)
{
    arena_free(&arena);
    return 0;
}

static enum err flags(const char *const *list)
{
    char *argv[8];
    int argc = 0;
    int at = 0;
    enum err err = ERR_OK;

    while (list[argc]) {
        argv[argc] = (char *)list[argc];
        argc++;
    }
    while (!err && at < argc)
        err = conf_flag(&conf, argc, argv, &at, &why);
    return err;
}

#define FLAGS(...) flags((const char *const[]){__VA_ARGS__, NULL})
#define ENV(...)   conf_env(&conf, (char *const[]){__VA_ARGS__, NULL}, &why)

static void test_each_source_beats_the_one_before(void **state)
{
    assert_int_equal(set.sample_k, 20);
    assert_int_equal(conf_yaml(&conf, STR("sample_k: 21\nlisten: a:1\nmode: seed\n"), &why),
                     ERR_OK);
    assert_int_equal(set.sample_k, 21);
    assert_int_equal(ENV("BERTH_SAMPLE_K=22", "BERTH_LISTEN=b:2", "SAMPLE_K=9", "BERTH_NEW=1"),
                     ERR_OK);
    assert_int_equal(set.sample_k, 22);
    assert_int_equal(FLAGS("--sample-k", "23"), ERR_OK);
    assert_int_equal(set.sample_k, 23);
    assert_str(set.listen, "b:2");
    assert_int_equal(set.mode, 1);
    assert_int_equal(conf.sources[0], CONF_ENV);
    assert_int_equal(conf.sources[1], CONF_FLAG);
    assert_int_equal(conf.sources[2], CONF_DEFAULT);
    assert_int_equal(conf.sources[6], CONF_FILE);
    assert_int_equal(conf.lines[6], 3);
    assert_int_equal(conf.lines[1], 0);
    assert_int_equal(conf_yaml(&conf, STR("heartbeat_ms: null\nstale_ms: null\n"), &why), ERR_OK);
    assert_int_equal(conf.sources[2], CONF_DEFAULT); /* null means absent, */
    assert_int_equal(conf.sources[3], CONF_FILE);    /* but here it means off */
}

static void test_every_type_from_a_file(void **state)
{
    assert_int_equal(conf_yaml(&conf,
                               STR("listen: \"0.0.0.0:80\"\ninterval_ms: 250ms\nstale_ms: null\n"
                                   "verbose: true\nweight: 0.75\nservers: [a, b]\n"
                                   "tls:\n  key: k\nroutes:\n  talk: [us, hk]\n"),
                               &why),
                     ERR_OK);
    assert_str(set.listen, "0.0.0.0:80");
    assert_int_equal(set.heartbeat_ms, 250);
    assert_int_equal(set.stale_ms, FIELD_OFF);
    assert_true(set.verbose);
    assert_true(set.weight == 0.75);
    assert_int_equal(set.servers.count, 2);
    assert_str(set.servers.at[1], "b");
    assert_str(set.tls.cert, "none");
    assert_str(set.tls.key, "k");
    assert_str(json_raw(set.routes), "{\"talk\":[\"us\",\"hk\"]}");
    assert_int_equal(conf_yaml(&conf, STR("{\"sample_k\": 3}"), &why), ERR_OK); /* JSON is YAML */
    assert_int_equal(set.sample_k, 3);
    assert_int_equal(conf_yaml(&conf, STR("# nothing\n"), &why), ERR_OK);
}

static void test_every_type_from_flags_and_env(void **state)
{
    assert_int_equal(FLAGS("--listen=c:3", "--interval-ms", "2m", "--stale-ms=off", "--verbose",
                           "--weight", "1e-1"),
                     ERR_OK);
    assert_str(set.listen, "c:3");
    assert_int_equal(set.heartbeat_ms, 120000);
    assert_int_equal(set.stale_ms, FIELD_OFF);
    assert_true(set.verbose);
    assert_true(set.weight == 0.1);
    assert_int_equal(FLAGS("--verbose", "false", "--mode=seed", "--servers", " x , y"), ERR_OK);
    assert_false(set.verbose);
    assert_int_equal(set.servers.count, 2);
    assert_str(set.servers.at[0], "x");
    assert_int_equal(FLAGS("--verbose=true", "--listen="), ERR_OK);
    assert_true(set.verbose);
    assert_str(set.listen, "");
    assert_int_equal(ENV("BERTH_VERBOSE=0", "BERTH_ROUTES={\"a\":[1]}", "BERTH_SERVERS=z"), ERR_OK);
    assert_false(set.verbose);
    assert_str(json_raw(json_get(set.routes, "a")), "[1]");
    assert_int_equal(set.servers.count, 1);
}

static const struct {
    const char *yaml;
    int line;
    const char *detail;
} wrong_files[] = {
    {"listen: x\n\nsampel_k: 3\n", 3,
     "Line 3: unknown setting \"sampel_k\"; did you mean \"sample_k\"?"},
    {"tls:\n  cret: x\n", 2, "Line 2: unknown setting \"tls.cret\"; did you mean \"tls.cert\"?"},
    {"frobnicate: 1\n", 1, "Line 1: unknown setting \"frobnicate\"."},
    {"sample_k: 65\n", 1, "Line 1: sample_k must be a whole number from 1 to 64."},
    {"\nsample_k:\n  - 1\n", 3, "Line 3: sample_k must be a whole number from 1 to 64."},
    {"sample_k: 010\n", 1, "Line 1: sample_k must be a whole number from 1 to 64."},
    {"sample_k: '10'\n", 1, "Line 1: sample_k must be a whole number from 1 to 64."},
    {"verbose: no\n", 1, "Line 1: verbose must be true or false."},
    {"mode: sede\n", 1, "Line 1: mode must be one of normal, seed."},
    {"tls: x\n", 1, "Line 1: tls must be an object."},
    {"servers: a,b\n", 1, "Line 1: servers must be a list of texts without control characters."},
    {"servers:\n- a\n- 2\n", 2,
     "Line 2: servers must be a list of texts without control characters."},
    {"heartbeat_ms: 1s\ninterval_ms: 2s\n", 2,
     "Line 2: heartbeat_ms is given twice, as heartbeat_ms and as interval_ms."},
    {"mode: seed\nquota: {}\n", 2, "Line 2: quota.max is required."},
    {"sample_k: 3\nsample_k: 4\n", 2,
     "Line 2: the key \"sample_k\" stands here for the second time."},
    {"- a\n", 0, "The configuration must be an object with named values."},
    {"just text\n", 0, "The configuration must be an object with named values."},
};

static void test_mistakes_in_a_file(void **state)
{
    for (size_t i = 0; i < COUNT_OF(wrong_files); i++) {
        enum err err = conf_yaml(&conf, str_of(wrong_files[i].yaml), &why);

        assert_int_equal(err, ERR_BAD_CONFIG);
        assert_int_equal(why.err, ERR_BAD_CONFIG);
        assert_string_equal(why.detail, wrong_files[i].detail);
        assert_int_equal(why.line, wrong_files[i].line);
        assert_int_equal(conf_yaml(&conf, str_of(wrong_files[i].yaml), NULL), ERR_BAD_CONFIG);
    }
}

static void test_mistakes_in_flags_and_env(void **state)
{
    assert_int_equal(FLAGS("--sample-k", "65"), ERR_BAD_CONFIG);
    assert_string_equal(why.detail, "--sample-k must be a whole number from 1 to 64.");
    assert_string_equal(why.field, "sample_k");
    assert_int_equal(FLAGS("--sample-k"), ERR_BAD_CONFIG);
    assert_string_equal(why.detail, "--sample-k needs a value.");
    assert_int_equal(FLAGS("--listen", "--verbose"), ERR_BAD_CONFIG);
    assert_string_equal(why.detail, "--listen needs a value.");
    assert_int_equal(FLAGS("--servers", "a,,b"), ERR_BAD_CONFIG);
    assert_int_equal(FLAGS("--listen", "a\nb"), ERR_BAD_CONFIG);
    assert_int_equal(FLAGS("--verbose=maybe"), ERR_BAD_CONFIG);
    assert_string_equal(why.detail, "--verbose must be true or false.");
    assert_int_equal(FLAGS("--weight", "0x1p3"), ERR_BAD_CONFIG);
    assert_int_equal(FLAGS("--routes", "{"), ERR_BAD_CONFIG);
    assert_int_equal(ENV("BERTH_STALE_MS=soon"), ERR_BAD_CONFIG);
    assert_string_equal(why.detail,
                        "BERTH_STALE_MS must be a time such as 250ms, 5s or 2m, or off.");
}

static void test_names_that_are_no_flags(void **state)
{
    static const char *const names[] = {"--nope", "-s",      "sample_k",     "--",          "",
                                        "--tls",  "--inner", "--no-verbose", "--tls.cert=x"};

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *argv[] = {(char *)names[i], "1"};
        int at = 0;

        assert_int_equal(conf_flag(&conf, 2, argv, &at, &why), ERR_NOT_FOUND);
        assert_int_equal(at, 0);
    }
    assert_int_equal(
        ENV("BERTH_TLS=x", "BERTH_INNER=1", "BERTH_", "BERTH_SAMPLE_K", "BERTH_LISTEN="), ERR_OK);
    assert_str(set.listen, "127.0.0.1:7420"); /* an empty variable does not count */
    assert_int_equal(set.inner, 0);
}

/* Texts of argv, environ and the file may be freed; the settings stay valid. */
static void test_settings_outlive_their_sources(void **state)
{
    char flag[] = "--listen=keep";
    char *argv[] = {flag};
    char env[] = "BERTH_SERVERS=p,q";
    char *vars[] = {env, NULL};
    char yaml[] = "password: hunter2";
    int at = 0;

    assert_int_equal(conf_yaml(&conf, str_of(yaml), &why), ERR_OK);
    assert_int_equal(conf_env(&conf, vars, &why), ERR_OK);
    assert_int_equal(conf_flag(&conf, 1, argv, &at, &why), ERR_OK);
    assert_int_equal(at, 1);
    memset(flag, 'X', sizeof flag - 1);
    memset(env, 'X', sizeof env - 1);
    memset(yaml, 'X', sizeof yaml - 1);
    assert_str(set.listen, "keep");
    assert_str(set.servers.at[1], "q");
    assert_str(set.password, "hunter2");
}

static void test_required_may_come_from_anywhere(void **state)
{
    assert_int_equal(conf_yaml(&conf, STR("sample_k: 1\n"), &why), ERR_OK);
    assert_int_equal(conf_check(&conf, &why), ERR_BAD_CONFIG);
    assert_string_equal(why.detail, "node_id is required.");
    assert_int_equal(FLAGS("--node-id=n7"), ERR_OK);
    assert_int_equal(conf_check(&conf, &why), ERR_OK);
}

static void test_show(void **state)
{
    struct buf text = {0};
    struct jsonw w;
    const struct json *root;

    assert_int_equal(conf_yaml(&conf,
                               STR("password: hunter2\ntls:\n  key: hunter3\nroutes: {a: [1]}\n"
                                   "stale_ms: ~\n"),
                               &why),
                     ERR_OK);
    assert_int_equal(ENV("BERTH_SERVERS=a,b"), ERR_OK);
    assert_int_equal(FLAGS("--sample-k=9"), ERR_OK);
    conf_show(&conf, &text);
    assert_str(buf_view(&text), "listen: \"127.0.0.1:7420\"  # default\n"
                                "sample_k: 9  # flag\n"
                                "heartbeat_ms: 5000  # default\n"
                                "stale_ms: null  # file, line 5\n"
                                "verbose: false  # default\n"
                                "weight: 0.5  # default\n"
                                "mode: \"normal\"  # default\n"
                                "servers: [\"a\",\"b\"]  # env\n"
                                "tls: {\"cert\":\"none\",\"key\":\"***\"}  # file, line 2\n"
                                "quota: {\"max\":0}  # default\n"
                                "password: \"***\"  # file, line 1\n"
                                "routes: {\"a\":[1]}  # file, line 4\n"
                                "node_id: null  # default\n"
                                "inner: 0  # default\n");
    /* The output of conf_show can be read again. */
    assert_int_equal(conf_yaml(&conf, buf_view(&text), &why), ERR_OK);
    buf_clear(&text);
    w = jsonw_to(&text);
    conf_show_json(&conf, &w);
    assert_int_equal(json_parse(buf_view(&text), &arena, &root, &why), ERR_OK);
    assert_str(json_raw(json_get(root, "sample_k")),
               "{\"value\":9,\"source\":\"file\",\"line\":2}");
    assert_str(json_raw(json_get(json_get(root, "password"), "value")), "\"***\"");
    assert_null(memmem(text.at, text.len, "hunter", 6));
    buf_free(&text);
}

static void test_file_on_disk(void **state)
{
    char path[] = "/tmp/berth-conf-XXXXXX";
    int fd = mkstemp(path);
    static char big[1024 * 1024 + 1];

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "sample_k: 33\n", 13), 13);
    assert_int_equal(conf_file(&conf, path, &why), ERR_OK);
    assert_int_equal(set.sample_k, 33);
    memset(big, '#', sizeof big);
    assert_int_equal(pwrite(fd, big, sizeof big, 0), sizeof big);
    assert_int_equal(conf_file(&conf, path, &why), ERR_TOO_LARGE);
    close(fd);
    unlink(path);
    assert_int_equal(conf_file(&conf, path, &why), ERR_BAD_CONFIG);
    assert_true(strstr(why.detail, "No such file") != NULL);
    assert_int_equal(conf_file(&conf, "/", &why), ERR_BAD_CONFIG);
}

struct kept {
    int64_t live, fixed;
    struct str name;
    struct strs list;
    struct tls tls;
    const struct json *tree;
};

static const struct field kept_fields[] = {
    {.name = "live",
     .type = FIELD_INT,
     .offset = offsetof(struct kept, live),
     .preset = "1",
     .flags = FIELD_LIVE},
    {.name = "fixed", .type = FIELD_INT, .offset = offsetof(struct kept, fixed), .preset = "1"},
    {.name = "name", .type = FIELD_STR, .offset = offsetof(struct kept, name), .preset = "a"},
    {.name = "list",
     .type = FIELD_STRS,
     .offset = offsetof(struct kept, list),
     .flags = FIELD_LIVE | FIELD_SECRET},
    {.name = "tls",
     .type = FIELD_OBJ,
     .offset = offsetof(struct kept, tls),
     .fields = tls_fields,
     .field_count = COUNT_OF(tls_fields)},
    {.name = "tree",
     .type = FIELD_JSON,
     .offset = offsetof(struct kept, tree),
     .flags = FIELD_LIVE},
};

static const struct schema kept_schema = {
    .what = "it", .fields = kept_fields, .count = COUNT_OF(kept_fields), .strict = true};

/* On a reload live settings change; the others keep their values and are named. */
static void test_keep(void **state)
{
    static const char next_text[] =
        "live: 2\nfixed: 2\nname: b\nlist: [x]\ntls: {cert: c}\ntree: {a: 1}\n";
    struct kept old = {0}, next = {0};
    struct conf old_conf, next_conf;
    struct buf changed = {0}, waiting = {0};

    assert_int_equal(conf_init(&old_conf, &kept_schema, &old, &arena), ERR_OK);
    assert_int_equal(conf_init(&next_conf, &kept_schema, &next, &arena), ERR_OK);
    conf_keep(&next_conf, &old_conf, &changed, &waiting);
    assert_int_equal(changed.len + waiting.len, 0);
    assert_int_equal(conf_yaml(&next_conf, str_of(next_text), &why), ERR_OK);
    conf_keep(&next_conf, &old_conf, &changed, &waiting);
    assert_str(buf_view(&changed), "live,list,tree");
    assert_str(buf_view(&waiting), "fixed,name,tls");
    assert_int_equal(next.live, 2);
    assert_int_equal(next.fixed, 1);
    assert_str(next.name, "a");
    assert_str(next.tls.cert, "none");
    assert_int_equal(next.list.count, 1);
    assert_non_null(next.tree);
    buf_free(&changed);
    buf_free(&waiting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_source_beats_the_one_before, start, end),
        cmocka_unit_test_setup_teardown(test_every_type_from_a_file, start, end),
        cmocka_unit_test_setup_teardown(test_every_type_from_flags_and_env, start, end),
        cmocka_unit_test_setup_teardown(test_mistakes_in_a_file, start, end),
        cmocka_unit_test_setup_teardown(test_mistakes_in_flags_and_env, start, end),
        cmocka_unit_test_setup_teardown(test_names_that_are_no_flags, start, end),
        cmocka_unit_test_setup_teardown(test_settings_outlive_their_sources, start, end),
        cmocka_unit_test_setup_teardown(test_required_may_come_from_anywhere, start, end),
        cmocka_unit_test_setup_teardown(test_show, start, end),
        cmocka_unit_test_setup_teardown(test_file_on_disk, start, end),
        cmocka_unit_test_setup_teardown(test_keep, start, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
