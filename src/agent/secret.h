/* Secrets by name. A job, an executor or a deployment names them; only this machine knows their
 * values: files in a directory of the agent (`secrets_dir`, or the credentials of its unit). A run
 * gets copies that only its user can read, until it has ended: in memory that only its own mount
 * namespace has, or where there is none (sandbox.h) in the directory of the run; and environment
 * variables where the reference names one. The values are in no record, message or log.
 *
 * Anybody who may submit can write a job, and anybody who may deploy can write a deployment, so
 * both only get secrets that a rule of this agent allows. Executors come from the agent's own
 * settings.
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
struct str secret_variable(struct str word); /* at == NULL: only a file */

/* May a job of this type, or with its own command, use the secret? Types and ids are full names: a
 * rule for one namespace does not apply to another. */
bool secret_for_job(const struct config *config, struct str name, struct str type, bool command);
bool secret_for_deployment(const struct config *config, struct str name, struct str id);

/* Opens the secret for reading; errors name it: it must be a plain file within the size limit that
 * is not open to everybody. */
enum err secret_open(struct str dir, struct str name, int *ret_fd, struct problem *why);
/* Copies it into the directory to_fd, for our own user. An existing copy stays. System calls only:
 * 0 or errno. */
int secret_copy(int from_fd, int to_fd, const char *name);

#endif
