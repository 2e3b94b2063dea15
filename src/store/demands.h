/* What jobs in memory take, each text kept once, with how many jobs have it. Most jobs take one
 * slot and nothing else: those have none. */
#ifndef STORE_DEMANDS_H
#define STORE_DEMANDS_H

#include "base/map.h"
#include "model/demand.h"

struct limits;
struct limits_key;

struct demands_entry {
    struct demand demand; /* its names are in `text` */
    bool has_needs;       /* more than slots and keys */
    uint32_t refs;
    struct limits_key *keys[DEMAND_KEYS_MAX];
    struct str text; /* in `bytes` */
    char bytes[];
};

struct demands {
    struct map by_text;
};

void demands_free(struct demands *demands);
/* False: it cannot be read, see demand_parse(). *ret_entry NULL: demand_plain. */
bool demands_use(struct demands *demands, struct limits *limits, struct str text,
                 struct demands_entry **ret_entry);
/* NULL is fine. */
void demands_unuse(struct demands *demands, struct limits *limits, struct demands_entry *entry);

#endif
