/* Preloaded into a program: its wall clock is PASTCLOCK_S seconds behind, so that what it writes
 * down is old when another one reads it. Clocks that measure are left alone. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now)
{
    const char *behind_s = getenv("PASTCLOCK_S");
    int failed = (int)syscall(SYS_clock_gettime, id, now);

    if (!failed && behind_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec -= atol(behind_s);
    return failed;
}
