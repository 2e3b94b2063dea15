/* Starts and stops PostgreSQL. */
#include "pg_rig.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { PATIENCE_MS = 30000, PATH_MAX_BYTES = 256 };

/* The path of a program of the newest version installed; false: none is. */
static bool program(const char *name, char path[PATH_MAX_BYTES])
{
    glob_t found;
    bool ok = glob("/usr/lib/postgresql/*/bin/postgres", 0, NULL, &found) == 0;

    if (ok) {
        char *last = found.gl_pathv[found.gl_pathc - 1];

        *strrchr(last, '/') = '\0';
        snprintf(path, PATH_MAX_BYTES, "%s/%s", last, name);
        globfree(&found);
    }
    return ok;
}

bool pg_available(void)
{
    char path[PATH_MAX_BYTES];

    return program("postgres", path) && (getuid() != 0 || getpwnam("postgres"));
}

static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) ||
        getsockname(fd, (struct sockaddr *)&at, &size))
        abort();
    close(fd);
    return ntohs(at.sin_port);
}

/* Runs in the child, in a process group of its own, so that all its processes can be killed at
 * once. */
static void become(const char *dir, char *const *args)
{
    struct passwd *user = getuid() == 0 ? getpwnam("postgres") : NULL;
    int fd = open("/dev/null", O_RDWR);

    setpgid(0, 0);
    if (user && (setgroups(0, NULL) || setgid(user->pw_gid) || setuid(user->pw_uid)))
        _exit(127);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fd < 0 || chdir(dir))
        _exit(127);
    dup2(fd, 0);
    dup2(fd, 1);
    dup2(fd, 2);
    execv(args[0], args);
    _exit(127);
}

static pid_t launch(const char *dir, char *const *args)
{
    pid_t pid = fork();

    if (pid == 0)
        become(dir, args);
    if (pid < 0)
        abort();
    return pid;
}

static void make_cluster(struct pg_server *server)
{
    char path[PATH_MAX_BYTES];
    char *args[] = {path, "-D", server->dir, "-U",         "berth", "--auth=trust",
                    "-N", "-E", "UTF8",      "--locale=C", NULL};
    struct passwd *user = getuid() == 0 ? getpwnam("postgres") : NULL;
    int status = -1;

    snprintf(server->dir, sizeof server->dir, "%s/berth-pg-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(server->dir) || (user && chown(server->dir, user->pw_uid, user->pw_gid)) ||
        !program("initdb", path))
        abort();
    if (waitpid(launch(server->dir, args), &status, 0) < 0 || status != 0) {
        fprintf(stderr, "initdb failed\n");
        abort();
    }
}

static bool answers(const char *url)
{
    return PQping(url) == PQPING_OK;
}

void pg_server_start(struct pg_server *server)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    char path[PATH_MAX_BYTES], port[16], pidfile[128];
    char *args[] = {path,
                    "-D",
                    server->dir,
                    "-p",
                    port,
                    "-c",
                    "listen_addresses=127.0.0.1",
                    "-c",
                    "unix_socket_directories=",
                    "-c",
                    "fsync=off",
                    "-c",
                    "max_connections=20",
                    NULL};

    if (!*server->dir)
        make_cluster(server);
    if (!server->port)
        server->port = free_port();
    if (!program("postgres", path))
        abort();
    snprintf(port, sizeof port, "%d", server->port);
    snprintf(server->url, sizeof server->url, "postgresql://berth@127.0.0.1:%d/postgres",
             server->port);
    snprintf(pidfile, sizeof pidfile, "%s/postmaster.pid", server->dir);
    unlink(pidfile); /* left by a server that was killed */
    server->pid = launch(server->dir, args);
    while (!answers(server->url)) {
        if (clock_mono_ms() > end_ms) {
            fprintf(stderr, "postgres does not start\n");
            abort();
        }
        poll(NULL, 0, 10);
        /* The server does not start while backends of the killed one are still ending: try
         * again. */
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid)
            server->pid = launch(server->dir, args);
    }
}

void pg_server_kill(struct pg_server *server)
{
    if (!server->pid)
        return;
    kill(-server->pid, SIGKILL); /* its backends have sessions of their own, not its group: */
    kill(server->pid, SIGKILL);  /* they end when they notice that it is gone */
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void pg_server_remove(struct pg_server *server)
{
    char command[128];

    pg_server_kill(server);
    if (*server->dir) {
        snprintf(command, sizeof command, "rm -rf '%s'", server->dir);
        if (system(command))
            fprintf(stderr, "cannot remove %s\n", server->dir);
    }
    *server = (struct pg_server){0};
}
