/* The agent's settings table and how it is read: the server and the credentials for it, how
 * deployments are claimed, and the table of executors, whose rows are read and checked like any
 * other part of the file. */
#include "agent/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/identity.h"
#include "agent/job_user.h"
#include "agent/loaded.h"
#include "agent/secret.h"
#include "base/file.h"
#include "base/url.h"
#include "base/yaml.h"
#include "model/argv.h"

/* --- how deployments are claimed --- */

enum { INTERVAL_MS_MIN = 50, INTERVAL_MS_MAX = 3600 * 1000 };

static struct str env(const char *name)
{
    return str_of(getenv(name));
}

/* The NODE_UNIT_ variables: they override the file, ours override them. */
static void config_unit_env(struct config *config)
{
    struct claim_env given = {.policy = env("NODE_UNIT_CLAIM_POLICY"),
                              .interval_ms = env("NODE_UNIT_SCHEDULER_INTERVAL_MS"),
                              .cpu_weight = env("NODE_UNIT_CPU_WEIGHT"),
                              .memory_weight = env("NODE_UNIT_MEMORY_WEIGHT")};
    struct claim_config read;

    claim_config_read(&given, &read);
    if (given.policy.len)
        config->claim_policy_index = (int)(read.policy - claim_policy_at(0));
    if (given.interval_ms.len)
        config->claim_interval_ms = read.interval_ms < INTERVAL_MS_MIN ? INTERVAL_MS_MIN
                                    : read.interval_ms > INTERVAL_MS_MAX
                                        ? INTERVAL_MS_MAX
                                        : (int64_t)read.interval_ms;
    if (given.cpu_weight.len)
        config->claim_weights.cpu = read.weights.cpu;
    if (given.memory_weight.len)
        config->claim_weights.memory = read.weights.memory;
}

/* --- URLs and the token --- */

#define CONNECT_PATH "/v1/node/connect"

/* From the first line of the file, or the environment: never a flag, which every user can see in
 * ps. */
static enum err config_read_token(struct config_source *source, struct problem *why)
{
    struct config *config = &source->config;
    char *env = getenv("BERTH_TOKEN");

    if (env && *env && !config->token_file.len)
        config->token = arena_str(&source->arena, str_of(env));
    if (env) {
        explicit_bzero(env, strlen(env)); /* otherwise every job could read it in /proc */
        unsetenv("BERTH_TOKEN");
    }
    if (config->token_file.len) {
        const char *path = arena_cstr(&source->arena, config->token_file);
        enum err err = access_read_token(path, &source->arena, &config->token, why);

        if (err)
            return err;
    }
    if (config->token.at && (!str_is_text(config->token) || config->token.len > ACCESS_TOKEN_MAX))
        return problem_set(why, ERR_BAD_CONFIG, "token",
                           "The token must be one line of at most %d bytes.", ACCESS_TOKEN_MAX);
    if (!config->tls_cert.len != !config->tls_key.len)
        return problem_set(why, ERR_BAD_CONFIG, "tls_key",
                           "tls_cert and tls_key must be given together.");
    return ERR_OK;
}

/* http and https are accepted as ws and wss: people copy the address from their browser. */
static enum err read_url(struct config_source *source, struct str text, struct problem *why)
{
    static const struct {
        const char *given, *scheme;
        bool tls;
    } rows[] = {
        {"http", "ws", false}, {"https", "wss", true}, {"ws", "ws", false}, {"wss", "wss", true}};
    struct config *config = &source->config;
    struct url url;

    if (!memmem(text.at, text.len, "://", 3))
        text = arena_fmt(&source->arena, "http://" STR_FMT, STR_ARG(text));
    if (!url_parse(text, &url) || !(str_is(url.target, "/") || str_is(url.target, CONNECT_PATH)))
        return problem_set(why, ERR_BAD_CONFIG, "server",
                           "server must be a URL like http://127.0.0.1:7420, not \"" STR_FMT "\".",
                           STR_ARG(text));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (!str_eq_nocase(url.scheme, str_of(rows[i].given)))
            continue;
        int port = url.port_number ? url.port_number : rows[i].tls ? 443 : 80;

        config->tls |= rows[i].tls;
        config->urls[config->url_count++] =
            arena_fmt(&source->arena, "%s://%s" STR_FMT "%s:%d" CONNECT_PATH, rows[i].scheme,
                      url.is_v6 ? "[" : "", STR_ARG(url.host), url.is_v6 ? "]" : "", port)
                .at;
        return ERR_OK;
    }
    return problem_set(why, ERR_BAD_CONFIG, "server",
                       "server must begin with http, https, ws or wss, not \"" STR_FMT "\".",
                       STR_ARG(url.scheme));
}

static enum err config_read_urls(struct config_source *source, struct problem *why)
{
    struct str rest = source->config.server;

    while (rest.at) {
        struct str text = str_trim(str_cut(&rest, ','));
        enum err err;

        if (source->config.url_count == CONFIG_URLS_MAX)
            return problem_set(why, ERR_BAD_CONFIG, "server", "server takes at most %d URLs.",
                               CONFIG_URLS_MAX);
        err = read_url(source, text, why);
        if (err)
            return err;
    }
    assert(source->config.url_count > 0);
    return ERR_OK;
}

/* --- executors --- */

#define EXECUTOR_AT(member) offsetof(struct executor, member)
#define DAY_MS              (24LL * 3600 * 1000)

static const struct field executor_fields[] = {
    FIELD_BOUND("command", STR, EXECUTOR_AT(command), 1, 4096, NULL, FIELD_REQUIRED,
                "program to start"),
    FIELD_PLAIN("args", JSON, EXECUTOR_AT(args_given), NULL, 0, "its arguments"),
    FIELD_PLAIN("env", JSON, EXECUTOR_AT(env_given), NULL, 0, "{NAME: value}"),
    FIELD_PLAIN("secrets", JSON, EXECUTOR_AT(secrets_given), NULL, 0,
                "[NAME], or {VARIABLE: NAME}"),
    FIELD_BOUND("cwd", STR, EXECUTOR_AT(cwd), 0, 4096, NULL, 0, "absolute"),
    FIELD_BOUND("user", ID, EXECUTOR_AT(user), 0, 64, NULL, 0, "to run as; default: job_user"),
    FIELD_BOUND("timeout_ms", MS, EXECUTOR_AT(timeout_ms), 0, 30 * DAY_MS, "0", 0,
                "longest run; 0 = the job's own only"),
    FIELD_BOUND("stop_grace_ms", MS, EXECUTOR_AT(stop_grace_ms), 0, DAY_MS, "5000", 0,
                "between TERM and KILL"),
    FIELD_BOUND("memory_mb_max", INT, EXECUTOR_AT(memory_mb_max), 0, 1LL << 30, "0", 0,
                "0 = no limit"),
    FIELD_BOUND("pids_max", INT, EXECUTOR_AT(pids_max), 0, 1LL << 30, "0", 0, "0 = no limit"),
    FIELD_BOUND("disk_mb_max", INT, EXECUTOR_AT(disk_mb_max), 0, 1LL << 30, "0", 0,
                "0 = job_disk_mb_max"),
};

static const struct schema executor_schema = {.what = "an executor",
                                              .fields = executor_fields,
                                              .count = COUNT_OF(executor_fields),
                                              .strict = true};

/* Adds "Line 7: " in front, as the table's own messages have it. */
static enum err wrong(struct problem *why, const struct schema_lines *lines,
                      const struct json *token, struct str type, const char *what)
{
    int line = lines->lines[token - lines->root];
    enum err err = problem_set(why, ERR_BAD_CONFIG, "executors",
                               "Line %d: executors." STR_FMT " %s.", line, STR_ARG(type), what);

    if (why)
        why->line = line;
    return err;
}

static enum err read_one(const struct json *key, const struct schema_lines *lines,
                         struct arena *arena, struct executor *executor, struct problem *why)
{
    struct str type = json_str(key, arena);
    enum err err;

    assert(key >= lines->root && key < lines->root + lines->root->span);
    if (!str_is(type, "*") && !str_is_id(type, CONFIG_TYPE_MAX))
        return wrong(why, lines, key, STR("*"), "and the others must be named by task types");
    if (json_type(key + 1) != JSON_OBJ)
        return wrong(why, lines, key, type, "must be an object with at least `command`");
    err = schema_presets(&executor_schema, executor, arena);
    assert(!err);
    err = schema_read_lines(&executor_schema, key + 1, lines, executor, arena, why);
    if (err)
        return ERR_BAD_CONFIG;
    executor->type = type;
    if (!executor->command.at)
        return wrong(why, lines, key, type, "needs a command");
    if (executor->cwd.at && (!executor->cwd.len || executor->cwd.at[0] != '/'))
        return wrong(why, lines, key, type, "must have an absolute path as cwd");
    if (!argv_list(executor->args_given, arena, &executor->args))
        return wrong(why, lines, key, type, "must have a list of texts as args");
    if (!argv_env(executor->env_given, arena, &executor->env))
        return wrong(why, lines, key, type, "must have an env of NAME: text");
    if (!argv_secrets(executor->secrets_given, arena, &executor->secrets))
        return wrong(why, lines, key, type,
                     "must have a list of names as secrets, or VARIABLE: name");
    return ERR_OK;
}

/* `given` is a token of lines->root; NULL or null: none. Everything lives in the arena. */
static enum err executors_read(const struct json *given, const struct schema_lines *lines,
                               struct arena *arena, struct executor **ret_executors,
                               size_t *ret_count, struct problem *why)
{
    const struct json *key = json_first(given);
    struct executor *executors;

    if (json_is_null(given))
        return ERR_OK;
    if (json_type(given) != JSON_OBJ)
        return problem_set(why, ERR_BAD_CONFIG, "executors",
                           "executors must be an object: TYPE: {command: ...}.");
    executors = arena_array(arena, struct executor, given->count + 1);
    for (uint32_t i = 0; i < given->count; i++, key = json_next(key + 1)) {
        enum err err = read_one(key, lines, arena, &executors[i], why);

        if (err)
            return err;
    }
    *ret_executors = executors;
    *ret_count = given->count;
    return ERR_OK;
}

/* --- the table --- */

#define AT(member)       offsetof(struct config, member)
#define RESOURCE(member) offsetof(struct config_resources, member)
#define SECOND_MS        1000
#define HOUR_MS          (3600LL * SECOND_MS)

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const log_formats[] = {"logfmt", "json", NULL};
static const char *const private_tmps[] = {
    [CONFIG_TMP_AUTO] = "auto", [CONFIG_TMP_OFF] = "off", NULL};
static const char *const unknown_metrics[] = {
    [CONFIG_UNKNOWN_NOT_ELIGIBLE] = "not_eligible", [CONFIG_UNKNOWN_ZERO] = "zero", NULL};

#define RESOURCE_ROW(member, camel, value, text)                                                   \
    {                                                                                              \
        .name = #member, .alias = (camel), .type = FIELD_REAL, .offset = RESOURCE(member),         \
        .min = 0, .max = 100000, .preset = (value), .help = (text)                                 \
    }
static const struct field resource_fields[] = {
    RESOURCE_ROW(cpu_per_process, "cpuPerProcess", "1.2", "cores a job takes"),
    RESOURCE_ROW(mem_per_process_gb, "memPerProcessGB", "1.5", "memory a job takes"),
    RESOURCE_ROW(mem_reserve_gb, "memReserveGB", "2", "memory left to the system"),
    RESOURCE_ROW(load_warning_pct, "loadWarningPct", "60", "CPU in use"),
    RESOURCE_ROW(load_danger_pct, "loadDangerPct", "80", "CPU in use"),
    RESOURCE_ROW(load_critical_pct, "loadCriticalPct", "90", "CPU in use"),
    RESOURCE_ROW(mem_warning_pct, "memWarningPct", "30", "memory free"),
    RESOURCE_ROW(mem_danger_pct, "memDangerPct", "20", "memory free"),
    RESOURCE_ROW(mem_critical_pct, "memCriticalPct", "10", "memory free"),
    RESOURCE_ROW(swap_warning_pct, "swapWarningPct", "30", "swap in use"),
    RESOURCE_ROW(swap_danger_pct, "swapDangerPct", "50", "swap in use"),
    RESOURCE_ROW(swap_critical_pct, "swapCriticalPct", "70", "swap in use"),
    RESOURCE_ROW(disk_warning_pct, NULL, "5", "disk free, where runs and packages are; 0 = any"),
    RESOURCE_ROW(disk_danger_pct, NULL, "2", "disk free; 0 = any"),
    RESOURCE_ROW(disk_counted_gb, NULL, "100", "a larger disk counts as one of this size"),
    RESOURCE_ROW(vram_warning_pct, NULL, "10", "memory free of a GPU whose promises do not fit"),
    RESOURCE_ROW(vram_danger_pct, NULL, "10", "likewise"),
    RESOURCE_ROW(vram_critical_pct, NULL, "10", "likewise"),
};

/* A setting named like its member. */
#define BOUND(member, kind, ...) FIELD_BOUND(#member, kind, AT(member), __VA_ARGS__)
#define PLAIN(member, kind, ...) FIELD_PLAIN(#member, kind, AT(member), __VA_ARGS__)
#define WORDS(member, ...)       FIELD_WORDS(#member, AT(member), __VA_ARGS__)

static const struct field fields[] = {
    BOUND(server, STR, 1, 4096, "http://127.0.0.1:7420", 0,
          "URL of the server; several with commas: the next one when one is away"),
    BOUND(node_id, ID, 0, 128, NULL, 0,
          "who this is; default: as last time, at first the host's name"),
    BOUND(data_dir, STR, 1, 2048, "./berth-agent", 0,
          "directory of runs, results to be sent, and the identity"),
    BOUND(spawner, STR, 0, 107, NULL, 0,
          "socket of the spawner that starts runs; empty: the agent has its own"),
    PLAIN(token_file, STR, NULL, FIELD_LIVE, "file with the token for the server (or BERTH_TOKEN)"),
    PLAIN(ca_file, STR, NULL, 0, "certificates to trust, for https; default: the system's"),
    PLAIN(tls_cert, STR, NULL, 0,
          "certificate to show to a server that asks for one (PEM); its common name is the node"),
    PLAIN(tls_key, STR, NULL, 0, "its key file"),
    BOUND(name, STR, 0, 128, NULL, FIELD_LIVE, "for people"),
    BOUND(role, STR, 0, 128, NULL, FIELD_LIVE, "for people"),

    BOUND(priority, INT, 0, 1000, "off", FIELD_NULLABLE | FIELD_LIVE,
          "a lower one is asked first, where no route says otherwise"),

    PLAIN(semantic_langs, STRS, NULL, FIELD_LIVE, "languages for which semantic repair is there"),
    PLAIN(nmt_pairs, JSON, NULL, FIELD_NO_FLAG | FIELD_LIVE, "[[\"en\",\"zh\"], ...] or any"),
    PLAIN(tts_langs, STRS, NULL, FIELD_LIVE, "languages that can be spoken"),
    PLAIN(capability_by_type, JSON, NULL, FIELD_NO_FLAG | FIELD_LIVE,
          "{asr, nmt, tts, tone, semantic}: true or false"),
    PLAIN(labels, JSON, NULL, FIELD_NO_FLAG | FIELD_LIVE,
          "{zone: eu}: what `requires` of a task selects by"),
    PLAIN(allowed_types, STRS, "*", FIELD_LIVE, "task types this machine takes",
          .alias = "allowedTypes"),
    BOUND(max_concurrent_jobs, INT, 0, CONFIG_JOBS_MAX, "16", FIELD_LIVE,
          "jobs at once, whatever the machine could carry"),
    PLAIN(allow_commands, BOOL, "false", FIELD_LIVE, "run commands that come in the job itself"),
    PLAIN(allow_deployments, BOOL, "false", FIELD_LIVE,
          "claim deployments and run daemons, whose commands come with them too"),
    BOUND(job_user, ID, 0, JOB_USER_BASE_MAX, NULL, FIELD_LIVE,
          "user work runs as; default: berth-job, else nobody, where the agent can choose"),
    PLAIN(allow_root, BOOL, "false", FIELD_LIVE,
          "work may run as root, if job_user or an executor's user says so"),
    PLAIN(syscall_filter, BOOL, "true", FIELD_LIVE,
          "work is refused system calls it should not need, see docs/security.md"),
    WORDS(private_tmp, private_tmps, "auto", FIELD_LIVE,
          "auto: a run has its own /tmp, /var/tmp, /dev/shm and IPC where possible; off: the "
          "machine's"),
    BOUND(job_pids_max, INT, 0, 1LL << 30, "512", FIELD_LIVE,
          "processes of a job without an executor, where limits can be kept; 0 = no limit"),
    BOUND(job_memory_mb_max, INT, 0, 1LL << 30, "0", FIELD_LIVE,
          "its memory, swap included; 0 = run_memory_pct_max"),
    BOUND(run_memory_pct_max, INT, 10, 100, "90", FIELD_LIVE,
          "of the machine's memory for work without a limit of its own; 100 = all of it"),
    BOUND(job_disk_mb_max, INT, 0, 1LL << 30, "0", FIELD_LIVE,
          "what work may have in its directory; 0 = half of the disk that is free when it begins"),
    FIELD_PLAIN("executors", JSON, AT(executors_given), NULL, FIELD_NO_FLAG | FIELD_LIVE,
                "{TYPE: {command, args, env, cwd, user, ...}}"),
    BOUND(secrets_dir, STR, 1, 2048, NULL, FIELD_LIVE,
          "directory with a file for each secret; default: the credentials of the unit"),
    FIELD_PLAIN("secrets", JSON, AT(secrets_given), NULL, FIELD_NO_FLAG | FIELD_LIVE,
                "{NAME: {types, commands, deployments}}: who may name it; executors always may"),

    BOUND(max_slots, INT, 0, CONFIG_JOBS_MAX, "off", FIELD_NULLABLE | FIELD_LIVE,
          "hard cap; off = what the machine carries when idle", .alias = "maxSlots"),
    BOUND(reserved_slots, INT, 0, CONFIG_JOBS_MAX, "0", FIELD_LIVE, "kept for interactive jobs",
          .alias = "reservedSlots"),
    BOUND(slots_fixed, INT, 0, CONFIG_JOBS_MAX, "off", FIELD_NULLABLE | FIELD_LIVE,
          "this many slots instead of the formula", .alias = "slotsFixed"),
    BOUND(safety_buffer, INT, 0, CONFIG_JOBS_MAX, "1", FIELD_LIVE, "slots the formula keeps back",
          .alias = "safetyBuffer"),
    BOUND(slots_min, INT, 0, CONFIG_JOBS_MAX, "1", FIELD_LIVE,
          "jobs carried at level normal, even if the formula has no slot", .alias = "slotsMin"),
    PLAIN(resources, OBJ, NULL, FIELD_LIVE | FIELD_OPEN,
          "{cpu_per_process, mem_per_process_gb, load_warning_pct, ...}, and what the node has "
          "for `needs`: {cpu: 8, mem_mb: 15000, licences: 3}; default: cpu, mem_mb and gpus as "
          "measured",
          .fields = resource_fields, .field_count = COUNT_OF(resource_fields)),
    PLAIN(protected_types, STRS, "f2f", FIELD_LIVE,
          "never ended to save the machine; deployment and daemon too, * = nothing is",
          .alias = "protectedTypes"),
    PLAIN(killable_types, STRS, NULL, FIELD_LIVE,
          "only these may be ended; default: all that are not protected", .alias = "killableTypes"),
    BOUND(high_priority_min, INT, 0, 9, "7", FIELD_LIVE,
          "priority that still gets in at level warning", .alias = "highPriorityMin"),
    BOUND(monitor_interval_ms, MS, 100, HOUR_MS, "1000", 0, "how often the machine is measured",
          .alias = "monitorIntervalMs"),
    BOUND(host_root, STR, 1, 2048, "/", 0, "where proc and sys are found"),
    BOUND(loaded_file, STR, 1, LOADED_PATH_MAX, NULL, FIELD_LIVE,
          "names of what is loaded here, one a line; who loads something keeps it"),
    BOUND(gpu_command, STR, 0, 2048, NULL, 0,
          "prints the GPUs as JSON, see docs/operators.md; default: nvidia-smi; empty = none"),
    PLAIN(cpu_strict, BOOL, "false", FIELD_LIVE,
          "work that needs cpu gets no more of it, even if nobody else wants it"),

    BOUND(log_bytes_max, INT, 4096, 1LL << 40, "4194304", FIELD_LIVE,
          "output kept of a run; as much again from before"),
    BOUND(runs_kept, INT, 0, CONFIG_JOBS_MAX, "64", FIELD_LIVE,
          "ended runs whose output can still be read"),
    BOUND(runs_kept_bytes, INT, 0, 1LL << 50, "268435456", FIELD_LIVE,
          "the most that their output takes together"),
    BOUND(runs_kept_ms, MS, 0, 366 * 24 * HOUR_MS, "604800000", FIELD_LIVE,
          "and how long after their end"),
    PLAIN(stop_runs, BOOL, "false", FIELD_LIVE,
          "what runs ends with the agent, instead of going on without it"),
    PLAIN(sleeps_with_server, BOOL, "false", 0,
          "server, store and database are on this machine: while it sleeps no lease runs"),

    BOUND(deployments_max, INT, 0, CONFIG_JOBS_MAX, "256", FIELD_LIVE,
          "deployments this machine claims at most; 0 = none"),
    BOUND(port_min, INT, 0, 65535, "21000", FIELD_LIVE,
          "the first of the ports that copies of deployments get in BERTH_PORT; 0 = none"),
    BOUND(port_max, INT, 0, 65535, "21999", FIELD_LIVE, "the last of them"),
    BOUND(service_address, STR, 1, 255, NULL, FIELD_LIVE,
          "where others reach what listens here; default: the machine's name"),
    BOUND(services_file, STR, 1, 2048, "services.json", 0,
          "tells where the copies of all deployments listen; below data_dir, or absolute"),
    BOUND(services_interval_ms, MS, 0, HOUR_MS, "5000", FIELD_LIVE,
          "how often that is asked; 0 = there is no such file"),
    FIELD_PLAIN("claim_policy", ENUM, AT(claim_policy_index), "deployment_count", FIELD_LIVE,
                "who claims", .name_at = claim_policy_name),
    BOUND(claim_interval_ms, MS, 100, HOUR_MS, "5000", FIELD_LIVE,
          "between two looks for deployments to claim"),
    BOUND(claim_budget, INT, 0, 1000, "0", FIELD_LIVE,
          "deployments claimed in one look at most; 0 = this node's share of all there are"),
    BOUND(move_after_failures, INT, 0, 1000, "5", FIELD_LIVE,
          "a deployment that failed here so often in a row goes to another node; 0 = never"),
    FIELD_BOUND("cpu_weight", REAL, AT(claim_weights.cpu), 0, 1000000, "0.5", FIELD_LIVE,
                "of CPU in the score of the policies by resource"),
    FIELD_BOUND("memory_weight", REAL, AT(claim_weights.memory), 0, 1000000, "0.5", FIELD_LIVE,
                "of memory, likewise"),
    WORDS(unknown_metric, unknown_metrics, "not_eligible", FIELD_LIVE,
          "what a node whose usage is not known counts as; zero makes it the favourite"),
    PLAIN(install_command, JSON, NULL, FIELD_NO_FLAG | FIELD_LIVE,
          "[npm, install, --prefix, \"{dir}\", \"{name}@{version}\"], or a text for the shell"),
    PLAIN(run_command, JSON, NULL, FIELD_NO_FLAG | FIELD_LIVE,
          "[npx, \"{name}\"]: runs a package whose deployment has no command"),
    BOUND(install_timeout_ms, MS, 1000, 24 * HOUR_MS, "600000", FIELD_LIVE,
          "longest installation of a package"),
    BOUND(packages_kept, INT, 0, CONFIG_JOBS_MAX, "2", FIELD_LIVE,
          "installed packages that nothing here uses any more, for going back; others go"),
    BOUND(packages_unused_ms, MS, 1000, 366 * 24 * HOUR_MS, "3600000", FIELD_LIVE,
          "and not before nothing has used them for so long"),
    BOUND(restart_min_ms, MS, 10, HOUR_MS, "1000", FIELD_LIVE,
          "pause after a deployment's first crash; each next one is twice that"),
    BOUND(restart_max_ms, MS, 10, HOUR_MS, "60000", FIELD_LIVE, "but not longer than this"),
    BOUND(restart_stable_ms, MS, 0, HOUR_MS, "30000", FIELD_LIVE,
          "after so long without a crash it counts from the first again"),
    BOUND(heartbeat_ms, MS, 100, HOUR_MS, "5000", 0, "until the server says otherwise"),
    WORDS(log_level, log_levels, "info", FIELD_LIVE, "debug, info, warn, error"),
    WORDS(log_format, log_formats, "logfmt", FIELD_LIVE, "logfmt or json"),
    PLAIN(log_file, STR, NULL, FIELD_LIVE,
          "file to log to, opened again at SIGHUP; empty = standard error"),
};

static const struct schema config_schema = {
    .what = "the configuration", .fields = fields, .count = COUNT_OF(fields), .strict = true};

/* The names in `resources` that are not settings. */
static enum err declared_read(const struct json *given, struct arena *arena,
                              struct config_declared *ret_declared, struct problem *why)
{
    struct config_declared declared = {.gpus = false};
    const struct json *key = json_first(given), *root;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    size_t named = 0;
    enum err err = ERR_OK;

    if (json_type(given) != JSON_OBJ)
        return ERR_OK;
    jsonw_obj(&w);
    for (uint32_t i = 0; i < given->count; i++, key = json_next(key + 1)) {
        struct str name = json_str(key, arena);
        int64_t number;

        if (schema_find(resource_fields, COUNT_OF(resource_fields), name))
            continue;
        named++;
        declared.gpus |= str_is(name, "gpus");
        jsonw_key_str(&w, name);
        jsonw_raw(&w, str_is(name, "gpus") && json_int(key + 1, &number) && number == 0
                          ? STR("[]")
                          : json_raw(key + 1));
    }
    jsonw_end_obj(&w);
    if (named > 0) {
        declared.text = arena_str(arena, buf_view(&text));
        err = json_parse(declared.text, arena, &root, why);
        assert(!err);
        err = resources_read(root, arena, &declared.resources, why);
    }
    buf_free(&text);
    if (err) {
        why->err = ERR_BAD_CONFIG;
        return ERR_BAD_CONFIG;
    }
    *ret_declared = declared;
    return ERR_OK;
}

/* The table first, then the executors, whose names the user chose. Errors of both name the line. */
static enum err read_yaml(struct config_source *source, const char *path, struct problem *why)
{
    struct schema_lines lines;
    struct str text, json;
    enum err err = file_read(path, YAML_BYTES_MAX, &source->arena, &text, why);

    if (err) {
        why->err = ERR_BAD_CONFIG;
        return ERR_BAD_CONFIG;
    }
    err = conf_yaml(&source->conf, text, why);
    if (!err)
        err = yaml_read(text, &source->arena, &json, &lines.lines, why);
    if (!err)
        err = json_parse(json, &source->arena, &lines.root, why);
    if (!err)
        err = executors_read(json_get(lines.root, "executors"), &lines, &source->arena,
                             &source->config.executors, &source->config.executor_count, why);
    if (!err)
        err = declared_read(json_get(lines.root, "resources"), &source->arena,
                            &source->config.declared, why);
    if (!err)
        err =
            secret_rules_read(json_get(lines.root, "secrets"), &lines, &source->arena,
                              &source->config.secret_rules, &source->config.secret_rule_count, why);
    return err;
}

static bool is_pair_list(const struct json *list)
{
    const struct json *pair;

    if (json_type(list) != JSON_ARR)
        return json_is_null(list) || json_str_is(list, "any");
    for (pair = json_items(list); pair; pair = json_after(list, pair))
        if (json_type(pair) != JSON_ARR || pair->count != 2 ||
            json_type(json_first(pair)) != JSON_STR ||
            json_type(json_next(json_first(pair))) != JSON_STR)
            return false;
    return true;
}

static bool is_map(const struct json *obj, bool of_bools)
{
    const struct json *key;

    if (json_type(obj) != JSON_OBJ)
        return json_is_null(obj);
    for (key = json_keys(obj); key; key = json_after(obj, key)) {
        bool value;

        if (of_bools ? !json_bool(key + 1, &value) : json_type(key + 1) != JSON_STR)
            return false;
    }
    return true;
}

static bool is_command(const struct json *command)
{
    struct arena arena = {0};
    struct strs words;
    bool ok = json_is_null(command) || argv_command(command, &arena, &words);

    arena_free(&arena);
    return ok;
}

static enum err check(const struct config *config, struct problem *why)
{
    if (!is_pair_list(config->nmt_pairs))
        return problem_set(why, ERR_BAD_CONFIG, "nmt_pairs",
                           "nmt_pairs must be any, or a list of pairs like [en, zh].");
    if (!is_map(config->capability_by_type, true))
        return problem_set(why, ERR_BAD_CONFIG, "capability_by_type",
                           "capability_by_type must hold true or false for each name.");
    if (config->restart_max_ms < config->restart_min_ms)
        return problem_set(why, ERR_BAD_CONFIG, "restart_max_ms",
                           "restart_max_ms must not be less than restart_min_ms.");
    if (config->port_min && config->port_max < config->port_min)
        return problem_set(why, ERR_BAD_CONFIG, "port_max",
                           "port_max must not be less than port_min.");
    if (!is_command(config->install_command))
        return problem_set(why, ERR_BAD_CONFIG, "install_command",
                           "install_command must be a text for the shell or a list of texts.");
    if (!is_command(config->run_command))
        return problem_set(why, ERR_BAD_CONFIG, "run_command",
                           "run_command must be a text for the shell or a list of texts.");
    if (!is_map(config->labels, false))
        return problem_set(why, ERR_BAD_CONFIG, "labels", "labels must hold a text for each name.");
    for (size_t i = 0; i < config->allowed_types.count; i++)
        if (!str_is(config->allowed_types.at[i], "*") &&
            !str_is_id(config->allowed_types.at[i], CONFIG_TYPE_MAX))
            return problem_set(why, ERR_BAD_CONFIG, "allowed_types",
                               "allowed_types must hold task types or \"*\", not \"" STR_FMT "\".",
                               STR_ARG(config->allowed_types.at[i]));
    return ERR_OK;
}

enum err config_load(struct config_source *source, int argc, char **argv, struct problem *why)
{
    struct config *config = &source->config;
    const char *path = conf_path(argc, argv);
    enum err err;

    *source = (struct config_source){0};
    err = conf_init(&source->conf, &config_schema, &source->config, &source->arena);
    if (!err && path)
        err = read_yaml(source, path, why);
    if (!err) {
        config_unit_env(config);
        err = conf_env(&source->conf, environ, why);
    }
    if (!err)
        err = conf_flags(&source->conf, argc, argv, why);
    if (!err && !config->secrets_dir.at && getenv("CREDENTIALS_DIRECTORY"))
        config->secrets_dir =
            arena_str(&source->arena, str_of(getenv("CREDENTIALS_DIRECTORY"))); /* set by systemd */
    if (!err)
        err = check(config, why);
    if (!err)
        config->claim_policy = claim_policy_at((size_t)config->claim_policy_index);
    if (!err)
        err = config_read_urls(source, why);
    if (!err)
        err = config_read_token(source, why);
    return err;
}

enum err config_load_file(struct config_source *source, const char *path, struct problem *why)
{
    enum err err;

    *source = (struct config_source){0};
    err = conf_init(&source->conf, &config_schema, &source->config, &source->arena);
    if (!err && access(path, F_OK) == 0)
        err = read_yaml(source, path, why);
    return err;
}

void config_done(struct config_source *source)
{
    arena_free(&source->arena);
}

void config_help(struct buf *out)
{
    conf_help(&config_schema, out);
}

const struct executor *config_executor(const struct config *config, struct str type)
{
    const struct executor *other = NULL;

    for (size_t i = 0; i < config->executor_count; i++) {
        if (str_eq(config->executors[i].type, type))
            return &config->executors[i];
        if (str_is(config->executors[i].type, "*"))
            other = &config->executors[i];
    }
    return other;
}

bool config_allows(const struct config *config, struct str type)
{
    const struct strs *allowed = &config->allowed_types;

    return str_in(STR("*"), allowed->at, allowed->count) ||
           str_in(type, allowed->at, allowed->count);
}
