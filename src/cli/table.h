/* Aligned columns for a person. Cells are copied; what a terminal might obey is shown as '?'. */
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
    const char *const *titles; /* a leading '>' aligns the column to the right */
    size_t columns;
    struct table_row *first;
    struct table_row **last;
    size_t rows;
    size_t filled; /* cells of the newest row */
};

void table_init(struct table *table, struct arena *arena, const char *const *titles,
                size_t columns);
/* Cells go in from left to right; after the last column the next row begins. Empty shows as '-'. */
void table_cell(struct table *table, struct str text);
void table_cell_colour(struct table *table, struct str text, enum table_colour colour);
void table_int(struct table *table, int64_t value);
void table_print(const struct table *table, FILE *to, bool colour);

/* Columns a terminal needs for it: two for East Asian wide characters, none for combining ones. */
size_t table_width(struct str text);
/* A copy without what a terminal might obey, which becomes '?': what is shown comes from anybody.
 * Part of one line, or lines of their own, which keep their ends and tabs. */
struct str table_harmless(struct arena *arena, struct str text);
struct str table_harmless_lines(struct arena *arena, struct str text);
const char *table_code(enum table_colour colour); /* what turns it on; "" for plain */

#endif
