/* A picture that is drawn again and again on a terminal, in place and without flicker, until q or
 * Ctrl-C. Without a terminal the pictures follow each other. */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include "cli/cli.h"

enum { LIVE_WATCH_MS = 2000 }; /* --watch without a time */

struct live {
    struct cli *cli;
    int64_t interval_ms;
    bool once;
    /* Writes one picture to `to`, or says on cli->err why not and returns what fits: the first
     * failure ends it, a later one is shown below the last picture. cli->arena is emptied before
     * the next. */
    int (*draw)(struct live *live, FILE *to);
    /* A key other than q was pressed; true draws again at once. NULL: no key means anything. */
    bool (*key)(struct live *live, char key);
    bool on_screen; /* set by live_run: it is a terminal, with keys */
};

int live_run(struct live *live);
/* Is cli->out a terminal that pictures can be drawn on? */
bool live_is_screen(const struct cli *cli);

/* The terminal that cli->out is, else COLUMNS and LINES, else 80 x 24. */
size_t live_columns(const struct cli *cli);
size_t live_rows(const struct cli *cli);
/* May bars and frames be drawn with more than ASCII? Only in colour, where the locale is UTF-8. */
bool live_unicode(const struct cli *cli);

#endif
