/* Reading the table of executors: TYPE -> what to run, from the agent's configuration. */
#ifndef AGENT_EXECUTOR_H
#define AGENT_EXECUTOR_H

#include "agent/config.h"
#include "base/schema.h"

enum { EXECUTOR_STOP_GRACE_MS = 5000 };

/* `given` is a token of lines->root; NULL or null: none. All of it lives in the arena. */
enum err executors_read(const struct json *given, const struct schema_lines *lines,
                        struct arena *arena, struct executor **ret_executors, size_t *ret_count,
                        struct problem *why);

#endif
