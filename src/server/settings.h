/* Everything an operator can set: one table, from which flags, environment, file keys, `config
 * show` and --help follow. */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include "base/schema.h"
#include "io/http.h"
#include "io/ip.h"
#include "io/ws.h"
#include "model/token.h"
#include "sched/sched.h"
#include "sched/spec.h"

enum tls_client_auth { TLS_CLIENT_REQUIRED, TLS_CLIENT_OPTIONAL };

struct ip_ranges {
    struct ip_range *at;
    size_t count;
};

struct settings {
    struct str listen;
    struct str store;
    struct str data_dir;
    struct str database;         /* empty: SQLite in the data directory, if the store is embedded */
    int64_t database_timeout_ms; /* of one statement */
    int64_t deploy_lease_ms, deploy_renew_ms;
    int claim_mode; /* enum deploy_mode */
    int selectors;  /* enum selector_form */
    int64_t loops;
    struct sched_config sched;
    struct http_limits http;
    struct ws_limits ws;
    int64_t result_bytes_max;
    int64_t batch_max;
    int64_t retention_ms, retention_jobs_max, journal_bytes_max;
    int64_t store_in_flight_max, store_call_ms, store_format;
    int64_t breaker_threshold, breaker_cooldown_ms;
    int64_t push_timeout_ms;
    int64_t callback_retry_ms, callback_tries_max;
    int64_t poll_wait_max_ms;
    int64_t events_replay_bytes;
    int64_t metrics_nodes_max;
    struct strs allow_urls, endpoint_urls, callback_urls; /* see callback.h */
    struct strs hosts;
    struct strs trusted_proxies; /* becomes proxies */
    struct ip_ranges proxies;
    int log_level, log_format;
    struct str log_file;            /* empty: standard error */
    const struct json *tokens_json; /* becomes tokens */
    struct tokens tokens;
    struct str tokens_file; /* empty: tokens.yaml in data_dir */
    int64_t login_failures_max;
    int64_t audit_refused_max;
    int audit; /* enum settings_audit */
    struct str tls_cert, tls_key, tls_client_ca, tls_client_crl;
    int tls_client_auth;
    const struct json *routes; /* {"talk": ["hk", "us"]}; becomes sched.routing */
    const struct json *nodes;  /* {"gpu-*": {...}}; becomes sched.node_rules */
    const struct json *types;  /* {"dev": {"needs": {...}}}; becomes type_defaults */
    struct spec_types type_defaults;
};

enum settings_audit { SETTINGS_AUDIT_TRIED, SETTINGS_AUDIT_REQUIRED };

struct settings_source {
    struct conf conf;
    struct settings settings;
    struct arena arena;
    struct settings_source *before; /* a reload's: the settings it replaced */
};

/* Defaults, file, environment, flags; then the rules between them. The problem says which is wrong.
 */
enum err settings_load(struct settings_source *source, int argc, char **argv, struct problem *why);
void settings_done(struct settings_source *source);
/* Settings that take effect only at startup keep their value from `old`, so that a running server
 * can continue with `source`. *ret_waiting lists those that differ, *ret_changed those that take
 * effect now, by name only: values may be secret. */
void settings_keep(struct settings_source *source, const struct settings_source *old,
                   struct buf *ret_changed, struct buf *ret_waiting);
void settings_help(struct buf *out); /* the flags, one per line */

#endif
