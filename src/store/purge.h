/* Retention: finished jobs and sessions leave when they are too old or too many, a few with each
 * batch and a few when nothing happens, never many at once. */
#ifndef STORE_PURGE_H
#define STORE_PURGE_H

#include "store/tables.h"

struct purge {
    int64_t retention_ms; /* 0 = any age */
    int64_t jobs_max;     /* 0 = any number */
    int64_t sessions_max;
    uint64_t at;     /* rows up to here were looked at in this round */
    int64_t look_ms; /* store time: before it no row gets too old */
    int64_t session_look_ms;
};

void purge_init(struct purge *purge, int64_t retention_ms, int64_t jobs_max);
/* Looks at up to `budget` rows, inside the transaction of the tables. `active` of the rows are no
 * concern of ours. True: there is more to do. */
bool purge_step(struct purge *purge, struct tables *tables, size_t active, int64_t now_ms,
                int64_t budget);

#endif
