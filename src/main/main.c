/* The program: the command line, and the server behind the commands that become one. */
#include "cli/cli.h"
#include "server/server.h"

int main(int argc, char **argv)
{
    static const struct cli_host host = {
        .serve = server_main, .config = server_config_main, .flags = settings_help};

    return cli_main(argc, argv, &host);
}
