/* Renewing, passing on what it says, telling how the copies are, and giving up those that must not
 * stay. The lease is judged by the database; we only count from the moment we asked. */
#include "agent/node_lease.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/lease.h"
#include "model/namespace.h"
#include "model/pool.h"

enum {
    LEASE_MS = 45000, /* until a server says otherwise */
    RENEW_MS = 5000,
    RENEW_MS_MIN = 50,
    JUDGE_MS = 100, /* until a server that knows other labels of ours is asked again */
    CALL_MS_MIN = 500,
    STATUS_PAUSE_MS = 100, /* changes that come together are told together */
    STATUS_COPIES = 1000,  /* told in one call; the server takes some more */
};

struct tenure {
    struct loop *loop;
    struct queries *queries;
    struct copies *copies;
    const struct config *config;
    struct str node_id, instance;
    int64_t lease_ms, renew_ms;
    int64_t version;       /* of the table we know; -1: none */
    int64_t good_until_ms; /* clock_lease_ms() */
    enum tenure_admin admin;
    int64_t drain_deadline_ms; /* CLOCK_MONOTONIC; 0: none */
    bool up;
    bool again;      /* something changed while a renewal was under way */
    int64_t next_ms; /* of the next renewal, CLOCK_MONOTONIC */
    int64_t sent_ms; /* clock_lease_ms() when the one under way left */
    struct query renew;
    bool renewing;
    struct query status;
    bool telling, untold;
    int64_t tell_ms;
    size_t tell_from; /* of which copy the next call tells first */
    struct query yield;
    bool yielding;
    char leaving[DEPLOY_ID_MAX + 1]; /* which one is being given up */
    int64_t left_ms;                 /* when the last one went */
    struct query goodbye;
    struct rnd rnd;
    struct buf body;
    struct loop_part part;
    bool refused; /* the last renewal; logged once */
};

static int64_t call_ms(const struct tenure *tenure)
{
    return tenure->renew_ms > CALL_MS_MIN ? tenure->renew_ms : CALL_MS_MIN;
}

/* Every call says who speaks. */
static struct jsonw new_body(struct tenure *tenure)
{
    struct jsonw w = jsonw_to(&tenure->body);

    buf_clear(&tenure->body);
    jsonw_obj(&w);
    jsonw_kstr(&w, "node_id", tenure->node_id);
    jsonw_kstr(&w, "instance", tenure->instance);
    return w;
}

/* --- what a renewal says --- */

/* `namespaces`: those this node takes deployments of. */
static bool matches(const struct json *labels, const struct json *namespaces,
                    const struct json *row, struct arena *arena)
{
    struct str selector = json_str(json_get(json_get(row, "spec"), "selector"), arena);

    return (!selector.len || selector_match(selector, labels)) &&
           namespace_in(namespaces, json_str(json_get(row, "id"), arena));
}

/* Each node judges itself. A daemon that does not match, or is not allowed, is not run; a
 * deployment is this node's until it was given up, and before that it must have stopped. */
static void take_row(struct tenure *tenure, const struct json *labels,
                     const struct json *namespaces, const struct json *row, struct arena *arena)
{
    struct str id = json_str(json_get(row, "id"), arena);
    bool fits = matches(labels, namespaces, row, arena),
         allowed = tenure->config->allow_deployments;

    if (json_str_is(json_get(row, "type"), "daemon")) {
        if (fits && allowed)
            copies_want(tenure->copies, row);
        return;
    }
    copies_want(tenure->copies, row);
    if (fits)
        copies_keep(tenure->copies, id, COPY_UNMATCHED);
    if (allowed)
        copies_keep(tenure->copies, id, COPY_REFUSED);
    if (!allowed || !fits)
        copies_hold(tenure->copies, id, allowed ? COPY_UNMATCHED : COPY_REFUSED);
}

static void take_rows(struct tenure *tenure, const struct json *labels,
                      const struct json *namespaces, const struct json *rows)
{
    const struct json *row = json_first(rows);
    struct arena arena = {0};

    copies_round(tenure->copies);
    for (uint32_t i = 0; i < rows->count; i++, row = json_next(row))
        take_row(tenure, labels, namespaces, row, &arena);
    copies_round_over(tenure->copies);
    arena_free(&arena);
}

static void take_admin(struct tenure *tenure, const struct json *word)
{
    static const char *const names[] = {
        [TENURE_NONE] = "none", [TENURE_CORDONED] = "cordoned", [TENURE_DRAINING] = "draining"};

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (json_str_is(word, names[i]))
            tenure->admin = (enum tenure_admin)i;
}

static void take_times(struct tenure *tenure, const struct json *reply)
{
    int64_t lease_ms = tenure->lease_ms, renew_ms = tenure->renew_ms;

    json_int(json_get(reply, "lease_ms"), &lease_ms);
    json_int(json_get(reply, "renew_ms"), &renew_ms);
    tenure->lease_ms = lease_ms > 0 ? lease_ms : LEASE_MS;
    tenure->renew_ms = renew_ms > RENEW_MS_MIN ? renew_ms : RENEW_MS_MIN;
}

/* By the database's clock; ours may be another one. */
static void take_deadline(struct tenure *tenure, const struct json *reply)
{
    int64_t now_ms, deadline_ms;

    tenure->drain_deadline_ms = 0;
    if (json_int(json_get(reply, "now_ms"), &now_ms) &&
        json_int(json_get(reply, "drain_deadline_ms"), &deadline_ms) && deadline_ms)
        tenure->drain_deadline_ms = tenure->loop->mono_ms + deadline_ms - now_ms;
}

/* Did the server judge by the labels we have? A server that does not say so leaves it to us. */
static bool judged_by_ours(const struct tenure *tenure, const struct json *labels)
{
    const struct json *own = tenure->config->labels, *key = json_first(own);
    uint32_t count = json_type(own) == JSON_OBJ ? own->count : 0;
    struct arena arena = {0};
    bool same = !labels || count == (json_type(labels) == JSON_OBJ ? labels->count : 0);

    for (uint32_t i = 0; labels && same && i < count; i++, key = json_next(key + 1)) {
        const struct json *value = json_get(labels, arena_cstr(&arena, json_str(key, &arena)));

        same = str_eq(json_str(value, &arena), json_str(key + 1, &arena));
    }
    arena_free(&arena);
    return same;
}

static void renewed(struct tenure *tenure, const struct json *reply)
{
    const struct json *rows = json_get(reply, "deployments");
    const struct json *fixed = json_get(reply, "fixed_labels"); /* by the server, whatever we say */
    int64_t grace_ms;

    assert(tenure->sent_ms > 0 && !tenure->renewing);
    take_times(tenure, reply);
    take_admin(tenure, json_get(reply, "admin"));
    take_deadline(tenure, reply);
    if (json_type(rows) == JSON_ARR && !judged_by_ours(tenure, json_get(reply, "labels"))) {
        tenure->next_ms = tenure->loop->mono_ms + JUDGE_MS; /* our labels are on their way */
    } else if (json_type(rows) == JSON_ARR) {
        json_int(json_get(reply, "version"), &tenure->version);
        take_rows(tenure, fixed ? fixed : tenure->config->labels, json_get(reply, "namespaces"),
                  rows);
    }
    tenure->good_until_ms = fence_stop_ms(tenure->sent_ms, tenure->lease_ms);
    grace_ms = fence_grace_ms(tenure->lease_ms);
    if (tenure->version >= 0)
        copies_fence(tenure->copies, tenure->good_until_ms, grace_ms > 0 ? grace_ms : 1);
}

static void on_renewed(struct query *query)
{
    struct tenure *tenure = container_of(query, struct tenure, renew);

    tenure->renewing = false;
    /* Some earlier than agreed, so that nodes that began together do not stay together. */
    tenure->next_ms =
        tenure->loop->mono_ms +
        (tenure->again
             ? 0
             : tenure->renew_ms - rnd_below(&tenure->rnd, (uint32_t)(tenure->renew_ms / 10 + 1)));
    tenure->again = false;
    if (query->err == ERR_OK)
        renewed(tenure, query->reply);
    else if (!tenure->refused && json_str_is(json_get(query->reply, "reason"), "other_instance"))
        log_event(LOG_ERROR, "lease.other_instance", KS("node_id", tenure->node_id),
                  KC("reason",
                     "another agent with this node_id has the lease, or had it on another "
                     "data_dir or before a reboot"));
    else if (!tenure->refused && query->err != ERR_CLOSED)
        log_event(
            LOG_WARN, "lease.not_renewed", KS("node_id", tenure->node_id),
            KC("reason", err_name(query->err)),
            KI("left_ms", tenure->good_until_ms ? tenure->good_until_ms - clock_lease_ms() : 0));
    tenure->refused = query->err != ERR_OK;
}

static void renew(struct tenure *tenure)
{
    struct jsonw w = new_body(tenure);

    assert(!tenure->renewing);
    if (tenure->version >= 0)
        jsonw_kint(&w, "if_version", tenure->version);
    if (tenure_good(tenure))
        jsonw_kbool(&w, "held", true);
    jsonw_end_obj(&w);
    tenure->renewing = true;
    tenure->renew = (struct query){.path = "/v1/deployments/renew",
                                   .body = buf_view(&tenure->body),
                                   .timeout_ms = call_ms(tenure),
                                   .done = on_renewed};
    tenure->sent_ms = clock_lease_ms(); /* before it can have arrived anywhere */
    queries_send(tenure->queries, &tenure->renew);
}

/* --- how the copies are --- */

static void tell(struct tenure *tenure);

static void on_told(struct query *query)
{
    struct tenure *tenure = container_of(query, struct tenure, status);
    const struct json *stale = json_get(query->reply, "stale");

    tenure->telling = false;
    /* What changed meanwhile is told soon. */
    tenure->tell_ms = tenure->loop->mono_ms +
                      (tenure->untold && !query->err ? STATUS_PAUSE_MS : tenure->renew_ms);
    if (query->err) {
        tenure->untold = true;
        tenure->tell_from = 0;
        return;
    }
    copies_told(tenure->copies, query->reply);
    if (json_type(stale) == JSON_ARR && stale->count > 0)
        tenure_judge(tenure); /* we run what is not ours: what is? */
    if (tenure->tell_from > 0 && tenure->up)
        tell(tenure);
}

static void tell(struct tenure *tenure)
{
    struct jsonw w = new_body(tenure);
    bool partial = tenure->tell_from > 0;

    assert(!tenure->telling);
    if (tenure->tell_from == 0)
        tenure->untold = false;
    jsonw_key(&w, "copies");
    tenure->tell_from = copies_write(tenure->copies, tenure->tell_from, STATUS_COPIES, &w);
    if (partial || tenure->tell_from > 0)
        jsonw_kbool(&w, "partial", true);
    jsonw_end_obj(&w);
    tenure->telling = true;
    tenure->status = (struct query){.path = "/v1/deployments/status",
                                    .body = buf_view(&tenure->body),
                                    .timeout_ms = call_ms(tenure),
                                    .done = on_told};
    queries_send(tenure->queries, &tenure->status);
}

void tenure_changed(struct tenure *tenure)
{
    int64_t soon_ms = tenure->loop->mono_ms + STATUS_PAUSE_MS;

    tenure->untold = true;
    if (tenure->tell_ms > soon_ms)
        tenure->tell_ms = soon_ms;
}

/* --- giving up --- */

static const char *const reasons[] = {
    [COPY_DRAINED] = "The node is drained.",
    [COPY_UNMATCHED] = "Its selector or its namespace does not match the node.",
    [COPY_FAILING] = "It keeps failing on the node.",
    [COPY_REFUSED] = "The node runs no deployments (allow_deployments).",
};

static void on_yielded(struct query *query)
{
    struct tenure *tenure = container_of(query, struct tenure, yield);

    tenure->yielding = false;
    if (query->err != ERR_OK && query->err != ERR_CONFLICT)
        return; /* nobody knows whether it was done: again */
    log_event(LOG_INFO, "deployment.yielded", KS("node_id", tenure->node_id),
              KC("deployment_id", tenure->leaving), KC("reason", err_name(query->err)));
    tenure->left_ms = tenure->loop->mono_ms;
    if (query->err == ERR_OK)
        copies_gave(tenure->copies, str_of(tenure->leaving));
    else /* it was another assignment that failed */
        copies_keep(tenure->copies, str_of(tenure->leaving), COPY_FAILING);
    tenure_judge(tenure); /* what is ours now? */
}

static void yield(struct tenure *tenure, const struct copy_held *held)
{
    bool failed = held->hold == COPY_FAILING;
    struct jsonw w = new_body(tenure);

    assert(!tenure->yielding && held->hold != COPY_KEPT);
    str_copy(held->id, tenure->leaving, sizeof tenure->leaving);
    jsonw_kstr(&w, "id", held->id);
    jsonw_kint(&w, "generation", held->generation);
    jsonw_kint(&w, "version", held->version);
    jsonw_kbool(&w, "failed", failed);
    jsonw_kstr(&w, "reason",
               failed && held->reason.len ? held->reason : str_of(reasons[held->hold]));
    jsonw_end_obj(&w);
    tenure->yielding = true;
    tenure->yield = (struct query){.path = "/v1/deployments/yield",
                                   .body = buf_view(&tenure->body),
                                   .timeout_ms = call_ms(tenure),
                                   .done = on_yielded};
    queries_send(tenure->queries, &tenure->yield);
}

/* Stopped first: only of what nothing runs any more does anybody else hear. */
static void give_up(struct tenure *tenure)
{
    struct copy_held held;

    if (tenure->up && !tenure->yielding && copies_next_held(tenure->copies, &held))
        yield(tenure, &held);
}

/* Behind the deadline there is no time to go easy on the others. */
static bool is_overdue(const struct tenure *tenure)
{
    return tenure->drain_deadline_ms && tenure->loop->mono_ms >= tenure->drain_deadline_ms;
}

/* One at a time, and the next when the others had a cycle to take it. */
static void drain(struct tenure *tenure)
{
    struct str id;

    if (tenure->admin != TENURE_DRAINING) {
        copies_keep(tenure->copies, STR_NONE, COPY_DRAINED);
        return;
    }
    if (!tenure->up || tenure->yielding ||
        (!is_overdue(tenure) && (copies_holding(tenure->copies, COPY_DRAINED) > 0 ||
                                 tenure->loop->mono_ms < tenure->left_ms + tenure->renew_ms)))
        return;
    id = copies_first_owned(tenure->copies);
    if (id.at)
        copies_hold(tenure->copies, id, COPY_DRAINED);
}

/* --- time --- */

static void on_tick(struct loop_part *part)
{
    struct tenure *tenure = container_of(part, struct tenure, part);
    int64_t now_ms = tenure->loop->mono_ms;

    if (tenure->up && !tenure->renewing && now_ms >= tenure->next_ms)
        renew(tenure);
    if (tenure->up && !tenure->telling && tenure->version >= 0 && now_ms >= tenure->tell_ms)
        tell(tenure);
    drain(tenure);
    give_up(tenure);
}

void tenure_up(struct tenure *tenure)
{
    tenure->up = true;
    tenure_judge(tenure); /* another server may know another table */
}

void tenure_down(struct tenure *tenure)
{
    tenure->up = false;
}

void tenure_look(struct tenure *tenure)
{
    tenure->again = tenure->renewing;
    tenure->next_ms = tenure->loop->mono_ms;
    if (tenure->up && !tenure->renewing)
        renew(tenure);
}

void tenure_judge(struct tenure *tenure)
{
    tenure->version = -1;
    tenure_look(tenure);
}

static void on_goodbye(struct query *query)
{
}

void tenure_goodbye(struct tenure *tenure)
{
    struct jsonw w;

    if (!tenure->up || tenure->goodbye.id)
        return;
    w = new_body(tenure);
    jsonw_kbool(&w, "goodbye", true);
    jsonw_end_obj(&w);
    tenure->goodbye = (struct query){.path = "/v1/deployments/renew",
                                     .body = buf_view(&tenure->body),
                                     .timeout_ms = call_ms(tenure),
                                     .done = on_goodbye};
    queries_send(tenure->queries, &tenure->goodbye);
}

static void part_gone(struct loop_part *part)
{
    assert(!"tenure_free comes before loop_done");
}

struct tenure *tenure_new(struct loop *loop, struct queries *queries, struct copies *copies,
                          const struct config *config, struct str node_id, struct str instance)
{
    struct tenure *tenure = mem_new(struct tenure);

    tenure->loop = loop;
    tenure->queries = queries;
    tenure->copies = copies;
    tenure->config = config;
    tenure->node_id = node_id;
    tenure->instance = instance;
    tenure->lease_ms = LEASE_MS;
    tenure->renew_ms = RENEW_MS;
    tenure->version = -1;
    rnd_seed_os(&tenure->rnd);
    tenure->part = (struct loop_part){.tick = on_tick, .free = part_gone};
    loop_add_part(loop, &tenure->part);
    return tenure;
}

void tenure_free(struct tenure *tenure)
{
    if (!tenure)
        return;
    loop_remove_part(tenure->loop, &tenure->part);
    buf_free(&tenure->body);
    free(tenure);
}

bool tenure_good(const struct tenure *tenure)
{
    return tenure->good_until_ms > clock_lease_ms();
}

int64_t tenure_lease_ms(const struct tenure *tenure)
{
    return tenure->lease_ms;
}

enum tenure_admin tenure_admin(const struct tenure *tenure)
{
    return tenure->admin;
}
