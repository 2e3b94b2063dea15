/* What a dump looks like, whatever store it comes from. */
#include "store/dump.h"

#include "store/store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum err store_dump(const char *url, const char *data_dir, size_t max, struct jsonw *w,
                    struct problem *why)
{
    assert(max > 0 && max <= DUMP_MAX);
    if (strncmp(url, "embedded:", 9) == 0)
        return dump_embedded(data_dir, max, w, why);
    return dump_redis(url, max, w, why);
}

void dump_node(struct jsonw *w, const struct store_node *node)
{
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", node->id);
    jsonw_kstr(w, "health", str_of(node_health_name(node->counts.health)));
    jsonw_kint(w, "max", node->counts.max);
    jsonw_kint(w, "reserved", node->counts.reserved);
    jsonw_kint(w, "running", node->counts.running);
    jsonw_kint(w, "epoch", node->counts.epoch);
    jsonw_kint(w, "version", node->version);
    jsonw_kint(w, "registered_ms", node->registered_ms);
    jsonw_kstr(w, "admin_reason", node->admin_reason.len ? node->admin_reason : STR_NONE);
    jsonw_kstr(w, "facts", node->facts);
    jsonw_end_obj(w);
}

static const char *lease_name(enum lease_kind kind)
{
    static const char *const names[] = {
        [LEASE_NONE] = "none", [LEASE_RESERVED] = "reserved", [LEASE_RUNNING] = "running"};

    return names[kind];
}

static void write_id(struct jsonw *w, uint64_t id)
{
    char text[JOB_ID_TEXT + 1];

    job_id_text(id, text);
    jsonw_kstr(w, "job_id", str_of(text));
}

void dump_job(struct jsonw *w, const struct store_head *head)
{
    jsonw_obj(w);
    write_id(w, head->id);
    jsonw_kstr(w, "state", str_of(job_state_name(head->state)));
    jsonw_kint(w, "attempt_id", head->attempt);
    jsonw_kstr(w, "node_id", head->node[0] ? str_of(head->node) : STR_NONE);
    jsonw_kstr(w, "type", head->type[0] ? str_of(head->type) : STR_NONE);
    jsonw_kstr(w, "reason", head->reason[0] ? str_of(head->reason) : STR_NONE);
    jsonw_kint(w, "owner", head->owner);
    if (head->lane) {
        char lane[17];

        snprintf(lane, sizeof lane, "%016" PRIx64, head->lane);
        jsonw_kstr(w, "lane", str_of(lane));
        jsonw_kint(w, "priority", head->priority);
    }
    jsonw_kint(w, "created_ms", head->created_ms);
    jsonw_kint(w, "updated_ms", head->updated_ms);
    jsonw_kint(w, "due_ms", head->due_ms);
    jsonw_end_obj(w);
}

void dump_lease(struct jsonw *w, const struct store_head *head)
{
    jsonw_obj(w);
    write_id(w, head->id);
    jsonw_kint(w, "attempt_id", head->attempt);
    jsonw_kstr(w, "node_id", str_of(head->node));
    jsonw_kstr(w, "kind", str_of(lease_name(head->lease)));
    jsonw_kint(w, "epoch", head->epoch);
    jsonw_kint(w, "due_ms", head->due_ms);
    jsonw_end_obj(w);
}

void dump_breaker(struct jsonw *w, const struct store_breaker *breaker)
{
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", breaker->node);
    jsonw_kstr(w, "type", breaker->type);
    jsonw_kstr(w, "state", str_of(breaker_state_name(breaker->breaker.state)));
    jsonw_kint(w, "failures", breaker->breaker.failures);
    jsonw_kint(w, "opened_ms", breaker->breaker.opened_ms);
    jsonw_end_obj(w);
}
