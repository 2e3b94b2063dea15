/* The agent's settings table, and reading it: where the server is and how to be let in, how
 * deployments are claimed, and the rows of the table of executors, each read and checked like any
 * other part of the file. */
#include "agent/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/identity.h"
#include "agent/job_user.h"
#include "agent/secret.h"
#include "base/file.h"
#include "base/schema.h"
#include "base/url.h"
#include "base/yaml.h"
#include "model/argv.h"
#include "model/claim.h"

/* --- how deployments are claimed --- */

enum { INTERVAL_MS_MIN = 50, INTERVAL_MS_MAX = 3600 * 1000 };

static struct str env(const char *name)
{
    return str_of(getenv(name));
}

/* The NODE_UNIT_ variables, between the file and ours. */
static void config_unit_env(struct config *config)
{
    struct claim_env given = {.policy = env("NODE_UNIT_CLAIM_POLICY"),
                              .interval_ms = env("NODE_UNIT_SCHEDULER_INTERVAL_MS"),
                              .cpu_weight = env("NODE_UNIT_CPU_WEIGHT"),
                              .memory_weight = env("NODE_UNIT_MEMORY_WEIGHT")};
    struct claim_config read;

    claim_config_read(&given, &read);
    if (given.policy.len)
        config->claim_policy_name = str_of(read.policy->name);
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

/* The first line of the file, or the environment: never a flag, which everybody can see in ps. */
static enum err config_read_token(struct config_source *source, struct problem *why)
{
    struct config *config = &source->config;
    char *env = getenv("BERTH_TOKEN");

    if (env && *env && !config->token_file.len)
        config->token = arena_str(&source->arena, str_of(env));
    if (env) {
        explicit_bzero(env, strlen(env)); /* or every job could read it in /proc */
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

/* http and https mean ws and wss: people copy the address from their browser. */
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
    {.name = "command",
     .type = FIELD_STR,
     .offset = EXECUTOR_AT(command),
     .min = 1,
     .max = 4096,
     .flags = FIELD_REQUIRED,
     .help = "program to start"},
    {.name = "args",
     .type = FIELD_JSON,
     .offset = EXECUTOR_AT(args_given),
     .help = "its arguments"},
    {.name = "env", .type = FIELD_JSON, .offset = EXECUTOR_AT(env_given), .help = "{NAME: value}"},
    {.name = "secrets",
     .type = FIELD_JSON,
     .offset = EXECUTOR_AT(secrets_given),
     .help = "[NAME], or {VARIABLE: NAME}"},
    {.name = "cwd", .type = FIELD_STR, .offset = EXECUTOR_AT(cwd), .max = 4096, .help = "absolute"},
    {.name = "user",
     .type = FIELD_ID,
     .offset = EXECUTOR_AT(user),
     .max = 64,
     .help = "to run as; default: job_user"},
    {.name = "timeout_ms",
     .type = FIELD_MS,
     .offset = EXECUTOR_AT(timeout_ms),
     .min = 0,
     .max = 30 * DAY_MS,
     .preset = "0",
     .help = "longest run; 0 = the job's own only"},
    {.name = "stop_grace_ms",
     .type = FIELD_MS,
     .offset = EXECUTOR_AT(stop_grace_ms),
     .min = 0,
     .max = DAY_MS,
     .preset = "5000",
     .help = "between TERM and KILL"},
    {.name = "memory_mb_max",
     .type = FIELD_INT,
     .offset = EXECUTOR_AT(memory_mb_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .help = "0 = no limit"},
    {.name = "pids_max",
     .type = FIELD_INT,
     .offset = EXECUTOR_AT(pids_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .help = "0 = no limit"},
    {.name = "disk_mb_max",
     .type = FIELD_INT,
     .offset = EXECUTOR_AT(disk_mb_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .help = "0 = job_disk_mb_max"},
};

static const struct schema executor_schema = {.what = "an executor",
                                              .fields = executor_fields,
                                              .count = COUNT_OF(executor_fields),
                                              .strict = true};

/* "Line 7: " in front, as the table's own messages have. */
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

/* `given` is a token of lines->root; NULL or null: none. All of it lives in the arena. */
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
};

static const struct field fields[] = {
    {.name = "server",
     .type = FIELD_STR,
     .offset = AT(server),
     .min = 1,
     .max = 4096,
     .preset = "http://127.0.0.1:7420",
     .help = "URL of the server; several with commas: the next one when one is away"},
    {.name = "node_id",
     .type = FIELD_ID,
     .offset = AT(node_id),
     .max = 128,
     .help = "who this is; default: as last time, at first the host's name"},
    {.name = "data_dir",
     .type = FIELD_STR,
     .offset = AT(data_dir),
     .min = 1,
     .max = 2048,
     .preset = "./berth-agent",
     .help = "directory of runs, results to be sent, and the identity"},
    {.name = "spawner",
     .type = FIELD_STR,
     .offset = AT(spawner),
     .max = 107,
     .help = "socket of the spawner that starts runs; empty: the agent has its own"},
    {.name = "token_file",
     .type = FIELD_STR,
     .offset = AT(token_file),
     .flags = FIELD_LIVE,
     .help = "file with the token for the server (or BERTH_TOKEN)"},
    {.name = "ca_file",
     .type = FIELD_STR,
     .offset = AT(ca_file),
     .help = "certificates to trust, for https; default: the system's"},
    {.name = "tls_cert",
     .type = FIELD_STR,
     .offset = AT(tls_cert),
     .help =
         "certificate to show to a server that asks for one (PEM); its common name is the node"},
    {.name = "tls_key", .type = FIELD_STR, .offset = AT(tls_key), .help = "its key file"},
    {.name = "name",
     .type = FIELD_STR,
     .offset = AT(name),
     .max = 128,
     .flags = FIELD_LIVE,
     .help = "for people"},
    {.name = "role",
     .type = FIELD_STR,
     .offset = AT(role),
     .max = 128,
     .flags = FIELD_LIVE,
     .help = "for people"},

    {.name = "priority",
     .type = FIELD_INT,
     .offset = AT(priority),
     .min = 0,
     .max = 1000,
     .preset = "off",
     .flags = FIELD_NULLABLE | FIELD_LIVE,
     .help = "a lower one is asked first, where no route says otherwise"},

    {.name = "semantic_langs",
     .type = FIELD_STRS,
     .offset = AT(semantic_langs),
     .flags = FIELD_LIVE,
     .help = "languages for which semantic repair is there"},
    {.name = "nmt_pairs",
     .type = FIELD_JSON,
     .offset = AT(nmt_pairs),
     .flags = FIELD_NO_FLAG | FIELD_LIVE,
     .help = "[[\"en\",\"zh\"], ...] or any"},
    {.name = "tts_langs",
     .type = FIELD_STRS,
     .offset = AT(tts_langs),
     .flags = FIELD_LIVE,
     .help = "languages that can be spoken"},
    {.name = "capability_by_type",
     .type = FIELD_JSON,
     .offset = AT(capability_by_type),
     .flags = FIELD_NO_FLAG | FIELD_LIVE,
     .help = "{asr, nmt, tts, tone, semantic}: true or false"},
    {.name = "labels",
     .type = FIELD_JSON,
     .offset = AT(labels),
     .flags = FIELD_NO_FLAG | FIELD_LIVE,
     .help = "{zone: eu}: what `requires` of a task selects by"},
    {.name = "allowed_types",
     .alias = "allowedTypes",
     .type = FIELD_STRS,
     .offset = AT(allowed_types),
     .preset = "*",
     .flags = FIELD_LIVE,
     .help = "task types this machine takes"},
    {.name = "max_concurrent_jobs",
     .type = FIELD_INT,
     .offset = AT(max_concurrent_jobs),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "16",
     .flags = FIELD_LIVE,
     .help = "jobs at once, whatever the machine could carry"},
    {.name = "allow_commands",
     .type = FIELD_BOOL,
     .offset = AT(allow_commands),
     .preset = "false",
     .flags = FIELD_LIVE,
     .help = "run commands that come in the job itself"},
    {.name = "allow_deployments",
     .type = FIELD_BOOL,
     .offset = AT(allow_deployments),
     .preset = "false",
     .flags = FIELD_LIVE,
     .help = "claim deployments and run daemons, whose commands come with them too"},
    {.name = "job_user",
     .type = FIELD_ID,
     .offset = AT(job_user),
     .max = JOB_USER_BASE_MAX,
     .flags = FIELD_LIVE,
     .help = "user work runs as; default: berth-job, else nobody, where the agent can choose"},
    {.name = "allow_root",
     .type = FIELD_BOOL,
     .offset = AT(allow_root),
     .preset = "false",
     .flags = FIELD_LIVE,
     .help = "work may run as root, if job_user or an executor's user says so"},
    {.name = "syscall_filter",
     .type = FIELD_BOOL,
     .offset = AT(syscall_filter),
     .preset = "true",
     .flags = FIELD_LIVE,
     .help = "work is refused system calls it should not need, see docs/security.md"},
    {.name = "private_tmp",
     .type = FIELD_ENUM,
     .offset = AT(private_tmp),
     .names = private_tmps,
     .preset = "auto",
     .flags = FIELD_LIVE,
     .help = "auto: a run has its own /tmp, /var/tmp, /dev/shm and IPC where possible; off: the "
             "machine's"},
    {.name = "job_pids_max",
     .type = FIELD_INT,
     .offset = AT(job_pids_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "512",
     .flags = FIELD_LIVE,
     .help = "processes of a job without an executor, where limits can be kept; 0 = no limit"},
    {.name = "job_memory_mb_max",
     .type = FIELD_INT,
     .offset = AT(job_memory_mb_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .flags = FIELD_LIVE,
     .help = "its memory, swap included; 0 = run_memory_pct_max"},
    {.name = "run_memory_pct_max",
     .type = FIELD_INT,
     .offset = AT(run_memory_pct_max),
     .min = 10,
     .max = 100,
     .preset = "90",
     .flags = FIELD_LIVE,
     .help = "of the machine's memory for work without a limit of its own; 100 = all of it"},
    {.name = "job_disk_mb_max",
     .type = FIELD_INT,
     .offset = AT(job_disk_mb_max),
     .min = 0,
     .max = 1LL << 30,
     .preset = "0",
     .flags = FIELD_LIVE,
     .help =
         "what work may have in its directory; 0 = half of the disk that is free when it begins"},
    {.name = "executors",
     .type = FIELD_JSON,
     .offset = AT(executors_given),
     .flags = FIELD_NO_FLAG | FIELD_LIVE,
     .help = "{TYPE: {command, args, env, cwd, user, ...}}"},
    {.name = "secrets_dir",
     .type = FIELD_STR,
     .offset = AT(secrets_dir),
     .min = 1,
     .max = 2048,
     .flags = FIELD_LIVE,
     .help = "directory with a file for each secret; default: the credentials of the unit"},
    {.name = "secrets",
     .type = FIELD_JSON,
     .offset = AT(secrets_given),
     .flags = FIELD_NO_FLAG | FIELD_LIVE,
     .help = "{NAME: {types, commands, deployments}}: who may name it; executors always may"},

    {.name = "max_slots",
     .alias = "maxSlots",
     .type = FIELD_INT,
     .offset = AT(max_slots),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "off",
     .flags = FIELD_NULLABLE | FIELD_LIVE,
     .help = "hard cap; off = what the machine carries when idle"},
    {.name = "reserved_slots",
     .alias = "reservedSlots",
     .type = FIELD_INT,
     .offset = AT(reserved_slots),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "0",
     .flags = FIELD_LIVE,
     .help = "kept for interactive jobs"},
    {.name = "slots_fixed",
     .alias = "slotsFixed",
     .type = FIELD_INT,
     .offset = AT(slots_fixed),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "off",
     .flags = FIELD_NULLABLE | FIELD_LIVE,
     .help = "this many slots instead of the formula"},
    {.name = "safety_buffer",
     .alias = "safetyBuffer",
     .type = FIELD_INT,
     .offset = AT(safety_buffer),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "1",
     .flags = FIELD_LIVE,
     .help = "slots the formula keeps back"},
    {.name = "slots_min",
     .alias = "slotsMin",
     .type = FIELD_INT,
     .offset = AT(slots_min),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "1",
     .flags = FIELD_LIVE,
     .help = "jobs carried at level normal, even if the formula has no slot"},
    {.name = "resources",
     .type = FIELD_OBJ,
     .offset = AT(resources),
     .fields = resource_fields,
     .field_count = COUNT_OF(resource_fields),
     .flags = FIELD_LIVE,
     .help = "{cpu_per_process, mem_per_process_gb, load_warning_pct, ...}"},
    {.name = "protected_types",
     .alias = "protectedTypes",
     .type = FIELD_STRS,
     .offset = AT(protected_types),
     .preset = "f2f",
     .flags = FIELD_LIVE,
     .help = "never ended to save the machine; deployment and daemon too, * = nothing is"},
    {.name = "killable_types",
     .alias = "killableTypes",
     .type = FIELD_STRS,
     .offset = AT(killable_types),
     .flags = FIELD_LIVE,
     .help = "only these may be ended; default: all that are not protected"},
    {.name = "high_priority_min",
     .alias = "highPriorityMin",
     .type = FIELD_INT,
     .offset = AT(high_priority_min),
     .min = 0,
     .max = 9,
     .preset = "7",
     .flags = FIELD_LIVE,
     .help = "priority that still gets in at level warning"},
    {.name = "monitor_interval_ms",
     .alias = "monitorIntervalMs",
     .type = FIELD_MS,
     .offset = AT(monitor_interval_ms),
     .min = 100,
     .max = HOUR_MS,
     .preset = "1000",
     .help = "how often the machine is measured"},
    {.name = "host_root",
     .type = FIELD_STR,
     .offset = AT(host_root),
     .min = 1,
     .max = 2048,
     .preset = "/",
     .help = "where proc and sys are found"},
    {.name = "gpu_command",
     .type = FIELD_STR,
     .offset = AT(gpu_command),
     .max = 2048,
     .help = "prints the GPU's use in percent; default: nvidia-smi; empty = none"},

    {.name = "log_bytes_max",
     .type = FIELD_INT,
     .offset = AT(log_bytes_max),
     .min = 4096,
     .max = 1LL << 40,
     .preset = "4194304",
     .flags = FIELD_LIVE,
     .help = "output kept of a run; as much again from before"},
    {.name = "runs_kept",
     .type = FIELD_INT,
     .offset = AT(runs_kept),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "64",
     .flags = FIELD_LIVE,
     .help = "ended runs whose output can still be read"},
    {.name = "runs_kept_bytes",
     .type = FIELD_INT,
     .offset = AT(runs_kept_bytes),
     .min = 0,
     .max = 1LL << 50,
     .preset = "268435456",
     .flags = FIELD_LIVE,
     .help = "the most that their output takes together"},
    {.name = "runs_kept_ms",
     .type = FIELD_MS,
     .offset = AT(runs_kept_ms),
     .min = 0,
     .max = 366 * 24 * HOUR_MS,
     .preset = "604800000",
     .flags = FIELD_LIVE,
     .help = "and how long after their end"},
    {.name = "stop_runs",
     .type = FIELD_BOOL,
     .offset = AT(stop_runs),
     .preset = "false",
     .flags = FIELD_LIVE,
     .help = "what runs ends with the agent, instead of going on without it"},
    {.name = "sleeps_with_server",
     .type = FIELD_BOOL,
     .offset = AT(sleeps_with_server),
     .preset = "false",
     .help = "server, store and database are on this machine: while it sleeps no lease runs"},

    {.name = "deployments_max",
     .type = FIELD_INT,
     .offset = AT(deployments_max),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "256",
     .flags = FIELD_LIVE,
     .help = "deployments this machine claims at most; 0 = none"},
    {.name = "claim_policy",
     .type = FIELD_STR,
     .offset = AT(claim_policy_name),
     .preset = "deployment_count",
     .max = 64,
     .flags = FIELD_LIVE,
     .help = "who claims: deployment_count, resource_usage, resource_fraction, none"},
    {.name = "claim_interval_ms",
     .type = FIELD_MS,
     .offset = AT(claim_interval_ms),
     .min = 100,
     .max = HOUR_MS,
     .preset = "5000",
     .flags = FIELD_LIVE,
     .help = "between two looks for deployments to claim"},
    {.name = "claim_budget",
     .type = FIELD_INT,
     .offset = AT(claim_budget),
     .min = 0,
     .max = 1000,
     .preset = "0",
     .flags = FIELD_LIVE,
     .help = "deployments claimed in one look at most; 0 = this node's share of all there are"},
    {.name = "move_after_failures",
     .type = FIELD_INT,
     .offset = AT(move_after_failures),
     .min = 0,
     .max = 1000,
     .preset = "5",
     .flags = FIELD_LIVE,
     .help = "a deployment that failed here so often in a row goes to another node; 0 = never"},
    {.name = "cpu_weight",
     .type = FIELD_REAL,
     .offset = AT(claim_weights.cpu),
     .min = 0,
     .max = 1000000,
     .preset = "0.5",
     .flags = FIELD_LIVE,
     .help = "of CPU in the score of the policies by resource"},
    {.name = "memory_weight",
     .type = FIELD_REAL,
     .offset = AT(claim_weights.memory),
     .min = 0,
     .max = 1000000,
     .preset = "0.5",
     .flags = FIELD_LIVE,
     .help = "of memory, likewise"},
    {.name = "unknown_metric",
     .type = FIELD_ENUM,
     .offset = AT(unknown_metric),
     .names = unknown_metrics,
     .preset = "not_eligible",
     .flags = FIELD_LIVE,
     .help = "what a node whose usage is not known counts as; zero makes it the favourite"},
    {.name = "install_command",
     .type = FIELD_JSON,
     .offset = AT(install_command),
     .flags = FIELD_NO_FLAG | FIELD_LIVE,
     .help = "[npm, install, --prefix, \"{dir}\", \"{name}@{version}\"], or a text for the shell"},
    {.name = "run_command",
     .type = FIELD_JSON,
     .offset = AT(run_command),
     .flags = FIELD_NO_FLAG | FIELD_LIVE,
     .help = "[npx, \"{name}\"]: runs a package whose deployment has no command"},
    {.name = "install_timeout_ms",
     .type = FIELD_MS,
     .offset = AT(install_timeout_ms),
     .min = 1000,
     .max = 24 * HOUR_MS,
     .preset = "600000",
     .flags = FIELD_LIVE,
     .help = "longest installation of a package"},
    {.name = "packages_kept",
     .type = FIELD_INT,
     .offset = AT(packages_kept),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "2",
     .flags = FIELD_LIVE,
     .help = "installed packages that nothing here uses any more, for going back; others go"},
    {.name = "packages_unused_ms",
     .type = FIELD_MS,
     .offset = AT(packages_unused_ms),
     .min = 1000,
     .max = 366 * 24 * HOUR_MS,
     .preset = "3600000",
     .flags = FIELD_LIVE,
     .help = "and not before nothing has used them for so long"},
    {.name = "restart_min_ms",
     .type = FIELD_MS,
     .offset = AT(restart_min_ms),
     .min = 10,
     .max = HOUR_MS,
     .preset = "1000",
     .flags = FIELD_LIVE,
     .help = "pause after a deployment's first crash; each next one is twice that"},
    {.name = "restart_max_ms",
     .type = FIELD_MS,
     .offset = AT(restart_max_ms),
     .min = 10,
     .max = HOUR_MS,
     .preset = "60000",
     .flags = FIELD_LIVE,
     .help = "but not longer than this"},
    {.name = "restart_stable_ms",
     .type = FIELD_MS,
     .offset = AT(restart_stable_ms),
     .min = 0,
     .max = HOUR_MS,
     .preset = "30000",
     .flags = FIELD_LIVE,
     .help = "after so long without a crash it counts from the first again"},
    {.name = "heartbeat_ms",
     .type = FIELD_MS,
     .offset = AT(heartbeat_ms),
     .min = 100,
     .max = HOUR_MS,
     .preset = "5000",
     .help = "until the server says otherwise"},
    {.name = "log_level",
     .type = FIELD_ENUM,
     .offset = AT(log_level),
     .names = log_levels,
     .preset = "info",
     .flags = FIELD_LIVE,
     .help = "debug, info, warn, error"},
    {.name = "log_format",
     .type = FIELD_ENUM,
     .offset = AT(log_format),
     .names = log_formats,
     .preset = "logfmt",
     .flags = FIELD_LIVE,
     .help = "logfmt or json"},
    {.name = "log_file",
     .type = FIELD_STR,
     .offset = AT(log_file),
     .flags = FIELD_LIVE,
     .help = "file to log to, opened again at SIGHUP; empty = standard error"},
};

static const struct schema config_schema = {
    .what = "the configuration", .fields = fields, .count = COUNT_OF(fields), .strict = true};

/* The table first, then the executors, whose names are the user's own. Both know the lines. */
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
        err =
            secret_rules_read(json_get(lines.root, "secrets"), &lines, &source->arena,
                              &source->config.secret_rules, &source->config.secret_rule_count, why);
    return err;
}

static bool is_pair_list(const struct json *list)
{
    const struct json *pair = json_first(list);

    if (json_is_null(list) || json_str_is(list, "any"))
        return true;
    if (json_type(list) != JSON_ARR)
        return false;
    for (uint32_t i = 0; i < list->count; i++, pair = json_next(pair))
        if (json_type(pair) != JSON_ARR || pair->count != 2 ||
            json_type(json_first(pair)) != JSON_STR ||
            json_type(json_next(json_first(pair))) != JSON_STR)
            return false;
    return true;
}

static bool is_map(const struct json *obj, bool of_bools)
{
    const struct json *key = json_first(obj);

    if (json_is_null(obj))
        return true;
    if (json_type(obj) != JSON_OBJ)
        return false;
    for (uint32_t i = 0; i < obj->count; i++, key = json_next(key + 1)) {
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
            arena_str(&source->arena, str_of(getenv("CREDENTIALS_DIRECTORY"))); /* systemd's */
    if (!err)
        err = check(config, why);
    if (!err) {
        config->claim_policy = claim_policy_by_name(config->claim_policy_name);
        if (!config->claim_policy)
            err = problem_set(why, ERR_BAD_CONFIG, "claim_policy",
                              "claim_policy must be deployment_count, resource_usage, "
                              "resource_fraction or none, not \"" STR_FMT "\".",
                              STR_ARG(config->claim_policy_name));
    }
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
    for (size_t i = 0; i < config->allowed_types.count; i++)
        if (str_is(config->allowed_types.at[i], "*") || str_eq(config->allowed_types.at[i], type))
            return true;
    return false;
}
