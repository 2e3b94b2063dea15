/* Between the files of the agent itself:
 *   agent.c  settings, wiring, signals
 *   tell.c   what hello and heartbeats say
 *   rpc.c    what the server may ask */
#ifndef AGENT_AGENT_PRIVATE_H
#define AGENT_AGENT_PRIVATE_H

#include "agent/config.h"
#include "agent/jobs.h"
#include "agent/link.h"
#include "agent/protect.h"

struct agent {
    struct loop loop;
    struct config_source source;
    const struct config *config;
    const char *dir; /* absolute */
    struct str node_id;
    struct net_tls *tls;
    struct link_config link_config;
    struct link *link; /* NULL until the machine was measured once */
    struct runs *runs;
    struct jobs *jobs;
    struct sampler *sampler;
    struct protect protect;
    uv_signal_t signals[3];
    int64_t alive_ms; /* when the service manager was last told */
    /* What was told last, to know what is news. */
    enum level told_level;
    int64_t told_max;
    /* Room for what runs: see agent.c. */
    struct protect_task *tasks;
    struct agent_job **task_jobs;
    int *pids;
    size_t room;
    struct buf text;
};

/* What protects this machine, out of its settings; `berth run` goes by the same. */
enum err agent_rules(const struct config *config, struct protect_rules *ret_rules,
                     struct problem *why);

/* The fields of hello and heartbeat, into an open object. */
void tell_write(struct agent *agent, struct jsonw *w);
int64_t tell_max(const struct agent *agent); /* how many jobs it would run at once right now */

/* An `rpc` message; answered before this returns. */
void rpc_answer(struct agent *agent, const struct json *body);

#endif
