/* Secrets by name. A job, an executor or a deployment names them; what they are only this machine
 * knows: files in a directory of the agent's (`secrets_dir`, or the credentials of its unit). A run
 * gets copies that its user alone can read, until it has ended: in memory that only its own mount
 * namespace has, or where there is none (sandbox.h) in the directory of the run; and variables
 * of its environment where the name of one was given. What they hold is in no record, message
 * or log.
 *
 * Anybody who may submit writes a job, and anybody who may deploy writes a deployment; so
 * neither gets a secret that a rule of this agent does not give to it. Executors are the agent's
 * own words.
 *
 * A reference is "NAME" or "VARIABLE=NAME", see argv_secrets(). */
#ifndef AGENT_SECRET_H
#define AGENT_SECRET_H

#include "agent/config.h"
#include "base/schema.h"

enum { SECRET_BYTES_MAX = 64 << 10 };

/* {NAME: {types, deployments, commands}}. `given` is a token of lines->root; NULL or null: none. */
enum err secret_rules_read(const struct json *given, const struct schema_lines *lines,
                           struct arena *arena, struct secret_rule **ret_rules, size_t *ret_count,
                           struct problem *why);

struct str secret_name(struct str word);
struct str secret_variable(struct str word); /* at == NULL: it is a file only */

/* May a job of this type, or with a command of its own, have it? Types and ids are full names: what
 * is given to one namespace is not given to another. */
bool secret_for_job(const struct config *config, struct str name, struct str type, bool command);
bool secret_for_deployment(const struct config *config, struct str name, struct str id);

/* To be read; and why not, with its name: it must be a plain file of at most so many bytes that is
 * not open to everybody. */
enum err secret_open(struct str dir, struct str name, int *ret_fd, struct problem *why);
/* A copy in the directory to_fd, for our own user. One that is there already stays. Nothing but
 * system calls: 0 or errno. */
int secret_copy(int from_fd, int to_fd, const char *name);

#endif
