/* Each counting thread has its own shard and is the only one to write to it, with relaxed stores; a
 * scrape reads all shards and adds them up. Gauges, and the counts of threads without a shard, are
 * in one shared shard that is written with atomic additions. */
#include "base/metrics.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

enum metric_type { COUNTER, GAUGE, GAUGE_MS, HISTOGRAM, PARTED };

struct metric_row {
    enum metric_type type;
    const char *name;
    const char *label; /* NULL: none */
    const char *help;
};

#define METRIC_TABLE_ROW(id, kind, text, labels, about)                                            \
    [id] = {.type = kind, .name = text, .label = labels, .help = about},
static const struct metric_row rows[METRIC_COUNT] = {METRIC_ROWS(METRIC_TABLE_ROW)};

#define METRIC_IS_HISTOGRAM(id, kind, text, labels, about) +((kind) == HISTOGRAM)
enum { HISTOGRAMS = 0 METRIC_ROWS(METRIC_IS_HISTOGRAM) };

#define METRIC_CHECK_ROW(id, kind, text, labels, about)                                            \
    _Static_assert(((kind) == HISTOGRAM) == ((int)(id) < (int)HISTOGRAMS),                         \
                   "histograms come before the others: " #id);
METRIC_ROWS(METRIC_CHECK_ROW)

static const char *const type_names[] = {[COUNTER] = "counter",
                                         [GAUGE] = "gauge",
                                         [GAUGE_MS] = "gauge",
                                         [HISTOGRAM] = "histogram",
                                         [PARTED] = "counter"};

/* Upper bounds; a last bucket without one follows. */
static const struct {
    int64_t us;
    const char *seconds;
} buckets[] = {
    {50, "5e-05"},    {100, "0.0001"},  {150, "0.00015"}, {200, "0.0002"}, {250, "0.00025"},
    {300, "0.0003"},  {400, "0.0004"},  {500, "0.0005"},  {700, "0.0007"}, {1000, "0.001"},
    {1500, "0.0015"}, {2500, "0.0025"}, {5000, "0.005"},  {10000, "0.01"}, {25000, "0.025"},
    {50000, "0.05"},  {100000, "0.1"},  {250000, "0.25"}, {500000, "0.5"}, {1000000, "1"},
    {2500000, "2.5"}, {5000000, "5"},   {10000000, "10"},
};
enum { BUCKETS = METRIC_BUCKETS };
static_assert(COUNT_OF(buckets) + 1 == BUCKETS, "the header knows how many there are");

struct cell {
    _Atomic(const char *) label; /* NULL: free; set once */
    _Atomic int64_t value;
};

struct hist {
    _Atomic int64_t counts[BUCKETS];
    _Atomic int64_t sum_us;
};

/* The cells of a metric: without labels only the first is used; with labels each cell has a name
 * and the last is "other". For a histogram the cells hold only the names; its counts are separate.
 */
struct shard {
    struct shard *next;
    struct cell cells[METRIC_COUNT][METRIC_LABELS_MAX + 1];
    struct hist hists[HISTOGRAMS][METRIC_LABELS_MAX + 1];
};

static struct shard shared;
static _Atomic(struct shard *) shards = &shared;
static _Thread_local struct shard *own;

void metrics_thread(void)
{
    struct shard *shard;

    if (own)
        return;
    shard = mem_aligned(MEM_LINE, sizeof *shard);
    shard->next = atomic_load_explicit(&shards, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&shards, &shard->next, shard,
                                                  memory_order_release, memory_order_relaxed))
        ;
    own = shard;
}

/* Only its owner writes to a shard, so a load and a store are enough; the shared one needs an
 * atomic addition. */
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

/* The cell of a label: most labels are literals from one place, so addresses are compared first. */
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
        if (same_label(name, label)) /* another thread may have just added the same label */
            return &cells[i];
    }
    return &cells[METRIC_LABELS_MAX];
}

static bool is_gauge(enum metric metric)
{
    assert(metric < METRIC_COUNT);
    return rows[metric].type == GAUGE || rows[metric].type == GAUGE_MS;
}

static struct shard *shard_for(enum metric metric)
{
    return own && !is_gauge(metric) ? own : &shared;
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

void metric_add_text(enum metric metric, const char *label, int64_t n)
{
    struct shard *shard = shard_for(metric);
    struct cell *cell = shard->cells[metric], *end = cell + METRIC_LABELS_MAX;
    const char *name = NULL;

    assert(rows[metric].type == PARTED && label);
    while (cell < end && (name = atomic_load_explicit(&cell->label, memory_order_acquire)) &&
           strcmp(name, label) != 0)
        cell++;
    if (cell < end && !name) {
        char *copy = mem_alloc(strlen(label) + 1);

        memcpy(copy, label, strlen(label) + 1);
        cell = find_cell(shard->cells[metric], copy);
        if (atomic_load_explicit(&cell->label, memory_order_relaxed) != copy)
            free(copy); /* another thread was faster */
    }
    bump(&cell->value, n, shard == own);
}

void metric_set(enum metric metric, int64_t value)
{
    assert(is_gauge(metric) && !rows[metric].label);
    atomic_store_explicit(&shared.cells[metric][0].value, value, memory_order_relaxed);
}

void metric_set_label(enum metric metric, const char *label, int64_t value)
{
    struct cell *cell;

    assert(is_gauge(metric) && rows[metric].label && label);
    cell = find_cell(shared.cells[metric], label);
    atomic_store_explicit(&cell->value, value, memory_order_relaxed);
}

static void observe(struct shard *shard, struct hist *hist, int64_t us)
{
    size_t bucket = 0;

    if (us < 0)
        us = 0; /* the two times came from different clocks, or from a test */
    while (bucket < COUNT_OF(buckets) && us > buckets[bucket].us)
        bucket++;
    bump(&hist->counts[bucket], 1, shard == own);
    bump(&hist->sum_us, us, shard == own);
}

void metric_observe_us(enum metric metric, int64_t us)
{
    struct shard *shard = shard_for(metric);

    assert(metric < (enum metric)HISTOGRAMS && !rows[metric].label);
    observe(shard, &shard->hists[metric][0], us);
}

void metric_observe_label_us(enum metric metric, const char *label, int64_t us)
{
    struct shard *shard = shard_for(metric);

    assert(metric < (enum metric)HISTOGRAMS && rows[metric].label && label);
    struct cell *cell = find_cell(shard->cells[metric], label);
    observe(shard, &shard->hists[metric][cell - shard->cells[metric]], us);
}

void metric_declare(enum metric metric, const char *label)
{
    assert(metric < METRIC_COUNT && rows[metric].label && label);
    find_cell(shard_for(metric)->cells[metric], label);
}

/* One metric, summed over all shards. */
struct total {
    struct {
        const char *label;
        int64_t value;
        int64_t hist[BUCKETS];
        int64_t sum_us;
    } cells[METRIC_LABELS_MAX + 1];
    int count;
};

static bool is_counted(struct shard *shard, enum metric metric, int cell)
{
    if (atomic_load_explicit(&shard->cells[metric][cell].value, memory_order_relaxed))
        return true;
    for (int i = 0; metric < (enum metric)HISTOGRAMS && i < BUCKETS; i++)
        if (atomic_load_explicit(&shard->hists[metric][cell].counts[i], memory_order_relaxed))
            return true;
    return false;
}

static void add_cell(struct total *total, struct shard *shard, enum metric metric, int cell)
{
    const char *label =
        atomic_load_explicit(&shard->cells[metric][cell].label, memory_order_acquire);
    int place = 0;

    if (rows[metric].label) {
        if (cell == METRIC_LABELS_MAX && is_counted(shard, metric, cell))
            label = "other";
        if (!label)
            return;
        while (place < total->count && !same_label(total->cells[place].label, label))
            place++;
        if (place >= METRIC_LABELS_MAX) { /* the last place is kept for "other" */
            place = METRIC_LABELS_MAX;
            label = "other";
        }
        if (place == total->count) {
            total->cells[place].label = label;
            total->count++;
        }
    }
    total->cells[place].value +=
        atomic_load_explicit(&shard->cells[metric][cell].value, memory_order_relaxed);
    if (metric < (enum metric)HISTOGRAMS) {
        struct hist *hist = &shard->hists[metric][cell];

        for (int i = 0; i < BUCKETS; i++)
            total->cells[place].hist[i] +=
                atomic_load_explicit(&hist->counts[i], memory_order_relaxed);
        total->cells[place].sum_us += atomic_load_explicit(&hist->sum_us, memory_order_relaxed);
    }
}

static int by_label(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static struct total add_up(enum metric metric)
{
    struct shard *shard = atomic_load_explicit(&shards, memory_order_acquire);
    bool labelled = rows[metric].label != NULL;
    struct total total = {.count = labelled ? 0 : 1};

    assert(metric < METRIC_COUNT);
    for (; shard; shard = shard->next)
        for (int i = 0; i <= (labelled ? METRIC_LABELS_MAX : 0); i++)
            add_cell(&total, shard, metric, i);
    if (labelled)
        qsort(total.cells, (size_t)total.count, sizeof total.cells[0], by_label);
    return total;
}

int64_t metric_value(enum metric metric, const char *label)
{
    struct total total = add_up(metric);
    int64_t sum = 0;

    for (int i = 0; i < total.count; i++) {
        if (label && !(total.cells[i].label && same_label(total.cells[i].label, label)))
            continue;
        sum += total.cells[i].value;
        for (int k = 0; k < BUCKETS; k++)
            sum += total.cells[i].hist[k];
    }
    return sum;
}

size_t metric_cells(enum metric metric, struct metric_cell ret_cells[METRIC_LABELS_MAX + 1])
{
    struct total total = add_up(metric);

    assert(rows[metric].label && rows[metric].type != HISTOGRAM);
    for (int i = 0; i < total.count; i++)
        ret_cells[i] = (struct metric_cell){total.cells[i].label, total.cells[i].value};
    return (size_t)total.count;
}

void metric_buckets(enum metric metric, int64_t ret_counts[METRIC_BUCKETS])
{
    struct total total = add_up(metric);

    assert(rows[metric].type == HISTOGRAM);
    memset(ret_counts, 0, sizeof *ret_counts * BUCKETS);
    for (int i = 0; i < total.count; i++)
        for (int k = 0; k < BUCKETS; k++)
            ret_counts[k] += total.cells[i].hist[k];
}

/* Assumes an even distribution within a bucket; the last bucket has no end, so its start is used.
 */
int64_t metric_quantile_us(const int64_t before[METRIC_BUCKETS], const int64_t now[METRIC_BUCKETS],
                           int share_pm)
{
    int64_t all = 0, below = 0, low_us = 0;

    assert(share_pm > 0 && share_pm <= 1000);
    for (int i = 0; i < BUCKETS; i++)
        all += now[i] - before[i];
    if (all <= 0)
        return -1;
    for (int i = 0; i < BUCKETS - 1; i++) {
        int64_t here = now[i] - before[i];
        int64_t wanted = all * share_pm - below * 1000; /* thousandths of one */

        if (here > 0 && here * 1000 >= wanted)
            return low_us + (buckets[i].us - low_us) * wanted / (here * 1000);
        below += here;
        low_us = buckets[i].us;
    }
    return low_us;
}

/* layer="l1",result="hit"; the last name takes the rest of the values. */
static void put_pairs(struct buf *text, const char *label_names, const char *label_values)
{
    struct str names = str_of(label_names);
    struct str values = str_of(label_values);

    while (names.len > 0) {
        struct str name = str_cut(&names, ',');
        struct str value = names.len > 0 ? str_cut(&values, ',') : values;

        buf_str(text, name);
        buf_str(text, STR("=\""));
        for (size_t i = 0; i < value.len; i++) {
            if (value.at[i] == '\n')
                buf_str(text, STR("\\n"));
            else if (value.at[i] == '"' || value.at[i] == '\\')
                buf_add(text, (const char[]){'\\', value.at[i]}, 2);
            else
                buf_char(text, value.at[i]);
        }
        buf_str(text, names.len > 0 ? STR("\",") : STR("\""));
    }
}

void metrics_head(struct buf *text, const char *name, const char *type, const char *help)
{
    buf_fmt(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_sample(struct buf *text, const struct metric_row *row, const char *suffix,
                       const char *label, const char *le)
{
    buf_fmt(text, "%s%s", row->name, suffix);
    if (row->label || le)
        buf_char(text, '{');
    if (row->label)
        put_pairs(text, row->label, label);
    if (le)
        buf_fmt(text, "%sle=\"%s\"", row->label ? "," : "", le);
    if (row->label || le)
        buf_char(text, '}');
    buf_char(text, ' ');
}

static void render_histogram(struct buf *text, const struct metric_row *row,
                             const struct total *total, int at)
{
    const char *label = total->cells[at].label;
    int64_t count = 0;

    for (int i = 0; i < BUCKETS; i++) {
        count += total->cells[at].hist[i];
        put_sample(text, row, "_bucket", label, i < BUCKETS - 1 ? buckets[i].seconds : "+Inf");
        buf_fmt(text, "%lld\n", (long long)count);
    }
    put_sample(text, row, "_sum", label, NULL);
    buf_fmt(text, "%.6f\n", (double)total->cells[at].sum_us / 1e6);
    put_sample(text, row, "_count", label, NULL);
    buf_fmt(text, "%lld\n", (long long)count);
}

static void render_cell(struct buf *text, const struct metric_row *row, const struct total *total,
                        int at)
{
    int64_t value = total->cells[at].value;

    put_sample(text, row, "", total->cells[at].label, NULL);
    if (row->type == GAUGE_MS)
        buf_fmt(text, "%.3f", (double)value / 1e3);
    else
        buf_int(text, value);
    buf_char(text, '\n');
}

void metrics_render(struct buf *text)
{
    for (int i = 0; i < METRIC_COUNT; i++) {
        const struct metric_row *row = &rows[i];
        struct total total = add_up((enum metric)i);

        if (row->type == PARTED)
            continue;
        metrics_head(text, row->name, type_names[row->type], row->help);
        for (int k = 0; k < total.count; k++)
            (row->type == HISTOGRAM ? render_histogram : render_cell)(text, row, &total, k);
    }
}

void metrics_render_part(struct buf *text, enum metric metric,
                         bool (*shows)(const char *label, const void *user), const void *user)
{
    const struct metric_row *row = &rows[metric];
    struct total total = add_up(metric);

    assert(row->type == PARTED);
    metrics_head(text, row->name, type_names[row->type], row->help);
    for (int k = 0; k < total.count; k++)
        if (shows(total.cells[k].label, user))
            render_cell(text, row, &total, k);
}

void metrics_render_version(struct buf *text, const char *version)
{
    metrics_head(text, "berth_build_info", "gauge", "The version that runs");
    buf_str(text, STR("berth_build_info{"));
    put_pairs(text, "version", version);
    buf_str(text, STR("} 1\n"));
}
