/* Keeps tokens and certificates up to date: they are read again when their files change or on
 * SIGHUP, and passed to every loop; a mistake in them changes nothing and is logged. Also runs the
 * audit. All on the main thread, which otherwise only waits for signals: slow files do no harm
 * there.
 */
#ifndef SERVER_TOKEN_FILE_H
#define SERVER_TOKEN_FILE_H

#include "server/server.h"

enum {
    TOKEN_FILE_LOOK_MS = 1000, /* how often files are checked */
    TOKEN_FILE_SLICE_MS = 100, /* no further edit is started in a slice that took this long */
};

/* Reads the tokens in these settings and in their file. */
enum err token_file_read(const struct server *server, const struct settings *settings,
                         struct auth **ret_auth, struct problem *why);
/* May these replace the current ones? An empty set never may: that would let everybody in. */
enum err token_file_check(const struct server *server, const struct settings *settings,
                          const struct auth *auth, struct problem *why);

/* Before the loops start: the first tokens go to every worker. */
enum err token_file_open(struct server *server, struct problem *why);
/* After the loops ended: answers their remaining requests and writes the audit. */
void token_file_end(struct server *server);
void token_file_free(struct server *server);

/* The rest on the main thread while the loops run. */
void token_file_swap(struct server *server, struct auth *auth); /* takes ownership */
void token_file_look(struct server *server); /* checks for changed files and expired tokens */
/* Handles a slice of what the loops have requested: token edits before audit entries and queries,
 * so that a caller who floods the audit can still be revoked. True: there may be more, but signals
 * and the service manager come first. */
bool token_file_run(struct server *server);

#endif
