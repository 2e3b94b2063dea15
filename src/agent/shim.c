/* `berth shim`: a single shim by hand, or the spawner of an agent. */
#include "agent/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/spawner.h"

static int own_oom_adj(void)
{
    int64_t value = 0;

    cgroup_file_int(AT_FDCWD, "/proc/self/oom_score_adj", NULL, &value);
    return (int)value;
}

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
            signal(i, SIG_DFL); /* the job would inherit what is ignored; a spawner starts clean */
    setsid();
    shim_run(fd, -1, own_oom_adj(), NULL); /* as whoever calls */
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
