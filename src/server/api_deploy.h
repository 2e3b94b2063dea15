/* What the handlers of deployments share: a call to the database on behalf of a request, the body
 * of a spec, and how a row is shown. */
#ifndef SERVER_API_DEPLOY_H
#define SERVER_API_DEPLOY_H

#include "server/route.h"
#include "store/deploys.h"

/* Opens the configured database; without one, SQLite if the store is embedded: with a shared store
 * a file of its own would give each instance a different truth. */
enum err deploy_open(struct server *server, struct problem *why);
/* On each loop's tick: tells its nodes when deployments have changed. */
void deploy_tick(struct worker *worker);
/* On the keeper's tick: logs when the database goes down and when it is back. */
void deploy_watch(struct server *server);

struct deploy_call {
    struct call *call;
    struct deploys_op op;
    void (*answer)(struct deploy_call *own); /* the database answered without an error */
    /* The request's, for its answer: */
    struct deploys_spec spec;
    void *user;
};

struct deploy_call *deploy_call(struct call *call, enum deploys_verb verb,
                                void (*answer)(struct deploy_call *own));
void deploy_send(struct deploy_call *own); /* answers the request itself if it fails */
/* What was PUT, as members of an open object. Without `secrets` the values of env are null, which
 * no PUT accepts, so that hidden values cannot be written back by mistake. */
void deploy_body_write(struct jsonw *w, const struct deploys_spec *spec, bool secrets,
                       struct arena *arena);
/* A live copy, as members of an open object. */
void service_write(struct jsonw *w, const struct deploys_service *service);

#endif
