/* Completion: candidates from the command table, ids from the server's lists, and `berth completion
 * SHELL`, whose scripts call the binary itself. */
#include "cli/complete.h"

#include <string.h>

#include "cli/context.h"
#include "cli/list.h"
#include "cli/request.h"

/* --- candidates --- */

enum { COMPLETE_MS = 1000, COMPLETE_IDS_MAX = 200 };

#define FILES ":files\n"

struct completion {
    struct cli *cli;
    const char *typed; /* of the last word */
};

static void offer(const struct completion *c, const char *word, const char *what)
{
    if (strncmp(word, c->typed, strlen(c->typed)) == 0)
        fprintf(c->cli->out, "%s%s%s\n", word, what ? "\t" : "", what ? what : "");
}

/* Nouns (noun NULL) or verbs, each once: commands of one noun are adjacent. */
static void offer_commands(const struct completion *c, const char *noun)
{
    const struct command *command;
    const char *last = "";

    for (size_t i = 0; (command = command_at(i)) != NULL; i++) {
        const char *word = noun ? command->verb : command->noun;

        if (!word || (noun && strcmp(noun, command->noun) != 0) || strcmp(word, last) == 0)
            continue;
        offer(c, word, noun || !command->verb ? command->help : NULL);
        last = word;
    }
}

static void offer_flags(const struct completion *c, const struct command *command)
{
    struct flag_set sets[COMMAND_FLAG_SETS];

    if (command->kind == COMMAND_HOST) {
        struct buf text = {0};
        struct str rest;

        /* Lines "  --name VALUE  help". */
        cli_host_flags(c->cli, command, &text);
        rest = buf_view(&text);
        while (rest.len > 0) {
            struct str line = str_trim(str_cut(&rest, '\n')), name = str_cut(&line, ' ');

            if (str_starts(name, STR("--")))
                offer(c, arena_cstr(&c->cli->arena, name), NULL);
        }
        buf_free(&text);
        return;
    }
    command_flags(command, sets);
    for (size_t s = 0; s < COUNT_OF(sets); s++)
        for (size_t i = 0; i < sets[s].count; i++)
            offer(c, arena_fmt(&c->cli->arena, "--%s", sets[s].flags[i].name).at,
                  sets[s].flags[i].help);
}

/* The flag named by a word that takes the next word as its value; NULL: none. */
static const struct flag *flag_before(const struct command *command, const char *word)
{
    struct flag_set sets[COMMAND_FLAG_SETS];

    command_flags(command, sets);
    for (size_t s = 0; s < COUNT_OF(sets); s++)
        for (size_t i = 0; i < sets[s].count; i++) {
            const struct flag *flag = &sets[s].flags[i];
            bool named = strncmp(word, "--", 2) == 0 ? strcmp(word + 2, flag->name) == 0
                                                     : word[0] == '-' && flag->letter &&
                                                           word[1] == flag->letter && !word[2];

            if (named)
                return flag->type == FLAG_SWITCH || flag->type == FLAG_MS_MAYBE ? NULL : flag;
        }
    return NULL;
}

static void offer_words(const struct completion *c, struct str words, char separator)
{
    while (words.at)
        offer(c, arena_cstr(&c->cli->arena, str_cut(&words, separator)), NULL);
}

static void offer_contexts(const struct completion *c)
{
    struct contexts *contexts;

    if (contexts_load(c->cli, &contexts) != CLI_OK)
        return;
    for (size_t i = 0; i < contexts->count; i++)
        offer(c, arena_cstr(&c->cli->arena, contexts->at[i].name),
              arena_cstr(&c->cli->arena, contexts->at[i].addr));
}

static void offer_values(const struct completion *c, const struct flag *flag)
{
    size_t len = strlen(flag->name);

    offer_words(c, str_of(flag->values), ' ');
    if (strcmp(flag->name, "context") == 0)
        offer_contexts(c);
    if ((len > 4 && strcmp(flag->name + len - 4, "file") == 0) || strcmp(flag->name, "file") == 0 ||
        strcmp(flag->name, "config") == 0)
        fputs(FILES, c->cli->out);
}

static void offer_ids(const struct completion *c, const struct listing *listing)
{
    struct request request = {
        .method = "GET",
        .path = arena_fmt(&c->cli->arena, "%s?limit=%d", listing->path, COMPLETE_IDS_MAX).at,
        .timeout_ms = COMPLETE_MS};
    const struct json *list, *item;
    struct str said;

    if (cli_reach(c->cli) != CLI_OK || request_quietly(c->cli, &request, &said) != CLI_OK)
        return; /* a shell that waits for candidates must not get errors */
    list = json_get(request.json, listing->name);
    for (item = json_items(list); item; item = json_after(list, item)) {
        struct str id = show_member(c->cli, item, listing->id);

        if (str_is_text(id))
            offer(c, arena_cstr(&c->cli->arena, id), NULL);
    }
}

bool complete_lists_ids(const struct command *command)
{
    return command->list && !strstr(command->list->path, "{id}");
}

/* "bash|zsh|fish" lists the candidates itself; the first argument is an id if the noun has a list;
 * anything else may be a file. */
static void offer_args(const struct completion *c, const struct command *command, int given)
{
    struct str rest = str_of(command->arg), arg = STR_NONE;
    const struct listing *list = NULL; /* of the noun: its other verbs take these ids */
    const struct command *other;

    for (size_t i = 0; (other = command_at(i)) != NULL && !list; i++)
        if (strcmp(other->noun, command->noun) == 0 && complete_lists_ids(other))
            list = other->list;
    for (int i = 0; i <= given; i++)
        arg = rest.at ? str_cut(&rest, ' ') : STR_NONE;
    if (!arg.at)
        return; /* it takes no more arguments */
    if (memchr(arg.at, '|', arg.len))
        offer_words(c, arg, '|');
    else if (strcmp(command->noun, "context") == 0)
        offer_contexts(c);
    else if (str_is(arg, "[NOUN]"))
        offer_commands(c, NULL);
    else if (given == 0 && command->kind == COMMAND_API && list)
        offer_ids(c, list);
    else
        fputs(FILES, c->cli->out);
}

int complete_run(struct cli *cli, int argc, char **argv)
{
    struct completion c = {.cli = cli, .typed = argc > 0 ? argv[argc - 1] : ""};
    const struct flag *flag = NULL;
    struct problem why;
    int used = 0, given = 0; /* arguments before the last word */

    if (argc <= 1) {
        offer_commands(&c, NULL);
        return CLI_OK;
    }
    cli->command = command_find(argc - 1, argv, &used, &why);
    if (!cli->command) {
        if (argc == 2)
            offer_commands(&c, argv[0]);
        return CLI_OK;
    }
    for (int i = used; i < argc - 1; i++) {
        if (strcmp(argv[i], "--") == 0) { /* the last word is for another program's command */
            fputs(FILES, cli->out);
            return CLI_OK;
        }
        if (flag_before(cli->command, argv[i]))
            i++;
        else
            given += argv[i][0] != '-';
    }
    if (argc - 1 > used)
        flag = flag_before(cli->command, argv[argc - 2]);
    if (flag)
        offer_values(&c, flag);
    else if (c.typed[0] == '-')
        offer_flags(&c, cli->command);
    else
        offer_args(&c, cli->command, given);
    return CLI_OK;
}

/* --- scripts --- */

static const char bash[] =
    "# bash completion for berth: source it, or put it where bash-completion looks.\n"
    "_berth() {\n"
    "    local line\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r line; do\n"
    "        if [ \"$line\" = :files ]; then\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            while IFS= read -r line; do\n"
    "                COMPREPLY+=(\"$line\")\n"
    "            done < <(compgen -f -- \"${COMP_WORDS[COMP_CWORD]}\")\n"
    "        else\n"
    "            COMPREPLY+=(\"${line%%$'\\t'*}\")\n"
    "        fi\n"
    "    done < <(\"${COMP_WORDS[0]}\" __complete \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
    "}\n"
    "complete -F _berth berth\n";

static const char zsh[] =
    "#compdef berth\n"
    "# zsh completion for berth: as _berth in a directory of $fpath.\n"
    "_berth() {\n"
    "    local line files=0\n"
    "    local -a items\n"
    "    for line in \"${(@f)$(\"${words[1]}\" __complete \"${(@)words[2,CURRENT]}\" "
    "2>/dev/null)}\"; "
    "do\n"
    "        case $line in\n"
    "            ('') ;;\n"
    "            (:files) files=1 ;;\n"
    "            (*$'\\t'*) items+=(\"${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}\") ;;\n"
    "            (*) items+=(\"${line//:/\\\\:}\") ;;\n"
    "        esac\n"
    "    done\n"
    "    (( ${#items} )) && _describe berth items\n"
    "    (( files )) && _files\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _berth ]; then\n"
    "    _berth \"$@\"\n"
    "else\n"
    "    compdef _berth berth\n"
    "fi\n";

static const char fish[] =
    "# fish completion for berth: as berth.fish in ~/.config/fish/completions.\n"
    "function __berth_complete\n"
    "    set -l words (commandline -opc)\n"
    "    for line in ($words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null)\n"
    "        if test \"$line\" = :files\n"
    "            __fish_complete_path (commandline -ct)\n"
    "        else\n"
    "            echo $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c berth -f -a '(__berth_complete)'\n";

static const struct {
    const char *shell;
    const char *script;
} scripts[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};

static int cmd_completion(struct cli *cli)
{
    for (size_t i = 0; i < COUNT_OF(scripts); i++)
        if (strcmp(scripts[i].shell, cli->args[0]) == 0) {
            fputs(scripts[i].script, cli->out);
            return CLI_OK;
        }
    return cli_misuse(cli, "there are completions for bash, zsh and fish, not for \"%s\"",
                      cli->args[0]);
}

static const struct command rows[] = {
    {.noun = "completion",
     .arg = "bash|zsh|fish",
     .kind = COMMAND_LOCAL,
     .help = "a script for your shell that completes commands, flags and ids",
     .detail = "Ids of nodes, jobs and the like are asked of the server, within a second.",
     .examples = "berth completion zsh > _berth\n"
                 "berth completion fish > berth.fish\n"
                 "source <(berth completion bash)",
     .run = cmd_completion},
};

const struct command_set commands_completion = COMMANDS(rows);
