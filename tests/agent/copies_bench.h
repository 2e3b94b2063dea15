/* Copies over runs that do what the test says, and time that passes when the test says. */
#ifndef TESTS_AGENT_COPIES_BENCH_H
#define TESTS_AGENT_COPIES_BENCH_H

#include "agent/copies.h"
#include "fake_run.h"

struct bench {
    struct loop loop;
    struct runs *runs;
    struct copies *copies;
    struct config config;
    char dir[64];
    int changes;
    int lives; /* of an agent */
    struct arena arena;
};

void bench_make(struct bench *bench);  /* before bench_open */
void bench_open(struct bench *bench);  /* an agent's life begins, */
void bench_close(struct bench *bench); /* and ends */
void bench_remove(struct bench *bench);

void bench_tick(struct bench *bench, int64_t ms); /* so much later */
const struct json *bench_json(struct bench *bench, struct str text);
/* A round of these rows, an array. */
void bench_round(struct bench *bench, const char *rows);
/* The newest run of a deployment, however it is; NULL: none. */
struct fake_run *bench_run(const char *id);
int bench_alive(const char *id); /* how many of its runs have not ended */

#endif
