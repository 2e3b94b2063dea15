/* What the server may ask, answered at once and from memory (or the run's own files). */
#include <assert.h>

#include "agent/agent_private.h"

enum { LOG_BYTES_DEFAULT = 64 * 1024, LOG_BYTES_MAX = 128 * 1024 };

/* Agent and all its runs, share of the whole machine. */
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

/* Bytes at the end that may be the beginning of a character. */
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
        text.len -= cut; /* comes with the next piece */
    jsonw_obj(w);
    if (attempt) /* whose output: the next attempt writes from 0 again */
        jsonw_kint(w, "attempt_id", attempt);
    jsonw_kint(w, "offset", offset);
    jsonw_kint(w, "next", offset + (int64_t)text.len);
    jsonw_kint(w, "total", total);
    jsonw_kstr(w, "text", text.at ? text : STR(""));
    jsonw_kbool(w, "ended", over);
    jsonw_end_obj(w);
}

/* Where to begin and how much, as both kinds of logs are asked for. */
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

static enum err answer(struct agent *agent, const struct json *body, struct jsonw *w,
                       struct problem *why)
{
    struct arena arena = {0};
    struct str method = json_str(json_get(body, "method"), &arena);
    enum err err = ERR_NOT_FOUND;
    size_t i = 0;

    while (i < COUNT_OF(methods) && !str_is(method, methods[i].method))
        i++;
    if (i < COUNT_OF(methods))
        err = methods[i].answer(agent, json_get(body, "params"), w, why);
    else
        problem_set(why, err, "method", "An agent has no method \"" STR_FMT "\".", STR_ARG(method));
    arena_free(&arena);
    return err;
}

void rpc_answer(struct agent *agent, const struct json *body)
{
    struct buf result = {0};
    struct jsonw w = jsonw_to(&result);
    struct problem why;
    int64_t id;
    enum err err;

    if (!json_int(json_get(body, "id"), &id))
        return;
    err = answer(agent, body, &w, &why);
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
}
