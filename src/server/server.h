/* `berth server` and `berth dev`: threads, listeners, signals; and what the handlers share. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <semaphore.h>
#include <sys/resource.h>

#include "base/digest.h"
#include "io/client.h"
#include "server/auth.h"
#include "server/session_cache.h"
#include "server/settings.h"
#include "server/turns.h"

/* Limits the request lines in the log, see route.c. */
struct request_log {
    int64_t second;
    int lines; /* in that second */
    int64_t left_out;
};

/* What one loop thread owns. The keeper's has no listener. */
struct worker {
    struct server *server;
    struct loop loop;
    struct msg hello, drain; /* the loop's first message, and the one that ends its work */
    _Atomic bool drains;     /* `drain` has run */
    struct http_server http;
    struct sched_loop *sched;
    struct client *client; /* pushes and callbacks */
    struct hub *hub;       /* nodes reached through this loop */
    struct waiters *waiters;
    struct submit_sockets *submit_sockets; /* of clients, see submit_socket.h */
    struct events *events;
    struct session_cache *session_cache; /* read through this loop */
    struct stats *stats;                 /* of the loops that serve */
    struct auth *auth;                   /* its reference to the current tokens, see token_file.h */
    int64_t auth_number;                 /* goes up when they change, or one of them expires */
    struct logins *logins;
    struct refusals *refusals;
    struct request_log request_log;
    struct turns turns;          /* for long answers */
    struct buf answer;           /* scratch, see call_buf() */
    int64_t usage_asks;          /* in progress, see members.c */
    bool serves;                 /* false: the keeper's */
    _Atomic int64_t connections; /* as of the last tick, for others to read */
    int64_t announced_seq;       /* of the member list, as last announced */
    int64_t told_news;           /* of deployments, as last announced */
    _Atomic int64_t ticked_ms;   /* its last tick, monotonic: the loop is not stuck */
};

enum {
    SERVER_LOOPS_MAX = 64,             /* of the setting `loops` */
    SERVER_PUSH_CONNECTIONS_MAX = 256, /* of a loop's client */
};

struct server {
    _Atomic(struct settings *) settings; /* a reload replaces them, see signals.h */
    struct settings_source *source;      /* the main thread's: linked to the earlier ones */
    int argc;                            /* to read them again */
    char **argv;
    struct sched sched;
    struct store *store;
    struct deploys *deploys; /* NULL: no database for them */
    _Atomic int64_t deploy_news;
    bool database_down;      /* the keeper's: as last logged */
    bool database_forgets;   /* likewise */
    struct members *members; /* the keeper's */
    _Atomic int64_t terminal_seq;
    struct worker *workers; /* loop_count of them, then the keeper's */
    int loop_count;
    struct session_marks session_marks;
    struct callbacks *callbacks; /* the keeper's */
    struct archive *archive;     /* the keeper's */
    struct peers *peers;         /* the keeper's; NULL: the store is not shared */
    struct http_limits limits;   /* from the settings, with room for the largest route, and no more
                                    connections than descriptors allow */
    struct rlimit descriptors;   /* the limit we were started with */
    int port;
    sem_t loaded; /* posted when the first snapshot is live on every loop */
    _Atomic bool draining;
    int64_t started_ms;
    struct inbox errands; /* of the main thread: what loops ask it to do first, see token_file.h */
    struct inbox notes;   /* likewise: audit work, which can wait */
    struct token_file *token_file; /* the main thread's, like all that follows */
    struct auth *auth;             /* the current tokens */
    _Atomic bool clear_warned;     /* logged that tokens cross a network unencrypted */
    _Atomic bool guarded;          /* there are tokens; any thread may read it */
    struct token dev_token;        /* for the agent of `berth dev`; unnamed: there is none */
    char dev_secret[DIGEST_HEX + 1];
    struct audit *audit;
};

static inline struct worker *server_keeper(struct server *server)
{
    return &server->workers[server->loop_count];
}

/* The worker whose loop this is. */
static inline struct worker *worker_of(struct loop *loop)
{
    return loop->owner;
}

/* argv without the program's name and the verb. Returns the exit code. */
int server_main(int argc, char **argv, bool dev);
int server_config_main(int argc, char **argv);
int server_store_main(int argc, char **argv); /* `berth store dump` */
/* Opens log_file, or reopens it; without one the log stays as it is. */
enum err server_open_log(const struct settings *settings, struct problem *why);

/* Something the main thread runs on a loop and waits for: opening a listener, handing over tokens.
 * Only while the loops run. */

struct loop_call {
    struct worker *worker;
    void (*run)(struct loop_call *loop_call); /* on the worker's loop */
    /* private to server.c */
    struct msg msg;
    sem_t over;
};

void loop_call_run(struct loop_call *loop_call);

#endif
