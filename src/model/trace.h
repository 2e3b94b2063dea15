/* W3C trace context: the name of the trace a request belongs to, passed on with its job. */
#ifndef MODEL_TRACE_H
#define MODEL_TRACE_H

#include "base/str.h"

enum { TRACE_PARENT_LEN = 55, TRACE_ID_LEN = 32 };

/* "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": version, trace, parent, flags. Later
 * versions may append more. */
bool trace_valid(struct str traceparent);
/* The part defined by this version; STR_NONE when it is not valid. */
struct str trace_parent(struct str header);
/* The trace id, for logs; STR_NONE for STR_NONE. */
struct str trace_id(struct str traceparent);

/* A log field that is written only when there is a trace. */
#define TRACE_KV(traceparent)                                                                      \
    ((struct log_kv){.key = (traceparent).len ? "trace_id" : "", .text = trace_id(traceparent)})

#endif
