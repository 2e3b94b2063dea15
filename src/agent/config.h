/* All settings of an agent: one table, from which flags, environment variables, file keys and
 * --help are made, and the table of executors, which says what runs for which job type. */
#ifndef AGENT_CONFIG_H
#define AGENT_CONFIG_H

#include "base/schema.h"
#include "model/claim.h"
#include "model/resources.h"

enum {
    CONFIG_URLS_MAX = 16,
    CONFIG_JOBS_MAX = 4096, /* as many as a heartbeat may list */
    CONFIG_TYPE_MAX = 64,
};

enum config_tmp { CONFIG_TMP_AUTO, CONFIG_TMP_OFF };
enum config_unknown { CONFIG_UNKNOWN_NOT_ELIGIBLE, CONFIG_UNKNOWN_ZERO };

/* What runs for a job. Types without a row of their own use the one for "*". */
struct executor {
    struct str type;
    struct str command; /* looked up in the run's PATH */
    struct strs args;
    struct strs env; /* "NAME=value" */
    struct str cwd;  /* at == NULL: the run gets its own directory */
    struct str user; /* at == NULL: job_user */
    int64_t timeout_ms;
    int64_t stop_grace_ms;
    int64_t memory_mb_max;
    int64_t pids_max;
    int64_t disk_mb_max;
    struct strs secrets; /* see argv_secrets() */
    const struct json *args_given, *env_given, *secrets_given;
};

/* Which work may use a secret that it names itself, see secret.h. */
struct secret_rule {
    struct str name;
    struct strs types;       /* of jobs; "*": any */
    bool commands;           /* also jobs with their own command */
    struct strs deployments; /* ids; "*": any */
};

struct config_resources { /* each has an alias in camel case */
    double cpu_per_process;
    double mem_per_process_gb;
    double mem_reserve_gb;
    double load_warning_pct, load_danger_pct, load_critical_pct;
    double mem_warning_pct, mem_danger_pct, mem_critical_pct;
    double swap_warning_pct, swap_danger_pct, swap_critical_pct;
    double disk_warning_pct, disk_danger_pct, disk_counted_gb;
    double vram_warning_pct, vram_danger_pct, vram_critical_pct;
};

/* The other names of `resources` in the file: how much the node has of each, whatever is
 * measured. */
struct config_declared {
    struct resources resources; /* 0: it has none, even if some is measured */
    bool gpus;                  /* GPUs are listed there, perhaps none */
    struct str text;            /* as JSON; "" = nothing is listed */
};

struct config {
    struct str server;  /* one URL, or several separated by commas */
    struct str node_id; /* at == NULL: see identity.h */
    struct str data_dir;
    struct str spawner; /* path of its socket; empty: the agent starts its own */
    struct str token_file;
    struct str token; /* at == NULL: none */
    struct str ca_file;
    struct str tls_cert, tls_key; /* both or neither */
    struct str name, role;
    struct strs semantic_langs, tts_langs, allowed_types;
    const struct json *nmt_pairs, *capability_by_type, *labels;
    int64_t priority; /* among servers, the lowest is asked first; FIELD_OFF: not sent */
    int64_t max_concurrent_jobs;
    bool allow_commands, allow_deployments;
    struct str job_user; /* user for work that names none; empty: see job_user.h */
    bool allow_root;     /* runs may use root */
    bool syscall_filter; /* see sandbox.h */
    int private_tmp;     /* enum config_tmp; see sandbox.h */
    int64_t job_pids_max, job_memory_mb_max; /* of jobs without an executor; 0: no limit */
    int64_t job_disk_mb_max;                 /* of all work; 0: half of the free space */
    int64_t run_memory_pct_max;              /* of work without its own limit; 100: none */
    const struct json *executors_given;
    struct executor *executors;
    size_t executor_count;
    struct str secrets_dir; /* at == NULL: none */
    const struct json *secrets_given;
    struct secret_rule *secret_rules;
    size_t secret_rule_count;
    int64_t max_slots, reserved_slots, slots_fixed, safety_buffer; /* FIELD_OFF: not set */
    int64_t slots_min;
    struct config_resources resources;
    struct config_declared declared;
    bool cpu_strict; /* caps a job's CPU at its demand, even if the rest is idle */
    struct strs protected_types;
    struct strs killable_types; /* count 0: all that are not protected */
    int64_t high_priority_min;
    int64_t monitor_interval_ms;
    struct str host_root;
    struct str loaded_file; /* at == NULL: none */
    struct str gpu_command; /* at == NULL: nvidia-smi if it exists; "": none */
    int64_t log_bytes_max;
    int64_t runs_kept, runs_kept_bytes, runs_kept_ms;
    bool stop_runs;
    bool sleeps_with_server; /* see clock_leases_sleep() */
    int64_t deployments_max;
    int64_t port_min, port_max;   /* assigned to copies; port_min 0: none */
    struct str service_address;   /* where others reach copies; at == NULL: the hostname */
    struct str services_file;     /* below data_dir, or absolute */
    int64_t services_interval_ms; /* 0: the file is not written */
    int claim_policy_index;       /* for claim_policy_at() */
    const struct claim_policy *claim_policy;
    int64_t claim_interval_ms;
    int64_t claim_budget;        /* 0: the node's share */
    int64_t move_after_failures; /* 0: never */
    struct score_weights claim_weights;
    int unknown_metric;                 /* enum config_unknown */
    const struct json *install_command; /* null: packages are not installed */
    const struct json *run_command;     /* for deployments without a command; null: none */
    int64_t install_timeout_ms;
    int64_t packages_kept, packages_unused_ms;
    int64_t restart_min_ms, restart_max_ms, restart_stable_ms;
    int64_t heartbeat_ms; /* until a server sets another */
    int log_level, log_format;
    struct str log_file;               /* empty: standard error */
    const char *urls[CONFIG_URLS_MAX]; /* of `server`, as WebSocket URLs with the path */
    size_t url_count;
    bool tls; /* one of them is wss */
};

struct config_source {
    struct config_source *before; /* earlier ones that were live */
    struct conf conf;
    struct config config;
    struct arena arena;
};

/* Reads the defaults, then the file of --config or BERTH_CONFIG, the environment and the flags. */
enum err config_load(struct config_source *source, int argc, char **argv, struct problem *why);
/* Reads only the defaults and the file, if there is one. The caller frees it whatever this
 * returns. */
enum err config_load_file(struct config_source *source, const char *path, struct problem *why);
void config_done(struct config_source *source);
void config_help(struct buf *out); /* the flags, one per line */

/* The row for a type, or the one for "*"; NULL: this node does not run such jobs. */
const struct executor *config_executor(const struct config *config, struct str type);
bool config_allows(const struct config *config, struct str type); /* by allowed_types */

enum { EXECUTOR_STOP_GRACE_MS = 5000 };

#endif
