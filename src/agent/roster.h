/* Who else is here: the server's list of members, kept up by changes, and since when somebody who
 * owns deployments is missing from it. One loop; times are CLOCK_MONOTONIC ms. */
#ifndef AGENT_ROSTER_H
#define AGENT_ROSTER_H

#include "base/json.h"
#include "base/map.h"
#include "model/claim.h"
#include "model/member.h"

struct roster {
    char source[80]; /* which list the number counts in; "" = none yet */
    int64_t seq;
    int64_t synced_ms;  /* the first full list of this connection; MEMBER_NEVER: none */
    struct map by_id;   /* terminal_id -> struct roster_entry */
    struct map watches; /* address -> struct roster_watch */
};

void roster_init(struct roster *roster);
void roster_done(struct roster *roster);
/* Another connection: the list counts again from its first full one on. */
void roster_forget(struct roster *roster);
/* source and seq, into an open object: what is known so far. */
void roster_write(const struct roster *roster, struct jsonw *w);
/* The answer of /v1/terminals/sync. False: it does not fit what is known; ask for everything. */
bool roster_take(struct roster *roster, const struct json *reply, int64_t now_ms);

/* The node units, each address once, as claim rules want them: everything but usage and counts.
 * Strings and labels live until the next roster_take. */
size_t roster_nodes(const struct roster *roster, struct arena *arena,
                    struct claim_node **ret_nodes);
/* Who is online now, and who of them and of the owners is not. */
void roster_note(struct roster *roster, const struct names *online, const struct names *owners,
                 int64_t now_ms);
/* From when on it is lost, if it does not come back; MEMBER_NEVER: it is there. */
int64_t roster_lost_ms(const struct roster *roster, struct str address,
                       const struct member_rules *rules);
/* Those it watches that are not online: all owners, and others that left lately. In the arena. */
void roster_absent(const struct roster *roster, struct arena *arena, struct names *ret_absent);

#endif
