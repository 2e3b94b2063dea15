/* An intrusive circular list. An unlinked link points to itself. */
#ifndef STORE_CHAIN_H
#define STORE_CHAIN_H

#include <stdbool.h>

struct chain {
    struct chain *prev;
    struct chain *next;
};

static inline void chain_init(struct chain *link)
{
    link->prev = link->next = link;
}

static inline bool chain_alone(const struct chain *link)
{
    return link->next == link;
}

static inline void chain_del(struct chain *link) /* no effect if it is not linked */
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    chain_init(link);
}

static inline void chain_add_last(struct chain *ring, struct chain *link)
{
    link->prev = ring->prev;
    link->next = ring;
    ring->prev->next = link;
    ring->prev = link;
}

#endif
