/* Breakers: one for each node x type that failed recently. The rules are in model/breaker.h; this
 * file keeps the state and writes it in the transaction of whatever changed it.
 *
 * A probe is tied to the lease of its job and is out exactly as long as that lease lives, however
 * often its node renews it. So there is never a second probe and never a lost one. */
#ifndef STORE_BREAKERS_H
#define STORE_BREAKERS_H

#include "base/map.h"
#include "store/chain.h"
#include "store/store.h"

struct ledger_job;
struct journal;

enum {
    BREAKERS_MAX = 16384, /* more: the one that changed longest ago is forgotten */
    BREAKERS_KEY_MAX = NODE_ID_MAX + 1 + POOL_LANG_MAX,
};

struct breaker_entry {
    struct breaker breaker;   /* a closed breaker without failures is not kept */
    struct ledger_job *probe; /* the job whose end decides; NULL: no probe is out */
    int64_t changed_ms;
    bool counted; /* in open_count */
    struct chain order;
    struct str key; /* "node|type"; all three in `text` */
    struct str node;
    struct str type;
    char text[BREAKERS_KEY_MAX + 1];
};

struct breakers {
    struct map gates;
    struct chain order;         /* least recently changed first */
    struct breaker_rules rules; /* threshold 0: there are none */
    int64_t open_count;         /* open or half open */
};

/* What the end of an attempt says about the node that ran it. */
enum breakers_verdict { BREAKERS_NOTHING, BREAKERS_GOOD, BREAKERS_BAD };

void breakers_init(struct breakers *breakers, const struct breaker_rules *rules);
void breakers_free(struct breakers *breakers);
/* Loads from the file, after the jobs; probes that are still out are restored. */
void breakers_load(struct breakers *breakers, struct journal *journal, const struct idshards *jobs,
                   int64_t now_ms);

/* May work of this type go to this node? *ret_probe set: the job would be the probe of that
 * breaker, and the caller, who already has a slot for it, registers it with breakers_probe(). NULL:
 * it is no probe. The `last` node of a pool is never blocked entirely: it gets one probe at a
 * time. */
bool breakers_allow(struct breakers *breakers, struct str node, struct str type, bool last,
                    int64_t now_ms, struct breaker_entry **ret_probe);
void breakers_probe(struct breakers *breakers, struct journal *journal, struct breaker_entry *gate,
                    struct ledger_job *entry, int64_t now_ms);
/* Its lease expired: another probe may be sent. */
void breakers_release(struct ledger_job *entry);
/* Its attempt ended; entry->head still has its node. */
enum breaker_event breakers_settle(struct breakers *breakers, struct journal *journal,
                                   struct ledger_job *entry, enum breakers_verdict verdict,
                                   int64_t now_ms);

int breakers_order(const void *a, const void *b); /* of struct store_breaker: node, type */
/* Drops breakers of nodes that are gone and did not return for a whole cooldown. */
void breakers_tidy(struct breakers *breakers, struct journal *journal, const struct map *nodes,
                   int64_t now_ms);
void breakers_check(const struct breakers *breakers); /* see ledger_check */

#endif
