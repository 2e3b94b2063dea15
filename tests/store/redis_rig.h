/* Real Redis servers for tests, each on a free loopback port with a directory of its own, stopped
 * by pid. */
#ifndef TESTS_STORE_REDIS_RIG_H
#define TESTS_STORE_REDIS_RIG_H

#include "rig.h"

#include <sys/types.h>

enum { REDIS_SERVERS_MAX = 8, REDIS_OPTIONS_MAX = 24 };

struct redis_server {
    pid_t pid; /* 0: not running */
    int port;
    int watches; /* for a Sentinel: the port of its master "m"; 0: a plain server */
    char dir[80];
    const char *options[REDIS_OPTIONS_MAX]; /* further command-line options, up to a NULL */
};

/* Starts the server on a free port (or on the one it had) and waits until it answers; aborts if it
 * does not. */
void redis_server_start(struct redis_server *server);
void redis_server_kill(struct redis_server *server); /* at once; its directory stays */
void redis_server_signal(struct redis_server *server, int signal);
void redis_server_remove(struct redis_server *server); /* kills it and removes its directory */
bool redis_available(void);                            /* is a redis-server installed? */

/* One server with a store on Redis' own clock, which most tests use. */
struct redis_fixture {
    struct redis_server server;
    struct rig rig;
    char url[64];
};

/* Starts both and registers the node n1; options of the server must be set before. */
enum err redis_fixture_open(struct redis_fixture *fixture, int timeout_ms, int32_t slots);
int redis_fixture_teardown(void **state); /* for cmocka: stops both and frees the fixture */

/* Sends one command on a connection of its own and returns the reply as text (an array has one
 * element a line). The text lives until the thread's next call. Aborts if there is no reply. */
const char *redis_say(int port, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, with the words of the command in an array; words may be empty. */
const char *redis_say_words(int port, int count, const char **words);
/* What the store finds as the formats that its instances write and read, see store/record.h. */
void redis_set_format(int port, const char *text);
/* From now on the newest format is written, as after the first 15 s of a store. */
void redis_newest_format(int port);

/* The clock of several stores on one Redis. Time must not pass while a call is under way, or the
 * call would bring an old time to what another store has done since. After `begin` each store's
 * next call waits in redis_meeting_ms(), so the test sends one call to each. When `count` of them
 * wait, `jump` moves the clock and releases them. */
int64_t redis_meeting_ms(void);
void redis_meeting_begin(void);
void redis_meeting_jump(int count, int64_t ms);

#endif
