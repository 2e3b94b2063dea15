/* The settings table. The setting `nodes` fixes facts of nodes, whatever they report; `routes`
 * lists the servers a type of task may go to, in order; `types` what its jobs need. */
#include "server/settings.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "sched/explain.h"
#include "sched/node_report.h"
#include "server/route.h"

/* Reports a mistake in one row of a setting that maps names to rows. */
static enum err bad_row(const char *setting, struct str name, const char *detail,
                        struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, setting, "%s: the row \"" STR_FMT "\": %.300s", setting,
                       STR_ARG(name), detail);
}

/* --- `nodes` --- */

/* What `nodes` can fix: the namespaces whose work a node takes, and the members of a registration
 * that decide what work it gets and how it is shown. Its present state always comes from its own
 * reports. */
static const struct {
    const char *name;
    const char
        *unless_named; /* its value if the row sets another of these; NULL: as the node reports */
} members[] = {
    {"namespaces", NULL}, /* not a member of a registration */
    {"labels", NULL},
    {"allowed_types", NULL},
    /* These four together decide which pools it is in. */
    {"semantic_langs", "[]"},
    {"nmt_pairs", "[]"},
    {"tts_langs", "[]"},
    {"capability_by_type", "{}"},
    {"max_concurrent_jobs", NULL},
    {"reserved_slots", NULL},
    {"priority", NULL},
    {"resources", NULL},
    {"name", NULL},
    {"role", NULL},
};

/* All that the row fixes, including what it fixes by leaving it out. */
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

/* Namespaces, one at least. */
static bool check_namespaces(const struct json *list, struct arena *arena)
{
    if (json_is_null(list))
        return true;
    if (json_type(list) != JSON_ARR || list->count == 0)
        return false;
    for (const struct json *item = json_items(list); item; item = json_after(list, item))
        if (json_type(item) != JSON_STR || !namespace_valid(json_str(item, arena)))
            return false;
    return true;
}

static enum err read_row(const struct json *key, struct arena *arena, struct node_rule *ret_rule,
                         struct problem *why)
{
    struct str pattern = json_str(key, arena);
    const struct json *row = key + 1, *facts;
    struct node_report report;
    struct facts *made;
    struct problem what;
    char text[400];

    if (json_type(row) != JSON_OBJ)
        return bad_row("nodes", pattern, "It must be an object, like {labels: {zone: eu}}.", why);
    for (const struct json *member = json_keys(row); member; member = json_after(row, member)) {
        struct str name = json_str(member, arena);
        size_t known = 0;

        while (known < COUNT_OF(members) && !str_is(name, members[known].name))
            known++;
        if (known < COUNT_OF(members))
            continue;
        int len = snprintf(text, sizeof text, "There is no \"%.64s\"; it may have",
                           arena_cstr(arena, name));
        for (size_t m = 0; m < COUNT_OF(members); m++)
            len += snprintf(text + len, sizeof text - (size_t)len, "%s %s", m ? "," : "",
                            members[m].name);
        return bad_row("nodes", pattern, text, why);
    }
    if (!check_namespaces(json_get(row, "namespaces"), arena))
        return bad_row("nodes", pattern, "namespaces must be a list of namespaces, like [maps].",
                       why);
    /* The same facts reported by a node would have to be accepted. */
    if (json_parse(whole_row(row, arena), arena, &facts, &what) ||
        node_report_read(facts, STR("any"), NULL, arena, &report, &what) ||
        node_report_facts(&report, NULL, &made, &what))
        return bad_row("nodes", pattern, what.detail, why);
    facts_unref(made);
    *ret_rule = (struct node_rule){.pattern = pattern, .facts = facts};
    return ERR_OK;
}

/* `nodes` into sched.node_rules: {"gpu-*": {"labels": {"zone": "eu"}}}. */
static enum err read_nodes(struct settings *settings, struct arena *arena, struct problem *why)
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

/* `routes` into sched.routing: {"talk": ["hk", "us"]}. */
static enum err read_routes(struct settings *settings, struct arena *arena, struct problem *why)
{
    const struct json *map = settings->routes;

    if (json_is_null(map))
        return ERR_OK;
    if (json_type(map) != JSON_OBJ)
        return bad_routes(why);
    struct routing_route *route = arena_array(arena, struct routing_route, map->count + 1);
    settings->sched.routing.routes = route;
    settings->sched.routing.count = map->count;
    for (const struct json *key = json_keys(map); key; key = json_after(map, key), route++) {
        const struct json *list = key + 1;

        route->type = json_str(key, arena);
        if (json_type(list) != JSON_ARR)
            return bad_routes(why);
        route->servers.at = arena_array(arena, struct str, list->count + 1);
        for (const struct json *item = json_items(list); item; item = json_after(list, item)) {
            if (json_type(item) != JSON_STR)
                return bad_routes(why);
            route->servers.at[route->servers.count++] = json_str(item, arena);
        }
    }
    return ERR_OK;
}

/* --- `types` --- */

enum { TYPES_MAX = 4096 };

static enum err read_type(const struct json *key, struct arena *arena, struct spec_type *ret_type,
                          struct problem *why)
{
    struct spec_type row = {.type = json_str(key, arena)};
    struct demand demand = demand_plain;
    struct problem what;

    if (!str_is_id(row.type, POOL_LANG_MAX))
        return bad_row("types", row.type, "It is no type of a job.", why);
    if (json_type(key + 1) != JSON_OBJ)
        return bad_row("types", row.type, "It must be an object, like {needs: {cpu: 1.5}}.", why);
    for (const struct json *member = json_keys(key + 1); member;
         member = json_after(key + 1, member)) {
        if (json_str_is(member, "needs"))
            row.needs = member + 1;
        else if (json_str_is(member, "keys"))
            row.keys = member + 1;
        else
            return bad_row("types", row.type, "It may have needs and keys, and nothing else.", why);
    }
    if (demand_read_needs(row.needs, arena, &demand, &what) ||
        demand_read_keys(row.keys, arena, &demand, &what))
        return bad_row("types", row.type, what.detail, why);
    *ret_type = row;
    return ERR_OK;
}

static int by_type(const void *a, const void *b)
{
    return str_cmp(((const struct spec_type *)a)->type, ((const struct spec_type *)b)->type);
}

/* `types` into type_defaults: {"dev": {"needs": {"cpu": 1.2}}}. */
static enum err read_types(struct settings *settings, struct arena *arena, struct problem *why)
{
    const struct json *map = settings->types, *key = json_first(map);
    struct spec_type *rows;
    enum err err = ERR_OK;

    if (json_is_null(map))
        return ERR_OK;
    if (json_type(map) != JSON_OBJ || map->count > TYPES_MAX)
        return problem_set(why, ERR_BAD_CONFIG, "types",
                           "types must map at most %d types of jobs to what they need, like dev: "
                           "{needs: {cpu: 1.5, mem_mb: 2000}}.",
                           TYPES_MAX);
    rows = arena_array(arena, struct spec_type, map->count + 1);
    for (uint32_t i = 0; !err && i < map->count; i++, key = json_next(key + 1))
        err = read_type(key, arena, &rows[i], why);
    qsort(rows, map->count, sizeof *rows, by_type);
    settings->type_defaults = (struct spec_types){.rows = rows, .count = map->count};
    return err;
}

/* --- the table --- */

#define AT(member) offsetof(struct settings, member)
/* Rows of settings named like their member; _IN: a member of a nested struct. */
#define PLAIN(member, kind, ...)        FIELD_PLAIN(#member, kind, AT(member), __VA_ARGS__)
#define BOUND(member, kind, ...)        FIELD_BOUND(#member, kind, AT(member), __VA_ARGS__)
#define WORDS(member, ...)              FIELD_WORDS(#member, AT(member), __VA_ARGS__)
#define PLAIN_IN(in, member, kind, ...) FIELD_PLAIN(#member, kind, AT(in.member), __VA_ARGS__)
#define BOUND_IN(in, member, kind, ...) FIELD_BOUND(#member, kind, AT(in.member), __VA_ARGS__)
#define SECOND_MS                       1000
#define HOUR_MS                         (3600LL * SECOND_MS)
#define DAY_MS                          (24 * HOUR_MS)
#define MIB                             (1024LL * 1024)

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const client_auths[] = {"required", "optional", NULL};
static const char *const log_formats[] = {"logfmt", "json", NULL};
static const char *const claim_modes[] = {"hardened", "seed", NULL}; /* enum deploy_mode */
static const char *const selectors[] = {"full", "equality", NULL};   /* enum selector_form */

static const char *const audits[] = {"tried", "required", NULL}; /* enum settings_audit */

static const struct field fields[] = {
    PLAIN(listen, STR, "127.0.0.1:7420", 0, "address and port to serve on"),
    PLAIN(store, STR, "embedded:", FIELD_SECRET,
          "where jobs and leases live: embedded:, redis://..., redis-cluster://..., "
          "redis-sentinel://...; a password belongs into BERTH_STORE_PASSWORD, not into a flag"),
    PLAIN(data_dir, STR, "./berth-data", 0, "directory of the embedded store"),
    PLAIN(database, STR, NULL, FIELD_SECRET,
          "where deployments live: sqlite:PATH (default berth.db in data_dir), postgresql://...; "
          "a password belongs into BERTH_DATABASE or the file, not into a flag"),
    BOUND(database_timeout_ms, MS, 100, 60 * SECOND_MS, "2000", 0,
          "a statement that takes longer failed"),
    BOUND(deploy_lease_ms, MS, 1000, HOUR_MS, "45000", 0,
          "a node's deployments may be taken over so long after its last renewal"),
    BOUND(deploy_renew_ms, MS, 100, HOUR_MS, "off", FIELD_NULLABLE,
          "how often a node renews it; off = nine times in that"),
    WORDS(claim_mode, claim_modes, "hardened", 0,
          "hardened, or seed: no leases, no grace, no guard against mass loss"),
    WORDS(selectors, selectors, "full", FIELD_LIVE,
          "what jobs and deployments may ask for: full, or equality: only key=value,key=value, "
          "while servers or agents of releases that read no more are there"),
    BOUND(loops, INT, 0, 64, "0", 0, "loop threads; 0 = one for each core, at most 8"),

    BOUND_IN(sched, sample_k, INT, 1, SCHED_SAMPLE_MAX, "20", 0,
             "candidates sampled for a dispatch"),
    BOUND_IN(sched, explain_bytes, INT, EXPLAIN_BYTES_MIN, 1024 * MIB, "4194304", 0,
             "memory of each loop for why jobs went where they did; as much for refused ones"),
    BOUND_IN(sched, reservation_ttl_ms, MS, 50, 600 * SECOND_MS, "5000", 0,
             "how long a node has for its ACK"),
    BOUND_IN(sched, max_attempts, INT, 1, JOB_ATTEMPTS_MAX, "2", 0, "attempts of a job in all",
             .alias = "max_retry"),
    PLAIN_IN(sched, candidate_shuffle, BOOL, "true", 0, "try equal candidates in random order"),
    PLAIN_IN(sched, health_filter, STR, "ready", 0, "health a node must have to get work: ready"),
    PLAIN_IN(sched, policy, ENUM, "least_loaded", 0, "which candidate first",
             .name_at = policy_name),
    BOUND_IN(sched, heartbeat_ms, MS, 1000, HOUR_MS, "5000", 0, "how often nodes send heartbeats"),
    BOUND_IN(sched, heartbeat_stale_ms, MS, 1000, DAY_MS, "15000", FIELD_NULLABLE,
             "a node silent for longer gets no work; off = never"),
    BOUND_IN(sched, view_drop_ms, MS, 1000, DAY_MS, "30000", 0,
             "a node silent for longer is gone from the view"),
    BOUND_IN(sched, lost_grace_ms, MS, 1000, DAY_MS, "15000", 0, "and lost after this much more"),
    BOUND_IN(sched, forget_ms, MS, 1000, 365 * DAY_MS, "1h", 0,
             "a node silent for longer is forgotten"),
    FIELD_BOUND(
        "running_lease_ms", MS, AT(sched.leases.task_ms), 1000, DAY_MS, "120000", 0,
        "a running task whose node is silent so long moves on; its node ends it at 2/3 of that"),
    FIELD_BOUND("f2f_lease_ms", MS, AT(sched.leases.f2f_ms), 1000, DAY_MS, "45000", 0,
                "the same for face-to-face jobs"),
    BOUND_IN(sched, stop_grace_ms, MS, 0, HOUR_MS, "15000", 0,
             "time a node has beyond a job's timeout before the server steps in"),
    BOUND_IN(sched, queue_max, INT, 1, 1000000, "10000", 0,
             "jobs that may wait, of those that ask for the same"),
    BOUND_IN(sched, queue_total_max, INT, 1, 100000000, "100000", 0,
             "jobs that may wait in all, whatever they ask for"),
    BOUND_IN(sched, nodes_max, INT, 1, 1000000, "20000", 0, "nodes that may be registered"),
    BOUND_IN(sched, latency_target_ms, MS, 1, HOUR_MS, "1000", 0,
             "run time at which health_score counts latency full"),
    PLAIN_IN(sched, pools, STRS, NULL, 0, "pairs (en:zh) that exist for nodes with nmt_pairs any"),
    PLAIN(routes, JSON, NULL, FIELD_NO_FLAG,
          "servers a type of task may go to, in order (talk: [hk, us])"),
    PLAIN_IN(sched.routing, default_route, STRS, NULL, 0,
             "the same for types no route names; none = any server that allows the type"),
    PLAIN(nodes, JSON, NULL, FIELD_NO_FLAG,
          "what nodes are, whatever they say: by node_id (\"gpu-*\": {labels: {zone: eu}, "
          "allowed_types: [f2f]})"),
    PLAIN(types, JSON, NULL, FIELD_NO_FLAG | FIELD_LIVE,
          "what jobs of a type need unless they say so themselves, like dev: {needs: {cpu: "
          "1.5, mem_mb: 2000}}"),
    BOUND_IN(sched, high_priority_min, INT, 0, 10, "7", 0,
             "priority a machine at level warning still takes"),
    BOUND_IN(sched, store_timeout_ms, MS, 10, 60 * SECOND_MS, "2000", 0,
             "a store call that arrives later does nothing"),
    BOUND(store_call_ms, MS, 5, 60 * SECOND_MS, "80", 0,
          "a call of Redis that takes longer has failed: its requests are refused"),
    BOUND(store_format, INT, 0, 63, "0", 0,
          "newest format to write into Redis, to go back a release; 0 = as new as all read"),

    BOUND_IN(http.net, connections_max, INT, 1, 1000000, "20000", 0,
             "open connections per loop; fewer if there are not descriptors enough"),
    BOUND_IN(http.net, connections_unknown_percent, INT, 1, 100, "50", 0,
             "of them for callers that have not shown a token; the oldest makes room for the next"),
    BOUND_IN(http.net, connections_per_peer_max, INT, 0, 1000000, "512", 0,
             "and of those per remote address; 0 = no limit"),
    BOUND(events_replay_bytes, INT, 1024, 4 * MIB, "1048576", 0,
          "events kept for readers that come back (Last-Event-ID)"),
    BOUND_IN(http.net, write_queue_bytes_max, INT, 65536, 1024 * MIB, "8388608", 0,
             "a reader slower than this is dropped"),
    BOUND_IN(http.net, write_queues_bytes_max, INT, 0, 1024 * 1024 * MIB, "16777216", 0,
             "all such readers of a loop together, nodes aside; over it the one that is behind for "
             "the longest time is dropped; 0 = no limit"),
    BOUND_IN(http.net, header_timeout_ms, MS, 10, HOUR_MS, "10000", 0,
             "for the whole request head"),
    BOUND_IN(http.net, body_timeout_ms, MS, 10, HOUR_MS, "30000", 0, "for the whole body"),
    BOUND_IN(http.net, idle_timeout_ms, MS, 10, DAY_MS, "75000", 0, "between requests"),
    BOUND_IN(http, header_bytes_max, INT, 1024, MIB, "16384", 0, "request line and headers"),
    BOUND_IN(http, header_count_max, INT, 8, 1000, "100", 0, "headers of a request"),
    BOUND_IN(http, uri_bytes_max, INT, 256, 65536, "8192", 0, "request target"),
    BOUND_IN(http, body_bytes_max, INT, 1024, 256 * MIB, "1048576", 0,
             "body of a request (a batch: eight times that)"),
    BOUND_IN(http, bodies_bytes_max, INT, 0, 1024 * 1024 * MIB, "0", 0,
             "all bodies at once, over 16 KiB of each; 0 = a sixteenth of the memory, at "
             "most 256 MiB"),
    BOUND_IN(ws, message_bytes_max, INT, 1024, 256 * MIB, "1048576", 0,
             "WebSocket message of a node"),
    FIELD_BOUND("message_queue_bytes_max", INT, AT(ws.queue_bytes_max), 65536, 1024 * MIB,
                "8388608", 0, "what may wait for a slow node; over it the node is disconnected"),
    BOUND_IN(ws, ping_ms, MS, 100, HOUR_MS, "15000", 0,
             "a silent WebSocket is pinged after this, and dead after twice"),
    BOUND(result_bytes_max, INT, 0, 64 * MIB, "65536", FIELD_LIVE, "result of a job"),
    BOUND(batch_max, INT, 1, 10000, "1000", FIELD_LIVE, "jobs of one batch request"),

    BOUND(retention_ms, MS, 1000, 365 * DAY_MS, "1h", 0, "how long finished jobs are kept"),
    BOUND(retention_jobs_max, INT, 1000, 1000000000, "5000000", 0, "and how many of them at most"),
    BOUND(journal_bytes_max, INT, 16 * MIB, 1024 * 1024 * MIB, "268435456", 0,
          "the embedded store: what store.db may lack, in bytes, before new jobs are refused"),
    BOUND(breaker_threshold, INT, 0, 1000000, "3", 0,
          "failures in a row after which a node gets no more work of a type; 0 = never",
          .alias = "failureThreshold"),
    BOUND(breaker_cooldown_ms, MS, 10, DAY_MS, "5m", 0,
          "how long, until one job is sent to see whether it works again"),
    BOUND(store_in_flight_max, INT, 16, 1000000, "65536", 0,
          "store calls under way; more answer SCHEDULER_BUSY"),
    BOUND(push_timeout_ms, MS, 10, 600 * SECOND_MS, "2000", FIELD_LIVE,
          "for a push to a node's endpoint"),
    BOUND(callback_retry_ms, MS, 10, HOUR_MS, "1000", FIELD_LIVE,
          "first pause after a failed callback; doubles"),
    BOUND(callback_tries_max, INT, 1, 1000, "20", FIELD_LIVE, "then it is given up"),
    BOUND(poll_wait_max_ms, MS, 0, HOUR_MS, "60000", FIELD_LIVE, "the longest ?wait="),
    BOUND(metrics_nodes_max, INT, 0, 1000000, "1000", FIELD_LIVE,
          "nodes that have series of their own in /metrics; the sums count all"),
    PLAIN(allow_urls, STRS, NULL, FIELD_LIVE,
          "URLs the server may call: prefixes, loopback, none; default loopback, none if there "
          "are tokens"),
    PLAIN(endpoint_urls, STRS, NULL, FIELD_LIVE,
          "the same for the endpoint of a node alone; default allow_urls"),
    PLAIN(callback_urls, STRS, NULL, FIELD_LIVE,
          "the same for the callback_url of a job alone; default allow_urls"),
    PLAIN(hosts, STRS, NULL, FIELD_LIVE, "names besides loopback that a request's Host may carry"),
    PLAIN(trusted_proxies, STRS, NULL, FIELD_LIVE,
          "proxies whose X-Forwarded-For and X-Forwarded-Proto are believed: addresses and "
          "ranges (10.0.0.0/8, fd00::/8)"),
    FIELD_PLAIN("tokens", JSON, AT(tokens_json), NULL, FIELD_NO_FLAG | FIELD_SECRET | FIELD_LIVE,
                "who may call ({name, sha256, scopes, node_id} each); none = loopback only"),
    PLAIN(tokens_file, STR, NULL, FIELD_LIVE,
          "more of them, kept by `berth token`; read again when it changes (default tokens.yaml "
          "in data_dir)"),
    BOUND(login_failures_max, INT, 0, 1000000, "60", FIELD_LIVE,
          "wrong tokens an address may send a minute, per loop; 0 = no limit"),
    WORDS(audit, audits, "tried", FIELD_LIVE,
          "required: what an operator asks for is on the disk before it is done, or is not done; "
          "tried: it is done, and noted"),
    BOUND(audit_refused_max, INT, 0, 1000, "20", FIELD_LIVE,
          "refused calls of one caller in ten seconds that the audit tells one by one, per "
          "loop; the others as one number"),
    PLAIN(tls_cert, STR, NULL, FIELD_LIVE,
          "certificate file (PEM); with it the server speaks TLS only"),
    PLAIN(tls_key, STR, NULL, FIELD_LIVE, "its key file"),
    PLAIN(tls_client_ca, STR, NULL, FIELD_LIVE, "ask for client certificates of this authority"),
    PLAIN(tls_client_crl, STR, NULL, FIELD_LIVE,
          "its list of revoked certificates (PEM); without one that is in date nobody gets in"),
    WORDS(tls_client_auth, client_auths, "required", 0,
          "required: nobody without such a certificate; optional: tokens will do"),
    WORDS(log_level, log_levels, "info", FIELD_LIVE, "debug, info, warn, error"),
    WORDS(log_format, log_formats, "logfmt", FIELD_LIVE, "logfmt or json"),
    PLAIN(log_file, STR, NULL, 0, "file to log to, opened again at SIGHUP; empty = standard error"),
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
    return ERR_OK;
}

enum err settings_load(struct settings_source *source, int argc, char **argv, struct problem *why)
{
    static enum err (*const readers[])(struct settings *, struct arena *, struct problem *) = {
        read_routes, read_nodes, read_types, read_proxies};
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
    for (size_t i = 0; !err && i < COUNT_OF(readers); i++)
        err = readers[i](settings, &source->arena, why);
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
    source->settings.sched = old->settings.sched; /* including what `routes` and `nodes` became */
}

void settings_help(struct buf *out)
{
    conf_help(&settings_schema, out);
}
