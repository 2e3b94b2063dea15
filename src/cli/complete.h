/* What may come next on a command line, for the shells (`berth completion`). The scripts ask
 * `berth __complete WORD...`, so they know every command of the binary they belong to. */
#ifndef CLI_COMPLETE_H
#define CLI_COMPLETE_H

#include "cli/cli.h"

/* The arguments after the program's name, the last one as far as it was typed (may be ""). Prints a
 * candidate a line, after a tab what it is; the line ":files" means names of files. Ids are
 * asked of the server, which has a second to answer. */
int complete_run(struct cli *cli, int argc, char **argv);

#endif
