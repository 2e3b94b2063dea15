/* Whose connection a node is, told to a store that is shared. */
#ifndef SERVER_LINKS_H
#define SERVER_LINKS_H

#include "server/peers.h"

struct linking {
    struct store_op op;
    struct worker *worker;
    struct node *node;
    void (*done)(struct linking *linking); /* on the worker's loop, whatever came of it */
};

/* `done` is set. Only while the store is shared. */
void links_tell(struct worker *worker, struct linking *linking, struct node *node,
                enum store_link_kind kind, uint64_t incarnation);
/* The same, and nobody waits for it. */
void links_note(struct worker *worker, struct node *node, enum store_link_kind kind,
                uint64_t incarnation);

/* Sockets of this loop whose taking the store did not hear of, or not answer: told again. */
void links_tick(struct hub *hub);

#endif
