/* Keeps the declared, free and own-use figures of each resource. protect.c decides by level and
 * slots what may start. */
#include "agent/capacity.h"

#include <math.h>

enum {
    KIB_PER_MIB = 1024,
    STEPS = 64,
    /* The CPU used by others counts as a mean over some seconds, and only beyond a tenth of all:
     * some process is always busy, and nothing should wait for that to stop. */
    OTHERS_MS = 5000,
    OTHERS_PART = 10,
};

/* --- what is declared --- */

static struct resource *find(struct resources *resources, struct str name)
{
    for (size_t i = 0; i < resources->count; i++)
        if (str_is(name, resources->items[i].name))
            return &resources->items[i];
    return NULL;
}

static int32_t amount_of(int64_t value)
{
    return value < 0 ? 0 : value > DEMAND_AMOUNT_MAX ? DEMAND_AMOUNT_MAX : (int32_t)value;
}

static int64_t reserve_mb(const struct capacity *capacity)
{
    return llround(capacity->config->resources.mem_reserve_gb * KIB_PER_MIB);
}

/* Done once, and again after a change of the settings: a cgroup limit that varies with what others
 * use is not a change of the machine. */
static void declare(struct capacity *capacity, const struct usage *usage)
{
    const struct config_declared *named = &capacity->config->declared;
    struct resources resources = named->resources;
    const struct {
        struct str name;
        int32_t amount;
    } measured[] = {
        {STR("cpu"), amount_of(usage->cores_milli)},
        {STR("mem_mb"), amount_of(usage->mem_total_kib / KIB_PER_MIB - reserve_mb(capacity))},
    };

    for (size_t i = 0; i < COUNT_OF(measured); i++)
        if (!find(&resources, measured[i].name))
            resources_declare(&resources, measured[i].name, measured[i].amount);
    for (size_t i = 0; i < resources.count;) {
        if (resources.items[i].capacity > 0)
            i++;
        else
            resources_declare(&resources, str_of(resources.items[i].name), 0);
    }
    for (size_t i = 0; !named->gpus && i < capacity->resources.gpu_count; i++)
        resources_declare_gpu(&resources, capacity->resources.gpus[i].id,
                              capacity->resources.gpus[i].vram_mb);
    capacity->resources = resources;
    capacity->declared = true;
}

/* --- what was promised --- */

/* No asserts: runs of an earlier agent may hold more than is declared now. */
static void move(struct capacity *capacity, const struct demand *demand, uint64_t gpus, int sign)
{
    struct resources *resources = &capacity->resources;

    for (size_t i = 0; i < demand->need_count; i++) {
        struct resource *item = find(resources, demand->needs[i].name);

        if (item)
            item->used = amount_of((int64_t)item->used + sign * demand->needs[i].amount);
    }
    for (size_t i = 0; gpus && i < resources->gpu_count; i++) {
        struct resource_gpu *gpu = &resources->gpus[i];

        if (!(gpus >> gpu->id & 1))
            continue;
        if (demand->gpus)
            gpu->whole = sign > 0;
        else
            gpu->used_mb = amount_of((int64_t)gpu->used_mb + sign * demand->vram_mb);
    }
}

void capacity_take(struct capacity *capacity, const struct demand *demand, uint64_t gpus, int sign)
{
    move(capacity, demand, gpus, sign);
    capacity->changes_milli += demand_need(demand, STR("cpu"));
}

/* What one job was promised of a GPU assigned to it. */
static int32_t promised_mb(const struct demand *demand, const struct resource_gpu *gpu)
{
    return demand->gpus ? gpu->vram_mb : demand->vram_mb;
}

/* --- what is free --- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t cpu_used(const struct usage_tree *tree, const struct usage *usage)
{
    return tree->cpu_permille == USAGE_NONE ? 0 : tree->cpu_permille * usage->cores_milli / 1000;
}

/* The memory that ending the tree would free, as far as it is resident. */
static int64_t mem_used(const struct usage_tree *tree, const struct usage *usage)
{
    (void)usage;
    return tree->freed_kib == USAGE_NONE ? 0 : (tree->freed_kib - tree->swap_kib) / KIB_PER_MIB;
}

static int64_t sum_ours(struct str name, const struct usage *usage,
                        int64_t (*used)(const struct usage_tree *tree, const struct usage *usage),
                        bool standing, const struct capacity_task *tasks, size_t count)
{
    int64_t sum = 0;

    for (size_t i = 0; i < count; i++)
        if (tasks[i].standing == standing)
            sum += least(used(tasks[i].tree, usage), demand_need(tasks[i].demand, name));
    return sum;
}

/* Sum of what standing work was promised. */
static int64_t sum_kept(struct str name, const struct capacity_task *tasks, size_t count)
{
    int64_t sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += tasks[i].standing ? demand_need(tasks[i].demand, name) : 0;
    return sum;
}

/* Usable is free plus ours, but never more than was declared. */
static struct capacity_amount amount(int64_t free, int64_t ours, int32_t capacity,
                                     int32_t *ret_usable)
{
    int64_t unbound = free;

    free = free > 0 ? free : 0;
    *ret_usable = amount_of(least(free + ours, capacity));
    return (struct capacity_amount){
        .measured = true, .free = amount_of(free), .ours = amount_of(ours), .unbound = unbound};
}

static void measure_cpu(struct capacity *capacity, int64_t now_ms, const struct usage *usage,
                        const struct capacity_task *tasks, size_t count)
{
    struct resource *item = find(&capacity->resources, STR("cpu"));
    int64_t ours, kept, others, past_ms, most, over;

    if (!item || usage->cores_milli == USAGE_NONE || usage->busy_permille == USAGE_NONE)
        return;
    ours = sum_ours(STR("cpu"), usage, cpu_used, false, tasks, count);
    kept = sum_ours(STR("cpu"), usage, cpu_used, true, tasks, count);
    /* CPU used by work without a promise, averaged, so that a second of compiling does not keep
     * work away. Work that starts or ends between two samples is in one figure and not in the
     * other; unmeasured CPU counts as idle. */
    others =
        usage->busy_permille * usage->cores_milli / 1000 - ours - kept - capacity->changes_milli;
    past_ms = capacity->sampled_ms ? least(now_ms - capacity->sampled_ms, OTHERS_MS) : 0;
    capacity->others_milli +=
        ((others > 0 ? others : 0) - capacity->others_milli) * past_ms / OTHERS_MS;
    /* If more is declared than the machine has, the owner wants to hand out more. */
    most = usage->cores_milli > item->capacity ? usage->cores_milli : item->capacity;
    over = capacity->others_milli - usage->cores_milli / OTHERS_PART;
    most -= (over > 0 ? over : 0) + sum_kept(STR("cpu"), tasks, count);
    most = least(most, item->capacity);
    ours = least(ours, most > 0 ? most : 0);
    capacity->items[item - capacity->resources.items] =
        amount(most - ours, ours, item->capacity, &item->usable);
}

static void measure_mem(struct capacity *capacity, const struct usage *usage,
                        const struct capacity_task *tasks, size_t count)
{
    struct resource *item = find(&capacity->resources, STR("mem_mb"));
    int64_t ours = sum_ours(STR("mem_mb"), usage, mem_used, false, tasks, count);
    int64_t kept = sum_kept(STR("mem_mb"), tasks, count) -
                   sum_ours(STR("mem_mb"), usage, mem_used, true, tasks, count);

    if (!item || usage->mem_free_kib == USAGE_NONE)
        return;
    capacity->items[item - capacity->resources.items] =
        amount(usage->mem_free_kib / KIB_PER_MIB - reserve_mb(capacity) - kept, ours,
               item->capacity, &item->usable);
}

static const struct usage_gpu_card *find_card(const struct usage_gpus *gpus, int32_t id)
{
    for (size_t i = 0; gpus && i < gpus->count; i++)
        if (gpus->cards[i].id == id)
            return &gpus->cards[i];
    return NULL;
}

int64_t capacity_vram_kib(const struct usage *usage, int32_t gpu, int tree_pid)
{
    const struct usage_gpu_card *card = find_card(usage->gpus, gpu);
    int64_t sum = 0;

    if (!card || !card->listed || tree_pid <= 0)
        return USAGE_NONE;
    for (size_t i = 0; i < usage->gpus->process_count; i++) {
        const struct usage_gpu_process *process = &usage->gpus->processes[i];

        if (&usage->gpus->cards[process->card] == card && process->tree == tree_pid)
            sum += process->vram_mb;
    }
    return sum * KIB_PER_MIB;
}

/* A GPU may be full of promised work; that is normal. It is short when the memory of others, plus
 * what our work uses beyond its promise, leaves less than was promised. Only the GPU's process list
 * tells whose memory it is: without a list a GPU is never short. */
static void judge_gpu(struct capacity *capacity, const struct resource_gpu *gpu,
                      const struct usage_gpu_card *card, int64_t promised, int64_t ours_mb)
{
    int64_t others = card->vram_mb - card->vram_free_mb - ours_mb;

    if (!card->listed || promised == 0 || others + promised <= card->vram_mb)
        return;
    if (capacity->short_total_mb && (int64_t)capacity->short_free_mb * card->vram_mb <=
                                        (int64_t)card->vram_free_mb * capacity->short_total_mb)
        return;
    capacity->short_gpu = gpu->id;
    capacity->short_total_mb = card->vram_mb;
    capacity->short_free_mb = card->vram_free_mb;
}

static void measure_gpu(struct capacity *capacity, size_t at, const struct usage *usage,
                        const struct capacity_task *tasks, size_t count)
{
    struct resource_gpu *gpu = &capacity->resources.gpus[at];
    const struct usage_gpu_card *card = find_card(usage->gpus, gpu->id);
    int64_t promised[2] = {0}, has[2] = {0}; /* of jobs, and of standing work */

    for (size_t i = 0; i < count; i++) {
        int64_t promise = tasks[i].gpus >> gpu->id & 1 ? promised_mb(tasks[i].demand, gpu) : 0;
        int64_t kib = card && promise ? capacity_vram_kib(usage, gpu->id, tasks[i].tree->pid) : 0;

        promised[tasks[i].standing] += promise;
        has[tasks[i].standing] += kib > 0 ? least(kib / KIB_PER_MIB, promise) : 0;
    }
    if (!card && (capacity->gpus_seen >> gpu->id & 1)) {
        capacity->gpus[at] = amount(0, 0, gpu->vram_mb, &gpu->usable_mb);
    } else if (!card) {
        gpu->usable_mb = gpu->vram_mb;
        if (promised[true] > 0)
            capacity->gpus[at] =
                amount(gpu->vram_mb - promised[true], 0, gpu->vram_mb, &gpu->usable_mb);
    } else {
        int64_t used = card->vram_mb - card->vram_free_mb;

        if (!card->listed) {
            has[false] = least(used, promised[false]);
            has[true] = least(used - has[false], promised[true]);
        }
        capacity->gpus[at] = amount(card->vram_free_mb - (promised[true] - has[true]), has[false],
                                    gpu->vram_mb, &gpu->usable_mb);
        judge_gpu(capacity, gpu, card, promised[false] + promised[true], has[false] + has[true]);
    }
}

void capacity_sample(struct capacity *capacity, int64_t now_ms, const struct usage *usage,
                     const struct capacity_task *tasks, size_t count)
{
    struct resources *resources = &capacity->resources;

    if (!capacity->declared)
        declare(capacity, usage);
    /* A GPU is declared when it is first seen. One that is no longer seen stays, with nothing free:
     * it may come back, and what runs there still counts. */
    for (size_t i = 0; usage->gpus && i < usage->gpus->count; i++) {
        const struct usage_gpu_card *card = &usage->gpus->cards[i];

        capacity->gpus_seen |= UINT64_C(1) << card->id;
        memcpy(capacity->models[card->id], card->model, sizeof card->model);
        if (!capacity->config->declared.gpus)
            resources_declare_gpu(resources, card->id, card->vram_mb);
    }
    resources_none_used(resources);
    for (size_t i = 0; i < count; i++)
        if (!tasks[i].standing)
            move(capacity, tasks[i].demand, tasks[i].gpus, 1);
    for (size_t i = 0; i < RESOURCES_MAX; i++)
        capacity->items[i] = (struct capacity_amount){.unbound = resources->items[i].capacity};
    for (size_t i = 0; i < RESOURCES_GPUS_MAX; i++)
        capacity->gpus[i] = (struct capacity_amount){.unbound = resources->gpus[i].vram_mb};
    capacity->short_total_mb = 0;
    measure_cpu(capacity, now_ms, usage, tasks, count);
    measure_mem(capacity, usage, tasks, count);
    /* A resource that is not measured is free except for what deployments hold. */
    for (size_t i = 0; i < capacity->resources.count; i++) {
        struct resource *item = &capacity->resources.items[i];
        int64_t kept = sum_kept(str_of(item->name), tasks, count);

        if (capacity->items[i].measured)
            continue;
        item->usable = item->capacity;
        if (kept > 0)
            capacity->items[i] = amount(item->capacity - kept, 0, item->capacity, &item->usable);
    }
    for (size_t i = 0; i < resources->gpu_count; i++)
        measure_gpu(capacity, i, usage, tasks, count);
    capacity->changes_milli = 0;
    capacity->sampled_ms = now_ms;
}

/* --- what deployments hold --- */

static void shift(struct capacity *capacity, const struct demand *demand, uint64_t gpus, int sign)
{
    struct resources *resources = &capacity->resources;

    for (size_t i = 0; i < resources->count; i++) {
        struct resource *item = &resources->items[i];
        struct capacity_amount *now = &capacity->items[i];
        int32_t need = demand_need(demand, str_of(item->name));

        if (need > 0)
            *now = amount(now->unbound + sign * need, now->ours, item->capacity, &item->usable);
    }
    for (size_t i = 0; gpus && i < resources->gpu_count; i++) {
        struct resource_gpu *gpu = &resources->gpus[i];
        struct capacity_amount *now = &capacity->gpus[i];

        if (gpus >> gpu->id & 1)
            *now = amount(now->unbound + sign * promised_mb(demand, gpu), now->ours, gpu->vram_mb,
                          &gpu->usable_mb);
    }
}

void capacity_keep(struct capacity *capacity, const struct demand *demand, uint64_t gpus, int sign)
{
    shift(capacity, demand, gpus, -sign);
    capacity->changes_milli += demand_need(demand, STR("cpu"));
}

/* --- admission --- */

bool capacity_choose(const struct capacity *capacity, const struct demand *demand,
                     const struct demand *has, uint64_t has_gpus, uint64_t *ret_gpus,
                     struct buf *detail)
{
    struct capacity without = *capacity;
    struct resources_short lack;

    if (has)
        shift(&without, has, has_gpus, 1);
    if (resources_fit(&without.resources, demand, ret_gpus, &lack))
        return true;
    resources_short_text(&lack, detail);
    return false;
}

bool capacity_fits(const struct capacity *capacity, const struct demand *demand, uint64_t gpus,
                   struct buf *detail)
{
    struct resources on = capacity->resources;
    struct resources_short lack;
    uint64_t chosen;

    /* Of its own GPUs only: it either gets all of them or does not fit. */
    for (size_t i = on.gpu_count; gpus && i-- > 0;)
        if (!(gpus >> on.gpus[i].id & 1))
            resources_declare_gpu(&on, on.gpus[i].id, 0);
    if (!resources_fit(&on, demand, &chosen, &lack)) {
        resources_short_text(&lack, detail);
        return false;
    }
    if (chosen != gpus) {
        buf_str(detail, STR("the GPUs that were named are not those it needs"));
        return false;
    }
    return true;
}

/* --- the GPUs of a run --- */

bool capacity_gpus_read(const struct json *list, uint64_t *ret_gpus)
{
    const struct json *item;
    uint64_t gpus = 0;

    if (!json_is_null(list) && json_type(list) != JSON_ARR)
        return false;
    for (item = json_items(list); item; item = json_after(list, item)) {
        int64_t id;

        if (!json_int(item, &id) || id < 0 || id >= RESOURCES_GPU_IDS)
            return false;
        gpus |= UINT64_C(1) << id;
    }
    *ret_gpus = gpus;
    return true;
}

void capacity_gpus_write(uint64_t gpus, struct jsonw *w)
{
    jsonw_arr(w);
    for (int id = 0; id < RESOURCES_GPU_IDS; id++)
        if (gpus >> id & 1)
            jsonw_int(w, id);
    jsonw_end_arr(w);
}

/* ROCr hides GPUs from the layers above it, HIP and OpenCL, which renumber the rest. */
size_t capacity_env(uint64_t gpus, struct arena *arena, struct str *env)
{
    struct buf ids = {0}, places = {0};
    size_t count = 0;
    int place = 0;

    for (int id = 0; id < RESOURCES_GPU_IDS; id++)
        if (gpus >> id & 1) {
            buf_fmt(&ids, "%s%d", place ? "," : "", id);
            buf_fmt(&places, "%s%d", place ? "," : "", place);
            place++;
        }
    const struct {
        const char *name;
        struct str some, none;
    } rows[CAPACITY_ENV] = {
        {"BERTH_GPUS", buf_view(&ids), STR("")},
        {"CUDA_DEVICE_ORDER", STR("PCI_BUS_ID"), STR_NONE}, /* as nvidia-smi numbers them */
        {"CUDA_VISIBLE_DEVICES", buf_view(&ids), STR("")},
        {"NVIDIA_VISIBLE_DEVICES", buf_view(&ids), STR("void")},
        {"ROCR_VISIBLE_DEVICES", buf_view(&ids), STR("-1")},
        {"HIP_VISIBLE_DEVICES", buf_view(&places), STR("-1")},
        {"GPU_DEVICE_ORDINAL", buf_view(&places), STR("-1")},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str value = gpus ? rows[i].some : rows[i].none;

        if (value.at)
            env[count++] = arena_fmt(arena, "%s=" STR_FMT, rows[i].name, STR_ARG(value));
    }
    buf_free(&ids);
    buf_free(&places);
    return count;
}

/* --- what is sent to the server --- */

static bool fell(int32_t sent, int32_t now, int32_t capacity)
{
    return sent - now >= (capacity >= STEPS ? capacity / STEPS : 1);
}

bool capacity_fell(const struct capacity *capacity)
{
    const struct resources *now = &capacity->resources, *sent = &capacity->sent;

    if (now->count != sent->count || now->gpu_count != sent->gpu_count)
        return true;
    for (size_t i = 0; i < now->count; i++)
        if (fell(sent->items[i].usable, now->items[i].usable, now->items[i].capacity))
            return true;
    for (size_t i = 0; i < now->gpu_count; i++)
        if (fell(sent->gpus[i].usable_mb, now->gpus[i].usable_mb, now->gpus[i].vram_mb))
            return true;
    return false;
}

static void write_amount(struct jsonw *w, const char *name, int32_t amount)
{
    struct buf text = {0};

    demand_write_amount(str_of(name), amount, &text);
    jsonw_kraw(w, name, buf_view(&text));
    buf_free(&text);
}

enum { DECLARED, FREE, OURS }; /* parts of what is sent */

void capacity_write(struct capacity *capacity, struct jsonw *w)
{
    const struct resources *resources = &capacity->resources;
    static const char *const names[] = {[DECLARED] = "resources", [FREE] = "free", [OURS] = "ours"};

    if (!capacity->declared)
        return;
    for (int part = DECLARED; part <= OURS; part++) {
        jsonw_key(w, names[part]);
        jsonw_obj(w);
        for (size_t i = 0; i < resources->count; i++) {
            const struct capacity_amount *amount = &capacity->items[i];

            if (part == DECLARED)
                write_amount(w, resources->items[i].name, resources->items[i].capacity);
            else if (amount->measured)
                write_amount(w, resources->items[i].name,
                             part == FREE ? amount->free : amount->ours);
        }
        if (resources->gpu_count > 0)
            jsonw_karr(w, "gpus");
        for (size_t i = 0; i < resources->gpu_count; i++) {
            const struct capacity_amount *amount = &capacity->gpus[i];
            const struct resource_gpu *gpu = &resources->gpus[i];

            if (part != DECLARED && !amount->measured)
                continue;
            jsonw_obj(w);
            jsonw_kint(w, "id", gpu->id);
            if (part == DECLARED && capacity->models[gpu->id][0])
                jsonw_kstr(w, "model", str_of(capacity->models[gpu->id]));
            jsonw_kint(w, "vram_mb",
                       part == DECLARED ? gpu->vram_mb
                       : part == FREE   ? amount->free
                                        : amount->ours);
            jsonw_end_obj(w);
        }
        if (resources->gpu_count > 0)
            jsonw_end_arr(w);
        jsonw_end_obj(w);
    }
    capacity->sent = capacity->resources;
}
