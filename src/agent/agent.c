/* Settings, wiring and signals; what this node reports about itself, how the samples affect the
 * rest of the agent, and the server's RPCs. Everything but the measuring happens on one loop, on
 * the main thread. */
#include "agent/agent.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/capacity.h"
#include "agent/cgroup.h"
#include "agent/claimer.h"
#include "agent/copies.h"
#include "agent/identity.h"
#include "agent/jobs.h"
#include "agent/link.h"
#include "agent/loaded.h"
#include "agent/node_lease.h"
#include "agent/sampler.h"
#include "agent/services.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/url.h"
#include "io/notify.h"

struct agent {
    struct loop loop;
    int argc;
    char **argv;
    struct arena arena; /* lives as long as the process */
    struct config_source *source;
    struct config settings; /* from the newest source, at a fixed address */
    const struct config *config;
    const char *dir; /* absolute */
    struct str node_id, instance;
    struct access access;
    struct link_config link_config;
    struct link *link; /* NULL until the first sample */
    struct runs *runs;
    struct jobs *jobs;
    struct copies *copies;
    struct link_calls *link_calls;
    struct node_lease *node_lease;
    struct claimer *claimer;
    struct sampler *sampler;
    struct loaded loaded;
    struct services services;
    struct protect protect;
    struct capacity capacity;
    uv_signal_t signals[3];
    int endings;      /* termination signals received while the runs are being stopped */
    int64_t ended_ms; /* CLOCK_MONOTONIC: when the last run ended; 0: something still runs */
    int64_t alive_ms; /* of the last keep-alive to the service manager */
    /* As last sent to the server, to notice a change. */
    enum level sent_level;
    int64_t sent_max;
    bool sent_takes;
    int64_t fell_ms; /* when a drop in free resources was last sent */
    /* Room for all running tasks. */
    struct protect_task *tasks;
    struct capacity_task *promised; /* those of them with declared needs, */
    struct demand *demands;         /* and the demands of deployments */
    struct agent_owner {            /* of the task at the same index */
        struct agent_job *job;
        struct copy *copy; /* NULL for a job */
    } * owners;
    int *pids;
    size_t room;
    bool pids_stale; /* a run started that the sampling thread does not know yet */
    struct buf text;
};

static const struct link_handler agent_link_handler;

/* --- what this node reports about itself --- */

static void write_strs(struct jsonw *w, const char *name, const struct strs *list)
{
    jsonw_karr(w, name);
    for (size_t i = 0; i < list->count; i++)
        jsonw_str(w, list->at[i]);
    jsonw_end_arr(w);
}

static void write_share(struct jsonw *w, const char *name, int64_t part, int64_t whole)
{
    if (part == USAGE_NONE || whole <= 0)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, part < 0 ? 0 : part > whole ? 1 : (double)part / (double)whole);
}

static void write_percent(struct jsonw *w, const char *name, int64_t centi)
{
    if (centi == USAGE_NONE)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, (double)centi / 100);
}

/* An object: the tags by which other nodes know this one as a claimer of deployments. */
static void describe_tags(struct agent *agent, struct jsonw *w)
{
    agent->sent_takes = claimer_takes(agent->claimer);
    jsonw_obj(w);
    jsonw_kstr(w, "node_unit", STR("true"));
    jsonw_kstr(w, "node_unit_address", agent->node_id);
    jsonw_kstr(w, "node_unit_indexed", STR("true"));
    jsonw_kstr(w, "node_unit_takes", agent->sent_takes ? STR("true") : STR("false"));
    jsonw_end_obj(w);
}

/* How many jobs it would run at once right now. */
static int64_t describe_max(const struct agent *agent)
{
    return agent->protect.sampled ? agent->protect.slots.max_to_send : 0;
}

/* The fields of hello and heartbeat, into an open object. */
static void link_describe(struct link *link, struct jsonw *w)
{
    struct agent *agent = link->user;
    const struct config *config = agent->config;
    const struct protect *protect = &agent->protect;
    const struct usage *usage = &protect->usage;
    enum level level = protect->level.level;

    /* An agent is ready as long as it accepts any work at all. */
    jsonw_kstr(w, "health", level >= LEVEL_DANGER ? STR("degraded") : STR("ready"));
    write_strs(w, "semantic_langs", &config->semantic_langs);
    jsonw_key(w, "nmt_pairs");
    jsonw_raw(w, json_is_null(config->nmt_pairs) ? STR("[]") : json_raw(config->nmt_pairs));
    write_strs(w, "tts_langs", &config->tts_langs);
    if (!json_is_null(config->capability_by_type))
        jsonw_kraw(w, "capability_by_type", json_raw(config->capability_by_type));
    write_strs(w, "allowed_types", &config->allowed_types);
    if (!json_is_null(config->labels))
        jsonw_kraw(w, "labels", json_raw(config->labels));
    jsonw_kint(w, "max_concurrent_jobs", config->max_concurrent_jobs);
    if (config->priority != FIELD_OFF)
        jsonw_kint(w, "priority", config->priority);
    if (config->name.at)
        jsonw_kstr(w, "name", config->name);
    if (config->role.at)
        jsonw_kstr(w, "role", config->role);
    jsonw_kstr(w, "agent_version", STR(BERTH_VERSION));
    jsonw_kstr(w, "level", str_of(level_name(level)));
    jsonw_kint(w, "max", describe_max(agent));
    jsonw_kint(w, "reserved_slots", config->reserved_slots);
    jsonw_key(w, "running_jobs");
    jobs_write_running(agent->jobs, w);
    jsonw_kint(w, "taking", (int64_t)agent->jobs->counts[JOBS_ACKING]);
    capacity_write(&agent->capacity, w);
    jsonw_key(w, "tags");
    describe_tags(agent, w);
    jsonw_key(w, "claim");
    claimer_write(agent->claimer, w);
    loaded_write(&agent->loaded, w);
    if (protect->sampled) {
        int64_t gpu = usage->gpu_permille;
        int64_t used = usage->mem_total_kib == USAGE_NONE || usage->mem_free_kib == USAGE_NONE
                           ? USAGE_NONE
                           : usage->mem_total_kib - usage->mem_free_kib;

        jsonw_key(w, "current_load"); /* shares from 0 to 1 */
        jsonw_obj(w);
        write_share(w, "cpu", usage_pct_centi(usage, LEVEL_CPU), 10000);
        write_share(w, "gpu", gpu, 1000);
        write_share(w, "mem", used, usage->mem_total_kib);
        jsonw_end_obj(w);
        jsonw_kobj(w, "usage");
        usage_write(usage, w);
        write_percent(w, "cpu_pct", usage_pct_centi(usage, LEVEL_CPU));
        write_percent(w, "swap_used_pct", usage_pct_centi(usage, LEVEL_SWAP));
        write_percent(w, "gpu_pct", gpu == USAGE_NONE ? USAGE_NONE : gpu * 10);
        jsonw_kstr(w, "tripped",
                   level == LEVEL_NORMAL ? STR_NONE : str_of(level_signal_name(protect->level.by)));
        protect_write(protect, agent->loop.mono_ms, w);
        jsonw_end_obj(w);
    }
    agent->sent_level = level;
    agent->sent_max = describe_max(agent);
}

/* --- what the samples mean --- */

enum {
    STALE_SAMPLES = 10,
    DEPLOYMENT_PRIORITY = 5,
    FALL_MS = 300, /* minimum between two drops that are sent at once */
};

static const struct usage_tree *find_tree(const struct usage *usage, int pid)
{
    static const struct usage_tree unknown = {.cpu_permille = USAGE_NONE,
                                              .memory_kib = USAGE_NONE,
                                              .freed_kib = USAGE_NONE,
                                              .swap_kib = USAGE_NONE};

    for (size_t i = 0; pid > 0 && i < usage->tree_count; i++)
        if (usage->trees[i].pid == pid)
            return &usage->trees[i];
    return &unknown;
}

struct listing {
    const struct usage *usage;
    size_t count, pids, promised;
};

static void list_one(struct agent *agent, struct listing *listing, struct agent_owner owner,
                     struct protect_task task, int pid)
{
    const struct usage_tree *tree = find_tree(listing->usage, pid);

    assert(listing->count < agent->room);
    if (pid > 0)
        agent->pids[listing->pids++] = pid;
    task.memory_kib = tree->freed_kib;
    task.swap_kib = tree->swap_kib;
    task.cpu_permille = tree->cpu_permille;
    task.vram_kib = listing->usage->vram_total_kib > 0
                        ? capacity_vram_kib(listing->usage, listing->usage->vram_gpu, pid)
                        : USAGE_NONE;
    if (owner.job && owner.job->asks)
        agent->promised[listing->promised++] = (struct capacity_task){
            .demand = &owner.job->demand, .gpus = owner.job->gpus, .tree = tree};
    agent->owners[listing->count] = owner;
    agent->tasks[listing->count++] = task;
}

static void list_all(struct agent *agent, struct listing *listing)
{
    size_t count = jobs_in_use(agent->jobs) + agent->copies->by_id.count, demands = 0;

    if (count > agent->room) {
        agent->room = count * 2;
        agent->tasks = mem_resize(agent->tasks, agent->room * sizeof *agent->tasks);
        agent->promised = mem_resize(agent->promised, agent->room * sizeof *agent->promised);
        agent->demands = mem_resize(agent->demands, agent->room * sizeof *agent->demands);
        agent->owners = mem_resize(agent->owners, agent->room * sizeof *agent->owners);
        agent->pids = mem_resize(agent->pids, agent->room * sizeof *agent->pids);
    }
    /* Jobs take slots. Only a running job that is not being stopped can be killed. */
    for (struct agent_job *job = TAILQ_FIRST(&agent->jobs->all); job;
         job = TAILQ_NEXT(job, entry)) {
        int pid = job->run && job->state == JOBS_RUNNING ? run_shim_pid(job->run) : 0;

        if (job->state == JOBS_ACKING || job->state == JOBS_RUNNING)
            list_one(agent, listing, (struct agent_owner){.job = job},
                     (struct protect_task){.id = str_of(job->job_id),
                                           .type = job->type,
                                           .priority = job->priority,
                                           .slots = job->demand.slots,
                                           .started_ms = job->since_ms,
                                           .stopping = job->stopping || job->state == JOBS_ACKING},
                     pid);
    }
    assert(listing->count == jobs_in_use(agent->jobs));
    /* Deployments take no slots. They have no priority of their own: a copy counts as a task
     * without a given priority and is killed after such tasks. Its room is also kept between two
     * starts. */
    for (struct copy *copy = TAILQ_FIRST(&agent->copies->all); copy;
         copy = TAILQ_NEXT(copy, entry)) {
        int pid = copy->run ? run_shim_pid(copy->run) : 0;
        struct demand *demand = &agent->demands[demands];

        if (copy->run)
            list_one(agent, listing, (struct agent_owner){.copy = copy},
                     (struct protect_task){.id = copy->id,
                                           .type = copy->daemon ? STR("daemon") : STR("deployment"),
                                           .deployment = true,
                                           .priority = DEPLOYMENT_PRIORITY,
                                           .started_ms = copy->since_ms,
                                           .stopping = copy->stopping},
                     pid);
        if (!copy->demand[0] || !demand_parse(str_of(copy->demand), demand))
            continue;
        demands++;
        agent->promised[listing->promised++] =
            (struct capacity_task){.demand = demand,
                                   .gpus = copy->gpus,
                                   .tree = find_tree(listing->usage, pid),
                                   .standing = true};
    }
}

static void machine_kill(struct protect *protect, const struct protect_kill *kill)
{
    struct agent *agent = protect->user;
    const struct agent_owner *owner = &agent->owners[kill->task - agent->tasks];
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    assert(kill->task >= agent->tasks && kill->task < agent->tasks + agent->room);
    if (owner->copy) {
        /* Shown by `deploy show`. */
        buf_fmt(&text, "Ended to save the machine, which was at level %s because of its %s",
                level_name(kill->level), level_signal_name(kill->by));
        if (kill->by == LEVEL_VRAM) {
            buf_fmt(&text, " on GPU %d", kill->gpu);
            if (kill->task->vram_kib != USAGE_NONE)
                buf_fmt(&text, "; it had %" PRId64 " MB of it", kill->task->vram_kib / 1024);
        } else if (kill->by == LEVEL_CPU && kill->task->cpu_permille != USAGE_NONE)
            buf_fmt(&text, "; it used %" PRId64 " %% of all CPU", kill->task->cpu_permille / 10);
        else if (kill->by != LEVEL_CPU && kill->task->memory_kib != USAGE_NONE)
            buf_fmt(&text, "; it had %" PRId64 " MB", kill->task->memory_kib / 1024);
        buf_fmt(&text, ".");
        copy_kill(owner->copy, buf_view(&text), kill->grace_ms);
    } else {
        protect_kill_write(kill, &w);
        jobs_kill(owner->job, buf_view(&text), kill->grace_ms);
    }
    buf_free(&text);
}

/* A dispatch that prefers this node should see it before the next heartbeat. */
static void on_loaded(struct loaded *loaded)
{
    struct agent *agent = container_of(loaded, struct agent, loaded);

    if (agent->link)
        link_beat(agent->link);
}

/* A drop in free resources is sent before the next heartbeat, but not in bursts. */
static bool has_fallen(struct agent *agent)
{
    if (agent->loop.mono_ms - agent->fell_ms < FALL_MS || !capacity_fell(&agent->capacity))
        return false;
    agent->fell_ms = agent->loop.mono_ms;
    return true;
}

static void on_sample(struct sampler *sampler, const struct usage *sampled)
{
    struct agent *agent = sampler_user(sampler);
    const struct protect *protect = &agent->protect;
    struct capacity *capacity = &agent->capacity;
    struct usage seen = *sampled;
    const struct usage *usage = &seen;
    struct listing listing = {.usage = usage};
    struct jsonw w = jsonw_to(&agent->text);
    bool danger;

    list_all(agent, &listing);
    capacity_sample(capacity, agent->loop.mono_ms, usage, agent->promised, listing.promised);
    if (capacity->short_total_mb > 0) { /* to log who uses how much of that GPU */
        seen.vram_gpu = capacity->short_gpu;
        seen.vram_total_kib = (int64_t)capacity->short_total_mb * 1024;
        seen.vram_free_kib = (int64_t)capacity->short_free_mb * 1024;
        listing = (struct listing){.usage = usage};
        list_all(agent, &listing);
    }
    protect_sample(&agent->protect, agent->loop.mono_ms, usage, agent->tasks, listing.count);
    sampler_own(sampler, agent->pids, listing.pids);
    jobs_trim(agent->jobs);
    loaded_look(&agent->loaded, agent->config->loaded_file);
    danger = protect->level.level >= LEVEL_DANGER;
    agent->claimer->danger = danger;
    agent->copies->danger = danger;
    /* Connect only once the machine's capacity is known. */
    if (!agent->link && !usage->gpus_new) {
        struct buf why = {0}, has = {0};

        /* If the machine can carry less than its owner expects, log the reason at the start. */
        protect_explain(protect, &why);
        log_event(protect->slots.max > 0 ? LOG_INFO : LOG_WARN, "agent.slots",
                  KS("node_id", agent->node_id), KI("slots", protect->slots.max),
                  KI("free", protect->slots.additional),
                  KC("level", level_name(protect->level.level)), KS("reason", buf_view(&why)));
        resources_write(&capacity->resources, &has);
        log_event(LOG_INFO, "agent.resources", KS("node_id", agent->node_id),
                  KS("resources", buf_view(&has)));
        buf_free(&why);
        buf_free(&has);
        agent->link = link_new(&agent->loop, &agent->link_config, &agent_link_handler, agent);
    } else if (agent->link && (protect->level.level != agent->sent_level ||
                               describe_max(agent) != agent->sent_max || has_fallen(agent))) {
        link_beat(agent->link);
    }
    /* Other nodes wait for the least loaded one to claim, so a node that will not claim must say
     * so. */
    if (agent->link && agent->link->up && agent->sent_takes != claimer_takes(agent->claimer)) {
        buf_clear(&agent->text);
        jsonw_obj(&w);
        jsonw_kstr(&w, "msg", STR("UpdateTerminalInfo"));
        jsonw_key(&w, "tags");
        describe_tags(agent, &w);
        jsonw_end_obj(&w);
        link_send(agent->link, buf_view(&agent->text));
    }
}

static int64_t centi(double value)
{
    return llround(value * 100);
}

static int64_t centi_or_never(double value)
{
    return value > 0 ? centi(value) : LEVEL_NEVER;
}

static struct level_bounds bounds(double warning, double danger, double critical)
{
    return (struct level_bounds){centi(warning), centi(danger), centi(critical), 0};
}

enum err agent_rules(const struct config *config, struct protect_rules *ret_rules,
                     struct problem *why)
{
    const struct config_resources *res = &config->resources;
    struct protect_rules rules = protect_defaults();

    rules.level.bounds[LEVEL_CPU] =
        bounds(res->load_warning_pct, res->load_danger_pct, res->load_critical_pct);
    rules.level.bounds[LEVEL_MEMORY] =
        bounds(res->mem_warning_pct, res->mem_danger_pct, res->mem_critical_pct);
    rules.level.bounds[LEVEL_SWAP] =
        bounds(res->swap_warning_pct, res->swap_danger_pct, res->swap_critical_pct);
    rules.level.bounds[LEVEL_VRAM] =
        bounds(res->vram_warning_pct, res->vram_danger_pct, res->vram_critical_pct);
    rules.level.bounds[LEVEL_DISK].warning_centi = centi_or_never(res->disk_warning_pct);
    rules.level.bounds[LEVEL_DISK].danger_centi = centi_or_never(res->disk_danger_pct);
    rules.disk_counted_kib = centi(res->disk_counted_gb) * (1024 * 1024 / 100);
    rules.slots = (struct slots_rules){.cpu_per_process_centi = centi(res->cpu_per_process),
                                       .mem_per_process_centi_gb = centi(res->mem_per_process_gb),
                                       .mem_reserve_centi_gb = centi(res->mem_reserve_gb),
                                       .safety_buffer = config->safety_buffer,
                                       .max_slots = config->max_slots,
                                       .reserved_slots = config->reserved_slots,
                                       .max_concurrent_jobs = config->max_concurrent_jobs,
                                       .slots_min = config->slots_min,
                                       .slots_fixed = config->slots_fixed};
    _Static_assert(SLOTS_NONE == FIELD_OFF, "a limit that is not set");
    rules.kill.types = config->killable_types;
    rules.kill.protected = config->protected_types;
    rules.high_priority_min = config->high_priority_min;
    if (rules.stale_ms < STALE_SAMPLES * config->monitor_interval_ms)
        rules.stale_ms = STALE_SAMPLES * config->monitor_interval_ms;
    *ret_rules = rules;
    return protect_check(&rules, why);
}

/* --- RPCs from the server, answered at once from memory (or the run's own files) --- */

enum { LOG_BYTES_DEFAULT = 64 * 1024, LOG_BYTES_MAX = 128 * 1024 };

/* CPU and memory of the agent and all its runs, as a share of the whole machine. */
static enum err inspect(struct agent *agent, const struct json *params, struct jsonw *w,
                        struct problem *why)
{
    const struct usage *usage = &agent->protect.usage;

    if (!agent->protect.sampled || usage->own_cpu_permille == USAGE_NONE ||
        usage->own_memory_kib == USAGE_NONE)
        return problem_set(why, ERR_NOT_FOUND, "", "Nothing was measured yet.");
    jsonw_obj(w);
    jsonw_kdouble(w, "cpu_percent", (double)usage->own_cpu_permille / 10);
    jsonw_kdouble(w, "memory_mb", (double)usage->own_memory_kib / 1024);
    if (usage->mem_total_kib != USAGE_NONE)
        jsonw_kdouble(w, "memory_total_mb", (double)usage->mem_total_kib / 1024);
    jsonw_end_obj(w);
    return ERR_OK;
}

/* Number of bytes at the end that may be an incomplete UTF-8 character. */
static size_t unfinished(struct str text)
{
    for (size_t back = 1; back <= 3 && back <= text.len; back++) {
        unsigned char c = (unsigned char)text.at[text.len - back];
        size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;

        if ((c & 0xc0) != 0x80)
            return need > back ? back : 0;
    }
    return 0;
}

static void write_log(struct jsonw *w, int attempt, int64_t offset, int64_t total, struct str text,
                      bool over)
{
    size_t cut = over ? 0 : unfinished(text);

    assert(offset >= 0 && total >= 0 && cut <= text.len);
    if (cut < text.len)
        text.len -= cut; /* sent with the next piece */
    jsonw_obj(w);
    if (attempt) /* the attempt this output is from: the next attempt starts at 0 again */
        jsonw_kint(w, "attempt_id", attempt);
    jsonw_kint(w, "offset", offset);
    jsonw_kint(w, "next", offset + (int64_t)text.len);
    jsonw_kint(w, "total", total);
    jsonw_kstr(w, "text", text.at ? text : STR(""));
    jsonw_kbool(w, "ended", over);
    jsonw_end_obj(w);
}

/* Offset and length of a log request; both kinds of logs use the same parameters. */
static size_t read_span(const struct json *params, int64_t *ret_offset)
{
    int64_t max = LOG_BYTES_DEFAULT;

    *ret_offset = 0;
    json_int(json_get(params, "offset"), ret_offset);
    json_int(json_get(params, "max"), &max);
    return (size_t)(max < 1 ? 1 : max > LOG_BYTES_MAX ? LOG_BYTES_MAX : max);
}

static enum err logs(struct agent *agent, const struct json *params, struct jsonw *w,
                     struct problem *why)
{
    struct arena arena = {0};
    struct str id = json_str(json_get(params, "job_id"), &arena);
    int64_t attempt = 0, offset, total = 0;
    size_t max = read_span(params, &offset);
    struct agent_job *job = NULL;
    struct buf text = {0};
    enum err err = ERR_OK;

    json_int(json_get(params, "attempt_id"), &attempt);
    if (id.at && attempt >= 0 && attempt <= INT32_MAX)
        job = jobs_find(agent->jobs, id, (int)attempt);
    if (!job)
        err = problem_set(why, ERR_NOT_FOUND, "job_id",
                          "This node has no output of job \"" STR_FMT "\".", STR_ARG(id));
    else if (job->run)
        err = run_log(job->run, offset, max, &text, &offset, &total);
    if (err && err != ERR_NOT_FOUND)
        problem_set(why, err, "", "The output cannot be read.");
    if (!err)
        write_log(w, (int)attempt, offset, total, buf_view(&text),
                  job->state >= JOBS_REPORTING && offset + (int64_t)text.len >= total);
    buf_free(&text);
    arena_free(&arena);
    return err;
}

static enum err deployment_logs(struct agent *agent, const struct json *params, struct jsonw *w,
                                struct problem *why)
{
    struct arena arena = {0};
    struct str id = json_str(json_get(params, "id"), &arena);
    int64_t offset, total = 0;
    size_t max = read_span(params, &offset);
    struct buf text = {0};
    bool previous = false, ended = false;
    enum err err;

    json_bool(json_get(params, "previous"), &previous);
    err = copies_log(agent->copies, id, previous, offset, max, &text, &offset, &total, &ended);
    if (err == ERR_NOT_FOUND)
        problem_set(why, err, "id", "This node has no output of deployment \"" STR_FMT "\".",
                    STR_ARG(id));
    else if (err)
        problem_set(why, err, "", "The output cannot be read.");
    else
        write_log(w, 0, offset, total, buf_view(&text),
                  ended && offset + (int64_t)text.len >= total);
    buf_free(&text);
    arena_free(&arena);
    return err;
}

static const struct {
    const char *method;
    enum err (*answer)(struct agent *agent, const struct json *params, struct jsonw *w,
                       struct problem *why);
} methods[] = {
    {"NodeUnit/InspectResourceUsage", inspect},
    {"Job/Logs", logs},
    {"Deployment/Logs", deployment_logs},
};

/* An `rpc` message; answered before this returns. */
static void rpc_answer(struct agent *agent, const struct json *body)
{
    struct arena arena = {0};
    struct str method = json_str(json_get(body, "method"), &arena);
    struct buf result = {0};
    struct jsonw w = jsonw_to(&result);
    struct problem why;
    size_t i = 0;
    int64_t id;
    enum err err;

    if (!json_int(json_get(body, "id"), &id)) {
        arena_free(&arena);
        return;
    }
    while (i < COUNT_OF(methods) && !str_is(method, methods[i].method))
        i++;
    err = i < COUNT_OF(methods)
              ? methods[i].answer(agent, json_get(body, "params"), &w, &why)
              : problem_set(&why, ERR_NOT_FOUND, "method",
                            "An agent has no method \"" STR_FMT "\".", STR_ARG(method));
    w = jsonw_to(&agent->text);
    buf_clear(&agent->text);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("rpc_reply"));
    jsonw_kint(&w, "re", id);
    if (err) {
        jsonw_kstr(&w, "error", str_of(err_name(err)));
        jsonw_kstr(&w, "detail", str_of(why.detail));
    } else {
        jsonw_kraw(&w, "result", buf_view(&result));
    }
    jsonw_end_obj(&w);
    link_send(agent->link, buf_view(&agent->text));
    buf_free(&result);
    arena_free(&arena);
}

/* --- agent lifetime --- */

enum {
    FDS_PER_JOB = 4,
    FDS_OTHER = 256,
    SHIM_PATH_MAX = 4096,
    RUNS_NAMED = 8,          /* in messages; the rest is counted */
    DESCRIBE_ENDS_MS = 2000, /* then exit, acknowledged or not: the results are on disk */
};

/* --- the server --- */

static void link_up(struct link *link)
{
    struct agent *agent = link->user;

    outbox_up(agent->jobs->outbox);
    node_lease_up(agent->node_lease);
    claimer_up(agent->claimer);
    services_up(&agent->services);
}

static void link_down(struct link *link)
{
    struct agent *agent = link->user;

    outbox_down(agent->jobs->outbox);
    agent->node_lease->up = false;
    agent->claimer->up = false;
    agent->services.up = false;
    link_calls_down(agent->link_calls);
}

static void link_left(struct link *link)
{
    loop_stop(&((struct agent *)link->user)->loop);
}

static void link_answered(struct link *link, int64_t sent_boot_ms, const struct json *body)
{
    struct agent *agent = link->user;

    jobs_renewed(agent->jobs, sent_boot_ms, body);
}

static void link_message(struct link *link, struct str msg, const struct json *body)
{
    struct agent *agent = link->user;

    if (str_is(msg, "job")) {
        jobs_job(agent->jobs, body);
    } else if (str_is(msg, "cancel")) {
        jobs_cancel(agent->jobs, body);
    } else if (str_is(msg, "drop")) {
        jobs_drop(agent->jobs, body);
    } else if (str_is(msg, "reply")) {
        if (!link_calls_reply(agent->link_calls, body))
            outbox_reply(agent->jobs->outbox, body);
    } else if (str_is(msg, "rpc")) {
        rpc_answer(agent, body);
    } else if (str_is(msg, "deployments_changed")) {
        node_lease_renew_now(agent->node_lease);
        claimer_wake(agent->claimer);
    } else if (str_is(msg, "terminals_changed")) {
        claimer_wake(agent->claimer);
    } else { /* a newer server sends more than we understand */
        log_event(LOG_DEBUG, "agent.unknown_message", KS("msg", msg));
    }
}

static const struct link_handler agent_link_handler = {.describe = link_describe,
                                                       .up = link_up,
                                                       .down = link_down,
                                                       .left = link_left,
                                                       .answered = link_answered,
                                                       .message = link_message};

/* --- jobs --- */

static bool jobs_send(struct jobs *jobs, struct str text)
{
    struct agent *agent = jobs->user;

    return agent->link && link_send(agent->link, text);
}

static const char *jobs_refuses(struct jobs *jobs, const struct jobs_request *request,
                                struct buf *detail)
{
    struct agent *agent = jobs->user;
    enum protect_answer answer;

    if (agent->endings > 0) {
        buf_str(detail, STR("The agent ends."));
        return "NODE_OVERLOADED";
    }
    answer = protect_admits(&agent->protect, agent->loop.mono_ms, request->type, request->priority,
                            request->interactive, request->demand.slots, detail);
    if (answer == PROTECT_ADMIT &&
        !capacity_fits(&agent->capacity, &request->demand, request->gpus, detail))
        answer = PROTECT_FULL;
    return answer == PROTECT_ADMIT ? NULL : protect_code(answer);
}

static void job_slot_taken(struct agent_job *job)
{
    struct agent *agent = job->jobs->user;

    protect_started(&agent->protect, job->since_ms, job->demand.slots);
    capacity_take(&agent->capacity, &job->demand, job->gpus, 1);
}

static void job_slot_freed(struct agent_job *job)
{
    struct agent *agent = job->jobs->user;

    protect_ended(&agent->protect, job->since_ms, job->demand.slots);
    capacity_take(&agent->capacity, &job->demand, job->gpus, -1);
}

static void job_started(struct agent_job *job)
{
    struct agent *agent = job->jobs->user;

    agent->pids_stale = true;
}

static bool has_gpus(struct jobs *jobs)
{
    const struct agent *agent = jobs->user;

    return agent->capacity.resources.gpu_count > 0;
}

static const struct jobs_handler jobs_handler = {.send = jobs_send,
                                                 .refuses = jobs_refuses,
                                                 .slot_taken = job_slot_taken,
                                                 .slot_freed = job_slot_freed,
                                                 .started = job_started,
                                                 .has_gpus = has_gpus};

/* --- deployments --- */

static void copies_changed(struct copies *copies)
{
    struct agent *agent = copies->user;

    agent->pids_stale = true;
    node_lease_changed(agent->node_lease);
}

static bool copies_room(struct copies *copies, const struct demand *demand,
                        const struct demand *has, uint64_t has_gpus, uint64_t *ret_gpus,
                        struct buf *why)
{
    struct agent *agent = copies->user;

    return capacity_choose(&agent->capacity, demand, has, has_gpus, ret_gpus, why);
}

static void copies_keep_room(struct copies *copies, const struct demand *demand, uint64_t gpus,
                             bool kept)
{
    struct agent *agent = copies->user;

    capacity_keep(&agent->capacity, demand, gpus, kept ? 1 : -1);
    if (kept && agent->link && has_fallen(agent))
        link_beat(agent->link); /* before a job for the same room is sent */
}

static bool link_calls_text(struct link_calls *link_calls, struct str text)
{
    struct agent *agent = link_calls->user;

    return agent->link && link_send(agent->link, text);
}

/* --- the process --- */

static enum err agent_open_log(const struct config *config, struct problem *why)
{
    struct arena arena = {0};
    enum err err = ERR_OK;

    if (config->log_file.len)
        err = log_open(arena_cstr(&arena, config->log_file), why);
    arena_free(&arena);
    return err;
}

/* "job j0b5c2jw0000g1, deployment web": what is running, for messages. */
static void name_runs(struct agent *agent, struct buf *out)
{
    size_t named = 0, count = runs_count(agent->runs);

    for (struct run *run = NULL; (run = runs_next(agent->runs, run)) && named < RUNS_NAMED;) {
        struct arena arena = {0};
        const struct json *meta;
        struct str job = STR_NONE, deployment = STR_NONE;

        if (run->state != RUN_ENDED && json_parse(run->meta, &arena, &meta, NULL) == ERR_OK) {
            job = json_str(json_get(meta, "job_id"), &arena);
            deployment = json_str(json_get(meta, "deployment_id"), &arena);
        }
        if (job.len || deployment.len)
            buf_fmt(out, "%s%s " STR_FMT, named++ ? ", " : "", job.len ? "job" : "deployment",
                    STR_ARG(job.len ? job : deployment));
        arena_free(&arena);
    }
    if (named < count)
        buf_fmt(out, "%s%zu more", named ? ", and " : "", count - named);
    buf_char(out, 0);
}

static void leave(struct agent *agent)
{
    struct buf names = {0};

    /* A person at the terminal may expect the runs to end with the agent. */
    if (runs_count(agent->runs) > 0 && isatty(STDERR_FILENO)) {
        name_runs(agent, &names);
        fprintf(stderr,
                "berth agent: %zu run on without it: %s. The next agent finds them; `berth job "
                "cancel` and `berth deploy delete` end them, and --stop-runs with the agent.\n",
                runs_count(agent->runs), names.at);
    }
    buf_free(&names);
    node_lease_goodbye(agent->node_lease);
    /* A second signal does not wait for the server. */
    if (!agent->link || !link_leave(agent->link))
        loop_stop(&agent->loop);
}

/* Stops all runs first, each with its own grace period; at the second signal without one. */
static void end_runs(struct agent *agent)
{
    struct buf names = {0};

    if (++agent->endings > 2) {
        loop_stop(&agent->loop);
        return;
    }
    if (agent->endings == 1 && runs_count(agent->runs) > 0) {
        name_runs(agent, &names);
        fprintf(stderr, "berth agent: ending %s (once more: at once)\n", names.at);
    }
    buf_free(&names);
    copies_end(agent->copies);
    jobs_end(agent->jobs);
    for (struct run *run = NULL; (run = runs_next(agent->runs, run));)
        if (run->state != RUN_ENDED)
            run_stop(run, "STOPPED", agent->endings > 1 ? 0 : -1);
}

/* All runs have ended: report their outcomes, if there is a server, before exiting. */
static void look_at_end(struct agent *agent)
{
    if (runs_count(agent->runs) > 0 || jobs_in_use(agent->jobs) > 0)
        return;
    if (!agent->ended_ms)
        agent->ended_ms = agent->loop.mono_ms;
    if (agent->loop.mono_ms - agent->ended_ms < DESCRIBE_ENDS_MS && agent->jobs->outbox->count > 0)
        return;
    agent->endings = 0;
    leave(agent);
}

/* Exits when everything that was being stopped has ended; pings the service manager's watchdog. */
static void on_tick(struct loop *loop)
{
    static const struct usage nothing = {.tree_count = 0};
    struct agent *agent = loop->owner;
    struct listing listing = {.usage = &nothing};
    int64_t watchdog_ms = notify_watchdog_ms();

    if (agent->endings > 0)
        look_at_end(agent);
    if (agent->pids_stale) { /* a run can grow large before the next sample */
        agent->pids_stale = false;
        list_all(agent, &listing);
        sampler_own(agent->sampler, agent->pids, listing.pids);
    }
    if (watchdog_ms == 0 || loop->mono_ms - agent->alive_ms < watchdog_ms / 3)
        return;
    agent->alive_ms = loop->mono_ms;
    notify_send("WATCHDOG=1");
}

/* When memory runs out the kernel should kill a job rather than the agent, and choosing a job to
 * kill must not wait for our own pages to be swapped in. Locks only pages that are used, and only
 * where the limit allows all of them: otherwise later mappings would fail. Runs inherit neither. */
static void shield(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {{0}};
    struct rlimit limit = {0};
    int oom_error = cgroup_file_put(AT_FDCWD, "/proc/self/oom_score_adj", "-900");
    int lock_error = EPERM;

    if (geteuid() == 0 ||
        (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) ||
        (syscall(SYS_capget, &header, caps) == 0 &&
         (caps[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK))))
        lock_error = mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0 ? 0 : errno;
    if (oom_error || lock_error)
        log_event(LOG_INFO, "agent.unshielded",
                  KC("oom_score_adj", oom_error ? strerror(oom_error) : "ok"),
                  KC("mlock", lock_error ? strerror(lock_error) : "ok"),
                  KC("reason", "when memory runs out this agent is not better off than its jobs"));
}

static void raise_fds(const struct config *config)
{
    rlim_t want =
        (rlim_t)((config->max_concurrent_jobs + config->deployments_max) * FDS_PER_JOB + FDS_OTHER);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want)
        return;
    limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* A run that an earlier agent started. */
static void on_found(struct run *run)
{
    struct agent *agent = runs_user(run->runs);

    if (!copies_adopt(agent->copies, run))
        jobs_adopt(agent->jobs, run);
}

static const char *path_of(struct agent *agent, struct str path)
{
    return path.len ? arena_cstr(&agent->arena, path) : NULL;
}

/* Copies the settings that say how runs are executed. */
static void agent_run_rules(struct agent *agent)
{
    const struct config *config = agent->config;

    runs_set_rules(agent->runs,
                   &(struct run_rules){.job_user = config->job_user,
                                       .allow_root = config->allow_root,
                                       .unfiltered = !config->syscall_filter,
                                       .secrets_dir = config->secrets_dir,
                                       .disk_bytes_max = config->job_disk_mb_max << 20,
                                       .memory_percent_max = config->run_memory_pct_max,
                                       .shared_tmp = config->private_tmp == CONFIG_TMP_OFF});
}

static enum err open_copies(struct agent *agent, struct problem *why)
{
    struct copies_config config = {.config = agent->config,
                                   .node_id = agent->node_id,
                                   .data_dir = agent->dir,
                                   .runs = agent->runs,
                                   .room = copies_room,
                                   .keep = copies_keep_room,
                                   .changed = copies_changed};
    enum err err = copies_new(&agent->loop, &config, agent, &agent->copies, why);

    if (err)
        return err;
    agent->link_calls = link_calls_new(&agent->loop, link_calls_text, agent);
    agent->node_lease = node_lease_new(&agent->loop, agent->link_calls, agent->copies,
                                       agent->config, agent->node_id, agent->instance);
    agent->claimer =
        claimer_new(&agent->loop, &(struct claimer_config){.config = agent->config,
                                                           .node_id = agent->node_id,
                                                           .instance = agent->instance,
                                                           .link_calls = agent->link_calls,
                                                           .copies = agent->copies,
                                                           .capacity = &agent->capacity,
                                                           .node_lease = agent->node_lease});
    services_init(&agent->services, &agent->loop, agent->link_calls, agent->config, agent->node_id,
                  agent->dir);
    return ERR_OK;
}

/* Checks token and certificate files at the start and at a reload; warns if other users can read
 * them. */
static void agent_access(struct agent *agent)
{
    const struct config *config = agent->config;
    const char *secrets[2];

    agent->access = (struct access){.token_file = path_of(agent, config->token_file),
                                    .token = config->token,
                                    .tls = config->tls,
                                    .ca_file = path_of(agent, config->ca_file),
                                    .cert_file = path_of(agent, config->tls_cert),
                                    .key_file = path_of(agent, config->tls_key)};
    for (size_t i = 0; config->token.at && i < config->url_count; i++)
        if (url_is_exposed(str_of(config->urls[i])))
            log_event(LOG_WARN, "agent.in_the_clear", KC("server", config->urls[i]),
                      KC("reason", "the token crosses the network unencrypted: use https"));
    secrets[0] = agent->access.token_file;
    secrets[1] = agent->access.key_file;
    for (size_t i = 0; i < COUNT_OF(secrets); i++)
        if (secrets[i] && file_is_public(secrets[i]))
            log_event(LOG_WARN, "agent.secret_readable", KC("path", secrets[i]),
                      KC("reason", "everybody on this machine can read it: chmod 600"));
}

static enum err agent_init(struct agent *agent, struct problem *why)
{
    struct arena *arena = &agent->arena;
    const struct config *config = agent->config;
    struct protect_rules rules;
    struct jobs_config jobs_config;
    struct usage_config usage_config;
    struct net_tls *tls = NULL;
    char path[SHIM_PATH_MAX];
    ssize_t len;
    enum err err = agent_rules(config, &rules, why);

    if (!err)
        err = identity_dir(config->data_dir, arena, &agent->dir, why);
    if (!err)
        err = identity_format(agent->dir, arena, why);
    if (!err)
        err = identity_id(agent->dir, config->node_id, arena, &agent->node_id, why);
    if (!err)
        err = identity_instance(agent->dir, arena, &agent->instance, why);
    if (err)
        return err;
    agent_access(agent);
    agent->link_config = (struct link_config){.urls = config->urls,
                                              .url_count = config->url_count,
                                              .node_id = agent->node_id,
                                              .access = &agent->access,
                                              .heartbeat_ms = config->heartbeat_ms};
    /* Report an unreadable file now; otherwise it would show up later as a failed connection. */
    if (config->tls)
        err = access_tls(&agent->access, &tls, why);
    net_tls_free(tls);
    if (err)
        return err;
    protect_init(&agent->protect, &rules, machine_kill, agent);
    agent->capacity = (struct capacity){.config = config};
    len = readlink("/proc/self/exe", path, sizeof path - 1); /* shims run this executable */
    if (len <= 0)
        return problem_set(why, ERR_IO, "", "Cannot find this program: %s.", strerror(errno));
    path[len] = 0;
    err = runs_new(&agent->loop, arena_fmt(arena, "%s/runs", agent->dir).at, path,
                   path_of(agent, config->spawner), agent, &agent->runs, why);
    if (err)
        return err;
    agent_run_rules(agent);
    jobs_config = (struct jobs_config){
        .config = config, .node_id = agent->node_id, .data_dir = agent->dir, .runs = agent->runs};
    agent->jobs = jobs_new(&agent->loop, &jobs_config, &jobs_handler, agent);
    err = open_copies(agent, why);
    if (err)
        return err;
    runs_adopt(agent->runs, on_found);
    /* Measures from now on; the first sample opens the link. */
    usage_config = (struct usage_config){
        .host_root = arena_cstr(arena, config->host_root),
        .disk_dir = agent->dir,
        .gpu_command = config->gpu_command.at ? arena_cstr(arena, config->gpu_command) : NULL,
        .interval_ms = config->monitor_interval_ms,
        .mem_alert_centi = centi(config->resources.mem_critical_pct)};
    return sampler_new(&agent->loop, &usage_config, on_sample, agent, &agent->sampler, why);
}

static int fail(const struct problem *why)
{
    fprintf(stderr, "berth: %s\n", why->detail);
    return why->err == ERR_BAD_CONFIG || why->err == ERR_BAD_REQUEST || why->err == ERR_BAD_FIELD
               ? 2
               : 1;
}

static void log_start(const struct agent *agent)
{
    const char *command = "";
    const struct cgroup_place *offered = runs_offered(agent->runs);

    log_event(LOG_INFO, "agent.started", KS("node_id", agent->node_id), KC("data_dir", agent->dir),
              KC("version", BERTH_VERSION), KI("pid", getpid()),
              KI("adopted", (int64_t)(jobs_in_use(agent->jobs) + copies_alive(agent->copies))));
    if (runs_not_apart(agent->runs))
        log_event(LOG_WARN, "agent.jobs_not_apart", KS("node_id", agent->node_id),
                  KC("reason", runs_not_apart(agent->runs)));
    if (agent->config->private_tmp != CONFIG_TMP_OFF && runs_tmp_missing(agent->runs))
        log_event(
            LOG_WARN, "agent.tmp_shared", KS("node_id", agent->node_id),
            KC("reason", runs_tmp_missing(agent->runs)),
            KC("means", "runs see the machine's /tmp and /dev/shm and what others leave there"));
    if (access("/run/systemd/system", F_OK) == 0) /* how to get its own control group there */
        command = geteuid() == 0 ? "systemd-run --scope -p Delegate=yes berth ..."
                                 : "systemd-run --user --scope -p Delegate=yes berth ...";
    if (offered->missing[0])
        log_event(LOG_WARN, "agent.limits_missing", KS("node_id", agent->node_id),
                  KC("reason", offered->missing), KC("try", command));
}

/* --- signals --- */

/* SIGHUP: the settings are read again, checked completely, and only then applied; a mistake changes
 * nothing and is reported. Fields that are not FIELD_LIVE wait for a restart. Earlier live settings
 * stay in memory until the process ends: a run or the link may hold a string of theirs. */
static void agent_reload(struct agent *agent)
{
    struct config_source *next = mem_new(struct config_source);
    const struct config *now = agent->config;
    struct buf changed = {0}, waiting = {0};
    struct protect_rules rules;
    struct problem why = {0};
    enum err err = config_load(next, agent->argc, agent->argv, &why);

    if (!err) {
        conf_keep(&next->conf, &agent->source->conf, &changed, &waiting);
        /* Values derived from the settings; some of them keep their old value. */
        for (size_t i = 0; i < now->url_count; i++)
            next->config.urls[i] = now->urls[i];
        next->config.url_count = now->url_count;
        next->config.tls = now->tls;
        if (!next->config.token_file.len)
            next->config.token = now->token; /* from the environment, which was wiped */
        if (!str_eq(next->config.declared.text, now->declared.text) &&
            !memmem(changed.at ? changed.at : "", changed.len, "resources", 9))
            buf_fmt(&changed, "%sresources", changed.len ? "," : "");
        if (!str_eq(next->config.token, now->token)) /* the same file has a new token */
            buf_fmt(&changed, "%stoken", changed.len ? "," : "");
        err = agent_rules(&next->config, &rules, &why);
    }
    if (!err)
        err = agent_open_log(&next->config, &why);
    if (err || !changed.len) {
        config_done(next);
        free(next);
    } else {
        next->before = agent->source;
        agent->source = next;
        agent->settings = next->config;
        agent_access(agent);
        agent->protect.rules = rules;
        agent->capacity.declared = false;
        agent_run_rules(agent);
        log_tune((enum log_level)now->log_level, (enum log_format)now->log_format);
        node_lease_reload(agent->node_lease);
        if (agent->link)
            link_beat(agent->link); /* labels, types or limits may have changed */
    }
    if (err)
        log_event(LOG_ERROR, "agent.reload_refused", KS("node_id", agent->node_id),
                  KC("reason", why.detail));
    else
        log_event(LOG_INFO, "agent.reloaded", KS("node_id", agent->node_id),
                  KS("changed", buf_view(&changed)));
    if (waiting.len)
        log_event(LOG_WARN, "agent.restart_needed", KS("node_id", agent->node_id),
                  KS("settings", buf_view(&waiting)));
    buf_free(&changed);
    buf_free(&waiting);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct agent *agent = handle->data;

    if (number == SIGHUP) {
        agent_reload(agent);
        return;
    }
    log_event(LOG_INFO, "agent.stopping", KS("node_id", agent->node_id),
              KC("signal", strsignal(number)),
              KI("running", (int64_t)(jobs_in_use(agent->jobs) + copies_alive(agent->copies))));
    if (agent->config->stop_runs && !agent->ended_ms)
        end_runs(agent);
    else
        leave(agent);
}

/* --- from start to end --- */

static int run(struct agent *agent)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct problem why = {0};
    enum err err;

    _Static_assert(COUNT_OF(numbers) == COUNT_OF(((struct agent *)0)->signals), "one for each");
    if (loop_init(&agent->loop, 0) != ERR_OK) {
        fprintf(stderr, "berth: a loop cannot be made\n");
        return 1;
    }
    loaded_init(&agent->loaded, &agent->loop, on_loaded);
    raise_fds(agent->config);
    shield();
    err = agent_init(agent, &why);
    if (!err) {
        for (size_t i = 0; i < COUNT_OF(numbers); i++) {
            uv_signal_init(&agent->loop.uv, &agent->signals[i]);
            agent->signals[i].data = agent;
            uv_signal_start(&agent->signals[i], on_signal, numbers[i]);
        }
        log_start(agent);
        agent->loop.owner = agent;
        agent->loop.on_tick = on_tick;
        notify_send("READY=1");
        loop_run(&agent->loop);
        notify_send("STOPPING=1");
    }
    /* Runs go on under their shims; the next agent adopts them. */
    sampler_free(agent->sampler);
    link_free(agent->link);
    agent->link = NULL;
    services_stop(&agent->services);
    claimer_free(agent->claimer);
    node_lease_free(agent->node_lease);
    link_calls_free(agent->link_calls);
    copies_free(agent->copies);
    jobs_free(agent->jobs);
    runs_free(agent->runs);
    loop_done(&agent->loop);
    loaded_done(&agent->loaded);
    services_done(&agent->services);
    if (agent->protect.kill)
        protect_done(&agent->protect);
    free(agent->tasks);
    free(agent->promised);
    free(agent->demands);
    free(agent->owners);
    free(agent->pids);
    buf_free(&agent->text);
    if (err)
        return fail(&why);
    log_event(LOG_INFO, "agent.stopped", KS("node_id", agent->node_id), KI("pid", getpid()));
    return 0;
}

int agent_main(int argc, char **argv)
{
    struct agent *agent;
    struct problem why = {0};
    int code;

    umask(077); /* payloads and results must not be readable by other users */
    notify_init();
    agent = mem_new(struct agent);
    agent->argc = argc;
    agent->argv = argv;
    agent->config = &agent->settings;
    agent->source = mem_new(struct config_source);
    if (config_load(agent->source, argc, argv, &why)) {
        code = fail(&why);
    } else {
        agent->settings = agent->source->config;
        if (agent->config->sleeps_with_server)
            clock_leases_sleep();
        log_setup((enum log_level)agent->config->log_level,
                  (enum log_format)agent->config->log_format, STDERR_FILENO);
        code = agent_open_log(agent->config, &why) ? fail(&why) : run(agent);
    }
    for (struct config_source *source = agent->source, *before; source; source = before) {
        before = source->before;
        config_done(source);
        free(source);
    }
    arena_free(&agent->arena);
    free(agent);
    return code;
}
