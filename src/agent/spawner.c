/* See spawner.h. One thread, one poll. */
#include "agent/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/config.h"
#include "agent/dir_tree.h"
#include "agent/fd.h"
#include "agent/shim.h"
#include "io/notify.h"

enum { FD_DIR, FD_AGENT, FD_COUNT };
enum { PEERS_MAX = 8, GROUPS_MAX = 256, ENV_MAX = 64, NAME_MAX_BYTES = 64 };

/* The group of the shims: next to the groups of the runs, so that their agent's user may move
 * processes from one to the other. The dot keeps it apart from run keys. */
#define SHIMS ".shims"

struct peer {
    int fd; /* -1: free */
    uid_t uid;
    gid_t gid;
    gid_t groups[GROUPS_MAX];
    int group_count;
    char name[NAME_MAX_BYTES]; /* of its group; "": not received yet */
    struct cgroup_place place;
    int shims_fd; /* -1: no group */
    char hello[SPAWNER_PACKET_MAX];
    char *env[ENV_MAX + 1]; /* points into hello */
};

struct spawner {
    const char *group_file; /* NULL: the agent's own spawner; the agent manages its groups itself */
    const char *config;     /* says which users work may run as; NULL (the agent's own): any */
    int listen_fd;          /* -1: the agent's own spawner, which listens to nobody else */
    int oom_adj;
    bool private_tmp; /* see sandbox.h */
    struct peer peers[PEERS_MAX];
};

/* --- messages --- */

void spawner_tell(const struct cgroup_place *place, bool private_tmp, struct buf *out)
{
    buf_fmt(out, "spawner %d %d\n", SPAWNER_VERSION, (int)getpid());
    if (place->parent[0])
        buf_fmt(out, "parent %s\n", place->parent);
    for (int i = 0; i < CGROUP_LIMITS; i++)
        if (place->limits[i])
            buf_fmt(out, "limit %s\n", cgroup_limit_names[i]);
    if (place->missing[0])
        buf_fmt(out, "missing %s\n", place->missing);
    if (private_tmp)
        buf_str(out, STR("private_tmp\n"));
}

void spawner_hear(struct str lines, struct cgroup_place *ret_place, int64_t *ret_version,
                  bool *ret_private_tmp)
{
    *ret_place = (struct cgroup_place){0};
    *ret_version = 0;
    *ret_private_tmp = false;
    while (lines.at) {
        struct str line = str_cut(&lines, '\n'), key = str_cut(&line, ' ');

        if (str_is(key, "spawner") && line.at)
            str_int(str_cut(&line, ' '), ret_version);
        else if (str_is(key, "parent") && line.at)
            str_copy(line, ret_place->parent, sizeof ret_place->parent);
        else if (str_is(key, "missing") && line.at)
            str_copy(line, ret_place->missing, sizeof ret_place->missing);
        else if (str_is(key, "private_tmp"))
            *ret_private_tmp = true;
        for (int i = 0; i < CGROUP_LIMITS && str_is(key, "limit"); i++)
            if (str_is(line, cgroup_limit_names[i]))
                ret_place->limits[i] = true;
    }
}

/* --- groups --- */

/* Called repeatedly: the unit that owns the group may have been restarted, with a new one. */
static void find_groups(const struct spawner *spawner, struct peer *peer)
{
    char base[CGROUP_PATH_MAX], path[CGROUP_PATH_MAX + sizeof SHIMS];
    struct buf mounts = {0}, groups = {0}, text = {0};

    fd_close(peer->shims_fd);
    peer->shims_fd = -1;
    if (cgroup_file_get(AT_FDCWD, "/proc/self/mountinfo", &mounts) == 0 &&
        cgroup_file_get(AT_FDCWD, spawner->group_file, &groups) == 0 &&
        cgroup_find(buf_view(&mounts), buf_view(&groups), NULL, base, sizeof base)) {
        cgroup_probe_at(base, peer->name, peer->uid, peer->gid, &peer->place);
        snprintf(path, sizeof path, "%s/" SHIMS, peer->place.parent);
        if (peer->place.parent[0] && (mkdir(path, 0755) == 0 || errno == EEXIST))
            peer->shims_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } else {
        peer->place = (struct cgroup_place){0};
        snprintf(peer->place.missing, sizeof peer->place.missing,
                 "memory, pids, cpu: %s names no control group; is berth-runs.service active?",
                 spawner->group_file);
    }
    spawner_tell(&peer->place, spawner->private_tmp, &text);
    send(peer->fd, text.at, text.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    buf_free(&mounts);
    buf_free(&groups);
    buf_free(&text);
}

/* --- users that work may run as --- */

/* The names a file allows, in turn; at == NULL after the last. First the numbered users of
 * job_user, then job_user itself; an empty name is the default. */
static struct str allowed_name(const struct config *config, size_t number,
                               char text[JOB_USER_NAME_MAX + 1])
{
    struct str job_user = config->job_user.at ? config->job_user : STR("");

    if (number < JOB_USER_POOL_MAX)
        return job_user_beside(job_user, number + 1, text);
    number -= JOB_USER_POOL_MAX;
    if (number > config->executor_count)
        return STR_NONE;
    return number > 0 && config->executors[number - 1].user.at ? config->executors[number - 1].user
                                                               : job_user;
}

static enum err find_allowed(const struct spawner *spawner, const struct peer *peer,
                             struct str name, struct job_user *ret_user, struct problem *why)
{
    struct config_source source = {0};
    struct str allowed;
    char text[JOB_USER_NAME_MAX + 1];
    struct stat info;
    size_t i = 0;
    enum err err;

    /* The rules are in a file owned by root: no other user decides here. */
    if (stat(spawner->config, &info) == 0 &&
        (info.st_uid != 0 || info.st_mode & (S_IWGRP | S_IWOTH)))
        err = problem_set(why, ERR_FORBIDDEN, "", "%s must be root's, and nobody else's to write.",
                          spawner->config);
    else
        err = config_load_file(&source, spawner->config, why);
    if (!err && name.len == 0 && source.config.job_user.at)
        name = source.config.job_user;
    while (!err && (allowed = allowed_name(&source.config, i, text)).at && !str_eq(allowed, name))
        i++;
    if (!err && !allowed.at)
        err = problem_set(why, ERR_FORBIDDEN, "user",
                          "berth-spawner runs nothing as " STR_FMT
                          ": neither job_user nor an executor of %s names it.",
                          STR_ARG(name), spawner->config);
    if (!err)
        err = job_user_find(name, source.config.allow_root, ret_user, why);
    /* Neither the agent's user nor the server's: work must not reach their files. */
    if (!err &&
        ((peer->uid != 0 && ret_user->uid == peer->uid) || strcmp(ret_user->name, "berth") == 0))
        err = problem_set(why, ERR_FORBIDDEN, "user",
                          "Nothing is run as %s, which is berth's own user.", ret_user->name);
    config_done(&source);
    return err;
}

/* "r user=NAME allow_root" */
static enum err find_user(const struct spawner *spawner, const struct peer *peer, struct str order,
                          struct job_user *ret_user, struct problem *why)
{
    struct str name = STR("");
    bool allow_root = false;

    while (order.at) {
        struct str word = str_cut(&order, ' '), value = word;

        if (str_is(str_cut(&value, '='), "user") && value.at)
            name = value;
        allow_root = allow_root || str_is(word, "allow_root");
    }
    return spawner->config ? find_allowed(spawner, peer, name, ret_user, why)
                           : job_user_find(name, allow_root, ret_user, why);
}

/* Finds the allowed user with this uid. */
static bool find_owner(const struct spawner *spawner, const struct peer *peer, uid_t uid,
                       struct job_user *ret_user)
{
    const struct passwd *entry = getpwuid(uid);
    char name[JOB_USER_NAME_MAX + 1];

    if (!entry || uid == 0 || !str_copy(str_of(entry->pw_name), name, sizeof name))
        return false;
    return (!find_allowed(spawner, peer, str_of(name), ret_user, NULL) ||
            !find_allowed(spawner, peer, STR(""), ret_user, NULL)) &&
           ret_user->uid == uid;
}

/* --- shims --- */

static bool silence(void)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null_fd < 0)
        return false;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        dup2(null_fd, fd); /* shims outlive the agent and must not keep its terminal open */
    close(null_fd);
    return true;
}

/* The shim becomes its agent's user; it keeps the privileges it needs for a job of another user. */
static bool become_agent(const struct peer *peer)
{
    if (peer->uid == geteuid())
        return true;
    return privileges_survive() && setgroups((size_t)peer->group_count, peer->groups) == 0 &&
           setresgid(peer->gid, peer->gid, peer->gid) == 0 &&
           setresuid(peer->uid, peer->uid, peer->uid) == 0 && privileges_keep(SHIM_PRIVILEGES) &&
           prctl(PR_SET_DUMPABLE, 1) == 0; /* otherwise its /proc files belong to root */
}

static void refuse(const int fds[FD_COUNT], const char *why)
{
    char packet[SHIM_PACKET_MAX];
    int len = snprintf(packet, sizeof packet, "failed %s", why);

    send(fds[FD_AGENT], packet, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static _Noreturn void be_shim(const struct spawner *spawner, const struct peer *peer,
                              struct str order, const int fds[FD_COUNT])
{
    static struct job_user user;
    struct problem why = {0};
    bool other = false;

    signal(SIGCHLD, SIG_DFL);
    if (geteuid() == 0) {
        if (find_user(spawner, peer, order, &user, &why)) {
            refuse(fds, why.detail);
            _exit(1);
        }
        other = user.uid != peer->uid;
        if (user.uid != 0)
            privileges_bound();
    }
    if (spawner->listen_fd >= 0) {
        close(spawner->listen_fd);
        environ = (char **)peer->env;
        if (!silence() || !become_agent(peer))
            _exit(1);
    }
    for (size_t i = 0; i < PEERS_MAX; i++)
        if (spawner->peers[i].fd >= 0) {
            close(spawner->peers[i].fd);
            fd_close(spawner->peers[i].shims_fd);
        }
    setsid();
    shim_run(fds[FD_DIR], fds[FD_AGENT], spawner->oom_adj, other ? &user : NULL);
    _exit(0);
}

static void start_shim(const struct spawner *spawner, struct peer *peer, struct str order,
                       const int fds[FD_COUNT])
{
    struct clone_args args = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD};
    pid_t pid = -1;

    /* Like fork(), but directly into the group: moving it there later may wait for every core. */
    for (int tries = 0; tries < 2 && pid < 0 && spawner->group_file; tries++) {
        if (peer->shims_fd < 0 || tries > 0)
            find_groups(spawner, peer);
        if (peer->shims_fd >= 0) {
            args.cgroup = (uint64_t)peer->shims_fd;
            pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
        }
    }
    if (pid < 0)
        pid = fork();
    if (pid == 0)
        be_shim(spawner, peer, order, fds);
    if (pid < 0) {
        char why[128];

        snprintf(why, sizeof why, "No shim can be made: %s.", strerror(errno));
        refuse(fds, why);
    }
}

/* File accesses are checked as this user, which can only reach its own files. For signals we remain
 * the agent's user: otherwise other work of that user could stop us, and nothing would be
 * removed. */
static bool become_cleaner(const struct peer *peer, const struct job_user *user)
{
    if (!privileges_survive() || setgroups((size_t)user->group_count, user->groups) != 0 ||
        setresgid(user->gid, user->gid, user->gid) != 0 ||
        setresuid(peer->uid, peer->uid, peer->uid) != 0 || !privileges_keep(PRIVILEGE(CAP_SETUID)))
        return false;
    job_user_enter_files(user);
    return setfsuid((uid_t)-1) == (int)user->uid && privileges_give_up() == 0;
}

/* Empties what a job left and its agent, another user, cannot remove. */
static _Noreturn void be_cleaner(const struct spawner *spawner, const struct peer *peer, int dir_fd)
{
    static struct job_user user;
    struct stat info;
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", dir_fd);
    if (fstat(dir_fd, &info) == 0 && find_owner(spawner, peer, info.st_uid, &user) &&
        become_cleaner(peer, &user) && chmod(path, 0700) == 0)
        dir_tree_empty(dir_fd);
    _exit(0);
}

/* --- agents --- */

static void hear_agent(const struct spawner *spawner, struct peer *peer, size_t len)
{
    struct str words = {.at = peer->hello, .len = strnlen(peer->hello, len)};
    struct str name;
    size_t at = words.len + 1;
    int count = 0;

    str_cut(&words, ' '); /* "agent" */
    str_cut(&words, ' '); /* its version */
    name = str_cut(&words, ' ');
    if (!str_is_id(name, sizeof peer->name - 1))
        return;
    str_copy(name, peer->name, sizeof peer->name);
    for (; at < len && count < ENV_MAX; at += strlen(peer->hello + at) + 1)
        if (strchr(peer->hello + at, '='))
            peer->env[count++] = peer->hello + at;
    peer->env[count] = NULL;
    find_groups(spawner, peer);
}

/* 1: something was received, 0: the agent is gone. */
static int hear(const struct spawner *spawner, struct peer *peer)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FD_COUNT)];
    } control;
    char packet[SPAWNER_PACKET_MAX];
    struct iovec data = {.iov_base = packet, .iov_len = sizeof packet - 1};
    struct msghdr msg = {.msg_iov = &data,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    const struct cmsghdr *cmsg;
    int fds[FD_COUNT];
    size_t count = 0;
    ssize_t got = recvmsg(peer->fd, &msg, MSG_CMSG_CLOEXEC);

    if (got <= 0)
        return got < 0 && (errno == EINTR || errno == EAGAIN);
    packet[got] = '\0';
    cmsg = CMSG_FIRSTHDR(&msg);
    if (cmsg && cmsg->cmsg_type == SCM_RIGHTS) {
        count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(cmsg), sizeof(int) * count);
    }
    if (packet[0] == 'r' && count == FD_COUNT && (peer->name[0] || !spawner->group_file))
        start_shim(spawner, peer, str_of(packet), fds);
    else if (packet[0] == 'c' && count == 1 && spawner->config && fork() == 0)
        be_cleaner(spawner, peer, fds[0]);
    else if (count == 0 && str_starts(str_of(packet), STR("agent ")) && !peer->name[0]) {
        memcpy(peer->hello, packet, (size_t)got + 1);
        hear_agent(spawner, peer, (size_t)got + 1);
    }
    while (count > 0)
        close(fds[--count]); /* if too few came, the run's connection closes, which ends it */
    return 1;
}

static void forget(struct peer *peer)
{
    close(peer->fd);
    fd_close(peer->shims_fd);
    *peer = (struct peer){.fd = -1, .shims_fd = -1};
}

/* Shims run as the user that connects, so connecting gives no extra rights. */
static void welcome(struct spawner *spawner)
{
    int fd = accept4(spawner->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    for (size_t i = 0; fd >= 0 && i < PEERS_MAX; i++) {
        struct peer *peer = &spawner->peers[i];
        struct ucred who;
        socklen_t len = sizeof who, groups_len = sizeof peer->groups;

        if (peer->fd >= 0)
            continue;
        peer->fd = fd;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 ||
            getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &groups_len) != 0 ||
            (geteuid() != 0 && who.uid != geteuid())) {
            forget(peer);
            return;
        }
        peer->uid = who.uid;
        peer->gid = who.gid;
        peer->group_count = (int)(groups_len / sizeof peer->groups[0]);
        return;
    }
    fd_close(fd);
}

/* --- both kinds --- */

static void init(struct spawner *spawner)
{
    int64_t oom_adj = 0;

    *spawner = (struct spawner){.listen_fd = -1};
    for (size_t i = 0; i < PEERS_MAX; i++)
        spawner->peers[i] = (struct peer){.fd = -1, .shims_fd = -1};
    cgroup_file_int(AT_FDCWD, "/proc/self/oom_score_adj", NULL, &oom_adj);
    spawner->oom_adj = (int)oom_adj;
    for (int i = 1; i < SIGRTMIN; i++)
        if (i != SIGKILL && i != SIGSTOP)
            signal(i, SIG_DFL); /* jobs would inherit ignored signals */
    signal(SIGCHLD, SIG_IGN);   /* the kernel reaps our children */
    prctl(PR_SET_NAME, "berth-spawner");
}

int spawner_of_agent(void)
{
    static struct spawner spawner;

    init(&spawner);
    spawner.peers[0].fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    spawner.peers[0].uid = geteuid();
    if (spawner.peers[0].fd < 0 || !silence())
        return 1;
    /* Orphans of a killed shim become our children: here they are found, whatever they did to their
     * session and environment, and reaped, so that no zombies are left to an agent that is process
     * 1 of a container. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    while (hear(&spawner, &spawner.peers[0]))
        ;
    return 0;
}

/* The directory belongs to root and its group: a user who may enter it may connect. */
static int listen_at(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || !str_copy(str_of(path), name.sun_path, sizeof name.sun_path))
        return -1;
    unlink(path); /* left by one that was killed */
    if (bind(fd, (struct sockaddr *)&name, sizeof name) != 0 || chmod(path, 0660) != 0 ||
        listen(fd, PEERS_MAX) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int spawner_main(int argc, char **argv)
{
    static struct spawner spawner;
    struct pollfd fds[PEERS_MAX + 1];
    bool private_tmp;

    if (argc != 3) {
        fprintf(stderr, "usage: berth spawner SOCKET GROUP_FILE CONFIG\n");
        return 2;
    }
    umask(077);
    notify_init();
    private_tmp = private_tmp_probe(geteuid() != 0) == 0; /* before SIGCHLD is ignored */
    init(&spawner);
    spawner.group_file = argv[1];
    spawner.config = argv[2];
    spawner.private_tmp = private_tmp;
    spawner.listen_fd = listen_at(argv[0]);
    if (spawner.listen_fd < 0) {
        fprintf(stderr, "berth spawner: %s cannot be made: %s\n", argv[0], strerror(errno));
        return 1;
    }
    notify_send("READY=1");
    for (;;) {
        for (size_t i = 0; i < PEERS_MAX; i++)
            fds[i] = (struct pollfd){.fd = spawner.peers[i].fd, .events = POLLIN};
        fds[PEERS_MAX] = (struct pollfd){.fd = spawner.listen_fd, .events = POLLIN};
        if (poll(fds, PEERS_MAX + 1, -1) < 0)
            continue;
        for (size_t i = 0; i < PEERS_MAX; i++)
            if (fds[i].revents && !hear(&spawner, &spawner.peers[i]))
                forget(&spawner.peers[i]);
        if (fds[PEERS_MAX].revents)
            welcome(&spawner);
    }
}
