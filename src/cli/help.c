/* Help and manual pages (roff, one for the program and one per noun), printed from the command
 * table, which has all texts about commands. */
#include "cli/help.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

/* --- help --- */

enum { NAME_MAX_LEN = 64, FLAG_TEXT_MAX = 96 };

static const char help_exit_codes[] =
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 conflict, 5 unavailable, 6 timeout,\n"
    "            7 the job failed\n";

/* "berth node show ID [flags]" */
static void help_usage(const struct command *command, char *to, size_t size)
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

void help_command(FILE *to, const struct command *command)
{
    struct flag_set sets[COMMAND_FLAG_SETS];
    const struct flag_set *flags = &sets[0];
    char usage[NAME_MAX_LEN * 2];
    char title[NAME_MAX_LEN];
    struct str rest;

    command_flags(command, sets);
    command_name(command, title, sizeof title);
    help_usage(command, usage, sizeof usage);
    fprintf(to, "berth %s: %s\n\nUsage:\n  %s\n", title, command->help, usage);
    if (command->detail)
        fprintf(to, "\n%s\n", command->detail);
    list_flags(to, flags, NULL, "Flags");
    for (size_t i = 0, k = 0; i < flags->count; i++, k = 0) {
        const char *group = flags->flags[i].group;

        while (!same_group(flags->flags[k].group, group))
            k++;
        if (!group || k < i) /* already printed with the first of its group */
            continue;
        snprintf(title, sizeof title, "Flags of %s", group);
        list_flags(to, flags, group, title);
    }
    list_flags(to, &sets[1], NULL, "Flags of lists");
    if (command->kind != COMMAND_HOST)
        list_flags(to, &sets[2], NULL, "Common flags");
    rest = str_of(command->examples);
    assert(rest.len > 0);
    fprintf(to, "\nExamples:\n");
    while (rest.at) {
        struct str line = str_cut(&rest, '\n');

        fprintf(to, "  " STR_FMT "\n", STR_ARG(line));
    }
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
    fprintf(to, "\n`berth %s VERB --help` says more about one of them.\n", noun);
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

/* --- manual pages --- */

/* Escapes what roff would interpret: a backslash, a dot or quote at the start of a line; a dash
 * that must stay one. */
static void put(FILE *to, const char *text, bool line_begins)
{
    for (; *text; text++) {
        if (line_begins && (*text == '.' || *text == '\''))
            fputs("\\&", to);
        if (*text == '\\')
            fputs("\\e", to);
        else if (*text == '-')
            fputs("\\-", to);
        else
            fputc(*text, to);
        line_begins = *text == '\n';
    }
}

static void section(FILE *to, const char *macro, const char *title)
{
    fprintf(to, ".%s \"", macro);
    put(to, title, false);
    fputs("\"\n", to);
}

static void put_block(FILE *to, const char *text)
{
    fputs(".PP\n.nf\n.RS\n", to);
    put(to, text, true);
    fputs("\n.RE\n.fi\n", to);
}

static void put_flags(FILE *to, const struct flag_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct flag *flag = &set->flags[i];

        fputs(".TP\n", to);
        if (flag->letter)
            fprintf(to, "\\fB\\-%c\\fR, ", flag->letter);
        fputs("\\fB\\-\\-", to);
        put(to, flag->name, false);
        fputs("\\fR", to);
        if (flag->value) {
            fputs(flag->type == FLAG_MS_MAYBE ? "[=\\fI" : " \\fI", to);
            put(to, flag->value, false);
            fputs(flag->type == FLAG_MS_MAYBE ? "\\fR]" : "\\fR", to);
        }
        fputc('\n', to);
        put(to, flag->help, true);
        fputc('\n', to);
    }
}

static void put_command(struct cli *cli, FILE *to, const struct command *command)
{
    struct flag_set sets[COMMAND_FLAG_SETS];
    char usage[256];

    help_usage(command, usage, sizeof usage);
    section(to, "SS", usage);
    put(to, command->help, true);
    fputs(".\n", to);
    if (command->detail) {
        fputs(".PP\n", to);
        if (strstr(command->detail, "\n  ")) /* it has preformatted lines */
            put_block(to, command->detail);
        else
            put(to, command->detail, true);
        fputc('\n', to);
    }
    command_flags(command, sets);
    put_flags(to, &sets[0]);
    put_flags(to, &sets[1]);
    if (command->kind == COMMAND_HOST) {
        /* A server's and an agent's settings: lines "  --name VALUE  help". */
        struct buf text = {0};

        cli_host_flags(cli, command, &text);
        if (text.len > 0) {
            buf_char(&text, 0);
            put_block(to, text.at);
        }
        buf_free(&text);
    }
    put_block(to, command->examples);
}

static void put_end(FILE *to, bool api)
{
    struct flag_set sets[COMMAND_FLAG_SETS];
    struct command any = {.kind = COMMAND_API};

    if (api) {
        command_flags(&any, sets);
        section(to, "SH", "COMMON FLAGS");
        fputs("Of every command that asks a server.\n", to);
        put_flags(to, &sets[2]);
    }
    section(to, "SH", "EXIT STATUS");
    put_block(to, help_exit_codes);
    section(to, "SH", "ENVIRONMENT");
    fputs(
        "\\fBBERTH_ADDR\\fR, \\fBBERTH_TOKEN\\fR, \\fBBERTH_CA_FILE\\fR, \\fBBERTH_CERT_FILE\\fR, "
        "\\fBBERTH_KEY_FILE\\fR, \\fBBERTH_CONTEXT\\fR: as the flags; "
        "\\fBNO_COLOR\\fR: no colours.\n",
        to);
    section(to, "SH", "FILES");
    fputs("\\fI~/.config/berth/config.yaml\\fR: contexts, see \\fBberth\\-context\\fR(1).\n", to);
}

static void put_title(FILE *to, const char *name, const char *what)
{
    fputs(".TH ", to);
    for (const char *c = name; *c; c++)
        fputc(toupper((unsigned char)*c), to);
    fprintf(to, " 1 \"\" \"berth %s\" \"berth\"\n", BERTH_VERSION);
    section(to, "SH", "NAME");
    put(to, name, true);
    fputs(" \\- ", to);
    put(to, what, false);
    fputc('\n', to);
}

/* berth-NOUN(1); false: no such noun. */
static bool noun_page(struct cli *cli, FILE *to, const char *noun)
{
    const struct command *command, *first = NULL;
    char name[96], what[160];
    bool api = false;

    for (size_t i = 0; (command = command_at(i)) != NULL; i++)
        if (!first && strcmp(command->noun, noun) == 0)
            first = command;
    if (!first)
        return false;
    snprintf(name, sizeof name, "berth-%s", noun);
    snprintf(what, sizeof what, first->verb ? "commands about a %s" : "%s",
             first->verb ? noun : first->help);
    put_title(to, name, what);
    section(to, "SH", "COMMANDS");
    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        if (strcmp(command->noun, noun) != 0)
            continue;
        put_command(cli, to, command);
        api |= command->kind == COMMAND_API;
    }
    put_end(to, api);
    section(to, "SH", "SEE ALSO");
    fputs("\\fBberth\\fR(1)\n", to);
    return true;
}

static void program_page(FILE *to)
{
    const struct command *command;
    char usage[256];

    put_title(to, "berth", "places work on machines without giving one more than it can carry");
    section(to, "SH", "SYNOPSIS");
    fputs("\\fBberth\\fR \\fICOMMAND\\fR [\\fIARG\\fR...] [\\fIFLAG\\fR...]\n", to);
    section(to, "SH", "COMMANDS");
    fputs("Each noun has a page of its own, as \\fBberth\\-node\\fR(1).\n", to);
    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        help_usage(command, usage, sizeof usage);
        fputs(".TP\n\\fB", to);
        put(to, usage, true);
        fputs("\\fR\n", to);
        put(to, command->help, true);
        fputc('\n', to);
    }
    put_end(to, true);
}

/* DIR/berth.1 and DIR/berth-NOUN.1 */
static int write_page(struct cli *cli, const char *dir, const char *noun)
{
    const char *path =
        arena_fmt(&cli->arena, "%s/berth%s%s.1", dir, noun ? "-" : "", noun ? noun : "").at;
    FILE *to = fopen(path, "we");
    bool good = true;

    if (!to)
        return cli_fail(cli, CLI_FAILED, "cannot write %s: %m", path);
    if (noun)
        good = noun_page(cli, to, noun);
    else
        program_page(to);
    assert(good);
    good = fchmod(fileno(to), 0644) == 0;
    return fclose(to) == 0 && good ? CLI_OK
                                   : cli_fail(cli, CLI_FAILED, "cannot write %s: %m", path);
}

static int cmd_man(struct cli *cli)
{
    const char *dir = cli_text(cli, "dir");

    if (dir && cli->arg_count)
        return cli_misuse(cli, "--dir writes all pages: without a NOUN");
    if (dir) {
        const struct command *command;
        const char *last = "";
        int code = write_page(cli, dir, NULL);

        for (size_t i = 0; code == CLI_OK && (command = command_at(i)) != NULL; i++) {
            if (strcmp(command->noun, last) != 0)
                code = write_page(cli, dir, command->noun);
            last = command->noun;
        }
        return code;
    }
    if (cli->arg_count == 0)
        program_page(cli->out);
    else if (!noun_page(cli, cli->out, cli->args[0]))
        return cli_misuse(cli, "there is no page for \"%s\"; `berth help` lists the commands",
                          cli->args[0]);
    return CLI_OK;
}

static const struct flag man_flags[] = {
    FLAG("dir", 0, TEXT, "DIR", "write all pages into this directory"),
};

static const struct command rows[] = {
    {.noun = "man",
     .arg = "[NOUN]",
     .kind = COMMAND_LOCAL,
     .flags = FLAGS(man_flags),
     .help = "the manual page of a command, for man(1)",
     .examples = "berth man node > berth-node.1\n"
                 "berth man --dir .",
     .run = cmd_man},
};

const struct command_set commands_man = COMMANDS(rows);
