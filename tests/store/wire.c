/* Pieces wait in a list until their delay is over. */
#include "wire.h"

#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE_BYTES = 65536 };

struct wire_piece {
    struct wire_piece *next;
    int64_t due_ms;
    size_t len;
    char bytes[];
};

static struct sockaddr_in at_port(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)port)};
}

static void hang_up(struct wire_end *end)
{
    struct wire_way *ways[] = {&end->out, &end->back};

    if (end->out.from < 0)
        return;
    close(end->out.from);
    close(end->out.to);
    for (int i = 0; i < 2; i++)
        for (struct wire_piece *next, *piece = ways[i]->first; piece; piece = next) {
            next = piece->next;
            free(piece);
        }
    *end = (struct wire_end){.out.from = -1};
}

static void accept_one(struct long_wire *wire)
{
    struct sockaddr_in to = at_port(wire->to);
    int near = accept(wire->listener, NULL, NULL);
    int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    struct wire_end *end = wire->ends;

    while (end < wire->ends + WIRE_ENDS_MAX && end->out.from >= 0)
        end++;
    if (near < 0 || far < 0 || end == wire->ends + WIRE_ENDS_MAX)
        abort();
    if (connect(far, (struct sockaddr *)&to, sizeof to)) {
        close(near);
        close(far);
        return;
    }
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *end = (struct wire_end){
        .out = {.from = near, .to = far}, .back = {.from = far, .to = near}, .answered = true};
}

static void note_sent(struct long_wire *wire, struct wire_end *end, const struct wire_piece *piece)
{
    if (memmem(piece->bytes, piece->len, wire->mark, strlen(wire->mark))) {
        atomic_fetch_add(&wire->said, 1);
        end->marked = true;
    }
    if (end->marked && end->answered)
        atomic_fetch_add(&wire->trips, 1);
    end->answered = false;
}

/* False: that side hung up. */
static bool take_in(struct long_wire *wire, struct wire_end *end, struct wire_way *way)
{
    struct wire_piece *piece = malloc(sizeof *piece + PIECE_BYTES);
    ssize_t got = recv(way->from, piece->bytes, PIECE_BYTES, 0);

    if (got <= 0) {
        free(piece);
        return false;
    }
    piece->next = NULL;
    piece->len = (size_t)got;
    piece->due_ms = clock_mono_ms() + wire->delay_ms;
    if (way == &end->out)
        note_sent(wire, end, piece);
    *(way->first ? &way->last->next : &way->first) = piece;
    way->last = piece;
    return true;
}

static bool give_out(struct wire_end *end, struct wire_way *way)
{
    for (struct wire_piece *piece; (piece = way->first) && piece->due_ms <= clock_mono_ms();) {
        size_t sent = 0;

        while (sent < piece->len) {
            ssize_t put = send(way->to, piece->bytes + sent, piece->len - sent, MSG_NOSIGNAL);

            if (put <= 0)
                return false;
            sent += (size_t)put;
        }
        end->answered |= way == &end->back;
        way->first = piece->next;
        free(piece);
    }
    return true;
}

static void *run(void *arg)
{
    struct long_wire *wire = arg;

    while (!atomic_load(&wire->over)) {
        struct pollfd fds[1 + 2 * WIRE_ENDS_MAX];

        fds[0] = (struct pollfd){.fd = wire->listener, .events = POLLIN};
        for (int i = 0; i < WIRE_ENDS_MAX; i++) {
            struct wire_end *end = &wire->ends[i];

            fds[1 + 2 * i] = (struct pollfd){.fd = end->out.from, .events = POLLIN};
            fds[2 + 2 * i] =
                (struct pollfd){.fd = end->out.from < 0 ? -1 : end->back.from, .events = POLLIN};
        }
        poll(fds, 1 + 2 * WIRE_ENDS_MAX, 1);
        for (int i = 0; i < WIRE_ENDS_MAX; i++) {
            struct wire_end *end = &wire->ends[i];
            bool held = end->marked && atomic_load(&wire->held);

            if (end->out.from >= 0 &&
                ((fds[1 + 2 * i].revents && !take_in(wire, end, &end->out)) ||
                 (fds[2 + 2 * i].revents && !take_in(wire, end, &end->back)) ||
                 !give_out(end, &end->out) || (!held && !give_out(end, &end->back))))
                hang_up(end);
        }
        if (fds[0].revents)
            accept_one(wire);
    }
    return NULL;
}

void wire_open(struct long_wire *wire)
{
    struct sockaddr_in at = at_port(0);
    socklen_t size = sizeof at;

    for (int i = 0; i < WIRE_ENDS_MAX; i++)
        wire->ends[i].out.from = -1;
    wire->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (wire->listener < 0 || bind(wire->listener, (struct sockaddr *)&at, sizeof at) ||
        getsockname(wire->listener, (struct sockaddr *)&at, &size) || listen(wire->listener, 16) ||
        pthread_create(&wire->thread, NULL, run, wire))
        abort();
    wire->port = ntohs(at.sin_port);
}

void wire_close(struct long_wire *wire)
{
    atomic_store(&wire->over, true);
    pthread_join(wire->thread, NULL);
    for (int i = 0; i < WIRE_ENDS_MAX; i++)
        hang_up(&wire->ends[i]);
    close(wire->listener);
}
