/* Reads Prometheus text, as far as our own server writes it. */
#include "cli/scrape.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* `name{labels} value`; the value may not be followed by anything. */
static bool read_row(struct arena *arena, struct str line, struct scrape_row *ret_row)
{
    const char *end;
    char *rest;
    struct str value = line;
    const char *open = line.len ? memchr(line.at, '{', line.len) : NULL;
    struct scrape_row row = {.labels = STR("")};

    if (line.len == 0 || line.at[0] == '#')
        return false;
    if (open) {
        end = memrchr(line.at, '}', line.len);
        if (!end || end < open)
            return false;
        row.name = (struct str){.at = line.at, .len = (size_t)(open - line.at)};
        row.labels = (struct str){.at = open + 1, .len = (size_t)(end - open - 1)};
        value = (struct str){.at = end + 1, .len = line.len - (size_t)(end + 1 - line.at)};
    } else {
        row.name = str_cut(&value, ' ');
    }
    value = str_trim(value);
    if (row.name.len == 0 || value.len == 0)
        return false;
    end = arena_cstr(arena, value);
    row.value = strtod(end, &rest);
    if (*rest)
        return false;
    *ret_row = row;
    return true;
}

void scrape_read(struct scrape *scrape, struct str text, int64_t now_us)
{
    struct str rest;
    size_t lines = 1;

    arena_reset(&scrape->arena);
    for (size_t i = 0; i < text.len; i++)
        lines += text.at[i] == '\n';
    rest = arena_str(&scrape->arena, text);
    scrape->rows = arena_array(&scrape->arena, struct scrape_row, lines);
    scrape->count = 0;
    scrape->at_us = now_us;
    while (rest.at)
        scrape->count +=
            read_row(&scrape->arena, str_cut(&rest, '\n'), &scrape->rows[scrape->count]);
    assert(scrape->count <= lines);
}

void scrape_done(struct scrape *scrape)
{
    arena_free(&scrape->arena);
    *scrape = (struct scrape){0};
}

const struct scrape_row *scrape_find(const struct scrape *scrape, struct str name,
                                     struct str labels)
{
    for (size_t i = 0; i < scrape->count; i++)
        if (str_eq(scrape->rows[i].name, name) && str_eq(scrape->rows[i].labels, labels))
            return &scrape->rows[i];
    return NULL;
}

struct str scrape_label(struct str labels, const char *name)
{
    while (labels.at && labels.len > 0) {
        struct str value = str_cut(&labels, ','), key = str_cut(&value, '=');

        if (str_is(key, name) && value.len >= 2)
            return (struct str){.at = value.at + 1, .len = value.len - 2};
    }
    return STR("");
}

bool scrape_rate(const struct scrape *now, const struct scrape *before,
                 const struct scrape_row *row, double *ret_per_s)
{
    const struct scrape_row *then = scrape_find(before, row->name, row->labels);
    double earlier = then ? then->value : 0;

    if (before->count == 0 || now->at_us <= before->at_us || row->value < earlier)
        return false;
    *ret_per_s = (row->value - earlier) * 1e6 / (double)(now->at_us - before->at_us);
    return true;
}
