/* The spawner: a process that has loaded the program once and forks a shim for each run, because an
 * exec of it costs ten times a fork. It knows nothing of jobs.
 *
 * An agent that was started by hand forks its own (`berth shim -`), which ends with it. Under
 * systemd it is a unit of its own that runs as root (`berth spawner SOCKET GROUP_FILE`) and serves
 * the agents that connect: it puts their shims below the group of yet another unit, which keeps
 * it, and makes each the user whose agent asked. So neither agent nor spawner has children in its
 * own unit, and either can be killed, restarted or replaced under everything that runs; and only
 * what must be root is.
 *
 * They talk in packets. Either may be of another release, so what is not known is no error:
 *   to the spawner   "agent VERSION NAME", then NUL-separated entries of the environment
 *                    "r" with two descriptors: the run's directory, the shim's connection
 *   to the agent     lines: "spawner VERSION PID", "parent PATH", "limit NAME", "missing WHY";
 *                    again when they change */
#ifndef AGENT_SPAWNER_H
#define AGENT_SPAWNER_H

#include "agent/cgroup.h"

enum { SPAWNER_VERSION = 1, SPAWNER_PACKET_MAX = 16384 };

/* The lines about the groups. */
void spawner_tell(const struct cgroup_place *place, struct buf *out);
void spawner_hear(struct str lines, struct cgroup_place *ret_place);

/* `berth shim -`: orders come from the socket that is its stdin. */
int spawner_of_agent(void);
/* argv: SOCKET and GROUP_FILE, a copy of the /proc/self/cgroup of the unit that keeps the group. */
int spawner_main(int argc, char **argv);

#endif
