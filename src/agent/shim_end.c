/* What an end means: from the kernel's words about the main process, and from why we ended it, to
 * the exit record. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "agent/shim.h"
#include "base/clock.h"

__attribute__((format(printf, 3, 4))) static void tell(struct run_exit *exit, const char *reason,
                                                       const char *fmt, ...)
{
    va_list args;

    str_copy(str_of(reason), exit->reason, sizeof exit->reason);
    assert(exit->reason[0]);
    va_start(args, fmt);
    vsnprintf(exit->detail, sizeof exit->detail, fmt, args);
    va_end(args);
}

void shim_end_judge(const struct shim_end *end, struct run_exit *exit)
{
    const char *reason = end->stop_reason;
    int status = end->status;

    assert(WIFEXITED(status) || WIFSIGNALED(status));
    exit->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    exit->signal = WIFSIGNALED(status) ? WTERMSIG(status) : -1;
    if (strcmp(reason, "TIMEOUT") == 0)
        tell(exit, reason, "It ran longer than %" PRId64 " ms.", end->spec->timeout_ms);
    else if (strcmp(reason, "DEADLINE") == 0)
        tell(exit, reason, "Its lease was not renewed in time: another node may start it now.");
    else if (strcmp(reason, "DISK_LIMIT") == 0)
        tell(exit, reason, "It has more than its limit of %" PRId64 " bytes in its directory.",
             end->spec->disk_bytes_max);
    else if (reason[0])
        tell(exit, reason, end->killed ? "It was stopped with KILL." : "It was stopped with TERM.");
    else if (end->oom_kills > 0 && exit->exit_code != 0)
        tell(exit, "OOM", "It needed more than its limit of %" PRId64 " bytes of memory.",
             end->spec->memory_bytes_max ? end->spec->memory_bytes_max
                                         : end->spec->memory_bytes_spare);
    else if (exit->signal > 0)
        tell(exit, "SIGNALLED", "Signal %d (%s) ended it.", exit->signal, strsignal(exit->signal));
    else
        tell(exit, "EXITED", "It exited with code %d.%s", exit->exit_code,
             end->oom_kills > 0 ? " A process of it was killed for lack of memory." : "");
}

void shim_end_unstarted(const struct problem *why, struct run_exit *exit)
{
    *exit = (struct run_exit){.exit_code = -1, .signal = -1, .ended_ms = clock_wall_ms()};
    tell(exit, why->err == ERR_TOO_LATE ? "DEADLINE" : "START_FAILED", "%s", why->detail);
}

static int64_t ms_of(struct timeval time)
{
    return (int64_t)time.tv_sec * 1000 + time.tv_usec / 1000;
}

void shim_end_figures(const struct runlog *log, struct buf *tail, struct run_exit *exit)
{
    struct rusage used = {0};

    getrusage(RUSAGE_CHILDREN, &used);
    exit->ended_ms = clock_wall_ms();
    exit->user_ms = ms_of(used.ru_utime);
    exit->system_ms = ms_of(used.ru_stime);
    exit->rss_kb_max = used.ru_maxrss;
    exit->output_bytes = log->total;
    exit->output_dropped = log->dropped;
    runlog_tail(log, tail);
    exit->tail = buf_view(tail);
    assert(exit->output_dropped <= exit->output_bytes);
}
