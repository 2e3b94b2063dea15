/* What a run costs: `bench_run [RUNS] [AT_ONCE]` starts that many runs of `true`, that many at a
 * time, forgets each when it ends, and checks that nothing is left behind.
 *
 *     runs=10000 at_once=1 us_per_run=2345 agent_cpu_us=180 ...
 *
 * us_per_run is the time from one call of runs_start to the next, exit record and forgetting
 * included. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "run_rig.h"

static int64_t cpu_us(int who)
{
    struct rusage used;

    getrusage(who, &used);
    return (int64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 +
           used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

static void start(struct rig *rig, int number)
{
    struct str argv = STR("true");
    char key[32];
    struct run_spec spec = {
        .handler = &rig_handler, .argv = &argv, .argc = 1, .stop_grace_ms = 1000};
    struct problem why = {0};
    struct run *run;

    snprintf(key, sizeof key, "bench%d.1", number);
    spec.key = str_of(key);
    if (runs_start(rig->runs, &spec, NULL, &run, &why)) {
        fprintf(stderr, "%s\n", why.detail);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 1000, at_once = argc > 2 ? atoi(argv[2]) : 1;
    int started = 0, fds;
    int64_t begun_us, took_us, own_us, spawner_kb, own_kb;
    struct rig rig;

    rig_make(&rig);
    rig_open(&rig);
    rig_adopt(&rig);
    rig.forget = true;
    while (started < 20) /* warm-up */
        start(&rig, started++);
    rig_await(&rig, rig.ended == started && !rig.runs->trash_busy);
    rig.ended = started = 0;
    fds = rig_fds();
    own_kb = rig_rss_kb(getpid());
    spawner_kb = rig_rss_kb(rig.runs->spawner.pid);
    own_us = cpu_us(RUSAGE_SELF);
    begun_us = clock_mono_us();
    while (rig.ended < runs) {
        while (started < runs && started - rig.ended < at_once)
            start(&rig, started++);
        uv_run(&rig.loop.uv, UV_RUN_ONCE);
    }
    took_us = clock_mono_us() - begun_us;
    own_us = cpu_us(RUSAGE_SELF) - own_us;
    rig_await(&rig, !rig.runs->trash_busy);
    printf("runs=%d at_once=%d us_per_run=%" PRId64 " agent_cpu_us=%" PRId64
           " fds_more=%d zombies=%d agent_kb_more=%" PRId64 " spawner_kb_more=%" PRId64 "\n",
           runs, at_once, took_us / runs, own_us / runs, rig_fds() - fds, rig_zombies(),
           rig_rss_kb(getpid()) - own_kb, rig_rss_kb(rig.runs->spawner.pid) - spawner_kb);
    rig_close(&rig);
    rig_remove(&rig);
    return 0;
}
