/* One thread and one request for each connection: the command line needs no more. */
#include "canned.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Reads until the body is as long as Content-Length. */
static void read_request(int fd, char *to)
{
    size_t have = 0, want = 0;

    for (;;) {
        ssize_t got = read(fd, to + have, CANNED_BYTES - 1 - have);
        char *end, *length;

        if (got <= 0)
            return;
        have += (size_t)got;
        to[have] = 0;
        end = strstr(to, "\r\n\r\n");
        if (!end)
            continue;
        length = strcasestr(to, "\r\nContent-Length:");
        want = (size_t)(end - to) + 4 + (length ? (size_t)atoi(length + 17) : 0);
        if (have >= want)
            return;
    }
}

static void *serve(void *arg)
{
    struct canned *canned = arg;

    for (int i = 0; i < canned->answer_count; i++) {
        int fd = accept(canned->fd, NULL, NULL);
        const char *answer = canned->answers[i];
        char text[CANNED_BYTES];
        int len;

        if (fd < 0)
            break; /* canned_stop */
        read_request(fd, canned->asked[i]);
        canned->asked_count++;
        if (answer[0]) {
            len = snprintf(text, sizeof text,
                           "HTTP/1.1 %.3s X\r\nContent-Type: application/json\r\n"
                           "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
                           answer, strlen(answer + 4), answer + 4);
            assert(write(fd, text, (size_t)len) == len);
        }
        close(fd);
    }
    return NULL;
}

void canned_start(struct canned *canned, const char *const *answers)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_len = sizeof addr;

    memset(canned, 0, sizeof *canned);
    while (canned->answer_count < CANNED_MAX && answers[canned->answer_count]) {
        canned->answers[canned->answer_count] = answers[canned->answer_count];
        canned->answer_count++;
    }
    canned->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(bind(canned->fd, (struct sockaddr *)&addr, sizeof addr) == 0);
    assert(listen(canned->fd, 8) == 0);
    assert(getsockname(canned->fd, (struct sockaddr *)&addr, &addr_len) == 0);
    canned->port = ntohs(addr.sin_port);
    assert(pthread_create(&canned->thread, NULL, serve, canned) == 0);
}

void canned_stop(struct canned *canned)
{
    shutdown(canned->fd, SHUT_RDWR);
    pthread_join(canned->thread, NULL);
    close(canned->fd);
}
