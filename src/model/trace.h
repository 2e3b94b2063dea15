/* W3C trace context: the name of the trace a request belongs to, passed on with its job. */
#ifndef MODEL_TRACE_H
#define MODEL_TRACE_H

#include "base/str.h"

enum { TRACE_PARENT_LEN = 55, TRACE_ID_LEN = 32 };

/* "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": version, trace, parent, flags. A later
 * version may have more after it. */
bool trace_valid(struct str traceparent);
/* The part this version knows; STR_NONE when it is not valid. */
struct str trace_parent(struct str header);
/* The trace's own name, for logs; STR_NONE for STR_NONE. */
struct str trace_id(struct str traceparent);

/* A log entry that is only there when there is a trace. */
#define TRACE_KV(traceparent)                                                                      \
    ((struct log_kv){.key = (traceparent).len ? "trace_id" : "", .text = trace_id(traceparent)})

#endif
