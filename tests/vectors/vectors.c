/* vectors [--redis] FILE|DIRECTORY...: runs files of input -> output cases (schema schedvec/1)
 * through the product's own functions. Prints a line for each case that differs, then `N passed, N
 * failed`. To add an area, add a row. */
#include "vec.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_BYTES_MAX = 64 << 20, PATH_BYTES_MAX = 4096 };

static const struct vec_area areas[] = {
    {.name = "pool_membership", .run = area_pool_membership},
    {.name = "pool_delta", .run = area_pool_delta},
    {.name = "reservation", .run = area_reservation},
    {.name = "job_fsm", .run = area_job_fsm},
    {.name = "job_state_map", .run = area_job_state_map},
    {.name = "selection_order", .run = area_selection_order},
    {.name = "random_sample", .run = area_random_sample},
    {.name = "dispatch_outcome", .run = area_dispatch_outcome},
    {.name = "node_health_fsm", .run = area_node_health_fsm},
    {.name = "membership_events", .run = area_membership_events},
    {.name = "health_score", .run = area_health_score},
    {.name = "snapshot", .run = area_snapshot},
    {.name = "slot_formula", .run = area_slot_formula},
    {.name = "danger_level", .run = area_danger_level},
    {.name = "emergency_kill", .run = area_emergency_kill},
    {.name = "resource_score", .run = area_resource_score},
    {.name = "circuit_breaker", .run = area_circuit_breaker},
    {.name = "breaker_attribution", .run = area_breaker_attribution},
    {.name = "server_routing", .run = area_server_routing},
    {.name = "cluster_status", .run = area_cluster_status},
    {.name = "store_degradation", .run = area_store_degradation},
    {.name = "cache_layers", .run = area_cache_layers},
    {.name = "cache_jitter", .run = area_cache_jitter},
    {.name = "active_nodes", .run = area_active_nodes},
    {.name = "lost_addresses", .run = area_lost_addresses},
    {.name = "deployment_counts", .run = area_deployment_counts},
    {.name = "eligibility", .run = area_eligibility},
    {.name = "resource_eligibility", .run = area_resource_eligibility},
    {.name = "candidate_order", .run = area_candidate_order},
    {.name = "claim_cas", .run = area_claim_cas},
    {.name = "claim_cycle", .run = area_claim_cycle},
    {.name = "claim_config", .run = area_claim_config},
    {.name = "lost_grace", .run = area_lost_grace},
    {.name = "ext_selector", .run = area_ext_selector},
    {.name = "selector", .run = area_selector},
    {.name = "ext_lease", .run = area_ext_lease},
    {.name = "demand", .run = area_demand},
    {.name = "turns", .run = area_turns},
    {.name = "resources", .run = area_resources},
    {.name = "limits", .run = area_limits},
};

struct tally {
    int passed;
    int failed;
};

static void fail(struct tally *tally, struct str id, struct str expected, struct str got)
{
    tally->failed++;
    printf(STR_FMT ": expected " STR_FMT ", got " STR_FMT "\n", STR_ARG(id), STR_ARG(expected),
           STR_ARG(got));
}

static const struct vec_area *area_by_name(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(areas); i++)
        if (str_is(name, areas[i].name))
            return &areas[i];
    return NULL;
}

static void judge(struct tally *tally, struct vec *vec, struct str id, const struct json *expected,
                  struct str answer)
{
    const struct json *got = NULL;
    enum err err;

    if (vec->wrong_got.at) {
        fail(tally, id, vec->wrong_expected, vec->wrong_got);
        return;
    }
    err = json_parse(answer, vec->arena, &got, NULL);
    assert(err == ERR_OK);
    if (vec_same(expected, got))
        tally->passed++;
    else
        fail(tally, id, vec_compact(expected, vec->arena), vec_compact(got, vec->arena));
}

static void run_vector(struct tally *tally, const struct vec_area *area, const struct json *vector)
{
    struct arena arena = {0};
    struct buf answer = {0};
    struct jsonw w = jsonw_to(&answer);
    struct vec vec = {.in = json_get(vector, "in"), .arena = &arena, .w = &w};
    const struct json *out = json_get(vector, "out");
    struct str id = vec_str(&vec, vector, "id");

    vec.seed = json_str_is(json_get(vector, "profile"), "seed");
    if (!id.at)
        id = STR("(vector without an id)");
    if (!area)
        fail(tally, id, vec_compact(out, &arena), STR("no function for its area"));
    else if (json_type(vec.in) != JSON_OBJ || json_type(out) != JSON_OBJ || !area->run(&vec))
        fail(tally, id, vec_compact(out, &arena), STR("input that makes no sense"));
    else
        judge(tally, &vec, id, out, buf_view(&answer));
    buf_free(&answer);
    arena_free(&arena);
}

static void run_text(struct tally *tally, const char *path, struct str text)
{
    struct arena arena = {0};
    struct problem why = {0};
    const struct json *root = NULL;
    const struct json *vectors;
    struct vec_at at = {0};
    const struct vec_area *area;

    if (json_parse(text, &arena, &root, &why) != ERR_OK) {
        fail(tally, str_of(path), STR("JSON"), str_of(why.detail));
        arena_free(&arena);
        return;
    }
    vectors = json_get(root, "vectors");
    if (!json_str_is(json_get(root, "schema"), "schedvec/1") || json_type(vectors) != JSON_ARR) {
        fail(tally, str_of(path), STR("vectors of schema schedvec/1"), STR("something else"));
        arena_free(&arena);
        return;
    }
    area = area_by_name(json_str(json_get(root, "area"), &arena));
    for (const struct json *vector; (vector = vec_each(vectors, &at));)
        run_vector(tally, area, vector);
    arena_free(&arena);
}

static bool read_file(const char *path, struct buf *buf)
{
    FILE *file = fopen(path, "re");
    size_t got;

    if (!file)
        return false;
    do {
        buf_reserve(buf, 65536);
        got = fread(buf->at + buf->len, 1, 65536, file);
        buf->len += got;
    } while (got > 0 && buf->len < FILE_BYTES_MAX);
    if (ferror(file) || buf->len >= FILE_BYTES_MAX) {
        fclose(file);
        return false;
    }
    fclose(file);
    return true;
}

static void run_file(struct tally *tally, const char *path)
{
    struct buf buf = {0};

    errno = 0;
    if (read_file(path, &buf))
        run_text(tally, path, buf_view(&buf));
    else
        fail(tally, str_of(path), STR("a file"), str_of(strerror(errno ? errno : EFBIG)));
    buf_free(&buf);
}

static int is_json(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot && strcmp(dot, ".json") == 0;
}

static void run_directory(struct tally *tally, const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, is_json, alphasort);

    if (count <= 0)
        fail(tally, str_of(path), STR("*.json files"), STR("none"));
    for (int i = 0; i < count; i++) {
        char full[PATH_BYTES_MAX];
        int len = snprintf(full, sizeof full, "%s/%s", path, entries[i]->d_name);

        assert(len > 0);
        run_file(tally, full); /* a truncated path does not open, which is a failure */
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

int main(int argc, char **argv)
{
    struct tally tally = {0};
    bool on_redis = argc > 1 && strcmp(argv[1], "--redis") == 0;

    if (argc < 2 + on_redis) {
        fprintf(stderr, "usage: vectors [--redis] FILE|DIRECTORY...\n");
        return 2;
    }
    if (on_redis)
        vec_use_redis();
    for (int i = 1 + on_redis; i < argc; i++) {
        struct stat stat_of;

        if (stat(argv[i], &stat_of) == 0 && S_ISDIR(stat_of.st_mode))
            run_directory(&tally, argv[i]);
        else
            run_file(&tally, argv[i]);
    }
    vec_done_redis();
    printf("%d passed, %d failed\n", tally.passed, tally.failed);
    return tally.failed > 0;
}
