/* A picture that is redrawn on a terminal, in place and without flicker, until q or Ctrl-C. Without
 * a terminal the pictures are printed one after the other. */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include "cli/cli.h"

enum { SCREEN_WATCH_MS = 2000 }; /* --watch without a value */

struct screen {
    struct cli *cli;
    int64_t interval_ms;
    bool once;
    /* Writes one picture to `to`, or reports the error on cli->err and returns its exit code: the
     * first failure ends the program, a later one is shown below the last picture. cli->arena is
     * emptied before the next. */
    int (*draw)(struct screen *live, FILE *to);
    /* A key other than q was pressed; true redraws at once. NULL: other keys are ignored. */
    bool (*key)(struct screen *live, char key);
    bool on_screen; /* set by screen_run: a terminal with key input */
};

int screen_run(struct screen *live);
/* Is cli->out a terminal that pictures can be drawn on? */
bool screen_is_terminal(const struct cli *cli);

/* The size of the terminal behind cli->out, else COLUMNS and LINES, else 80 x 24. */
size_t screen_columns(const struct cli *cli);
size_t screen_rows(const struct cli *cli);
/* May bars and frames use more than ASCII? Only with colours, in a UTF-8 locale. */
bool screen_unicode(const struct cli *cli);

/* A line on a terminal that shows how long an operation has been running; nothing without a
 * terminal. */

bool progress_wanted(const struct cli *cli); /* standard error is a terminal */
/* Replaces the previous line. */
__attribute__((format(printf, 2, 3))) void progress_tell(struct cli *cli, const char *fmt, ...);
void progress_clear(struct cli *cli);

#endif
