/* A breaker keeps work away from an executor (node x type) that keeps failing: three failures in a
 * row open it; after a pause one probe decides. Pure: the store keeps the struct, shared and
 * durable, and passes in its own time. */
#ifndef MODEL_BREAKER_H
#define MODEL_BREAKER_H

#include "base/json.h"

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN, BREAKER_STATE_COUNT };

const char *breaker_state_name(enum breaker_state state); /* "CLOSED", "OPEN", "HALF_OPEN" */

/* Zero-initialised means closed without failures: such a record need not be stored. */
struct breaker {
    enum breaker_state state;
    int32_t failures;       /* in a row */
    int64_t opened_ms;      /* when open or half open */
    int64_t probe_until_ms; /* half open: a probe is running until then; 0 = none */
};

struct breaker_rules {
    int32_t threshold;   /* 3 */
    int64_t cooldown_ms; /* 300000 */
    int64_t probe_ms; /* 300000: a probe's lease; without a result by then, another may be sent */
};

extern const struct breaker_rules breaker_defaults;

/* What the call changed, for the log. */
enum breaker_event { BREAKER_NO_EVENT, BREAKER_TRIPPED, BREAKER_PROBE_FAILED, BREAKER_RECOVERED };

/* "circuit_open:failure_threshold_reached", ...; NULL for BREAKER_NO_EVENT. */
const char *breaker_event_name(enum breaker_event event);

/* The current state: once the pause is over the breaker is half open. */
enum breaker_state breaker_state(struct breaker *breaker, const struct breaker_rules *rules,
                                 int64_t now_ms);
/* May a task be sent? Half open: yes for the first, which is the probe; no for others until it
 * ends. */
bool breaker_allowed(struct breaker *breaker, const struct breaker_rules *rules, int64_t now_ms);
/* Ends the pause early: the next task is a probe. */
void breaker_try(struct breaker *breaker);
enum breaker_event breaker_fail(struct breaker *breaker, const struct breaker_rules *rules,
                                int64_t now_ms);
enum breaker_event breaker_ok(struct breaker *breaker, const struct breaker_rules *rules,
                              int64_t now_ms);
void breaker_probe_ended(struct breaker *breaker); /* without an outcome that counts */
void breaker_reset(struct breaker *breaker);       /* an operator's order */

void breaker_write(const struct breaker *breaker, struct jsonw *w); /* an object, for people */

/* Does this class of failure count? Only failures of the executor do: "task_error",
 * "executor_timeout". A class not in the table does not. */
bool breaker_counts(struct str failure_class);
/* Does a run that its node ended with this reason count? Decided by the class of the reason
 * ("TIMEOUT": "executor_timeout"). A reason not in the table ("MODEL_LOAD_FAILED") counts: the node
 * itself reports that the work failed. */
bool breaker_blames(struct str reason);

#endif
