/* reservation. Reservations are found by name, as in the store's map; as in the store, expired ones
 * are cleared before each operation. */
#include "vec.h"

#include "model/lease.h"

struct resv {
    struct str name;
    struct lease lease;
    struct resv *next;
};

struct ledger {
    struct vec *vec;
    struct lease_node node;
    struct resv *resvs;
    struct str jobs[256]; /* a job's number is its index + 1 */
    int64_t now_ms;
    int64_t expired; /* in this step */
};

static struct lease *lease_of(struct ledger *ledger, struct str name)
{
    struct resv *resv;

    for (resv = ledger->resvs; resv; resv = resv->next)
        if (str_eq(resv->name, name))
            return &resv->lease;
    resv = arena_new(ledger->vec->arena, struct resv);
    resv->name = name;
    resv->next = ledger->resvs;
    ledger->resvs = resv;
    return &resv->lease;
}

static uint64_t job_of(struct ledger *ledger, struct str name)
{
    for (size_t i = 0; i < COUNT_OF(ledger->jobs); i++) {
        if (!ledger->jobs[i].at)
            ledger->jobs[i] = name;
        if (str_eq(ledger->jobs[i], name))
            return i + 1;
    }
    return 0;
}

static bool op_try_reserve(struct ledger *ledger, const struct json *step, struct jsonw *w)
{
    struct str name = vec_str(ledger->vec, step, "resv");
    uint64_t job = job_of(ledger, vec_str(ledger->vec, step, "job"));
    int64_t ttl_ms = vec_int(step, "ttl_ms", -1);
    enum lease_reason reason;

    if (!name.at || job == 0 || ttl_ms < 0)
        return false;
    reason = lease_reserve(&ledger->node, lease_of(ledger, name), job, ledger->now_ms, ttl_ms);
    jsonw_arr(w);
    jsonw_bool(w, reason == LEASE_OK);
    jsonw_str(w, str_of(lease_reason_name(reason)));
    jsonw_end_arr(w);
    return true;
}

static bool op_commit(struct ledger *ledger, const struct json *step, struct jsonw *w)
{
    struct lease *lease = lease_of(ledger, vec_str(ledger->vec, step, "resv"));
    uint64_t job = job_of(ledger, vec_str(ledger->vec, step, "job"));

    jsonw_bool(w, lease_ack(&ledger->node, lease, job, ledger->now_ms, LEASE_FOREVER));
    return true;
}

static bool op_release(struct ledger *ledger, const struct json *step, struct jsonw *w)
{
    struct lease *lease = lease_of(ledger, vec_str(ledger->vec, step, "resv"));

    jsonw_bool(w, lease_release(&ledger->node, lease));
    return true;
}

static bool op_dec_running(struct ledger *ledger, const struct json *step, struct jsonw *w)
{
    struct lease *lease = lease_of(ledger, vec_str(ledger->vec, step, "resv"));

    jsonw_bool(w, lease_finish(&ledger->node, lease));
    return true;
}

/* A node without health and capacity has no record. */
static void read_record(struct ledger *ledger, const struct json *facts)
{
    if (json_get(facts, "health"))
        ledger->node.health = node_health_by_name(vec_str(ledger->vec, facts, "health"));
    ledger->node.max = (int32_t)vec_int(facts, "max", ledger->node.max);
}

static bool op_heartbeat(struct ledger *ledger, const struct json *step, struct jsonw *w)
{
    read_record(ledger, step);
    jsonw_null(w);
    return true;
}

static bool op_tick(struct ledger *ledger, const struct json *step, struct jsonw *w)
{
    (void)step;
    jsonw_int(w, ledger->expired);
    return true;
}

static const struct {
    const char *name;
    bool (*run)(struct ledger *ledger, const struct json *step, struct jsonw *w);
} ops[] = {
    {"try_reserve", op_try_reserve}, {"commit", op_commit},       {"release", op_release},
    {"dec_running", op_dec_running}, {"heartbeat", op_heartbeat}, {"tick", op_tick},
};

static bool run_step(struct ledger *ledger, const struct json *step)
{
    struct buf answer = {0};
    struct jsonw w = jsonw_to(&answer);
    bool known = false;

    ledger->now_ms = vec_int(step, "at_ms", ledger->now_ms);
    ledger->expired = 0;
    for (struct resv *resv = ledger->resvs; resv; resv = resv->next)
        ledger->expired += lease_expire(&ledger->node, &resv->lease, ledger->now_ms);
    for (size_t i = 0; i < COUNT_OF(ops) && !known; i++)
        known = json_str_is(json_get(step, "op"), ops[i].name) && ops[i].run(ledger, step, &w);
    if (known)
        vec_check(ledger->vec, step, buf_view(&answer));
    buf_free(&answer);
    return known;
}

bool area_reservation(struct vec *vec)
{
    const struct json *node = json_get(vec->in, "node");
    const struct json *steps = json_get(vec->in, "steps");
    struct ledger ledger = {.vec = vec};
    struct vec_at at = {0};

    ledger.node.running = (int32_t)vec_int(node, "running", 0);
    ledger.node.reserved = (int32_t)vec_int(node, "reserved", 0);
    read_record(&ledger, node);
    if (json_is_null(json_get(node, "max")))
        ledger.node.health = NODE_HEALTH_NONE;
    if (!lease_counts_ok(&ledger.node))
        return false;
    for (const struct json *step; (step = vec_each(steps, &at));)
        if (!run_step(&ledger, step))
            return false;
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "final");
    jsonw_obj(vec->w);
    jsonw_kint(vec->w, "running", ledger.node.running);
    jsonw_kint(vec->w, "reserved", ledger.node.reserved);
    jsonw_end_obj(vec->w);
    jsonw_end_obj(vec->w);
    return true;
}
