/* `berth agent`: one per machine. Connects to a server, runs jobs and protects the machine from
 * overload. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "agent/config.h"
#include "agent/protect.h"

/* argv without the program's name and the verb. Returns main()'s exit code. */
int agent_main(int argc, char **argv);

/* Builds the rules that protect this machine from its settings; `berth run` uses them too. */
enum err agent_rules(const struct config *config, struct protect_rules *ret_rules,
                     struct problem *why);

#endif
