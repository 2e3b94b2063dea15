/* Columns are aligned, also with wide characters, and terminal control characters are removed. */
#include "cli/table.h"

#include "unit.h"

static void width_is_what_a_terminal_shows(void **state)
{
    static const struct {
        const char *text;
        size_t width;
    } rows[] = {
        {"", 0},
        {"abc", 3},
        {"\xc3\xa9", 1},
        {"e\xcc\x81", 1},
        {"\xe4\xb8\xad\xe6\x96\x87", 4},
        {"\xff", 1},
        {"\xf0\x9f\x98\x80", 2},
        {"a\xe4\xb8\xad", 3},
        {"a\u200b\u200d\ufe0f\ufeff", 1},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(table_width(str_of(rows[i].text)), rows[i].width);
}

static char *printed(const struct table *table, bool colour)
{
    char *text;
    size_t len;
    FILE *to = open_memstream(&text, &len);

    table_print(table, to, colour);
    fclose(to);
    return text;
}

static void columns_line_up(void **state)
{
    static const char *const titles[] = {"NAME", ">N", "LAST"};
    struct arena arena = {0};
    struct table table;
    char *text;

    table_init(&table, &arena, titles, 3);
    table_cell(&table, STR("a"));
    table_int(&table, 7);
    table_cell(&table, STR("x"));
    table_cell(&table, STR("\xe4\xb8\xad\xe6\x96\x87!"));
    table_int(&table, -1234);
    table_cell(&table, STR_NONE);
    text = printed(&table, false);
    assert_string_equal(text, "NAME       N  LAST\n"
                              "a          7  x\n"
                              "\xe4\xb8\xad\xe6\x96\x87!  -1234  -\n");
    free(text);
    arena_free(&arena);
}

static void an_empty_table_has_its_titles(void **state)
{
    static const char *const titles[] = {"A", "B"};
    struct arena arena = {0};
    struct table table;
    char *text;

    table_init(&table, &arena, titles, 2);
    text = printed(&table, false);
    assert_string_equal(text, "A  B\n");
    free(text);
    arena_free(&arena);
}

static void colour_does_not_move_columns(void **state)
{
    static const char *const titles[] = {"A", "B"};
    struct arena arena = {0};
    struct table table;
    char *text;

    table_init(&table, &arena, titles, 2);
    table_cell_colour(&table, STR("red"), TABLE_RED);
    table_cell(&table, STR("x"));
    text = printed(&table, true);
    assert_has(text, "\033[31mred\033[0m  x\n");
    free(text);
    text = printed(&table, false);
    assert_null(strchr(text, '\033'));
    free(text);
    arena_free(&arena);
}

static void a_terminal_is_never_given_orders(void **state)
{
    static const char *const titles[] = {"A"};
    static const char *const nasty[] = {"\033[2J",     "a\nb",           "a\rb",
                                        "\302\23331m", "\x7f",           "\xff\xfe",
                                        "\u202egnp",   "a\u2066b\u2069", "a\u2028b"};
    struct arena arena = {0};
    struct table table;
    char *text;

    table_init(&table, &arena, titles, 1);
    for (size_t i = 0; i < COUNT_OF(nasty); i++)
        table_cell(&table, str_of(nasty[i]));
    text = printed(&table, false);
    assert_string_equal(text, "A\n?[2J\na?b\na?b\n??31m\n?\n??\n"
                              "???gnp\na???b???\na???b\n");
    free(text);
    arena_free(&arena);
}

/* --- sheet --- */

/* Lines of known width: cut, wrapped, side by side, framed; colours take no width. */

static char *sheet_printed(const struct sheet *sheet, bool framed)
{
    char *text;
    size_t len;
    FILE *to = open_memstream(&text, &len);

    sheet_print(sheet, to, framed);
    fclose(to);
    return text;
}

static void assert_printed(const struct sheet *sheet, bool framed, const char *wanted)
{
    char *text = sheet_printed(sheet, framed);

    assert_string_equal(text, wanted);
    free(text);
}

static const struct {
    size_t width;
    bool unicode;
    const char *pieces[3];
    const char *line;
} cuts[] = {
    {10, false, {"abc", "def"}, "abcdef\n"},
    {6, false, {"abc", "def"}, "abcdef\n"},
    {5, false, {"abc", "def"}, "abc..\n"},
    {5, false, {"abcd", "ef"}, "abcd\n"}, /* no room to show that it was cut */
    {5, true, {"abcd", "ef"}, "abcd…\n"},
    {5, true, {"abcde", "f"}, "abcde\n"},
    {4, true, {"主力机"}, "主…\n"}, /* two columns wide each */
    {5, true, {"主力机"}, "主力…\n"},
    {6, true, {"主力机"}, "主力机\n"},
    {4, false, {"toolong", "x", "y"}, "to..\n"},
    {9, false, {"a\033[2Jb"}, "a?[2Jb\n"}, /* control characters in titles are removed */
};

static void pieces_are_cut_at_the_edge(void **state)
{
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        struct sheet_style style = {.width = cuts[i].width, .unicode = cuts[i].unicode};
        struct arena arena = {0};
        struct sheet sheet;

        sheet_init(&sheet, &arena, style);
        sheet_line(&sheet);
        for (size_t p = 0; p < 3 && cuts[i].pieces[p]; p++)
            sheet_put(&sheet, TABLE_RED, str_of(cuts[i].pieces[p]));
        assert_printed(&sheet, false, cuts[i].line);
        arena_free(&arena);
    }
}

static const struct {
    size_t width, indent;
    const char *begin, *text, *lines;
} wraps[] = {
    {20, 2, "", "one two three", "one two three\n"},
    {9, 2, "", "one two three", "one two\n  three\n"},
    {9, 0, "", "one two three", "one two\nthree\n"},
    {13, 4, "Keys:", "one two three", "Keys: one two\n    three\n"},
    {12, 4, "Key ", "one two three", "Key one two\n    three\n"},
    {8, 2, "", "a unbreakable b", "a\n  unbr..\n  b\n"},
    {8, 2, "", "", "\n"},
    {8, 2, "", "  a   b  ", "a b\n"},
};

static void words_wrap(void **state)
{
    for (size_t i = 0; i < COUNT_OF(wraps); i++) {
        struct arena arena = {0};
        struct sheet sheet;

        sheet_init(&sheet, &arena, (struct sheet_style){.width = wraps[i].width});
        sheet_line(&sheet);
        sheet_put(&sheet, TABLE_PLAIN, str_of(wraps[i].begin));
        sheet_wrap(&sheet, TABLE_PLAIN, wraps[i].indent, str_of(wraps[i].text));
        assert_printed(&sheet, false, wraps[i].lines);
        arena_free(&arena);
    }
}

static const struct {
    bool unicode;
    size_t columns;
    int64_t permille;
    const char *line;
} bars[] = {
    {false, 10, 0, "[..........]\n"},    {false, 10, 49, "[..........]\n"},
    {false, 10, 50, "[#.........]\n"},   {false, 10, 775, "[########..]\n"},
    {false, 10, 1000, "[##########]\n"}, {false, 10, 3000, "[##########]\n"},
    {false, 10, -1, "[..........]\n"},   {true, 4, 500, "██░░\n"},
};

static void bars_are_as_full_as_what_they_show(void **state)
{
    for (size_t i = 0; i < COUNT_OF(bars); i++) {
        struct sheet_style style = {.width = 40, .unicode = bars[i].unicode};
        struct arena arena = {0};
        struct sheet sheet;

        sheet_init(&sheet, &arena, style);
        sheet_line(&sheet);
        sheet_bar(&sheet, TABLE_GREEN, bars[i].columns, bars[i].permille);
        assert_printed(&sheet, false, bars[i].line);
        arena_free(&arena);
    }
}

/* The right sheet starts in the same column on every line, whatever colours precede it. */
static void sheets_stand_beside_each_other(void **state)
{
    struct arena arena = {0};
    struct sheet left, right, both;

    sheet_init(&left, &arena, (struct sheet_style){.width = 6, .colour = true});
    sheet_init(&right, &arena, (struct sheet_style){.width = 6, .colour = true});
    sheet_init(&both, &arena, (struct sheet_style){.width = 14, .colour = true, .unicode = true});
    sheet_line(&left);
    sheet_put(&left, TABLE_RED, STR("主力"));
    sheet_line(&left);
    sheet_put(&left, TABLE_PLAIN, STR("b"));
    sheet_line(&left);
    for (int i = 0; i < 2; i++) {
        sheet_line(&right);
        sheet_put(&right, TABLE_PLAIN, STR("x"));
    }
    sheet_beside(&both, &left, &right, 2);
    assert_printed(&both, false, "\033[31m主力\033[0m    x\nb       x\n\n");
    assert_printed(&both, true,
                   "┌────────────────┐\n"
                   "│ \033[31m主力\033[0m    x      │\n"
                   "│ b       x      │\n"
                   "│                │\n"
                   "└────────────────┘\n");
    arena_free(&arena);
}

static void there_is_room_for_many_lines(void **state)
{
    struct arena arena = {0};
    struct sheet sheet;

    sheet_init(&sheet, &arena, (struct sheet_style){.width = 10});
    for (int i = 0; i < 1000; i++) {
        sheet_line(&sheet);
        sheet_fmt(&sheet, TABLE_PLAIN, "%d", i);
    }
    assert_int_equal(sheet.count, 1000);
    assert_true(str_is(sheet.lines[17].text, "17"));
    assert_true(str_is(sheet.lines[999].text, "999"));
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width_is_what_a_terminal_shows),
        cmocka_unit_test(columns_line_up),
        cmocka_unit_test(an_empty_table_has_its_titles),
        cmocka_unit_test(colour_does_not_move_columns),
        cmocka_unit_test(a_terminal_is_never_given_orders),
        cmocka_unit_test(pieces_are_cut_at_the_edge),
        cmocka_unit_test(words_wrap),
        cmocka_unit_test(bars_are_as_full_as_what_they_show),
        cmocka_unit_test(sheets_stand_beside_each_other),
        cmocka_unit_test(there_is_room_for_many_lines),
    };

    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
