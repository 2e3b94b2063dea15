/* Limits by key for operators: the rules, current use, and holds. */
#include <assert.h>

#include "base/log.h"
#include "model/demand.h"
#include "model/limit.h"
#include "sched/keeper.h"
#include "server/api.h"

struct limit_call {
    struct call *call;
    struct store_op op;
    int64_t limit;
    struct str name; /* a key, or a rule's pattern */
};

static struct limit_call *limit_call(struct call *call, enum store_verb verb, store_done *done)
{
    struct limit_call *own = arena_new(call->arena, struct limit_call);

    own->call = call;
    own->limit = CALL_LIST_DEFAULT;
    own->name = call->params[0];
    own->op = call_op_timely(call, verb, done);
    return own;
}

static void failed(const struct limit_call *own)
{
    struct call *call = own->call;
    enum err err = own->op.err == ERR_TOO_LATE ? ERR_STORE_DOWN : own->op.err;

    assert(err);
    if (err == ERR_NOT_FOUND)
        call_error(call, err, "key", "There is no limit " STR_FMT ".", STR_ARG(own->name));
    else if (err == ERR_CONFLICT)
        call_error(call, err, "key", "There are %d limits already, which is the most.",
                   LIMIT_RULES_MAX);
    else
        call_error(call, err, "", "%s.", err_title(err));
}

/* False: already answered with 400. */
static bool is_key(struct call *call, struct str key)
{
    if (demand_is_key(key))
        return true;
    call_error(call, ERR_BAD_FIELD, "key",
               "A key must be 1 to %d characters out of letters, digits and . _ : @ -, like "
               "tenant:acme.",
               DEMAND_KEY_MAX);
    return false;
}

static bool is_pattern(struct call *call, struct str pattern)
{
    if (limit_is_pattern(pattern))
        return true;
    call_error(call, ERR_BAD_FIELD, "key",
               "A limit is for a key like tenant:acme, or with a * at its end, and only there, for "
               "all keys that begin so.");
    return false;
}

/* --- listing --- */

const struct store_limit *limit_rule_for(const struct store_op *op, struct str key)
{
    const struct store_limit *best = NULL;

    for (size_t i = 0; i < op->u.limits.rule_count; i++) {
        const struct store_limit *rule = &op->u.limits.rules[i];

        if (limit_matches(rule->pattern, key) &&
            (!best || limit_is_closer(rule->pattern, best->pattern)))
            best = rule;
    }
    return best;
}

void limit_holders_write(struct jsonw *w, const struct store_limit_key *key)
{
    jsonw_karr(w, "held_by");
    for (size_t i = 0; i < key->holder_count; i++) {
        char id[JOB_ID_TEXT + 1];

        job_id_text(key->holders[i], id);
        jsonw_str(w, str_of(id));
    }
    jsonw_end_arr(w);
}

/* A key with its current use; a rule for many keys (`used` NULL) has no use of its own. */
static void write_item(struct jsonw *w, struct str key, const struct store_limit *rule,
                       const struct store_limit_key *used)
{
    static const char *const use[] = {"in_flight", "waiting",     "started",
                                      "held_ms",   "hold_reason", "held_by"};

    jsonw_obj(w);
    jsonw_kstr(w, "key", key);
    jsonw_kstr(w, "rule", rule ? rule->pattern : STR_NONE);
    limit_write_members(rule ? &rule->limit : &limit_none, w);
    if (used) {
        jsonw_kint(w, "in_flight", used->in_flight);
        jsonw_kint(w, "waiting", used->waiting);
        jsonw_kint(w, "started", used->started);
        jsonw_kint(w, "held_ms", used->hold_ms);
        jsonw_kstr(w, "hold_reason", used->hold_ms ? used->hold_reason : STR_NONE);
        limit_holders_write(w, used);
    }
    for (size_t i = 0; !used && i < COUNT_OF(use); i++)
        jsonw_knull(w, use[i]);
    jsonw_end_obj(w);
}

static const struct store_limit_key unused; /* for a key that is not in use */

static bool is_for_many(struct str pattern)
{
    return pattern.at[pattern.len - 1] == '*';
}

/* Rules and keys in one sorted list: a rule whose key is in use shares that key's row. */
static void listed(struct store_op *op)
{
    struct limit_call *own = container_of(op, struct limit_call, op);
    struct call *call = own->call;
    struct str cursor = op->u.limits.after, last = STR_NONE;
    size_t rule = 0, key = 0;
    int64_t shown = 0;
    bool more = false;

    if (op->err) {
        failed(own);
        return;
    }
    struct jsonw w = call_begin(call);
    jsonw_karr(&w, "limits");
    for (;;) {
        const struct store_limit *next_rule = NULL;
        const struct store_limit_key *next_key =
            key < op->u.limits.key_count ? &op->u.limits.keys[key] : NULL;
        int order;

        while (rule < op->u.limits.rule_count &&
               ((cursor.at && str_cmp(op->u.limits.rules[rule].pattern, cursor) <= 0) ||
                (own->name.at && !str_starts(op->u.limits.rules[rule].pattern, own->name))))
            rule++;
        if (rule < op->u.limits.rule_count)
            next_rule = &op->u.limits.rules[rule];
        /* Rules after the last key of this page belong to the next page. */
        if (!next_key && (!next_rule || op->u.limits.more))
            break;
        order = !next_key ? -1 : !next_rule ? 1 : str_cmp(next_rule->pattern, next_key->key);
        more = shown == own->limit;
        if (more)
            break;
        if (order < 0)
            write_item(&w, next_rule->pattern, next_rule,
                       is_for_many(next_rule->pattern) ? NULL : &unused);
        else
            write_item(&w, next_key->key, limit_rule_for(op, next_key->key), next_key);
        last = order < 0 ? next_rule->pattern : next_key->key;
        rule += order <= 0;
        key += order >= 0;
        shown++;
    }
    jsonw_end_arr(&w);
    jsonw_kstr(&w, "next_cursor", more || op->u.limits.more ? last : STR_NONE);
    call_end(call, 200, &w);
}

void api_limit_list(struct call *call)
{
    struct limit_call *own = limit_call(call, STORE_LIMITS, listed);

    if (!call_query_int(call, "limit", 1, CALL_LIST_MAX, &own->limit))
        return;
    own->name = call_query(call, "prefix");
    own->op.u.limits.prefix = own->name;
    own->op.u.limits.after = call_query(call, "cursor");
    own->op.u.limits.max = (size_t)own->limit;
    sched_send(call->worker->sched, &own->op);
}

static void shown(struct store_op *op)
{
    struct limit_call *own = container_of(op, struct limit_call, op);
    const struct store_limit_key *used =
        !op->err && op->u.limits.key_count && str_eq(op->u.limits.keys[0].key, own->name)
            ? &op->u.limits.keys[0]
            : NULL;
    const struct store_limit *rule = NULL;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    if (!op->err)
        rule = limit_rule_for(op, own->name);
    if (!op->err && is_for_many(own->name) && (!rule || !str_eq(rule->pattern, own->name)))
        op->err = ERR_NOT_FOUND;
    if (op->err) {
        failed(own);
        return;
    }
    write_item(&w, own->name, rule, is_for_many(own->name) ? NULL : used ? used : &unused);
    call_json(own->call, 200, &buf);
}

void api_limit_get(struct call *call)
{
    struct limit_call *own = limit_call(call, STORE_LIMITS, shown);

    if (!is_pattern(call, own->name))
        return;
    own->op.u.limits.prefix = own->name;
    own->op.u.limits.max = 1; /* of the names with this prefix, the name itself comes first */
    sched_send(call->worker->sched, &own->op);
}

/* --- rules --- */

struct rule_fields {
    int64_t concurrency, queue, weight;
    struct str rate;
};

static const struct field rule_fields[] = {
    FIELD_ROW(rule_fields, concurrency, INT, .max = DEMAND_AMOUNT_MAX,
              .help = "jobs with the key that may have a lease at once"),
    FIELD_ROW(rule_fields, rate, STR, .max = 32,
              .help = "starts in a sliding window, like \"60/1m\""),
    FIELD_ROW(rule_fields, queue, INT, .max = DEMAND_AMOUNT_MAX, .help = "jobs that may wait"),
    FIELD_ROW(rule_fields, weight, INT, .min = 1, .max = LIMIT_WEIGHT_MAX,
              .help = "turns of the queue beside others' one, default 1"),
};
const struct schema limit_rule_schema = {
    .what = "the limit", .fields = rule_fields, .count = COUNT_OF(rule_fields), .strict = true};

static void changed(struct store_op *op)
{
    struct limit_call *own = container_of(op, struct limit_call, op);
    bool held = op->u.limit.hold_ms > 0;

    if (op->err) {
        failed(own);
        return;
    }
    if (!held) /* jobs waiting for the key may start */
        keeper_limits_changed(own->call->worker->sched->sched->keeper);
    if (op->verb == STORE_LIMIT_HOLD)
        log_event(LOG_INFO, held ? "limit.held" : "limit.released", KS("key", own->name),
                  KI("hold_ms", op->u.limit.hold_ms));
    else
        log_event(LOG_INFO, op->u.limit.drop ? "limit.dropped" : "limit.set", KS("key", own->name));
    call_ok(own->call);
}

void api_limit_set(struct call *call)
{
    struct limit_call *own = limit_call(call, STORE_LIMIT_SET, changed);
    struct rule_fields in = {.concurrency = LIMIT_NONE, .queue = LIMIT_NONE, .weight = 1};
    struct limit *limit = &own->op.u.limit.limit;

    if (!is_pattern(call, own->name) || !call_read(call, &limit_rule_schema, &in))
        return;
    *limit = limit_none;
    limit->concurrency = (int32_t)in.concurrency;
    limit->queue = (int32_t)in.queue;
    limit->weight = (int32_t)in.weight;
    if (in.rate.at && !limit_rate_parse(in.rate, limit)) {
        call_error(call, ERR_BAD_FIELD, "rate",
                   "rate must be like \"60/1m\": 1 to %d starts in 1ms to 1d.", LIMIT_RATE_MAX);
        return;
    }
    own->op.u.limit.pattern = own->name;
    sched_send(call->worker->sched, &own->op);
}

void api_limit_drop(struct call *call)
{
    struct limit_call *own = limit_call(call, STORE_LIMIT_SET, changed);

    if (!is_pattern(call, own->name))
        return;
    own->op.u.limit.pattern = own->name;
    own->op.u.limit.limit = limit_none;
    own->op.u.limit.drop = true;
    sched_send(call->worker->sched, &own->op);
}

/* --- holds --- */

struct hold_fields {
    int64_t for_ms, until_ms;
    struct str reason;
};

static const struct field hold_fields[] = {
    FIELD_ROW(hold_fields, for_ms, MS, .max = LIMIT_HOLD_MS_MAX, .help = "from now"),
    FIELD_ROW(hold_fields, until_ms, INT, .max = INT64_C(1) << 53,
              .help = "milliseconds since 1970; one of both is needed"),
    FIELD_ROW(hold_fields, reason, STR, .max = LIMIT_REASON_MAX),
};
const struct schema limit_hold_schema = {
    .what = "the hold", .fields = hold_fields, .count = COUNT_OF(hold_fields), .strict = true};

void api_limit_hold(struct call *call)
{
    struct limit_call *own = limit_call(call, STORE_LIMIT_HOLD, changed);
    struct hold_fields in = {0};
    int64_t hold_ms;

    if (!is_key(call, own->name) || !call_read(call, &limit_hold_schema, &in))
        return;
    hold_ms = in.for_ms ? in.for_ms : in.until_ms - *call->worker->sched->wall_ms;
    if (!in.for_ms == !in.until_ms || hold_ms <= 0 || hold_ms > LIMIT_HOLD_MS_MAX) {
        call_error(call, ERR_BAD_FIELD, in.until_ms ? "until_ms" : "for_ms",
                   "Either for_ms or until_ms says how long: more than 0, at most 30 days.");
        return;
    }
    own->op.u.limit.pattern = own->name;
    own->op.u.limit.hold_ms = hold_ms;
    own->op.u.limit.reason = in.reason.at ? in.reason : STR("");
    sched_send(call->worker->sched, &own->op);
}

void api_limit_release(struct call *call)
{
    struct limit_call *own = limit_call(call, STORE_LIMIT_HOLD, changed);

    if (!is_key(call, own->name))
        return;
    own->op.u.limit.pattern = own->name;
    own->op.u.limit.reason = STR("");
    sched_send(call->worker->sched, &own->op);
}
