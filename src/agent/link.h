/* The connection to a server: dials, says hello, sends heartbeats, notices when the peer is dead,
 * and dials again, with full jitter and over several URLs. Knows the transport, not the content.
 * One loop. */
#ifndef AGENT_LINK_H
#define AGENT_LINK_H

#include <sys/queue.h>

#include "base/clock.h"
#include "base/json.h"
#include "io/loop.h"
#include "io/ws.h"

enum {
    LINK_PROTOCOL = 1,
    LINK_RETRY_MIN_MS = 200,   /* the first pause is at most this, each next one twice as long, */
    LINK_RETRY_MAX_MS = 10000, /* up to this, or two heartbeats: with short leases it must hurry */
    LINK_SLOW_MIN_MS = 10000, /* refused: only a person can help, but no restart should be needed */
    LINK_SLOW_MAX_MS = 30000,
    LINK_REPLACED_MIN_MS = 30000, /* another agent has our name: fighting over it helps neither */
    LINK_REPLACED_MAX_MS = 60000,
    LINK_WELCOME_MS = 10000,
    LINK_LEAVE_MS = 1000, /* time to wait for the answer to a goodbye */
    LINK_SENTENCE_MAX = 320,
    LINK_BEATS_OPEN = 64,   /* unanswered ones we remember; replies to older ones are ignored */
    LINK_SILENCE_BEATS = 3, /* heartbeats without a sign of life until the server counts as dead */
};

struct link;

struct link_handler {
    /* The fields of hello and heartbeat, into an open object. */
    void (*describe)(struct link *link, struct jsonw *w);
    void (*up)(struct link *link);   /* welcome was received */
    void (*down)(struct link *link); /* once for each `up`, unless we left */
    void (*left)(
        struct link *link); /* after link_leave: goodbye was answered, or the wait for it is over */
    /* The server accepted a hello or heartbeat that was sent at sent_boot_ms (clock_lease_ms()). */
    void (*answered)(struct link *link, int64_t sent_boot_ms, const struct json *body);
    /* Every message except `welcome` and the replies to hello and heartbeats. `body` lives until
     * this returns. */
    void (*message)(struct link *link, struct str msg, const struct json *body);
};

/* Everything must outlive the link. */
struct link_config {
    const char *const *urls; /* ws:// or wss://, with the path */
    size_t url_count;
    struct str node_id;
    struct access *access; /* refreshed before each dial; NULL: no token, no TLS */
    int64_t heartbeat_ms;  /* until a welcome sets another */
    int64_t welcome_ms;    /* how long to wait for the reply to hello; 0 = LINK_WELCOME_MS */
};

struct link {
    struct loop *loop;
    const struct link_config *config;
    const struct link_handler *handler;
    void *user;
    struct ws *ws; /* NULL: not connected */
    struct ws_limits limits;
    bool up;
    bool beat_due; /* at the end of this loop turn */
    bool freeing;
    bool leaving; /* goodbye was sent */
    int failures; /* dials in a row without a welcome */
    size_t url;
    int64_t heartbeat_ms;
    int64_t beats;                    /* hellos and heartbeats sent; the last had id -beats */
    int64_t sent_ms[LINK_BEATS_OPEN]; /* when each was sent, clock_lease_ms(); by -id */
    char refusal[LINK_SENTENCE_MAX];  /* the server's refusal of hello; "" = none */
    struct rnd rnd;
    uv_timer_t redial, beat, welcome;
    struct loop_part part;
    struct arena arena; /* of the message being handled */
    struct buf text;
};

/* Starts dialling at once; no callback is called before this returns. */
struct link *link_new(struct loop *loop, const struct link_config *config,
                      const struct link_handler *handler, void *user);
bool link_send(struct link *link, struct str text); /* false: not connected */
/* Sends an early heartbeat because something changed: at the end of this loop turn, once. */
void link_beat(struct link *link);
/* Says goodbye; from now on only `left` is called, soon. False: not connected. */
bool link_leave(struct link *link);
/* Closes; no callback is called any more. Before loop_done, which frees the memory. */
void link_free(struct link *link);

/* The pause before dial number `failures` + 1, in [1, bound]: exported for its test. */
int64_t link_pause_ms(int failures, size_t urls, int64_t heartbeat_ms, struct rnd *rnd);

/* RPCs to the server over the link: each is answered once, by the server, by its deadline or by the
 * end of the connection. One loop. */

#define LINK_CALLS_ID_FIRST (1LL << 40) /* lower ids are the outbox's */

struct link_calls;

/* `free` of a part that its owner removes before loop_done. */
void link_part_left(struct loop_part *part);

/* Owned by the caller; must stay until `done`. */
struct link_call {
    const char *path;
    struct str body; /* a JSON object; at == NULL: {}. Copied. */
    int64_t timeout_ms;
    void (*done)(struct link_call *call); /* never called inside link_calls_send */
    /* results */
    /* ERR_OK, the server's error, ERR_TIMEOUT, or ERR_CLOSED: the connection ended first. After the
     * last two the server may or may not have executed the call. */
    enum err err;
    const struct json *reply; /* the reply's body if ERR_OK, else the whole refusal; valid until
                               * done returns; NULL: none */
    /* private to link.c */
    int64_t id, late_ms;
    TAILQ_ENTRY(link_call) entry;
};

struct link_calls {
    struct loop *loop;
    bool (*send)(struct link_calls *calls, struct str text);
    void *user;
    TAILQ_HEAD(link_call_list, link_call) sent; /* not answered yet, in the order they were sent */
    int64_t id;
    struct buf text;
    struct loop_part part;
};

/* `send` sends a text to the server; false: not connected. */
struct link_calls *link_calls_new(struct loop *loop,
                                  bool (*send)(struct link_calls *calls, struct str text),
                                  void *user);
void link_calls_send(struct link_calls *calls, struct link_call *call);
bool link_calls_reply(struct link_calls *calls,
                      const struct json *body); /* false: not one of ours */
void link_calls_down(struct link_calls *calls); /* the connection ended */
void link_calls_free(struct link_calls *calls); /* does not call `done`; before loop_done */

/* Growing pauses: each failure waits longer, and never in step with others. */

/* min_ms doubled `times` times, at most max_ms. */
int64_t backoff_bound_ms(int64_t times, int64_t min_ms, int64_t max_ms);
/* After that many failures in a row (at least 1): between half of the bound and the bound. */
int64_t backoff_ms(int64_t failures, int64_t min_ms, int64_t max_ms, struct rnd *rnd);

#endif
