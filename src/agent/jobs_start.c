/* From the server's message to a run: which program, with which words, environment and limits. */
#include <assert.h>

#include "agent/executor.h"
#include "agent/jobs_private.h"
#include "agent/runfile.h"
#include "agent/secret.h"
#include "base/clock.h"
#include "model/argv.h"
#include "model/lease.h"
#include "model/namespace.h"
#include "model/trace.h"

#define AT(member) offsetof(struct jobs_order, member)

enum { TEXT_MAX = 4096, OWN_ENV = 13, PRIORITY_DEFAULT = 5 };

static const struct field fields[] = {
    {.name = "job_id",
     .type = FIELD_ID,
     .offset = AT(job_id),
     .max = OUTBOX_JOB_MAX,
     .flags = FIELD_REQUIRED},
    {.name = "attempt_id",
     .type = FIELD_INT,
     .offset = AT(attempt),
     .min = 1,
     .max = 1000000,
     .flags = FIELD_REQUIRED},
    {.name = "type",
     .type = FIELD_ID,
     .offset = AT(type),
     .max = CONFIG_TYPE_MAX,
     .flags = FIELD_REQUIRED},
    {.name = "namespace", .type = FIELD_ID, .offset = AT(namespace), .max = NAMESPACE_MAX},
    {.name = "title", .type = FIELD_STR, .offset = AT(title), .max = TEXT_MAX},
    {.name = "session_id", .type = FIELD_STR, .offset = AT(session_id), .max = TEXT_MAX},
    {.name = "src", .type = FIELD_STR, .offset = AT(src), .max = TEXT_MAX},
    {.name = "tgt", .type = FIELD_STR, .offset = AT(tgt), .max = TEXT_MAX},
    {.name = "audio_ref", .type = FIELD_STR, .offset = AT(audio_ref), .max = TEXT_MAX},
    {.name = "traceparent", .type = FIELD_STR, .offset = AT(traceparent), .max = TEXT_MAX},
    {.name = "priority", .type = FIELD_INT, .offset = AT(priority)},
    {.name = "timeout_ms", .type = FIELD_MS, .offset = AT(timeout_ms)},
    {.name = "interactive", .type = FIELD_BOOL, .offset = AT(interactive)},
    {.name = "payload", .type = FIELD_JSON, .offset = AT(payload)},
    {.name = "command", .type = FIELD_JSON, .offset = AT(command)},
    {.name = "options", .type = FIELD_JSON, .offset = AT(options)},
    {.name = "secrets", .type = FIELD_JSON, .offset = AT(secrets)},
};

static const struct schema order_schema = {
    .what = "the job", .fields = fields, .count = COUNT_OF(fields)};

enum err jobs_order_read(const struct json *body, struct arena *arena, struct jobs_order *ret_order,
                         struct problem *why)
{
    struct jobs_order order = {.priority = PRIORITY_DEFAULT};
    enum err err = schema_read(&order_schema, body, &order, arena, why);

    if (!err)
        *ret_order = order;
    return err;
}

static bool is_f2f(const struct jobs_order *order)
{
    return str_is(order->type, "f2f");
}

const char *jobs_order_unfit(const struct config *config, const struct jobs_order *order)
{
    /* Face-to-face jobs come by language, not by task type: their executor says yes or no. */
    if (!is_f2f(order) && !config_allows(config, order->type))
        return "allowed_types does not name this type";
    if (!json_is_null(order->command))
        return config->allow_commands ? NULL : "commands are not allowed here (allow_commands)";
    return config_executor(config, order->type) ? NULL : "no executor for this type";
}

/* --- words --- */

static enum err command_words(const struct json *command, struct arena *arena,
                              struct run_spec *spec, struct problem *why)
{
    struct strs words;

    if (!argv_command(command, arena, &words))
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command must be a text for the shell or a list of texts.");
    spec->argv = words.at;
    spec->argc = words.count;
    return ERR_OK;
}

static void executor_words(const struct executor *executor, struct arena *arena,
                           struct run_spec *spec)
{
    struct str *words = arena_array(arena, struct str, executor->args.count + 1);

    words[0] = executor->command;
    for (size_t i = 0; i < executor->args.count; i++)
        words[i + 1] = executor->args.at[i];
    spec->argv = words;
    spec->argc = executor->args.count + 1;
}

/* --- surroundings --- */

static void add_env(struct arena *arena, struct str *env, size_t *count, const char *name,
                    struct str value)
{
    if (value.at)
        env[(*count)++] = arena_fmt(arena, "%s=" STR_FMT, name, STR_ARG(value));
}

/* Ours come last: a later entry of the same name wins. */
static void surround(const struct agent_job *job, const struct jobs_order *order,
                     const struct executor *executor, struct run_spec *spec, struct arena *arena)
{
    size_t count = executor ? executor->env.count : 0;

    assert(job->key[0] && str_eq(job->type, order->type));
    struct str *env = arena_array(arena, struct str, count + OWN_ENV);

    for (size_t i = 0; i < count; i++)
        env[i] = executor->env.at[i];
    add_env(arena, env, &count, "BERTH_JOB_ID", str_of(job->job_id));
    add_env(arena, env, &count, "BERTH_ATTEMPT_ID", arena_fmt(arena, "%d", job->attempt));
    add_env(arena, env, &count, "BERTH_NODE_ID", job->jobs->node_id);
    add_env(arena, env, &count, "BERTH_TYPE", order->type);
    add_env(arena, env, &count, "BERTH_SESSION_ID", order->session_id);
    add_env(arena, env, &count, "BERTH_SRC", order->src);
    add_env(arena, env, &count, "BERTH_TGT", order->tgt);
    add_env(arena, env, &count, "BERTH_AUDIO_REF", order->audio_ref);
    add_env(arena, env, &count, "TRACEPARENT", order->traceparent);
    add_env(arena, env, &count, "BERTH_RESULT_FILE",
            arena_fmt(arena, "%s/%s/" RUNFILE_WORK "/" RUNFILE_RESULT_LEFT,
                      runs_dir(job->jobs->runs), job->key));
    assert(count <= (executor ? executor->env.count : 0) + OWN_ENV);
    spec->env = env;
    spec->env_count = count;
}

/* The executor's, and those that the job names itself, if this agent gives them to it. A command of
 * the job's own is not what the executor's were meant for. */
static enum err find_secrets(const struct jobs *jobs, const struct jobs_order *order,
                             const struct executor *executor, struct arena *arena,
                             struct run_spec *spec, struct problem *why)
{
    bool command = !json_is_null(order->command);
    struct str type = namespace_join(order->namespace.at ? order->namespace : NAMESPACE_DEFAULT,
                                     order->type, arena);
    struct strs named, own = executor ? executor->secrets : (struct strs){0};
    struct str *words;

    if (!argv_secrets(order->secrets, arena, &named))
        return problem_set(why, ERR_BAD_FIELD, "secrets", ARGV_SECRETS_RULE);
    words = arena_array(arena, struct str, own.count + named.count + 1);
    for (size_t i = 0; i < own.count; i++)
        if (!command || secret_for_job(jobs->config, secret_name(own.at[i]), type, true))
            words[spec->secret_count++] = own.at[i];
    for (size_t i = 0; i < named.count; i++) {
        struct str name = secret_name(named.at[i]);

        if (!secret_for_job(jobs->config, name, type, command))
            return problem_set(why, ERR_FORBIDDEN, "secrets",
                               "No rule of this agent gives the secret " STR_FMT
                               " to a job of type " STR_FMT "%s.",
                               STR_ARG(name), STR_ARG(type),
                               command ? " with a command of its own" : "");
        words[spec->secret_count++] = named.at[i];
    }
    spec->secrets = words;
    return ERR_OK;
}

/* The payload as JSON. A face-to-face job has none: what it is about is its input. */
static struct str input_of(const struct jobs_order *order, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    struct str text;

    if (!json_is_null(order->payload))
        return json_raw(order->payload);
    if (!is_f2f(order))
        return STR_NONE;
    jsonw_obj(&w);
    jsonw_kstr(&w, "session_id", order->session_id);
    jsonw_kstr(&w, "src", order->src);
    jsonw_kstr(&w, "tgt", order->tgt);
    jsonw_kstr(&w, "audio_ref", order->audio_ref);
    jsonw_kraw(&w, "options", order->options ? json_raw(order->options) : STR("{}"));
    jsonw_end_obj(&w);
    text = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return text;
}

/* The shorter of what the job and what the executor allows; 0 = no limit. */
static int64_t shorter(int64_t a, int64_t b)
{
    if (a <= 0 || b <= 0)
        return a > 0 ? a : b;
    return a < b ? a : b;
}

/* Nobody said what such a job needs. Where a limit cannot be kept it runs without: nobody relies on
 * it. */
static void limit_by_default(const struct jobs *jobs, struct run_spec *spec)
{
    struct run_limits_offered offered;

    runs_offered(jobs->runs, &offered);
    spec->pids_max = offered.pids ? jobs->config->job_pids_max : 0;
    spec->memory_bytes_max = offered.memory ? jobs->config->job_memory_mb_max << 20 : 0;
}

static void limit(const struct jobs_order *order, const struct jobs *jobs,
                  const struct executor *executor, struct run_spec *spec)
{
    const struct config *config = jobs->config;

    spec->timeout_ms = order->timeout_ms;
    spec->stop_grace_ms = EXECUTOR_STOP_GRACE_MS;
    spec->log_bytes_max = config->log_bytes_max;
    spec->alone = true; /* it need not trust other jobs, nor they it */
    if (!executor) {
        limit_by_default(jobs, spec);
        return;
    }
    spec->timeout_ms = shorter(order->timeout_ms, executor->timeout_ms);
    spec->stop_grace_ms = executor->stop_grace_ms;
    spec->memory_bytes_max = executor->memory_mb_max << 20;
    spec->pids_max = executor->pids_max;
    spec->disk_bytes_max = executor->disk_mb_max << 20;
    spec->cwd = executor->cwd;
    spec->user = executor->user;
}

static int64_t at_least_1(int64_t ms)
{
    return ms > 0 ? ms : 1; /* 0 would be none */
}

/* For the server its time began with the ACK and ends a grace behind the timeout. Of that grace a
 * third is for an answer to the ACK that came late; what is longer is taken off the timeout. */
static void fence_timeout(const struct agent_job *job, struct run_spec *spec)
{
    int64_t spare_ms = job->timeout_grace_ms / 3;
    int64_t late_ms = clock_lease_ms() - job->taken_ms - spare_ms;

    if (spec->timeout_ms > 0 && late_ms > 0)
        spec->timeout_ms = at_least_1(spec->timeout_ms - late_ms);
    spec->timeout_grace_ms = at_least_1(job->timeout_grace_ms - spare_ms);
}

/* A job that may be tried again ends by itself before its lease does, whatever became of the agent:
 * only then may another node begin it. Its lease began when the ACK was taken, so not before the
 * ACK was first sent. */
static void fence(const struct agent_job *job, struct run_spec *spec)
{
    if (job->lease_ms <= 0)
        return;
    spec->deadline_boot_ms = fence_stop_ms(job->taken_ms, job->lease_ms);
    spec->deadline_grace_ms = at_least_1(fence_grace_ms(job->lease_ms));
    if (job->timeout_grace_ms >= 0)
        fence_timeout(job, spec);
}

enum err jobs_start(struct agent_job *job, struct problem *why)
{
    struct jobs *jobs = job->jobs;
    struct run_spec spec = {.handler = &jobs_run_handler, .key = str_of(job->key)};
    const struct executor *executor;
    struct jobs_order order;
    struct buf meta = {0};
    enum err err = jobs_order_read(job->message, &job->order, &order, why);

    assert(!err && !job->run); /* it was read before */
    executor = config_executor(jobs->config, order.type);
    surround(job, &order, executor, &spec, &job->order);
    limit(&order, jobs, executor, &spec);
    fence(job, &spec);
    spec.input = input_of(&order, &job->order);
    if (!json_is_null(order.command))
        err = command_words(order.command, &job->order, &spec, why);
    else
        executor_words(executor, &job->order, &spec);
    if (!err)
        err = find_secrets(jobs, &order, executor, &job->order, &spec, why);
    if (err)
        return err;
    jobs_meta_write(job, &meta);
    spec.meta = buf_view(&meta);
    err = runs_start(jobs->runs, &spec, job, &job->run, why);
    buf_free(&meta);
    return err;
}

/* --- what is kept with the run --- */

void jobs_meta_write(const struct agent_job *job, struct buf *out)
{
    struct jsonw w = jsonw_to(out);

    jsonw_obj(&w);
    jsonw_kstr(&w, "job_id", str_of(job->job_id));
    jsonw_kint(&w, "attempt_id", job->attempt);
    jsonw_kstr(&w, "type", job->type);
    jsonw_kstr(&w, "title", job->title);
    jsonw_kstr(&w, "traceparent", job->traceparent.len ? job->traceparent : STR_NONE);
    jsonw_kint(&w, "priority", job->priority);
    if (job->command)
        jsonw_kbool(&w, "command", true);
    jsonw_kint(&w, "received_ms", job->received_ms);
    jsonw_end_obj(&w);
}

bool jobs_meta_read(struct str meta, struct agent_job *job)
{
    struct arena arena = {0};
    struct jobs_order order;
    const struct json *root;
    bool ok = meta.at && json_parse(meta, &arena, &root, NULL) == ERR_OK &&
              jobs_order_read(root, &arena, &order, NULL) == ERR_OK;

    if (ok) {
        str_copy(order.job_id, job->job_id, sizeof job->job_id);
        job->attempt = (int)order.attempt;
        job->type = arena_str(&job->arena, order.type);
        if (order.title.at)
            job->title = arena_str(&job->arena, order.title);
        if (order.traceparent.at)
            job->traceparent = arena_str(&job->arena, trace_parent(order.traceparent));
        job->priority = order.priority;
        job->command = !json_is_null(order.command);
        json_int(json_get(root, "received_ms"), &job->received_ms);
    }
    arena_free(&arena);
    return ok;
}
