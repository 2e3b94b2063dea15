/* circuit_breaker, breaker_attribution. */
#include "vec.h"

#include "model/breaker.h"
#include "store/change.h"

struct circuit {
    struct vec *vec;
    struct breaker breaker;
    struct breaker_rules rules;
    int64_t now_ms;
    enum breaker_event event; /* of this step */
};

static void op_fail(struct circuit *circuit, struct jsonw *w)
{
    circuit->event = breaker_fail(&circuit->breaker, &circuit->rules, circuit->now_ms);
    jsonw_null(w);
}

static void op_ok(struct circuit *circuit, struct jsonw *w)
{
    circuit->event = breaker_ok(&circuit->breaker, &circuit->rules, circuit->now_ms);
    jsonw_null(w);
}

static void op_allowed(struct circuit *circuit, struct jsonw *w)
{
    jsonw_bool(w, breaker_allowed(&circuit->breaker, &circuit->rules, circuit->now_ms));
}

static void op_state(struct circuit *circuit, struct jsonw *w)
{
    enum breaker_state state = breaker_state(&circuit->breaker, &circuit->rules, circuit->now_ms);

    jsonw_str(w, str_of(breaker_state_name(state)));
}

static void op_reset(struct circuit *circuit, struct jsonw *w)
{
    breaker_reset(&circuit->breaker);
    jsonw_null(w);
}

/* The probe ended without an outcome that counts. */
static void op_uncounted(struct circuit *circuit, struct jsonw *w)
{
    breaker_probe_ended(&circuit->breaker);
    jsonw_null(w);
}

/* Keeps only what the store keeps: of a probe its job, whose lease goes on. Here the end of the
 * probe stands for that job. */
static void op_restart(struct circuit *circuit, struct jsonw *w)
{
    struct change change = {.kind = CHANGE_BREAKER,
                            .u.breaker = {.node = STR("n1"),
                                          .type = STR("dev"),
                                          .breaker = circuit->breaker,
                                          .probe_job = (uint64_t)circuit->breaker.probe_until_ms}};
    struct buf stored = {0};
    struct str rest;

    change_write(&stored, &change);
    change = (struct change){0};
    rest = buf_view(&stored);
    change_read(&rest, &change);
    circuit->breaker = change.u.breaker.breaker;
    circuit->breaker.probe_until_ms = (int64_t)change.u.breaker.probe_job;
    buf_free(&stored);
    jsonw_null(w);
}

static const struct {
    const char *name;
    void (*run)(struct circuit *circuit, struct jsonw *w);
} ops[] = {
    {"fail", op_fail},   {"ok", op_ok},           {"allowed", op_allowed},     {"state", op_state},
    {"reset", op_reset}, {"restart", op_restart}, {"uncounted", op_uncounted},
};

/* A step may also give the state and the count after it. */
static void check_rest(struct circuit *circuit, const struct json *step)
{
    struct vec *vec = circuit->vec;
    struct breaker now = circuit->breaker;
    const char *state = breaker_state_name(breaker_state(&now, &circuit->rules, circuit->now_ms));
    const struct json *want_state = json_get(step, "expect_state");
    const struct json *want_failures = json_get(step, "expect_failures");

    if (vec->wrong_got.at)
        return;
    if ((!want_state || json_str_is(want_state, state)) &&
        (!want_failures || vec_int(step, "expect_failures", -1) == now.failures))
        return;
    vec->wrong_expected = vec_compact(step, vec->arena);
    vec->wrong_got = arena_fmt(vec->arena, "{\"expect_state\":\"%s\",\"expect_failures\":%d}",
                               state, (int)now.failures);
}

static bool run_step(struct circuit *circuit, const struct json *step)
{
    struct buf answer = {0};
    struct jsonw w = jsonw_to(&answer);
    bool known = false;

    circuit->now_ms = vec_int(step, "at_ms", circuit->now_ms);
    circuit->event = BREAKER_NO_EVENT;
    for (size_t i = 0; i < COUNT_OF(ops) && !known; i++) {
        known = json_str_is(json_get(step, "op"), ops[i].name);
        if (known)
            ops[i].run(circuit, &w);
    }
    if (known) {
        vec_check(circuit->vec, step, buf_view(&answer));
        check_rest(circuit, step);
    }
    buf_free(&answer);
    return known;
}

bool area_circuit_breaker(struct vec *vec)
{
    const struct json *config = json_get(vec->in, "config");
    const struct json *steps = json_get(vec->in, "steps");
    struct circuit circuit = {.vec = vec, .rules = breaker_defaults};
    struct vec_at at = {0};

    circuit.rules.threshold = (int32_t)vec_int(config, "threshold", circuit.rules.threshold);
    circuit.rules.cooldown_ms = vec_int(config, "cooldown_ms", circuit.rules.cooldown_ms);
    circuit.rules.probe_ms = vec_int(config, "probe_ms", circuit.rules.probe_ms);
    if (circuit.rules.threshold < 1 || circuit.rules.cooldown_ms < 0 || circuit.rules.probe_ms < 1)
        return false;
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "events");
    jsonw_arr(vec->w);
    for (const struct json *step; (step = vec_each(steps, &at));) {
        if (!run_step(&circuit, step))
            return false;
        if (circuit.event != BREAKER_NO_EVENT)
            jsonw_str(vec->w, str_of(breaker_event_name(circuit.event)));
    }
    jsonw_end_arr(vec->w);
    jsonw_end_obj(vec->w);
    return true;
}

bool area_breaker_attribution(struct vec *vec)
{
    jsonw_obj(vec->w);
    jsonw_kbool(vec->w, "counts", breaker_counts(vec_str(vec, vec->in, "failure_class")));
    jsonw_end_obj(vec->w);
    return true;
}
