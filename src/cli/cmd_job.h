/* A job described by flags, to submit it or to ask what would happen to it. */
#ifndef CLI_CMD_JOB_H
#define CLI_CMD_JOB_H

#include "cli/request.h"

/* Builds the dispatch request (method, path, body) from the flags. Reports their errors. */
int submit_ask(struct cli *cli, struct request *request);
extern const struct flag_set submit_job_flags; /* the flags that describe a job */

#endif
