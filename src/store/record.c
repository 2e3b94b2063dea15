/* Reads records by their rows. */
#include "store/record.h"

#include <assert.h>
#include <string.h>

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
        *ret_number = (int64_t)(value << spare) >> spare; /* with its sign */
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
