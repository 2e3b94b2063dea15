/* `berth completion SHELL`: scripts that ask the binary itself, see complete.h. */
#include <string.h>

#include "cli/cli.h"

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
