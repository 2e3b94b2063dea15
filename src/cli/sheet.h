/* Lines of coloured pieces whose width is known, so that two sheets can stand beside each other in
 * a frame. Everything is kept in the arena; what is too long for a line is cut or wrapped. */
#ifndef CLI_SHEET_H
#define CLI_SHEET_H

#include "cli/table.h"

struct sheet_style {
    size_t width; /* columns a line may take */
    bool colour;
    bool unicode; /* false: ASCII only in what we draw ourselves */
};

struct sheet_line {
    struct str text; /* with its colours */
    size_t width;    /* columns it takes */
    bool full;       /* it was cut: nothing more goes in */
};

struct sheet {
    struct arena *arena;
    struct sheet_style style;
    struct sheet_line *lines;
    size_t count;
    size_t room;
};

void sheet_init(struct sheet *sheet, struct arena *arena, struct sheet_style style);
void sheet_line(struct sheet *sheet); /* begins a line; empty until something is put */
/* At the end of the last line. What does not fit is cut, and that can be seen. */
void sheet_put(struct sheet *sheet, enum table_colour colour, struct str text);
__attribute__((format(printf, 3, 4))) void sheet_fmt(struct sheet *sheet, enum table_colour colour,
                                                     const char *fmt, ...);
/* At the end of the last line, going on in new lines that begin with `indent` blanks. Behind a
 * label of `indent` columns the text begins at once, behind anything longer with a blank. */
void sheet_wrap(struct sheet *sheet, enum table_colour colour, size_t indent, struct str text);
/* A bar of `columns` columns, so much of it filled. */
void sheet_bar(struct sheet *sheet, enum table_colour colour, size_t columns, int64_t permille);

/* Left and right beside each other, each line of the left filled up to its sheet's width. */
void sheet_beside(struct sheet *to, const struct sheet *left, const struct sheet *right,
                  size_t gap);
void sheet_append(struct sheet *to, const struct sheet *from);
/* All lines, in a frame if `framed` (which needs style.unicode). */
void sheet_print(const struct sheet *sheet, FILE *to, bool framed);

enum { SHEET_FRAME_COLUMNS = 4 }; /* what a frame takes of a line */

#endif
