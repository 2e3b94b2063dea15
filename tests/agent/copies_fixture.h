/* Copies over runs that do what the test says, and time that passes when the test says. */
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
    int lives;    /* of an agent */
    int licences; /* this node has, */
    int kept;     /* and so many of them are kept */
    struct arena arena;
};

void fixture_make(struct fixture *fixture);  /* before fixture_open */
void fixture_open(struct fixture *fixture);  /* an agent's life begins, */
void fixture_close(struct fixture *fixture); /* and ends */
void fixture_remove(struct fixture *fixture);
int fixture_teardown(void **state); /* of one that is open and on the heap */

void fixture_tick(struct fixture *fixture, int64_t ms); /* so much later */
const struct json *fixture_json(struct fixture *fixture, struct str text);
/* A round of these rows, an array. */
void fixture_round(struct fixture *fixture, const char *rows);
/* The newest run of a deployment, however it is; NULL: none. */
struct fake_run *fixture_run(const char *id);
int fixture_alive(const char *id); /* how many of its runs have not ended */

#endif
