/* The agent's own processes, on machines that are directory trees. */
#include <unistd.h>

#include "usage_fixture.h"

/* Time between two samples. After a walk the next one waits fifty times as long as the walk took,
 * so a walk would have to take two seconds to be missing from the next sample. */
enum { STEP_MS = 100000, STEP_S = STEP_MS / 1000 };

static void test_own_trees(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    long page_kib = sysconf(_SC_PAGESIZE) / 1024, hz = sysconf(_SC_CLK_TCK);
    const int shims[] = {200, 300};
    struct machine_proc procs[] = {
        {.pid = 1, .ticks = 900000, .rss_pages = 1},                         /* not ours */
        {.pid = 50, .parent = 1, .session = 50, .ticks = 5, .rss_pages = 9}, /* not ours either */
        /* Its agent restarted. */
        {.pid = 200, .parent = 1, .session = 200, .ticks = 0, .rss_pages = 2},
        {.pid = 201, .parent = 200, .session = 201, .ticks = 10, .rss_pages = 30},
        {.pid = 202, .parent = 201, .session = 201, .ticks = 10, .rss_pages = 40, .name = "a) b ("},
        {.pid = 300, .parent = 100, .session = 300, .ticks = 0, .rss_pages = 2},
        /* In its session. */
        {.pid = 301, .parent = 1, .session = 300, .ticks = 0, .rss_pages = 500},
        {.pid = 302, .parent = 300, .session = 302, .ticks = 77, .rss_pages = 8, .state = "Z"},
        {.pid = 101, .parent = 100, .session = 100, .ticks = 0, .rss_pages = 3},
    };
    struct machine_proc self = {
        .pid = 100, .parent = 50, .session = 50, .ticks = 7, .rss_pages = 5};
    struct usage usage;

    machine_put_us(machine);
    machine_put_self(machine, &self);
    for (size_t i = 0; i < COUNT_OF(procs); i++)
        machine_put_proc(machine, &procs[i]);
    machine_put(machine, "proc/202x/other", "a directory that is no process\n");
    usage_own(fixture->meter, shims, COUNT_OF(shims));
    usage = look(fixture, 0);
    assert_int_equal(usage.own_cpu_permille, USAGE_NONE); /* no rate yet */
    assert_int_equal(usage.own_memory_kib, (2 + 30 + 40 + 2 + 500 + 3 + 5) * page_kib);
    assert_int_equal(usage.tree_count, 2);
    assert_int_equal(usage.trees[0].pid, 200);
    assert_int_equal(usage.trees[0].memory_kib, 72 * page_kib);
    assert_int_equal(usage.trees[1].memory_kib, 502 * page_kib);

    procs[4].ticks += hz * STEP_S * 2; /* two cores */
    procs[6].ticks += hz * STEP_S / 2; /* half a core */
    self.ticks += hz * STEP_S / 10;    /* a tenth of a core */
    procs[1].ticks += hz * STEP_S * 5; /* not ours */
    procs[0].ticks += hz * STEP_S;
    for (size_t i = 0; i < COUNT_OF(procs); i++)
        machine_put_proc(machine, &procs[i]);
    machine_put_self(machine, &self);
    usage = look(fixture, STEP_MS);
    assert_int_equal(usage.trees[0].cpu_permille, 250); /* 2 of 8 cores */
    assert_int_equal(usage.trees[1].cpu_permille, 62);
    assert_int_equal(usage.own_cpu_permille, 325);
}

static void test_processes_come_and_go(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    long hz = sysconf(_SC_CLK_TCK);
    struct machine_proc self = {.pid = 100, .parent = 1, .session = 100, .start = 5};
    struct machine_proc child = {.pid = 101, .parent = 100, .ticks = 3600 * hz, .start = 10};
    struct machine_proc old = {.pid = 400, .parent = 1, .session = 400, .ticks = 3600 * hz};
    const int pids[] = {400};

    machine_put_us(machine);
    machine_put_self(machine, &self);
    machine_put_proc(machine, &child);
    machine_put_proc(machine, &old);
    /* Since an hour ago: no rate. */
    assert_int_equal(look(fixture, -STEP_MS).own_cpu_permille, USAGE_NONE);
    look(fixture, 0);

    machine_drop(machine, "proc/101/stat"); /* it ended, and its whole use is skipped */
    assert_int_equal(look(fixture, STEP_MS).own_cpu_permille, 0);

    child.ticks = hz * STEP_S; /* the pid is reused: all of its use is new */
    child.start = 2000;
    machine_put_proc(machine, &child);
    assert_int_equal(look(fixture, 2 * STEP_MS).own_cpu_permille, 125);

    child.ticks = hz * STEP_S / 2; /* the pid is reused by one that used less */
    child.start = 3000;
    machine_put_proc(machine, &child);
    assert_int_equal(look(fixture, 3 * STEP_MS).own_cpu_permille, 62);

    usage_own(fixture->meter, pids, 1); /* an old process joins: its past does not count */
    assert_int_equal(look(fixture, 4 * STEP_MS).own_cpu_permille, 0);
    old.ticks += hz * STEP_S * 4;
    machine_put_proc(machine, &old);
    assert_int_equal(look(fixture, 5 * STEP_MS).own_cpu_permille, 500);
    usage_own(fixture->meter, NULL, 0);
    assert_int_equal(look(fixture, 6 * STEP_MS).tree_count, 0);
}

/* Most of a compiler's work is done by processes that live for less than a second. */
static void test_children_that_ended(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    long hz = sysconf(_SC_CLK_TCK);
    struct machine_proc shim = {.pid = 200, .parent = 1, .session = 200, .waited = 3600 * hz};
    struct machine_proc child = {.pid = 201, .parent = 200, .ticks = 10 * hz, .start = 5};
    const int pids[] = {200};

    machine_put_us(machine);
    machine_put_proc(machine, &shim);
    machine_put_proc(machine, &child);
    usage_own(fixture->meter, pids, 1);
    look(fixture, -1000);
    look(fixture, 0);
    shim.waited += hz; /* a child that came and went between two samples */
    machine_put_proc(machine, &shim);
    assert_int_equal(look(fixture, 1000).trees[0].cpu_permille, 125);
    machine_drop(machine, "proc/201/stat"); /* its use was counted before, all but a second */
    shim.waited += 11 * hz;
    machine_put_proc(machine, &shim);
    assert_int_equal(look(fixture, 2000).trees[0].cpu_permille, 125);
    assert_int_equal(look(fixture, 3000).trees[0].cpu_permille, 0);
}

/* Memory that killing a tree would free: no file pages, and shared memory only once. */
static void test_what_an_end_gives_back(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    long page_kib = sysconf(_SC_PAGESIZE) / 1024;
    struct machine_proc procs[] = {
        {.pid = 200, .parent = 1, .session = 200, .rss_pages = 10},
        {.pid = 201, .parent = 200, .session = 200, .rss_pages = 1000},
        {.pid = 202, .parent = 200, .session = 200, .rss_pages = 1000},
        {.pid = 300, .parent = 1, .session = 300, .rss_pages = 7},
    };
    const int pids[] = {200, 300};
    struct usage usage;

    machine_put_us(machine);
    for (size_t i = 0; i < COUNT_OF(procs); i++)
        machine_put_proc(machine, &procs[i]);
    machine_put(machine, "proc/200/status", "Name:\tshim\nRssAnon:\t 5 kB\n");
    machine_put(machine, "proc/201/status",
                "RssAnon:\t     100 kB\nRssFile:\t    4000 kB\nRssShmem:\t    2000 kB\n"
                "VmSwap:\t      30 kB\n");
    machine_put(machine, "proc/202/status",
                "RssAnon:\t     200 kB\nRssShmem:\t    1500 kB\nVmSwap:\t       7 kB\n");
    usage_own(fixture->meter, pids, 2);
    usage = look(fixture, 0);
    assert_int_equal(usage.trees[0].memory_kib, 2010 * page_kib);
    assert_int_equal(usage.trees[0].swap_kib, 37);
    assert_int_equal(usage.trees[0].freed_kib, 5 + 100 + 200 + 37 + 2000);
    assert_int_equal(usage.trees[1].freed_kib, 7 * page_kib); /* /proc shows no more of it */
}

/* While memory runs out a task is about to be chosen by size, so sizes must be read again. */
static void test_no_rest_while_memory_runs_out(void **state)
{
    struct fixture *fixture = *state;
    struct machine_proc hog = {.pid = 200, .parent = 1, .session = 200, .rss_pages = 10};
    const int pids[] = {200};
    int64_t memory_kib;

    machine_put_us(&fixture->machine);
    machine_put_proc(&fixture->machine, &hog);
    usage_alert(fixture->meter, 1000);
    usage_own(fixture->meter, pids, 1);
    memory_kib = look(fixture, 0).trees[0].freed_kib;
    hog.rss_pages = 1000;
    machine_put_proc(&fixture->machine, &hog);
    assert_int_equal(look(fixture, 0).trees[0].freed_kib, memory_kib);
    machine_put_memory(&fixture->machine, 15 << 20, 1 << 20, 0, 0);
    assert_int_equal(look(fixture, 0).trees[0].freed_kib, memory_kib * 100);
}

/* Trees are named at each sample; their figures stay until the next walk. */
static void test_named_again(void **state)
{
    struct fixture *fixture = *state;
    struct machine_proc shim = {.pid = 200, .parent = 1, .session = 200, .rss_pages = 10};
    const int first[] = {200}, then[] = {201, 200};
    int64_t memory_kib;
    struct usage usage;

    machine_put_us(&fixture->machine);
    machine_put_proc(&fixture->machine, &shim);
    usage_own(fixture->meter, first, 1);
    memory_kib = look(fixture, 0).trees[0].memory_kib;
    assert_true(memory_kib > 0);
    usage_own(fixture->meter, then, 2);
    usage = look(fixture, 0); /* the same moment: no walk */
    assert_int_equal(usage.tree_count, 2);
    assert_int_equal(usage.trees[0].memory_kib, USAGE_NONE);
    assert_int_equal(usage.trees[1].pid, 200);
    assert_int_equal(usage.trees[1].memory_kib, memory_kib);
    assert_int_equal(look(fixture, STEP_MS).trees[0].memory_kib, 0);
}

/* /proc changes while it is read: cycles and missing parents must not cause a hang. */
static void test_odd_trees(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    struct machine_proc self = {.pid = 100, .parent = 7777, .session = 100};
    struct machine_proc procs[] = {
        {.pid = 10, .parent = 11, .session = 10},
        {.pid = 11, .parent = 12, .session = 10},
        {.pid = 12, .parent = 10, .session = 10},
        {.pid = 13, .parent = 13, .session = 10},
        {.pid = 14, .parent = 12, .session = 10, .rss_pages = 999},
    };

    machine_put_us(machine);
    machine_put_self(machine, &self);
    for (size_t i = 0; i < COUNT_OF(procs); i++)
        machine_put_proc(machine, &procs[i]);
    machine_put(machine, "proc/15/stat", "%s", "");
    machine_put(machine, "proc/16/stat", "16 (cut) S 100 16");
    machine_put(machine, "proc/17/stat", "no process at all");
    assert_int_equal(look(fixture, 0).own_memory_kib, 0);
    assert_int_equal(look(fixture, STEP_MS).own_memory_kib, 0);
}

#define ON_A_MACHINE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_MACHINE(test_own_trees),
        ON_A_MACHINE(test_processes_come_and_go),
        ON_A_MACHINE(test_children_that_ended),
        ON_A_MACHINE(test_what_an_end_gives_back),
        ON_A_MACHINE(test_no_rest_while_memory_runs_out),
        ON_A_MACHINE(test_named_again),
        ON_A_MACHINE(test_odd_trees),
    };

    return cmocka_run_group_tests_name("usage_tree", tests, NULL, NULL);
}
