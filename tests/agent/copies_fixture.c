#include "copies_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static void on_changed(struct copies *copies)
{
    ((struct fixture *)copies->user)->changes++;
}

static bool has_room(struct copies *copies, const struct demand *demand, const struct demand *has,
                     uint64_t has_gpus, uint64_t *ret_gpus, struct buf *why)
{
    struct fixture *fixture = copies->user;
    int left = fixture->licences - fixture->kept + (has ? demand_need(has, STR("licences")) : 0);

    (void)has_gpus;
    *ret_gpus = 0;
    buf_fmt(why, "licences: %d free", left);
    return demand_need(demand, STR("licences")) <= left;
}

static void on_kept(struct copies *copies, const struct demand *demand, uint64_t gpus, bool kept)
{
    struct fixture *fixture = copies->user;
    int amount = demand_need(demand, STR("licences"));

    (void)gpus;
    fixture->kept += kept ? amount : -amount;
    assert_true(fixture->kept >= 0);
}

static void on_found(struct run *run)
{
    struct fixture *fixture = runs_user(run->runs);

    assert_true(copies_adopt(fixture->copies, run));
}

void fixture_make(struct fixture *fixture)
{
    fake_run_reset();
    fake_run_offered = (struct cgroup_place){
        .limits[CGROUP_MEMORY] = true, .limits[CGROUP_PIDS] = true, .limits[CGROUP_CPU] = true};
    strcpy(fixture->dir, "/tmp/berth-copies-XXXXXX");
    assert_non_null(mkdtemp(fixture->dir));
    fixture->config = (struct config){.restart_min_ms = 1000,
                                      .restart_max_ms = 60000,
                                      .restart_stable_ms = 30000,
                                      .deployments_max = 256,
                                      .allow_deployments = true,
                                      .install_timeout_ms = 60000};
}

void fixture_open(struct fixture *fixture)
{
    struct copies_config config = {.config = &fixture->config,
                                   .node_id = STR("n1"),
                                   .data_dir = fixture->dir,
                                   .room = has_room,
                                   .keep = on_kept,
                                   .changed = on_changed};
    struct problem why;
    char path[96];

    assert_int_equal(loop_init(&fixture->loop, 0), ERR_OK);
    fixture->loop.wall_ms += ++fixture->lives; /* no two agents start in the same millisecond */
    snprintf(path, sizeof path, "%s/runs", fixture->dir);
    assert_int_equal(runs_new(&fixture->loop, path, "shim", NULL, fixture, &fixture->runs, &why),
                     ERR_OK);
    config.runs = fixture->runs;
    assert_int_equal(copies_new(&fixture->loop, &config, fixture, &fixture->copies, &why), ERR_OK);
    runs_adopt(fixture->runs, on_found);
}

void fixture_close(struct fixture *fixture)
{
    copies_free(fixture->copies);
    runs_free(fixture->runs);
    loop_done(&fixture->loop);
}

void fixture_remove(struct fixture *fixture)
{
    char command[128];

    arena_free(&fixture->arena);
    snprintf(command, sizeof command, "rm -rf %s", fixture->dir);
    assert_int_equal(system(command), 0);
}

void fixture_tick(struct fixture *fixture, int64_t ms)
{
    fixture->loop.mono_ms += ms;
    for (struct loop_part *part = fixture->loop.parts, *next; part; part = next) {
        next = part->next;
        if (part->tick)
            part->tick(part);
    }
}

const struct json *fixture_json(struct fixture *fixture, struct str text)
{
    const struct json *json;
    struct problem why;

    if (json_parse(arena_str(&fixture->arena, text), &fixture->arena, &json, &why) != ERR_OK)
        fail_msg("%s in " STR_FMT, why.detail, STR_ARG(text));
    return json;
}

void fixture_round(struct fixture *fixture, const char *rows)
{
    const struct json *list = fixture_json(fixture, str_of(rows)), *row = json_first(list);

    fixture->copies->round++;
    for (uint32_t i = 0; i < list->count; i++, row = json_next(row))
        copies_want(fixture->copies, row);
    copies_round_over(fixture->copies);
}

static bool is_of(const struct fake_run *fake, const char *id)
{
    char part[64];

    snprintf(part, sizeof part, "\"deployment_id\":\"%s\"", id);
    return strstr(fake->meta, part) && strstr(fake->meta, "\"kind\":\"copy\"");
}

struct fake_run *fixture_run(const char *id)
{
    for (int i = fake_run_count - 1; i >= 0; i--)
        if (is_of(&fake_runs[i], id))
            return &fake_runs[i];
    return NULL;
}

int fixture_alive(const char *id)
{
    int count = 0;

    for (int i = 0; i < fake_run_count; i++)
        count +=
            is_of(&fake_runs[i], id) && fake_runs[i].there && fake_runs[i].run.state != RUN_ENDED;
    return count;
}

int fixture_teardown(void **state)
{
    struct fixture *fixture = *state;

    fixture_close(fixture);
    fixture_remove(fixture);
    free(fixture);
    return 0;
}
