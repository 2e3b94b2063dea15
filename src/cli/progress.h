/* A line on a terminal that tells how long work is going; nothing where nobody looks. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "cli/cli.h"

bool progress_wanted(const struct cli *cli); /* standard error is a terminal */
/* In place of the line before. */
__attribute__((format(printf, 2, 3))) void progress_tell(struct cli *cli, const char *fmt, ...);
void progress_clear(struct cli *cli);

#endif
