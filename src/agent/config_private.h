/* Between the files of config.h:
 *   config.c         the table
 *   config_server.c  what `server` and `token` mean
 *   config_claim.c   how deployments are claimed, also as NODE_UNIT_ variables say it */
#ifndef AGENT_CONFIG_PRIVATE_H
#define AGENT_CONFIG_PRIVATE_H

#include "agent/config.h"

/* At most `max` bytes of a file, into the arena. */
enum err config_read_file(const char *path, size_t max, struct arena *arena, struct str *ret_text,
                          struct problem *why);
enum err config_read_urls(struct config_source *source, struct problem *why);
enum err config_read_token(struct config_source *source, struct problem *why);

/* The NODE_UNIT_ variables, between the file and ours. */
void config_seed_env(struct config *config);
enum err config_read_claim(struct config *config, struct problem *why);

#endif
