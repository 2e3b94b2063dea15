/* One line for a request, with what it was about. */
#include "server/request_log.h"

#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "server/server.h"

static bool may_tell(struct request_log *log, int64_t now_ms)
{
    if (log->second != now_ms / 1000) {
        log->second = now_ms / 1000;
        log->lines = 0;
    }
    if (log->lines >= REQUEST_LINES_MAX) {
        log->left_out++;
        return false;
    }
    log->lines++;
    return true;
}

static bool names_itself(const struct call *call)
{
    return http_header_get(call->req, "X-Request-Id").at != NULL;
}

void request_log(struct call *call, int status)
{
    struct request_log *log = &call->worker->request_log;

    assert(status >= 100 && status < 600);
    if (!call->req || (status < 500 && !names_itself(call)) ||
        !may_tell(log, call->worker->loop.wall_ms))
        return;
    log_event(status >= 500 ? LOG_WARN : LOG_INFO, "request",
              KS("request_id", call_request_id(call)),
              KC("route", call->route ? call->route->path : ""), KI("status", status),
              KC("job_id", call->job_id), KS("node_id", call->about_node),
              KI("attempt_id", call->attempt), KC("reason", call->err ? err_name(call->err) : ""),
              KC("peer", call->req->peer), KI("left_out", log->left_out));
    log->left_out = 0;
}

struct http_reply request_echo(struct call *call, const struct http_reply *reply)
{
    struct http_reply with = *reply;
    struct http_header *headers;

    if (!names_itself(call))
        return with;
    headers = arena_array(call->arena, struct http_header, reply->header_count + 1);
    if (reply->header_count)
        memcpy(headers, reply->headers, reply->header_count * sizeof *headers);
    headers[reply->header_count] =
        (struct http_header){.name = STR("X-Request-Id"), .value = call_request_id(call)};
    with.headers = headers;
    with.header_count = reply->header_count + 1;
    return with;
}
