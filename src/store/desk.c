/* Sleeping and waking without a lock. The poster exchanges `asleep` for 0 after its message is in;
 * the sleeper exchanges it for 1 before it looks a last time. Whichever exchange comes second sees
 * the other side's write, so a message is never slept over. */
#include "store/desk.h"

#include "base/str.h"

#include <assert.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wake(struct inbox *inbox)
{
    struct desk *desk = container_of(inbox, struct desk, inbox);

    if (atomic_exchange(&desk->asleep, 0))
        syscall(SYS_futex, &desk->asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void desk_init(struct desk *desk)
{
    atomic_init(&desk->inbox.head, NULL);
    atomic_init(&desk->asleep, 0);
    desk->inbox.wake = wake;
}

bool desk_start(struct desk *desk, const char *name, void *(*work)(void *), void *arg)
{
    sigset_t all;
    sigset_t before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&desk->thread, NULL, work, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        pthread_setname_np(desk->thread, name);
    return !failed;
}

void desk_join(struct desk *desk)
{
    int failed = pthread_join(desk->thread, NULL);

    assert(!failed);
    (void)failed;
}

void desk_wait(struct desk *desk, int64_t timeout_ms)
{
    struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000};

    assert(timeout_ms >= 0);
    if (atomic_load_explicit(&desk->inbox.head, memory_order_relaxed))
        return;
    atomic_exchange(&desk->asleep, 1);
    if (!atomic_load(&desk->inbox.head))
        syscall(SYS_futex, &desk->asleep, FUTEX_WAIT_PRIVATE, 1, &timeout, NULL, 0);
    atomic_store(&desk->asleep, 0);
}
