/* Command lines that need no server: help, usage, exit codes. */
#include "unit.h"

static const struct {
    const char *line;
    int code;
    const char *out; /* a part of the output; NULL: no output */
    const char *err;
} rows[] = {
    {"berth", CLI_USAGE, NULL, "Usage:"},
    {"berth --help", CLI_OK, "Exit codes: 0 ok, 1 failure", NULL},
    {"berth help", CLI_OK, "berth job submit", NULL},
    {"berth -h", CLI_OK, "berth node ls", NULL},
    {"berth version", CLI_OK, "berth " BERTH_VERSION "\n", NULL},
    {"berth --version", CLI_OK, "berth " BERTH_VERSION "\n", NULL},
    {"berth node --help", CLI_OK, "berth node drain", NULL},
    {"berth help node", CLI_OK, "berth node drain", NULL},
    {"berth help node ls", CLI_OK, "Examples:\n  berth node ls", NULL},
    {"berth node ls --help", CLI_OK, "--token-file FILE", NULL},
    {"berth job submit -h", CLI_OK, "--wait[=DURATION]", NULL},
    {"berth job wait --help", CLI_OK, "Usage:\n  berth job wait ID [flags]\n", NULL},
    {"berth server --listen x --help", CLI_OK, "berth server --config", NULL},
    {"berth nonsense --help", CLI_USAGE, NULL, "unknown command \"nonsense\""},
    {"berth nod", CLI_USAGE, NULL, "did you mean \"node\"?"},
    {"berth node", CLI_USAGE, NULL, "`berth node` needs one of: ls"},
    {"berth node ls extra", CLI_USAGE, NULL, "unexpected argument \"extra\""},
    {"berth node show", CLI_USAGE, NULL, "ID is missing"},
    {"berth node show a b", CLI_USAGE, NULL, "unexpected argument \"b\""},
    {"berth node ls -- x", CLI_USAGE, NULL, "unexpected argument \"x\""},
    {"berth node ls --sate", CLI_USAGE, NULL, "See `berth node ls --help`."},
    {"berth node ls -o yaml", CLI_USAGE, NULL,
     "--output is table, wide, json, jsonl or name, not \"yaml\""},
    {"berth node ls --token-file /nowhere/at-all", CLI_USAGE, NULL, "cannot read the token file"},
    {"berth node ls --ca-file /nowhere/at-all", CLI_USAGE, NULL, "cannot read the certificates in"},
    {"berth node register n --nmt en", CLI_USAGE, NULL, "--nmt takes pairs"},
    {"berth node register n --nmt en:", CLI_USAGE, NULL, "--nmt takes pairs"},
    {"berth node register n --label x", CLI_USAGE, NULL, "--label takes KEY=VALUE"},
    {"berth job submit", CLI_USAGE, NULL, "what shall be done?"},
    {"berth job submit --src en", CLI_USAGE, NULL, "needs --src and --tgt"},
    {"berth job submit --title x", CLI_USAGE, NULL, "a task needs --type or -- COMMAND"},
    {"berth job submit --src en --tgt zh --type x", CLI_USAGE, NULL, "f2f or task, not both"},
    {"berth job submit --src en -- ls", CLI_USAGE, NULL, "f2f or task, not both"},
    {"berth job submit --type x --payload {", CLI_USAGE, NULL, "--payload is not JSON"},
    {"berth job submit --type x --payload @/nowhere/x", CLI_USAGE, NULL, "cannot read /nowhere/x"},
    {"berth job submit --type x --priority 10", CLI_USAGE, NULL, "--priority must be from 0 to 9"},
    {"berth node rpc us", CLI_USAGE, NULL, "SERVICE/METHOD is missing"},
    {"berth node rpc us Inspect", CLI_USAGE, NULL, "a method is SERVICE/METHOD"},
    {"berth node rpc us A/B/C", CLI_USAGE, NULL, "a method is SERVICE/METHOD"},
    {"berth node rpc us A/B [1]", CLI_USAGE, NULL, "a JSON object, not [1]"},
    {"berth node rpc us A/B {} more", CLI_USAGE, NULL, "unexpected argument \"more\""},
    {"berth breaker reset us", CLI_USAGE, NULL, "TYPE is missing"},
    {"berth breaker reset us dev x", CLI_USAGE, NULL, "unexpected argument \"x\""},
    {"berth status --watch=50ms", CLI_USAGE, NULL, "--watch must be from 100ms to 1h, not 50ms"},
    {"berth report --since 8d", CLI_USAGE, NULL, "--since must be from 1s to 7d, not 8d"},
    {"berth health -o name", CLI_USAGE, NULL, "health has no names"},
    {"berth top -o json", CLI_USAGE, NULL, "`berth status -o json` has the figures"},
    {"berth job logs j1 --offset -1", CLI_USAGE, NULL, "--offset must be from 0"},
    {"berth run --type dev", CLI_USAGE, NULL, "what shall run?"},
    {"berth run -- true", CLI_USAGE, NULL, "--type is missing"},
    {"berth run --type 'a b' -- true", CLI_USAGE, NULL, "cannot be a type of task"},
    {"berth run --type dev --wait 1s --no-wait -- true", CLI_USAGE, NULL, "not both"},
    {"berth run --type dev --priority 10 -- true", CLI_USAGE, NULL, "from 0 to 9"},
    {"berth run --help", CLI_OK, "Usage:\n  berth run [flags] [-- COMMAND [ARG...]]", NULL},
    {"berth token hash --help", CLI_OK, "sha256: 9f86d0", NULL},
    {"berth agent --help", CLI_OK, "berth agent --server", NULL},
};

static void lines_do_what_they_say(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct outcome_of_run run = run_line(rows[i].line);

        if (run.code != rows[i].code)
            fail_msg("%s: exit %d, wanted %d: %s", rows[i].line, run.code, rows[i].code, run.err);
        if (rows[i].out)
            assert_has(run.out, rows[i].out);
        else
            assert_string_equal(run.out, "");
        if (rows[i].err)
            assert_has(run.err, rows[i].err);
        else
            assert_string_equal(run.err, "");
        run_free(&run);
    }
}

/* How often the help has a line for this flag. */
static int times_listed(const char *help, const struct flag *flag)
{
    char line[64];
    int times = 0;

    snprintf(line, sizeof line, flag->letter ? "\n  -%c, --%s" : "\n     %c--%s",
             flag->letter ? flag->letter : ' ', flag->name);
    for (const char *at = help; (at = strstr(at, line)); at += strlen(line))
        times += strchr(" [\n", at[strlen(line)]) != NULL;
    return times;
}

/* Every command's help has its usage line, its examples, how to get help, and each flag once. */
static void every_command_has_help(void **state)
{
    const struct command *command;

    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        struct flag_set sets[COMMAND_FLAG_SETS];
        char line[256], usage[64];
        struct outcome_of_run run;

        command_name(command, usage, sizeof usage);
        snprintf(line, sizeof line, "berth %s --help", usage);
        run = run_line(line);
        assert_int_equal(run.code, CLI_OK);
        snprintf(line, sizeof line, "Usage:\n  berth %s", usage);
        assert_has(run.out, line);
        assert_has(run.out, command->help);
        assert_has(run.out, "\nExamples:\n  berth ");
        command_flags(command, sets);
        for (size_t f = 0; f < sets[0].count; f++) {
            const struct flag *flag = &sets[0].flags[f];

            if (times_listed(run.out, flag) != 1)
                fail_msg("help of %s lists --%s %d times", usage, flag->name,
                         times_listed(run.out, flag));
        }
        run_free(&run);
    }
}

static int served_argc;
static bool served_dev;
static char *served_first;

static int fake_serve(int argc, char **argv, bool dev)
{
    served_argc = argc;
    served_dev = dev;
    served_first = argc > 0 ? argv[0] : NULL;
    return 41;
}

static int fake_config(int argc, char **argv)
{
    assert_string_equal(argv[0], "show");
    served_argc = argc;
    served_first = argv[1];
    return 42;
}

static void fake_flags(struct buf *out)
{
    buf_fmt(out, "  --made-up  for a server\n");
}

static int fake_agent(int argc, char **argv)
{
    served_argc = argc;
    served_first = argv[0];
    return 43;
}

static void fake_agent_flags(struct buf *out)
{
    buf_fmt(out, "  --made-up  for an agent\n");
}

static struct cli_gate gate_seen;

static int fake_run(const struct cli_gate *gate)
{
    gate_seen = *gate;
    assert_string_equal(gate->argv[0], "make");
    assert_string_equal(gate->argv[1], "-j2");
    assert_null(gate->argv[2]);
    return 44;
}

static void help_of_host_commands_has_their_flags(void **state)
{
    static const struct cli_host host = {.flags = fake_flags, .agent_flags = fake_agent_flags};
    struct outcome_of_run run;
    struct words words;

    words_cut(&words, "berth dev --help");
    run = run_words(words.argc, words.argv, &host);
    assert_int_equal(run.code, CLI_OK);
    assert_has(run.out, "\nFlags:\n  --made-up  for a server\n");
    run_free(&run);
    words_cut(&words, "berth agent --node-id x --help");
    run = run_words(words.argc, words.argv, &host);
    assert_int_equal(run.code, CLI_OK);
    assert_has(run.out, "\nFlags:\n  --made-up  for an agent\n");
    run_free(&run);
    words_cut(&words, "berth help server");
    run = run_words(words.argc, words.argv, &host);
    assert_has(run.out, "\nFlags:\n  --made-up  for a server\n");
    run_free(&run);
}

static void host_commands_get_their_flags_unread(void **state)
{
    static const struct {
        const char *line;
        int code, argc;
        bool dev;
    } host_rows[] = {
        {"berth dev --made-up 1", 41, 2, true},
        {"berth server --made-up", 41, 1, false},
        {"berth config show --made-up=1", 42, 2, false},
        {"berth agent --made-up x y", 43, 3, false},
    };
    static const struct cli_host host = {
        .serve = fake_serve, .config = fake_config, .agent = fake_agent};

    for (size_t i = 0; i < COUNT_OF(host_rows); i++) {
        struct outcome_of_run run;
        struct words words;

        served_dev = false;
        words_cut(&words, host_rows[i].line);
        run = run_words(words.argc, words.argv, &host);
        assert_int_equal(run.code, host_rows[i].code);
        assert_int_equal(served_argc, host_rows[i].argc);
        assert_int_equal(served_dev, host_rows[i].dev);
        assert_has(served_first, "--made-up");
        run_free(&run);
    }
}

/* `berth run` passes its arguments on unchanged. */
static void run_hands_on_what_was_typed(void **state)
{
    static const struct {
        const char *line;
        int64_t priority, wait_ms;
        bool interactive;
        const char *config;
    } gates[] = {
        {"berth run --type dev -- make -j2", 5, -1, false, NULL},
        {"berth run --type dev --no-wait -- make -j2", 5, 0, false, NULL},
        {"berth run --type dev --wait 2s --priority 9 --interactive --config f.yaml -- make -j2", 9,
         2000, true, "f.yaml"},
    };
    static const struct cli_host host = {.run = fake_run};

    for (size_t i = 0; i < COUNT_OF(gates); i++) {
        struct outcome_of_run run;
        struct words words;

        words_cut(&words, gates[i].line);
        run = run_words(words.argc, words.argv, &host);
        assert_int_equal(run.code, 44);
        assert_string_equal(gate_seen.type, "dev");
        assert_int_equal(gate_seen.priority, gates[i].priority);
        assert_int_equal(gate_seen.wait_ms, gates[i].wait_ms);
        assert_int_equal(gate_seen.interactive, gates[i].interactive);
        assert_true((gate_seen.config != NULL) == (gates[i].config != NULL));
        run_free(&run);
    }
}

/* Values are completed by command and flag: another command's flag of the same name has other
 * values, or none. */
static void completes_the_values_of_a_flag(void **state)
{
    static const struct {
        const char *line, *out;
    } offers[] = {
        {"berth __complete node wait n1 --for ''", "ready\ndrained\noffline\ngone\n"},
        {"berth __complete node wait n1 --for d", "drained\n"},
        {"berth __complete deploy approve --for ''", ""},
        {"berth __complete limit hold k --for ''", ""},
        {"berth __complete node ls --health d", "degraded\ndraining\n"},
        {"berth __complete node ls -o j", "json\njsonl\n"},
        {"berth __complete job ls --state F", "FAILED\n"},
        {"berth __complete token create x --scope s", "submit\n"},
        {"berth __complete top --sort s", "slots\n"},
        {"berth __complete completion b", "bash\n"},
    };

    for (size_t i = 0; i < COUNT_OF(offers); i++) {
        struct outcome_of_run run = run_line(offers[i].line);

        if (run.code != CLI_OK || strcmp(run.out, offers[i].out) != 0)
            fail_msg("%s: %d \"%s\"", offers[i].line, run.code, run.out);
        run_free(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_do_what_they_say),
        cmocka_unit_test(every_command_has_help),
        cmocka_unit_test(help_of_host_commands_has_their_flags),
        cmocka_unit_test(host_commands_get_their_flags_unread),
        cmocka_unit_test(run_hands_on_what_was_typed),
        cmocka_unit_test(completes_the_values_of_a_flag),
    };

    unsetenv("BERTH_ADDR");
    unsetenv("BERTH_TOKEN");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
