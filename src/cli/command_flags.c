/* The flags that many commands share, a row each. */
#include "cli/command_flags.h"

enum { LIST_MAX = 1000 };

static const struct flag api_flags[] = {
    {.name = "addr",
     .type = FLAG_TEXT,
     .value = "URL",
     .help = "the server (BERTH_ADDR, else the context's, else http://127.0.0.1:7420)"},
    {.name = "token-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "a file that holds the token (or BERTH_TOKEN holds it)"},
    {.name = "ca-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "certificates to trust for https (BERTH_CA_FILE, default the system's)"},
    {.name = "cert-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "a certificate to show to a server that asks for one (BERTH_CERT_FILE)"},
    {.name = "key-file", .type = FLAG_TEXT, .value = "FILE", .help = "its key (BERTH_KEY_FILE)"},
    {.name = "context",
     .type = FLAG_TEXT,
     .value = "NAME",
     .help = "a server by its name (BERTH_CONTEXT), see `berth context --help`"},
    {.name = "output",
     .letter = 'o',
     .type = FLAG_TEXT,
     .value = "FORMAT",
     .help = "table, wide, json, jsonl (one line for each item) or name (ids only)"},
    {.name = "help", .letter = 'h', .type = FLAG_SWITCH, .help = "this text"},
};

static const struct flag local_flags[] = {
    {.name = "help", .letter = 'h', .type = FLAG_SWITCH, .help = "this text"},
};

static const struct flag list_flags[] = {
    {.name = "limit",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = LIST_MAX,
     .help = "one page of at most so many; tells the cursor of the next"},
    {.name = "cursor", .type = FLAG_TEXT, .value = "CURSOR", .help = "go on where a page ended"},
    FLAG_WATCH,
};

const struct flag_set flags_api = {.flags = api_flags, .count = COUNT_OF(api_flags)};
const struct flag_set flags_local = {.flags = local_flags, .count = COUNT_OF(local_flags)};
const struct flag_set flags_list = {.flags = list_flags, .count = COUNT_OF(list_flags)};
