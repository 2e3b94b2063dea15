/* See private_tmp.h. */
#include "agent/private_tmp.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/runfile.h"

const struct private_tmp_dir private_tmp_dirs[PRIVATE_TMP_DIRS] = {
    {RUNFILE_TMP, "/tmp"},
    {RUNFILE_VAR_TMP, "/var/tmp"},
};

/* What is in memory alone is made anew, and gone with the last process that sees it. */
static const struct {
    const char *type, *at, *options;
} in_memory[] = {
    {"tmpfs", "/dev/shm", "mode=1777"},
    {"mqueue", "/dev/mqueue", NULL},
};

enum { NAMESPACES = CLONE_NEWNS | CLONE_NEWIPC };

static int put(const char *path, const char *text, size_t len)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC), error = 0;

    if (fd < 0)
        return errno;
    if (write(fd, text, len) != (ssize_t)len)
        error = errno;
    close(fd);
    return error;
}

/* Everybody else is nobody there. */
static int map_id(const char *path, unsigned id)
{
    char line[48];
    int len = snprintf(line, sizeof line, "%u %u 1", id, id);

    return put(path, line, (size_t)len);
}

static int enter_user_namespace(void)
{
    unsigned uid = geteuid(), gid = getegid();
    int error = unshare(CLONE_NEWUSER | NAMESPACES) == 0 ? 0 : errno;

    if (error == 0)
        error = put("/proc/self/setgroups", "deny", 4); /* or its group could not be mapped */
    if (error == 0)
        error = map_id("/proc/self/uid_map", uid);
    if (error == 0)
        error = map_id("/proc/self/gid_map", gid);
    return error;
}

int private_tmp_enter(const char *const from[PRIVATE_TMP_DIRS], bool user_namespace)
{
    int error = unshare(NAMESPACES) == 0 ? 0 : errno;

    if (error == EPERM && user_namespace)
        error = enter_user_namespace();
    /* What the machine mounts later is still seen here; what is mounted here is not seen there. */
    if (error == 0 && mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        error = errno;
    for (int i = 0; error == 0 && i < PRIVATE_TMP_DIRS; i++)
        if (access(private_tmp_dirs[i].at, F_OK) == 0 && /* a small system may have only one */
            mount(from[i], private_tmp_dirs[i].at, NULL, MS_BIND | MS_REC, NULL) != 0)
            error = errno;
    for (size_t i = 0; error == 0 && i < COUNT_OF(in_memory); i++)
        if (access(in_memory[i].at, F_OK) == 0 &&
            mount(in_memory[i].type, in_memory[i].at, in_memory[i].type, MS_NOSUID | MS_NODEV,
                  in_memory[i].options) != 0)
            error = errno;
    return error;
}

int private_tmp_probe(bool user_namespace)
{
    static const char *const from[PRIVATE_TMP_DIRS] = {"/", "/"};
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        _exit(private_tmp_enter(from, user_namespace));
    if (pid < 0)
        return errno;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM; /* a filter may have ended it */
}

static bool is_in(const char *path, const char *dir)
{
    char real[PATH_MAX];
    size_t len;

    if (!realpath(dir, real))
        return false;
    len = strlen(real);
    return strncmp(path, real, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

const char *private_tmp_hides(const char *path)
{
    for (int i = 0; i < PRIVATE_TMP_DIRS; i++)
        if (is_in(path, private_tmp_dirs[i].at))
            return private_tmp_dirs[i].at;
    for (size_t i = 0; i < COUNT_OF(in_memory); i++)
        if (is_in(path, in_memory[i].at))
            return in_memory[i].at;
    return NULL;
}
