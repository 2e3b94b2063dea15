/* A job described by flags, for whoever sends it or asks what would become of it. */
#ifndef CLI_SUBMIT_H
#define CLI_SUBMIT_H

#include "cli/request.h"

/* Method, path and body of the dispatch the flags describe. What is wrong with them was said. */
int submit_ask(struct cli *cli, struct ask *ask);
extern const struct flag_set submit_job_flags; /* that describe a job */

#endif
