/* The table of jobs: coming, going, and looking. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/jobs_private.h"
#include "base/mem.h"

bool jobs_key(struct str job_id, int64_t attempt, char key[JOBS_KEY_MAX])
{
    int len = snprintf(key, JOBS_KEY_MAX, STR_FMT ".%lld", STR_ARG(job_id), (long long)attempt);

    return len > 0 && len < JOBS_KEY_MAX && str_is_id(str_of(key), RUN_KEY_MAX);
}

struct agent_job *jobs_new_job(struct jobs *jobs, enum jobs_state state)
{
    struct agent_job *job = mem_new(struct agent_job);

    job->jobs = jobs;
    job->state = state;
    return job;
}

void jobs_enter(struct agent_job *job)
{
    struct jobs *jobs = job->jobs;

    assert(job->key[0] && !map_get(&jobs->by_key, str_of(job->key)));
    map_put(&jobs->by_key, str_of(job->key), job);
    job->before = jobs->last;
    if (jobs->last)
        jobs->last->next = job;
    else
        jobs->first = job;
    jobs->last = job;
    jobs->count++;
    jobs->counts[job->state]++;
}

void jobs_delete(struct agent_job *job)
{
    arena_free(&job->order);
    arena_free(&job->arena);
    free(job);
}

void jobs_leave(struct agent_job *job)
{
    struct jobs *jobs = job->jobs;

    assert(!job->run && !job->note);
    map_del(&jobs->by_key, str_of(job->key));
    if (job->before)
        job->before->next = job->next;
    else
        jobs->first = job->next;
    if (job->next)
        job->next->before = job->before;
    else
        jobs->last = job->before;
    jobs->count--;
    jobs->counts[job->state]--;
    jobs->kept_bytes -= job->kept_bytes;
    jobs_delete(job);
}

void jobs_set_state(struct agent_job *job, enum jobs_state state)
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
    for (const struct agent_job *job = jobs->first; job && left > 0; job = job->next) {
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

size_t jobs_taking(const struct jobs *jobs)
{
    return jobs->counts[JOBS_ACKING];
}

size_t jobs_in_use(const struct jobs *jobs)
{
    return jobs->counts[JOBS_ACKING] + jobs->counts[JOBS_RUNNING];
}

struct agent_job *jobs_next(const struct jobs *jobs, const struct agent_job *job)
{
    return job ? job->next : jobs->first;
}

struct agent_job *jobs_find(const struct jobs *jobs, struct str job_id, int attempt)
{
    struct agent_job *found = NULL;

    for (struct agent_job *job = jobs->first; job; job = job->next)
        if (str_is(job_id, job->job_id) &&
            (attempt ? job->attempt == attempt : !found || job->attempt > found->attempt))
            found = job;
    return found;
}

void *jobs_user(const struct jobs *jobs)
{
    return jobs->user;
}
