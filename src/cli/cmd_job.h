/* A job described by flags, to send it or to ask what would become of it. */
#ifndef CLI_CMD_JOB_H
#define CLI_CMD_JOB_H

#include "cli/request.h"

/* Method, path and body of the dispatch the flags describe. Reports what is wrong with them. */
int submit_ask(struct cli *cli, struct request *request);
extern const struct flag_set submit_job_flags; /* that describe a job */

#endif
