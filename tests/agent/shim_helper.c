/* The smallest program that can be a shim and a spawner. */
#include <string.h>

#include "agent/run.h"
#include "agent/spawner.h"

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "spawner") == 0)
        return spawner_main(argc - 2, argv + 2);
    return argc >= 2 && strcmp(argv[1], "shim") == 0 ? shim_main(argc - 2, argv + 2) : 2;
}
