/* Signals are waited for, never handled: no code of ours runs inside a handler. */
#include "server/signals.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>

#include "io/notify.h"
#include "server/reload.h"
#include "server/token_file.h"

/* The signals the main thread waits for; all others have them blocked. */
static void own_signals(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGTERM);
    sigaddset(ret_set, SIGINT);
    sigaddset(ret_set, SIGHUP);
    sigaddset(ret_set, SIGCHLD);
    sigaddset(ret_set, SIGUSR1); /* a loop asks for something, see token_file.h */
}

void signals_block(void)
{
    sigset_t set;

    own_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* A loop ticks ten times a second; one that did not for so long is stuck. */
static bool all_alive(struct server *server, int64_t patience_ms)
{
    int64_t now_ms = clock_mono_ms();

    for (int i = 0; i <= server->loop_count; i++)
        if (now_ms - atomic_load(&server->workers[i].ticked_ms) > patience_ms)
            return false;
    return true;
}

static int wait_for(const sigset_t *set, int64_t most_ms)
{
    struct timespec most = {.tv_sec = most_ms / 1000, .tv_nsec = most_ms % 1000 * 1000000};
    int got = sigtimedwait(set, NULL, &most);

    assert(got > 0 || errno == EAGAIN || errno == EINTR);
    return got > 0 ? got : 0;
}

/* The next signal, or 0 when it is time to look after things. Of several the kernel gives the one
 * with the lowest number, and loops that post all the time send SIGUSR1 all the time: what people
 * and children send is asked for first. */
static int next_signal(const sigset_t *set, int64_t most_ms)
{
    sigset_t others = *set;
    int got;

    sigdelset(&others, SIGUSR1);
    got = wait_for(&others, 0);
    return got ? got : wait_for(set, most_ms);
}

int signals_wait(struct server *server, struct dev *agent)
{
    int64_t watchdog_ms = notify_watchdog_ms();
    int64_t every_ms =
        watchdog_ms > 0 && watchdog_ms / 3 < WARDEN_LOOK_MS ? watchdog_ms / 3 : WARDEN_LOOK_MS;
    bool more = false; /* asked for by the loops, and not done yet */
    sigset_t set;

    own_signals(&set);
    for (;;) {
        int got = next_signal(&set, more ? 0 : every_ms);

        if (got == SIGTERM || got == SIGINT)
            return got;
        if (got == SIGCHLD)
            dev_revive(agent, server);
        if (got == SIGHUP)
            reload_run(server);
        more = warden_run(server);
        warden_look(server);
        if (watchdog_ms > 0 && all_alive(server, watchdog_ms / 2))
            notify_send("WATCHDOG=1");
    }
}
