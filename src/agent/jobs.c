/* The state machine of a job: from the server's message to a run (which program, with which
 * arguments, environment and limits), and from the end of the run to the report to the server. */
#include "agent/jobs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/capacity.h"
#include "agent/fd.h"
#include "agent/secret.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/argv.h"
#include "model/lease.h"
#include "model/namespace.h"
#include "model/trace.h"

/* What the server sent; strings point into the message. */
struct job_message {
    struct str job_id;
    int64_t attempt;
    struct str type, namespace, title, session_id, src, tgt, audio_ref, traceparent;
    int64_t priority;
    int64_t timeout_ms;
    bool interactive;
    const struct json *payload, *command, *options, *secrets, *needs, *gpus;
};

static const struct run_handler jobs_run_handler;

/* --- the table --- */

/* "ID.ATTEMPT"; false: not a valid key. */
static bool jobs_key(struct str job_id, int64_t attempt, char key[JOBS_KEY_MAX])
{
    int len = snprintf(key, JOBS_KEY_MAX, STR_FMT ".%lld", STR_ARG(job_id), (long long)attempt);

    return len > 0 && len < JOBS_KEY_MAX && str_is_id(str_of(key), RUN_KEY_MAX);
}

/* A new job that is not in the table yet. */
static struct agent_job *jobs_new_job(struct jobs *jobs, enum jobs_state state)
{
    struct agent_job *job = mem_new(struct agent_job);

    job->jobs = jobs;
    job->state = state;
    job->demand = demand_plain;
    return job;
}

/* Adds it to the table; the job's key must be set. */
static void jobs_enter(struct agent_job *job)
{
    struct jobs *jobs = job->jobs;

    assert(job->key[0] && !map_get(&jobs->by_key, str_of(job->key)));
    map_put(&jobs->by_key, str_of(job->key), job);
    TAILQ_INSERT_TAIL(&jobs->all, job, entry);
    jobs->count++;
    jobs->counts[job->state]++;
}

/* Only frees the memory of a job. */
static void jobs_delete(struct agent_job *job)
{
    arena_free(&job->message_arena);
    arena_free(&job->arena);
    free(job);
}

/* Removes it from the table and frees it; run and note must be gone. */
static void jobs_leave(struct agent_job *job)
{
    struct jobs *jobs = job->jobs;

    assert(!job->run && !job->note);
    map_del(&jobs->by_key, str_of(job->key));
    TAILQ_REMOVE(&jobs->all, job, entry);
    jobs->count--;
    jobs->counts[job->state]--;
    jobs->kept_bytes -= job->kept_bytes;
    jobs_delete(job);
}

static void jobs_set_state(struct agent_job *job, enum jobs_state state)
{
    struct jobs *jobs = job->jobs;

    assert(state < JOBS_STATES && jobs->counts[job->state] > 0);
    jobs->counts[job->state]--;
    job->state = state;
    jobs->counts[state]++;
    jobs->kept_bytes -= job->kept_bytes;
    job->kept_bytes = state == JOBS_KEPT && job->run
                          ? job->run->exit.output_bytes - job->run->exit.output_dropped
                          : 0;
    jobs->kept_bytes += job->kept_bytes;
    assert(jobs->kept_bytes >= 0);
}

void jobs_write_running(const struct jobs *jobs, struct jsonw *w)
{
    size_t left = CONFIG_JOBS_MAX;

    jsonw_arr(w);
    for (const struct agent_job *job = TAILQ_FIRST(&jobs->all); job && left > 0;
         job = TAILQ_NEXT(job, entry)) {
        if (job->dropped || (job->state != JOBS_RUNNING && job->state != JOBS_REPORTING))
            continue;
        jsonw_obj(w);
        jsonw_kstr(w, "job_id", str_of(job->job_id));
        jsonw_kint(w, "attempt_id", job->attempt);
        jsonw_end_obj(w);
        left--;
    }
    jsonw_end_arr(w);
}

size_t jobs_in_use(const struct jobs *jobs)
{
    return jobs->counts[JOBS_ACKING] + jobs->counts[JOBS_RUNNING];
}

struct agent_job *jobs_find(const struct jobs *jobs, struct str job_id, int attempt)
{
    struct agent_job *found = NULL;

    for (struct agent_job *job = TAILQ_FIRST(&jobs->all); job; job = TAILQ_NEXT(job, entry))
        if (str_is(job_id, job->job_id) &&
            (attempt ? job->attempt == attempt : !found || job->attempt > found->attempt))
            found = job;
    return found;
}

/* --- from the server's message to a run --- */

enum {
    TEXT_MAX = 4096,
    OWN_ENV = 13 + CAPACITY_ENV,
    PRIORITY_DEFAULT = 5,
    CPU_WEIGHT = 100, /* of one core, as for work without declared needs */
    CPU_WEIGHT_MAX = 10000,
};

#define ROW(member, kind, ...) FIELD_ROW(job_message, member, kind, __VA_ARGS__)
static const struct field fields[] = {
    ROW(job_id, ID, .max = OUTBOX_JOB_MAX, .flags = FIELD_REQUIRED),
    {.name = "attempt_id",
     .type = FIELD_INT,
     .offset = offsetof(struct job_message, attempt),
     .min = 1,
     .max = 1000000,
     .flags = FIELD_REQUIRED},
    ROW(type, ID, .max = CONFIG_TYPE_MAX, .flags = FIELD_REQUIRED),
    ROW(namespace, ID, .max = NAMESPACE_MAX),
    ROW(title, STR, .max = TEXT_MAX),
    ROW(session_id, STR, .max = TEXT_MAX),
    ROW(src, STR, .max = TEXT_MAX),
    ROW(tgt, STR, .max = TEXT_MAX),
    ROW(audio_ref, STR, .max = TEXT_MAX),
    ROW(traceparent, STR, .max = TEXT_MAX),
    ROW(priority, INT),
    ROW(timeout_ms, MS),
    ROW(interactive, BOOL),
    ROW(payload, JSON),
    ROW(command, JSON),
    ROW(options, JSON),
    ROW(secrets, JSON),
    ROW(needs, JSON),
    ROW(gpus, JSON),
};

static const struct schema message_schema = {
    .what = "the job", .fields = fields, .count = COUNT_OF(fields)};

static enum err job_message_read(const struct json *body, struct arena *arena,
                                 struct job_message *ret_message, struct problem *why)
{
    struct job_message message = {.priority = PRIORITY_DEFAULT};
    enum err err = schema_read(&message_schema, body, &message, arena, why);

    if (!err)
        *ret_message = message;
    return err;
}

/* What it needs beyond a slot. The server handles the keys. */
static enum err read_needs(const struct job_message *message, struct arena *arena,
                           struct demand *ret_demand, uint64_t *ret_gpus, struct problem *why)
{
    *ret_demand = demand_plain;
    if (!capacity_gpus_read(message->gpus, ret_gpus))
        return problem_set(why, ERR_BAD_FIELD, "gpus", "gpus must be a list of ids below %d.",
                           RESOURCES_GPU_IDS);
    return demand_read_needs(message->needs, arena, ret_demand, why);
}

/* Stored with the run so that a later agent recognizes the job. */
static void jobs_meta_write(const struct agent_job *job, struct buf *out)
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
    if (job->asks) {
        jsonw_key(&w, "needs");
        demand_write_needs(&job->demand, &w);
    }
    if (job->gpus) {
        jsonw_key(&w, "gpus");
        capacity_gpus_write(job->gpus, &w);
    }
    jsonw_kint(&w, "received_ms", job->received_ms);
    jsonw_end_obj(&w);
}

/* --- environment, secrets, input, limits --- */

static void add_env(struct arena *arena, struct str *env, size_t *count, const char *name,
                    struct str value)
{
    if (value.at)
        env[(*count)++] = arena_fmt(arena, "%s=" STR_FMT, name, STR_ARG(value));
}

/* Ours come last: the later of two entries with the same name wins. */
static void make_env(const struct agent_job *job, const struct job_message *message,
                     const struct executor *executor, struct run_spec *spec, struct arena *arena)
{
    size_t count = executor ? executor->env.count : 0;
    struct str *env = arena_array(arena, struct str, count + OWN_ENV);

    assert(job->key[0] && str_eq(job->type, message->type));
    for (size_t i = 0; i < count; i++)
        env[i] = executor->env.at[i];
    add_env(arena, env, &count, "BERTH_JOB_ID", str_of(job->job_id));
    add_env(arena, env, &count, "BERTH_ATTEMPT_ID", arena_fmt(arena, "%d", job->attempt));
    add_env(arena, env, &count, "BERTH_NODE_ID", job->jobs->node_id);
    add_env(arena, env, &count, "BERTH_TYPE", message->type);
    add_env(arena, env, &count, "BERTH_SESSION_ID", message->session_id);
    add_env(arena, env, &count, "BERTH_SRC", message->src);
    add_env(arena, env, &count, "BERTH_TGT", message->tgt);
    add_env(arena, env, &count, "BERTH_AUDIO_REF", message->audio_ref);
    add_env(arena, env, &count, "TRACEPARENT", message->traceparent);
    add_env(arena, env, &count, "BERTH_RESULT_FILE",
            arena_fmt(arena, "%s/%s/" RUNFILE_WORK "/" RUNFILE_RESULT_LEFT,
                      runs_dir(job->jobs->runs), job->key));
    /* A job that declared its needs, without a GPU, sees none; a job without declared needs sees
     * those of the machine. */
    if (job->asks && (job->gpus || job->jobs->handler->has_gpus(job->jobs)))
        count += capacity_env(job->gpus, arena, env + count);
    assert(count <= (executor ? executor->env.count : 0) + OWN_ENV);
    spec->env = env;
    spec->env_count = count;
}

/* The executor's, and those the job names itself, if this agent allows them. A job's own command
 * gets the executor's only if a rule allows that too. */
static enum err find_secrets(const struct jobs *jobs, const struct job_message *message,
                             const struct executor *executor, struct arena *arena,
                             struct run_spec *spec, struct problem *why)
{
    bool command = !json_is_null(message->command);
    struct str type = namespace_join(message->namespace.at ? message->namespace : NAMESPACE_DEFAULT,
                                     message->type, arena);
    struct strs named, own = executor ? executor->secrets : (struct strs){0};
    struct str *secrets;

    if (!argv_secrets(message->secrets, arena, &named))
        return problem_set(why, ERR_BAD_FIELD, "secrets", ARGV_SECRETS_RULE);
    secrets = arena_array(arena, struct str, own.count + named.count + 1);
    for (size_t i = 0; i < own.count; i++)
        if (!command || secret_for_job(jobs->config, secret_name(own.at[i]), type, true))
            secrets[spec->secret_count++] = own.at[i];
    for (size_t i = 0; i < named.count; i++) {
        struct str name = secret_name(named.at[i]);

        if (!secret_for_job(jobs->config, name, type, command))
            return problem_set(why, ERR_FORBIDDEN, "secrets",
                               "No rule of this agent gives the secret " STR_FMT
                               " to a job of type " STR_FMT "%s.",
                               STR_ARG(name), STR_ARG(type),
                               command ? " with a command of its own" : "");
        secrets[spec->secret_count++] = named.at[i];
    }
    spec->secrets = secrets;
    return ERR_OK;
}

/* The payload as JSON. A face-to-face job has none: its subject is its input. */
static struct str input_of(const struct job_message *message, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    struct str text;

    if (!json_is_null(message->payload))
        return json_raw(message->payload);
    if (!str_is(message->type, "f2f"))
        return STR_NONE;
    jsonw_obj(&w);
    jsonw_kstr(&w, "session_id", message->session_id);
    jsonw_kstr(&w, "src", message->src);
    jsonw_kstr(&w, "tgt", message->tgt);
    jsonw_kstr(&w, "audio_ref", message->audio_ref);
    jsonw_kraw(&w, "options", message->options ? json_raw(message->options) : STR("{}"));
    jsonw_end_obj(&w);
    text = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return text;
}

static void limit(const struct agent_job *job, const struct job_message *message,
                  const struct executor *executor, struct run_spec *spec)
{
    const struct config *config = job->jobs->config;
    int64_t cpu_milli = demand_need(&job->demand, STR("cpu"));
    int64_t memory_bytes = (int64_t)demand_need(&job->demand, STR("mem_mb")) << 20;
    int64_t weight = cpu_milli * CPU_WEIGHT / DEMAND_CPU_MILLI;
    const struct cgroup_place *offered = runs_offered(job->jobs->runs);

    spec->timeout_ms = message->timeout_ms;
    spec->stop_grace_ms = EXECUTOR_STOP_GRACE_MS;
    spec->log_bytes_max = config->log_bytes_max;
    spec->alone = true; /* jobs need not trust each other */
    if (executor) {
        spec->timeout_ms = lower_limit(message->timeout_ms, executor->timeout_ms);
        spec->stop_grace_ms = executor->stop_grace_ms;
        spec->memory_bytes_max = executor->memory_mb_max << 20;
        spec->pids_max = executor->pids_max;
        spec->disk_bytes_max = executor->disk_mb_max << 20;
        spec->cwd = executor->cwd;
        spec->user = executor->user;
    } else {
        /* A job without declared needs runs without the limits that cannot be enforced: nobody
         * relies on them. */
        spec->pids_max = offered->limits[CGROUP_PIDS] ? config->job_pids_max : 0;
        spec->memory_bytes_max =
            offered->limits[CGROUP_MEMORY] ? config->job_memory_mb_max << 20 : 0;
    }
    /* Its demand is also its limit, where that can be enforced. CPU by weight: it may use more
     * while others leave CPU idle, and gets its share when they do not. A quota would make it wait
     * on an idle machine, so that is only set with cpu_strict. */
    if (offered->limits[CGROUP_MEMORY])
        spec->memory_bytes_max = lower_limit(spec->memory_bytes_max, memory_bytes);
    if (cpu_milli > 0)
        spec->cpu_weight = weight < 1 ? 1 : weight < CPU_WEIGHT_MAX ? weight : CPU_WEIGHT_MAX;
    if (offered->limits[CGROUP_CPU] && config->cpu_strict)
        spec->cpu_permille_max = cpu_milli;
}

static int64_t at_least_1(int64_t ms)
{
    return ms > 0 ? ms : 1; /* 0 would mean none */
}

/* A job that may be tried again ends by itself before its lease does, whatever happens to the
 * agent: only then may another node start it. Its lease began when the server took the ACK, so not
 * before the ACK was first sent. */
static void fence(const struct agent_job *job, struct run_spec *spec)
{
    if (job->lease_ms <= 0)
        return;
    spec->deadline_boot_ms = fence_stop_ms(job->taken_ms, job->lease_ms);
    spec->deadline_grace_ms = at_least_1(fence_grace_ms(job->lease_ms));
    if (job->timeout_grace_ms >= 0) {
        /* For the server, its time starts with the ACK and ends a grace period after the timeout. A
         * third of that grace covers a late answer to the ACK; a longer delay is taken off the
         * timeout. */
        int64_t spare_ms = job->timeout_grace_ms / 3;
        int64_t late_ms = clock_lease_ms() - job->taken_ms - spare_ms;

        if (spec->timeout_ms > 0 && late_ms > 0)
            spec->timeout_ms = at_least_1(spec->timeout_ms - late_ms);
        spec->timeout_grace_ms = at_least_1(job->timeout_grace_ms - spare_ms);
    }
}

/* Starts job->run from job->message. */
static enum err jobs_start(struct agent_job *job, struct problem *why)
{
    struct jobs *jobs = job->jobs;
    struct arena *arena = &job->message_arena;
    struct run_spec spec = {.handler = &jobs_run_handler, .key = str_of(job->key)};
    const struct executor *executor;
    struct job_message message;
    struct strs argv = {0};
    struct buf meta = {0};
    enum err err = job_message_read(job->message, arena, &message, why);

    assert(!err && !job->run); /* it was parsed before */
    executor = config_executor(jobs->config, message.type);
    make_env(job, &message, executor, &spec, arena);
    limit(job, &message, executor, &spec);
    fence(job, &spec);
    spec.input = input_of(&message, arena);
    if (json_is_null(message.command)) {
        argv.at = arena_array(arena, struct str, executor->args.count + 1);
        argv.at[argv.count++] = executor->command;
        for (size_t i = 0; i < executor->args.count; i++)
            argv.at[argv.count++] = executor->args.at[i];
    } else if (!argv_command(message.command, arena, &argv)) {
        return problem_set(why, ERR_BAD_FIELD, "command",
                           "command must be a text for the shell or a list of texts.");
    }
    spec.argv = argv.at;
    spec.argc = argv.count;
    err = find_secrets(jobs, &message, executor, arena, &spec, why);
    if (err)
        return err;
    jobs_meta_write(job, &meta);
    spec.meta = buf_view(&meta);
    err = runs_start(jobs->runs, &spec, job, &job->run, why);
    buf_free(&meta);
    return err;
}

/* --- what is stored with the run --- */

/* Copies the strings: the message they point into is freed. */
static void take_message(const struct job_message *message, struct agent_job *job)
{
    struct arena arena = {0};
    struct buf text = {0};
    struct demand demand;
    bool parsed;

    str_copy(message->job_id, job->job_id, sizeof job->job_id);
    job->attempt = (int)message->attempt;
    job->type = arena_str(&job->arena, message->type);
    if (message->title.at)
        job->title = arena_str(&job->arena, message->title);
    if (message->traceparent.at)
        job->traceparent = arena_str(&job->arena, trace_parent(message->traceparent));
    job->priority = message->priority;
    job->command = !json_is_null(message->command);
    job->asks = !json_is_null(message->needs) &&
                read_needs(message, &arena, &demand, &job->gpus, NULL) == ERR_OK;
    demand_write(job->asks ? &demand : &demand_plain, &text);
    parsed = demand_parse(arena_str(&job->arena, buf_view(&text)), &job->demand);
    assert(parsed);
    buf_free(&text);
    arena_free(&arena);
}

static bool jobs_meta_read(struct str meta, struct agent_job *job)
{
    struct arena arena = {0};
    struct job_message message;
    const struct json *root;
    bool ok = meta.at && json_parse(meta, &arena, &root, NULL) == ERR_OK &&
              job_message_read(root, &arena, &message, NULL) == ERR_OK;

    if (ok) {
        json_int(json_get(root, "received_ms"), &job->received_ms);
        take_message(&message, job);
    }
    arena_free(&arena);
    return ok;
}

/* --- from the end of a run to its outcome --- */

/* A file in the run's directory: the outcome is settled, so the next agent need not report it
 * again. Written on an orderly exit; without it the server gets the report twice and answers that
 * it is a duplicate. */
#define SETTLED_FILE  "settled"
#define EVIDENCE_FILE "evidence"

enum {
    EVIDENCE_MAX = 4096,
    REASON_BYTES = 48,
    SPARE_DEPTH = 4, /* nesting levels the server may add around the output */
};

/* The FAIL reason of a run that ended; "" = DONE. */
static void jobs_reason(const struct run_exit *exit, char to[REASON_BYTES])
{
    const char *name;

    if (strcmp(exit->reason, "EXITED") == 0 && exit->exit_code == 0) {
        to[0] = 0;
    } else if (strcmp(exit->reason, "EXITED") == 0) {
        snprintf(to, REASON_BYTES, "EXIT_%d", exit->exit_code);
    } else if (strcmp(exit->reason, "SIGNALLED") == 0) {
        name = sigabbrev_np(exit->signal);
        if (name)
            snprintf(to, REASON_BYTES, "SIGNAL_%s", name);
        else
            snprintf(to, REASON_BYTES, "SIGNAL_%d", exit->signal);
    } else if (strcmp(exit->reason, "DEADLINE") == 0) {
        snprintf(to, REASON_BYTES, "LEASE_LOST");
    } else {
        snprintf(to, REASON_BYTES, "%s", exit->reason);
    }
}

/* Opens a file in the run's directory. */
static int open_in(const struct agent_job *job, const char *name, int flags)
{
    struct buf path = {0};
    int fd, error;

    buf_fmt(&path, "%s/%s/%s", runs_dir(job->jobs->runs), job->key, name);
    buf_char(&path, 0);
    fd = open(path.at, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    error = errno;
    buf_free(&path);
    errno = error;
    return fd;
}

static void jobs_evidence_find(struct agent_job *job)
{
    struct arena arena = {0};
    const struct json *root;
    char text[EVIDENCE_MAX];
    int fd = open_in(job, EVIDENCE_FILE, O_RDONLY | O_NONBLOCK);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : 0;
    struct str evidence = {.at = text, .len = got > 0 ? (size_t)got : 0};

    if (evidence.len > 0 && json_parse(evidence, &arena, &root, NULL) == ERR_OK)
        job->evidence = arena_str(&job->arena, evidence);
    fd_close(fd);
    arena_free(&arena);
}

/* The job may be another user's, and so is what it left there: do not follow links, do not read
 * pipes, do not read more than the limit. False: nothing to read. */
static bool read_output(const struct agent_job *job, struct buf *text, const char **ret_wrong)
{
    struct stat st;
    ssize_t got = 0;
    int fd = open_in(job, RUNFILE_RESULT, O_RDONLY | O_NONBLOCK);

    if (fd < 0) {
        if (errno != ENOENT)
            *ret_wrong = "the result file cannot be opened";
        return false;
    }
    buf_reserve(text, JOBS_OUTPUT_MAX + 1);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        *ret_wrong = "the result file is not a plain file";
    else
        while (text->len <= JOBS_OUTPUT_MAX &&
               (got = read(fd, text->at + text->len, JOBS_OUTPUT_MAX + 1 - text->len)) > 0)
            text->len += (size_t)got;
    close(fd);
    if (got < 0)
        *ret_wrong = "the result file cannot be read";
    else if (text->len > JOBS_OUTPUT_MAX)
        *ret_wrong = "the result file is larger than 48 KiB";
    return !*ret_wrong && text->len > 0;
}

/* Checks that it is JSON, also when nested a few levels deeper. */
static bool is_json(struct str text)
{
    struct arena arena = {0};
    struct buf deep = {0};
    const struct json *root;
    bool ok;

    for (int i = 0; i < SPARE_DEPTH; i++)
        buf_char(&deep, '[');
    buf_str(&deep, text);
    for (int i = 0; i < SPARE_DEPTH; i++)
        buf_char(&deep, ']');
    /* Parsed by itself first: "1],[2" is valid JSON only inside our brackets. */
    ok = json_parse(text, &arena, &root, NULL) == ERR_OK &&
         json_parse_body(buf_view(&deep), &arena, &root, NULL) == ERR_OK;
    buf_free(&deep);
    arena_free(&arena);
    return ok;
}

static void write_result(const struct agent_job *job, struct str tail, struct str output,
                         const char *wrong, struct buf *out)
{
    const struct run_exit *exit = &job->run->exit;
    struct jsonw w = jsonw_to(out);

    jsonw_obj(&w);
    if (exit->exit_code >= 0)
        jsonw_kint(&w, "exit_code", exit->exit_code);
    else
        jsonw_knull(&w, "exit_code");
    if (exit->signal >= 0)
        jsonw_kint(&w, "signal", exit->signal);
    jsonw_kint(&w, "user_ms", exit->user_ms);
    jsonw_kint(&w, "system_ms", exit->system_ms);
    jsonw_kint(&w, "rss_kb_max", exit->rss_kb_max);
    jsonw_kint(&w, "started_ms", exit->started_ms);
    jsonw_kint(&w, "ended_ms", exit->ended_ms);
    jsonw_kint(&w, "output_bytes", exit->output_bytes);
    if (exit->detail[0] && exit->exit_code != 0)
        jsonw_kstr(&w, "detail", str_of(exit->detail));
    jsonw_kstr(&w, "tail", tail.at ? tail : STR(""));
    if (output.at)
        jsonw_kraw(&w, "output", output);
    if (wrong)
        jsonw_kstr(&w, "output_error", str_of(wrong));
    if (job->evidence.at)
        jsonw_kraw(&w, "emergency", job->evidence);
    jsonw_end_obj(&w);
}

/* The result: figures, last output, and what the job left in its result file. */
static void jobs_result_write(const struct agent_job *job, struct buf *out)
{
    struct buf text = {0};
    struct str output = STR_NONE;
    const char *wrong = NULL;
    static const char space[] = {' ', '\t', '\r', '\n'};
    size_t start = out->len, tail_max = RUN_TAIL_BYTES;

    assert(job->run && job->run->state == RUN_ENDED);
    if (read_output(job, &text, &wrong)) {
        output = buf_view(&text);
        if (!is_json(output)) {
            wrong = "the result file does not hold valid JSON";
            output = STR_NONE;
        }
    }
    /* Strip surrounding white space; JSON may have some around a value. */
    while (output.len > 0 && memchr(space, output.at[0], sizeof space))
        output = str_from(output, 1);
    while (output.len > 0 && memchr(space, output.at[output.len - 1], sizeof space))
        output.len--;
    /* Control characters grow sixfold when escaped: then send a shorter tail. */
    do {
        struct str tail = job->run->exit.tail;

        if (tail.len > tail_max) {
            tail.at += tail.len - tail_max;
            tail.len = tail_max;
            while (tail.len > 0 && ((unsigned char)tail.at[0] & 0xc0) == 0x80)
                tail = str_from(tail, 1); /* start at the beginning of a character */
        }
        out->len = start;
        write_result(job, tail, output, wrong, out);
        tail_max /= 2;
    } while (out->len - start > JOBS_RESULT_MAX && tail_max > 0);
    buf_free(&text);
}

/* --- from state to state --- */

#define REASON_CANCELLED  "CANCELLED"
#define REASON_DROPPED    "DROPPED"
#define REASON_EMERGENCY  "EMERGENCY"
#define REASON_OVERLOADED "NODE_OVERLOADED"
#define REASON_TYPE       "TYPE_NOT_ALLOWED"
#define REASON_START      "START_FAILED"

enum {
    STOP_REASON_MAX = 31,
    FENCE_STEPS = 60, /* a fence moves by at least this fraction of its lease */
};

static void job_log(const struct agent_job *job, enum log_level level, const char *event,
                    const char *reason)
{
    log_event(level, event, KC("job_id", job->job_id), KS("node_id", job->jobs->node_id),
              KI("attempt_id", job->attempt), KS("type", job->type), KC("reason", reason),
              TRACE_KV(job->traceparent));
}

static void job_forget(struct agent_job *job)
{
    struct run *run = job->run;

    job->run = NULL;
    if (run)
        run_forget(run);
    jobs_leave(job);
}

/* The oldest go first. */
static void trim_kept(struct jobs *jobs)
{
    for (struct agent_job *job = TAILQ_FIRST(&jobs->all), *next; job; job = next) {
        next = TAILQ_NEXT(job, entry);
        if (jobs->counts[JOBS_KEPT] <= (size_t)jobs->config->runs_kept &&
            jobs->kept_bytes <= jobs->config->runs_kept_bytes)
            break;
        if (job->state == JOBS_KEPT)
            job_forget(job);
    }
}

void jobs_trim(struct jobs *jobs)
{
    int64_t before_ms = jobs->loop->wall_ms - jobs->config->runs_kept_ms;

    trim_kept(jobs); /* the settings may have changed */
    for (struct agent_job *job = TAILQ_FIRST(&jobs->all), *next; job; job = next) {
        next = TAILQ_NEXT(job, entry);
        if (job->state == JOBS_KEPT && job->run->exit.ended_ms < before_ms)
            job_forget(job);
    }
}

/* --- the end --- */

static void report_run(struct agent_job *job)
{
    struct buf result = {0};
    char reason[REASON_BYTES];
    bool done;

    assert(job->run && job->run->state == RUN_ENDED && !job->dropped);
    assert(job->state == JOBS_RUNNING || job->state == JOBS_KEPT);
    jobs_reason(&job->run->exit, reason);
    jobs_result_write(job, &result);
    done = !reason[0];
    jobs_set_state(job, JOBS_REPORTING);
    job_log(job, LOG_INFO, done ? "job.done" : "job.failed", done ? "ok" : reason);
    if (job->note)
        outbox_drop(job->note);
    job->note = outbox_put(job->jobs->outbox, done ? OUTBOX_DONE : OUTBOX_FAIL, str_of(job->job_id),
                           job->attempt, done ? STR_NONE : str_of(reason), buf_view(&result),
                           job->command && !job->run->unstarted, job);
    buf_free(&result);
}

/* The job ended before it could be started: this record is all there is of its run. */
static void report_unrun(struct agent_job *job, const char *reason, const char *detail)
{
    struct run_exit exit = {.exit_code = -1, .signal = -1, .ended_ms = job->jobs->loop->wall_ms};
    struct buf meta = {0};

    assert(!job->run);
    str_copy(str_of(reason), exit.reason, sizeof exit.reason);
    snprintf(exit.detail, sizeof exit.detail, "%s", detail);
    jobs_meta_write(job, &meta);
    job->run = runs_record(job->jobs->runs,
                           &(struct run_spec){.handler = &jobs_run_handler,
                                              .key = str_of(job->key),
                                              .meta = buf_view(&meta)},
                           job, &exit);
    buf_free(&meta);
    job->jobs->handler->slot_freed(job);
    report_run(job);
}

static void on_started(struct run *run)
{
    struct agent_job *job = run->user;

    assert(job->run == run && job->state == JOBS_RUNNING);
    job_log(job, LOG_INFO, "job.started", "acked");
    job->jobs->handler->started(job);
}

static void on_ended(struct run *run)
{
    struct agent_job *job = run->user;

    assert(job->run == run && job->state == JOBS_RUNNING);
    job->jobs->handler->slot_freed(job);
    if (job->dropped) {
        job_log(job, LOG_INFO, "job.dropped", run->exit.reason);
        if (job->note)
            outbox_drop(job->note);
        job->note = NULL;
        job_forget(job);
    } else {
        report_run(job);
    }
}

static const struct run_handler jobs_run_handler = {.started = on_started, .ended = on_ended};

/* The job is no longer ours. One with a fence may already be running elsewhere: no grace. */
static void drop(struct agent_job *job)
{
    assert(job->state == JOBS_RUNNING && job->run);
    job->dropped = job->stopping = true;
    run_stop(job->run, REASON_DROPPED, run_deadline_ms(job->run) ? 0 : -1);
}

/* --- the fence --- */

/* A granted renewal moves the fences. A fence that has passed stays: its shim is already ending the
 * run. Small moves are skipped, because each writes a file and heartbeats may come in bursts. */
void jobs_renewed(struct jobs *jobs, int64_t sent_boot_ms, const struct json *reply)
{
    struct lease_terms terms = {0};

    json_int(json_get(reply, "running_lease_ms"), &terms.task_ms);
    json_int(json_get(reply, "f2f_lease_ms"), &terms.f2f_ms);
    if (terms.task_ms <= 0 || terms.f2f_ms <= 0)
        return; /* the heartbeat was accepted, but the store could not be reached */
    for (struct agent_job *job = TAILQ_FIRST(&jobs->all); job; job = TAILQ_NEXT(job, entry)) {
        int64_t lease_ms, old_ms, new_ms;

        if (job->state != JOBS_RUNNING || job->dropped || sent_boot_ms < job->listed_ms)
            continue;
        lease_ms = lease_term_ms(&terms, job->type);
        old_ms = run_deadline_ms(job->run); /* 0: it has none */
        new_ms = fence_stop_ms(sent_boot_ms, lease_ms);
        if (clock_lease_ms() < old_ms && new_ms - old_ms >= lease_ms / FENCE_STEPS)
            run_deadline(job->run, new_ms);
    }
}

/* --- the beginning --- */

static void start(struct agent_job *job)
{
    struct problem why;
    enum err err;

    assert(job->state == JOBS_ACKING && job->message && !job->run);
    jobs_set_state(job, JOBS_RUNNING);
    job->listed_ms = clock_lease_ms();
    if (job->cancelled) {
        report_unrun(job, REASON_CANCELLED, "It was cancelled before it began.");
        return;
    }
    err = jobs_start(job, &why);
    job->message = NULL;
    arena_free(&job->message_arena);
    if (err)
        report_unrun(job, REASON_START, why.detail);
}

static void on_settled(struct outbox_note *note, enum outbox_verdict verdict)
{
    struct agent_job *job = note->user;
    struct jobs *jobs;

    if (!job) /* a refusal, or an outcome whose run is gone */
        return;
    assert(job->note == note);
    jobs = job->jobs;
    job->note = NULL;
    if (job->state == JOBS_ACKING && verdict != OUTBOX_REFUSED) {
        job->lease_ms = note->lease_ms;
        job->timeout_grace_ms = note->stop_grace_ms;
        start(job);
    } else if (job->state == JOBS_ACKING) {
        job_log(job, LOG_WARN, "job.dropped", "its ACK was refused");
        jobs->handler->slot_freed(job);
        jobs_leave(job);
    } else if (job->state == JOBS_REPORTING) {
        assert(job->run && job->run->state == RUN_ENDED);
        if (verdict == OUTBOX_REFUSED)
            job_log(job, LOG_WARN, "job.outcome_refused", "the attempt is over for the server");
        jobs_set_state(job, JOBS_KEPT);
        if (job->run->unstarted) /* there is no output to read */
            job_forget(job);
        trim_kept(jobs);
    } else if (job->state == JOBS_RUNNING && verdict == OUTBOX_REFUSED) {
        drop(job); /* it was sent to us twice, and is no longer ours */
    }
}

static bool on_send(struct outbox *outbox, struct str text)
{
    struct jobs *jobs = outbox->user;

    return jobs->handler->send(jobs, text);
}

static const struct outbox_handler outbox_handler = {.send = on_send, .settled = on_settled};

/* NULL: admitted; otherwise the reason, and a message for people. */
static const char *refusal(struct jobs *jobs, const struct job_message *message,
                           struct arena *arena, struct buf *detail)
{
    const struct config *config = jobs->config;
    struct jobs_request request = {
        .type = message->type, .priority = message->priority, .interactive = message->interactive};
    const char *unfit = NULL;

    /* Face-to-face jobs are matched by language, not by task type: their executor decides. */
    if (!str_is(message->type, "f2f") && !config_allows(config, message->type))
        unfit = "allowed_types does not name this type";
    else if (!json_is_null(message->command) && !config->allow_commands)
        unfit = "commands are not allowed here (allow_commands)";
    else if (json_is_null(message->command) && !config_executor(config, message->type))
        unfit = "no executor for this type";
    if (unfit) {
        buf_str(detail, str_of(unfit));
        return REASON_TYPE;
    }
    if (jobs->count - jobs->counts[JOBS_KEPT] >= CONFIG_JOBS_MAX) {
        buf_str(detail, STR("Too many outcomes wait for the server."));
        return REASON_OVERLOADED;
    }
    read_needs(message, arena, &request.demand, &request.gpus, NULL);
    return jobs->handler->refuses(jobs, &request, detail);
}

void jobs_job(struct jobs *jobs, const struct json *body)
{
    struct arena arena = {0};
    struct buf detail = {0};
    struct job_message message;
    struct demand unused;
    uint64_t gpus;
    char key[JOBS_KEY_MAX];
    struct agent_job *job;
    struct problem why = {.detail = "The id is too long."};
    const char *reason;
    enum err err;

    if (job_message_read(body, &arena, &message, &why) ||
        read_needs(&message, &arena, &unused, &gpus, &why) ||
        !jobs_key(message.job_id, message.attempt, key)) {
        log_event(LOG_ERROR, "job.unreadable", KS("node_id", jobs->node_id),
                  KC("reason", why.detail));
    } else if ((job = map_get(&jobs->by_key, str_of(key)))) {
        /* The same attempt again: repeat our last report on it. */
        job_log(job, LOG_WARN, "job.again", "the server sent this attempt before");
        if (job->state == JOBS_RUNNING && !job->note)
            job->note = outbox_put(jobs->outbox, OUTBOX_ACK, str_of(job->job_id), job->attempt,
                                   STR_NONE, STR_NONE, false, job);
        else if (job->state == JOBS_KEPT)
            report_run(job);
    } else if ((reason = refusal(jobs, &message, &arena, &detail))) {
        log_event(LOG_WARN, "job.refused", KS("job_id", message.job_id),
                  KS("node_id", jobs->node_id), KI("attempt_id", message.attempt),
                  KS("type", message.type), KC("reason", reason), KS("detail", buf_view(&detail)));
        outbox_put(jobs->outbox, OUTBOX_FAIL, message.job_id, (int)message.attempt, str_of(reason),
                   STR_NONE, false, NULL);
    } else {
        job = jobs_new_job(jobs, JOBS_ACKING);
        str_copy(str_of(key), job->key, sizeof job->key);
        job->received_ms = jobs->loop->wall_ms;
        job->since_ms = jobs->loop->mono_ms;
        job->taken_ms = clock_lease_ms();
        take_message(&message, job);
        err = json_parse(arena_str(&job->message_arena, json_raw(body)), &job->message_arena,
                         &job->message, NULL);
        assert(!err);
        jobs_enter(job);
        jobs->handler->slot_taken(job);
        job->note = outbox_put(jobs->outbox, OUTBOX_ACK, message.job_id, job->attempt, STR_NONE,
                               STR_NONE, false, job);
    }
    buf_free(&detail);
    arena_free(&arena);
}

/* --- other messages from the server --- */

static struct agent_job *find_named(struct jobs *jobs, const struct json *body, struct arena *arena)
{
    struct str id = json_str(json_get(body, "job_id"), arena);
    char key[JOBS_KEY_MAX];
    int64_t attempt;

    if (!id.at || !json_int(json_get(body, "attempt_id"), &attempt) || !jobs_key(id, attempt, key))
        return NULL;
    return map_get(&jobs->by_key, str_of(key));
}

void jobs_cancel(struct jobs *jobs, const struct json *body)
{
    struct arena arena = {0};
    struct agent_job *job = find_named(jobs, body, &arena);
    struct str reason = json_str(json_get(body, "reason"), &arena);
    char text[STOP_REASON_MAX + 1] = REASON_CANCELLED;

    if (str_is_id(reason, STOP_REASON_MAX))
        str_copy(reason, text, sizeof text);
    if (job && job->state == JOBS_ACKING)
        job->cancelled = true;
    if (job && job->state == JOBS_RUNNING) {
        job->stopping = true;
        run_stop(job->run, text, -1);
    }
    if (job)
        job_log(job, LOG_INFO, "job.cancel", text);
    arena_free(&arena);
}

void jobs_drop(struct jobs *jobs, const struct json *body)
{
    struct arena arena = {0};
    struct agent_job *job = find_named(jobs, body, &arena);

    /* A job that is being reported gets its own answer. */
    if (job && job->state == JOBS_RUNNING && !job->dropped) {
        job_log(job, LOG_WARN, "job.drop", "it is not this node's any more");
        drop(job);
    }
    arena_free(&arena);
}

void jobs_kill(struct agent_job *job, struct str evidence, int64_t grace_ms)
{
    assert(job->state == JOBS_RUNNING && job->run && evidence.len > 0);
    if (!job->evidence.at && !job->stopping) {
        /* Keep with the run why it was killed, for the report when it ends. */
        int fd = open_in(job, EVIDENCE_FILE, O_WRONLY | O_CREAT | O_TRUNC);

        job->evidence = arena_str(&job->arena, evidence);
        if (fd >= 0) {
            /* A partial file counts as none. */
            ssize_t ignored = write(fd, evidence.at, evidence.len);

            (void)ignored;
            close(fd);
        }
    }
    job->stopping = true;
    run_stop(job->run, REASON_EMERGENCY, grace_ms);
}

void jobs_end(struct jobs *jobs)
{
    for (struct agent_job *job = TAILQ_FIRST(&jobs->all); job; job = TAILQ_NEXT(job, entry)) {
        if (job->state == JOBS_ACKING)
            job->cancelled = true;
        if (job->state != JOBS_RUNNING)
            continue;
        job->stopping = true;
        run_stop(job->run, REASON_CANCELLED, -1);
    }
}

/* --- adoption --- */

/* Ended, and perhaps reported: an earlier version also recorded that elsewhere. */
static void adopt_ended(struct agent_job *job)
{
    struct outbox_note *note = TAILQ_FIRST(&job->jobs->outbox->notes);
    int settled_fd;

    assert(job->run->state == RUN_ENDED && !job->note);
    while (note &&
           !(note->old && note->attempt == job->attempt && strcmp(note->job_id, job->job_id) == 0))
        note = TAILQ_NEXT(note, entry);
    if (job->dropped) {
        job_forget(job);
    } else if ((settled_fd = open_in(job, SETTLED_FILE, O_RDONLY)) >= 0) {
        close(settled_fd);
        jobs_set_state(job, JOBS_KEPT); /* a note that is left will be answered without the job */
        trim_kept(job->jobs);
    } else if (note) {
        note->user = job;
        job->note = note;
        jobs_set_state(job, JOBS_REPORTING);
    } else {
        report_run(job);
    }
}

void jobs_adopt(struct jobs *jobs, struct run *run)
{
    struct agent_job *job = jobs_new_job(jobs, JOBS_RUNNING);
    int64_t age_ms = jobs->loop->wall_ms - run->started_ms;

    if (!jobs_meta_read(run->meta, job) || !jobs_key(str_of(job->job_id), job->attempt, job->key) ||
        !str_is(run->key, job->key)) {
        log_event(LOG_ERROR, "run.strange", KS("node_id", jobs->node_id), KS("run", run->key),
                  KC("reason", "nobody knows what it is for"));
        job->dropped = true; /* as if the server had dropped it */
        str_copy(run->key, job->key, sizeof job->key);
    }
    run->handler = &jobs_run_handler;
    run->user = job;
    job->run = run;
    jobs_evidence_find(job);
    job->since_ms = jobs->loop->mono_ms - (age_ms > 0 ? age_ms : 0);
    jobs_enter(job);
    if (run->state == RUN_ENDED) {
        adopt_ended(job);
        return;
    }
    job_log(job, LOG_INFO, "job.adopted", "it runs on");
    jobs->handler->slot_taken(job);
    job->stopping = run->state == RUN_STOPPING;
    if (job->dropped)
        drop(job);
}

struct jobs *jobs_new(struct loop *loop, const struct jobs_config *config,
                      const struct jobs_handler *handler, void *user)
{
    struct jobs *jobs = mem_new(struct jobs);
    struct buf path = {0};

    assert(handler->send && handler->refuses && handler->slot_taken && handler->slot_freed);
    jobs->loop = loop;
    TAILQ_INIT(&jobs->all);
    jobs->config = config->config;
    jobs->handler = handler;
    jobs->user = user;
    jobs->node_id = config->node_id;
    jobs->runs = config->runs;
    jobs->outbox = outbox_new(loop, &outbox_handler, jobs);
    buf_fmt(&path, "%s/outbox", config->data_dir);
    buf_char(&path, 0);
    outbox_take_old(jobs->outbox, path.at);
    buf_free(&path);
    return jobs;
}

void jobs_free(struct jobs *jobs)
{
    struct agent_job *job, *next;
    int fd;

    if (!jobs)
        return;
    for (job = TAILQ_FIRST(&jobs->all); job; job = TAILQ_NEXT(job, entry))
        if (job->state == JOBS_KEPT && (fd = open_in(job, SETTLED_FILE, O_WRONLY | O_CREAT)) >= 0)
            close(fd);
    outbox_free(jobs->outbox);
    for (job = TAILQ_FIRST(&jobs->all); job; job = next) {
        next = TAILQ_NEXT(job, entry);
        jobs_delete(job);
    }
    map_free(&jobs->by_key);
    free(jobs);
}
