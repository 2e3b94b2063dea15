/* Load for measuring a running server: no-op jobs over HTTP, no-op nodes on WebSocket, idle nodes;
 * and the same jobs for the queue servers that are measured beside it (peer.h). Plain sockets and
 * epoll instead of io/: the generator must cost little and must not share the code that it
 * measures. Stamps are CLOCK_MONOTONIC in ns, so those of two processes compare. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/json.h"

enum {
    BENCH_NODES = 16,     /* worker connections, of us a node each, unless there are sessions */
    BENCH_CONNS_MAX = 64, /* HTTP connections of the submitter, likewise */
    BENCH_SESSIONS_MAX = 400,
    BENCH_STALL_MS = 15000, /* nothing happened for so long: something is broken */
    BENCH_READ_BYTES = 65536,
    BENCH_NAMES = 64,          /* of sessions, unless each has a node of its own */
    BENCH_NODE_SLOTS = 1000000 /* room for all: the server must never find a node full */
};

/* A pool of our own, so that jobs meet no other node and nodes no other job. */
#define BENCH_SRC "xa"
#define BENCH_TGT "xb"

struct bench_target {
    struct sockaddr_storage addr;
    socklen_t addr_len;
    char host[96]; /* for the Host header */
};

int64_t bench_now_ns(void);
/* "load: TEXT" on stderr; returns what main() returns then. */
__attribute__((format(printf, 1, 2))) int bench_fail(const char *fmt, ...);
/* The same for a wrong command line. */
__attribute__((format(printf, 1, 2))) int bench_misuse(const char *fmt, ...);

/* ---- connections (connection.c) */
struct bench_conn {
    int fd; /* -1: closed */
    const struct bench_target *target;
    int epoll;
    uint32_t index;
    int stage; /* the owner's */
    bool out_armed;
    struct buf in;
    struct buf out;
};

enum err bench_conn_open(struct bench_conn *conn, const struct bench_target *target, int epoll,
                         uint32_t index);
bool bench_conn_read(struct bench_conn *conn);  /* false: the peer is gone */
bool bench_conn_flush(struct bench_conn *conn); /* false: the peer is gone */
void bench_conn_close(struct bench_conn *conn);
/* A whole HTTP answer at the front of `in`: its status and how long it is; 0: not whole yet, -1:
 * not an answer with a Content-Length. */
int bench_http_answer(struct str in, size_t *ret_len);

/* ---- WebSocket frames of a client (connection.c) */
enum { BENCH_WS_TEXT = 1, BENCH_WS_CLOSE = 8, BENCH_WS_PING = 9, BENCH_WS_PONG = 10 };

void bench_ws_hello(struct buf *out, const struct bench_target *target, const char *path);
/* Appends a frame. The mask is all zero, which is legal and saves the generator, not the server, a
 * pass over the bytes. */
void bench_ws_put(struct buf *out, int opcode, struct str payload);
/* The next frame at *at of `in`: 1 and its payload, 0 when it is not whole yet, -1 when broken. */
int bench_ws_next(struct str in, size_t *at, int *ret_opcode, struct str *ret_payload);

/* ---- what a server is spoken to with; a row for each */
struct peer;
struct bench_load;
struct bench_work;

/* Reads the next message at the front of `in`, and may answer into conn->out. *ret_used stays 0
 * when it is not whole yet. */
typedef enum err peer_take(struct peer *peer, struct bench_conn *conn, struct str in,
                           size_t *ret_used);

struct bench_protocol {
    const char *name;
    enum err (*submit_all)(struct bench_load *load);
    void (*work)(const struct bench_work *work);                  /* never returns */
    void (*forget)(const struct bench_target *target, int nodes); /* NULL: nothing is left */
    bool together;  /* its nodes take jobs and receipts together */
    bool told_ends; /* the submitter is told of ends, and counts them instead of the worker */
    /* Only what peer.c drives. A greeting is what a connection says first. */
    int submit_conns;
    void (*submit_greet)(struct bench_conn *conn);
    void (*submit)(struct bench_conn *conn, int number);
    peer_take *submit_take;
    void (*work_greet)(struct bench_conn *conn);
    peer_take *work_take;
};

extern const struct bench_protocol gearman_protocol, beanstalkd_protocol, nats_protocol,
    jetstream_protocol, socket_protocol, socket_ends_protocol, socket_together_protocol;

/* ---- what the submitter and the worker process share */
struct bench_slot {
    int64_t start_ns; /* the ACK was accepted: the node may start; of a peer: the worker has it */
    int64_t done_ns;  /* the store said done, or the submitter was told */
};

struct bench_shared {
    atomic_int ready;          /* nodes the server has welcomed */
    atomic_int done;           /* jobs whose end was accepted */
    atomic_int refused;        /* messages of the nodes that were refused */
    atomic_llong last_ns;      /* stamp of the newest end */
    char trouble[256];         /* why the worker gave up; written before it exits */
    struct bench_slot slots[]; /* by number of the job */
};

/* What the worker process is told. */
struct bench_work {
    const struct bench_protocol *protocol;
    const struct bench_target *target;
    struct bench_shared *shared;
    int jobs;
    int nodes; /* connections, a node each */
    int wake;  /* eventfd, written after each batch of ends */
};

/* The worker process of our own protocol. */
_Noreturn void bench_worker_main(const struct bench_work *work);
/* Its nodes are gone for good: they should not be in anybody's list. Failing is no failure. */
void bench_forget_nodes(const struct bench_target *target, int nodes);

/* ---- the submitter (submitter.c) */
struct bench_load {
    const struct bench_protocol *protocol;
    const struct bench_target *target;
    struct bench_shared *shared;
    int jobs;
    int conc;           /* outstanding at most */
    int64_t period_ns;  /* 0: as fast as `conc` allows; else one each period */
    int sessions;       /* 0: none. Job n is one of session n % sessions, which has a connection and
                           a node of its own, and one request at a time */
    int wake;           /* eventfd */
    int worker_life;    /* readable when the worker process is gone */
    int64_t *submit_ns; /* by number of the job; with sessions: when it was due */
    /* results */
    int64_t begun_ns;
    int refused;
    char refusal[256]; /* the first refusal as the server put it */
};

/* Submits all jobs and waits for their ends. ERR_OK also when some were refused; else said on err.
 */
enum err bench_load_run(struct bench_load *load);

/* ---- nodes that are connected and nothing else (idle.c) */
struct bench_idle {
    int count;
    int slots;        /* of each */
    int64_t rate;     /* heartbeats a second, all together; a number on standard input changes it */
    const char *pair; /* "SRC:TGT": what they translate */
    double secs;      /* 0: until standard input ends */
};

/* Returns what main() returns. */
int bench_idle_run(const struct bench_idle *options, const struct bench_target *target);

/* The JSON fields of a registration, as bench nodes send it in `hello`. */
void bench_node_fields(struct buf *out, const char *prefix, uint32_t index, int slots,
                       const char *src, const char *tgt);

#endif
