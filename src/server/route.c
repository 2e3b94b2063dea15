/* The route table, and what happens to a request before and after its handler: checks of Host,
 * Origin and the site a browser names; X-Forwarded-For and X-Forwarded-Proto of proxies; entity
 * tags (RFC 9110); one line in the log. */
#include "server/route.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/metrics.h"
#include "io/ip.h"
#include "server/api.h"
#include "server/auth.h"
#include "server/guard.h"
#include "server/hub.h"
#include "server/submit_socket.h"

enum {
    REQUEST_LINES_MAX = 50,
    ANSWER_KEEP_BYTES = 65536, /* call_buf() keeps no more than this after a long answer */
};

/* --- Host and Origin --- */

/* The host of "name", "name:port", "[::1]:port". */
static struct str host_only(struct str host)
{
    if (host.len && host.at[0] == '[') {
        const char *end = memchr(host.at, ']', host.len);

        return end ? (struct str){.at = host.at, .len = (size_t)(end - host.at) + 1} : host;
    }
    return str_cut(&host, ':');
}

static bool host_allowed(const struct settings *settings, struct str host)
{
    static const char *const own[] = {"localhost", "127.0.0.1", "[::1]"};
    struct str name = host_only(host);

    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (str_eq_nocase(name, str_of(own[i])))
            return true;
    if (str_eq_nocase(name, host_only(settings->listen)))
        return true;
    for (size_t i = 0; i < settings->hosts.count; i++)
        if (str_eq_nocase(name, settings->hosts.at[i]) ||
            str_eq_nocase(host, settings->hosts.at[i]))
            return true;
    return false;
}

enum err origin_check(const struct http_request *req, const struct settings *settings,
                      struct problem *why)
{
    struct str host = http_header_get(req, "Host");
    struct str origin = http_header_get(req, "Origin");
    struct str site = http_header_get(req, "Sec-Fetch-Site");

    assert(settings->listen.at);
    if (host.at && !host_allowed(settings, host))
        return problem_set(why, ERR_FORBIDDEN, "Host",
                           "Host is not this server's: use a loopback address, or list it in the "
                           "setting hosts.");
    /* Browsers send Sec-Fetch-Site even where they send no Origin (images, scripts, plain GETs),
     * and some GETs have effects. Other sites may link only to the page itself. */
    bool is_link = str_is(req->path, "/") &&
                   (req->method == HTTP_M_GET || req->method == HTTP_M_HEAD) &&
                   str_is(http_header_get(req, "Sec-Fetch-Mode"), "navigate");
    if (site.at && !str_is(site, "same-origin") && !str_is(site, "none") && !is_link)
        return problem_set(why, ERR_FORBIDDEN, "Sec-Fetch-Site",
                           "Requests from pages of another origin are not taken.");
    if (!origin.at)
        return ERR_OK;
    struct str rest = origin;
    if (str_starts(rest, STR("http://")))
        rest = (struct str){.at = rest.at + 7, .len = rest.len - 7};
    else if (str_starts(rest, STR("https://")))
        rest = (struct str){.at = rest.at + 8, .len = rest.len - 8};
    else
        rest = STR_NONE;
    /* It must be the exact host and port we were called by: another port on this machine is another
     * program. */
    if (!rest.at || !str_eq_nocase(rest, host))
        return problem_set(why, ERR_FORBIDDEN, "Origin",
                           "Requests from pages of another origin are not taken.");
    return ERR_OK;
}

/* --- proxies --- */

/* Each proxy appends the address that called it: only what a trusted proxy wrote can be
 * believed. */
#define FORWARDED_FOR "X-Forwarded-For"

static bool is_trusted(const struct ip_ranges *proxies, const struct ip *ip)
{
    for (size_t i = 0; i < proxies->count; i++)
        if (ip_range_has(&proxies->at[i], ip))
            return true;
    return false;
}

/* Cuts *rest at its last comma: returns what follows it, leaves what precedes it (rest->at is NULL
 * when there was no comma). */
static struct str cut_last(struct str *rest)
{
    size_t from = rest->len;
    struct str last;

    while (from > 0 && rest->at[from - 1] != ',')
        from--;
    last = (struct str){.at = rest->at + from, .len = rest->len - from};
    *rest = from > 0 ? (struct str){.at = rest->at, .len = from - 1} : STR_NONE;
    return str_trim(last);
}

/* Walks from the last hop to the first, as long as a trusted proxy wrote them. An entry that is not
 * an address ends the walk: the proxy that wrote it is the last address we know. */
static struct ip caller_behind(const struct http_request *req, const struct ip_ranges *proxies,
                               struct ip hop)
{
    for (size_t i = req->header_count; i-- > 0;) {
        struct str rest = req->headers[i].value;

        if (!str_eq_nocase(req->headers[i].name, STR(FORWARDED_FOR)))
            continue;
        do {
            struct ip before;

            if (!ip_parse(cut_last(&rest), &before))
                return hop;
            hop = before;
            if (!is_trusted(proxies, &hop))
                return hop;
        } while (rest.at);
    }
    return hop;
}

/* Called with the head: if a trusted proxy sent the request, the caller it names counts as the
 * sender, for limits per address, audit and log. */
static void proxy_resolve(struct call *call)
{
    const struct ip_ranges *proxies = &call->worker->server->settings->proxies;
    struct http_request *req = call->req;
    char text[IP_TEXT_MAX];
    struct ip peer, caller;

    if (!proxies->count || !ip_parse(str_of(req->peer), &peer) || !is_trusted(proxies, &peer))
        return;
    call->by_proxy = true;
    caller = caller_behind(req, proxies, peer);
    ip_text(&caller, text);
    http_caller(req, ip_eq(&caller, &peer) ? req->peer : arena_cstr(call->arena, str_of(text)),
                ip_peer_id(&caller));
}

/* Every hop in the header must have been encrypted. */
static bool says_https(const struct http_request *req)
{
    bool said = false;

    for (size_t i = 0; i < req->header_count; i++) {
        struct str rest = req->headers[i].value;

        if (!str_eq_nocase(req->headers[i].name, STR("X-Forwarded-Proto")))
            continue;
        do {
            if (!str_eq_nocase(cut_last(&rest), STR("https")))
                return false;
            said = true;
        } while (rest.at);
    }
    return said;
}

void proxy_warn_clear(const struct call *call)
{
    struct server *server = call->worker->server;
    const struct settings *settings = server->settings;
    struct ip caller;

    /* Without proxies the server logged this once at startup. */
    if (!settings->proxies.count || settings->tls_cert.len || atomic_load(&server->clear_warned) ||
        (call->by_proxy && says_https(call->req)) || !ip_parse(str_of(call->req->peer), &caller) ||
        ip_is_loopback(&caller) || atomic_exchange(&server->clear_warned, true))
        return;
    log_event(LOG_WARN, "server.in_the_clear", KC("peer", call->req->peer),
              KC("reason", call->by_proxy
                               ? "a token came through a proxy that does not say that it was "
                                 "called over TLS: have it set X-Forwarded-Proto"
                               : "a token came unencrypted, and not through a trusted proxy"));
}

/* --- the log --- */

static bool names_itself(const struct call *call)
{
    return http_header_get(call->req, "X-Request-Id").at != NULL;
}

static void request_log(struct call *call, int status)
{
    struct request_log *log = &call->worker->request_log;
    int64_t second = call->worker->loop.wall_ms / 1000;

    assert(status >= 100 && status < 600);
    if (status < 500 && !names_itself(call))
        return;
    if (log->second != second) {
        log->second = second;
        log->lines = 0;
    }
    if (log->lines >= REQUEST_LINES_MAX) {
        log->left_out++;
        return;
    }
    log->lines++;
    log_event(status >= 500 ? LOG_WARN : LOG_INFO, "request",
              KS("request_id", call_request_id(call)),
              KC("route", call->route ? call->route->path : ""), KI("status", status),
              KC("job_id", call->job_id), KS("node_id", call->about_node),
              KI("attempt_id", call->attempt), KC("reason", call->err ? err_name(call->err) : ""),
              KC("peer", call->req->peer), KI("left_out", log->left_out));
    log->left_out = 0;
}

/* --- routes --- */

static const struct route routes[] = {
    {HTTP_M_POST, "/v1/dispatch/f2f", api_dispatch_f2f, SCOPE_SUBMIT, .body = true, .submits = true,
     .query = "dry_run limit", .in = "F2f", .out = "Dispatched",
     .help = "dispatch one face-to-face job"},
    {HTTP_M_POST, "/v1/job/ack", api_job_ack, SCOPE_NODE, .body = true, .message = "ack",
     .receipt = true, .in = "JobReport", .out = "Ok", .help = "a node takes a job on"},
    {HTTP_M_POST, "/v1/job/done", api_job_done, SCOPE_NODE, .body = true, .message = "done",
     .receipt = true, .in = "JobReport", .out = "Ok", .help = "a node finished a job"},
    {HTTP_M_POST, "/v1/job/fail", api_job_fail, SCOPE_NODE, .body = true, .message = "fail",
     .receipt = true, .in = "JobReport", .out = "Ok", .help = "a node could not do a job"},
    {HTTP_M_POST, "/v1/node/heartbeat", api_node_heartbeat, SCOPE_NODE, .body = true,
     .message = "heartbeat", .in = "NodeReport", .out = "Ok",
     .help = "a node is alive, and how it is"},
    {HTTP_M_POST, "/v1/node/register", api_node_register, SCOPE_NODE, .body = true,
     .message = "hello", .in = "NodeReport", .out = "Ok", .help = "a node and what it can do"},
    {HTTP_M_POST, "/v1/node/deregister", api_node_deregister, SCOPE_NODE, .body = true,
     .in = "NodeName", .out = "Ok", .help = "a node leaves"},
    {HTTP_M_GET, "/v1/node/jobs", api_node_jobs, SCOPE_NODE, .query = "node_id wait max",
     .out = "NodeJobs", .help = "jobs for a node that polls"},
    {HTTP_M_GET, "/v1/node/connect", api_connect, SCOPE_NODE, .status = 101,
     .help = "WebSocket of a node"},
    {HTTP_M_POST, "/v1/dispatch/task", api_dispatch_task, SCOPE_SUBMIT, .body = true,
     .submits = true, .query = "dry_run limit", .in = "Task", .out = "Dispatched", .also = 202,
     .help = "dispatch one task, which may wait"},
    {HTTP_M_POST, "/v1/dispatch/batch", api_dispatch_batch, SCOPE_SUBMIT, .body = true,
     .submits = true, .large = true, .in = "Batch", .out = "BatchResults",
     .help = "dispatch many jobs, each answered"},
    {HTTP_M_GET, "/v1/submit/connect", submit_socket_accept, SCOPE_SUBMIT, .status = 101,
     .help = "WebSocket of a client: many jobs, and how they end"},
    {HTTP_M_GET, "/v1/jobs", api_job_list, SCOPE_READ, .long_answer = true,
     .query = "state type session_id node_id limit cursor", .out = "JobList",
     .help = "jobs, newest first"},
    {HTTP_M_GET, "/v1/jobs/{id}", api_job_show, SCOPE_READ, .query = "wait", .out = "Job",
     .help = "one job; ?wait=5s for its end"},
    {HTTP_M_POST, "/v1/jobs/{id}/cancel", api_job_cancel, SCOPE_OPERATE, .body = true,
     .body_optional = true, .in = "Anything", .out = "JobEnd", .help = "end a job"},
    {HTTP_M_POST, "/v1/jobs/{id}/retry", api_job_retry, SCOPE_OPERATE, .body = true,
     .submits = true, .body_optional = true, .in = "Anything", .out = "Placed", .also = 202,
     .help = "the same work again, as a new job"},
    {HTTP_M_GET, "/v1/jobs/{id}/explain", api_job_explain, SCOPE_READ, .query = "limit",
     .out = "Explain", .help = "why a job went to its node, or to none"},
    {HTTP_M_GET, "/v1/jobs/{id}/logs", api_job_logs, SCOPE_READ, .query = "offset max",
     .out = "Logs", .help = "what a job printed, from an offset"},
    {HTTP_M_GET, "/api/brain/cluster/status", api_cluster_status, SCOPE_READ, .long_answer = true,
     .query = "brief node_id", .out = "ClusterStatus", .help = "every server, its slots and tasks"},
    {HTTP_M_GET, "/v1/cluster/status", api_cluster_status, SCOPE_READ, .long_answer = true,
     .query = "brief node_id", .out = "ClusterStatus", .help = "the same"},
    {HTTP_M_POST, "/v1/nodes/{id}/rpc/{service}/{method}", api_node_rpc, SCOPE_OPERATE,
     .shared = true, .body = true, .body_optional = true, .in = "Anything", .out = "Anything",
     .help = "ask a node something"},
    {HTTP_M_GET, "/v1/nodes", api_node_list, SCOPE_READ, .long_answer = true,
     .query = "health selector limit cursor", .out = "NodeList", .help = "nodes, by id"},
    {HTTP_M_GET, "/v1/nodes/{id}", api_node_show, SCOPE_READ, .out = "Node", .help = "one node"},
    {HTTP_M_DELETE, "/v1/nodes/{id}", api_node_delete, SCOPE_OPERATE, .shared = true, .out = "Ok",
     .help = "a node leaves"},
    {HTTP_M_POST, "/v1/nodes/{id}/drain", api_node_drain, SCOPE_OPERATE, .shared = true,
     .body = true, .body_optional = true, .in = "Reason", .out = "Ok",
     .help = "no new work; what runs ends"},
    {HTTP_M_POST, "/v1/nodes/{id}/undrain", api_node_undrain, SCOPE_OPERATE, .shared = true,
     .body = true, .body_optional = true, .in = "Reason", .out = "Ok", .help = "takes work again"},
    {HTTP_M_POST, "/v1/nodes/{id}/cordon", api_node_cordon, SCOPE_OPERATE, .shared = true,
     .body = true, .body_optional = true, .in = "Reason", .out = "Ok", .help = "no new work"},
    {HTTP_M_POST, "/v1/deployments/view", api_deploy_view, SCOPE_NODE, .body = true, .socket = true,
     .in = "DeployLook", .out = "DeployView",
     .help = "the table of deployments, as a claimer needs it"},
    {HTTP_M_POST, "/v1/deployments/renew", api_deploy_renew, SCOPE_NODE, .body = true,
     .socket = true, .in = "DeployLook", .out = "DeployLease",
     .help = "a node lives; what it must run"},
    {HTTP_M_POST, "/v1/deployments/claim", api_deploy_claim, SCOPE_NODE, .body = true,
     .socket = true, .in = "DeployClaim", .out = "Assignment", .help = "a node takes a deployment"},
    {HTTP_M_POST, "/v1/deployments/yield", api_deploy_yield, SCOPE_NODE, .body = true,
     .socket = true, .in = "DeployClaim", .out = "Ok", .help = "a node gives a deployment up"},
    {HTTP_M_POST, "/v1/deployments/lost", api_deploy_lost, SCOPE_NODE, .body = true, .socket = true,
     .in = "DeployLost", .out = "DeployReleased",
     .help = "release what a lost node has (claim_mode seed)"},
    {HTTP_M_POST, "/v1/deployments/status", api_deploy_status, SCOPE_NODE, .body = true,
     .socket = true, .in = "DeployStatus", .out = "DeployStale", .help = "how a node's copies are"},
    {HTTP_M_POST, "/v1/deployments/services", api_deploy_services, SCOPE_NODE, .body = true,
     .socket = true, .in = "ServicesLook", .out = "ServicesAlive",
     .help = "where all copies listen, for a node"},
    {HTTP_M_GET, "/v1/services/{name}", api_service_show, SCOPE_READ, .out = "Service",
     .help = "where the copies of a deployment listen"},
    {HTTP_M_POST, "/v1/deployments/release", api_deploy_release, SCOPE_DEPLOY, .body = true,
     .in = "Release", .out = "Released", .help = "take deployments from nodes that are gone"},
    {HTTP_M_POST, "/v1/deployments/approve", api_deploy_approve, SCOPE_DEPLOY, .shared = true,
     .body = true, .body_optional = true, .in = "Approve", .out = "Approved",
     .help = "nodes may claim although many are gone"},
    {HTTP_M_GET, "/v1/deployments", api_deploy_list, SCOPE_READ, .long_answer = true,
     .query = "type enabled address package_name limit cursor", .out = "DeploymentList",
     .help = "deployments, by id"},
    {HTTP_M_GET, "/v1/deployments/{id}", api_deploy_show, SCOPE_READ, .out = "Deployment",
     .help = "one deployment and its copies"},
    {HTTP_M_PUT, "/v1/deployments/{id}", api_deploy_put, SCOPE_DEPLOY, .body = true,
     .in = "DeploymentSpec", .out = "Deployment", .also = 201,
     .help = "create or replace a deployment"},
    {HTTP_M_PATCH, "/v1/deployments/{id}", api_deploy_patch, SCOPE_DEPLOY, .body = true,
     .in = "Enabled", .out = "Deployment", .help = "switch a deployment on or off"},
    {HTTP_M_DELETE, "/v1/deployments/{id}", api_deploy_delete, SCOPE_DEPLOY, .out = "Ok",
     .help = "take a deployment away"},
    {HTTP_M_POST, "/v1/deployments/{id}/restart", api_deploy_restart, SCOPE_DEPLOY, .body = true,
     .body_optional = true, .in = "Anything", .out = "Deployment", .help = "restart a deployment"},
    {HTTP_M_POST, "/v1/deployments/{id}/scale", api_deploy_scale, SCOPE_DEPLOY, .body = true,
     .in = "Scale", .out = "Deployment", .help = "as many copies of a deployment"},
    {HTTP_M_POST, "/v1/deployments/{id}/rollback", api_deploy_rollback, SCOPE_DEPLOY, .body = true,
     .body_optional = true, .in = "Rollback", .out = "Deployment",
     .help = "back to a version of before"},
    {HTTP_M_GET, "/v1/deployments/{id}/explain", api_deploy_explain, SCOPE_READ,
     .query = "limit cursor", .out = "DeploymentExplained",
     .help = "why nodes have a deployment, or do not"},
    {HTTP_M_GET, "/v1/deployments/{id}/history", api_deploy_history, SCOPE_READ,
     .query = "limit cursor", .out = "DeploymentHistory",
     .help = "what happened to a deployment, newest first"},
    {HTTP_M_GET, "/v1/deployments/{id}/logs", api_deploy_logs, SCOPE_READ,
     .query = "offset max address", .out = "Logs",
     .help = "what a deployment printed, from an offset"},
    {HTTP_M_GET, "/v1/terminals", api_terminal_list, SCOPE_READ, .long_answer = true,
     .query = "limit cursor", .out = "TerminalList", .help = "who is online, by id"},
    {HTTP_M_GET, "/v1/terminals/events", api_terminal_events, SCOPE_READ,
     .media = "text/event-stream", .help = "the same, and how it changes, as server-sent events"},
    {HTTP_M_POST, "/v1/terminals/sync", api_terminal_sync, SCOPE_NODE, .body = true, .socket = true,
     .in = "TerminalSync", .out = "TerminalChanges", .help = "what changed since a number"},
    {HTTP_M_POST, "/v1/terminals/usage", api_terminal_usage, SCOPE_NODE, .body = true,
     .socket = true, .in = "UsageAsk", .out = "Usage", .help = "ask nodes for their usage"},
    {HTTP_M_POST, "/v1/terminals/{id}", api_terminal_update, SCOPE_NODE, .body = true,
     .socket = true, .in = "TerminalUpdate", .out = "Ok", .help = "set tags of a member"},
    {HTTP_M_GET, "/v1/breakers", api_breaker_list, SCOPE_READ, .long_answer = true,
     .query = "limit cursor", .out = "BreakerList",
     .help = "nodes that fail a type of work, by id"},
    {HTTP_M_POST, "/v1/breakers/reset", api_breaker_reset, SCOPE_OPERATE, .body = true,
     .in = "BreakerName", .out = "Ok", .help = "a node gets work of a type again"},
    {HTTP_M_GET, "/v1/limits", api_limit_list, SCOPE_READ, .shared = true, .long_answer = true,
     .query = "prefix limit cursor", .out = "LimitList",
     .help = "limits by key, and keys in use, by name"},
    {HTTP_M_GET, "/v1/limits/{key}", api_limit_get, SCOPE_READ, .shared = true, .out = "Limit",
     .help = "the limit of a key, and how much of it is in use"},
    {HTTP_M_PUT, "/v1/limits/{key}", api_limit_set, SCOPE_OPERATE, .shared = true, .body = true,
     .in = "LimitRule", .out = "Ok", .help = "make or replace a limit"},
    {HTTP_M_DELETE, "/v1/limits/{key}", api_limit_drop, SCOPE_OPERATE, .shared = true, .out = "Ok",
     .help = "take a limit away"},
    {HTTP_M_POST, "/v1/limits/{key}/hold", api_limit_hold, SCOPE_OPERATE, .shared = true,
     .body = true, .in = "LimitHold", .out = "Ok",
     .help = "nothing with this key starts for a while"},
    {HTTP_M_POST, "/v1/limits/{key}/release", api_limit_release, SCOPE_OPERATE, .shared = true,
     .body = true, .body_optional = true, .in = "Anything", .out = "Ok",
     .help = "it may start again"},
    {HTTP_M_GET, "/v1/pools", api_pools, SCOPE_READ, .long_answer = true, .query = "limit cursor",
     .out = "PoolList", .help = "pools, by id"},
    {HTTP_M_GET, "/v1/sessions/{id}", api_session, SCOPE_READ, .out = "Session",
     .help = "what is known of a session"},
    {HTTP_M_GET, "/v1/events", api_events, SCOPE_READ, .query = "thin",
     .media = "text/event-stream", .help = "what happens, as server-sent events"},
    {HTTP_M_GET, "/v1/tokens", api_token_list, SCOPE_ADMIN, .query = "limit cursor",
     .out = "TokenList", .help = "who may call"},
    {HTTP_M_POST, "/v1/tokens", api_token_create, SCOPE_ADMIN, .body = true, .in = "NewToken",
     .status = 201, .out = "MadeToken", .help = "a new token, told this once"},
    {HTTP_M_DELETE, "/v1/tokens/{name}", api_token_delete, SCOPE_ADMIN, .out = "Ok",
     .help = "a token is not good any more"},
    {HTTP_M_GET, "/v1/audit", api_audit, SCOPE_ADMIN, .long_answer = true,
     .query = "who action target kind limit cursor verify", .out = "Audit",
     .help = "who did what, newest first"},
    {HTTP_M_GET, "/healthz", api_healthz, SCOPE_NONE, .out = "Ok", .help = "the process lives"},
    {HTTP_M_GET, "/readyz", api_readyz, SCOPE_NONE, .out = "Ready", .also = 503,
     .help = "it can take work"},
    {HTTP_M_GET, "/v1/openapi.json", api_openapi, SCOPE_READ, .out = "Anything",
     .help = "all routes, as OpenAPI 3.1"},
    {HTTP_M_GET, "/v1/stats", api_stats, SCOPE_READ, .query = "since", .out = "Stats",
     .help = "the last minutes, for charts"},
    {HTTP_M_GET, "/v1/report", api_report, SCOPE_READ, .long_answer = true,
     .query = "since node_id type", .out = "Report",
     .help = "how work went, by server and type, over the last hours"},
    {HTTP_M_GET, "/v1/report/usage", api_usage, SCOPE_READ, .long_answer = true,
     .query = "since day by node_id type", .out = "ReportUsage",
     .help = "what attempts had while they ran, x seconds: slots, cores, GB, GPUs"},
    {HTTP_M_GET, "/v1/report/usage.csv", api_usage_csv, SCOPE_READ, .long_answer = true,
     .query = "since day by node_id type", .media = "text/csv",
     .help = "the same as a table (RFC 4180)"},
    {HTTP_M_GET, "/v1/debug", api_debug, SCOPE_OPERATE, .shared = true, .out = "Debug",
     .help = "this process: settings without secrets, store, last log lines"},
    {HTTP_M_GET, "/metrics", api_metrics, SCOPE_READ, .long_answer = true, .media = "text/plain",
     .help = "Prometheus text"},
    {HTTP_M_GET, "/", api_page, SCOPE_NONE, .media = "text/html", .help = "the page"},
    {HTTP_M_GET, "/page/{name}", api_page_file, SCOPE_NONE, .media = "*/*",
     .help = "a file of the page"},
};

const struct route *route_at(size_t index)
{
    return index < COUNT_OF(routes) ? &routes[index] : NULL;
}

/* How many bytes of a path match this character of a pattern; 0: none. An encoded slash is part of
 * a name, not a separator. */
static size_t char_matches(struct str path, char wanted, struct arena *arena)
{
    struct str first = {.at = path.at, .len = 3};

    if (!path.len)
        return 0;
    if (path.at[0] != '%' || path.len < first.len)
        return path.at[0] == wanted;
    return wanted != '/' && str_eq(http_path_part(first, arena), (struct str){&wanted, 1})
               ? first.len
               : 0;
}

/* Matches a path, as sent, against a pattern like "/v1/jobs/{id}"; fills params, still encoded. */
static bool path_matches(const char *pattern, struct str path, struct arena *arena,
                         struct str params[ROUTE_PARAMS_MAX])
{
    size_t at = 0, count = 0;

    while (*pattern) {
        if (*pattern == '{') {
            size_t start = at;

            while (at < path.len && path.at[at] != '/')
                at++;
            if (at == start || count == ROUTE_PARAMS_MAX)
                return false;
            params[count++] = (struct str){.at = path.at + start, .len = at - start};
            pattern = strchr(pattern, '}') + 1;
            continue;
        }
        struct str rest = {.at = path.at + at, .len = path.len - at};
        size_t len = char_matches(rest, *pattern, arena);

        if (!len)
            return false;
        at += len;
        pattern++;
    }
    return at == path.len;
}

const struct route *route_find(enum http_method method, struct str path, struct arena *arena,
                               struct str params[ROUTE_PARAMS_MAX], bool *ret_known_path)
{
    memset(params, 0, ROUTE_PARAMS_MAX * sizeof *params);
    if (!path.at)
        path = STR(""); /* a socket's frame may have none */
    if (method == HTTP_M_HEAD)
        method = HTTP_M_GET;
    *ret_known_path = false;
    for (size_t i = 0; i < COUNT_OF(routes); i++)
        if (path_matches(routes[i].path, path, arena, params)) {
            *ret_known_path = true;
            if (routes[i].method != method)
                continue;
            for (int p = 0; p < ROUTE_PARAMS_MAX; p++)
                params[p] = http_path_part(params[p], arena);
            return &routes[i];
        }
    return NULL;
}

const struct route *route_of_message(struct str word)
{
    for (size_t i = 0; word.len && i < COUNT_OF(routes); i++)
        if (routes[i].message && routes[i].message[0] == word.at[0] &&
            str_is(word, routes[i].message))
            return &routes[i];
    return NULL;
}

static void count_status(int status)
{
    static const char *const classes[] = {"1xx", "2xx", "3xx", "4xx", "5xx"};

    assert(status >= 100 && status < 600);
    metric_add_label(METRIC_HTTP, classes[status / 100 - 1], 1);
}

void call_reply(struct call *call, const struct http_reply *reply)
{
    struct worker *worker = call->worker;
    bool had_turn = call->turn.under_way;

    if (!call->req) {
        call->answer(call, reply);
        return;
    }
    count_status(reply->status);
    guard_audit(call, reply->status);
    request_log(call, reply->status);
    struct http_reply with = *reply;
    with.at_once = LIST_EMPTY(&worker->hub->due); /* jobs for nodes leave first */

    if (names_itself(call)) { /* return its id */
        struct http_header *headers =
            arena_array(call->arena, struct http_header, reply->header_count + 1);

        if (reply->header_count)
            memcpy(headers, reply->headers, reply->header_count * sizeof *headers);
        headers[with.header_count++] =
            (struct http_header){.name = STR("X-Request-Id"), .value = call_request_id(call)};
        with.headers = headers;
    }
    http_reply(call->req, &with);
    if (had_turn)
        turns_leave(&worker->turns);
}

static void answer_unrouted(struct call *call, bool known_path)
{
    static const char *const names[] = {
        [HTTP_M_GET] = "GET, HEAD", [HTTP_M_HEAD] = "HEAD",   [HTTP_M_POST] = "POST",
        [HTTP_M_PUT] = "PUT",       [HTTP_M_PATCH] = "PATCH", [HTTP_M_DELETE] = "DELETE"};
    struct http_request *req = call->req;
    struct str params[ROUTE_PARAMS_MAX];
    struct problem why;
    struct buf methods = {0}, buf = {0};

    if (!known_path) {
        call_error(call, ERR_NOT_FOUND, "", "There is no " STR_FMT " here.", STR_ARG(req->path));
        return;
    }
    for (size_t i = 0; i < COUNT_OF(routes); i++)
        if (path_matches(routes[i].path, req->path, call->arena, params))
            buf_fmt(&methods, "%s%s", methods.len ? ", " : "", names[routes[i].method]);
    buf_fmt(&methods, "%sOPTIONS", methods.len ? ", " : "");
    struct http_header allow = {.name = STR("Allow"),
                                .value = arena_str(call->arena, buf_view(&methods))};
    buf_free(&methods);
    struct http_reply reply = {.status = 204, .headers = &allow, .header_count = 1};
    if (req->method != HTTP_M_OPTIONS) {
        problem_set(&why, ERR_METHOD, "", "This route takes " STR_FMT ".", STR_ARG(allow.value));
        struct jsonw w = call_problem_begin(&buf, &why);
        jsonw_end_obj(&w);
        reply.status = 405;
        reply.content_type = "application/problem+json";
        reply.body = buf_view(&buf);
    }
    call_reply(call, &reply);
    buf_free(&buf);
}

/* Refuses callers without a token or scope before their body is read. */
static bool on_head(struct http_request *req, int64_t *ret_body_bytes_max)
{
    struct call *call = arena_new(&req->arena, struct call);
    struct worker *worker = worker_of(req->loop);
    const struct settings *settings = worker->server->settings;
    bool known;
    struct problem why;

    assert(worker->serves);
    call->req = req;
    call->worker = worker;
    call->arena = &req->arena;
    req->call = call;
    proxy_resolve(call);
    if (origin_check(req, settings, &why)) {
        call_problem(call, &why);
        return false;
    }
    call->route = route_find(req->method, req->path, call->arena, call->params, &known);
    if (!call->route) {
        answer_unrouted(call, known);
        return false;
    }
    if (guard_identify(call, &why) || guard_submit(call, &why)) {
        call_problem(call, &why);
        return false;
    }
    /* Some clients send an empty object with every request: a route without a body takes a small
     * one. */
    *ret_body_bytes_max = !call->route->body   ? HTTP_BODY_SMALL_BYTES
                          : call->route->large ? ROUTE_LARGE * settings->http.body_bytes_max
                                               : settings->http.body_bytes_max;
    return true;
}

static void handle(struct call *call)
{
    const struct route *route = call->route;
    struct problem why;

    if (guard_still(call, &why)) {
        call_problem(call, &why);
        return;
    }
    if (route->body && !call->req->body.len && route->body_optional)
        call->req->body = STR("{}");
    if (route->body && json_parse_body(call->req->body, call->arena, &call->body, &why))
        call_problem(call, &why);
    else if (route->body && json_type(call->body) != JSON_OBJ)
        call_error(call, ERR_BAD_JSON, "", "The body must be a JSON object.");
    else
        guard_handle(call);
}

static void on_turn(struct turn *turn)
{
    handle(container_of(turn, struct call, turn));
}

static void on_request(struct http_request *req)
{
    struct call *call = req->call;

    if (call->route->long_answer) {
        call->turn.run = on_turn;
        turns_enter(&call->worker->turns, guard_caller(call), &call->turn);
    } else {
        handle(call);
    }
}

static void on_problem(struct http_request *req, const struct problem *why, struct buf *ret_body)
{
    struct jsonw w = call_problem_begin(ret_body, why);

    count_status(err_http(why->err));
    jsonw_end_obj(&w);
}

const struct http_callbacks route_callbacks = {
    .head = on_head, .request = on_request, .problem = on_problem};

void call_body(struct call *call, int status, struct str json)
{
    struct http_reply reply = {.status = status, .body = json};

    call_reply(call, &reply);
}

void call_json(struct call *call, int status, struct buf *body)
{
    call_body(call, status, buf_view(body));
    buf_free(body);
}

struct buf *call_buf(struct call *call)
{
    buf_clear(&call->worker->answer);
    return &call->worker->answer;
}

struct jsonw call_begin(struct call *call)
{
    struct jsonw w = jsonw_to(call_buf(call));

    jsonw_obj(&w);
    return w;
}

void call_end(struct call *call, int status, struct jsonw *w)
{
    struct buf *body = w->buf;

    assert(body == &call->worker->answer);
    jsonw_end_obj(w);
    call_body(call, status, buf_view(body));
    if (body->cap > ANSWER_KEEP_BYTES)
        buf_free(body);
}

void call_ok(struct call *call)
{
    call_body(call, 200, STR("{\"ok\":true}"));
}

void problem_write(struct jsonw *w, const struct problem *why)
{
    jsonw_kstr(w, "type", STR("about:blank"));
    jsonw_kstr(w, "title", str_of(err_title(why->err)));
    jsonw_kint(w, "status", err_http(why->err));
    jsonw_kstr(w, "error", str_of(err_name(why->err)));
    jsonw_kstr(w, "detail", str_of(why->detail));
    if (why->field[0])
        jsonw_kstr(w, "field", str_of(why->field));
    if (why->column)
        jsonw_kint(w, "column", why->column);
}

void write_int_or_null(struct jsonw *w, const char *name, bool known, int64_t value)
{
    if (known)
        jsonw_kint(w, name, value);
    else
        jsonw_knull(w, name);
}

void write_job_id(struct jsonw *w, uint64_t job)
{
    char id[JOB_ID_TEXT + 1];

    job_id_text(job, id);
    jsonw_kstr(w, "job_id", str_of(id));
}

void write_member(struct jsonw *w, const char *name, const struct json *from)
{
    jsonw_kraw(w, name, json_raw(json_get(from, name)));
}

struct jsonw call_problem_begin(struct buf *buf, const struct problem *why)
{
    struct jsonw w = jsonw_to(buf);

    jsonw_obj(&w);
    problem_write(&w, why);
    return w;
}

void call_problem_end(struct call *call, struct jsonw *w, const struct problem *why)
{
    struct buf *buf = w->buf;
    struct http_header retry = {
        .name = STR("Retry-After"),
        .value = arena_fmt(call->arena, "%lld",
                           (long long)(call->retry_after_s ? call->retry_after_s : 1))};
    struct http_header who = {.name = STR("WWW-Authenticate"), .value = STR("Bearer")};
    int status = err_http(why->err);
    bool later = status == 503 || status == 429;

    assert(why->err && status >= 400);
    call->err = why->err;
    jsonw_end_obj(w);
    struct http_reply reply = {.status = status,
                               .content_type = "application/problem+json",
                               .body = buf_view(buf),
                               .headers = later ? &retry : &who,
                               .header_count = later || status == 401 ? 1 : 0};
    call_reply(call, &reply);
    buf_free(buf);
}

void call_problem(struct call *call, const struct problem *why)
{
    struct buf buf = {0};
    struct jsonw w = call_problem_begin(&buf, why);

    call_problem_end(call, &w, why);
}

void call_error(struct call *call, enum err err, const char *field, const char *fmt, ...)
{
    struct problem why;
    char detail[sizeof why.detail];
    va_list args;

    va_start(args, fmt);
    vsnprintf(detail, sizeof detail, fmt, args);
    va_end(args);
    problem_set(&why, err, field, "%s", detail);
    call_problem(call, &why);
}

struct str call_query(struct call *call, const char *name)
{
    return call->req ? http_query(call->req, name) : STR_NONE;
}

struct str call_header(struct call *call, const char *name)
{
    return call->req ? http_header_get(call->req, name) : STR_NONE;
}

bool call_query_int(struct call *call, const char *name, int64_t min, int64_t max, int64_t *value)
{
    struct str text = call_query(call, name);
    int64_t number;

    if (!text.at)
        return true;
    if (!str_int(text, &number) || number < min || number > max) {
        call_error(call, ERR_BAD_FIELD, name, "%s must be a whole number from %lld to %lld.", name,
                   (long long)min, (long long)max);
        return false;
    }
    *value = number;
    return true;
}

bool call_query_bool(struct call *call, const char *name, bool *value)
{
    struct str text = call_query(call, name);

    if (!text.at)
        return true;
    bool yes = str_is(text, "1") || str_is(text, "true") || !text.len;
    if (!yes && !str_is(text, "0") && !str_is(text, "false")) {
        call_error(call, ERR_BAD_FIELD, name, "%s must be 1 or 0.", name);
        return false;
    }
    *value = yes;
    return true;
}

bool call_query_ms(struct call *call, const char *name, int64_t max, int64_t *value)
{
    struct str text = call_query(call, name);
    int64_t ms;

    if (!text.at)
        return true;
    if (!str_duration_ms(text, &ms) || ms < 0) {
        call_error(call, ERR_BAD_FIELD, name, "%s must be a time like 500ms, 5s or 1m.", name);
        return false;
    }
    *value = ms < max ? ms : max;
    return true;
}

bool call_speaks_for(struct call *call, struct str node_id)
{
    if (auth_speaks_for(call->token, node_id))
        return true;
    call_error(call, ERR_FORBIDDEN, "node_id", "The token is for the node " STR_FMT ".",
               STR_ARG(call->token->node_id));
    return false;
}

bool call_node(struct call *call, struct str *ret_node_id)
{
    struct str node_id = call->node_id;

    if (!node_id.at) {
        node_id = json_str(json_get(call->body, "node_id"), call->arena);
        if (!str_is_id(node_id, NODE_ID_MAX)) {
            call_error(call, ERR_BAD_FIELD, "node_id",
                       "node_id is required: 1 to %d letters, digits or ._:@-.", NODE_ID_MAX);
            return false;
        }
        if (!call_speaks_for(call, node_id))
            return false;
    }
    *ret_node_id = node_id;
    return true;
}

struct namespace_view call_view(const struct call *call)
{
    return token_view(call->token);
}

bool call_name(struct call *call, const char *field, struct str name, size_t max,
               struct str *ret_full)
{
    struct namespace_view view = call_view(call);
    struct problem why;

    if (!namespace_enter(&view, field, name, max, call->arena, ret_full, &why))
        return true;
    call_problem(call, &why);
    return false;
}

bool call_sees(const struct call *call, struct str full)
{
    struct namespace_view view = call_view(call);

    return namespace_sees(&view, full);
}

struct str call_shown(const struct call *call, struct str full)
{
    struct namespace_view view = call_view(call);

    return namespace_shown(&view, full);
}

void call_hide_job(const struct call *call, struct store_op *op)
{
    if (op->err || call_sees(call, str_of(op->head.type)))
        return;
    op->err = ERR_NOT_FOUND;
    op->head = (struct store_head){0};
    op->record = (struct store_record){0};
}

bool call_has_job(struct call *call, struct store_op *op)
{
    call_hide_job(call, op);
    enum err err = op->err; /* the answer ends the request, and `op` with it */
    if (err)
        call_error(call, err, "job_id", "%s.",
                   err == ERR_NOT_FOUND ? "There is no such job" : err_title(err));
    return !err;
}

const struct snap_node *call_has_node(struct call *call, struct str id)
{
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, id);

    if (!known)
        call_error(call, ERR_NOT_FOUND, "node_id", "There is no node \"" STR_FMT "\".",
                   STR_ARG(id));
    return known;
}

bool call_job_id(struct call *call, struct str text, uint64_t *ret_id)
{
    if (job_id_parse(text, ret_id))
        return true;
    call_error(call, ERR_NOT_FOUND, "job_id", "There is no job \"" STR_FMT "\".", STR_ARG(text));
    return false;
}

bool call_read(struct call *call, const struct schema *schema, void *ret_fields)
{
    struct problem why;

    if (!schema_read(schema, call->body, ret_fields, call->arena, &why))
        return true;
    call_problem(call, &why);
    return false;
}

struct store_op call_op(const struct call *call, enum store_verb verb, store_done *done)
{
    return (struct store_op){
        .verb = verb, .reply_to = &call->worker->loop.inbox, .done = done, .arena = call->arena};
}

struct store_op call_op_timely(const struct call *call, enum store_verb verb, store_done *done)
{
    struct store_op op = call_op(call, verb, done);

    op.not_after_ms = sched_not_after(call->worker->sched);
    return op;
}

/* --- entity tags --- */

static bool lists_tag(struct str list, struct str etag, bool weak_ok)
{
    while (list.len) {
        struct str item = str_trim(str_cut(&list, ','));

        if (weak_ok && str_starts(item, STR("W/")))
            item = (struct str){.at = item.at + 2, .len = item.len - 2};
        if (str_eq(item, etag) || str_is(item, "*"))
            return true;
    }
    return false;
}

bool etag_has_copy(struct http_request *req, struct str etag)
{
    return lists_tag(http_header_get(req, "If-None-Match"), etag, true);
}

bool etag_matches(struct call *call, struct str etag, const char *what)
{
    struct str wanted = http_header_get(call->req, "If-Match");

    assert(etag.len > 2 && etag.at[0] == '"');
    if (!wanted.at || lists_tag(wanted, etag, false))
        return true;
    call_error(call, ERR_PRECONDITION, "If-Match", "%s changed: its ETag is " STR_FMT " now.", what,
               STR_ARG(etag));
    return false;
}

void etag_reply(struct call *call, int status, struct str body, struct str etag)
{
    struct http_header header = {.name = STR("ETag"), .value = etag};
    struct http_reply reply = {
        .status = status, .body = body, .headers = &header, .header_count = 1};

    call_reply(call, &reply);
}

void etag_json(struct call *call, const struct buf *body, struct str etag)
{
    if (etag_has_copy(call->req, etag))
        etag_reply(call, 304, STR_NONE, etag);
    else
        etag_reply(call, 200, buf_view(body), etag);
}
