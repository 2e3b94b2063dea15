/* Callers behind a proxy. A proxy that `trusted_proxies` names tells whom it calls for
 * (X-Forwarded-For) and how it was called (X-Forwarded-Proto); from everybody else these are a
 * caller's own words, and ignored. */
#ifndef SERVER_PROXY_H
#define SERVER_PROXY_H

#include "server/route.h"

/* With the head: if a trusted proxy sent it, the request is that of the caller it names, for limits
 * per address, audit and log. */
void proxy_resolve(struct call *call);
/* It brought a token: if that crossed a network unencrypted as far as we can tell, the log says so,
 * once. */
void proxy_tell_clear(const struct call *call);

#endif
