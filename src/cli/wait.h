/* Waiting for a job's end, for `job wait` and `job submit --wait`. */
#ifndef CLI_WAIT_H
#define CLI_WAIT_H

#include "cli/cli.h"

enum { WAIT_FOREVER = -1 };

/* Asks until the job is DONE or FAILED or `timeout_ms` have passed. Prints the job with -o json,
 * else nothing on success. CLI_OK, CLI_JOB_FAILED, CLI_TIMEOUT, or why it could not be asked. */
int wait_job(struct cli *cli, const char *job_id, int64_t timeout_ms);

/* Asks until the node of the command's first argument is `goal`: ready, drained (nothing runs on it
 * any more), offline or gone. */
int wait_node(struct cli *cli, const char *path, const char *goal, int64_t timeout_ms);

#endif
