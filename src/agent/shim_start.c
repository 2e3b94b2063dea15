/* Starts a job: a pipe for its output, a new process with its cgroup, user and directory, its
 * environment, and the program. Failures are reported with their step. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/fd.h"
#include "agent/secret.h"
#include "agent/shim.h"
#include "model/argv.h"

static _Noreturn void shim_job_become(const struct shim_plan *plan);

/* --- the new process --- */

/* A new process that shares our memory until its exec, as after vfork(), but created directly in a
 * v2 control group: copying this program's memory costs more than the rest of a start, and moving a
 * process into a group later may wait for every core. The C library has no function for it, so the
 * system call is made inline: the child must not return from a frame of ours, because the parent
 * continues in it. */

enum { FLAGS = CLONE_VFORK | CLONE_VM };

#if defined(__x86_64__)

__attribute__((always_inline)) static inline long clone3_here(const struct clone_args *args,
                                                              size_t size)
{
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_clone3), "D"(args), "S"(size)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)

__attribute__((always_inline)) static inline long clone3_here(const struct clone_args *args,
                                                              size_t size)
{
    register long number __asm__("x8") = SYS_clone3;
    register long first __asm__("x0") = (long)args;
    register long second __asm__("x1") = (long)size;

    __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    return first;
}

#else

__attribute__((always_inline)) static inline long clone3_here(const struct clone_args *args,
                                                              size_t size)
{
    return -ENOSYS; /* not implemented for this architecture: fork() is used */
}

#endif

/* Deliberately small and never inlined: what the child does to this frame the parent sees. */
__attribute__((noinline)) static long clone_and_become(const struct clone_args *args,
                                                       struct shim_plan *plan)
{
    long pid = clone3_here(args, sizeof *args);

    if (pid == 0)
        shim_job_become(plan);
    return pid;
}

/* Creates it, in the v2 group group_fd unless that is -1. Returns after its exec or end; -1 and
 * errno on failure. */
static pid_t shim_clone(struct shim_plan *plan, int group_fd)
{
    struct clone_args args = {.flags = FLAGS, .exit_signal = SIGCHLD};
    long pid;

    if (group_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)group_fd;
    }
    plan->cloned_into = group_fd >= 0;
    pid = clone_and_become(&args, plan);
    if (pid > 0)
        return (pid_t)pid;
    /* An old kernel, or a filter that does not know the system call. */
    plan->cloned_into = false;
    pid = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        shim_job_become(plan);
    return (pid_t)pid;
}

/* --- the environment --- */

/* The environment of a job. The agent's own environment is not passed on, except for a few
 * names. */

enum { OWN_MAX = 8 };

const char *shim_env_get(char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (; env && *env; env++)
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env + len + 1;
    return NULL;
}

/* A later entry of the same name replaces the earlier. */
static void put(char **env, size_t *count, char *entry)
{
    size_t name = strcspn(entry, "=") + 1;

    assert(name > 1 && entry[name - 1] == '=');
    for (size_t i = 0; i < *count; i++)
        if (strncmp(env[i], entry, name) == 0) {
            env[i] = entry;
            return;
        }
    env[(*count)++] = entry;
}

static void put_pair(struct arena *arena, char **env, size_t *count, const char *name,
                     const char *value)
{
    if (value)
        put(env, count, (char *)arena_fmt(arena, "%s=%s", name, value).at);
}

static const char *or_else(const char *value, const char *otherwise)
{
    return value && *value ? value : otherwise;
}

static const char *home_of(struct arena *arena, const struct job_user *user, char *const *base,
                           struct str way)
{
    if (!user)
        return or_else(shim_env_get(base, "HOME"), "/");
    if (user->home[0] || way.len == 0 || way.at[0] != '/')
        return or_else(user->home, "/");
    return arena_fmt(arena, STR_FMT "/" RUNFILE_WORK, STR_ARG(way)).at;
}

char **shim_env(struct arena *arena, const struct runfile *file, struct strs secrets,
                char *const *base, const struct job_user *user)
{
    const struct run_spec *spec = &file->spec;
    /* How the job reaches the directory of its run: by its path, or relative to its working
     * directory if its user cannot pass through all parent directories; at == NULL: not at all. */
    struct str way = !user || job_user_reaches(user, file->dir) ? file->dir
                     : spec->cwd.at                             ? STR_NONE
                                                                : STR("..");
    char **env = arena_array(arena, char *, secrets.count + spec->env_count + OWN_MAX + 1);
    size_t count = 0;

    for (size_t i = 0; i < secrets.count; i++)
        put(env, &count, (char *)secrets.at[i].at);

    put_pair(arena, env, &count, "PATH",
             or_else(shim_env_get(base, "PATH"),
                     "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
    put_pair(arena, env, &count, "HOME", home_of(arena, user, base, way));
    put_pair(arena, env, &count, "LANG", or_else(shim_env_get(base, "LANG"), "C.UTF-8"));
    put_pair(arena, env, &count, "USER", user ? user->name : NULL);
    put_pair(arena, env, &count, "LOGNAME", user ? user->name : NULL);
    for (size_t i = 0; i < spec->env_count; i++)
        put(env, &count, arena_cstr(arena, spec->env[i]));
    if (spec->input.at && way.at)
        put_pair(arena, env, &count, "BERTH_PAYLOAD_FILE",
                 arena_fmt(arena, STR_FMT "/" RUNFILE_INPUT, STR_ARG(way)).at);
    if (spec->secret_count > 0 && way.at)
        put_pair(arena, env, &count, "BERTH_SECRETS_DIR",
                 arena_fmt(arena, STR_FMT "/" RUNFILE_SECRETS, STR_ARG(way)).at);
    put(env, &count, arena_cstr(arena, file->mark)); /* used to find the tree again */
    assert(count <= secrets.count + spec->env_count + OWN_MAX);
    env[count] = NULL;
    if (way.at != file->dir.at && shim_env_get(env, "BERTH_RESULT_FILE")) /* the agent's path */
        put_pair(arena, env, &count, "BERTH_RESULT_FILE", way.at ? RUNFILE_RESULT_LEFT : "");
    return env;
}

/* --- the job --- */

static const char *const step_names[] = {
    [STEP_GROUP] = "enter its control group",
    [STEP_TMP] = "have a /tmp of its own",
    [STEP_SECRETS] = "have its secrets in memory",
    [STEP_USER] = "become its user",
    [STEP_PRIVILEGES] = "give up all privileges",
    [STEP_FILTER] = "filter its system calls",
    [STEP_DIR] = "enter its directory",
    [STEP_EXEC] = "run it",
};

/* --- the new process --- */

static _Noreturn void give_up(const struct shim_plan *plan, enum shim_step step)
{
    assert(step != STEP_NONE);
    plan->report->step = step;
    plan->report->error = errno;
    _exit(127);
}

/* Memory that cannot be swapped out, only in the job's own namespace. Read-only once filled, or it
 * could be filled without limit. */
static int put_secrets(const struct shim_plan *plan)
{
    const struct run_spec *spec = &plan->job->file->spec;
    const struct job_user *user = plan->job->user;
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    char name[ARGV_SECRET_NAME_MAX + 1];
    int fd, error = 0;

    if (mount("ramfs", RUNFILE_SECRETS, "ramfs", flags, "mode=0711") != 0 ||
        (fd = open(RUNFILE_SECRETS, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return errno;
    for (size_t i = 0; i < spec->secret_count && error == 0; i++) {
        str_copy(secret_name(spec->secrets[i]), name, sizeof name);
        error = secret_copy(plan->secret_fds[i], fd, name);
        if (error == 0 && user && fchownat(fd, name, user->uid, user->gid, 0) != 0)
            error = errno;
    }
    close(fd);
    if (error == 0 &&
        mount(NULL, RUNFILE_SECRETS, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL) != 0)
        error = errno;
    return error;
}

/* Like execvpe, but with the job's PATH. Returns with errno set. */
static void exec_found(const struct shim_plan *plan)
{
    struct str rest = str_of(plan->path);
    int error = ENOENT;
    char file[4096];

    if (strchr(plan->argv[0], '/')) {
        execve(plan->argv[0], plan->argv, plan->env);
        return;
    }
    while (rest.at) {
        struct str dir = str_cut(&rest, ':');
        int len = snprintf(file, sizeof file, STR_FMT "/%s", STR_ARG(dir.len ? dir : STR(".")),
                           plan->argv[0]);

        if (len < 0 || (size_t)len >= sizeof file)
            continue;
        execve(file, plan->argv, plan->env);
        if (errno == EACCES)
            error = errno; /* a later directory may have one that can be executed */
        else if (errno != ENOENT && errno != ENOTDIR)
            return;
    }
    errno = error;
}

/* Runs in the new process, whose memory may be its parent's: only system calls and its own
 * stack. */
static _Noreturn void shim_job_become(const struct shim_plan *plan)
{
    const struct job_user *user = plan->job->user;
    sigset_t none;
    int oom_fd;

    errno = plan->cloned_into ? 0 : cgroup_enter(plan->job->group);
    if (errno != 0 && plan->must_enter)
        give_up(plan, STEP_GROUP);
    plan->report->outside = errno != 0;
    sigemptyset(&none); /* no signal is ignored here: see shim.c */
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    dup2(plan->in_fd, STDIN_FILENO);
    dup2(plan->out_fd, STDOUT_FILENO);
    dup2(plan->out_fd, STDERR_FILENO);
    if (plan->job->oom_adj < 0 && (oom_fd = open("/proc/self/oom_score_adj", O_WRONLY)) >= 0) {
        ssize_t ignored = write(oom_fd, "0", 1); /* the job is less important than the agent */

        (void)ignored;
        close(oom_fd);
    }
    umask(plan->job->umask);
    /* Our working directory is the directory of the run, in the new namespace too. A descriptor
     * would be a way back into the old namespace. */
    errno = plan->tmp[0] ? private_tmp_enter(plan->tmp, !user) : 0;
    if (errno != 0)
        give_up(plan, STEP_TMP);
    errno = plan->secret_fds ? put_secrets(plan) : 0;
    if (errno != 0)
        give_up(plan, STEP_SECRETS);
    /* Raw system calls: the C library's versions would signal threads that do not exist after
     * clone. */
    if (user && (syscall(SYS_setgroups, user->group_count, user->groups) != 0 ||
                 syscall(SYS_setgid, user->gid) != 0 || syscall(SYS_setuid, user->uid) != 0))
        give_up(plan, STEP_USER);
    errno = plan->is_root ? 0 : privileges_give_up();
    if (errno != 0)
        give_up(plan, STEP_PRIVILEGES);
    if (chdir(plan->cwd ? plan->cwd : RUNFILE_WORK) != 0)
        give_up(plan, STEP_DIR);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* without a shim its end would not be recorded */
    if (getppid() != plan->shim)
        _exit(127);
    close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); /* in case one was left open */
    errno = plan->filter ? syscalls_refuse(plan->filter) : 0;
    if (errno != 0)
        give_up(plan, STEP_FILTER);
    exec_found(plan);
    give_up(plan, STEP_EXEC);
}

/* --- the shim's side --- */

/* Only what is ours, or was given to the user before: a run must not get another user's file
 * through a name or a link. */
static int give(int fd, uid_t uid, gid_t gid)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return errno;
    if (info.st_uid != geteuid() && info.st_uid != uid)
        return EPERM;
    return fchown(fd, uid, gid) == 0 ? 0 : errno;
}

/* --- secrets --- */

/* Opens a copy in the directory of the run. */
static int open_copy(const struct shim_job *job, struct str word)
{
    char path[sizeof RUNFILE_SECRETS + ARGV_SECRET_NAME_MAX + 1];

    snprintf(path, sizeof path, RUNFILE_SECRETS "/" STR_FMT, STR_ARG(secret_name(word)));
    return openat(job->dir_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
}

/* "VARIABLE=value" of one; a trailing newline belongs to the file. */
static enum err read_variable(int fd, struct str word, struct arena *arena, struct str *ret_entry,
                              struct problem *why)
{
    struct str variable = secret_variable(word), name = secret_name(word);
    size_t start = variable.len + 1;
    char *text = arena_raw(arena, start + SECRET_BYTES_MAX + 1);
    ssize_t got = read(fd, text + start, SECRET_BYTES_MAX);

    *ret_entry = (struct str){.at = text, .len = start + (got > 0 ? (size_t)got : 0)};
    if (got < 0)
        return problem_set(why, ERR_IO, "secrets", "Its secret " STR_FMT " cannot be read: %s.",
                           STR_ARG(name), strerror(errno));
    if (memchr(text + start, '\0', (size_t)got))
        return problem_set(why, ERR_BAD_FIELD, "secrets",
                           "Its secret " STR_FMT " cannot be a variable: it has a NUL in it.",
                           STR_ARG(name));
    memcpy(text, variable.at, variable.len);
    text[variable.len] = '=';
    if (got > 0 && text[start + (size_t)got - 1] == '\n')
        got--;
    text[start + (size_t)got] = '\0';
    return ERR_OK;
}

/* Done while we can still read them. Those that go into memory stay open until they are there. */
static enum err read_secrets(const struct shim_job *job, struct arena *arena,
                             struct shim_plan *plan, struct problem *why)
{
    const struct run_spec *spec = &job->file->spec;
    enum err err = ERR_OK;

    plan->secrets.at = arena_array(arena, struct str, spec->secret_count + 1);
    if (spec->secrets_dir.at && spec->secret_count > 0) {
        plan->secret_fds = arena_array(arena, int, spec->secret_count);
        memset(plan->secret_fds, -1, spec->secret_count * sizeof *plan->secret_fds);
    }
    for (size_t i = 0; i < spec->secret_count && !err; i++) {
        int fd = -1;

        if (spec->secrets_dir.at)
            err = secret_open(spec->secrets_dir, secret_name(spec->secrets[i]), &fd, why);
        else if ((fd = open_copy(job, spec->secrets[i])) < 0)
            err = problem_set(why, ERR_IO, "secrets", "Its secret " STR_FMT " cannot be read: %s.",
                              STR_ARG(secret_name(spec->secrets[i])), strerror(errno));
        if (!err && secret_variable(spec->secrets[i]).at)
            err = read_variable(fd, spec->secrets[i], arena,
                                &plan->secrets.at[plan->secrets.count++], why);
        if (plan->secret_fds)
            plan->secret_fds[i] = fd;
        else
            fd_close(fd);
    }
    return err;
}

static int give_secrets(const struct shim_job *job)
{
    const struct run_spec *spec = &job->file->spec;
    int error = 0;

    if (spec->secrets_dir.at)
        return 0;
    for (size_t i = 0; i < spec->secret_count && error == 0; i++) {
        int fd = open_copy(job, spec->secrets[i]);

        if (fd < 0 && errno == EACCES)
            continue; /* already given: two variables for one secret */
        error = fd < 0 ? errno : give(fd, job->user->uid, job->user->gid);
        fd_close(fd);
    }
    /* The directory stays ours, so that the files can be removed whatever user owns them. */
    if (error == 0 && spec->secret_count > 0 &&
        fchmodat(job->dir_fd, RUNFILE_SECRETS, 0711, 0) != 0)
        error = errno;
    return error;
}

/* --- files --- */

/* One of the job's own directories, in the directory of its run. */
static int make_own_dir(const struct shim_job *job, const char *name)
{
    int error = 0, fd;

    if (mkdirat(job->dir_fd, name, 0700) != 0 && errno != EEXIST)
        return errno;
    if (!job->user)
        return 0;
    fd = openat(job->dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    error = give(fd, job->user->uid, job->user->gid);
    close(fd);
    return error;
}

/* Gives the input to the job's user, who may also pass through our directory. */
static int hand_over(const struct shim_job *job, const char *cwd, int in_fd)
{
    const struct run_spec *spec = &job->file->spec;
    const struct job_user *user = job->user;
    int error = 0, fd;

    if (cwd && spec->cwd_given) { /* we keep access to it through its group */
        fd = open(cwd, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return errno;
        fchmod(fd, 0775); /* not once it is the user's, who may have changed it */
        error = give(fd, user->uid, (gid_t)-1);
        close(fd);
    }
    if (error == 0 && spec->input.at)
        error = give(in_fd, user->uid, user->gid);
    if (error == 0)
        error = give_secrets(job);
    if (error == 0)
        error = give(job->dir_fd, geteuid(), user->gid);
    if (error == 0 && fchmod(job->dir_fd, 0710) != 0)
        error = errno;
    return error;
}

static enum err open_files(struct shim_job *job, struct shim_plan *plan, struct problem *why)
{
    const struct run_spec *spec = &job->file->spec;
    int pipe_fds[2], error = make_own_dir(job, RUNFILE_WORK);

    for (int i = 0; i < PRIVATE_TMP_DIRS && spec->private_tmp && !spec->tmp_of.at && !error; i++)
        error = make_own_dir(job, private_tmp_dirs[i].name);
    if (error != 0)
        return problem_set(why, ERR_IO, "", "Its directory cannot be made: %s.", strerror(error));
    plan->in_fd = spec->input.at
                      ? openat(job->dir_fd, RUNFILE_INPUT, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
                      : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (plan->in_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0)
        return problem_set(why, ERR_IO, "", "Its files cannot be opened: %s.", strerror(errno));
    job->out_fd = pipe_fds[0];
    plan->out_fd = pipe_fds[1];
    if (fcntl(job->out_fd, F_SETFL, O_NONBLOCK) != 0)
        error = errno;
    if (error == 0 && job->user)
        error = hand_over(job, plan->cwd, plan->in_fd);
    if (error == 0)
        return ERR_OK;
    return problem_set(why, ERR_IO, "", "Its files cannot be handed over: %s.", strerror(error));
}

static enum err make_plan(struct shim_job *job, struct arena *arena, struct shim_plan *plan,
                          struct problem *why)
{
    const struct run_spec *spec = &job->file->spec;
    enum err err;

    plan->cwd = spec->cwd.at ? arena_cstr(arena, spec->cwd) : NULL;
    err = read_secrets(job, arena, plan, why);
    if (!err)
        err = open_files(job, plan, why);
    if (err)
        return err;
    for (int i = 0; i < PRIVATE_TMP_DIRS && spec->private_tmp; i++)
        plan->tmp[i] = spec->tmp_of.at ? arena_fmt(arena, "../" STR_FMT "/%s",
                                                   STR_ARG(spec->tmp_of), private_tmp_dirs[i].name)
                                             .at
                                       : private_tmp_dirs[i].name;
    plan->env = shim_env(arena, job->file, plan->secrets, environ, job->user);
    plan->is_root = (job->user ? job->user->uid : geteuid()) == 0;
    plan->filter = plan->is_root || spec->unfiltered ? NULL : syscalls_filter(arena);
    plan->must_enter = spec->memory_bytes_max || spec->pids_max || spec->cpu_permille_max;
    plan->path = shim_env_get(plan->env, "PATH");
    plan->argv = arena_array(arena, char *, spec->argc + 1);
    for (size_t i = 0; i < spec->argc; i++)
        plan->argv[i] = arena_cstr(arena, spec->argv[i]);
    plan->report =
        mmap(NULL, sizeof *plan->report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan->report == MAP_FAILED) {
        plan->report = NULL;
        return problem_set(why, ERR_IO, "", "There is no memory to start it.");
    }
    return ERR_OK;
}

static enum err launch(struct shim_job *job, struct shim_plan *plan, struct problem *why)
{
    pid_t pid = shim_clone(plan, job->group->fd);

    if (pid < 0)
        return problem_set(why, ERR_IO, "", "No process can be made for it: %s.", strerror(errno));
    if (plan->report->step != STEP_NONE) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return problem_set(why, ERR_IO, "", "Cannot %s (%s): %s.", step_names[plan->report->step],
                           plan->report->step == STEP_DIR && plan->cwd ? plan->cwd : plan->argv[0],
                           strerror(plan->report->error));
    }
    if (plan->report->outside)
        cgroup_remove(job->group); /* its process tree is found by other means */
    job->pid = pid;
    return ERR_OK;
}

enum err shim_job_start(struct shim_job *job, struct problem *why)
{
    struct arena arena = {0};
    struct shim_plan plan = {.job = job, .in_fd = -1, .out_fd = -1, .shim = getpid()};
    const struct run_spec *spec = &job->file->spec;
    enum err err;

    assert(job->pid == 0 && job->dir_fd >= 0);
    job->out_fd = -1;
    err = make_plan(job, &arena, &plan, why);
    if (!err)
        err = launch(job, &plan, why);
    for (size_t i = 0; plan.secret_fds && i < spec->secret_count; i++)
        fd_close(plan.secret_fds[i]);
    for (size_t i = 0; i < plan.secrets.count; i++)
        explicit_bzero((char *)plan.secrets.at[i].at, plan.secrets.at[i].len);
    fd_close(plan.in_fd);
    fd_close(plan.out_fd);
    if (plan.report)
        munmap(plan.report, sizeof *plan.report);
    if (err) {
        fd_close(job->out_fd);
        job->out_fd = -1;
    }
    arena_free(&arena);
    assert((err == ERR_OK) == (job->pid > 0));
    return err;
}
