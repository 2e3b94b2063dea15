/* The agent's settings, executors and identity: what is read, which source wins, and the messages
 * for mistakes. */
#include "agent/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/identity.h"
#include "agent/secret.h"
#include "unit.h"

static char dir[] = "/tmp/berth-agent-config-XXXXXX";

static const char *file_with(const char *name, const char *text)
{
    static char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

/* `args` are words separated by spaces. */
static enum err load(struct config_source *source, const char *yaml, const char *args,
                     struct problem *why)
{
    char words[512], *argv[32], *save = NULL;
    int argc = 0;

    snprintf(words, sizeof words, "%s", args);
    if (yaml) {
        argv[argc++] = (char *)"--config";
        argv[argc++] = (char *)file_with("agent.yaml", yaml);
    }
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    *why = (struct problem){0};
    return config_load(source, argc, argv, why);
}

static void loaded(struct config_source *source, const char *yaml, const char *args)
{
    struct problem why;

    if (load(source, yaml, args, &why) != ERR_OK)
        fail_msg("%s", why.detail);
}

static void test_defaults(void **state)
{
    struct config_source source;
    const struct config *config = &source.config;

    loaded(&source, NULL, "");
    assert_int_equal(config->url_count, 1);
    assert_string_equal(config->urls[0], "ws://127.0.0.1:7420/v1/node/connect");
    assert_false(config->tls);
    assert_null(config->node_id.at);
    assert_str(config->data_dir, "./berth-agent");
    assert_int_equal(config->max_concurrent_jobs, 16);
    assert_false(config->allow_commands);
    assert_true(config_allows(config, STR("anything")));
    assert_null(config_executor(config, STR("anything")));
    assert_true(config->max_slots == FIELD_OFF && config->slots_fixed == FIELD_OFF);
    assert_true(config->priority == FIELD_OFF);
    assert_int_equal(config->safety_buffer, 1);
    assert_true(config->resources.cpu_per_process == 1.2);
    assert_true(config->resources.swap_critical_pct == 70);
    assert_int_equal(config->killable_types.count, 0);
    assert_int_equal(config->protected_types.count, 1);
    assert_str(config->protected_types.at[0], "f2f");
    assert_int_equal(config->slots_min, 1);
    assert_null(config->gpu_command.at);
    config_done(&source);
}

/* camelCase names, as in older files, next to current ones. */
static void test_whole_file(void **state)
{
    static const char yaml[] =
        "server: https://a:7420, wss://[::1]:9/\n"
        "node_id: hk\n"
        "nmt_pairs: [[en, zh], [zh, en]]\n"
        "labels: {zone: hk}\n"
        "allowedTypes: [talk, research]\n"
        "maxSlots: 2\n"
        "reservedSlots: 1\n"
        "resources: {memPerProcessGB: 2.5, load_danger_pct: 85, licences: 3, cpu: 1.5, "
        "mem_mb: 0, gpus: 0}\n"
        "gpu_command: ''\n"
        "executors:\n"
        "  talk:\n"
        "    command: /usr/bin/talker\n"
        "    args: [-c, \"two\\nlines\", 3]\n"
        "    env: {LANG: C, N: 4}\n"
        "    cwd: /srv\n"
        "    user: nobody\n"
        "    timeout_ms: 5m\n"
        "    memory_mb_max: 512\n"
        "    pids_max: 64\n"
        "    secrets: {KEY: api-key}\n"
        "  '*': {command: cat}\n"
        "secrets_dir: /etc/keys\n"
        "secrets:\n"
        "  api-key: {types: [talk, maps/*], deployments: [web]}\n"
        "  ci: {types: ['*'], commands: true}\n";
    struct config_source source;
    const struct config *config = &source.config;

    loaded(&source, yaml, "--slots-fixed 4 --allow-commands");
    assert_int_equal(config->url_count, 2);
    assert_string_equal(config->urls[0], "wss://a:7420/v1/node/connect");
    assert_string_equal(config->urls[1], "wss://[::1]:9/v1/node/connect");
    assert_true(config->tls && config->allow_commands);
    assert_true(config_allows(config, STR("talk")) && !config_allows(config, STR("dev")));
    assert_int_equal(config->max_slots, 2);
    assert_int_equal(config->reserved_slots, 1);
    assert_int_equal(config->slots_fixed, 4);
    assert_true(config->resources.mem_per_process_gb == 2.5);
    assert_true(config->resources.load_danger_pct == 85);
    assert_true(config->resources.load_warning_pct == 60);
    assert_true(config->declared.gpus && config->declared.resources.gpu_count == 0);
    assert_int_equal(config->declared.resources.count, 3);
    assert_string_equal(config->declared.resources.items[0].name, "cpu");
    assert_int_equal(config->declared.resources.items[0].capacity, 1500);
    assert_int_equal(config->declared.resources.items[1].capacity, 3);
    assert_int_equal(config->declared.resources.items[2].capacity, 0);
    assert_true(config->gpu_command.at && config->gpu_command.len == 0);

    const struct executor *talk = config_executor(config, STR("talk"));
    assert_str(talk->command, "/usr/bin/talker");
    assert_int_equal(talk->args.count, 3);
    assert_str(talk->args.at[1], "two\nlines");
    assert_str(talk->args.at[2], "3");
    assert_int_equal(talk->env.count, 2);
    assert_str(talk->env.at[0], "LANG=C");
    assert_str(talk->env.at[1], "N=4");
    assert_int_equal(talk->timeout_ms, 300000);
    assert_int_equal(talk->stop_grace_ms, 5000);
    assert_int_equal(talk->pids_max, 64);
    assert_int_equal(talk->secrets.count, 1);
    assert_str(talk->secrets.at[0], "KEY=api-key");
    assert_str(config->secrets_dir, "/etc/keys");
    assert_true(secret_for_job(config, STR("api-key"), STR("talk"), false));
    assert_false(secret_for_job(config, STR("api-key"), STR("talk"), true));
    assert_false(secret_for_job(config, STR("api-key"), STR("dev"), false));
    assert_false(secret_for_job(config, STR("other"), STR("talk"), false));
    assert_true(secret_for_job(config, STR("api-key"), STR("maps/dev"), false));
    assert_false(secret_for_job(config, STR("api-key"), STR("more/talk"), false));
    assert_true(secret_for_job(config, STR("ci"), STR("dev"), true));
    assert_true(secret_for_deployment(config, STR("api-key"), STR("web")));
    assert_false(secret_for_deployment(config, STR("api-key"), STR("webs")));
    assert_false(secret_for_deployment(config, STR("api-key"), STR("maps/web")));
    assert_false(secret_for_deployment(config, STR("ci"), STR("web")));
    assert_str(config_executor(config, STR("other"))->command, "cat");
    config_done(&source);
}

static void test_mistakes(void **state)
{
    static const struct {
        const char *yaml, *args, *detail;
    } rows[] = {
        {"max_slot: 3\n", "", "Line 1: unknown setting \"max_slot\"; did you mean \"max_slots\"?"},
        {"name: x\nresources:\n  memReserve: 3\n", "", "Line 3: unknown setting"},
        {"resources: {cpu_per_proces: 3}\n", "", "did you mean \"resources.cpu_per_process\"?"},
        {"resources: {licences: many}\n", "", "resources.licences must be a number"},
        {"resources: {vram_mb: 5}\n", "", "neither slots nor vram_mb"},
        {"resources: {gpus: 2}\n", "", "must be a list"},
        {"executors:\n  dev:\n    comand: x\n", "",
         "Line 3: unknown setting \"comand\"; did you "
         "mean \"command\"?"},
        {"executors:\n  dev: {args: []}\n", "", "Line 2: executors.dev needs a command."},
        {"executors:\n  dev: cat\n", "", "Line 2: executors.dev must be an object"},
        {"executors: [a]\n", "", "executors must be an object"},
        {"executors:\n  dev: {command: a, cwd: b}\n", "", "absolute path"},
        {"executors:\n  dev: {command: a, env: [b]}\n", "", "env of NAME: text"},
        {"executors:\n  dev: {command: a, env: {'A=B': c}}\n", "", "env of NAME: text"},
        {"executors:\n  dev: {command: a, args: b}\n", "", "list of texts as args"},
        {"executors:\n  dev: {command: a, timeout_ms: soon}\n", "", "timeout_ms must be a time"},
        {"executors:\n  'a b': {command: a}\n", "", "must be named by task types"},
        {"executors:\n  dev: {command: a, secrets: [a/b]}\n", "", "names as secrets"},
        {"secrets: [api-key]\n", "", "secrets must be an object"},
        {"secrets:\n  a/b: {}\n", "", "Line 2: secrets.a/b must be the name of a secret"},
        {"secrets:\n  a: {type: [x]}\n", "", "Line 2: unknown setting \"type\""},
        {"nmt_pairs: [[en]]\n", "", "nmt_pairs must be any"},
        {"labels: {a: 1}\n", "", "labels must hold a text"},
        {"capability_by_type: {tts: maybe}\n", "", "true or false"},
        {"allowed_types: ['a b']\n", "", "allowed_types must hold"},
        {NULL, "--data-dirr x", "Unknown flag --data-dirr; did you mean --data-dir?"},
        {NULL, "--zzz", "Unknown flag --zzz; --help lists them."},
        {NULL, "word", "Unexpected argument \"word\"."},
        {NULL, "--executors x", "Unknown flag --executors"},
        {NULL, "--server ftp://a", "must begin with http"},
        {NULL, "--server http://a/path", "must be a URL"},
        {NULL, "--server http://a,,http://b", "must be a URL"},
        {NULL, "--max-concurrent-jobs 5000", "whole number from 0 to 4096"},
        {NULL, "--node-id a/b", "characters out of"},
        {NULL, "--token-file /nonexistent", "Cannot open /nonexistent"},
        {NULL, "--config", "--config needs a value."},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct config_source source;
        struct problem why;

        if (load(&source, rows[i].yaml, rows[i].args, &why) == ERR_OK)
            fail_msg("row %zu was taken", i);
        assert_has(str_of(why.detail), rows[i].detail);
        config_done(&source);
    }
}

/* The token comes from a file or the environment, and is removed there so that no job can read
 * it. */
static void test_token(void **state)
{
    struct config_source source;
    const char *before;
    char args[160];

    setenv("BERTH_TOKEN", "from-env", 1);
    before = getenv("BERTH_TOKEN");
    loaded(&source, NULL, "");
    assert_str(source.config.token, "from-env");
    assert_null(getenv("BERTH_TOKEN"));
    assert_int_equal(before[0], 0); /* /proc/PID/environ shows this memory */
    config_done(&source);
    setenv("BERTH_TOKEN", "from-env", 1);
    snprintf(args, sizeof args, "--token-file %s", file_with("token", "from-file\r\nmore\n"));
    loaded(&source, NULL, args);
    assert_str(source.config.token, "from-file");
    assert_null(getenv("BERTH_TOKEN"));
    config_done(&source);
}

static void test_environment(void **state)
{
    struct config_source source;

    setenv("BERTH_MAX_SLOTS", "3", 1);
    setenv("BERTH_SERVER", "http://env:1", 1);
    loaded(&source, "max_slots: 2\n", "--server http://flag");
    assert_int_equal(source.config.max_slots, 3);
    assert_string_equal(source.config.urls[0], "ws://flag:80/v1/node/connect");
    config_done(&source);
    unsetenv("BERTH_MAX_SLOTS");
    unsetenv("BERTH_SERVER");
    /* Set by systemd for the unit. */
    setenv("CREDENTIALS_DIRECTORY", "/run/credentials/berth-agent.service", 1);
    loaded(&source, NULL, "");
    assert_str(source.config.secrets_dir, "/run/credentials/berth-agent.service");
    config_done(&source);
    loaded(&source, "secrets_dir: /etc/keys\n", "");
    assert_str(source.config.secrets_dir, "/etc/keys");
    config_done(&source);
    unsetenv("CREDENTIALS_DIRECTORY");
}

static void test_host_names(void **state)
{
    static const struct {
        const char *host, *id;
    } rows[] = {
        {"web-1", "web-1"}, {"web 1/x", "web-1-x"}, {"a.b.c", "a.b.c"}, {".a", "-a"}, {"", "node"}};
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_str(identity_from_host(str_of(rows[i].host), &arena), rows[i].id);
    arena_free(&arena);
}

static void test_identity(void **state)
{
    struct arena arena = {0};
    struct problem why;
    struct str id;
    const char *path;
    struct stat st;

    assert_int_equal(identity_dir(arena_fmt(&arena, "%s/deep/er", dir), &arena, &path, &why), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0711);
    assert_int_equal(identity_format(path, &arena, &why), ERR_OK);
    assert_int_equal(identity_format(path, &arena, &why), ERR_OK); /* as the first time */
    file_with("deep/er/format", "2\n");
    assert_int_equal(identity_format(path, &arena, &why), ERR_BAD_CONFIG);
    assert_has(str_of(why.detail), "its files have format 2, this one knows up to 1");
    file_with("deep/er/format", "none\n");
    assert_int_equal(identity_format(path, &arena, &why), ERR_BAD_CONFIG);
    assert_int_equal(identity_id(path, STR("n1"), &arena, &id, &why), ERR_OK);
    assert_str(id, "n1");
    /* As the first time. */
    assert_int_equal(identity_id(path, STR_NONE, &arena, &id, &why), ERR_OK);
    assert_str(id, "n1");
    assert_int_equal(identity_id(path, STR("n2"), &arena, &id, &why), ERR_BAD_CONFIG);
    assert_has(str_of(why.detail), "belongs to node n1, not n2");
    assert_int_equal(identity_dir(arena_fmt(&arena, "%s/deep/er", dir), &arena, &path, &why), 0);
    assert_int_equal(identity_dir(STR("/proc/none/such"), &arena, &path, &why), ERR_BAD_CONFIG);
    arena_free(&arena);
}

/* --help shows every setting. */
static void test_help(void **state)
{
    struct buf help = {0};

    config_help(&help);
    assert_has(buf_view(&help), "--node-id");
    assert_has(buf_view(&help), "executors");
    assert_has(buf_view(&help), "(default ./berth-agent)");
    buf_free(&help);
}

static int setup(void **state)
{
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_whole_file),
        cmocka_unit_test(test_mistakes),    cmocka_unit_test(test_token),
        cmocka_unit_test(test_environment), cmocka_unit_test(test_host_names),
        cmocka_unit_test(test_identity),    cmocka_unit_test(test_help),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
