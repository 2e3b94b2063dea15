/* Manual pages, made from the table of commands. */
#ifndef CLI_MAN_H
#define CLI_MAN_H

#include "cli/cli.h"

/* berth(1), or with a noun berth-NOUN(1); false: no such noun. */
bool man_page(struct cli *cli, FILE *to, const char *noun);

#endif
