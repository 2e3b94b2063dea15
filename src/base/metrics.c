/* Each counting thread has a shard of its own and alone writes to it, with plain relaxed stores; a
 * scrape reads all shards and adds them up. Gauges, and the counts of threads without a shard, are
 * in one shared shard that is written with atomic additions. */
#include "base/metrics.h"
#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum metric_type { COUNTER, GAUGE, HISTOGRAM };

struct metric_row {
    enum metric_type type;
    const char *name;
    const char *label; /* NULL: none */
    const char *help;
};

#define METRIC_TABLE_ROW(id, kind, text, labels, about)                                            \
    [id] = {.type = kind, .name = text, .label = labels, .help = about},
static const struct metric_row rows[METRIC_COUNT] = {METRIC_ROWS(METRIC_TABLE_ROW)};

static const char *const type_names[] = {
    [COUNTER] = "counter", [GAUGE] = "gauge", [HISTOGRAM] = "histogram"};

/* Upper bounds; a last bucket without one follows. */
static const struct {
    int64_t us;
    const char *seconds;
} buckets[] = {
    {50, "5e-05"},    {100, "0.0001"},  {250, "0.00025"}, {500, "0.0005"},  {1000, "0.001"},
    {2500, "0.0025"}, {5000, "0.005"},  {10000, "0.01"},  {25000, "0.025"}, {50000, "0.05"},
    {100000, "0.1"},  {250000, "0.25"}, {500000, "0.5"},  {1000000, "1"},   {2500000, "2.5"},
    {5000000, "5"},   {10000000, "10"},
};
enum { BUCKETS = COUNT_OF(buckets) + 1 };

struct cell {
    _Atomic(const char *) label; /* NULL: free; set once */
    _Atomic int64_t value;
};

/* The cells of a metric: without a label the first one counts, with labels each one has a name and
 * the last is "other". Histograms use what stands beside them. */
struct shard {
    struct shard *next;
    struct cell cells[METRIC_COUNT][METRIC_LABELS_MAX + 1];
    _Atomic int64_t hist[METRIC_COUNT][BUCKETS];
    _Atomic int64_t sum_us[METRIC_COUNT];
};

static struct shard shared;
static _Atomic(struct shard *) shards = &shared;
static _Thread_local struct shard *own;

enum { CACHE_LINE = 64 };

void metrics_thread(void)
{
    struct shard *shard;

    if (own)
        return;
    shard = mem_aligned(CACHE_LINE, sizeof *shard);
    shard->next = atomic_load_explicit(&shards, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&shards, &shard->next, shard,
                                                  memory_order_release, memory_order_relaxed))
        ;
    own = shard;
}

/* Only the owner writes to its shard, so that a load and a store do; the shared one needs more. */
static void bump(_Atomic int64_t *value, int64_t n, bool is_own)
{
    if (is_own)
        atomic_store_explicit(value, atomic_load_explicit(value, memory_order_relaxed) + n,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

static bool same_label(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

/* The cell of a label: literals mostly come from one place, so the address is tried first. */
static struct cell *find_cell(struct cell *cells, const char *label)
{
    for (int i = 0; i < METRIC_LABELS_MAX; i++) {
        const char *name = atomic_load_explicit(&cells[i].label, memory_order_acquire);

        if (name == label)
            return &cells[i];
        if (!name)
            break;
    }
    for (int i = 0; i < METRIC_LABELS_MAX; i++) {
        const char *name = atomic_load_explicit(&cells[i].label, memory_order_acquire);

        if (!name && atomic_compare_exchange_strong_explicit(
                         &cells[i].label, &name, label, memory_order_acq_rel, memory_order_acquire))
            return &cells[i];
        if (same_label(name, label)) /* perhaps another thread was faster with the same one */
            return &cells[i];
    }
    return &cells[METRIC_LABELS_MAX];
}

static struct shard *shard_for(enum metric metric)
{
    assert(metric < METRIC_COUNT);
    return own && rows[metric].type != GAUGE ? own : &shared;
}

void metric_add(enum metric metric, int64_t n)
{
    struct shard *shard = shard_for(metric);

    assert(rows[metric].type != HISTOGRAM && !rows[metric].label);
    bump(&shard->cells[metric][0].value, n, shard == own);
}

void metric_add_label(enum metric metric, const char *label, int64_t n)
{
    struct shard *shard = shard_for(metric);

    assert(rows[metric].type != HISTOGRAM && rows[metric].label && label);
    bump(&find_cell(shard->cells[metric], label)->value, n, shard == own);
}

void metric_set(enum metric metric, int64_t value)
{
    assert(metric < METRIC_COUNT && rows[metric].type == GAUGE && !rows[metric].label);
    atomic_store_explicit(&shared.cells[metric][0].value, value, memory_order_relaxed);
}

void metric_set_label(enum metric metric, const char *label, int64_t value)
{
    struct cell *cell;

    assert(metric < METRIC_COUNT && rows[metric].type == GAUGE && rows[metric].label && label);
    cell = find_cell(shared.cells[metric], label);
    atomic_store_explicit(&cell->value, value, memory_order_relaxed);
}

void metric_observe_us(enum metric metric, int64_t us)
{
    struct shard *shard = shard_for(metric);
    size_t bucket = 0;

    assert(rows[metric].type == HISTOGRAM);
    if (us < 0)
        us = 0; /* two clocks, or a test's */
    while (bucket < COUNT_OF(buckets) && us > buckets[bucket].us)
        bucket++;
    bump(&shard->hist[metric][bucket], 1, shard == own);
    bump(&shard->sum_us[metric], us, shard == own);
}

/* What all shards together say about one metric. */
struct total {
    struct {
        const char *label;
        int64_t value;
    } cells[METRIC_LABELS_MAX + 1];
    int count;
    int64_t hist[BUCKETS];
    int64_t sum_us;
};

static void add_label(struct total *total, const char *label, int64_t value)
{
    int i = 0;

    while (i < total->count && !same_label(total->cells[i].label, label))
        i++;
    if (i >= METRIC_LABELS_MAX) { /* the last place is kept for "other" */
        i = METRIC_LABELS_MAX;
        label = "other";
    }
    if (i == total->count) {
        total->cells[i].label = label;
        total->count++;
    }
    total->cells[i].value += value;
}

static void add_cells(struct total *total, struct cell *cells, bool labelled)
{
    if (!labelled) {
        total->cells[0].value += atomic_load_explicit(&cells[0].value, memory_order_relaxed);
        total->count = 1;
        return;
    }
    for (int i = 0; i <= METRIC_LABELS_MAX; i++) {
        const char *label = atomic_load_explicit(&cells[i].label, memory_order_acquire);
        int64_t value = atomic_load_explicit(&cells[i].value, memory_order_relaxed);

        if (i == METRIC_LABELS_MAX && value)
            label = "other";
        if (label)
            add_label(total, label, value);
    }
}

static int by_label(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static struct total add_up(enum metric metric)
{
    struct shard *shard = atomic_load_explicit(&shards, memory_order_acquire);
    struct total total = {0};

    assert(metric < METRIC_COUNT);
    for (; shard; shard = shard->next) {
        add_cells(&total, shard->cells[metric], rows[metric].label != NULL);
        for (int i = 0; i < BUCKETS; i++)
            total.hist[i] += atomic_load_explicit(&shard->hist[metric][i], memory_order_relaxed);
        total.sum_us += atomic_load_explicit(&shard->sum_us[metric], memory_order_relaxed);
    }
    if (rows[metric].label)
        qsort(total.cells, (size_t)total.count, sizeof total.cells[0], by_label);
    return total;
}

int64_t metric_value(enum metric metric, const char *label)
{
    struct total total = add_up(metric);
    int64_t sum = 0;

    if (rows[metric].type == HISTOGRAM) {
        for (int i = 0; i < BUCKETS; i++)
            sum += total.hist[i];
        return sum;
    }
    for (int i = 0; i < total.count; i++)
        if (!label || (total.cells[i].label && same_label(total.cells[i].label, label)))
            sum += total.cells[i].value;
    return sum;
}

static void put_value(struct buf *text, struct str value)
{
    for (size_t i = 0; i < value.len; i++) {
        if (value.at[i] == '\n')
            buf_str(text, STR("\\n"));
        else if (value.at[i] == '"' || value.at[i] == '\\')
            buf_add(text, (const char[]){'\\', value.at[i]}, 2);
        else
            buf_char(text, value.at[i]);
    }
}

/* "layer,result" and "l1,hit" to layer="l1",result="hit"; the last name takes what is left. */
static void put_labels(struct buf *text, const char *label_names, const char *label_values)
{
    struct str names = str_of(label_names);
    struct str values = str_of(label_values);

    buf_char(text, '{');
    while (names.len > 0) {
        struct str name = str_cut(&names, ',');

        buf_str(text, name);
        buf_str(text, STR("=\""));
        put_value(text, names.len > 0 ? str_cut(&values, ',') : values);
        buf_str(text, names.len > 0 ? STR("\",") : STR("\""));
    }
    buf_char(text, '}');
}

static void render_histogram(struct buf *text, const char *name, const struct total *total)
{
    int64_t count = 0;

    for (int i = 0; i < BUCKETS; i++) {
        count += total->hist[i];
        buf_fmt(text, "%s_bucket{le=\"%s\"} %lld\n", name,
                i < BUCKETS - 1 ? buckets[i].seconds : "+Inf", (long long)count);
    }
    buf_fmt(text, "%s_sum %.6f\n", name, (double)total->sum_us / 1e6);
    buf_fmt(text, "%s_count %lld\n", name, (long long)count);
}

static void render_cells(struct buf *text, const struct metric_row *row, const struct total *total)
{
    for (int i = 0; i < total->count; i++) {
        buf_str(text, str_of(row->name));
        if (row->label)
            put_labels(text, row->label, total->cells[i].label);
        buf_char(text, ' ');
        buf_int(text, total->cells[i].value);
        buf_char(text, '\n');
    }
}

void metrics_render(struct buf *text, const char *version)
{
    for (int i = 0; i < METRIC_COUNT; i++) {
        const struct metric_row *row = &rows[i];
        struct total total = add_up((enum metric)i);

        buf_fmt(text, "# HELP %s %s\n# TYPE %s %s\n", row->name, row->help, row->name,
                type_names[row->type]);
        if (row->type == HISTOGRAM)
            render_histogram(text, row->name, &total);
        else
            render_cells(text, row, &total);
    }
    buf_str(text, STR("# HELP berth_build_info The version that runs\n"
                      "# TYPE berth_build_info gauge\nberth_build_info"));
    put_labels(text, "version", version);
    buf_str(text, STR(" 1\n"));
}
