/* The table of commands is consistent: every row can be found and has help, and its examples
 * parse. */
#include "unit.h"

#include "cli/command.h"
#include "cli/complete.h"
#include "cli/list.h"

static void every_row_is_whole(void **state)
{
    const struct command *command;
    size_t i;

    for (i = 0; (command = command_at(i)) != NULL; i++) {
        char name[64];
        char *argv[] = {(char *)command->noun, (char *)command->verb};
        int used;

        command_name(command, name, sizeof name);
        if (!command->help || !command->help[0] || !command->examples || !command->examples[0])
            fail_msg("%s lacks help or examples", name);
        assert_ptr_equal(command_find(command->verb ? 2 : 1, argv, &used, NULL), command);
        assert_int_equal(used, command->verb ? 2 : 1);
        assert_int_equal((command->kind == COMMAND_HOST) + (command->list != NULL) +
                             (command->call != NULL) + (command->run != NULL),
                         1);
    }
    assert_true(i > 20);
}

/* Two flags of one command never share a name or a letter, common flags included. */
static void flags_are_told_apart(void **state)
{
    const struct command *command;

    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        struct flag_set set_of[COMMAND_FLAG_SETS];
        const struct flag *all[64];
        size_t count = 0;

        command_flags(command, set_of);
        for (size_t s = 0; s < COMMAND_FLAG_SETS; s++)
            for (size_t f = 0; f < set_of[s].count; f++)
                all[count++] = &set_of[s].flags[f];
        for (size_t a = 0; a < count; a++) {
            assert_non_null(all[a]->help);
            assert_true((all[a]->value == NULL) == (all[a]->type == FLAG_SWITCH));
            for (size_t b = a + 1; b < count; b++) {
                assert_string_not_equal(all[a]->name, all[b]->name);
                assert_true(!all[a]->letter || all[a]->letter != all[b]->letter);
            }
        }
    }
}

/* The number of arguments required, or allowed. */
static int words_in(const char *arg, bool also_optional)
{
    struct str rest = str_of(arg);
    int count = 0;

    while (rest.at)
        count += str_cut(&rest, ' ').at[0] != '[' || also_optional;
    return count;
}

static void check_example(const struct command *command, struct str line)
{
    struct flag_set sets[COMMAND_FLAG_SETS];
    struct arena arena = {0};
    struct flag_line parsed;
    struct problem why = {0};
    struct words words;
    int used;

    command_flags(command, sets);
    if (str_starts(line, STR("source <(")))
        /* The part that the shell runs. */
        line = (struct str){.at = line.at + 9, .len = line.len - 10};
    words_cut(&words, arena_cstr(&arena, line));
    assert_string_equal(words.argv[0], "berth");
    if (command_find(words.argc - 1, words.argv + 1, &used, &why) != command)
        fail_msg(STR_FMT " is an example of another command", STR_ARG(line));
    if (command->kind != COMMAND_HOST) {
        if (flag_parse(sets, COMMAND_FLAG_SETS, words.argc - 1 - used, words.argv + 1 + used,
                       &arena, &parsed, &why))
            fail_msg(STR_FMT ": %s", STR_ARG(line), why.detail);
        assert_true(parsed.arg_count >= words_in(command->arg, false));
        assert_true(parsed.arg_count <= words_in(command->arg, true));
        assert_true(parsed.rest_count == 0 || command->rest);
    }
    arena_free(&arena);
}

static void examples_can_be_typed(void **state)
{
    const struct command *command;

    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        struct str rest = str_of(command->examples);

        while (rest.at)
            check_example(command, str_cut(&rest, '\n'));
    }
}

static void unknown_ones_get_a_hint(void **state)
{
    static const struct {
        const char *line, *detail;
    } rows[] = {
        {"nod ls", "unknown command \"nod\"; did you mean \"node\"?"},
        {"node lss", "unknown command \"node lss\"; did you mean \"node ls\"?"},
        {"job frobnicate", "unknown command \"job frobnicate\"; there is: submit, ls, show, wait, "
                           "cancel, retry, logs, explain"},
        {"job", "`berth job` needs one of: submit, ls, show, wait, cancel, retry, logs, explain"},
        {"job -o json",
         "`berth job` needs one of: submit, ls, show, wait, cancel, retry, logs, explain"},
        {"frobnicate", "unknown command \"frobnicate\"; `berth help` lists what there is"},
        {"breaker rest us dev",
         "unknown command \"breaker rest\"; did you mean \"breaker reset\"?"},
        {"stauts", "unknown command \"stauts\"; did you mean \"status\"?"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct words words;
        struct problem why = {0};
        int used;

        words_cut(&words, rows[i].line);
        assert_null(command_find(words.argc, words.argv, &used, &why));
        assert_string_equal(why.detail, rows[i].detail);
    }
}

/* Completion takes ids from a list whose path needs none. */
static void some_lists_have_the_ids(void **state)
{
    static const struct listing nodes = {.path = "/v1/nodes"},
                                own = {.path = "/v1/nodes/{id}/jobs"};

    assert_true(complete_lists_ids(&(struct command){.list = &nodes}));
    assert_false(complete_lists_ids(&(struct command){.list = &own}));
    assert_false(complete_lists_ids(&(struct command){.run = NULL}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_whole),      cmocka_unit_test(flags_are_told_apart),
        cmocka_unit_test(examples_can_be_typed),   cmocka_unit_test(unknown_ones_get_a_hint),
        cmocka_unit_test(some_lists_have_the_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
