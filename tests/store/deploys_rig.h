/* A table of deployments under test, and short ways to ask it. */
#ifndef TESTS_STORE_DEPLOYS_RIG_H
#define TESTS_STORE_DEPLOYS_RIG_H

#include "../unit.h"
#include "store/deploys.h"
#include "store/op_queue.h"

struct deploys_rig {
    struct deploys *deploys;
    struct work_queue work_queue; /* answers come here */
    struct arena arena;
    const char *url;
};

void deploys_rig_open(struct deploys_rig *rig, const char *url, const char *dir);
void deploys_rig_close(struct deploys_rig *rig);
/* Sends and waits for the answer, which is in `op`; its texts live as long as the rig. */
enum err deploys_rig_call(struct deploys_rig *rig, struct deploys_op *op);

/* A plain deployment; `change` may alter it first. */
struct deploys_op deploys_rig_put_as(struct deploys_rig *rig, enum deploy_type type, const char *id,
                                     const char *command);
struct deploys_op deploys_rig_put(struct deploys_rig *rig, const char *id, const char *command);
struct deploys_op deploys_rig_get(struct deploys_rig *rig, const char *id);
struct deploys_op deploys_rig_renew(struct deploys_rig *rig, const char *node, int64_t lease_ms);
struct deploys_op deploys_rig_claim(struct deploys_rig *rig, const char *node, const char *id,
                                    const char *observed, int64_t generation);
struct deploys_op deploys_rig_view(struct deploys_rig *rig); /* with all leases */
/* A deployment "web" of several copies; 0: as many as there are. */
struct deploys_op deploys_rig_put_copies(struct deploys_rig *rig, const char *command,
                                         int64_t count);
struct deploys_op deploys_rig_scale(struct deploys_rig *rig, const char *id, int64_t count);
/* web, web#1 and web#2 with the command "run 1", on n1, n2 and n3. */
void deploys_rig_start_three(struct deploys_rig *rig);
/* The node of that index says how its copy is, with this version; "running" is well. */
void deploys_rig_tell(struct deploys_rig *rig, size_t index, int64_t version, const char *word);
/* A lease of this node that has run out. */
void deploys_rig_lapse(struct deploys_rig *rig, const char *node);

#endif
