/* A sample as the rules and as people want it. */
#include "agent/usage.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

enum {
    PPM = 1000000,
    INODES_COUNTED_MAX = 1000000,
    KIB_PER_GIB = 1024 * 1024,
    KIB_PER_MIB = 1024,
};

/* part/whole in millionths, rounded to the worse side; `up`: more is worse. */
static int64_t share_ppm(int64_t part, int64_t whole, bool up)
{
    __extension__ __int128 scaled = (__int128)part * PPM;

    if (part == USAGE_NONE || whole == USAGE_NONE || whole <= 0)
        return USAGE_NONE;
    return (int64_t)((scaled + (up ? whole - 1 : 0)) / whole);
}

static int64_t cpu_ppm(const struct usage *usage)
{
    int64_t load = USAGE_NONE, busy = USAGE_NONE;

    if (usage->load_1m_centi != USAGE_NONE)
        load = share_ppm(usage->load_1m_centi * 10, usage->cores_milli, true);
    if (usage->busy_10s_permille != USAGE_NONE)
        busy = usage->busy_10s_permille * (PPM / 1000);
    if (load == USAGE_NONE || busy == USAGE_NONE)
        return load == USAGE_NONE ? busy : load;
    return load < busy ? load : busy;
}

static int64_t swap_ppm(const struct usage *usage)
{
    if (usage->swap_total_kib == 0)
        return 0;
    return share_ppm(usage->swap_used_kib, usage->swap_total_kib, true);
}

/* What is free where least is left, or less if somewhere the share is smaller. */
static int64_t memory_ppm(const struct usage *usage)
{
    int64_t ppm = share_ppm(usage->mem_free_kib, usage->mem_total_kib, false);
    int64_t fullest = PPM - usage->mem_used_permille * (PPM / 1000);

    return ppm != USAGE_NONE && fullest < ppm ? fullest : ppm;
}

static int64_t counted_ppm(int64_t part, int64_t whole, int64_t counted_max)
{
    if (whole > counted_max)
        whole = counted_max;
    return share_ppm(part < whole ? part : whole, whole, false);
}

int64_t usage_disk_ppm(const struct usage *usage, int64_t counted_kib_max)
{
    int64_t bytes_ppm = counted_ppm(usage->disk_free_kib, usage->disk_total_kib, counted_kib_max);
    int64_t inodes_ppm =
        counted_ppm(usage->disk_inodes_free, usage->disk_inodes, INODES_COUNTED_MAX);

    assert(USAGE_NONE == LEVEL_UNKNOWN && counted_kib_max > 0);
    return inodes_ppm != USAGE_NONE && inodes_ppm < bytes_ppm ? inodes_ppm : bytes_ppm;
}

void usage_figures(const struct usage *usage, struct level_figures *ret_figures)
{
    *ret_figures = (struct level_figures){
        .ppm =
            {
                [LEVEL_MEMORY] = memory_ppm(usage),
                [LEVEL_CPU] = cpu_ppm(usage),
                [LEVEL_SWAP] = swap_ppm(usage),
                [LEVEL_PRESSURE] = usage->psi_mem_full_centi == USAGE_NONE
                                       ? LEVEL_UNKNOWN
                                       : usage->psi_mem_full_centi * 100,
                [LEVEL_DISK] = LEVEL_UNKNOWN, /* how much counts is a rule: usage_disk_ppm() */
            },
    };
}

static int64_t centi_of(const struct usage *usage, enum level_signal signal)
{
    struct level_figures figures;

    usage_figures(usage, &figures);
    return figures.ppm[signal] == LEVEL_UNKNOWN ? USAGE_NONE : figures.ppm[signal] / 100;
}

int64_t usage_cpu_pct_centi(const struct usage *usage)
{
    return centi_of(usage, LEVEL_CPU);
}

int64_t usage_mem_free_pct_centi(const struct usage *usage)
{
    return centi_of(usage, LEVEL_MEMORY);
}

int64_t usage_swap_pct_centi(const struct usage *usage)
{
    return centi_of(usage, LEVEL_SWAP);
}

/* --- for people and other programs --- */

/* A decimal with as few places as it needs: 620 -> 6.2, 800 -> 8. */
static void write_centi(struct jsonw *w, const char *name, int64_t centi)
{
    char text[32];
    int len;

    if (centi == USAGE_NONE) {
        jsonw_knull(w, name);
        return;
    }
    assert(centi >= 0);
    len = snprintf(text, sizeof text, "%" PRId64 ".%02d", centi / 100, (int)(centi % 100));
    while (text[len - 1] == '0')
        len--;
    if (text[len - 1] == '.')
        len--;
    jsonw_kraw(w, name, (struct str){.at = text, .len = (size_t)len});
}

static int64_t scaled(int64_t value, int64_t times, int64_t by)
{
    return value == USAGE_NONE ? USAGE_NONE : value * times / by;
}

static int64_t mem_used_centi(const struct usage *usage)
{
    int64_t free_centi = usage_mem_free_pct_centi(usage);

    return free_centi == USAGE_NONE ? USAGE_NONE : 10000 - free_centi;
}

static int64_t disk_centi_gb(const struct usage *usage, int64_t kib)
{
    return scaled(usage->disk_total_kib > 0 ? kib : USAGE_NONE, 100, KIB_PER_GIB);
}

void usage_write(const struct usage *usage, struct jsonw *w)
{
    const struct {
        const char *name;
        int64_t centi;
    } rows[] = {
        {"cpu_cores", scaled(usage->cores_milli, 1, 10)},
        {"cpu_load", usage->load_1m_centi},
        {"cpu_percent", usage_cpu_pct_centi(usage)},
        {"mem_total_gb", scaled(usage->mem_total_kib, 100, KIB_PER_GIB)},
        {"mem_free_gb", scaled(usage->mem_free_kib, 100, KIB_PER_GIB)},
        {"mem_used_percent", mem_used_centi(usage)},
        {"swap_total_gb", scaled(usage->swap_total_kib, 100, KIB_PER_GIB)},
        {"swap_used_percent", usage_swap_pct_centi(usage)},
        {"disk_total_gb", disk_centi_gb(usage, usage->disk_total_kib)},
        {"disk_free_gb", disk_centi_gb(usage, usage->disk_free_kib)},
        {"gpu_percent", scaled(usage->gpu_permille, 10, 1)},
        {"psi_cpu_some", usage->psi_cpu_some_centi},
        {"psi_mem_some", usage->psi_mem_some_centi},
        {"psi_mem_full", usage->psi_mem_full_centi},
        {"psi_io_some", usage->psi_io_some_centi},
        {"psi_io_full", usage->psi_io_full_centi},
        {"own_cpu_percent", scaled(usage->own_cpu_permille, 10, 1)},
        {"own_memory_mb", scaled(usage->own_memory_kib, 100, KIB_PER_MIB)},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        write_centi(w, rows[i].name, rows[i].centi);
    jsonw_kbool(w, "confined", usage->confined);
    jsonw_kint(w, "measured_ms", usage->at_ms);
}
