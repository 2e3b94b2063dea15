/* The server's end of agents' connections, on a loop of its own that the test runs together with
 * the agent's: records what arrives, and sends what the test wants. */
#ifndef TESTS_AGENT_FAKE_SERVER_H
#define TESTS_AGENT_FAKE_SERVER_H

#include "io/ws.h"

struct fake_server {
    struct loop loop;
    struct http_server http;
    struct ws *ws; /* the newest connection; NULL: none */
    int connects, closes, code;
    int hellos, beats, others;
    bool welcome;                  /* answer hellos (default); else the test does */
    int64_t heartbeat_ms;          /* sent in the welcome */
    int refuse;                    /* status that refuses the handshake; 0: accept with 101 */
    struct buf hello, beat, other; /* the last of each */
    char authorization[128];
};

void fake_server_open(struct fake_server *server);
/* One turn of both loops; waits until either has something to do. */
void fake_server_turn(struct fake_server *server, struct loop *other);
int fake_server_port(const struct fake_server *server);
void fake_server_say(struct fake_server *server, const char *text);
/* Accepts no more connections; open ones stay. */
void fake_server_stop(struct fake_server *server);
void fake_server_done(struct fake_server *server);

/* Runs both loops until `condition` holds; fails the test if that takes too long. */
#define await_both(server, other, condition)                                                       \
    do {                                                                                           \
        int64_t until_ = clock_mono_ms() + UNIT_PATIENCE_MS;                                       \
        while (!(condition)) {                                                                     \
            if (clock_mono_ms() > until_)                                                          \
                fail_msg("waited in vain for %s", #condition);                                     \
            fake_server_turn((server), (other));                                                   \
        }                                                                                          \
    } while (0)

#endif
