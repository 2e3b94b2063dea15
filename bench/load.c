/* The program: where to, the worker process, and the line of JSON at the end. */
#include "load.h"

#include <assert.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
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

static const char help[] =
    "Load for a running server: no-op jobs over HTTP, no-op nodes on WebSocket; or for a queue "
    "server.\n"
    "\n"
    "  load sat   whole jobs as fast as they go: {\"jobs\":N,\"elapsed_s\":x}\n"
    "      --jobs N              in all (default 20000)\n"
    "      --conc N              outstanding at a time (default 64)\n"
    "  load low   latency at a steady rate: {\"start_us\":[...],\"done_us\":[...]}, from the "
    "submit to the\n"
    "             start in the node, and to the end that the store has accepted\n"
    "      --rate N              jobs a second (default 100)\n"
    "      --secs X              for so long (default 3)\n"
    "      --sessions N          jobs of N sessions in turn, each with a connection and a node of "
    "its own and\n"
    "                            timed from when it was due: of session i each N-th figure from "
    "the i-th on\n"
    "  load idle  connected nodes that do nothing but heartbeat: {\"conns\":N,\"open_s\":x} once "
    "all are\n"
    "             there, and at the end how many heartbeats went out. Jobs they are given are left "
    "to run out.\n"
    "             A number on standard input is a new rate\n"
    "      --conns N             nodes, a connection each (default 1000)\n"
    "      --heartbeats-per-s R  all together (default 0)\n"
    "      --pair SRC:TGT        what they translate (default xi:xj: no job of anybody's)\n"
    "      --slots N             jobs a node takes at a time (default 1)\n"
    "      --secs X              end after so long (default: when standard input ends)\n"
    "\n"
    "  --addr URL                the server (BERTH_ADDR, default http://127.0.0.1:7420)\n"
    "  --port PORT               the server on 127.0.0.1 at this port\n"
    "  --protocol NAME           what sat and low speak: berth (default), socket (the same jobs "
    "over one\n"
    "                            WebSocket), socket-ends (and the ends are told over it), "
    "socket-together (and\n"
    "                            nodes are told several things at once), gearman, beanstalkd, nats "
    "or jetstream\n";

/* "http://host:port"; TLS is not spoken here, a bench runs beside its server. */
static int find_target(const char *addr, int64_t port, struct bench_target *ret_target)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char host[sizeof ret_target->host], *colon, *name = host;

    if (!addr || !*addr || port)
        addr = "http://127.0.0.1:7420";
    if (strncmp(addr, "http://", 7) == 0)
        addr += 7;
    if (strchr(addr, ':') && strstr(addr, "://"))
        return bench_misuse("the address must be http://HOST:PORT");
    snprintf(host, sizeof host, "%s", addr);
    host[strcspn(host, "/")] = 0;
    colon = strrchr(host, ':');
    if (!colon)
        return bench_misuse("the address must be http://HOST:PORT, with a port");
    if (port)
        snprintf(colon, sizeof host - (size_t)(colon - host), ":%" PRId64, port);
    snprintf(ret_target->host, sizeof ret_target->host, "%s", host);
    *colon = 0;
    if (*name == '[') { /* [::1] */
        name++;
        name[strcspn(name, "]")] = 0;
    }
    if (getaddrinfo(name, colon + 1, &hints, &found) != 0 || !found)
        return bench_fail("cannot find the host of %s", ret_target->host);
    assert(found->ai_addrlen <= sizeof ret_target->addr);
    memcpy(&ret_target->addr, found->ai_addr, found->ai_addrlen);
    ret_target->addr_len = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
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

static int crew_start(const struct bench_load *load, struct crew *crew)
{
    const struct bench_target *target = load->target;
    int jobs = load->jobs;
    pid_t parent = getpid();

    assert(jobs > 0 && crew->nodes > 0 && target->addr_len > 0);
    crew->shared_len = sizeof *crew->shared + (size_t)jobs * sizeof crew->shared->slots[0];
    crew->shared =
        mmap(NULL, crew->shared_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    crew->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (crew->shared == MAP_FAILED || crew->wake < 0 || pipe2(crew->life, O_CLOEXEC) != 0)
        return bench_fail("cannot start: %m");
    fflush(stdout);
    crew->pid = fork();
    if (crew->pid < 0)
        return bench_fail("cannot start the worker process: %m");
    if (crew->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) /* died before we could ask to go with it */
            _exit(1);
        close(crew->life[0]);
        load->protocol->work(&(struct bench_work){.protocol = load->protocol,
                                                  .target = target,
                                                  .shared = crew->shared,
                                                  .jobs = jobs,
                                                  .nodes = crew->nodes,
                                                  .wake = crew->wake});
    }
    close(crew->life[1]);
    return 0;
}

/* Until the server has welcomed every node: their pool is live then. */
static int crew_wait_ready(struct crew *crew)
{
    struct pollfd life = {.fd = crew->life[0], .events = POLLIN};
    int64_t until_ns = bench_now_ns() + READY_MS * INT64_C(1000000);

    while (atomic_load(&crew->shared->ready) < crew->nodes) {
        if (poll(&life, 1, 2) > 0)
            return bench_fail("%s", crew->shared->trouble[0] ? crew->shared->trouble
                                                             : "the worker process died");
        if (bench_now_ns() > until_ns)
            return bench_fail("%d of %d nodes were welcomed in %d ms",
                              atomic_load(&crew->shared->ready), crew->nodes, READY_MS);
    }
    return 0;
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

void bench_forget_nodes(const struct bench_target *target, int nodes)
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

static const struct bench_protocol berth_protocol = {.name = "berth",
                                                     .submit_all = bench_load_run,
                                                     .work = bench_worker_main,
                                                     .forget = bench_forget_nodes};

static const struct bench_protocol *const protocols[] = {
    &berth_protocol,   &socket_protocol,     &socket_ends_protocol, &socket_together_protocol,
    &gearman_protocol, &beanstalkd_protocol, &nats_protocol,        &jetstream_protocol};

static void print_sat(const struct bench_load *load, double submit_cpu)
{
    int64_t ns = atomic_load(&load->shared->last_ns) - load->begun_ns;

    assert(ns > 0 && atomic_load(&load->shared->done) == load->jobs);
    printf("{\"jobs\":%d,\"elapsed_s\":%.6f,\"submit_cpu_s\":%.3f,\"worker_cpu_s\":%.3f}\n",
           load->jobs, (double)ns / 1e9, submit_cpu, cpu_seconds(RUSAGE_CHILDREN));
}

static void print_low(const struct bench_load *load, double submit_cpu)
{
    assert(atomic_load(&load->shared->done) == load->jobs);
    fputs("{\"start_us\":[", stdout);
    for (int i = 0; i < load->jobs; i++)
        printf("%s%.1f", i ? "," : "",
               (double)(load->shared->slots[i].start_ns - load->submit_ns[i]) / 1e3);
    fputs("],\"done_us\":[", stdout);
    for (int i = 0; i < load->jobs; i++)
        printf("%s%.1f", i ? "," : "",
               (double)(load->shared->slots[i].done_ns - load->submit_ns[i]) / 1e3);
    printf("],\"submit_cpu_s\":%.3f,\"worker_cpu_s\":%.3f}\n", submit_cpu,
           cpu_seconds(RUSAGE_CHILDREN));
}

/* A run counts only if the server took every job and every message of a node. */
static int judge(const struct bench_load *load)
{
    int refused = atomic_load(&load->shared->refused);

    if (load->refused)
        return bench_fail("%d of %d dispatches were refused, first: %s", load->refused, load->jobs,
                          load->refusal);
    if (refused)
        return bench_fail("%d messages of nodes were refused, first: %s", refused,
                          load->shared->trouble);
    return 0;
}

static int run_jobs(struct bench_load load,
                    void (*print)(const struct bench_load *load, double submit_cpu))
{
    struct crew crew = {.pid = -1, .nodes = load.sessions ? load.sessions : BENCH_NODES};
    double submit_cpu = 0;
    int code = crew_start(&load, &crew);

    if (code == 0)
        code = crew_wait_ready(&crew);
    if (code == 0) {
        load.shared = crew.shared;
        load.wake = crew.wake;
        load.worker_life = crew.life[0];
        load.submit_ns = mem_array(int64_t, (size_t)load.jobs);
        submit_cpu = cpu_seconds(RUSAGE_SELF);
        code = load.protocol->submit_all(&load) == ERR_OK ? judge(&load) : 1;
        submit_cpu = cpu_seconds(RUSAGE_SELF) - submit_cpu;
        crew_stop(&crew);
        if (load.protocol->forget)
            load.protocol->forget(load.target, crew.nodes);
    }
    if (code == 0)
        print(&load, submit_cpu);
    free(load.submit_ns);
    crew_done(&crew);
    return code;
}

/* Flags of all verbs, and what they are if nobody says. */
struct flags {
    const char *addr, *pair, *protocol;
    int64_t port, jobs, conc, rate, sessions, conns, heartbeats, slots;
    double secs; /* 0: not said */
};

enum flag_kind { FLAG_TEXT, FLAG_NUMBER, FLAG_SECONDS };

static const struct flag {
    const char *name;
    enum flag_kind kind;
    size_t offset;
    int64_t min, max;
} rows[] = {
    {"addr", FLAG_TEXT, offsetof(struct flags, addr), 0, 0},
    {"pair", FLAG_TEXT, offsetof(struct flags, pair), 0, 0},
    {"protocol", FLAG_TEXT, offsetof(struct flags, protocol), 0, 0},
    {"port", FLAG_NUMBER, offsetof(struct flags, port), 1, 65535},
    {"jobs", FLAG_NUMBER, offsetof(struct flags, jobs), 1, 100000000},
    {"conc", FLAG_NUMBER, offsetof(struct flags, conc), 1, 100000},
    {"rate", FLAG_NUMBER, offsetof(struct flags, rate), 1, 1000000},
    {"sessions", FLAG_NUMBER, offsetof(struct flags, sessions), 1, BENCH_SESSIONS_MAX},
    {"conns", FLAG_NUMBER, offsetof(struct flags, conns), 1, 1000000},
    {"heartbeats-per-s", FLAG_NUMBER, offsetof(struct flags, heartbeats), 0, 10000000},
    {"slots", FLAG_NUMBER, offsetof(struct flags, slots), 1, 1000000},
    {"secs", FLAG_SECONDS, offsetof(struct flags, secs), 0, 0},
};

static int take_flag(const struct flag *row, const char *text, struct flags *flags)
{
    void *to = (char *)flags + row->offset;
    char *end;

    if (row->kind == FLAG_TEXT) {
        *(const char **)to = text;
    } else if (row->kind == FLAG_SECONDS) {
        double secs = strtod(text, &end);

        if (end == text || *end || !(secs > 0 && secs < 1e6))
            return bench_misuse("--%s takes a number of seconds, not \"%s\"", row->name, text);
        *(double *)to = secs;
    } else {
        int64_t number = strtoll(text, &end, 10);

        if (end == text || *end || number < row->min || number > row->max)
            return bench_misuse("--%s must be from %" PRId64 " to %" PRId64 ", not \"%s\"",
                                row->name, row->min, row->max, text);
        *(int64_t *)to = number;
    }
    return 0;
}

static int read_flags(int argc, char **argv, struct flags *flags)
{
    struct option options[COUNT_OF(rows) + 1] = {0};
    int index, code = 0, found;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        options[i] = (struct option){.name = rows[i].name, .has_arg = required_argument, .val = 1};
    while (!code && (found = getopt_long(argc, argv, "", options, &index)) != -1)
        code = found == 1 ? take_flag(&rows[index], optarg, flags) : 2; /* getopt has said why */
    if (!code && optind < argc)
        code = bench_misuse("unexpected argument \"%s\"", argv[optind]);
    return code;
}

static const struct bench_protocol *find_protocol(const struct flags *flags)
{
    const struct bench_protocol *found = NULL;

    for (size_t i = 0; i < COUNT_OF(protocols); i++)
        if (strcmp(protocols[i]->name, flags->protocol) == 0)
            found = protocols[i];
    if (!found)
        bench_misuse("\"%s\" is no protocol; see --help", flags->protocol);
    else if (flags->sessions && found != &berth_protocol)
        bench_misuse("there are no --sessions of %s", found->name);
    else
        return found;
    return NULL;
}

static int run_sat(const struct flags *flags, const struct bench_target *target)
{
    const struct bench_protocol *protocol = find_protocol(flags);

    if (!protocol)
        return 2;
    return run_jobs((struct bench_load){.protocol = protocol,
                                        .target = target,
                                        .jobs = (int)flags->jobs,
                                        .conc = (int)flags->conc},
                    print_sat);
}

static int run_low(const struct flags *flags, const struct bench_target *target)
{
    const struct bench_protocol *protocol = find_protocol(flags);
    double jobs = (double)flags->rate * (flags->secs > 0 ? flags->secs : 3);

    if (!protocol)
        return 2;
    if (jobs < 1 || jobs > 1e8)
        return bench_misuse("--rate times --secs must give at least one job, and at most 10^8");
    return run_jobs((struct bench_load){.protocol = protocol,
                                        .target = target,
                                        .jobs = (int)jobs,
                                        .conc = LOW_CONC,
                                        .period_ns = INT64_C(1000000000) / flags->rate,
                                        .sessions = (int)flags->sessions},
                    print_low);
}

static int run_idle(const struct flags *flags, const struct bench_target *target)
{
    return bench_idle_run(&(struct bench_idle){.count = (int)flags->conns,
                                               .slots = (int)flags->slots,
                                               .rate = flags->heartbeats,
                                               .pair = flags->pair,
                                               .secs = flags->secs},
                          target);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct flags *flags, const struct bench_target *target);
    } verbs[] = {{"sat", run_sat}, {"low", run_low}, {"idle", run_idle}};
    struct flags flags = {.addr = getenv("BERTH_ADDR"),
                          .pair = "xi:xj",
                          .protocol = "berth",
                          .jobs = 20000,
                          .conc = 64,
                          .rate = 100,
                          .conns = 1000,
                          .slots = 1};
    struct bench_target target = {0};
    int code;

    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(help, argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    for (size_t i = 0; i < COUNT_OF(verbs); i++) {
        if (strcmp(argv[1], verbs[i].name) != 0)
            continue;
        code = read_flags(argc - 1, argv + 1, &flags);
        if (!code)
            code = find_target(flags.addr, flags.port, &target);
        return code ? code : verbs[i].run(&flags, &target);
    }
    return bench_misuse("\"%s\" is none of sat, low and idle; see --help", argv[1]);
}
