/* Control groups: where they are found, and what the real ones on this machine do. */
#include "agent/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run_rig.h"

#define V1_MOUNTS                                                                                  \
    "25 1 0:22 / /sys rw,nosuid - sysfs sysfs rw\n"                                                \
    "30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"                                   \
    "31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"           \
    "33 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"                  \
    "34 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define V2_MOUNTS                                                                                  \
    "25 1 0:22 / /sys rw - sysfs sysfs rw\n"                                                       \
    "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup rw\n"
#define BOX_MOUNTS "30 25 0:26 /docker/ab12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"

static void test_find(void **state)
{
    static const struct {
        const char *mounts, *groups, *controller, *path;
    } rows[] = {
        {V1_MOUNTS, "4:memory:/user/x\n3:cpu,cpuacct:/\n0::/init\n", "memory",
         "/sys/fs/cgroup/memory/user/x"},
        {V1_MOUNTS, "4:memory:/\n3:cpu,cpuacct:/\n0::/\n", "cpuacct", "/sys/fs/cgroup/cpu,cpuacct"},
        {V1_MOUNTS, "4:memory:/\n0::/init.scope\n", NULL, "/sys/fs/cgroup/unified/init.scope"},
        {V1_MOUNTS, "4:memory:/\n", "pids", NULL},
        {V1_MOUNTS, "8:pids:/\n", "pids", NULL}, /* exists, but is not mounted */
        {V1_MOUNTS, "4:mem:/\n", "memory", NULL},
        {V2_MOUNTS, "0::/system.slice/berth.service\n", NULL,
         "/sys/fs/cgroup/system.slice/berth.service"},
        {V2_MOUNTS, "0::/\n", "memory", NULL},
        {BOX_MOUNTS, "4:memory:/docker/ab12\n", "memory", "/sys/fs/cgroup/memory"},
        {BOX_MOUNTS, "4:memory:/docker/ab12/in\n", "memory", "/sys/fs/cgroup/memory/in"},
        {"", "0::/\n", NULL, NULL},
        {V2_MOUNTS, "", NULL, NULL},
        {"30 25 0:26 / /x rw\n- cgroup2\n", "0::/\n", NULL, NULL},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char path[CGROUP_PATH_MAX] = "";
        bool found = cgroup_find(str_of(rows[i].mounts), str_of(rows[i].groups), rows[i].controller,
                                 path, sizeof path);

        assert_int_equal(found, rows[i].path != NULL);
        if (rows[i].path)
            assert_string_equal(path, rows[i].path);
    }
    assert_false(cgroup_find(STR(V2_MOUNTS), STR("0::/long\n"), NULL, (char[8]){0}, 8));
}

static void test_file_int(void **state)
{
    struct rig rig;
    int64_t value = 7;
    int dir_fd;

    rig_make(&rig);
    dir_fd = open(rig.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(openat(dir_fd, "f", O_CREAT | O_WRONLY, 0600));
    assert_false(cgroup_file_int(dir_fd, "f", NULL, &value));
    assert_int_equal(cgroup_file_put(dir_fd, "f", "low 1\noom 2\noom_kill 3\n"), 0);
    assert_true(cgroup_file_int(dir_fd, "f", "oom_kill", &value) && value == 3);
    assert_false(cgroup_file_int(dir_fd, "f", "oom_", &value));
    assert_false(cgroup_file_int(dir_fd, "f", NULL, &value));
    assert_false(cgroup_file_int(dir_fd, "none", NULL, &value));
    assert_int_equal(cgroup_file_put(dir_fd, "none", "1"), ENOENT);
    close(dir_fd);
    rig_remove(&rig);
}

/* --- the real ones --- */

struct site {
    struct cgroup_place place;
    struct cgroup group;
};

static int setup(void **state)
{
    static struct site site;
    char name[32];

    snprintf(name, sizeof name, "berth-test-%d", (int)getpid());
    cgroup_probe(name, &site.place);
    site.group = CGROUP_NONE;
    *state = &site;
    return 0;
}

static int teardown(void **state)
{
    struct site *site = *state;

    cgroup_unprobe(&site->place);
    if (site->place.parent[0])
        assert_int_equal(access(site->place.parent, F_OK), -1); /* nothing is left behind */
    return 0;
}

static pid_t child_in(const struct cgroup *group)
{
    pid_t pid = fork();

    if (pid == 0) {
        if (cgroup_enter(group) != 0)
            _exit(1);
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    assert_true(pid > 0);
    return pid;
}

static void await_inside(const struct cgroup *group, size_t count)
{
    for (int64_t until_ms = clock_mono_ms() + RIG_PATIENCE_MS;;) {
        struct buf procs = {0};
        size_t lines = 0;

        cgroup_file_get(group->fd, "cgroup.procs", &procs);
        for (size_t i = 0; i < procs.len; i++)
            lines += procs.at[i] == '\n';
        buf_free(&procs);
        if (lines == count)
            return;
        assert_true(clock_mono_ms() < until_ms);
        sched_yield();
    }
}

static void test_kill(void **state)
{
    struct site *site = *state;
    struct problem why = {0};
    pid_t pids[3];
    int status;

    if (!site->place.parent[0]) {
        assert_non_null(strstr(site->place.missing, "memory"));
        rig_skip_groups();
    }
    if (cgroup_make(&site->group, &site->place, STR("kill.1"), &(struct cgroup_limits){0}, &why))
        fail_msg("%s", why.detail);
    assert_true(cgroup_empty(&site->group));
    for (size_t i = 0; i < COUNT_OF(pids); i++)
        pids[i] = child_in(&site->group);
    await_inside(&site->group, COUNT_OF(pids));
    assert_false(cgroup_empty(&site->group));
    assert_true(cgroup_kill(&site->group));
    for (size_t i = 0; i < COUNT_OF(pids); i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    await_inside(&site->group, 0);
    cgroup_remove(&site->group);
}

/* Whichever controllers could not be passed on, our group and its parent are still of type domain;
 * nothing could enter a threaded or invalid one. */
static void test_types(void **state)
{
    struct site *site = *state;
    char path[CGROUP_PATH_MAX + 32];
    struct buf type = {0};
    const struct cgroup_limits none = {0};
    struct problem why = {0};

    if (!site->place.parent[0])
        rig_skip_groups();
    snprintf(path, sizeof path, "%s/cgroup.type", site->place.parent);
    assert_int_equal(cgroup_file_get(AT_FDCWD, path, &type), 0);
    assert_true(str_is(buf_view(&type), "domain\n"));
    buf_clear(&type);
    snprintf(path, sizeof path, "%s/../cgroup.type", site->place.parent);
    if (cgroup_file_get(AT_FDCWD, path, &type) == 0) /* the root group has none */
        assert_true(str_is(buf_view(&type), "domain\n"));
    buf_free(&type);
    assert_int_equal(cgroup_make(&site->group, &site->place, STR("type.1"), &none, &why), ERR_OK);
    assert_true(site->group.fd >= 0);
    cgroup_remove(&site->group);
}

static void test_limits(void **state)
{
    struct site *site = *state;
    const bool *offered = site->place.limits;
    struct cgroup_limits wanted = {
        .memory_bytes_max = 8 << 20, .pids_max = 7, .cpu_permille_max = 250};
    struct problem why = {0};
    struct buf quota = {0};
    int64_t value;

    if (!offered[CGROUP_MEMORY] || !offered[CGROUP_PIDS] || !offered[CGROUP_CPU]) {
        assert_true(site->place.missing[0]);
        /* No group is made whose limit is not enforced. */
        assert_int_equal(cgroup_make(&site->group, &site->place, STR("limits.1"), &wanted, &why),
                         ERR_IO);
        assert_int_equal(site->group.fd, -1);
        rig_skip_groups();
    }
    if (cgroup_make(&site->group, &site->place, STR("limits.1"), &wanted, &why))
        fail_msg("%s", why.detail);
    assert_true(cgroup_file_int(site->group.fd, "pids.max", NULL, &value) && value == 7);
    assert_true(cgroup_file_int(site->group.fd, "memory.max", NULL, &value) && value == 8 << 20);
    assert_int_equal(cgroup_file_get(site->group.fd, "cpu.max", &quota), 0);
    assert_true(str_is(buf_view(&quota), "25000 100000\n"));
    buf_free(&quota);
    assert_int_equal(cgroup_oom_kills(&site->group), 0);
    cgroup_remove(&site->group);
    cgroup_open(&site->group, &site->place, STR("limits.1"));
    assert_int_equal(site->group.fd, -1); /* the group is removed */
}

static void test_sweep(void **state)
{
    struct site *site = *state;
    struct map runs = {0};
    char kept[CGROUP_PATH_MAX + 16], gone[CGROUP_PATH_MAX + 16];

    if (!site->place.parent[0])
        rig_skip_groups();
    snprintf(kept, sizeof kept, "%s/kept", site->place.parent);
    snprintf(gone, sizeof gone, "%s/gone", site->place.parent);
    assert_int_equal(mkdir(kept, 0755), 0);
    assert_int_equal(mkdir(gone, 0755), 0);
    map_put(&runs, STR("kept"), site);
    cgroup_sweep(&site->place, &runs);
    assert_int_equal(access(gone, F_OK), -1);
    assert_int_equal(rmdir(kept), 0);
    map_free(&runs);
}

/* A run without limits needs no group; one with limits is never started without them. */
static void test_places_that_fail(void **state)
{
    static const struct cgroup_limits some = {.memory_bytes_max = 1}, none = {0};
    struct cgroup_place place = {0};
    struct cgroup group;
    struct problem why = {0};

    for (int i = 0; i < 2; i++) {
        assert_int_equal(cgroup_make(&group, &place, STR("k"), &none, &why), ERR_OK);
        assert_int_equal(group.fd, -1);
        assert_int_equal(cgroup_enter(&group), 0);
        assert_false(cgroup_kill(&group));
        assert_true(cgroup_empty(&group));
        cgroup_remove(&group);
        assert_int_equal(cgroup_make(&group, &place, STR("k"), &some, &why), ERR_IO);
        assert_true(why.detail[0]);
        strcpy(place.parent, "/proc/self/nothing/here");
        place.limits[CGROUP_MEMORY] = true;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_file_int),
        cmocka_unit_test_setup_teardown(test_kill, setup, teardown),
        cmocka_unit_test_setup_teardown(test_types, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
        cmocka_unit_test(test_places_that_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
