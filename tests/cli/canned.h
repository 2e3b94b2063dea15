/* A server that gives prepared answers in order, and keeps the requests. */
#ifndef TESTS_CLI_CANNED_H
#define TESTS_CLI_CANNED_H

#include <pthread.h>

enum { CANNED_MAX = 8, CANNED_BYTES = 8192 };

struct canned {
    int fd;
    int port;
    pthread_t thread;
    int answer_count;
    const char *answers[CANNED_MAX]; /* "STATUS BODY"; "" closes without an answer */
    int asked_count;
    char asked[CANNED_MAX][CANNED_BYTES]; /* complete requests; read them after canned_stop */
};

void canned_start(struct canned *canned, const char *const *answers);
void canned_stop(struct canned *canned); /* also if answers are left */

#endif
