/* Columns line up, also with wide characters; nothing a terminal obeys gets through. */
#include "unit.h"

#include "cli/table.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width_is_what_a_terminal_shows),
        cmocka_unit_test(columns_line_up),
        cmocka_unit_test(an_empty_table_has_its_titles),
        cmocka_unit_test(colour_does_not_move_columns),
        cmocka_unit_test(a_terminal_is_never_given_orders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
