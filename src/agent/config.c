/* The agent's settings table, and reading it. */
#include "agent/config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/executor.h"
#include "base/schema_lines.h"
#include "base/yaml.h"
#include "io/url.h"

#define AT(member)       offsetof(struct config, member)
#define RESOURCE(member) offsetof(struct config_resources, member)
#define SECOND_MS        1000
#define HOUR_MS          (3600LL * SECOND_MS)
#define CONNECT_PATH     "/v1/node/connect"

enum { TOKEN_BYTES_MAX = 4096 };

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const log_formats[] = {"logfmt", "json", NULL};

#define RESOURCE_ROW(member, seed, value, text)                                                    \
    {                                                                                              \
        .name = #member, .alias = (seed), .type = FIELD_REAL, .offset = RESOURCE(member),          \
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
     .help = "directory of runs, results to be told, and the identity"},
    {.name = "token_file",
     .type = FIELD_STR,
     .offset = AT(token_file),
     .help = "file with the token for the server (or BERTH_TOKEN)"},
    {.name = "ca_file",
     .type = FIELD_STR,
     .offset = AT(ca_file),
     .help = "certificates to trust, for https; default: the system's"},
    {.name = "name", .type = FIELD_STR, .offset = AT(name), .max = 128, .help = "for people"},
    {.name = "role", .type = FIELD_STR, .offset = AT(role), .max = 128, .help = "for people"},

    {.name = "priority",
     .type = FIELD_INT,
     .offset = AT(priority),
     .min = 0,
     .max = 1000,
     .preset = "off",
     .flags = FIELD_NULLABLE,
     .help = "a lower one is asked first, where no route says otherwise"},

    {.name = "semantic_langs",
     .type = FIELD_STRS,
     .offset = AT(semantic_langs),
     .help = "languages for which semantic repair is there"},
    {.name = "nmt_pairs",
     .type = FIELD_JSON,
     .offset = AT(nmt_pairs),
     .flags = FIELD_NO_FLAG,
     .help = "[[\"en\",\"zh\"], ...] or any"},
    {.name = "tts_langs",
     .type = FIELD_STRS,
     .offset = AT(tts_langs),
     .help = "languages that can be spoken"},
    {.name = "capability_by_type",
     .type = FIELD_JSON,
     .offset = AT(capability_by_type),
     .flags = FIELD_NO_FLAG,
     .help = "{asr, nmt, tts, tone, semantic}: true or false"},
    {.name = "labels",
     .type = FIELD_JSON,
     .offset = AT(labels),
     .flags = FIELD_NO_FLAG,
     .help = "{zone: eu}: what `requires` of a task selects by"},
    {.name = "allowed_types",
     .alias = "allowedTypes",
     .type = FIELD_STRS,
     .offset = AT(allowed_types),
     .preset = "*",
     .help = "task types this machine takes"},
    {.name = "max_concurrent_jobs",
     .type = FIELD_INT,
     .offset = AT(max_concurrent_jobs),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "16",
     .help = "jobs at once, whatever the machine could carry"},
    {.name = "allow_commands",
     .type = FIELD_BOOL,
     .offset = AT(allow_commands),
     .preset = "false",
     .help = "run commands that come in the job itself"},
    {.name = "executors",
     .type = FIELD_JSON,
     .offset = AT(executors_given),
     .flags = FIELD_NO_FLAG,
     .help = "{TYPE: {command, args, env, cwd, user, ...}}"},

    {.name = "max_slots",
     .alias = "maxSlots",
     .type = FIELD_INT,
     .offset = AT(max_slots),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "off",
     .flags = FIELD_NULLABLE,
     .help = "hard cap; off = what the machine carries when idle"},
    {.name = "reserved_slots",
     .alias = "reservedSlots",
     .type = FIELD_INT,
     .offset = AT(reserved_slots),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "0",
     .help = "kept for interactive jobs"},
    {.name = "slots_fixed",
     .alias = "slotsFixed",
     .type = FIELD_INT,
     .offset = AT(slots_fixed),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "off",
     .flags = FIELD_NULLABLE,
     .help = "this many slots instead of the formula"},
    {.name = "safety_buffer",
     .alias = "safetyBuffer",
     .type = FIELD_INT,
     .offset = AT(safety_buffer),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "1",
     .help = "slots the formula keeps back"},
    {.name = "resources",
     .type = FIELD_OBJ,
     .offset = AT(resources),
     .fields = resource_fields,
     .field_count = COUNT_OF(resource_fields),
     .help = "{cpu_per_process, mem_per_process_gb, load_warning_pct, ...}"},
    {.name = "killable_types",
     .alias = "killableTypes",
     .type = FIELD_STRS,
     .offset = AT(killable_types),
     .preset = "research,talk",
     .help = "types that may be ended when the machine is about to freeze"},
    {.name = "high_priority_min",
     .alias = "highPriorityMin",
     .type = FIELD_INT,
     .offset = AT(high_priority_min),
     .min = 0,
     .max = 9,
     .preset = "7",
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
     .help = "output kept of a run; as much again from before"},
    {.name = "runs_kept",
     .type = FIELD_INT,
     .offset = AT(runs_kept),
     .min = 0,
     .max = CONFIG_JOBS_MAX,
     .preset = "64",
     .help = "ended runs whose output can still be read"},
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
     .help = "debug, info, warn, error"},
    {.name = "log_format",
     .type = FIELD_ENUM,
     .offset = AT(log_format),
     .names = log_formats,
     .preset = "logfmt",
     .help = "logfmt or json"},
    {.name = "log_file",
     .type = FIELD_STR,
     .offset = AT(log_file),
     .help = "file to log to, opened again at SIGHUP; empty = standard error"},
};

static const struct schema config_schema = {
    .what = "the configuration", .fields = fields, .count = COUNT_OF(fields), .strict = true};

/* At most `max` bytes of a file, into the arena. */
static enum err read_file(const char *path, size_t max, struct arena *arena, struct str *ret_text,
                          struct problem *why)
{
    char *text = arena_raw(arena, max + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t got = 0;

    if (fd < 0)
        return problem_set(why, ERR_BAD_CONFIG, "", "Cannot open %s: %s.", path, strerror(errno));
    while (len <= max && (got = read(fd, text + len, max + 1 - len)) > 0)
        len += (size_t)got;
    close(fd);
    if (got < 0)
        return problem_set(why, ERR_BAD_CONFIG, "", "Cannot read %s: %s.", path, strerror(errno));
    *ret_text = (struct str){.at = text, .len = len};
    return ERR_OK;
}

/* The table first, then the executors, whose names are the user's own. Both know the lines. */
static enum err read_yaml(struct config_source *source, const char *path, struct problem *why)
{
    struct schema_lines lines;
    struct str text, json;
    enum err err = read_file(path, YAML_BYTES_MAX, &source->arena, &text, why);

    if (!err)
        err = conf_yaml(&source->conf, text, why);
    if (!err)
        err = yaml_read(text, &source->arena, &json, &lines.lines, why);
    if (!err)
        err = json_parse(json, &source->arena, &lines.root, why);
    if (!err)
        err = executors_read(json_get(lines.root, "executors"), &lines, &source->arena,
                             &source->config.executors, &source->config.executor_count, why);
    return err;
}

/* The first line of the file, or the environment: never a flag, which everybody can see in ps. */
static enum err read_token(struct config_source *source, struct problem *why)
{
    struct config *config = &source->config;
    char *env = getenv("BERTH_TOKEN");
    struct str text;

    if (env && *env && !config->token_file.len)
        config->token = arena_str(&source->arena, str_of(env));
    if (env) {
        explicit_bzero(env, strlen(env)); /* or every job could read it in /proc */
        unsetenv("BERTH_TOKEN");
    }
    if (config->token_file.len) {
        const char *path = arena_cstr(&source->arena, config->token_file);
        enum err err = read_file(path, TOKEN_BYTES_MAX, &source->arena, &text, why);

        if (err)
            return err;
        config->token = str_cut(&text, '\n');
        if (config->token.len && config->token.at[config->token.len - 1] == '\r')
            config->token.len--;
        if (!config->token.len)
            return problem_set(why, ERR_BAD_CONFIG, "token_file", "%s is empty.", path);
    }
    if (config->token.at && (!str_is_text(config->token) || config->token.len > TOKEN_BYTES_MAX))
        return problem_set(why, ERR_BAD_CONFIG, "token",
                           "The token must be one line of at most %d bytes.", TOKEN_BYTES_MAX);
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

static enum err read_urls(struct config_source *source, struct problem *why)
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

static enum err check(const struct config *config, struct problem *why)
{
    if (!is_pair_list(config->nmt_pairs))
        return problem_set(why, ERR_BAD_CONFIG, "nmt_pairs",
                           "nmt_pairs must be any, or a list of pairs like [en, zh].");
    if (!is_map(config->capability_by_type, true))
        return problem_set(why, ERR_BAD_CONFIG, "capability_by_type",
                           "capability_by_type must hold true or false for each name.");
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
    extern char **environ;
    const char *path = conf_path(argc, argv);
    enum err err;

    *source = (struct config_source){0};
    err = conf_init(&source->conf, &config_schema, &source->config, &source->arena);
    if (!err && path)
        err = read_yaml(source, path, why);
    if (!err)
        err = conf_env(&source->conf, environ, why);
    if (!err)
        err = conf_flags(&source->conf, argc, argv, why);
    if (!err)
        err = check(&source->config, why);
    if (!err)
        err = read_urls(source, why);
    if (!err)
        err = read_token(source, why);
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
