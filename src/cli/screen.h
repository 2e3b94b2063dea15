/* A picture that is drawn again and again on a terminal, in place and without flicker, until q or
 * Ctrl-C. Without a terminal the pictures follow each other. */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include "cli/cli.h"

enum { SCREEN_WATCH_MS = 2000 }; /* --watch without a time */

struct screen {
    struct cli *cli;
    int64_t interval_ms;
    bool once;
    /* Writes one picture to `to`, or reports on cli->err why not and returns the code for it: the
     * first failure ends it, a later one is shown below the last picture. cli->arena is emptied
     * before the next. */
    int (*draw)(struct screen *live, FILE *to);
    /* A key other than q was pressed; true draws again at once. NULL: no key means anything. */
    bool (*key)(struct screen *live, char key);
    bool on_screen; /* set by screen_run: it is a terminal, with keys */
};

int screen_run(struct screen *live);
/* Is cli->out a terminal that pictures can be drawn on? */
bool screen_is_terminal(const struct cli *cli);

/* The terminal that cli->out is, else COLUMNS and LINES, else 80 x 24. */
size_t screen_columns(const struct cli *cli);
size_t screen_rows(const struct cli *cli);
/* May bars and frames be drawn with more than ASCII? Only in colour, where the locale is UTF-8. */
bool screen_unicode(const struct cli *cli);

/* A line on a terminal that shows how long work has been going on; nothing without a terminal. */

bool progress_wanted(const struct cli *cli); /* standard error is a terminal */
/* In place of the line before. */
__attribute__((format(printf, 2, 3))) void progress_tell(struct cli *cli, const char *fmt, ...);
void progress_clear(struct cli *cli);

#endif
