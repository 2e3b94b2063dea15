/* The table of stores, and names. The backends implement the stores. */
#include "store/store.h"

#include "base/clock.h"
#include "base/json.h"
#include "model/namespace.h"
#include "store/embedded.h"
#include "store/redis.h"

#include <assert.h>
#include <stdio.h>

static const struct store_backend *const backends[] = {
    &embedded_backend,      &redis_backend,  &redis_sentinel_backend,
    &redis_cluster_backend, &rediss_backend,
};

static const char *const mode_names[] = {
    [STORE_NORMAL] = "NORMAL",
    [STORE_L2_ONLY] = "L2_ONLY",
    [STORE_LOCAL_ONLY] = "LOCAL_ONLY",
};

const char *store_mode_name(enum store_mode mode)
{
    assert(mode <= STORE_LOCAL_ONLY);
    return mode_names[mode];
}

enum err store_open(const struct store_config *config, struct store **ret_store,
                    struct problem *why)
{
    struct str rest = str_of(config->url ? config->url : "embedded:");
    struct str scheme = str_cut(&rest, ':');
    char known[128] = "";
    size_t len = 0;

    assert(config->data_dir);
    for (size_t i = 0; i < COUNT_OF(backends); i++) {
        if (str_is(scheme, backends[i]->scheme))
            return backends[i]->open(config, ret_store, why);
        if (!backends[i]->send)
            continue; /* only reports why it is not supported */
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s:", i ? ", " : "",
                                backends[i]->scheme);
        assert(len < sizeof known);
    }
    return problem_set(why, ERR_BAD_CONFIG, "store",
                       "There is no store of the kind \"" STR_FMT "\"; known are %s.",
                       STR_ARG(scheme), known);
}

enum err store_send(struct store *store, struct store_op *op)
{
    op->msg.next = NULL;
    return store_send_all(store, &op->msg) ? op->err : ERR_OK;
}

struct msg *store_send_all(struct store *store, struct msg *ops)
{
    if (!store->stopped)
        return store->backend->send(store, ops);
    for (struct msg *msg = ops; msg; msg = msg->next)
        container_of(msg, struct store_op, msg)->err = ERR_STORE_DOWN;
    return ops;
}

void store_status(struct store *store, struct store_status *ret_status)
{
    store->backend->status(store, ret_status);
}

void store_stop(struct store *store)
{
    if (!store || store->stopped)
        return;
    store->backend->stop(store);
    store->stopped = true;
}

void store_close(struct store *store)
{
    store_stop(store);
    if (store)
        store->backend->free(store);
}

void store_listen(struct store *store, struct store_listener *listener)
{
    assert(store_name(store) && (!listener || (listener->inbox && listener->notify)));
    store->backend->listen(store, listener);
}

const char *store_rule_name(enum store_rule rule)
{
    static const char *const names[STORE_RULES] = {
        [STORE_RULE_SLOTS] = "slots_equal_leases",
        [STORE_RULE_LEASES] = "leases_equal_jobs",
        [STORE_RULE_LANES] = "lanes_equal_jobs",
        [STORE_RULE_RESOURCES] = "resources_equal_leases",
        [STORE_RULE_KEY_LEASES] = "keys_equal_leases",
        [STORE_RULE_KEY_WAITING] = "keys_equal_lanes",
    };

    return names[rule];
}

bool store_head_fits(const struct store_head *head, const struct store_op *op)
{
    if (op->verb == STORE_CALLBACKS)
        return head->callback == CALLBACK_PENDING;
    if (op->verb != STORE_JOB_LIST)
        return true;
    if (op->u.list.states && !(op->u.list.states >> head->state & 1))
        return false;
    if (op->u.list.node_id.at && !str_is(op->u.list.node_id, head->node))
        return false;
    if (!namespace_lists(op->u.list.namespace, str_of(head->type)))
        return false;
    return !op->u.list.type.at || !*head->type || str_is(op->u.list.type, head->type);
}

static bool text_fits(const struct json *spec, const char *name, struct str want,
                      struct arena *arena)
{
    return !want.at || str_eq(json_str(json_get(spec, name), arena), want);
}

bool store_spec_fits(struct str text, const struct store_op *op)
{
    struct arena arena = {0};
    const struct json *spec;
    bool fits = !op->u.list.type.at && !op->u.list.session.at;

    if (!fits && !json_parse(text, &arena, &spec, NULL))
        fits = text_fits(spec, "type", op->u.list.type, &arena) &&
               text_fits(spec, "session_id", op->u.list.session, &arena);
    arena_free(&arena);
    return fits;
}

bool store_number_is_ours(const struct store *store)
{
    int64_t until_ms = atomic_load_explicit(&store->number_until_ms, memory_order_relaxed);

    return until_ms == INT64_MAX || clock_mono_ms() < until_ms;
}
