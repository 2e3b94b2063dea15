/* The connection to a server: dials, says hello, beats, notices when the other side is dead, and
 * dials again, with full jitter and over several URLs. Knows how to talk, not what about. One loop.
 */
#ifndef AGENT_LINK_H
#define AGENT_LINK_H

#include "base/clock.h"
#include "base/json.h"
#include "io/ws.h"

enum {
    LINK_PROTOCOL = 1,
    LINK_RETRY_MIN_MS = 200, /* the first pause is at most this, each next one twice that, */
    LINK_RETRY_MAX_MS =
        10000,                /* up to this, or two heartbeats: whose leases are short must hurry */
    LINK_SLOW_MIN_MS = 10000, /* refused: only a person can help, but nobody need restart us */
    LINK_SLOW_MAX_MS = 30000,
    LINK_REPLACED_MIN_MS = 30000, /* another agent has our name: two that fight serve nobody */
    LINK_REPLACED_MAX_MS = 60000,
    LINK_WELCOME_MS = 10000,
    LINK_LEAVE_MS = 1000,   /* for the other side to answer a goodbye */
    LINK_SILENCE_BEATS = 3, /* heartbeats without a sign of life, and the server is dead */
};

struct link;

struct link_handler {
    /* The fields of hello and heartbeat, into an open object. */
    void (*describe)(struct link *link, struct jsonw *w);
    void (*up)(struct link *link);   /* welcome came */
    void (*down)(struct link *link); /* once for each `up`, unless it was left */
    void (*left)(
        struct link *link); /* after link_leave: goodbye was said and heard, or not heard */
    /* The server took a hello or heartbeat that left at sent_boot_ms (clock_lease_ms()). */
    void (*answered)(struct link *link, int64_t sent_boot_ms, const struct json *body);
    /* Every message but `welcome` and the replies to hello and heartbeats. `body` lives until this
     * returns. */
    void (*message)(struct link *link, struct str msg, const struct json *body);
};

/* Everything must outlive the link. */
struct link_config {
    const char *const *urls; /* ws:// or wss://, with the path */
    size_t url_count;
    struct str node_id;
    struct access *access; /* refreshed before each dial; NULL: no token, no TLS */
    int64_t heartbeat_ms;  /* until a welcome says otherwise */
    int64_t welcome_ms;    /* for the answer to hello; 0 = LINK_WELCOME_MS */
};

/* Begins to dial at once; nothing is called before this returns. */
struct link *link_new(struct loop *loop, const struct link_config *config,
                      const struct link_handler *handler, void *user);
void *link_user(const struct link *link);
bool link_is_up(const struct link *link);
bool link_send(struct link *link, struct str text); /* false: not connected */
/* A heartbeat before its time, because something changed: at the end of this turn, once. */
void link_beat(struct link *link);
int64_t link_heartbeat_ms(const struct link *link);
int64_t link_redial_ms(const struct link *link); /* until the next dial; 0: it is not waiting */
/* Says goodbye; only `left` is called from now on, soon. False: there is nobody to say it to. */
bool link_leave(struct link *link);
/* Closes; nothing is called any more. Before loop_done, where the memory goes. */
void link_free(struct link *link);

/* The pause before dial number `failures` + 1, in [1, bound]: exported for its test. */
int64_t link_pause_ms(int failures, size_t urls, int64_t heartbeat_ms, struct rnd *rnd);

#endif
