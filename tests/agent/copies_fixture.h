/* Copies on fake runs that do what the test says, with a clock that moves only on request. */
#ifndef TESTS_AGENT_COPIES_FIXTURE_H
#define TESTS_AGENT_COPIES_FIXTURE_H

#include "agent/copies.h"
#include "fake_run.h"

struct fixture {
    struct loop loop;
    struct runs *runs;
    struct copies *copies;
    struct config config;
    char dir[64];
    int changes;
    int lives;    /* number of agents so far */
    int licences; /* licences that this node has */
    int kept;     /* licences kept for copies */
    struct arena arena;
};

void fixture_make(struct fixture *fixture);  /* before fixture_open */
void fixture_open(struct fixture *fixture);  /* starts an agent */
void fixture_close(struct fixture *fixture); /* ends it */
void fixture_remove(struct fixture *fixture);
int fixture_teardown(void **state); /* for an open fixture on the heap */

void fixture_tick(struct fixture *fixture, int64_t ms); /* lets `ms` pass */
const struct json *fixture_json(struct fixture *fixture, struct str text);
/* A round with these rows (a JSON array). */
void fixture_round(struct fixture *fixture, const char *rows);
/* The newest run of a deployment in any state; NULL: none. */
struct fake_run *fixture_run(const char *id);
int fixture_alive(const char *id); /* number of its runs that have not ended */

#endif
