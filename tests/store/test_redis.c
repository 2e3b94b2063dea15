/* The contract, run on a store in a single Redis. */
#include "contract.h"

#include <stdio.h>

#include "redis_rig.h"

static struct redis_server server;
static char url[64];

static void init(struct rig *rig)
{
    rig_init(rig);
    redis_say(server.port, "FLUSHDB");
    rig->config.url = url;
    rig->config.timeout_ms = 5000; /* a slow machine must not make a test fail */
}

static void open_newest(struct rig *rig)
{
    rig_open(rig);
    redis_newest_format(server.port);
}

static const struct contract_backend backend = {
    .name = "store/redis contract",
    .init = init,
    .open = open_newest,
    .close = rig_close,
    .done = rig_done,
    .has_needs = true,
};

int main(void)
{
    int failed;

    redis_server_start(&server);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    failed = contract_run(&backend);
    redis_server_remove(&server);
    return failed;
}
