/* Real Redis servers for tests: started on free loopback ports with a directory of their own, and
 * ended by their pid. */
#ifndef TESTS_STORE_REDIS_RIG_H
#define TESTS_STORE_REDIS_RIG_H

#include "rig.h"

#include <sys/types.h>

enum { REDIS_SERVERS_MAX = 8, REDIS_OPTIONS_MAX = 24 };

struct redis_server {
    pid_t pid; /* 0: not running */
    int port;
    int watches; /* a Sentinel: the port of the master it calls "m"; 0: a server */
    char dir[80];
    const char *options[REDIS_OPTIONS_MAX]; /* further ones, up to a NULL */
};

/* Starts it on a free port (or the one it had) and waits until it answers. Aborts if it does not.
 */
void redis_server_start(struct redis_server *server);
void redis_server_kill(struct redis_server *server); /* at once; its directory stays */
void redis_server_signal(struct redis_server *server, int signal);
void redis_server_remove(struct redis_server *server); /* ends it and all it wrote */
bool redis_available(void);                            /* is there a redis-server to be started? */

/* One server and a store in it, by Redis' own time: what most tests rest on. */
struct redis_fixture {
    struct redis_server server;
    struct rig rig;
    char url[64];
};

/* Starts both and makes the node n1 known; the options of the server are set before. */
enum err redis_fixture_open(struct redis_fixture *fixture, int timeout_ms, int32_t slots);
int redis_fixture_teardown(void **state); /* of cmocka: ends both and frees the fixture */

/* One command over a connection of its own; the answer as text (of an array: its elements, one a
 * line). The text lives until the thread's next call. Aborts when nobody answers. */
const char *redis_say(int port, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with the words of the command, which may be empty. */
const char *redis_say_words(int port, int count, const char **words);

/* The clock of stores that share a Redis: a call on its way must not bring a time that is over to
 * what another has done since. From `begin` on each of their next calls waits before it begins; who
 * uses them sends one to each. When all wait, `jump` lets time pass, and then them. */
int64_t redis_meeting_ms(void);
void redis_meeting_begin(void);
void redis_meeting_jump(int count, int64_t ms);

#endif
