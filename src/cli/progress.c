/* Draws over its own line. */
#include "cli/progress.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool progress_wanted(const struct cli *cli)
{
    const char *term = getenv("TERM");
    int fd = fileno(cli->err);

    return fd >= 0 && isatty(fd) && term && strcmp(term, "dumb") != 0;
}

void progress_tell(struct cli *cli, const char *fmt, ...)
{
    va_list args;

    if (!progress_wanted(cli))
        return;
    fputs("\r\033[K", cli->err);
    va_start(args, fmt);
    vfprintf(cli->err, fmt, args);
    va_end(args);
    fflush(cli->err);
}

void progress_clear(struct cli *cli)
{
    if (progress_wanted(cli))
        fputs("\r\033[K", cli->err);
}
