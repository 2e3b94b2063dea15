/* The spawner: a process that has loaded the program once and forks a shim for each run, because an
 * exec of it costs ten times a fork. It knows nothing of jobs.
 *
 * An agent that was started by hand forks its own (`berth shim -`), which ends with it. Under
 * systemd it is a unit of its own that runs as root (`berth spawner SOCKET GROUP_FILE CONFIG`) and
 * serves the agents that connect: it puts their shims below the group of yet another unit, which
 * keeps it, and makes each the user whose agent asked. So neither agent nor spawner has children in
 * its own unit, and either can be killed, restarted or replaced under everything that runs; and
 * only what must be root is.
 *
 * The job under a shim is another user again (job_user.h). An order names it, but what decides is
 * the file of root's settings: an agent that was taken over cannot ask for root, or for a user
 * that nobody gave it. A spawner that is an agent's own, as that user, believes it.
 *
 * They talk in packets. Either may be of another release, so what is not known is no error:
 *   to the spawner   "agent VERSION NAME", then NUL-separated entries of the environment
 *                    "r user=NAME allow_root" with two descriptors: the run's directory, the
 *                    shim's connection; no user: the one that job_user names, or the default
 *                    "c" with one: a directory of a job's user, which is emptied as that user
 *   to the agent     lines: "spawner VERSION PID", "parent PATH", "limit NAME", "missing WHY",
 *                    "private_tmp" if its shims can give a run its own /tmp; again when they
 *                    change */
#ifndef AGENT_SPAWNER_H
#define AGENT_SPAWNER_H

#include "agent/cgroup.h"

enum {
    SPAWNER_VERSION = 4,
    SPAWNER_USERS = 2,   /* the first that knows of users: before, work was the user who asked */
    SPAWNER_SECRETS = 3, /* the first whose shims hand over secrets */
    SPAWNER_MEMORY = 4,  /* the first whose shims put them into memory */
    SPAWNER_PACKET_MAX = 16384
};

/* The lines to the agent. */
void spawner_tell(const struct cgroup_place *place, bool private_tmp, struct buf *out);
void spawner_hear(struct str lines, struct cgroup_place *ret_place, int64_t *ret_version,
                  bool *ret_private_tmp);

/* `berth shim -`: orders come from the socket that is its stdin. */
int spawner_of_agent(void);
/* argv: SOCKET; GROUP_FILE, a copy of the /proc/self/cgroup of the unit that keeps the group; and
 * the agent's settings, which say as whom work may run. */
int spawner_main(int argc, char **argv);

#endif
