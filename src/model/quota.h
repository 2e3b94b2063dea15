/* What a token may use: how fast it submits jobs, how many of them wait, and how large those are.
 * Written "rate=10/s,waiting=1000,bytes=64MiB", any of the three, in this order when it is shown.
 */
#ifndef MODEL_QUOTA_H
#define MODEL_QUOTA_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

enum { QUOTA_TEXT_MAX = 96 };

struct quota {
    int64_t rate;    /* jobs in `rate_ms`, also at once; 0: any number */
    int64_t rate_ms; /* a second, a minute or an hour */
    int64_t waiting; /* jobs that wait; 0: any number */
    int64_t bytes;   /* of those, all together; 0: any */
};

/* How far ahead of the clock the submits of a token are, in nanoseconds. Shared by threads. */
typedef _Atomic int64_t quota_meter;

/* ERR_BAD_FIELD: it is not such a text. */
enum err quota_parse(struct str text, struct quota *ret_quota, struct problem *why);
/* As quota_parse() reads it; "": no quota. */
void quota_text(const struct quota *quota, char to[QUOTA_TEXT_MAX + 1]);
/* One more job now? If so it is counted; if not, *ret_wait_ms tells how long from now. */
bool quota_take(const struct quota *quota, quota_meter *meter, int64_t now_ms,
                int64_t *ret_wait_ms);

#endif
