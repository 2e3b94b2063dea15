/* Reads a traceparent. A malformed one is ignored, as the standard requires. */
#include "model/trace.h"

#include <assert.h>

static bool is_hex(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (!(text.at[i] >= '0' && text.at[i] <= '9') && !(text.at[i] >= 'a' && text.at[i] <= 'f'))
            return false;
    return true;
}

static bool is_zero(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.at[i] != '0')
            return false;
    return true;
}

/* A fixed-width part. */
static struct str piece(struct str text, size_t at, size_t len)
{
    return (struct str){.at = text.at + at, .len = len};
}

bool trace_valid(struct str text)
{
    if (text.len < TRACE_PARENT_LEN)
        return false;
    struct str version = piece(text, 0, 2), trace = piece(text, 3, TRACE_ID_LEN);
    struct str parent = piece(text, 36, 16), flags = piece(text, 53, 2);

    if (text.at[2] != '-' || text.at[35] != '-' || text.at[52] != '-')
        return false;
    if (!is_hex(version) || !is_hex(trace) || !is_hex(parent) || !is_hex(flags))
        return false;
    if (str_is(version, "ff") || is_zero(trace) || is_zero(parent))
        return false;
    return text.len == TRACE_PARENT_LEN ||
           (!str_is(version, "00") && text.at[TRACE_PARENT_LEN] == '-');
}

struct str trace_parent(struct str header)
{
    if (!trace_valid(header))
        return STR_NONE;
    return piece(header, 0, TRACE_PARENT_LEN);
}

struct str trace_id(struct str traceparent)
{
    if (!traceparent.len)
        return STR_NONE;
    assert(traceparent.len == TRACE_PARENT_LEN);
    return piece(traceparent, 3, TRACE_ID_LEN);
}
