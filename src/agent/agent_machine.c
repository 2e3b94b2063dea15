/* What the samples of this machine mean for the rest of the agent. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "agent/agent_private.h"
#include "base/mem.h"

enum { STALE_SAMPLES = 10 };

static void make_room(struct agent *agent, size_t count)
{
    if (count <= agent->room)
        return;
    agent->room = count * 2;
    agent->tasks = mem_resize(agent->tasks, agent->room * sizeof *agent->tasks);
    agent->task_jobs = mem_resize(agent->task_jobs, agent->room * sizeof(struct agent_job *));
    agent->pids = mem_resize(agent->pids, agent->room * sizeof *agent->pids);
}

static int64_t tree_memory(const struct usage *usage, int pid)
{
    for (size_t i = 0; pid > 0 && i < usage->tree_count; i++)
        if (usage->trees[i].pid == pid)
            return usage->trees[i].memory_kib;
    return USAGE_NONE;
}

/* What takes a slot. Only what really runs and was not told to end can be killed. */
static size_t list_tasks(struct agent *agent, const struct usage *usage, size_t *ret_pids)
{
    struct agent_job *job = NULL;
    size_t count = 0, pids = 0;

    make_room(agent, jobs_in_use(agent->jobs) + copies_alive(agent->copies));
    while ((job = jobs_next(agent->jobs, job))) {
        int pid = job->run && job->state == JOBS_RUNNING ? run_shim_pid(job->run) : 0;

        if (job->state != JOBS_ACKING && job->state != JOBS_RUNNING)
            continue;
        assert(count < agent->room);
        if (pid > 0)
            agent->pids[pids++] = pid;
        agent->task_jobs[count] = job;
        agent->tasks[count++] =
            (struct protect_task){.id = str_of(job->job_id),
                                  .type = job->type,
                                  .priority = job->priority,
                                  .started_ms = job->since_ms,
                                  .memory_kib = tree_memory(usage, pid),
                                  .stopping = job->stopping || job->state == JOBS_ACKING};
    }
    assert(count == jobs_in_use(agent->jobs) && pids <= count);
    if (agent->room > pids) /* without any room there is no array either */
        pids += copies_pids(agent->copies, agent->pids + pids, agent->room - pids);
    *ret_pids = pids;
    return count;
}

void machine_kill(struct protect *protect, const struct protect_kill *kill)
{
    struct agent *agent = protect->user;
    struct buf evidence = {0};
    struct jsonw w = jsonw_to(&evidence);

    assert(kill->task >= agent->tasks && kill->task < agent->tasks + agent->room);
    protect_kill_write(kill, &w);
    jobs_kill(agent->task_jobs[kill->task - agent->tasks], buf_view(&evidence));
    buf_free(&evidence);
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

static void on_sample(struct sampler *sampler, const struct usage *usage)
{
    struct agent *agent = sampler_user(sampler);
    size_t pids, count = list_tasks(agent, usage, &pids);

    protect_sample(&agent->protect, agent->loop.mono_ms, usage, agent->tasks, count);
    sampler_own(sampler, agent->pids, pids);
    jobs_trim(agent->jobs);
    claimer_danger(agent->claimer, agent->protect.level.level >= LEVEL_DANGER);
    /* Nobody is asked for work before it is known what the machine can carry. */
    if (!agent->link)
        agent->link = link_new(&agent->loop, &agent->link_config, &agent_link_handler, agent);
    else if (agent->protect.level.level != agent->told_level || tell_max(agent) != agent->told_max)
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
                                       .slots_fixed = config->slots_fixed};
    _Static_assert(SLOTS_NONE == FIELD_OFF, "a limit that is not set");
    rules.kill.types = config->killable_types;
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
