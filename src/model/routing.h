/* Which servers a type of work may go to, and in which order: a table the
 * configuration fills. Pure, no allocation. */
#ifndef MODEL_ROUTING_H
#define MODEL_ROUTING_H

#include "base/schema.h"

/* An entry of `servers` is a server's id, a label selector (it has a '='), or "*" for any. */
struct routing_route {
    struct str type;
    struct strs servers; /* in order of preference */
};

struct routing {
    const struct routing_route *routes;
    size_t count;
    struct strs default_route; /* for types no route names; none: any server that allows the type */
};

struct routing_server {
    struct str id;
    const struct json *labels; /* an object of texts; NULL: none */
    const struct strs *types;  /* allowed_types; NULL or "*": all */
    int64_t priority;          /* lower first, where a route does not say */
    int64_t slots;             /* free for this work now */
    bool online;
};

#define ROUTING_REFUSED -1

/* The server's place in the type's order, 0 first; ROUTING_REFUSED when it may not go there. */
int routing_rank(const struct routing *routing, struct str type,
                 const struct routing_server *server);
/* The server allows this type (TYPE_NOT_ALLOWED otherwise). */
bool routing_allows(const struct strs *types, struct str type);
/* Which of two servers is asked first: < 0, 0 (nothing says), > 0. Neither may be refused. */
int routing_order(const struct routing *routing, struct str type, const struct routing_server *a,
                  const struct routing_server *b);
/* The first in order that is online and has a slot; NULL when none is. Equal ones: the earlier. */
const struct routing_server *routing_pick(const struct routing *routing, struct str type,
                                          const struct routing_server *servers, size_t count);

#endif
