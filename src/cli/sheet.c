/* Keeps lines and their widths apart from their colour codes, which take no columns. */
#include "cli/sheet.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

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

/* The longest beginning that takes at most so many columns. */
static struct str fit(struct str text, size_t columns)
{
    struct str head = {.at = text.at};

    while (head.len < text.len) {
        struct str rest = {.at = text.at + head.len, .len = text.len - head.len};
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
    const char *code = sheet->style.colour ? table_code(colour) : "";

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

static void indent_line(struct sheet *sheet, size_t indent)
{
    sheet_line(sheet);
    append(sheet, TABLE_PLAIN, repeat(sheet->arena, STR(" "), indent));
}

/* Words stay whole where they can; one that is longer than a line is cut. */
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
            indent_line(sheet, indent);
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
