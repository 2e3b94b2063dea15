/* What this machine has and how much of it is in use, sampled every second without ever blocking the
 * loop. Integers throughout; what cannot be read is absent, never invented. */
#ifndef AGENT_USAGE_H
#define AGENT_USAGE_H

#include "base/err.h"
#include "base/str.h"
#include "io/loop.h"

#define USAGE_NONE INT64_MIN /* not known */

struct usage {
    int64_t cores_milli;      /* 1/1000 core; the cgroup's quota when confined */
    int64_t load_1m_centi;    /* load average x 100 */
    int64_t busy_10s_permille; /* CPU busy over the last 10 s, of all cores (of the quota if confined) */
    int64_t mem_total_kib;    /* the cgroup's limit when confined */
    int64_t mem_free_kib;     /* MemAvailable, or what is left of the cgroup's limit (reclaimable counts as free) */
    int64_t swap_total_kib;
    int64_t swap_used_kib;
    int64_t psi_cpu_some_centi;  /* avg10 x 100, percent */
    int64_t psi_mem_some_centi, psi_mem_full_centi;
    int64_t psi_io_some_centi, psi_io_full_centi;
    int64_t gpu_permille;     /* from nvidia-smi or the configured command */
    int64_t own_cpu_permille; /* agent + all its runs, share of TOTAL capacity, over the last second or so */
    int64_t own_memory_kib;
    bool confined;            /* inside a cgroup with limits of its own */
    int64_t at_ms;            /* wall time of the sample */
};

/* Derived, as the rules want them (see model/level.h). */
int64_t usage_cpu_pct_centi(const struct usage *usage); /* the smaller of load/cores and busy, x 100 */
int64_t usage_mem_free_pct_centi(const struct usage *usage);
int64_t usage_swap_pct_centi(const struct usage *usage); /* no swap = 0 */

struct usage_config {
    const char *host_root;    /* "/"; everything is read below it */
    const char *gpu_command;  /* NULL: try nvidia-smi; "" = off */
    int64_t interval_ms;      /* 1000 */
};

struct sampler;
/* A thread of its own reads the files; `sampled` is called on the loop after each sample. */
enum err sampler_new(struct loop *loop, const struct usage_config *config,
                     void (*sampled)(struct sampler *sampler, const struct usage *usage), void *user,
                     struct sampler **ret_sampler, struct problem *why);
void *sampler_user(const struct sampler *sampler);
/* The pids whose trees count as our own besides this process (shims). Copied. */
void sampler_own(struct sampler *sampler, const int *pids, size_t count);
void sampler_free(struct sampler *sampler);

/* One sample, read now: for tests and `berth run`. `before` (may be NULL) gives the rates. */
struct usage_raw; /* counters of one moment */
enum err usage_read(const char *host_root, struct usage *ret_usage, struct problem *why);

#endif
