/* Starts, stops and queries Redis servers. */
#include "redis_rig.h"

#include "base/clock.h"
#include "store/record.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000, ARGS_MAX = REDIS_OPTIONS_MAX + 16 };

/* Binds a port (0: any) without listening, to reserve it: a process that binds this port with
 * SO_REUSEADDR, as Redis does, still gets it, one that binds any port does not. -1: the port is in
 * use. */
static int take_port(int port, int *ret_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on))
        abort();
    if (bind(fd, (struct sockaddr *)&at, sizeof at)) {
        close(fd);
        return -1;
    }
    if (getsockname(fd, (struct sockaddr *)&at, &size))
        abort();
    *ret_port = ntohs(at.sin_port);
    return fd;
}

/* A free port whose cluster bus (port + 10000) is free as well. Both stay reserved by this process,
 * since a server is started on them later, and perhaps again. */
static int free_port(void)
{
    for (;;) {
        int port, bus;
        int fd = take_port(0, &port);

        if (fd >= 0 && port < 50000 && take_port(port + 10000, &bus) >= 0)
            return port;
        if (fd >= 0)
            close(fd);
    }
}

bool redis_available(void)
{
    return system("redis-server --version >/dev/null 2>&1") == 0;
}

static void become_server(const struct redis_server *server, char *const *args)
{
    int fd = open("/dev/null", O_RDWR);

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the server dies with the test */
    if (fd < 0 || chdir(server->dir))
        _exit(127);
    dup2(fd, 0);
    dup2(fd, 1);
    dup2(fd, 2);
    execvp(args[0], args);
    _exit(127);
}

/* A Sentinel rewrites its own configuration file. */
static void write_sentinel_file(const struct redis_server *server, char path[128])
{
    FILE *file;

    snprintf(path, 128, "%s/sentinel.conf", server->dir);
    file = fopen(path, "we");
    if (!file)
        abort();
    fprintf(file,
            "port %d\nbind 127.0.0.1\nprotected-mode no\n"
            "sentinel monitor m 127.0.0.1 %d 1\n"
            "sentinel down-after-milliseconds m 500\nsentinel failover-timeout m 3000\n",
            server->port, server->watches);
    fclose(file);
}

static void launch(struct redis_server *server)
{
    char port[16];
    char path[128];
    char *args[ARGS_MAX] = {"redis-server", "--port",           port, "--bind",
                            "127.0.0.1",    "--save",           "",   "--daemonize",
                            "no",           "--protected-mode", "no"};
    char *sentinel_args[] = {"redis-server", path, "--sentinel", NULL};
    size_t count = 11;

    snprintf(port, sizeof port, "%d", server->port);
    for (size_t i = 0; server->options[i]; i++)
        args[count++] = (char *)server->options[i];
    if (server->watches)
        write_sentinel_file(server, path);
    server->pid = fork();
    if (server->pid == 0)
        become_server(server, server->watches ? sentinel_args : args);
    if (server->pid < 0)
        abort();
}

static bool answers(int port)
{
    redisContext *context = redisConnectWithTimeout("127.0.0.1", port, (struct timeval){1, 0});
    redisReply *reply = context && !context->err ? redisCommand(context, "PING") : NULL;
    /* A server that asks for a password is up as well. */
    bool ok = reply && strncmp(reply->str, "LOADING", 7) != 0;

    if (reply)
        freeReplyObject(reply);
    if (context)
        redisFree(context);
    return ok;
}

void redis_server_start(struct redis_server *server)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    const char *tmp = getenv("TMPDIR");

    if (!*server->dir) {
        snprintf(server->dir, sizeof server->dir, "%s/berth-redis-XXXXXX", tmp ? tmp : "/tmp");
        if (!mkdtemp(server->dir))
            abort();
    }
    for (bool again = false; !again || !answers(server->port); again = true) {
        /* Another process may have taken the port just before the server started. */
        if (server->pid && waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            server->port = 0;
        }
        if (!server->port)
            server->port = free_port();
        if (!server->pid)
            launch(server);
        if (clock_mono_ms() > end_ms) {
            fprintf(stderr, "redis-server does not start\n");
            abort();
        }
        poll(NULL, 0, 2);
    }
}

void redis_server_signal(struct redis_server *server, int signal)
{
    if (!server->pid)
        return;
    kill(server->pid, signal);
    if (signal == SIGSTOP) /* later commands are not answered */
        waitpid(server->pid, NULL, WUNTRACED);
}

void redis_server_kill(struct redis_server *server)
{
    if (!server->pid)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void redis_server_remove(struct redis_server *server)
{
    char below[128];

    redis_server_kill(server);
    if (!*server->dir)
        return;
    snprintf(below, sizeof below, "%s/appendonlydir", server->dir);
    rig_remove_dir(below);
    rig_remove_dir(server->dir);
    server->dir[0] = '\0';
}

enum err redis_fixture_open(struct redis_fixture *fixture, int timeout_ms, int32_t slots)
{
    redis_server_start(&fixture->server);
    rig_init(&fixture->rig);
    snprintf(fixture->url, sizeof fixture->url, "redis://127.0.0.1:%d/0", fixture->server.port);
    fixture->rig.config.url = fixture->url;
    fixture->rig.config.now_ms = NULL;
    fixture->rig.ttl_ms = RIG_LONG_TTL_MS;
    fixture->rig.config.timeout_ms = timeout_ms;
    rig_open(&fixture->rig);
    return rig_node(&fixture->rig, "n1", slots, NODE_READY);
}

int redis_fixture_teardown(void **state)
{
    struct redis_fixture *fixture = *state;

    rig_done(&fixture->rig);
    redis_server_remove(&fixture->server);
    free(fixture);
    return 0;
}

static void write_reply(char *to, size_t size, const redisReply *reply)
{
    size_t len = strlen(to);

    if (reply->type == REDIS_REPLY_INTEGER)
        snprintf(to + len, size - len, "%lld", reply->integer);
    else if (reply->type == REDIS_REPLY_ARRAY)
        for (size_t i = 0; i < reply->elements; i++) {
            write_reply(to, size, reply->element[i]);
            len = strlen(to);
            snprintf(to + len, size - len, "\n");
        }
    else if (reply->str)
        snprintf(to + len, size - len, "%s", reply->str);
}

static redisContext *dial(int port)
{
    redisContext *context = redisConnectWithTimeout("127.0.0.1", port, (struct timeval){5, 0});

    if (!context || context->err)
        abort();
    redisSetTimeout(context, (struct timeval){10, 0});
    return context;
}

static const char *take_reply(redisContext *context, redisReply *reply)
{
    static _Thread_local char text[65536];

    if (!reply)
        abort();
    text[0] = '\0';
    write_reply(text, sizeof text, reply);
    freeReplyObject(reply);
    redisFree(context);
    return text;
}

const char *redis_say(int port, const char *fmt, ...)
{
    redisContext *context = dial(port);
    redisReply *reply;
    va_list list;

    va_start(list, fmt);
    reply = redisvCommand(context, fmt, list);
    va_end(list);
    return take_reply(context, reply);
}

const char *redis_say_words(int port, int count, const char **words)
{
    redisContext *context = dial(port);

    return take_reply(context, redisCommandArgv(context, count, words, NULL));
}

void redis_set_format(int port, const char *text)
{
    const char *words[] = {"HSET", "sched:{f}:meta", "format", text};

    redis_say_words(port, COUNT_OF(words), words);
}

void redis_newest_format(int port)
{
    char text[32];

    snprintf(text, sizeof text, "%d %d %d 0", FORMAT_NEWEST, FORMAT_OLDEST, FORMAT_NEWEST);
    redis_set_format(port, text);
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_on;
    int there; /* threads that wait for it to end */
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int64_t redis_meeting_ms(void)
{
    int64_t now_ms;

    pthread_mutex_lock(&meeting.lock);
    meeting.there += meeting.is_on;
    pthread_cond_broadcast(&meeting.changed);
    while (meeting.is_on)
        pthread_cond_wait(&meeting.changed, &meeting.lock);
    now_ms = rig_now_ms();
    pthread_mutex_unlock(&meeting.lock);
    return now_ms;
}

void redis_meeting_begin(void)
{
    pthread_mutex_lock(&meeting.lock);
    meeting.is_on = true;
    meeting.there = 0;
    pthread_mutex_unlock(&meeting.lock);
}

void redis_meeting_jump(int count, int64_t ms)
{
    pthread_mutex_lock(&meeting.lock);
    while (meeting.there < count)
        pthread_cond_wait(&meeting.changed, &meeting.lock);
    rig_jump(ms);
    meeting.is_on = false;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.lock);
}
