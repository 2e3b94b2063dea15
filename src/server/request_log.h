/* What of requests is told in the log: those that name themselves (X-Request-Id), and those the
 * server could not serve (5xx). At most REQUEST_LINES_MAX a second on each loop, so that a storm of
 * refusals does not become one of lines; how many were left out is told with the next. */
#ifndef SERVER_REQUEST_LOG_H
#define SERVER_REQUEST_LOG_H

#include "server/route.h"

enum { REQUEST_LINES_MAX = 50 };

void request_log(struct call *call, int status);
/* The reply with the request's id, if the caller gave one; else as it is. */
struct http_reply request_echo(struct call *call, const struct http_reply *reply);

#endif
