/* Decodes records using their rows. `meta.format` is "WRITTEN OLDEST NEWEST SINCE": the format
 * being written, the oldest and newest format that existing records may have, and since when the
 * instances present could announce which they read. */
#include "store/record.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* --- records --- */

#define FIELD(name, kind, part, since, plain) {#name, RECORD_##kind, #part, since, plain},
#define GIVEN                                 RECORD_GIVEN

static const struct record_field job_fields[] = {JOB_RECORD(FIELD)};
static const struct record_field node_fields[] = {NODE_RECORD(FIELD)};
static const struct record_field state_fields[] = {STATE_RECORD(FIELD)};

static_assert(COUNT_OF(job_fields) <= RECORD_FIELDS_MAX, "a record has room for all");
static_assert(COUNT_OF(state_fields) <= RECORD_FIELDS_MAX, "a record has room for all");

const struct record_layout record_job = {"job", "result", job_fields, COUNT_OF(job_fields)};
const struct record_layout record_node = {"node", "rest", node_fields, COUNT_OF(node_fields)};
const struct record_layout record_state = {"state", NULL, state_fields, COUNT_OF(state_fields)};

size_t record_width(enum record_kind kind)
{
    static const size_t widths[] = {
        [RECORD_U8] = 1,   [RECORD_BOOL] = 1, [RECORD_U32] = 4, [RECORD_I32] = 4,
        [RECORD_TIME] = 6, [RECORD_I64] = 8,  [RECORD_U64] = 8, [RECORD_TEXT] = 0};

    return widths[kind];
}

bool record_is_there(const struct record_field *field, int format)
{
    return field->since <= format;
}

static bool take_number(struct str *from, enum record_kind kind, int64_t *ret_number)
{
    size_t width = record_width(kind);
    unsigned spare = 64 - 8 * (unsigned)width;
    uint64_t value = 0;

    if (from->len < width)
        return false;
    for (size_t i = width; i > 0; i--)
        value = value << 8 | (unsigned char)from->at[i - 1];
    from->at += width;
    from->len -= width;
    if (kind == RECORD_U8 || kind == RECORD_BOOL || kind == RECORD_U32)
        *ret_number = (int64_t)value;
    else
        *ret_number = (int64_t)(value << spare) >> spare; /* sign-extended */
    return true;
}

static bool take_text(struct str *from, struct str *ret_text)
{
    const char *end = from->len ? memchr(from->at, '\0', from->len) : NULL;

    if (!end)
        return false;
    *ret_text = (struct str){from->at, (size_t)(end - from->at)};
    from->at += ret_text->len + 1;
    from->len -= ret_text->len + 1;
    return true;
}

bool record_is_known(struct str bytes)
{
    int format = bytes.len ? (unsigned char)bytes.at[0] : 0;

    return format >= FORMAT_OLDEST && format <= FORMAT_NEWEST;
}

bool record_read(const struct record_layout *layout, struct str bytes, const char *up_to,
                 struct record *ret_record)
{
    int format;

    assert(layout->count <= RECORD_FIELDS_MAX);
    if (!record_is_known(bytes))
        return false;
    format = (unsigned char)bytes.at[0];
    bytes.at++;
    bytes.len--;
    for (size_t i = 0; i < layout->count; i++) {
        const struct record_field *field = &layout->fields[i];

        ret_record->numbers[i] = field->plain;
        ret_record->texts[i] = STR("");
        if (up_to && strcmp(field->part, up_to) == 0)
            break;
        if (record_is_there(field, format) &&
            !(field->kind == RECORD_TEXT
                  ? take_text(&bytes, &ret_record->texts[i])
                  : take_number(&bytes, field->kind, &ret_record->numbers[i])))
            return false;
    }
    ret_record->rest = bytes;
    return true;
}

/* --- the format --- */

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
             newest > FORMAT_NEWEST
                 ? "use the newer release"
                 : "use a release that reads both, or end its jobs and empty it");
}
