/* job_fsm, job_state_map. */
#include "vec.h"

#include "model/job.h"

static bool read_event(struct vec *vec, const struct json *event, struct job_input *ret_input)
{
    struct job_input input = {
        .attempt = (int)vec_int(event, "attempt", 0),
        .node = vec_str(vec, event, "node"),
        .candidates_left = vec_bool(event, "candidates_left", false),
    };

    while (input.event < JOB_EVENT_COUNT &&
           !json_str_is(json_get(event, "event"), job_event_name(input.event)))
        input.event++;
    if (input.event == JOB_EVENT_COUNT)
        return false;
    if (input.event == JOB_EV_DONE && !job_status_ok(vec_str(vec, event, "status")))
        input.event = JOB_EV_FAIL;
    *ret_input = input;
    return true;
}

bool area_job_fsm(struct vec *vec)
{
    const struct json *record = json_get(vec->in, "job");
    struct job_facts job = {
        .attempt = (int)vec_int(record, "attempt", 1),
        .max_attempts = (int)vec_int(vec->in, "max_retry", JOB_ATTEMPTS_DEFAULT),
        .node = vec_str(vec, record, "node"),
    };
    struct job_input input;
    struct job_step step;

    if (!job_state_by_name(vec_str(vec, record, "state"), &job.state))
        return false;
    step = (struct job_step){.state = job.state, .attempt = job.attempt};
    if (read_event(vec, json_get(vec->in, "event"), &input)) /* an unknown event changes nothing */
        step = job_step(&job, &input);
    jsonw_obj(vec->w);
    jsonw_kbool(vec->w, "accepted", step.accepted);
    jsonw_kstr(vec->w, "state", str_of(job_state_name(step.state)));
    jsonw_kint(vec->w, "attempt", step.attempt);
    jsonw_kstr(vec->w, "effect", str_of(job_effect_name(step.effect)));
    jsonw_end_obj(vec->w);
    return true;
}

bool area_job_state_map(struct vec *vec)
{
    enum job_state state;
    bool known = job_state_by_name(vec_str(vec, vec->in, "v41"), &state);

    jsonw_obj(vec->w);
    jsonw_kstr(vec->w, "lockless", known ? str_of(job_status_name(state)) : STR_NONE);
    jsonw_end_obj(vec->w);
    return true;
}
