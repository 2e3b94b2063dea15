/* What the agent shows to a server so that it is let in: its token and its certificate. Their files
 * are read again for each connection, so that both can be replaced while the agent runs. */
#ifndef AGENT_ACCESS_H
#define AGENT_ACCESS_H

#include "base/mem.h"
#include "io/net.h"

enum { ACCESS_TOKEN_MAX = 4096 };

/* Paths and texts must outlive it. */
struct access {
    const char *token_file; /* NULL: none */
    struct str token;       /* as it was last read; at == NULL: none */
    bool tls;               /* some URL needs it */
    const char *ca_file;    /* NULL: the system's */
    const char *cert_file;  /* NULL: no certificate of our own */
    const char *key_file;
    char read[ACCESS_TOKEN_MAX + 1]; /* where `token` then stands */
};

/* The token of the file's first line, into *ret_token. */
enum err access_read_token(const char *path, struct arena *arena, struct str *ret_token,
                           struct problem *why);
/* The token again; a file that cannot be read leaves the one before. */
void access_refresh(struct access *access);
/* For one connection; the caller frees it once it dials. */
enum err access_tls(const struct access *access, struct net_tls **ret_tls, struct problem *why);

#endif
