/* Measuring, on machines that are directory trees, and the figures computed from it. */
#include "usage_fixture.h"

#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define GIB INT64_C(1048576) /* in KiB */

static void test_a_machine_of_eight_cores(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;

    machine_put_us(&fixture->machine);
    usage = look(fixture, 5);
    assert_int_equal(usage.cores_milli, 8000);
    assert_int_equal(usage.load_1m_centi, 600);
    assert_int_equal(usage.mem_total_kib, 15 * GIB);
    assert_int_equal(usage.mem_free_kib, 11 * GIB);
    assert_int_equal(usage.swap_total_kib, 0);
    assert_int_equal(usage.swap_used_kib, 0);
    assert_int_equal(usage.at_ms, 1700000000005);
    assert_int_equal(usage.mono_ms, 5);
    assert_false(usage.confined);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_CPU), 7500);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_MEMORY), 7333);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_SWAP), 0);
}

static void test_what_is_not_there_is_not_invented(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;
    struct problem why = {0};

    assert_int_equal(usage_measure(fixture->meter, 1, 1, &usage, &why), ERR_IO);
    assert_string_equal(why.field, "host_root");

    machine_put_memory(&fixture->machine, 15 * GIB, 11 * GIB, 0, 0);
    usage = look(fixture, 10);
    assert_int_equal(usage.cores_milli, USAGE_NONE);
    assert_int_equal(usage.load_1m_centi, USAGE_NONE);
    assert_int_equal(usage.busy_10s_permille, USAGE_NONE);
    assert_int_equal(usage.psi_mem_full_centi, USAGE_NONE);
    assert_int_equal(usage.gpu_permille, USAGE_NONE);
    assert_int_equal(usage.own_cpu_permille, USAGE_NONE);
    assert_int_equal(usage.own_memory_kib, USAGE_NONE);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_CPU), USAGE_NONE);

    machine_put_load(&fixture->machine, 2, "garbage");
    machine_put(&fixture->machine, "proc/meminfo", "MemTotal: lots kB\nSwapTotal: 5 kB\n");
    usage = look(fixture, 20);
    assert_int_equal(usage.cores_milli, 2000);
    assert_int_equal(usage.load_1m_centi, USAGE_NONE);
    assert_int_equal(usage.mem_total_kib, USAGE_NONE);
    assert_int_equal(usage.swap_used_kib, USAGE_NONE); /* free swap is unknown */
    assert_int_equal(usage_pct_centi(&usage, LEVEL_MEMORY), USAGE_NONE);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_SWAP), USAGE_NONE);
}

static void test_centi(void **state)
{
    static const struct {
        const char *text;
        int64_t centi;
    } rows[] = {
        {"0", 0},         {"0.00", 0}, {"6.2", 620}, {"6.25", 625}, {"12.349", 1234},
        {"100.5", 10050}, {"", -1},    {"x", -1},    {"-1.0", -1},  {"1.x", -1},
        {"1.", 100},      {"nan", -1}, {"0.5%", -1},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t centi = -1;

        assert_int_equal(usage_centi(str_of(rows[i].text), &centi), rows[i].centi >= 0);
        assert_int_equal(centi, rows[i].centi);
    }
}

static void put_ticks(struct fixture *fixture, int64_t busy, int64_t idle)
{
    machine_put(&fixture->machine, "proc/stat",
                "cpu  %ld 0 0 %ld 0 0 0 0 0 0\ncpu0 1 1 1\ncpu1 1 1 1\n", (long)busy, (long)idle);
}

static void test_busy_over_ten_seconds(void **state)
{
    struct fixture *fixture = *state;
    int64_t busy = 1000, idle = 5000;

    machine_put_us(&fixture->machine);
    put_ticks(fixture, busy, idle);
    assert_int_equal(look(fixture, 0).busy_10s_permille, USAGE_NONE);
    for (int at = 1; at <= 20; at++) { /* 200 ticks a second, half of them busy */
        put_ticks(fixture, busy += 100, idle += 100);
        assert_int_equal(look(fixture, at * 1000).busy_10s_permille, 500);
    }
    for (int at = 21; at <= 30; at++) { /* then all busy: it shows gradually within 10 s */
        put_ticks(fixture, busy += 200, idle);
        assert_int_equal(look(fixture, at * 1000).busy_10s_permille, 500 + 50 * (at - 20));
    }
    put_ticks(fixture, busy += 200, idle);
    assert_int_equal(look(fixture, 31000).busy_10s_permille, 1000);
}

static void test_busy_with_few_or_many_looks(void **state)
{
    struct fixture *fixture = *state;
    int64_t busy = 0, idle = 0;

    machine_put_us(&fixture->machine);
    for (int at = 0; at <= 300; at += 30) { /* a sample every 30 s */
        put_ticks(fixture, busy += 1500, idle += 4500);
        if (at > 0)
            assert_int_equal(look(fixture, at * 1000).busy_10s_permille, 250);
        else
            look(fixture, 0);
    }
    for (int at = 300001; at < 400000; at += 100) { /* ten samples a second: still 10 s back */
        put_ticks(fixture, busy += 10, idle += 10);
        look(fixture, at);
    }
    put_ticks(fixture, busy += 10, idle += 10);
    assert_int_equal(look(fixture, 400001).busy_10s_permille, 500);
}

/* A static directory tree has counters that do not move: then only the load average is used. */
static void test_counters_that_stand_still_or_go_back(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;

    machine_put_us(&fixture->machine);
    look(fixture, 0);
    usage = look(fixture, 1000);
    assert_int_equal(usage.busy_10s_permille, USAGE_NONE);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_CPU), 7500);
    put_ticks(fixture, 0, 0);
    assert_int_equal(look(fixture, 2000).busy_10s_permille, USAGE_NONE);
}

/* CPU use is the smaller of load and busy time: waiting for disks raises the load without using
 * CPU. */
static void test_cpu_is_the_smaller(void **state)
{
    static const struct {
        int64_t cores_milli, load_centi, busy_permille, centi;
    } rows[] = {
        {8000, 600, 900, 7500},        {8000, 600, 100, 1000},
        {8000, 1600, 1000, 10000},     {8000, 2000, USAGE_NONE, 25000},
        {8000, USAGE_NONE, 333, 3330}, {USAGE_NONE, 600, 333, 3330},
        {3000, 100, 1000, 3333},       {1500, 120, 1000, 8000},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct usage usage = {.cores_milli = rows[i].cores_milli,
                              .load_1m_centi = rows[i].load_centi,
                              .busy_10s_permille = rows[i].busy_permille};

        assert_int_equal(usage_pct_centi(&usage, LEVEL_CPU), rows[i].centi);
    }
}

/* Figures are rounded so that they never look better than measured. */
static void test_figures_round_to_the_worse_side(void **state)
{
    struct usage usage = {.cores_milli = 256000,
                          .load_1m_centi = 20481, /* 80.0039 % of 256 cores */
                          .busy_10s_permille = 1000,
                          .mem_total_kib = 30000001,
                          .mem_free_kib = 3000000, /* 9.9999996 % */
                          .swap_total_kib = 30000001,
                          .swap_used_kib = 15000001,
                          .psi_mem_full_centi = 1234};
    struct level_figures figures;

    usage_figures(&usage, &figures);
    assert_int_equal(figures.ppm[LEVEL_CPU], 800040);
    assert_int_equal(figures.ppm[LEVEL_MEMORY], 99999);
    assert_int_equal(figures.ppm[LEVEL_SWAP], 500001);
    assert_int_equal(figures.ppm[LEVEL_PRESSURE], 123400);
    assert_int_equal(level_of(&figures, &level_defaults).of[LEVEL_CPU], LEVEL_DANGER);
    assert_int_equal(level_of(&figures, &level_defaults).of[LEVEL_MEMORY], LEVEL_CRITICAL);
}

static void test_swap_and_pressure(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;

    machine_put_us(&fixture->machine);
    machine_put_memory(&fixture->machine, 4 * GIB, GIB, 2 * GIB, GIB / 2);
    machine_put(&fixture->machine, "proc/pressure/cpu", "some avg10=12.34 avg60=1.00 total=5\n");
    machine_put(&fixture->machine, "proc/pressure/memory",
                "some avg10=3.00 avg60=1.00 avg300=0.00 total=5\n"
                "full avg10=1.50 avg60=0.00 avg300=0.00 total=4\n");
    usage = look(fixture, 0);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_SWAP), 7500);
    assert_int_equal(usage.psi_cpu_some_centi, 1234);
    assert_int_equal(usage.psi_mem_some_centi, 300);
    assert_int_equal(usage.psi_mem_full_centi, 150);
    assert_int_equal(usage.psi_io_some_centi, USAGE_NONE);
}

/* --- cgroups --- */

static void put_v2(struct fixture *fixture, const char *path)
{
    machine_put_us(&fixture->machine);
    machine_put(&fixture->machine, "proc/self/cgroup", "0::%s\n", path);
    machine_put(&fixture->machine, "proc/self/mountinfo",
                "22 1 0:20 / / rw - ext4 /dev/sda1 rw\n"
                "30 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
}

static void test_v2_limits(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    struct usage usage;

    put_v2(fixture, "/app");
    machine_put(machine, "sys/fs/cgroup/app/memory.max", "2147483648\n");
    machine_put(machine, "sys/fs/cgroup/app/memory.current", "1610612736\n");
    machine_put(machine, "sys/fs/cgroup/app/memory.stat",
                "anon 1000\nfile 999999999\nactive_file 104857600\ninactive_file 209715200\n"
                "shmem 5\nslab_reclaimable 1048576\n");
    machine_put(machine, "sys/fs/cgroup/app/cpu.max", "150000 100000\n");
    machine_put(machine, "sys/fs/cgroup/app/memory.swap.max", "0\n");
    machine_put(machine, "sys/fs/cgroup/app/memory.swap.current", "0\n");
    machine_put(machine, "sys/fs/cgroup/app/memory.pressure", "full avg10=40.00 avg60=0 total=0\n");
    machine_put(machine, "proc/pressure/memory", "full avg10=1.00 avg60=0 total=0\n");
    machine_put_memory(machine, 15 * GIB, 11 * GIB, GIB, 0);
    usage = look(fixture, 0);
    assert_true(usage.confined);
    assert_int_equal(usage.cores_milli, 1500);
    assert_int_equal(usage.mem_total_kib, 2 * GIB);
    /* 0.5 GiB never used, 300 MiB of file cache and 1 MiB of slab */
    assert_int_equal(usage.mem_free_kib, GIB / 2 + 301 * 1024);
    assert_int_equal(usage.swap_total_kib, 0);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_SWAP),
                     0); /* the machine's full swap does not matter here */
    assert_int_equal(usage.psi_mem_full_centi, 4000);
    assert_int_equal(usage.load_1m_centi, USAGE_NONE); /* the load of 6.00 is the whole machine's */
}

static void test_v2_without_limits(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;

    put_v2(fixture, "/app");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/memory.max", "max\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/memory.current", "1610612736\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/cpu.max", "max 100000\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/cpuset.cpus.effective", "0-7\n");
    usage = look(fixture, 0);
    assert_false(usage.confined);
    assert_int_equal(usage.cores_milli, 8000);
    assert_int_equal(usage.mem_free_kib, 11 * GIB);
    assert_int_equal(usage.load_1m_centi, 600);
}

/* Limits of parent groups apply too; the tightest one counts. */
static void test_limits_on_the_way_up(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    struct usage usage;

    put_v2(fixture, "/slice/app/leaf");
    machine_put(machine, "sys/fs/cgroup/slice/memory.high", "4294967296\n");
    machine_put(machine, "sys/fs/cgroup/slice/memory.max", "max\n");
    machine_put(machine, "sys/fs/cgroup/slice/memory.current", "4080218931\n");
    machine_put(machine, "sys/fs/cgroup/slice/app/memory.max", "2147483648\n");
    machine_put(machine, "sys/fs/cgroup/slice/app/memory.current", "1073741824\n");
    machine_put(machine, "sys/fs/cgroup/slice/app/cpu.max", "400000 100000\n");
    machine_put(machine, "sys/fs/cgroup/slice/cpu.max", "200000 100000\n");
    usage = look(fixture, 0);
    assert_int_equal(usage.cores_milli, 2000);
    assert_int_equal(usage.mem_total_kib, 4 * GIB); /* 5 % of the slice are left, 50 % of the app */
    assert_int_equal(usage.mem_free_kib, (4294967296 - 4080218931) / 1024);
    assert_int_equal(usage_pct_centi(&usage, LEVEL_MEMORY), 499);
}

/* The machine may run out of memory before the group does. */
static void test_the_machine_itself_runs_out(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;

    put_v2(fixture, "/app");
    machine_put_memory(&fixture->machine, 16 * GIB, GIB, 0, 0);
    machine_put(&fixture->machine, "sys/fs/cgroup/app/memory.max", "4294967296\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/memory.current", "1073741824\n");
    usage = look(fixture, 0);
    assert_true(usage.confined);
    assert_int_equal(usage.mem_total_kib, 16 * GIB);
    assert_int_equal(usage.mem_free_kib, GIB);
}

static void test_quota_has_its_own_load(void **state)
{
    struct fixture *fixture = *state;
    int64_t used_us = 1000000;
    struct usage usage;

    put_v2(fixture, "/app");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/cpu.max", "200000 100000\n");
    for (int at = 0; at <= 60; at++) { /* one of two cores busy, then both */
        machine_put(&fixture->machine, "sys/fs/cgroup/app/cpu.stat",
                    "usage_usec %ld\nuser_usec 5\n", (long)used_us);
        usage = look(fixture, at * 1000);
        used_us += at < 50 ? 1000000 : 2000000;
    }
    assert_int_equal(usage.busy_10s_permille, 1000);
    assert_int_equal(usage.load_1m_centi, 116); /* 70 s of CPU time in a minute */
    assert_int_equal(usage_pct_centi(&usage, LEVEL_CPU), 5800);
}

static void test_quotas_that_make_no_sense(void **state)
{
    static const struct {
        const char *text;
        int64_t milli;
    } rows[] = {
        {"50000 100000\n", 500},
        {"max 100000\n", 8000},
        {"100000 0\n", 8000},
        {"0 100000\n", 8000},
        {"-5 100000\n", 8000},
        {"100000\n", 8000},
        {"\n", 8000},
        {"x y\n", 8000},
        {"9000000 100000\n", 8000},
        {"100000 -1\n", 8000},
        {"800000 100000\n", 8000},
    };
    struct fixture *fixture = *state;

    put_v2(fixture, "/app");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        machine_put(&fixture->machine, "sys/fs/cgroup/app/cpu.max", "%s", rows[i].text);
        assert_int_equal(look(fixture, 1000 * (int64_t)i).cores_milli, rows[i].milli);
    }
}

/* Two of eight CPUs: their load differs from the whole machine's counters. */
static void test_a_cpuset_has_its_own_load(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;

    put_v2(fixture, "/app");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/cpuset.cpus.effective", "2-3\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/cpu.max", "600000 100000\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/app/cpu.stat", "usage_usec 1000000\n");
    look(fixture, 0);
    machine_put(&fixture->machine, "sys/fs/cgroup/app/cpu.stat", "usage_usec 2500000\n");
    usage = look(fixture, 1000);
    assert_int_equal(usage.cores_milli, 2000);
    assert_int_equal(usage.busy_10s_permille, 750);
}

static void put_v1(struct fixture *fixture)
{
    machine_put_us(&fixture->machine);
    machine_put(&fixture->machine, "proc/self/cgroup",
                "4:memory:/docker/abc\n3:cpuset:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n");
    machine_put(&fixture->machine, "proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup "
                "rw,cpu,cpuacct\n"
                "34 31 0:31 /docker/abc /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000000\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes",
                "9223372036854771712\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    machine_put(&fixture->machine, "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "7000000000\n");
}

static void test_v1(void **state)
{
    struct fixture *fixture = *state;
    struct machine *machine = &fixture->machine;
    struct usage usage;

    put_v1(fixture);
    usage = look(fixture, 0);
    assert_false(usage.confined);
    assert_int_equal(usage.mem_total_kib, 15 * GIB);

    machine_put(machine, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
    machine_put(machine, "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1073741824\n");
    machine_put(machine, "sys/fs/cgroup/memory/docker/abc/memory.stat",
                "cache 99\nactive_file 1\ntotal_active_file 104857600\n"
                "total_inactive_file 104857600\n");
    machine_put(machine, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
    usage = look(fixture, 1000);
    assert_true(usage.confined);
    assert_int_equal(usage.mem_total_kib, GIB);
    assert_int_equal(usage.mem_free_kib, 200 * 1024);
    assert_int_equal(usage.cores_milli, 500);

    machine_put(machine, "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "7400000000\n");
    usage = look(fixture, 2000);
    assert_int_equal(usage.busy_10s_permille, 800); /* 0.4 s in one second of half a core */
    assert_int_equal(usage.load_1m_centi, 40);

    machine_put(machine, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "40000\n");
    usage = look(fixture, 3000);
    assert_int_equal(usage.cores_milli, 400);
    /* A new quota starts a new measurement. */
    assert_int_equal(usage.busy_10s_permille, USAGE_NONE);
}

static void test_cpuset(void **state)
{
    static const struct {
        const char *list;
        int64_t milli;
    } rows[] = {
        {"0-1\n", 2000}, {"3\n", 1000}, {"0-1,4,6-7\n", 5000}, {"0-63\n", 8000},
        {"\n", 8000},    {"x\n", 8000}, {"5-2\n", 8000},
    };
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        put_v1(fixture);
        machine_put(&fixture->machine, "sys/fs/cgroup/cpuset/cpuset.effective_cpus", "%s",
                    rows[i].list);
        assert_int_equal(look(fixture, 1000 * (int64_t)i).cores_milli, rows[i].milli);
    }
}

/* --- as JSON, and on the real machine --- */

static void test_written(void **state)
{
    struct fixture *fixture = *state;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    struct usage usage;

    machine_put_us(&fixture->machine);
    usage = look(fixture, 0);
    usage.load_1m_centi = 620;
    usage.own_memory_kib = 1536;
    usage.own_cpu_permille = 5;
    jsonw_obj(&w);
    usage_write(&usage, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text),
               "{\"cpu_cores\":8,\"cpu_load\":6.2,\"cpu_percent\":77.5,\"mem_total_gb\":15,"
               "\"mem_free_gb\":11,\"mem_used_percent\":26.67,\"swap_total_gb\":0,"
               "\"swap_used_percent\":0,\"disk_total_gb\":null,\"disk_free_gb\":null,"
               "\"gpu_percent\":null,\"psi_cpu_some\":null,"
               "\"psi_mem_some\":null,\"psi_mem_full\":null,\"psi_io_some\":null,"
               "\"psi_io_full\":null,\"own_cpu_percent\":0.5,\"own_memory_mb\":1.5,"
               "\"confined\":false,\"measured_ms\":1700000000000}");
    buf_free(&text);
}

static void test_disk(void **state)
{
    static const struct {
        int64_t total_kib, free_kib, inodes, inodes_free;
        int64_t ppm;
    } rows[] = {
        {0, 0, 0, 0, LEVEL_UNKNOWN},
        {20LL * GIB, 1LL * GIB, 0, 0, 50000},
        {20LL * GIB, 0, 0, 0, 0},
        {20LL * GIB, 20LL * GIB, 0, 0, 1000000},
        {4000LL * GIB, 50LL * GIB, 0, 0, 500000},
        {4000LL * GIB, 400LL * GIB, 0, 0, 1000000},
        {20LL * GIB, 10LL * GIB, 1000, 10, 10000}, /* inodes run out first */
        {20LL * GIB, 1LL * GIB, 1000, 900, 50000},
        {20LL * GIB, 10LL * GIB, 100000000, 3000000, 500000},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct usage usage = {.disk_total_kib = rows[i].total_kib,
                              .disk_free_kib = rows[i].free_kib,
                              .disk_inodes = rows[i].inodes,
                              .disk_inodes_free = rows[i].inodes_free};

        assert_int_equal(usage_disk_ppm(&usage, 100LL * GIB), rows[i].ppm);
    }
}

static void test_disk_of_this_machine(void **state)
{
    struct fixture *fixture = *state;
    struct usage usage;

    machine_put_us(&fixture->machine);
    usage = look(fixture, 0);
    assert_int_equal(usage.disk_total_kib, 0); /* no path was given */
    usage_disk(fixture->meter, "/proc/self/nothing");
    usage = look(fixture, 1000);
    assert_int_equal(usage.disk_total_kib, 0);
    usage_disk(fixture->meter, ".");
    usage = look(fixture, 2000);
    assert_true(usage.disk_total_kib > 0);
    assert_true(usage.disk_free_kib >= 0 && usage.disk_free_kib <= usage.disk_total_kib);
}

static void test_this_machine(void **state)
{
    struct timespec apart = {.tv_nsec = 250 * 1000000L};
    struct usage_meter *meter = usage_meter_new("/"), *nowhere = usage_meter_new("/nowhere/at/all");
    struct usage usage;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(usage_measure(meter, clock_mono_ms(), clock_wall_ms(), &usage, NULL),
                         ERR_OK);
        nanosleep(&apart, NULL);
    }
    assert_true(usage.cores_milli > 0);
    assert_true(usage.mem_total_kib > 0);
    assert_true(usage.mem_free_kib >= 0 && usage.mem_free_kib <= usage.mem_total_kib);
    assert_true(usage.own_memory_kib > 0);
    /* With very many processes the second walk is postponed, and the rate is unknown. */
    assert_true(usage.own_cpu_permille == USAGE_NONE ||
                (usage.own_cpu_permille >= 0 && usage.own_cpu_permille <= 1000));
    usage_meter_free(meter);
    assert_int_equal(usage_measure(nowhere, 0, 0, &usage, NULL), ERR_IO);
    usage_meter_free(nowhere);
}

#define ON_A_MACHINE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_MACHINE(test_a_machine_of_eight_cores),
        ON_A_MACHINE(test_what_is_not_there_is_not_invented),
        cmocka_unit_test(test_centi),
        ON_A_MACHINE(test_busy_over_ten_seconds),
        ON_A_MACHINE(test_busy_with_few_or_many_looks),
        ON_A_MACHINE(test_counters_that_stand_still_or_go_back),
        cmocka_unit_test(test_cpu_is_the_smaller),
        cmocka_unit_test(test_figures_round_to_the_worse_side),
        ON_A_MACHINE(test_swap_and_pressure),
        ON_A_MACHINE(test_v2_limits),
        ON_A_MACHINE(test_v2_without_limits),
        ON_A_MACHINE(test_limits_on_the_way_up),
        ON_A_MACHINE(test_the_machine_itself_runs_out),
        ON_A_MACHINE(test_quota_has_its_own_load),
        ON_A_MACHINE(test_quotas_that_make_no_sense),
        ON_A_MACHINE(test_a_cpuset_has_its_own_load),
        ON_A_MACHINE(test_v1),
        ON_A_MACHINE(test_cpuset),
        ON_A_MACHINE(test_written),
        cmocka_unit_test(test_disk),
        ON_A_MACHINE(test_disk_of_this_machine),
        cmocka_unit_test(test_this_machine),
    };

    return cmocka_run_group_tests_name("usage", tests, NULL, NULL);
}
