/* The spawner: a process that has loaded the program once and forks a shim for each run, because an
 * exec costs ten times as much as a fork. It knows nothing about jobs.
 *
 * An agent started by hand forks its own spawner (`berth shim -`), which ends with it. Under
 * systemd the spawner is a separate unit that runs as root (`berth spawner SOCKET GROUP_FILE
 * CONFIG`) and is shared by the agents that connect: it puts their shims below the cgroup of a
 * third unit, which exists to own that group, and runs each shim as the user of the agent that
 * asked for it. So neither agent nor spawner has children in its own unit, either can be killed,
 * restarted or replaced while runs continue, and only what needs root runs as root.
 *
 * The job under a shim runs as yet another user (job_user.h). The order names it, but root's
 * settings file decides: a compromised agent cannot ask for root, or for a user it was not
 * allowed. An agent's own spawner, which runs as the agent's user, trusts the order.
 *
 * They exchange packets. Either may be of another release, so unknown packets are ignored:
 *   to the spawner   "agent VERSION NAME", then NUL-separated entries of the environment
 *                    "r user=NAME allow_root" with two descriptors: the run's directory, the
 *                    shim's connection; no user: the one that job_user names, or the default
 *                    "c" with one: a directory of a job's user, which is emptied as that user
 *   to the agent     lines: "spawner VERSION PID", "parent PATH", "limit NAME", "missing WHY",
 *                    "private_tmp" if its shims can give a run its own /tmp; sent again when they
 *                    change */
#ifndef AGENT_SPAWNER_H
#define AGENT_SPAWNER_H

#include "agent/cgroup.h"

enum {
    SPAWNER_VERSION = 4,
    SPAWNER_USERS = 2,   /* the first with users: before, work ran as the user that connected */
    SPAWNER_SECRETS = 3, /* the first whose shims hand over secrets */
    SPAWNER_MEMORY = 4,  /* the first whose shims put secrets into memory */
    SPAWNER_PACKET_MAX = 16384
};

/* The lines to the agent. */
void spawner_tell(const struct cgroup_place *place, bool private_tmp, struct buf *out);
void spawner_hear(struct str lines, struct cgroup_place *ret_place, int64_t *ret_version,
                  bool *ret_private_tmp);

/* `berth shim -`: reads orders from the socket that is its stdin. */
int spawner_of_agent(void);
/* argv: SOCKET; GROUP_FILE, a copy of the /proc/self/cgroup of the unit that owns the group; and
 * the agent's settings, which say which users work may run as. */
int spawner_main(int argc, char **argv);

#endif
