/* Help texts and manual pages, made from the table of commands. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include <stdio.h>

#include "cli/command.h"

void help_all(FILE *to);                    /* `berth --help` */
bool help_noun(FILE *to, const char *noun); /* `berth node --help`; false: no such noun */
void help_command(FILE *to, const struct command *command); /* `berth node ls --help` */

#endif
