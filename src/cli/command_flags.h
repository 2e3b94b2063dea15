/* The flags of the commands, one set for each command that has some. */
#ifndef CLI_COMMAND_FLAGS_H
#define CLI_COMMAND_FLAGS_H

#include "cli/flag.h"

extern const struct flag_set flags_api;      /* every command that asks a server */
extern const struct flag_set flags_local;    /* every other */
extern const struct flag_set flags_register; /* node register */
extern const struct flag_set flags_reason;   /* node drain, undrain, cordon */
extern const struct flag_set flags_submit;   /* job submit */
extern const struct flag_set flags_job_ls;   /* job ls */
extern const struct flag_set flags_wait;     /* job wait */
extern const struct flag_set flags_events;   /* events */
extern const struct flag_set flags_status;   /* status */
extern const struct flag_set flags_top;      /* top */
extern const struct flag_set flags_logs;     /* job logs */
extern const struct flag_set flags_token;    /* token hash */
extern const struct flag_set flags_run;      /* run */
extern const struct flag_set flags_sat;      /* bench sat */
extern const struct flag_set flags_low;      /* bench low */
extern const struct flag_set flags_idle;     /* bench idle */

#endif
