/* The rules of deployments: which nodes may take one and in which order, and the fields of the spec
 * by table, plus checks a table cannot express. Owns no rows: the table of deployments is the
 * database's. */
#include "model/deploy.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/schema.h"
#include "base/url.h"
#include "model/argv.h"
#include "model/selector.h"

/* --- owners --- */

static const char *const type_names[DEPLOY_TYPE_COUNT] = {
    [DEPLOY_OTHER] = "other",
    [DEPLOY_DEPLOYMENT] = "deployment",
    [DEPLOY_DAEMON] = "daemon",
};

const char *deploy_type_name(enum deploy_type type)
{
    assert(type < DEPLOY_TYPE_COUNT);
    return type_names[type];
}

enum deploy_type deploy_type_by_name(struct str name)
{
    for (enum deploy_type type = DEPLOY_DEPLOYMENT; type < DEPLOY_TYPE_COUNT; type++)
        if (str_is(name, type_names[type]))
            return type;
    return DEPLOY_OTHER;
}

const char *deploy_mode_name(enum deploy_mode mode)
{
    return mode == DEPLOY_SEED ? "seed" : "hardened";
}

struct str deploy_name(struct str id)
{
    return str_cut(&id, '#');
}

int64_t deploy_index(struct str id)
{
    int64_t index = 0;

    str_cut(&id, '#');
    return str_int(id, &index) ? index : 0;
}

bool deploy_id_valid(struct str id)
{
    struct str name = deploy_name(id);
    int64_t index = deploy_index(id);
    char text[8];

    if (!str_is_name(name, DEPLOY_ID_MAX))
        return false;
    if (name.len == id.len)
        return true;
    /* Each index has exactly one spelling. */
    if (index < 1 || index >= DEPLOY_COUNT_MAX)
        return false;
    snprintf(text, sizeof text, "%d", (int)index);
    return id.len == name.len + 1 + strlen(text);
}

/* Disabled rows, daemons and rows of unknown type are never claimed. */
static bool claimable(const struct deploy_row *row)
{
    return row->enabled && row->type == DEPLOY_DEPLOYMENT;
}

void deploy_absent_owners(const struct deploy_row *rows, size_t count, const struct names *online,
                          struct arena *arena, struct names *ret_lost)
{
    names_init(ret_lost, count, arena);
    for (size_t i = 0; i < count; i++)
        if (claimable(&rows[i]) && rows[i].address.len &&
            names_find(online, rows[i].address) == NAMES_NONE)
            names_add(ret_lost, rows[i].address);
    assert(ret_lost->count <= count);
}

void deploy_counts(const struct deploy_row *rows, size_t count, const struct names *online,
                   int64_t *ret_counts)
{
    for (size_t i = 0; i < online->count; i++)
        ret_counts[i] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t place;

        if (!claimable(&rows[i]) || !rows[i].address.len)
            continue;
        place = names_find(online, rows[i].address);
        if (place != NAMES_NONE)
            ret_counts[place]++;
    }
}

static int by_age(const void *left, const void *right)
{
    const struct deploy_row *a = *(const struct deploy_row *const *)left;
    const struct deploy_row *b = *(const struct deploy_row *const *)right;
    int order = str_cmp(a->updated_at, b->updated_at);

    if (order == 0)
        order = str_cmp(a->created_at, b->created_at);
    return order != 0 ? order : str_cmp(a->id, b->id);
}

size_t deploy_candidates(const struct deploy_row *rows, size_t count, const struct names *lost,
                         enum deploy_mode mode, const struct deploy_row **ret_order)
{
    size_t picked = 0;

    for (size_t i = 0; mode == DEPLOY_HARDENED && i < count; i++)
        if (claimable(&rows[i]) && rows[i].address.len &&
            names_find(lost, rows[i].address) != NAMES_NONE)
            ret_order[picked++] = &rows[i];
    if (picked == 0) /* unowned rows come after those of lost nodes */
        for (size_t i = 0; i < count; i++)
            if (claimable(&rows[i]) && !rows[i].address.len)
                ret_order[picked++] = &rows[i];
    if (picked > 1)
        qsort(ret_order, picked, sizeof *ret_order, by_age);
    assert(picked <= count);
    return picked;
}

bool deploy_claim(struct deploy_row *row, const struct deploy_claim *claim)
{
    assert(claim->by.len > 0);
    if (!claimable(row) || !str_eq(row->address, claim->observed) ||
        row->generation != claim->generation)
        return false;
    if (claim->observed.len && !claim->owner_lost)
        return false;
    row->address = claim->by;
    row->generation++;
    return true;
}

bool deploy_release(struct deploy_row *row, const struct names *lost)
{
    if (!row->enabled || !row->address.len || names_find(lost, row->address) == NAMES_NONE)
        return false;
    row->address = STR("");
    row->generation++;
    return true;
}

/* --- specs --- */

enum {
    PACKAGE_MAX = 256,
    URL_MAX = 2048,
    WORDS_MAX = 256,           /* of a command with its arguments, and of the environment */
    WORDS_BYTES_MAX = 1 << 20, /* together: half of what Linux passes to a program */
    LIMIT_MAX = 1 << 30,
    DAY_MS = 24 * 3600 * 1000,
};

const char *const deploy_spec_types[] = {"deployment", "daemon", NULL};

/* A field inside deploy_spec whose JSON name differs from its member's. */
#define ROW(text, in, member, kind, ...)                                                           \
    {                                                                                              \
        .name = (text), .type = FIELD_##kind, .offset = offsetof(struct in, member), __VA_ARGS__   \
    }
#define COMMAND_SHAPE "string|[string]"

static const struct field health_fields[] = {
    ROW("command", deploy_health, command_given, JSON, .shape = COMMAND_SHAPE),
    FIELD_ROW(deploy_health, http, STR, .min = 1, .max = URL_MAX,
              .help = "a URL of the same machine, instead of command"),
    FIELD_ROW(deploy_health, interval_ms, MS, .min = 100, .max = DAY_MS, .preset = "10000"),
    FIELD_ROW(deploy_health, timeout_ms, MS, .min = 50, .max = DAY_MS, .preset = "5000"),
    FIELD_ROW(deploy_health, failures, INT, .min = 1, .max = 1000, .preset = "3"),
    FIELD_ROW(deploy_health, start_ms, MS, .max = DAY_MS, .preset = "0"),
};
const struct schema deploy_health_schema = {
    .what = "health", .fields = health_fields, .count = COUNT_OF(health_fields)};

static const struct field limit_fields[] = {
    FIELD_ROW(deploy_limits, memory_mb, INT, .min = 1, .max = LIMIT_MAX),
    FIELD_ROW(deploy_limits, cpu_percent, INT, .min = 1, .max = LIMIT_MAX),
    FIELD_ROW(deploy_limits, pids, INT, .min = 1, .max = LIMIT_MAX),
    FIELD_ROW(deploy_limits, disk_mb, INT, .min = 1, .max = LIMIT_MAX),
};
const struct schema deploy_limits_schema = {
    .what = "limits", .fields = limit_fields, .count = COUNT_OF(limit_fields)};

static const char *const policies[] = {
    [DEPLOY_ALWAYS] = "always",
    [DEPLOY_ON_FAILURE] = "on_failure",
    [DEPLOY_NEVER] = "never",
    NULL,
};

static const struct field restart_fields[] = {
    FIELD_ROW(deploy_restart, policy, ENUM, .names = policies, .preset = "always"),
    FIELD_ROW(deploy_restart, min_ms, MS, .min = 1, .max = DAY_MS, .help = "of the pauses"),
    FIELD_ROW(deploy_restart, max_ms, MS, .min = 1, .max = DAY_MS),
};
const struct schema deploy_restart_schema = {
    .what = "restart", .fields = restart_fields, .count = COUNT_OF(restart_fields)};

/* Fields the server adds; accepted so that a spec that was read can be sent back. */
#define ADDED(text) ROW(text, deploy_spec, ignored, JSON, .flags = FIELD_HIDDEN)

static const struct field fields[] = {
    FIELD_ROW(deploy_spec, id, NAME, .max = DEPLOY_ID_MAX),
    FIELD_ROW(deploy_spec, type, ENUM, .names = deploy_spec_types),
    FIELD_ROW(deploy_spec, enabled, BOOL),
    FIELD_ROW(deploy_spec, package_name, STR, .max = PACKAGE_MAX),
    FIELD_ROW(deploy_spec, package_version, STR, .max = PACKAGE_MAX),
    FIELD_ROW(deploy_spec, selector, STR, .max = SELECTOR_BYTES_MAX,
              .help = "a selector, what its node must be like: zone in (eu,us), !spot"),
    ROW("command", deploy_spec, command_given, JSON, .shape = COMMAND_SHAPE,
        .help = "a text for the shell (when there are no args), or a program and its arguments"),
    ROW("args", deploy_spec, args_given, JSON, .shape = "[string|number]"),
    ROW("env", deploy_spec, env_given, JSON, .shape = "{string|number|boolean}",
        .help = "a name is any text without ="),
    ROW("secrets", deploy_spec, secrets_given, JSON, .shape = "[string]|{string}",
        .help = "names of secrets of its node, or {VARIABLE: name}"),
    ROW("needs", deploy_spec, needs_given, JSON, .shape = "{number}",
        .help = "what each copy takes of its node's resources: {cpu, mem_mb, vram_mb, gpus, ...}"),
    FIELD_ROW(deploy_spec, health, OBJ, .fields = health_fields,
              .field_count = COUNT_OF(health_fields)),
    FIELD_ROW(deploy_spec, limits, OBJ, .fields = limit_fields,
              .field_count = COUNT_OF(limit_fields)),
    FIELD_ROW(deploy_spec, stop_grace_ms, MS, .max = DAY_MS, .preset = "10000"),
    FIELD_ROW(deploy_spec, restart, OBJ, .fields = restart_fields,
              .field_count = COUNT_OF(restart_fields)),
    FIELD_ROW(deploy_spec, count, INT, .min = 1, .max = DEPLOY_COUNT_MAX,
              .help = "copies; not said: as many as there are, 1 at first"),
    FIELD_ROW(deploy_spec, max_unavailable, INT, .min = 1, .max = DEPLOY_COUNT_MAX, .preset = "1",
              .help = "copies that an update may replace at once"),
    FIELD_ROW(deploy_spec, update_timeout_ms, MS, .min = 1000, .max = DAY_MS, .preset = "600000",
              .help = "a copy that is not well with a new version by then has failed"),
    ADDED("address"),
    ADDED("generation"),
    ADDED("version"),
    ADDED("created_at"),
    ADDED("updated_at"),
    ADDED("copies"),
    ADDED("failed_on"),
    ADDED("state"),
    ADDED("ended"),
    ADDED("copy_version"),
    ADDED("changed"),
    ADDED("ready"),
    ADDED("update"),
};

static const struct schema stored_schema = {
    .what = "a deployment", .fields = fields, .count = COUNT_OF(fields)};
const struct schema deploy_spec_schema = {
    .what = "a deployment", .fields = fields, .count = COUNT_OF(fields), .strict = true};

/* --- fields that were given, and those that were not --- */

static bool is_number(const struct field *field)
{
    return field->type == FIELD_INT || field->type == FIELD_MS;
}

static bool is_given(const struct field *field, const void *at)
{
    const void *value = (const char *)at + field->offset;

    if (is_number(field))
        return *(const int64_t *)value != FIELD_OFF;
    if (field->type == FIELD_ENUM)
        return *(const int *)value >= 0;
    if (field->type == FIELD_STR)
        return ((const struct str *)value)->at != NULL;
    assert(field->type == FIELD_JSON);
    return !json_is_null(*(const struct json *const *)value);
}

static void clear(const struct field *field, size_t count, void *at)
{
    for (; count > 0; count--, field++) {
        void *value = (char *)at + field->offset;

        if (field->type == FIELD_OBJ)
            clear(field->fields, field->field_count, value);
        else if (field->type == FIELD_ENUM)
            *(int *)value = -1;
        else if (is_number(field))
            *(int64_t *)value = FIELD_OFF;
    }
}

static void fill(const struct field *field, size_t count, void *at, struct arena *arena)
{
    for (; count > 0; count--, field++) {
        void *value = (char *)at + field->offset;

        if (field->type == FIELD_OBJ) {
            fill(field->fields, field->field_count, value, arena);
        } else if (field->preset && !is_given(field, at)) {
            if (!field_from_text(field, str_of(field->preset), at, arena))
                assert(!"the table is right");
        } else if (is_number(field) && !is_given(field, at)) {
            *(int64_t *)value = 0;
        }
    }
}

void deploy_spec_defaults(struct deploy_spec *spec, struct arena *arena)
{
    fill(fields, COUNT_OF(fields), spec, arena);
}

static bool any_given(const struct field *field, size_t count, const void *at)
{
    for (size_t i = 0; i < count; i++)
        if (is_given(&field[i], at))
            return true;
    return false;
}

static void write_given(const struct field *field, const void *at, struct jsonw *w)
{
    if (!is_given(field, at))
        return;
    jsonw_key(w, field->name);
    field_show(field, at, w);
}

/* The number of copies and how they are updated do not affect what a copy runs, so they may change
 * without a new version. */
static bool is_of_copies(const struct field *field)
{
    return field->offset == offsetof(struct deploy_spec, count) ||
           field->offset == offsetof(struct deploy_spec, max_unavailable) ||
           field->offset == offsetof(struct deploy_spec, update_timeout_ms);
}

/* The other fields have their own columns; these are the objects, the number and the secrets. */
void deploy_spec_write_options(const struct deploy_spec *spec, struct jsonw *w)
{
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const struct field *field = &fields[i];
        const void *obj = (const char *)spec + field->offset;

        if (is_number(field) && !is_of_copies(field))
            write_given(field, spec, w);
        if (field->type != FIELD_OBJ || !any_given(field->fields, field->field_count, obj))
            continue;
        jsonw_kobj(w, field->name);
        for (size_t j = 0; j < field->field_count; j++)
            write_given(&field->fields[j], obj, w);
        jsonw_end_obj(w);
    }
    if (spec->secrets.count > 0)
        jsonw_kraw(w, "secrets", json_raw(spec->secrets_given));
    if (!demand_is_plain(&spec->demand)) {
        jsonw_key(w, "needs");
        demand_write_needs(&spec->demand, w);
    }
}

const struct demand *deploy_demand(struct str needs, struct arena *arena)
{
    struct demand *demand = arena_new(arena, struct demand);
    const struct json *given;
    struct problem why;

    *demand = demand_plain;
    if (!needs.len || json_parse(needs, arena, &given, NULL) ||
        demand_read_needs(given, arena, demand, &why) || demand_is_plain(demand))
        return NULL;
    return demand;
}

bool deploy_spec_checked(const struct deploy_spec *spec)
{
    return spec->health.command.count > 0 || spec->health.http.at;
}

/* --- what to run --- */

/* A text alone is a shell command; with `args` it is a program, as in rows older than berth. A list
 * is always a program. */
static enum err read_command(struct deploy_spec *spec, struct arena *arena, struct problem *why)
{
    const struct json *given = spec->command_given;
    struct strs words, all = {0};

    if (!argv_list(spec->args_given, arena, &spec->args))
        return problem_set(why, ERR_BAD_FIELD, "args",
                           "args must be a list of texts of at most %d bytes each.",
                           ARGV_BYTES_EACH);
    if (json_is_null(given) || json_str_is(given, "")) {
        if (spec->package_name.len > 0)
            return ERR_OK; /* the node knows how to run a package */
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command is required and must not be empty (or package_name, for a "
                           "package that brings its own).");
    }
    if (!argv_command(given, arena, &words))
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command must be a text, or a list of texts whose first is not empty; "
                           "of at most %d bytes each.",
                           ARGV_BYTES_EACH);
    spec->shell = json_type(given) == JSON_STR && spec->args.count == 0;
    if (json_type(given) == JSON_STR && !spec->shell)
        words = (struct strs){.at = &words.at[2], .count = 1}; /* the text without its shell */
    all.at = arena_array(arena, struct str, words.count + spec->args.count + 1);
    for (size_t i = 0; i < words.count; i++)
        all.at[all.count++] = words.at[i];
    for (size_t i = 0; i < spec->args.count; i++)
        all.at[all.count++] = spec->args.at[i];
    spec->command = all;
    spec->args = (struct strs){0};
    return ERR_OK;
}

static size_t bytes_of(struct strs words)
{
    size_t bytes = 0;

    for (size_t i = 0; i < words.count; i++)
        bytes += words.at[i].len + 1;
    return bytes;
}

static enum err check_size(const struct deploy_spec *spec, struct problem *why)
{
    if (spec->command.count > WORDS_MAX || spec->args.count > WORDS_MAX)
        return problem_set(why, ERR_BAD_FIELD, spec->command.count ? "command" : "args",
                           "A command has at most %d words.", WORDS_MAX);
    if (spec->env.count > WORDS_MAX)
        return problem_set(why, ERR_BAD_FIELD, "env", "env has at most %d names.", WORDS_MAX);
    if (bytes_of(spec->command) + bytes_of(spec->args) + bytes_of(spec->env) > WORDS_BYTES_MAX)
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command, args and env have at most %d bytes together.",
                           WORDS_BYTES_MAX);
    return ERR_OK;
}

/* --- what to ask --- */

struct str deploy_with_port(struct str text, int64_t port, struct arena *arena)
{
    const char *mark = memmem(text.at, text.len, DEPLOY_PORT_MARK, sizeof DEPLOY_PORT_MARK - 1);
    struct str rest;

    if (!mark)
        return text;
    rest.at = mark + sizeof DEPLOY_PORT_MARK - 1;
    rest.len = text.len - (size_t)(rest.at - text.at);
    return arena_fmt(arena, "%.*s%lld" STR_FMT, (int)(mark - text.at), text.at, (long long)port,
                     STR_ARG(rest));
}

static enum err read_health(struct deploy_spec *spec, struct arena *arena, struct problem *why)
{
    struct deploy_health *health = &spec->health;
    bool command = !json_is_null(health->command_given);
    struct url url;

    if (command && !argv_command(health->command_given, arena, &health->command))
        return problem_set(why, ERR_BAD_FIELD, "health.command",
                           "health.command must be a text for the shell, or a list of texts whose "
                           "first is not empty.");
    if (health->http.at &&
        (!url_parse(deploy_with_port(health->http, 1, arena), &url) || url.port_number < 0 ||
         !str_eq_nocase(url.scheme, STR("http")) || !url_is_loopback(&url)))
        return problem_set(why, ERR_BAD_FIELD, "health.http",
                           "health.http must be a URL of the machine it runs on, like "
                           "http://127.0.0.1:8080/healthz: each node asks its own copy.");
    if (command && health->http.at)
        return problem_set(why, ERR_BAD_FIELD, "health",
                           "health has either a command or an http URL.");
    if (!deploy_spec_checked(spec) && any_given(health_fields, COUNT_OF(health_fields), health))
        return problem_set(why, ERR_BAD_FIELD, "health", "health needs a command or an http URL.");
    return ERR_OK;
}

enum err deploy_spec_read(const struct json *body, bool strict, struct arena *arena,
                          struct deploy_spec *ret_spec, struct problem *why)
{
    struct deploy_spec spec = {.enabled = true};
    const struct deploy_restart *restart = &spec.restart;
    enum err err;

    clear(fields, COUNT_OF(fields), &spec);
    spec.type = 0;
    err = schema_read(strict ? &deploy_spec_schema : &stored_schema, body, &spec, arena, why);
    if (!err)
        err = read_command(&spec, arena, why);
    if (!err && !argv_env(spec.env_given, arena, &spec.env))
        err = problem_set(why, ERR_BAD_FIELD, "env",
                          "env must be an object of names without a \"=\" and texts, of at most %d "
                          "bytes each.",
                          ARGV_BYTES_EACH);
    if (!err && !argv_secrets(spec.secrets_given, arena, &spec.secrets))
        err = problem_set(why, ERR_BAD_FIELD, "secrets", ARGV_SECRETS_RULE);
    spec.demand = demand_plain;
    if (!err)
        err = demand_read_needs(spec.needs_given, arena, &spec.demand, why);
    if (!err && spec.demand.slots != 1)
        err = problem_set(why, ERR_BAD_FIELD, "needs", "A deployment takes no slots.");
    if (!err)
        err = check_size(&spec, why);
    if (!err)
        err = read_health(&spec, arena, why);
    if (!err)
        err = selector_check(spec.selector, SELECTOR_FULL, "selector", why);
    if (!err && restart->max_ms != FIELD_OFF && restart->min_ms != FIELD_OFF &&
        restart->max_ms < restart->min_ms)
        err = problem_set(why, ERR_BAD_FIELD, "restart.max_ms",
                          "restart.max_ms must not be less than restart.min_ms.");
    if (!err && spec.count > 1 && spec.type != 0)
        err = problem_set(why, ERR_BAD_FIELD, "count",
                          "count is of type deployment: a daemon runs once on every node.");
    if (!err)
        *ret_spec = spec;
    return err;
}
