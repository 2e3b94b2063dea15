/* A table of deployments for tests, and short calls of its verbs. */
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
/* Sends the op and waits for its answer, which is left in `op`; its texts live as long as the
 * rig. */
enum err deploys_rig_call(struct deploys_rig *rig, struct deploys_op *op);

/* Puts a deployment without package or options; it has the type given, or is a plain one. */
struct deploys_op deploys_rig_put_as(struct deploys_rig *rig, enum deploy_type type, const char *id,
                                     const char *command);
struct deploys_op deploys_rig_put(struct deploys_rig *rig, const char *id, const char *command);
struct deploys_op deploys_rig_get(struct deploys_rig *rig, const char *id);
struct deploys_op deploys_rig_renew(struct deploys_rig *rig, const char *node, int64_t lease_ms);
struct deploys_op deploys_rig_claim(struct deploys_rig *rig, const char *node, const char *id,
                                    const char *observed, int64_t generation);
struct deploys_op deploys_rig_view(struct deploys_rig *rig); /* with all leases */
/* A deployment "web" of several copies; 0 keeps their number. */
struct deploys_op deploys_rig_put_copies(struct deploys_rig *rig, const char *command,
                                         int64_t count);
struct deploys_op deploys_rig_scale(struct deploys_rig *rig, const char *id, int64_t count);
/* Puts web, web#1 and web#2 with the command "run 1"; n1, n2 and n3 claim one each. */
void deploys_rig_start_three(struct deploys_rig *rig);
/* The node with this index reports the state of its copy, which has this version; "running" is
 * well. */
void deploys_rig_tell(struct deploys_rig *rig, size_t index, int64_t version, const char *word);
/* Makes the node's lease run out. */
void deploys_rig_lapse(struct deploys_rig *rig, const char *node);

#endif
