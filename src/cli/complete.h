/* The possible continuations of a command line, for the shells (`berth completion`). The scripts
 * call `berth __complete WORD...`, so they know every command of their binary. */
#ifndef CLI_COMPLETE_H
#define CLI_COMPLETE_H

#include "cli/cli.h"

/* The arguments after the program's name, the last one as far as it was typed (may be ""). Prints
 * one candidate per line, followed by a tab and its description; the line ":files" stands for file
 * names. Ids are fetched from the server, with a timeout of one second. */
int complete_run(struct cli *cli, int argc, char **argv);
/* Does the command list the items of its noun, whose ids the noun's other verbs take? A list that
 * itself needs an id holds something else: the history of one deployment. */
bool complete_lists_ids(const struct command *command);

#endif
