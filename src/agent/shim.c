/* The life of one run in its shim: output, orders from the agent, timers and child processes, all
 * handled in one loop around one poll. At the end it writes the exit record from the main process's
 * wait status and the reason we ended it. `berth shim`: a single shim started by hand, or an
 * agent's spawner. */
#include "agent/shim.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/dir_tree.h"
#include "agent/process_tree.h"
#include "agent/runlog.h"
#include "agent/spawner.h"
#include "base/clock.h"

/* --- the exit record --- */

__attribute__((format(printf, 3, 4))) static void say_end(struct run_exit *exit, const char *reason,
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
        say_end(exit, reason, "It ran longer than %" PRId64 " ms.", end->spec->timeout_ms);
    else if (strcmp(reason, "DEADLINE") == 0)
        say_end(exit, reason, "Its lease was not renewed in time: another node may start it now.");
    else if (strcmp(reason, "DISK_LIMIT") == 0)
        say_end(exit, reason, "It has more than its limit of %" PRId64 " bytes in its directory.",
                end->spec->disk_bytes_max);
    else if (reason[0])
        say_end(exit, reason,
                end->killed ? "It was stopped with KILL." : "It was stopped with TERM.");
    else if (end->oom_kills > 0 && exit->exit_code != 0)
        say_end(exit, "OOM", "It needed more than its limit of %" PRId64 " bytes of memory.",
                end->spec->memory_bytes_max ? end->spec->memory_bytes_max
                                            : end->spec->memory_bytes_default);
    else if (exit->signal > 0)
        say_end(exit, "SIGNALLED", "Signal %d (%s) ended it.", exit->signal,
                strsignal(exit->signal));
    else
        say_end(exit, "EXITED", "It exited with code %d.%s", exit->exit_code,
                end->oom_kills > 0 ? " A process of it was killed for lack of memory." : "");
}

static int64_t ms_of(struct timeval time)
{
    return (int64_t)time.tv_sec * 1000 + time.tv_usec / 1000;
}

/* --- one loop around one poll --- */

enum {
    OUT_CHUNK = 65536,
    OUT_BYTES_PER_MS = 16 << 10, /* a job that floods its output is slowed down to this, */
    OUT_BYTES_BURST = 64 << 20,  /* after this much at once */
    DRAIN_BYTES_MAX = 1 << 20,   /* from a pipe whose writers are all dead */
    KILL_AGAIN_MS = 50,          /* first; then less and less often, up to */
    KILL_AGAIN_MS_MAX = 1000,
    RECORD_AGAIN_MS = 1000,
    DISK_LOOK_MS = 5000,      /* between two measurements of its disk usage */
    DISK_ENTRIES_STEP = 1000, /* entries per step of a measurement, */
    DISK_PAUSE_SHARE = 19,    /* then a pause this many times as long as the step */
    NEVER_MS = 3600 * 1000,   /* the longest sleep */
};

enum phase { PHASE_RUNNING, PHASE_RECORDING, PHASE_DONE };

struct shim {
    int dir_fd;
    struct arena arena;
    struct runfile file;
    struct cgroup group;
    struct runlog log;
    struct shim_job job;
    int signal_fd, listen_fd;
    int alarm_fd; /* fires at the deadline, even if the machine slept through it */
    int agent_fd; /* -1: no agent is connected */
    enum phase phase;
    int64_t now_ms;                     /* CLOCK_MONOTONIC, fresh after each poll */
    int64_t started_ms;                 /* wall */
    int64_t timeout_ms;                 /* a moment on CLOCK_MONOTONIC; 0: none */
    int64_t deadline_ms;                /* clock_lease_ms(); 0: none, or passed */
    bool stopping;                      /* TERM was sent */
    char reason[32];                    /* why; "" if the main process ended by itself */
    int64_t kill_ms;                    /* when stopping: send KILL from then on, */
    int64_t kill_next_ms, kill_step_ms; /* repeatedly */
    bool killed;
    bool main_gone;
    int main_status;
    int64_t record_next_ms;
    struct disk_walk disk;
    int64_t disk_next_ms;
    int64_t out_budget, out_budget_ms; /* bytes that may be read, and when that was computed */
    struct run_exit exit;
    struct buf tail;
    char chunk[OUT_CHUNK];
};

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* --- sending --- */

/* If the agent does not read, it asks again when it reconnects: everything important is in the
 * files. */
__attribute__((format(printf, 2, 3))) static void send_packet(struct shim *shim, const char *fmt,
                                                              ...)
{
    char packet[SHIM_PACKET_MAX];
    va_list args;
    int len;

    if (shim->agent_fd < 0)
        return;
    va_start(args, fmt);
    len = vsnprintf(packet, sizeof packet, fmt, args);
    va_end(args);
    assert(len > 0 && len < SHIM_PACKET_MAX);
    if (send(shim->agent_fd, packet, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
        errno != EAGAIN && errno != EINTR)
        close_fd(&shim->agent_fd);
}

static void greet(struct shim *shim)
{
    struct run_proc self = {0};

    process_tree_proc(getpid(), &self);
    send_packet(shim, "hello %d %" PRIu64, (int)getpid(), self.start);
    if (shim->job.pid > 0)
        send_packet(shim, "started %" PRId64 " %d", shim->started_ms, (int)shim->job.pid);
    if (shim->stopping)
        send_packet(shim, "stopping");
}

/* --- ending the tree --- */

static void check_kill(struct shim *shim)
{
    bool whole;

    if (shim->phase != PHASE_RUNNING || !shim->stopping || shim->now_ms < shim->kill_ms ||
        shim->now_ms < shim->kill_next_ms)
        return;
    whole = cgroup_kill(&shim->group);
    /* After the first KILL also processes that left its group. */
    if (!whole || shim->killed)
        process_tree_kill(getpid());
    shim->killed = true;
    shim->kill_step_ms =
        shim->kill_step_ms ? earlier(shim->kill_step_ms * 2, KILL_AGAIN_MS_MAX) : KILL_AGAIN_MS;
    shim->kill_next_ms = shim->now_ms + shim->kill_step_ms;
}

/* Idempotent: the first reason stays, and only an earlier end counts. */
static void stop(struct shim *shim, struct str reason, int64_t kill_ms)
{
    assert(kill_ms >= 0);
    if (shim->phase != PHASE_RUNNING)
        return;
    if (shim->stopping) {
        shim->kill_ms = earlier(shim->kill_ms, kill_ms);
    } else {
        shim->stopping = true;
        shim->kill_ms = kill_ms;
        str_copy(reason, shim->reason, sizeof shim->reason);
        if (kill_ms > shim->now_ms) {
            process_tree_signal(getpid(), SIGTERM);
            process_tree_signal(getpid(), SIGCONT); /* a stopped process could not handle it */
        }
        send_packet(shim, "stopping");
    }
    check_kill(shim);
}

/* --- output --- */

/* The bytes of one read; 0 if there are none (any more). */
static size_t take_output(struct shim *shim)
{
    ssize_t got;

    if (shim->job.out_fd < 0)
        return 0;
    got = read(shim->job.out_fd, shim->chunk, sizeof shim->chunk);
    if (got > 0) {
        shim->out_budget -= got;
        runlog_write(&shim->log, (struct str){.at = shim->chunk, .len = (size_t)got}, shim->now_ms);
        return (size_t)got;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
        close_fd(&shim->job.out_fd); /* all writers have closed it */
    return 0;
}

/* --- the end --- */

/* The tree is gone. A process outside it may still hold the pipe: do not wait for that. */
static void finish(struct shim *shim)
{
    size_t drained = 0, got;
    struct rusage used = {0};
    int fd;

    assert(shim->main_gone && shim->phase == PHASE_RUNNING);
    while (drained < DRAIN_BYTES_MAX && (got = take_output(shim)) > 0)
        drained += got;
    close_fd(&shim->job.out_fd);
    runlog_done(&shim->log);
    shim_end_judge(&(struct shim_end){.status = shim->main_status,
                                      .stop_reason = shim->reason,
                                      .killed = shim->killed,
                                      .oom_kills = cgroup_oom_kills(&shim->group),
                                      .spec = &shim->file.spec},
                   &shim->exit);
    getrusage(RUSAGE_CHILDREN, &used); /* all of them were reaped */
    shim->exit.started_ms = shim->started_ms;
    shim->exit.ended_ms = clock_wall_ms();
    shim->exit.user_ms = ms_of(used.ru_utime);
    shim->exit.system_ms = ms_of(used.ru_stime);
    shim->exit.rss_kb_max = used.ru_maxrss;
    shim->exit.output_bytes = shim->log.total;
    shim->exit.output_dropped = shim->log.dropped;
    runlog_tail(&shim->log, &shim->tail);
    shim->exit.tail = buf_view(&shim->tail);
    assert(shim->exit.output_dropped <= shim->exit.output_bytes);
    /* As the job's user, so that a link opens nothing that user could not open. */
    job_user_enter_files(shim->job.user);
    fd = runfile_open_result(shim->dir_fd);
    job_user_leave_files(shim->job.user);
    runfile_keep_result(shim->dir_fd, fd);
    runfile_remove_secrets(shim->dir_fd, &shim->file.spec);
    cgroup_remove(&shim->group);
    shim->phase = PHASE_RECORDING;
}

/* Retried until it works on a full disk: an outcome that could still be lost is never reported. */
static void record(struct shim *shim)
{
    const struct run_spec *spec = &shim->file.spec;
    struct stat dir;

    assert(shim->phase == PHASE_RECORDING);
    if (shim->now_ms < shim->record_next_ms)
        return;
    if (runfile_put_exit(shim->dir_fd, &shim->exit, spec->key, spec->meta)) {
        runlog_shrink(&shim->log);
        /* If the directory was removed, no agent will look there for the outcome. */
        if (runfile_put_exit(shim->dir_fd, &shim->exit, spec->key, spec->meta) &&
            (fstat(shim->dir_fd, &dir) != 0 || dir.st_nlink > 0)) {
            shim->record_next_ms = shim->now_ms + RECORD_AGAIN_MS;
            return;
        }
    }
    send_packet(shim, "ended");
    shim->phase = PHASE_DONE;
}

/* --- disk usage --- */

static void look_at_disk(struct shim *shim)
{
    int64_t begun_us = clock_mono_us(), pause_ms;
    bool more;

    if (shim->disk.depth == 0 && !disk_walk_begin(&shim->disk, shim->dir_fd)) {
        shim->disk_next_ms = shim->now_ms + DISK_LOOK_MS;
        return;
    }
    job_user_enter_files(shim->job.user); /* we open our directory, the user its contents */
    more = disk_walk_step(&shim->disk, DISK_ENTRIES_STEP);
    job_user_leave_files(shim->job.user);
    pause_ms = 1 + (clock_mono_us() - begun_us) * DISK_PAUSE_SHARE / 1000;
    shim->disk_next_ms = shim->now_ms + (more ? pause_ms : DISK_LOOK_MS);
    if (shim->disk.bytes > shim->file.spec.disk_bytes_max)
        stop(shim, STR("DISK_LIMIT"), shim->now_ms + shim->file.spec.stop_grace_ms);
}

static bool is_disk_watched(const struct shim *shim)
{
    return shim->file.spec.disk_bytes_max > 0 && shim->phase == PHASE_RUNNING && !shim->stopping;
}

/* --- children --- */

static void take_signals(struct shim *shim)
{
    struct signalfd_siginfo infos[8];
    ssize_t got;
    int status;
    pid_t pid;

    while ((got = read(shim->signal_fd, infos, sizeof infos)) > 0)
        for (size_t i = 0; i < (size_t)got / sizeof infos[0]; i++)
            if (infos[i].ssi_signo != SIGCHLD) /* shutdown of the machine, or an operator */
                stop(shim, STR("STOPPED"), shim->now_ms + shim->file.spec.stop_grace_ms);
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == shim->job.pid) {
            shim->main_gone = true;
            shim->main_status = status;
        }
    if (!shim->main_gone || shim->phase != PHASE_RUNNING)
        return;
    /* Orphans of the tree become our children, so having no children means the tree is gone. */
    if (pid < 0 && errno == ECHILD)
        finish(shim);
    else
        stop(shim, STR(""), shim->now_ms + shim->file.spec.stop_grace_ms);
}

/* --- the deadline --- */

static void set_deadline(struct shim *shim, int64_t at_ms)
{
    struct itimerspec alarm = {
        .it_value = {.tv_sec = at_ms / 1000, .tv_nsec = at_ms % 1000 * 1000000}};

    assert(at_ms >= 0);
    shim->deadline_ms = at_ms;
    timerfd_settime(shim->alarm_fd, TFD_TIMER_ABSTIME, &alarm, NULL); /* 0 disarms it */
}

/* The agent writes a later deadline to the file before it sends it to us. */
static bool deadline_passed(struct shim *shim)
{
    int64_t now_ms, written_ms;

    if (!shim->deadline_ms || (now_ms = clock_lease_ms()) < shim->deadline_ms)
        return false;
    if (!runfile_get_deadline(shim->dir_fd, &written_ms) ||
        (written_ms != 0 && written_ms <= now_ms))
        return true;
    set_deadline(shim, written_ms);
    return false;
}

static void check_deadline(struct shim *shim)
{
    const struct run_spec *spec = &shim->file.spec;
    int64_t grace_ms, left_ms;

    if (!deadline_passed(shim))
        return;
    /* Time left for its tree to end: the grace began with the deadline. */
    grace_ms = spec->deadline_grace_ms ? spec->deadline_grace_ms : RUN_DEADLINE_GRACE_MS;
    left_ms = shim->deadline_ms + earlier(grace_ms, spec->stop_grace_ms) - clock_lease_ms();
    set_deadline(shim, 0); /* it passes only once */
    stop(shim, STR("DEADLINE"), shim->now_ms + (left_ms > 0 ? left_ms : 0));
}

/* --- the agent --- */

static void take_orders(struct shim *shim)
{
    char packet[SHIM_PACKET_MAX];
    ssize_t got;

    while (shim->agent_fd >= 0 &&
           (got = recv(shim->agent_fd, packet, sizeof packet, MSG_DONTWAIT)) > 0) {
        struct str args = {.at = packet, .len = (size_t)got};
        struct str name = str_cut(&args, ' '), reason;
        int64_t at_ms;

        if (str_is(name, "stop")) {
            reason = str_cut(&args, ' ');
            if (str_is_id(reason, sizeof shim->reason - 1) && str_int(args, &at_ms) && at_ms >= 0)
                stop(shim, reason, at_ms);
        } else if (str_is(name, "deadline")) {
            if (str_int(args, &at_ms) && at_ms >= 0)
                set_deadline(shim, at_ms);
        } else if (str_is(name, "ping")) {
            send_packet(shim, "pong");
        }
    }
    if (shim->agent_fd >= 0 && (got == 0 || (errno != EAGAIN && errno != EINTR)))
        close_fd(&shim->agent_fd); /* the agent is gone; another will connect */
}

static void take_agent(struct shim *shim)
{
    int fd = accept4(shim->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    take_orders(shim); /* what the old agent sent last */
    close_fd(&shim->agent_fd);
    shim->agent_fd = fd;
    greet(shim);
}

/* --- timers --- */

static void check_times(struct shim *shim)
{
    int64_t grace_ms = shim->file.spec.stop_grace_ms;

    if (shim->phase == PHASE_RECORDING) {
        record(shim);
        return;
    }
    if (shim->file.spec.timeout_grace_ms)
        grace_ms = earlier(grace_ms, shim->file.spec.timeout_grace_ms);
    if (shim->timeout_ms && shim->now_ms >= shim->timeout_ms && !shim->stopping)
        stop(shim, STR("TIMEOUT"), shim->now_ms + grace_ms);
    check_deadline(shim);
    if (is_disk_watched(shim) && shim->now_ms >= shim->disk_next_ms)
        look_at_disk(shim);
    check_kill(shim);
}

static int sleep_ms(const struct shim *shim)
{
    int64_t until = shim->now_ms + NEVER_MS;

    if (shim->phase == PHASE_RECORDING)
        until = earlier(until, shim->record_next_ms);
    else {
        if (shim->timeout_ms && !shim->stopping)
            until = earlier(until, shim->timeout_ms);
        if (is_disk_watched(shim))
            until = earlier(until, shim->disk_next_ms);
        if (shim->stopping)
            until = earlier(until, shim->killed ? shim->kill_next_ms : shim->kill_ms);
        if (shim->job.out_fd >= 0 && shim->out_budget <= 0)
            until = earlier(until, shim->now_ms + 1 - shim->out_budget / OUT_BYTES_PER_MS);
    }
    return until > shim->now_ms ? (int)(until - shim->now_ms) : 0;
}

enum { ON_SIGNAL, ON_LISTEN, ON_AGENT, ON_OUT, ON_ALARM, ON_COUNT };

static void turn(struct shim *shim)
{
    bool may_read = shim->job.out_fd >= 0 && shim->out_budget > 0;
    struct pollfd fds[ON_COUNT] = {
        [ON_SIGNAL] = {.fd = shim->signal_fd, .events = POLLIN},
        [ON_LISTEN] = {.fd = shim->listen_fd, .events = POLLIN},
        [ON_AGENT] = {.fd = shim->agent_fd, .events = POLLIN},
        [ON_OUT] = {.fd = may_read ? shim->job.out_fd : -1, .events = POLLIN},
        [ON_ALARM] = {.fd = shim->alarm_fd, .events = POLLIN},
    };

    if (poll(fds, ON_COUNT, sleep_ms(shim)) < 0)
        return;
    shim->now_ms = clock_mono_ms();
    assert(shim->now_ms >= shim->out_budget_ms); /* the clock is monotonic */
    shim->out_budget += (shim->now_ms - shim->out_budget_ms) * OUT_BYTES_PER_MS;
    shim->out_budget = earlier(shim->out_budget, OUT_BYTES_BURST);
    shim->out_budget_ms = shim->now_ms;
    if (fds[ON_ALARM].revents)
        check_deadline(shim); /* first: we may have been frozen for long */
    if (fds[ON_OUT].revents)
        take_output(shim);
    if (fds[ON_AGENT].revents)
        take_orders(shim);
    if (fds[ON_LISTEN].revents)
        take_agent(shim);
    if (fds[ON_SIGNAL].revents)
        take_signals(shim);
}

/* --- start --- */

/* The directory is our working directory, so that the name fits whatever the path's length. */
static int listen_here(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = RUNFILE_SOCK};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && (bind(fd, (struct sockaddr *)&name, sizeof name) != 0 || listen(fd, 8) != 0))
        close_fd(&fd);
    return fd;
}

static enum err begin(struct shim *shim, struct problem *why)
{
    struct run_spec *spec = &shim->file.spec;
    sigset_t set;
    enum err err;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "berth-shim");
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_SETMASK, &set, NULL);
    shim->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (shim->signal_fd < 0 || fchdir(shim->dir_fd) != 0)
        return problem_set(why, ERR_IO, "", "The shim cannot start: %s.", strerror(errno));
    err = runfile_get(shim->dir_fd, &shim->arena, &shim->file, why);
    if (err)
        return err;
    if (spec->deadline_sleeps)
        clock_leases_sleep();
    shim->alarm_fd = timerfd_create(clock_lease_id(), TFD_CLOEXEC | TFD_NONBLOCK);
    if (shim->alarm_fd < 0)
        return problem_set(why, ERR_IO, "", "The shim cannot start: %s.", strerror(errno));
    shim->listen_fd = listen_here();
    if (shim->listen_fd < 0)
        return problem_set(why, ERR_IO, "", "The shim cannot listen: %s.", strerror(errno));
    if (spec->log_bytes_max == 0)
        spec->log_bytes_max = RUN_LOG_BYTES_DEFAULT;
    if (spec->log_bytes_max < RUN_LOG_BYTES_MIN)
        spec->log_bytes_max = RUN_LOG_BYTES_MIN;
    runlog_init(&shim->log, shim->dir_fd, spec->log_bytes_max);
    err = cgroup_make(&shim->group, &shim->file.place, spec->key,
                      &(struct cgroup_limits){.memory_bytes_max = spec->memory_bytes_max,
                                              .memory_bytes_default = spec->memory_bytes_default,
                                              .pids_max = spec->pids_max,
                                              .cpu_permille_max = spec->cpu_permille_max,
                                              .cpu_weight = spec->cpu_weight},
                      why);
    if (err)
        return err;
    set_deadline(shim, spec->deadline_boot_ms);
    if (deadline_passed(shim))
        return problem_set(why, ERR_TOO_LATE, "", "Its deadline had passed before it began.");
    err = shim_job_start(&shim->job, why);
    if (err)
        return err;
    if (geteuid() != 0) /* only for looking at files and killing as its user */
        privileges_keep(PRIVILEGE(CAP_SETUID) | PRIVILEGE(CAP_SETGID) | PRIVILEGE(CAP_KILL));
    shim->started_ms = clock_wall_ms();
    shim->now_ms = shim->out_budget_ms = clock_mono_ms();
    shim->out_budget = OUT_BYTES_BURST;
    shim->disk_next_ms = shim->now_ms + DISK_LOOK_MS;
    shim->timeout_ms = spec->timeout_ms ? shim->now_ms + spec->timeout_ms : 0;
    return ERR_OK;
}

void shim_run(int dir_fd, int agent_fd, int oom_adj, const struct job_user *user)
{
    static struct shim shim; /* one per process; too large for a stack */
    struct problem why = {0};

    assert(dir_fd >= 0 && shim.dir_fd == 0);
    shim = (struct shim){.group = CGROUP_NONE,
                         .dir_fd = dir_fd,
                         .agent_fd = agent_fd,
                         .signal_fd = -1,
                         .listen_fd = -1,
                         .alarm_fd = -1};
    shim.job = (struct shim_job){.file = &shim.file,
                                 .group = &shim.group,
                                 .dir_fd = dir_fd,
                                 .umask = umask(077),
                                 .oom_adj = oom_adj,
                                 .user = user,
                                 .out_fd = -1};
    if (begin(&shim, &why)) {
        shim.exit = (struct run_exit){.exit_code = -1, .signal = -1, .ended_ms = clock_wall_ms()};
        say_end(&shim.exit, why.err == ERR_TOO_LATE ? "DEADLINE" : "START_FAILED", "%s",
                why.detail);
        runfile_remove_secrets(dir_fd, &shim.file.spec);
        cgroup_remove(&shim.group);
        shim.phase = PHASE_RECORDING;
    }
    greet(&shim);
    for (check_times(&shim); shim.phase != PHASE_DONE; check_times(&shim))
        turn(&shim);
    disk_walk_done(&shim.disk);
    close_fd(&shim.agent_fd);
    close_fd(&shim.listen_fd);
    close_fd(&shim.signal_fd);
    close_fd(&shim.alarm_fd);
    buf_free(&shim.tail);
    arena_free(&shim.arena);
    close(dir_fd); /* this releases the lock: from here on only the record counts */
    shim.dir_fd = 0;
}

/* --- `berth shim` --- */

static bool has_ended(int dir_fd)
{
    struct arena arena = {0};
    struct run_exit exit;
    struct str key, meta;
    bool ended = runfile_get_exit(dir_fd, &arena, &exit, &key, &meta) == ERR_OK;

    arena_free(&arena);
    return ended;
}

static int single(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int64_t oom_adj = 0;

    if (fd < 0) {
        fprintf(stderr, "berth shim: %s cannot be opened: %s\n", dir, strerror(errno));
        return 1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || has_ended(fd)) {
        fprintf(stderr, "berth shim: %s has a shim or has ended already\n", dir);
        close(fd);
        return 1;
    }
    for (int i = 1; i < SIGRTMIN; i++)
        if (i != SIGKILL && i != SIGSTOP)
            signal(i, SIG_DFL); /* the job would inherit ignored signals; a spawner resets them */
    setsid();
    cgroup_file_int(AT_FDCWD, "/proc/self/oom_score_adj", NULL, &oom_adj);
    shim_run(fd, -1, (int)oom_adj, NULL); /* as our own user */
    return 0;
}

int shim_main(int argc, char **argv)
{
    if (argc != 1) {
        fprintf(stderr, "usage: berth shim DIR\n");
        return 2;
    }
    return strcmp(argv[0], "-") == 0 ? spawner_of_agent() : single(argv[0]);
}
