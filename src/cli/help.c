/* Prints help from the table of commands; no text about a command stands anywhere else. */
#include "cli/help.h"

#include <assert.h>
#include <string.h>

enum { NAME_MAX_LEN = 64, FLAG_TEXT_MAX = 96 };

const char help_exit_codes[] =
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 conflict, 5 unavailable, 6 timeout,\n"
    "            7 the job failed\n";

void help_usage(const struct command *command, char *to, size_t size)
{
    struct flag_set sets[COMMAND_FLAG_SETS];
    char name[NAME_MAX_LEN];

    command_flags(command, sets);
    command_name(command, name, sizeof name);
    snprintf(to, size, "berth %s%s%s%s%s%s%s", name, command->arg ? " " : "",
             command->arg ? command->arg : "",
             command->kind == COMMAND_LOCAL && sets[0].count == 0 ? "" : " [flags]",
             command->rest ? " [-- " : "", command->rest ? command->rest : "",
             command->rest ? "]" : "");
}

/* One line for each command of `noun` (NULL: all of them), in two columns. */
static void list_commands(FILE *to, const char *noun)
{
    const struct command *command;
    char name[NAME_MAX_LEN];
    size_t width = 0;

    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        command_name(command, name, sizeof name);
        if ((!noun || strcmp(noun, command->noun) == 0) && strlen(name) > width)
            width = strlen(name);
    }
    assert(width > 0);
    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        if (noun && strcmp(noun, command->noun) != 0)
            continue;
        command_name(command, name, sizeof name);
        fprintf(to, "  berth %-*s  %s\n", (int)width, name, command->help);
    }
}

static void flag_text(const struct flag *flag, char *to, size_t size)
{
    char letter[] = "-x, ";

    letter[1] = flag->letter;
    snprintf(to, size, "%s--%s%s%s%s", flag->letter ? letter : "    ", flag->name,
             flag->type == FLAG_MS_MAYBE ? "[="
             : flag->value               ? " "
                                         : "",
             flag->value ? flag->value : "", flag->type == FLAG_MS_MAYBE ? "]" : "");
}

static bool same_group(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static void list_flags(FILE *to, const struct flag_set *set, const char *group, const char *title)
{
    char text[FLAG_TEXT_MAX];
    size_t width = 0;

    for (size_t i = 0; i < set->count; i++) {
        flag_text(&set->flags[i], text, sizeof text);
        if (same_group(set->flags[i].group, group) && strlen(text) > width)
            width = strlen(text);
    }
    if (width == 0)
        return;
    fprintf(to, "\n%s:\n", title);
    for (size_t i = 0; i < set->count; i++) {
        if (!same_group(set->flags[i].group, group))
            continue;
        flag_text(&set->flags[i], text, sizeof text);
        fprintf(to, "  %-*s  %s\n", (int)width, text, set->flags[i].help);
    }
}

static void list_examples(FILE *to, const struct command *command)
{
    struct str rest = str_of(command->examples);

    assert(rest.len > 0);
    fprintf(to, "\nExamples:\n");
    while (rest.at) {
        struct str line = str_cut(&rest, '\n');

        fprintf(to, "  " STR_FMT "\n", STR_ARG(line));
    }
}

void help_command(FILE *to, const struct command *command)
{
    struct flag_set sets[COMMAND_FLAG_SETS];
    const struct flag_set *flags = &sets[0];
    char usage[NAME_MAX_LEN * 2];
    char title[NAME_MAX_LEN];

    command_flags(command, sets);
    command_name(command, title, sizeof title);
    help_usage(command, usage, sizeof usage);
    fprintf(to, "berth %s: %s\n\nUsage:\n  %s\n", title, command->help, usage);
    if (command->detail)
        fprintf(to, "\n%s\n", command->detail);
    list_flags(to, flags, NULL, "Flags");
    for (size_t i = 0; i < flags->count; i++) {
        const char *group = flags->flags[i].group;

        if (!group || (i > 0 && same_group(group, flags->flags[i - 1].group)))
            continue;
        snprintf(title, sizeof title, "Flags of %s", group);
        list_flags(to, flags, group, title);
    }
    list_flags(to, &sets[1], NULL, "Flags of lists");
    if (command->kind != COMMAND_HOST)
        list_flags(to, &sets[2], NULL, "Common flags");
    list_examples(to, command);
}

bool help_noun(FILE *to, const char *noun)
{
    size_t i = 0;

    while (command_at(i) && strcmp(command_at(i)->noun, noun) != 0)
        i++;
    if (!command_at(i))
        return false;
    fprintf(to, "Usage:\n");
    list_commands(to, noun);
    fprintf(to, "\n`berth %s VERB --help` tells more about one of them.\n", noun);
    return true;
}

void help_all(FILE *to)
{
    fprintf(to, "berth places work on machines without ever giving one more than it can carry.\n\n"
                "Usage:\n");
    list_commands(to, NULL);
    fprintf(to, "\n`berth COMMAND --help` shows flags and examples. A first tour:\n"
                "  berth dev &\n"
                "  berth node register node-1 --semantic en,zh --nmt en:zh,zh:en --max 2\n"
                "  berth job submit --session room-1 --src en --tgt zh --audio-ref blob://1\n"
                "  berth job ls\n\n");
    fputs(help_exit_codes, to);
}
