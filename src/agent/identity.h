/* Who this agent is and where it lives: its data directory, and the node id kept in it. */
#ifndef AGENT_IDENTITY_H
#define AGENT_IDENTITY_H

#include "base/err.h"
#include "base/mem.h"
#include "io/net.h"

/* Makes the directory (others may pass through it, not look into it) and returns its absolute path.
 */
enum err identity_dir(struct str data_dir, struct arena *arena, const char **ret_dir,
                      struct problem *why);
/* What is in there, run by run, has a format, a number kept in the file `format`. A directory
 * of a format that is not known here is refused: what an older agent does not understand it would
 * throw away. One without the file, from before there were numbers, has the first. */
enum err identity_format(const char *dir, struct arena *arena, struct problem *why);
/* The id: `given`, or what the directory keeps, or at first the host's name. One that differs from
 * what is kept is an error: the runs in there belong to the other node. Kept from now on. */
enum err identity_id(const char *dir, struct str given, struct arena *arena, struct str *ret_id,
                     struct problem *why);
/* Which agent this is among those that call themselves by the same id: 32 hex digits. The same for
 * every agent that finds the runs of the one before it, that is on this directory and under this
 * kernel; another one after a reboot, and in any copy of the directory or the machine. */
enum err identity_instance(const char *dir, struct arena *arena, struct str *ret_instance,
                           struct problem *why);
/* A host's name as an id: what may not be in one becomes '-'. "node" if nothing is left. */
struct str identity_from_host(struct str host, struct arena *arena);

/* What the agent shows to a server so that it is let in: its token and its certificate. Their files
 * are read again for each connection, so that both can be replaced while the agent runs. */

enum { ACCESS_TOKEN_MAX = 4096 };

/* Paths and texts must outlive it. */
struct access {
    const char *token_file; /* NULL: none */
    struct str token;       /* as it was last read; at == NULL: none */
    bool tls;               /* some URL needs it */
    const char *ca_file;    /* NULL: the system's */
    const char *cert_file;  /* NULL: no certificate of our own */
    const char *key_file;
    char read[ACCESS_TOKEN_MAX + 1]; /* where `token` then is */
};

/* The token of the file's first line, into *ret_token. */
enum err access_read_token(const char *path, struct arena *arena, struct str *ret_token,
                           struct problem *why);
/* The token again; a file that cannot be read leaves the one before. */
void access_refresh(struct access *access);
/* For one connection; the caller frees it once it dials. */
enum err access_tls(const struct access *access, struct net_tls **ret_tls, struct problem *why);

#endif
