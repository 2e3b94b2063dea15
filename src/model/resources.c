/* A node's resources: reading what it declares and measures, and which demand fits. */
#include "model/resources.h"

#include <assert.h>

enum { STEPS = 64, MB_PER_GB = 1024 };

/* --- reading --- */

static struct resource *find(struct resources *resources, struct str name)
{
    for (size_t i = 0; i < resources->count; i++)
        if (str_is(name, resources->items[i].name))
            return &resources->items[i];
    return NULL;
}

static struct resource_gpu *find_gpu(struct resources *resources, int64_t id)
{
    for (size_t i = 0; i < resources->gpu_count; i++)
        if (resources->gpus[i].id == id)
            return &resources->gpus[i];
    return NULL;
}

static bool is_name(struct str name)
{
    return str_is_id(name, DEMAND_NAME_MAX) && !memchr(name.at, ':', name.len) &&
           !str_is(name, "gpus") && !str_is(name, "vram_mb") && !str_is(name, "slots");
}

/* NULL: it exists already, or there is no room. */
static struct resource *add(struct resources *resources, struct str name)
{
    size_t at = resources->count;

    if (resources->count == RESOURCES_MAX || find(resources, name))
        return NULL;
    while (at > 0 && str_cmp(str_of(resources->items[at - 1].name), name) > 0) {
        resources->items[at] = resources->items[at - 1];
        at--;
    }
    resources->count++;
    resources->items[at] = (struct resource){0};
    str_copy(name, resources->items[at].name, sizeof resources->items[at].name);
    return &resources->items[at];
}

static struct resource_gpu *add_gpu(struct resources *resources, int64_t id)
{
    size_t at = resources->gpu_count;

    if (id < 0 || id >= RESOURCES_GPU_IDS || at == RESOURCES_GPUS_MAX || find_gpu(resources, id))
        return NULL;
    while (at > 0 && resources->gpus[at - 1].id > id) {
        resources->gpus[at] = resources->gpus[at - 1];
        at--;
    }
    resources->gpu_count++;
    resources->gpus[at] = (struct resource_gpu){.id = (int32_t)id};
    return &resources->gpus[at];
}

bool resources_declare(struct resources *resources, struct str name, int32_t capacity)
{
    struct resource *item = find(resources, name);

    if (capacity == 0 && item) {
        resources->count--;
        memmove(item, item + 1,
                (size_t)(resources->items + resources->count - item) * sizeof *item);
        return true;
    }
    if (!item && capacity > 0 && is_name(name))
        item = add(resources, name);
    if (item)
        item->capacity = item->usable = capacity;
    return item || capacity == 0;
}

bool resources_declare_gpu(struct resources *resources, int32_t id, int32_t vram_mb)
{
    struct resource_gpu *gpu = find_gpu(resources, id);

    if (vram_mb == 0 && gpu) {
        resources->gpu_count--;
        memmove(gpu, gpu + 1, (size_t)(resources->gpus + resources->gpu_count - gpu) * sizeof *gpu);
        return true;
    }
    if (!gpu && vram_mb > 0)
        gpu = add_gpu(resources, id);
    if (gpu)
        gpu->vram_mb = gpu->usable_mb = vram_mb;
    return gpu || vram_mb == 0;
}

static enum err bad_gpus(struct problem *why, const char *field)
{
    return problem_set(why, ERR_BAD_FIELD, field,
                       "%s.gpus must be a list of at most %d objects {id, vram_mb}, with different "
                       "ids from 0 to %d.",
                       field, RESOURCES_GPUS_MAX, RESOURCES_GPU_IDS - 1);
}

/* Each GPU of a list: its id and its memory. */
static bool read_gpu(const struct json *item, int64_t *ret_id, int32_t *ret_vram_mb)
{
    return json_type(item) == JSON_OBJ && json_int(json_get(item, "id"), ret_id) &&
           demand_amount(STR("vram_mb"), json_get(item, "vram_mb"), ret_vram_mb);
}

enum err resources_read(const struct json *value, struct arena *arena,
                        struct resources *ret_resources, struct problem *why)
{
    struct resources resources = {0};

    if (!json_is_null(value) && json_type(value) != JSON_OBJ)
        return problem_set(why, ERR_BAD_FIELD, "resources",
                           "resources must be an object like {\"cpu\": 8, \"mem_mb\": 15000}.");
    for (const struct json *key = json_keys(value); key; key = json_after(value, key)) {
        struct str name = json_str(key, arena);
        const struct json *list = key + 1, *entry;
        struct resource *item;
        int32_t amount;

        if (str_is(name, "gpus")) {
            if (json_type(list) != JSON_ARR)
                return bad_gpus(why, "resources");
            for (entry = json_items(list); entry; entry = json_after(list, entry)) {
                int64_t id;
                struct resource_gpu *gpu =
                    read_gpu(entry, &id, &amount) ? add_gpu(&resources, id) : NULL;

                if (!gpu)
                    return bad_gpus(why, "resources");
                gpu->vram_mb = gpu->usable_mb = amount;
            }
            continue;
        }
        if (!is_name(name))
            return problem_set(why, ERR_BAD_FIELD, "resources",
                               "A name in resources must be 1 to %d characters out of letters, "
                               "digits and . _ @ -, and neither slots nor vram_mb; \"" STR_FMT
                               "\" is not.",
                               DEMAND_NAME_MAX, STR_ARG(name));
        if (!demand_amount(name, key + 1, &amount))
            return problem_set(why, ERR_BAD_FIELD, "resources",
                               "resources." STR_FMT " must be a number from 0 to %d.",
                               STR_ARG(name), DEMAND_AMOUNT_MAX);
        item = add(&resources, name);
        if (!item)
            return problem_set(why, ERR_BAD_FIELD, "resources",
                               "resources has at most %d names beside gpus, each once.",
                               RESOURCES_MAX);
        item->capacity = item->usable = amount;
    }
    *ret_resources = resources;
    return ERR_OK;
}

/* Never more than there is, however often a heartbeat names it. */
static int32_t sum(int32_t a, int32_t b, int32_t max)
{
    return (int64_t)a + b < max ? a + b : max;
}

/* Amounts in a heartbeat are set (`adds` false) or added to those already set. */
static enum err read_amounts(const struct json *value, const char *field, bool adds,
                             struct arena *arena, struct resources *resources, struct problem *why)
{
    if (json_is_null(value))
        return ERR_OK;
    if (json_type(value) != JSON_OBJ)
        return problem_set(why, ERR_BAD_FIELD, field,
                           "%s must be an object like {\"mem_mb\": 5000}.", field);
    for (const struct json *key = json_keys(value); key; key = json_after(value, key)) {
        struct str name = json_str(key, arena);
        const struct json *list = key + 1, *entry;
        struct resource *item = find(resources, name);
        int32_t amount;

        if (str_is(name, "gpus")) {
            if (json_type(list) != JSON_ARR)
                return bad_gpus(why, field);
            for (entry = json_items(list); entry; entry = json_after(list, entry)) {
                struct resource_gpu *gpu;
                int64_t id;

                if (!read_gpu(entry, &id, &amount))
                    return bad_gpus(why, field);
                gpu = find_gpu(resources, id);
                if (gpu)
                    gpu->usable_mb = sum(adds ? gpu->usable_mb : 0, amount, gpu->vram_mb);
            }
            continue;
        }
        if (!demand_amount(name, key + 1, &amount))
            return problem_set(why, ERR_BAD_FIELD, field,
                               "%s." STR_FMT " must be a number from 0 to %d.", field,
                               STR_ARG(name), DEMAND_AMOUNT_MAX);
        if (item)
            item->usable = sum(adds ? item->usable : 0, amount, item->capacity);
    }
    return ERR_OK;
}

enum err resources_read_free(const struct json *free, const struct json *ours, struct arena *arena,
                             struct resources *resources, struct problem *why)
{
    struct resources read = *resources;
    enum err err;

    for (size_t i = 0; i < read.count; i++)
        read.items[i].usable = read.items[i].capacity;
    for (size_t i = 0; i < read.gpu_count; i++)
        read.gpus[i].usable_mb = read.gpus[i].vram_mb;
    err = read_amounts(free, "free", false, arena, &read, why);
    if (!err && !json_is_null(free))
        err = read_amounts(ours, "ours", true, arena, &read, why);
    if (err)
        return err;
    *resources = read;
    return ERR_OK;
}

static int32_t settled(int32_t usable, int32_t capacity, int32_t before)
{
    int32_t step = capacity / STEPS > 1 ? capacity / STEPS : 1;
    int32_t down = usable == capacity ? capacity : usable - usable % step;

    return usable >= before && usable - before <= step && usable < capacity ? before : down;
}

void resources_settle(struct resources *resources, const struct resources *before)
{
    for (size_t i = 0; i < resources->count; i++) {
        struct resource *item = &resources->items[i];
        bool same = i < before->count && strcmp(before->items[i].name, item->name) == 0;

        item->usable =
            settled(item->usable, item->capacity, same ? before->items[i].usable : INT32_MAX);
    }
    for (size_t i = 0; i < resources->gpu_count; i++) {
        struct resource_gpu *gpu = &resources->gpus[i];
        bool same = i < before->gpu_count && before->gpus[i].id == gpu->id;

        gpu->usable_mb =
            settled(gpu->usable_mb, gpu->vram_mb, same ? before->gpus[i].usable_mb : INT32_MAX);
    }
}

/* --- as a text --- */

void resources_write(const struct resources *resources, struct buf *to)
{
    if (!resources->count && !resources->gpu_count)
        return;
    for (size_t i = 0; i < resources->count; i++)
        buf_fmt(to, "%s%s=%d/%d", i ? "," : "", resources->items[i].name,
                resources->items[i].capacity, resources->items[i].usable);
    buf_char(to, ' ');
    for (size_t i = 0; i < resources->gpu_count; i++)
        buf_fmt(to, "%s%d=%d/%d", i ? "," : "", resources->gpus[i].id, resources->gpus[i].vram_mb,
                resources->gpus[i].usable_mb);
}

static bool parse_pair(struct str text, int32_t *ret_capacity, int32_t *ret_usable)
{
    struct str first = str_cut(&text, '/');
    int64_t capacity, usable;

    if (!str_int(first, &capacity) || !str_int(text, &usable) || usable < 0 || usable > capacity ||
        capacity > DEMAND_AMOUNT_MAX)
        return false;
    *ret_capacity = (int32_t)capacity;
    *ret_usable = (int32_t)usable;
    return true;
}

bool resources_parse(struct str text, struct resources *ret_resources)
{
    struct resources resources = {0};
    struct buf again = {0};
    bool same;
    struct str gpus = text;
    struct str items = str_cut(&gpus, ' ');

    while (items.len) {
        struct str pair = str_cut(&items, ',');
        struct str name = str_cut(&pair, '=');
        struct resource *item = is_name(name) ? add(&resources, name) : NULL;

        if (!item || !parse_pair(pair, &item->capacity, &item->usable))
            return false;
    }
    while (gpus.len) {
        struct str pair = str_cut(&gpus, ',');
        int64_t id;
        struct resource_gpu *gpu =
            str_int(str_cut(&pair, '='), &id) ? add_gpu(&resources, id) : NULL;

        if (!gpu || !parse_pair(pair, &gpu->vram_mb, &gpu->usable_mb))
            return false;
    }
    resources_write(&resources, &again);
    same = str_eq(buf_view(&again), text);
    buf_free(&again);
    if (same)
        *ret_resources = resources;
    return same;
}

/* --- what fits --- */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

void resources_left(const struct resources *resources, struct resources_left *ret_left)
{
    *ret_left = (struct resources_left){.count = (uint8_t)resources->count,
                                        .gpu_count = (uint8_t)resources->gpu_count};
    for (size_t i = 0; i < resources->count; i++)
        ret_left->left[i] = least(resources->items[i].usable, resources->items[i].capacity) -
                            resources->items[i].used;
    for (size_t i = 0; i < resources->gpu_count; i++) {
        const struct resource_gpu *gpu = &resources->gpus[i];

        ret_left->gpu_left[i] =
            gpu->whole ? RESOURCES_LEFT_WHOLE : least(gpu->usable_mb, gpu->vram_mb) - gpu->used_mb;
        if (gpu->used_mb > 0)
            ret_left->shared |= 1u << i;
    }
}

static bool is_short(struct resources_short *lack, struct str name, int32_t needed, int32_t left,
                     int32_t of)
{
    if (!lack)
        return false;
    *lack = (struct resources_short){.needed = needed, .left = left, .of = of, .gpu = -1};
    str_copy(name, lack->name, sizeof lack->name);
    return false;
}

/* Can a job have the whole GPU, with this much memory? 0: nearly all the GPU has. */
static bool can_be_whole(const struct resource_gpu *gpu, int32_t left, bool shared, int32_t vram_mb)
{
    int64_t wanted = vram_mb ? vram_mb : (int64_t)gpu->vram_mb * RESOURCES_WHOLE_PERCENT / 100;

    return left != RESOURCES_LEFT_WHOLE && !shared && left >= wanted;
}

static bool whole_fit(const struct resources *declared, const struct resources_left *left,
                      const struct demand *demand, uint64_t *ret_gpus, struct resources_short *lack)
{
    uint64_t taken = 0;
    int32_t free = 0;

    for (size_t i = 0; i < declared->gpu_count && i < left->gpu_count; i++)
        free += can_be_whole(&declared->gpus[i], left->gpu_left[i], left->shared >> i & 1,
                             demand->vram_mb);
    if (free < demand->gpus)
        return is_short(lack, STR("gpus"), demand->gpus, free, (int32_t)declared->gpu_count);
    for (int32_t n = 0; n < demand->gpus; n++) { /* the smallest of those that are left */
        const struct resource_gpu *best = NULL;

        for (size_t i = 0; i < declared->gpu_count && i < left->gpu_count; i++) {
            const struct resource_gpu *gpu = &declared->gpus[i];

            if (!(taken >> gpu->id & 1) &&
                can_be_whole(gpu, left->gpu_left[i], left->shared >> i & 1, demand->vram_mb) &&
                (!best || gpu->vram_mb < best->vram_mb))
                best = gpu;
        }
        assert(best);
        taken |= UINT64_C(1) << best->id;
    }
    *ret_gpus = taken;
    return true;
}

/* Is `a` the better one to share? Whole GPUs are kept whole; then the one with the least left. */
static bool shares_better(const struct resources *declared, const struct resources_left *left,
                          size_t a, size_t b)
{
    bool breaks_a = can_be_whole(&declared->gpus[a], left->gpu_left[a], left->shared >> a & 1, 0);
    bool breaks_b = can_be_whole(&declared->gpus[b], left->gpu_left[b], left->shared >> b & 1, 0);

    return breaks_a != breaks_b ? breaks_b : left->gpu_left[a] < left->gpu_left[b];
}

static bool share_fit(const struct resources *declared, const struct resources_left *left,
                      const struct demand *demand, uint64_t *ret_gpus, struct resources_short *lack)
{
    size_t best = RESOURCES_GPUS_MAX, most = 0;

    for (size_t i = 0; i < declared->gpu_count && i < left->gpu_count; i++) {
        if (left->gpu_left[i] > left->gpu_left[most])
            most = i;
        if (left->gpu_left[i] >= demand->vram_mb &&
            (best == RESOURCES_GPUS_MAX || shares_better(declared, left, i, best)))
            best = i;
    }
    if (best == RESOURCES_GPUS_MAX) {
        bool some = declared->gpu_count > 0 && left->gpu_count > 0;
        int32_t rest = some && left->gpu_left[most] > 0 ? left->gpu_left[most] : 0;

        is_short(lack, STR("vram_mb"), demand->vram_mb, rest,
                 some ? declared->gpus[most].vram_mb : 0);
        if (lack && some)
            lack->gpu = declared->gpus[most].id;
        return false;
    }
    *ret_gpus = UINT64_C(1) << declared->gpus[best].id;
    return true;
}

static bool fits(const struct resources *declared, const struct resources_left *left,
                 const struct demand *demand, uint64_t *ret_gpus, struct resources_short *lack)
{
    size_t at = 0;

    *ret_gpus = 0;
    for (size_t i = 0; i < demand->need_count; i++) { /* both lists are sorted by name */
        const struct demand_need *need = &demand->needs[i];

        while (at < declared->count && str_cmp(str_of(declared->items[at].name), need->name) < 0)
            at++;
        if (at == declared->count || !str_is(need->name, declared->items[at].name))
            return is_short(lack, need->name, need->amount, 0, 0);
        if (at >= left->count || left->left[at] < need->amount)
            return is_short(lack, need->name, need->amount, at < left->count ? left->left[at] : 0,
                            declared->items[at].capacity);
    }
    if (demand->gpus)
        return whole_fit(declared, left, demand, ret_gpus, lack);
    return !demand->vram_mb || share_fit(declared, left, demand, ret_gpus, lack);
}

bool resources_fit(const struct resources *resources, const struct demand *demand,
                   uint64_t *ret_gpus, struct resources_short *ret_short)
{
    struct resources_left left;

    resources_left(resources, &left);
    return fits(resources, &left, demand, ret_gpus, ret_short);
}

bool resources_left_fit(const struct resources *declared, const struct resources_left *left,
                        const struct demand *demand, struct resources_short *ret_short)
{
    uint64_t gpus;

    return fits(declared, left, demand, &gpus, ret_short);
}

bool resources_left_take(const struct resources *declared, struct resources_left *left,
                         const struct demand *demand)
{
    uint64_t gpus;
    size_t at = 0;

    if (!fits(declared, left, demand, &gpus, NULL))
        return false;
    for (size_t i = 0; i < demand->need_count; i++) {
        while (!str_is(demand->needs[i].name, declared->items[at].name))
            at++; /* both are sorted by name, and the demand fits: so it exists */
        left->left[at] -= demand->needs[i].amount;
    }
    for (size_t i = 0; gpus && i < declared->gpu_count; i++) {
        if (!(gpus >> declared->gpus[i].id & 1))
            continue;
        if (demand->gpus) {
            left->gpu_left[i] = RESOURCES_LEFT_WHOLE;
        } else {
            left->gpu_left[i] -= demand->vram_mb;
            left->shared |= 1u << i;
        }
    }
    return true;
}

static int32_t least_share(int32_t over, int32_t left, int32_t of)
{
    int64_t share = of > 0 && left > 0 ? (int64_t)left * 1000 / of : 0;

    return share < over ? (int32_t)share : over;
}

int32_t resources_left_over(const struct resources *declared, const struct resources_left *left,
                            const struct demand *demand)
{
    struct resources_left rest = *left;
    int32_t over = INT32_MAX;
    int32_t whole = 0;

    if (!resources_left_take(declared, &rest, demand))
        return -1;
    for (size_t i = 0; i < declared->count; i++)
        if (rest.left[i] != left->left[i])
            over = least_share(over, rest.left[i], declared->items[i].capacity);
    for (size_t i = 0; i < declared->gpu_count; i++) {
        if (!demand->gpus && rest.gpu_left[i] != left->gpu_left[i])
            over = least_share(over, rest.gpu_left[i], declared->gpus[i].vram_mb);
        whole += rest.gpu_left[i] != RESOURCES_LEFT_WHOLE && !(rest.shared >> i & 1);
    }
    if (demand->gpus)
        over = least_share(over, whole, (int32_t)declared->gpu_count);
    return over;
}

/* `sign` 1: a lease takes it; -1: it gives it back. A resource the node no longer declares is
 * counted once it is declared again: then everything is recounted. */
static void move(struct resources *resources, const struct demand *demand, uint64_t gpus, int sign)
{
    for (size_t i = 0; i < demand->need_count; i++) {
        struct resource *item = find(resources, demand->needs[i].name);

        if (item)
            item->used += sign * demand->needs[i].amount;
        assert(!item || item->used >= 0);
    }
    for (size_t i = 0; gpus && i < resources->gpu_count; i++) {
        struct resource_gpu *gpu = &resources->gpus[i];

        if (!(gpus >> gpu->id & 1))
            continue;
        if (demand->gpus) {
            assert(gpu->whole == (sign < 0));
            gpu->whole = sign > 0;
        } else {
            gpu->used_mb += sign * demand->vram_mb;
            assert(gpu->used_mb >= 0);
        }
    }
}

void resources_take(struct resources *resources, const struct demand *demand, uint64_t gpus)
{
    move(resources, demand, gpus, 1);
}

void resources_give(struct resources *resources, const struct demand *demand, uint64_t gpus)
{
    move(resources, demand, gpus, -1);
}

void resources_none_used(struct resources *resources)
{
    for (size_t i = 0; i < resources->count; i++)
        resources->items[i].used = 0;
    for (size_t i = 0; i < resources->gpu_count; i++) {
        resources->gpus[i].used_mb = 0;
        resources->gpus[i].whole = false;
    }
}

bool resources_update(struct resources *resources, const struct resources *now)
{
    struct resources updated = *now;
    bool same = resources->count == now->count && resources->gpu_count == now->gpu_count;

    for (size_t i = 0; same && i < now->count; i++) {
        same = strcmp(resources->items[i].name, now->items[i].name) == 0;
        updated.items[i].used = resources->items[i].used;
    }
    for (size_t i = 0; same && i < now->gpu_count; i++) {
        same = resources->gpus[i].id == now->gpus[i].id &&
               resources->gpus[i].vram_mb == now->gpus[i].vram_mb;
        updated.gpus[i].used_mb = resources->gpus[i].used_mb;
        updated.gpus[i].whole = resources->gpus[i].whole;
    }
    *resources = updated;
    if (!same)
        resources_none_used(resources);
    return same;
}

/* 6348 MB are 6.2 GB. */
static void gigabytes(int32_t mb, struct buf *to)
{
    int32_t tenths = (int32_t)(((int64_t)mb * 10 + MB_PER_GB / 2) / MB_PER_GB);

    if (tenths % 10)
        buf_fmt(to, "%d.%d", tenths / 10, tenths % 10);
    else
        buf_int(to, tenths / 10);
}

void resources_short_text(const struct resources_short *lack, struct buf *to)
{
    struct str name = str_of(lack->name);
    int32_t left = lack->left > 0 ? lack->left : 0;

    if (!lack->of) {
        buf_fmt(to, "it has no %s", str_is(name, "vram_mb") ? "GPU" : lack->name);
    } else if (lack->gpu >= 0) {
        buf_fmt(to, "GPU %d: ", lack->gpu);
        gigabytes(left, to);
        buf_str(to, STR(" of "));
        gigabytes(lack->of, to);
        buf_str(to, STR(" GB free, needs "));
        gigabytes(lack->needed, to);
        buf_str(to, STR(" GB"));
    } else {
        buf_fmt(to, "%s: ", lack->name);
        demand_write_amount(name, left, to);
        buf_str(to, STR(" of "));
        demand_write_amount(name, lack->of, to);
        buf_str(to, STR(" free, needs "));
        demand_write_amount(name, lack->needed, to);
    }
}
