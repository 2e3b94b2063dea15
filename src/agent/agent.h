/* `berth agent`: one per machine. Connects to a server, runs jobs and protects the machine from
 * overload. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "agent/config.h"
#include "agent/protect.h"
#include "base/str.h"

/* argv without the program's name and the verb. What main() returns. */
int agent_main(int argc, char **argv);
void agent_flags(struct buf *out); /* its flags, one a line */

/* What protects this machine, out of its settings; `berth run` goes by the same. */
enum err agent_rules(const struct config *config, struct protect_rules *ret_rules,
                     struct problem *why);

#endif
