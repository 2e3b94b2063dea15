/* Any bytes as the needs of a job, the resources of a node, and a limit, as texts and as JSON. What
 * can be read is written as the same text, and what is written can be read. */
#include "model/demand.h"

#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"
#include "model/limit.h"
#include "model/resources.h"

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void check_demand(const struct demand *demand, struct str text)
{
    struct buf first = {0}, second = {0};
    struct demand again;

    demand_write(demand, &first);
    must(!text.at || str_eq(buf_view(&first), text), "a demand has two texts");
    must(first.len <= DEMAND_TEXT_MAX, "a demand is too long");
    must(demand_parse(buf_view(&first), &again), "a demand that was written cannot be read");
    demand_write(&again, &second);
    must(str_eq(buf_view(&first), buf_view(&second)), "a demand is read otherwise");
    buf_free(&first);
    buf_free(&second);
}

static void check_resources(const struct resources *resources, struct str text)
{
    struct buf first = {0};
    struct resources again;

    resources_write(resources, &first);
    must(!text.at || str_eq(buf_view(&first), text), "resources have two texts");
    must(first.len <= RESOURCES_TEXT_MAX, "resources are too long");
    must(resources_parse(buf_view(&first), &again), "resources that were written cannot be read");
    buf_free(&first);
}

/* A demand is taken as a whole or not at all, and all of it is given back. */
static void check_both(const struct resources *resources, const struct demand *demand)
{
    struct resources now = *resources;
    struct resources_left left;
    uint64_t gpus = 0;

    if (!resources_fit(&now, demand, &gpus, NULL))
        return;
    resources_take(&now, demand, gpus);
    resources_left(&now, &left);
    for (int i = 0; i < left.count; i++)
        must(left.left[i] >= 0, "more is taken than there is");
    resources_give(&now, demand, gpus);
    for (size_t i = 0; i < now.count; i++)
        must(now.items[i].used == 0, "not all came back");
}

static void read_texts(struct str text)
{
    struct demand demand;
    struct resources resources;
    struct limit limit;
    struct limit_window window;

    if (demand_parse(text, &demand))
        check_demand(&demand, text);
    if (resources_parse(text, &resources))
        check_resources(&resources, text);
    if (limit_parse(text, &limit)) {
        struct limit again;
        struct buf written = {0};

        limit_write(&limit, &written);
        must(limit_parse(buf_view(&written), &again), "a limit that was written cannot be read");
        buf_free(&written);
    }
    limit = limit_none;
    if (limit_rate_parse(text, &limit))
        must(limit.rate >= 1 && limit.rate_ms >= 1, "a rate that is none");
    if (limit_window_parse(text, &window))
        limit_window_free(&window);
}

static void read_json(struct str text, struct arena *arena)
{
    struct demand demand = demand_plain;
    struct resources resources = {0};
    const struct json *json;

    if (json_parse(text, arena, &json, NULL))
        return;
    if (!demand_read_needs(json_get(json, "needs"), arena, &demand, NULL) &&
        !demand_read_keys(json_get(json, "keys"), arena, &demand, NULL))
        check_demand(&demand, STR_NONE);
    else
        demand = demand_plain;
    if (resources_read(json_get(json, "resources"), arena, &resources, NULL))
        return;
    resources_read_free(json_get(json, "free"), json_get(json, "ours"), arena, &resources, NULL);
    check_resources(&resources, STR_NONE);
    check_both(&resources, &demand);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {.at = (const char *)data, .len = size};
    struct arena arena = {0};

    read_texts(text);
    read_json(text, &arena);
    arena_free(&arena);
    return 0;
}
