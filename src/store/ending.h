/* Maps each outcome of a FINISH to an event of the job state machine and a default reason. */
#ifndef STORE_ENDING_H
#define STORE_ENDING_H

#include "store/store.h"

/* For an EXPIRE of a running job: its own time-out passed, or its lease was not renewed. */
#define ENDING_RUN_TIMEOUT "RUN_TIMEOUT"
#define ENDING_NODE_LOST   "NODE_LOST"

struct ending {
    enum job_event event;
    const char *reason;
    bool of_attempt; /* about an attempt that must still be alive; else about the job as a whole */
};

extern const struct ending endings[STORE_OUTCOME_COUNT];

#endif
