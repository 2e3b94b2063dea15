#include "copies_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static void on_changed(struct copies *copies)
{
    ((struct bench *)copies_user(copies))->changes++;
}

static void on_found(struct run *run)
{
    struct bench *bench = runs_user(run->runs);

    assert_true(copies_adopt(bench->copies, run));
}

void bench_make(struct bench *bench)
{
    fake_run_reset();
    fake_run_offered = (struct run_limits_offered){.memory = true, .pids = true, .cpu = true};
    strcpy(bench->dir, "/tmp/berth-copies-XXXXXX");
    assert_non_null(mkdtemp(bench->dir));
    bench->config = (struct config){.restart_min_ms = 1000,
                                    .restart_max_ms = 60000,
                                    .restart_stable_ms = 30000,
                                    .deployments_max = 256,
                                    .allow_deployments = true,
                                    .install_timeout_ms = 60000};
}

void bench_open(struct bench *bench)
{
    struct copies_config config = {.config = &bench->config,
                                   .node_id = STR("n1"),
                                   .data_dir = bench->dir,
                                   .changed = on_changed};
    struct problem why;
    char path[96];

    assert_int_equal(loop_init(&bench->loop, 0), ERR_OK);
    bench->loop.wall_ms += ++bench->lives; /* no two lives begin within one millisecond */
    snprintf(path, sizeof path, "%s/runs", bench->dir);
    assert_int_equal(runs_new(&bench->loop, path, "shim", NULL, bench, &bench->runs, &why), ERR_OK);
    config.runs = bench->runs;
    assert_int_equal(copies_new(&bench->loop, &config, bench, &bench->copies, &why), ERR_OK);
    runs_adopt(bench->runs, on_found);
}

void bench_close(struct bench *bench)
{
    copies_free(bench->copies);
    runs_free(bench->runs);
    loop_done(&bench->loop);
}

void bench_remove(struct bench *bench)
{
    char command[128];

    arena_free(&bench->arena);
    snprintf(command, sizeof command, "rm -rf %s", bench->dir);
    assert_int_equal(system(command), 0);
}

void bench_tick(struct bench *bench, int64_t ms)
{
    bench->loop.mono_ms += ms;
    for (struct loop_part *part = bench->loop.parts, *next; part; part = next) {
        next = part->next;
        if (part->tick)
            part->tick(part);
    }
}

const struct json *bench_json(struct bench *bench, struct str text)
{
    const struct json *json;
    struct problem why;

    if (json_parse(arena_str(&bench->arena, text), &bench->arena, &json, &why) != ERR_OK)
        fail_msg("%s in " STR_FMT, why.detail, STR_ARG(text));
    return json;
}

void bench_round(struct bench *bench, const char *rows)
{
    const struct json *list = bench_json(bench, str_of(rows)), *row = json_first(list);

    copies_round(bench->copies);
    for (uint32_t i = 0; i < list->count; i++, row = json_next(row))
        copies_want(bench->copies, row);
    copies_round_over(bench->copies);
}

static bool is_of(const struct fake_run *fake, const char *id)
{
    char part[64];

    snprintf(part, sizeof part, "\"deployment_id\":\"%s\"", id);
    return strstr(fake->meta, part) && strstr(fake->meta, "\"kind\":\"copy\"");
}

struct fake_run *bench_run(const char *id)
{
    for (int i = fake_run_count - 1; i >= 0; i--)
        if (is_of(&fake_runs[i], id))
            return &fake_runs[i];
    return NULL;
}

int bench_alive(const char *id)
{
    int count = 0;

    for (int i = 0; i < fake_run_count; i++)
        count +=
            is_of(&fake_runs[i], id) && fake_runs[i].there && fake_runs[i].run.state != RUN_ENDED;
    return count;
}
