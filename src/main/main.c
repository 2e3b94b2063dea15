/* The program: the command line, the server for the commands that start one, and the shims and
 * their spawner, which are not user commands and must start quickly. */
#include <string.h>

#include "agent/admit.h"
#include "agent/agent.h"
#include "agent/run.h"
#include "agent/spawner.h"
#include "cli/cli.h"
#include "server/server.h"

static int run_here(const struct cli_gate *gate)
{
    struct admit_request request = {.type = gate->type,
                                    .priority = gate->priority,
                                    .interactive = gate->interactive,
                                    .wait_ms = gate->wait_ms,
                                    .config = gate->config,
                                    .argv = gate->argv};

    return admit_run(&request, stderr);
}

int main(int argc, char **argv)
{
    static const struct cli_host host = {.serve = server_main,
                                         .config = server_config_main,
                                         .store = server_store_main,
                                         .flags = settings_help,
                                         .agent = agent_main,
                                         .agent_flags = config_help,
                                         .run = run_here};

    if (argc >= 2 && strcmp(argv[1], "shim") == 0)
        return shim_main(argc - 2, argv + 2);
    if (argc >= 2 && strcmp(argv[1], "spawner") == 0)
        return spawner_main(argc - 2, argv + 2);
    return cli_main(argc, argv, &host);
}
