/* Who may come in, kept up to date: tokens and certificates are read again when their files change
 * or when SIGHUP says so, and handed to every loop; a mistake in them changes nothing and is told.
 * Also keeps the audit log. All of it on the main thread, which has nothing else to do but wait for
 * signals: files may take their time there. */
#ifndef SERVER_TOKEN_FILE_H
#define SERVER_TOKEN_FILE_H

#include "server/server.h"

enum {
    TOKEN_FILE_LOOK_MS = 1000, /* how often files are looked at */
    TOKEN_FILE_SLICE_MS = 100, /* no further edit is begun in a slice that took so long */
};

/* The tokens of these settings and of their file. */
enum err token_file_read(const struct server *server, const struct settings *settings,
                         struct auth **ret_auth, struct problem *why);
/* May these take the place of the present ones? Never none after some: that would let all in. */
enum err token_file_check(const struct server *server, const struct settings *settings,
                          const struct auth *auth, struct problem *why);

/* Before the loops start: the first tokens go to every worker. */
enum err token_file_open(struct server *server, struct problem *why);
/* After they ended: what they still asked for gets an answer, and the audit is written. */
void token_file_end(struct server *server);
void token_file_free(struct server *server);

/* The rest on the main thread while the loops run. */
void token_file_swap(struct server *server, struct auth *auth); /* takes it over */
void token_file_look(struct server *server); /* files that changed, tokens that expired */
/* A slice of what the loops have asked for: tokens that come and go before notes and questions of
 * the audit, so that who floods it is not safe from being revoked. True: there may be more, but
 * signals and the service manager come first. */
bool token_file_run(struct server *server);

#endif
