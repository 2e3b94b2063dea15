/* All servers together: a status, two sums and a sentence. Pure. */
#ifndef MODEL_FLEET_H
#define MODEL_FLEET_H

#include "base/schema.h"

enum fleet_status { FLEET_HEALTHY, FLEET_PARTIAL, FLEET_DEGRADED, FLEET_STATUS_COUNT };

const char *fleet_status_name(enum fleet_status status); /* "healthy", "partial", "degraded" */

struct fleet_server {
    struct str id;
    struct str name; /* at == NULL or empty: the id is shown */
    bool online;
    int64_t slots_max;
    int64_t slots_available;
    struct strs available_for; /* types it would take now; "*" = any */
};

struct fleet {
    enum fleet_status status;
    int64_t total_slots;     /* of all */
    int64_t available_slots; /* of those online */
};

/* Degraded: no online server has a slot (also when there are no servers). Healthy: every server is
 * online and has one. */
struct fleet fleet_sum(const struct fleet_server *servers, size_t count);
/* One sentence for a person, e.g. "US VPS full; talk, research can go to HK VPS". Appended. */
void fleet_recommend(const struct fleet_server *servers, size_t count, struct buf *ret_text);

#endif
