/* The node's lease on what it runs: renewed again and again, and each good renewal says what may
 * run and until when. Both go to the copies; how those are goes back. One loop. */
#ifndef AGENT_NODE_LEASE_H
#define AGENT_NODE_LEASE_H

#include "agent/copies.h"
#include "agent/queries.h"

enum tenure_admin { TENURE_NONE, TENURE_CORDONED, TENURE_DRAINING };

struct tenure;

/* `instance` tells this agent from others of the same name: the lease is the first one's.
 * `labels` (of the configuration) decide which daemons are this node's, and which deployments it
 * must give up. All must outlive it. */
struct tenure *tenure_new(struct loop *loop, struct queries *queries, struct copies *copies,
                          const struct config *config, struct str node_id, struct str instance);
void tenure_up(struct tenure *tenure); /* the link stands */
void tenure_down(struct tenure *tenure);
void tenure_look(struct tenure *tenure);    /* something changed: renew now */
void tenure_judge(struct tenure *tenure);   /* our labels did: what is ours must be told anew */
void tenure_changed(struct tenure *tenure); /* the copies did: tell it soon */
void tenure_goodbye(struct tenure *tenure); /* this agent stops in peace; nothing is awaited */
void tenure_free(struct tenure *tenure);    /* before copies_free */

bool tenure_good(const struct tenure *tenure);        /* the lease is good */
int64_t tenure_lease_ms(const struct tenure *tenure); /* its length; the default before the first */
enum tenure_admin tenure_admin(const struct tenure *tenure);

#endif
