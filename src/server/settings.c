/* The settings table. The setting `nodes` says what is true of a node whatever it says of itself;
 * `routes` which servers a type of task may go to, in which order. */
#include "server/settings.h"

#include <assert.h>
#include <stdio.h>

#include "base/schema.h"
#include "io/http.h"
#include "io/ip.h"
#include "io/ws.h"
#include "model/token.h"
#include "sched/explain.h"
#include "sched/node_report.h"
#include "sched/sched.h"
#include "server/route.h"

static enum err settings_check(const struct settings *settings, struct problem *why);

/* --- `nodes` --- */

/* What decides whose work a node takes, and members of a registration that decide what work a node
 * gets, and what others read in its name. What says how it is right now is its own to say. */
static const struct {
    const char *name;
    const char *unless_named; /* what it is when one of those is named; NULL: the node's own word */
} members[] = {
    {"namespaces", NULL}, /* no member of one: whose work it takes */
    {"labels", NULL},
    {"allowed_types", NULL},
    /* Which pools it is in is decided by all four together. */
    {"semantic_langs", "[]"},
    {"nmt_pairs", "[]"},
    {"tts_langs", "[]"},
    {"capability_by_type", "{}"},
    {"max_concurrent_jobs", NULL},
    {"reserved_slots", NULL},
    {"priority", NULL},
    {"name", NULL},
    {"role", NULL},
};

static bool is_member(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(members); i++)
        if (str_is(name, members[i].name))
            return true;
    return false;
}

static enum err bad_row(struct str pattern, const char *detail, struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, "nodes", "nodes: the row \"" STR_FMT "\": %.300s",
                       STR_ARG(pattern), detail);
}

static enum err check_names(struct str pattern, const struct json *row, struct arena *arena,
                            struct problem *why)
{
    const struct json *key = json_first(row);
    char text[400];

    for (uint32_t i = 0; i < row->count; i++, key = json_next(key + 1)) {
        struct str name = json_str(key, arena);
        int len;

        if (is_member(name))
            continue;
        len = snprintf(text, sizeof text, "There is no \"%.64s\"; it may have",
                       arena_cstr(arena, name));
        for (size_t m = 0; m < COUNT_OF(members); m++)
            len += snprintf(text + len, sizeof text - (size_t)len, "%s %s", m ? "," : "",
                            members[m].name);
        return bad_row(pattern, text, why);
    }
    return ERR_OK;
}

/* All that the row fixes, also what it leaves out. */
static struct str whole_row(const struct json *row, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    bool pools = false;

    for (size_t i = 0; i < COUNT_OF(members); i++)
        pools |= members[i].unless_named && !json_is_null(json_get(row, members[i].name));
    jsonw_obj(&w);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        const struct json *value = json_get(row, members[i].name);

        if (!json_is_null(value))
            jsonw_kraw(&w, members[i].name, json_raw(value));
        else if (pools && members[i].unless_named)
            jsonw_kraw(&w, members[i].name, str_of(members[i].unless_named));
    }
    jsonw_end_obj(&w);
    struct str text = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return text;
}

/* A node that said just that would be let in. */
static enum err check_values(const struct json *facts, struct arena *arena, struct problem *why)
{
    struct node_report report;
    struct facts *made;
    enum err err = node_report_read(facts, STR("any"), NULL, arena, &report, why);

    if (!err)
        err = node_report_facts(&report, NULL, &made, why);
    if (!err)
        facts_unref(made);
    return err;
}

/* Namespaces, one at least. */
static bool check_namespaces(const struct json *list, struct arena *arena)
{
    const struct json *item = json_first(list);

    if (json_is_null(list))
        return true;
    if (json_type(list) != JSON_ARR || list->count == 0)
        return false;
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item))
        if (json_type(item) != JSON_STR || !namespace_valid(json_str(item, arena)))
            return false;
    return true;
}

static enum err read_row(const struct json *key, struct arena *arena, struct node_rule *ret_rule,
                         struct problem *why)
{
    struct str pattern = json_str(key, arena);
    const struct json *facts;
    struct problem what;
    enum err err;

    if (json_type(key + 1) != JSON_OBJ)
        return bad_row(pattern, "It must be an object, like {labels: {zone: eu}}.", why);
    err = check_names(pattern, key + 1, arena, why);
    if (err)
        return err;
    if (!check_namespaces(json_get(key + 1, "namespaces"), arena))
        return bad_row(pattern, "namespaces must be a list of namespaces, like [maps].", why);
    if (json_parse(whole_row(key + 1, arena), arena, &facts, &what) ||
        check_values(facts, arena, &what))
        return bad_row(pattern, what.detail, why);
    *ret_rule = (struct node_rule){.pattern = pattern, .facts = facts};
    return ERR_OK;
}

/* `nodes` into sched.node_rules: {"gpu-*": {"labels": {"zone": "eu"}}}. */
static enum err settings_read_nodes(struct settings *settings, struct arena *arena,
                                    struct problem *why)
{
    const struct json *map = settings->nodes, *key = json_first(map);
    struct node_rule *rows;
    enum err err = ERR_OK;

    if (json_is_null(map))
        return ERR_OK;
    if (json_type(map) != JSON_OBJ || map->count > NODE_RULES_MAX)
        return problem_set(why, ERR_BAD_CONFIG, "nodes",
                           "nodes must map at most %d patterns of node ids to what is fixed of "
                           "them, like \"gpu-*\": {labels: {zone: eu}}.",
                           NODE_RULES_MAX);
    rows = arena_array(arena, struct node_rule, map->count + 1);
    bool namespaces = false;
    for (uint32_t i = 0; !err && i < map->count; i++, key = json_next(key + 1)) {
        err = read_row(key, arena, &rows[i], why);
        namespaces |= !json_is_null(json_get(key + 1, "namespaces"));
    }
    settings->sched.node_rules =
        (struct node_rules){.rows = rows, .count = map->count, .namespaces = namespaces};
    return err;
}

/* --- `routes` --- */

static enum err bad_routes(struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, "routes",
                       "routes must map task types to lists of servers, like talk: [hk, us].");
}

/* A list of texts. */
static bool read_list(const struct json *list, struct arena *arena, struct strs *ret_texts)
{
    const struct json *item = json_first(list);

    if (json_type(list) != JSON_ARR)
        return false;
    *ret_texts =
        (struct strs){.at = arena_array(arena, struct str, list->count + 1), .count = list->count};
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        if (json_type(item) != JSON_STR)
            return false;
        ret_texts->at[i] = json_str(item, arena);
    }
    return true;
}

/* `routes` into sched.routing: {"talk": ["hk", "us"]}. */
static enum err settings_read_routes(struct settings *settings, struct arena *arena,
                                     struct problem *why)
{
    const struct json *map = settings->routes;

    if (json_is_null(map))
        return ERR_OK;
    if (json_type(map) != JSON_OBJ)
        return bad_routes(why);
    struct routing_route *routes = arena_array(arena, struct routing_route, map->count + 1);
    const struct json *key = json_first(map);
    for (uint32_t i = 0; i < map->count; i++, key = json_next(key + 1)) {
        routes[i].type = json_str(key, arena);
        if (!read_list(key + 1, arena, &routes[i].servers))
            return bad_routes(why);
    }
    settings->sched.routing.routes = routes;
    settings->sched.routing.count = map->count;
    return ERR_OK;
}

/* --- the table --- */

#define AT(member) offsetof(struct settings, member)
#define SCHED(m)   offsetof(struct settings, sched.m)
#define SECOND_MS  1000
#define HOUR_MS    (3600LL * SECOND_MS)
#define DAY_MS     (24 * HOUR_MS)
#define MIB        (1024LL * 1024)

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const client_auths[] = {"required", "optional", NULL};
static const char *const log_formats[] = {"logfmt", "json", NULL};
static const char *const claim_modes[] = {"hardened", "seed", NULL}; /* enum deploy_mode */

static const char *const audits[] = {"tried", "required", NULL}; /* enum settings_audit */

static const struct field fields[] = {
    {.name = "listen",
     .type = FIELD_STR,
     .offset = AT(listen),
     .preset = "127.0.0.1:7420",
     .help = "address and port to serve on"},
    {.name = "store",
     .type = FIELD_STR,
     .offset = AT(store),
     .preset = "embedded:",
     .help = "where jobs and leases live: embedded:, redis://..., redis-cluster://..., "
             "redis-sentinel://...; a password belongs into BERTH_STORE_PASSWORD, not into a flag",
     .flags = FIELD_SECRET},
    {.name = "data_dir",
     .type = FIELD_STR,
     .offset = AT(data_dir),
     .preset = "./berth-data",
     .help = "directory of the embedded store"},
    {.name = "database",
     .type = FIELD_STR,
     .offset = AT(database),
     .flags = FIELD_SECRET,
     .help =
         "where deployments live: sqlite:PATH (default berth.db in data_dir), postgresql://...; "
         "a password belongs into BERTH_DATABASE or the file, not into a flag"},
    {.name = "database_timeout_ms",
     .type = FIELD_MS,
     .offset = AT(database_timeout_ms),
     .min = 100,
     .max = 60 * SECOND_MS,
     .preset = "2000",
     .help = "a statement that takes longer failed"},
    {.name = "deploy_lease_ms",
     .type = FIELD_MS,
     .offset = AT(deploy_lease_ms),
     .min = 1000,
     .max = HOUR_MS,
     .preset = "45000",
     .help = "a node's deployments may be taken over so long after its last renewal"},
    {.name = "deploy_renew_ms",
     .type = FIELD_MS,
     .offset = AT(deploy_renew_ms),
     .min = 100,
     .max = HOUR_MS,
     .preset = "off",
     .flags = FIELD_NULLABLE,
     .help = "how often a node renews it; off = nine times in that"},
    {.name = "claim_mode",
     .type = FIELD_ENUM,
     .offset = AT(claim_mode),
     .names = claim_modes,
     .preset = "hardened",
     .help = "hardened, or seed: no leases, no grace, no guard against mass loss"},
    {.name = "loops",
     .type = FIELD_INT,
     .offset = AT(loops),
     .min = 0,
     .max = 64,
     .preset = "0",
     .help = "loop threads; 0 = one for each core, at most 8"},

    {.name = "sample_k",
     .type = FIELD_INT,
     .offset = SCHED(sample_k),
     .min = 1,
     .max = SCHED_SAMPLE_MAX,
     .preset = "20",
     .help = "candidates sampled for a dispatch"},
    {.name = "explain_bytes",
     .type = FIELD_INT,
     .offset = SCHED(explain_bytes),
     .min = EXPLAIN_BYTES_MIN,
     .max = 1024 * MIB,
     .preset = "4194304",
     .help = "memory of each loop for why jobs went where they did; as much for refused ones"},
    {.name = "reservation_ttl_ms",
     .type = FIELD_MS,
     .offset = SCHED(reservation_ttl_ms),
     .min = 50,
     .max = 600 * SECOND_MS,
     .preset = "5000",
     .help = "how long a node has for its ACK"},
    {.name = "max_attempts",
     .alias = "max_retry",
     .type = FIELD_INT,
     .offset = SCHED(max_attempts),
     .min = 1,
     .max = JOB_ATTEMPTS_MAX,
     .preset = "2",
     .help = "attempts of a job in all"},
    {.name = "candidate_shuffle",
     .type = FIELD_BOOL,
     .offset = SCHED(candidate_shuffle),
     .preset = "true",
     .help = "try equal candidates in random order"},
    {.name = "health_filter",
     .type = FIELD_STR,
     .offset = SCHED(health_filter),
     .preset = "ready",
     .help = "health a node must have to get work: ready"},
    {.name = "policy",
     .type = FIELD_STR,
     .offset = SCHED(policy),
     .preset = "least_loaded",
     .help = "which candidate first: random, least_loaded, health"},
    {.name = "heartbeat_ms",
     .type = FIELD_MS,
     .offset = SCHED(heartbeat_ms),
     .min = 1000,
     .max = HOUR_MS,
     .preset = "5000",
     .help = "how often nodes send heartbeats"},
    {.name = "heartbeat_stale_ms",
     .type = FIELD_MS,
     .offset = SCHED(heartbeat_stale_ms),
     .min = 1000,
     .max = DAY_MS,
     .preset = "15000",
     .flags = FIELD_NULLABLE,
     .help = "a node silent for longer gets no work; off = never"},
    {.name = "view_drop_ms",
     .type = FIELD_MS,
     .offset = SCHED(view_drop_ms),
     .min = 1000,
     .max = DAY_MS,
     .preset = "30000",
     .help = "a node silent for longer is gone from the view"},
    {.name = "lost_grace_ms",
     .type = FIELD_MS,
     .offset = SCHED(lost_grace_ms),
     .min = 1000,
     .max = DAY_MS,
     .preset = "15000",
     .help = "and lost after this much more"},
    {.name = "forget_ms",
     .type = FIELD_MS,
     .offset = SCHED(forget_ms),
     .min = 1000,
     .max = 365 * DAY_MS,
     .preset = "1h",
     .help = "a node silent for longer is forgotten"},
    {.name = "running_lease_ms",
     .type = FIELD_MS,
     .offset = SCHED(leases.task_ms),
     .min = 1000,
     .max = DAY_MS,
     .preset = "120000",
     .help =
         "a running task whose node is silent so long moves on; its node ends it at 2/3 of that"},
    {.name = "f2f_lease_ms",
     .type = FIELD_MS,
     .offset = SCHED(leases.f2f_ms),
     .min = 1000,
     .max = DAY_MS,
     .preset = "45000",
     .help = "the same for face-to-face jobs"},
    {.name = "stop_grace_ms",
     .type = FIELD_MS,
     .offset = SCHED(stop_grace_ms),
     .min = 0,
     .max = HOUR_MS,
     .preset = "15000",
     .help = "time a node has beyond a job's timeout before the server steps in"},
    {.name = "queue_max",
     .type = FIELD_INT,
     .offset = SCHED(queue_max),
     .min = 1,
     .max = 1000000,
     .preset = "10000",
     .help = "jobs that may wait, of those that ask for the same"},
    {.name = "queue_total_max",
     .type = FIELD_INT,
     .offset = SCHED(queue_total_max),
     .min = 1,
     .max = 100000000,
     .preset = "100000",
     .help = "jobs that may wait in all, whatever they ask for"},
    {.name = "nodes_max",
     .type = FIELD_INT,
     .offset = SCHED(nodes_max),
     .min = 1,
     .max = 1000000,
     .preset = "20000",
     .help = "nodes that may be registered"},
    {.name = "latency_target_ms",
     .type = FIELD_MS,
     .offset = SCHED(latency_target_ms),
     .min = 1,
     .max = HOUR_MS,
     .preset = "1000",
     .help = "run time at which health_score counts latency full"},
    {.name = "pools",
     .type = FIELD_STRS,
     .offset = SCHED(pools),
     .help = "pairs (en:zh) that exist for nodes with nmt_pairs any"},
    {.name = "routes",
     .type = FIELD_JSON,
     .offset = AT(routes),
     .flags = FIELD_NO_FLAG,
     .help = "servers a type of task may go to, in order (talk: [hk, us])"},
    {.name = "default_route",
     .type = FIELD_STRS,
     .offset = SCHED(routing.default_route),
     .help = "the same for types no route names; none = any server that allows the type"},
    {.name = "nodes",
     .type = FIELD_JSON,
     .offset = AT(nodes),
     .flags = FIELD_NO_FLAG,
     .help = "what nodes are, whatever they say: by node_id (\"gpu-*\": {labels: {zone: eu}, "
             "allowed_types: [f2f]})"},
    {.name = "high_priority_min",
     .type = FIELD_INT,
     .offset = SCHED(high_priority_min),
     .min = 0,
     .max = 10,
     .preset = "7",
     .help = "priority a machine at level warning still takes"},
    {.name = "store_timeout_ms",
     .type = FIELD_MS,
     .offset = SCHED(store_timeout_ms),
     .min = 10,
     .max = 60 * SECOND_MS,
     .preset = "2000",
     .help = "a store call that arrives later does nothing"},
    {.name = "store_call_ms",
     .type = FIELD_MS,
     .offset = AT(store_call_ms),
     .min = 5,
     .max = 60 * SECOND_MS,
     .preset = "80",
     .help = "a call of Redis that takes longer has failed: its requests are refused"},
    {.name = "store_format",
     .type = FIELD_INT,
     .offset = AT(store_format),
     .min = 0,
     .max = 63,
     .preset = "0",
     .help = "newest format to write into Redis, to go back a release; 0 = as new as all read"},

    {.name = "connections_max",
     .type = FIELD_INT,
     .offset = AT(http.net.connections_max),
     .min = 1,
     .max = 1000000,
     .preset = "20000",
     .help = "open connections per loop; fewer if there are not descriptors enough"},
    {.name = "connections_unknown_percent",
     .type = FIELD_INT,
     .offset = AT(http.net.connections_unknown_percent),
     .min = 1,
     .max = 100,
     .preset = "50",
     .help = "of them for callers that have not shown a token; the oldest makes room for the next"},
    {.name = "connections_per_peer_max",
     .type = FIELD_INT,
     .offset = AT(http.net.connections_per_peer_max),
     .min = 0,
     .max = 1000000,
     .preset = "512",
     .help = "and of those per remote address; 0 = no limit"},
    {.name = "events_replay_bytes",
     .type = FIELD_INT,
     .offset = AT(events_replay_bytes),
     .min = 1024,
     .max = 4 * MIB,
     .preset = "1048576",
     .help = "events kept for readers that come back (Last-Event-ID)"},
    {.name = "write_queue_bytes_max",
     .type = FIELD_INT,
     .offset = AT(http.net.write_queue_bytes_max),
     .min = 65536,
     .max = 1024 * MIB,
     .preset = "8388608",
     .help = "a reader slower than this is dropped"},
    {.name = "write_queues_bytes_max",
     .type = FIELD_INT,
     .offset = AT(http.net.write_queues_bytes_max),
     .min = 0,
     .max = 1024 * 1024 * MIB,
     .preset = "16777216",
     .help = "all such readers of a loop together, nodes aside; over it the one that is behind for "
             "the longest time is dropped; 0 = no limit"},
    {.name = "header_timeout_ms",
     .type = FIELD_MS,
     .offset = AT(http.net.header_timeout_ms),
     .min = 10,
     .max = HOUR_MS,
     .preset = "10000",
     .help = "for the whole request head"},
    {.name = "body_timeout_ms",
     .type = FIELD_MS,
     .offset = AT(http.net.body_timeout_ms),
     .min = 10,
     .max = HOUR_MS,
     .preset = "30000",
     .help = "for the whole body"},
    {.name = "idle_timeout_ms",
     .type = FIELD_MS,
     .offset = AT(http.net.idle_timeout_ms),
     .min = 10,
     .max = DAY_MS,
     .preset = "75000",
     .help = "between requests"},
    {.name = "header_bytes_max",
     .type = FIELD_INT,
     .offset = AT(http.header_bytes_max),
     .min = 1024,
     .max = MIB,
     .preset = "16384",
     .help = "request line and headers"},
    {.name = "header_count_max",
     .type = FIELD_INT,
     .offset = AT(http.header_count_max),
     .min = 8,
     .max = 1000,
     .preset = "100",
     .help = "headers of a request"},
    {.name = "uri_bytes_max",
     .type = FIELD_INT,
     .offset = AT(http.uri_bytes_max),
     .min = 256,
     .max = 65536,
     .preset = "8192",
     .help = "request target"},
    {.name = "body_bytes_max",
     .type = FIELD_INT,
     .offset = AT(http.body_bytes_max),
     .min = 1024,
     .max = 256 * MIB,
     .preset = "1048576",
     .help = "body of a request (a batch: eight times that)"},
    {.name = "bodies_bytes_max",
     .type = FIELD_INT,
     .offset = AT(http.bodies_bytes_max),
     .min = 0,
     .max = 1024 * 1024 * MIB,
     .preset = "0",
     .help = "all bodies at once, over 16 KiB of each; 0 = a sixteenth of the memory, at "
             "most 256 MiB"},
    {.name = "message_bytes_max",
     .type = FIELD_INT,
     .offset = AT(ws.message_bytes_max),
     .min = 1024,
     .max = 256 * MIB,
     .preset = "1048576",
     .help = "WebSocket message of a node"},
    {.name = "message_queue_bytes_max",
     .type = FIELD_INT,
     .offset = AT(ws.queue_bytes_max),
     .min = 65536,
     .max = 1024 * MIB,
     .preset = "8388608",
     .help = "what may wait for a slow node; over it the node is disconnected"},
    {.name = "ping_ms",
     .type = FIELD_MS,
     .offset = AT(ws.ping_ms),
     .min = 100,
     .max = HOUR_MS,
     .preset = "15000",
     .help = "a silent WebSocket is pinged after this, and dead after twice"},
    {.name = "result_bytes_max",
     .type = FIELD_INT,
     .offset = AT(result_bytes_max),
     .min = 0,
     .max = 64 * MIB,
     .preset = "65536",
     .flags = FIELD_LIVE,
     .help = "result of a job"},
    {.name = "batch_max",
     .type = FIELD_INT,
     .offset = AT(batch_max),
     .min = 1,
     .max = 10000,
     .preset = "1000",
     .flags = FIELD_LIVE,
     .help = "jobs of one batch request"},

    {.name = "retention_ms",
     .type = FIELD_MS,
     .offset = AT(retention_ms),
     .min = 1000,
     .max = 365 * DAY_MS,
     .preset = "1h",
     .help = "how long finished jobs are kept"},
    {.name = "retention_jobs_max",
     .type = FIELD_INT,
     .offset = AT(retention_jobs_max),
     .min = 1000,
     .max = 1000000000,
     .preset = "5000000",
     .help = "and how many of them at most"},
    {.name = "journal_bytes_max",
     .type = FIELD_INT,
     .offset = AT(journal_bytes_max),
     .min = 16 * MIB,
     .max = 1024 * 1024 * MIB,
     .preset = "268435456",
     .help = "the embedded store: what store.db may lack, in bytes, before new jobs are refused"},
    {.name = "breaker_threshold",
     .alias = "failureThreshold",
     .type = FIELD_INT,
     .offset = AT(breaker_threshold),
     .min = 0,
     .max = 1000000,
     .preset = "3",
     .help = "failures in a row after which a node gets no more work of a type; 0 = never"},
    {.name = "breaker_cooldown_ms",
     .type = FIELD_MS,
     .offset = AT(breaker_cooldown_ms),
     .min = 10,
     .max = DAY_MS,
     .preset = "5m",
     .help = "how long, until one job is sent to see whether it works again"},
    {.name = "store_in_flight_max",
     .type = FIELD_INT,
     .offset = AT(store_in_flight_max),
     .min = 16,
     .max = 1000000,
     .preset = "65536",
     .help = "store calls under way; more answer SCHEDULER_BUSY"},
    {.name = "push_timeout_ms",
     .type = FIELD_MS,
     .offset = AT(push_timeout_ms),
     .min = 10,
     .max = 600 * SECOND_MS,
     .preset = "2000",
     .flags = FIELD_LIVE,
     .help = "for a push to a node's endpoint"},
    {.name = "callback_retry_ms",
     .type = FIELD_MS,
     .offset = AT(callback_retry_ms),
     .min = 10,
     .max = HOUR_MS,
     .preset = "1000",
     .flags = FIELD_LIVE,
     .help = "first pause after a failed callback; doubles"},
    {.name = "callback_tries_max",
     .type = FIELD_INT,
     .offset = AT(callback_tries_max),
     .min = 1,
     .max = 1000,
     .preset = "20",
     .flags = FIELD_LIVE,
     .help = "then it is given up"},
    {.name = "poll_wait_max_ms",
     .type = FIELD_MS,
     .offset = AT(poll_wait_max_ms),
     .min = 0,
     .max = HOUR_MS,
     .preset = "60000",
     .flags = FIELD_LIVE,
     .help = "the longest ?wait="},
    {.name = "metrics_nodes_max",
     .type = FIELD_INT,
     .offset = AT(metrics_nodes_max),
     .min = 0,
     .max = 1000000,
     .preset = "1000",
     .flags = FIELD_LIVE,
     .help = "nodes that have series of their own in /metrics; the sums count all"},
    {.name = "allow_urls",
     .type = FIELD_STRS,
     .offset = AT(allow_urls),
     .flags = FIELD_LIVE,
     .help = "URLs the server may call: prefixes, loopback, none; default loopback, none if there "
             "are tokens"},
    {.name = "endpoint_urls",
     .type = FIELD_STRS,
     .offset = AT(endpoint_urls),
     .flags = FIELD_LIVE,
     .help = "the same for the endpoint of a node alone; default allow_urls"},
    {.name = "callback_urls",
     .type = FIELD_STRS,
     .offset = AT(callback_urls),
     .flags = FIELD_LIVE,
     .help = "the same for the callback_url of a job alone; default allow_urls"},
    {.name = "hosts",
     .type = FIELD_STRS,
     .offset = AT(hosts),
     .flags = FIELD_LIVE,
     .help = "names besides loopback that a request's Host may carry"},
    {.name = "trusted_proxies",
     .type = FIELD_STRS,
     .offset = AT(trusted_proxies),
     .flags = FIELD_LIVE,
     .help = "proxies whose X-Forwarded-For and X-Forwarded-Proto are believed: addresses and "
             "ranges (10.0.0.0/8, fd00::/8)"},
    {.name = "tokens",
     .type = FIELD_JSON,
     .offset = AT(tokens_json),
     .flags = FIELD_NO_FLAG | FIELD_SECRET | FIELD_LIVE,
     .help = "who may call ({name, sha256, scopes, node_id} each); none = loopback only"},
    {.name = "tokens_file",
     .type = FIELD_STR,
     .offset = AT(tokens_file),
     .flags = FIELD_LIVE,
     .help = "more of them, kept by `berth token`; read again when it changes (default tokens.yaml "
             "in data_dir)"},
    {.name = "login_failures_max",
     .type = FIELD_INT,
     .offset = AT(login_failures_max),
     .min = 0,
     .max = 1000000,
     .preset = "60",
     .flags = FIELD_LIVE,
     .help = "wrong tokens an address may send a minute, per loop; 0 = no limit"},
    {.name = "audit",
     .type = FIELD_ENUM,
     .offset = AT(audit),
     .names = audits,
     .preset = "tried",
     .flags = FIELD_LIVE,
     .help =
         "required: what an operator asks for is on the disk before it is done, or is not done; "
         "tried: it is done, and noted"},
    {.name = "audit_refused_max",
     .type = FIELD_INT,
     .offset = AT(audit_refused_max),
     .min = 0,
     .max = 1000,
     .preset = "20",
     .flags = FIELD_LIVE,
     .help = "refused calls of one caller in ten seconds that the audit tells one by one, per "
             "loop; the others as one number"},
    {.name = "tls_cert",
     .type = FIELD_STR,
     .offset = AT(tls_cert),
     .flags = FIELD_LIVE,
     .help = "certificate file (PEM); with it the server speaks TLS only"},
    {.name = "tls_key",
     .type = FIELD_STR,
     .offset = AT(tls_key),
     .flags = FIELD_LIVE,
     .help = "its key file"},
    {.name = "tls_client_ca",
     .type = FIELD_STR,
     .offset = AT(tls_client_ca),
     .flags = FIELD_LIVE,
     .help = "ask for client certificates of this authority"},
    {.name = "tls_client_crl",
     .type = FIELD_STR,
     .offset = AT(tls_client_crl),
     .flags = FIELD_LIVE,
     .help = "its list of revoked certificates (PEM); without one that is in date nobody gets in"},
    {.name = "tls_client_auth",
     .type = FIELD_ENUM,
     .offset = AT(tls_client_auth),
     .names = client_auths,
     .preset = "required",
     .help = "required: nobody without such a certificate; optional: tokens will do"},
    {.name = "log_level",
     .type = FIELD_ENUM,
     .offset = AT(log_level),
     .names = log_levels,
     .preset = "info",
     .flags = FIELD_LIVE,
     .help = "debug, info, warn, error"},
    {.name = "log_format",
     .type = FIELD_ENUM,
     .offset = AT(log_format),
     .names = log_formats,
     .preset = "logfmt",
     .flags = FIELD_LIVE,
     .help = "logfmt or json"},
    {.name = "log_file",
     .type = FIELD_STR,
     .offset = AT(log_file),
     .help = "file to log to, opened again at SIGHUP; empty = standard error"},
};

static const struct schema settings_schema = {
    .what = "the configuration", .fields = fields, .count = COUNT_OF(fields), .strict = true};

static enum err read_proxies(struct settings *settings, struct arena *arena, struct problem *why)
{
    const struct strs *rows = &settings->trusted_proxies;
    struct ip_ranges ranges = {.at = arena_array(arena, struct ip_range, rows->count + 1),
                               .count = rows->count};

    for (size_t i = 0; i < rows->count; i++)
        if (!ip_range_parse(rows->at[i], &ranges.at[i]))
            return problem_set(why, ERR_BAD_CONFIG, "trusted_proxies",
                               "trusted_proxies: row %zu, \"" STR_FMT
                               "\", is no address or range like 10.0.0.7, 10.0.0.0/8 or fd00::/8.",
                               i + 1, STR_ARG(rows->at[i]));
    settings->proxies = ranges;
    return ERR_OK;
}

enum err settings_load(struct settings_source *source, int argc, char **argv, struct problem *why)
{
    struct settings *settings = &source->settings;
    enum err err;

    *source = (struct settings_source){.settings.http = http_limits_default,
                                       .settings.ws = ws_limits_default};
    err = conf_init(&source->conf, &settings_schema, settings, &source->arena);
    if (!err)
        err = conf_load(&source->conf, argc, argv, why);
    if (!err && settings->deploy_renew_ms == FIELD_OFF)
        settings->deploy_renew_ms = settings->deploy_lease_ms / 9;
    if (!err)
        err = tokens_read(settings->tokens_json, &source->arena, &settings->tokens, why);
    if (!err)
        err = settings_read_routes(settings, &source->arena, why);
    if (!err)
        err = settings_read_nodes(settings, &source->arena, why);
    if (!err)
        err = read_proxies(settings, &source->arena, why);
    if (!err)
        err = settings_check(settings, why);
    return err;
}

void settings_done(struct settings_source *source)
{
    arena_free(&source->arena);
}

void settings_keep(struct settings_source *source, const struct settings_source *old,
                   struct buf *ret_changed, struct buf *ret_waiting)
{
    conf_keep(&source->conf, &old->conf, ret_changed, ret_waiting);
    source->settings.sched = old->settings.sched; /* with what was read out of `routes`, `nodes` */
}

/* Rules between settings (heartbeat_stale_ms >= 3 heartbeats, ...). */
static enum err settings_check(const struct settings *settings, struct problem *why)
{
    const struct sched_config *sched = &settings->sched;

    assert(sched->sample_k > 0 && sched->sample_k <= SCHED_SAMPLE_MAX && settings->loops <= 64);
    if (sched->heartbeat_stale_ms != FIELD_OFF &&
        sched->heartbeat_stale_ms < 3 * sched->heartbeat_ms)
        return problem_set(why, ERR_BAD_CONFIG, "heartbeat_stale_ms",
                           "heartbeat_stale_ms must be at least 3 x heartbeat_ms (%lld), or off.",
                           (long long)(3 * sched->heartbeat_ms));
    if (settings->deploy_lease_ms < 3 * settings->deploy_renew_ms)
        return problem_set(why, ERR_BAD_CONFIG, "deploy_lease_ms",
                           "deploy_lease_ms must be at least 3 x deploy_renew_ms (%lld).",
                           (long long)(3 * settings->deploy_renew_ms));
    if (settings->http.bodies_bytes_max > 0 &&
        settings->http.bodies_bytes_max < ROUTE_LARGE * settings->http.body_bytes_max)
        return problem_set(why, ERR_BAD_CONFIG, "bodies_bytes_max",
                           "bodies_bytes_max must be at least %d x body_bytes_max (%lld), which is "
                           "what a batch may have, or 0.",
                           ROUTE_LARGE, (long long)(ROUTE_LARGE * settings->http.body_bytes_max));
    if (settings->http.net.write_queues_bytes_max > 0 &&
        settings->http.net.write_queues_bytes_max < settings->http.net.write_queue_bytes_max)
        return problem_set(why, ERR_BAD_CONFIG, "write_queues_bytes_max",
                           "write_queues_bytes_max must be at least write_queue_bytes_max (%lld), "
                           "or 0.",
                           (long long)settings->http.net.write_queue_bytes_max);
    if ((settings->tls_cert.len > 0) != (settings->tls_key.len > 0))
        return problem_set(why, ERR_BAD_CONFIG, "tls_key",
                           "tls_cert and tls_key must be given together.");
    if (settings->tls_client_ca.len && !settings->tls_cert.len)
        return problem_set(why, ERR_BAD_CONFIG, "tls_client_ca",
                           "tls_client_ca needs tls_cert: without TLS nobody shows a certificate.");
    if (settings->tls_client_crl.len && !settings->tls_client_ca.len)
        return problem_set(why, ERR_BAD_CONFIG, "tls_client_crl",
                           "tls_client_crl needs tls_client_ca: it is the list of that authority.");
    if (!str_is(sched->health_filter, "ready"))
        return problem_set(why, ERR_BAD_CONFIG, "health_filter",
                           "health_filter must be ready: only a node that says so gets work.");
    if (!policy_by_name(sched->policy))
        return problem_set(why, ERR_BAD_CONFIG, "policy",
                           "policy must be random, least_loaded or health, not \"" STR_FMT "\".",
                           STR_ARG(sched->policy));
    return ERR_OK;
}

void settings_help(struct buf *out)
{
    conf_help(&settings_schema, out);
}
