/* What each outcome of a FINISH is to the job machine, and the reason it leaves when none is given.
 */
#ifndef STORE_ENDING_H
#define STORE_ENDING_H

#include "store/store.h"

/* Of an EXPIRE of what ran: by its own time-out, or because nobody renewed it any more. */
#define ENDING_RUN_TIMEOUT "RUN_TIMEOUT"
#define ENDING_NODE_LOST   "NODE_LOST"

struct ending {
    enum job_event event;
    const char *reason;
    bool of_attempt; /* about an attempt that must still be alive; else about the job as a whole */
};

extern const struct ending endings[STORE_OUTCOME_COUNT];

#endif
