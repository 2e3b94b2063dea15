/* One row per outcome. */
#include "store/ending.h"

const struct ending endings[STORE_OUTCOME_COUNT] = {
    [STORE_DONE] = {JOB_EV_DONE, "", true},
    [STORE_FAIL] = {JOB_EV_FAIL, "FAILED", true},
    [STORE_REFUSED] = {JOB_EV_REFUSED, "NODE_REFUSED", true},
    [STORE_SEND_FAILED] = {JOB_EV_SEND_FAILED, "SEND_FAILED", true},
    [STORE_EXPIRE] = {JOB_EV_ACK_TIMEOUT, "ACK_TIMEOUT", true}, /* or RUN_TIMEOUT: if it ran */
    [STORE_CANCEL] = {JOB_EV_CANCEL, "CANCELLED", false},
    [STORE_QUEUE_TIMEOUT] = {JOB_EV_QUEUE_TIMEOUT, "QUEUE_TIMEOUT", false},
    [STORE_NO_CANDIDATE] = {JOB_EV_NO_CANDIDATE, "NO_CANDIDATE", false},
    [STORE_ABANDON] = {JOB_EV_CANCEL, "ABANDONED", false},
};
