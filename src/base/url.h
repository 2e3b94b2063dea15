/* Absolute URLs, limited to what we follow: no userinfo, no fragment, no spaces. */
#ifndef BASE_URL_H
#define BASE_URL_H

#include "base/str.h"

struct url {
    struct str scheme; /* as written */
    struct str host;   /* without the brackets of an IPv6 address */
    int port_number;   /* 0 when not given */
    struct str target; /* path and query; "/" when not given */
    bool is_v6;
};

bool url_parse(struct str text, struct url *ret_url);
bool url_is_loopback(const struct url *url); /* localhost, 127.0.0.0/8 or ::1, as a plain address */
/* Would a secret sent there cross a network unencrypted? (http and ws, except to loopback) */
bool url_is_exposed(struct str text);

#endif
