/* The state machine of a copy. Level-triggered: every tick compares what should be with what is, so
 * a lost message, agent or process loses nothing. A copy is healthy while its check (a command that
 * exits 0, or a 2xx reply) says so; one that fails several checks in a row is restarted like one
 * that crashed. */
#include "agent/copies.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/capacity.h"
#include "agent/fd.h"
#include "agent/link.h"
#include "agent/runlog.h"
#include "agent/secret.h"
#include "base/log.h"
#include "base/mem.h"

#define COPY_UNHEALTHY "UNHEALTHY" /* why it was stopped */

struct copy_meta {
    struct str kind, id;
    int64_t generation, version, port;
    bool daemon;
    struct str demand;
    uint64_t gpus;
};

static const struct run_handler copies_run_handler;

/* A text as a reason: one line, truncated if too long. */
static void copy_reason(struct str text, char words[COPY_REASON_MAX])
{
    size_t len = 0;

    while (text.len > 0) {
        size_t one = str_utf8_len(text);
        bool ok = one > 0 && str_is_text((struct str){.at = text.at, .len = one});

        if (len + (ok ? one : 1) >= COPY_REASON_MAX)
            break;
        if (ok)
            memcpy(words + len, text.at, one);
        else
            words[len] = ' ';
        len += ok ? one : 1;
        one = one > 0 ? one : 1;
        text = str_from(text, one);
    }
    words[len] = 0;
}

static void copy_log(const struct copy *copy, enum log_level level, const char *event,
                     const char *reason)
{
    log_event(level, event, KS("deployment_id", copy->id),
              KS("node_id", copy->copies->config.node_id),
              KI("generation", copy->run ? copy->run_generation : copy->generation),
              KI("version", copy->run ? copy->run_version : copy->version), KC("reason", reason));
}

/* --- one copy --- */

/* The end that the wanted version has reached, if any. */
static enum copy_end copy_over(const struct copy *copy)
{
    return copy->over_version == copy->version ? copy->over : COPY_NOT_OVER;
}

/* The wanted version is not the one that runs. */
static bool copy_changed(const struct copy *copy)
{
    return copy->run &&
           (copy->run_generation != copy->generation || copy->run_version != copy->version);
}

/* The spec of the run; NULL: an earlier agent started it, and another version is wanted now. */
static const struct deploy_spec *copy_spec_of_run(const struct copy *copy)
{
    return copy->known && copy->run_version == copy->spec_version        ? &copy->spec
           : copy->old_version && copy->run_version == copy->old_version ? &copy->old
                                                                         : NULL;
}

enum { SETTLE_MS = 2000 }; /* without a check, a copy is healthy after running for this long */

static enum copy_health copy_health(const struct copy *copy)
{
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    int64_t age_ms = copy->copies->loop->mono_ms - copy->since_ms;

    if (copy_over(copy) == COPY_FINISHED)
        return COPY_WELL;
    if (copy->state != COPY_RUNNING || copy->check.failures > 0)
        return COPY_UNWELL;
    if (spec && deploy_spec_checked(spec))
        return copy->check.passed ? COPY_WELL : COPY_UNKNOWN;
    return copy->failures == 0 && age_ms >= SETTLE_MS ? COPY_WELL : COPY_UNKNOWN;
}

static const struct package *copy_package(const struct copy *copy, const struct deploy_spec *spec)
{
    return packages_find(copy->copies->packages, spec->package_name, spec->package_version);
}

static void notify_changed(const struct copy *copy)
{
    if (copy->copies->config.changed)
        copy->copies->config.changed(copy->copies);
}

static void set_state(struct copy *copy, enum copy_state state)
{
    assert(state < COPY_STATES);
    if (copy->state == state)
        return;
    copy->state = state;
    copy->since_ms = copy->copies->loop->mono_ms;
    notify_changed(copy);
}

/* The reason why it is not as it should be; a change is reported. */
static void set_reason(struct copy *copy, char words[COPY_REASON_MAX], const char *text)
{
    char cut[COPY_REASON_MAX];

    copy_reason(str_of(text), cut);
    if (strcmp(words, cut) == 0)
        return;
    memcpy(words, cut, sizeof cut);
    notify_changed(copy);
}

static void copy_stop(struct copy *copy, const char *reason, int64_t grace_ms)
{
    assert(copy->run);
    if (!copy->stopping)
        copy_log(copy, LOG_INFO, "copy.stopping", reason);
    copy->stopping = true;
    copy->unhealthy = copy->unhealthy || strcmp(reason, COPY_UNHEALTHY) == 0;
    set_state(copy, COPY_STOPPING);
    run_stop(copy->run, reason, grace_ms);
}

/* --- the table --- */

static struct copy *copies_enter(struct copies *copies, struct str id)
{
    struct copy *copy = mem_new(struct copy);

    assert(id.len > 0 && !map_get(&copies->by_id, id));
    copy->copies = copies;
    copy->id = arena_str(&copy->id_arena, id);
    TAILQ_INSERT_TAIL(&copies->all, copy, entry);
    map_put(&copies->by_id, copy->id, copy);
    return copy;
}

static bool demand_kept(const struct copy *copy, struct demand *ret_demand)
{
    return copy->demand[0] && demand_parse(str_of(copy->demand), ret_demand);
}

static void copy_give_room(struct copy *copy)
{
    struct copies *copies = copy->copies;
    struct demand demand;

    if (copies->config.keep && !copies->freed && demand_kept(copy, &demand))
        copies->config.keep(copies, &demand, copy->gpus, false);
    copy->demand[0] = 0;
    copy->gpus = 0;
}

/* Its run and check must be gone. */
static void copies_leave(struct copy *copy)
{
    struct copies *copies = copy->copies;

    copy_give_room(copy);
    assert(!copy->run && !copy->last && !copy->check.run && !copy->check.call);
    TAILQ_REMOVE(&copies->all, copy, entry);
    map_del(&copies->by_id, copy->id);
    arena_free(&copy->arena);
    arena_free(&copy->old_arena);
    arena_free(&copy->id_arena);
    free(copy);
}

size_t copies_count(const struct copies *copies)
{
    size_t count = 0;

    for (const struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        count += !copy->daemon && copy_over(copy) == COPY_NOT_OVER;
    return count;
}

struct str copies_first_owned(const struct copies *copies)
{
    for (const struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        if (!copy->daemon && copy->wanted && !copy->held)
            return copy->id;
    return STR_NONE;
}

size_t copies_alive(const struct copies *copies)
{
    size_t count = 0;

    for (const struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        count += copy->run != NULL;
    return count;
}

/* --- what is reported --- */

/* The state names of PROTOCOL.md, which differ from our internal states. */
static const char *reported_state(const struct copy *copy)
{
    static const char *const names[COPY_STATES] = {[COPY_WAITING] = "stopped",
                                                   [COPY_INSTALLING] = "installing",
                                                   [COPY_STARTING] = "starting",
                                                   [COPY_RUNNING] = "running",
                                                   [COPY_STOPPING] = "stopping"};

    if (copy->wrong[0] && !copy->run)
        return "refused"; /* the reason has the details */
    if (copy_over(copy) != COPY_NOT_OVER && !copy->run)
        return copy_over(copy) == COPY_FINISHED ? "finished" : "failed";
    if (copy->looping && copy->state != COPY_STOPPING)
        return "crash_loop"; /* also during another run, until it is stable */
    if (copy->state == COPY_WAITING && copy->failures > 0)
        return "backoff";
    if (copy->state == COPY_RUNNING && copy->check.failures > 0)
        return "unhealthy";
    if (copy_changed(copy) && copy->state != COPY_STOPPING)
        return "updating"; /* the version before the wanted one still runs */
    return names[copy->state];
}

/* The reason for its state; for a copy that runs as it should, why its last run ended. */
static struct str reported_reason(const struct copy *copy)
{
    const char *words = copy->wrong[0]                          ? copy->wrong
                        : copy->killed                          ? copy->killed_why
                        : copy->run && copy->check.failures > 0 ? copy->unwell
                        : copy_changed(copy) || copy->state == COPY_INSTALLING || copy->lacks
                            ? copy->waits
                            : copy->ended;

    return *words ? str_of(words) : STR_NONE;
}

/* A limit that is not enforced is worse than none, so the status lists those. */
static void write_limits(const struct copy *copy, struct jsonw *w)
{
    const struct deploy_spec *spec = copy->run ? copy_spec_of_run(copy) : &copy->spec;
    struct buf text = {0};
    char words[COPY_REASON_MAX];
    const struct cgroup_place *offered = runs_offered(copy->copies->config.runs);

    if (!spec || !(spec->limits.memory_mb || spec->limits.cpu_percent || spec->limits.pids ||
                   spec->limits.disk_mb))
        return;
    if (spec->limits.memory_mb && !offered->limits[CGROUP_MEMORY])
        buf_str(&text, STR(", memory_mb"));
    if (spec->limits.cpu_percent && !offered->limits[CGROUP_CPU])
        buf_str(&text, STR(", cpu_percent"));
    if (spec->limits.pids && !offered->limits[CGROUP_PIDS])
        buf_str(&text, STR(", pids"));
    if (text.len > 0) {
        struct buf all = {0};

        buf_fmt(&all, "not enforced: %.*s (%s)", (int)text.len - 2, text.at + 2, offered->missing);
        copy_reason(buf_view(&all), words);
        buf_free(&all);
    }
    jsonw_kstr(w, "limits", text.len > 0 ? str_of(words) : STR("enforced"));
    buf_free(&text);
}

size_t copies_write(struct copies *copies, size_t from, size_t max, struct jsonw *w)
{
    struct copy *copy = TAILQ_FIRST(&copies->all);
    int64_t now_ms = copies->loop->mono_ms;
    size_t place = 0;

    for (; copy && place < from; copy = TAILQ_NEXT(copy, entry))
        place++;
    jsonw_arr(w);
    for (; copy && place < from + max; copy = TAILQ_NEXT(copy, entry), place++) {
        const struct run_exit *exit = copy->last ? &copy->last->exit : NULL;

        jsonw_obj(w);
        jsonw_kstr(w, "id", copy->id);
        jsonw_kint(w, "generation", copy->run ? copy->run_generation : copy->generation);
        jsonw_kint(w, "version", copy->run ? copy->run_version : copy->version);
        /* Only a reply to this status counts: the reply to an earlier one may have been lost. */
        copy->asked_version = copy->asks ? copy->version : 0;
        if (copy->asks)
            jsonw_kint(w, "wants", copy->version);
        copy->asks = false;
        jsonw_kstr(w, "state", str_of(reported_state(copy)));
        if (copy_health(copy) == COPY_UNKNOWN)
            jsonw_knull(w, "healthy");
        else
            jsonw_kbool(w, "healthy", copy_health(copy) == COPY_WELL);
        if (copy->run && copy->run->pid)
            jsonw_kint(w, "pid", copy->run->pid);
        jsonw_kint(w, "restarts", copy->restarts);
        jsonw_kint(w, "since_ms", copies->loop->wall_ms - (now_ms - copy->since_ms));
        if (copy->state == COPY_WAITING && copy->next_ms > now_ms)
            jsonw_kint(w, "retry_ms", copy->next_ms - now_ms);
        jsonw_kstr(w, "reason", reported_reason(copy));
        write_limits(copy, w);
        if (copy->run && copy->port) {
            struct str address = copies->config.config->service_address;

            jsonw_kstr(w, "host", address.at ? address : str_of(copies->host));
            jsonw_kint(w, "port", copy->port);
        }
        if (exit && exit->exit_code >= 0)
            jsonw_kint(w, "exit_code", exit->exit_code);
        if (exit && exit->signal >= 0)
            jsonw_kint(w, "signal", exit->signal);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    return copy ? place : 0;
}

/* --- giving up --- */

/* For the log, and for the history of the deployment. */
const char *copy_hold_text(enum copy_hold hold)
{
    static const char *const texts[] = {
        [COPY_DRAINED] = "The node is drained.",
        [COPY_UNMATCHED] = "Its selector or its namespace does not match the node.",
        [COPY_FAILING] = "It keeps failing on the node.",
        [COPY_NO_ROOM] = "The node has no room for it.",
        [COPY_REFUSED] = "The node runs no deployments (allow_deployments).",
    };

    assert(hold > COPY_NOT_HELD && hold < COUNT_OF(texts));
    return texts[hold];
}

void copies_set_hold(struct copies *copies, struct str id, enum copy_hold hold)
{
    struct copy *copy = map_get(&copies->by_id, id);

    if (!copy || copy->held == hold)
        return;
    copy->held = hold;
    if (hold == COPY_NOT_HELD)
        return;
    /* Saved now: the next end will be caused by us. */
    str_copy(reported_reason(copy), copy->held_reason, sizeof copy->held_reason);
    copy_log(copy, LOG_INFO, "copy.given_up", copy_hold_text(hold));
}

void copies_release_all(struct copies *copies, enum copy_hold hold)
{
    for (struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        if (copy->held == hold)
            copy->held = COPY_NOT_HELD;
}

const struct copy *copies_next_held(const struct copies *copies)
{
    for (const struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        if (copy->held && copy->wanted && !copy->run)
            return copy;
    return NULL;
}

size_t copies_holding(const struct copies *copies, enum copy_hold hold)
{
    size_t count = 0;

    for (const struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        count += copy->held == hold;
    return count;
}

bool copies_lacks(const struct copies *copies, struct str id, int64_t for_ms)
{
    const struct copy *copy = map_get(&copies->by_id, id);

    return copy && copy->wanted && copy->lacks &&
           copies->loop->mono_ms - copy->lacks_since_ms >= for_ms;
}

int64_t copies_failures(const struct copies *copies, struct str id)
{
    const struct copy *copy = map_get(&copies->by_id, id);
    const struct package *package;

    if (!copy || !copy->wanted)
        return 0;
    if (copy->wrong[0] && !copy->run)
        return INT64_MAX; /* retrying does not help */
    if (copy_changed(copy))
        return 0; /* another version failed */
    if (copy->run || copy->state != COPY_INSTALLING)
        return copy->failures;
    package = copy_package(copy, &copy->spec);
    return package && package->failures > copy->failures ? package->failures : copy->failures;
}

enum err copies_log(const struct copies *copies, struct str id, bool previous, int64_t offset,
                    size_t max, struct buf *out, int64_t *ret_offset, int64_t *ret_total,
                    bool *ret_ended)
{
    struct copy *copy = map_get(&copies->by_id, id);
    struct run *run = !copy ? NULL : previous || !copy->run ? copy->last : copy->run;
    const struct package *package = NULL;

    /* Nothing ever ran: report what it waits for. */
    if (copy && !run && !previous && copy->known)
        package = copy_package(copy, &copy->spec);
    if (package)
        run = package->run;
    if (!run)
        return ERR_NOT_FOUND;
    *ret_ended = run->state == RUN_ENDED;
    return run_log(run, offset, max, out, ret_offset, ret_total);
}

/* --- from a spec to a run --- */

enum { OWN_ENV = 11 + CAPACITY_ENV, ID_IN_KEY_MAX = 72 };

/* Uses the deployment's id if it is valid in a file name, else a hash of it. */
static void copy_run_key(struct copy *copy, const char *prefix, char key[RUN_KEY_MAX + 1])
{
    struct copies *copies = copy->copies;
    char name[ID_IN_KEY_MAX + 1];
    int len;

    if (str_is_id(copy->id, ID_IN_KEY_MAX))
        str_copy(copy->id, name, sizeof name);
    else
        snprintf(name, sizeof name, "x%016" PRIx64, str_hash(copy->id));
    /* The time tells agent lifetimes apart, the number starts within one millisecond. */
    len = snprintf(key, RUN_KEY_MAX + 1, "%s.%s.%" PRId64 ".%" PRIx64 "-%" PRId64, prefix, name,
                   copy->generation, copies->loop->wall_ms, ++copies->number);
    assert(len > 0 && len <= RUN_KEY_MAX);
}

/* --- ports --- */

static bool is_given(const struct copies *copies, const struct copy *except, int64_t port)
{
    for (const struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        if (copy != except && copy->port == port)
            return true;
    return false;
}

/* Could a process listen there now, on any address of the machine? Recently closed connections do
 * not matter (SO_REUSEADDR), listeners do. */
static bool is_free(int64_t port)
{
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd6 = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), fd4 = -1, on = 1;
    bool good = true;

    if (fd6 >= 0) { /* a machine without IPv6 has only IPv4 */
        good = setsockopt(fd6, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0 &&
               setsockopt(fd6, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
               (bind(fd6, (struct sockaddr *)&any6, sizeof any6) == 0 || errno == EADDRNOTAVAIL);
        close(fd6);
    }
    if (good) {
        fd4 = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        good = fd4 >= 0 && setsockopt(fd4, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
               bind(fd4, (struct sockaddr *)&any4, sizeof any4) == 0;
    }
    fd_close(fd4);
    return good;
}

/* Called before a start. A copy keeps its port during its life, across runs and agents, unless
 * another process listens there now. A new copy starts searching at its own place in the range, so
 * a copy that was away usually gets the same port again. */
static enum err copy_take_port(struct copy *copy, struct problem *why)
{
    const struct config *config = copy->copies->config.config;
    int64_t first = config->port_min, count = config->port_max - first + 1;
    int64_t start = count > 0 ? (int64_t)(str_hash(copy->id) % (uint64_t)count) : 0;

    if (first == 0) {
        copy->port = 0;
        return ERR_OK;
    }
    if (copy->port >= first && copy->port <= config->port_max && is_free(copy->port))
        return ERR_OK;
    for (int64_t i = 0; i < count; i++) {
        int64_t port = first + (start + i) % count;

        if (is_given(copy->copies, copy, port) || !is_free(port))
            continue;
        copy->port = port;
        return ERR_OK;
    }
    return problem_set(why, ERR_BUSY, "port_min",
                       "No port from %" PRId64 " to %" PRId64 " is free (port_min, port_max).",
                       first, config->port_max);
}

/* The environment of a version of a copy and of its health checks; in the arena. */
static void copy_env(const struct copy *copy, const struct deploy_spec *own, int64_t version,
                     const char *dir, struct arena *arena, struct run_spec *spec)
{
    struct str *env = arena_array(arena, struct str, own->env.count + OWN_ENV);
    size_t count = 0;

    for (; count < own->env.count; count++)
        env[count] = own->env.at[count];
    env[count++] = arena_fmt(arena, "BERTH_DEPLOYMENT_ID=" STR_FMT, STR_ARG(deploy_name(copy->id)));
    if (!copy->daemon)
        env[count++] = arena_fmt(arena, "BERTH_INDEX=%" PRId64, deploy_index(copy->id));
    env[count++] = arena_fmt(arena, "BERTH_GENERATION=%" PRId64, copy->generation);
    env[count++] = arena_fmt(arena, "BERTH_VERSION=%" PRId64, version);
    env[count++] =
        arena_fmt(arena, "BERTH_NODE_ID=" STR_FMT, STR_ARG(copy->copies->config.node_id));
    if (copy->port)
        env[count++] = arena_fmt(arena, "BERTH_PORT=%" PRId64, copy->port);
    if (own->package_name.len)
        env[count++] = arena_fmt(arena, "BERTH_PACKAGE_NAME=" STR_FMT, STR_ARG(own->package_name));
    if (own->package_version.len)
        env[count++] =
            arena_fmt(arena, "BERTH_PACKAGE_VERSION=" STR_FMT, STR_ARG(own->package_version));
    if (dir)
        env[count++] = arena_fmt(arena, "BERTH_PACKAGE_DIR=%s", dir);
    if (copy->gpus)
        count += capacity_env(copy->gpus, arena, env + count);
    assert(count <= own->env.count + OWN_ENV);
    spec->env = env;
    spec->env_count = count;
}

/* The secrets its spec names. ERR_FORBIDDEN if no rule of this agent allows one of them. */
static enum err copy_secrets(const struct copy *copy, const struct deploy_spec *own,
                             struct run_spec *spec, struct problem *why)
{
    struct str deployment = deploy_name(copy->id);

    for (size_t i = 0; i < own->secrets.count; i++) {
        struct str name = secret_name(own->secrets.at[i]);

        if (!secret_for_deployment(copy->copies->config.config, name, deployment))
            return problem_set(why, ERR_FORBIDDEN, "secrets",
                               "No rule of this agent gives the secret " STR_FMT
                               " to the deployment " STR_FMT ".",
                               STR_ARG(name), STR_ARG(deployment));
    }
    spec->secrets = own->secrets.at;
    spec->secret_count = own->secrets.count;
    return ERR_OK;
}

/* Stored with the run so that a later agent recognizes it. kind: "copy" or "health". */
static void copy_meta_write(const struct copy *copy, const char *kind, struct buf *out)
{
    struct jsonw w = jsonw_to(out);

    jsonw_obj(&w);
    jsonw_kstr(&w, "kind", str_of(kind));
    jsonw_kstr(&w, "deployment_id", copy->id);
    jsonw_kint(&w, "generation", copy->generation);
    jsonw_kint(&w, "version", copy->version);
    jsonw_kbool(&w, "daemon", copy->daemon);
    if (copy->port)
        jsonw_kint(&w, "port", copy->port);
    if (copy->demand[0])
        jsonw_kstr(&w, "demand", str_of(copy->demand));
    if (copy->gpus) {
        jsonw_key(&w, "gpus");
        capacity_gpus_write(copy->gpus, &w);
    }
    jsonw_end_obj(&w);
}

static bool copy_meta_read(struct str meta, struct arena *arena, struct copy_meta *ret_meta)
{
    struct copy_meta read = {0};
    const struct json *root;

    if (!meta.at || json_parse(meta, arena, &root, NULL) != ERR_OK)
        return false;
    read.kind = json_str(json_get(root, "kind"), arena);
    read.id = json_str(json_get(root, "deployment_id"), arena);
    if (!read.kind.at || read.id.len == 0 || read.id.len > DEPLOY_COPY_ID_MAX ||
        !json_int(json_get(root, "generation"), &read.generation) ||
        !json_int(json_get(root, "version"), &read.version) ||
        !json_bool(json_get(root, "daemon"), &read.daemon))
        return false;
    json_int(json_get(root, "port"), &read.port);
    read.demand = json_str(json_get(root, "demand"), arena);
    capacity_gpus_read(json_get(root, "gpus"), &read.gpus);
    *ret_meta = read;
    return true;
}

/* The deployment's own command, or the agent's run_command followed by the package's arguments. */
static enum err find_argv(const struct copy *copy, const char *dir, struct arena *arena,
                          struct strs *ret_words, struct problem *why)
{
    const struct deploy_spec *own = &copy->spec;
    struct strs run, words = own->command;

    if (!words.count) {
        if (!packages_words(copy->copies->config.config->run_command, own->package_name,
                            own->package_version.at ? own->package_version : STR(""), dir, arena,
                            &run))
            return problem_set(why, ERR_NOT_FOUND, "command",
                               "It has no command, and run_command is not set here.");
        words.at = arena_array(arena, struct str, run.count + own->args.count);
        for (size_t i = 0; i < run.count; i++)
            words.at[words.count++] = run.at[i];
        for (size_t i = 0; i < own->args.count; i++)
            words.at[words.count++] = own->args.at[i];
    }
    *ret_words = words;
    return ERR_OK;
}

/* ERR_OK: as far as can be checked in advance, copy_start would succeed. */
static enum err copy_startable(const struct copy *copy, const char *dir, struct problem *why)
{
    struct arena arena = {0};
    struct strs words;
    enum err err = find_argv(copy, dir, &arena, &words, why);
    struct str program = err ? STR("") : words.at[0];

    /* A name without a slash is looked up in a PATH that only the shim knows. */
    if (dir && memchr(program.at, '/', program.len) && program.at[0] != '/')
        program = arena_fmt(&arena, "%s/" STR_FMT, dir, STR_ARG(program));
    if (str_starts(program, STR("/")) && access(arena_cstr(&arena, program), X_OK) != 0)
        err = problem_set(why, ERR_NOT_FOUND, "command",
                          "The program " STR_FMT " cannot be started: %s.", STR_ARG(program),
                          strerror(errno));
    arena_free(&arena);
    return err;
}

/* --- what it needs of this node --- */

/* Does the wanted version fit beside what others hold? Sets copy->lacks; copy->waits says what is
 * short. */
static bool copy_has_room(struct copy *copy, uint64_t *ret_gpus)
{
    struct copies *copies = copy->copies;
    const struct demand *wants = &copy->spec.demand;
    struct demand has;
    struct buf text = {0};
    bool lacked = copy->lacks;

    *ret_gpus = copy->gpus;
    demand_write(wants, &text);
    copy->lacks = false;
    if (copies->config.room && !demand_is_plain(wants) && !str_is(buf_view(&text), copy->demand)) {
        bool kept = demand_kept(copy, &has);

        buf_clear(&text);
        copy->lacks =
            !copies->config.room(copies, wants, kept ? &has : NULL, copy->gpus, ret_gpus, &text);
    }
    if (copy->lacks) {
        struct problem why;

        problem_set(&why, ERR_BUSY, "needs", "This node has no room for it: " STR_FMT ".",
                    STR_ARG(buf_view(&text)));
        set_reason(copy, copy->waits, why.detail);
    }
    buf_free(&text);
    if (copy->lacks && !lacked) {
        copy->lacks_since_ms = copies->loop->mono_ms;
        copy_log(copy, LOG_WARN, "copy.no_room", copy->waits);
    }
    return !copy->lacks;
}

/* Starts copy->run from copy->spec; dir is its package's directory (NULL: none). */
static enum err copy_start(struct copy *copy, const char *dir, struct problem *why)
{
    struct copies *copies = copy->copies;
    const struct deploy_spec *own = &copy->spec;
    const struct deploy_limits *limits = &own->limits;
    struct arena arena = {0};
    struct buf meta = {0};
    struct strs words;
    char key[RUN_KEY_MAX + 1];
    struct run_spec spec = {.handler = &copies_run_handler,
                            .cwd = str_of(dir),
                            .stop_grace_ms = own->stop_grace_ms,
                            .log_bytes_max = copies->config.config->log_bytes_max};
    enum err err;
    const struct cgroup_place *offered = runs_offered(copies->config.runs);

    assert(!copy->run && copy->known && copy->wanted);
    if (!copy->daemon) {
        spec.deadline_boot_ms = copies->fence_ms;
        spec.deadline_grace_ms = copies->fence_grace_ms;
        assert(spec.deadline_boot_ms > 0);
    }
    err = find_argv(copy, dir, &arena, &words, why);
    if (!err)
        err = copy_secrets(copy, own, &spec, why);
    if (!err)
        err = copy_take_port(copy, why);
    if (err) {
        arena_free(&arena);
        return err;
    }
    spec.argv = words.at;
    spec.argc = words.count;
    /* A deployment must run somewhere: where a limit cannot be enforced, its copy runs without it
     * and reports that in its status. What it needs of memory is also its limit, unless it has a
     * lower one. */
    if (offered->limits[CGROUP_MEMORY])
        spec.memory_bytes_max =
            lower_limit(demand_need(&own->demand, STR("mem_mb")), limits->memory_mb) << 20;
    spec.pids_max = offered->limits[CGROUP_PIDS] ? limits->pids : 0;
    spec.cpu_permille_max = offered->limits[CGROUP_CPU] ? limits->cpu_percent * 10 : 0;
    spec.disk_bytes_max = limits->disk_mb << 20; /* enforced by its shim, without a control group */
    copy_run_key(copy, "d", key);
    spec.key = str_of(key);
    copy_env(copy, own, copy->version, dir, &arena, &spec);
    copy_meta_write(copy, "copy", &meta);
    spec.meta = buf_view(&meta);
    err = runs_start(copies->config.runs, &spec, copy, &copy->run, why);
    if (!err) {
        copy->run_generation = copy->generation;
        copy->run_version = copy->version;
    }
    buf_free(&meta);
    arena_free(&arena);
    return err;
}

/* --- health --- */

enum { REPLY_BYTES_MAX = 64 * 1024, CHECK_GRACE_MS = 500 };

/* Outlives its copy, if that is freed while a reply is pending. */
struct check_call {
    struct client_call call;
    struct copy *copy; /* NULL: the copy is gone, the reply is ignored */
    char *url;
};

static void judged(struct copy *copy, bool well, const char *reason)
{
    struct copy_check *check = &copy->check;
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    const struct deploy_health *health = &spec->health;

    assert(spec && deploy_spec_checked(spec));
    check->next_ms = copy->copies->loop->mono_ms + health->interval_ms;
    if (well) {
        if (check->failures > 0)
            copy_log(copy, LOG_INFO, "copy.healthy", "its check passed again");
        check->failures = 0;
        check->passed = true;
        copy->unwell[0] = 0;
        return;
    }
    copy_reason(str_of(reason), copy->unwell);
    if (!check->passed && copy->copies->loop->mono_ms < check->begun_ms + health->start_ms) {
        copy_log(copy, LOG_DEBUG, "copy.starting", reason);
        return;
    }
    check->failures++;
    copy_log(copy, LOG_WARN, "copy.unhealthy", reason);
    if (check->failures >= health->failures && !copy->stopping)
        copy_stop(copy, COPY_UNHEALTHY, -1);
}

/* --- by command --- */

static void on_command_ended(struct run *run)
{
    struct copy *copy = run->user;
    bool well = strcmp(run->exit.reason, "EXITED") == 0 && run->exit.exit_code == 0;
    char line[COPY_REASON_MAX], words[2 * COPY_REASON_MAX];

    runlog_last_line(run->exit.tail, line, sizeof line);
    snprintf(words, sizeof words, "Its check failed. %s%s%s", run->exit.detail, *line ? " " : "",
             line);
    if (copy) {
        assert(copy->check.run == run);
        copy->check.run = NULL;
        judged(copy, well, words);
    }
    run_forget(run);
}

static const struct run_handler command_handler = {.ended = on_command_ended};

static void ask_command(struct copy *copy)
{
    const struct deploy_spec *own = copy_spec_of_run(copy);
    const struct deploy_health *health = &own->health;
    const struct package *package = copy_package(copy, own);
    const char *dir = package && package->ready ? package->dir : NULL;
    struct arena arena = {0};
    struct buf meta = {0};
    struct problem why = {0};
    char key[RUN_KEY_MAX + 1];
    struct run_spec spec = {.handler = &command_handler,
                            .argv = health->command.at,
                            .argc = health->command.count,
                            .cwd = str_of(dir),
                            .tmp_of = copy->run->key, /* it may need files its copy left there */
                            .timeout_ms = health->timeout_ms,
                            .stop_grace_ms = CHECK_GRACE_MS,
                            .log_bytes_max = RUN_LOG_BYTES_MIN};

    copy_run_key(copy, "h", key);
    spec.key = str_of(key);
    copy_env(copy, own, copy->run_version, dir, &arena, &spec);
    copy_meta_write(copy, "health", &meta);
    spec.meta = buf_view(&meta);
    if (copy_secrets(copy, own, &spec, &why) ||
        runs_start(copy->copies->config.runs, &spec, copy, &copy->check.run, &why))
        judged(copy, false, why.detail);
    buf_free(&meta);
    arena_free(&arena);
}

/* --- by HTTP --- */

static void on_answer(struct client_call *call)
{
    struct check_call *own = container_of(call, struct check_call, call);
    struct copy *copy = own->copy;
    bool well = call->err == ERR_OK && call->status >= 200 && call->status <= 299;
    char words[COPY_REASON_MAX];

    if (copy) {
        assert(copy->check.call == call);
        copy->check.call = NULL;
        if (call->err)
            snprintf(words, sizeof words, "Its check failed: %s.", err_title(call->err));
        else
            snprintf(words, sizeof words, "Its check was answered with %d.", call->status);
        judged(copy, well, words);
    }
    buf_free(&call->reply);
    free(own->url);
    free(own);
}

static void ask_http(struct copy *copy)
{
    const struct deploy_health *health = &copy_spec_of_run(copy)->health;
    struct check_call *own = mem_new(struct check_call);
    struct arena arena = {0};
    struct str url;

    own->copy = copy;
    url = deploy_with_port(health->http, copy->port, &arena);
    own->url = mem_cstr(url);
    arena_free(&arena);
    own->call = (struct client_call){.method = "GET",
                                     .url = own->url,
                                     .timeout_ms = health->timeout_ms,
                                     .reply_bytes_max = REPLY_BYTES_MAX,
                                     .done = on_answer};
    if (client_send(copy->copies->client, &own->call) != ERR_OK) {
        free(own->url);
        free(own);
        judged(copy, false, "Its check cannot be sent.");
        return;
    }
    copy->check.call = &own->call;
}

/* --- when --- */

/* Called every tick while it runs. */
static void copy_check_tick(struct copy *copy)
{
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    const struct deploy_health *health;
    struct copy_check *check = &copy->check;
    int64_t now_ms = copy->copies->loop->mono_ms;

    if (!spec || !deploy_spec_checked(spec) || check->run || check->call)
        return;
    health = &spec->health;
    if (!check->begun_ms) {
        check->begun_ms = now_ms;
        check->next_ms = now_ms + health->interval_ms;
    }
    if (now_ms < check->next_ms)
        return;
    if (health->command.count > 0)
        ask_command(copy);
    else
        ask_http(copy);
}

/* Called when the run has ended or the copy is freed. */
static void copy_check_cancel(struct copy *copy)
{
    struct copy_check *check = &copy->check;

    if (check->run) {
        check->run->user = NULL;
        if (!copy->copies->freed)
            run_stop(check->run, "STOPPED", 0);
    }
    if (check->call)
        container_of(check->call, struct check_call, call)->copy = NULL;
    *check = (struct copy_check){0};
}

/* --- from state to state --- */

#define REASON_STOPPED   "STOPPED"
#define REASON_REPLACED  "REPLACED"
#define REASON_FENCED    "FENCED"
#define REASON_EMERGENCY "EMERGENCY"

enum {
    CRASHES_MAX = 5,                   /* in a row, then it is a crash loop */
    ASK_MS = 1000,                     /* how often a daemon asks whether it is its node's turn */
    ROOM_MS = 1000,                    /* how often room for it is checked again */
    HTTP_CONNECTIONS = 64,             /* for checks */
    KILLED_MIN_MS = 60 * 1000,         /* first rest after being killed to save the machine, */
    KILLED_MAX_MS = 16 * 60 * 1000,    /* doubled each time up to this, */
    KILLED_FORGOTTEN_MS = 3600 * 1000, /* and reset after running for this long */
};

/* --- the end --- */

void copy_kill(struct copy *copy, struct str why, int64_t grace_ms)
{
    size_t len = why.len < sizeof copy->killed_why ? why.len : sizeof copy->killed_why - 1;

    assert(copy->run && !copy->stopping);
    copy->killed = true;
    memcpy(copy->killed_why, why.at, len);
    copy->killed_why[len] = 0;
    copy_stop(copy, REASON_EMERGENCY, grace_ms);
}

/* The copy will be started again, but not at once. */
static void note_failure(struct copy *copy, const char *reason, int64_t least_ms)
{
    struct copies *copies = copy->copies;
    const struct deploy_restart *restart = &copy->spec.restart;
    int64_t min_ms = restart->min_ms ? restart->min_ms : copies->config.config->restart_min_ms;
    int64_t max_ms = restart->max_ms ? restart->max_ms : copies->config.config->restart_max_ms;
    int64_t pause_ms;

    assert(!copy->run);
    copy->failures++;
    set_reason(copy, copy->ended, reason);
    pause_ms = backoff_ms(copy->failures, min_ms, max_ms > min_ms ? max_ms : min_ms, &copies->rnd);
    if (pause_ms < least_ms)
        pause_ms = least_ms;
    copy->next_ms = copies->loop->mono_ms + pause_ms;
    log_event(LOG_WARN, "copy.failed", KS("deployment_id", copy->id),
              KS("node_id", copies->config.node_id), KI("generation", copy->generation),
              KC("reason", reason), KI("failures", copy->failures), KI("retry_ms", pause_ms));
    if (copy->failures == CRASHES_MAX) {
        copy->looping = true;
        copy_log(copy, LOG_ERROR, "copy.crash_loop", reason);
    }
    set_state(copy, COPY_WAITING);
}

/* How the restart policy judges an end. If berth ended it (lost lease, drain, update, emergency),
 * it is started again whatever the policy. */
static enum copy_end judge_end(const struct deploy_spec *spec, const struct run_exit *exit)
{
    static const char *const by_itself[] = {
        "EXITED", "SIGNALLED", "OOM", "DISK_LIMIT", "START_FAILED", "SHIM_LOST", COPY_UNHEALTHY};
    size_t i = 0;

    while (i < COUNT_OF(by_itself) && strcmp(exit->reason, by_itself[i]) != 0)
        i++;
    if (spec->restart.policy == DEPLOY_ALWAYS || i == COUNT_OF(by_itself))
        return COPY_NOT_OVER;
    if (strcmp(exit->reason, "EXITED") == 0 && exit->exit_code == 0)
        return COPY_FINISHED;
    return spec->restart.policy == DEPLOY_NEVER ? COPY_FAILED : COPY_NOT_OVER;
}

static void set_over(struct copy *copy, enum copy_end over, int64_t version)
{
    assert(!copy->run && over != COPY_NOT_OVER);
    copy->over = over;
    copy->over_version = version;
    copy->failures = 0;
    copy->looping = false;
    set_state(copy, COPY_WAITING);
    notify_changed(copy);
}

static void keep_last(struct copy *copy, struct run *run, int64_t version)
{
    if (copy->last)
        run_forget(copy->last);
    copy->last = run;
    copy->last_version = version;
}

static void on_started(struct run *run)
{
    struct copy *copy = run->user;

    assert(copy->run == run);
    copy_log(copy, LOG_INFO, "copy.started", "its process runs");
    if (copy->stopping)
        return;
    assert(!copy->check.run && !copy->check.call);
    set_state(copy, COPY_RUNNING);
    copy->check = (struct copy_check){0};
}

static bool was_stable(const struct copy *copy)
{
    const struct copies *copies = copy->copies;

    return copy->state == COPY_RUNNING &&
           copies->loop->mono_ms - copy->since_ms >= copies->config.config->restart_stable_ms;
}

static void on_ended(struct run *run)
{
    struct copy *copy = run->user;
    bool killed = copy->killed, asked = copy->stopping && !copy->unhealthy && !killed;
    bool replaced = copy_changed(copy);
    /* The reason from its check says more than that it was stopped. */
    const char *reason = killed            ? copy->killed_why
                         : copy->unhealthy ? copy->unwell
                                           : run->exit.detail;
    const struct deploy_spec *spec = copy_spec_of_run(copy);
    enum copy_end over = spec ? judge_end(spec, &run->exit) : COPY_NOT_OVER;

    assert(copy->run == run && run->state == RUN_ENDED);
    copy_check_cancel(copy);
    copy_log(copy, LOG_INFO, "copy.ended", run->exit.detail);
    if (was_stable(copy) || replaced) /* a version is not blamed for the one before it */
        copy->failures = 0;
    copy->looping = copy->looping && !replaced;
    copy->run = NULL;
    if (!killed)
        copy->killed_why[0] = 0;
    copy->restarts += over == COPY_NOT_OVER;
    keep_last(copy, run, copy->run_version);
    arena_free(&copy->old_arena);
    copy->old_version = 0;
    if (killed) {
        if (run->exit.started_ms &&
            run->exit.ended_ms - run->exit.started_ms >= KILLED_FORGOTTEN_MS)
            copy->kills = 0;
        note_failure(copy, reason, backoff_bound_ms(copy->kills++, KILLED_MIN_MS, KILLED_MAX_MS));
    } else if (asked || replaced || strcmp(run->exit.reason, "DEADLINE") == 0) {
        /* DEADLINE is the lease's, which says nothing about the work: it restarts as soon as there
         * is a lease. */
        copy->next_ms = 0;
        set_reason(copy, copy->ended, reason);
        set_state(copy, COPY_WAITING);
    } else if (over != COPY_NOT_OVER) {
        set_reason(copy, copy->ended, reason);
        copy_log(copy, over == COPY_FINISHED ? LOG_INFO : LOG_WARN, "copy.over", reason);
        set_over(copy, over, copy->run_version);
    } else {
        note_failure(copy, reason, 0);
    }
    copy->stopping = copy->unhealthy = copy->killed = false;
    copy->unwell[0] = 0;
}

static const struct run_handler copies_run_handler = {.started = on_started, .ended = on_ended};

/* --- the beginning --- */

static bool may_start(const struct copy *copy)
{
    const struct copies *copies = copy->copies;

    return copy->wanted && copy->known && !copy->wrong[0] && !copy->held && !copies->ending &&
           copy_over(copy) == COPY_NOT_OVER && copies->loop->mono_ms >= copy->next_ms &&
           !(copies->danger && copy->killed_why[0]) &&
           (copy->daemon || clock_lease_ms() < copies->fence_ms);
}

/* Is everything the wanted version needs installed? */
static bool is_installed(struct copy *copy, const char **ret_dir)
{
    const struct deploy_spec *spec = &copy->spec;
    struct packages *packages = copy->copies->packages;
    const struct package *package;
    enum package_state state =
        packages_need(packages, spec->package_name, spec->package_version, ret_dir);

    if (state == PACKAGE_READY)
        return true;
    package = copy_package(copy, spec);
    assert(package); /* it was just requested under this name */
    set_reason(copy, copy->waits,
               package->reason[0] ? package->reason : "Its package is being installed.");
    return false;
}

static void begin(struct copy *copy)
{
    struct copies *copies = copy->copies;
    struct problem why = {0};
    struct buf needs = {0};
    const char *dir;
    uint64_t gpus;

    assert(!copy->run && copy->known && !copy->held);
    if (!copy_has_room(copy, &gpus)) {
        copy_give_room(copy); /* reserved for another version */
        copy->next_ms = copies->loop->mono_ms + ROOM_MS;
        set_state(copy, COPY_WAITING);
        return;
    }
    /* From the first start on, room is reserved for the copy, also between two starts; otherwise
     * newly admitted work would displace it. */
    if (!demand_is_plain(&copy->spec.demand))
        demand_write(&copy->spec.demand, &needs);
    if (!str_is(buf_view(&needs), copy->demand)) {
        copy_give_room(copy);
        str_copy(buf_view(&needs), copy->demand, sizeof copy->demand);
        copy->gpus = needs.len && copies->config.room ? gpus : 0;
        if (needs.len && copies->config.keep)
            copies->config.keep(copies, &copy->spec.demand, copy->gpus, true);
    }
    buf_free(&needs);
    if (!is_installed(copy, &dir)) {
        set_state(copy, COPY_INSTALLING);
        return;
    }
    if (copy_start(copy, dir, &why)) {
        note_failure(copy, why.detail, 0);
        return;
    }
    copy->waits[0] = 0;
    set_state(copy, COPY_STARTING);
}

/* --- replacing --- */

/* May the running version be stopped for the wanted one? Not before that can be started: a version
 * that cannot be installed leaves the previous one running. */
static bool may_replace(struct copy *copy)
{
    struct problem why = {0};
    int64_t now_ms = copy->copies->loop->mono_ms;
    const char *dir;
    uint64_t gpus;

    if (copy->run_generation != copy->generation)
        return true; /* the running version belongs to an assignment that is over */
    if (copy->wrong[0] || !is_installed(copy, &dir))
        return false;
    if (copy_startable(copy, dir, &why)) {
        set_reason(copy, copy->waits, why.detail);
        return false;
    }
    if (!copy_has_room(copy, &gpus))
        return false;
    /* A daemon runs on many nodes, and a broken version should break only one: the server says when
     * it is this node's turn. */
    if (!copy->daemon || copy->turn_version == copy->version)
        return true;
    if (now_ms >= copy->ask_ms) {
        copy->ask_ms = now_ms + ASK_MS;
        copy->asks = true;
        notify_changed(copy);
    }
    return false;
}

/* --- every tick --- */

static void look_at_run(struct copy *copy)
{
    if (copy->stopping)
        return;
    if (copy->copies->ending || copy->held || (copy->copies->rows_known && !copy->wanted))
        copy_stop(copy, REASON_STOPPED, -1);
    else if (copy_changed(copy) && may_replace(copy))
        copy_stop(copy, REASON_REPLACED, -1);
    else if (copy->state == COPY_RUNNING) {
        if (copy->failures > 0 && was_stable(copy)) {
            copy->failures = 0;
            copy->looping = false;
        }
        copy_check_tick(copy);
        if (copy->reported_health != copy_health(copy)) {
            copy->reported_health = copy_health(copy);
            notify_changed(copy);
        }
    }
}

static void look_at_all(struct copies *copies)
{
    for (struct copy *copy = TAILQ_FIRST(&copies->all), *next; copy; copy = next) {
        next = TAILQ_NEXT(copy, entry);
        if (copy->run) {
            look_at_run(copy);
        } else if (copies->rows_known && !copy->wanted) {
            copy_check_cancel(copy);
            if (copy->last)
                run_forget(copy->last);
            copy->last = NULL;
            copy_log(copy, LOG_INFO, "copy.gone", "this node does not run it any more");
            copies_leave(copy);
        } else if (may_start(copy)) {
            begin(copy);
        } else if (copy->held || copies->ending || copy_over(copy) != COPY_NOT_OVER) {
            copy_give_room(copy);
            copy->lacks = false;
        } else if (copy->state == COPY_INSTALLING) {
            set_state(copy, COPY_WAITING);
        }
    }
}

static void on_tick(struct loop_part *part)
{
    struct copies *copies = container_of(part, struct copies, part);

    look_at_all(copies);
    packages_trim(copies->packages, copies->rows_known && clock_lease_ms() < copies->fence_ms);
}

/* --- what the server wants --- */

/* The spec moves into the copy, with its arena. The spec of the running version is kept: its checks
 * go on until it is replaced. */
static void set_spec(struct copy *copy, const struct deploy_spec *spec, struct arena *arena)
{
    if (copy->run && copy->known && copy->spec_version == copy->run_version &&
        copy->spec_version != copy->version) {
        arena_free(&copy->old_arena);
        copy->old_arena = copy->arena;
        copy->old = copy->spec;
        copy->old_version = copy->spec_version;
    } else {
        arena_free(&copy->arena);
    }
    copy->arena = *arena;
    copy->spec = *spec;
    copy->spec_version = copy->version;
    copy->known = true;
    copy->wrong[0] = copy->waits[0] = 0;
    /* It may have ended while no agent was running. */
    if (!copy->run && copy->last && copy->last_version == copy->version &&
        judge_end(spec, &copy->last->exit) != COPY_NOT_OVER)
        set_over(copy, judge_end(spec, &copy->last->exit), copy->version);
}

/* A row from the server. A row whose spec cannot be run still has these fields, so that the refusal
 * is reported for this assignment. */
struct row {
    struct str id, type, ended;
    int64_t generation, version;
    const struct json *spec;
};

static const struct field row_fields[] = {
    FIELD_ROW(row, id, STR, .min = 1, .max = DEPLOY_COPY_ID_MAX),
    FIELD_ROW(row, type, STR, .preset = "deployment"),
    FIELD_ROW(row, generation, INT),
    FIELD_ROW(row, version, INT),
    FIELD_ROW(row, ended, STR),
    FIELD_ROW(row, spec, JSON),
};
static const struct schema row_schema = {
    .what = "the row", .fields = row_fields, .count = COUNT_OF(row_fields)};

void copies_want(struct copies *copies, const struct json *json)
{
    struct arena arena = {0};
    struct row row = {0};
    struct deploy_spec spec;
    struct problem why = {0};
    const struct json *own; /* its own JSON tree, which lives as long as the spec */
    enum err err = schema_presets(&row_schema, &row, &arena);
    struct copy *copy;

    if (!err)
        err = json_parse(arena_str(&arena, json_raw(json)), &arena, &own, &why);
    if (!err)
        err = schema_read(&row_schema, own, &row, &arena, &why);
    if (err || !row.id.len) {
        log_event(LOG_ERROR, "copy.bad_row", KS("node_id", copies->config.node_id),
                  KC("reason", err ? why.detail : "It has no id."));
        arena_free(&arena);
        return;
    }
    copy = map_get(&copies->by_id, row.id);
    if (!copy)
        copy = copies_enter(copies, row.id);
    copy->wanted = true;
    copy->round = copies->round;
    if (copy->known && !copy->wrong[0] && row.version == copy->version &&
        row.generation == copy->generation) {
        arena_free(&arena);
        return;
    }
    copy->generation = row.generation;
    copy->version = row.version;
    copy->daemon = str_is(row.type, "daemon");
    copy->lacks = false; /* that was about the spec before */
    if (copy->held == COPY_FAILING || copy->held == COPY_NO_ROOM)
        copy->held = COPY_NOT_HELD;
    if (!copy->run) { /* an operator acted on it: no need to wait */
        copy->next_ms = 0;
        copy->failures = 0;
        copy->looping = false;
        copy->kills = 0;
        copy->killed_why[0] = 0;
    }
    if (row.ended.len && !copy->run && copy_over(copy) == COPY_NOT_OVER)
        set_over(copy, str_is(row.ended, "finished") ? COPY_FINISHED : COPY_FAILED, row.version);
    err = deploy_spec_read(row.spec, false, &arena, &spec, &why);
    if (!err && deploy_type_by_name(row.type) == DEPLOY_OTHER)
        err = problem_set(&why, ERR_BAD_FIELD, "type", "type must be deployment or daemon.");
    if (err) {
        char before[COPY_REASON_MAX];

        memcpy(before, copy->wrong, sizeof before);
        set_reason(copy, copy->wrong, why.detail);
        if (strcmp(before, copy->wrong) != 0)
            copy_log(copy, LOG_ERROR, "copy.bad_spec", copy->wrong);
        arena_free(&arena);
    } else {
        deploy_spec_defaults(&spec, &arena);
        set_spec(copy, &spec, &arena);
    }
}

void copies_round_over(struct copies *copies)
{
    for (struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry))
        if (copy->round != copies->round)
            copy->wanted = false;
    copies->rows_known = true;
    look_at_all(copies);
}

void copies_told(struct copies *copies, const struct json *reply)
{
    const struct json *waits = json_get(reply, "waits");
    struct arena arena = {0};

    for (struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry)) {
        const struct json *item;
        bool may = copy->asked_version == copy->version;

        for (item = json_items(waits); item; item = json_after(waits, item))
            if (str_eq(json_str(json_get(item, "id"), &arena), copy->id)) {
                struct str reason = json_str(json_get(item, "reason"), &arena);

                set_reason(copy, copy->waits, arena_cstr(&arena, reason));
                may = false;
            }
        if (may)
            copy->turn_version = copy->version;
        copy->asked_version = 0;
    }
    arena_free(&arena);
}

void copies_fence(struct copies *copies, int64_t until_boot_ms, int64_t grace_ms)
{
    assert(copies->rows_known && until_boot_ms > 0 && grace_ms > 0);
    copies->fence_ms = until_boot_ms;
    copies->fence_grace_ms = grace_ms;
    for (struct copy *copy = TAILQ_FIRST(&copies->all); copy; copy = TAILQ_NEXT(copy, entry)) {
        int64_t deadline_ms;

        if (!copy->run || !copy->wanted || copy->daemon || copy->run_generation != copy->generation)
            continue;
        /* A deadline that has passed is not moved: we may have been frozen past it, and another
         * node may run the deployment by now. */
        deadline_ms = run_deadline_ms(copy->run);
        if (deadline_ms && clock_lease_ms() >= deadline_ms)
            copy_stop(copy, REASON_FENCED, 0);
        else
            run_deadline(copy->run, copies->fence_ms);
    }
    look_at_all(copies);
}

void copies_end(struct copies *copies)
{
    copies->ending = true;
    look_at_all(copies);
}

/* --- adoption --- */

static void adopt_copy(struct copies *copies, struct run *run, const struct copy_meta *meta)
{
    struct copy *copy = map_get(&copies->by_id, meta->id);

    if (!copy)
        copy = copies_enter(copies, meta->id);
    run->handler = &copies_run_handler;
    run->user = copy;
    if (run->state == RUN_ENDED) {
        if (copy->last && copy->last->exit.ended_ms > run->exit.ended_ms) {
            run_forget(run);
            return;
        }
        keep_last(copy, run, meta->version);
        copy_reason(str_of(run->exit.detail), copy->ended);
        return;
    }
    assert(!copy->run);
    copy->run = run;
    copy->run_generation = copy->generation = meta->generation;
    copy->run_version = copy->version = meta->version;
    copy->daemon = meta->daemon;
    copy->port = meta->port;
    copy->gpus = meta->gpus;
    if (meta->demand.at)
        str_copy(meta->demand, copy->demand, sizeof copy->demand);
    copy->stopping = run->state == RUN_STOPPING;
    copy->state = copy->stopping ? COPY_STOPPING : COPY_RUNNING;
    copy->since_ms = copies->loop->mono_ms;
    copy_log(copy, LOG_INFO, "copy.adopted", "it runs on");
}

bool copies_adopt(struct copies *copies, struct run *run)
{
    struct arena arena = {0};
    struct copy_meta meta;
    bool ours = copy_meta_read(run->meta, &arena, &meta);
    struct copy *there = ours ? map_get(&copies->by_id, meta.id) : NULL;

    if (ours && str_is(meta.kind, "health")) { /* from an earlier agent: ended and removed */
        run->handler = &command_handler;
        run->user = NULL;
        if (run->state == RUN_ENDED)
            run_forget(run);
        else
            run_stop(run, "STOPPED", 0);
    } else if (ours && there && there->run && run->state != RUN_ENDED) {
        ours = false; /* two runs of one copy must never exist; the caller reports it */
    } else if (ours) {
        adopt_copy(copies, run, &meta);
    }
    arena_free(&arena);
    return ours || packages_adopt(copies->packages, run);
}

/* --- lifetime --- */

enum err copies_new(struct loop *loop, const struct copies_config *config, void *user,
                    struct copies **ret_copies, struct problem *why)
{
    struct copies *copies = mem_new(struct copies);

    if (client_new(loop, HTTP_CONNECTIONS, &copies->client) != ERR_OK) {
        free(copies);
        return problem_set(why, ERR_IO, "", "No HTTP client can be made.");
    }
    copies->loop = loop;
    TAILQ_INIT(&copies->all);
    copies->config = *config;
    if (gethostname(copies->host, sizeof copies->host - 1) != 0)
        copies->host[0] = 0;
    copies->user = user;
    copies->packages = packages_new(loop, config->config, config->data_dir, config->runs);
    rnd_seed_os(&copies->rnd);
    copies->part = (struct loop_part){.tick = on_tick, .free = link_part_left};
    loop_add_part(loop, &copies->part);
    *ret_copies = copies;
    return ERR_OK;
}

void copies_free(struct copies *copies)
{
    if (!copies)
        return;
    copies->freed = true;
    loop_remove_part(copies->loop, &copies->part);
    while (TAILQ_FIRST(&copies->all)) {
        struct copy *copy = TAILQ_FIRST(&copies->all);

        copy_check_cancel(copy);
        copy->run = copy->last = NULL;
        copies_leave(copy);
    }
    client_free(copies->client);
    packages_free(copies->packages);
    map_free(&copies->by_id);
    free(copies);
}
