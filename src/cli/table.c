/* Text for a terminal. A table collects rows, then prints them with every column as wide as its
 * widest cell. A sheet stores lines with their width, which excludes colour codes. */
#include "cli/table.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* --- tables --- */

static const char *const colour_codes[] = {
    [TABLE_PLAIN] = "",       [TABLE_GREEN] = "\033[32m", [TABLE_YELLOW] = "\033[33m",
    [TABLE_RED] = "\033[31m", [TABLE_DIM] = "\033[2m",    [TABLE_BOLD] = "\033[1m"};

/* Ranges of code points that are two columns wide. */
static const struct {
    uint32_t from, to;
} wide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},  {0x3041, 0x33ff}, {0x3400, 0x4dbf},
            {0x4e00, 0x9fff},   {0xa000, 0xa4cf},  {0xac00, 0xd7a3}, {0xf900, 0xfaff},
            {0xfe30, 0xfe6f},   {0xff00, 0xff60},  {0xffe0, 0xffe6}, {0x1f300, 0x1f64f},
            {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

static uint32_t code_point(const unsigned char *at, size_t len)
{
    static const unsigned char lead[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t code = at[0] & lead[len];

    assert(len >= 1 && len <= 4);
    for (size_t i = 1; i < len; i++)
        code = code << 6 | (at[i] & 0x3f);
    return code;
}

size_t table_width(struct str text)
{
    size_t width = 0;

    while (text.len > 0) {
        size_t len = str_utf8_len(text), columns = 1;
        uint32_t code = len ? code_point((const unsigned char *)text.at, len) : '?';

        for (size_t i = 0; i < COUNT_OF(wide); i++)
            if (code >= wide[i].from && code <= wide[i].to)
                columns = 2;
        /* Code points without a width: accents, joiners, emoji variants. */
        if ((code >= 0x300 && code <= 0x36f) || (code >= 0x200b && code <= 0x200f) ||
            (code >= 0xfe00 && code <= 0xfe0f) || code == 0xfeff)
            columns = 0;
        width += columns;
        len = len ? len : 1;
        text = str_from(text, len);
    }
    return width;
}

static struct str harmless(struct arena *arena, struct str text, const char *kept)
{
    char *copy = arena_alloc(arena, text.len + 1);
    size_t at = 0;

    while (at < text.len) {
        struct str rest = str_from(text, at);
        size_t len = str_utf8_len(rest);
        uint32_t code = len ? code_point((const unsigned char *)rest.at, len) : 0;
        /* These change the direction of the text that follows, or end the line. */
        bool turns = (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);

        if (len > 0 && ((*rest.at && strchr(kept, *rest.at)) ||
                        (str_is_text((struct str){.at = rest.at, .len = len}) && !turns))) {
            memcpy(copy + at, rest.at, len);
        } else {
            len = len ? len : 1;
            memset(copy + at, '?', len);
        }
        at += len;
    }
    copy[text.len] = 0;
    return (struct str){.at = copy, .len = text.len};
}

struct str table_harmless(struct arena *arena, struct str text)
{
    return harmless(arena, text, "");
}

struct str table_harmless_lines(struct arena *arena, struct str text)
{
    return harmless(arena, text, "\n\t");
}

void table_init(struct table *table, struct arena *arena, const char *const *titles, size_t columns)
{
    assert(columns > 0 && columns <= TABLE_COLUMNS_MAX);
    *table =
        (struct table){.arena = arena, .titles = titles, .columns = columns, .filled = columns};
}

void table_cell_colour(struct table *table, struct str text, enum table_colour colour)
{
    struct table_row *row;

    assert(colour < COUNT_OF(colour_codes));
    if (table->filled == table->columns) {
        row = arena_alloc(table->arena, sizeof *row + table->columns * sizeof row->cells[0]);
        *(table->last ? table->last : &table->first) = row;
        table->last = &row->next;
        table->rows++;
        table->filled = 0;
    }
    row = container_of(table->last, struct table_row, next);
    row->cells[table->filled++] = (struct table_cell){
        .text = text.len > 0 ? table_harmless(table->arena, text) : STR("-"), .colour = colour};
}

void table_cell(struct table *table, struct str text)
{
    table_cell_colour(table, text, TABLE_PLAIN);
}

void table_int(struct table *table, int64_t value)
{
    table_cell(table, arena_fmt(table->arena, "%" PRId64, value));
}

static bool to_right(const char *title)
{
    return title[0] == '>';
}

static void pad(FILE *to, size_t columns)
{
    while (columns-- > 0)
        fputc(' ', to);
}

/* No trailing blanks after the last column: lines stay comparable and easy to cut. */
static void print_cell(FILE *to, struct str text, const char *code, size_t width, bool right,
                       bool last)
{
    size_t gap = width - table_width(text);

    assert(table_width(text) <= width);
    if (right)
        pad(to, gap);
    fprintf(to, "%s" STR_FMT "%s", code, STR_ARG(text), *code ? "\033[0m" : "");
    if (!right && !last)
        pad(to, gap);
    fputs(last ? "\n" : "  ", to);
}

void table_print(const struct table *table, FILE *to, bool colour)
{
    size_t widths[TABLE_COLUMNS_MAX];

    assert(table->filled == table->columns); /* every row is complete */
    for (size_t i = 0; i < table->columns; i++) {
        widths[i] = strlen(table->titles[i]) - to_right(table->titles[i]);
        for (struct table_row *row = table->first; row; row = row->next) {
            size_t width = table_width(row->cells[i].text);

            widths[i] = width > widths[i] ? width : widths[i];
        }
    }
    for (size_t i = 0; i < table->columns; i++)
        print_cell(to, str_of(table->titles[i] + to_right(table->titles[i])),
                   colour ? colour_codes[TABLE_DIM] : "", widths[i], to_right(table->titles[i]),
                   i + 1 == table->columns);
    for (struct table_row *row = table->first; row; row = row->next)
        for (size_t i = 0; i < table->columns; i++)
            print_cell(to, row->cells[i].text, colour ? colour_codes[row->cells[i].colour] : "",
                       widths[i], to_right(table->titles[i]), i + 1 == table->columns);
}

/* --- sheets --- */

enum { SHEET_ROOM_FIRST = 16, SHEET_TEXT_MAX = 512 };

void sheet_init(struct sheet *sheet, struct arena *arena, struct sheet_style style)
{
    assert(style.width > 0);
    *sheet = (struct sheet){.arena = arena,
                            .style = style,
                            .lines = arena_array(arena, struct sheet_line, SHEET_ROOM_FIRST),
                            .room = SHEET_ROOM_FIRST};
}

void sheet_line(struct sheet *sheet)
{
    size_t bytes = sheet->room * sizeof sheet->lines[0];

    if (sheet->count == sheet->room) {
        sheet->lines = arena_resize(sheet->arena, sheet->lines, bytes, 2 * bytes);
        sheet->room *= 2;
    }
    sheet->lines[sheet->count++] = (struct sheet_line){.text = STR("")};
}

static struct sheet_line *last_line(struct sheet *sheet)
{
    assert(sheet->count > 0);
    return &sheet->lines[sheet->count - 1];
}

/* The longest prefix that fits into this many columns. */
static struct str fit(struct str text, size_t columns)
{
    struct str head = {.at = text.at};

    while (head.len < text.len) {
        struct str rest = str_from(text, head.len);
        size_t len = str_utf8_len(rest);
        struct str longer = {.at = text.at, .len = head.len + (len ? len : 1)};

        if (table_width(longer) > columns)
            break;
        head = longer;
    }
    return head;
}

static void append(struct sheet *sheet, enum table_colour colour, struct str text)
{
    struct sheet_line *line = last_line(sheet);
    const char *code = sheet->style.colour ? colour_codes[colour] : "";

    assert(colour < COUNT_OF(colour_codes));
    if (text.len == 0)
        return;
    line->text = arena_fmt(sheet->arena, STR_FMT "%s" STR_FMT "%s", STR_ARG(line->text), code,
                           STR_ARG(text), *code ? "\033[0m" : "");
    line->width += table_width(text);
    assert(line->width <= sheet->style.width);
}

void sheet_put(struct sheet *sheet, enum table_colour colour, struct str text)
{
    struct sheet_line *line = last_line(sheet);
    size_t left = sheet->style.width - line->width;
    struct str mark = sheet->style.unicode ? STR("…") : STR("..");
    struct str safe = table_harmless(sheet->arena, text);

    if (line->full)
        return;
    if (table_width(safe) <= left) {
        append(sheet, colour, safe);
        return;
    }
    line->full = true;
    if (left < table_width(mark))
        return;
    append(sheet, colour, fit(safe, left - table_width(mark)));
    append(sheet, colour, mark);
}

void sheet_fmt(struct sheet *sheet, enum table_colour colour, const char *fmt, ...)
{
    char text[SHEET_TEXT_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    sheet_put(sheet, colour, str_of(text));
}

static struct str repeat(struct arena *arena, struct str text, size_t times)
{
    char *all = arena_alloc(arena, text.len * times + 1);

    for (size_t i = 0; i < times; i++)
        memcpy(all + i * text.len, text.at, text.len);
    return (struct str){.at = all, .len = text.len * times};
}

/* Breaks between words where possible; a word longer than a line is cut. */
void sheet_wrap(struct sheet *sheet, enum table_colour colour, size_t indent, struct str text)
{
    struct str rest = table_harmless(sheet->arena, text);
    bool first = last_line(sheet)->width <= indent;

    assert(indent < sheet->style.width);
    while (rest.at) {
        struct str word = str_cut(&rest, ' ');
        size_t need = table_width(word) + !first;

        if (word.len == 0)
            continue;
        if (!first && last_line(sheet)->width + need > sheet->style.width) {
            sheet_line(sheet);
            append(sheet, TABLE_PLAIN, repeat(sheet->arena, STR(" "), indent));
            first = true;
        }
        if (!first)
            sheet_put(sheet, colour, STR(" "));
        sheet_put(sheet, colour, word);
        first = false;
    }
}

void sheet_bar(struct sheet *sheet, enum table_colour colour, size_t columns, int64_t permille)
{
    bool unicode = sheet->style.unicode;
    int64_t filled = permille < 0 ? 0 : permille > 1000 ? 1000 : permille;
    size_t full = (size_t)((filled * (int64_t)columns + 500) / 1000);

    assert(columns > 0 && full <= columns);
    if (!unicode)
        sheet_put(sheet, TABLE_PLAIN, STR("["));
    sheet_put(sheet, colour, repeat(sheet->arena, unicode ? STR("█") : STR("#"), full));
    sheet_put(sheet, TABLE_DIM,
              repeat(sheet->arena, unicode ? STR("░") : STR("."), columns - full));
    if (!unicode)
        sheet_put(sheet, TABLE_PLAIN, STR("]"));
}

static void copy_line(struct sheet *to, const struct sheet_line *line)
{
    struct sheet_line *last = last_line(to);

    last->text = arena_fmt(to->arena, STR_FMT STR_FMT, STR_ARG(last->text), STR_ARG(line->text));
    last->width += line->width;
    assert(last->width <= to->style.width);
}

void sheet_beside(struct sheet *to, const struct sheet *left, const struct sheet *right, size_t gap)
{
    assert(left->style.width + gap + right->style.width <= to->style.width);
    for (size_t i = 0; i < left->count || i < right->count; i++) {
        size_t used = 0;

        sheet_line(to);
        if (i < left->count) {
            copy_line(to, &left->lines[i]);
            used = left->lines[i].width;
        }
        if (i >= right->count)
            continue;
        append(to, TABLE_PLAIN, repeat(to->arena, STR(" "), left->style.width + gap - used));
        copy_line(to, &right->lines[i]);
    }
}

void sheet_append(struct sheet *to, const struct sheet *from)
{
    for (size_t i = 0; i < from->count; i++) {
        sheet_line(to);
        copy_line(to, &from->lines[i]);
    }
}

static void print_rule(const struct sheet *sheet, FILE *to, const char *begin, const char *end)
{
    fputs(begin, to);
    for (size_t i = 0; i < sheet->style.width + 2; i++)
        fputs("─", to);
    fprintf(to, "%s\n", end);
}

void sheet_print(const struct sheet *sheet, FILE *to, bool framed)
{
    assert(!framed || sheet->style.unicode);
    if (framed)
        print_rule(sheet, to, "┌", "┐");
    for (size_t i = 0; i < sheet->count; i++) {
        const struct sheet_line *line = &sheet->lines[i];

        if (framed)
            fprintf(to, "│ " STR_FMT "%*s │\n", STR_ARG(line->text),
                    (int)(sheet->style.width - line->width), "");
        else
            fprintf(to, STR_FMT "\n", STR_ARG(line->text));
    }
    if (framed)
        print_rule(sheet, to, "└", "┘");
}
