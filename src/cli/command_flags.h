/* Flags that many commands share; a command's own stand beside it. */
#ifndef CLI_COMMAND_FLAGS_H
#define CLI_COMMAND_FLAGS_H

#include "cli/flag.h"

extern const struct flag_set flags_api;   /* every command that asks a server */
extern const struct flag_set flags_local; /* every other */
extern const struct flag_set flags_list;  /* every list */

enum { WATCH_MIN_MS = 100, WATCH_MAX_MS = 3600000 };

/* --watch, for a command's own flags. */
#define FLAG_WATCH                                                                                 \
    {                                                                                              \
        .name = "watch", .letter = 'w', .type = FLAG_MS_MAYBE, .value = "DURATION",                \
        .min = WATCH_MIN_MS, .max = WATCH_MAX_MS,                                                  \
        .help = "draw it again and again, until q (default every 2s)"                              \
    }

#endif
