/* The claim loop: every few seconds, and whenever something changed, each node checks which nodes
 * are online and which deployments run nowhere, and claims its share of those. It gives up what
 * keeps failing or has no room here and could run elsewhere. There is no other scheduler for
 * deployments; the server only decides which claim came first. One loop. */
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
    const struct capacity *capacity; /* what this node has; NULL: everything fits */
    struct node_lease *node_lease;
};

struct claimer *claimer_new(struct loop *loop, const struct claimer_config *config);
void claimer_up(struct claimer *claimer); /* the link is up */
/* Something changed: a cycle starts soon. */
void claimer_wake(struct claimer *claimer);
/* Would this node claim at all, judging by itself alone? If not, others should not wait for it. */
bool claimer_takes(const struct claimer *claimer);
/* An object: {cycles, claims, skips, last}. */
void claimer_write(const struct claimer *claimer, struct jsonw *w);
void claimer_free(struct claimer *claimer);

/* The table of deployments for the claimer: who owns what, whose lease is valid, and what failed
 * where. Read page by page, and kept while its version is unchanged. */

struct deploy_table {
    int64_t version; /* of the rows; -1: incomplete */
    struct deploy_row *rows;
    size_t row_count;
    enum deploy_mode mode;
    bool approved;            /* an operator allowed claiming although most nodes are gone */
    size_t page;              /* pages read so far, */
    int64_t oldest_page;      /* and the oldest version among them */
    int64_t facts;            /* version of the leases and failures; -1: the server sends none */
    int64_t facts_ms, now_ms; /* the database's clock: when they arrived, and now */
    const struct json *leases;
    const struct json *failures;
    struct arena arena;       /* of the rows */
    struct arena marks_arena; /* for the marks of which rows failed where */
    struct arena facts_arena; /* for leases and failures: those change without a new version */
};

void deploy_table_init(struct deploy_table *table);
void deploy_table_done(struct deploy_table *table);
/* The table may be wrong: read all of it again. */
void deploy_table_forget(struct deploy_table *table);
/* Starts a reading: writes if_version and if_facts into an open object. */
void deploy_table_write(struct deploy_table *table, struct jsonw *w);
/* Takes a page. *ret_cursor (in `arena`) is for the next one; empty: that was the last, and the
 * rows are complete. */
void deploy_table_take(struct deploy_table *table, const struct json *reply, struct arena *arena,
                       struct str *ret_cursor);
/* How long the owner's lease was still valid when the reading arrived; negative: as far as this
 * node knows, it was not. The server decides; this only saves a request. */
int64_t deploy_table_left_ms(const struct deploy_table *table, struct str node);
/* Did it shut down cleanly? */
bool deploy_table_goodbye(const struct deploy_table *table, struct str node);

/* The server's member list, kept up to date by its changes, and since when an owner of deployments
 * is missing from it. One loop; times are CLOCK_MONOTONIC ms. */

struct member_list {
    char source[80]; /* which list `seq` counts in; "" = none yet */
    int64_t seq;
    int64_t synced_ms;  /* first full list of this connection; MEMBER_NEVER: none yet */
    struct map by_id;   /* terminal_id -> struct member_list_entry */
    struct map watches; /* node -> struct member_list_watch */
};

void member_list_init(struct member_list *member_list);
void member_list_done(struct member_list *member_list);
/* Writes source and seq, what is known so far, into an open object. */
void member_list_write(const struct member_list *member_list, struct jsonw *w);
/* Takes the reply of /v1/terminals/sync. False: it does not match what is known; request
 * everything. */
bool member_list_take(struct member_list *member_list, const struct json *reply, int64_t now_ms);

/* The node units, each node once, in the form the claim rules need, without usage and counts.
 * Strings and labels live until the next member_list_take. */
size_t member_list_nodes(const struct member_list *member_list, struct arena *arena,
                         struct claim_node **ret_nodes);
/* Records which nodes are online now, and which members and owners are not. */
void member_list_note(struct member_list *member_list, const struct names *online,
                      const struct names *owners, int64_t now_ms);
/* When a member counts as lost unless it comes back; MEMBER_NEVER: it is online. */
int64_t member_list_lost_at_ms(const struct member_list *member_list, struct str node,
                               const struct member_rules *rules);
/* The watched members that are not online: all owners, and others that left recently. In the
 * arena. */
void member_list_absent(const struct member_list *member_list, struct arena *arena,
                        struct names *ret_absent);

struct claimer {
    struct loop *loop;
    struct claimer_config config;
    struct member_list members;
    bool up;     /* whether the link is up */
    bool danger; /* whether the machine is in danger: nothing is claimed; set by the agent */
    bool busy;
    enum err failed;         /* why the last cycle failed; ERR_OK: it did not */
    bool woken;              /* during a cycle */
    int64_t next_ms;         /* of the next cycle, CLOCK_MONOTONIC */
    int64_t due_ms;          /* when the next absent member will be lost; 0: none */
    int64_t begun_ms;        /* of the last cycle */
    int64_t last_attempt_ms; /* end of the last cycle that tried to claim */
    struct deploy_table table;
    /* Memory of this cycle. */
    struct arena cycle;
    struct link_call link_call;
    struct buf body;
    struct claim_node *nodes;
    size_t node_count;
    struct names lost;   /* their rows may be taken */
    bool mass_loss;      /* no rows may be taken */
    size_t absent_count; /* nodes that left without a goodbye */
    size_t released;     /* lost nodes whose rows were released; mode seed */
    struct claim_plan plan;
    size_t budget; /* maximum number of claims in this cycle */
    size_t next;   /* place in the plan: those before it were claimed, refused, or lack room here */
    size_t tried, claimed, conflicts; /* claims that were sent, and what became of them */
    size_t owned;         /* rows of this node: those in the table plus those claimed since */
    struct resources own; /* what this node has left, less claims that have not arrived yet */
    /* Since the start. */
    int64_t cycles, claims, skips[CLAIM_SKIP_COUNT];
    enum claim_skip last;
    struct rnd rnd;
    struct loop_part part;
};

#endif
