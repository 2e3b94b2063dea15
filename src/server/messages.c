/* The bodies of requests and answers, one row for each field. A request that is read by rows uses
 * its reader's table; the other tables are here. */
#include "server/messages.h"

#include "model/breaker.h"
#include "model/deploy.h"
#include "model/fleet.h"
#include "model/level.h"
#include "model/token.h"
#include "sched/explain.h"
#include "sched/node_report.h"
#include "sched/spec.h"
#include "server/api.h"
#include "store/deploys.h"

/* A required member, and an optional one. _IN: with bounds; a maximum below the minimum means no
 * maximum. */
#define HAS_IN(key, form, low, high, ...)                                                          \
    {                                                                                              \
        .name = (key), .type = FIELD_JSON, .shape = (form), .min = (low), .max = (high),           \
        .flags = FIELD_REQUIRED, .help = "" __VA_ARGS__                                            \
    }
#define MAY_IN(key, form, low, high, ...)                                                          \
    {                                                                                              \
        .name = (key), .type = FIELD_JSON, .shape = (form), .min = (low), .max = (high),           \
        .help = "" __VA_ARGS__                                                                     \
    }
#define HAS(key, form, ...) HAS_IN(key, form, 0, 0, __VA_ARGS__)
#define MAY(key, form, ...) MAY_IN(key, form, 0, 0, __VA_ARGS__)

/* The same for a struct, which is written by its rows. _NULL: null when it is 0 or empty. */
#define PUT(in, member, kind, ...) FIELD_ROW(in, member, kind, .flags = FIELD_REQUIRED, __VA_ARGS__)
#define PUT_NULL(in, member, kind, ...)                                                            \
    FIELD_ROW(in, member, kind, .flags = FIELD_REQUIRED | FIELD_EMPTY, __VA_ARGS__)

/* A table made from its rows, in braces: rows with a help text one to a line. */
#define TABLE(...)                                                                                 \
    {                                                                                              \
        .fields = (const struct field[])__VA_ARGS__,                                               \
        .count = sizeof((const struct field[])__VA_ARGS__) / sizeof(struct field)                  \
    }
#define ROWS(...)   .rows.schema = &(const struct schema)TABLE(__VA_ARGS__)
#define MORE(table) .more.schema = &(table)

/* Times; _NULL: null while there is none. */
#define SINCE_1970         "milliseconds since 1970"
#define HAS_TIME(key)      HAS(key, "integer", SINCE_1970)
#define MAY_TIME_NULL(key) MAY(key, "integer|null", SINCE_1970)
#define HAS_TIME_NULL(key) HAS(key, "integer|null", SINCE_1970)
#define STALE              "the store cannot be asked: this is what was known age_ms ago"
#define ADMIN              "=cordoned|=draining"
#define SECRETS            "[string]|{string}"
#define NEXT_CURSOR                                                                                \
    HAS("next_cursor", "string|null",                                                              \
        "pass it as `cursor` for the next page; null: this was the last")

/* Enum words from a table elsewhere. */
#define WORDS(function, first, end, name_of)                                                       \
    static const char *function(size_t index)                                                      \
    {                                                                                              \
        return (first) + index < (end) ? name_of((first) + (unsigned)index) : NULL;                \
    }
WORDS(error_names, ERR_OK + 1, ERR_COUNT, err_name)
WORDS(reason_names, 0, EXPLAIN_COUNT, explain_why_name)
WORDS(job_states, 0, JOB_STATE_COUNT, job_state_name)
WORDS(job_statuses, 0, JOB_STATE_COUNT, job_status_name)
WORDS(node_healths, 0, NODE_HEALTH_COUNT, node_health_name)
WORDS(load_levels, 0, LEVEL_COUNT, level_name)
WORDS(breaker_states, 0, BREAKER_STATE_COUNT, breaker_state_name)
WORDS(scopes, SCOPE_READ, SCOPE_COUNT, token_scope_name)
WORDS(fleet_statuses, 0, FLEET_STATUS_COUNT, fleet_status_name)
WORDS(store_modes, 0, STORE_LOCAL_ONLY + 1, store_mode_name)
WORDS(deploy_types, 0, DEPLOY_TYPE_COUNT, deploy_type_name)

static const struct schema placed = TABLE({
    HAS("job_id", "string"),
    HAS("node_id", "string|null"),
    HAS("attempt_id", "integer"),
    MAY("state", "JobState", "only of a job that waits"),
    MAY("duplicate", "boolean"),
});

static const struct schema report_counts =
    TABLE({HAS("jobs", "integer"), HAS("succeeded", "integer"), HAS("failed", "integer"),
           HAS("cancelled", "integer"), HAS("attempts", "integer"), HAS("retried", "integer"),
           HAS("failovers", "integer"), HAS("kills", "integer"), HAS("breaker_opened", "integer"),
           HAS("success_rate", "number|null"), HAS("wait_ms", "Percentiles"),
           HAS("run_ms", "Percentiles")});

static const struct schema report_figures = TABLE({
    HAS("runs", "integer", "attempts that began, and ended"),
    HAS("run_seconds", "number"),
    HAS("slot_seconds", "number"),
    HAS("core_seconds", "number"),
    HAS("gb_seconds", "number", "memory; a GB is 1024 MB"),
    HAS("gpu_seconds", "number", "whole GPUs"),
    HAS("vram_gb_seconds", "number", "of GPUs that are shared"),
    HAS("other_seconds", "{number}", "of resources that an operator named"),
});

static const struct schema token = TABLE({
    HAS_IN("name", "string", 0, TOKEN_NAME_MAX),
    HAS_IN("scopes", "[Scope]", 1, 0),
    HAS("node_id", "string|null", "it may speak for this node only"),
    HAS("created_ms", "integer|null"),
    HAS("expires_ms", "integer|null"),
    HAS("namespace", "string", "whose jobs, sessions and deployments it sees"),
    HAS("quota", "string|null", "like rate=10/s,waiting=1000,bytes=64MiB"),
});

const struct schema failed_on_schema = TABLE({
    PUT(deploys_failure, address, STR),
    PUT(deploys_failure, at_ms, INT),
    PUT(deploys_failure, until_ms, INT),
    PUT_NULL(deploys_failure, reason, STR),
});

/* The index comes first, and only if there are several copies. */
static const struct field copy[] = {
    FIELD_ROW(deploys_copy, index, INT, .help = "of several: 0 to count - 1, one copy each"),
    PUT(deploys_copy, address, STR, .shape = "string|null"),
    PUT(deploys_copy, generation, INT),
    PUT(deploys_copy, version, INT),
    PUT(deploys_copy, state, STR, .shape = "CopyState"),
    PUT(deploys_copy, restarts, INT),
    PUT_NULL(deploys_copy, pid, INT),
    PUT(deploys_copy, since_ms, INT),
    PUT(deploys_copy, healthy, RAW, .shape = "boolean|null"),
    PUT_NULL(deploys_copy, reason, STR),
    PUT_NULL(deploys_copy, limits, STR, .help = "enforced, or not enforced: which, and why"),
    PUT(deploys_copy, updated_ms, INT),
    PUT_NULL(deploys_copy, port, INT, .help = "that it was given"),
};
const struct schema copy_schema = {.fields = copy + 1, .count = COUNT_OF(copy) - 1};
const struct schema indexed_copy_schema = {.fields = copy, .count = COUNT_OF(copy)};

const struct schema history_entry_schema = TABLE(
    {PUT(deploys_event, seq, INT), PUT(deploys_event, at_ms, INT), PUT(deploys_event, what, STR),
     PUT(deploys_event, address, STR), PUT(deploys_event, generation, INT),
     PUT(deploys_event, version, INT), PUT(deploys_event, detail, STR)});

const struct schema held_schema = TABLE({
    PUT(deploys_held, id, STR),
    PUT(deploys_held, address, STR),
    PUT(deploys_held, left_ms, INT),
});

const struct schema view_row_schema = TABLE({
    PUT(deploy_row, id, STR),
    PUT(deploy_row, type, ENUM, .name_at = deploy_types),
    PUT(deploy_row, enabled, BOOL),
    PUT(deploy_row, address, STR),
    PUT(deploy_row, generation, INT),
    PUT(deploy_row, selector, STR),
    PUT(deploy_row, created_at, STR),
    PUT(deploy_row, updated_at, STR),
    PUT(deploy_row, needs, RAW, .shape = "{number}|null"),
});

#define SERVICE_ROWS                                                                               \
    HAS("index", "integer", "0 to count - 1"), HAS("node", "string"),                              \
        HAS("address", "string|null", "of the node, as its agent gives it"),                       \
        HAS("port", "integer|null", "that it was given in BERTH_PORT"),                            \
        HAS("healthy", "boolean|null")

static const struct message_type message_types[] = {
    {"Problem",
     ROWS({
         HAS("type", "string"),
         HAS("title", "string"),
         HAS("status", "integer"),
         HAS("error", "ErrorName"),
         HAS("detail", "string", "a whole sentence"),
         MAY("field", "string", "the field that is to blame"),
         MAY_IN("column", "integer", 1, 0, "the character of its text where it is wrong"),
         MAY("reasons", "{integer}"),
         MAY("attempt_id", "integer", "the current one"),
         MAY("state", "string"),
         MAY("node_id", "string|null"),
         MAY("job_id", "string", "of a refused job: only explain knows it"),
         MAY("explain", "string", "where to ask why"),
         MAY("key", "string", "LIMITED: the key, one of the job's,"),
         MAY("why", "=hold|=concurrency|=rate|=queue", "which of its bounds it is at,"),
         MAY("limit", "integer", "how much it may have,"),
         MAY("used", "integer", "and has"),
         MAY("reason", "string"),
         MAY("address", "string|null"),
         MAY("generation", "integer"),
     }),
     .help = "RFC 9457, with the machine's word in `error`"},
    {"Ok", ROWS({
               HAS("ok", "=true"),
               MAY("duplicate", "boolean", "the same was said before; nothing moved"),
               MAY("drop", "[Run]"),
           })},
    {"Run", ROWS({HAS("job_id", "string"), HAS("attempt_id", "integer")})},
    {"F2f",
     .rows = {.schema = &spec_schema,
              .only = SPEC_F2F,
              .required = SPEC_NEEDED,
              .by_alias = SPEC_LONG_NAME},
     .request = true, .help = "a face-to-face job: placed or refused",
     .example = "{\"src_lang\": \"en\", \"tgt_lang\": \"zh\", \"session_id\": \"room-1\", "
                "\"audio_ref\": \"blob://1\", \"options\": {\"require_tts\": true}}"},
    {"Task", .rows = {.schema = &spec_schema, .only = SPEC_TASK, .required = SPEC_NEEDED},
     .request = true, .help = "a task",
     .example = "{\"type\": \"dev\", \"title\": \"build\", \"priority\": 3, \"payload\": "
                "{\"branch\": \"main\"}, \"queue_ms\": \"30s\"}"},
    {"Batch", ROWS({HAS_IN("jobs", "[{any}]", 1, 0, "each an F2f (type f2f or none) or a Task")}),
     .request = true,
     .example = "{\"jobs\": [{\"src_lang\": \"en\", \"tgt_lang\": \"zh\"}, {\"type\": \"dev\"}]}"},
    {"Placed", .rows.schema = &placed},
    {"DryRun", ROWS({
                   HAS("dry_run", "=true"),
                   HAS("status", "integer", "what the dispatch would answer now"),
                   HAS("outcome", "string", "PLACED, WAITS or an error's name"),
                   HAS("detail", "string|null"),
                   HAS("node_id", "string|null"),
                   HAS("waiting", "integer", "jobs that wait in this instance"),
                   HAS("now", "Decision"),
               })},
    {"Dispatched", .shape = "Placed|DryRun"},
    {"BatchResult", ROWS({HAS("status", "integer", "200 or 202")}), MORE(placed)},
    {"BatchResults", ROWS({HAS("results", "[BatchResult|Problem]")})},
    {"JobMessage",
     ROWS({
         HAS("job_id", "string"),
         HAS("attempt_id", "integer"),
         HAS("send_id", "integer", "which send of this attempt it is: the ACK repeats it"),
         HAS("deadline_ms", "integer", "an ACK that comes later is refused"),
         MAY("namespace", "string", "whose it is; a job of `default` has none"),
         MAY("gpus", "[integer]", "the ids of those it got, if it needs some"),
     }),
     .more = {.schema = &spec_schema, .except = SPEC_NOT_NODE, .required = SPEC_KEPT},
     .help = "what a node gets; its type is without the namespace"},
    {"NodeJobs", ROWS({HAS("jobs", "[JobMessage]")})},
    {"NodeReport", .rows = {.schema = &node_report_schema}, .request = true,
     .help = "a registration; a heartbeat may leave out what did not change", .open = true,
     .example =
         "{\"node_id\": \"example-1\", \"health\": \"ready\", \"semantic_langs\": [\"en\", "
         "\"zh\"], \"nmt_pairs\": [[\"en\", \"zh\"]], \"tts_langs\": [\"zh\"], \"allowed_types\": "
         "[\"dev\"], \"max_concurrent_jobs\": 4, \"labels\": {\"zone\": \"eu\"}}"},
    {"NodeName", ROWS({HAS_IN("node_id", "id", 0, NODE_ID_MAX)}), .request = true,
     .example = "{\"node_id\": \"example-1\"}"},
    {"JobReport", .rows = {.schema = &job_report_schema}, .request = true,
     .help = "what a node says of a job"},
    {"Attempt",
     ROWS({HAS("attempt_id", "integer"), HAS("node_id", "string"), HAS("outcome", "string"),
           MAY("reason", "string|null"), MAY_TIME_NULL("dispatched_ms"), MAY_TIME_NULL("acked_ms"),
           MAY_TIME_NULL("ended_ms")})},
    {"Job",
     ROWS({
         HAS("job_id", "string"),
         HAS("state", "JobState"),
         HAS("status", "JobStatus"),
         HAS("attempt_id", "integer"),
         HAS("max_attempts", "integer"),
         HAS("node_id", "string|null"),
         HAS("type", "string"),
         HAS("reason", "string|null"),
         HAS_TIME("created_ms"),
         HAS_TIME("updated_ms"),
         HAS_TIME_NULL("dispatched_ms"),
         HAS_TIME_NULL("acked_ms"),
         HAS_TIME_NULL("ended_ms"),
         MAY("callback", "=wanted|=pending|=sent|=given_up"),
         MAY("gpus", "[integer]", "the ids of those it got, in its current or last attempt"),
         HAS("attempts", "[Attempt]"),
         HAS("result", "any"),
     }),
     .more = {.schema = &spec_schema,
              .only = SPEC_SHOWN | SPEC_SHOWN_SET,
              .required = SPEC_SHOWN,
              .nullable = SPEC_SHOWN}},
    {"JobList", ROWS({HAS("jobs", "[Job]"), NEXT_CURSOR})},
    {"JobEnd", ROWS({HAS("ok", "=true"), HAS("job_id", "string"), HAS("state", "JobState"),
                     MAY("duplicate", "boolean")})},
    {"BreakerNow", ROWS({HAS("state", "BreakerState"), HAS("failures", "integer"),
                         MAY_TIME_NULL("opened_ms"), MAY_TIME_NULL("probe_until_ms")})},
    {"ResourceLack",
     ROWS({
         HAS("resource", "string", "cpu, mem_mb, vram_mb, gpus, slots or a name of the operator's"),
         HAS("needed", "number"),
         MAY("left", "number"),
         HAS("of", "number", "what the node has of it in all"),
         MAY("gpu", "integer", "the one that has the most left"),
     })},
    {"NodeReason",
     ROWS({
         HAS("node_id", "string|null"),
         HAS("reason", "ReasonName"),
         HAS("detail", "string", "a whole sentence"),
         MAY("load", "integer"),
         MAY("max", "integer"),
         MAY("health", "NodeHealth"),
         MAY("level", "Level|null"),
         MAY("admin", ADMIN "|null"),
         MAY("heartbeat_age_ms", "integer"),
         MAY("health_score", "integer|null", "null unless the policy is health"),
         MAY("rank", "integer", "its place on the type's route"),
         MAY("warm", "=warm|=cold", "of a job that prefers something: whether it is loaded there"),
         MAY("lack", "ResourceLack", "RESOURCES, TOO_SMALL: the first thing that is short"),
         MAY("missing", "string", "NOT_CAPABLE: what it does not offer"),
         MAY("breaker", "BreakerNow", "BREAKER_OPEN: how it is now"),
     })},
    {"ReasonName", .word = reason_names},
    {"KeyReason",
     ROWS({
         HAS("key", "string"),
         HAS("why", "string|null", "hold, concurrency or rate: no more may start; null: one may"),
         HAS("detail", "string"),
         HAS("held_by", "[string]", "jobs that have a lease, the first few that are known"),
     })},
    {"Decision", ROWS({
                     HAS_TIME("at_ms"),
                     HAS("attempt_id", "integer"),
                     HAS("outcome", "string"),
                     HAS("waits", "boolean"),
                     HAS("detail", "string|null"),
                     HAS("node_id", "string|null"),
                     HAS("policy", "string"),
                     HAS("policy_key", "string"),
                     HAS("snapshot_version", "integer"),
                     HAS("pool_id", "string|null"),
                     MAY("keys", "[KeyReason]", "only of what would happen now: the job's keys"),
                     HAS("nodes_total", "integer", "what the reasons add up to"),
                     HAS("pool_members", "integer"),
                     HAS("reasons", "{integer}"),
                     HAS("nodes", "[NodeReason]"),
                     HAS("nodes_left_out", "integer"),
                 })},
    {"Explain", ROWS({HAS("job_id", "string"), HAS("state", "JobState|null"),
                      HAS("reason", "string|null"), HAS("node_id", "string|null"),
                      HAS("attempt_id", "integer|null"), HAS("attempts", "[Attempt]"),
                      HAS("decisions", "[Decision]"), HAS("now", "Decision|null")})},
    {"Logs", ROWS({MAY("attempt_id", "integer"), HAS("offset", "integer"), MAY("next", "integer"),
                   HAS("total", "integer"), HAS("text", "string"), HAS("ended", "boolean"),
                   MAY("tail_only", "boolean")})},
    {"Clamp", ROWS({HAS("name", "string"), HAS("value", "integer"), MAY("bites", "boolean"),
                    HAS("reason", "string")})},
    {"ServerTask", ROWS({HAS("job_id", "string"), HAS("type", "string"),
                         HAS("title", "string|null"), HAS("state", "string")})},
    {"Server", ROWS({
                   HAS("name", "string"),
                   HAS("role", "string|null"),
                   HAS("online", "boolean"),
                   HAS("offline_reason", "string|null"),
                   HAS_TIME("last_seen_ms"),
                   HAS("health", "NodeHealth"),
                   HAS("admin", "string|null"),
                   HAS("level", "Level|null"),
                   HAS("cpu_cores", "number|null"),
                   HAS("cpu_load", "number|null"),
                   HAS("cpu_pct", "number|null"),
                   HAS("mem_total_gb", "number|null"),
                   HAS("mem_free_gb", "number|null"),
                   HAS("swap_used_pct", "number|null"),
                   HAS("disk_total_gb", "number|null", "where the agent keeps runs and packages"),
                   HAS("disk_free_gb", "number|null"),
                   HAS("gpu_pct", "number|null"),
                   HAS("tripped", "string|null"),
                   HAS("figures_reason", "string|null"),
                   HAS("slots_max", "integer"),
                   HAS("slots_available", "integer"),
                   HAS("slots_in_use", "integer"),
                   HAS("resources", "{Resource|[NodeGpu]}|null",
                       "what jobs that say what they need are given of: by name, and `gpus`"),
                   HAS("clamps", "[Clamp]|null"),
                   HAS("tasks_running", "[string]"),
                   HAS("tasks", "[ServerTask]"),
                   HAS("available_for", "[string]"),
               })},
    {"ClusterStatus", ROWS({HAS("servers", "{Server}"), HAS("cluster_status", "FleetStatus"),
                            HAS("total_slots", "integer"), HAS("available_slots", "integer"),
                            HAS("recommendation", "string"), HAS("stale", "boolean")})},
    {"Percentiles", ROWS({HAS("p50", "integer|null"), HAS("p95", "integer|null")})},
    {"ReportType", ROWS({HAS("type", "string"), HAS("refusals", "{integer}")}),
     MORE(report_counts)},
    {"ReportServer",
     ROWS({HAS("node_id", "string"), HAS("slot_use", "number|null"),
           HAS("level_minutes", "{number}"), HAS("types", "[ReportType]")}),
     MORE(report_counts)},
    {"ReportRefused",
     ROWS({HAS("type", "string"), HAS("reason", "string"), HAS("count", "integer")})},
    {"ReportTotal", ROWS({HAS("slot_use", "number|null")}), MORE(report_counts)},
    {"Report", ROWS({HAS("since_ms", "integer"), HAS("until_ms", "integer"), HAS("scope", "string"),
                     HAS("servers", "[ReportServer]"), HAS("refused", "[ReportRefused]"),
                     HAS("total", "ReportTotal")})},
    {"ReportFigures", .rows.schema = &report_figures},
    {"ReportUsageRow",
     ROWS({HAS("name", "string|null", "the key, type or node; null: jobs without keys")}),
     MORE(report_figures)},
    {"ReportUsage", ROWS({
                        HAS("since_ms", "integer"),
                        HAS("until_ms", "integer"),
                        HAS("scope", "string"),
                        HAS("by", "string", "key, type or node"),
                        HAS("rows", "[ReportUsageRow]"),
                        HAS("total", "ReportFigures"),
                    })},
    {"Debug", ROWS({HAS("version", "string"), HAS("pid", "integer"), HAS("started_ms", "integer"),
                    HAS("now_ms", "integer"), HAS("loops", "integer"), HAS("heap_bytes", "integer"),
                    HAS("store", "{any}"), HAS("settings", "{any}"), HAS("log", "[string]")})},
    {"StatsPoint",
     ROWS({HAS("at_ms", "integer"), HAS("dispatched_per_s", "number"), HAS("p50_ms", "number|null"),
           HAS("p99_ms", "number|null"), HAS("slots_used", "integer"), HAS("slots_max", "integer"),
           HAS("queue", "integer"), HAS("failed", "integer"), HAS("refused_per_s", "{number}")})},
    {"Stats", ROWS({HAS("every_ms", "integer"), HAS("points", "[StatsPoint]")})},
    {"Anything", .shape = "any", .help = "any JSON"},
    {"NodeLoad",
     ROWS({HAS("cpu", "number|null"), HAS("gpu", "number|null"), HAS("mem", "number|null")})},
    {"WhyNot", ROWS({HAS("reason", "ReasonName"), HAS("detail", "string")})},
    {"Resource",
     ROWS({
         HAS("capacity", "number", "what there is,"),
         HAS("usable", "number", "what of it is, by measurement: free, or had by its jobs,"),
         HAS("promised", "number|null",
             "what its jobs may have of that, whether they use it or not,"),
         HAS("left", "number|null", "and what may be given away; null: the store has not told yet"),
     })},
    {"NodeGpu", ROWS({
                    HAS("id", "integer"),
                    HAS("model", "string|null"),
                    HAS("vram_mb", "Resource"),
                    HAS("whole", "boolean", "one job has all of it"),
                })},
    {"Node",
     ROWS({
         HAS_IN("node_id", "id", 0, NODE_ID_MAX),
         HAS("health", "NodeHealth"),
         HAS("reported_health", "NodeHealth"),
         HAS("admin", ADMIN "|null"),
         MAY("admin_reason", "string|null"),
         MAY("claim", "any",
             "how its claims of deployments went: cycles, claims, skips by reason, last; null: it "
             "claims none"),
         MAY("loaded", "[string]", "what it holds ready, for jobs that prefer it"),
         HAS("max", "integer"),
         HAS("running", "integer"),
         HAS("reserved", "integer"),
         HAS_TIME("last_heartbeat_ms"),
         HAS("level", "Level|null"),
         HAS("current_load", "NodeLoad"),
         HAS("epoch", "integer"),
         HAS("fixed", "[string]",
             "which of its members are the word of the server's configuration (nodes), not its "
             "own"),
         HAS("labels", "{string}"),
         HAS("semantic_langs", "[string]"),
         HAS("tts_langs", "[string]"),
         HAS("allowed_types", "[string]"),
         HAS("nmt_pairs", "[[string]]|=any"),
         HAS("capabilities", "{boolean}"),
         HAS("max_concurrent_jobs", "integer"),
         HAS("health_score", "integer"),
         HAS("agent_version", "string|null"),
         HAS("version", "integer"),
         HAS("reached_by", "=websocket|=push|=poll"),
         HAS("endpoint", "string|null"),
         HAS("name", "string|null"),
         HAS("role", "string|null"),
         MAY("resources", "{Resource|[NodeGpu]}|null",
             "by name, and `gpus`, a list; null: it declares none"),
         HAS_TIME("registered_ms"),
         HAS("takes_work", "boolean"),
         HAS("why_not", "WhyNot|null"),
         MAY("breakers", "[Breaker]|null", "of one node; null when the store does not answer"),
     })},
    {"NodeList", ROWS({
                     HAS("nodes", "[Node]"),
                     NEXT_CURSOR,
                     MAY("stale", "boolean", STALE),
                     MAY("age_ms", "integer"),
                 })},
    {"Reason", .rows = {.schema = &node_admin_schema}, .request = true,
     .help = "why, for whoever looks later"},
    {"Breaker", ROWS({HAS_IN("node_id", "id", 0, NODE_ID_MAX), HAS("type", "string"),
                      HAS("state", "BreakerState"), HAS("failures", "integer"),
                      HAS_TIME_NULL("opened_ms"), HAS_TIME_NULL("probe_until_ms")})},
    {"BreakerList", ROWS({HAS("breakers", "[Breaker]"), NEXT_CURSOR})},
    {"BreakerName", .rows = {.schema = &breaker_name_schema}, .request = true},
    {"Limit",
     ROWS({
         HAS("key", "string", "or the beginning of keys, with a * at its end"),
         HAS("rule", "string|null", "the limit that counts for it"),
         HAS("concurrency", "integer|null", "jobs with it that may have a lease at once"),
         HAS("rate", "string|null", "starts in a sliding window"),
         HAS("queue", "integer|null", "jobs that may wait"),
         HAS("weight", "integer"),
         HAS("in_flight", "integer|null", "leases; null of a rule for many keys, as what follows"),
         HAS("waiting", "integer|null"),
         HAS("started", "integer|null", "within the window"),
         HAS("held_ms", "integer|null", "so long nothing starts yet; 0: it is not held"),
         HAS("hold_reason", "string|null"),
         HAS("held_by", "[string]|null", "jobs that have a lease, the first few that are known"),
     })},
    {"LimitList", ROWS({HAS("limits", "[Limit]"), NEXT_CURSOR})},
    {"LimitRule", .rows = {.schema = &limit_rule_schema}, .request = true,
     .help = "what is absent or null is not limited"},
    {"LimitHold", .rows = {.schema = &limit_hold_schema}, .request = true},
    {"Token", ROWS({HAS("expired", "boolean"), HAS("source", "=configuration|=file")}),
     MORE(token)},
    {"TokenList", ROWS({HAS("tokens", "[Token]"), NEXT_CURSOR})},
    {"NewToken",
     ROWS({
         HAS_IN("name", "id", 0, TOKEN_NAME_MAX),
         HAS_IN("scopes", "[Scope]", 1, 0),
         MAY("node_id", "string", "it may speak for this node only"),
         MAY_IN("expires_in_ms", "integer", 1, 0),
         MAY_IN("namespace", "id", 0, NAMESPACE_MAX,
                "it sees and makes the jobs, sessions and deployments of this one only; default: "
                "default"),
         MAY("quota", "quota",
             "what the token may use: how fast it submits jobs, how many of them wait, and how "
             "large "
             "those are together; any of the three"),
         MAY("sha256", "sha256", "of a token the caller made; without it the server makes one"),
     }),
     .request = true,
     .example =
         "{\"name\": \"ci\", \"scopes\": [\"submit\", \"read\"], \"expires_in_ms\": 7776000000}"},
    {"MadeToken",
     ROWS({MAY("token", "string", "told this once; absent when the caller sent its sha256")}),
     MORE(token)},
    {"AuditEntry",
     ROWS({
         HAS("id", "integer"),
         HAS("at_ms", "integer"),
         HAS("kind", "=change|=refused",
             "change: it changed something, or may have; refused: it changed nothing"),
         HAS_IN("count", "integer", 1, 0,
                "of the calls this stands for; the other members tell of the first"),
         HAS("who", "string|null",
             "the name of the token; null: there were no tokens, or it was none"),
         HAS("peer", "string|null", "null: there were several"),
         HAS("action", "string", "audit.left_out: so many entries found no room"),
         HAS("target", "string|null"),
         HAS("request_id", "string|null"),
         HAS("body_sha256", "sha256|null",
             "of the body of a change; null: it takes none, or was refused"),
         HAS("result", "string",
             "ok, the name of the error, or asked: with `audit: required` a line before it is "
             "done"),
         HAS("status", "integer", "of the answer; 0 of what was only asked"),
         HAS("mac", "sha256|null",
             "of a change: over it and the change before; null: it is not signed"),
     })},
    {"AuditChain", ROWS({
                       HAS_TIME("checked_ms"),
                       HAS("entries", "integer", "that fit"),
                       HAS("broken_id", "integer|null", "the first entry that does not"),
                       HAS("broken_reason", "string|null"),
                       HAS("newest_id", "integer"),
                       HAS("newest_mac", "string"),
                   })},
    {"Audit",
     ROWS({
         HAS("chain", "AuditChain|null",
             "whether the changes in the files fit together, as of checked_ms; null: they are not "
             "signed"),
         HAS("audit", "[AuditEntry]"),
         NEXT_CURSOR,
     })},
    {"Pool", ROWS({HAS("pool_id", "string"), HAS("src", "string"), HAS("tgt", "string"),
                   HAS("members", "integer"), HAS("ready", "integer"), HAS("version", "integer")})},
    {"PoolList", ROWS({
                     HAS("pools", "[Pool]"),
                     NEXT_CURSOR,
                     MAY("stale", "boolean", STALE),
                     MAY("age_ms", "integer"),
                 })},
    {"Session", ROWS({
                    HAS("session_id", "string"),
                    HAS("preferred_pool", "string|null"),
                    HAS("lang_pair", "string|null"),
                    HAS("version", "integer"),
                    HAS_TIME("updated_ms"),
                    MAY("stale", "boolean", "the store cannot be asked: what it said age_ms ago"),
                    MAY("age_ms", "integer"),
                })},
    {"Ready",
     ROWS({
         HAS("ready", "boolean"),
         MAY("store_mode", "StoreMode"),
         MAY("reason", "string|null"),
         MAY("database_up", "boolean|null", "of deployments; null: there is none"),
         MAY("snapshot_version", "integer"),
         MAY("version", "string"),
     }),
     .help = "with tokens, callers that may not read get ready alone"},
    {"DeploymentHealth", .rows = {.schema = &deploy_health_schema}},
    {"DeploymentLimits", .rows = {.schema = &deploy_limits_schema}},
    {"DeploymentRestart", .rows = {.schema = &deploy_restart_schema}},
    {"FailedOn", .rows.schema = &failed_on_schema},
    {"DeploymentUpdate", ROWS({
                             HAS("state", "=rolling|=rolling_back|=rolled_back|=stopped"),
                             HAS("good_version", "integer",
                                 "the last that was well, to which it goes back; 0: none was"),
                             HAS("reason", "string|null", "why it went back or stopped"),
                         })},
    {"Deployment",
     ROWS({
         HAS("id", "string"),
         HAS("type", "DeployType"),
         HAS("package_name", "string"),
         HAS("package_version", "string"),
         HAS("command", "string|[string]",
             "with args it is a program; a list has one word, the program"),
         HAS("args", "[string]|null"),
         HAS("env", "{string|null}|null",
             "null: the value is not shown to a token that only reads"),
         MAY("secrets", SECRETS, "names of secrets"),
         MAY("needs", "{number}", "what each copy takes of its node's resources"),
         HAS("selector", "string"),
         MAY("health", "DeploymentHealth"),
         MAY("limits", "DeploymentLimits"),
         MAY("stop_grace_ms", "integer"),
         MAY("restart", "DeploymentRestart"),
         HAS("enabled", "boolean"),
         MAY("count", "integer", "copies; left out: 1"),
         MAY("max_unavailable", "integer", "copies that an update replaces at once"),
         MAY("update_timeout_ms", "integer",
             "how long a copy may take to get well with a new version; left out: 600000"),
         HAS("address", "string", "its node, of several copies that of index 0; empty: none yet"),
         HAS("generation", "integer", "fencing token"),
         HAS("version", "integer"),
         HAS("created_at", "string"),
         HAS("updated_at", "string"),
         HAS("ended", "=finished|=failed|null",
             "this version ran to its end and is not started again (restart.policy)"),
         MAY("update", "DeploymentUpdate", "while there is one, or when it went back or stopped"),
         MAY("state", "string|null", "in lists: of its node's copy"),
         MAY("copy_version", "integer|null",
             "in lists: of its node's copy, which may not be the one that is wanted yet"),
         MAY("ready", "integer", "in lists, of several copies: how many run and are well"),
         MAY("changed", "boolean", "answer to a change: it was one"),
         MAY("copies", "[Copy]", "of one deployment, not in lists"),
         MAY("failed_on", "[FailedOn]",
             "of one deployment: nodes that gave it up because it failed there; until then others "
             "come "
             "first"),
     })},
    {"CopyState", .shape =
                      "=installing|=starting|=running|=updating|=unhealthy|=backoff|=crash_"
                      "loop|=finished|=failed|=refused|=stopping|=stopped|=claimed|=unclaimed"},
    {"Copy", .rows.schema = &indexed_copy_schema},
    {"DeploymentList",
     ROWS({HAS("deployments", "[Deployment]"), NEXT_CURSOR, HAS("version", "integer")})},
    {"DeploymentSpec", .rows = {.schema = &deploy_spec_schema}, .request = true,
     .help = "what must run; unknown fields are refused",
     .example = "{\"command\": \"exec my-server --port 8080\", \"env\": {\"MODE\": \"prod\"}, "
                "\"selector\": \"zone=us\", \"limits\": {\"memory_mb\": 512}}"},
    {"Scale", .rows = {.schema = &deploy_scale_schema}, .request = true,
     .example = "{\"count\": 3}"},
    {"Rollback", .rows = {.schema = &deploy_rollback_schema}, .request = true,
     .example = "{\"to_version\": 1}"},
    {"Enabled", ROWS({HAS("enabled", "boolean")}), .request = true,
     .example = "{\"enabled\": false}"},
    {"HistoryEntry", .rows.schema = &history_entry_schema},
    {"DeploymentHistory", ROWS({HAS("history", "[HistoryEntry]"), NEXT_CURSOR})},
    {"DeploymentExplained", ROWS({
                                HAS("id", "string"),
                                HAS("unclaimed", "integer", "copies that no node has"),
                                HAS("nodes", "[DeploymentNode]", "by name"),
                                NEXT_CURSOR,
                            })},
    {"DeploymentNode",
     ROWS({
         HAS("node_id", "string"),
         HAS("copies", "integer", "that it has"),
         HAS("may", "boolean", "it would claim one if it fell to it"),
         HAS("why",
             "=has_it|=may|=gone|=claims_none|=namespace|=selector|=admin|=level|=full|=no_room|"
             "=failed_here"),
         HAS("reason", "string", "the same as a sentence, with figures"),
     })},
    {"Release", ROWS({MAY("address", "string"), MAY("ids", "[string]")}), .request = true,
     .help = "either of them", .example = "{\"address\": \"n1\"}"},
    {"HeldDeployment", .rows.schema = &held_schema},
    {"Released", ROWS({
                     HAS("released", "[string]"),
                     HAS("held", "[HeldDeployment]", "their node's lease has not run out"),
                 })},
    {"Approve", .rows = {.schema = &deploy_approve_schema}, .request = true,
     .example = "{\"for_ms\": \"10m\"}"},
    {"Approved", ROWS({HAS("approved_until_ms", "integer")})},
    {"DeployLook",
     ROWS({
         MAY("node_id", "string"),
         MAY("instance", "string", "of a renewal: which agent of this node_id it is"),
         MAY("if_version", "integer"),
         MAY("delta", "boolean", "of a view: what changed since if_version will do"),
         MAY("indexed", "boolean", "of a view: rows of copies with an index, like web#1, as well"),
         MAY("if_facts", "integer", "of a view: leases and failures of another number only"),
         MAY("cursor", "string"),
         MAY("goodbye", "boolean", "of a renewal: the node stops; its lease is not prolonged"),
         MAY("held", "boolean", "of a renewal: by the agent's own clock its lease never ran out"),
     }),
     .request = true, .help = "node_id is required over HTTP", .example = "{\"node_id\": \"n1\"}"},
    {"DeployViewRow", .rows.schema = &view_row_schema},
    {"DeployViewLease", ROWS({
                            HAS("address", "string"),
                            HAS("left_ms", "integer"),
                            HAS("goodbye", "boolean", "the node stopped in peace"),
                        })},
    {"DeployViewFailure", ROWS({HAS("id", "string"), HAS("address", "string")})},
    {"DeployView",
     ROWS({
         HAS("now_ms", "integer"),
         HAS("version", "integer"),
         HAS("mode", "=hardened|=seed"),
         HAS("approved_until_ms", "integer|null"),
         HAS("unchanged", "boolean"),
         MAY("rows", "[DeployViewRow]"),
         MAY("delta", "boolean", "rows are what changed since if_version"),
         MAY("gone", "[string]", "of a delta: what there is no more; rows may have it anew"),
         MAY("facts", "integer", "the number of leases and failures, with the first page"),
         MAY("leases", "[DeployViewLease]", "those that end within half a lease, and goodbyes"),
         MAY("failures", "[DeployViewFailure]",
             "nodes that gave a deployment up lately because it failed there"),
         NEXT_CURSOR,
     })},
    {"DeployLease",
     ROWS({
         HAS("now_ms", "integer"),
         HAS("version", "integer"),
         HAS("mode", "=hardened|=seed"),
         HAS("lease_ms", "integer"),
         HAS("renew_ms", "integer"),
         HAS("until_ms", "integer"),
         HAS("lapsed", "boolean"),
         HAS("admin", "=none|" ADMIN),
         HAS("drain_deadline_ms", "integer|null"),
         HAS("unchanged", "boolean"),
         MAY("namespaces", "[string]|null", "of which the node takes deployments; null: of all"),
         MAY("labels", "{string}", "of the node, by which it was decided what it must run"),
         MAY("fixed_labels", "{string}",
             "instead of labels, where the server's configuration says which ones it has"),
         MAY("deployments", "[Assignment]"),
     })},
    {"AssignmentSpec", ROWS({
                           MAY("package_name", "string"),
                           MAY("package_version", "string"),
                           MAY("command", "string|[string]"),
                           MAY("args", "[string]|null"),
                           MAY("env", "{string}|null"),
                           MAY("secrets", SECRETS, "names of secrets"),
                           MAY("selector", "string"),
                           MAY("health", "DeploymentHealth"),
                           MAY("limits", "DeploymentLimits"),
                           MAY("stop_grace_ms", "integer"),
                           MAY("restart", "DeploymentRestart"),
                           MAY("needs", "{number}"),
                       })},
    {"Assignment", ROWS({
                       HAS("id", "string"),
                       HAS("type", "=deployment|=daemon"),
                       HAS("generation", "integer"),
                       HAS("version", "integer"),
                       MAY("ended", "=finished|=failed|null", "it is kept, but not started again"),
                       HAS("spec", "AssignmentSpec"),
                       MAY("table_version", "integer"),
                       MAY("duplicate", "boolean"),
                   })},
    {"DeployClaim",
     ROWS({
         MAY("node_id", "string"),
         MAY("instance", "string", "which agent of this node_id it is"),
         HAS("id", "string"),
         MAY("observed", "string", "the owner it saw"),
         MAY("failed", "boolean", "of a yield: it cannot run on this node"),
         MAY("version", "integer", "of a yield: of the spec that failed"),
         MAY("reason", "string", "of a yield: why"),
         HAS("generation", "integer"),
     }),
     .request = true, .help = "what the node saw",
     .example = "{\"node_id\": \"n1\", \"id\": \"web\", \"observed\": \"\", \"generation\": 0}"},
    {"CopyReport", .rows = {.schema = &copy_report_schema}, .request = true},
    {"DeployStatus",
     ROWS({
         MAY("node_id", "string"),
         MAY("instance", "string", "which agent of this node_id it is"),
         MAY("partial", "boolean", "the node has other copies as well"),
         HAS("copies", "[CopyReport]"),
     }),
     .request = true,
     .example = "{\"node_id\": \"n1\", \"copies\": [{\"id\": \"web\", \"generation\": 1, "
                "\"version\": 1, \"state\": \"running\"}]}"},
    {"ServiceCopy", ROWS({SERVICE_ROWS, HAS("version", "integer")})},
    {"Service", ROWS({
                    HAS("name", "string"),
                    HAS("copies", "[ServiceCopy]", "those that are alive"),
                })},
    {"ServicesLook", ROWS({MAY("node_id", "string"), MAY("if_number", "integer")}), .request = true,
     .help = "node_id is required over HTTP", .example = "{\"node_id\": \"n1\"}"},
    {"ServiceAlive", ROWS({
                         HAS("service", "string", "the deployment"),
                         SERVICE_ROWS,
                         HAS("left_ms", "integer", "of its node's lease"),
                     })},
    {"ServicesAlive", ROWS({
                          HAS("number", "integer", "of these copies: the same are not told twice"),
                          HAS("unchanged", "boolean"),
                          HAS("left_ms", "integer|null", "of the lease that ends first"),
                          MAY("copies", "[ServiceAlive]"),
                      })},
    {"DaemonWait", ROWS({HAS("id", "string"), HAS("reason", "string")})},
    {"DeployStale", ROWS({
                        HAS("stale", "[string]"),
                        HAS("waits", "[DaemonWait]", "daemons that asked and must wait"),
                    })},
    {"Terminal", ROWS({
                     HAS("terminal_id", "string"),
                     HAS("name", "string|null"),
                     HAS("tags", "{string}"),
                     HAS("labels", "{string}"),
                     HAS("namespaces", "[string]|null", "of which it takes work; null: of all"),
                     HAS("takes", "boolean",
                         "it would take work: ready, below danger, neither cordoned nor draining"),
                     HAS("health", "string"),
                     HAS("level", "string|null"),
                     HAS("last_seen_ms", "integer"),
                 })},
    {"TerminalList", ROWS({HAS("source", "string"), HAS("seq", "integer"),
                           HAS("terminals", "[Terminal]"), NEXT_CURSOR})},
    {"TerminalSync",
     ROWS({MAY("node_id", "string"), MAY("source", "string"), MAY("seq", "integer")}),
     .request = true, .help = "the last numbers seen; without them, all",
     .example = "{\"node_id\": \"n1\"}"},
    {"TerminalChangePayload", ROWS({MAY("new", "Terminal"), MAY("old", "Terminal")})},
    {"TerminalChange", ROWS({HAS("type", "=TERMINAL_CHANGE"), HAS("change", "=JOIN|=UPDATE|=LEAVE"),
                             HAS("source", "string"), HAS("seq", "integer"),
                             HAS("payload", "TerminalChangePayload")})},
    {"TerminalChanges",
     ROWS({HAS("source", "string"), HAS("seq", "integer"), HAS("full", "boolean"),
           MAY("terminals", "[Terminal]"), MAY("changes", "[TerminalChange]")})},
    {"TerminalUpdate", ROWS({HAS("tags", "{string|null}", "null takes one away")}), .request = true,
     .example = "{\"tags\": {\"node_unit\": \"true\"}}"},
    {"UsageAsk",
     ROWS({
         MAY("node_id", "string"),
         HAS("addresses", "[string]"),
         MAY("timeout_ms", "integer"),
         MAY("room", "[string]", "nodes of which it is told what may be given away"),
     }),
     .request = true,
     .example = "{\"node_id\": \"n1\", \"addresses\": [\"n1\"], \"timeout_ms\": 500}"},
    {"Usage", ROWS({
                  HAS("usage", "{any}"),
                  MAY("room", "{NodeRoom|null}", "of each; null: it is not known"),
              })},
    {"NodeRoom",
     ROWS({
         HAS("resources", "{any}", "what it declares"),
         HAS("left", "{any}", "what is left of it, likewise"),
     }),
     .help = "as in a registration"},
    {"DeployLost",
     ROWS({
         MAY("node_id", "string"),
         HAS("address", "string", "the node that is lost"),
     }),
     .request = true, .example = "{\"node_id\": \"n1\", \"address\": \"n2\"}"},
    {"DeployReleased", ROWS({HAS("released", "integer")})},
    {"ErrorName", .word = error_names},
    {"JobState", .word = job_states},
    {"JobStatus", .word = job_statuses},
    {"NodeHealth", .word = node_healths},
    {"Level", .word = load_levels},
    {"BreakerState", .word = breaker_states},
    {"Scope", .word = scopes},
    {"FleetStatus", .word = fleet_statuses},
    {"StoreMode", .word = store_modes},
    {"DeployType", .word = deploy_types},
};

const struct message_type *message_type_at(size_t index)
{
    return index < COUNT_OF(message_types) ? &message_types[index] : NULL;
}

const struct message_type *message_type_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(message_types); i++)
        if (str_is(name, message_types[i].name))
            return &message_types[i];
    return NULL;
}

const char *message_name(const struct message_rows *rows, const struct field *field)
{
    bool in = !rows->only || (field->flags & rows->only);

    if (!in || (field->flags & (rows->except | FIELD_HIDDEN)))
        return NULL;
    return field->flags & rows->by_alias ? field->alias : field->name;
}
