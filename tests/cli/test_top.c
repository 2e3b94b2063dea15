/* The nodes of `berth top`: their order, and that every line fits. */
#include "cli/cmd_top.h"

#include "unit.h"

#define STATUS                                                                                     \
    "{\"a\":{\"online\":true,\"level\":\"normal\",\"cpu_load\":1,\"cpu_cores\":10,"                \
    "\"mem_free_gb\":1,\"mem_total_gb\":10,\"slots_in_use\":3,\"slots_max\":4,"                    \
    "\"slots_available\":1,\"tasks\":[{},{},{}]},"                                                 \
    "\"a-name-that-is-much-longer-than-there-is-room-for-on-any-line\":{\"online\":false},"        \
    "\"c\":{\"online\":true,\"level\":\"critical\",\"cpu_load\":95,\"cpu_cores\":10,"              \
    "\"mem_free_gb\":5,\"mem_total_gb\":10,\"slots_in_use\":0,\"slots_max\":4,"                    \
    "\"slots_available\":0,\"tasks\":[]}}"
#define BREAKERS                                                                                   \
    "[{\"node_id\":\"c\",\"state\":\"OPEN\"},{\"node_id\":\"c\",\"state\":\"HALF_OPEN\"},"         \
    "{\"node_id\":\"a\",\"state\":\"CLOSED\"}]"

/* The lines as one text; none is wider than requested. */
static const char *draw(struct cli *cli, size_t width, bool unicode, struct top_view view)
{
    struct sheet sheet;
    char *text = NULL;
    size_t len;
    FILE *to = open_memstream(&text, &len);

    assert_int_equal(json_parse(STR(STATUS), &cli->arena, &view.servers, NULL), ERR_OK);
    assert_int_equal(json_parse(STR(BREAKERS), &cli->arena, &view.breakers, NULL), ERR_OK);
    sheet_init(&sheet, &cli->arena, (struct sheet_style){.width = width, .unicode = unicode});
    top_nodes(cli, &sheet, &view);
    for (size_t i = 0; i < sheet.count; i++)
        if (sheet.lines[i].width > width)
            fail_msg("%zu columns, not %zu: " STR_FMT, sheet.lines[i].width, width,
                     STR_ARG(sheet.lines[i].text));
    sheet_print(&sheet, to, false);
    fclose(to);
    const char *kept = arena_cstr(&cli->arena, str_of(text));
    free(text);
    return kept;
}

static void at_eighty_columns(void **state)
{
    struct cli cli = {0};

    assert_string_equal(
        draw(&cli, 80, false, (struct top_view){0}),
        "NODE             LEVEL    CPU             MEMORY            SLOTS  RUN BRK  SEEN\n"
        "c                critical [########] 950% [####....]  50%     0/4    0   2     -\n"
        "a                normal   [#.......]  10% [#######.]  90%     3/4    3   0     -\n"
        "a-name-that-is-~ offline                -               -     0/0    0   0     -\n");
    arena_free(&cli.arena);
}

/* The first letters of the lines, without the title line. */
static void order_is(const char *text, const char *wanted)
{
    char got[8] = "";
    size_t count = 0;

    while ((text = strchr(text, '\n')) && text[1]) {
        text++;
        got[count++] = text[1] == '-' ? 'z' : text[0]; /* the node with the long name */
    }
    assert_string_equal(got, wanted);
}

static void every_way_to_sort(void **state)
{
    static const char *const orders[] = {"caz", "caz", "acz", "acz", "azc"};
    struct cli cli = {0};

    assert_int_equal(top_sort_count, COUNT_OF(orders));
    for (size_t i = 0; i < top_sort_count; i++)
        order_is(draw(&cli, 100, true, (struct top_view){.sort = i}), orders[i]);
    order_is(draw(&cli, 100, true, (struct top_view){.sort = 4, .reverse = true}), "cza");
    arena_free(&cli.arena);
}

static void every_width(void **state)
{
    struct cli cli = {0};

    for (size_t width = 40; width < 300; width++)
        for (int unicode = 0; unicode < 2; unicode++)
            draw(&cli, width, unicode, (struct top_view){0});
    arena_free(&cli.arena);
}

static void no_more_lines_than_there_are(void **state)
{
    struct cli cli = {0};
    const char *text = draw(&cli, 80, false, (struct top_view){.lines = 3});

    order_is(text, "ca"); /* one node, then "and 2 more" */
    assert_has(text, "\nand 2 more\n");
    order_is(draw(&cli, 80, false, (struct top_view){.lines = 4}), "caz");
    arena_free(&cli.arena);
}

/* --- scrape --- */

/* Readings of /metrics, and the rates between them. */

static void rows_are_read(void **state)
{
    static const char text[] = "# HELP a what\n# TYPE a counter\n"
                               "a{x=\"1\",y=\"two, three\"} 5\n"
                               "a{x=\"}\"} 6\n"
                               "b 1.5e3\n"
                               "c -2\n"
                               "\n"
                               "broken{ 7\n"
                               "nothing\n"
                               "word five\n"
                               "d 4"; /* no newline at the end */
    struct scrape scrape = {0};

    scrape_read(&scrape, STR(text), 77);
    assert_int_equal(scrape.count, 5);
    assert_int_equal(scrape.at_us, 77);
    assert_true(scrape_find(&scrape, STR("a"), STR("x=\"1\",y=\"two, three\""))->value == 5);
    assert_true(scrape_find(&scrape, STR("a"), STR("x=\"}\""))->value == 6);
    assert_true(scrape_find(&scrape, STR("b"), STR(""))->value == 1500);
    assert_true(scrape_find(&scrape, STR("c"), STR(""))->value == -2);
    assert_true(scrape_find(&scrape, STR("d"), STR(""))->value == 4);
    assert_null(scrape_find(&scrape, STR("a"), STR("")));
    scrape_done(&scrape);
}

static void labels_are_found(void **state)
{
    assert_true(str_is(scrape_label(STR("outcome=\"PLACED\""), "outcome"), "PLACED"));
    assert_true(str_is(scrape_label(STR("layer=\"l1\",result=\"hit\""), "result"), "hit"));
    assert_true(str_is(scrape_label(STR("layer=\"l1\""), "result"), ""));
    assert_true(str_is(scrape_label(STR(""), "result"), ""));
}

static const struct {
    const char *before, *now;
    int64_t before_us, now_us;
    bool known;
    double per_s;
} rates[] = {
    {"a 10\n", "a 30\n", 1000000, 3000000, true, 10},
    {"a 10\n", "a 10\n", 1000000, 2000000, true, 0},
    {"b 1\n", "a 5\n", 1000000, 2000000, true, 5},   /* a new label */
    {"a 10\n", "a 3\n", 1000000, 2000000, false, 0}, /* the server restarted */
    {"", "a 10\n", 0, 2000000, false, 0},            /* nothing to compare with */
    {"a 10\n", "a 30\n", 2000000, 2000000, false, 0},
};

static void rates_are_per_second(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        struct scrape before = {0}, now = {0};
        double per_s = -1;
        bool known;

        if (rates[i].before[0])
            scrape_read(&before, str_of(rates[i].before), rates[i].before_us);
        scrape_read(&now, str_of(rates[i].now), rates[i].now_us);
        known = scrape_rate(&now, &before, &now.rows[0], &per_s);
        assert_int_equal(known, rates[i].known);
        assert_true(per_s == (known ? rates[i].per_s : -1));
        scrape_done(&before);
        scrape_done(&now);
    }
}

/* A reading may reuse the last one's memory, as top does every second. */
static void a_reading_replaces_the_last(void **state)
{
    struct scrape scrape = {0};

    scrape_read(&scrape, STR("a 1\nb 2\n"), 1);
    scrape_read(&scrape, STR("a 9\n"), 2);
    assert_int_equal(scrape.count, 1);
    assert_true(scrape.rows[0].value == 9);
    scrape_done(&scrape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_eighty_columns),    cmocka_unit_test(every_way_to_sort),
        cmocka_unit_test(every_width),          cmocka_unit_test(no_more_lines_than_there_are),
        cmocka_unit_test(rows_are_read),        cmocka_unit_test(labels_are_found),
        cmocka_unit_test(rates_are_per_second), cmocka_unit_test(a_reading_replaces_the_last),
    };

    return cmocka_run_group_tests_name("top", tests, NULL, NULL);
}
