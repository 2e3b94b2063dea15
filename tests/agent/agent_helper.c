/* An agent that a test kills: starts `sh -c SCRIPT` under each KEY, reports on stdout when all run,
 * and runs its loop until it is killed.
 *     agent_helper SHIM DIR DEADLINE_MS {KEY SCRIPT}...
 * Each run ends DEADLINE_MS after it started, however long that took; 0: there is no deadline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/run.h"
#include "base/clock.h"

enum { DAY_MS = 86400000 };

static int awaited;
static int64_t deadline_ms;

static void on_started(struct run *run)
{
    if (deadline_ms)
        run_deadline(run, clock_lease_ms() + deadline_ms);
    if (--awaited == 0 && write(STDOUT_FILENO, "u", 1) != 1)
        exit(1);
}

static void on_ended(struct run *run)
{
    if (!run->exit.started_ms)
        exit(1); /* who waits for it to run need not wait */
}

int main(int argc, char **argv)
{
    static const struct run_handler handler = {.started = on_started, .ended = on_ended};
    struct problem why = {0};
    struct loop loop;
    struct runs *runs;

    if (argc < 6 || loop_init(&loop, 0) ||
        runs_new(&loop, argv[2], argv[1], NULL, NULL, &runs, &why))
        return 1;
    runs_set_rules(runs, &(struct run_rules){.job_user = geteuid() == 0 ? STR("root") : STR(""),
                                             .allow_root = true}); /* as in rig_open() */
    deadline_ms = atoll(argv[3]);
    for (int i = 4; i + 1 < argc; i += 2) {
        struct str words[] = {STR("sh"), STR("-c"), str_of(argv[i + 1])};
        struct run_spec spec = {.handler = &handler,
                                .key = str_of(argv[i]),
                                .meta = STR("{\"job\":1}"),
                                .argv = words,
                                .argc = COUNT_OF(words),
                                .stop_grace_ms = 10000,
                                .deadline_boot_ms = deadline_ms ? clock_lease_ms() + DAY_MS : 0};
        struct run *run;

        awaited++;
        if (runs_start(runs, &spec, NULL, &run, &why))
            return 1;
    }
    loop_run(&loop);
    return 0;
}
