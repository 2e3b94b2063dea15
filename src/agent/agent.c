/* Settings, wiring, signals. Everything but the measuring happens on one loop, on the main thread.
 */
#include "agent/agent.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "agent/cgroup.h"
#include "agent/identity.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/url.h"
#include "io/notify.h"

enum {
    FDS_PER_JOB = 4,
    FDS_OTHER = 256,
    SHIM_PATH_MAX = 4096,
    RUNS_NAMED = 8,      /* to people; the rest is counted */
    TELL_ENDS_MS = 2000, /* a server that does not answer is not waited for: it is on disk */
};

/* --- the server --- */

static void link_describe(struct link *link, struct jsonw *w)
{
    tell_write(link_user(link), w);
}

static void link_up(struct link *link)
{
    struct agent *agent = link_user(link);

    jobs_up(agent->jobs);
    tenure_up(agent->tenure);
    claimer_up(agent->claimer);
}

static void link_down(struct link *link)
{
    struct agent *agent = link_user(link);

    jobs_down(agent->jobs);
    tenure_down(agent->tenure);
    claimer_down(agent->claimer);
    queries_down(agent->queries);
}

static void link_left(struct link *link)
{
    loop_stop(&((struct agent *)link_user(link))->loop);
}

static void link_answered(struct link *link, int64_t sent_boot_ms, const struct json *body)
{
    struct agent *agent = link_user(link);

    jobs_renewed(agent->jobs, sent_boot_ms, body);
}

static void take_job(struct agent *agent, const struct json *body)
{
    jobs_job(agent->jobs, body);
}

static void take_cancel(struct agent *agent, const struct json *body)
{
    jobs_cancel(agent->jobs, body);
}

static void take_drop(struct agent *agent, const struct json *body)
{
    jobs_drop(agent->jobs, body);
}

static void take_reply(struct agent *agent, const struct json *body)
{
    if (!queries_reply(agent->queries, body))
        jobs_reply(agent->jobs, body);
}

static void take_deployments(struct agent *agent, const struct json *body)
{
    tenure_look(agent->tenure);
    claimer_wake(agent->claimer);
}

static void take_terminals(struct agent *agent, const struct json *body)
{
    claimer_wake(agent->claimer);
}

static void link_message(struct link *link, struct str msg, const struct json *body)
{
    static const struct {
        const char *msg;
        void (*take)(struct agent *agent, const struct json *body);
    } rows[] = {{"job", take_job},
                {"cancel", take_cancel},
                {"drop", take_drop},
                {"reply", take_reply},
                {"rpc", rpc_answer},
                {"deployments_changed", take_deployments},
                {"terminals_changed", take_terminals}};
    struct agent *agent = link_user(link);

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (str_is(msg, rows[i].msg)) {
            rows[i].take(agent, body);
            return;
        }
    /* a newer server says more than we understand */
    log_event(LOG_DEBUG, "agent.unknown_message", KS("msg", msg));
}

const struct link_handler agent_link_handler = {.describe = link_describe,
                                                .up = link_up,
                                                .down = link_down,
                                                .left = link_left,
                                                .answered = link_answered,
                                                .message = link_message};

/* --- jobs --- */

static bool jobs_send(struct jobs *jobs, struct str text)
{
    struct agent *agent = jobs_user(jobs);

    return agent->link && link_send(agent->link, text);
}

static const char *jobs_refuses(struct jobs *jobs, struct str type, int64_t priority,
                                bool interactive, struct buf *detail)
{
    struct agent *agent = jobs_user(jobs);
    enum protect_answer answer;

    if (agent->endings > 0) {
        buf_str(detail, STR("The agent ends."));
        return "NODE_OVERLOADED";
    }
    answer =
        protect_admits(&agent->protect, agent->loop.mono_ms, type, priority, interactive, detail);
    return answer == PROTECT_ADMIT ? NULL : protect_code(answer);
}

static void job_began(struct agent_job *job)
{
    struct agent *agent = jobs_user(job->jobs);

    protect_started(&agent->protect, job->since_ms);
}

static void job_started(struct agent_job *job)
{
    struct agent *agent = jobs_user(job->jobs);

    agent->pids_stale = true;
}

static void job_over(struct agent_job *job)
{
    struct agent *agent = jobs_user(job->jobs);

    protect_ended(&agent->protect, job->since_ms);
}

static const struct jobs_handler jobs_handler = {.send = jobs_send,
                                                 .refuses = jobs_refuses,
                                                 .began = job_began,
                                                 .started = job_started,
                                                 .over = job_over};

/* --- deployments --- */

static void copies_changed(struct copies *copies)
{
    struct agent *agent = copies_user(copies);

    agent->pids_stale = true;
    tenure_changed(agent->tenure);
}

static bool queries_text(struct queries *queries, struct str text)
{
    struct agent *agent = queries_user(queries);

    return agent->link && link_send(agent->link, text);
}

/* --- the process --- */

enum err agent_open_log(const struct config *config, struct problem *why)
{
    struct arena arena = {0};
    enum err err = ERR_OK;

    if (config->log_file.len)
        err = log_open(arena_cstr(&arena, config->log_file), why);
    arena_free(&arena);
    return err;
}

/* "job j0b5c2jw0000g1, deployment web": what is under way, for people. */
static void name_runs(struct agent *agent, struct buf *out)
{
    size_t named = 0, count = runs_count(agent->runs);

    for (struct run *run = NULL; (run = runs_next(agent->runs, run)) && named < RUNS_NAMED;) {
        struct arena arena = {0};
        const struct json *meta;
        struct str job = STR_NONE, deployment = STR_NONE;

        if (run->state != RUN_ENDED && json_parse(run->meta, &arena, &meta, NULL) == ERR_OK) {
            job = json_str(json_get(meta, "job_id"), &arena);
            deployment = json_str(json_get(meta, "deployment_id"), &arena);
        }
        if (job.len || deployment.len)
            buf_fmt(out, "%s%s " STR_FMT, named++ ? ", " : "", job.len ? "job" : "deployment",
                    STR_ARG(job.len ? job : deployment));
        arena_free(&arena);
    }
    if (named < count)
        buf_fmt(out, "%s%zu more", named ? ", and " : "", count - named);
    buf_char(out, 0);
}

static void leave(struct agent *agent)
{
    struct buf names = {0};

    /* Who sits before it may have thought that they end with it. */
    if (runs_count(agent->runs) > 0 && isatty(STDERR_FILENO)) {
        name_runs(agent, &names);
        fprintf(stderr,
                "berth agent: %zu run on without it: %s. The next agent finds them; `berth job "
                "cancel` and `berth deploy delete` end them, and --stop-runs with the agent.\n",
                runs_count(agent->runs), names.at);
    }
    buf_free(&names);
    tenure_goodbye(agent->tenure);
    /* A second signal does not wait for the server. */
    if (!agent->link || !link_leave(agent->link))
        loop_stop(&agent->loop);
}

/* What runs ends first, each with its own grace; at the second signal without. */
static void end_runs(struct agent *agent)
{
    struct buf names = {0};

    if (++agent->endings > 2) {
        loop_stop(&agent->loop);
        return;
    }
    if (agent->endings == 1 && runs_count(agent->runs) > 0) {
        name_runs(agent, &names);
        fprintf(stderr, "berth agent: ending %s (once more: at once)\n", names.at);
    }
    buf_free(&names);
    copies_end(agent->copies);
    jobs_end(agent->jobs);
    for (struct run *run = NULL; (run = runs_next(agent->runs, run));)
        if (run->state != RUN_ENDED)
            run_stop(run, "STOPPED", agent->endings > 1 ? 0 : -1);
}

/* All have ended: what became of them is told, if there is a server to tell. */
static void look_at_end(struct agent *agent)
{
    if (runs_count(agent->runs) > 0 || jobs_in_use(agent->jobs) > 0)
        return;
    if (!agent->ended_ms)
        agent->ended_ms = agent->loop.mono_ms;
    if (agent->loop.mono_ms - agent->ended_ms < TELL_ENDS_MS && jobs_untold(agent->jobs) > 0)
        return;
    agent->endings = 0;
    leave(agent);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct agent *agent = handle->data;

    if (number == SIGHUP) {
        agent_reload(agent);
        return;
    }
    log_event(LOG_INFO, "agent.stopping", KS("node_id", agent->node_id),
              KC("signal", strsignal(number)),
              KI("running", (int64_t)(jobs_in_use(agent->jobs) + copies_alive(agent->copies))));
    if (agent->config->stop_runs && !agent->ended_ms)
        end_runs(agent);
    else
        leave(agent);
}

/* Looks whether what is being ended has; tells the service manager that the loop turns. */
static void on_tick(struct loop *loop)
{
    struct agent *agent = loop->owner;
    int64_t watchdog_ms = notify_watchdog_ms();

    if (agent->endings > 0)
        look_at_end(agent);
    machine_own(agent);
    if (watchdog_ms == 0 || loop->mono_ms - agent->alive_ms < watchdog_ms / 3)
        return;
    agent->alive_ms = loop->mono_ms;
    notify_send("WATCHDOG=1");
}

static void watch_signals(struct agent *agent)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};

    _Static_assert(COUNT_OF(numbers) == COUNT_OF(((struct agent *)0)->signals), "one for each");
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        uv_signal_init(&agent->loop.uv, &agent->signals[i]);
        agent->signals[i].data = agent;
        uv_signal_start(&agent->signals[i], on_signal, numbers[i]);
    }
}

/* Under pressure we decide who is ended, so we should not wait for the disk ourselves. Only pages
 * that are used, and only where the limit lets all of them: what is mapped later would fail. Runs
 * do not inherit it. */
static int lock_memory(void)
{
    struct rlimit limit;

    if (geteuid() != 0 &&
        (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY))
        return EPERM;
    return mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0 ? 0 : errno;
}

/* If memory runs out the kernel should rather end a job than us; runs do not inherit this. */
static void shield(void)
{
    int oom_error = cgroup_file_put(AT_FDCWD, "/proc/self/oom_score_adj", "-900");
    int lock_error = lock_memory();

    if (oom_error || lock_error)
        log_event(LOG_INFO, "agent.unshielded",
                  KC("oom_score_adj", oom_error ? strerror(oom_error) : "ok"),
                  KC("mlock", lock_error ? strerror(lock_error) : "ok"),
                  KC("reason", "when memory runs out this agent is not better off than its jobs"));
}

/* Nor should it wait for a page of ours to come back from swap when it must decide. Where locked
 * memory has a limit that holds for us, we would be refused memory later on: then not. */
static void stay_resident(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {{0}};
    struct rlimit limit = {0};

    if ((getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) ||
        (syscall(SYS_capget, &header, caps) == 0 &&
         (caps[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK))))
        mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
}

static void raise_fds(const struct config *config)
{
    rlim_t want =
        (rlim_t)((config->max_concurrent_jobs + config->deployments_max) * FDS_PER_JOB + FDS_OTHER);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want)
        return;
    limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* This program itself becomes the shims. */
static enum err own_path(char path[SHIM_PATH_MAX], struct problem *why)
{
    ssize_t len = readlink("/proc/self/exe", path, SHIM_PATH_MAX - 1);

    if (len <= 0)
        return problem_set(why, ERR_IO, "", "Cannot find this program: %s.", strerror(errno));
    path[len] = 0;
    return ERR_OK;
}

/* A run that an earlier agent left. */
static void on_found(struct run *run)
{
    struct agent *agent = runs_user(run->runs);

    if (!copies_adopt(agent->copies, run))
        jobs_adopt(agent->jobs, run);
}

static const char *path_of(struct agent *agent, struct str path)
{
    return path.len ? arena_cstr(&agent->arena, path) : NULL;
}

void agent_run_rules(struct agent *agent)
{
    const struct config *config = agent->config;

    runs_set_rules(agent->runs,
                   &(struct run_rules){.job_user = config->job_user,
                                       .allow_root = config->allow_root,
                                       .unfiltered = !config->syscall_filter,
                                       .secrets_dir = config->secrets_dir,
                                       .disk_bytes_max = config->job_disk_mb_max << 20,
                                       .memory_percent_max = config->run_memory_pct_max,
                                       .shared_tmp = config->private_tmp == CONFIG_TMP_OFF});
}

static enum err open_runs(struct agent *agent, struct problem *why)
{
    const char *dir = arena_fmt(&agent->arena, "%s/runs", agent->dir).at;
    char path[SHIM_PATH_MAX];
    enum err err = own_path(path, why);

    if (!err)
        err = runs_new(&agent->loop, dir, path, path_of(agent, agent->config->spawner), agent,
                       &agent->runs, why);
    if (!err)
        agent_run_rules(agent);
    return err;
}

static void open_jobs(struct agent *agent)
{
    struct jobs_config config = {.config = agent->config,
                                 .node_id = agent->node_id,
                                 .data_dir = agent->dir,
                                 .runs = agent->runs};

    agent->jobs = jobs_new(&agent->loop, &config, &jobs_handler, agent);
}

static enum err open_copies(struct agent *agent, struct problem *why)
{
    struct copies_config config = {.config = agent->config,
                                   .node_id = agent->node_id,
                                   .data_dir = agent->dir,
                                   .runs = agent->runs,
                                   .changed = copies_changed};
    enum err err = copies_new(&agent->loop, &config, agent, &agent->copies, why);

    if (err)
        return err;
    agent->queries = queries_new(&agent->loop, queries_text, agent);
    agent->tenure = tenure_new(&agent->loop, agent->queries, agent->copies, agent->config,
                               agent->node_id, agent->instance);
    agent->claimer = claimer_new(&agent->loop, &(struct claimer_config){.config = agent->config,
                                                                        .node_id = agent->node_id,
                                                                        .instance = agent->instance,
                                                                        .queries = agent->queries,
                                                                        .copies = agent->copies,
                                                                        .tenure = agent->tenure});
    return ERR_OK;
}

/* What a stranger could read: told at the start, and at a reload. */
static void warn_of_strangers(const struct agent *agent)
{
    const struct config *config = agent->config;
    const char *const secrets[] = {agent->access.token_file, agent->access.key_file};

    for (size_t i = 0; config->token.at && i < config->url_count; i++)
        if (url_is_exposed(str_of(config->urls[i])))
            log_event(LOG_WARN, "agent.in_the_clear", KC("server", config->urls[i]),
                      KC("reason", "the token crosses the network unencrypted: use https"));
    for (size_t i = 0; i < COUNT_OF(secrets); i++)
        if (secrets[i] && file_is_public(secrets[i]))
            log_event(LOG_WARN, "agent.secret_readable", KC("path", secrets[i]),
                      KC("reason", "everybody on this machine can read it: chmod 600"));
}

void agent_access(struct agent *agent)
{
    const struct config *config = agent->config;

    agent->access = (struct access){.token_file = path_of(agent, config->token_file),
                                    .token = config->token,
                                    .tls = config->tls,
                                    .ca_file = path_of(agent, config->ca_file),
                                    .cert_file = path_of(agent, config->tls_cert),
                                    .key_file = path_of(agent, config->tls_key)};
    warn_of_strangers(agent);
}

/* What cannot be read now is told now; later it is a connection that fails. */
static enum err open_link(struct agent *agent, struct problem *why)
{
    const struct config *config = agent->config;
    struct net_tls *tls = NULL;
    enum err err;

    agent_access(agent);
    agent->link_config = (struct link_config){.urls = config->urls,
                                              .url_count = config->url_count,
                                              .node_id = agent->node_id,
                                              .access = &agent->access,
                                              .heartbeat_ms = config->heartbeat_ms};
    if (!config->tls)
        return ERR_OK;
    err = access_tls(&agent->access, &tls, why);
    net_tls_free(tls);
    return err;
}

static enum err agent_init(struct agent *agent, struct problem *why)
{
    struct arena *arena = &agent->arena;
    struct protect_rules rules;
    enum err err = agent_rules(agent->config, &rules, why);

    if (!err)
        err = identity_dir(agent->config->data_dir, arena, &agent->dir, why);
    if (!err)
        err = identity_format(agent->dir, arena, why);
    if (!err)
        err = identity_id(agent->dir, agent->config->node_id, arena, &agent->node_id, why);
    if (!err)
        err = identity_instance(agent->dir, arena, &agent->instance, why);
    if (!err)
        err = open_link(agent, why);
    if (err)
        return err;
    protect_init(&agent->protect, &rules, machine_kill, agent);
    err = open_runs(agent, why);
    if (!err) {
        open_jobs(agent);
        err = open_copies(agent, why);
    }
    if (!err) {
        runs_adopt(agent->runs, on_found);
        err = machine_watch(agent, why);
    }
    return err;
}

/* Runs go on under their shims; the next agent takes them up. */
static void agent_done(struct agent *agent)
{
    sampler_free(agent->sampler);
    link_free(agent->link);
    claimer_free(agent->claimer);
    tenure_free(agent->tenure);
    queries_free(agent->queries);
    copies_free(agent->copies);
    jobs_free(agent->jobs);
    runs_free(agent->runs);
    loop_done(&agent->loop);
    if (agent->protect.kill)
        protect_done(&agent->protect);
    free(agent->tasks);
    free(agent->owners);
    free(agent->pids);
    buf_free(&agent->text);
}

static int fail(const struct problem *why)
{
    fprintf(stderr, "berth: %s\n", why->detail);
    return why->err == ERR_BAD_CONFIG || why->err == ERR_BAD_REQUEST || why->err == ERR_BAD_FIELD
               ? 2
               : 1;
}

/* How it would have a control group of its own. */
static const char *limits_command(void)
{
    if (access("/run/systemd/system", F_OK) != 0)
        return "";
    return geteuid() == 0 ? "systemd-run --scope -p Delegate=yes berth ..."
                          : "systemd-run --user --scope -p Delegate=yes berth ...";
}

static void log_start(const struct agent *agent)
{
    struct run_limits_offered offered;

    runs_offered(agent->runs, &offered);
    log_event(LOG_INFO, "agent.started", KS("node_id", agent->node_id), KC("data_dir", agent->dir),
              KC("version", BERTH_VERSION), KI("pid", getpid()),
              KI("adopted", (int64_t)(jobs_in_use(agent->jobs) + copies_alive(agent->copies))));
    if (runs_not_apart(agent->runs))
        log_event(LOG_WARN, "agent.jobs_not_apart", KS("node_id", agent->node_id),
                  KC("reason", runs_not_apart(agent->runs)));
    if (agent->config->private_tmp != CONFIG_TMP_OFF && runs_tmp_missing(agent->runs))
        log_event(
            LOG_WARN, "agent.tmp_shared", KS("node_id", agent->node_id),
            KC("reason", runs_tmp_missing(agent->runs)),
            KC("means", "runs see the machine's /tmp and /dev/shm and what others leave there"));
    if (offered.missing[0])
        log_event(LOG_WARN, "agent.limits_missing", KS("node_id", agent->node_id),
                  KC("reason", offered.missing), KC("try", limits_command()));
}

static int run(struct agent *agent)
{
    struct problem why = {0};
    enum err err;

    if (loop_init(&agent->loop, 0) != ERR_OK) {
        fprintf(stderr, "berth: a loop cannot be made\n");
        return 1;
    }
    raise_fds(agent->config);
    shield();
    stay_resident();
    err = agent_init(agent, &why);
    if (!err) {
        watch_signals(agent);
        log_start(agent);
        agent->loop.owner = agent;
        agent->loop.on_tick = on_tick;
        notify_send("READY=1");
        loop_run(&agent->loop);
        notify_send("STOPPING=1");
    }
    agent_done(agent);
    if (err)
        return fail(&why);
    log_event(LOG_INFO, "agent.stopped", KS("node_id", agent->node_id), KI("pid", getpid()));
    return 0;
}

void agent_flags(struct buf *out)
{
    config_help(out);
}

int agent_main(int argc, char **argv)
{
    struct agent *agent;
    struct problem why = {0};
    int code;

    umask(077); /* payloads and results are nobody else's business */
    notify_init();
    agent = mem_new(struct agent);
    agent->argc = argc;
    agent->argv = argv;
    agent->config = &agent->settings;
    agent->source = mem_new(struct config_source);
    if (config_load(agent->source, argc, argv, &why)) {
        code = fail(&why);
    } else {
        agent->settings = agent->source->config;
        if (agent->config->sleeps_with_server)
            clock_leases_sleep();
        log_setup((enum log_level)agent->config->log_level,
                  (enum log_format)agent->config->log_format, STDERR_FILENO);
        code = agent_open_log(agent->config, &why) ? fail(&why) : run(agent);
    }
    for (struct config_source *source = agent->source, *before; source; source = before) {
        before = source->before;
        config_done(source);
        free(source);
    }
    arena_free(&agent->arena);
    free(agent);
    return code;
}
