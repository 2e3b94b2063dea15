/* Processes that wait for a disk and cannot be killed. The test's own file system answers when the
 * test wants. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/process_tree.h"
#include "run_rig.h"

struct site {
    struct rig rig;
    char dir[64]; /* of the file system; "": not possible here */
    int fuse_fd;
    atomic_int waiting; /* number of opens that wait */
    pthread_t server;
};

enum { FILE_NODE = 2 };

static void answer(int fd, uint64_t unique, int error, const void *body, size_t len)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof head + len), .error = error, .unique = unique};
    char packet[512];
    ssize_t ignored;

    memcpy(packet, &head, sizeof head);
    if (len > 0)
        memcpy(packet + sizeof head, body, len);
    ignored = write(fd, packet, sizeof head + len);
    (void)ignored;
}

static struct fuse_attr attr_of(uint64_t node)
{
    return (struct fuse_attr){
        .ino = node, .mode = node == FILE_NODE ? S_IFREG | 0600 : S_IFDIR | 0700, .nlink = 1};
}

/* Serves a directory with one file, `file`, and never answers its open. */
static void *serve(void *arg)
{
    struct site *site = arg;
    static char packet[FUSE_MIN_READ_BUFFER * 4];
    ssize_t got;

    while ((got = read(site->fuse_fd, packet, sizeof packet)) > 0) {
        struct fuse_in_header head;

        memcpy(&head, packet, sizeof head);
        if (head.opcode == FUSE_INIT) {
            struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
                                         .minor = FUSE_KERNEL_MINOR_VERSION,
                                         .max_write = 4096};

            answer(site->fuse_fd, head.unique, 0, &init, sizeof init);
        } else if (head.opcode == FUSE_LOOKUP) {
            struct fuse_entry_out entry = {
                .nodeid = FILE_NODE, .entry_valid = 3600, .attr_valid = 3600, .attr = attr_of(2)};

            answer(site->fuse_fd, head.unique, 0, &entry, sizeof entry);
        } else if (head.opcode == FUSE_GETATTR) {
            struct fuse_attr_out out = {.attr_valid = 3600, .attr = attr_of(head.nodeid)};

            answer(site->fuse_fd, head.unique, 0, &out, sizeof out);
        } else if (head.opcode == FUSE_OPEN) {
            site->waiting++;
        } else {
            answer(site->fuse_fd, head.unique, -ENOSYS, NULL, 0);
        }
    }
    return NULL;
}

static int setup(void **state)
{
    struct site *site = calloc(1, sizeof *site);
    char options[80];

    *state = site;
    site->fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", site->fuse_fd);
    strcpy(site->dir, "/tmp/berth-stuck-XXXXXX");
    if (!mkdtemp(site->dir))
        return -1;
    /* The mounts are visible only to this process and its children. */
    if (site->fuse_fd < 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("stuck", site->dir, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        rmdir(site->dir);
        site->dir[0] = '\0';
        return 0;
    }
    if (pthread_create(&site->server, NULL, serve, site) != 0)
        return -1;
    rig_make(&site->rig);
    rig_open(&site->rig);
    rig_adopt(&site->rig);
    return 0;
}

/* Aborts the file system, which ends all waiting calls. */
static void release(struct site *site)
{
    if (site->server)
        umount2(site->dir, MNT_FORCE);
}

static int teardown(void **state)
{
    struct site *site = *state;
    void *rig = &site->rig;

    if (site->dir[0]) {
        release(site);
        umount2(site->dir, MNT_DETACH);
        for (struct run *run = NULL; (run = runs_next(site->rig.runs, run));)
            run_stop(run, "STOPPED", 0);
        rig_await(&site->rig, runs_count(site->rig.runs) == 0);
        rig_close(rig);
        rig_remove(rig);
        pthread_join(site->server, NULL);
        rmdir(site->dir);
    }
    if (site->fuse_fd >= 0)
        close(site->fuse_fd);
    free(site);
    return 0;
}

static char state_of(int pid)
{
    struct run_proc proc;

    return process_tree_proc(pid, &proc) ? proc.state : '-';
}

/* A lost run has not ended while one of its processes is alive, or a new copy would run next to
 * it. */
static void test_lost_but_alive(void **state)
{
    struct site *site = *state;
    struct rig *rig = &site->rig;
    char script[128];
    struct run *run;
    int64_t ticks;
    int pid;

    if (!site->dir[0])
        skip();
    snprintf(script, sizeof script, "echo $$ > ../pid; exec cat %s/file", site->dir);
    run = rig_sh(rig, "alive", script, NULL);
    rig_await(rig, (pid = (int)rig_read_pid(rig_path(rig, "alive/pid"))) > 0 && site->waiting > 0 &&
                       run_shim_pid(run) > 0);
    kill(run_shim_pid(run), SIGKILL);
    rig_await(rig, run->priv->lost);
    ticks = rig->runs->ticks;
    /* At least two rounds of killing. */
    rig_await(rig, rig->runs->ticks > ticks + 2 * RUN_LOST_ROUND_MS / RUN_TICK_MS + 2);
    assert_int_equal(state_of(pid), 'D');
    assert_int_not_equal(run->state, RUN_ENDED);
    assert_int_equal(runs_count(rig->runs), 1);
    release(site);
    rig_await_end(rig, run);
    assert_exit(run, "SHIM_LOST", -1, -1);
    assert_false(rig_alive(pid));
}

/* A shim that waits for the disk while it writes the exit record is not killed for its silence. */
static void test_record_takes_long(void **state)
{
    struct site *site = *state;
    struct rig *rig = &site->rig;
    char from[128], to[128];
    struct run *run;
    int64_t ticks;
    int shim;

    if (!site->dir[0])
        skip();
    run = rig_sh(rig, "slow", "exec sleep 1000", NULL);
    rig_await(rig, run->state == RUN_RUNNING && (shim = run_shim_pid(run)) > 0);
    snprintf(from, sizeof from, "%s/file", site->dir);
    snprintf(to, sizeof to, "%s", rig_path(rig, "slow/exit"));
    assert_int_equal(mount(from, to, NULL, MS_BIND, NULL), 0);
    run_stop(run, "CANCELLED", 0);
    rig_await(rig, site->waiting > 0);
    kill(shim, SIGSTOP); /* from here on it waits as for a disk, which only SIGCONT ends */
    rig_await(rig, state_of(shim) == 'D');
    kill(shim, SIGCONT);
    rig->runs->patience_ms = 50;
    rig_await(rig, run->priv->pinged_ms > 0);
    ticks = rig->runs->ticks;
    rig_await(rig, rig->runs->ticks > ticks + 10);
    assert_int_equal(umount2(to, MNT_DETACH), 0);
    release(site);
    rig_await_end(rig, run);
    assert_exit(run, "CANCELLED", -1, SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lost_but_alive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_record_takes_long, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
