/* The claim loop: every few seconds, and whenever something changed, each node looks at who is
 * online and which deployments nobody runs, and claims its share of them. What keeps failing here
 * and could run elsewhere it gives up. There is no other scheduler for deployments; the server only
 * decides who was first. One loop. */
#ifndef AGENT_CLAIMER_H
#define AGENT_CLAIMER_H

#include "agent/capacity.h"
#include "agent/node_lease.h"
#include "base/json.h"
#include "base/map.h"
#include "model/claim.h"
#include "model/deploy.h"
#include "model/member.h"

struct claimer;

/* All must outlive it. */
struct claimer_config {
    const struct config *config;
    struct str node_id, instance;
    struct link_calls *link_calls;
    struct copies *copies;
    const struct capacity *capacity; /* what this node has; NULL: any has room */
    struct node_lease *node_lease;
};

struct claimer *claimer_new(struct loop *loop, const struct claimer_config *config);
void claimer_up(struct claimer *claimer); /* the link is up */
void claimer_down(struct claimer *claimer);
/* Something changed: it looks soon. */
void claimer_wake(struct claimer *claimer);
void claimer_danger(struct claimer *claimer, bool danger); /* the machine's level: claim nothing */
/* Would it claim at all, as far as this node alone can say? Others should not wait for it if not.
 */
bool claimer_takes(const struct claimer *claimer);
/* {cycles, claims, skips, last}: an object. */
void claimer_write(const struct claimer *claimer, struct jsonw *w);
void claimer_free(struct claimer *claimer);

/* The table of deployments as a claimer needs it: who owns what, whose lease is good, and what
 * failed where. Read page by page, and kept while its version stays the same. */

struct deploy_table {
    int64_t version; /* of the rows; -1: they are not whole */
    struct deploy_row *rows;
    size_t row_count;
    enum deploy_mode mode;
    bool approved;       /* an operator lets nodes claim although most of them are gone */
    size_t page;         /* how many of this reading came, */
    int64_t oldest_page; /* and the oldest version among them */
    int64_t facts;       /* the number of leases and failures; -1: the server has none for them */
    int64_t facts_ms, now_ms; /* the database's clock when they came, and now */
    const struct json *leases;
    const struct json *failures;
    struct arena arena;       /* of the rows */
    struct arena marks_arena; /* which rows failed where */
    struct arena facts_arena; /* of leases and failures: those change without a new version */
};

void deploy_table_init(struct deploy_table *table);
void deploy_table_done(struct deploy_table *table);
/* What is known may be wrong: all of it is read again. */
void deploy_table_forget(struct deploy_table *table);
/* A reading begins: if_version and if_facts, into an open object. */
void deploy_table_write(struct deploy_table *table, struct jsonw *w);
/* A page of it. *ret_cursor (in `arena`) is for the next one; empty: that was the last, and the
 * rows are whole. */
void deploy_table_take(struct deploy_table *table, const struct json *reply, struct arena *arena,
                       struct str *ret_cursor);
/* How long its lease was still good when the reading came; negative: it was not, as far as this
 * node knows. The server decides; this saves the question. */
int64_t deploy_table_left_ms(const struct deploy_table *table, struct str address);
/* Did it stop in peace? */
bool deploy_table_goodbye(const struct deploy_table *table, struct str address);

/* The member list: the server's, kept up by changes, and since when somebody who owns deployments
 * is missing from it. One loop; times are CLOCK_MONOTONIC ms. */

struct member_list {
    char source[80]; /* which list the number counts in; "" = none yet */
    int64_t seq;
    int64_t synced_ms;  /* the first full list of this connection; MEMBER_NEVER: none */
    struct map by_id;   /* terminal_id -> struct member_list_entry */
    struct map watches; /* address -> struct member_list_watch */
};

void member_list_init(struct member_list *member_list);
void member_list_done(struct member_list *member_list);
/* Another connection: the list counts again from its first full one on. */
void member_list_forget(struct member_list *member_list);
/* source and seq, into an open object: what is known so far. */
void member_list_write(const struct member_list *member_list, struct jsonw *w);
/* The answer of /v1/terminals/sync. False: it does not fit what is known; ask for everything. */
bool member_list_take(struct member_list *member_list, const struct json *reply, int64_t now_ms);

/* The node units, each address once, as claim rules want them: everything but usage and counts.
 * Strings and labels live until the next member_list_take. */
size_t member_list_nodes(const struct member_list *member_list, struct arena *arena,
                         struct claim_node **ret_nodes);
/* Who is online now, and who of them and of the owners is not. */
void member_list_note(struct member_list *member_list, const struct names *online,
                      const struct names *owners, int64_t now_ms);
/* From when on a member is lost, if it does not come back; MEMBER_NEVER: it is there. */
int64_t member_list_lost_ms(const struct member_list *member_list, struct str address,
                            const struct member_rules *rules);
/* The members that are watched and not online: all owners, and others that left lately. In the
 * arena. */
void member_list_absent(const struct member_list *member_list, struct arena *arena,
                        struct names *ret_absent);

#endif
