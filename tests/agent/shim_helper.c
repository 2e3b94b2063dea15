/* The smallest program that can be a shim. */
#include <string.h>

#include "agent/run.h"

int main(int argc, char **argv)
{
    return argc >= 2 && strcmp(argv[1], "shim") == 0 ? shim_main(argc - 2, argv + 2) : 2;
}
