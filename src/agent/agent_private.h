/* Between the files of the agent itself:
 *   agent.c          settings, wiring, signals
 *   agent_machine.c  what the samples mean
 *   reload.c         settings that change while it runs
 *   tell.c           what hello and heartbeats say
 *   rpc.c            what the server may ask */
#ifndef AGENT_AGENT_PRIVATE_H
#define AGENT_AGENT_PRIVATE_H

#include "agent/access.h"
#include "agent/claimer.h"
#include "agent/config.h"
#include "agent/copies.h"
#include "agent/jobs.h"
#include "agent/link.h"
#include "agent/node_lease.h"
#include "agent/protect.h"
#include "agent/queries.h"

struct agent {
    struct loop loop;
    int argc;
    char **argv;
    struct arena arena; /* as long as the process */
    struct config_source *source;
    struct config settings; /* of the newest source, at an address that stays */
    const struct config *config;
    const char *dir; /* absolute */
    struct str node_id, instance;
    struct access access;
    struct link_config link_config;
    struct link *link; /* NULL until the machine was measured once */
    struct runs *runs;
    struct jobs *jobs;
    struct copies *copies;
    struct queries *queries;
    struct tenure *tenure;
    struct claimer *claimer;
    struct sampler *sampler;
    struct protect protect;
    uv_signal_t signals[3];
    int endings;      /* signals to end that came, while it ends what runs */
    int64_t ended_ms; /* CLOCK_MONOTONIC: nothing runs any more since; 0: something does */
    int64_t alive_ms; /* when the service manager was last told */
    /* What was told last, to know what is news. */
    enum level told_level;
    int64_t told_max;
    bool told_takes;
    /* Room for what runs: see agent.c. */
    struct protect_task *tasks;
    struct agent_owner { /* of the task at the same place */
        struct agent_job *job;
        struct copy *copy; /* if it is no job */
    } * owners;
    int *pids;
    size_t room;
    bool pids_stale; /* a run began: the thread that measures does not know it yet */
    struct buf text;
};

/* What protects this machine, out of its settings; `berth run` goes by the same. */
enum err agent_rules(const struct config *config, struct protect_rules *ret_rules,
                     struct problem *why);

/* SIGHUP (reload.c). */
void agent_reload(struct agent *agent);
void agent_run_rules(struct agent *agent); /* how work runs, likewise */
void agent_access(struct agent *agent); /* token and certificate files, as the settings have them */
enum err agent_open_log(const struct config *config, struct problem *why);
/* Measures from now on; the first sample opens the link. */
enum err machine_watch(struct agent *agent, struct problem *why);
/* Tells the thread that measures of runs that began: one can be large before the next sample. */
void machine_own(struct agent *agent);
void machine_kill(struct protect *protect, const struct protect_kill *kill);
extern const struct link_handler agent_link_handler;

/* The fields of hello and heartbeat, into an open object. */
void tell_write(struct agent *agent, struct jsonw *w);
void tell_tags(struct agent *agent, struct jsonw *w); /* an object */
int64_t tell_max(const struct agent *agent); /* how many jobs it would run at once right now */

/* An `rpc` message; answered before this returns. */
void rpc_answer(struct agent *agent, const struct json *body);

#endif
