/* The handlers behind the route table, by noun. */
#ifndef SERVER_API_H
#define SERVER_API_H

#include "sched/settle.h"
#include "server/route.h"

/* api_node.c */
extern const struct schema node_admin_schema;
void api_node_register(struct call *call);
void api_node_heartbeat(struct call *call);
void api_node_deregister(struct call *call);
void api_node_jobs(struct call *call);
void api_node_delete(struct call *call);
void api_node_drain(struct call *call);
void api_node_undrain(struct call *call);
void api_node_cordon(struct call *call);
void api_terminal_update(struct call *call);

void api_node_list(struct call *call);
void api_node_show(struct call *call);

/* api_dispatch.c */
void api_dispatch_f2f(struct call *call);
void api_dispatch_task(struct call *call);
void api_dispatch_batch(struct call *call);
void api_dispatch_entry(struct call *call); /* one job, answered like an entry of a batch */
/* Reads a job from a body and prepares it without starting it; needs a fresh arena for each. `by`:
 * NULL when there are no tokens. */
struct submit;
enum err api_dispatch_read(struct worker *worker, const struct token *by, struct arena *arena,
                           const struct json *body, bool f2f, struct submit **ret_submit,
                           struct problem *why);

/* api_job.c */
extern const struct schema job_report_schema;
void api_job_ack(struct call *call);
void api_job_done(struct call *call);
void api_job_fail(struct call *call);
void api_job_list(struct call *call);
void api_job_show(struct call *call);
void api_job_cancel(struct call *call);
void api_job_retry(struct call *call);

/* api_explain.c */
void api_job_explain(struct call *call);
/* Answers with what would happen to it, and changes nothing. */
void explain_dry_run(struct call *call, struct submit *submit);
/* Members `takes_work` and `why_not`: does this node take work of ordinary priority now, and if
 * not, the first reason. */
void explain_write_node(struct jsonw *w, const struct snap_node *member, const struct sched *sched,
                        int64_t now_ms);
/* On the keeper, when another instance asks what this one has decided about a job: answers through
 * rpc_over(). */
struct rpc;
void explain_peers_answer(struct rpc *rpc);

/* rpc.c */
void api_node_rpc(struct call *call);
void api_job_logs(struct call *call);

/* api_metrics.c */
void api_metrics(struct call *call);
void api_stats(struct call *call);
void api_metrics_declare(void); /* at startup */

void api_debug(struct call *call);

/* api_report.c */
void api_report(struct call *call);
void api_usage(struct call *call);
void api_usage_csv(struct call *call);

/* api_breaker.c */
extern const struct schema breaker_name_schema;
void api_breaker_list(struct call *call);
void api_breaker_reset(struct call *call);

/* api_node.c */
void node_resources_write(struct jsonw *w, const struct snap_node *member); /* `resources` */
/* An amount of a resource as people write it (cpu in cores); less than 0 is shown as 0. */
void write_amount(struct jsonw *w, const char *key, struct str resource, int32_t amount);
/* api_limit.c */
extern const struct schema limit_rule_schema, limit_hold_schema;
/* The rule that applies to a key, from an answer to LIMITS; NULL: none. */
const struct store_limit *limit_rule_for(const struct store_op *op, struct str key);
void limit_holders_write(struct jsonw *w, const struct store_limit_key *key); /* `held_by` */
void api_limit_list(struct call *call);
void api_limit_get(struct call *call);
void api_limit_set(struct call *call);
void api_limit_drop(struct call *call);
void api_limit_hold(struct call *call);
void api_limit_release(struct call *call);

/* api_deploy.c */
extern const struct schema deploy_approve_schema, deploy_scale_schema, deploy_rollback_schema;
void api_deploy_list(struct call *call);
void api_deploy_show(struct call *call);
void api_deploy_put(struct call *call);
void api_deploy_patch(struct call *call);
void api_deploy_delete(struct call *call);
void api_deploy_restart(struct call *call);
void api_deploy_scale(struct call *call);
void api_service_show(struct call *call);
void api_deploy_services(struct call *call);
void api_deploy_rollback(struct call *call);
void api_deploy_history(struct call *call);
void api_deploy_explain(struct call *call);
void api_deploy_logs(struct call *call);
void api_deploy_release(struct call *call);
void api_deploy_approve(struct call *call);

/* api_deploy_node.c */
extern const struct schema copy_report_schema;
void api_deploy_view(struct call *call);
void api_deploy_renew(struct call *call);
void api_deploy_claim(struct call *call);
void api_deploy_yield(struct call *call);
void api_deploy_lost(struct call *call);
void api_deploy_status(struct call *call);

/* members.c */
void api_terminal_list(struct call *call);
void api_terminal_sync(struct call *call);
void api_terminal_usage(struct call *call);

/* api_info.c */
void api_cluster_status(struct call *call);

/* events.c */
void api_events(struct call *call);
void api_terminal_events(struct call *call); /* the member list and its changes */

/* token_file.c */
void api_token_list(struct call *call);
void api_token_create(struct call *call);
void api_token_delete(struct call *call);

/* audit.c */
void api_audit(struct call *call);

/* openapi.c */
bool openapi_knows_query(struct str name); /* a parameter that a route may name */
void api_openapi(struct call *call);

/* api_info.c */
/* `stale` and `age_ms` for what comes from memory: whether the store cannot be asked now, and how
 * old this instance's view of the nodes is. */
void write_age(struct jsonw *w, struct server *server);
void api_pools(struct call *call);
void api_connect(struct call *call);
void api_healthz(struct call *call);
void api_readyz(struct call *call);

/* session_cache.c */
void api_session(struct call *call);

/* api_page.c */
void api_page(struct call *call);
void api_page_file(struct call *call);

/* As shown to a caller with this view. */
void job_write(struct jsonw *w, const struct store_record *record,
               const struct namespace_view *view, struct arena *arena);
/* As the caller sees it; one of another namespace must not be shown at all. */
void breaker_write_item(struct jsonw *w, const struct call *call, const struct store_breaker *item);
const char *node_admin_name(int32_t admin); /* the operator's order, or NULL */

#endif
