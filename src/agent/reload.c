/* SIGHUP: settings are read again, checked whole, and only then taken over; a mistake changes
 * nothing and is told. What is not FIELD_LIVE waits for a restart. Settings that were live before
 * stay in memory until the end of the process: a run or the link may hold a text of theirs. */
#include <stdlib.h>

#include "agent/agent_private.h"
#include "base/log.h"
#include "base/mem.h"

/* What the table does not hold follows from what it does, and some of that stays as it was. */
static void keep_derived(struct config *next, const struct config *now)
{
    for (size_t i = 0; i < now->url_count; i++)
        next->urls[i] = now->urls[i];
    next->url_count = now->url_count;
    next->tls = now->tls;
    if (!next->token_file.len)
        next->token = now->token; /* of the environment, which was wiped */
}

static void take_over(struct agent *agent, struct config_source *next,
                      const struct protect_rules *rules)
{
    next->before = agent->source;
    agent->source = next;
    agent->settings = next->config;
    agent_access(agent);
    agent->protect.rules = *rules;
    agent_run_rules(agent);
    log_tune((enum log_level)agent->config->log_level, (enum log_format)agent->config->log_format);
    tenure_judge(agent->tenure);
    if (agent->link)
        link_beat(agent->link); /* labels, types and limits are news */
}

static enum err reload(struct agent *agent, struct buf *changed, struct buf *waiting,
                       struct problem *why)
{
    struct config_source *next = mem_new(struct config_source);
    struct protect_rules rules;
    enum err err = config_load(next, agent->argc, agent->argv, why);

    if (!err) {
        conf_keep(&next->conf, &agent->source->conf, changed, waiting);
        keep_derived(&next->config, agent->config);
        if (!str_eq(next->config.token, agent->config->token)) /* another one in the same file */
            buf_fmt(changed, "%stoken", changed->len ? "," : "");
        err = agent_rules(&next->config, &rules, why);
    }
    if (!err)
        err = agent_open_log(&next->config, why);
    if (err || !changed->len) {
        config_done(next);
        free(next);
        return err;
    }
    take_over(agent, next, &rules);
    return ERR_OK;
}

void agent_reload(struct agent *agent)
{
    struct buf changed = {0}, waiting = {0};
    struct problem why = {0};

    if (reload(agent, &changed, &waiting, &why))
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
