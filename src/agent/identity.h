/* The identity of this agent: its data directory, and the node id stored in it. */
#ifndef AGENT_IDENTITY_H
#define AGENT_IDENTITY_H

#include "base/err.h"
#include "base/mem.h"
#include "io/net.h"

/* Creates the directory (other users may pass through it but not list it) and returns its absolute
 * path. */
enum err identity_dir(struct str data_dir, struct arena *arena, const char **ret_dir,
                      struct problem *why);
/* The per-run data in the directory has a format, whose number is in the file `format`. A directory
 * with an unknown format is refused: an older agent would discard what it does not understand. A
 * directory without the file is from before formats were numbered and has the first. */
enum err identity_format(const char *dir, struct arena *arena, struct problem *why);
/* The id: `given`, or the stored one, or on the first start the host's name. If `given` differs
 * from the stored id, that is an error: the runs in the directory belong to the other node. Stored
 * from now on. */
enum err identity_id(const char *dir, struct str given, struct arena *arena, struct str *ret_id,
                     struct problem *why);
/* Tells this agent from others with the same id: 32 hex digits. The same for every agent that finds
 * the runs of its predecessor, that is, on this directory and since the same boot; different after
 * a reboot, and in any copy of the directory or the machine. */
enum err identity_instance(const char *dir, struct arena *arena, struct str *ret_instance,
                           struct problem *why);
/* A hostname as an id: characters not allowed in one become '-'. "node" if nothing is left. */
struct str identity_from_host(struct str host, struct arena *arena);

/* The agent's credentials for a server: its token and its certificate. Their files are read again
 * for each connection, so that both can be replaced while the agent runs. */

enum { ACCESS_TOKEN_MAX = 4096 };

/* Paths and strings must outlive it. */
struct access {
    const char *token_file; /* NULL: none */
    struct str token;       /* as last read; at == NULL: none */
    bool tls;               /* at least one URL needs it */
    const char *ca_file;    /* NULL: the system's CAs */
    const char *cert_file;  /* NULL: no certificate of our own */
    const char *key_file;
    char read[ACCESS_TOKEN_MAX + 1]; /* storage for `token` when it is read again */
};

/* Reads the token from the file's first line. */
enum err access_read_token(const char *path, struct arena *arena, struct str *ret_token,
                           struct problem *why);
/* Reads the token again; if the file cannot be read, the old token stays. */
void access_refresh(struct access *access);
/* For one connection; the caller frees it after dialling. */
enum err access_tls(const struct access *access, struct net_tls **ret_tls, struct problem *why);

#endif
