/* "WRITTEN OLDEST NEWEST SINCE": the format that is written, the oldest and the newest that a
 * record there may have, and since when those who are there could tell which they read. */
#include "store/format.h"

#include <stdio.h>

static bool next_number(struct str *rest, int64_t *ret_number)
{
    return str_int(str_cut(rest, ' '), ret_number) && *ret_number > 0 && *ret_number < INT32_MAX;
}

static bool parse(struct str text, int64_t *ret_oldest, int64_t *ret_newest)
{
    int64_t written;

    return text.at && next_number(&text, &written) && next_number(&text, ret_oldest) &&
           next_number(&text, ret_newest);
}

bool format_is_readable(struct str text)
{
    int64_t oldest, newest;

    return parse(text, &oldest, &newest) && oldest >= FORMAT_OLDEST && newest <= FORMAT_NEWEST;
}

static void range_text(int64_t oldest, int64_t newest, char to[32])
{
    if (oldest == newest)
        snprintf(to, 32, "%d", (int)oldest);
    else
        snprintf(to, 32, "%d to %d", (int)oldest, (int)newest);
}

void format_explain(struct str text, char *to, size_t size)
{
    int64_t oldest, newest;
    char theirs[32], ours[32];

    range_text(FORMAT_OLDEST, FORMAT_NEWEST, ours);
    if (!parse(text, &oldest, &newest)) {
        snprintf(
            to, size,
            "its records have no format number, this berth reads format %s: let the berth that "
            "wrote them end its jobs, then empty this database",
            ours);
        return;
    }
    range_text(oldest, newest, theirs);
    snprintf(to, size,
             "its records have format %s, this berth reads format %s: %s (see Upgrade in "
             "docs/install.md)",
             theirs, ours,
             newest > FORMAT_NEWEST ? "use the newer release" : "use the release in between first");
}
