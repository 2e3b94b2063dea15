/* What the samples of this machine mean for the rest of the agent. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "agent/agent_private.h"
#include "base/log.h"
#include "base/mem.h"

enum { STALE_SAMPLES = 10, DEPLOYMENT_PRIORITY = 5 };

static void make_room(struct agent *agent, size_t count)
{
    if (count <= agent->room)
        return;
    agent->room = count * 2;
    agent->tasks = mem_resize(agent->tasks, agent->room * sizeof *agent->tasks);
    agent->owners = mem_resize(agent->owners, agent->room * sizeof *agent->owners);
    agent->pids = mem_resize(agent->pids, agent->room * sizeof *agent->pids);
}

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
    size_t count, pids;
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
    agent->owners[listing->count] = owner;
    agent->tasks[listing->count++] = task;
}

/* What takes a slot. Only what really runs and was not told to end can be killed. */
static void list_jobs(struct agent *agent, struct listing *listing)
{
    struct agent_job *job = NULL;

    while ((job = jobs_next(agent->jobs, job))) {
        int pid = job->run && job->state == JOBS_RUNNING ? run_shim_pid(job->run) : 0;

        if (job->state == JOBS_ACKING || job->state == JOBS_RUNNING)
            list_one(agent, listing, (struct agent_owner){.job = job},
                     (struct protect_task){.id = str_of(job->job_id),
                                           .type = job->type,
                                           .priority = job->priority,
                                           .started_ms = job->since_ms,
                                           .stopping = job->stopping || job->state == JOBS_ACKING},
                     pid);
    }
    assert(listing->count == jobs_in_use(agent->jobs));
}

/* What does not. A deployment has no priority of its own: it counts as one of a task has that was
 * given none, and its turn comes after theirs. */
static void list_copies(struct agent *agent, struct listing *listing)
{
    struct copy *copy = NULL;
    struct copy_alive alive;

    while ((copy = copies_next(agent->copies, copy, &alive)))
        list_one(agent, listing, (struct agent_owner){.copy = copy},
                 (struct protect_task){.id = alive.id,
                                       .type = alive.daemon ? STR("daemon") : STR("deployment"),
                                       .deployment = true,
                                       .priority = DEPLOYMENT_PRIORITY,
                                       .started_ms = alive.since_ms,
                                       .stopping = alive.stopping},
                 alive.shim_pid);
}

static void list_all(struct agent *agent, struct listing *listing)
{
    make_room(agent, jobs_in_use(agent->jobs) + copies_alive(agent->copies));
    list_jobs(agent, listing);
    list_copies(agent, listing);
}

void machine_own(struct agent *agent)
{
    static const struct usage nothing = {.tree_count = 0};
    struct listing listing = {.usage = &nothing};

    if (!agent->pids_stale)
        return;
    agent->pids_stale = false;
    list_all(agent, &listing);
    sampler_own(agent->sampler, agent->pids, listing.pids);
}

/* For `deploy show`. */
static void say_why(const struct protect_kill *kill, struct buf *out)
{
    buf_fmt(out, "Ended to save the machine, which was at level %s because of its %s",
            level_name(kill->level), level_signal_name(kill->by));
    if (kill->by == LEVEL_CPU && kill->task->cpu_permille != USAGE_NONE)
        buf_fmt(out, "; it used %" PRId64 " %% of all CPU", kill->task->cpu_permille / 10);
    else if (kill->by != LEVEL_CPU && kill->task->memory_kib != USAGE_NONE)
        buf_fmt(out, "; it had %" PRId64 " MB", kill->task->memory_kib / 1024);
    buf_fmt(out, ".");
}

void machine_kill(struct protect *protect, const struct protect_kill *kill)
{
    struct agent *agent = protect->user;
    const struct agent_owner *owner = &agent->owners[kill->task - agent->tasks];
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    assert(kill->task >= agent->tasks && kill->task < agent->tasks + agent->room);
    if (owner->copy) {
        say_why(kill, &text);
        copy_kill(owner->copy, buf_view(&text), kill->grace_ms);
    } else {
        protect_kill_write(kill, &w);
        jobs_kill(owner->job, buf_view(&text), kill->grace_ms);
    }
    buf_free(&text);
}

/* Others wait for the least loaded node to claim: one that will not must say so. */
static void tell_takes(struct agent *agent)
{
    struct jsonw w = jsonw_to(&agent->text);

    if (agent->told_takes == claimer_takes(agent->claimer))
        return;
    buf_clear(&agent->text);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("UpdateTerminalInfo"));
    jsonw_key(&w, "tags");
    tell_tags(agent, &w);
    jsonw_end_obj(&w);
    link_send(agent->link, buf_view(&agent->text));
}

/* A machine that carries less than its owner believes should say so before anybody wonders. */
static void log_slots(const struct agent *agent)
{
    const struct protect *protect = &agent->protect;
    struct buf why = {0};

    protect_explain(protect, &why);
    log_event(protect->slots.max > 0 ? LOG_INFO : LOG_WARN, "agent.slots",
              KS("node_id", agent->node_id), KI("slots", protect->slots.max),
              KI("free", protect->slots.additional), KC("level", level_name(protect->level.level)),
              KS("reason", buf_view(&why)));
    buf_free(&why);
}

static void on_sample(struct sampler *sampler, const struct usage *usage)
{
    struct agent *agent = sampler_user(sampler);
    struct listing listing = {.usage = usage};
    bool danger;

    list_all(agent, &listing);
    protect_sample(&agent->protect, agent->loop.mono_ms, usage, agent->tasks, listing.count);
    sampler_own(sampler, agent->pids, listing.pids);
    jobs_trim(agent->jobs);
    danger = agent->protect.level.level >= LEVEL_DANGER;
    claimer_danger(agent->claimer, danger);
    copies_danger(agent->copies, danger);
    /* Nobody is asked for work before it is known what the machine can carry. */
    if (!agent->link) {
        log_slots(agent);
        agent->link = link_new(&agent->loop, &agent->link_config, &agent_link_handler, agent);
    } else if (agent->protect.level.level != agent->told_level ||
               tell_max(agent) != agent->told_max)
        link_beat(agent->link);
    if (link_is_up(agent->link))
        tell_takes(agent);
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

enum err machine_watch(struct agent *agent, struct problem *why)
{
    struct arena *arena = &agent->arena;
    const struct config *config = agent->config;
    struct usage_config usage = {
        .host_root = arena_cstr(arena, config->host_root),
        .disk_dir = agent->dir,
        .gpu_command = config->gpu_command.at ? arena_cstr(arena, config->gpu_command) : NULL,
        .interval_ms = config->monitor_interval_ms,
        .mem_alert_centi = centi(config->resources.mem_critical_pct)};

    return sampler_new(&agent->loop, &usage, on_sample, agent, &agent->sampler, why);
}
