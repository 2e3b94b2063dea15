/* ETag and what asks for it: an answer that the client has already is not sent again
 * (If-None-Match), and a change is made only to what the client saw (If-Match). */
#ifndef SERVER_ETAG_H
#define SERVER_ETAG_H

#include "server/route.h"

bool etag_has_copy(struct http_request *req, struct str etag); /* quotes included */
/* False: answered with 412; `what` is named in the sentence. */
bool etag_matches(struct call *call, struct str etag, const char *what);
/* 200 with its ETag, or 304 without a body. */
void etag_json(struct call *call, const struct buf *body, struct str etag);

#endif
