/* Aligned columns for a person. Cells are copied; control characters are shown as '?'. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdio.h>

#include "base/mem.h"

enum { TABLE_COLUMNS_MAX = 16 };

enum table_colour { TABLE_PLAIN, TABLE_GREEN, TABLE_YELLOW, TABLE_RED, TABLE_DIM, TABLE_BOLD };

struct table_cell {
    struct str text;
    enum table_colour colour;
};

struct table_row {
    struct table_row *next;
    struct table_cell cells[];
};

struct table {
    struct arena *arena;
    const char *const *titles; /* a leading '>' right-aligns the column */
    size_t columns;
    struct table_row *first;
    struct table_row **last;
    size_t rows;
    size_t filled; /* cells of the newest row */
};

void table_init(struct table *table, struct arena *arena, const char *const *titles,
                size_t columns);
/* Cells are added from left to right; after the last column the next row begins. Empty shows as
 * '-'. */
void table_cell(struct table *table, struct str text);
void table_cell_colour(struct table *table, struct str text, enum table_colour colour);
void table_int(struct table *table, int64_t value);
void table_print(const struct table *table, FILE *to, bool colour);

/* Columns the text takes on a terminal: two for East Asian wide characters, none for combining
 * ones. */
size_t table_width(struct str text);
/* A copy with '?' in place of what a terminal might interpret: the text may come from anybody. Part
 * of one line, or whole lines, which keep their ends and tabs. */
struct str table_harmless(struct arena *arena, struct str text);
struct str table_harmless_lines(struct arena *arena, struct str text);

/* Lines of coloured pieces with known widths, so that two sheets can be printed side by side in a
 * frame. Everything is kept in the arena; what is too long for a line is cut or wrapped. */

struct sheet_style {
    size_t width; /* maximum columns of a line */
    bool colour;
    bool unicode; /* false: we draw with ASCII only */
};

struct sheet_line {
    struct str text; /* with its colours */
    size_t width;    /* columns it takes */
    bool full;       /* it was cut: nothing more is added */
};

struct sheet {
    struct arena *arena;
    struct sheet_style style;
    struct sheet_line *lines;
    size_t count;
    size_t room;
};

void sheet_init(struct sheet *sheet, struct arena *arena, struct sheet_style style);
void sheet_line(struct sheet *sheet); /* begins a line; it is empty until something is put */
/* Appends to the last line. What does not fit is visibly cut. */
void sheet_put(struct sheet *sheet, enum table_colour colour, struct str text);
__attribute__((format(printf, 3, 4))) void sheet_fmt(struct sheet *sheet, enum table_colour colour,
                                                     const char *fmt, ...);
/* Appends to the last line, continuing in new lines indented by `indent` blanks. After a label of
 * `indent` columns the text begins at once, after anything longer with a blank. */
void sheet_wrap(struct sheet *sheet, enum table_colour colour, size_t indent, struct str text);
/* A bar of `columns` columns, filled to `permille`. */
void sheet_bar(struct sheet *sheet, enum table_colour colour, size_t columns, int64_t permille);

/* Left and right side by side, each left line padded to its sheet's width. */
void sheet_beside(struct sheet *to, const struct sheet *left, const struct sheet *right,
                  size_t gap);
void sheet_append(struct sheet *to, const struct sheet *from);
/* Prints all lines, in a frame if `framed` (which needs style.unicode). */
void sheet_print(const struct sheet *sheet, FILE *to, bool framed);

enum { SHEET_FRAME_COLUMNS = 4 }; /* columns a frame takes of a line */

#endif
