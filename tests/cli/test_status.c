/* The cluster panel shows what the server sent, and a dash for what it did not. */
#include "unit.h"

#include "cli/cmd_status.h"

enum { NOW_MS = 100000 };

/* Members of a typical server. */
#define US                                                                                         \
    "\"name\":\"US VPS\",\"role\":\"main\",\"online\":true,\"last_seen_ms\":99000,"                \
    "\"figures_reason\":null,\"offline_reason\":null"
#define FIGURES                                                                                    \
    ",\"cpu_cores\":8,\"cpu_load\":6.2,\"mem_total_gb\":15,\"mem_free_gb\":11,"                    \
    "\"swap_used_pct\":0,\"gpu_pct\":null"

static char *drawn(const char *servers, const struct panel_style *style, bool colour)
{
    struct cli cli = {.colour = colour};
    const struct json *json;
    char *text;
    size_t len;
    FILE *to = open_memstream(&text, &len);
    struct str status = arena_fmt(
        &cli.arena,
        "{\"servers\":{%s},\"cluster_status\":\"partial\",\"total_slots\":7,\"available_slots\":1,"
        "\"recommendation\":\"US VPS full; talk can go to HK VPS\"}",
        servers);
    struct problem why;

    if (json_parse(status, &cli.arena, &json, &why))
        fail_msg("%s: " STR_FMT, why.detail, STR_ARG(status));
    panel_print(&cli, json, style, to);
    fclose(to);
    arena_free(&cli.arena);
    return text;
}

static const struct {
    const char *server;
    const char *has[4];
    const char *lacks;
} rows[] = {
    /* bars of what is used */
    {"{" US FIGURES "}",
     {"\nUS VPS (main)  us\n", "\nCPU   [################....] 6.20/8 cores\n",
      "\nMEM   [#####...............] 27% of 15 GB used\n"},
     "GPU"},
    {"{" US ",\"cpu_cores\":2,\"cpu_load\":9.5,\"mem_total_gb\":7.6,\"mem_free_gb\":7.6}",
     {"CPU   [####################] 9.50/2 cores",
      "MEM   [....................] 0% of 7.6 GB used"},
     NULL},
    {"{" US ",\"swap_used_pct\":45,\"gpu_pct\":5}",
     {"\nSwap  [#########...........] 45%\n", "\nGPU   [#...................] 5%\n"},
     NULL},
    /* unknown figures are not made up */
    {"{\"online\":true,\"figures_reason\":\"no agent on this server\"}",
     {"\nCPU   -  no agent on this server\n", "\nMEM   -  no agent on this server\n",
      "\nLevel -  no agent: taken as normal\n"},
     "%"},
    {"{" US ",\"cpu_cores\":8,\"cpu_load\":null,\"mem_total_gb\":15}",
     {"\nCPU   -  its agent did not send this figure\n",
      "\nMEM   -  its agent did not send this figure\n"},
     "%"},
    {"{" US ",\"cpu_cores\":0,\"cpu_load\":1,\"mem_total_gb\":0,\"mem_free_gb\":0}",
     {"CPU   -  ", "MEM   -  "},
     "nan"},
    /* slots, and why none is free */
    {"{" US ",\"slots_in_use\":0,\"slots_max\":2,\"slots_available\":1}",
     {"\nSlots 0/2 room for 1\n"},
     "no room"},
    {"{" US ",\"slots_in_use\":5,\"slots_max\":5,\"slots_available\":0,\"clamps\":["
     "{\"name\":\"cpu\",\"value\":1,\"reason\":\"a\"},"
     "{\"name\":\"safety_buffer\",\"value\":0,\"reason\":\"less 1 (safety_buffer)\"},"
     "{\"name\":\"level\",\"value\":0,\"reason\":\"c\"}]}",
     {"\nSlots 5/5 no room: less 1 (safety_buffer)\n"},
     NULL},
    {"{" US ",\"slots_max\":5,\"clamps\":[{\"name\":\"cpu\",\"value\":0,\"reason\":\"8 - 8\"},"
     "{\"name\":\"memory\",\"value\":6,\"reason\":\"b\"},{\"name\":\"raw\",\"value\":0,"
     "\"reason\":\"the smaller\"}]}",
     {"\nSlots 0/5 no room: cpu: 8 - 8\n"},
     NULL},
    {"{" US ",\"slots_max\":4,\"clamps\":[{\"name\":\"cpu\",\"value\":0,\"reason\":\"a\"},"
     "{\"name\":\"slots_fixed\",\"value\":4,\"reason\":\"b\"},{\"name\":\"in_use\",\"value\":0,"
     "\"reason\":\"4 of 4\"}]}",
     {"\nSlots 0/4 no room: in_use: 4 of 4\n"}, /* a clamp that was replaced is not the reason */
     NULL},
    {"{" US ",\"slots_max\":5}", {"\nSlots 0/5 no room\n"}, NULL},
    /* resources promised to jobs; details only in the wide form */
    {"{" US ",\"resources\":{\"cpu\":{\"capacity\":8,\"usable\":8,\"promised\":1.5,\"left\":6.5},"
     "\"mem_mb\":{\"capacity\":4096,\"usable\":4096,\"promised\":0,\"left\":4096},"
     "\"gpus\":[{\"id\":1,\"vram_mb\":{\"capacity\":9000,\"promised\":7000,\"left\":2000}}]}}",
     {"\nNeeds cpu 1.5 of 8 promised, 6.5 free\nNeeds GPU 1 MB 7000 of 9000 promised, 2000 free\n"},
     "mem_mb"},
    {"{" US ",\"resources\":{\"cpu\":7,\"gpus\":{}}}", {"\nSlots 0/0"}, "Needs"},
    /* the level, its cause and its effect */
    {"{" US ",\"level\":\"normal\",\"tripped\":null}", {"\nLevel normal\n"}, " by "},
    {"{" US ",\"level\":\"warning\",\"tripped\":\"cpu\"}",
     {"\nLevel warning by cpu (only high priority starts)\n"},
     NULL},
    {"{" US ",\"level\":\"critical\",\"tripped\":\"memory\"}",
     {"\nLevel critical by memory (nothing starts, the least important is\n      ended)\n"},
     NULL},
    /* tasks as type: title */
    {"{" US ",\"tasks\":[{\"job_id\":\"j1\",\"type\":\"dev\",\"title\":\"PR Feature A\"},"
     "{\"job_id\":\"j2\",\"type\":\"talk\",\"title\":null}]}",
     {"\nRunning:\n- dev: PR Feature A\n- talk: j2\nAvailable for: nothing now\n"},
     NULL},
    {"{" US ",\"tasks\":[{\"title\":\"a\\u001b]0;x\\u0007\"}]}", {"- a?]0;x?"}, "\033"},
    {"{" US ",\"tasks\":[1,2,3,4,5,6,7,8,9,10]}", {"\n  and 2 more (--wide shows them)\n"}, NULL},
    {"{" US ",\"tasks\":[],\"available_for\":[\"talk\",\"research\",\"*\"]}",
     {"\nRunning: nothing\nAvailable for: talk, research, any type\n"},
     NULL},
    /* drained by an operator */
    {"{" US ",\"health\":\"draining\"}", {"\nUS VPS (main)  us  draining\n"}, NULL},
    {"{" US ",\"health\":\"ready\"}", {"\nUS VPS (main)  us\n"}, "ready"},
    /* silent */
    {"{\"name\":\"HK VPS\",\"online\":false,\"offline_reason\":\"no heartbeat: lost\","
     "\"last_seen_ms\":40000,\"slots_max\":2}",
     {"\n      offline: no heartbeat: lost, last seen 60s ago\n", "\nSlots 0/2 no room: offline\n"},
     NULL},
    {"{\"online\":false,\"offline_reason\":\"x\",\"last_seen_ms\":0}",
     {"offline: x, never seen\n"},
     NULL},
};

static void servers_are_shown_as_they_are(void **state)
{
    const struct panel_style style = {.columns = 80, .now_ms = NOW_MS};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char servers[2048], *text;

        snprintf(servers, sizeof servers, "\"us\":%s", rows[i].server);
        text = drawn(servers, &style, false);
        for (size_t h = 0; h < 4 && rows[i].has[h]; h++)
            assert_has(text, rows[i].has[h]);
        if (rows[i].lacks && strstr(text, rows[i].lacks))
            fail_msg("row %zu has \"%s\" in: %s", i, rows[i].lacks, text);
        free(text);
    }
}

static void the_head_tells_how_the_cluster_is(void **state)
{
    const struct panel_style style = {.columns = 80, .now_ms = NOW_MS};
    char *text = drawn("", &style, false);

    assert_string_equal(text, "Cluster status: partial, 1 of 7 slots free\n"
                              "US VPS full; talk can go to HK VPS\n");
    free(text);
    text = drawn("", &style, true);
    assert_has(text, "\033[33mpartial\033[0m");
    free(text);
}

static void wide_tells_how_the_slots_come_about(void **state)
{
    static const char server[] =
        "\"us\":{" US
        ",\"clamps\":[{\"name\":\"cpu\",\"value\":4,\"reason\":\"(8.00 - 2.00) / 1.20\"},"
        "{\"name\":\"level\",\"value\":0,\"reason\":\"danger: nothing starts\"}],"
        "\"tasks\":[1,2,3,4,5,6,7,8,9,10]}";
    const struct panel_style style = {.columns = 80, .now_ms = NOW_MS, .wide = true};
    char *text = drawn(server, &style, false);

    assert_has(text, "\nHow its slots come about:\n"
                     "     4  cpu: (8.00 - 2.00) / 1.20\n"
                     "     0  level: danger: nothing starts\n");
    assert_has(text, "\nGPU   -  ");
    assert_null(strstr(text, "more (--wide"));
    free(text);
}

/* Width of the longest line in columns; all lines of a framed panel have the same. */
static size_t width_of(const char *text, bool all_same)
{
    struct str rest = str_of(text);
    size_t widest = 0;

    while (rest.len > 0) {
        struct str line = str_cut(&rest, '\n');
        size_t width = table_width(line);

        if (all_same && widest)
            assert_int_equal(width, widest);
        widest = width > widest ? width : widest;
    }
    return widest;
}

static void columns_follow_the_width(void **state)
{
    static const char servers[] =
        "\"us\":{" US
        ",\"tasks\":[{\"type\":\"dev\",\"title\":\"重构 a title that is far too long for "
        "any column of a panel, so that it must be cut somewhere\"}]},\"hk\":{" US
        "},\"x\":{\"online\":false}";
    static const struct {
        size_t columns;
        bool unicode;
        bool two;
    } widths[] = {{80, false, false}, {94, false, false}, {95, false, true}, {160, false, true},
                  {80, true, false},  {98, true, false},  {99, true, true},  {160, true, true},
                  {20, false, false}, {20, true, false},  {1000, true, true}};

    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        struct panel_style style = {
            .columns = widths[i].columns, .unicode = widths[i].unicode, .now_ms = NOW_MS};
        char *text = drawn(servers, &style, false);
        const char *us = strstr(text, "US VPS (main)");

        assert_non_null(us);
        assert_int_equal(strstr(us + 1, "US VPS (main)") < strchr(us, '\n'), widths[i].two);
        if (widths[i].columns > 60) /* narrower than readable: the terminal cuts it */
            assert_in_range(width_of(text, widths[i].unicode), 1, widths[i].columns);
        free(text);
    }
}

/* No answer of a server may crash the panel. */
static void odd_answers_are_drawn_too(void **state)
{
    static const char *const odd[] = {
        "\"a\":1",
        "\"a\":null",
        "\"a\":{\"tasks\":5,\"clamps\":{},\"available_for\":\"x\",\"level\":7,\"online\":\"y\"}",
        "\"a\":{\"clamps\":[1,null],\"tasks\":[null],\"available_for\":[{}]}",
        "\"\":{\"cpu_load\":-1,\"cpu_cores\":-3,\"mem_free_gb\":1e300,\"mem_total_gb\":1e-300}",
        "\"a\":{\"cpu_load\":1e300,\"cpu_cores\":1,\"swap_used_pct\":1e300,\"slots_max\":1e300}",
    };

    for (size_t i = 0; i < COUNT_OF(odd); i++) {
        struct panel_style style = {.columns = 100, .unicode = i % 2, .wide = true};

        free(drawn(odd[i], &style, true));
    }
}

static void shares_are_of_what_is_used(void **state)
{
    static const struct {
        const char *server;
        int64_t cpu, mem, slots;
    } shares[] = {
        {"{\"cpu_load\":6,\"cpu_cores\":8,\"mem_free_gb\":11,\"mem_total_gb\":15,"
         "\"slots_in_use\":5,\"slots_max\":5}",
         750, 267, 1000},
        {"{\"cpu_load\":12,\"cpu_cores\":8,\"mem_free_gb\":20,\"mem_total_gb\":15}", 1500, 0, -1},
        {"{}", -1, -1, -1},
    };

    for (size_t i = 0; i < COUNT_OF(shares); i++) {
        struct arena arena = {0};
        const struct json *json;

        assert_int_equal(json_parse(str_of(shares[i].server), &arena, &json, NULL), ERR_OK);
        assert_int_equal(panel_cpu_permille(json), shares[i].cpu);
        assert_int_equal(panel_mem_permille(json), shares[i].mem);
        assert_int_equal(panel_slots_permille(json), shares[i].slots);
        arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_are_shown_as_they_are),
        cmocka_unit_test(the_head_tells_how_the_cluster_is),
        cmocka_unit_test(wide_tells_how_the_slots_come_about),
        cmocka_unit_test(columns_follow_the_width),
        cmocka_unit_test(odd_answers_are_drawn_too),
        cmocka_unit_test(shares_are_of_what_is_used),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
