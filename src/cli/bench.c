/* `berth bench sat|low|idle`: where to, the worker process, and the line of JSON at the end. */
#include "cli/bench.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"

enum { READY_MS = 10000, LOW_CONC = 100000 };

/* "http://host:port"; TLS is not spoken here, a bench runs beside its server. */
static int find_target(struct cli *cli, struct bench_target *ret_target)
{
    const char *addr = cli_text(cli, "addr") ? cli_text(cli, "addr") : getenv("BERTH_ADDR");
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char host[sizeof ret_target->host], *colon, *name = host;
    int64_t port = cli_num(cli, "port", 0);

    if (!addr || !*addr || port)
        addr = "http://127.0.0.1:7420";
    if (strncmp(addr, "http://", 7) == 0)
        addr += 7;
    if (strchr(addr, ':') && strstr(addr, "://"))
        return cli_misuse(cli, "the address must be http://HOST:PORT");
    snprintf(host, sizeof host, "%s", addr);
    host[strcspn(host, "/")] = 0;
    colon = strrchr(host, ':');
    if (!colon)
        return cli_misuse(cli, "the address must be http://HOST:PORT, with a port");
    if (port)
        snprintf(colon, sizeof host - (size_t)(colon - host), ":%" PRId64, port);
    snprintf(ret_target->host, sizeof ret_target->host, "%s", host);
    *colon = 0;
    if (*name == '[') { /* [::1] */
        name++;
        name[strcspn(name, "]")] = 0;
    }
    if (getaddrinfo(name, colon + 1, &hints, &found) != 0 || !found)
        return cli_fail(cli, CLI_USAGE, "cannot find the host of %s", ret_target->host);
    assert(found->ai_addrlen <= sizeof ret_target->addr);
    memcpy(&ret_target->addr, found->ai_addr, found->ai_addrlen);
    ret_target->addr_len = found->ai_addrlen;
    freeaddrinfo(found);
    return CLI_OK;
}

/* The worker process and what is shared with it. */
struct crew {
    struct bench_shared *shared;
    size_t shared_len;
    int nodes;
    int wake;
    int life[2]; /* a pipe: its reading end hangs up when the worker is gone */
    pid_t pid;
};

static int crew_start(struct cli *cli, const struct bench_target *target, int jobs,
                      struct crew *crew)
{
    pid_t parent = getpid();

    assert(jobs > 0 && crew->nodes > 0 && target->addr_len > 0);
    crew->shared_len = sizeof *crew->shared + (size_t)jobs * sizeof crew->shared->slots[0];
    crew->shared =
        mmap(NULL, crew->shared_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    crew->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (crew->shared == MAP_FAILED || crew->wake < 0 || pipe2(crew->life, O_CLOEXEC) != 0)
        return cli_fail(cli, CLI_FAILED, "bench: cannot start: %m");
    fflush(cli->out);
    crew->pid = fork();
    if (crew->pid < 0)
        return cli_fail(cli, CLI_FAILED, "bench: cannot start the worker process: %m");
    if (crew->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) /* died before we could ask to go with it */
            _exit(1);
        close(crew->life[0]);
        bench_worker_main(&(struct bench_work){.target = target,
                                               .shared = crew->shared,
                                               .jobs = jobs,
                                               .nodes = crew->nodes,
                                               .wake = crew->wake});
    }
    close(crew->life[1]);
    return CLI_OK;
}

/* Until the server has welcomed every node: their pool is live then. */
static int crew_wait_ready(struct cli *cli, struct crew *crew)
{
    struct pollfd life = {.fd = crew->life[0], .events = POLLIN};
    int64_t until_ns = bench_now_ns() + READY_MS * INT64_C(1000000);

    while (atomic_load(&crew->shared->ready) < crew->nodes) {
        if (poll(&life, 1, 2) > 0)
            return cli_fail(cli, CLI_UNAVAILABLE, "bench: %s",
                            crew->shared->trouble[0] ? crew->shared->trouble
                                                     : "the worker process died");
        if (bench_now_ns() > until_ns)
            return cli_fail(cli, CLI_TIMEOUT, "bench: %d of %d nodes were welcomed in %d ms",
                            atomic_load(&crew->shared->ready), crew->nodes, READY_MS);
    }
    return CLI_OK;
}

static double cpu_seconds(int who)
{
    struct rusage usage;

    getrusage(who, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Ends the worker by its pid; its CPU time counts as ours from then on (RUSAGE_CHILDREN). */
static void crew_stop(struct crew *crew)
{
    if (crew->pid <= 0)
        return;
    kill(crew->pid, SIGKILL);
    waitpid(crew->pid, NULL, 0);
    crew->pid = -1;
}

static void crew_done(struct crew *crew)
{
    crew_stop(crew);
    if (crew->life[0] > 0)
        close(crew->life[0]);
    if (crew->wake > 0)
        close(crew->wake);
    if (crew->shared && crew->shared != MAP_FAILED)
        munmap(crew->shared, crew->shared_len);
}

/* The nodes are gone for good: they should not stand in anybody's list. Failing is no failure. */
static void forget_nodes(const struct bench_target *target, int nodes)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct bench_conn conn;
    size_t len;

    if (bench_conn_open(&conn, target, epoll, 0) == ERR_OK) {
        for (int i = 0; i < nodes; i++) {
            struct str body = {0};
            char text[64];

            body.len = (size_t)snprintf(text, sizeof text, "{\"node_id\":\"bench-%d\"}", i);
            body.at = text;
            buf_fmt(&conn.out,
                    "POST /v1/node/deregister HTTP/1.1\r\nHost: %s\r\n"
                    "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n" STR_FMT,
                    target->host, body.len, STR_ARG(body));
            if (!bench_conn_flush(&conn))
                break;
            while (bench_http_answer(buf_view(&conn.in), &len) == 0) {
                struct epoll_event event;

                if (epoll_wait(epoll, &event, 1, 1000) < 1 || !bench_conn_read(&conn))
                    break;
            }
            buf_clear(&conn.in);
        }
        bench_conn_close(&conn);
    }
    close(epoll);
}

static void print_sat(const struct bench_load *load, double submit_cpu)
{
    int64_t ns = atomic_load(&load->shared->last_ns) - load->begun_ns;

    assert(ns > 0 && atomic_load(&load->shared->done) == load->jobs);
    fprintf(load->cli->out,
            "{\"jobs\":%d,\"elapsed_s\":%.6f,\"submit_cpu_s\":%.3f,\"worker_cpu_s\":%.3f}\n",
            load->jobs, (double)ns / 1e9, submit_cpu, cpu_seconds(RUSAGE_CHILDREN));
}

static void print_low(const struct bench_load *load, double submit_cpu)
{
    FILE *out = load->cli->out;

    assert(atomic_load(&load->shared->done) == load->jobs);
    fputs("{\"start_us\":[", out);
    for (int i = 0; i < load->jobs; i++)
        fprintf(out, "%s%.1f", i ? "," : "",
                (double)(load->shared->slots[i].start_ns - load->submit_ns[i]) / 1e3);
    fputs("],\"done_us\":[", out);
    for (int i = 0; i < load->jobs; i++)
        fprintf(out, "%s%.1f", i ? "," : "",
                (double)(load->shared->slots[i].done_ns - load->submit_ns[i]) / 1e3);
    fprintf(out, "],\"submit_cpu_s\":%.3f,\"worker_cpu_s\":%.3f}\n", submit_cpu,
            cpu_seconds(RUSAGE_CHILDREN));
}

/* A run counts only if the server took every job and every message of a node. */
static int judge(const struct bench_load *load)
{
    int refused = atomic_load(&load->shared->refused);

    if (load->refused)
        return cli_fail(load->cli, CLI_FAILED, "bench: %d of %d dispatches were refused, first: %s",
                        load->refused, load->jobs, load->refusal);
    if (refused)
        return cli_fail(load->cli, CLI_FAILED,
                        "bench: %d messages of nodes were refused, first: %s", refused,
                        load->shared->trouble);
    return CLI_OK;
}

static int run_jobs(struct bench_load load,
                    void (*print)(const struct bench_load *load, double submit_cpu))
{
    struct cli *cli = load.cli;
    struct bench_target target = {0};
    struct crew crew = {.pid = -1, .nodes = load.sessions ? load.sessions : BENCH_NODES};
    double submit_cpu = 0;
    int code = find_target(cli, &target);

    if (code == CLI_OK)
        code = crew_start(cli, &target, load.jobs, &crew);
    if (code == CLI_OK)
        code = crew_wait_ready(cli, &crew);
    if (code == CLI_OK) {
        load.target = &target;
        load.shared = crew.shared;
        load.wake = crew.wake;
        load.worker_life = crew.life[0];
        load.submit_ns = mem_array(int64_t, (size_t)load.jobs);
        submit_cpu = cpu_seconds(RUSAGE_SELF);
        code = bench_load_run(&load) == ERR_OK ? judge(&load) : CLI_FAILED;
        submit_cpu = cpu_seconds(RUSAGE_SELF) - submit_cpu;
        crew_stop(&crew);
        forget_nodes(&target, crew.nodes);
    }
    if (code == CLI_OK)
        print(&load, submit_cpu);
    free(load.submit_ns);
    crew_done(&crew);
    return code;
}

static int cmd_bench_sat(struct cli *cli)
{
    return run_jobs((struct bench_load){.cli = cli,
                                        .jobs = (int)cli_num(cli, "jobs", 20000),
                                        .conc = (int)cli_num(cli, "conc", 64)},
                    print_sat);
}

/* False: not a number of seconds. */
static bool read_secs(struct cli *cli, double fallback, double *ret_secs)
{
    const char *text = cli_text(cli, "secs");
    char *end;

    *ret_secs = fallback;
    if (!text)
        return true;
    *ret_secs = strtod(text, &end);
    return end != text && *end == 0 && *ret_secs > 0 && *ret_secs < 1e6;
}

static int cmd_bench_low(struct cli *cli)
{
    int64_t rate = cli_num(cli, "rate", 100);
    double secs;

    if (!read_secs(cli, 3, &secs))
        return cli_misuse(cli, "--secs takes a number of seconds, not \"%s\"",
                          cli_text(cli, "secs"));
    if ((double)rate * secs < 1 || (double)rate * secs > 1e8)
        return cli_misuse(cli, "--rate times --secs must give at least one job");
    return run_jobs((struct bench_load){.cli = cli,
                                        .jobs = (int)((double)rate * secs),
                                        .conc = LOW_CONC,
                                        .period_ns = INT64_C(1000000000) / rate,
                                        .sessions = (int)cli_num(cli, "sessions", 0)},
                    print_low);
}

static int cmd_bench_idle(struct cli *cli)
{
    struct bench_target target = {0};
    double secs;
    int code = find_target(cli, &target);

    if (code != CLI_OK)
        return code;
    if (!read_secs(cli, 0, &secs))
        return cli_misuse(cli, "--secs takes a number of seconds, not \"%s\"",
                          cli_text(cli, "secs"));
    return bench_idle_run(cli, &target, secs);
}

enum { PORT_MAX = 65535 };

#define BENCH_TARGET                                                                               \
    {.name = "addr",                                                                               \
     .type = FLAG_TEXT,                                                                            \
     .value = "URL",                                                                               \
     .help = "the server (BERTH_ADDR, default http://127.0.0.1:7420)"},                            \
    {                                                                                              \
        .name = "port", .type = FLAG_INT, .value = "PORT", .min = 1, .max = PORT_MAX,              \
        .help = "the server on 127.0.0.1 at this port"                                             \
    }

static const struct flag sat_flags[] = {
    BENCH_TARGET,
    {.name = "jobs",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 100000000,
     .help = "jobs in all (default 20000)"},
    {.name = "conc",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 100000,
     .help = "jobs outstanding at a time (default 64)"},
};

static const struct flag low_flags[] = {
    BENCH_TARGET,
    {.name = "rate",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 1000000,
     .help = "jobs a second (default 100)"},
    {.name = "secs",
     .type = FLAG_TEXT,
     .value = "SECONDS",
     .help = "for so many seconds (default 3)"},
    {.name = "sessions",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = BENCH_SESSIONS_MAX,
     .help = "sessions, each with a connection and a node of its own (default: shared ones)"},
};

static const struct flag idle_flags[] = {
    BENCH_TARGET,
    {.name = "conns",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 1000000,
     .help = "connections, a node each (default 1000)"},
    {.name = "heartbeats-per-s",
     .type = FLAG_INT,
     .value = "R",
     .max = 10000000,
     .help = "heartbeats a second, all together (default 0)"},
    {.name = "pair",
     .type = FLAG_TEXT,
     .value = "SRC:TGT",
     .help = "what the nodes translate (default xi:xj: no job of anybody's)"},
    {.name = "slots",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 1000000,
     .help = "jobs a node takes at a time (default 1)"},
    {.name = "secs",
     .type = FLAG_TEXT,
     .value = "SECONDS",
     .help = "end after so long (default: when standard input ends)"},
};

static const struct command rows[] = {
    {.noun = "bench",
     .verb = "sat",
     .kind = COMMAND_LOCAL,
     .flags = FLAGS(sat_flags),
     .help = "whole job lifecycles as fast as they go",
     .detail =
         "Submits no-op jobs over HTTP; 16 no-op nodes on WebSocket in a process of their own\n"
         "acknowledge and finish them. Prints {\"jobs\":N,\"elapsed_s\":x}.",
     .examples = "berth bench sat --jobs 20000 --conc 64",
     .run = cmd_bench_sat},
    {.noun = "bench",
     .verb = "low",
     .kind = COMMAND_LOCAL,
     .flags = FLAGS(low_flags),
     .help = "latency of whole job lifecycles at a steady rate",
     .detail = "Prints {\"start_us\":[...],\"done_us\":[...]}: from the submit to the start in the "
               "node,\n"
               "and to the end that the store has accepted. With --sessions N the jobs are those "
               "of N\n"
               "sessions in turn, each timed from when it was due: of session i each N-th figure\n"
               "from the i-th on.",
     .examples = "berth bench low --rate 100 --secs 3\n"
                 "berth bench low --rate 500 --secs 10 --sessions 200",
     .run = cmd_bench_low},
    {.noun = "bench",
     .verb = "idle",
     .kind = COMMAND_LOCAL,
     .flags = FLAGS(idle_flags),
     .help = "many connected nodes that do nothing but heartbeat",
     .detail =
         "Prints {\"conns\":N,\"open_s\":x} once all are connected, and at the end how many\n"
         "heartbeats went out. Jobs they are given are left to run out. A number on standard\n"
         "input is a new rate of heartbeats.",
     .examples = "berth bench idle --conns 10000 --heartbeats-per-s 10000 --secs 10",
     .run = cmd_bench_idle},
};

const struct command_set commands_bench = COMMANDS(rows);
