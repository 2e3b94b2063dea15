/* Starting and ending the agent of `berth dev`. */
#include "server/dev.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/log.h"
#include "base/mem.h"

enum { STOP_MS = 5000, QUICK_END_MS = 500 };

/* In the child, after fork: only what is safe there. */
static void become_agent(char *const *argv, char *const *envp, int parent,
                         const struct rlimit *descriptors)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_NOFILE, descriptors); /* jobs do not need the server's high limit */
    /* If the server is killed, kill the agent as well; the next one adopts its runs. SIGTERM would
     * make it stop them. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); /* Ctrl-C goes to the server, which stops the agent */
    if (getppid() != parent)
        _exit(0);
    execve("/proc/self/exe", argv, envp);
    _exit(127);
}

void dev_token(struct server *server)
{
    struct token token = {.name = STR("agent of berth dev"), .scopes = 1u << SCOPE_NODE};

    if (!digest_secret(server->dev_secret))
        return; /* no random bytes, no token: the agent gets in only if there are none */
    digest_sha256_hex(str_of(server->dev_secret), token.digest);
    server->dev_token = token;
}

const char *dev_url(const struct server *server, char to[DEV_URL_BYTES])
{
    snprintf(to, DEV_URL_BYTES, "%s://127.0.0.1:%d",
             server->settings->tls_cert.len > 0 ? "https" : "http", server->port);
    return to;
}

/* What the agent trusts: a self-signed certificate is its own authority; the authority of any other
 * is named by BERTH_CA_FILE, which the agent reads itself. */
static enum err agent_trust(const struct settings *settings, const char *args[2], char *file,
                            size_t size, struct problem *why)
{
    if (settings->tls_client_ca.len > 0 && settings->tls_client_auth == TLS_CLIENT_REQUIRED)
        return problem_set(
            why, ERR_BAD_CONFIG, "tls_client_ca",
            "The agent of `berth dev` has no certificate to show: use `berth server` "
            "and `berth agent`, or tls_client_auth: optional.");
    if (settings->tls_cert.len == 0 || getenv("BERTH_CA_FILE"))
        return ERR_OK;
    if ((size_t)snprintf(file, size, STR_FMT, STR_ARG(settings->tls_cert)) >= size)
        return problem_set(why, ERR_BAD_CONFIG, "tls_cert", "tls_cert is too long.");
    args[0] = "--ca-file";
    args[1] = file;
    return ERR_OK;
}

enum err dev_start(struct dev *dev, const struct server *server, struct problem *why)
{
    char url[DEV_URL_BYTES], dir[4096], ca_file[4096];
    const char *argv[] = {"berth",
                          "agent",
                          "--server",
                          url,
                          "--data-dir",
                          dir,
                          "--slots-fixed",
                          "4",
                          "--max-concurrent-jobs",
                          "4",
                          "--allow-commands",
                          "--allow-deployments",
                          "--stop-runs",
                          "--sleeps-with-server",
                          NULL,
                          NULL,
                          NULL};
    int parent = getpid();
    enum err err =
        agent_trust(server->settings, argv + COUNT_OF(argv) - 3, ca_file, sizeof ca_file, why);

    if (err)
        return err;
    dev_url(server, url);
    if ((size_t)snprintf(dir, sizeof dir, STR_FMT "/agent", STR_ARG(server->settings->data_dir)) >=
        sizeof dir)
        return problem_set(why, ERR_BAD_CONFIG, "data_dir", "data_dir is too long.");
    char token[sizeof "BERTH_TOKEN=" + DIGEST_HEX];
    snprintf(token, sizeof token, "BERTH_TOKEN=%s", server->dev_secret);
    /* The environment without the server's configuration file, which is not for the agent, and with
     * the agent's token. */
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **env = mem_array(char *, count + 2);
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "BERTH_CONFIG=", 13) != 0 &&
            strncmp(environ[i], "BERTH_TOKEN=", 12) != 0)
            env[kept++] = environ[i];
    env[kept] = token;
    int pid = fork();
    if (pid == 0)
        become_agent((char *const *)argv, env, parent, &server->descriptors);
    free(env);
    if (pid < 0)
        return problem_set(why, ERR_IO, "", "The agent cannot be started: %s.", strerror(errno));
    dev->pid = pid;
    dev->started_ms = clock_mono_ms();
    return ERR_OK;
}

void dev_revive(struct dev *dev, const struct server *server)
{
    struct problem why;

    if (!dev->pid || waitpid(dev->pid, NULL, WNOHANG) != dev->pid)
        return;
    log_event(LOG_WARN, "dev.agent_ended", KI("pid", dev->pid));
    dev->pid = 0;
    /* An agent that ends right after its start is not restarted; its output is in the log. */
    if (clock_mono_ms() - dev->started_ms < QUICK_END_MS)
        return;
    if (dev_start(dev, server, &why))
        log_event(LOG_ERROR, "dev.agent_failed", KC("reason", why.detail));
}

/* The agent ends its runs first. A second signal cuts this wait short. */
void dev_stop(struct dev *dev)
{
    const struct timespec look = {.tv_nsec = 20 * 1000000};
    int64_t until_ms = INT64_MAX;
    sigset_t ends;

    if (!dev->pid)
        return;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    kill(dev->pid, SIGTERM);
    while (waitpid(dev->pid, NULL, WNOHANG) == 0) {
        if (sigtimedwait(&ends, NULL, &look) > 0) {
            kill(dev->pid, SIGTERM);
            until_ms = clock_mono_ms() + STOP_MS;
        }
        if (clock_mono_ms() >= until_ms)
            kill(dev->pid, SIGKILL);
    }
    dev->pid = 0;
}
