/* What this node says about itself: what it can do, how the machine is, and what runs. */
#include "agent/agent_private.h"

static void write_strs(struct jsonw *w, const char *name, const struct strs *list)
{
    jsonw_key(w, name);
    jsonw_arr(w);
    for (size_t i = 0; i < list->count; i++)
        jsonw_str(w, list->at[i]);
    jsonw_end_arr(w);
}

static void write_json(struct jsonw *w, const char *name, const struct json *value)
{
    if (!json_is_null(value))
        jsonw_kraw(w, name, json_raw(value));
}

/* As the configuration has it. */
static void write_abilities(const struct config *config, struct jsonw *w)
{
    write_strs(w, "semantic_langs", &config->semantic_langs);
    jsonw_key(w, "nmt_pairs");
    jsonw_raw(w, json_is_null(config->nmt_pairs) ? STR("[]") : json_raw(config->nmt_pairs));
    write_strs(w, "tts_langs", &config->tts_langs);
    write_json(w, "capability_by_type", config->capability_by_type);
    write_strs(w, "allowed_types", &config->allowed_types);
    write_json(w, "labels", config->labels);
    jsonw_kint(w, "max_concurrent_jobs", config->max_concurrent_jobs);
    if (config->priority != FIELD_OFF)
        jsonw_kint(w, "priority", config->priority);
    if (config->name.at)
        jsonw_kstr(w, "name", config->name);
    if (config->role.at)
        jsonw_kstr(w, "role", config->role);
    jsonw_kstr(w, "agent_version", STR(BERTH_VERSION));
}

static void write_share(struct jsonw *w, const char *name, int64_t part, int64_t whole)
{
    double share = part == USAGE_NONE || whole <= 0 ? 0 : (double)part / (double)whole;

    if (part == USAGE_NONE || whole <= 0)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, share < 0 ? 0 : share > 1 ? 1 : share);
}

/* Shares from 0 to 1. */
static void write_load(const struct usage *usage, struct jsonw *w)
{
    int64_t used = usage->mem_total_kib == USAGE_NONE || usage->mem_free_kib == USAGE_NONE
                       ? USAGE_NONE
                       : usage->mem_total_kib - usage->mem_free_kib;

    jsonw_key(w, "current_load");
    jsonw_obj(w);
    write_share(w, "cpu", usage_cpu_pct_centi(usage), 10000);
    write_share(w, "gpu", usage->gpu_permille, 1000);
    write_share(w, "mem", used, usage->mem_total_kib);
    jsonw_end_obj(w);
}

static void write_percent(struct jsonw *w, const char *name, int64_t centi)
{
    if (centi == USAGE_NONE)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, (double)centi / 100);
}

static void write_usage(const struct agent *agent, struct jsonw *w)
{
    const struct protect *protect = &agent->protect;
    bool calm = protect->level.level == LEVEL_NORMAL;
    int64_t gpu = protect->usage.gpu_permille;

    jsonw_key(w, "usage");
    jsonw_obj(w);
    usage_write(&protect->usage, w);
    write_percent(w, "cpu_pct", usage_cpu_pct_centi(&protect->usage));
    write_percent(w, "swap_used_pct", usage_swap_pct_centi(&protect->usage));
    write_percent(w, "gpu_pct", gpu == USAGE_NONE ? USAGE_NONE : gpu * 10);
    jsonw_kstr(w, "tripped", calm ? STR_NONE : str_of(level_signal_name(protect->level.by)));
    protect_write(protect, agent->loop.mono_ms, w);
    jsonw_end_obj(w);
}

/* The tags that make this node one that claims deployments. */
void tell_tags(struct agent *agent, struct jsonw *w)
{
    agent->told_takes = claimer_takes(agent->claimer);
    jsonw_obj(w);
    jsonw_kstr(w, "node_unit", STR("true"));
    jsonw_kstr(w, "node_unit_address", agent->node_id);
    jsonw_kstr(w, "node_unit_takes", agent->told_takes ? STR("true") : STR("false"));
    jsonw_end_obj(w);
}

int64_t tell_max(const struct agent *agent)
{
    return agent->protect.sampled ? agent->protect.slots.max_to_send : 0;
}

void tell_write(struct agent *agent, struct jsonw *w)
{
    enum level level = agent->protect.level.level;

    /* Ruling 31: an agent is ready as long as it takes any work at all. */
    jsonw_kstr(w, "health", level >= LEVEL_DANGER ? STR("degraded") : STR("ready"));
    write_abilities(agent->config, w);
    jsonw_kstr(w, "level", str_of(level_name(level)));
    jsonw_kint(w, "max", tell_max(agent));
    jsonw_kint(w, "reserved_slots", agent->config->reserved_slots);
    jsonw_key(w, "running_jobs");
    jobs_write_running(agent->jobs, w);
    jsonw_kint(w, "taking", (int64_t)jobs_taking(agent->jobs));
    jsonw_key(w, "tags");
    tell_tags(agent, w);
    jsonw_key(w, "claim");
    claimer_write(agent->claimer, w);
    if (agent->protect.sampled) {
        write_load(&agent->protect.usage, w);
        write_usage(agent, w);
    }
    agent->told_level = level;
    agent->told_max = tell_max(agent);
}
