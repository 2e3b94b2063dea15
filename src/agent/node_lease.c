/* Renews the lease, applies the reply, reports the state of the copies, and gives up those that
 * must not stay. The database decides when the lease ends; we only count from the moment we sent
 * the request. */
#include "agent/node_lease.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/lease.h"
#include "model/namespace.h"
#include "model/selector.h"

enum {
    LEASE_MS = 45000, /* until a server sets another */
    RENEW_MS = 5000,
    RENEW_MS_MIN = 50,
    RELOAD_MS = 100, /* until the next renewal, if the server does not have our labels yet */
    CALL_MS_MIN = 500,
    STATUS_PAUSE_MS = 100, /* changes that come together are sent together */
    STATUS_COPIES = 1000,  /* per call; the server's limit is somewhat higher */
};

/* Every call names the node and its instance. */
static struct jsonw new_body(struct node_lease *lease)
{
    struct jsonw w = jsonw_to(&lease->body);

    buf_clear(&lease->body);
    jsonw_obj(&w);
    jsonw_kstr(&w, "node_id", lease->node_id);
    jsonw_kstr(&w, "instance", lease->instance);
    return w;
}

static void send_body(struct node_lease *lease, struct jsonw *w, const char *path,
                      struct link_call *call, void (*done)(struct link_call *call))
{
    int64_t timeout_ms = lease->renew_ms > CALL_MS_MIN ? lease->renew_ms : CALL_MS_MIN;

    jsonw_end_obj(w);
    *call = (struct link_call){
        .path = path, .body = buf_view(&lease->body), .timeout_ms = timeout_ms, .done = done};
    link_calls_send(lease->link_calls, call);
}

/* --- applying a renewal --- */

/* Each node checks its own rows. A daemon that does not match or is not allowed is not run. A
 * deployment remains this node's until it is given up, and must have stopped before that.
 * `namespaces`: those this node takes deployments from. */
static void take_rows(struct node_lease *lease, const struct json *labels,
                      const struct json *namespaces, const struct json *rows)
{
    static const struct json none = {.type = JSON_OBJ};
    struct selector_facts facts = {.id = lease->node_id, .labels = labels ? labels : &none};
    bool allowed = lease->config->allow_deployments;
    const struct json *row;
    struct arena arena = {0};

    lease->copies->round++;
    for (row = json_items(rows); row; row = json_after(rows, row)) {
        struct str id = json_str(json_get(row, "id"), &arena);
        struct str selector = json_str(json_get(json_get(row, "spec"), "selector"), &arena);
        bool fits =
            (!selector.len || selector_match(selector, &facts)) && namespace_in(namespaces, id);
        enum copy_hold hold = !allowed ? COPY_REFUSED : !fits ? COPY_UNMATCHED : COPY_NOT_HELD;
        const struct copy *copy;

        if (json_str_is(json_get(row, "type"), "daemon")) {
            if (fits && allowed)
                copies_want(lease->copies, row);
            continue;
        }
        copies_want(lease->copies, row);
        copy = map_get(&lease->copies->by_id, id);
        /* A hold for another reason is not ended by a match. */
        if (hold || (copy && (copy->held == COPY_UNMATCHED || copy->held == COPY_REFUSED)))
            copies_set_hold(lease->copies, id, hold);
    }
    copies_round_over(lease->copies);
    arena_free(&arena);
}

/* Did the server match against our current labels? If it does not say so, we match ourselves. */
static bool matched_by_ours(const struct node_lease *lease, const struct json *labels)
{
    const struct json *own = lease->config->labels, *key = labels ? json_keys(own) : NULL;
    uint32_t count = json_type(own) == JSON_OBJ ? own->count : 0;
    struct arena arena = {0};
    bool same = !labels || count == (json_type(labels) == JSON_OBJ ? labels->count : 0);

    for (; key && same; key = json_after(own, key)) {
        const struct json *value = json_get(labels, arena_cstr(&arena, json_str(key, &arena)));

        same = str_eq(json_str(value, &arena), json_str(key + 1, &arena));
    }
    arena_free(&arena);
    return same;
}

static void renewed(struct node_lease *lease, const struct json *reply)
{
    static const char *const names[] = {[NODE_LEASE_NONE] = "none",
                                        [NODE_LEASE_CORDONED] = "cordoned",
                                        [NODE_LEASE_DRAINING] = "draining"};
    const struct json *rows = json_get(reply, "deployments");
    const struct json *fixed = json_get(reply, "fixed_labels"); /* set there, override ours */
    int64_t lease_ms = lease->lease_ms, renew_ms = lease->renew_ms, grace_ms;
    int64_t now_ms, deadline_ms;

    assert(lease->sent_ms > 0 && !lease->renewing);
    json_int(json_get(reply, "lease_ms"), &lease_ms);
    json_int(json_get(reply, "renew_ms"), &renew_ms);
    lease->lease_ms = lease_ms > 0 ? lease_ms : LEASE_MS;
    lease->renew_ms = renew_ms > RENEW_MS_MIN ? renew_ms : RENEW_MS_MIN;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (json_str_is(json_get(reply, "admin"), names[i]))
            lease->admin = (enum node_lease_admin)i;
    /* The deadline is on the database's clock, which may differ from ours. */
    lease->drain_deadline_ms = 0;
    if (json_int(json_get(reply, "now_ms"), &now_ms) &&
        json_int(json_get(reply, "drain_deadline_ms"), &deadline_ms) && deadline_ms)
        lease->drain_deadline_ms = lease->loop->mono_ms + deadline_ms - now_ms;
    if (json_type(rows) == JSON_ARR && !matched_by_ours(lease, json_get(reply, "labels"))) {
        /* Our labels are on their way to the server. */
        lease->next_ms = lease->loop->mono_ms + RELOAD_MS;
    } else if (json_type(rows) == JSON_ARR) {
        json_int(json_get(reply, "version"), &lease->version);
        take_rows(lease, fixed ? fixed : lease->config->labels, json_get(reply, "namespaces"),
                  rows);
    }
    lease->stop_at_ms = fence_stop_ms(lease->sent_ms, lease->lease_ms);
    grace_ms = fence_grace_ms(lease->lease_ms);
    if (lease->version >= 0)
        copies_fence(lease->copies, lease->stop_at_ms, grace_ms > 0 ? grace_ms : 1);
}

static void on_renewed(struct link_call *call)
{
    struct node_lease *lease = container_of(call, struct node_lease, renew);

    lease->renewing = false;
    /* Slightly early, so that nodes that started together spread out. */
    lease->next_ms =
        lease->loop->mono_ms +
        (lease->again
             ? 0
             : lease->renew_ms - rnd_below(&lease->rnd, (uint32_t)(lease->renew_ms / 10 + 1)));
    lease->again = false;
    if (call->err == ERR_OK)
        renewed(lease, call->reply);
    else if (!lease->refused && json_str_is(json_get(call->reply, "reason"), "other_instance"))
        log_event(LOG_ERROR, "lease.other_instance", KS("node_id", lease->node_id),
                  KC("reason",
                     "another agent with this node_id has the lease, or had it on another "
                     "data_dir or before a reboot"));
    else if (!lease->refused && call->err != ERR_CLOSED)
        log_event(LOG_WARN, "lease.not_renewed", KS("node_id", lease->node_id),
                  KC("reason", err_name(call->err)),
                  KI("left_ms", lease->stop_at_ms ? lease->stop_at_ms - clock_lease_ms() : 0));
    lease->refused = call->err != ERR_OK;
}

static void renew(struct node_lease *lease)
{
    struct jsonw w = new_body(lease);

    assert(!lease->renewing);
    if (lease->version >= 0)
        jsonw_kint(&w, "if_version", lease->version);
    if (node_lease_may_run_now(lease))
        jsonw_kbool(&w, "held", true);
    lease->renewing = true;
    lease->sent_ms = clock_lease_ms(); /* taken before the server can have received it */
    send_body(lease, &w, "/v1/deployments/renew", &lease->renew, on_renewed);
}

/* --- copy status --- */

static void send_status(struct node_lease *lease);

static void on_status_sent(struct link_call *call)
{
    struct node_lease *lease = container_of(call, struct node_lease, status);
    const struct json *stale = json_get(call->reply, "stale");

    lease->status_busy = false;
    /* What changed in the meantime is sent soon. */
    int64_t pause_ms = lease->status_due && !call->err ? STATUS_PAUSE_MS : lease->renew_ms;
    /* Agents that were delayed together spread out. */
    lease->status_ms =
        lease->loop->mono_ms + pause_ms - rnd_below(&lease->rnd, (uint32_t)(pause_ms / 10 + 1));
    if (call->err) {
        lease->status_due = true;
        lease->status_from = 0;
        return;
    }
    copies_told(lease->copies, call->reply);
    if (json_type(stale) == JSON_ARR && stale->count > 0)
        node_lease_reload(lease); /* we run rows that are not ours: ask which are */
    if (lease->status_from > 0 && lease->up)
        send_status(lease);
}

static void send_status(struct node_lease *lease)
{
    struct jsonw w = new_body(lease);
    bool partial = lease->status_from > 0;

    assert(!lease->status_busy);
    if (lease->status_from == 0)
        lease->status_due = false;
    jsonw_key(&w, "copies");
    lease->status_from = copies_write(lease->copies, lease->status_from, STATUS_COPIES, &w);
    if (partial || lease->status_from > 0)
        jsonw_kbool(&w, "partial", true);
    lease->status_busy = true;
    send_body(lease, &w, "/v1/deployments/status", &lease->status, on_status_sent);
}

void node_lease_changed(struct node_lease *lease)
{
    int64_t soon_ms = lease->loop->mono_ms + STATUS_PAUSE_MS;

    lease->status_due = true;
    if (lease->status_ms > soon_ms)
        lease->status_ms = soon_ms;
}

/* --- giving up --- */

static void on_yielded(struct link_call *call)
{
    struct node_lease *lease = container_of(call, struct node_lease, yield);
    struct copy *copy;

    lease->yielding = false;
    if (call->err != ERR_OK && call->err != ERR_CONFLICT)
        return; /* it may or may not have been done: try again */
    log_event(LOG_INFO, "deployment.yielded", KS("node_id", lease->node_id),
              KC("deployment_id", lease->leaving), KC("reason", err_name(call->err)));
    lease->last_yield_ms = lease->loop->mono_ms;
    copy = map_get(&lease->copies->by_id, str_of(lease->leaving));
    if (call->err == ERR_OK && copy)
        copy->wanted = false;
    else if (copy && (copy->held == COPY_FAILING || copy->held == COPY_NO_ROOM))
        /* That was another assignment. */
        copies_set_hold(lease->copies, copy->id, COPY_NOT_HELD);
    node_lease_reload(lease); /* ask which rows are ours now */
}

static void yield(struct node_lease *lease, const struct copy *copy)
{
    /* A lack of room is no failure, for which others would be preferred for a while: everybody sees
     * what room there is, and nobody claims what does not fit. */
    bool failed = copy->held == COPY_FAILING;
    bool told = (failed || copy->held == COPY_NO_ROOM) && copy->held_reason[0];
    struct jsonw w = new_body(lease);

    assert(!lease->yielding && copy->held != COPY_NOT_HELD);
    str_copy(copy->id, lease->leaving, sizeof lease->leaving);
    jsonw_kstr(&w, "id", copy->id);
    jsonw_kint(&w, "generation", copy->generation);
    jsonw_kint(&w, "version", copy->version);
    jsonw_kbool(&w, "failed", failed);
    jsonw_kstr(&w, "reason", str_of(told ? copy->held_reason : copy_hold_text(copy->held)));
    lease->yielding = true;
    send_body(lease, &w, "/v1/deployments/yield", &lease->yield, on_yielded);
}

/* Gives up one copy at a time, the next after the other nodes had a cycle to claim it; past the
 * deadline it does not wait for them. */
static void drain(struct node_lease *lease)
{
    bool overdue = lease->drain_deadline_ms && lease->loop->mono_ms >= lease->drain_deadline_ms;
    struct str id;

    if (lease->admin != NODE_LEASE_DRAINING) {
        copies_release_all(lease->copies, COPY_DRAINED);
        return;
    }
    if (!lease->up || lease->yielding ||
        (!overdue && (copies_holding(lease->copies, COPY_DRAINED) > 0 ||
                      lease->loop->mono_ms < lease->last_yield_ms + lease->renew_ms)))
        return;
    id = copies_first_owned(lease->copies);
    if (id.at)
        copies_set_hold(lease->copies, id, COPY_DRAINED);
}

/* --- time --- */

static void on_tick(struct loop_part *part)
{
    struct node_lease *lease = container_of(part, struct node_lease, part);
    int64_t now_ms = lease->loop->mono_ms;
    const struct copy *held = NULL;

    if (lease->up && !lease->renewing && now_ms >= lease->next_ms)
        renew(lease);
    if (lease->up && !lease->status_busy && lease->version >= 0 && now_ms >= lease->status_ms)
        send_status(lease);
    drain(lease);
    /* A copy is stopped before it is given up: no other node may start it while ours runs. */
    if (lease->up && !lease->yielding)
        held = copies_next_held(lease->copies);
    if (held)
        yield(lease, held);
}

void node_lease_up(struct node_lease *lease)
{
    lease->up = true;
    node_lease_reload(lease); /* another server may have another version of the table */
}

void node_lease_renew_now(struct node_lease *lease)
{
    lease->again = lease->renewing;
    lease->next_ms = lease->loop->mono_ms;
    if (lease->up && !lease->renewing)
        renew(lease);
}

void node_lease_reload(struct node_lease *lease)
{
    lease->version = -1;
    node_lease_renew_now(lease);
}

static void on_goodbye(struct link_call *call)
{
}

void node_lease_goodbye(struct node_lease *lease)
{
    struct jsonw w;

    if (!lease->up || lease->goodbye.id)
        return;
    w = new_body(lease);
    jsonw_kbool(&w, "goodbye", true);
    send_body(lease, &w, "/v1/deployments/renew", &lease->goodbye, on_goodbye);
}

struct node_lease *node_lease_new(struct loop *loop, struct link_calls *link_calls,
                                  struct copies *copies, const struct config *config,
                                  struct str node_id, struct str instance)
{
    struct node_lease *lease = mem_new(struct node_lease);

    lease->loop = loop;
    lease->link_calls = link_calls;
    lease->copies = copies;
    lease->config = config;
    lease->node_id = node_id;
    lease->instance = instance;
    lease->lease_ms = LEASE_MS;
    lease->renew_ms = RENEW_MS;
    lease->version = -1;
    rnd_seed_os(&lease->rnd);
    lease->part = (struct loop_part){.tick = on_tick, .free = link_part_left};
    loop_add_part(loop, &lease->part);
    return lease;
}

void node_lease_free(struct node_lease *lease)
{
    if (!lease)
        return;
    loop_remove_part(lease->loop, &lease->part);
    buf_free(&lease->body);
    free(lease);
}

bool node_lease_may_run_now(const struct node_lease *lease)
{
    return lease->stop_at_ms > clock_lease_ms();
}
